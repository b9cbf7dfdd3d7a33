"""The Pod that builds a task's image, and what its end means.

It meets Pod Security *baseline*: uid 0 with the runtime's default capabilities and seccomp profile, no privilege, no host path. An init
container of ours fetches the verified archive and leaves the build context and envd on a volume; kaniko's executor, run by envd, builds and
pushes. The Pod holds no secret but the push credentials where there are any, and no right to the cluster.

It is no job's own: its owners are the jobs that wait for the image, none of them its controller, so that it outlives the first and the
garbage collector takes it away with the last.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from seatrial import contract
from seatrial.api.meta import Quantity
from seatrial.api.names import GROUP, LABEL_JOB_NAME, LABEL_ROLE, LABEL_TASK, ROLE_BUILD
from seatrial.api.reasons import Reason
from seatrial.contract import StageExit
from seatrial.core.frozen import FrozenPlan, ImageRole, PlannedTask
from seatrial.core.manifests import STAGE_SECONDS, PodSettings, node_gone_tolerations, owner_reference
from seatrial.core.naming import label_value
from seatrial.core.observe import parse_pod, parse_time
from seatrial.core.trial import Judgement, Limits, failure, lost_at, stage_message
from seatrial.core.trial_input import escape
from seatrial.taskpkg.buildlog import explain

LABEL_BUILD: Final = f"{GROUP}/build"
"""Key of the image."""
CONTEXT: Final = "context"
BUILD: Final = "build"
CONTEXT_DIR: Final = "/seatrial/context"
EXECUTOR: Final = "/kaniko/executor"
FOLDERS: Final[Mapping[ImageRole, str]] = {"environment": "environment", "verifier": "tests"}
"""Build contexts in a task."""
GRACE_SECONDS: Final = 5
_DIGEST: Final = re.compile(r"\s*(sha256:[0-9a-f]{64})\s*")
_LIMITS: Final = Limits()


class BuildSettings(NamedTuple):
    """What the operator's configuration says about builds; quantities as Kubernetes writes them."""

    repository: str
    """Where images are pushed and looked for, ``host/name``; empty: the cluster does not build."""
    pull_repository: str = ""
    """By which name nodes pull them; empty: the same."""
    executor_image: str = ""
    insecure: bool = False
    """The registry speaks plain HTTP, and so may those of base images."""
    args: Mapping[str, str] = {}
    platform: str = "linux/amd64"
    push_secret: str = ""
    """Secret of type kubernetes.io/dockerconfigjson in the job's namespace; empty: push without credentials."""
    files: Mapping[str, tuple[str, str]] = {}
    """Path -> ConfigMap and key of files that only the build sees, such as certificates or pip.conf."""
    cpu: str = "100m"
    memory: str = "256Mi"
    memory_limit: str = "4Gi"
    storage_limit: str = "20Gi"

    def image(self, digest: str) -> str:
        """As the containers of a Pod name it."""
        return f"{self.pull_repository or self.repository}@{digest}"


class Pushed(NamedTuple):
    """The build succeeded."""

    digest: str


class Passing(NamedTuple):
    """It failed for a reason outside the task: worth another try."""

    judgement: Judgement
    counts: bool = True
    """As one of the few tries; what ended before anything was tried does not."""


def build_pod_name(key: str) -> str:
    """One name per key, so that a second create of the same build meets the first."""
    return f"seatrial-build-{key}"


