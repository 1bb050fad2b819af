from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import openvino as ov
import pytest
from counting_core import F32, core_with_acc, in_f32
from hypothesis import given, strategies as st
from openvino import opset13 as op
from small_models import chain, convolutions, two_parts

import hetero_lab as hl
from hetero_lab.devices.core import bind, shared_core
from hetero_lab.devices.devices import precisions
from hetero_lab.model.read import prepare
from hetero_lab.runtime import reference
from hetero_lab.runtime.inputs import generate_inputs
from hetero_lab.runtime.reference import (
    Reference,
    agreement_notes,
    compare,
    compare_with_reference,
    executed_precision,
    lowest_precision,
    quantised_ops,
)

NAN, INF = math.nan, math.inf


def one(output, expected, precision="f32"):
    (agreement,) = compare(
        {"y": np.asarray(output)}, {"y": np.asarray(expected)}, precision=precision
    )
    return agreement


def test_known_differences():
    same = one(*[np.array([[1.0, -2.0, 3.0]], np.float32)] * 2)
    assert (same.verdict, same.max_abs_difference, same.relative_error) == ("equal", 0, 0)
    assert (same.cosine, same.argmax_agreement) == (pytest.approx(1), 1)
    agreement = one(np.array([3.0, 5.0]), np.array([3.0, 4.0]))
    assert agreement.max_abs_difference == 1
    assert agreement.max_relative_difference == 0.25
    assert agreement.relative_error == pytest.approx(1 / 5)
    assert agreement.cosine == pytest.approx(29 / math.sqrt(34 * 25))
    assert agreement.verdict == "different"
    swapped = one(np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([[2.0, 1.0], [2.0, 1.0]]))
    assert swapped.argmax_agreement == 0.5


@pytest.mark.parametrize(
    ("precision", "error", "verdict"),
    [
        ("f32", 1e-5, "equal"),
        ("f32", 1e-2, "different"),
        ("f16", 1e-2, "rounding"),
        ("f16", 1e-1, "different"),
        ("bf16", 1e-1, "rounding"),
        ("bf16", 1.0, "different"),
        ("bf16", 1e-5, "equal"),
        ("i8", 0.25, "rounding"),
    ],
)
def test_rounding_and_wrongness_are_told_apart_by_the_executed_precision(precision, error, verdict):
    expected = np.random.default_rng(0).normal(size=1000)
    agreement = one(expected * (1 + error), expected, precision)
    assert agreement.relative_error == pytest.approx(error)
    assert (agreement.verdict, agreement.precision) == (verdict, precision)


@pytest.mark.parametrize(
    ("output", "expected", "verdict"),
    [
        ([1, NAN], [1, NAN], "equal"),
        ([1, INF], [1, INF], "equal"),
        ([1, NAN], [1, 2], "not a number"),
        ([1, 2], [1, NAN], "not a number"),
        ([1, INF], [1, -INF], "not a number"),
        ([1, INF], [1, 3e38], "not a number"),
        ([NAN, NAN], [NAN, NAN], "undecided"),
        ([-INF], [-INF], "undecided"),
        ([NAN, NAN], [1, 2], "not a number"),
        ([0, 0], [0, 0], "equal"),
        ([0, 1], [0, 0], "different"),
        ([], [], "undecided"),
    ],
)
def test_what_is_not_finite_and_what_is_nothing(output, expected, verdict):
    agreement = one(np.array(output, np.float32), np.array(expected, np.float32))
    assert agreement.verdict == verdict


def test_other_kinds_of_outputs():
    assert one(np.array([True, False]), np.array([True, False])).verdict == "equal"
    assert one(np.array([3, 7]), np.array([3, 7])).verdict == "equal"
    assert one(np.array([3, 8]), np.array([3, 7])).verdict == "different"
    assert one(np.float32(2), np.float32(2)).verdict == "equal"
    assert one(np.array(["a"]), np.array(["a"])).verdict == "equal"
    assert one(np.array(["a"]), np.array(["b"])).verdict == "different"
    other_shape = one(np.zeros((2, 3)), np.zeros((3, 2)))
    assert (other_shape.verdict, other_shape.argmax_agreement) == ("different", 0)


@given(
    # The CPU plugin lets this process flush subnormal numbers to zero.
    st.lists(st.floats(-1e6, 1e6, width=32, allow_subnormal=False), min_size=1, max_size=20),
    st.floats(0, 1e-4, allow_subnormal=False),
)
def test_a_small_relative_error_is_equal_at_any_scale(values, error):
    expected = np.array(values, np.float64)
    agreement = one(expected * (1 + error), expected)
    assert agreement.verdict == "equal"
    assert agreement.max_abs_difference >= 0
    assert -1.000001 <= agreement.cosine <= 1.000001


