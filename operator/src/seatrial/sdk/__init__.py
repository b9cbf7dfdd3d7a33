"""What Python programs import: ``from seatrial import Evaluator, AsyncEvaluator``.

Names are loaded on first use: worker processes and short commands need one module of this package, not all.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seatrial.sdk.evaluator import AsyncEvaluator, AsyncJob, Evaluator
    from seatrial.sdk.harbor_runner import HarborAgentTaskRunner, HarborRuntimeConfig, run_eval, run_harbor_eval
    from seatrial.sdk.jobs import Job, JobFailed, WaitTimeout
    from seatrial.sdk.judge import ChatJudge, JudgeSettings
    from seatrial.sdk.local import AgentEvalRunConfig, AgentEvaluator, EvaluationResult, read_result
    from seatrial.sdk.publish import PublishReport, SuiteRefused
    from seatrial.sdk.request import JobRequest
    from seatrial.sdk.results import Summary, TrialRecord
    from seatrial.sdk.saved_trials import build_trials_from_job_dir, read_trials
    from seatrial.sdk.tasks import NotVerified, PreparedTask, StoredObject, TaskPublicationError
    from seatrial.sdk.turns import QualitativeMetric, QualResult, QuantitativeMetric, QuantResult, ScoreInput
    from seatrial.taskpkg.collection import HarborRewardMetric, as_base_task, discover_harbor_tasks

__all__ = [
    "AgentEvalRunConfig",
    "AgentEvaluator",
    "AsyncEvaluator",
    "AsyncJob",
    "ChatJudge",
    "EvaluationResult",
    "Evaluator",
    "HarborAgentTaskRunner",
    "HarborRewardMetric",
    "HarborRuntimeConfig",
    "Job",
    "JobFailed",
    "JobRequest",
    "JudgeSettings",
    "NotVerified",
    "PreparedTask",
    "PublishReport",
    "QualResult",
    "QualitativeMetric",
    "QuantResult",
    "QuantitativeMetric",
    "ScoreInput",
    "StoredObject",
    "SuiteRefused",
    "Summary",
    "TaskPublicationError",
    "TrialRecord",
    "WaitTimeout",
    "as_base_task",
    "build_trials_from_job_dir",
    "discover_harbor_tasks",
    "read_result",
    "read_trials",
    "run_eval",
    "run_harbor_eval",
]

_MODULES = {
    "AgentEvalRunConfig": "sdk.local",
    "AgentEvaluator": "sdk.local",
    "AsyncEvaluator": "sdk.evaluator",
    "AsyncJob": "sdk.evaluator",
    "ChatJudge": "sdk.judge",
    "EvaluationResult": "sdk.local",
    "Evaluator": "sdk.evaluator",
    "HarborAgentTaskRunner": "sdk.harbor_runner",
    "HarborRewardMetric": "taskpkg.collection",
    "HarborRuntimeConfig": "sdk.harbor_runner",
    "Job": "sdk.jobs",
    "JobFailed": "sdk.jobs",
    "JobRequest": "sdk.request",
    "JudgeSettings": "sdk.judge",
    "NotVerified": "sdk.tasks",
    "PreparedTask": "sdk.tasks",
    "PublishReport": "sdk.publish",
    "QualResult": "sdk.turns",
    "QualitativeMetric": "sdk.turns",
    "QuantResult": "sdk.turns",
    "QuantitativeMetric": "sdk.turns",
    "ScoreInput": "sdk.turns",
    "StoredObject": "sdk.tasks",
    "SuiteRefused": "sdk.publish",
    "Summary": "sdk.results",
    "TaskPublicationError": "sdk.tasks",
    "TrialRecord": "sdk.results",
    "WaitTimeout": "sdk.jobs",
    "as_base_task": "taskpkg.collection",
    "build_trials_from_job_dir": "sdk.saved_trials",
    "discover_harbor_tasks": "taskpkg.collection",
    "read_result": "sdk.local",
    "read_trials": "sdk.saved_trials",
    "run_eval": "sdk.harbor_runner",
    "run_harbor_eval": "sdk.harbor_runner",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(name)
    return getattr(importlib.import_module(f"seatrial.{_MODULES[name]}"), name)
