"""The init container: fetch the task archive, check it, and lay out what agent and verifier may see.

Why tar files instead of trees: envd takes a tar stream, modes survive every volume, and whoever may read the folder can hand it on
without becoming the owner of hostile files. ``task/agent`` and ``task/verifier`` are volumes, each mounted for its own part alone. Nothing
else of the archive remains.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, cast

from seatrial import contract
from seatrial.contract import StageExit, TrialInput
from seatrial.taskpkg.extract import ArchiveError, extract_archive
from seatrial.taskpkg.instruction import read_instruction
from seatrial.taskpkg.limits import DEFAULT
from seatrial.taskpkg.templates import required_variables
from seatrial_runner.paths import Paths
from seatrial_runner.presigned import DISK_FULL, Patience, StoreMissing, StoreRefused, StoreUnavailable, download

PATIENCE: Final = Patience(seconds=120.0, attempts=6, first_pause_seconds=0.5)
AGENT_LOGS_BYTES: Final = 4 * 1024 * 1024 * 1024
"""More than the evidence of a Pod may have."""
IGNORE_FILE: Final = ".harborignore"
# A corrupt download is tried once more; a corrupt object stays corrupt.
_DOWNLOADS: Final = 2


class StageFailed(Exception):
    """The trial cannot be prepared; ``code`` says why and ``message`` goes to the termination message."""

    def __init__(self, code: StageExit, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def run(paths: Paths, environ: Mapping[str, str], *, patience: Patience = PATIENCE, become: int | None = None) -> int:
    """Do it all; returns a ``StageExit``. The termination message is written on failure only.

    Args:
        become: uid and gid to go on as once the tools are installed, where it starts as root. Only envd needs root: it is setuid, because
            Harbor's own steps are root's also in an image whose USER is not. Nothing of the archive is touched before.
    """
    try:
        trial = contract.decode_input(environ[contract.VAR_INPUT])
        _install_tools(paths, trial)
        _copy_net_files(paths)
        if become is not None and os.geteuid() == 0:
            _give_up_root(become)
        _stage(paths, trial, environ, patience)
    except StageFailed as error:
        return report_failure(paths, error.code, error.message)
    except OSError as error:
        if error.errno in DISK_FULL:
            return report_failure(paths, StageExit.DISK_FULL, f"no room for the task: {error.strerror}; ask for more storage")
        return report_failure(paths, StageExit.INTERNAL, f"{type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001 - the border: a bug must end with its own exit code and a message
        return report_failure(paths, StageExit.INTERNAL, f"{type(error).__name__}: {error}")
    return StageExit.OK


def _stage(paths: Paths, trial: TrialInput, environ: Mapping[str, str], patience: Patience) -> None:
    agent, verifier = Path(paths.task, contract.AGENT), Path(paths.task, contract.VERIFIER)
    for folder in (agent, verifier):
        # A restarted Pod sandbox runs init containers again on the same volumes.
        _empty(folder)
    # Each in the volume of whom it is for: nobody else runs yet, and nothing has to be moved to another.
    extracted, fetched = verifier / ".extracted", agent / ".source"
    try:
        root = extracted / fetch(environ, extracted, patience)
        source = None
        if contract.VAR_SOURCE_URL in environ:
            url, digest = environ[contract.VAR_SOURCE_URL], environ[contract.VAR_SOURCE_SHA256]
            source = fetched / fetch_archive(url, digest, fetched, patience, what="the agent's source")
        if "verifies" in trial:
            _lay_out_for_separate_verifier(verifier, trial, root, environ, patience)
        else:
            _lay_out(agent, verifier, trial, root)
            if source is not None:
                _hand_on_source(source, agent / contract.SOURCE_DIR)
    finally:
        _remove_tree(extracted)
        _remove_tree(fetched)


def _install_tools(paths: Paths, trial: TrialInput) -> None:
    for name in ("envd", "seatrial-env") if trial["agent"]["kind"] == "image" else ("envd",):
        target = Path(paths.bin, name)
        target.unlink(missing_ok=True)
        shutil.copyfile(Path(paths.tools, name), target)
        target.chmod(0o4755 if name == "envd" and os.geteuid() == 0 else 0o755)


def _copy_net_files(paths: Paths) -> None:
    for name in contract.NET_FILES:
        source, target = Path(paths.etc, name), Path(paths.net, name)
        target.write_bytes(source.read_bytes() if source.exists() else b"")
        target.chmod(0o644)


def _give_up_root(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def fetch(environ: Mapping[str, str], target: Path, patience: Patience) -> str:
    """Download and extract the task; returns the name of the root directory."""
    return fetch_archive(environ[contract.VAR_ARCHIVE_URL], environ[contract.VAR_ARCHIVE_SHA256], target, patience)


def fetch_archive(url: str, digest: str, target: Path, patience: Patience, *, what: str = "the task archive") -> str:
    """Download an archive of the format ``tar-gzip-v1`` and extract it; returns the name of the root directory."""
    archive = target.with_name(".archive.tar.gz")
    try:
        for left in reversed(range(_DOWNLOADS)):
            with open(archive, "w+b") as file:
                _download(url, file, patience, what=what)
                file.seek(0)
                try:
                    return extract_archive(cast(BinaryIO, file), target, sha256=digest).root_name
                except ArchiveError as error:
                    if error.kind == "unsafe":
                        raise StageFailed(StageExit.ARCHIVE_UNSAFE, f"{what}: {error}. Publish it again without this entry.") from error
                    if not left:
                        raise StageFailed(StageExit.ARCHIVE_CORRUPT, f"{what}: {error}. Publish it again.") from error
        raise AssertionError("the last download returns or raises")
    finally:
        archive.unlink(missing_ok=True)


def _download(
    url: str, file: BinaryIO, patience: Patience, *, what: str = "the task archive", limit: int = DEFAULT.compressed_bytes
) -> None:
    try:
        download(url, file, max_bytes=limit, patience=patience)
    except StoreMissing as error:
        raise StageFailed(StageExit.ARCHIVE_MISSING, f"{what} is gone: {error}. Publish it again.") from error
    except StoreRefused as error:
        raise StageFailed(StageExit.STORE_REFUSED, f"the object store refused {what}: {error}") from error
    except StoreUnavailable as error:
        raise StageFailed(StageExit.STORE_UNAVAILABLE, f"the object store did not give {what}: {error}") from error


# --- what agent and verifier see -----------------------------------------------------------------------------------------------------


def _lay_out(agent: Path, verifier: Path, trial: TrialInput, root: Path) -> None:
    if trial["verifier"]["mode"] == "separate" and not trial["verifier"].get("bundled") and (root / "tests" / "Dockerfile").is_file():
        message = (
            "the verifier's image is to be built from tests/Dockerfile: build it, push it, and set [verifier.environment].docker_image"
        )
        raise StageFailed(StageExit.TASK_UNSUPPORTED, message)
    _write(agent / contract.INPUT_FILE, json.dumps(agent_projection(trial)), mode=0o644)
    _write(verifier / contract.INPUT_FILE, json.dumps(trial), mode=0o600)
    is_excluded = _exclusions(root)
    if not trial.get("steps"):
        _write(agent / contract.INSTRUCTION_FILE, _instruction(root), mode=0o644)
        if "scoring" in trial:
            _write(verifier / contract.INSTRUCTION_FILE, _instruction(root), mode=0o600)
    if trial["environment"]["loose_files"] and (root / "environment").is_dir():
        pack(root / "environment", agent / contract.LOOSE_FILES_TAR, is_excluded=lambda path: False, mode=0o644)
    _lay_out_scripts(trial, root, agent, verifier, is_excluded)
    for index, step in enumerate(trial.get("steps", [])):
        folder = root / contract.STEPS_DIR / step["name"]
        to_agent, to_verifier = (place / contract.STEPS_DIR / str(index) for place in (agent, verifier))
        _make_folders(to_agent, below=agent, mode=0o755)
        _make_folders(to_verifier, below=verifier, mode=0o700)
        _write(to_agent / contract.INSTRUCTION_FILE, _instruction(folder), mode=0o644)
        if (folder / "workdir").is_dir():
            pack(folder / "workdir", to_agent / contract.WORKDIR_TAR, is_excluded=lambda path: False, mode=0o644)
        _lay_out_scripts(trial, folder, to_agent, to_verifier, is_excluded)


def _hand_on_source(source: Path, target: Path) -> None:
    """The agent's own code, readable for it: it runs as another user."""
    for item in _walk(source):
        if not stat.S_ISLNK(item.status.st_mode):
            _open_up(item.path, 0o555 if stat.S_ISDIR(item.status.st_mode) else 0o444)
    source.chmod(0o755)
    source.rename(target)


