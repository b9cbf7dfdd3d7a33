"""Harbor-format agent evaluations as native Kubernetes jobs.

The package stays importable with the standard library alone: the runner image carries it for ``contract`` and ``taskpkg.extract``.
"""

from typing import Any

__version__ = "0.1.0"
__all__ = ["AsyncEvaluator", "Evaluator", "__version__", "discover_harbor_tasks"]


def __getattr__(name: str) -> Any:
    """Load the SDK on first use, so that the runner and the operator never pay for it."""
    if name in {"Evaluator", "AsyncEvaluator", "discover_harbor_tasks"}:
        from seatrial import sdk

        return getattr(sdk, name)
    raise AttributeError(name)
