"""The operator on the local cluster: the chart with values that fit what ``up`` and ``images`` made."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from localcluster import shell
from localcluster.credentials import s3_credentials
from localcluster.imagespec import OPERATOR_IMAGE, RUNNER_IMAGE
from localcluster.provider import Endpoints, Provider
from localcluster.settings import S3_BUCKET, S3_REGION, ClusterError, Settings

RELEASE = "seatrial"
NAMESPACE = "seatrial-system"
CREDENTIALS_SECRET = "s3-credentials"


def install(settings: Settings, provider: Provider, *, namespaces: Sequence[str], extra: Sequence[str]) -> None:
    """Install or upgrade the chart, with the images as they are now, and wait until the operator is ready.

    Args:
        settings: of this cluster.
        provider: of this cluster; it must run.
        namespaces: where evaluations run; those of an earlier install stay, as long as they exist.
        extra: further values of the chart, ``KEY=VALUE`` as for ``helm --set``.

    Raises:
        ClusterError: the chart was refused or the operator did not become ready.
    """
    digests = dict(provider.give_images([OPERATOR_IMAGE, RUNNER_IMAGE]))
    endpoints = provider.endpoints()
    kubectl, helm = ([str(endpoints.tools / tool), f"--kubeconfig={settings.kubeconfig}"] for tool in ("kubectl", "helm"))
    existing = {item["metadata"]["name"] for item in json.loads(shell.run([*kubectl, "get", "namespaces", "--output=json"]))["items"]}
    wanted = sorted({*namespaces, *(_earlier_namespaces(helm) & existing)})
    credentials = s3_credentials(settings)
    objects: list[dict[str, Any]] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in (NAMESPACE, *wanted)]
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": CREDENTIALS_SECRET, "namespace": NAMESPACE},
        "stringData": {"accessKey": credentials.access_key, "secretKey": credentials.secret_key},
    }
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*objects, secret]})
    shell.run([*kubectl, "apply", "--server-side", "--force-conflicts", "--filename=-"], stdin=manifest)
    argv = [
        *helm,
        "upgrade",
        "--install",
        RELEASE,
        str(settings.checkout / "charts" / "seatrial"),
        f"--namespace={NAMESPACE}",
        "--values=-",
    ]
    argv += [f"--set={value}" for value in extra]
    shell.run([*argv, "--wait", "--timeout=180s"], stdin=json.dumps(chart_values(endpoints, namespaces=wanted, digests=digests)))


def chart_values(endpoints: Endpoints, *, namespaces: Iterable[str], digests: Mapping[str, str]) -> dict[str, Any]:
    """The chart's values for the local cluster.

    Args:
        endpoints: of the cluster's S3 server.
        namespaces: where evaluations run.
        digests: of the operator's and the runner's image by name.
    """
    operator, _, operator_tag = OPERATOR_IMAGE.rpartition(":")
    runner, _, runner_tag = RUNNER_IMAGE.rpartition(":")
    return {
        "image": {"repository": operator, "tag": operator_tag},
        "runnerImage": {"repository": runner, "tag": runner_tag},
        "namespaces": list(namespaces),
        "s3": {
            "endpoint": endpoints.s3_internal,
            "externalEndpoint": endpoints.s3_external,
            "bucket": S3_BUCKET,
            "region": S3_REGION,
            "existingSecret": CREDENTIALS_SECRET,
        },
        # The tag stays the same when an image is built again: the digests make the operator start anew.
        "operator": {
            "podAnnotations": {"seatrial.dev/operator-image": digests[OPERATOR_IMAGE], "seatrial.dev/runner-image": digests[RUNNER_IMAGE]}
        },
    }


def _earlier_namespaces(helm: Sequence[str]) -> set[str]:
    """Those of the release that is installed now; none without one."""
    try:
        values = json.loads(shell.run([*helm, "get", "values", RELEASE, f"--namespace={NAMESPACE}", "--output=json"]))
    except ClusterError:
        return set()
    return set((values or {}).get("namespaces") or [])
