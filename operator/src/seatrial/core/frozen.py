"""The frozen plan of a job: tasks, options and trials, resolved once; later edits of Tasks and Tasksets do not touch it.

Why its own document: it may be far larger than an object in etcd, and a restart must find exactly what was submitted. The status
carries its key and sha256; the first plan that reaches the store is the job's plan.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

from seatrial.api.evaljob import MAX_TRIALS, AgentSpec, EvalJobSpec
from seatrial.api.reasons import Reason
from seatrial.core.expand import Trial, expand, select
from seatrial.core.gates import unknown_score
from seatrial.core.measures import TaskScoring, check_scoring, scoring_from_json, scoring_to_json
from seatrial.core.naming import TrialKey
from seatrial.core.rows import Row, from_json, to_json
from seatrial.core.scores import MetricRule, Scoring, metric_rules
from seatrial.core.scripts import Script, ScriptOutcome
from seatrial.errors import SeatrialError
from seatrial.scoring.builtin import MetricRefused
from seatrial.scoring.rewards import DEFAULT_REWARD
from seatrial.scoring.views import InvalidView
from seatrial.taskpkg.model import NetworkMode, NetworkPolicy, TaskConfig, TaskOS, VerifierMode

SCHEMA: Final = 1
RUNNER_AGENTS: Final = ("oracle", "nop")
"""Agents by name that the runner image of this version drives."""

ImageRole = Literal["environment", "verifier"]
"""Whose image: the environment's, from ``environment/``, or the separate verifier's, from ``tests/``."""

HARBOR_ROUTES: Final = (
    "set agent.runnerImage to an image with `pip install 'harbor>=0.20,<0.27'` (Python 3.12 or newer) or to one built from "
    "runner-image/Dockerfile.harbor"
)
"""The two ways to what only the Harbor package has."""

_MUTABLE: Final = ("suspend", "cancel", "concurrency", "limits", "ttlSecondsAfterFinished")


class PlanRefused(SeatrialError):
    """The job cannot be planned as it stands; ``reason`` goes into its conditions. Not retried until the spec changes."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Refusal(NamedTuple):
    """Why one task is errored without a Pod; its siblings run."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A member with everything that its trials need, so that no trial reads a Task again."""

    id: str
    """Native task id."""
    ref: str
    """``namespace/name#digest`` of the revision."""
    revision: int
    archive_key: str
    archive_sha256: str
    checksum: str
    """Harbor's content digest."""
    config: TaskConfig
    loose_files: bool = False
    """``environment/`` has files and the image is ready-made: they are uploaded."""
    compose: bool = False
    image: str | None = None
    """The environment's image by digest, built from its Dockerfile and recorded with the Task; it wins over ``docker_image``."""
    build: str | None = None
    """Key of the image that the cluster builds before the first trial of this task; only without an image."""
    bundled_verifier: bool = False
    """``tests/`` describes the separate verifier's image, which holds the tests; ``task.toml`` names none."""
    verifier_image: str | None = None
    """That image by digest, recorded with the Task."""
    verifier_build: str | None = None
    """Key of that image, which the cluster builds before the first trial; only without an image."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """Image as task.toml names it -> where it is read, by digest; what the registry did not answer for is absent."""
    scoring: TaskScoring | None = None
    """Metrics and views that the Task names beside the verifier's rewards."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Free words by which scores are broken down: ``category`` and ``difficulty`` of task.toml's metadata."""
    refusal: Refusal | None = None

    @property
    def environment_image(self) -> str | None:
        """The image that the environment runs: the recorded build, else ``docker_image``; None while it has to be built."""
        return self.image or self.config.environment.docker_image

    @property
    def builds(self) -> dict[ImageRole, str]:
        """Keys of the images that the cluster builds first."""
        found: dict[ImageRole, str | None] = {"environment": self.build, "verifier": self.verifier_build}
        return {role: key for role, key in found.items() if key is not None}

    @property
    def named_images(self) -> tuple[str, ...]:
        """Images of task.toml that run, and whose tags may move."""
        own = self.config.verifier.environment
        environment = None if self.image or self.build else self.config.environment.docker_image
        verifier = own.docker_image if own is not None and self.config.verifier_environment() is not None else None
        return tuple(dict.fromkeys(image for image in (environment, verifier) if image and "@" not in image))


@dataclass(frozen=True)
class FrozenPlan:
    namespace: str
    job: str
    uid: str
    created_at: str
    """Creation of the EvalJob, RFC 3339: the plan's bytes depend on nothing but the submission."""
    taskset: str | None
    """``namespace/name#digest``, or None for a job of single tasks."""
    spec: Mapping[str, Any]
    """The job's spec without what may change later."""
    tasks: tuple[PlannedTask, ...]
    trials: tuple[Trial, ...]
    adopted: tuple[Row, ...] = ()
    """Final rows of trials whose results are reused; no Pod runs for them."""
    scripts: tuple[Script, ...] = ()
    """Every metric.py that runs over the rewards, the taskset's own first."""
    metrics: tuple[MetricRule, ...] = ()
    """Aggregates that the taskset asks for; those of the job come after them."""
    identity: str | None = None
    """What results of this job may be reused by, where the job takes part in caching."""

    @cached_property
    def task_of(self) -> Mapping[str, str]:
        """Native id of each trial's task, by name of the trial."""
        return {trial.name: trial.key.task for trial in self.trials}

    def scoring(self, scripts: Sequence[ScriptOutcome] = ()) -> Scoring:
        """What the plan adds to the rules of the spec; ``scripts`` are the outcomes so far."""
        return Scoring(
            metrics=self.metrics, scripts=tuple(scripts), tasks={task.id: task.scoring for task in self.tasks if task.scoring is not None}
        )


