from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from seatrial.errors import InvalidSpec
from seatrial.taskpkg.collection import HarborTaskCollection, PlainTask, as_base_task, discover_harbor_tasks, reload_tasks
from seatrial.taskpkg.discover import DiscoveryError, discover, select_names

MakeTask = Callable[..., Path]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    folder = tmp_path / "suite"
    folder.mkdir()
    return folder


def named(native_id: str) -> dict[str, str]:
    return {"task.toml": f'[task]\nname = "{native_id}"\n'}


def snapshot(root: Path) -> dict[str, float]:
    return {str(path): path.lstat().st_mtime for path in [root, *root.rglob("*")]}


@pytest.mark.conforms("N-3", "N-15")
def test_a_task_folder_is_one_task_and_a_dataset_gives_all_in_sorted_order(suite: Path, make_task: MakeTask) -> None:
    for name in ("b", "a", "C"):
        make_task(name, named(f"org/{name}"), root=suite)
    assert (discover(suite).kind, [path.name for path in discover(suite).require()]) == ("dataset", ["C", "a", "b"])
    assert (discover(suite / "a").kind, discover(suite / "a").require()) == ("task", (suite / "a",))
    assert [task.id for task in discover_harbor_tasks(suite)] == ["org/C", "org/a", "org/b"]


@pytest.mark.conforms("N-4")
def test_discovery_asks_for_task_toml_only(suite: Path) -> None:
    (suite / "one").mkdir()
    (suite / "one/task.toml").touch()
    (suite / "one/instruction.md").touch()
    assert discover(suite).require() == (suite / "one",)


