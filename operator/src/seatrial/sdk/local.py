"""Score saved trials here, without a cluster: rewards, further metrics, judges, views, gates. The result is the bundle that a job leaves.

Example:
    trials = build_trials_from_job_dir("jobs/nightly", tasks)
    tasks[0].metrics.append(ExactMatch("Done"))
    result = AgentEvaluator().run_sync(tasks, trials=trials)
    result.summary.score("exact-match.exact-match")
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from seatrial.api.evaljob import EvalJobSpec, ThresholdSpec
from seatrial.core.bundle import Run, Tables, build_tables
from seatrial.core.expand import Trial as PlannedTrial
from seatrial.core.frozen import FrozenPlan, PlannedTask, task_labels
from seatrial.core.naming import TrialKey
from seatrial.core.reuse import IMPORTED
from seatrial.core.rows import Row
from seatrial.core.saved import SavedTrial, attempts, check_tasks, parse_saved, recorded_key, saved_row
from seatrial.core.scores import as_trials
from seatrial.errors import InvalidSpec, SeatrialError
from seatrial.scoring.builtin import MetricFailed, OutputSpec
from seatrial.scoring.builtin import Row as MetricRow
from seatrial.scoring.evaluate import Findings, MetricScore, checked, failed, metric_outputs
from seatrial.scoring.groups import FailureGroup, Severity, reaches
from seatrial.scoring.rewards import REWARD_METRIC
from seatrial.scoring.sample import build_row
from seatrial.scoring.views import View, check_view
from seatrial.sdk.exports import to_arrow, to_frame
from seatrial.sdk.failure_judge import merge_groups
from seatrial.sdk.results import Summary, flat_range, flat_score, read_bundle
from seatrial.sdk.saved_trials import Evidence, trajectory
from seatrial.sdk.turns import Conversation, JudgeModel, TurnMetric, TurnResult, check_metrics, evaluate, failures, turn_score, turns_of
from seatrial.taskpkg.collection import HarborRewardMetric, HarborTask, PlainTask
from seatrial.taskpkg.model import TaskConfig

if TYPE_CHECKING:
    from seatrial.sdk.harbor_runner import HarborAgentTaskRunner

LocalTask = HarborTask | PlainTask


class MetricStopped(SeatrialError):
    """``fail_fast``: a metric failed, and nothing further was scored."""


class GateMissed(SeatrialError):
    """A gate of the evaluation was not met; the result is complete."""


class Metric(Protocol):
    """What a metric on a whole trial is; ``compute`` may be asynchronous."""

    @property
    def type(self) -> str: ...
    @property
    def outputs(self) -> tuple[OutputSpec, ...]: ...
    def compute(self, row: MetricRow) -> Any: ...


@dataclass(frozen=True)
class AgentEvalRunConfig:
    """How to score."""

    work_dir: str | Path | None = None
    """Where the bundle is written; None: nowhere, ``result.persist`` does it."""
    run_id: str | None = None
    """None: made from the time. The same id over the same trials gives the same bytes."""
    parallelism: int = 4
    """Calls of metrics at a time, built-in and custom ones together."""
    labels: Mapping[str, str] = field(default_factory=dict)
    fail_fast: bool = False
    """Stop at the first failure of a metric instead of recording it."""
    judge: JudgeModel | None = None
    """For metrics that ask a model."""
    judge_groups: bool = False
    """Let the judge merge failures with one root cause and say how severe each is."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Score, or name of a metric over turns -> smallest value that passes. A score that was not measured does not pass."""
    fail_on_error_severity: Severity | None = None
    """A group of failures at or above this severity does not pass."""
    evidence: Evidence | None = None
    """Where trajectories are; None: metrics see saved facts only."""


DEFAULTS: Final = AgentEvalRunConfig()


