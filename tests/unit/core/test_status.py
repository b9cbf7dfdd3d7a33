from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.api.evaljob import MAX_COVERAGE, EvalJobStatus
from seatrial.api.reasons import Reason
from seatrial.core.plan import Hold, Progress, Stop
from seatrial.core.rows import Row, TrialError
from seatrial.core.status import (
    Context,
    Frozen,
    Notice,
    build_status,
    condition_of,
    group_errors,
    job_summary,
    merge_difference,
    notices,
    refused_status,
    waiting_status,
)
from tests.builders import NOW, JobBuilder, ago, make_job, make_row

FROZEN = Frozen(key="jobs/x/plan.json", sha256="a" * 64, tasks=2, trials=4)
OOM = TrialError("OOMKilled", "SandboxLikelyOutOfMemoryError", "environment", "killed for memory")


def progress(*final: Row, pending: int = 0, running: int = 0, **fields: Any) -> Progress:
    defaults: dict[str, Any] = {"retried": 0, "waiting": {}, "live_pods": running, "stop": None}
    return Progress(pending=pending, running=running, final=final, **{**defaults, **fields})


def context(previous: dict[str, Any] | None = None, later: float = 0) -> Context:
    return Context(generation=3, previous=previous or {}, now=NOW + timedelta(seconds=later), prefix="s3://b/jobs/x/")


def status_of(
    state: Progress, job: JobBuilder | None = None, *, saved: bool = False, hold: Hold | None = None, previous: dict[str, Any] | None = None
) -> dict[str, Any]:
    spec = (job or make_job()).job_spec()
    return build_status(
        context(previous),
        spec,
        frozen=FROZEN,
        progress=state,
        hold=hold,
        degraded=None,
        summary_key="jobs/x/summary.json" if saved else None,
    )


def words(status: dict[str, Any], kind: str) -> tuple[str, str]:
    condition = condition_of(status, kind)
    assert condition is not None
    return condition["status"], condition["reason"]


def test_a_running_job_shows_counts_scores_and_what_is_missing() -> None:
    status = status_of(progress(make_row("a"), make_row("b", outcome="errored", error=OOM), pending=1, running=1, retried=2))
    assert status["trials"] == {
        "total": 4,
        "pending": 1,
        "running": 1,
        "scored": 1,
        "errored": 1,
        "cancelled": 0,
        "retried": 2,
        "cached": 0,
    }
    assert (status["phase"], status["progress"], status["mean"]) == ("Running", "2/4", "1.000")
    assert status["scores"][0] == {"name": "reward.mean", "value": "1", "count": 1, "missing": 1}
    assert status["coverage"] == [{"name": "reward", "total": 2, "scored": 1, "failed": 1, "missing": 0}]
    assert status["errors"] == [{"type": "OOMKilled", "cause": "environment", "count": 1, "sample": ["b"], "message": "killed for memory"}]
    assert status["plan"] == {"key": "jobs/x/plan.json", "sha256": "a" * 64, "tasks": 2, "trials": 4}
    assert (status["startTime"], status.get("completionTime")) == (ago(0), None)
    assert words(status, "PlanReady") == ("True", "Planned")
    assert words(status, "Progressing") == ("True", "Running")
    assert words(status, "Finished") == ("False", "Pending")


def test_without_a_score_there_is_no_mean() -> None:
    status = status_of(progress(make_row("a", outcome="errored", error=OOM), running=1))
    assert (status["mean"], status["scores"]) == ("", [])


