"""Built-in metrics that need no model: exact match, string and number checks, token F1, BLEU, ROUGE, tool calls, evidence.

Each is a plain class with ``type``, ``outputs`` and ``compute(row)``; a row is what a trial offers (nemo.md 21.1), so every metric can be
tested alone. Texts are templates: ``{{ name.path }}`` is replaced, and a template that is one bare expression keeps the value's type.
Nothing else of a template language is offered, so a template cannot loop, call or import.

BLEU is Papineni's with clipped counts up to 4-grams, add-one smoothing above 1-grams (Lin and Och) and the brevity penalty; ROUGE-N and -L
are F1 over lower-cased words. Definitions are ours to fix, since "BLEU" alone names many.
"""

from __future__ import annotations

import math
import operator
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, Final, Literal, NamedTuple, Protocol, get_args, get_origin, get_type_hints

from seatrial.scoring.observations import Kind

Row = Mapping[str, Any]

COMPARISONS: Final = 25_000_000
"""Of words with words: some seconds. What an agent says has no bounds of its own."""

_EXPRESSION: Final = re.compile(r"\{\{\s*([A-Za-z_][\w.]*)\s*\}\}")
_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)


class OutputSpec(NamedTuple):
    name: str
    kind: Kind
    required: bool = True


class MetricFailed(ValueError):
    """The metric has no value for this row, and says why."""


class Metric(Protocol):
    """What a metric is."""

    @property
    def type(self) -> str: ...
    @property
    def outputs(self) -> tuple[OutputSpec, ...]: ...
    def compute(self, row: Row) -> dict[str, float | bool | str]: ...


class MetricRefused(ValueError):
    """No metric can be made of a type and its settings."""


def built_in(name: str, config: Mapping[str, Any]) -> Metric:
    """The metric of this type with these settings.

    Raises:
        MetricRefused: with the setting that is at fault.
    """
    kind = BUILT_IN.get(name)
    if kind is None:
        raise MetricRefused(f"no built-in metric {name!r}; known: {', '.join(sorted(BUILT_IN))}")
    hints = {item.name: hint for item, hint in _settings(kind)}
    if unknown := sorted(set(config) - set(hints)):
        raise MetricRefused(f"{name} has no setting {unknown[0]!r}; known: {', '.join(hints)}")
    required = (item.name for item, _ in _settings(kind) if item.default is MISSING)
    if missing := [setting for setting in required if setting not in config]:
        raise MetricRefused(f"{name} needs the setting {missing[0]!r}")
    for setting, value in config.items():
        if not _fits(value, hints[setting]):
            raise MetricRefused(f"{name}: {setting} cannot be {str(value)[:60]!r}")
    metric: Metric = kind(**config)
    return metric


def _settings(kind: type) -> Iterator[tuple[Field[Any], Any]]:
    """Fields of a metric's class that its user sets, with their types."""
    hints = get_type_hints(kind)
    return ((item, hints[item.name]) for item in fields(kind) if item.name not in ("type", "outputs"))


def _fits(value: object, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, hint)


def render(template: str, row: Row) -> Any:
    """A template over a row: ``sample.output_text``, ``item.…``, or any field of the row.

    Raises:
        MetricFailed: a name that the row does not have.
    """
    whole = _EXPRESSION.fullmatch(template.strip())
    if whole is not None:
        return _look_up(whole[1], row)
    return _EXPRESSION.sub(lambda match: str(_look_up(match[1], row)), template)


def _look_up(path: str, row: Row) -> Any:
    value: Any = row
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise MetricFailed(f"{path!r} is not defined for this trial")
        value = value[part]
    return value


def _text(template: str, row: Row) -> str:
    value = render(template, row)
    return "" if value is None else str(value)


