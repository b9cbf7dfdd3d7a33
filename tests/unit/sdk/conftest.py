"""Small suites on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

MakeTask = Callable[..., Path]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """An empty folder for tasks."""
    folder = tmp_path / "suite"
    folder.mkdir()
    return folder


@pytest.fixture
def make_task(suite: Path) -> MakeTask:
    """``make_task("one")`` writes a valid task ``bench/one``; options spoil or vary it."""

    def make(
        name: str, *, native: str | None = None, test: bool = True, image: bool = True, toml: str = "", folder: Path | None = None
    ) -> Path:
        task = (folder or suite) / name
        (task / "environment").mkdir(parents=True)
        (task / "tests").mkdir()
        (task / "instruction.md").write_text(f"Do {name}.\n")
        (task / "task.toml").write_text(f'[task]\nname = "{native or f"bench/{name}"}"\n{toml}')
        if image:
            (task / "environment" / "Dockerfile").write_text("FROM debian:12-slim\n")
        if test:
            (task / "tests" / "test.sh").write_text("#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
        return task

    return make
