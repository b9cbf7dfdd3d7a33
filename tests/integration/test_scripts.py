"""A metric.py of a taskset or a job through the operator: its Pod, its values, and whatever goes wrong with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from seatrial.core.naming import job_prefix
from tests.integration.fakeapi import Answer, Raw, Request
from tests.integration.harness import World, operator, wait_until, world

SET_SCRIPT = {"ref": "evals/suite#metrics/one/metric.py", "sha256": "1" * 64}
JOB_SCRIPT = {"ref": "evals/suite#metrics/two/metric.py", "sha256": "2" * 64}
GATE = [{"score": "script.pass_rate", "atLeast": 0.5}]


def object_of(made: World, name: str) -> bytes:
    return made.store.objects[f"{job_prefix('evals', 'job', made.job()['metadata']['uid'])}{name}"]


def scores(status: Raw) -> dict[str, tuple[str | None, int, int]]:
    return {item["name"]: (item.get("value"), item["count"], item["missing"]) for item in status["scores"]}


def says(**values: float) -> Mapping[str, Any]:
    return {"values": values, "error": None}


async def running(made: World, number: int = 0) -> str:
    """Name of the Pod of a script, once it runs."""
    name = (await wait_until(lambda: made.scripts, lambda names: len(names) > number))[number]
    await wait_until(lambda: made.api.get("pods", name)["status"].get("phase"), lambda phase: phase == "Running")
    return name


@pytest.mark.conforms("N-160", "N-163", "H-134", "H-140")
async def test_the_script_of_a_taskset_runs_unasked_and_before_those_of_the_job() -> None:
    async with world() as made, operator(made):
        made.suite(2, metricScript=SET_SCRIPT, metrics=[{"type": "max"}])
        made.fate = lambda pod: "errored" if "task-1" in pod["metadata"]["labels"]["seatrial.dev/task"] else "scored"
        made.script_says = lambda pod: says(mean=0.25, n=2) if pod["metadata"]["name"].endswith("score-0-0") else says(mean=7, other=1)
        made.submit(
            metrics=[{"type": "min"}, {"type": "script", "script": JOB_SCRIPT}], thresholds=[{"score": "script.mean", "atLeast": 0.2}]
        )
        seen = await made.ended()
        assert seen["phase"] == "Completed"
        assert list(scores(seen).items())[:6] == [
            ("reward.max", ("1", 1, 1)),
            ("reward.min", ("1", 1, 1)),
            ("reward.max.zero", ("1", 2, 0)),
            ("script.mean", ("0.25", 2, 0)),
            ("script.n", ("2", 2, 0)),
            ("script.other", ("1", 2, 0)),
        ]
        assert seen["thresholds"] == [{"score": "script.mean", "atLeast": 0.2, "value": "0.25", "passed": True}]
        assert [name[-9:] for name in made.scripts] == ["score-0-0", "score-1-0"]
        # The errored trial is a null row.
        assert object_of(made, "scripts/rewards.jsonl") == b'{"reward": 1.0}\nnull\n'
        summary = json.loads(object_of(made, "summary.json"))
        assert [(item["sha256"][0], item["values"], item["error"]) for item in summary["scripts"]] == [
            ("1", {"mean": 0.25, "n": 2.0}, None),
            ("2", {"mean": 7.0, "other": 1.0}, None),
        ]
        assert {item["name"]: item["value"] for item in summary["aggregates"] if "script" in item["name"]} == {
            "script.mean": 0.25,
            "script.n": 2.0,
            "script.other": 1.0,
        }


@pytest.mark.conforms("H-134")
async def test_without_any_metric_the_mean_is_computed() -> None:
    async with world() as made, operator(made):
        made.suite(1)
        made.submit()
        assert list(scores(await made.ended())) == ["reward.mean", "reward.mean.zero", "reward.pass@1"]
        assert made.scripts == []


async def test_a_scripts_pod_has_no_network_no_token_and_its_container_no_url_and_no_key() -> None:
    async with world() as made, operator(made):
        made.suite(1, metricScript=SET_SCRIPT)
        made.script_says = lambda pod: None
        made.submit()
        name = await running(made)
        pod = made.api.get("pods", name)
        assert pod["metadata"]["labels"]["seatrial.dev/network"] == "none"
        assert (pod["spec"]["automountServiceAccountToken"], pod["spec"]["enableServiceLinks"]) == (False, False)
        fetch, script = pod["spec"]["initContainers"]
        (score,) = pod["spec"]["containers"]
        assert [item["name"] for item in (fetch, script, score)] == ["fetch", "script", "score"]
        assert [item["name"] for item in script["env"]] == ["SEATRIAL_INPUT"]
        assert "http" not in json.dumps(script)
        assert {item["name"] for item in score["env"]} == {"SEATRIAL_INPUT", "SEATRIAL_RESULT_URL", "SEATRIAL_SIGNING_KEY"}
        assert all(item["securityContext"]["readOnlyRootFilesystem"] for item in (fetch, script, score))
        # The job goes on meanwhile and says so.
        assert (made.status()["phase"], made.status()["progress"]) == ("Running", "1/1")
        made.save_script_result(pod, says(n=1))
        made.set_ended(name)
        assert scores(await made.ended())["script.n"] == ("1", 1, 0)


@pytest.mark.conforms("N-164")
async def test_a_script_that_fails_is_named_and_the_results_are_saved() -> None:
    async with world() as made, operator(made):
        made.suite(1, metricScript=SET_SCRIPT)
        words = "ended with code 1; it wrote: " + "File metric.py, line 9\n" * 30 + "ValueError: more than one key"
        made.script_says = lambda pod: {"values": None, "error": {"type": "MetricScriptFailed", "message": words}}
        made.submit()
        seen = await made.ended()
        assert (seen["phase"], seen["mean"]) == ("Completed", "1.000")
        (error,) = seen["errors"]
        assert (error["type"], error["cause"], error["count"]) == ("MetricScriptFailed", "user", 1)
        assert error["message"].startswith("metric.py ended with code 1")
        assert error["message"].endswith("ValueError: more than one key")
        assert json.loads(object_of(made, "summary.json"))["scripts"][0]["error"]["message"].endswith("ValueError: more than one key")


async def test_a_gate_on_a_value_of_a_failed_script_is_unmeasured() -> None:
    async with world() as made, operator(made):
        made.suite(1, metricScript=SET_SCRIPT)
        made.script_says = lambda pod: {"values": None, "error": {"type": "MetricScriptTimeout", "message": "did not end"}}
        made.submit(thresholds=GATE)
        seen = await made.ended()
        assert (seen["phase"], made.condition("Failed")) == ("Failed", ("True", "ThresholdUnmeasured"))
        assert seen["thresholds"] == [{"score": "script.pass_rate", "atLeast": 0.5, "passed": False}]


async def test_a_gate_on_a_script_that_nobody_has_is_refused_before_any_pod() -> None:
    async with world() as made, operator(made):
        made.suite(1)
        made.submit(thresholds=GATE)
        await made.ended()
        assert made.condition("PlanReady") == ("False", "UnknownScore")
        assert made.runs == []


async def test_a_script_whose_pod_is_lost_runs_again_and_one_that_was_killed_for_memory_does_not() -> None:
    async with world() as made, operator(made):
        made.suite(1, metricScript=SET_SCRIPT)
        made.script_says = lambda pod: None
        made.submit()
        first = await running(made)
        made.api.remove("pods", first)
        second = await running(made, 1)
        assert (first[-9:], second[-9:]) == ("score-0-0", "score-0-1")

        def kill(pod: Raw) -> None:
            killed = {"name": "script", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
            pod["status"] = {"phase": "Failed", "initContainerStatuses": [killed]}

        made.api.change("pods", second, kill)
        seen = await made.ended()
        assert [(item["type"], item["cause"]) for item in seen["errors"]] == [("MetricScriptOutOfMemory", "user")]
        assert len(made.scripts) == 2


async def test_a_result_with_another_signature_is_no_result() -> None:
    async with world() as made, operator(made):
        made.suite(1, metricScript=SET_SCRIPT)
        made.script_says = lambda pod: None
        made.submit()
        name = await running(made)
        made.save_script_result(made.api.get("pods", name), says(n=99), key=b"guessed")
        made.script_says = lambda pod: says(n=1)
        made.set_ended(name)
        assert scores(await made.ended())["script.n"] == ("1", 1, 0)
        assert len(made.scripts) == 2


async def test_an_operator_that_dies_while_a_script_runs_neither_runs_it_twice_nor_loses_it() -> None:
    async with world() as made:
        made.suite(1, metricScript=SET_SCRIPT)
        made.script_says = lambda pod: None
        made.submit()
        async with operator(made):
            name = await running(made)
        made.save_script_result(made.api.get("pods", name), says(n=1))
        made.set_ended(name)
        async with operator(made):
            assert scores(await made.ended())["script.n"] == ("1", 1, 0)
        assert made.scripts == [name]


async def test_a_cancelled_job_and_one_that_scored_nothing_run_no_script() -> None:
    async with world() as made, operator(made):
        made.suite(2, metricScript=SET_SCRIPT)
        made.fate = lambda pod: "errored"
        made.submit()
        assert (await made.ended())["phase"] == "Failed"
        made.fate = lambda pod: "silent" if "task-1" in pod["metadata"]["labels"]["seatrial.dev/task"] else "scored"
        made.submit("other")
        await wait_until(lambda: made.status("other").get("trials", {}).get("scored"), lambda count: count == 1)
        made.edit("other", cancel=True)
        await wait_until(lambda: made.condition("Finished", "other")[0], lambda value: value == "True")
        assert made.scripts == []


async def test_a_refused_pod_is_an_error_of_the_script() -> None:
    async with world() as made, operator(made):
        made.suite(1, metricScript=SET_SCRIPT)

        def refuse(request: Request) -> Answer | None:
            is_score = request.method == "POST" and request.path.endswith("/pods") and "-score-" in str(request.body)
            return Answer(422, "Invalid", "no such field") if is_score else None

        made.api.faults.append(refuse)
        made.submit()
        seen = await made.ended()
        assert (seen["phase"], [item["type"] for item in seen["errors"]]) == ("Completed", ["PodRejected"])


async def test_rescoring_runs_the_scripts_over_the_saved_rewards_and_no_trial() -> None:
    async with world() as made, operator(made):
        made.suite(1, metricScript=SET_SCRIPT)
        made.script_says = lambda pod: says(n=1)
        made.submit()
        await made.ended()
        runs = list(made.runs)
        made.submit("again", taskset=None, rescore={"job": "job"}, metrics=[{"type": "script", "script": JOB_SCRIPT}])
        made.script_says = lambda pod: says(n=1) if pod["metadata"]["name"].endswith("score-0-0") else says(m=2)
        found = scores(await made.ended("again"))
        assert (found["script.n"], found["script.m"]) == (("1", 1, 0), ("2", 1, 0))
        assert made.runs == runs


async def test_a_script_that_works_longer_than_the_pending_time_is_waited_for() -> None:
    async with world() as made, operator(made):
        made.suite(1, metricScript=SET_SCRIPT)
        made.script_says = lambda pod: None
        made.submit(timeouts={"pending": "1s"})
        name = await running(made)

        def work(pod: Raw) -> None:
            """As the kubelet shows an init container at work."""
            states = [{"name": "fetch", "state": {"terminated": {"exitCode": 0}}}, {"name": "script", "state": {"running": {}}}]
            pod["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
            pod["status"] = {"phase": "Pending", "initContainerStatuses": states}

        made.api.change("pods", name, work)
        made.submit("other", cancel=True)
        await wait_until(lambda: made.condition("Finished", "other")[0], lambda value: value == "True")
        made.save_script_result(made.api.get("pods", name), says(n=1))
        made.set_ended(name)
        assert scores(await made.ended())["script.n"] == ("1", 1, 0)
        assert made.scripts == [name]


async def test_the_pod_of_a_script_is_not_kept_with_those_of_failed_trials() -> None:
    async with world() as made, operator(made):
        made.suite(2, metricScript=SET_SCRIPT)
        made.fate = lambda pod: "errored" if "task-1" in pod["metadata"]["labels"]["seatrial.dev/task"] else "scored"
        made.script_says = lambda pod: says(n=1)
        made.submit(pod={"keepFailedSeconds": 3600})
        await wait_until(lambda: made.condition("Finished")[0], lambda value: value == "True")
        kept = await wait_until(made.pods, lambda pods: len(pods) == 1)
        assert [pod["metadata"]["labels"]["seatrial.dev/role"] for pod in kept] == ["trial"]


async def test_a_pod_that_its_node_never_ends_is_followed_by_one_other() -> None:
    async with world() as made, operator(made):
        made.suite(1, metricScript=SET_SCRIPT)
        made.script_says = lambda pod: None
        made.submit()
        first = await running(made)

        def cut_off(pod: Raw) -> None:
            pod["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 60}

        made.api.change("pods", first, cut_off)
        second = await running(made, 1)
        assert (first[-9:], second[-9:]) == ("score-0-0", "score-0-1")
        # Something wakes the job: no third Pod comes while the second one lives.
        made.api.change("pods", first, lambda pod: pod["metadata"].update(annotations={"seen": "again"}))
        made.submit("other", cancel=True)
        await wait_until(lambda: made.condition("Finished", "other")[0], lambda value: value == "True")
        assert made.scripts == [first, second]
        made.save_script_result(made.api.get("pods", second), says(n=1))
        made.set_ended(second)
        await wait_until(lambda: made.condition("Finished")[0], lambda value: value == "True")
        assert scores(made.status())["script.n"] == ("1", 1, 0)
        assert made.scripts == [first, second]


async def test_a_pod_whose_creation_was_not_answered_is_the_scripts_one_pod() -> None:
    async with world() as made, operator(made):
        made.suite(1, metricScript=SET_SCRIPT)
        made.script_says = lambda pod: says(n=1)
        lost: list[str] = []

        def lose(request: Request) -> Answer | None:
            if request.method != "POST" or not request.path.endswith("/pods") or "-score-" not in str(request.body) or lost:
                return None
            lost.append(request.path)
            return Answer(500)

        made.api.lost_answers.append(lose)
        made.submit()
        assert scores(await made.ended())["script.n"] == ("1", 1, 0)
        assert (len(lost), len(made.scripts)) == (1, 1)


@pytest.mark.conforms("N-94")
async def test_the_same_saved_trials_get_other_scores_by_a_new_revision_of_the_taskset() -> None:
    async with world() as made, operator(made):
        made.suite(2, metricScript=SET_SCRIPT)
        made.script_says = lambda pod: says(n=1)
        made.submit()
        await made.ended()
        runs = list(made.runs)
        made.taskset("suite", "task-0", "task-1", metricScript=JOB_SCRIPT, metrics=[{"type": "sum"}])
        await wait_until(lambda: made.api.get("tasksets", "suite")["status"]["revision"], lambda revision: revision == 2)
        made.script_says = lambda pod: says(pass_rate=0.5)
        made.submit("again", taskset=None, rescore={"job": "job", "taskset": "suite"})
        found = scores(await made.ended("again"))
        assert (found["reward.sum"], found["script.pass_rate"], "script.n" in found) == (("2", 2, 0), ("0.5", 2, 0), False)
        assert made.runs == runs


@pytest.mark.conforms("N-92")
async def test_rescoring_uses_the_image_of_every_trial_and_its_absence_is_named_with_the_results_saved() -> None:
    async with world() as made, operator(made):
        made.suite(1)
        made.submit()
        await made.ended()
        made.script_says = lambda pod: None
        metric = {"type": "script", "script": JOB_SCRIPT}
        made.submit("again", taskset=None, rescore={"job": "job"}, metrics=[metric], timeouts={"pending": "2s"})
        name = await running(made)
        spec = made.api.get("pods", name)["spec"]
        assert {item["image"] for item in (*spec["initContainers"], *spec["containers"])} == {made.settings.runner_image}

        def wait_for_image(pod: Raw) -> None:
            waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
            pod["status"] = {"phase": "Pending", "initContainerStatuses": [{"name": "fetch", "state": {"waiting": waiting}}]}

        made.api.change("pods", name, wait_for_image)
        seen = await made.ended("again")
        (error,) = seen["errors"]
        assert (seen["phase"], seen["scores"][0]["value"], error["type"]) == ("Completed", "1", "MetricScriptLost")
        assert "fetch: ImagePullBackOff no such image" in error["message"]
