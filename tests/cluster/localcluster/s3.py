"""The least that the local cluster itself needs of S3: make a bucket. AWS Signature Version 4 by the standard library."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass

from localcluster.settings import S3_REGION, ClusterError

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True)
class Credentials:
    access_key: str
    secret_key: str


def authorization(method: str, url: str, *, credentials: Credentials, now: datetime.datetime) -> dict[str, str]:
    """Headers that sign a request without query and body.

    Source: AWS Signature Version 4, "Authenticating Requests (AWS Signature Version 4)" of the S3 API reference.
    """
    parts = urllib.parse.urlsplit(url)
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    headers = {"host": parts.netloc, "x-amz-content-sha256": EMPTY_SHA256, "x-amz-date": stamp}
    names = ";".join(sorted(headers))
    canonical = "\n".join(
        [method, parts.path or "/", "", *(f"{name}:{headers[name]}" for name in sorted(headers)), "", names, EMPTY_SHA256]
    )
    scope = f"{day}/{S3_REGION}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{credentials.secret_key}".encode()
    for part in (day, S3_REGION, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    headers["authorization"] = f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return headers


def make_bucket(endpoint: str, bucket: str, *, credentials: Credentials) -> None:
    """Make a bucket; one that exists and is ours is success."""
    url = f"{endpoint}/{bucket}"
    headers = authorization("PUT", url, credentials=credentials, now=datetime.datetime.now(datetime.UTC))
    try:
        # Never through a proxy: the address is one of this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        opener.open(urllib.request.Request(url, method="PUT", headers=headers), timeout=10).close()
    except urllib.error.HTTPError as error:
        body = error.read().decode(errors="replace")
        if error.code != 409 or "BucketAlreadyOwnedByYou" not in body:
            raise ClusterError(f"bucket {bucket} at {endpoint}: {error.code} {body}") from error
    except OSError as error:
        raise ClusterError(f"S3 server {endpoint} does not answer: {error}") from error
