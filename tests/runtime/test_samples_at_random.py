"""Every sample, placed at random over two devices, computes what one device computes in f32."""

from __future__ import annotations

import pytest
from random_models import random_affinity

import hetero_lab as hl
from hetero_lab.backend.bound import bind
from hetero_lab.model.read import prepare
from hetero_lab.runtime.inputs import bind_inputs, generate_inputs
from hetero_lab.runtime.reference import compare_with_reference, executed_precision
from hetero_lab.samples.catalogue import sample_names, sample_shapes

F32 = {"ACC": {"INFERENCE_PRECISION_HINT": "f32"}, "CPU": {"INFERENCE_PRECISION_HINT": "f32"}}
TIMES = {"hetero": 20, "parallel": 2}
REQUESTS = 4


@pytest.mark.network
@pytest.mark.timeout(900)
@pytest.mark.parametrize("executor", TIMES)
@pytest.mark.parametrize("name", list(filter(sample_shapes, sample_names())))
def test_random_placements_equal_one_device(name, executor):
    hl.emulate("ACC")
    prepared = prepare(hl.load(name))
    arrays = bind_inputs(prepared, generate_inputs(prepared))
    for seed in range(TIMES[executor]):
        affinity = random_affinity(prepared.graph, ["ACC", "CPU"], seed)
        placement = hl.Placement(affinity, f"random {seed}", F32)
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
