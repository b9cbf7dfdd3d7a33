"""Files through the real envd, in and out."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from seatrial_runner.channel import (
    Channel,
    Entry,
    EnvdError,
    GetSummary,
    Missing,
    NotRegular,
    PutSummary,
    Stat,
    TooLarge,
)

from .conftest import Environment

LIMITS = {"max_bytes": 1 << 20, "max_entries": 1000}


def test_a_tree_survives_the_round_trip(agent: Channel, environment: Environment, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub" / "empty").mkdir(parents=True)
    (source / "run.sh").write_bytes(b"#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "sub" / ("ä" * 100)).write_bytes(os.urandom(200_000))
    (source / "sub" / os.fsdecode(b"\xff\xfe")).write_bytes(b"not utf-8")
    (source / "link").symlink_to("../" * 40 + "far")
    target = environment.folder / "target"
    assert agent.put(source, str(target)) == PutSummary(entries=6, size_bytes=200_019)

    with agent.get(str(target), max_bytes=1 << 20, max_entries=100) as download:
        got = {entry.name: (entry.kind, oct(entry.mode), entry.link_target, b"".join(iter(download.read, b""))) for entry in download}
    long = "ä" * 100
    assert got == {
        ".": ("dir", "0o755", "", b""),
        "link": ("link", "0o777", "../" * 40 + "far", b""),
        "run.sh": ("file", "0o755", "", b"#!/bin/sh\n"),
        "sub": ("dir", "0o755", "", b""),
        "sub/empty": ("dir", "0o755", "", b""),
        "sub/" + long: ("file", "0o644", "", (source / "sub" / long).read_bytes()),
        "sub/" + os.fsdecode(b"\xff\xfe"): ("file", "0o644", "", b"not utf-8"),
    }
    assert download.summary == GetSummary(7, 200_019, 0, 0, 0, 0, False)
    assert (target / "run.sh").stat().st_mtime == int((source / "run.sh").stat().st_mtime)


def test_what_is_put_belongs_to_root_or_to_the_owner_asked_for(agent: Channel, environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    os.chown(tmp_path / "file", 1000, 1000)
    target = environment.folder / "a" / "b"
    agent.put(tmp_path, str(target))
    assert ((target / "file").stat().st_uid, (target / "file").stat().st_gid) == (0, 0)
    other = environment.folder / "c"
    agent.put(tmp_path, str(other), owner="nobody", dir_mode=0o700)
    assert ((other / "file").stat().st_uid, other.stat().st_uid, other.stat().st_mode & 0o777) == (65534, 65534, 0o700)


def test_a_tar_stream_can_be_put_as_it_comes(agent: Channel, environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(os.urandom(5_000_000))
    from seatrial_runner.tarstream import write_tree

    agent.put(write_tree(tmp_path), f"{environment.folder}/target")
    assert (environment.folder / "target" / "big").read_bytes() == (tmp_path / "big").read_bytes()


def test_a_put_that_fails_half_way_names_the_fault_and_leaves_the_channel(agent: Channel, environment: Environment, tmp_path: Path) -> None:
    (environment.folder / "target" / "file").mkdir(parents=True)
    (tmp_path / "file").write_bytes(bytes(5_000_000))
    with pytest.raises(EnvdError, match="file is a directory in the environment and a file in the archive") as failed:
        agent.put(tmp_path, f"{environment.folder}/target")
    assert failed.value.kind == "io"
    with pytest.raises(EnvdError) as failed:
        agent.put([b"rubbish " * 100_000], f"{environment.folder}/target")
    assert failed.value.kind == "bad-archive"
    assert agent.exec("true").ok


def test_put_and_get_work_with_a_read_only_root_and_without_root(environment: Environment) -> None:
    logs = environment.folder / "logs"
    logs.mkdir()
    logs.chmod(0o777)
    script = f'mount --bind {logs} {logs} && mount -o remount,ro,bind / && exec setpriv --reuid=65534 --regid=65534 --clear-groups -- "$@"'
    environment.listen()
    environment.spawn(["unshare", "--mount", "sh", "-c", script, "-", *environment.envd()])
    agent, _ = environment.accept()
    agent.put_bytes(b"x", f"{logs}/new/file")
    assert agent.read_file(f"{logs}/new/file", max_bytes=1) == b"x"
    assert ((logs / "new" / "file").stat().st_uid, agent.exec("true").code) == (65534, 0)
    with pytest.raises(EnvdError, match="read-only file system") as failed:
        agent.put_bytes(b"x", "/usr/file")
    assert failed.value.kind == "io"


def test_links_are_never_followed_on_the_way_out(agent: Channel, environment: Environment, tmp_path: Path) -> None:
    logs = environment.folder / "logs"
    logs.mkdir()
    (logs / "passwd").symlink_to("/etc/passwd")
    (logs / "etc").symlink_to("/etc")
    os.mkfifo(logs / "fifo")
    os.mknod(logs / "zero", 0o020666, os.makedev(1, 5))
    with agent.get(str(logs), max_bytes=1000, max_entries=100) as download:
        assert [(entry.name, entry.kind, entry.link_target) for entry in download] == [
            (".", "dir", ""),
            ("etc", "link", "/etc"),
            ("passwd", "link", "/etc/passwd"),
        ]
    assert download.summary == GetSummary(3, 0, 2, 0, 0, 0, False)
    summary = agent.get_tree(str(logs), tmp_path / "out", max_bytes=1000, max_entries=100)
    assert (summary.entries, os.listdir(tmp_path / "out")) == (3, [])
    with agent.get(f"{logs}/passwd", max_bytes=10, max_entries=1) as download:
        assert list(download) == [Entry("passwd", "link", 0o777, 0, int(os.lstat(logs / "passwd").st_mtime), "/etc/passwd")]


def test_limits_leave_files_out_and_say_so(agent: Channel, environment: Environment, tmp_path: Path) -> None:
    logs = environment.folder / "logs"
    logs.mkdir()
    (logs / "a-huge").touch()
    os.truncate(logs / "a-huge", 1 << 40)  # sparse
    (logs / "b-small").write_bytes(b"small")
    (logs / "c-large").write_bytes(bytes(2000))
    summary = agent.get_tree(str(logs), tmp_path / "out", max_bytes=1000, max_entries=100)
    assert summary == GetSummary(
        entries=2, size_bytes=5, skipped_special=0, skipped_large=2, skipped_unreadable=0, changed=0, truncated=False
    )
    assert {name: (tmp_path / "out" / name).read_bytes() for name in os.listdir(tmp_path / "out")} == {"b-small": b"small"}
    assert agent.get_tree(str(logs), tmp_path / "cut", max_bytes=1000, max_entries=2).truncated


def test_files_that_change_while_they_are_read_do_not_break_the_download(agent: Channel, environment: Environment) -> None:
    logs = environment.folder / "logs"
    logs.mkdir()
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            for i in range(50):
                (logs / str(i)).write_bytes(os.urandom(50_000))
            for i in range(0, 50, 3):
                (logs / str(i)).unlink()

    worker = threading.Thread(target=churn)
    worker.start()
    try:
        for _ in range(5):
            with agent.get(str(logs), max_bytes=1 << 30, max_entries=1000) as download:
                for entry in download:
                    assert sum(map(len, iter(download.read, b""))) == entry.size
            assert not download.summary.truncated
    finally:
        stop.set()
        worker.join()


def test_a_download_that_is_given_up_leaves_the_channel(agent: Channel, environment: Environment) -> None:
    (environment.folder / "big").write_bytes(bytes(20_000_000))
    for _ in range(3):
        with agent.get(f"{environment.folder}/big", max_bytes=1 << 30, max_entries=1) as download:
            assert next(iter(download)).size == 20_000_000
            assert download.read(10) == bytes(10)
    assert agent.exec("true").ok


def test_read_file_tells_what_is_wrong(agent: Channel, environment: Environment) -> None:
    folder = environment.folder
    (folder / "reward.txt").write_bytes(b"0.5\n")
    (folder / "link").symlink_to("reward.txt")
    os.mkfifo(folder / "fifo")
    assert agent.read_file(f"{folder}/reward.txt", max_bytes=4) == b"0.5\n"
    assert agent.read_file(f"{folder}/reward.txt", max_bytes=3) == TooLarge(f"{folder}/reward.txt", 4)
    assert agent.read_file(f"{folder}/none", max_bytes=3) == Missing(f"{folder}/none")
    assert agent.read_file(f"{folder}/reward.txt/x", max_bytes=3) == Missing(f"{folder}/reward.txt/x")
    assert agent.read_file(f"{folder}/link", max_bytes=3) == NotRegular(f"{folder}/link", "link")
    assert agent.read_file(f"{folder}/fifo", max_bytes=3) == NotRegular(f"{folder}/fifo", "other")
    assert agent.read_file(str(folder), max_bytes=3) == NotRegular(str(folder), "dir")
    (folder / "empty").touch()
    assert agent.read_file(f"{folder}/empty", max_bytes=0) == b""


def test_a_missing_path_is_an_error_of_get_itself(agent: Channel) -> None:
    with pytest.raises(EnvdError) as missing:
        agent.get("/no/such/path", **LIMITS)
    assert missing.value.kind == "missing"


def test_put_bytes_replaces_a_link_and_not_its_target(agent: Channel, environment: Environment) -> None:
    folder = environment.folder
    (folder / "victim").write_bytes(b"v")
    (folder / "reward.txt").symlink_to("victim")
    agent.put_bytes(b"1.0", f"{folder}/reward.txt", mode=0o600, owner=65534)
    assert agent.stat(f"{folder}/reward.txt") == Stat("file", 3, 0o600, 65534, 65534, int((folder / "reward.txt").stat().st_mtime))
    assert (folder / "victim").read_bytes() == b"v"
    agent.put_bytes(bytes(3_000_000), f"{folder}/big")
    assert (folder / "big").stat().st_size == 3_000_000


def test_mkdir_remove_and_empty(agent: Channel, environment: Environment) -> None:
    folder = environment.folder
    agent.mkdir(f"{folder}/logs/agent", mode=0o777, owner="nobody")
    assert ((folder / "logs").stat().st_mode & 0o777, (folder / "logs" / "agent").stat().st_mode & 0o777) == (0o755, 0o777)
    (folder / "logs" / "agent" / "x").mkdir()
    agent.mkdir(f"{folder}/logs/agent", mode=0o700)
    assert os.listdir(folder / "logs" / "agent") == ["x"]
    agent.empty(f"{folder}/logs/agent", mode=0o777)
    assert (os.listdir(folder / "logs" / "agent"), (folder / "logs" / "agent").stat().st_mode & 0o777) == ([], 0o777)
    assert [agent.remove(f"{folder}/logs") for _ in range(2)] == [True, False]
    assert agent.stat(f"{folder}/logs") is None
    (folder / "link").symlink_to("/etc")
    with pytest.raises(EnvdError) as refused:
        agent.mkdir(f"{folder}/link")
    assert refused.value.kind == "link"


def test_a_mount_point_is_emptied_in_place(environment: Environment) -> None:
    logs = environment.folder / "logs"
    logs.mkdir()
    environment.listen()
    environment.spawn(["unshare", "--mount", "sh", "-c", f'mount -t tmpfs x {logs} && exec "$@"', "-", *environment.envd()])
    agent, _ = environment.accept()
    assert agent.exec(f"mkdir -p {logs}/a/b && touch {logs}/a/b/c {logs}/.hidden").ok
    agent.empty(str(logs))
    assert agent.run(f"ls -A {logs}; mountpoint -q {logs} && echo mounted").stdout == b"mounted\n"


def test_usage_counts_what_is_there(agent: Channel, environment: Environment) -> None:
    folder = environment.folder / "logs"
    folder.mkdir()
    (folder / "file").write_bytes(bytes(100_000))
    (folder / "link").symlink_to("/usr")
    usage = agent.usage(str(folder))
    assert (usage.entries, usage.truncated, 100_000 <= usage.size_bytes < 200_000) == (3, False, True)
    assert agent.usage(str(folder), max_entries=1).truncated
