"""Agent trajectories in ATIF: whether one is valid, and the tokens and costs in it. Source: harbor.md 5.8 and 5.9.

Why by hand: the runner has the standard library alone. No unknown keys anywhere, as in Harbor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

VERSIONS: Final = frozenset(f"ATIF-v1.{minor}" for minor in range(9))
_TIMESTAMP: Final = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?")
_IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_AUDIO_KINDS: Final = """
    wav x-wav wave vnd.wave mpeg mp3 x-mp3 mp4 m4a x-m4a aac x-aac ogg opus flac x-flac webm aiff x-aiff"""
_AUDIO: Final = frozenset(f"audio/{kind}" for kind in _AUDIO_KINDS.split())
_DEPTH: Final = 8
"""Of sub-agents within sub-agents."""

_AGENT_ONLY: Final = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")
_STEP: Final = frozenset(
    {"step_id", "timestamp", "source", "message", "observation", "is_copied_context", "llm_call_count", "extra", *_AGENT_ONLY}
)
_TRAJECTORY_NAMES: Final = """
    schema_version session_id trajectory_id agent steps notes final_metrics continued_trajectory_ref extra subagent_trajectories"""
_TRAJECTORY: Final = frozenset(_TRAJECTORY_NAMES.split())
_COUNTS: Final = ("prompt_tokens", "completion_tokens", "cached_tokens")
_METRICS: Final = frozenset({*_COUNTS, "cost_usd", "prompt_token_ids", "completion_token_ids", "logprobs", "extra"})
_TOTALS: Final = {
    "n_input_tokens": ("total_prompt_tokens", "prompt_tokens"),
    "n_cache_tokens": ("total_cached_tokens", "cached_tokens"),
    "n_output_tokens": ("total_completion_tokens", "completion_tokens"),
    "cost_usd": ("total_cost_usd", "cost_usd"),
}
_FINAL: Final = frozenset({*(total for total, _ in _TOTALS.values()), "total_steps", "extra"})


class InvalidTrajectory(ValueError):
    """The document breaks a rule; the message names the place."""


def check_trajectory(body: object) -> None:
    """Check a whole document.

    Raises:
        InvalidTrajectory: the first rule that it breaks.
    """
    _trajectory(body, "trajectory", depth=0)


def usage(body: Mapping[str, Any]) -> dict[str, Any]:
    """Harbor's token and cost figures of a valid trajectory: totals, and per model with sub-agents included.

    The totals are those that the trajectory states, else the sums over its own steps; None where nothing is said.
    """
    stated = body.get("final_metrics") or {}
    own = [step.get("metrics") or {} for step in body["steps"]]
    totals = {name: stated[total] if stated.get(total) is not None else _sum(own, field) for name, (total, field) in _TOTALS.items()}
    models: dict[str, list[Mapping[str, Any]]] = {}
    for model, metrics in _by_model(body, (body["agent"].get("model_name") or "unknown")):
        models.setdefault(model, []).append(metrics)
    per_model = {model: _model_usage(items) for model, items in sorted(models.items())}
    return {**totals, "model_usage": per_model or None}


def _by_model(body: Mapping[str, Any], fallback: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for step in body["steps"]:
        if step.get("metrics"):
            yield step.get("model_name") or fallback, step["metrics"]
    for child in body.get("subagent_trajectories") or ():
        yield from _by_model(child, fallback)


def _model_usage(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    # A cost that one step does not tell is no cost of the model.
    costs = [item.get("cost_usd") for item in items if any(item.get(field) for field in _COUNTS) or item.get("cost_usd") is not None]
    known = [cost for cost in costs if cost is not None]
    return {
        "n_input_tokens": _sum(items, "prompt_tokens"),
        "n_cache_tokens": _sum(items, "cached_tokens"),
        "n_output_tokens": _sum(items, "completion_tokens"),
        "cost_usd": math.fsum(known) if known and len(known) == len(costs) else None,
    }


def _sum(items: Sequence[Mapping[str, Any]], field: str) -> Any:
    values = [item[field] for item in items if item.get(field) is not None]
    return (math.fsum(values) if field == "cost_usd" else sum(values)) if values else None


# --- the rules -----------------------------------------------------------------------------------------------------------------------


def _trajectory(body: object, where: str, *, depth: int) -> None:
    value = _object(body, where, _TRAJECTORY, required=("schema_version", "agent", "steps"))
    if value["schema_version"] not in VERSIONS:
        raise InvalidTrajectory(f"{where}.schema_version is none of ATIF-v1.0 to ATIF-v1.8")
    if depth > _DEPTH:
        raise InvalidTrajectory(f"{where}: sub-agents are nested too deeply")
    agent = _object(value["agent"], f"{where}.agent", {"name", "version", "model_name", "tool_definitions", "extra"}, ("name", "version"))
    _texts(agent, f"{where}.agent", "name", "version", "model_name")
    _texts(value, where, "session_id", "trajectory_id", "notes")
    steps = value["steps"]
    if not isinstance(steps, list) or not steps:
        raise InvalidTrajectory(f"{where}.steps has no step")
    for number, step in enumerate(steps, 1):
        _step(step, f"{where}.steps[{number - 1}]", number)
    if value.get("final_metrics") is not None:
        final = _object(value["final_metrics"], f"{where}.final_metrics", _FINAL)
        _numbers(final, f"{where}.final_metrics", *(name for name in _FINAL if name != "extra"))
    seen: set[str] = set()
    for number, child in enumerate(value.get("subagent_trajectories") or ()):
        _trajectory(child, f"{where}.subagent_trajectories[{number}]", depth=depth + 1)
        name = child.get("trajectory_id")
        if not name or name in seen:
            raise InvalidTrajectory(f"{where}.subagent_trajectories[{number}] has no trajectory_id of its own")
        seen.add(name)


def _step(body: object, where: str, number: int) -> None:
    step = _object(body, where, _STEP, required=("step_id", "source", "message"))
    if type(step["step_id"]) is not int or step["step_id"] != number:
        raise InvalidTrajectory(f"{where}.step_id is not {number}")
    if step["source"] not in ("system", "user", "agent"):
        raise InvalidTrajectory(f"{where}.source is none of system, user and agent")
    if step.get("timestamp") is not None and not (isinstance(step["timestamp"], str) and _TIMESTAMP.fullmatch(step["timestamp"])):
        raise InvalidTrajectory(f"{where}.timestamp is not ISO 8601")
    for name in _AGENT_ONLY:
        if step["source"] != "agent" and step.get(name) is not None:
            raise InvalidTrajectory(f"{where}.{name} belongs to an agent's step only")
    calls_made = step.get("llm_call_count")
    if calls_made is not None and (type(calls_made) is not int or calls_made < 0):
        raise InvalidTrajectory(f"{where}.llm_call_count is not a count")
    if calls_made == 0 and (step.get("metrics") is not None or step.get("reasoning_content") is not None):
        raise InvalidTrajectory(f"{where}: a step without model calls has no metrics and no reasoning_content")
    _content(step["message"], f"{where}.message")
    calls = set()
    for index, item in enumerate(step.get("tool_calls") or ()):
        place = f"{where}.tool_calls[{index}]"
        names = {"tool_call_id", "function_name", "arguments", "extra"}
        call = _object(item, place, names, ("tool_call_id", "function_name", "arguments"))
        _texts(call, place, "tool_call_id", "function_name")
        if not isinstance(call["arguments"], dict):
            raise InvalidTrajectory(f"{place}.arguments is not an object")
        calls.add(call["tool_call_id"])
    if step.get("observation") is not None:
        _observation(step["observation"], f"{where}.observation", calls)
    if step.get("metrics") is not None:
        metrics = _object(step["metrics"], f"{where}.metrics", _METRICS)
        _numbers(metrics, f"{where}.metrics", *_COUNTS, "cost_usd")


def _observation(body: object, where: str, calls: set[Any]) -> None:
    observation = _object(body, where, {"results"}, ("results",))
    if not isinstance(observation["results"], list):
        raise InvalidTrajectory(f"{where}.results is not a list")
    for index, item in enumerate(observation["results"]):
        place = f"{where}.results[{index}]"
        result = _object(item, place, {"source_call_id", "content", "subagent_trajectory_ref", "extra"})
        if result.get("source_call_id") is not None and result["source_call_id"] not in calls:
            raise InvalidTrajectory(f"{place}.source_call_id is no tool call of the step")
        if result.get("content") is not None:
            _content(result["content"], f"{place}.content")
        for reference in result.get("subagent_trajectory_ref") or ():
            if not isinstance(reference, dict) or not (reference.get("trajectory_id") or reference.get("trajectory_path")):
                raise InvalidTrajectory(f"{place}.subagent_trajectory_ref names neither trajectory_id nor trajectory_path")


def _content(value: object, where: str) -> None:
    if isinstance(value, str):
        return
    if not isinstance(value, list):
        raise InvalidTrajectory(f"{where} is neither a text nor a list of parts")
    for index, item in enumerate(value):
        place = f"{where}[{index}]"
        part = _object(item, place, {"type", "text", "source"}, ("type",))
        if part["type"] == "text":
            if not isinstance(part.get("text"), str):
                raise InvalidTrajectory(f"{place} has no text")
            continue
        kinds = {"image": _IMAGES, "audio": _AUDIO}.get(part["type"]) if isinstance(part["type"], str) else None
        if kinds is None:
            raise InvalidTrajectory(f"{place}.type is none of text, image and audio")
        source = _object(part.get("source"), f"{place}.source", {"media_type", "path", "duration_sec"}, ("media_type", "path"))
        if source["media_type"] not in kinds:
            raise InvalidTrajectory(f"{place}.source.media_type is not one of {part['type']}")


def _object(value: object, where: str, names: frozenset[str] | set[str], required: Sequence[str] = ()) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidTrajectory(f"{where} is not an object")
    if unknown := sorted(set(value) - names):
        raise InvalidTrajectory(f"{where} has an unknown key {unknown[0][:40]!r}")
    if missing := [name for name in required if value.get(name) is None]:
        raise InvalidTrajectory(f"{where} has no {missing[0]}")
    return value


def _texts(value: Mapping[str, Any], where: str, *names: str) -> None:
    for name in names:
        if value.get(name) is not None and not isinstance(value[name], str):
            raise InvalidTrajectory(f"{where}.{name} is not a text")


def _numbers(value: Mapping[str, Any], where: str, *names: str) -> None:
    for name in names:
        number = value.get(name)
        if number is None:
            continue
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not is_number or not 0 <= number < 1e15 or (not name.endswith("usd") and not isinstance(number, int)):
            raise InvalidTrajectory(f"{where}.{name} is not a plausible number")
