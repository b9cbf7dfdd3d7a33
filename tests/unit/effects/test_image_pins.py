"""Digests at planning: tags are pinned where the registry answers, and nobody waits for one that does not."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import cast

import pytest

from seatrial.core.frozen import FrozenPlan
from seatrial.effects import image_pins
from seatrial.effects.clock import SystemClock
from seatrial.effects.image_pins import ImagePins
from seatrial.effects.registry import BadAnswer, Registry, Throttled
from seatrial.errors import Forbidden, SeatrialError, Unavailable
from seatrial.taskpkg.mirrors import Mirrors
from tests.builders import make_job, make_task

DIGEST = "sha256:" + "ab" * 32
BUILT = "registry:5000/tasks@sha256:" + "cd" * 32
NONE = Mirrors()


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


class Tags:
    """A registry for every host: what begins with ``silent`` gets ``fault``, and what is ``absent`` is not there."""

    def __init__(self, *, silent: str = "", absent: str = "", fault: SeatrialError | None = None) -> None:
        self.silent, self.absent = silent, absent
        self.fault = fault or Unavailable("registry does not answer")
        self.asked: list[str] = []

    def digest(self, text: str, *, seconds: float) -> str | None:
        self.asked.append(text)
        if self.silent and text.startswith(self.silent):
            raise self.fault
        return None if text == self.absent else DIGEST


def make_pins(tags: Tags, clock: Clock | None = None, mirrors: Mirrors = NONE) -> ImagePins:
    return ImagePins(cast(Registry, tags), mirrors=mirrors, clock=cast(SystemClock, clock or Clock()))


def plan_of(*images: str) -> FrozenPlan:
    return make_job().tasks(*(make_task(f"bench/{number}", image=image) for number, image in enumerate(images))).plan()


def pins_of(plan: FrozenPlan) -> list[dict[str, str]]:
    return [dict(task.pins) for task in plan.tasks]


async def test_a_tag_is_pinned_and_asked_for_once() -> None:
    tags = Tags()
    pinned = await make_pins(tags).pin(plan_of("python:3.12", "python:3.12", f"python@{DIGEST}"))
    pin = {"python:3.12": f"python:3.12@{DIGEST}"}
    assert (pins_of(pinned), tags.asked) == ([pin, pin, {}], ["python:3.12"])


async def test_the_mirror_is_asked_and_pinned() -> None:
    tags = Tags()
    pinned = await make_pins(tags, mirrors=Mirrors({"docker.io": "mirror.example.com/hub"})).pin(plan_of("python:3.12"))
    read = "mirror.example.com/hub/library/python:3.12"
    assert (pins_of(pinned), tags.asked) == ([{"python:3.12": f"{read}@{DIGEST}"}], [read])


async def test_what_the_cluster_builds_or_has_built_is_not_asked_for() -> None:
    tags = Tags()
    tasks = (make_task("bench/a", image=None, build="ab" * 20), make_task("bench/b", image="x:1"))
    job = make_job().tasks(*tasks)
    plan = job.plan()
    pinned = await make_pins(tags).pin(plan)
    assert (pins_of(pinned), tags.asked) == ([{}, {"x:1": f"x:1@{DIGEST}"}], ["x:1"])


async def test_an_image_that_the_registry_does_not_have_runs_as_it_is_named() -> None:
    assert pins_of(await make_pins(Tags(absent="mine:dev")).pin(plan_of("mine:dev", "x:1"))) == [{}, {"x:1": f"x:1@{DIGEST}"}]


async def test_a_silent_registry_is_left_alone_for_a_while() -> None:
    tags, clock = Tags(silent="away.example.com/"), Clock()
    pins = make_pins(tags, clock)
    plan = plan_of("away.example.com/a:1", "x:1")
    expected = [{}, {"x:1": f"x:1@{DIGEST}"}]
    assert pins_of(await pins.pin(plan)) == expected
    assert pins_of(await pins.pin(plan)) == expected
    assert tags.asked.count("away.example.com/a:1") == 1
    clock.seconds = image_pins.SILENCE_SECONDS + 1
    tags.silent = ""
    assert pins_of(await pins.pin(plan))[0] == {"away.example.com/a:1": f"away.example.com/a:1@{DIGEST}"}


A, B, OTHER = "r.example.com/a:1", "r.example.com/b:1", "x:1"


@pytest.mark.parametrize(
    ("fault", "asked_again", "seconds"),
    [
        pytest.param(Forbidden("401"), [B, OTHER], image_pins.SILENCE_SECONDS, id="a refusal is the repository's"),
        pytest.param(BadAnswer("no digest"), [B, OTHER], image_pins.SILENCE_SECONDS, id="nonsense is the repository's"),
        pytest.param(Throttled("429", retry_after=7.0), [OTHER], 7.0, id="too many requests are the host's, as long as it says"),
        pytest.param(Throttled("429", retry_after=1e9), [OTHER], image_pins.SILENCE_SECONDS, id="and no longer than a silence"),
        pytest.param(Unavailable("503"), [OTHER], image_pins.SILENCE_SECONDS, id="no answer is the host's"),
    ],
)
async def test_who_is_left_alone_is_who_was_at_fault_and_as_long_as_that(
    fault: SeatrialError, asked_again: list[str], seconds: float
) -> None:
    tags, clock = Tags(silent="r.example.com/a", fault=fault), Clock()
    pins = make_pins(tags, clock)
    await pins.pin(plan_of(A))
    tags.asked.clear()
    clock.seconds = seconds - 0.1
    await pins.pin(plan_of(A, B, OTHER))
    assert sorted(tags.asked) == asked_again
    tags.asked.clear()
    clock.seconds = seconds
    await pins.pin(plan_of(A))
    assert tags.asked == [A]


class Hanging(Tags):
    """Requests to ``silent`` end when the test says so."""

    def __init__(self, *, silent: str) -> None:
        super().__init__(silent=silent)
        self.release = threading.Event()

    def digest(self, text: str, *, seconds: float) -> str | None:
        if text.startswith(self.silent):
            self.asked.append(text)
            self.release.wait(60)
            raise self.fault
        return super().digest(text, seconds=seconds)


async def test_registries_that_hang_take_no_others_turn_and_leave_their_own_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_pins, "BUDGET_SECONDS", 0.3)
    tags, clock = Hanging(silent="slow"), Clock()
    pins = make_pins(tags, clock)
    slow = [f"slow{host}.example.com/{number}:1" for host in range(10) for number in range(5)]
    try:
        # Two requests a host hang, and not more than this plan may ask at a time; planning goes on without them.
        assert pins_of(await pins.pin(plan_of(*slow))) == [{}] * 50
        hanging = Counter(name.partition("/")[0] for name in tags.asked)
        assert set(hanging.values()) == {2}
        assert hanging.total() <= image_pins.PARALLEL_PER_PLAN < image_pins.PARALLEL
        # The others' plans, on the threads that are left.
        assert pins_of(await pins.pin(plan_of(OTHER))) == [{OTHER: f"{OTHER}@{DIGEST}"}]
    finally:
        clock.seconds = 0.3
        tags.release.set()
    # What had not begun in time is not asked for afterwards, and nobody is blamed for it.
    await until(lambda: not pins._asked)
    assert (len(tags.asked), pins._silent.keys()) == (hanging.total() + 1, hanging.keys())


async def until(good: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not good():  # noqa: ASYNC110 the code under test has no event for it
            await asyncio.sleep(0.002)


async def test_what_tasks_name_is_forgotten_in_time() -> None:
    tags, clock = Tags(silent="host"), Clock()
    pins = make_pins(tags, clock)
    await pins.pin(plan_of(*(f"host{number}.example.com/a:1" for number in range(100))))
    assert len(pins._silent) == 100
    clock.seconds = image_pins.SILENCE_SECONDS
    await pins.pin(plan_of("host.example.com/a:1"))
    assert list(pins._silent) == ["host.example.com"]
    assert len(pins._hosts) == 0


async def test_a_name_that_is_no_reference_is_left_to_the_kubelet() -> None:
    assert pins_of(await make_pins(Tags()).pin(plan_of("Not An Image"))) == [{}]
