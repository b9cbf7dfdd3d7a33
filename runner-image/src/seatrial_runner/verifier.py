"""The verifier's container: wait for the agent's end, keep the evidence, grade, report, end the Pod; for a task with steps, step by step.

What is done in the environment: ``grade``; what is kept: ``keep``. Life cycle: harbor.md 4.3-4.8; the order of the report: architecture
section 2.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import BinaryIO, Final, NamedTuple

from seatrial import contract
from seatrial.contract import AgentEnd, ContractBroken, ErrorInfo, Span, StepAnswer, TrialInput, Verdict, sum_usage
from seatrial_runner.channel import Channel, ChannelError, Listener
from seatrial_runner.clock import Deadline, Timer
from seatrial_runner.connect import Connection, channel_fault
from seatrial_runner.ends import AgentWatch
from seatrial_runner.faults import Fault, interrupted, print_traceback, runner_crashed
from seatrial_runner.grade import Grading, grading_of, grading_of_step, run_collect_hooks, verify
from seatrial_runner.paths import Paths
from seatrial_runner.prepare import read_bytes
from seatrial_runner.redact import Redactor, SecretInbox
from seatrial_runner.report import Report, is_to_be_graded
from seatrial_runner.rewards import Rewards
from seatrial_runner.steps import is_below, trial_rewards, write_answer
from seatrial_runner.stop import Stop
from seatrial_runner.variables import resolve_all, secret_values, template_sources, values_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from seatrial_runner.keep import Keeper


class Patiences(NamedTuple):
    """How long the end of a trial may take, in seconds. The Pod's deadline must leave room for the sum."""

    collect: float = 120.0
    """For what is kept before, or after, one test script."""
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


class Session(NamedTuple):
    """The fixed things of one verifier run."""

    paths: Paths
    environ: Mapping[str, str]
    trial: TrialInput
    stop: Stop
    patiences: Patiences
    connection: Connection
    inbox: SecretInbox
    secrets: list[str]
    """To be redacted; those of the agent arrive on the way."""

    def redactor(self) -> Redactor:
        return Redactor([*self.secrets, *_own_secrets(self)])

    @property
    def start_limit(self) -> float:
        """Seconds until the agent's container must have come into being."""
        return self.trial["timeouts"]["environment"] + self.patiences.agent_start


def run(paths: Paths, environ: Mapping[str, str], *, stop: Stop | None = None, patiences: Patiences = DEFAULT_PATIENCES) -> int:
    """Play the verifier's part of a trial; always 0 once the verdict is written."""
    trial: TrialInput = json.loads(read_bytes(paths.input))
    try:
        with Channel.listen(paths.verifier_socket) as listener:
            _run(paths, environ, trial, stop or Stop.on_sigterm(), patiences=patiences, listener=listener)
    except Exception as error:  # noqa: BLE001 - the border: whatever the agent's image did to us, the operator gets a verdict
        print_traceback()
        # Where the verdict was said before the uploads, it stays: it has the rewards.
        if not os.path.exists(paths.termination_log) or os.path.getsize(paths.termination_log) == 0:
            report = Report()
            report.fail(runner_crashed("verifier", f"{type(error).__name__}: {error}"))
            _say(paths, _verdict(trial, report, [], Stored()))
    return 0


def _run(paths: Paths, environ: Mapping[str, str], trial: TrialInput, stop: Stop, *, patiences: Patiences, listener: Listener) -> None:
    inbox = SecretInbox(paths.secrets_socket)
    connection = Connection(listener, trial["timeouts"]["environment"] + patiences.agent_start)
    session = Session(paths, environ, trial, stop, patiences, connection, inbox, secrets=[])
    report, steps = Report(), list[Report]()
    with open(f"{paths.scratch}/logs.tar.gz", "w+b") as logs:
        if "verifies" in trial:
            from seatrial_runner.separate import run_separate

            keeper = run_separate(session, report, logs)
        elif trial.get("steps"):
            keeper = _run_steps(session, report, steps, logs)
        else:
            keeper = _run_single(session, report, logs)
        _measure(session, report, steps)
        _redact_messages(session, [report, *steps])
        _say(paths, _verdict(trial, report, steps, Stored()))
        stored = _store(session, report, steps, keeper, logs)
    _say(paths, _verdict(trial, report, steps, stored))
    if connection.channel is not None:
        _end_environment(connection.channel)
    inbox.close()


