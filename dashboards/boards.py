"""The dashboards. Counters are summed over replicas: the one that stands by shows none, so a sum counts nothing twice."""

from __future__ import annotations

from typing import Final

from dashboards.panels import RANGE, RATE, Dashboard, Panel, Query, Variable


def _quantiles(metric: str, label: str, *, window: str = RATE) -> tuple[Query, ...]:
    return tuple(
        Query(f"histogram_quantile({share}, sum by (le, {label}) (rate({metric}_bucket[{window}])))", f"{{{{{label}}}}} p{share * 100:.0f}")
        for share in (0.5, 0.95)
    )


def _rate(metric: str, labels: str, *, matcher: str = "") -> str:
    return f"sum by ({labels}) (rate({metric}{matcher}[{RATE}]))"


JOBS: Final = Dashboard(
    uid="seatrial-jobs",
    title="seatrial / Jobs",
    text="What is evaluated now, how fast, and what fails.",
    panels=(
        Panel(
            "Jobs that run", (Query('sum(seatrial_jobs{phase="Running"})'),), "EvalJobs in phase Running.", kind="stat", width=4, height=4
        ),
        Panel("Trials that run", (Query('sum(seatrial_trials{state="running"})'),), "Trial Pods at work.", kind="stat", width=4, height=4),
        Panel(
            "Trials that wait",
            (Query('sum(seatrial_trials{state="pending"})'),),
            "Trials of all jobs that have no Pod yet.",
            kind="stat",
            width=4,
            height=4,
        ),
        Panel(
            "Graded trials",
            (Query(f'sum(increase(seatrial_trials_ended_total{{outcome="scored"}}[{RANGE}]))'),),
            "Trials with a score, in the time shown.",
            kind="stat",
            width=4,
            height=4,
        ),
        Panel(
            "Errored share",
            (
                Query(
                    f'(sum(increase(seatrial_trials_ended_total{{outcome="errored"}}[{RANGE}])) or vector(0)) / '
                    f'sum(increase(seatrial_trials_ended_total{{outcome=~"scored|errored"}}[{RANGE}]))'
                ),
            ),
            "Trials without a score among those that ended. They are in no mean.",
            kind="stat",
            unit="percentunit",
            width=4,
            height=4,
        ),
        Panel(
            "Mean reward",
            (Query(f"sum(increase(seatrial_trial_reward_sum[{RANGE}])) / sum(increase(seatrial_trial_reward_count[{RANGE}]))"),),
            "Over all scored trials of all jobs: a trend, not a result.",
            kind="stat",
            width=4,
            height=4,
        ),
        Panel(
            "Trials by state",
            (Query("sum by (state) (seatrial_trials)", "{{state}}"),),
            "Trials of the EvalJobs that exist.",
            width=12,
            stacked=True,
        ),
        Panel(
            "Trials that end",
            (Query(_rate("seatrial_trials_ended_total", "outcome"), "{{outcome}}"),),
            "Per second, by outcome; retried ones get a further Pod.",
            unit="ops",
            width=12,
        ),
        Panel(
            "Pods allowed and used",
            (Query("sum(seatrial_concurrency)", "allowed"), Query('sum(seatrial_trials{state="running"})', "used")),
            "A gap means that Pods wait for nodes, quota or images.",
        ),
        Panel(
            "Phases of a trial",
            _quantiles("seatrial_trial_phase_seconds", "phase"),
            "Where the time goes: median and 95th percentile by phase.",
            unit="s",
            width=16,
        ),
        Panel(
            "Why trials have no score",
            (
                Query(
                    f'topk(15, sum by (reason, cause) (increase(seatrial_trials_ended_total{{outcome=~"errored|retried"}}[{RANGE}])))',
                    "{{reason}} ({{cause}})",
                ),
            ),
            "Reasons in the time shown; docs/troubleshooting.md has an entry for each.",
            kind="bargauge",
            width=8,
        ),
        Panel(
            "Rewards",
            (Query(f"sum by (le) (increase(seatrial_trial_reward_bucket[{RANGE}]))", "up to {{le}}"),),
            "Scored trials with at most this reward, in the time shown.",
            kind="bargauge",
        ),
        Panel(
            "Jobs that ended",
            (Query(f"sum by (phase, reason) (increase(seatrial_jobs_ended_total[{RANGE}]))", "{{phase}}: {{reason}}"),),
            "In the time shown, by their reason.",
            kind="bargauge",
        ),
        Panel(
            "Newest jobs",
            (Query("max by (evaljob_namespace, evaljob) (seatrial_job_mean)"),),
            "Mean of the first metric, for jobs that have one.",
            kind="table",
            width=12,
        ),
        Panel(
            "Errors of infrastructure",
            (Query("seatrial:trials_infrastructure_errors:ratio_rate1h", "share"),),
            "Share of trials that ended without a score for a fault of the infrastructure, over an hour. The objective is below 1 %.",
            unit="percentunit",
            width=6,
        ),
        Panel(
            "Jobs spoilt",
            (Query("seatrial:jobs_spoilt:ratio_rate1d", "share"),),
            "Share of jobs that ended without being evaluated, over a day. The objective is below 1 %.",
            unit="percentunit",
            width=6,
        ),
    ),
)

