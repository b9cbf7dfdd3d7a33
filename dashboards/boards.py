"""The dashboards. Counters are summed over replicas: the one that stands by shows none, so a sum counts nothing twice."""

from __future__ import annotations

from typing import Final

from dashboards.panels import RANGE, RATE, Dashboard, Variable, bars, lines, stat, table


def _rate(metric: str, by: str = "", *, matcher: str = "") -> str:
    """Per second."""
    return f"{_sum(by)}(rate({metric}{matcher}[{RATE}]))"


def _increase(metric: str, by: str = "", *, matcher: str = "", window: str = RANGE) -> str:
    """In the time shown."""
    return f"{_sum(by)}(increase({metric}{matcher}[{window}]))"


def _sum(by: str) -> str:
    return f"sum by ({by}) " if by else "sum"


def _quantiles(metric: str, label: str) -> dict[str, str]:
    """Median and 95th percentile."""
    return {
        f"{{{{{label}}}}} p{share * 100:.0f}": f"histogram_quantile({share}, {_rate(f'{metric}_bucket', f'le, {label}')})"
        for share in (0.5, 0.95)
    }


_ENDED: Final = "seatrial_trials_ended_total"
_COST: Final = "seatrial_trial_cost_usd_total"
_TOKENS: Final = "seatrial_trial_tokens_total"
_SCORED: Final = '{outcome="scored"}'
_ERRORED: Final = '{outcome="errored"}'
_NOT_SCORED: Final = '{outcome!="scored"}'
_FINAL: Final = '{outcome=~"scored|errored"}'
_LOST: Final = '{outcome=~"errored|retried"}'

JOBS: Final = Dashboard(
    uid="seatrial-jobs",
    title="seatrial / Jobs",
    text="What is evaluated now, how fast, and what fails.",
    panels=(
        stat("Jobs that run", 'sum(seatrial_jobs{phase="Running"})', "EvalJobs in phase Running."),
        stat("Trials that run", 'sum(seatrial_trials{state="running"})', "Trial Pods at work."),
        stat("Trials that wait", 'sum(seatrial_trials{state="pending"})', "Trials of all jobs that have no Pod yet."),
        stat("Graded trials", _increase(_ENDED, matcher=_SCORED), "Trials with a score, in the time shown."),
        stat(
            "Errored share",
            f"({_increase(_ENDED, matcher=_ERRORED)} or vector(0)) / {_increase(_ENDED, matcher=_FINAL)}",
            "Trials without a score among those that ended. They are in no mean.",
            unit="percentunit",
        ),
        stat(
            "Mean reward",
            f"{_increase('seatrial_trial_reward_sum')} / {_increase('seatrial_trial_reward_count')}",
            "Over all scored trials of all jobs: a trend, not a result.",
        ),
        lines(
            "Trials by state",
            {"{{state}}": "sum by (state) (seatrial_trials)"},
            "Trials of the EvalJobs that exist.",
            width=12,
            stacked=True,
        ),
        lines(
            "Trials that end",
            {"{{outcome}}": _rate(_ENDED, "outcome")},
            "Per second, by outcome; retried ones get a further Pod.",
            unit="ops",
            width=12,
        ),
        lines(
            "Pods allowed and used",
            {"allowed": "sum(seatrial_concurrency)", "used": 'sum(seatrial_trials{state="running"})'},
            "A gap means that Pods wait for nodes, quota or images.",
        ),
        lines(
            "Phases of a trial",
            _quantiles("seatrial_trial_phase_seconds", "phase"),
            "Where the time goes: median and 95th percentile by phase.",
            unit="s",
            width=16,
        ),
        bars(
            "Why trials have no score",
            {"{{reason}} ({{cause}})": f"topk(15, {_increase(_ENDED, 'reason, cause', matcher=_LOST)} > 0)"},
            "Reasons in the time shown; docs/troubleshooting.md has an entry for each.",
        ),
        bars(
            "Rewards",
            {"up to {{le}}": _increase("seatrial_trial_reward_bucket", "le")},
            "Scored trials with at most this reward, in the time shown.",
        ),
        bars(
            "Jobs that ended",
            {"{{phase}}: {{reason}}": _increase("seatrial_jobs_ended_total", "phase, reason")},
            "In the time shown, by their reason.",
        ),
        table(
            "Newest jobs",
            "max by (evaljob_namespace, evaljob) (seatrial_job_mean)",
            "Mean of the first metric, for jobs that have one.",
            width=12,
        ),
        lines(
            "Errors of infrastructure",
            {"share": "seatrial:trials_infrastructure_errors:ratio_rate1h"},
            "Share of trials that ended without a score for a fault of the infrastructure, over an hour. The objective is below 1 %.",
            unit="percentunit",
            width=6,
        ),
        lines(
            "Jobs spoilt",
            {"share": "seatrial:jobs_spoilt:ratio_rate1d"},
            "Share of jobs that ended without being evaluated, over a day. The objective is below 1 %.",
            unit="percentunit",
            width=6,
        ),
    ),
)


