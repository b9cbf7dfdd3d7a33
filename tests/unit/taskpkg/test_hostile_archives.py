"""Archives that attack the extractor: each is refused with its own message, and nothing is written outside or left inside the target.

``hostile_archives()`` is also the seed of ``tests/fuzz/fuzz_extract.py``.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from seatrial.taskpkg.extract import ArchiveError, Extracted, extract_archive
from seatrial.taskpkg.limits import Limits

# Small numbers of the same kind as the real ones, so that each bound can be reached in milliseconds.
LIMITS = Limits(
    entries=50,
    file_bytes=64 * 1024,
    payload_bytes=128 * 1024,
    pax_header_bytes=8192,
    task_toml_bytes=2048,
    gitignore_bytes=1024,
    instruction_bytes=2048,
)

UNREADABLE = "Invalid or unreadable Harbor archive"
TRUNCATED = "Truncated tar file"
UNSAFE_PATH = "Unsafe or ambiguous archive path"
TYPE = "Unsupported tar entry type"
METADATA = "Unsupported tar metadata"
SPARSE = "Unsupported sparse tar metadata"
PARENT = "Missing parent or multiple archive roots"
DUPLICATE = "Duplicate or excessive archive entries"
ROOT = "Archive must start with one named root directory"
LINK = "Symlink escapes task root"
MODE = "Unsupported mode bits"
PAYLOAD = "Archive payload exceeds limits"
EXCESSIVE = "Excessive tar metadata"


class Hostile(NamedTuple):
    name: str
    data: bytes
    kind: Literal["corrupt", "unsafe"]
    message: str
    """How the message begins."""


# --- a tar writer that writes anything ------------------------------------------------------------------------------------------------


def block(
    name: str | bytes,
    *,
    type: bytes = b"0",
    size: int | bytes = 0,
    mode: int | bytes = 0o644,
    link: str | bytes = b"",
    prefix: bytes = b"",
    magic: bytes = b"ustar\x0000",
    checksum: int | None = None,
) -> bytes:
    def text(value: str | bytes, length: int) -> bytes:
        return (value.encode() if isinstance(value, str) else value)[:length].ljust(length, b"\0")

    def number(value: int | bytes, length: int) -> bytes:
        return value.ljust(length, b"\0") if isinstance(value, bytes) else b"%0*o\0" % (length - 1, value)

    head = text(name, 100) + number(mode, 8) + number(0, 8) + number(0, 8) + number(size, 12) + number(0, 12)
    tail = type + text(link, 100) + magic.ljust(8, b"\0") + bytes(32) + bytes(32) + bytes(16) + prefix.ljust(155, b"\0") + bytes(12)
    total = sum(head) + sum(tail) + 8 * 32 if checksum is None else checksum
    return head + b"%06o\0 " % total + tail


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def folder(name: str, *, mode: int = 0o755, **more: bytes | int) -> bytes:
    return block(name, type=b"5", mode=mode, **more)  # type: ignore[arg-type]


def file(name: str, data: bytes = b"x", **more: bytes | int) -> bytes:
    return block(name, size=len(data), **more) + padded(data)  # type: ignore[arg-type]


def link(name: str, target: str | bytes) -> bytes:
    return block(name, type=b"2", mode=0o777, link=target)


def record(key: str, value: str) -> bytes:
    rest = f" {key}={value}\n".encode()
    length = len(rest) + 1
    while length != len(rest) + len(str(length)):
        length = len(rest) + len(str(length))
    return str(length).encode() + rest


def pax(*records: bytes, type: bytes = b"x") -> bytes:
    body = b"".join(records)
    return block("././@PaxHeader", type=type, size=len(body)) + padded(body)


END = bytes(1024)
START = folder("t/") + folder("t/tests/")


def tar(*parts: bytes, end: bytes = END) -> bytes:
    data = b"".join(parts) + end
    return gzip.compress(data, mtime=0)


def raw_gzip(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def after_start(*parts: bytes) -> bytes:
    return tar(START, *parts)


# --- the corpus -----------------------------------------------------------------------------------------------------------------------


def hostile_archives() -> Iterator[Hostile]:
    yield from _paths()
    yield from _types()
    yield from _links()
    yield from _extended_headers()
    yield from _roots()
    yield from _sizes()
    yield from _broken()


def _paths() -> Iterator[Hostile]:
    paths = {
        "absolute": "/etc/cron.d/x",
        "parent": "../x",
        "parent-inside": "t/../../x",
        "parent-that-stays": "t/tests/../x",
        "dot": "t/./x",
        "dot-first": "./t/x",
        "double-slash": "t//x",
        "trailing-slash-of-a-link": "t/x/",
        "backslash": "t/a\\b",
        "backslash-parent": "t/..\\..\\x",
        "drive": "C:/x",
        "colon": "t/a:b",
        "percent": "t/%2e%2e",
        "hash": "t/a#b",
        "question": "t/a?b",
        "newline": "t/a\nb",
        "escape": "t/\x1b[2J",
        "delete": "t/a\x7f",
        "space-at-the-end": "t/a ",
        "dot-at-the-end": "t/a.",
        "part-with-dot-at-the-end": "t/tests./x",
        "not-nfc": "t/e\u0301",
    }
    for name, path in paths.items():
        entry = link(path, "tests") if name.startswith("trailing") else file(path)
        yield Hostile(f"path-{name}", after_start(entry), "unsafe", UNSAFE_PATH)
    yield Hostile("path-not-utf8", after_start(block(b"t/\xff\xfe")), "unsafe", UNSAFE_PATH)
    yield Hostile("path-empty", after_start(block("")), "unsafe", UNSAFE_PATH)
    yield Hostile("path-too-long", after_start(pax(record("path", "t/" + "a/" * 2100 + "b")), block("t/b")), "unsafe", UNSAFE_PATH)
    yield Hostile("path-parent-in-extended-header", after_start(pax(record("path", "../x")), block("t/b")), "unsafe", UNSAFE_PATH)
    yield Hostile("path-nul-in-extended-header", after_start(pax(record("path", "t/a\0b")), block("t/b")), "unsafe", UNSAFE_PATH)
    yield Hostile("path-parent-in-prefix", after_start(block("x", prefix=b"t/..")), "unsafe", UNSAFE_PATH)
    yield Hostile(
        "path-name-too-long-for-the-system", after_start(pax(record("path", "t/" + "a" * 300)), block("t/b")), "unsafe", "The file system"
    )
    yield Hostile("path-missing-parent", after_start(file("t/nowhere/x")), "unsafe", PARENT)
    yield Hostile("path-parent-in-another-case", after_start(file("t/Tests/x")), "unsafe", PARENT)
    yield Hostile("path-below-a-file", after_start(file("t/a"), file("t/a/b")), "unsafe", PARENT)
    yield Hostile("path-twice", after_start(file("t/a"), file("t/a")), "unsafe", DUPLICATE)
    yield Hostile("path-twice-ignoring-case", after_start(file("t/a"), file("t/A")), "unsafe", DUPLICATE)
    yield Hostile("path-twice-folded", after_start(file("t/stra\u00dfe"), file("t/STRASSE")), "unsafe", DUPLICATE)
    yield Hostile("path-file-over-folder", after_start(file("t/tests")), "unsafe", DUPLICATE)
    yield Hostile("path-folder-twice", after_start(folder("t/tests/")), "unsafe", DUPLICATE)


def _types() -> Iterator[Hostile]:
    kinds = {"hard-link": b"1", "character-device": b"3", "block-device": b"4", "fifo": b"6", "contiguous": b"7", "unknown": b"Z"}
    for name, type in kinds.items():
        yield Hostile(f"type-{name}", after_start(block("t/x", type=type, link="t/tests")), "unsafe", TYPE)
    yield Hostile("type-gnu-long-name", after_start(block("././@LongLink", type=b"L", size=3) + padded(b"t/x")), "unsafe", TYPE)
    yield Hostile("type-gnu-long-link", after_start(block("././@LongLink", type=b"K", size=3) + padded(b"t/x")), "unsafe", TYPE)
    yield Hostile("type-gnu-volume-label", after_start(block("t/x", type=b"V")), "unsafe", TYPE)
    yield Hostile("type-gnu-sparse", after_start(block("t/x", type=b"S", size=1 << 20)), "unsafe", SPARSE)
    yield Hostile("type-global-header", after_start(pax(record("path", "t/x"), type=b"g")), "unsafe", TYPE)
    yield Hostile("type-solaris-extended-header", after_start(pax(record("path", "t/x"), type=b"X")), "unsafe", TYPE)


def _links() -> Iterator[Hostile]:
    targets: dict[str, str | bytes] = {
        "absolute": "/etc/passwd",
        "escaping": "../../outside",
        "escaping-and-back": "../../t/tests",
        "dangling": "nowhere",
        "to-itself": "x",
        "to-its-own-folder": ".",
        "to-the-folder-above": "..",
        "through-a-file": "a/b",
        "file-with-slash": "a/",
        "wrong-case": "A",
        "not-utf8": b"\xff",
    }
    for name, target in targets.items():
        yield Hostile(f"link-{name}", after_start(file("t/tests/a"), link("t/tests/x", target)), "unsafe", LINK)
    yield Hostile("link-loop", after_start(link("t/a", "b"), link("t/b", "a")), "unsafe", LINK)
    yield Hostile("link-chain-that-leaves", after_start(link("t/a", "b"), link("t/b", "../..")), "unsafe", LINK)
    yield Hostile("link-made-to-escape-later", after_start(link("t/tests/a", "b/../.."), link("t/tests/b", "../..")), "unsafe", LINK)
    chain = [link(f"t/l{index:02}", f"l{index + 1:02}") for index in range(45)]
    yield Hostile("link-chain-of-45", after_start(*chain, file("t/l45")), "unsafe", LINK)
    yield Hostile("link-write-through", after_start(link("t/x", "/tmp"), file("t/x/pwned")), "unsafe", PARENT)
    yield Hostile("link-write-through-inner", after_start(link("t/x", "tests"), file("t/x/test.sh")), "unsafe", PARENT)
    yield Hostile("link-replaced-by-file", after_start(link("t/x", "/etc/passwd"), file("t/x")), "unsafe", DUPLICATE)
    yield Hostile("link-folder-over-link", after_start(link("t/x", "tests"), folder("t/x/")), "unsafe", DUPLICATE)
    yield Hostile("link-without-target", after_start(link("t/x", "")), "unsafe", "Invalid symlink entry")
    yield Hostile(
        "link-with-data", after_start(block("t/x", type=b"2", size=1, link="tests") + padded(b"x")), "unsafe", "Invalid symlink entry"
    )
    nul = pax(record("linkpath", "a\0b"))
    yield Hostile("link-with-nul", after_start(nul, link("t/x", "a")), "unsafe", "Invalid symlink entry")
    long = pax(record("linkpath", "./" * 2100 + "tests"))
    yield Hostile("link-too-long", after_start(long, link("t/x", "a")), "unsafe", LINK)
    yield Hostile("link-as-root", tar(link("t", "/tmp")), "unsafe", ROOT)


def _extended_headers() -> Iterator[Hostile]:
    for key in ("size", "uid", "mtime", "SCHILY.xattr.security.capability", "hdrcharset", "comment"):
        yield Hostile(f"pax-{key}", after_start(pax(record(key, "1")), block("t/x")), "unsafe", METADATA)
    for key in ("GNU.sparse.map", "GNU.sparse.major", "GNU.sparse.size"):
        yield Hostile(f"pax-{key}", after_start(pax(record(key, "1")), block("t/x")), "unsafe", SPARSE)
    yield Hostile("pax-path-twice", after_start(pax(record("path", "t/a"), record("path", "t/b")), block("t/x")), "unsafe", METADATA)
    yield Hostile(
        "pax-path-twice-in-a-chain", after_start(pax(record("path", "t/a")), pax(record("path", "t/b")), block("t/x")), "unsafe", METADATA
    )
    yield Hostile("pax-chain", after_start(*[pax() for _ in range(9)], block("t/x")), "unsafe", EXCESSIVE)
    yield Hostile("pax-too-large", after_start(block("p", type=b"x", size=9000)), "unsafe", EXCESSIVE)
    yield Hostile("pax-of-8-exbibytes", after_start(block("p", type=b"x", size=b"\x80" + b"\x00" * 3 + b"\x7f" * 8)), "unsafe", EXCESSIVE)
    yield Hostile("pax-negative", after_start(block("p", type=b"x", size=b"\xff" * 12)), "unsafe", EXCESSIVE)
    for name, body in {
        "no-length": b"path=t/x\n",
        "length-too-long": b"99 path=t/x\n",
        "length-too-short": b"3 path=t/x\n",
        "length-zero": b"0 path=t/x\n",
        "length-negative": b"-9 path=t/x\n",
        "length-of-many-digits": b"9" * 200 + b" path=t/x\n",
        "no-equals": b"8 path.\n",
        "no-line-end": b"11 path=t/x",
        "rubbish": b"\xff\x00" * 20,
    }.items():
        yield Hostile(f"pax-{name}", after_start(pax(body), block("t/x")), "corrupt", UNREADABLE)
    yield Hostile("pax-without-entry", tar(START, pax(record("path", "t/x"))), "corrupt", TRUNCATED)
    yield Hostile("pax-then-nothing", tar(START, pax(record("path", "t/x")), end=b""), "corrupt", TRUNCATED)


def _roots() -> Iterator[Hostile]:
    yield Hostile("root-is-a-file", tar(file("t")), "unsafe", ROOT)
    yield Hostile("root-has-two-parts", tar(folder("t/a/")), "unsafe", ROOT)
    yield Hostile("root-is-reserved", tar(folder("task_template/")), "unsafe", ROOT)
    yield Hostile("root-is-reserved-in-capitals", tar(folder("Task_Template/")), "unsafe", ROOT)
    yield Hostile("root-is-dot", tar(folder("./")), "unsafe", UNSAFE_PATH)
    yield Hostile("root-is-above", tar(folder("../")), "unsafe", UNSAFE_PATH)
    yield Hostile("root-is-slash", tar(folder("/")), "unsafe", UNSAFE_PATH)
    yield Hostile("root-has-data", tar(folder("t/", size=5) + padded(b"12345")), "unsafe", "Directory has a payload")
    yield Hostile("root-twice", tar(START, folder("u/")), "unsafe", PARENT)
    yield Hostile("root-again", tar(START, folder("t/")), "unsafe", PARENT)
    yield Hostile("root-in-another-case", tar(START, file("T/x")), "unsafe", PARENT)
    yield Hostile("empty-tar", tar(), "unsafe", "Empty archive")
    yield Hostile("zeros-only", tar(bytes(20480)), "unsafe", "Empty archive")


def _sizes() -> Iterator[Hostile]:
    yield Hostile("size-file", after_start(file("t/x", bytes(65537))), "unsafe", PAYLOAD)
    yield Hostile("size-announced-only", after_start(block("t/x", size=1 << 33 - 1)), "unsafe", PAYLOAD)
    yield Hostile("size-of-8-exbibytes", after_start(block("t/x", size=b"\x80" + b"\x00" * 3 + b"\x7f" * 8)), "unsafe", PAYLOAD)
    yield Hostile("size-negative", after_start(block("t/x", size=b"\xff" * 12)), "unsafe", PAYLOAD)
    yield Hostile("size-payload", after_start(*[file(f"t/x{index}", bytes(60000)) for index in range(3)]), "unsafe", PAYLOAD)
    yield Hostile("size-entries", after_start(*[file(f"t/x{index}") for index in range(49)]), "unsafe", DUPLICATE)
    records = [part for index in range(20) for part in (*[pax() for _ in range(6)], block(f"t/x{index}"))]
    yield Hostile("size-records", after_start(*records), "unsafe", "Too many physical tar records")
    yield Hostile("size-of-a-folder", after_start(folder("t/x/", size=3) + padded(b"abc")), "unsafe", "Directory has a payload")
    for name in ("task.toml", ".gitignore", "instruction.md", "tests/instruction.md"):
        yield Hostile(f"size-{name}", after_start(file(f"t/{name}", bytes(3000))), "unsafe", "Metadata exceeds byte limit")
    bomb = raw_gzip(START + file("t/x") + END + bytes(300 * 1024 * 1024))
    yield Hostile("size-bomb-of-zeros", bomb, "unsafe", "Expanded archive exceeds limit")
    yield Hostile("mode-setting-more-than-permissions", after_start(block("t/x", mode=0o100644)), "unsafe", MODE)
    yield Hostile("mode-of-a-folder", after_start(folder("t/x/", mode=0o40755)), "unsafe", MODE)
    yield Hostile("mode-negative", after_start(block("t/x", mode=b"\xff" * 8)), "unsafe", MODE)


def _broken() -> Iterator[Hostile]:
    good = tar(START, file("t/x", b"hello"))
    yield Hostile("gzip-none", b"not gzip at all", "corrupt", UNREADABLE)
    yield Hostile("gzip-empty", b"", "corrupt", TRUNCATED)
    yield Hostile("gzip-header-only", good[:10], "corrupt", UNREADABLE)
    yield Hostile("gzip-truncated", good[: len(good) // 2], "corrupt", UNREADABLE)
    yield Hostile("gzip-without-trailer", good[:-8], "corrupt", UNREADABLE)
    yield Hostile("gzip-wrong-checksum", good[:-8] + bytes(4) + good[-4:], "corrupt", UNREADABLE)
    yield Hostile("gzip-wrong-length", good[:-4] + bytes(4), "corrupt", UNREADABLE)
    yield Hostile("gzip-flipped-bit", good[:40] + bytes([good[40] ^ 0x55]) + good[41:], "corrupt", "")
    yield Hostile("gzip-rubbish-behind", good + b"rubbish", "corrupt", UNREADABLE)
    yield Hostile("gzip-second-member", good + raw_gzip(file("t/y")), "unsafe", "Unexpected trailing archive content")
    yield Hostile("gzip-is-zlib", zlib.compress(START + END), "corrupt", UNREADABLE)
    yield Hostile("gzip-is-plain-tar", START + END, "corrupt", UNREADABLE)
    yield Hostile("tar-truncated-body", tar(START, block("t/x", size=4000), end=b"abc"), "corrupt", TRUNCATED)
    yield Hostile("tar-truncated-header", tar(START, end=block("t/x")[:100]), "corrupt", TRUNCATED)
    yield Hostile("tar-without-end", tar(START, file("t/x"), end=b""), "corrupt", TRUNCATED)
    yield Hostile("tar-trailing-content", tar(START, file("t/x"), END, file("t/y")), "unsafe", "Unexpected trailing archive content")
    yield Hostile("tar-checksum", after_start(block("t/x", checksum=1)), "corrupt", UNREADABLE)
    yield Hostile("tar-rubbish", raw_gzip(bytes(range(256)) * 8), "corrupt", UNREADABLE)
    yield Hostile("tar-size-not-octal", after_start(block("t/x", size=b"99999999999")), "corrupt", UNREADABLE)
    yield Hostile("tar-mode-not-octal", after_start(block("t/x", mode=b"0xabc")), "corrupt", UNREADABLE)


CORPUS = list(hostile_archives())


def extract(data: bytes, target: Path, limits: Limits = LIMITS) -> Extracted:
    return extract_archive(io.BytesIO(data), target, limits=limits)


def test_the_corpus_is_large_and_its_names_are_unique() -> None:
    assert len(CORPUS) == len({archive.name for archive in CORPUS})
    assert len(CORPUS) >= 60


@pytest.mark.conforms("N-62", "N-63", "N-64", "N-195", "N-196", "H-27")
@pytest.mark.parametrize("archive", CORPUS, ids=[archive.name for archive in CORPUS])
def test_a_hostile_archive_is_refused_and_leaves_nothing(tmp_path: Path, archive: Hostile) -> None:
    target = tmp_path / "target"
    outside = tmp_path / "outside"
    outside.mkdir()
    with pytest.raises(ArchiveError) as caught:
        extract(archive.data, target)
    assert caught.value.kind == archive.kind
    assert str(caught.value).startswith(archive.message)
    assert sorted(tmp_path.iterdir()) == [outside, target]
    assert list(outside.iterdir()) == []
    assert list(target.iterdir()) == []


def test_the_same_writer_makes_an_archive_that_is_accepted(tmp_path: Path) -> None:
    data = tar(START, file("t/tests/test.sh", b"echo", mode=0o4755), link("t/run", "tests/test.sh"), folder("t/empty/", mode=0o500))
    result = extract(data, tmp_path)
    assert (result.root_name, result.entries, result.payload_bytes, result.compressed_bytes) == ("t", 5, 4, len(data))
    assert (tmp_path / "t/tests/test.sh").read_bytes() == b"echo"
    assert (tmp_path / "t/tests/test.sh").stat().st_mode & 0o7777 == 0o4755
    assert (tmp_path / "t/empty").stat().st_mode & 0o7777 == 0o500
    assert os.readlink(tmp_path / "t/run") == "tests/test.sh"


@pytest.mark.parametrize(("depth", "is_accepted"), [(200, True), (201, False), (1200, False)])
def test_deeply_nested_folders_are_refused_and_removed(tmp_path: Path, depth: int, is_accepted: bool) -> None:
    paths = ["t" + "/a" * level for level in range(1, depth + 1)]
    data = tar(folder("t/"), *[part for path in paths for part in (pax(record("path", f"{path}/")), folder("x/"))])
    limits = LIMITS._replace(entries=100_000)
    if is_accepted:
        assert extract(data, tmp_path, limits).entries == depth + 1
        return
    with pytest.raises(ArchiveError, match=r"^Directories nested too deeply: t/a"):
        extract(data, tmp_path, limits)
    assert list(tmp_path.iterdir()) == []


def test_links_that_would_take_hours_to_resolve_are_refused_in_seconds(tmp_path: Path) -> None:
    slow = "./" * 2000 + "l{:05}"
    parts = [part for index in range(3000) for part in (pax(record("linkpath", slow.format(index + 1))), link(f"t/l{index:05}", "x"))]
    data = gzip.compress(folder("t/") + b"".join(parts) + file("t/l03000") + END, 1, mtime=0)
    with pytest.raises(ArchiveError) as caught:
        extract_archive(io.BytesIO(data), tmp_path / "target")
    assert caught.value.kind == "unsafe"
    assert list((tmp_path / "target").iterdir()) == []
