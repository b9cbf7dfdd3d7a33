"""Builders: the commands of each, and what becomes of their ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.processes import ends

from seatrial.errors import InvalidSpec
from seatrial.sdk.builders import Build, Buildah, BuildFailed, BuildKit, Docker, choose_builder, run_build
from seatrial.taskpkg.imagekey import BuildContext

CONTEXT = BuildContext(Path("/suite/task/environment"), "Dockerfile", "0" * 64, ("Dockerfile",))
BUILD = Build(CONTEXT, "registry:5000/tasks:key", {"B": "2", "A": "x y"}, insecure=True)
DIGEST_FILE = Path("/scratch/digest")
DIGEST = "sha256:" + "ab" * 32


def test_docker_builds_and_pushes_in_one_command() -> None:
    assert Docker(["--network=host"]).commands(BUILD, digest_file=DIGEST_FILE) == [
        [
            "docker",
            "buildx",
            "build",
            "--platform=linux/amd64",
            "--progress=plain",
            "--provenance=false",
            "--build-arg=A=x y",
            "--build-arg=B=2",
            "--file=/suite/task/environment/Dockerfile",
            "--metadata-file=/scratch/digest",
            "--output=type=image,name=registry:5000/tasks:key,push=true,registry.insecure=true",
            "--network=host",
            "/suite/task/environment",
        ]
    ]


def test_buildah_builds_then_pushes() -> None:
    assert Buildah().commands(BUILD, digest_file=DIGEST_FILE) == [
        [
            "buildah",
            "bud",
            "--layers",
            "--platform=linux/amd64",
            "--tls-verify=false",
            "--build-arg=A=x y",
            "--build-arg=B=2",
            "--file=/suite/task/environment/Dockerfile",
            "--tag=registry:5000/tasks:key",
            "/suite/task/environment",
        ],
        ["buildah", "push", "--tls-verify=false", "--digestfile=/scratch/digest", "registry:5000/tasks:key"],
    ]


def test_buildkit_is_told_its_address_and_pushes_itself() -> None:
    (command,) = BuildKit("tcp://builder:1234").commands(BUILD, digest_file=DIGEST_FILE)
    assert command == [
        "buildctl",
        "--addr=tcp://builder:1234",
        "build",
        "--progress=plain",
        "--frontend=dockerfile.v0",
        "--local=context=/suite/task/environment",
        "--local=dockerfile=/suite/task/environment",
        "--opt=filename=Dockerfile",
        "--opt=platform=linux/amd64",
        "--opt=build-arg:A=x y",
        "--opt=build-arg:B=2",
        "--output=type=image,name=registry:5000/tasks:key,push=true,registry.insecure=true",
        "--metadata-file=/scratch/digest",
    ]


@pytest.mark.parametrize(
    ("name", "installed", "expected"),
    [
        (None, ("docker", "buildah"), "docker"),
        (None, ("buildah",), "buildah"),
        ("buildah", (), "buildah"),
        ("tcp://builder:1234", (), "buildkit"),
    ],
)
def test_the_builder_is_the_named_one_or_the_first_that_is_installed(name: str | None, installed: tuple[str, ...], expected: str) -> None:
    assert choose_builder(name, which={command: f"/bin/{command}" for command in installed}).name == expected


@pytest.mark.parametrize("name", [None, "podman"])
def test_no_builder_at_all_is_an_error_with_the_next_step(name: str | None) -> None:
    with pytest.raises(InvalidSpec, match="--builder"):
        choose_builder(name, which={})


@dataclass(frozen=True)
class Script:
    """A builder whose command is a Python script; ``{digest}`` is the digest's file."""

    text: str
    name: str = "script"

    def commands(self, build: Build, *, digest_file: Path) -> Sequence[Sequence[str]]:
        return [[sys.executable, "-c", self.text.replace("{digest}", str(digest_file))]]


@pytest.mark.parametrize("text", [DIGEST, f'{{"containerimage.digest": "{DIGEST}", "other": "sha256:{"0" * 64}"}}'], ids=["text", "JSON"])
def test_the_digest_is_what_the_builder_says_and_the_log_is_kept(tmp_path: Path, text: str) -> None:
    script = Script(f"print('building'); open('{{digest}}', 'w').write('''{text}''')")
    log = tmp_path / "logs" / "build.log"
    assert run_build(script, BUILD, log=log, timeout_seconds=30) == DIGEST
    assert log.read_text().splitlines()[-1] == "building"


def test_a_failed_command_carries_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match="ended with 3") as caught:
        run_build(Script("import sys; print('the cause'); sys.exit(3)"), BUILD, log=tmp_path / "log", timeout_seconds=30)
    assert caught.value.log.endswith("the cause\n")


def test_a_build_that_hangs_is_ended_with_all_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    text = (
        "import subprocess, sys, time; "
        f"p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        f"open(r'{child}', 'w').write(str(p.pid)); time.sleep(600)"
    )
    with pytest.raises(BuildFailed, match="did not end within 2 s"):
        run_build(Script(text), BUILD, log=tmp_path / "log", timeout_seconds=2)
    assert ends(int(child.read_text()))


def test_success_without_a_digest_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match="did not say which digest"):
        run_build(Script("pass"), BUILD, log=tmp_path / "log", timeout_seconds=30)
