from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from seatrial.api.reasons import Reason
from seatrial.core.policy import Budget, Past
from seatrial.core.rows import Row, TrialError, by_trial, from_lines, past, to_json, to_lines
from tests.builders import ago, make_row

OOM = TrialError("OOMKilled", "SandboxLikelyOutOfMemoryError", "environment", "killed")
FULL = Row(
    trial="t__1",
    retry=1,
    outcome="retried",
    ended_at=ago(1),
    rewards={"a": 1.0, "b": 0.5},
    error=OOM,
    budget=Budget.COUNTED,
    pod="job-x-1",
    started_at=ago(5),
    stored=True,
    result_sha256="a" * 64,
    logs_sha256="b" * 64,
    seconds={"agent": 1.5},
    tampered=True,
    leftover_processes=2,
    usage={"n_input_tokens": 12, "cost_usd": 0.5},
    changed_tools=3,
)


def test_rows_survive_the_way_to_the_store_and_back() -> None:
    rows = (FULL, make_row(), make_row(outcome="errored", error=OOM), make_row(outcome="cancelled"))
    assert from_lines(to_lines(rows)) == rows


def test_a_row_without_a_reward_says_null_and_not_zero() -> None:
    assert to_json(make_row(outcome="errored"))["rewards"] is None
    assert json.loads(to_lines([make_row(outcome="errored")]))["rewards"] is None


def test_equal_rows_are_equal_bytes() -> None:
    other = make_row(rewards={"b": 1.0, "a": 0.0})
    assert to_lines([other]) == to_lines([make_row(rewards={"a": 0.0, "b": 1.0})])


def test_the_first_row_of_a_retry_counts_and_nothing_after_a_final_one() -> None:
    retried, final = make_row("t", 0, "retried"), make_row("t", 1, "errored")
    late, again = make_row("t", 2, "scored"), make_row("t", 0, "scored")
    assert by_trial([final, retried, late, again]) == {"t": (retried, final)}


@given(st.permutations([make_row("t", 0, "retried"), make_row("t", 1, "retried"), make_row("t", 2, "scored"), make_row("u", 0, "errored")]))
def test_the_order_of_shards_does_not_matter(rows: list[Row]) -> None:
    assert {trial: [row.retry for row in found] for trial, found in by_trial(rows).items()} == {"t": [0, 1, 2], "u": [0]}


def test_a_suspension_is_nobodys_failure() -> None:
    suspended = TrialError(Reason.SUSPENDED.value, "CancelledError", "infrastructure", "m")
    rows = (make_row("t", 0, "retried", error=suspended), make_row("t", 1, "retried", error=OOM, budget=Budget.COUNTED))
    assert past(rows) == (Past("OOMKilled", Budget.COUNTED),)