def _run_single(session: Session, report: Report, logs: BinaryIO) -> Keeper:
    end = _wait_for_agent(session, report, session.paths.agent_end)
    if end is not None:
        report.take_agent_end(end)
    keeper = make_keeper(session, logs)
    grading = grading_of(session.trial, session.paths)
    channel = connected(session, end, report) if end is not None and "agent_execution" in end["spans"] else None
    grade = end is not None and is_to_be_graded(session.trial, end)
    is_separate = session.trial["verifier"]["mode"] == "separate"
    _keep_and_grade(session, report, keeper, grading, channel, grade=grade and not is_separate)
    if grade and is_separate and keeper.loss is None:
        report.is_handed_over = True
    elif grade and is_separate:
        message = f"the artifacts for the separate verifier are incomplete: {keeper.loss}"
        report.fail(Fault("DownloadVerifierDirError", "environment", message, reason="ArtifactsIncomplete"))
    return keeper


def _run_steps(session: Session, report: Report, steps: list[Report], logs: BinaryIO) -> Keeper:
    """Step by step, until one stops the trial; the reports of the executed ones are put into ``steps``."""
    trial, paths = session.trial, session.paths
    planned = trial.get("steps", [])
    keeper: Keeper | None = None
    for index, step in enumerate(planned):
        end = _wait_for_agent(session, report, paths.step_end(index))
        keeper = keeper or make_keeper(session, logs)
        if end is None:
            break
        if end.get("step") != index:
            # The end of the whole agent: it failed where no step is to blame.
            report.take_agent_end(end)
            report.fail(runner_crashed("agent runner", f"ended before step {step['name']}"))
            break
        for name in ("environment_setup", "agent_setup"):
            if name in end["spans"]:
                report.spans[name] = end["spans"].pop(name)
        step_report = Report(step["name"])
        step_report.first_agent = steps[0].first_agent if steps else report.spans.get("agent_setup")
        step_report.take_agent_end(end)
        channel = connected(session, end, step_report)
        grading = grading_of_step(trial, paths, index)
        _keep_and_grade(session, step_report, keeper, grading, channel, grade=is_to_be_graded(trial, end))
        steps.append(step_report)
        stopped = step_report.error is not None and step_report.rewards is None
        missed = not trial["verifier"]["disable"] and is_below(step["min_reward"], step_report.values)
        go_on = index + 1 < len(planned) and not stopped and not missed
        write_answer(paths.step_answer(index), StepAnswer(go_on=go_on, verified=step_report.graded))
        if not go_on:
            break
    if report.error is None and any(step.rewards is not None for step in steps):
        values = trial_rewards([step.values for step in steps], trial.get("reward_strategy", "mean"))
        report.rewards = None if values is None else Rewards(values)
    return keeper or make_keeper(session, logs)


def _keep_and_grade(session: Session, report: Report, keeper: Keeper, grading: Grading, channel: Channel | None, *, grade: bool) -> None:
    if channel is not None:
        run_collect_hooks(channel, grading, session.trial, session.stop)
        _take_usage(session, channel, report)
    keeper.before_tests(grading)
    if grade and channel is not None:
        report.graded = True
        sources = template_sources(session.environ, session.trial["variables"])
        with report.phase("verifier"):
            verify(channel, grading, trial=session.trial, paths=session.paths, sources=sources, stop=session.stop, report=report)
    keeper.after_tests(grading)


def _measure(session: Session, report: Report, steps: Sequence[Report]) -> None:
    """The task's own metrics, over the last trajectory; a separate verifier keeps what was found where the agent ran."""
    if "scoring" not in session.trial or report.measures:
        return
    from seatrial_runner.measure import measure

    document = next((item.document for item in (*reversed(steps), report) if item.document is not None), None)
    report.measures = measure(session.trial, report, session.paths, trajectory=document)