def build_pod(
    plan: FrozenPlan,
    task: PlannedTask,
    *,
    role: ImageRole,
    key: str,
    archive_url: str,
    timeout_seconds: float,
    settings: BuildSettings,
    pods: PodSettings,
    waiters: Mapping[str, str],
    pull_secrets: Sequence[str] = (),
) -> dict[str, Any]:
    """The whole Pod.

    Args:
        plan: of the job that asked first; the labels name it and its task, for people.
        role: whose image it is.
        key: of the image, the tag that is pushed.
        archive_url: presigned, of the task's archive.
        timeout_seconds: for the build; the Pod's own deadline is a backstop behind it.
        waiters: UID -> name of the jobs that wait for the image.
    """
    stage = ("tmp-context", "/tmp")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": build_pod_name(key),
            "namespace": plan.namespace,
            "labels": {
                LABEL_ROLE: ROLE_BUILD,
                LABEL_JOB_NAME: label_value(plan.job),
                LABEL_TASK: label_value(task.id),
                LABEL_BUILD: key,
            },
            "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
            "ownerReferences": [_reference(name, uid) for uid, name in waiters.items()],
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": int(timeout_seconds) + STAGE_SECONDS + pods.pull_seconds,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "tolerations": node_gone_tolerations(),
            **({"imagePullSecrets": [{"name": name} for name in pull_secrets]} if pull_secrets else {}),
            "initContainers": [
                {
                    "name": CONTEXT,
                    "image": pods.runner_image,
                    "imagePullPolicy": pods.runner_pull_policy,
                    "args": [CONTEXT],
                    "env": [
                        {"name": contract.VAR_ARCHIVE_URL, "value": escape(archive_url)},
                        {"name": contract.VAR_ARCHIVE_SHA256, "value": task.archive_sha256},
                        {"name": contract.VAR_CONTEXT_DIR, "value": CONTEXT_DIR},
                        {"name": contract.VAR_CONTEXT_FOLDER, "value": FOLDERS[role]},
                        {"name": contract.VAR_IMAGE_MIRRORS, "value": escape(pods.mirrors.encode())},
                        {"name": contract.VAR_BUILD_ARGS, "value": escape(json.dumps(dict(settings.args), sort_keys=True))},
                    ],
                    "resources": {
                        "requests": {"cpu": pods.runner_cpu, "memory": pods.runner_memory, "ephemeral-storage": pods.runner_storage},
                        "limits": {"memory": pods.runner_memory_limit},
                    },
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": contract.STAGE_UID,
                        "runAsGroup": contract.STAGE_UID,
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [{"name": CONTEXT, "mountPath": CONTEXT_DIR}, {"name": stage[0], "mountPath": stage[1]}],
                }
            ],
            "containers": [_executor(task, role, key, settings=settings, pods=pods, timeout_seconds=timeout_seconds)],
            "volumes": [
                {"name": CONTEXT, "emptyDir": {"sizeLimit": pods.task_volume}},
                {"name": stage[0], "emptyDir": {"sizeLimit": pods.tmp_volume}},
                *(
                    [{"name": "push", "secret": {"secretName": settings.push_secret, "items": [_DOCKER_CONFIG]}}]
                    if settings.push_secret
                    else []
                ),
                *({"name": name, "configMap": {"name": name}} for name in sorted({source for source, _ in settings.files.values()})),
            ],
        },
    }


def _reference(job: str, uid: str) -> dict[str, Any]:
    return {**owner_reference(job, uid), "controller": False}


def owner_uids(body: Mapping[str, Any]) -> frozenset[str]:
    """UIDs of the jobs that a build's Pod belongs to."""
    return frozenset(owner["uid"] for owner in body["metadata"].get("ownerReferences") or ())


def change_owners(body: Mapping[str, Any], waiters: Mapping[str, str]) -> dict[str, Any] | None:
    """The strategic merge patch after which the Pod belongs to exactly the jobs that wait; None where it does.

    Args:
        body: the Pod as the API gives it; its UID goes into the patch, which meets no other Pod of that name.
        waiters: UID -> name; at least one, for a Pod without an owner is nobody's and stays for ever.
    """
    owners = owner_uids(body)
    if owners == waiters.keys():
        return None
    joined = [_reference(name, uid) for uid, name in waiters.items() if uid not in owners]
    left = [{"$patch": "delete", "uid": uid} for uid in sorted(owners - waiters.keys())]
    return {"metadata": {"uid": body["metadata"]["uid"], "ownerReferences": joined + left}}


_DOCKER_CONFIG: Final = {"key": ".dockerconfigjson", "path": "config.json"}


def _executor(
    task: PlannedTask, role: ImageRole, key: str, *, settings: BuildSettings, pods: PodSettings, timeout_seconds: float
) -> dict[str, Any]:
    section = (task.config.verifier_environment() if role == "verifier" else None) or task.config.environment
    insecure = ["--insecure", "--insecure-pull", "--skip-tls-verify", "--skip-tls-verify-pull"] if settings.insecure else []
    return {
        "name": BUILD,
        "image": settings.executor_image,
        "imagePullPolicy": pods.runner_pull_policy,
        "command": [f"{CONTEXT_DIR}/envd", "--build", f"{timeout_seconds:g}", EXECUTOR],
        "args": [
            f"--context=dir://{CONTEXT_DIR}/{FOLDERS[role]}",
            f"--dockerfile={CONTEXT_DIR}/Dockerfile",
            f"--destination={settings.repository}:{key}",
            # The digest is the message of a build that succeeded; of a failed one envd leaves its last instruction and the end of its log.
            "--digest-file=/dev/termination-log",
            f"--custom-platform={settings.platform}",
            "--log-format=text",
            "--log-timestamp=false",
            "--push-retry=3",
            "--image-download-retry=2",
            *insecure,
            *(escape(f"--build-arg={name}={value}") for name, value in sorted(settings.args.items())),
        ],
        "resources": {
            "requests": {"cpu": settings.cpu, "memory": settings.memory},
            "limits": {
                "memory": _larger(settings.memory_limit, section.memory_mb),
                "ephemeral-storage": _larger(settings.storage_limit, section.storage_mb),
            },
        },
        "securityContext": {"runAsUser": 0, "runAsGroup": 0, "allowPrivilegeEscalation": False},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": CONTEXT, "mountPath": CONTEXT_DIR, "readOnly": True},
            *([{"name": "push", "mountPath": "/kaniko/.docker", "readOnly": True}] if settings.push_secret else []),
            *(
                {"name": source, "mountPath": path, "subPath": item, "readOnly": True}
                for path, (source, item) in sorted(settings.files.items())
            ),
        ],
    }


