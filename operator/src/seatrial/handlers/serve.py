"""The operator's process: one event loop, its long-lived tasks in their order, and an orderly end.

Nobody supervises tasks in asyncio: the first one that ends ends the process, and the restart is the recovery. Order and figures:
``spec/operator.md`` sections 2 and 13.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import kopf

from seatrial.api.names import EVALJOB, TASK, TASKSET
from seatrial.core.observe import PodView
from seatrial.effects.aiostore import AsyncStore, ObjectStore
from seatrial.effects.builds import ImageBuilds
from seatrial.effects.clock import Clock, SystemClock
from seatrial.effects.credentials import bearer_of, headers_of
from seatrial.effects.events import EventPoster
from seatrial.effects.execute import Executor
from seatrial.effects.image_pins import ImagePins
from seatrial.effects.informer import PodInformer
from seatrial.effects.kube import Access, Kube
from seatrial.effects.lease import Elector, LeaseSettings
from seatrial.effects.metrics import Metrics
from seatrial.effects.planning import Planner
from seatrial.effects.queue import WorkQueue
from seatrial.effects.references import Objects, list_objects
from seatrial.effects.registry import Reach, Registry, docker_auths, registry_hosts
from seatrial.effects.revisions import Revisions
from seatrial.effects.scripts import ScriptRuns
from seatrial.effects.settings import Settings
from seatrial.effects.task_verify import TaskVerifier
from seatrial.effects.taskset_pin import Pinner
from seatrial.effects.traces import Tracer
from seatrial.effects.webhook import Webhook
from seatrial.effects.workloads import Workloads
from seatrial.errors import NotFound, SeatrialError
from seatrial.handlers.cache import Key, ObjectCache, Raw
from seatrial.handlers.health import Health, denied_check, heartbeat_check, informer_check, missed_check
from seatrial.handlers.reconcile import JobPass
from seatrial.handlers.register import kopf_settings, register
from seatrial.handlers.tasks import TaskPass
from seatrial.handlers.tasksets import TasksetPass
from seatrial.handlers.writer import StatusWriter

log = logging.getLogger(__name__)

DRAIN_SECONDS: Final = 10.0
FLUSH_SECONDS: Final = 2.0
QUICK_SECONDS: Final = 0.05
"""Shortest pause between passes of one object."""
TRIAL_SECONDS: Final = 0.0001
"""A job rests so long per trial after a pass: passes take a few per cent of the loop, whatever the size of the job."""


class TaskEnded(Exception):
    """A task that must run for ever ended."""


class Informers:
    """One informer per watched namespace, or one for all."""

    def __init__(self, informers: Iterable[PodInformer]) -> None:
        self.informers = tuple(informers)

    def pods(self, job_uid: str) -> Mapping[str, PodView]:
        return next((pods for item in self.informers if (pods := item.pods(job_uid))), {})

    def gone(self, job_uid: str) -> Mapping[str, PodView]:
        return next((pods for item in self.informers if (pods := item.gone(job_uid))), {})

    def forget(self, job_uid: str, names: Iterable[str] | None = None) -> None:
        for item in self.informers:
            item.forget(job_uid, names)

    def job_uids(self) -> frozenset[str]:
        return frozenset().union(*(item.job_uids() for item in self.informers))

    @property
    def count(self) -> int:
        return sum(item.count for item in self.informers)

    @property
    def last_seen(self) -> float:
        return min(item.last_seen for item in self.informers)

    async def synced(self) -> None:
        for item in self.informers:
            await item.synced.wait()


class Operator:
    """Everything that reconciles, without Kopf, Lease and signals: tests run it against their own API server."""

    def __init__(self, kube: Kube, store: ObjectStore, *, settings: Settings, metrics: Metrics, clock: Clock | None = None) -> None:
        clock = clock or SystemClock()
        self._kube, self._settings, self._metrics = kube, settings, metrics
        self.queue: WorkQueue[Key] = WorkQueue()
        self.cache = ObjectCache(self._changed)
        self._waiting: set[Key] = set()
        self._uids: dict[str, Key] = {}
        scopes: tuple[str | None, ...] = settings.namespaces or (None,)
        self.informers = Informers(
            PodInformer(
                kube,
                namespace=scope,
                changed=self._pods_changed,
                resync_seconds=settings.resync_pods_seconds,
                relisted=metrics.observe_relist,
            )
            for scope in scopes
        )
        self.scopes = scopes
        files = AsyncStore(store, concurrency=settings.s3_concurrency, metrics=metrics)
        self.events = EventPoster(kube, clock=clock, metrics=metrics, instance=settings.identity or "operator")
        self.webhook = Webhook(settings.webhook_url, headers=bearer_of(settings.webhook_token_file), clock=clock, metrics=metrics)
        self.tracer = Tracer(settings.otlp_endpoint, headers=headers_of(settings.otlp_headers_file), metrics=metrics)
        writer = StatusWriter(kube, self.cache, self.events, metrics)
        revisions, objects, registry = Revisions(files), Objects(kube), registry_client(settings)
        pins = ImagePins(registry, mirrors=settings.mirrors(), clock=clock) if settings.pin_images else None
        pinner = Pinner(files, revisions, objects, settings)
        executor = Executor(kube, files, settings=settings, clock=clock, metrics=metrics)
        self.images = ImageBuilds(
            kube,
            files,
            registry,
            settings=settings.builds(),
            pods=settings.pods(),
            concurrency=settings.build_concurrency,
            clock=clock,
            metrics=metrics,
            wake=self._pods_changed,
        )
        self.jobs = JobPass(
            pods=self.informers,
            planner=Planner(files, revisions, objects, pinner, settings, images=pins),
            store=files,
            executor=executor,
            scripts=ScriptRuns(kube, files, executor, settings=settings, clock=clock),
            writer=writer,
            settings=settings,
            clock=clock,
            metrics=metrics,
            webhook=self.webhook,
            tracer=self.tracer,
            workloads=Workloads(kube, enabled=settings.kueue, pods=settings.pods(), clock=clock, ask_seconds=settings.kueue_ask_seconds),
            images=self.images,
        )
        self._passes: dict[str, Callable[[Raw], Awaitable[float | None]]] = {
            TASK: TaskPass(TaskVerifier(files, revisions, settings), writer, clock).run,
            TASKSET: TasksetPass(pinner, writer, clock).run,
            EVALJOB: self.jobs.run,
        }

    async def work(self) -> None:
        """Take keys for ever; several of these run side by side."""
        while True:
            key = await self.queue.take()
            started, failed = time.monotonic(), False
            try:
                again = await self._pass(key)
            except SeatrialError as error:
                failed = True
                log.warning("pass failed", extra={"object": _text(key), "reason": type(error).__name__, "error": str(error)[:500]})
            except Exception:
                failed = True
                log.exception("pass failed with a bug", extra={"object": _text(key)})
            seconds = time.monotonic() - started
            self._metrics.pass_seconds.labels(key.kind, "failed" if failed else "done").observe(seconds)
            trials = self.jobs.trial_count(key.namespace, key.name) if key.kind == EVALJOB else 0
            self.queue.rest(key, min(self._settings.pass_interval_seconds, max(QUICK_SECONDS, TRIAL_SECONDS * trials)))
            self.queue.done(key, failed=failed)
            if not failed and again is not None:
                self.queue.add(key, again)

    async def _pass(self, key: Key) -> float | None:
        body = self.cache.get(key)
        if body is None:
            self._waiting.discard(key)
            self.queue.forget(key)
            if key.kind == EVALJOB:
                self.jobs.forget(key.namespace, key.name)
            return None
        again = await self._passes[key.kind](body)
        # What waits for a reference is woken by whatever changes, beside its own timer.
        if again is not None and (key.kind == TASKSET or (key.kind == EVALJOB and not (body.get("status") or {}).get("plan"))):
            self._waiting.add(key)
        else:
            self._waiting.discard(key)
        return again

    async def resync(self) -> None:
        """LIST our objects for ever beside Kopf's watch."""
        while True:
            await asyncio.sleep(self._settings.resync_jobs_seconds * random.uniform(0.9, 1.1))
            try:
                await self.list_once()
            except SeatrialError as error:
                log.warning("objects not listed", extra={"reason": type(error).__name__, "error": str(error)[:300]})

    async def list_once(self) -> None:
        """One LIST of all kinds, merged into the cache.

        Raises:
            NotFound: the CRDs are not installed. Other SeatrialErrors: the API.
        """
        for kind in (TASK, TASKSET, EVALJOB):
            for scope in self.scopes:
                began = time.monotonic()
                bodies = await list_objects(self._kube, kind, scope)
                self.cache.merge(kind, bodies, began=began, namespace=scope)
        known = {body["metadata"]["uid"] for _, body in self.cache.all(EVALJOB)}
        for uid in self.informers.job_uids() - known:
            self.informers.forget(uid)

    def refresh_metrics(self) -> None:
        """Set the gauges that are computed on demand."""
        metrics = self._metrics
        metrics.show_jobs([body for _, body in self.cache.all(EVALJOB)])
        metrics.queue_depth.set(self.queue.depth)
        metrics.queue_age.set(self.queue.oldest_seconds)
        metrics.informer_pods.set(self.informers.count)
        metrics.informer_age.set(time.monotonic() - self.informers.last_seen)

    def _changed(self, key: Key) -> None:
        body = self.cache.get(key)
        if key.kind == EVALJOB and body is not None:
            self._uids[body["metadata"]["uid"]] = key
        elif key.kind == EVALJOB:
            self._uids = {uid: other for uid, other in self._uids.items() if other != key}
        self.queue.add(key)
        if key.kind in (TASK, TASKSET):
            for waiting in self._waiting:
                if waiting != key:
                    self.queue.add(waiting)

    def _pods_changed(self, job_uid: str) -> None:
        key = self._uids.get(job_uid)
        if key is not None:
            self.queue.add(key)


