"""From options, named as Harbor names them, to an EvalJob. Pure: no cluster, no files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from seatrial.api.evaljob import EvalJob
from seatrial.api.names import API_VERSION, EVALJOB
from seatrial.errors import InvalidSpec

NAME_CHARS: Final = 63
# The server appends five characters to a generateName.
_GENERATED_CHARS: Final = NAME_CHARS - 5

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class JobRequest:
    """What to evaluate. Field names and defaults are Harbor's where it has them."""

    taskset: str | None = None
    """``name`` or ``ns/name``, optionally ``#tag`` or ``#digest``; Harbor's ``@`` is taken too. Exactly one of taskset and tasks."""
    tasks: Sequence[str] = ()
    name: str | None = None
    """None: made from ``stem`` and agent, with a random end."""
    stem: str | None = None
    """None: name of the taskset or of the first task."""
    agent: str | None = None
    """A name such as ``oracle``; ``module:Class``; None: oracle, unless image or command is given."""
    agent_image: str | None = None
    agent_command: str | None = None
    agent_source: tuple[str, str] | None = None
    """Stored archive with the module of ``module:Class``: reference and sha256, as ``store_agent_source`` gives them."""
    runner_image: str | None = None
    """Beside a name or ``module:Class``."""
    skills: Sequence[str] = ()
    mcp_servers: Sequence[Mapping[str, Any]] = ()
    model: str | None = None
    agent_kwargs: Mapping[str, Any] = field(default_factory=dict)
    agent_env: Mapping[str, str] = field(default_factory=dict)
    agent_env_secrets: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Variable -> (Secret, key)."""
    env_secrets: Mapping[str, str] = field(default_factory=dict)
    """Variable -> reference to a variable of this machine, such as ``my-workspace/openai-api-key``; see ``local_secrets``."""
    environment_env: Mapping[str, str] = field(default_factory=dict)
    verifier_env: Mapping[str, str] = field(default_factory=dict)
    disable_verification: bool = False
    attempts: int = 1
    concurrency: int = 4
    max_retries: int = 0
    retry_include: Sequence[str] = ()
    retry_exclude: Sequence[str] | None = None
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    limit: int | None = None
    timeout_multiplier: float = 1.0
    agent_timeout_multiplier: float | None = None
    verifier_timeout_multiplier: float | None = None
    agent_setup_timeout_multiplier: float | None = None
    environment_build_timeout_multiplier: float | None = None
    reward_key: str | None = None
    metric_scripts: Sequence[Mapping[str, str]] = ()
    """``{ref, sha256}`` of scripts in the object store that run over the rewards; that of the taskset runs unasked."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Score -> smallest value that passes."""
    artifacts: Sequence[str] = ()
    trace_dir: str | None = None
    deadline: str | None = None
    max_errored: int | None = None
    max_cost_usd: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


def build_job(request: JobRequest, *, namespace: str) -> dict[str, Any]:
    """The EvalJob as it is sent; defaults are left to the API server.

    Raises:
        InvalidSpec: what the API server would refuse, named by its path, before anything is sent.
    """
    if request.name is not None and not _NAME.fullmatch(request.name):
        raise InvalidSpec("metadata.name", f"{request.name!r} is not a name: up to 63 of a-z, 0-9, '-' and '.', not at the ends")
    if request.taskset is None and not request.tasks:
        raise InvalidSpec("spec", "nothing to run: give a taskset or tasks")
    spec = {
        "taskset": _reference(request.taskset) if request.taskset else None,
        "tasks": [_reference(task) for task in request.tasks] or None,
        "select": _without_empty({"include": list(request.include), "exclude": list(request.exclude), "limit": request.limit}),
        "agent": _agent(request),
        "environment": _without_empty({"env": dict(request.environment_env)}),
        "verifier": _without_empty({"env": dict(request.verifier_env), "disable": request.disable_verification or None}),
        "attempts": request.attempts,
        "concurrency": request.concurrency,
        "retry": _without_empty(
            {
                "max": request.max_retries or None,
                "include": list(request.retry_include),
                "exclude": None if request.retry_exclude is None else list(request.retry_exclude),
            }
        ),
        "timeouts": _without_empty(
            {
                "multiplier": None if request.timeout_multiplier == 1 else request.timeout_multiplier,
                "agent": request.agent_timeout_multiplier,
                "agentSetup": request.agent_setup_timeout_multiplier,
                "verifier": request.verifier_timeout_multiplier,
                "build": request.environment_build_timeout_multiplier,
            }
        ),
        "limits": _without_empty({"deadline": request.deadline, "maxErrored": request.max_errored, "maxCostUsd": request.max_cost_usd}),
        "rewardKey": request.reward_key,
        "metrics": [{"type": "script", "script": dict(script)} for script in request.metric_scripts],
        "thresholds": [{"score": score, "atLeast": value} for score, value in request.thresholds.items()],
        "artifacts": [{"source": source} for source in request.artifacts],
        "traceDir": request.trace_dir,
    }
    body = {
        "apiVersion": API_VERSION,
        "kind": EVALJOB,
        "metadata": _without_empty(
            {**_name(request), "namespace": namespace, "labels": dict(request.labels), "annotations": dict(request.annotations)}
        ),
        "spec": _without_empty(spec),
    }
    if problems := EvalJob.problems(body):
        raise InvalidSpec(problems[0].path, problems[0].message)
    return body


