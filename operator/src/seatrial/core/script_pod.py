"""The Pod that runs one ``metric.py``: fetch, run, sign, one container after the other.

It meets Pod Security *restricted*. The script's container has no URL, no key and no token; the NetworkPolicy ``none`` leaves the Pod the
object store alone, and a filter inside leaves the script no socket at all.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from seatrial import contract
from seatrial.api.evaljob import EvalJobSpec
from seatrial.api.names import LABEL_JOB, LABEL_JOB_NAME, LABEL_NETWORK, LABEL_RETRY, LABEL_ROLE, LABEL_SCRIPT, ROLE_SCORE
from seatrial.contract import ScriptInput
from seatrial.core.frozen import FrozenPlan
from seatrial.core.manifests import (
    GRACE_SECONDS,
    SIGNING_KEY,
    STAGE_SECONDS,
    UPLOAD_SECONDS,
    PodSettings,
    ca_volumes,
    mount,
    owner_reference,
    placement,
    runner_container,
)
from seatrial.core.naming import label_value, script_pod_name
from seatrial.core.scripts import ScriptRun
from seatrial.core.trial_input import escape

MEMORY_MIB: Final = 2048
"""Address space of each process of a script; more is a MemoryError of the script."""
_LIMIT_MIB: Final = MEMORY_MIB + 256
"""Of its container: what several processes may use together."""
# ``script`` has the rewards, the script's archive and what that holds, each at its largest, for a moment all three.
_VOLUMES: Final = {"script": "1152Mi", "out": "1Mi", "tmp-script": "256Mi", "tmp-runner": "16Mi"}


class ScriptUrls(NamedTuple):
    """Presigned, of one run."""

    script: str
    rewards: str
    result: str


def script_seconds(spec: EvalJobSpec, settings: PodSettings) -> int:
    """Deadline of the Pod, the backstop behind the script's own limit."""
    return spec.scoring.script_timeout.seconds + settings.pull_seconds + STAGE_SECONDS + UPLOAD_SECONDS


def build_script_pod(
    plan: FrozenPlan, spec: EvalJobSpec, run: ScriptRun, *, urls: ScriptUrls, rewards_sha256: str, secret: str, settings: PodSettings
) -> dict[str, Any]:
    """The whole Pod.

    Args:
        rewards_sha256: of what the script reads.
        secret: name of the job's Secret with the signing key.
    """
    script = plan.scripts[run.script]
    given = ScriptInput(
        job_uid=plan.uid,
        script=run.script,
        retry=run.retry,
        script_sha256=script.sha256,
        rewards_sha256=rewards_sha256,
        seconds=float(spec.scoring.script_timeout.seconds),
        memory_bytes=MEMORY_MIB * 1024**2,
    )
    told = {"name": contract.VAR_INPUT, "value": escape(json.dumps(given, sort_keys=True))}
    fetch = runner_container(
        contract.FETCH,
        contract.VERIFIER_UID,
        settings,
        env=[
            told,
            {"name": contract.VAR_SCRIPT_URL, "value": escape(urls.script)},
            {"name": contract.VAR_REWARDS_URL, "value": escape(urls.rewards)},
        ],
        mounts=[mount("script", contract.SCRIPT_DIR)],
        tmp="tmp-runner",
    )
    runs = runner_container(
        contract.SCRIPT,
        contract.AGENT_UID,
        settings,
        env=[told],
        mounts=[mount("script", contract.SCRIPT_DIR, read_only=True), mount("out", contract.SCRIPT_OUT_DIR)],
        tmp="tmp-script",
    )
    runs["resources"]["limits"]["memory"] = f"{_LIMIT_MIB}Mi"
    score = runner_container(
        contract.SCORE,
        contract.VERIFIER_UID,
        settings,
        env=[
            told,
            {"name": contract.VAR_RESULT_URL, "value": escape(urls.result)},
            {"name": contract.VAR_SIGNING_KEY, "valueFrom": {"secretKeyRef": {"name": secret, "key": SIGNING_KEY}}},
        ],
        mounts=[mount("out", contract.SCRIPT_OUT_DIR, read_only=True)],
        tmp="tmp-runner",
    )
    volumes: list[dict[str, Any]] = [{"name": name, "emptyDir": {"sizeLimit": size}} for name, size in _VOLUMES.items()]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": script_pod_name(plan.job, plan.uid, run.script, run.retry),
            "namespace": plan.namespace,
            "labels": {
                **spec.pod.labels,
                LABEL_ROLE: ROLE_SCORE,
                LABEL_JOB: plan.uid,
                LABEL_JOB_NAME: label_value(plan.job),
                LABEL_SCRIPT: str(run.script),
                LABEL_RETRY: str(run.retry),
                LABEL_NETWORK: "none",
            },
            "annotations": dict(spec.pod.annotations),
            "ownerReferences": [owner_reference(plan.job, plan.uid)],
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": script_seconds(spec, settings),
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            **placement(spec),
            "initContainers": [fetch, runs],
            "containers": [score],
            "volumes": [*volumes, *ca_volumes(settings)],
        },
    }
