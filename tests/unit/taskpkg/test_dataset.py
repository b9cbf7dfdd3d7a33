from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from seatrial.taskpkg.check import check_task
from seatrial.taskpkg.dataset import (
    PackageRef,
    check_dataset,
    metric_script,
    parse_dataset_toml,
    parse_package_ref,
    parse_registry,
)
from seatrial.taskpkg.digest import content_digest, dataset_digest, environment_id
from seatrial.taskpkg.harborpkg import matches_digest

MakeTask = Callable[..., Path]
A, B, C = "a" * 64, "b" * 64, "c" * 64


@pytest.mark.conforms("H-25", "H-26")
def test_the_published_vectors_of_all_digests_hold(tmp_path: Path, make_task: MakeTask) -> None:
    files = {
        "task.toml": 'schema_version = "1.4"\n',
        "tests/test.sh": "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n",
        "solution/solve.sh": "#!/bin/bash\ntrue\n",
        "README.md": "# hi\n",
    }
    task = make_task(files=files)
    digest = "5a0ad3104809a18f0b04e8c93e047123897dede7e7f133b42454c4bd63a5bab0"
    assert (content_digest(task), environment_id(task)) == (digest, "7990383898d5bc64b5e5c35bbc3fd130")
    (task / "tests/test.sh").chmod(0o755)
    assert content_digest(task) == digest
    assert dataset_digest([B, A]) == "b1da1a1755748f4703baeaa4ae58e2f42a25bd33aa67a0db9fd84d6b8767c492"
    assert (
        dataset_digest([f"sha256:{B}", A], {"metric.py": f"sha256:{C}"})
        == "ba78bd7936887d150126adc262af268fb81226f47c71f992bbb363ccc96c96f5"
    )


def test_an_environment_without_files_is_named_by_its_image(make_task: MakeTask) -> None:
    task = make_task(files={"environment/Dockerfile": None, "environment/": ""})
    assert environment_id(task, docker_image="x") == "2d711642b726b04401627ca9fbac32f5"
    assert environment_id(task) != environment_id(task, docker_image="x")


@pytest.mark.conforms("H-30")
def test_a_dataset_file_is_read_with_its_digest() -> None:
    text = f'[dataset]\nname = "o/d"\n[[tasks]]\nname = "o/a"\ndigest = "sha256:{A}"\n[[files]]\npath = "metric.py"\n[metadata]\nx = 1\n'
    manifest, problems = parse_dataset_toml(text)
    assert manifest is not None
    assert problems == ()
    assert (manifest.dataset.name, [(task.name, task.digest) for task in manifest.tasks]) == ("o/d", [("o/a", f"sha256:{A}")])
    assert [(file.path, file.digest) for file in manifest.files] == [("metric.py", "")]
    assert manifest.digest() == dataset_digest([A], {"metric.py": ""})


@pytest.mark.conforms("H-30")
@pytest.mark.parametrize(
    ("text", "key", "line", "rule"),
    [
        pytest.param("", "dataset", None, "missing-key", id="no-dataset"),
        pytest.param('[dataset]\nname = "d"\n', "dataset.name", 2, "task-name", id="name"),
        pytest.param('[dataset]\nname = "o/d"\nversion = ""\n', "dataset.version", 3, "wrong-type", id="version"),
        pytest.param(f'[dataset]\nname = "o/d"\n[[tasks]]\nname = "o/a"\ndigest = "{A}"\n', "tasks[0].digest", 5, "digest", id="no-prefix"),
        pytest.param(
            f'[dataset]\nname = "o/d"\n[[tasks]]\nname = "o/a"\ndigest = "sha256:{A.upper()}"\n',
            "tasks[0].digest",
            5,
            "digest",
            id="capitals",
        ),
        pytest.param('[dataset]\nname = "o/d"\n[[tasks]]\nname = "o/a"\n', "tasks[0].digest", 3, "missing-key", id="no-digest"),
        pytest.param('[dataset]\nname = "o/d"\n[[files]]\npath = "a/b"\n', "files[0].path", 4, "dataset-file", id="path"),
    ],
)
def test_a_bad_dataset_file_is_refused_by_key(text: str, key: str, line: int | None, rule: str) -> None:
    manifest, problems = parse_dataset_toml(text)
    assert manifest is None
    assert [(problem.severity, problem.file, problem.key, problem.line, problem.rule) for problem in problems] == [
        ("error", "dataset.toml", key, line, rule)
    ]


