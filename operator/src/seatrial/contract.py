"""What the operator and the runner agree on: paths, names, variables, exit codes, the trial's input, the verdict, the signed result.

Why one module: both sides live in different images and meet only through a Pod. It needs the standard library alone, and imports what
only some functions need inside them, because every container of a trial starts with it. Everything a Pod sends back is read with the
``read_*`` functions here, which bound and check it.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, NotRequired, TypedDict, cast

# --- containers, users, mounts -------------------------------------------------------------------------------------------------------

STAGE: Final = "stage"
ENVIRONMENT: Final = "environment"
AGENT: Final = "agent"
VERIFIER: Final = "verifier"
AGENT_IMAGE: Final = "agent-image"
"""The user's own container beside ``agent``, which drives the environment for it."""

FETCH: Final = "fetch"
SCRIPT: Final = "script"
SCORE: Final = "score"
"""Containers of the Pod that runs a ``metric.py``: one fetches, one runs the script, one signs what it said. Only the second runs code of
others, and only the other two hold URLs or the key."""

AGENT_UID: Final = 10001
VERIFIER_UID: Final = 10002
# stage extracts as the verifier's user: it owns the tests whatever their modes are, and the agent's user does not.
STAGE_UID: Final = VERIFIER_UID

BIN_DIR: Final = "/seatrial/bin"
CTL_DIR: Final = "/seatrial/ctl"
"""The environment sees all of it, read-only; each runner container only the folder of its own name, so that neither can pose as envd to
the other."""
NET_DIR: Final = "/seatrial/net"
NET_FILES: Final = ("hosts", "resolv.conf")
"""Copies of ``/etc/hosts`` and ``/etc/resolv.conf`` for the environment. A Pod's containers share those two files, and root may write them:
whoever renames hosts there would be sent what the other containers say to the object store and to models."""
RUN_DIR: Final = "/seatrial/run"
"""``agent`` writes the folder ``agent`` and reads the folder ``verifier``, and the other way round: the image may be the user's own."""
DESK_DIR: Final = "/seatrial/desk"
"""Shared by ``agent`` and ``agent-image``: the socket of ``seatrial-env`` and the lock that says that the image's container lives."""
DESK_MARK: Final = "created"
"""A folder of the desk that only the mount of the image's container makes: the kubelet does so when it creates that container."""
TASK_DIR: Final = "/seatrial/task"
"""The agent sees the folder ``agent`` of the task volume here, the verifier the folder ``verifier``, stage the whole volume."""

SCRIPT_DIR: Final = "/seatrial/script"
"""The script and the rewards it reads; ``script`` sees it read-only."""
SCRIPT_OUT_DIR: Final = "/seatrial/out"
METRIC_FILE: Final = "metric.py"
REWARDS_FILE: Final = "rewards.jsonl"
SCRIPT_END_FILE: Final = "end.json"

ENVD: Final = f"{BIN_DIR}/envd"
AGENT_SOCKET: Final = f"{CTL_DIR}/{AGENT}/envd.sock"
VERIFIER_SOCKET: Final = f"{CTL_DIR}/{VERIFIER}/envd.sock"

INPUT_FILE: Final = "input.json"
"""In both task folders. Never in ``run``: an agent image of the user can write there."""
SOLUTION_TAR: Final = "solution.tar"
TESTS_TAR: Final = "tests.tar"
LOOSE_FILES_TAR: Final = "environment.tar"
INSTRUCTION_FILE: Final = "instruction.md"
SOURCE_DIR: Final = "source"
"""In the agent's task folder: what ``agent.source`` holds."""

AGENT_LOCK: Final = f"{RUN_DIR}/{AGENT}/lock"
AGENT_END: Final = f"{RUN_DIR}/{AGENT}/end.json"
STEP_END: Final = f"{RUN_DIR}/{AGENT}/step-{{index}}.json"
"""As ``AGENT_END``, after one step of a task with steps."""
STEP_ANSWER: Final = f"{RUN_DIR}/{VERIFIER}/step-{{index}}.json"
"""The verifier's ``StepAnswer`` to it."""
SECRETS_SOCKET: Final = f"{RUN_DIR}/{VERIFIER}/secrets.sock"

