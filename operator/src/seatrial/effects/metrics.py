"""Prometheus metrics. Names are stable; no label carries the name of a job or a trial.

Why a class and an own registry: tests make as many as they like, and nothing is registered at import.
"""

from __future__ import annotations

import asyncio
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from seatrial import __version__

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
TICK_SECONDS: Final = 0.1


class Metrics:
    """All metrics of one operator process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        registry = self.registry
        Gauge("seatrial_build_info", "Version of the operator.", ["version"], registry=registry).labels(__version__).set(1)
        self.api_requests = Counter(
            "seatrial_api_requests", "Requests to the Kubernetes API.", ["verb", "resource", "code"], registry=registry
        )
        self.api_seconds = Histogram(
            "seatrial_api_request_seconds", "Time until the answer of the Kubernetes API.", ["verb", "resource"], registry=registry
        )
        self.store_requests = Counter(
            "seatrial_store_requests", "Calls of the object store, presigning excepted.", ["operation", "outcome"], registry=registry
        )
        self.trials_ended = Counter("seatrial_trials_ended", "Ended Pods of trials.", ["outcome", "reason", "cause"], registry=registry)
        self.pods_created = Counter("seatrial_pods_created", "Pods created for trials.", registry=registry)
        self.pods_deleted = Counter("seatrial_pods_deleted", "Pods of trials deleted.", registry=registry)
        self.phase_seconds = Histogram(
            "seatrial_trial_phase_seconds",
            "Duration of the phases of trials.",
            ["phase"],
            buckets=(0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 10800),
            registry=registry,
        )
        self.jobs = Gauge("seatrial_jobs", "EvalJobs by phase.", ["phase"], registry=registry)
        self.jobs_ended = Counter("seatrial_jobs_ended", "Ended EvalJobs.", ["phase", "reason"], registry=registry)
        self.queue_depth = Gauge("seatrial_queue_depth", "Keys that wait for a pass.", registry=registry)
        self.queue_age = Gauge("seatrial_queue_oldest_seconds", "Age of the oldest waiting key.", registry=registry)
        self.pass_seconds = Histogram("seatrial_pass_seconds", "Duration of one pass.", ["kind", "outcome"], registry=registry)
        self.loop_lag = Gauge("seatrial_loop_lag_seconds", "Lag of the event loop, the last tick.", registry=registry)
        self.loop_lag_max = Gauge("seatrial_loop_lag_max_seconds", "Longest lag of the event loop so far.", registry=registry)
        self.leader = Gauge("seatrial_leader", "1 while this replica holds the Lease.", registry=registry)
        self.informer_pods = Gauge("seatrial_informer_pods", "Pods in the informer.", registry=registry)
        self.informer_age = Gauge("seatrial_informer_age_seconds", "Time since the informer heard of anything.", registry=registry)
        self.relists = Counter("seatrial_informer_relists", "Repeated LISTs of Pods.", registry=registry)
        self.differences = Counter(
            "seatrial_informer_differences", "Differences that repeated LISTs found; not 0 means lost events.", registry=registry
        )
        self.status_writes = Counter("seatrial_status_writes", "Status patches.", ["kind", "outcome"], registry=registry)
        self.events_posted = Counter("seatrial_events_posted", "Kubernetes Events.", ["outcome"], registry=registry)
        self.heartbeat = 0.0
        """Loop time of the last tick."""

    def observe_request(self, verb: str, resource: str, code: str, seconds: float) -> None:
        """For ``Kube``."""
        self.api_requests.labels(verb, resource, code).inc()
        if verb != "WATCH":
            self.api_seconds.labels(verb, resource).observe(seconds)

    def observe_relist(self, differences: int) -> None:
        """For the informer."""
        self.relists.inc()
        self.differences.inc(differences)

    async def tick(self) -> None:
        """Measure the loop's lag for ever: how late a sleep of 100 ms returns."""
        loop, worst = asyncio.get_running_loop(), 0.0
        while True:
            due = loop.time() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            self.heartbeat = loop.time()
            lag = max(0.0, self.heartbeat - due)
            worst = max(worst, lag)
            self.loop_lag.set(lag)
            self.loop_lag_max.set(worst)

    def render(self) -> bytes:
        """In the text format."""
        return generate_latest(self.registry)
