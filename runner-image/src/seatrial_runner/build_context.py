"""The init container of a build: fetch the task archive, check it, and leave one build context and nothing else of the task.

A Dockerfile is a stranger's program, and the environment's image is what the agent will work in: tests reach only the build of a separate
verifier's image, whose context they are, and the solution reaches none.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from seatrial import contract
from seatrial.contract import StageExit
from seatrial.taskpkg.heredoc import FOLDER as HEREDOCS
from seatrial.taskpkg.heredoc import HeredocError, without_heredocs
from seatrial.taskpkg.mirrors import decode_mirrors, mirror_bases
from seatrial_runner.paths import Paths
from seatrial_runner.presigned import DISK_FULL, Patience
from seatrial_runner.stage import PATIENCE, StageFailed, fetch, report_failure

_MOST_BYTES: Final = 1024 * 1024
_DOCKERFILE_BYTES: Final = 4000
"""Of the Dockerfile for the termination message: the operator names the line of a failed build by it."""


def run(paths: Paths, environ: Mapping[str, str], *, patience: Patience = PATIENCE) -> int:
    """Do it; returns a ``StageExit``. The termination message is the Dockerfile's text, or what went wrong."""
    try:
        _prepare(paths, environ, patience)
    except StageFailed as error:
        return report_failure(paths, error.code, error.message)
    except OSError as error:
        code = StageExit.DISK_FULL if error.errno in DISK_FULL else StageExit.INTERNAL
        return report_failure(paths, code, f"the build context cannot be written: {error.strerror or error}")
    return StageExit.OK


def _prepare(paths: Paths, environ: Mapping[str, str], patience: Patience) -> None:
    target, folder = Path(environ[contract.VAR_CONTEXT_DIR]), environ[contract.VAR_CONTEXT_FOLDER]
    if folder not in contract.CONTEXT_FOLDERS:
        raise StageFailed(StageExit.INTERNAL, f"{folder!r} is no build context: operator and runner are of different versions")
    extracted, context = target / ".extracted", target / folder
    for leftover in (extracted, context):
        # A restarted Pod sandbox runs init containers again on the same volumes.
        shutil.rmtree(leftover, ignore_errors=True)
    root = extracted / fetch(environ, extracted, patience)
    dockerfile = root / folder / "Dockerfile"
    if not dockerfile.is_file() or dockerfile.is_symlink():
        raise StageFailed(StageExit.TASK_UNSUPPORTED, f"{folder}/Dockerfile is missing: publish the task again")
    os.rename(root / folder, context)
    shutil.rmtree(extracted, ignore_errors=True)
    with (context / "Dockerfile").open("rb") as stream:
        data = stream.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise StageFailed(StageExit.TASK_UNSUPPORTED, f"{folder}/Dockerfile is larger than {_MOST_BYTES} bytes")
    mirrors, args = decode_mirrors(environ[contract.VAR_IMAGE_MIRRORS]), json.loads(environ[contract.VAR_BUILD_ARGS])
    text = mirror_bases(data.decode("utf-8", errors="surrogateescape"), mirrors, args=args)
    try:
        translated = without_heredocs(text)
    except HeredocError as error:
        raise StageFailed(StageExit.TASK_UNSUPPORTED, f"{folder}/Dockerfile {error}") from error
    shutil.copyfile(Path(paths.tools, "envd"), target / "envd")
    (target / "envd").chmod(0o755)
    # Beside the context, so that no COPY can meet it.
    (target / "Dockerfile").write_text(translated.text, encoding="utf-8", errors="surrogateescape")
    _place_ignore_file(context, target, exceptions=(HEREDOCS,) if translated.files else ())
    if translated.files and os.path.lexists(context / HEREDOCS):
        # It might be a link: nothing is written through what a stranger has made.
        raise StageFailed(StageExit.TASK_UNSUPPORTED, f"{folder}/{HEREDOCS} is a name that builds use: rename it")
    for name, content in translated.files.items():
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        (context / name).write_text(content, encoding="utf-8", errors="surrogateescape")
    said = text.encode("utf-8", errors="surrogateescape")[:_DOCKERFILE_BYTES]
    Path(paths.termination_log).write_bytes(said.decode("utf-8", errors="ignore").encode())


def _place_ignore_file(context: Path, target: Path, *, exceptions: Sequence[str]) -> None:
    """The rules where the builder looks for them first, beside the Dockerfile; of two the Dockerfile's own counts, as with BuildKit."""
    for name in ("Dockerfile.dockerignore", ".dockerignore"):
        if (context / name).is_file() and not (context / name).is_symlink():
            lines = [(context / name).read_bytes(), *(f"!{path}".encode() for path in exceptions)]
            (target / "Dockerfile.dockerignore").write_bytes(b"\n".join(lines) + b"\n")
            return
