from __future__ import annotations

from typing import Any

import pytest

from seatrial.api.reasons import Reason
from seatrial.core.frozen import PlanRefused
from seatrial.core.gates import unknown_score
from seatrial.core.measures import PlannedMetric, TaskScoring
from seatrial.core.scores import metric_rules
from seatrial.scoring.views import Signal, View
from tests.builders import make_job, make_task


@pytest.mark.parametrize(
    ("name", "spec", "words"),
    [
        ("reward.mean", {}, None),
        ("reward.mean.zero", {}, None),
        ("any.key.mean", {}, None),
        ("reward.pass@2", {"attempts": 2}, None),
        ("reward.pass^2", {"attempts": 2}, None),
        ("reward.max", {"metrics": [{"type": "mean"}, {"type": "max"}]}, None),
        ("reward.max.zero", {"metrics": [{"type": "mean"}, {"type": "max", "missing": "zero"}]}, None),
        ("reward", {}, "for example reward.mean"),
        ("reward.avg", {}, "KEY.mean"),
        ("reward.max", {}, "add {type: max} to spec.metrics"),
        ("reward.max.zero", {"metrics": [{"type": "mean"}, {"type": "max"}]}, "missing: zero on the metric max"),
        ("reward.pass@3", {"attempts": 2}, "needs 3 attempts, spec.attempts is 2"),
        ("script.accuracy", {}, "no metric of type script"),
    ],
)
def test_which_gates_can_be_met(name: str, spec: dict[str, Any], words: str | None) -> None:
    given = make_job().spec(**spec).job_spec()
    found = unknown_score(name, given, rules=metric_rules(given), has_scripts=False)
    assert found is None if words is None else found is not None and words in found


def test_a_gate_on_a_name_that_nothing_produces_is_refused_before_any_pod() -> None:
    with pytest.raises(PlanRefused, match=r"nothing can produce reward\.avg") as refused:
        make_job().spec(thresholds=[{"score": "reward.avg", "atLeast": 1.0}]).plan()
    assert refused.value.reason is Reason.UNKNOWN_SCORE


SCORING = TaskScoring(
    (PlannedMetric("f1", {"reference": "Done"}), PlannedMetric("tool_call_count", {})),
    {"quality": View("mean", (Signal("harbor_reward", "reward"), Signal("f1", "f1")))},
)


@pytest.mark.conforms("N-189")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("f1.f1.mean", None),
        ("tool_call_count.count.mean", None),
        ("f1.f1.pass@1", None),
        ("view.quality.mean", None),
        ("view.qualty.mean", "known: view.quality.mean"),
    ],
)
def test_gates_on_the_tasks_own_metrics_are_in_the_metrics_own_scales(name: str, words: str | None) -> None:
    job = make_job().tasks(make_task(scoring=SCORING)).spec(metrics=[{"type": "max"}], thresholds=[{"score": name, "atLeast": 4.0}])
    if words is None:
        assert job.plan().spec["thresholds"] == [{"score": name, "atLeast": 4.0, "onMissing": "fail"}]
        return
    with pytest.raises(PlanRefused, match=words) as refused:
        job.plan()
    assert refused.value.reason is Reason.UNKNOWN_SCORE
