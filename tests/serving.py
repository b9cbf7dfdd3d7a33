"""HTTP servers of tests, in a thread of their own."""

from __future__ import annotations

import threading
from http.server import ThreadingHTTPServer

ACCEPT_SECONDS = 1.0


def serve(server: ThreadingHTTPServer) -> None:
    """Answer requests until ``end``."""
    # A client may be gone between its connection and our accept, which would then wait for the next one, and ``end`` with it.
    server.socket.settimeout(ACCEPT_SECONDS)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()


def end(server: ThreadingHTTPServer) -> None:
    """Stop answering and free the port."""
    server.shutdown()
    server.server_close()
