"""Where a boundary loses an int8 kernel: the rule of lint against the runtime, case by case."""

from __future__ import annotations

import random

import numpy as np
import openvino as ov
import pytest
from counting_core import COUNTED, heavy, int8_kernels
from openvino import opset13 as op
from slices import sliced

import hetero_lab as hl
from hetero_lab.lint.quantized_blocks import quantized_blocks
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.model.read import prepare

CHANNELS = 16


def number(value: float):
    return op.constant(np.float32(value))


def whole(*values: int):
    return op.constant(np.array(values, np.int64))


CARRIERS = {
    "nothing": lambda t: t,
    "AvgPool": lambda t: op.avg_pool(t, [1, 1], [0, 0], [0, 0], [2, 2], True),
    "Broadcast": lambda t: op.broadcast(t, whole(2, CHANNELS, 8, 8)),
    "Concat": lambda t: op.concat([t], 1),
    "DepthToSpace": lambda t: op.depth_to_space(op.concat([t] * 4, 1), "blocks_first", 2),
    "Gather": lambda t: op.gather(t, whole(0, 1, 2, 3, 4, 5), op.constant(np.int64(2))),
    "MaxPool": lambda t: op.max_pool(t, [1, 1], [1, 1], [0, 0], [0, 0], [2, 2]),
    "Pad": lambda t: op.pad(t, whole(0, 0, 1, 1), whole(0, 0, 1, 1), "constant", number(0)),
    "ReduceMax": lambda t: op.reduce_max(t, whole(2, 3), True),
    "Relu": op.relu,
    "Reshape": lambda t: op.reshape(t, whole(1, CHANNELS, 4, 16), False),
    "ShuffleChannels": lambda t: op.shuffle_channels(t, 1, 4),
    "Slice": lambda t: op.slice(t, whole(0), whole(6), whole(1), whole(2)),
    "SpaceToBatch": lambda t: op.space_to_batch(
        t, whole(1, 1, 1, 1), whole(0, 0, 1, 1), whole(0, 0, 1, 1)
    ),
    "Split": lambda t: op.split(op.concat([t, t], 1), op.constant(np.int64(1)), 2),
    "Squeeze": lambda t: op.unsqueeze(op.squeeze(t, whole(0)), whole(0)),
    "StridedSlice": lambda t: op.strided_slice(
        t, whole(0, 0, 0, 0), whole(1, CHANNELS, 6, 6), whole(1, 1, 1, 1), [0] * 4, [0] * 4
    ),
    "Transpose": lambda t: op.transpose(t, whole(0, 1, 3, 2)),
    "VariadicSplit": lambda t: op.variadic_split(
        op.concat([t, t], 1), op.constant(np.int64(1)), whole(CHANNELS, CHANNELS)
    ),
    # These do not hand on int8: not even one device runs the convolution in it.
    "ReduceMean": lambda t: op.reduce_mean(t, whole(2, 3), True),
    "Swish": op.swish,
    "Tile": lambda t: op.tile(t, whole(1, 1, 2, 1)),
}


def convolution(source, name: str):
    weights = np.random.default_rng(0).integers(-99, 99, (CHANNELS, CHANNELS, 3, 3), np.int8)
    scaled = op.multiply(op.convert(op.constant(weights), np.float32), number(0.01))
    return op.convolution(source, scaled, *[[1, 1]] * 4, name=name)


def quantised_model(carrier: str, stored: bool = False, second: bool = False) -> ov.Model:
    """Build input → tanh → quantiser → carrier → convolution (→ quantiser → convolution)."""
    x = op.parameter([1, CHANNELS, 8, 8], np.float32, name="x")
    before = op.tanh(x, name="before")
    ends = map(number, (0, 2.55, 0, 255 if stored else 2.55))
    tensor = op.fake_quantize(before, *ends, 256, name="quantise")
    if stored:
        tensor = op.convert(tensor, np.uint8, name="to_u8")
        tensor = op.convert(tensor, np.float32, name="to_f32")
        tensor = op.subtract(tensor, number(3), name="shift")
        tensor = op.multiply(tensor, number(0.01), name="scale")
    tensor = convolution(CARRIERS[carrier](tensor).output(0), "conv")
    if second:
        tensor = op.fake_quantize(tensor, *map(number, (0, 9, 0, 9)), 256, name="quantise2")
        tensor = convolution(tensor, "conv2")
    return hl.load(ov.Model([op.result(tensor, name="y")], [x], carrier))


def n_int8(model, placement, core) -> int:
    compiled = hl.compile(model, placement, counters=True, core=core).compiled_model
    return heavy(int8_kernels(compiled, [np.ones((1, CHANNELS, 8, 8), np.float32)]))


def findings(model, affinity, core) -> list[dict]:
    found = hl.lint(model, affinity, core=core)
    return found[found["rule"] == "cut-quantization"].to_dict("records")


def up_to(model, name: str, core) -> hl.Affinity:
    """Put everything up to an op on ACC, the rest on CPU."""
    cpu = hl.Affinity.uniform(model, "CPU", core=core)
    first = cpu.ops[: cpu.ops.index(name) + 1]
    return cpu.fix(ops=dict.fromkeys(first, "ACC"), core=core)