def test_the_reference_is_a_real_device_in_f32():
    # An emulated device that computes in less must not become the reference.
    low = precisions("CPU", core=shared_core())[0]
    core = core_with_acc(properties={"INFERENCE_PRECISION_HINT": low})
    prepared = prepare(convolutions(8))
    arrays = list(generate_inputs(prepared).values())
    expected = Reference(bind(prepared, core))(arrays)
    cpu = in_f32(hl.Affinity.uniform(prepared, "CPU", core=core), direct=True)
    np.testing.assert_array_equal(
        expected["features"], hl.compile(prepared, cpu, core=core)(arrays)["features"]
    )


def test_the_reference_is_compiled_once_per_model_and_inputs(own_core):
    bound = bind(chain("only", "here", "in", "this", "test"), own_core)
    arrays = list(generate_inputs(bound).values())
    expected = Reference(bound)(arrays)["out"].copy()
    for _ in range(2):
        kept = Reference(bound)(arrays)["out"]
        np.testing.assert_array_equal(kept, expected)
        kept[:] = 77  # spoils nothing that is kept
    assert own_core.n_compiled == 1
    other = Reference(bound)([array + 1 for array in arrays])["out"]
    assert not np.array_equal(other, expected)
    assert own_core.n_compiled == 2


def test_models_that_differ_in_output_names_only(core):
    for name in ("first_name", "second_name"):
        model = chain("same", "inside")
        model.outputs[0].set_names({name})
        prepared = prepare(model)
        arrays = list(generate_inputs(prepared).values())
        assert list(Reference(bind(prepared, core))(arrays)) == [name]


def test_compare_with_reference_and_executed_precision(core):
    prepared = prepare(two_parts())
    inputs = generate_inputs(prepared)
    affinity = hl.Affinity.automatic(prepared, "HETERO:ACC,CPU", core=core).fix(
        ops={"abs": "CPU"}, core=core
    )
    compiled = hl.compile(prepared, in_f32(affinity), core=core)
    assert executed_precision((), compiled) == "f32"
    arrays = list(inputs.values())
    right = compare_with_reference(bind(prepared, core), arrays, compiled(inputs), "f32")
    assert [(a.output, a.verdict) for a in right] == [("first", "equal"), ("second", "equal")]
    swapped = dict(zip(("second", "first"), compiled(inputs).values(), strict=True))
    swapped["first"] = swapped["first"] + 1
    wrong = compare_with_reference(bind(prepared, core), arrays, swapped, "f32")
    assert {a.verdict for a in wrong} == {"different"}


def test_what_a_model_amplifies_in_its_own_precision_is_rounding_up_to_twice_that(
    core, monkeypatch
):
    """Few CPUs have bf16: a run of inputs that are cut to bf16 stands for one in bf16."""
    weights = np.tile([1.0, -1.0], 128).astype(np.float32)[:, None]
    x = op.parameter([64, 256], np.float32, name="x")
    sums = op.matmul(x, op.constant(weights), False, False)
    bound = bind(prepare(ov.Model([sums], [x], "differences")), core)
    in_f32 = Reference(bound)

    def stands_in(_bound, precision="f32"):
        mask = np.uint32(0xFFFF0000 if precision == "bf16" else 0xFFFFFFFF)
        return lambda arrays: in_f32([(a.view(np.uint32) & mask).view(np.float32) for a in arrays])

    monkeypatch.setattr(reference, "Reference", stands_in)
    near_1 = 1.0 + np.random.default_rng(0).uniform(0, 0.03, (64, 256)).astype(np.float32)
    ((name, right),) = in_f32([near_1]).items()
    (low,) = stands_in(bound, "bf16")([near_1]).values()
    own = np.linalg.norm(low - right) / np.linalg.norm(right)
    for times, verdict in ((1.9, "rounding"), (2.1, "different")):
        outputs = {name: right + times * (low - right)}
        assert one(outputs[name], right, "bf16").verdict == "different"
        (found,) = compare_with_reference(bound, [near_1], outputs, "bf16")
        assert (found.verdict, found.relative_error) == (verdict, pytest.approx(times * own))
        (found,) = compare_with_reference(bound, [near_1], outputs, "f32")
        assert found.verdict == "different"


