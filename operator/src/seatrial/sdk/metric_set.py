"""A file that lists metrics, judge, views and gates: what ``seatrial rescore --metrics FILE`` scores with.

metrics:
- {type: exact-match, config: {reference: Done}}
- {type: helpfulness}
- {class: "tone:Tone", source: ./tone.py}
judge: {endpoint: "https://judge.example/v1", model: some-model, keyVariable: JUDGE_API_KEY}
thresholds: {helpfulness: 4.0}
failOnErrorSeverity: critical
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from seatrial.core.saved import SavedTrial
from seatrial.errors import InvalidSpec
from seatrial.scoring.builtin import BUILT_IN, built_in
from seatrial.scoring.groups import Severity
from seatrial.scoring.views import Signal, View
from seatrial.sdk.agentest import AGENTEST
from seatrial.sdk.judge import ChatJudge, JudgeSettings
from seatrial.sdk.llm_judge import LLMJudge, RangeScore, RubricScore
from seatrial.sdk.local import AgentEvalRunConfig, AgentEvaluator, EvaluationResult
from seatrial.sdk.metric_bundle import decode_bundle, load_metric, pack_metric
from seatrial.sdk.saved_trials import Evidence
from seatrial.taskpkg.collection import HarborRewardMetric, PlainTask

FILE_BYTES: Final = 1024 * 1024
REWARD: Final = "harbor_reward"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True)


class MetricEntry(_Part):
    """One metric: a built-in by type, or a class of one's own from source or from a bundle."""

    type: str | None = None
    config: dict[str, Any] = {}
    class_path: str | None = Field(default=None, alias="class")
    source: str | None = None
    """A ``.py`` file or a folder, relative to the list."""
    bundle: str | None = None
    """A file that ``MetricBundle.encode`` wrote."""

    @model_validator(mode="after")
    def _one(self) -> MetricEntry:
        if [self.type, self.class_path, self.bundle].count(None) != 2:
            raise ValueError("give exactly one of type, class and bundle")
        if (self.class_path is None) != (self.source is None):
            raise ValueError("class and source go together")
        return self


class JudgeEntry(_Part):
    """Where the judge is, as ``JudgeSettings``."""

    endpoint: str = Field(pattern=r"^https?://[^\s@]+$")
    model: str = Field(min_length=1)
    key_variable: str = "OPENAI_API_KEY"
    timeout_seconds: float = Field(default=30.0, ge=1, le=300)
    attempts: int = Field(default=3, ge=1, le=10)
    pause_seconds: float = Field(default=1.0, ge=0, le=60)
    prompt_price: float | None = Field(default=None, ge=0)
    completion_price: float | None = Field(default=None, ge=0)
    temperature: float | None = Field(default=0.0, ge=0, le=2)


class SignalEntry(_Part):
    metric: str
    output: str
    weight: float | None = None


class ViewEntry(_Part):
    reducer: Literal["single", "all", "any", "mean", "weighted_mean"]
    signals: list[SignalEntry] = Field(min_length=1)


class MetricList(_Part):
    """The file."""

    metrics: list[MetricEntry] = Field(min_length=1)
    rewards: bool = True
    """Whether the verifier's rewards are scored, too, before the others."""
    judge: JudgeEntry | None = None
    concurrency: int = Field(default=4, ge=1, le=100)
    views: dict[str, ViewEntry] = {}
    thresholds: dict[str, float] = {}
    fail_on_error_severity: Severity | None = None
    judge_groups: bool = False

    @model_validator(mode="after")
    def _judged(self) -> MetricList:
        if self.judge_groups and self.judge is None:
            raise ValueError("judgeGroups needs a judge")
        return self