class Submission(NamedTuple):
    """Who asks."""

    namespace: str
    job: str
    uid: str
    created_at: str


def build_plan(
    submission: Submission,
    spec: EvalJobSpec,
    *,
    members: Sequence[PlannedTask],
    taskset: str | None,
    scripts: Sequence[Script] = (),
    metrics: Sequence[MetricRule] = (),
    max_trials: int = MAX_TRIALS,
) -> FrozenPlan:
    """Select, check and expand. Needs no cluster; the CLI calls it before it creates the job.

    Args:
        submission: names go into the trial names; before the job exists the uid may be any text.
        spec: of the EvalJob.
        members: all tasks of the job in member order, resolved.
        taskset: pinned reference, for the record.
        scripts: every metric.py of the job, the taskset's own first.
        metrics: aggregates that the taskset asks for.

    Raises:
        PlanRefused: with the reason and the next step.
    """
    if not members:
        raise PlanRefused(Reason.EMPTY_TASKSET, f"{taskset or 'the job'} has no task: add at least one")
    chosen = select([task.id for task in members], include=spec.select.include, exclude=spec.select.exclude, limit=spec.select.limit)
    if not chosen:
        raise PlanRefused(Reason.NOTHING_SELECTED, f"spec.select leaves none of {len(members)} tasks: change include, exclude or limit")
    tasks = tuple(_refuse_for_agent(refuse_task(members[index]), spec.agent) for index in chosen)
    seen: dict[str, str] = {}
    for task in tasks:
        if (other := seen.setdefault(task.id.casefold(), task.ref)) != task.ref:
            raise PlanRefused(Reason.DUPLICATE_TASK_ID, f"{other} and {task.ref} have the same id {task.id!r}: leave one out")
    check_task_scoring(tasks, spec)
    refuse_unsupported(spec, scripts, metrics, measured=measured_names(tasks))
    if (count := len(tasks) * spec.attempts) > max_trials:
        raise PlanRefused(Reason.TOO_MANY_TRIALS, f"{count} trials are more than {max_trials}: split the job or lower attempts")
    return FrozenPlan(
        namespace=submission.namespace,
        job=submission.job,
        uid=submission.uid,
        created_at=submission.created_at,
        taskset=taskset,
        spec=frozen_spec(spec),
        tasks=tasks,
        trials=expand(submission.uid, [task.id for task in tasks], agents=[agent_name(spec.agent)], attempts=spec.attempts),
        scripts=tuple(scripts),
        metrics=tuple(metrics),
    )


