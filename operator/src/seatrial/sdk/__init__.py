"""What Python programs import: ``from seatrial import Evaluator, AsyncEvaluator``.

Names are loaded on first use: worker processes and short commands need one module of this package, not all.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seatrial.sdk.evaluator import AsyncEvaluator, AsyncJob, Evaluator
    from seatrial.sdk.jobs import Job, JobFailed, WaitTimeout
    from seatrial.sdk.publish import PublishReport, SuiteRefused
    from seatrial.sdk.request import JobRequest
    from seatrial.sdk.results import Summary, TrialRecord

__all__ = [
    "AsyncEvaluator",
    "AsyncJob",
    "Evaluator",
    "Job",
    "JobFailed",
    "JobRequest",
    "PublishReport",
    "SuiteRefused",
    "Summary",
    "TrialRecord",
    "WaitTimeout",
]

_MODULES = {
    "AsyncEvaluator": "evaluator",
    "AsyncJob": "evaluator",
    "Evaluator": "evaluator",
    "Job": "jobs",
    "JobFailed": "jobs",
    "JobRequest": "request",
    "PublishReport": "publish",
    "SuiteRefused": "publish",
    "Summary": "results",
    "TrialRecord": "results",
    "WaitTimeout": "jobs",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(name)
    return getattr(importlib.import_module(f"seatrial.sdk.{_MODULES[name]}"), name)
