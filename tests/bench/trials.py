"""Twenty oracle trials, eight at a time: an EvalJob beside a bare Indexed Job with the same Pods.

The baseline runs the Pod that the operator itself made: same images, commands and volumes. Its result URLs are made beforehand, because
an Indexed Job has one template; a line of shell picks the URL of its index.
"""

from __future__ import annotations

import copy
import json
import statistics
import time
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
        name = unique("bench")
        seconds, pod, per_trial = _evaljob(cluster, name)
        ours.append(seconds)
        requests.append(per_trial)
        bare.append(_indexed_job(cluster, name, pod))
        cluster.kubectl("delete", "evaljob", name, "-n", NAMESPACE)
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


def _evaljob(cluster: Cluster, name: str) -> tuple[float, dict[str, Any], float]:
    """(wall seconds, one of its Pods, API requests a trial)."""
    begun = datetime.now().astimezone()
    start = time.monotonic()
    cluster.apply(evaljob(name, NAMESPACE, taskset="bench", attempts=TRIALS, concurrency=CONCURRENCY))
    pod = wait_until(lambda: cluster.trial_pods(NAMESPACE, name), bool, timeout=60, what="the first Pod", every=0.1)[0]
    cluster.kubectl("wait", "--for=condition=Finished", f"evaljob/{name}", "-n", NAMESPACE, "--timeout=300s", timeout=310)
    seconds = time.monotonic() - start
    status = cluster.job(name, NAMESPACE)["status"]
    if status["trials"]["scored"] != TRIALS:
        raise RuntimeError(f"the benchmark's job ended with {status['trials']}")
    wait_until(lambda: cluster.trial_pods(NAMESPACE, name), lambda pods: not pods, timeout=120, what="end of the Pods")
    return seconds, pod, _requests(cluster, begun) / TRIALS


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


def _indexed_job(cluster: Cluster, name: str, pod: dict[str, Any]) -> float:
    """Wall seconds of a bare Job with the Pod of job ``name``."""
    spec = _template(cluster, name, pod["spec"])
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"bare-{name}", "namespace": NAMESPACE},
        "spec": {
            "completionMode": "Indexed",
            "completions": TRIALS,
            "parallelism": CONCURRENCY,
            "backoffLimit": 0,
            "template": {"metadata": {"labels": {"seatrial.dev/network": "public"}}, "spec": spec},
        },
    }
    start = time.monotonic()
    cluster.apply(job)
    cluster.kubectl("wait", "--for=condition=Complete", f"job/bare-{name}", "-n", NAMESPACE, "--timeout=300s", timeout=310)
    seconds = time.monotonic() - start
    cluster.kubectl("delete", "job", f"bare-{name}", "-n", NAMESPACE)
    wait_until(
        lambda: cluster.items("pods", "-n", NAMESPACE, "-l", f"job-name=bare-{name}"),
        lambda pods: not pods,
        timeout=120,
        what="end of the bare Pods",
    )
    return seconds


def _template(cluster: Cluster, name: str, source: dict[str, Any]) -> dict[str, Any]:
    spec = copy.deepcopy(source)
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
        urls = [store.presign_put(f"bench/{name}/{index}/{file}", expires_seconds=3600) for index in range(TRIALS)]
        entry = next(one for one in verifier["env"] if one["name"] == variable)
        entry["value"] = "\n".join(urls)
    verifier["command"] = ["bash", "-c", f'{_PICK}; exec seatrial-runner "$@"', "bash"]
    return spec
