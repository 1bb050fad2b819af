"""A sample of the odd models: each question is answered right."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from slices import sliced

from hetero_lab.processes import environment_of_a_child
from tests.proof.zoo import QUESTIONS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="each model has a process"),
]


@pytest.mark.parametrize(
    "name", sliced(["two states", "every integer and bool", "dropout"], quick=0, in_ci=1)
)
def test_every_question_about_an_odd_model_is_answered(name):
    command = [sys.executable, "-m", "tests.proof.zoo", f"^{name} ×"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment_of_a_child(), check=False
    )
    assert done.stdout == f"{len(QUESTIONS)} cells: {len(QUESTIONS)} right\n"
