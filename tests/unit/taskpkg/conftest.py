"""Task folders for the tests of ``seatrial.taskpkg``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

DEFAULT_FILES: Mapping[str, str | bytes | None] = {
    "task.toml": '[task]\nname = "bench/hello"\n',
    "instruction.md": "Do it.\n",
    "environment/Dockerfile": "FROM alpine:3.20\n",
    "tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
}

MakeTask = Callable[..., Path]


@pytest.fixture
def make_task(tmp_path: Path) -> MakeTask:
    """``make_task(name, files, root=…)``: a valid task; ``files`` adds and replaces, a value of None drops a file.

    A path that ends in ``/`` makes an empty folder, a value that starts with ``->`` a link.
    """

    def make(name: str = "hello", files: Mapping[str, str | bytes | None] | None = None, *, root: Path | None = None) -> Path:
        folder = (root or tmp_path) / name
        folder.mkdir(parents=True)
        for path, content in {**DEFAULT_FILES, **(files or {})}.items():
            file = folder / path
            if content is None:
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            if path.endswith("/"):
                file.mkdir(parents=True, exist_ok=True)
            elif isinstance(content, str) and content.startswith("->"):
                os.symlink(content.removeprefix("->"), file)
            elif isinstance(content, bytes):
                file.write_bytes(content)
            else:
                file.write_text(content, encoding="utf-8", newline="")
        return folder

    return make