@dataclass(frozen=True)
class MetricSet:
    """What to score with."""

    metrics: tuple[Any, ...]
    views: Mapping[str, View]
    config: AgentEvalRunConfig

    def score(
        self,
        trials: Sequence[SavedTrial],
        tasks: Sequence[PlainTask],
        evidence: Evidence | None = None,
        *,
        run_id: str | None = None,
        thresholds: Mapping[str, float] | None = None,
    ) -> EvaluationResult:
        """Score saved trials with this set; ``thresholds`` come beside those of the set.

        Raises:
            SavedTrialsRefused, InvalidView: as ``AgentEvaluator.run``.
        """
        config = replace(self.config, run_id=run_id, evidence=evidence, thresholds={**self.config.thresholds, **(thresholds or {})})
        scored = [replace(task, metrics=list(self.metrics), views=dict(self.views)) for task in tasks]
        return AgentEvaluator().run_sync(scored, trials=trials, config=config)


def load_metric_set(path: str | Path) -> MetricSet:
    """The metrics of a file. Classes of one's own are imported: their code runs here.

    Raises:
        InvalidSpec: with the field that is at fault.
        BundleRefused: a class of one's own that is no metric.
    """
    file = Path(path)
    try:
        if file.stat().st_size > FILE_BYTES:
            raise InvalidSpec("--metrics", f"{file} has more than {FILE_BYTES} bytes")
        listed = MetricList.model_validate(yaml.safe_load(file.read_text("utf-8")))
    except OSError as error:
        raise InvalidSpec("--metrics", f"{file} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidSpec("--metrics", f"{file} is no YAML: {error}") from error
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidSpec("--metrics", f"{file}: {place}: {first['msg']}") from None
    metrics = [_metric(entry, file.parent, index) for index, entry in enumerate(listed.metrics)]
    views = {
        name: View(entry.reducer, tuple(Signal(signal.metric, signal.output, signal.weight) for signal in entry.signals))
        for name, entry in listed.views.items()
    }
    config = AgentEvalRunConfig(
        parallelism=listed.concurrency,
        judge=ChatJudge(JudgeSettings(**listed.judge.model_dump())) if listed.judge is not None else None,
        judge_groups=listed.judge_groups,
        thresholds=listed.thresholds,
        fail_on_error_severity=listed.fail_on_error_severity,
    )
    return MetricSet((*([HarborRewardMetric()] if listed.rewards else []), *metrics), views, config)


def _metric(entry: MetricEntry, folder: Path, index: int) -> Any:
    where = f"metrics.{index}"
    if entry.bundle is not None:
        return load_metric(decode_bundle((folder / entry.bundle).read_bytes()))
    if entry.class_path is not None:
        return load_metric(pack_metric(folder / str(entry.source), entry.class_path, entry.config))
    assert entry.type is not None
    if entry.type == REWARD:
        raise InvalidSpec(where, f"{REWARD} is there by itself; rewards: false leaves it out")
    try:
        if entry.type in BUILT_IN:
            return built_in(entry.type, entry.config)
        if (make := _JUDGED.get(entry.type)) is not None:
            return make(**entry.config)
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidSpec(where, f"{entry.type}: {error}") from None
    raise InvalidSpec(where, f"no metric {entry.type!r}; known: {', '.join(sorted([*BUILT_IN, *_JUDGED]))}")


def _llm_judge(*, prompt: str, scores: list[dict[str, Any]], ignore_request_failures: bool = False) -> LLMJudge:
    return LLMJudge(prompt, [_score(score) for score in scores], ignore_request_failures)


def _score(body: Mapping[str, Any]) -> RangeScore | RubricScore:
    """``{name, description?, minimum?, maximum?}`` or ``{name, description?, rubric: {level: {value, description}}}``."""
    if "rubric" in body:
        rubric = {level: (float(item["value"]), str(item.get("description", ""))) for level, item in body["rubric"].items()}
        return RubricScore(**{**body, "rubric": rubric})
    return RangeScore(**body)


_JUDGED: Final[Mapping[str, Callable[..., Any]]] = {**AGENTEST, "llm-judge": _llm_judge}
