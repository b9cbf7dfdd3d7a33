"""Tokens and cost of an agent, as it reports them: ``/logs/agent/result.json``, and its trajectory. Figures: harbor.md 5.8.

Why so careful: the environment can write both files. Only numbers within reason come out, and nothing here fails a trial.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from seatrial.contract import TRAJECTORY_FILE, USAGE_FILE
from seatrial_runner.atif import InvalidTrajectory, check_trajectory, usage
from seatrial_runner.channel import Channel, ChannelError

TRAJECTORY_BYTES: Final = 32 * 1024 * 1024
_MEMORY_BYTES: Final = 192 * 1024 * 1024
"""For the values of one document, of the 512 MiB that the verifier's container has."""
_USAGE_BYTES: Final = 256 * 1024
_COUNTS: Final = ("n_input_tokens", "n_cache_tokens", "n_output_tokens")
_NUMBERS: Final = (*_COUNTS, "cost_usd")
_MOST: Final = 1e15
_MODELS: Final = 100
_METADATA_BYTES: Final = 128 * 1024
_DEPTH: Final = 16
"""Of metadata; what is nested deeper is left out."""


class Usage(NamedTuple):
    figures: dict[str, Any]
    """Of Harbor's ``agent_result``; those that are known."""
    trajectory: str | None
    """``valid``, or what is wrong with the trajectory; None without one."""
    document: dict[str, Any] | None = None
    """The trajectory, where it is valid."""


def read_usage(channel: Channel, logs_agent: str) -> Usage:
    """What the agent left; its own figures before those of its trajectory."""
    figures: dict[str, Any] = {}
    state = None
    try:
        body = _read(channel, f"{logs_agent}/{TRAJECTORY_FILE}", TRAJECTORY_BYTES)
    except _TooMuch as error:
        body, state = None, str(error)
    if body is not None:
        try:
            check_trajectory(body)
            known = usage(body)
        except InvalidTrajectory as error:
            state = str(error)[:300]
        except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
            # Nonsense of a shape that no rule names.
            state = f"malformed: {type(error).__name__}"
        else:
            state = "valid"
            figures |= {name: value for name, value in known.items() if value is not None}
    stated = _read(channel, f"{logs_agent}/{USAGE_FILE}", _USAGE_BYTES)
    if isinstance(stated, dict):
        figures |= stated_figures(stated)
    return Usage(figures, state, body if state == "valid" else None)


def stated_figures(stated: dict[str, Any]) -> dict[str, Any]:
    """What of an agent's own report is kept: tokens, cost, and metadata that is plain JSON of bounded size."""
    figures = _figures(stated)
    models, metadata = stated.get("model_usage"), stated.get("metadata")
    if isinstance(models, dict):
        own = {str(name)[:200]: _figures(item) for name, item in list(models.items())[:_MODELS] if isinstance(item, dict)}
        figures["model_usage"] = {name: {key: item.get(key) for key in _NUMBERS} for name, item in own.items()}
    if isinstance(metadata, dict) and _is_shallow(metadata, _DEPTH) and _is_small(metadata):
        figures["metadata"] = metadata
    return figures


def _is_small(value: dict[str, Any]) -> bool:
    try:
        return len(json.dumps(value, allow_nan=False)) <= _METADATA_BYTES
    except ValueError:
        return False  # NaN has no JSON form


def _is_shallow(value: Any, left: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    items = value.values() if isinstance(value, dict) else value
    return left > 0 and all(_is_shallow(item, left - 1) for item in items)


def _figures(body: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name in _NUMBERS:
        value = body.get(name)
        is_number = isinstance(value, int) if name in _COUNTS else isinstance(value, int | float)
        if is_number and not isinstance(value, bool) and value is not None and 0 <= value < _MOST:
            found[name] = value
    return found


class _TooMuch(Exception):
    """What is said of a document that would take more memory than the verifier has."""


def _read(channel: Channel, path: str, limit: int) -> Any:
    """The JSON of a small regular file, or None.

    Raises:
        _TooMuch: its values would need too much memory.
    """
    try:
        data = channel.read_file(path, max_bytes=limit)
        if not isinstance(data, bytes):
            return None
        if _memory_of(data) > _MEMORY_BYTES:
            raise _TooMuch(f"its values need more than {_MEMORY_BYTES} bytes of memory: not read")
        return json.loads(data, parse_constant=_refuse)
    except (ChannelError, ValueError, RecursionError):
        return None


def _memory_of(data: bytes) -> int:
    """Bytes that the values of a JSON text take at most, beside their texts. An empty list takes thirty times what it is written with."""
    return 90 * (data.count(b"[") + data.count(b"{")) + 60 * data.count(b",")


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")