def _lay_out_for_separate_verifier(verifier: Path, trial: TrialInput, root: Path, environ: Mapping[str, str], patience: Patience) -> None:
    """The tests, unless the image brings them, and what the agent's Pod left."""
    _write(verifier / contract.INPUT_FILE, json.dumps(trial), mode=0o600)
    if not trial["verifier"].get("bundled") and (root / "tests").is_dir():
        pack(root / "tests", verifier / contract.TESTS_TAR, executable="test.sh", is_excluded=_exclusions(root), mode=0o600)
    for variable, name, limit in (
        (contract.VAR_AGENT_RESULT_URL, contract.AGENT_RESULT_FILE, contract.RESULT_BYTES),
        (contract.VAR_AGENT_LOGS_URL, contract.AGENT_LOGS_FILE, AGENT_LOGS_BYTES),
    ):
        with open(verifier / name, "w+b") as file:
            _download(environ[variable], file, patience, what="what the agent's Pod left", limit=limit)
    with open(verifier / contract.AGENT_LOGS_FILE, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != environ[contract.VAR_AGENT_LOGS_SHA256]:
            raise StageFailed(StageExit.ARCHIVE_CORRUPT, "what the agent's Pod left is not what it reported")


def _lay_out_scripts(trial: TrialInput, source: Path, agent: Path, verifier: Path, is_excluded: Callable[[Path], bool]) -> None:
    """``solution/`` for an oracle and ``tests/``, of the task or of one step."""
    if trial["agent"]["kind"] == "oracle" and (source / "solution").is_dir():
        pack(source / "solution", agent / contract.SOLUTION_TAR, executable="solve.sh", is_excluded=is_excluded, mode=0o644)
    if (source / "tests").is_dir():
        pack(source / "tests", verifier / contract.TESTS_TAR, executable="test.sh", is_excluded=is_excluded, mode=0o600)


def _make_folders(path: Path, *, below: Path, mode: int) -> None:
    for folder in (*reversed([parent for parent in path.parents if below in parent.parents]), path):
        folder.mkdir(exist_ok=True)
        folder.chmod(mode)


def agent_projection(trial: TrialInput) -> dict[str, Any]:
    """What the agent's container may know: nothing of the verifier, and only the variables that its own templates name."""
    oracle = trial["agent"]["kind"] == "oracle"
    solution_env = trial["solution_env"] if oracle else {}
    names = {variable.name for variable in required_variables(solution_env)}
    return {
        # What metrics compare with is an answer.
        **{name: value for name, value in trial.items() if name != "scoring"},
        "verifier": {**trial["verifier"], "env": {}, "collect": []},
        "steps": [{**step, "verifier_env": {}, "collect": [], "artifacts": []} for step in trial.get("steps", [])],
        "solution_env": solution_env,
        "variables": {name: value for name, value in trial["variables"].items() if name in names},
        "artifacts": [],
        "config": {},
    }


def _instruction(root: Path) -> str:
    file = root / "instruction.md"
    if not file.is_file():
        what = f"step {root.name} has no instruction.md" if root.parent.name == contract.STEPS_DIR else "the task has no instruction.md"
        raise StageFailed(StageExit.TASK_UNSUPPORTED, what)
    try:
        return read_instruction(file.read_bytes().decode())
    except UnicodeDecodeError as error:
        raise StageFailed(StageExit.TASK_UNSUPPORTED, f"instruction.md is not UTF-8 text: {error}") from error


def _scopes(root: Path) -> list[Path]:
    """The folders whose files ``.harborignore`` may leave out."""
    owners = [root, *sorted((root / contract.STEPS_DIR).glob("*/"))]
    return [owner / name for owner in owners for name in ("tests", "solution")]


def _exclusions(root: Path) -> Callable[[Path], bool]:
    """Which files ``.harborignore`` leaves out. The rules need a library, and most tasks have none."""
    if not any(item.path.name == IGNORE_FILE for scope in _scopes(root) for item in _walk(scope)):
        return lambda path: False
    try:
        from seatrial.taskpkg.ignore import HarborIgnore, IgnoreError
    except ModuleNotFoundError as error:
        raise StageFailed(StageExit.TASK_UNSUPPORTED, f"this runner image cannot read {IGNORE_FILE} ({error})") from error

    rules = HarborIgnore(root)

    def is_excluded(path: Path) -> bool:
        try:
            return rules.is_excluded(path)
        except IgnoreError as error:
            raise StageFailed(StageExit.TASK_UNSUPPORTED, str(error)) from error

    return is_excluded


def pack(source: Path, target: Path, *, is_excluded: Callable[[Path], bool], mode: int, executable: str = "") -> None:
    """Write the contents of ``source`` as a tar: modes and links kept, everything root's, ``executable`` with all x bits (``chmod +x``)."""
    source = source.resolve()
    script = (source / executable).resolve() if executable else None
    excluded_dirs: set[Path] = set()
    with open(target, "wb") as file:
        os.fchmod(file.fileno(), mode)
        with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for item in _walk(source):
                if item.path.parent in excluded_dirs or is_excluded(item.path):
                    if stat.S_ISDIR(item.status.st_mode):
                        excluded_dirs.add(item.path)
                    continue
                _add(tar, item, name=str(item.path.relative_to(source)), is_script=item.path == script)


class _Item(NamedTuple):
    path: Path
    status: os.stat_result


def _walk(top: Path) -> Iterator[_Item]:
    """Everything below ``top``, parents first, links not followed. Not ``os.walk``: it recurses, and depth is the archive's choice."""
    stack = [top]
    while stack:
        directory = stack.pop()
        if directory == top and (not top.is_dir() or top.is_symlink()):
            return
        _open_up(directory, 0o500)
        items = [_Item(directory / name, os.lstat(directory / name)) for name in sorted(os.listdir(directory))]
        yield from items
        stack += [item.path for item in reversed(items) if stat.S_ISDIR(item.status.st_mode)]


def _add(tar: tarfile.TarFile, item: _Item, *, name: str, is_script: bool) -> None:
    info = tarfile.TarInfo(name)
    info.mode = stat.S_IMODE(item.status.st_mode) | (0o111 if is_script else 0)
    info.mtime = int(item.status.st_mtime)
    if stat.S_ISLNK(item.status.st_mode):
        info.type = tarfile.SYMTYPE
        info.linkname = os.readlink(item.path)
        tar.addfile(info)
    elif stat.S_ISDIR(item.status.st_mode):
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    else:
        info.size = item.status.st_size
        _open_up(item.path, 0o400)
        with open(item.path, "rb") as file:
            tar.addfile(info, file)


def _open_up(path: Path, bits: int) -> None:
    """Let ourselves read: the tree is ours, whatever modes the archive gave it; the tar keeps those of the walk."""
    mode = stat.S_IMODE(os.lstat(path).st_mode)
    if mode & bits != bits:
        os.chmod(path, mode | bits)


def _empty(top: Path) -> None:
    """Remove what a volume holds; the volume itself is not ours."""
    for item in list(top.iterdir()) if top.is_dir() else []:
        if item.is_dir() and not item.is_symlink():
            _remove_tree(item)
        else:
            item.unlink()


def _remove_tree(top: Path) -> None:
    if not top.exists():
        return
    folders = [top]
    for item in _walk(top):
        if stat.S_ISDIR(item.status.st_mode):
            folders.append(item.path)
    for folder in reversed(folders):
        os.chmod(folder, 0o700)
        with os.scandir(folder) as entries:
            for entry in entries:
                os.unlink(entry.path)
        os.rmdir(folder)


def _write(path: Path, text: str, *, mode: int) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)


def report_failure(paths: Paths, code: StageExit, message: str) -> int:
    sys.stderr.write(f"stage: {code.name}: {message}\n")
    body = b""
    for length in (400, 200, 100, 40):
        body = json.dumps({"message": message[:length]}).encode()
        if len(body) <= contract.STAGE_MESSAGE_BYTES:
            break
    try:
        Path(paths.termination_log).write_bytes(body)
    except OSError as error:
        sys.stderr.write(f"stage: the termination message cannot be written: {error}\n")
    return code
