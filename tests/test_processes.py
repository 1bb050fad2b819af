"""Programs that are run to their end: their text, their end, and Ctrl-C meanwhile."""

from __future__ import annotations

import _thread
import sys
import threading

import pytest

from hetero_lab.processes import crash_of, run_child


def test_text_passes_whatever_the_code_page(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "cp1252")
    done = run_child([sys.executable, "-c", "print('µ → é 你')"], timeout_s=60)
    assert (done.returncode, done.stdout) == (0, "µ → é 你\n")


@pytest.mark.parametrize(
    ("code", "name"),
    [(0, ""), (1, ""), (-11, "SIGSEGV"), (0xC0000005, "0xC0000005"), (0xC0000409, "0xC0000409")],
)
def test_a_crash_is_told_from_an_exit_code(code, name):
    assert crash_of(code) == name


def test_an_interrupt_that_ends_no_system_call_kills_the_program():
    """As on Windows, where Ctrl-C in a notebook leaves the main thread in its wait."""
    threading.Timer(0.5, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        run_child([sys.executable, "-c", "import time; time.sleep(999)"], timeout_s=999)
