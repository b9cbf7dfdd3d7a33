"""Feed the readers of task.toml, dataset.toml, registry.json, instructions and names broken text, for a given time.

    python tests/fuzz/fuzz_parse.py --seconds 60 [--seed N]

It stops at the first text that raises anything undocumented, gives a config beside an error (or neither), names a line that does not
exist, or takes more than two seconds of CPU; the text is then kept in a file.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

from seatrial.taskpkg.allowlist import parse_host
from seatrial.taskpkg.dataset import parse_dataset_toml, parse_package_ref, parse_registry
from seatrial.taskpkg.instruction import read_instruction, record_instruction
from seatrial.taskpkg.locate import key_lines
from seatrial.taskpkg.names import object_name
from seatrial.taskpkg.parse import Problem, parse_task_toml

SECONDS_PER_TEXT = 2.0
DATASET = '[dataset]\nname = "a/b"\n[[tasks]]\nname = "a/b"\ndigest = "sha256:' + "a" * 64 + '"\n[[files]]\npath = "metric.py"\n'
REGISTRY = '[{"name": "n", "version": "1", "description": "", "tasks": [{"name": "a", "path": "p"}], "metrics": [{"type": "mean"}]}]'
TOKENS: tuple[str, ...] = (
    "[",
    "]",
    "[[",
    "]]",
    "{",
    "}",
    "=",
    '"',
    "'",
    '"""',
    "'''",
    "\n",
    "\r",
    ",",
    ".",
    "#",
    "\\",
    "\\u0000",
    "\x00",
    "\ufeff",
    "\u2028",
)
TOKENS += (
    "1",
    "-1",
    "nan",
    "inf",
    "1e999",
    "0x",
    "true",
    "1979-05-27T07:32:00Z",
    "9" * 5000,
    "a.b.c",
    "steps",
    "environment",
    "[steps.agent]\n",
)


def load_vectors() -> ModuleType:
    path = Path(__file__).parent.parent / "unit" / "taskpkg" / "harbor_vectors.py"
    spec = importlib.util.spec_from_file_location("harbor_vectors", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mutated(text: str, random_: random.Random, others: list[str]) -> str:
    for _ in range(random_.randint(1, 6)):
        at = random_.randrange(len(text) + 1)
        match random_.randrange(5):
            case 0:
                text = text[:at] + random_.choice(TOKENS) * random_.choice((1, 1, 1, 50)) + text[at:]
            case 1:
                text = text[:at] + text[at + random_.choice((1, 2, 10)) :]
            case 2:
                text = text[:at] + chr(random_.choice((0, 9, 0x7F, 0xE9, 0x2028, 0x1F600, 0xFFFF))) + text[at:]
            case 3:
                text += random_.choice(others)
            case _:
                text = text[:at] + text[:at]
    return text[:100_000]


def check_toml(text: str) -> None:
    config, problems = parse_task_toml(text)
    check_problems(text, problems, is_read=config is not None)
    manifest, problems = parse_dataset_toml(text)
    check_problems(text, problems, is_read=manifest is not None)
    lines = text.replace("\r\n", "\n").count("\n") + 1
    assert all(1 <= line <= lines for line in key_lines(text).values())


def check_problems(text: str, problems: tuple[Problem, ...], *, is_read: bool) -> None:
    errors = [problem for problem in problems if problem.severity == "error"]
    assert is_read == (not errors), errors
    lines = text.replace("\r\n", "\n").replace("\r", "\n").count("\n") + 1
    for problem in problems:
        assert problem.line is None or 1 <= problem.line <= lines, problem
        assert problem.message, problem
        assert problem.fix, problem


def check_others(text: str) -> None:
    parse_registry(text)
    assert not read_instruction(text).startswith("\n")
    record_instruction(text)
    name = object_name(text[:300])
    assert 1 <= len(name) <= 253, name
    for reader in (parse_host, parse_package_ref):
        try:
            reader(text[:200])
        except ValueError:
            continue


def check_bytes(data: bytes) -> None:
    parse_task_toml(data)
    parse_dataset_toml(data)
    parse_registry(data)


def run(seconds: float, seed: int) -> int:
    random_ = random.Random(seed)
    seeds = [*load_vectors().config_texts(), DATASET, REGISTRY]
    count = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        text = mutated(random_.choice(seeds), random_, seeds)
        start = time.process_time()
        try:
            check_toml(text)
            check_others(text)
            check_bytes(mutated(text, random_, seeds).encode()[: random_.randrange(1, 2000)] + random_.randbytes(2))
            taken = time.process_time() - start
            assert taken < SECONDS_PER_TEXT, f"{taken:.1f} s of CPU"
        except BaseException:
            with tempfile.NamedTemporaryFile("w", prefix="fuzz-", suffix=".toml", delete=False, newline="") as kept:
                kept.write(text)
            print(f"text {count} of seed {seed} ({kept.name}): {text[:200]!r}", file=sys.stderr)
            raise
        count += 1
    print(f"{count} texts, seed {seed}: no crash")
    return 0 if count else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    return run(arguments.seconds, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
