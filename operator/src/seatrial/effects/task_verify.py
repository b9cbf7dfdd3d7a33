"""Verify a Task's archive and publish it as a revision.

Download, sha256, safe extraction and Harbor's own validation run in a worker thread, two at a time; only then is anything published.
Source: nemo.md 9.4.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, TypeVar

from seatrial.api.meta import StatusText
from seatrial.api.reasons import Reason
from seatrial.api.task import Task, TaskImages, TaskResources, TaskSummary, TaskTimeouts
from seatrial.core.frozen import config_to_json
from seatrial.core.naming import archive_key
from seatrial.effects.aiostore import AsyncStore
from seatrial.effects.revisions import Revision, RevisionMismatch, Revisions, UnknownRevision
from seatrial.effects.settings import Settings
from seatrial.errors import Conflict, Forbidden, NotFound, SeatrialError
from seatrial.taskpkg.extract import ArchiveError, extract_archive
from seatrial.taskpkg.imagekey import ContextError, read_context
from seatrial.taskpkg.instruction import record_instruction
from seatrial.taskpkg.isolated import check_untrusted
from seatrial.taskpkg.model import TaskConfig
from seatrial.taskpkg.verification import COMPOSE_FILE, DOCKERFILE, verifier_definition

PROBLEMS: Final = 5
"""Faults of a task that its condition names; ``seatrial check`` shows all."""
MIB: Final = 2**20
MOST_NUMBER: Final = 2**53
"""Above it a JSON number is not exact; etcd holds 64 bits."""
N = TypeVar("N", int, float)


class Refused(SeatrialError):
    """The Task as it stands cannot be verified; ``retry``: the cause passes by itself and is tried soon."""

    def __init__(self, reason: Reason, message: str, *, retry: bool = False) -> None:
        super().__init__(message)
        self.reason, self.retry = reason, retry


class Facts(NamedTuple):
    """What the archive says."""

    native_id: str
    checksum: str
    """Harbor's content digest."""
    instruction: str | None
    config: TaskConfig
    loose_files: bool
    compose: bool
    build_context: str | None = None
    """Key of ``environment/`` as a build context; None where it has no Dockerfile, or none that can be built."""
    bundled_verifier: bool = False
    """``tests/`` describes the image of the separate verifier, and ``task.toml`` names none."""
    verifier_context: str | None = None
    """Key of ``tests/`` as a build context, for that image."""


class Verified(NamedTuple):
    revision: Revision
    tags: Mapping[str, int]
    """``status.tags`` from now on."""
    native_id: str
    summary: TaskSummary


class TaskVerifier:
    """Verifies Tasks, a few at a time."""

    def __init__(self, store: AsyncStore, revisions: Revisions, settings: Settings) -> None:
        self._store, self._revisions, self._settings = store, revisions, settings
        self._slots = asyncio.Semaphore(settings.verify_concurrency)

    async def verify(self, task: Task) -> Verified:
        """Check the archive and publish the content.

        Raises:
            Refused: with reason and next step.
            Unavailable: the store does not answer; try again.
        """
        source = task.spec.source
        fileset = source.ref.partition("/")[0]
        if not self._settings.may_refer(task.metadata.namespace, fileset):
            message = f"spec.source.ref is in namespace {fileset}, and the operator's configuration does not share it"
            raise Refused(Reason.CROSS_NAMESPACE, message)
        key = archive_key(source.ref)
        async with self._slots:
            facts = await self._store.run("verify", lambda: self._read(key, source.sha256))
        wanted = task.spec.native_task_id
        if wanted is not None and wanted != facts.native_id:
            message = f"spec.nativeTaskId is {wanted!r}, the archive holds {facts.native_id!r}: correct the one or publish the other"
            raise Refused(Reason.NATIVE_ID_MISMATCH, message)
        try:
            summary = summarise(facts.config, task.spec.images)
        except ValueError as error:
            raise Refused(Reason.INVALID_TASK, f"task.toml has a value that no status can hold: {error}") from error
        try:
            revision = await self._revisions.publish(
                task.metadata.namespace,
                "task",
                task.metadata.name,
                content=task_content(task, facts),
                extra={
                    "config": config_to_json(facts.config),
                    "facts": {
                        "archive": key,
                        "looseFiles": facts.loose_files,
                        "compose": facts.compose,
                        **({"buildContext": facts.build_context} if facts.build_context else {}),
                        **({"bundledVerifier": True} if facts.bundled_verifier else {}),
                        **({"verifierContext": facts.verifier_context} if facts.verifier_context else {}),
                    },
                },
            )
            tags = await self._revisions.tags("task", task, revision.number)
        except Conflict as error:
            raise Refused(Reason.REVISION_CONFLICT, str(error), retry=True) from error
        except RevisionMismatch as error:
            raise Refused(Reason.REVISION_CONFLICT, str(error)) from error
        except UnknownRevision as error:
            raise Refused(Reason.REVISION_NOT_FOUND, str(error)) from error
        return Verified(revision, tags, facts.native_id, summary)

    def _read(self, key: str, sha256: str) -> Facts:
        """In a thread: everything about the archive that has to be known."""
        try:
            with tempfile.TemporaryDirectory(prefix="seatrial-verify-") as folder, tempfile.TemporaryFile() as file:
                self._download(key, file)
                file.seek(0)
                extracted = extract_archive(file, Path(folder), sha256=sha256)
                return _facts(Path(folder) / extracted.root_name)
        except NotFound as error:
            raise Refused(Reason.TASK_ARCHIVE_MISSING, f"{key} is not in the object store: publish the task again") from error
        except Forbidden as error:
            raise Refused(Reason.ARCHIVE_ACCESS_DENIED, f"the object store refuses {key}: {error}", retry=True) from error
        except ArchiveError as error:
            reason = Reason.TASK_ARCHIVE_CORRUPT if error.kind == "corrupt" else Reason.TASK_ARCHIVE_UNSAFE
            raise Refused(reason, f"{key}: {error}; publish the task again") from error

    def _download(self, key: str, target: IO[bytes]) -> None:
        most, size = self._settings.verify_max_mib * MIB, 0
        with self._store.store.open(key) as stream:
            while block := stream.read(MIB):
                size += len(block)
                if size > most:
                    text = f"{key} is larger than {self._settings.verify_max_mib} MiB: raise SEATRIAL_VERIFY_MAX_MIB of the operator"
                    raise Refused(Reason.ARCHIVE_TOO_LARGE, text)
                target.write(block)


