"""A thousand trials on a real API server, and the operator killed three times on the way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..e2e.harness import wait_until
from .handover import final, first_decision
from .load import NAMESPACE, Load
from .operator_process import OperatorProcess
from .plane import Plane, wait_for
from .stages import Shares

pytestmark = pytest.mark.cluster
TRIALS = 1000
TASKS = 10
KILL_AT = (150, 450, 750)
"""Final trials at which the operator dies."""
SAME_REPLICA = {"IDENTITY": "replica"}
"""Each process is the same replica, which need not wait for its own Lease; that wait is a test of the hand-over."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with Plane(tmp_path_factory.mktemp("plane"), shares=Shares(busy_ms=1000, jitter_ms=2000)) as made:
        yield made


@pytest.mark.conforms("H-147", "H-151")
def test_a_thousand_trials_with_three_kills_of_the_operator_end_once_each(plane: Plane) -> None:
    load, operator = Load(plane), OperatorProcess(plane, settings=SAME_REPLICA)
    load.namespace()
    operator.start()
    operator.ready()
    load.publish(TASKS)
    wait_for("verified Tasks", load.verified, seconds=120)
    load.submit("thousand", tasks=TASKS, attempts=TRIALS // TASKS, concurrency=200)
    for number, count in enumerate(KILL_AT):
        wait_for(f"{count} final trials", final(load, "thousand", count), seconds=300)
        operator.kill()
        killed = time.time()
        operator = OperatorProcess(plane, name=f"operator-{number + 1}", settings=SAME_REPLICA)
        operator.start()
        operator.ready()
        first_decision(operator, killed)
    watched = load.watch(operator, lambda: load.ended(["thousand"]), seconds=400)
    outcomes = load.check(["thousand"], trials=TRIALS)
    assert outcomes["scored"] + outcomes["errored"] == TRIALS
    assert outcomes["retried"] > 0, "the stages lose some Pods"
    # Evictions, lost Pods and killed containers are retried; nothing else of them is an error.
    assert {row["error"]["type"] for row in load.results("thousand") if row["outcome"] == "errored"} <= {"RewardFileNotFoundError"}
    single = watched.last.by("seatrial_api_requests_total", "verb", "resource").get("GET pods", 0)
    pages = 1 + TRIALS // 500
    assert single <= pages + 16, f"{single} GETs of Pods after a restart: a LIST has {pages} pages, and a create under way may be asked for"
    secrets = plane.api("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets")["items"]
    assert [secret["metadata"]["ownerReferences"][0]["name"] for secret in secrets] == ["thousand"]
    assert operator.stop() == 0


def test_a_deleted_job_leaves_nothing(plane: Plane) -> None:
    load, operator = Load(plane), OperatorProcess(plane, name="operator-last", settings=SAME_REPLICA)
    operator.start()
    operator.ready()
    load.names = [f"task-{number:05d}" for number in range(TASKS)]
    load.submit("deleted", tasks=TASKS, attempts=5, concurrency=50)
    wait_for("Pods", lambda: len(load.pods()) >= 20, seconds=60)
    plane.api("DELETE", f"/apis/seatrial.dev/v1alpha1/namespaces/{NAMESPACE}/evaljobs/deleted")

    def left() -> list[tuple[str, str, str]]:
        """Name, phase and time of deletion."""
        secrets = plane.api("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets")["items"]
        owned = [item for item in (*load.pods(), *secrets) if item["metadata"]["ownerReferences"][0]["name"] == "deleted"]
        return [
            (item["metadata"]["name"], item.get("status", {}).get("phase", ""), item["metadata"].get("deletionTimestamp", ""))
            for item in owned
        ]

    wait_until(left, lambda seen: not seen, timeout=120, what="end of Pods and Secret", every=1.0)
    assert operator.stop() == 0


def test_the_logs_of_the_components_hold_no_key(plane: Plane) -> None:
    assert plane.secret_key
    for log in sorted(Path(plane.folder).glob("operator*.log")):
        assert plane.secret_key not in log.read_text(errors="replace"), log.name
