"""Fluent builders for what tests put in: tasks, jobs, plans, Pods. Each call returns the same builder."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from seatrial.api.evaljob import EvalJob, EvalJobSpec
from seatrial.contract import AGENT, ENVIRONMENT, STAGE, VERIFIER, ErrorInfo, Verdict, write_verdict
from seatrial.core.frozen import FrozenPlan, PlannedTask, Submission, build_plan
from seatrial.core.naming import pod_name
from seatrial.core.observe import PodView, format_time, parse_pod
from seatrial.core.rows import Outcome, Row
from seatrial.taskpkg.model import TaskConfig

NOW = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)
UID = "11111111-2222-3333-4444-555555555555"
IMAGE = "registry.example/task:1"


def ago(seconds: float) -> str:
    """RFC 3339 of ``seconds`` before ``NOW``."""
    return format_time(NOW - timedelta(seconds=seconds))


def make_task(
    name: str = "bench/task-0", *, toml: Mapping[str, Any] | None = None, image: str | None = IMAGE, **fields: Any
) -> PlannedTask:
    """A planned task; ``toml`` is the content of task.toml."""
    body = copy.deepcopy(dict(toml or {}))
    environment = body.setdefault("environment", {})
    if image is not None:
        environment.setdefault("docker_image", image)
    stem = name.replace("/", "-")
    defaults: dict[str, Any] = {
        "id": name,
        "ref": f"evals/{stem}#{'d' * 64}",
        "revision": 1,
        "archive_key": f"filesets/evals/suite/{stem}",
        "archive_sha256": "a" * 64,
        "checksum": "c" * 64,
    }
    return PlannedTask(config=TaskConfig.model_validate(body), **{**defaults, **fields})


class JobBuilder:
    """An EvalJob with as many tasks as trials are wanted."""

    def __init__(self) -> None:
        self._tasks: list[PlannedTask] = [make_task()]
        self._spec: dict[str, Any] = {"taskset": "suite"}

    def tasks(self, *tasks: PlannedTask) -> Self:
        self._tasks = list(tasks)
        return self

    def trials(self, count: int) -> Self:
        """One attempt at each of ``count`` tasks."""
        return self.tasks(*(make_task(f"bench/task-{number}") for number in range(count)))

    def spec(self, **fields: Any) -> Self:
        """Fields as in YAML."""
        self._spec |= fields
        return self

    def raw(self) -> dict[str, Any]:
        return {
            "apiVersion": "seatrial.dev/v1alpha1",
            "kind": "EvalJob",
            "metadata": {"name": "job", "namespace": "evals", "uid": UID, "generation": 1, "creationTimestamp": ago(60)},
            "spec": copy.deepcopy(self._spec),
        }

    def job(self) -> EvalJob:
        return EvalJob.parse(self.raw())

    def job_spec(self) -> EvalJobSpec:
        return self.job().spec

    def plan(self) -> FrozenPlan:
        submission = Submission(namespace="evals", job="job", uid=UID, created_at=ago(60))
        return build_plan(submission, self.job_spec(), members=self._tasks, taskset=f"evals/suite#{'e' * 64}")


def make_job() -> JobBuilder:
    return JobBuilder()


class PodBuilder:
    """A trial Pod, first pending and unscheduled."""

    def __init__(self, trial: str, retry: int) -> None:
        self._trial, self._retry = trial, retry
        self._body: dict[str, Any] = {
            "metadata": {
                "name": f"pod-{trial}-{retry}"[:63],
                "namespace": "evals",
                "uid": f"uid-{trial}-{retry}",
                "resourceVersion": "1",
                "creationTimestamp": ago(10),
                "labels": {
                    "seatrial.dev/role": "trial",
                    "seatrial.dev/job": UID,
                    "seatrial.dev/trial": trial,
                    "seatrial.dev/retry": str(retry),
                },
                "ownerReferences": [{"kind": "EvalJob", "name": "job", "uid": UID, "controller": True}],
            },
            "spec": {},
            "status": {"phase": "Pending", "conditions": []},
        }

    # --- where it is

    def created(self, seconds: float) -> Self:
        self._body["metadata"]["creationTimestamp"] = ago(seconds)
        return self

    def named(self, name: str, uid: str | None = None) -> Self:
        self._body["metadata"] |= {"name": name, "uid": uid or f"uid-{name}"}
        return self

    def owned_by(self, uid: str) -> Self:
        self._body["metadata"]["ownerReferences"][0]["uid"] = uid
        return self

    def unschedulable(self, message: str = "0/1 nodes are available: 1 Insufficient cpu.", reason: str = "Unschedulable") -> Self:
        return self._condition("PodScheduled", "False", reason, message)

    def scheduled(self, seconds: float = 5) -> Self:
        self._body["spec"]["nodeName"] = "node-1"
        return self._condition("PodScheduled", "True", at=ago(seconds))

    def waiting(self, container: str, reason: str, message: str = "") -> Self:
        """``container`` waits; ``stage`` is the init container."""
        if "nodeName" not in self._body["spec"]:
            self.scheduled()
        return self._container(container, {"waiting": {"reason": reason, "message": message}})

    def working(self, container: str) -> Self:
        return self._container(container, {"running": {"startedAt": ago(3)}})

    def running(self) -> Self:
        self.scheduled()
        self._container(STAGE, {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": ago(4), "finishedAt": ago(3)}})
        for name in (ENVIRONMENT, AGENT, VERIFIER):
            self._container(name, {"running": {"startedAt": ago(3)}})
        self._body["status"]["phase"] = "Running"
        return self

    def terminated(self, container: str, code: int, reason: str = "", message: str = "") -> Self:
        reason = reason or ("Completed" if code == 0 else "Error")
        detail = {"exitCode": code, "reason": reason, "message": message, "startedAt": ago(3), "finishedAt": ago(1)}
        return self._container(container, {"terminated": detail})

    def stage_failed(self, code: int, message: str = "") -> Self:
        self.scheduled()
        self.terminated(STAGE, code, message=message)
        return self.phase("Failed")

    def oom_killed(self, container: str, code: int = 137) -> Self:
        self.running()
        for name in (ENVIRONMENT, AGENT, VERIFIER):
            self.terminated(name, 137 if name != container else code, "OOMKilled" if name == container else "Error")
        return self.phase("Failed")

    def phase(self, phase: str, reason: str = "", message: str = "") -> Self:
        self._body["status"] |= {"phase": phase, "reason": reason, "message": message}
        return self

    def disrupted(self, reason: str) -> Self:
        return self._condition("DisruptionTarget", "True", reason, f"because of {reason}")

    def evicted(self, *, disruption: bool) -> Self:
        self.running()
        if disruption:
            self.disrupted("TerminationByKubelet")
        return self.phase("Failed", "Evicted", "The node was low on resource: memory.")

    def deleting(self, *, due: float = -59) -> Self:
        """Deleted with a grace of a minute that is over since ``due`` seconds."""
        self._body["metadata"] |= {"deletionTimestamp": ago(due), "deletionGracePeriodSeconds": 60}
        return self

    def verdict(
        self,
        rewards: Mapping[str, float] | None = None,
        *,
        error: ErrorInfo | None = None,
        elsewhere: bool = False,
        stored: bool = True,
        trial: str | None = None,
        retry: int | None = None,
    ) -> Self:
        """The verifier ended and reported; the other containers still run."""
        self.running()
        text = write_verdict(
            Verdict(
                trial=trial or self._trial,
                retry=self._retry if retry is None else retry,
                rewards=None if elsewhere or rewards is None else dict(rewards),
                rewards_elsewhere=elsewhere,
                error=error,
                stored=stored,
                result_sha256="b" * 64 if stored else None,
                logs_sha256=None,
                seconds={"total": 3.0},
                tampered=False,
                leftover_processes=0,
            )
        )
        return self.terminated(VERIFIER, 0, message=text.decode())

    def succeeded(self, reward: float = 1.0) -> Self:
        """A trial that ended well."""
        self.verdict({"reward": reward})
        for name in (ENVIRONMENT, AGENT):
            self.terminated(name, 0)
        return self.phase("Succeeded")

    # --- results

    def obj(self) -> dict[str, Any]:
        return copy.deepcopy(self._body)

    def view(self) -> PodView:
        return parse_pod(self._body)

    def _condition(self, kind: str, status: str, reason: str = "", message: str = "", at: str | None = None) -> Self:
        conditions = [item for item in self._body["status"]["conditions"] if item["type"] != kind]
        conditions.append({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at or ago(5)})
        self._body["status"]["conditions"] = conditions
        return self

    def _container(self, name: str, state: Mapping[str, Any]) -> Self:
        field = "initContainerStatuses" if name == STAGE else "containerStatuses"
        items = [item for item in self._body["status"].get(field, []) if item["name"] != name]
        items.append({"name": name, "state": dict(state), "ready": False, "restartCount": 0})
        self._body["status"][field] = items
        return self


def make_pod(trial: str = "task-0__abcdef0", retry: int = 0) -> PodBuilder:
    return PodBuilder(trial, retry)


def make_pods(plan: FrozenPlan, index: int, retry: int = 0) -> PodBuilder:
    """The Pod of one trial of a plan, under its real name."""
    trial = plan.trials[index]
    return make_pod(trial.name, retry).named(pod_name(plan.job, plan.uid, trial.key, retry))


def make_row(trial: str = "task-0__abcdef0", retry: int = 0, outcome: Outcome = "scored", **fields: Any) -> Row:
    """A row; a scored one has reward 1 unless told otherwise."""
    if outcome == "scored":
        fields.setdefault("rewards", {"reward": 1.0})
    return Row(trial=trial, retry=retry, outcome=outcome, ended_at=fields.pop("ended_at", ago(30)), **fields)
