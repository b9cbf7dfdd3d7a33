"""Wall time of the same hundred oracle trials under seatrial, as a bare Job and under Harbor's ``ack``, in turn.

``python -m tests.parity.speed [ROUNDS]``: the best of the rounds counts, for each; the ratios go to ``docs/benchmarks.md``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.record import Figure, figure, load_average, record
from tests.bench.trials import Run
from tests.e2e.harness import REPOSITORY, Cluster, unique
from tests.harbor_python import VERSION, harbor_python
from tests.parity.harbor import run_harbor
from tests.parity.tasks import TASKS, write_suite

NAMESPACE, HARBOR_NAMESPACE = "parity", "parity-harbor"
TRIALS, CONCURRENCY = 100, 8


def main(rounds: int) -> int:
    """Print a line a round, then record the best of both; 2 without Harbor."""
    python = harbor_python()
    if python is None:
        return 2
    env = subprocess.run(["python3", "tests/cluster", "env"], cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60)
    cluster = Cluster(json.loads(env.stdout))
    cluster.run("python3", "tests/cluster", "install", "--namespace", NAMESPACE, timeout=300)
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HARBOR_NAMESPACE}})
    ours: list[float] = []
    bare: list[float] = []
    theirs: list[float] = []
    with tempfile.TemporaryDirectory(prefix="parity-speed-") as scratch:
        suite = Path(scratch) / "suite"
        write_suite(suite)
        for name in TASKS:
            if name != "passes":
                shutil.rmtree(suite / name)
        taskset = unique("speed")
        cluster.seatrial("publish", str(suite), "--taskset", taskset, "--namespace", NAMESPACE)
        for number in range(rounds):
            # Without CPU requests, as Harbor is told to.
            spec = {"resources": {"cpu": "ignore"}}
            run = Run(cluster, unique("speed"), namespace=NAMESPACE, taskset=taskset, trials=TRIALS, concurrency=CONCURRENCY, spec=spec)
            ours.append(run.evaljob())
            bare.append(run.indexed_job())
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
            print(f"round {number + 1}: seatrial {ours[-1]:.1f} s, bare Job {bare[-1]:.1f} s, Harbor {theirs[-1]:.1f} s", flush=True)
    found = [
        _figure(f"100 trials: wall time beside {what}", ours, other, rounds=rounds, target=target)
        for what, other, target in (
            ("a bare Indexed Job with the same Pods", bare, 1.15),
            (f"Harbor {VERSION} with its `ack` environment", theirs, 0.85),
        )
    ]
    record(found)
    for item in found:
        print(f"{item.name}: {item.value:.1f} s against {item.baseline} s, ratio {item.ratio}")
    return 0


def _figure(name: str, ours: list[float], other: list[float], *, rounds: int, target: float) -> Figure:
    """The best of both."""
    shown = [", ".join(f"{seconds:.1f}" for seconds in times) for times in (ours, other)]
    return figure(
        name,
        min(ours),
        "s",
        baseline=min(other),
        command=f"python -m tests.parity.speed {rounds}",
        note=f"oracle, {CONCURRENCY} at a time, best of {rounds} in turn: {shown[0]} against {shown[1]}; {load_average()}; "
        f"target <= {target}",
    )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
