"""Presigned URLs with further headers; real servers accept them in ``test_store``."""

from __future__ import annotations

import secrets

from seatrial.effects.signature import require_headers
from seatrial.effects.store import Store, StoreSettings


def test_without_a_further_header_the_signature_is_that_of_the_s3_client() -> None:
    secret = secrets.token_urlsafe(30)
    store = Store(StoreSettings("http://127.0.0.1:1", "bucket", "ACCESS", secret, session_token="a/b+c="))
    url = store.presign_get("jobs/a b+c~ü=&%/x.json", expires_seconds=60)
    again = require_headers(url, "GET", {}, secret_key=secret)
    assert (url.rpartition("=")[2], url.partition("?")[0]) == (again.rpartition("=")[2], again.partition("?")[0])
