"""seatrial reads task files exactly as Harbor 0.26.0 does. The answers in ``data/`` were given by Harbor (``harbor_vectors.py``)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from seatrial.taskpkg.dataset import choose_version
from seatrial.taskpkg.digest import content_digest, content_files, environment_id
from seatrial.taskpkg.instruction import read_instruction
from seatrial.taskpkg.native import check_native
from seatrial.taskpkg.parse import parse_task_toml

HERE = Path(__file__).parent


def load_vectors_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("harbor_vectors", HERE / "harbor_vectors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answers(name: str) -> Any:
    return json.loads((HERE / "data" / f"harbor_{name}.json").read_text())


VECTORS = load_vectors_module()
TASKS: list[dict[str, Any]] = answers("tasks")


@pytest.mark.conforms("H-1", "H-2", "H-3", "H-4", "H-5", "H-6", "H-7", "H-8", "H-9", "H-10", "H-11", "H-12", "H-13", "H-14", "H-20")
def test_every_config_is_accepted_refused_and_read_as_harbor_does() -> None:
    differences: list[tuple[str, object, object]] = []
    vectors = answers("configs")
    for vector in vectors:
        config, problems = parse_task_toml(vector["toml"])
        found = None if config is None else VECTORS.reduced(config.model_dump(mode="json", exclude_defaults=True))
        if found != vector["config"]:
            differences.append((vector["toml"], vector["config"], found))
        assert (config is None) == any(problem.severity == "error" for problem in problems)
    assert differences == []
    assert len(vectors) > 500
    assert 100 < sum(vector["config"] is None for vector in vectors) < len(vectors) - 100


@pytest.mark.conforms("H-15", "H-16", "H-17", "H-19")
@pytest.mark.parametrize("answer", TASKS, ids=[answer["name"] for answer in TASKS])
def test_a_folder_is_valid_exactly_if_it_is_for_harbor(tmp_path: Path, answer: dict[str, Any]) -> None:
    folder = tmp_path / answer["name"]
    VECTORS.build_folder(folder, answer["entries"])
    assert (check_native(folder).is_valid, check_native(folder, verification=False).is_valid) == (
        answer["valid"],
        answer["valid_without_verification"],
    )


@pytest.mark.conforms("H-19", "H-25", "H-26")
@pytest.mark.parametrize("answer", TASKS, ids=[answer["name"] for answer in TASKS])
def test_digests_equal_harbors(tmp_path: Path, answer: dict[str, Any]) -> None:
    folder = tmp_path / answer["name"]
    VECTORS.build_folder(folder, answer["entries"])
    try:
        digest, files = content_digest(folder), [relative for relative, _ in content_files(folder)]
    except (OSError, ValueError):
        digest = files = None  # type: ignore[assignment]
    assert (digest, files, environment_id(folder, docker_image="image:1")) == (answer["digest"], answer["files"], answer["environment_id"])


@pytest.mark.conforms("H-18")
def test_instructions_are_read_as_harbor_does() -> None:
    vectors = answers("instructions")
    assert {vector["text"]: read_instruction(vector["text"]) for vector in vectors} == {
        vector["text"]: vector["instruction"] for vector in vectors
    }


@pytest.mark.conforms("H-28")
def test_a_datasets_version_is_chosen_as_harbor_does() -> None:
    vectors = answers("versions")
    assert [choose_version(vector["versions"]) for vector in vectors] == [vector["chosen"] for vector in vectors]


@pytest.mark.skipif(
    not os.environ.get("SEATRIAL_HARBOR_PYTHON"), reason="no interpreter with harbor==0.26.0 (make test-unit looks for one)"
)
def test_the_stored_answers_are_harbors() -> None:
    run = subprocess.run(
        [os.environ["SEATRIAL_HARBOR_PYTHON"], str(HERE / "harbor_vectors.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (run.returncode, run.stderr) == (0, "")
