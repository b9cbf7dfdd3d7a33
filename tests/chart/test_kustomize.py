"""The kustomize base is what the chart renders; ``SEATRIAL_WRITE_SNAPSHOTS=1`` writes it anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import REPOSITORY, Helm
from .test_chart import one, values

BASE = REPOSITORY / "kustomize" / "base" / "seatrial.yaml"
CHOSEN = values(
    crds={"install": False},
    s3={"endpoint": "http://set-me.invalid", "bucket": "set-me", "existingSecret": "seatrial-s3"},
    signingKey={"existingSecret": "seatrial-signing-key"},
    networkPolicies={"create": False},
)


@pytest.fixture(scope="session")
def kubectl() -> list[str]:
    """The program that the local cluster builds and keeps."""
    sys.path.insert(0, str(REPOSITORY / "tests" / "cluster"))
    from localcluster import gobuild, settings

    return [str(gobuild.build(settings.load(os.environ, checkout=REPOSITORY), "kube")), "kubectl"]


def rendered(helm: Helm) -> str:
    def plain(item: dict[str, Any]) -> dict[str, Any]:
        labels = item["metadata"].get("labels", {})
        labels.pop("helm.sh/chart", None)
        if "app.kubernetes.io/managed-by" in labels:
            labels["app.kubernetes.io/managed-by"] = "kustomize"
        return item

    objects = [plain(item) for item in helm.objects(CHOSEN) if "helm.sh/hook" not in item["metadata"].get("annotations", {})]
    return "# Made from the chart; do not edit.\n" + yaml.safe_dump_all(objects, sort_keys=False, width=130)


def test_the_base_is_what_the_chart_renders(helm: Helm) -> None:
    text = rendered(helm)
    if os.environ.get("SEATRIAL_WRITE_SNAPSHOTS"):
        BASE.write_text(text)
    assert BASE.read_text() == text


def built(kubectl: list[str], folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run([*kubectl, "kustomize", str(folder)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return [item for item in yaml.safe_load_all(done.stdout) if item]


def test_the_example_sets_everything_that_must_be_set(kubectl: list[str]) -> None:
    objects = built(kubectl, REPOSITORY / "kustomize" / "example")
    assert "set-me" not in yaml.safe_dump_all(objects)
    assert one(objects, "ConfigMap", "seatrial")["data"]["SEATRIAL_S3_BUCKET"] == "evals"
    kinds = {item["kind"] for item in objects}
    assert {"ClusterRole", "Deployment", "Namespace", "PodDisruptionBudget"} <= kinds
    assert "Secret" not in kinds
