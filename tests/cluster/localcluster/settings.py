"""Where a local cluster lives and what it is called.

Everything that differs between two checkouts on one machine is derived here from the checkout's path, so that they never share
a folder, an interface, a cgroup or an address.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# A socket address holds 108 bytes; the longest socket below the state folder is "run/containerd.sock.ttrpc".
MAX_STATE_DIR_BYTES = 80

NODE_NAME = "seatrial"
S3_NAMESPACE = "seatrial-s3"
S3_PORT = 9000
S3_NODE_PORT = 30900
REGISTRY_NAMESPACE = "seatrial-registry"
REGISTRY_PORT = 5000
REGISTRY_NODE_PORT = 30500
S3_REGION = "us-east-1"
S3_BUCKET = "seatrial"
S3_TEST_BUCKET = "seatrial-test"

POD_CIDR = "10.244.0.0/16"
NODE_POD_CIDR = "10.244.0.0/24"
"""The first /24 of POD_CIDR: what the controller-manager gives to the first and only node."""
SERVICE_CIDR = "10.96.0.0/16"
KUBERNETES_SERVICE_IP = "10.96.0.1"
DNS_SERVICE_IP = "10.96.0.10"
CLUSTER_DOMAIN = "cluster.local"


class ClusterError(Exception):
    """The local cluster cannot do what was asked; the message names the thing, the fault and the next step."""


@dataclass(frozen=True)
class Settings:
    """Where things are. Built once, from the environment, by ``load``."""

    checkout: Path
    """The repository's root."""
    state_dir: Path
    """All that one cluster owns; deleted by ``down``. SEATRIAL_STATE_DIR."""
    cache_dir: Path
    """Builds by content, shared between checkouts, kept by ``down``. SEATRIAL_CACHE_DIR."""
    provider: str
    """auto, native or kind. SEATRIAL_PROVIDER."""
    max_pods: int
    """Pods that the node takes at a time, the kubelet's own default. SEATRIAL_MAX_PODS."""

    @property
    def ident(self) -> str:
        """Eight hexadecimal digits that tell this cluster from any other on the machine."""
        return hashlib.sha256(os.fsencode(self.state_dir)).hexdigest()[:8]

    @property
    def name(self) -> str:
        """Name of the cluster in kubeconfig, in kind and of its cgroup."""
        return f"seatrial-{self.ident}"

    @property
    def kubeconfig(self) -> Path:
        return self.state_dir / "kubeconfig"

    @property
    def s3_file(self) -> Path:
        """JSON ``{"accessKey": …, "secretKey": …}``, mode 0600."""
        return self.state_dir / "s3.json"

    @property
    def audit_dir(self) -> Path:
        """Folder of the API server's audit log."""
        return self.state_dir / "audit"

    @property
    def audit_log(self) -> Path:
        """One JSON audit event a line, level Metadata."""
        return self.audit_dir / "audit.log"

    @property
    def lock_file(self) -> Path:
        # Beside the builds, because ``down`` deletes the state folder while it holds the lock.
        return self.cache_dir / "locks" / f"{self.ident}.lock"


def load(environ: Mapping[str, str], *, checkout: Path) -> Settings:
    """Read the settings.

    Args:
        environ: environment variables; the fields of ``Settings`` name the ones that count.
        checkout: root of the repository.

    Raises:
        ClusterError: a value that cannot work.
    """
    checkout = checkout.resolve()
    default_state = Path("/var/lib/seatrial") / hashlib.sha256(os.fsencode(checkout)).hexdigest()[:8]
    state_dir = Path(os.path.abspath(environ.get("SEATRIAL_STATE_DIR") or default_state))
    if len(os.fsencode(state_dir)) > MAX_STATE_DIR_BYTES:
        raise ClusterError(
            f"SEATRIAL_STATE_DIR {state_dir} is longer than {MAX_STATE_DIR_BYTES} bytes, too long for its sockets; choose a shorter one"
        )
    home = environ.get("HOME") or "/root"
    cache_dir = Path(os.path.abspath(environ.get("SEATRIAL_CACHE_DIR") or Path(home) / ".cache" / "seatrial"))
    provider = environ.get("SEATRIAL_PROVIDER") or "auto"
    if provider not in {"auto", "native", "kind"}:
        raise ClusterError(f"SEATRIAL_PROVIDER is {provider!r}; use auto, native or kind")
    max_pods = environ.get("SEATRIAL_MAX_PODS") or "110"
    if not max_pods.isdecimal() or not 1 <= int(max_pods) <= 250:
        raise ClusterError(f"SEATRIAL_MAX_PODS is {max_pods!r}; use a number from 1 to 250, the addresses of the node's Pod network")
    return Settings(checkout=checkout, state_dir=state_dir, cache_dir=cache_dir, provider=provider, max_pods=int(max_pods))
