"""Scalars, frozen maps, parsing."""

from __future__ import annotations

import copy
import json
import pickle
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest
from pydantic import ValidationError

from seatrial.api.evaljob import AgentSpec, EvalJob, EvalJobSpec
from seatrial.api.meta import Condition, Duration, FrozenDict, ObjectKey, Problem, Quantity, StatusText
from seatrial.api.task import Task
from seatrial.errors import InvalidSpec


def raw_job(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "seatrial.dev/v1alpha1",
        "kind": "EvalJob",
        "metadata": {"name": "smoke", "namespace": "evals", "uid": "u-1", "generation": 2},
        "spec": {"taskset": "smoke", **spec},
    }


@pytest.mark.parametrize(("text", "seconds"), [("1s", 1), ("30m", 1800), ("1h30m", 5400), ("2d", 172_800), ("1d2h3m4s", 93_784)])
def test_durations_in_seconds(text: str, seconds: int) -> None:
    assert EvalJob.parse(raw_job(timeouts={"pending": text})).spec.timeouts.pending.seconds == seconds


@pytest.mark.parametrize("text", ["", "0s", "5", "-1s", "1.5h", "1w", "1h ", "1h30m\n"])
def test_bad_durations_are_refused(text: str) -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.timeouts\.pending"):
        EvalJob.parse(raw_job(timeouts={"pending": text}))


@pytest.mark.parametrize(
    ("text", "amount"),
    [("2", "2"), (2, "2"), ("500m", "0.5"), ("1.5", "1.5"), ("4Gi", "4294967296"), ("4G", "4000000000"), ("1k", "1000"), ("1Ki", "1024")],
)
def test_quantities_in_base_units(text: str | int, amount: str) -> None:
    found = EvalJob.parse(raw_job(resources={"overrides": {"memory": text}})).spec.resources.overrides.memory
    assert found is not None
    assert found.amount == Decimal(amount)


@pytest.mark.parametrize("text", ["", "4GB", "-1", "1e3", ".5", True, 1.5])
def test_bad_quantities_are_refused(text: object) -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.resources\.overrides\.cpu"):
        EvalJob.parse(raw_job(resources={"overrides": {"cpu": text}}))


def test_models_and_their_maps_are_frozen() -> None:
    agent = EvalJob.parse(raw_job(agent={"name": "nop", "env": {"A": "b"}})).spec.agent
    with pytest.raises(ValidationError):
        agent.name = "oracle"  # type: ignore[misc]
    with pytest.raises(TypeError, match="frozen"):
        agent.env["A"] = "c"  # type: ignore[index]
    assert (agent.env, type(agent.env)) == ({"A": "b"}, FrozenDict)


def test_a_frozen_map_can_be_copied_and_pickled() -> None:
    value = FrozenDict({"a": 1})
    assert (copy.deepcopy(value), pickle.loads(pickle.dumps(value)), dict(value)) == ({"a": 1},) * 3


def test_models_are_built_with_snake_case_and_written_with_camel_case() -> None:
    spec = EvalJobSpec(taskset="smoke", reward_key="correctness", agent=AgentSpec(import_path="a.b:C"))
    raw = spec.raw()
    assert (raw["rewardKey"], raw["agent"]["importPath"], "tasks" in raw) == ("correctness", "a.b:C", False)
    assert EvalJobSpec.model_validate(raw) == spec


def test_the_operator_ignores_unknown_fields_and_the_user_is_told() -> None:
    raw = {**raw_job(agents=["x"]), "extra": 1}
    assert EvalJob.parse(raw).spec.taskset == "smoke"
    assert EvalJob.problems(raw) == (Problem("spec.agents", "unknown field"), Problem("extra", "unknown field"))
    with pytest.raises(InvalidSpec, match=r"spec\.agents: unknown field; extra: unknown field"):
        EvalJob.parse_strict(raw)


def test_snake_case_in_a_users_file_is_an_unknown_field() -> None:
    assert EvalJob.problems(raw_job(reward_key="x")) == (Problem("spec.reward_key", "unknown field"),)


def test_metadata_of_the_server_is_never_an_unknown_field() -> None:
    raw = raw_job()
    raw["metadata"] |= {"managedFields": [{}], "ownerReferences": [], "labels": {"a": "b"}, "annotations": None}
    job = EvalJob.parse_strict(raw)
    assert (job.key, str(job.key), job.metadata.labels) == (ObjectKey("evals", "smoke"), "evals/smoke", {"a": "b"})


def test_read_only_views_are_read() -> None:
    assert EvalJob.parse(MappingProxyType({**raw_job(), "spec": MappingProxyType({"tasks": ("a", "b")})})).spec.tasks == ("a", "b")


def test_a_null_inside_free_form_data_is_kept() -> None:
    assert EvalJob.parse(raw_job(agent={"name": "nop", "kwargs": {"a": None}})).spec.agent.raw()["kwargs"] == {"a": None}


def test_messages_do_not_repeat_what_the_user_wrote() -> None:
    raw = raw_job(taskset="SECRET value", attempts="SECRET", rewardKey="SECRET\x00", cache={"policy": "SECRET"})
    assert "SECRET" not in str([*EvalJob.problems(raw)])


def test_another_kind_is_refused() -> None:
    assert [problem.path for problem in Task.problems(raw_job())] == ["kind", "spec.source", "spec.taskset"]


def test_status_text_is_cut_by_bytes_and_has_no_control_characters() -> None:
    assert StatusText.cut("a\nb\x00c", 10) == "a b c"
    cut = StatusText.cut("ä" * 200, 256)
    assert (len(cut.encode()), cut[-1]) == (255, "…")


def test_a_condition_takes_any_message() -> None:
    found = Condition(type="Failed", status="True", reason="X", message="\x01" + 'x"' * 5000, last_transition_time="2026-01-01T00:00:00Z")
    assert (len(json.dumps(found.message, ensure_ascii=False).encode()) - 2, found.message[:4]) == (1024, ' x"x')


def test_types_are_usable_as_text() -> None:
    assert (Duration("5m") == "5m", Quantity("1Gi") == "1Gi") == (True, True)
