"""What a trial's runner is told: the task's settings and the job's options, resolved and with timeouts computed.

Why here and not in the runner: the runner trusts its input, and the operator is the only one who knows both task and job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypedDict

from seatrial.api.evaljob import AgentSpec, EvalJobSpec, KeyRef, McpServer
from seatrial.contract import (
    VAR_TEMPLATE_PREFIX,
    AgentInput,
    ArtifactInput,
    CollectInput,
    EnvironmentInput,
    HealthcheckInput,
    JobRef,
    McpServerInput,
    MetricInput,
    PolicyFlags,
    ScoringInput,
    StepInput,
    TaskRef,
    TimeoutsInput,
    TrialInput,
    VerifierInput,
    healthcheck_seconds,
)
from seatrial.core.expand import Trial
from seatrial.core.frozen import FrozenPlan, PlannedTask, agent_name, takes_extras
from seatrial.errors import SeatrialError
from seatrial.scoring.rewards import DEFAULT_REWARD
from seatrial.taskpkg.model import Artifact, EnvironmentSection, Healthcheck, StepSection, VerifierSection
from seatrial.taskpkg.model import McpServer as TaskMcpServer
from seatrial.taskpkg.templates import required_variables, variable_of

AGENT_SETUP_SECONDS: Final = 360.0
"""Harbor's default for agent setup."""
TRACE_VARIABLE: Final = "TRACE_DIR"
TRACE_FOLDER: Final = "traces"
"""Below the trial's artifacts."""
STEP_SECONDS: Final = 600.0
"""For what Harbor leaves without a limit in each step: ``setup.sh``, and keeping its logs and artifacts."""


class MissingVariable(SeatrialError):
    """A template of the task names a variable that the job does not give and that has no default. The trial is errored, not the job."""

    def __init__(self, name: str, where: str) -> None:
        next_step = "add it to spec.environment of the job, or give a default in task.toml"
        super().__init__(f"Environment variable '{name}' of {where} is not given: {next_step}")


class SecretSource(NamedTuple):
    kind: str
    """``secretKeyRef`` or ``configMapKeyRef``."""
    ref: KeyRef


class Sources(NamedTuple):
    """Where the values of ``${NAME}`` come from."""

    literals: Mapping[str, str]
    refs: Mapping[str, SecretSource]

    def has(self, name: str) -> bool:
        return name in self.literals or name in self.refs


def environment_sources(spec: EvalJobSpec) -> Sources:
    """Sources for tasks: ``spec.environment``; a Secret wins over a ConfigMap of the same name."""
    refs = {name: SecretSource("configMapKeyRef", ref) for name, ref in spec.environment.env_config_maps.items()}
    refs |= {name: SecretSource("secretKeyRef", ref) for name, ref in spec.environment.env_secrets.items()}
    return Sources(literals=dict(spec.environment.env), refs=refs)


def verifier_env(task: PlannedTask, spec: EvalJobSpec, step: StepSection | None = None) -> dict[str, str]:
    """``[verifier.env]``, the step's above it, and the job's own above both; a Secret of the job is a template of its own name.

    Below all, ``TRACE_DIR`` says where the agent's traces are.
    """
    own = {} if step is None else step.verifier.env
    traces = {} if spec.trace_dir is None else {TRACE_VARIABLE: spec.trace_dir}
    return {
        **traces,
        **task.config.verifier.env,
        **own,
        **spec.verifier.env,
        **{name: f"${{{name}}}" for name in spec.verifier.env_secrets},
    }


def grading_refs(task: PlannedTask, spec: EvalJobSpec) -> dict[str, SecretSource]:
    """The Secrets and ConfigMaps that the verifier needs for the task and all its steps.

    Raises:
        MissingVariable: a template without a source and without a default.
    """
    sources = verifier_sources(spec)
    needed = needed_refs(verifier_env(task, spec), sources, where=f"[verifier.env] of task {task.id}")
    for step in task.config.steps or ():
        needed |= needed_refs(verifier_env(task, spec, step), sources, where=f"[verifier.env] of step {step.name} of task {task.id}")
    return needed


def verifier_sources(spec: EvalJobSpec) -> Sources:
    """Sources of the verifier's templates: the environment's, and above them the verifier's Secrets."""
    base = environment_sources(spec)
    own = {name: SecretSource("secretKeyRef", ref) for name, ref in spec.verifier.env_secrets.items()}
    return Sources(literals={name: value for name, value in base.literals.items() if name not in own}, refs={**base.refs, **own})


def solution_env(task: PlannedTask, spec: EvalJobSpec) -> dict[str, str]:
    """Only the oracle gets it."""
    return dict(task.config.solution.env) if spec.agent.name == "oracle" else {}


