"""Saved trials on disk and in the object store: read them, rebuild them from a Harbor job directory, find their evidence, store them.

Evidence was written by agents: sizes are bounded, and nothing outside its folder is read. Source: nemo.md 20 and 25.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import tarfile
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol, cast

from seatrial.core.naming import logs_key, result_key
from seatrial.core.observe import parse_time
from seatrial.core.saved import PRIMARY_KEY, SavedTrial, parse_saved, recorded_key, saved_trial
from seatrial.effects.store import Store
from seatrial.errors import InvalidSpec, SeatrialError
from seatrial.harbor_errors import error_policy
from seatrial.scoring.rewards import key_rejection, parse_rewards
from seatrial.sdk.regular import read_regular
from seatrial.sdk.results import RESULT_BYTES, JobFiles, TrialRecord
from seatrial.taskpkg.collection import PlainTask

Raw = dict[str, Any]

FILESET: Final = "saved-trials"
FILE: Final = "trials.jsonl"
TRAJECTORY: Final = "agent/trajectory.json"
TRAJECTORY_BYTES: Final = 64 * 1024 * 1024
TRACEBACK_CHARS: Final = 8192
INVALID_RESULT: Final = "InvalidTrialResult"
_FOLDERS: Final = ("agent", "verifier", "artifacts")
_VERIFIER_ERRORS: Final = frozenset(
    {INVALID_RESULT, "RewardFileNotFoundError", "RewardFileEmptyError", "VerifierOutputParseError", "VerifierTimeoutError"}
)


class Task(Protocol):
    """A task as far as saved trials need it: ``HarborTask``, ``PlainTask``."""

    @property
    def id(self) -> str: ...


class Evidence(Protocol):
    """Where the files of saved trials are."""

    def read(self, trial: SavedTrial, path: str, *, max_bytes: int) -> bytes | None:
        """A file of the trial, such as ``agent/trajectory.json``; None where there is none, or a larger one."""
        ...


def read_trials(path: str | Path) -> tuple[SavedTrial, ...]:
    """The trials of a ``trials.jsonl``, or of the bundle in a folder.

    Raises:
        SavedTrialsRefused: a line is no trial.
        InvalidSpec: there is no such file.
    """
    file = Path(path)
    file = file / FILE if file.is_dir() else file
    try:
        return parse_saved(file.read_bytes())
    except OSError as error:
        raise InvalidSpec("trials", f"{file} cannot be read: {error.strerror}") from error


def trajectory(evidence: Evidence | None, trial: SavedTrial) -> Mapping[str, Any] | None:
    """The ATIF document that the trial's agent left; None where it left none that can be read."""
    data = evidence.read(trial, TRAJECTORY, max_bytes=TRAJECTORY_BYTES) if evidence is not None else None
    try:
        found = json.loads(data) if data is not None else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


class FolderEvidence:
    """Files in folders of one trial each, as in a Harbor job directory."""

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root).resolve()

    def folder(self, trial: SavedTrial) -> Path | None:
        """The trial's folder; None where it has none inside the root."""
        for name in (trial.metadata.get("harbor_trial_dir"), trial.id):
            if isinstance(name, str) and name:
                try:
                    found = (self._root / name).resolve()
                    is_inside = found.is_dir() and found != self._root and found.is_relative_to(self._root)
                except (OSError, ValueError):  # no name of a folder
                    continue
                if is_inside:
                    return found
        return None

    def read(self, trial: SavedTrial, path: str, *, max_bytes: int) -> bytes | None:
        """As ``Evidence.read``; in a folder that ``seatrial artifacts`` wrote, logs lie below ``files``."""
        home = self.folder(trial)
        for base in (home, home / "files") if home is not None else ():
            file = (base / path).resolve()
            if file.is_relative_to(base) and (data := read_regular(file, max_bytes=max_bytes)) is not None:
                return data
        return None


