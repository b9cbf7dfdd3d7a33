"""Warnings about Dockerfiles: what surely cannot be built elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from seatrial.taskpkg.check import check_task


def write_task(tmp_path: Path, dockerfile: str, *, files: Mapping[str, str] | None = None) -> Path:
    folder = tmp_path / "task"
    plain = {
        "task.toml": "",
        "instruction.md": "Do it.\n",
        "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
        "solution/solve.sh": "true\n",
        "environment/there.txt": "",
        "environment/sub/file": "",
        "environment/Dockerfile": dockerfile,
    }
    for name, text in {**plain, **(files or {})}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("dockerfile", "found"),
    [
        ("FROM a\nCOPY there.txt /x\nCOPY . /x\nCOPY sub/ /x\n", []),
        ("FROM a\nRUN true\nCOPY gone.txt there.txt /x/\n", [("copy-source", 3)]),
        ("FROM a\nCOPY --chmod=755 ./gone.txt /x\n", [("copy-source", 2)]),
        ("FROM a\nCOPY --from=build gone.txt /x\nCOPY *.gone ${GONE} /x/\nCOPY <<EOT /x\nCOPY gone /x\nEOT\n", []),
        ('FROM a\nCOPY ["gone with spaces.txt", "/x"]\n', []),
        ("FROM localhost/mine:1\n", [("local-base", 1)]),
        (
            "FROM --platform=linux/amd64 127.0.0.1:5000/mine:1 AS a\nFROM host.docker.internal:5000/b\n",
            [("local-base", 1), ("local-base", 2)],
        ),
        ("FROM a\nCOPY sub/ /tests/\n", [("tests-in-image", 2)]),
        ("FROM a\nADD tests/test.sh /opt/\n", [("tests-in-image", 2)]),
        ('FROM a\nCOPY ["sub", "/solution"]\n', [("tests-in-image", 2)]),
        ("FROM a\nCOPY --from=a /tests /tests\nCOPY sub /opt/tests\nRUN mkdir /tests\n", []),
    ],
    ids=[
        "all there",
        "one missing",
        "options",
        "not to be known",
        "JSON form",
        "local base",
        "local registries",
        "tests by their target",
        "tests by their source",
        "solution in JSON form",
        "neither",
    ],
)
def test_a_dockerfile_that_cannot_be_built_elsewhere_is_warned_about(tmp_path: Path, dockerfile: str, found: list[tuple[str, int]]) -> None:
    checked = check_task(write_task(tmp_path, dockerfile))
    assert checked.valid
    wanted = ("copy-source", "local-base", "tests-in-image")
    assert [(problem.rule, problem.line) for problem in checked.problems if problem.rule in wanted] == found


def test_tests_that_a_copy_of_everything_takes_along_are_warned_about(tmp_path: Path) -> None:
    checked = check_task(write_task(tmp_path, "FROM a\nCOPY . /app\n", files={"environment/solution/solve.sh": "true\n"}))
    assert [(problem.rule, problem.message) for problem in checked.problems] == [
        ("tests-in-image", "COPY puts environment/solution into the environment's image, where the agent can read it")
    ]


def test_tests_in_the_image_of_a_separate_verifier_are_right(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "FROM a\n", files={"tests/Dockerfile": "FROM a\nCOPY . /tests\n"})
    (folder / "task.toml").write_text('[verifier]\nenvironment_mode = "separate"\n')
    assert check_task(folder).problems == ()


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("debian", []),
        ("Debian:12", ["image-name"]),
        ("debian:12 slim", ["image-name"]),
        ("https://registry.example/web:1", ["image-name"]),
        ("registry.example/web:", ["image-name"]),
        ("web:a:b", ["image-name"]),
        ("Registry.example:5000/team/web_app.x--y:V1.2_b", []),
        ("[fd00::1]:5000/web@sha256:" + "0" * 64, []),
        ("registry.example/web:1@sha256:" + "0" * 64, []),
    ],
)
def test_what_no_registry_can_have_is_no_name_of_an_image(tmp_path: Path, name: str, rules: list[str]) -> None:
    folder = write_task(tmp_path, "FROM a\n")
    (folder / "task.toml").write_text(f'[environment]\ndocker_image = "{name}"\n')
    assert [problem.rule for problem in check_task(folder).problems] == rules


def test_an_image_of_one_machine_is_warned_about_in_task_toml(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "FROM a\n")
    (folder / "task.toml").write_text('[environment]\ndocker_image = "localhost:5000/mine:1"\n')
    assert [(problem.rule, problem.key) for problem in check_task(folder).problems] == [("local-image", "environment.docker_image")]
