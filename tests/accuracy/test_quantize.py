from __future__ import annotations

import itertools
import logging
from dataclasses import replace

import numpy as np
import openvino as ov
import pytest
from counting_core import COUNTED, heavy, in_f32, int8_kernels
from openvino import opset13 as op
from small_models import chain

import hetero_lab as hl
from hetero_lab import clock
from hetero_lab.accuracy.quantize import calibration_inputs
from hetero_lab.errors import HeteroLabError, QuantizationError
from hetero_lab.model.read import prepare
from hetero_lab.runtime.inputs import generate_inputs

SUBSET = 20


@pytest.fixture(scope="module")
def data():
    return hl.dataset("digits")


@pytest.fixture(scope="module")
def int8(digits, data) -> ov.Model:
    return hl.quantize(digits, data.calibration, subset_size=SUBSET, progress=False)


@pytest.fixture(scope="module")
def plain(digits, data):
    """What NNCF makes of the same model and data when it is called without us, compiled."""
    import nncf

    examples = [data.calibration[i][0] for i in range(SUBSET)]
    preset = nncf.QuantizationPreset.MIXED
    made = nncf.quantize(digits.clone(), nncf.Dataset(examples), preset=preset, subset_size=SUBSET)
    compiled = ov.Core().compile_model(made, "CPU", COUNTED)
    return made, int8_kernels(compiled, examples[0])


def kernels(model, placement, data, core):
    compiled = hl.compile(model, placement, counters=True, core=core)
    return int8_kernels(compiled.compiled_model, list(data.evaluation[0][0].values()))


def split(model, core) -> hl.Affinity:
    cpu = hl.Affinity.uniform(model, "CPU", core=core)
    return cpu.fix(patterns={"^mixed2": "ACC"}, core=core)


def matmul() -> ov.Model:
    x = op.parameter([1, 8], np.float32, name="x")
    weights = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    node = op.matmul(x, op.constant(weights), False, False, name="matmul")
    return ov.Model([op.result(node, name="y")], [x], "matmul")


def some(shape=(1, 8)) -> list[np.ndarray]:
    return list(np.random.default_rng(1).normal(size=(4, *shape)).astype(np.float32))


# --- what it makes ------------------------------------------------------------------------


def test_a_variant_is_a_prepared_model_and_the_original_stays(digits, int8):
    before = prepare(hl.load("digits_inception"))
    assert prepare(digits).fingerprint == before.fingerprint
    made = prepare(int8)
    assert made.model is int8  # it needs no preparation any more
    assert [p.get_names() for p in int8.inputs] == [p.get_names() for p in digits.inputs]
    assert [p.get_names() for p in int8.outputs] == [p.get_names() for p in digits.outputs]
    assert made.graph.name == before.graph.name
    assert made.graph.weight_bytes < 0.35 * before.graph.weight_bytes
    assert set(before.graph.index_of) & set(made.graph.index_of) >= {"mixed1/branch1x1/conv"}


def test_it_is_as_accurate_as_f32(digits, int8, data):
    some_data = replace(data, evaluation=data.evaluation[:100])
    exact, small = (
        hl.evaluate(model, in_f32(hl.Affinity.uniform(model, "CPU")), some_data).accuracy
        for model in (digits, int8)
    )
    assert exact >= 0.98
    assert small >= exact - 0.02


def test_loading_and_one_device_keep_every_int8_kernel(int8, plain, data, core):
    made, expected = plain
    assert heavy(expected) == 27
    assert kernels(hl.load(made), "CPU", data, core) == expected
    assert kernels(int8, "CPU", data, core) == expected


@pytest.mark.parametrize("share", [0.25, 0.75])
def test_a_cut_through_blocks_loses_int8_and_the_remedy_brings_it_back(
    share, int8, plain, data, core
):
    everything = sum(plain[1].values())
    cpu = hl.Affinity.uniform(int8, "CPU", core=core)
    first = cpu.ops[: int(share * len(cpu.ops))]
    cut = cpu.fix(ops=dict.fromkeys(first, "ACC"), core=core)
    found = hl.lint(int8, cut, core=core)
    (finding,) = found[found["rule"] == "cut-quantization"].to_dict("records")
    lost = [name for name in finding["ops"] if name.endswith("/conv")]
    assert heavy(kernels(int8, cut, data, core)) == 27 - len(lost)
    better = cut.fix(ops=finding["remedy"], core=core)
    again = hl.lint(int8, better, core=core)
    assert not (again["rule"] == "cut-quantization").any()
    now = kernels(int8, better, data, core)
    assert heavy(now) == 27
    assert sum(now.values()) >= 0.9 * everything