class JobEvidence:
    """Files of a job's trials in the object store."""

    def __init__(self, files: JobFiles) -> None:
        self._files = files
        self._records: dict[str, TrialRecord] = {record.name: record for record in files.trials()}

    def read(self, trial: SavedTrial, path: str, *, max_bytes: int) -> bytes | None:
        """As ``Evidence.read``. An archive that was changed after the trial is no evidence."""
        record = self._records.get(trial.id)
        if record is None:
            return None
        try:
            for member, body in self._files.members(record):
                if member.path == path:
                    return body.read() if member.size <= max_bytes else None
        except SeatrialError:
            return None
        return None


# --- Harbor's job directory -------------------------------------------------------------------------------------------------------------


def build_trials_from_job_dir(job_dir: str | Path, tasks: Sequence[Task], *, reward_key: str = "reward") -> tuple[SavedTrial, ...]:
    """The trials that Harbor left in a job directory, in sorted order of their folders; Harbor is not run.

    Trials of other tasks are left out; a task without any trial is warned about. A result that is not a valid one is an errored trial.

    Args:
        tasks: with the native ids that were run.
        reward_key: the one that counted then.

    Raises:
        InvalidSpec: no such directory, or a key that cannot name a reward.
    """
    root = Path(job_dir)
    if not root.is_dir():
        raise InvalidSpec("job_dir", f"{root} is no directory")
    if (reason := key_rejection(reward_key)) is not None:
        raise InvalidSpec("reward_key", f"invalid Harbor reward_key: {reason}")
    wanted = {task.id for task in tasks}
    found: list[SavedTrial] = []
    for file in sorted(root.glob("*/result.json")):
        trial = _from_result(file, root, wanted, reward_key)
        if trial is not None:
            found.append(trial)
    counts: dict[str, int] = {}
    numbered = []
    for trial in found:
        counts[trial.task_id] = counts.get(trial.task_id, 0) + 1
        numbered.append(replace(trial, row={**trial.row, "attempt": counts[trial.task_id]}))
    if without := sorted(wanted - set(counts)):
        warnings.warn(f"{root} has no trial of {', '.join(without[:10])}", stacklevel=2)
    return tuple(numbered)


def tasks_of(trials: Iterable[SavedTrial], metadata: Mapping[str, Mapping[str, Any]] | None = None) -> list[PlainTask]:
    """The tasks that trials name, in the order in which they come; ``metadata`` by task."""
    names = dict.fromkeys(trial.task_id for trial in trials)
    return [PlainTask(name, name, {}, dict((metadata or {}).get(name, {}))) for name in names]


def tasks_of_job_dir(job_dir: str | Path) -> list[PlainTask]:
    """The tasks whose trials a Harbor job directory has."""
    names: dict[str, None] = {}
    for file in sorted(Path(job_dir).glob("*/result.json")):
        name = _read_result(file).get("task_name")
        if isinstance(name, str):
            names[name] = None
    return [PlainTask(name, name, {}) for name in names]


def _read_result(file: Path) -> Raw:
    """A trial result; empty where it cannot be read."""
    try:
        result = json.loads(read_regular(file, max_bytes=RESULT_BYTES) or b"")
    except (ValueError, RecursionError):
        result = None
    return result if isinstance(result, dict) else {}