STEPS_DIR: Final = "steps"
"""In both task folders of a task with steps: ``steps/<index>/`` with the step's instruction and tar files."""
WORKDIR_TAR: Final = "workdir.tar"
AGENT_LOGS_FILE: Final = "agent-logs.tar.gz"
AGENT_RESULT_FILE: Final = "agent-result.json"
"""What a separate verifier's Pod gets of the Pod where the agent ran; in the verifier's task folder."""

LOGS_AGENT: Final = "/logs/agent"
USAGE_FILE: Final = "result.json"
"""In ``/logs/agent``: tokens and cost, as an agent reports them."""
TRAJECTORY_FILE: Final = "trajectory.json"
LOGS_VERIFIER: Final = "/logs/verifier"
LOGS_ARTIFACTS: Final = "/logs/artifacts"

# --- environment variables of our own containers; never of the task's ---------------------------------------------------------------

VAR_AGENT_INSTRUCTION: Final = "SEATRIAL_INSTRUCTION_FILE"
VAR_AGENT_CLIENT: Final = "SEATRIAL_ENV"
VAR_AGENT_MODEL: Final = "SEATRIAL_MODEL"
VAR_AGENT_KWARGS: Final = "SEATRIAL_KWARGS"
VAR_AGENT_MCP_SERVERS: Final = "SEATRIAL_MCP_SERVERS"
VAR_AGENT_SKILLS_DIR: Final = "SEATRIAL_SKILLS_DIR"
VAR_AGENT_LOGS: Final = "SEATRIAL_LOGS"
VAR_AGENT_USAGE: Final = "SEATRIAL_RESULT_FILE"
VAR_AGENT_TRAJECTORY: Final = "SEATRIAL_TRAJECTORY_FILE"
"""What an agent image is told; see docs/agent-images.md."""
VAR_INPUT: Final = "SEATRIAL_INPUT"
VAR_ARCHIVE_URL: Final = "SEATRIAL_ARCHIVE_URL"
VAR_ARCHIVE_SHA256: Final = "SEATRIAL_ARCHIVE_SHA256"
VAR_SOURCE_URL: Final = "SEATRIAL_SOURCE_URL"
VAR_SOURCE_SHA256: Final = "SEATRIAL_SOURCE_SHA256"
"""Archive of ``agent.source``."""
VAR_AGENT_LOGS_URL: Final = "SEATRIAL_AGENT_LOGS_URL"
VAR_AGENT_LOGS_SHA256: Final = "SEATRIAL_AGENT_LOGS_SHA256"
VAR_AGENT_RESULT_URL: Final = "SEATRIAL_AGENT_RESULT_URL"
VAR_CONTEXT_DIR: Final = "SEATRIAL_CONTEXT_DIR"
"""Where ``seatrial-runner context`` puts a build context of a task, and envd beside it."""
VAR_CONTEXT_FOLDER: Final = "SEATRIAL_CONTEXT_FOLDER"
"""Which folder of the task it is: one of ``CONTEXT_FOLDERS``."""
CONTEXT_FOLDERS: Final = ("environment", "tests")
VAR_IMAGE_MIRRORS: Final = "SEATRIAL_IMAGE_MIRRORS"
"""``Mirrors.encode``, and ``VAR_BUILD_ARGS`` an object of build arguments: base images are read from the mirrors."""
VAR_BUILD_ARGS: Final = "SEATRIAL_BUILD_ARGS"
BUILD_TIMED_OUT: Final = 124
"""Exit code of a build that ``envd --build`` ended after its time."""
VAR_LOGS_URL: Final = "SEATRIAL_LOGS_URL"
VAR_RESULT_URL: Final = "SEATRIAL_RESULT_URL"
VAR_SIGNING_KEY: Final = "SEATRIAL_SIGNING_KEY"
VAR_SCRIPT_URL: Final = "SEATRIAL_SCRIPT_URL"
VAR_REWARDS_URL: Final = "SEATRIAL_REWARDS_URL"
VAR_TEMPLATE_PREFIX: Final = "SEATRIAL_VAR_"
"""``SEATRIAL_VAR_NAME`` is a source of the template ``${NAME}``; Secrets and ConfigMaps arrive this way."""

