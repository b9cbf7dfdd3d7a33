"""Plans for given observations, and their promises over whole histories."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial.api.reasons import Reason
from seatrial.contract import ErrorInfo, read_verdict
from seatrial.core.actions import CommitRow, CreatePod, DeletePod, FindResult
from seatrial.core.observe import PodView
from seatrial.core.plan import Hold, ImageWait, Observed, Plan, Stop, plan
from seatrial.core.policy import Budget
from seatrial.core.rows import Origin, Outcome, Row, TrialError, by_trial
from seatrial.core.trial import Found, Limits, failure
from tests.builders import NOW, JobBuilder, ago, make_job, make_pod, make_pods, make_row, make_task

LIMITS = Limits()


def observe(job: JobBuilder, *pods: PodView, rows: tuple[Row, ...] = (), **fields: object) -> Observed:
    return Observed(
        spec=job.job_spec(),
        plan=job.plan(),
        rows=by_trial(rows),
        pods={pod.name: pod for pod in pods},
        started_at=NOW - timedelta(seconds=60),
        **fields,  # type: ignore[arg-type]
    )


def decide(observed: Observed, later: float = 0) -> Plan:
    return plan(observed, NOW + timedelta(seconds=later), LIMITS)


def names(job: JobBuilder) -> list[str]:
    return [trial.name for trial in job.plan().trials]


def created(decided: Plan) -> list[tuple[str, int]]:
    return [(action.trial.name, action.retry) for action in decided.creates]


# --- creating -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("H-123", "N-136")
def test_the_first_trials_in_plan_order_get_pods_up_to_the_concurrency() -> None:
    job = make_job().trials(5).spec(concurrency=2)
    assert created(decide(observe(job))) == [(name, 0) for name in names(job)[:2]]


def test_a_pod_that_was_just_created_holds_its_place_before_it_is_seen() -> None:
    job = make_job().trials(5).spec(concurrency=2)
    first = names(job)[0]
    decided = decide(observe(job, starting=frozenset({(first, 0)})))
    assert created(decided) == [(names(job)[1], 0)]
    assert decided.progress is not None
    assert (decided.progress.running, decided.progress.pending) == (1, 4)


def test_a_pod_that_still_runs_holds_its_place_after_its_verdict() -> None:
    job = make_job().trials(3).spec(concurrency=1)
    pod = make_pods(job.plan(), 0).verdict({"reward": 1.0})
    row = make_row(names(job)[0])
    assert created(decide(observe(job, pod.view(), rows=(row,)))) == []
    assert created(decide(observe(job, pod.phase("Succeeded").view(), rows=(row,)))) == [(names(job)[1], 0)]


def test_the_name_of_a_pod_is_the_same_in_every_plan() -> None:
    job = make_job().trials(3)
    assert decide(observe(job)).creates == decide(observe(job)).creates
    assert len({action.pod for action in decide(observe(job)).creates}) == 3


def test_a_pod_of_another_owner_is_not_taken_for_ours() -> None:
    job = make_job()
    pod = make_pods(job.plan(), 0).owned_by("somebody").succeeded().view()
    decided = decide(observe(job, pod))
    assert created(decided) == [(names(job)[0], 0)]
    assert decided.deletes == ()


@pytest.mark.parametrize(
    "fields", [{"spec": {"suspend": True}}, {"spec": {"cancel": True}}, {"hold": True}], ids=["suspended", "cancelled", "held"]
)
def test_nothing_is_created_while_the_job_may_not_start(fields: dict[str, object]) -> None:
    job = make_job().trials(2).spec(**fields.get("spec", {}))  # type: ignore[arg-type]
    hold = Hold(Reason.QUOTA_EXCEEDED, "no room", NOW + timedelta(seconds=30)) if fields.get("hold") else None
    assert decide(observe(job, hold=hold)).creates == ()


def test_a_hold_ends() -> None:
    job = make_job()
    observed = observe(job, hold=Hold(Reason.QUOTA_EXCEEDED, "no room", NOW + timedelta(seconds=30)))
    assert decide(observed).requeue_seconds == 30
    assert len(decide(observed, later=30).creates) == 1


# --- judging and retrying --------------------------------------------------------------------------------------------------------------


def test_an_ended_pod_becomes_a_row_first_and_is_deleted_afterwards() -> None:
    job = make_job()
    pod = make_pods(job.plan(), 0).succeeded(0.5).view()
    first = decide(observe(job, pod))
    assert (len(first.commits), first.deletes) == (1, ())
    row = first.commits[0].row
    assert (row.trial, row.outcome, row.rewards, row.pod, row.stored) == (names(job)[0], "scored", {"reward": 0.5}, pod.name, True)
    second = decide(observe(job, pod, rows=(row,)))
    assert (second.commits, second.deletes) == ((), (DeletePod(pod.name, pod.uid, 5),))


def test_a_retry_waits_for_its_pause_and_gets_the_next_number() -> None:
    job = make_job().spec(retry={"max": 1, "backoff": {"min": "10s", "max": "60s"}})
    pod = make_pods(job.plan(), 0).oom_killed("environment")
    found = {(names(job)[0], 0): Found(None)}
    decided = decide(observe(job, pod.view(), found=found))
    row = decided.commits[0].row
    assert row.error is not None
    assert (row.outcome, row.error.type) == ("retried", "OOMKilled")
    observed = observe(job, rows=(row,))
    assert created(decide(observed)) == []
    assert 5 <= (decide(observed).requeue_seconds or 0) <= 10
    assert created(decide(observed, later=10)) == [(names(job)[0], 1)]


@pytest.mark.conforms("H-143", "H-147")
def test_without_a_budget_a_counted_failure_is_final() -> None:
    job = make_job()
    pod = make_pods(job.plan(), 0).oom_killed("environment").view()
    row = decide(observe(job, pod, found={(names(job)[0], 0): Found(None)})).commits[0].row
    assert row.outcome == "errored"
    after = decide(observe(job, rows=(row,)), later=1e6)
    assert (after.creates, after.commits, after.lookups) == ((), (), ())


def test_a_lost_node_costs_nothing_of_the_budget() -> None:
    job = make_job()
    pod = make_pods(job.plan(), 0).evicted(disruption=True).view()
    row = decide(observe(job, pod, found={(names(job)[0], 0): Found(None)})).commits[0].row
    assert row.outcome == "retried"


@pytest.mark.conforms("H-144")
def test_an_explicit_exclusion_list_replaces_harbors() -> None:
    error = ErrorInfo(type="RewardFileNotFoundError", cause="verifier", message="m")
    for retry, outcome in (
        ({"max": 1}, "errored"),
        ({"max": 1, "exclude": []}, "retried"),
        ({"max": 1, "exclude": [error["type"]]}, "errored"),
    ):
        job = make_job().spec(retry=retry)
        pod = make_pods(job.plan(), 0).verdict(error=error).view()
        assert decide(observe(job, pod)).commits[0].row.outcome == outcome


@pytest.mark.conforms("N-137")
@pytest.mark.parametrize(
    ("retry", "error", "outcome"),
    [
        pytest.param({}, "EnvironmentStartTimeoutError", "errored", id="no retries unless asked for"),
        pytest.param({"max": 1}, "EnvironmentStartTimeoutError", "retried", id="retryable"),
        pytest.param({"max": 1}, "VerifierTimeoutError", "errored", id="not retryable"),
        pytest.param({"max": 1}, "AgentTimeoutError", "errored", id="agent timeout"),
    ],
)
def test_a_trial_runs_again_only_for_retryable_errors_and_when_the_job_says_so(retry: dict[str, object], error: str, outcome: str) -> None:
    job = make_job().spec(retry=retry)
    pod = make_pods(job.plan(), 0).verdict(error=ErrorInfo(type=error, cause="agent", message="m")).view()
    assert decide(observe(job, pod)).commits[0].row.outcome == outcome


@pytest.mark.conforms("H-145")
def test_a_low_reward_is_never_run_again() -> None:
    job = make_job().spec(retry={"max": 5, "exclude": []})
    pod = make_pods(job.plan(), 0).succeeded(0.0).view()
    assert decide(observe(job, pod)).commits[0].row.outcome == "scored"


def test_an_unclear_end_is_looked_up_before_it_is_judged() -> None:
    job = make_job()
    pod = make_pods(job.plan(), 0).running().terminated("verifier", 1).view()
    decided = decide(observe(job, pod))
    assert (decided.lookups, decided.commits) == ((FindResult(names(job)[0], 0),), ())


def test_a_vanished_pod_is_looked_up_and_then_counted_or_retried() -> None:
    job = make_job().spec(retry={"max": 1})
    view = make_pods(job.plan(), 0).running().view()
    key = (names(job)[0], 0)
    assert decide(observe(job, vanished={key: view})).lookups == (FindResult(*key),)
    row = decide(observe(job, vanished={key: view}, found={key: Found(None)})).commits[0].row
    assert row.error is not None
    assert (row.outcome, row.error.type) == ("retried", "PodDeleted")


def test_after_a_restart_a_trace_in_the_store_means_that_the_pod_did_run() -> None:
    job = make_job()
    key = (names(job)[0], 0)
    decided = decide(observe(job, found={key: Found(None, touched=True)}))
    row = decided.commits[0].row
    assert row.error is not None
    assert (row.outcome, row.error.type) == ("errored", "PodDeleted")


@pytest.mark.conforms("H-84")
def test_a_task_that_is_refused_is_errored_without_a_pod_and_its_sibling_runs() -> None:
    job = make_job().tasks(make_task("a/bad", image=None), make_task("a/good"))
    decided = decide(observe(job))
    row = decided.commits[0].row
    assert row.error is not None
    assert (row.outcome, row.error.type, row.error.cause) == ("errored", "UnsupportedTask", "user")
    assert created(decided) == [(names(job)[1], 0)]


def test_a_pod_that_was_refused_for_good_is_a_row() -> None:
    job = make_job()
    refused = {(names(job)[0], 0): failure(Reason.POD_REJECTED, "violates PodSecurity")}
    row = decide(observe(job, refused=refused)).commits[0].row
    assert row.error is not None
    assert (row.outcome, row.error.type, row.error.message) == ("errored", "PodRejected", "violates PodSecurity")


# --- deleting -------------------------------------------------------------------------------------------------------------------------


def test_pods_that_nobody_planned_are_removed_and_deleted_ones_are_not_deleted_twice() -> None:
    job = make_job()
    stranger = make_pod("nobody__0000000").running().view()
    assert decide(observe(job, stranger)).deletes == (DeletePod(stranger.name, stranger.uid, 5),)
    assert decide(observe(job, stranger, deleted=frozenset({stranger.uid}))).deletes == ()
    assert decide(observe(job, make_pod("nobody__0000000").deleting().view())).deletes == ()


def test_a_retry_waits_until_the_earlier_pod_has_ended() -> None:
    job = make_job().spec(concurrency=2)
    row = make_row(names(job)[0], outcome="retried", ended_at=ago(3600))
    leaving = make_pods(job.plan(), 0).running().deleting().view()
    assert decide(observe(job, leaving, rows=(row,))).creates == ()
    assert [item.retry for item in decide(observe(job, rows=(row,))).creates] == [1]


def test_a_superseded_retry_is_removed() -> None:
    job = make_job().spec(retry={"max": 1})
    rows = (make_row(names(job)[0], 0, "retried"),)
    pod = make_pods(job.plan(), 0).running().view()
    assert [action.pod for action in decide(observe(job, pod, rows=rows)).deletes] == [pod.name]


def test_pods_of_errored_trials_are_kept_as_long_as_the_user_said() -> None:
    job = make_job().trials(2).spec(pod={"keepFailedSeconds": 100}, concurrency=1)
    row = make_row(names(job)[0], outcome="errored", ended_at=ago(30))
    pod = make_pods(job.plan(), 0).running().view()
    observed = observe(job, pod, rows=(row,))
    assert decide(observed).deletes == ()
    assert created(decide(observed)) == [(names(job)[1], 0)]
    assert len(decide(observed, later=70).deletes) == 1


# --- stopping -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("H-81")
def test_cancelling_ends_every_trial_that_has_no_verdict() -> None:
    job = make_job().trials(4).spec(cancel=True, concurrency=2)
    running, scored = make_pods(job.plan(), 0).running().view(), make_pods(job.plan(), 1).succeeded().view()
    decided = decide(observe(job, running, scored))
    assert {item.row.trial: item.row.outcome for item in decided.commits} == dict(
        zip(names(job)[1:], ["scored", "cancelled", "cancelled"], strict=True)
    )
    assert [(action.pod, action.grace_seconds) for action in decided.deletes] == [(running.name, 60)]
    rows = tuple(item.row for item in decided.commits)
    gone = (names(job)[0], 0)
    asked = decide(observe(job, scored, rows=rows, vanished={gone: running}))
    assert ([(item.trial, item.retry) for item in asked.lookups], asked.save) == ([gone], None)
    last = decide(observe(job, scored, rows=rows, vanished={gone: running}, found={gone: Found(None)}))
    assert [(item.row.trial, item.row.outcome) for item in last.commits] == [(gone[0], "cancelled")]
    after = decide(observe(job, scored, rows=(*rows, last.commits[0].row)))
    assert [(action.pod, action.grace_seconds) for action in after.deletes] == [(scored.name, 5)]
    assert after.save is not None


@pytest.mark.conforms("N-210")
@pytest.mark.parametrize(("spec", "error"), [({"cancel": True}, "Cancelled"), ({"suspend": True}, "Suspended")])
def test_a_stop_is_told_before_the_error_that_the_stop_itself_caused(spec: dict[str, object], error: str) -> None:
    job = make_job().spec(**spec)
    key = (names(job)[0], 0)
    interrupted = ErrorInfo(type="GKEPodNotFoundError", cause="infrastructure", message="m", reason="Interrupted")
    for pod in (make_pods(job.plan(), 0).verdict(error=interrupted), make_pods(job.plan(), 0).running().terminated("verifier", 143)):
        stopped = pod.phase("Failed").deleting().view()
        row = decide(observe(job, vanished={key: stopped}, found={key: Found(None)})).commits[0].row
        assert row.error is not None
        assert row.error.type == error


@pytest.mark.parametrize("spec", [{"cancel": True}, {"suspend": True}], ids=["cancel", "suspend"])
def test_a_result_that_comes_while_a_pod_is_taken_away_counts(spec: dict[str, object]) -> None:
    job = make_job().spec(**spec)
    key, pods = (names(job)[0], 0), make_pods(job.plan(), 0)
    running = pods.running().view()
    leaving = pods.deleting().view()
    assert decide(observe(job, leaving)).actions == ()
    assert decide(observe(job, running, deleted=frozenset({running.uid}))).actions == ()
    with_verdict = make_pods(job.plan(), 0).succeeded().deleting().view()
    assert decide(observe(job, with_verdict)).commits[0].row.outcome == "scored"
    verifier = with_verdict.container("verifier")
    assert verifier is not None
    stored = Found(read_verdict(verifier.message), touched=True)
    assert decide(observe(job, vanished={key: leaving}, found={key: stored})).commits[0].row.outcome == "scored"


@pytest.mark.parametrize(
    ("spec", "outcome", "error"),
    [
        ({"cancel": True}, "cancelled", "Cancelled"),
        ({"suspend": True}, "retried", "Suspended"),
        ({"retry": {"max": 0}}, "retried", "NodeLost"),
    ],
    ids=["cancel", "suspend", "taken away"],
)
def test_nothing_waits_for_ever_for_a_pod_on_a_node_that_does_not_answer(spec: dict[str, object], outcome: str, error: str) -> None:
    job = make_job().trials(2).spec(concurrency=1, **spec)
    key = (names(job)[0], 0)
    leaving = make_pods(job.plan(), 0).running().deleting(due=0).view()
    other = make_row(names(job)[1])
    waiting = decide(observe(job, leaving, rows=(other,)))
    assert (waiting.actions, waiting.requeue_seconds) == ((), 60)
    late = LIMITS.lost + 60
    asked = decide(observe(job, leaving, rows=(other,)), later=late)
    assert [(item.trial, item.retry) for item in asked.lookups] == [key]
    row = decide(observe(job, leaving, rows=(other,), found={key: Found(None)}), later=late).commits[0].row
    assert (row.outcome, row.error and row.error.type) == (outcome, error)
    after = decide(observe(make_job().trials(2).spec(concurrency=1), leaving, rows=(other, row)), later=late + 60)
    assert created(after) == ([(key[0], 1)] if outcome == "retried" else [])
    assert (after.deletes, after.progress and after.progress.live_pods) == ((), 0)


def test_a_pod_that_may_still_end_holds_its_place_and_its_trial() -> None:
    job = make_job().spec(retry={"max": 1}, concurrency=5)
    leaving = make_pods(job.plan(), 0).running().deleting(due=0).view()
    row = make_row(names(job)[0], outcome="retried")
    assert created(decide(observe(job, leaving, rows=(row,)), later=LIMITS.lost + 59)) == []


@pytest.mark.parametrize(
    ("limits", "later", "reason"),
    [
        ({"deadline": "1m"}, 0, Reason.JOB_DEADLINE_EXCEEDED),
        ({"deadline": "2m"}, 59, None),
        ({"maxErrored": 0}, 0, Reason.MAX_ERRORED_REACHED),
        ({"maxErrored": 1}, 0, None),
    ],
)
def test_limits_stop_a_job(limits: dict[str, object], later: float, reason: Reason | None) -> None:
    job = make_job().trials(3).spec(limits=limits)
    decided = decide(observe(job, rows=(make_row(names(job)[0], outcome="errored"),)), later=later)
    assert decided.progress is not None
    assert (decided.progress.stop.reason if decided.progress.stop else None) == reason
    assert bool(decided.creates) == (reason is None)


def paid(trial: str, dollars: float, retry: int = 0, outcome: Outcome = "scored", **fields: Any) -> Row:
    return make_row(trial, retry, outcome, usage={"n_input_tokens": 1e6, "cost_usd": dollars}, **fields)


def test_at_the_limit_of_cost_no_further_agent_starts_and_what_runs_goes_on() -> None:
    job = make_job().trials(4).spec(limits={"maxCostUsd": 2.5}, retry={"max": 3})
    done, retried, _, waits = names(job)
    pod = make_pods(job.plan(), 2).running().view()
    rows = (paid(done, 1.5), paid(retried, 1.0, outcome="retried", error=failure(Reason.NODE_LOST, "gone").error))
    decided = decide(observe(job, pod, rows=rows))
    assert [(item.row.trial, item.row.retry, item.row.outcome) for item in decided.commits] == [
        (retried, 1, "cancelled"),
        (waits, 0, "cancelled"),
    ]
    assert (decided.creates, decided.deletes) == ((), ())
    assert decided.progress is not None
    assert decided.progress.stop == Stop(
        Reason.COST_LIMIT_REACHED,
        "the agents have cost 2.50 US dollars, and spec.limits.maxCostUsd is 2.5: no further one starts",
        drains=True,
    )


@pytest.mark.parametrize(
    ("dollars", "origin"),
    [
        pytest.param(2.49, None, id="below the limit"),
        pytest.param(50.0, Origin("jobs/evals/first-uid/", "trial", 0), id="another job's cost"),
    ],
)
def test_below_the_limit_of_cost_trials_start(dollars: float, origin: Origin | None) -> None:
    job = make_job().trials(2).spec(limits={"maxCostUsd": 2.5})
    decided = decide(observe(job, rows=(paid(names(job)[0], dollars, origin=origin),)))
    assert (created(decided), decided.commits) == ([(names(job)[1], 0)], ())


def test_at_the_limit_of_cost_an_agent_that_has_run_is_still_graded() -> None:
    job = make_job().trials(2).spec(limits={"maxCostUsd": 1})
    first, second = names(job)
    decided = decide(observe(job, rows=(paid(first, 2.0, outcome="retried", error=HANDED_OVER, budget=Budget.FREE, logs_sha256="d" * 64),)))
    assert (created(decided), [item.row.trial for item in decided.commits]) == ([(first, 1)], [second])
    assert decided.creates[0].pod.endswith("-1-v")


def test_a_deadline_wakes_the_job() -> None:
    job = make_job().spec(limits={"deadline": "90s"})
    pod = make_pods(job.plan(), 0).running().view()
    assert decide(observe(job, pod)).requeue_seconds == 30


def test_suspending_takes_running_pods_away_and_they_start_again_under_the_next_number() -> None:
    job = make_job().spec(suspend=True)
    key, pod = (names(job)[0], 0), make_pods(job.plan(), 0).running().view()
    decided = decide(observe(job, pod))
    assert ([(action.pod, action.grace_seconds) for action in decided.deletes], decided.commits) == ([(pod.name, 60)], ())
    row = decide(observe(job, vanished={key: pod}, found={key: Found(None)})).commits[0].row
    assert row.error is not None
    assert (row.outcome, row.error.type) == ("retried", "Suspended")
    assert created(decide(observe(make_job(), rows=(row,)))) == [(names(job)[0], 1)]


def test_a_finished_trial_of_a_suspended_job_still_counts() -> None:
    job = make_job().spec(suspend=True)
    assert decide(observe(job, make_pods(job.plan(), 0).succeeded().view())).commits[0].row.outcome == "scored"


# --- the end --------------------------------------------------------------------------------------------------------------------------


def test_results_are_saved_once_when_all_rows_are_there() -> None:
    job = make_job().trials(2)
    rows = tuple(make_row(name) for name in names(job))
    assert decide(observe(job, rows=rows[:1])).save is None
    assert decide(observe(job, rows=rows)).save is not None
    assert decide(observe(job, rows=rows, saved=True)).save is None


def test_a_finished_job_is_deleted_after_its_time_to_live() -> None:
    job = make_job().spec(ttlSecondsAfterFinished=10)
    observed = replace(observe(job, rows=(make_row(names(job)[0]),), saved=True), finished_at=NOW)
    assert (decide(observed).delete_job, decide(observed).requeue_seconds) == (None, 10)
    assert decide(observed, later=10).delete_job is not None


def test_no_more_than_fifty_creates_in_one_pass() -> None:
    job = make_job().spec(attempts=200, concurrency=1000)
    decided = decide(observe(job))
    assert len(decided.creates) == 50
    assert decided.requeue_seconds == 0


# --- promises over histories -----------------------------------------------------------------------------------------------------------


@dataclass
class World:
    """A cluster and a store in memory; Pods end as a script says, and the operator may die between any two actions."""

    job: JobBuilder
    script: list[str]
    pods: dict[str, PodView] = field(default_factory=dict)
    gone: dict[tuple[str, int], PodView] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    found: dict[tuple[str, int], Found] = field(default_factory=dict)
    runs: list[tuple[str, int]] = field(default_factory=list)
    most: int = 0
    seconds: float = 0

    def observed(self) -> Observed:
        return Observed(
            spec=self.job.job_spec(),
            plan=self.job.plan(),
            rows=by_trial(self.rows),
            pods=dict(self.pods),
            vanished=dict(self.gone),
            found=dict(self.found),
        )

    def step(self, budget: int) -> bool:
        """One pass that dies after ``budget`` actions; whether there was anything to do."""
        decided = plan(self.observed(), NOW + timedelta(seconds=self.seconds), LIMITS)
        # The order in which a pass executes: rows, look-ups, creates, deletes.
        for action in decided.actions[:budget]:
            match action:
                case CommitRow(row):
                    self.rows.append(row)
                case FindResult(trial, retry):
                    self.found[trial, retry] = Found(None)
                case CreatePod(trial=trial, retry=retry, pod=pod):
                    if pod not in self.pods:
                        self.runs.append((trial.name, retry))
                        self.pods[pod] = make_pod(trial.name, retry).named(pod).running().view()
                case DeletePod(pod=pod):
                    view = self.pods.pop(pod)
                    self.gone[view.trial, view.retry] = view
        self.most = max(self.most, sum(not pod.is_terminal for pod in self.pods.values()))
        return bool(decided.actions)

    def end_pods(self) -> None:
        """The next fate of the script for each running Pod."""
        for name, pod in list(self.pods.items()):
            if pod.is_terminal or not self.script:
                continue
            builder = make_pod(pod.trial, pod.retry).named(name, pod.uid)
            match self.script.pop():
                case "scored":
                    self.pods[name] = builder.succeeded().view()
                case "errored":
                    self.pods[name] = builder.running().terminated("verifier", 0).phase("Failed").view()
                case "evicted":
                    self.pods[name] = builder.evicted(disruption=True).view()
                case "oom":
                    self.pods[name] = builder.oom_killed("agent").view()
                case "vanished":
                    del self.pods[name]
                    self.gone[pod.trial, pod.retry] = pod


FATES = st.sampled_from(["scored", "errored", "evicted", "oom", "vanished"])


@pytest.mark.conforms("N-136")
@settings(max_examples=60, deadline=None)
@given(
    trials=st.integers(1, 6),
    concurrency=st.integers(1, 4),
    retries=st.integers(0, 2),
    script=st.lists(FATES, max_size=30),
    crashes=st.lists(st.integers(0, 4), max_size=15),
)
def test_every_history_with_crashes_ends_with_each_trial_final_once(
    trials: int, concurrency: int, retries: int, script: list[str], crashes: list[int]
) -> None:
    job = make_job().trials(trials).spec(concurrency=concurrency, retry={"max": retries, "backoff": {"min": "1s", "max": "1s"}})
    world = World(job, script)
    for _ in range(400):
        busy = world.step(crashes.pop() if crashes else 1000)
        world.end_pods()
        if not world.script and not crashes:
            world.script.extend(["scored"] * 10)
        world.seconds += 2
        final = [rows[-1] for rows in by_trial(world.rows).values() if rows[-1].is_final]
        if not busy and len(final) == trials:
            break
    kept = by_trial(world.rows)
    assert sorted(kept) == sorted(names(job))
    assert all(rows[-1].is_final for rows in kept.values())
    assert world.pods == {}
    assert world.most <= concurrency
    # No agent ran more often than the recorded retries allow, and none under one number twice.
    assert len(set(world.runs)) == len(world.runs)
    for name in names(job):
        assert sum(trial == name for trial, _ in world.runs) <= len(kept[name])
        counted = [row for row in kept[name] if not row.is_final and row.budget.value == "counted"]
        assert len(counted) <= retries


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["none", "running", "scored", "cancelled", "errored", "starting", "waiting"]), min_size=1, max_size=8))
def test_counts_always_add_up_and_a_plan_is_a_function(states: list[str]) -> None:
    job = make_job().trials(len(states))
    pods, rows, starting = [], [], set()
    for index, state in enumerate(states):
        name = names(job)[index]
        match state:
            case "running":
                pods.append(make_pods(job.plan(), index).running().view())
            case "waiting":
                pods.append(make_pods(job.plan(), index).unschedulable().view())
            case "starting":
                starting.add((name, 0))
            case "scored" | "errored" | "cancelled":
                rows.append(make_row(name, outcome=state))
            case _:
                pass
    observed = observe(job, *pods, rows=tuple(rows), starting=frozenset(starting))
    decided = decide(observed)
    assert decide(observed) == decided
    progress = decided.progress
    assert progress is not None
    assert progress.total == len(states) == progress.pending + progress.running + len(progress.final)
    assert progress.running == sum(state in ("running", "waiting", "starting") for state in states)


HANDED_OVER = TrialError("HandedOver", "CancelledError", "user", "done")


def test_a_separate_verifier_gets_the_next_pod_at_once_and_uses_up_no_retry() -> None:
    job = make_job().trials(1)
    name = names(job)[0]
    row = make_row(name, 0, "retried", error=HANDED_OVER, budget=Budget.FREE, logs_sha256="d" * 64, ended_at=ago(0))
    decided = decide(observe(job, rows=(row,)))
    assert [(action.retry, action.verifies, action.pod.endswith("-1-v")) for action in decided.creates] == [(1, row, True)]
    assert decided.progress is not None
    assert decided.progress.retried == 0


def test_a_verifier_that_was_lost_is_repeated_and_the_agent_is_not() -> None:
    job = make_job().trials(1).spec(retry={"max": 1, "backoff": {"min": "1s", "max": "2s"}})
    name = names(job)[0]
    over = make_row(name, 0, "retried", error=HANDED_OVER, budget=Budget.FREE, logs_sha256="d" * 64)
    lost = make_row(name, 1, "retried", error=TrialError("NodeLost", "GKEPodNotFoundError", "infrastructure", "m"), budget=Budget.FREE)
    assert [(action.retry, action.verifies) for action in decide(observe(job, rows=(over, lost))).creates] == [(2, over)]


def test_the_agents_pod_is_removed_once_its_hand_over_is_a_row() -> None:
    job = make_job().trials(1)
    name = names(job)[0]
    over = make_row(name, 0, "retried", error=HANDED_OVER, budget=Budget.FREE, logs_sha256="d" * 64)
    pod = make_pods(job.plan(), 0).phase("Succeeded").view()
    assert [action.uid for action in decide(observe(job, pod, rows=(over,))).deletes] == [pod.uid]


def test_trials_whose_image_is_not_there_yet_wait_without_a_pod_and_their_siblings_run() -> None:
    job = make_job().trials(3).spec(concurrency=2)
    wait = ImageWait(Reason.IMAGE_BUILDING, "the image of task bench/task-0 is being built")
    decided = decide(observe(job, images={0: wait}))
    assert [name for name, _ in created(decided)] == names(job)[1:]
    assert decided.progress is not None
    assert (decided.progress.pending, decided.progress.waiting) == (3, {wait.reason: wait.message})
    assert decided.commits == ()


def test_trials_whose_image_cannot_be_built_are_errored_and_their_siblings_run() -> None:
    job = make_job().trials(2).spec(attempts=2, concurrency=4)
    decided = decide(
        observe(job, images={0: failure(Reason.IMAGE_BUILD_FAILED, "environment/Dockerfile line 2, RUN false: exit status 1")})
    )
    rows = [commit.row for commit in decided.commits]
    assert [(row.outcome, row.rewards, row.error and row.error.harbor, row.pod) for row in rows] == [
        ("errored", None, "SandboxBuildFailedError", "")
    ] * 2
    assert len(created(decided)) == 2