def _larger(limit: str, wanted_mib: int | None) -> str:
    """What every build may use, or what the task asks for itself where that is more."""
    return max(Quantity(limit), Quantity(f"{wanted_mib or 0}Mi"), key=lambda item: item.amount)


_STAGE: Final[Mapping[int, Reason]] = {
    StageExit.ARCHIVE_MISSING: Reason.TASK_ARCHIVE_MISSING,
    StageExit.ARCHIVE_CORRUPT: Reason.TASK_ARCHIVE_CORRUPT,
    StageExit.ARCHIVE_UNSAFE: Reason.TASK_ARCHIVE_UNSAFE,
    StageExit.STORE_UNAVAILABLE: Reason.OBJECT_STORE_UNAVAILABLE,
    StageExit.STORE_REFUSED: Reason.OBJECT_STORE_REFUSED,
    StageExit.DISK_FULL: Reason.DISK_FULL,
    StageExit.TASK_UNSUPPORTED: Reason.IMAGE_BUILD_FAILED,
}
_PASSING_STAGE: Final = frozenset({Reason.OBJECT_STORE_UNAVAILABLE, Reason.OBJECT_STORE_REFUSED})


def judge_build(
    body: Mapping[str, Any], *, role: ImageRole = "environment", dockerfile: str = "", timeout_seconds: float, now: datetime
) -> Pushed | Passing | Judgement | None:
    """What a build's Pod says; None while it goes on.

    Args:
        body: the Pod as the API gives it.
        role: whose image it is.
        dockerfile: its text, to name the failing line; empty where it is not known.
        timeout_seconds: the limit of the build.
        now: aware, UTC.
    """
    status = body.get("status") or {}
    states = container_states(body)
    built = states.get(BUILD, {}).get("terminated")
    if built is not None and built.get("exitCode") == 0 and (digest := _DIGEST.fullmatch(built.get("message") or "")):
        return Pushed(digest[1])
    if is_lost(body, now=now):
        pod = parse_pod(body)
        return Passing(failure(Reason.NODE_LOST, f"node {pod.node} did not end the build's Pod {pod.name} in its time: it does not answer"))
    if body["metadata"].get("deletionTimestamp") or status.get("phase") not in ("Failed", "Succeeded"):
        return None  # how the containers of a Pod end that somebody deletes is no fault of the task
    why = " ".join(f"{status.get('reason', '')} {status.get('message', '')}".split())[:300]
    fault = explain(dockerfile, (built or {}).get("message") or "")
    at = f"{FOLDERS[role]}/{fault.where}"
    if status.get("reason") == "DeadlineExceeded" or (built or {}).get("exitCode") == contract.BUILD_TIMED_OUT:
        text = f"{at}: the build did not end within {timeout_seconds:g} s; raise [environment].build_timeout_sec or spec.timeouts.build"
        return failure(Reason.IMAGE_BUILD_TIMEOUT, text)
    if "ephemeral" in why or "emptyDir" in why:
        text = f"{at}: the build fills the disk ({why}); make the image smaller, or raise the operator's limit for builds"
        return failure(Reason.IMAGE_BUILD_FAILED, text)
    staged = states.get(CONTEXT, {}).get("terminated")
    if staged is not None and staged.get("exitCode"):
        reason = _STAGE.get(staged["exitCode"], Reason.RUNNER_CRASHED)
        said = stage_message(staged.get("message") or "no message")
        judgement = failure(reason, said if reason is Reason.IMAGE_BUILD_FAILED else f"the build context could not be prepared: {said}")
        return Passing(judgement) if reason in _PASSING_STAGE else judgement
    if built is None or status.get("reason"):
        return Passing(failure(Reason.POD_DELETED, f"the build's Pod ended early: {why or 'without a reason'}"))
    if built.get("reason") == "OOMKilled":
        return failure(Reason.IMAGE_BUILD_FAILED, f"{at}: the build was killed for memory; build with less, or raise the limit")
    judgement = failure(Reason.IMAGE_BUILD_FAILED, f"{at}: {fault.message}")
    return Passing(judgement) if fault.is_passing else judgement


def is_lost(body: Mapping[str, Any], *, now: datetime) -> bool:
    """Whether the node of a build's Pod has not ended it although it had to: nobody will, and nothing may wait for it.

    As with trials (``core.trial.lost_at``), and beyond them by the Pod's own deadline, which only its kubelet can keep.
    """
    pod = parse_pod(body)
    ends = [lost_at(pod, _LIMITS)]
    started = parse_time((body.get("status") or {}).get("startTime"))
    if started is not None and not pod.is_terminal:
        seconds = (body.get("spec") or {}).get("activeDeadlineSeconds")
        ends.append(started + timedelta(seconds=seconds + GRACE_SECONDS + _LIMITS.lost) if seconds else None)
    return any(end is not None and now >= end for end in ends)


def container_states(body: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """State by name of all containers of a Pod."""
    status = body.get("status") or {}
    items = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return {item["name"]: item.get("state") or {} for item in items}