def registry_client(settings: Settings) -> Registry:
    """For what is built already, and for the digests of images that tasks name: those are asked for within the bounds of ``Reach``."""
    builds = settings.builds()
    insecure = (builds.repository.partition("/")[0],) if builds.insecure and builds.repository else ()
    auths = docker_auths(Path(settings.registry_auth_file)) if settings.registry_auth_file else {}
    mirrors = settings.mirrors()
    own = registry_hosts((builds.repository, builds.pull_repository, *mirrors.sources.values(), mirrors.prefix, *auths))
    reach = Reach(trusted=own, blocked=settings.blocked_networks())
    return Registry(insecure=insecure, auths=auths, ca=settings.s3_ca, reach=reach)


async def serve(*, settings: Settings, access: Access, store: ObjectStore) -> None:
    """Run until SIGTERM, or until a task ends; the caller exits the process.

    Raises:
        TaskEnded: something that must run for ever did not.
    """
    loop = asyncio.get_running_loop()
    term = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, term.set)
    metrics = Metrics()
    kube = Kube(
        access,
        write_rate=settings.write_rate,
        write_burst=settings.write_burst,
        concurrency=settings.request_concurrency,
        observer=metrics.observe_request,
    )
    async with kube:
        operator = Operator(kube, store, settings=settings, metrics=metrics)
        elector = Elector(kube, _lease(settings, access), changed=metrics.observe_leader)
        kube.fence = elector.holds
        health = Health(metrics, refresh=operator.refresh_metrics)
        health.live["loop"] = heartbeat_check(metrics)
        health.live["api"] = denied_check(lambda: kube.denied_since)
        health.ready["leader"] = lambda: None if elector.is_leader else "another replica leads"
        health.ready["pods"] = lambda: None if all(item.synced.is_set() for item in operator.informers.informers) else "not synced"
        await health.start(host=settings.listen_host, port=settings.listen_port)
        ticking = asyncio.create_task(metrics.tick(), name="tick")
        try:
            if await _first(elector.acquire(), term.wait()):
                await _lead(operator, elector, health, settings=settings, access=access, term=term)
        finally:
            ticking.cancel()
            await health.stop()


