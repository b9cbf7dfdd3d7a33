"""Read what a job left in the object store: plan, rows, summary, and each trial's logs.

Rows of a running job come in shards and are complete only at its end. Everything below ``trials/`` was written by a trial Pod and is
hostile: sizes are bounded, links are not followed, paths are checked.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Literal, NamedTuple, cast

from seatrial.api.evaljob import EvalJob
from seatrial.api.names import TASK
from seatrial.core.bundle import build_tables
from seatrial.core.frozen import decode_plan
from seatrial.core.naming import job_prefix, logs_key, plan_key, result_key, rows_prefix, script_outcomes_key
from seatrial.core.rows import Origin, Row, by_trial, from_json
from seatrial.core.scripts import ScriptOutcome
from seatrial.core.scripts import from_lines as read_outcomes
from seatrial.core.status import is_terminal
from seatrial.effects.store import Store
from seatrial.errors import NotFound, SeatrialError
from seatrial.scoring.observations import is_number
from seatrial.scoring.plots import Point
from seatrial.sdk.cluster import Cluster

Raw = dict[str, Any]

PLAN_BYTES: Final = 512 * 1024 * 1024
ROWS_BYTES: Final = 512 * 1024 * 1024
SUMMARY_BYTES: Final = 64 * 1024 * 1024
RESULT_BYTES: Final = 4 * 1024 * 1024
REPORT_BYTES: Final = 256 * 1024 * 1024
BUNDLE: Final = ("metadata.json", "tasks.jsonl", "trials.jsonl", "scores.jsonl", "report.html", "summary.json")
READS: Final = 16
BLOCK_BYTES: Final = 1024 * 1024
# An archive of logs and artifacts: more entries or more bytes than this are refused, however small the compressed file is.
MAX_ENTRIES: Final = 100_000
MAX_BYTES: Final = 16 * 1024**3
MAX_PATH_BYTES: Final = 4096
MAX_EXTENDED_BYTES: Final = 1024 * 1024

State = Literal["pending", "running", "scored", "errored", "cancelled"]


class UnsafeArchive(SeatrialError):
    """A trial's archive has a member that is not written to disk."""


class EvidenceChanged(SeatrialError):
    """What is stored is not what the trial committed: it was changed or damaged afterwards. Nothing of it is used."""

    def __init__(self, trial: str, key: str) -> None:
        super().__init__(f"trial {trial}: {key} does not have the sha256 of its row: it was changed or damaged after the trial had ended")


@dataclass(frozen=True)
class TrialRecord:
    """One trial of a job, as far as it is."""

    name: str
    task: str
    agent: str
    attempt: int
    state: State
    retry: int = 0
    rewards: Mapping[str, float] | None = None
    error: str | None = None
    """Name, as in Harbor's error table."""
    reason: str | None = None
    cause: str | None = None
    message: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    tampered: bool = False
    leftover_processes: int = 0
    changed_tools: int = 0
    origin: Origin | None = None
    """Where a reused result was made; None: here."""
    result_sha256: str | None = None
    logs_sha256: str | None = None
    """Of the stored files, as the trial committed them; None where the row does not say."""

    def reward(self, key: str = "reward") -> float | None:
        """The reward under ``key`` where it counts, else None."""
        return self.rewards.get(key) if self.rewards is not None and self.state == "scored" else None

    def raw(self) -> Raw:
        """As documented JSON: every field, None where there is no value."""
        return {
            "trial": self.name,
            "task": self.task,
            "agent": self.agent,
            "attempt": self.attempt,
            "retry": self.retry,
            "state": self.state,
            "rewards": dict(self.rewards) if self.rewards is not None else None,
            "error": None
            if self.error is None
            else {"type": self.error, "reason": self.reason, "cause": self.cause, "message": self.message},
            "startedAt": self.started_at,
            "endedAt": self.ended_at,
            "seconds": dict(self.seconds),
            "tampered": self.tampered,
            "leftoverProcesses": self.leftover_processes,
            "changedTools": self.changed_tools,
        }


class Member(NamedTuple):
    """One regular file of a trial's archive."""

    path: str
    size: int


