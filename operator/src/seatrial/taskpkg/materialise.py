"""Replace the links of a downloaded task by copies of what they name, as Harbor does for tasks from Git (harbor.md 2.4)."""

from __future__ import annotations

import shutil
from pathlib import Path

from seatrial.taskpkg.capture import PackageError, inventory
from seatrial.taskpkg.limits import DEFAULT, Limits


def materialise_links(task_dir: Path, *, limits: Limits = DEFAULT) -> int:
    """Turn every link below ``task_dir`` into a copy; returns how many there were.

    Links are judged first, all of them: absolute, escaping, dangling and directly cyclic ones are refused before anything is changed.
    Copies count against the limits of a package, so links to folders of links cannot fill the disk.

    Raises:
        PackageError: a link or an entry that is refused, or too much would be copied.
    """
    listed = inventory(task_dir, limits=limits)
    waiting = {listed.source / entry.path.partition("/")[2]: entry for entry in listed.entries if entry.kind == "link"}
    count, entries, payload = len(waiting), len(listed.entries), listed.payload_bytes
    while waiting:
        targets = {link: link.resolve(strict=True) for link in waiting}
        # Folders that hold links wait until those are copies: a copied link would name something else at its new place.
        ready = [link for link, target in targets.items() if not any(other.is_relative_to(target) for other in waiting)]
        if not ready:
            raise PackageError("Links hold each other", next(iter(waiting.values())).path)
        for link in ready:
            entry, target = waiting.pop(link), targets[link]
            copied = inventory(target, root_name="copy", limits=limits) if target.is_dir() else None
            entries += len(copied.entries) if copied is not None else 1
            payload += copied.payload_bytes if copied is not None else target.stat().st_size
            if entries > limits.entries or payload > limits.payload_bytes:
                raise PackageError("Task payload exceeds limits", entry.path)
            link.unlink()
            if copied is None:
                shutil.copy2(target, link)
            else:
                shutil.copytree(target, link)
    return count
