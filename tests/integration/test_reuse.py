"""Results that are used again: rescoring, another job's results, the cache. No Pod runs for what is taken."""

from __future__ import annotations

import hashlib
import importlib
import json
import threading
from typing import Any

import pytest

from seatrial.core.naming import job_prefix
from tests.integration.harness import GROUP, World, operator, wait_until, world


def folder(made: World, name: str) -> str:
    return job_prefix("evals", name, made.job(name)["metadata"]["uid"])


def document(made: World, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(made.store.objects[f"{folder(made, name)}summary.json"])
    return found


def numbers(made: World, name: str) -> dict[str, Any]:
    """The summary without what names the job."""
    return {key: value for key, value in document(made, name).items() if key not in ("job", "run_id")}


def entries(made: World) -> dict[str, bytes]:
    return {key: data for key, data in made.store.objects.items() if key.startswith("cache/")}


def one_errored(pod: Any) -> str:
    return "errored" if "task-1" in pod["metadata"]["labels"]["seatrial.dev/task"] else "scored"


# --- rescoring --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("N-88", "N-90")
async def test_a_rescore_gives_the_same_numbers_and_starts_no_pod() -> None:
    async with world() as made, operator(made):
        made.suite(3)
        made.fate = one_errored
        made.submit("first", attempts=2)
        await made.ended("first")
        started = len(made.runs)
        made.submit("again", taskset=None, rescore={"job": "first"})
        seen = await made.ended("again")
        assert len(made.runs) == started
        assert (seen["phase"], seen["progress"], seen["trials"]["cached"]) == ("Completed", "6/6", 6)
        again, first = numbers(made, "again"), numbers(made, "first")
        assert (again["trials"].pop("cached"), first["trials"].pop("cached")) == (6, 0)
        assert again == first
        rows = [json.loads(line) for line in made.store.objects[f"{folder(made, 'again')}trials.jsonl"].splitlines()]
        home = folder(made, "first").rstrip("/").rpartition("/")[2]
        assert {row["evidence"]["result"]["ref"].split("/trials/")[0] for row in rows if row["evidence"]} == {f"../{home}"}


async def test_a_rescore_with_other_metrics_and_gates_scores_the_same_trials_differently() -> None:
    async with world() as made, operator(made):
        made.suite(2)
        made.submit("first")
        await made.ended("first")
        gate = [{"score": "reward.sum", "atLeast": 3.0}]
        made.submit("again", taskset=None, rescore={"job": "first"}, metrics=[{"type": "sum"}], thresholds=gate)
        seen = await made.ended("again")
        assert (seen["phase"], seen["scores"][0]) == ("Failed", {"name": "reward.sum", "value": "2", "count": 2, "missing": 0})
        assert seen["thresholds"] == [{"score": "reward.sum", "atLeast": 3.0, "value": "2", "passed": False}]


@pytest.mark.conforms("N-91")
async def test_a_rescore_works_after_the_tasks_are_gone() -> None:
    async with world() as made, operator(made):
        made.suite(1)
        made.submit("first")
        await made.ended("first")
        made.api.remove("tasksets", "suite")
        made.api.remove("tasks", "task-0")
        made.submit("again", taskset=None, rescore={"job": "first"})
        assert (await made.ended("again"))["mean"] == "1.000"


@pytest.mark.conforms("N-88", "N-96")
async def test_a_rescore_of_nothing_or_under_another_key_is_refused_by_name() -> None:
    async with world() as made, operator(made):
        made.suite(1)
        made.fate = lambda pod: "silent"
        made.submit("running")
        await wait_until(lambda: made.status("running").get("trials", {}).get("running"), lambda running: running == 1)
        made.submit("absent", taskset=None, rescore={"job": "nobody"})
        made.submit("early", taskset=None, rescore={"job": "running"})
        for name in ("absent", "early"):
            await wait_until(lambda name=name: made.condition("Failed", name), lambda found: found == ("True", "RescoreSource"))  # type: ignore[misc]
        made.fate = lambda pod: "scored"
        made.submit("keyed", rewardKey="reward")
        await wait_until(lambda: made.condition("Finished", "keyed")[0], lambda status: status == "True")
        made.submit("unkeyed", taskset=None, rescore={"job": "keyed"})
        await wait_until(lambda: made.condition("Failed", "unkeyed"), lambda found: found == ("True", "RewardKeyInconsistent"))


def save_trials(made: World, lines: list[Any], *, name: str = "one") -> dict[str, str]:
    """Lines as a file of the fileset ``saved``, and how a job names it."""
    data = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines).encode()
    made.store.objects[f"filesets/evals/saved/{name}/trials.jsonl"] = data
    return {"ref": f"evals/saved#{name}/trials.jsonl", "sha256": hashlib.sha256(data).hexdigest()}


def saved(name: str, task: str, key: str = "reward", **rewards: float) -> dict[str, Any]:
    metadata = {"harbor_primary_reward_key": key, "reward": rewards.get(key), "reward_details": rewards}
    return {"id": name, "task_id": task, "status": "COMPLETED", "metadata": metadata}


@pytest.mark.conforms("N-88", "N-89", "N-90", "N-97")
async def test_trials_of_a_file_are_scored_without_a_pod() -> None:
    async with world() as made, operator(made):
        made.suite(2)
        lines = [
            saved("a__1", "bench/task-0", "accuracy", accuracy=1.0, style=0.5),
            "",
            saved("b__1", "bench/task-1", "accuracy", accuracy=0.5),
            "   ",
        ]
        lines[0]["evidence"] = {"logs": {"ref": "../../elsewhere/logs.tar.gz", "sha256": "e" * 64}}  # type: ignore[index]
        file = save_trials(made, lines)
        made.submit("again", taskset=None, rewardKey="accuracy", rescore={"trials": file, "taskset": "suite"})
        seen = await made.ended("again")
        assert (seen["phase"], seen["progress"], seen["trials"]["cached"], made.runs) == ("Completed", "2/2", 2, [])
        scores = {item["name"]: item.get("value") for item in seen["scores"]}
        assert (scores["accuracy.mean"], scores["style.mean"]) == ("0.75", "0.5")
        assert json.loads(made.store.objects[f"{folder(made, 'again')}metadata.json"])["target"]["kind"] == "imported"
        # Evidence lies beside the file, wherever a line points.
        first = json.loads(made.store.objects[f"{folder(made, 'again')}trials.jsonl"].splitlines()[0])
        assert first["evidence"]["logs"]["ref"] == "../../../filesets/evals/saved/one/trials/a__1/0/logs.tar.gz"


@pytest.mark.conforms("N-89", "N-91")
async def test_a_jobs_own_trials_file_gives_its_numbers_again_even_after_the_job_is_gone() -> None:
    async with world() as made, operator(made):
        made.suite(3)
        made.fate = one_errored
        made.submit("first", attempts=2)
        await made.ended("first")
        lines = made.store.objects[f"{folder(made, 'first')}trials.jsonl"].decode().splitlines()
        first = numbers(made, "first")
        made.api.remove("evaljobs", "first")
        file = save_trials(made, list(lines))
        made.submit("again", taskset=None, rescore={"trials": file, "taskset": "suite"})
        await made.ended("again")
        again = numbers(made, "again")
        assert (again["trials"].pop("cached"), first["trials"].pop("cached")) == (6, 0)
        assert again == first
        refs = {
            item["ref"]
            for line in made.store.objects[f"{folder(made, 'again')}trials.jsonl"].splitlines()
            for item in json.loads(line)["evidence"].values()
        }
        assert refs
        assert all(ref.startswith("../../../filesets/evals/saved/one/trials/") for ref in refs)


@pytest.mark.conforms("N-95", "N-96")
@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        pytest.param([saved("a__1", "bench/task-0", reward=1.0)], "TaskWithoutTrials", id="task without trials"),
        pytest.param(
            [saved(name, task, reward=1.0) for name, task in (("a", "bench/task-0"), ("b", "bench/task-1"), ("c", "bench/other"))],
            "UnknownTrialTask",
            id="unknown task",
        ),
        pytest.param([{"id": "a", "task_id": "bench/task-0", "status": "PARTIAL"}], "RewardKeyMissing", id="no key"),
        pytest.param([saved("a", "bench/task-0", "x.pass@1", reward=1.0)], "RewardKeyMissing", id="invalid key"),
        pytest.param(
            [saved("a", "bench/task-0", reward=1.0), saved("b", "bench/task-1", "other", other=1.0)],
            "RewardKeyInconsistent",
            id="differing keys",
        ),
        pytest.param(
            [saved("a", "bench/task-0", "other", other=1.0), saved("b", "bench/task-1", "other", other=1.0)],
            "RewardKeyInconsistent",
            id="another key than the job's",
        ),
        pytest.param([{**saved("a", "bench/task-0", reward=1.0), "surprise": 1}], "SavedTrialsInvalid", id="unknown field"),
        pytest.param(["{"], "SavedTrialsInvalid", id="no JSON"),
    ],
)
async def test_saved_trials_that_cannot_be_scored_are_refused_by_name(lines: list[Any], reason: str) -> None:
    async with world() as made, operator(made):
        made.suite(2)
        made.submit("again", taskset=None, rescore={"trials": save_trials(made, lines), "taskset": "suite"})
        await wait_until(lambda: made.condition("Failed", "again"), lambda found: found == ("True", reason))


async def test_a_file_that_is_not_there_too_long_changed_or_somebody_elses_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seatrial.effects.planning.SAVED_BYTES", 10_000)
    async with world() as made, operator(made):
        made.suite(1)
        long = save_trials(made, [" " * 20_000], name="long")
        file = save_trials(made, [saved("a", "bench/task-0", reward=1.0)])
        for name, spec, reason in (
            ("long", long, "SavedTrialsInvalid"),
            ("gone", {**file, "ref": "evals/saved#two/trials.jsonl"}, "SavedTrialsInvalid"),
            ("changed", {**file, "sha256": "0" * 64}, "SavedTrialsInvalid"),
            ("foreign", {**file, "ref": "other/saved#one/trials.jsonl"}, "CrossNamespaceReference"),
        ):
            made.submit(name, taskset=None, rescore={"trials": spec, "taskset": "suite"})
            await wait_until(lambda name=name: made.condition("Failed", name), lambda found, reason=reason: found == ("True", reason))  # type: ignore[misc]


async def test_a_rescore_may_take_another_taskset_and_every_task_of_it_needs_a_trial() -> None:
    async with world() as made, operator(made):
        made.suite(2)
        made.submit("first")
        await made.ended("first")
        task = made.api.get("tasks", "task-0")
        made.api.put(GROUP, "tasks", {**task, "spec": {**task["spec"], "metadata": {"category": "math"}}})
        await wait_until(lambda: made.api.get("tasks", "task-0")["status"]["revision"], lambda revision: revision == 2)
        made.taskset("fresh", "task-0", "task-1")
        made.taskset("more", "task-0", "task-1", "task-2")
        made.publish("task-2")
        started = len(made.runs)
        made.submit("again", taskset=None, rescore={"job": "first", "taskset": "fresh"})
        seen = await made.ended("again")
        assert (seen["phase"], len(made.runs)) == ("Completed", started)
        breakdown = document(made, "again")["groups"]["category"]
        assert breakdown["math"]["harbor_reward.reward"]["mean"] == 1.0
        assert document(made, "first")["groups"] == {}
        made.submit("wider", taskset=None, rescore={"job": "first", "taskset": "more"})
        await wait_until(lambda: made.condition("Failed", "wider"), lambda found: found == ("True", "TaskWithoutTrials"))


# --- another job's results --------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("N-138", "N-145", "H-148")
async def test_only_errored_trials_of_a_job_run_again() -> None:
    async with world() as made, operator(made):
        made.suite(3)
        made.fate = one_errored
        made.submit("first")
        await made.ended("first")
        made.runs.clear()
        made.fate = lambda pod: "scored"
        made.submit("second", cache={"job": "first", "rerunErrors": ["RewardFileNotFoundError"]})
        seen = await made.ended("second")
        assert (seen["trials"]["scored"], seen["trials"]["cached"], len(made.runs)) == (3, 2, 1)
        made.submit("third", cache={"job": "first", "rerunErrors": ["OOMKilled"]}, retry={"max": 5})
        seen = await made.ended("third")
        assert (seen["trials"]["errored"], seen["trials"]["cached"], len(made.runs)) == (1, 3, 1)


@pytest.mark.conforms("N-135")
async def test_raising_attempts_runs_only_what_is_missing() -> None:
    async with world() as made, operator(made):
        made.suite(2)
        made.submit("first", attempts=1)
        await made.ended("first")
        made.runs.clear()
        made.submit("second", attempts=3, cache={"job": "first"})
        seen = await made.ended("second")
        assert (seen["trials"]["scored"], seen["trials"]["cached"], len(made.runs)) == (6, 2, 4)


# --- the cache --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("N-139", "N-152")
async def test_without_a_policy_nothing_is_reused_and_nothing_is_kept() -> None:
    async with world() as made, operator(made):
        made.suite(1)
        made.submit("warm", cache={"policy": "reuse"})
        await made.ended("warm")
        before = entries(made)
        for name in ("first", "second"):
            made.submit(name)
            assert (await made.ended(name))["trials"]["cached"] == 0
        assert len(made.runs) == 3
        assert entries(made) == before


@pytest.mark.conforms("N-140", "N-149")
async def test_the_same_work_is_done_once_whatever_scores_and_concurrency_are_asked_for() -> None:
    async with world() as made, operator(made):
        made.suite(2)
        made.submit("first", cache={"policy": "reuse"})
        await made.ended("first")
        made.runs.clear()
        made.submit("second", cache={"policy": "reuse"}, concurrency=9, metrics=[{"type": "max"}], rewardKey="reward", retry={"max": 2})
        seen = await made.ended("second")
        assert (seen["phase"], seen["trials"]["cached"], made.runs) == ("Completed", 2, [])
        assert seen["scores"][0] == {"name": "reward.max", "value": "1", "count": 2, "missing": 0}


@pytest.mark.conforms("N-142", "N-148")
async def test_an_incomplete_cache_is_completed_and_a_subset_of_it_serves() -> None:
    async with world() as made, operator(made):
        made.suite(3)
        made.submit("two", cache={"policy": "reuse"}, select={"include": ["bench/task-[01]"]})
        await made.ended("two")
        made.runs.clear()
        made.submit("three", cache={"policy": "reuse"}, attempts=2)
        seen = await made.ended("three")
        assert (seen["trials"]["cached"], len(made.runs)) == (2, 4)
        made.submit("one", cache={"policy": "reuse"}, select={"include": ["bench/task-2"]})
        assert ((await made.ended("one"))["trials"]["cached"], len(made.runs)) == (1, 4)


@pytest.mark.conforms("N-143")
async def test_errored_results_and_broken_entries_are_never_served() -> None:
    async with world() as made, operator(made):
        made.suite(2)
        made.fate = one_errored
        made.submit("first", cache={"policy": "reuse"})
        await made.ended("first")
        (key,) = entries(made)
        for broken in (
            b"",
            b"{",
            b"[]",
            json.dumps({"format": 0, "row": {}}).encode(),
            json.dumps({"format": 1, "row": {"trial": 7}}).encode(),
        ):
            made.store.objects[key] = broken
            made.runs.clear()
            made.submit(f"j{len(broken)}", cache={"policy": "reuse"})
            seen = await made.ended(f"j{len(broken)}")
            assert (seen["trials"]["cached"], len(made.runs)) == (0, 2)
            assert json.loads(made.store.objects[key])["format"] == 1


