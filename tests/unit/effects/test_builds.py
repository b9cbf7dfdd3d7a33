"""Images that the cluster builds: once per key, through failures of the registry, and with an end that the trials can read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, cast

import pytest

from seatrial.api.reasons import Reason
from seatrial.core.builds import BuildSettings, build_pod
from seatrial.core.frozen import FrozenPlan
from seatrial.core.manifests import PodSettings
from seatrial.core.observe import format_time
from seatrial.core.plan import ImageWait
from seatrial.core.trial import Judgement
from seatrial.effects import builds
from seatrial.effects.aiostore import AsyncStore
from seatrial.effects.builds import ImageBuilds
from seatrial.effects.clock import SystemClock
from seatrial.effects.kube import Kube, MissingRight
from seatrial.effects.metrics import Metrics
from seatrial.effects.registry import Registry
from seatrial.errors import AlreadyExists, NotFound, Unavailable
from tests.builders import make_job, make_task

KEY = "ab" * 20
DIGEST = "sha256:" + "cd" * 32
IMAGE = f"registry:5000/tasks@{DIGEST}"
PUSHED = {"phase": "Succeeded", "containerStatuses": [{"name": "build", "state": {"terminated": {"exitCode": 0, "message": DIGEST}}}]}
BROKEN = {
    "phase": "Failed",
    "initContainerStatuses": [{"name": "context", "state": {"terminated": {"exitCode": 0, "message": "FROM a\nRUN false\n"}}}],
    "containerStatuses": [
        {"name": "build", "state": {"terminated": {"exitCode": 1, "message": "INFO[0] RUN false\nerror building image: exit status 1"}}}
    ],
}


class Api:
    """Pods by name; ``ends`` are the states of the Pods in the order of their creation."""

    def __init__(self, *ends: Mapping[str, Any]) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.ends = list(ends)
        self.created = 0
        self.graces: list[int] = []
        """Of the deletions, in seconds."""
        self.is_cut_off = False
        """No kubelet answers: only a deletion without grace takes a Pod away."""
        self.may_patch = True
        self.posting = asyncio.Event()
        self.posting.set()
        """Cleared: answers to creates do not come."""

    async def request(
        self, method: str, path: str, *, params: object = None, body: Mapping[str, Any], content_type: str = ""
    ) -> Mapping[str, Any]:
        await asyncio.sleep(0)
        name = path.rpartition("/")[2]
        if method == "DELETE":
            self.graces.append(body["gracePeriodSeconds"])
            if self.is_cut_off and body["gracePeriodSeconds"]:
                return {}
            if name in self.pods and self.pods[name]["metadata"]["uid"] == body["preconditions"]["uid"]:
                del self.pods[name]
            return {}
        if method == "PATCH":
            if name not in self.pods:
                raise NotFound(name)
            return self.patch(self.pods[name], body, content_type)
        name = body["metadata"]["name"]
        if name in self.pods:
            raise AlreadyExists(name)
        self.created += 1
        self.pods[name] = {**body, "metadata": {**body["metadata"], "uid": f"uid-{self.created}"}, "status": {"phase": "Pending"}}
        await self.posting.wait()
        return self.pods[name]

    def patch(self, pod: dict[str, Any], body: Mapping[str, Any], content_type: str) -> Mapping[str, Any]:
        """Owners by UID, as the server merges them."""
        if not self.may_patch:
            raise MissingRight("cannot patch resource pods")
        assert (content_type, body["metadata"]["uid"]) == ("application/strategic-merge-patch+json", pod["metadata"]["uid"])
        owners = {owner["uid"]: owner for owner in pod["metadata"]["ownerReferences"]}
        for owner in body["metadata"]["ownerReferences"]:
            if owner.get("$patch") == "delete":
                del owners[owner["uid"]]
            else:
                owners[owner["uid"]] = owner
        pod["metadata"] = {**pod["metadata"], "ownerReferences": list(owners.values())}
        return pod

    def collect(self, *job_uids: str) -> None:
        """What the garbage collector does when jobs are deleted."""
        for name, pod in list(self.pods.items()):
            owners = [owner for owner in pod["metadata"]["ownerReferences"] if owner["uid"] not in job_uids]
            if not owners:
                del self.pods[name]
            else:
                pod["metadata"] = {**pod["metadata"], "ownerReferences": owners}

    def owners(self) -> list[str]:
        """UIDs of the one Pod's owners."""
        (pod,) = self.pods.values()
        return [owner["uid"] for owner in pod["metadata"]["ownerReferences"]]

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        await asyncio.sleep(0)
        if params is not None:
            assert (path, params) == ("/api/v1/namespaces/evals/pods", {"labelSelector": "seatrial.dev/role=build"})
            return {"items": list(self.pods.values())}
        name = path.rpartition("/")[2]
        if name not in self.pods:
            raise NotFound(name)
        if self.ends:
            self.pods[name]["status"] = self.ends.pop(0)
        return self.pods[name]