VAR_REDACT_PREFIX: Final = "SEATRIAL_REDACT_"
"""``SEATRIAL_REDACT_NAME`` holds a secret that the environment has: for redaction and nothing else."""

# --- sizes ----------------------------------------------------------------------------------------------------------------------------

VERDICT_BYTES: Final = 1024
# NB: 12,288 bytes of termination messages are shared by all containers of a Pod, init containers included.
STAGE_MESSAGE_BYTES: Final = 512
INPUT_ENCODED_BYTES: Final = 96 * 1024
"""A single environment string may have 128 KiB."""
RESULT_BYTES: Final = 4 * 1024 * 1024
ERROR_MESSAGE_CHARS: Final = 256
ERROR_NAME_CHARS: Final = 100
MAX_SECONDS: Final = 10**9
"""More than any phase can last; a longer one is no duration."""
USAGE: Final = ("n_input_tokens", "n_cache_tokens", "n_output_tokens", "cost_usd")
"""What an agent may say that it spent, in Harbor's words."""
MAX_USAGE: Final = 1e12
MAX_COUNT: Final = 10**6
REWARD_KEY_CHARS: Final = 255
REWARD_KEYS: Final = 1000
MEASURES: Final = 64
"""Metrics of a task, and outputs of one."""
MEASURE_CHARS: Final = 200


class StageExit(enum.IntEnum):
    """Exit codes of ``stage``; the termination message carries ``{"message": …}`` of at most ``STAGE_MESSAGE_BYTES``."""

    OK = 0
    INTERNAL = 70
    ARCHIVE_MISSING = 80
    ARCHIVE_CORRUPT = 81
    ARCHIVE_UNSAFE = 82
    STORE_UNAVAILABLE = 83
    STORE_REFUSED = 84
    TASK_UNSUPPORTED = 85
    DISK_FULL = 86


Cause = Literal["infrastructure", "environment", "agent", "verifier", "user"]
CAUSES: Final[tuple[Cause, ...]] = ("infrastructure", "environment", "agent", "verifier", "user")


# --- the trial's input: written by the operator, read by stage, handed on as input.json --------------------------------------------


class JobRef(TypedDict):
    namespace: str
    name: str
    uid: str


class TaskRef(TypedDict):
    name: str
    """Native task id."""
    checksum: str
    """Harbor's content digest, 64 hex."""
    source: str | None
    """Taskset name, or None for a job of single tasks."""


class HealthcheckInput(TypedDict):
    command: str
    interval_sec: float
    timeout_sec: float
    start_period_sec: float
    start_interval_sec: float
    retries: int


class EnvironmentInput(TypedDict):
    workdir: str | None
    env: dict[str, str]
    """Resolved names and literals, for the record; the container itself carries the values."""
    healthcheck: HealthcheckInput | None
    loose_files: bool
    """Upload the contents of ``environment/`` (a ready image and no Dockerfile)."""


class McpServerInput(TypedDict):
    """As in task.toml; headers may hold ``${NAME}`` templates of the agent's variables."""

    name: str
    transport: str
    url: str | None
    command: str | None
    args: list[str]
    headers: dict[str, str]


