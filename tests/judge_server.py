"""A judge model's server for tests: chat completions over HTTP on loopback, as OpenAI's endpoint and those like it speak them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.serving import end, serve

Reply = tuple[int, bytes]


def answer(content: str, **usage: int) -> Reply:
    """A good answer with this message."""
    return 200, json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}], "usage": usage}).encode()


class JudgeServer:
    """Answers from ``answers``, one after the other, then by ``respond``."""

    def __init__(self, respond: Callable[[dict[str, Any]], Reply] | None = None) -> None:
        self.answers: list[Reply] = []
        self.headers: dict[str, str] = {}
        """Sent with each answer."""
        self.asked: list[tuple[dict[str, Any], str | None]] = []
        """Body and authorisation of each request."""
        self.drip_seconds: float | None = None
        """Between the bytes of an answer; None: all at once."""
        self.most_at_once = 0
        self._running, self._lock, self._stopped = 0, threading.Lock(), threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server._lock:
                    server._running += 1
                    server.most_at_once = max(server.most_at_once, server._running)
                    server.asked.append((body, self.headers.get("Authorization")))
                    status, data = server.answers.pop(0) if server.answers else server._respond(body)
                if self.path != "/v1/chat/completions":
                    status, data = 404, b""
                with server._lock:
                    server._running -= 1
                self.send_response(status)
                for name, value in {**server.headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                try:
                    for part in [data] if server.drip_seconds is None else [data[at : at + 1] for at in range(len(data))]:
                        self.wfile.write(part)
                        server._stopped.wait(server.drip_seconds or 0)
                except OSError:
                    # The other side has gone.
                    self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._respond = respond or (lambda body: (500, b""))
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._http.server_address[1]}/v1"
        serve(self._http)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        end(self._http)
