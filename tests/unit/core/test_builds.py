"""Builds in the cluster: the Pod, and what its end means."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from seatrial.api.reasons import Reason
from seatrial.contract import StageExit
from seatrial.core.builds import BuildSettings, Passing, Pushed, build_pod, change_owners, judge_build
from seatrial.core.frozen import FrozenPlan, ImageRole
from seatrial.core.manifests import PodSettings, placement
from seatrial.core.observe import format_time
from seatrial.core.trial import Judgement, failure
from seatrial.taskpkg.mirrors import Mirrors
from tests.builders import make_job, make_task

KEY = "ab" * 20
DIGEST = "sha256:" + "cd" * 32
SETTINGS = BuildSettings(
    repository="registry:5000/tasks",
    executor_image="executor:1",
    insecure=True,
    args={"BASE": "registry:5000/base:12", "TRAP": "$(HOSTNAME)"},
    push_secret="push",
    files={"/etc/pip.conf": ("build-files", "pip.conf")},
)


PLAN = make_job().plan()
WAITERS = {PLAN.uid: PLAN.job, "uid-2": "second"}
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def make_pod(role: ImageRole = "environment", *, plan: FrozenPlan = PLAN, waiters: Mapping[str, str] = WAITERS) -> dict[str, Any]:
    return build_pod(
        plan,
        plan.tasks[0],
        role=role,
        key=KEY,
        archive_url="http://s3/a?b=$(c)",
        timeout_seconds=60.0,
        settings=SETTINGS,
        pods=PodSettings("runner:1", mirrors=Mirrors({"docker.io": "mirror.example/hub"})),
        waiters=waiters,
    )


def test_the_build_pod_meets_pod_security_baseline() -> None:
    spec = make_pod()["spec"]
    assert spec["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert not any(spec.get(name) for name in ("hostNetwork", "hostPID", "hostIPC"))
    assert {name for volume in spec["volumes"] for name in volume if name != "name"} == {"emptyDir", "secret", "configMap"}
    for container in (*spec["initContainers"], *spec["containers"]):
        context = container["securityContext"]
        assert not context.get("privileged")
        assert context["allowPrivilegeEscalation"] is False
        assert not (context.get("capabilities") or {}).get("add")
        assert "requests" in container["resources"]
    assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)


def test_only_the_init_container_knows_the_archive_and_only_the_executor_the_push_credentials() -> None:
    (stage,), (executor,) = make_pod()["spec"]["initContainers"], make_pod()["spec"]["containers"]
    assert [variable["value"] for variable in stage["env"] if variable["name"] == "SEATRIAL_ARCHIVE_URL"] == ["http://s3/a?b=$$(c)"]
    assert "env" not in executor
    assert [mount["mountPath"] for mount in executor["volumeMounts"]] == ["/seatrial/context", "/kaniko/.docker", "/etc/pip.conf"]
    assert "/kaniko/.docker" not in [mount["mountPath"] for mount in stage["volumeMounts"]]


@pytest.mark.parametrize(("role", "folder"), [("environment", "environment"), ("verifier", "tests")])
def test_the_context_is_the_folder_of_whose_image_it_is(role: ImageRole, folder: str) -> None:
    (stage,), (executor,) = make_pod(role)["spec"]["initContainers"], make_pod(role)["spec"]["containers"]
    variables = {item["name"]: item["value"] for item in stage["env"]}
    assert (variables["SEATRIAL_CONTEXT_FOLDER"], executor["args"][0]) == (folder, f"--context=dir:///seatrial/context/{folder}")
    assert variables["SEATRIAL_IMAGE_MIRRORS"] == '{"prefix": "", "sources": {"docker.io": "mirror.example/hub"}}'
    assert variables["SEATRIAL_BUILD_ARGS"] == '{"BASE": "registry:5000/base:12", "TRAP": "$$(HOSTNAME)"}'


def test_the_builder_runs_under_envd_which_ends_it_in_time() -> None:
    pod = make_pod()["spec"]
    assert pod["containers"][0]["command"] == ["/seatrial/context/envd", "--build", "60", "/kaniko/executor"]
    assert pod["activeDeadlineSeconds"] > 60


@pytest.mark.parametrize(
    ("environment", "limits"),
    [
        ({}, {"memory": "4Gi", "ephemeral-storage": "20Gi"}),
        ({"memory_mb": 512, "storage_mb": 1024}, {"memory": "4Gi", "ephemeral-storage": "20Gi"}),
        ({"memory_mb": 8192, "storage_mb": 40960}, {"memory": "8192Mi", "ephemeral-storage": "40960Mi"}),
    ],
)
def test_a_build_may_use_what_the_task_asks_for_where_that_is_more(environment: dict[str, Any], limits: dict[str, str]) -> None:
    plan = make_job().tasks(make_task(toml={"environment": environment})).plan()
    assert make_pod(plan=plan)["spec"]["containers"][0]["resources"]["limits"] == limits


def test_the_executor_pushes_under_the_key_and_reports_the_digest() -> None:
    (executor,) = make_pod()["spec"]["containers"]
    assert f"--destination=registry:5000/tasks:{KEY}" in executor["args"]
    assert "--digest-file=/dev/termination-log" in executor["args"]
    assert executor["args"][-2:] == ["--build-arg=BASE=registry:5000/base:12", "--build-arg=TRAP=$$(HOSTNAME)"]
    assert executor["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_the_pod_is_found_by_its_key_and_belongs_to_all_jobs_that_wait_and_to_none_more_than_to_another() -> None:
    meta = make_pod()["metadata"]
    assert meta["name"] == f"seatrial-build-{KEY}"
    # Without a job's UID: what a job counts, deletes and waits for are its own Pods.
    assert meta["labels"] == {
        "seatrial.dev/role": "build",
        "seatrial.dev/job-name": "job",
        "seatrial.dev/task": "bench-task-0",
        "seatrial.dev/build": KEY,
    }
    assert [(owner["name"], owner["uid"], owner["controller"]) for owner in meta["ownerReferences"]] == [
        ("job", PLAN.uid, False),
        ("second", "uid-2", False),
    ]


def test_its_owners_become_the_jobs_that_wait() -> None:
    body = {**make_pod(), "metadata": {**make_pod()["metadata"], "uid": "uid-of-pod"}}
    assert change_owners(body, WAITERS) is None
    patch = change_owners(body, {"uid-2": "second", "uid-3": "third"})
    reference = {**body["metadata"]["ownerReferences"][0], "name": "third", "uid": "uid-3"}
    assert patch == {"metadata": {"uid": "uid-of-pod", "ownerReferences": [reference, {"$patch": "delete", "uid": PLAN.uid}]}}


def test_a_node_that_does_not_answer_keeps_the_pod_no_longer_than_that_of_a_trial() -> None:
    assert make_pod()["spec"]["tolerations"] == placement(make_job().job_spec())["tolerations"]


def ended(
    *, build: dict[str, Any] | None = None, context: dict[str, Any] | None = None, phase: str = "Failed", **status: Any
) -> dict[str, Any]:
    """A Pod whose containers ended so."""
    body: dict[str, Any] = {"metadata": {"name": "seatrial-build-1"}, "status": {"phase": phase, **status}}
    if context is not None:
        body["status"]["initContainerStatuses"] = [{"name": "context", "state": {"terminated": context}}]
    if build is not None:
        body["status"]["containerStatuses"] = [{"name": "build", "state": {"terminated": build}}]
    return body


def test_a_pushed_image_is_its_digest() -> None:
    assert judge_build(ended(build={"exitCode": 0, "message": DIGEST}, phase="Running"), timeout_seconds=60.0, now=NOW) == Pushed(DIGEST)


@pytest.mark.parametrize("phase", ["Pending", "Running"])
def test_a_pod_that_goes_on_is_not_judged(phase: str) -> None:
    assert judge_build(ended(phase=phase), timeout_seconds=60.0, now=NOW) is None


def test_a_failed_build_of_a_verifiers_image_names_the_tests_folder() -> None:
    body = ended(build={"exitCode": 1, "message": "INFO[0001] RUN false\nerror building image: exit status 1\n"})
    end = judge_build(body, role="verifier", dockerfile="FROM a\nRUN false\n", timeout_seconds=60.0, now=NOW)
    assert isinstance(end, Judgement)
    assert end.error is not None
    assert end.error.message.startswith("tests/Dockerfile line 2, RUN false: ")


@pytest.mark.parametrize(
    ("body", "reason", "text"),
    [
        pytest.param(
            ended(build={"exitCode": 1, "message": "INFO[0001] RUN false\nerror building image: exit status 1\n"}),
            Reason.IMAGE_BUILD_FAILED,
            "environment/Dockerfile line 2, RUN false: ",
            id="a command fails",
        ),
        pytest.param(
            ended(reason="DeadlineExceeded"),
            Reason.IMAGE_BUILD_TIMEOUT,
            "environment/Dockerfile: the build did not end within 60 s; raise",
            id="deadline",
        ),
        pytest.param(
            ended(build={"exitCode": 124, "message": "INFO[0000] RUN false\n"}),
            Reason.IMAGE_BUILD_TIMEOUT,
            "environment/Dockerfile line 2, RUN false: the build did not end within 60 s; raise",
            id="hangs",
        ),
        pytest.param(
            ended(
                build={"exitCode": 143, "message": "INFO[0000] RUN false\n"},
                reason="Evicted",
                message="Pod ephemeral local storage usage exceeds the total limit of containers 20Gi.",
            ),
            Reason.IMAGE_BUILD_FAILED,
            "environment/Dockerfile line 2, RUN false: the build fills the disk",
            id="disk",
        ),
        pytest.param(
            ended(build={"exitCode": 137, "reason": "OOMKilled"}),
            Reason.IMAGE_BUILD_FAILED,
            "environment/Dockerfile: the build was killed for memory",
            id="memory",
        ),
        pytest.param(
            ended(context={"exitCode": int(StageExit.ARCHIVE_MISSING), "message": '{"message": "gone"}'}),
            Reason.TASK_ARCHIVE_MISSING,
            "the build context could not be prepared: gone",
            id="archive",
        ),
        pytest.param(
            ended(context={"exitCode": int(StageExit.TASK_UNSUPPORTED), "message": '{"message": "environment/Dockerfile line 3: no"}'}),
            Reason.IMAGE_BUILD_FAILED,
            "environment/Dockerfile line 3: no",
            id="here-document",
        ),
    ],
)
def test_a_failed_build_is_a_named_error(body: dict[str, Any], reason: Reason, text: str) -> None:
    end = judge_build(body, dockerfile="FROM a\nRUN false\n", timeout_seconds=60.0, now=NOW)
    assert isinstance(end, Judgement)
    assert end.error is not None
    assert (end.error.type, end.error.harbor == "SandboxBuildFailedError", end.valid, end.rewards) == (
        reason,
        reason is not Reason.TASK_ARCHIVE_MISSING,
        False,
        None,
    )
    assert end.error.message.startswith(text)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(ended(reason="NodeLost"), id="node lost"),
        pytest.param(ended(reason="Evicted", message="The node was low on resource: memory."), id="evicted"),
        pytest.param(
            ended(build={"exitCode": 1, "message": "error pushing image: dial tcp 10.0.0.1:5000: connect: connection refused\n"}),
            id="registry",
        ),
        pytest.param(ended(context={"exitCode": int(StageExit.STORE_UNAVAILABLE), "message": ""}), id="store"),
    ],
)
def test_what_is_not_the_tasks_fault_is_worth_another_try(body: dict[str, Any]) -> None:
    assert isinstance(judge_build(body, timeout_seconds=60.0, now=NOW), Passing)


def placed(*, phase: str = "Running", started: timedelta = timedelta(0), deleted: timedelta | None = None) -> dict[str, Any]:
    """A build's Pod on a node: since when its kubelet knows it, and since when somebody deletes it, both before NOW."""
    body = make_pod()
    if deleted is not None:
        body["metadata"] |= {"deletionTimestamp": format_time(NOW - deleted), "deletionGracePeriodSeconds": 5}
    body["spec"]["nodeName"] = "n1"
    terminated = {"terminated": {"exitCode": 143, "message": "INFO[0000] RUN false\n"}} if phase == "Failed" else {"running": {}}
    containers = [{"name": "build", "state": terminated}]
    return {**body, "status": {"phase": phase, "startTime": format_time(NOW - started), "containerStatuses": containers}}


