"""Push an image from an OCI layout to a registry that speaks plain HTTP; what the registry has is not sent again.

Source: OCI distribution specification 1.1, monolithic uploads.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from localcluster.settings import ClusterError

TIMEOUT_SECONDS = 300


def push(layout: Path, digest: str, *, registry: str, repository: str, tag: str) -> None:
    """Push the image whose manifest has this digest as ``registry/repository:tag``.

    Raises:
        ClusterError: the registry does not take it.
    """
    base = f"http://{registry}/v2/{repository}"
    try:
        manifest = _blob(layout, digest).read_bytes()
        body = json.loads(manifest)
        for item in (body["config"], *body["layers"]):
            if not _has(f"{base}/blobs/{item['digest']}"):
                _upload(base, _blob(layout, item["digest"]), item["digest"])
        kind = body.get("mediaType", "application/vnd.oci.image.manifest.v1+json")
        _send("PUT", f"{base}/manifests/{tag}", manifest, {"Content-Type": kind})
    except (OSError, ValueError) as error:
        raise ClusterError(f"registry {registry} does not take {repository}:{tag}: {error}; see its Pod's log") from error


def _upload(base: str, file: Path, digest: str) -> None:
    place = _send("POST", f"{base}/blobs/uploads/", b"", {})
    place = urllib.parse.urljoin(base, place)
    query = f"{'&' if '?' in place else '?'}digest={digest}"
    with file.open("rb") as stream:
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(file.stat().st_size)}
        _send("PUT", place + query, stream, headers)


def _has(url: str) -> bool:
    try:
        _send("HEAD", url, None, {})
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return False
        raise
    return True


def _send(method: str, url: str, data: object, headers: dict[str, str]) -> str:
    request = urllib.request.Request(url, data=data, method=method, headers=headers)  # type: ignore[arg-type]
    # The registry is the cluster's own: no proxy of the machine comes between.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
        return str(answer.headers.get("Location", ""))


def _blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / "sha256" / digest.removeprefix("sha256:")
