"""The rules of a task with steps: when it stops early, and what its steps' rewards make together. Source: harbor.md 4.8."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from seatrial.contract import STEPS_DIR, StepAnswer
from seatrial_runner.stop import Stop

DEFAULT_REWARD: Final = "reward"
_LOOK_SECONDS: Final = 0.05

Values = Mapping[str, float]


def trial_rewards(results: Sequence[Values | None], strategy: Literal["mean", "final"]) -> dict[str, float] | None:
    """The trial's rewards from those of the executed steps; a step without a verifier's result is None.

    ``final``: those of the last executed step. ``mean``: for every key of any step the sum of its values, a missing one as 0, divided by
    the number of steps with a result; steps that did not run, or have no result, are not in the divisor.
    """
    if strategy == "final":
        last = results[-1] if results else None
        return None if last is None else dict(last)
    given = [result for result in results if result is not None]
    keys = sorted({key for result in given for key in result})
    if not keys:
        return None
    return {key: math.fsum(result.get(key, 0.0) for result in given) / len(given) for key in keys}


def is_below(minimum: float | Mapping[str, float] | None, values: Values | None) -> bool:
    """Whether a step misses its ``min_reward``; a missing key or result counts as minus infinity."""
    if minimum is None:
        return False
    gates = minimum if isinstance(minimum, Mapping) else {DEFAULT_REWARD: minimum}
    return any((values or {}).get(key, -math.inf) < least for key, least in gates.items())


def step_path(folder: str, index: int, name: str) -> str:
    """A file of one step in the agent's or the verifier's task folder. By number: a step's name may be any text."""
    return f"{folder}/{STEPS_DIR}/{index}/{name}"


def write_answer(path: str, answer: StepAnswer) -> None:
    """Say to the agent's container how it goes on; renamed into place."""
    new = f"{path}.new"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644), "w") as file:
        os.fchmod(file.fileno(), 0o644)
        json.dump(answer, file)
    os.rename(new, path)


def wait_for_answer(path: str, stop: Stop) -> StepAnswer | None:
    """The verifier's answer to a step; None when SIGTERM came first."""
    while True:
        try:
            with open(path, "rb") as file:
                body = json.load(file)
        except FileNotFoundError:
            if stop.sleep(_LOOK_SECONDS):
                return None
            continue
        return StepAnswer(go_on=body["go_on"] is True, verified=body["verified"] is True)
