"""Credentials that change while the process runs, against a real S3 server and a token service of ours."""

from __future__ import annotations

import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from seatrial.effects.credentials import FileCredentials, headers_of
from seatrial.effects.store import Store, StoreSettings, WebIdentitySettings
from seatrial.errors import Forbidden, Unavailable
from tests.serving import end, serve


def write(folder: Path, access: str, secret: str) -> Path:
    """As the kubelet does it: a new folder, to which a link is turned."""
    new = folder / f"..{datetime.now(UTC).timestamp()}"
    new.mkdir()
    (new / "accessKey").write_text(access)
    (new / "secretKey").write_text(f"{secret}\n")
    link = folder / "..new"
    link.symlink_to(new.name)
    link.rename(folder / "..data")
    for name in ("accessKey", "secretKey"):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    return folder


def test_headers_are_pairs_of_the_file_as_it_is_then_and_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    headers = headers_of(str(file))
    for text, expected in (
        ("Authorization=Bearer hidden=,X-Scope=evals\n", {"Authorization": "Bearer hidden=", "X-Scope": "evals"}),
        ("Authorization=Bearer new", {"Authorization": "Bearer new"}),
        ("", {}),
    ):
        file.write_text(text)
        assert headers() == expected
    file.write_text("Bearer hidden")
    with pytest.raises(Unavailable, match="does not hold NAME=VALUE") as refused:
        headers()
    assert "hidden" not in str(refused.value)
    assert headers_of("")() == {}


def test_a_rotated_key_is_used_by_the_next_call_and_the_next_signature(store_settings: StoreSettings, tmp_path: Path) -> None:
    folder = write(tmp_path, "withdrawn", "withdrawn")
    store = Store(replace(store_settings, access_key="", secret_key="", credentials_dir=str(folder)))
    with pytest.raises(Forbidden):
        store.put_new("rotated", b"content")
    assert "withdrawn" in store.presign_get("rotated", expires_seconds=60)
    write(folder, store_settings.access_key, store_settings.secret_key)
    store.put_new("rotated", b"content")
    with urllib.request.urlopen(store.presign_get("rotated", expires_seconds=60), timeout=10) as answer:
        assert answer.read() == b"content"
    url = store.presign_put("by-a-pod", expires_seconds=60)
    put = urllib.request.Request(url, data=b"result", method="PUT", headers={"If-None-Match": "*"})
    with urllib.request.urlopen(put, timeout=10) as answer:
        assert answer.status == 200
    assert store.get("by-a-pod", max_bytes=100) == b"result"


def test_a_secret_that_is_taken_away_is_a_fault_of_the_moment(store_settings: StoreSettings, tmp_path: Path) -> None:
    folder = write(tmp_path, store_settings.access_key, store_settings.secret_key)
    store = Store(replace(store_settings, credentials_dir=str(folder)))
    store.put_new("kept", b"content")
    (folder / "secretKey").unlink()
    with pytest.raises(Unavailable, match="secretKey"):
        store.get("kept", max_bytes=100)
    with pytest.raises(Unavailable, match="secretKey"):
        store.presign_get("kept", expires_seconds=60)


def test_an_empty_secret_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="accessKey and secretKey"):
        FileCredentials(write(tmp_path, "", "")).retrieve()


# --- web identity -----------------------------------------------------------------------------------------------------------------------


class TokenService(ThreadingHTTPServer):
    """Gives the keys it was told for a token and a role."""

    keys: tuple[str, str] = ("", "")
    asked: list[dict[str, list[str]]]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    server: TokenService

    def do_POST(self) -> None:
        given = urllib.parse.urlsplit(self.path).query or self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        self.server.asked.append(urllib.parse.parse_qs(given))
        access, secret = self.server.keys
        until = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = (
            '<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult>'
            f"<Credentials><AccessKeyId>{access}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey>"
            # The test's server knows no session tokens, so the keys are the plain ones.
            f"<SessionToken></SessionToken><Expiration>{until}</Expiration></Credentials>"
            "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        ).encode()
        self.send_response(200 if access else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Quiet."""


@pytest.fixture
def tokens() -> Iterator[TokenService]:
    server = TokenService(("127.0.0.1", 0), Answer)
    server.asked = []
    serve(server)
    yield server
    end(server)


def test_own_calls_go_by_the_web_identity_and_urls_are_signed_by_the_key(
    store_settings: StoreSettings, tokens: TokenService, tmp_path: Path
) -> None:
    tokens.keys = (store_settings.access_key, store_settings.secret_key)
    (tmp_path / "token").write_text("of-the-service-account\n")
    identity = WebIdentitySettings(str(tmp_path / "token"), "arn:aws:iam::1:role/seatrial", tokens.url)
    store = Store(replace(store_settings, access_key="signer", secret_key="signer", web_identity=identity))
    store.put_new("by-identity", b"content")
    assert store.get("by-identity", max_bytes=100) == b"content"
    signed = urllib.parse.parse_qs(urllib.parse.urlsplit(store.presign_put("by-pod", expires_seconds=60)).query)
    assert (signed["X-Amz-Credential"][0].partition("/")[0], "X-Amz-Security-Token" in signed) == ("signer", False)
    (asked,) = tokens.asked
    assert {name: asked[name] for name in ("Action", "WebIdentityToken", "RoleArn")} == {
        "Action": ["AssumeRoleWithWebIdentity"],
        "WebIdentityToken": ["of-the-service-account"],
        "RoleArn": ["arn:aws:iam::1:role/seatrial"],
    }


def test_a_token_service_that_refuses_is_a_fault_of_the_moment(store_settings: StoreSettings, tokens: TokenService, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("x")
    identity = WebIdentitySettings(str(tmp_path / "token"), "arn:aws:iam::1:role/seatrial", tokens.url)
    store = Store(replace(store_settings, web_identity=identity))
    with pytest.raises(Unavailable, match="web identity"):
        store.get("any", max_bytes=100)