@dataclass(frozen=True)
class Summary:
    """``summary.json``, or the same facts from the status while there is none."""

    raw: Raw

    @property
    def scores(self) -> Sequence[Mapping[str, Any]]:
        """``[{name, value, count, missing}]``; a value that was not measured is None."""
        found = self.raw["aggregates"] if "aggregates" in self.raw else self.raw.get("scores", [])
        return [{"value": None, **score} for score in found]

    @property
    def ranges(self) -> Sequence[Mapping[str, Any]]:
        """Every score with all its statistics, under its original name such as ``harbor_reward.reward``; empty before the job's end."""
        return self.raw["scores"] if "aggregates" in self.raw else []

    def score(self, name: str) -> float | None:
        """The aggregate ``name``, such as ``reward.mean``, or the mean of an original name; None where nothing was measured.

        Raises:
            NotFound: the job has no such score.
        """
        for score in (*self.scores, *({"name": item["name"], "value": item["mean"]} for item in self.ranges)):
            if score["name"] == name:
                return None if score["value"] is None else float(score["value"])
        known = ", ".join(score["name"] for score in self.scores) or "none yet"
        raise NotFound(f"no score {name!r}; known: {known}")


class BundleCheck(NamedTuple):
    """Whether the saved files follow from the saved rows."""

    files: tuple[str, ...]
    different: tuple[str, ...]


