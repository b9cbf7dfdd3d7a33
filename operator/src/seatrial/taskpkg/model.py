"""``task.toml`` as frozen models: Harbor's fields, defaults, coercions and rules.

Why pydantic's lax mode with unknown keys ignored: Harbor reads task files exactly so, and a task that Harbor accepts must not be refused
here (nor the other way round). What Harbor drops without a word, ``parse`` reports as a warning. Values that raise our own errors carry
a ``rule`` and a ``fix`` for people. Source: harbor.md 1.2 to 1.4, 3.8, 6.1 and 6.2.
"""

from __future__ import annotations

import enum
import math
import re
import unicodedata
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Literal, LiteralString, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from seatrial.taskpkg.allowlist import parse_host
from seatrial.taskpkg.templates import embedded_variables, is_literal_credential

MAIN_SERVICE: Final = "main"
SCHEMA_VERSION: Final = "1.4"
DEFAULT_TIMEOUT_SECONDS: Final = 600.0

# Harbor matches these with ``re.match``, so one line break at the end passes.
_TASK_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*/[a-zA-Z0-9][a-zA-Z0-9._-]*$")
_SERVICE: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*$")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TOPOLOGY: Final = re.compile(r"[1-9]\d*(?:x[1-9]\d*)+")
_WINDOWS_ROOT: Final = re.compile(r"[A-Za-z]:[/\\]")
_STEP_FORBIDDEN: Final = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')
_DEVICE: Final = re.compile(r"(?:CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(?:COM|LPT)[1-9¹²³])", re.IGNORECASE)


def _fault(rule: LiteralString, message: str, fix: str, *, key: str = "") -> PydanticCustomError:
    """An error that ``parse`` turns into a problem: ``key`` is the part below the field where it was raised."""
    return PydanticCustomError(rule, "{message}", {"message": message, "fix": fix, "key": key})


class NetworkMode(enum.StrEnum):
    PUBLIC = "public"
    NO_NETWORK = "no-network"
    ALLOWLIST = "allowlist"


class VerifierMode(enum.StrEnum):
    SHARED = "shared"
    SEPARATE = "separate"


class TaskOS(enum.StrEnum):
    LINUX = "linux"
    WINDOWS = "windows"


class RewardStrategy(enum.StrEnum):
    MEAN = "mean"
    FINAL = "final"


class NetworkPolicy(NamedTuple):
    """What a container may reach; ``hosts`` only with ``allowlist``, and then empty means nothing."""

    mode: NetworkMode
    hosts: tuple[str, ...] = ()


