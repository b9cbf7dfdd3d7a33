"""The trial Pod, as a dict for the API.

Three rules that must hold whatever a task says: the environment gets no presigned URL, no model key and nothing of ``/tests`` or
``/solution``; ``ctl`` is read-only there; no container gets a service-account token.
"""

from __future__ import annotations

import copy
import json
from typing import Any, Final, NamedTuple

from seatrial import contract
from seatrial.api.evaljob import EvalJobSpec, ResourceMode
from seatrial.api.meta import Quantity
from seatrial.api.names import (
    API_VERSION,
    EVALJOB,
    LABEL_ATTEMPT,
    LABEL_JOB,
    LABEL_JOB_NAME,
    LABEL_NETWORK,
    LABEL_RETRY,
    LABEL_ROLE,
    LABEL_TASK,
    LABEL_TRIAL,
    ROLE_TRIAL,
    ROLE_VERIFY,
)
from seatrial.core.expand import Trial
from seatrial.core.frozen import FrozenPlan, PlannedTask, network_of
from seatrial.core.naming import label_value, pod_name
from seatrial.core.trial_input import (
    Place,
    SecretSource,
    agent_mcp_servers,
    agent_place,
    environment_env,
    environment_sources,
    escape,
    grading_refs,
    longest_seconds,
    needed_refs,
    separate_place,
    solution_env,
    template_variables,
    value_from,
)
from seatrial.errors import SeatrialError
from seatrial.taskpkg.mirrors import Mirrors

SIGNING_KEY: Final = "key"
"""Key inside the job's Secret."""

GRACE_SECONDS: Final = 60
"""Time to save evidence after SIGTERM."""
UPLOAD_SECONDS: Final = 600
STAGE_SECONDS: Final = 600
NODE_GONE_SECONDS: Final = 60
"""Instead of the default 300: a lost node is noticed within a minute."""


class ResourceModeWithoutValue(SeatrialError):
    """An explicit resource mode, and neither task nor job says how much. The trial is errored with Harbor's ``ValueError``."""


class PodSettings(NamedTuple):
    """What the operator's configuration says about trial Pods; quantities as Kubernetes writes them."""

    runner_image: str
    runner_pull_policy: str = "IfNotPresent"
    image_pull_policy: str = "IfNotPresent"
    pull_seconds: int = 900
    """Part of the Pod's deadline, which counts from the start on the node."""
    unlimited_seconds: int = 5 * 24 * 3600
    """Deadline of a Pod whose agent has no limit; presigned URLs live for seven days at most."""
    environment_cpu: str = "50m"
    environment_memory: str = "64Mi"
    environment_storage: str = "64Mi"
    """Requests of an environment whose task does not say."""
    runner_cpu: str = "10m"
    runner_memory: str = "32Mi"
    runner_storage: str = "16Mi"
    runner_memory_limit: str = "512Mi"
    task_volume: str = "8Gi"
    logs_volume: str = "1Gi"
    tmp_volume: str = "1Gi"
    mirrors: Mirrors = Mirrors()
    """Where images of tasks, agents and Dockerfiles are read from."""
    ca_config_map: str = ""
    """ConfigMap in the job's namespace whose key ``ca.crt`` holds the authorities that our containers trust; empty: the image's own."""
    proxy: tuple[tuple[str, str], ...] = ()
    """Variables such as HTTP_PROXY for agent and environment, where task and job do not set them."""


CA_KEY: Final = "ca.crt"
CA_DIR: Final = "/etc/seatrial/ca"


class AgentsWork(NamedTuple):
    """Presigned, of the Pod whose work a separate verifier grades."""

    logs: str
    logs_sha256: str
    result: str


class Urls(NamedTuple):
    """Presigned, of one trial."""

    archive: str
    logs: str
    result: str
    work: AgentsWork | None = None
    """For the Pod of a separate verifier."""
    source: str | None = None
    """Of the agent's own code."""


