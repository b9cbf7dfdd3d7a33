"""Digests at planning: tags are pinned where the registry answers, and nobody waits for one that does not."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from seatrial.core.frozen import FrozenPlan
from seatrial.effects import image_pins
from seatrial.effects.clock import SystemClock
from seatrial.effects.image_pins import ImagePins
from seatrial.effects.registry import Registry
from seatrial.errors import Unavailable
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
    """A registry for every host: ``silent`` ones do not answer, and what is ``absent`` is not there."""

    def __init__(self, *, silent: str = "", absent: str = "") -> None:
        self.silent, self.absent = silent, absent
        self.asked: list[str] = []

    def digest(self, text: str) -> str | None:
        self.asked.append(text)
        if self.silent and text.startswith(self.silent):
            raise Unavailable("registry does not answer")
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


@pytest.mark.parametrize("limit", ["ANSWER_SECONDS", "BUDGET_SECONDS"])
async def test_planning_does_not_wait_for_a_registry_that_hangs(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(image_pins, limit, 0.05)
    release = threading.Event()

    class Hanging(Tags):
        def digest(self, text: str) -> str | None:
            release.wait(30)
            return DIGEST

    try:
        assert pins_of(await make_pins(Hanging()).pin(plan_of("x:1"))) == [{}]
    finally:
        release.set()


async def test_a_name_that_is_no_reference_is_left_to_the_kubelet() -> None:
    assert pins_of(await make_pins(Tags()).pin(plan_of("Not An Image"))) == [{}]
