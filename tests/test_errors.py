from __future__ import annotations

import subprocess
import sys

import pytest

from hetero_lab.errors import last_line

CELL = "import hetero_lab as hl\nhl.load('nope.onnx')"


def shown(*setting: str) -> list[str]:
    """Return what IPython shows of an error, by lines."""
    call = [sys.executable, "-m", "IPython", "--colors=NoColor", *setting, "-c", CELL]
    found = subprocess.run(call, capture_output=True, text=True, check=False)
    return (found.stdout + found.stderr).splitlines()


def test_a_notebook_shows_the_callers_line_and_the_message():
    lines = shown()
    assert lines.index("----> 2 hl.load('nope.onnx')") < 5
    assert any("ModelError" in line and "'nope.onnx' does not exist" in line for line in lines[:6])
    assert not any("arguments.py" in line for line in lines)


def test_every_frame_is_there_on_demand():
    assert any("read.py" in line for line in shown("--InteractiveShell.xmode=Verbose"))


@pytest.mark.parametrize("text", ["why", "Exception from core.cpp:117:\n\n why...\n", "x.\nwhy."])
def test_the_last_line_of_the_runtime_has_no_full_stop(text):
    assert last_line(RuntimeError(text)) == "why"
