"""References in all forms, the pinned manifest of a Taskset, and every reason why a set is not pinned."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from seatrial.api.reasons import Reason
from seatrial.api.taskset import Taskset
from seatrial.core.frozen import PlanRefused
from seatrial.effects.aiostore import AsyncStore
from seatrial.effects.kube import Channel, Kube
from seatrial.effects.metrics import Metrics
from seatrial.effects.references import NotYet, Objects, Ref, parse_ref
from seatrial.effects.revisions import Revision, Revisions
from seatrial.effects.taskset_pin import Pinner
from seatrial.errors import InvalidSpec
from tests.integration.harness import SETTINGS
from tests.integration.memstore import MemoryStore

Key = tuple[str, str]
SHA = "a" * 64


class Stored(Objects):
    """Objects from a dictionary instead of the API server."""

    def __init__(self) -> None:
        self.tasks: dict[Key, dict[str, Any]] = {}

    async def get_many(self, kind: str, keys: Iterable[Key]) -> dict[Key, Mapping[str, Any]]:
        assert kind == "Task"
        return {key: self.tasks[key] for key in keys if key in self.tasks}


class World:
    def __init__(self) -> None:
        self.memory = MemoryStore()
        self.store = AsyncStore(self.memory, concurrency=4, metrics=Metrics())
        self.revisions, self.objects = Revisions(self.store), Stored()
        self.settings = SETTINGS

    async def task(self, name: str, *, text: str = "", namespace: str = "evals", tags: Mapping[str, int] | None = None) -> Revision:
        """A verified Task; its revision."""
        source = {"ref": f"{namespace}/suite#{name}{text}/{SHA}/task_archive", "sha256": SHA}
        made = await self.revisions.publish(namespace, "task", name, content={"source": source, "text": text}, extra={})
        status = {
            "observedGeneration": 1,
            "revision": made.number,
            "tags": {"latest": made.number, **(tags or {})},
            "conditions": [{"type": "Verified", "status": "True", "reason": "ArchiveVerified", "message": ""}],
        }
        self.objects.tasks[namespace, name] = {"metadata": {"name": name, "namespace": namespace, "generation": 1}, "status": status}
        return made

    def pinner(self) -> Pinner:
        return Pinner(self.store, self.revisions, self.objects, self.settings)

    async def pin(self, *tasks: str, **spec: Any) -> tuple[int, list[str]]:
        """Number of the set's revision, and its members."""
        pinned = await self.pinner().pin(taskset(**({"tasks": list(tasks)} if tasks else {}), **spec))
        return pinned.revision.number, [member.ref for member in pinned.members]

    def manifest(self, *lines: Any) -> dict[str, str]:
        """A manifest in the store, as ``spec.manifest``."""
        body = b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
        sha256 = hashlib.sha256(body).hexdigest()
        self.memory.objects[f"filesets/evals/suite/{sha256}.jsonl"] = body
        return {"ref": f"evals/suite#{sha256}.jsonl", "sha256": sha256}


def taskset(**spec: Any) -> Taskset:
    return Taskset.parse(
        {"apiVersion": "seatrial.dev/v1alpha1", "kind": "Taskset", "metadata": {"name": "set", "namespace": "evals"}, "spec": spec}
    )


def line(name: str, revision: Revision, **changes: Any) -> dict[str, Any]:
    digest = revision.digest
    return {"ref": f"evals/{name}#{digest}", "revision": revision.number, "digest": digest, "archive": "k", "sha256": SHA, **changes}


@pytest.fixture
def world() -> World:
    return World()


# --- references -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("N-60")
@pytest.mark.parametrize(
    ("text", "ref", "is_digest"),
    [
        ("one", Ref("evals", "one", "latest"), False),
        ("other/one", Ref("other", "one", "latest"), False),
        ("one#stable", Ref("evals", "one", "stable"), False),
        ("other/one#v1.2_x-y", Ref("other", "one", "v1.2_x-y"), False),
        (f"one#{SHA}", Ref("evals", "one", SHA), True),
        (f"one#{SHA[1:]}", Ref("evals", "one", SHA[1:]), False),
        (f"one#{SHA.upper()}", Ref("evals", "one", SHA.upper()), False),
    ],
)
def test_a_reference_names_namespace_object_and_revision(text: str, ref: Ref, is_digest: bool) -> None:
    assert (parse_ref(text, namespace="evals"), parse_ref(text, namespace="evals").is_digest) == (ref, is_digest)


@pytest.mark.parametrize("text", ["", "a/b/c", "one#", "#tag", "one#a b", "one#a\n", f"one#{SHA}\n", "/one", "one/", "One", "one#a#b"])
def test_other_forms_are_refused_by_the_api(text: str) -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.tasks"):
        taskset(tasks=[text])


@pytest.mark.conforms("N-201", "N-60")
async def test_members_are_pinned_by_every_form_of_reference(world: World) -> None:
    old = await world.task("one", text="old")
    new = await world.task("one", text="new", tags={"stable": 1})
    for text, revision in (("one", new), ("one#latest", new), ("one#stable", old), (f"one#{old.digest}", old), ("evals/one", new)):
        assert (await world.pin(text))[1] == [f"evals/one#{revision.digest}"]


