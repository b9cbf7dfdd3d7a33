"""The verifier's container: wait for the agent's end, grade, keep the evidence, report, end the Pod.

Why it trusts so little: everything in the environment may have been prepared by the agent. Rewards, logs and artifacts are read through
envd, bounded, and never through a link; the test script is the archive's own. Life cycle: harbor.md 4.3-4.5 and 6.3; the order of the
report: architecture section 2.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from typing import Any, BinaryIO, Final, NamedTuple, cast

from seatrial import contract
from seatrial.contract import TESTS_TAR, AgentEnd, ContractBroken, ErrorInfo, Span, TrialInput, Verdict
from seatrial_runner.channel import Channel, ChannelError, EnvdError, ExitStatus, Missing, NotRegular, TooLarge
from seatrial_runner.clock import Deadline, Timer, utc_now
from seatrial_runner.connect import Connection, channel_fault
from seatrial_runner.ends import AgentWatch
from seatrial_runner.faults import OUT_OF_MEMORY, Fault, interrupted, print_traceback, runner_crashed
from seatrial_runner.paths import Paths
from seatrial_runner.prepare import chunks, make_log_folder, read_bytes
from seatrial_runner.redact import Redactor, SecretInbox
from seatrial_runner.rewards import REWARD_FILE_BYTES, Rewards, parse_reward_json, parse_reward_text
from seatrial_runner.stop import Stop
from seatrial_runner.variables import resolve_all, secret_values, template_sources
from seatrial_runner.watch import TimedOut, Watcher

STDOUT_FILE: Final = "test-stdout.txt"


class Patiences(NamedTuple):
    """How long the end of a trial may take, in seconds. The Pod's deadline must leave room for the sum."""

    collect: float = 120.0
    logs: float = 120.0
    result: float = 180.0
    first_pause: float = 0.25
    agent_start: float = 60.0
    """Beyond the environment's own limit."""
    agent_overtime: float = 300.0
    """Beyond the sum of the agent's limits, after which an agent's container that neither ends nor dies is given up."""
    connect: float = 10.0
    """For an envd that the agent has seen already."""
    last_words: float = 5.0
    """After SIGTERM, for the agent's end record."""


DEFAULT_PATIENCES: Final = Patiences()


class Report:
    """What is known of the trial so far. The first error wins."""

    def __init__(self) -> None:
        self.timer = Timer()
        self.spans: dict[str, Span] = {}
        self.agent_result: dict[str, Any] | None = None
        self.error: ErrorInfo | None = None
        self.error_at: str | None = None
        self.rewards: Rewards | None = None
        self.graded = False
        self.tampered = False
        self.leftover_processes = 0
        self.truncated: tuple[str, ...] = ()
        self.logs_sha256: str | None = None
        self.logs_error: str | None = None

    def fail(self, error: Fault | ErrorInfo) -> None:
        if self.error is None:
            self.error = error.info() if isinstance(error, Fault) else error
            self.error_at = utc_now()

    def take_agent_end(self, end: AgentEnd) -> None:
        self.spans |= end["spans"]
        self.agent_result = end["result"]
        if end["error"] is not None:
            self.fail(end["error"])

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Times a phase and records what ends it early."""
        timer = Timer()
        try:
            yield
        except Fault as fault:
            self.fail(fault)
        except ChannelError as error:
            self.fail(channel_fault(error, "the verifier worked"))
        except Exception as error:  # noqa: BLE001 - the border: evidence and verdict must come, whatever breaks
            print_traceback()
            self.fail(runner_crashed("verifier runner", f"{type(error).__name__}: {error}"))
        finally:
            self.spans[name] = timer.span()


class Session(NamedTuple):
    """The fixed things of one verifier run."""

    paths: Paths
    environ: Mapping[str, str]
    trial: TrialInput
    stop: Stop
    patiences: Patiences
    connection: Connection
    inbox: SecretInbox


def run(paths: Paths, environ: Mapping[str, str], *, stop: Stop | None = None, patiences: Patiences = DEFAULT_PATIENCES) -> int:
    """Play the verifier's part of a trial; always 0 once the verdict is written."""
    stop = stop or Stop.on_sigterm()
    listener = Channel.listen(paths.verifier_socket)
    inbox = SecretInbox(paths.secrets_socket)
    trial: TrialInput = json.loads(read_bytes(paths.input))
    connection = Connection(listener, trial["timeouts"]["environment"] + patiences.agent_start)
    session = Session(paths, environ, trial, stop, patiences, connection, inbox)
    report = Report()
    secrets: list[str] = []
    end = _wait_for_agent(session, report, secrets)
    grade = end is not None and _should_grade(trial, end, report)
    channel = _connected(session, end, report) if end is not None and "agent_execution" in end["spans"] else None
    if channel is not None:
        _run_collect_hooks(session, channel)
    if grade and channel is not None:
        report.graded = True
        with report.phase("verifier"):
            _verify(session, channel, report)
    redactor = Redactor([*secrets, *_own_secrets(session)])
    if report.error is not None:
        report.error["message"] = redactor.text(report.error["message"])
    _say(paths, _verdict(trial, report, result_sha256=None))
    stored_sha256 = _store(session, report, redactor)
    _say(paths, _verdict(trial, report, result_sha256=stored_sha256))
    if connection.channel is not None:
        _end_environment(connection.channel)
    listener.close()
    inbox.close()
    return 0


