"""``seatrial run``: publish, submit, watch, report; with the option names of ``harbor run``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seatrial.cli.exits import Exit
from seatrial.cli.options import DryRun, LongClusterOptions, Output, OutputOption, Session, StoreFlags, expand

if TYPE_CHECKING:
    from seatrial.sdk.local_secrets import LocalSecret
    from seatrial.sdk.publish import PublishReport
    from seatrial.sdk.request import JobRequest

Strings = list[str] | None


def _many(*names: str, help: str, metavar: str = "TEXT") -> Any:
    return typer.Option(*names, help=help, metavar=metavar, show_default=False)


@expand
def run(
    *,
    cluster: LongClusterOptions,
    store: StoreFlags,
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="A task or a folder of tasks; the same as -p.", show_default=False)
    ] = None,
    path: Annotated[Path | None, typer.Option("--path", "-p", help="A task, or a folder of tasks.", show_default=False)] = None,
    tasks: Annotated[Strings, _many("--task", "-t", help="A published Task: name[@ref] or ns/name[@ref]; repeatable.")] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", "-d", help="A published Taskset: name[@ref].", show_default=False)] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", "-a", help="oracle, nop, another name, or module:Class.", show_default="oracle")
    ] = None,
    agent_command: Annotated[str | None, typer.Option("--agent-command", help="A shell command as the agent.", show_default=False)] = None,
    agent_image: Annotated[str | None, typer.Option("--agent-image", help="A container image as the agent.", show_default=False)] = None,
    agent_dir: Annotated[
        Path | None,
        typer.Option("--agent-dir", help="Folder with the module of module:Class; it is packed and stored.", show_default=False),
    ] = None,
    runner_image: Annotated[
        str | None, typer.Option("--runner-image", help="Runner image that carries the agent's libraries.", show_default=False)
    ] = None,
    skills: Annotated[
        Strings, _many("--skill", help="A skill, or a folder of skills, inside --agent-dir or the runner image; repeatable.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Model of the agent.", show_default=False)] = None,
    attempts: Annotated[int, typer.Option("--n-attempts", "-k", min=1, help="Attempts per task.")] = 1,
    concurrent: Annotated[int, typer.Option("--n-concurrent", "-n", min=1, help="Trials at a time.")] = 4,
    max_retries: Annotated[int, typer.Option("--max-retries", "-r", min=0, help="Further Pods per trial after a failure.")] = 0,
    retry_include: Annotated[Strings, _many("--retry-include", help="Retry only these errors; repeatable.")] = None,
    retry_exclude: Annotated[Strings, _many("--retry-exclude", help="Never retry these errors; repeatable.")] = None,
    include: Annotated[Strings, _many("--include-task-name", "-i", help="Only tasks that match this glob; repeatable.")] = None,
    exclude: Annotated[Strings, _many("--exclude-task-name", "-x", help="Not tasks that match this glob; repeatable.")] = None,
    limit: Annotated[int | None, typer.Option("--n-tasks", "-l", min=1, help="The first N tasks.", show_default=False)] = None,
    where: Annotated[Strings, _many("--where", metavar="KEY=VALUE", help="Of a folder: only tasks with this in [metadata].")] = None,
    agent_env: Annotated[Strings, _many("--agent-env", "--ae", help="NAME=VALUE for the agent; never a credential.")] = None,
    agent_env_secrets: Annotated[Strings, _many("--agent-env-secret", help="NAME=SECRET:KEY from a Secret of the namespace.")] = None,
    env_secrets: Annotated[
        Strings, _many("--env-secret", metavar="NAME=REFERENCE", help="A variable of this machine as a Secret that goes with the job.")
    ] = None,
    agent_kwargs: Annotated[Strings, _many("--agent-kwarg", "--ak", help="NAME=VALUE argument of the agent; JSON or text.")] = None,
    environment_env: Annotated[
        Strings, _many("--environment-env", "--ee", help="NAME=VALUE for the tasks' environments and templates.")
    ] = None,
    verifier_env: Annotated[Strings, _many("--verifier-env", "--ve", help="NAME=VALUE for the tests.")] = None,
    disable_verification: Annotated[bool, typer.Option("--disable-verification", help="Run the agent, grade nothing.")] = False,
    timeout_multiplier: Annotated[float, typer.Option("--timeout-multiplier", help="Factor on all limits.")] = 1.0,
    agent_timeout_multiplier: Annotated[float | None, typer.Option("--agent-timeout-multiplier", show_default=False)] = None,
    verifier_timeout_multiplier: Annotated[float | None, typer.Option("--verifier-timeout-multiplier", show_default=False)] = None,
    agent_setup_timeout_multiplier: Annotated[float | None, typer.Option("--agent-setup-timeout-multiplier", show_default=False)] = None,
    environment_build_timeout_multiplier: Annotated[
        float | None, typer.Option("--environment-build-timeout-multiplier", show_default=False)
    ] = None,
    artifact: Annotated[Strings, _many("--artifact", help="Path of the environment to save; repeatable.")] = None,
    trace_dir: Annotated[
        str | None, typer.Option("--trace-dir", help="Folder of the agent's traces, saved as traces.", show_default=False)
    ] = None,
    reward_key: Annotated[str | None, typer.Option("--reward-key", help="The reward that counts; else reward.", show_default=False)] = None,
    threshold: Annotated[Strings, _many("--threshold", help="SCORE=NUMBER, such as reward.mean=0.8; else the job fails.")] = None,
    from_job: Annotated[
        str | None,
        typer.Option("--from", metavar="JOB", help="Take this job's settings and results; run what is missing.", show_default=False),
    ] = None,
    rerun_errors: Annotated[
        Strings, _many("--rerun-errors", help="With --from: only trials with this error run again, else all errored ones; repeatable.")
    ] = None,
    job_name: Annotated[str | None, typer.Option("--job-name", help="Name of the EvalJob.", show_default=False)] = None,
    taskset: Annotated[str | None, typer.Option("--taskset", help="Also write this Taskset when publishing.", show_default=False)] = None,
    recursive: Annotated[bool, typer.Option("--recursive", help="Look into category folders.")] = False,
    default_image: Annotated[
        str | None, typer.Option("--default-image", help="Image for tasks that name none and build none.", show_default=False)
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Submit, print the job's name, and do not wait.")] = False,
    pending_timeout: Annotated[
        float | None, typer.Option("--pending-timeout", help="Seconds to wait for the first trial.", show_default=False)
    ] = None,
    job_timeout: Annotated[float | None, typer.Option("--job-timeout", help="Seconds to wait for the end.", show_default=False)] = None,
    dry_run: DryRun = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Evaluate an agent: publish a folder (or take published tasks), run an EvalJob, show its progress and its scores.

    The job runs in the cluster: it goes on when this command is ended. Exit code 1 if the job did not end well.

    \b
    Examples:
      seatrial run ./suite -a oracle -k 2 -n 8
      seatrial run -d smoke -a oracle --threshold reward.mean=0.8
      seatrial run --from nightly-41 --rerun-errors OOMKilled
    """
    from dataclasses import replace

    from seatrial.cli.console import note, publish_progress
    from seatrial.errors import InvalidSpec
    from seatrial.sdk.request import JobRequest, build_job, parse_kwargs, parse_pairs, parse_secrets, parse_thresholds

    sources = [source for source in (folder, path, tasks or None, dataset, from_job) if source is not None]
    if len(sources) != 1:
        raise InvalidSpec("run", "give exactly one of DIR, -p, -t and -d (or --from JOB): what shall be evaluated?")
    limits = (pending_timeout, job_timeout)
    if from_job is not None:
        _again(
            Session(cluster, store),
            from_job,
            rerun_errors or (),
            name=job_name,
            attempts=attempts,
            dry_run=dry_run,
            detach=detach,
            limits=limits,
            output=output,
        )
        return
    if rerun_errors:
        raise InvalidSpec("--rerun-errors", "goes with --from JOB")
    request = JobRequest(
        taskset=dataset,
        tasks=tuple(tasks or ()),
        name=job_name,
        agent=agent,
        agent_image=agent_image,
        agent_command=agent_command,
        runner_image=runner_image,
        skills=tuple(skills or ()),
        model=model,
        agent_kwargs=parse_kwargs(agent_kwargs or (), option="--agent-kwarg"),
        agent_env=parse_pairs(agent_env or (), option="--agent-env"),
        agent_env_secrets=parse_secrets(agent_env_secrets or (), option="--agent-env-secret"),
        env_secrets=parse_pairs(env_secrets or (), option="--env-secret"),
        environment_env=parse_pairs(environment_env or (), option="--environment-env"),
        verifier_env=parse_pairs(verifier_env or (), option="--verifier-env"),
        disable_verification=disable_verification,
        attempts=attempts,
        concurrency=concurrent,
        max_retries=max_retries,
        retry_include=tuple(retry_include or ()),
        retry_exclude=None if retry_exclude is None else tuple(retry_exclude),
        include=tuple(include or ()),
        exclude=tuple(exclude or ()),
        limit=limit,
        timeout_multiplier=timeout_multiplier,
        agent_timeout_multiplier=agent_timeout_multiplier,
        verifier_timeout_multiplier=verifier_timeout_multiplier,
        agent_setup_timeout_multiplier=agent_setup_timeout_multiplier,
        environment_build_timeout_multiplier=environment_build_timeout_multiplier,
        artifacts=tuple(artifact or ()),
        trace_dir=trace_dir,
        reward_key=reward_key,
        thresholds=parse_thresholds(threshold or (), option="--threshold"),
    )
    session = Session(cluster, store)
    source = folder or path
    if agent_dir is not None and (agent is None or ":" not in agent):
        raise InvalidSpec("--agent-dir", "goes with --agent module:Class")
    if where and source is None:
        raise InvalidSpec("--where", "goes with a folder: published tasks are chosen with -i and -x")
    # A bad agent or option is found before anything is published.
    build_job(replace(request, tasks=("placeholder",)) if source else request, namespace=session.cluster.namespace)
    if source is not None:
        from seatrial.cli.publish import counts, print_report, refusal
        from seatrial.sdk.publish import PublishOptions, SuiteRefused
        from seatrial.sdk.publish import publish as run_publish

        options = PublishOptions(
            taskset=taskset,
            recursive=recursive,
            include=request.include,
            exclude=request.exclude,
            limit=request.limit,
            metadata=parse_pairs(where or (), option="--where"),
            default_image=default_image,
            dry_run=dry_run,
        )
        try:
            with publish_progress(session.cluster.namespace) as progress:
                report = run_publish(source, options, cluster=session.cluster, settings=session.settings, progress=progress)
        except SuiteRefused as error:
            note(refusal(error))
            raise
        if not report.succeeded:
            print_report(report, output)
            raise typer.Exit(Exit.FAILED)
        note(counts(report))
        request = from_report(request, report, suite=source.resolve().name)
    if agent_dir is not None:
        from seatrial.sdk.agent_source import store_agent_source

        stored = store_agent_source(agent_dir, namespace=session.cluster.namespace, settings=None if dry_run else session.settings)
        request = replace(request, agent_source=stored)
    _execute(session, request, dry_run=dry_run, detach=detach, limits=(pending_timeout, job_timeout), output=output)


