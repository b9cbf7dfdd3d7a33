"""The local cluster's own code: it lies beside its ``__main__``, outside any installed package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
CLUSTER = CHECKOUT / "tests" / "cluster"

if str(CLUSTER) not in sys.path:
    sys.path.insert(0, str(CLUSTER))


@pytest.fixture
def checkout() -> Path:
    """Root of this repository."""
    return CHECKOUT
