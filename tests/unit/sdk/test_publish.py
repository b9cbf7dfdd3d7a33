"""Publishing against a real S3 server and a small Kubernetes API."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.wheels import probe_wheel

from seatrial.api.names import TASK
from seatrial.effects.store import Store, StoreSettings
from seatrial.errors import InvalidSpec
from seatrial.sdk import publish as publish_module
from seatrial.sdk.cluster import Cluster, ClusterSettings
from seatrial.sdk.evaluator import Evaluator
from seatrial.sdk.pack_store import key_of
from seatrial.sdk.publish import PublishOptions, SuiteRefused, find_suite, git_annotations, publish
from seatrial.sdk.registry import find_dataset, gather
from seatrial.taskpkg.extract import extract_archive

MakeTask = Callable[..., Path]


@pytest.fixture
def run(kube: Any, kubeconfig: Path, store_settings: StoreSettings) -> Callable[..., Any]:
    cluster = Cluster.connect(ClusterSettings(kubeconfig=str(kubeconfig)))

    def call(path: Path, **options: Any) -> Any:
        chosen = PublishOptions(**{"timeout_seconds": 10, "processes": 1, **options})
        return publish(path, chosen, cluster=cluster, settings=store_settings)

    return call


def outcomes(report: Any) -> dict[str, str]:
    return {task.name: task.outcome for task in report.tasks}


# --- what is published, and where -------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("N-33", "N-35", "N-36", "N-37", "N-38", "N-41", "N-43")
def test_a_suite_becomes_archives_tasks_and_a_pinned_taskset(
    run: Callable[..., Any], make_task: MakeTask, suite: Path, kube: Any, store: Store
) -> None:
    make_task("one")
    make_task("two")
    report = run(suite, taskset="smoke")
    assert (outcomes(report), report.succeeded) == ({"bench-one": "created", "bench-two": "created"}, True)
    task = kube.get("tasks", "bench-one")
    sha256 = task["spec"]["source"]["sha256"]
    ref = f"evals/harbor-tasks#one/{sha256}/task_archive"
    assert task["spec"] == {"source": {"ref": ref, "sha256": sha256, "format": "tar-gzip-v1"}, "nativeTaskId": "bench/one"}
    archive = store.get(f"filesets/evals/harbor-tasks/one/{sha256}/task_archive", max_bytes=10_000)
    assert (hashlib.sha256(archive).hexdigest(), key_of(ref)) == (sha256, f"filesets/evals/harbor-tasks/one/{sha256}/task_archive")
    digests = {name: kube.get("tasks", name)["status"]["digest"] for name in ("bench-one", "bench-two")}
    assert kube.get("tasksets", "smoke")["spec"] == {"tasks": [f"{name}#{digest}" for name, digest in digests.items()]}


@pytest.mark.conforms("N-34")
def test_a_single_task_is_published_alone(run: Callable[..., Any], make_task: MakeTask, kube: Any) -> None:
    report = run(make_task("one"))
    assert (outcomes(report), report.taskset, list(kube.objects)) == ({"bench-one": "created"}, None, [("tasks", "evals", "bench-one")])


@pytest.mark.conforms("N-39", "N-40")
def test_fileset_and_prefix_change_the_archives_place_and_nothing_else(run: Callable[..., Any], make_task: MakeTask, kube: Any) -> None:
    run(make_task("one"), fileset="shared/archives", prefix="release-1")
    source = kube.get("tasks", "bench-one")["spec"]["source"]
    assert source["ref"] == f"shared/archives#release-1/one/{source['sha256']}/task_archive"


@pytest.mark.parametrize("option", [{"fileset": "a/b/c"}, {"fileset": "a/.."}, {"prefix": "a//b"}, {"prefix": "../x"}, {"prefix": "a#b"}])
def test_a_destination_that_no_reference_can_name_is_refused(
    run: Callable[..., Any], make_task: MakeTask, kube: Any, option: dict[str, str]
) -> None:
    with pytest.raises(InvalidSpec, match="is not usable"):
        run(make_task("one"), **option)
    assert kube.writes() == []


def test_tags_and_description_reach_the_objects(run: Callable[..., Any], make_task: MakeTask, suite: Path, kube: Any) -> None:
    make_task("one")
    run(suite, taskset="smoke", tags=["stable"], description="a few")
    assert kube.get("tasks", "bench-one")["spec"]["tags"] == ["stable"]
    assert {name: kube.get("tasksets", "smoke")["spec"][name] for name in ("tags", "description")} == {
        "tags": ["stable"],
        "description": "a few",
    }


# --- metric.py --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("N-160", "N-165", "H-140")
def test_a_suites_metric_script_is_published_with_it_and_goes_with_it(
    run: Callable[..., Any], make_task: MakeTask, suite: Path, kube: Any, store: Store
) -> None:
    make_task("one")
    (suite / "metric.py").write_text("print()\n")
    sha256 = hashlib.sha256(b"print()\n").hexdigest()
    script = {"ref": f"evals/harbor-tasks#metrics/{sha256}/metric.py", "sha256": sha256}
    report = run(suite, taskset="smoke")
    assert (report.metric_script, kube.get("tasksets", "smoke")["spec"]["metricScript"]) == (script, script)
    assert store.get(key_of(script["ref"]), max_bytes=100) == b"print()\n"
    assert run(suite, taskset="smoke").taskset.outcome == "unchanged"
    (suite / "metric.py").write_text("print(1)\n")
    assert run(suite, taskset="smoke").taskset.outcome == "revised"
    assert kube.get("tasksets", "smoke")["spec"]["metricScript"]["sha256"] == hashlib.sha256(b"print(1)\n").hexdigest()
    (suite / "metric.py").unlink()
    assert run(suite, taskset="smoke").taskset.outcome == "revised"
    assert "metricScript" not in kube.get("tasksets", "smoke")["spec"]


@pytest.mark.conforms("N-162")
def test_the_packages_of_a_metric_script_are_published_with_it_by_their_versions(
    run: Callable[..., Any], make_task: MakeTask, suite: Path, kube: Any, store: Store
) -> None:
    make_task("one")
    text = f'# /// script\n# dependencies = ["seatrial-probe @ {probe_wheel(suite.parent).as_uri()}"]\n# ///\nimport seatrial_probe\n'
    (suite / "metric.py").write_text(text)
    report = run(suite, taskset="smoke")
    assert report.metric_script_note == ""
    data = store.get(key_of(report.metric_script["ref"]), max_bytes=100_000)
    sha256 = hashlib.sha256(data).hexdigest()
    script = {"ref": f"evals/harbor-tasks#metrics/{sha256}/metric.zip", "sha256": sha256}
    assert (report.metric_script, kube.get("tasksets", "smoke")["spec"]["metricScript"]) == (script, script)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        info = "modules/seatrial_probe-1.0.dist-info"
        assert archive.namelist() == ["metric.py", f"{info}/METADATA", f"{info}/WHEEL", "modules/seatrial_probe.py", "requirements.txt"]
        assert (archive.read("metric.py"), archive.read("requirements.txt")) == (text.encode(), b"seatrial-probe==1.0\n")
    assert run(suite, taskset="smoke").taskset.outcome == "unchanged"


@pytest.mark.parametrize("requirement", ["seatrial-probe @ file:///no/such-1.0-py3-none-any.whl", "-r /etc/passwd", "not a requirement"])
def test_a_metric_script_whose_packages_are_not_to_be_had_is_published_alone_and_says_so(
    run: Callable[..., Any], make_task: MakeTask, suite: Path, requirement: str
) -> None:
    make_task("one")
    (suite / "metric.py").write_text(f'# /// script\n# dependencies = ["{requirement}"]\n# ///\n')
    report = run(suite, taskset="smoke")
    assert (report.succeeded, report.metric_script["ref"].rpartition("/")[2]) == (True, "metric.py")
    assert "its dependencies cannot be installed" in report.metric_script_note


def test_a_suites_metric_script_can_be_left_out_and_that_of_a_task_is_none(
    run: Callable[..., Any], make_task: MakeTask, suite: Path, kube: Any
) -> None:
    task = make_task("one")
    (suite / "metric.py").write_text("print()\n")
    (task / "metric.py").write_text("print()\n")
    assert run(suite, taskset="smoke", metric_script=False).metric_script is None
    assert "metricScript" not in kube.get("tasksets", "smoke")["spec"]
    assert run(task).metric_script is None


@pytest.mark.conforms("H-134")
def test_the_metrics_of_a_registrys_dataset_reach_the_taskset(
    run: Callable[..., Any], make_task: MakeTask, suite: Path, kube: Any, tmp_path: Path
) -> None:
    make_task("one")
    (suite / "own.py").write_text("print(2)\n")
    metrics = [{"type": "max"}, {"type": "uv-script", "kwargs": {"script_path": "own.py"}}]
    entry = {"name": "bench", "version": "1", "description": "", "tasks": [{"name": "one", "path": "one"}], "metrics": metrics}
    (suite / "registry.json").write_text(json.dumps([entry]))
    found = find_dataset(suite / "registry.json", "bench")
    gathered = gather(found, registry=suite / "registry.json", target=tmp_path / "gathered")
    run(gathered, taskset="bench", metrics=["max"])
    spec = kube.get("tasksets", "bench")["spec"]
    assert spec["metrics"] == [{"type": "max"}]
    assert spec["metricScript"]["sha256"] == hashlib.sha256(b"print(2)\n").hexdigest()


# --- again ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("N-53")
def test_publishing_twice_changes_nothing(run: Callable[..., Any], make_task: MakeTask, suite: Path, kube: Any) -> None:
    make_task("one")
    make_task("two")
    run(suite, taskset="smoke")
    before, writes = dict(kube.objects), len(kube.writes())
    again = run(suite, taskset="smoke")
    assert (outcomes(again), again.taskset.outcome) == ({"bench-one": "unchanged", "bench-two": "unchanged"}, "unchanged")
    assert (kube.objects, len(kube.writes())) == (before, writes)


def test_what_the_api_server_fills_in_is_no_change(run: Callable[..., Any], make_task: MakeTask, suite: Path, kube: Any) -> None:
    make_task("one")
    run(suite, taskset="smoke")
    stored = kube.get("tasksets", "smoke")
    filled = {"description": "", "metadata": {}, "metrics": [], "tagPointers": {}, "tags": [], **stored["spec"]}
    kube.objects["tasksets", "evals", "smoke"]["spec"] = filled
    writes = len(kube.writes())
    assert run(suite, taskset="smoke").taskset.outcome == "unchanged"
    assert len(kube.writes()) == writes


@pytest.mark.conforms("N-53")
def test_an_edited_file_cuts_one_revision_and_pins_the_taskset_again(
    run: Callable[..., Any], make_task: MakeTask, suite: Path, kube: Any
) -> None:
    make_task("one")
    two = make_task("two")
    first = run(suite, taskset="smoke")
    (two / "instruction.md").write_text("Do it better.\n")
    second = run(suite, taskset="smoke")
    assert outcomes(second) == {"bench-one": "unchanged", "bench-two": "revised"}
    assert [task.revision for task in second.tasks] == [1, 2]
    assert (second.taskset.outcome, second.taskset.digest != first.taskset.digest) == ("revised", True)


def test_a_run_that_was_broken_off_is_continued(
    run: Callable[..., Any], make_task: MakeTask, suite: Path, kube: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_task("one")
    make_task("two")
    with monkeypatch.context() as patch:
        patch.setattr(publish_module, "_register", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(suite, taskset="smoke")
    assert kube.objects == {}
    report = run(suite, taskset="smoke")
    assert (outcomes(report), report.succeeded) == ({"bench-one": "created", "bench-two": "created"}, True)


def test_publishing_again_has_a_refused_task_verified_again(run: Callable[..., Any], make_task: MakeTask, kube: Any) -> None:
    task = make_task("one")
    run(task)
    body = kube.get("tasks", "bench-one")
    refused = {"type": "Verified", "status": "False", "reason": "TaskArchiveCorrupt", "message": "other bytes", "observedGeneration": 1}
    react, kube.react = kube.react, lambda plural, item: None
    kube.put("tasks", {**body, "status": {**body["status"], "conditions": [refused]}})
    kube.react = react
    again = run(task)
    annotations = kube.get("tasks", "bench-one")["metadata"]["annotations"]
    assert (outcomes(again), again.succeeded, "seatrial.dev/verify-again" in annotations) == ({"bench-one": "unchanged"}, True, True)


def test_a_task_that_is_still_refused_is_reported_with_its_reason(
    run: Callable[..., Any], make_task: MakeTask, kube: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_module, "HEAL_SECONDS", 0.2)
    task = make_task("one")
    run(task)
    body = kube.get("tasks", "bench-one")
    refused = {"type": "Verified", "status": "False", "reason": "TaskArchiveCorrupt", "message": "other bytes", "observedGeneration": 1}
    kube.react = lambda plural, item: None
    kube.put("tasks", {**body, "status": {**body["status"], "conditions": [refused]}})
    again = run(task)
    assert (outcomes(again), [item.message for item in again.failed]) == ({"bench-one": "failed"}, ["TaskArchiveCorrupt: other bytes"])


@pytest.mark.conforms("N-44")
def test_bytes_that_were_replaced_in_the_store_are_noticed_when_publishing_again(
    run: Callable[..., Any], make_task: MakeTask, kube: Any, store: Store
) -> None:
    task = make_task("one")
    run(task)
    store.put(key_of(kube.get("tasks", "bench-one")["spec"]["source"]["ref"]), b"other bytes")
    report = run(task)
    assert [(item.outcome, "exists with other content" in item.message) for item in report.tasks] == [("failed", True)]


@pytest.mark.conforms("N-52")
def test_create_refuses_a_task_that_exists(run: Callable[..., Any], make_task: MakeTask) -> None:
    task = make_task("one")
    run(task)
    report = run(task, create=True)
    assert [(item.outcome, item.message) for item in report.tasks] == [
        ("failed", "Task bench-one exists: leave --create out to replace it")
    ]


# --- faults -----------------------------------------------------------------------------------------------------------------------------


def test_three_bad_tasks_of_five_are_all_named_and_nothing_is_stored(
    run: Callable[..., Any], make_task: MakeTask, suite: Path, kube: Any, store: Store
) -> None:
    make_task("good-a")
    make_task("good-b")
    make_task("no-test", test=False)
    make_task("no-image", image=False)
    make_task("bad-toml", toml="[agent]\ntimeout_sec = 'soon'\n")
    with pytest.raises(SuiteRefused, match="3 of 5 tasks cannot be published: bad-toml, no-image, no-test") as caught:
        run(suite, taskset="smoke")
    assert [task.path.name for task in caught.value.suite.bad] == ["bad-toml", "no-image", "no-test"]
    assert (kube.writes(), list(store.list(""))) == ([], [])


@pytest.mark.conforms("N-46")
def test_partial_publishes_the_good_tasks_and_reports_the_bad_ones(
    run: Callable[..., Any], make_task: MakeTask, suite: Path, kube: Any
) -> None:
    make_task("good")
    make_task("no-test", test=False)
    report = run(suite, taskset="smoke", partial=True)
    assert (outcomes(report), report.succeeded) == ({"bench-good": "created", "bench-no-test": "failed"}, False)
    assert [reference.partition("#")[0] for reference in kube.get("tasksets", "smoke")["spec"]["tasks"]] == ["bench-good"]


@pytest.mark.conforms("N-46")
def test_a_task_that_the_operator_refuses_stays_named_and_the_taskset_is_not_written(
    run: Callable[..., Any], make_task: MakeTask, suite: Path, kube: Any
) -> None:
    good = kube.react

    def react(plural: str, item: dict[str, Any]) -> None:
        good(plural, item)
        if item["metadata"]["name"] == "bench-two":
            item["status"]["conditions"][0] |= {"status": "False", "reason": "TaskArchiveUnsafe", "message": "bad member"}

    kube.react = react
    make_task("one")
    make_task("two")
    report = run(suite, taskset="smoke")
    assert [(task.name, task.outcome, task.message) for task in report.tasks] == [
        ("bench-one", "created", ""),
        ("bench-two", "failed", "TaskArchiveUnsafe: bad member"),
    ]
    assert (report.skipped_taskset, report.succeeded, ("tasksets", "evals", "smoke") in kube.objects) == (True, False, False)


def test_an_operator_that_does_not_answer_is_named(run: Callable[..., Any], make_task: MakeTask, kube: Any) -> None:
    kube.react = lambda plural, item: None
    report = run(make_task("one"), timeout_seconds=1)
    assert [(task.outcome, task.stored, "is it running? (seatrial doctor)" in task.message) for task in report.tasks] == [
        ("failed", True, True)
    ]


def test_a_store_that_fails_for_a_moment_is_waited_for(run: Callable[..., Any], make_task: MakeTask, kube: Any) -> None:
    good = kube.react

    def react(plural: str, item: dict[str, Any]) -> None:
        good(plural, item)
        item["status"]["conditions"][0] |= {"status": "False", "reason": "ObjectStoreUnavailable", "message": "later"}

    kube.react = react
    report = run(make_task("one"), timeout_seconds=1)
    assert "did not verify it within" in report.tasks[0].message


@pytest.mark.conforms("N-54")
def test_two_tasks_that_would_get_one_name_are_both_named(run: Callable[..., Any], make_task: MakeTask, suite: Path) -> None:
    make_task("one", native="bench/a_b")
    make_task("two", native="bench/a-b")
    with pytest.raises(SuiteRefused, match="'bench/a_b', 'bench/a-b' would all become the object 'bench-a-b'"):
        run(suite)


@pytest.mark.conforms("N-54")
def test_a_name_template_can_collide_too_and_both_tasks_are_named(
    run: Callable[..., Any], make_task: MakeTask, suite: Path, kube: Any
) -> None:
    make_task("one")
    make_task("two")
    report = run(suite, name_template="same")
    assert {task.message for task in report.tasks} == {"one and two would both become Task same: rename one, or use --name-template"}
    assert kube.writes() == []


def test_a_name_template_names_the_objects(run: Callable[..., Any], make_task: MakeTask) -> None:
    assert outcomes(run(make_task("One_Task"), name_template="team-{dir}")) == {"team-one-task": "created"}


def test_a_template_with_another_field_is_refused(run: Callable[..., Any], make_task: MakeTask) -> None:
    with pytest.raises(InvalidSpec, match="may only use"):
        run(make_task("one"), name_template="{secret}")


# --- dry run, filters, images, git -------------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_would_happen_and_sends_nothing(
    run: Callable[..., Any], make_task: MakeTask, suite: Path, kube: Any, store: Store
) -> None:
    make_task("one")
    run(suite)
    writes, stored = len(kube.writes()), list(store.list(""))
    make_task("two")
    (suite / "one" / "instruction.md").write_text("Changed.\n")
    report = run(suite, taskset="smoke", dry_run=True)
    assert (outcomes(report), report.dry_run, report.taskset.outcome) == ({"bench-one": "revised", "bench-two": "created"}, True, "created")
    assert (len(kube.writes()), list(store.list(""))) == (writes, stored)


@pytest.mark.conforms("H-23")
def test_filters_match_folder_names_as_in_harbor(make_task: MakeTask, suite: Path) -> None:
    for name in ("a1", "a2", "b1"):
        make_task(name)
    chosen = find_suite(suite, PublishOptions(include=["a*", "b*"], exclude=["a1"], limit=1, processes=1))
    assert [task.path.name for task in chosen.tasks] == ["a2"]
    with pytest.raises(InvalidSpec, match="No tasks matched"):
        find_suite(suite, PublishOptions(include=["c*"], processes=1))


def test_a_default_image_is_written_into_the_archive_only_where_there_is_none(
    run: Callable[..., Any], make_task: MakeTask, kube: Any, store: Store, tmp_path: Path
) -> None:
    bare, built = make_task("bare", image=False, toml="[environment]\ncpus = 2\n"), make_task("built")
    run(bare.parent, default_image="registry.example.org/base:1")
    texts = {}
    for name in ("bare", "built"):
        source = kube.get("tasks", f"bench-{name}")["spec"]["source"]
        with store.open(key_of(source["ref"])) as stream:
            extract_archive(stream, tmp_path / "out", sha256=source["sha256"])  # type: ignore[arg-type]
        texts[name] = (tmp_path / "out" / name / "task.toml").read_text()
    assert texts["bare"] == (bare / "task.toml").read_text().replace(
        "[environment]\n", '[environment]\ndocker_image = "registry.example.org/base:1"\n'
    )
    assert texts["built"] == (built / "task.toml").read_text()


def test_git_origin_is_recorded_without_its_credentials(make_task: MakeTask, suite: Path) -> None:
    make_task("one")
    git = ["git", "-C", str(suite), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for arguments in (["init", "-q"], ["remote", "add", "origin", "https://me:secret@git.example.org/suite.git"], ["add", "."]):
        subprocess.run([*git, *arguments], check=True)
    subprocess.run([*git, "commit", "-qm", "tasks"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    clean = git_annotations(suite)
    (suite / "one" / "instruction.md").write_text("Changed.\n")
    assert [clean, git_annotations(suite)] == [
        {"seatrial.dev/git-commit": commit, "seatrial.dev/git-origin": "https://git.example.org/suite.git"},
        {"seatrial.dev/git-commit": f"{commit}-dirty", "seatrial.dev/git-origin": "https://git.example.org/suite.git"},
    ]


# --- large sets, processes, the SDK's face -----------------------------------------------------------------------------------------------


def test_a_set_above_the_limit_is_written_as_a_manifest(
    run: Callable[..., Any], make_task: MakeTask, kube: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_module, "MAX_TASKS", 1)
    make_task("one")
    run(make_task("two").parent, taskset="smoke")
    manifest = kube.get("tasksets", "smoke")["spec"]["manifest"]
    assert manifest["ref"] == f"evals/harbor-tasks#tasksets/smoke/{manifest['sha256']}.jsonl"
    lines = [json.loads(line) for line in store.get(key_of(manifest["ref"]), max_bytes=10_000).splitlines()]
    tasks = [kube.get("tasks", name) for name in ("bench-one", "bench-two")]
    assert lines == [
        {
            "ref": f"evals/{task['metadata']['name']}#{task['status']['digest']}",
            "revision": 1,
            "digest": task["status"]["digest"],
            "archive": key_of(task["spec"]["source"]["ref"]),
            "sha256": task["spec"]["source"]["sha256"],
        }
        for task in tasks
    ]


def test_worker_processes_give_the_same_result(run: Callable[..., Any], make_task: MakeTask, suite: Path, kube: Any) -> None:
    for number in range(publish_module._TASKS_FOR_PROCESSES):
        make_task(f"t{number:02}")
    report = run(suite, processes=2)
    assert (len(report.tasks), set(outcomes(report).values())) == (publish_module._TASKS_FOR_PROCESSES, {"created"})


@pytest.mark.conforms("N-50")
def test_the_evaluator_publishes_with_settings_from_the_environment(
    client_environment: StoreSettings, make_task: MakeTask, suite: Path, kube: Any
) -> None:
    make_task("one")
    by_settings, by_client = Evaluator(), Evaluator.from_client(Cluster.connect())
    assert [by_settings.publish(suite, processes=1).succeeded, by_client.publish(suite, processes=1).succeeded] == [True, True]
    assert [item["metadata"]["name"] for item in Cluster.connect().list(TASK)] == ["bench-one"]
