"""Run a test script in the environment and read what it earned. Source: harbor.md 6.3 and 6.4.

Why it trusts so little: everything in the environment may have been prepared by the agent. Old rewards are removed first, rewards are read
through envd, bounded and never through a link, and the test script is the archive's own.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from seatrial.contract import TESTS_TAR, ArtifactInput, CollectInput, TrialInput
from seatrial_runner.channel import Channel, ChannelError, EnvdError, ExitStatus, Missing, NotRegular, TooLarge
from seatrial_runner.clock import Deadline, files_since
from seatrial_runner.faults import OUT_OF_MEMORY, Fault
from seatrial_runner.paths import Paths
from seatrial_runner.prepare import chunks, make_log_folder, workdir_of
from seatrial_runner.programs import note_changed_programs, watched_of
from seatrial_runner.report import Report
from seatrial_runner.rewards import REWARD_FILE_BYTES, Rewards, parse_reward_json, parse_reward_text
from seatrial_runner.steps import step_path
from seatrial_runner.stop import Stop
from seatrial_runner.variables import resolve_all
from seatrial_runner.watch import TimedOut, Watcher

STDOUT_FILE: Final = "test-stdout.txt"
REWARD_FILES: Final = ("reward.json", "reward.txt")
_LINK_ENTRIES: Final = 5_000_000
_LINK_SECONDS: Final = 60
_ENDING_SECONDS: Final = 3.0
_LOOK_SECONDS: Final = 0.05


class Grading(NamedTuple):
    """What is verified: the trial, or one of its steps."""

    prefix: str
    """Of its evidence in the archive: empty, or ``steps/<name>/``."""
    tests: tuple[str, ...]
    """Tar files, put one over the other."""
    env: Mapping[str, str]
    user: str | int | None
    timeout: float
    collect: Sequence[CollectInput]
    artifacts: Sequence[ArtifactInput]
    empty_logs: bool
    """Nothing of an earlier step stays in ``/logs/verifier``."""
    is_bundled: bool = False
    """``/tests`` is in the image."""


def grading_of(trial: TrialInput, paths: Paths) -> Grading:
    """Of a task without steps."""
    verifier = trial["verifier"]
    return Grading(
        prefix="",
        tests=(f"{paths.task}/{TESTS_TAR}",),
        env=verifier["env"],
        user=verifier["user"],
        timeout=trial["timeouts"]["verifier"],
        collect=verifier["collect"],
        artifacts=trial["artifacts"],
        empty_logs=False,
        is_bundled="verifies" in trial and verifier.get("bundled") is True,
    )


def grading_of_step(trial: TrialInput, paths: Paths, index: int) -> Grading:
    """Of one step: its tests over those of the task."""
    step = trial.get("steps", [])[index]
    return Grading(
        prefix=f"steps/{step['name']}/",
        tests=(f"{paths.task}/{TESTS_TAR}", step_path(paths.task, index, TESTS_TAR)),
        env=step["verifier_env"],
        user=step["verifier_user"],
        timeout=step["verifier_timeout"],
        collect=step["collect"],
        artifacts=step["artifacts"],
        empty_logs=True,
    )


def run_collect_hooks(channel: Channel, grading: Grading, trial: TrialInput, stop: Stop) -> None:
    """Let the task turn state into files, before anything is kept or graded. Failures are logged and nothing more (harbor.md 4.7)."""
    for hook in grading.collect:
        if hook["service"] != "main":
            continue
        watcher = _watcher(channel, trial, stop, limit=None, doing="a collect hook ran")
        try:
            status = watcher.run(hook["command"], cwd=trial["environment"]["workdir"], user=hook["user"], limit_seconds=hook["timeout_sec"])
        except (ChannelError, Fault, TimedOut) as error:
            sys.stderr.write(f"verifier: a collect hook failed: {error or 'its end was not told'}\n")
            continue
        if not status.ok:
            sys.stderr.write(f"verifier: a collect hook ended with exit code {status.returncode}\n")


def verify(
    channel: Channel, grading: Grading, *, trial: TrialInput, paths: Paths, sources: Mapping[str, str], stop: Stop, report: Report
) -> None:
    """Run the tests and put the rewards into ``report``.

    Args:
        sources: of the templates in ``[verifier.env]``.

    Raises:
        Fault: no reward, and why. ChannelError: the environment failed.
    """
    watcher = _watcher(channel, trial, stop, limit=grading.timeout, doing="the verifier ran")
    try:
        _verify(watcher, grading, trial=trial, paths=paths, sources=sources, report=report)
    except TimedOut as error:
        raise Fault("VerifierTimeoutError", "verifier", f"Verifier execution timed out after {float(grading.timeout)} seconds") from error


def _watcher(channel: Channel, trial: TrialInput, stop: Stop, *, limit: float | None, doing: str) -> Watcher:
    return Watcher(channel, deadline=Deadline(limit), stop=stop, volumes=trial.get("limits", {}), cause="verifier", doing=doing)


def _verify(watcher: Watcher, grading: Grading, *, trial: TrialInput, paths: Paths, sources: Mapping[str, str], report: Report) -> None:
    channel = watcher.channel
    # First: what is still ending may write until then.
    report.leftover_processes = count_leftovers(channel)
    watched = watched_of(channel.hello, paths, workdir=workdir_of(channel, trial), user=grading.user, env=grading.env)
    if "verifies" not in trial:
        note_changed_programs(channel, watched, report)
    report.tampered = _remove_planted(channel, paths, empty=grading.empty_logs)
    env = resolve_all(grading.env, sources, where="[verifier.env]")
    watcher.check()
    _upload_tests(channel, grading, paths)
    if "verifies" not in trial:
        # An agent in a container of its own may still run there, and its logs are in both.
        foreign = [paths.logs_agent] if trial["agent"]["kind"] == "image" else []
        _cut_links(watcher, paths, report, skip=watched.paths, foreign=foreign)
    watcher.check()
    # Never by direct exec: a script without a first line, or with bytes before it, is run by the shell. The exit code means nothing.
    status = watcher.run(
        f"({paths.tests}/test.sh) > {paths.logs_verifier}/{STDOUT_FILE} 2>&1",
        env=env,
        cwd=trial["environment"]["workdir"],
        user=grading.user,
    )
    report.rewards = _read_rewards(channel, grading, paths, status)
    if report.leftover_processes and all(channel.stat(f"{paths.logs_verifier}/{name}") is not None for name in REWARD_FILES):
        # Test scripts write one of them; what the agent left running may have written the other.
        report.tampered = True


def _remove_planted(channel: Channel, paths: Paths, *, empty: bool) -> bool:
    """Remove reward files, links and folders that were there before the test script; True if there were any."""
    planted = False
    try:
        make_log_folder(channel, paths.logs_verifier)
        for name in REWARD_FILES:
            planted = channel.remove(f"{paths.logs_verifier}/{name}") or planted
        # Not a reward, but a pipe or a folder in its place would keep the test script from running.
        channel.remove(f"{paths.logs_verifier}/{STDOUT_FILE}")
        if empty:
            channel.empty(paths.logs_verifier)
    except EnvdError as error:
        raise Fault("RuntimeError", "environment", f"old reward files cannot be removed: {error}") from error
    return planted


def _upload_tests(channel: Channel, grading: Grading, paths: Paths) -> None:
    tests = [file for file in grading.tests if os.path.exists(file)]
    if grading.is_bundled:
        if channel.stat(f"{paths.tests}/test.sh") is None:
            raise Fault("FileNotFoundError", "verifier", f"the verifier's image has no {paths.tests}/test.sh")
        # The result does not count, as in Harbor; a script without its x bits is run all the same.
        channel.exec(["chmod", "+x", f"{paths.tests}/test.sh"], user="root" if channel.hello.can_switch_user else None)
        return
    if not tests:
        raise Fault("FileNotFoundError", "verifier", "the task has no tests/test.sh")
    try:
        with contextlib.suppress(EnvdError):
            # A folder that the agent made has its modes. Where the folder cannot be removed it is emptied.
            channel.remove(paths.tests)
        for number, file in enumerate(tests):
            # The script's x bits were set when the tests were packed.
            channel.put(chunks(file), paths.tests, empty_first=number == 0)
        if channel.stat(f"{paths.tests}/test.sh") is None:
            raise Fault("FileNotFoundError", "verifier", "the task has no tests/test.sh, or .harborignore leaves it out")
    except EnvdError as error:
        raise Fault("AddTestsDirError", "environment", f"the tests cannot be put to {paths.tests}: {error}") from error


def count_leftovers(channel: Channel) -> int:
    """What the agent's commands left running. What is just ending, or is being ended, has a moment for it, and counts if it stays.

    Two looks at least: a process that goes on in ever new children is in no look for sure, and counts by their ends.
    """
    deadline = Deadline(_ENDING_SECONDS)
    before = None
    while True:
        table = channel.process_table()
        found = [process for process in table.processes if process.origin == "exec"]
        look = ({process.pid for process in found}, table.ended_orphans)
        if look == before and not any(process.active for process in found):
            return len(found)
        if deadline.passed:
            return max(1, len(found))
        before = look
        time.sleep(_LOOK_SECONDS)


def _cut_links(watcher: Watcher, paths: Paths, report: Report, *, skip: Sequence[str], foreign: Sequence[str]) -> None:
    """Remove what the agent linked to the tests before they came: a file of theirs would be taken for its work."""
    if report.first_agent is None:
        return
    since = files_since(report.first_agent)
    if since is None:
        report.note_unknown("the agent's start is not known")
        return
    try:
        found = watcher.channel.cut_links(
            paths.tests,
            since_ns=since,
            skip=skip,
            foreign=foreign,
            root=paths.environment_root,
            max_entries=_LINK_ENTRIES,
            # Most of the time is the tests'.
            max_seconds=max(1, int(watcher.deadline.cap(4 * _LINK_SECONDS) / 4)),
        )
    except EnvdError as error:
        sys.stderr.write(f"verifier: links to the tests cannot be looked for: {error}\n")
        report.note_unknown("links to the tests could not be looked for")
        return
    report.tampered = report.tampered or found.total > 0
    if found.truncated:
        report.note_unknown("not all links could be looked at, and one may lead to the tests")


def _read_rewards(channel: Channel, grading: Grading, paths: Paths, status: ExitStatus) -> Rewards:
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
    script = next((file for file in reversed(grading.tests) if os.path.exists(file) and _has_script(file)), grading.tests[0])
    why = why_no_reward(channel, script, status) if not grading.is_bundled else f"the test script ended with exit code {status.returncode}"
    raise Fault("RewardFileNotFoundError", "verifier", f"no reward.json or reward.txt in {paths.logs_verifier}: {why}")


def _has_script(file: str) -> bool:
    from seatrial_runner.diagnose import script_head

    return script_head(file) is not None
