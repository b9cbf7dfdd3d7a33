"""Traces of whole jobs through OpenTelemetry's own collector, which takes them from the operator and passes them on."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from aiohttp import web

from tests.integration.harness import operator, wait_until, world

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def program() -> str:
    """The collector, built once per machine."""
    sys.path.insert(0, str(REPOSITORY / "tests" / "cluster"))
    from localcluster import gobuild, settings

    return str(gobuild.build(settings.load({}, checkout=REPOSITORY), "collector"))


@dataclass
class Collector:
    url: str
    spans: list[dict[str, Any]] = field(default_factory=list)
    """What it passed on, in OTLP's JSON."""

    async def take(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.spans += [span for resource in body["resourceSpans"] for scope in resource["scopeSpans"] for span in scope["spans"]]
        return web.json_response({})


@pytest_asyncio.fixture
async def collector(program: str, tmp_path: Path) -> AsyncIterator[Collector]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    found, app = Collector(f"http://127.0.0.1:{port}"), web.Application()
    app.add_routes([web.post("/v1/traces", found.take)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    onward = {"endpoint": f"http://127.0.0.1:{runner.addresses[0][1]}", "encoding": "json", "compression": "none"}
    config = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
        "exporters": {"otlp_http": onward},
        "service": {
            "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["otlp_http"]}},
            "telemetry": {"metrics": {"level": "none"}},
        },
    }
    (tmp_path / "collector.yaml").write_text(yaml.safe_dump(config))
    log = (tmp_path / "collector.log").open("wb")
    process = await asyncio.create_subprocess_exec(program, f"--config=file:{tmp_path / 'collector.yaml'}", stdout=log, stderr=log)
    log.close()

    def listens() -> bool:
        assert process.returncode is None, (tmp_path / "collector.log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    await wait_until(listens, seconds=60)
    yield found
    if process.returncode is None:
        process.terminate()
    await process.wait()
    await runner.cleanup()


async def test_each_trial_is_a_trace_of_its_pods_and_their_phases(collector: Collector) -> None:
    async with world(otlp_endpoint=collector.url) as made, operator(made) as subject:
        made.suite(2)
        made.submit(concurrency=2)
        await made.ended()
        await subject.tracer.flush()
        roots = await wait_until(
            lambda: [span for span in collector.spans if span["name"] == "trial"], lambda spans: len(spans) == 2, seconds=60
        )
        assert len({span["traceId"] for span in roots}) == 2
        outcomes = [item["value"]["stringValue"] for span in roots for item in span["attributes"] if item["key"] == "seatrial.outcome"]
        assert outcomes == ["scored", "scored"]
        executions = [span for span in collector.spans if span["name"] == "agent_execution"]
        assert {span["parentSpanId"] for span in executions} == {span["spanId"] for span in roots}
