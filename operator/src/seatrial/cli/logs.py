"""``seatrial logs``: what agent and verifier of a trial wrote."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seatrial.cli.options import ClusterOptions, Session, StoreFlags, expand

if TYPE_CHECKING:
    from seatrial.sdk.results import TrialRecord


@expand
def logs(
    *,
    job: Annotated[str, typer.Argument(help="Name of the EvalJob.")],
    trial: Annotated[str, typer.Argument(help="Name of the trial; its task alone where that has one trial.")],
    cluster: ClusterOptions,
    store: StoreFlags,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Of a running trial: what its agent prints, until its Pod ends.")] = False,
    container: Annotated[str, typer.Option("--container", "-c", help="Container to follow.")] = "agent",
    files: Annotated[
        list[str] | None, typer.Option("--file", help="Only files that match this glob; repeatable.", show_default=False)
    ] = None,
    list_only: Annotated[bool, typer.Option("--list", help="List the files with their sizes.")] = False,
) -> None:
    """Print the saved logs of a trial; with -f, the live log of a running one.

    \b
    Examples:
      seatrial logs smoke-oracle hello-pass__1a2b3c4
      seatrial logs smoke-oracle hello-pass__1a2b3c4 --file 'verifier/*'
    """
    from seatrial.api.names import EVALJOB
    from seatrial.cli.console import note
    from seatrial.cli.output import printable
    from seatrial.errors import NotFound
    from seatrial.sdk.jobs import is_finished, running_trials

    session = Session(cluster, store)
    raw = session.cluster.get(EVALJOB, job)
    stored = session.files(raw)
    running = () if is_finished(raw) else running_trials(session.cluster, raw)
    record = find_trial(stored.trials(running=running), trial, job)
    if follow and record.state in ("running", "pending"):
        _follow(session, raw, record.name, container)
        return
    if record.state in ("running", "pending"):
        raise NotFound(f"trial {record.name} is {record.state}: its logs are saved when it ends; -f follows a running one")
    if record.error is not None:
        note(f"trial {record.name}: {printable(': '.join(part for part in (record.reason or record.error, record.message) if part))}")
    try:
        _print_members(stored.members(record), files or ["*"], list_only=list_only)
    except NotFound as error:
        raise NotFound(f"trial {record.name} saved no logs") from error


def find_trial(trials: tuple[TrialRecord, ...], wanted: str, job: str) -> TrialRecord:
    """The trial of that name, or the only trial of that task.

    Raises:
        NotFound: none, or several.
    """
    from seatrial.errors import NotFound

    exact = [trial for trial in trials if trial.name == wanted]
    found = exact or [trial for trial in trials if wanted in (trial.task, trial.task.rpartition("/")[2])]
    if len(found) == 1:
        return found[0]
    if found:
        raise NotFound(f"{wanted} has {len(found)} trials in job {job}: name one of {', '.join(trial.name for trial in found[:5])}")
    raise NotFound(f"job {job} has no trial {wanted!r}: seatrial get trials {job}")


def _print_members(members: Iterator[tuple[Any, Any]], patterns: list[str], *, list_only: bool) -> None:
    import fnmatch

    from seatrial.cli.console import show
    from seatrial.cli.output import printable

    first = True
    for member, body in members:
        if not any(fnmatch.fnmatch(member.path, pattern) for pattern in patterns):
            continue
        if list_only:
            show(f"{member.size:>12}   {printable(member.path)}")
            continue
        sys.stdout.write(f"{'' if first else chr(10)}==> {printable(member.path)} <==\n")
        first = False
        while piece := body.read(65536):
            sys.stdout.write(shown(piece))
        sys.stdout.flush()


def shown(piece: bytes) -> str:
    """Text of a trial: as it is for a file or pipe, without control sequences for a terminal."""
    text = piece.decode("utf-8", "replace")
    if not sys.stdout.isatty():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text.replace("\r\n", "\n"))


def _follow(session: Session, job: Any, trial: str, container: str) -> None:
    from seatrial.api.names import LABEL_JOB, LABEL_TRIAL
    from seatrial.cli.console import note
    from seatrial.cli.output import printable
    from seatrial.errors import NotFound

    selector = f"{LABEL_JOB}={job['metadata']['uid']},{LABEL_TRIAL}={trial}"
    pods = session.cluster.core("pods", query={"labelSelector": selector}).get("items", [])
    if not pods:
        raise NotFound(f"trial {trial} has no Pod yet: seatrial watch {job['metadata']['name']}")
    newest = max(pods, key=lambda pod: pod["metadata"]["creationTimestamp"])
    if waits := "; ".join(_waits(newest["status"])):
        note(printable(f"trial {trial} waits: {waits}"))
    states = {item["name"]: item["state"] for item in newest["status"].get("containerStatuses", ())}
    if not states.get(container, {"waiting": {}}).keys() - {"waiting"}:
        raise NotFound(f"container {container} of trial {trial} has not started: repeat the command when it has")
    for piece in session.cluster.pod_log(newest["metadata"]["name"], container=container, follow=True):
        sys.stdout.write(shown(piece))
        sys.stdout.flush()


def _waits(status: Mapping[str, Any]) -> Iterator[str]:
    """What the Pod waits for, in the words of the scheduler and the kubelet."""
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            yield f"{condition.get('reason')}: {condition.get('message')}"
    for item in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        if (found := item["state"].get("waiting")) is not None:
            yield f"container {item['name']}: {': '.join(found[key] for key in ('reason', 'message') if found.get(key))}"
