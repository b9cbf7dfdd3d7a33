"""Commands around suites: adapters, scaffolds, registries, revisions, what nothing refers to."""

from __future__ import annotations

import datetime
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from seatrial.core.naming import job_prefix, plan_key, revision_key
from seatrial.effects.store import Store
from seatrial.sdk.cluster import Cluster
from seatrial.sdk.difference import diff_folders, diff_tasksets
from seatrial.sdk.garbage import unreferenced_files
from seatrial.sdk.pack_store import key_of
from seatrial.sdk.registry import gather
from seatrial.taskpkg.capture import PackageError
from seatrial.taskpkg.dataset import RegistryDataset, RegistryTask

if TYPE_CHECKING:
    from .conftest import Ran

MakeTask = Callable[..., Path]


# --- init and adapters --------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("N-19", "N-20")
@pytest.mark.parametrize(
    ("options", "files"),
    [
        ((), ["environment/Dockerfile", "instruction.md", "solution/solve.sh", "task.toml", "tests/test.sh"]),
        (
            ("--steps", "2"),
            [
                "environment/Dockerfile",
                "steps/step-1/instruction.md",
                "steps/step-1/solution/solve.sh",
                "steps/step-1/tests/test.sh",
                "steps/step-2/instruction.md",
                "steps/step-2/solution/solve.sh",
                "steps/step-2/tests/test.sh",
                "task.toml",
            ],
        ),
        (("--dataset", "--with-metric"), ["dataset.toml", "metric.py"]),
    ],
    ids=["task", "steps", "dataset"],
)
def test_init_writes_a_whole_skeleton_here_and_prints_what_to_complete(
    seatrial: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], files: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = seatrial("init", "my-org/thing", *options)
    written = sorted(path.relative_to("thing").as_posix() for path in Path("thing").rglob("*") if path.is_file())
    assert (ran.code, sorted(ran.out.split()), written) == (0, [f"thing/{name}" for name in files], files)


@pytest.mark.conforms("N-174")
def test_an_adapter_generates_a_suite_that_publishes_with_a_default_image(seatrial: Callable[..., Ran], tmp_path: Path, kube: Any) -> None:
    (tmp_path / "adapter.py").write_text(
        "from pathlib import Path\n"
        "class Bench:\n"  # the bare contract, without our base class
        "    def __init__(self, source):\n"
        "        self.source = Path(source)\n"
        "    def load_instances(self):\n"
        "        for line in self.source.read_text().split():\n"
        "            yield {'id': line, 'instruction': 'Do ' + line}\n"
        "    def generate_task(self, instance, output_dir):\n"
        "        task = output_dir / instance['id']\n"
        "        (task / 'tests').mkdir(parents=True)\n"
        "        (task / 'instruction.md').write_text(instance['instruction'])\n"
        "        (task / 'task.toml').write_text('')\n"
        "        (task / 'tests' / 'test.sh').write_text('\\n  #!/bin/bash\\necho 1 > /logs/verifier/reward.txt\\n')\n"
    )
    (tmp_path / "ids").write_text("one two")
    suite = tmp_path / "generated"
    ran = seatrial("adapter", "run", str(tmp_path / "adapter.py"), "--source", str(tmp_path / "ids"), "--output", str(suite))
    modes = [(suite / name / "tests" / "test.sh").stat().st_mode & 0o777 for name in ("one", "two")]
    published = seatrial("publish", str(suite), "--default-image", "registry.example.org/base:1")
    assert (ran.code, ran.out, modes) == (0, "one\ntwo\n", [0o755, 0o755])
    assert (published.code, sorted(name for _, _, name in kube.objects)) == (0, ["one", "two"])


@pytest.mark.conforms("N-174")
def test_a_new_adapter_is_a_program_that_copies_its_template(seatrial: Callable[..., Ran], tmp_path: Path) -> None:
    assert seatrial("adapter", "init", "my-bench", "-o", str(tmp_path)).code == 0
    (tmp_path / "data").write_text(json.dumps({"id": "one", "instruction": "Do one.\n"}) + "\n")
    program = [
        sys.executable,
        str(tmp_path / "my-bench" / "adapter.py"),
        "--source",
        str(tmp_path / "data"),
        "--output",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    checked = seatrial("check", str(tmp_path / "out"), "--strict")
    assert (done.stdout, checked.code, checked.err) == ("one\n", 0, "1 tasks, 1 valid, 0 errors, 0 warnings\n")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("x = 1\n", "has 0 classes"),
        ("class A:\n    load_instances = generate_task = print\nclass B(A): pass\n", "has 2 classes"),
        (
            "class A:\n    __init__ = generate_task = lambda *_: None\n    def load_instances(self): yield {'id': '../x'}\n",
            "'../x' cannot name a task's folder",
        ),
    ],
)
def test_a_file_that_is_no_adapter_is_refused(seatrial: Callable[..., Ran], tmp_path: Path, body: str, words: str) -> None:
    (tmp_path / "adapter.py").write_text(body)
    ran = seatrial("adapter", "run", str(tmp_path / "adapter.py"), "--source", str(tmp_path), "--output", str(tmp_path / "out"))
    assert (ran.code, words in ran.err) == (2, True)