class JobFiles:
    """The folder of one job in the object store."""

    def __init__(self, store: Store, *, namespace: str, name: str, uid: str) -> None:
        self._store = store
        self.prefix = job_prefix(namespace, name, uid)

    @classmethod
    def of(cls, store: Store, job: Mapping[str, Any]) -> JobFiles:
        """The folder of an EvalJob object."""
        metadata = job["metadata"]
        return cls(store, namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])

    def plan(self) -> Raw:
        """The frozen plan.

        Raises:
            NotFound: the job is not planned yet.
        """
        return cast(Raw, json.loads(self._store.get(plan_key(self.prefix), max_bytes=PLAN_BYTES)))

    def summary(self) -> Raw | None:
        """``summary.json``; None before the job's end."""
        try:
            return cast(Raw, json.loads(self._store.get(f"{self.prefix}summary.json", max_bytes=SUMMARY_BYTES)))
        except NotFound:
            return None

    def summary_of(self, job: Mapping[str, Any], *, whole: bool = False) -> Summary:
        """The scores of an EvalJob: ``summary.json``, or the status while there is none.

        Args:
            whole: all fields of ``summary.json`` are needed; they are computed from the rows so far where it is not written yet.

        Raises:
            NotFound: the job is not planned yet, and ``whole``.
        """
        found = self.summary() if is_terminal(job.get("status") or {}) else None
        if found is None and whole:
            found = cast(Raw, json.loads(self.bundle(job)["summary.json"]))
        return Summary(found if found is not None else dict(job.get("status", {})))

    def bundle(self, job: Mapping[str, Any]) -> dict[str, bytes]:
        """The files of the bundle as the operator wrote them; for a job that goes on, the same files computed from the rows so far.

        Raises:
            NotFound: the job is not planned yet.
        """
        if is_terminal(job.get("status") or {}) and self.summary() is not None:
            try:
                return {name: self._store.get(f"{self.prefix}{name}", max_bytes=REPORT_BYTES) for name in BUNDLE}
            except NotFound:
                # Written by a version without one of the files.
                pass
        plan = decode_plan(self._store.get(plan_key(self.prefix), max_bytes=PLAN_BYTES))
        return build_tables(plan, EvalJob.parse(dict(job)).spec, by_trial(self._history()), scripts=self._scripts())

    def check_bundle(self, job: Mapping[str, Any]) -> BundleCheck:
        """Compute the bundle of an ended job again from its plan and its saved rows, and compare with what is stored.

        Raises:
            NotFound: the job has no saved results.
        """
        plan = decode_plan(self._store.get(plan_key(self.prefix), max_bytes=PLAN_BYTES))
        tables = build_tables(plan, EvalJob.parse(dict(job)).spec, by_trial(self._history()), scripts=self._scripts())
        stored = {name: self._store.get(f"{self.prefix}{name}", max_bytes=REPORT_BYTES) for name in tables}
        return BundleCheck(tuple(tables), tuple(name for name in tables if tables[name] != stored[name]))

    def _scripts(self) -> tuple[ScriptOutcome, ...]:
        """What the job's scripts gave; none before they have run."""
        try:
            return read_outcomes(self._store.get(script_outcomes_key(self.prefix), max_bytes=SUMMARY_BYTES))
        except NotFound:
            return ()

    def rows(self) -> tuple[Row, ...]:
        """The rows of the trials that have ended: the compacted file, or the shards so far; without those of retried Pods."""
        return tuple(rows[-1] for rows in by_trial(from_json(line) for line in self._lines()).values())

    def _history(self) -> Iterator[Row]:
        """All rows, those of retried Pods included."""
        for line in self._lines():
            yield from (from_json(item) for item in line.get("retries", ()))
            yield from_json(line)

    def trials(self, *, running: Iterable[str] = ()) -> tuple[TrialRecord, ...]:
        """Every trial of the plan, in its order.

        Args:
            running: names of the trials that have a live Pod.

        Raises:
            NotFound: the job is not planned yet.
        """
        return merge_trials(self.plan(), self.rows(), frozenset(running))

    def result(self, trial: TrialRecord) -> Raw:
        """``result.json`` of the retry that counts.

        Raises:
            NotFound: the trial stored none.
            EvidenceChanged: it is not what the trial committed.
        """
        key = result_key(*self._place(trial))
        data = self._store.get(key, max_bytes=RESULT_BYTES)
        if trial.result_sha256 not in (None, hashlib.sha256(data).hexdigest()):
            raise EvidenceChanged(trial.name, key)
        return cast(Raw, json.loads(data))

    def members(self, trial: TrialRecord) -> Iterator[tuple[Member, IO[bytes]]]:
        """The regular files of the trial's archive, one after the other; each must be read before the next.

        The whole archive is compared with its row first, so that nothing of a changed one is handed out.

        Raises:
            NotFound: the trial stored no archive.
            EvidenceChanged: it is not what the trial committed.
            UnsafeArchive: limits or path rules are broken.
        """
        key = logs_key(*self._place(trial))
        with self._store.open(key) as stream:
            if trial.logs_sha256 is None:
                yield from read_members(cast(IO[bytes], stream))
                return
            with tempfile.TemporaryFile(prefix="seatrial-logs-") as copy:
                digest, size = hashlib.sha256(), 0
                while block := stream.read(BLOCK_BYTES):
                    digest.update(block)
                    if (size := size + len(block)) > MAX_BYTES:
                        raise UnsafeArchive(f"the archive is larger than {MAX_BYTES} bytes")
                    copy.write(block)
                if digest.hexdigest() != trial.logs_sha256:
                    raise EvidenceChanged(trial.name, key)
                copy.seek(0)
                yield from read_members(copy)

    def _place(self, trial: TrialRecord) -> tuple[str, str, int]:
        """Folder, trial and retry of the stored result; one that was reused lies where it was made."""
        return trial.origin if trial.origin is not None else (self.prefix, trial.name, trial.retry)

    def _lines(self) -> Iterator[Raw]:
        try:
            shards = [self._store.get(f"{self.prefix}trials.jsonl", max_bytes=ROWS_BYTES)]
        except NotFound:
            keys = sorted(entry.key for entry in self._store.list(rows_prefix(self.prefix)))
            shards = [self._store.get(key, max_bytes=ROWS_BYTES) for key in keys]
        for shard in shards:
            yield from (json.loads(line) for line in shard.splitlines() if line)


class Bundle(NamedTuple):
    """The parts of a bundle that reports are made of."""

    metadata: Raw
    summary: Raw
    trials: tuple[Raw, ...]
    scores: tuple[Raw, ...]