class Tags:
    """A registry that has nothing, after ``outages`` calls without an answer."""

    def __init__(self, *, outages: int = 0, has: str | None = None) -> None:
        self.outages, self.has, self.asked = outages, has, 0

    def digest(self, text: str) -> str | None:
        self.asked += 1
        if self.asked <= self.outages:
            raise Unavailable("registry registry:5000 does not answer: connection refused")
        return self.has


class Urls:
    def presign_get(self, key: str, *, expires_seconds: int) -> str:
        return f"http://s3/{key}"


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(builds, "PAUSES_SECONDS", (0.001,))


def make_builds(api: Api, tags: Tags, woken: list[str]) -> ImageBuilds:
    return ImageBuilds(
        cast(Kube, api),
        cast(AsyncStore, Urls()),
        cast(Registry, tags),
        settings=BuildSettings(repository="registry:5000/tasks", executor_image="executor:1"),
        pods=PodSettings("runner:1"),
        concurrency=2,
        clock=SystemClock(),
        metrics=Metrics(),
        wake=woken.append,
    )


PLAN = make_job().tasks(make_task("bench/a", image=None, build=KEY), make_task("bench/b")).plan()
SPEC = make_job().job_spec()


async def until(good: Callable[[], bool]) -> None:
    """Let the builds go on until ``good``."""
    async with asyncio.timeout(30):
        while not good():  # noqa: ASYNC110 the code under test has no event for it
            await asyncio.sleep(0.002)


async def settle(images: ImageBuilds, plan: FrozenPlan = PLAN) -> Mapping[int, ImageWait | Judgement]:
    """What ``look`` says once nothing waits any more."""
    await until(lambda: not any(isinstance(state, ImageWait) for state in images.look(plan, SPEC, [0, 1]).values()))
    return images.look(plan, SPEC, [0, 1])


async def test_the_trials_wait_until_the_image_is_pushed_and_the_job_is_woken_at_each_change() -> None:
    api, woken = Api(PUSHED), list[str]()
    images = make_builds(api, Tags(), woken)
    assert images.look(PLAN, SPEC, [0, 1]) == {0: ImageWait(Reason.IMAGE_BUILDING, "the image of task bench/a is not built yet")}
    assert images.images("evals", PLAN.tasks[0]) == {}
    assert await settle(images) == {}
    assert (images.images("evals", PLAN.tasks[0]), images.images("evals", PLAN.tasks[1])) == ({"environment": IMAGE}, {})
    assert (woken, api.pods, api.created) == ([PLAN.uid] * 2, {}, 1)
    counts = {
        sample.labels["outcome"]: sample.value
        for metric in images._metrics.build_seconds.collect()
        for sample in metric.samples
        if sample.name.endswith("_count")
    }
    assert counts == {"pushed": 1, "failed": 0}


async def test_an_image_that_the_registry_has_is_not_built() -> None:
    api = Api()
    images = make_builds(api, Tags(has=DIGEST), [])
    assert await settle(images) == {}
    assert (images.images("evals", PLAN.tasks[0]), api.created) == ({"environment": IMAGE}, 0)


async def test_many_jobs_that_wait_for_one_image_cause_one_build() -> None:
    api, woken = Api(PUSHED), list[str]()
    images = make_builds(api, Tags(), woken)
    plans = [replace(PLAN, uid=f"uid-{number}") for number in range(50)]
    for plan in plans:
        images.look(plan, SPEC, [0])
    assert [await settle(images, plan) for plan in plans] == [{}] * 50
    assert (api.created, set(woken)) == (1, {plan.uid for plan in plans})


