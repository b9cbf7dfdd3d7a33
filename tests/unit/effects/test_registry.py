"""The registry client against a small registry over HTTP: digests, facts, tokens, refusals."""

from __future__ import annotations

import base64
import ipaddress
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from seatrial.effects import registry as registry_module
from seatrial.effects.fetch import Answer as Fetched
from seatrial.effects.fetch import fetch
from seatrial.effects.registry import BadAnswer, ImageFacts, ImageRef, Reach, Registry, Throttled, parse_ref, registry_hosts
from seatrial.errors import Forbidden, InvalidSpec, NotFound, Unavailable
from tests import serving

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
        serving.serve(server)
        return f"127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        serving.end(server)


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


@pytest.mark.parametrize(
    ("code", "headers", "kind", "retry_after"),
    [
        (429, {"Retry-After": "7"}, Throttled, 7.0),
        (429, {}, Throttled, 60.0),
        (500, {}, Unavailable, 10.0),
        (503, {}, Unavailable, 10.0),
        (400, {}, BadAnswer, 30.0),
        (200, {}, BadAnswer, 30.0),
    ],
)
def test_a_registry_that_says_later_or_nothing_of_use_is_unavailable_and_not_without_the_image(
    serve: Serve, code: int, headers: dict[str, str], kind: type[Unavailable], retry_after: float
) -> None:
    host = serve(lambda method, path, authorization: (code, headers, b""))
    with pytest.raises(Unavailable) as caught:
        Registry(insecure=(host,)).digest(f"{host}/tasks:key")
    assert (type(caught.value), caught.value.retry_after) == (kind, retry_after)


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
        ("Host.Example/a", ImageRef("host.example", "a", "latest")),
        ("localhost/a:1.0_x-y", ImageRef("localhost", "a", "1.0_x-y")),
        ("[2001:db8::1]:5000/a", ImageRef("[2001:db8::1]:5000", "a", "latest")),
    ],
)
def test_references_are_read_as_docker_reads_them(text: str, expected: ImageRef) -> None:
    assert parse_ref(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "UPPER",
        "a/../b",
        "a@sha256:short",
        "a b",
        "a:",
        "a@",
        "host.example/a:tag/../../other",
        "host.example/a:tag?x=1",
        "host.example/a:.hidden",
        "host.example/a:" + "t" * 129,
        "host.example:port/a",
        "host.example:99:99/a",
        "user:password@host.example/a",
        "host..example/a",
        "-host.example/a",
        "host.example\r\nX: y/a",
        "169.254.169.254#.example.com/a",
        "host.example/" + "a/" * 130 + "a",
    ],
)
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec):
        parse_ref(text)


# --- whom it asks, and what it tells whom ------------------------------------------------------------------------------------------------


class Web:
    """Instead of the network: answers by URL, and what was asked with which credentials."""

    def __init__(self, answers: Mapping[str, Fetched]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str]] = []

    def fetch(self, method: str, url: str, *, headers: Mapping[str, str], **_: Any) -> Fetched:
        self.asked.append((url.partition("?")[0], headers.get("Authorization", "")))
        return self.answers.get(url.partition("?")[0], Fetched(404, {}, b""))


AUTHS = {"r.example": {"username": "me", "password": "pass"}}
BASIC = "Basic " + base64.b64encode(b"me:pass").decode()
MANIFEST, BLOB = "https://r.example/v2/tasks/manifests/key", f"https://r.example/v2/tasks/blobs/{CONFIG}"
FOUND = Fetched(200, {"docker-content-digest": DIGEST}, json.dumps({"config": {"digest": CONFIG}}).encode())
EMPTY = Fetched(200, {}, b"{}")


def moved(to: str) -> Fetched:
    return Fetched(307, {"location": to}, b"")


def challenge(realm: str) -> Fetched:
    return Fetched(401, {"www-authenticate": f'Bearer realm="{realm}",service="r"'}, b"")


def use(monkeypatch: pytest.MonkeyPatch, answers: Mapping[str, Fetched]) -> Web:
    web = Web(answers)
    monkeypatch.setattr(registry_module, "fetch", web.fetch)
    return web


def test_a_manifest_is_not_looked_for_behind_a_redirect(monkeypatch: pytest.MonkeyPatch) -> None:
    web = use(monkeypatch, {MANIFEST: moved("https://other.example/manifest"), "https://other.example/manifest": FOUND})
    with pytest.raises(BadAnswer, match=r"r\.example answers 307 for tasks"):
        Registry(auths=AUTHS).digest("r.example/tasks:key")
    assert web.asked == [(MANIFEST, BASIC)]


