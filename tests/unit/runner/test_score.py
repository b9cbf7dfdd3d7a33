"""The three containers of a script's Pod, one after the other, against a real HTTP store."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from seatrial import contract
from seatrial.contract import StageExit, verify_result
from seatrial_runner import score
from seatrial_runner.paths import Paths
from seatrial_runner.presigned import Patience

if TYPE_CHECKING:
    from .conftest import ObjectStore

PATIENCE = Patience(seconds=5.0, attempts=2, first_pause_seconds=0.01, longest_pause_seconds=0.02, answer_seconds=2.0)
KEY = "of the tests"
REWARDS = b'{"reward": 1.0}\nnull\n{"reward": 0.0}\n'
HEAD = """
import json, sys
given, written = sys.argv[2], sys.argv[4]
rows = [json.loads(line) for line in open(given)]
"""
GOOD = HEAD + "json.dump({'mean': sum(r['reward'] if r else 0 for r in rows) / len(rows), 'nulls': rows.count(None)}, open(written, 'w'))"


class ScriptPod:
    """The volumes of one Pod."""

    def __init__(self, root: Path, store: ObjectStore) -> None:
        self.store = store
        self.paths = Paths(
            script=str(root / "script"), script_out=str(root / "out"), scratch=str(root / "tmp"), termination_log=str(root / "message")
        )
        for folder in (self.paths.script, self.paths.script_out, self.paths.scratch):
            Path(folder).mkdir()

    @property
    def end(self) -> Path:
        return Path(self.paths.script_out) / contract.SCRIPT_END_FILE

    def environ(self, script: str | bytes, **changes: Any) -> Mapping[str, str]:
        data = script if isinstance(script, bytes) else script.encode()
        self.store.put("script", data)
        self.store.put("rewards", REWARDS)
        given = {
            "job_uid": "uid",
            "script": 1,
            "retry": 2,
            "script_sha256": hashlib.sha256(data).hexdigest(),
            "rewards_sha256": hashlib.sha256(REWARDS).hexdigest(),
            "seconds": 20.0,
            "memory_bytes": 1 << 30,
        }
        return {
            contract.VAR_INPUT: json.dumps({**given, **changes}),
            contract.VAR_SCRIPT_URL: self.store.url("script"),
            contract.VAR_REWARDS_URL: self.store.url("rewards"),
            contract.VAR_RESULT_URL: self.store.url("result"),
            contract.VAR_SIGNING_KEY: KEY,
        }

    def run(self, script: str | bytes, **changes: Any) -> dict[str, Any]:
        """All three containers; the stored result, its signature checked."""
        environ = self.environ(script, **changes)
        # The script's container holds neither a URL nor the key.
        own = {contract.VAR_INPUT: environ[contract.VAR_INPUT]}
        assert score.fetch(self.paths, environ, patience=PATIENCE) == StageExit.OK
        assert score.script(self.paths, own) == 0
        return self.signed(environ)

    def signed(self, environ: Mapping[str, str]) -> dict[str, Any]:
        assert score.score(self.paths, environ, patience=PATIENCE) == StageExit.OK
        data = self.store.get("result")
        assert data is not None
        return verify_result(data, KEY.encode())


@pytest.fixture
def script_pod(tmp_path: Path, object_store: ObjectStore) -> ScriptPod:
    return ScriptPod(tmp_path, object_store)


def test_the_values_of_a_script_are_stored_with_what_they_were_made_from(script_pod: ScriptPod) -> None:
    assert script_pod.run(GOOD) == {
        "job_uid": "uid",
        "script": 1,
        "retry": 2,
        "script_sha256": hashlib.sha256(GOOD.encode()).hexdigest(),
        "rewards_sha256": hashlib.sha256(REWARDS).hexdigest(),
        "values": {"mean": 1 / 3, "nulls": 1.0},
        "error": None,
    }


@pytest.mark.parametrize(
    ("text", "changes", "error", "words"),
    [
        pytest.param("while True: pass", {"seconds": 1.0}, "MetricScriptTimeout", "did not end within 1 s", id="loops"),
        pytest.param("bytearray(8 << 30)", {}, "MetricScriptOutOfMemory", "needs more than 1024 MiB", id="allocates"),
        pytest.param("for _ in range(1024): print('x' * (1 << 20))", {}, "MetricScriptOutputTooLong", "printed more", id="prints"),
        pytest.param("import socket; socket.socket()", {}, "MetricScriptFailed", "Network is unreachable", id="network"),
        pytest.param(HEAD + "raise ValueError('two keys')", {}, "MetricScriptFailed", "ValueError: two keys", id="raises"),
        pytest.param("pass", {}, "MetricScriptOutputInvalid", "wrote no output file", id="silent"),
        pytest.param("# /// script\n# dependencies = ['numpy']\n# ///\n", {}, "MetricScriptDependencies", "needs numpy", id="dependencies"),
    ],
)
def test_a_script_that_fails_is_a_result_with_a_named_error(
    script_pod: ScriptPod, text: str, changes: dict[str, Any], error: str, words: str
) -> None:
    found = script_pod.run(text, **changes)
    assert (found["values"], found["error"]["type"]) == (None, error)
    assert words in found["error"]["message"]
    assert len(found["error"]["message"]) <= contract.SCRIPT_ERROR_CHARS


NEEDS = "# /// script\n# dependencies = ['probe']\n# ///\n"
PACKAGED = {
    "metric.py": f"{NEEDS}{HEAD}import probe\njson.dump({{'answer': probe.ANSWER}}, open(written, 'w'))\n",
    "modules/probe.py": "ANSWER = 42\n",
}


def zipped(files: Mapping[str, str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return out.getvalue()


@pytest.mark.conforms("N-162")
def test_a_script_that_was_published_with_its_packages_has_them(script_pod: ScriptPod) -> None:
    found = script_pod.run(zipped(PACKAGED))
    assert (found["values"], found["error"]) == ({"answer": 42.0}, None)
    assert sorted(path.name for path in Path(script_pod.paths.script).iterdir()) == ["metric.py", "modules", "rewards.jsonl"]


@pytest.mark.parametrize("files", [{}, {"modules/probe.py": ""}, {"../metric.py": ""}], ids=["empty", "no script", "escape"])
def test_an_archive_that_is_none_of_a_script_is_named(script_pod: ScriptPod, files: Mapping[str, str]) -> None:
    data = zipped(files) if files else b"PK\x03\x04"
    assert score.fetch(script_pod.paths, script_pod.environ(data), patience=PATIENCE) == StageExit.ARCHIVE_CORRUPT
    assert "metric.py: its archive" in json.loads(Path(script_pod.paths.termination_log).read_text())["message"]


CHAIN = (
    HEAD
    + """
