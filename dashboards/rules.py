"""Recording rules and alerts. Every alert has a page ``docs/runbooks/<name>.md`` and a promtool test that makes it fire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import yaml

RUNBOOKS: Final = "https://seatrial.dev/runbooks/"
"""Replaced by the chart's value ``metrics.rules.runbookUrl``."""

Severity = Literal["critical", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Record:
    name: str
    expr: str


@dataclass(frozen=True, slots=True)
class Alert:
    name: str
    expr: str
    wait: str
    """How long it must hold."""
    severity: Severity
    summary: str
    description: str


_RELEASE: Final = "namespace, job"
"""Labels that Prometheus gives to the replicas of one release."""

RECORDS: Final = (
    Record(
        "seatrial:trials_infrastructure_errors:ratio_rate1h",
        '(sum(rate(seatrial_trials_ended_total{outcome="errored",cause="infrastructure"}[1h])) or vector(0))'
        ' / sum(rate(seatrial_trials_ended_total{outcome=~"scored|errored"}[1h]))',
    ),
    # A job that misses a threshold or its own deadline was evaluated well.
    Record(
        "seatrial:jobs_spoilt:ratio_rate1d",
        '(sum(increase(seatrial_jobs_ended_total{phase="Failed",reason!~"Threshold.*|JobDeadlineExceeded"}[1d])) or vector(0))'
        ' / sum(increase(seatrial_jobs_ended_total{phase!="Cancelled"}[1d]))',
    ),
    Record(
        "seatrial:trial_phase_seconds:p95_rate1h",
        "histogram_quantile(0.95, sum by (le, phase) (rate(seatrial_trial_phase_seconds_bucket[1h])))",
    ),
    Record(
        "seatrial:api_requests_per_trial:ratio_rate1h",
        'sum(rate(seatrial_api_requests_total{resource!="leases"}[1h]))'
        ' / sum(rate(seatrial_trials_ended_total{outcome=~"scored|errored"}[1h]))',
    ),
)

ALERTS: Final = (
    Alert(
        "SeatrialOperatorDown",
        "absent(seatrial_build_info)",
        "5m",
        "critical",
        "No operator is scraped",
        "No replica of the operator answers. Trials that run go on and keep their results; nothing new starts.",
    ),
    Alert(
        "SeatrialNoLeader",
        f"sum by ({_RELEASE}) (seatrial_leader) < 1",
        "3m",
        "critical",
        "No replica leads",
        "Replicas are there, but none holds the Lease: nothing is reconciled.",
    ),
    Alert(
        "SeatrialTwoLeaders",
        f"sum by ({_RELEASE}) (seatrial_leader) > 1",
        "2m",
        "warning",
        "More than one replica leads",
        "Two replicas believe that they lead. Every write is preconditioned, so nothing is lost, but the work is done twice.",
    ),
    Alert(
        "SeatrialEventLoopStalls",
        "max by (namespace, pod) (avg_over_time(seatrial_loop_lag_seconds[5m])) > 0.5",
        "5m",
        "warning",
        "The event loop of {{ $labels.pod }} stalls",
        "The loop is late by more than half a second on average: the process lacks CPU, or has too many objects.",
    ),
    Alert(
        "SeatrialInformerStale",
        "max by (namespace, pod) (seatrial_informer_age_seconds"
        " and on (instance) seatrial_leader == 1 and on (instance) seatrial_informer_pods > 0) > 120",
        "2m",
        "critical",
        "No news of Pods reaches {{ $labels.pod }}",
        "Pods exist, and the watch has brought nothing for two minutes, bookmarks included: ends of trials are not seen.",
    ),
    Alert(
        "SeatrialEventsLost",
        "sum by (namespace) (increase(seatrial_informer_differences_total[30m])) > 0",
        "0m",
        "warning",
        "A repeated LIST found changes that no event had brought",
        "The watch of Pods lost events. The LIST repaired it, so nothing is lost but time.",
    ),
    Alert(
        "SeatrialQueueStuck",
        "max by (namespace) (seatrial_queue_oldest_seconds) > 300",
        "5m",
        "critical",
        "Objects wait for minutes to be looked at",
        "The oldest waiting key is older than five minutes: the workers are stuck or too slow.",
    ),
    Alert(
        "SeatrialPassesFail",
        'sum by (namespace) (rate(seatrial_pass_seconds_count{outcome="failed"}[10m]))'
        " / sum by (namespace) (rate(seatrial_pass_seconds_count[10m])) > 0.2",
        "10m",
        "warning",
        "More than a fifth of all passes fail",
        "Passes end with an error and are tried again; the operator's log names the object and the reason.",
    ),
    Alert(
        "SeatrialApiErrors",
        'sum by (namespace) (rate(seatrial_api_requests_total{code=~"5..|none"}[10m]))'
        " / sum by (namespace) (rate(seatrial_api_requests_total[10m])) > 0.1",
        "10m",
        "warning",
        "The API server does not answer well",
        "More than a tenth of the operator's requests get no answer or an error of the server.",
    ),
    Alert(
        "SeatrialApiForbidden",
        # A quota answers a POST with the same code, and that is not a missing right.
        'sum by (namespace, verb, resource) (increase(seatrial_api_requests_total{code=~"401|403",verb!="POST"}[10m])) > 0',
        "5m",
        "critical",
        "The operator may not {{ $labels.verb }} {{ $labels.resource }}",
        "The API server refuses the operator: a Role was changed, or the token is not valid any more.",
    ),
    Alert(
        "SeatrialStoreUnavailable",
        'sum by (namespace) (rate(seatrial_store_requests_total{outcome=~"Unavailable|Forbidden|DiskFull"}[5m]))'
        " / sum by (namespace) (rate(seatrial_store_requests_total[5m])) > 0.1",
        "5m",
        "critical",
        "The object store does not serve the operator",
        "More than a tenth of the calls fail. Jobs wait, marked Degraded, and go on when the store is back.",
    ),
    Alert(
        "SeatrialNothingRuns",
        'sum by (namespace) (seatrial_concurrency) > 0 and on (namespace) sum by (namespace) (seatrial_trials{state="running"}) == 0'
        ' and on (namespace) sum by (namespace) (seatrial_trials{state="pending"}) > 0',
        "15m",
        "warning",
        "Jobs run and no trial does",
        "Trials wait and none has a Pod: a quota, a missing right or admission holds them back.",
    ),
    Alert(
        "SeatrialInfrastructureErrors",
        "seatrial:trials_infrastructure_errors:ratio_rate1h > 0.05",
        "15m",
        "warning",
        "More than one trial in twenty is lost to infrastructure",
        "Over the last hour, trials ended without a score for reasons that have nothing to do with agent or task.",
    ),
    Alert(
        "SeatrialJobsSpoilt",
        "seatrial:jobs_spoilt:ratio_rate1d > 0.01",
        "30m",
        "warning",
        "More than one job in a hundred was not evaluated",
        "Over the last day, jobs ended as Failed for another reason than their own thresholds and deadlines: the objective is missed.",
    ),
    Alert(
        "SeatrialTampering",
        "sum by (namespace) (increase(seatrial_trials_tampered_total[1h])) > 0",
        "0m",
        "info",
        "An agent has planted a reward file",
        "It was removed before grading, so the scores are right. Somebody should look at that agent or task.",
    ),
)


def document() -> dict[str, Any]:
    """The groups as Prometheus reads them from a file, and as ``spec`` of a PrometheusRule."""
    alerts = [
        {
            "alert": item.name,
            "expr": item.expr,
            "for": item.wait,
            "labels": {"severity": item.severity},
            "annotations": {"summary": item.summary, "description": item.description, "runbook_url": f"{RUNBOOKS}{item.name}.md"},
        }
        for item in ALERTS
    ]
    return {
        "groups": [
            {"name": "seatrial.records", "rules": [{"record": item.name, "expr": item.expr} for item in RECORDS]},
            {"name": "seatrial.alerts", "rules": alerts},
        ]
    }


def text() -> str:
    return yaml.safe_dump(document(), sort_keys=False, width=200)