# --- the set ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("N-201", "N-199")
async def test_members_are_sorted_so_that_their_order_cuts_no_revision(world: World) -> None:
    revisions = {name: await world.task(name, text=name) for name in ("b", "a", "c")}
    expected = [f"evals/{name}#{revisions[name].digest}" for name in ("a", "b", "c")]
    assert await world.pin("b", "a", "c") == (1, expected)
    assert await world.pin("c", "b", "a") == (1, expected)
    assert await world.pin("c", "b") == (2, expected[1:])
    assert await world.pin("b", "a", "c") == (3, expected)


async def test_the_manifest_holds_all_that_planning_needs(world: World) -> None:
    revision = await world.task("one")
    pinned = await world.pinner().pin(taskset(tasks=["one"]))
    body = world.memory.objects[pinned.manifest_key]
    assert hashlib.sha256(body).hexdigest() == pinned.manifest_sha256
    assert [json.loads(text) for text in body.splitlines()] == [
        {
            "ref": f"evals/one#{revision.digest}",
            "revision": 1,
            "digest": revision.digest,
            "archive": f"filesets/evals/suite/one/{SHA}/task_archive",
            "sha256": SHA,
        }
    ]
    assert await world.pinner().read_members(pinned.manifest_key, pinned.manifest_sha256) == list(pinned.members)


async def test_a_manifest_is_pinned_as_a_list_is(world: World) -> None:
    lines = [line(name, await world.task(name)) for name in ("b", "a")]
    number, members = await world.pin(manifest=world.manifest(*lines))
    assert (number, members) == (1, sorted(item["ref"] for item in lines))


@pytest.mark.conforms("N-198")
async def test_description_and_metadata_belong_to_the_digest_and_tags_do_not(world: World) -> None:
    await world.task("one")
    numbers = [
        (await world.pin("one", **spec))[0]
        for spec in ({}, {"tags": ["stable"]}, {"description": "x"}, {"description": "x", "metadata": {"a": 1}})
    ]
    assert numbers == [1, 1, 2, 3]


# --- why a set is not pinned --------------------------------------------------------------------------------------------------------------


async def refusal(world: World, *tasks: str, **spec: Any) -> tuple[Reason, bool, str]:
    """Reason, whether it may pass by itself, and the message."""
    with pytest.raises(PlanRefused) as caught:
        await world.pin(*tasks, **spec)
    return caught.value.reason, isinstance(caught.value, NotYet), str(caught.value)


async def in_work(world: World, *tasks: str) -> bool:
    """Whether what the set waits for is being judged."""
    with pytest.raises(NotYet) as caught:
        await world.pin(*tasks)
    return caught.value.in_work


@pytest.mark.conforms("N-201")
async def test_two_references_to_one_task_are_refused_even_at_different_revisions(world: World) -> None:
    old = await world.task("one", text="old")
    await world.task("one", text="new")
    reason, waits, message = await refusal(world, "one", f"one#{old.digest}")
    assert (reason, waits) == (Reason.DUPLICATE_MEMBER, False)
    assert "evals/one#latest" in message
    assert old.digest in message


@pytest.mark.conforms("N-201")
@pytest.mark.parametrize("spec", [{"tasks": []}, {"manifest": None}], ids=["list", "manifest"])
async def test_an_empty_set_is_refused(world: World, spec: dict[str, Any]) -> None:
    if "manifest" in spec:
        spec = {"manifest": world.manifest()}
    assert (await refusal(world, **spec))[:2] == (Reason.EMPTY_TASKSET, False)


@pytest.mark.conforms("N-201")
def test_a_set_has_no_field_for_shared_files() -> None:
    body = taskset(tasks=["one"]).raw()
    problems = Taskset.problems({**body, "spec": {"tasks": ["one"], "filesRef": "evals/suite#prefix"}})
    assert [(problem.path, problem.message) for problem in problems] == [("spec.filesRef", "unknown field")]


async def test_members_that_may_come_are_waited_for_by_reason(world: World) -> None:
    await world.task("one")
    assert (await refusal(world, "one", "two"))[:2] == (Reason.TASK_NOT_FOUND, True)
    assert (await refusal(world, "one#stable"))[:2] == (Reason.REVISION_NOT_FOUND, True)
    assert (await refusal(world, f"one#{'0' * 64}"))[:2] == (Reason.REVISION_NOT_FOUND, True)
    condition = world.objects.tasks["evals", "one"]["status"]["conditions"][0]
    condition |= {"status": "False", "message": "the archive is gone"}
    reason, waits, message = await refusal(world, "one")
    assert (reason, waits, message) == (Reason.MEMBER_NOT_VERIFIED, True, "Task evals/one: the archive is gone")
    assert not await in_work(world, "one")
    world.objects.tasks["evals", "one"]["metadata"]["generation"] = 2
    assert (await refusal(world, "one"))[2] == "Task evals/one: not verified yet"
    assert await in_work(world, "one")
    assert not await in_work(world, "two")


