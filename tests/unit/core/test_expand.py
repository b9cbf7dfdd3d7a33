from __future__ import annotations

import pytest

from seatrial.core import expand as module
from seatrial.core.expand import expand, select
from seatrial.core.naming import TrialKey


@pytest.mark.conforms("H-123")
def test_trials_come_by_attempt_then_task_then_agent() -> None:
    trials = expand("uid", ["a", "b"], agents=["x", "y"], attempts=2)
    assert [tuple(trial.key) for trial in trials] == [
        ("a", "x", 1),
        ("a", "y", 1),
        ("b", "x", 1),
        ("b", "y", 1),
        ("a", "x", 2),
        ("a", "y", 2),
        ("b", "x", 2),
        ("b", "y", 2),
    ]
    assert [trial.task for trial in trials] == [0, 0, 1, 1, 0, 0, 1, 1]


def test_names_are_unique_even_when_hashes_collide(monkeypatch: pytest.MonkeyPatch) -> None:
    def name(uid: str, key: TrialKey, *, salt: int = 0) -> str:
        return f"t__{salt:07x}"

    monkeypatch.setattr(module, "trial_name", name)
    assert [trial.name for trial in expand("uid", ["a"], agents=["x"], attempts=3)] == ["t__0000000", "t__0000001", "t__0000002"]


def test_ten_thousand_attempts_at_one_task_have_ten_thousand_names() -> None:
    trials = expand("uid", ["bench/task"], agents=["oracle"], attempts=10_000)
    assert len({trial.name for trial in trials}) == 10_000


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        pytest.param({"include": [], "exclude": [], "limit": None}, (0, 1, 2, 3), id="nothing said"),
        pytest.param({"include": ["bench/*"], "exclude": [], "limit": None}, (0, 1, 2), id="include"),
        pytest.param({"include": ["*"], "exclude": ["*b*"], "limit": None}, (3,), id="exclude wins"),
        pytest.param({"include": ["other", "bench/c"], "exclude": [], "limit": None}, (2, 3), id="the order stays"),
        pytest.param({"include": ["*"], "exclude": ["bench/a"], "limit": 2}, (1, 2), id="limit comes last"),
        pytest.param({"include": ["BENCH/*"], "exclude": [], "limit": None}, (), id="case counts"),
    ],
)
def test_selection_by_globs(options: dict[str, list[str]], chosen: tuple[int, ...]) -> None:
    assert select(["bench/a", "bench/b", "bench/c", "other"], **options) == chosen  # type: ignore[arg-type]
