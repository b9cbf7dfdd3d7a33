"""Harbor runs by NeMo's names: a configuration, a runner that produces trials, and one call that does everything.

A live runner makes an EvalJob of its configuration; Harbor itself never runs. A runner over a job directory reads what Harbor left there.
Source: nemo.md 15.1, 28.
"""

from __future__ import annotations

import asyncio
import glob
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from seatrial.core.saved import SavedTrial
from seatrial.errors import InvalidSpec
from seatrial.sdk.local import DEFAULTS, AgentEvalRunConfig, AgentEvaluator, EvaluationResult, LocalTask
from seatrial.sdk.saved_trials import Evidence, FolderEvidence, JobEvidence, build_trials_from_job_dir
from seatrial.taskpkg.collection import HarborTask, discover_harbor_tasks

if TYPE_CHECKING:
    from seatrial.sdk.evaluator import Evaluator


class UnsubmittableRunnerError(InvalidSpec, TypeError):
    """The runner's configuration has something that an EvalJob cannot carry."""


@dataclass(frozen=True)
class HarborRuntimeConfig:
    """What to run, in NeMo's words."""

    agent_name: str | None = "oracle"
    agent_import_path: str | None = None
    """``module:Class``; overrides ``agent_name``."""
    agent_dir: str | Path | None = None
    """Folder with that module: packed and stored at submission."""
    agent_model_name: str | None = None
    agent_kwargs: Mapping[str, Any] = field(default_factory=dict)
    env_secrets: Mapping[str, str] = field(default_factory=dict)
    """Variable -> ``secret/key``, a Secret of the namespace."""
    env_vars: Mapping[str, str] = field(default_factory=dict)
    n_attempts: int = 1
    n_concurrent_trials: int = 4
    max_retries: int = 0
    artifacts: Sequence[str] = ()
    trace_dir: str | None = None
    reward_key: str = "reward"
    timeout_multiplier: float = 1.0
    agent_timeout_multiplier: float | None = None
    verifier_timeout_multiplier: float | None = None
    agent_setup_timeout_multiplier: float | None = None
    environment_build_timeout_multiplier: float | None = None
    jobs_dir: str | Path | None = None
    """Where bundles are kept on this machine, one folder a job; None: the object store alone."""

    def options(self) -> dict[str, Any]:
        """As keyword arguments of ``Evaluator.submit``.

        Raises:
            UnsubmittableRunnerError: no agent, a value without JSON form, a secret that is not ``secret/key``.
        """
        if not self.agent_import_path and not self.agent_name:
            raise UnsubmittableRunnerError("config", "Harbor config selects no agent: set agent_name or agent_import_path.")
        if self.agent_dir is not None and not self.agent_import_path:
            raise UnsubmittableRunnerError("agent_dir", "agent_dir only applies to a custom agent_import_path")
        try:
            json.dumps(dict(self.agent_kwargs), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UnsubmittableRunnerError("agent_kwargs", f"is no JSON object: {error}") from None
        secrets = {}
        for variable, reference in self.env_secrets.items():
            secret, _, key = reference.partition("/")
            if not secret or not key:
                raise UnsubmittableRunnerError(f"env_secrets.{variable}", "is not of the form secret/key")
            secrets[variable] = (secret, key)
        return {
            "agent": self.agent_import_path or self.agent_name,
            "agent_dir": self.agent_dir,
            "model": self.agent_model_name,
            "agent_kwargs": dict(self.agent_kwargs),
            "agent_env": dict(self.env_vars),
            "agent_env_secrets": secrets,
            "attempts": self.n_attempts,
            "concurrency": self.n_concurrent_trials,
            "max_retries": self.max_retries,
            "artifacts": tuple(self.artifacts),
            "trace_dir": self.trace_dir,
            "reward_key": self.reward_key,
            "timeout_multiplier": self.timeout_multiplier,
            "agent_timeout_multiplier": self.agent_timeout_multiplier,
            "verifier_timeout_multiplier": self.verifier_timeout_multiplier,
            "agent_setup_timeout_multiplier": self.agent_setup_timeout_multiplier,
            "environment_build_timeout_multiplier": self.environment_build_timeout_multiplier,
        }


class Produced(NamedTuple):
    """Trials, and where their files are."""

    trials: tuple[SavedTrial, ...]
    evidence: Evidence


class HarborAgentTaskRunner:
    """Produces trials of tasks: by a job in the cluster, or from the job directory of an earlier Harbor run.

    Args:
        config: what to run; needs ``evaluator``.
        evaluator: the cluster; None: ``Evaluator()``.
        job_dir: read this directory instead.
        reward_key: the primary reward; None: that of the configuration.

    Raises:
        TypeError: not exactly one of config and job_dir.
    """

    def __init__(
        self,
        *,
        config: HarborRuntimeConfig | None = None,
        evaluator: Evaluator | None = None,
        job_dir: str | Path | None = None,
        reward_key: str | None = None,
    ) -> None:
        if (config is None) == (job_dir is None):
            raise TypeError("give exactly one of config and job_dir")
        self.config = config if config is None or reward_key is None else replace(config, reward_key=reward_key)
        self.job_dir = job_dir
        self.reward_key = reward_key or (config.reward_key if config is not None else "reward")
        self._evaluator = evaluator

    def produce(self, tasks: Sequence[LocalTask]) -> Produced:
        """The trials of ``tasks``.

        Raises:
            JobFailed: the job in the cluster did not end ``Completed``.
            UnsubmittableRunnerError, InvalidSpec: the configuration, or tasks without a folder.
        """
        if self.job_dir is not None:
            return Produced(build_trials_from_job_dir(self.job_dir, tasks, reward_key=self.reward_key), FolderEvidence(self.job_dir))
        assert self.config is not None
        options = self.config.options()
        evaluator = self._evaluator if self._evaluator is not None else _default_evaluator()
        refs = [ref for root, folders in _by_suite(tasks).items() for ref in _published(evaluator, root, folders)]
        job = evaluator.submit(tasks=refs, **options).wait()
        result = job.result()
        if self.config.jobs_dir is not None:
            result.persist(Path(self.config.jobs_dir) / job.name)
        return Produced(result.trials, JobEvidence(job.files))


def _by_suite(tasks: Sequence[LocalTask]) -> dict[Path, list[str]]:
    """Suite -> names of the tasks' folders in it, so that each suite is published in one go."""
    suites: dict[Path, list[str]] = {}
    for task in tasks:
        if not isinstance(task, HarborTask):
            raise InvalidSpec("tasks", f"{task.id!r} has no folder: reload_tasks finds it in the dataset again")
        suites.setdefault(task.source_dir.parent, []).append(task.source_dir.name)
    return suites


def _published(evaluator: Evaluator, root: Path, folders: Sequence[str]) -> list[str]:
    """Pinned references of the tasks in these folders.

    Raises:
        SuiteRefused: a task has faults.
        InvalidSpec: a task could not be published.
    """
    # Names, not patterns: "a*" may be the name of a folder.
    report = evaluator.publish(root, include=tuple(map(glob.escape, folders)))
    if report.failed:
        raise InvalidSpec("tasks", f"{report.failed[0].folder} could not be published: {report.failed[0].message}")
    return [f"{task.name}#{task.digest}" if task.digest else task.name for task in report.tasks]


async def run_eval(
    config: HarborRuntimeConfig,
    dataset_path: str | Path,
    *,
    task_names: Sequence[str] | None = None,
    metrics: Sequence[Any] | None = None,
    run_config: AgentEvalRunConfig = DEFAULTS,
    evaluator: Evaluator | None = None,
) -> EvaluationResult:
    """Discover the tasks of a suite, run them in the cluster, and score what came of it.

    Args:
        task_names: native ids; None: all tasks of the suite.
        metrics: replaces each task's list: without ``HarborRewardMetric()`` in it, the reward is not scored. None: the reward alone.

    Raises:
        DiscoveryError: the suite has faults; nothing was run.
        InvalidSpec: a name that no task has.
        JobFailed: the job did not end ``Completed``.
    """
    tasks = await asyncio.to_thread(discover_harbor_tasks, dataset_path)
    known = {task.id: task for task in tasks}
    if unknown := [name for name in task_names or () if name not in known]:
        raise InvalidSpec("task_names", f"{dataset_path} has no task {', '.join(unknown)}")
    chosen = [known[name] for name in task_names] if task_names is not None else list(tasks)
    if metrics is not None:
        chosen = [replace(task, metrics=list(metrics)) for task in chosen]
    runner = HarborAgentTaskRunner(config=config, evaluator=evaluator)
    return await AgentEvaluator().run(chosen, target=runner, config=run_config)


run_harbor_eval = run_eval
"""``run_eval`` under NeMo's name."""


def _default_evaluator() -> Evaluator:
    from seatrial.sdk.evaluator import Evaluator

    return Evaluator()
