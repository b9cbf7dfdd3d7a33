"""Run what ``core.scripts`` plans: Pods of role ``score``, their results, and ``scripts.jsonl``, which commits what came out."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from seatrial import contract
from seatrial.api.evaljob import EvalJobSpec
from seatrial.api.names import LABEL_RETRY, LABEL_SCRIPT
from seatrial.contract import ContractBroken
from seatrial.core import naming
from seatrial.core.frozen import FrozenPlan
from seatrial.core.observe import PodView, parse_pod
from seatrial.core.plan import Hold
from seatrial.core.rows import Row
from seatrial.core.scores import as_trials
from seatrial.core.script_pod import ScriptUrls, build_script_pod, script_seconds
from seatrial.core.scripts import (
    ObservedScripts,
    ScriptOutcome,
    ScriptRun,
    from_lines,
    has_started,
    is_live,
    plan_scripts,
    read_result,
    refused_outcome,
    to_lines,
)
from seatrial.effects.aiostore import AsyncStore
from seatrial.effects.clock import Clock
from seatrial.effects.execute import STRICT, Executor
from seatrial.effects.kube import ApiUnavailable, Kube, MissingRight, QuotaExceeded, Rejected, core_path
from seatrial.effects.settings import Settings
from seatrial.effects.store import MAX_EXPIRES_SECONDS
from seatrial.errors import AlreadyExists, InvalidSpec, NotFound
from seatrial.scoring.harbor import all_rows
from seatrial.scoring.script import rewards_text

log = logging.getLogger(__name__)

ROUNDS: Final = 6
OUTCOMES_BYTES: Final = 1024 * 1024
EXPECTATION_SECONDS: Final = 60.0
"""A created Pod that the informer does not show for so long is no longer believed in."""


@dataclass(slots=True)
class ScriptState:
    """What one process knows of the scripts of one job; all of it can be read again."""

    outcomes: tuple[ScriptOutcome, ...] | None = None
    """Committed."""
    found: dict[ScriptRun, ScriptOutcome | None] = field(default_factory=dict)
    started: dict[ScriptRun, tuple[str, float]] = field(default_factory=dict)
    """Pods that we created and the informer has not shown: UID and time."""
    refused: dict[int, ScriptOutcome] = field(default_factory=dict)
    rewards_sha256: str | None = None
    hold: Hold | None = None


class ScriptRuns:
    """Runs the scripts of jobs whose trials are final."""

    def __init__(self, kube: Kube, store: AsyncStore, executor: Executor, *, settings: Settings, clock: Clock) -> None:
        self._kube, self._store, self._executor, self._settings, self._clock = kube, store, executor, settings, clock

    async def load(self, plan: FrozenPlan, state: ScriptState) -> None:
        """Read outcomes that an earlier process committed.

        Raises:
            Unavailable, Forbidden: the store.
        """
        if not plan.scripts or state.outcomes is not None:
            return
        try:
            state.outcomes = from_lines(await self._store.get(self._outcomes_key(plan), max_bytes=OUTCOMES_BYTES))
        except NotFound:
            return

    async def step(
        self,
        plan: FrozenPlan,
        spec: EvalJobSpec,
        final: Sequence[Row],
        state: ScriptState,
        *,
        pods: Mapping[str, PodView],
        gone: Mapping[str, PodView],
    ) -> float | None:
        """Go on until only time is left to do something; the answer is when to look again, or None once the outcomes are committed.

        Args:
            final: final rows in plan order: what the scripts read.

        Raises:
            Unavailable, Forbidden, NamespaceGone: the store or the API; the call may be repeated.
        """
        for _ in range(ROUNDS):
            if state.outcomes is not None:
                return None
            decided = plan_scripts(self._observe(plan, spec, state, pods, gone), self._clock.now())
            if decided.outcomes is not None:
                await self._commit(plan, decided.outcomes, state)
            elif decided.finds:
                found = await asyncio.gather(*(self._find(plan, run) for run in decided.finds))
                state.found.update(zip(decided.finds, found, strict=True))
            elif decided.creates and not spec.suspend and not self._is_held(state):
                await self._create(plan, spec, decided.creates[: spec.concurrency], final, state)
            else:
                waits = [decided.requeue_seconds]
                if state.hold is not None:
                    waits.append((state.hold.until - self._clock.now()).total_seconds())
                return max(0.1, min(waits))
        return 0.0

    # --- parts -----------------------------------------------------------------------------------------------------------------------

    def _observe(
        self, plan: FrozenPlan, spec: EvalJobSpec, state: ScriptState, pods: Mapping[str, PodView], gone: Mapping[str, PodView]
    ) -> ObservedScripts:
        now = self._clock.monotonic()
        for run, (uid, at) in list(state.started.items()):
            name = naming.script_pod_name(plan.job, plan.uid, run.script, run.retry)
            views = (view for view in (pods.get(name), gone.get(name)) if view is not None)
            if any(view.uid == uid for view in views) or now - at > EXPECTATION_SECONDS:
                del state.started[run]
        limits = self._settings.limits(pending_seconds=spec.timeouts.pending.seconds)
        for run, found in list(state.found.items()):
            pod = pods.get(naming.script_pod_name(plan.job, plan.uid, run.script, run.retry))
            # What the store did not have before, or while, this Pod runs, it may have at its end.
            if found is None and pod is not None and has_started(pod) and is_live(pod, now=self._clock.now(), limits=limits):
                del state.found[run]
        return ObservedScripts(
            job=plan.job,
            job_uid=plan.uid,
            scripts=plan.scripts,
            pods={name: pod for name, pod in pods.items() if pod.owner_uid == plan.uid},
            gone={name: pod for name, pod in gone.items() if pod.owner_uid == plan.uid},
            starting=frozenset(state.started),
            found=state.found,
            refused=state.refused,
            limits=limits,
            seconds=float(spec.scoring.script_timeout.seconds),
        )

    def _is_held(self, state: ScriptState) -> bool:
        if state.hold is not None and state.hold.until <= self._clock.now():
            state.hold = None
        return state.hold is not None

    async def _find(self, plan: FrozenPlan, run: ScriptRun) -> ScriptOutcome | None:
        key = naming.script_result_key(self._prefix(plan), run.script, run.retry)
        try:
            data = await self._store.get(key, max_bytes=contract.RESULT_BYTES)
            body = contract.verify_result(data, self._settings.job_key(plan.uid))
            return read_result(body, job_uid=plan.uid, run=run, script=plan.scripts[run.script])
        except NotFound:
            return None
        except (ContractBroken, InvalidSpec) as error:
            log.warning("script result without value", extra={"job": plan.job, "retry": run.retry, "reason": str(error)})
            return None

    async def _create(
        self, plan: FrozenPlan, spec: EvalJobSpec, runs: Sequence[ScriptRun], final: Sequence[Row], state: ScriptState
    ) -> None:
        held = await self._executor.ensure_secret(plan)
        if held is not None:
            state.hold = held.hold
            return
        prefix, pods = self._prefix(plan), self._settings.pods()
        if state.rewards_sha256 is None:
            data = rewards_text(all_rows(as_trials(final))).encode()
            await self._store.put(naming.script_rewards_key(prefix), data, content_type="application/x-ndjson")
            state.rewards_sha256 = hashlib.sha256(data).hexdigest()
        seconds = min(spec.timeouts.pending.seconds + script_seconds(spec, pods) + 3600, MAX_EXPIRES_SECONDS)
        for run in runs:
            urls = ScriptUrls(
                script=self._store.presign_get(plan.scripts[run.script].key, expires_seconds=seconds),
                rewards=self._store.presign_get(naming.script_rewards_key(prefix), expires_seconds=seconds),
                result=self._store.presign_put(naming.script_result_key(prefix, run.script, run.retry), expires_seconds=seconds),
            )
            body = build_script_pod(
                plan,
                spec,
                run,
                urls=urls,
                rewards_sha256=state.rewards_sha256,
                secret=naming.secret_name(plan.job, plan.uid),
                settings=pods,
            )
            # Whatever the store said before, the Pod of this post may answer, also where the post's own answer is lost.
            state.found.pop(run, None)
            try:
                pod = await self._post(plan, run, body)
            except (QuotaExceeded, MissingRight) as error:
                state.hold = self._executor.held(error).hold
                return
            except Rejected as error:
                state.refused[run.script] = refused_outcome(plan.scripts[run.script], str(error))
                continue
            state.started[run] = (pod.uid, self._clock.monotonic())
            log.info("pod of a metric script created", extra={"job": plan.job, "pod": pod.name})

    async def _post(self, plan: FrozenPlan, run: ScriptRun, body: Mapping[str, Any]) -> PodView:
        """The new Pod, or ours of that name from an earlier try."""
        name = body["metadata"]["name"]
        try:
            return parse_pod(await self._kube.request("POST", core_path("pods", namespace=plan.namespace), params=STRICT, body=dict(body)))
        except AlreadyExists:
            pass
        try:
            found = await self._kube.get(core_path("pods", namespace=plan.namespace, name=name))
        except NotFound as error:
            raise ApiUnavailable(f"Pod {name} existed and is gone: try again", retry_after=1.0) from error
        pod, labels = parse_pod(found), (found["metadata"].get("labels") or {})
        if pod.owner_uid != plan.uid or (labels.get(LABEL_SCRIPT), labels.get(LABEL_RETRY)) != (str(run.script), str(run.retry)):
            raise Rejected(f"Pod {name} exists in namespace {plan.namespace} and does not belong to this job: remove it")
        return pod

    async def _commit(self, plan: FrozenPlan, outcomes: tuple[ScriptOutcome, ...], state: ScriptState) -> None:
        for outcome in outcomes:
            if outcome.error is not None:
                log.info("metric script failed", extra={"job": plan.job, "reason": outcome.error.type})
        try:
            await self._store.put_new(self._outcomes_key(plan), to_lines(outcomes), content_type="application/x-ndjson")
        except AlreadyExists:
            # Another leader was faster, or our own answer was lost: what is there counts.
            await self.load(plan, state)
            return
        state.outcomes = outcomes

    def _prefix(self, plan: FrozenPlan) -> str:
        return naming.job_prefix(plan.namespace, plan.job, plan.uid)

    def _outcomes_key(self, plan: FrozenPlan) -> str:
        return naming.script_outcomes_key(self._prefix(plan))
