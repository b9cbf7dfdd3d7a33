"""Metrics and views of a task as its publication writes them. Source: nemo.md 7 and 21.5.

The reward metric is implied: the one that discovery attached has to be there, once and untouched, because a run names its output by the
reward key. Built-in metrics are written with their settings; a class of one's own needs a packager.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from seatrial.errors import InvalidSpec
from seatrial.scoring.builtin import BUILT_IN
from seatrial.scoring.views import View
from seatrial.sdk.metric_bundle import MetricBundle, Metrics
from seatrial.taskpkg.collection import HarborRewardMetric, HarborTask

Packager = Callable[[Any], MetricBundle]


class TaskMetricsRefused(InvalidSpec):
    """The task's list of metrics cannot be published; ``reason`` says which rule it breaks."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__("metrics", f"{reason}: {message}")
        self.reason = reason


def metric_entries(task: HarborTask, *, packager: Packager | None, bundles: Callable[[], Metrics]) -> list[dict[str, Any]]:
    """``spec.metrics`` of a task.

    Args:
        packager: makes a bundle of a metric of one's own; it is stored.

    Raises:
        TaskMetricsRefused: RewardMetricMissing, RewardMetricDuplicate, RewardMetricCustomized, PackagerRequired.
    """
    own = [metric for metric in task.metrics if isinstance(metric, HarborRewardMetric)]
    if not own:
        raise TaskMetricsRefused("RewardMetricMissing", f"task {task.id} has no HarborRewardMetric(): append to its metrics")
    if len(own) > 1:
        raise TaskMetricsRefused("RewardMetricDuplicate", f"task {task.id} has {len(own)} reward metrics: leave one")
    if own[0] != HarborRewardMetric():
        message = f"the reward metric of task {task.id} has settings that no run would use: name the output by the reward key"
        raise TaskMetricsRefused("RewardMetricCustomized", message)
    return [_entry(task, metric, packager, bundles) for metric in task.metrics if not isinstance(metric, HarborRewardMetric)]


def view_entries(views: Mapping[str, Any]) -> dict[str, Any]:
    """``spec.views`` of a task."""
    return {name: _view(view) for name, view in views.items()}


def _entry(task: HarborTask, metric: Any, packager: Packager | None, bundles: Callable[[], Metrics]) -> dict[str, Any]:
    name = str(getattr(metric, "type", ""))
    kind = BUILT_IN.get(name)
    if kind is not None and type(metric) is kind:
        items = [item for item in fields(kind) if item.name not in ("type", "outputs")]
        config = {item.name: value for item in items if (value := getattr(metric, item.name)) != item.default}
        return {"type": name, **({"config": config} if config else {})}
    if packager is None:
        message = f"{type(metric).__name__} of task {task.id} is a class of one's own: give metric_bundle_packager, for example pack_metric"
        raise TaskMetricsRefused("PackagerRequired", message)
    bundle = packager(metric)
    return {"ref": f"{bundle.metric_type}#{bundles().create(bundle)}"}


def _view(view: Any) -> Any:
    if not isinstance(view, View):
        return view
    signals = [{name: value for name, value in signal._asdict().items() if value is not None} for signal in view.signals]
    return {"reducer": view.reducer, "signals": signals}