# --- the agent's end -----------------------------------------------------------------------------------------------------------------


def _wait_for_agent(session: Session, report: Report, secrets: list[str]) -> AgentEnd | None:
    """The agent's end record, or None with the reason in ``report``. Secrets to redact arrive on the way."""
    try:
        end = _agent_end(session, secrets)
    except Fault as fault:
        report.fail(fault)
        return None
    except ContractBroken as error:
        report.fail(runner_crashed("the agent's container", f"left a broken record: {error}"))
        return None
    finally:
        secrets += session.inbox.read()
    report.take_agent_end(end)
    return end


def _agent_end(session: Session, secrets: list[str]) -> AgentEnd:
    limits, patiences, stop = session.trial["timeouts"], session.patiences, session.stop
    start_limit = limits["environment"] + patiences.agent_start
    end_limit = None if limits["agent"] is None else start_limit + limits["agent_setup"] + limits["agent"] + patiences.agent_overtime
    watch = AgentWatch(session.paths.agent_lock, session.paths.agent_end)
    last_words = Deadline(None)
    loaded = False
    while True:
        secrets += session.inbox.read()
        state = watch.look()
        if state == "running" and not loaded:
            loaded = True
            _load_the_rest()
            continue
        waited = watch.waited.seconds()
        match state:
            case dict():
                return state
            case "died":
                raise runner_crashed("the agent's container", "ended without a record: killed, out of memory, or its image failed")
            case "absent" if waited > start_limit:
                message = f"the agent's container did not start within {start_limit:.0f} seconds"
                raise Fault("EnvironmentStartTimeoutError", "infrastructure", message, reason="AgentNotStarted")
            case "running" if end_limit is not None and waited > end_limit:
                raise runner_crashed("the agent's container", f"did not end within {end_limit:.0f} seconds")
        if stop.requested:
            if last_words.seconds is None:
                last_words = Deadline(patiences.last_words)
            if last_words.passed:
                raise interrupted("the agent ran")
            time.sleep(watch.pause_seconds)
        else:
            stop.sleep(watch.pause_seconds)


def _load_the_rest() -> None:
    """What the end needs costs 60 ms to load: while the agent runs nobody waits for it."""
    import seatrial_runner.evidence
    import seatrial_runner.presigned
    import seatrial_runner.result  # noqa: F401


def _should_grade(trial: TrialInput, end: AgentEnd, report: Report) -> bool:
    """Harbor's rule: an error of the preparation is never graded; one of the agent as the table says."""
    from seatrial_runner.result import policy_of

    if trial["verifier"]["disable"]:
        return False
    if end["error"] is not None and ("agent_execution" not in end["spans"] or not policy_of(trial, end["error"]["type"]).grade):
        return False
    if trial["verifier"]["mode"] != "shared":
        report.fail(Fault("ValueError", "user", "this runner verifies in shared mode only", reason="VerifierModeUnsupported"))
        return False
    return True


