"""Samples on random affinities: right numbers, and the predicted partition.

Random graphs are in ``tests.proof.properties``.
"""

from __future__ import annotations

import numpy as np
import pytest
from counting_core import F32
from random_models import random_affinity
from small_models import two_parts

import hetero_lab as hl
from hetero_lab.devices.core import bind
from hetero_lab.model.read import prepare
from hetero_lab.runtime.inputs import bind_inputs, generate_inputs
from hetero_lab.runtime.reference import compare_with_reference, executed_precision
from hetero_lab.samples.catalogue import sample, sample_names

DEVICES = ["ACC", "CPU"]


def test_the_runtimes_own_automatic_mode_still_swaps_outputs_and_ours_does_not(core):
    """Which is why the lab writes every affinity out."""
    x, y = np.full((1, 4), -1, np.float32), np.full((1, 4), -5, np.float32)
    theirs = core.compile_model(two_parts(), "HETERO:ACC,CPU")
    # relu of -1 is 0, abs of -5 is 5; the runtime hands back relu of -5 and abs of -1, swapped.
    assert [float(out[0, 0]) for out in theirs([x, y]).values()] == [1.0, 0.0]
    ours = hl.compile(two_parts(), "HETERO:ACC,CPU", core=core)([x, y])
    assert [float(out[0, 0]) for out in ours.values()] == [0.0, 5.0]


# -- every sample ------------------------------------------------------------------------------

TIMES = {"hetero": 4, "parallel": 2}
REQUESTS = 4


@pytest.mark.network
@pytest.mark.timeout(900)
@pytest.mark.parametrize("executor", TIMES)
@pytest.mark.parametrize("name", [name for name in sample_names() if sample(name).shapes])
def test_random_placements_of_samples_equal_one_device(name, executor):
    hl.emulate("ACC")
    prepared = prepare(hl.load(name))
    arrays = bind_inputs(prepared, generate_inputs(prepared))
    for seed in range(TIMES[executor]):
        affinity = random_affinity(prepared.graph, DEVICES, seed)
        placement = hl.Placement(affinity, f"random {seed}", dict.fromkeys(DEVICES, F32))
        if executor == "hetero":
            compiled = hl.compile(prepared, placement)
            assert compiled.as_predicted
            made = [compiled(arrays)]
        else:
            requests = 1 + seed * (REQUESTS - 1)
            with hl.ParallelExecutor(prepared, placement, requests=requests) as compiled:
                futures = [compiled.submit_bound(arrays) for _ in range(requests + 1)]
                made = [future.result() for future in futures]
        precision = executed_precision((), compiled)
        # An 8-bit model rounds in other places in each placement; all others agree in f32.
        allowed = {"equal", "rounding"} if precision == "i8" else {"equal"}
        for outputs in made:
            agreement = compare_with_reference(bind(prepared), arrays, outputs, precision)
            assert {a.verdict for a in agreement} <= allowed, (seed, agreement)