def read_bundle(tables: Mapping[str, bytes]) -> Bundle:
    """The files of ``JobFiles.bundle``, parsed.

    Raises:
        ValueError: one of them is not what it is called.
    """
    return Bundle(
        _object_of(tables["metadata.json"]),
        _object_of(tables["summary.json"]),
        *(_lines_of(tables[f"{name}.jsonl"]) for name in ("trials", "scores")),
    )


def _object_of(data: bytes) -> Raw:
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError("a line or a file of it is no JSON object")
    return found


def _lines_of(data: bytes) -> tuple[Raw, ...]:
    return tuple(_object_of(line) for line in data.splitlines() if line)


def flat_range(score: Mapping[str, Any]) -> Raw:
    """A range score as one flat record: ``p10`` … ``p100`` beside the other statistics."""
    percentiles = score["percentiles"] or dict.fromkeys((f"p{p}" for p in range(10, 101, 10)), None)
    return {**{name: value for name, value in score.items() if name != "percentiles"}, **percentiles}


def flat_score(record: Mapping[str, Any]) -> Raw:
    """A line of ``scores.jsonl`` as one flat record: ``output.<name>``, ``diagnostics.<metric>``, metadata by its dotted path."""
    metric = record["metric_type"]
    flat = {name: record[name] for name in ("id", "run_id", "task_id", "trial_id", "metric_type", "status")}
    flat |= {f"output.{item['name']}": item["value"] for item in record["outputs"]}
    flat[f"diagnostics.{metric}"] = "; ".join(item["message"] for item in record["diagnostics"]) or None
    flat["metadata.row_index"] = record["metadata"]["row_index"]
    return flat


def task_values(trials: Iterable[TrialRecord], key: str) -> dict[str, list[float]]:
    """task -> reward of each scored attempt; a graded attempt without the key counts as 0."""
    values: dict[str, list[float]] = {}
    for trial in trials:
        found = values.setdefault(trial.task, [])
        if trial.state == "scored":
            found.append(float((trial.rewards or {}).get(key, 0.0)))
    return values


def reward_rows(trials: Iterable[TrialRecord]) -> list[Mapping[str, float] | None]:
    """What a metric script reads: the rewards of each ended trial, None without a valid one; cancelled trials are left out."""
    return [dict(trial.rewards or {}) if trial.state == "scored" else None for trial in trials if trial.state in ("scored", "errored")]


def cost_points(files: JobFiles, key: str) -> list[Point]:
    """Cost in US dollars and reward of each scored trial whose agent reported a cost."""

    def cost(trial: TrialRecord) -> Point | None:
        try:
            usage = files.result(trial).get("agent_result")
        except NotFound:
            return None
        value = usage.get("cost_usd") if isinstance(usage, dict) else None
        if value is None or not is_number(value):
            return None
        return Point(float(value), trial.reward(key) or 0.0, trial.name)

    with ThreadPoolExecutor(READS) as pool:
        found = pool.map(cost, [trial for trial in files.trials() if trial.state == "scored"])
        return [point for point in found if point is not None]


def merge_trials(plan: Mapping[str, Any], rows: Iterable[Row], running: frozenset[str]) -> tuple[TrialRecord, ...]:
    """The plan's trials with what is known of each."""
    ended = {row.trial: row for row in rows}
    tasks = plan["tasks"]
    return tuple(_record(item, tasks[item["task"]]["id"], ended.get(item["name"]), item["name"] in running) for item in plan["trials"])


def task_groups(cluster: Cluster, plan: Mapping[str, Any], key: str) -> dict[str, str]:
    """For each task of the plan what its Task says under ``key`` of ``spec.metadata``; ``-`` where it says nothing or is gone."""
    wanted = {task["ref"].partition("#")[0]: task["id"] for task in plan["tasks"]}
    groups = dict.fromkeys(wanted.values(), "-")
    for namespace in {ref.partition("/")[0] for ref in wanted}:
        for item in cluster.list(TASK, namespace=namespace):
            native = wanted.get(f"{namespace}/{item['metadata']['name']}")
            value = item["spec"].get("metadata", {}).get(key)
            if native is not None and value is not None:
                groups[native] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return groups


