"""The chart's life on a real cluster: installed from a package, upgraded under a running job, rolled back, removed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import certifi
import pytest
import yaml

from .harness import Cluster, evaljob, unique, wait_until, write_task
from .ops import CHART, DEPLOYMENT, NAME, NAMESPACE, TRIALS, Release

pytestmark = [pytest.mark.cluster, pytest.mark.deep]

IMAGE = "seatrial.local/smoke/hello-pass:dev"


@pytest.fixture(scope="module")
def packages(ops: Release, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The chart packed twice: as it is, and under an earlier version number."""
    folder = tmp_path_factory.mktemp("packages")
    found = {}
    for version in ("0.0.9", yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]):
        shown = ops.helm("package", str(CHART), "--version", version, "--destination", str(folder)).out
        found[version] = Path(re.findall(r"saved it to: (\S+)", shown)[0])
    return found


@pytest.fixture(scope="module")
def fresh(ops: Release) -> Iterator[Release]:
    """Without the release at first; installed again at the end, for tests that come later."""
    ops.uninstall()
    yield ops
    ops.install(ops.values())
    ops.ready()


def test_a_packaged_chart_installs_upgrades_and_rolls_back_under_a_running_job(
    fresh: Release, packages: dict[str, Path], suite: Path
) -> None:
    old, new = packages.values()
    shown = fresh.install(fresh.values(), chart=old).out
    assert "seatrial run ./suite --agent oracle --namespace ops-trials" in shown
    fresh.ready()
    key = signing_key(fresh.cluster)

    # Each trial waits until it is told to go on, so that it is at work while the operator is replaced.
    name = unique("upgrade")
    for number in range(3):
        write_task(suite, f"{name}-{number}", image=IMAGE, solve="for i in $(seq 40); do sleep 1; done")
    fresh.seatrial("publish", str(suite), "--taskset", name, "--namespace", TRIALS)
    fresh.cluster.apply(evaljob(name, TRIALS, taskset=name, agent={"name": "oracle"}, concurrency=3))
    working = wait_until(lambda: at_work(fresh.cluster, name), lambda pods: len(pods) == 3, timeout=120, what="three trials at work")

    fresh.install(fresh.values(operator={**fresh.values()["operator"], "podLabels": {"revision": "two"}}), chart=new)
    fresh.ready()
    assert versions(fresh) == [("0.0.9", "superseded"), (yaml.safe_load((CHART / "Chart.yaml").read_text())["version"], "deployed")]
    fresh.helm("rollback", NAME, "1", "--namespace", NAMESPACE, "--wait", "--timeout", "180s")
    fresh.ready()
    assert at_work(fresh.cluster, name) == working

    job = fresh.cluster.finished(name, TRIALS, timeout=180)
    assert (job["status"]["trials"]["scored"], job["status"]["trials"]["retried"], job["status"]["mean"]) == (3, 0, "1.000")
    rows = fresh.cluster.rows(name, TRIALS)
    assert sorted(row["retry"] for row in rows) == [0, 0, 0]
    assert signing_key(fresh.cluster) == key


def test_the_chart_tests_itself(fresh: Release) -> None:
    fresh.install(fresh.values())
    fresh.ready()
    shown = fresh.helm("test", NAME, "--namespace", NAMESPACE, "--timeout", "90s").out
    assert re.search(r"Phase:\s+Succeeded", shown)