DEADLINE = timedelta(seconds=make_pod()["spec"]["activeDeadlineSeconds"])


@pytest.mark.parametrize(
    ("body", "is_lost"),
    [
        pytest.param(placed(started=DEADLINE + timedelta(seconds=64)), False, id="its kubelet may be ending it"),
        pytest.param(placed(started=DEADLINE + timedelta(seconds=65)), True, id="its kubelet does not keep the deadline"),
        # As with trials: the deletion's time holds its grace period once, and is reckoned with it once more.
        pytest.param(placed(deleted=timedelta(seconds=64)), False, id="it may be ending"),
        pytest.param(placed(deleted=timedelta(seconds=65)), True, id="it does not end"),
        pytest.param(placed(phase="Failed", deleted=timedelta(seconds=65)), True, id="it ended and is not taken away"),
        pytest.param(
            placed(phase="Failed", deleted=timedelta(seconds=1)), False, id="killed by its deletion, which is no fault of the task"
        ),
    ],
)
def test_a_pod_whose_node_does_not_answer_is_lost_after_its_time(body: dict[str, Any], is_lost: bool) -> None:
    end = judge_build(body, dockerfile="FROM a\nRUN false\n", timeout_seconds=60.0, now=NOW)
    text = f"node n1 did not end the build's Pod seatrial-build-{KEY} in its time: it does not answer"
    assert end == (Passing(failure(Reason.NODE_LOST, text)) if is_lost else None)


def test_an_image_that_was_pushed_is_there_although_its_pod_is_lost() -> None:
    body = placed(deleted=timedelta(hours=1))
    body["status"]["containerStatuses"] = [{"name": "build", "state": {"terminated": {"exitCode": 0, "message": DIGEST}}}]
    assert judge_build(body, timeout_seconds=60.0, now=NOW) == Pushed(DIGEST)
