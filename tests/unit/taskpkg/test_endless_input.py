"""Input that would take minutes or for ever where an algorithm is careless: each is answered within seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from seatrial.taskpkg.check import check_task
from seatrial.taskpkg.instruction import read_instruction, record_instruction
from seatrial.taskpkg.isolated import check_untrusted
from seatrial.taskpkg.parse import MAX_PROBLEMS, parse_task_toml

MakeTask = Callable[..., Path]
MEBIBYTE = 2**20


@pytest.fixture(autouse=True)
def within_seconds() -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a." * 500_000 + "a = 1\n", id="dotted-key"),
        pytest.param("[metadata]\n" + "a." * 150 + "a = 1\n", id="deep-table"),
        pytest.param("a = " + "[" * 500_000, id="open-lists"),
        pytest.param("a = [" + "1," * 400_000 + "]\n", id="half-a-million-values"),
        pytest.param("a" * MEBIBYTE, id="one-word"),
        pytest.param('"' * MEBIBYTE, id="quotes"),
        pytest.param(
            '[[environment.mcp_servers]]\nname = "x"\nurl = "y"\nheaders = {A = "' + "${A:-" * 200_000 + '"}\n', id="header-templates"
        ),
    ],
)
def test_absurd_text_is_refused_quickly(text: str) -> None:
    config, problems = parse_task_toml(text)
    assert config is None
    assert [problem.severity for problem in problems] == ["error"]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        pytest.param("".join(f"key{index} = 1\n" for index in range(19_000)), MAX_PROBLEMS, id="unknown-keys"),
        pytest.param(
            "[environment]\n" + "".join(f"memory_mbx{index} = 1\n" for index in range(19_000)), MAX_PROBLEMS, id="almost-known-keys"
        ),
        pytest.param("x" * 1_000_000 + " = 1\n", 1, id="long-key"),
        pytest.param("[task]\nname = 'o/n'\nauthors = [" + "1," * 19_000 + "]\n", MAX_PROBLEMS, id="wrong-elements"),
    ],
)
def test_the_number_of_problems_is_bounded(text: str, count: int) -> None:
    _, problems = parse_task_toml(text)
    assert len(problems) == count


@pytest.mark.parametrize("start", ["<!--", "#", "<!-- ", "<!--" + " " * 500_000])
@pytest.mark.parametrize("word", ["canary", "SPDX-License-Identifier", "-- ", "<!--"])
def test_long_comment_lines_are_read_quickly(start: str, word: str) -> None:
    text = start + word * (MEBIBYTE // len(word))
    read_instruction(text)
    assert record_instruction(text) == text.strip()


def test_patterns_that_never_end_are_a_problem_of_a_strangers_task(make_task: MakeTask) -> None:
    task = make_task(files={".gitignore": "*a*a*a*a*a*a*a*a*a*a*a*a*b\n", "tests/" + "a" * 200: "x"})
    checked = check_untrusted(task, seconds=3)
    assert (checked.valid, checked.digest) == (False, None)
    assert [(problem.severity, problem.rule) for problem in checked.problems] == [("error", "check-limit")]


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({}, id="in-this-process"),
        pytest.param({".gitignore": "*.log\n", "tests/a.log": "x"}, id="with-rules"),
        pytest.param({"tests/.harborignore": "data\n", "tests/data": "x", "environment/docker-compose.yml": ""}, id="with-warnings"),
        pytest.param({".gitignore": "", "task.toml": "[agent]\nuser = 1.5\n"}, id="with-errors"),
        pytest.param({".gitignore": "", "task.toml": "a ="}, id="unreadable"),
    ],
)
def test_a_strangers_task_is_judged_as_any_other(make_task: MakeTask, files: dict[str, str]) -> None:
    task = make_task(files=files)
    assert check_untrusted(task) == check_task(task)


def test_rule_files_are_bounded(make_task: MakeTask) -> None:
    rules = "x\n" * 200_000
    problems = check_task(make_task(files={"tests/.harborignore": rules})).problems
    assert [(problem.rule, problem.file) for problem in problems if problem.severity == "error"] == [
        ("harborignore", "tests/.harborignore")
    ]
