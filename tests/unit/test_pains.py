"""The page of pains names tests that exist, for each of the forty."""

from __future__ import annotations

import ast
import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def rows() -> dict[int, str]:
    """Number of the pain -> what the page says of it."""
    lines = (REPOSITORY / "docs" / "pains.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if re.match(r"\| \d", line)]
    return {int(number): shown for number, _, shown in cells}


def functions(file: str) -> set[str]:
    tree = ast.parse((REPOSITORY / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_pain_has_its_tests_or_a_reason() -> None:
    assert list(rows()) == list(range(1, 41))
    assert [number for number, shown in rows().items() if "::test_" not in shown and "Not tested: " not in shown] == []


def test_every_test_that_the_page_names_exists() -> None:
    named = [(file, name) for shown in rows().values() for file, name in re.findall(r"`([\w/]+\.py)::(test_\w+)`", shown)]
    assert len(named) > 50
    assert [f"{file}::{name}" for file, name in named if name not in functions(file)] == []
