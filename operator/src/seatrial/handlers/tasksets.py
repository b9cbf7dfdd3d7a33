"""One pass over a Taskset: pin the members once per generation, write the status."""

from __future__ import annotations

import logging
from typing import Any

from seatrial.api.names import TASKSET
from seatrial.api.reasons import ConditionType, Reason
from seatrial.api.taskset import MAX_SAMPLE, Taskset, TasksetManifest, TasksetStatus
from seatrial.core.frozen import PlanRefused
from seatrial.core.observe import parse_time
from seatrial.core.status import State, condition_of, merge_conditions, short
from seatrial.effects.clock import Clock
from seatrial.effects.references import NotYet
from seatrial.effects.taskset_pin import PinnedSet, Pinner
from seatrial.errors import InvalidSpec, SeatrialError
from seatrial.handlers.cache import Raw
from seatrial.handlers.writer import StatusWriter

log = logging.getLogger(__name__)

LONGEST_WAIT_SECONDS = 60.0
HEALABLE = frozenset(
    {
        Reason.MANIFEST_INVALID,
        Reason.CROSS_NAMESPACE,
        Reason.REVISION_NOT_FOUND,
        Reason.TASK_NOT_FOUND,
        Reason.MEMBER_NOT_VERIFIED,
    }
)
"""What the store, the operator's configuration or a member can put right without a change of the Taskset."""


class TasksetPass:
    """Reconciles Tasksets."""

    def __init__(self, pinner: Pinner, writer: StatusWriter, clock: Clock) -> None:
        self._pinner, self._writer, self._clock = pinner, writer, clock

    async def run(self, body: Raw) -> float | None:
        """One pass; the answer is when to look again, in seconds.

        Raises:
            SeatrialError: the store or the API does not answer.
        """
        if body["metadata"].get("deletionTimestamp") or _is_settled(body):
            return None
        try:
            taskset = Taskset.parse(body)
            pinned = await self._pinner.pin(taskset)
        except InvalidSpec as error:
            await self._refuse(body, Reason.INVALID_SPEC, str(error))
        except NotYet as error:
            # A member that comes later wakes the set; the timer is for what no event brings.
            await self._refuse(body, error.reason, str(error), settled=not error.in_work)
            return self._wait(body)
        except PlanRefused as error:
            await self._refuse(body, error.reason, str(error))
            return self._wait(body) if error.reason in HEALABLE else None
        except SeatrialError as error:
            await self._refuse(body, Reason.OBJECT_STORE_UNAVAILABLE, f"{error}; tried again", settled=False)
            raise
        else:
            log.info("taskset pinned", extra={"taskset": _name(body), "members": len(pinned.members)})
            await self._writer.write(TASKSET, body, self._pinned_status(body, pinned))
        return None

    def _wait(self, body: Raw) -> float:
        condition = condition_of(body.get("status") or {}, ConditionType.PINNED)
        if condition is None:
            return 1.0
        since = parse_time(condition.get("lastTransitionTime"))
        waited = (self._clock.now() - since).total_seconds() if since else 0.0
        return min(LONGEST_WAIT_SECONDS, max(1.0, waited / 4))

    def _pinned_status(self, body: Raw, pinned: PinnedSet) -> dict[str, Any]:
        number = pinned.revision.number
        return TasksetStatus(
            observed_generation=body["metadata"]["generation"],
            revision=number,
            digest=pinned.revision.digest,
            tags=pinned.tags,
            members=len(pinned.members),
            manifest=TasksetManifest(ref=pinned.manifest_key, sha256=pinned.manifest_sha256),
            sample=tuple(member.ref for member in pinned.members[:MAX_SAMPLE]),
            conditions=merge_conditions(
                body.get("status") or {},
                {ConditionType.PINNED: State("True", Reason.MEMBERS_PINNED, f"revision {number} with {len(pinned.members)} tasks")},
                order=(ConditionType.PINNED,),
                generation=body["metadata"]["generation"],
                now=self._clock.now(),
            ),
        ).raw()

    async def _refuse(self, body: Raw, reason: Reason, message: str, *, settled: bool = True) -> None:
        """The last revision stays: jobs that name it go on."""
        status = dict(body.get("status") or {})
        conditions = merge_conditions(
            status,
            {ConditionType.PINNED: State("False", reason, short(message))},
            order=(ConditionType.PINNED,),
            generation=body["metadata"]["generation"],
            now=self._clock.now(),
        )
        status["conditions"] = [item.raw() for item in conditions]
        if settled:
            status["observedGeneration"] = body["metadata"]["generation"]
        else:
            status.pop("observedGeneration", None)  # whoever refers to this object waits for its judgement
        await self._writer.write(TASKSET, body, status)


def _is_settled(body: Raw) -> bool:
    """This generation was judged for good: members that change later change nothing."""
    status = body.get("status") or {}
    pinned = condition_of(status, ConditionType.PINNED)
    current = status.get("observedGeneration") == body["metadata"].get("generation")
    return current and pinned is not None and (pinned["status"] == "True" or pinned["reason"] not in HEALABLE)


def _name(body: Raw) -> str:
    return f"{body['metadata']['namespace']}/{body['metadata']['name']}"
