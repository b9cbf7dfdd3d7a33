"""Pack, extract and check beside ``tar``, in one run: ``python -m tests.bench.packages``."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from seatrial.taskpkg.check import check_tasks
from seatrial.taskpkg.discover import discover
from seatrial.taskpkg.extract import extract_archive
from seatrial.taskpkg.pack import pack_task

from .record import Figure, figure, record

COMMAND = "python -m tests.bench.packages"
TASKS = 5000
ROUNDS = 5


def measure(base: Path) -> list[Figure]:
    return [*_archive_figures(base, "text", _text_task(base)), *_archive_figures(base, "binary", _binary_task(base)), _check_figure(base)]


def _text_task(base: Path) -> Path:
    """Some thousand source files."""
    task = base / "text"
    for index, source in enumerate(sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))[:4000]):
        target = task / "environment" / f"d{index % 50}" / f"f{index}.py"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    return task


def _binary_task(base: Path) -> Path:
    """A few files of data that does not shrink."""
    task = base / "binary"
    (task / "environment").mkdir(parents=True)
    source = random.Random(1)
    for index in range(4):
        (task / "environment" / f"data{index}.bin").write_bytes(source.randbytes(32 * 2**20))
    return task


def _archive_figures(base: Path, kind: str, task: Path) -> list[Figure]:
    ours, tars, best = base / f"{kind}.ours", base / f"{kind}.tar.gz", base / f"{kind}.best.tar.gz"
    out = base / "out"

    def tar(target: Path, level: int) -> None:
        subprocess.run(["tar", "-I", f"gzip -{level}", "-cf", str(target), "-C", str(task.parent), task.name], check=True)

    def untar() -> None:
        out.mkdir()
        subprocess.run(["tar", "xzf", str(ours), "-C", str(out)], check=True)

    def extract() -> None:
        with ours.open("rb") as stream:
            extract_archive(stream, out)

    def clear() -> None:
        shutil.rmtree(out, ignore_errors=True)

    pack, tar_usual, tar_best = _seconds(
        (lambda: pack_task(task, ours), lambda: ours.unlink(missing_ok=True)),
        (lambda: tar(tars, 6), lambda: None),
        (lambda: tar(best, 9), lambda: None),
    )
    own_extract, baseline_extract = _seconds((extract, clear), (untar, clear))
    clear()
    same_level = "baseline: tar with gzip -9, the level that the archive format fixes"
    return [
        figure(f"pack, {kind}, same level", pack, "s", baseline=tar_best, command=COMMAND, note=same_level),
        figure(f"pack, {kind}", pack, "s", baseline=tar_usual, command=COMMAND, note="baseline: tar czf (gzip -6)"),
        figure(f"checked extract, {kind}", own_extract, "s", baseline=baseline_extract, command=COMMAND, note="baseline: tar xzf"),
    ]


def _check_figure(base: Path) -> Figure:
    suite = base / "suite"
    for index in range(TASKS):
        task = suite / f"task-{index:05}"
        for folder in ("environment", "tests", "solution"):
            (task / folder).mkdir(parents=True)
        (task / "task.toml").write_text(f'[task]\nname = "bench/t{index}"\n[agent]\ntimeout_sec = 300.0\n[environment]\ncpus = 2\n')
        (task / "instruction.md").write_text("Do it. " * 100)
        (task / "environment/Dockerfile").write_text("FROM ubuntu:24.04\nRUN true\n")
        (task / "tests/test.sh").write_text("#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
        (task / "tests/test_it.py").write_text("def test(): pass\n" * 50)
        (task / "solution/solve.sh").write_text("#!/bin/sh\ntrue\n")

    def check() -> None:
        results = list(check_tasks(discover(suite).require(), processes=2))
        assert len(results) == TASKS
        assert all(task.valid for task in results)

    (seconds,) = _seconds((check, lambda: None), rounds=1)
    return figure(f"check of {TASKS} tasks", seconds, "s", command=COMMAND, note="two processes; at most 20 s")


Step = Callable[[], object]


def _seconds(*measured: tuple[Step, Step], rounds: int = ROUNDS) -> list[float]:
    """The best time of each action over some rounds, in turn, so that all meet the same noise; with what comes before each."""
    best = [float("inf")] * len(measured)
    for _ in range(rounds):
        for index, (action, before) in enumerate(measured):
            before()
            os.sync()
            start = time.perf_counter()
            action()
            best[index] = min(best[index], time.perf_counter() - start)
    return best


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder))
    record(figures)
    for one in figures:
        print(f"{one.name}: {one.value:g} {one.unit}, baseline {one.baseline}, ratio {one.ratio}")


if __name__ == "__main__":
    main()
