"""One pass over a Task: verify the archive once per generation, write the status."""

from __future__ import annotations

import logging
from typing import Any, Final

from seatrial.api.meta import Condition
from seatrial.api.names import TASK
from seatrial.api.reasons import ConditionType, Reason
from seatrial.api.task import Task, TaskStatus
from seatrial.core.observe import parse_time
from seatrial.core.status import State, condition_of, merge_conditions, short
from seatrial.effects.clock import Clock
from seatrial.effects.task_verify import Refused, TaskVerifier, Verified
from seatrial.errors import Forbidden, InvalidSpec, SeatrialError
from seatrial.handlers.cache import Raw
from seatrial.handlers.writer import StatusWriter

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 30.0
LONGEST_HEAL_SECONDS: Final = 600.0
HEALABLE: Final = frozenset(
    {
        Reason.TASK_ARCHIVE_MISSING,
        Reason.TASK_ARCHIVE_CORRUPT,
        Reason.ARCHIVE_TOO_LARGE,
        Reason.CROSS_NAMESPACE,
        Reason.REVISION_CONFLICT,
        Reason.REVISION_NOT_FOUND,
    }
)
"""What the store or the operator's configuration can put right without a change of the Task."""


class TaskPass:
    """Reconciles Tasks."""

    def __init__(self, verifier: TaskVerifier, writer: StatusWriter, clock: Clock) -> None:
        self._verifier, self._writer, self._clock = verifier, writer, clock

    async def run(self, body: Raw) -> float | None:
        """One pass; the answer is when to look again, in seconds.

        Raises:
            SeatrialError: the store or the API does not answer; the condition says so where it could be written.
        """
        if body["metadata"].get("deletionTimestamp") or _is_settled(body):
            return None
        try:
            task = Task.parse(body)
            verified = await self._verifier.verify(task)
        except InvalidSpec as error:
            await self._refuse(body, Reason.INVALID_SPEC, str(error))
        except Refused as error:
            log.info("task refused", extra={"task": _name(body), "reason": error.reason.value})
            await self._refuse(body, error.reason, str(error), settled=not error.retry)
            if error.retry:
                return RETRY_SECONDS
            return self._heal_wait(body) if error.reason in HEALABLE else None
        except (SeatrialError, OSError) as error:
            reason = Reason.ARCHIVE_ACCESS_DENIED if isinstance(error, Forbidden) else Reason.OBJECT_STORE_UNAVAILABLE
            await self._refuse(body, reason, f"{error}; tried again", settled=False)
            raise
        else:
            log.info("task verified", extra={"task": _name(body), "revision": verified.revision.number})
            await self._writer.write(TASK, body, self._verified_status(body, verified))
        return None

    def _heal_wait(self, body: Raw) -> float:
        """Until the archive is looked at again, in seconds: longer the longer it has been bad."""
        condition = condition_of(body.get("status") or {}, ConditionType.VERIFIED)
        since = parse_time(condition["lastTransitionTime"]) if condition is not None and condition["status"] == "False" else None
        waited = (self._clock.now() - since).total_seconds() if since else 0.0
        return min(LONGEST_HEAL_SECONDS, max(RETRY_SECONDS, waited / 4))

    def _verified_status(self, body: Raw, verified: Verified) -> dict[str, Any]:
        number = verified.revision.number
        status = TaskStatus(
            observed_generation=body["metadata"]["generation"],
            revision=number,
            digest=verified.revision.digest,
            tags=verified.tags,
            native_task_id=verified.native_id,
            summary=verified.summary,
            conditions=self._conditions(body, State("True", Reason.ARCHIVE_VERIFIED, f"revision {number}")),
        )
        return status.raw()

    async def _refuse(self, body: Raw, reason: Reason, message: str, *, settled: bool = True) -> None:
        """The last revision stays: jobs that pinned it go on."""
        status = dict(body.get("status") or {})
        status["conditions"] = [item.raw() for item in self._conditions(body, State("False", reason, short(message)))]
        if settled:
            status["observedGeneration"] = body["metadata"]["generation"]
        else:
            status.pop("observedGeneration", None)  # whoever refers to this object waits for its judgement
        await self._writer.write(TASK, body, status)

    def _conditions(self, body: Raw, state: State) -> tuple[Condition, ...]:
        return merge_conditions(
            body.get("status") or {},
            {ConditionType.VERIFIED: state},
            order=(ConditionType.VERIFIED,),
            generation=body["metadata"]["generation"],
            now=self._clock.now(),
        )


def _is_settled(body: Raw) -> bool:
    """This generation was judged for good: a verified archive is not downloaded twice."""
    status = body.get("status") or {}
    verified = condition_of(status, ConditionType.VERIFIED)
    current = status.get("observedGeneration") == body["metadata"].get("generation")
    return current and verified is not None and (verified["status"] == "True" or verified["reason"] not in HEALABLE)


def _name(body: Raw) -> str:
    return f"{body['metadata']['namespace']}/{body['metadata']['name']}"