class AgentInput(TypedDict):
    kind: Literal["oracle", "nop", "command", "image", "importPath"]
    name: str
    version: str
    command: str | None
    model: str | None
    kwargs: dict[str, Any]
    env_names: list[str]
    """Variables of the agent container that the agent's processes receive."""
    user: str | int | None
    mcp_servers: NotRequired[list[McpServerInput]]
    """The task's, and the job's above them."""
    skills: NotRequired[list[str]]
    """Folders of ``importPath``: absolute, or relative to its source."""
    skills_dir: NotRequired[str | None]
    """``[environment].skills_dir``."""


class CollectInput(TypedDict):
    command: str
    service: str
    timeout_sec: float
    user: str | int | None


class VerifierInput(TypedDict):
    mode: Literal["shared", "separate"]
    disable: bool
    user: str | int | None
    env: dict[str, str]
    """Values may be templates; sources are ``VAR_TEMPLATE_PREFIX`` variables and ``variables`` of the input."""
    collect: list[CollectInput]
    bundled: NotRequired[bool]
    """Separate mode: the image holds ``/tests`` already, nothing is uploaded."""


class ArtifactInput(TypedDict):
    source: str
    destination: str | None
    exclude: list[str]
    service: str | None


class TimeoutsInput(TypedDict):
    """Seconds, multipliers already applied; None means unlimited."""

    environment: float
    agent_setup: float
    agent: float | None
    verifier: float


class PolicyFlags(TypedDict, total=False):
    retry: bool
    grade: bool
    valid: bool


class StepInput(TypedDict):
    """One entry of ``[[steps]]``; task and job settings are merged in already."""

    name: str
    agent_user: str | int | None
    verifier_user: str | int | None
    verifier_env: dict[str, str]
    agent_timeout: float | None
    """Seconds; None means unlimited."""
    verifier_timeout: float
    healthcheck: HealthcheckInput | None
    """Runs in addition to the task's."""
    collect: list[CollectInput]
    artifacts: list[ArtifactInput]
    min_reward: float | dict[str, float] | None


class MetricInput(TypedDict):
    type: str
    config: dict[str, Any]


class ScoringInput(TypedDict):
    """Metrics beside the verifier's rewards, and what they know of the task."""

    metrics: list[MetricInput]
    metadata: dict[str, Any]
    """Of the Task."""
    reward_key: str
    """The primary reward."""


Measures = Mapping[str, Mapping[str, float | bool | str] | str]
"""By metric: its outputs by name, or why it failed. A number that is not finite is its text, because JSON has none."""


class TrialInput(TypedDict):
    schema: Literal[1]
    job: JobRef
    trial: str
    """Harbor's trial name, ``<task>__<7 hex>``."""
    attempt: int
    retry: int
    task: TaskRef
    image: str
    agent: AgentInput
    environment: EnvironmentInput
    verifier: VerifierInput
    solution_env: dict[str, str]
    variables: dict[str, str]
    """Literal template sources of the job."""
    artifacts: list[ArtifactInput]
    timeouts: TimeoutsInput
    error_policy: dict[str, PolicyFlags]
    """Overrides of Harbor's table by error name."""
    config: dict[str, Any]
    """``config`` of Harbor's trial result."""
    secret_names: NotRequired[list[str]]
    """Variables and template sources whose values come from Secrets: redacted whatever they are called."""
    limits: NotRequired[dict[str, int]]
    """Bytes by mount path in the environment (``sizeLimit`` of its volumes); a phase is ended at 80 % of one."""
    verifies: NotRequired[int]
    """Separate mode: this Pod grades what the agent left in the Pod of that retry."""
    steps: NotRequired[list[StepInput]]
    """In order; absent or empty for a single-step task."""
    scoring: NotRequired[ScoringInput]
    """Of a task with metrics of its own; for the verifier alone."""
    reward_strategy: NotRequired[Literal["mean", "final"]]
    """How the rewards of the steps become the trial's."""


def healthcheck_seconds(check: HealthcheckInput | None) -> float:
    """The longest time that a healthcheck can take: Harbor sets no other limit to it."""
    if check is None:
        return 0.0
    once = check["timeout_sec"] + max(check["interval_sec"], check["start_interval_sec"])
    return check["start_period_sec"] + once * (max(1, check["retries"]) + 1)