async def _lead(operator: Operator, elector: Elector, health: Health, *, settings: Settings, access: Access, term: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    tasks = [asyncio.create_task(elector.run(), name="lease")]
    tasks += [asyncio.create_task(item.run(), name="informer") for item in operator.informers.informers]
    stop, ready = asyncio.Event(), asyncio.Event()
    try:
        await _until(operator.informers.synced(), tasks, term)
        if term.is_set():
            await elector.release()
            return
        await _install(operator)
        await operator.images.recall(operator.scopes)
        tasks += [asyncio.create_task(operator.work(), name=f"worker-{number}") for number in range(settings.workers)]
        registry = kopf.OperatorRegistry()
        register(registry=registry, access=access, cache=operator.cache)
        scope: dict[str, Any] = {"namespaces": list(settings.namespaces)} if settings.namespaces else {"clusterwide": True}
        watching = asyncio.create_task(
            kopf.operator(registry=registry, settings=kopf_settings(), stop_flag=stop, ready_flag=ready, **scope), name="kopf"
        )
        tasks.append(watching)
        await _until(ready.wait(), tasks, term)
        # Kopf has replaced our handlers; both signals must go through the orderly end below.
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, term.set)
        tasks.append(asyncio.create_task(operator.resync(), name="resync"))
        health.live["pods"] = informer_check(lambda: operator.informers.last_seen, lambda: operator.informers.count)
        health.live["watch"] = missed_check(operator.cache.missed_seconds)
        log.info("operator runs", extra={"identity": settings.identity, "namespaces": settings.namespaces or "all"})
        await _until(term.wait(), tasks, term)
        log.info("stopping")
        watchdog = _arm_watchdog(settings.stop_seconds)
        operator.queue.close()
        # Before Kopf stops: it cancels every task that was made after its start.
        await _first(operator.queue.idle(), asyncio.sleep(DRAIN_SECONDS))
        await _first(
            asyncio.gather(operator.events.flush(), operator.webhook.flush(), operator.tracer.flush()), asyncio.sleep(FLUSH_SECONDS)
        )
        # Nothing is written any more: the other replica need not wait for Kopf, which takes seconds to end.
        tasks[0].cancel()
        await asyncio.gather(tasks[0], return_exceptions=True)
        await elector.release()
        stop.set()
        await asyncio.wait([watching], timeout=DRAIN_SECONDS)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    watchdog.cancel()