def test_every_stale_digest_is_reported_with_the_right_one(tmp_path: Path, make_task: MakeTask) -> None:
    suite = tmp_path / "suite"
    tasks = [check_task(make_task(name, {"task.toml": f'[task]\nname = "o/{name}"\n'}, root=suite)) for name in ("a", "b", "c", "d")]
    (suite / "metric.py").write_text("print()\n")
    listed = {"o/a": A, "o/b": tasks[1].digest, "o/c": C, "o/gone": A}
    entries = "".join(f'[[tasks]]\nname = "{name}"\ndigest = "sha256:{digest}"\n' for name, digest in listed.items())
    files = f'[[files]]\npath = "metric.py"\ndigest = "sha256:{A}"\n[[files]]\npath = "other.py"\n'
    (suite / "dataset.toml").write_text(f'[dataset]\nname = "o/d"\n{entries}{files}')
    assert [(problem.severity, problem.rule, problem.key) for problem in check_dataset(suite, tasks)] == [
        ("error", "stale-digest", "tasks[0].digest"),
        ("error", "stale-digest", "tasks[2].digest"),
        ("warning", "dataset-task", "tasks[3].name"),
        ("warning", "dataset-task", "tasks"),
        ("error", "stale-digest", "files[0].digest"),
        ("error", "dataset-file", "files[1].path"),
    ]
    assert check_dataset(suite, tasks)[0].fix == f'write digest = "sha256:{tasks[0].digest}"'


def test_a_suite_without_dataset_file_has_nothing_to_compare(tmp_path: Path) -> None:
    assert check_dataset(tmp_path, []) == ()
    assert metric_script(tmp_path) is None


@pytest.mark.conforms("H-28", "N-178")
def test_a_registry_is_a_list_and_a_single_entry_is_read_too() -> None:
    entry = {
        "name": "n",
        "version": "1.0",
        "description": "",
        "tasks": [{"name": "a", "git_url": "https://example.com/r.git", "git_commit_id": "c" * 40, "path": "tasks/a"}],
    }
    datasets, problems = parse_registry(json.dumps([entry]))
    assert problems == ()
    assert parse_registry(json.dumps(entry))[0] == datasets
    assert datasets[0].model_dump(mode="json") == {**entry, "metrics": []}
    assert parse_registry(json.dumps([{**entry, "metrics": [{}]}]))[0][0].metrics[0].model_dump() == {"type": "mean", "kwargs": {}}


@pytest.mark.parametrize(
    ("text", "rule", "key"),
    [("{", "json-syntax", None), ("[{}]", "registry", "[0].name"), ("3", "registry", ""), ("[" * 100_000, "json-syntax", None)],
)
def test_a_bad_registry_is_refused(text: str, rule: str, key: str | None) -> None:
    datasets, problems = parse_registry(text)
    assert datasets == ()
    assert (problems[0].rule, problems[0].key) == (rule, key)


@pytest.mark.conforms("H-29")
def test_references_to_packages_are_tags_revisions_or_digests() -> None:
    assert [parse_package_ref(text) for text in ("o/n", "o/n@latest", "o/n@v1.2-x", "o/n@12", f"o/n@sha256:{A}")] == [
        PackageRef("o/n", "tag", "latest"),
        PackageRef("o/n", "tag", "latest"),
        PackageRef("o/n", "tag", "v1.2-x"),
        PackageRef("o/n", "revision", "12"),
        PackageRef("o/n", "digest", f"sha256:{A}"),
    ]


@pytest.mark.conforms("H-29")
@pytest.mark.parametrize("text", ["n", "o/n@", "o/n@Tag", "o/n@sha256:abc", f"o/n@sha256:{A.upper()}", "o/n@-x", "@v1", "o/n/m@x"])
def test_other_texts_are_no_references(text: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        parse_package_ref(text)


@pytest.mark.conforms("H-29")
def test_downloaded_content_is_compared_with_its_digest(make_task: MakeTask) -> None:
    task = make_task()
    digest = content_digest(task)
    assert matches_digest(task, f"sha256:{digest}")
    (task / "tests/test.sh").write_text("changed\n")
    assert not matches_digest(task, f"sha256:{digest}")
