"""Tasks and tasksets one by one, synchronously and awaited, against a real S3 server and a small Kubernetes API."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seatrial import AsyncEvaluator, Evaluator, discover_harbor_tasks
from seatrial.effects.store import Store, StoreSettings
from seatrial.errors import AlreadyExists, InvalidSpec, NotFound, Unavailable
from seatrial.sdk import as_base_task
from seatrial.sdk.cluster import Cluster, ClusterSettings
from seatrial.sdk.evaluator import AsyncTasks, AsyncTasksets
from seatrial.sdk.pack_store import key_of
from seatrial.sdk.tasks import FieldsDifferFromPackage, NotVerified, StoredObject, TaskPublicationError, Tasks, Tasksets, tag_patch
from seatrial.taskpkg.collection import HarborTask

MakeTask = Callable[..., Path]


@pytest.fixture
def evaluator(kubeconfig: Path, store_settings: StoreSettings) -> Evaluator:
    return Evaluator(kubeconfig=str(kubeconfig), store=store_settings)


@pytest.fixture
def one(make_task: MakeTask) -> HarborTask:
    return discover_harbor_tasks(make_task("one"))[0]


@pytest.mark.conforms("N-6", "N-33", "N-55")
def test_a_suite_is_published_task_by_task_and_grouped_by_ids(evaluator: Evaluator, make_task: MakeTask, suite: Path, kube: Any) -> None:
    make_task("one")
    make_task("two")
    tasks = [evaluator.tasks.replace(task.id.replace("/", "-"), task=task) for task in discover_harbor_tasks(suite)]
    taskset = evaluator.tasksets.create("suite", tasks=[task.id for task in tasks])
    assert ([task.name for task in tasks], taskset.revision) == (["bench-one", "bench-two"], 1)
    assert kube.get("tasksets", "suite")["spec"]["tasks"] == [f"evals/{task.name}#{task.digest}" for task in tasks]


@pytest.mark.conforms("N-52")
def test_create_needs_a_new_name_and_replace_takes_any(evaluator: Evaluator, one: HarborTask) -> None:
    evaluator.tasks.create("one", task=one)
    with pytest.raises(AlreadyExists, match="already exists"):
        evaluator.tasks.create("one", task=one)
    assert evaluator.tasks.replace("one", task=one).revision == 1
    evaluator.tasksets.create("set", tasks=["one"])
    with pytest.raises(AlreadyExists, match="already exists"):
        evaluator.tasksets.create("set", tasks=["one"])
    assert evaluator.tasksets.replace("set", tasks=["one"]).revision == 1


@pytest.mark.conforms("N-53")
def test_replace_cuts_a_revision_only_for_new_content(evaluator: Evaluator, make_task: MakeTask) -> None:
    folder = make_task("one")
    revisions = [evaluator.tasks.replace("one", task=discover_harbor_tasks(folder)[0]).revision for _ in range(2)]
    (folder / "instruction.md").write_text("Do it better.\n")
    assert [*revisions, evaluator.tasks.replace("one", task=discover_harbor_tasks(folder)[0]).revision] == [1, 1, 2]


@pytest.mark.conforms("N-45")
@pytest.mark.parametrize("change", ["instruction.md", "task.toml"])
def test_a_folder_that_changed_after_discovery_is_refused_with_rediscover(
    evaluator: Evaluator, one: HarborTask, kube: Any, store: Store, change: str
) -> None:
    (one.source_dir / change).write_text('[task]\nname = "bench/other"\n')
    with pytest.raises(FieldsDifferFromPackage, match="rediscover before publication"):
        evaluator.tasks.create("one", task=one)
    assert (kube.writes(), list(store.list(""))) == ([], [])


@pytest.mark.conforms("N-47", "N-48")
def test_a_failed_write_of_the_object_is_repeated_without_another_upload(
    evaluator: Evaluator, one: HarborTask, kube: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kube.faults = [(503, {"kind": "Status", "message": "overloaded"})]
    with pytest.raises(TaskPublicationError, match="its archive is stored") as caught:
        evaluator.tasks.create("one", task=one)
    assert (isinstance(caught.value, RuntimeError), type(caught.value.__cause__)) == (True, Unavailable)
    monkeypatch.setattr("seatrial.sdk.tasks.pack_and_store", lambda *_, **__: pytest.fail("stored again"))
    assert evaluator.tasks.replace("one", task=caught.value.prepared_task).revision == 1


@pytest.mark.conforms("N-48")
def test_a_lost_answer_of_a_create_is_an_error_and_the_next_create_reports_the_conflict(
    evaluator: Evaluator, one: HarborTask, kube: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., Any] = Cluster.create

    def lose(self: Cluster, *args: Any, **kwargs: Any) -> Any:
        real(self, *args, **kwargs)
        raise Unavailable("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(Cluster, "create", lose)
        with pytest.raises(TaskPublicationError) as caught:
            evaluator.tasks.create("one", task=one)
    with pytest.raises(AlreadyExists):
        evaluator.tasks.create("one", task=caught.value.prepared_task)
    assert evaluator.tasks.replace("one", task=caught.value.prepared_task).revision == 1


@pytest.mark.conforms("N-39", "N-40")
def test_archive_options_change_the_destination_and_namespace_changes_both(evaluator: Evaluator, one: HarborTask, kube: Any) -> None:
    evaluator.tasks.create("a", task=one, fileset_ref="shared/archives", path_prefix="release-1")
    evaluator.tasks.create("b", task=one, namespace="other")
    sha256 = kube.get("tasks", "a")["spec"]["source"]["sha256"]
    assert [kube.get("tasks", "a")["spec"]["source"]["ref"], kube.get("tasks", "b", "other")["spec"]["source"]["ref"]] == [
        f"shared/archives#release-1/one/{sha256}/task_archive",
        f"other/harbor-tasks#one/{sha256}/task_archive",
    ]


@pytest.mark.conforms("N-54")
@pytest.mark.parametrize("name", ["bench/one", "One", "-one", "one-", "a" * 254, "", "a_b"])
def test_a_name_that_no_object_can_have_is_refused_before_anything_is_sent(
    evaluator: Evaluator, one: HarborTask, kube: Any, name: str
) -> None:
    with pytest.raises(InvalidSpec, match="invalid name"):
        evaluator.tasks.create(name, task=one)
    with pytest.raises(InvalidSpec, match="invalid name"):
        evaluator.tasksets.create(name, tasks=["one"])
    assert kube.writes() == []


def test_options_of_preparation_do_not_go_with_a_prepared_or_a_plain_task(evaluator: Evaluator, one: HarborTask) -> None:
    prepared = evaluator.tasks.prepare(one)
    with pytest.raises(InvalidSpec, match="cannot be used with a prepared task"):
        evaluator.tasks.create("one", task=prepared, path_prefix="x")
    with pytest.raises(InvalidSpec, match="require a discovered Harbor task"):
        evaluator.tasks.prepare(as_base_task(one))  # type: ignore[arg-type]


def test_a_task_that_the_operator_refuses_raises_with_its_reason(evaluator: Evaluator, one: HarborTask, kube: Any) -> None:
    good = kube.react

    def react(plural: str, item: dict[str, Any]) -> None:
        good(plural, item)
        item["status"]["conditions"][0] |= {"status": "False", "reason": "TaskArchiveCorrupt", "message": "checksum"}

    kube.react = react
    with pytest.raises(NotVerified, match="Task one: TaskArchiveCorrupt: checksum") as caught:
        evaluator.tasks.create("one", task=one)
    assert caught.value.reason == "TaskArchiveCorrupt"


@pytest.mark.conforms("N-49")
def test_deleting_a_task_keeps_the_archive_that_another_one_shares(evaluator: Evaluator, one: HarborTask, kube: Any, store: Store) -> None:
    evaluator.tasks.create("a", task=one)
    evaluator.tasks.create("b", task=one)
    key = key_of(kube.get("tasks", "b")["spec"]["source"]["ref"])
    evaluator.tasks.delete("a")
    assert (store.stat(key).size > 0, [task.name for task in evaluator.tasks.list()]) == (True, ["b"])


@pytest.mark.conforms("N-42")
def test_a_reference_into_an_old_fileset_is_kept_as_it_is(evaluator: Evaluator, one: HarborTask, kube: Any, store: Store) -> None:
    prepared = evaluator.tasks.prepare(one, fileset_ref="evals/harbor-tasksets")
    evaluator.tasks.replace("old", task=prepared)
    evaluator.tasks.tag("old", tag="stable")
    source = kube.get("tasks", "old")["spec"]["source"]
    assert (source["ref"].startswith("evals/harbor-tasksets#one/"), store.stat(key_of(source["ref"])).size > 0) == (True, True)


@pytest.mark.conforms("N-56", "N-57", "N-58")
def test_a_taskset_pins_what_is_current_and_a_later_update_leaves_it_alone(evaluator: Evaluator, make_task: MakeTask, kube: Any) -> None:
    folder = make_task("one")
    first = evaluator.tasks.replace("one", task=discover_harbor_tasks(folder)[0])
    (folder / "instruction.md").write_text("Just before.\n")
    second = evaluator.tasks.replace("one", task=discover_harbor_tasks(folder)[0])
    evaluator.tasksets.replace("set", tasks=[first.id])
    (folder / "instruction.md").write_text("Later.\n")
    third = evaluator.tasks.replace("one", task=discover_harbor_tasks(folder)[0])
    pinned = kube.get("tasksets", "set")["spec"]["tasks"]
    evaluator.tasksets.replace("set", tasks=["one"])
    assert (pinned, kube.get("tasksets", "set")["spec"]["tasks"]) == ([f"evals/one#{second.digest}"], [f"evals/one#{third.digest}"])


def test_members_may_come_in_any_order_and_form_but_only_once(evaluator: Evaluator, make_task: MakeTask, suite: Path, kube: Any) -> None:
    make_task("one")
    make_task("two")
    one, two = (evaluator.tasks.replace(task.source_dir.name, task=task) for task in discover_harbor_tasks(suite))
    evaluator.tasksets.create("set", tasks=[two, f"evals/one#{one.digest}"])
    assert evaluator.tasksets.replace("set", tasks=["one", two.id]).revision == 1
    with pytest.raises(InvalidSpec, match="duplicate task: evals/one#"):
        evaluator.tasksets.replace("set", tasks=["one", one.id])
    with pytest.raises(NotFound, match="does not identify an available published task"):
        evaluator.tasksets.replace("set", tasks=["0" * 32])


def test_tasks_are_found_by_what_they_are(evaluator: Evaluator, make_task: MakeTask, suite: Path) -> None:
    make_task("one", toml='[metadata]\ndifficulty = "easy"\n')
    make_task("two", toml='[metadata]\ndifficulty = "hard"\n')
    for task in discover_harbor_tasks(suite):
        evaluator.tasks.replace(task.source_dir.name, task=task, tags=["stable"] if task.id == "bench/one" else [])

    def names(**conditions: Any) -> list[str]:
        return [task.name for task in evaluator.tasks.list(**conditions)]

    assert [names(), names(native_id="bench/two"), names(tag="stable"), names(metadata={"difficulty": "hard"}), names(metric="m")] == [
        ["one", "two"],
        ["two"],
        ["one"],
        ["two"],
        [],
    ]


@pytest.mark.conforms("N-200")
def test_the_patch_that_moves_a_tag_names_it_in_one_place() -> None:
    item = {"spec": {"tags": ["stable", "v1"], "tagPointers": {"good": "v1"}}}
    assert tag_patch(item, ["stable"], "v1") == {"spec": {"tags": ["v1"], "tagPointers": {"stable": "v1"}}}
    assert tag_patch(item, ["good"], None) == {"spec": {"tags": ["stable", "v1", "good"], "tagPointers": {"good": None}}}
    assert tag_patch({"spec": {}}, ["a", "b"], "c" * 64) == {"spec": {"tagPointers": {"a": "c" * 64, "b": "c" * 64}}}
    assert tag_patch({"spec": {}}, ["a"], None) == {"spec": {"tags": ["a"]}}


@pytest.mark.parametrize("tag", ["latest", "a" * 64])
def test_tags_that_move_by_themselves_or_look_like_digests_are_refused(evaluator: Evaluator, tag: str) -> None:
    with pytest.raises(InvalidSpec, match="cannot be set by hand"):
        evaluator.tasks.tag("one", tag=tag)


# --- awaited ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("N-50", "N-51")
async def test_the_asynchronous_evaluator_makes_the_same_calls(
    kubeconfig: Path, store_settings: StoreSettings, one: HarborTask, kube: Any
) -> None:
    client = Cluster.connect(ClusterSettings(kubeconfig=str(kubeconfig)))
    async with AsyncEvaluator.from_client(client, store=store_settings) as ev:
        task = await ev.tasks.create("one", task=one, namespace="other")
        again = await ev.tasks.replace("one", task=one, namespace="other")
        taskset = await ev.tasksets.create("set", tasks=[task.id], namespace="other")
        listed = await ev.tasks.list(namespace="other")
    assert ([task.revision, again.revision, taskset.revision], [item.name for item in listed], sorted(kube.objects)) == (
        [1, 1, 1],
        ["one"],
        [("tasks", "other", "one"), ("tasksets", "other", "set")],
    )


@pytest.mark.conforms("N-51")
@pytest.mark.parametrize(("sync", "awaited"), [(Tasks, AsyncTasks), (Tasksets, AsyncTasksets), (Evaluator, AsyncEvaluator)])
def test_both_forms_offer_the_same_methods(sync: type, awaited: type) -> None:
    def public(kind: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}

    assert public(sync) - public(awaited) <= {"kind", "condition", "results", "agent_eval_results", "store"}


@pytest.mark.conforms("N-77")
def test_the_handle_of_a_job_has_name_wait_and_results_by_id(evaluator: Evaluator, kube: Any, store: Store) -> None:
    job = evaluator.submit(taskset="smoke", agent="oracle", attempts=3, name="j")
    item = kube.get("evaljobs", "j")
    store.put(f"jobs/evals/j-{job.uid}/summary.json", b'{"scores": [{"name": "reward.mean", "value": 0.5}]}')
    kube.put("evaljobs", {**item, "status": {"phase": "Completed"}})
    done = job.wait_until_done(job_timeout_seconds=10, pending_timeout_seconds=10)
    assert (job.name, done.phase, job.summary.score("reward.mean")) == ("j", "Completed", 0.5)
    assert [result["name"] for result in evaluator.results.list(job_id=job.uid)] == ["j"]
    assert list(evaluator.agent_eval_results.list(job_id="other")) == []


def test_a_stored_object_shows_what_it_is() -> None:
    raw = {
        "kind": "Task",
        "metadata": {"name": "one", "namespace": "evals", "uid": "u"},
        "status": {"revision": 2, "digest": "d", "tags": {}},
    }
    found = StoredObject(raw)
    assert (repr(found), found.pinned, found.tags) == ("<Task evals/one revision 2>", "evals/one#d", {})
