from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from seatrial.api.reasons import Reason
from seatrial.core.frozen import FrozenPlan, PlanRefused, decode_plan, encode_plan, with_images, with_pins
from tests.builders import JobBuilder, make_job, make_task


def plan_of(toml: dict[str, Any] | None = None, **fields: Any) -> FrozenPlan:
    return make_job().tasks(make_task(toml=toml, **fields)).plan()


@pytest.mark.conforms("N-68", "N-69")
def test_a_plan_survives_the_way_to_the_store_and_back() -> None:
    toml = {
        "agent": {"timeout_sec": 30.5, "user": "agent"},
        "verifier": {"env": {"A": "${A:-x}"}, "collect": [{"command": "true"}]},
        "environment": {"cpus": 0.5, "memory_mb": 64, "network_mode": "no-network", "healthcheck": {"command": "true"}},
        "artifacts": ["/out", {"source": "/x", "destination": "y"}],
        "metadata": {"anything": "goes"},
    }
    job = make_job().tasks(make_task("b/two", toml=toml), make_task("b/one", image=None)).spec(attempts=2, agent={"command": "true"})
    plan = job.plan()
    again = decode_plan(encode_plan(plan))
    assert encode_plan(again) == encode_plan(plan)
    assert again.tasks[0].config.model_copy(update={"metadata": {}}) == plan.tasks[0].config.model_copy(update={"metadata": {}})
    assert again.trials == plan.trials
    assert [task.id for task in again.tasks] == ["b/two", "b/one"]


def test_the_plans_bytes_depend_on_the_submission_alone() -> None:
    assert encode_plan(make_job().trials(3).plan()) == encode_plan(make_job().trials(3).plan())


def test_what_may_change_later_is_not_frozen() -> None:
    plan = make_job().spec(concurrency=9, suspend=True, limits={"maxErrored": 1}).plan()
    assert not {"concurrency", "suspend", "limits", "cancel"} & set(plan.spec)


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        pytest.param(make_job().tasks(), Reason.EMPTY_TASKSET, id="no task"),
        pytest.param(make_job().spec(select={"include": ["other/*"]}), Reason.NOTHING_SELECTED, id="nothing selected"),
        pytest.param(
            make_job().tasks(make_task("a/X", ref="e/one#d"), make_task("a/x", ref="e/two#d")), Reason.DUPLICATE_TASK_ID, id="same id"
        ),
        pytest.param(make_job().spec(agent={"name": "claude-code"}), Reason.UNSUPPORTED_AGENT, id="agent by another name"),
        pytest.param(make_job().spec(agent={"name": "oracle", "skills": ["/s"]}), Reason.UNSUPPORTED_AGENT, id="skills of the oracle"),
        pytest.param(
            make_job().spec(agent={"name": "nop", "mcpServers": [{"name": "s", "url": "http://x"}]}),
            Reason.UNSUPPORTED_AGENT,
            id="MCP servers of nop",
        ),
        pytest.param(make_job().spec(agent={"command": "x", "skills": ["/s"]}), Reason.UNSUPPORTED_AGENT, id="skills of a command"),
        pytest.param(make_job().spec(agent={"importPath": "a:B", "skills": ["org/s@v1"]}), Reason.UNSUPPORTED_AGENT, id="skills from afar"),
    ],
)
def test_a_job_that_cannot_be_planned_is_refused_by_name(job: JobBuilder, reason: Reason) -> None:
    with pytest.raises(PlanRefused) as caught:
        job.plan()
    assert caught.value.reason is reason
    assert ":" in str(caught.value) or ";" in str(caught.value) or "must be" in str(caught.value)


def test_too_many_trials_are_refused_before_anything_is_made() -> None:
    from seatrial.core.frozen import Submission, build_plan

    spec = make_job().spec(attempts=3).job_spec()
    with pytest.raises(PlanRefused, match="3 trials are more than 2"):
        build_plan(Submission("evals", "job", "uid", "now"), spec, members=[make_task()], taskset=None, max_trials=2)


