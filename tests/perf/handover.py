"""Hand-overs and restarts under load: how long nobody decides after SIGKILL, SIGSTOP and SIGTERM, and what the next process reads."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from ..bench.record import Figure, figure, load_average
from .load import Load
from .operator_process import OperatorProcess, Sample
from .plane import wait_for

PARTS = 4
"""The load is a quarter, then half, then three quarters done, when the leaders go."""
AFTER_DEATH_SECONDS, AFTER_STOP_SECONDS = 30, 5
"""Targets: a leader that says nothing is believed until its Lease is over, one that is asked to end gives it back."""


class Leaving(NamedTuple):
    """A way in which a leader goes."""

    word: str
    signal: signal.Signals
    target_seconds: int


WAYS: Final = (
    Leaving("SIGKILL", signal.SIGKILL, AFTER_DEATH_SECONDS),
    Leaving("SIGSTOP", signal.SIGSTOP, AFTER_DEATH_SECONDS),
    Leaving("SIGTERM", signal.SIGTERM, AFTER_STOP_SECONDS),
)


def handovers(load: Load, leader: OperatorProcess, job: str, trials: int, *, command: str) -> tuple[OperatorProcess, list[Figure]]:
    """Replace the leader in every way while ``job`` runs; the answer has the last one.

    Raises:
        AssertionError: a leader that was paused goes on after its Lease went to another.
    """
    figures: list[Figure] = []
    for number, way in enumerate(WAYS):
        standby = _standby(load, leader, number)
        wait_for("final trials", final(load, job, trials * (number + 1) // PARTS), seconds=1200, every=0.5)
        figures += hand_over(leader, standby, way, label=f"{trials} trials", command=command)
        leader = standby
    return leader, figures


def handover_of_live_pods(load: Load, leader: OperatorProcess, trials: int, *, command: str) -> tuple[OperatorProcess, list[Figure]]:
    """Kill the leader while every trial of a job is a live Pod; the answer has the next one."""
    standby = _standby(load, leader, 0)
    wait_for("live Pods", lambda: leader.sample().one("seatrial_informer_pods") >= trials, seconds=1800, every=2.0)
    before = leader.sample()
    label = f"{trials} live Pods"
    figures = hand_over(leader, standby, WAYS[0], label=label, command=command)
    after = standby.sample()
    resident = max(sample.one("process_resident_memory_bytes") for sample in (before, after))
    stall = after.one("seatrial_loop_own_lag_max_seconds")
    lag = after.one("seatrial_loop_lag_max_seconds")
    note = f"of the new leader, its start included; target < 0.5; {lag:.2f} with the machine's other work"
    return standby, [
        *figures,
        figure(f"{label}: RSS", resident / 2**20, "MiB", command=command, note="the larger one of old and new leader; target < 300"),
        figure(f"{label}: longest loop stall by our own CPU time", stall, "s", command=command, note=note),
    ]


def hand_over(leader: OperatorProcess, standby: OperatorProcess, way: Leaving, *, label: str, command: str) -> list[Figure]:
    """Let the leader go and measure how long nobody decides."""
    live = leader.sample().one("seatrial_informer_pods")
    begun = time.monotonic()
    leader.signal(way.signal)
    sample = _first_pass(standby)
    seconds = time.monotonic() - begun
    if way.signal is signal.SIGSTOP:
        leader.signal(signal.SIGCONT)
    code = leader.wait()
    assert way.signal is not signal.SIGSTOP or code == 1, f"the paused leader ended with {code}"
    note = f"until the first pass of the other; {live:.0f} live Pods; {load_average()}; target <= {way.target_seconds}"
    synced = next(line for line in standby.lines() if line["message"] == "pods synced")
    values = (
        ("hand-over", seconds, "s", note),
        (
            "store reads of a new leader",
            sample.sum("seatrial_store_requests_total"),
            "calls",
            "plan, row shards and one listing of results; target: none per trial",
        ),
        (
            "GETs of Pods by a new leader",
            sample.sum("seatrial_api_requests_total", verb="GET", resource="pods"),
            "requests",
            "pages of one LIST; a create that was under way may be asked for",
        ),
        ("start of the informer of a new leader", synced["seconds"], "s", f"{synced['pods']} Pods; target <= 5 for 10,000"),
    )
    return [figure(f"{label}: {name} after {way.word}", value, unit, command=command, note=note) for name, value, unit, note in values]


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


def _standby(load: Load, leader: OperatorProcess, number: int) -> OperatorProcess:
    """Another replica that runs and does not lead."""
    standby = OperatorProcess(load.plane, name=f"standby-{number}", settings=leader.settings)
    standby.start()
    wait_for("standby is live", standby.live, seconds=60)
    return standby


def _first_pass(operator: OperatorProcess) -> Sample:
    """The metrics after the first pass over a job."""
    found: list[Sample] = []

    def passed() -> bool:
        sample = operator.sample()
        found.append(sample)
        return sample.sum("seatrial_pass_seconds_count", kind="EvalJob") > 0

    wait_for("first pass", passed, seconds=120, every=0.05)
    return found[-1]


def final(load: Load, job: str, count: int) -> Callable[[], bool]:
    """Asks whether so many trials of a job are final."""

    def reached() -> bool:
        counts = (load.job(job).get("status") or {}).get("trials") or {}
        return bool(counts.get("scored", 0) + counts.get("errored", 0) >= count)

    return reached
