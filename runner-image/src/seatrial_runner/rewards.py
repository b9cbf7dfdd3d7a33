"""Read what a verifier wrote: ``reward.json`` if it exists, else ``reward.txt``; a bad one never falls back to the other.

Why so strict: no text that a broken grader leaves behind may become a score. Sources: Harbor 0.26 (both tables), and where it refuses
what its documents promise: numeric strings count, and a list ``components`` beside the rewards is kept apart.
"""

from __future__ import annotations

import json
import math
from typing import Final, NamedTuple, TypedDict

from seatrial.contract import REWARD_KEY_CHARS, REWARD_KEYS
from seatrial_runner.faults import Fault

REWARD_FILE_BYTES: Final = 1 << 20
COMPONENTS: Final = 1000


class Component(TypedDict):
    name: str
    score: float


class Rewards(NamedTuple):
    """Rewards that a verifier reported. ``values`` may be empty: accepted, and no valid reward."""

    values: dict[str, float]
    components: list[Component] | None = None
    rejected_keys: tuple[str, ...] = ()
    """Keys too long to keep, shortened; their siblings stay."""


def parse_reward_json(data: bytes) -> Rewards:
    """Rewards of a ``reward.json``.

    Raises:
        Fault: RewardFileEmptyError or VerifierOutputParseError.
    """
    if not data:
        raise _empty("reward.json")
    try:
        value = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise _unreadable(f"reward.json is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise _unreadable(f"reward.json holds {_kind(value)}; it must be an object of names and numbers")
    components = _take_components(value)
    if len(value) > REWARD_KEYS:
        raise _unreadable(f"reward.json has {len(value)} keys, more than {REWARD_KEYS}")
    numbers = {key: _number(key, item) for key, item in value.items()}
    return Rewards(
        values={key: number for key, number in numbers.items() if len(key) <= REWARD_KEY_CHARS},
        components=components,
        rejected_keys=tuple(key[:40] for key in numbers if len(key) > REWARD_KEY_CHARS),
    )


def parse_reward_text(data: bytes) -> Rewards:
    """The one number of a ``reward.txt``, under the key ``reward``.

    Raises:
        Fault: RewardFileEmptyError or VerifierOutputParseError.
    """
    if not data:
        raise _empty("reward.txt")
    try:
        number = float(data.decode())
    except ValueError as error:
        raise _unreadable(f"reward.txt holds {_shown(data)}, not one number") from error
    if not math.isfinite(number):
        raise _unreadable(f"Non-finite reward 'reward': {number}")
    return Rewards({"reward": number})


def _number(key: str, value: object) -> float:
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        return _number_of_text(key, value)
    if not isinstance(value, int | float):
        raise _unreadable(f"Non-numeric reward {key[:40]!r}: {_kind(value)}")
    if not _is_finite(value):
        raise _unreadable(f"Non-finite reward {key[:40]!r}: {str(value)[:40]}")
    return value


def _is_finite(value: int | float) -> bool:
    """Whether a float can hold it: the integers of JSON have no bounds."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _number_of_text(key: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise _unreadable(f"Non-numeric reward {key[:40]!r}: {text[:40]!r}") from None
    return _number(key, number)


def _take_components(mapping: dict[str, object]) -> list[Component] | None:
    """Remove ``components`` from ``mapping`` if it has the one shape that is kept; any other shape stays and is judged as a reward."""
    value = mapping.get("components")
    if not isinstance(value, list) or len(value) > COMPONENTS or not all(_is_component(item) for item in value):
        return None
    del mapping["components"]
    return [Component(name=item["name"][:REWARD_KEY_CHARS], score=item["score"]) for item in value]


def _is_component(item: object) -> bool:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        return False
    score = item.get("score")
    return isinstance(score, int | float) and not isinstance(score, bool) and _is_finite(score)


def _empty(name: str) -> Fault:
    return Fault("RewardFileEmptyError", "verifier", f"{name} is empty: the test script must write a number", reason="RewardInvalid")


def _unreadable(message: str) -> Fault:
    return Fault("VerifierOutputParseError", "verifier", message, reason="RewardInvalid")


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a bare number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"


def _shown(data: bytes) -> str:
    return repr(data[:40].decode(errors="replace"))
