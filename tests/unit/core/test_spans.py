from __future__ import annotations

from datetime import timedelta

from seatrial.core.rows import Row, TrialError
from seatrial.core.spans import Span, trace_of
from tests.builders import NOW, ago, make_pod

SECONDS = {"environment_setup": 1.0, "agent_setup": 2.0, "agent_execution": 10.0, "verifier": 3.0, "logs": 0.5, "total": 17.0}
ROW = Row("t__1", 2, "scored", ago(0), rewards={"reward": 0.5}, pod="job-t-2", started_at=ago(30), seconds=SECONDS)


def made(row: Row = ROW) -> dict[str, tuple[float, float]]:
    """Phase -> seconds before now of its begin and its end."""
    trace = trace_of(row, None, namespace="evals", job="nightly", uid="u-1")
    assert trace is not None
    return {span.name: ((NOW - span.begin).total_seconds(), (NOW - span.end).total_seconds()) for span in trace.phases}


def test_the_phases_of_a_verdict_follow_each_other_from_the_runners_start() -> None:
    assert made() == {
        "environment_setup": (17.0, 16.0),
        "agent_setup": (16.0, 14.0),
        "agent_execution": (14.0, 4.0),
        "verifier": (4.0, 1.0),
        "logs": (1.0, 0.5),
    }


def test_durations_that_a_pod_made_up_stay_within_its_time() -> None:
    row = Row("t__1", 0, "scored", ago(0), pod="p", started_at=ago(30), seconds={"agent_setup": 1e9, "verifier": 5.0, "total": 1e9})
    assert made(row) == {"agent_setup": (30.0, 0.0), "verifier": (0.0, 0.0)}


def test_the_trial_itself_is_the_root_and_says_what_came_of_it() -> None:
    error = TrialError("OOMKilled", "SandboxLikelyOutOfMemoryError", "environment", "killed")
    row = Row("t__1", 0, "errored", ago(0), pod="p", started_at=ago(30), error=error)
    trace = trace_of(row, None, namespace="evals", job="nightly", uid="u-1")
    assert trace is not None
    assert (trace.root, trace.error) == (
        Span(
            "trial",
            NOW - timedelta(seconds=30),
            NOW,
            {
                "k8s.namespace.name": "evals",
                "k8s.pod.name": "p",
                "seatrial.job": "nightly",
                "seatrial.job.uid": "u-1",
                "seatrial.trial": "t__1",
                "seatrial.retry": 0,
                "seatrial.outcome": "errored",
                "seatrial.cause": "environment",
                "error.type": "OOMKilled",
            },
        ),
        "OOMKilled: killed",
    )


def test_pods_of_one_trial_share_a_trace_and_the_same_row_gives_the_same_spans() -> None:
    first, again, other = (trace_of(row, None, namespace="evals", job="nightly", uid="u-1") for row in (ROW, ROW, make_retry(3)))
    assert first is not None
    assert other is not None
    assert first == again
    assert first.trace_id == other.trace_id
    assert first.span_id("trial") != other.span_id("trial") != other.span_id("verifier")


def make_retry(retry: int) -> Row:
    return Row("t__1", retry, "scored", ago(0), pod="p", started_at=ago(30))


def test_the_pods_own_phases_come_first() -> None:
    pod = make_pod().running().view()
    trace = trace_of(ROW, pod, namespace="evals", job="nightly", uid="u-1")
    assert trace is not None
    assert [span.name for span in trace.phases][-5:] == [name for name in SECONDS if name != "total"]
    assert trace.root.begin == pod.created_at


def test_a_row_without_a_pod_has_no_trace() -> None:
    assert trace_of(Row("t__1", 0, "cancelled", ago(0)), None, namespace="evals", job="nightly", uid="u-1") is None
