"""The generated CRDs: equal to the models, structural, bounded; the status fits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
import yaml
from pydantic import BaseModel, Field

from seatrial.api import crdgen
from seatrial.api.crdgen import KINDS, NotStructural, generated_files, structural_schema
from seatrial.api.evaljob import (
    MAX_COVERAGE,
    MAX_ERROR_SAMPLE,
    MAX_ERRORS,
    MAX_SCORES,
    MAX_THRESHOLDS,
    Cause,
    CoverageStatus,
    ErrorStatus,
    EvalJob,
    EvalJobStatus,
    PlanStatus,
    ResultsStatus,
    ScoreStatus,
    ThresholdStatus,
    TrialCounts,
)
from seatrial.api.meta import CEL, Condition, Model, Resource
from seatrial.api.reasons import JOB_CONDITIONS
from seatrial.contract import CAUSES

ROOT = Path(__file__).resolve().parents[3]


def test_committed_crds_are_those_of_the_models() -> None:
    assert {path: path.read_text() for path in generated_files(ROOT)} == generated_files(ROOT)


def test_check_names_a_file_that_differs_and_writing_mends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert crdgen.main(["--check", "--root", str(tmp_path)]) == 1
    assert "crds/evaljobs.yaml differs from the models: run `make generate`" in capsys.readouterr().err
    assert crdgen.main(["--root", str(tmp_path)]) == 0
    assert crdgen.main(["--check", "--root", str(tmp_path)]) == 0


def test_the_chart_keeps_its_crds_and_can_leave_them_out() -> None:
    text = (ROOT / "charts/seatrial/templates/crds/evaljobs.yaml").read_text()
    assert text.splitlines()[1] == "{{- if .Values.crds.install }}"
    assert text.count("{{") == 2
    assert "    helm.sh/resource-policy: keep\n" in text


@pytest.mark.parametrize(
    ("plural", "short", "columns"),
    [
        ("tasks", ["tsk"], ["Verified", "Revision", "Age"]),
        ("tasksets", ["tset"], ["Pinned", "Members", "Age"]),
        ("evaljobs", ["ej"], ["Phase", "Done", "Errored", "Mean", "Age"]),
    ],
)
def test_names_and_columns(plural: str, short: list[str], columns: list[str]) -> None:
    spec = yaml.safe_load((ROOT / f"crds/{plural}.yaml").read_text())["spec"]
    version = spec["versions"][0]
    assert (spec["group"], spec["scope"], spec["names"]["shortNames"], spec["names"]["categories"]) == (
        "seatrial.dev",
        "Namespaced",
        short,
        ["seatrial"],
    )
    assert [column["name"] for column in version["additionalPrinterColumns"] if not column.get("priority")] == columns
    assert (version["name"], version["served"], version["storage"], version["subresources"]) == ("v1alpha1", True, True, {"status": {}})


def fields(model: type[BaseModel]) -> dict[str, Any]:
    """Names of a model's fields as written, down to the leaves."""
    return {info.alias or name: _inside(info.annotation) for name, info in model.model_fields.items()}


