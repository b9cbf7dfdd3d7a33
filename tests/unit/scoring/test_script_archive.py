"""The archive of a metric script and its packages: what is packed, and what is never unpacked."""

from __future__ import annotations

import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from seatrial.scoring import script_archive
from seatrial.scoring.script_archive import ArchiveRefused, is_archive, pack, unpack

FILES = {"metric.py": b"import probe\n", "requirements.txt": b"probe==1.0\n", "modules/probe/__init__.py": b"ANSWER = 42\n"}


def archive(folder: Path, files: Mapping[str, bytes], *, kind: int = stat.S_IFREG) -> Path:
    """A zip as anybody makes one."""
    target = folder / "given.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        for name, body in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (kind | 0o644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            made.writestr(info, body)
    return target


def refused(path: Path, folder: Path) -> str:
    folder.mkdir()
    with pytest.raises(ArchiveRefused) as caught:
        unpack(path, folder)
    return str(caught.value)


def test_the_same_files_are_the_same_bytes_and_come_back(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_bytes(FILES["modules/probe/__init__.py"])
    first, second, out = (tmp_path / name for name in ("first.zip", "second.zip", "out"))
    pack(FILES, first)
    pack({**dict(reversed(FILES.items())), "modules/probe/__init__.py": tmp_path / "probe.py"}, second)
    assert first.read_bytes() == second.read_bytes()
    assert is_archive(first)
    out.mkdir()
    unpack(first, out)
    assert {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()} == FILES


@pytest.mark.parametrize(
    "name",
    [
        "../escape.py",
        "/etc/escape.py",
        "modules/../../escape.py",
        "modules/./escape.py",
        "modules//escape.py",
        "modules/a\\b.py",
        "modules/a\nb.py",
        "modules/",
        "modules",
        "other.py",
        "end.json",
        "modules/" + "a/" * 40 + "b.py",
        "modules/" + "a" * 300,
    ],
)
def test_a_name_that_no_package_has_is_refused_and_nothing_lies_outside(tmp_path: Path, name: str) -> None:
    assert "only a script and plain files" in refused(archive(tmp_path, {name: b"x"}), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["given.zip", "out"]


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFDIR])
def test_what_is_no_file_is_refused(tmp_path: Path, kind: int) -> None:
    assert "only a script and plain files" in refused(archive(tmp_path, {"modules/link": b"/etc/passwd"}, kind=kind), tmp_path / "out")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"metric.py": b"", "modules/a": b"", "modules/a/b": b""}, "one below another"),
        ({"modules/a/b": b"", "modules/a": b""}, "one below another"),
        ({"modules/a": b""}, "has no metric.py"),
        ({"metric.py": bytes(2048)}, "holds more than"),
        ({f"modules/{number}": b"" for number in range(9)}, "has more than 8 files"),
    ],
    ids=["below a file", "file over a folder", "no script", "bomb", "many"],
)
def test_an_archive_that_no_publication_makes_is_refused(
    tmp_path: Path, files: Mapping[str, bytes], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_archive, "MOST_UNPACKED", 1024)
    monkeypatch.setattr(script_archive, "MOST_FILES", 8)
    assert words in refused(archive(tmp_path, files), tmp_path / "out")


@pytest.mark.parametrize("damage", ["cut", "noise", "flipped", "encrypted", "twice"])
def test_damaged_bytes_are_refused(tmp_path: Path, damage: str) -> None:
    path = archive(tmp_path, {"metric.py": b"x = 1\n" * 100})
    data = bytearray(path.read_bytes())
    match damage:
        case "cut":
            del data[-30:]
        case "noise":
            data = bytearray(b"PK\x03\x04" + b"x" * 200)
        case "flipped":
            data[45] ^= 0xFF
        case "encrypted":
            data[data.index(b"PK\x01\x02") + 8] |= 1
        case "twice":
            with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as more:
                more.writestr("metric.py", b"y = 2\n")
            data = bytearray(path.read_bytes())
    path.write_bytes(data)
    assert refused(path, tmp_path / "out")


def test_more_than_a_pod_takes_is_not_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_archive, "MOST_UNPACKED", 1024)
    with pytest.raises(ArchiveRefused, match="more than"):
        pack({"metric.py": bytes(1025)}, tmp_path / "out.zip")
    monkeypatch.setattr(script_archive, "MOST_BYTES", 16)
    with pytest.raises(ArchiveRefused, match="larger than"):
        pack({"metric.py": b"x"}, tmp_path / "out.zip")


def test_a_script_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "metric.py").write_bytes(b"PK = 1\n")
    assert not is_archive(tmp_path / "metric.py")
