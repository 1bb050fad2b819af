"""Python code in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_python(
    code: str, *arguments: object, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run code that has to end well; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def run(python: str, *command: object) -> subprocess.CompletedProcess[str]:
    """Run a program that has what its interpreter has, wherever this process looks as well."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [python, *map(str, command)],
        env=environment, cwd=Path(python).parent, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
