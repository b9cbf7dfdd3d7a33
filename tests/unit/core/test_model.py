"""Every interleaving of operator, Pods, informer and store for small jobs; random long walks for larger ones."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.protocol import FINAL, Model, State, rows_of


def check(model: Model, state: State) -> None:
    """What holds in every state.

    Raises:
        AssertionError: it does not.
    """
    alive = Counter(pod.trial for pod in state.pods if pod.phase not in FINAL and pod.phase != "stranded")
    assert all(count <= 1 for count in alive.values()), "two live Pods of one trial"
    keys = Counter((row.trial, row.retry) for line in state.rows for rows in rows_of(frozenset({line})).values() for row in rows)
    assert all(count == 1 for count in keys.values()), "two rows for one retry"
    for rows in rows_of(state.rows).values():
        assert [row.is_final for row in rows] == [False] * (len(rows) - 1) + [rows[-1].is_final], "a row after a final one"
    if state.is_up:
        decided = model.decide(state)
        assert decided.progress is not None
        assert decided.progress.total == model.trials, "counts do not add up"
        final = {row.trial for row in decided.progress.final}
        assert not final & {action.row.trial for action in decided.commits}, "a final trial is committed again"
        assert not final & {action.trial.name for action in decided.creates}, "a final trial gets a Pod"


def check_end(model: Model, state: State, *, faults: int) -> None:
    """What holds when everything is over.

    Raises:
        AssertionError: it does not.
    """
    final, rows = model.final(state), rows_of(state.rows)
    for trial, retry in state.results:
        if not state.cancelled:
            assert (final[trial].retry, final[trial].outcome) == (retry, "scored"), "a stored result is lost"
    for trial, name in enumerate(model.names):
        assert state.runs[trial] <= 1 + faults, "an agent ran without cause"
        if not faults and not state.cancelled:
            assert (state.runs[trial], len(rows[name]), final[trial].outcome) == (1, 1, "scored")


def explore(model: Model, start: State, *, faults: int) -> int:
    """All reachable states; from each of them the end can be reached. The answer is their number.

    Raises:
        AssertionError: a promise does not hold; the message has the shortest way there.
    """
    came: dict[State, tuple[State, str] | None] = {start: None}
    before: dict[State, list[State]] = {start: []}
    queue = deque([start])
    ends: list[State] = []

    def guarded(test: Callable[[], None], state: State) -> None:
        try:
            test()
        except AssertionError as error:
            way: list[str] = []
            at: State | None = state
            while at is not None and (step := came[at]) is not None:
                at = step[0]
                way.append(step[1])
            raise AssertionError(f"{error}: {' > '.join(reversed(way))}\n{state}") from None

    while queue:
        state = queue.popleft()
        guarded(lambda state=state: check(model, state), state)  # type: ignore[misc]
        edges = list(model.edges(state))
        if model.ended(state):
            guarded(lambda state=state: check_end(model, state, faults=faults), state)  # type: ignore[misc]
            ends.append(state)
        for name, after in edges:
            if after not in came:
                came[after] = (state, name)
                before[after] = []
                queue.append(after)
            before[after].append(state)
    reaching, back = set(ends), deque(ends)
    while back:
        for state in before[back.popleft()]:
            if state not in reaching:
                reaching.add(state)
                back.append(state)
    stuck = next((state for state in came if state not in reaching), None)
    if stuck is not None:
        guarded(lambda: pytest.fail("no way leads to the end from here"), stuck)
    return len(came)


@pytest.mark.parametrize(
    ("concurrency", "budgets"),
    [
        (2, {"crashes": 2, "lost": 1}),
        (1, {"crashes": 2, "lost": 2}),
        (1, {"crashes": 2, "faults": 1}),
        (2, {"crashes": 1, "faults": 1, "lost": 1}),
        (1, {"crashes": 1, "cuts": 1}),
        (2, {"crashes": 1, "cuts": 1}),
    ],
    ids=["crashes-and-a-lost-answer", "one-at-a-time", "crashes-and-a-lost-pod", "one-of-each", "cut-off-alone", "cut-off-beside-another"],
)
def test_every_interleaving_of_two_trials_keeps_the_promises(
    concurrency: int, budgets: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    model = Model(trials=2, concurrency=concurrency)
    crashes, faults, lost, cuts = (budgets.get(name, 0) for name in ("crashes", "faults", "lost", "cuts"))
    count = explore(model, model.start(crashes=crashes, faults=faults, lost=lost, cuts=cuts), faults=faults + cuts)
    with capsys.disabled():
        print(f"\n{budgets}, {concurrency} at a time: {count} states, {len(model._decided)} plans", end="")
    assert count > 500


@settings(max_examples=80, deadline=None)
@given(
    trials=st.integers(1, 5),
    concurrency=st.integers(1, 3),
    crashes=st.integers(0, 6),
    faults=st.integers(0, 4),
    lost=st.integers(0, 3),
    cuts=st.integers(0, 2),
    cancel=st.booleans(),
    choices=st.lists(st.integers(0, 10_000), min_size=20, max_size=250),
)
def test_any_walk_keeps_the_promises_and_comes_to_the_end(
    *, trials: int, concurrency: int, crashes: int, faults: int, lost: int, cuts: int, cancel: bool, choices: list[int]
) -> None:
    model = Model(trials=trials, concurrency=concurrency, retries=8)
    state = model.start(crashes=crashes, faults=faults, lost=lost, cuts=cuts, may_cancel=cancel)
    final = model.final(state)
    for choice in choices:
        edges = list(model.edges(state))
        if not edges:
            break
        state = edges[choice % len(edges)][1]
        check(model, state)
        now = model.final(state)
        assert {trial: now[trial] for trial in final} == final, "a final row changed"
        final = now
    for _ in range(3_000):
        # Nothing goes wrong any more.
        edges = [
            edge
            for edge in model.edges(state)
            if edge[0] not in ("crash", "evicted", "vanishes", "cut off", "cancel") and "lost" not in edge[0][7:]
        ]
        if not edges:
            break
        state = edges[-1 if len(edges) % 2 else 0][1]
        check(model, state)
    assert model.ended(state), state
    check_end(model, state, faults=faults + cuts)
