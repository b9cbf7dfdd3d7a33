from __future__ import annotations

from typing import Any

from seatrial.handlers.cache import Key, ObjectCache

JOB = Key("EvalJob", "evals", "job")


class Subject:
    def __init__(self) -> None:
        self.woken: list[Key] = []
        self.time = 0.0
        self.cache = ObjectCache(self.woken.append, clock=lambda: self.time)

    def list(self, *bodies: dict[str, Any], namespace: str | None = None) -> None:
        self.cache.merge("EvalJob", bodies, began=self.time, namespace=namespace)
        self.time += 1


def body(generation: int = 1, uid: str = "u1", version: str = "1", name: str = "job") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "evals", "uid": uid, "generation": generation, "resourceVersion": version}}


def test_events_store_and_wake_and_a_deletion_wakes_too() -> None:
    subject = Subject()
    subject.cache.observe(None, "EvalJob", body())
    subject.cache.observe("MODIFIED", "EvalJob", body(2))
    assert subject.cache.get(JOB) == body(2)
    subject.cache.observe("DELETED", "EvalJob", body(2))
    assert subject.cache.get(JOB) is None
    assert subject.woken == [JOB] * 3


def test_who_wrote_which_field_is_not_kept() -> None:
    subject = Subject()
    given = body()
    given["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    subject.cache.observe("ADDED", "EvalJob", given)
    assert (subject.cache.get(JOB), "managedFields" in given["metadata"]) == (body(), True)


def test_the_end_of_an_old_object_does_not_remove_its_successor() -> None:
    subject = Subject()
    subject.list(body(uid="new"))
    subject.cache.observe("DELETED", "EvalJob", body(uid="old"))
    assert subject.cache.get(JOB) == body(uid="new")


def test_the_answer_to_an_own_write_is_kept_and_wakes_nobody() -> None:
    subject = Subject()
    subject.cache.observe(None, "EvalJob", body())
    subject.cache.written("EvalJob", body(version="2"))
    assert subject.cache.get(JOB) == body(version="2")
    assert subject.woken == [JOB]


def test_an_answer_that_arrives_after_a_later_change_does_not_undo_it() -> None:
    subject = Subject()
    subject.cache.observe(None, "EvalJob", body(version="9"))
    subject.cache.observe("MODIFIED", "EvalJob", body(2, version="11"))
    subject.cache.written("EvalJob", body(version="10"))
    assert subject.cache.get(JOB) == body(2, version="11")
    subject.cache.refresh("EvalJob", "evals", "job", body(version="10"), began=0)
    assert subject.cache.get(JOB) == body(2, version="11")
    assert subject.woken == [JOB] * 3


def test_an_answer_about_an_object_made_again_replaces_the_old_one_whatever_its_version() -> None:
    subject = Subject()
    subject.cache.observe(None, "EvalJob", body(2, version="11"))
    subject.cache.refresh("EvalJob", "evals", "job", body(uid="u2", version="3"), began=1)
    assert subject.cache.get(JOB) == body(uid="u2", version="3")


def test_answers_about_the_predecessor_do_not_undo_the_successor_that_the_watch_brought() -> None:
    subject = Subject()
    subject.cache.observe(None, "EvalJob", body(version="9"))
    subject.time = 5
    subject.cache.observe("DELETED", "EvalJob", body(version="12"))
    subject.cache.observe("ADDED", "EvalJob", body(uid="u2", version="13"))
    subject.cache.written("EvalJob", body(version="10"))
    subject.cache.refresh("EvalJob", "evals", "job", body(version="11"), began=4)
    subject.cache.refresh("EvalJob", "evals", "job", None, began=4)
    subject.cache.merge("EvalJob", [body(version="11")], began=4, namespace=None)
    assert subject.cache.get(JOB) == body(uid="u2", version="13")
    subject.cache.refresh("EvalJob", "evals", "job", None, began=6)
    assert subject.cache.get(JOB) is None


def test_versions_that_are_no_numbers_leave_the_generation_to_decide() -> None:
    subject = Subject()
    subject.cache.observe(None, "EvalJob", body(2, version="b"))
    subject.cache.written("EvalJob", body(1, version="c"))
    assert subject.cache.get(JOB) == body(2, version="b")
    subject.cache.written("EvalJob", body(2, version="a"))
    assert subject.cache.get(JOB) == body(2, version="a")


def test_a_list_adds_what_is_unknown_and_replaces_what_is_newer() -> None:
    subject = Subject()
    subject.list(body())
    subject.list(body())
    assert subject.woken == [JOB]
    subject.list(body(2))
    subject.list(body(2, uid="u2"))
    assert subject.cache.get(JOB) == body(2, uid="u2")
    assert subject.woken == [JOB] * 3


def test_a_list_that_is_older_than_the_watch_takes_nothing_back() -> None:
    subject = Subject()
    subject.cache.observe("MODIFIED", "EvalJob", body(3))
    subject.list(body(2))
    assert subject.cache.get(JOB) == body(3)


def test_what_a_list_does_not_have_is_removed_unless_it_came_after_the_list_began() -> None:
    subject = Subject()
    subject.cache.observe(None, "EvalJob", body())
    subject.time = 5
    subject.cache.merge("EvalJob", [], began=0, namespace=None)
    assert subject.cache.get(JOB) is not None
    subject.cache.merge("EvalJob", [], began=5, namespace="other")
    assert subject.cache.get(JOB) is not None
    subject.cache.merge("EvalJob", [], began=5, namespace="evals")
    assert subject.cache.get(JOB) is None


def test_a_change_that_only_lists_bring_is_a_sign_of_a_dead_watch() -> None:
    subject = Subject()
    subject.list(body())
    subject.time = 100
    assert subject.cache.missed_seconds() == 100
    subject.cache.observe("ADDED", "EvalJob", body())
    assert subject.cache.missed_seconds() == 0
    subject.list(body(2))
    subject.time += 30
    assert subject.cache.missed_seconds() == 31
