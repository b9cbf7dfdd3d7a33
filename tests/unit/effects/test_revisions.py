"""Revisions: immutable, hashed again on every read, counted without a gap by any number of publishers; tags."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from seatrial.api.task import Task
from seatrial.api.taskset import Taskset
from seatrial.core.naming import revision_key
from seatrial.effects.aiostore import AsyncStore
from seatrial.effects.metrics import Metrics
from seatrial.effects.revisions import MOST_TAGS, TRIES, RevisionMismatch, Revisions, UnknownRevision, content_digest, merge_tags
from seatrial.errors import AlreadyExists, Conflict, InvalidSpec, NotFound, SeatrialError
from tests.integration.memstore import MemoryStore

SHA = "a" * 64


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def revisions(memory: MemoryStore) -> Revisions:
    return Revisions(AsyncStore(memory, concurrency=4, metrics=Metrics()))


def task(**spec: Any) -> Task:
    source = {"ref": f"evals/suite#one/{SHA}/task_archive", "sha256": SHA}
    tags = spec.pop("status_tags", {})
    return Task.parse(
        {
            "apiVersion": "seatrial.dev/v1alpha1",
            "kind": "Task",
            "metadata": {"name": "one", "namespace": "evals"},
            "spec": {"source": source, **spec},
            "status": {"tags": tags},
        }
    )


async def cut(revisions: Revisions, value: Any, name: str = "one") -> tuple[int, str]:
    """Number and digest after a publication."""
    made = await revisions.publish("evals", "task", name, content={"value": value}, extra={})
    return made.number, made.digest


# --- digests ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("N-198")
def test_the_digest_is_that_of_the_documented_form() -> None:
    # sha256 of the bytes {"a":"\\u00e9","b":[1,2]}
    assert content_digest({"b": [1, 2], "a": "é"}) == "e72bd1bfe08db42c7cb48a01fcbbe441a57d28e5e64fcb08dcfab2cffe99f7a2"
    assert content_digest({"b": 1, "a": 2}) == content_digest({"a": 2, "b": 1})
    assert content_digest({"a": [1, 2]}) != content_digest({"a": [2, 1]})
    assert content_digest({"a": 1}) != content_digest({"a": 1.0})


@pytest.mark.conforms("N-198")
async def test_identical_content_has_one_digest_under_two_names_and_in_two_namespaces(revisions: Revisions) -> None:
    one = await revisions.publish("evals", "task", "one", content={"a": 1}, extra={"config": {"x": 1}})
    two = await revisions.publish("other", "task", "two", content={"a": 1}, extra={"config": {"x": 2}})
    assert one.digest == two.digest
    with pytest.raises(NotFound, match="evals/three has no revision with digest"):
        await revisions.find("evals", "task", "three", one.digest)


# --- numbers ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("N-199")
async def test_content_is_compared_with_the_newest_revision_only_and_a_revert_cuts_a_new_one(revisions: Revisions) -> None:
    first, same, second, back = [await cut(revisions, value) for value in ("a", "a", "b", "a")]
    assert [first[0], same[0], second[0], back[0]] == [1, 1, 2, 3]
    assert first[1] == same[1] == back[1] != second[1]
    assert (await revisions.find("evals", "task", "one", first[1])).number == 3
    assert await revisions.numbers("evals", "task", "one") == [3, 2, 1]


@pytest.mark.conforms("N-199")
async def test_publishers_that_race_never_get_one_number_and_identical_content_yields_one_revision(
    revisions: Revisions, memory: MemoryStore
) -> None:
    all_have_listed, late = threading.Barrier(4), iter(range(100))

    def wait(operation: str, key: str) -> SeatrialError | None:
        if operation == "put_new" and next(late) < all_have_listed.parties:
            all_have_listed.wait(timeout=10)
        return None

    memory.fault = wait
    made = await asyncio.gather(*(cut(revisions, value) for value in ("a", "b", "c", "a")))
    assert sorted({number for number, _ in made}) == [1, 2, 3]
    assert len(set(made)) == 3
    assert made[0] == made[3]


@pytest.mark.conforms("N-199")
async def test_a_publisher_that_loses_every_number_gives_up_with_the_next_step(revisions: Revisions, memory: MemoryStore) -> None:
    other = Revisions(AsyncStore(memory, concurrency=4, metrics=Metrics()))

    def taken(operation: str, key: str) -> SeatrialError | None:
        if operation != "put_new":
            return None
        number = int(key.rpartition("/")[2].removesuffix(".json"))
        content = {"value": f"theirs {number}"}
        document = {"content": content, "digest": content_digest(content), "revision": number}
        memory.objects[key] = json.dumps(document).encode()
        return AlreadyExists(key)

    memory.fault = taken
    with pytest.raises(Conflict, match=f"taken {TRIES} times in a row: try again"):
        await cut(other, "ours")
    assert await revisions.numbers("evals", "task", "one") == [5, 4, 3, 2, 1]


async def test_foreign_keys_are_no_revisions(revisions: Revisions, memory: MemoryStore) -> None:
    await cut(revisions, "a")
    for name in ("02.json", "x.json", "3.json.bak", "deep/4.json", "-1.json"):
        memory.objects[revision_key("evals", "task", "one", 1).replace("1.json", name)] = b"{}"
    assert await revisions.numbers("evals", "task", "one") == [1]


# --- reading ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("N-199")
@pytest.mark.parametrize(
    "damage",
    [
        lambda document: {**document, "content": {"value": "forged"}},
        lambda document: {**document, "digest": "0" * 64},
        lambda document: {**document, "revision": 2},
        lambda document: [document],
        lambda document: {},
    ],
    ids=["content", "digest", "number", "list", "empty"],
)
async def test_a_changed_revision_is_never_read_or_built_upon(revisions: Revisions, memory: MemoryStore, damage: Any) -> None:
    await cut(revisions, "a")
    key = revision_key("evals", "task", "one", 1)
    memory.objects[key] = json.dumps(damage(json.loads(memory.objects[key]))).encode()
    for call in (revisions.read("evals", "task", "one", 1), cut(revisions, "b")):
        with pytest.raises(RevisionMismatch, match="does not have the digest that it states: publish task evals/one again"):
            await call


async def test_a_revision_that_is_no_json_is_refused_the_same_way(revisions: Revisions, memory: MemoryStore) -> None:
    await cut(revisions, "a")
    memory.objects[revision_key("evals", "task", "one", 1)] = b"\xff{"
    with pytest.raises(RevisionMismatch):
        await revisions.read("evals", "task", "one", 1)


# --- tags -------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("N-200")
def test_latest_moves_with_every_publication_and_never_back() -> None:
    assert merge_tags({"latest": 3, "old": 1}, ["stable"], 4) == {"latest": 4, "old": 1, "stable": 4}
    assert merge_tags({"latest": 3}, (), 2) == {"latest": 3}


@pytest.mark.conforms("N-200")
async def test_other_tags_move_freely_by_digest_and_by_tag_and_backwards(revisions: Revisions) -> None:
    digests = [(await cut(revisions, value))[1] for value in "abc"]
    seen = {"latest": 3, "stable": 3, "first": 1}
    assert await revisions.tags("task", task(status_tags=seen, tagPointers={"stable": digests[1], "good": "first"}), 3) == {
        "first": 1,
        "good": 1,
        "latest": 3,
        "stable": 2,
    }


async def test_a_pointer_to_nothing_is_refused_with_the_known_tags(revisions: Revisions) -> None:
    await cut(revisions, "a")
    with pytest.raises(UnknownRevision, match=r"spec.tagPointers.good: no revision is tagged 'nope' \(known tags: latest, old\)"):
        await revisions.tags("task", task(status_tags={"old": 1}, tagPointers={"good": "nope"}), 1)
    with pytest.raises(UnknownRevision, match="evals/one has no revision with digest 0000"):
        await revisions.tags("task", task(tagPointers={"good": "0" * 64}), 1)


@pytest.mark.conforms("N-200")
@pytest.mark.parametrize("kind", ["tags", "tagPointers"])
def test_a_tag_that_looks_like_a_digest_is_refused(kind: str) -> None:
    with pytest.raises(InvalidSpec, match="a tag must not look like a digest"):
        task(**{kind: [SHA] if kind == "tags" else {SHA: "latest"}})


@pytest.mark.conforms("N-200")
def test_latest_is_not_moved_by_hand() -> None:
    with pytest.raises(InvalidSpec, match="latest is moved by every publication and by nothing else"):
        task(tagPointers={"latest": "stable"})


@pytest.mark.parametrize("tag", ["", "a b", "a#b", "x" * 129])
def test_other_characters_make_no_tag(tag: str) -> None:
    with pytest.raises(InvalidSpec, match="is not a tag"):
        task(tagPointers={tag: "stable"})


def test_tags_and_pointers_share_one_bound_and_no_name() -> None:
    with pytest.raises(InvalidSpec, match="at most 63 tags together"):
        task(tags=[f"a{index}" for index in range(32)], tagPointers={f"b{index}": "latest" for index in range(32)})
    with pytest.raises(InvalidSpec, match="x is in tags and in tagPointers"):
        Taskset.parse(
            {
                "apiVersion": "seatrial.dev/v1alpha1",
                "kind": "Taskset",
                "metadata": {"name": "one", "namespace": "evals"},
                "spec": {"tasks": ["one"], "tags": ["x"], "tagPointers": {"x": "latest"}},
            }
        )


def test_old_tags_give_way_when_there_are_too_many() -> None:
    old = {f"old{index:03}": 1 for index in range(MOST_TAGS)}
    merged = merge_tags({**old, "latest": 1}, ["new"], 2)
    assert len(merged) == MOST_TAGS
    assert {tag: merged[tag] for tag in ("new", "latest")} == {"new": 2, "latest": 2}