# --- grading -------------------------------------------------------------------------------------------------------------------------


def _connected(session: Session, end: AgentEnd, report: Report) -> Channel | None:
    """The channel to the environment that the agent drove; None with the reason in ``report``."""
    doing = "the verifier started"
    try:
        channel = session.connection.wait(Deadline(session.patiences.connect), session.stop, doing=doing)
    except Fault as fault:
        report.fail(fault)
        return None
    except ChannelError as error:
        report.fail(channel_fault(error, doing))
        return None
    if end.get("envd", channel.hello.instance) != channel.hello.instance:
        message = "agent and verifier were connected to different programs: something in the image dialled before envd"
        report.fail(Fault("RuntimeRequestError", "environment", message, reason="EnvironmentMisbehaved"))
        return None
    return channel


def _run_collect_hooks(session: Session, channel: Channel) -> None:
    """Let the task turn state into files, before anything is graded or kept. Failures are logged and nothing more (harbor.md 4.7)."""
    for hook in session.trial["verifier"]["collect"]:
        if hook["service"] != "main":
            continue
        watcher = Watcher(
            channel,
            deadline=Deadline(None),
            stop=session.stop,
            volumes=session.trial.get("limits", {}),
            cause="verifier",
            doing="a collect hook ran",
        )
        cwd = session.trial["environment"]["workdir"]
        try:
            status = watcher.run(hook["command"], cwd=cwd, user=hook["user"], limit_seconds=hook["timeout_sec"])
        except (ChannelError, Fault) as error:
            sys.stderr.write(f"verifier: a collect hook failed: {error}\n")
            continue
        if not status.ok:
            sys.stderr.write(f"verifier: a collect hook ended with exit code {status.returncode}\n")


def _verify(session: Session, channel: Channel, report: Report) -> None:
    trial = session.trial
    limit = trial["timeouts"]["verifier"]
    watcher = Watcher(
        channel,
        deadline=Deadline(limit),
        stop=session.stop,
        volumes=trial.get("limits", {}),
        cause="verifier",
        doing="the verifier ran",
    )
    try:
        _grade(session, watcher, report)
    except TimedOut as error:
        raise Fault("VerifierTimeoutError", "verifier", f"Verifier execution timed out after {float(limit)} seconds") from error


def _grade(session: Session, watcher: Watcher, report: Report) -> None:
    paths, trial, channel = session.paths, session.trial, watcher.channel
    report.leftover_processes = len(channel.leftovers())
    report.tampered = _remove_planted(channel, paths)
    env = resolve_all(trial["verifier"]["env"], template_sources(session.environ, trial["variables"]), where="[verifier.env]")
    watcher.check()
    _upload_tests(channel, paths)
    watcher.check()
    # Never by direct exec: a script without a first line, or with bytes before it, is run by the shell. The exit code means nothing.
    status = watcher.run(
        f"({paths.tests}/test.sh) > {paths.logs_verifier}/{STDOUT_FILE} 2>&1",
        env=env,
        cwd=trial["environment"]["workdir"],
        user=trial["verifier"]["user"],
    )
    report.rewards = read_rewards(channel, paths, status)


def _remove_planted(channel: Channel, paths: Paths) -> bool:
    """Remove reward files, links and folders that were there before the test script; True if there were any."""
    planted = False
    try:
        make_log_folder(channel, paths.logs_verifier)
        for name in ("reward.json", "reward.txt"):
            planted = channel.remove(f"{paths.logs_verifier}/{name}") or planted
        # Not a reward, but a pipe or a folder in its place would keep the test script from running.
        channel.remove(f"{paths.logs_verifier}/{STDOUT_FILE}")
    except EnvdError as error:
        raise Fault("RuntimeError", "environment", f"old reward files cannot be removed: {error}") from error
    return planted


def _upload_tests(channel: Channel, paths: Paths) -> None:
    tests = f"{paths.task}/{TESTS_TAR}"
    if not os.path.exists(tests):
        raise Fault("FileNotFoundError", "verifier", "the task has no tests/test.sh")
    try:
        # The script's x bits were set when the tests were packed.
        channel.put(chunks(tests), paths.tests, empty_first=True)
        if channel.stat(f"{paths.tests}/test.sh") is None:
            raise Fault("FileNotFoundError", "verifier", "the task has no tests/test.sh, or .harborignore leaves it out")
    except EnvdError as error:
        raise Fault("AddTestsDirError", "environment", f"the tests cannot be put to {paths.tests}: {error}") from error