_JOB: Final = '{evaljob_namespace="$evaljob_namespace", evaljob="$evaljob"}'
_SCORED: Final = '{evaljob_namespace="$evaljob_namespace", evaljob="$evaljob", state="scored"}'
_ERRORED: Final = '{evaljob_namespace="$evaljob_namespace", evaljob="$evaljob", state="errored"}'
_ENDED: Final = '{evaljob_namespace="$evaljob_namespace", evaljob="$evaljob", state=~"scored|errored|cancelled"}'

JOB: Final = Dashboard(
    uid="seatrial-job",
    title="seatrial / One job",
    text="One EvalJob, as long as it exists and is among the hundred newest.",
    variables=(
        Variable("evaljob_namespace", "Namespace", "seatrial_job_trials", "evaljob_namespace"),
        Variable("evaljob", "EvalJob", "seatrial_job_trials", "evaljob", matcher='evaljob_namespace="$evaljob_namespace"'),
    ),
    panels=(
        Panel(
            "Done",
            (Query(f"sum(seatrial_job_trials{_ENDED}) / sum(seatrial_job_trials{_JOB})"),),
            "Share of trials that have ended.",
            kind="stat",
            unit="percentunit",
            width=6,
            height=4,
        ),
        Panel("Mean", (Query(f"max(seatrial_job_mean{_JOB})"),), "Of the first metric, so far.", kind="stat", width=6, height=4),
        Panel("Errored", (Query(f"sum(seatrial_job_trials{_ERRORED})"),), "Trials without a score.", kind="stat", width=6, height=4),
        Panel(
            "Started",
            (Query(f"max(seatrial_job_start_time_seconds{_JOB}) * 1000"),),
            "When the plan was frozen.",
            kind="stat",
            unit="dateTimeFromNow",
            width=6,
            height=4,
        ),
        Panel("Trials", (Query(f"sum by (state) (seatrial_job_trials{_JOB})", "{{state}}"),), "By state.", width=12, stacked=True),
        Panel(
            "Mean over time",
            (Query(f"max(seatrial_job_mean{_JOB})", "scored trials"), Query(f"max(seatrial_job_mean_zero_filled{_JOB})", "missing as 0")),
            "It settles as trials end; what lies between the lines is errored.",
            width=12,
        ),
        Panel(
            "Graded per minute",
            (Query(f"sum(delta(seatrial_job_trials{_SCORED}[10m])) / 10", "trials"),),
            "Over ten minutes.",
            width=12,
        ),
        Panel(
            "Errored share",
            (
                Query(
                    f"sum(seatrial_job_trials{_ERRORED}) / (sum(seatrial_job_trials{_ERRORED}) + sum(seatrial_job_trials{_SCORED}) > 0)",
                    "share",
                ),
            ),
            "Among the trials that were graded or could not be.",
            unit="percentunit",
            width=12,
        ),
    ),
)

