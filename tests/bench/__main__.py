"""``make bench``: measure beside a baseline, in one run, and write the figures down."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from ..e2e.harness import Cluster
from . import trials
from .record import REPOSITORY, record


def main() -> None:
    shown = subprocess.run(["python3", "tests/cluster", "env"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        figures = trials.measure(Cluster(json.loads(shown.stdout)), Path(folder))
    record(figures)
    for one in figures:
        print(f"{one.name}: {one.value:g} {one.unit}, baseline {one.baseline}, ratio {one.ratio}")


if __name__ == "__main__":
    main()
