"""Every file of ``tests/cases`` through the models; ``tests/e2e/test_crds.py`` sends the same files to an API server.

First lines of a file: ``# problem: PATH | TEXT`` is what the models must say, ``# server: TEXT`` what the server must say.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from seatrial.api.crdgen import KINDS
from seatrial.api.meta import Problem, Resource

CASES = Path(__file__).parents[2] / "cases"
MODELS: Mapping[str, type[Resource]] = {kind.__name__: kind for kind in KINDS}
FILES = sorted(CASES.glob("*.yaml"))


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def expected_problem(path: Path) -> Problem | None:
    for line in path.read_text().splitlines():
        if line.startswith("# problem: "):
            where, _, text = line.removeprefix("# problem: ").partition(" | ")
            return Problem(where, text)
    return None


def test_there_are_valid_and_invalid_cases_of_every_kind() -> None:
    found = {(path.name.split("_")[0], documents(path)[0]["kind"]) for path in FILES}
    assert found >= {(verdict, kind) for verdict in ("valid", "invalid") for kind in MODELS}


@pytest.mark.parametrize("path", [path for path in FILES if expected_problem(path) is None], ids=lambda path: path.stem)
def test_models_accept(path: Path) -> None:
    assert [MODELS[item["kind"]].problems(item) for item in documents(path)] == [()] * len(documents(path))


@pytest.mark.parametrize("path", [path for path in FILES if expected_problem(path) is not None], ids=lambda path: path.stem)
def test_models_refuse_with_path_and_reason(path: Path) -> None:
    (item,) = documents(path)
    wanted = expected_problem(path)
    assert wanted is not None
    found = MODELS[item["kind"]].problems(item)
    assert [(problem.path, wanted.message in problem.message) for problem in found] == [(wanted.path, True)], found


@pytest.mark.parametrize("path", [path for path in FILES if path.name.startswith("invalid_")], ids=lambda path: path.stem)
def test_every_invalid_case_says_what_the_server_answers(path: Path) -> None:
    assert any(line.startswith("# server: ") for line in path.read_text().splitlines())


@pytest.mark.conforms("N-76")
def test_there_are_no_named_profiles_a_job_says_what_its_pods_need() -> None:
    (item,) = documents(CASES / "valid_evaljob_minimal.yaml")
    assert MODELS["EvalJob"].problems({**item, "spec": {**item["spec"], "profile": "default"}}) == (
        Problem("spec.profile", "unknown field"),
    )
    assert MODELS["EvalJob"].problems({**item, "spec": {**item["spec"], "pod": {"nodeSelector": {"disk": "ssd"}}}}) == ()


@pytest.mark.conforms("N-102")
def test_exactly_one_agent_is_named() -> None:
    message = "give exactly one of name, image, command and importPath"
    for name in ("invalid_evaljob_two_agents", "invalid_evaljob_no_agent"):
        (item,) = documents(CASES / f"{name}.yaml")
        assert MODELS["EvalJob"].problems(item) == (Problem("spec.agent", message),)
