"""A second release of the chart beside the one that the other tests share: installed, upgraded and removed at will.

It watches a namespace of its own, and leaves the CRDs to the first release.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .harness import REPOSITORY, SYSTEM, Cluster, Result, wait_until

CHART = REPOSITORY / "charts" / "seatrial"
NAME = "ops"
NAMESPACE = "ops"
TRIALS = "ops-trials"
DEPLOYMENT = "ops-seatrial"
PODS = "app.kubernetes.io/instance=ops,app.kubernetes.io/component=operator"
S3_SECRET = "s3-credentials"


@contextlib.contextmanager
def alone(cluster: Cluster, what: str) -> Iterator[None]:
    """One test session at a time uses namespaces of fixed names; a second one waits."""
    with Path(cluster.env["stateDir"], f"{what}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class Release:
    """The release ``ops`` in the namespace ``ops``, for trials in ``ops-trials``."""

    cluster: Cluster

    def helm(self, *arguments: str, given: str | None = None, check: bool = True) -> Result:
        return self.cluster.run(self.cluster.env["helm"], *arguments, given=given, check=check, timeout=400)

    def values(self, **changes: Any) -> dict[str, Any]:
        """What ``tests/cluster install`` gave the first release, with another scope; ``changes`` replace top-level values."""
        first = self.helm("get", "values", "seatrial", "--namespace", SYSTEM, "--output", "json").json()
        return {
            **first,
            "crds": {"install": False},
            "namespaces": [TRIALS],
            "operator": {**first.get("operator", {}), "replicas": 1},
            **changes,
        }

    def namespaces(self) -> None:
        """Both namespaces, with the Pod Security levels that the documentation asks for, and the Secret of the object store."""
        keys = json.loads(Path(self.cluster.env["s3"]["credentialsFile"]).read_text())
        self.cluster.apply(
            namespace(NAMESPACE, enforce="restricted"),
            namespace(TRIALS, enforce="baseline"),
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": S3_SECRET, "namespace": NAMESPACE},
                "stringData": {"accessKey": keys["accessKey"], "secretKey": keys["secretKey"]},
            },
        )

    def install(self, values: Mapping[str, Any], *, chart: str | Path = CHART, wait: bool = True) -> Result:
        """Install or upgrade, and wait until the operator is ready."""
        self.namespaces()
        arguments = ["upgrade", "--install", NAME, str(chart), "--namespace", NAMESPACE, "--values", "-"]
        return self.helm(*arguments, *(("--wait", "--timeout", "180s") if wait else ()), given=json.dumps(values))

    def ready(self) -> None:
        """Wait until the newest ReplicaSet serves and one replica leads."""
        self.cluster.kubectl("rollout", "status", f"deployment/{DEPLOYMENT}", "--namespace", NAMESPACE, "--timeout=120s")
        wait_until(self.leaders, lambda found: len(found) == 1, timeout=90, what="leader of the release ops")

    def leaders(self) -> list[str]:
        """Pods that answer ``/readyz``: the one that leads and has synced."""
        return [pod for pod in self.pods() if self.ask(pod, "readyz", check=False).code == 0]

    def pods(self) -> list[str]:
        """Names of the operator's Pods that do not end."""
        found = self.cluster.items("pods", "--namespace", NAMESPACE, "--selector", PODS)
        return sorted(pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"])

    def ask(self, pod: str, path: str, *, check: bool = True) -> Result:
        """GET of the operator's own server, through the API server."""
        raw = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:8080/proxy/{path}"
        return self.cluster.run(self.cluster.env["kubectl"], "get", "--raw", raw, check=check, timeout=30)

    def seatrial(self, *arguments: str, check: bool = True) -> Result:
        """The CLI, told where this release is."""
        return self.cluster.run("env", f"SEATRIAL_OPERATOR_NAMESPACE={NAMESPACE}", "seatrial", *arguments, check=check, timeout=600)

    def audit(self) -> list[dict[str, Any]]:
        """What the API server's audit log says of the operator's ServiceAccount, the oldest first."""
        who = f'"system:serviceaccount:{NAMESPACE}:{DEPLOYMENT}"'
        with Path(self.cluster.env["auditLog"]).open() as lines:
            found = [json.loads(line) for line in lines if who in line]
        return [event for event in found if event["user"]["username"] == who.strip('"')]

    def uninstall(self, *, check: bool = True) -> Result:
        return self.helm("uninstall", NAME, "--namespace", NAMESPACE, "--wait", check=check)

    def remove(self) -> None:
        """Everything, namespaces included."""
        self.uninstall(check=False)
        self.cluster.kubectl("delete", "namespace", TRIALS, NAMESPACE, "--ignore-not-found", timeout=180)


def namespace(name: str, *, enforce: str) -> dict[str, Any]:
    labels = {"pod-security.kubernetes.io/enforce": enforce, "pod-security.kubernetes.io/enforce-version": "latest"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