def normalise(text: str) -> str:
    """Lower case, without punctuation, articles and extra space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


@dataclass(frozen=True)
class _TextPair:
    """What the metrics that compare two texts have in common: both are templates."""

    reference: str
    candidate: str = "{{sample.output_text}}"

    def texts(self, row: Row) -> tuple[str, str]:
        return _text(self.reference, row), _text(self.candidate, row)


@dataclass(frozen=True)
class ExactMatch(_TextPair):
    """1 where both texts are the same after ``normalise``, else 0."""

    type: str = "exact-match"
    outputs: tuple[OutputSpec, ...] = (OutputSpec("exact-match", "continuous"),)

    def compute(self, row: Row) -> dict[str, float | bool | str]:
        reference, candidate = self.texts(row)
        return {"exact-match": float(normalise(reference) == normalise(candidate))}


StringOperation = Literal["equals", "==", "!=", "<>", "not equals", "contains", "not contains", "startswith", "endswith"]

_STRING_OPERATIONS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    **dict.fromkeys(("equals", "=="), operator.eq),
    **dict.fromkeys(("!=", "<>", "not equals"), operator.ne),
    "contains": lambda left, right: right in left,
    "not contains": lambda left, right: right not in left,
    "startswith": str.startswith,
    "endswith": str.endswith,
}


@dataclass(frozen=True)
class StringCheck:
    """1.0 or 0.0 for ``left operation right``."""

    left: str
    operation: StringOperation
    right: str
    type: str = "string-check"
    outputs: tuple[OutputSpec, ...] = (OutputSpec("string-check", "continuous"),)

    def __post_init__(self) -> None:
        _known(self.operation, _STRING_OPERATIONS)

    def compute(self, row: Row) -> dict[str, float | bool | str]:
        return {"string-check": float(_STRING_OPERATIONS[self.operation](_text(self.left, row), _text(self.right, row)))}


NumberOperation = Literal["equals", "==", "!=", ">", ">=", "<", "<=", "absolute difference"]

_NUMBER_OPERATIONS: Final[Mapping[str, Callable[[float, float, float], bool]]] = {
    **dict.fromkeys(("equals", "=="), lambda left, right, _: left == right),
    "!=": lambda left, right, _: left != right,
    ">": lambda left, right, _: left > right,
    ">=": lambda left, right, _: left >= right,
    "<": lambda left, right, _: left < right,
    "<=": lambda left, right, _: left <= right,
    "absolute difference": lambda left, right, epsilon: abs(left - right) <= epsilon,
}


@dataclass(frozen=True)
class NumberCheck:
    """1.0 or 0.0 for ``left operation right``; NaN where one side is no number."""

    left: str
    operation: NumberOperation
    right: str
    epsilon: float = 0.0
    """For ``absolute difference``: the largest that passes."""
    type: str = "number-check"
    outputs: tuple[OutputSpec, ...] = (OutputSpec("number-check", "continuous"),)

    def __post_init__(self) -> None:
        _known(self.operation, _NUMBER_OPERATIONS)

    def compute(self, row: Row) -> dict[str, float | bool | str]:
        left, right = _number(render(self.left, row)), _number(render(self.right, row))
        if math.isnan(left) or math.isnan(right):
            return {"number-check": math.nan}
        return {"number-check": float(_NUMBER_OPERATIONS[self.operation](left, right, self.epsilon))}


def _known(operation: str, table: Mapping[str, object]) -> None:
    """Refuse an operation that there is not, before any trial is scored."""
    if operation not in table:
        raise ValueError(f"no operation {operation!r}; known: {', '.join(table)}")


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


@dataclass(frozen=True)
class TokenF1(_TextPair):
    """F1 of the words of both texts after ``normalise``, each word as often as it occurs."""

    type: str = "f1"
    outputs: tuple[OutputSpec, ...] = (OutputSpec("f1", "continuous"),)

    def compute(self, row: Row) -> dict[str, float | bool | str]:
        reference, candidate = self.texts(row)
        return {"f1": _f1(normalise(reference).split(), normalise(candidate).split())}


@dataclass(frozen=True)
class Bleu(_TextPair):
    """Sentence BLEU in 0 … 1 against one reference."""

    type: str = "bleu"
    outputs: tuple[OutputSpec, ...] = (OutputSpec("bleu", "continuous"),)

    def compute(self, row: Row) -> dict[str, float | bool | str]:
        reference, candidate = self.texts(row)
        return {"bleu": bleu(reference.split(), candidate.split())}


@dataclass(frozen=True)
class Rouge(_TextPair):
    """ROUGE-1, -2, -3 and -L as F1 over lower-cased words."""

    type: str = "rouge"
    outputs: tuple[OutputSpec, ...] = tuple(OutputSpec(f"rouge_{name}", "continuous") for name in ("1", "2", "3", "L"))

    def compute(self, row: Row) -> dict[str, float | bool | str]:
        reference, candidate = map(_words, self.texts(row))
        if len(reference) * len(candidate) > COMPARISONS:
            raise MetricFailed(f"texts of {len(reference)} and {len(candidate)} words are too long to compare")
        scores: dict[str, float | bool | str] = {f"rouge_{n}": _f1(ngrams(reference, n), ngrams(candidate, n)) for n in (1, 2, 3)}
        common = longest_common(reference, candidate)
        scores["rouge_L"] = _harmonic(common, len(reference), len(candidate))
        return scores


@dataclass(frozen=True)
class ToolCallCount:
    """How often a tool was called; without a name, all calls."""

    tool: str | None = None
    type: str = "tool_call_count"
    outputs: tuple[OutputSpec, ...] = (OutputSpec("count", "discrete"),)

    def compute(self, row: Row) -> dict[str, float | bool | str]:
        return {"count": sum(self.tool is None or call.get("name") == self.tool for call in _calls(row))}


@dataclass(frozen=True)
class ToolArgumentMatchesInput:
    """True where some call of the tool has the argument with the expected value."""

    tool: str
    argument: str
    expected: str
    """A template."""
    type: str = "tool_argument_matches_input"
    outputs: tuple[OutputSpec, ...] = (OutputSpec("matches", "boolean"),)

    def compute(self, row: Row) -> dict[str, float | bool | str]:
        wanted = render(self.expected, row)
        found = (call.get("arguments") for call in _calls(row) if call.get("name") == self.tool)
        return {"matches": any(isinstance(item, Mapping) and item.get(self.argument) == wanted for item in found)}


@dataclass(frozen=True)
class EvidencePresence:
    """True where the trial left the named evidence."""

    evidence: str
    type: str = "evidence_presence"
    outputs: tuple[OutputSpec, ...] = (OutputSpec("present", "boolean"),)

    def compute(self, row: Row) -> dict[str, float | bool | str]:
        found = row.get("sample", {}).get("evidence", {})
        return {"present": isinstance(found, Mapping) and self.evidence in found}


def _calls(row: Row) -> list[Mapping[str, Any]]:
    """Tool calls of the trial's trajectory, in order.

    Raises:
        MetricFailed: the trial has no trajectory.
    """
    trajectory = row.get("sample", {}).get("trajectory")
    if not isinstance(trajectory, Mapping) or not isinstance(trajectory.get("steps"), Sequence):
        raise MetricFailed("the trial has no trajectory")
    calls: list[Mapping[str, Any]] = []
    for step in trajectory["steps"]:
        for call in (step.get("tool_calls") or ()) if isinstance(step, Mapping) else ():
            if isinstance(call, Mapping):
                calls.append({"name": call.get("function_name", call.get("name")), "arguments": call.get("arguments")})
    return calls


def bleu(reference: Sequence[str], candidate: Sequence[str], *, order: int = 4) -> float:
    """Clipped n-gram precisions up to ``order``, their geometric mean, times the brevity penalty; 0 without a common word."""
    if not candidate or not reference:
        return 0.0
    logs = []
    for n in range(1, order + 1):
        ours, theirs = Counter(ngrams(candidate, n)), Counter(ngrams(reference, n))
        matched, total = sum((ours & theirs).values()), max(0, len(candidate) - n + 1)
        if n == 1 and matched == 0:
            return 0.0
        extra = 0 if n == 1 else 1
        logs.append(math.log((matched + extra) / (total + extra)))
    penalty = 1.0 if len(candidate) >= len(reference) else math.exp(1 - len(reference) / len(candidate))
    return penalty * math.exp(math.fsum(logs) / order)


def ngrams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """All runs of ``n`` words."""
    return [tuple(words[start : start + n]) for start in range(len(words) - n + 1)]


def longest_common(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for left in a:
        before = 0
        for index, right in enumerate(b, 1):
            before, row[index] = row[index], before + 1 if left == right else max(row[index], row[index - 1])
    return row[-1]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _f1(reference: Sequence[Any], candidate: Sequence[Any]) -> float:
    if not reference and not candidate:
        return 1.0
    return _harmonic(sum((Counter(reference) & Counter(candidate)).values()), len(reference), len(candidate))


def _harmonic(common: int, reference: int, candidate: int) -> float:
    return 0.0 if not common else 2 * common / (reference + candidate)


BUILT_IN: Final[Mapping[str, type[Any]]] = {
    "exact-match": ExactMatch,
    "string-check": StringCheck,
    "number-check": NumberCheck,
    "f1": TokenF1,
    "bleu": Bleu,
    "rouge": Rouge,
    "tool_call_count": ToolCallCount,
    "tool_argument_matches_input": ToolArgumentMatchesInput,
    "evidence_presence": EvidencePresence,
}
