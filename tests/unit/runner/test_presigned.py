"""Presigned GET and PUT against a real HTTP server: what is repeated, what is final, and what a 412 means."""

from __future__ import annotations

import io
import socket
from typing import TYPE_CHECKING

import pytest

from seatrial.effects.store import Store
from seatrial_runner.presigned import Patience, StoreError, StoreMissing, StoreRefused, StoreTaken, StoreUnavailable, download, upload

if TYPE_CHECKING:
    from ..conftest import S3Server
    from .conftest import ObjectStore

PATIENCE = Patience(seconds=5.0, attempts=3, first_pause_seconds=0.01, longest_pause_seconds=0.02, answer_seconds=2.0)


def _upload(store: ObjectStore, data: bytes = b"data", *, patience: Patience = PATIENCE) -> None:
    upload(store.url("key"), io.BytesIO(data), content_type="text/plain", patience=patience)


def _download(store: ObjectStore) -> bytes:
    target = io.BytesIO()
    size = download(store.url("key"), target, max_bytes=100, patience=PATIENCE)
    assert size == len(target.getvalue())
    return target.getvalue()


def test_an_object_is_stored_and_read(object_store: ObjectStore) -> None:
    _upload(object_store, b"x" * 90)
    assert _download(object_store) == b"x" * 90


def test_an_existing_object_is_never_overwritten(object_store: ObjectStore) -> None:
    object_store.put("key", b"first")
    with pytest.raises(StoreTaken):
        _upload(object_store)
    assert object_store.get("key") == b"first"


def test_a_lost_answer_is_repeated_and_the_412_is_our_own_success(object_store: ObjectStore) -> None:
    object_store.fail("key", "store-and-drop")
    _upload(object_store)
    assert (object_store.get("key"), len(object_store.requests)) == (b"data", 2)


@pytest.mark.parametrize("faults", [(503,), ("drop",), (429, 500), (409,)])
def test_faults_that_may_pass_are_repeated(object_store: ObjectStore, faults: tuple[int | str, ...]) -> None:
    object_store.fail("key", *faults)
    _upload(object_store)
    assert (object_store.get("key"), len(object_store.requests)) == (b"data", 1 + len(faults))


def test_a_412_after_a_conflict_is_not_ours(object_store: ObjectStore) -> None:
    object_store.put("key", b"other")
    object_store.fail("key", 409)
    with pytest.raises(StoreTaken):
        _upload(object_store)


def test_repetition_ends(object_store: ObjectStore) -> None:
    object_store.fail("key", *[503] * 10)
    with pytest.raises(StoreUnavailable, match="tried 3 times"):
        _upload(object_store)


@pytest.mark.parametrize("status", [400, 401, 403, 307])
def test_a_refusal_is_final_and_says_the_stores_code_but_no_signature(object_store: ObjectStore, status: int) -> None:
    object_store.fail("key", status)
    with pytest.raises(StoreRefused) as caught:
        _upload(object_store)
    assert f"{status} AccessDenied" in str(caught.value)
    assert "signature" not in str(caught.value).lower()
    assert len(object_store.requests) == 1


def test_a_missing_object_is_final(object_store: ObjectStore) -> None:
    with pytest.raises(StoreMissing, match="NoSuchKey"):
        _download(object_store)
    assert len(object_store.requests) == 1


def test_a_download_that_broke_off_starts_anew(object_store: ObjectStore) -> None:
    object_store.put("key", b"whole")
    object_store.fail("key", "drop", 502)
    assert _download(object_store) == b"whole"


def test_an_object_above_the_limit_is_refused(object_store: ObjectStore) -> None:
    object_store.put("key", b"x" * 101)
    with pytest.raises(StoreRefused, match="larger than 100 bytes"):
        _download(object_store)


def test_nobody_listening_is_unavailable_and_not_ambiguous() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(StoreUnavailable, match="cannot connect"):
        upload(f"http://127.0.0.1:{port}/k", io.BytesIO(b"x"), content_type="text/plain", patience=PATIENCE)


def test_a_server_that_never_answers_is_given_up(object_store: ObjectStore) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/k"
        with pytest.raises(StoreUnavailable):
            download(url, io.BytesIO(), max_bytes=10, patience=PATIENCE._replace(answer_seconds=0.05))


def test_other_schemes_are_refused() -> None:
    with pytest.raises(StoreError, match="not an http"):
        download("file:///etc/passwd", io.BytesIO(), max_bytes=10, patience=PATIENCE)


def test_giving_up_ends_the_repetition_at_once(object_store: ObjectStore) -> None:
    object_store.fail("key", *[503] * 3)
    with pytest.raises(StoreUnavailable, match="tried 1 times"):
        upload(object_store.url("key"), io.BytesIO(b"x"), content_type="text/plain", patience=PATIENCE, give_up=lambda: True)


def test_real_servers_store_once_and_give_it_back(each_s3_server: S3Server) -> None:
    store = Store(each_s3_server.bucket())
    url = store.presign_put("a/b c.json", expires_seconds=60)
    upload(url, io.BytesIO(b"first"), content_type="application/json", patience=PATIENCE)
    with pytest.raises(StoreTaken, match="412 PreconditionFailed"):
        upload(url, io.BytesIO(b"second"), content_type="application/json", patience=PATIENCE)
    target = io.BytesIO()
    download(store.presign_get("a/b c.json", expires_seconds=60), target, max_bytes=100, patience=PATIENCE)
    assert target.getvalue() == b"first"


def test_real_servers_name_what_is_missing_and_refuse_a_wrong_signature(each_s3_server: S3Server) -> None:
    store = Store(each_s3_server.bucket())
    with pytest.raises(StoreMissing, match="NoSuchKey"):
        download(store.presign_get("none", expires_seconds=60), io.BytesIO(), max_bytes=100, patience=PATIENCE)
    with pytest.raises(StoreRefused, match="403 SignatureDoesNotMatch"):
        download(store.presign_get("none", expires_seconds=60) + "0", io.BytesIO(), max_bytes=100, patience=PATIENCE)
