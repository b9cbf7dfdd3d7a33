"""A trial Pod in one folder: the real stage, agent, verifier and envd, and an object store of a few lines.

The task's paths (``/logs``, ``/tests``, ``/solution``) lie in the folder; scripts find them through ``$LOGS``, ``$TESTS``, ``$SOLUTION``
and ``$APP``. envd is built once a session.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import secrets
import shutil
import signal
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from tests.serving import end, serve

from seatrial import contract
from seatrial.contract import TrialInput, Verdict
from seatrial.taskpkg.pack import pack_task
from seatrial_runner import agent, stage, verifier
from seatrial_runner.paths import Paths
from seatrial_runner.presigned import Patience
from seatrial_runner.stop import Stop
from seatrial_runner.verifier import Patiences

REPOSITORY = Path(__file__).resolve().parents[3]
QUICK = Patience(seconds=5.0, attempts=3, first_pause_seconds=0.01, longest_pause_seconds=0.05, answer_seconds=5.0)
QUICK_ENDS = Patiences(
    collect=20.0, logs=5.0, result=5.0, first_pause=0.01, agent_start=0.0, agent_overtime=5.0, connect=2.0, last_words=2.0
)


def wait_until(predicate: Callable[[], object], *, timeout: float = 10.0) -> None:
    """Poll; the last observation is in the message when it gives up."""
    end = time.monotonic() + timeout
    while not (seen := predicate()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout} s; last seen: {seen!r}")
        time.sleep(0.01)


# --- an object store -----------------------------------------------------------------------------------------------------------------


class ObjectStore:
    """Objects by path. ``faults`` are used up one a request: a status, "drop" (no answer) or "store-and-drop"."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.faults: dict[str, list[int | str]] = {}
        self.requests: list[tuple[str, str]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        serve(self._server)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/bucket/{path}?X-Amz-Signature=secret-signature"

    def get(self, path: str) -> bytes | None:
        return self.objects.get(f"/bucket/{path}")

    def put(self, path: str, data: bytes) -> None:
        self.objects[f"/bucket/{path}"] = data

    def fail(self, path: str, *faults: int | str) -> None:
        self.faults[f"/bucket/{path}"] = list(faults)

    def close(self) -> None:
        end(self._server)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        store = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self._begin()
                if self._fault(path, b""):
                    return
                data = store.objects.get(path)
                self._answer(200 if data is not None else 404, data if data is not None else b"<Error><Code>NoSuchKey</Code></Error>")

            def do_PUT(self) -> None:
                path = self._begin()
                data = self.rfile.read(int(self.headers["Content-Length"]))
                if self._fault(path, data):
                    return
                if self.headers["If-None-Match"] == "*" and path in store.objects:
                    self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                    return
                store.objects[path] = data
                self._answer(200, b"")

            def _begin(self) -> str:
                path = self.path.partition("?")[0]
                store.requests.append((self.command, path))
                return path

            def _fault(self, path: str, data: bytes) -> bool:
                faults = store.faults.get(path)
                if not faults:
                    return False
                fault = faults.pop(0)
                match fault:
                    case int():
                        self._answer(fault, b"<Error><Code>AccessDenied</Code></Error>")
                    case "store-and-drop":
                        store.objects[path] = data
                        self.close_connection = True
                    case "drop":
                        self.close_connection = True
                    case _:
                        raise AssertionError(fault)
                return True

            def _answer(self, status: int, data: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        return Handler


@pytest.fixture
def object_store() -> Iterator[ObjectStore]:
    store = ObjectStore()
    yield store
    store.close()


# --- envd ----------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def envd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real program, built from this checkout."""
    program = tmp_path_factory.mktemp("envd") / "envd"
    subprocess.run(
        ["go", "build", "-p", "2", "-o", str(program), "."],
        cwd=REPOSITORY / "runner-image" / "envd",
        env={**os.environ, "CGO_ENABLED": "0"},
        check=True,
    )
    return program


# --- a Pod ---------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What a trial left behind."""

    verdict: Verdict
    result: dict[str, Any] | None
    logs: dict[str, bytes]
    links: dict[str, str]

    @property
    def error(self) -> str | None:
        return None if self.verdict.error is None else self.verdict.error["type"]

    @property
    def message(self) -> str:
        return "" if self.verdict.error is None else self.verdict.error["message"]

    @property
    def reason(self) -> str | None:
        return None if self.verdict.error is None else self.verdict.error.get("reason")

    @property
    def manifest(self) -> list[dict[str, Any]]:
        return cast(list[dict[str, Any]], json.loads(self.logs["artifacts/manifest.json"]))


@dataclass
class Pod:
    """One trial. Change ``trial`` and ``files`` first, then ``run`` it, or start its parts one by one."""

    root: Path
    envd: Path
    store: ObjectStore
    trial: TrialInput
    files: dict[str, str] = field(default_factory=dict)
    agent_env: dict[str, str] = field(default_factory=dict)
    verifier_env: dict[str, str] = field(default_factory=dict)
    patiences: Patiences = QUICK_ENDS
    stop: Stop = field(default_factory=Stop)
    key: bytes = field(default_factory=lambda: secrets.token_hex(32).encode())
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def logs(self) -> Path:
        return self.root / "env/logs"

    @property
    def app(self) -> Path:
        return self.root / "env/app"

    @property
    def tests(self) -> Path:
        return self.root / "env/tests"

    def paths(self, who: str) -> Paths:
        return Paths(
            task=str(self.root / "task" / who) if who else str(self.root / "task"),
            bin=str(self.root / "bin"),
            net=str(self.root / "net"),
            etc=str(self.root / "etc"),
            run=str(self.root / "run"),
            agent_socket=str(self.root / "ctl/agent/envd.sock"),
            verifier_socket=str(self.root / "ctl/verifier/envd.sock"),
            tools=str(self.root / "tools"),
            termination_log=str(self.root / f"termination-{who or 'stage'}"),
            scratch=str(self.root / "tmp"),
            logs_agent=str(self.logs / "agent"),
            logs_verifier=str(self.logs / "verifier"),
            logs_artifacts=str(self.logs / "artifacts"),
            tests=str(self.tests),
            solution=str(self.root / "env/solution"),
            desk=str(self.root / "desk"),
            environment_root=str(self.root / "env"),
            programs=(str(self.root / "env/bin"),),
        )

    def write_task(self) -> Path:
        """The task folder of ``files``; scripts get their x bits unless the name says otherwise."""
        folder = self.root / "source/task"
        for name, text in self.files.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode())
            file.chmod(0o644)
        return folder

    def publish(self) -> str:
        """Pack the task and store it; returns the sha256."""
        archive = self.root / "archive.tar.gz"
        packed = pack_task(self.write_task(), archive)
        self.store.put("archive", archive.read_bytes())
        return packed.sha256

    def stage(self, **changes: str) -> int:
        program = self.envd.read_bytes() if self.envd.exists() else b"envd"
        for name in ("envd", "seatrial-env"):
            (self.root / "tools" / name).write_bytes(program)
        environ = {
            contract.VAR_INPUT: contract.encode_input(self.trial),
            contract.VAR_ARCHIVE_URL: self.store.url("archive"),
            contract.VAR_ARCHIVE_SHA256: changes.pop("sha256", None) or self.publish(),
            **changes,
        }
        return stage.run(self.paths(""), environ, patience=QUICK)

    def start_envd(self) -> subprocess.Popen[bytes]:
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": "/root",
            "LOGS": str(self.logs),
            "TESTS": str(self.tests),
            "SOLUTION": str(self.root / "env/solution"),
            "APP": str(self.app),
        }
        with (self.root / "envd.log").open("wb") as log:
            process = subprocess.Popen(
                [str(self.envd), f"--ctl={self.root / 'ctl'}", "--patience=20s"],
                cwd=self.app,
                env=environ,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def start_agent(self) -> threading.Thread:
        thread = threading.Thread(target=agent.run, args=(self.paths("agent"), self.agent_env), kwargs={"stop": self.stop}, daemon=True)
        thread.start()
        return thread

    def verify(self) -> None:
        """Run the verifier to its end."""
        environ = {
            contract.VAR_LOGS_URL: self.store.url("logs.tar.gz"),
            contract.VAR_RESULT_URL: self.store.url("result.json"),
            contract.VAR_SIGNING_KEY: self.key.decode(),
            **self.verifier_env,
        }
        assert verifier.run(self.paths("verifier"), environ, stop=self.stop, patiences=self.patiences) == 0

    def run(self) -> Outcome:
        """Stage, then all containers together."""
        assert self.stage() == 0, (self.root / "termination-stage").read_text()
        self.start_envd()
        thread = self.start_agent()
        self.verify()
        thread.join(timeout=10)
        assert not thread.is_alive()
        return self.outcome()

    def outcome(self) -> Outcome:
        verdict = contract.read_verdict((self.root / "termination-verifier").read_text())
        stored = self.store.get("result.json")
        result = contract.verify_result(stored, self.key) if stored is not None and verdict.stored else None
        logs, links = {}, {}
        packed = self.store.get("logs.tar.gz")
        if packed is not None:
            with tarfile.open(fileobj=io.BytesIO(gzip.decompress(packed))) as tar:
                for member in tar:
                    if member.issym():
                        links[member.name] = member.linkname
                    elif member.isreg():
                        file = tar.extractfile(member)
                        assert file is not None
                        logs[member.name] = file.read()
        return Outcome(verdict, result, logs, links)


def make_input() -> TrialInput:
    """A trial of the oracle that takes no longer than a test may."""
    return TrialInput(
        schema=1,
        job={"namespace": "evals", "name": "smoke", "uid": "uid-1"},
        trial="hello__abc1234",
        attempt=0,
        retry=0,
        task={"name": "bench/hello", "checksum": "c" * 64, "source": "smoke"},
        image="registry/hello:1",
        agent={
            "kind": "oracle",
            "name": "oracle",
            "version": "1.0.0",
            "command": None,
            "model": None,
            "kwargs": {},
            "env_names": [],
            "user": None,
        },
        environment={"workdir": None, "env": {}, "healthcheck": None, "loose_files": False},
        verifier={"mode": "shared", "disable": False, "user": None, "env": {}, "collect": []},
        solution_env={},
        variables={},
        artifacts=[],
        timeouts={"environment": 10.0, "agent_setup": 10.0, "agent": 20.0, "verifier": 20.0},
        error_policy={},
        config={"schema_version": 1, "task": {"path": "bench/hello"}},
    )


TASK_TOML = 'version = "1.0"\n'
PASSING: Mapping[str, str] = {
    "task.toml": TASK_TOML,
    "instruction.md": "Say hello.\n",
    "environment/Dockerfile": "FROM scratch\n",
    "solution/solve.sh": '#!/bin/bash\necho "Hello" > "$APP/hello.txt"\necho solved\n',
    "tests/test.sh": '#!/bin/bash\n(grep -q Hello "$APP/hello.txt" && echo 1 || echo 0) > "$LOGS/verifier/reward.txt"\necho tested\n',
}


@contextmanager
def make_pod(envd: Path, object_store: ObjectStore) -> Iterator[Pod]:
    """A Pod whose task the oracle passes."""
    # NB: not tmp_path: the path of a unix socket has at most 107 bytes.
    root = Path(tempfile.mkdtemp(prefix="pod-"))
    for name in ("bin", "ctl", "etc", "net", "run", "task", "tools", "tmp", "desk", "env/app", "env/bin", "env/logs"):
        (root / name).mkdir(parents=True)
    for volume in ("ctl", "run", "task"):
        for part in (contract.AGENT, contract.VERIFIER):
            (root / volume / part).mkdir()
    for name in contract.NET_FILES:
        (root / "etc" / name).write_text(f"{name} of the Pod\n")
    made = Pod(root, envd, object_store, make_input(), files=dict(PASSING))
    yield made
    for process in made.processes:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def pod(envd: Path, object_store: ObjectStore) -> Iterator[Pod]:
    with make_pod(envd, object_store) as made:
        yield made


@pytest.fixture
def second_pod(envd: Path, object_store: ObjectStore) -> Iterator[Pod]:
    """For a separate verifier."""
    with make_pod(envd, object_store) as made:
        yield made
