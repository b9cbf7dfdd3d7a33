"""Failure groups merged by a judge: its answer is checked against the groups, and its failure leaves them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial.scoring.groups import FailureGroup
from seatrial.sdk.failure_judge import Merged, merge_groups
from seatrial.sdk.judge import JudgeError
from seatrial.testing import FakeLLM

GROUPS = (
    FailureGroup("NodeLost", "bench/a", 3, ("a__1", "a__2"), "node <n> went away"),
    FailureGroup("mood: rude", None, 2, ("a__3",), "rude", "high"),
    FailureGroup("mood: curt", None, 1, ("b__1",), "curt", "high"),
)


def merge(*answers: Any, groups: tuple[FailureGroup, ...] = GROUPS) -> tuple[Merged, FakeLLM]:
    judge = FakeLLM(*answers)
    return asyncio.run(merge_groups(groups, judge)), judge


def item(label: str, ids: list[str], severity: str = "critical") -> dict[str, Any]:
    return {"label": label, "severity": severity, "ids": ids, "explanation": f"because of {label}"}


@pytest.mark.conforms("N-190")
def test_groups_with_one_cause_become_one_with_the_judges_severity() -> None:
    found, judge = merge({"groups": [item("manners", ["g2", "g3"]), item("infrastructure", ["g1"], "low")]})
    assert found == Merged(
        (
            FailureGroup("infrastructure", "bench/a", 3, ("a__1", "a__2"), "because of infrastructure", "low"),
            FailureGroup("manners", None, 3, ("a__3", "b__1"), "because of manners", "critical"),
        ),
        None,
    )
    assert len(judge.asked) == 1


def test_unknown_ids_are_dropped_doubled_ones_count_once_and_forgotten_groups_stay() -> None:
    found, _ = merge({"groups": [item("manners", ["g2", "g99", "g2"]), item("again", ["g2"]), item("ghost", ["x"])]})
    assert [(group.label, group.occurrences) for group in found.groups] == [("NodeLost", 3), ("manners", 2), ("mood: curt", 1)]
    assert found.note == {"grouping": "2 unknown ids dropped, 2 groups kept as they were"}


def test_a_judge_that_fails_leaves_the_groups_and_says_why() -> None:
    found, _ = merge(JudgeError("JudgeMalformed", "answered with no MergedGroups"))
    assert found == Merged(GROUPS, {"grouping": "JudgeMalformed: answered with no MergedGroups"})


def test_no_call_is_made_without_groups() -> None:
    found, judge = merge(groups=())
    assert (found, judge.asked) == (Merged((), None), [])


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from(["g1", "g2", "g3", "g4", "", "G1"]), max_size=5), max_size=6))
def test_whatever_the_judge_says_every_failure_is_in_exactly_one_group(answer: list[list[str]]) -> None:
    found, _ = merge({"groups": [item(f"cause {number}", ids) for number, ids in enumerate(answer)]})
    assert sum(group.occurrences for group in found.groups) == 6
    examples = Counter(name for group in found.groups for name in group.examples)
    assert set(examples.values()) == {1}
