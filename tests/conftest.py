"""Record which lines of the conformance checklists each test shows, with its outcome.

One file a process of a test session below ``build/test-results``; ``tests/conformance/report.py`` merges them. Nothing is written by hand.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "build" / "test-results"
CHECKLIST = REPOSITORY / "tests" / "conformance" / "checklist.json"
_records: dict[str, dict[str, Any]] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known = json.loads(CHECKLIST.read_text())
    for item in items:
        ids = [line for marker in item.iter_markers("conforms") for line in marker.args]
        unknown = sorted(set(ids) - set(known))
        if unknown:
            raise pytest.UsageError(f"{item.nodeid}: no such conformance line: {', '.join(unknown)}")
        if ids:
            _records[item.nodeid] = {"ids": sorted(set(ids)), "outcome": "not run"}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    report = (yield).get_result()
    record = _records.get(item.nodeid)
    if record is not None and (report.when == "call" or report.outcome != "passed"):
        record["outcome"] = report.outcome


def pytest_sessionfinish() -> None:
    ran = {name: record for name, record in _records.items() if record["outcome"] != "not run"}
    if ran:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{os.getpid()}.json").write_text(json.dumps(ran, indent=1))