def _take_usage(session: Session, channel: Channel, report: Report) -> None:
    """Tokens and cost; the solution of a task and an agent that does nothing have none."""
    if report.agent_result is None or session.trial["agent"]["kind"] in ("oracle", "nop"):
        return
    from seatrial_runner.usage import read_usage

    found = read_usage(channel, session.paths.logs_agent)
    # What a class of the user reported came from its own process; the files are in reach of the environment.
    own = {name: value for name, value in report.agent_result.items() if value is not None}
    report.agent_result = {**report.agent_result, **found.figures, **own}
    report.trajectory, report.document = found.trajectory, found.document


# --- the agent's end -----------------------------------------------------------------------------------------------------------------


def _wait_for_agent(session: Session, report: Report, record: str) -> AgentEnd | None:
    """The record of the agent's end, or of a step's; None with the reason in ``report``. Secrets to redact arrive on the way."""
    try:
        return _agent_end(session, record)
    except Fault as fault:
        report.fail(fault)
    except ContractBroken as error:
        report.fail(runner_crashed("the agent's container", f"left a broken record: {error}"))
    finally:
        session.secrets.extend(session.inbox.read())
    return None


def _agent_end(session: Session, record: str) -> AgentEnd:
    limits, patiences, stop, paths = session.trial["timeouts"], session.patiences, session.stop, session.paths
    start_limit, agent_limit = session.start_limit, limits["agent"]
    # A step's setup.sh has no limit, so there only the Pod's deadline ends a runner that hangs.
    has_limit = agent_limit is not None and record == paths.agent_end
    end_limit = start_limit + limits["agent_setup"] + (agent_limit or 0.0) + patiences.agent_overtime
    end_limit += contract.healthcheck_seconds(session.trial["environment"]["healthcheck"])
    watch = AgentWatch(paths.agent_lock, record, final=paths.agent_end)
    last_words = Deadline(None)
    loaded = False
    while True:
        session.secrets.extend(session.inbox.read())
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
            case "running" if has_limit and waited > end_limit:
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
    import seatrial_runner.keep
    import seatrial_runner.presigned
    import seatrial_runner.result  # noqa: F401


def connected(session: Session, end: AgentEnd, report: Report) -> Channel | None:
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
    # The record may be an agent image's own: where the agent was executed, it has to name its envd.
    if ("envd" in end or "agent_execution" in end["spans"]) and end.get("envd") != channel.hello.instance:
        message = "agent and verifier were connected to different programs: something in the image dialled before envd"
        report.fail(Fault("RuntimeRequestError", "environment", message, reason="EnvironmentMisbehaved"))
        return None
    return channel


# --- evidence and report -------------------------------------------------------------------------------------------------------------


class Stored(NamedTuple):
    """What the object store has taken."""

    result_sha256: str | None = None
    logs_sha256: str | None = None


def make_keeper(session: Session, logs: BinaryIO) -> Keeper:
    from seatrial_runner.evidence import DEFAULT_CAPS, SEPARATE_CAPS
    from seatrial_runner.keep import Keeper

    return Keeper(
        logs,
        caps=SEPARATE_CAPS if session.trial["verifier"]["mode"] == "separate" else DEFAULT_CAPS,
        trial=session.trial,
        paths=session.paths,
        redactor=session.redactor(),
        channel=lambda: session.connection.channel,
        is_hurried=lambda: session.stop.requested and session.stop.saving.cap(60.0) < 25.0,
        pass_seconds=session.patiences.collect,
    )


def _redact_messages(session: Session, reports: list[Report]) -> None:
    redactor = session.redactor()
    for report in reports:
        if report.error is not None:
            report.error["message"] = redactor.text(report.error["message"])