# --- metadata -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("N-173")
def test_difficulty_and_category_are_kept_choose_tasks_and_group_results(
    seatrial: Callable[..., Ran], make_task: MakeTask, kube: Any, store: Store
) -> None:
    make_task("one", toml='[metadata]\ndifficulty = "easy"\ncategory = "games"\ntags = ["a", "b"]\nauthor_name = "A"\n')
    suite = make_task("two", toml='[metadata]\ndifficulty = "hard"\n').parent
    assert seatrial("publish", str(suite)).code == 0
    one = kube.get("tasks", "bench-one")
    assert (one["spec"]["metadata"], one["metadata"]["labels"]) == (
        {"difficulty": "easy", "category": "games", "tags": ["a", "b"], "author_name": "A"},
        {"seatrial.dev/difficulty": "easy", "seatrial.dev/category": "games"},
    )
    assert [line.split()[0] for line in seatrial("get", "tasks", "-l", "seatrial.dev/difficulty=hard").out.splitlines()] == [
        "NAME",
        "bench-two",
    ]
    chosen = seatrial("publish", str(suite), "--where", "tags=b", "--dry-run", "-o", "jsonl")
    assert [json.loads(line)["nativeTaskId"] for line in chosen.out.splitlines()] == ["bench/one"]
    job = kube.put("evaljobs", {"metadata": {"name": "j", "namespace": "evals"}, "spec": {}, "status": {"phase": "Running"}})
    plan = {
        "tasks": [{"id": f"bench/{name}", "ref": f"evals/bench-{name}#d"} for name in ("one", "two")],
        "trials": [{"name": f"{name}__0", "task": index, "agent": "oracle", "attempt": 1} for index, name in enumerate(("one", "two"))],
    }
    store.put(plan_key(job_prefix("evals", "j", job["metadata"]["uid"])), json.dumps(plan).encode())
    grouped = seatrial("results", "j", "--by", "difficulty")
    assert [line.split()[:2] for line in grouped.out.splitlines()] == [["DIFFICULTY", "TRIALS"], ["easy", "1"], ["hard", "1"]]


# --- registries and git -------------------------------------------------------------------------------------------------------------------


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e@example.org", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _repository(folder: Path) -> str:
    """A commit with all that is in the folder; its id."""
    _git(folder, "init", "-q")
    _git(folder, "add", ".")
    _git(folder, "commit", "-qm", "first")
    return _git(folder, "rev-parse", "HEAD")


def _gathered(suite: Path, target: Path) -> Path:
    """The task ``tasks/one`` of the repository, as a registry's dataset brings it."""
    task = RegistryTask(name="one", path="tasks/one", git_url=f"file://{suite}", git_commit_id=_repository(suite))
    dataset = RegistryDataset(name="bench", version="1", description="", tasks=(task,))
    return gather(dataset, registry=target / "registry.json", target=target / "target")


@pytest.mark.conforms("N-172", "N-179")
def test_a_suite_in_a_git_repository_at_a_tag_is_published_with_its_origin(
    seatrial: Callable[..., Ran], make_task: MakeTask, suite: Path, tmp_path: Path, kube: Any
) -> None:
    make_task("one")
    _git(suite, "init", "-q")
    _git(suite, "add", ".")
    _git(suite, "commit", "-qm", "first")
    _git(suite, "tag", "v1")
    commit = _git(suite, "rev-parse", "HEAD")
    (suite / "one" / "instruction.md").write_text("Later.\n")
    _git(suite, "commit", "-qam", "second")
    subprocess.run(["git", "clone", "-q", "--branch", "v1", f"file://{suite}", str(tmp_path / "checkout")], check=True, capture_output=True)
    assert seatrial("publish", str(tmp_path / "checkout")).code == 0
    assert kube.get("tasks", "bench-one")["metadata"]["annotations"] == {
        "seatrial.dev/git-commit": commit,
        "seatrial.dev/git-origin": f"file://{suite}",
    }


