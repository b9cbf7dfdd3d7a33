"""One HTTP request that ends in time, at an address that was looked at.

Why not urllib: its limit is one for each read, so that a server which sends a byte now and then holds a thread for ever; and it connects to
whatever a name resolves to at that moment.
"""

from __future__ import annotations

import base64
import http.client
import io
import ipaddress
import queue
import re
import socket
import ssl
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from seatrial.errors import Forbidden

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}
LATE: Final = "no whole answer in time"
_PRINTED: Final = re.compile(r"[!-~]*")
_HEADER: Final = re.compile(r"[ -~]*")


class Answer(NamedTuple):
    """Whatever the status; redirects are the caller's decision."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


def fetch(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    end: float,
    tls: ssl.SSLContext,
    most_bytes: int,
    allows: Callable[[Address], bool] | None = None,
) -> Answer:
    """One request over a connection of its own, through the environment's proxy where there is one.

    Args:
        url: ``http`` or ``https``, without credentials.
        end: on the monotonic clock: of name, connection, TLS and answer together.
        most_bytes: of the body; the rest is not read.
        allows: whether an address may be connected to; None: all. Names that a proxy resolves are the proxy's affair, addresses are not.

    Raises:
        Forbidden: none of the host's addresses is allowed.
        OSError: no answer, or none in time. ValueError: nothing that could be asked.
    """
    parts = urllib.parse.urlsplit(url)
    host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme)
    if not host or port is None or parts.username is not None or not _PRINTED.fullmatch(url):
        raise ValueError(f"{url[:200]!r} is no URL that can be asked")
    lines = {"Host": parts.netloc, "User-Agent": "seatrial", "Accept-Encoding": "identity", "Connection": "close", **headers}
    target = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
    proxy = _proxy(parts.scheme, host)
    if proxy is None:
        sock = _connect(host, port, end=end, allows=allows)
    else:
        _check_literal(host, allows)
        sock = _connect(proxy.hostname or "", proxy.port or 80, end=end, allows=None)
    try:
        if proxy is not None and parts.scheme == "https":
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            if _ask(sock, "CONNECT", address, {"Host": address, **_login(proxy)}, end=end, most_bytes=0).status != 200:
                raise OSError(f"the proxy {proxy.hostname} does not connect to {address}")
        elif proxy is not None:
            target, lines = url, lines | _login(proxy)
        if parts.scheme == "https":
            sock.settimeout(_left(end))
            sock = tls.wrap_socket(sock, server_hostname=host)
        return _ask(sock, method, target, lines, end=end, most_bytes=most_bytes)
    finally:
        sock.close()


def _ask(sock: socket.socket, method: str, target: str, headers: Mapping[str, str], *, end: float, most_bytes: int) -> Answer:
    if not all(_HEADER.fullmatch(value) for value in headers.values()):
        raise ValueError("a header has characters that it must not have")
    text = "".join([f"{method} {target} HTTP/1.1\r\n", *(f"{name}: {value}\r\n" for name, value in headers.items()), "\r\n"])
    sock.settimeout(_left(end))
    sock.sendall(text.encode("ascii"))
    response = http.client.HTTPResponse(_Timed(sock, end), method=method)  # type: ignore[arg-type]
    try:
        response.begin()
        answered = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, answered, response.read(most_bytes) if most_bytes else b"")
    except http.client.HTTPException as error:
        raise OSError(f"the answer is no HTTP ({type(error).__name__})") from error


class _Timed(io.RawIOBase):
    """What comes from a socket until ``end``; each read may wait no longer than what is left."""

    def __init__(self, sock: socket.socket, end: float) -> None:
        self._sock, self._end = sock, end

    def makefile(self, *_: Any) -> io.BufferedReader:
        """As of a socket."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(_left(self._end))
        try:
            return self._sock.recv_into(buffer)
        except TimeoutError:
            raise TimeoutError(LATE) from None


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError(LATE)
    return left


def _connect(host: str, port: int, *, end: float, allows: Callable[[Address], bool] | None) -> socket.socket:
    """Connected to one of the host's addresses that are allowed, and to no other: the name is not asked for again."""
    found = _resolve(host, port, end=end)
    good = [item for item in found if allows is None or allows(_address(item[4][0]))]
    if not good:
        raise Forbidden(f"{host} is at {found[0][4][0]}, an address that must not be asked")
    fault: OSError | None = None
    for left, (family, kind, protocol, _, address) in zip(range(len(good), 0, -1), good, strict=True):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(_left(end) / left)
            sock.connect(address)
        except OSError as error:
            fault = error
            sock.close()
        else:
            return sock
    raise fault or OSError(f"{host} has no address")


def _resolve(host: str, port: int, *, end: float) -> list[Any]:
    """As ``getaddrinfo``, in time: a thread of its own waits on for resolvers that are slower."""
    answers: queue.SimpleQueue[list[Any] | Exception] = queue.SimpleQueue()

    def work() -> None:
        try:
            answers.put(list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))
        except (OSError, ValueError) as error:
            answers.put(error)

    threading.Thread(target=work, name="resolve", daemon=True).start()
    try:
        answer = answers.get(timeout=_left(end))
    except queue.Empty:
        raise TimeoutError(f"the name {host} is not resolved in time") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _address(text: str) -> Address:
    return ipaddress.ip_address(text.partition("%")[0])


def _check_literal(host: str, allows: Callable[[Address], bool] | None) -> None:
    try:
        address = _address(host)
    except ValueError:
        return
    if allows is not None and not allows(address):
        raise Forbidden(f"{host} is an address that must not be asked")


def _proxy(scheme: str, host: str) -> urllib.parse.SplitResult | None:
    named = urllib.request.getproxies().get(scheme)
    if not named or urllib.request.proxy_bypass(host):
        return None
    return urllib.parse.urlsplit(named if "://" in named else f"http://{named}")


def _login(proxy: urllib.parse.SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{urllib.parse.unquote(proxy.username)}:{urllib.parse.unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
