"""The kind EvalJob: one agent, some tasks, some attempts; the operator runs a Pod per trial and writes the scores into status."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from seatrial.api.credentials import ENV_NAME_PATTERN, KEY_PATTERN, VALUE_CHARS, VALUE_PATTERN, credential_paths, is_masked_name
from seatrial.api.meta import (
    LIST_MAP_KEYS,
    LIST_TYPE,
    PLAINTEXT_CREDENTIAL,
    Column,
    Condition,
    DnsName,
    Duration,
    FrozenMap,
    Image,
    JsonMap,
    MaxEntries,
    Model,
    QuantityField,
    Reference,
    Resource,
    Rule,
    SecretKeyName,
    Sha256,
    ShortMessage,
    StoredFile,
    StoreKey,
    Timestamp,
    cel,
    conditions_field,
    fault,
)

V = TypeVar("V")

MAX_TASKS: Final = 1000
MAX_TRIALS: Final = 100_000
MAX_SCORES: Final = 64
MAX_COVERAGE: Final = 32
MAX_ERRORS: Final = 20
MAX_ERROR_SAMPLE: Final = 5
MAX_THRESHOLDS: Final = 32

Phase = Literal["Pending", "Running", "Suspended", "Completed", "Failed", "Cancelled"]
TERMINAL_PHASES: Final[frozenset[Phase]] = frozenset({"Completed", "Failed", "Cancelled"})
Cause = Literal["infrastructure", "environment", "agent", "verifier", "user"]

_STARTED: Final = "cannot be changed: create a new EvalJob, a started one keeps its plan"

ErrorName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$", max_length=100)]
"""Class name of an error, as in Harbor's table."""
RewardKey = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$")]
ScoreName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""Name of an aggregate, such as ``reward.mean`` or ``reward.pass@1``; longer ones are in the results only."""
Decimals = Annotated[str, Field(max_length=32)]
"""A number as decimal text: the API avoids floats in status."""
Text = Annotated[str, Field(max_length=4096)]


def _immutable(field: str, *rules: Rule) -> dict[str, Any]:
    """A transition rule for a field that always has a value, after its other ``rules``."""
    return cel(*rules, Rule("self == oldSelf", f"{field} {_STARTED}"))


def _immutable_optional(*fields: str, below: str = "") -> tuple[Rule, ...]:
    """Transition rules, on the parent called ``below``, for fields that may be absent."""
    return tuple(
        Rule(
            f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})", f"{below}{name} {_STARTED}"
        )
        for name in fields
    )


# --- environment variables ----------------------------------------------------------------------------------------------------------

_ENV_NAMES = Rule(
    "self.all(k, k.matches('^[A-Za-z_][A-Za-z0-9_]{0,254}$') && !k.startsWith('SEATRIAL_'))",
    "names must be letters, digits and underscores, and must not start with SEATRIAL_",
)
_CREDENTIAL_NEXT: Final = "looks like a credential: put it into a Secret and name it in envSecrets"
_CEL_VALUE: Final = VALUE_PATTERN.replace("\\", "\\\\")
_IS_TEMPLATE: Final = "self[k].matches('^[$][{][^}]*[}]$')"


def _refuse(condition: str) -> Rule:
    """No variable may meet ``condition``.

    On the map and not on its values: the server prints a refused string, and it must not print this one. The message names the first
    variable only: all of them would exceed the cost limit.
    """
    return Rule(f"self.all(k, !({condition}))", f"a variable {_CREDENTIAL_NEXT}", f"self.filter(k, {condition})[0] + ' {_CREDENTIAL_NEXT}'")


_PLAIN_NAMES = _refuse(f"self[k] != '' && !{_IS_TEMPLATE} && k.lowerAscii().matches('{KEY_PATTERN}')")
_AGENT_NAMES = _refuse(f"k.matches('{ENV_NAME_PATTERN}')")
_VALUES = _refuse(f"self[k].size() >= {VALUE_CHARS} && !{_IS_TEMPLATE} && self[k].matches('{_CEL_VALUE}')")
_AGENT_ENV_LITERAL = Rule("self.all(k, !self[k].contains('${'))", "values are literals: ${ is not allowed here")
# The server checks the rules on the literal defaults too, before those of their fields are filled in: hence has().
_ENV_TWICE = Rule(
    "!has(self.env) || !has(self.envSecrets) || self.env.all(k, !(k in self.envSecrets))",
    "env and envSecrets must not name the same variable",
)


def _check_env_names(value: Mapping[str, V]) -> Mapping[str, V]:
    for name in value:
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,254}", name) is None or name.startswith("SEATRIAL_"):
            raise fault("env_name", f"{name[:255]!r}: {_ENV_NAMES.message}")
    return value


EnvMap = Annotated[FrozenMap[Annotated[str, Field(max_length=8192)]], MaxEntries(64), AfterValidator(_check_env_names)]


def _env(description: str, *rules: Rule) -> Any:
    return Field(default={}, description=description, json_schema_extra=cel(_ENV_NAMES, *rules))


def _check_env_once(env: Iterable[str], secrets: Iterable[str]) -> None:
    if twice := sorted(set(env) & set(secrets)):
        raise fault("env_twice", f"{', '.join(twice)}: {_ENV_TWICE.message}")


def _check_credentials(value: object) -> None:
    if paths := list(credential_paths(value)):
        raise fault(PLAINTEXT_CREDENTIAL, f"{', '.join(dict.fromkeys(paths))} {_CREDENTIAL_NEXT}")


class KeyRef(Model):
    """One key of a Secret or ConfigMap in the job's namespace."""

    name: DnsName = Field(description="Name of the object.")
    key: SecretKeyName = Field(description="Key inside it.")


