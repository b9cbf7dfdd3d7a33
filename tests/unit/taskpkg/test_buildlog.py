"""Failed builds: the line of the Dockerfile and the first cause, from logs as the builders write them."""

from __future__ import annotations

import pytest

from seatrial.taskpkg.buildlog import explain

DOCKERFILE = """\
ARG BASE=debian:12
FROM ${BASE}
RUN echo fine
RUN echo "nothing here works" >&2 && exit 7
COPY not-there.txt /opt/
"""
BUILDAH_RUN = """\
STEP 1/4: FROM registry/base:12
STEP 2/4: RUN echo fine
fine
STEP 3/4: RUN echo "nothing here works" >&2 && exit 7
nothing here works
Error: building at STEP "RUN echo "nothing here works" >&2 && exit 7": exit status 7
"""
KANIKO_RUN = """\
INFO[0001] RUN echo "nothing here works" >&2 && exit 7
INFO[0001] Cmd: /bin/sh
INFO[0001] Running: [/bin/sh -c echo "nothing here works" >&2 && exit 7]
nothing here works
error building image: error building stage: failed to execute command: waiting for process to exit: exit status 7
"""
KANIKO_TEXT = """\
time="2026-11-30T01:56:04Z" level=info msg="RUN echo fine"
time="2026-11-30T01:56:09Z" level=info msg="RUN echo \\"nothing here works\\" >&2 && exit 7"
time="2026-11-30T01:56:09Z" level=info msg="Running: [/bin/sh -c echo \\"nothing here works\\" >&2 && exit 7]"
nothing here works
error building image: error building stage: failed to execute command: waiting for process to exit: exit status 7
"""
BUILDKIT_RUN = """\
#6 [3/4] RUN echo "nothing here works" >&2 && exit 7
#6 0.2 nothing here works
Dockerfile:4
--------------------
   4 | >>> RUN echo "nothing here works" >&2 && exit 7
--------------------
ERROR: failed to solve: process "/bin/sh -c echo" did not complete successfully: exit code: 7
"""
BUILDAH_COPY = """\
STEP 4/4: COPY not-there.txt /opt/
Error: building at STEP "COPY not-there.txt /opt/": copier: stat: "/not-there.txt": no such file or directory
"""
KANIKO_COPY = """\
INFO[0000] RUN echo fine
error building image: error building stage: failed to get files used from context: failed to get fileinfo for /c/not-there.txt: \
lstat /c/not-there.txt: no such file or directory
"""
KANIKO_BASE = """\
INFO[0000] Retrieving image manifest seatrial.invalid/no/such/image:1
INFO[0000] Retrieving image seatrial.invalid/no/such/image:1 from registry seatrial.invalid
error building image: unable to complete operation after 3 attempts, last error: Get "https://seatrial.invalid/v2/": dial tcp: \
lookup seatrial.invalid: no such host
"""
BASE_DOCKERFILE = "FROM seatrial.invalid/no/such/image:1\n"


@pytest.mark.parametrize(
    "log", [BUILDAH_RUN, KANIKO_RUN, KANIKO_TEXT, BUILDKIT_RUN], ids=["buildah", "kaniko", "kaniko as text", "buildkit"]
)
def test_a_failed_command_is_named_with_its_line(log: str) -> None:
    fault = explain(DOCKERFILE, log)
    assert (fault.line, fault.instruction, fault.is_passing) == (4, 'RUN echo "nothing here works" >&2 && exit 7', False)
    assert "7" in fault.message


@pytest.mark.parametrize("log", [BUILDAH_COPY, KANIKO_COPY], ids=["buildah", "kaniko"])
def test_a_missing_source_is_named_with_its_line(log: str) -> None:
    fault = explain(DOCKERFILE, log)
    assert (fault.line, fault.instruction) == (5, "COPY not-there.txt /opt/")
    assert fault.message.endswith("no such file or directory")


def test_a_missing_base_image_is_named_as_such() -> None:
    fault = explain(BASE_DOCKERFILE, KANIKO_BASE)
    assert (fault.line, fault.instruction, fault.is_passing) == (1, "FROM seatrial.invalid/no/such/image:1", False)
    assert fault.message.startswith("the base image cannot be pulled: ")


def test_a_variable_in_an_instruction_does_not_hide_its_line() -> None:
    fault = explain(
        "FROM a\nARG N\nRUN get ${N} now\n", 'STEP 3/3: RUN get 42 now\nError: building at STEP "RUN get 42 now": exit status 1\n'
    )
    assert fault.line == 3


def test_a_full_disk_is_named_whatever_the_builder_says() -> None:
    fault = explain(
        "FROM a\nRUN fill\n", 'STEP 2/2: RUN fill\ndd: No space left on device\nError: building at STEP "RUN fill": exit status 1\n'
    )
    assert fault.line == 2
    assert fault.message.startswith("no space left on the device")


@pytest.mark.parametrize(
    "log",
    [
        "error pushing image: failed to push to destination r:5/x: dial tcp 10.0.0.1:5: connect: connection refused\n",
        "error checking push permissions -- make sure you entered the correct tag name: dial tcp: i/o timeout\n",
    ],
)
def test_a_registry_that_does_not_answer_is_no_fault_of_the_dockerfile(log: str) -> None:
    assert explain("FROM a\n", log).is_passing


def test_a_builder_without_here_documents_is_told_apart_from_a_broken_dockerfile() -> None:
    fault = explain("FROM a\nRUN <<EOT\necho one\nEOT\n", 'Error: building at STEP "ECHO ": Build error: Unknown instruction: "ECHO"\n')
    assert fault.message.startswith("this builder does not know here-documents")


@pytest.mark.parametrize("log", ["", "\x1b[31m\x00\xff" * 10, "x" * 200_000])
def test_any_log_gives_a_short_message(log: str) -> None:
    assert len(str(explain(DOCKERFILE, log))) < 800