def build_trial_pod(
    plan: FrozenPlan, spec: EvalJobSpec, trial: Trial, *, retry: int, urls: Urls, encoded_input: str, secret: str, settings: PodSettings
) -> dict[str, Any]:
    """The whole Pod for one retry.

    Args:
        spec: the job's current spec; the parts that matter here cannot change.
        encoded_input: ``contract.encode_input`` of the trial's input.
        secret: name of the job's Secret with the signing key.

    Raises:
        MissingVariable, ResourceModeWithoutValue: this trial cannot be built; its siblings can.
    """
    task = plan.tasks[trial.task]
    containers = [_environment(task, spec, settings), _agent(task, spec, settings), _verifier(task, spec, urls, secret, settings)]
    hidden = _to_redact(containers[0])
    containers[1]["env"] += hidden
    containers[2]["env"] += hidden
    if spec.agent.image is not None:
        # First: the kubelet starts containers one after another, each with its hook, so our agent finds the lock of an image that lives.
        containers.insert(0, _agent_image(task, spec, settings))
    stage = _stage(task, urls, encoded_input, settings)
    stage["env"] += _source(spec, urls)
    network = network_of(task.config.baseline_policy()) or "none"
    return _pod(plan, spec, trial, [stage, *containers], retry=retry, settings=settings, role=ROLE_TRIAL, network=network)


def build_verify_pod(
    plan: FrozenPlan, spec: EvalJobSpec, trial: Trial, *, retry: int, urls: Urls, encoded_input: str, secret: str, settings: PodSettings
) -> dict[str, Any]:
    """The Pod of a separate verifier: the tests in an environment of their own, fed with artifacts; no agent and no model key.

    Args:
        urls: with ``work``.

    Raises:
        MissingVariable, ResourceModeWithoutValue: this trial cannot be built; its siblings can.
    """
    task = plan.tasks[trial.task]
    place = separate_place(task)
    if place is None:
        raise ValueError(f"task {task.id} has no separate verifier")
    environment = _environment(task, spec, settings, place)
    needed = ("bin", *_SOCKETS, "net", "logs-verifier")
    environment["volumeMounts"] = [item for item in environment["volumeMounts"] if item["name"] in needed]
    verifier = _verifier(task, spec, urls, secret, settings)
    verifier["env"] += _to_redact(environment)
    # envd wants both ends, and nobody else listens here.
    kept = [item for item in verifier["volumeMounts"] if item["name"] not in ("logs-agent", "logs-artifacts")]
    verifier["volumeMounts"] = [*kept, _socket(contract.AGENT)]
    stage = _stage(task, urls, encoded_input, settings)
    network = network_of(task.config.verifier_policy()) or "none"
    return _pod(plan, spec, trial, [stage, environment, verifier], retry=retry, settings=settings, role=ROLE_VERIFY, network=network)


def _pod(
    plan: FrozenPlan,
    spec: EvalJobSpec,
    trial: Trial,
    containers: list[dict[str, Any]],
    *,
    retry: int,
    settings: PodSettings,
    role: str,
    network: str,
) -> dict[str, Any]:
    """What both kinds of Pods share; the first of ``containers`` is the init container."""
    task, pod = plan.tasks[trial.task], spec.pod
    used = {item["name"] for container in containers for item in container["volumeMounts"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(plan.job, plan.uid, trial.key, retry, verifies=role == ROLE_VERIFY),
            "namespace": plan.namespace,
            "labels": {**pod.labels, **pod_labels(plan, trial, retry=retry), LABEL_ROLE: role, LABEL_NETWORK: network},
            "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", **pod.annotations},
            "ownerReferences": [owner_reference(plan.job, plan.uid)],
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": deadline_seconds(task, spec, settings),
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            **placement(spec),
            "initContainers": containers[:1],
            "containers": containers[1:],
            "volumes": [volume for volume in _volumes(settings) if volume["name"] in used],
        },
    }