VERIFIER_KEY = "ef" * 20
BOTH = make_job().tasks(make_task("bench/a", image=None, build=KEY, bundled_verifier=True, verifier_build=VERIFIER_KEY)).plan()


async def test_a_task_waits_for_the_image_of_its_separate_verifier_too() -> None:
    api = Api(PUSHED, PUSHED)
    images = make_builds(api, Tags(), [])
    assert images.look(BOTH, SPEC, [0]) == {0: ImageWait(Reason.IMAGE_BUILDING, "the image of task bench/a is not built yet")}
    await until(lambda: images.look(BOTH, SPEC, [0]) == {})
    assert (images.images("evals", BOTH.tasks[0]), api.created) == ({"environment": IMAGE, "verifier": IMAGE}, 2)


async def test_one_image_that_cannot_be_built_errors_the_task_although_the_other_can() -> None:
    images = make_builds(Api(PUSHED, BROKEN), Tags(), [])
    await until(lambda: isinstance(images.look(BOTH, SPEC, [0]).get(0), Judgement) and len(images.images("evals", BOTH.tasks[0])) == 1)
    state = images.look(BOTH, SPEC, [0])[0]
    assert isinstance(state, Judgement)
    assert state.error is not None
    assert state.error.message.endswith("/Dockerfile line 2, RUN false: error building image: exit status 1")


async def test_a_registry_that_is_away_is_waited_for() -> None:
    api = Api(PUSHED)
    images = make_builds(api, Tags(outages=7), [])
    assert await settle(images) == {}
    assert api.created == 1


async def test_a_broken_dockerfile_is_judged_once_with_its_line() -> None:
    api = Api(BROKEN)
    states = await settle(make_builds(api, Tags(), []))
    assert isinstance(states[0], Judgement)
    assert states[0].error is not None
    assert (states[0].error.type, states[0].error.message) == (
        Reason.IMAGE_BUILD_FAILED,
        "environment/Dockerfile line 2, RUN false: error building image: exit status 1",
    )
    assert (api.created, api.pods) == (1, {})


async def test_the_pod_of_a_failed_build_is_kept_as_long_as_the_job_wants_and_a_later_job_replaces_it() -> None:
    api = Api(BROKEN, BROKEN, PUSHED)  # the second is read when the later job finds the Pod
    images = make_builds(api, Tags(), [])
    spec = make_job().spec(pod={"keepFailedSeconds": 3600}).job_spec()
    await until(lambda: isinstance(images.look(PLAN, spec, [0]).get(0), Judgement))
    assert list(api.pods) == [f"seatrial-build-{KEY}"]
    assert await settle(images, replace(PLAN, uid="uid-later")) == {}
    assert (api.created, api.pods) == (2, {})


async def test_the_pod_of_a_failed_build_goes_when_its_time_is_over() -> None:
    api = Api(BROKEN)
    images = make_builds(api, Tags(), [])
    spec = make_job().spec(pod={"keepFailedSeconds": 1}).job_spec()
    await until(lambda: isinstance(images.look(PLAN, spec, [0]).get(0), Judgement))
    await until(lambda: not api.pods)
    assert api.created == 1


async def test_a_later_job_tries_a_failed_build_again_and_the_first_keeps_its_failure() -> None:
    api = Api(BROKEN, PUSHED)
    images = make_builds(api, Tags(), [])
    assert isinstance((await settle(images))[0], Judgement)
    assert isinstance((await settle(images))[0], Judgement)
    assert await settle(images, replace(PLAN, uid="uid-later")) == {}
    assert api.created == 2


@pytest.mark.parametrize(
    ("ends", "made"),
    [
        pytest.param([{"phase": "Failed", "reason": "NodeLost"}, PUSHED], True, id="once"),
        pytest.param([{"phase": "Failed", "reason": "NodeLost"}] * 3, False, id="for ever"),
    ],
)
async def test_a_build_that_was_lost_is_repeated_a_few_times(ends: list[Mapping[str, Any]], made: bool) -> None:
    api = Api(*ends)
    states = await settle(make_builds(api, Tags(), []))
    assert (states == {}) is made
    assert api.created == len(ends)