def needed_refs(env: Mapping[str, str], sources: Sources, *, where: str) -> dict[str, SecretSource]:
    """The Secrets and ConfigMaps that the templates of ``env`` name, and no others.

    Raises:
        MissingVariable: a template without a source and without a default.
    """
    needed: dict[str, SecretSource] = {}
    for variable in required_variables(env):
        if variable.name in sources.refs:
            needed[variable.name] = sources.refs[variable.name]
        elif variable.name not in sources.literals and variable.default is None:
            raise MissingVariable(variable.name, where)
    return needed


class Place(NamedTuple):
    """Where something runs."""

    section: EnvironmentSection
    name: str
    """Of the section in task.toml."""
    image: str
    is_bundled: bool = False
    """The image of a separate verifier holds ``/tests`` already."""


def agent_place(task: PlannedTask) -> Place:
    return Place(task.config.environment, "environment", task.environment_image or "")


def separate_place(task: PlannedTask) -> Place | None:
    """Of the separate verifier: its own image, which brings the tests, or the task's, to which they are uploaded; None in shared mode.

    A declared ``[verifier.environment]`` inherits nothing from ``[environment]`` but the image. Source: harbor.md 6.2.
    """
    section, own = task.config.verifier_environment(), task.config.verifier.environment
    if section is None:
        return None
    if own is not None and own.docker_image:
        return Place(section, "verifier.environment", own.docker_image, is_bundled=True)
    name = "environment" if own is None else "verifier.environment"
    if task.verifier_image is not None:
        return Place(section, name, task.verifier_image, is_bundled=True)
    return Place(section, name, task.environment_image or "")


def environment_env(task: PlannedTask, spec: EvalJobSpec, place: Place | None = None) -> list[dict[str, Any]]:
    """``[environment.env]`` and above it the job's literals as ``env`` of the container: templates become literals or ``valueFrom``.

    ``$(`` is escaped.

    Raises:
        MissingVariable: a template without a source and without a default.
    """
    sources, env = environment_sources(spec), []
    place = place or agent_place(task)
    for name, value in {**place.section.env, **spec.environment.env}.items():
        variable = variable_of(value)
        if variable is not None and variable.name in sources.refs:
            env.append({"name": name, "valueFrom": value_from(sources.refs[variable.name])})
            continue
        if variable is not None:
            found = sources.literals.get(variable.name, variable.default)
            if found is None:
                raise MissingVariable(variable.name, f"[{place.name}.env] of task {task.id}")
            env.append({"name": name, "value": escape(found)})
        else:
            env.append({"name": name, "value": escape(value)})
    return env


def template_variables(needed: Mapping[str, SecretSource]) -> list[dict[str, Any]]:
    """Container variables that hand templates' sources to the runner."""
    return [{"name": f"{VAR_TEMPLATE_PREFIX}{name}", "valueFrom": value_from(source)} for name, source in sorted(needed.items())]


def value_from(source: SecretSource) -> dict[str, Any]:
    return {source.kind: {"name": source.ref.name, "key": source.ref.key}}


def escape(value: str) -> str:
    """``$(NAME)`` in a container's variable would be expanded by Kubernetes, and ``$$`` shortened: each ``$`` is written twice."""
    return value.replace("$", "$$")


def timeouts(task: PlannedTask, spec: EvalJobSpec) -> TimeoutsInput:
    """Harbor's formula: the phase's own factor, else the general one, times the task's limit; no agent limit stays none (H-69)."""
    factors, config = spec.timeouts, task.config

    def scaled(seconds: float, factor: float | None) -> float:
        return seconds * (factor if factor is not None else factors.multiplier)

    agent = config.agent.timeout_sec
    return TimeoutsInput(
        environment=scaled(config.environment.build_timeout_sec, factors.build),
        agent_setup=scaled(AGENT_SETUP_SECONDS, factors.agent_setup),
        agent=None if agent is None else scaled(agent, factors.agent),
        verifier=scaled(config.verifier.timeout_sec, factors.verifier),
    )


