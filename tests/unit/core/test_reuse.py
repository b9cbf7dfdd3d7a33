from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from seatrial.core import rows
from seatrial.core.frozen import decode_plan, encode_plan
from seatrial.core.reuse import Source, adopt_cached, adopt_job, cache_name, decode_entry, encode_entry, identity, is_reusable
from seatrial.core.rows import Origin, TrialError
from tests.builders import make_job, make_row, make_task

BASE: dict[str, Any] = {"agent": {"name": "oracle", "kwargs": {"a": 1}, "env": {"MODE": "fast"}}}
LOST = TrialError("NodeLost", "RuntimeError", "infrastructure", "gone")
TIMEOUT = TrialError("AgentTimeoutError", "AgentTimeoutError", "agent", "late")


def id_of(runner: str = "r:1", version: str = "1", **spec: Any) -> str:
    return identity(make_job().spec(**{**BASE, **spec}).job_spec(), runner_image=runner, version=version)


@pytest.mark.conforms("N-147", "N-149", "N-150")
@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"attempts": 5}, True),
        ({"concurrency": 9}, True),
        ({"retry": {"max": 3}}, True),
        ({"rewardKey": "x"}, True),
        ({"metrics": [{"type": "max"}]}, True),
        ({"thresholds": [{"score": "reward.mean", "atLeast": 1.0}]}, True),
        ({"pod": {"nodeSelector": {"a": "b"}}}, True),
        ({"timeouts": {"pending": "5m"}}, True),
        ({"timeouts": {"multiplier": 2.0}}, False),
        ({"agent": {"name": "nop"}}, False),
        ({"agent": {**BASE["agent"], "kwargs": {"a": 2}}}, False),
        ({"agent": {**BASE["agent"], "env": {"MODE": "slow"}}}, False),
        ({"agent": {**BASE["agent"], "envSecrets": {"KEY": {"name": "s", "key": "k"}}}}, False),
        ({"environment": {"env": {"X": "1"}}}, False),
        ({"verifier": {"disable": True}}, False),
        ({"artifacts": [{"source": "/x"}]}, False),
        ({"runner": "r:2"}, False),
        ({"version": "2"}, False),
    ],
    ids=str,
)
def test_what_is_part_of_the_identity(change: dict[str, Any], same: bool) -> None:
    assert (id_of(**change) == id_of()) is same


@pytest.mark.conforms("N-151")
def test_the_contents_of_an_agents_source_are_part_of_the_identity_and_without_one_the_runner_image_is() -> None:
    agent = {"importPath": "mine:Mine"}
    one, two = ({**agent, "source": {"ref": f"e/agent-sources#{digit * 64}/source", "sha256": digit * 64}} for digit in "ab")
    assert id_of(agent=one) == id_of(agent=one)
    assert len({id_of(agent=one), id_of(agent=two), id_of(agent=agent), id_of("r:2", agent=agent)}) == 4


@pytest.mark.conforms("N-143", "N-147")
def test_a_changed_archive_another_attempt_and_another_task_have_other_names() -> None:
    plan = make_job().tasks(make_task("bench/a"), make_task("bench/b")).spec(attempts=2).plan()
    changed = replace(plan, tasks=(replace(plan.tasks[0], archive_sha256="b" * 64), plan.tasks[1]))
    names = [cache_name(plan, trial) for trial in plan.trials] + [cache_name(changed, plan.trials[0])]
    assert len(set(names)) == 5


@pytest.mark.conforms("N-141")
def test_a_valid_result_with_an_error_beside_it_is_kept_and_served() -> None:
    row = make_row("t", 2, error=TIMEOUT, pod="p", stored=True)
    assert is_reusable(row)
    found = decode_entry(encode_entry(row, folder="jobs/e/j-1/"))
    assert found == replace(row, pod="", origin=Origin("jobs/e/j-1/", "t", 2))
    assert not is_reusable(make_row("t", outcome="errored", error=LOST))
    assert found is not None
    assert not is_reusable(found)


