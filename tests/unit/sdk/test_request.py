"""Ways to say the same evaluation: options, NeMo Evaluator's configuration, YAML and JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from tests.builders import make_task

from seatrial.api.evaljob import EvalJob
from seatrial.core.frozen import Submission, build_plan, encode_plan
from seatrial.errors import AlreadyExists, InvalidSpec
from seatrial.sdk import HarborRuntimeConfig
from seatrial.sdk.agent_source import store_agent_source
from seatrial.sdk.cluster import Cluster
from seatrial.sdk.harbor_runner import UnsubmittableRunnerError
from seatrial.sdk.local_secrets import candidates, create_job, look_up, take_local_secrets
from seatrial.sdk.request import JobRequest, build_job

DECLARED = """
apiVersion: seatrial.dev/v1alpha1
kind: EvalJob
metadata: {name: same, namespace: evals}
spec:
  taskset: smoke
  agent:
    importPath: mine:Mine
    source: {ref: "evals/agent-sources#%(sha)s/source", sha256: %(sha)s}
    model: mine/model
    kwargs: {depth: 3, options: {a: [1, null, true]}}
    env: {MODE: fast}
    envSecrets: {API_KEY: {name: model-key, key: token}}
  attempts: 2
  concurrency: 8
  retry: {max: 1}
  timeouts: {agent: 2}
  artifacts: [{source: /app/out}]
  traceDir: /app/traces
  rewardKey: score
