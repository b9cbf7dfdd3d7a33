from __future__ import annotations

import math
from typing import Any

import pytest

from seatrial.effects.task_verify import summarise
from seatrial.taskpkg.model import TaskConfig


@pytest.mark.parametrize(
    ("toml", "hidden"),
    [
        ({"agent": {"timeout_sec": math.inf}}, ("timeouts", "agent")),
        ({"verifier": {"timeout_sec": math.nan}}, ("timeouts", "verifier")),
        ({"environment": {"memory_mb": -5}}, ("resources", "memoryMb")),
        ({"environment": {"gpus": 10**30}}, ("resources", "gpus")),
    ],
)
def test_a_number_that_the_api_cannot_hold_is_left_out_of_the_summary(toml: dict[str, Any], hidden: tuple[str, str]) -> None:
    summary = summarise(TaskConfig.model_validate(toml)).raw()
    assert summary.get(hidden[0], {}).get(hidden[1]) is None