def encode_input(value: TrialInput) -> str:
    """``value`` as one environment string. Deterministic.

    Raises:
        ValueError: longer than ``INPUT_ENCODED_BYTES``.
    """
    import base64
    import gzip

    text = base64.b64encode(gzip.compress(_canonical(value), mtime=0)).decode()
    if len(text) > INPUT_ENCODED_BYTES:
        raise ValueError(f"the trial's input takes {len(text)} bytes, more than {INPUT_ENCODED_BYTES}")
    return text


def decode_input(text: str) -> TrialInput:
    """Inverse of ``encode_input``; the text comes from our own operator and is trusted."""
    import base64
    import gzip

    value = json.loads(gzip.decompress(base64.b64decode(text)))
    if value.get("schema") != 1:
        raise ValueError(f"input schema {value.get('schema')!r} is not 1: runner and operator have different versions")
    return cast(TrialInput, value)


# --- a metric.py: what its Pod is told, and what it answers -------------------------------------------------------------------------


class ScriptInput(TypedDict):
    """``VAR_INPUT`` of the containers of a script's Pod, as JSON."""

    job_uid: str
    script: int
    """Its number among the scripts of the job."""
    retry: int
    script_sha256: str
    rewards_sha256: str
    seconds: float
    memory_bytes: int


class ScriptError(TypedDict):
    type: str
    message: str


class ScriptResult(TypedDict):
    """``result.json`` of a script, signed; exactly one of ``values`` and ``error`` is there."""

    job_uid: str
    script: int
    retry: int
    script_sha256: str
    rewards_sha256: str
    values: dict[str, float] | None
    error: ScriptError | None


SCRIPT_ERROR_CHARS: Final = 1000


# --- the agent's end ------------------------------------------------------------------------------------------------------------------


class ErrorInfo(TypedDict):
    type: str
    """Name as in Harbor's error table, or a class name."""
    cause: Cause
    message: str
    reason: NotRequired[str]
    """Our own name where it says more than ``type``: ``RunnerCrashed``, ``EnvironmentExited``, ``Interrupted``, …"""


class Span(TypedDict):
    """Times as RFC 3339 in UTC."""

    started_at: str
    finished_at: str


class AgentAbout(TypedDict):
    name: str
    version: str


class AgentEnd(TypedDict):
    """``AGENT_END``, written and renamed into place as the agent's last act."""

    error: ErrorInfo | None
    spans: dict[str, Span]
    """``environment_setup``, ``agent_setup``, ``agent_execution``; those that were reached."""
    exit_code: int | None
    result: dict[str, Any] | None
    """Harbor's ``agent_result``."""
    agent: NotRequired[AgentAbout]
    """What a class of the user says of itself."""
    envd: NotRequired[str]
    """Instance of the envd that the agent drove; the verifier must see the same one."""
    step: NotRequired[int]
    """Number of the step that ended, from 0; absent in the record of the whole agent."""


class StepAnswer(TypedDict):
    """``STEP_ANSWER``: what the agent's container does after a step."""

    go_on: bool
    """Whether the next step runs."""
    verified: bool
    """The tests ran, so their folders are emptied before the next step."""


AGENT_END_BYTES: Final = 256 * 1024


