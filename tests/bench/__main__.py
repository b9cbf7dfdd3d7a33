"""``make bench``: measure beside a baseline, in one run, and write the figures down.

``python -m tests.bench [NAME...]``: trials, packages, publishing, large; without names all but large, which takes longest.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from ..e2e.harness import Cluster
from . import large_taskset, packages, publishing, trials
from .record import REPOSITORY, Figure, record

BENCHES: Mapping[str, Callable[[Path], list[Figure]]] = {
    "trials": lambda folder: trials.measure(_cluster(), folder),
    "packages": packages.measure,
    "publishing": publishing.measure,
    "large": lambda folder: large_taskset.measure(_cluster(), folder),
}
SHORT = ("trials", "packages", "publishing")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(BENCHES)}; default: {' '.join(SHORT)}")
    names = parser.parse_args().names or SHORT
    if unknown := sorted({*names} - {*BENCHES}):
        parser.error(f"no benchmark is called {', '.join(unknown)}")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            figures = BENCHES[name](Path(folder))
        # At once: a later benchmark that fails does not take these with it.
        record(figures)
        for one in figures:
            print(f"{one.name}: {one.value:g} {one.unit}, baseline {one.baseline}, ratio {one.ratio}", flush=True)


def _cluster() -> Cluster:
    shown = subprocess.run(["python3", "tests/cluster", "env"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return Cluster(json.loads(shown.stdout))


if __name__ == "__main__":
    main()
