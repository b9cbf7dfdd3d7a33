"""Here-documents: what the shell would get, for builders that do not know them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from seatrial.taskpkg.heredoc import HeredocError, without_heredocs


def lines(*parts: str | list[str]) -> str:
    """A Dockerfile of lines; a list is a RUN in JSON form."""
    return "".join(part if isinstance(part, str) else f"RUN {json.dumps(part)}\n" for part in parts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "FROM a\nRUN <<EOT\necho one\necho two >> x\nEOT\nUSER b\n",
            lines("FROM a\n", ["/bin/sh", "-c", "echo one\necho two >> x\n"], "USER b\n"),
        ),
        ('FROM a\nRUN <<"EOT"\necho $X\nEOT\n', lines("FROM a\n", ["/bin/sh", "-c", "echo $X\n"])),
        ("FROM a\nRUN <<-EOT\n\techo one\n\tEOT\n", lines("FROM a\n", ["/bin/sh", "-c", "echo one\n"])),
        ("FROM a\nRUN python3 - <<EOT\nprint(1)\nEOT\n", lines("FROM a\n", ["/bin/sh", "-c", "python3 - <<EOT\nprint(1)\nEOT\n"])),
        (
            'FROM a\nSHELL ["/bin/bash", "-ec"]\nRUN <<EOT\nfalse\nEOT\n',
            lines("FROM a\n", 'SHELL ["/bin/bash", "-ec"]\n', ["/bin/bash", "-ec", "false\n"]),
        ),
        ("FROM a\nRUN <<EOT\r\necho one\r\nEOT\r\n", lines("FROM a\n", ["/bin/sh", "-c", "echo one\n"])),
        ("FROM a\n# RUN <<EOT\nRUN echo 1 << 2 \\\n  3\n", "FROM a\n# RUN <<EOT\nRUN echo 1 << 2 \\\n  3\n"),
    ],
    ids=["plain", "quoted", "dash", "command", "SHELL", "CRLF", "none"],
)
def test_a_here_document_of_run_becomes_what_the_shell_gets(text: str, expected: str) -> None:
    assert without_heredocs(text) == (expected, {})


@pytest.mark.parametrize(
    ("text", "expected", "files"),
    [
        ("FROM a\nCOPY <<EOT /x\none\ntwo\nEOT\nUSER b\n", "FROM a\nCOPY .seatrial-heredocs/2/EOT /x\nUSER b\n", {"2/EOT": "one\ntwo\n"}),
        (
            "FROM a\nCOPY --chmod=755 <<'EOT' /x\n$HOME\nEOT\n",
            "FROM a\nCOPY --chmod=755 .seatrial-heredocs/2/EOT /x\n",
            {"2/EOT": "$HOME\n"},
        ),
        (
            "FROM a\nADD <<one <<-two /dir/\n1\none\n\t2\n\ttwo\n",
            "FROM a\nADD .seatrial-heredocs/2/one .seatrial-heredocs/2/two /dir/\n",
            {"2/one": "1\n", "2/two": "2\n"},
        ),
    ],
    ids=["plain", "quoted", "two"],
)
def test_a_here_document_of_copy_becomes_a_file_of_the_context(text: str, expected: str, files: dict[str, str]) -> None:
    assert without_heredocs(text) == (expected, {f".seatrial-heredocs/{path}": content for path, content in files.items()})


def test_a_script_of_another_interpreter_is_run_by_it(tmp_path: Path) -> None:
    (tmp_path / "seen").write_text("")
    found = without_heredocs(f"FROM a\nRUN <<EOT\n#!{sys.executable}\nopen('{tmp_path}/seen', 'w').write('SEATRIAL0')\nexit(7)\nEOT\n")
    command = json.loads(found.text.splitlines()[1].removeprefix("RUN "))
    done = subprocess.run(command, check=False, timeout=60)
    assert (done.returncode, (tmp_path / "seen").read_text(), Path("/tmp/.seatrial-run").exists()) == (7, "SEATRIAL0", False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM a\nCOPY <<EOT /x\n${ONE}\nEOT\n", "line 2: a here-document of COPY with variables"),
        ("FROM a\nRUN <<EOT\necho\n", "line 2: the here-document has no end EOT"),
    ],
)
def test_what_cannot_be_written_otherwise_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(HeredocError) as caught:
        without_heredocs(text)
    assert str(caught.value).startswith(message)


def test_a_dockerfile_without_here_documents_stays_byte_for_byte() -> None:
    text = "FROM a\r\nRUN echo \\\r\n one\r\n"
    assert without_heredocs(text) == (text, {})
