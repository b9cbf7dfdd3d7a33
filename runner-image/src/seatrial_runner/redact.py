"""Keep secret values out of everything that is stored.

Why a socket from agent to verifier: the agent's container alone holds the model keys, the verifier writes what is kept, and a file
would put the keys on the node's disk. The socket lies in ``run``, which the environment does not see. Rules: harbor.md 3.6.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Iterable
from typing import Final

from seatrial_runner.clock import Deadline
from seatrial_runner.variables import SECRET_CHARS, longest_first

MARK: Final = b"[REDACTED]"
_HANDOVER_BYTES: Final = 1 << 20
_VALUES: Final = 1000
_TEXT_PROBE_BYTES: Final = 8192
# Possessive, and an open string goes to the end of the text: each byte is looked at once, whatever the text is.
_JSON_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)


class Redactor:
    """Replaces known values in the text of kept files."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        plain = longest_first(values)
        # A value inside a JSON text looks different where it holds quotes, backslashes or non-ASCII letters.
        escaped = (json.dumps(value)[1:-1] for value in plain)
        self._values = tuple(value.encode() for value in longest_first((*plain, *escaped)))

    def __bool__(self) -> bool:
        return bool(self._values)

    def file(self, name: str, data: bytes) -> bytes:
        """``data`` of the file ``name`` without the values; in a file that is no text they are blanked out and its length stays."""
        if not self._values or not any(value in data for value in self._values):
            return data
        if not _is_text(data):
            return self.mask(data)
        in_strings_only = name.endswith((".json", ".jsonl"))
        for value in self._values:
            if in_strings_only and value.isdigit():
                # A bare number must stay a number, or the file is no JSON any more.
                data = _JSON_STRING.sub(lambda match, value=value: match[0].replace(value, MARK), data)  # type: ignore[misc]
            else:
                data = data.replace(value, MARK)
        return data

    @property
    def longest(self) -> int:
        """Bytes of the longest value; 0 without values."""
        return max(map(len, self._values), default=0)

    def mask(self, data: bytes) -> bytes:
        """``data`` with the values blanked out, its length unchanged."""
        for value in self._values:
            data = data.replace(value, b"*" * len(value))
        return data

    def text(self, text: str) -> str:
        """``text`` without the values."""
        data = text.encode(errors="replace")
        for value in self._values:
            data = data.replace(value, MARK)
        return data.decode(errors="replace")


def _is_text(data: bytes) -> bool:
    if b"\0" in data[:_TEXT_PROBE_BYTES]:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def send_secrets(path: str, values: Iterable[str], *, wait_seconds: float) -> bool:
    """Tell the verifier which values must not be kept; True if it will read them. Nothing is sent when there are none."""
    kept = longest_first(values)
    if not kept:
        return True
    data = json.dumps(kept).encode()
    deadline = Deadline(wait_seconds)
    pause = 0.01
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(deadline.cap(wait_seconds) or 0.001)
                connection.connect(path)
                connection.sendall(data)
                return True
        except OSError:
            # The verifier's container may start a moment later than ours.
            if deadline.passed or len(data) > _HANDOVER_BYTES:
                return False
            time.sleep(deadline.cap(pause))
            pause = min(0.5, pause * 2)


class SecretInbox:
    """The verifier's end of ``send_secrets``."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.bind(path)
        except OSError:
            self._socket.close()
            raise
        os.chmod(path, 0o666)
        self._socket.listen(16)
        self._socket.setblocking(False)

    def read(self) -> list[str]:
        """All values sent so far. What does not look like a list of texts is ignored: it could only hide logs of its own trial."""
        values: list[str] = []
        for _ in range(16):
            try:
                connection, _ = self._socket.accept()
            except OSError:
                break
            with connection:
                connection.settimeout(1.0)
                values += _read_values(connection)
        return values[:_VALUES]

    def close(self) -> None:
        self._socket.close()
        try:
            os.unlink(self._path)
        except OSError:
            return


def _read_values(connection: socket.socket) -> list[str]:
    data = b""
    try:
        while len(data) <= _HANDOVER_BYTES and (piece := connection.recv(65536)):
            data += piece
        value = json.loads(data)
    except (OSError, ValueError, RecursionError):
        return []
    if not isinstance(value, list):
        return []
    return [item for item in value if isinstance(item, str) and len(item) >= SECRET_CHARS]
