"""Image keys: what decides an image's content changes the key, and nothing else does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from seatrial.taskpkg.dockerfile import Instruction, instructions
from seatrial.taskpkg.dockerignore import DockerignoreError, parse_dockerignore
from seatrial.taskpkg.imagekey import ContextError, image_key, read_context


def make_context(folder: Path) -> Path:
    (folder / "src").mkdir(parents=True)
    (folder / "Dockerfile").write_text("FROM scratch\nCOPY src /src\n")
    (folder / "src" / "a.txt").write_text("a\n")
    (folder / "src" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "src" / "link").symlink_to("a.txt")
    (folder / "notes.log").write_text("1\n")
    (folder / ".dockerignore").write_text("*.log\n")
    return folder


def change_name(folder: Path) -> None:
    (folder / "src" / "a.txt").rename(folder / "src" / "b.txt")


@pytest.mark.conforms("H-58")
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda folder: (folder / "Dockerfile").write_text("FROM scratch\n"), id="Dockerfile"),
        pytest.param(lambda folder: (folder / "src" / "a.txt").write_text("b\n"), id="content"),
        pytest.param(change_name, id="name"),
        pytest.param(lambda folder: (folder / "src" / "run.sh").chmod(0o755), id="execution bit"),
        pytest.param(lambda folder: (folder / "new.txt").write_text(""), id="new file"),
        pytest.param(lambda folder: (folder / ".dockerignore").write_text(""), id="a file no longer ignored"),
        pytest.param(
            lambda folder: ((folder / "src" / "link").unlink(), (folder / "src" / "link").symlink_to("run.sh")), id="target of a link"
        ),
    ],
)
def test_a_change_of_what_the_build_reads_changes_the_key(tmp_path: Path, change: Callable[[Path], object]) -> None:
    folder = make_context(tmp_path / "environment")
    before = read_context(folder).key
    change(folder)
    assert read_context(folder).key != before


@pytest.mark.conforms("H-58")
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda folder: (folder / "notes.log").write_text("2\n"), id="ignored file"),
        pytest.param(lambda folder: os.utime(folder / "src" / "a.txt", (1, 1)), id="time"),
        pytest.param(lambda folder: (folder / "src" / "a.txt").chmod(0o600), id="other mode bits"),
        pytest.param(lambda folder: (folder / "empty").mkdir(), id="empty folder"),
        pytest.param(lambda folder: (folder / ".dockerignore").write_text("# logs\n**/*.log\n"), id="other rules, same files"),
    ],
)
def test_a_change_that_no_build_sees_keeps_the_key(tmp_path: Path, change: Callable[[Path], object]) -> None:
    folder = make_context(tmp_path / "environment")
    before = read_context(folder).key
    change(folder)
    assert read_context(folder).key == before


def test_equal_folders_at_other_places_have_one_key(tmp_path: Path) -> None:
    assert read_context(make_context(tmp_path / "one")).key == read_context(make_context(tmp_path / "two" / "x")).key


def test_the_files_of_a_context_are_those_that_builders_get(tmp_path: Path) -> None:
    context = read_context(make_context(tmp_path / "environment"))
    assert context.files == (".dockerignore", "Dockerfile", "src/a.txt", "src/link", "src/run.sh")


def test_arguments_and_platform_are_part_of_the_image_key_and_their_order_is_not() -> None:
    keys = {
        image_key("0" * 64, args={}),
        image_key("1" * 64, args={}),
        image_key("0" * 64, args={"A": "1", "B": "2"}),
        image_key("0" * 64, args={"A": "1"}),
        image_key("0" * 64, args={"A": "1\0B=2"}),
        image_key("0" * 64, args={}, platform="linux/arm64"),
    }
    assert len(keys) == 6
    assert image_key("0" * 64, args={"B": "2", "A": "1"}) in keys
    assert {len(key) for key in keys} == {40}


def test_a_folder_without_a_dockerfile_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ContextError, match="Dockerfile is missing in environment/"):
        read_context(tmp_path / "environment")


def test_a_pipe_in_a_context_is_refused_and_never_read(tmp_path: Path) -> None:
    folder = make_context(tmp_path / "environment")
    os.mkfifo(folder / "pipe")
    with pytest.raises(ContextError, match="pipe is neither a file nor a link"):
        read_context(folder)


@pytest.mark.parametrize(
    ("rules", "path", "excluded"),
    [
        ("*.md", "a.md", True),
        ("*.md", "docs/a.md", False),
        ("**/*.md", "docs/a.md", True),
        ("**/*.md", "a.md", True),
        ("*.md\n!README.md", "README.md", False),
        ("!README.md\n*.md", "README.md", True),
        ("node_modules", "node_modules/x/y.js", True),
        ("/build/", "build/out", True),
        ("docs/**", "docs/a/b", True),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("[a-c].txt", "b.txt", True),
        ("[^a-c].txt", "b.txt", False),
        (r"\*.txt", "*.txt", True),
        (r"\*.txt", "a.txt", False),
        ("# comment\n\n  spaced  ", "spaced", True),
        ("*\n!src", "src/a", False),
        ("*\n!src", "other", True),
        (".", "a", False),
    ],
)
def test_dockerignore_excludes_what_docker_excludes(rules: str, path: str, excluded: bool) -> None:
    assert parse_dockerignore(rules).excludes(path) is excluded


@pytest.mark.parametrize("rules", ["!", "[abc", "a" * 600, "x\n" * 501])
def test_a_dockerignore_that_cannot_be_used_is_refused_with_its_line(rules: str) -> None:
    with pytest.raises(DockerignoreError, match=r"line \d+"):
        parse_dockerignore(rules)


def test_a_hostile_pattern_takes_no_longer_than_its_length() -> None:
    # As a regular expression this one would not end before the universe does.
    rules = parse_dockerignore("*a" * 200 + "b")
    assert not rules.excludes("a" * 4000)


def test_instructions_carry_the_lines_on_which_they_start() -> None:
    text = "# comment\nARG BASE=x\n\nFROM ${BASE}\r\nRUN one && \\\n    # in between\n    two\n"
    text += "RUN <<EOT\nFROM not/an/instruction\nEOT\ncopy a b\n"
    assert instructions(text) == (
        Instruction(2, "ARG", "BASE=x"),
        Instruction(4, "FROM", "${BASE}"),
        Instruction(5, "RUN", "one && two"),
        Instruction(8, "RUN", "<<EOT"),
        Instruction(11, "COPY", "a b"),
    )
