"""The operator's configuration: one frozen value, read from ``SEATRIAL_*`` once and passed on as an argument."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
import typing
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from seatrial.core.builds import BuildSettings
from seatrial.core.manifests import PodSettings
from seatrial.core.trial import Limits
from seatrial.effects.store import StoreSettings, WebIdentitySettings
from seatrial.errors import InvalidSpec
from seatrial.taskpkg.mirrors import Mirrors

PREFIX: Final = "SEATRIAL_"


@dataclass(frozen=True, slots=True)
class Settings:
    """Fields carry their unit in the name; a variable is ``SEATRIAL_`` and the field's name in capitals."""

    s3_endpoint: str
    """URL of the object store as the operator reaches it."""
    s3_bucket: str
    s3_access_key: str = field(default="", repr=False)
    s3_secret_key: str = field(default="", repr=False)
    s3_credentials_dir: str | None = None
    """Folder with the files accessKey and secretKey instead of the two above; read again when they change."""
    s3_web_identity_token_file: str | None = None
    """Token of our ServiceAccount, exchanged for credentials of our own calls; the keys above then sign URLs only."""
    s3_role_arn: str = ""
    s3_sts_endpoint: str = "https://sts.amazonaws.com"
    s3_region: str = "us-east-1"
    """Always set: without a region each presigning would ask the server."""
    s3_session_token: str | None = field(default=None, repr=False)
    s3_presign_endpoint: str | None = None
    """URL of the object store as trial Pods reach it; None: the same. Signatures cover the host."""
    s3_path_style: bool = True
    s3_ca: str | None = None
    s3_concurrency: int = 16
    """Calls at a time; each takes a thread."""
    signing_secret: str | None = field(default=None, repr=False)
    """Source of the jobs' signing keys; None: derived from the store's secret key. When it changes, results of running jobs whose Pods
    vanish are no longer believed."""

    runner_image: str = "seatrial-runner:dev"
    image_pull_policy: str = "IfNotPresent"
    unlimited_seconds: int = 5 * 24 * 3600
    """Deadline of Pods whose agent has no limit. Presigned URLs live for seven days at most."""
    environment_cpu: str = "50m"
    """Requests of environments whose task does not say; small, so that a laptop runs several."""
    environment_memory: str = "64Mi"
    runner_cpu: str = "10m"
    runner_memory: str = "32Mi"
    runner_memory_limit: str = "512Mi"
    task_volume: str = "8Gi"
    logs_volume: str = "1Gi"
    tmp_volume: str = "1Gi"
    image_prefix: str = ""
    """Registry and path before the names of the tasks' images; empty: as the tasks say."""
    image_mirrors: tuple[str, ...] = ()
    """REGISTRY=REPLACEMENT, both perhaps with a path: where images of tasks, agents and Dockerfiles are read from."""
    pin_images: bool = True
    """Ask registries for the digests of the images that tasks name, when a job is planned."""
    ca_config_map: str = ""
    """ConfigMap in each namespace of trials whose key ``ca.crt`` holds the authorities that stage, agent and verifier trust."""
    http_proxy: str = ""
    """For agents and environments; nothing of our own goes through it."""
    https_proxy: str = ""
    no_proxy: str = ""

    kueue: bool = False
    """EvalJobs that name a queue of Kueue by label wait for its leave."""
    kueue_ask_seconds: float = 3.0
    """How often it is asked for each of them."""
    webhook_url: str = ""
    """Gets a CloudEvent when an EvalJob ends; empty: nobody does."""
    webhook_token_file: str = ""
    """Bearer token, read for each post; empty: none is sent."""
    otlp_endpoint: str = ""
    """Base URL of an OTLP/HTTP endpoint that gets a trace of each trial; empty: nobody does."""
    otlp_headers_file: str = ""
    """NAME=VALUE,…, read for each request and sent with it; empty: none are sent."""

    build_repository: str = ""
    """HOST/NAME to which images of tasks are pushed that have a Dockerfile and no image; empty: the operator does not build."""
    build_pull_repository: str = ""
    """HOST/NAME by which nodes pull what was pushed there; empty: the same."""
    build_executor_image: str = "gcr.io/kaniko-project/executor:v1.24.0"
    build_insecure: bool = False
    """The registries of builds speak plain HTTP."""
    build_args: tuple[str, ...] = ()
    """NAME=VALUE, for every build."""
    build_platform: str = "linux/amd64"
    build_push_secret: str = ""
    """Secret of type kubernetes.io/dockerconfigjson in each job's namespace, for the push."""
    build_files: tuple[str, ...] = ()
    """PATH=CONFIGMAP/KEY: files that only builds see, such as certificates; the ConfigMap is in the job's namespace."""
    build_memory_limit: str = "4Gi"
    build_storage_limit: str = "20Gi"
    build_concurrency: int = 2
    """Builds at a time, over all jobs."""
    registry_auth_file: str = ""
    """config.json of Docker with the credentials by which the operator asks registries."""
    blocked_cidrs: tuple[str, ...] = ()
    """Networks of the cluster: there, registries that only tasks name are not asked."""

    namespaces: tuple[str, ...] = ()
    """Namespaces to watch; empty means the whole cluster."""
    shared_namespaces: tuple[str, ...] = ()
    """Namespaces whose Tasks, Tasksets and archives objects of other namespaces may refer to."""
    kubeconfig: str | None = None
    """File to use outside a cluster."""
    context: str | None = None
    lease_namespace: str = ""
    """Empty: the operator's own namespace, else the first of ``namespaces``, else ``default``."""
    lease_name: str = "seatrial-operator"
    lease_duration_seconds: float = 15.0
    """How long a silent leader is believed. Above renew_deadline_seconds; loop stalls of 2 s were measured."""
    renew_deadline_seconds: float = 10.0
    """A leader that could not renew for this long ends its process."""
    lease_retry_seconds: float = 2.0
    identity: str = ""
    """Empty: host name and a random part, made at process start."""

    listen_host: str = "0.0.0.0"
    listen_port: int = 8080
    workers: int = 4
    """Reconcile passes at a time."""
    write_rate: float = 20.0
    """Writing API requests per second; no Python client limits itself."""
    write_burst: int = 50
    request_concurrency: int = 32
    """Requests at a time; HTTP/1.1 needs a connection for each."""
    status_interval_seconds: float = 2.0
    """At most one status write per running job in this time."""
    pass_interval_seconds: float = 1.0
    """Longest pause between passes of one job under a stream of events; small jobs are looked at more often."""
    resync_jobs_seconds: float = 60.0
    """LIST of our objects beside Kopf's watch, because a watcher may die silently."""
    resync_pods_seconds: float = 600.0
    reference_grace_seconds: float = 30.0
    """A reference that does not resolve may be applied a moment later in the same command."""
    verify_concurrency: int = 2
    """Archives verified at a time."""
    verify_max_mib: int = 256
    """Larger archives are not verified by the operator."""
    max_pods: int = 0
    """Trial Pods at a time in all EvalJobs together, shared between those that want some; 0 means no limit."""
    max_trials: int = 100_000
    """Largest job that is planned."""
    image_grace_seconds: float = 120.0
    image_wait_seconds: float = 900.0
    config_grace_seconds: float = 60.0
    start_seconds: float = 600.0
    log_level: str = "INFO"
    stop_seconds: float = 25.0
    """The process ends itself this long after SIGTERM; below the Pod's grace period of 30 s."""

    def store(self) -> StoreSettings:
        """What the store client needs."""
        return StoreSettings(
            endpoint=self.s3_endpoint,
            bucket=self.s3_bucket,
            access_key=self.s3_access_key,
            secret_key=self.s3_secret_key,
            region=self.s3_region,
            session_token=self.s3_session_token,
            presign_endpoint=self.s3_presign_endpoint,
            path_style=self.s3_path_style,
            credentials_dir=self.s3_credentials_dir,
            web_identity=WebIdentitySettings(self.s3_web_identity_token_file, self.s3_role_arn, self.s3_sts_endpoint)
            if self.s3_web_identity_token_file
            else None,
            ca=self.s3_ca,
        )

    def pods(self) -> PodSettings:
        """What the builder of trial Pods needs."""
        return PodSettings(
            runner_image=self.runner_image,
            runner_pull_policy=self.image_pull_policy,
            image_pull_policy=self.image_pull_policy,
            unlimited_seconds=self.unlimited_seconds,
            environment_cpu=self.environment_cpu,
            environment_memory=self.environment_memory,
            runner_cpu=self.runner_cpu,
            runner_memory=self.runner_memory,
            runner_memory_limit=self.runner_memory_limit,
            task_volume=self.task_volume,
            logs_volume=self.logs_volume,
            tmp_volume=self.tmp_volume,
            mirrors=self.mirrors(),
            ca_config_map=self.ca_config_map,
            proxy=self._proxy(),
        )

    def _proxy(self) -> tuple[tuple[str, str], ...]:
        """In both spellings: programs disagree on which one they read."""
        given = (("HTTP_PROXY", self.http_proxy), ("HTTPS_PROXY", self.https_proxy), ("NO_PROXY", self.no_proxy))
        return tuple((spelling, value) for name, value in given if value for spelling in (name, name.lower()))

    def mirrors(self) -> Mirrors:
        """Where images are read from.

        Raises:
            InvalidSpec: a pair is none.
        """
        return Mirrors(_pairs("SEATRIAL_IMAGE_MIRRORS", self.image_mirrors), self.image_prefix)

    def blocked_networks(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        """Where nobody is asked on behalf of a task.

        Raises:
            InvalidSpec: one is no network.
        """
        try:
            return tuple(ipaddress.ip_network(item, strict=False) for item in self.blocked_cidrs)
        except ValueError as error:
            raise InvalidSpec("SEATRIAL_BLOCKED_CIDRS", f"names something that is no network: {error}") from error

    def builds(self) -> BuildSettings:
        """What the builder of images needs.

        Raises:
            InvalidSpec: a pair is none.
        """
        files = {}
        for path, source in _pairs("SEATRIAL_BUILD_FILES", self.build_files).items():
            name, slash, key = source.partition("/")
            if not slash or not path.startswith("/"):
                raise InvalidSpec("SEATRIAL_BUILD_FILES", f"{path}={source} is not /PATH=CONFIGMAP/KEY")
            files[path] = (name, key)
        return BuildSettings(
            repository=self.build_repository,
            pull_repository=self.build_pull_repository,
            executor_image=self.build_executor_image,
            insecure=self.build_insecure,
            args=_pairs("SEATRIAL_BUILD_ARGS", self.build_args),
            platform=self.build_platform,
            push_secret=self.build_push_secret,
            files=files,
            memory_limit=self.build_memory_limit,
            storage_limit=self.build_storage_limit,
        )

    def limits(self, *, pending_seconds: float) -> Limits:
        """How long Pods of a job may wait."""
        return Limits(
            pending=pending_seconds,
            image_grace=self.image_grace_seconds,
            image_wait=self.image_wait_seconds,
            config_grace=self.config_grace_seconds,
            start=self.start_seconds,
        )

    def job_key(self, job_uid: str) -> bytes:
        """The job's signing key: the same after a restart, without reading a Secret. Hex, because it reaches the verifier as a variable."""
        secret = self.signing_secret or hmac.new(self.s3_secret_key.encode(), b"seatrial signing secret", hashlib.sha256).hexdigest()
        return hmac.new(secret.encode(), f"job {job_uid}".encode(), hashlib.sha256).hexdigest().encode()

    def may_refer(self, namespace: str, other: str) -> bool:
        """Whether an object of ``namespace`` may refer into ``other``."""
        return namespace == other or other in self.shared_namespaces


def _pairs(variable: str, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for item in values:
        name, equals, value = item.partition("=")
        if not name or not equals:
            raise InvalidSpec(variable, f"{item!r} is not NAME=VALUE")
        found[name] = value
    return found


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Settings from environment variables; empty ones count as unset, unknown ones with our prefix are left alone.

    Raises:
        InvalidSpec: a required variable is missing, or one cannot be read.
    """
    values: dict[str, Any] = {}
    hints = typing.get_type_hints(Settings)
    # Jobs' keys that are derived from the store's would change when that one is rotated.
    rotated = bool(environment.get(f"{PREFIX}S3_CREDENTIALS_DIR"))
    required = {"s3_endpoint", "s3_bucket", *(("signing_secret",) if rotated else ("s3_access_key", "s3_secret_key"))}
    for item in fields(Settings):
        variable = f"{PREFIX}{item.name.upper()}"
        text = environment.get(variable, "")
        if text:
            values[item.name] = _read(variable, text, hints[item.name])
        elif item.name in required:
            raise InvalidSpec(variable, "must be set; the chart writes it from its values")
    values.setdefault("identity", f"{socket.gethostname()}_{uuid.uuid4()}")
    settings = Settings(**values)
    settings.builds()
    settings.mirrors()
    settings.blocked_networks()
    return settings


def _read(variable: str, text: str, kind: Any) -> Any:
    try:
        if kind == tuple[str, ...]:
            return tuple(part.strip() for part in text.split(",") if part.strip())
        if kind is bool:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if kind is int:
            return int(text)
        if kind is float:
            return float(text)
    except (KeyError, ValueError):
        raise InvalidSpec(variable, f"is not a valid {getattr(kind, '__name__', 'value')}") from None
    return text
