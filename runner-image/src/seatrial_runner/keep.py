"""Keep the evidence of a trial while it is there: agent logs and artifacts before the tests run, the verifier's logs after.

Why one archive that is written as the trial goes: Harbor collects artifacts before it verifies, and each step of a task leaves its own.
Nothing that fails here may cost the verdict. Order and layout: harbor.md 4.3, 4.7 and 7.4.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import BinaryIO, cast

from seatrial import contract
from seatrial.contract import TrialInput
from seatrial_runner.channel import Channel
from seatrial_runner.clock import Deadline
from seatrial_runner.evidence import Caps, Evidence, EvidenceWriter, FailingSource, LocalSource, Source, collect_artifacts
from seatrial_runner.grade import Grading
from seatrial_runner.paths import Paths
from seatrial_runner.redact import Redactor


class Keeper:
    """Writes ``logs.tar.gz`` of one trial into ``file``."""

    def __init__(
        self,
        file: BinaryIO,
        *,
        caps: Caps,
        trial: TrialInput,
        paths: Paths,
        redactor: Redactor,
        channel: Callable[[], Channel | None],
        is_hurried: Callable[[], bool],
        pass_seconds: float,
    ) -> None:
        """
        Args:
            channel: to the environment, as soon as there is one.
            is_hurried: SIGTERM came and little time is left.
            pass_seconds: for what is collected before, or after, one test script.
        """
        self._trial, self._paths, self._channel, self._pass_seconds = trial, paths, channel, pass_seconds
        self._deadline = Deadline(pass_seconds)
        self._writer = EvidenceWriter(file, redactor=redactor, caps=caps, out_of_time=lambda: self._deadline.passed or is_hurried())
        self.error: str | None = None
        """Why the archive is unusable."""

    def before_tests(self, grading: Grading) -> None:
        """The agent's logs and the artifacts."""
        self._guarded(lambda: self._keep_agent(grading))

    def copy(self, archive: str) -> None:
        """What an earlier Pod of the trial kept."""
        self._guarded(lambda: self._writer.copy(archive))

    def after_tests(self, grading: Grading) -> None:
        """The verifier's logs."""
        self._guarded(lambda: self._writer.add_logs(self._source(), self._paths.logs_verifier, f"{grading.prefix}{contract.VERIFIER}"))

    @property
    def loss(self) -> str | None:
        """Why what was kept is not enough for a separate verifier."""
        return self.error or self._writer.incomplete

    def finish(self) -> Evidence | None:
        """End the archive; None with the reason in ``error``."""
        found: list[Evidence] = []
        self._guarded(lambda: found.append(self._writer.finish()))
        return found[0] if found else None

    def _keep_agent(self, grading: Grading) -> None:
        paths, channel = self._paths, self._channel()
        self._writer.add_logs(self._source(), paths.logs_agent, f"{grading.prefix}{contract.AGENT}")
        workdir = self._trial["environment"]["workdir"] or (channel.hello.cwd if channel is not None else "/")
        manifest = collect_artifacts(
            self._writer, self._source(), grading.artifacts, conventional=paths.logs_artifacts, workdir=workdir, prefix=grading.prefix
        )
        self._writer.add_bytes(f"{grading.prefix}artifacts/manifest.json", json.dumps(manifest, indent=2).encode())

    def _source(self) -> Source:
        channel = self._channel()
        if channel is None or channel.closed:
            return LocalSource((self._paths.logs_agent, self._paths.logs_verifier, self._paths.logs_artifacts))
        return FailingSource(cast(Source, channel))

    def _guarded(self, work: Callable[[], None]) -> None:
        if self.error is not None:
            return  # a tar that broke off in the middle cannot be continued
        self._deadline = Deadline(self._pass_seconds)
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the border: evidence must never cost the result
            self.error = f"{type(error).__name__}: {error}"
            sys.stderr.write(f"verifier: the logs cannot be kept: {self.error}\n")