def test_an_entry_without_a_valid_reward_is_not_served() -> None:
    assert decode_entry(encode_entry(make_row("t", outcome="errored", error=LOST), folder="f/")) is None


@pytest.mark.parametrize(
    "change",
    [
        {"rewards": {}},
        {"rewards": None},
        {"rewards": [1]},
        {"rewards": {"reward": float("nan")}},
        {"rewards": {"reward": 10**400}},
        {"rewards": {"reward": {}}},
        {"retry": -1},
        {"retry": "0"},
        {"outcome": "won"},
        {"outcome": "errored"},
        {"error": {"type": 1}},
        {"error": "x"},
        {"origin": None},
        {"origin": {"folder": "jobs/e/j-1/"}},
        {"origin": {"folder": "filesets/e/secret/", "trial": "t", "retry": 0}},
        {"origin": {"folder": "jobs/e/j-1/../../x/", "trial": "t", "retry": 0}},
        {"origin": {"folder": "jobs/e/j-1/", "trial": "../t", "retry": 0}},
        {"origin": {"folder": 7, "trial": "t", "retry": 0}},
        {"origin": {"folder": "jobs/e/j-1/", "trial": "t", "retry": True}},
    ],
    ids=lambda change: str(change)[:60],
)
def test_a_forged_entry_is_not_served(change: dict[str, Any]) -> None:
    body = json.loads(encode_entry(make_row("t", rewards={"reward": 1.0}), folder="jobs/e/j-1/"))
    assert decode_entry(json.dumps(body).encode()) is not None
    assert decode_entry(json.dumps({**body, "row": {**body["row"], **change}}).encode()) is None


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"7", b'{"format": 1}', b'{"format": 1, "row": []}', b"[" * 100_000], ids=lambda data: data[:20]
)
def test_what_is_no_entry_is_not_served(data: bytes) -> None:
    assert decode_entry(data) is None


def test_adopted_rows_have_the_names_of_this_job_and_remember_where_they_came_from() -> None:
    plan = make_job().spec(attempts=2).plan()
    first = plan.trials[0]
    row = replace(make_row("other__1234567", 3, pod="p"), origin=Origin("jobs/e/old-1/", "other__1234567", 3))
    (adopted,) = adopt_cached(plan, {cache_name(plan, first): row}).adopted
    assert (adopted.trial, adopted.retry, adopted.pod, adopted.origin) == (first.name, 0, "", Origin("jobs/e/old-1/", "other__1234567", 3))


def test_a_plan_with_adopted_rows_survives_its_encoding() -> None:
    plan = make_job().plan()
    row = make_row(plan.trials[0].name)
    source = Source("jobs/e/old-1/", plan, {row.trial: row})
    adopted = replace(adopt_job(plan, source, rerun_errors=()), identity="f" * 64)
    assert decode_plan(encode_plan(adopted)) == adopted
    assert rows.from_lines(rows.to_lines(adopted.adopted)) == adopted.adopted
    assert "adopted" not in json.loads(encode_plan(plan))


@pytest.mark.parametrize(
    ("error", "outcome", "types", "runs"),
    [
        (None, "scored", (), False),
        (TIMEOUT, "scored", (), False),
        (TIMEOUT, "scored", ("AgentTimeoutError",), True),
        (LOST, "errored", (), True),
        (LOST, "errored", ("NodeLost",), True),
        (LOST, "errored", ("RuntimeError",), True),
        (LOST, "errored", ("OOMKilled",), False),
        (None, "cancelled", ("OOMKilled",), True),
    ],
)
def test_which_trials_of_a_job_run_again(error: TrialError | None, outcome: Any, types: tuple[str, ...], runs: bool) -> None:
    plan = make_job().plan()
    row = make_row(plan.trials[0].name, outcome=outcome, error=error)
    adopted = adopt_job(plan, Source("f/", plan, {row.trial: row}), rerun_errors=types).adopted
    assert (adopted == ()) is runs
