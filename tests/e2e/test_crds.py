"""The CRDs on a real API server: it takes what the models take and refuses what they refuse, with the words of the cases.

Objects live in a namespace that no operator watches, so that nothing but the server answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from .harness import REPOSITORY, SYSTEM, Cluster, Result

pytestmark = pytest.mark.cluster

NAMESPACE = "crd-cases"
CASES = REPOSITORY / "tests" / "cases"
GOLDEN = Path(__file__).parent / "golden"
SINGLE = sorted(path for path in CASES.glob("*.yaml") if "_update_" not in path.name)
UPDATES = sorted(CASES.glob("*_update_*.yaml"))


@pytest.fixture(scope="module")
def server(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with our CRDs and an empty namespace."""
    # As Helm would do it, so that the chart can be installed over them and the other way round.
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "--field-manager=helm", "-f", str(REPOSITORY / "crds"))
    names = [f"crd/{kind}.seatrial.dev" for kind in PLURALS]
    cluster.kubectl("label", "--overwrite", *names, "app.kubernetes.io/managed-by=Helm")
    cluster.kubectl("annotate", "--overwrite", *names, "meta.helm.sh/release-name=seatrial", f"meta.helm.sh/release-namespace={SYSTEM}")
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", *names)
    cluster.kubectl("create", "namespace", NAMESPACE)
    yield cluster
    cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=60s")


PLURALS = ("tasks", "tasksets", "evaljobs")


def server_message(path: Path) -> str | None:
    for line in path.read_text().splitlines():
        if line.startswith("# server: "):
            return line.removeprefix("# server: ")
    return None


def kubectl(server: Cluster, *arguments: str, given: str | None = None) -> Result:
    return server.run(server.env["kubectl"], "-n", NAMESPACE, *arguments, given=given, check=False)


def secrets_of(path: Path) -> list[str]:
    """Literals of a case that no message may repeat."""
    return re.findall(r"(?:sk-|hf_|not-a-real)[\w-]*", path.read_text())


@pytest.mark.parametrize("path", [path for path in SINGLE if server_message(path) is None], ids=lambda path: path.stem)
def test_server_accepts(server: Cluster, path: Path) -> None:
    done = kubectl(server, "create", "--dry-run=server", "-f", str(path))
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize("path", [path for path in SINGLE if server_message(path) is not None], ids=lambda path: path.stem)
def test_server_refuses_with_the_reason_and_without_the_value(server: Cluster, path: Path) -> None:
    done = kubectl(server, "create", "--dry-run=server", "-f", str(path))
    wanted = server_message(path)
    assert wanted is not None
    assert (done.code, wanted in done.err) == (1, True), done.err
    assert [value for value in secrets_of(path) if value in done.err] == []


@pytest.mark.conforms("H-149")
@pytest.mark.parametrize("path", UPDATES, ids=lambda path: path.stem)
def test_server_judges_updates(server: Cluster, path: Path) -> None:
    before, after = (yaml.safe_dump(item) for item in yaml.safe_load_all(path.read_text()))
    wanted = server_message(path)
    try:
        assert kubectl(server, "apply", "-f", "-", given=before).err == ""
        done = kubectl(server, "apply", "--dry-run=server", "-f", "-", given=after)
        if wanted is None:
            assert (done.code, done.err) == (0, "")
        else:
            assert (done.code, wanted in done.err) == (1, True), done.err
    finally:
        kubectl(server, "delete", "evaljob", "case", "--ignore-not-found")


def test_an_evaljob_without_an_agent_gets_the_oracle(server: Cluster) -> None:
    done = kubectl(server, "create", "--dry-run=server", "-o", "json", "-f", str(CASES / "valid_evaljob_minimal.yaml"))
    spec: dict[str, Any] = json.loads(done.out)["spec"]
    assert {name: spec["agent"][name] for name in ("name", "args", "env")} == {"name": "oracle", "args": [], "env": {}}
    assert (spec["attempts"], spec["concurrency"], spec["timeouts"]["pending"]) == (1, 4, "30m")


def test_the_spec_and_the_status_are_written_apart(server: Cluster) -> None:
    try:
        kubectl(server, "create", "-f", str(CASES / "valid_evaljob_minimal.yaml"))
        kubectl(server, "patch", "evaljob", "case", "--type=merge", "-p", '{"status": {"phase": "Running"}}')
        assert "status" not in json.loads(kubectl(server, "get", "evaljob", "case", "-o", "json").out)
        kubectl(server, "patch", "evaljob", "case", "--subresource=status", "--type=merge", "-p", '{"status": {"phase": "Running"}}')
        seen = json.loads(kubectl(server, "get", "evaljob", "case", "-o", "json").out)
        assert (seen["status"], seen["metadata"]["generation"]) == ({"phase": "Running"}, 1)
    finally:
        kubectl(server, "delete", "evaljob", "case", "--ignore-not-found")


@pytest.mark.parametrize(
    ("file", "field"),
    [
        ("explain_evaljob.txt", "evaljob.spec"),
        ("explain_evaljob_agent.txt", "evaljob.spec.agent"),
        ("explain_evaljob_status.txt", "evaljob.status"),
        ("explain_task.txt", "task.spec"),
        ("explain_taskset.txt", "taskset.spec"),
    ],
)
def test_explain_reads_as_documented(server: Cluster, file: str, field: str) -> None:
    assert kubectl(server, "explain", field).out == (GOLDEN / file).read_text()


def test_get_shows_the_columns(server: Cluster) -> None:
    """By the short names; the age is the only column that a test cannot know."""
    conditions = [
        {"type": "Verified", "status": "True", "reason": "ArchiveVerified", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    ]
    statuses = {
        "task": {"revision": 3, "conditions": conditions, "nativeTaskId": "bench/hello-world"},
        "taskset": {"members": 2, "revision": 1, "conditions": [{**conditions[0], "type": "Pinned", "reason": "MembersPinned"}]},
        "evaljob": {"phase": "Running", "progress": "1/2", "mean": "1.000", "trials": {"total": 2, "errored": 1}},
    }
    files = {"task": "valid_task_full", "taskset": "valid_taskset_tasks", "evaljob": "valid_evaljob_image_agent"}
    shown = ""
    try:
        for kind, short in (("task", "tsk"), ("taskset", "tset"), ("evaljob", "ej")):
            assert kubectl(server, "create", "-f", str(CASES / f"{files[kind]}.yaml")).err == ""
            assert (
                kubectl(
                    server, "patch", kind, "case", "--subresource=status", "--type=merge", "-p", json.dumps({"status": statuses[kind]})
                ).err
                == ""
            )
            for wide in ((), ("-o", "wide")):
                shown += re.sub(r"\b\d+s\b *", "AGE ", kubectl(server, "get", short, *wide).out)
        lines = [re.sub(r" +", " ", line).strip() for line in shown.splitlines()]
        assert lines == (GOLDEN / "get.txt").read_text().splitlines()
        assert len(json.loads(kubectl(server, "get", "seatrial", "-o", "json").out)["items"]) == 3
    finally:
        for kind in files:
            kubectl(server, "delete", kind, "case", "--ignore-not-found")
