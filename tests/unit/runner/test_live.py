"""The live log: what the agent prints, bounded, without secrets, and through no link."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from seatrial_runner.live import CUT, LiveLog
from seatrial_runner.redact import Redactor

from .conftest import Pod, wait_until


def test_output_appears_while_the_agent_still_writes(tmp_path: Path) -> None:
    file, out = tmp_path / "agent.txt", io.BytesIO()
    with LiveLog(str(file), out, Redactor()), file.open("wb", buffering=0) as agent:
        agent.write(b"one\n")
        wait_until(lambda: out.getvalue() == b"one\n")
        agent.write(b"two")
    assert out.getvalue() == b"one\ntwo"


def test_a_secret_is_masked_wherever_the_output_is_cut(tmp_path: Path) -> None:
    file, out = tmp_path / "agent.txt", io.BytesIO()
    secret = b"s3cret-\nvalue"
    with LiveLog(str(file), out, Redactor([secret.decode()])), file.open("wb", buffering=0) as agent:
        agent.write(b"x" * (64 * 1024 - 5) + secret + b"|" + secret[:6])
        wait_until(lambda: b"|" in out.getvalue() or len(out.getvalue()) > 64 * 1024 - 20)
        agent.write(secret[6:] + b"|end")
    masked = b"*" * len(secret)
    assert out.getvalue() == b"x" * (64 * 1024 - 5) + masked + b"|" + masked + b"|end"


def test_the_log_is_cut_once_and_says_so(tmp_path: Path) -> None:
    file, out = tmp_path / "agent.txt", io.BytesIO()
    file.write_bytes(b"y" * 1_000_000)
    with LiveLog(str(file), out, Redactor(["s3cret-value"]), limit_bytes=1000):
        pass
    assert out.getvalue() == b"y" * 1000 + CUT


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_file_is_not_read(tmp_path: Path, kind: str) -> None:
    file, out = tmp_path / "agent.txt", io.BytesIO()
    (tmp_path / "other").write_text("not the agent's")
    match kind:
        case "link":
            file.symlink_to("other")
        case "pipe":
            os.mkfifo(file)
        case "folder":
            file.mkdir()
    with LiveLog(str(file), out, Redactor()):
        pass
    assert out.getvalue() == b""


def test_a_trials_agent_is_heard_in_its_containers_log(pod: Pod, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    pod.files["solution/solve.sh"] = '#!/bin/bash\necho Hello > "$APP/hello.txt"\necho heard; echo "$API_TOKEN"\n'
    pod.trial["agent"]["env_names"] = ["API_TOKEN"]
    pod.agent_env = {"API_TOKEN": "tok-123456789"}
    outcome = pod.run()
    assert outcome.verdict.rewards == {"reward": 1.0}
    assert capfdbinary.readouterr().out == b"heard\n*************\n"