def test_what_is_not_finite_in_the_reference_is_said():
    outputs = {"all": np.full(4, NAN), "half": np.array([1, -INF]), "none": np.ones(2)}
    found = compare(outputs, outputs)
    assert [a.verdict for a in found] == ["undecided", "equal", "equal"]
    assert [a.not_finite for a in found] == [1.0, 0.5, 0.0]
    nothing, partly = agreement_notes(found)
    assert "'all'" in nothing
    assert "inputs=" in nothing
    assert "'half'" not in nothing
    assert "50.0% of 'half'" in partly
    assert "'none'" not in partly


def test_much_rounding_is_said():
    right = np.ones(4, np.float32)
    little = compare({"y": right}, {"y": right + 0.1}, "bf16")
    assert little[0].verdict == "rounding"
    assert list(agreement_notes(little)) == []
    (said,) = agreement_notes([replace(little[0], relative_error=0.774)])
    assert said.startswith("Rounding in bf16 changes 'y' by 77%.")


def test_indices_and_masks_in_8_bits_are_no_quantised_arithmetic(core):
    x = op.parameter([64, 1024], np.float32, name="x")
    seen, kept = (op.parameter([64, 1024], np.uint8, name=name) for name in ("seen", "kept"))
    logits = op.matmul(x, op.constant(np.eye(1024, dtype=np.float32)), False, False)
    mask = op.transpose(op.maximum(seen, kept), [1, 0])
    results = [op.result(logits, name="logits"), op.result(mask, name="mask")]
    model = ov.Model(results, [x, seen, kept], "masked")
    profile = hl.profile(model, "CPU", iterations=20, core=core)
    assert {"i8", "u8"} & {row.precision for row in profile.counters if row.status == "EXECUTED"}
    assert {a.precision for a in profile.agreement} <= {"f32", "bf16", "f16"}


@pytest.mark.parametrize("direct", [True, False])
def test_the_executed_precision_is_what_was_asked_for(core, direct):
    affinity = hl.Affinity.uniform(chain("r"), "CPU", core=core)
    for text in precisions("CPU", core=shared_core()):
        low = {"CPU": {**F32, "INFERENCE_PRECISION_HINT": text}}
        placement = hl.Placement(affinity, device_properties=low, direct=direct)
        compiled = hl.compile(chain("r"), placement, core=core)
        assert executed_precision((), compiled) == text


def test_what_reads_quantised_values_or_weights_is_computed_in_8_bits():
    x = op.parameter([1, 4], np.uint8, name="image")
    scaled = op.multiply(
        op.convert(x, "f32", name="convert"), op.constant(np.float32(0.1)), name="a"
    )
    low, high = op.constant(np.float32(-3)), op.constant(np.float32(3))
    weights = op.convert(op.constant(np.ones((4, 4), np.int8)), "f32")
    plain = op.matmul(scaled, weights, False, True, name="plain")
    node = op.fake_quantize(plain, low, high, low, high, 255, name="quantise")
    node = op.matmul(op.relu(node, name="relu"), weights, False, True, name="matmul")
    graph = prepare(ov.Model([op.tanh(node, name="tanh")], [x], "m")).graph
    assert quantised_ops(graph) >= {"quantise", "relu", "matmul", "plain"}
    assert not quantised_ops(graph) & {"convert", "a", "tanh"}
    assert lowest_precision([], graph, ["f32"]) == "i8"
    image = prepare(ov.Model([scaled], [x], "m")).graph
    assert lowest_precision([], image, ["f32"]) == "f32"


def test_the_references_used_last_are_kept_up_to_a_size(monkeypatch):
    monkeypatch.setattr(reference, "_kept", OrderedDict())
    monkeypatch.setattr(reference, "_MOST_BYTES", 100)
    made: list[str] = []

    def kept(name: str, n_bytes: int = 40) -> np.ndarray:
        def make() -> tuple[np.ndarray, ...]:
            made.append(name)
            return (np.zeros(n_bytes, np.uint8),)

        (found,) = reference.keep_reference((name, "", "", ""), make)
        return found

    kept("a")[:] = 1
    kept("b")
    assert kept("a").sum() == 0  # each gets a copy
    assert made == ["a", "b"]
    kept("c")  # 120 bytes: b is the one that was not used for longest
    kept("a")
    assert made == ["a", "b", "c"]
    kept("b")
    assert made == ["a", "b", "c", "b"]
    kept("large", 1000)  # drops all others, and stays
    kept("large", 1000)
    kept("a")
    kept("large", 1000)
    assert made[4:] == ["large", "a", "large"]
