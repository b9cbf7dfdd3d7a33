"""Builders of images behind one interface: each turns a build into commands; running them is the same for all.

Why commands: every builder worth supporting has a command line, and what is run can be shown, logged and compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from seatrial.errors import InvalidSpec, SeatrialError
from seatrial.taskpkg.imagekey import DEFAULT_PLATFORM, BuildContext

NAMES: Final = ("docker", "buildah", "buildkit")
_LOG_TAIL_BYTES: Final = 64 * 1024
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Build:
    """One image to make and push."""

    context: BuildContext
    target: str
    """``host/repository:tag``."""
    args: Mapping[str, str] = field(default_factory=dict)
    platform: str = DEFAULT_PLATFORM
    insecure: bool = False
    """The registry speaks plain HTTP."""


class BuildFailed(SeatrialError):
    """A command of the builder failed; ``log`` is the end of what it printed."""

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.log = log


class Builder(Protocol):
    """How one tool builds and pushes."""

    @property
    def name(self) -> str: ...

    def commands(self, build: Build, *, digest_file: Path) -> Sequence[Sequence[str]]:
        """Commands in their order; the last one leaves the pushed digest in ``digest_file``, as text or in JSON."""
        ...


@dataclass(frozen=True)
class Docker:
    """``docker buildx``; whatever builder instance is current."""

    options: Sequence[str] = ()
    """Further options of the build command."""
    name: str = "docker"

    def commands(self, build: Build, *, digest_file: Path) -> Sequence[Sequence[str]]:
        context = build.context
        output = f"type=image,name={build.target},push=true" + (",registry.insecure=true" if build.insecure else "")
        return [
            [
                "docker",
                "buildx",
                "build",
                f"--platform={build.platform}",
                "--progress=plain",
                "--provenance=false",
                *(f"--build-arg={name}={value}" for name, value in sorted(build.args.items())),
                f"--file={context.folder / context.dockerfile}",
                f"--metadata-file={digest_file}",
                f"--output={output}",
                *self.options,
                str(context.folder),
            ]
        ]


@dataclass(frozen=True)
class Buildah:
    """``buildah``, which needs no daemon; isolation and storage as its own variables and files say."""

    options: Sequence[str] = ()
    name: str = "buildah"

    def commands(self, build: Build, *, digest_file: Path) -> Sequence[Sequence[str]]:
        context = build.context
        verify = [f"--tls-verify={'false' if build.insecure else 'true'}"]
        return [
            [
                "buildah",
                "bud",
                "--layers",
                f"--platform={build.platform}",
                *verify,
                *(f"--build-arg={name}={value}" for name, value in sorted(build.args.items())),
                f"--file={context.folder / context.dockerfile}",
                f"--tag={build.target}",
                *self.options,
                str(context.folder),
            ],
            ["buildah", "push", *verify, f"--digestfile={digest_file}", build.target],
        ]


@dataclass(frozen=True)
class BuildKit:
    """A BuildKit daemon at an address, through ``buildctl``."""

    address: str
    options: Sequence[str] = ()
    name: str = "buildkit"

    def commands(self, build: Build, *, digest_file: Path) -> Sequence[Sequence[str]]:
        context = build.context
        folder = context.folder / Path(context.dockerfile).parent
        output = f"type=image,name={build.target},push=true" + (",registry.insecure=true" if build.insecure else "")
        return [
            [
                "buildctl",
                f"--addr={self.address}",
                "build",
                "--progress=plain",
                "--frontend=dockerfile.v0",
                f"--local=context={context.folder}",
                f"--local=dockerfile={folder}",
                f"--opt=filename={Path(context.dockerfile).name}",
                f"--opt=platform={build.platform}",
                *(f"--opt=build-arg:{name}={value}" for name, value in sorted(build.args.items())),
                f"--output={output}",
                f"--metadata-file={digest_file}",
                *self.options,
            ]
        ]


def choose_builder(name: str | None, *, options: Sequence[str] = (), which: Mapping[str, str | None] | None = None) -> Builder:
    """The builder of that name, an address of BuildKit (``tcp://…``, ``unix://…``), or the first that is installed.

    Args:
        name: None chooses.
        options: further options of its build command.
        which: paths of commands by name instead of those on the PATH.

    Raises:
        InvalidSpec: there is no such builder, or none at all.
    """
    if name and "://" in name:
        return BuildKit(name, options)
    known: dict[str, Builder] = {"docker": Docker(options), "buildah": Buildah(options)}
    if name in known:
        return known[name]
    if name == "buildkit":
        address = os.environ.get("BUILDKIT_HOST")
        if address:
            return BuildKit(address, options)
        raise InvalidSpec("--builder", "buildkit needs an address: give tcp://HOST:PORT, or set BUILDKIT_HOST")
    if name:
        raise InvalidSpec("--builder", f"{name!r} is not known; use {', '.join(NAMES)} or an address of BuildKit")
    for candidate, builder in known.items():
        if which.get(candidate) if which is not None else shutil.which(candidate):
            return builder
    raise InvalidSpec(
        "--builder", "neither docker nor buildah is installed: install one, name an address of BuildKit, or let the cluster build"
    )


def run_build(builder: Builder, build: Build, *, log: Path, timeout_seconds: float | None) -> str:
    """Build, push, and return the digest. All that the builder prints goes to ``log``.

    Raises:
        BuildFailed: with the end of the log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="seatrial-build-") as scratch, log.open("wb") as stream:
        digest_file = Path(scratch) / "digest"
        for command in builder.commands(build, digest_file=digest_file):
            stream.write(f"$ {' '.join(command)}\n".encode(errors="replace"))
            stream.flush()
            try:
                code = _run(command, stream.fileno(), timeout_seconds)
            except FileNotFoundError as error:
                raise BuildFailed(f"{command[0]} is not installed", "") from error
            except subprocess.TimeoutExpired as error:
                text = f"the build did not end within {timeout_seconds:g} s ([environment].build_timeout_sec)"
                raise BuildFailed(text, _tail(log)) from error
            if code != 0:
                raise BuildFailed(f"{command[0]} ended with {code}", _tail(log))
        found = _DIGEST.search(_digest_text(digest_file))
    if found is None:
        raise BuildFailed(f"{builder.name} did not say which digest it pushed", _tail(log))
    return found[0]


def _run(command: Sequence[str], output: int, timeout_seconds: float | None) -> int:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        return process.wait(timeout_seconds)
    except BaseException:
        # The whole group: a builder's own children would go on without it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def _digest_text(file: Path) -> str:
    try:
        text = file.read_text("utf-8")
    except OSError:
        return ""
    with contextlib.suppress(ValueError):
        body = json.loads(text)
        if isinstance(body, dict):
            return str(body.get("containerimage.digest", ""))
    return text


def _tail(log: Path) -> str:
    with log.open("rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(0, stream.tell() - _LOG_TAIL_BYTES))
        return stream.read().decode("utf-8", errors="replace")
