"""hetero_lab on a real GPU beside the CPU, in f32: what it computes, measures and survives.

What the plugin computes without the lab is in ``tests/gpu_rig/test_canary.py``.
"""

from __future__ import annotations

import os
import sys
import warnings

import numpy as np
import openvino as ov
import pytest
from blame import check, fails_alone
from openvino import opset13 as op
from random_models import random_affinity, random_model
from raw_openvino import (
    branchy_model,
    inverse_model,
)

import hetero_lab as hl
from hetero_lab.devices.core import bind
from hetero_lab.errors import CompileError, PropertyError, SampleError
from hetero_lab.runtime.inputs import input_arrays

F32 = {"INFERENCE_PRECISION_HINT": "f32"}
N_RANDOM, PER_TEST = 100, 10
SAMPLES = ("digits_inception", "magika", "page_orientation", "ppocr_cls", "ppocr_det", "blazeface")
QUICK = {"turns": 2, "budget_s": None, "progress": False}


def f32(*devices):
    return dict.fromkeys(devices, F32)


def halves(bound, first, second):
    """Put the first half of the ops on one device and the rest on another."""
    affinity = hl.Affinity.on_one(bound.graph, first)
    ops = affinity.ops
    return affinity.fix(ops=dict.fromkeys(ops[len(ops) // 2 :], second))


@pytest.fixture(scope="module")
def bound():
    return bind(hl.load(branchy_model(32)))


@pytest.fixture(scope="module")
def digits():
    return hl.load("digits_inception")


# -- what the lab says of it -----------------------------------------------------------------


def test_it_is_listed_and_called_what_it_is(gpu):
    row = hl.devices().set_index("device").loc[gpu]
    assert row["available"]
    assert row["full_name"] == ov.Core().get_property(gpu, "FULL_DEVICE_NAME")
    assert ("not an Intel GPU" in row["problem"]) == ("intel" not in row["full_name"].lower())


def test_what_it_does_not_support_goes_to_cpu(gpu):
    model = hl.load(inverse_model())
    support = hl.support(model, [gpu, "CPU"]).set_index("op")
    assert not support.loc["inverse", gpu]
    assert support.drop(index="inverse")[gpu].all()
    affinity = hl.Affinity.automatic(model, f"HETERO:{gpu},CPU")
    assert [affinity[name] for name in ("scale", "inverse", "tail")] == [gpu, "CPU", gpu]


# -- numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("first", range(0, N_RANDOM, PER_TEST))
def test_random_placements_of_random_models(gpu, first, tmp_path, report_fault):
    for seed in range(first, first + PER_TEST):
        bound = bind(random_model(seed, n_ops=10))
        arrays = input_arrays(bound, None, seed)
        affinity = random_affinity(bound.graph, [gpu, "CPU"], seed)
        placement = hl.Placement(affinity, f"random{seed}", f32(gpu, "CPU"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                check(bound, placement, arrays, tmp_path, report_fault)
            except CompileError as error:
                says = fails_alone(bound, placement, arrays, tmp_path)
                assert says, f"seed {seed}: only the lab cannot compile it: {error}"
                report_fault(f"random{seed}: refused, with openvino alone too: {says[-300:]}")


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_whole_and_in_halves(gpu, name, tmp_path, report_fault):
    try:
        bound = bind(hl.load(name))
    except SampleError as error:
        pytest.skip(str(error))
    if len(hl.support(bound.model, [gpu]).query(f"not `{gpu}`")):
        pytest.skip(f"{gpu} does not support all of it")
    arrays = input_arrays(bound, None)
    whole = hl.Affinity.on_one(bound.graph, gpu)
    for label_, affinity in {
        "whole": whole,
        "on_gpu_first": halves(bound, gpu, "CPU"),
        "on_cpu_first": halves(bound, "CPU", gpu),
    }.items():
        placement = hl.Placement(affinity, label_, f32(*affinity.devices))
        check(bound, placement, arrays, tmp_path, report_fault)


@pytest.mark.parametrize("requests", [1, 4])
def test_random_models_in_parallel(gpu, requests, tmp_path):
    for seed in range(20):
        bound = bind(random_model(seed, n_ops=8))
        arrays = input_arrays(bound, None, seed)
        affinity = random_affinity(bound.graph, [gpu, "CPU"], seed)
        placement = hl.Placement(affinity, f"p{seed}", f32(*affinity.devices))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = hl.compile(bound.model, placement)(arrays)
        with hl.ParallelExecutor(
            bound.model, affinity, device_properties=f32(gpu, "CPU"), requests=requests
        ) as executor:
            for future in [executor.submit(arrays) for _ in range(4)]:
                for name, value in future.result(timeout=120).items():
                    np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-4)


# -- measuring -------------------------------------------------------------------------------


def test_a_profile_has_counters_of_both_devices(gpu, bound):
    placement = hl.Placement(halves(bound, gpu, "CPU"), "halves", f32(gpu, "CPU"))
    profile = hl.profile(bound.model, placement, iterations=20, progress=False)
    assert profile.as_predicted
    executed = profile.tables["subgraphs"].groupby("device")["n_executed"].sum()
    assert set(executed.index) == {gpu, "CPU"}
    assert (executed > 0).all()
    assert profile.tables["summary"]["rest_us"].iloc[0] >= 0


def test_a_profile_in_a_process_of_its_own(gpu, bound):
    placement = hl.Placement(halves(bound, gpu, "CPU"), "halves", f32(gpu, "CPU"))
    profile = hl.profile(bound.model, placement, iterations=20, isolate=True, progress=False)
    assert {a.verdict for a in profile.agreement} == {"equal"}


def test_a_sweep_in_workers_and_what_it_stores(gpu, bound, tmp_path):
    placements = [
        hl.Placement(hl.Affinity.on_one(bound.graph, gpu), "whole", f32(gpu)),
        hl.Placement(halves(bound, gpu, "CPU"), "halves", f32(gpu, "CPU")),
    ]
    sweep = hl.sweep(bound.model, placements, store=tmp_path / "sweep", **QUICK)
    assert set(sweep.summary["status"]) == {"ok"}
    assert hl.read_sweep(tmp_path / "sweep").summary.equals(sweep.summary)


@pytest.mark.filterwarnings("ignore::hetero_lab.BudgetWarning")
@pytest.mark.parametrize("isolate", [False, True])
def test_calibrate_predicts_every_device_and_the_mix(gpu, digits, isolate):
    costs = hl.calibrate(
        digits, [gpu, "CPU"], budget_s=20, device_properties=f32(gpu, "CPU"), isolate=isolate,
        progress=False,
    )  # fmt: skip
    for device in (gpu, "CPU"):
        assert costs.predict_us(hl.Affinity.uniform(digits, device)) > 0
    assert {gpu, "CPU"} == set(costs.devices)


@pytest.mark.filterwarnings("ignore::hetero_lab.BudgetWarning")
def test_optimize_proves_what_it_returns(gpu, digits, tmp_path):
    best = hl.optimize(
        digits, [gpu, "CPU"], budget_s=25, device_properties=f32(gpu, "CPU"), progress=False,
        store=tmp_path / "proof",
    )  # fmt: skip
    rows = best.summary.set_index("label")
    assert {"optimized", "greedy", "CPU"} <= set(rows.index)
    stored = hl.read_sweep(tmp_path / "proof").summary.set_index("label")
    assert stored.loc["greedy", "median_us"] == rows.loc["greedy", "median_us"]


# -- two GPUs --------------------------------------------------------------------------------


def test_two_gpus_share_a_model(digits, tmp_path, report_fault):
    listed = [name for name in ov.Core().available_devices if name.startswith("GPU.")]
    if len(listed) < 2:
        pytest.skip("there are not two GPUs")
    first, second = listed[:2]
    bound = bind(digits)
    arrays = input_arrays(bound, None)
    for label_, affinity in {
        "gpus": halves(bound, first, second),
        "gpus_and_cpu": halves(bound, first, second).fix(patterns={"^head_": "CPU"}),
    }.items():
        placement = hl.Placement(affinity, label_, f32(*affinity.devices))
        check(bound, placement, arrays, tmp_path, report_fault)
    placement = hl.Placement(halves(bound, first, second), "gpus", f32(first, second))
    sweep = hl.sweep(digits, [placement], **QUICK)
    assert set(sweep.summary["status"]) == {"ok"}
    assert {first, second} <= set(sweep.summary["label"])  # each alone is a baseline


# -- bad input: one row each, a clear reason, nothing lost -----------------------------------


def worker_with(**environment):
    changed = [f"{name}={value}" for name, value in environment.items()]
    worker = [sys.executable, "-m", "hetero_lab.measure.worker_program"]
    return ["env", *changed, *worker]


def test_a_gpu_that_is_gone_in_the_workers_costs_its_rows(gpu, bound, tmp_path):
    """The driver is not found any more: the rows of the GPU say so, that of the CPU is there."""
    nowhere = tmp_path / "nowhere"
    nowhere.mkdir()
    sweep = hl.sweep(
        bound.model, ["CPU", hl.Placement(hl.Affinity.on_one(bound.graph, gpu), "gone", f32(gpu))],
        workers=hl.Workers(command=worker_with(OCL_ICD_VENDORS=nowhere, OPENCL_LAYERS="")),
        reference=False,
        **QUICK,
    )  # fmt: skip
    rows = sweep.summary.set_index("label")
    assert rows.loc["CPU", "status"] == "ok"
    assert rows.loc["gone", "status"] == "failed"
    assert "GPU" in rows.loc["gone", "detail"]


def test_a_model_larger_than_the_gpu_costs_its_row(gpu, bound):
    n_bytes = 2 * int(ov.Core().get_property(gpu, "GPU_DEVICE_TOTAL_MEM_SIZE"))
    x = op.parameter([1, 1], np.float32, name="x")
    shape = np.array([n_bytes // (4 << 10), 1 << 10], np.int64)
    wide = op.broadcast(x, op.constant(shape), name="wide")
    first, last, step = (op.constant(np.array([n, n])) for n in (0, 1, 1))
    corner = op.slice(op.relu(wide, name="relu"), first, last, step, name="corner")
    models = {"small": bound.model, "huge": ov.Model([corner], [x], "huge")}
    placement = f"HETERO:{gpu}"
    sweep = hl.sweep(
        models, [placement], reference=False, baselines=False,
        workers=hl.Workers(compile_timeout_s=90), counters=False, **QUICK,
    )  # fmt: skip
    rows = sweep.summary.set_index("variant")
    assert rows.loc["small", "status"] == "ok"
    assert rows.loc["huge", "status"] != "ok"
    assert rows.loc["huge", "detail"]


def test_a_driver_that_hangs_costs_one_row(gpu, bound, monkeypatch):
    """A worker that never answers, with the context of a real device in it, is ended."""
    faulty = os.path.join(os.path.dirname(__file__), "../measure/faulty_worker.py")
    placements = [
        hl.Placement(hl.Affinity.on_one(bound.graph, gpu), "whole", f32(gpu)),
        hl.Placement(halves(bound, gpu, "CPU"), "halves", f32(gpu, "CPU")),
    ]
    first = hl.sweep(bound.model, placements, baselines=False, **QUICK)
    key = next(row.key for row in first.rows if row.label == "halves")
    monkeypatch.setenv("FAULT", "hang")
    monkeypatch.setenv("FAULT_KEY", key)
    sweep = hl.sweep(
        bound.model, placements, baselines=False,
        workers=hl.Workers(timeout_s=5.0, command=[sys.executable, faulty]), **QUICK,
    )  # fmt: skip
    rows = sweep.summary.set_index("label")
    assert rows.loc["whole", "status"] == "ok"
    assert rows.loc["halves", "status"].startswith("timed out")


def test_what_the_gpu_does_not_compute_in_is_refused_by_name(gpu, bound):
    if "FP16" in ov.Core().get_property(gpu, "OPTIMIZATION_CAPABILITIES"):
        pytest.skip(f"{gpu} has f16")
    half = {gpu: {"INFERENCE_PRECISION_HINT": "f16"}}
    placement = hl.Placement(hl.Affinity.on_one(bound.graph, gpu), "f16", half)
    with pytest.raises(PropertyError, match=f"{gpu} does not compute in f16"):
        hl.profile(bound.model, placement, iterations=20, progress=False)
