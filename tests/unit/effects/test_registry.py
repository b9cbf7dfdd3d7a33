"""The registry client against a small registry over HTTP: digests, facts, tokens, refusals."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from seatrial.effects.registry import ImageFacts, ImageRef, Registry, parse_ref
from seatrial.errors import Forbidden, InvalidSpec, NotFound, Unavailable

DIGEST = "sha256:" + "ab" * 32
CONFIG = "sha256:" + "cd" * 32
Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[str, str, str], Answer]], str]]:
    """Starts a server that answers ``(method, path, authorization)``; gives its host and port."""
    servers: list[ThreadingHTTPServer] = []

    def start(answer: Callable[[str, str, str], Answer]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                code, headers, body = answer(self.command, self.path, self.headers.get("Authorization", ""))
                self.send_response(code)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                return

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return f"127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


Serve = Callable[[Callable[[str, str, str], Answer]], str]


def image(method: str, path: str, authorization: str) -> Answer:
    """A registry with one image, ``tasks:key``, for two platforms."""
    match path.removeprefix("/v2/tasks/"):
        case "manifests/key":
            entry = {"digest": DIGEST, "platform": {"os": "linux", "architecture": "amd64"}}
            return 200, {"Docker-Content-Digest": DIGEST}, json.dumps({"manifests": [entry]}).encode()
        case text if text == f"manifests/{DIGEST}":
            return 200, {}, json.dumps({"config": {"digest": CONFIG}}).encode()
        case text if text == f"blobs/{CONFIG}":
            config = {
                "User": "worker",
                "WorkingDir": "/home/worker",
                "Entrypoint": ["/entry.sh"],
                "Cmd": None,
                "Env": ["PATH=/bin", "LANG=C"],
            }
            return 200, {}, json.dumps({"config": config}).encode()
        case _:
            return 404, {}, b"{}"


def test_digest_and_facts_of_an_image(serve: Serve) -> None:
    host = serve(image)
    registry = Registry(insecure=(host,))
    assert registry.digest(f"{host}/tasks:key") == DIGEST
    assert registry.digest(f"{host}/tasks:other") is None
    assert registry.facts(f"{host}/tasks:key") == ImageFacts("worker", "/home/worker", ("/entry.sh",), (), ("PATH=/bin", "LANG=C"))
    with pytest.raises(NotFound, match="no variant for linux/arm64"):
        registry.facts(f"{host}/tasks:key", platform="linux/arm64")


def test_a_registry_with_tokens_gets_the_credentials_once_and_the_token_afterwards(serve: Serve) -> None:
    basic = "Basic " + base64.b64encode(b"me:pass").decode()

    def answer(method: str, path: str, authorization: str) -> Answer:
        if path.startswith("/token"):
            assert path == "/token?scope=repository%3Atasks%3Apull&service=r"
            return (200, {}, b'{"token": "t"}') if authorization == basic else (401, {}, b"")
        if authorization != "Bearer t":
            challenge = f'Bearer realm="http://{host}/token",service="r",scope="repository:tasks:pull"'
            return 401, {"WWW-Authenticate": challenge}, b""
        return image(method, path, authorization)

    host = serve(answer)
    assert Registry(insecure=(host,), auths={host: {"username": "me", "password": "pass"}}).digest(f"{host}/tasks:key") == DIGEST
    with pytest.raises(Forbidden, match="log in, or give a pull secret"):
        Registry(insecure=(host,)).digest(f"{host}/tasks:key")


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_registry_that_says_later_is_unavailable_and_not_without_the_image(serve: Serve, code: int) -> None:
    host = serve(lambda method, path, authorization: (code, {}, b""))
    with pytest.raises(Unavailable, match=str(code)):
        Registry(insecure=(host,)).digest(f"{host}/tasks:key")


def test_a_registry_that_is_away_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="does not answer"):
        Registry(insecure=("127.0.0.1:1",)).digest("127.0.0.1:1/tasks:key")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("debian", ImageRef("registry-1.docker.io", "library/debian", "latest")),
        ("acme/web:1", ImageRef("registry-1.docker.io", "acme/web", "1")),
        ("docker.io/acme/web", ImageRef("registry-1.docker.io", "acme/web", "latest")),
        ("host:5000/a/b:c", ImageRef("host:5000", "a/b", "c")),
        (f"host.example/a:b@{DIGEST}", ImageRef("host.example", "a", DIGEST)),
    ],
)
def test_references_are_read_as_docker_reads_them(text: str, expected: ImageRef) -> None:
    assert parse_ref(text) == expected


@pytest.mark.parametrize("text", ["", "UPPER", "a/../b", "a@sha256:short", "a b"])
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec):
        parse_ref(text)
