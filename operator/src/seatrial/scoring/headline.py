"""The one sentence about a job: the mean over what was scored, its denominator, and Harbor's mean with missing rewards as 0 beside it.

Report and Prometheus read it from here, from the scores of summary.json and of a status alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

UNMEASURED = "nothing measured"


@dataclass(frozen=True, slots=True)
class Headline:
    name: str
    """Of the first score, such as ``reward.mean``."""
    value: float
    count: int
    """Trials that the value is made of."""
    missing: int
    """Trials that should have had a value and have none."""
    zero: float | None
    """The same with a missing reward as 0; None where it is not computed."""
    zero_count: int

    def text(self) -> str:
        """``reward.mean 0.830 (25 of 30); reward.mean.zero 0.692 (30, missing as 0)``."""
        text = f"{self.name} {self.value:.3f} ({self.count} of {self.count + self.missing})"
        return text if self.zero is None else f"{text}; {self.name}.zero {self.zero:.3f} ({self.zero_count}, missing as 0)"


def headline(scores: Sequence[Mapping[str, Any]]) -> Headline | None:
    """Of scores with ``name``, ``value`` (a number, or its text), ``count`` and ``missing``; None where the first was not measured.

    The first score is the primary reward under the job's first metric; scores of scripts, views and other metrics are never the headline.
    """
    first = scores[0] if scores else None
    if first is None or first.get("value") is None or first["name"].startswith(("script.", "view.")):
        return None
    zero = next((score for score in scores if score["name"] == f"{first['name']}.zero" and score.get("value") is not None), None)
    return Headline(
        first["name"],
        float(first["value"]),
        first["count"],
        first["missing"],
        None if zero is None else float(zero["value"]),
        0 if zero is None else zero["count"],
    )