def test_a_blob_is_read_where_the_registry_keeps_it_and_nobody_there_gets_its_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    store = "https://store.example/blob"
    web = use(
        monkeypatch, {MANIFEST: FOUND, BLOB: moved("/elsewhere"), "https://r.example/elsewhere": moved(f"{store}?sig=1"), store: EMPTY}
    )
    assert Registry(auths=AUTHS).facts("r.example/tasks:key") == ImageFacts()
    assert web.asked == [(MANIFEST, BASIC), (BLOB, BASIC), ("https://r.example/elsewhere", ""), (store, "")]


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        pytest.param({BLOB: moved("http://store.example/blob")}, "sends us to 'http://store.example/blob'", id="plain HTTP"),
        pytest.param({BLOB: moved("file:///etc/passwd")}, "sends us to 'file:///etc/passwd'", id="no HTTP"),
        pytest.param({BLOB: moved(BLOB)}, "answers 307", id="round and round"),
        pytest.param({MANIFEST: Fetched(200, {}, b'{"config": {"digest": "../../secret"}}')}, "which is no digest", id="no digest"),
        pytest.param({MANIFEST: Fetched(200, {}, b'{"config": 1}')}, "which is no digest", id="no object"),
        pytest.param({MANIFEST: Fetched(200, {}, b'{"manifests": [1]}')}, "no variant", id="no list of manifests"),
        pytest.param({BLOB: Fetched(200, {}, b"<html>")}, "something else than JSON", id="no JSON"),
    ],
)
def test_a_registry_that_answers_strangely_is_followed_nowhere(
    monkeypatch: pytest.MonkeyPatch, answers: Mapping[str, Fetched], text: str
) -> None:
    web = use(monkeypatch, {MANIFEST: FOUND, **answers})
    with pytest.raises((BadAnswer, NotFound), match=text):
        Registry(auths=AUTHS).facts("r.example/tasks:key")
    assert {url for url, _ in web.asked} <= {MANIFEST, BLOB}


@pytest.mark.parametrize(
    ("realm", "insecure", "told"),
    [
        pytest.param("https://auth.example/token", (), BASIC, id="over TLS"),
        pytest.param("http://r.example/token", ("r.example",), BASIC, id="the registry itself"),
        pytest.param("http://auth.example/token", ("r.example",), "", id="another host without TLS"),
    ],
)
def test_credentials_go_to_the_token_service_over_tls_or_to_the_registry_itself(
    monkeypatch: pytest.MonkeyPatch, realm: str, insecure: tuple[str, ...], told: str
) -> None:
    scheme = "http" if insecure else "https"
    manifest = f"{scheme}://r.example/v2/tasks/manifests/key"
    web = use(monkeypatch, {manifest: challenge(realm), realm: Fetched(200, {}, b'{"token": "t"}')})
    with pytest.raises(Forbidden, match="refuses access to tasks"):
        Registry(auths=AUTHS, insecure=insecure).digest("r.example/tasks:key")
    assert web.asked == [(manifest, BASIC), (realm, told), (manifest, "Bearer t")]


@pytest.mark.parametrize("realm", ["http://auth.example/token", "file:///token", "", "ldap://auth.example"])
def test_a_token_service_without_tls_is_not_asked(monkeypatch: pytest.MonkeyPatch, realm: str) -> None:
    web = use(monkeypatch, {MANIFEST: challenge(realm)})
    with pytest.raises(BadAnswer, match="no https URL"):
        Registry(auths=AUTHS).digest("r.example/tasks:key")
    assert web.asked == [(MANIFEST, BASIC)]


def test_a_token_service_is_not_followed_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    realm = "https://auth.example/token"
    web = use(monkeypatch, {MANIFEST: challenge(realm), realm: moved("https://other.example/")})
    with pytest.raises(BadAnswer, match="answers 307"):
        Registry(auths=AUTHS).digest("r.example/tasks:key")
    assert web.asked == [(MANIFEST, BASIC), (realm, BASIC)]


def test_a_token_cannot_add_a_header(serve: Serve) -> None:
    def answer(method: str, path: str, authorization: str) -> Answer:
        if path.startswith("/token"):
            return 200, {}, json.dumps({"token": "t\r\nX-Other: 1"}).encode()
        return 401, {"WWW-Authenticate": f'Bearer realm="http://{host}/token"'}, b""

    host = serve(answer)
    with pytest.raises(BadAnswer, match="a header has characters"):
        Registry(insecure=(host,)).digest(f"{host}/tasks:key")


