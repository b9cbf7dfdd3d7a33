"""A control plane for load: etcd, API server, controller-manager, scheduler, S3 server, and kwok in place of kubelets.

Why one of its own: the real node is not disturbed, and nothing limits the number of Pods. All of it listens on loopback, on free ports,
keeps its data in one folder, and dies with the process that made it.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from seatrial.effects.store import Store, StoreSettings

from .stages import Shares, stages

REPOSITORY = Path(__file__).resolve().parents[2]
if str(REPOSITORY / "tests" / "cluster") not in sys.path:
    sys.path.insert(0, str(REPOSITORY / "tests" / "cluster"))

from localcluster import certificates, gobuild  # noqa: E402 - its folder is no installed package
from localcluster import settings as cluster_settings  # noqa: E402

BUCKET = "perf"
REGION = "us-east-1"
NODES = 20
PODS_PER_NODE = 600


@dataclass
class Plane:
    """The running control plane. Use as a context manager: its end is the end of every process and of the folder."""

    folder: Path
    shares: Shares = field(default_factory=Shares)
    keep: bool = False
    """Leave the folder with data and logs."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    access_key: str = field(default_factory=lambda: secrets.token_hex(10).upper())
    secret_key: str = field(default_factory=lambda: secrets.token_urlsafe(30))
    _connection: http.client.HTTPSConnection | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("etcd", "peer", "apiserver", "controller-manager", "scheduler", "s3", "kwok"):
            self.ports[name] = free_port()
        self._settings = cluster_settings.load(os.environ, checkout=REPOSITORY)
        certificates.issue(self.folder / "pki", node_ip="127.0.0.1")
        for user in ("admin", "controller-manager", "scheduler"):
            (self.folder / f"{user}.kubeconfig").write_text(json.dumps(self._kubeconfig(user)))
        try:
            self.start("etcd")
            self.start("s3")
            self.start("apiserver")
            wait_for("API server", lambda: self.api("GET", "/readyz", parse=False) == b"ok", seconds=90)
            self._prepare()
            # After the CRDs: the garbage collector looks for new kinds now and then only.
            for name in ("controller-manager", "scheduler"):
                self.start(name)
            self.start("kwok")
            self._nodes()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()
        for process in reversed(self.processes.values()):
            process.kill()
            process.wait()
        if not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    # --- processes

    def start(self, name: str) -> None:
        """Start a component; its log is ``NAME.log`` in the folder."""
        argv, environ = self._commands()[name]
        self.processes[name] = spawn(argv, log=self.folder / f"{name}.log", environ=environ)

    def kill(self, name: str) -> None:
        """SIGKILL, and wait for its end."""
        self.processes[name].kill()
        self.processes[name].wait()

    def signal(self, name: str, number: int) -> None:
        self.processes[name].send_signal(number)

    def restart(self, name: str) -> None:
        self.kill(name)
        self.start(name)
        if name == "apiserver":
            wait_for("API server", lambda: self.api("GET", "/readyz", parse=False) == b"ok", seconds=90)

    def _commands(self) -> dict[str, tuple[list[str], dict[str, str]]]:
        kube, pki, port = str(self._binary("kube")), self.folder / "pki", self.ports
        etcd = f"http://127.0.0.1:{port['etcd']}"
        peer = f"http://127.0.0.1:{port['peer']}"
        large = {"GOGC": "400", "GOMEMLIMIT": "6GiB"}
        return {
            "etcd": (
                [
                    shutil.which("etcd") or "/usr/bin/etcd",
                    "--name=perf",
                    f"--data-dir={self.folder / 'etcd'}",
                    f"--listen-client-urls={etcd}",
                    f"--advertise-client-urls={etcd}",
                    f"--listen-peer-urls={peer}",
                    f"--initial-advertise-peer-urls={peer}",
                    f"--initial-cluster=perf={peer}",
                    "--unsafe-no-fsync",
                    "--quota-backend-bytes=8589934592",
                    "--log-level=warn",
                ],
                {},
            ),
            "s3": (
                [str(self._binary("versitygw")), "posix", str(self._made("s3"))],
                {
                    "VGW_PORT": f"127.0.0.1:{port['s3']}",
                    "VGW_REGION": REGION,
                    "VGW_HEALTH": "/healthz",
                    "VGW_QUIET": "true",
                    "ROOT_ACCESS_KEY": self.access_key,
                    "ROOT_SECRET_KEY": self.secret_key,
                },
            ),
            "apiserver": (
                [
                    kube,
                    "kube-apiserver",
                    "--bind-address=127.0.0.1",
                    "--advertise-address=127.0.0.1",
                    "--endpoint-reconciler-type=none",
                    f"--secure-port={port['apiserver']}",
                    f"--etcd-servers={etcd}",
                    "--service-cluster-ip-range=10.96.0.0/16",
                    f"--client-ca-file={pki / 'ca.crt'}",
                    f"--tls-cert-file={pki / 'apiserver.crt'}",
                    f"--tls-private-key-file={pki / 'apiserver.key'}",
                    "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
                    f"--service-account-key-file={pki / 'service-account.pub'}",
                    f"--service-account-signing-key-file={pki / 'service-account.key'}",
                    "--authorization-mode=RBAC",
                    # Nothing here would take the taint of a new node away again.
                    "--disable-admission-plugins=TaintNodesByCondition",
                    # Debian's etcd cannot serve it; kwok takes the plain LIST only when the server does not offer this.
                    "--feature-gates=WatchList=false",
                ],
                large,
            ),
            "controller-manager": (
                [
                    kube,
                    "kube-controller-manager",
                    *self._own_kubeconfigs("controller-manager"),
                    f"--secure-port={port['controller-manager']}",
                    # What a job needs: owner references, its own namespace, Pods of vanished nodes.
                    "--controllers=garbage-collector-controller,namespace-controller,serviceaccount-controller,pod-garbage-collector-controller",
                    f"--service-account-private-key-file={pki / 'service-account.key'}",
                    f"--root-ca-file={pki / 'ca.crt'}",
                    # The garbage collector's own account may delete anything; the controller-manager's user may not even read Pods.
                    "--use-service-account-credentials=true",
                ],
                {},
            ),
            "scheduler": ([kube, "kube-scheduler", *self._own_kubeconfigs("scheduler"), f"--secure-port={port['scheduler']}"], {}),
            "kwok": (
                [
                    str(self._binary("kwok")),
                    f"--kubeconfig={self.folder / 'admin.kubeconfig'}",
                    f"--config={self._kwok_config()}",
                    "--manage-all-nodes=false",
                    "--manage-nodes-with-label-selector=type=kwok",
                    # Without leases of nodes: nobody watches them here.
                    "--node-lease-duration-seconds=0",
                    f"--server-address=127.0.0.1:{port['kwok']}",
                ],
                {},
            ),
        }

    def _own_kubeconfigs(self, user: str) -> list[str]:
        path = self.folder / f"{user}.kubeconfig"
        return [
            *(f"--{flag}={path}" for flag in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")),
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        ]

    def _binary(self, name: str) -> Path:
        return gobuild.build(self._settings, name)

    def _made(self, name: str) -> Path:
        path = self.folder / name
        path.mkdir(exist_ok=True)
        return path

    def _kwok_config(self) -> Path:
        options = {"podPlayStageParallelism": 4, "nodePlayStageParallelism": 2}
        documents = [
            {
                "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
                "kind": "KwokConfiguration",
                "metadata": {"name": "kwok"},
                "options": options,
            },
            *stages(self.shares),
        ]
        path = self.folder / "kwok.yaml"
        path.write_text("\n---\n".join(json.dumps(document) for document in documents) + "\n")
        return path

    # --- API

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self.ports['apiserver']}"

    @property
    def kubeconfig(self) -> Path:
        """Of a user who may do everything."""
        return self.folder / "admin.kubeconfig"

    def api(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, parse: bool = True, kind: str = "json") -> Any:
        """One request as admin, over a connection that is kept; the decoded answer.

        Raises:
            OSError: no answer, or one that is not 2xx.
        """
        data = json.dumps(body).encode() if body is not None else None
        kept, self._connection = self._connection, None
        connection = kept or self._connect()
        try:
            connection.request(method, path, body=data, headers={"Content-Type": f"application/{kind}"})
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            if kept is not None:  # the server closes what is idle
                return self.api(method, path, body, parse=parse, kind=kind)
            raise ConnectionError(f"{method} {path}: {error!r}") from error
        self._connection = connection
        if not 200 <= answer.status < 300:
            raise OSError(f"{method} {path}: {answer.status} {content[:500].decode(errors='replace')}")
        return json.loads(content) if parse else content

    def kubectl(self, *words: str, given: str | None = None) -> str:
        argv = [str(self._binary("kube")), "kubectl", f"--kubeconfig={self.kubeconfig}", *words]
        return subprocess.run(argv, input=given, capture_output=True, text=True, check=True, timeout=600).stdout

    def _connect(self) -> http.client.HTTPSConnection:
        pki = self.folder / "pki"
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        return http.client.HTTPSConnection("127.0.0.1", self.ports["apiserver"], timeout=60, context=context)

    def _kubeconfig(self, user: str) -> dict[str, Any]:
        pki = self.folder / "pki"

        def data(name: str) -> str:
            return base64.b64encode((pki / name).read_bytes()).decode()

        cluster = {"server": self.server, "certificate-authority-data": data("ca.crt")}
        keys = {"client-certificate-data": data(f"{user}.crt"), "client-key-data": data(f"{user}.key")}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "perf",
            "clusters": [{"name": "perf", "cluster": cluster}],
            "users": [{"name": user, "user": keys}],
            "contexts": [{"name": "perf", "context": {"cluster": "perf", "user": user}}],
        }

    # --- content

    def store(self) -> Store:
        return Store(self.store_settings())

    def store_settings(self) -> StoreSettings:
        return StoreSettings(
            endpoint=f"http://127.0.0.1:{self.ports['s3']}",
            bucket=BUCKET,
            region=REGION,
            access_key=self.access_key,
            secret_key=self.secret_key,
        )

    def _prepare(self) -> None:
        """CRDs and the bucket."""
        files = [f"--filename={path}" for path in sorted((REPOSITORY / "crds").glob("*.yaml"))]
        wait_for("CRDs", lambda: bool(self.kubectl("apply", "--server-side", *files)), seconds=60)
        self.kubectl("wait", "--for=condition=Established", "--timeout=60s", *files)
        from localcluster import s3

        credentials = s3.Credentials(self.access_key, self.secret_key)
        wait_for("S3 server", lambda: http_ok(f"http://127.0.0.1:{self.ports['s3']}/healthz"), seconds=30)
        s3.make_bucket(f"http://127.0.0.1:{self.ports['s3']}", BUCKET, credentials=credentials)

    def _nodes(self) -> None:
        capacity = {"cpu": "4000", "memory": "16Ti", "ephemeral-storage": "64Ti", "pods": str(PODS_PER_NODE)}
        for number in range(NODES):
            name = f"kwok-{number:02d}"
            meta = {"name": name, "labels": {"type": "kwok", "kubernetes.io/hostname": name}}
            status = {"capacity": capacity, "allocatable": capacity}
            self.api("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status})
        wait_for("nodes", self._nodes_ready, seconds=60)

    def _nodes_ready(self) -> bool:
        nodes = self.api("GET", "/api/v1/nodes")["items"]
        ready = [
            any(item["type"] == "Ready" and item["status"] == "True" for item in node["status"].get("conditions", [])) for node in nodes
        ]
        return len(ready) == NODES and all(ready)


def spawn(argv: Sequence[str], *, log: Path, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process that dies with this one; output is appended to ``log``."""
    inherited = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    with log.open("ab") as output:
        argv = ["setpriv", "--pdeathsig", "KILL", *argv]
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**inherited, **environ})


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def http_ok(url: str) -> bool:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5) as answer:
        return bool(answer.status == 200)


def wait_for(what: str, look: Callable[[], bool], *, seconds: float, every: float = 0.2) -> None:
    """Look until it is true; errors of HTTP and of commands count as "not yet".

    Raises:
        TimeoutError: with the last error.
    """
    end, fault = time.monotonic() + seconds, ""
    while time.monotonic() < end:
        try:
            if look():
                return
        except (OSError, urllib.error.URLError, subprocess.CalledProcessError) as error:
            fault = f": {error} {getattr(error, 'stderr', '') or ''}"
        time.sleep(every)
    raise TimeoutError(f"{what}: not within {seconds:.0f} s{fault}")
