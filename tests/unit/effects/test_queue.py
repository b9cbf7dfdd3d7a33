from __future__ import annotations

import asyncio

import pytest

from seatrial.effects.queue import WorkQueue


async def taken(queue: WorkQueue[str], seconds: float = 0.5) -> str:
    return await asyncio.wait_for(queue.take(), seconds)


async def nothing(queue: WorkQueue[str], seconds: float = 0.02) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.take(), seconds)


async def test_a_waiting_key_is_there_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for _ in range(3):
        queue.add("a")
    assert await taken(queue) == "a"
    queue.done("a", failed=False)
    await nothing(queue)


async def test_a_key_that_is_worked_on_is_not_handed_out_and_comes_once_more() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await taken(queue) == "a"
    queue.add("a")
    queue.add("a")
    await nothing(queue)
    queue.done("a", failed=False)
    assert await taken(queue) == "a"
    queue.done("a", failed=False)
    await nothing(queue)


async def test_the_earliest_of_several_delays_wins_and_an_immediate_add_beats_them() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 60)
    queue.add("a", 0.01)
    assert await taken(queue) == "a"
    queue.done("a", failed=False)
    queue.add("a", 60)
    queue.add("a")
    assert await taken(queue) == "a"
    queue.done("a", failed=False)
    await nothing(queue)


async def test_after_a_failure_the_key_comes_again_and_no_event_shortens_the_pause() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    await taken(queue)
    queue.add("a")
    queue.done("a", failed=True)
    queue.add("a")
    await nothing(queue, 0.3)
    loop = asyncio.get_running_loop()
    started = loop.time()
    assert await taken(queue, 5) == "a"
    assert loop.time() - started > 0.5


async def test_a_stream_of_events_costs_one_pass_after_the_rest() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    await taken(queue)
    queue.rest("a", 0.1)
    queue.done("a", failed=False)
    for _ in range(5):
        queue.add("a")
    await nothing(queue, 0.05)
    assert await taken(queue) == "a"
    queue.done("a", failed=False)
    await nothing(queue)


async def test_a_change_during_a_pass_rests_too_and_is_not_lost() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    await taken(queue)
    queue.add("a")
    queue.rest("a", 0.05)
    queue.done("a", failed=False)
    await nothing(queue)
    assert await taken(queue) == "a"


async def test_keys_do_not_wait_for_each_other() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    queue.add("b")
    assert [await taken(queue), await taken(queue)] == ["a", "b"]


async def test_a_closed_queue_hands_out_nothing_and_gets_idle() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    await taken(queue)
    queue.add("b")
    queue.close()
    await nothing(queue)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.idle(), 0.02)
    queue.done("a", failed=False)
    await asyncio.wait_for(queue.idle(), 0.5)


async def test_a_forgotten_key_does_not_come_back() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 0.02)
    queue.forget("a")
    await nothing(queue, 0.05)


async def test_depth_and_age_are_those_of_the_waiting_keys() -> None:
    queue: WorkQueue[str] = WorkQueue()
    assert (queue.depth, queue.oldest_seconds) == (0, 0.0)
    queue.add("a")
    queue.add("b")
    assert queue.depth == 2
    assert queue.oldest_seconds >= 0.0
