"""The Pod that tries the network; on a real cluster it is in tests/e2e/test_doctor.py."""

from __future__ import annotations

from typing import Any

import pytest

from seatrial.errors import SeatrialError, Unavailable
from seatrial.sdk.netprobe import DEADLINE_SECONDS, Reached, build_pod, probe, verdict

STORE = "http://minio.minio.svc:9000"


class Played:
    """A namespace in which a Pod goes through ``statuses``, and stays at the last one."""

    namespace = "evals"

    def __init__(self, *statuses: dict[str, Any]) -> None:
        self.statuses = list(statuses)
        self.asked: list[tuple[str, str]] = []

    def request(self, method: str, path: str, *, body: Any = None) -> dict[str, Any]:
        self.asked.append((method, path.rpartition("/")[2].partition("-")[0]))
        return {"status": self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]} if method == "GET" else {}


def ended(message: str) -> dict[str, Any]:
    return {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {"exitCode": 0, "message": message}}}]}


def run(*statuses: dict[str, Any]) -> tuple[Reached, Played]:
    cluster: Any = Played(*statuses)
    return probe(cluster, image="runner:1", endpoint=STORE, sleep=lambda seconds: None), cluster


def test_the_pod_says_what_it_reaches_and_is_deleted() -> None:
    found, cluster = run({"phase": "Pending"}, {"phase": "Running"}, ended('{"store": true, "cluster": false}'))
    assert found == Reached(store=True, cluster=False)
    assert cluster.asked == [("POST", "pods"), *[("GET", "seatrial")] * 3, ("DELETE", "seatrial")]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}, "ImagePullBackOff"),
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, "said nothing (DeadlineExceeded)"),
        (ended("[1]"), "said nothing"),
        (ended("not JSON"), "said nothing"),
    ],
    ids=["no image", "ended by the deadline", "another shape", "another text"],
)
def test_a_pod_that_says_nothing_is_named_and_deleted(status: dict[str, Any], said: str) -> None:
    cluster: Any = Played(status)
    with pytest.raises(Unavailable) as refused:
        probe(cluster, image="runner:1", endpoint=STORE, sleep=lambda seconds: None)
    assert said in str(refused.value)
    assert cluster.asked[-1] == ("DELETE", "seatrial")
    assert len(cluster.asked) <= DEADLINE_SECONDS + 2


def test_the_pod_is_one_without_a_network_and_knows_the_store() -> None:
    pod = build_pod("p", image="runner:1", endpoint="https://s3.example.com")
    (container,) = pod["spec"]["containers"]
    assert pod["metadata"]["labels"] == {"seatrial.dev/network": "none"}
    assert {item["name"]: item["value"] for item in container["env"]} == {"STORE_HOST": "s3.example.com", "STORE_PORT": "443"}


@pytest.mark.parametrize(
    ("reached", "mended_by"),
    [(Reached(store=True, cluster=True), "enforces NetworkPolicies"), (Reached(store=False, cluster=False), "networkPolicies.s3.to")],
    ids=["not enforced", "too much"],
)
def test_each_fault_names_what_mends_it(reached: Reached, mended_by: str) -> None:
    with pytest.raises(SeatrialError, match=mended_by):
        verdict("evals", STORE, reached)
    assert verdict("evals", STORE, Reached(store=True, cluster=False)).startswith("a Pod without a network reaches")