def pod_labels(plan: FrozenPlan, trial: Trial, *, retry: int) -> dict[str, str]:
    """Labels by which selectors and the informer find the Pod."""
    return {
        LABEL_ROLE: ROLE_TRIAL,
        LABEL_JOB: plan.uid,
        LABEL_JOB_NAME: label_value(plan.job),
        LABEL_TASK: label_value(trial.key.task),
        LABEL_TRIAL: trial.name,
        LABEL_ATTEMPT: str(trial.key.attempt),
        LABEL_RETRY: str(retry),
        LABEL_NETWORK: network_of(plan.tasks[trial.task].config.baseline_policy()) or "none",
    }


def owner_reference(job: str, job_uid: str) -> dict[str, Any]:
    """``blockOwnerDeletion`` stays false: true needs rights on finalizers on clusters that check it."""
    return {"apiVersion": API_VERSION, "kind": EVALJOB, "name": job, "uid": job_uid, "controller": True, "blockOwnerDeletion": False}


def build_secret(*, namespace: str, name: str, job: str, job_uid: str, key_base64: str) -> dict[str, Any]:
    """The Secret with the job's signing key; it goes with the job."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {LABEL_JOB: job_uid, LABEL_JOB_NAME: label_value(job)},
            "ownerReferences": [owner_reference(job, job_uid)],
        },
        "immutable": True,
        "type": "Opaque",
        "data": {SIGNING_KEY: key_base64},
    }


def deadline_seconds(task: PlannedTask, spec: EvalJobSpec, settings: PodSettings) -> int:
    """The backstop behind the runner's own limits: all phases, the pulls and the upload."""
    phases = longest_seconds(task, spec)
    if phases is None:
        return settings.unlimited_seconds
    return int(phases) + settings.pull_seconds + STAGE_SECONDS + UPLOAD_SECONDS


def url_seconds(task: PlannedTask, spec: EvalJobSpec, settings: PodSettings) -> int:
    """How long the Pod's presigned URLs must live: waiting, running, and one hour."""
    return spec.timeouts.pending.seconds + deadline_seconds(task, spec, settings) + 3600


_ENSURE_ENVD: Final = {
    "exec": {"command": [contract.ENVD, "--ensure"]},
    "initialDelaySeconds": 5,
    "periodSeconds": 5,
    "timeoutSeconds": 15,
    "failureThreshold": 2**31 - 1,
}
"""An ENTRYPOINT that ignores its arguments and stays up is met by a probe that starts envd; where the arguments worked it does nothing.

Why no postStart hook: a command in a container costs as much as starting one, and the probe comes when most are past that.
Why never a failure: a process of the task may keep any command from running, and that is no reason to end a container.
"""


_PARTS: Final = (contract.AGENT, contract.VERIFIER)
"""Those that play a trial, each with folders of its own."""
_SOCKETS: Final = tuple(f"ctl-{part}" for part in _PARTS)


# --- containers -----------------------------------------------------------------------------------------------------------------------


def _stage(task: PlannedTask, urls: Urls, encoded_input: str, settings: PodSettings) -> dict[str, Any]:
    work = []
    if urls.work is not None:
        work = [
            {"name": contract.VAR_AGENT_LOGS_URL, "value": escape(urls.work.logs)},
            {"name": contract.VAR_AGENT_LOGS_SHA256, "value": urls.work.logs_sha256},
            {"name": contract.VAR_AGENT_RESULT_URL, "value": escape(urls.work.result)},
        ]
    container = runner_container(
        contract.STAGE,
        contract.STAGE_UID,
        settings,
        env=[
            {"name": contract.VAR_INPUT, "value": encoded_input},
            {"name": contract.VAR_ARCHIVE_URL, "value": escape(urls.archive)},
            {"name": contract.VAR_ARCHIVE_SHA256, "value": task.archive_sha256},
            *work,
        ],
        mounts=[
            mount("bin", contract.BIN_DIR),
            mount("net", contract.NET_DIR),
            *(mount(f"task-{part}", f"{contract.TASK_DIR}/{part}") for part in (_PARTS if urls.work is None else (contract.VERIFIER,))),
        ],
        tmp="tmp-verifier",
    )
    # It installs envd setuid root, so that Harbor's root steps work in an image whose USER is another, and becomes STAGE_UID before it
    # touches the archive.
    container["securityContext"] |= {
        "runAsNonRoot": False,
        "runAsUser": 0,
        "runAsGroup": 0,
        "capabilities": {"drop": ["ALL"], "add": ["SETGID", "SETUID"]},
    }
    return container


