"""A few of the interrupts of ``tests.proof.interrupts``, and the exit codes of the commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from interrupts import interrupt
from slices import sliced

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="sends SIGINT to a group"),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "function", sliced(["sweep", "calibrate", "evaluate", "quantize"], quick=0, in_ci=2)
)
def test_no_interrupt_is_lost_or_swallowed(function):
    outcome = interrupt(function, times=2, seed=7)
    assert outcome.problems == []
    assert outcome.n == 2


COMMANDS = {
    # So many turns, or it ends by itself on a fast machine as soon as it knows enough.
    "sweep": ["sweep", "digits_inception", "-d", "CPU", "-b", "300", "--turns", "1000000"],
    "profile": ["profile", "digits_inception", "-d", "CPU", "-b", "300"],
    "plan": [
        "plan", "digits_inception", "-d", "ACC,CPU", "--emulate", "ACC:unsupported=Softmax",
        "-b", "300",
    ],
    "demo": ["demo"],
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_ctrl_c_is_exit_code_130(command, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "hetero_lab", *command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    time.sleep(5)  # wherever it is by then
    assert process.poll() is None, "ended before it could be interrupted"
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    # Python ends itself by the signal if it came in the middle of an exec, as in an import, even
    # where it was handled; a shell shows that as 130 too.
    assert process.returncode in (130, -signal.SIGINT), errors
    assert "Traceback" not in errors