def build_input(
    plan: FrozenPlan,
    spec: EvalJobSpec,
    trial: Trial,
    *,
    retry: int,
    agent_version: str,
    limits_bytes: Mapping[str, int],
    verifies: int | None = None,
) -> TrialInput:
    """The input of one Pod.

    Args:
        limits_bytes: sizes of the environment's volumes by mount path.
        verifies: for the Pod of a separate verifier, the retry whose work it grades.

    Raises:
        MissingVariable: a template without a source and without a default.
    """
    task = plan.tasks[trial.task]
    config = task.config
    solving_env = solution_env(task, spec)
    grading_refs(task, spec)
    needed_refs(solving_env, environment_sources(spec), where=f"[solution.env] of task {task.id}")
    separate = separate_place(task)
    if separate is not None:
        environment_env(task, spec, separate)  # what is missing there is said before the agent runs
    place = separate if verifies is not None and separate is not None else agent_place(task)
    environment = place.section
    limits = timeouts(task, spec)
    given = TrialInput(
        schema=1,
        job=JobRef(namespace=plan.namespace, name=plan.job, uid=plan.uid),
        trial=trial.name,
        attempt=trial.key.attempt,
        retry=retry,
        task=TaskRef(name=task.id, checksum=task.checksum, source=_taskset_name(plan.taskset)),
        image=place.image,
        agent=AgentInput(
            kind=_agent_kind(spec.agent),
            name=agent_name(spec.agent),
            version=agent_version,
            command=spec.agent.command,
            model=spec.agent.model,
            kwargs=dict(spec.agent.kwargs),
            env_names=sorted({*spec.agent.env, *spec.agent.env_secrets}),
            user=config.agent.user,
            **_extras(task, spec.agent),
        ),
        environment=EnvironmentInput(
            workdir=environment.workdir,
            env=dict(environment.env),
            # Harbor never checks the health of a separate verifier.
            healthcheck=_healthcheck(environment.healthcheck) if verifies is None else None,
            loose_files=task.loose_files and verifies is None,
        ),
        verifier=VerifierInput(
            mode="shared" if separate is None else "separate",
            bundled=separate is not None and separate.is_bundled,
            disable=spec.verifier.disable,
            user=config.verifier.user,
            env=verifier_env(task, spec),
            collect=_collect(config.verifier),
        ),
        solution_env=solving_env,
        variables=dict(spec.environment.env),
        artifacts=_artifacts(spec, config.artifacts),
        timeouts=limits,
        error_policy=error_overrides(spec),
        config=_trial_config(plan, spec, trial, task),
        limits=dict(limits_bytes),
    )
    if task.scoring is not None and task.scoring.metrics:
        given["scoring"] = ScoringInput(
            metrics=[MetricInput(type=metric.type, config=dict(metric.config)) for metric in task.scoring.metrics],
            metadata=dict(task.scoring.metadata),
            reward_key=spec.reward_key or DEFAULT_REWARD,
        )
    if names := {*spec.agent.env_secrets, *spec.environment.env_secrets}:
        given["secret_names"] = sorted(names)
    if verifies is not None:
        given["verifies"] = verifies
    if config.steps:
        given["steps"] = [_step(task, spec, step) for step in config.steps]
        given["reward_strategy"] = config.reward_strategy().value
    return given


class _Extras(TypedDict, total=False):
    mcp_servers: list[McpServerInput]
    skills: list[str]
    skills_dir: str | None


def _extras(task: PlannedTask, agent: AgentSpec) -> _Extras:
    """Skills and MCP servers for agents that may have them; absent where there are none."""
    extras = _Extras()
    if servers := agent_mcp_servers(task, agent):
        extras["mcp_servers"] = servers
    if agent.skills:
        extras["skills"] = list(agent.skills)
    if takes_extras(agent) and task.config.environment.skills_dir:
        extras["skills_dir"] = task.config.environment.skills_dir
    return extras


def agent_mcp_servers(task: PlannedTask, agent: AgentSpec) -> list[McpServerInput]:
    """The task's servers and the job's; of two with one name the job's. oracle and nop ignore them."""
    if not takes_extras(agent):
        return []
    servers = {server.name: _mcp_server(server) for server in task.config.environment.mcp_servers}
    return list({**servers, **{server.name: _mcp_server(server) for server in agent.mcp_servers}}.values())


def _mcp_server(server: TaskMcpServer | McpServer) -> McpServerInput:
    return McpServerInput(
        name=server.name,
        transport=server.transport,
        url=server.url,
        command=server.command,
        args=list(server.args),
        headers=dict(server.headers),
    )


def _agent_kind(agent: AgentSpec) -> Literal["oracle", "nop", "command", "image", "importPath"]:
    if agent.image is not None:
        return "image"
    if agent.import_path is not None:
        return "importPath"
    if agent.command is not None:
        return "command"
    return "nop" if agent.name == "nop" else "oracle"


def step_timeouts(task: PlannedTask, spec: EvalJobSpec, step: StepSection) -> tuple[float | None, float]:
    """Seconds for the agent and for the verifier in one step; the verifier's own limit is never the task's (H-70)."""
    factors = spec.timeouts
    agent = step.agent.timeout_sec if step.agent.timeout_sec is not None else task.config.agent.timeout_sec
    for_agent, for_verifier = (factors.multiplier if one is None else one for one in (factors.agent, factors.verifier))
    return None if agent is None else agent * for_agent, step.verifier.timeout_sec * for_verifier


