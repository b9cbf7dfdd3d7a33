"""Two different S3 servers and a small Kubernetes API on loopback, with secrets made for the session.

The S3 programs are built from Go modules on first use and kept outside the checkout. Both check signatures.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest
from minio import Minio

from seatrial.effects.store import Store, StoreSettings

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seatrial" / "test-s3"
REGION: Final = "us-east-1"
MakeTask = Callable[..., Path]


@dataclass(frozen=True)
class S3Program:
    """A server as a Go module, and how to start it."""

    package: str
    version: str
    command: Callable[[str, int, Path], list[str]]
    access_variable: str
    secret_variable: str

    @property
    def name(self) -> str:
        return self.package.rpartition("/")[2]

    def path(self) -> Path:
        """The built program; several test sessions may ask at once."""
        given = os.environ.get(f"SEATRIAL_TEST_{self.name.upper()}")
        if given:
            return Path(given)
        CACHE.mkdir(parents=True, exist_ok=True)
        target = CACHE / f"{self.name}-{self.version}"
        with (CACHE / f"{self.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                build = CACHE / "build"
                subprocess.run(
                    ["go", "install", "-p", "2", f"{self.package}@{self.version}"],
                    env={**os.environ, "GOBIN": str(build), "CGO_ENABLED": "0"},
                    cwd=CACHE,
                    check=True,
                )
                (build / self.name).rename(target)
        return target


def _versitygw(program: str, port: int, folder: Path) -> list[str]:
    # Metadata beside the data: not every file system has extended attributes.
    (folder / "meta").mkdir()
    return [program, "--port", f"127.0.0.1:{port}", "--quiet", "posix", "--sidecar", str(folder / "meta"), str(folder / "data")]


def _minio(program: str, port: int, folder: Path) -> list[str]:
    return [program, "server", "--quiet", "--address", f"127.0.0.1:{port}", str(folder / "data")]


PROGRAMS: Final[Mapping[str, S3Program]] = {
    "versitygw": S3Program("github.com/versity/versitygw/cmd/versitygw", "v1.8.0", _versitygw, "ROOT_ACCESS_KEY", "ROOT_SECRET_KEY"),
    "minio": S3Program("github.com/minio/minio", "v0.0.0-20260212201848-7aac2a2c5b7c", _minio, "MINIO_ROOT_USER", "MINIO_ROOT_PASSWORD"),
}


@dataclass(frozen=True)
class S3Server:
    """A running server; ``bucket()`` makes a fresh bucket."""

    name: str
    settings: StoreSettings

    def bucket(self) -> StoreSettings:
        name = f"bucket-{secrets.token_hex(6)}"
        client = Minio(
            self.settings.endpoint.removeprefix("http://"),
            access_key=self.settings.access_key,
            secret_key=self.settings.secret_key,
            secure=False,
            region=REGION,
        )
        client.make_bucket(name)
        return replace(self.settings, bucket=name)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the S3 server ended with code {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"the S3 server does not listen on port {port} after 30 s")


def _serve(name: str, folder: Path) -> Iterator[S3Server]:
    program, port = PROGRAMS[name], _free_port()
    access, secret = secrets.token_hex(8), secrets.token_hex(16)
    (folder / "data").mkdir()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            program.command(str(program.path()), port, folder),
            env={**os.environ, program.access_variable: access, program.secret_variable: secret, "MINIO_BROWSER": "off"},
            stdout=log,
            stderr=log,
        )
    try:
        _wait_for_port(port, process)
        yield S3Server(name, StoreSettings(f"http://127.0.0.1:{port}", "none", access, secret, region=REGION))
    finally:
        process.terminate()
        process.wait(timeout=10)


@pytest.fixture(scope="session", params=sorted(PROGRAMS))
def each_s3_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Runs a test once against each server."""
    yield from _serve(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server, for tests that need a store but are not about it."""
    yield from _serve("versitygw", tmp_path_factory.mktemp("s3"))


@pytest.fixture
def store_settings(s3_server: S3Server) -> StoreSettings:
    """A fresh bucket."""
    return s3_server.bucket()


@pytest.fixture
def store(store_settings: StoreSettings) -> Store:
    """A store over a fresh bucket."""
    return Store(store_settings)


def _load_fake_kube() -> Any:
    spec = importlib.util.spec_from_file_location("seatrial_fake_kube", Path(__file__).with_name("fake_kube.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def kube() -> Iterator[Any]:
    """A ``FakeKube``."""
    fake = _load_fake_kube().FakeKube()
    yield fake
    fake.close()


@pytest.fixture
def kubeconfig(kube: Any, tmp_path: Path) -> Path:
    """A kubeconfig for it, with the namespace ``evals``."""
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kube.kubeconfig("evals")))
    return path


@pytest.fixture
def client_environment(kubeconfig: Path, store_settings: StoreSettings, monkeypatch: pytest.MonkeyPatch) -> StoreSettings:
    """``KUBECONFIG`` and ``SEATRIAL_S3_*`` for the fake API and a fresh bucket."""
    for name in [name for name in os.environ if name.startswith("SEATRIAL_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "KUBECONFIG": str(kubeconfig),
        "NO_COLOR": "1",
        "SEATRIAL_S3_ENDPOINT": store_settings.endpoint,
        "SEATRIAL_S3_BUCKET": store_settings.bucket,
        "SEATRIAL_S3_ACCESS_KEY": store_settings.access_key,
        "SEATRIAL_S3_SECRET_KEY": store_settings.secret_key,
    }.items():
        monkeypatch.setenv(name, value)
    return store_settings


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """An empty folder for tasks."""
    folder = tmp_path / "suite"
    folder.mkdir()
    return folder


@pytest.fixture
def make_task(suite: Path) -> MakeTask:
    """``make_task("one")`` writes a valid task ``bench/one``; options spoil or vary it."""

    def make(
        name: str, *, native: str | None = None, test: bool = True, image: bool = True, toml: str = "", folder: Path | None = None
    ) -> Path:
        task = (folder or suite) / name
        (task / "environment").mkdir(parents=True)
        (task / "tests").mkdir()
        (task / "instruction.md").write_text(f"Do {name}.\n")
        (task / "task.toml").write_text(f'[task]\nname = "{native or f"bench/{name}"}"\n{toml}')
        if image:
            (task / "environment" / "Dockerfile").write_text("FROM debian:12-slim\n")
        if test:
            (task / "tests" / "test.sh").write_text("#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
        return task

    return make