@pytest.mark.conforms("H-28")
def test_a_dataset_of_a_registry_is_published_each_task_at_its_commit(
    seatrial: Callable[..., Ran], make_task: MakeTask, suite: Path, tmp_path: Path, kube: Any
) -> None:
    make_task("one", folder=suite / "tasks")
    _git(suite, "init", "-q")
    _git(suite, "add", ".")
    _git(suite, "commit", "-qm", "first")
    commit = _git(suite, "rev-parse", "HEAD")
    (suite / "tasks" / "one" / "instruction.md").write_text("Later.\n")
    _git(suite, "commit", "-qam", "second")
    task = {"name": "one", "git_url": f"file://{suite}", "git_commit_id": commit, "path": "tasks/one"}
    entries = [{"name": "bench", "version": version, "description": "", "tasks": [task]} for version in ("1.9", "1.10")]
    (tmp_path / "registry.json").write_text(json.dumps(entries))
    ran = seatrial("publish", "--registry", str(tmp_path / "registry.json"), "--dataset", "bench", "--taskset", "bench")
    direct = seatrial("publish", str(suite / "tasks" / "one"), "--dry-run", "-o", "jsonl")
    assert (ran.code, "fetching 1 tasks of bench@1.10" in ran.err, ("tasksets", "evals", "bench") in kube.objects) == (0, True, True)
    assert json.loads(direct.out)["outcome"] == "revised"


@pytest.mark.conforms("H-31")
def test_only_the_tasks_folders_are_checked_out_and_their_links_become_copies(make_task: MakeTask, suite: Path, tmp_path: Path) -> None:
    task = make_task("one", folder=suite / "tasks")
    make_task("two", folder=suite / "tasks")
    (task / "tests" / "run.sh").symlink_to("test.sh")
    gathered = _gathered(suite, tmp_path)
    run = gathered / "one" / "tests" / "run.sh"
    assert ([path.name for path in gathered.iterdir()], run.is_symlink(), run.read_bytes()) == (
        ["one"],
        False,
        (task / "tests" / "test.sh").read_bytes(),
    )
    checkout = tmp_path / "target" / "checkout-0" / "tasks"
    assert [path.name for path in checkout.iterdir()] == ["one"]


@pytest.mark.conforms("H-31")
@pytest.mark.parametrize(("name", "target"), [("up", "../../two/task.toml"), ("root", "/etc/hostname"), ("loop", "loop"), ("self", ".")])
def test_links_of_a_repository_that_escape_or_turn_in_circles_are_refused(
    make_task: MakeTask, suite: Path, tmp_path: Path, name: str, target: str
) -> None:
    task = make_task("one", folder=suite / "tasks")
    make_task("two", folder=suite / "tasks")
    (task / "tests" / name).symlink_to(target)
    with pytest.raises(PackageError, match=f"Symlink escapes task root.*tests/{name}"):
        _gathered(suite, tmp_path)


