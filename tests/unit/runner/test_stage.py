"""The init container: what it leaves for agent and verifier, and how it fails."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from seatrial import contract
from seatrial.contract import StageExit
from seatrial_runner import stage

if TYPE_CHECKING:
    from .conftest import Pod


def members(path: Path) -> dict[str, tuple[str, int]]:
    """Name to type and mode of a tar's members; all must belong to root."""
    with tarfile.open(path) as tar:
        found = tar.getmembers()
    assert {(member.uid, member.gid) for member in found} <= {(0, 0)}
    kinds = {tarfile.REGTYPE: "file", tarfile.DIRTYPE: "dir", tarfile.SYMTYPE: "link"}
    return {member.name: (kinds[member.type], member.mode) for member in found}


def message(pod: Pod) -> str:
    text = (pod.root / "termination-stage").read_bytes()
    assert len(text) <= contract.STAGE_MESSAGE_BYTES
    return str(json.loads(text)["message"])


def store_archive(pod: Pod, *entries: tuple[str, bytes, dict[str, Any]]) -> str:
    """An archive that our own packer would never write; returns its sha256."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, data, attributes in entries:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for key, value in attributes.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data))
    packed = gzip.compress(raw.getvalue())
    pod.store.put("archive", packed)
    return hashlib.sha256(packed).hexdigest()


# --- what it leaves ------------------------------------------------------------------------------------------------------------------


def test_agent_and_verifier_find_their_own_files_and_nothing_else_remains(pod: Pod) -> None:
    assert pod.stage() == StageExit.OK
    task = pod.root / "task"
    assert sorted(str(path.relative_to(task)) for path in task.rglob("*")) == [
        "agent",
        "agent/input.json",
        "agent/instruction.md",
        "agent/solution.tar",
        "verifier",
        "verifier/input.json",
        "verifier/tests.tar",
    ]
    assert not (pod.root / "termination-stage").exists()


def test_modes_let_the_agents_user_read_its_own_folder_only(pod: Pod) -> None:
    before = os.umask(0o077)
    try:
        pod.stage()
    finally:
        os.umask(before)
    task = pod.root / "task"
    modes = {str(path.relative_to(task)): path.stat().st_mode & 0o777 for path in task.glob("*/*")}
    assert modes == {
        "agent/input.json": 0o644,
        "agent/instruction.md": 0o644,
        "agent/solution.tar": 0o644,
        "verifier/input.json": 0o600,
        "verifier/tests.tar": 0o600,
    }


@pytest.mark.parametrize(("kind", "tools"), [("oracle", ["envd"]), ("image", ["envd", "seatrial-env"])])
def test_the_client_is_there_for_an_agent_image_alone(pod: Pod, kind: Literal["oracle", "image"], tools: list[str]) -> None:
    pod.trial["agent"]["kind"] = kind
    assert pod.stage() == StageExit.OK
    assert sorted(path.name for path in (pod.root / "bin").iterdir()) == tools


def test_the_agents_input_knows_nothing_of_the_verifier(pod: Pod) -> None:
    pod.trial["verifier"]["env"] = {"JUDGE_KEY": "literal"}
    pod.trial["solution_env"] = {"A": "${FOR_SOLUTION}"}
    pod.trial["variables"] = {"FOR_SOLUTION": "x", "FOR_TESTS": "y"}
    pod.stage()
    agent = json.loads((pod.root / "task/agent/input.json").read_text())
    assert (agent["verifier"]["env"], agent["variables"], agent["config"]) == ({}, {"FOR_SOLUTION": "x"}, {})
    assert json.loads((pod.root / "task/verifier/input.json").read_text()) == pod.trial


def test_only_the_oracle_gets_the_solution(pod: Pod) -> None:
    pod.trial["agent"] |= {"kind": "nop", "name": "nop"}
    pod.trial["solution_env"] = {"A": "b"}
    pod.stage()
    assert not (pod.root / "task/agent/solution.tar").exists()
    assert json.loads((pod.root / "task/agent/input.json").read_text())["solution_env"] == {}


def test_modes_links_and_empty_folders_are_kept_and_the_script_is_executable(pod: Pod) -> None:
    folder = pod.write_task() / "tests"
    (folder / "data/empty").mkdir(parents=True)
    (folder / "data/secret").write_text("x")
    (folder / "data/secret").chmod(0o400)
    (folder / "tool").write_text("x")
    (folder / "tool").chmod(0o755)
    (folder / "link").symlink_to("data/secret")
    (folder / "data").chmod(0o750)
    pod.stage()
    assert members(pod.root / "task/verifier/tests.tar") == {
        "data": ("dir", 0o750),
        "link": ("link", 0o777),
        "test.sh": ("file", 0o755),
        "tool": ("file", 0o755),
        "data/empty": ("dir", 0o755),
        "data/secret": ("file", 0o400),
    }


def test_a_script_that_is_a_link_makes_its_target_executable(pod: Pod) -> None:
    folder = pod.write_task() / "tests"
    (folder / "test.sh").rename(folder / "real.sh")
    (folder / "test.sh").symlink_to("real.sh")
    del pod.files["tests/test.sh"]
    pod.stage()
    assert members(pod.root / "task/verifier/tests.tar")["real.sh"] == ("file", 0o755)


def test_harborignore_leaves_files_and_whole_folders_out(pod: Pod) -> None:
    pod.files |= {
        "tests/.harborignore": "*.tmp\ncache/\n",
        "tests/a.tmp": "",
        "tests/cache/deep/b": "",
        "tests/c.txt": "",
        "solution/d.tmp": "",
    }
    pod.stage()
    assert set(members(pod.root / "task/verifier/tests.tar")) == {"c.txt", "test.sh"}
    assert set(members(pod.root / "task/agent/solution.tar")) == {"d.tmp", "solve.sh"}


@pytest.mark.conforms("H-34")
def test_loose_files_are_handed_to_the_agent_when_asked(pod: Pod) -> None:
    del pod.files["environment/Dockerfile"]
    pod.files["environment/input.txt"] = "x"
    pod.trial["environment"]["loose_files"] = True
    pod.stage()
    assert members(pod.root / "task/agent/environment.tar") == {"input.txt": ("file", 0o644)}


def test_envd_is_executable_for_every_user(pod: Pod) -> None:
    pod.stage()
    assert (pod.root / "bin/envd").stat().st_mode & 0o777 == 0o755
    assert (pod.root / "bin/envd").read_bytes() == pod.envd.read_bytes()


def test_the_environment_gets_copies_of_the_files_that_all_containers_share(pod: Pod) -> None:
    (pod.root / "etc/resolv.conf").unlink()
    pod.stage()
    found = {path.name: (path.read_text(), oct(path.stat().st_mode & 0o777)) for path in (pod.root / "net").iterdir()}
    assert found == {"hosts": ("hosts of the Pod\n", "0o644"), "resolv.conf": ("", "0o644")}


def test_a_second_start_on_the_same_volumes_gives_the_same(pod: Pod) -> None:
    sha256 = pod.publish()
    assert pod.stage(sha256=sha256) == StageExit.OK
    first = (pod.root / "task/verifier/input.json").read_bytes()
    (pod.root / "task/agent/left.txt").write_text("x")
    assert pod.stage(sha256=sha256) == StageExit.OK
    assert (pod.root / "task/verifier/input.json").read_bytes() == first
    assert not (pod.root / "task/agent/left.txt").exists()


# --- how it fails --------------------------------------------------------------------------------------------------------------------


def test_an_archive_that_is_gone_is_named(pod: Pod) -> None:
    assert pod.stage(sha256="0" * 64) == StageExit.ARCHIVE_MISSING
    assert "NoSuchKey" in message(pod)
    assert "signature" not in message(pod).lower()


@pytest.mark.parametrize(
    ("faults", "code"),
    [([403], StageExit.STORE_REFUSED), ([503] * 3, StageExit.STORE_UNAVAILABLE), (["drop"] * 3, StageExit.STORE_UNAVAILABLE)],
)
def test_a_store_that_does_not_give_it_is_told_apart(pod: Pod, faults: list[int | str], code: StageExit) -> None:
    sha256 = pod.publish()
    pod.store.fail("archive", *faults)
    assert pod.stage(sha256=sha256) == code
    assert message(pod)


def test_a_store_that_recovers_is_no_error(pod: Pod) -> None:
    sha256 = pod.publish()
    pod.store.fail("archive", 503, "drop")
    assert pod.stage(sha256=sha256) == StageExit.OK


@pytest.mark.conforms("N-74")
def test_another_digest_is_corrupt_after_a_second_download(pod: Pod) -> None:
    pod.publish()
    assert pod.stage(sha256="0" * 64) == StageExit.ARCHIVE_CORRUPT
    assert len([path for method, path in pod.store.requests if method == "GET"]) == 2
    assert list((pod.root / "task").glob("*/*")) == []


def test_a_truncated_archive_with_the_right_digest_is_corrupt(pod: Pod) -> None:
    pod.publish()
    data = (pod.store.get("archive") or b"")[:-20]
    pod.store.put("archive", data)
    assert pod.stage(sha256=hashlib.sha256(data).hexdigest()) == StageExit.ARCHIVE_CORRUPT


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        pytest.param("task/../../evil", {}, id="climbs-out"),
        pytest.param("/evil", {}, id="absolute"),
        pytest.param("task/device", {"type": tarfile.CHRTYPE}, id="device"),
        pytest.param("task/hard", {"type": tarfile.LNKTYPE, "linkname": "task/x"}, id="hard-link"),
        pytest.param("task/link", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, id="escaping-link"),
    ],
)
def test_an_unsafe_member_is_refused_by_name(pod: Pod, name: str, attributes: dict[str, Any]) -> None:
    sha256 = store_archive(pod, ("task", b"", {"type": tarfile.DIRTYPE, "mode": 0o755}), (name, b"", attributes))
    assert pod.stage(sha256=sha256) == StageExit.ARCHIVE_UNSAFE
    assert name in message(pod)
    assert list((pod.root / "task").glob("*/*")) == []


@pytest.mark.parametrize(
    ("files", "words"),
    [
        pytest.param({"task.toml": ""}, "no instruction.md", id="no-instruction"),
        pytest.param({"task.toml": "", "steps/one/instruction.md": "x"}, "no instruction.md", id="steps-that-the-plan-does-not-know"),
    ],
)
def test_a_task_that_this_version_cannot_run_is_unsupported(pod: Pod, files: dict[str, str], words: str) -> None:
    pod.files = files
    assert pod.stage() == StageExit.TASK_UNSUPPORTED
    assert words in message(pod)


def test_a_full_disk_is_told_from_a_bug(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(stage, "extract_archive", full)
    assert pod.stage() == StageExit.DISK_FULL
    assert "no room" in message(pod)


def test_a_bug_has_its_own_code(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise KeyError("x" * 2000)

    monkeypatch.setattr(stage, "extract_archive", broken)
    assert pod.stage() == StageExit.INTERNAL
    assert message(pod).startswith("KeyError")
