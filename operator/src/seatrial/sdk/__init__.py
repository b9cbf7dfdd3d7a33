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
    from seatrial.sdk.tasks import NotVerified, PreparedTask, StoredObject, TaskPublicationError
    from seatrial.taskpkg.collection import as_base_task, discover_harbor_tasks

__all__ = [
    "AsyncEvaluator",
    "AsyncJob",
    "Evaluator",
    "Job",
    "JobFailed",
    "JobRequest",
    "NotVerified",
    "PreparedTask",
    "PublishReport",
    "StoredObject",
    "SuiteRefused",
    "Summary",
    "TaskPublicationError",
    "TrialRecord",
    "WaitTimeout",
    "as_base_task",
    "discover_harbor_tasks",
]

_MODULES = {
    "AsyncEvaluator": "sdk.evaluator",
    "AsyncJob": "sdk.evaluator",
    "Evaluator": "sdk.evaluator",
    "Job": "sdk.jobs",
    "JobFailed": "sdk.jobs",
    "JobRequest": "sdk.request",
    "NotVerified": "sdk.tasks",
    "PreparedTask": "sdk.tasks",
    "PublishReport": "sdk.publish",
    "StoredObject": "sdk.tasks",
    "SuiteRefused": "sdk.publish",
    "Summary": "sdk.results",
    "TaskPublicationError": "sdk.tasks",
    "TrialRecord": "sdk.results",
    "WaitTimeout": "sdk.jobs",
    "as_base_task": "taskpkg.collection",
    "discover_harbor_tasks": "taskpkg.collection",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(name)
    return getattr(importlib.import_module(f"seatrial.{_MODULES[name]}"), name)
