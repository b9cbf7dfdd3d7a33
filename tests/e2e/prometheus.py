"""A real Prometheus on loopback that scrapes the operator through the API server."""

from __future__ import annotations

import base64
import json
import math
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .harness import REPOSITORY, wait_until
from .ops import DEPLOYMENT, NAMESPACE

PROGRAM = "/usr/bin/prometheus"


@dataclass
class Prometheus:
    """A running server."""

    url: str
    process: subprocess.Popen[bytes]

    def ask(self, path: str, **parameters: str) -> Any:
        """``data`` of an answer of the HTTP API.

        Raises:
            AssertionError: Prometheus refuses the question.
        """
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=20) as answer:
                return json.loads(answer.read())["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def values(self, expr: str) -> list[float]:
        """Finite values of an instant query."""
        found = self.ask("query", query=expr)
        samples = [found["value"]] if found["resultType"] == "scalar" else [item["value"] for item in found["result"]]
        return [number for _, text in samples if math.isfinite(number := float(text))]

    def firing(self) -> set[str]:
        return {item["labels"]["alertname"] for item in self.ask("alerts")["alerts"] if item["state"] == "firing"}

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=20)


def start(folder: Path, *, kubeconfig: Path, rules: Mapping[str, Any], planted: str) -> Prometheus:
    """Start it with files below ``folder``; it listens on a free port of loopback and scrapes every two seconds.

    ``planted``: host and port of two replicas that the tests play, at ``/a`` and ``/b``.
    """
    sys.path.insert(0, str(REPOSITORY / "tests" / "cluster"))
    from localcluster import debian

    debian.install({"prometheus": PROGRAM})
    access = yaml.safe_load(kubeconfig.read_text())
    server, authority = access["clusters"][0]["cluster"], folder / "ca.pem"
    user, certificate, key = access["users"][0]["user"], folder / "client.pem", folder / "client-key.pem"
    for path, data in (
        (authority, server["certificate-authority-data"]),
        (certificate, user["client-certificate-data"]),
        (key, user["client-key-data"]),
    ):
        path.touch(mode=0o600)
        path.write_bytes(base64.b64decode(data))
    tls = {"ca_file": str(authority), "cert_file": str(certificate), "key_file": str(key)}
    (folder / "rules.yaml").write_text(yaml.safe_dump(dict(rules)))
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration(server["server"], tls, folder / "rules.yaml", planted=planted)))
    port = free_port()
    log = (folder / "prometheus.log").open("wb")
    process = subprocess.Popen(
        [
            PROGRAM,
            f"--config.file={folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    log.close()
    found = Prometheus(f"http://127.0.0.1:{port}", process)
    wait_until(lambda: is_ready(found), lambda ready: ready, timeout=60, what=f"Prometheus; see {folder / 'prometheus.log'}")
    return found


def is_ready(server: Prometheus) -> bool:
    assert server.process.poll() is None, "Prometheus has ended"
    try:
        with urllib.request.urlopen(f"{server.url}/-/ready", timeout=5):
            return True
    except OSError:
        return False


def configuration(api: str, tls: Mapping[str, str], rules: Path, *, planted: str) -> dict[str, Any]:
    """The metrics Service, asked through the API server, since Debian's Prometheus cannot discover Pods by itself; and what is played."""
    labels = {
        "__metrics_path__": f"/api/v1/namespaces/{NAMESPACE}/services/{DEPLOYMENT}-metrics:8080/proxy/metrics",
        "namespace": NAMESPACE,
        "pod": DEPLOYMENT,
        "instance": DEPLOYMENT,
    }
    return {
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "2s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {
                "job_name": "seatrial",
                "scheme": "https",
                "tls_config": dict(tls),
                "static_configs": [{"targets": [urllib.parse.urlsplit(api).netloc], "labels": labels}],
            },
            {
                "job_name": "planted",
                "static_configs": [
                    {
                        "targets": [planted],
                        "labels": {"__metrics_path__": f"/{pod}", "namespace": "planted", "job": "seatrial", "pod": pod, "instance": pod},
                    }
                    for pod in ("a", "b")
                ],
            },
        ],
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
