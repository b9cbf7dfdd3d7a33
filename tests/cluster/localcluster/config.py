"""What each component of the single node is told: configuration files as values and command lines. No effects here."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster.certificates import FRONT_PROXY
from localcluster.settings import (
    CLUSTER_DOMAIN,
    DNS_SERVICE_IP,
    NODE_NAME,
    NODE_POD_CIDR,
    POD_CIDR,
    REGISTRY_NODE_PORT,
    SERVICE_CIDR,
    Settings,
)

PAUSE_IMAGE = "seatrial.local/pause:1"
BRIDGE = "cni0"
SERVICE_ACCOUNT_ISSUER = "https://kubernetes.default.svc.cluster.local"


@dataclass(frozen=True)
class Node:
    """What one ``up`` knows about its node; the input of everything below."""

    settings: Settings
    host_ip: str
    """The machine's end of the cable to the node."""
    ip: str
    """The node's end, its InternalIP."""
    kube: Path
    """The binary of all Kubernetes components."""
    kube_router: Path
    mtu: int = 1500

    @property
    def dir(self) -> Path:
        return self.settings.state_dir

    @property
    def pki(self) -> Path:
        return self.dir / "pki"

    @property
    def config(self) -> Path:
        return self.dir / "config"

    @property
    def containerd_socket(self) -> Path:
        return self.dir / "run" / "containerd.sock"

    @property
    def registry(self) -> str:
        """Host and port of the cluster's registry, the same for the machine, the node and Pods."""
        return f"{self.ip}:{REGISTRY_NODE_PORT}"

    @property
    def api_url(self) -> str:
        return f"https://{self.ip}:6443"

    @property
    def cgroup(self) -> str:
        """Parent of all Pods' cgroups, of this cluster only: a kubelet removes Pods' cgroups that it does not know."""
        return f"/{self.settings.name}"


def kubeconfig(node: Node, user: str) -> dict[str, Any]:
    """A kubeconfig of one of the cluster's users, with everything inside."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": node.settings.name,
        "clusters": [
            {"name": node.settings.name, "cluster": {"server": node.api_url, "certificate-authority-data": _base64(node.pki / "ca.crt")}}
        ],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": _base64(node.pki / f"{user}.crt"),
                    "client-key-data": _base64(node.pki / f"{user}.key"),
                },
            }
        ],
        "contexts": [{"name": node.settings.name, "context": {"cluster": node.settings.name, "user": user}}],
    }


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def audit_policy() -> dict[str, Any]:
    """Every request once, when it is answered; without the leases and the health checks of the components themselves."""
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "omitManagedFields": True,
        "rules": [
            {"level": "None", "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*"]},
            {
                "level": "None",
                "users": ["system:kube-controller-manager", "system:kube-scheduler", f"system:node:{NODE_NAME}", "system:apiserver"],
                "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}],
            },
            {"level": "Metadata"},
        ],
    }


def containerd_config(node: Node) -> str:
    """containerd's TOML.

    ``restrict_oom_score_adj``: without CAP_SYS_RESOURCE no sandbox could start. State stays in /run, which is the node's own.
    """
    return f"""\
version = 2
root = {json.dumps(str(node.dir / "containerd"))}
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper"]

[grpc]
  address = {json.dumps(str(node.containerd_socket))}

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = {json.dumps(PAUSE_IMAGE)}
  restrict_oom_score_adj = true
  max_concurrent_downloads = 3