@pytest.mark.parametrize(
    ("state", "spec", "phase", "reason"),
    [
        pytest.param(progress(make_row("a"), make_row("b")), {}, "Completed", "AllScored", id="all scored"),
        pytest.param(progress(make_row("a"), make_row("b", outcome="errored")), {}, "Completed", "SomeErrored", id="some errored"),
        pytest.param(progress(make_row("a", outcome="errored")), {}, "Failed", "NothingScored", id="nothing scored"),
        pytest.param(
            progress(make_row("a")), {"thresholds": [{"score": "reward.mean", "atLeast": 1.0}]}, "Completed", "AllScored", id="gate met"
        ),
        pytest.param(
            progress(make_row("a", rewards={"reward": 0.5})),
            {"thresholds": [{"score": "reward.mean", "atLeast": 0.6}]},
            "Failed",
            "ThresholdNotMet",
            id="gate missed",
        ),
        pytest.param(
            progress(make_row("a")),
            {"thresholds": [{"score": "quality.mean", "atLeast": 0.6}]},
            "Failed",
            "ThresholdUnmeasured",
            id="gate unmeasured",
        ),
        pytest.param(
            progress(make_row("a")),
            {"thresholds": [{"score": "quality.mean", "atLeast": 0.6, "onMissing": "pass"}]},
            "Completed",
            "AllScored",
            id="gate may be missing",
        ),
        pytest.param(
            progress(make_row("a"), make_row("b", outcome="cancelled"), stop=Stop(Reason.CANCELLED, "m")),
            {},
            "Cancelled",
            "Cancelled",
            id="cancelled",
        ),
        pytest.param(
            progress(make_row("a"), stop=Stop(Reason.CANCELLED, "m")), {}, "Completed", "AllScored", id="cancelled after the last trial"
        ),
        pytest.param(
            progress(make_row("a"), make_row("b", outcome="cancelled"), stop=Stop(Reason.JOB_DEADLINE_EXCEEDED, "m")),
            {},
            "Failed",
            "JobDeadlineExceeded",
            id="deadline",
        ),
        pytest.param(
            progress(make_row("a"), make_row("b", outcome="errored"), stop=Stop(Reason.MAX_ERRORED_REACHED, "m")),
            {},
            "Failed",
            "MaxErroredReached",
            id="too many errors",
        ),
        pytest.param(
            progress(make_row("a"), make_row("b", outcome="cancelled"), stop=Stop(Reason.COST_LIMIT_REACHED, "m", drains=True)),
            {},
            "Failed",
            "CostLimitReached",
            id="too dear",
        ),
        pytest.param(
            progress(make_row("a"), stop=Stop(Reason.COST_LIMIT_REACHED, "m", drains=True)),
            {},
            "Completed",
            "AllScored",
            id="too dear after the last trial",
        ),
    ],
)
@pytest.mark.conforms("H-154")
def test_every_ending_has_its_phase_and_finishes(state: Progress, spec: dict[str, Any], phase: str, reason: str) -> None:
    status = status_of(state, make_job().spec(**spec), saved=True)
    assert status["phase"] == phase
    assert words(status, "Finished") == ("True", reason)
    assert words(status, "Complete") == ("True" if phase == "Completed" else "False", reason)
    assert words(status, "Failed") == ("False" if phase == "Completed" else "True", reason)
    assert words(status, "Progressing") == ("False", "Finished")
    assert status["completionTime"] == ago(0)


def test_a_job_is_not_over_before_its_results_are_saved() -> None:
    status = status_of(progress(make_row("a")))
    assert (status["phase"], words(status, "Finished")[0]) == ("Running", "False")


def test_gates_are_shown_with_their_values() -> None:
    gates = [{"score": "reward.mean", "atLeast": 0.8}, {"score": "x.mean", "atLeast": 1.0}]
    status = status_of(progress(make_row("a")), make_job().spec(thresholds=gates), saved=True)
    assert status["thresholds"] == [
        {"score": "reward.mean", "atLeast": 0.8, "value": "1", "passed": True},
        {"score": "x.mean", "atLeast": 1.0, "passed": False},
    ]


@pytest.mark.parametrize(
    ("state", "hold", "expected"),
    [
        (progress(pending=2), Hold(Reason.QUOTA_EXCEEDED, "no room", NOW + timedelta(seconds=9)), ("False", "QuotaExceeded")),
        (progress(running=1, waiting={Reason.UNSCHEDULABLE: "0/1 nodes"}), None, ("False", "Unschedulable")),
        (progress(running=1, waiting={Reason.QUEUED: "held"}), None, ("False", "Queued")),
        (progress(running=1, waiting={Reason.IMAGE_PULLING: "pulling"}), None, ("True", "ImagePulling")),
        (progress(running=1, waiting={Reason.IMAGE_NOT_FOUND: "not found"}), None, ("True", "ImageNotFound")),
        (progress(running=1, waiting={Reason.POD_START_TIMEOUT: "starting"}), None, ("True", "Running")),
    ],
)
def test_progressing_says_what_the_job_waits_for(state: Progress, hold: Hold | None, expected: tuple[str, str]) -> None:
    assert words(status_of(state, hold=hold), "Progressing") == expected


