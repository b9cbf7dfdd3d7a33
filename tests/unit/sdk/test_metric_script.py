"""MetricScripts that compute metrics: what they get, what they may write, and what becomes of bad ones."""

from __future__ import annotations

import textwrap
import time
from pathlib import Path

import pytest
from tests.wheels import probe_wheel

from seatrial.scoring.script import ScriptFault, ScriptLimits, dependencies
from seatrial.sdk.metric_script import MetricScriptError, run_script

READ: str = """
import argparse, json
parser = argparse.ArgumentParser()
parser.add_argument("-i", "--input-path", required=True)
parser.add_argument("-o", "--output-path", required=True)
given = parser.parse_args()
rows = [json.loads(line) for line in open(given.input_path)]
def write(value):
    open(given.output_path, "w").write(value if isinstance(value, str) else json.dumps(value))
"""
ROWS = [{"reward": 1.0}, None, {"reward": 0.0}]


def script(folder: Path, body: str, *, head: str = "") -> Path:
    path = folder / "metric.py"
    path.write_text(head + READ + textwrap.dedent(body))
    return path


def failure(path: Path, **limits: float) -> MetricScriptError:
    with pytest.raises(MetricScriptError) as caught:
        run_script(path, ROWS, limits=ScriptLimits(seconds=limits.get("seconds", 30.0), memory_bytes=int(limits.get("memory", 1 << 30))))
    return caught.value


@pytest.mark.conforms("N-161", "N-163", "N-166", "H-136")
def test_a_script_reads_rows_with_null_and_all_its_values_are_kept(tmp_path: Path) -> None:
    path = script(tmp_path, 'write({"mean": sum(r["reward"] if r else 0 for r in rows) / len(rows), "nulls": rows.count(None)})')
    assert run_script(path, ROWS) == {"mean": pytest.approx(1 / 3), "nulls": 1.0}


@pytest.mark.conforms("N-164", "H-136")
def test_a_script_that_raises_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    error = failure(script(tmp_path, 'raise ValueError("more than one key")'))
    assert error.reason == "MetricScriptFailed"
    assert "ValueError: more than one key" in str(error)


def test_a_script_that_loops_is_ended_with_all_it_started(tmp_path: Path) -> None:
    marker = tmp_path / "alive"
    body = f"""
    import subprocess, sys
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3); open({str(marker)!r}, 'w')"])
    while True: pass
    """
    started = time.monotonic()
    error = failure(script(tmp_path, body), seconds=1.0)
    assert (error.reason, time.monotonic() - started < 20) == ("MetricScriptTimeout", True)
    time.sleep(max(0.0, 4 - (time.monotonic() - started)))
    assert not marker.exists()


def test_a_script_that_allocates_8_gib_fails_by_name(tmp_path: Path) -> None:
    error = failure(script(tmp_path, "data = bytearray(8 << 30)"))
    assert error.reason == "MetricScriptOutOfMemory"
    assert "needs more than 1024 MiB" in str(error)


PRINT = """
import sys
block = "x" * (1 << 20)
for _ in range(1024):
    sys.{stream}.write(block)
write({{"n": 1}})
"""


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_script_that_prints_a_gigabyte_is_ended_by_name(tmp_path: Path, stream: str) -> None:
    error = failure(script(tmp_path, PRINT.format(stream=stream)))
    assert error.reason == "MetricScriptOutputTooLong"
    assert "printed more than 64 MiB" in str(error)


def test_a_script_may_print_what_a_person_reads(tmp_path: Path) -> None:
    assert run_script(script(tmp_path, PRINT.format(stream="stdout").replace("1024", "8")), ROWS) == {"n": 1.0}


@pytest.mark.parametrize(
    "call",
    [
        "socket.create_connection(('127.0.0.1', 80), 1)",
        "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)",
        "socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)",
        "socket.getaddrinfo('localhost.invalid', 80)",
    ],
)
def test_a_script_that_tries_the_network_fails_by_name(tmp_path: Path, call: str) -> None:
    error = failure(script(tmp_path, f"import socket; {call}; write({{'n': 1}})"))
    assert error.reason == "MetricScriptFailed"
    assert "Network is unreachable" in str(error) or "gaierror" in str(error)