def longest_seconds(task: PlannedTask, spec: EvalJobSpec) -> float | None:
    """How long all phases of the trial may take together; None where the agent has no limit."""
    limits, steps = timeouts(task, spec), task.config.steps or ()
    phases = [step_timeouts(task, spec, step) for step in steps] or [(limits["agent"], limits["verifier"])]
    total = limits["environment"] + limits["agent_setup"]
    for check in (task.config.environment.healthcheck, *(step.healthcheck for step in steps)):
        total += healthcheck_seconds(_healthcheck(check))
    for hook in (*task.config.verifier.collect, *(hook for step in steps for hook in step.verifier.collect)):
        total += hook.timeout_sec
    for agent, verifier in phases:
        if agent is None:
            return None
        # A step's set-up has no limit of its own.
        total += agent + verifier + (STEP_SECONDS if steps else 0.0)
    return total


def _step(task: PlannedTask, spec: EvalJobSpec, step: StepSection) -> StepInput:
    config, (agent, verifier) = task.config, step_timeouts(task, spec, step)
    return StepInput(
        name=step.name,
        agent_user=step.agent.user if step.agent.user is not None else config.agent.user,
        verifier_user=step.verifier.user if step.verifier.user is not None else config.verifier.user,
        verifier_env=verifier_env(task, spec, step),
        agent_timeout=agent,
        verifier_timeout=verifier,
        healthcheck=_healthcheck(step.healthcheck),
        collect=[*_collect(config.verifier), *_collect(step.verifier)],
        artifacts=_artifacts(spec, config.artifacts, step.artifacts),
        min_reward=step.min_reward,
    )


def _healthcheck(check: Healthcheck | None) -> HealthcheckInput | None:
    if check is None:
        return None
    return HealthcheckInput(
        command=check.command,
        interval_sec=check.interval_sec,
        timeout_sec=check.timeout_sec,
        start_period_sec=check.start_period_sec,
        start_interval_sec=check.start_interval_sec,
        retries=check.retries,
    )


def _collect(section: VerifierSection) -> list[CollectInput]:
    return [
        CollectInput(command=hook.command, service=hook.service, timeout_sec=hook.timeout_sec, user=hook.user) for hook in section.collect
    ]


def _artifacts(spec: EvalJobSpec, task: Sequence[Artifact], step: Sequence[Artifact] = ()) -> list[ArtifactInput]:
    """In the order in which they claim their places: the traces, the task's, the job's, the step's."""
    traces = []
    if spec.trace_dir is not None:
        traces.append(ArtifactInput(source=spec.trace_dir, destination=TRACE_FOLDER, exclude=[], service=None))
    own = [ArtifactInput(source=one.source, destination=one.destination, exclude=list(one.exclude), service=None) for one in spec.artifacts]
    before, after = (
        [ArtifactInput(source=one.source, destination=one.destination, exclude=list(one.exclude), service=one.service) for one in items]
        for items in (task, step)
    )
    return [*traces, *before, *own, *after]


def error_overrides(spec: EvalJobSpec) -> dict[str, PolicyFlags]:
    """``spec.errorPolicy`` with the flags that are set."""
    result: dict[str, PolicyFlags] = {}
    for name, policy in spec.error_policy.items():
        flags = PolicyFlags()
        if policy.retry is not None:
            flags["retry"] = policy.retry
        if policy.grade is not None:
            flags["grade"] = policy.grade
        if policy.valid is not None:
            flags["valid"] = policy.valid
        result[name] = flags
    return result


def _taskset_name(reference: str | None) -> str | None:
    return None if reference is None else reference.partition("#")[0].rpartition("/")[2]


def _trial_config(plan: FrozenPlan, spec: EvalJobSpec, trial: Trial, task: PlannedTask) -> dict[str, Any]:
    """``config`` of Harbor's trial result (harbor.md 7.1); variables by name only, so that no value is repeated."""
    factors = spec.timeouts
    return {
        "schema_version": 1,
        "task": {"path": task.archive_key, "source": _taskset_name(plan.taskset)},
        "trial_name": trial.name,
        "trials_dir": "trials",
        "timeout_multiplier": factors.multiplier,
        "agent_timeout_multiplier": factors.agent,
        "verifier_timeout_multiplier": factors.verifier,
        "agent_setup_timeout_multiplier": factors.agent_setup,
        "environment_build_timeout_multiplier": factors.build,
        "agent": {
            "name": agent_name(spec.agent),
            "import_path": spec.agent.import_path,
            "model_name": spec.agent.model,
            "kwargs": dict(spec.agent.kwargs),
            "env": {name: f"${{{name}}}" for name in sorted({*spec.agent.env, *spec.agent.env_secrets})},
        },
        "environment": {"type": "kubernetes"},
        "verifier": {"disable": spec.verifier.disable},
        "override_error_policy": {},
        "job_id": plan.uid,
    }