def parse_pairs(values: Sequence[str], *, option: str) -> dict[str, str]:
    """``NAME=VALUE`` arguments as a mapping; a later one wins.

    Raises:
        InvalidSpec: no ``=``, or no name.
    """
    pairs = {}
    for value in values:
        name, separator, text = value.partition("=")
        if not separator or not name:
            raise InvalidSpec(option, f"{name!r} is not of the form NAME=VALUE")
        pairs[name] = text
    return pairs


def parse_kwargs(values: Sequence[str], *, option: str) -> dict[str, Any]:
    """As ``parse_pairs``; a value that is JSON is taken as such (``true``, ``3``, ``["a"]``), anything else is text."""
    return {name: _json_or_text(text) for name, text in parse_pairs(values, option=option).items()}


def parse_secrets(values: Sequence[str], *, option: str) -> dict[str, tuple[str, str]]:
    """``NAME=SECRET:KEY`` arguments.

    Raises:
        InvalidSpec: another form.
    """
    found = {}
    for name, text in parse_pairs(values, option=option).items():
        secret, separator, key = text.partition(":")
        if not separator or not secret or not key:
            raise InvalidSpec(option, f"{name} is not of the form NAME=SECRET:KEY")
        found[name] = (secret, key)
    return found


def parse_thresholds(values: Sequence[str], *, option: str) -> dict[str, float]:
    """``SCORE=NUMBER`` arguments.

    Raises:
        InvalidSpec: not a number.
    """
    found = {}
    for name, text in parse_pairs(values, option=option).items():
        try:
            found[name] = float(text)
        except ValueError:
            raise InvalidSpec(option, f"{name}={text} is not of the form SCORE=NUMBER") from None
    return found


def _agent(request: JobRequest) -> dict[str, Any]:
    ways = {"image": request.agent_image, "command": request.agent_command}
    if request.agent and ":" in request.agent:
        ways["importPath"] = request.agent
    elif request.agent:
        ways["name"] = request.agent
    given = {name: value for name, value in ways.items() if value}
    return _without_empty(
        {
            **(given or {"name": "oracle"}),
            "runnerImage": request.runner_image,
            "source": request.agent_source and {"ref": request.agent_source[0], "sha256": request.agent_source[1]},
            "model": request.model,
            "skills": list(request.skills),
            "mcpServers": [dict(server) for server in request.mcp_servers],
            "kwargs": dict(request.agent_kwargs),
            "env": dict(request.agent_env),
            "envSecrets": {name: {"name": secret, "key": key} for name, (secret, key) in request.agent_env_secrets.items()},
        }
    )


def _name(request: JobRequest) -> dict[str, str]:
    if request.name:
        return {"name": request.name}
    first = request.stem or request.taskset or request.tasks[0]
    agent = request.agent or ("image" if request.agent_image else "command" if request.agent_command else "oracle")
    stem = re.sub(r"[^a-z0-9]+", "-", f"{first.partition('#')[0].partition('@')[0].rpartition('/')[2]}-{agent}".lower()).strip("-")
    return {"generateName": f"{stem[: _GENERATED_CHARS - 1].rstrip('-') or 'job'}-"}


def _reference(text: str) -> str:
    """Harbor writes ``name@ref``, seatrial ``name#ref``."""
    return text.replace("@", "#", 1) if "#" not in text else text


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _without_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None and value not in ({}, [], "")}