KeyRefMap = Annotated[FrozenMap[KeyRef], MaxEntries(64), AfterValidator(_check_env_names)]


# --- agent --------------------------------------------------------------------------------------------------------------------------

_AGENT_ONE_OF = Rule(
    "[has(self.name), has(self.image), has(self.command), has(self.importPath)].filter(x, x).size() == 1",
    "give exactly one of name, image, command and importPath",
)
_AGENT_RUNNER_IMAGE = Rule("!has(self.runnerImage) || has(self.name) || has(self.importPath)", "runnerImage goes with name or importPath")
_AGENT_ARGS = Rule("!has(self.args) || self.args.size() == 0 || has(self.image)", "args goes with image")
_AGENT_SOURCE = Rule("!has(self.source) || has(self.importPath)", "source goes with importPath")
_MCP_TARGET = Rule(
    "self.transport == 'stdio' ? has(self.command) && !has(self.url) : has(self.url) && !has(self.command)",
    "stdio needs command, the other transports need url",
)


class McpServer(Model):
    """An MCP server that the agent may use, as in Harbor's task format."""

    model_config = ConfigDict(json_schema_extra=cel(_MCP_TARGET))

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=128)] = Field(
        description="Name of the server; it replaces a server of the task with the same name."
    )
    transport: Literal["sse", "streamable-http", "stdio"] = Field(default="sse", description="How to talk to it.")
    url: Annotated[str, Field(min_length=1, max_length=2048)] | None = Field(default=None, description="For sse and streamable-http.")
    command: Annotated[str, Field(min_length=1, max_length=4096)] | None = Field(default=None, description="Program, for stdio.")
    args: tuple[Text, ...] = Field(default=(), max_length=64, description="Its arguments.", json_schema_extra={LIST_TYPE: "atomic"})
    headers: Annotated[FrozenMap[Text], MaxEntries(32)] = Field(
        default={}, description="HTTP headers; a credential must be a ${NAME} template of a variable in envSecrets."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        wanted, other = (self.command, self.url) if self.transport == "stdio" else (self.url, self.command)
        if wanted is None or other is not None:
            raise fault("mcp_server", _MCP_TARGET.message)
        return self


class AgentSpec(Model):
    """Who is evaluated: exactly one of name, image, command and importPath."""

    model_config = ConfigDict(json_schema_extra=cel(_AGENT_ONE_OF, _AGENT_RUNNER_IMAGE, _AGENT_ARGS, _AGENT_SOURCE, _ENV_TWICE))

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=128)] | None = Field(
        default=None,
        description=(
            "An agent that the runner image carries. oracle runs the task's own solution and needs no model; "
            "nop does nothing; further names are Harbor's, where the image has them."
        ),
    )
    image: Image | None = Field(default=None, description="Your own container: it gets the instruction and drives the environment.")
    command: Annotated[str, Field(min_length=1, max_length=32768)] | None = Field(
        default=None, description="A shell command that runs in the task's environment; the instruction is on its standard input."
    )
    import_path: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$", max_length=512)] | None = Field(
        default=None, description="A Python class, module:Class, with Harbor's agent interface."
    )
    runner_image: Image | None = Field(default=None, description="Runner image instead of the operator's; beside name or importPath.")
    args: tuple[Text, ...] = Field(
        default=(), max_length=256, description="Arguments of the container; beside image.", json_schema_extra={LIST_TYPE: "atomic"}
    )
    source: StoredFile | None = Field(default=None, description="Archive with the module of importPath, where no image carries it.")
    model: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        default=None, description="Model name handed to the agent, such as provider/model."
    )
    kwargs: JsonMap = Field(default={}, description="Constructor arguments of the agent; any JSON object, never secrets.")
    skills: tuple[Annotated[str, Field(min_length=1, max_length=1024)], ...] = Field(
        default=(),
        max_length=64,
        description="Folders with a SKILL.md, or folders of such; inside source, or absolute in the runner image. Only beside importPath.",
        json_schema_extra={LIST_TYPE: "atomic"},
    )
    mcp_servers: tuple[McpServer, ...] = Field(
        default=(),
        max_length=32,
        description="MCP servers in addition to the task's.",
        json_schema_extra={LIST_TYPE: "map", LIST_MAP_KEYS: ["name"]},
    )
    env: EnvMap = _env(
        "Variables for the agent, as literals. Anything that looks like a credential is refused: use envSecrets.",
        _AGENT_NAMES,
        _VALUES,
        _AGENT_ENV_LITERAL,
    )
    env_secrets: KeyRefMap = _env(
        "Variables from Secrets of the job's namespace, such as OPENAI_API_KEY: {name: my-secret, key: token}; "
        "only the agent's container gets them."
    )

    @property
    def kind(self) -> Literal["name", "image", "command", "importPath"]:
        """Which of the four is set."""
        if self.name is not None:
            return "name"
        if self.image is not None:
            return "image"
        return "command" if self.command is not None else "importPath"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(value is not None for value in (self.name, self.image, self.command, self.import_path)) != 1:
            raise fault("one_of", _AGENT_ONE_OF.message)
        if self.runner_image is not None and self.name is None and self.import_path is None:
            raise fault("agent", _AGENT_RUNNER_IMAGE.message)
        if self.args and self.image is None:
            raise fault("agent", _AGENT_ARGS.message)
        if self.source is not None and self.import_path is None:
            raise fault("agent", _AGENT_SOURCE.message)
        if len({server.name for server in self.mcp_servers}) != len(self.mcp_servers):
            raise fault("mcp_server", "mcpServers must not repeat a name")
        _check_env_once(self.env, self.env_secrets)
        if templates := [name for name, value in self.env.items() if "${" in value]:
            raise fault("env_literal", f"env.{templates[0]}: {_AGENT_ENV_LITERAL.message}")
        if masked := [f"env.{name}" for name in self.env if is_masked_name(name)]:
            raise fault(PLAINTEXT_CREDENTIAL, f"{', '.join(masked)} {_CREDENTIAL_NEXT}")
        _check_credentials(
            {
                "args": self.args,
                "command": self.command,
                "env": self.env,
                "kwargs": self.kwargs,
                "mcpServers": [{"args": server.args, "headers": server.headers} for server in self.mcp_servers],
            }
        )
        return self


