"""Twenty oracle trials, eight at a time: an EvalJob beside a bare Indexed Job with the same Pods.

The baseline runs the Pod that the operator itself made: same images, commands and volumes. Its result URLs are made beforehand, because
an Indexed Job has one template; a line of shell picks the URL of its index.
"""

from __future__ import annotations

import copy
import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from seatrial.effects.store import Store, StoreSettings

from ..e2e.harness import SYSTEM, Cluster, evaljob, unique, wait_until, write_task
from .record import Figure, figure

NAMESPACE = "bench"
TRIALS = 20
CONCURRENCY = 8
ROUNDS = 3
LIMIT_SECONDS = 900
COMMAND = "make bench"
_PICK = (
    "for name in SEATRIAL_LOGS_URL SEATRIAL_RESULT_URL; do "
    """export $name="$(printf '%s\\n' "${!name}" | sed -n "$((JOB_COMPLETION_INDEX + 1))p")"; done"""
)
IMAGE = "seatrial.local/smoke/hello-pass:dev"


def measure(cluster: Cluster, folder: Path) -> list[Figure]:
    """Rounds of job and baseline in turn; medians of both."""
    cluster.run("python3", "tests/cluster", "install", "--namespace", NAMESPACE, timeout=300)
    write_task(folder, "noop", image=IMAGE)
    cluster.seatrial("publish", str(folder), "--taskset", "bench", "--namespace", NAMESPACE)
    ours, bare, requests = [], [], []
    for _ in range(ROUNDS):
        run = Run(cluster, unique("bench"), namespace=NAMESPACE, taskset="bench", trials=TRIALS, concurrency=CONCURRENCY)
        begun = datetime.now().astimezone()
        ours.append(run.evaljob())
        requests.append(_requests(cluster, begun) / TRIALS)
        bare.append(run.indexed_job())
        cluster.kubectl("delete", "evaljob", run.name, "-n", NAMESPACE)
    note = f"{TRIALS} trials, {CONCURRENCY} at a time, median of {ROUNDS} rounds; rounds: {_shown(ours)} against {_shown(bare)}"
    return [
        figure("evaljob wall time", statistics.median(ours), "s", baseline=statistics.median(bare), command=COMMAND, note=note),
        figure(
            "API requests of the operator on pods and evaljobs",
            statistics.median(requests),
            "requests/trial",
            command=COMMAND,
            note="from the API server's audit log",
        ),
    ]


def _shown(seconds: list[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in seconds)


@dataclass
class Run:
    """One EvalJob, and the bare Job with the same Pods."""

    cluster: Cluster
    name: str
    namespace: str
    taskset: str
    """Of one task."""
    trials: int
    concurrency: int
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the EvalJob."""
    _pod: dict[str, Any] = field(default_factory=dict)

    def evaljob(self) -> float:
        """Wall seconds from apply to Finished; its Pods are gone afterwards.

        Raises:
            RuntimeError: a trial has no score.
        """
        cluster, namespace, name = self.cluster, self.namespace, self.name
        start = time.monotonic()
        cluster.apply(evaljob(name, namespace, taskset=self.taskset, attempts=self.trials, concurrency=self.concurrency, **self.spec))
        self._pod = wait_until(lambda: cluster.trial_pods(namespace, name), bool, timeout=60, what="the first Pod", every=0.1)[0]
        self._wait("Finished", f"evaljob/{name}")
        seconds = time.monotonic() - start
        counts = cluster.job(name, namespace)["status"]["trials"]
        if counts["scored"] != self.trials:
            raise RuntimeError(f"the benchmark's job ended with {counts}")
        wait_until(lambda: cluster.trial_pods(namespace, name), lambda pods: not pods, timeout=120, what="end of the Pods")
        return seconds

    def indexed_job(self) -> float:
        """Wall seconds of a bare Job with a Pod of the EvalJob, which has run; its Pods are gone afterwards."""
        cluster, namespace, name = self.cluster, self.namespace, f"bare-{self.name}"
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "completionMode": "Indexed",
                "completions": self.trials,
                "parallelism": self.concurrency,
                "backoffLimit": 0,
                "template": {
                    "metadata": {"labels": {"seatrial.dev/network": "public"}},
                    "spec": _template(cluster, self.name, self._pod["spec"], trials=self.trials),
                },
            },
        }
        start = time.monotonic()
        cluster.apply(job)
        self._wait("Complete", f"job/{name}")
        seconds = time.monotonic() - start
        cluster.kubectl("delete", "job", name, "-n", namespace)
        pods = ("pods", "-n", namespace, "-l", f"job-name={name}")
        wait_until(lambda: cluster.items(*pods), lambda left: not left, timeout=120, what="end of the bare Pods")
        return seconds

    def _wait(self, condition: str, item: str) -> None:
        command = ("wait", f"--for=condition={condition}", item, "-n", self.namespace, f"--timeout={LIMIT_SECONDS}s")
        self.cluster.kubectl(*command, timeout=LIMIT_SECONDS + 10)


def _requests(cluster: Cluster, since: datetime) -> int:
    """Requests of the operator on pods and evaljobs since then, watches and lists included."""
    count = 0
    for line in Path(cluster.env["auditLog"]).read_text().splitlines():
        event = json.loads(line)
        if event["stage"] != "ResponseComplete" or datetime.fromisoformat(event["requestReceivedTimestamp"]) < since:
            continue
        reference = event.get("objectRef", {})
        if event["user"]["username"].startswith(f"system:serviceaccount:{SYSTEM}:") and reference.get("resource") in ("pods", "evaljobs"):
            count += 1
    return count


def _template(cluster: Cluster, name: str, source: Mapping[str, Any], *, trials: int) -> dict[str, Any]:
    """The spec of a Pod that ran, for any index of a Job."""
    spec = copy.deepcopy(dict(source))
    for key in ("nodeName", "priority", "preemptionPolicy", "serviceAccount", "serviceAccountName", "schedulerName"):
        spec.pop(key, None)
    keys = json.loads(Path(cluster.env["s3"]["credentialsFile"]).read_text())
    store = Store(
        StoreSettings(
            endpoint=cluster.env["s3"]["externalEndpoint"],
            presign_endpoint=cluster.env["s3"]["internalEndpoint"],
            bucket=cluster.env["s3"]["bucket"],
            region=cluster.env["s3"]["region"],
            access_key=keys["accessKey"],
            secret_key=keys["secretKey"],
        )
    )
    verifier = next(one for one in spec["containers"] if one["name"] == "verifier")
    for variable, file in (("SEATRIAL_LOGS_URL", "logs.tar.gz"), ("SEATRIAL_RESULT_URL", "result.json")):
        urls = [store.presign_put(f"bench/{name}/{index}/{file}", expires_seconds=3600) for index in range(trials)]
        entry = next(one for one in verifier["env"] if one["name"] == variable)
        entry["value"] = "\n".join(urls)
    verifier["command"] = ["bash", "-c", f'{_PICK}; exec seatrial-runner "$@"', "bash"]
    return spec
