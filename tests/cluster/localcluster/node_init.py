"""The first process of the node's namespaces: prepares its mounts and loopback, then reaps whatever loses its parent.

Run as ``python3 node_init.py STATE_DIR``. It needs nothing but the standard library and ends only when it is killed; the kernel
then ends every process of the node and drops every mount.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

READY_FILE = "run/init.ready"


def main() -> None:
    state_dir = Path(sys.argv[1])
    # Shared inside, so that the kubelet's mounts reach its Pods; a slave of the machine's, so that none of them reaches the machine.
    _run("mount", "--make-rslave", "/")
    _run("mount", "--make-rshared", "/")
    _run("mount", "-t", "proc", "proc", "/proc")
    # Sockets of shims, network namespaces of Pods, lock files: all that must not outlive this node lives in /run.
    _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    for folder in ("lock", "netns"):
        (Path("/run") / folder).mkdir()
    for own, fixed in (("var-log", "/var/log"), ("cni-results", "/var/lib/cni")):
        (state_dir / own).mkdir(parents=True, exist_ok=True)
        _run("mount", "--bind", str(state_dir / own), fixed)
    _run("ip", "link", "set", "lo", "up")
    for name in ("net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables"):
        (Path("/proc/sys") / name).write_text("1\n")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    (state_dir / READY_FILE).touch()
    while True:
        signal.sigwait({signal.SIGCHLD})
        _reap()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True)


if __name__ == "__main__":
    main()