def read_agent_end(data: bytes) -> AgentEnd:
    """Parse an end record; an agent image of the user may have written it.

    Raises:
        ContractBroken: too long, or another shape.
    """
    if len(data) > AGENT_END_BYTES:
        raise ContractBroken(f"end record longer than {AGENT_END_BYTES} bytes")
    body = _load_object(data, "end record")
    spans, exit_code, result, envd = body.get("spans"), body.get("exit_code"), body.get("result"), body.get("envd")
    if not isinstance(spans, dict) or not (exit_code is None or type(exit_code) is int) or not (result is None or isinstance(result, dict)):
        raise ContractBroken("end record without spans, or with a wrong exit code or result")
    try:
        _canonical(result)
    except (ValueError, RecursionError) as error:
        raise ContractBroken("end record with a result that is not plain JSON") from error
    end = AgentEnd(
        error=read_error(body.get("error")),
        spans={name: _read_span(spans[name]) for name in ("environment_setup", "agent_setup", "agent_execution") if name in spans},
        exit_code=exit_code,
        result=result,
    )
    if isinstance(envd, str):
        end["envd"] = envd[:64]
    about = body.get("agent")
    if isinstance(about, dict) and isinstance(about.get("name"), str) and isinstance(about.get("version"), str):
        end["agent"] = AgentAbout(name=about["name"][:200], version=about["version"][:200])
    if type(body.get("step")) is int:
        end["step"] = body["step"]
    return end


def _read_span(value: object) -> Span:
    if not isinstance(value, dict):
        raise ContractBroken("span is not an object")
    started_at, finished_at = value.get("started_at"), value.get("finished_at")
    if not isinstance(started_at, str) or not isinstance(finished_at, str) or max(len(started_at), len(finished_at)) > 40:
        raise ContractBroken("span without times")
    return Span(started_at=started_at, finished_at=finished_at)


# --- the verdict ----------------------------------------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """The short form of a trial's result, in the verifier's termination message."""

    trial: str
    retry: int
    rewards: dict[str, float] | None
    """None: no reward, or too long for the message (then ``rewards_elsewhere``)."""
    rewards_elsewhere: bool
    error: ErrorInfo | None
    stored: bool
    """``result.json`` was committed."""
    result_sha256: str | None
    logs_sha256: str | None
    seconds: dict[str, float]
    """Durations by phase."""
    tampered: bool
    leftover_processes: int
    changed_tools: int = 0
    """Programs of the environment that changed while the agent ran."""
    is_disabled: bool = False
    """Verification was disabled: neither rewards nor an error are missing."""
    is_handed_over: bool = False
    """The agent's part is done and stored; a Pod of its own verifies it."""
    measures: Mapping[str, Mapping[str, float | bool | str] | str] = {}
    """What the task's own metrics found. Empty where they move to ``result.json`` with the rewards."""
    usage: Mapping[str, float] = {}
    """What the agent says that it spent in this Pod, by the names of ``USAGE``; only what is known."""


def write_verdict(verdict: Verdict) -> bytes:
    """``verdict`` as JSON of at most ``VERDICT_BYTES``: the error text is cut first, then rewards move to ``result.json``. Where that is
    not stored, what metrics found is given up before the rewards are."""
    whole = [(ERROR_MESSAGE_CHARS, True, True), (80, True, True), (0, True, True)]
    bare = [] if verdict.stored or not verdict.measures else [(80, True, False), (0, True, False)]
    for chars, keep_rewards, keep_measures in (*whole, *bare, (80, False, False), (0, False, False)):
        body: dict[str, Any] = {"v": 1, "trial": verdict.trial, "retry": verdict.retry}
        if verdict.rewards is not None and keep_rewards:
            body["rewards"] = verdict.rewards
        elif verdict.rewards is not None or verdict.rewards_elsewhere:
            body["rewardsElsewhere"] = True
        if verdict.error is not None:
            body["error"] = {**_named(verdict.error), "message": verdict.error["message"][:chars]}
        body |= {"stored": verdict.stored, "result": verdict.result_sha256, "logs": verdict.logs_sha256}
        body["seconds"] = {name: round(value, 3) for name, value in verdict.seconds.items()}
        if verdict.tampered:
            body["tampered"] = True
        if verdict.leftover_processes:
            body["leftover"] = verdict.leftover_processes
        if verdict.changed_tools:
            body["changedTools"] = verdict.changed_tools
        if verdict.is_disabled:
            body["disabled"] = True
        if verdict.is_handed_over:
            body["handedOver"] = True
        if verdict.usage and keep_rewards:
            # With rewards elsewhere, all is read there.
            body["usage"] = dict(verdict.usage)
        if verdict.measures and keep_measures:
            body["measures"] = dict(verdict.measures)
        data = _canonical(body)
        if len(data) <= VERDICT_BYTES:
            return data
    raise ValueError(f"a verdict of trial {verdict.trial!r} does not fit into {VERDICT_BYTES} bytes")


