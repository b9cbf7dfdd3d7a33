"""A real Kueue beside the cluster: its controller as a process of this machine, its kinds in the API server.

Without its webhooks: they default and check what users write, and the API server need not reach a process outside for that.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .harness import REPOSITORY, Cluster, wait_until

GROUP = "kueue.x-k8s.io"
MODULE = REPOSITORY / "tests" / "cluster" / "go" / "kueue"


@dataclass
class Kueue:
    """The running controller."""

    process: subprocess.Popen[bytes]
    log: Path

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)


def install(cluster: Cluster) -> None:
    """Its kinds, from the module that the controller is built of."""
    found = subprocess.run(
        ["go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kueue"], cwd=MODULE, capture_output=True, text=True, check=True
    )
    folder = Path(found.stdout.strip()) / "config" / "components" / "crd" / "bases"
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "--filename", str(folder), timeout=300)
    names = [f"customresourcedefinition/{path.stem.partition('_')[2]}.kueue.x-k8s.io" for path in sorted(folder.glob("*.yaml"))]
    cluster.kubectl("wait", *names, "--for=condition=Established", "--timeout=60s")


def start(cluster: Cluster, folder: Path) -> Kueue:
    """Build it, install its kinds, and wait until it works."""
    sys.path.insert(0, str(REPOSITORY / "tests" / "cluster"))
    from localcluster import gobuild, settings

    program = gobuild.build(settings.load({}, checkout=REPOSITORY), "kueue")
    install(cluster)
    # Its webhook server starts whether anybody asks it or not.
    pair = ["-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=kueue", *pair],
        check=True,
        capture_output=True,
    )
    health, webhook = free_port(), free_port()
    configuration: dict[str, Any] = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"port": webhook, "host": "127.0.0.1", "certDir": str(folder)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "featureGates": {"VisibilityOnDemand": False},
        "integrations": {"frameworks": ["batch/job"]},
    }
    (folder / "kueue.yaml").write_text(yaml.safe_dump(configuration))
    log = folder / "kueue.log"
    # Where it looks for the certificate of its metrics is fixed: it sees an /etc with that, and nobody else does.
    place = folder / "etc" / "kueue" / "metrics" / "certs"
    place.mkdir(parents=True)
    for name in ("tls.key", "tls.crt"):
        shutil.copy(folder / name, place / name)
    script = f'mount -t overlay overlay -o "lowerdir={folder / "etc"}:/etc" /etc && exec "$@"'
    command = ["unshare", "--mount", "--", "sh", "-c", script, "sh", str(program), f"--config={folder / 'kueue.yaml'}"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=cluster.environment(), stdout=out, stderr=subprocess.STDOUT)
    found = Kueue(process, log)
    try:
        wait_until(lambda: is_ready(found, health), lambda ready: ready, timeout=120, what=f"Kueue; see {log}")
    except AssertionError:
        found.stop()
        raise
    return found


def is_ready(kueue: Kueue, port: int) -> bool:
    assert kueue.process.poll() is None, f"Kueue has ended: {kueue.log.read_text()[-3000:]}"
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
            return True
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