@pytest.mark.conforms("H-52", "H-60", "H-84")
@pytest.mark.parametrize(
    ("toml", "fields", "words"),
    [
        pytest.param({"steps": [{"name": "one", "verifier": {"environment_mode": "separate"}}]}, {}, "of a step", id="separate step"),
        pytest.param({"verifier": {"environment": {"os": "windows"}}}, {}, "verifier.environment", id="separate on windows"),
        pytest.param({"environment": {"os": "windows"}}, {}, "windows", id="windows"),
        pytest.param({}, {"compose": True}, "docker-compose", id="compose"),
        pytest.param({}, {"image": None}, "has no image", id="no image"),
        pytest.param({"environment": {"tpu": {"type": "v4", "topology": "2x4"}}}, {}, "tpu", id="tpu"),
        pytest.param(
            {"environment": {"network_mode": "allowlist", "allowed_hosts": ["pypi.org"]}}, {}, "allowlist", id="allowlist with hosts"
        ),
        pytest.param({"agent": {"network_mode": "no-network"}}, {}, "changes network_mode", id="phase network"),
        pytest.param({"artifacts": [{"source": "/x", "service": "db"}]}, {}, "compose", id="sidecar artifact"),
        pytest.param({"agent": {"timeout_sec": math.inf}}, {}, "[agent].timeout_sec is inf", id="endless"),
        pytest.param({"verifier": {"timeout_sec": math.nan}}, {}, "[verifier].timeout_sec is nan", id="no number"),
        pytest.param({"environment": {"build_timeout_sec": -1.0}}, {}, "build_timeout_sec is -1.0", id="before the start"),
        pytest.param({"environment": {"memory_mb": -5}}, {}, "[environment].memory_mb is -5", id="less than no memory"),
        pytest.param({"environment": {"gpus": 10**30}}, {}, "[environment].gpus is 1000", id="more gpus than there are"),
        pytest.param({"environment": {"healthcheck": {"command": "x", "timeout_sec": math.inf}}}, {}, "healthcheck", id="endless check"),
    ],
)
def test_a_task_that_asks_for_too_much_is_refused_alone(toml: dict[str, Any], fields: dict[str, Any], words: str) -> None:
    plan = make_job().tasks(make_task("a/bad", toml=toml, **fields), make_task("a/good")).plan()
    refusal = plan.tasks[0].refusal
    assert refusal is not None
    assert refusal.reason is Reason.UNSUPPORTED_TASK
    assert words in refusal.message
    assert "a/bad" in refusal.message
    assert plan.tasks[1].refusal is None


def test_an_allowlist_without_hosts_means_no_network() -> None:
    assert plan_of({"environment": {"network_mode": "allowlist"}}).tasks[0].refusal is None


ROWS_THAT_ARE_NONE = encode_plan(make_job().plan()).replace(b'{"job"', b'{"adopted":[7],"job"', 1)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b'{"schema":2}', b"\xff", b"[" * 100_000, ROWS_THAT_ARE_NONE], ids=lambda data: data[:20]
)
def test_a_plan_that_cannot_be_read_is_corrupt(data: bytes) -> None:
    with pytest.raises(PlanRefused) as caught:
        decode_plan(data)
    assert caught.value.reason is Reason.PLAN_CORRUPT


def test_a_task_with_steps_is_refused_for_an_agent_image() -> None:
    task = make_task(toml={"steps": [{"name": "one"}]})
    refusal = make_job().tasks(task).spec(agent={"image": "x:1"}).plan().tasks[0].refusal
    assert refusal is not None
    assert "use spec.agent.command" in refusal.message


@pytest.mark.conforms("H-33")
def test_a_recorded_build_wins_over_docker_image_and_survives_the_document() -> None:
    built = "registry:5000/tasks@sha256:" + "ab" * 32
    plan = make_job().tasks(make_task(image="ready:1"), replace(make_task("bench/task-1", image="ready:1"), image=built)).plan()
    assert [task.environment_image for task in plan.tasks] == ["ready:1", built]
    assert decode_plan(encode_plan(plan)) == plan


def test_a_task_without_an_image_is_refused_unless_the_cluster_builds_it() -> None:
    plan = make_job().tasks(make_task("bench/a", image=None), make_task("bench/b", image=None, build="ab" * 20)).plan()
    assert [task.refusal is None for task in plan.tasks] == [False, True]
    assert decode_plan(encode_plan(plan)) == plan
    assert with_images(plan, 1, {"environment": "registry/x@sha256:0"}).tasks[1].environment_image == "registry/x@sha256:0"


def test_a_separate_verifier_described_by_a_dockerfile_needs_an_image_of_its_own() -> None:
    separate = {"verifier": {"environment_mode": "separate"}}
    built = "registry:5000/tasks@sha256:" + "ab" * 32
    plan = (
        make_job()
        .tasks(
            make_task("bench/a", toml=separate, bundled_verifier=True),
            make_task("bench/b", toml=separate, bundled_verifier=True, verifier_build="cd" * 20),
            make_task("bench/c", toml=separate, bundled_verifier=True, verifier_image=built),
        )
        .plan()
    )
    assert [task.refusal.message if task.refusal else None for task in plan.tasks] == [
        "task bench/a: its separate verifier has no image: publish it with --build, or let the operator build (builds.repository of the "
        "chart)",
        None,
        None,
    ]
    assert [task.builds for task in plan.tasks] == [{}, {"verifier": "cd" * 20}, {}]
    assert with_images(plan, 1, {"verifier": built}).tasks[1].verifier_image == built
    assert decode_plan(encode_plan(plan)) == plan


def test_only_images_that_run_and_whose_tag_may_move_are_pinned() -> None:
    digest = "python@sha256:" + "ab" * 32
    own = {"verifier": {"environment": {"docker_image": "judge:1"}}}
    tasks = (make_task("bench/a", image="python:3", toml=own), make_task("bench/b", image=digest), make_task("bench/c", image="gone:1"))
    pins = {"python:3": "python:3@sha256:0", "judge:1": "judge:1@sha256:1"}
    plan = with_pins(make_job().tasks(*tasks).plan(), pins)
    assert [dict(task.pins) for task in plan.tasks] == [pins, {}, {}]
    assert [task.named_images for task in plan.tasks] == [("python:3", "judge:1"), (), ("gone:1",)]
    assert decode_plan(encode_plan(plan)) == plan
