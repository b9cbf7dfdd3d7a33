"""The native provider: one real node from ordinary packages, in namespaces of its own."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from localcluster import addons, certificates, config, debian, gobuild, namespaces, network, oci, s3, shell
from localcluster.config import COMPONENTS, Node
from localcluster.credentials import s3_credentials
from localcluster.health import http_fault
from localcluster.images import Builder
from localcluster.namespaces import Process
from localcluster.network import Cable
from localcluster.provider import ComponentStatus, Endpoints, Registry
from localcluster.settings import (
    NODE_NAME,
    REGISTRY_NAMESPACE,
    S3_BUCKET,
    S3_NAMESPACE,
    S3_NODE_PORT,
    S3_TEST_BUCKET,
    ClusterError,
    Settings,
)

INIT = "init"
NODE_INIT = Path(__file__).with_name("node_init.py")
CGROUP_ROOT = Path("/sys/fs/cgroup")
RESOLV_CONFS = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))


@dataclass(frozen=True)
class NativeProvider:
    """``up`` and ``down`` of the node and all that lies between."""

    settings: Settings

    # ---- life cycle

    def up(self) -> None:
        """Bring up whatever is missing; what runs stays as it is."""
        if os.geteuid() != 0:
            raise ClusterError("the single-node cluster needs root; run as root, or install Docker and kind")
        debian.install(debian.NODE_PACKAGES)
        node = self._node(self._cable())
        gobuild.tools(self.settings)
        init = self._start_init(node)
        for component in ("etcd", "containerd"):
            self._start(node, init, component)
        self._wait_healthy(node, "etcd")
        with shell.step("control plane"):
            self._start(node, init, "apiserver")
            self._wait_healthy(node, "apiserver")
            # Not before: the controller-manager ends itself where the API server's first roles are not there yet.
            for component in ("controller-manager", "scheduler", "kubelet", "proxy"):
                self._start(node, init, component)
        with shell.step("images of the cluster's own Pods"):
            self._import_system_images(node)
        with shell.step("DNS, S3 and rights"):
            self._apply_addons(node)
        self._start(node, init, "netpol")
        with shell.step("node ready"):
            self._wait_ready(node)
        with shell.step("DNS and S3 ready"):
            self._kubectl("rollout", "status", "deployment/coredns", "--namespace=kube-system", "--timeout=120s")
            self._kubectl("rollout", "status", "deployment/s3", f"--namespace={S3_NAMESPACE}", "--timeout=120s")
            self._make_buckets()

    def down(self) -> None:
        """End the node and remove all that it left on the machine; the build cache stays."""
        state = self.settings.state_dir
        init = self._init()
        if init is not None:
            with shell.step("ended the node and all its processes"):
                init.signal(signal.SIGKILL)
                shell.wait_until("end of the node", lambda: "it still runs" if init.is_alive() else None, timeout_seconds=60)
        cable = self._recorded_cable()
        if cable is not None:
            network.disconnect(self.settings, cable)
        remove_cgroups(CGROUP_ROOT, self.settings.name)
        if state.exists():
            shutil.rmtree(state)
        # /var/lib/cni stays, empty: another cluster has a mount on it, which would vanish with the folder.
        if state.parent.is_dir() and not any(state.parent.iterdir()):
            state.parent.rmdir()

    # ---- single components

    def start(self, component: str) -> None:
        """Start a component if it does not run, and wait until it is healthy."""
        node, init = self._running()
        self._start(node, init, self._known(component))
        self._wait_healthy(node, component)

    def kill(self, component: str, number: int) -> None:
        """Send a signal to a component; with SIGKILL and SIGTERM, wait until it has gone."""
        process = namespaces.recall(self._pid_file(self._known(component)))
        if process is None:
            raise ClusterError(f"{component} does not run; start it with: start {component}")
        process.signal(number)
        if number in {signal.SIGKILL, signal.SIGTERM}:
            process.end(f"end of {component}")

    def restart(self, component: str) -> None:
        """End a component, start it again and wait until it is healthy."""
        process = namespaces.recall(self._pid_file(self._known(component)))
        if process is not None:
            # Short: the API server would wait a minute for watches that never end by themselves.
            process.end(f"end of {component}", grace_seconds=3)
        self.start(component)

    # ---- what is known

    def endpoints(self) -> Endpoints:
        node, _ = self._running()
        return Endpoints(
            s3_internal=addons.internal_s3_endpoint(),
            s3_external=self._external_s3(node.ip),
            tools=gobuild.tools(self.settings),
        )

    def status(self) -> list[ComponentStatus]:
        """All parts, healthy or not; a cluster that was never started has only an unhealthy init."""
        init = self._init()
        cable = self._recorded_cable()
        if init is None or cable is None:
            return [ComponentStatus(INIT, pid=None, healthy=False, detail="not running")]
        node = self._node(cable)
        rows = [ComponentStatus(INIT, pid=init.pid, healthy=True, detail=f"node {NODE_NAME} at {node.ip}")]
        for component in COMPONENTS:
            process = namespaces.recall(self._pid_file(component))
            fault = "not running" if process is None else self._fault(node, component)
            rows.append(ComponentStatus(component, pid=process.pid if process else None, healthy=fault is None, detail=fault or ""))
        rows.append(self._answers("s3", f"{self._external_s3(node.ip)}/healthz"))
        return rows

    def give_images(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """Build what changed and give the node what it lacks."""
        self._running()
        builder = Builder(self.settings)
        built = builder.build(names)
        on_node = self.images_on_node()
        missing = [image for image in built if on_node.get(image.name) != image.digest]
        if missing:
            have = self.blobs_on_node()
            with shell.step(f"gave the node {len(missing)} images"), tempfile.TemporaryDirectory(dir=self.settings.cache_dir) as scratch:
                archive = Path(scratch) / "images.tar"
                builder.store.export(missing, archive, without=have)
                self.load_archive(archive)
        return [(image.name, image.digest) for image in built]

    def load_archive(self, archive: Path) -> None:
        """Give the node an OCI archive; each image in it carries its name."""
        self._ctr("images", "import", str(archive))

    def start_registry(self) -> Registry:
        """The cluster's registry, started if it does not run, with the base image in it; kaniko, which builds in Pods, on the node."""
        node, _ = self._running()
        have = self.images_on_node()
        with shell.step("images of registry and builder"):
            self._import_binary(addons.REGISTRY_IMAGE, "registry", path="bin/registry", have=have)
            self._import_binary(addons.KANIKO_IMAGE, "kaniko", path="kaniko/executor", have=have)
        data = self.settings.state_dir / "registry"
        data.mkdir(parents=True, exist_ok=True)
        os.chown(data, addons.S3_UID, addons.S3_UID)
        manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": addons.registry_manifests(data)})
        self._kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", stdin=manifest)
        with shell.step("registry ready"):
            self._kubectl("rollout", "status", "deployment/registry", f"--namespace={REGISTRY_NAMESPACE}", "--timeout=120s")
            shell.wait_until("registry", lambda: http_fault(f"http://{node.registry}/v2/"), timeout_seconds=60)
            Builder(self.settings).push_base(node.registry, repository="seatrial/base", tag="12")
        return Registry(address=node.registry, base=f"{node.registry}/seatrial/base:12", executor=addons.KANIKO_IMAGE)

    def images_on_node(self) -> dict[str, str]:
        """Image name -> digest of its manifest, of all named images on the node."""
        rows = [line.split() for line in self._ctr("images", "list").splitlines()[1:]]
        return {row[0]: row[2] for row in rows if len(row) > 2}

    def blobs_on_node(self) -> Set[str]:
        """Digests of the manifests, configurations and layers that the node holds."""
        return set(self._ctr("content", "list", "--quiet").split())

    def _ctr(self, *words: str) -> str:
        node, _ = self._running()
        return shell.run(["ctr", f"--address={node.containerd_socket}", "--namespace=k8s.io", *words])

    # ---- parts of up

    def _node(self, cable: Cable) -> Node:
        return Node(
            settings=self.settings,
            host_ip=cable.host_ip,
            ip=cable.node_ip,
            kube=gobuild.build(self.settings, "kube"),
            kube_router=gobuild.build(self.settings, "kube-router"),
            mtu=network.machine_mtu(),
        )

    def _recorded_cable(self) -> Cable | None:
        try:
            return Cable(ipaddress.IPv4Network(json.loads((self.settings.state_dir / "network.json").read_text())["cable"]))
        except FileNotFoundError:
            return None

    def _cable(self) -> Cable:
        cable = self._recorded_cable()
        if cable is None:
            cable = network.choose_cable(self.settings.ident, taken=network.taken_networks())
            shell.write(self.settings.state_dir / "network.json", json.dumps({"cable": str(cable.subnet)}))
        return cable

    def _init(self) -> Process | None:
        """The node's first process, if it runs; one that is on its way out is waited for."""
        process = namespaces.recall(self._pid_file(INIT))
        if process is not None and not namespaces.has_namespaces(process):
            shell.wait_until("end of the node", lambda: "it is still ending" if process.is_alive() else None, timeout_seconds=60)
            return None
        return process

    def _running(self) -> tuple[Node, Process]:
        init, cable = self._init(), self._recorded_cable()
        if init is None or cable is None:
            raise ClusterError("the local cluster does not run; start it with: make up")
        return self._node(cable), init

    def _pid_file(self, component: str) -> Path:
        return self.settings.state_dir / "pids" / f"{component}.json"

    @staticmethod
    def _known(component: str) -> str:
        if component not in COMPONENTS:
            raise ClusterError(f"no component {component!r}; there are {', '.join(COMPONENTS)}")
        return component

    def _start_init(self, node: Node) -> Process:
        state = self.settings.state_dir
        init = self._init()
        if init is None:
            with shell.step("namespaces and network of the node"):
                if not Path("/proc/sys/net/bridge").exists():
                    shell.run(["modprobe", "br_netfilter"])
                # Mount points must exist on the machine; what is mounted there exists in the node only.
                Path("/var/lib/cni").mkdir(parents=True, exist_ok=True)
                shutil.rmtree(state / "run", ignore_errors=True)
                (state / "run").mkdir(parents=True)
                make_cgroups(CGROUP_ROOT, self.settings.name)
                # The kernel takes a moment to remove the cable of a node that has died.
                network.unplug(self.settings)
                log = state / "logs" / "init.log"
                init = namespaces.spawn_init([sys.executable, "-I", str(NODE_INIT), str(state)], log=log)
                namespaces.remember(self._pid_file(INIT), init)
                ready = state / "run" / "init.ready"
                shell.wait_until("the node's first process", lambda: None if ready.exists() else f"see {log}", timeout_seconds=20)
        network.connect(self.settings, self._cable(), init=init, mtu=node.mtu)
        with shell.step("certificates and configuration"):
            certificates.issue(node.pki, node_ip=node.ip)
            for path, text in config.config_files(node, resolv_conf=machine_resolv_conf()).items():
                if not path.exists() or path.read_text() != text:
                    shell.write(path, text, mode=0o600 if path.name.endswith("kubeconfig") else 0o644)
            for folder, mode in ((self.settings.audit_dir, 0o755), (state / "etcd", 0o700)):
                folder.mkdir(parents=True, exist_ok=True, mode=mode)
        return init

    def _start(self, node: Node, init: Process, component: str) -> None:
        if namespaces.recall(self._pid_file(component)) is not None:
            return
        argv = config.command_lines(node)[component]
        # The components talk to each other only; a proxy of the machine must not come between.
        environ = {
            **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "NODE_NAME": NODE_NAME,
        }
        log = self.settings.state_dir / "logs" / f"{component}.log"
        namespaces.remember(self._pid_file(component), namespaces.spawn_inside(init, argv, log=log, environ=environ))

    def _fault(self, node: Node, component: str) -> str | None:
        """Why a component is not healthy; None if it is."""
        if namespaces.recall(self._pid_file(component)) is None:
            return f"it has ended; see {self.settings.state_dir / 'logs' / f'{component}.log'}"
        if component == "containerd":
            return None if node.containerd_socket.exists() else "no socket yet"
        address = config.health_checks(node).get(component)
        return None if address is None else http_fault(address)

    def _wait_healthy(self, node: Node, component: str) -> None:
        shell.wait_until(f"{component} healthy", lambda: self._fault(node, component), timeout_seconds=90)

    def _import_system_images(self, node: Node) -> None:
        self._wait_healthy(node, "containerd")
        have = self.images_on_node()
        for image, binary in ((config.PAUSE_IMAGE, "pause"), (addons.COREDNS_IMAGE, "coredns"), (addons.S3_IMAGE, "versitygw")):
            self._import_binary(image, binary, path=f"bin/{binary}", have=have)

    def _import_binary(self, image: str, binary: str, *, path: str, have: Mapping[str, str]) -> None:
        """An image of one Go binary, built and given to the node where it has another one."""
        source = gobuild.build(self.settings, binary)
        mark = self.settings.state_dir / "images" / f"{binary}.key"
        if image in have and mark.exists() and mark.read_text() == source.parent.name:
            return
        archive = self.settings.state_dir / "images" / f"{binary}.tar"
        oci.write_archive(archive, image=image, files={path: source}, entrypoint=[f"/{path}"])
        self.load_archive(archive)
        archive.unlink()
        shell.write(mark, source.parent.name)

    def _apply_addons(self, node: Node) -> None:
        data = self.settings.state_dir / "s3"
        data.mkdir(parents=True, exist_ok=True)
        os.chown(data, addons.S3_UID, addons.S3_UID)
        credentials = s3_credentials(self.settings)
        items = [
            *addons.netpol_manifests(),
            *addons.dns_manifests(),
            *addons.s3_manifests(access_key=credentials.access_key, secret_key=credentials.secret_key, data_dir=data),
        ]
        manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        self._kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", stdin=manifest)

    def _external_s3(self, node_ip: str) -> str:
        return f"http://{node_ip}:{S3_NODE_PORT}"

    def _make_buckets(self) -> None:
        endpoint = self._external_s3(self._cable().node_ip)
        shell.wait_until("S3 server", lambda: http_fault(f"{endpoint}/healthz"), timeout_seconds=60)
        for bucket in (S3_BUCKET, S3_TEST_BUCKET):
            s3.make_bucket(endpoint, bucket, credentials=s3_credentials(self.settings))

    def _wait_ready(self, node: Node) -> None:
        def fault() -> str | None:
            try:
                answer = self._kubectl("get", "node", NODE_NAME, "--output=json")
            except ClusterError as error:
                return str(error)
            conditions = {entry["type"]: entry for entry in json.loads(answer)["status"].get("conditions", [])}
            ready = conditions.get("Ready", {"status": "Unknown", "message": "no report yet"})
            return None if ready["status"] == "True" else str(ready["message"])

        shell.wait_until("node ready", fault, timeout_seconds=90, every_seconds=0.3)
        for component in ("controller-manager", "scheduler", "proxy", "netpol"):
            self._wait_healthy(node, component)

    def _kubectl(self, *words: str, stdin: str | None = None) -> str:
        kube = gobuild.build(self.settings, "kube")
        return shell.run([kube, "kubectl", f"--kubeconfig={self.settings.kubeconfig}", *words], stdin=stdin)

    @staticmethod
    def _answers(name: str, address: str) -> ComponentStatus:
        fault = http_fault(address)
        return ComponentStatus(name, pid=None, healthy=fault is None, detail=fault or address)