def _from_result(file: Path, root: Path, wanted: set[str], reward_key: str) -> SavedTrial | None:
    """The trial of one ``result.json``; None where it is of another task, or does not say of which."""
    result = _read_result(file)
    name = result.get("task_name")
    if not isinstance(name, str):
        warnings.warn(f"{file} is no trial result and is left out", stacklevel=3)
        return None
    if name not in wanted:
        return None
    rewards, fault = _rewards(result)
    parsed = parse_rewards(rewards or {})
    error = _exception(result) if fault is None else (INVALID_RESULT, fault, "", None)
    valid = bool(parsed.values) and (error is None or (fault is None and error_policy(error[0]).valid))
    if not valid and error is None:
        error = ("RewardFileNotFoundError", "the trial has no reward", "", None)
    spans = {key: seconds for key in ("agent_execution", "verifier") if (seconds := _seconds(result.get(key))) is not None}
    relative = file.parent.relative_to(root).as_posix()
    metadata = {
        PRIMARY_KEY: reward_key,
        "reward": parsed.values.get(reward_key),
        "reward_details": parsed.values,
        "reward_rejections": dict(parsed.rejected),
        "reward_entry_rejections": list(parsed.bad_keys),
        "harbor_trial_dir": relative,
    }
    info = result.get("agent_info")
    body: Raw = {
        "id": relative,
        "task_id": name,
        "status": "COMPLETED" if error is None and reward_key in parsed.values else "PARTIAL",
        "output": None,
        "evidence": {"result": {"ref": f"{relative}/result.json"}, "logs": {"ref": relative}},
        "measurements": {"runtime_sec": spans["agent_execution"]} if "agent_execution" in spans else {},
        "metadata": metadata,
        "trial": relative,
        "task": name,
        "agent": str(info["name"]) if isinstance(info, dict) and info.get("name") else "imported",
        "retry": 0,
        "outcome": "scored" if valid else "errored",
        "rewards": parsed.values or None,
        "endedAt": _time(result.get("finished_at")) or "",
        "seconds": spans,
    }
    if (start := _time(result.get("started_at"))) is not None:
        body["startedAt"] = start
    if error is not None:
        kind, message, traceback, when = error
        cause = "verifier" if kind in _VERIFIER_ERRORS else "agent" if error_policy(kind).valid else "infrastructure"
        body["error"] = {"type": kind, "exceptionType": kind, "cause": cause, "message": message[:1024]}
        body["error"] |= {key: value for key, value in (("traceback", traceback[:TRACEBACK_CHARS]), ("occurred_at", when)) if value}
    try:
        return saved_trial(body)
    except ValueError as reason:
        warnings.warn(f"{file} is left out: {reason}", stacklevel=3)
        return None


def _rewards(result: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, str | None]:
    """The reward mapping, and why it makes the whole attempt invalid: null, a text that is no number, an object. Source: nemo.md 19.1."""
    verified = result.get("verifier_result")
    rewards = verified.get("rewards") if isinstance(verified, dict) else None
    if verified is not None and not isinstance(verified, dict):
        return None, "verifier_result is no object"
    if rewards is None:
        return None, None
    if not isinstance(rewards, dict):
        return None, "rewards is no object"
    for key, value in rewards.items():
        if value is None or isinstance(value, dict | list):
            return None, f"reward {key[:60]!r} is no number"
        if isinstance(value, str) and parse_rewards({"reward": value}).rejected.get("reward") == "non_numeric":
            return None, f"reward {key[:60]!r} is no number"
    return rewards, None


def _exception(result: Mapping[str, Any]) -> tuple[str, str, str, str | None] | None:
    """Type, message, traceback and time of the trial's exception, else of the first step that has one."""
    steps = result.get("step_results")
    parts = [result, *(steps if isinstance(steps, list) else ())]
    infos = (part.get("exception_info") for part in parts if isinstance(part, dict))
    info = next((info for info in infos if isinstance(info, dict)), None)
    if info is None:
        return None
    texts = (info.get(name) for name in ("exception_type", "exception_message", "exception_traceback", "occurred_at"))
    kind, message, traceback, when = (text if isinstance(text, str) else "" for text in texts)
    return kind or "UnknownException", message, traceback, when or None


def _time(value: object) -> str | None:
    try:
        found = parse_time(value) if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None
    return None if found is None else found.isoformat().replace("+00:00", "Z")


