"""The verifier of a task that wants an environment of its own for its tests: a second Pod, fed with artifacts and nothing else.

Why the first Pod's own archive is the source: it was bounded, checked and signed for there; the agent's environment no longer exists.
Source: harbor.md 6.2, 6.3 and 6.5.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

from seatrial import contract
from seatrial.contract import AGENT_LOGS_FILE, AGENT_RESULT_FILE, ContractBroken, read_error, read_measures, verify_result
from seatrial_runner.channel import Channel, ChannelError, ConnectTimeout, EnvdError
from seatrial_runner.clock import Deadline
from seatrial_runner.connect import Connection, channel_fault
from seatrial_runner.evidence import forget_members, members
from seatrial_runner.faults import Fault, runner_crashed
from seatrial_runner.grade import grading_of, verify
from seatrial_runner.keep import Keeper
from seatrial_runner.prepare import chunks, read_bytes
from seatrial_runner.report import Report
from seatrial_runner.tarstream import stays_inside
from seatrial_runner.variables import template_sources
from seatrial_runner.verifier import Session, make_keeper

_SPANS: Final = ("environment_setup", "agent_setup", "agent_execution")
_OPEN_MODE: Final = 0o777
_MANIFEST: Final = "artifacts/manifest.json"
_MANIFEST_BYTES: Final = 4 * 1024 * 1024


def run_separate(session: Session, report: Report, logs: BinaryIO) -> Keeper:
    """Connect, lay the artifacts out, run the tests; the evidence is the agent's and the verifier's together."""
    paths, trial = session.paths, session.trial
    listener = Channel.listen(paths.agent_socket)
    # Nobody drives an agent here; envd wants both ends all the same.
    unused = Connection(listener, session.start_limit)
    archive = f"{paths.task}/{AGENT_LOGS_FILE}"
    keeper = make_keeper(session, logs)
    channel: Channel | None = None
    try:
        _take_over(session, report)
        keeper.copy(archive)
        channel = _connect(session)
    except Fault as fault:
        report.fail(fault)
    except ChannelError as error:
        report.fail(channel_fault(error, "the verifier's environment started"))
    grading = grading_of(trial, paths)
    if channel is not None:
        report.graded = True
        sources = template_sources(session.environ, trial["variables"])
        with report.phase("verifier"):
            _lay_out(channel, archive, workdir=trial["environment"]["workdir"] or channel.hello.cwd, scratch=paths.scratch)
            channel.empty(paths.logs_verifier, mode=_OPEN_MODE)
            verify(channel, grading, trial=trial, paths=paths, sources=sources, stop=session.stop, report=report)
        keeper.after_tests(grading)
    if unused.channel is not None:
        unused.channel.close()
    listener.close()
    return keeper


def _take_over(session: Session, report: Report) -> None:
    """What the agent's Pod reported becomes the beginning of this report.

    Raises:
        Fault: it is not signed with the job's key.
    """
    data = read_bytes(f"{session.paths.task}/{AGENT_RESULT_FILE}")
    try:
        result = verify_result(data, os.fsencode(session.environ.get(contract.VAR_SIGNING_KEY, "")))
        extra: Mapping[str, Any] = result["seatrial"]
        if result["trial_name"] != session.trial["trial"] or extra["retry"] != session.trial.get("verifies"):
            raise ContractBroken("it belongs to another trial or retry")
        error = read_error(extra["error"])
    except (ContractBroken, KeyError, TypeError) as error:
        raise runner_crashed("the verifier", f"the agent's result does not count: {error}") from error
    report.timer.started_at = result["started_at"]
    report.spans |= {name: result[name] for name in _SPANS if result.get(name)}
    report.agent_result = result["agent_result"]
    report.measures = read_measures(extra.get("measures") or {})
    report.leftover_processes = 0
    if error is not None:
        report.fail(error)
        report.error_at = (result.get("exception_info") or {}).get("occurred_at", report.error_at)


def _connect(session: Session) -> Channel:
    limit = session.trial["timeouts"]["environment"]
    try:
        return session.connection.wait(Deadline(limit), session.stop, doing="the verifier's environment started")
    except ConnectTimeout as error:
        message = f"Verifier environment start timed out after {float(limit)} seconds: {error}"
        raise Fault("EnvironmentStartTimeoutError", "environment", message) from error


# --- artifacts -----------------------------------------------------------------------------------------------------------------------


def _lay_out(channel: Channel, archive: str, *, workdir: str, scratch: str) -> None:
    """Put every artifact that was kept at the path where it came from; a directory is emptied first.

    One that was skipped or that failed is not there: what lies at its place in the archive, if anything, is another one's.

    Raises:
        Fault: the environment refuses it.
    """
    for row in _manifest(archive):
        if row["status"] not in ("ok", "empty"):
            continue
        source = row["source"] if row["source"].startswith("/") else f"{workdir.rstrip('/')}/{row['source']}"
        source = source.rstrip("/") or "/"
        part = f"{scratch}/artifact.tar"
        try:
            if row["type"] == "directory":
                channel.empty(source, mode=_OPEN_MODE)
                _extract(archive, row["destination"], part, rename="")
                channel.put(chunks(part), source)
            else:
                parent, _, name = source.rpartition("/")
                _extract(archive, row["destination"], part, rename=name)
                channel.put(chunks(part), parent or "/", dir_mode=_OPEN_MODE)
        except EnvdError as error:
            raise Fault("AddTestsDirError", "environment", f"the artifact {source[:80]} cannot be put to its place: {error}") from error
        finally:
            if os.path.exists(part):
                os.unlink(part)


def _manifest(archive: str) -> list[dict[str, Any]]:
    with tarfile.open(archive) as tar:
        for member in members(tar):
            if member.name == _MANIFEST:
                file = tar.extractfile(member)
                rows: list[dict[str, Any]] = json.loads(file.read(_MANIFEST_BYTES)) if file is not None else []
                return rows
    return []


def _extract(archive: str, top: str, target: str, *, rename: str) -> None:
    """Write the members below ``top`` as a tar of its own, or ``top`` itself under the name ``rename``. Links that leave it are dropped."""
    with tarfile.open(archive) as tar, tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as out:
        for member in members(tar):
            name = rename if rename and member.name == top else member.name.removeprefix(f"{top}/")
            if name == member.name or (rename and name != rename):
                continue
            if member.issym() and (rename or not stays_inside(name, member.linkname)):
                continue
            copied = tarfile.TarInfo(name)
            copied.type, copied.linkname, copied.mtime = member.type, member.linkname, member.mtime
            copied.mode = member.mode & 0o777
            copied.size = member.size if member.isreg() else 0
            out.addfile(copied, tar.extractfile(member) if member.isreg() else None)
            forget_members(out)
