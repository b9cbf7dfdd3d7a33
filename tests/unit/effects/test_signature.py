"""Presigned URLs beside those of an S3 client; real servers accept them in ``test_store``."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, urlsplit

import pytest
from minio import Minio
from minio.credentials.providers import StaticProvider

from seatrial.effects.signature import Signer

NOW = datetime(2026, 3, 4, 12, 0, 5, tzinfo=UTC)


@pytest.mark.parametrize("token", [None, "a/b+c="], ids=["key", "session"])
def test_without_a_further_header_a_url_is_that_of_the_s3_client(token: str | None) -> None:
    secret, key, query = secrets.token_urlsafe(30), "jobs/a b+c~\u00fc=&%/x.json", {"partNumber": "3", "uploadId": "a/b="}
    client = Minio("127.0.0.1:9000", access_key="ACCESS", secret_key=secret, session_token=token, region="eu-west-1", secure=False)
    theirs = client.get_presigned_url("PUT", "bucket", key, expires=timedelta(seconds=77), request_date=NOW, extra_query_params=dict(query))
    signer = Signer("http://127.0.0.1:9000/bucket/", "eu-west-1", StaticProvider("ACCESS", secret, token))
    ours = signer.presign("PUT", key, expires_seconds=77, now=NOW, query=query)
    assert ours.partition("?")[0] == theirs.partition("?")[0]
    assert sorted(parse_qsl(urlsplit(ours).query)) == sorted(parse_qsl(urlsplit(theirs).query))
