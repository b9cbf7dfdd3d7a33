"""Entry of the operator's process."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Final

from seatrial import __version__
from seatrial.effects.kube import Access, in_cluster_access, kubeconfig_access
from seatrial.effects.settings import Settings, read_settings
from seatrial.effects.store import Store
from seatrial.errors import InvalidSpec

log = logging.getLogger("seatrial")

_ALLOCATIONS: Final = 50_000
"""Before garbage is looked for. A page of Pods is ten times the default in objects that all stay until it is read, and each search goes
through them, the tenth of a tenth through all that the process holds."""

# Attributes that every record has; whatever else is there came by ``extra``.
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the fields of the call."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        body: dict[str, object] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        body |= {
            name: value for name, value in vars(record).items() if name not in _STANDARD and value is not None and not name.startswith("_")
        }
        if record.exc_info:
            body["exception"] = self.formatException(record.exc_info)
        return json.dumps(body, default=str)


def configure_logging(level: str) -> None:
    """JSON lines on stdout. Kopf's own lines are warnings only: it would write one per event."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    logging.getLogger("aiohttp").setLevel(logging.WARNING)
    logging.getLogger("urllib3").setLevel(logging.ERROR)


def find_access(settings: Settings) -> Access:
    """The service account inside a cluster, else a kubeconfig.

    Raises:
        InvalidSpec: neither is there.
    """
    if settings.kubeconfig is None and (access := in_cluster_access(os.environ)) is not None:
        return access
    files = settings.kubeconfig or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    return kubeconfig_access(Path(files.split(os.pathsep)[0]), settings.context)


def main() -> None:
    """Read the settings, run, and exit with 0 after SIGTERM and with 1 after anything else."""
    from seatrial.handlers.serve import TaskEnded, serve

    try:
        settings = read_settings(os.environ)
        configure_logging(settings.log_level)
        access = find_access(settings)
    except InvalidSpec as error:
        sys.stderr.write(f"seatrial-operator: {error}\n")
        sys.exit(2)
    # What is loaded by now stays.
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS)
    log.info("operator starts", extra={"version": __version__, "server": access.server, "identity": settings.identity})
    try:
        asyncio.run(serve(settings=settings, access=access, store=Store(settings.store())))
    except TaskEnded as error:
        log.error("operator ends", extra={"reason": str(error), "cause": repr(error.__cause__) if error.__cause__ else None})
        # Without waiting for threads: a hanging store call must not hold the restart up.
        logging.shutdown()
        os._exit(1)
    log.info("operator stopped")
    logging.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