def machine_resolv_conf() -> str:
    """The nameservers that Pods can use: those of the machine that are not its loopback.

    Raises:
        ClusterError: there are none.
    """
    for path in RESOLV_CONFS:
        if path.exists() and "nameserver" in (text := config.strip_loopback_nameservers(path.read_text())):
            return text
    raise ClusterError("no nameserver in /etc/resolv.conf that a Pod could reach; add one that is not on the loopback")


def _hierarchies(root: Path) -> Sequence[Path]:
    """The cgroup hierarchies below ``root``: the one of cgroup v2, or one for each mounted controller of v1."""
    if (root / "cgroup.controllers").exists():
        return [root]
    return sorted(path for path in root.iterdir() if (path / "cgroup.procs").exists())


def make_cgroups(root: Path, name: str) -> None:
    """Make the cluster's own cgroup in every hierarchy."""
    for hierarchy in _hierarchies(root):
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):
            # v1 takes no process into a cpuset without CPUs; a new group has none.
            if (group / file).exists() and (hierarchy / file).exists() and not (group / file).read_text().strip():
                (group / file).write_text((hierarchy / file).read_text())


def remove_cgroups(root: Path, name: str) -> None:
    """Remove the cluster's cgroup and all below it; its processes have ended."""
    for hierarchy in _hierarchies(root):
        groups = [Path(folder) for folder, _, _ in os.walk(hierarchy / name, topdown=False)]
        for group in groups:
            for _ in range(100):
                try:
                    group.rmdir()
                    break
                except OSError:
                    # The kernel is still taking leave of the last process.
                    time.sleep(0.05)
            else:
                raise ClusterError(f"cgroup {group} cannot be removed; processes: {(group / 'cgroup.procs').read_text().split()}")
