"""Names of trials, Pods and objects in the store.

Why pure functions of the input: a name that is the same for ever makes a repeated create harmless, and a restart finds what it made.
Source of the Pod name: ``spec/operator.md`` section 7; of the trial name: Harbor, ``<task>__<7 characters>``.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Final, NamedTuple

TRIAL_STEM_CHARS: Final = 32
LABEL_CHARS: Final = 63


class TrialKey(NamedTuple):
    """What identifies a trial inside its job."""

    task: str
    """Native task id."""
    agent: str
    attempt: int
    """From 1."""


def trial_name(job_uid: str, key: TrialKey, *, salt: int = 0) -> str:
    """Harbor's trial name with seven hex digits of a hash instead of random characters.

    Always a legal label value and path part, whatever characters the native id has. ``salt`` is raised by ``expand`` on a collision.
    """
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", key.task.rsplit("/", 1)[-1]).lstrip("._-")[:TRIAL_STEM_CHARS].rstrip("._-")
    return f"{stem or 'task'}__{_digest(job_uid, key, salt).hex()[:7]}"


def pod_name(job: str, job_uid: str, key: TrialKey, retry: int, *, verifies: bool = False) -> str:
    """Name of the Pod for one retry of one trial, or of its separate verifier; at most 63 characters."""
    token = base64.b32encode(_digest(job_uid, key)).decode().lower()[:10]
    stem = re.sub(r"[^a-z0-9]+", "-", job.lower())[:40].strip("-")
    return f"{stem or 'job'}-{token}-{retry}{'-v' if verifies else ''}"


def script_pod_name(job: str, job_uid: str, script: int, retry: int) -> str:
    """Name of the Pod that runs one of the job's scripts; at most 63 characters."""
    token = base64.b32encode(hashlib.sha256(job_uid.encode()).digest()).decode().lower()[:10]
    stem = re.sub(r"[^a-z0-9]+", "-", job.lower())[:36].strip("-")
    return f"{stem or 'job'}-{token}-score-{script}-{retry}"


def secret_name(job: str, job_uid: str) -> str:
    """Name of the Secret with the job's signing key."""
    token = base64.b32encode(hashlib.sha256(job_uid.encode()).digest()).decode().lower()[:10]
    stem = re.sub(r"[^a-z0-9]+", "-", job.lower())[:40].strip("-")
    return f"{stem or 'job'}-{token}-key"


def label_value(text: str) -> str:
    """``text`` as a label value: other characters become ``-``; what is too long is cut and ends in a hash. Empty stays empty."""
    value = re.sub(r"[^A-Za-z0-9._-]", "-", text).strip("._-")
    if len(value) <= LABEL_CHARS:
        return value
    return f"{value[: LABEL_CHARS - 9].rstrip('._-')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def job_prefix(namespace: str, job: str, job_uid: str) -> str:
    """Where everything of one job is kept, with a slash at the end."""
    return f"jobs/{namespace}/{job}-{job_uid}/"


def archive_key(ref: str) -> str:
    """``namespace/fileset#path`` as a key of the store."""
    return f"filesets/{ref.replace('#', '/', 1)}"


def plan_key(prefix: str) -> str:
    return f"{prefix}plan.json"


def trials_prefix(prefix: str) -> str:
    return f"{prefix}trials/"


def result_key(prefix: str, trial: str, retry: int) -> str:
    return f"{prefix}trials/{trial}/{retry}/result.json"


def logs_key(prefix: str, trial: str, retry: int) -> str:
    return f"{prefix}trials/{trial}/{retry}/logs.tar.gz"


def script_result_key(prefix: str, script: int, retry: int) -> str:
    return f"{prefix}scripts/{script}/{retry}/result.json"


def script_rewards_key(prefix: str) -> str:
    """What the scripts of a job read."""
    return f"{prefix}scripts/rewards.jsonl"


def script_outcomes_key(prefix: str) -> str:
    return f"{prefix}scripts.jsonl"


def rows_prefix(prefix: str) -> str:
    return f"{prefix}rows/"


def rows_key(prefix: str, number: int) -> str:
    return f"{prefix}rows/{number:08d}.jsonl"


def revisions_prefix(namespace: str, kind: str, name: str) -> str:
    """``kind`` is ``task`` or ``taskset``."""
    return f"revisions/{namespace}/{kind}/{name}/"


def revision_key(namespace: str, kind: str, name: str, number: int) -> str:
    return f"{revisions_prefix(namespace, kind, name)}{number}.json"


def parse_trial_object(prefix: str, key: str) -> tuple[str, int, str] | None:
    """``(trial, retry, file name)`` of a key below ``prefix`` + ``trials/``; None for any other key."""
    match = re.fullmatch(r"([^/]+)/(\d{1,4})/([^/]+)", key.removeprefix(trials_prefix(prefix)))
    return (match[1], int(match[2]), match[3]) if match and key.startswith(trials_prefix(prefix)) else None


def _digest(job_uid: str, key: TrialKey, salt: int = 0) -> bytes:
    parts = [job_uid, key.task, key.agent, str(key.attempt), *([str(salt)] if salt else [])]
    return hashlib.sha256("\0".join(parts).encode()).digest()