def measured_names(tasks: Iterable[PlannedTask]) -> tuple[str, ...]:
    """``metric.output`` of all tasks' metrics and ``view.name`` of their views."""
    names: dict[str, None] = {}
    for task in tasks:
        if task.scoring is not None:
            names |= {f"{metric}.{spec.name}": None for metric, specs in task.scoring.outputs().items() for spec in specs}
            names |= {f"view.{name}": None for name in task.scoring.views}
    return tuple(names)


def check_task_scoring(tasks: Sequence[PlannedTask], spec: EvalJobSpec) -> None:
    """Metrics and views of all tasks can be computed under the job's reward key.

    Raises:
        PlanRefused: UnsupportedMetric or InvalidView, with the task.
    """
    for task in tasks:
        if task.scoring is None:
            continue
        try:
            check_scoring(task.scoring, primary=spec.reward_key or DEFAULT_REWARD)
        except MetricRefused as error:
            raise PlanRefused(Reason.UNSUPPORTED_METRIC, f"task {task.id}: {error}") from error
        except InvalidView as error:
            raise PlanRefused(Reason.INVALID_VIEW, f"task {task.id}: {error}") from error


def frozen_spec(spec: EvalJobSpec) -> dict[str, Any]:
    """The spec without what may change later."""
    return {key: value for key, value in spec.raw().items() if key not in _MUTABLE}


def with_images(plan: FrozenPlan, task: int, images: Mapping[ImageRole, str]) -> FrozenPlan:
    """``plan`` as if the images that the cluster has built for one task were recorded with it."""
    if not images:
        return plan
    old = plan.tasks[task]
    new = replace(
        old,
        image=images.get("environment", old.image),
        build=None,
        verifier_image=images.get("verifier", old.verifier_image),
        verifier_build=None,
    )
    return replace(plan, tasks=(*plan.tasks[:task], new, *plan.tasks[task + 1 :]))


def with_pins(plan: FrozenPlan, pins: Mapping[str, str]) -> FrozenPlan:
    """``plan`` with the images that its tasks name pinned; those without a pin run as they are named."""
    tasks = tuple(replace(task, pins={image: pins[image] for image in task.named_images if image in pins}) for task in plan.tasks)
    return replace(plan, tasks=tasks)


def task_labels(metadata: Mapping[str, Any]) -> dict[str, str]:
    """``category`` and ``difficulty`` of a task's free metadata, where they are short text."""
    found = ((name, metadata.get(name)) for name in ("category", "difficulty"))
    return {name: value for name, value in found if isinstance(value, str) and 0 < len(value) <= 63}


def agent_name(agent: AgentSpec) -> str:
    """The name that rows and labels carry."""
    return agent.name or agent.import_path or ("command" if agent.command is not None else agent.image or "")