def _job(metric: str, state: str = "") -> str:
    """A series of the chosen job."""
    return f'{metric}{{evaljob_namespace="$evaljob_namespace", evaljob="$evaljob"{f", state{state}" if state else ""}}}'


_TRIALS: Final = _job("seatrial_job_trials")
_SCORED_TRIALS: Final = _job("seatrial_job_trials", '="scored"')
_ERRORED_TRIALS: Final = _job("seatrial_job_trials", '="errored"')
_ENDED_TRIALS: Final = _job("seatrial_job_trials", '=~"scored|errored|cancelled"')
_MEAN: Final = f"max({_job('seatrial_job_mean')})"

JOB: Final = Dashboard(
    uid="seatrial-job",
    title="seatrial / One job",
    text="One EvalJob, as long as it exists and is among the hundred newest.",
    variables=(
        Variable("evaljob_namespace", "Namespace", "seatrial_job_trials", "evaljob_namespace"),
        Variable("evaljob", "EvalJob", "seatrial_job_trials", "evaljob", matcher='evaljob_namespace="$evaljob_namespace"'),
    ),
    panels=(
        stat("Done", f"sum({_ENDED_TRIALS}) / sum({_TRIALS})", "Share of trials that have ended.", unit="percentunit", width=6),
        stat("Mean", _MEAN, "Of the first metric, so far.", width=6),
        stat("Errored", f"sum({_ERRORED_TRIALS})", "Trials without a score.", width=6),
        stat(
            "Started",
            f"max({_job('seatrial_job_start_time_seconds')}) * 1000",
            "When the plan was frozen.",
            unit="dateTimeFromNow",
            width=6,
        ),
        lines("Trials", {"{{state}}": f"sum by (state) ({_TRIALS})"}, "By state.", width=12, stacked=True),
        lines(
            "Mean over time",
            {"scored trials": _MEAN, "missing as 0": f"max({_job('seatrial_job_mean_zero_filled')})"},
            "It settles as trials end; what lies between the lines is errored.",
            width=12,
        ),
        lines("Graded per minute", {"trials": f"sum(delta({_SCORED_TRIALS}[10m])) / 10"}, "Over ten minutes.", width=12),
        lines(
            "Errored share",
            {"share": f"sum({_ERRORED_TRIALS}) / (sum({_ERRORED_TRIALS}) + sum({_SCORED_TRIALS}) > 0)"},
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
        stat("Leaders", "sum(seatrial_leader)", "One for each release."),
        stat("Replicas", {"{{version}}": "count by (version) (seatrial_build_info)"}, "By version."),
        stat("Waiting keys", "max(seatrial_queue_depth)", "Objects that wait for a pass."),
        stat("Oldest key", "max(seatrial_queue_oldest_seconds)", "How long it has waited.", unit="s"),
        stat(
            "Longest stall",
            {"all": "max(seatrial_loop_lag_max_seconds)", "own CPU time": "max(seatrial_loop_own_lag_max_seconds)"},
            "Of the event loop, so far; and the longest that its own work accounts for.",
            unit="s",
        ),
        stat("Pods followed", "sum(seatrial_informer_pods)", "In the informer."),
        lines("Passes", {"{{kind}} {{outcome}}": _rate("seatrial_pass_seconds_count", "kind, outcome")}, "Per second.", unit="ops"),
        lines("Duration of passes", _quantiles("seatrial_pass_seconds", "kind"), "Median and 95th percentile.", unit="s"),
        lines("Loop lag", {"{{pod}}": "max by (pod) (seatrial_loop_lag_seconds)"}, "Last tick of each replica.", unit="s"),
        lines(
            "API requests",
            {"{{verb}} {{resource}}": _rate("seatrial_api_requests_total", "verb, resource")},
            "Per second.",
            unit="reqps",
            width=12,
        ),
        lines("API latency", _quantiles("seatrial_api_request_seconds", "resource"), "Median and 95th percentile.", unit="s", width=12),
        lines(
            "API answers",
            {"{{code}}": _rate("seatrial_api_requests_total", "code")},
            "By code; none means that no answer came.",
            unit="reqps",
        ),
        lines(
            "Store calls",
            {"{{operation}} {{outcome}}": _rate("seatrial_store_requests_total", "operation, outcome")},
            "Calls of the object store; presigning asks nobody.",
            unit="reqps",
        ),
        lines("Store latency", _quantiles("seatrial_store_request_seconds", "operation"), "Median and 95th percentile.", unit="s"),
        lines(
            "API requests per trial",
            {"requests": "seatrial:api_requests_per_trial:ratio_rate1h"},
            "Over an hour; 2.5 at most in a large job.",
        ),
        lines(
            "Freshness of the informer",
            {"{{pod}}": "max by (pod) (seatrial_informer_age_seconds and on (instance) seatrial_leader == 1)"},
            "Time since anything was heard of Pods; bookmarks come each minute.",
            unit="s",
        ),
        lines(
            "Lists and lost events",
            {
                "lists": _increase("seatrial_informer_relists_total", window=RATE),
                "differences": _increase("seatrial_informer_differences_total", window=RATE),
            },
            "A difference is an event that never came.",
        ),
        lines(
            "Writes",
            {
                "status {{kind}} {{outcome}}": _rate("seatrial_status_writes_total", "kind, outcome"),
                "events {{outcome}}": _rate("seatrial_events_posted_total", "outcome"),
                "webhook {{outcome}}": _rate("seatrial_webhooks_total", "outcome"),
                "traces {{outcome}}": _rate("seatrial_traces_total", "outcome"),
                "Pods created": _rate("seatrial_pods_created_total"),
                "Pods deleted": _rate("seatrial_pods_deleted_total"),
            },
            "Per second.",
            unit="ops",
        ),
        lines(
            "CPU",
            {"{{pod}}": f"rate(process_cpu_seconds_total[{RATE}]) and on (instance) seatrial_build_info"},
            "Cores of each replica.",
        ),
        lines(
            "Memory",
            {"{{pod}}": "process_resident_memory_bytes and on (instance) seatrial_build_info"},
            "Resident set of each replica.",
            unit="bytes",
        ),
        bars(
            "Image builds",
            {"{{outcome}}": _increase("seatrial_image_build_seconds_count", "outcome")},
            "Builds in the cluster that ended, in the time shown.",
            width=12,
        ),
        bars(
            "Time in image builds",
            {"{{outcome}}": _increase("seatrial_image_build_seconds_sum", "outcome")},
            "Of their Pods, in the time shown.",
            unit="s",
            width=12,
        ),
        lines("Elections", {"{{pod}}": "sum by (pod) (seatrial_elections_total)"}, "Times a replica got the Lease.", width=12),
        lines("Jobs by phase", {"{{phase}}": "sum by (phase) (seatrial_jobs)"}, "Of the EvalJobs that exist.", width=12),
    ),
)

COST: Final = Dashboard(
    uid="seatrial-cost",
    title="seatrial / Cost",
    text="What agents say that they spent: tokens and US dollars. Agents that say nothing, such as oracle, are not in it.",
    panels=(
        stat("Cost", _increase(_COST), "US dollars in the time shown.", unit="currencyUSD", width=6),
        stat("Tokens", _increase(_TOKENS, matcher='{kind=~"input|output"}'), "Input and output in the time shown.", width=6),
        stat(
            "Cost of a graded trial",
            f"{_increase(_COST)} / {_increase(_ENDED, matcher=_SCORED)}",
            "All that was spent, retries and errored trials too, for each trial that has a score.",
            unit="currencyUSD",
            width=6,
        ),
        stat(
            "Spent without a score",
            f"({_increase(_COST, matcher=_NOT_SCORED)} or vector(0)) / {_increase(_COST)}",
            "Share of the cost that went into Pods without a score.",
            unit="percentunit",
            width=6,
        ),
        lines(
            "Cost over time",
            {"{{evaljob_namespace}}": f"{_rate(_COST, 'evaljob_namespace')} * 3600"},
            "US dollars an hour, by namespace.",
            unit="currencyUSD",
            width=12,
            stacked=True,
        ),
        lines(
            "Tokens over time",
            {"{{kind}}": _rate(_TOKENS, "kind")},
            "Per second; cache is the part of input that was read from the provider's cache.",
            width=12,
        ),
        bars(
            "Cost by namespace",
            {"{{evaljob_namespace}}": _increase(_COST, "evaljob_namespace")},
            "US dollars in the time shown.",
            unit="currencyUSD",
            width=12,
        ),
        bars(
            "Cost by outcome",
            {"{{outcome}}": _increase(_COST, "outcome")},
            "US dollars in the time shown; retried Pods were paid too.",
            unit="currencyUSD",
            width=12,
        ),
    ),
)

ALL: Final = (JOBS, JOB, OPERATOR, COST)
