"""Which provider is taken, and what the kind one asks kind and Docker to do."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from localcluster import gobuild, health, kind, provider, s3
from localcluster.config import audit_policy
from localcluster.kind import KindProvider
from localcluster.settings import ClusterError, Settings, load


def make_settings(tmp_path: Path, checkout: Path, **changes: Any) -> Settings:
    values = {"checkout": checkout, "state_dir": tmp_path / "state", "cache_dir": tmp_path / "cache", "provider": "auto", "max_pods": 110}
    return Settings(**{**values, **changes})


def fake_program(folder: Path, name: str, body: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


# --- the choice


@pytest.mark.parametrize(
    ("programs", "chosen"),
    [
        pytest.param({}, "native", id="neither"),
        pytest.param({"kind": "exit 0"}, "native", id="kind-without-docker"),
        pytest.param({"docker": "exit 0"}, "native", id="docker-without-kind"),
        pytest.param({"kind": "exit 0", "docker": "exit 1"}, "native", id="docker-without-daemon"),
        pytest.param({"kind": "exit 0", "docker": "exit 0"}, "kind", id="both"),
    ],
)
def test_kind_is_taken_where_docker_answers(
    programs: dict[str, str], chosen: str, tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    for name, body in programs.items():
        fake_program(tmp_path / "bin", name, body)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert provider.choose(make_settings(tmp_path, checkout)) == chosen


def test_a_running_cluster_keeps_its_provider(tmp_path: Path, checkout: Path) -> None:
    settings = make_settings(tmp_path, checkout, provider="native")
    settings.state_dir.mkdir()
    (settings.state_dir / "provider").write_text("kind")
    assert provider.recorded_choice(settings) == "kind"


# --- kind


@dataclass
class Recorder:
    """Stands for running programs: keeps the commands, answers from a table by their first words."""

    answers: dict[tuple[str, ...], str] = field(default_factory=dict)
    commands: list[list[str]] = field(default_factory=list)
    folders: list[Path | None] = field(default_factory=list)

    def __call__(self, argv: Sequence[str | os.PathLike[str]], *, cwd: Path | None = None, **_: Any) -> str:
        words = [os.fspath(word) for word in argv]
        self.commands.append(words)
        self.folders.append(cwd)
        return next((answer for start, answer in self.answers.items() if tuple(words[: len(start)]) == start), "")


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No builds and no requests: only commands."""
    built = tmp_path / "built" / "key" / "versitygw"
    built.parent.mkdir(parents=True)
    built.write_bytes(b"binary")
    monkeypatch.setattr(gobuild, "build", lambda _settings, _name: built)
    monkeypatch.setattr(gobuild, "tools", lambda _settings: Path("/tools"))
    monkeypatch.setattr(kind, "http_fault", lambda _address: None)
    monkeypatch.setattr(s3, "make_bucket", lambda _endpoint, _bucket, **_: None)


PORT: dict[tuple[str, ...], str] = {("docker", "port"): "127.0.0.1:49153\n"}


@pytest.mark.usefixtures("quiet")
def test_up_creates_a_cluster_of_this_checkouts_own_name(tmp_path: Path, checkout: Path) -> None:
    settings, run = make_settings(tmp_path, checkout), Recorder({**PORT, ("kind", "get", "clusters"): "seatrial-other\n"})
    KindProvider(settings, run).up()
    name, kubeconfig = settings.name, f"--kubeconfig={settings.kubeconfig}"
    kubectl = ["/tools/kubectl", kubeconfig]
    assert run.commands == [
        ["kind", "get", "clusters"],
        ["kind", "create", "cluster", f"--name={name}", f"--config={checkout}/kind-config.yaml", kubeconfig, "--wait=180s"],
        ["kind", "load", "image-archive", f"{settings.state_dir}/images/versitygw.tar", f"--name={name}"],
        [*kubectl, "apply", "--server-side", "--force-conflicts", "--filename=-"],
        [*kubectl, "rollout", "status", "deployment/s3", "--namespace=seatrial-s3", "--timeout=120s"],
        ["docker", "port", f"{name}-control-plane", "30900/tcp"],
    ]
    assert run.folders[1] == settings.state_dir


@pytest.mark.usefixtures("quiet")
def test_up_leaves_a_cluster_that_runs(tmp_path: Path, checkout: Path) -> None:
    settings = make_settings(tmp_path, checkout)
    run = Recorder({**PORT, ("kind", "get", "clusters"): f"{settings.name}\n"})
    KindProvider(settings, run).up()
    started = [command[:3] for command in run.commands if command[0] == "kind"]
    assert started == [["kind", "get", "clusters"], ["kind", "export", "kubeconfig"], ["kind", "load", "image-archive"]]


@pytest.mark.usefixtures("quiet")
def test_up_puts_the_audit_policy_where_the_config_mounts_it(tmp_path: Path, checkout: Path) -> None:
    settings = make_settings(tmp_path, checkout)
    KindProvider(settings, Recorder(PORT)).up()
    assert yaml.safe_load((settings.audit_dir / "audit-policy.json").read_text()) == audit_policy()