def refuse_unsupported(
    spec: EvalJobSpec, scripts: Sequence[Script] = (), metrics: Sequence[MetricRule] = (), *, measured: Collection[str] = ()
) -> None:
    """What this version does not do yet is refused by name, never ignored.

    Raises:
        PlanRefused: always with the field and the next step.
    """
    for gate in spec.thresholds:
        if (
            why := unknown_score(gate.score, spec, rules=metric_rules(spec, metrics), has_scripts=bool(scripts), measured=measured)
        ) is not None:
            raise PlanRefused(Reason.UNKNOWN_SCORE, f"spec.thresholds: nothing can produce {why}")
    agent = spec.agent
    if agent.name is not None and agent.name not in RUNNER_AGENTS:
        known = ", ".join(RUNNER_AGENTS)
        message = f"spec.agent.name {agent.name!r} is not one of {known}. An agent of Harbor runs by importPath: {HARBOR_ROUTES}"
        raise PlanRefused(Reason.UNSUPPORTED_AGENT, message)
    if not takes_extras(agent) and (agent.skills or agent.mcp_servers):
        message = f"spec.agent.name {agent.name} supports neither skills nor mcpServers: remove them, or use importPath"
        raise PlanRefused(Reason.UNSUPPORTED_AGENT, message)
    if agent.skills and agent.kind != "importPath":
        message = f"spec.agent.skills goes with importPath: an agent by {agent.kind} puts its skills into the environment itself"
        raise PlanRefused(Reason.UNSUPPORTED_AGENT, message)
    for skill in agent.skills:
        if "://" in skill or "@" in skill or ".." in skill.split("/"):
            message = (
                f"spec.agent.skills: {skill!r} is not supported by this version: put the folder into agent.source and give its path there"
            )
            raise PlanRefused(Reason.UNSUPPORTED_AGENT, message)


def takes_extras(agent: AgentSpec) -> bool:
    """Whether the agent may be given skills and MCP servers; oracle and nop ignore a task's, and a job may not name any for them."""
    return agent.name is None


def refuse_task(task: PlannedTask) -> PlannedTask:
    """``task``, with a refusal if a feature that it asks for is missing here: errored by name, never scored wrongly."""
    message = _unsupported(task)
    return task if message is None else replace(task, refusal=Refusal(Reason.UNSUPPORTED_TASK, f"task {task.id}: {message}"))


def _refuse_for_agent(task: PlannedTask, agent: AgentSpec) -> PlannedTask:
    if agent.image is None or not task.config.is_multi_step or task.refusal is not None:
        return task
    message = f"task {task.id}: [[steps]] with spec.agent.image is not supported by this version; use spec.agent.command"
    return replace(task, refusal=Refusal(Reason.UNSUPPORTED_TASK, message))


def _unsupported(task: PlannedTask) -> str | None:
    config = task.config
    environment = config.environment
    if config.is_multi_step and any(config.verifier_mode(step) is VerifierMode.SEPARATE for step in config.steps or ()):
        return "a separate verifier of a step is not supported by this version; use environment_mode = 'shared' where the task allows it"
    verifier = config.verifier_environment()
    if verifier is not None and (verifier.os is TaskOS.WINDOWS or verifier.tpu is not None):
        return "[verifier.environment] asks for os = 'windows' or a tpu, which is not supported"
    if environment.os is TaskOS.WINDOWS:
        return "os = 'windows' is not supported: trial Pods run Linux"
    if task.compose:
        return "environment/docker-compose.yaml is not supported by this version"
    if task.environment_image is None and task.build is None:
        return "has no image: publish it with --build, let the operator build (builds.repository of the chart), or set docker_image"
    if task.bundled_verifier and task.verifier_image is None and task.verifier_build is None:
        return "its separate verifier has no image: publish it with --build, or let the operator build (builds.repository of the chart)"
    if environment.tpu is not None:
        return "[environment].tpu is not supported by this version"
    if (reason := _impossible_number(config)) is not None:
        return reason
    if (reason := _network_unsupported(config)) is not None:
        return reason
    steps = config.steps or ()
    artifacts = (*config.artifacts, *(artifact for step in steps for artifact in step.artifacts))
    hooks = (*config.verifier.collect, *(hook for step in steps for hook in step.verifier.collect))
    if any(artifact.service not in (None, "main") for artifact in artifacts):
        return "artifacts of another service than main need compose, which is not supported by this version"
    if any(hook.service != "main" for hook in hooks):
        return "collect hooks of another service than main need compose, which is not supported by this version"
    return None


MOST_SECONDS: Final = 10**8
"""Three years: far above the deadline of any Pod, and no sum of them leaves what Kubernetes can hold."""
MOST_RESOURCES: Final = 10**12


