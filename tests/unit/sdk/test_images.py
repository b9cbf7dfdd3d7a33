"""Images of a suite: what is wanted, what is built, what a failure says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from seatrial.effects.registry import ImageFacts, Registry
from seatrial.errors import InvalidSpec, Unavailable
from seatrial.sdk.builders import Build
from seatrial.sdk.images import ImageOptions, build_images, parse_build_args, wanted_images
from seatrial.taskpkg.check import CheckedTask, check_task

DIGEST = "sha256:" + "ab" * 32


def write_task(
    folder: Path, *, toml: str = "", dockerfile: str | None = "FROM a\nRUN true\n", tests_dockerfile: bool = False
) -> CheckedTask:
    for part in ("environment", "tests", "solution"):
        (folder / part).mkdir(parents=True)
    (folder / "task.toml").write_text(toml)
    (folder / "instruction.md").write_text("Do it.\n")
    (folder / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    (folder / "solution" / "solve.sh").write_text("true\n")
    if dockerfile is not None:
        (folder / "environment" / "Dockerfile").write_text(dockerfile)
    if tests_dockerfile:
        (folder / "tests" / "Dockerfile").write_text("FROM b\n")
    return check_task(folder)


@dataclass
class Tags:
    """A registry with what was pushed to it."""

    has: set[str] = field(default_factory=set)

    def digest(self, text: str) -> str | None:
        return DIGEST if text in self.has else None

    def facts(self, text: str, *, platform: str) -> ImageFacts:
        return ImageFacts(user="worker", env=("LANG=C", "API_TOKEN=t", "SEEN=sk-0123456789abcdef"))


@dataclass
class Script:
    """A builder that pushes to ``tags``, or fails where the Dockerfile says so."""

    tags: Tags
    built: list[str] = field(default_factory=list)
    name: str = "script"

    def commands(self, build: Build, *, digest_file: Path) -> Sequence[Sequence[str]]:
        self.built.append(build.target)
        text = (build.context.folder / build.context.dockerfile).read_text()
        if "false" in text:
            log = 'STEP 2/2: RUN false\\nError: building at STEP "RUN false": exit status 1'
            return [[sys.executable, "-c", f"import sys; print('''{log}'''); sys.exit(1)"]]
        self.tags.has.add(build.target)
        return [[sys.executable, "-c", f"open(r'{digest_file}', 'w').write('{DIGEST}')"]]


def options(tmp_path: Path, *, force: bool = False, dry_run: bool = False) -> ImageOptions:
    return ImageOptions("registry:5000/tasks", log_dir=tmp_path / "logs", force=force, dry_run=dry_run)


@pytest.mark.conforms("H-58")
def test_equal_contexts_are_built_once_and_never_again(tmp_path: Path) -> None:
    tasks = [write_task(tmp_path / "a"), write_task(tmp_path / "b"), write_task(tmp_path / "c", dockerfile="FROM c\n")]
    tags, seen = Tags(), list[tuple[int, int]]()
    builder = Script(tags)

    def build() -> list[str]:
        found = build_images(
            tasks,
            options(tmp_path),
            builder=builder,
            registry=cast(Registry, tags),
            progress=lambda done, total, name: seen.append((done, total)),
        )
        assert [item.image for item in found] == [f"registry:5000/tasks@{DIGEST}"] * 3
        assert [item.task.name for item in found] == ["a", "b", "c"]
        return [item.outcome for item in found]

    assert build() == ["built", "built", "built"]
    assert (len(builder.built), sorted(seen)) == (2, [(1, 3), (2, 3), (3, 3)])
    assert build() == ["present", "present", "present"]
    assert len(builder.built) == 2


def test_a_failed_build_names_file_line_and_log_and_its_siblings_are_built(tmp_path: Path) -> None:
    tasks = [write_task(tmp_path / "bad", dockerfile="FROM a\nRUN false\n"), write_task(tmp_path / "good")]
    tags = Tags()
    bad, good = build_images(tasks, options(tmp_path), builder=Script(tags), registry=cast(Registry, tags))
    assert (bad.outcome, bad.image, good.outcome) == ("failed", "", "built")
    assert bad.message.startswith("environment/Dockerfile line 2 (RUN false): ")
    assert bad.log is not None
    assert "RUN false" in bad.log.read_text()


def test_what_the_image_says_is_recorded_without_values_that_look_like_credentials(tmp_path: Path) -> None:
    tags = Tags()
    (item,) = build_images([write_task(tmp_path / "a")], options(tmp_path), builder=Script(tags), registry=cast(Registry, tags))
    assert item.record("linux/amd64") == {
        "image": f"registry:5000/tasks@{DIGEST}",
        "key": item.key,
        "platform": "linux/amd64",
        "user": "worker",
        "workdir": "",
        "entrypoint": [],
        "env": ["LANG=C", "API_TOKEN=", "SEEN="],
    }


def test_a_rehearsal_says_what_is_missing_and_builds_nothing(tmp_path: Path) -> None:
    tags = Tags()
    builder = Script(tags)
    (item,) = build_images([write_task(tmp_path / "a")], options(tmp_path, dry_run=True), builder=builder, registry=cast(Registry, tags))
    assert (item.outcome, builder.built) == ("missing", [])


@pytest.mark.conforms("H-33", "H-103")
@pytest.mark.parametrize(
    ("make", "force", "roles"),
    [
        pytest.param(write_task, False, ["environment"], id="Dockerfile"),
        pytest.param(
            lambda folder: write_task(folder, toml='[environment]\ndocker_image = "x:1"\n'), False, [], id="docker_image beside it"
        ),
        pytest.param(lambda folder: write_task(folder, toml='[environment]\ndocker_image = "x:1"\n'), True, ["environment"], id="forced"),
        pytest.param(
            lambda folder: write_task(folder, toml='[environment]\ndocker_image = "x:1"\n', dockerfile=None),
            True,
            [],
            id="forced without one",
        ),
        pytest.param(
            lambda folder: write_task(folder, toml='[verifier]\nenvironment_mode = "separate"\n', tests_dockerfile=True),
            False,
            ["environment", "verifier"],
            id="tests/Dockerfile",
        ),
        pytest.param(
            lambda folder: write_task(folder, toml='[verifier.environment]\ndocker_image = "v:1"\n', tests_dockerfile=True),
            False,
            ["environment"],
            id="verifier's own image",
        ),
        pytest.param(lambda folder: write_task(folder, tests_dockerfile=True), False, ["environment"], id="shared verifier"),
    ],
)
def test_the_images_that_a_task_wants(tmp_path: Path, make: Callable[[Path], CheckedTask], force: bool, roles: list[str]) -> None:
    assert [want.role for want in wanted_images(make(tmp_path / "task"), options(tmp_path, force=force))] == roles


def test_a_registry_that_does_not_answer_is_one_error_and_not_one_a_task(tmp_path: Path) -> None:
    class Away(Tags):
        def digest(self, text: str) -> str | None:
            raise Unavailable("registry registry:5000 does not answer")

    with pytest.raises(Unavailable):
        build_images([write_task(tmp_path / "a")], options(tmp_path), builder=None, registry=cast(Registry, Away()))


def test_build_arguments_come_from_the_line_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_ENVIRONMENT", "e")
    assert parse_build_args(["A=1=2", "FROM_ENVIRONMENT", "EMPTY="]) == {"A": "1=2", "FROM_ENVIRONMENT": "e", "EMPTY": ""}
    with pytest.raises(InvalidSpec, match="--build-arg"):
        parse_build_args(["not set anywhere"])
