"""The Pod of role ``score``: fetch a ``metric.py`` and the rewards, run it, and store what it said, signed.

Three containers, one after the other: ``fetch`` holds the URLs, ``script`` runs a stranger's program and holds nothing, ``score`` holds the
key and takes what the script left as untrusted input. A script that fails is a result too; only a store that does not answer is not.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Final

from seatrial import contract
from seatrial.contract import ScriptError, ScriptInput, ScriptResult, StageExit
from seatrial.scoring.confine import can_forbid_network, forbid_network
from seatrial.scoring.script import DEPENDENCIES, FAILED, OUTPUT_INVALID, ScriptFault, ScriptLimits, check_values, compute, dependencies
from seatrial.scoring.script_archive import ARCHIVE_FILE, MODULES, MOST_BYTES, ArchiveRefused, is_archive, unpack
from seatrial_runner.faults import print_traceback
from seatrial_runner.paths import Paths
from seatrial_runner.presigned import DISK_FULL, Patience, StoreMissing, StoreRefused, StoreTaken, StoreUnavailable, download, upload
from seatrial_runner.stage import PATIENCE, report_failure

_REWARDS_BYTES: Final = 512 * 1024 * 1024
_END_BYTES: Final = 64 * 1024


def fetch(paths: Paths, environ: Mapping[str, str], *, patience: Patience = PATIENCE) -> int:
    """Script and rewards, each checked against its digest; returns a ``StageExit``."""
    given = _given(environ)
    wanted = (
        (contract.VAR_SCRIPT_URL, contract.METRIC_FILE, given["script_sha256"], MOST_BYTES),
        (contract.VAR_REWARDS_URL, contract.REWARDS_FILE, given["rewards_sha256"], _REWARDS_BYTES),
    )
    for variable, name, sha256, most in wanted:
        target = Path(paths.script) / name
        try:
            with open(target, "w+b") as file:
                download(environ[variable], file, max_bytes=most, patience=patience)
                file.seek(0)
                found = hashlib.file_digest(file, "sha256").hexdigest()
            target.chmod(0o644)
        except StoreMissing as error:
            return report_failure(paths, StageExit.ARCHIVE_MISSING, f"{name}: {error}")
        except StoreRefused as error:
            return report_failure(paths, StageExit.STORE_REFUSED, f"{name}: {error}")
        except StoreUnavailable as error:
            return report_failure(paths, StageExit.STORE_UNAVAILABLE, f"{name}: {error}")
        except OSError as error:
            code = StageExit.DISK_FULL if error.errno in DISK_FULL else StageExit.INTERNAL
            return report_failure(paths, code, f"{name} cannot be written: {error.strerror or error}")
        if found != sha256:
            return report_failure(paths, StageExit.ARCHIVE_CORRUPT, f"{name} has another sha256 than was stated: publish it again")
    return _unpack(paths)


def _unpack(paths: Paths) -> int:
    """A script that was published with its packages: what it is made of takes its place."""
    folder = Path(paths.script)
    stored, archive = folder / contract.METRIC_FILE, folder / ARCHIVE_FILE
    if not is_archive(stored):
        return StageExit.OK
    try:
        stored.rename(archive)
        unpack(archive, folder)
        archive.unlink()
    except ArchiveRefused as error:
        return report_failure(paths, StageExit.ARCHIVE_CORRUPT, f"{contract.METRIC_FILE}: its archive {error}")
    except OSError as error:
        code = StageExit.DISK_FULL if error.errno in DISK_FULL else StageExit.INTERNAL
        return report_failure(paths, code, f"{contract.METRIC_FILE} cannot be unpacked: {error.strerror or error}")
    return StageExit.OK


def give_up_network() -> None:
    """This process needs no network, and a script that takes it over must not get one. Where that fails the script is refused by name."""
    if can_forbid_network():
        with contextlib.suppress(OSError):
            forbid_network()


def script(paths: Paths, environ: Mapping[str, str]) -> int:
    """Run it; what it computed, or its error, is in ``SCRIPT_END_FILE``. Always 0 once that is written."""
    given, folder = _given(environ), Path(paths.script)
    values: dict[str, float] | None = None
    error: ScriptError | None = None
    try:
        source, modules = folder / contract.METRIC_FILE, folder / MODULES
        brought = modules if modules.is_dir() else None
        needs = dependencies(source.read_text("utf-8", errors="replace"))
        if needs and brought is None:
            text = f"needs {', '.join(needs)}, which its Pod cannot fetch: publish it with them, or run it with seatrial rescore --script"
            raise ScriptFault(DEPENDENCIES, text)
        limits = ScriptLimits(given["seconds"], given["memory_bytes"])
        values = compute(source, folder / contract.REWARDS_FILE, scratch=Path(paths.scratch), limits=limits, modules=brought)
    except ScriptFault as fault:
        error = _error(fault)
    except Exception as fault:  # noqa: BLE001 - the border: whatever the script did to us, there is an answer
        print_traceback()
        error = _error(ScriptFault(FAILED, f"{type(fault).__name__}: {fault}"))
    if error is not None:
        sys.stderr.write(f"{error['type']}: {error['message']}\n")
    (Path(paths.script_out) / contract.SCRIPT_END_FILE).write_text(json.dumps({"values": values, "error": error}), "utf-8")
    return 0


def score(paths: Paths, environ: Mapping[str, str], *, patience: Patience = PATIENCE) -> int:
    """Sign and store what the script left; returns a ``StageExit``."""
    given = _given(environ)
    values, error = read_end(Path(paths.script_out) / contract.SCRIPT_END_FILE)
    result = ScriptResult(
        job_uid=given["job_uid"],
        script=given["script"],
        retry=given["retry"],
        script_sha256=given["script_sha256"],
        rewards_sha256=given["rewards_sha256"],
        values=values,
        error=error,
    )
    # The bytes of the Secret, whatever they are.
    data = contract.sign_result(result, os.fsencode(environ[contract.VAR_SIGNING_KEY]))
    try:
        upload(environ[contract.VAR_RESULT_URL], BytesIO(data), content_type="application/json", patience=patience)
    except StoreTaken:
        # The Pod's sandbox was restarted after the first answer, which counts.
        return StageExit.OK
    except StoreUnavailable as fault:
        return report_failure(paths, StageExit.STORE_UNAVAILABLE, str(fault))
    except (StoreMissing, StoreRefused) as fault:
        return report_failure(paths, StageExit.STORE_REFUSED, str(fault))
    return StageExit.OK


def read_end(path: Path) -> tuple[dict[str, float] | None, ScriptError | None]:
    """Values or error as the script's container left them: bounded, never through a link, checked."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            data = file.read(_END_BYTES + 1)
        if len(data) > _END_BYTES:
            raise ValueError("the record is too long")
        body = json.loads(data)
        error = body["error"]
        if error is not None:
            return None, _error(ScriptFault(contract.error_name(str(error["type"])), str(error["message"])))
        return check_values(body["values"]), None
    except ScriptFault as fault:
        return None, _error(fault)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as fault:
        return None, _error(ScriptFault(OUTPUT_INVALID, f"left no record of its end ({type(fault).__name__})"))


def _given(environ: Mapping[str, str]) -> ScriptInput:
    given: ScriptInput = json.loads(environ[contract.VAR_INPUT])
    return given


def _error(fault: ScriptFault) -> ScriptError:
    # The end of a message has the script's last words.
    text = str(fault)
    most = contract.SCRIPT_ERROR_CHARS
    return ScriptError(type=fault.reason, message=text if len(text) <= most else f"{text[:200]} … {text[-(most - 210) :]}")
