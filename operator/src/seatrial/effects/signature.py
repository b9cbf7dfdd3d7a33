"""Presigned URLs that work only with a given header.

Why: a plain presigned PUT may overwrite; whoever holds the URL decides. With ``If-None-Match`` among the signed headers the server refuses
a request that leaves it out. ``minio`` signs the host alone. Source: AWS Signature Version 4, "Authenticating Requests: Using Query
Parameters".
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, quote, urlsplit

_SIGNED: Final = "X-Amz-SignedHeaders"
_SIGNATURE: Final = "X-Amz-Signature"


def require_headers(url: str, method: str, headers: Mapping[str, str], *, secret_key: str) -> str:
    """The presigned ``url``, signed anew: requests by it must carry exactly these ``headers`` (lower-case names) beside ``host``.

    Credential, date, lifetime and session token stay those of the URL.
    """
    parts = urlsplit(url)
    signed = dict(sorted({**headers, "host": parts.netloc}.items()))
    given = {name: value for name, value in parse_qsl(parts.query, keep_blank_values=True) if name != _SIGNATURE}
    given[_SIGNED] = ";".join(signed)
    query = "&".join(sorted(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in given.items()))
    lines = [f"{name}:{value}" for name, value in signed.items()]
    request = "\n".join([method, parts.path, query, *lines, "", given[_SIGNED], "UNSIGNED-PAYLOAD"])
    _, *scope = given["X-Amz-Credential"].split("/")
    text = "\n".join(["AWS4-HMAC-SHA256", given["X-Amz-Date"], "/".join(scope), hashlib.sha256(request.encode()).hexdigest()])
    key = f"AWS4{secret_key}".encode()
    for part in (*scope, text):
        key = hmac.digest(key, part.encode(), "sha256")
    return parts._replace(query=f"{query}&{_SIGNATURE}={key.hex()}").geturl()
