"""Gates on scores: which names a job can produce at all. A gate on a misspelt name would fail every job, after all its trials have run."""

from __future__ import annotations

import re
from typing import Final

from seatrial.api.evaljob import EvalJobSpec

_AGGREGATE: Final = re.compile(r"(?P<key>.+)\.(?P<kind>mean|sum|min|max)(?P<zero>\.zero)?", re.DOTALL)
_PASS: Final = re.compile(r"(?P<key>.+)\.pass[@^](?P<k>[1-9]\d*)", re.DOTALL)


def unknown_score(name: str, spec: EvalJobSpec) -> str | None:
    """Why no trial of the job can lead to the score ``name``, with the next step; None where one may.

    Reward keys are known only when verifiers have reported them, so any key is accepted.
    """
    scripts = any(metric.type == "script" for metric in spec.metrics)
    if name.startswith("script."):
        return None if scripts else f"{name}: the job has no metric of type script"
    if (match := _PASS.fullmatch(name)) is not None:
        k = int(match["k"])
        return None if k <= spec.attempts else f"{name}: needs {k} attempts, spec.attempts is {spec.attempts}"
    match = _AGGREGATE.fullmatch(name)
    if match is None:
        return f"{name}: names are KEY.mean, KEY.sum, KEY.min, KEY.max, the same with .zero, and KEY.pass@N, for example reward.mean"
    metrics = [metric for metric in spec.metrics if metric.type != "script"]
    kinds = {metric.type: metric.missing for metric in metrics} or {"mean": "skip"}
    if match["kind"] not in kinds:
        return f"{name}: add {{type: {match['kind']}}} to spec.metrics"
    first = metrics[0].type if metrics else "mean"
    if match["zero"] and kinds[match["kind"]] != "zero" and match["kind"] != first:
        return f"{name}: set missing: zero on the metric {match['kind']} in spec.metrics"
    return None
