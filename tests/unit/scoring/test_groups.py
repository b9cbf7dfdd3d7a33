from __future__ import annotations

import pytest

from seatrial.scoring.groups import FailureGroup, group_failures, group_labels, mask, reaches


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("timed out after 300.5 seconds", "timed out after <n> seconds"),
        ("cannot read /tmp/x-1/y.txt: denied", "cannot read <path>: denied"),
        ("trial hello-world__1a2b3c4 lost", "trial <trial> lost"),
        ("pod 0a1b2c3d-1111-2222-3333-444455556666 gone", "pod <id> gone"),
        ("image sha deadbeef1234 not found", "image sha <id> not found"),
        ("two\n  lines", "two lines"),
    ],
)
def test_what_differs_between_trials_is_masked(message: str, expected: str) -> None:
    assert mask(message) == expected


def test_failures_with_one_cause_are_one_group_and_the_most_frequent_comes_first() -> None:
    failures = [("AgentTimeoutError", f"timed out after {n} s", "a", f"t{n}") for n in range(5)]
    failures += [("OOMKilled", "killed", "a", "x"), ("AgentTimeoutError", "timed out after 9 s", "b", "y")]
    assert group_failures(failures) == (
        FailureGroup("AgentTimeoutError", "a", 5, ("t0", "t1", "t2"), "timed out after <n> s"),
        FailureGroup("AgentTimeoutError", "b", 1, ("y",), "timed out after <n> s"),
        FailureGroup("OOMKilled", "a", 1, ("x",), "killed"),
    )


@pytest.mark.conforms("N-190")
def test_failing_labels_are_grouped_by_metric_and_label_with_their_severity() -> None:
    groups = group_labels([("tone", "off brand", "t1", "high"), ("tone", "off brand", "t2", "high"), ("tone", "rude", "t1", None)])
    assert groups == (
        FailureGroup("tone: off brand", None, 2, ("t1", "t2"), "off brand", "high"),
        FailureGroup("tone: rude", None, 1, ("t1",), "rude", None),
    )
    assert [group.label for group in reaches(groups, "medium")] == ["tone: off brand"]
    assert reaches(groups, "critical") == ()
