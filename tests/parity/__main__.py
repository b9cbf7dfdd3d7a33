"""The same tasks under Harbor and under seatrial, on the local cluster: writes ``docs/parity.md`` and fails on a difference.

Harbor comes from ``tests.harbor_python``. seatrial differs on purpose in three points, which none of the tasks needs: numbers as text in
``reward.json``, a list ``components`` in it, and a reward beside an error that makes it invalid in Harbor's own table.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.e2e.harness import REPOSITORY, Cluster, evaljob, unique
from tests.harbor_python import VERSION, harbor_python
from tests.parity.harbor import Ended, run_harbor
from tests.parity.tasks import TASKS, write_suite

DOCUMENT = REPOSITORY / "docs" / "parity.md"
NAMESPACE, HARBOR_NAMESPACE = "parity", "parity-harbor"
CONCURRENCY = 8


def run_seatrial(cluster: Cluster, suite: Path) -> dict[str, Ended]:
    """The same solutions as one EvalJob; CPU requests are left out, as Harbor is told to."""
    name = unique("parity")
    cluster.seatrial("publish", str(suite), "--taskset", name, "--namespace", NAMESPACE)
    cluster.apply(evaljob(name, NAMESPACE, taskset=name, concurrency=CONCURRENCY, resources={"cpu": "ignore"}))
    cluster.finished(name, NAMESPACE, timeout=600)
    store, prefix = cluster.store(), cluster.prefix(name, NAMESPACE)
    ended = {}
    for row in cluster.rows(name, NAMESPACE):
        data = store.get(f"{prefix}trials/{row['trial']}/{row['retry']}/result.json", max_bytes=4 * 1024 * 1024)
        ended[str(row["task"]).rpartition("/")[2]] = Ended.of_result(json.loads(data))
    return ended


def document(harbor: Mapping[str, Ended], seatrial: Mapping[str, Ended]) -> str:
    """The table of both."""
    lines = [
        "# The same verdicts as Harbor",
        "",
        f"Written by `make parity`: {len(TASKS)} tasks with their own solutions, run by Harbor {VERSION} (its `ack` environment)",
        "and by seatrial on one cluster. Every task is one rule of Harbor's life cycle.",
        "",
        "| task | what it asks | Harbor | seatrial | same |",
        "|---|---|---|---|---|",
    ]
    for name, task in TASKS.items():
        left, right = harbor.get(name), seatrial.get(name)
        lines.append(f"| `{name}` | {task.about} | {shown(left)} | {shown(right)} | {'yes' if left == right else '**no**'} |")
    return "\n".join(lines) + "\n"


def shown(ended: Ended | None) -> str:
    if ended is None:
        return "not run"
    rewards = "no reward" if ended.rewards is None else ", ".join(f"{name} {value:g}" for name, value in sorted(ended.rewards.items()))
    return rewards if ended.error is None else f"{rewards}, {ended.error}"


def main() -> int:
    """0 when both agree on every task; 1 when not; 2 without Harbor."""
    python = harbor_python()
    if python is None:
        return 2
    env = subprocess.run(["python3", "tests/cluster", "env"], cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60)
    cluster = Cluster(json.loads(env.stdout))
    cluster.run("python3", "tests/cluster", "install", "--namespace", NAMESPACE, timeout=300)
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HARBOR_NAMESPACE}})
    with tempfile.TemporaryDirectory(prefix="parity-") as scratch:
        suite = write_suite(Path(scratch) / "suite")
        harbor = run_harbor(
            python,
            suite,
            jobs=Path(scratch) / "jobs",
            kubeconfig=cluster.env["kubeconfig"],
            namespace=HARBOR_NAMESPACE,
            concurrency=CONCURRENCY,
        )
        ours = run_seatrial(cluster, suite)
    text = document(harbor.trials, ours)
    DOCUMENT.write_text(text)
    print(text)
    return 0 if all(name in harbor.trials and harbor.trials[name] == ours.get(name) for name in TASKS) else 1


if __name__ == "__main__":
    sys.exit(main())
