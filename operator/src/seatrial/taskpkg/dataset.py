"""``dataset.toml``, ``registry.json`` and references to published packages. Source: harbor.md 2.4 to 2.6."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from seatrial.taskpkg.check import CheckedTask
from seatrial.taskpkg.digest import dataset_digest, file_sha256
from seatrial.taskpkg.model import Identity, Section, check_task_name, is_task_name
from seatrial.taskpkg.parse import MAX_PROBLEMS, Problem, key_text, read_toml, unknown_keys, validate_document

DATASET_FILE: Final = "dataset.toml"
METRIC_FILE: Final = "metric.py"
"""The only file of a dataset that has a meaning."""

# Some for each task, and a dataset may have a hundred thousand.
_MAX_VALUES: Final = 400_000

# Harbor matches with ``re.match``, so one line break at the end passes.
_DIGEST: Final = re.compile(r"sha256:[a-f0-9]{64}$")
_TAG: Final = re.compile(r"[a-z0-9][a-z0-9.\-]*")


# --- dataset.toml ---------------------------------------------------------------------------------------------------------------------


class DatasetTask(Section):
    name: Annotated[str, AfterValidator(check_task_name)]
    digest: str
    """``sha256:<64 hex>``, Harbor's content digest."""

    @field_validator("digest")
    @classmethod
    def _check_digest(cls, value: str) -> str:
        return _digest(value)


class DatasetFile(Section):
    path: str
    digest: str = ""
    """Empty until the dataset is published."""

    @field_validator("path")
    @classmethod
    def _check_path(cls, value: str) -> str:
        if "/" in value or "\\" in value:
            raise _fault("dataset-file", f"{value!r} is not a bare file name", "put the file beside dataset.toml")
        return value

    @field_validator("digest")
    @classmethod
    def _check_digest(cls, value: str) -> str:
        return _digest(value) if value else value


class DatasetManifest(Section):
    schema_version: str = "1.0"
    dataset: Identity
    metadata: dict[str, Any] = Field(default_factory=dict)
    tasks: tuple[DatasetTask, ...] = ()
    files: tuple[DatasetFile, ...] = ()

    def digest(self) -> str:
        """Harbor's hash of the dataset, 64 hex."""
        return dataset_digest((task.digest for task in self.tasks), {file.path: file.digest for file in self.files})


def parse_dataset_toml(text: str | bytes, *, file: str = DATASET_FILE) -> tuple[DatasetManifest | None, tuple[Problem, ...]]:
    """Read a ``dataset.toml``; the manifest is None exactly if one of the problems is an error."""
    document = read_toml(text, file=file, max_values=_MAX_VALUES)
    if isinstance(document, Problem):
        return None, (document,)
    manifest, errors = validate_document(DatasetManifest, document)
    unknown = tuple(
        document.problem(
            "warning",
            "unknown-key",
            key,
            f"{key_text(key)} is not a key of dataset.toml and is ignored",
            f"write {close}" if close else "remove it, or keep free-form data in [metadata]",
        )
        for key, close in itertools.islice(unknown_keys(DatasetManifest, document.data, known={}), MAX_PROBLEMS)
    )
    return manifest, (*errors, *unknown)


def check_dataset(root: Path, tasks: Iterable[CheckedTask]) -> tuple[Problem, ...]:
    """Compare the ``dataset.toml`` of a suite, where there is one, with its tasks and files; every difference is one problem."""
    file = root / DATASET_FILE
    if not file.is_file():
        return ()
    manifest, problems = parse_dataset_toml(file.read_bytes())
    return problems if manifest is None else (*problems, *_differences(root, manifest, tasks))


def _differences(root: Path, manifest: DatasetManifest, tasks: Iterable[CheckedTask]) -> Iterator[Problem]:
    present = {task.native_id: task for task in tasks}
    for index, listed in enumerate(manifest.tasks):
        task = present.pop(listed.name, None)
        key = f"tasks[{index}].digest"
        if task is None:
            message = f"{listed.name} is listed but is not in this folder"
            yield _warning("dataset-task", f"tasks[{index}].name", message, "add the task, or remove it from dataset.toml")
        elif task.digest is not None and listed.digest.removeprefix("sha256:").strip() != task.digest:
            message = f"The digest of {listed.name} is stale: listed {listed.digest.strip()}, found sha256:{task.digest}"
            yield Problem("error", "stale-digest", DATASET_FILE, key, None, message, f'write digest = "sha256:{task.digest}"')
    for name in present:
        yield _warning("dataset-task", "tasks", f"{name} is in this folder but not listed", "list it with its digest, or move it out")
    for index, entry in enumerate(manifest.files):
        key = f"files[{index}].digest"
        path = root / entry.path
        if not path.is_file():
            message = f"The file {entry.path} is listed but missing"
            yield Problem("error", "dataset-file", DATASET_FILE, f"files[{index}].path", None, message, "add the file, or remove the entry")
        elif entry.digest and entry.digest.removeprefix("sha256:").strip() != (found := file_sha256(path)):
            message = f"The digest of {entry.path} is stale: listed {entry.digest.strip()}, found sha256:{found}"
            yield Problem("error", "stale-digest", DATASET_FILE, key, None, message, f'write digest = "sha256:{found}"')


# --- registry.json --------------------------------------------------------------------------------------------------------------------


class RegistryTask(Section):
    name: str
    git_url: str | None = None
    """None: ``path`` is a local folder."""
    git_commit_id: str | None = None
    path: str


class RegistryMetric(Section):
    type: Literal["mean", "sum", "min", "max", "uv-script"] = "mean"
    kwargs: dict[str, Any] = Field(default_factory=dict)


