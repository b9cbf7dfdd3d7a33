from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from seatrial.taskpkg.capture import PackageError, capture, inventory, read_file
from seatrial.taskpkg.check import check_task
from seatrial.taskpkg.extract import ArchiveError, extract_archive
from seatrial.taskpkg.harborpkg import pack_harbor
from seatrial.taskpkg.limits import DEFAULT
from seatrial.taskpkg.materialise import materialise_links
from seatrial.taskpkg.pack import pack_task

MakeTask = Callable[..., Path]


def modes(root: Path) -> dict[str, tuple[int, bytes | str | None]]:
    """Permission bits and content of everything below ``root``."""
    found: dict[str, tuple[int, bytes | str | None]] = {}
    for folder, names, files in os.walk(root):
        for name in (*names, *files, "."):
            path = Path(folder, name)
            content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
            found[str(path.relative_to(root))] = (path.lstat().st_mode & 0o7777, content)
    return found


def extract(archive: Path, target: Path) -> Path:
    with archive.open("rb") as stream:
        result = extract_archive(stream, target)
    return target / result.root_name


@pytest.mark.conforms("N-21", "N-22")
def test_the_packed_bytes_are_those_of_the_published_vector(tmp_path: Path) -> None:
    root = tmp_path / "t"
    (root / "environment").mkdir(parents=True)
    (root / "tests").mkdir()
    (root / "environment/Dockerfile").write_text("FROM alpine:3.20\n")
    (root / "instruction.md").write_text("Do it.\n")
    (root / "task.toml").write_text('schema_version = "1.4"\n')
    (root / "tests/test.sh").write_text("#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
    os.symlink("test.sh", root / "tests/run.sh")
    for path in (root, root / "environment", root / "tests"):
        path.chmod(0o755)
    for name in ("environment/Dockerfile", "instruction.md", "task.toml"):
        (root / name).chmod(0o644)
    (root / "tests/test.sh").chmod(0o4755)
    packed = pack_task(root, tmp_path / "archive")
    data = (tmp_path / "archive").read_bytes()
    assert data[:10] == bytes.fromhex("1f8b08000000000002ff")
    tar = gzip.decompress(data)
    assert (len(tar), hashlib.sha256(tar).hexdigest()) == (10240, "df95ba50ea2b2555ca936cbcf0ed5227be575a47f397b024d1a1c702a0925144")
    assert packed == (tmp_path / "archive", hashlib.sha256(data).hexdigest(), len(data), 8)
    # The deflated bytes depend on the zlib; those of 1.2.13 and 1.3 agree.
    if sys.platform == "linux" and len(data) == 340:
        assert packed.sha256 == "56847ac18d841fab4c5e296e9038278acb6aaf41589f905aa68897ebb2a7d9d0"


@pytest.mark.conforms("N-21", "N-22", "N-24", "N-25")
def test_the_archive_is_what_a_standard_tar_writer_makes_in_the_order_of_paths(tmp_path: Path, make_task: MakeTask) -> None:
    odd = {
        "tests/é": "1",
        "tests/a-b": "2",
        "tests/a.txt": "3",
        "tests/a/x": "4",
        "environment/" + "long/" * 40 + "file": "5",
        "solution/": "",
    }
    task = make_task("Task 1", {**odd, "tests/link": "->" + "a/" + "../a/" * 30 + "x"})
    pack_task(task, tmp_path / "archive")
    expected = io.BytesIO()
    with tarfile.open(fileobj=expected, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted([task, *task.rglob("*")], key=str):
            entry = tar.gettarinfo(path, arcname=f"{task.name}{str(path).removeprefix(str(task))}")
            entry.uid = entry.gid = entry.mtime = 0
            entry.uname = entry.gname = ""
            with path.open("rb") if entry.isreg() else io.BytesIO() as content:
                tar.addfile(entry, content)
    assert gzip.decompress((tmp_path / "archive").read_bytes()) == expected.getvalue()


@pytest.mark.conforms("N-21")
def test_two_packs_of_one_tree_are_equal_whatever_times_and_owners_are(tmp_path: Path, make_task: MakeTask) -> None:
    task = make_task(files={"environment/data.bin": os.urandom(700_000)})
    first = pack_task(task, tmp_path / "first")
    for path in task.rglob("*"):
        os.utime(path, (1, 1))
    second = pack_task(task, tmp_path / "second")
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    assert (first.sha256, first.size_bytes, first.entries) == (second.sha256, second.size_bytes, second.entries)


@pytest.mark.conforms("N-23", "N-24", "N-25", "N-26")
def test_a_round_trip_keeps_modes_dotfiles_ignored_files_empty_folders_and_links(
    tmp_path: Path,
    make_task: MakeTask,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = {".gitignore": "*.log\n", "tests/a.log": "kept", ".hidden/x": "y", "environment/empty/": "", "tests/run.sh": "->test.sh"}
    task = make_task("My_Task", files)
    (task / "tests/test.sh").chmod(0o6755)
    (task / "tests/a.log").chmod(0o600)
    (task / "environment/empty").chmod(0o1777)
    (task / ".hidden").chmod(0o500)
    for name in ("chown", "lchown", "fchown"):
        monkeypatch.setattr(os, name, lambda *_: pytest.fail("chown was called"))
    pack_task(task, tmp_path / "archive")
    copy = extract(tmp_path / "archive", tmp_path / "out")
    assert copy.name == "My_Task"
    assert modes(copy) == modes(task)
    assert {path.lstat().st_uid for path in copy.rglob("*")} == {os.getuid()}
    with tarfile.open(tmp_path / "archive") as tar:
        assert {(entry.uid, entry.gid, entry.uname, entry.gname) for entry in tar} == {(0, 0, "", "")}


@pytest.mark.conforms("N-27")
@pytest.mark.parametrize(
    ("name", "target"),
    [("absolute", "/etc/passwd"), ("escaping", "../../x"), ("dangling", "nowhere"), ("cyclic", "."), ("loop", "x")],
)
def test_a_bad_link_is_refused_by_name(tmp_path: Path, make_task: MakeTask, name: str, target: str) -> None:
    task = make_task(name, {"tests/x": f"->{target}"})
    with pytest.raises(PackageError, match=f"^Symlink escapes task root: {name}/tests/x$"):
        pack_task(task, tmp_path / "archive")
    assert not (tmp_path / "archive").exists()


@pytest.mark.conforms("N-29")
def test_a_link_between_folders_is_packed_as_a_link(tmp_path: Path, make_task: MakeTask) -> None:
    task = make_task(files={"tests/data": "->../environment/data", "environment/data/x": "1"})
    pack_task(task, tmp_path / "archive")
    copy = extract(tmp_path / "archive", tmp_path / "out")
    assert os.readlink(copy / "tests/data") == "../environment/data"


@pytest.mark.conforms("N-30")
def test_special_files_are_refused_and_hard_links_become_two_files(tmp_path: Path, make_task: MakeTask) -> None:
    task = make_task("hard", {"environment/a": "same"})
    os.link(task / "environment/a", task / "environment/b")
    pack_task(task, tmp_path / "archive")
    with tarfile.open(tmp_path / "archive") as tar:
        assert [(entry.name, entry.type, entry.size) for entry in tar if entry.name[-2:] in ("/a", "/b")] == [
            ("hard/environment/a", tarfile.REGTYPE, 4),
            ("hard/environment/b", tarfile.REGTYPE, 4),
        ]
    os.mkfifo(task / "environment/pipe")
    with pytest.raises(PackageError, match=r"^Unsupported task entry: hard/environment/pipe$"):
        pack_task(task, tmp_path / "second")


def replace_by_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.conforms("N-31")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda file: file.write_text("other"), "Task changed during capture", id="same-size"),
        pytest.param(lambda file: file.write_text("longer than before"), "Task grew during capture|Task changed", id="longer"),
        pytest.param(lambda file: file.write_text("x"), "Task changed during capture", id="shorter"),
        pytest.param(lambda file: (file.unlink(), file.write_text("12345")), "Task changed during capture", id="replaced"),
        pytest.param(lambda file: (file.unlink(), file.symlink_to("/etc/passwd")), "Task changed during capture", id="now-a-link"),
        pytest.param(replace_by_fifo, "Task changed during capture", id="now-a-fifo"),
        pytest.param(lambda file: file.unlink(), "Task changed during capture", id="gone"),
    ],
)
def test_a_file_that_changes_after_it_was_listed_is_an_error(make_task: MakeTask, change: Callable[[Path], object], message: str) -> None:
    task = make_task(files={"environment/data": "12345"})
    listed = inventory(task)
    entry = next(entry for entry in listed.entries if entry.path.endswith("/data"))
    assert b"".join(read_file(listed, entry)) == b"12345"
    os.utime(task / "environment/data", ns=(0, entry.modified_ns - 1))
    listed = inventory(task)
    entry = next(entry for entry in listed.entries if entry.path.endswith("/data"))
    change(task / "environment/data")
    with pytest.raises(PackageError, match=message):
        list(read_file(listed, entry))