def _impossible_number(config: TaskConfig) -> str | None:
    """A number that Harbor's format accepts and no Pod can have; None where there is none."""
    steps = config.steps or ()
    checks = [("[environment.healthcheck]", config.environment.healthcheck)]
    checks += [(f"[steps.healthcheck] of {step.name}", step.healthcheck) for step in steps]
    seconds: list[tuple[str, float | None]] = [
        ("[environment].build_timeout_sec", config.environment.build_timeout_sec),
        ("[agent].timeout_sec", config.agent.timeout_sec),
        ("[verifier].timeout_sec", config.verifier.timeout_sec),
        *((f"[steps.agent].timeout_sec of {step.name}", step.agent.timeout_sec) for step in steps),
        *((f"[steps.verifier].timeout_sec of {step.name}", step.verifier.timeout_sec) for step in steps),
        *(("[[verifier.collect]].timeout_sec", hook.timeout_sec) for hook in config.verifier.collect),
        *((f"[[steps.verifier.collect]].timeout_sec of {step.name}", hook.timeout_sec) for step in steps for hook in step.verifier.collect),
    ]
    for name, check in checks:
        if check is not None:
            seconds += [
                (f"{name}.{field}", getattr(check, field))
                for field in ("interval_sec", "timeout_sec", "start_period_sec", "start_interval_sec", "retries")
            ]
    resources: list[tuple[str, float | None]] = []
    for where, section in (("[environment]", config.environment), ("[verifier.environment]", config.verifier_environment())):
        if section is not None:
            resources += [(f"{where}.{field}", getattr(section, field)) for field in ("cpus", "memory_mb", "storage_mb", "gpus")]
    for name, value, most in [(*item, MOST_SECONDS) for item in seconds] + [(*item, MOST_RESOURCES) for item in resources]:
        # NB: not the other way round, or "nan" would pass.
        if value is not None and not 0 <= value <= most:
            return f"{name} is {str(value)[:40]}: a trial Pod needs a number from 0 to {most}"
    return None


def _network_unsupported(config: TaskConfig) -> str | None:
    separate = config.verifier_environment()
    agent = [config.agent_policy(step) for step in config.steps or (None,)]
    verifier = [config.verifier_policy(step) for step in config.steps or (None,)]
    # A separate verifier is a Pod of its own with a policy of its own.
    groups = (
        [[config.baseline_policy(), *agent, *verifier]]
        if separate is None
        else [[config.baseline_policy(), *agent], [separate.policy(), *verifier]]
    )
    networks = [{network_of(policy) for policy in group} for group in groups]
    if any(None in policies for policies in networks):
        return "network_mode = 'allowlist' with hosts is not supported by this version; use public or no-network"
    if any(len(policies) > 1 for policies in networks):
        return "[agent] or [verifier] changes network_mode, which is not supported by this version; use one mode for the task"
    return None


def network_of(policy: NetworkPolicy) -> str | None:
    """Value of the Pod's network label, ``public`` or ``none``; None where no policy of ours enforces it."""
    match policy.mode:
        case NetworkMode.PUBLIC:
            return "public"
        case NetworkMode.NO_NETWORK:
            return "none"
        case NetworkMode.ALLOWLIST:
            return None if policy.hosts else "none"


# --- as a document --------------------------------------------------------------------------------------------------------------------


