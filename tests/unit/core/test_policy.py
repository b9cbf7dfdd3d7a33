from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.api.reasons import Reason
from seatrial.core.policy import POD_CAP, POLICIES, Budget, Past, RetryRules, backoff_seconds, may_retry, verdict_budget
from seatrial.harbor_errors import ERROR_POLICIES, UNKNOWN

RULES = RetryRules(most=1, include=(), exclude=(), overrides={}, min_seconds=1, max_seconds=60)


def allowed(
    rules: RetryRules = RULES, error: str = "Evicted", budget: Budget = Budget.COUNTED, most: int | None = None, past: tuple[Past, ...] = ()
) -> bool:
    return may_retry(rules, error=error, harbor=POLICIES[Reason(error)].harbor, budget=budget, most=most, past=past)


def counted(times: int, error: str = "OOMKilled") -> tuple[Past, ...]:
    return (Past(error, Budget.COUNTED),) * times


@pytest.mark.conforms("H-143")
def test_counted_retries_end_with_the_jobs_budget_and_free_ones_do_not() -> None:
    assert allowed(past=counted(0))
    assert not allowed(past=counted(1))
    assert allowed(budget=Budget.FREE, past=counted(1))
    assert not allowed(rules=RULES._replace(most=0))
    assert not allowed(budget=Budget.NONE)


def test_free_retries_end_at_the_cap_too() -> None:
    past = (Past("Evicted", Budget.FREE),) * (POD_CAP - 2)
    assert allowed(budget=Budget.FREE, past=past)
    assert not allowed(budget=Budget.FREE, past=(*past, Past("Evicted", Budget.FREE)))


def test_a_free_retry_uses_nothing_of_the_budget() -> None:
    assert allowed(past=(Past("Evicted", Budget.FREE),) * 3)


def test_a_reason_may_have_a_limit_of_its_own() -> None:
    same = (Past("TaskArchiveCorrupt", Budget.FREE),)
    assert allowed(error="TaskArchiveCorrupt", budget=Budget.FREE, most=2, past=same)
    assert not allowed(error="TaskArchiveCorrupt", budget=Budget.FREE, most=2, past=same * 2)
    assert allowed(error="TaskArchiveCorrupt", budget=Budget.FREE, most=2, past=(Past("Evicted", Budget.FREE),) * 2)


@pytest.mark.conforms("H-143")
@pytest.mark.parametrize(
    ("include", "exclude", "result"),
    [
        ((), (), True),
        (("Evicted",), (), True),
        (("GKEPodNotFoundError",), (), True),
        (("OOMKilled",), (), False),
        ((), ("Evicted",), False),
        ((), ("GKEPodNotFoundError",), False),
        (("Evicted",), ("Evicted",), False),
    ],
)
def test_lists_take_our_name_and_harbors_and_exclusion_wins(include: tuple[str, ...], exclude: tuple[str, ...], result: bool) -> None:
    assert allowed(RULES._replace(include=include, exclude=exclude)) is result


def test_an_error_policy_without_retry_forbids_it() -> None:
    assert not allowed(RULES._replace(overrides={"Evicted": {"retry": False}}), budget=Budget.FREE)


@pytest.mark.conforms("H-141")
def test_the_budget_of_a_verdicts_error_follows_harbors_table() -> None:
    assert len(ERROR_POLICIES) == 58
    for name, policy in ERROR_POLICIES.items():
        assert verdict_budget(name, {}) is (Budget.COUNTED if policy.retry else Budget.NONE)
    assert tuple(UNKNOWN) == (True, True, True)
    assert verdict_budget("NobodyKnowsThis", {}) is Budget.COUNTED


def test_harbor_knows_every_name_that_stands_beside_our_reasons() -> None:
    known = {*ERROR_POLICIES, "ValueError"}
    assert {reason for reason, policy in POLICIES.items() if policy.harbor not in known} == set()


def test_no_failure_of_ours_could_be_a_valid_score_for_harbor() -> None:
    valid = {name for name, policy in ERROR_POLICIES.items() if policy.valid}
    assert not {policy.harbor for policy in POLICIES.values()} & valid


@pytest.mark.conforms("H-145", "H-146")
@given(st.integers(1, 50), st.text(max_size=20))
def test_the_pause_doubles_within_its_bounds_and_is_the_same_in_every_pass(failures: int, seed: str) -> None:
    seconds = backoff_seconds(RULES, failures=failures, seed=seed)
    limit = min(60, 2.0 ** (failures - 1))
    assert limit / 2 <= seconds <= limit
    assert seconds == backoff_seconds(RULES, failures=failures, seed=seed)


def test_the_pause_differs_between_trials() -> None:
    assert len({backoff_seconds(RULES, failures=3, seed=f"trial-{number}") for number in range(20)}) > 10