async def test_a_pinned_digest_does_not_need_the_task_to_be_good_now(world: World) -> None:
    revision = await world.task("one")
    world.objects.tasks["evals", "one"]["status"]["conditions"][0]["status"] = "False"
    assert (await world.pin(f"one#{revision.digest}"))[1] == [f"evals/one#{revision.digest}"]


async def test_a_changed_revision_is_no_member(world: World) -> None:
    await world.task("one")
    key = next(key for key in world.memory.objects if key.startswith("revisions/"))
    world.memory.objects[key] = world.memory.objects[key].replace(b'"text":""', b'"text":"forged"')
    assert (await refusal(world, "one"))[:2] == (Reason.REVISION_NOT_FOUND, True)


async def test_another_namespace_is_refused_unless_the_configuration_shares_it(world: World) -> None:
    revision = await world.task("one", namespace="other")
    manifest = world.manifest(line("one", revision, ref=f"other/one#{revision.digest}"))
    for spec in ({"tasks": ["other/one"]}, {"manifest": manifest}, {"manifest": {**manifest, "ref": "other/suite#x.jsonl"}}):
        reason, _, message = await refusal(world, **spec)
        assert reason == Reason.CROSS_NAMESPACE
        assert message.endswith("is in namespace other, and the operator's configuration does not share it with evals")
    world.settings = replace(world.settings, shared_namespaces=("other",))
    assert await world.pin("other/one") == (1, [f"other/one#{revision.digest}"])
    assert (await world.pin(manifest=manifest))[1] == [f"other/one#{revision.digest}"]


@pytest.mark.parametrize(
    "bad",
    [b"{", b"[]", b'"x"', b'{"ref": "evals/one#x"}', b'{"ref": "one#x", "revision": 1, "digest": "x", "archive": "a", "sha256": "s"}'],
    ids=["no-json", "list", "text", "fields", "unqualified"],
)
async def test_a_bad_line_of_a_manifest_is_refused(world: World, bad: bytes) -> None:
    good = line("one", await world.task("one"))
    assert (await refusal(world, manifest=world.manifest(good, bad)))[0] == Reason.MANIFEST_INVALID


async def test_a_manifest_whose_ref_and_digest_differ_or_that_repeats_a_task_is_refused(world: World) -> None:
    one = line("one", await world.task("one"))
    assert (await refusal(world, manifest=world.manifest({**one, "digest": SHA})))[0] == Reason.MANIFEST_INVALID
    assert (await refusal(world, manifest=world.manifest({**one, "revision": 0})))[0] == Reason.MANIFEST_INVALID
    assert (await refusal(world, manifest=world.manifest(one, one)))[0] == Reason.DUPLICATE_MEMBER


async def test_a_manifest_that_is_gone_or_changed_is_refused(world: World) -> None:
    manifest = world.manifest(line("one", await world.task("one")))
    key = next(key for key in world.memory.objects if key.endswith(".jsonl"))
    body = world.memory.objects[key]
    world.memory.objects[key] = body + b"\n"
    assert (await refusal(world, manifest=manifest))[0] == Reason.MANIFEST_INVALID
    del world.memory.objects[key]
    reason, _, message = await refusal(world, manifest=manifest)
    assert (reason, message) == (Reason.MANIFEST_INVALID, f"{key} is not in the object store: publish the taskset again")


async def test_the_sets_own_manifest_is_never_overwritten(world: World) -> None:
    await world.task("one")
    pinned = await world.pinner().pin(taskset(tasks=["one"]))
    world.memory.objects[pinned.manifest_key] = b"planted"
    reason, _, message = await refusal(world, "one")
    assert (reason, message) == (Reason.MANIFEST_INVALID, f"{pinned.manifest_key} holds other bytes than its name says: delete it")


# --- reading the objects ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 60])
async def test_few_objects_are_read_one_by_one_and_many_by_lists_of_their_namespace(count: int) -> None:
    paths: list[str] = []
    names = [f"t{index:03}" for index in range(count)]

    class Api(Kube):
        def __init__(self) -> None:
            return

        async def get(self, path: str, params: Mapping[str, str] | None = None, *, channel: Channel = "request") -> dict[str, Any]:
            paths.append(path.rpartition("/")[2])
            if path.endswith("/tasks"):
                start = int((params or {}).get("continue", 0))
                page = [{"metadata": {"name": name}} for name in [*names, "unwanted"][start : start + 40]]
                more = str(start + 40) if start + 40 < count else ""
                return {"items": page, "metadata": {"continue": more}}
            return {"metadata": {"name": path.rpartition("/")[2]}}

    found = await Objects(Api()).get_many("Task", [("evals", name) for name in names])
    assert sorted(found) == [("evals", name) for name in names]
    assert paths == (names if count == 3 else ["tasks", "tasks"])