@pytest.mark.conforms("N-31")
def test_a_file_that_grows_while_it_is_read_is_an_error(make_task: MakeTask) -> None:
    task = make_task(files={"environment/data": bytes(3_000_000)})
    listed = inventory(task)
    entry = next(entry for entry in listed.entries if entry.path.endswith("/data"))
    pieces = read_file(listed, entry)
    next(pieces)
    with (task / "environment/data").open("ab") as file:
        file.write(b"more")
    with pytest.raises(PackageError, match=r"^Task grew during capture: hello/environment/data$"):
        list(pieces)


@pytest.mark.conforms("N-31")
def test_a_new_file_during_packing_fails_and_removes_the_archive(
    tmp_path: Path,
    make_task: MakeTask,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = make_task()
    original = os.read

    def read_and_add(descriptor: int, size: int) -> bytes:
        (task / "new").touch()
        return original(descriptor, size)

    monkeypatch.setattr("seatrial.taskpkg.capture.os.read", read_and_add)
    with pytest.raises(PackageError, match=r"^Task changed during capture"):
        pack_task(task, tmp_path / "archive")
    assert not (tmp_path / "archive").exists()


def test_an_existing_file_is_never_overwritten(tmp_path: Path, make_task: MakeTask) -> None:
    (tmp_path / "archive").write_text("mine")
    with pytest.raises(FileExistsError):
        pack_task(make_task(), tmp_path / "archive")
    assert (tmp_path / "archive").read_text() == "mine"


def test_a_write_error_of_the_compressing_thread_reaches_the_caller(
    tmp_path: Path, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(files={"environment/data": os.urandom(9_000_000)})
    full = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr("seatrial.taskpkg.pack.os", SimpleNamespace(**vars(os) | {"open": lambda *_: full, "unlink": lambda _: None}))
    with pytest.raises(OSError, match="No space left"):
        pack_task(task, tmp_path / "archive")


def test_the_root_may_have_another_name_than_its_folder(tmp_path: Path, make_task: MakeTask) -> None:
    pack_task(make_task("a: b"), tmp_path / "archive", root_name="a-b")
    assert extract(tmp_path / "archive", tmp_path / "out") == tmp_path / "out/a-b"


@pytest.mark.parametrize("name", ["task_template", "Task_Template", "a:b", "a ", "a%"])
def test_a_reserved_or_unsafe_root_is_refused(tmp_path: Path, make_task: MakeTask, name: str) -> None:
    with pytest.raises(PackageError, match="Task root must be a real, non-reserved directory"):
        pack_task(make_task(name), tmp_path / "archive")


@pytest.mark.conforms("N-194")
def test_names_that_differ_only_in_case_are_refused(tmp_path: Path, make_task: MakeTask) -> None:
    task = make_task(files={"tests/Data/x": "1", "tests/data/y": "2"})
    with pytest.raises(PackageError, match=r"^Duplicate case-folded archive path: hello/tests/data$"):
        pack_task(task, tmp_path / "archive")


@pytest.mark.conforms("N-61")
@pytest.mark.parametrize(
    ("limits", "message"),
    [
        pytest.param(DEFAULT._replace(entries=6), "Too many task entries", id="entries"),
        pytest.param(DEFAULT._replace(depth=1), "Directories nested too deeply: hello/environment/Dockerfile", id="depth"),
        pytest.param(DEFAULT._replace(file_bytes=40), "Task payload exceeds limits: hello/tests/test.sh", id="file"),
        pytest.param(DEFAULT._replace(payload_bytes=80), "Task payload exceeds limits", id="payload"),
    ],
)
def test_a_task_over_a_limit_is_refused(tmp_path: Path, make_task: MakeTask, limits: object, message: str) -> None:
    with pytest.raises(PackageError, match=message):
        pack_task(make_task(), tmp_path / "archive", limits=limits)  # type: ignore[arg-type]


@pytest.mark.conforms("N-61")
def test_the_limits_are_the_documented_ones() -> None:
    assert DEFAULT == (100_000, 4 * 2**30, 16 * 2**30, 2**20, 8, 2**20, 256 * 2**10, 2**20, 16 * 2**20, 128, 4096, 200)
    assert (DEFAULT.expanded_bytes, DEFAULT.compressed_bytes, DEFAULT.records) == (16 * 2**30 + 2**28, 16 * 2**30 + 2**28 + 2**26, 200_000)


@pytest.mark.conforms("N-8")
def test_a_captured_copy_is_the_same_task(tmp_path: Path, make_task: MakeTask) -> None:
    task = make_task(files={"tests/run.sh": "->test.sh", "environment/empty/": ""})
    (task / "environment/empty").chmod(0o500)
    before = modes(task)
    (tmp_path / "private").mkdir()
    copy = capture(task, tmp_path / "private")
    assert modes(copy.source) == before == modes(task)
    assert check_task(copy.source).digest == check_task(task).digest


# --- extraction -----------------------------------------------------------------------------------------------------------------------


class OneWay(io.RawIOBase):
    """A stream as a network gives it."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._data.read(min(size, 100_000))


@pytest.mark.conforms("N-65")
@pytest.mark.parametrize("stream", [io.BytesIO, OneWay], ids=["seekable", "one-way"])
def test_nothing_is_extracted_before_the_checksum_matched(
    tmp_path: Path, make_task: MakeTask, stream: Callable[[bytes], io.BytesIO]
) -> None:
    packed = pack_task(make_task(), tmp_path / "archive")
    data = packed.path.read_bytes()
    with pytest.raises(ArchiveError, match=r"^Downloaded object checksum mismatch$") as caught:
        extract_archive(stream(data), tmp_path / "out", sha256="0" * 64)
    assert (caught.value.kind, list((tmp_path / "out").iterdir())) == ("corrupt", [])
    assert extract_archive(stream(data), tmp_path / "out", sha256=packed.sha256) == (
        "hello",
        packed.entries,
        sum(file.stat().st_size for file in (tmp_path / "hello").rglob("*") if file.is_file()),
        packed.size_bytes,
        packed.sha256,
    )


@pytest.mark.conforms("N-62")
@pytest.mark.parametrize("sha256", [None, "0" * 64], ids=["unchecked", "checked"])
def test_a_download_over_the_limit_is_refused(tmp_path: Path, sha256: str | None) -> None:
    limits = DEFAULT._replace(payload_bytes=20_000 - 2**28)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        folder = tarfile.TarInfo("t")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    padded = archive.getvalue() + bytes(limits.compressed_bytes)
    with pytest.raises(ArchiveError, match=r"^Downloaded object exceeds byte limit$") as caught:
        extract_archive(OneWay(padded), tmp_path / "out", limits=limits, sha256=sha256)  # type: ignore[arg-type]
    assert (caught.value.kind, list((tmp_path / "out").iterdir())) == ("unsafe", [])


@pytest.mark.conforms("N-197")
def test_modes_are_restored_last_children_before_parents(tmp_path: Path, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task("t", {"tests/a/b/x": "1"})
    for name in ("tests/a/b", "tests/a", "tests"):
        (task / name).chmod(0o500)
    pack_task(task, tmp_path / "archive")
    changed: list[str] = []
    original = os.chmod

    def record(path: str | int, mode: int) -> None:
        if isinstance(path, str):
            assert (tmp_path / "out/t/tests/test.sh").exists()
            changed.append(path.removeprefix(f"{tmp_path}/out/"))
        original(path, mode)

    monkeypatch.setattr(os, "chmod", record)
    extract(tmp_path / "archive", tmp_path / "out")
    assert [name for name in changed if "tests" in name] == ["t/tests/a/b", "t/tests/a", "t/tests"]
    assert changed[-1] == "t"


@pytest.mark.conforms("N-197")
@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_volume_that_squashes_modes_is_noticed(tmp_path: Path, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    task = make_task("t")
    (task / "tests/test.sh").chmod(0o4755 if what == "file" else 0o644)
    (task / "tests").chmod(0o755 if what == "file" else 0o1777)
    pack_task(task, tmp_path / "archive")
    monkeypatch.setattr(os, "chmod", lambda *_: None)
    with pytest.raises(ArchiveError, match=f"^Unable to restore archive {what} permissions") as caught:
        extract(tmp_path / "archive", tmp_path / "out")
    assert caught.value.kind == "unsafe"
    assert list((tmp_path / "out").iterdir()) == []


def test_a_target_that_holds_the_root_already_is_left_alone(tmp_path: Path, make_task: MakeTask) -> None:
    packed = pack_task(make_task("t"), tmp_path / "archive")
    (tmp_path / "out/t").mkdir(parents=True)
    (tmp_path / "out/t/mine").touch()
    with pytest.raises(FileExistsError):
        extract(packed.path, tmp_path / "out")
    assert (tmp_path / "out/t/mine").exists()


def test_a_full_disk_is_no_fault_of_the_archive(tmp_path: Path, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack_task(make_task("t"), tmp_path / "archive")

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("seatrial.taskpkg.extract.os.write", full)
    with pytest.raises(OSError, match="No space left") as caught:
        extract(packed.path, tmp_path / "out")
    assert not isinstance(caught.value, ArchiveError)
    assert list((tmp_path / "out").iterdir()) == []


def test_the_extractor_needs_the_standard_library_only() -> None:
    source = Path(__file__).parents[3] / "operator" / "src"
    program = (
        f"import sys; sys.path.insert(0, {str(source)!r})\n"
        "import seatrial.taskpkg.extract\n"
        "own = {name.split('.')[0] for name in sys.modules} - set(sys.stdlib_module_names) - {'seatrial', '__main__'}\n"
        "print(sorted(own))"
    )
    run = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


@pytest.mark.parametrize("size_mib", [300])
def test_memory_stays_below_64_mib_for_a_large_task(tmp_path: Path, make_task: MakeTask, size_mib: int) -> None:
    task = make_task("big")
    with (task / "environment/data").open("wb") as file:
        file.truncate(size_mib * 2**20)
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from seatrial.taskpkg.pack import pack_task\n"
        "from seatrial.taskpkg.extract import extract_archive\n"
        "base = Path(sys.argv[1])\n"
        "packed = pack_task(base / 'big', base / 'archive')\n"
        "with packed.path.open('rb') as stream:\n"
        "    print(extract_archive(stream, base / 'out', sha256=packed.sha256).payload_bytes)\n"
        # Not ru_maxrss: it starts with the memory of the process that started this one.
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))\n"
    )
    run = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    payload, peak_kib = map(int, run.stdout.split())
    assert payload > size_mib * 2**20
    assert peak_kib < 64 * 1024


# --- Harbor's own package format and links --------------------------------------------------------------------------------------------


@pytest.mark.conforms("H-27")
def test_harbors_package_holds_the_files_of_the_digest_with_plain_modes(tmp_path: Path, make_task: MakeTask) -> None:
    task = make_task(files={"README.md": "r\n", "LICENSE": "l\n", "tests/x.pyc": "c", "solution/solve.sh": "s\n", "environment/empty/": ""})
    (task / "solution/solve.sh").chmod(0o710)
    digest = pack_harbor(task, tmp_path / "dist.tar.gz")
    assert digest == check_task(task).digest
    with tarfile.open(tmp_path / "dist.tar.gz") as tar:
        entries = [(entry.name, entry.mode, entry.uid, entry.gid, entry.uname, entry.mtime) for entry in tar]
    assert entries == [
        ("README.md", 0o644, 0, 0, "", 0),
        ("environment/Dockerfile", 0o644, 0, 0, "", 0),
        ("instruction.md", 0o644, 0, 0, "", 0),
        ("solution/solve.sh", 0o755, 0, 0, "", 0),
        ("task.toml", 0o644, 0, 0, "", 0),
        ("tests/test.sh", 0o644, 0, 0, "", 0),
    ]


def test_links_become_copies_of_what_they_name(make_task: MakeTask) -> None:
    links = {"tests/data": "->../environment/data", "environment/data/again": "->../../tests/test.sh", "tests/alias": "->data/x"}
    task = make_task(files={"environment/data/x": "1", **links})
    assert materialise_links(task) == 3
    assert not [path for path in task.rglob("*") if path.is_symlink()]
    assert (task / "tests/data/x").read_text() == (task / "tests/alias").read_text() == "1"
    assert (task / "tests/data/again").read_bytes() == (task / "tests/test.sh").read_bytes()


@pytest.mark.parametrize(
    "links",
    [
        pytest.param({"tests/x": "->/etc/passwd"}, id="absolute"),
        pytest.param({"tests/x": "->../../.."}, id="escaping"),
        pytest.param({"tests/x": "->nowhere"}, id="dangling"),
        pytest.param({"tests/x": "->y", "tests/y": "->x"}, id="loop"),
        pytest.param({"tests/a/x": "->../b", "tests/b/x": "->../a"}, id="folders-that-hold-each-other"),
    ],
)
def test_links_that_cannot_be_copied_are_refused_and_kept(make_task: MakeTask, links: dict[str, str]) -> None:
    task = make_task(files=links)
    before = modes(task)
    with pytest.raises(PackageError):
        materialise_links(task)
    assert modes(task) == before
