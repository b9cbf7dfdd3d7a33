"""NeMo's names over a cluster: one call that publishes, runs and scores; saved trials that are submitted; what cannot be submitted."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.builders import make_job, make_row, make_task

from seatrial import AsyncEvaluator, Evaluator
from seatrial.core.bundle import build_tables
from seatrial.core.frozen import encode_plan
from seatrial.core.naming import job_prefix, logs_key, plan_key
from seatrial.core.saved import SavedTrial, SavedTrialsRefused
from seatrial.effects.store import Store, StoreSettings
from seatrial.errors import InvalidSpec
from seatrial.scoring.builtin import ExactMatch
from seatrial.sdk import HarborAgentTaskRunner, HarborRewardMetric, HarborRuntimeConfig, run_eval, run_harbor_eval
from seatrial.sdk.harbor_runner import UnsubmittableRunnerError
from seatrial.sdk.saved_trials import FolderEvidence

MakeTask = Callable[..., Path]


@pytest.fixture
def evaluator(kubeconfig: Path, store_settings: StoreSettings) -> Evaluator:
    return Evaluator(kubeconfig=str(kubeconfig), store=store_settings)


@pytest.fixture
def cluster(kube: Any, store: Store) -> Any:
    """The API, and an operator that ends each job at once: every trial has reward 1, style 0.5, and said "Done"."""
    publishes = kube.react

    def react(plural: str, item: dict[str, Any]) -> None:
        publishes(plural, item)
        if plural != "evaljobs":
            return
        names = [ref.partition("#")[0].replace("bench-", "bench/") for ref in item["spec"]["tasks"]]
        builder = make_job().tasks(*(make_task(name) for name in names)).spec(attempts=item["spec"].get("attempts", 1))
        plan, prefix = builder.plan(), job_prefix("evals", item["metadata"]["name"], item["metadata"]["uid"])
        logs = said("Done")
        digest = hashlib.sha256(logs).hexdigest()
        rows = {trial.name: (make_row(trial.name, rewards={"reward": 1.0, "style": 0.5}, logs_sha256=digest),) for trial in plan.trials}
        store.put(plan_key(prefix), encode_plan(plan))
        for name, data in build_tables(plan, builder.job_spec(), rows).items():
            store.put(f"{prefix}{name}", data)
        for name in rows:
            store.put(logs_key(prefix, name, 0), logs)
        item["status"] = {"phase": "Completed", "conditions": []}

    kube.react = react
    return kube


def said(text: str) -> bytes:
    """Logs of a trial whose agent said this."""
    data = json.dumps({"steps": [{"source": "user", "message": "Do it."}, {"source": "agent", "message": text}]}).encode()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        info = tarfile.TarInfo("agent/trajectory.json")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def means(result: Any) -> dict[str, float]:
    return {item["name"]: item["mean"] for item in result.summary.ranges if ".pass@" not in item["name"]}


@pytest.mark.conforms("N-134", "N-154")
def test_one_call_discovers_publishes_runs_and_scores(
    evaluator: Evaluator, cluster: Any, make_task: MakeTask, suite: Path, tmp_path: Path
) -> None:
    make_task("one")
    make_task("two")
    config = HarborRuntimeConfig(agent_name="oracle", n_attempts=2, n_concurrent_trials=8, jobs_dir=tmp_path / "jobs")
    result = asyncio.run(run_harbor_eval(config, suite, evaluator=evaluator))
    assert means(result) == {"harbor_reward.reward": 1.0, "harbor_reward.style": 0.5}
    assert (result.summary.raw["trial_count"], result.summary.raw["task_count"]) == (4, 2)
    (job,) = [item for (plural, _, _), item in cluster.objects.items() if plural == "evaljobs"]
    assert (job["spec"]["attempts"], job["spec"]["concurrency"], job["spec"]["rewardKey"]) == (2, 8, "reward")
    assert [ref.partition("#")[0] for ref in job["spec"]["tasks"]] == ["bench-one", "bench-two"]
    assert (tmp_path / "jobs" / job["metadata"]["name"] / "summary.json").is_file()


@pytest.mark.conforms("N-155", "N-156")
def test_the_list_of_metrics_replaces_the_reward_unless_it_names_it(
    evaluator: Evaluator, cluster: Any, make_task: MakeTask, suite: Path
) -> None:
    make_task("one")
    make_task("two")
    config = HarborRuntimeConfig()
    alone = asyncio.run(run_eval(config, suite, task_names=["bench/two"], metrics=[ExactMatch("Done")], evaluator=evaluator))
    assert means(alone) == {"exact-match.exact-match": 1.0}
    both = asyncio.run(run_eval(config, suite, metrics=[HarborRewardMetric(), ExactMatch("Done")], evaluator=evaluator))
    assert means(both) == {"exact-match.exact-match": 1.0, "harbor_reward.reward": 1.0, "harbor_reward.style": 0.5}
    with pytest.raises(InvalidSpec, match="has no task bench/three"):
        asyncio.run(run_eval(config, suite, task_names=["bench/three"], evaluator=evaluator))


def test_only_the_tasks_that_were_asked_for_run_whatever_their_folders_are_called(
    evaluator: Evaluator, cluster: Any, make_task: MakeTask, suite: Path
) -> None:
    for name, folder in (("one", "a*"), ("two", "ab"), ("three", "a[b]")):
        make_task(name).rename(suite / folder)
    result = asyncio.run(run_eval(HarborRuntimeConfig(), suite, task_names=["bench/one", "bench/three"], evaluator=evaluator))
    assert sorted(trial.task_id for trial in result.trials) == ["bench/one", "bench/three"]
    assert {name for (plural, _, name) in cluster.objects if plural == "tasks"} == {"bench-one", "bench-three"}


def test_every_field_of_the_configuration_reaches_the_job(evaluator: Evaluator, kube: Any) -> None:
    config = HarborRuntimeConfig(
        agent_name=None,
        agent_import_path="mine.agents:Agent",
        agent_model_name="opus",
        agent_kwargs={"depth": 3, "nested": {"a": [1]}},
        env_secrets={"API_KEY": "keys/token"},
        env_vars={"MODE": "fast"},
        max_retries=2,
        artifacts=("/app/out",),
        reward_key="accuracy",
        verifier_timeout_multiplier=2.0,
    )
    evaluator.submit(taskset="smoke", target=HarborAgentTaskRunner(config=config), name="j")
    assert kube.get("evaljobs", "j")["spec"] == {
        "taskset": "smoke",
        "agent": {
            "importPath": "mine.agents:Agent",
            "model": "opus",
            "kwargs": {"depth": 3, "nested": {"a": [1]}},
            "env": {"MODE": "fast"},
            "envSecrets": {"API_KEY": {"name": "keys", "key": "token"}},
        },
        "attempts": 1,
        "concurrency": 4,
        "retry": {"max": 2},
        "timeouts": {"verifier": 2.0},
        "rewardKey": "accuracy",
        "artifacts": [{"source": "/app/out"}],
    }


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (HarborRuntimeConfig(agent_name=None), "selects no agent"),
        (HarborRuntimeConfig(agent_kwargs={"f": print}), "is no JSON object"),
        (HarborRuntimeConfig(agent_kwargs={"f": float("nan")}), "is no JSON object"),
        (HarborRuntimeConfig(env_secrets={"KEY": "token"}), "not of the form secret/key"),
    ],
)
def test_what_an_evaljob_cannot_carry_is_refused_before_anything_is_sent(
    evaluator: Evaluator, kube: Any, config: HarborRuntimeConfig, message: str
) -> None:
    with pytest.raises(UnsubmittableRunnerError, match=message) as refused:
        evaluator.submit(taskset="smoke", target=HarborAgentTaskRunner(config=config))
    assert isinstance(refused.value, TypeError)
    assert kube.writes() == []


# --- saved trials -----------------------------------------------------------------------------------------------------------------------


def saved(name: str = "a__1", key: str | None = "reward") -> SavedTrial:
    metadata = {"reward": 0.5, "reward_details": {"reward": 0.5}, **({"harbor_primary_reward_key": key} if key else {})}
    return SavedTrial(name, "bench/a", "COMPLETED", metadata=metadata)


@pytest.mark.conforms("N-88", "N-89")
def test_saved_trials_are_stored_and_submitted_with_their_taskset(evaluator: Evaluator, kube: Any, store: Store, tmp_path: Path) -> None:
    (tmp_path / "a__1/agent").mkdir(parents=True)
    (tmp_path / "a__1/agent/trajectory.json").write_text("{}")
    trials = [saved("a__1", "accuracy"), saved("a__2", "accuracy")]
    evidence = FolderEvidence(tmp_path)
    for name in ("first", "second"):
        evaluator.submit(taskset="smoke", trials=trials, evidence=evidence, name=name, thresholds={"accuracy.mean": 0.5})
    first, second = (kube.get("evaljobs", name)["spec"] for name in ("first", "second"))
    assert first == second
    assert (first["rewardKey"], first["rescore"]["taskset"]) == ("accuracy", "smoke")
    ref = first["rescore"]["trials"]["ref"]
    lines = [json.loads(line) for line in store.get(f"filesets/{ref.replace('#', '/')}", max_bytes=10**6).splitlines()]
    assert [(line["id"], sorted(line["evidence"])) for line in lines] == [("a__1", ["logs"]), ("a__2", [])]

    async def awaited() -> str:
        async with AsyncEvaluator.from_client(evaluator._cluster, store=evaluator.store().settings) as ev:
            return (await ev.submit(taskset="smoke", trials=trials, name="third")).name

    assert asyncio.run(awaited()) == "third"


@pytest.mark.conforms("N-88", "N-96")
def test_trials_and_target_together_trials_without_tasks_and_without_a_key_are_refused(evaluator: Evaluator, kube: Any) -> None:
    runner = HarborAgentTaskRunner(config=HarborRuntimeConfig())
    for options, error, message in (
        ({"taskset": "smoke", "trials": [saved()], "target": runner}, TypeError, "exactly one of target and trials"),
        ({"taskset": "smoke", "trials": [saved()], "agent": "oracle"}, TypeError, "exactly one of target and trials"),
        ({"trials": [saved()]}, TypeError, "saved trials need taskset"),
        ({"taskset": "smoke", "target": HarborAgentTaskRunner(job_dir="x")}, TypeError, "must be a task runner with a configuration"),
        ({"taskset": "smoke", "trials": [saved(key=None)]}, SavedTrialsRefused, "requires harbor_primary_reward_key metadata"),
        ({"taskset": "smoke", "trials": [saved(), saved("b", "other")]}, SavedTrialsRefused, "one consistent primary reward_key"),
    ):
        with pytest.raises(error, match=message):
            evaluator.submit(**options)
    assert kube.writes() == []