def _seconds(span: object) -> float | None:
    start, end = (_time(span.get(name)) for name in ("started_at", "finished_at")) if isinstance(span, dict) else (None, None)
    if start is None or end is None:
        return None
    seconds = (cast(Any, parse_time(end)) - cast(Any, parse_time(start))).total_seconds()
    return float(seconds) if math.isfinite(seconds) and seconds >= 0 else None


# --- for a job that scores them again ---------------------------------------------------------------------------------------------------


def store_trials(store: Store, namespace: str, trials: Sequence[SavedTrial], *, evidence: FolderEvidence | None = None) -> dict[str, str]:
    """Put trials and their evidence into the fileset ``saved-trials``; returns ``{ref, sha256}`` for ``spec.rescore.trials``.

    Equal trials are stored once.

    Raises:
        SavedTrialsRefused: they do not agree on one reward key.
    """
    recorded_key(trials)
    # The files wait on the disk: they are stored beside the lines, whose digest names the place, and are more than memory holds.
    with tempfile.TemporaryDirectory(prefix="seatrial-saved-") as spool:
        packed = [
            _pack(trial, evidence.folder(trial) if evidence is not None else None, spool=Path(spool, str(number)))
            for number, trial in enumerate(trials)
        ]
        data = b"".join(json.dumps(trial.raw(), sort_keys=True, separators=(",", ":")).encode() + b"\n" for trial, _ in packed)
        digest = hashlib.sha256(data).hexdigest()
        folder = f"filesets/{namespace}/{FILESET}/{digest[:20]}/"
        for trial, files in packed:
            retry = int(trial.row.get("retry", 0))
            for key, file in (
                (result_key(folder, trial.id, retry), files.get("result")),
                (logs_key(folder, trial.id, retry), files.get("logs")),
            ):
                if file is not None:
                    store.put(key, file)
        store.put(f"{folder}{FILE}", data)
    return {"ref": f"{namespace}/{FILESET}#{digest[:20]}/{FILE}", "sha256": digest}


def _pack(trial: SavedTrial, folder: Path | None, *, spool: Path) -> tuple[SavedTrial, dict[str, Path]]:
    """A trial that says what is stored of it, and those files in ``spool``. What lay elsewhere before is not said any more."""
    files: dict[str, Path] = {}
    if folder is not None:
        spool.mkdir()
        files["logs"] = _archive(folder, spool / "logs.tar.gz")
        if (result := read_regular(folder / "result.json", max_bytes=RESULT_BYTES)) is not None:
            files["result"] = spool / "result.json"
            files["result"].write_bytes(result)
    row = {key: value for key, value in trial.row.items() if key not in ("stored", "resultSha256", "logsSha256", "origin", "result")}
    digests = {name: _sha256(file) for name, file in files.items()}
    if row:
        row |= {"stored": True, "resultSha256": digests["result"]} if "result" in digests else {}
        row |= {"logsSha256": digests["logs"]} if "logs" in digests else {}
    retry = int(row.get("retry", 0))
    places = {"result": result_key("", trial.id, retry), "logs": logs_key("", trial.id, retry)}
    return replace(trial, row=row, evidence={name: {"ref": places[name], "sha256": digest} for name, digest in digests.items()}), files


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _archive(folder: Path, target: Path) -> Path:
    """The trial's logs and artifacts as a ``tar.gz`` of regular files; the same files give the same bytes."""
    with (
        target.open("wb") as out,
        gzip.GzipFile(filename="", fileobj=out, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w|") as archive,
    ):
        for path in _regular_files(folder):
            info = tarfile.TarInfo(path.relative_to(folder).as_posix())
            with path.open("rb") as file:
                info.size = os.fstat(file.fileno()).st_size
                archive.addfile(info, file)
    return target


def _regular_files(folder: Path) -> Iterator[Path]:
    for name in _FOLDERS:
        for path in sorted((folder / name).rglob("*")):
            if path.is_file() and not path.is_symlink() and path.resolve().is_relative_to(folder):
                yield path