@pytest.mark.parametrize("carrier", CARRIERS)
def test_ops_that_hand_on_int8(carrier, core):
    model = quantised_model(carrier)
    plain = n_int8(model, "CPU", core)
    blocks = quantized_blocks(prepare(model).graph)
    assert len(blocks) == plain
    cut = up_to(model, "quantise", core)
    found = findings(model, cut, core)
    assert n_int8(model, cut, core) == 0
    assert len(found) == plain
    for finding in found:
        mended = cut.fix(ops=finding["remedy"], core=core)
        assert n_int8(model, mended, core) == plain
        assert finding["remedy"] == {"quantise": "CPU"}


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("at", ["before", "quantise", "to_u8", "scale"])
def test_tensors_that_are_stored_in_int8(at, second, core):
    model = quantised_model("nothing", stored=True, second=second)
    plain = n_int8(model, "CPU", core)
    assert plain == 1 + second
    cut = up_to(model, at, core)
    lost = plain - n_int8(model, cut, core)
    found = findings(model, cut, core)
    assert len(found) == lost
    for finding in found:
        assert n_int8(model, cut.fix(ops=finding["remedy"], core=core), core) == plain
    # An int8 tensor may cross where the other side knows that it is quantised.
    assert lost == (at not in ("before", *(("quantise", "to_u8") if second else ())))


def test_a_quantiser_between_two_devices_goes_nowhere_but_its_user_does(core):
    """One user on each device: moving the quantiser would only swap the loss."""
    x = op.parameter([1, CHANNELS, 8, 8], np.float32, name="x")
    before = op.tanh(x, name="before")
    quantised = op.fake_quantize(before, *map(number, (0, 9, 0, 9)), 256, name="quantise")
    left, right = convolution(quantised, "left"), convolution(quantised, "right")
    relu = op.relu(right, name="relu")
    model = hl.load(ov.Model([op.result(left), op.result(relu)], [x], "shared"))
    cut = hl.Affinity.uniform(model, "CPU", core=core).fix(
        ops={"right": "ACC", "relu": "ACC"}, core=core
    )
    (finding,) = findings(model, cut, core)
    assert set(finding["ops"]) == {"quantise", "right"}
    assert finding["remedy"] == {"right": "CPU", "relu": "CPU"}
    assert "int8 kernel is lost" in finding["finding"]
    assert n_int8(model, cut, core) == 1
    assert n_int8(model, cut.fix(ops=finding["remedy"], core=core), core) == 2


def test_a_matmul_of_two_activations(core):
    x, y = (op.parameter([1, 4, 64, 64], np.float32, name=name) for name in "xy")
    sides = [
        op.fake_quantize(op.tanh(source), *map(number, (-1, 1, -1, 1)), 255, name=name)
        for name, source in (("a", x), ("b", y))
    ]
    model = hl.load(ov.Model([op.result(op.matmul(*sides, False, True, name="m"))], [x, y], "both"))
    (quantizers,) = quantized_blocks(prepare(model).graph).values()
    assert len(quantizers) == 2
    inputs = [np.ones((1, 4, 64, 64), np.float32)] * 2
    compiled = core.compile_model(model, "CPU", COUNTED)
    assert heavy(int8_kernels(compiled, inputs)) == 1
    cut = hl.Affinity.uniform(model, "CPU", core=core).fix(ops={"a": "ACC"}, core=core)
    (finding,) = findings(model, cut, core)
    assert finding["remedy"] == {"a": "CPU"}
    split = hl.compile(model, cut, counters=True, core=core).compiled_model
    assert heavy(int8_kernels(split, inputs)) == 0


def test_a_model_in_f32_has_none(core):
    model = hl.load("digits_inception")
    assert quantized_blocks(prepare(model).graph) == {}


@pytest.mark.parametrize("seed", sliced(range(12), quick=0, in_ci=1))
def test_random_placements_lose_what_lint_says(seed, core):
    """As many convolutions and matmuls lose int8 as are named in findings."""
    data = hl.dataset("digits")
    model = hl.quantize("digits_inception", data.calibration, subset_size=20, progress=False)
    graph: OpGraph = prepare(model).graph
    rng = random.Random(seed)
    cpu = hl.Affinity.uniform(model, "CPU", core=core)
    blocks = sorted(rng.sample(range(len(cpu.ops)), 2))
    away = [name for name in cpu.ops[blocks[0] : blocks[1]] if rng.random() < 0.97]
    affinity = cpu.fix(ops=dict.fromkeys(away, "ACC"), core=core)
    users = quantized_blocks(graph).keys()
    named_ops = {
        name
        for finding in findings(model, affinity, core)
        for name in finding["ops"]
        if graph.index_of[name] in users
    }
    compiled = hl.compile(model, affinity, counters=True, core=core).compiled_model
    kept = heavy(int8_kernels(compiled, list(data.evaluation[0][0].values())))
    assert kept == len(users) - len(named_ops)
