"""A package index on this machine that stops in the middle of a wheel until it is told to go on."""

from __future__ import annotations

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class SlowIndex:
    """An index of one wheel; the first request for it gets the second half after `go_on`."""

    def __init__(self, wheel: Path) -> None:
        self.wheel = wheel
        self.n_wheels_asked_for = 0
        self.half_sent = threading.Event()
        self.go_on = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/simple"

    def __enter__(self) -> SlowIndex:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.endswith(".whl"):
                    self.send_wheel()
                    return
                name = index.wheel.name
                page = f"<!DOCTYPE html><a href='/files/{name}'>{name}</a>".encode()
                self.begin("text/html", len(page))
                self.wfile.write(page)

            def send_wheel(self) -> None:
                index.n_wheels_asked_for += 1
                is_first = index.n_wheels_asked_for == 1
                content = index.wheel.read_bytes()
                half = len(content) // 2
                self.begin("application/octet-stream", len(content))
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(content[:half])
                    if is_first:
                        index.half_sent.set()
                        index.go_on.wait(60)
                    self.wfile.write(content[half:])

            def begin(self, kind: str, n_bytes: int) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(n_bytes))
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler
