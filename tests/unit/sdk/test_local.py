"""Scoring saved trials without a cluster: from a Harbor job directory to a bundle, with metrics, judges, views and gates."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from seatrial.core.saved import SavedTrial, SavedTrialsRefused
from seatrial.effects.store import Store
from seatrial.errors import InvalidSpec
from seatrial.scoring.builtin import ExactMatch, OutputSpec, ToolCallCount
from seatrial.scoring.views import InvalidView, Signal, View
from seatrial.sdk.agentest import AGENTEST, Mark, agentest_metrics
from seatrial.sdk.harbor_runner import HarborAgentTaskRunner
from seatrial.sdk.judge import JudgeError
from seatrial.sdk.llm_judge import LLMJudge, RangeScore, RubricScore
from seatrial.sdk.local import AgentEvalRunConfig, AgentEvaluator, EvaluationResult, GateMissed, MetricStopped, read_result, report
from seatrial.sdk.saved_trials import FolderEvidence, build_trials_from_job_dir, read_trials, store_trials
from seatrial.sdk.turns import QualitativeMetric, QualResult, QuantitativeMetric, QuantResult, ScoreInput
from seatrial.taskpkg.collection import HarborRewardMetric, PlainTask
from seatrial.testing import FakeLLM

Write = Callable[..., Path]


def task(name: str = "bench/a", **more: Any) -> PlainTask:
    return PlainTask(id=name, intent=name, inputs={"instruction": f"Do {name}."}, **more)


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    return tmp_path / "nightly"


@pytest.fixture
def write(job_dir: Path) -> Write:
    """``write("a__1234567", "bench/a", {"reward": 1.0})`` leaves a trial as Harbor does."""

    def call(name: str, task_name: str, rewards: Any, *, error: str | None = None, steps: Any = None, says: str | None = None) -> Path:
        folder = job_dir / name
        (folder / "agent").mkdir(parents=True)
        info = error and {
            "exception_type": error,
            "exception_message": f"{error} it was",
            "exception_traceback": "Traceback …",
            "occurred_at": "2026-03-04T11:00:05+00:00",
        }
        result = {
            "task_name": task_name,
            "trial_name": name,
            "agent_info": {"name": "oracle", "version": "1", "model_info": None},
            "verifier_result": None if rewards is None else {"rewards": rewards},
            "exception_info": info,
            "started_at": "2026-03-04T11:00:00Z",
            "finished_at": "2026-03-04T12:00:09+01:00",
            "agent_execution": {"started_at": "2026-03-04T11:00:01Z", "finished_at": "2026-03-04T11:00:03.500000Z"},
            "step_results": steps,
        }
        (folder / "result.json").write_text(json.dumps(result))
        if says is not None:
            call_ = {"tool_call_id": "1", "function_name": "search", "arguments": {"q": "cats"}}
            talk = [
                {"source": "user", "message": "hello"},
                {"source": "agent", "message": "hi"},
                {"source": "user", "message": "and now?"},
                {"source": "agent", "message": says, "tool_calls": [call_], "observation": {"results": []}},
            ]
            (folder / "agent/trajectory.json").write_text(json.dumps({"steps": talk}))
        return folder

    return call


def ranges(result: EvaluationResult) -> dict[str, tuple[Any, int, int]]:
    return {item["name"]: (item["mean"], item["count"], item["nan_count"]) for item in result.summary.ranges}


# --- a Harbor job directory -------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("N-98", "N-119")
def test_trials_are_rebuilt_from_a_job_directory_with_everything_that_harbor_recorded(write: Write, job_dir: Path) -> None:
    write("a__0000002", "bench/a", {"reward": 0.5, "style": 1})
    write("a__0000001", "bench/a", {"reward": 1.0}, error="RuntimeError")
    write("b__0000001", "bench/b", None, error="RewardFileNotFoundError")
    write("x__0000001", "bench/other", {"reward": 1.0})
    (job_dir / "notes").mkdir()
    trials = build_trials_from_job_dir(job_dir, [task("bench/a"), task("bench/b")])
    assert [(trial.id, trial.task_id, trial.status, trial.row["outcome"], trial.row["attempt"]) for trial in trials] == [
        ("a__0000001", "bench/a", "PARTIAL", "scored", 1),
        ("a__0000002", "bench/a", "COMPLETED", "scored", 2),
        ("b__0000001", "bench/b", "PARTIAL", "errored", 1),
    ]
    assert trials[1].metadata == {
        "harbor_primary_reward_key": "reward",
        "reward": 0.5,
        "reward_details": {"reward": 0.5, "style": 1.0},
        "reward_rejections": {},
        "reward_entry_rejections": [],
        "harbor_trial_dir": "a__0000002",
    }
    assert trials[0].error == {
        "type": "RuntimeError",
        "exceptionType": "RuntimeError",
        "cause": "agent",
        "message": "RuntimeError it was",
        "traceback": "Traceback …",
        "occurred_at": "2026-03-04T11:00:05+00:00",
    }
    assert (trials[0].measurements, trials[0].row["endedAt"]) == ({"runtime_sec": 2.5}, "2026-03-04T11:00:09Z")


def test_the_first_steps_exception_counts_where_the_trial_has_none_and_a_task_without_trials_is_warned_about(
    write: Write, job_dir: Path
) -> None:
    write("a__1", "bench/a", {"reward": 1.0}, steps=[{}, {"exception_info": {"exception_type": ""}}])
    with pytest.warns(UserWarning, match="has no trial of bench/b"):
        (trial,) = build_trials_from_job_dir(job_dir, [task("bench/a"), task("bench/b")])
    assert trial.error is not None
    assert trial.error["type"] == "UnknownException"


@pytest.mark.conforms("N-125", "N-126")
@pytest.mark.parametrize("bad", [None, "high", {"x": 1}, [1]], ids=["null", "text", "object", "list"])
def test_one_impossible_value_makes_the_whole_attempt_invalid_and_no_sibling_counts(write: Write, job_dir: Path, bad: Any) -> None:
    write("a__1", "bench/a", {"reward": 1.0, "style": bad})
    write("a__2", "bench/a", {"reward": 0.5, "style": "0.25"})
    trials = build_trials_from_job_dir(job_dir, [task()])
    assert trials[0].error is not None
    assert (trials[0].row["outcome"], trials[0].row["rewards"], trials[0].error["type"]) == ("errored", None, "InvalidTrialResult")
    result = AgentEvaluator().run_sync([task()], trials=trials)
    assert ranges(result)["harbor_reward.reward"] == (0.5, 1, 1)
    assert ranges(result)["harbor_reward.style"] == (0.25, 1, 1)


def test_what_is_no_result_and_what_is_no_directory_is_said(write: Write, job_dir: Path) -> None:
    with pytest.raises(InvalidSpec, match="is no directory"):
        build_trials_from_job_dir(job_dir, [task()])
    write("a__1", "bench/a", {"reward": 1.0})
    (job_dir / "a__1/result.json").write_text("{")
    with pytest.warns(UserWarning, match=r"is no trial result|has no trial of"):
        assert build_trials_from_job_dir(job_dir, [task()]) == ()
    with pytest.raises(InvalidSpec, match="invalid Harbor reward_key: reserved_key"):
        build_trials_from_job_dir(job_dir, [task()], reward_key="x.pass@1")


# --- scoring ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("N-130", "N-134")
def test_the_example_of_a_sparse_secondary_reward(write: Write, job_dir: Path) -> None:
    write("a__1", "bench/a", {"reward": 1.0, "format_ok": 1.0})
    write("a__2", "bench/a", {"reward": 0.0})
    result = AgentEvaluator().run_sync([task()], trials=build_trials_from_job_dir(job_dir, [task()]))
    assert ranges(result) == {
        "harbor_reward.format_ok": (1.0, 1, 1),
        "harbor_reward.reward": (0.5, 2, 0),
        "harbor_reward.format_ok.pass@1": (1.0, 1, 0),
        "harbor_reward.format_ok.pass@2": (None, 0, 1),
        "harbor_reward.reward.pass@1": (0.5, 1, 0),
        "harbor_reward.reward.pass@2": (1.0, 1, 0),
    }
    assert result.summary.raw["metric_coverage"]["harbor_reward"]["format_ok"] == {"total": 2, "scored": 1, "failed": 0, "missing": 1}


@pytest.mark.conforms("N-131", "N-134")
def test_the_example_of_an_error_beside_a_reward(write: Write, job_dir: Path) -> None:
    write("a__1", "bench/a", {"reward": 1.0})
    write("a__2", "bench/a", {"reward": 0.8}, error="RuntimeError")
    result = AgentEvaluator().run_sync([task()], trials=build_trials_from_job_dir(job_dir, [task()]))
    assert [trial.status for trial in result.trials] == ["COMPLETED", "PARTIAL"]
    assert ranges(result)["harbor_reward.reward"] == (0.9, 2, 0)
    assert (ranges(result)["harbor_reward.reward.pass@1"][0], ranges(result)["harbor_reward.reward.pass@2"][0]) == (0.5, 1.0)
    assert (result.summary.raw["error_trial_ids"], result.summary.raw["error_count"]) == ({"RuntimeError": ["a__2"]}, 1)


@pytest.mark.conforms("N-97", "N-99")
def test_the_tasks_own_reward_metric_names_the_output_and_the_saved_value_stands(write: Write, job_dir: Path) -> None:
    write("a__1", "bench/a", {"accuracy": 0.7, "style": 0.25})
    trials = build_trials_from_job_dir(job_dir, [task()], reward_key="accuracy")
    named = task(metrics=[HarborRewardMetric(output_name="quality", description="ours", labels=("x",))])
    result = AgentEvaluator().run_sync([named], trials=trials)
    assert {name: value[0] for name, value in ranges(result).items() if ".pass@" not in name} == {
        "harbor_reward.quality": 0.7,
        "harbor_reward.style": 0.25,
    }
    plain = AgentEvaluator().run_sync([task()], trials=trials)
    assert ranges(plain)["harbor_reward.reward"][0] == 0.7


@pytest.mark.conforms("N-81")
def test_a_runner_names_the_primary_by_its_reward_key_whatever_the_tasks_metric_says(write: Write, job_dir: Path) -> None:
    write("a__1", "bench/a", {"accuracy": 0.7})
    named = task(metrics=[HarborRewardMetric(output_name="quality")])
    runner = HarborAgentTaskRunner(job_dir=job_dir, reward_key="accuracy")
    result = AgentEvaluator().run_sync([named], target=runner)
    assert ranges(result)["harbor_reward.accuracy"][0] == 0.7


@pytest.mark.conforms("N-155")
def test_without_the_reward_metric_in_the_list_the_reward_is_not_scored(write: Write, job_dir: Path) -> None:
    write("a__1", "bench/a", {"reward": 1.0}, says="Done!")
    runner = HarborAgentTaskRunner(job_dir=job_dir)
    assert list(ranges(AgentEvaluator().run_sync([task(metrics=[ExactMatch("Done")])], target=runner))) == [
        "exact-match.exact-match",
        "exact-match.exact-match.pass@1",
    ]
    both = AgentEvaluator().run_sync([task(metrics=[HarborRewardMetric(), ExactMatch("Done")])], target=runner)
    assert {"harbor_reward.reward", "exact-match.exact-match"} <= set(ranges(both))


@pytest.mark.conforms("N-78", "N-83", "N-84", "N-94", "N-156")
def test_one_evaluator_mixes_metrics_and_serves_several_targets(write: Write, job_dir: Path) -> None:
    write("a__1", "bench/a", {"reward": 1.0}, says="done.")
    write("a__2", "bench/a", {"reward": 0.0}, says="Not yet")
    evaluator, plain = AgentEvaluator(), task()
    before = evaluator.run_sync([plain], target=HarborAgentTaskRunner(job_dir=job_dir))
    richer = task()
    richer.metrics.append(ExactMatch(reference="Done", candidate="{{sample.output_text}}"))
    richer.metrics.append(ToolCallCount("search"))
    richer.views["quality"] = View("mean", (Signal("harbor_reward", "reward"), Signal("exact-match", "exact-match")))
    trials = before.trials
    after = evaluator.run_sync([richer], trials=trials, config=AgentEvalRunConfig(evidence=FolderEvidence(job_dir)))
    assert "exact-match.exact-match" not in ranges(before)
    assert ranges(after)["harbor_reward.reward"] == ranges(before)["harbor_reward.reward"] == (0.5, 2, 0)
    assert ranges(after)["exact-match.exact-match"] == (0.5, 2, 0)
    assert ranges(after)["view.quality"] == (0.5, 2, 0)
    assert ranges(after)["tool_call_count.count"] == (1.0, 2, 0)
    assert [score["metric_type"] for score in after.scores][:3] == ["harbor_reward", "exact-match", "tool_call_count"]


@pytest.mark.conforms("N-85")
def test_a_view_of_something_that_no_metric_reports_is_refused_before_anything_is_scored(write: Write, job_dir: Path) -> None:
    write("a__1", "bench/a", {"reward": 1.0})
    trials = build_trials_from_job_dir(job_dir, [task()])
    for signal, message in (
        (Signal("exact-match", "exact-match"), "references unknown metric 'exact-match'"),
        (Signal("harbor_reward", "style"), "references unknown output 'style' for metric 'harbor_reward'"),
    ):
        with pytest.raises(InvalidView, match=message):
            AgentEvaluator().run_sync([task(views={"quality": View("mean", (signal,))})], trials=trials)


@pytest.mark.conforms("N-93")
def test_a_metric_that_needs_a_trajectory_reads_it_and_a_missing_one_is_its_failure_alone(write: Write, job_dir: Path) -> None:
    write("a__1", "bench/a", {"reward": 1.0}, says="done")
    write("a__2", "bench/a", {"reward": 1.0})
    counted = task(metrics=[HarborRewardMetric(), ToolCallCount(), Words()])
    result = AgentEvaluator().run_sync([counted], target=HarborAgentTaskRunner(job_dir=job_dir))
    assert ranges(result)["tool_call_count.count"] == (1.0, 1, 1)
    assert ranges(result)["words.value"] == (1.0, 1, 1)
    assert ranges(result)["harbor_reward.reward"] == (1.0, 2, 0)
    messages = {(score["trial_id"], score["metric_type"]): [item["message"] for item in score["diagnostics"]] for score in result.scores}
    assert messages["a__2", "tool_call_count"] == messages["a__2", "words"] == ["the trial has no trajectory"]
    assert result.summary.raw["metric_coverage"]["tool_call_count"]["count"] == {"total": 2, "scored": 1, "failed": 1, "missing": 0}


def test_evidence_outside_the_job_directory_is_never_read(write: Write, job_dir: Path, tmp_path: Path) -> None:
    write("a__1", "bench/a", {"reward": 1.0}, says="done")
    (trial,) = build_trials_from_job_dir(job_dir, [task()])
    (tmp_path / "secret").write_text("x")
    (job_dir / "a__1/agent/link").symlink_to(tmp_path / "secret")
    evidence = FolderEvidence(job_dir)
    assert evidence.read(trial, "agent/link", max_bytes=10) is None
    assert evidence.read(trial, "../../secret", max_bytes=10) is None
    assert evidence.read(trial, "agent/trajectory.json", max_bytes=10) is None
    assert evidence.read(trial, "agent/trajectory.json", max_bytes=10**6) is not None


def test_a_result_that_is_a_link_a_device_or_a_pipe_is_neither_read_nor_stored(write: Write, job_dir: Path, tmp_path: Path) -> None:
    for name in ("a__1", "a__2", "a__3", "a__4"):
        write(name, "bench/a", {"reward": 1.0})
    (trial, *_) = build_trials_from_job_dir(job_dir, [task()])
    secret = tmp_path / "secret"
    secret.write_bytes((job_dir / "a__1/result.json").read_bytes())
    for name, target in (("a__1", secret), ("a__2", Path("/dev/zero"))):
        (job_dir / name / "result.json").unlink()
        (job_dir / name / "result.json").symlink_to(target)
    (job_dir / "a__3/result.json").unlink()
    os.mkfifo(job_dir / "a__3/result.json")
    with pytest.warns(UserWarning, match="is no trial result"):
        assert [item.id for item in build_trials_from_job_dir(job_dir, [task()])] == ["a__4"]
    store = Stored()
    stored = store_trials(cast(Store, store), "evals", [trial], evidence=FolderEvidence(job_dir))
    assert stored["ref"].endswith("trials.jsonl")
    assert sorted(key.rpartition("/")[2] for key in store.objects) == ["logs.tar.gz", "trials.jsonl"]


class Stored:
    """An object store that takes everything."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put(self, key: str, data: bytes | Path) -> None:
        self.objects[key] = data if isinstance(data, bytes) else data.read_bytes()


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "\ud800", "..", "/etc", "."])
def test_a_folder_that_cannot_be_one_is_no_evidence(job_dir: Path, name: str) -> None:
    trial = SavedTrial("no-such-trial", "bench/a", "COMPLETED", metadata={"harbor_trial_dir": name})
    assert FolderEvidence(job_dir).read(trial, "agent/trajectory.json", max_bytes=10) is None


@pytest.mark.parametrize(
    ("name", "text"), [("summary.json", "["), ("summary.json", "[]"), ("scores.jsonl", "7\n"), ("metadata.json", "[" * 100_000)]
)
def test_a_folder_whose_files_are_no_bundle_is_refused_by_name(write: Write, job_dir: Path, tmp_path: Path, name: str, text: str) -> None:
    write("a__1", "bench/a", {"reward": 1.0})
    target = AgentEvaluator().run_sync([task()], trials=build_trials_from_job_dir(job_dir, [task()])).persist(tmp_path / "bundle")
    assert read_result(target).run_id
    (target / name).write_text(text)
    with pytest.raises(InvalidSpec, match="has no bundle"):
        read_result(target)


class Says:
    """A metric that reports what it was given."""

    type = "says"

    def __init__(self, kind: Any, value: Any) -> None:
        self.outputs, self._value = (OutputSpec("value", kind),), value

    def compute(self, row: Any) -> dict[str, Any]:
        return {"value": self._value}


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        ("continuous", 10**400, None),
        ("continuous", 10**30, 1e30),
        ("continuous", float("nan"), "nan"),
        ("continuous", 2, 2),
        ("discrete", 10**400, None),
        ("discrete", 10**30, 1e30),
        ("label", "\ud800", None),
        ("label", "fine", "fine"),
    ],
    ids=str,
)
def test_what_no_table_can_hold_is_a_failure_of_its_metric_alone(write: Write, job_dir: Path, kind: Any, value: Any, kept: Any) -> None:
    write("a__1", "bench/a", {"reward": 1.0})
    result = AgentEvaluator().run_sync(
        [task(metrics=[HarborRewardMetric(), Says(kind, value)])], trials=build_trials_from_job_dir(job_dir, [task()])
    )
    (found,) = [score["outputs"] for score in result.scores if score["metric_type"] == "says"]
    assert [item["value"] for item in found] == ([kept] if kept is not None else [])
    assert result.to_table().num_rows == len(result.scores)


@pytest.mark.conforms("N-95", "N-96")
def test_trials_of_other_tasks_tasks_without_trials_and_differing_keys_are_refused(write: Write, job_dir: Path) -> None:
    write("a__1", "bench/a", {"reward": 1.0})
    trials = build_trials_from_job_dir(job_dir, [task()])
    other = build_trials_from_job_dir(job_dir, [task()], reward_key="other")
    for tasks, given, reason in (
        ([task("bench/b")], trials, "UnknownTrialTask"),
        ([task(), task("bench/b")], trials, "TaskWithoutTrials"),
        ([task()], (*trials, *other), "RewardKeyInconsistent"),
    ):
        with pytest.raises(SavedTrialsRefused) as refused:
            AgentEvaluator().run_sync(tasks, trials=given)
        assert refused.value.reason == reason


@pytest.mark.conforms("N-88")
def test_exactly_one_of_trials_and_target_is_given(write: Write, job_dir: Path) -> None:
    write("a__1", "bench/a", {"reward": 1.0})
    for options in ({}, {"trials": (), "target": HarborAgentTaskRunner(job_dir=job_dir)}):
        with pytest.raises(TypeError, match="exactly one of trials and target"):
            AgentEvaluator().run_sync([task()], **options)
    with pytest.raises(TypeError, match="exactly one of config and job_dir"):
        HarborAgentTaskRunner()


@pytest.mark.parametrize("metrics", [[ExactMatch("a"), ExactMatch("b")], [HarborRewardMetric(), HarborRewardMetric()]])
def test_two_metrics_of_one_type_are_refused(write: Write, job_dir: Path, metrics: list[Any]) -> None:
    write("a__1", "bench/a", {"reward": 1.0})
    with pytest.raises(ValueError, match="duplicate task metric types: "):
        AgentEvaluator().run_sync([task(metrics=metrics)], target=HarborAgentTaskRunner(job_dir=job_dir))


@pytest.mark.conforms("N-89", "N-134", "N-209")
def test_a_bundle_is_written_read_back_and_scored_again_to_the_same_bytes(write: Write, job_dir: Path, tmp_path: Path) -> None:
    for number in range(6):
        write(
            f"a__{number}", "bench/a", {"reward": number / 5, "style": 1}, error="AgentTimeoutError" if number == 3 else None, says="Done"
        )
    write("b__1", "bench/b", None, error="RewardFileNotFoundError")
    write("b__2", "bench/b", {"reward": 1.0}, says="No")
    tasks = [task(name, metrics=[HarborRewardMetric(), ExactMatch("Done")]) for name in ("bench/a", "bench/b")]
    config = AgentEvalRunConfig(run_id="fixed", evidence=FolderEvidence(job_dir), labels={"team": "x"})
    first = AgentEvaluator().run_sync(tasks, trials=build_trials_from_job_dir(job_dir, tasks), config=config)
    home = first.persist(tmp_path / "one")
    lines = (home / "trials.jsonl").read_text().splitlines()
    (home / "spaced.jsonl").write_text("\n\n".join(lines) + "\n  \n")
    again = AgentEvaluator().run_sync(tasks, trials=read_trials(home / "spaced.jsonl"), config=config)
    copy = again.persist(tmp_path / "two")
    for name in ("metadata.json", "tasks.jsonl", "trials.jsonl", "scores.jsonl", "summary.json", "report.html"):
        assert (copy / name).read_bytes() == (home / name).read_bytes(), name
    assert read_result(home).summary.raw == first.summary.raw
    assert (first.run_id, first.metadata["target"]["kind"], first.metadata["labels"]) == ("fixed", "imported", {"team": "x"})
    with pytest.raises(FileExistsError):
        first.persist(home)
    with pytest.raises(InvalidSpec, match="has no bundle"):
        read_result(tmp_path)


# --- metrics of one's own, and judges ---------------------------------------------------------------------------------------------------


class Words(QuantitativeMetric):
    name = "words"

    async def score(self, given: ScoreInput) -> QuantResult:
        return QuantResult(len(given.agent_message.split()), "counted")


class Mood(QualitativeMetric):
    name = "mood"

    async def evaluate(self, given: ScoreInput) -> QualResult:
        return QualResult("rude" if "!" in given.agent_message else "no failure", "punctuation")


@dataclass
class Running:
    """Counts how many of its calls run at once; half of them are synchronous."""

    type: str
    seen: list[int]
    lock: Any
    outputs: tuple[OutputSpec, ...] = (OutputSpec("x", "continuous"),)

    def compute(self, row: Any) -> Any:
        return self._later() if self.type == "later" else self._now()

    def _now(self) -> dict[str, float]:
        self._enter(1)
        threading.Event().wait(0.01)
        self._enter(-1)
        return {"x": 1.0}

    async def _later(self) -> dict[str, float]:
        self._enter(1)
        await asyncio.sleep(0.01)
        self._enter(-1)
        return {"x": 1.0}

    def _enter(self, step: int) -> None:
        with self.lock:
            self.seen.append((self.seen[-1] if self.seen else 0) + step)


@pytest.mark.conforms("N-185", "N-192")
def test_custom_and_built_in_metrics_run_side_by_side_within_one_bound(write: Write, job_dir: Path) -> None:
    for number in range(8):
        write(f"a__{number}", "bench/a", {"reward": 1.0}, says="Done")
    seen, lock = [], threading.Lock()  # type: ignore[var-annotated]

    class Turned(QuantitativeMetric):
        name = "turned"

        async def score(self, given: ScoreInput) -> QuantResult:
            await Running("later", seen, lock)._later()
            return QuantResult(1.0, "")

    metrics = [HarborRewardMetric(), ExactMatch("Done"), Running("now", seen, lock), Running("later", seen, lock), Turned(), Words()]
    config = AgentEvalRunConfig(parallelism=3)
    result = AgentEvaluator().run_sync([task(metrics=metrics)], target=HarborAgentTaskRunner(job_dir=job_dir), config=config)
    means = {name: value[0] for name, value in ranges(result).items() if ".pass@" not in name}
    assert means == {
        "exact-match.exact-match": 1.0,
        "harbor_reward.reward": 1.0,
        "later.x": 1.0,
        "now.x": 1.0,
        "turned.value": 1.0,
        "words.value": 1.0,
    }
    assert 2 <= max(seen) <= 3


@pytest.mark.conforms("N-187", "N-189", "N-191")
def test_custom_metrics_have_values_by_turn_means_gates_and_a_place_in_the_report(write: Write, job_dir: Path) -> None:
    write("a__1", "bench/a", {"reward": 0.5}, says="five words are in here")
    write("a__2", "bench/a", {"reward": 1.0}, says="no!")
    metrics = [HarborRewardMetric(), Words(), Mood()]
    config = AgentEvalRunConfig(thresholds={"words": 2.5, "reward.mean": 0.8})
    result = AgentEvaluator().run_sync([task(metrics=metrics)], target=HarborAgentTaskRunner(job_dir=job_dir), config=config)
    assert ranges(result)["words.value"] == (2.0, 2, 0)
    assert ranges(result)["mood.failures"] == (0.5, 2, 0)
    assert result.problems == ("words.value.mean is 2, at least 2.5 was asked for", "reward.mean is 0.75, at least 0.8 was asked for")
    with pytest.raises(GateMissed, match=r"words\.value\.mean is 2"):
        result.check()
    document = json.loads(report(result))
    assert document["passed"] is False
    assert document["trials"][0]["turns"] == [
        {
            "turn_index": 0,
            "metrics": {"words": {"value": 1.0, "reason": "counted"}, "mood": {"value": "no failure", "reason": "punctuation"}},
        },
        {
            "turn_index": 1,
            "metrics": {"words": {"value": 5.0, "reason": "counted"}, "mood": {"value": "no failure", "reason": "punctuation"}},
        },
    ]
    assert document["trials"][0]["metrics"] == {"harbor_reward": {"reward": 0.5}, "words": {"value": 3.0}, "mood": {"failures": 0}}
    assert [(group["label"], group["occurrences"], group["severity"]) for group in document["failure_groups"]] == [
        ("mood: rude", 1, "high")
    ]


class Tone(QuantitativeMetric):
    name = "tone"

    async def score(self, given: ScoreInput) -> QuantResult:
        answer = await self.llm.generate_object(Mark, [{"role": "user", "content": given.agent_message}])
        return QuantResult(answer.value, answer.reason)


class Booked(QuantitativeMetric):
    name = "booked"

    async def score(self, given: ScoreInput) -> QuantResult:
        return QuantResult(float("booked" in given.agent_message), "read")


@pytest.mark.conforms("N-189")
@pytest.mark.parametrize(
    ("marks", "says", "problems"),
    [
        ((4, 4), "booked", ()),
        ((5, 3), "booked", ()),
        ((4, 3), "booked", ("tone.value.mean is 3.5, at least 4.0 was asked for",)),
        ((4, 4), "sorry", ("booked.value.mean is 0, at least 0.5 was asked for",)),
    ],
)
def test_gates_on_metrics_of_ones_own_hold_in_their_own_scales(
    write: Write, job_dir: Path, marks: tuple[int, int], says: str, problems: tuple[str, ...]
) -> None:
    write("a__1", "bench/a", {"reward": 1.0}, says=says)
    judge = FakeLLM(*({"value": mark, "reason": "so"} for mark in marks))
    config = AgentEvalRunConfig(judge=judge, thresholds={"tone": 4.0, "booked": 0.5}, parallelism=1)
    runner = HarborAgentTaskRunner(job_dir=job_dir)
    result = AgentEvaluator().run_sync([task(metrics=[HarborRewardMetric(), Tone(), Booked()])], target=runner, config=config)
    assert result.problems == problems


@pytest.mark.conforms("N-189")
@pytest.mark.parametrize(("severity", "passes"), [("critical", True), ("high", False), ("low", False)])
def test_a_severity_gate_counts_groups_at_or_above_it(write: Write, job_dir: Path, severity: Any, passes: bool) -> None:
    write("a__1", "bench/a", {"reward": 1.0}, says="no!")
    config = AgentEvalRunConfig(fail_on_error_severity=severity, thresholds={"words": 1.0})
    runner = HarborAgentTaskRunner(job_dir=job_dir)
    result = AgentEvaluator().run_sync([task(metrics=[HarborRewardMetric(), Mood(), Words()])], target=runner, config=config)
    assert result.problems == (() if passes else ("mood: rude: severity high, 1 occurrences",))


def test_a_gate_on_a_metric_that_always_fails_is_missed(write: Write, job_dir: Path) -> None:
    write("a__1", "bench/a", {"reward": 1.0})
    config = AgentEvalRunConfig(thresholds={"words": 1.0})
    result = AgentEvaluator().run_sync(
        [task(metrics=[HarborRewardMetric(), Words()])], target=HarborAgentTaskRunner(job_dir=job_dir), config=config
    )
    assert result.problems == ("words.value.mean is not measured, at least 1.0 was asked for",)


def test_fail_fast_stops_at_the_first_failure_of_a_metric(write: Write, job_dir: Path) -> None:
    write("a__1", "bench/a", {"reward": 1.0})
    with pytest.raises(MetricStopped, match="metric words on trial a__1: the trial has no trajectory"):
        AgentEvaluator().run_sync(
            [task(metrics=[HarborRewardMetric(), Words()])],
            target=HarborAgentTaskRunner(job_dir=job_dir),
            config=AgentEvalRunConfig(fail_fast=True),
        )


def test_agentests_metrics_ask_once_a_turn_and_only_where_they_apply(write: Write, job_dir: Path) -> None:
    write("a__1", "bench/a", {"reward": 1.0}, says="booked")
    answers = {
        "Mark": {"value": 4, "reason": "good"},
        "Reached": {"value": 1, "reason": "yes"},
        "Behavior": {"value": "no failure", "reason": "fine"},
        "ToolUse": {"value": "wrong tool", "reason": "searched"},
    }
    asked: list[str] = []

    class Judge:
        async def generate_object(self, schema: Any, messages: Any) -> Any:
            asked.append(schema.__name__)
            assert "Do bench/a." in messages[1]["content"]
            return schema.model_validate(answers[schema.__name__])

    config = AgentEvalRunConfig(judge=Judge())
    runner = HarborAgentTaskRunner(job_dir=job_dir)
    result = AgentEvaluator().run_sync([task(metrics=[HarborRewardMetric(), *agentest_metrics()])], target=runner, config=config)
    means = {name: value[0] for name, value in ranges(result).items() if ".pass@" not in name and not name.startswith("harbor")}
    assert means == {
        "agent_behavior_failure.failures": 0.0,
        "coherence.value": 4.0,
        "faithfulness.value": 4.0,
        "goal_completion.value": 1.0,
        "helpfulness.value": 4.0,
        "relevance.value": 4.0,
        "tool_call_behavior_failure.failures": 1.0,
        "verbosity.value": 4.0,
    }
    assert {name: asked.count(name) for name in answers} == {"Mark": 10, "Reached": 1, "Behavior": 2, "ToolUse": 1}
    assert [group["label"] for group in result.failure_groups] == ["tool_call_behavior_failure: wrong tool"]
    assert len(AGENTEST) == 8


def test_a_judge_of_whole_trials_scores_ranges_and_rubrics(write: Write, job_dir: Path) -> None:
    write("a__1", "bench/a", {"reward": 1.0}, says="booked")
    scores: list[RangeScore | RubricScore] = [
        RangeScore("depth", "How deep?", 0, 10),
        RubricScore("tone", {"kind": (1.0, "polite"), "rude": (0.0, "not")}, "Its tone."),
    ]
    judge = FakeLLM({"depth": 7, "tone": "kind"})
    metric = LLMJudge("Rate: {{sample.output_text}}", scores)
    config = AgentEvalRunConfig(judge=judge)
    result = AgentEvaluator().run_sync(
        [task(metrics=[HarborRewardMetric(), metric])], target=HarborAgentTaskRunner(job_dir=job_dir), config=config
    )
    assert (ranges(result)["llm-judge.depth"][0], ranges(result)["llm-judge.tone"][0]) == (7.0, 1.0)
    assert judge.asked[0][1] == {"role": "user", "content": "Rate: booked"}


@pytest.mark.parametrize(("ignore", "expected"), [(True, (1, 0, 0)), (False, (0, 1, 0))])
def test_an_outage_of_the_judge_is_a_failure_or_by_choice_no_number(
    write: Write, job_dir: Path, ignore: bool, expected: tuple[int, int, int]
) -> None:
    write("a__1", "bench/a", {"reward": 1.0}, says="booked")
    metric = LLMJudge("{{sample.output_text}}", [RangeScore("depth")], ignore_request_failures=ignore)
    config = AgentEvalRunConfig(judge=FakeLLM(JudgeError("JudgeUnavailable", "is down")))
    result = AgentEvaluator().run_sync(
        [task(metrics=[HarborRewardMetric(), metric])], target=HarborAgentTaskRunner(job_dir=job_dir), config=config
    )
    coverage = result.summary.raw["metric_coverage"]["llm-judge"]["depth"]
    assert (coverage["scored"], coverage["failed"], coverage["missing"]) == expected
    assert ranges(result)["llm-judge.depth"] == (None, 0, 1)
    assert ranges(result)["harbor_reward.reward"] == (1.0, 1, 0)


@pytest.mark.parametrize("scores", [[], [RangeScore("a"), RangeScore("a")], [RangeScore("not a name")], [RubricScore("a")]])
def test_a_judge_without_proper_scores_is_refused(scores: list[Any]) -> None:
    with pytest.raises(InvalidSpec):
        LLMJudge("x", scores)
