"""What the single node's components are told."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from localcluster import addons, config
from localcluster.certificates import Certificate, certificates, openssl_config
from localcluster.config import COMPONENTS, Node
from localcluster.network import Cable, choose_cable, firewall_rules, interface
from localcluster.settings import ClusterError, Settings


def make_node(state: Path = Path("/state")) -> Node:
    settings = Settings(checkout=Path("/repo"), state_dir=state, cache_dir=Path("/cache"), provider="native", max_pods=77)
    return Node(
        settings=settings, host_ip="10.213.0.1", ip="10.213.0.2", kube=Path("/bin/kube"), kube_router=Path("/bin/kube-router"), mtu=1400
    )


def test_every_component_has_a_command_line() -> None:
    assert tuple(config.command_lines(make_node())) == COMPONENTS


def test_the_api_server_authorises_by_node_and_rbac_and_writes_an_audit_log() -> None:
    argv = config.command_lines(make_node())["apiserver"]
    assert argv[:2] == ["/bin/kube", "kube-apiserver"]
    wanted = {
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--audit-log-path=/state/audit/audit.log",
        "--audit-policy-file=/state/config/audit-policy.json",
    }
    assert wanted <= set(argv)


def test_nothing_of_a_node_lies_outside_its_state_folder() -> None:
    node = make_node()
    text = json.dumps(config.command_lines(node)) + config.containerd_config(node) + json.dumps(config.kubelet_config(node))
    text += json.dumps(config.proxy_config(node)) + json.dumps(config.cni_config(node))
    paths = set(re.findall(r'(?:(?<=")|(?<==)|(?<=unix:/)|(?<=unix://))/[a-z][^",= ]*', text))
    allowed = ("/state/", "/usr/bin/", "/usr/lib/cni", "/bin/kube", "/run/", node.cgroup)
    assert "/state/run/containerd.sock" in paths
    assert {path for path in paths if not path.startswith(allowed)} == set()


def test_audit_level_is_metadata_for_all_but_health_checks_and_leases() -> None:
    rules = config.audit_policy()["rules"]
    assert [rule["level"] for rule in rules] == ["None", "None", "Metadata"]
    assert rules[-1] == {"level": "Metadata"}


def test_containerd_works_without_cap_sys_resource_and_takes_our_pause_image() -> None:
    cri = tomllib.loads(config.containerd_config(make_node()))["plugins"]["io.containerd.grpc.v1.cri"]
    assert (cri["restrict_oom_score_adj"], cri["sandbox_image"]) == (True, config.PAUSE_IMAGE)
    assert cri["cni"] == {"bin_dir": "/usr/lib/cni", "conf_dir": "/state/config/cni"}


def test_kubelet_settings_that_the_node_depends_on() -> None:
    kubelet = config.kubelet_config(make_node())
    chosen = {
        name: kubelet[name]
        for name in (
            "failCgroupV1",
            "cgroupDriver",
            "cgroupRoot",
            "failSwapOn",
            "enforceNodeAllocatable",
            "maxPods",
            "imageGCHighThresholdPercent",
        )
    }
    assert chosen == {
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": make_node().cgroup,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "maxPods": 77,
        "imageGCHighThresholdPercent": 100,
    }


def test_pods_get_the_mtu_of_the_machine() -> None:
    assert config.cni_config(make_node())["plugins"][0]["mtu"] == 1400


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("nameserver 192.0.2.1\n", "nameserver 192.0.2.1\n"),
        ("search a.b\nnameserver 127.0.0.53\nnameserver 192.0.2.1\n", "search a.b\nnameserver 192.0.2.1\n"),
        ("nameserver ::1\n", "\n"),
    ],
)
def test_pods_are_not_sent_to_the_machines_loopback_for_dns(given: str, kept: str) -> None:
    assert config.strip_loopback_nameservers(given) == kept


# --- certificates


def test_every_certificate_is_strict() -> None:
    for certificate in certificates("10.213.0.2"):
        text = openssl_config(certificate)
        for line in ("basicConstraints = critical, CA:FALSE", "keyUsage = critical, digitalSignature", "subjectKeyIdentifier = hash"):
            assert line in text.splitlines()
        assert "authorityKeyIdentifier = keyid" in text.splitlines()


def test_the_kubelets_certificate_names_the_nodes_address() -> None:
    by_name = {certificate.name: certificate for certificate in certificates("10.213.0.2")}
    assert by_name["kubelet-server"].server_names == ("DNS:seatrial", "DNS:localhost", "IP:127.0.0.1", "IP:10.213.0.2")


def test_only_two_users_are_masters() -> None:
    masters = {certificate.name for certificate in certificates("10.213.0.2") if certificate.organisation == "system:masters"}
    assert masters == {"admin", "apiserver-kubelet-client"}


def test_a_clients_certificate_serves_nobody() -> None:
    assert "extendedKeyUsage = clientAuth" in openssl_config(Certificate("scheduler", "system:kube-scheduler")).splitlines()


# --- network


def test_a_cluster_takes_the_same_cable_while_it_is_free() -> None:
    assert choose_cable("00000005", taken=["192.0.2.0/24"]) == choose_cable("00000005", taken=[])
    assert choose_cable("00000005", taken=[]).node_ip == "10.213.0.22"


def test_a_cable_in_use_is_passed_over() -> None:
    taken = choose_cable("00000005", taken=[])
    assert choose_cable("00000005", taken=[str(taken.subnet)]).subnet.network_address == taken.subnet.broadcast_address + 1


def test_no_free_cable_is_an_error_that_says_so() -> None:
    with pytest.raises(ClusterError, match=r"no free piece of 10\.213\.0\.0/16"):
        choose_cable("00000005", taken=["10.0.0.0/8"])


def test_every_rule_on_the_machine_carries_the_clusters_name() -> None:
    settings = make_node().settings
    rules = firewall_rules(settings, Cable(choose_cable("00000005", taken=[]).subnet))
    assert [rule[:2] for rule in rules] == [["nat", "POSTROUTING"], ["filter", "FORWARD"], ["filter", "FORWARD"]]
    assert all(rule[rule.index("--comment") + 1] == settings.name for rule in rules)


def test_the_interfaces_name_is_short_enough_for_linux() -> None:
    assert len(interface(make_node().settings)) <= 15


# --- what runs in the cluster


def test_the_clusters_own_pods_are_restricted_and_pull_nothing() -> None:
    manifests = [*addons.dns_manifests(), *addons.s3_manifests(access_key="a", secret_key="s", data_dir=Path("/state/s3"))]
    containers = [
        container
        for manifest in manifests
        if manifest["kind"] == "Deployment"
        for container in manifest["spec"]["template"]["spec"]["containers"]
    ]
    assert [container["name"] for container in containers] == ["coredns", "s3"]
    assert all(container["securityContext"] == addons.RESTRICTED for container in containers)
    assert all(container["imagePullPolicy"] == "IfNotPresent" for container in containers)


def test_s3_credentials_are_in_the_secret_only() -> None:
    manifests = addons.s3_manifests(access_key="identity", secret_key="hidden", data_dir=None)
    holders = [manifest["kind"] for manifest in manifests if any(word in json.dumps(manifest) for word in ("identity", "hidden"))]
    assert holders == ["Secret"]
