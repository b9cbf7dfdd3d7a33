"""Metrics and views of Tasks through the operator: which revision counts, what a trial is told, and what the status says."""

from __future__ import annotations

from typing import Any

import pytest

from seatrial.contract import decode_input
from tests.integration.fakeapi import Raw
from tests.integration.harness import World, operator, wait_until, world

METRICS = [{"type": "exact-match", "config": {"reference": "Done"}}]
QUALITY = {
    "reducer": "mean",
    "signals": [{"metric": "harbor_reward", "output": "reward"}, {"metric": "exact-match", "output": "exact-match"}],
}


def told(pod: Raw) -> Any:
    """``scoring`` of the trial's input."""
    stage = {item["name"]: item.get("value") for item in pod["spec"]["initContainers"][0]["env"]}
    return decode_input(str(stage["SEATRIAL_INPUT"])).get("scoring")


async def digest_of(made: World, name: str, revision: int) -> str:
    await wait_until(lambda: (made.api.get("tasks", name).get("status") or {}).get("revision"), lambda number: number == revision)
    return str(made.api.get("tasks", name)["status"]["digest"])


@pytest.mark.conforms("N-79", "N-84", "N-86", "N-87")
async def test_metrics_and_views_are_those_of_the_selected_revision() -> None:
    async with world() as made, operator(made):
        seen: list[Any] = []

        def measures(pod: Raw) -> dict[str, dict[str, float]]:
            seen.append(told(pod))
            return {"exact-match": {"exact-match": 0.0}} if seen[-1] else {}

        made.measures = measures
        made.publish("one")
        plain = await digest_of(made, "one", 1)
        made.taskset("suite", f"one#{plain}")
        made.publish("one", metrics=METRICS, views={"quality": QUALITY}, metadata={"reference": "x"})
        scored = await digest_of(made, "one", 2)
        # The set holds the revision without metrics, whatever the newest one has.
        made.submit("first")
        assert [item["name"] for item in (await made.ended("first"))["scores"]] == ["reward.mean", "reward.mean.zero", "reward.pass@1"]
        # Replaced by one that contains the newly scored revision.
        made.taskset("suite", f"one#{scored}")
        await wait_until(lambda: (made.api.get("tasksets", "suite").get("status") or {}).get("revision"), lambda number: number == 2)
        made.submit("second", thresholds=[{"score": "view.quality.mean", "atLeast": 0.5}])
        status = await made.ended("second")
        found = {item["name"]: (item.get("value"), item["count"], item["missing"]) for item in status["scores"]}
        assert (found["reward.mean"], found["exact-match.exact-match.mean"]) == (("1", 1, 0), ("0", 1, 0))
        assert found["view.quality.mean"] == ("0.5", 1, 0)
        assert status["thresholds"] == [{"score": "view.quality.mean", "atLeast": 0.5, "value": "0.5", "passed": True}]
        assert seen == [None, {"metrics": METRICS, "metadata": {"reference": "x"}, "reward_key": "reward"}]


@pytest.mark.conforms("N-85")
@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        ({"views": {"quality": QUALITY}}, "InvalidView", "unknown metric 'exact-match'"),
        ({"metrics": [{"type": "no-such-metric"}]}, "UnsupportedMetric", "no built-in metric 'no-such-metric'"),
        ({"metrics": [{"type": "mine", "image": "registry/m:1"}]}, "UnsupportedMetric", "metrics of one's own"),
    ],
    ids=["view", "type", "image"],
)
async def test_what_cannot_be_computed_is_refused_before_any_pod(spec: dict[str, Any], reason: str, words: str) -> None:
    async with world() as made, operator(made):
        made.publish("one", **spec)
        made.taskset("suite", "one")
        made.submit()
        await made.ended()
        assert made.condition("PlanReady") == ("False", reason)
        assert words in next(item["message"] for item in made.status()["conditions"] if item["type"] == "PlanReady")
        assert made.runs == []