@pytest.mark.network
@pytest.mark.parametrize(
    "name", ["page_orientation", "blazeface", "ppocr_cls", "efficientnet_lite0"]
)
def test_networks_cut_in_their_blocks_keep_their_int8_kernels_with_the_remedies(name, core):
    model = prepare(hl.load(name))
    examples = [generate_inputs(model, seed) for seed in range(4)]
    made = hl.quantize(model, examples, progress=False)
    affinity = hl.Affinity.uniform(made, "CPU", core=core)
    third = len(affinity.ops) // 3
    mended = affinity.fix(ops=dict.fromkeys(affinity.ops[third : 2 * third], "ACC"), core=core)
    for _ in range(10):
        found = hl.lint(made, mended, core=core)
        for remedy in found.loc[found["rule"] == "cut-quantization", "remedy"][:1]:
            mended = mended.fix(ops=remedy, core=core)
    whole, kept = (
        int8_kernels(hl.compile(made, p, counters=True, core=core).compiled_model, examples[0])
        for p in (affinity, mended)
    )
    assert sum(kept.values()) >= 0.9 * sum(whole.values()) > 10


def test_it_goes_where_a_model_goes(int8, data, core, tmp_path):
    inputs = data.evaluation[0][0]
    affinity = split(int8, core)
    expected = hl.compile(int8, affinity, core=core)(inputs)
    executor = hl.ParallelExecutor(int8, affinity, core=core)
    np.testing.assert_allclose(executor(inputs)["digit"], expected["digit"], atol=1e-2)
    directory = hl.freeze(int8, affinity, tmp_path / "frozen", core=core, tolerance=None)
    (path,) = directory.glob("*.xml")
    frozen = prepare(hl.load(path))
    assert frozen.graph.weight_bytes == prepare(int8).graph.weight_bytes


def test_ignored_ops_stay_as_they_are(digits, int8, data):
    ignored = ["MatMul", "^mixed2", "stem/conv"]
    made = hl.quantize(digits, data.calibration, subset_size=4, ignored=ignored, progress=False)
    whole, some_of_it = prepare(int8).graph, prepare(made).graph

    def small_weights(graph, name):
        conv = graph.ops[graph.index_of[name]]
        return graph.ops[conv.inputs[1][0]].type != "Constant"

    quantized = [o.name for o in some_of_it if o.type == "FakeQuantize"]
    assert any(name.startswith("mixed1") for name in quantized)
    assert small_weights(whole, "stem/conv")
    for name in ("stem/conv", "mixed2/branch3x3/conv", "head_digit/matmul"):
        assert not small_weights(some_of_it, name)
    assert small_weights(some_of_it, "mixed1/branch3x3/conv")


def half_weights() -> ov.Model:
    """Build a convolution whose f16 weights are converted and transposed, as in TFLite models."""
    x = op.parameter([1, 16, 8, 8], np.float32, name="x")
    weights = np.random.default_rng(0).normal(size=(3, 3, 16, 16)).astype(np.float16)
    turned = op.transpose(
        op.convert(op.constant(weights), np.float32), op.constant(np.array([3, 2, 0, 1]))
    )
    node = op.convolution(x, turned, [1, 1], [1, 1], [1, 1], [1, 1], name="conv")
    return ov.Model([op.result(node, name="y")], [x], "half")


@pytest.mark.parametrize("make", [hl.quantize, hl.compress_weights])
def test_f16_weights_become_int8(make, core):
    model = hl.load(half_weights())
    examples = some((1, 16, 8, 8))
    arguments = [model, examples] if make is hl.quantize else [model]
    small = make(*arguments, progress=False)
    before, after = prepare(model).graph.weight_bytes, prepare(small).graph.weight_bytes
    assert 16 * 16 * 9 <= after < 0.6 * before
    expected = hl.compile(model, "CPU", core=core)(examples[0])["y"]
    got = hl.compile(small, "CPU", core=core)(examples[0])["y"]
    assert np.abs(got - expected).max() < 0.05 * np.abs(expected).max()


