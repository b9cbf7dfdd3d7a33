"""Wall time of the same oracle trials under seatrial and under Harbor's ``ack``, in turn: ``python -m tests.parity.speed``."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e.harness import REPOSITORY, Cluster, evaljob, unique
from tests.harbor_python import harbor_python
from tests.parity.harbor import run_harbor
from tests.parity.tasks import TASKS, write_suite

NAMESPACE, HARBOR_NAMESPACE = "parity", "parity-harbor"
TRIALS, CONCURRENCY = 100, 8


def main(rounds: int) -> int:
    """Print a line a round, then the best of both; 2 without Harbor."""
    python = harbor_python()
    if python is None:
        return 2
    env = subprocess.run(["python3", "tests/cluster", "env"], cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60)
    cluster = Cluster(json.loads(env.stdout))
    cluster.run("python3", "tests/cluster", "install", "--namespace", NAMESPACE, timeout=300)
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HARBOR_NAMESPACE}})
    with tempfile.TemporaryDirectory(prefix="parity-speed-") as scratch:
        suite = Path(scratch) / "suite"
        write_suite(suite)
        for name in TASKS:
            if name != "passes":
                shutil.rmtree(suite / name)
        taskset = unique("speed")
        cluster.seatrial("publish", str(suite), "--taskset", taskset, "--namespace", NAMESPACE)
        ours, theirs = [], []
        for number in range(rounds):
            ours.append(_seatrial(cluster, taskset))
            harbor = run_harbor(
                python,
                suite,
                jobs=Path(scratch) / f"jobs-{number}",
                kubeconfig=cluster.env["kubeconfig"],
                namespace=HARBOR_NAMESPACE,
                concurrency=CONCURRENCY,
                attempts=TRIALS,
            )
            if harbor.passed != TRIALS:
                raise RuntimeError(f"Harbor passed {harbor.passed} of {TRIALS} trials, such as {harbor.trials}")
            theirs.append(harbor.seconds)
            print(f"round {number + 1}: seatrial {ours[-1]:.1f} s, Harbor {theirs[-1]:.1f} s", flush=True)
    print(f"best: seatrial {min(ours):.1f} s, Harbor {min(theirs):.1f} s, ratio {min(ours) / min(theirs):.2f}")
    return 0


def _seatrial(cluster: Cluster, taskset: str) -> float:
    name = unique("speed")
    begin = time.monotonic()
    cluster.apply(evaljob(name, NAMESPACE, taskset=taskset, attempts=TRIALS, concurrency=CONCURRENCY, resources={"cpu": "ignore"}))
    cluster.kubectl("wait", "--for=condition=Finished", f"evaljob/{name}", "-n", NAMESPACE, "--timeout=600s", timeout=610)
    seconds = time.monotonic() - begin
    if cluster.job(name, NAMESPACE)["status"]["trials"]["scored"] != TRIALS:
        raise RuntimeError(f"EvalJob {name} did not score {TRIALS} trials")
    return seconds


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
