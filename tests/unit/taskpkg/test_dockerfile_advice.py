"""Warnings about Dockerfiles: what surely cannot be built elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.taskpkg.check import check_task


@pytest.mark.parametrize(
    ("dockerfile", "found"),
    [
        ("FROM a\nCOPY there.txt /x\nCOPY . /x\nCOPY sub/ /x\n", []),
        ("FROM a\nRUN true\nCOPY gone.txt there.txt /x/\n", [("copy-source", 3)]),
        ("FROM a\nCOPY --chmod=755 ./gone.txt /x\n", [("copy-source", 2)]),
        ("FROM a\nCOPY --from=build gone.txt /x\nCOPY *.gone ${GONE} /x/\nCOPY <<EOT /x\nCOPY gone /x\nEOT\n", []),
        ('FROM a\nCOPY ["gone with spaces.txt", "/x"]\n', []),
        ("FROM localhost/mine:1\n", [("local-base", 1)]),
    ],
    ids=["all there", "one missing", "options", "not to be known", "JSON form", "local base"],
)
def test_a_dockerfile_that_cannot_be_built_elsewhere_is_warned_about(tmp_path: Path, dockerfile: str, found: list[tuple[str, int]]) -> None:
    folder = tmp_path / "task"
    for part in ("environment/sub", "tests", "solution"):
        (folder / part).mkdir(parents=True)
    (folder / "task.toml").write_text("")
    (folder / "instruction.md").write_text("Do it.\n")
    (folder / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    (folder / "solution" / "solve.sh").write_text("true\n")
    (folder / "environment" / "there.txt").write_text("")
    (folder / "environment" / "sub" / "file").write_text("")
    (folder / "environment" / "Dockerfile").write_text(dockerfile)
    checked = check_task(folder)
    assert checked.valid
    assert [(problem.rule, problem.line) for problem in checked.problems if problem.rule in ("copy-source", "local-base")] == found