@pytest.mark.usefixtures("quiet")
def test_the_s3_server_is_reached_by_the_port_that_docker_chose(tmp_path: Path, checkout: Path) -> None:
    endpoints = KindProvider(make_settings(tmp_path, checkout), Recorder(PORT)).endpoints()
    assert (endpoints.s3_internal, endpoints.s3_external) == (
        "http://s3.seatrial-s3.svc.cluster.local:9000",
        "http://127.0.0.1:49153",
    )


def test_down_deletes_this_cluster_and_its_state(tmp_path: Path, checkout: Path) -> None:
    settings, run = make_settings(tmp_path, checkout), Recorder()
    settings.state_dir.mkdir()
    KindProvider(settings, run).down()
    assert run.commands == [["kind", "delete", "cluster", f"--name={settings.name}", f"--kubeconfig={settings.kubeconfig}"]]
    assert not settings.state_dir.exists()


def test_a_component_is_hit_inside_kinds_node(tmp_path: Path, checkout: Path) -> None:
    settings, run = make_settings(tmp_path, checkout), Recorder()
    KindProvider(settings, run).kill("controller-manager", 9)
    # The kernel keeps 15 characters of a process's name.
    assert run.commands == [["docker", "exec", f"{settings.name}-control-plane", "pkill", "--signal=9", "--exact", "kube-controller"]]


def test_an_unknown_component_is_refused_with_those_that_there_are(tmp_path: Path, checkout: Path) -> None:
    with pytest.raises(ClusterError, match="no component 'dns'; there are etcd, apiserver"):
        KindProvider(make_settings(tmp_path, checkout), Recorder()).kill("dns", 9)


# --- kind-config.yaml


def test_the_audit_log_of_kind_lies_where_it_is_looked_for(checkout: Path) -> None:
    config = yaml.safe_load((checkout / "kind-config.yaml").read_text())
    (node,) = config["nodes"]
    (mount,) = node["extraMounts"]
    server = yaml.safe_load(node["kubeadmConfigPatches"][0])["apiServer"]
    (volume,) = server["extraVolumes"]
    settings = load({}, checkout=checkout)
    assert mount["hostPath"] == f"./{settings.audit_dir.relative_to(settings.state_dir)}"
    assert mount["containerPath"] == volume["hostPath"] == volume["mountPath"]
    assert server["extraArgs"]["audit-log-path"] == f"{volume['mountPath']}/{settings.audit_log.name}"
    assert server["extraArgs"]["audit-policy-file"] == f"{volume['mountPath']}/audit-policy.json"


DOCKER_WITHOUT_DAEMON = """
echo "$*" >> "$DOCKER_RECORD"
case "$1 $2" in
  "network ls") echo 0123456789ab ;;
  "network inspect") echo '[{"Id":"0123456789ab","IPAM":{"Config":[{"Subnet":"172.18.0.0/16"}]}}]' ;;
  "info "*) echo '{"CgroupVersion":"2","MemoryLimit":true,"PidsLimit":true,"CPUShares":true,"SecurityOptions":[]}' ;;
  "run "*) echo "no containers here" >&2; exit 125 ;;
esac"""


def test_kinds_own_loader_takes_the_config_and_asks_docker_for_our_port_and_mount(tmp_path: Path, checkout: Path) -> None:
    """Without Docker, the furthest that kind gets: it parses and checks the file, then starts the node's container."""
    binary = gobuild.build(load(os.environ, checkout=checkout), "kind")
    fake_program(tmp_path / "bin", "docker", DOCKER_WITHOUT_DAEMON)
    record = tmp_path / "record"
    argv = [
        str(binary),
        "create",
        "cluster",
        "--name=probe",
        f"--config={checkout}/kind-config.yaml",
        f"--kubeconfig={tmp_path}/kubeconfig",
    ]
    environ = {
        "PATH": f"{tmp_path}/bin:/usr/bin:/bin",
        "DOCKER_RECORD": str(record),
        "KIND_EXPERIMENTAL_PROVIDER": "docker",
        "HOME": str(tmp_path),
    }
    done = subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert "no containers here" in done.stderr
    (started,) = [line.split() for line in record.read_text().splitlines() if line.startswith("run ")]
    assert f"--volume={tmp_path}/audit:/var/log/kubernetes" in started
    published = [word.removeprefix("--publish=127.0.0.1:").partition(":") for word in started if word.startswith("--publish=")]
    assert sorted(target for _, _, target in published) == ["30900/TCP", "6443/TCP"]
    assert all(port.isdecimal() and int(port) > 0 for port, _, _ in published)


# --- health


def test_a_server_that_is_not_there_is_named() -> None:
    fault = health.http_fault("http://127.0.0.1:1/healthz")
    assert fault is not None
    assert fault.startswith("http://127.0.0.1:1/healthz does not answer: ")