def test_suspended_means_that_no_pod_is_left() -> None:
    job = make_job().spec(suspend=True)
    leaving, gone = status_of(progress(pending=2, live_pods=1), job), status_of(progress(pending=2), job)
    assert (leaving["phase"], words(leaving, "Suspended")[0]) == ("Running", "False")
    assert (gone["phase"], words(gone, "Suspended")) == ("Suspended", ("True", "SuspendedByUser"))


def test_times_change_only_with_the_status_of_a_condition() -> None:
    first = status_of(progress(running=1))
    later = build_status(
        context(first, later=60),
        make_job().job_spec(),
        frozen=FROZEN,
        progress=progress(make_row("a")),
        hold=None,
        degraded=None,
        summary_key="jobs/x/summary.json",
    )
    times = {item["type"]: item["lastTransitionTime"] for item in later["conditions"]}
    minute_later = ago(-60)
    assert times == {
        "PlanReady": ago(0),
        "Progressing": minute_later,
        "Complete": minute_later,
        "Failed": ago(0),
        "Finished": minute_later,
        "Suspended": ago(0),
        "Degraded": ago(0),
    }
    assert later["startTime"] == ago(0)


def test_an_equal_status_is_no_patch() -> None:
    first = status_of(progress(running=1))
    assert merge_difference(first, status_of(progress(running=1), previous=first)) == {}


def test_a_refused_job_fails_and_finishes_and_one_that_waits_does_not() -> None:
    refused = refused_status(context(), Reason.TASK_NOT_FOUND, "no such Task")
    assert refused["phase"] == "Failed"
    assert [words(refused, kind) for kind in ("PlanReady", "Failed", "Finished", "Complete")] == [
        ("False", "TaskNotFound"),
        ("True", "TaskNotFound"),
        ("True", "TaskNotFound"),
        ("False", "TaskNotFound"),
    ]
    waiting = waiting_status(context(), Reason.TASK_NOT_FOUND, "no such Task")
    assert (waiting["phase"], words(waiting, "Finished")[0], words(waiting, "PlanReady")) == ("Pending", "False", ("False", "TaskNotFound"))


def test_errors_are_grouped_by_name_and_cause_with_a_bounded_sample() -> None:
    other = TrialError("AgentTimeoutError", "AgentTimeoutError", "agent", "late")
    rows = [make_row(f"t{number}", outcome="errored", error=OOM) for number in range(7)] + [make_row("s", error=other)]
    assert [(item.type, item.cause, item.count, item.sample) for item in group_errors(rows)] == [
        ("OOMKilled", "environment", 7, ("t0", "t1", "t2", "t3", "t4")),
        ("AgentTimeoutError", "agent", 1, ("s",)),
    ]


@pytest.mark.parametrize("key", ["", "a\nb", "\x85", "\ud800", "x.pass@1", "k" * 256])
def test_a_key_that_cannot_name_a_reward_is_no_score_and_stops_nothing(key: str) -> None:
    row = make_row("t", rewards={key: 1})
    status = status_of(progress(row), saved=True)
    EvalJobStatus.model_validate(status)
    assert (status["trials"]["scored"], status.get("mean", ""), status.get("scores", []), status.get("coverage", [])) == (1, "", [], [])


def test_a_sum_beyond_any_float_is_not_measured() -> None:
    rows = [make_row(name, rewards={"reward": 1.7e308}) for name in ("a", "b")]
    status = status_of(progress(*rows), make_job().spec(metrics=[{"type": "sum"}, {"type": "max"}]), saved=True)
    values = {item["name"]: item.get("value") for item in status["scores"]}
    assert values == {"reward.sum": None, "reward.max": "1.7e+308", "reward.pass@1": "1"}