class ContractBroken(ValueError):
    """A Pod sent something the contract does not allow: untrusted input, never a crash."""


def read_verdict(text: str) -> Verdict:
    """Parse a termination message.

    Raises:
        ContractBroken: anything but a complete verdict.
    """
    if len(text.encode()) > VERDICT_BYTES:
        raise ContractBroken(f"verdict longer than {VERDICT_BYTES} bytes")
    body = _load_object(text, "verdict")
    if body.get("v") != 1:
        raise ContractBroken(f"verdict version {body.get('v')!r} is not 1")
    trial, retry, stored = body.get("trial"), body.get("retry"), body.get("stored")
    leftover, changed = body.get("leftover", 0), body.get("changedTools", 0)
    if not isinstance(trial, str) or type(retry) is not int or type(stored) is not bool:
        raise ContractBroken("verdict lacks trial, retry or stored")
    if type(leftover) is not int or type(changed) is not int:
        raise ContractBroken("verdict has counts that are none")
    seconds = body.get("seconds", {})
    if not isinstance(seconds, dict) or not all(_is_number(value) and 0 <= value <= MAX_SECONDS for value in seconds.values()):
        raise ContractBroken("verdict has no valid seconds")
    return Verdict(
        trial=trial,
        retry=retry,
        rewards=read_rewards(body["rewards"]) if "rewards" in body else None,
        rewards_elsewhere=body.get("rewardsElsewhere") is True,
        error=read_error(body.get("error")),
        stored=stored,
        result_sha256=_digest_or_none(body.get("result")),
        logs_sha256=_digest_or_none(body.get("logs")),
        seconds={str(name)[:40]: float(value) for name, value in list(seconds.items())[:20]},
        tampered=body.get("tampered") is True,
        leftover_processes=min(max(0, leftover), MAX_COUNT),
        changed_tools=min(max(0, changed), MAX_COUNT),
        is_disabled=body.get("disabled") is True,
        is_handed_over=body.get("handedOver") is True,
        usage=sum_usage([body.get("usage")]),
        measures=read_measures(body.get("measures", {})),
    )


def sum_usage(results: Iterable[object]) -> dict[str, float]:
    """Tokens and cost of Harbor's agent results together, by the names of ``USAGE``; what none of them tells, or not as a number within
    reason, is left out. Untrusted input, and never an error: a trial does not fail for what its agent says of itself."""
    found: dict[str, float] = {}
    for result in results:
        for name in USAGE if isinstance(result, dict) else ():
            value = cast(dict[str, object], result).get(name)
            if _is_number(value) and 0 <= (number := cast(float, value)) <= MAX_USAGE:
                found[name] = found.get(name, 0) + number
    return found


def read_rewards(value: object) -> dict[str, float]:
    """A mapping of reward keys to finite numbers.

    Raises:
        ContractBroken: any other shape.
    """
    if not isinstance(value, dict) or len(value) > REWARD_KEYS:
        raise ContractBroken("rewards are not a mapping, or too many")
    for key, number in value.items():
        if len(key) > REWARD_KEY_CHARS or not _is_number(number):
            raise ContractBroken(f"reward {key[:40]!r} is not a finite number")
    return dict(value)


