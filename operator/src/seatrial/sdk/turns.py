"""Metrics over the turns of a conversation: a number or a label for each turn, with or without a judge model.

A metric is plain Python and testable alone: ``await Metric().score(ScoreInput(...))``. A trial's turns come from its ATIF trajectory.
Source: nemo.md 32.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeVar

from pydantic import BaseModel

from seatrial.scoring.builtin import OutputSpec
from seatrial.scoring.evaluate import MetricScore, observe
from seatrial.scoring.groups import FailureGroup, Severity, group_labels
from seatrial.scoring.observations import Output, Value

Schema = TypeVar("Schema", bound=BaseModel)

DEFAULT_GOAL: Final = "Answer the user's query accurately."
NO_FAILURE: Final = "no failure"


class ToolCall(NamedTuple):
    name: str
    arguments: Any = None
    result: Any = None


class Turn(NamedTuple):
    """What a user said and what the agent answered."""

    user_message: str
    agent_message: str
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class ScoreInput:
    """What every metric gets for one turn."""

    user_message: str
    agent_message: str
    goal: str = DEFAULT_GOAL
    profile: str = ""
    knowledge: tuple[str, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    history: tuple[Turn, ...] = ()
    """Earlier turns only."""
    turn_index: int = 0
    """From 0."""


class QuantResult(NamedTuple):
    value: float
    reason: str


class QualResult(NamedTuple):
    value: str
    """A label."""
    reason: str


class JudgeModel(Protocol):
    """A model that answers with an object of a schema."""

    async def generate_object(self, schema: type[Schema], messages: Sequence[Mapping[str, str]]) -> Schema: ...


class JudgeMissing(RuntimeError):
    """A metric asked for its judge before one was set."""


class TurnMetric:
    """Base of both kinds: a name, and the judge once it is set."""

    name: ClassVar[str]
    severity: ClassVar[Severity] = "high"
    """Of a failing label."""
    _llm: JudgeModel | None = None

    @property
    def llm(self) -> JudgeModel:
        """The judge.

        Raises:
            JudgeMissing: none was set.
        """
        if self._llm is None:
            raise JudgeMissing(f"LLM provider not set on metric {self.name!r}: call set_llm() first, or configure a judge")
        return self._llm

    def set_llm(self, provider: JudgeModel) -> None:
        """Called once before the first turn is evaluated."""
        self._llm = provider

    def applies(self, given: ScoreInput, *, is_last: bool) -> bool:
        """Whether this turn is one to judge; a turn that is not has no value and no error."""
        return True

    @property
    def output(self) -> OutputSpec:
        """What a trial's turns add up to."""
        raise NotImplementedError


class QuantitativeMetric(TurnMetric):
    """A number for each turn; a trial has their mean."""

    @property
    def output(self) -> OutputSpec:
        return OutputSpec("value", "continuous", required=False)

    async def score(self, given: ScoreInput) -> QuantResult:
        raise NotImplementedError


class QualitativeMetric(TurnMetric):
    """A label for each turn; a trial has the number of failing ones."""

    failure_labels: ClassVar[frozenset[str] | None] = None
    """Labels that are failures; None: every label but ``no failure``."""

    @property
    def output(self) -> OutputSpec:
        return OutputSpec("failures", "discrete", required=False)

    async def evaluate(self, given: ScoreInput) -> QualResult:
        raise NotImplementedError

    def is_failure(self, label: str) -> bool:
        return label != NO_FAILURE if self.failure_labels is None else label in self.failure_labels


@dataclass(frozen=True)
class TurnResult:
    """Results of one turn: metric name -> result; a metric that failed is in ``errors`` instead."""

    trial: str
    turn_index: int
    results: Mapping[str, QuantResult | QualResult]
    errors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Conversation:
    """The turns of one trial."""

    task: str
    trial: str
    turns: tuple[Turn, ...]
    goal: str = DEFAULT_GOAL
    profile: str = ""
    knowledge: tuple[str, ...] = ()


