from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from seatrial.taskpkg.check import CheckedTask, check_suite, check_task, check_tasks, difficulty_balance
from seatrial.taskpkg.discover import discover
from seatrial.taskpkg.limits import DEFAULT
from seatrial.taskpkg.names import object_name
from seatrial.taskpkg.native import check_native
from seatrial.taskpkg.parse import Problem
from seatrial.taskpkg.paths import is_safe_path

MakeTask = Callable[..., Path]


def found(task: CheckedTask) -> list[tuple[str, str, str]]:
    return [(problem.severity, problem.rule, problem.file) for problem in task.problems]


def test_a_good_task_has_no_problems_and_harbors_digest(make_task: MakeTask) -> None:
    task = check_task(make_task())
    assert (task.native_id, task.valid, task.problems, task.entries) == ("bench/hello", True, (), 7)
    assert task.digest == "72bdab719e23c804b92d83391e940d315fa6af593967668c8b646d24a451e1a5"  # said by Harbor


def test_all_problems_of_a_folder_are_reported_at_once(make_task: MakeTask) -> None:
    files = {
        "task.toml": '[task]\nname = "bench"\n[agent]\ntimeout = 3\n[environment]\ncpus = "many"\nmemory = 3\n',
        "tests/test.sh": None,
        "tests/a:b": "x",
        "environment/x": "->/etc/passwd",
    }
    task = check_task(make_task(files=files))
    assert (task.valid, task.native_id, task.config) == (False, "hello", None)
    assert task.problems == (
        Problem(
            "error",
            "archive-link",
            "environment/x",
            None,
            None,
            "Symlink escapes task root: hello/environment/x",
            "link to something inside the task by a relative path, or copy it",
        ),
        Problem(
            "error",
            "task-name",
            "task.toml",
            "task.name",
            2,
            "'bench' is not of the form org/name",
            "use two parts of letters, digits, '.', '_' and '-', each starting with a letter or digit, without '..'",
        ),
        Problem("error", "wrong-type", "task.toml", "environment.cpus", 6, "environment.cpus is a string, not a number", "write a number"),
        Problem(
            "error",
            "archive-path",
            "tests/a:b",
            None,
            None,
            "Unsafe or ambiguous archive path: 'hello/tests/a:b'",
            "rename it: no \\ % ? # : or control characters, no space or dot at the end of a name, Unicode in form NFC",
        ),
        Problem(
            "warning",
            "unknown-key",
            "task.toml",
            "agent.timeout",
            4,
            "agent.timeout is not a key of task.toml and is ignored",
            "write timeout_sec",
        ),
        Problem(
            "warning",
            "dropped-value",
            "task.toml",
            "environment.memory",
            7,
            "environment.memory is not a string and is dropped: there is no limit",
            "write memory_mb = <megabytes>",
        ),
    )


@pytest.mark.parametrize("name", ["UPPER", "under_score", "dot.name", "with space", "umlaut-ü", "日本"])
def test_folder_names_that_archives_can_hold_are_accepted(make_task: MakeTask, name: str) -> None:
    task = check_task(make_task(name, {"task.toml": ""}))
    assert (task.native_id, task.valid, task.problems) == (name, True, ())


@pytest.mark.conforms("N-194")
@pytest.mark.parametrize(
    "name",
    ["a:b", "a\\b", "a%b", "a?b", "a#b", "a\nb", "a\x7f", "a ", "a.", "... ", "e\u0301", os.fsdecode(b"\xff")],
    ids=["colon", "backslash", "percent", "question", "hash", "control", "delete", "space", "dot", "dots", "nfd", "not-utf8"],
)
def test_names_that_archives_cannot_hold_are_refused(make_task: MakeTask, name: str) -> None:
    task = make_task()
    (task / "tests" / name).touch()
    checked = check_task(task)
    assert not checked.valid
    assert {problem.rule for problem in checked.problems} == {"archive-path"}
    assert checked.problems[0].message.startswith("Unsafe or ambiguous archive path: 'hello/tests/")
    assert checked.problems[0].message.isprintable()


@pytest.mark.conforms("N-194")
@pytest.mark.parametrize(
    ("path", "is_safe"),
    [
        ("a", True),
        ("a/.b/c d", True),
        ("é" * 2048, True),
        ("é" * 2049, False),
        ("a" * 4096, True),
        ("a" * 4097, False),
        ("", False),
        ("/a", False),
        ("a/", False),
        ("a//b", False),
        ("a/./b", False),
        ("a/../b", False),
        ("a /b", False),
    ],
)
def test_the_path_rule(path: str, is_safe: bool) -> None:
    assert is_safe_path(path) == is_safe