def _source(spec: EvalJobSpec, urls: Urls) -> list[dict[str, Any]]:
    if spec.agent.source is None or urls.source is None:
        return []
    return [
        {"name": contract.VAR_SOURCE_URL, "value": escape(urls.source)},
        {"name": contract.VAR_SOURCE_SHA256, "value": spec.agent.source.sha256},
    ]


def _environment(task: PlannedTask, spec: EvalJobSpec, settings: PodSettings, place: Place | None = None) -> dict[str, Any]:
    place = place or agent_place(task)
    return {
        "name": contract.ENVIRONMENT,
        "image": _running_image(task, place, settings),
        "imagePullPolicy": settings.image_pull_policy,
        "args": [contract.ENVD],
        "env": _with_proxy(environment_env(task, spec, place), settings),
        "resources": environment_resources(task, spec, settings, place),
        "startupProbe": copy.deepcopy(_ENSURE_ENVD),
        # The Pod's containers share one network: a raw socket would read what the verifier sends to a store without TLS.
        "securityContext": {"capabilities": {"drop": ["NET_RAW"]}},
        "volumeMounts": [
            mount("bin", contract.BIN_DIR, read_only=True),
            *(_socket(part, read_only=True) for part in _PARTS),
            *(mount("net", f"/etc/{name}", sub_path=name) for name in contract.NET_FILES),
            mount("logs-agent", contract.LOGS_AGENT),
            mount("logs-verifier", contract.LOGS_VERIFIER),
            mount("logs-artifacts", contract.LOGS_ARTIFACTS),
        ],
    }


def _agent(task: PlannedTask, spec: EvalJobSpec, settings: PodSettings) -> dict[str, Any]:
    desk = [mount("desk", contract.DESK_DIR)] if spec.agent.image is not None else []
    solving = needed_refs(solution_env(task, spec), environment_sources(spec), where=f"[solution.env] of task {task.id}")
    env = _agent_env(spec)
    container = runner_container(
        contract.AGENT,
        contract.AGENT_UID,
        settings,
        image=spec.agent.runner_image,
        env=_with_proxy(env + template_variables(solving), settings),
        mounts=[
            mount("bin", contract.BIN_DIR, read_only=True),
            _socket(contract.AGENT),
            mount("task-agent", contract.TASK_DIR, read_only=True),
            *_run_mounts(contract.AGENT),
            mount("logs-agent", contract.LOGS_AGENT),
            *desk,
        ],
        tmp="tmp-agent",
    )
    if spec.agent.import_path is not None:
        # What the user's class needs is the user's to say; only the node's memory bounds it.
        del container["resources"]["limits"]
    return container


def _agent_env(spec: EvalJobSpec) -> list[dict[str, Any]]:
    env: list[dict[str, Any]] = [{"name": name, "value": escape(value)} for name, value in sorted(spec.agent.env.items())]
    secrets = sorted(spec.agent.env_secrets.items())
    return env + [{"name": name, "valueFrom": value_from(SecretSource("secretKeyRef", ref))} for name, ref in secrets]