def read_rewards(channel: Channel, paths: Paths, status: ExitStatus) -> Rewards:
    """``reward.json`` if it exists, else ``reward.txt``.

    Raises:
        Fault: none exists, or the one that counts is bad.
    """
    for name, parse in (("reward.json", parse_reward_json), ("reward.txt", parse_reward_text)):
        try:
            found = channel.read_file(f"{paths.logs_verifier}/{name}", max_bytes=REWARD_FILE_BYTES)
        except EnvdError as error:
            raise Fault("DownloadVerifierDirError", "environment", f"{name} cannot be read: {error}") from error
        match found:
            case Missing():
                continue
            case NotRegular(kind=kind):
                raise Fault("VerifierOutputParseError", "verifier", f"{name} is no regular file ({kind}): not read", reason="RewardInvalid")
            case TooLarge(size=size):
                message = f"{name} has {size} bytes, more than {REWARD_FILE_BYTES}"
                raise Fault("VerifierOutputParseError", "verifier", message, reason="RewardInvalid")
            case bytes():
                return parse(found)
    from seatrial_runner.diagnose import why_no_reward

    if status.oom_killed:
        message = "the memory limit killed a process of the test script, and there is no reward"
        raise Fault(OUT_OF_MEMORY, "verifier", message, reason="OOMKilled")
    why = why_no_reward(channel, f"{paths.task}/{TESTS_TAR}", status)
    raise Fault("RewardFileNotFoundError", "verifier", f"no reward.json or reward.txt in {paths.logs_verifier}: {why}")


# --- evidence and report -------------------------------------------------------------------------------------------------------------


def _store(session: Session, report: Report, redactor: Redactor) -> str | None:
    """Upload logs, then the result; returns the result's digest if it is stored."""
    import hashlib

    from seatrial_runner.result import TrialOutcome, build_result

    timer = Timer()
    try:
        _store_logs(session, report, redactor)
    except Exception as error:  # noqa: BLE001 - the border: evidence must never cost the result
        report.logs_sha256 = None
        report.logs_error = redactor.text(f"{type(error).__name__}: {error}")[:300]
    report.spans["logs"] = timer.span()
    outcome = TrialOutcome(
        started_at=report.timer.started_at,
        finished_at=utc_now(),
        spans=report.spans,
        agent_result=report.agent_result,
        rewards=report.rewards,
        error=report.error,
        error_at=report.error_at,
        graded=report.graded,
        tampered=report.tampered,
        leftover_processes=report.leftover_processes,
        truncated=report.truncated,
        logs_sha256=report.logs_sha256,
        logs_error=report.logs_error,
    )
    result = build_result(session.trial, outcome)
    # The bytes of the Secret, whatever they are.
    key = os.fsencode(session.environ.get(contract.VAR_SIGNING_KEY, ""))
    data = contract.sign_result(result, key)
    if len(data) > contract.RESULT_BYTES:
        result["seatrial"]["reward_components"] = None
        data = contract.sign_result(result, key)
    failure = _upload(session, contract.VAR_RESULT_URL, BytesIO(data), "application/json", session.patiences.result, reserve_seconds=3.0)
    if failure is None:
        return hashlib.sha256(data).hexdigest()
    sys.stderr.write(f"verifier: the result is not stored: {failure}\n")
    return None


def _store_logs(session: Session, report: Report, redactor: Redactor) -> None:
    with open(f"{session.paths.scratch}/logs.tar.gz", "w+b") as file:
        sha256 = _write_logs(session, report, redactor, file)
        seconds = session.patiences.logs
        report.logs_error = _upload(session, contract.VAR_LOGS_URL, file, "application/gzip", seconds, reserve_seconds=15.0)
        if report.logs_error is None:
            report.logs_sha256 = sha256


