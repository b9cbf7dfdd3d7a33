"""Where the object store is, for people: flags, then ``SEATRIAL_S3_*``, then what the chart wrote into the cluster.

Why an endpoint of its own for people: a signature covers the host name, and Pods reach the store by another one.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from seatrial.effects.store import StoreSettings
from seatrial.errors import Forbidden, InvalidSpec, NotFound
from seatrial.sdk.cluster import Cluster

CONFIG_MAP: Final = "seatrial-client"
DEFAULT_OPERATOR_NAMESPACE: Final = "seatrial-system"
OPERATOR_NAMESPACE_VARIABLE: Final = "SEATRIAL_OPERATOR_NAMESPACE"
VARIABLE_PREFIX: Final = "SEATRIAL_S3_"


@dataclass(frozen=True)
class StoreOptions:
    """Settings as given by hand; None means: look further. Each is also a variable, such as ``SEATRIAL_S3_ACCESS_KEY``."""

    endpoint: str | None = None
    bucket: str | None = None
    region: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    ca: str | None = None

    def over(self, environment: Mapping[str, str]) -> StoreOptions:
        """These options, completed by the variables of ``environment``."""
        given = {
            item.name: getattr(self, item.name) or environment.get(f"{VARIABLE_PREFIX}{item.name.upper()}") or None for item in fields(self)
        }
        return StoreOptions(**given)


@dataclass(frozen=True)
class Endpoints:
    """What the ConfigMap says."""

    internal: str
    external: str
    bucket: str
    region: str
    path_style: bool
    secret: str
    """Name of the Secret with ``accessKey`` and ``secretKey`` in the operator's namespace; empty: there is none."""
    runner_image: str = ""
    """Of the containers beside a task; empty: an older chart."""
    image_repository: str = ""
    """HOST/NAME to which images of tasks are pushed; empty: the chart names none."""
    image_insecure: bool = False
    image_args: Mapping[str, str] = field(default_factory=dict)
    """Build arguments that the operator uses too; equal arguments give equal keys."""


def operator_namespace(environment: Mapping[str, str] = os.environ) -> str:
    """Where the operator and its ConfigMap live."""
    return environment.get(OPERATOR_NAMESPACE_VARIABLE) or DEFAULT_OPERATOR_NAMESPACE


def read_endpoints(cluster: Cluster, *, environment: Mapping[str, str] = os.environ) -> Endpoints:
    """The ConfigMap that the chart wrote.

    Raises:
        NotFound: it is not there.
    """
    namespace = operator_namespace(environment)
    try:
        data = cluster.core("configmaps", CONFIG_MAP, namespace=namespace).get("data") or {}
    except NotFound as error:
        raise NotFound(
            f"ConfigMap {namespace}/{CONFIG_MAP} does not exist: install the chart, name the operator's namespace in "
            f"{OPERATOR_NAMESPACE_VARIABLE}, or give the S3 settings as {VARIABLE_PREFIX}* variables"
        ) from error
    internal = data.get("endpoint", "")
    return Endpoints(
        internal=internal,
        external=data.get("externalEndpoint") or internal,
        bucket=data.get("bucket", ""),
        region=data.get("region") or "us-east-1",
        path_style=data.get("pathStyle", "true") != "false",
        secret=data.get("credentialsSecret", ""),
        runner_image=data.get("runnerImage", ""),
        image_repository=data.get("imageRepository", ""),
        image_insecure=data.get("imageInsecure") == "true",
        image_args=dict(pair.split("=", 1) for pair in data.get("imageArgs", "").split(",") if "=" in pair),
    )


def store_settings(cluster: Cluster, options: StoreOptions, *, environment: Mapping[str, str] = os.environ) -> StoreSettings:
    """The settings for a client outside the cluster. The cluster is asked only for what is not given.

    Raises:
        InvalidSpec: something is given nowhere.
        NotFound: the chart's ConfigMap is needed and missing.
        Forbidden: the credentials are needed and we may not read them.
    """
    given = options.over(environment)
    if given.endpoint and given.bucket and given.access_key and given.secret_key:
        return _settings(given, given.endpoint, given.bucket, given.region or "us-east-1", path_style=True)
    found = read_endpoints(cluster, environment=environment)
    if not given.access_key or not given.secret_key:
        access_key, secret_key = _credentials(cluster, found, operator_namespace(environment))
        given = StoreOptions(**{**vars(given), "access_key": access_key, "secret_key": secret_key})
    inside = "KUBERNETES_SERVICE_HOST" in environment
    endpoint = given.endpoint or (found.internal if inside else found.external)
    if not endpoint or not (given.bucket or found.bucket):
        raise InvalidSpec(f"ConfigMap {CONFIG_MAP}", "has no endpoint or no bucket: correct the chart's values")
    return _settings(given, endpoint, given.bucket or found.bucket, given.region or found.region, path_style=found.path_style)


def _settings(given: StoreOptions, endpoint: str, bucket: str, region: str, *, path_style: bool) -> StoreSettings:
    return StoreSettings(
        endpoint=endpoint,
        bucket=bucket,
        access_key=given.access_key or "",
        secret_key=given.secret_key or "",
        region=region,
        session_token=given.session_token,
        path_style=path_style,
        ca=given.ca,
    )


def _credentials(cluster: Cluster, found: Endpoints, namespace: str) -> tuple[str, str]:
    step = f"Set {VARIABLE_PREFIX}ACCESS_KEY and {VARIABLE_PREFIX}SECRET_KEY"
    if not found.secret:
        raise InvalidSpec("S3 credentials", f"are given nowhere. {step}")
    try:
        data = cluster.core("secrets", found.secret, namespace=namespace).get("data") or {}
        return _decoded(data, "accessKey"), _decoded(data, "secretKey")
    except Forbidden as error:
        raise Forbidden(
            f"no S3 credentials: they are not in the environment, and Secret {namespace}/{found.secret} may not be read. {step}"
        ) from error
    except (NotFound, KeyError) as error:
        raise NotFound(
            f"no S3 credentials: Secret {namespace}/{found.secret} with accessKey and secretKey does not exist. {step}"
        ) from error


def _decoded(data: Mapping[str, str], key: str) -> str:
    return base64.b64decode(data[key]).decode()