def _agent_image(task: PlannedTask, spec: EvalJobSpec, settings: PodSettings) -> dict[str, Any]:
    """The user's own agent. Our ``agent`` container beside it prepares the environment and does what its client asks."""
    told = {
        contract.VAR_AGENT_CLIENT: f"{contract.BIN_DIR}/seatrial-env",
        contract.VAR_AGENT_INSTRUCTION: f"{contract.TASK_DIR}/{contract.INSTRUCTION_FILE}",
        contract.VAR_AGENT_KWARGS: json.dumps(dict(spec.agent.kwargs), sort_keys=True),
        contract.VAR_AGENT_LOGS: contract.LOGS_AGENT,
        contract.VAR_AGENT_MCP_SERVERS: json.dumps(agent_mcp_servers(task, spec.agent)),
        contract.VAR_AGENT_SKILLS_DIR: task.config.environment.skills_dir or "",
        contract.VAR_AGENT_MODEL: spec.agent.model or "",
        contract.VAR_AGENT_TRAJECTORY: f"{contract.LOGS_AGENT}/{contract.TRAJECTORY_FILE}",
        contract.VAR_AGENT_USAGE: f"{contract.LOGS_AGENT}/{contract.USAGE_FILE}",
        "HOME": "/tmp",
    }
    mounts = [
        mount("bin", contract.BIN_DIR, read_only=True),
        mount("desk", contract.DESK_DIR),
        mount("desk", f"{contract.DESK_DIR}/{contract.DESK_MARK}", read_only=True, sub_path=contract.DESK_MARK),
        mount("task-agent", contract.TASK_DIR, read_only=True),
        mount("logs-agent", contract.LOGS_AGENT),
    ]
    container = runner_container(contract.AGENT_IMAGE, contract.AGENT_UID, settings, env=_agent_env(spec), mounts=mounts, tmp="tmp-image")
    container["image"] = settings.mirrors.of(spec.agent.image or "")
    container["imagePullPolicy"] = settings.image_pull_policy
    container["args"] = list(spec.agent.args)
    container["env"] = [{"name": name, "value": escape(value)} for name, value in told.items()] + container["env"]
    container["securityContext"]["readOnlyRootFilesystem"] = False
    # What a model's client needs is the user's to say; only the node's memory bounds it.
    del container["resources"]["limits"]
    container["lifecycle"] = {"postStart": {"exec": {"command": [f"{contract.BIN_DIR}/seatrial-env", "hold"]}}}
    return container


def _verifier(task: PlannedTask, spec: EvalJobSpec, urls: Urls, secret: str, settings: PodSettings) -> dict[str, Any]:
    grading = grading_refs(task, spec)
    return runner_container(
        contract.VERIFIER,
        contract.VERIFIER_UID,
        settings,
        env=[
            {"name": contract.VAR_LOGS_URL, "value": escape(urls.logs)},
            {"name": contract.VAR_RESULT_URL, "value": escape(urls.result)},
            {"name": contract.VAR_SIGNING_KEY, "valueFrom": {"secretKeyRef": {"name": secret, "key": SIGNING_KEY}}},
            *template_variables(grading),
        ],
        mounts=[
            mount("bin", contract.BIN_DIR, read_only=True),
            _socket(contract.VERIFIER),
            mount("task-verifier", contract.TASK_DIR, read_only=True),
            *_run_mounts(contract.VERIFIER),
            mount("logs-agent", contract.LOGS_AGENT),
            mount("logs-verifier", contract.LOGS_VERIFIER),
            mount("logs-artifacts", contract.LOGS_ARTIFACTS),
        ],
        tmp="tmp-verifier",
    )


def _to_redact(environment: dict[str, Any]) -> list[dict[str, Any]]:
    """The environment's secrets once more, for the runners: what they show and keep of its files must not hold them."""
    secrets = (item for item in environment["env"] if "secretKeyRef" in item.get("valueFrom", {}))
    return [{**item, "name": f"{contract.VAR_REDACT_PREFIX}{item['name']}"} for item in secrets]