class EvaluationResult:
    """What an evaluation came to: the files of its bundle. Live jobs, saved trials and local evaluations all have this one."""

    def __init__(self, tables: Mapping[str, bytes], *, fail_on: Severity | None = None) -> None:
        self._tables, self._fail_on = dict(tables), fail_on
        self._bundle = read_bundle(tables)

    @property
    def run_id(self) -> str:
        return str(self._bundle.metadata["run_id"])

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._bundle.metadata

    @property
    def summary(self) -> Summary:
        return Summary(self._bundle.summary)

    @property
    def trials(self) -> tuple[SavedTrial, ...]:
        """The trials, ready to be scored again."""
        return parse_saved(self._tables["trials.jsonl"])

    @property
    def scores(self) -> tuple[Mapping[str, Any], ...]:
        """Lines of scores.jsonl: one per trial and metric."""
        return self._bundle.scores

    @property
    def failure_groups(self) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = self._bundle.summary["failure_groups"]
        return found

    @property
    def problems(self) -> tuple[str, ...]:
        """Gates that were missed, one sentence each; empty: the evaluation passed."""
        missed = [
            f"{gate['score']} is {gate.get('value') or 'not measured'}, at least {gate['atLeast']} was asked for"
            for gate in self._bundle.summary["thresholds"]
            if not gate["passed"]
        ]
        if self._fail_on is not None:
            groups = (FailureGroup(**{**group, "examples": tuple(group["examples"])}) for group in self.failure_groups)
            missed += [
                f"{group.label}: severity {group.severity}, {group.occurrences} occurrences" for group in reaches(groups, self._fail_on)
            ]
        return tuple(missed)

    def check(self) -> EvaluationResult:
        """This result.

        Raises:
            GateMissed: with every gate that was missed.
        """
        if self.problems:
            raise GateMissed("; ".join(self.problems))
        return self

    def persist(self, directory: str | Path) -> Path:
        """Write the bundle into a new or empty folder; returns it.

        Raises:
            FileExistsError: the folder has files.
        """
        target = Path(directory)
        target.mkdir(parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise FileExistsError(f"{target} is not empty: give another folder")
        for name, data in self._tables.items():
            (target / name).write_bytes(data)
        return target

    def to_records(self, view: str = "rows") -> list[dict[str, Any]]:
        """``rows``: one flat record per score; ``aggregate``: one per aggregate with all its statistics.

        Raises:
            ValueError: another view.
        """
        match view:
            case "rows":
                return [flat_score(score) for score in self.scores]
            case "aggregate":
                return [flat_range(score) for score in self.summary.ranges]
            case _:
                raise ValueError(f"no view {view!r}; known: rows, aggregate")

    def to_table(self, view: str = "rows") -> Any:
        """``to_records`` as an Arrow table; needs pyarrow."""
        return to_arrow(self.to_records(view))

    def to_pandas(self, view: str = "rows") -> Any:
        """``to_records`` as a DataFrame; needs pandas."""
        return to_frame(self.to_records(view))


def read_result(directory: str | Path) -> EvaluationResult:
    """The result whose bundle lies in a folder.

    Raises:
        InvalidSpec: there is no whole bundle.
    """
    names = ("metadata.json", "tasks.jsonl", "trials.jsonl", "scores.jsonl", "summary.json")
    try:
        return EvaluationResult({name: (Path(directory) / name).read_bytes() for name in names})
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidSpec("directory", f"{directory} has no bundle: {error}") from error


class AgentEvaluator:
    """Scores trials; one evaluator may serve any number of targets, with metrics of every kind."""

    def run_sync(self, tasks: Sequence[LocalTask], **options: Any) -> EvaluationResult:
        """``run`` for programs without an event loop."""
        return asyncio.run(self.run(tasks, **options))

    async def run(
        self,
        tasks: Sequence[LocalTask],
        *,
        trials: Sequence[SavedTrial] | None = None,
        target: HarborAgentTaskRunner | None = None,
        config: AgentEvalRunConfig = DEFAULTS,
    ) -> EvaluationResult:
        """Score saved trials, or those that a target produces.

        Without a target each task's own reward metric says how the primary output is called, and the saved value stands whatever the name.

        Raises:
            TypeError: not exactly one of trials and target.
            InvalidSpec, InvalidView, ValueError: the tasks' metrics or views.
            SavedTrialsRefused: trials of unknown tasks, tasks without trials, or no single reward key.
            MetricStopped: with ``fail_fast``.
        """
        if (trials is None) == (target is None):
            raise TypeError("give exactly one of trials and target")
        evidence, output_name = config.evidence, None
        if target is not None:
            produced = await asyncio.to_thread(target.produce, tasks)
            trials, evidence, output_name = produced.trials, evidence or produced.evidence, target.reward_key
        assert trials is not None
        tables = await _tables(tasks, trials, evidence, output_name, config)
        result = EvaluationResult(tables, fail_on=config.fail_on_error_severity)
        if config.work_dir is not None:
            result.persist(config.work_dir)
        return result


async def _tables(
    tasks: Sequence[LocalTask],
    trials: Sequence[SavedTrial],
    evidence: Evidence | None,
    output_name: str | None,
    config: AgentEvalRunConfig,
) -> Tables:
    recorded = recorded_key(trials)
    by_id = {task.id: task for task in tasks}
    check_tasks([(trial.id, trial.task_id) for trial in trials], by_id)
    own_name = _reward_output(tasks)
    views = {task.id: _checked_views(task) for task in tasks}
    key = output_name or own_name or recorded
    rows = {trial.id: _renamed(saved_row(trial, ""), recorded, key) for trial in trials}
    plan = _plan(tasks, trials)
    names = {trial.id: trial.task_id for trial in trials}
    found = await _Scoring(by_id, evidence, config).all(trials, rows)
    outputs = metric_outputs(_declared(tasks), as_trials(rows.values(), names), found.scores)
    groups, judged = found.groups, None
    if config.judge_groups and config.judge is not None:
        groups, judged = await merge_groups(groups, config.judge)
    if (usage := getattr(config.judge, "usage", None)) is not None:
        judged = {**usage.raw(), **(judged or {})}
    findings = Findings(found.scores, outputs, views, own_name is not None, groups, judged)
    full = {
        metric.name: f"{metric.name}.{metric.output.name}.mean"
        for task in tasks
        for metric in task.metrics
        if isinstance(metric, TurnMetric)
    }
    gates = tuple(ThresholdSpec(score=full.get(score, score), at_least=value) for score, value in config.thresholds.items())
    spec = EvalJobSpec(tasks=("local",), reward_key=key, thresholds=gates)
    run = Run(config.run_id or _run_id(trials), "imported", config.labels)
    return build_tables(plan, spec, {name: (row,) for name, row in rows.items()}, findings, run=run)


def _run_id(trials: Sequence[SavedTrial]) -> str:
    now = datetime.now(UTC)
    seed = f"{now.isoformat()}{trials[0].id if trials else ''}"
    return f"agent-eval-{now:%Y%m%d%H%M%S}-{hashlib.sha256(seed.encode()).hexdigest()[:8]}"


def _renamed(row: Row, recorded: str, key: str) -> Row:
    """A row whose primary reward is called ``key``; its value and the other rewards stay."""
    if row.rewards is None or recorded == key or recorded not in row.rewards:
        return row
    others = {name: value for name, value in row.rewards.items() if name not in (recorded, key)}
    return replace(row, rewards={key: row.rewards[recorded], **others})


def _reward_output(tasks: Sequence[LocalTask]) -> str | None:
    """Name of the primary output by the tasks' own metrics; None where none of them scores the reward.

    Raises:
        ValueError: a task has two metrics of one type.
        InvalidSpec: the tasks do not agree.
    """
    found: set[str | None] = set()
    for task in tasks:
        types = [_type(metric) for metric in task.metrics]
        if twice := sorted({name for name in types if types.count(name) > 1}):
            raise ValueError(f"duplicate task metric types: {', '.join(twice)}")
        check_metrics([metric for metric in task.metrics if isinstance(metric, TurnMetric)])
        own = [metric.output_name for metric in task.metrics if isinstance(metric, HarborRewardMetric)]
        found.add(own[0] if own else None if task.metrics else HarborRewardMetric().output_name)
    if len(found) > 1:
        shown = ", ".join(sorted(str(name) for name in found))
        raise InvalidSpec("metrics", f"the tasks call their primary output by different names ({shown}): give all the same reward metric")
    return next(iter(found), None)


def _type(metric: Any) -> str:
    return metric.name if isinstance(metric, TurnMetric) else str(metric.type)


def _declared(tasks: Sequence[LocalTask]) -> dict[str, dict[str, tuple[OutputSpec, ...]]]:
    """task -> metric -> its outputs, without the reward."""
    return {
        task.id: {
            _type(metric): (metric.output,) if isinstance(metric, TurnMetric) else tuple(metric.outputs)
            for metric in task.metrics
            if not isinstance(metric, HarborRewardMetric)
        }
        for task in tasks
    }


def _checked_views(task: LocalTask) -> Mapping[str, View]:
    declared = {metric: [spec.name for spec in specs] for metric, specs in _declared([task])[task.id].items()}
    for metric in task.metrics or [HarborRewardMetric()]:
        if isinstance(metric, HarborRewardMetric):
            declared[REWARD_METRIC] = [metric.output_name]
    for name, view in task.views.items():
        check_view(name, view, declared)
    return dict(task.views)


def _plan(tasks: Sequence[LocalTask], trials: Sequence[SavedTrial]) -> FrozenPlan:
    place = {task.id: index for index, task in enumerate(tasks)}
    return FrozenPlan(
        namespace="local",
        job="local",
        uid="",
        created_at="",
        taskset=None,
        spec={"agent": {"name": IMPORTED}},
        tasks=tuple(_planned(task) for task in tasks),
        trials=tuple(
            PlannedTrial(trial.id, place[trial.task_id], TrialKey(trial.task_id, str(trial.row.get("agent") or IMPORTED), attempt))
            for trial, attempt in zip(trials, attempts(trials), strict=True)
        ),
    )


def _planned(task: LocalTask) -> PlannedTask:
    config = task.checked.config if isinstance(task, HarborTask) else None
    labels = task_labels({**(config.metadata if config is not None else {}), **task.metadata})
    return PlannedTask(task.id, f"local/{task.id}", 0, "", "", "", config or TaskConfig(), labels=labels)


@dataclass(frozen=True)
class _Found:
    scores: tuple[MetricScore, ...]
    groups: tuple[FailureGroup, ...]


class _Scoring:
    """Metrics over trials, all calls within one bound."""

    def __init__(self, tasks: Mapping[str, LocalTask], evidence: Evidence | None, config: AgentEvalRunConfig) -> None:
        self._tasks, self._evidence, self._config = tasks, evidence, config
        # Two bounds: trials whose trajectories are in memory, and calls. One for both would wait for itself.
        self._trials, self._calls = asyncio.Semaphore(config.parallelism), asyncio.Semaphore(config.parallelism)
        for metric in self._turn_metrics() if config.judge is not None else ():
            metric.set_llm(config.judge)  # type: ignore[arg-type]
        for task in tasks.values() if config.judge is not None else ():
            for metric in task.metrics:
                if not isinstance(metric, TurnMetric) and hasattr(metric, "set_llm"):
                    metric.set_llm(config.judge)

    def _turn_metrics(self) -> list[TurnMetric]:
        return [metric for task in self._tasks.values() for metric in task.metrics if isinstance(metric, TurnMetric)]

    async def all(self, trials: Sequence[SavedTrial], rows: Mapping[str, Row]) -> _Found:
        """Scores in the order of trials, then of each task's metrics."""
        work = [trial for trial in trials if rows[trial.id].outcome == "scored" and self._metrics(trial)]
        running = [asyncio.create_task(self._trial(trial)) for trial in work]
        try:
            done = await asyncio.gather(*running)
        except BaseException:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            raise
        turns = [result for _, results in done for result in results]
        known = list({metric.name: metric for metric in self._turn_metrics()}.values())
        return _Found(tuple(score for scores, _ in done for score in scores), failures(known, turns))

    def _metrics(self, trial: SavedTrial) -> list[Any]:
        return [metric for metric in self._tasks[trial.task_id].metrics if not isinstance(metric, HarborRewardMetric)]

    async def _trial(self, trial: SavedTrial) -> tuple[list[MetricScore], tuple[TurnResult, ...]]:
        task = self._tasks[trial.task_id]
        async with self._trials:
            document = await asyncio.to_thread(trajectory, self._evidence, trial)
            about = {"id": task.id, "intent": task.intent, "inputs": dict(task.inputs), "metadata": dict(task.metadata)}
            row = build_row(task=about, trial=trial.raw(), output=trial.output, trajectory=document)
            metrics = self._metrics(trial)
            talking = [metric for metric in metrics if isinstance(metric, TurnMetric)]
            conversation = _conversation(task, trial, document)
            scored, turns = await asyncio.gather(
                asyncio.gather(*(self._call(metric, row, trial) for metric in metrics if not isinstance(metric, TurnMetric))),
                evaluate([conversation], talking, concurrency=self._calls),
            )
        found = {score.metric: score for score in scored}
        for metric in talking:
            if document is None:
                error = MetricFailed("the trial has no trajectory")
                found[metric.name] = failed(metric.name, error, task=task.id, trial=trial.id)
            else:
                found[metric.name] = turn_score(metric, conversation, turns)
        ordered = [found[_type(metric)] for metric in metrics]
        if self._config.fail_fast and (bad := next((score for score in ordered if score.message is not None), None)) is not None:
            raise MetricStopped(f"metric {bad.metric} on trial {bad.trial}: {bad.message}")
        return ordered, turns

    async def _call(self, metric: Metric, row: MetricRow, trial: SavedTrial) -> MetricScore:
        async with self._calls:
            try:
                values = await asyncio.to_thread(metric.compute, row)
                if inspect.isawaitable(values):
                    values = await values
                return MetricScore(trial.task_id, trial.id, metric.type, checked(metric, values))
            except Exception as error:  # noqa: BLE001 somebody else's code: its failure is this score's and no other's
                return failed(metric.type, error, task=trial.task_id, trial=trial.id)


def _conversation(task: LocalTask, trial: SavedTrial, document: Mapping[str, Any] | None) -> Conversation:
    """The trial's turns, with what the task says of goal, simulated user and knowledge."""
    profile, knowledge = task.metadata.get("profile", ""), task.metadata.get("knowledge", ())
    items = knowledge if isinstance(knowledge, list | tuple) else ()
    texts = tuple(str(item.get("content", "")) if isinstance(item, Mapping) else str(item) for item in items)
    turns = turns_of(document or {})
    # A task without its folder has no instruction; Harbor's agents are told it as the first message.
    goal = task.inputs.get("instruction") or (turns[0].user_message if turns else "")
    given: dict[str, Any] = {"goal": goal} if isinstance(goal, str) and goal else {}
    return Conversation(task.id, trial.id, turns, profile=str(profile), knowledge=texts, **given)


def report(result: EvaluationResult) -> str:
    """The JSON report: scores, gates, groups of failures, and every metric's value of every turn."""
    body = {
        "run_id": result.run_id,
        "passed": not result.problems,
        "problems": list(result.problems),
        "scores": [dict(score) for score in result.summary.scores],
        "thresholds": result.summary.raw["thresholds"],
        "failure_groups": list(result.failure_groups),
        "judge": result.summary.raw.get("judge"),
        "trials": turns_by_trial(result),
    }
    return json.dumps(body, indent=2, sort_keys=True)


def turns_by_trial(result: EvaluationResult) -> list[dict[str, Any]]:
    """``{trial_id, task_id, metrics, turns: [{turn_index, metrics: {name: {value, reason} or {error}}}]}`` of each scored trial."""
    trials: dict[str, dict[str, Any]] = {}
    for score in result.scores:
        trial = trials.setdefault(
            score["trial_id"], {"trial_id": score["trial_id"], "task_id": score["task_id"], "metrics": {}, "turns": {}}
        )
        error = next((item["message"] for item in score["diagnostics"] if item["severity"] == "error"), None)
        values = {item["name"]: item["value"] for item in score["outputs"]}
        trial["metrics"][score["metric_type"]] = values if error is None else {"error": error}
        for turn in score.get("turns", ()):
            place = trial["turns"].setdefault(turn["turn_index"], {"turn_index": turn["turn_index"], "metrics": {}})
            place["metrics"][score["metric_type"]] = {name: value for name, value in turn.items() if name != "turn_index"}
    return [{**trial, "turns": [trial["turns"][index] for index in sorted(trial["turns"])]} for trial in trials.values()]
