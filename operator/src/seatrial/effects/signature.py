"""Presigned URLs.

Why not ``minio``'s: it signs the host alone, and whoever holds a plain presigned PUT may overwrite. With ``If-None-Match`` among the signed
headers the server refuses a request that leaves it out. Source: AWS Signature Version 4, "Authenticating Requests: Using Query Parameters".
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from urllib.parse import quote, urlsplit

from minio.credentials.providers import Provider

_ALGORITHM: Final = "AWS4-HMAC-SHA256"


@dataclass(frozen=True)
class Signer:
    """Signs requests to one bucket."""

    bucket_url: str
    """Up to the key, with a slash at the end, as the bucket is addressed."""
    region: str
    keys: Provider = field(repr=False)
    """Asked once for each signature: a key that is rotated meanwhile does not meet the secret of the other."""

    def presign(
        self,
        method: str,
        key: str,
        *,
        expires_seconds: int,
        now: datetime,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """A URL for one method on one key. Requests by it must carry exactly these ``headers`` (lower-case names) beside ``host``.

        Args:
            now: aware, UTC.

        Raises:
            Unavailable: there are no credentials.
        """
        keys = self.keys.retrieve()
        url = self.bucket_url + quote(key, safe="/~")
        parts = urlsplit(url)
        signed = dict(sorted({**(headers or {}), "host": parts.netloc}.items()))
        scope = [now.strftime("%Y%m%d"), self.region, "s3", "aws4_request"]
        given = {
            **(query or {}),
            "X-Amz-Algorithm": _ALGORITHM,
            "X-Amz-Credential": "/".join([keys.access_key, *scope]),
            "X-Amz-Date": now.strftime("%Y%m%dT%H%M%SZ"),
            "X-Amz-Expires": str(expires_seconds),
            "X-Amz-SignedHeaders": ";".join(signed),
        }
        if keys.session_token:
            given["X-Amz-Security-Token"] = keys.session_token
        canonical_query = "&".join(sorted(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in given.items()))
        lines = [f"{name}:{value}" for name, value in signed.items()]
        request = "\n".join([method, parts.path, canonical_query, *lines, "", given["X-Amz-SignedHeaders"], "UNSIGNED-PAYLOAD"])
        text = "\n".join([_ALGORITHM, given["X-Amz-Date"], "/".join(scope), hashlib.sha256(request.encode()).hexdigest()])
        signature = f"AWS4{keys.secret_key}".encode()
        for part in (*scope, text):
            signature = hmac.digest(signature, part.encode(), "sha256")
        return f"{url}?{canonical_query}&X-Amz-Signature={signature.hex()}"
