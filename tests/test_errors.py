from __future__ import annotations

import subprocess
import sys

import pytest

from hetero_lab.errors import last_line

CELL = "import hetero_lab as hl\nhl.load('nope.onnx')"
PROGRAM = f"""
shell = get_ipython()
shell.run_cell({CELL!r})
shell.run_line_magic("xmode", "Verbose")
shell.run_cell({CELL!r})
"""


def test_a_notebook_shows_the_callers_line_and_the_message_and_every_frame_on_demand():
    call = [sys.executable, "-m", "IPython", "--colors=NoColor", "-c", PROGRAM]
    shown = subprocess.run(call, capture_output=True, text=True, check=False).stdout
    short, _, verbose = shown.partition("Exception reporting mode: Verbose")
    lines = short.splitlines()
    assert lines.index("----> 2 hl.load('nope.onnx')") < 5
    assert any("ModelError" in line and "'nope.onnx' does not exist" in line for line in lines[:6])
    assert "arguments.py" not in short
    assert "read.py" in verbose


TRACE = "Exception from core.cpp:117:\nCheck 'false' failed at builder.cpp:168:\n"
FAILED = f"{TRACE}[GPU] ProgramBuilder build failed!\n"


@pytest.mark.parametrize(
    "text",
    [
        "why",
        "Exception from core.cpp:117:\n\n why...\n",
        "x.\nwhy.",
        f"{FAILED}Error has occured for: power:square\nwhy.",
    ],
)
def test_the_last_line_of_the_runtime_has_no_full_stop(text):
    assert last_line(RuntimeError(text)) == "why"


def test_details_below_the_cause_are_not_taken_for_it():
    text = f"{FAILED}{TRACE}[GPU] No layout for shuffle \n{{\n\tformat=bfzyx;\n}}, 0\n\n"
    assert last_line(RuntimeError(text)) == "[GPU] No layout for shuffle"


def test_the_description_of_a_property_is_not_the_cause():
    text = "Exception from plugin_config.cpp:90:\nInvalid value: 2 for property: NUM_STREAMS\n"
    described = f"{text}Property description: Number of streams\n\n\n"
    assert last_line(RuntimeError(described)) == "Invalid value: 2 for property: NUM_STREAMS"
