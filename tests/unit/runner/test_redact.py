"""What redaction changes, what it leaves alone, and how the verifier learns the agent's secrets."""

from __future__ import annotations

import json
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from seatrial_runner.redact import Redactor, SecretInbox, send_secrets


@pytest.mark.conforms("H-129", "N-115")
def test_known_values_are_replaced_in_text() -> None:
    assert Redactor(["sk-canary-123"]).file("agent.txt", b"key=sk-canary-123\n") == b"key=[REDACTED]\n"


def test_a_value_inside_another_leaves_no_rest() -> None:
    assert Redactor(["secret", "secret-long"]).file("a.txt", b"secret-long secret") == b"[REDACTED] [REDACTED]"


@pytest.mark.parametrize("odd", [b"\0", b"\xff ", "é".encode()[:1]], ids=["nul", "no utf-8", "half a character"])
def test_values_in_a_file_that_is_no_text_are_blanked_out(odd: bytes) -> None:
    assert Redactor(["secret-1"]).file("a.bin", odd + b"secret-1") == odd + b"********"


@pytest.mark.conforms("H-129", "N-116")
def test_json_stays_json_where_a_value_is_a_number() -> None:
    data = json.dumps({"id": 123456, "text": "pin 123456", "escaped": '"123456"'}).encode()
    kept = json.loads(Redactor(["123456"]).file("trajectory.json", data))
    assert kept == {"id": 123456, "text": "pin [REDACTED]", "escaped": '"[REDACTED]"'}


@pytest.mark.parametrize("rest", [b'\\"' * 500_000, b'\\"' * 500_000 + b"\\"], ids=["quotes", "a backslash at the end"])
def test_a_string_without_an_end_costs_no_more_than_its_length(rest: bytes) -> None:
    assert Redactor(["123456"]).file("a.json", b'[123456, "123456' + rest) == b'[123456, "[REDACTED]' + rest


def test_a_value_is_found_in_its_json_spelling() -> None:
    value = 'pass"word\\é'
    assert json.loads(Redactor([value]).file("log.json", json.dumps([value]).encode())) == ["[REDACTED]"]


def test_masking_keeps_the_length() -> None:
    assert Redactor(["secret-1"]).mask(b"<secret-1>") == b"<********>"


@pytest.fixture
def path() -> Iterator[Path]:
    """Of a socket; short, because it may have at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="inbox-") as folder:
        yield Path(folder) / "secrets.sock"


def test_values_sent_before_anybody_reads_arrive(path: Path) -> None:
    inbox = SecretInbox(str(path))
    assert send_secrets(str(path), ["sk-canary-123", "sk-canary-123"], wait_seconds=5)
    assert inbox.read() == ["sk-canary-123"]
    assert inbox.read() == []
    inbox.close()
    assert not path.exists()


def test_a_verifier_that_starts_later_is_waited_for(path: Path) -> None:
    sent: list[bool] = []
    thread = threading.Thread(target=lambda: sent.append(send_secrets(str(path), ["sk-canary-123"], wait_seconds=10)))
    thread.start()
    inbox = SecretInbox(str(path))
    thread.join(timeout=10)
    assert (sent, inbox.read()) == ([True], ["sk-canary-123"])
    inbox.close()


def test_without_a_verifier_the_sender_knows(path: Path) -> None:
    assert not send_secrets(str(path), ["sk-canary-123"], wait_seconds=0.05)


def test_without_secrets_nobody_is_needed() -> None:
    assert send_secrets("/nowhere/secrets.sock", [], wait_seconds=0)


def test_what_is_no_list_of_texts_is_ignored(path: Path) -> None:
    inbox = SecretInbox(str(path))
    for data in (b"nonsense", b"[" * 100_000, b'{"a": 1}', b'[1, "short", "long enough"]'):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(data)
    assert inbox.read() == ["long enough"]
    inbox.close()
