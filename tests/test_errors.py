from __future__ import annotations

import subprocess
import sys

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
