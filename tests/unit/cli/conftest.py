"""The command line in this process, with what it prints."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from seatrial.cli.main import main
from seatrial.effects.store import StoreSettings


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def seatrial(client_environment: StoreSettings, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run
