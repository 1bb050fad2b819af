"""Cores that come and go leave the main thread its signal stack, so that Ctrl-C can arrive."""

from __future__ import annotations

import gc

import openvino as ov
from signal_stack import signal_stack_is_mapped

import hetero_lab as hl
from hetero_lab.deploy import run_frozen


def core_of_somebody_else() -> ov.Core:
    core = ov.Core()
    core.get_property("CPU", "FULL_DEVICE_NAME")  # loads the plugin, which sets a signal stack
    return core


def test_a_frozen_placement_that_was_let_go(tmp_path):
    hl.emulate("STACK_ACC")
    hl.freeze(
        hl.load("digits_inception"), "HETERO:STACK_ACC,CPU", tmp_path / "frozen", tolerance=None
    )
    compiled, _ = run_frozen.load(tmp_path / "frozen")
    later = core_of_somebody_else()
    del compiled
    gc.collect()
    del later
    assert signal_stack_is_mapped()