def test_a_child_of_a_script_has_no_network_either_and_the_script_may_use_pipes(tmp_path: Path) -> None:
    body = """
    import multiprocessing, os, socket, subprocess, sys
    child = subprocess.run([sys.executable, "-c", "import socket; socket.socket()"], capture_output=True)
    left, right = socket.socketpair()
    left.send(b"x")
    write({"child": child.returncode, "pair": len(right.recv(1)), "secrets": sum("SEATRIAL" in name for name in os.environ)})
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEATRIAL_S3_SECRET_KEY", "not for scripts")
        assert run_script(script(tmp_path, body), ROWS) == {"child": 1.0, "pair": 1.0, "secrets": 0.0}


def test_a_script_that_is_allowed_the_network_opens_sockets(tmp_path: Path) -> None:
    path = script(tmp_path, "import socket; socket.socket().close(); write({'n': 1})")
    assert run_script(path, ROWS, allow_network=True) == {"n": 1.0}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("pass", "MetricScriptOutputInvalid"),
        ("write('{')", "MetricScriptOutputInvalid"),
        ("write([1])", "MetricScriptOutputInvalid"),
        ("write({'a': None})", "MetricScriptOutputInvalid"),
        ("write({'a': True})", "MetricScriptOutputInvalid"),
        ("write('{\"a\": NaN}')", "MetricScriptOutputInvalid"),
        ("write('{\"a\": 1e999}')", "MetricScriptOutputInvalid"),
        ("write({'a': 10 ** 400})", "MetricScriptOutputInvalid"),
        ("import os; os.symlink('/etc/passwd', given.output_path)", "MetricScriptOutputInvalid"),
        ("write({'a' * 20000: 1})", "MetricScriptOutputTooLong"),
        ("write({str(n): n for n in range(101)})", "MetricScriptOutputTooLong"),
        ("write({'a' * 101: 1})", "MetricScriptOutputInvalid"),
        ("write({'a\\nb': 1})", "MetricScriptOutputInvalid"),
        ("write('x' * (100 << 20))", "MetricScriptFailed"),
    ],
    ids=str,
)
def test_output_that_is_no_small_object_of_numbers_is_refused(tmp_path: Path, body: str, reason: str) -> None:
    assert failure(script(tmp_path, body)).reason == reason


def test_a_script_in_another_encoding_is_a_failure_with_its_last_words(tmp_path: Path) -> None:
    path = tmp_path / "metric.py"
    path.write_bytes(b"name = '\xff'\n")
    error = failure(path)
    assert error.reason == "MetricScriptFailed"
    assert "SyntaxError" in str(error)


@pytest.mark.conforms("N-162")
def test_inline_dependencies_are_installed_before_the_network_is_gone(tmp_path: Path) -> None:
    head = f'# /// script\n# dependencies = ["seatrial-probe @ {probe_wheel(tmp_path).as_uri()}"]\n# ///\n'
    path = script(tmp_path, 'import seatrial_probe; write({"answer": seatrial_probe.ANSWER})', head=head)
    assert run_script(path, ROWS) == {"answer": 42.0}


def test_dependencies_are_read_from_the_inline_block_only() -> None:
    assert dependencies("# /// script\n# requires-python = '>=3.11'\n# dependencies = ['a', 'b>=1']\n# ///\nx = 1") == ["a", "b>=1"]
    assert dependencies("dependencies = ['a']\n") == []
    for text in ("# /// script\n# dependencies = [\n# ///\n", "# /// script\n# dependencies = 'a'\n# ///\n"):
        with pytest.raises(ScriptFault) as caught:
            dependencies(text)
        assert caught.value.reason == "MetricScriptDependencies"