@pytest.mark.conforms("N-5", "N-6")
def test_a_discovered_task_carries_id_instruction_and_absolute_source(
    suite: Path, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "<!-- SPDX-License-Identifier: MIT -->\n<!-- SPDX-FileCopyrightText: x -->\n\n Do it. \n"
    make_task("one", {**named("bench/one"), "instruction.md": text}, root=suite)
    make_task("two", {"task.toml": ""}, root=suite)
    monkeypatch.chdir(suite.parent)
    first, second = discover_harbor_tasks("suite")
    assert (first.id, first.intent, dict(first.inputs), first.source_dir) == (
        "bench/one",
        "bench/one",
        {"instruction": "Do it."},
        suite / "one",
    )
    assert dict(first.metadata) == {"harbor_dataset_path": str(suite), "harbor_task_dir": str(suite / "one")}
    assert second.id == "two"
    with pytest.raises(FrozenInstanceError):
        first.source_dir = suite  # type: ignore[misc]


def test_a_multi_step_task_without_an_instruction_shows_its_id(suite: Path, make_task: MakeTask) -> None:
    files = {"task.toml": '[[steps]]\nname = "a"\n', "instruction.md": None, "steps/a/instruction.md": "x"}
    make_task("many", files, root=suite)
    assert dict(discover_harbor_tasks(suite)[0].inputs) == {"instruction": "many"}


@pytest.mark.conforms("N-7")
def test_the_collection_is_an_immutable_sequence(suite: Path, make_task: MakeTask) -> None:
    for name in ("a", "b", "c"):
        make_task(name, named(f"o/{name}"), root=suite)
    tasks = discover_harbor_tasks(suite)
    assert [task.id for task in tasks] == [task.id for task in tasks] == ["o/a", "o/b", "o/c"]
    assert (tasks[-1].id, len(tasks), type(tasks[:2]), [task.id for task in tasks[:2]]) == ("o/c", 3, HarborTaskCollection, ["o/a", "o/b"])
    copy = list(tasks)
    copy.clear()
    assert len(tasks) == 3
    with pytest.raises(TypeError):
        tasks[0] = tasks[1]  # type: ignore[index]


@pytest.mark.conforms("N-8")
def test_discovery_changes_nothing_and_leaves_nothing(suite: Path, make_task: MakeTask) -> None:
    make_task("a", root=suite)
    before = snapshot(suite.parent)
    discover_harbor_tasks(suite)
    assert snapshot(suite.parent) == before


@pytest.mark.conforms("N-9", "N-10")
def test_templates_are_excluded_with_a_warning_and_files_and_hidden_folders_silently(suite: Path, make_task: MakeTask) -> None:
    make_task("a", root=suite)
    make_task("task_template", root=suite)
    make_task(".hidden", root=suite)
    (suite / "README.md").touch()
    (suite / ".git").mkdir()
    found = discover(suite)
    assert found.require() == (suite / "a",)
    assert [(problem.severity, problem.rule, problem.file) for problem in found.problems] == [
        ("warning", "template-excluded", "task_template")
    ]
    assert found.problems[0].message == f"Excluded template directory: {suite}/task_template"


def test_a_template_in_another_case_is_no_template_and_is_refused(suite: Path, make_task: MakeTask) -> None:
    make_task("a", root=suite)
    make_task("Task_Template", named("o/t"), root=suite)
    with pytest.raises(DiscoveryError, match="Task root must be a real, non-reserved directory"):
        discover_harbor_tasks(suite)


@pytest.mark.conforms("N-11", "N-12")
def test_whatever_is_no_task_fails_the_discovery_and_all_of_it_is_named(suite: Path, make_task: MakeTask) -> None:
    make_task("good", root=suite)
    os.mkfifo(suite / "pipe")
    os.symlink("good", suite / "link")
    os.symlink("nowhere", suite / ".hidden-link")
    (suite / "empty").mkdir()
    found = discover(suite)
    assert [(problem.rule, problem.file) for problem in found.errors] == [
        ("symlinked-entry", ".hidden-link"),
        ("unhandled-entry", "empty"),
        ("symlinked-entry", "link"),
        ("unhandled-entry", "pipe"),
    ]
    with pytest.raises(DiscoveryError, match=r"Symlinked dataset entry: .* \(and 3 more\)") as caught:
        discover_harbor_tasks(suite)
    assert caught.value.problems == found.errors


@pytest.mark.conforms("N-12")
def test_one_invalid_task_fails_the_discovery_and_is_named(suite: Path, make_task: MakeTask) -> None:
    make_task("a", named("o/a"), root=suite)
    make_task("b", {"task.toml": "cpus ="}, root=suite)
    make_task("c", {**named("o/c"), "tests/test.sh": None}, root=suite)
    with pytest.raises(DiscoveryError, match=f"malformed Harbor task config at {suite}/b: Not valid TOML") as caught:
        discover_harbor_tasks(suite)
    assert [(problem.file, problem.rule) for problem in caught.value.problems] == [
        ("b/task.toml", "toml-syntax"),
        ("c/tests/test.sh", "test-script"),
    ]


@pytest.mark.conforms("N-13", "H-24")
@pytest.mark.parametrize("lenient", [False, True])
def test_an_empty_dataset_fails(suite: Path, lenient: bool) -> None:
    (suite / "README.md").touch()
    with pytest.raises(DiscoveryError, match="Dataset has no tasks"):
        discover(suite, lenient=lenient).require()


@pytest.mark.parametrize("kind", ["file", "link", "absent"])
def test_the_root_must_be_a_real_folder(suite: Path, make_task: MakeTask, kind: str) -> None:
    make_task("a", root=suite)
    path = suite.parent / "other"
    if kind == "file":
        path.touch()
    elif kind == "link":
        path.symlink_to(suite)
    says = {
        "file": "; name the folder of a task, or of tasks",
        "link": "; name an existing folder, not a link to one",
        "absent": ", which does not exist; name the folder of a task, or of tasks",
    }
    assert [f"{problem.message}; {problem.fix}" for problem in discover(path).problems] == [
        f"Dataset must be a real directory: {path}{says[kind]}"
    ]
    with pytest.raises(DiscoveryError, match="Dataset must be a real directory"):
        discover(path).require()


@pytest.mark.conforms("N-14")
@pytest.mark.parametrize("second", ["org/one", "ORG/One"])
def test_two_tasks_with_one_identity_fail(suite: Path, make_task: MakeTask, second: str) -> None:
    make_task("a", named("org/one"), root=suite)
    make_task("b", named(second), root=suite)
    found = discover(suite)
    assert [(problem.rule, problem.file, problem.key) for problem in found.errors] == [("duplicate-id", "b", "task.name")]
    assert found.errors[0].message == f"Duplicate native task identity: '{second}' in a and b"


@pytest.mark.conforms("N-172")
def test_categories_are_walked_on_request_only_and_everything_in_them_must_be_a_task(suite: Path, make_task: MakeTask) -> None:
    make_task("easy/sort", named("o/sort"), root=suite)
    make_task("hard/deep/graph", named("o/graph"), root=suite)
    assert [problem.file for problem in discover(suite).errors] == ["easy", "hard"]
    assert discover(suite, recursive=True).require() == (suite / "easy/sort", suite / "hard/deep/graph")
    (suite / "hard/notes").mkdir()
    assert [(problem.rule, problem.file) for problem in discover(suite, recursive=True).errors] == [("unhandled-entry", "hard/notes")]


def test_a_task_inside_a_task_is_a_part_of_it(suite: Path, make_task: MakeTask) -> None:
    outer = make_task("outer", named("o/outer"), root=suite)
    make_task("inner", named("o/inner"), root=outer)
    make_task("environment", named("o/environment"), root=outer / "environment")
    assert discover(suite, recursive=True).require() == (outer,)


@pytest.mark.conforms("H-22", "H-32")
def test_harbors_own_rule_skips_invalid_children_by_name_and_takes_hidden_ones(suite: Path, make_task: MakeTask) -> None:
    for name in ("b", "a", ".hidden"):
        make_task(name, named(f"o/{name.strip('.')}"), root=suite)
    make_task("broken", {"tests/test.sh": None}, root=suite)
    (suite / "notes").mkdir()
    found = discover(suite, lenient=True)
    assert [path.name for path in found.require()] == [".hidden", "a", "b"]
    assert [(problem.severity, problem.rule, problem.file) for problem in found.problems] == [
        ("warning", "skipped-entry", "broken"),
        ("warning", "skipped-entry", "notes"),
    ]
    assert "There is no tests/test.sh" in found.problems[0].message


@pytest.mark.conforms("H-23")
def test_names_are_included_then_excluded_then_counted() -> None:
    names = ["alpha", "beta", "gamma", "alphabet"]
    assert select_names(names) == tuple(names)
    assert select_names(names, include=["alpha*", "gamma"], exclude=["*bet"], limit=1) == ("alpha",)
    assert select_names(names, include=["alpha*", "gamma"], exclude=["*bet"]) == ("alpha", "gamma")
    assert select_names(names, exclude=["*"]) == ()
    assert select_names(["o/a", "o/b"], include=["o/*"], limit=1) == ("o/a",)
    with pytest.raises(ValueError, match="No tasks matched the filter nothing"):
        select_names(names, include=["nothing"])


@pytest.mark.conforms("N-18")
def test_plain_tasks_get_their_folders_back_from_the_dataset(suite: Path, make_task: MakeTask) -> None:
    for name in ("a", "b", "c"):
        make_task(name, {"task.toml": f'[task]\nname = "bench/{name}"\n'}, root=suite)
    tasks = discover_harbor_tasks(suite)
    saved = [PlainTask(id=name, intent="", inputs={}) for name in ("bench/c", "bench/a")]
    assert reload_tasks(saved, suite) == HarborTaskCollection([tasks[2], tasks[0]])
    with pytest.raises(InvalidSpec, match="has no task bench/x"):
        reload_tasks([PlainTask(id="bench/x", intent="", inputs={})], suite)


@pytest.mark.conforms("N-16")
def test_discovered_and_plain_tasks_together_are_refused_and_the_plain_ones_named(suite: Path, make_task: MakeTask) -> None:
    for name in ("a", "b", "c"):
        make_task(name, named(f"bench/{name}"), root=suite)
    tasks = discover_harbor_tasks(suite)
    with pytest.raises(InvalidSpec, match=r"cannot be combined in one run; plain: bench/a, bench/c$"):
        reload_tasks([as_base_task(tasks[0]), tasks[1], as_base_task(tasks[2])], suite)


@pytest.mark.conforms("N-17")
def test_a_discovered_task_becomes_a_plain_one_without_its_folder(suite: Path, make_task: MakeTask) -> None:
    make_task("a", named("o/a"), root=suite)
    task = discover_harbor_tasks(suite)[0]
    plain = as_base_task(task)
    assert plain == PlainTask("o/a", "o/a", task.inputs, task.metadata)
    assert as_base_task(plain) is plain
    with pytest.raises(TypeError, match="source_dir"):
        PlainTask(**vars(task))
