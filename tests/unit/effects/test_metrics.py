"""Metrics: what is counted, and that nothing hostile or endless becomes a label."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import CollectorRegistry

from seatrial.api.reasons import Reason
from seatrial.core.observe import ContainerView, PodView
from seatrial.core.policy import POLICIES
from seatrial.core.rows import Row, TrialError
from seatrial.core.spans import pod_spans
from seatrial.effects.metrics import NAMED_JOBS, OTHER, Metrics

BEGIN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def series(registry: CollectorRegistry, name: str) -> dict[tuple[str, ...], float]:
    """Label values, in the order of the labels' names -> value, of one sample name."""
    found = {}
    for metric in registry.collect():
        for sample in metric.samples:
            if sample.name == name:
                found[tuple(value for _, value in sorted(sample.labels.items()))] = sample.value
    return found


def ended(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Cause, outcome and reason of what has ended."""
    return {labels: count for labels, count in series(metrics.registry, "seatrial_trials_ended_total").items() if count}


def container(name: str, started: datetime | None, finished: datetime | None = None, *, init: bool = False) -> ContainerView:
    phase = "terminated" if finished else "running" if started else "waiting"
    return ContainerView(name, init, phase, "", "", 0 if finished else None, started, finished)  # type: ignore[arg-type]


def pod(*containers: ContainerView, scheduled_at: datetime | None = BEGIN) -> PodView:
    return PodView(
        name="p",
        namespace="evals",
        uid="u",
        owner_uid="j",
        job_uid="j",
        role="trial",
        trial="t",
        retry=0,
        phase="Running",
        reason="",
        message="",
        deletion_due=None,
        created_at=BEGIN,
        node="n",
        scheduled_at=scheduled_at,
        unscheduled="",
        unscheduled_message="",
        disruption="",
        disruption_message="",
        containers=containers,
    )


def job(name: str, phase: str = "Running", *, created: str = "2026-01-02T03:04:05Z", mean: str = "", **trials: int) -> dict[str, object]:
    scores = [{"name": "reward.mean", "value": mean, "count": 2, "missing": 2}, {"name": "reward.mean.zero", "value": "0.25", "count": 4}]
    status = {"phase": phase, "trials": trials, "mean": mean, "startTime": "2026-01-02T03:04:05Z", "scores": scores if mean else []}
    return {"metadata": {"namespace": "evals", "name": name, "creationTimestamp": created}, "spec": {"concurrency": 4}, "status": status}


def test_a_scored_trial_counts_its_reward_and_phases() -> None:
    metrics = Metrics()
    row = Row("t", 0, "scored", "", rewards={"reward": 0.75}, seconds={"agent_execution": 3.0, "total": 9.0}, tampered=True)
    metrics.observe_row(row, None, namespace="evals")
    assert ended(metrics) == {("", "scored", ""): 1}
    assert series(metrics.registry, "seatrial_trial_reward_sum") == {(): 0.75}
    assert series(metrics.registry, "seatrial_trials_tampered_total") == {(): 1}
    assert series(metrics.registry, "seatrial_trial_phase_seconds_sum") == {("agent_execution",): 3.0, ("total",): 9.0}


def test_what_agents_spent_is_counted_by_namespace_and_outcome() -> None:
    metrics = Metrics()
    usage = {"n_input_tokens": 100, "n_cache_tokens": 40, "n_output_tokens": 7, "cost_usd": 0.25}
    metrics.observe_row(Row("t", 0, "retried", "", usage=usage), None, namespace="evals")
    metrics.observe_row(Row("t", 1, "scored", "", rewards={"reward": 1.0}, usage={"cost_usd": 0.5}), None, namespace="evals")
    assert series(metrics.registry, "seatrial_trial_cost_usd_total") == {("evals", "retried"): 0.25, ("evals", "scored"): 0.5}
    assert series(metrics.registry, "seatrial_trial_tokens_total") == {
        ("evals", "input", "retried"): 100,
        ("evals", "cache", "retried"): 40,
        ("evals", "output", "retried"): 7,
    }


def test_words_that_a_pod_made_up_become_no_labels() -> None:
    metrics = Metrics()
    for number in range(50):
        error = TrialError(f"MadeUp{number}", "x", "agent", "")
        metrics.observe_row(Row("t", 0, "errored", "", error=error, seconds={f"phase{number}": 1.0}), None, namespace="evals")
    assert ended(metrics) == {("agent", "errored", OTHER): 50}
    assert series(metrics.registry, "seatrial_trial_phase_seconds_count") == {}


def test_the_first_pod_that_ends_for_a_reason_of_ours_is_seen_by_rates() -> None:
    begun = series(Metrics().registry, "seatrial_trials_ended_total")
    assert set(begun.values()) == {0.0}
    assert {(policy.cause, "errored", reason) for reason, policy in POLICIES.items()} <= begun.keys()
    assert {("infrastructure", "retried", reason) for reason in (Reason.NODE_LOST, Reason.EVICTED, Reason.RUNNER_CRASHED)} <= begun.keys()
    assert len(begun) < 2 * len(POLICIES)


@pytest.mark.parametrize("reason", ["OOMKilled", "AgentTimeoutError"])
def test_our_reasons_and_harbors_are_labels(reason: str) -> None:
    metrics = Metrics()
    metrics.observe_row(Row("t", 0, "retried", "", error=TrialError(reason, "x", "infrastructure", "")), None, namespace="evals")
    assert ended(metrics) == {("infrastructure", "retried", reason): 1}


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (
            pod(
                container("stage", after(2), after(3), init=True),
                container("environment", after(7)),
                container("agent", after(8)),
                container("verifier", after(9)),
            ),
            [("scheduling", 0.0), ("sandbox", 2.0), ("stage", 1.0), ("pull", 4.0), ("start", 2.0)],
        ),
        (
            pod(container("stage", after(2), after(3), init=True), container("environment", None)),
            [("scheduling", 0.0), ("sandbox", 2.0), ("stage", 1.0)],
        ),
        (pod(scheduled_at=None), []),
        (
            pod(container("stage", after(2), after(1), init=True), scheduled_at=after(-1)),
            [("scheduling", 0.0), ("sandbox", 3.0), ("stage", 0.0)],
        ),
    ],
    ids=["whole", "an image is missing", "not scheduled", "clocks disagree"],
)
def test_the_pod_tells_the_phases_before_the_agent(view: PodView, expected: list[tuple[str, float]]) -> None:
    assert [(span.name, (span.end - span.begin).total_seconds()) for span in pod_spans(view)] == expected


def test_jobs_that_exist_are_summed_up_and_the_newest_named() -> None:
    metrics = Metrics()
    metrics.show_jobs([job("old", "Completed", mean="0.500", scored=2), job("new", running=1, pending=3)])
    assert series(metrics.registry, "seatrial_trials") == {
        ("pending",): 3,
        ("running",): 1,
        ("scored",): 2,
        ("errored",): 0,
        ("cancelled",): 0,
    }
    assert series(metrics.registry, "seatrial_concurrency") == {(): 4}
    assert series(metrics.registry, "seatrial_job_mean") == {("old", "evals"): 0.5}
    assert series(metrics.registry, "seatrial_job_mean_zero_filled") == {("old", "evals"): 0.25}
    assert {(phase,) for (phase,), count in series(metrics.registry, "seatrial_jobs").items() if count} == {("Completed",), ("Running",)}
    metrics.show_jobs([job("new", running=1)])
    assert {labels[0] for labels in series(metrics.registry, "seatrial_job_trials")} == {"new"}


def test_only_so_many_jobs_are_named() -> None:
    metrics = Metrics()
    metrics.show_jobs([job(f"j{number}", created=f"2026-01-02T03:04:{number % 60:02d}Z") for number in range(3 * NAMED_JOBS)])
    assert len(series(metrics.registry, "seatrial_job_start_time_seconds")) == NAMED_JOBS


def test_each_election_is_counted() -> None:
    metrics = Metrics()
    for leading in (True, False, True):
        metrics.observe_leader(leading)
    assert (series(metrics.registry, "seatrial_leader"), series(metrics.registry, "seatrial_elections_total")) == ({(): 1}, {(): 2})
