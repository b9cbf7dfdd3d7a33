"""Which programs of the environment changed while the agent ran: the tests may have run one of them.

Why a count and no error: installing a program may be the task itself. Why so much more than the programs: one that is untouched is still
another with another library, another module, another file that the shell reads first, or another folder before its own in ``PATH``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Final

from seatrial_runner.channel import Channel, EnvdError, Hello
from seatrial_runner.clock import files_since
from seatrial_runner.paths import Paths
from seatrial_runner.report import Report

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BESIDE: Final = ("lib", "lib64", "libexec", "share", "include", "pyvenv.cfg")
"""What programs load lies there, beside the folder of the programs."""
_SETTINGS: Final = ("/etc", "/var/spool/cron", "/var/lib/dpkg/info")
"""The last are scripts that the package manager runs, also for packages that were there before."""
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


def note_changed_programs(channel: Channel, watched: Sequence[str], report: Report) -> None:
    """Count what changed below ``watched`` since the agent's start, where there was an agent."""
    span = report.spans.get("agent_execution")
    if span is None:
        return
    since = files_since(span)
    if since is None:
        report.note_unknown("the agent's start is not known")
        return
    try:
        found = channel.changed(watched, since_ns=since, max_entries=_ENTRIES, caches=_CACHES)
    except EnvdError as error:
        sys.stderr.write(f"verifier: changed programs cannot be counted: {error}\n")
        report.note_unknown("changed programs could not be counted")
        return
    report.changed_tools, report.changed_names = found.total, found.names
    if found.truncated:
        report.note_unknown("there are more programs than can be looked at")


def watched_paths(hello: Hello, paths: Paths, *, user: str | int | None) -> tuple[str, ...]:
    """The folders of ``PATH`` with what belongs to them, settings of programs, and the homes of root and of who runs the tests."""
    if paths.programs is not None:
        return paths.programs
    folders = [folder.rstrip("/") for folder in f"{_PATH}:{hello.path or ''}".split(":") if folder.startswith("/") and folder.strip("/")]
    beside = [f"{folder.rpartition('/')[0]}/{name}" for folder in folders if folder.endswith(("/bin", "/sbin")) for name in _BESIDE]
    name = str(user or "").partition(":")[0]
    homes = ["/root", hello.home or "", f"/home/{name}" if name and "/" not in name else ""]
    settings = [f"{home.rstrip('/')}/{name}" for home in homes if home.startswith("/") and home.strip("/") for name in _HOME]
    return _outermost([*folders, *beside, *_SETTINGS, *settings])[:_PATHS]


def _outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Without duplicates, and without those that lie below another."""
    unique = dict.fromkeys(paths)
    return tuple(path for path in unique if not any(path.startswith(f"{other}/") for other in unique))