def encode_plan(plan: FrozenPlan) -> bytes:
    """Canonical JSON: equal plans are equal bytes."""
    body = {
        "schema": SCHEMA,
        "job": {"namespace": plan.namespace, "name": plan.job, "uid": plan.uid, "createdAt": plan.created_at},
        "taskset": plan.taskset,
        "spec": plan.spec,
        "tasks": [_task_to_json(task) for task in plan.tasks],
        "trials": [
            {"name": trial.name, "task": trial.task, "agent": trial.key.agent, "attempt": trial.key.attempt} for trial in plan.trials
        ],
        **({"adopted": [to_json(row) for row in plan.adopted]} if plan.adopted else {}),
        **({"scripts": [script._asdict() for script in plan.scripts]} if plan.scripts else {}),
        **({"metrics": [rule._asdict() for rule in plan.metrics]} if plan.metrics else {}),
        **({"identity": plan.identity} if plan.identity else {}),
    }
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def decode_plan(data: bytes) -> FrozenPlan:
    """Inverse of ``encode_plan``.

    Raises:
        PlanRefused: not a plan of this version.
    """
    try:
        body = json.loads(data)
        if body["schema"] != SCHEMA:
            raise PlanRefused(Reason.PLAN_CORRUPT, f"plan.json has schema {body['schema']!r}, this operator reads {SCHEMA}")
        tasks = tuple(_task_from_json(item) for item in body["tasks"])
        return FrozenPlan(
            namespace=body["job"]["namespace"],
            job=body["job"]["name"],
            uid=body["job"]["uid"],
            created_at=body["job"]["createdAt"],
            taskset=body["taskset"],
            spec=body["spec"],
            tasks=tasks,
            trials=tuple(
                Trial(item["name"], item["task"], TrialKey(tasks[item["task"]].id, item["agent"], item["attempt"]))
                for item in body["trials"]
            ),
            adopted=tuple(from_json(row) for row in body.get("adopted", ())),
            scripts=tuple(Script(**item) for item in body.get("scripts", ())),
            metrics=tuple(MetricRule(**item) for item in body.get("metrics", ())),
            identity=body.get("identity"),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise PlanRefused(Reason.PLAN_CORRUPT, "plan.json cannot be read: submit the job again") from error


def config_to_json(config: TaskConfig) -> dict[str, Any]:
    """What differs from Harbor's defaults; free ``metadata`` is left out, nothing reads it at run time."""
    return config.model_dump(mode="json", exclude_defaults=True, exclude={"metadata"})


def _task_to_json(task: PlannedTask) -> dict[str, Any]:
    return {
        "id": task.id,
        "ref": task.ref,
        "revision": task.revision,
        "archive": task.archive_key,
        "sha256": task.archive_sha256,
        "checksum": task.checksum,
        "looseFiles": task.loose_files,
        "compose": task.compose,
        **({"labels": dict(task.labels)} if task.labels else {}),
        **({"scoring": scoring_to_json(task.scoring)} if task.scoring else {}),
        **({"image": task.image} if task.image else {}),
        **({"build": task.build} if task.build else {}),
        **({"bundledVerifier": True} if task.bundled_verifier else {}),
        **({"verifierImage": task.verifier_image} if task.verifier_image else {}),
        **({"verifierBuild": task.verifier_build} if task.verifier_build else {}),
        **({"pins": dict(task.pins)} if task.pins else {}),
        "config": config_to_json(task.config),
        "refusal": {"reason": task.refusal.reason.value, "message": task.refusal.message} if task.refusal else None,
    }


def _task_from_json(body: Mapping[str, Any]) -> PlannedTask:
    refusal = body["refusal"]
    return PlannedTask(
        id=body["id"],
        ref=body["ref"],
        revision=body["revision"],
        archive_key=body["archive"],
        archive_sha256=body["sha256"],
        checksum=body["checksum"],
        config=TaskConfig.model_validate(body["config"]),
        loose_files=body["looseFiles"],
        compose=body["compose"],
        scoring=scoring_from_json(body["scoring"]) if "scoring" in body else None,
        labels=body.get("labels", {}),
        image=body.get("image"),
        build=body.get("build"),
        bundled_verifier=body.get("bundledVerifier", False),
        verifier_image=body.get("verifierImage"),
        verifier_build=body.get("verifierBuild"),
        pins=body.get("pins", {}),
        refusal=Refusal(Reason(refusal["reason"]), refusal["message"]) if refusal else None,
    )
