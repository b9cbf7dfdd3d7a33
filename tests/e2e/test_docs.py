"""Every command of the documentation, in the order in which a reader meets it, on a real cluster.

The pages' namespaces get other names, so that a release that is there already is left alone; helm is told of this cluster's images.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import docpages

from .harness import REPOSITORY, Cluster
from .ops import alone

pytestmark = [pytest.mark.cluster, pytest.mark.deep]

SYSTEM, TRIALS = "docs-system", "docs-evals"
RUNBOOKS = sorted(name for name in docpages.pages() if name.startswith("runbooks/"))


def renamed(text: str) -> str:
    """The same commands for the namespaces of these tests."""
    return re.sub(r"(?<![\w/.-])evals(?![\w/.-])", TRIALS, text.replace("seatrial-system", SYSTEM))


class Reader:
    """A person who follows the pages in one folder, with one shell for each page."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        for name in ("charts", "crds", "examples", "kustomize"):
            (folder / name).symlink_to(REPOSITORY / name)
        (folder / "bin").mkdir()
        self._shim()

    def _shim(self) -> None:
        """``helm`` with what this cluster needs beside the reader's own values: CRDs and cluster roles belong to the first release."""
        images = "image.repository=seatrial.local/operator,image.tag=dev,runnerImage.repository=seatrial.local/runner,runnerImage.tag=dev"
        script = self.folder / "bin" / "helm"
        script.write_text(
            "#!/bin/bash\n"
            f"helm={shlex.quote(self.cluster.env['helm'])}\n"
            'case "$1" in\n'
            f'install|upgrade|template) exec "$helm" "$@" --set crds.install=false,rbac.aggregate=false,{images} ;;\n'
            '*) exec "$helm" "$@" ;;\nesac\n'
        )
        script.chmod(0o755)

    def environment(self) -> dict[str, str]:
        keys, s3 = json.loads(Path(self.cluster.env["s3"]["credentialsFile"]).read_text()), self.cluster.env["s3"]
        own = self.cluster.environment()
        return {
            **own,
            "PATH": f"{self.folder / 'bin'}:{own['PATH']}",
            "S3_ENDPOINT": s3["internalEndpoint"],
            "S3_EXTERNAL": s3["externalEndpoint"],
            "S3_BUCKET": s3["bucket"],
            "S3_ACCESS_KEY": keys["accessKey"],
            "S3_SECRET_KEY": keys["secretKey"],
            "TASK_IMAGE": "seatrial.local/smoke/hello-pass:dev",
            # The pages mean the first release, whose namespace the CLI takes by default.
            "SEATRIAL_OPERATOR_NAMESPACE": SYSTEM,
        }

    def run(self, script: str, *, strict: bool = True) -> subprocess.CompletedProcess[str]:
        head = "set -euo pipefail\n" if strict else ""
        return subprocess.run(
            ["bash", "-c", head + renamed(script)],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=580,
            check=False,
        )


@pytest.fixture(scope="module")
def reader(installed: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    with alone(installed, "docs"):
        yield Reader(installed, tmp_path_factory.mktemp("reader"))
        installed.run(installed.env["helm"], "uninstall", "seatrial", "--namespace", SYSTEM, check=False)
        installed.kubectl("delete", "namespace", SYSTEM, TRIALS, "--ignore-not-found", timeout=180)


@pytest.mark.parametrize("page", docpages.WALK)
def test_every_command_of_the_page_works(reader: Reader, page: str) -> None:
    (script,) = ["\n".join(docpages.blocks(text, "bash")) for name, text in docpages.pages().items() if name == page]
    if page == "operations":
        # While the operator of the pages is there.
        for name in RUNBOOKS:
            assert broken(reader, docpages.pages()[name]) == [], name
    done = reader.run(script)
    record(page, script, done)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def broken(reader: Reader, text: str) -> list[str]:
    """Commands of a runbook that do not work; those that name a JOB are the reader's to complete, and grep may find nothing."""
    commands = [command for command in docpages.runbook_commands(text) if not re.search(r"\b[A-Z]{3,}\b", command)]
    good = {command: (0, 1) if "grep" in command else (0,) for command in commands}
    return [command for command, codes in good.items() if reader.run(command, strict=False).returncode not in codes]


def record(page: str, script: str, done: subprocess.CompletedProcess[str]) -> None:
    """Transcripts for people, below ``build``."""
    folder = REPOSITORY / "build" / "docs"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{page}.log").write_text(f"{script}\n--- {os.path.basename(page)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