class Section(BaseModel):
    """Base of all tables: frozen, unknown keys ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class Author(Section):
    name: str
    email: str | None = None


def check_task_name(value: str) -> str:
    """``value``; raises the problem ``task-name``."""
    if not is_task_name(value):
        raise _fault(
            "task-name",
            f"{value!r} is not of the form org/name",
            "use two parts of letters, digits, '.', '_' and '-', each starting with a letter or digit, without '..'",
        )
    return value


class Identity(Section):
    """What a registry knows a task or a dataset by: ``[task]`` and ``[dataset]``."""

    name: Annotated[str, AfterValidator(check_task_name)]
    version: str | None = Field(default=None, min_length=1)
    description: str = ""
    authors: tuple[Author, ...] = ()
    keywords: tuple[str, ...] = ()

    @property
    def short_name(self) -> str:
        return self.name.split("/")[1]


class SolutionSection(Section):
    env: dict[str, str] = Field(default_factory=dict)


class _NetworkFields(Section):
    allowed_hosts: tuple[str, ...] | None = None
    """Normalised; None where the key is absent, which differs from an empty list."""

    @field_validator("allowed_hosts")
    @classmethod
    def _normalise_hosts(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is None:
            return None
        try:
            return tuple(parse_host(entry).text for entry in value)
        except ValueError as error:
            raise _fault("allowed-host", str(error), "list host names, '*.domain', addresses or networks such as 10.0.0.0/8") from error


class PhaseSection(_NetworkFields):
    """Network fields of ``[agent]`` and ``[verifier]``: an override for that phase, only where ``network_mode`` is given."""

    network_mode: NetworkMode | None = None

    @model_validator(mode="after")
    def _check_hosts(self) -> PhaseSection:
        if self.network_mode is None and self.allowed_hosts is not None:
            raise _needs_allowlist()
        if self.network_mode is not NetworkMode.ALLOWLIST and self.allowed_hosts:
            raise _needs_allowlist()
        return self

    def phase_policy(self) -> NetworkPolicy | None:
        """The override, or None for "as the baseline"."""
        return None if self.network_mode is None else NetworkPolicy(self.network_mode, self.allowed_hosts or ())


class AgentSection(PhaseSection):
    timeout_sec: float | None = None
    """Seconds; None means no limit."""
    user: str | int | None = None


class Healthcheck(Section):
    command: str
    interval_sec: float = 5.0
    timeout_sec: float = 30.0
    start_period_sec: float = 0.0
    start_interval_sec: float = 5.0
    retries: int = 3


class Tpu(Section):
    type: str = Field(min_length=1)
    topology: str

    @field_validator("topology")
    @classmethod
    def _check_topology(cls, value: str) -> str:
        value = value.strip()
        if not _TOPOLOGY.fullmatch(value):
            raise _fault("tpu-topology", f"{value!r} is not a topology", "write the dimensions as in '2x4' or '2x2x1'")
        return value

    @property
    def chips(self) -> int:
        return math.prod(int(axis) for axis in self.topology.split("x"))


class McpServer(Section):
    name: str
    transport: Literal["stdio", "sse", "streamable-http"] = "sse"
    url: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    headers: dict[str, str] = Field(default_factory=dict)

    @field_validator("transport", mode="before")
    @classmethod
    def _rename_http(cls, value: Any) -> Any:
        return "streamable-http" if value == "http" else value

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not _HEADER_NAME.fullmatch(name):
                raise _fault("mcp-header", f"{name!r} is not an HTTP header name", "use letters, digits and hyphens")
            if "\r" in value or "\n" in value:
                raise _fault("mcp-header", f"the header {name!r} holds a line break", "keep it on one line", key=name)
            try:
                embedded_variables(value)
            except ValueError as error:
                raise _fault("mcp-header", f"the header {name!r}: {error}", "write ${VAR} or ${VAR:-default}", key=name) from error
            if is_literal_credential(name, value):
                raise _fault(
                    "mcp-credential",
                    f"the header {name!r} holds a credential as text",
                    "refer to a variable without a default, as in 'Bearer ${TOKEN}'",
                    key=name,
                )
        return headers

    @model_validator(mode="after")
    def _check_transport(self) -> McpServer:
        if self.transport == "stdio":
            if not self.command:
                raise _fault("mcp-transport", "'command' is missing", "give the command that starts the stdio server")
            if self.headers:
                raise _fault("mcp-transport", "'headers' with transport 'stdio'", "remove the headers or use an HTTP transport")
        elif not self.url:
            raise _fault("mcp-transport", f"'url' is missing for transport {self.transport!r}", "give the server's URL")
        return self


class EnvironmentSection(_NetworkFields):
    """``[environment]``, and ``[verifier.environment]`` with the same fields."""

    network_mode: NetworkMode = NetworkMode.PUBLIC
    build_timeout_sec: float = DEFAULT_TIMEOUT_SECONDS
    """Seconds for build, pull and start together."""
    docker_image: str | None = None
    os: TaskOS = TaskOS.LINUX
    cpus: int | float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int | None = None
    gpu_types: tuple[str, ...] | None = None
    tpu: Tpu | None = None
    mcp_servers: tuple[McpServer, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    skills_dir: str | None = None
    """A path inside the container."""
    healthcheck: Healthcheck | None = None
    workdir: str | None = None
    allow_internet: bool | None = Field(default=None, exclude=True)
    """Legacy; already turned into ``network_mode`` where it counts."""

    @model_validator(mode="before")
    @classmethod
    def _convert_legacy_sizes(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
            size = data.pop(old, None)
            if not isinstance(size, str):
                continue  # dropped without a word, as Harbor does; ``parse`` warns
            megabytes = legacy_size_mb(size)
            if megabytes is None:
                raise _fault("legacy-size", f"{size!r} is not a size", f"write {new} = <megabytes>, or a number with G, M or K", key=old)
            if data.setdefault(new, megabytes) != megabytes:
                raise _fault("legacy-size", f"{old} {size!r} ({megabytes} MB) and {new} {data[new]!r} differ", f"remove {old}", key=old)
        return data

    @field_validator("cpus")
    @classmethod
    def _normalise_cpus(cls, value: int | float | None) -> int | float | None:
        if isinstance(value, float):
            if not math.isfinite(value):
                raise _fault("cpus", f"{value} is not a number of CPUs", "give a finite number")
            if value.is_integer():
                return int(value)
        return value

    @field_validator("os", mode="before")
    @classmethod
    def _fold_os(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @model_validator(mode="after")
    def _apply_network(self) -> EnvironmentSection:
        if self.network_mode is not NetworkMode.ALLOWLIST and self.allowed_hosts:
            raise _needs_allowlist()
        if self.allow_internet is False and "network_mode" not in self.model_fields_set and self.allowed_hosts is None:
            self.__dict__["network_mode"] = NetworkMode.NO_NETWORK  # the model is still being built, nobody has seen it
        return self

    def policy(self) -> NetworkPolicy:
        return NetworkPolicy(self.network_mode, self.allowed_hosts or ())


class Artifact(Section):
    """A file or directory to keep; a bare string in the file means ``{source = …}``."""

    source: str
    destination: str | None = None
    exclude: tuple[str, ...] = ()
    service: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, data: Any) -> Any:
        return {"source": data} if isinstance(data, str) else data

    @field_validator("service")
    @classmethod
    def _check_service(cls, value: str | None) -> str | None:
        return None if value is None else _service_name(value)

    @field_validator("source")
    @classmethod
    def _check_source(cls, value: str) -> str:
        if ".." in PurePosixPath(value).parts:
            raise _fault("artifact-source", f"{value!r} contains '..'", "give the path in the container without '..'")
        return value

    @field_validator("destination")
    @classmethod
    def _check_destination(cls, value: str | None) -> str | None:
        if not value:
            return None
        path = PurePosixPath(value)
        if "\\" in value or path.is_absolute() or not path.parts or ".." in path.parts:
            raise _fault("artifact-destination", f"{value!r} is not a path below artifacts/", "use a relative path without '..'")
        if value.rstrip("/") == "manifest.json":
            raise _fault("artifact-destination", "'manifest.json' is reserved for the list of artifacts", "choose another name")
        return value

    @model_validator(mode="after")
    def _check_sidecar_source(self) -> Artifact:
        is_absolute = self.source.startswith("/") or _WINDOWS_ROOT.match(self.source)
        if self.service not in (None, MAIN_SERVICE) and not is_absolute:
            raise _fault("artifact-source", f"{self.source!r} of {self.service!r} is relative", "give an absolute path", key="source")
        return self


class CollectHook(Section):
    """``[[verifier.collect]]``: a command that saves state before the artifacts are collected."""

    command: str
    service: str = MAIN_SERVICE
    timeout_sec: float = 60.0
    user: str | int | None = None

    @field_validator("service")
    @classmethod
    def _check_service(cls, value: str) -> str:
        return _service_name(value)


class VerifierSection(PhaseSection):
    timeout_sec: float = DEFAULT_TIMEOUT_SECONDS
    env: dict[str, str] = Field(default_factory=dict)
    user: str | int | None = None
    environment_mode: VerifierMode | None = None
    environment: EnvironmentSection | None = None
    collect: tuple[CollectHook, ...] = ()

    @model_validator(mode="after")
    def _check_mode(self) -> VerifierSection:
        if self.environment_mode is VerifierMode.SHARED and self.environment is not None:
            raise _fault(
                "verifier-mode",
                "environment_mode 'shared' together with [verifier.environment]",
                "remove the table, or set environment_mode to 'separate'",
                key="environment_mode",
            )
        return self

    def own_mode(self) -> VerifierMode | None:
        """The mode that this section decides; None leaves it to the task, and there to the default."""
        if self.environment_mode is not None:
            return self.environment_mode
        return None if self.environment is None else VerifierMode.SEPARATE


class StepSection(Section):
    """``[[steps]]``. Its verifier timeout is 600 s unless set here; it is not inherited from the task."""

    name: str
    agent: AgentSection = Field(default_factory=AgentSection)
    verifier: VerifierSection = Field(default_factory=VerifierSection)
    min_reward: float | dict[str, float] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: tuple[Artifact, ...] = ()

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if not is_step_name(value):
            raise _fault(
                "step-name",
                f"{value!r} is not a portable directory name",
                'use at most 255 bytes without <>:"/\\|?* or control characters, no device name such as CON, no dot or space at the end',
            )
        return value


class TaskConfig(Section):
    """A whole ``task.toml``."""

    schema_version: str = SCHEMA_VERSION
    source: str | None = None
    multi_step_reward_strategy: RewardStrategy | None = None
    artifacts: tuple[Artifact, ...] = ()
    task: Identity | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    agent: AgentSection = Field(default_factory=AgentSection)
    verifier: VerifierSection = Field(default_factory=VerifierSection)
    environment: EnvironmentSection = Field(default_factory=EnvironmentSection)
    solution: SolutionSection = Field(default_factory=SolutionSection)
    steps: tuple[StepSection, ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _rename_version(cls, data: Any) -> Any:
        if isinstance(data, dict) and "version" in data and "schema_version" not in data:
            return {**data, "schema_version": data["version"]}
        return data

    @field_validator("steps")
    @classmethod
    def _check_step_names(cls, steps: tuple[StepSection, ...] | None) -> tuple[StepSection, ...] | None:
        seen: set[str] = set()
        for index, step in enumerate(steps or ()):
            key = unicodedata.normalize("NFC", step.name).casefold()
            if key in seen:
                raise _fault("step-name", f"{step.name!r} is used twice (case does not count)", "rename the step", key=f"{index}.name")
            seen.add(key)
        return steps

    # --- names -----------------------------------------------------------------------------------------------------------------------

    def native_name(self, dirname: str) -> str:
        """Harbor's task name: ``[task].name``, else the name of the task's directory."""
        return dirname if self.task is None else self.task.name

    def short_name(self, dirname: str) -> str:
        return dirname if self.task is None else self.task.short_name

    # --- steps -----------------------------------------------------------------------------------------------------------------------

    @property
    def is_multi_step(self) -> bool:
        """An empty list of steps means a single-step task."""
        return bool(self.steps)

    def reward_strategy(self) -> RewardStrategy:
        return self.multi_step_reward_strategy or RewardStrategy.MEAN

    # --- verification ----------------------------------------------------------------------------------------------------------------

    def verifier_mode(self, step: StepSection | None = None) -> VerifierMode:
        """Shared or separate: the step's own choice, else the task's, else shared."""
        own = step.verifier.own_mode() if step is not None else None
        return own or self.verifier.own_mode() or VerifierMode.SHARED

    def verifier_environment(self, step: StepSection | None = None) -> EnvironmentSection | None:
        """Settings of the separate verifier; None in shared mode. Its image and context: ``verification.definition``."""
        if self.verifier_mode(step) is VerifierMode.SHARED:
            return None
        if step is not None and step.verifier.environment is not None:
            return step.verifier.environment
        return self.verifier.environment or self.environment

    # --- network ---------------------------------------------------------------------------------------------------------------------

    def baseline_policy(self) -> NetworkPolicy:
        return self.environment.policy()

    def agent_policy(self, step: StepSection | None = None) -> NetworkPolicy:
        """What the agent phase may reach: the step's override, else the task's, else the baseline."""
        own = step.agent.phase_policy() if step is not None else None
        return own or self.agent.phase_policy() or self.baseline_policy()

    def verifier_policy(self, step: StepSection | None = None) -> NetworkPolicy:
        """What the verifier phase may reach; the baseline is that of the environment where the verifier runs."""
        own = step.verifier.phase_policy() if step is not None else None
        environment = self.verifier_environment(step) or self.environment
        return own or self.verifier.phase_policy() or environment.policy()


def is_task_name(value: str) -> bool:
    return _TASK_NAME.match(value) is not None and ".." not in value


def is_step_name(value: str) -> bool:
    """True if ``value`` can be a directory name on every system."""
    if not value.strip() or value.endswith((".", " ")) or _STEP_FORBIDDEN.search(value):
        return False
    if _DEVICE.fullmatch(value.partition(".")[0].rstrip(" ")):
        return False
    return len(value.encode("utf-8", "surrogatepass")) <= 255


def legacy_size_mb(text: str) -> int | None:
    """``"4G"``, ``"512M"``, ``"512K"`` in whole MB (factor 1024, cut); None if it is no such size."""
    text = text.strip().upper()
    factor = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}.get(text[-1:])
    try:
        return None if factor is None else int(float(text[:-1]) * factor)
    except (ValueError, OverflowError):
        return None


def _service_name(value: str) -> str:
    value = value.strip()
    if not _SERVICE.match(value):
        raise _fault("service-name", f"{value!r} is not a service name", "start with a letter or digit; then also '.', '_' and '-'")
    return value


def _needs_allowlist() -> PydanticCustomError:
    message, fix = "allowed_hosts without network_mode 'allowlist'", "set network_mode = 'allowlist' beside it"
    return _fault("allowed-hosts-mode", message, fix, key="allowed_hosts")