def _inside(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return fields(annotation)
    found = [_inside(item) for item in get_args(annotation) if item is not type(None)]
    return next((item for item in found if item), None)


def properties(schema: dict[str, Any]) -> Any:
    for word in ("items", "additionalProperties"):
        if word in schema:
            return properties(schema[word])
    return {name: properties(item) for name, item in schema["properties"].items()} if "properties" in schema else None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_schema_has_every_field_of_spec_and_status(kind: type[Resource]) -> None:
    found = structural_schema(kind)["properties"]
    wanted = {name: kind.model_fields[name].annotation for name in ("spec", "status")}
    assert {name: properties(found[name]) for name in wanted} == {name: _inside(model) for name, model in wanted.items()}


def walk(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for item in schema.get("properties", {}).values():
        yield from walk(item)
    for word in ("items", "additionalProperties"):
        if word in schema:
            yield from walk(schema[word])


def test_status_has_no_defaults_and_spec_defaults_are_literal() -> None:
    schema = structural_schema(EvalJob)["properties"]
    assert [item for item in walk(schema["status"]) if "default" in item] == []
    assert schema["spec"]["properties"]["agent"]["default"] == {"name": "oracle"}
    assert schema["spec"]["properties"]["retry"]["default"] == {}
    assert "default" not in schema["spec"]["properties"]["rewardKey"]


def test_every_rule_has_a_message_that_a_user_can_act_on() -> None:
    rules = [rule for kind in KINDS for item in walk(structural_schema(kind)) for rule in item.get(CEL, ())]
    assert len(rules) > 50
    assert [rule for rule in rules if not rule["message"] or rule["message"].split()[0].istitle() or rule["message"].endswith(".")] == []


class _Spec(Model):
    pass


def _kind(model: type[BaseModel]) -> type[Resource]:
    namespace = {"__annotations__": {"kind": Literal["Odd"], "spec": model, "status": _Spec}, "__module__": __name__, "__doc__": "Odd."}
    return type("Odd", (Resource,), {**namespace, "status": Field(description="Status."), "spec": Field(description="Spec.")})


class _Union(Model):
    either: int | str = Field(description="A union.")


class _Fixed(Model):
    pair: tuple[int, str] = Field(description="A pair.")


class _Unbounded(Model):
    items: tuple[int, ...] = Field(description="A list without a bound.")


class _Undescribed(Model):
    number: int = 0


class _Foreign(Model):
    number: int = Field(description="A multiple.", multiple_of=3)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (_Union, "spec.either: a union of 2 types"),
        (_Fixed, "spec.pair: a tuple of fixed length"),
        (_Unbounded, "Odd.spec.items: a list needs maxItems and a list type"),
        (_Undescribed, "Odd.spec.number: no description"),
        (_Foreign, "Odd.spec.number: multipleOf"),
    ],
)
def test_what_a_structural_schema_cannot_say_is_refused_by_path(model: type[BaseModel], message: str) -> None:
    with pytest.raises(NotStructural) as caught:
        structural_schema(_kind(model))
    assert str(caught.value) == message


def test_causes_are_those_of_the_contract() -> None:
    assert get_args(Cause) == CAUSES


# --- size -----------------------------------------------------------------------------------------------------------------------------


def worst_case() -> EvalJobStatus:
    """Every list full, every name and text as long as it may be; quotes, because JSON doubles them."""
    big = 10**9
    name = "n" * 124
    text = '"' * 5000
    number = "-" + "1" * 31
    time = "2026-01-01T00:00:00.000000Z"
    return EvalJobStatus(
        observed_generation=big,
        phase="Completed",
        progress="100000/100000",
        plan=PlanStatus(key="k" * 700, sha256="a" * 64, tasks=big, trials=big),
        trials=TrialCounts(**dict.fromkeys(TrialCounts.model_fields, big)),
        mean=number,
        scores=tuple(ScoreStatus(name=f"{name}{i:04}", value=number, count=big, missing=big) for i in range(MAX_SCORES)),
        coverage=tuple(CoverageStatus(name=f"{name}{i:04}", total=big, scored=big, failed=big, missing=big) for i in range(MAX_COVERAGE)),
        errors=tuple(
            ErrorStatus(type=f"{'E' * 96}{i:04}", cause="infrastructure", count=big, sample=("t" * 64,) * MAX_ERROR_SAMPLE, message=text)
            for i in range(MAX_ERRORS)
        ),
        thresholds=tuple(
            ThresholdStatus(score=f"{name}{i:04}", at_least=-1.5e-300, value=number, passed=False) for i in range(MAX_THRESHOLDS)
        ),
        results=ResultsStatus(prefix="p" * 700, summary="s" * 700),
        start_time=time,
        completion_time=time,
        conditions=tuple(
            Condition(type=kind, status="Unknown", reason="R" * 64, message=text, last_transition_time=time, observed_generation=big)
            for kind in JOB_CONDITIONS
        ),
    )


def test_the_largest_status_is_below_64_kib() -> None:
    status = worst_case()
    assert [len(getattr(status, name)) for name in ("scores", "coverage", "errors", "thresholds")] == [64, 32, 20, 32]
    assert len(json.dumps(status.raw(), ensure_ascii=False).encode()) < 64 * 1024