OPERATOR: Final = Dashboard(
    uid="seatrial-operator",
    title="seatrial / Operator",
    text="Whether the operator keeps up, and what it asks of the API server and the object store.",
    panels=(
        Panel("Leaders", (Query("sum(seatrial_leader)"),), "One for each release.", kind="stat", width=4, height=4),
        Panel(
            "Replicas", (Query("count by (version) (seatrial_build_info)", "{{version}}"),), "By version.", kind="stat", width=4, height=4
        ),
        Panel("Waiting keys", (Query("max(seatrial_queue_depth)"),), "Objects that wait for a pass.", kind="stat", width=4, height=4),
        Panel(
            "Oldest key",
            (Query("max(seatrial_queue_oldest_seconds)"),),
            "How long it has waited.",
            kind="stat",
            unit="s",
            width=4,
            height=4,
        ),
        Panel(
            "Longest stall",
            (Query("max(seatrial_loop_lag_max_seconds)", "all"), Query("max(seatrial_loop_own_lag_max_seconds)", "own CPU time")),
            "Of the event loop, so far; and the longest that its own work accounts for.",
            kind="stat",
            unit="s",
            width=4,
            height=4,
        ),
        Panel("Pods followed", (Query("sum(seatrial_informer_pods)"),), "In the informer.", kind="stat", width=4, height=4),
        Panel(
            "Passes",
            (Query(_rate("seatrial_pass_seconds_count", "kind, outcome"), "{{kind}} {{outcome}}"),),
            "Per second.",
            unit="ops",
            width=8,
        ),
        Panel("Duration of passes", _quantiles("seatrial_pass_seconds", "kind"), "Median and 95th percentile.", unit="s", width=8),
        Panel("Loop lag", (Query("max by (pod) (seatrial_loop_lag_seconds)", "{{pod}}"),), "Last tick of each replica.", unit="s", width=8),
        Panel(
            "API requests",
            (Query(_rate("seatrial_api_requests_total", "verb, resource"), "{{verb}} {{resource}}"),),
            "Per second.",
            unit="reqps",
            width=12,
        ),
        Panel("API latency", _quantiles("seatrial_api_request_seconds", "resource"), "Median and 95th percentile.", unit="s", width=12),
        Panel(
            "API answers",
            (Query(_rate("seatrial_api_requests_total", "code"), "{{code}}"),),
            "By code; none means that no answer came.",
            unit="reqps",
            width=8,
        ),
        Panel(
            "Store calls",
            (Query(_rate("seatrial_store_requests_total", "operation, outcome"), "{{operation}} {{outcome}}"),),
            "Calls of the object store; presigning asks nobody.",
            unit="reqps",
            width=8,
        ),
        Panel("Store latency", _quantiles("seatrial_store_request_seconds", "operation"), "Median and 95th percentile.", unit="s", width=8),
        Panel(
            "API requests per trial",
            (Query("seatrial:api_requests_per_trial:ratio_rate1h", "requests"),),
            "Over an hour; 2.5 at most in a large job.",
            width=8,
        ),
        Panel(
            "Freshness of the informer",
            (Query("max by (pod) (seatrial_informer_age_seconds and on (instance) seatrial_leader == 1)", "{{pod}}"),),
            "Time since anything was heard of Pods; bookmarks come each minute.",
            unit="s",
            width=8,
        ),
        Panel(
            "Lists and lost events",
            (
                Query(f"sum(increase(seatrial_informer_relists_total[{RATE}]))", "lists"),
                Query(f"sum(increase(seatrial_informer_differences_total[{RATE}]))", "differences"),
            ),
            "A difference is an event that never came.",
            width=8,
        ),
        Panel(
            "Writes",
            (
                Query(_rate("seatrial_status_writes_total", "kind, outcome"), "status {{kind}} {{outcome}}"),
                Query(_rate("seatrial_events_posted_total", "outcome"), "events {{outcome}}"),
                Query(_rate("seatrial_webhooks_total", "outcome"), "webhook {{outcome}}"),
                Query(_rate("seatrial_traces_total", "outcome"), "traces {{outcome}}"),
                Query(f"sum(rate(seatrial_pods_created_total[{RATE}]))", "Pods created"),
                Query(f"sum(rate(seatrial_pods_deleted_total[{RATE}]))", "Pods deleted"),
            ),
            "Per second.",
            unit="ops",
            width=8,
        ),
        Panel(
            "CPU",
            (Query(f"rate(process_cpu_seconds_total[{RATE}]) and on (instance) seatrial_build_info", "{{pod}}"),),
            "Cores of each replica.",
            width=8,
        ),
        Panel(
            "Memory",
            (Query("process_resident_memory_bytes and on (instance) seatrial_build_info", "{{pod}}"),),
            "Resident set of each replica.",
            unit="bytes",
            width=8,
        ),
        Panel(
            "Image builds",
            (Query(f"sum by (outcome) (increase(seatrial_image_build_seconds_count[{RANGE}]))", "{{outcome}}"),),
            "Builds in the cluster that ended, in the time shown.",
            kind="bargauge",
            width=12,
        ),
        Panel(
            "Time in image builds",
            (Query(f"sum by (outcome) (increase(seatrial_image_build_seconds_sum[{RANGE}]))", "{{outcome}}"),),
            "Of their Pods, in the time shown.",
            kind="bargauge",
            unit="s",
            width=12,
        ),
        Panel("Elections", (Query("sum by (pod) (seatrial_elections_total)", "{{pod}}"),), "Times a replica got the Lease.", width=12),
        Panel("Jobs by phase", (Query("sum by (phase) (seatrial_jobs)", "{{phase}}"),), "Of the EvalJobs that exist.", width=12),
    ),
)

