"""What the verifier knows of a trial, or of one step of it: times, rewards, and the first error, which wins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from seatrial.contract import AgentAbout, AgentEnd, ErrorInfo, Measures, Span, TrialInput
from seatrial_runner.channel import ChannelError
from seatrial_runner.clock import Timer, utc_now
from seatrial_runner.connect import channel_fault
from seatrial_runner.faults import Fault, print_traceback, runner_crashed
from seatrial_runner.rewards import Rewards


class Report:
    """Filled while the verifier works. ``name`` is that of the step, or empty for the trial."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.timer = Timer()
        self.spans: dict[str, Span] = {}
        self.first_agent: Span | None = None
        """When an agent worked in this environment first, in an earlier step too."""
        self.agent_result: dict[str, Any] | None = None
        self.about: AgentAbout | None = None
        """Name and version, where the agent says them itself."""
        self.error: ErrorInfo | None = None
        self.error_at: str | None = None
        self.rewards: Rewards | None = None
        self.graded = False
        """The test script was to be run."""
        self.is_handed_over = False
        """The agent is done and a separate verifier comes next."""
        self.measures: Measures = {}
        """What the task's own metrics found."""
        self.document: Mapping[str, Any] | None = None
        """The agent's trajectory, where it is valid."""
        self.trajectory: str | None = None
        """``valid``, or what is wrong with the agent's trajectory; None without one."""
        self.tampered = False
        self.leftover_processes = 0
        """What the agent left running when the tests began."""
        self.changed_tools = 0
        """Programs of the environment that changed while the agent ran: the tests may have run one of them."""
        self.changed_names: tuple[str, ...] = ()

    @property
    def values(self) -> Mapping[str, float] | None:
        return None if self.rewards is None else self.rewards.values

    def note_unknown(self, why: str) -> None:
        """Something may have changed that the tests use, and it cannot be told: that counts as one that did."""
        self.changed_tools = max(1, self.changed_tools)
        self.changed_names = (*self.changed_names, f"unknown: {why}")

    def fail(self, error: Fault | ErrorInfo) -> None:
        """Record ``error`` unless there is one."""
        if self.error is None:
            self.error = error.info() if isinstance(error, Fault) else error
            self.error_at = utc_now()

    def take_agent_end(self, end: AgentEnd) -> None:
        self.spans |= end["spans"]
        self.first_agent = self.first_agent or end["spans"].get("agent_setup") or end["spans"].get("agent_execution")
        self.agent_result = end["result"]
        self.about = end.get("agent")
        if end["error"] is not None:
            self.fail(end["error"])

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Times a phase and records what ends it early."""
        timer = Timer()
        try:
            yield
        except Fault as fault:
            self.fail(fault)
        except ChannelError as error:
            self.fail(channel_fault(error, "the verifier worked"))
        except Exception as error:  # noqa: BLE001 - the border: evidence and verdict must come, whatever breaks
            print_traceback()
            self.fail(runner_crashed("verifier runner", f"{type(error).__name__}: {error}"))
        finally:
            self.spans[name] = timer.span()


def is_to_be_graded(trial: TrialInput, end: AgentEnd) -> bool:
    """Harbor's rule: an error of the preparation is never graded; one of the agent as the table says."""
    from seatrial_runner.result import policy_of

    if trial["verifier"]["disable"]:
        return False
    error = end["error"]
    return error is None or ("agent_execution" in end["spans"] and policy_of(trial, error["type"]).grade)
