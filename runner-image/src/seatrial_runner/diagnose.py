"""Say why a test script left no reward, so that its author need not guess. Source: spec/operator.md, pain 9."""

from __future__ import annotations

import tarfile
from typing import Final

from seatrial_runner.channel import Channel, ChannelError, ExitStatus

_HEAD_BYTES: Final = 4096
_NO_SHEBANG: Final = "it has no #! line and was run by the shell"


def why_no_reward(channel: Channel, tests_tar: str, status: ExitStatus | None) -> str:
    """One sentence: line ends, interpreter, or how the script ended."""
    head = script_head(tests_tar)
    if head is None:
        return "tests/test.sh is not in the task archive"
    first = head.split(b"\n", 1)[0]
    if b"\r\n" in head:
        return "tests/test.sh has CRLF line ends, which no shell reads: save it with LF line ends"
    ending = _ending(status)
    if first.startswith(b"#!"):
        interpreter = first[2:].strip().split(b" ", 1)[0].decode(errors="replace")
        if not _exists(channel, interpreter):
            return f"tests/test.sh asks for the interpreter {interpreter[:60]}, which the image does not have"
        return f"the test script {ending}"
    return f"the test script {ending}; {_NO_SHEBANG}"


def script_head(tests_tar: str) -> bytes | None:
    """The first bytes of the archive's own test script; None without one."""
    try:
        with tarfile.open(tests_tar) as tar:
            file = tar.extractfile("test.sh")
            return file.read(_HEAD_BYTES) if file is not None else None
    except (KeyError, OSError, tarfile.TarError):
        return None


def _exists(channel: Channel, path: str) -> bool:
    if not path.startswith("/"):
        return True  # relative to a directory we do not know
    try:
        return channel.stat(path) is not None
    except ChannelError:
        return True


def _ending(status: ExitStatus | None) -> str:
    if status is None:
        return "did not run"
    meanings = {126: " (not executable, or a wrong format)", 127: " (command not found)", 137: " (killed)"}
    return f"ended with exit code {status.returncode}{meanings.get(status.returncode, '')}"
