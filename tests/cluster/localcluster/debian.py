"""What comes from the distribution: packages of the node and the base of the task images."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from localcluster import shell
from localcluster.settings import ClusterError

NODE_PACKAGES: Mapping[str, str] = {
    "etcd-server": "/usr/bin/etcd",
    "containerd": "/usr/bin/containerd",
    "runc": "/usr/sbin/runc",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "iptables": "/usr/sbin/iptables",
    "ipset": "/usr/sbin/ipset",
    "conntrack": "/usr/sbin/conntrack",
    "iproute2": "/sbin/ip",
    "openssl": "/usr/bin/openssl",
    "util-linux": "/usr/bin/nsenter",
    "mount": "/usr/bin/mount",
    "kmod": "/sbin/modprobe",
}
"""Package -> the file that shows that it is there."""

IMAGE_PACKAGES: Mapping[str, str] = {"buildah": "/usr/bin/buildah", "debootstrap": "/usr/sbin/debootstrap", "tar": "/usr/bin/tar"}


def missing_packages(packages: Mapping[str, str], *, root: Path = Path("/")) -> list[str]:
    return [name for name, file in packages.items() if not (root / file.lstrip("/")).exists()]


def install(packages: Mapping[str, str]) -> None:
    """Install what is missing, without starting any service that comes with it.

    Raises:
        ClusterError: not a Debian, not root, or the packages cannot be had.
    """
    missing = missing_packages(packages)
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise ClusterError(f"missing: {', '.join(missing)}; install them, or install Docker and kind")
    with shell.step(f"installed {', '.join(missing)}"), _no_services():
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        argv = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
        try:
            shell.run(argv, env=environ)
        except ClusterError:
            shell.run(["apt-get", "update"], env=environ)
            shell.run(argv, env=environ)


@contextlib.contextmanager
def _no_services() -> Iterator[None]:
    """Keep Debian from starting etcd and containerd as services of the machine: policy-rc.d is its documented way."""
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():
        yield
        return
    shell.write(policy, "#!/bin/sh\nexit 101\n", mode=0o755)
    try:
        yield
    finally:
        policy.unlink()
