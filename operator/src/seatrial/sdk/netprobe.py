"""Whether NetworkPolicies are enforced: a Pod with the label of a trial without a network says what it reaches.

Why a Pod: policies that no network plug-in enforces look like policies that work.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from seatrial.api.names import LABEL_NETWORK
from seatrial.errors import SeatrialError, Unavailable
from seatrial.sdk.cluster import Cluster

CONTAINER: Final = "probe"
PATIENCE_SECONDS: Final = 20
"""A policy takes a moment to reach the node of a new Pod."""
DEADLINE_SECONDS: Final = 90
SCRIPT: Final = f"""
import json, os, socket, time

def reaches(host, port):
    try:
        socket.create_connection((host, int(port)), 2).close()
    except OSError:
        return False
    return True

end = time.monotonic() + {PATIENCE_SECONDS}
while True:
    found = {{
        "store": reaches(os.environ["STORE_HOST"], os.environ["STORE_PORT"]),
        "cluster": reaches(os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]),
    }}
    if found == {{"store": True, "cluster": False}} or time.monotonic() > end:
        break
    time.sleep(1)
with open("/dev/termination-log", "w") as log:
    json.dump(found, log)
"""


class Reached(NamedTuple):
    """What a Pod without a network could connect to."""

    store: bool
    cluster: bool
    """The API server."""


def probe(cluster: Cluster, *, image: str, endpoint: str, sleep: Callable[[float], None] = time.sleep) -> Reached:
    """Start the Pod, wait for what it says, delete it.

    Args:
        image: of the runner.
        endpoint: URL of the object store as Pods reach it.

    Raises:
        Unavailable: the Pod did not run. Other SeatrialErrors: the API, or it refuses the Pod.
    """
    pods = f"/api/v1/namespaces/{quote(cluster.namespace)}/pods"
    wanted = build_pod(f"seatrial-doctor-{uuid.uuid4().hex[:8]}", image=image, endpoint=endpoint)
    path = f"{pods}/{wanted['metadata']['name']}"
    cluster.request("POST", pods, body=wanted)
    try:
        for _ in range(DEADLINE_SECONDS):
            status = cluster.request("GET", path).get("status", {})
            if status.get("phase") in ("Succeeded", "Failed"):
                return _read(status)
            sleep(1)
        raise Unavailable(f"the Pod that tries the network did not end within {DEADLINE_SECONDS} s{_waits(status)}")
    finally:
        cluster.request("DELETE", path, body={"gracePeriodSeconds": 0})


def build_pod(name: str, *, image: str, endpoint: str) -> dict[str, Any]:
    """Meets Pod Security *restricted*, and asks for next to nothing."""
    url = urlsplit(endpoint)
    port = url.port or (443 if url.scheme == "https" else 80)
    env = [{"name": "STORE_HOST", "value": url.hostname or ""}, {"name": "STORE_PORT", "value": str(port)}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {LABEL_NETWORK: "none"}},
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": DEADLINE_SECONDS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": CONTAINER,
                    "image": image,
                    "command": ["python3", "-c", SCRIPT],
                    "env": env,
                    "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "64Mi"}},
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }


def _read(status: dict[str, Any]) -> Reached:
    ends = [item.get("state", {}).get("terminated", {}) for item in status.get("containerStatuses", ())]
    try:
        found = json.loads(ends[0]["message"])
        return Reached(store=found["store"] is True, cluster=found["cluster"] is True)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise Unavailable(f"the Pod that tries the network said nothing{_waits(status)}") from error


def _waits(status: dict[str, Any]) -> str:
    states = [state for item in status.get("containerStatuses", ()) for state in item.get("state", {}).values()]
    reasons = sorted({state["reason"] for state in states if state.get("reason")} | {status.get("reason", "")} - {""})
    return f" ({', '.join(reasons)})" if reasons else ""


def verdict(namespace: str, endpoint: str, reached: Reached) -> str:
    """What the step of ``doctor`` says.

    Raises:
        SeatrialError: what is wrong, and what mends it.
    """
    if reached.cluster:
        raise SeatrialError(
            f"a Pod without a network reaches the API server from {namespace}: name the namespace in the chart's namespaces or "
            "networkPolicies.namespaces, and use a network plug-in that enforces NetworkPolicies"
        )
    if not reached.store:
        raise SeatrialError(f"a Pod without a network does not reach {endpoint} from {namespace}: set networkPolicies.s3.to and s3.port")
    return "a Pod without a network reaches the object store, and not the API server"