def _socket(part: str, *, read_only: bool = False) -> dict[str, Any]:
    return mount(f"ctl-{part}", f"{contract.CTL_DIR}/{part}", read_only=read_only)


def _run_mounts(name: str) -> list[dict[str, Any]]:
    """Its own folder, and the other's read-only."""
    return [mount(f"run-{part}", f"{contract.RUN_DIR}/{part}", read_only=part != name) for part in _PARTS]


def runner_container(
    name: str,
    uid: int,
    settings: PodSettings,
    *,
    env: list[dict[str, Any]],
    mounts: list[dict[str, Any]],
    tmp: str,
    image: str | None = None,
) -> dict[str, Any]:
    """A container of ours: meets Pod Security *restricted*."""
    if settings.ca_config_map:
        if "SSL_CERT_FILE" not in {item["name"] for item in env}:
            env = [*env, {"name": "SSL_CERT_FILE", "value": f"{CA_DIR}/{CA_KEY}"}]
        mounts = [*mounts, mount("ca", CA_DIR, read_only=True)]
    return {
        "name": name,
        "image": image or settings.runner_image,
        "imagePullPolicy": settings.runner_pull_policy,
        "args": [name],
        "env": env,
        "resources": {
            "requests": {
                "cpu": settings.runner_cpu,
                "memory": settings.runner_memory,
                "ephemeral-storage": settings.runner_storage,
            },
            "limits": {"memory": settings.runner_memory_limit},
        },
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": uid,
            "runAsGroup": uid,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [*mounts, mount(tmp, "/tmp")],
    }


def _running_image(task: PlannedTask, place: Place, settings: PodSettings) -> str:
    """What was built is where it was pushed; what task.toml names is as the plan pinned it, else on its mirror."""
    if place.image in (task.image, task.verifier_image):
        return place.image
    return task.pins.get(place.image) or settings.mirrors.of(place.image)


def _with_proxy(env: list[dict[str, Any]], settings: PodSettings) -> list[dict[str, Any]]:
    given = {str(item["name"]).lower() for item in env}
    return [*env, *({"name": name, "value": escape(value)} for name, value in settings.proxy if name.lower() not in given)]


def mount(volume: str, path: str, *, read_only: bool = False, sub_path: str | None = None) -> dict[str, Any]:
    """A volume mount."""
    body: dict[str, Any] = {"name": volume, "mountPath": path}
    if sub_path is not None:
        body["subPath"] = sub_path
    if read_only:
        body["readOnly"] = True
    return body


def _volumes(settings: PodSettings) -> list[dict[str, Any]]:
    # The limits bound what a task can fill; the runner ends a phase at 80 % of them, because an eviction loses the evidence.
    sizes = {
        "bin": "64Mi",
        # Two of a kind, because a folder of a volume costs more to mount than a volume.
        "ctl-agent": "1Mi",
        "ctl-verifier": "1Mi",
        "net": "16Mi",
        "task-agent": settings.task_volume,
        "task-verifier": settings.task_volume,
        "run-agent": "64Mi",
        "run-verifier": "64Mi",
        "logs-agent": settings.logs_volume,
        "logs-verifier": settings.logs_volume,
        "logs-artifacts": settings.logs_volume,
        "tmp-agent": settings.tmp_volume,
        "tmp-verifier": settings.tmp_volume,
        "tmp-image": settings.tmp_volume,
        "desk": "16Mi",
    }
    volumes: list[dict[str, Any]] = [{"name": name, "emptyDir": {"sizeLimit": size}} for name, size in sizes.items()]
    return [*volumes, *ca_volumes(settings)]


def ca_volumes(settings: PodSettings) -> list[dict[str, Any]]:
    """The volume of the site's authorities, where there are any."""
    if not settings.ca_config_map:
        return []
    return [{"name": "ca", "configMap": {"name": settings.ca_config_map, "items": [{"key": CA_KEY, "path": CA_KEY}]}}]


