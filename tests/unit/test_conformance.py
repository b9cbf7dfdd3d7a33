"""The conformance report: what counts as shown, missing and left out on purpose."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.report import CHECKLIST, REASONS, judge

LINES = {name: {"level": level, "text": name} for name, level in (("H-1", "M"), ("H-2", "C"), ("H-3", "X"), ("H-4", "S"))}


def ran(line: str, outcome: str) -> dict[str, dict[str, Any]]:
    return {f"test of {line}": {"ids": [line], "outcome": outcome}}


def test_a_line_is_shown_by_tests_and_an_optional_one_may_have_a_reason_instead() -> None:
    results = ran("H-1", "passed") | ran("H-2", "passed") | ran("H-4", "failed")
    states = {line.id: line.state for line in judge(LINES, results, {"H-2": "not needed", "H-3": "because"})}
    assert states == {"H-1": "passed", "H-2": "passed", "H-3": "left out", "H-4": "FAILED"}
    assert {line.id: line.state for line in judge(LINES, {}, {})} == dict.fromkeys(LINES, "missing")


@pytest.mark.parametrize("name", ["H-1", "H-4", "H-99"])
def test_a_line_that_results_depend_on_cannot_be_left_out(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        judge(LINES, {}, {name: "too much work"})


def test_every_reason_belongs_to_an_optional_line_of_the_checklist() -> None:
    reasons = json.loads(REASONS.read_text())
    lines = judge(json.loads(CHECKLIST.read_text()), {}, reasons)
    assert {line.id: line.reason for line in lines if line.state == "left out"} == reasons