def test_presets_differ():
    examples = [x + 3 for x in some()]
    made = [
        prepare(hl.quantize(matmul(), examples, preset=preset, progress=False))
        for preset in ("mixed", "performance")
    ]
    assert made[0].fingerprint != made[1].fingerprint


# --- weights alone ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["int8_sym", "int8_asym"])
def test_compressed_weights_stay_compressed(digits, data, core, mode):
    small = hl.compress_weights(digits, mode, progress=False)
    before, after = prepare(digits), prepare(hl.load(small))
    assert after.graph.weight_bytes < 0.35 * before.graph.weight_bytes
    kind = {"int8_sym": "i8", "int8_asym": "u8"}[mode]
    stored = [o for o in after.graph if o.type == "Constant" and o.outputs[0].element_type == kind]
    assert len(stored) >= 27
    inputs = data.evaluation[0][0]
    found = hl.compile(small, split(small, core), core=core)(inputs)["digit"]
    np.testing.assert_allclose(
        found, hl.compile(digits, "CPU", core=core)(inputs)["digit"], atol=0.05
    )


def test_what_nncf_refuses_keeps_its_own_words():
    with pytest.raises(QuantizationError, match="cannot compress the weights of 'matmul'") as info:
        hl.compress_weights(matmul(), "int8_sym", ratio=0.5, progress=False)
    assert type(info.value.__cause__).__name__ == "ParameterNotSupportedError"
    assert "ParameterNotSupportedError: INT8" in str(info.value)
    assert isinstance(info.value, HeteroLabError)


# --- quiet --------------------------------------------------------------------------------


def test_nothing_is_printed(capfd, recwarn, monkeypatch):
    from nncf.common.logging import nncf_logger, track_progress

    before = nncf_logger.level, track_progress.track.__init__, track_progress.track.__iter__
    hl.quantize(matmul(), some(), progress=False)
    hl.compress_weights(matmul(), progress=False)
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list
    # A log shows progress after half a minute: on a clock on which every look takes longer.
    seconds = itertools.count()
    with monkeypatch.context() as patched:
        patched.setattr(clock, "now_ns", lambda: next(seconds) * 40 * 10**9)
        hl.quantize(matmul(), some())
    out, err = capfd.readouterr()
    assert out == ""
    assert "Statistics collection" in err
    with pytest.raises(QuantizationError):
        hl.quantize(chain("a", "b"), some((1, 4)), progress=False)
    assert capfd.readouterr() == ("", "")
    after = nncf_logger.level, track_progress.track.__init__, track_progress.track.__iter__
    assert after == before
    assert nncf_logger.level == logging.INFO


# --- bad input ----------------------------------------------------------------------------


def test_nothing_to_quantise(int8, data):
    with pytest.raises(QuantizationError, match="no op that it can quantise in 'chain'"):
        hl.quantize(chain("a", "b"), some((1, 4)), progress=False)
    with pytest.raises(QuantizationError, match="no weights to compress in 'chain'"):
        hl.compress_weights(chain("a", "b"), progress=False)
    with pytest.raises(QuantizationError, match="outside the 1 ignored op"):
        hl.quantize(matmul(), some(), ignored="MatMul", progress=False)
    with pytest.raises(QuantizationError, match="quantised already"):
        hl.quantize(int8, data.calibration, progress=False)
    with pytest.raises(QuantizationError, match="quantised already"):
        hl.quantize(hl.compress_weights(matmul(), progress=False), some(), progress=False)


def test_forms_of_examples():
    model, given = prepare(matmul()), some()
    forms = (
        given, [(x, 3) for x in given], [{"x": x} for x in given], [[x] for x in given],
        [({"x": x}, "label") for x in given], iter(given), np.stack(given),
    )  # fmt: skip
    for examples in forms:
        np.testing.assert_array_equal(np.squeeze(calibration_inputs(model, examples), 1), given)


def test_a_pair_of_arrays_is_two_inputs_where_there_are_two():
    x, y = (op.parameter([4, 4], np.float32, name=name) for name in "xy")
    model = ov.Model([op.matmul(x, y, False, False, name="m")], [x, y], "two")
    pairs = list(zip(some((4, 4)), some((4, 4)), strict=True))
    for examples in (pairs, [(list(pair), "label") for pair in pairs]):
        assert [len(arrays) for arrays in calibration_inputs(prepare(model), examples)] == [2] * 4
