"""hetero_lab on OpenVINO's own GPU plugin: load, support, placement, profile, properties, magic."""

from __future__ import annotations

import warnings

import numpy as np
import openvino as ov
import pytest
import rig
from random_models import random_affinity, random_model
from raw_openvino import (
    branchy_model,
    depthwise_windows_model,
    if_two_outputs_model,
    inverse_model,
    norm_to_int_model,
    select_rank6_model,
    shuffle_3d_model,
    square_int_model,
)

import hetero_lab as hl
from hetero_lab.errors import CompileError, PropertyError
from hetero_lab.model.read import prepare
from hetero_lab.runtime.inputs import generate_inputs

F32 = {d: {"INFERENCE_PRECISION_HINT": "f32"} for d in ("GPU", "CPU")}


def close(got, expected):
    assert list(got) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-3, atol=1e-4, err_msg=name)


def on_cpu(model, inputs):
    affinity = hl.Affinity.uniform(model, "CPU")
    return hl.compile(model, hl.Placement(affinity, "CPU", F32, direct=True))(inputs)


@pytest.fixture(scope="module")
def model():
    return hl.load(branchy_model())


def test_the_gpu_is_among_the_devices():
    table = hl.devices().set_index("device")
    assert table.loc["GPU", "available"]
    assert table.loc["GPU", "emulated_on"] == ""


def test_support_and_natural_fallback():
    model = hl.load(inverse_model())
    support = hl.support(model, ["GPU", "CPU"]).set_index("op")
    assert not support.loc["inverse", "GPU"]
    assert support.drop(index="inverse")["GPU"].all()
    affinity = hl.Affinity.automatic(model, "HETERO:GPU,CPU")
    assert [affinity[op] for op in ("scale", "inverse", "tail")] == ["GPU", "CPU", "GPU"]
    compiled = hl.compile(model, hl.Placement(affinity, "fallback", F32))
    assert compiled.as_predicted
    assert [s.device for s in compiled.partition.subgraphs] == ["GPU", "CPU", "GPU"]
    inputs = [np.eye(4, dtype=np.float32) * 3]
    close(compiled(inputs), on_cpu(model, inputs))


def test_profile_has_the_counters_of_both_devices():
    model = hl.load(branchy_model(64))  # counters are whole microseconds
    affinity = hl.Affinity.automatic(model, "HETERO:GPU,CPU").fix(ops={"right": "CPU"})
    profile = hl.profile(model, hl.Placement(affinity, "split", F32), iterations=20, progress=False)
    assert profile.as_predicted
    assert {a.verdict for a in profile.agreement} == {"equal"}
    placement = profile.tables["placement"].set_index("op")
    assert placement.loc["right", "device"] == "CPU"
    # A fused op's time is in its group; the convolution's is its own or, where the plugin
    # shows only the reorder in front of it, unknown. It is never given to another op.
    assert placement.loc["relu", "fused_with"] in ("conv", "")
    times = placement["time_us"]
    assert (times.dropna() >= 0).all()
    assert times.dropna().sum() > 0
    by_device = profile.tables["subgraphs"].groupby("device")["n_executed"].sum()
    assert (by_device > 0).all()
    assert profile.tables["summary"]["rest_us"].iloc[0] >= 0


def test_a_convolution_with_bias_has_its_time():
    from openvino import opset13 as op

    rng = np.random.default_rng(0)
    x = op.parameter([1, 3, 16, 16], np.float32, name="x")
    node = x
    for i, channels in enumerate((3, 8)):
        weights = rng.normal(size=(8, channels, 3, 3)).astype(np.float32)
        node = op.convolution(node, weights, [1, 1], [1, 1], [1, 1], [1, 1], name=f"conv{i}")
        bias = rng.normal(size=(1, 8, 1, 1)).astype(np.float32)
        node = op.relu(op.add(node, bias, name=f"bias{i}"), name=f"relu{i}")
    model = hl.load(ov.Model([node], [x], "convs"))
    affinity = hl.Affinity.uniform(model, "GPU")
    profile = hl.profile(model, hl.Placement(affinity, "GPU", F32), iterations=20, progress=False)
    placement = profile.tables["placement"].set_index("op")
    assert placement.loc["conv1", "time_us"] > 0
    assert placement.loc["relu1", "fused_with"] == "conv1"


def test_device_properties_reach_the_gpu(model):
    placement = hl.Placement(
        hl.Affinity.uniform(model, "GPU"), "f16", {"GPU": {"INFERENCE_PRECISION_HINT": "f16"}}
    )
    compiled = hl.compile(model, placement)
    hint = compiled.compiled_model.get_property("DEVICE_PROPERTIES")["GPU"]
    assert "float16" in str(hint["INFERENCE_PRECISION_HINT"])


def test_a_number_of_streams_reaches_the_gpu(model):
    affinity = hl.Affinity.uniform(model, "GPU")
    placement = hl.Placement(affinity, "two", {"GPU": {"NUM_STREAMS": 2}}, direct=True)
    assert hl.compile(model, placement).compiled_model.get_property("NUM_STREAMS") == 2
    for wrong in (2.5, True, "many"):
        asked = hl.Placement(affinity, "wrong", {"GPU": {"NUM_STREAMS": wrong}}, direct=True)
        with pytest.raises(PropertyError, match="is not a value for NUM_STREAMS of GPU"):
            hl.compile(model, asked)