def volume_limits(settings: PodSettings) -> dict[str, int]:
    """Bytes by mount path of the volumes that the environment can fill, for the runner's watch."""
    size = int(Quantity(settings.logs_volume).amount)
    return dict.fromkeys((contract.LOGS_AGENT, contract.LOGS_VERIFIER, contract.LOGS_ARTIFACTS), size)


def node_gone_tolerations() -> list[dict[str, Any]]:
    """How long a Pod is left on a node that does not answer."""
    return [
        {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": NODE_GONE_SECONDS}
        for what in ("not-ready", "unreachable")
    ]


def placement(spec: EvalJobSpec) -> dict[str, Any]:
    """Fields of a Pod's spec that say where it may run and how its images are pulled."""
    pod = spec.pod
    body: dict[str, Any] = {"tolerations": node_gone_tolerations() + [item.raw() for item in pod.tolerations]}
    if pod.node_selector:
        body["nodeSelector"] = dict(pod.node_selector)
    if pod.affinity:
        body["affinity"] = copy.deepcopy(dict(pod.affinity))
    if pod.runtime_class_name is not None:
        body["runtimeClassName"] = pod.runtime_class_name
    if pod.priority_class_name is not None:
        body["priorityClassName"] = pod.priority_class_name
    if pod.image_pull_secrets:
        body["imagePullSecrets"] = [{"name": item.name} for item in pod.image_pull_secrets]
    return body


# --- resources -----------------------------------------------------------------------------------------------------------------------


def environment_resources(task: PlannedTask, spec: EvalJobSpec, settings: PodSettings, place: Place | None = None) -> dict[str, Any]:
    """Requests and limits of the environment; ``auto`` is a request for CPU, and request and limit for memory and storage.

    Raises:
        ResourceModeWithoutValue: an explicit mode needs a number.

    Source: Harbor's modes (H-56, H-57).
    """
    wanted, overrides, modes = (place or agent_place(task)).section, spec.resources.overrides, spec.resources
    cpu = overrides.cpu or (_cpus(wanted.cpus) if wanted.cpus is not None else None)
    memory = overrides.memory or (Quantity(f"{wanted.memory_mb}Mi") if wanted.memory_mb else None)
    storage = overrides.storage or (Quantity(f"{wanted.storage_mb}Mi") if wanted.storage_mb else None)
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    for name, field, mode, automatic, value, least in (
        ("cpu", "cpu", modes.cpu, "request", cpu, settings.environment_cpu),
        ("memory", "memory", modes.memory, "guarantee", memory, settings.environment_memory),
        ("ephemeral-storage", "storage", modes.storage, "guarantee", storage, settings.environment_storage),
    ):
        request, limit = _apply(mode, automatic, value, least=Quantity(least), field=field)
        requests[name] = request
        if limit is not None:
            limits[name] = limit
    gpus = overrides.gpu if overrides.gpu is not None else wanted.gpus
    if gpus and modes.gpu != "ignore":
        limits["nvidia.com/gpu"] = str(gpus)
    return {"requests": requests, "limits": limits} if limits else {"requests": requests}


def _apply(mode: ResourceMode, automatic: str, value: Quantity | None, *, least: Quantity, field: str) -> tuple[str, str | None]:
    if mode == "ignore" or (value is None and mode == "auto"):
        return str(least), None
    if value is None:
        message = f"resource mode {mode!r} for {field} needs a value: set spec.resources.overrides.{field}, or mode auto"
        raise ResourceModeWithoutValue(message)
    match automatic if mode == "auto" else mode:
        case "limit":
            # Kubernetes would set an absent request to the limit, which is "guarantee".
            return str(min(least, value, key=lambda item: item.amount)), str(value)
        case "request":
            return str(value), None
        case _:
            return str(value), str(value)


def _cpus(value: float) -> Quantity:
    return Quantity(str(value)) if float(value).is_integer() else Quantity(f"{round(value * 1000)}m")
