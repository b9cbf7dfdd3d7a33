"""The cluster with the operator installed; one namespace for all trials of a test session."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import cases
from .harness import REPOSITORY, Cluster
from .ops import Release, alone

NAMESPACE = "e2e"


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The running local cluster; ``make up images`` comes before."""
    shown = subprocess.run(["python3", "tests/cluster", "env"], cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60)
    return Cluster(json.loads(shown.stdout))


@pytest.fixture(scope="session")
def installed(cluster: Cluster) -> Cluster:
    """The cluster with the chart installed and watching ``NAMESPACE``."""
    cluster.install(NAMESPACE)
    return cluster


@pytest.fixture(scope="session")
def smoke(installed: Cluster) -> str:
    """The smoke suite, published; returns the Taskset's name."""
    installed.seatrial("publish", "examples/suites/smoke", "--taskset", "smoke", "--namespace", NAMESPACE)
    return "smoke"


@pytest.fixture(scope="session")
def life(cluster: Cluster) -> Cluster:
    """The cluster with the chart installed and watching the namespace of ``cases``."""
    cluster.install(cases.NAMESPACE)
    return cluster


@pytest.fixture(scope="session")
def ops(installed: Cluster) -> Iterator[Release]:
    """A second release in namespaces of its own; removed at the end."""
    with alone(installed, "ops"):
        release = Release(installed)
        release.install(release.values())
        release.ready()
        yield release
        release.remove()


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A folder for tasks of one test."""
    folder = tmp_path / "suite"
    folder.mkdir()
    return folder
