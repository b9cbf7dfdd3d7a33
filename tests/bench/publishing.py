"""Publishing beside the S3 server's own ceiling, in one run: ``python -m tests.bench.publishing``.

The ceiling is the same conditional puts of the same bytes by the same number of processes, with nothing around them.
"""

from __future__ import annotations

import concurrent.futures
import functools
import importlib.util
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from seatrial.effects.store import Store, StoreSettings
from seatrial.sdk.pack_store import Destination, pack_and_store
from seatrial.sdk.publish import PublishOptions, _store_all
from seatrial.taskpkg.check import CheckedTask, check_tasks

from .record import Figure, figure, record

COMMAND = "python -m tests.bench.publishing"
TASKS = 1000
ROUNDS = 3
PROCESSES = 2


def measure(base: Path) -> list[Figure]:
    """Rounds of both, interleaved; the best of each counts."""
    suite = _suite(base / "suite")
    tasks = list(check_tasks(suite, processes=PROCESSES))
    body = _archive(suite[0], base)
    ours: list[float] = []
    ceiling: list[float] = []
    for server in _servers()._serve("versitygw", _folder(base / "s3")):
        settings = server.bucket()
        for number in range(ROUNDS):
            ceiling.append(TASKS / _timed(_puts, settings, body, number))
            ours.append(TASKS / _timed(_publish, settings, tasks, number))
    note = f"{TASKS} tasks of {len(body)} bytes packed, {PROCESSES} processes; baseline: the puts alone"
    return [figure("publish tasks", max(ours), "tasks/s", baseline=max(ceiling), command=COMMAND, note=note)]


def _publish(settings: StoreSettings, tasks: list[CheckedTask], number: int) -> None:
    destination = Destination("bench", f"round-{number}")
    for stored in _store_all(tasks, PublishOptions(processes=PROCESSES), destination, settings, lambda _: None):
        assert stored.outcome == "created", stored


def _puts(settings: StoreSettings, body: bytes, number: int) -> None:
    keys = [f"ceiling/{number}/{index}" for index in range(TASKS)]
    with concurrent.futures.ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("forkserver")) as pool:
        list(pool.map(functools.partial(_put, settings=settings, body=body), keys, chunksize=16))


@functools.cache
def _store(settings: StoreSettings) -> Store:
    return Store(settings)


def _put(key: str, *, settings: StoreSettings, body: bytes) -> None:
    _store(settings).put_new(key, body, read_back=False)


def _suite(folder: Path) -> list[Path]:
    """Small tasks: five files each."""
    tasks = []
    for index in range(TASKS):
        task = folder / f"task-{index:04}"
        (task / "environment").mkdir(parents=True)
        (task / "tests").mkdir()
        (task / "task.toml").write_text(f'[task]\nname = "bench/task-{index:04}"\n')
        (task / "instruction.md").write_text(f"Write {index} into /app/result.txt.\n" * 20)
        (task / "environment" / "Dockerfile").write_text("FROM debian:12-slim\n")
        (task / "tests" / "test.sh").write_text("#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
        tasks.append(task)
    return tasks


def _archive(task: Path, base: Path) -> bytes:
    stored = pack_and_store(str(task), settings=None, destination=Destination("a", "b"), default_image=None, scratch=str(base))
    return b"x" * stored.size_bytes


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def _timed(call: Callable[..., None], *arguments: Any) -> float:
    start = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - start


def _servers() -> Any:
    """The S3 servers of the unit tests."""
    path = Path(__file__).resolve().parents[1] / "unit" / "conftest.py"
    spec = importlib.util.spec_from_file_location("seatrial_test_servers", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder))
    record(figures)
    for one in figures:
        print(f"{one.name}: {one.value:g} {one.unit}, baseline {one.baseline}, ratio {one.ratio}")


if __name__ == "__main__":
    main()
