"""New jobs over the results of ended ones: run what is missing, or score again. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

from seatrial.api.evaljob import EvalJob
from seatrial.api.names import API_VERSION, EVALJOB
from seatrial.errors import InvalidSpec

_NAME_CHARS: Final = 50
_NOT_COPIED: Final = ("suspend", "cancel", "cache", "rescore")
METRICS: Final = ("mean", "sum", "min", "max")


def rerun_body(job: Mapping[str, Any], *, name: str | None, rerun_errors: Sequence[str], attempts: int | None = None) -> dict[str, Any]:
    """An EvalJob like ``job`` that takes its results and runs the rest.

    Args:
        name: None: generated from the old one.
        rerun_errors: error names whose trials run again; none: every trial without a valid reward.
        attempts: more attempts than the old job had.

    Raises:
        InvalidSpec: the result would be refused.
    """
    old = copy.deepcopy(dict(job["spec"]))
    if "rescore" in old:
        raise InvalidSpec("--from", f"job {job['metadata']['name']} only rescored another one: name that")
    spec = {key: value for key, value in old.items() if key not in _NOT_COPIED}
    spec["cache"] = {"job": job["metadata"]["name"], **({"rerunErrors": list(rerun_errors)} if rerun_errors else {})}
    if attempts is not None:
        spec["attempts"] = max(attempts, int(spec.get("attempts", 1)))
    return _checked(job, name, "rerun", spec)


def rescore_body(
    job: Mapping[str, Any],
    *,
    name: str | None,
    taskset: str | None = None,
    metrics: Sequence[str] = (),
    thresholds: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """An EvalJob that scores the trials of ``job`` again, under the reward key they were scored with.

    Args:
        taskset: the tasks as of now, with their metrics and views; None: those that the job was planned with.
        metrics: ``mean``, ``sum``, ``min`` or ``max``, each with ``:zero`` for Harbor's zero-filled value beside it.

    Raises:
        InvalidSpec: the result would be refused.
    """
    source = {"job": job["metadata"]["name"], **({"taskset": taskset} if taskset is not None else {})}
    return _checked(job, name, "rescore", _rescore_spec(source, job["spec"].get("rewardKey"), metrics, thresholds))


def saved_body(
    file: Mapping[str, str],
    *,
    namespace: str,
    taskset: str,
    reward_key: str,
    name: str | None = None,
    metrics: Sequence[str] = (),
    thresholds: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """An EvalJob that scores the trials of a stored file.

    Args:
        file: ``{ref, sha256}``, from ``store_trials``.
        taskset: the tasks that the trials are of.
        reward_key: the one that the trials carry.

    Raises:
        InvalidSpec: the result would be refused.
    """
    spec = _rescore_spec({"trials": dict(file), "taskset": taskset}, reward_key, metrics, thresholds)
    stem = taskset.partition("#")[0].rpartition("/")[2]
    return _checked({"metadata": {"name": stem, "namespace": namespace}}, name, "rescore", spec)


def _rescore_spec(
    source: Mapping[str, Any], reward_key: str | None, metrics: Sequence[str], thresholds: Mapping[str, float] | None
) -> dict[str, Any]:
    spec: dict[str, Any] = {"rescore": dict(source), **({"rewardKey": reward_key} if reward_key is not None else {})}
    if metrics:
        spec["metrics"] = [parse_metric(text) for text in metrics]
    if thresholds:
        spec["thresholds"] = [{"score": score, "atLeast": value} for score, value in thresholds.items()]
    return spec


def parse_metric(text: str) -> dict[str, str]:
    """``max`` or ``max:zero`` as an entry of ``spec.metrics``.

    Raises:
        InvalidSpec: another text.
    """
    kind, separator, missing = text.partition(":")
    if kind not in METRICS or (separator and missing not in ("zero", "skip")):
        raise InvalidSpec("--metric", f"{text!r} is none of {', '.join(METRICS)}, each alone or with :zero")
    return {"type": kind, **({"missing": missing} if separator else {})}


def _checked(job: Mapping[str, Any], name: str | None, what: str, spec: dict[str, Any]) -> dict[str, Any]:
    old = job["metadata"]
    named = {"name": name} if name is not None else {"generateName": f"{old['name'][:_NAME_CHARS].rstrip('-.')}-{what}-"[:58]}
    body = {"apiVersion": API_VERSION, "kind": EVALJOB, "metadata": {**named, "namespace": old["namespace"]}, "spec": spec}
    if problems := EvalJob.problems(body):
        raise InvalidSpec(problems[0].path, problems[0].message)
    return body