def _again(
    session: Session,
    job: str,
    rerun_errors: Sequence[str],
    *,
    name: str | None,
    attempts: int,
    dry_run: bool,
    detach: bool,
    limits: tuple[float | None, float | None],
    output: Output,
) -> None:
    """A new job that takes an ended one's results and runs the rest."""
    from seatrial.api.names import EVALJOB
    from seatrial.sdk.reuse import rerun_body

    body = rerun_body(session.cluster.get(EVALJOB, job), name=name, rerun_errors=rerun_errors, attempts=attempts)
    send_body(session, body, dry_run=dry_run, detach=detach, limits=limits, output=output)


def from_report(request: JobRequest, report: PublishReport, *, suite: str) -> JobRequest:
    """The job over what was just published: pinned, so that a later publication cannot slip in. The folder gives it its name."""
    from dataclasses import replace

    from seatrial.api.evaljob import MAX_TASKS
    from seatrial.errors import InvalidSpec

    # The filters were applied to the folder.
    request = replace(request, include=(), exclude=(), limit=None, stem=suite)
    if report.taskset is not None:
        pinned = f"#{report.taskset.digest}" if report.taskset.digest else ""
        return replace(request, taskset=f"{report.taskset.name}{pinned}")
    if len(report.tasks) > MAX_TASKS:
        raise InvalidSpec("run", f"{len(report.tasks)} tasks are more than {MAX_TASKS}: add --taskset NAME")
    scripts = (report.metric_script,) if report.metric_script is not None else ()
    request = replace(request, metric_scripts=(*scripts, *request.metric_scripts))
    return replace(request, tasks=tuple(f"{task.name}#{task.digest}" if task.digest else task.name for task in report.tasks))