class RegistryDataset(Section):
    name: str
    version: str
    description: str
    tasks: tuple[RegistryTask, ...]
    metrics: tuple[RegistryMetric, ...] = ()


_REGISTRY: Final = TypeAdapter(tuple[RegistryDataset, ...])


def parse_registry(text: str | bytes, *, file: str = "registry.json") -> tuple[tuple[RegistryDataset, ...], tuple[Problem, ...]]:
    """Read a registry: a JSON list of datasets. A single entry (an object) is read as a list of one. Empty where there are problems."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        return (), (Problem("error", "json-syntax", file, None, line, f"Not valid JSON: {error}", "correct the syntax"),)
    try:
        return _REGISTRY.validate_python([data] if isinstance(data, dict) else data), ()
    except ValidationError as error:
        return (), tuple(
            Problem("error", "registry", file, key, None, f"{key}: {detail['msg']}", "correct the entry")
            for detail in error.errors(include_url=False)[:MAX_PROBLEMS]
            for key in (key_text(detail["loc"]),)
        )


def choose_version(versions: Sequence[str]) -> str:
    """The version of a dataset when none is asked for: ``head``, else the highest by PEP 440, else the lexically last.

    Raises:
        ValueError: there is no version.
    """
    if not versions:
        raise ValueError("the dataset has no versions")
    if "head" in versions:
        return "head"
    numbered = [(key, version) for version in versions if (key := _pep440_key(version)) is not None]
    # The first of equal ones (1.0 and 1.0.0) wins, as a stable descending sort would have it.
    return max(numbered, key=lambda item: item[0])[1] if numbered else max(versions)


# --- references -----------------------------------------------------------------------------------------------------------------------


class PackageRef(NamedTuple):
    """``org/name@ref``."""

    name: str
    kind: Literal["tag", "revision", "digest"]
    ref: str


def parse_package_ref(text: str) -> PackageRef:
    """Read a reference to a published package; without ``@ref`` it is the tag ``latest``.

    Raises:
        ValueError: the name is not ``org/name``, or the ref is none of tag, revision and digest.
    """
    name, at, ref = text.rpartition("@")
    if not at:
        name, ref = text, "latest"
    if not is_task_name(name):
        raise ValueError(f"{name!r} is not a package name of the form org/name")
    if ref.isascii() and ref.isdigit():
        return PackageRef(name, "revision", ref)
    if ref.startswith("sha256:"):
        if not _DIGEST.fullmatch(ref):
            raise ValueError(f"{ref!r} is not a digest: sha256: and 64 lower-case hex digits")
        return PackageRef(name, "digest", ref)
    if not _TAG.fullmatch(ref):
        raise ValueError(f"{ref!r} is not a tag: lower-case letters, digits, '.' and '-'")
    return PackageRef(name, "tag", ref)


# --- helpers --------------------------------------------------------------------------------------------------------------------------

_PEP440: Final = re.compile(
    r"""v?(?:(?P<epoch>\d+)!)?(?P<release>\d+(?:\.\d+)*)
    (?:[-_.]?(?P<pre>alpha|a|beta|b|preview|pre|c|rc)[-_.]?(?P<pre_n>\d+)?)?
    (?P<post>-(?P<post_n1>\d+)|[-_.]?(?:post|rev|r)[-_.]?(?P<post_n2>\d+)?)?
    (?P<dev>[-_.]?dev[-_.]?(?P<dev_n>\d+)?)?
    (?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))?""",
    re.VERBOSE | re.IGNORECASE,
)
_PHASES: Final = {"a": 0, "alpha": 0, "b": 1, "beta": 1, "c": 2, "rc": 2, "pre": 2, "preview": 2}


def _pep440_key(version: str) -> tuple[Any, ...] | None:
    """Sort key of a PEP 440 version: dev before pre-release before release before post-release; None if it is no version."""
    match = _PEP440.fullmatch(version.strip())
    if match is None:
        return None
    release = tuple(int(part) for part in match["release"].split("."))
    while len(release) > 1 and release[-1] == 0:
        release = release[:-1]
    post = int(match["post_n1"] or match["post_n2"] or 0) if match["post"] else -1
    dev = int(match["dev_n"] or 0) if match["dev"] else None
    if match["pre"]:
        phase: tuple[int, int] = (_PHASES[match["pre"].lower()], int(match["pre_n"] or 0))
    else:
        phase = (-1, 0) if dev is not None and post < 0 else (3, 0)
    local = re.split(r"[-_.]", match["local"].lower()) if match["local"] else []
    local_key = tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in local)
    return (int(match["epoch"] or 0), release, phase, post, dev is None, dev or 0, bool(local), local_key)


def _digest(value: str) -> str:
    if not _DIGEST.match(value):
        raise _fault("digest", f"{value!r} is not a digest", 'write "sha256:" and 64 lower-case hex digits')
    return value


def _fault(rule: Literal["task-name", "digest", "dataset-file"], message: str, fix: str) -> PydanticCustomError:
    return PydanticCustomError(rule, "{message}", {"message": message, "fix": fix, "key": ""})


def _warning(rule: str, key: str, message: str, fix: str) -> Problem:
    return Problem("warning", rule, DATASET_FILE, key, None, message, fix)


def metric_script(root: Path) -> tuple[bytes, str] | None:
    """The ``metric.py`` of a suite with its SHA-256 in hex, or None. At most 1 MiB.

    Raises:
        ValueError: the file is too large.
    """
    file = root / METRIC_FILE
    if file.is_symlink() or not file.is_file():
        return None
    with file.open("rb") as stream:
        content = stream.read(1024 * 1024 + 1)
    if len(content) > 1024 * 1024:
        raise ValueError(f"{METRIC_FILE} is larger than 1 MiB; move its data elsewhere")
    return content, hashlib.sha256(content).hexdigest()