@pytest.mark.conforms("H-62")
def test_operator_and_trials_fit_the_pod_security_levels_of_their_namespaces(fresh: Release) -> None:
    fresh.install(fresh.values())
    levels = {
        name: fresh.cluster.get("namespace", name)["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for name in (NAMESPACE, TRIALS)
    }
    assert levels == {NAMESPACE: "restricted", TRIALS: "baseline"}
    fresh.ready()
    fresh.seatrial("publish", "examples/suites/smoke", "--taskset", "smoke", "--namespace", TRIALS)
    name = unique("levels")
    fresh.cluster.apply(evaljob(name, TRIALS, taskset="smoke", select={"include": ["*hello-pass*"]}, agent={"name": "oracle"}))
    assert fresh.cluster.finished(name, TRIALS)["status"]["mean"] == "1.000"


def test_a_closed_site_runs_on_its_own_store_behind_network_policies(fresh: Release) -> None:
    """Bundled S3 server, authorities of the site, proxy for agents, policies on the operator: all at once, and a trial is graded."""
    inside = f"http://{DEPLOYMENT}-store.{NAMESPACE}.svc.cluster.local:9000"
    outside = re.sub(r":\d+$", ":30901", fresh.cluster.env["s3"]["externalEndpoint"])
    values = fresh.values(
        s3={
            "endpoint": inside,
            "externalEndpoint": outside,
            "bucket": "evals",
            "region": "us-east-1",
            "existingSecret": f"{DEPLOYMENT}-store",
        },
        bundledStore={
            "enabled": True,
            "nodePort": 30901,
            "image": {"repository": "seatrial.local/versitygw", "tag": "1.8.0"},
            "persistence": {"enabled": False},
        },
        networkPolicies={"operator": {"create": True}},
        site={"caBundle": certificate(), "proxy": {"httpsProxy": "http://proxy.invalid:3128"}},
    )
    forget_objects(fresh)
    fresh.install(values)
    fresh.ready()
    try:
        fresh.seatrial("publish", "examples/suites/smoke", "--taskset", "own-store", "--namespace", TRIALS)
        name = unique("closed")
        spec = {"taskset": "own-store", "select": {"include": ["*hello-pass*"]}, "agent": {"name": "oracle"}, "suspend": False}
        fresh.cluster.apply(evaljob(name, TRIALS, **spec))
        pod = wait_until(lambda: fresh.cluster.trial_pods(TRIALS, name), bool, timeout=60, what="Pod")[0]
        assert fresh.cluster.finished(name, TRIALS)["status"]["mean"] == "1.000"
        env = {item["name"]: item["env"] for item in pod["spec"]["containers"]}
        assert {"name": "HTTPS_PROXY", "value": "http://proxy.invalid:3128"} in env["agent"]
        assert {"name": "SSL_CERT_FILE", "value": "/etc/seatrial/ca/ca.crt"} in env["verifier"]
    finally:
        forget_objects(fresh)
        fresh.install(fresh.values())
        fresh.ready()
        fresh.cluster.kubectl("delete", "secret", f"{DEPLOYMENT}-store", "--namespace", NAMESPACE)


def test_removal_leaves_crds_data_and_the_signing_key_only(fresh: Release) -> None:
    fresh.install(fresh.values())
    fresh.ready()
    job = unique("kept")
    fresh.seatrial("publish", "examples/suites/smoke", "--taskset", "smoke", "--namespace", TRIALS)
    fresh.cluster.apply(evaljob(job, TRIALS, taskset="smoke", select={"include": ["*hello-pass*"]}, agent={"name": "oracle"}))
    fresh.cluster.finished(job, TRIALS)
    before = made_by(fresh)
    assert {"Deployment", "ServiceAccount", "Role", "RoleBinding", "ConfigMap", "NetworkPolicy"} <= {kind for kind, _, _ in before}

    fresh.uninstall()
    # Deployment, Pods and what belongs to them end a moment after helm.
    kept = wait_until(
        lambda: made_by(fresh), lambda found: found <= {("Secret", NAMESPACE, f"{DEPLOYMENT}-signing")}, timeout=60, what="removal"
    )
    assert kept == {("Secret", NAMESPACE, f"{DEPLOYMENT}-signing")}
    assert fresh.cluster.job(job, TRIALS)["status"]["phase"] == "Completed"
    assert len(fresh.cluster.items("tasks", "--namespace", TRIALS)) >= 5
    assert [row["outcome"] for row in fresh.cluster.rows(job, TRIALS)] == ["scored"]


def certificate() -> str:
    """Some authorities: those that the machine trusts."""
    return (
        Path(certifi.where())
        .read_text()
        .partition("-----END CERTIFICATE-----")[0]
        .partition("-----BEGIN")[2]
        .join(("-----BEGIN", "-----END CERTIFICATE-----\n"))
    )


# --- helpers ----------------------------------------------------------------------------------------------------------------------------


def forget_objects(release: Release) -> None:
    """Delete what refers to archives and revisions of one store before the release gets another."""
    release.cluster.kubectl("delete", "evaljobs,tasksets,tasks", "--all", "--namespace", TRIALS)


def at_work(cluster: Cluster, job: str) -> list[str]:
    """Names and UIDs of the job's Pods whose containers all run."""
    pods = [pod for pod in cluster.trial_pods(TRIALS, job) if pod["status"]["phase"] == "Running"]
    return sorted(f"{pod['metadata']['name']} {pod['metadata']['uid']}" for pod in pods)


def versions(release: Release) -> list[tuple[str, str]]:
    """Chart version and state of the newest two revisions."""
    history: list[dict[str, Any]] = release.helm("history", NAME, "--namespace", NAMESPACE, "--output", "json").json()
    return [(item["chart"].removeprefix("seatrial-"), item["status"]) for item in history[-2:]]


def signing_key(cluster: Cluster) -> str:
    return str(cluster.get("secret", f"{DEPLOYMENT}-signing", "--namespace", NAMESPACE)["data"]["signingKey"])


def made_by(release: Release) -> set[tuple[str, str, str]]:
    """Kind, namespace and name of what carries the release's label, cluster-wide."""
    kinds = (
        "deployments,replicasets,pods,services,serviceaccounts,configmaps,secrets,roles,rolebindings,networkpolicies,poddisruptionbudgets"
    )
    wide = "clusterroles,clusterrolebindings,validatingadmissionpolicies"
    selector = f"--selector=app.kubernetes.io/managed-by=Helm,app.kubernetes.io/instance={NAME}"
    texts = (
        release.cluster.kubectl("get", kinds, "--all-namespaces", selector, "-o", "json"),
        release.cluster.kubectl("get", wide, selector, "-o", "json"),
    )
    items = [item for text in texts for item in json.loads(text)["items"]]
    return {(item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]) for item in items}