# --- environment and verifier --------------------------------------------------------------------------------------------------------


class EnvironmentSpec(Model):
    """Variables of the tasks' environments: literals go there, and all are sources of the ${NAME} templates in the tasks."""

    model_config = ConfigDict(json_schema_extra=cel(_ENV_TWICE))

    env: EnvMap = _env(
        "Variables as literals; they win over [environment.env] of the tasks. Anything that looks like a credential is refused.",
        _PLAIN_NAMES,
        _VALUES,
    )
    env_secrets: KeyRefMap = _env("Values for the tasks' ${NAME} templates from Secrets of the job's namespace; they go nowhere else.")
    env_config_maps: KeyRefMap = _env("Values for the tasks' ${NAME} templates from ConfigMaps; they go nowhere else.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_env_once(self.env, self.env_secrets)
        _check_credentials({"env": self.env})
        return self


class VerifierSpec(Model):
    """How trials are graded."""

    model_config = ConfigDict(json_schema_extra=cel(_ENV_TWICE))

    env: EnvMap = _env("Variables for the tests, as literals; they win over the task's. Credentials are refused.", _PLAIN_NAMES, _VALUES)
    env_secrets: KeyRefMap = _env("Variables for the tests from Secrets of the job's namespace.")
    disable: bool = Field(default=False, description="Run the agent and save its work, but grade nothing.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_env_once(self.env, self.env_secrets)
        _check_credentials({"env": self.env})
        return self


# --- what to run ---------------------------------------------------------------------------------------------------------------------

Glob = Annotated[str, Field(min_length=1, max_length=255)]


class SelectSpec(Model):
    """Which tasks of the set to run."""

    include: tuple[Glob, ...] = Field(
        default=("*",),
        max_length=256,
        description="Globs on Harbor's task names; a task that matches one of them is taken.",
        json_schema_extra={LIST_TYPE: "atomic"},
    )
    exclude: tuple[Glob, ...] = Field(
        default=(),
        max_length=256,
        description="Globs of tasks to leave out; wins over include.",
        json_schema_extra={LIST_TYPE: "atomic"},
    )
    limit: int | None = Field(default=None, ge=1, le=MAX_TRIALS, description="Take at most this many tasks, in the set's order.")


_RESCORE_ONE_OF = Rule("has(self.job) != has(self.trials)", "give exactly one of job and trials")
_RESCORE_TASKSET = Rule("!has(self.trials) || has(self.taskset)", "trials needs taskset: the tasks that the saved trials are of")


class RescoreSpec(Model):
    """Score the trials of an ended job, or of a file, again, without running agents."""

    model_config = ConfigDict(json_schema_extra=cel(_RESCORE_ONE_OF, _RESCORE_TASKSET))

    job: DnsName | None = Field(default=None, description="Name of an ended EvalJob of the same namespace.")
    trials: StoredFile | None = Field(
        default=None, description="A trials.jsonl in the object store instead of a job; evidence lies beside it."
    )
    taskset: Reference | None = Field(
        default=None, description="The tasks, with their metrics, as of now; absent: those that the job was planned with."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.job is None) == (self.trials is None):
            raise fault("rescore", _RESCORE_ONE_OF.message)
        if self.trials is not None and self.taskset is None:
            raise fault("rescore", _RESCORE_TASKSET.message)
        return self


class BackoffSpec(Model):
    """Wait before a retry: doubled from min up to max."""

    min: Duration = Field(default=Duration("1s"), description="First wait.")
    max: Duration = Field(default=Duration("60s"), description="Longest wait.")


class RetrySpec(Model):
    """When a trial gets a further Pod."""

    model_config = ConfigDict(json_schema_extra=cel(*_immutable_optional("exclude", below="retry.")))

    max: int = Field(
        default=0,
        ge=0,
        le=10,
        description="Further Pods per trial for counted failures; loss of a node is free. Can be changed.",
    )
    include: tuple[ErrorName, ...] = Field(
        default=(),
        max_length=64,
        description="Retry only errors of these names; empty means all.",
        json_schema_extra={LIST_TYPE: "set", **_immutable("retry.include")},
    )
    exclude: tuple[ErrorName, ...] | None = Field(
        default=None,
        max_length=64,
        description="Never retry errors of these names; absent means Harbor's list, and it wins over include.",
        json_schema_extra={LIST_TYPE: "set"},
    )
    backoff: BackoffSpec = Field(
        default=BackoffSpec(), description="Wait between the Pods of a trial.", json_schema_extra=_immutable("retry.backoff")
    )


class ErrorPolicySpec(Model):
    """What an error means; an absent flag keeps Harbor's."""

    retry: bool | None = Field(default=None, description="Whether the trial may get a further Pod.")
    grade: bool | None = Field(default=None, description="Whether the verifier still runs.")
    valid: bool | None = Field(default=None, description="Whether the reward counts.")


Multiplier = Annotated[float, Field(gt=0, le=1000)]


class TimeoutsSpec(Model):
    """Factors on the tasks' own time limits, and the wait for a node."""

    multiplier: Multiplier = Field(default=1.0, description="Factor on all time limits of a trial.")
    agent: Multiplier | None = Field(default=None, description="Factor on the agent's limit, instead of multiplier.")
    agent_setup: Multiplier | None = Field(default=None, description="Factor on the limit of the agent's setup, instead of multiplier.")
    verifier: Multiplier | None = Field(default=None, description="Factor on the verifier's limit, instead of multiplier.")
    build: Multiplier | None = Field(default=None, description="Factor on the limit of the environment's start, instead of multiplier.")
    pending: Duration = Field(default=Duration("30m"), description="How long a Pod may wait for a node, such as 30m.")


ResourceMode = Literal["auto", "limit", "request", "guarantee", "ignore"]


class ResourceOverrides(Model):
    """Replace what the tasks ask for."""

    cpu: QuantityField | None = Field(default=None, description="CPU cores, such as 2 or 500m.")
    memory: QuantityField | None = Field(default=None, description="Memory, such as 4Gi.")
    storage: QuantityField | None = Field(default=None, description="Storage, such as 10Gi.")
    gpu: int | None = Field(default=None, ge=0, le=64, description="GPUs.")


class ResourcesSpec(Model):
    """How the tasks' resources become requests and limits; auto means request, and a limit for memory and storage."""

    cpu: ResourceMode = Field(default="auto", description="Mode for CPU: auto, limit, request, guarantee (both) or ignore.")
    memory: ResourceMode = Field(default="auto", description="Mode for memory.")
    storage: ResourceMode = Field(default="auto", description="Mode for storage.")
    gpu: Literal["auto", "ignore"] = Field(default="auto", description="Mode for GPUs: auto asks for them, ignore does not.")
    overrides: ResourceOverrides = Field(default=ResourceOverrides(), description="Values that replace the tasks' own.")


class LimitsSpec(Model):
    """When the job stops early; can be changed."""

    max_errored: int | None = Field(default=None, ge=0, le=MAX_TRIALS, description="Stop and fail when more trials than this are errored.")
    deadline: Duration | None = Field(default=None, description="Longest time from start to end, such as 6h.")
    max_cost_usd: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        default=None,
        description=(
            "Start no further agent when the cost that the agents report reaches this many US dollars; those that run go on to their "
            "score, so with n at a time the job may cost up to n trials more."
        ),
    )


_METRIC_SCRIPT = Rule("(self.type == 'script') == has(self.script)", "script goes with type script, and only with it")


class JobMetric(Model):
    """How rewards are combined over the job."""

    model_config = ConfigDict(json_schema_extra=cel(_METRIC_SCRIPT))

    type: Literal["mean", "sum", "min", "max", "script"] = Field(description="mean, sum, min, max, or script for a metric.py of your own.")
    missing: Literal["skip", "zero"] = Field(
        default="skip", description="skip: a missing reward is left out and the denominator is named; zero: it counts as 0, as Harbor does."
    )
    script: StoredFile | None = Field(default=None, description="The script, for type script.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.type == "script") != (self.script is not None):
            raise fault("job_metric", _METRIC_SCRIPT.message)
        return self


class ScoringSpec(Model):
    """How scores are computed."""

    require_all_tasks: bool = Field(default=False, description="End Failed when a task has no scored trial, after the results are saved.")
    script_timeout: Duration = Field(default=Duration("5m"), description="Longest time for one metric.py, such as 5m.")


class ThresholdSpec(Model):
    """A gate: the job fails when the score is below it."""

    score: ScoreName = Field(description="Name of a score in status.scores, such as reward.mean.")
    at_least: float = Field(description="Smallest value that passes.")
    on_missing: Literal["fail", "pass"] = Field(default="fail", description="What an unmeasured score means: fail or pass.")


_ARTIFACT_SOURCE = Rule("!self.source.matches('(^|/)[.][.](/|$)')", "source must not contain a .. part")
_ARTIFACT_DESTINATION = Rule(
    "!has(self.destination) || !(self.destination.startsWith('/') || self.destination == 'manifest.json' "
    "|| self.destination.matches('(^|/)[.][.]?(/|$)'))",
    "destination is relative, without . and .., and not manifest.json",
)


class ArtifactSpec(Model):
    """A path of the environment that is saved with the trial."""

    model_config = ConfigDict(json_schema_extra=cel(_ARTIFACT_SOURCE, _ARTIFACT_DESTINATION))

    source: Annotated[str, Field(min_length=1, max_length=4096)] = Field(description="File or folder in the environment.")
    destination: Annotated[str, Field(min_length=1, max_length=1024)] | None = Field(
        default=None, description="Path below the trial's artifacts; absent means the source's own path."
    )
    exclude: tuple[Glob, ...] = Field(
        default=(), max_length=64, description="Patterns to leave out of a folder.", json_schema_extra={LIST_TYPE: "atomic"}
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if ".." in self.source.split("/"):
            raise fault("artifact", _ARTIFACT_SOURCE.message)
        target = self.destination
        if target is not None and (target.startswith("/") or target == "manifest.json" or {".", ".."} & set(target.split("/"))):
            raise fault("artifact", _ARTIFACT_DESTINATION.message)
        return self


_CACHE_JOB = Rule("!has(self.job) || self.policy == 'none'", "job goes with policy none: results come from that job or from the cache")
_CACHE_RERUN = Rule("!has(self.rerunErrors) || has(self.job)", "rerunErrors goes with job")
_CACHE_SCOPE = Rule("!has(self.scope) || self.policy != 'none'", "scope goes with policy reuse or refresh")


class CacheSpec(Model):
    """Reuse of earlier results."""

    model_config = ConfigDict(json_schema_extra=cel(_CACHE_JOB, _CACHE_RERUN, _CACHE_SCOPE))

    policy: Literal["none", "reuse", "refresh"] = Field(
        default="none",
        description="none: run all; reuse: take matching results, run the rest; refresh: run all and replace them.",
    )
    scope: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)] | None = Field(
        default=None, description="Keeps a series of runs apart: results are reused only within one scope. Absent: the namespace's own."
    )
    job: DnsName | None = Field(
        default=None, description="An ended EvalJob of the same namespace whose results are taken for the same attempts at the same tasks."
    )
    rerun_errors: tuple[ErrorName, ...] | None = Field(
        default=None,
        max_length=64,
        description="Errors whose trials run again instead of being taken from job; empty or absent: every errored trial.",
        json_schema_extra={LIST_TYPE: "set"},
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.job is not None and self.policy != "none":
            raise fault("cache", _CACHE_JOB.message)
        if self.rerun_errors is not None and self.job is None:
            raise fault("cache", _CACHE_RERUN.message)
        if self.scope is not None and self.policy == "none":
            raise fault("cache", _CACHE_SCOPE.message)
        return self


# --- Pods ----------------------------------------------------------------------------------------------------------------------------

LabelValue = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", max_length=63)]
LabelKey = Annotated[str, Field(min_length=1, max_length=317)]
_OWN_KEYS = Rule("self.all(k, !k.startsWith('seatrial.dev/'))", "keys below seatrial.dev/ are reserved")
_SECONDS_NEED = Rule(
    "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')", "tolerationSeconds goes with effect NoExecute"
)
_TOLERATION_KEY = Rule("self.operator == 'Exists' ? !has(self.value) : has(self.key)", "operator Equal needs key, Exists takes no value")


class Toleration(Model):
    """As in a Pod."""

    model_config = ConfigDict(json_schema_extra=cel(_SECONDS_NEED, _TOLERATION_KEY))

    key: LabelKey | None = Field(default=None, description="Taint key; absent with Exists means every taint.")
    operator: Literal["Exists", "Equal"] = Field(default="Equal", description="Exists or Equal.")
    value: LabelValue | None = Field(default=None, description="Taint value, for Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(default=None, description="Taint effect; absent: all.")
    toleration_seconds: int | None = Field(default=None, ge=0, le=10**9, description="For NoExecute: how long the Pod stays.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            raise fault("toleration", _SECONDS_NEED.message)
        if (self.operator == "Exists" and self.value is not None) or (self.operator == "Equal" and self.key is None):
            raise fault("toleration", _TOLERATION_KEY.message)
        return self


class LocalName(Model):
    """An object of the job's namespace."""

    name: DnsName = Field(description="Name of the object.")


class PodTemplate(Model):
    """What trial Pods get in addition."""

    model_config = ConfigDict(json_schema_extra=cel(*_immutable_optional("runtimeClassName", "priorityClassName", below="pod.")))

    node_selector: Annotated[FrozenMap[LabelValue], MaxEntries(32)] = Field(
        default={}, description="Labels that the node must have.", json_schema_extra=_immutable("pod.nodeSelector")
    )
    tolerations: tuple[Toleration, ...] = Field(
        default=(),
        max_length=32,
        description="Taints that the Pods tolerate.",
        json_schema_extra={LIST_TYPE: "atomic", **_immutable("pod.tolerations")},
    )
    affinity: JsonMap = Field(default={}, description="Affinity as in a Pod; the server checks it when the first Pod is created.")
    runtime_class_name: DnsName | None = Field(default=None, description="RuntimeClass, such as one for a sandbox.")
    priority_class_name: DnsName | None = Field(default=None, description="PriorityClass.")
    image_pull_secrets: tuple[LocalName, ...] = Field(
        default=(),
        max_length=16,
        description="Secrets for pulling images.",
        json_schema_extra={LIST_TYPE: "map", LIST_MAP_KEYS: ["name"], **_immutable("pod.imagePullSecrets")},
    )
    labels: Annotated[FrozenMap[LabelValue], MaxEntries(32)] = Field(
        default={},
        description="Further labels.",
        json_schema_extra=_immutable("pod.labels", _OWN_KEYS),
    )
    annotations: Annotated[FrozenMap[Text], MaxEntries(32)] = Field(
        default={},
        description="Further annotations.",
        json_schema_extra=_immutable("pod.annotations", _OWN_KEYS),
    )
    keep_failed_seconds: int = Field(
        default=0,
        ge=0,
        le=604_800,
        description="Keep the Pod of an errored trial this long, to look at it.",
        json_schema_extra=_immutable("pod.keepFailedSeconds"),
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if any(key.startswith("seatrial.dev/") for key in (*self.labels, *self.annotations)):
            raise fault("pod", _OWN_KEYS.message)
        if len({item.name for item in self.image_pull_secrets}) != len(self.image_pull_secrets):
            raise fault("pod", "imagePullSecrets must not repeat a name")
        return self


# --- spec ----------------------------------------------------------------------------------------------------------------------------

_WORK_ONE_OF = Rule(
    "[has(self.taskset), has(self.tasks), has(self.rescore)].filter(x, x).size() == 1", "give exactly one of taskset, tasks and rescore"
)
_SELECT = Rule(
    "!has(self.rescore) || (self.select.include == ['*'] && self.select.exclude.size() == 0 && !has(self.select.limit))",
    "select goes with taskset or tasks; a rescore takes all trials of its job",
)
_RESCORE_AGENT = Rule(
    "!has(self.rescore) || (has(self.agent.name) && self.agent.name == 'oracle')", "a rescore runs no agent: leave agent out"
)
_TOO_MANY = Rule(
    f"!has(self.tasks) || self.tasks.size() * self.attempts <= {MAX_TRIALS}",
    f"tasks times attempts is more than {MAX_TRIALS} trials: split the job",
)
_CANCEL = Rule("self || !oldSelf", "a cancelled job cannot be continued: create a new EvalJob")


class EvalJobSpec(Model):
    """What to run. Only suspend, cancel, concurrency, retry.max, limits and ttlSecondsAfterFinished can be changed later."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            _WORK_ONE_OF, _SELECT, _RESCORE_AGENT, _TOO_MANY, *_immutable_optional("taskset", "tasks", "rescore", "rewardKey", "traceDir")
        )
    )

    taskset: Reference | None = Field(
        default=None,
        description="A Taskset: name or namespace/name, optionally with #tag or #digest. Exactly one of taskset, tasks and rescore.",
    )
    tasks: tuple[Reference, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_TASKS,
        description="Tasks by reference, at most 1,000. Exactly one of taskset, tasks and rescore.",
        json_schema_extra={LIST_TYPE: "set"},
    )
    rescore: RescoreSpec | None = Field(
        default=None, description="Score the trials of an ended job again. Exactly one of taskset, tasks and rescore."
    )
    select: SelectSpec = Field(default=SelectSpec(), description="Which of the tasks to run.", json_schema_extra=_immutable("select"))
    agent: AgentSpec = Field(
        default=AgentSpec(name="oracle"),
        description=(
            "Who is evaluated: exactly one of name, image, command and importPath. "
            "Without it, oracle runs the tasks' own solutions, which checks the tasks and needs no model."
        ),
        json_schema_extra=_immutable("agent"),
    )
    environment: EnvironmentSpec = Field(
        default=EnvironmentSpec(), description="Variables of the tasks' environments.", json_schema_extra=_immutable("environment")
    )
    verifier: VerifierSpec = Field(default=VerifierSpec(), description="How trials are graded.", json_schema_extra=_immutable("verifier"))
    attempts: int = Field(default=1, ge=1, le=1000, description="Attempts per task.", json_schema_extra=_immutable("attempts"))
    concurrency: int = Field(default=4, ge=1, le=10_000, description="Trial Pods at a time. Can be changed.")
    retry: RetrySpec = Field(default=RetrySpec(), description="When a trial gets a further Pod.")
    error_policy: Annotated[FrozenMap[ErrorPolicySpec], MaxEntries(64)] = Field(
        default={},
        description="What errors mean, by error name; Harbor's table applies where nothing is said.",
        json_schema_extra=_immutable("errorPolicy"),
    )
    timeouts: TimeoutsSpec = Field(
        default=TimeoutsSpec(), description="Factors on the tasks' own time limits.", json_schema_extra=_immutable("timeouts")
    )
    resources: ResourcesSpec = Field(
        default=ResourcesSpec(), description="How the tasks' resources are applied.", json_schema_extra=_immutable("resources")
    )
    limits: LimitsSpec = Field(default=LimitsSpec(), description="When the job stops early. Can be changed.")
    reward_key: RewardKey | None = Field(
        default=None, description="The reward that counts; absent means reward. A key that no valid trial reports is not measured, never 0."
    )
    metrics: tuple[JobMetric, ...] = Field(
        default=(),
        max_length=16,
        description="How rewards are combined over the job; empty means mean.",
        json_schema_extra={LIST_TYPE: "atomic", **_immutable("metrics")},
    )
    scoring: ScoringSpec = Field(default=ScoringSpec(), description="How scores are computed.", json_schema_extra=_immutable("scoring"))
    thresholds: tuple[ThresholdSpec, ...] = Field(
        default=(),
        max_length=MAX_THRESHOLDS,
        description="Gates: the job ends Failed when one is missed, after its results are saved.",
        json_schema_extra={LIST_TYPE: "map", LIST_MAP_KEYS: ["score"], **_immutable("thresholds")},
    )
    artifacts: tuple[ArtifactSpec, ...] = Field(
        default=(),
        max_length=64,
        description="Paths of the environment to save, in addition to /logs/artifacts and the tasks' own.",
        json_schema_extra={LIST_TYPE: "atomic", **_immutable("artifacts")},
    )
    trace_dir: Annotated[str, Field(pattern=r"^/[^\x00-\x1f\x7f]*$", max_length=1024)] | None = Field(
        default=None,
        description="Folder of the environment with the agent's traces: saved as the artifact traces, and the tests find it in TRACE_DIR.",
    )
    cache: CacheSpec = Field(default=CacheSpec(), description="Reuse of earlier results.", json_schema_extra=_immutable("cache"))
    pod: PodTemplate = Field(default=PodTemplate(), description="What trial Pods get in addition.")
    suspend: bool = Field(default=False, description="Stop: running trials are deleted and start again later. Can be changed.")
    cancel: bool = Field(
        default=False, description="End the job; what is scored stays. Can be set, never unset.", json_schema_extra=cel(_CANCEL)
    )
    ttl_seconds_after_finished: int | None = Field(
        default=None,
        ge=0,
        le=10**9,
        description="Delete this object so long after its end; its results stay. Can be changed.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(value is not None for value in (self.taskset, self.tasks, self.rescore)) != 1:
            raise fault("one_of", _WORK_ONE_OF.message)
        if self.rescore is not None and self.select != SelectSpec():
            raise fault("select", _SELECT.message)
        if self.rescore is not None and self.agent.name != "oracle":
            raise fault("rescore", _RESCORE_AGENT.message)
        if self.tasks is not None and len(self.tasks) * self.attempts > MAX_TRIALS:
            raise fault("too_many", _TOO_MANY.message)
        for field, items in (
            ("tasks", self.tasks or ()),
            ("retry.include", self.retry.include),
            ("retry.exclude", self.retry.exclude or ()),
            ("thresholds", tuple(threshold.score for threshold in self.thresholds)),
        ):
            if len(set(items)) != len(items):
                raise fault("repeated", f"{field} must not repeat")
        return self


# --- status --------------------------------------------------------------------------------------------------------------------------


def _count(description: str) -> Any:
    return Field(default=0, ge=0, description=description)


class PlanStatus(Model):
    """The frozen plan in the object store."""

    key: StoreKey = Field(description="Key of plan.json.")
    sha256: Sha256 = Field(description="SHA-256 of plan.json.")
    tasks: int = Field(ge=0, description="Tasks in the plan.")
    trials: int = Field(ge=0, description="Trials in the plan.")


class TrialCounts(Model):
    """total = pending + running + scored + errored + cancelled, always; retried and cached are counters beside it."""

    total: int = _count("All trials.")
    pending: int = _count("Trials without a Pod yet, or waiting for a retry.")
    running: int = _count("Trials with a live Pod.")
    scored: int = _count("Trials with a valid reward.")
    errored: int = _count("Trials that ended without one.")
    cancelled: int = _count("Trials that the job's end left undone.")
    retried: int = _count("Further Pods so far.")
    cached: int = _count("Trials whose result was reused.")


class ScoreStatus(Model):
    """One aggregate."""

    name: ScoreName = Field(description="Name, such as reward.mean.")
    value: Decimals | None = Field(default=None, description="Value as decimal text; absent when nothing was measured, never 0.")
    count: int = _count("Trials that the value is made of.")
    missing: int = _count("Trials that should have had a value and have none.")


class CoverageStatus(Model):
    """How much of an output was measured."""

    name: ScoreName = Field(description="Name of the output, such as reward.")
    total: int = _count("Trials that should have a value.")
    scored: int = _count("Trials that have one.")
    failed: int = _count("Trials that ended without a valid reward.")
    missing: int = _count("Graded trials whose verifier did not report this output.")


class ErrorStatus(Model):
    """Errors of one name and cause."""

    type: Annotated[str, Field(min_length=1, max_length=100)] = Field(
        description="A reason of the troubleshooting page, or the name of the agent's own exception."
    )
    cause: Cause = Field(description="Whose fault: infrastructure, environment, agent, verifier or user.")
    count: int = _count("Trials with this error.")
    sample: tuple[Annotated[str, Field(max_length=64)], ...] = Field(
        default=(), max_length=MAX_ERROR_SAMPLE, description="Up to 5 trial names.", json_schema_extra={LIST_TYPE: "atomic"}
    )
    message: ShortMessage = Field(default="", description="Message of the first of them.")


class ThresholdStatus(Model):
    """One gate and its outcome."""

    score: ScoreName = Field(description="Name of the score.")
    at_least: float = Field(description="Smallest value that passes.")
    value: Decimals | None = Field(default=None, description="The value; absent when it was not measured.")
    passed: bool = Field(description="Whether the gate is met.")


class ResultsStatus(Model):
    """Where the results are."""

    prefix: StoreKey = Field(description="Address of the job's folder: s3://bucket/jobs/NAMESPACE/NAME-UID/.")
    summary: StoreKey | None = Field(default=None, description="Key of summary.json, once it is written.")


class EvalJobStatus(Model):
    """How far the job is and what came out; bounded, whatever the size of the job."""

    observed_generation: int = Field(default=0, ge=0, description="The metadata.generation that this status was computed from.")
    phase: Phase = Field(
        default="Pending",
        description=(
            "Pending, Running, Suspended, Completed, Failed or Cancelled; the last three never change. For people: scripts read conditions."
        ),
    )
    progress: Annotated[str, Field(max_length=32)] = Field(default="", description="Ended trials of all trials, such as 37/50.")
    plan: PlanStatus | None = Field(default=None, description="The frozen plan.")
    trials: TrialCounts = Field(default=TrialCounts(), description="Trials by state.")
    mean: Decimals = Field(default="", description="The first metric, for the column MEAN; empty while nothing is scored.")
    scores: tuple[ScoreStatus, ...] = Field(
        default=(),
        max_length=MAX_SCORES,
        description="Aggregates, the primary reward first; all of them are in summary.json.",
        json_schema_extra={LIST_TYPE: "map", LIST_MAP_KEYS: ["name"]},
    )
    coverage: tuple[CoverageStatus, ...] = Field(
        default=(),
        max_length=MAX_COVERAGE,
        description="How much of each output was measured.",
        json_schema_extra={LIST_TYPE: "map", LIST_MAP_KEYS: ["name"]},
    )
    errors: tuple[ErrorStatus, ...] = Field(
        default=(),
        max_length=MAX_ERRORS,
        description="Errors by name and cause, the most frequent first.",
        json_schema_extra={LIST_TYPE: "map", LIST_MAP_KEYS: ["type", "cause"]},
    )
    thresholds: tuple[ThresholdStatus, ...] = Field(
        default=(),
        max_length=MAX_THRESHOLDS,
        description="Gates and their outcome, once the job has ended.",
        json_schema_extra={LIST_TYPE: "map", LIST_MAP_KEYS: ["score"]},
    )
    results: ResultsStatus | None = Field(default=None, description="Where the results are.")
    start_time: Timestamp | None = Field(default=None, description="When the plan was frozen.")
    completion_time: Timestamp | None = Field(default=None, description="When the job ended.")
    conditions: tuple[Condition, ...] = conditions_field()


_NAME_LENGTH = Rule("self.metadata.name.size() <= 63", "the name of an EvalJob has at most 63 characters: it becomes a label of its Pods")


class EvalJob(Resource):
    """An evaluation: one agent on a set of tasks. Each attempt at a task is a trial, each trial one Pod; the scores are in status."""

    kind: Literal["EvalJob"] = "EvalJob"
    spec: EvalJobSpec = Field(
        description=(
            "What to run. Once the object exists, only suspend, cancel, concurrency, retry.max, limits and ttlSecondsAfterFinished "
            "can be changed."
        )
    )
    status: EvalJobStatus = Field(default=EvalJobStatus(), description="How far the job is and what came out.")

    SHORT_NAMES: ClassVar = ("ej",)
    COLUMNS: ClassVar = (
        Column("Phase", ".status.phase", description="Where the job is."),
        Column("Done", ".status.progress", description="Ended trials of all trials."),
        Column("Errored", ".status.trials.errored", "integer", "Trials that ended without a valid reward."),
        Column("Mean", ".status.mean", description="The first metric over the scored trials."),
        Column("Age", ".metadata.creationTimestamp", "date", "Time since the object was made."),
        Column("Agent", ".spec.agent.name", description="Name of the agent.", priority=1),
        Column("Model", ".spec.agent.model", description="Model of the agent.", priority=1),
    )
    RULES: ClassVar = (_NAME_LENGTH,)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.metadata.name) > 63:
            raise fault("name", _NAME_LENGTH.message)
        return self
