from __future__ import annotations

from pathlib import Path

import pytest
from localcluster.cli import signal_number
from localcluster.settings import ClusterError, Settings, load


def test_settings_come_from_the_environment() -> None:
    environ = {"SEATRIAL_STATE_DIR": "/tmp/s", "SEATRIAL_CACHE_DIR": "/tmp/c", "SEATRIAL_PROVIDER": "kind", "SEATRIAL_MAX_PODS": "40"}
    settings = load(environ, checkout=Path("/"))
    expected = Settings(checkout=Path("/"), state_dir=Path("/tmp/s"), cache_dir=Path("/tmp/c"), provider="kind", max_pods=40)
    assert settings == expected


def test_two_checkouts_share_the_cache_and_nothing_else(tmp_path: Path) -> None:
    first, second = (load({"HOME": "/home/u"}, checkout=tmp_path / name) for name in ("a", "b"))
    assert first.cache_dir == second.cache_dir == Path("/home/u/.cache/seatrial")
    assert {first.state_dir, first.name, first.kubeconfig, first.lock_file}.isdisjoint(
        {second.state_dir, second.name, second.kubeconfig, second.lock_file}
    )


def test_a_checkout_keeps_its_state_folder(tmp_path: Path) -> None:
    assert load({}, checkout=tmp_path).state_dir == load({}, checkout=tmp_path).state_dir


def test_the_lock_outlives_the_state_folder(tmp_path: Path) -> None:
    settings = load({}, checkout=tmp_path)
    assert settings.state_dir not in settings.lock_file.parents


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        pytest.param("SEATRIAL_STATE_DIR", "/x" * 60, "longer than 80 bytes", id="socket-path-too-long"),
        pytest.param("SEATRIAL_PROVIDER", "minikube", "'minikube'; use auto, native or kind", id="unknown-provider"),
        pytest.param("SEATRIAL_MAX_PODS", "many", "'many'; use a number from 1 to 250", id="pods-not-a-number"),
        pytest.param("SEATRIAL_MAX_PODS", "300", "'300'; use a number from 1 to 250", id="more-pods-than-addresses"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(variable: str, value: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(ClusterError) as caught:
        load({variable: value}, checkout=tmp_path)
    assert variable in str(caught.value)
    assert named in str(caught.value)


@pytest.mark.parametrize(("name", "number"), [("KILL", 9), ("sigterm", 15), ("9", 9), ("stop", 19)])
def test_signals_are_taken_by_name_and_number(name: str, number: int) -> None:
    assert signal_number(name) == number


def test_an_unknown_signal_is_refused() -> None:
    with pytest.raises(ClusterError, match="no signal 'HUNGRY'"):
        signal_number("HUNGRY")