@pytest.mark.conforms("N-28")
@pytest.mark.parametrize("name", ["task.toml", "instruction.md", ".gitignore"])
def test_a_link_in_place_of_metadata_is_refused(make_task: MakeTask, name: str) -> None:
    task = make_task(files={"real": "", name: None})
    os.symlink("real", task / name)
    problems = [problem for problem in check_task(task).problems if problem.rule == "metadata"]
    assert [(problem.file, problem.message) for problem in problems] == [(name, f"Metadata must be a regular file: {name}")]


@pytest.mark.conforms("N-28")
def test_a_link_in_place_of_a_step_folder_is_refused(make_task: MakeTask) -> None:
    task = make_task(files={"task.toml": '[[steps]]\nname = "a"\n', "real/instruction.md": "x", "steps/": ""})
    os.symlink("../real", task / "steps/a")
    assert ("error", "step-folder", "steps/a") in found(check_task(task))


@pytest.mark.conforms("N-195")
@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("task.toml", 1_048_577, "Metadata exceeds byte limit: task.toml"),
        (".gitignore", 262_145, "Metadata exceeds byte limit: .gitignore"),
        ("instruction.md", 1_048_577, "Metadata exceeds byte limit: instruction.md"),
        ("steps/a/instruction.md", 1_048_577, "Metadata exceeds byte limit: steps/a/instruction.md"),
    ],
)
def test_metadata_is_bounded(make_task: MakeTask, name: str, size: int, message: str) -> None:
    toml = '[[steps]]\nname = "a"\n' if name.startswith("steps") else ""
    task = make_task(files={"task.toml": toml, name: "#" * size})
    assert message in [problem.message for problem in check_task(task).problems]
    (task / name).write_text(toml if name == "task.toml" else "#" * (size - 1))
    assert message not in [problem.message for problem in check_task(task).problems]


@pytest.mark.conforms("N-195")
def test_all_metadata_together_is_bounded_and_so_are_steps(make_task: MakeTask) -> None:
    steps = [f"s{index}" for index in range(6)]
    toml = "".join(f'[[steps]]\nname = "{name}"\n' for name in steps)
    task = make_task(files={"task.toml": toml, **{f"steps/{name}/instruction.md": "x" * 100 for name in steps}})
    limits = DEFAULT._replace(metadata_bytes=500, steps=5)
    messages = [problem.message for problem in check_task(task, limits=limits).problems]
    assert messages == ["Task metadata exceeds aggregate byte limit", "Invalid or excessive Harbor steps: 6 of at most 5"]


@pytest.mark.parametrize("text", ["", " \n", "<!-- SPDX-License-Identifier: MIT -->\n"])
def test_an_instruction_that_says_nothing_is_refused_though_harbor_accepts_it(make_task: MakeTask, text: str) -> None:
    task = make_task(files={"instruction.md": text})
    assert check_native(task).is_valid
    assert found(check_task(task)) == [("error", "instruction", "instruction.md")]
    assert check_task(task).problems[0].message == (
        "Harbor task 'bench/hello' instruction is empty after removing SPDX comments and whitespace"
    )


# --- the oddities that suites in the wild have ----------------------------------------------------------------------------------------


def test_a_task_without_test_script_is_refused_and_the_executable_bit_does_not_matter(make_task: MakeTask) -> None:
    task = make_task()
    (task / "tests/test.sh").chmod(0o644)
    assert check_task(task).valid
    (task / "tests/test.sh").unlink()
    assert found(check_task(task)) == [("error", "test-script", "tests/test.sh")]


def test_an_environment_without_any_image_is_refused_unless_publishing_supplies_one(make_task: MakeTask) -> None:
    task = make_task(files={"environment/Dockerfile": None, "environment/data": "x"})
    assert check_native(task).is_valid
    assert found(check_task(task)) == [("error", "no-image", "environment")]
    assert "--default-image" in check_task(task).problems[0].fix
    assert check_task(task, default_image="ubuntu:24.04").valid


def test_a_compose_file_of_the_wrong_name_is_data_and_is_warned_about(make_task: MakeTask) -> None:
    task = check_task(make_task(files={"environment/docker-compose.yml": "services: {}\n"}))
    assert (task.valid, found(task)) == (True, [("warning", "compose-name", "environment/docker-compose.yml")])


def test_crlf_is_read_in_task_toml_and_warned_about_where_a_shell_reads_it(make_task: MakeTask) -> None:
    files = {
        "task.toml": '[task]\r\nname = "bench/hello"\r\n[environment]\r\ncpus = 2\r\n',
        "environment/Dockerfile": "FROM alpine\r\nRUN true\r\n",
        "tests/test.sh": "#!/bin/sh\r\necho 1 > /logs/verifier/reward.txt\r\n",
        "tests/data.txt": "a\r\n",
    }
    task = check_task(make_task(files=files))
    assert task.config is not None
    assert (task.valid, task.config.environment.cpus) == (True, 2)
    assert found(task) == [("warning", "crlf", "environment/Dockerfile"), ("warning", "crlf", "tests/test.sh")]