""" % {"sha": "a" * 64}  # noqa: UP031 - braces everywhere else


def plan_of(raw: Mapping[str, Any]) -> bytes:
    spec = EvalJob.parse_strict(raw).spec
    submission = Submission(namespace="evals", job="same", uid="uid-1", created_at="2026-01-01T00:00:00Z")
    return encode_plan(build_plan(submission, spec, members=[make_task("bench/a"), make_task("bench/b")], taskset="evals/smoke#1"))


@pytest.mark.conforms("N-103")
def test_yaml_json_options_and_nemos_configuration_give_the_same_plan() -> None:
    declared = yaml.safe_load(DECLARED)
    source = (f"evals/agent-sources#{'a' * 64}/source", "a" * 64)
    options = JobRequest(
        taskset="smoke",
        name="same",
        agent="mine:Mine",
        agent_source=source,
        model="mine/model",
        agent_kwargs={"depth": 3, "options": {"a": [1, None, True]}},
        agent_env={"MODE": "fast"},
        agent_env_secrets={"API_KEY": ("model-key", "token")},
        attempts=2,
        concurrency=8,
        max_retries=1,
        agent_timeout_multiplier=2,
        artifacts=["/app/out"],
        trace_dir="/app/traces",
        reward_key="score",
    )
    config = HarborRuntimeConfig(
        agent_import_path="mine:Mine",
        agent_dir="mine",
        agent_model_name="mine/model",
        agent_kwargs={"depth": 3, "options": {"a": [1, None, True]}},
        env_vars={"MODE": "fast"},
        env_secrets={"API_KEY": "model-key/token"},
        n_attempts=2,
        n_concurrent_trials=8,
        max_retries=1,
        agent_timeout_multiplier=2,
        artifacts=["/app/out"],
        trace_dir="/app/traces",
        reward_key="score",
    )
    named = config.options()
    assert named.pop("agent_dir") == "mine"
    of_config = JobRequest(taskset="smoke", name="same", agent_source=source, **named)
    plans = [plan_of(raw) for raw in (declared, json.loads(json.dumps(declared)), build_job(options, namespace="evals"))]
    plans.append(plan_of(build_job(of_config, namespace="evals")))
    assert plans == [plans[0]] * 4


@pytest.mark.conforms("N-100", "N-101")
def test_an_import_path_wins_over_a_name_and_the_default_is_the_oracle() -> None:
    named = HarborRuntimeConfig()
    own = HarborRuntimeConfig(agent_name="oracle", agent_import_path="mine:Mine")
    assert [config.options()["agent"] for config in (named, own)] == ["oracle", "mine:Mine"]
    agents = [build_job(JobRequest(taskset="smoke", agent=name), namespace="evals")["spec"]["agent"] for name in ("oracle", "mine:Mine")]
    assert agents == [{"name": "oracle"}, {"importPath": "mine:Mine"}]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"agent_name": None}, "Harbor config selects no agent: set agent_name or agent_import_path."),
        ({"agent_dir": "mine"}, "agent_dir only applies to a custom agent_import_path"),
    ],
)
def test_a_configuration_that_selects_nothing_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        HarborRuntimeConfig(**options).options()
    assert words in str(caught.value)


@pytest.mark.conforms("N-104")
@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan")])
def test_arguments_of_an_agent_are_json_values(value: object) -> None:
    with pytest.raises(UnsubmittableRunnerError) as caught:
        HarborRuntimeConfig(agent_kwargs={"a": {"b": [value]}}).options()
    assert caught.value.path == "agent_kwargs"
    with pytest.raises(InvalidSpec) as refused:
        build_job(JobRequest(taskset="smoke", agent="mine:Mine", agent_kwargs={"a": {"b": [value]}}), namespace="evals")
    assert refused.value.path.startswith("spec.agent.kwargs")


# --- the agent's folder --------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("N-106", "N-151")
def test_a_folder_of_an_agent_is_named_by_its_contents(tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "mine.py").write_text("class Mine: ...\n")
    first = store_agent_source(folder, namespace="evals", settings=None)
    (folder / "__pycache__/mine.pyc").write_bytes(b"compiled")
    assert store_agent_source(folder, namespace="evals", settings=None) == first
    (folder / "mine.py").write_text("class Mine: pass\n")
    assert store_agent_source(folder, namespace="evals", settings=None)[1] != first[1]
    assert first[0] == f"evals/agent-sources#{first[1]}/source"


@pytest.mark.conforms("N-106")
@pytest.mark.parametrize("ref", ["./agent", "/home/me/agent", "../agent", "file:///agent", "evals/agents#../agent"])
def test_a_raw_job_with_a_local_path_is_refused(ref: str) -> None:
    raw = yaml.safe_load(DECLARED)
    raw["spec"]["agent"]["source"]["ref"] = ref
    assert [problem.path for problem in EvalJob.problems(raw)] == ["spec.agent.source.ref"]


# --- secrets of this machine ---------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("N-112")
@pytest.mark.parametrize(
    ("reference", "environ", "value"),
    [
        ("my-workspace/openai-api-key", {"MY_WORKSPACE_OPENAI_API_KEY": "prefixed", "OPENAI_API_KEY": "bare"}, "prefixed"),
        ("my-workspace/openai-api-key", {"OPENAI_API_KEY": "bare"}, "bare"),
        ("my-workspace/openai-api-key", {"MY_WORKSPACE_OPENAI_API_KEY": "", "OPENAI_API_KEY": "bare"}, "bare"),
        ("openai-api-key", {"OPENAI_API_KEY": "own", "MY_WORKSPACE_OPENAI_API_KEY": "prefixed"}, "own"),
        ("openai-api-key", {"openai_api_key": "lower", "OPENAI_API_KEY": "upper"}, "lower"),
        ("9lives", {"_9LIVES": "digit"}, "digit"),
    ],
)
def test_a_reference_is_looked_up_under_its_names_in_order(reference: str, environ: dict[str, str], value: str) -> None:
    assert look_up(reference, environ) == value


@pytest.mark.conforms("N-112")
def test_a_bare_reference_reads_only_its_own_name_and_what_is_missing_is_named() -> None:
    with pytest.raises(InvalidSpec) as caught:
        look_up("openai-api-key", {"MY_WORKSPACE_OPENAI_API_KEY": "s3cret"})
    assert str(caught.value) == "env_secrets: 'openai-api-key' is not set on this machine: export one of openai_api_key, OPENAI_API_KEY"
    assert candidates("a/b") == ("a/b", "A/B", "a_b", "A_B", "b", "B")


class _Refusing:
    """Records requests; jobs are refused."""

    namespace = "evals"

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []

    def request(self, method: str, path: str, **_: Any) -> dict[str, Any]:
        self.requests.append((method, path))
        return {}

    def create(self, kind: str, body: Any, **_: Any) -> dict[str, Any]:
        raise AlreadyExists("there is one")


def test_nothing_of_a_secret_is_left_when_its_job_is_refused() -> None:
    request, secret = take_local_secrets(JobRequest(taskset="smoke", name="x", env_secrets={"KEY": "key"}), {"KEY": "s3cret-value"})
    assert secret is not None
    assert request.agent_env_secrets == {"KEY": (secret.name, "KEY")}
    assert "s3cret-value" not in repr((request, secret))
    cluster = _Refusing()
    with pytest.raises(AlreadyExists):
        create_job(cast(Cluster, cluster), build_job(request, namespace="evals"), secret)
    folder = "/api/v1/namespaces/evals/secrets"
    assert cluster.requests == [("POST", folder), ("DELETE", f"{folder}/{secret.name}")]


# --- without Harbor ------------------------------------------------------------------------------------------------------------------


@pytest.mark.conforms("N-1")
def test_the_sdk_the_parser_and_the_plan_need_no_harbor() -> None:
    script = (
        "import sys; sys.modules['harbor'] = None\n"
        "import seatrial.sdk.evaluator, seatrial.cli.main, seatrial.effects.planning\n"
        "import seatrial_runner.verifier, seatrial_runner.agent_host\n"
        "from seatrial.taskpkg.parse import parse_task_toml\n"
        "assert parse_task_toml('schema_version = \"1.4\"')[0] is not None\n"
        "print([name for name, module in sys.modules.items() if name.split('.')[0] == 'harbor' and module is not None])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert (run.returncode, run.stdout, run.stderr) == (0, "[]\n", "")


@pytest.mark.conforms("N-1")
def test_an_agent_of_harbor_by_name_is_refused_with_both_ways_to_get_it() -> None:
    from seatrial.core.frozen import PlanRefused

    with pytest.raises(PlanRefused) as caught:
        plan_of(build_job(JobRequest(taskset="smoke", name="same", agent="codex"), namespace="evals"))
    assert "pip install 'harbor>=0.20,<0.27'" in str(caught.value)
    assert "runner-image/Dockerfile.harbor" in str(caught.value)
