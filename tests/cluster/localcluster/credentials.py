"""The S3 server's credentials: made at the first ``up``, kept beside the data that they protect, in no repository."""

from __future__ import annotations

import json
import secrets

from localcluster import shell
from localcluster.s3 import Credentials
from localcluster.settings import Settings


def s3_credentials(settings: Settings) -> Credentials:
    """The credentials of this cluster; made if there are none."""
    path = settings.s3_file
    if not path.exists():
        made = {"accessKey": secrets.token_hex(10).upper(), "secretKey": secrets.token_urlsafe(30)}
        shell.write(path, json.dumps(made) + "\n", mode=0o600)
    record = json.loads(path.read_text(encoding="utf-8"))
    return Credentials(access_key=record["accessKey"], secret_key=record["secretKey"])
