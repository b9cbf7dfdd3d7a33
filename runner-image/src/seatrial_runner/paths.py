"""Every path the runner uses, in its own containers and in the environment, as one value: tests move them all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from seatrial import contract

VAR_TERMINATION_LOG = "SEATRIAL_TERMINATION_LOG"


class Paths(NamedTuple):
    # In our own containers.
    task: str = contract.TASK_DIR
    bin: str = contract.BIN_DIR
    net: str = contract.NET_DIR
    etc: str = "/etc"
    """Of a container of ours: its ``hosts`` and ``resolv.conf`` are the Pod's."""
    run: str = contract.RUN_DIR
    agent_socket: str = contract.AGENT_SOCKET
    verifier_socket: str = contract.VERIFIER_SOCKET
    tools: str = "/opt/seatrial/bin"
    """Where the runner image carries envd and seatrial-env."""
    desk: str = contract.DESK_DIR
    script: str = contract.SCRIPT_DIR
    script_out: str = contract.SCRIPT_OUT_DIR
    termination_log: str = "/dev/termination-log"
    scratch: str = "/tmp"
    # In the environment; the two kinds of logs are mounted at the same paths in the verifier.
    logs_agent: str = contract.LOGS_AGENT
    logs_verifier: str = contract.LOGS_VERIFIER
    logs_artifacts: str = contract.LOGS_ARTIFACTS
    tests: str = "/tests"
    solution: str = "/solution"
    environment_root: str = "/"
    programs: tuple[str, ...] | None = None
    """Where changed programs are counted; None: where the environment says that it has them."""

    @property
    def input(self) -> str:
        return f"{self.task}/{contract.INPUT_FILE}"

    @property
    def agent_lock(self) -> str:
        return self._in_run(contract.AGENT_LOCK)

    @property
    def agent_end(self) -> str:
        return self._in_run(contract.AGENT_END)

    def step_end(self, index: int) -> str:
        return self._in_run(contract.STEP_END).format(index=index)

    def step_answer(self, index: int) -> str:
        return self._in_run(contract.STEP_ANSWER).format(index=index)

    @property
    def secrets_socket(self) -> str:
        return self._in_run(contract.SECRETS_SOCKET)

    def _in_run(self, path: str) -> str:
        return self.run + path.removeprefix(contract.RUN_DIR)


def paths_of(environ: Mapping[str, str]) -> Paths:
    """The paths of a trial Pod; only the termination message may be elsewhere."""
    return Paths(termination_log=environ.get(VAR_TERMINATION_LOG, Paths().termination_log))