def test_the_largest_status_stays_below_64_kib_and_is_valid() -> None:
    keys = [f"ü{number:04d}" + "ö" * 110 for number in range(200)]
    rows = [
        make_row(
            f"{'t' * 55}{number:03d}",
            outcome="scored" if number % 2 else "errored",
            rewards=dict.fromkeys(keys, 0.123456789012),
            error=TrialError(f"Error{number:03d}" + "x" * 80, "ValueError", "agent", "ä" * 2000),
        )
        for number in range(100)
    ]
    gates = [{"score": f"{key}.mean"[:128], "atLeast": 0.5} for key in keys[:32]]
    status = status_of(progress(*rows), make_job().spec(thresholds=gates), saved=True)
    assert len(json.dumps(status).encode("ascii", "replace")) < 2 * 64 * 1024
    assert len(json.dumps(status, ensure_ascii=False).encode()) < 64 * 1024
    EvalJobStatus.model_validate(status)
    assert status["trials"]["total"] == 100


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ({}, {}, {}),
        ({"a": 1}, {"a": 1}, {}),
        ({"a": 1}, {"a": 2}, {"a": 2}),
        ({"a": 1}, {}, {"a": None}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, {"a": {"c": 3}}),
        ({"a": [1, 2]}, {"a": [1]}, {"a": [1]}),
        ({"a": {"b": 1}}, {"a": [1]}, {"a": [1]}),
    ],
)
def test_patches_are_the_smallest(old: dict[str, Any], new: dict[str, Any], patch: dict[str, Any]) -> None:
    assert merge_difference(old, new) == patch


def apply_patch(old: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """RFC 7396."""
    result = dict(old)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = apply_patch(result[key] if isinstance(result.get(key), dict) else {}, value)
        else:
            result[key] = value
    return result


VALUES = st.recursive(
    st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab"), inner)
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES)


@given(OBJECTS, OBJECTS)
def test_a_patch_turns_the_old_into_the_new(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert apply_patch(old, merge_difference(old, new)) == new


def test_events_tell_of_changes_and_of_the_first_trial_of_each_error() -> None:
    before = status_of(progress(running=1))
    after = status_of(progress(make_row("a", outcome="errored", error=OOM)), saved=True, previous=before)
    assert notices({}, before) == (
        Notice(False, "Planned", "PlanReady: 4 trials of 2 tasks"),
        Notice(False, "Running", "Progressing"),
    )
    told = notices(before, after)
    assert [(item.warning, item.reason) for item in told] == [(True, "NothingScored"), (True, "OOMKilled")]
    assert notices(after, after) == ()


def test_of_many_reward_names_the_status_shows_the_primary_the_first_and_those_of_gates() -> None:
    names = [f"key-{number:04d}" for number in range(1000)]
    job = make_job().trials(3).spec(thresholds=[{"score": "key-0999.mean", "atLeast": 0.5}])
    rows = [make_row(trial.name, rewards={"reward": 1.0, **dict.fromkeys(names, 0.75)}) for trial in job.plan().trials]
    tasks = {trial.name: trial.key.task for trial in job.plan().trials}
    summary = job_summary(rows, job.job_spec(), tasks, most_keys=MAX_COVERAGE)
    shown = [item.name for item in summary.coverage]
    assert shown == ["reward", *names[:MAX_COVERAGE], "key-0999"]
    found = summary.score("key-0999.mean")
    assert found is not None
    assert (found.value, found.count, found.missing) == (0.75, 3, 0)
    assert summary.score("reward.mean") == job_summary(rows, job.job_spec(), tasks).score("reward.mean")


def test_a_trial_whose_every_reward_is_left_out_is_still_scored() -> None:
    names = [f"key-{number:04d}" for number in range(100)]
    job = make_job().trials(2).spec(rewardKey="zz")
    first, second = job.plan().trials
    rows = [make_row(first.name, rewards=dict.fromkeys(names, 1.0)), make_row(second.name, rewards={"zy": 1.0})]
    tasks = {trial.name: trial.key.task for trial in job.plan().trials}
    limited, whole = (job_summary(rows, job.job_spec(), tasks, most_keys=most) for most in (MAX_COVERAGE, None))
    assert limited.score("zz.mean") == whole.score("zz.mean")
    assert limited.coverage[0] == whole.coverage[0]
