"""A job as a Harbor job directory, so that Harbor's own tools (``harbor view``, ``harbor job regrade``) read it.

Layout and fields: harbor.md 7.4 to 7.6. Every time carries its zone; the job's ``result.json`` never holds trial results. A trial that an
infrastructure failure ended without a result gets one that says so.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from seatrial.errors import InvalidSpec, NotFound
from seatrial.scoring.harbor import EvalGroup, job_stats, metric_order
from seatrial.scoring.rewards import Trial
from seatrial.sdk.results import JobFiles, TrialRecord, read_bundle, save_members

Raw = dict[str, Any]

USAGE: Final = ("n_input_tokens", "n_cache_tokens", "n_output_tokens", "cost_usd")
READS: Final = 16
ZERO_ID: Final = "00000000-0000-0000-0000-000000000000"


class JobMetrics(NamedTuple):
    """What stands under ``metrics``, in Harbor's order."""

    scripts: tuple[Mapping[str, float], ...] = ()
    kinds: tuple[str, ...] = ("mean",)


MEAN: Final = JobMetrics()


def export_job(files: JobFiles, job: Mapping[str, Any], directory: Path, *, note: Callable[[str], None] = lambda _: None) -> Path:
    """Write ``<directory>/<job name>/`` as Harbor would have left it; returns that folder.

    Raises:
        InvalidSpec: the folder exists.
        NotFound: the job is not planned yet.
    """
    target = directory / str(job["metadata"]["name"])
    if target.exists():
        raise InvalidSpec("-d", f"{target} exists: give another folder")
    bundle = read_bundle(files.bundle(job))
    records = files.trials()
    ended = [record for record in records if record.state in ("scored", "errored", "cancelled")]
    target.mkdir(parents=True)
    with ThreadPoolExecutor(READS) as pool:
        found = list(pool.map(lambda record: _result_of(files, record), ended))
    results = [
        result if result is not None else missing_result(record, bundle.metadata) for record, result in zip(ended, found, strict=True)
    ]
    plan = files.plan()
    checksums = {task["id"]: str(task.get("checksum") or "") for task in plan["tasks"]}
    locks = [trial_lock(bundle.metadata, result, checksum=checksums[record.task]) for record, result in zip(ended, results, strict=True)]
    for record, result, lock in zip(ended, results, locks, strict=True):
        _write_trial(files, record, result, target / record.name, note)
        _write(target / record.name / "lock.json", lock)
    _write(target / "config.json", job_config(bundle.metadata))
    _write(target / "lock.json", job_lock(bundle.metadata, locks))
    _write(target / "result.json", job_result(bundle.metadata, ended, results, total=len(records), metrics=_metrics(plan, bundle.summary)))
    (target / "job.log").write_text("")
    return target


def _metrics(plan: Mapping[str, Any], summary: Mapping[str, Any]) -> JobMetrics:
    """The taskset's script, scripts of the job, aggregates of the taskset, then of the job (H-134)."""
    scripts = [item["values"] for item in summary.get("scripts", ()) if item["error"] is None]
    listed = [item["type"] for item in (*plan.get("metrics", ()), *(plan["spec"].get("metrics") or ()))]
    return JobMetrics(*metric_order(scripts, [kind for kind in dict.fromkeys(listed) if kind != "script"]))


def job_result(
    metadata: Mapping[str, Any], records: Sequence[TrialRecord], results: Sequence[Raw], *, total: int, metrics: JobMetrics = MEAN
) -> Raw:
    """Harbor's ``JobResult``: statistics per agent, model and dataset, without any trial result.

    Args:
        records: ended trials.
        results: their ``result.json``, in the same order.
        total: planned trials.
    """
    groups: dict[tuple[str, str | None, str], list[Trial]] = {}
    for record, result in zip(records, results, strict=True):
        info = result.get("agent_info") or {}
        model = (info.get("model_info") or {}).get("name")
        key = (str(info.get("name") or record.agent), model, str(result.get("source") or "adhoc"))
        rewards = record.rewards if record.state == "scored" else None
        state: Any = record.state
        groups.setdefault(key, []).append(Trial(record.name, record.task, state, rewards, record.error, record.attempt))
    stats = job_stats(
        [EvalGroup(*key, tuple(trials)) for key, trials in groups.items()],
        total=total,
        retries=sum(record.retry for record in records),
        usage=usage_sums(results),
        metrics=metrics.kinds,
        scripts=metrics.scripts,
    )
    start = metadata["started_at"] or metadata["job"]["createdAt"]
    return {
        "schema_version": 1,
        "id": job_id(metadata),
        "started_at": start,
        "updated_at": metadata["finished_at"] or start,
        "finished_at": metadata["finished_at"],
        "n_total_trials": total,
        "stats": stats,
    }


