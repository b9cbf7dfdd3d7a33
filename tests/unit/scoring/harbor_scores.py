"""Harbor's own answers for metrics, pass@k and job statistics, as vectors for ``test_harbor.py``.

Run with an interpreter that has ``harbor==0.26.0`` (Python 3.12 or newer): ``--write`` stores ``data/harbor_scores.json``, without it the
stored file is compared. The cases come from a fixed seed.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

TARGET = Path(__file__).with_name("data") / "harbor_scores.json"
SEED = 20260826
VALUES = (0, 1, 1.0, 0.5, -1, 2.25)


def reward_lists(rng: random.Random) -> list[list[dict[str, float] | None]]:
    lists: list[list[dict[str, float] | None]] = []
    for _ in range(150):
        keys = rng.sample(["reward", "a", "b", "style"], rng.randint(1, 3))
        lists.append(
            [
                None if rng.random() < 0.15 else {key: rng.choice(VALUES) for key in keys if rng.random() < 0.8}
                for _ in range(rng.randint(1, 8))
            ]
        )
    return lists


def jobs(rng: random.Random) -> list[list[dict[str, Any]]]:
    """Trials as ``{task, rewards, error}``; half of the jobs are binary with one key, so that pass@k is not empty."""
    found = []
    for number in range(50):
        binary = number % 2 == 0
        trials = []
        for task in range(rng.randint(1, 4)):
            for _ in range(rng.randint(1, 11)):
                key = "reward" if binary or rng.random() < 0.8 else "other"
                rewards: dict[str, float] | None = {key: rng.choice((0, 1, 1.0) if binary else VALUES)}
                error = rng.choice([None] * 5 + ["AgentTimeoutError", "RewardFileNotFoundError", "CancelledError", "SomethingElse"])
                if error == "RewardFileNotFoundError" or rng.random() < 0.05:
                    rewards = None if rng.random() < 0.5 else {}
                trials.append({"task": f"t{task}", "rewards": rewards, "error": error})
        found.append(trials)
    return found


def answers() -> dict[str, Any]:
    from harbor.metrics.max import Max  # type: ignore[import-not-found]
    from harbor.metrics.mean import Mean  # type: ignore[import-not-found]
    from harbor.metrics.min import Min  # type: ignore[import-not-found]
    from harbor.metrics.sum import Sum  # type: ignore[import-not-found]

    rng = random.Random(SEED)
    metrics = {"mean": Mean(), "sum": Sum(), "min": Min(), "max": Max()}
    lists = [{"rows": rows, "metrics": {name: metric.compute(rows) for name, metric in metrics.items()}} for rows in reward_lists(rng)]
    return {"lists": lists, "jobs": [{"trials": trials, **job_answer(trials, metrics["mean"])} for trials in jobs(rng)]}


def job_answer(trials: list[dict[str, Any]], mean: Any) -> dict[str, Any]:
    from harbor.models.job.result import JobStats  # type: ignore[import-not-found]
    from harbor.models.trial.result import TrialResult  # type: ignore[import-not-found]
    from harbor.utils.pass_at_k import compute_pass_at_k_by_evals  # type: ignore[import-not-found]

    results = [TrialResult.model_validate(trial_result(number, trial)) for number, trial in enumerate(trials)]
    stats = JobStats.from_trial_results(results, n_total_trials=len(results))
    for key, values in compute_pass_at_k_by_evals(results).items():
        stats.evals[key].pass_at_k = values
    rewards = [result.verifier_result.rewards for result in results if result.reward_valid]
    (key,) = stats.evals
    stats.evals[key].metrics = [mean.compute(rewards)] if rewards else []
    return {"valid": [result.reward_valid for result in results], "stats": stats.model_dump(mode="json")}


def trial_result(number: int, trial: dict[str, Any]) -> dict[str, Any]:
    at = "2026-01-01T00:00:00Z"
    return {
        "task_name": trial["task"],
        "trial_name": f"{trial['task']}__{number:07x}",
        "trial_uri": "file:///x",
        "task_id": {"path": trial["task"]},
        "source": "ds",
        "task_checksum": "0",
        "config": {"task": {"path": trial["task"]}, "job_id": "00000000-0000-0000-0000-000000000000"},
        "agent_info": {"name": "oracle", "version": "1"},
        "verifier_result": None if trial["rewards"] is None else {"rewards": trial["rewards"]},
        "exception_info": None
        if trial["error"] is None
        else {"exception_type": trial["error"], "exception_message": "m", "exception_traceback": "t", "occurred_at": at},
        "started_at": at,
        "finished_at": at,
    }


if __name__ == "__main__":
    text = json.dumps(answers(), sort_keys=True, separators=(",", ":")) + "\n"
    if "--write" in sys.argv:
        TARGET.write_text(text)
    elif TARGET.read_text() != text:
        sys.exit("data/harbor_scores.json differs from Harbor's answers: run with --write and look at the difference")