def test_an_author_that_is_a_bare_name_is_refused_with_the_right_form(make_task: MakeTask) -> None:
    task = check_task(make_task(files={"task.toml": '[task]\nname = "o/n"\nauthors = ["Name"]\n'}))
    problem = task.problems[0]
    assert (task.valid, problem.key, problem.line, problem.fix) == (False, "task.authors[0]", 3, 'write {name = "…"}')


@pytest.mark.conforms("N-167")
def test_old_and_new_keys_beside_each_other_take_effect(make_task: MakeTask) -> None:
    toml = (
        'version = "1.0"\nschema_version = "1.4"\n[metadata]\nauthor_name = "A"\ndifficulty = "easy"\ntags = ["x"]\n'
        "[verifier]\ntimeout_sec = 60.0\n[agent]\ntimeout_sec = 300.0\n"
        '[environment]\nbuild_timeout_sec = 300.0\ncpus = 2\nmemory = "8G"\nstorage_mb = 100\n'
    )
    task = check_task(make_task(files={"task.toml": toml}))
    assert task.config is not None
    environment = task.config.environment
    assert (task.config.schema_version, task.config.verifier.timeout_sec, task.config.agent.timeout_sec) == ("1.4", 60.0, 300.0)
    assert (environment.build_timeout_sec, environment.cpus, environment.memory_mb, environment.storage_mb) == (300.0, 2, 8192, 100)
    assert [(problem.rule, problem.key, problem.line, problem.fix) for problem in task.problems] == [
        ("ignored-key", "version", 1, "remove version"),
        ("legacy-key", "environment.memory", 14, "write memory_mb = 8192"),
    ]


@pytest.mark.conforms("H-21")
def test_unknown_keys_in_steps_are_warned_about_by_their_path(make_task: MakeTask) -> None:
    toml = (
        '[[steps]]\nname = "a"\n[[steps]]\nname = "b"\ntimeout = 3\n[steps.environment]\ncpus = 1\n[steps.agent]\ntimeout_sec = 1\nx = 2\n'
    )
    task = check_task(make_task(files={"task.toml": toml, "steps/a/instruction.md": "1", "steps/b/instruction.md": "2"}))
    assert task.valid
    assert [(problem.severity, problem.rule, problem.key, problem.line) for problem in task.problems] == [
        ("warning", "unknown-key", "steps[1].timeout", 5),
        ("warning", "unknown-key", "steps[1].environment", 6),
        ("warning", "unknown-key", "steps[1].agent.x", 10),
    ]


@pytest.mark.parametrize("where", ["suite", "task"])
def test_an_empty_git_submodule_is_warned_about(tmp_path: Path, make_task: MakeTask, where: str) -> None:
    root = tmp_path / "suite"
    task = make_task("a", {"environment/lib/": "", "environment/other/": ""}, root=root)
    home, prefix = (root, "a/") if where == "suite" else (task, "")
    (home / ".gitmodules").write_text(f'[submodule "lib"]\n\tpath = {prefix}environment/lib\n\turl = https://example.com/lib.git\n')
    checked = check_task(task)
    assert (checked.valid, found(checked)) == (True, [("warning", "empty-submodule", "environment/lib")])


def test_a_nested_task_and_a_verifier_without_reward_are_warned_about(make_task: MakeTask) -> None:
    files = {"other/task.toml": "", "environment/sub/task.toml": "", "tests/test.sh": "#!/bin/sh\nexit 0\n"}
    task = check_task(make_task(files=files))
    assert (task.valid, found(task)) == (True, [("warning", "nested-task", "other/task.toml"), ("warning", "no-reward", "tests")])


def test_one_image_for_different_dockerfiles_is_warned_about(tmp_path: Path, make_task: MakeTask) -> None:
    toml = '[task]\nname = "o/{}"\n[environment]\ndocker_image = "registry/shared:1"\n'
    for name, dockerfile in (("a", "FROM x\n"), ("b", "FROM x\n"), ("c", "FROM y\n")):
        make_task(name, {"task.toml": toml.format(name), "environment/Dockerfile": dockerfile}, root=tmp_path / "suite")
    tasks = list(check_tasks([tmp_path / "suite" / name for name in ("a", "b", "c")]))
    assert [(problem.severity, problem.rule, problem.file, problem.key) for problem in check_suite(tasks)] == [
        ("warning", "shared-image", "c", "environment.docker_image")
    ]


def test_the_balance_of_difficulties_counts_what_tasks_say(tmp_path: Path, make_task: MakeTask) -> None:
    for index, metadata in enumerate(('difficulty = "hard"', 'difficulty = "easy"', 'difficulty = "hard"', "", "difficulty = 3")):
        make_task(f"t{index}", {"task.toml": f"[metadata]\n{metadata}\n"}, root=tmp_path / "suite")
    assert difficulty_balance(check_tasks(sorted((tmp_path / "suite").iterdir()))) == {"easy": 1, "hard": 2}


