"""The chart's NetworkPolicies in the real network: what a Pod reaches, by the label ``seatrial.dev/network``.

The internet has a stand-in, because tests do not talk to it: the node's kubelet, allowed by the value for further egress.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from .harness import REPOSITORY, Cluster, wait_until

pytestmark = pytest.mark.cluster

NAMESPACE = "network-policies"
IMAGE = "seatrial.local/runner:dev"
KUBELET_PORT = 10250

PROBE = """
import json, socket, sys, time

def reaches(host, port):
    try:
        socket.create_connection((host, port), 3).close()
    except OSError:
        return False
    return True

targets = json.loads(sys.argv[1])
# The rules of a new Pod are written a moment after its start.
end = time.monotonic() + 60
while reaches(*targets["api"]) and time.monotonic() < end:
    time.sleep(0.2)
print(json.dumps({name: reaches(*target) for name, target in targets.items()}))
"""


@pytest.fixture(scope="module")
def guarded(cluster: Cluster) -> Iterator[Cluster]:
    """A namespace with the three policies."""
    node = cluster.items("nodes")[0]["status"]["addresses"][0]["address"]
    outside = {"to": [{"ipBlock": {"cidr": f"{node}/32"}}], "ports": [{"protocol": "TCP", "port": KUBELET_PORT}]}
    values = {
        "s3": {"endpoint": cluster.env["s3"]["internalEndpoint"], "bucket": cluster.env["s3"]["bucket"], "existingSecret": "none"},
        "networkPolicies": {"namespaces": [NAMESPACE], "publicEgress": [outside]},
    }
    chart = ("template", "seatrial", str(REPOSITORY / "charts/seatrial"), "--show-only", "templates/network/policies.yaml", "--values", "-")
    policies = cluster.run(cluster.env["helm"], *chart, given=yaml.safe_dump(values)).out
    cluster.kubectl("create", "namespace", NAMESPACE)
    cluster.kubectl("apply", "-f", "-", given=policies)
    yield cluster
    cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=90s")


def probe(cluster: Cluster, network: str) -> dict[str, bool]:
    """What a Pod with this label reaches."""
    s3_host, _, s3_port = cluster.env["s3"]["internalEndpoint"].removeprefix("http://").partition(":")
    targets = {
        "s3": (s3_host, int(s3_port)),
        "api": ("kubernetes.default.svc.cluster.local", 443),
        "metadata": ("169.254.169.254", 80),
        "outside": (cluster.items("nodes")[0]["status"]["addresses"][0]["address"], KUBELET_PORT),
    }
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": network, "namespace": NAMESPACE, "labels": {"seatrial.dev/network": network}},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "probe",
                    "image": IMAGE,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python3", "-c", PROBE, json.dumps(targets)],
                }
            ],
        },
    }
    cluster.apply(pod)
    phase = wait_until(
        lambda: cluster.get("pod", network, "-n", NAMESPACE)["status"]["phase"],
        lambda seen: seen in ("Succeeded", "Failed"),
        timeout=120,
        what=f"end of the Pod {network}",
    )
    log = cluster.kubectl("logs", network, "-n", NAMESPACE)
    assert phase == "Succeeded", log
    found: dict[str, bool] = json.loads(log)
    return found


@pytest.mark.conforms("H-52", "H-62")
@pytest.mark.parametrize(("network", "outside"), [("public", True), ("none", False), ("verify", True)])
def test_a_pod_reaches_the_store_and_with_network_the_world_but_never_the_cluster(guarded: Cluster, network: str, outside: bool) -> None:
    assert probe(guarded, network) == {"s3": True, "api": False, "metadata": False, "outside": outside}