def leave_pod(api: Api, *, waiters: Mapping[str, str], **status: Any) -> dict[str, Any]:
    """A Pod of an earlier process."""
    pod = build_pod(
        PLAN,
        PLAN.tasks[0],
        role="environment",
        key=KEY,
        archive_url="http://s3/a",
        timeout_seconds=60,
        settings=BuildSettings(repository="registry:5000/tasks", executor_image="executor:1"),
        pods=PodSettings("r:1"),
        waiters=waiters,
    )
    pod["metadata"]["uid"] = "uid-of-an-earlier-process"
    api.pods[pod["metadata"]["name"]] = {**pod, "status": status}
    return pod


async def test_after_a_restart_the_pod_that_is_at_work_is_taken_over() -> None:
    api = Api(PUSHED)
    leave_pod(api, waiters={PLAN.uid: PLAN.job})
    images = make_builds(api, Tags(), [])
    assert await settle(images) == {}
    assert (images.images("evals", PLAN.tasks[0]), api.created, api.pods) == ({"environment": IMAGE}, 0, {})


async def test_a_build_that_nobody_waits_for_any_more_ends_and_leaves_no_pod() -> None:
    api = Api()
    images = make_builds(api, Tags(), [])
    images.look(PLAN, SPEC, [0])
    await until(lambda: api.created > 0)
    images.forget(PLAN.uid)
    await until(lambda: not api.pods)
    assert api.created == 1


IMPATIENT = make_job().spec(timeouts={"pending": "1s"}).job_spec()
SECOND = replace(PLAN, uid="uid-second", job="second")


async def test_a_build_that_two_jobs_wait_for_belongs_to_both_and_outlives_the_first() -> None:
    api = Api()
    images = make_builds(api, Tags(), [])
    images.look(PLAN, SPEC, [0])
    await until(lambda: api.created == 1)
    images.look(SECOND, SPEC, [0])
    await until(lambda: api.owners() == [PLAN.uid, SECOND.uid])
    # The first job ends ...
    images.forget(PLAN.uid)
    await until(lambda: api.owners() == [SECOND.uid])
    # ... and is deleted.
    api.collect(PLAN.uid)
    api.ends.append(PUSHED)
    assert await settle(images, SECOND) == {}
    assert (images.images("evals", PLAN.tasks[0]), api.created, api.pods) == ({"environment": IMAGE}, 1, {})


@pytest.mark.parametrize("times", [1, 5])
async def test_a_build_that_went_with_the_job_it_belonged_to_is_begun_anew_for_the_others_and_no_trial_errs(times: int) -> None:
    api = Api()
    api.may_patch = False  # as in the moment before the Pod belongs to the second job, for ever
    images = make_builds(api, Tags(), [])
    plans = [replace(PLAN, uid=f"uid-{number}") for number in range(times + 1)]
    images.look(plans[0], SPEC, [0])
    for plan, later in pairwise(plans):
        await until(lambda plan=plan: bool(api.pods) and api.owners() == [plan.uid])  # type: ignore[misc]
        images.look(later, SPEC, [0])
        images.forget(plan.uid)
        api.collect(plan.uid)
    await until(lambda: api.created == times + 1)
    api.ends.append(PUSHED)
    assert await settle(images, plans[-1]) == {}
    assert api.pods == {}


async def test_a_build_whose_last_job_leaves_while_its_pod_is_being_created_leaves_no_pod() -> None:
    api = Api()
    api.posting.clear()
    images = make_builds(api, Tags(), [])
    images.look(PLAN, SPEC, [0])
    await until(lambda: api.created == 1)
    images.forget(PLAN.uid)
    await asyncio.sleep(0)
    api.posting.set()
    await until(lambda: not api.pods)


async def test_after_a_restart_the_pod_of_jobs_that_have_all_ended_goes_with_the_last_of_them() -> None:
    api = Api()
    leave_pod(api, waiters={PLAN.uid: PLAN.job, SECOND.uid: SECOND.job}, phase="Running")
    images = make_builds(api, Tags(), [])
    await images.recall(["evals"])
    images.forget(PLAN.uid)
    # Were the second job deleted in the meantime, the garbage collector would take the Pod now.
    await until(lambda: api.owners() == [SECOND.uid])
    images.forget(SECOND.uid)
    await until(lambda: not api.pods)
    assert (api.created, api.graces) == (0, [1])