def usage_sums(results: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Tokens and cost over all trials, steps added up; None where no trial reported any. Source: harbor.md 7.6."""
    sums: dict[str, float | None] = {}
    for name in USAGE:
        values = [value for result in results for value in _usage(result, name)]
        total = math.fsum(values) if values else None
        sums[name] = total if total is None or name == "cost_usd" else int(total)
    return sums


def _usage(result: Mapping[str, Any], name: str) -> list[float]:
    steps = result.get("step_results")
    parts = steps if isinstance(steps, list) and steps else [result]
    found = []
    for part in parts:
        usage = part.get("agent_result") if isinstance(part, dict) else None
        value = usage.get(name) if isinstance(usage, dict) else None
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found.append(float(value))
    return found


def missing_result(record: TrialRecord, metadata: Mapping[str, Any]) -> Raw:
    """A trial result for a trial that stored none: what the operator knows of its end."""
    ended = record.ended_at or metadata["finished_at"]
    kind = record.error or ("CancelledError" if record.state == "cancelled" else "UnknownException")
    return {
        "schema_version": 1,
        "id": str(uuid.uuid5(uuid.UUID(job_id(metadata)), f"{record.name}/{record.retry}")),
        "task_name": record.task,
        "trial_name": record.name,
        "trial_uri": f"seatrial://{metadata['job']['namespace']}/{metadata['job']['name']}/{record.name}",
        "task_id": {"path": record.task},
        "source": None,
        "task_checksum": "",
        "config": {"task": {"path": record.task}, "trial_name": record.name, "job_id": job_id(metadata)},
        "agent_info": {"name": record.agent, "version": metadata["sdk_version"], "model_info": None},
        "agent_result": None,
        "verifier_result": None,
        "verifier_environment_mode": "shared",
        "exception_info": {
            "exception_type": kind,
            "exception_message": record.message or "",
            "exception_traceback": f"{record.reason or kind} ({record.cause or 'unknown'}): {record.message or ''}",
            "occurred_at": ended,
        },
        "started_at": record.started_at or ended,
        "finished_at": ended,
        "environment_setup": None,
        "agent_setup": None,
        "agent_execution": None,
        "verifier": None,
        "step_results": None,
        "reward_valid": False,
    }


def job_config(metadata: Mapping[str, Any]) -> Raw:
    """Harbor's ``JobConfig`` as far as the EvalJob has its fields."""
    spec = metadata["spec"]
    agent = spec.get("agent") or {}
    retry = spec.get("retry") or {}
    return {
        "schema_version": 1,
        "job_name": metadata["job"]["name"],
        "n_attempts": spec.get("attempts", 1),
        "timeout_multiplier": (spec.get("timeouts") or {}).get("multiplier", 1.0),
        "retry": {"max_retries": retry.get("max", 0)},
        "agents": [
            {
                "name": agent.get("name") or metadata["target"]["name"],
                "import_path": agent.get("importPath"),
                "model_name": agent.get("model"),
                "kwargs": agent.get("kwargs") or {},
            }
        ],
        "metrics": [{"type": item["type"]} for item in spec.get("metrics") or () if item["type"] != "script"],
    }


def job_lock(metadata: Mapping[str, Any], trials: Sequence[Raw]) -> Raw:
    """Harbor's job lock: what ran, by digest. Equality of locks in Harbor ignores times and versions."""
    return {
        "schema_version": 3,
        "created_at": metadata["job"]["createdAt"],
        "n_concurrent_trials": int(metadata["spec"].get("concurrency", 4)),
        "retry": job_config(metadata)["retry"],
        "trials": list(trials),
    }


def trial_lock(metadata: Mapping[str, Any], result: Mapping[str, Any], *, checksum: str) -> Raw:
    """Harbor's trial lock: the task by its digest, the agent, how it was verified.

    Args:
        checksum: Harbor's digest of the task, for a result that does not say.
    """
    config = job_config(metadata)
    task = {"name": result["task_name"], "type": "local", "digest": f"sha256:{result.get('task_checksum') or checksum}"}
    return {
        "schema_version": 2,
        "task": task,
        "timeout_multiplier": config["timeout_multiplier"],
        "agent": config["agents"][0],
        "environment": {},
        "verifier": {
            "disable": bool((metadata["spec"].get("verifier") or {}).get("disable")),
            "environment_mode": result.get("verifier_environment_mode"),
        },
    }


def job_id(metadata: Mapping[str, Any]) -> str:
    """The EvalJob's UID."""
    uid = str(metadata["job"]["uid"])
    try:
        return str(uuid.UUID(uid))
    except ValueError:
        return str(uuid.uuid5(uuid.UUID(ZERO_ID), uid))


def _result_of(files: JobFiles, record: TrialRecord) -> Raw | None:
    try:
        result = files.result(record)
    except NotFound:
        return None
    return result if isinstance(result, dict) and "trial_name" in result else None


def _write_trial(files: JobFiles, record: TrialRecord, result: Raw, folder: Path, note: Callable[[str], None]) -> None:
    try:
        save_members(files.members(record), folder)
    except NotFound:
        folder.mkdir(exist_ok=True)
        note(f"trial {record.name} ({record.state}) stored no logs")
    for name in ("agent", "verifier", "artifacts"):
        (folder / name).mkdir(exist_ok=True)
    # The name under which this job knows the trial; a reused result was made under another.
    shown = {**{key: value for key, value in result.items() if key != "seatrial"}, "trial_name": record.name}
    _write(folder / "result.json", shown)
    _write(folder / "config.json", shown["config"])
    (folder / "trial.log").touch()
    if (error := shown.get("exception_info")) is not None:
        (folder / "exception.txt").write_text(str(error.get("exception_traceback") or error.get("exception_message") or ""))


def _write(path: Path, body: Mapping[str, Any]) -> None:
    path.unlink(missing_ok=True)
    path.write_text(json.dumps(body, indent=4, sort_keys=True) + "\n", "utf-8")