BLOCKED = Reach(blocked=(ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fc00::/7")))


@pytest.mark.parametrize(
    ("address", "may"),
    [
        ("203.0.114.1", True),
        ("2600::1", True),
        ("192.168.0.1", True),  # unless the configuration blocks it
        ("64:ff9b::cb00:7201", True),
        ("127.0.0.1", False),
        ("127.8.0.1", False),
        ("0.0.0.0", False),
        ("0.1.2.3", False),
        ("169.254.169.254", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("10.96.0.1", False),
        ("::1", False),
        ("::", False),
        ("fe80::1", False),
        ("ff02::1", False),
        ("fd00::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
    ],
)
def test_registries_that_only_tasks_name_are_asked_where_a_task_could_go(address: str, may: bool) -> None:
    assert BLOCKED.allows(ipaddress.ip_address(address)) is may


def resolve(monkeypatch: pytest.MonkeyPatch, name: str, address: str) -> list[str]:
    """Let ``name`` have that address; the answer fills with the names that are looked up."""
    asked: list[str] = []
    original = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, **options: Any) -> Any:
        asked.append(host)
        return original(address if host == name else host, port, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


def test_a_name_that_leads_to_a_forbidden_address_is_not_asked_unless_the_installation_names_it(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(method: str, path: str, authorization: str) -> Answer:
        asked.append(path)
        return image(method, path, authorization)

    port = serve(answer).rpartition(":")[2]
    host = f"evil.example:{port}"
    names = resolve(monkeypatch, "evil.example", "127.0.0.1")
    with pytest.raises(Forbidden, match=r"evil\.example is at 127\.0\.0\.1, an address that must not be asked; if it is yours"):
        Registry(insecure=(host,), reach=Reach()).digest(f"{host}/tasks:key")
    assert (asked, names) == ([], ["evil.example"])
    assert Registry(insecure=(host,), reach=Reach(trusted=frozenset({host}))).digest(f"{host}/tasks:key") == DIGEST
    # On a user's own machine the user says whom to ask.
    assert Registry(insecure=(host,)).digest(f"{host}/tasks:key") == DIGEST
    # Looked up once a request: what was looked at is what is connected to.
    assert (asked, names) == (["/v2/tasks/manifests/key"] * 2, ["evil.example"] * 3)


@pytest.mark.parametrize("host", ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "127.1:1", "2130706433.:1"])
def test_an_address_is_seen_in_whatever_form_it_is_written(host: str) -> None:
    with pytest.raises((Forbidden, InvalidSpec, Unavailable)) as caught:
        Registry(insecure=(host,), reach=Reach()).digest(f"{host}/tasks:key")
    assert "refused" not in str(caught.value)  # nobody was connected to


def test_whom_a_registry_sends_us_to_is_looked_at_too(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = serve(lambda method, path, authorization: pytest.fail("was asked"))
    asked: list[str] = []

    def first(method: str, url: str, **options: Any) -> Fetched:
        asked.append(url.partition("?")[0])
        return challenge(f"https://{inner}/token") if url == MANIFEST else fetch(method, url, **options)

    monkeypatch.setattr(registry_module, "fetch", first)
    with pytest.raises(Forbidden, match=r"127\.0\.0\.1 is at 127\.0\.0\.1, an address that must not be asked"):
        Registry(reach=Reach()).digest("r.example/tasks:key")
    assert asked == [MANIFEST, f"https://{inner}/token"]


def test_hosts_are_read_from_whatever_names_a_registry() -> None:
    places = ("host:5000/name", "https://index.docker.io/v1/", "Mirror.example/hub", "", "https://r.example")
    assert registry_hosts(places) == {"host:5000", "registry-1.docker.io", "mirror.example", "r.example"}


# --- how long it asks --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def dripping() -> Iterator[str]:
    """A server that sends a byte now and then, and never a whole answer."""
    ended = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def drip(connection: socket.socket) -> None:
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
            try:
                while not ended.wait(0.02):
                    connection.sendall(b"x")
            except OSError:
                return

    def accept() -> None:
        while not ended.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=drip, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    ended.set()
    listener.close()


def test_a_registry_that_drips_is_left_in_time(dripping: str) -> None:
    with pytest.raises(Unavailable, match="no whole answer in time"):
        Registry(insecure=(dripping,)).digest(f"{dripping}/tasks:key", seconds=0.3)


def test_a_name_that_is_resolved_too_slowly_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def getaddrinfo(*_: Any, **__: Any) -> Any:
        release.wait(60)
        raise OSError("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    try:
        with pytest.raises(Unavailable, match=r"the name slow\.example is not resolved in time"):
            Registry().digest("slow.example/tasks:key", seconds=0.1)
    finally:
        release.set()


def test_the_proxy_of_the_environment_is_used(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def answer(method: str, path: str, authorization: str) -> Answer:
        asked.append((method, path))
        return image(method, path.removeprefix("http://r.example"), authorization)

    proxy = serve(answer)
    for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"http://me:pass@{proxy}")
    monkeypatch.setenv("https_proxy", f"http://{proxy}")
    # Names are the proxy's to resolve, so only addresses can be looked at.
    assert Registry(insecure=("r.example",), reach=Reach()).digest("r.example/tasks:key") == DIGEST
    with pytest.raises(Forbidden, match="an address that must not be asked"):
        Registry(insecure=("169.254.169.254",), reach=Reach()).digest("169.254.169.254/tasks:key")
    with pytest.raises(Unavailable, match=r"the proxy 127\.0\.0\.1 does not connect to r\.example:443"):
        Registry().digest("r.example/tasks:key")
    assert asked == [("HEAD", "http://r.example/v2/tasks/manifests/key")]
