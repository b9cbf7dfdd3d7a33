"""``docs/metrics.md``: the table of metrics, from the registry that the operator serves."""

from __future__ import annotations

from typing import Final

from prometheus_client.metrics import MetricWrapperBase

from dashboards.rules import ALERTS, RECORDS
from seatrial.core.spans import POD_PHASES
from seatrial.effects.metrics import JOB_PHASES, NAMED_JOBS, OTHER, REPORTED_PHASES, STATES, TOKENS, Metrics

LABELS: Final = {
    "version": "of the operator",
    "verb": "HTTP method, or WATCH",
    "resource": "plural of a Kubernetes resource that the operator uses",
    "code": "HTTP status, or `none` without an answer",
    "operation": "kind of call of the object store",
    "outcome": "`ok` or the class of the error; of trials: scored, errored, cancelled, retried; of passes: done, failed;"
    " of writes: written, conflict, gone; of Events and the webhook: posted, dropped, failed; of traces: sent, failed, dropped;"
    " of builds: pushed, failed",
    "reason": f"a reason of ours or a name of Harbor's error table, else `{OTHER}`; see [troubleshooting](troubleshooting.md)",
    "cause": "infrastructure, environment, agent, verifier, user",
    "phase": "of trials: " + ", ".join([*POD_PHASES, *sorted(REPORTED_PHASES)]) + "; of jobs: " + ", ".join(JOB_PHASES),
    "state": ", ".join(STATES),
    "kind": "Task, Taskset, EvalJob; of tokens: " + ", ".join(TOKENS.values()),
    "evaljob_namespace": f"namespace of one of the {NAMED_JOBS} newest EvalJobs; of cost and tokens: of any EvalJob",
    "evaljob": f"name of one of the {NAMED_JOBS} newest EvalJobs that exist; the series end when the object is deleted",
}
"""Label -> its values, and with them its bound."""

_HEAD: Final = """\
# Metrics

Every replica serves these at `:8080/metrics`. The one that stands by shows its process and no jobs, so sums over replicas count nothing
twice. Names and labels are stable: they change only with a new major version of the chart. No label carries the name of a trial, and words
that a Pod reports become labels only when they are known. This page is made from the code by `python -m dashboards`.
"""


def text() -> str:
    """The page.

    Raises:
        KeyError: a label has no entry in ``LABELS``.
    """
    lines = [_HEAD, "| metric | type | labels | what |", "|---|---|---|---|"]
    used: set[str] = set()
    for metric in vars(Metrics()).values():
        if isinstance(metric, MetricWrapperBase):
            kind, labels = metric._type, metric._labelnames
            used.update(labels)
            name = f"{metric._name}_total" if kind == "counter" else metric._name
            lines.append(f"| `{name}` | {kind} | {', '.join(labels)} | {metric._documentation} |")
    lines.append("| `seatrial_build_info` | gauge | version | Version of the operator. |")
    lines.append("| `process_*` | | | CPU, memory, open files and start of the process, as all Prometheus clients give them. |")
    lines += ["", "## Labels", "", "| label | values |", "|---|---|"]
    lines += [f"| {name} | {LABELS[name]} |" for name in sorted(used | {"version"})]
    lines += ["", "## Recording rules", "", "| name | expression |", "|---|---|"]
    lines += [f"| `{item.name}` | `{_cell(item.expr)}` |" for item in RECORDS]
    lines += ["", "## Alerts", "", "| alert | severity | holds for | meaning |", "|---|---|---|---|"]
    lines += [f"| [{item.name}](runbooks/{item.name}.md) | {item.severity} | {item.wait} | {item.description} |" for item in ALERTS]
    return "\n".join(lines) + "\n"


def _cell(code: str) -> str:
    return code.replace("|", "\\|")
