"""Models on a suspect device with faults in them, and devices that crash, hang or refuse."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

import hetero_lab as hl
from hetero_lab.devices.core import shared_core
from hetero_lab.devices.devices import precisions
from hetero_lab.progress import Stopwatch
from tests.debug.broken_device import Broken
from tests.proof import injected_faults as injected
from tests.proof.faults import Fault
from tests.scripts import F32 as F32

BROKEN = (sys.executable, "-m", "tests.debug.broken_device")
NORMAL = [np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)]


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def fault(*ops):
    return Fault(frozenset(ops), ops[-1])


def f32(values):
    return np.array(values, np.float32)


def constant(value):
    return op.constant(f32(value))


def parameter(shape=(2, 8), kind: type = np.float32):
    return op.parameter(list(shape), kind, name="x")


def needs(precision):
    if precision not in precisions("CPU", core=shared_core()):
        pytest.skip(f"the CPU here does not compute in {precision}")


def case_of(results, inputs, arrays, *faults, precision="f32"):
    """Return a model on the suspect as a whole, in a precision, with faults in it."""
    needs(precision)
    hl.emulate(injected.SUSPECT)
    prepared = injected.prepare(ov.Model(results, inputs, "m"))
    affinity = hl.Affinity.uniform(prepared.model, injected.SUSPECT)
    hint = {injected.SUSPECT: {"INFERENCE_PRECISION_HINT": precision}}
    placement = hl.Placement(affinity, "placed", hint, direct=True)
    return injected.Case(prepared, placement, precision, arrays, faults)


def chain_case(*faults):
    """Return x → matmul → tanh → shift → sigmoid → negative on the suspect, with faults in it."""
    rng, x = np.random.default_rng(0), parameter()
    weights = op.constant(rng.normal(size=(8, 8)).astype(np.float32), name="weights")
    node = op.matmul(x, weights, False, False, name="matmul")
    node = op.add(op.tanh(node, name="tanh"), constant(np.full((1, 8), 0.5)), name="shift")
    node = op.negative(op.sigmoid(node, name="sigmoid"), name="negative")
    arrays = [rng.normal(size=(2, 8)).astype(np.float32)]
    return case_of([node], [x], arrays, *faults)


def broken(case, monkeypatch, fault):
    """Let the suspect have a fault in its process."""
    for name, value in fault.environment().items():
        monkeypatch.setenv(name, value)
    return replace(case, worker_command=BROKEN)


def failing(case, monkeypatch, how, maker, reader):
    """Let the suspect crash, hang or refuse where ``reader`` reads what ``maker`` makes."""
    return broken(case, monkeypatch, Broken(how=how, ops=(maker, reader)))


def over_when(is_over):
    """Return a budget that is over when a condition holds."""

    class Budget(Stopwatch):
        @property
        def is_over(self):
            return is_over()

    return Budget(None, 0.0)