async def evaluate(
    conversations: Sequence[Conversation],
    metrics: Sequence[TurnMetric],
    *,
    judge: JudgeModel | None = None,
    concurrency: int | asyncio.Semaphore = 4,
) -> tuple[TurnResult, ...]:
    """Every metric on every turn, at most ``concurrency`` at a time; a metric that raises has no value for that turn, and the rest goes on.

    Args:
        concurrency: a semaphore bounds these calls together with others.

    Raises:
        TypeError: a metric is neither quantitative nor qualitative.
        ValueError: two metrics have one name.
    """
    check_metrics(metrics)
    if judge is not None:
        for metric in metrics:
            metric.set_llm(judge)
    slots = concurrency if isinstance(concurrency, asyncio.Semaphore) else asyncio.Semaphore(concurrency)

    async def one(metric: TurnMetric, given: ScoreInput) -> QuantResult | QualResult | str:
        async with slots:
            try:
                return await _call(metric, given)
            except Exception as error:  # noqa: BLE001 somebody else's code: whatever it raises concerns this turn and metric alone
                return f"{type(error).__name__}: {error}"[:500]

    async def turn(conversation: Conversation, index: int) -> TurnResult:
        given, is_last = input_of(conversation, index), index == len(conversation.turns) - 1
        asked = [metric for metric in metrics if metric.applies(given, is_last=is_last)]
        answers = await asyncio.gather(*(one(metric, given) for metric in asked))
        named = {metric.name: answer for metric, answer in zip(asked, answers, strict=True)}
        return TurnResult(
            conversation.trial,
            index,
            {name: answer for name, answer in named.items() if not isinstance(answer, str)},
            {name: answer for name, answer in named.items() if isinstance(answer, str)},
        )

    return tuple(await asyncio.gather(*(turn(item, index) for item in conversations for index in range(len(item.turns)))))


def check_metrics(metrics: Sequence[TurnMetric]) -> None:
    """Refuse what cannot be evaluated.

    Raises:
        TypeError: a metric is neither quantitative nor qualitative.
        ValueError: two metrics have one name.
    """
    for metric in metrics:
        if not isinstance(metric, QuantitativeMetric | QualitativeMetric):
            raise TypeError(f"{type(metric).__name__} extends neither QuantitativeMetric nor QualitativeMetric")
    if len({metric.name for metric in metrics}) != len(metrics):
        raise ValueError(f"metric names must be unique: {', '.join(sorted(metric.name for metric in metrics))}")


async def _call(metric: TurnMetric, given: ScoreInput) -> QuantResult | QualResult:
    if isinstance(metric, QuantitativeMetric):
        result = await _awaited(metric.score(given))
        if isinstance(result.value, bool) or not isinstance(result.value, int | float) or not math.isfinite(result.value):
            raise ValueError(f"value {result.value!r} is no finite number")
        return QuantResult(float(result.value), str(result.reason))
    assert isinstance(metric, QualitativeMetric)
    label = await _awaited(metric.evaluate(given))
    return QualResult(str(label.value), str(label.reason))


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def input_of(conversation: Conversation, index: int) -> ScoreInput:
    """What a metric sees of one turn: that turn, and the history before it."""
    turn = conversation.turns[index]
    return ScoreInput(
        user_message=turn.user_message,
        agent_message=turn.agent_message,
        goal=conversation.goal,
        profile=conversation.profile,
        knowledge=conversation.knowledge,
        tool_calls=turn.tool_calls,
        history=conversation.turns[:index],
        turn_index=index,
    )


