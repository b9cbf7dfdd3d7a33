"""Feed the extractor archives that were broken on purpose, for a given time.

    python tests/fuzz/fuzz_extract.py --seconds 60 [--seed N]

Two sources: archives of the hostile corpus with mutated bytes (below and above gzip), and random sequences of plausible and implausible
tar entries. It stops at the first archive that raises anything but ``ArchiveError``, writes outside its target, leaves something behind
after a refusal, accepts a link that leads out, or makes the process grow; the archive is then kept for a test.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import os
import random
import resource
import shutil
import stat
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

from seatrial.taskpkg.extract import ArchiveError, extract_archive

# Above what the process needs after its first thousand archives.
GROWTH_KIB = 128 * 1024
NAMES = (
    "t",
    "T",
    "a",
    "A",
    "b",
    "tests",
    "..",
    ".",
    "",
    "\u00e9",
    "e\u0301",
    "a b",
    "a ",
    "x" * 120,
    "task.toml",
    "instruction.md",
    "task_template",
)


def load_corpus() -> ModuleType:
    path = Path(__file__).parent.parent / "unit" / "taskpkg" / "test_hostile_archives.py"
    spec = importlib.util.spec_from_file_location("hostile_archives", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


HOSTILE = load_corpus()


def mutated(data: bytes, random_: random.Random) -> bytes:
    """Flip, cut, repeat or insert a few times."""
    work = bytearray(data)
    for _ in range(random_.randint(1, 8)):
        at = random_.randrange(len(work) + 1)
        match random_.randrange(6):
            case 0 if work:
                work[at - 1] ^= 1 << random_.randrange(8)
            case 1:
                del work[at : at + random_.choice((1, 8, 512, 1024))]
            case 2:
                work[at:at] = random_.randbytes(random_.choice((1, 8, 64)))
            case 3:
                work[at:at] = work[at : at + 512]
            case 4:
                work[at : at + 12] = random_.choice((b"\x80" + b"\xff" * 11, b"\xff" * 12, b"77777777777\0", bytes(12)))
            case _:
                start = at // 512 * 512
                work[start : start + 512] = random_.choice(
                    (bytes(512), HOSTILE.block("t/x"), HOSTILE.pax(HOSTILE.record("path", "t/x"))[:512])
                )
    return bytes(work)


def repaired(tar: bytes, random_: random.Random) -> bytes:
    """Correct the checksums of most headers, so that a mutation reaches the code behind them."""
    work = bytearray(tar)
    for start in range(0, len(work) - 511, 512):
        if work[start + 257 : start + 262] == b"ustar" and random_.random() < 0.95:
            total = sum(work[start : start + 512]) - sum(work[start + 148 : start + 156]) + 256
            work[start + 148 : start + 156] = b"%06o\0 " % total
    return bytes(work)


def random_tar(random_: random.Random) -> bytes:
    def path() -> str:
        return "/".join(["t", *random_.choices(NAMES, k=random_.randint(0, 4))])

    parts = [HOSTILE.folder("t/")]
    for _ in range(random_.randint(0, 30)):
        if random_.random() < 0.2:
            key = random_.choice(("path", "linkpath", "size", "GNU.sparse.map"))
            parts.append(HOSTILE.pax(HOSTILE.record(key, random_.choice((path(), "../../x", "a\0b", "/etc")))))
        match random_.randrange(5):
            case 0 | 1:
                parts.append(HOSTILE.folder(f"{path()}/", mode=random_.choice((0o755, 0o700, 0o0, 0o7777, 0o500))))
            case 2:
                parts.append(HOSTILE.file(path(), random_.randbytes(random_.choice((0, 1, 511, 512, 5000)))))
            case 3:
                parts.append(
                    HOSTILE.link(path(), random_.choice((path(), "a", "../a", "..", ".", "tests/../a", "/etc/passwd", "t/a", "../t/a")))
                )
            case _:
                parts.append(HOSTILE.block(path(), type=bytes([random_.randrange(256)]), size=random_.choice((0, 1, 1 << 20))))
    return b"".join([*parts, HOSTILE.END])


def next_archive(random_: random.Random, seeds: list[bytes]) -> bytes:
    choice = random_.random()
    if choice < 0.1:
        return mutated(gzip.compress(random_.choice(seeds), 1), random_)
    tar = random_tar(random_) if choice < 0.55 else mutated(random_.choice(seeds), random_)
    return gzip.compress(repaired(tar, random_), 1)


def check_result(target: Path) -> None:
    """Everything that was accepted stays inside and is ordinary."""
    root = target.resolve()
    for folder, names, files in os.walk(target):
        for name in (*names, *files):
            path = Path(folder, name)
            mode = path.lstat().st_mode
            assert stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode), f"special file {path}"
            assert path.resolve(strict=True).is_relative_to(root), f"{path} leads out"


def empty(folder: Path) -> None:
    for path, names, _ in os.walk(folder):
        for name in names:
            if not os.path.islink(os.path.join(path, name)):
                os.chmod(os.path.join(path, name), 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def run(seconds: float, seed: int, base: Path) -> int:
    random_ = random.Random(seed)
    seeds = [b"".join((HOSTILE.START, HOSTILE.file("t/tests/test.sh", b"echo"), HOSTILE.link("t/run", "tests/test.sh"), HOSTILE.END))]
    for archive in HOSTILE.CORPUS:
        if archive.kind == "unsafe" and len(archive.data) < 20_000:
            seeds.append(gzip.decompress(archive.data))
    target = base / "target"
    count = accepted = 0
    peak = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        data = next_archive(random_, seeds)
        before = set(os.listdir(base))
        try:
            with tempfile.TemporaryFile() as stream:
                stream.write(data)
                stream.seek(0)
                extract_archive(stream, target, limits=HOSTILE.LIMITS)
            accepted += 1
            check_result(target)
        except ArchiveError:
            assert os.listdir(target) == [], "a refused archive left something behind"
        except BaseException:
            kept = Path(tempfile.gettempdir()) / f"seatrial-fuzz-{seed}-{count}.tar.gz"
            kept.write_bytes(data)
            print(f"archive {count} of seed {seed} is kept as {kept}", file=sys.stderr)
            raise
        assert set(os.listdir(base)) - before <= {"target"}, "something was written beside the target"
        empty(target)
        count += 1
        if count == 1000:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if count > 1000:
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
            assert grown < GROWTH_KIB, f"the process grew by {grown} KiB"
    print(f"{count} archives, {accepted} accepted, seed {seed}: no crash, no escape, memory bounded")
    return 0 if accepted else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as base:
        return run(arguments.seconds, arguments.seed, Path(base))


if __name__ == "__main__":
    sys.exit(main())