@pytest.mark.conforms("N-54")
def test_tasks_that_would_become_one_object_are_refused_and_both_are_named(tmp_path: Path, make_task: MakeTask) -> None:
    for name, native_id in (("a", "org/my_task"), ("b", "org/my-task"), ("c", "Org/My-Task"), ("d", "org/other")):
        make_task(name, {"task.toml": f'[task]\nname = "{native_id}"\n'}, root=tmp_path / "suite")
    problems = check_suite(check_tasks(sorted((tmp_path / "suite").iterdir())))
    assert [(problem.rule, problem.file) for problem in problems] == [("duplicate-id", "c"), ("object-name", "c")]
    assert problems[1].message == "'org/my_task', 'Org/My-Task' would all become the object 'org-my-task'"


# --- oddities of suites in the wild -----------------------------------------------------------------------------------------------------


def test_a_second_task_toml_below_environment_is_data(make_task: MakeTask) -> None:
    task = check_task(make_task(files={"environment/app/task.toml": "[task]\nname = 3\n"}))
    assert (task.valid, task.native_id, task.problems) == (True, "bench/hello", ())


def test_a_whole_valid_task_inside_another_is_warned_about_and_belongs_to_it(tmp_path: Path, make_task: MakeTask) -> None:
    outer = make_task("outer", {"task.toml": '[task]\nname = "bench/outer"\n'}, root=tmp_path / "suite")
    make_task("inner", {"task.toml": '[task]\nname = "bench/inner"\n'}, root=outer)
    (task,) = check_tasks(discover(tmp_path / "suite").require())
    assert (task.native_id, task.valid, found(task)) == ("bench/outer", True, [("warning", "nested-task", "inner/task.toml")])


def test_both_version_keys_are_accepted(make_task: MakeTask) -> None:
    task = check_task(make_task(files={"task.toml": 'version = "1.0"\nschema_version = "1.4"\n[task]\nname = "bench/hello"\n'}))
    assert (task.valid, [problem for problem in task.problems if problem.severity == "error"]) == (True, [])


def test_long_names_with_one_beginning_become_unique_and_legal_object_names() -> None:
    names = [object_name(f"org/{'x' * 300}{end}") for end in ("a", "b", "A")]
    assert len({*names}) == 3
    assert {name[:60] for name in names} == {f"org-{'x' * 56}"}
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", name) for name in names)
    short = [object_name(f"org/{'y' * 60}{end}") for end in ("a", "b")]
    assert short == [f"org-{'y' * 60}a", f"org-{'y' * 60}b"]


@pytest.mark.parametrize(
    ("native", "name"),
    [
        ("Org/My_Task", "org-my-task"),
        ("a b.c", "a-b.c"),
        ("-x-", "x"),
        ("umlaut-ü", "umlaut"),
        ("日本", None),
        ("...", None),
    ],
)
def test_object_names_of_odd_ids_are_legal(native: str, name: str | None) -> None:
    made = object_name(native)
    assert name is None or made == name
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", made)


# --- what is not a task at all --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["absent", "file", "link", "empty"])
def test_a_path_that_is_no_folder_is_a_problem_and_no_crash(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "file":
        path.touch()
    elif kind == "link":
        path.symlink_to(tmp_path)
    elif kind == "empty":
        path.mkdir()
    task = check_task(path)
    assert (task.valid, task.config, task.digest) == (False, None, None)
    assert [problem.severity for problem in task.problems] == ["error"] * len(task.problems) != []


def test_many_tasks_are_checked_by_processes_in_their_order(tmp_path: Path, make_task: MakeTask) -> None:
    paths = [make_task(f"t{index:02}", {"task.toml": f'[task]\nname = "o/{index}"\n'}, root=tmp_path / "suite") for index in range(40)]
    (paths[7] / "tests/test.sh").unlink()
    program = (
        "import sys\nfrom pathlib import Path\nfrom seatrial.taskpkg.check import check_tasks\n"
        "if __name__ == '__main__':\n"
        "    for task in check_tasks(sorted(Path(sys.argv[1]).iterdir()), processes=2):\n"
        "        print(task.path.name, task.native_id, task.valid, task.digest)\n"
    )
    script = tmp_path / "program.py"
    script.write_text(program)
    run = subprocess.run([sys.executable, str(script), str(tmp_path / "suite")], capture_output=True, text=True, check=True)
    expected = [f"{task.path.name} {task.native_id} {task.valid} {task.digest}" for task in check_tasks(paths)]
    assert run.stdout.splitlines() == expected
    assert [line.split()[0] for line in expected if " False " in line] == ["t07"]
