"""What runs in the cluster itself: DNS, the S3 server, the rights of the node's processes. Manifests as values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from localcluster.settings import (
    CLUSTER_DOMAIN,
    DNS_SERVICE_IP,
    REGISTRY_NAMESPACE,
    REGISTRY_NODE_PORT,
    REGISTRY_PORT,
    S3_NAMESPACE,
    S3_NODE_PORT,
    S3_PORT,
    S3_REGION,
)

COREDNS_IMAGE = "seatrial.local/coredns:1.14.3"
S3_IMAGE = "seatrial.local/versitygw:1.8.0"
REGISTRY_IMAGE = "seatrial.local/registry:3.1.2"
KANIKO_IMAGE = "seatrial.local/kaniko:1.24.0"
S3_UID = 65532

REGISTRY_CONFIG = """\
version: 0.1
log: {level: warn, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: /data}, delete: {enabled: true}}
http: {addr: ":5000", secret: no-uploads-survive-a-restart}
"""

COREFILE = f"""\
.:53 {{
    errors
    health :8080
    ready :8181
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa ip6.arpa {{
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 5
    }}
    forward . /etc/resolv.conf
    cache 10
}}
"""

RESTRICTED: dict[str, Any] = {
    "runAsNonRoot": True,
    "runAsUser": S3_UID,
    "runAsGroup": S3_UID,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def netpol_manifests() -> list[dict[str, Any]]:
    """Rights of the process that enforces NetworkPolicies."""
    rules = [
        {"apiGroups": [""], "resources": ["namespaces", "pods", "services", "nodes", "endpoints"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]},
    ]
    return [
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "seatrial:netpol"}, "rules": rules},
        _cluster_role_binding(
            "seatrial:netpol", subject={"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "seatrial:netpol"}
        ),
    ]


def dns_manifests() -> list[dict[str, Any]]:
    """CoreDNS under the names and labels that every cluster uses for its DNS."""
    labels = {"k8s-app": "kube-dns"}
    read = ["list", "watch"]
    container = {
        "name": "coredns",
        "image": COREDNS_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "ports": [{"name": "dns", "containerPort": 53, "protocol": "UDP"}, {"name": "dns-tcp", "containerPort": 53, "protocol": "TCP"}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 2},
        "livenessProbe": {"httpGet": {"path": "/health", "port": 8080}, "failureThreshold": 5},
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        "securityContext": RESTRICTED,
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns", "readOnly": True}],
    }
    metadata = {"name": "coredns", "namespace": "kube-system"}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "system:coredns"},
            "rules": [
                {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": read},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read},
            ],
        },
        _cluster_role_binding("system:coredns", subject={"kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system"}),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"Corefile": COREFILE}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": labels},
            "spec": {
                "clusterIP": DNS_SERVICE_IP,
                "selector": labels,
                "ports": [
                    {"name": "dns", "port": 53, "targetPort": 53, "protocol": "UDP"},
                    {"name": "dns-tcp", "port": 53, "targetPort": 53, "protocol": "TCP"},
                ],
            },
        },
        _deployment(
            metadata,
            labels=labels,
            pod={
                "serviceAccountName": "coredns",
                "priorityClassName": "system-cluster-critical",
                "dnsPolicy": "Default",
                # Port 53 without root: policies of other charts name that port at the Pods too.
                "securityContext": {"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]},
                "containers": [container],
                "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
            },
        ),
    ]


def s3_manifests(*, access_key: str, secret_key: str, data_dir: Path | None) -> list[dict[str, Any]]:
    """The S3 server: Service ``s3`` on port 9000 inside, NodePort outside, credentials in Secret ``s3-credentials``.

    Args:
        access_key: of the server's only account.
        secret_key: of the same.
        data_dir: folder of the node for the objects, owned by S3_UID; None keeps them as long as the Pod.
    """
    labels = {"app.kubernetes.io/name": "s3"}
    namespace = {"namespace": S3_NAMESPACE}
    container = {
        "name": "s3",
        "image": S3_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "args": ["posix", "/data"],
        "env": [
            {"name": "VGW_PORT", "value": f":{S3_PORT}"},
            {"name": "VGW_REGION", "value": S3_REGION},
            {"name": "VGW_HEALTH", "value": "/healthz"},
            {"name": "VGW_QUIET", "value": "true"},
            {"name": "ROOT_ACCESS_KEY", "valueFrom": {"secretKeyRef": {"name": "s3-credentials", "key": "accessKey"}}},
            {"name": "ROOT_SECRET_KEY", "valueFrom": {"secretKeyRef": {"name": "s3-credentials", "key": "secretKey"}}},
        ],
        "ports": [{"name": "s3", "containerPort": S3_PORT}],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": S3_PORT}, "periodSeconds": 2},
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
        "securityContext": RESTRICTED,
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    data: dict[str, Any] = {"hostPath": {"path": str(data_dir), "type": "Directory"}} if data_dir else {"emptyDir": {}}
    volumes = [{"name": "data", **data}, {"name": "tmp", "emptyDir": {}}]
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": S3_NAMESPACE}},
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "s3-credentials", **namespace},
            "stringData": {"accessKey": access_key, "secretKey": secret_key},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "s3", **namespace},
            "spec": {
                "type": "NodePort",
                "selector": labels,
                "ports": [{"name": "s3", "port": S3_PORT, "targetPort": S3_PORT, "nodePort": S3_NODE_PORT}],
            },
        },
        _deployment(
            {"name": "s3", **namespace},
            labels=labels,
            pod={"automountServiceAccountToken": False, "terminationGracePeriodSeconds": 5, "containers": [container], "volumes": volumes},
        ),
    ]


def registry_manifests(data_dir: Path) -> list[dict[str, Any]]:
    """An OCI registry without credentials: Service ``registry``, reached at the node's address by everybody.

    Args:
        data_dir: folder of the node for the images, owned by S3_UID.
    """
    labels = {"app.kubernetes.io/name": "registry"}
    metadata = {"name": "registry", "namespace": REGISTRY_NAMESPACE}
    container = {
        "name": "registry",
        "image": REGISTRY_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "args": ["serve", "/etc/registry/config.yml"],
        "ports": [{"name": "http", "containerPort": REGISTRY_PORT}],
        "readinessProbe": {"httpGet": {"path": "/v2/", "port": REGISTRY_PORT}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "20m", "memory": "32Mi"}},
        "securityContext": RESTRICTED,
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "config", "mountPath": "/etc/registry", "readOnly": True}],
    }
    port = {"name": "http", "port": REGISTRY_PORT, "targetPort": REGISTRY_PORT, "nodePort": REGISTRY_NODE_PORT}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": REGISTRY_NAMESPACE}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"config.yml": REGISTRY_CONFIG}},
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"type": "NodePort", "selector": labels, "ports": [port]}},
        _deployment(
            metadata,
            labels=labels,
            pod={
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 2,
                "containers": [container],
                "volumes": [
                    {"name": "data", "hostPath": {"path": str(data_dir), "type": "Directory"}},
                    {"name": "config", "configMap": {"name": "registry"}},
                ],
            },
        ),
    ]


def internal_s3_endpoint() -> str:
    """The address that Pods use; with the trailing domain it needs no search list."""
    return f"http://s3.{S3_NAMESPACE}.svc.{CLUSTER_DOMAIN}:{S3_PORT}"


def _deployment(metadata: dict[str, str], *, labels: dict[str, str], pod: dict[str, Any]) -> dict[str, Any]:
    # Recreate: the old Pod must let go of the data and the machine need not carry two.
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**metadata, "labels": labels},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _cluster_role_binding(role: str, *, subject: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    }
