"""A server in the cluster that counts agent runs, and tasks whose agent reports to it: what the operator believes is not asked."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ..e2e.harness import Cluster, write_task

IMAGE = "seatrial.local/smoke/hello-pass:dev"
NAME = "chaos-counter"
SERVER = """
import http.server
hits = []
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path != "/hits":
            hits.append(self.path[1:])
        body = "\\n".join(hits).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("", 8000), Handler).serve_forever()
"""


@contextlib.contextmanager
def counting(cluster: Cluster, namespace: str) -> Iterator[str]:
    """The server's address, as trial Pods of the namespace reach it."""
    labels = {"app": NAME}
    meta = {"name": NAME, "namespace": namespace}
    container = {"name": "counter", "image": IMAGE, "imagePullPolicy": "IfNotPresent", "command": ["python3", "-c", SERVER]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**meta, "labels": labels},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
    }
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": meta,
        "spec": {
            "podSelector": {"matchLabels": {"seatrial.dev/role": "trial"}},
            "policyTypes": ["Egress"],
            "egress": [{"to": [{"podSelector": {"matchLabels": labels}}]}],
        },
    }
    cluster.apply(pod, policy)
    try:
        cluster.kubectl("wait", "--for=condition=Ready", f"pod/{NAME}", "-n", namespace, "--timeout=90s")
        yield f"http://{cluster.get('pod', NAME, '-n', namespace)['status']['podIP']}:8000"
    finally:
        cluster.kubectl("delete", f"pod/{NAME}", f"networkpolicy/{NAME}", "-n", namespace, "--wait=false", check=False)


def runs(cluster: Cluster, namespace: str, job: str) -> Counter[str]:
    """Agent runs of a job by the name of their Pod."""
    read = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8000/hits').read().decode())"
    told = cluster.kubectl("exec", NAME, "-n", namespace, "--", "python3", "-c", read).split()
    return Counter(pod for pod in told if pod.startswith(f"{job}-"))


def publish(cluster: Cluster, folder: Path, namespace: str, *, address: str, taskset: str, tasks: int, seconds: float) -> None:
    """Tasks whose solution tells the name of its Pod and then works for a while."""
    for number in range(tasks):
        report = f"import socket, urllib.request; urllib.request.urlopen('{address}/' + socket.gethostname(), timeout=10).read()"
        write_task(folder, f"{taskset}-{number}", image=IMAGE, solve=f'python3 -c "{report}"\nsleep {seconds}')
    cluster.seatrial("publish", str(folder), "--taskset", taskset, "--namespace", namespace)
