"""The operator as a process, started, measured and killed; and its profile.

    python -m tests.perf.operator_process PROFILE

runs the operator of this checkout under cProfile and writes the profile when the process ends in an orderly way, and beside it, as
``PROFILE.callbacks``, the longest calls of its event loop: nothing else runs during one of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .plane import REPOSITORY, Plane, free_port, http_ok, spawn, wait_for

Series = tuple[str, Mapping[str, str]]


@dataclass
class Sample:
    """What ``/metrics`` said at one moment: (name, labels) -> value, labels as a sorted tuple."""

    values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = field(default_factory=dict)

    def one(self, name: str) -> float:
        """The series without labels."""
        return self.values.get((name, ()), 0.0)

    def sum(self, name: str, **labels: str) -> float:
        """All series of that name whose labels hold these."""
        wanted = set(labels.items())
        return sum(value for (known, pairs), value in self.values.items() if known == name and wanted <= set(pairs))

    def by(self, name: str, *labels: str) -> dict[str, float]:
        """Sums by the named labels, joined with a blank."""
        found: Counter[str] = Counter()
        for (known, pairs), value in self.values.items():
            if known == name:
                found[" ".join(dict(pairs).get(label, "") for label in labels)] += value  # type: ignore[assignment]
        return dict(found)


def parse_metrics(text: str) -> Sample:
    """Prometheus' text format, without timestamps and exemplars."""
    from prometheus_client.parser import text_string_to_metric_families

    sample = Sample()
    for family in text_string_to_metric_families(text):
        for item in family.samples:
            sample.values[item.name, tuple(sorted(item.labels.items()))] = item.value
    return sample


@dataclass
class OperatorProcess:
    """One replica."""

    plane: Plane
    name: str = "operator"
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further ``SEATRIAL_*`` variables, without the prefix."""
    profile: Path | None = None
    process: subprocess.Popen[bytes] | None = None
    port: int = 0
    started_at: float = 0.0

    def start(self) -> None:
        """Start it; ``ready`` waits until it leads."""
        self.port = free_port()
        store = self.plane.store_settings()
        variables = {
            "KUBECONFIG": str(self.plane.kubeconfig),
            "S3_ENDPOINT": store.endpoint,
            "S3_BUCKET": store.bucket,
            "S3_ACCESS_KEY": store.access_key,
            "S3_SECRET_KEY": store.secret_key,
            "LISTEN_HOST": "127.0.0.1",
            "LISTEN_PORT": str(self.port),
            "LEASE_NAMESPACE": "default",
            "WRITE_RATE": "100",
            "WRITE_BURST": "100",
            **self.settings,
        }
        environ = {f"SEATRIAL_{name}": value for name, value in variables.items()}
        paths = [str(REPOSITORY / "operator" / "src"), str(REPOSITORY / "runner-image" / "src"), str(REPOSITORY)]
        environ["PYTHONPATH"] = os.pathsep.join(paths)
        environ["PYTHONSAFEPATH"] = "1"
        module = ["tests.perf.operator_process", str(self.profile)] if self.profile else ["seatrial.handlers.main"]
        self.started_at = time.time()
        self.process = spawn([sys.executable, "-m", *module], log=self.log, environ=environ)

    @property
    def log(self) -> Path:
        return self.plane.folder / f"{self.name}.log"

    def ready(self, *, seconds: float = 60) -> None:
        wait_for(f"{self.name} leads", lambda: http_ok(f"http://127.0.0.1:{self.port}/readyz"), seconds=seconds)

    def live(self) -> bool:
        """Whether it answers, as leader or standby."""
        return http_ok(f"http://127.0.0.1:{self.port}/healthz")

    def sample(self) -> Sample:
        """Its metrics now.

        Raises:
            OSError: it does not answer.
        """
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            return parse_metrics(answer.read().decode())

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """The exit code, once it has ended."""
        assert self.process is not None
        return self.process.wait(timeout=60)

    def lines(self, since: float = 0.0) -> list[dict[str, Any]]:
        """Log lines written after ``since`` (Unix time), parsed; ``at`` is added."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            if not line.startswith("{"):
                continue
            record = json.loads(line)
            record["at"] = _unix(record["time"])
            if record["at"] >= since:
                found.append(record)
        return found


def _unix(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


LONGEST_CALLBACKS = 40
SHORTEST_CALLBACK_SECONDS = 0.02


def time_callbacks() -> list[tuple[float, str]]:
    """CPU seconds and name of the event loop's longest calls from now on."""
    found: list[tuple[float, str]] = []
    handle_type: Any = asyncio.Handle
    run = handle_type._run

    def timed(handle: Any) -> None:
        began = time.thread_time()
        run(handle)
        seconds = time.thread_time() - began
        if seconds >= SHORTEST_CALLBACK_SECONDS:
            owner = getattr(handle._callback, "__self__", None)
            where = f"{owner.get_name()}: {owner.get_coro()}" if isinstance(owner, asyncio.Task) else repr(handle._callback)
            found.append((seconds, where[:200]))

    handle_type._run = timed
    return found


def main() -> None:
    import cProfile

    from seatrial.handlers.main import main as run

    target, end = sys.argv[1], os._exit
    # CPU time, not the clock on the wall: the machine has other work.
    profile = cProfile.Profile(time.process_time)

    callbacks = time_callbacks()

    def finish(code: int) -> None:
        profile.disable()
        profile.dump_stats(target)
        longest = sorted(callbacks, reverse=True)[:LONGEST_CALLBACKS]
        Path(f"{target}.callbacks").write_text("".join(f"{seconds:.3f} s  {where}\n" for seconds, where in longest))
        end(code)

    os._exit = finish  # type: ignore[assignment]
    sys.argv = ["seatrial-operator"]
    profile.enable()
    run()


if __name__ == "__main__":
    main()