def _facts(root: Path) -> Facts:
    checked = check_untrusted(root)
    faults = [problem for problem in checked.problems if problem.severity == "error"]
    if not checked.valid or checked.config is None or checked.digest is None:
        named = "; ".join(f"{problem.file}: {problem.message} ({problem.fix})" for problem in faults[:PROBLEMS])
        more = f"; and {len(faults) - PROBLEMS} more" if len(faults) > PROBLEMS else ""
        raise Refused(Reason.INVALID_TASK, f"{named or 'not a Harbor task'}{more}. Run seatrial check")
    config, environment = checked.config, root / "environment"
    compose = (environment / COMPOSE_FILE).is_file()
    instruction = root / "instruction.md"
    bundled = _is_bundled_verifier(config, root)
    return Facts(
        native_id=checked.native_id,
        checksum=checked.digest,
        instruction=record_instruction(instruction.read_text("utf-8")) if instruction.is_file() else None,
        config=config,
        loose_files=not compose
        and not (environment / DOCKERFILE).is_file()
        and bool(config.environment.docker_image)
        and environment.is_dir()
        and any(environment.iterdir()),
        compose=compose,
        build_context=_build_context(environment),
        bundled_verifier=bundled,
        verifier_context=_build_context(root / "tests") if bundled else None,
    )


def _is_bundled_verifier(config: TaskConfig, root: Path) -> bool:
    if config.is_multi_step:
        return False  # each step has a verifier of its own
    definition = verifier_definition(config, root)
    return definition is not None and definition.is_bundled and definition.environment.docker_image is None


def _build_context(folder: Path) -> str | None:
    if (folder / COMPOSE_FILE).is_file() or not (folder / DOCKERFILE).is_file():
        return None
    try:
        return read_context(folder).key
    except (ContextError, OSError):
        # For the builder to refuse, with its own words, and only when a job needs the image.
        return None


def task_content(task: Task, facts: Facts) -> dict[str, Any]:
    """What the digest of a revision covers: all that affects execution or grading; not the name, the tags or the projection."""
    spec = task.spec.raw()
    return {
        "source": spec["source"],
        "nativeTaskId": facts.native_id,
        "instruction": facts.instruction,
        "metrics": spec.get("metrics", []),
        "views": spec.get("views", {}),
        # Absent where nothing is recorded: the digests of tasks without builds stay what they were.
        **({"images": images} if (images := spec.get("images")) else {}),
        "metadata": spec.get("metadata", {}),
        "harborHash": facts.checksum,
    }


def summarise(config: TaskConfig, images: TaskImages | None = None) -> TaskSummary:
    """The bounded projection for ``status.summary``."""
    environment = config.environment
    built = images.environment if images is not None else None
    image = built.image if built is not None else environment.docker_image

    def bounded(value: N | None) -> N | None:
        """What the API can hold; the plan refuses the others by name."""
        return value if value is not None and 0 <= value <= MOST_NUMBER else None

    return TaskSummary(
        image=StatusText.cut(image, 512) if image else None,
        timeouts=TaskTimeouts(
            agent=bounded(config.agent.timeout_sec),
            verifier=bounded(config.verifier.timeout_sec),
            build=bounded(environment.build_timeout_sec),
        ),
        resources=TaskResources(
            cpus=bounded(environment.cpus),
            memory_mb=bounded(environment.memory_mb),
            storage_mb=bounded(environment.storage_mb),
            gpus=bounded(environment.gpus),
        ),
        steps=len(config.steps or ()),
        verifier_mode=config.verifier_mode().value,
        network=environment.network_mode.value,
    )
