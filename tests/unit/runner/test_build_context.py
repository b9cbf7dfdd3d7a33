"""The init container of a build: one folder of the task, its Dockerfile as the builder gets it, and envd."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from seatrial import contract
from seatrial.contract import StageExit
from seatrial.taskpkg.mirrors import Mirrors
from seatrial_runner import build_context

from .conftest import QUICK

if TYPE_CHECKING:
    from .conftest import Pod

TASK = {
    "task.toml": "",
    "instruction.md": "Do it.\n",
    "environment/Dockerfile": "FROM debian:12\nRUN <<END\ntrue\nEND\n",
    "environment/data.txt": "data\n",
    "tests/Dockerfile": "FROM python:3\nCOPY . /tests\n",
    "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "true\n",
}

NONE = Mirrors()


def prepare(pod: Pod, *, folder: str = "environment", mirrors: Mirrors = NONE) -> int:
    pod.files = TASK
    (pod.root / "archive.tar.gz").unlink(missing_ok=True)
    (pod.root / "tools/envd").write_bytes(b"envd")
    environ = {
        contract.VAR_ARCHIVE_URL: pod.store.url("archive"),
        contract.VAR_ARCHIVE_SHA256: pod.publish(),
        contract.VAR_CONTEXT_DIR: str(pod.root / "context"),
        contract.VAR_CONTEXT_FOLDER: folder,
        contract.VAR_IMAGE_MIRRORS: mirrors.encode(),
        contract.VAR_BUILD_ARGS: "{}",
    }
    (pod.root / "context").mkdir(exist_ok=True)
    return build_context.run(pod.paths(""), environ, patience=QUICK)


def files(pod: Pod) -> list[str]:
    root = pod.root / "context"
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("folder", "left"),
    [
        ("environment", ["Dockerfile", "envd", "environment/Dockerfile", "environment/data.txt"]),
        ("tests", ["Dockerfile", "envd", "tests/Dockerfile", "tests/test.sh"]),
    ],
)
def test_one_folder_of_the_task_is_left_and_nothing_else(pod: Pod, folder: str, left: list[str]) -> None:
    assert prepare(pod, folder=folder) == StageExit.OK
    assert files(pod) == left
    assert (pod.root / "context/envd").stat().st_mode & 0o7777 == 0o755


def test_a_second_run_on_the_same_volume_is_the_same(pod: Pod) -> None:
    assert [prepare(pod), prepare(pod)] == [StageExit.OK, StageExit.OK]
    assert files(pod) == ["Dockerfile", "envd", "environment/Dockerfile", "environment/data.txt"]


def test_base_images_come_from_the_mirror_and_the_operator_reads_the_same_lines(pod: Pod) -> None:
    assert prepare(pod, mirrors=Mirrors({"docker.io": "mirror.example.com/hub"})) == StageExit.OK
    said = (pod.root / "termination-stage").read_text()
    assert said == "FROM mirror.example.com/hub/library/debian:12\nRUN <<END\ntrue\nEND\n"
    written = (pod.root / "context/Dockerfile").read_text()
    assert written.splitlines()[0] == "FROM mirror.example.com/hub/library/debian:12"
    assert "<<END" not in written


def test_a_here_document_of_copy_is_a_file_of_the_context_that_ignore_rules_do_not_hide(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASK, "environment/Dockerfile", "FROM debian:12\nCOPY <<EOT /x\ntext\nEOT\n")
    monkeypatch.setitem(TASK, "environment/Dockerfile.dockerignore", "*\n")
    monkeypatch.setitem(TASK, "environment/.dockerignore", "not this one\n")
    assert prepare(pod) == StageExit.OK
    assert (pod.root / "context/Dockerfile").read_text() == "FROM debian:12\nCOPY .seatrial-heredocs/2/EOT /x\n"
    assert (pod.root / "context/environment/.seatrial-heredocs/2/EOT").read_text() == "text\n"
    assert (pod.root / "context/Dockerfile.dockerignore").read_text().split() == ["*", "!.seatrial-heredocs"]


def test_a_here_document_is_not_written_where_the_task_has_put_something(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASK, "environment/Dockerfile", "FROM debian:12\nCOPY <<envd /x\ntext\nenvd\n")
    monkeypatch.setitem(TASK, "environment/.seatrial-heredocs/other", "")
    assert prepare(pod) == StageExit.TASK_UNSUPPORTED
    assert json.loads((pod.root / "termination-stage").read_text())["message"] == (
        "environment/.seatrial-heredocs is a name that builds use: rename it"
    )


@pytest.mark.parametrize(
    ("folder", "code", "text"),
    [
        ("solution", StageExit.INTERNAL, "'solution' is no build context: operator and runner are of different versions"),
        ("tests", StageExit.TASK_UNSUPPORTED, "tests/Dockerfile is missing: publish the task again"),
    ],
)
def test_a_folder_that_is_no_context_is_refused(pod: Pod, monkeypatch: pytest.MonkeyPatch, folder: str, code: StageExit, text: str) -> None:
    monkeypatch.delitem(TASK, "tests/Dockerfile")
    assert prepare(pod, folder=folder) == code
    assert json.loads((pod.root / "termination-stage").read_text())["message"] == text
