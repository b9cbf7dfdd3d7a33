from __future__ import annotations

import itertools
import json
import logging
from typing import Any

from seatrial.effects.kube import Access, Material
from seatrial.handlers.main import JsonFormatter
from seatrial.handlers.register import RetryForever, connection, kopf_settings


def line(**extra: Any) -> dict[str, Any]:
    record = logging.makeLogRecord({"name": "seatrial.x", "levelname": "INFO", "msg": "pod created", **extra})
    result: dict[str, Any] = json.loads(JsonFormatter().format(record))
    return result


def test_a_log_line_is_json_with_the_fields_of_the_call() -> None:
    body = line(job="evals/job", retry=0, reason=None)
    body.pop("time")
    assert body == {"level": "INFO", "logger": "seatrial.x", "message": "pod created", "job": "evals/job", "retry": 0}


def test_an_exception_keeps_its_traceback() -> None:
    try:
        raise ValueError("boom")
    except ValueError as error:
        body = line(exc_info=(type(error), error, error.__traceback__))
    assert "ValueError: boom" in body["exception"]


def test_kopf_only_listens() -> None:
    settings = kopf_settings()
    assert (settings.scanning.disabled, settings.peering.standalone, settings.posting.enabled) == (True, True, False)
    assert settings.queueing.worker_limit is None
    assert (settings.watching.server_timeout, settings.watching.client_timeout, settings.watching.chunk_size) == (600, 630, 500)
    assert type(settings.watching.server_timeout) is int


def test_kopf_retries_for_ever_with_a_bounded_pause() -> None:
    pauses = list(itertools.islice(RetryForever(), 200))
    assert pauses[:3] == [1, 1, 2]
    assert max(pauses) <= 15


def test_kopf_uses_our_own_access() -> None:
    info = connection(Access("https://x", token="t", material=Material(authority=b"ca", certificate=b"cert", key=b"key")))
    assert (info.server, info.token, info.ca_data, info.certificate_data, info.private_key_data) == (
        "https://x",
        "t",
        "Y2E=",
        "Y2VydA==",
        "a2V5",
    )
