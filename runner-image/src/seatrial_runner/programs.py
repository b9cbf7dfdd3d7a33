"""Which programs of the environment changed while the agent ran: the tests may have run one of them.

Why a count and no error: installing a program may be the task itself. Why so much more than the programs: one that is untouched is still
another with another library, another module, another file that the shell reads first, or another folder before its own in ``PATH``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from seatrial_runner.channel import Channel, EnvdError, Hello
from seatrial_runner.clock import files_since
from seatrial_runner.paths import Paths
from seatrial_runner.report import Report

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BESIDE: Final = ("lib", "lib64", "libexec", "share", "include", "pyvenv.cfg")
"""What programs load lies there, beside the folder of the programs."""
_SETTINGS: Final = (
    *("/etc", "/var/spool/cron", "/var/lib/dpkg/info"),
    *(f"/dev/{name}" for name in ("fd", "stdin", "stdout", "stderr", "null", "zero", "full", "random", "urandom")),
)
"""``dpkg/info`` has scripts that the package manager runs, also for packages that were there before."""
_FOLDERS: Final = ("/dev",)
_VARIABLES: Final = (
    *("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONSTARTUP", "BASH_ENV", "ENV"),
    *("PERL5LIB", "RUBYLIB", "NODE_PATH", "GIT_CONFIG_GLOBAL"),
)
"""Those that say where programs load more from."""
_HOME: Final = (
    *(".bashrc", ".bash_profile", ".bash_login", ".bash_aliases", ".profile", ".curlrc", ".wgetrc", ".netrc", ".gitconfig", ".npmrc"),
    *(".pydistutils.cfg", ".pip", ".ssh", ".config/pip", ".config/uv", ".config/git", ".local/bin", ".local/lib", ".local/share/uv"),
    *(".cache/uv", ".cargo/bin", ".cargo/env", ".cargo/config.toml"),
)
"""What shells, package managers and downloads of a test script read of a home."""
_CACHES: Final = ("__pycache__",)
"""Every use of a library fills them, so their changes say nothing, and a planted file would be loaded: what is new there is removed."""
_ENTRIES: Final = 400_000
_PATHS: Final = 400


class Watched(NamedTuple):
    """Where changes are looked for."""

    paths: tuple[str, ...]
    folders: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    outside: str = ""
    """The task's work, if it has a folder: what a variable or a link leads to in there is no program."""
    user: str | int | None = None
    home_names: tuple[str, ...] = ()


def note_changed_programs(channel: Channel, watched: Watched, report: Report) -> None:
    """Count what changed since the agent's start, where there was an agent."""
    span = report.spans.get("agent_execution")
    if span is None:
        return
    since = files_since(span)
    if since is None:
        report.note_unknown("the agent's start is not known")
        return
    try:
        found = channel.changed(
            watched.paths,
            since_ns=since,
            max_entries=_ENTRIES,
            folders=watched.folders,
            variables=watched.variables,
            outside=watched.outside,
            user=watched.user,
            home_names=watched.home_names,
            caches=_CACHES,
        )
    except EnvdError as error:
        sys.stderr.write(f"verifier: changed programs cannot be counted: {error}\n")
        report.note_unknown("changed programs could not be counted")
        return
    report.changed_tools, report.changed_names = found.total, found.names
    if found.truncated:
        report.note_unknown("there are more programs than can be looked at")


def watched_of(hello: Hello, paths: Paths, *, workdir: str, user: str | int | None, env: Mapping[str, str]) -> Watched:
    """The folders of ``PATH`` with what belongs to them, settings of programs, and the homes of root and of who runs the tests.

    Args:
        workdir: where the task's work is.
        user, env: of the tests.
    """
    if paths.programs is not None:
        return Watched(paths.programs)
    work = workdir.rstrip("/")
    folders = _absolute(f"{_PATH}:{hello.path or ''}:{env.get('PATH', '')}")
    beside = [f"{folder.rpartition('/')[0]}/{name}" for folder in folders if folder.endswith(("/bin", "/sbin")) for name in _BESIDE]
    named = [path for name in _VARIABLES for path in _absolute(env.get(name, "")) if not work or not f"{path}/".startswith(f"{work}/")]
    homes = [f"{home}/{name}" for home in _absolute(f"/root:{hello.home or ''}") for name in _HOME]
    found = _outermost([*folders, *beside, *_SETTINGS, *homes, *named])[:_PATHS]
    return Watched(found, _FOLDERS, _VARIABLES, work, user, _HOME)


def _absolute(paths: str) -> list[str]:
    return [path.rstrip("/") for path in paths.split(":") if path.startswith("/") and path.strip("/")]


def _outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Without duplicates, and without those that lie below another."""
    unique = dict.fromkeys(paths)
    return tuple(path for path in unique if not any(path.startswith(f"{other}/") for other in unique))
