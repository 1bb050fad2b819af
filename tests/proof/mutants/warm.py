"""A process that has imported what every test needs, but not the package; each run is a fork of it.

It reads calls of pytest as JSON, one a line, and answers each with the exit code, or null where the
time was up.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.proof.mutants import noting

NEEDED = (
    "pytest", "hypothesis", "numpy", "pandas", "openvino", "openvino.opset13", "scipy.optimize",
    "scipy.sparse.csgraph", "scipy.stats", "msgspec", "psutil", "plotly.graph_objects",
)  # fmt: skip


class Warm:
    """The process, started in a copy of the tree."""

    def __init__(self, python: str, root: Path):
        environment = {**os.environ, "PYTHONPATH": str(root), "CI": "true"}
        self.process = subprocess.Popen(
            [python, "-m", "tests.proof.mutants.warm"], cwd=root, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(
        self, arguments: list[str], environment: Mapping[str, str], most_s: float
    ) -> int | None:
        """Run pytest; return its exit code, below 0 for a signal, or None if the time was up."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps([arguments, dict(environment), most_s]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


@dataclass
class Tree:
    """A copy of the tree in which one mutant at a time is tried."""

    root: Path
    scratch: Path
    warm: Warm
    changes: int = 0

    def write(self, path: str, source: bytes) -> None:
        """Write a module: its time differs from that of every earlier one, as Python looks at."""
        file = self.root / path
        file.write_bytes(source)
        self.changes += 1
        os.utime(file, (time.time() + 10 * self.changes,) * 2)


def serve() -> None:
    """Answer each call."""
    for name in NEEDED:
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    for line in sys.stdin:
        print(json.dumps(_forked(*json.loads(line))), file=answers, flush=True)


def _forked(arguments: list[str], environment: dict[str, str], most_s: float) -> Any:
    child = os.fork()
    if not child:
        code = 70
        try:
            os.setsid()
            os.dup2(1, 0)
            os.environ.update(environment)
            if noting.NOTES in environment:
                sys.pycache_prefix = environment["PYTHONPYCACHEPREFIX"]
                noting.note_statements()
            import pytest

            code = int(pytest.main(arguments))
        finally:
            os._exit(code)
    end = time.monotonic() + most_s
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # with what it has started
    if not ended[0]:
        os.waitpid(child, 0)
        return None
    return os.waitstatus_to_exitcode(ended[1])


if __name__ == "__main__":
    serve()
