"""Every command of the documentation, in the order in which a reader meets it, on a real cluster.

The pages' namespaces get other names, so that a release that is there already is left alone; helm is told of this cluster's images.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import docpages, transcripts

from .harness import REPOSITORY, Cluster
from .ops import alone

pytestmark = [pytest.mark.cluster, pytest.mark.deep]

SYSTEM, TRIALS = "docs-system", "docs-evals"
RUNBOOKS = sorted(name for name in docpages.pages() if name.startswith("runbooks/"))


def renamed(text: str) -> str:
    """The same commands for the namespaces of these tests."""
    return re.sub(r"(?<![\w/.-])evals(?![\w/.-])", TRIALS, text.replace("seatrial-system", SYSTEM))


def renamed_back(text: str) -> str:
    """A transcript with the names of the pages."""
    return text.replace(SYSTEM, "seatrial-system").replace(TRIALS, "evals")


class Reader:
    """A person who follows the pages in their order, in one folder, with one shell for each page."""

    def __init__(self, cluster: Cluster, folders: Path) -> None:
        self.cluster, self.folder, self._folders = cluster, folders, folders
        self._tried: set[str] = set()
        self._followed: set[str] = set()

    def start_over(self) -> None:
        """As somebody who has read nothing yet: nothing of the pages in the cluster, and an empty folder."""
        self.leave()
        self._tried, self._followed = set(), set()
        self.folder = Path(tempfile.mkdtemp(dir=self._folders))
        for name in ("charts", "crds", "examples", "kustomize"):
            (self.folder / name).symlink_to(REPOSITORY / name)
        (self.folder / "bin").mkdir()
        self._shim()

    def leave(self) -> None:
        """Remove what the pages made."""
        self.cluster.run(self.cluster.env["helm"], "uninstall", "seatrial", "--namespace", SYSTEM, "--wait", check=False)
        self.cluster.kubectl("delete", "namespace", SYSTEM, TRIALS, "--ignore-not-found", timeout=180)

    def reach(self, page: str) -> None:
        """Be where a reader is who has followed all earlier pages; a page that was tried before is met from the start again."""
        if not self._tried or page in self._tried:
            self.start_over()
        for earlier in docpages.WALK[: docpages.WALK.index(page)]:
            if earlier not in self._followed:
                self.follow(earlier)

    def follow(self, page: str) -> None:
        """Run the page's commands.

        Raises:
            AssertionError: one of them failed.
        """
        self._tried.add(page)
        commands = docpages.commands("\n".join(docpages.blocks(docpages.pages()[page], "bash")))
        done = self.run("".join(f"cat <<'SHOWN'\n$ {command}\nSHOWN\n{command}\n" for command in commands))
        transcripts.record(page, renamed_back(done.stdout))
        assert done.returncode == 0, f"{page} ended with {done.returncode}\n{done.stdout[-4000:]}"
        self._followed.add(page)

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
        """Output and errors in one stream, as a person sees them."""
        head = "set -euo pipefail\n" if strict else ""
        return subprocess.run(
            ["bash", "-c", head + renamed(script)],
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=580,
            check=False,
        )


@pytest.fixture(scope="module")
def reader(installed: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    with alone(installed, "docs"):
        found = Reader(installed, tmp_path_factory.mktemp("reader"))
        yield found
        found.leave()


@pytest.mark.parametrize("page", docpages.WALK)
def test_every_command_of_the_page_works(reader: Reader, page: str) -> None:
    reader.reach(page)
    if page == "operations":
        # While the operator of the pages is there.
        assert {name: broken(reader, docpages.pages()[name]) for name in RUNBOOKS} == {name: [] for name in RUNBOOKS}
    reader.follow(page)


def broken(reader: Reader, text: str) -> list[str]:
    """Commands of a runbook that do not work; those that name a JOB are the reader's to complete, and grep may find nothing."""
    commands = [command for command in docpages.runbook_commands(text) if not re.search(r"\b[A-Z]{3,}\b", command)]
    good = {command: (0, 1) if "grep" in command else (0,) for command in commands}
    return [command for command, codes in good.items() if reader.run(command, strict=False).returncode not in codes]
