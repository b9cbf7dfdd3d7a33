from __future__ import annotations

import io
import json

import pytest

from seatrial.sdk.results import Member
from seatrial.sdk.traces import Trace, primary_trace

OTLP = b'{"resourceSpans": []}\n'
ATIF = json.dumps({"schema_version": "ATIF-v1.4"}).encode()


def choose(**files: bytes) -> tuple[str, str] | None:
    named = {name.replace("__", "/"): data for name, data in files.items()}
    paths = {"otlp": "artifacts/traces/run.jsonl", "atif": "artifacts/traces/a.atif.json", "own": "agent/trajectory.json"}
    members = [(Member(paths.get(name, name), len(data)), io.BytesIO(data)) for name, data in named.items()]
    found = primary_trace(members)
    return None if found is None else (found.format, found.path)


@pytest.mark.conforms("N-208")
def test_otlp_comes_before_atif_and_the_agents_own_trajectory_last() -> None:
    assert choose(own=ATIF, atif=ATIF, otlp=OTLP) == ("otlp", "artifacts/traces/run.jsonl")
    assert choose(own=ATIF, atif=ATIF, otlp=b"not json\n") == ("atif", "artifacts/traces/a.atif.json")
    assert choose(own=ATIF, otlp=b"[1]\n") == ("atif", "agent/trajectory.json")
    assert choose(own=b"{", otlp=b"") is None


def test_the_content_is_parsed() -> None:
    members = [(Member("artifacts/traces/run.jsonl", len(OTLP)), io.BytesIO(OTLP))]
    assert primary_trace(members) == Trace("otlp", "artifacts/traces/run.jsonl", [{"resourceSpans": []}])
