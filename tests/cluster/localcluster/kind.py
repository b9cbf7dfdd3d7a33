"""The kind provider: the same cluster where a Docker daemon runs."""

from __future__ import annotations

import json
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from localcluster import addons, config, gobuild, imagespec, oci, s3, shell
from localcluster.credentials import s3_credentials
from localcluster.health import http_fault
from localcluster.images import place
from localcluster.provider import ComponentStatus, Endpoints, Registry
from localcluster.settings import S3_BUCKET, S3_NAMESPACE, S3_NODE_PORT, S3_TEST_BUCKET, ClusterError, Settings

PROCESSES = {
    "etcd": "etcd",
    "apiserver": "kube-apiserver",
    "controller-manager": "kube-controller-manager",
    "scheduler": "kube-scheduler",
    "kubelet": "kubelet",
    "containerd": "containerd",
    "proxy": "kube-proxy",
}
"""Component -> name of its process in kind's node; kind's own supervisors start it again."""


@dataclass(frozen=True)
class KindProvider:
    """kind by its command line; ``run`` runs a program, so that tests see the commands without Docker."""

    settings: Settings
    run: Callable[..., str] = shell.run

    @property
    def node(self) -> str:
        return f"{self.settings.name}-control-plane"

    def up(self) -> None:
        name = self.settings.name
        kubeconfig = f"--kubeconfig={self.settings.kubeconfig}"
        self.settings.audit_dir.mkdir(parents=True, exist_ok=True)
        shell.write(self.settings.audit_dir / "audit-policy.json", json.dumps(config.audit_policy(), indent=1) + "\n")
        if name in self.run(["kind", "get", "clusters"]).split():
            self.run(["kind", "export", "kubeconfig", f"--name={name}", kubeconfig])
        else:
            with shell.step("kind cluster"):
                settings_file = self.settings.checkout / "kind-config.yaml"
                argv = ["kind", "create", "cluster", f"--name={name}", f"--config={settings_file}", kubeconfig, "--wait=180s"]
                # The file's relative paths are meant to lie in the state folder.
                self.run(argv, cwd=self.settings.state_dir, timeout_seconds=1200)
        with shell.step("S3 server"):
            self._load_s3_image()
            credentials = s3_credentials(self.settings)
            items = addons.s3_manifests(access_key=credentials.access_key, secret_key=credentials.secret_key, data_dir=None)
            manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
            self._kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", stdin=manifest)
            self._kubectl("rollout", "status", "deployment/s3", f"--namespace={S3_NAMESPACE}", "--timeout=120s")
            endpoint = self._external_s3()
            shell.wait_until("S3 server", lambda: http_fault(f"{endpoint}/healthz"), timeout_seconds=60)
            for bucket in (S3_BUCKET, S3_TEST_BUCKET):
                s3.make_bucket(endpoint, bucket, credentials=credentials)

    def down(self) -> None:
        self.run(["kind", "delete", "cluster", f"--name={self.settings.name}", f"--kubeconfig={self.settings.kubeconfig}"])
        if self.settings.state_dir.exists():
            shutil.rmtree(self.settings.state_dir)

    def status(self) -> list[ComponentStatus]:
        if self.settings.name not in self.run(["kind", "get", "clusters"]).split():
            return [ComponentStatus("kind", pid=None, healthy=False, detail="not running")]
        rows = []
        for name, words in (
            ("apiserver", ("get", "--raw=/readyz")),
            ("node", ("wait", "node", "--all", "--for=condition=Ready", "--timeout=1s")),
        ):
            try:
                detail, healthy = self._kubectl(*words).strip(), True
            except ClusterError as error:
                detail, healthy = str(error).splitlines()[-1], False
            rows.append(ComponentStatus(name, pid=None, healthy=healthy, detail=detail))
        address = f"{self._external_s3()}/healthz"
        fault = http_fault(address)
        return [*rows, ComponentStatus("s3", pid=None, healthy=fault is None, detail=fault or address)]

    def endpoints(self) -> Endpoints:
        return Endpoints(
            s3_internal=addons.internal_s3_endpoint(),
            s3_external=self._external_s3(),
            tools=gobuild.tools(self.settings),
        )

    def give_images(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """Build with Docker, on the public base images, and load what kind's node lacks."""
        answers = []
        for image in imagespec.select(self.settings.checkout, names):
            binaries = {name: gobuild.build(self.settings, name) for name in image.binaries}
            context = imagespec.context_of(image, checkout=self.settings.checkout, base_key="public", binaries=binaries)
            with shell.step(f"built {image.name}"), tempfile.TemporaryDirectory(prefix="seatrial-build-") as scratch:
                folder = Path(scratch) / "context"
                place(context, folder)
                label = f"--label=seatrial.dev/content={context.key}"
                argv = ["docker", "build", label, f"--file={folder / image.dockerfile}", f"--tag={image.name}", str(folder)]
                self.run(argv, timeout_seconds=1800)
            digest = self.run(["docker", "image", "inspect", "--format={{.Id}}", image.name]).strip()
            mark = self.settings.state_dir / "images" / re.sub(r"[^a-z0-9]+", "-", image.name)
            if not mark.exists() or mark.read_text() != digest:
                self.run(["kind", "load", "docker-image", image.name, f"--name={self.settings.name}"])
                shell.write(mark, digest)
            answers.append((image.name, digest))
        return answers

    def start_registry(self) -> Registry:
        raise ClusterError("the kind provider starts no registry; run one beside it as kind's documentation says")

    def load_archive(self, archive: Path) -> None:
        self.run(["kind", "load", "image-archive", str(archive), f"--name={self.settings.name}"])

    def start(self, component: str) -> None:
        """Nothing but waiting: kind's node starts its components by itself."""
        self._process(component)
        shell.wait_until(f"{component} healthy", self._unhealthy, timeout_seconds=120)

    def kill(self, component: str, number: int) -> None:
        self.run(["docker", "exec", self.node, "pkill", f"--signal={number}", "--exact", self._process(component)[:15]])

    def restart(self, component: str) -> None:
        self.kill(component, signal.SIGTERM)
        self.start(component)

    def _unhealthy(self) -> str | None:
        return next((f"{row.name}: {row.detail}" for row in self.status() if not row.healthy), None)

    @staticmethod
    def _process(component: str) -> str:
        if component not in PROCESSES:
            raise ClusterError(f"no component {component!r}; there are {', '.join(PROCESSES)}")
        return PROCESSES[component]

    def _external_s3(self) -> str:
        """Of "127.0.0.1:49153", the machine's end of the port that kind-config.yaml maps."""
        answer = self.run(["docker", "port", self.node, f"{S3_NODE_PORT}/tcp"]).split()
        if not answer:
            raise ClusterError(f"{self.node} maps no port to {S3_NODE_PORT}; run down, then up")
        return f"http://{answer[0]}"

    def _load_s3_image(self) -> None:
        source = gobuild.build(self.settings, "versitygw")
        mark = self.settings.state_dir / "images" / "versitygw.key"
        if mark.exists() and mark.read_text() == source.parent.name:
            return
        archive = self.settings.state_dir / "images" / "versitygw.tar"
        oci.write_archive(archive, image=addons.S3_IMAGE, files={"bin/versitygw": source}, entrypoint=["/bin/versitygw"])
        self.load_archive(archive)
        archive.unlink()
        shell.write(mark, source.parent.name)

    def _kubectl(self, *words: str, stdin: str | None = None) -> str:
        return self.run([gobuild.tools(self.settings) / "kubectl", f"--kubeconfig={self.settings.kubeconfig}", *words], stdin=stdin)