@pytest.mark.conforms("N-153")
async def test_an_entry_of_an_older_format_runs_once_more_and_then_hits() -> None:
    async with world() as made, operator(made):
        made.suite(1)
        made.submit("first", cache={"policy": "reuse"})
        await made.ended("first")
        (key,) = entries(made)
        made.store.objects[key] = json.dumps({**json.loads(made.store.objects[key]), "format": 0}).encode()
        for name, cached in (("second", 0), ("third", 1)):
            made.submit(name, cache={"policy": "reuse"})
            assert (await made.ended(name))["trials"]["cached"] == cached


@pytest.mark.conforms("N-152")
async def test_a_scope_keeps_its_results_to_itself() -> None:
    async with world() as made, operator(made):
        made.suite(1)
        for name, scope, cached in (("plain", None, 0), ("seven", "release-7", 0), ("again", "release-7", 1), ("eight", "release-8", 0)):
            made.submit(name, cache={"policy": "reuse", **({"scope": scope} if scope else {})})
            assert (await made.ended(name))["trials"]["cached"] == cached, name
        assert len(entries(made)) == 3


@pytest.mark.conforms("N-144", "N-146")
async def test_refresh_runs_everything_and_replaces_while_reuse_keeps_the_first() -> None:
    async with world() as made, operator(made):
        made.suite(1)
        made.submit("first", cache={"policy": "reuse"})
        await made.ended("first")
        (key,) = entries(made)
        kept = made.store.objects[key]
        made.submit("fresh", cache={"policy": "refresh"})
        assert ((await made.ended("fresh"))["trials"]["cached"], len(made.runs)) == (0, 2)
        assert json.loads(made.store.objects[key])["row"]["origin"]["folder"] == folder(made, "fresh")
        assert json.loads(kept)["row"]["origin"]["folder"] == folder(made, "first")
        replaced = made.store.objects[key]
        made.submit("later", cache={"policy": "reuse"})
        await made.ended("later")
        assert made.store.objects[key] == replaced


# --- the event loop ---------------------------------------------------------------------------------------------------------------------

GROWING = (
    *("planning.adopt_job", "planning.adopt_cached", "planning.rescore_plan", "planning.saved_plan", "planning.final_rows"),
    *("planning.check_task_scoring", "planning.encode_plan", "rows.cache_name", "rows.encode_entry"),
)
"""Work that grows with the number of trials that are reused."""


async def test_what_grows_with_the_trials_that_are_reused_is_computed_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[str, set[bool]] = {}

    def watch(name: str) -> None:
        work = operator_attribute(name)

        def watched(*arguments: Any, **named: Any) -> Any:
            threads.setdefault(name, set()).add(threading.current_thread() is threading.main_thread())
            return work(*arguments, **named)

        monkeypatch.setattr(f"seatrial.effects.{name}", watched)

    for name in GROWING:
        watch(name)
    async with world() as made, operator(made):
        made.suite(2)
        made.submit("first", cache={"policy": "reuse"})
        await made.ended("first")
        lines = made.store.objects[f"{folder(made, 'first')}trials.jsonl"].decode().splitlines()
        made.submit("cached", cache={"policy": "reuse"})
        made.submit("taken", cache={"job": "first"})
        made.submit("again", taskset=None, rescore={"job": "first"})
        made.submit("file", taskset=None, rescore={"trials": save_trials(made, list(lines)), "taskset": "suite"})
        for name in ("cached", "taken", "again", "file"):
            assert (await made.ended(name))["trials"]["cached"] == 2
    assert threads == {name: {False} for name in GROWING}


def operator_attribute(name: str) -> Any:
    module, _, attribute = name.partition(".")
    return getattr(importlib.import_module(f"seatrial.effects.{module}"), attribute)
