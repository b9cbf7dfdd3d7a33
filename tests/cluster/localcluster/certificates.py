"""The cluster's certificate authority and all its certificates, by openssl.

They pass the strict checks of Python 3.13: basicConstraints, keyUsage, subject and authority key identifiers everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localcluster import shell
from localcluster.settings import KUBERNETES_SERVICE_IP, NODE_NAME

DAYS = 3650
FRONT_PROXY = "front-proxy-client"
"""Who may speak for users to extension API servers."""


@dataclass(frozen=True)
class Certificate:
    """One key pair ``NAME.crt``, ``NAME.key``."""

    name: str
    common_name: str
    organisation: str = ""
    server_names: tuple[str, ...] = ()
    """subjectAltName entries such as "DNS:localhost"; empty for a client."""


def certificates(node_ip: str) -> tuple[Certificate, ...]:
    """All the certificates of a cluster whose node has this address."""
    local = ("DNS:localhost", "IP:127.0.0.1", f"IP:{node_ip}")
    kubernetes = ("DNS:kubernetes", "DNS:kubernetes.default", "DNS:kubernetes.default.svc", "DNS:kubernetes.default.svc.cluster.local")
    return (
        Certificate("apiserver", "kube-apiserver", server_names=(*kubernetes, *local, f"IP:{KUBERNETES_SERVICE_IP}")),
        Certificate("kubelet-server", f"system:node:{NODE_NAME}", "system:nodes", server_names=(f"DNS:{NODE_NAME}", *local)),
        Certificate("apiserver-kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
        Certificate("admin", "kubernetes-admin", "system:masters"),
        Certificate("kubelet", f"system:node:{NODE_NAME}", "system:nodes"),
        Certificate("controller-manager", "system:kube-controller-manager"),
        Certificate("scheduler", "system:kube-scheduler"),
        Certificate("proxy", "system:kube-proxy"),
        Certificate("netpol", "seatrial:netpol"),
        Certificate("front-proxy", FRONT_PROXY),
    )


def openssl_config(certificate: Certificate | None) -> str:
    """openssl's request configuration; for the certificate authority itself with None."""
    if certificate is None:
        subject = ["CN = seatrial-local"]
        extensions = ["basicConstraints = critical, CA:TRUE", "keyUsage = critical, digitalSignature, keyCertSign, cRLSign"]
    else:
        subject = [f"CN = {certificate.common_name}", *([f"O = {certificate.organisation}"] if certificate.organisation else [])]
        usage = "serverAuth" if certificate.server_names else "clientAuth"
        extensions = [
            "basicConstraints = critical, CA:FALSE",
            "keyUsage = critical, digitalSignature",
            f"extendedKeyUsage = {usage}",
            "authorityKeyIdentifier = keyid",
            *([f"subjectAltName = {', '.join(certificate.server_names)}"] if certificate.server_names else []),
        ]
    head = ["[req]", "prompt = no", "distinguished_name = subject", "string_mask = utf8only"]
    return "\n".join([*head, "[subject]", *subject, "[extensions]", "subjectKeyIdentifier = hash", *extensions, ""])


def issue(folder: Path, *, node_ip: str) -> None:
    """Make what is missing of authority, service account key and certificates in ``folder``; a finished folder is left alone."""
    done = folder / "complete"
    if done.exists() and done.read_text() == node_ip:
        return
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    elliptic = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    _request(
        folder, "ca", None, ["-x509", "-days", str(DAYS), "-extensions", "extensions", *elliptic, "-keyout", "ca.key", "-out", "ca.crt"]
    )
    for certificate in certificates(node_ip):
        name = certificate.name
        _request(folder, name, certificate, ["-new", *elliptic, "-keyout", f"{name}.key", "-out", f"{name}.csr"])
        signing = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", str(DAYS), "-sha256"]
        extensions = ["-extfile", f"{name}.cnf", "-extensions", "extensions"]
        shell.run(["openssl", "x509", "-req", "-in", f"{name}.csr", *signing, *extensions, "-out", f"{name}.crt"], cwd=folder)
        (folder / f"{name}.csr").unlink()
    shell.run(["openssl", "genrsa", "-out", "service-account.key", "2048"], cwd=folder)
    shell.run(["openssl", "rsa", "-in", "service-account.key", "-pubout", "-out", "service-account.pub"], cwd=folder)
    shell.write(done, node_ip)


def _request(folder: Path, name: str, certificate: Certificate | None, argv: Sequence[str]) -> None:
    shell.write(folder / f"{name}.cnf", openssl_config(certificate))
    shell.run(["openssl", "req", "-config", f"{name}.cnf", *argv], cwd=folder)