@pytest.mark.parametrize(
    ("path", "reference", "words"),
    [
        ("../outside", "bench", "leaves the repository"),
        ("link", "bench", "leads through a link"),
        ("missing", "bench", "is not a folder"),
        ("one", "other", "has no dataset 'other'"),
        ("one", "bench@2", "has no version '2'"),
    ],
)
def test_a_registry_entry_that_cannot_be_used_is_named(
    seatrial: Callable[..., Ran], tmp_path: Path, path: str, reference: str, words: str
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    entry = {"name": "bench", "version": "1", "description": "", "tasks": [{"name": "one", "path": path}]}
    (tmp_path / "registry.json").write_text(json.dumps([entry]))
    ran = seatrial("publish", "--registry", str(tmp_path / "registry.json"), "--dataset", reference)
    assert (ran.code, words in ran.err) == (2, True)


def test_a_repository_that_cannot_be_fetched_ends_with_3(seatrial: Callable[..., Ran], tmp_path: Path) -> None:
    task = {"name": "one", "path": "one", "git_url": f"file://{tmp_path}/none", "git_commit_id": "0" * 40}
    (tmp_path / "registry.json").write_text(json.dumps([{"name": "bench", "version": "1", "description": "", "tasks": [task]}]))
    ran = seatrial("publish", "--registry", str(tmp_path / "registry.json"))
    assert (ran.code, "error: git fetch failed" in ran.err) == (3, True)


# --- revisions ----------------------------------------------------------------------------------------------------------------------------


def _publish_revision(store: Store, kube: Any, plural: str, name: str, **extra: Any) -> dict[str, Any]:
    """What the operator stores for the object as it is now."""
    item: dict[str, Any] = kube.get(plural, name)
    kind, number = plural[:-1], item["status"]["revision"]
    content = extra.pop("content", {"source": item["spec"].get("source"), "nativeTaskId": item["spec"].get("nativeTaskId")})
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    document = {"kind": kind, "namespace": "evals", "name": name, "revision": number, "digest": digest, "content": content, **extra}
    store.put(revision_key("evals", kind, name, number), json.dumps(document).encode())
    return document


@pytest.fixture
def two_revisions(seatrial: Callable[..., Ran], make_task: MakeTask, kube: Any, store: Store) -> Path:
    """A task that was published, changed and published again."""
    task = make_task("one")
    (task / "old.txt").write_text("old\n")
    (task / "data.bin").write_bytes(b"\0\1")
    seatrial("publish", str(task), "--tag", "stable")
    _publish_revision(store, kube, "tasks", "bench-one")
    (task / "instruction.md").write_text("Do it better.\n")
    (task / "old.txt").unlink()
    (task / "new.txt").write_text("new\n")
    (task / "data.bin").write_bytes(b"\0\1\2")
    (task / "tests" / "test.sh").chmod(0o755)
    seatrial("publish", str(task))
    _publish_revision(store, kube, "tasks", "bench-one")
    return task


def test_diff_shows_files_texts_and_modes_of_two_revisions(seatrial: Callable[..., Ran], two_revisions: Path) -> None:
    ran = seatrial("diff", "task", "bench-one", "1", "2")
    assert (ran.code, ran.out) == (
        0,
        "~ data.bin (binary or long, 2 -> 3 bytes)\n"
        "--- a/instruction.md\n"
        "+++ b/instruction.md\n"
        "@@ -1 +1 @@\n"
        "-Do one.\n"
        "+Do it better.\n"
        "+ new.txt (added)\n"
        "- old.txt (removed)\n"
        "~ tests/test.sh (mode 0644 -> 0755)\n",
    )
    assert seatrial("diff", "task", "bench-one", "2", "latest").out == ""


def test_revisions_are_listed_with_their_tags_and_old_ones_can_be_downloaded(
    seatrial: Callable[..., Ran], two_revisions: Path, tmp_path: Path
) -> None:
    listed = [json.loads(line) for line in seatrial("get", "task", "bench-one", "--revisions", "-o", "jsonl").out.splitlines()]
    assert [(item["revision"], item["tags"]) for item in listed] == [(2, ["latest"]), (1, [])]
    ran = seatrial("download", f"bench-one#{listed[1]['digest']}", "-d", str(tmp_path / "out"))
    assert (ran.code, (tmp_path / "out" / "one" / "old.txt").read_text()) == (0, "old\n")


def test_a_revision_that_was_changed_in_the_store_is_refused(seatrial: Callable[..., Ran], two_revisions: Path, store: Store) -> None:
    key = revision_key("evals", "task", "bench-one", 1)
    document = json.loads(store.get(key, max_bytes=100_000))
    store.put(key, json.dumps({**document, "content": {**document["content"], "nativeTaskId": "other"}}).encode())
    ran = seatrial("diff", "task", "bench-one", "1", "2")
    assert (ran.code, "does not have the digest that it states" in ran.err) == (1, True)


def test_members_of_a_taskset_that_came_went_and_changed_are_named() -> None:
    old = {"content": {"members": ["e/a#1", "e/b#1", "e/c#1"], "description": "x"}}
    new = {"content": {"members": ["e/a#1", "e/b#2", "e/d#1"], "description": "x"}}
    assert list(diff_tasksets(old, new)) == ["~ e/b#1 -> #2", "- e/c#1", "+ e/d#1"]


def test_links_are_compared_by_what_they_name(tmp_path: Path) -> None:
    for side, target in (("a", "x"), ("b", "y")):
        (tmp_path / side).mkdir()
        (tmp_path / side / "link").symlink_to(target)
    assert list(diff_folders(tmp_path / "a", tmp_path / "b")) == ["~ link (x -> y)"]


# --- what nothing refers to -------------------------------------------------------------------------------------------------------------


def test_gc_finds_only_archives_that_nothing_refers_to(
    seatrial: Callable[..., Ran], make_task: MakeTask, two_revisions: Path, kube: Any, store: Store
) -> None:
    keys = {
        name: f"filesets/evals/harbor-tasks/{name}/{hashlib.sha256(name.encode()).hexdigest()}/task_archive" for name in ("lost", "planned")
    }
    for key in keys.values():
        store.put(key, b"archive")
    job = kube.put("evaljobs", {"metadata": {"name": "j", "namespace": "evals"}, "spec": {}})
    store.put(plan_key(job_prefix("evals", "j", job["metadata"]["uid"])), json.dumps({"tasks": [{"archive": keys["planned"]}]}).encode())
    young = seatrial("gc")
    listed = seatrial("gc", "--older-than", "0", "-o", "jsonl")
    assert (young.out, [json.loads(line) for line in listed.out.splitlines()]) == ("", [{"key": keys["lost"], "size": 7}])
    removed = seatrial("gc", "--older-than", "0", "--delete")
    left = {entry.key for entry in store.list("filesets/")}
    assert (
        removed.code,
        keys["lost"] in left,
        keys["planned"] in left,
        key_of(kube.get("tasks", "bench-one")["spec"]["source"]["ref"]) in left,
    ) == (
        0,
        False,
        True,
        True,
    )
    old = json.loads(store.get(revision_key("evals", "task", "bench-one", 1), max_bytes=100_000))["content"]["source"]["ref"]
    assert key_of(old) in left


def test_gc_finds_only_scripts_that_no_taskset_revision_or_job_names(seatrial: Callable[..., Ran], kube: Any, store: Store) -> None:
    def script(name: str, file: str = "metric.py") -> dict[str, str]:
        sha256 = hashlib.sha256(name.encode()).hexdigest()
        stored = {"ref": f"evals/harbor-tasks#metrics/{sha256}/{file}", "sha256": sha256}
        store.put(key_of(stored["ref"]), name.encode())
        return stored

    now, before, named, planned, lost = (script(name) for name in ("now", "before", "named", "planned", "lost"))
    packed, unpacked = (script(name, "metric.zip") for name in ("packed", "unpacked"))
    kube.put(
        "tasksets",
        {"metadata": {"name": "set", "namespace": "evals"}, "spec": {"tasks": ["one"], "metricScript": now}, "status": {"revision": 1}},
    )
    content = {"members": [], "metricScript": before}
    _publish_revision(store, kube, "tasksets", "set", content=content, manifest={"key": "filesets/evals/tasksets/set/m.jsonl"})
    kube.put(
        "evaljobs",
        {"metadata": {"name": "new", "namespace": "evals"}, "spec": {"metrics": [{"type": "max"}, {"type": "script", "script": named}]}},
    )
    kube.put("tasksets", {"metadata": {"name": "other", "namespace": "evals"}, "spec": {"tasks": ["one"], "metricScript": packed}})
    job = kube.put("evaljobs", {"metadata": {"name": "j", "namespace": "evals"}, "spec": {}})
    plan = {"tasks": [], "scripts": [{"key": key_of(planned["ref"]), "sha256": planned["sha256"], "is_taskset": True}]}
    store.put(plan_key(job_prefix("evals", "j", job["metadata"]["uid"])), json.dumps(plan).encode())
    store.put("filesets/evals/harbor-tasks/metrics/notes.txt", b"not ours to judge")
    listed = seatrial("gc", "--older-than", "0", "-o", "jsonl")
    assert {json.loads(line)["key"] for line in listed.out.splitlines()} == {key_of(lost["ref"]), key_of(unpacked["ref"])}
    assert seatrial("gc").out == ""
    assert seatrial("gc", "--older-than", "0", "--delete").code == 0
    left = {entry.key for entry in store.list("filesets/evals/harbor-tasks/metrics/")}
    assert left == {key_of(item["ref"]) for item in (now, before, named, planned, packed)} | {
        "filesets/evals/harbor-tasks/metrics/notes.txt"
    }


def test_members_of_a_pinned_taskset_keep_their_archives(
    kube: Any, store: Store, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    key = f"filesets/evals/harbor-tasks/one/{'0' * 64}/task_archive"
    store.put(key, b"archive")
    store.put("filesets/evals/tasksets/set/m.jsonl", json.dumps({"archive": key}).encode() + b"\n")
    item = {"metadata": {"name": "set", "namespace": "evals"}, "spec": {"tasks": ["one"]}, "status": {"revision": 1}}
    kube.put("tasksets", item)
    _publish_revision(store, kube, "tasksets", "set", content={"members": []}, manifest={"key": "filesets/evals/tasksets/set/m.jsonl"})
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)
    found = unreferenced_files(Cluster.connect(), store, namespaces=("evals",), older_than=datetime.timedelta(hours=1), now=later)
    assert list(found) == []


def test_the_working_folder_is_left_as_it_was(seatrial: Callable[..., Ran], make_task: MakeTask, tmp_path: Path) -> None:
    task = make_task("one")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    seatrial("publish", str(task))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
