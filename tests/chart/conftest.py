"""Helm as the tests use it: rendering only, no cluster."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "seatrial"
CRD_FOLDER = "seatrial/templates/crds/"

REQUIRED: Mapping[str, Any] = {
    "s3": {"endpoint": "http://minio.minio.svc.cluster.local:9000", "bucket": "evals", "existingSecret": "s3-credentials"},
}


class Refused(Exception):
    """Helm does not take the values."""


class Helm:
    """Renders the chart."""

    def __init__(self, program: str) -> None:
        self._program = program

    def template(self, values: Mapping[str, Any], *, namespace: str = "seatrial-system", release: str = "seatrial", only: str = "") -> str:
        """All manifests, or those of the file ``only``, as text.

        Raises:
            Refused: the schema or a template refuses the values.
        """
        chosen = ["--show-only", only] if only else []
        return self._run("template", release, str(CHART), "--namespace", namespace, "--values", "-", *chosen, values=values)

    def objects(self, values: Mapping[str, Any], **options: str) -> list[dict[str, Any]]:
        """All manifests as objects, sorted by kind, namespace and name."""
        found = [item for item in yaml.safe_load_all(self.template(values, **options)) if item]
        return sorted(found, key=lambda item: (item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]))

    def lint(self, values: Mapping[str, Any]) -> str:
        """Output of ``helm lint --strict``."""
        return self._run("lint", "--strict", str(CHART), "--values", "-", values=values)

    def notes(self, values: Mapping[str, Any]) -> str:
        """What an installation prints."""
        text = self._run(
            *("install", "seatrial", str(CHART), "--namespace", "seatrial-system", "--dry-run=client", "--values", "-"), values=values
        )
        return text.partition("NOTES:\n")[2]

    def _run(self, *arguments: str, values: Mapping[str, Any]) -> str:
        done = subprocess.run(
            [self._program, *arguments], input=json.dumps(values), capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode != 0:
            raise Refused(done.stderr + done.stdout)
        return done.stdout


@pytest.fixture(scope="session")
def helm() -> Helm:
    """The program that the local cluster builds and keeps, or the one on the PATH."""
    if given := os.environ.get("SEATRIAL_TEST_HELM") or shutil.which("helm"):
        return Helm(given)
    sys.path.insert(0, str(REPOSITORY / "tests" / "cluster"))
    from localcluster import gobuild, settings

    return Helm(str(gobuild.build(settings.load(os.environ, checkout=REPOSITORY), "helm")))