def turn_score(metric: TurnMetric, conversation: Conversation, results: Sequence[TurnResult]) -> MetricScore:
    """What a metric made of a trial: ``value`` is the mean over its turns, ``failures`` a count; without any value it failed where a turn
    did, and otherwise has none. Every turn is in ``turns``."""
    turns: list[dict[str, Any]] = []
    for result in results:
        if (answer := result.results.get(metric.name)) is not None:
            turns.append({"turn_index": result.turn_index, "value": answer.value, "reason": answer.reason})
        elif (error := result.errors.get(metric.name)) is not None:
            turns.append({"turn_index": result.turn_index, "error": error})
    values = [turn["value"] for turn in turns if "value" in turn]
    errors = [turn["error"] for turn in turns if "error" in turn]
    message = f"{len(errors)} of {len(turns)} turns have no value: {errors[0]}" if errors else None
    details = {"failed_turns": len(errors)} if errors else {}
    found: dict[str, Value] | None = None if errors else {}
    if values and isinstance(metric, QualitativeMetric):
        found = {metric.output.name: sum(metric.is_failure(str(label)) for label in values)}
    elif values:
        found = {metric.output.name: math.fsum(values) / len(values)}
    return MetricScore(conversation.task, conversation.trial, metric.name, found, message, details, tuple(turns))


def turn_outputs(conversations: Sequence[Conversation], metrics: Sequence[TurnMetric], results: Sequence[TurnResult]) -> tuple[Output, ...]:
    """One output per metric over all conversations, for scores and gates."""
    by_trial: dict[str, list[TurnResult]] = {}
    for result in results:
        by_trial.setdefault(result.trial, []).append(result)
    outputs = []
    for metric in metrics:
        scores = [turn_score(metric, conversation, by_trial.get(conversation.trial, [])) for conversation in conversations]
        observations = tuple(observe(score, metric.output) for score in scores)
        outputs.append(Output(metric.name, metric.output.name, metric.output.kind, observations))
    return tuple(outputs)


def failures(metrics: Sequence[TurnMetric], results: Sequence[TurnResult]) -> tuple[FailureGroup, ...]:
    """Failing labels grouped by metric and label."""
    labels = {metric.name: metric for metric in metrics if isinstance(metric, QualitativeMetric)}
    return group_labels(
        (name, str(answer.value), result.trial, labels[name].severity)
        for result in results
        for name, answer in result.results.items()
        if name in labels and labels[name].is_failure(str(answer.value))
    )


def turns_of(trajectory: Mapping[str, Any]) -> tuple[Turn, ...]:
    """The turns of an ATIF trajectory: a user's message and the agent's steps until the next one; what has another shape is left out."""
    turns: list[Turn] = []
    user, texts, calls = "", [], []  # type: ignore[var-annotated]
    steps = trajectory.get("steps")

    def close() -> None:
        if user or texts or calls:
            turns.append(Turn(user, "\n".join(texts), tuple(calls)))

    for step in steps if isinstance(steps, list) else ():
        if not isinstance(step, Mapping):
            continue
        source, message = step.get("source"), step.get("message")
        text = message if isinstance(message, str) else ""
        if source == "user":
            close()
            user, texts, calls = text, [], []
        elif source == "agent":
            texts += [text] if text else []
            calls += _tool_calls(step)
    close()
    return tuple(turns)


def _tool_calls(step: Mapping[str, Any]) -> list[ToolCall]:
    observation = step.get("observation")
    answers = observation.get("results") if isinstance(observation, Mapping) else None
    results = {
        _text(item.get("source_call_id")): item.get("content")
        for item in (answers if isinstance(answers, list) else ())
        if isinstance(item, Mapping)
    }
    found = step.get("tool_calls")
    return [
        ToolCall(str(call.get("function_name") or ""), call.get("arguments"), results.get(_text(call.get("tool_call_id"))))
        for call in (found if isinstance(found, list) else ())
        if isinstance(call, Mapping)
    ]


def _text(value: object) -> str | None:
    """An agent may write anything in the place of an identifier, also what no mapping can have as a key."""
    return value if isinstance(value, str) else None
