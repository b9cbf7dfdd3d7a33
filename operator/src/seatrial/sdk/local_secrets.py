"""Secrets of this machine for one job: looked up among the environment variables, put into a Secret that goes away with the job.

A reference such as ``my-workspace/openai-api-key`` is looked up as NeMo Evaluator does it standalone (nemo.md 16.4).
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import quote

from seatrial.api.names import API_VERSION, EVALJOB
from seatrial.errors import InvalidSpec, SeatrialError
from seatrial.sdk.cluster import FIELD_MANAGER, Cluster, Raw
from seatrial.sdk.request import JobRequest


@dataclass(frozen=True)
class LocalSecret:
    """A Secret that does not exist yet."""

    name: str
    values: Mapping[str, str] = field(repr=False)


def candidates(reference: str) -> tuple[str, ...]:
    """Names of variables under which a reference is looked up, the first that is set wins."""
    _, separator, bare = reference.rpartition("/")
    return tuple(dict.fromkeys([*_spellings(reference), *(_spellings(bare) if separator else ())]))


def _spellings(text: str) -> Iterator[str]:
    flat = re.sub("[-/]", "_", text)
    for name in (text, text.upper(), flat, flat.upper()):
        yield name
        if name[:1].isdigit():
            yield f"_{name}"


def look_up(reference: str, environ: Mapping[str, str]) -> str:
    """The value behind a reference; an empty variable does not count.

    Raises:
        InvalidSpec: no variable is set; the message names them and no value.
    """
    names = candidates(reference)
    for name in names:
        if value := environ.get(name):
            return value
    asked = ", ".join(name for name in names if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name))
    raise InvalidSpec("env_secrets", f"{reference!r} is not set on this machine: export one of {asked}")


def take_local_secrets(request: JobRequest, environ: Mapping[str, str]) -> tuple[JobRequest, LocalSecret | None]:
    """``request`` with references to a Secret in place of references to this machine's variables.

    Raises:
        InvalidSpec: a variable is not set, or is named twice.
    """
    if not request.env_secrets:
        return request, None
    if twice := sorted({*request.env_secrets} & {*request.agent_env, *request.agent_env_secrets}):
        raise InvalidSpec("env_secrets", f"{', '.join(twice)}: name each variable once")
    secret = LocalSecret(f"agent-env-{secrets.token_hex(5)}", {name: look_up(ref, environ) for name, ref in request.env_secrets.items()})
    references = {**request.agent_env_secrets, **{name: (secret.name, name) for name in secret.values}}
    return replace(request, env_secrets={}, agent_env_secrets=references), secret


def create_job(cluster: Cluster, body: Raw, secret: LocalSecret | None, *, dry_run: bool = False) -> Raw:
    """Create an EvalJob, and before it the Secret, which the job then owns.

    Raises:
        InvalidSpec, AlreadyExists: the job is refused; nothing of the Secret is left.
    """
    if secret is None or dry_run:
        return cluster.create(EVALJOB, body, dry_run=dry_run)
    folder = f"/api/v1/namespaces/{quote(cluster.namespace)}/secrets"
    path, query = f"{folder}/{secret.name}", {"fieldManager": FIELD_MANAGER}
    made = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret.name}, "stringData": dict(secret.values), "type": "Opaque"}
    cluster.request("POST", folder, query=query, body=made)
    try:
        job = cluster.create(EVALJOB, body)
    except BaseException:
        with contextlib.suppress(SeatrialError):
            cluster.request("DELETE", path)
        raise
    owner = {"apiVersion": API_VERSION, "kind": EVALJOB, "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
    owned = {"metadata": {"ownerReferences": [owner]}}
    cluster.request("PATCH", path, query=query, body=owned, content_type="application/merge-patch+json")
    return job
