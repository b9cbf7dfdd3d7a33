"""Many jobs at once: the limit for all of them, equal shares, and that a large job holds nobody up."""

from __future__ import annotations

from collections import Counter

from tests.integration.harness import World, operator, wait_until, world


def live(cluster: World) -> Counter[str]:
    """Live Pods by job."""
    pods = [pod for pod in cluster.pods() if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")]
    return Counter(pod["metadata"]["labels"]["seatrial.dev/job-name"] for pod in pods)


async def end_one(cluster: World, job: str) -> None:
    """One Pod of the job is scored, and gone."""

    def names() -> list[str]:
        return [pod["metadata"]["name"] for pod in cluster.pods() if pod["metadata"]["labels"]["seatrial.dev/job-name"] == job]

    name = names()[0]
    cluster.finish(name, rewards={"reward": 1.0})
    await wait_until(names, lambda seen: name not in seen)


async def test_jobs_share_the_limit_equally_and_say_that_they_wait() -> None:
    async with world(max_pods=4) as cluster, operator(cluster):
        cluster.fate = lambda pod: "silent"
        cluster.suite(2)
        cluster.submit("first", attempts=10, concurrency=10)
        await wait_until(lambda: live(cluster), lambda seen: seen == {"first": 4})
        cluster.submit("second", attempts=10, concurrency=10)
        await wait_until(lambda: cluster.condition("Progressing", "second"), lambda seen: seen == ("False", "Queued"), seconds=20)
        most = 4
        while live(cluster)["second"] < 2:
            await wait_until(lambda: sum(live(cluster).values()), lambda seen: seen >= 4, seconds=20)
            most = max(most, sum(live(cluster).values()))
            await end_one(cluster, "first")
        assert most == 4
        await wait_until(lambda: sum(live(cluster).values()), lambda count: count == 4, seconds=20)
        assert live(cluster) == {"first": 2, "second": 2}


async def test_jobs_that_create_their_pods_at_the_same_moment_stay_below_the_limit() -> None:
    jobs = [f"job-{number}" for number in range(6)]
    async with world(max_pods=3) as cluster:
        cluster.fate = lambda pod: "silent"
        cluster.suite(2)
        for job in jobs:
            cluster.submit(job, attempts=10, concurrency=10)

        def undecided() -> list[str]:
            return [job for job in jobs if not live(cluster)[job] and cluster.condition("Progressing", job) != ("False", "Queued")]

        async with operator(cluster):
            await wait_until(undecided, lambda left: left == [], seconds=20)
            assert sum(live(cluster).values()) == 3


async def test_a_suspended_job_that_waited_leaves_its_share_to_the_others() -> None:
    async with world(max_pods=4) as cluster, operator(cluster):
        cluster.fate = lambda pod: "silent"
        cluster.suite(2)
        cluster.submit("first", attempts=10, concurrency=10)
        await wait_until(lambda: live(cluster), lambda seen: seen == {"first": 4})
        cluster.submit("second", attempts=10, concurrency=10)
        await wait_until(lambda: cluster.condition("Progressing", "second"), lambda seen: seen == ("False", "Queued"), seconds=20)
        cluster.edit("second", suspend=True)
        await wait_until(lambda: cluster.condition("Suspended", "second")[0], lambda status: status == "True", seconds=20)
        for _ in range(4):
            await end_one(cluster, "first")
        await wait_until(lambda: live(cluster), lambda seen: seen == {"first": 4}, seconds=20)


async def test_the_limit_is_no_one_jobs_while_it_is_alone_and_all_jobs_end() -> None:
    async with world(max_pods=3) as cluster, operator(cluster):
        cluster.suite(2)
        for name in ("a", "b", "c"):
            cluster.submit(name, attempts=4, concurrency=5)
        for name in ("a", "b", "c"):
            status = await cluster.ended(name, seconds=60)
            assert status["trials"]["scored"] == 8


async def test_a_small_job_is_not_held_up_by_a_large_one() -> None:
    async with world() as cluster, operator(cluster):
        cluster.suite(2)
        cluster.fate = lambda pod: "silent" if pod["metadata"]["labels"]["seatrial.dev/job-name"] == "large" else "scored"
        cluster.submit("large", attempts=200, concurrency=400)
        await wait_until(lambda: live(cluster)["large"], lambda count: count > 0)
        cluster.submit("small", attempts=1, concurrency=2)
        await wait_until(lambda: cluster.condition("Finished", "small")[0], lambda status: status == "True", seconds=20)
        assert live(cluster)["large"] < 400, "the large job was done first: nothing is shown"