def _execute(
    session: Session,
    request: JobRequest,
    *,
    dry_run: bool,
    detach: bool,
    limits: tuple[float | None, float | None],
    output: Output,
) -> None:
    from seatrial.sdk.local_secrets import take_local_secrets
    from seatrial.sdk.request import build_job

    request, secret = take_local_secrets(request, os.environ)
    body = build_job(request, namespace=session.cluster.namespace)
    send_body(session, body, secret=secret, dry_run=dry_run, detach=detach, limits=limits, output=output)


def send_body(
    session: Session,
    body: dict[str, Any],
    *,
    secret: LocalSecret | None = None,
    dry_run: bool,
    detach: bool,
    limits: tuple[float | None, float | None],
    output: Output,
) -> None:
    """Create an EvalJob and follow it to its end, or print it."""
    from seatrial.cli.console import note, show
    from seatrial.cli.watch import watch_job
    from seatrial.sdk.local_secrets import create_job

    if dry_run:
        import yaml

        show(yaml.safe_dump(body, sort_keys=False).rstrip())
        return
    name = create_job(session.cluster, body, secret)["metadata"]["name"]
    if detach:
        show(f"evaljob/{name}")
        return
    note(f"evaljob/{name} submitted; it goes on without this command: seatrial watch {name}")
    raise typer.Exit(watch_job(session, name, limits=limits, output=output))
