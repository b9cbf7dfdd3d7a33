"""Check a stranger's task in a process of its own, bounded in time and memory.

Why: Harbor's digest needs ``.gitignore`` patterns, patterns become regular expressions, and some of those never end. In a thread of the
operator such a task would stop everything, because a running expression does not give way to other threads.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from seatrial.taskpkg.check import CheckedTask, check_task
from seatrial.taskpkg.ignore import IGNORE_FILE
from seatrial.taskpkg.native import CONFIG_FILE
from seatrial.taskpkg.parse import Problem, parse_task_toml

SECONDS: Final = 300.0
"""Hashing 16 GiB takes a minute; a check that takes longer than this does not end."""
MEMORY_BYTES: Final = 1024 * 1024 * 1024
_REPORT_BYTES: Final = 4 * 1024 * 1024
_HARMLESS_ENTRIES: Final = 5000
_HARMLESS_DEPTH: Final = 50


def check_untrusted(path: Path, *, default_image: str | None = None, seconds: float = SECONDS) -> CheckedTask:
    """As ``check.check_task``, for a task from outside that ``extract`` has written.

    A process is started only for what could take for ever: ignore rules, and trees that are large or deep. A check that does not end,
    or needs too much memory, is a problem of the task, rule ``check-limit``.
    """
    path = Path(os.path.abspath(path))
    if _is_harmless(path):
        return check_task(path, default_image=default_image)
    command = [sys.executable, "-m", __name__, str(path), str(seconds), default_image or ""]
    try:
        run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return _failed(path, f"The check did not end within {seconds:g} s")
    if run.returncode != 0 or len(run.stdout) > _REPORT_BYTES:
        last = run.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:200]
        return _failed(path, f"The check ended with code {run.returncode}: {last}")
    report: dict[str, Any] = json.loads(run.stdout)
    problems = tuple(Problem(*problem) for problem in report.pop("problems"))
    # The config does not travel: the text is small and reading it is bounded, so it is simply read again.
    config = parse_task_toml((path / CONFIG_FILE).read_bytes())[0] if report.pop("is_read") else None
    return CheckedTask(path=path, config=config, problems=problems, **report)


def _is_harmless(path: Path) -> bool:
    """True if no file name is matched against patterns and the tree is of ordinary size."""
    if os.path.lexists(path / ".gitignore"):
        return False
    entries = 0
    waiting = [(str(path), 0)]
    while waiting:
        folder, depth = waiting.pop()
        with os.scandir(folder) as found:
            for entry in found:
                entries += 1
                if entry.name == IGNORE_FILE or entries > _HARMLESS_ENTRIES or depth > _HARMLESS_DEPTH:
                    return False
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((entry.path, depth + 1))
    return True


def _failed(path: Path, message: str) -> CheckedTask:
    fix = "simplify .gitignore and .harborignore, and remove links between folders"
    return CheckedTask(path, path.name, False, None, None, (Problem("error", "check-limit", ".", None, None, message, fix),))


def main() -> None:
    path, seconds, default_image = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_CPU, (int(float(seconds)) + 1, int(float(seconds)) + 2))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    task = check_task(Path(path), default_image=default_image or None)
    report = {
        "native_id": task.native_id,
        "valid": task.valid,
        "digest": task.digest,
        "problems": task.problems[:1000],
        "entries": task.entries,
        "payload_bytes": task.payload_bytes,
        "is_read": task.config is not None,
    }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main()
