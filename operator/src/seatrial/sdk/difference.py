"""What changed between two revisions of a task or a taskset."""

from __future__ import annotations

import difflib
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from seatrial.effects.store import Store
from seatrial.sdk.pack_store import key_of
from seatrial.taskpkg.digest import file_sha256
from seatrial.taskpkg.extract import extract_archive

Raw = dict[str, Any]
# Longer files are named and not shown.
TEXT_BYTES: Final = 256 * 1024
# Derived from files and members, which are compared themselves.
_SHOWN_ELSEWHERE: Final = frozenset({"source", "members", "instruction", "harborHash"})


def diff_tasks(store: Store, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Lines of a unified diff of two revision documents: settings first, then files.

    Raises:
        ArchiveError: an archive is not what its revision says.
        NotFound: an archive is gone.
    """
    yield from _text_diff("spec", _settings(old), _settings(new))
    sources = old["content"]["source"], new["content"]["source"]
    if sources[0]["sha256"] == sources[1]["sha256"]:
        return
    with tempfile.TemporaryDirectory(prefix="seatrial-diff-") as scratch:
        roots = []
        for side, source in zip(("a", "b"), sources, strict=True):
            with store.open(key_of(source["ref"])) as stream:
                extracted = extract_archive(cast(BinaryIO, stream), Path(scratch) / side, sha256=source["sha256"])
            roots.append(Path(scratch) / side / extracted.root_name)
        yield from diff_folders(*roots)


def diff_folders(old: Path, new: Path) -> Iterator[str]:
    """Lines of a unified diff of two folders; binary and long files are only named, modes are compared."""
    before, after = _files(old), _files(new)
    for path in sorted(before.keys() | after.keys()):
        if path not in after:
            yield f"- {path} (removed)"
        elif path not in before:
            yield f"+ {path} (added)"
        else:
            yield from _diff_file(path, before[path], after[path])


def diff_tasksets(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Members that came, went or changed, then the other settings."""
    before, after = (_members(document) for document in (old, new))
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            yield f"- {name}#{before[name]}"
        elif name not in before:
            yield f"+ {name}#{after[name]}"
        elif before[name] != after[name]:
            yield f"~ {name}#{before[name]} -> #{after[name]}"
    yield from _text_diff("spec", _settings(old), _settings(new))


def _diff_file(path: str, old: Path, new: Path) -> Iterator[str]:
    if old.is_symlink() or new.is_symlink():
        targets = [str(file.readlink()) if file.is_symlink() else "a file" for file in (old, new)]
        if targets[0] != targets[1]:
            yield f"~ {path} ({targets[0]} -> {targets[1]})"
        return
    modes = [file.stat().st_mode & 0o7777 for file in (old, new)]
    if modes[0] != modes[1]:
        yield f"~ {path} (mode {modes[0]:04o} -> {modes[1]:04o})"
    if file_sha256(old) == file_sha256(new):
        return
    texts = [_text(file) for file in (old, new)]
    if texts[0] is None or texts[1] is None:
        yield f"~ {path} (binary or long, {old.stat().st_size} -> {new.stat().st_size} bytes)"
        return
    yield from _text_diff(path, texts[0], texts[1])


def _text_diff(name: str, old: str, new: str) -> Iterator[str]:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), f"a/{name}", f"b/{name}", lineterm="")
    yield from lines


def _text(file: Path) -> str | None:
    if file.stat().st_size > TEXT_BYTES:
        return None
    try:
        text = file.read_text("utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _files(root: Path) -> dict[str, Path]:
    return {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_symlink() or path.is_file()}


def _settings(document: Mapping[str, Any]) -> str:
    content = {name: value for name, value in document["content"].items() if name not in _SHOWN_ELSEWHERE}
    return json.dumps(content, indent=2, sort_keys=True)


def _members(document: Mapping[str, Any]) -> dict[str, str]:
    return {ref.partition("#")[0]: ref.partition("#")[2] for ref in document["content"].get("members", [])}
