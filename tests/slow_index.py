"""Small wheels, a package index here that stops in the middle of one, and small disks."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hetero_lab.fetch import Member, Wheel


def make_wheel(directory: Path, files: dict[str, bytes], name: str = "labtoy") -> Wheel:
    """Write a wheel into a directory and return its description, for all of its files."""
    path = directory / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    facts = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for member, content in {**files, **facts}.items():
            archive.writestr(member, content)
    members = tuple(Member(m, hashlib.sha256(c).hexdigest(), len(c)) for m, c in files.items())
    return Wheel(name, "1.0", path.name, path.stat().st_size, members)


def only_from(monkeypatch: pytest.MonkeyPatch, links: Path | None) -> None:
    """Let pip find packages in a directory only, or nowhere."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    if links is not None:
        monkeypatch.setenv("PIP_FIND_LINKS", str(links))


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


@contextlib.contextmanager
def mounted(place: Path, *arguments: str) -> Iterator[Path]:
    """Mount at a new directory; skip the test where that is not allowed."""
    if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("mounting a file system of one's own needs Linux and root")
    place.mkdir()
    done = subprocess.run(["mount", *arguments, str(place)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"mount is not permitted here: {done.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def disk_of(place: Path, size: str) -> contextlib.AbstractContextManager[Path]:
    """Mount a file system of a size in memory."""
    return mounted(place, "-t", "tmpfs", "-o", f"size={size},nr_inodes=1k", "tmpfs")