def _store(session: Session, report: Report, steps: list[Report], keeper: Keeper, logs: BinaryIO) -> Stored:
    """Upload logs, then the result."""
    import hashlib

    from seatrial_runner.result import Evidence, build_result

    timer = Timer()
    evidence = keeper.finish()
    error = session.redactor().text(keeper.error)[:300] if keeper.error is not None else None
    if evidence is not None:
        error = _upload(session, contract.VAR_LOGS_URL, logs, "application/gzip", session.patiences.logs, reserve_seconds=15.0)
    logs_sha256 = evidence.sha256 if evidence is not None and error is None else None
    report.spans["logs"] = timer.span()
    truncated = evidence.truncated if evidence is not None else ()
    result = build_result(
        session.trial, report, steps, Evidence(truncated, logs_sha256, error), deciding_error(session.trial, report, steps)
    )
    # The bytes of the Secret, whatever they are.
    key = os.fsencode(session.environ.get(contract.VAR_SIGNING_KEY, ""))
    data = contract.sign_result(result, key)
    if len(data) > contract.RESULT_BYTES:
        result["seatrial"]["reward_components"] = None
        data = contract.sign_result(result, key)
    if len(data) > contract.RESULT_BYTES:
        # The operator reads no longer one: what the agent says of itself goes before the rewards do.
        for part in (result, *(result["step_results"] or ())):
            part["agent_result"] = None
        data = contract.sign_result(result, key)
    failure = _upload(session, contract.VAR_RESULT_URL, BytesIO(data), "application/json", session.patiences.result, reserve_seconds=3.0)
    if failure is None:
        return Stored(hashlib.sha256(data).hexdigest(), logs_sha256)
    sys.stderr.write(f"verifier: the result is not stored: {failure}\n")
    return Stored(None, logs_sha256)


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


def deciding_error(trial: TrialInput, report: Report, steps: Sequence[Report]) -> ErrorInfo | None:
    """The error that says whether the rewards count: the first that makes them invalid, else the first (harbor.md 6.8)."""
    from seatrial_runner.result import policy_of

    errors = [item.error for item in (report, *steps) if item.error is not None]
    return next((error for error in errors if not policy_of(trial, error["type"]).valid), errors[0] if errors else None)


def _verdict(trial: TrialInput, report: Report, steps: Sequence[Report], stored: Stored) -> Verdict:
    seconds = {name: _seconds(span) for name, span in report.spans.items()}
    for step in steps:
        for name, span in step.spans.items():
            seconds[name] = seconds.get(name, 0.0) + _seconds(span)
    return Verdict(
        trial=trial["trial"],
        retry=trial["retry"],
        rewards=None if report.values is None else dict(report.values),
        rewards_elsewhere=False,
        error=deciding_error(trial, report, steps),
        stored=stored.result_sha256 is not None,
        result_sha256=stored.result_sha256,
        logs_sha256=stored.logs_sha256,
        seconds={**seconds, "total": report.timer.seconds()},
        tampered=any(item.tampered for item in (report, *steps)),
        leftover_processes=max(item.leftover_processes for item in (report, *steps)),
        changed_tools=max(item.changed_tools for item in (report, *steps)),
        is_disabled=trial["verifier"]["disable"],
        is_handed_over=report.is_handed_over,
        # The separate verifier's own verdict brings them.
        measures={} if report.is_handed_over else report.measures,
        # A separate verifier's Pod takes the agent's result over; what the agent spent was told by the agent's own Pod.
        usage=sum_usage(item.agent_result for item in (report, *steps)) if trial.get("verifies") is None else {},
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
    values = [*secret_values(sources), *values_of(sources, session.trial.get("secret_names", []))]
    values += values_of(session.environ, (name for name in session.environ if name.startswith(contract.VAR_REDACT_PREFIX)))
    environments = [session.trial["verifier"]["env"], *(step["verifier_env"] for step in session.trial.get("steps", []))]
    for name, value in [item for env in environments for item in env.items()]:
        try:
            values += secret_values(resolve_all({name: value}, sources, where="[verifier.env]"))
        except Fault:
            continue  # a variable that is missing has no value to hide
    return values
