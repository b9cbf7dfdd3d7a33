"""One case per line of the state table, and what decides between lines."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from seatrial.api.reasons import Reason
from seatrial.contract import ContractBroken, ErrorInfo, StageExit, Verdict, error_name, read_error, read_verdict, write_verdict
from seatrial.core.policy import POLICIES, Budget
from seatrial.core.rows import TrialError
from seatrial.core.trial import Found, Judgement, Limits, Running, State, Unclear, Waiting, derive, judge, read_result, stage_message
from tests.builders import NOW, PodBuilder, ago, make_pod

TRIAL = "task-0__abcdef0"
NOTHING_STORED = Found(None)
LIMITS = Limits()


def look(pod: PodBuilder, *, gone: bool = False, found: Found | None = None, later: float = 0.0, **overrides: dict[str, bool]) -> State:
    return derive(TRIAL, 0, pod=pod.view(), gone=gone, found=found, now=NOW + timedelta(seconds=later), limits=LIMITS, overrides=overrides)


def reason_of(state: State) -> str | None:
    assert isinstance(state, Judgement), state
    return state.error.type if state.error else None


PULL = 'failed to pull and unpack image "docker.io/acme/web:lates": '


@pytest.mark.conforms("H-150")
@pytest.mark.parametrize(
    ("pod", "reason", "budget"),
    [
        pytest.param(make_pod().evicted(disruption=True), Reason.EVICTED, Budget.FREE, id="node pressure"),
        pytest.param(make_pod().evicted(disruption=False), Reason.STORAGE_LIMIT_EXCEEDED, Budget.COUNTED, id="own storage limit"),
        pytest.param(make_pod().running().phase("Failed", "Preempting"), Reason.PREEMPTED, Budget.FREE, id="preempting"),
        pytest.param(
            make_pod().running().disrupted("PreemptionByScheduler").phase("Failed"), Reason.PREEMPTED, Budget.FREE, id="preempted"
        ),
        pytest.param(make_pod().running().disrupted("EvictionByEvictionAPI").phase("Failed"), Reason.DRAINED, Budget.FREE, id="drained"),
        pytest.param(make_pod().running().disrupted("DeletionByTaintManager").phase("Failed"), Reason.NODE_LOST, Budget.FREE, id="taint"),
        pytest.param(make_pod().running().disrupted("DeletionByPodGC").phase("Failed"), Reason.NODE_LOST, Budget.FREE, id="pod gc"),
        pytest.param(make_pod().running().phase("Failed", "NodeLost"), Reason.NODE_LOST, Budget.FREE, id="node lost"),
        pytest.param(
            make_pod().running().terminated("agent", 137, "ContainerStatusUnknown").phase("Failed"),
            Reason.NODE_LOST,
            Budget.FREE,
            id="status unknown",
        ),
        pytest.param(
            make_pod().running().disrupted("TerminationByKubelet").phase("Failed", "Terminated"),
            Reason.NODE_SHUTDOWN,
            Budget.FREE,
            id="node shutdown",
        ),
        pytest.param(make_pod().running().phase("Failed", "DeadlineExceeded"), Reason.DEADLINE_EXCEEDED, Budget.NONE, id="deadline"),
        pytest.param(make_pod().phase("Failed", "OutOfcpu"), Reason.NODE_REJECTED_POD, Budget.FREE, id="out of cpu"),
        pytest.param(make_pod().phase("Failed", "UnexpectedAdmissionError"), Reason.NODE_REJECTED_POD, Budget.FREE, id="admission"),
        pytest.param(make_pod().oom_killed("environment"), Reason.OOM_KILLED, Budget.COUNTED, id="oom environment"),
        pytest.param(make_pod().oom_killed("environment", 0), Reason.OOM_KILLED, Budget.COUNTED, id="oom with exit 0, cgroup v1"),
        pytest.param(make_pod().oom_killed("verifier"), Reason.OOM_KILLED, Budget.COUNTED, id="oom verifier"),
        pytest.param(make_pod().running().terminated("verifier", 137), Reason.CONTAINER_KILLED, Budget.COUNTED, id="killed"),
        pytest.param(make_pod().running().terminated("verifier", 0), Reason.VERDICT_MISSING, Budget.NONE, id="no verdict"),
        pytest.param(make_pod().running().terminated("verifier", 1), Reason.VERDICT_MISSING, Budget.NONE, id="verifier crashed"),
    ],
)
def test_an_end_without_verdict_is_asked_of_the_store_and_then_named(pod: PodBuilder, reason: Reason, budget: Budget) -> None:
    first = look(pod)
    state = first.fallback if isinstance(first, Unclear) else first
    assert isinstance(state, Judgement)
    assert (reason_of(state), state.budget, state.valid, state.rewards) == (reason, budget, False, None)
    assert state.error is not None
    assert (state.error.cause, state.error.harbor) == (POLICIES[reason].cause, POLICIES[reason].harbor)
    again = look(pod, found=NOTHING_STORED)
    assert reason_of(again) == reason


@pytest.mark.parametrize(
    ("code", "reason", "budget"),
    [
        (StageExit.ARCHIVE_MISSING, Reason.TASK_ARCHIVE_MISSING, Budget.NONE),
        (StageExit.ARCHIVE_CORRUPT, Reason.TASK_ARCHIVE_CORRUPT, Budget.FREE),
        (StageExit.ARCHIVE_UNSAFE, Reason.TASK_ARCHIVE_UNSAFE, Budget.NONE),
        (StageExit.STORE_UNAVAILABLE, Reason.OBJECT_STORE_UNAVAILABLE, Budget.FREE),
        (StageExit.STORE_REFUSED, Reason.OBJECT_STORE_REFUSED, Budget.COUNTED),
        (StageExit.TASK_UNSUPPORTED, Reason.UNSUPPORTED_TASK, Budget.NONE),
        (StageExit.DISK_FULL, Reason.DISK_FULL, Budget.COUNTED),
        (StageExit.INTERNAL, Reason.RUNNER_CRASHED, Budget.COUNTED),
        (137, Reason.CONTAINER_KILLED, Budget.COUNTED),
    ],
)
def test_every_exit_of_stage_has_its_reason_without_asking_the_store(code: int, reason: Reason, budget: Budget) -> None:
    state = look(make_pod().stage_failed(code, '{"message": "GET of \\"x\\" failed"}'))
    assert isinstance(state, Judgement)
    assert (reason_of(state), state.budget) == (reason, budget)
    if code != 137:
        assert state.error is not None
        assert state.error.message.startswith('GET of "x" failed')


@pytest.mark.parametrize(
    ("message", "said"),
    [
        pytest.param('{"message": "member \\ud83d\\ude00 of \\"x\\""}', 'member \U0001f600 of "x"', id="a pair of surrogates"),
        pytest.param('{"message": "member \\ud83d"}', "member ?", id="half a pair"),
        pytest.param('{"message": "cut', '{"message": "cut', id="no JSON"),
        pytest.param('{"message": 1}', '{"message": 1}', id="no text"),
        pytest.param("[" * 100_000, "[" * 400, id="deep"),
    ],
)
def test_what_stage_says_is_text_whatever_it_wrote(message: str, said: str) -> None:
    assert stage_message(message) == said


def test_urls_that_expired_while_a_queue_held_the_pod_cost_no_retry() -> None:
    view = make_pod().stage_failed(StageExit.STORE_REFUSED).view()
    containers = tuple(replace(item, started_at=NOW) for item in view.containers)
    budgets = []
    for hours in (0, 8 * 24):
        queued = replace(view, created_at=NOW - timedelta(hours=hours), containers=containers)
        state = derive(TRIAL, 0, pod=queued, gone=False, found=None, now=NOW, limits=Limits(), overrides={})
        assert isinstance(state, Judgement)
        budgets.append(state.budget)
    assert budgets == [Budget.COUNTED, Budget.FREE]


@pytest.mark.conforms("N-210")
@pytest.mark.parametrize(
    ("waiting", "message", "reason", "grace"),
    [
        ("ErrImagePull", PULL + "docker.io/acme/web:lates: not found", Reason.IMAGE_NOT_FOUND, 120),
        ("ImagePullBackOff", PULL + "manifest unknown", Reason.IMAGE_NOT_FOUND, 120),
        (
            "ErrImagePull",
            PULL + "pull access denied, repository does not exist or may require authorization",
            Reason.IMAGE_AUTH_FAILED,
            120,
        ),
        ("ErrImagePull", PULL + "401 Unauthorized", Reason.IMAGE_AUTH_FAILED, 120),
        ("ErrImagePull", PULL + "no match for platform in manifest: not found", Reason.IMAGE_ARCH_MISMATCH, 120),
        ("ErrImagePull", PULL + "429 Too Many Requests", Reason.IMAGE_RATE_LIMITED, 900),
        ("ErrImagePull", PULL + "dial tcp: lookup docker.io: no such host", Reason.REGISTRY_UNAVAILABLE, 900),
        ("ErrImagePull", PULL + "503 Service Unavailable", Reason.REGISTRY_UNAVAILABLE, 900),
        ("RegistryUnavailable", "", Reason.REGISTRY_UNAVAILABLE, 900),
        ("ErrImagePull", "write /x: no space left on device", Reason.IMAGE_NO_SPACE, 900),
        ("ErrImageNeverPull", "not present with pull policy of Never", Reason.IMAGE_NOT_PRESENT, 30),
        ("CreateContainerConfigError", 'secret "x" not found', Reason.CONTAINER_CONFIG_ERROR, 60),
        ("ContainerCreating", "", Reason.POD_START_TIMEOUT, 600),
    ],
)
def test_a_container_may_wait_for_its_grace_and_no_longer(waiting: str, message: str, reason: Reason, grace: float) -> None:
    pod = make_pod().scheduled(0).waiting("stage", waiting, message)
    early, late = look(pod, later=grace - 1), look(pod, later=grace)
    assert isinstance(early, Waiting)
    assert (early.reason, early.deadline) == (reason, NOW + timedelta(seconds=grace))
    assert reason_of(late) == reason


def test_containers_wait_for_their_images_only_when_the_stage_has_ended() -> None:
    pod = make_pod().running().phase("Pending")
    for name in ("environment", "agent", "verifier"):
        pod.waiting(name, "PodInitializing")
    state = look(pod)
    assert isinstance(state, Waiting)
    assert (state.reason, state.message) == (
        Reason.IMAGE_PULLING,
        "container environment waits for its image, or for its start (PodInitializing)",
    )
    assert look(pod.working("stage")) == Running()


@pytest.mark.conforms("N-210")
def test_a_name_that_is_no_image_is_judged_at_once() -> None:
    assert reason_of(look(make_pod().waiting("environment", "InvalidImageName", "couldn't parse image name"))) == Reason.INVALID_IMAGE_NAME


@pytest.mark.parametrize(
    ("message", "budget"),
    [
        ('exec: "/seatrial/bin/envd": permission denied', Budget.NONE),
        ("exec format error", Budget.NONE),
        ("no such file or directory", Budget.NONE),
        ("context deadline exceeded", Budget.COUNTED),
    ],
)
def test_a_container_that_cannot_start_is_tried_again_only_where_that_helps(message: str, budget: Budget) -> None:
    for pod in (
        make_pod().running().terminated("environment", 128, "StartError", message),
        make_pod().waiting("environment", "CreateContainerError", message),
    ):
        first = look(pod)
        state = first.fallback if isinstance(first, Unclear) else first
        assert isinstance(state, Judgement)
        assert (reason_of(state), state.budget) == (Reason.CONTAINER_START_ERROR, budget)


def test_a_pod_that_no_node_takes_waits_for_the_pending_time_with_the_schedulers_words() -> None:
    pod = make_pod().created(0).unschedulable("0/3 nodes are available")
    assert look(pod, later=1799) == Waiting(Reason.UNSCHEDULABLE, "0/3 nodes are available", deadline=NOW + timedelta(seconds=1800))
    late = look(pod, later=1800)
    assert isinstance(late, Judgement)
    assert (reason_of(late), late.budget) == (Reason.UNSCHEDULABLE, Budget.NONE)


def test_a_pod_held_by_a_queue_waits_without_end() -> None:
    pod = make_pod().created(0).unschedulable("held", reason="SchedulingGated")
    assert look(pod, later=1e6) == Waiting(Reason.QUEUED, "held")


# --- verdicts ------------------------------------------------------------------------------------------------------------------------


def test_a_reward_is_a_score_while_the_environment_still_runs() -> None:
    state = look(make_pod().verdict({"reward": 0.5}))
    assert isinstance(state, Judgement)
    assert (state.rewards, state.error, state.valid, state.budget) == ({"reward": 0.5}, None, True, Budget.NONE)


@pytest.mark.conforms("H-65", "H-66")
@pytest.mark.parametrize("name", ["AgentTimeoutError", "NonZeroAgentExitCodeError"])
def test_an_agents_failure_that_was_graded_is_a_score_and_is_never_run_again(name: str) -> None:
    state = look(make_pod().verdict({"reward": 0.0}, error=ErrorInfo(type=name, cause="agent", message="m")))
    assert isinstance(state, Judgement)
    assert (state.valid, state.budget) == (True, Budget.NONE)
    assert state.error == TrialError(name, name, "agent", "m")


def test_a_reward_beside_a_model_services_error_does_not_count_and_may_be_run_again() -> None:
    state = look(make_pod().verdict({"reward": 1.0}, error=ErrorInfo(type="ApiRateLimitError", cause="infrastructure", message="429")))
    assert isinstance(state, Judgement)
    assert (state.valid, state.budget, state.rewards) == (False, Budget.COUNTED, {"reward": 1.0})


@pytest.mark.conforms("H-110")
@pytest.mark.parametrize("name", ["RewardFileNotFoundError", "RewardFileEmptyError", "VerifierOutputParseError", "VerifierTimeoutError"])
def test_a_verifier_without_a_reward_is_errored_and_not_run_again(name: str) -> None:
    state = look(make_pod().verdict(error=ErrorInfo(type=name, cause="verifier", message="m")))
    assert isinstance(state, Judgement)
    assert (state.valid, state.budget, state.rewards) == (False, Budget.NONE, None)


@pytest.mark.conforms("H-142")
def test_the_jobs_error_policy_overrides_the_table() -> None:
    pod = make_pod().verdict({"reward": 1.0}, error=ErrorInfo(type="AgentTimeoutError", cause="agent", message="m"))
    state = look(pod, AgentTimeoutError={"valid": False, "retry": True})
    assert isinstance(state, Judgement)
    assert (state.valid, state.budget) == (False, Budget.COUNTED)


@pytest.mark.conforms("H-111")
def test_a_verdict_without_reward_and_without_error_is_errored() -> None:
    empty: dict[str, float] = {}
    for rewards in (None, empty):
        assert reason_of(look(make_pod().verdict(rewards))) == Reason.REWARD_MISSING


def test_our_own_reason_is_shown_and_harbors_name_is_kept() -> None:
    error = ErrorInfo(type="GKEPodNotFoundError", cause="environment", message="m", reason="EnvironmentExited")
    state = look(make_pod().verdict(error=error))
    assert isinstance(state, Judgement)
    assert state.error == TrialError("EnvironmentExited", "GKEPodNotFoundError", "environment", "m")


@pytest.mark.parametrize("spoiled", [{"trial": "other__0000000"}, {"retry": 3}], ids=["other trial", "other retry"])
def test_a_verdict_of_another_trial_counts_for_nothing(spoiled: dict[str, object]) -> None:
    pod = make_pod().verdict({"reward": 1.0}, **spoiled)  # type: ignore[arg-type]
    assert isinstance(look(pod), Unclear)
    state = look(pod, found=NOTHING_STORED)
    assert isinstance(state, Judgement)
    assert (reason_of(state), state.rewards) == (Reason.VERDICT_MISSING, None)


@pytest.mark.parametrize(
    "text", ["", "{", '{"v":1}', "x" * 2000, '{"v":1,"trial":"task-0__abcdef0","retry":0,"stored":true,"rewards":{"r":NaN}}']
)
def test_nonsense_in_the_verifiers_message_is_no_score(text: str) -> None:
    assert reason_of(look(make_pod().running().terminated("verifier", 0, message=text), found=NOTHING_STORED)) == Reason.VERDICT_MISSING


def test_rewards_that_did_not_fit_come_from_the_result() -> None:
    pod = make_pod().verdict(elsewhere=True)
    assert isinstance(look(pod), Unclear)
    full = Verdict(TRIAL, 0, {"a": 1.0, "b": 0.0}, False, None, True, "b" * 64, None, {}, False, 0)
    state = look(pod, found=Found(full, touched=True))
    assert isinstance(state, Judgement)
    assert (state.rewards, state.valid) == ({"a": 1.0, "b": 0.0}, True)
    assert reason_of(look(pod, found=NOTHING_STORED)) == Reason.VERDICT_MISSING


def test_a_child_killed_for_memory_does_not_beat_a_verdict() -> None:
    pod = make_pod().oom_killed("environment").verdict({"reward": 1.0}).terminated("environment", 137, "OOMKilled").phase("Failed")
    state = look(pod)
    assert isinstance(state, Judgement)
    assert state.valid


# --- Pods that go away ---------------------------------------------------------------------------------------------------------------


def test_a_vanished_pod_is_asked_of_the_store_before_it_is_called_deleted() -> None:
    pod = make_pod().running()
    assert isinstance(look(pod, gone=True), Unclear)
    assert reason_of(look(pod, gone=True, found=NOTHING_STORED)) == Reason.POD_DELETED
    stored = Found(Verdict(TRIAL, 0, {"reward": 1.0}, False, None, True, "b" * 64, None, {}, False, 0), touched=True)
    state = look(pod, gone=True, found=stored)
    assert isinstance(state, Judgement)
    assert (state.valid, state.rewards) == (True, {"reward": 1.0})


def test_a_vanished_pod_keeps_the_reason_of_its_last_view() -> None:
    assert reason_of(look(make_pod().running().disrupted("DeletionByTaintManager"), gone=True, found=NOTHING_STORED)) == Reason.NODE_LOST


def test_a_pod_that_never_started_and_is_gone_was_deleted() -> None:
    assert reason_of(look(make_pod().unschedulable(), gone=True, found=NOTHING_STORED)) == Reason.POD_DELETED


def test_a_pod_that_is_gone_is_looked_up_however_old_its_last_view_is() -> None:
    assert isinstance(look(make_pod().unschedulable(), gone=True), Unclear)


def test_a_pod_that_is_being_deleted_is_waited_for() -> None:
    for pod in (make_pod().running().deleting(), make_pod().running().deleting().terminated("verifier", 143)):
        assert look(pod, found=NOTHING_STORED) == Running()


def test_a_pod_that_its_node_does_not_end_is_lost_once_the_store_was_asked() -> None:
    for pod in (make_pod().running(), make_pod().running().disrupted("DeletionByTaintManager"), make_pod().running().phase("Failed")):
        leaving = pod.deleting(due=0)
        assert not isinstance(look(leaving, later=LIMITS.lost + 59), Unclear | Judgement)
        assert isinstance(look(leaving, later=LIMITS.lost + 60), Unclear)
        assert reason_of(look(leaving, later=LIMITS.lost + 60, found=NOTHING_STORED)) == Reason.NODE_LOST


def test_the_stored_result_of_a_lost_pod_counts() -> None:
    verdict = read_result(
        {"trial_name": TRIAL, "verifier_result": {"rewards": {"reward": 1.0}}, "seatrial": {"retry": 0}},
        trial=TRIAL,
        retry=0,
        sha256="b" * 64,
    )
    state = look(make_pod().running().deleting(due=999), found=Found(verdict, touched=True))
    assert isinstance(state, Judgement)
    assert (state.rewards, state.valid) == ({"reward": 1.0}, True)


def test_a_disruption_alone_ends_nothing_because_a_result_may_still_come() -> None:
    assert look(make_pod().running().disrupted("EvictionByEvictionAPI")) == Running()


@pytest.mark.parametrize(
    "error",
    [
        ErrorInfo(type="CancelledError", cause="infrastructure", message="m"),
        ErrorInfo(type="GKEPodNotFoundError", cause="infrastructure", message="m", reason="Interrupted"),
    ],
    ids=["cancelled", "interrupted"],
)
def test_a_runner_that_was_told_to_stop_leaves_the_reason_to_the_pod(error: ErrorInfo) -> None:
    pod = make_pod().verdict(error=error)
    assert look(pod) == Running()
    assert reason_of(look(pod.deleting(), gone=True, found=NOTHING_STORED)) == Reason.POD_DELETED
    drained = make_pod().verdict(error=error).disrupted("EvictionByEvictionAPI").phase("Failed")
    assert reason_of(look(drained, found=NOTHING_STORED)) == Reason.DRAINED
    late = make_pod().verdict(error=error).phase("Failed", "DeadlineExceeded")
    assert reason_of(look(late, found=NOTHING_STORED)) == Reason.DEADLINE_EXCEEDED


def test_a_pod_in_its_ordinary_life_runs() -> None:
    assert look(make_pod().running()) == Running()
    assert look(make_pod().running().terminated("agent", 0)) == Running()
    assert look(make_pod().running().terminated("agent", 137, "OOMKilled")) == Running()


# --- result.json ---------------------------------------------------------------------------------------------------------------------

RESULT = {
    "trial_name": TRIAL,
    "verifier_result": {"rewards": {"reward": 0.5}},
    "exception_info": {"exception_type": "AgentTimeoutError", "exception_message": "late"},
    "seatrial": {"retry": 0, "cause": "agent", "tampered": True, "leftover_processes": 2, "changed_tools": 3, "logs_sha256": "f" * 64},
}


def test_a_stored_result_says_the_same_as_a_verdict() -> None:
    verdict = read_result(RESULT, trial=TRIAL, retry=0, sha256="a" * 64)
    assert verdict == Verdict(
        trial=TRIAL,
        retry=0,
        rewards={"reward": 0.5},
        rewards_elsewhere=False,
        error=ErrorInfo(type="AgentTimeoutError", cause="agent", message="late"),
        stored=True,
        result_sha256="a" * 64,
        logs_sha256="f" * 64,
        seconds={},
        tampered=True,
        leftover_processes=2,
        changed_tools=3,
    )


@pytest.mark.parametrize(
    "change",
    [
        {"trial_name": "other"},
        {"seatrial": {"retry": 1}},
        {"verifier_result": {"rewards": {"reward": "1"}}},
        {"verifier_result": {"rewards": {"reward": float("inf")}}},
    ],
    ids=["other trial", "other retry", "text", "infinity"],
)
def test_a_stored_result_of_something_else_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        read_result({**RESULT, **change}, trial=TRIAL, retry=0, sha256="a" * 64)


def test_limits_can_be_changed() -> None:
    pod = make_pod().scheduled(0).waiting("stage", "ErrImagePull", PULL + "not found")
    state = derive(TRIAL, 0, pod=pod.view(), gone=False, found=None, now=NOW, limits=LIMITS._replace(image_grace=0), overrides={})
    assert reason_of(state) == Reason.IMAGE_NOT_FOUND


def test_the_view_of_a_pod_is_a_value() -> None:
    assert make_pod().running().view() == make_pod().running().view()
    assert replace(make_pod().view(), name="x") != make_pod().view()
    assert make_pod().created(10).view().created_at is not None
    assert ago(0) == "2026-03-04T12:00:00Z"


@pytest.mark.conforms("H-35")
def test_an_environment_that_exits_at_once_is_noticed_within_seconds() -> None:
    pod = make_pod().running().terminated("environment", 3)
    assert isinstance(look(pod), Waiting)
    late = look(pod, later=LIMITS.exited, found=NOTHING_STORED)
    assert reason_of(late) == Reason.ENVIRONMENT_EXITED
    assert isinstance(late, Judgement)
    assert late.error is not None
    assert late.error.message == "the environment exited with code 3: its ENTRYPOINT must run its arguments or stay up"


def test_a_trial_without_verification_is_done_and_misses_nothing() -> None:
    verdict = Verdict(
        trial=TRIAL,
        retry=0,
        rewards=None,
        rewards_elsewhere=False,
        error=None,
        stored=True,
        result_sha256="b" * 64,
        logs_sha256=None,
        seconds={},
        tampered=False,
        leftover_processes=0,
        is_disabled=True,
    )
    state = judge(verdict, {})
    assert (state.rewards, state.error, state.valid) == (None, None, True)
    assert read_verdict(write_verdict(verdict).decode()) == verdict


@pytest.mark.conforms("H-79")
def test_an_error_of_a_step_decides_in_a_result_from_the_store_too() -> None:
    error = {"type": "RewardFileNotFoundError", "cause": "verifier", "message": "none"}
    body = {"trial_name": TRIAL, "verifier_result": {"rewards": {"reward": 1.0}}, "seatrial": {"retry": 0, "error": error}}
    state = judge(read_result(body, trial=TRIAL, retry=0, sha256="b" * 64), {})
    assert (state.rewards, state.valid) == ({"reward": 1.0}, False)


@pytest.mark.parametrize(
    ("told", "taken"),
    [
        ({"n_input_tokens": 3, "n_output_tokens": 2, "cost_usd": 0.25}, {"n_input_tokens": 3, "n_output_tokens": 2, "cost_usd": 0.25}),
        ({"n_input_tokens": -1, "n_cache_tokens": True, "n_output_tokens": 10**400, "cost_usd": "9"}, {}),
        ({"cost_usd": float("inf"), "other": 1}, {}),
        ("much", {}),
        (None, {}),
    ],
    ids=["figures", "no figures", "endless", "a word", "nothing"],
)
def test_what_an_agent_says_it_spent_is_a_number_within_reason_or_left_out(told: object, taken: dict[str, float]) -> None:
    steps = [{"agent_result": told}, {"agent_result": {"cost_usd": 1.0}}, "no step"]
    body = {"trial_name": TRIAL, "seatrial": {"retry": 0}, "agent_result": None, "step_results": steps}
    found = read_result(body, trial=TRIAL, retry=0, sha256="b" * 64).usage
    assert found == {**taken, "cost_usd": taken.get("cost_usd", 0) + 1.0}
    verdict = handed_over(stored=True)._replace(usage=found)
    assert read_verdict(write_verdict(verdict).decode()) == verdict


def test_the_pod_of_a_separate_verifier_does_not_tell_the_agents_cost_again() -> None:
    body = {"trial_name": TRIAL, "seatrial": {"retry": 1, "verifies": 0}, "agent_result": {"cost_usd": 1.0}}
    assert read_result(body, trial=TRIAL, retry=1, sha256="b" * 64).usage == {}


def handed_over(*, stored: bool) -> Verdict:
    return Verdict(
        trial=TRIAL,
        retry=0,
        rewards=None,
        rewards_elsewhere=False,
        error=ErrorInfo(type="AgentTimeoutError", cause="agent", message="late"),
        stored=stored,
        result_sha256="b" * 64 if stored else None,
        logs_sha256="d" * 64 if stored else None,
        seconds={},
        tampered=False,
        leftover_processes=0,
        is_handed_over=True,
    )


def test_a_hand_over_is_no_end_and_no_failure_of_its_own() -> None:
    verdict = handed_over(stored=True)
    state = judge(read_verdict(write_verdict(verdict).decode()), {})
    assert (state.is_handed_over, state.rewards, state.error and state.error.type) == (True, None, "HandedOver")


def test_a_hand_over_that_is_not_stored_is_a_failure_of_the_store() -> None:
    state = judge(handed_over(stored=False), {})
    assert (state.is_handed_over, state.error and state.error.type) == (False, "ObjectStoreUnavailable")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ValueError", "ValueError"),
        ("asyncio.TimeoutError", "asyncio.TimeoutError"),
        ("a\nb", "a_b"),
        ("\ud800", "_"),
        ("9lives", "_9lives"),
        ("", "_"),
        ("x" * 300, "x" * 100),
        ("\U0001f600" * 200, "_" * 100),
    ],
    ids=ascii,
)
def test_the_type_of_an_error_is_always_a_name(text: str, name: str) -> None:
    assert error_name(text) == name
    assert read_error({"type": text, "cause": "agent", "reason": text}) == ErrorInfo(type=name, cause="agent", message="", reason=name)


def a_verdict(**changes: Any) -> Verdict:
    return handed_over(stored=True)._replace(is_handed_over=False, **changes)


def test_a_verdict_is_written_whatever_its_texts_are() -> None:
    error = ErrorInfo(type="\U0001f600" * 100, cause="agent", message="\U0001f600" * 256, reason="\U0001f600" * 100)
    found = read_verdict(write_verdict(a_verdict(error=error)).decode())
    assert found.error == ErrorInfo(type="_" * 100, cause="agent", message="", reason="_" * 100)


def test_rewards_stay_in_the_message_as_long_as_its_error_text_can_go() -> None:
    rewards = {f"part-{number:02d}": 0.5 for number in range(25)}
    found = read_verdict(
        write_verdict(a_verdict(rewards=rewards, error=ErrorInfo(type="A", cause="agent", message="\U0001f600" * 80))).decode()
    )
    assert (found.rewards, found.rewards_elsewhere, found.error and found.error["message"]) == (rewards, False, "")


@pytest.mark.parametrize("number", ["1" + "0" * 400, "1e300", "-1", "true"])
def test_what_is_no_duration_is_no_verdict(number: str) -> None:
    text = write_verdict(a_verdict(seconds={"agent": 1.0})).decode().replace("1.0", number)
    with pytest.raises(ContractBroken, match="seconds"):
        read_verdict(text)


@pytest.mark.parametrize("number", ["1" + "0" * 400, "-1" + "0" * 400])
def test_a_reward_that_no_float_can_hold_is_no_verdict(number: str) -> None:
    text = write_verdict(a_verdict(rewards={"reward": 0.25})).decode().replace("0.25", number)
    with pytest.raises(ContractBroken, match="finite"):
        read_verdict(text)


@pytest.mark.conforms("H-66")
@pytest.mark.parametrize(("code", "error"), [(0, None), (3, "NonZeroAgentExitCodeError")])
def test_the_exit_code_of_an_agent_image_is_graded_and_named(code: int, error: str | None) -> None:
    state = look(make_pod().verdict({"reward": 1.0}).terminated("agent-image", code))
    assert isinstance(state, Judgement)
    assert (state.rewards, state.valid, state.error and state.error.type) == ({"reward": 1.0}, True, error)


@pytest.mark.parametrize(("reason", "expected"), [("OOMKilled", "OOMKilled"), ("Error", "EnvironmentExited")])
def test_an_environment_that_memory_ended_is_told_from_one_that_ended_itself(reason: str, expected: str) -> None:
    error = ErrorInfo(type="GKEPodNotFoundError", cause="environment", message="the environment exited", reason="EnvironmentExited")
    state = look(make_pod().verdict(error=error).terminated("environment", 137, reason))
    assert isinstance(state, Judgement)
    assert (reason_of(state), state.error and state.error.cause, state.budget) == (expected, "environment", Budget.COUNTED)


def test_the_end_of_an_agent_image_is_the_runners_to_judge_however_long_the_environment_takes() -> None:
    assert look(make_pod().running().terminated("agent-image", 1), later=LIMITS.evidence) == Running()
