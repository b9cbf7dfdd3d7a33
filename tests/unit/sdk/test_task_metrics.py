"""A discovered task is published with its metrics and views; a broken list of metrics is refused before anything is stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seatrial import Evaluator, discover_harbor_tasks
from seatrial.effects.store import Store, StoreSettings
from seatrial.scoring.builtin import ExactMatch, NumberCheck, OutputSpec
from seatrial.scoring.views import Signal, View
from seatrial.sdk import HarborRewardMetric
from seatrial.sdk.metric_bundle import MetricBundle, Metrics, pack_metric
from seatrial.sdk.task_metrics import TaskMetricsRefused
from seatrial.taskpkg.collection import HarborTask

MakeTask = Callable[..., Path]


@pytest.fixture
def evaluator(kubeconfig: Path, store_settings: StoreSettings) -> Evaluator:
    return Evaluator(kubeconfig=str(kubeconfig), store=store_settings)


@pytest.fixture
def one(make_task: MakeTask) -> HarborTask:
    return discover_harbor_tasks(make_task("one"))[0]


class Mine:
    type = "mine"
    outputs = (OutputSpec("x", "continuous"),)

    def compute(self, row: Any) -> dict[str, float]:
        return {"x": 1.0}


@pytest.mark.conforms("N-79")
def test_a_task_as_it_was_discovered_is_scored_by_its_rewards_alone(evaluator: Evaluator, one: HarborTask, kube: Any) -> None:
    assert one.metrics == [HarborRewardMetric()]
    evaluator.tasks.create("one", task=one)
    assert {"metrics", "views"} & set(kube.get("tasks", "one")["spec"]) == set()


@pytest.mark.conforms("N-82")
def test_built_in_metrics_and_views_are_published_without_a_packager(evaluator: Evaluator, one: HarborTask, kube: Any) -> None:
    one.metrics.append(ExactMatch(reference="Done", candidate="{{sample.output_text}}"))
    one.metrics.append(NumberCheck("{{inputs.n}}", ">=", "3", epsilon=0.5))
    one.views["quality"] = View("weighted_mean", (Signal("harbor_reward", "reward", 2.0), Signal("exact-match", "exact-match")))
    evaluator.tasks.create("one", task=one)
    spec = kube.get("tasks", "one")["spec"]
    assert spec["metrics"] == [
        {"type": "exact-match", "config": {"reference": "Done"}},
        {"type": "number-check", "config": {"left": "{{inputs.n}}", "operation": ">=", "right": "3", "epsilon": 0.5}},
    ]
    assert spec["views"] == {
        "quality": {
            "reducer": "weighted_mean",
            "signals": [
                {"metric": "harbor_reward", "output": "reward", "weight": 2.0},
                {"metric": "exact-match", "output": "exact-match"},
            ],
        }
    }


@pytest.mark.conforms("N-80", "N-82")
@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(([], "RewardMetricMissing"), id="missing"),
        pytest.param(([ExactMatch("x")], "RewardMetricMissing"), id="replaced"),
        pytest.param(([HarborRewardMetric(), HarborRewardMetric()], "RewardMetricDuplicate"), id="twice"),
        pytest.param(([HarborRewardMetric(output_name="quality")], "RewardMetricCustomized"), id="output name"),
        pytest.param(([HarborRewardMetric(description="ours")], "RewardMetricCustomized"), id="description"),
        pytest.param(([HarborRewardMetric(labels=("x",))], "RewardMetricCustomized"), id="labels"),
        pytest.param(([HarborRewardMetric(), Mine()], "PackagerRequired"), id="own class without packager"),
    ],
)
def test_a_broken_list_of_metrics_is_refused_and_nothing_is_stored(
    evaluator: Evaluator, one: HarborTask, kube: Any, store: Store, broken: tuple[list[Any], str]
) -> None:
    one.metrics[:], reason = broken
    with pytest.raises(TaskMetricsRefused) as refused:
        evaluator.tasks.create("one", task=one)
    assert refused.value.reason == reason
    assert (kube.writes(), list(store.list(""))) == ([], [])


@pytest.mark.conforms("N-82")
def test_a_class_of_ones_own_is_stored_as_a_bundle_by_its_packager(
    evaluator: Evaluator, one: HarborTask, kube: Any, store: Store, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "from seatrial.scoring.builtin import OutputSpec\n\n\nclass Mine:\n    type = 'mine'\n"
        "    outputs = (OutputSpec('x', 'continuous'),)\n\n    def compute(self, row):\n        return {'x': 1.0}\n"
    )

    def packager(metric: Any) -> MetricBundle:
        return pack_metric(tmp_path / "mine.py", f"mine:{type(metric).__name__}")

    one.metrics.append(Mine())
    evaluator.tasks.create("one", task=one, metric_bundle_packager=packager)
    (digest,) = Metrics(store, "evals").list()
    assert kube.get("tasks", "one")["spec"]["metrics"] == [{"ref": f"mine#{digest}"}]
