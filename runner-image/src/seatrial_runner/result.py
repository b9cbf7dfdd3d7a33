"""Harbor's trial result, with a section of our own beside it. Fields: harbor.md 7.5."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from seatrial.contract import AgentAbout, ErrorInfo, TrialInput
from seatrial.harbor_errors import ErrorPolicy, error_policy
from seatrial_runner.clock import utc_now
from seatrial_runner.report import Report

SCHEMA_VERSION: Final = 1
# Only these are split off a model's name, as Harbor does.
_PROVIDER_NAMES: Final = """
    ai21 anthropic azure azure_ai bedrock cerebras cohere dashscope databricks deepinfra deepseek fireworks_ai gemini google groq
    hosted_vllm huggingface lm_studio minimax mistral moonshot nebius nvidia_nim ollama openai openrouter perplexity replicate sagemaker
    sambanova together_ai vertex_ai vllm voyage watsonx xai zai"""
PROVIDERS: Final = frozenset(_PROVIDER_NAMES.split())


class Evidence(NamedTuple):
    """What became of the logs."""

    truncated: Sequence[str]
    logs_sha256: str | None
    error: str | None


def build_result(trial: TrialInput, report: Report, steps: Sequence[Report], evidence: Evidence, error: ErrorInfo | None) -> dict[str, Any]:
    """``result.json`` before it is signed.

    Args:
        steps: the executed ones; with steps the trial's own report holds only what belongs to none of them.
        error: the one that decides whether the rewards count, also if it is a step's.
    """
    is_multi_step = bool(trial.get("steps"))
    reports = (report, *steps)
    rewards = next((item.rewards for item in reversed(reports) if item.rewards is not None), None)
    return {
        "schema_version": SCHEMA_VERSION,
        "id": _uuid4(),
        "task_name": trial["task"]["name"],
        "trial_name": trial["trial"],
        "trial_uri": f"seatrial://{trial['job']['namespace']}/{trial['job']['name']}/{trial['trial']}",
        "task_id": _task_id(trial),
        "source": trial["task"]["source"],
        "task_checksum": trial["task"]["checksum"],
        "config": trial["config"],
        "agent_info": {
            **_about(trial, reports),
            "model_info": model_info(trial["agent"]["model"]),
        },
        "agent_result": None if is_multi_step else report.agent_result,
        "verifier_result": _verifier_result(report),
        "verifier_environment_mode": None if is_multi_step else trial["verifier"]["mode"],
        "exception_info": _exception_info(trial, report),
        # The agent's container may have begun a moment before the verifier's.
        "started_at": min([report.timer.started_at, *(span["started_at"] for span in report.spans.values())]),
        "finished_at": utc_now(),
        **{name: report.spans.get(name) for name in ("environment_setup", "agent_setup", "agent_execution", "verifier")},
        "step_results": [_step_result(trial, step) for step in steps] if is_multi_step else None,
        "reward_valid": bool(report.values) and (error is None or policy_of(trial, error["type"]).valid),
        "seatrial": {
            "schema": 1,
            "job": trial["job"],
            "attempt": trial["attempt"],
            "retry": trial["retry"],
            "image": trial["image"],
            "graded": any(item.graded for item in reports),
            "verification_disabled": trial["verifier"]["disable"],
            "handed_over": report.is_handed_over,
            "verifies": trial.get("verifies"),
            "error": error,
            "reason": None if error is None else error.get("reason", error["type"]),
            "cause": None if error is None else error["cause"],
            "tampered": any(item.tampered for item in reports),
            "leftover_processes": max(item.leftover_processes for item in reports),
            "changed_tools": max(item.changed_tools for item in reports),
            "changed_names": list(next((item.changed_names for item in reports if item.changed_names), ())),
            "reward_components": rewards.components if rewards is not None else None,
            "rejected_reward_keys": list(rewards.rejected_keys) if rewards is not None else [],
            "measures": report.measures,
            "trajectory": next((item.trajectory for item in reports if item.trajectory is not None), None),
            "truncated": list(evidence.truncated),
            "logs_sha256": evidence.logs_sha256,
            "logs_error": evidence.error,
        },
    }


def _about(trial: TrialInput, reports: Sequence[Report]) -> AgentAbout:
    own = next((item.about for item in reports if item.about is not None), None)
    return own or AgentAbout(name=trial["agent"]["name"], version=trial["agent"]["version"])


def _verifier_result(report: Report) -> dict[str, Any] | None:
    return None if report.values is None else {"rewards": report.values}


def _step_result(trial: TrialInput, step: Report) -> dict[str, Any]:
    return {
        "step_name": step.name,
        "agent_result": step.agent_result,
        "verifier_result": _verifier_result(step),
        "exception_info": _exception_info(trial, step),
        "agent_execution": step.spans.get("agent_execution"),
        "verifier": step.spans.get("verifier"),
    }


def policy_of(trial: TrialInput, error_type: str) -> ErrorPolicy:
    """Harbor's table with the job's overrides."""
    return error_policy(error_type, cast(Mapping[str, Mapping[str, bool]], trial["error_policy"]))


def model_info(model: str | None) -> dict[str, str | None] | None:
    """A model's name and provider; the provider is split off only if it is known."""
    if model is None:
        return None
    provider, separator, name = model.partition("/")
    if separator and provider in PROVIDERS:
        return {"name": name, "provider": provider}
    return {"name": model, "provider": None}


def _task_id(trial: TrialInput) -> dict[str, Any]:
    task = trial["config"].get("task")
    if isinstance(task, dict):
        if task.get("git_url"):
            return {"git_url": task["git_url"], "git_commit_id": task.get("git_commit_id"), "path": task.get("path")}
        if task.get("name"):
            organisation, _, name = str(task["name"]).rpartition("/")
            return {"org": organisation, "name": name, "ref": task.get("ref")}
        if task.get("path"):
            return {"path": task["path"]}
    return {"path": trial["task"]["name"]}


def _exception_info(trial: TrialInput, report: Report) -> dict[str, Any] | None:
    error = report.error
    if error is None:
        return None
    policy = policy_of(trial, error["type"])
    info: dict[str, Any] = {
        "exception_type": error["type"],
        "exception_message": error["message"],
        "exception_traceback": f"{error.get('reason', error['type'])} ({error['cause']}): {error['message']}",
        "occurred_at": report.error_at or utc_now(),
        "policy": {"should_retry": policy.retry, "should_grade": policy.grade, "has_valid_reward": policy.valid},
    }
    override = trial["error_policy"].get(error["type"])
    if override:
        harbor = {"retry": "should_retry", "grade": "should_grade", "valid": "has_valid_reward"}
        info["policy_override"] = {harbor[flag]: value for flag, value in override.items()}
    return info


def _uuid4() -> str:
    """A random UUID. Not the ``uuid`` module: its import is not free."""
    data = bytearray(os.urandom(16))
    data[6] = data[6] & 0x0F | 0x40
    data[8] = data[8] & 0x3F | 0x80
    text = data.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