[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = {json.dumps(str(node.config / "registries"))}

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = {json.dumps(str(node.config / "cni"))}

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = false
"""


def registry_hosts(node: Node) -> str:
    """containerd's view of the cluster's registry: plain HTTP."""
    address = json.dumps(f"http://{node.registry}")
    return f'server = {address}\n\n[host.{address}]\n  capabilities = ["pull", "resolve"]\n'


def cni_config(node: Node) -> dict[str, Any]:
    return {
        "cniVersion": "0.4.0",
        "name": "seatrial",
        "plugins": [
            {
                "type": "bridge",
                "bridge": BRIDGE,
                "isGateway": True,
                # One rule of the node's does it for all Pods (network.connect): a Pod's own would take a dozen calls of iptables each.
                "ipMasq": False,
                "hairpinMode": True,
                "mtu": node.mtu,
                "ipam": {
                    "type": "host-local",
                    # Below /run, so that a node that starts again does not find addresses of Pods long gone.
                    "dataDir": "/run/cni-addresses",
                    "ranges": [[{"subnet": NODE_POD_CIDR}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }


def kubelet_config(node: Node) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "0.0.0.0",
        "healthzBindAddress": node.ip,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(node.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(node.pki / "kubelet-server.crt"),
        "tlsPrivateKeyFile": str(node.pki / "kubelet-server.key"),
        "clusterDNS": [DNS_SERVICE_IP],
        "clusterDomain": CLUSTER_DOMAIN,
        "containerRuntimeEndpoint": f"unix://{node.containerd_socket}",
        "resolvConf": str(node.config / "resolv.conf"),
        "podLogsDir": str(node.dir / "pod-logs"),
        "volumePluginDir": str(node.dir / "kubelet" / "volume-plugins"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": node.cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "nodefs.inodesFree": "1%", "imagefs.available": "1%"},
        # The images are built here and could not be pulled again.
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": True,
        "maxPods": node.settings.max_pods,
        "serializeImagePulls": False,
        "registryPullQPS": 0,
        "eventRecordQPS": 0,
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "protectKernelDefaults": False,
    }


def proxy_config(node: Node) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "healthzBindAddress": f"{node.ip}:10256",
        "hostnameOverride": NODE_NAME,
        "clusterCIDR": POD_CIDR,
        "clientConnection": {"kubeconfig": str(node.config / "proxy.kubeconfig")},
        # The size of the connection table belongs to the machine, not to a network namespace.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


def config_files(node: Node, *, resolv_conf: str) -> dict[Path, str]:
    """All configuration files of the node: path -> text. Certificates must exist."""
    files = {
        node.config / f"{user}.kubeconfig": kubeconfig(node, user)
        for user in ("controller-manager", "scheduler", "kubelet", "proxy", "netpol")
    }
    values: Mapping[Path, dict[str, Any]] = {
        **files,
        node.settings.kubeconfig: kubeconfig(node, "admin"),
        node.config / "audit-policy.json": audit_policy(),
        node.config / "kubelet.json": kubelet_config(node),
        node.config / "proxy.json": proxy_config(node),
        node.config / "cni" / "10-seatrial.conflist": cni_config(node),
    }
    return {
        **{path: json.dumps(value, indent=1) + "\n" for path, value in values.items()},
        node.config / "containerd.toml": containerd_config(node),
        node.config / "registries" / node.registry / "hosts.toml": registry_hosts(node),
        node.config / "resolv.conf": resolv_conf,
    }


COMPONENTS = (
    "etcd",
    "apiserver",
    "controller-manager",
    "scheduler",
    "containerd",
    "kubelet",
    "proxy",
    "netpol",
)
"""The node's processes in the order of their start."""


def command_lines(node: Node) -> dict[str, list[str]]:
    """Component -> argv. The ports are Kubernetes' usual ones: the node's network is its own."""
    kube, pki, config = str(node.kube), node.pki, node.config
    return {
        "etcd": [
            "/usr/bin/etcd",
            "--name=seatrial",
            f"--data-dir={node.dir / 'etcd'}",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--initial-advertise-peer-urls=http://127.0.0.1:2380",
            "--initial-cluster=seatrial=http://127.0.0.1:2380",
            f"--listen-metrics-urls=http://{node.ip}:2381",
            "--unsafe-no-fsync",
            "--logger=zap",
            "--log-level=warn",
        ],
        "apiserver": [
            kube,
            "kube-apiserver",
            f"--advertise-address={node.ip}",
            "--secure-port=6443",
            "--etcd-servers=http://127.0.0.1:2379",
            f"--service-cluster-ip-range={SERVICE_CIDR}",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--kubelet-certificate-authority={pki / 'ca.crt'}",
            f"--kubelet-client-certificate={pki / 'apiserver-kubelet-client.crt'}",
            f"--kubelet-client-key={pki / 'apiserver-kubelet-client.key'}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--requestheader-client-ca-file={pki / 'ca.crt'}",
            f"--requestheader-allowed-names={FRONT_PROXY}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={pki / 'front-proxy.crt'}",
            f"--proxy-client-key-file={pki / 'front-proxy.key'}",
            f"--service-account-issuer={SERVICE_ACCOUNT_ISSUER}",
            f"--service-account-key-file={pki / 'service-account.pub'}",
            f"--service-account-signing-key-file={pki / 'service-account.key'}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            f"--audit-policy-file={config / 'audit-policy.json'}",
            f"--audit-log-path={node.settings.audit_log}",
            "--audit-log-maxsize=500",
            "--audit-log-maxbackup=2",
        ],
        "controller-manager": [
            kube,
            "kube-controller-manager",
            *_own_kubeconfigs(config / "controller-manager.kubeconfig"),
            "--use-service-account-credentials",
            f"--service-account-private-key-file={pki / 'service-account.key'}",
            f"--root-ca-file={pki / 'ca.crt'}",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--cluster-cidr={POD_CIDR}",
            "--allocate-node-cidrs",
            f"--bind-address={node.ip}",
            "--leader-elect=false",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        ],
        "scheduler": [
            kube,
            "kube-scheduler",
            *_own_kubeconfigs(config / "scheduler.kubeconfig"),
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--bind-address={node.ip}",
            "--leader-elect=false",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        ],
        "containerd": ["/usr/bin/containerd", f"--config={config / 'containerd.toml'}"],
        "kubelet": [
            kube,
            "kubelet",
            f"--config={config / 'kubelet.json'}",
            f"--kubeconfig={config / 'kubelet.kubeconfig'}",
            f"--root-dir={node.dir / 'kubelet'}",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={node.ip}",
        ],
        "proxy": [kube, "kube-proxy", f"--config={config / 'proxy.json'}"],
        "netpol": [
            str(node.kube_router),
            f"--kubeconfig={config / 'netpol.kubeconfig'}",
            "--run-firewall=true",
            "--run-router=false",
            "--run-service-proxy=false",
            "--run-loadbalancer=false",
            "--health-port=0",
            "--metrics-port=0",
            f"--hostname-override={NODE_NAME}",
        ],
    }


def _own_kubeconfigs(path: Path) -> list[str]:
    return [f"--kubeconfig={path}", f"--authentication-kubeconfig={path}", f"--authorization-kubeconfig={path}"]


def health_checks(node: Node) -> dict[str, str]:
    """Component -> address that answers 200 when it is ready. Without one, a component is healthy while it runs."""
    return {
        "etcd": f"http://{node.ip}:2381/health",
        "apiserver": f"https://{node.ip}:6443/readyz",
        "controller-manager": f"https://{node.ip}:10257/healthz",
        "scheduler": f"https://{node.ip}:10259/healthz",
        "kubelet": f"http://{node.ip}:10248/healthz",
        "proxy": f"http://{node.ip}:10256/healthz",
    }


def strip_loopback_nameservers(resolv_conf: str) -> str:
    """The machine's resolv.conf without nameservers that only the machine itself can reach; Pods cannot reach its loopback."""
    kept = [line for line in resolv_conf.splitlines() if not _is_loopback_nameserver(line)]
    return "\n".join(kept) + "\n"


def _is_loopback_nameserver(line: str) -> bool:
    words = line.split()
    return len(words) > 1 and words[0] == "nameserver" and (words[1].startswith("127.") or words[1] == "::1")
