"""The Pod that builds a task's image, and what its end means.

It meets Pod Security *baseline*: uid 0 with the runtime's default capabilities and seccomp profile, no privilege, no host path. An init
container of ours fetches the verified archive and leaves the build context on a volume; kaniko's executor builds and pushes. The Pod holds
no secret but the push credentials where there are any, and no right to the cluster. Facts: ``spec/scale-and-builds.md``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from seatrial import contract
from seatrial.api.names import GROUP, LABEL_JOB, LABEL_JOB_NAME, LABEL_ROLE, LABEL_TASK, ROLE_BUILD
from seatrial.api.reasons import Reason
from seatrial.contract import StageExit
from seatrial.core.frozen import FrozenPlan, PlannedTask
from seatrial.core.manifests import STAGE_SECONDS, PodSettings, owner_reference
from seatrial.core.naming import label_value
from seatrial.core.trial import Judgement, failure, stage_message
from seatrial.core.trial_input import escape
from seatrial.taskpkg.buildlog import explain

LABEL_BUILD: Final = f"{GROUP}/build"
"""Key of the image."""
CONTEXT: Final = "context"
BUILD: Final = "build"
CONTEXT_DIR: Final = "/seatrial/context"
_DIGEST: Final = re.compile(r"\s*(sha256:[0-9a-f]{64})\s*")
_MARGIN_SECONDS: Final = 120


class BuildSettings(NamedTuple):
    """What the operator's configuration says about builds; quantities as Kubernetes writes them."""

    repository: str
    """Where images are pushed and pulled, ``host/name``; empty: the cluster does not build."""
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


class Pushed(NamedTuple):
    """The build succeeded."""

    digest: str


class Passing(NamedTuple):
    """It failed for a reason outside the task: worth another try."""

    judgement: Judgement


def build_pod_name(key: str) -> str:
    """One name per key, so that a second create of the same build meets the first."""
    return f"seatrial-build-{key}"


def build_pod(
    plan: FrozenPlan,
    task: PlannedTask,
    *,
    key: str,
    archive_url: str,
    timeout_seconds: float | None,
    settings: BuildSettings,
    pods: PodSettings,
    pull_secrets: Sequence[str] = (),
) -> dict[str, Any]:
    """The whole Pod. It belongs to the job that needed the image first and goes with it.

    Args:
        key: of the image, the tag that is pushed.
        archive_url: presigned, of the task's archive.
        timeout_seconds: for the build; None: as long as a trial may run.
    """
    deadline = int(timeout_seconds) + STAGE_SECONDS + _MARGIN_SECONDS if timeout_seconds is not None else pods.unlimited_seconds
    stage = ("tmp-context", "/tmp")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": build_pod_name(key),
            "namespace": plan.namespace,
            "labels": {
                LABEL_ROLE: ROLE_BUILD,
                LABEL_JOB: plan.uid,
                LABEL_JOB_NAME: label_value(plan.job),
                LABEL_TASK: label_value(task.id),
                LABEL_BUILD: key,
            },
            "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
            "ownerReferences": [owner_reference(plan.job, plan.uid)],
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": deadline,
            "terminationGracePeriodSeconds": 5,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
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
            "containers": [_executor(key, settings, pods)],
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


_DOCKER_CONFIG: Final = {"key": ".dockerconfigjson", "path": "config.json"}


def _executor(key: str, settings: BuildSettings, pods: PodSettings) -> dict[str, Any]:
    insecure = ["--insecure", "--insecure-pull", "--skip-tls-verify", "--skip-tls-verify-pull"] if settings.insecure else []
    return {
        "name": BUILD,
        "image": settings.executor_image,
        "imagePullPolicy": pods.runner_pull_policy,
        "args": [
            f"--context=dir://{CONTEXT_DIR}/environment",
            f"--dockerfile={CONTEXT_DIR}/Dockerfile",
            f"--destination={settings.repository}:{key}",
            # The digest is the message of a build that succeeded; a failed one leaves the end of its log there.
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
            "limits": {"memory": settings.memory_limit, "ephemeral-storage": settings.storage_limit},
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
    body: Mapping[str, Any], *, dockerfile: str = "", timeout_seconds: float | None = None
) -> Pushed | Passing | Judgement | None:
    """What a build's Pod says; None while it goes on.

    Args:
        body: the Pod as the API gives it.
        dockerfile: its text, to name the failing line; empty where it is not known.
        timeout_seconds: the task's own limit; the build's container may run no longer.
    """
    status = body.get("status") or {}
    states = {
        item.get("name"): item.get("state") or {}
        for item in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    }
    built = states.get(BUILD, {}).get("terminated")
    if built is not None and built.get("exitCode") == 0 and (digest := _DIGEST.fullmatch(built.get("message") or "")):
        return Pushed(digest[1])
    if status.get("phase") not in ("Failed", "Succeeded"):
        return None
    why = f"{status.get('reason', '')} {status.get('message', '')}"
    if status.get("reason") == "DeadlineExceeded":
        text = f"the image was not built within {timeout_seconds:g} s" if timeout_seconds else "the image was not built in time"
        return failure(Reason.IMAGE_BUILD_TIMEOUT, f"{text}; raise [environment].build_timeout_sec or spec.timeouts.build")
    if "ephemeral" in why or "emptyDir" in why:
        text = f"environment/Dockerfile: the build fills the disk ({' '.join(why.split())[:200]}); make the image smaller"
        return failure(Reason.IMAGE_BUILD_FAILED, f"{text}, or raise the operator's limit for builds")
    staged = states.get(CONTEXT, {}).get("terminated")
    if staged is not None and staged.get("exitCode"):
        reason = _STAGE.get(staged["exitCode"], Reason.RUNNER_CRASHED)
        said = stage_message(staged.get("message") or "no message")
        judgement = failure(reason, said if reason is Reason.IMAGE_BUILD_FAILED else f"the build context could not be prepared: {said}")
        return Passing(judgement) if reason in _PASSING_STAGE else judgement
    if built is None or status.get("reason"):
        return Passing(failure(Reason.POD_DELETED, f"the build's Pod ended early: {' '.join(why.split())[:300] or 'without a reason'}"))
    if built.get("reason") == "OOMKilled":
        return failure(
            Reason.IMAGE_BUILD_FAILED, "environment/Dockerfile: the build was killed for memory; build with less, or raise the limit"
        )
    fault = explain(dockerfile, built.get("message") or "")
    judgement = failure(Reason.IMAGE_BUILD_FAILED, f"environment/{fault}" if fault.line else f"environment/Dockerfile: {fault}")
    return Passing(judgement) if fault.is_passing else judgement
