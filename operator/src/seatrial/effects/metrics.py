"""Prometheus metrics. Names are stable and every label is bounded: words that a Pod reports count only when they are known.

Names of jobs are on few gauges only, for the newest jobs; no label carries the name of a trial. ``docs/metrics.md`` is made from here.
Why a class and an own registry: tests make as many as they like, and nothing is registered at import.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections import Counter as Count
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from seatrial import __version__
from seatrial.api.evaljob import TERMINAL_PHASES
from seatrial.api.reasons import Reason
from seatrial.core.observe import PodView
from seatrial.core.policy import POLICIES, Budget
from seatrial.core.rows import Outcome, Row
from seatrial.core.spans import TOTAL, VERDICT_PHASES, pod_spans
from seatrial.harbor_errors import ERROR_POLICIES
from seatrial.scoring.headline import headline

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
TICK_SECONDS: Final = 0.1
OTHER: Final = "other"
"""Label for a word that is not known."""
REASONS: Final = frozenset(Reason) | frozenset(ERROR_POLICIES)
REPORTED_PHASES: Final = frozenset({*VERDICT_PHASES, TOTAL})
JOB_PHASES: Final = ("Pending", "Running", "Suspended", *sorted(TERMINAL_PHASES))
TOKENS: Final = {"n_input_tokens": "input", "n_cache_tokens": "cache", "n_output_tokens": "output"}
OUTCOMES: Final = get_args(Outcome)
STATES: Final = ("pending", "running", "scored", "errored", "cancelled")
FIRST_ENDS: Final = (
    ("Completed", Reason.ALL_SCORED),
    ("Completed", Reason.SOME_ERRORED),
    ("Failed", Reason.NOTHING_SCORED),
    ("Failed", Reason.THRESHOLD_NOT_MET),
    ("Cancelled", Reason.CANCELLED),
)
"""Ends of jobs that are counted from 0 on."""
NAMED_JOBS: Final = 100
"""Jobs that have series of their own; the newest ones."""


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
        self.store_seconds = Histogram(
            "seatrial_store_request_seconds", "Duration of successful calls of the object store.", ["operation"], registry=registry
        )
        self.trials_ended = Counter(
            "seatrial_trials_ended",
            "Ended Pods of trials; reason and cause of those without a score.",
            ["outcome", "reason", "cause"],
            registry=registry,
        )
        self.trials_tampered = Counter("seatrial_trials_tampered", "Trials whose agent had planted a reward file.", registry=registry)
        self.rewards = Histogram(
            "seatrial_trial_reward",
            "Rewards of scored trials, under the key reward.",
            buckets=(0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1),
            registry=registry,
        )
        self.tokens = Counter(
            "seatrial_trial_tokens",
            "Tokens that agents told of, by their ended Pods' outcome; cache is a part of input.",
            ["evaljob_namespace", "kind", "outcome"],
            registry=registry,
        )
        self.cost = Counter(
            "seatrial_trial_cost_usd",
            "US dollars that agents told of, by their ended Pods' outcome; retried Pods were paid too.",
            ["evaljob_namespace", "outcome"],
            registry=registry,
        )
        self.trials = Gauge("seatrial_trials", "Trials of the EvalJobs that exist, by state.", ["state"], registry=registry)
        self.concurrency = Gauge("seatrial_concurrency", "Trial Pods that EvalJobs at work may have at a time, in sum.", registry=registry)
        self.pods_created = Counter("seatrial_pods_created", "Pods created for trials.", registry=registry)
        self.pods_deleted = Counter("seatrial_pods_deleted", "Pods of trials deleted.", registry=registry)
        self.phase_seconds = Histogram(
            "seatrial_trial_phase_seconds",
            "Duration of the phases of trials; those of the Pod in whole seconds.",
            ["phase"],
            buckets=(0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 10800),
            registry=registry,
        )
        self.build_seconds = Histogram(
            "seatrial_image_build_seconds",
            "Duration of builds of images in the cluster, from the creation of the Pod to its end.",
            ["outcome"],
            buckets=(10, 30, 60, 120, 300, 600, 1800, 3600),
            registry=registry,
        )
        for outcome in ("pushed", "failed"):
            self.build_seconds.labels(outcome)
        self.jobs = Gauge("seatrial_jobs", "EvalJobs by phase.", ["phase"], registry=registry)
        self.job_trials = Gauge(
            "seatrial_job_trials",
            f"Trials of each of the {NAMED_JOBS} newest EvalJobs, by state.",
            ["evaljob_namespace", "evaljob", "state"],
            registry=registry,
        )
        self.job_mean = Gauge(
            "seatrial_job_mean",
            "Mean of an EvalJob's first metric over the scored trials so far; absent while nothing is scored.",
            ["evaljob_namespace", "evaljob"],
            registry=registry,
        )
        self.job_mean_zero_filled = Gauge(
            "seatrial_job_mean_zero_filled",
            "The same over all ended trials with a missing reward as 0, as Harbor's documents have it.",
            ["evaljob_namespace", "evaljob"],
            registry=registry,
        )
        self.job_started = Gauge(
            "seatrial_job_start_time_seconds",
            "When an EvalJob's plan was frozen, in Unix time.",
            ["evaljob_namespace", "evaljob"],
            registry=registry,
        )
        self.jobs_ended = Counter("seatrial_jobs_ended", "Ended EvalJobs.", ["phase", "reason"], registry=registry)
        self.queue_depth = Gauge("seatrial_queue_depth", "Keys that wait for a pass.", registry=registry)
        self.queue_age = Gauge("seatrial_queue_oldest_seconds", "Age of the oldest waiting key.", registry=registry)
        self.pass_seconds = Histogram("seatrial_pass_seconds", "Duration of one pass.", ["kind", "outcome"], registry=registry)
        self.loop_lag = Gauge("seatrial_loop_lag_seconds", "Lag of the event loop, the last tick.", registry=registry)
        self.loop_lag_max = Gauge("seatrial_loop_lag_max_seconds", "Longest lag of the event loop so far.", registry=registry)
        self.loop_own_lag_max = Gauge(
            "seatrial_loop_own_lag_max_seconds",
            "Longest lag of the event loop so far that the CPU time of the process accounts for; the rest is a machine that had no time.",
            registry=registry,
        )
        self.leader = Gauge("seatrial_leader", "1 while this replica holds the Lease.", registry=registry)
        self.elections = Counter("seatrial_elections", "Times that this replica got the Lease.", registry=registry)
        self.informer_pods = Gauge("seatrial_informer_pods", "Pods in the informer.", registry=registry)
        self.informer_age = Gauge("seatrial_informer_age_seconds", "Time since the informer heard of anything.", registry=registry)
        self.relists = Counter("seatrial_informer_relists", "Repeated LISTs of Pods.", registry=registry)
        self.differences = Counter(
            "seatrial_informer_differences", "Differences that repeated LISTs found; not 0 means lost events.", registry=registry
        )
        self.status_writes = Counter("seatrial_status_writes", "Status patches.", ["kind", "outcome"], registry=registry)
        self.events_posted = Counter("seatrial_events_posted", "Kubernetes Events.", ["outcome"], registry=registry)
        self.webhooks = Counter("seatrial_webhooks", "Ends of EvalJobs posted to the webhook.", ["outcome"], registry=registry)
        for outcome in ("posted", "failed", "dropped"):
            self.webhooks.labels(outcome)
        self.traces = Counter(
            "seatrial_traces", "Traces of ended Pods of trials, where an endpoint is set.", ["outcome"], registry=registry
        )
        for outcome in ("sent", "failed", "dropped"):
            self.traces.labels(outcome)
        # A counter that appears with its first event hides that event from rates.
        self.trials_ended.labels("scored", "", "")
        for reason, policy in POLICIES.items():
            self.trials_ended.labels("errored", reason, policy.cause)
            if policy.budget is not Budget.NONE:
                self.trials_ended.labels("retried", reason, policy.cause)
        for phase, end in FIRST_ENDS:
            self.jobs_ended.labels(phase, end)
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

    def observe_leader(self, leading: bool) -> None:
        """For the elector."""
        self.leader.set(int(leading))
        self.elections.inc(int(leading))

    def observe_row(self, row: Row, pod: PodView | None, *, namespace: str) -> None:
        """A Pod of a trial has ended; ``pod`` is its last view, if there is one."""
        for name, amount in row.usage.items():
            if name in TOKENS:
                self.tokens.labels(namespace, TOKENS[name], row.outcome).inc(amount)
            elif name == "cost_usd":
                self.cost.labels(namespace, row.outcome).inc(amount)
        error = row.error if row.outcome != "scored" else None
        reason = error.type if error else ""
        self.trials_ended.labels(row.outcome, reason if not error or reason in REASONS else OTHER, error.cause if error else "").inc()
        self.trials_tampered.inc(int(row.tampered))
        reward = (row.rewards or {}).get("reward")
        if row.outcome == "scored" and reward is not None and math.isfinite(reward):
            self.rewards.observe(reward)
        for phase, seconds in row.seconds.items():
            if phase in REPORTED_PHASES:
                self.phase_seconds.labels(phase).observe(seconds)
        for span in pod_spans(pod) if pod is not None else ():
            self.phase_seconds.labels(span.name).observe((span.end - span.begin).total_seconds())

    def show_jobs(self, bodies: Collection[Mapping[str, Any]]) -> None:
        """Set the gauges that describe the EvalJobs which exist; the standby shows none."""
        phases, trials, concurrency = Count[str](), Count[str](), 0
        for body in bodies:
            status = body.get("status") or {}
            phase = status.get("phase") or "Pending"
            phases[phase] += 1
            for outcome in OUTCOMES:
                # From 0 on: see FIRST_ENDS.
                self.cost.labels(body["metadata"]["namespace"], outcome)
            trials.update({state: (status.get("trials") or {}).get(state, 0) for state in STATES})
            concurrency += body.get("spec", {}).get("concurrency", 0) if phase in ("Pending", "Running") else 0
        for phase in JOB_PHASES:
            self.jobs.labels(phase).set(phases[phase])
        for state in STATES:
            self.trials.labels(state).set(trials[state])
        self.concurrency.set(concurrency)
        for gauge in (self.job_trials, self.job_mean, self.job_mean_zero_filled, self.job_started):
            gauge.clear()
        for body in heapq.nlargest(NAMED_JOBS, bodies, key=lambda item: str(item["metadata"].get("creationTimestamp", ""))):
            self._show_job(body["metadata"]["namespace"], body["metadata"]["name"], body.get("status") or {})

    def _show_job(self, namespace: str, name: str, status: Mapping[str, Any]) -> None:
        for state in STATES:
            self.job_trials.labels(namespace, name, state).set((status.get("trials") or {}).get(state, 0))
        found = headline(status.get("scores") or ()) if status.get("mean") else None
        if found is not None:
            self.job_mean.labels(namespace, name).set(found.value)
            if found.zero is not None:
                self.job_mean_zero_filled.labels(namespace, name).set(found.zero)
        if status.get("startTime"):
            self.job_started.labels(namespace, name).set(datetime.fromisoformat(status["startTime"]).timestamp())

    async def tick(self) -> None:
        """Measure the loop's lag for ever: how late a sleep of 100 ms returns."""
        loop, worst, worst_own = asyncio.get_running_loop(), 0.0, 0.0
        while True:
            due, used = loop.time() + TICK_SECONDS, time.process_time()
            await asyncio.sleep(TICK_SECONDS)
            self.heartbeat = loop.time()
            lag = max(0.0, self.heartbeat - due)
            worst, worst_own = max(worst, lag), max(worst_own, min(lag, time.process_time() - used))
            self.loop_lag.set(lag)
            self.loop_lag_max.set(worst)
            self.loop_own_lag_max.set(worst_own)

    def render(self) -> bytes:
        """In the text format."""
        return generate_latest(self.registry)
