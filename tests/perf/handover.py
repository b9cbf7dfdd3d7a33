"""Hand-overs and restarts under load: how long nobody decides, after SIGKILL and after SIGTERM, and what the next process reads."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from ..bench.record import Figure, figure
from .load import Load
from .operator_process import OperatorProcess, Sample
from .plane import wait_for

PARTS = 4
"""The load is a quarter, then half done, when the leaders go."""


def handovers(load: Load, leader: OperatorProcess, job: str, trials: int, *, command: str) -> tuple[OperatorProcess, list[Figure]]:
    """Replace the leader twice while ``job`` runs; the answer has the last one."""
    figures: list[Figure] = []
    for number, (word, end) in enumerate((("SIGKILL", OperatorProcess.kill), ("SIGTERM", _terminate))):
        standby = OperatorProcess(load.plane, name=f"standby-{number}", settings=leader.settings)
        standby.start()
        wait_for("standby is live", standby.live, seconds=60)
        _wait_for_final(load, job, trials * (number + 1) // PARTS)
        live = leader.sample().one("seatrial_informer_pods")
        begun = time.monotonic()
        end(leader)
        sample = _first_pass(standby)
        seconds = time.monotonic() - begun
        note = f"until the first pass of the other; {live:.0f} live Pods, {trials} trials"
        limit = 30 if word == "SIGKILL" else 5
        figures += [
            figure(f"{trials} trials: hand-over after {word}", seconds, "s", command=command, note=f"{note}; target <= {limit}"),
            figure(
                f"{trials} trials: store reads of a new leader after {word}",
                sample.sum("seatrial_store_requests_total"),
                "calls",
                command=command,
                note="plan, row shards and one listing of results; target: none per trial",
            ),
            figure(
                f"{trials} trials: GETs of Pods by a new leader after {word}",
                sample.sum("seatrial_api_requests_total", verb="GET", resource="pods"),
                "requests",
                command=command,
                note="pages of one LIST; a create that was under way may be asked for",
            ),
        ]
        leader = standby
    return leader, figures


def restart(load: Load, operator: OperatorProcess, trials: int, *, command: str) -> tuple[OperatorProcess, list[Figure]]:
    """Kill the only replica, and start it again as the kubelet would: the container has another identity, and waits for the Lease."""
    operator.kill()
    killed = time.time()
    again = OperatorProcess(load.plane, name=f"{operator.name}-again", settings=operator.settings)
    again.start()
    again.ready(seconds=120)
    seconds = first_decision(again, killed) - killed
    sample = again.sample()
    return again, [
        figure(f"{trials} trials: first decision after SIGKILL", seconds, "s", command=command, note="one replica; target <= 30"),
        figure(
            f"{trials} trials: GETs of Pods after a restart",
            sample.sum("seatrial_api_requests_total", verb="GET", resource="pods"),
            "requests",
            command=command,
            note="pages of one LIST; a create that was under way may be asked for",
        ),
        figure(
            f"{trials} trials: store reads after a restart",
            sample.sum("seatrial_store_requests_total"),
            "calls",
            command=command,
            note="plan, row shards, one listing of results, and results of Pods that vanished meanwhile; target: none per trial",
        ),
    ]


def first_decision(operator: OperatorProcess, since: float) -> float:
    """When the operator first created a Pod or committed a row after ``since``, in Unix time."""
    words = ("pod created", "trial scored", "trial errored", "trial retried")

    def decisions() -> list[float]:
        return [line["at"] for line in operator.lines(since) if line["message"] in words]

    wait_for("a first decision", lambda: bool(decisions()), seconds=120)
    return decisions()[0]


def _terminate(operator: OperatorProcess) -> None:
    operator.signal(signal.SIGTERM)


def _first_pass(operator: OperatorProcess) -> Sample:
    """The metrics after the first pass over a job."""
    found: list[Sample] = []

    def passed() -> bool:
        sample = operator.sample()
        found.append(sample)
        return sample.sum("seatrial_pass_seconds_count", kind="EvalJob") > 0

    wait_for("first pass", passed, seconds=120, every=0.05)
    return found[-1]


def _wait_for_final(load: Load, job: str, count: int) -> None:
    wait_for(f"{count} final trials", final(load, job, count), seconds=1200, every=0.5)


def final(load: Load, job: str, count: int) -> Callable[[], bool]:
    """Asks whether so many trials of a job are final."""

    def reached() -> bool:
        counts = (load.job(job).get("status") or {}).get("trials") or {}
        return bool(counts.get("scored", 0) + counts.get("errored", 0) >= count)

    return reached
