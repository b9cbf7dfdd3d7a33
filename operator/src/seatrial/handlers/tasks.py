"""One pass over a Task: verify the archive once per generation, write the status."""

from __future__ import annotations

import logging
from typing import Any

from seatrial.api.meta import Condition
from seatrial.api.names import TASK
from seatrial.api.reasons import ConditionType, Reason
from seatrial.api.task import Task, TaskStatus
from seatrial.core.status import State, condition_of, merge_conditions, short
from seatrial.effects.clock import Clock
from seatrial.effects.task_verify import Refused, TaskVerifier, Verified, merge_tags
from seatrial.errors import Forbidden, InvalidSpec, SeatrialError
from seatrial.handlers.cache import Raw
from seatrial.handlers.writer import StatusWriter

log = logging.getLogger(__name__)

RETRY_SECONDS = 30.0


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
            return RETRY_SECONDS if error.retry else None
        except (SeatrialError, OSError) as error:
            reason = Reason.ARCHIVE_ACCESS_DENIED if isinstance(error, Forbidden) else Reason.OBJECT_STORE_UNAVAILABLE
            await self._refuse(body, reason, f"{error}; tried again", settled=False)
            raise
        else:
            log.info("task verified", extra={"task": _name(body), "revision": verified.revision.number})
            await self._writer.write(TASK, body, self._verified_status(body, task, verified))
        return None

    def _verified_status(self, body: Raw, task: Task, verified: Verified) -> dict[str, Any]:
        previous = body.get("status") or {}
        number = verified.revision.number
        status = TaskStatus(
            observed_generation=body["metadata"]["generation"],
            revision=number,
            digest=verified.revision.digest,
            tags=merge_tags(previous.get("tags") or {}, task.spec.tags, number),
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
    """This generation was judged for good: an archive is not downloaded twice."""
    status = body.get("status") or {}
    return (
        status.get("observedGeneration") == body["metadata"].get("generation") and condition_of(status, ConditionType.VERIFIED) is not None
    )


def _name(body: Raw) -> str:
    return f"{body['metadata']['namespace']}/{body['metadata']['name']}"