async def _install(operator: Operator) -> None:
    """The CRDs must exist before Kopf starts, which does not look again.

    Raises:
        TaskEnded: they do not; the restart finds them.
    """
    try:
        await operator.list_once()
    except NotFound as error:
        raise TaskEnded("the CRDs are not installed: apply crds/ and wait") from error


async def _until(goal: Awaitable[Any], tasks: list[asyncio.Task[None]], term: asyncio.Event) -> None:
    """Wait for ``goal`` or SIGTERM.

    Raises:
        TaskEnded: one of ``tasks`` ended first.
    """
    waiting = [asyncio.ensure_future(goal), asyncio.ensure_future(term.wait())]
    try:
        await asyncio.wait([*waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
        ended = next((task for task in tasks if task.done()), None)
        if ended is not None and not term.is_set():
            fault = ended.exception() if not ended.cancelled() else None
            raise TaskEnded(f"task {ended.get_name()} ended") from fault
    finally:
        for future in waiting:
            future.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _first(goal: Awaitable[Any], other: Awaitable[Any]) -> bool:
    """Whether ``goal`` was done before ``other``; the loser is cancelled.

    Raises: what ``goal`` raises.
    """
    futures = [asyncio.ensure_future(goal), asyncio.ensure_future(other)]
    try:
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        if futures[0].done():
            futures[0].result()
            return True
        return False
    finally:
        for future in futures:
            future.cancel()
        await asyncio.gather(*futures, return_exceptions=True)


def _lease(settings: Settings, access: Access) -> LeaseSettings:
    return LeaseSettings(
        namespace=settings.lease_namespace or access.namespace,
        name=settings.lease_name,
        identity=settings.identity,
        duration_seconds=settings.lease_duration_seconds,
        renew_deadline_seconds=settings.renew_deadline_seconds,
        retry_seconds=settings.lease_retry_seconds,
    )


def _arm_watchdog(seconds: float) -> threading.Timer:
    """End the process even if the loop hangs; the kubelet would do it a few seconds later."""
    timer = threading.Timer(seconds, os._exit, args=(1,))
    timer.daemon = True
    timer.start()
    return timer


def _text(key: Key) -> str:
    return f"{key.kind}/{key.namespace}/{key.name}"
