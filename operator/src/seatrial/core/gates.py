"""Gates on scores: which names a job can produce at all. A gate on a misspelt name would fail every job, after all its trials have run."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

from seatrial.api.evaljob import EvalJobSpec
from seatrial.core.scores import MetricRule

_AGGREGATE: Final = re.compile(r"(?P<key>.+)\.(?P<kind>mean|sum|min|max)(?P<zero>\.zero)?", re.DOTALL)
_PASS: Final = re.compile(r"(?P<key>.+)\.pass[@^](?P<k>[1-9]\d*)", re.DOTALL)


def key_of_score(name: str) -> str | None:
    """The reward key of a score's name; None for a name of another form."""
    match = _PASS.fullmatch(name) or _AGGREGATE.fullmatch(name)
    return None if match is None else match["key"]


def unknown_score(
    name: str, spec: EvalJobSpec, *, rules: Sequence[MetricRule], has_scripts: bool, measured: Collection[str] = ()
) -> str | None:
    """Why no trial of the job can lead to the score ``name``, with the next step; None where one may.

    Args:
        rules: the aggregates of the job, at least one.
        measured: names under which the tasks' metrics and views are averaged, such as ``f1.f1`` and ``view.quality``.
        has_scripts: a metric.py runs, named by the job or published with its taskset.

    Reward keys are known only when verifiers have reported them, so any key is accepted.
    """
    if name.startswith("view.") and name.removesuffix(".mean") not in measured:
        known = ", ".join(f"{item}.mean" for item in measured if item.startswith("view."))
        return f"{name}: no task has that view (known: {known or 'none'})"
    if name.removesuffix(".mean") in measured and name.endswith(".mean"):
        return None
    if name.startswith("script."):
        return None if has_scripts else f"{name}: the job has no metric of type script, and its taskset no metric.py"
    if (match := _PASS.fullmatch(name)) is not None:
        k = int(match["k"])
        return None if k <= spec.attempts else f"{name}: needs {k} attempts, spec.attempts is {spec.attempts}"
    match = _AGGREGATE.fullmatch(name)
    if match is None:
        return f"{name}: names are KEY.mean, KEY.sum, KEY.min, KEY.max, the same with .zero, and KEY.pass@N, for example reward.mean"
    kinds = {rule.type: rule.zero_missing for rule in rules}
    if match["kind"] not in kinds:
        return f"{name}: add {{type: {match['kind']}}} to spec.metrics"
    if match["zero"] and not kinds[match["kind"]] and match["kind"] != rules[0].type:
        return f"{name}: set missing: zero on the metric {match['kind']} in spec.metrics"
    return None
