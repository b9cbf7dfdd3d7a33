"""What agents written for Harbor import, for a runner image that does not carry Harbor: the base class and the types of its interface.

Why: such a class then runs here unchanged, and without 300 MB of Harbor. Where Harbor is installed, its own modules are used. Interface:
harbor.md 5.3, 5.7 and 5.8.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any, ClassVar, Final


@dataclass(frozen=True)
class AgentCapabilities:
    """What an agent can do beyond ``setup`` and ``run``; skills and MCP servers are refused for an agent that does not name them."""

    base_url: bool = False
    atif: bool = False
    resume: bool = False
    load_native_trajectory: bool = False
    load_atif_trajectory: bool = False
    handoff: bool = False
    native_config: bool = False
    native_web_tools: bool = False
    reasoning_effort: bool = False
    windows: bool = False
    skills: bool = False
    mcp_servers: bool = False
    mcp_http_headers: bool = False
    bridges: frozenset[str] = frozenset()


@dataclass
class ExecResult:
    """How a command in the environment ended."""

    stdout: str | None = None
    stderr: str | None = None
    return_code: int = 0


@dataclass
class ModelUsage:
    """Tokens and cost of one model."""

    n_input_tokens: int = 0
    n_cache_tokens: int = 0
    n_output_tokens: int = 0
    cost_usd: float | None = None


@dataclass
class AgentContext:
    """What an agent reports, best while it works: of an agent that is timed out, this is what counts."""

    n_input_tokens: int | None = None
    n_cache_tokens: int | None = None
    n_output_tokens: int | None = None
    cost_usd: float | None = None
    model_usage: dict[str, ModelUsage] | None = None
    rollout_details: list[Any] | None = None
    metadata: dict[str, Any] | None = None

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """As a plain mapping."""
        return asdict(self)

    def is_empty(self) -> bool:
        """Nothing has been reported."""
        return all(getattr(self, item.name) is None for item in fields(self))


@dataclass
class MCPServerConfig:
    """An MCP server of the task or the job."""

    name: str
    transport: str = "sse"
    url: str | None = None
    command: str | None = None
    args: list[str] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """As a plain mapping."""
        return asdict(self)


class BaseEnvironment(ABC):
    """The task's container as an agent sees it; ``agent_host.Environment`` is the one that there is."""

    default_user: str | int | None = None

    @abstractmethod
    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: float | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a shell command."""

    @abstractmethod
    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file into the container."""

    @abstractmethod
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy what is in a folder into a folder of the container."""

    @abstractmethod
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file out of the container."""

    @abstractmethod
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy what is in a folder of the container into a folder."""


class BaseAgent(ABC):
    """An agent: constructed once a trial, then ``setup`` and ``run``; with ``[[steps]]``, ``run`` once a step."""

    capabilities: ClassVar[AgentCapabilities] = AgentCapabilities()

    def __init__(
        self,
        logs_dir: Path,
        model_name: str | None = None,
        logger: logging.Logger | None = None,
        mcp_servers: list[MCPServerConfig] | None = None,
        skills_dir: str | None = None,
        *,
        extra_env: dict[str, str] | None = None,
        environment_logs_dir: PurePosixPath | None = None,
        **kwargs: Any,
    ) -> None:
        self.logs_dir = logs_dir
        self.environment_logs_dir = environment_logs_dir or PurePosixPath("/logs/agent")
        self.model_name = model_name
        self.logger = (logger or logging.getLogger("agent")).getChild(type(self).__name__)
        self.mcp_servers = mcp_servers or []
        self.skills_dir = skills_dir
        self._extra_env = dict(extra_env or {})

    @property
    def extra_env(self) -> dict[str, str]:
        """The job's agent variables, secrets included."""
        return dict(self._extra_env)

    @staticmethod
    @abstractmethod
    def name() -> str:
        """Name of the agent."""

    @abstractmethod
    def version(self) -> str | None:
        """Its version, if it has one."""

    @abstractmethod
    async def setup(self, environment: BaseEnvironment) -> None:
        """Make ready: install tools, copy skills, register MCP servers."""

    @abstractmethod
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        """Work on the task; report into ``context``."""

    def populate_context_post_run(self, context: AgentContext) -> None:  # noqa: B027 - optional by design
        """Fill in from logs what ``run`` did not report."""


MODULES: Final[dict[str, tuple[type, ...]]] = {
    "harbor": (),
    "harbor.agents": (),
    "harbor.agents.base": (BaseAgent,),
    "harbor.agents.capabilities": (AgentCapabilities,),
    "harbor.environments": (),
    "harbor.environments.base": (BaseEnvironment, ExecResult),
    "harbor.models": (),
    "harbor.models.agent": (),
    "harbor.models.agent.context": (AgentContext, ModelUsage),
    "harbor.models.task": (),
    "harbor.models.task.config": (MCPServerConfig,),
}


def install() -> bool:
    """Make ``MODULES`` importable; False where Harbor itself is installed and nothing was done."""
    if importlib.util.find_spec("harbor") is not None:
        return False
    for name, classes in MODULES.items():
        module = ModuleType(name, "A stand-in for the module of Harbor.")
        module.__path__ = []
        for item in classes:
            setattr(module, item.__name__, item)
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
    return True
