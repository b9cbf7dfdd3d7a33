"""``python -m tests.chaos``: a job on the local cluster, and everything around it killed at random moments.

python -m tests.chaos                                      three kills of each part, 60 trials
python -m tests.chaos --only operator --kills 20 --trials 200
python -m tests.chaos --seed 7                             the same kills again
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
import time
from pathlib import Path

from ..bench.record import Figure, figure, record
from ..e2e.harness import REPOSITORY, TERMINAL, Cluster, evaljob, unique
from .counter import counting, publish
from .faults import FAULTS, HARMLESS
from .invariants import Watcher, check

NAMESPACE = "chaos"
TASKS = 5
AGENT_SECONDS = 3.0
LIMIT_SECONDS = 3600


def main() -> None:
    arguments = _arguments()
    names = arguments.only or list(FAULTS)
    shown = subprocess.run(["python3", "tests/cluster", "env"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    cluster = Cluster(json.loads(shown.stdout))
    cluster.run("python3", "tests/cluster", "install", "--namespace", NAMESPACE, timeout=600)
    print(f"seed {arguments.seed}", flush=True)
    figures = []
    with tempfile.TemporaryDirectory() as folder, counting(cluster, NAMESPACE) as address:
        publish(cluster, Path(folder), NAMESPACE, address=address, taskset="chaos", tasks=TASKS, seconds=AGENT_SECONDS)
        for name in names:
            figures.append(run(cluster, name, arguments))
    record(figures)


def run(cluster: Cluster, name: str, arguments: argparse.Namespace) -> Figure:
    """One job, with kills of one part at random moments until it ends or enough of them happened."""
    job, chance = unique(name), random.Random(f"{arguments.seed}/{name}")
    cluster.apply(
        evaljob(
            job,
            NAMESPACE,
            taskset="chaos",
            attempts=arguments.trials // TASKS,
            concurrency=arguments.concurrency,
            retry={"max": 3, "backoff": {"min": "1s", "max": "5s"}},
        )
    )
    started, kills = time.monotonic(), 0
    with Watcher(cluster, NAMESPACE, job, concurrency=arguments.concurrency) as watcher:
        while time.monotonic() - started < LIMIT_SECONDS:
            if phase(cluster, job) in TERMINAL:
                break
            if kills < arguments.kills:
                time.sleep(chance.uniform(1.0, arguments.pause))
                FAULTS[name](cluster)
                kills += 1
            else:
                time.sleep(1.0)
    assert not watcher.faults, watcher.faults
    counted = check(cluster, NAMESPACE, job, trials=arguments.trials, exactly_once=name in HARMLESS)
    seconds = time.monotonic() - started
    print(f"{name}: {kills} kills in {seconds:.0f} s, {arguments.trials} trials, {counted}, {watcher.looks} looks at the Pods", flush=True)
    note = f"{arguments.trials} trials, {counted['agent runs']} agent runs, {counted['retried']} recorded retries"
    options = f"--only {name} --kills {arguments.kills} --trials {arguments.trials} --pause {arguments.pause:g} --seed {arguments.seed}"
    command = f"make chaos CHAOS='{options}'"
    return figure(f"kills of {name} without a lost, repeated or leaked trial", kills, "kills", command=command, note=note)


def phase(cluster: Cluster, job: str) -> str:
    """The job's phase; empty while the API server does not answer."""
    try:
        return str(cluster.job(job, NAMESPACE).get("status", {}).get("phase", ""))
    except (AssertionError, ValueError):
        return ""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--only", action="append", choices=sorted(FAULTS), help="kill this part; repeat for more; all without one")
    parser.add_argument("--kills", type=int, default=3, help="of each part")
    parser.add_argument("--trials", type=int, default=60, help="of each job")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--pause", type=float, default=15.0, help="longest time between two kills, in seconds")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    return parser.parse_args()


if __name__ == "__main__":
    main()