def test_three_devices_at_once(model):
    hl.emulate("ACC")
    ops = hl.Affinity.uniform(model, "GPU").ops
    fixed = hl.Affinity.uniform(model, "GPU").fix(ops={ops[1]: "ACC", ops[3]: "CPU"})
    compiled = hl.compile(
        model, hl.Placement(fixed, "three", {**F32, "ACC": {"INFERENCE_PRECISION_HINT": "f32"}})
    )
    assert {s.device for s in compiled.partition.subgraphs} == {"GPU", "ACC", "CPU"}
    inputs = generate_inputs(prepare(model))
    close(compiled(inputs), on_cpu(model, inputs))


@pytest.mark.parametrize("block", range(10))
def test_random_models_equal_cpu(block):
    for seed in range(block * 10, block * 10 + 10):
        prepared = prepare(random_model(seed, n_ops=8))
        inputs = generate_inputs(prepared, seed)
        affinity = random_affinity(prepared.graph, ["GPU", "CPU"], seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = hl.compile(prepared, hl.Placement(affinity, "random", F32))
        assert compiled.as_predicted, seed
        expected = on_cpu(prepared, inputs)
        close(compiled(inputs), expected)
        if block >= 4:
            continue
        with hl.ParallelExecutor(
            prepared, affinity, device_properties=F32, requests=4 if seed % 2 else 1
        ) as executor:
            for future in [executor.submit(inputs) for _ in range(4)]:
                close(future.result(timeout=60), expected)


@pytest.mark.parametrize("name", ["digits_inception", "blazeface", "ppocr_cls"])
@pytest.mark.timeout(600)
def test_samples_equal_cpu(name):
    model = hl.load(name)
    affinity = hl.Affinity.automatic(model, "HETERO:GPU,CPU")
    half = affinity.ops[len(affinity.ops) // 2 :]
    compiled = hl.compile(
        model, hl.Placement(affinity.fix(ops=dict.fromkeys(half, "CPU")), "h", F32)
    )
    inputs = generate_inputs(prepare(model))
    close(compiled(inputs), on_cpu(model, inputs))


def test_the_magic():
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "hetero_lab")
    shell.user_ns["model"] = branchy_model()
    profile = shell.run_line_magic(
        "hetero_profile",
        "model -d HETERO:GPU,CPU -n 10 -q -o --property GPU.INFERENCE_PRECISION_HINT=f32 "
        "--property CPU.INFERENCE_PRECISION_HINT=f32",
    )
    assert profile.partition.subgraphs[0].device == "GPU"


def test_a_sweep_runs_in_workers_that_see_the_gpu(model):
    placement = hl.Placement(hl.Affinity.uniform(model, "GPU"), "GPU", F32)
    sweep = hl.sweep(model, [placement], turns=2, budget_s=None, progress=False)
    assert set(sweep.summary["status"]) == {"ok"}


# The plugin's own checks refuse these, so no hardware is at fault.
REFUSED = {
    "norm_to_int": (norm_to_int_model, {"norm", "scale", "to_int"}, "Failed to select impl"),
    "depthwise": (depthwise_windows_model, {"depthwise", "windows"}, "Weights/ifm mismatch"),
    "square": (square_int_model, {"square"}, "not supported for integer type"),
    "shuffle": (shuffle_3d_model, {"shuffle"}, "No layout format available"),
    "select": (select_rank6_model, {"select"}, "No layout format available"),
    "if": (if_two_outputs_model, {"branch"}, "hasn't been found in primitive_ids map"),
}
ON_THE_RIG = pytest.mark.skipif(not rig.is_running(), reason="a real GPU may accept these")
TOGETHER = ("norm_to_int", "depthwise")  # of the others, one op is refused alone


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in TOGETHER else ON_THE_RIG) for n in REFUSED]
)
def test_a_refused_subgraph_is_named_and_the_fix_found(name):
    """The device claims each op, but refuses one of them, or some together."""
    make, culprits, reason = REFUSED[name]
    model = hl.load(make())
    assert hl.support(model, ["GPU"])["GPU"].all()
    affinity = hl.Affinity.uniform(model, "GPU")
    placement = hl.Placement(affinity, "all", F32)
    with pytest.raises(CompileError, match="GPU claims each op, but refuses subgraph 0") as raised:
        hl.compile(model, placement)
    assert reason in str(raised.value)
    found = hl.find_refused(model, placement, progress=False)
    assert {r.device for r in found.refusals} == {"GPU"}
    assert any(culprits & set(r.ops) for r in found.refusals)
    fixed = affinity.fix(ops=found.fix)
    assert found.affinity == fixed
    inputs = generate_inputs(prepare(model))
    close(hl.compile(model, hl.Placement(fixed, "fixed", F32))(inputs), on_cpu(model, inputs))


def test_nothing_is_refused_where_it_compiles(model):
    found = hl.find_refused(model, hl.Affinity.uniform(model, "GPU"), progress=False)
    assert not found
