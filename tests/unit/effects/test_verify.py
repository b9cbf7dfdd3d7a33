"""What registration checks by itself before a Task is published, and every reason why it is not."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seatrial.api.reasons import Reason
from seatrial.api.task import Task
from seatrial.core.naming import revision_key
from seatrial.effects.aiostore import AsyncStore
from seatrial.effects.metrics import Metrics
from seatrial.effects.revisions import Revisions
from seatrial.effects.task_verify import Refused, TaskVerifier, Verified
from seatrial.errors import Forbidden, Unavailable
from seatrial.taskpkg.pack import pack_task
from tests.integration.harness import SETTINGS, tar_of
from tests.integration.memstore import MemoryStore

MULTI_STEP = {
    "task.toml": (
        '[task]\nname = "bench/steps"\n[environment]\ndocker_image = "registry/x:1"\n[[steps]]\nname = "a"\n[[steps]]\nname = "b"\n'
    ),
    "steps/a/instruction.md": "First.\n",
    "steps/a/tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
    "steps/b/instruction.md": "Second.\n",
    "steps/b/tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
}


class World:
    def __init__(self, base: Path) -> None:
        self.base, self.memory, self.settings = base, MemoryStore(), SETTINGS
        self.store = AsyncStore(self.memory, concurrency=4, metrics=Metrics())
        self.revisions = Revisions(self.store)

    def archive(self, data: bytes, *, sha256: str | None = None, name: str = "one", **spec: Any) -> Task:
        """A Task whose archive is ``data``."""
        sha256 = sha256 or hashlib.sha256(data).hexdigest()
        ref = f"evals/suite#one/{sha256}/task_archive"
        self.memory.objects[f"filesets/{ref.replace('#', '/')}"] = data
        return Task.parse(
            {
                "apiVersion": "seatrial.dev/v1alpha1",
                "kind": "Task",
                "metadata": {"name": name, "namespace": "evals"},
                "spec": {"source": {"ref": ref, "sha256": sha256}, **spec},
            }
        )

    def packed(self, files: Mapping[str, str], *, folder: str = "one", **spec: Any) -> Task:
        root = self.base / folder
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        target = self.base / f"{folder}.archive"
        pack_task(root, target)
        return self.archive(target.read_bytes(), **spec)

    async def verify(self, task: Task) -> Verified:
        return await TaskVerifier(self.store, self.revisions, self.settings).verify(task)

    async def refusal(self, task: Task) -> tuple[Reason, str]:
        """Reason and message; nothing may have been published."""
        with pytest.raises(Refused) as caught:
            await self.verify(task)
        assert [key for key in self.memory.objects if key.startswith("revisions/")] == []
        return caught.value.reason, str(caught.value)


def files(**changes: str) -> dict[str, str]:
    return {
        "task.toml": '[task]\nname = "bench/one"\n[environment]\ndocker_image = "registry/x:1"\ncpus = 2\n',
        "instruction.md": "<!-- SPDX-License-Identifier: MIT -->\nDo it.\n",
        "tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
        **changes,
    }


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.conforms("N-59")
async def test_instruction_configuration_and_digest_come_from_the_archive_and_not_from_the_object(world: World) -> None:
    made = await world.verify(world.packed(files(), metadata={"suite": "smoke"}))
    document = made.revision.document
    assert {name: document["content"][name] for name in ("nativeTaskId", "instruction", "metadata", "metrics", "views")} == {
        "nativeTaskId": "bench/one",
        "instruction": "Do it.",
        "metadata": {"suite": "smoke"},
        "metrics": [],
        "views": {},
    }
    assert document["config"]["environment"]["cpus"] == 2
    assert (made.native_id, made.summary.image, made.summary.steps, made.tags) == ("bench/one", "registry/x:1", 0, {"latest": 1})


@pytest.mark.conforms("N-32")
async def test_a_task_of_steps_without_a_root_instruction_is_verified_from_its_archive(world: World) -> None:
    made = await world.verify(world.packed(MULTI_STEP))
    assert (made.summary.steps, made.revision.document["content"]["instruction"]) == (2, None)
    assert [step["name"] for step in made.revision.document["config"]["steps"]] == ["a", "b"]


@pytest.mark.conforms("N-59")
async def test_a_step_whose_folder_is_missing_is_refused(world: World) -> None:
    steps = {name: text for name, text in MULTI_STEP.items() if not name.startswith("steps/b")}
    with_files = {"task.toml": steps["task.toml"].encode(), **{name: text.encode() for name, text in steps.items()}}
    reason, message = await world.refusal(world.archive(tar_of_tree("one", with_files)))
    assert reason == Reason.INVALID_TASK
    assert "steps/b" in message
    assert message.endswith("Run seatrial check")


SEPARATE = '[task]\nname = "bench/one"\n[verifier]\nenvironment_mode = "separate"\n'
OWN_IMAGE = f'{SEPARATE}[verifier.environment]\ndocker_image = "judge:1"\n'


@pytest.mark.conforms("H-103")
@pytest.mark.parametrize(
    ("changes", "bundled", "contexts"),
    [
        pytest.param({"tests/Dockerfile": "FROM a\n"}, True, {"buildContext", "verifierContext"}, id="Dockerfile"),
        pytest.param({"tests/Dockerfile": "FROM a\n", "task.toml": OWN_IMAGE}, False, {"buildContext"}, id="image of its own"),
        pytest.param({"tests/docker-compose.yaml": "services: {}\n"}, True, {"buildContext"}, id="compose, which nobody builds"),
        pytest.param({}, False, {"buildContext"}, id="that of the environment"),
        pytest.param(
            {"tests/Dockerfile": "FROM a\n", "task.toml": '[task]\nname = "bench/one"\n'}, False, {"buildContext"}, id="shared mode"
        ),
    ],
)
async def test_what_a_separate_verifiers_image_is_built_from(
    world: World, changes: dict[str, str], bundled: bool, contexts: set[str]
) -> None:
    plain = {**files(), "task.toml": SEPARATE, "environment/Dockerfile": "FROM a\n"}
    verified = await world.verify(world.packed({**plain, **changes}))
    facts = verified.revision.document["facts"]
    assert (facts.get("bundledVerifier", False), {"buildContext", "verifierContext"} & facts.keys()) == (bundled, contexts)


@pytest.mark.conforms("N-198")
async def test_the_projection_and_the_place_of_the_object_are_not_in_the_digest(world: World) -> None:
    first = await world.verify(world.packed(files()))
    other = world.archive((world.base / "one.archive").read_bytes(), name="two")
    second = await world.verify(other)
    assert "config" not in first.revision.document["content"]
    assert first.revision.digest == second.revision.digest


@pytest.mark.conforms("N-59")
async def test_a_native_id_that_differs_is_refused_with_both(world: World) -> None:
    reason, message = await world.refusal(world.packed(files(), nativeTaskId="bench/other"))
    assert (reason, message) == (
        Reason.NATIVE_ID_MISMATCH,
        "spec.nativeTaskId is 'bench/other', the archive holds 'bench/one': correct the one or publish the other",
    )


def tar_of_tree(root: str, contents: Mapping[str, bytes]) -> bytes:
    """A gzip tar whose folders come before their members, in the order of paths."""
    names = {root}
    for name in contents:
        parts = f"{root}/{name}".split("/")
        names |= {"/".join(parts[:index]) for index in range(1, len(parts) + 1)}
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(names):
            info = tarfile.TarInfo(name)
            data = contents.get(name.removeprefix(f"{root}/"))
            info.mode = 0o755
            if data is None:
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
            else:
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return target.getvalue()


def _bomb() -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for name in ("one", "one/link"):
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if name == "one" else tarfile.LNKTYPE
            info.linkname = "one/task.toml"
            archive.addfile(info)
    return target.getvalue()


@pytest.mark.conforms("N-59", "N-65")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: b"no gzip at all", Reason.TASK_ARCHIVE_CORRUPT),
        (lambda: b"", Reason.TASK_ARCHIVE_CORRUPT),
        (lambda: tar_of({"../escape": b"x"}), Reason.TASK_ARCHIVE_UNSAFE),
        (_bomb, Reason.TASK_ARCHIVE_UNSAFE),
        (lambda: tar_of({"one/readme": b"x"}), Reason.INVALID_TASK),
    ],
    ids=["no-gzip", "empty", "escape", "hard-link", "no-task"],
)
async def test_a_bad_archive_is_refused_by_name_and_reason(world: World, make: Callable[[], bytes], reason: Reason) -> None:
    found, message = await world.refusal(world.archive(make()))
    assert found == reason
    assert message


@pytest.mark.conforms("N-65", "N-74")
async def test_other_bytes_than_stated_are_not_even_unpacked(world: World) -> None:
    task = world.archive(tar_of({"one/task.toml": b""}), sha256="0" * 64)
    reason, message = await world.refusal(task)
    assert reason == Reason.TASK_ARCHIVE_CORRUPT
    assert message.endswith("publish the task again")


async def test_a_missing_an_oversized_and_a_forbidden_archive_have_reasons_of_their_own(world: World) -> None:
    task = world.packed(files())
    key = next(iter(world.memory.objects))
    data = world.memory.objects.pop(key)
    assert await world.refusal(task) == (Reason.TASK_ARCHIVE_MISSING, f"{key} is not in the object store: publish the task again")
    world.memory.objects[key] = data
    world.settings = replace(SETTINGS, verify_max_mib=0)
    assert (await world.refusal(task))[0] == Reason.ARCHIVE_TOO_LARGE
    world.settings = SETTINGS
    world.memory.fault = lambda operation, key: Forbidden("403") if operation == "get" else None
    assert (await world.refusal(task))[0] == Reason.ARCHIVE_ACCESS_DENIED


async def test_an_archive_of_another_namespace_is_refused_unless_it_is_shared(world: World) -> None:
    task = world.packed(files())
    body = task.raw()
    body["metadata"]["namespace"] = "team"
    foreign = Task.parse(body)
    assert (await world.refusal(foreign))[0] == Reason.CROSS_NAMESPACE
    world.settings = replace(SETTINGS, shared_namespaces=("evals",))
    assert (await world.verify(foreign)).revision.number == 1
    assert revision_key("team", "task", "one", 1) in world.memory.objects


async def test_a_store_that_does_not_answer_is_no_refusal(world: World) -> None:
    task = world.packed(files())
    world.memory.fault = lambda operation, key: Unavailable("down")
    with pytest.raises(Unavailable, match="down"):
        await world.verify(task)


async def test_a_pointer_to_nothing_is_named(world: World) -> None:
    with pytest.raises(Refused, match=r"spec\.tagPointers\.good: no revision is tagged 'nope'") as caught:
        await world.verify(world.packed(files(), tagPointers={"good": "nope"}))
    assert caught.value.reason == Reason.REVISION_NOT_FOUND