def read_measures(value: object) -> Measures:
    """What metrics found, as a Pod reported it; texts are cut.

    Raises:
        ContractBroken: any other shape.
    """
    if not isinstance(value, dict) or len(value) > MEASURES:
        raise ContractBroken("measures are not a mapping, or too many")
    found: dict[str, Mapping[str, float | bool | str] | str] = {}
    for metric, outputs in value.items():
        if isinstance(outputs, str):
            found[metric] = outputs[:MEASURE_CHARS]
            continue
        if not isinstance(outputs, dict) or len(outputs) > MEASURES:
            raise ContractBroken(f"outputs of {metric[:40]!r} are not a mapping, or too many")
        for name, item in outputs.items():
            if not isinstance(item, str | bool) and not _is_number(item):
                raise ContractBroken(f"output {name[:40]!r} of {metric[:40]!r} is no number, boolean or text")
        found[metric] = {name: item[:MEASURE_CHARS] if isinstance(item, str) else item for name, item in outputs.items()}
    return found


def read_error(value: object) -> ErrorInfo | None:
    """An error as a Pod reported it; texts are cut, and ``type`` and ``reason`` become names.

    Raises:
        ContractBroken: any other shape.
    """
    if value is None:
        return None
    if not isinstance(value, dict) or value.get("cause") not in CAUSES or not isinstance(value.get("type"), str):
        raise ContractBroken("error without type and cause")
    error = ErrorInfo(type=value["type"], cause=value["cause"], message=str(value.get("message", ""))[:ERROR_MESSAGE_CHARS])
    if isinstance(value.get("reason"), str):
        error["reason"] = value["reason"]
    return _named(error)


def _named(error: ErrorInfo) -> ErrorInfo:
    """``error`` with a type and a reason that are names: they reach status fields, metrics and the keys of error policies."""
    named: ErrorInfo = {**error, "type": error_name(error["type"])}
    if "reason" in error:
        named["reason"] = error_name(error["reason"])
    return named


def error_name(text: str) -> str:
    """``text`` as ``[A-Za-z_][A-Za-z0-9_.]{0,99}``: every other character becomes ``_``. A name stays as it is."""
    name = "".join(char if char.isascii() and (char.isalnum() or char in "_.") else "_" for char in text[:ERROR_NAME_CHARS])
    return name if name[:1].isalpha() or name[:1] == "_" else f"_{name}"[:ERROR_NAME_CHARS]


# --- result.json, signed --------------------------------------------------------------------------------------------------------------

SIGNATURE_FIELD: Final = "seatrial_signature"


def sign_result(result: Mapping[str, Any], key: bytes) -> bytes:
    """``result`` as canonical JSON with its HMAC-SHA256 beside it; a result found without its Pod counts only with this."""
    body = {name: value for name, value in result.items() if name != SIGNATURE_FIELD}
    return _canonical({**body, SIGNATURE_FIELD: _signature(body, key)})


def verify_result(data: bytes, key: bytes) -> dict[str, Any]:
    """The result without its signature.

    Raises:
        ContractBroken: too long, not an object, or not signed with ``key``.
    """
    if len(data) > RESULT_BYTES:
        raise ContractBroken(f"result longer than {RESULT_BYTES} bytes")
    body = _load_object(data, "result")
    import hmac

    found = body.pop(SIGNATURE_FIELD, None)
    if not isinstance(found, str) or not hmac.compare_digest(found.encode(), _signature(body, key).encode()):
        raise ContractBroken("result is not signed with the job's key")
    return body


def _signature(body: Mapping[str, Any], key: bytes) -> str:
    import hashlib
    import hmac

    return hmac.new(key, _canonical(body), hashlib.sha256).hexdigest()


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def _load_object(text: str | bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ContractBroken(f"{what} is not JSON") from error
    if not isinstance(value, dict):
        raise ContractBroken(f"{what} is not an object")
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(name)


def _is_number(value: object) -> bool:
    """Whether ``value`` is a number that a float can hold; JSON's integers have no bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _digest_or_none(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) != 64 or not set(value) <= set("0123456789abcdef"):
        raise ContractBroken("not a sha256 digest")
    return value