COST: Final = Dashboard(
    uid="seatrial-cost",
    title="seatrial / Cost",
    text="What agents say that they spent: tokens and US dollars. Agents that say nothing, such as oracle, are not in it.",
    panels=(
        Panel(
            "Cost",
            (Query(f"sum(increase(seatrial_trial_cost_usd_total[{RANGE}]))"),),
            "US dollars in the time shown.",
            kind="stat",
            unit="currencyUSD",
            width=6,
            height=4,
        ),
        Panel(
            "Tokens",
            (Query(f'sum(increase(seatrial_trial_tokens_total{{kind=~"input|output"}}[{RANGE}]))'),),
            "Input and output in the time shown.",
            kind="stat",
            width=6,
            height=4,
        ),
        Panel(
            "Cost of a graded trial",
            (
                Query(
                    f"sum(increase(seatrial_trial_cost_usd_total[{RANGE}])) / "
                    f'sum(increase(seatrial_trials_ended_total{{outcome="scored"}}[{RANGE}]))'
                ),
            ),
            "All that was spent, retries and errored trials too, for each trial that has a score.",
            kind="stat",
            unit="currencyUSD",
            width=6,
            height=4,
        ),
        Panel(
            "Spent without a score",
            (
                Query(
                    f'(sum(increase(seatrial_trial_cost_usd_total{{outcome!="scored"}}[{RANGE}])) or vector(0)) / '
                    f"sum(increase(seatrial_trial_cost_usd_total[{RANGE}]))"
                ),
            ),
            "Share of the cost that went into Pods without a score.",
            kind="stat",
            unit="percentunit",
            width=6,
            height=4,
        ),
        Panel(
            "Cost over time",
            (Query(f"sum by (evaljob_namespace) (rate(seatrial_trial_cost_usd_total[{RATE}])) * 3600", "{{evaljob_namespace}}"),),
            "US dollars an hour, by namespace.",
            unit="currencyUSD",
            width=12,
            stacked=True,
        ),
        Panel(
            "Tokens over time",
            (Query(_rate("seatrial_trial_tokens_total", "kind"), "{{kind}}"),),
            "Per second; cache is the part of input that was read from the provider's cache.",
            width=12,
        ),
        Panel(
            "Cost by namespace",
            (Query(f"sum by (evaljob_namespace) (increase(seatrial_trial_cost_usd_total[{RANGE}]))", "{{evaljob_namespace}}"),),
            "US dollars in the time shown.",
            kind="bargauge",
            unit="currencyUSD",
            width=12,
        ),
        Panel(
            "Cost by outcome",
            (Query(f"sum by (outcome) (increase(seatrial_trial_cost_usd_total[{RANGE}]))", "{{outcome}}"),),
            "US dollars in the time shown; retried Pods were paid too.",
            kind="bargauge",
            unit="currencyUSD",
            width=12,
        ),
    ),
)

ALL: Final = (JOBS, JOB, OPERATOR, COST)
