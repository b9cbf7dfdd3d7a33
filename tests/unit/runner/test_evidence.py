"""The archive of logs and artifacts: caps, links, secrets in long files, and a source that lies or dies."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from seatrial.contract import ArtifactInput
from seatrial_runner.channel import ChannelError, Entry, EnvdError, EnvironmentExited, GetSummary
from seatrial_runner.evidence import DEFAULT_CAPS, Caps, EvidenceWriter, FailingSource, LocalSource, Source, _read_capped, collect_artifacts
from seatrial_runner.redact import Redactor
from seatrial_runner.tarstream import stays_inside


class Given(NamedTuple):
    """A source of prepared entries; ``error`` is raised at their end."""

    entries: dict[str, tuple[Entry, bytes]]
    error: ChannelError | None = None
    summary: GetSummary = GetSummary(0, 0, 0, 0, 0, 0, False)

    def get(self, path: str, *, max_bytes: int, max_entries: int, max_file_bytes: int | None = None) -> GivenItems:
        if not self.entries:
            raise EnvdError("missing", f"nothing at {path}")
        return GivenItems(self)


class Many:
    """A source of empty files, made as they are read."""

    summary = GetSummary(0, 0, 0, 0, 0, 0, False)

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def get(self, path: str, *, max_bytes: int, max_entries: int, max_file_bytes: int | None = None) -> Many:
        return self

    def __iter__(self) -> Iterator[Entry]:
        yield Entry(".", "dir", 0o777, 0, 1, "")
        for name in self._names:
            yield Entry(name, "file", 0o644, 0, 1, "")

    def read(self, max_bytes: int = 65536) -> bytes:
        return b""

    def close(self) -> None:
        """Nothing to close."""


class GivenItems:
    def __init__(self, given: Given) -> None:
        self._given = given
        self._data = io.BytesIO()

    def __iter__(self) -> Iterator[Entry]:
        for entry, data in self._given.entries.values():
            self._data = io.BytesIO(data)
            yield entry
        if self._given.error is not None:
            raise self._given.error

    def read(self, max_bytes: int = 65536) -> bytes:
        return self._data.read(max_bytes)

    @property
    def summary(self) -> GetSummary:
        return self._given.summary

    def close(self) -> None:
        """Nothing to close."""


def given(*entries: tuple[Entry, bytes], error: ChannelError | None = None) -> Given:
    top = (Entry(".", "dir", 0o777, 0, 1, ""), b"")
    return Given({str(number): entry for number, entry in enumerate((top, *entries))}, error)


def file(name: str, data: bytes, *, mode: int = 0o644, size: int | None = None) -> tuple[Entry, bytes]:
    return Entry(name, "file", mode, len(data) if size is None else size, 1, ""), data


def link(name: str, target: str) -> tuple[Entry, bytes]:
    return Entry(name, "link", 0o777, 0, 1, target), b""


class Archive(NamedTuple):
    files: dict[str, bytes]
    modes: dict[str, int]
    links: dict[str, str]
    truncated: tuple[str, ...]


def archive_of(
    source: Source, *, caps: Caps = DEFAULT_CAPS, secrets: tuple[str, ...] = (), out_of_time: bool = False, as_artifact: bool = False
) -> Archive:
    target = io.BytesIO()
    writer = EvidenceWriter(target, redactor=Redactor(secrets), caps=caps, out_of_time=lambda: out_of_time)
    if as_artifact:
        writer.add_artifact(source, "/data", "data", [])
    else:
        writer.add_logs(source, "/logs/agent", "agent")
    evidence = writer.finish()
    packed = target.getvalue()
    assert (evidence.sha256, evidence.size_bytes) == (hashlib.sha256(packed).hexdigest(), len(packed))
    files, modes, links = {}, {}, {}
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(packed))) as tar:
        for member in tar:
            modes[member.name] = member.mode
            if member.issym():
                links[member.name] = member.linkname
            elif (found := tar.extractfile(member)) is not None:
                files[member.name] = found.read()
    return Archive(files, modes, links, evidence.truncated)


def test_the_same_files_give_the_same_bytes() -> None:
    assert archive_of(given(file("a", b"x"))) == archive_of(given(file("a", b"x")))


def test_set_id_bits_are_dropped_and_x_bits_kept() -> None:
    archive = archive_of(given(file("tool", b"x", mode=0o6755), file("plain", b"x", mode=0o600)))
    assert archive.modes == {"agent": 0o755, "agent/tool": 0o755, "agent/plain": 0o644}


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "a//b", ".", "", "a\0b"])
def test_names_that_could_lead_outside_are_left_out(name: str) -> None:
    assert archive_of(given(file(name, b"x"))).files == {}


@pytest.mark.parametrize(("target", "kept"), [("b", True), ("sub/b", True), ("../b", False), ("/etc/passwd", False), ("", False)])
def test_links_are_kept_if_they_stay_inside(target: str, kept: bool) -> None:
    assert archive_of(given(link("a", target))).links == ({"agent/a": target} if kept else {})


@pytest.mark.parametrize(
    ("name", "target", "kept"),
    [
        pytest.param("d/a", "../b", True, id="up first"),
        pytest.param("d/a", ".././b", True, id="up first, and a dot"),
        pytest.param("d/a", "../../b", False, id="too far up"),
        pytest.param("d/a", "b/../c", False, id="up behind what may be a link"),
        pytest.param("d/a", "here/here/../../../../etc", False, id="up behind links"),
    ],
)
def test_a_link_goes_up_from_its_own_folder_only(name: str, target: str, kept: bool) -> None:
    assert stays_inside(name, target) is kept


def test_long_logs_keep_head_marker_and_tail() -> None:
    data = b"H" * 600 + b"M" * 800 + b"T" * 600
    archive = archive_of(given(file("log", data)), caps=Caps(file_bytes=1000))
    assert archive.files["agent/log"] == b"H" * 500 + b"\n[... 1000 bytes left out ...]\n" + b"T" * 500
    assert archive.truncated == ("agent/log: cut from 2000 bytes",)


def test_the_total_is_bounded_and_what_is_missing_is_named() -> None:
    archive = archive_of(given(*(file(f"log{number}", b"x" * 400) for number in range(5))), caps=Caps(total_bytes=1000))
    assert sum(len(data) for data in archive.files.values()) < 1000 + 5 * 100
    assert archive.truncated[0] == "agent/log2: cut from 400 bytes"


def test_too_many_entries_end_the_reading_and_are_named() -> None:
    archive = archive_of(given(*(file(f"log{number}", b"") for number in range(100))), caps=Caps(entries=3))
    assert (set(archive.files), archive.truncated) == ({"agent/log0", "agent/log1"}, ("agent: the rest is left out: too many entries",))


def test_an_archive_of_many_long_names_fits_into_little_memory(tmp_path: Path) -> None:
    names = [f"{'d' * 250}/{'e' * 250}/{number}" for number in range(2000)]
    tracemalloc.start()
    try:
        with (tmp_path / "one").open("w+b") as one, (tmp_path / "two").open("w+b") as two:
            writer = EvidenceWriter(one, redactor=Redactor())
            writer.add_artifact(Many(names), "/data", "data", [])
            writer.finish()
            one.flush()
            again = EvidenceWriter(two, redactor=Redactor())
            again.copy(one.name)
            again.finish()
        kept = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert kept < sum(map(len, names)), kept


def test_at_most_twenty_losses_are_named() -> None:
    archive = archive_of(given(*(file(f"log{number}", b"xx") for number in range(100))), caps=Caps(file_bytes=1))
    assert len(archive.truncated) == 20


def test_without_time_nothing_more_is_read() -> None:
    times = iter([False, True])
    target = io.BytesIO()
    writer = EvidenceWriter(target, redactor=Redactor(), out_of_time=lambda: next(times))
    writer.add_logs(given(file("log", b"x")), "/logs/agent", "agent")
    assert writer.finish().truncated == ("agent: the rest is left out: no time",)


def test_without_time_nothing_is_asked_of_an_environment_that_may_not_answer() -> None:
    missing = Given({})
    assert archive_of(missing, out_of_time=True).truncated == ("agent: left out: no time",)
    assert archive_of(missing).truncated == ("agent: nothing at /logs/agent",)


def test_what_envd_left_out_is_named() -> None:
    source = given(file("log", b"x"))._replace(summary=GetSummary(1, 1, 4, 2, 3, 0, True))
    assert archive_of(source).truncated == (
        "agent: 2 files are too large to read",
        "agent: 3 files cannot be read",
        "agent: the rest is left out: too many entries, or too deep",
    )


def test_a_file_that_shrank_is_no_broken_archive() -> None:
    assert archive_of(given(file("log", b"ab", size=10))).files == {"agent/log": b"ab"}


def test_long_artifacts_are_whole_and_their_secrets_blanked() -> None:
    # The value lies across the border of two reads.
    data = b"x" * (65536 - 4) + b"sk-canary-1" + b"y" * 100_000
    archive = archive_of(given(file("big", data)), caps=Caps(file_bytes=1000), secrets=("sk-canary-1",), as_artifact=True)
    assert archive.files["artifacts/data/big"] == data.replace(b"sk-canary-1", b"*" * 11)


def test_a_long_artifact_that_shrank_is_filled_up() -> None:
    archive = archive_of(given(file("big", b"x" * 2000, size=3000)), caps=Caps(file_bytes=1000), as_artifact=True)
    assert archive.files["artifacts/data/big"] == b"x" * 2000 + b"\0" * 1000


def test_an_artifact_that_does_not_fit_is_left_out_and_named() -> None:
    archive = archive_of(given(file("big", b"x" * 3000)), caps=Caps(file_bytes=1000, total_bytes=2000), as_artifact=True)
    assert (archive.files, archive.truncated) == ({}, ("artifacts/data/big: left out, 3000 bytes are too many",))


def test_an_environment_that_dies_meanwhile_costs_the_rest_only() -> None:
    archive = archive_of(FailingSource(given(file("log", b"x"), error=EnvironmentExited("gone"))))
    assert (archive.files, archive.truncated) == ({"agent/log": b"x"}, ("agent: the environment exited",))


# --- artifacts -----------------------------------------------------------------------------------------------------------------------


def manifest_of(source: Source, *artifacts: tuple[str, str | None]) -> list[tuple[str, str]]:
    writer = EvidenceWriter(io.BytesIO(), redactor=Redactor())
    entries = [ArtifactInput(source=path, destination=destination, exclude=[], service=None) for path, destination in artifacts]
    rows = collect_artifacts(writer, source, entries, conventional="/logs/artifacts", workdir="/work")
    return [(row["destination"], row["status"]) for row in rows]


@pytest.mark.conforms("H-71")
def test_places_are_claimed_in_order_and_overlaps_skipped() -> None:
    rows = manifest_of(given(file("x", b"")), ("/a/b", None), ("/a", None), ("/c", "a/b/d"), ("/a/bc", None), ("/a/b", "twice"))
    assert rows == [
        ("artifacts/logs/artifacts", "ok"),
        ("artifacts/a/b", "ok"),
        ("artifacts/a", "skipped"),
        ("artifacts/a/b/d", "skipped"),
        ("artifacts/a/bc", "ok"),
        ("artifacts/twice", "ok"),
    ]


def test_an_entry_that_names_the_conventional_folder_replaces_the_implicit_one() -> None:
    assert manifest_of(given(file("x", b"")), ("/logs/artifacts", "mine")) == [("artifacts/mine", "ok")]


def test_an_empty_conventional_folder_is_empty() -> None:
    assert manifest_of(given()) == [("artifacts/logs/artifacts", "empty")]


def test_a_source_that_is_a_link_is_not_followed() -> None:
    source = Given({"0": link("a", "/etc/passwd")})
    assert manifest_of(source, ("/a", None))[1] == ("artifacts/a", "failed")


# --- the verifier's own mounts -------------------------------------------------------------------------------------------------------


def test_local_logs_are_read_without_following_links(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    (logs / "sub").mkdir(parents=True)
    (logs / "a").write_bytes(b"a")
    (logs / "sub/b").write_bytes(b"b")
    (logs / "out").symlink_to("/etc")
    (logs / "in").symlink_to("sub/b")
    os.mkfifo(logs / "pipe")
    writer = EvidenceWriter(target := io.BytesIO(), redactor=Redactor())
    writer.add_logs(LocalSource([str(logs)]), str(logs), "agent")
    writer.finish()
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(target.getvalue()))) as tar:
        found = {member.name: member.linkname for member in tar}
    assert found == {"agent": "", "agent/a": "", "agent/in": "sub/b", "agent/sub": "", "agent/sub/b": ""}


def test_local_reading_is_limited_to_the_log_folders(tmp_path: Path) -> None:
    with pytest.raises(EnvdError):
        LocalSource([str(tmp_path / "logs")]).get("/etc", max_bytes=1, max_entries=1)


def test_a_very_deep_local_tree_is_cut(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(100):
        deep = deep / "d"
        deep.mkdir()
    writer = EvidenceWriter(io.BytesIO(), redactor=Redactor())
    writer.add_logs(LocalSource([str(tmp_path)]), str(tmp_path), "agent")
    assert writer.finish().truncated == ("agent: the rest is left out: too many entries, or too deep",)


class Bytes(io.BytesIO):
    """The reading half of a transfer."""

    def __iter__(self) -> Iterator[Entry]:  # type: ignore[override]
        yield from ()

    @property
    def summary(self) -> GetSummary:
        raise AssertionError("not asked for")


@pytest.mark.parametrize("shift", range(14))
def test_no_part_of_a_secret_is_left_where_a_long_file_was_cut(shift: int) -> None:
    secret = b"sk-canary-123"
    data = b"." * (50 - shift) + secret + b"." * 200 + secret + b"." * (50 - shift)
    kept, cut = _read_capped(Bytes(data), len(data), 100, Redactor([secret.decode(), "short-one"]))
    assert cut
    head, _, tail = kept.partition(b"\n[... ")
    tail = tail.partition(b"...]\n")[2]
    assert set(head + tail) <= set(b".*")
    assert len(head) == len(tail) == 50 - (len(secret) - 1)
