"""What the end of a script's Pod means, and what is done next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from seatrial.contract import ContractBroken
from seatrial.core.naming import script_pod_name
from seatrial.core.observe import PodView, parse_pod
from seatrial.core.scripts import (
    ObservedScripts,
    Script,
    ScriptError,
    ScriptOutcome,
    ScriptRun,
    ScriptsPlan,
    from_lines,
    judge_end,
    merged_values,
    plan_scripts,
    read_result,
    to_lines,
)
from seatrial.core.trial import Limits
from tests.builders import NOW, UID, ago

SCRIPT = Script("key", "a" * 64)
GOOD = ScriptOutcome(SCRIPT.sha256, {"n": 1.0})
FIRST = ScriptRun(0, 0)


def name(retry: int = 0) -> str:
    return script_pod_name("job", UID, 0, retry)


def pod(
    retry: int = 0,
    *,
    phase: str = "Running",
    reason: str = "",
    message: str = "",
    created: float = 5,
    deleted: float | None = None,
    gated: bool = False,
    **containers: Any,
) -> PodView:
    """A Pod of the script.

    Args:
        created, deleted: seconds ago.
        containers: name -> how it ended: exit code, or (exit code, reason, message); a mapping is the state as it is.
    """
    states = []
    for container, end in containers.items():
        code, why, said = end if isinstance(end, tuple) else (end, "", "")
        ended = {"terminated": {"exitCode": code, "reason": why, "message": said}}
        states.append({"name": container, "state": end if isinstance(end, dict) else ended})
    status: dict[str, Any] = {"phase": phase, "reason": reason, "message": message, "initContainerStatuses": states}
    if gated:
        status["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]
    meta = {"name": name(retry), "uid": f"uid-{retry}", "creationTimestamp": ago(created)}
    if deleted is not None:
        meta["deletionTimestamp"] = ago(deleted)
    return parse_pod({"metadata": {**meta, "ownerReferences": [{"uid": UID, "controller": True}]}, "status": status})


def ran(since: float, until: float) -> dict[str, Any]:
    """State of a container that ran between two times, in seconds ago."""
    return {"terminated": {"exitCode": 137, "reason": "Error", "startedAt": ago(since), "finishedAt": ago(until)}}


def decide(
    *pods: PodView,
    gone: Mapping[str, PodView] | None = None,
    starting: frozenset[ScriptRun] = frozenset(),
    found: Mapping[ScriptRun, ScriptOutcome | None] | None = None,
    refused: Mapping[int, ScriptOutcome] | None = None,
    scripts: tuple[Script, ...] = (SCRIPT,),
) -> ScriptsPlan:
    observed = ObservedScripts(
        job="job",
        job_uid=UID,
        scripts=scripts,
        pods={item.name: item for item in pods},
        gone=gone or {},
        starting=starting,
        found=found or {},
        refused=refused or {},
        limits=Limits(pending=600.0),
        seconds=300.0,
    )
    return plan_scripts(observed, NOW)


def test_the_store_is_asked_before_a_pod_is_created_and_again_when_it_has_ended() -> None:
    assert decide().finds == (FIRST,)
    assert decide(found={FIRST: None}).creates == (FIRST,)
    assert decide(starting=frozenset({FIRST}), found={FIRST: None}) == ScriptsPlan(None)
    assert decide(pod()) == ScriptsPlan(None)
    assert decide(pod(phase="Succeeded")).finds == (FIRST,)
    assert decide(pod(phase="Succeeded"), found={FIRST: GOOD}).outcomes == (GOOD,)


def test_a_pod_that_is_gone_is_followed_by_the_next_one_until_there_were_four() -> None:
    gone = {name(retry): pod(retry) for retry in range(4)}
    found: dict[ScriptRun, ScriptOutcome | None] = {FIRST: None}
    assert decide(gone=gone, found=found).finds == (ScriptRun(0, 1),)
    found = {ScriptRun(0, retry): None for retry in range(4)}
    (outcome,) = decide(gone=gone, found=found).outcomes or ()
    assert outcome.error is not None
    assert (outcome.error.type, outcome.error.cause) == ("MetricScriptLost", "infrastructure")
    assert "4 Pods" in outcome.error.message


def test_a_pod_that_does_not_start_is_given_up_after_the_pending_time_once_the_store_has_no_result_of_it() -> None:
    assert decide(pod(phase="Pending", created=500)).requeue_seconds == 60.0
    assert decide(pod(phase="Pending", created=590)).requeue_seconds == 10.0
    late = pod(phase="Pending", created=600, fetch={"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}})
    assert decide(late).finds == (FIRST,)
    assert decide(late, found={FIRST: GOOD}).outcomes == (GOOD,)
    (outcome,) = decide(late, found={FIRST: None}).outcomes or ()
    assert outcome.error is not None
    assert (outcome.error.type, outcome.error.cause) == ("MetricScriptLost", "infrastructure")
    assert "fetch: ImagePullBackOff no such image" in outcome.error.message


@pytest.mark.parametrize(
    "works",
    [
        pytest.param(pod(phase="Pending", created=5000, fetch={"running": {"startedAt": ago(4000)}}), id="fetches"),
        pytest.param(pod(phase="Pending", created=5000, fetch=0, script={"running": {"startedAt": ago(4000)}}), id="runs its script"),
        pytest.param(pod(phase="Pending", created=5000, fetch=0, script={"waiting": {"reason": "PodInitializing"}}), id="between two"),
        pytest.param(pod(phase="Pending", created=5000, gated=True), id="held by a queue"),
    ],
)
def test_the_pending_time_counts_only_while_nothing_of_the_pod_has_started(works: PodView) -> None:
    assert decide(works, found={FIRST: None}) == ScriptsPlan(None)


def test_a_pod_that_is_deleted_is_waited_for_until_its_node_has_lost_it_and_then_followed_by_the_next_one() -> None:
    assert decide(pod(deleted=50)).requeue_seconds == 10.0
    lost = pod(deleted=60)
    assert decide(lost).finds == (FIRST,)
    assert decide(lost, found={FIRST: GOOD}).outcomes == (GOOD,)
    second = ScriptRun(0, 1)
    assert decide(lost, found={FIRST: None, second: None}).creates == (second,)
    assert decide(lost, pod(1), found={FIRST: None}) == ScriptsPlan(None)


def test_four_lost_pods_are_all_that_a_script_gets() -> None:
    found = {ScriptRun(0, retry): None for retry in range(4)}
    (outcome,) = decide(*(pod(retry, deleted=60) for retry in range(4)), found=found).outcomes or ()
    assert outcome.error is not None
    assert outcome.error.type == "MetricScriptLost"
    assert "did not end it in its time" in outcome.error.message


def test_a_process_that_never_saw_the_first_pod_makes_no_second_one_beside_its_successor() -> None:
    assert decide(pod(1)).finds == (FIRST,)
    assert decide(pod(1), found={FIRST: None}) == ScriptsPlan(None)
    assert decide(starting=frozenset({ScriptRun(0, 1)}), found={FIRST: None}) == ScriptsPlan(None)
    ended = {FIRST: None, ScriptRun(0, 1): None, ScriptRun(0, 2): None}
    assert decide(pod(1, phase="Failed", reason="Evicted"), found=ended).creates == (ScriptRun(0, 2),)


def test_the_outcomes_are_complete_only_with_all_scripts() -> None:
    two = (SCRIPT, Script("other", "b" * 64))
    assert decide(scripts=two, found={FIRST: GOOD}).outcomes is None
    refused = ScriptOutcome("b" * 64, error=ScriptError("PodRejected", "user", "no"))
    assert decide(scripts=two, found={FIRST: GOOD}, refused={1: refused}).outcomes == (GOOD, refused)


@pytest.mark.parametrize(
    ("ended", "reason", "words"),
    [
        pytest.param(pod(script=(137, "OOMKilled", "")), "MetricScriptOutOfMemory", "killed for memory", id="memory"),
        pytest.param(
            pod(phase="Failed", reason="DeadlineExceeded", script=ran(400, 50)), "MetricScriptTimeout", "after its 300 s", id="deadline"
        ),
        pytest.param(
            pod(phase="Failed", reason="DeadlineExceeded", script={"running": {"startedAt": ago(400)}}),
            "MetricScriptTimeout",
            "after its 300 s",
            id="deadline, last seen at work",
        ),
        pytest.param(
            pod(phase="Failed", reason="DeadlineExceeded", script=ran(100, 50)), None, "the script had 50 s", id="deadline by a late start"
        ),
        pytest.param(
            pod(phase="Failed", reason="DeadlineExceeded", fetch={"waiting": {"reason": "ErrImagePull", "message": "slow"}}),
            None,
            "fetch: ErrImagePull slow",
            id="deadline by the image",
        ),
        pytest.param(
            pod(phase="Failed", reason="Evicted", message="Usage of EmptyDir volume exceeds the limit. emptyDir"),
            "MetricScriptOutputTooLong",
            "fills the disk",
            id="disk",
        ),
        pytest.param(pod(fetch=(80, "Error", '{"message": "metric.py: no such key"}')), "MetricScriptMissing", "no such key", id="missing"),
        pytest.param(pod(phase="Failed", script=(1, "Error", "")), "MetricScriptFailed", "ended its own container", id="killed itself"),
        pytest.param(pod(phase="Failed", reason="Evicted", message="node pressure"), None, "Evicted", id="evicted"),
        pytest.param(pod(fetch=(83, "Error", '{"message": "store away"}')), None, "store away", id="store away"),
        pytest.param(pod(score=(83, "Error", '{"message": "not stored"}')), None, "not stored", id="not stored"),
        pytest.param(pod(), None, "deleted", id="deleted"),
    ],
)
def test_what_the_end_of_a_pod_without_a_result_means(ended: PodView, reason: str | None, words: str) -> None:
    found = judge_end(ended, 300.0)
    if reason is None:
        assert isinstance(found, str)
        assert words in found
    else:
        assert isinstance(found, ScriptError)
        assert (found.type, found.cause) == (reason, "user")
        assert words in found.message


RESULT: dict[str, Any] = {
    "job_uid": UID,
    "script": 0,
    "retry": 0,
    "script_sha256": SCRIPT.sha256,
    "rewards_sha256": "b" * 64,
    "values": {"n": 1},
    "error": None,
}


def test_a_stored_result_is_read_and_kept_as_a_line() -> None:
    failed = {**RESULT, "values": None, "error": {"type": "Metric Script!", "message": "x" * 5000}}
    outcomes = tuple(read_result(body, job_uid=UID, run=FIRST, script=SCRIPT) for body in (RESULT, failed))
    assert outcomes == (GOOD, ScriptOutcome(SCRIPT.sha256, error=ScriptError("Metric_Script_", "user", "x" * 1000)))
    assert from_lines(to_lines(outcomes)) == outcomes


@pytest.mark.parametrize(
    "change",
    [
        {"job_uid": "other"},
        {"script": 1},
        {"retry": 1},
        {"script_sha256": "c" * 64},
        {"values": None},
        {"values": {"n": "1"}},
        {"values": {"n": True}},
        {"values": {"": 1}},
        {"values": {"a\nb": 1}},
        {"values": {str(number): number for number in range(101)}},
        {"error": "text"},
        {"error": {"type": 1, "message": ""}},
    ],
    ids=str,
)
def test_a_result_of_another_run_or_another_shape_does_not_count(change: dict[str, Any]) -> None:
    with pytest.raises(ContractBroken):
        read_result({**RESULT, **change}, job_uid=UID, run=FIRST, script=SCRIPT)


def test_the_first_script_that_gives_a_name_has_it() -> None:
    assert merged_values([ScriptOutcome("", {"a": 1.0}), ScriptOutcome("", {"a": 2.0, "b": 3.0})]) == {"a": 1.0, "b": 3.0}