def status(process, name):
    return next(line.split()[1] for line in open(f"/proc/{process}/status") if line.startswith(name))
chain = ["self"]
while chain[-1] != ENTRY:
    chain.append(status(chain[-1], "PPid:"))
json.dump({"filtered": sum(status(item, "Seccomp:") == "2" for item in chain), "processes": len(chain)}, open(written, "w"))
"""
)


def test_no_process_of_a_scripts_container_has_a_socket(script_pod: ScriptPod) -> None:
    program = (
        "import os, pathlib, seatrial_runner.paths as paths; from seatrial_runner.main import main; "
        f"own = paths.{script_pod.paths!r}; paths.paths_of = lambda environ: own; "
        f"file = pathlib.Path(own.script, {contract.METRIC_FILE!r}); "
        "file.write_text(file.read_text().replace('ENTRY', repr(str(os.getpid())))); main(['script'])"
    )
    environ = script_pod.environ(CHAIN)
    assert score.fetch(script_pod.paths, environ, patience=PATIENCE) == StageExit.OK
    subprocess.run([sys.executable, "-c", program], env={contract.VAR_INPUT: environ[contract.VAR_INPUT]}, check=True, timeout=60)
    values, error = score.read_end(script_pod.end)
    assert error is None
    assert values is not None
    assert values["filtered"] == values["processes"] >= 3


@pytest.mark.parametrize(
    "left",
    [
        b"",
        b"{",
        b"[]",
        b'{"values": null, "error": null}',
        b'{"values": {"a": "1"}, "error": null}',
        b'{"values": {"a": NaN}, "error": null}',
        b'{"values": {}, "error": 7}',
        b"[" * 60000,
        b" " * 100_000,
    ],
    ids=lambda data: data[:40].decode(),
)
def test_a_forged_record_becomes_an_error(script_pod: ScriptPod, left: bytes) -> None:
    script_pod.end.write_bytes(left)
    found = script_pod.signed(script_pod.environ(GOOD))
    assert (found["values"], found["error"]["type"]) == (None, "MetricScriptOutputInvalid")


def test_a_record_that_is_missing_or_a_link_or_a_pipe_becomes_an_error(script_pod: ScriptPod, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"values": {"a": 1}, "error": null}')
    script_pod.end.symlink_to(secret)
    environ = script_pod.environ(GOOD)
    assert script_pod.signed(environ)["error"]["type"] == "MetricScriptOutputInvalid"
    script_pod.end.unlink()
    assert score.read_end(script_pod.end)[1] is not None


@pytest.mark.parametrize(
    ("path", "fault", "code"),
    [
        ("script", 404, StageExit.ARCHIVE_MISSING),
        ("script", 403, StageExit.STORE_REFUSED),
        ("rewards", 503, StageExit.STORE_UNAVAILABLE),
        ("rewards", None, StageExit.ARCHIVE_CORRUPT),
    ],
)
def test_what_cannot_be_fetched_is_named(script_pod: ScriptPod, path: str, fault: int | None, code: StageExit) -> None:
    environ = script_pod.environ(GOOD)
    if fault is None:
        script_pod.store.put(path, b"other bytes")
    else:
        script_pod.store.fail(path, fault, fault)
    assert score.fetch(script_pod.paths, environ, patience=PATIENCE) == code
    name = contract.METRIC_FILE if path == "script" else contract.REWARDS_FILE
    assert name in json.loads(Path(script_pod.paths.termination_log).read_text())["message"]


def test_a_result_that_is_stored_already_stays(script_pod: ScriptPod) -> None:
    environ = script_pod.environ(GOOD)
    script_pod.store.put("result", b"first")
    script_pod.end.write_text('{"values": {"a": 1}, "error": null}')
    assert score.score(script_pod.paths, environ, patience=PATIENCE) == StageExit.OK
    assert script_pod.store.get("result") == b"first"


def test_a_store_that_does_not_answer_is_no_answer_of_the_script(script_pod: ScriptPod) -> None:
    environ = script_pod.environ(GOOD)
    script_pod.end.write_text('{"values": {"a": 1}, "error": null}')
    script_pod.store.fail("result", 503, 503)
    assert score.score(script_pod.paths, environ, patience=PATIENCE) == StageExit.STORE_UNAVAILABLE