async def test_after_a_restart_the_pod_that_a_job_asks_for_goes_on_although_its_first_job_has_ended() -> None:
    api = Api()
    leave_pod(api, waiters={PLAN.uid: PLAN.job, SECOND.uid: SECOND.job}, phase="Running")
    images = make_builds(api, Tags(), [])
    await images.recall(["evals"])
    images.look(SECOND, SPEC, [0])
    await until(lambda: api.owners() == [SECOND.uid])
    images.forget(PLAN.uid)
    api.ends.append(PUSHED)
    assert await settle(images, SECOND) == {}
    assert (api.created, api.pods) == (0, {})


async def test_a_build_on_a_node_that_is_cut_off_is_given_up_and_made_again() -> None:
    long_ago = format_time(datetime.now(UTC) - timedelta(days=1))
    api = Api({"phase": "Running", "startTime": long_ago})
    api.is_cut_off = True
    images = make_builds(api, Tags(), [])
    images.look(PLAN, SPEC, [0])
    await until(lambda: api.created == 2)
    api.ends.append(PUSHED)
    api.is_cut_off = False
    assert await settle(images) == {}
    assert (api.graces, api.pods) == ([0, 1], {})


async def test_after_a_restart_a_pod_that_its_node_does_not_take_away_holds_nobody_up() -> None:
    api = Api()
    api.is_cut_off = True
    pod = leave_pod(api, waiters={"uid-gone": "gone"}, phase="Running")
    pod["metadata"] |= {"deletionTimestamp": format_time(datetime.now(UTC) - timedelta(minutes=2)), "deletionGracePeriodSeconds": 5}
    images = make_builds(api, Tags(), [])
    images.look(PLAN, SPEC, [0])
    await until(lambda: api.created == 1)
    api.ends.append(PUSHED)
    api.is_cut_off = False
    assert await settle(images) == {}
    assert (api.graces, api.pods) == ([0, 1], {})


async def test_a_pod_that_does_not_go_away_is_no_fault_of_the_registry() -> None:
    api = Api()
    api.is_cut_off = True
    pod = leave_pod(api, waiters={"uid-gone": "gone"}, phase="Running")
    pod["metadata"] |= {"deletionTimestamp": format_time(datetime.now(UTC)), "deletionGracePeriodSeconds": 5}
    images = make_builds(api, Tags(), [])
    await until(lambda: isinstance(images.look(PLAN, IMPATIENT, [0]).get(0), Judgement))
    state = images.look(PLAN, IMPATIENT, [0])[0]
    assert isinstance(state, Judgement)
    assert state.error is not None
    text = f"the image could not be provided in time: Pod seatrial-build-{KEY} does not go away"
    assert (state.error.type, state.error.message) == (Reason.IMAGE_BUILDING, text)


@pytest.mark.parametrize(
    ("api", "tags", "reason"),
    [
        pytest.param(Api(), Tags(outages=1_000_000), Reason.REGISTRY_UNAVAILABLE, id="a registry that stays away"),
        pytest.param(Api(), Tags(), Reason.POD_START_TIMEOUT, id="a Pod that does not start"),
    ],
)
async def test_a_job_whose_time_is_over_is_told_why_and_the_others_wait_on(api: Api, tags: Tags, reason: Reason) -> None:
    woken: list[str] = []
    images = make_builds(api, tags, woken)
    images.look(PLAN, IMPATIENT, [0])
    images.look(SECOND, SPEC, [0])
    await until(lambda: isinstance(images.look(PLAN, IMPATIENT, [0])[0], Judgement))
    state = images.look(PLAN, IMPATIENT, [0])[0]
    assert isinstance(state, Judgement)
    assert state.error is not None
    assert (state.error.type, PLAN.uid in woken) == (reason, True)
    images.forget(PLAN.uid)
    assert isinstance(images.look(SECOND, SPEC, [0])[0], ImageWait)
    tags.outages = 0
    await until(lambda: api.created == 1)
    api.ends.append(PUSHED)
    assert await settle(images, SECOND) == {}
    assert (api.created, api.pods) == (1, {})
