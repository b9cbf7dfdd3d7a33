"""Processes, files, archives and signatures: the small effects that everything else rests on."""

from __future__ import annotations

import datetime
import json
import os
import stat
import subprocess
import sys
import tarfile
import urllib.parse
from pathlib import Path

import minio.signer
import pytest
from localcluster import debian, namespaces, oci, shell
from localcluster.cli import format_status
from localcluster.native import make_cgroups, remove_cgroups
from localcluster.provider import ComponentStatus
from localcluster.s3 import EMPTY_SHA256, Credentials, authorization
from localcluster.settings import ClusterError
from minio.credentials.providers import StaticProvider


def test_a_recorded_process_is_found_again_only_while_it_is_the_same(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        process = namespaces.observe(child.pid)
        assert process is not None
        namespaces.remember(tmp_path / "record", process)
        assert namespaces.recall(tmp_path / "record") == process
        # The same pid of another start is another process.
        namespaces.remember(tmp_path / "later", namespaces.Process(process.pid, process.started + 1, process.boot))
        assert namespaces.recall(tmp_path / "later") is None
    finally:
        child.communicate(b"\n")
    assert namespaces.recall(tmp_path / "record") is None


def test_a_process_that_waits_to_be_reaped_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.DEVNULL)
    shell.wait_until("end", lambda: None if namespaces.observe(child.pid) is None else "it runs", timeout_seconds=10)
    assert Path(f"/proc/{child.pid}").exists()
    child.wait()


def test_a_damaged_record_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "record").write_text("{}")
    with pytest.raises(ClusterError, match="record: not a record of a process"):
        namespaces.recall(tmp_path / "record")


def test_a_secret_file_is_never_readable_by_others(tmp_path: Path) -> None:
    shell.write(tmp_path / "d" / "secret", "x", mode=0o600)
    assert stat.S_IMODE((tmp_path / "d" / "secret").stat().st_mode) == 0o600


def test_a_failed_command_shows_the_end_of_what_it_printed() -> None:
    with pytest.raises(ClusterError, match=r"exit code 3\nlast words$"):
        shell.run(["sh", "-c", "echo last words >&2; exit 3"])


def test_a_missing_program_is_named() -> None:
    with pytest.raises(ClusterError, match="no-such-program: not found; install it"):
        shell.run(["no-such-program"])


def test_waiting_gives_up_with_the_last_reason() -> None:
    with pytest.raises(ClusterError, match="node ready: not after 0 s: still starting"):
        shell.wait_until("node ready", lambda: "still starting", timeout_seconds=0)


def test_packages_are_missing_when_their_file_is(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/etcd").touch()
    packages = {"etcd-server": "/usr/bin/etcd", "containerd": "/usr/bin/containerd"}
    assert debian.missing_packages(packages, root=tmp_path) == ["containerd"]


def test_an_image_archive_is_the_same_for_the_same_content_and_names_its_image(tmp_path: Path) -> None:
    (tmp_path / "program").write_bytes(b"binary")
    for name in ("one", "two"):
        oci.write_archive(
            tmp_path / f"{name}.tar", image="seatrial.local/x:1", files={"bin/x": tmp_path / "program"}, entrypoint=["/bin/x"]
        )
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as archive:
        index = json.load(archive.extractfile("index.json") or pytest.fail("no index"))
        (manifest,) = index["manifests"]
        assert manifest["annotations"]["io.containerd.image.name"] == "seatrial.local/x:1"
        content = archive.extractfile(f"blobs/sha256/{manifest['digest'].removeprefix('sha256:')}")
        assert content is not None
        layers = json.load(content)["layers"]
        layer = archive.extractfile(f"blobs/sha256/{layers[0]['digest'].removeprefix('sha256:')}")
        with tarfile.open(fileobj=layer) as files:
            assert [(entry.name, oct(entry.mode)) for entry in files] == [("bin", "0o755"), ("tmp", "0o1777"), ("bin/x", "0o755")]


def test_cgroups_are_made_in_every_hierarchy_and_removed_with_all_below(tmp_path: Path) -> None:
    for name in ("memory", "cpuset"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    (tmp_path / "not-a-hierarchy").mkdir()
    make_cgroups(tmp_path, "seatrial-x")
    (tmp_path / "memory" / "seatrial-x" / "kubepods" / "pod1").mkdir(parents=True)
    remove_cgroups(tmp_path, "seatrial-x")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_dir()) == [
        "cpuset",
        "memory",
        "not-a-hierarchy",
    ]


def test_requests_are_signed_as_another_client_signs_them() -> None:
    now = datetime.datetime(2013, 5, 24, tzinfo=datetime.UTC)
    url = "http://s3.example:9000/seatrial"
    ours = authorization("PUT", url, credentials=Credentials("identity", "hidden"), now=now)
    theirs = minio.signer.sign_v4_s3(
        method="PUT",
        url=urllib.parse.urlsplit(url),
        region="us-east-1",
        headers={"Host": "s3.example:9000", "x-amz-content-sha256": EMPTY_SHA256, "x-amz-date": "20130524T000000Z"},
        credentials=StaticProvider("identity", "hidden").retrieve(),
        content_sha256=EMPTY_SHA256,
        date=now,
    )
    assert ours["authorization"] == theirs["Authorization"]


def test_status_is_a_table_with_a_fault_beside_what_is_not_healthy() -> None:
    rows = [
        ComponentStatus("etcd", pid=12, healthy=True, detail=""),
        ComponentStatus("s3", pid=None, healthy=False, detail="does not answer"),
    ]
    assert format_status(rows).splitlines() == [
        "COMPONENT            PID      HEALTHY  DETAIL",
        "etcd                 12       yes",
        "s3                   -        no       does not answer",
    ]


def test_the_package_needs_nothing_but_the_standard_library(checkout: Path) -> None:
    """It runs on a bare machine, before any virtual environment exists."""
    code = "import sys; sys.path.insert(0, 'tests/cluster'); import localcluster.cli; print(*{m.partition('.')[0] for m in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], cwd=checkout, capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    outside = set(done.stdout.split()) - sys.stdlib_module_names - {"localcluster", "__main__"}
    assert outside == set()