def _record(item: Mapping[str, Any], task: str, row: Row | None, has_pod: bool) -> TrialRecord:
    base = TrialRecord(item["name"], task, item["agent"], item["attempt"], "running" if has_pod else "pending")
    if row is None:
        return base
    error = row.error
    return TrialRecord(
        base.name,
        base.task,
        base.agent,
        base.attempt,
        row.outcome if row.outcome != "retried" else base.state,
        retry=row.retry,
        rewards=row.rewards,
        error=error.harbor if error else None,
        reason=error.type if error else None,
        cause=error.cause if error else None,
        message=error.message if error else None,
        started_at=row.started_at,
        ended_at=row.ended_at,
        seconds=row.seconds,
        tampered=row.tampered,
        leftover_processes=row.leftover_processes,
        changed_tools=row.changed_tools,
        origin=row.origin,
        result_sha256=row.result_sha256,
        logs_sha256=row.logs_sha256,
    )


class _BoundedInfo(tarfile.TarInfo):
    """Judges a header before ``tarfile`` reads what it announces into memory."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        is_extended = self.type not in tarfile.REGULAR_TYPES
        if self.size < 0 or self.type == tarfile.GNUTYPE_SPARSE or (is_extended and self.size > MAX_EXTENDED_BYTES):
            raise UnsafeArchive("the archive has a header that is too long, a negative size or a sparse file")
        return super()._proc_member(archive)  # type: ignore[misc,no-any-return]


def read_members(stream: IO[bytes]) -> Iterator[tuple[Member, IO[bytes]]]:
    """Regular files of a hostile ``tar.gz``: directories are skipped, anything else is refused.

    Raises:
        UnsafeArchive: a link, a device, a path that leaves the folder, or more than ``MAX_ENTRIES`` or ``MAX_BYTES``.
    """
    total = 0
    try:
        with tarfile.open(fileobj=stream, mode="r|gz", tarinfo=_BoundedInfo) as archive:
            for count, member in enumerate(archive, 1):
                if count > MAX_ENTRIES:
                    raise UnsafeArchive(f"the archive has more than {MAX_ENTRIES} entries")
                if member.isdir():
                    continue
                if not member.isreg() or member.sparse is not None:
                    raise UnsafeArchive(f"the archive's member {member.name[:200]!r} is neither a file nor a directory")
                total += member.size
                if total > MAX_BYTES:
                    raise UnsafeArchive(f"the archive expands to more than {MAX_BYTES} bytes")
                path = safe_path(member.name)
                body = archive.extractfile(member)
                if body is not None:
                    yield Member(path, member.size), body
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, RecursionError) as error:
        raise UnsafeArchive(f"the archive cannot be read: {error}") from error


def safe_path(name: str) -> str:
    """``name`` as a relative path with ``/``, without ``.`` parts.

    Raises:
        UnsafeArchive: absolute, leaves the folder, too long, or with characters that no file of ours has.
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    bad = name.startswith("/") or ".." in parts or not parts or any(ord(char) < 0x20 or char in "\\\x7f" for char in name)
    if bad or len(name.encode("utf-8", "surrogateescape")) > MAX_PATH_BYTES:
        raise UnsafeArchive(f"the archive's member {name[:200]!r} has a path that is not written to disk")
    return "/".join(parts)


def save_members(members: Iterable[tuple[Member, IO[bytes]]], target: Path) -> int:
    """Write files below the new or empty folder ``target``; returns how many. Nothing that exists is overwritten or followed.

    Raises:
        UnsafeArchive: a path comes twice or lies below a file.
        FileExistsError: ``target`` has files.
    """
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise FileExistsError(f"{target} is not empty: give another folder")
    count = 0
    for member, body in members:
        path = target / member.path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except (FileExistsError, NotADirectoryError) as error:
            raise UnsafeArchive(f"the archive's member {member.path[:200]!r} comes twice or lies below a file") from error
        with os.fdopen(descriptor, "wb") as file:
            while block := body.read(BLOCK_BYTES):
                file.write(block)
        count += 1
    return count