def _write_logs(session: Session, report: Report, redactor: Redactor, file: BinaryIO) -> str:
    from seatrial_runner.evidence import EvidenceWriter, FailingSource, LocalSource, Source, collect_artifacts

    paths, trial, channel = session.paths, session.trial, session.connection.channel
    deadline = Deadline(session.patiences.collect)
    local = LocalSource((paths.logs_agent, paths.logs_verifier, paths.logs_artifacts))

    def source() -> Source:
        return local if channel is None or channel.closed else FailingSource(cast(Source, channel))

    def out_of_time() -> bool:
        return deadline.passed or (session.stop.requested and session.stop.saving.cap(60.0) < 25.0)

    writer = EvidenceWriter(file, redactor=redactor, out_of_time=out_of_time)
    writer.add_logs(source(), paths.logs_verifier, contract.VERIFIER)
    writer.add_logs(source(), paths.logs_agent, contract.AGENT)
    workdir = trial["environment"]["workdir"] or (channel.hello.cwd if channel is not None else "/")
    manifest = collect_artifacts(writer, source(), trial["artifacts"], conventional=paths.logs_artifacts, workdir=workdir)
    writer.add_bytes("artifacts/manifest.json", json.dumps(manifest, indent=2).encode())
    evidence = writer.finish()
    report.truncated = evidence.truncated
    return evidence.sha256


def _upload(session: Session, variable: str, data: BinaryIO, content_type: str, seconds: float, *, reserve_seconds: float) -> str | None:
    """None when it is stored, else why not. After SIGTERM it ends in time to leave ``reserve_seconds``."""
    from seatrial_runner.presigned import Patience, StoreError, upload

    stop = session.stop

    def too_late() -> bool:
        return stop.requested and stop.saving.cap(reserve_seconds + 1) <= reserve_seconds

    url = session.environ.get(variable)
    if not url:
        return f"{variable} is not set"
    patience = Patience(
        seconds=max(0.1, stop.saving.cap(seconds) - (reserve_seconds if stop.requested else 0)),
        first_pause_seconds=session.patiences.first_pause,
    )
    try:
        upload(url, data, content_type=content_type, patience=patience, give_up=too_late)
    except StoreError as error:
        return f"{type(error).__name__}: {error}"
    return None


def _verdict(trial: TrialInput, report: Report, *, result_sha256: str | None) -> Verdict:
    values = report.rewards.values if report.rewards is not None else None
    seconds = {name: _seconds(span) for name, span in report.spans.items()}
    return Verdict(
        trial=trial["trial"],
        retry=trial["retry"],
        rewards=values,
        rewards_elsewhere=False,
        error=report.error,
        stored=result_sha256 is not None,
        result_sha256=result_sha256,
        logs_sha256=report.logs_sha256,
        seconds={**seconds, "total": report.timer.seconds()},
        tampered=report.tampered,
        leftover_processes=report.leftover_processes,
    )


def _seconds(span: Span) -> float:
    """Length of a span; 0 for times that are none (an agent image of the user may have written them)."""
    from datetime import datetime

    try:
        length = datetime.fromisoformat(span["finished_at"]) - datetime.fromisoformat(span["started_at"])
        return max(0.0, length.total_seconds())
    except (ValueError, TypeError):
        return 0.0


def _say(paths: Paths, verdict: Verdict) -> None:
    """Write the termination message. Said once before the uploads too: a killed verifier then still leaves the rewards."""
    try:
        with open(paths.termination_log, "wb") as file:
            file.write(contract.write_verdict(verdict))
    except OSError as error:
        sys.stderr.write(f"verifier: the verdict cannot be written: {error}\n")


def _end_environment(channel: Channel) -> None:
    try:
        channel.shutdown(end_container=True)
    except ChannelError as error:
        # The operator deletes a Pod whose verifier has ended.
        sys.stderr.write(f"verifier: the environment was not told to end: {error}\n")
    channel.close()


def _own_secrets(session: Session) -> list[str]:
    sources = template_sources(session.environ, session.trial["variables"])
    values = secret_values(sources)
    for name, value in session.trial["verifier"]["env"].items():
        try:
            values += secret_values(resolve_all({name: value}, sources, where="[verifier.env]"))
        except Fault:
            continue  # a variable that is missing has no value to hide
    return values
