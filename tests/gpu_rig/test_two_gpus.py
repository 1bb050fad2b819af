"""A model on two GPUs, divided by HETERO itself, on the real GPU plugin.

The rig lists its device twice if ``FAKE_GPU_TWICE`` is set; run this file by itself:
``FAKE_GPU_TWICE=1 OPENVINO_HETERO_PERF=1 python -m pytest tests/gpu_rig/test_two_gpus.py``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

import hetero_lab as hl
from hetero_lab.advise.candidates import candidates_for
from hetero_lab.devices.core import bind
from hetero_lab.errors import AffinityError, ArgumentError, PlanError, PropertyError
from hetero_lab.placement.distribution import first_part
from hetero_lab.placement.placement import resolve
from hetero_lab.runtime.compiled import compile_placed
from hetero_lab.runtime.inputs import generate_inputs
from tests.other_process import run_python
from tests.real_gpu.two_gpus import model_of, networks, stages
from tests.scripts import EXACT, F32, alone, compiled_parts, error_of, parts_told, predicted_parts

TWO, PIPELINE = ["GPU.0", "GPU.1"], "PIPELINE_PARALLEL"
SAMPLES = ("page_orientation", "ppocr_cls", "magika", "ppocr_det", "googlenet_graph")
NAMES = [*networks(True), *SAMPLES]
WRONG = ("transformer", "words", "magika")  # by the plugin on the rig, on one device as well
pytestmark = [
    pytest.mark.skipif("FAKE_GPU_TWICE" not in os.environ, reason="one GPU is listed once"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module", params=NAMES)
def bound(request):
    make = networks(True).get(request.param)
    return bind(hl.load(make() if make else request.param))


def f32(devices):
    return dict.fromkeys(devices, F32)


def runs_as_said(bound, placement, name):
    compiled, parts = compiled_parts(partial(compile_placed, resolve(bound, placement)))
    assert compiled.as_predicted
    assert parts == predicted_parts(bound, placement)
    if name in WRONG:
        return [device for device, _ in parts]
    inputs = generate_inputs(bound, 0)
    wanted = compile_placed(resolve(bound, alone(bound, "CPU", EXACT)))(inputs)
    assert any(abs(value).max() > 0 for value in wanted.values())
    assert error_of(compiled(inputs), wanted) < 1e-3  # of the samples; made ones are at 1e-6
    return [device for device, _ in parts]


def test_shares_are_compiled_as_said_and_outputs_are_right(bound, request):
    placement = hl.Placement.balanced(bound, TWO, device_properties=f32(TWO))
    said = hl.distribution(bound, placement)
    name = request.node.callspec.params["bound"]
    assert dict.fromkeys(runs_as_said(bound, placement, name)) == dict.fromkeys(TWO)
    # Without the plugin, only a few ops are estimated to be elsewhere.
    memory = {"GPU.8": "1TB", "GPU.9": "1TB"}
    first = len(first_part(bound.graph, bound.graph.placeable, 0.5))
    assert abs(first - said.shares[0].n_ops) <= max(2, 0.05 * len(bound.graph.placeable))
    assert hl.distribution(bound, list(memory), PIPELINE, memory=memory).empty == ("GPU.9",)


def test_the_policy_is_compiled_as_said(bound, monkeypatch):
    weights = hl.distribution(bound, TWO).shares[0].left_bytes
    for share, devices in ((0.6, TWO), (0.4, [*TWO, "CPU"])):
        monkeypatch.setenv("FAKE_GPU_BYTES", str(int(share * weights)))
        core = ov.Core()  # asks the device anew
        there = bind(bound, core)
        said = hl.distribution(there, devices, PIPELINE, device_properties=f32(devices), core=core)
        assert said.ratios["GPU.0"] == pytest.approx(0.5 if share > 0.5 else 0.4 / 1.2, rel=1e-3)
        placement = said.placement
        compiled, parts = compiled_parts(partial(compile_placed, resolve(there, placement)))
        assert compiled.as_predicted
        assert parts == predicted_parts(there, placement)


@pytest.fixture(scope="module")
def small():
    return bind(hl.load(networks(True)["matmuls"]()))


def test_lint_profile_sweep_and_freeze_take_what_hetero_divides(small, tmp_path):
    policy = hl.distribution(small, TWO, PIPELINE).placement
    found = hl.lint(small, policy)
    assert found.loc[found["rule"] == "empty-device", "severity"].tolist() == ["warning"]
    halves = hl.Placement.balanced(small, TWO, "memory", device_properties=f32(TWO))
    assert "empty-device" not in set(hl.lint(small, halves)["rule"])
    profile = hl.profile(small, halves, iterations=10, progress=False)
    assert profile.partition.observed
    assert [s.device for s in profile.partition.subgraphs] == TWO
    assert {a.verdict for a in profile.agreement} == {"equal"}
    sweep = hl.sweep(small, [halves, policy], turns=2, budget_s=None, progress=False)
    assert set(sweep.summary["status"]) == {"ok"}
    assert sweep.summary["n_subgraphs"].tolist()[:2] == [2, 1]
    hl.freeze(small, halves, tmp_path, tolerance=None)  # with labels
    assert "QUERY_MODEL_RATIO" not in str(hl.read_placement(tmp_path).device_properties)


@pytest.mark.filterwarnings("ignore::hetero_lab.BudgetWarning")  # on a busy machine
def test_advice_on_throughput_tries_equal_weights_and_equal_times(small):
    given = {"requests": 4, "device_properties": f32(TWO), "memory_limit": None}
    raced, left_out = candidates_for(small, ("GPU.0", "GPU.1", "CPU"), **given)
    halves = raced["HETERO:GPU.0,GPU.1 · equal weights"]
    assert halves.priorities == tuple(TWO)
    assert not left_out
    with hl.ParallelExecutor(small, halves) as executor:  # which places ops by labels
        assert [part.device for part in executor.partition.subgraphs] == TWO
    found = stages(networks(True)["matmuls"], TWO, 20.0, small=True)
    assert max(found["errors"].values()) < 1e-5


def test_benchmark_app_divides_it_as_printed(small, tmp_path):
    halves = hl.Placement.balanced(small, TWO, device_properties=f32(TWO))
    note, _, loaded = halves.recipe("benchmark_app").partition("\n")
    command = note.partition("benchmark_app ")[2]
    (tmp_path / "load.json").write_text(loaded)
    hl.save(small, halves, tmp_path / "model.xml")
    program = "from openvino.tools.benchmark.main import main; main()"
    # Requests in flight hang on the rig: nothing is inferred.
    line = [sys.executable, "-c", program, *command.split(), "-niter", "0"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert parts_told(done.stdout) == predicted_parts(small, halves)


def test_the_report_of_the_empty_gpu_shows_it():
    page = Path(__file__).parents[2] / "docs" / "upstream" / "second_gpu_stays_empty.md"
    program = page.read_text("utf-8").partition("```python\n")[2].partition("```")[0]
    told = run_python(program.replace("= 4096, 4,", "= 64, 1,")).stdout
    assert [device for device, _ in parts_told(told)] == ["GPU.0", *TWO]
    errors = re.findall(r"error (\S+),", told)
    assert [float(error) < 1e-5 for error in errors] == [True, True]


def test_ratios_fit_into_memory(small):
    weights = small.graph.weight_bytes
    fit = hl.fit_blocks(small, TWO, {"GPU.0": weights * 2 // 5, "GPU.1": weights}, cut="ratio")
    first, second = (held.weight_bytes for held in fit.memory)
    assert first == weights // 3  # two layers of six; a third does not fit
    assert first + second == weights
    assert fit.placement.recipe("python").count("QUERY_MODEL_RATIO") == 1
    with pytest.raises(PlanError, match="No ratios keep within"):
        hl.fit_blocks(small, TWO, {"GPU.0": weights // 3, "GPU.1": weights // 3}, cut="ratio")
    assert hl.fit_blocks(small, TWO, cut="ratio").memory[1].weight_bytes == 0


def test_bad_input_is_refused_before_anything_is_compiled(small):
    with pytest.raises(PropertyError, match="CPU has no QUERY_MODEL_RATIO"):
        hl.Placement.balanced(small, ["CPU", "GPU.0"])
    labelled = {"GPU.0": {"QUERY_MODEL_RATIO": 0.5}}
    with pytest.raises(PropertyError, match="has no effect"):
        hl.compile(small, hl.Placement(hl.Affinity.uniform(small, "GPU.0"), "", labelled))
    with pytest.raises(ArgumentError, match="add up to 1.1"):
        hl.Placement.balanced(small, TWO, [0.5, 0.6])
    halves = hl.Placement.balanced(small, TWO)
    with pytest.raises(PropertyError, match="above 0 and at most 1"):
        hl.compile(small, halves.with_properties({"GPU.0": {"QUERY_MODEL_RATIO": 2.0}}))
    one, two = (op.parameter([4], np.float32, name=name) for name in "ab")
    apart = model_of([op.relu(one), op.abs(two)], [one, two], "apart")
    with pytest.raises(AffinityError, match="2 parts that are not connected"):
        hl.compile(apart, hl.distribution(apart, TWO).placement)
