"""One comparison of outputs: states, exact types, bodies, random ops, whoever asks."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import odd_models as models
import openvino as ov
import pytest
from counting_core import F32, core_with_acc, in_f32
from hypothesis import given, strategies as st
from openvino import opset13 as op
from small_models import chain, convolutions

import hetero_lab as hl
from hetero_lab.debug.find_wrong import search_wrong
from hetero_lab.debug.placed_runs import PlacedRuns
from hetero_lab.devices.core import bind, shared_core
from hetero_lab.devices.devices import precisions
from hetero_lab.errors import HeteroLabWarning
from hetero_lab.model.opgraph import RANDOM
from hetero_lab.model.read import op_graph, prepare
from hetero_lab.placement.placement import resolve
from hetero_lab.runtime import reference
from hetero_lab.runtime.counters import Counter
from hetero_lab.runtime.inputs import generate_inputs
from hetero_lab.runtime.reference import (
    Reference,
    agreement_notes,
    compare,
    compare_with_reference,
    executed_precision,
    lowest_precision,
    origins,
    quantised_ops,
)
from tests.debug.cases import case_of

QUICK = {"iterations": 10, "warmup": 0, "counters": False, "progress": False}
NAN, INF = math.nan, math.inf


def one(output, expected, precision="f32", graph=None):
    (found,) = compare({"y": np.asarray(output)}, {"y": np.asarray(expected)}, precision, graph)
    return found


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
    assert one(np.float32(2), np.float32(2)).verdict == "equal"
    by_name = compare({"b": np.ones(2), "a": np.zeros(2)}, {"a": np.ones(2), "b": np.ones(2)})
    assert [(a.output, a.verdict) for a in by_name] == [("a", "different"), ("b", "equal")]


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
    monkeypatch.setattr(reference, "_outputs", OrderedDict())
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


# -- states ------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [models.growing, models.recurrent])
@pytest.mark.parametrize("executor", ["hetero", "parallel"])
def test_a_profile_compares_from_the_initial_states(core, make, executor):
    found = hl.profile(make(), "HETERO:ACC,CPU", executor=executor, core=core, **QUICK)
    assert {a.verdict for a in found.agreement} == {"equal"}


@pytest.mark.parametrize("make", [models.growing, models.two_states])
def test_examples_do_not_depend_on_what_ran_before(core, make):
    first = np.ones(make().inputs[0].shape, np.float32)
    model = hl.load(make())
    name = model.outputs[0].get_node().get_friendly_name()
    seen = []

    def correct(outputs, label):
        seen.append(outputs[name].copy())
        return True

    pairs = [([values], 0) for values in (first, 3 * first, first)]
    f32 = in_f32(hl.Affinity.uniform(model, "CPU"))
    found = hl.evaluate(model, f32, pairs, metric=correct, core=core, progress=False)
    assert [answer.relative_error for answer in found.answers] == [0, 0, 0]
    np.testing.assert_array_equal(seen[0], seen[-2])  # of the placement: the first and the last


def test_a_frozen_state_begins_afresh(tmp_path):
    hl.emulate("AFRESH")
    target = hl.freeze(
        models.running_sum(), "HETERO:AFRESH,CPU", tmp_path, tolerance=None, progress=False
    )
    with np.load(target / "requests.npz") as stored:
        for number in range(3):
            np.testing.assert_array_equal(stored[f"out{number}.0"], stored[f"in{number}.0"] + 40)
    parts = hl.verify(target, progress=False).summary.set_index("part")
    assert parts.loc["outputs", "status"] == "ok"


# -- exact types -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "expected", "different"),
    [
        (np.arange(1000) * 50_000 + 1, np.arange(1000) * 50_000, 1000),
        (np.array([2**60 + 1, 5]), np.array([2**60, 5]), 1),
        (np.array([2**64 - 1], np.uint64), np.array([2**64 - 2], np.uint64), 1),
        (np.array([0, 255], np.uint8), np.array([255, 255], np.uint8), 1),
        (np.array([-128], np.int8), np.array([127], np.int8), 1),
        (np.array([True, False, True]), np.array([True, True, True]), 1),
        (np.array(["cat", "dog"]), np.array(["cat", "dot"]), 1),
        (np.array(7), np.array(8), 1),
        (np.eye(100, dtype=np.int32), np.zeros((100, 100), np.int32), 100),
        (np.arange(5), np.arange(5), 0),
        (np.array([False]), np.array([False]), 0),
        (np.array(["cat"]), np.array(["cat"]), 0),
    ],
)
@pytest.mark.parametrize("precision", ["f32", "i8"])
def test_exact_values_are_equal_or_not(output, expected, different, precision):
    found = one(output, expected, precision)
    assert found.verdict == ("different" if different else "equal")
    assert found.relative_error == different / expected.size
    assert found.argmax_agreement == 1 - different / expected.size
    assert found.detail == (f"in {different:,} of {expected.size:,} values" if different else "")
    assert (found.max_abs_difference > 0) == bool(different)


def chosen(make, n=100):
    x = models.parameter(1, n)
    return prepare(ov.Model([op.result(make(x), name="y")], [x], "chosen")).graph


def largest(x):
    return op.topk(x, models.constant(5, np.int64), 1, "max", "value", "i64").output(1)


@pytest.mark.parametrize(
    "graph",
    [
        chosen(largest),
        chosen(lambda x: op.non_zero(op.greater(x, models.constant(0)), "i64")),
        chosen(lambda x: op.convert(x, "i32")),
        chosen(lambda x: op.logical_not(op.less(x, models.constant(1)))),
    ],
)
def test_numbers_that_are_rounded_choose_integers(graph):
    assert origins(graph)[0][1]
    positions = np.arange(1000)
    swapped = np.where(positions == 17, 18, positions)
    low, high = (one(swapped, positions, p, graph) for p in ("bf16", "f32"))
    assert (low.verdict, low.detail) == ("rounding", "in 1 of 1,000 values")
    assert high.detail == "in 1 of 1,000 values"
    assert one(positions + 1, positions, "bf16", graph).verdict == "different"


def test_ids_are_not_rounded():
    ids = models.parameter(8, kind=np.int64)
    moved = op.result(op.add(ids, models.constant(1, np.int64)), name="y")
    graph = prepare(ov.Model([moved], [ids], "ids")).graph
    assert not origins(graph)[0][1]
    off = one(np.arange(1000) + (np.arange(1000) == 3), np.arange(1000), "bf16", graph)
    assert (off.verdict, off.tolerance) == ("different", 0)


def test_another_shape_says_which():
    found = one(np.zeros((2, 3), np.int64), np.zeros((2, 4), np.int64))
    assert (found.verdict, found.detail) == ("different", "in shape, [2, 3] instead of [2, 4]")
    assert (found.relative_error, found.cosine, found.argmax_agreement) == (1, 0, 0)


class Longer(ov.Core):
    """A Core whose device ACC gives each output twice as long."""

    def compile_model(self, model, device_name, config=None):
        if device_name == "ACC":
            model = model.clone()
            for result in model.get_results():
                source = result.input_value(0)
                result.input(0).replace_source_output(op.concat([source, source], 0).output(0))
        return super().compile_model(model, device_name, config or {})


def test_a_device_that_changes_a_shape_is_judged():
    x = models.parameter(4)
    model = hl.load(ov.Model([op.result(op.relu(x), name="y")], [x], "shaped"))
    hl.emulate("ACC", core=(core := Longer()))
    on_acc = hl.Placement(hl.Affinity.uniform(model, "ACC", core=core), "ACC", direct=True)
    found = hl.evaluate(model, on_acc, [[np.ones(4, np.float32)]], core=core, progress=False)
    (answer,) = found.answers
    assert (answer.relative_error, answer.cosine, answer.top1_agreement) == (1, 0, 0)


def test_numbers_in_a_body_are_rounded():
    def positions(x):
        numbers = models.product(op.convert(x, "f32"))
        return op.topk(numbers, op.constant(1), 1, "max", "none", "i64")

    x, inner, other = (models.parameter(1, 16, kind=np.int64, name=n) for n in "xio")
    bodies = [
        ov.Model([op.result(positions(given).output(1))], [given], "body")
        for given in (inner, other)
    ]
    node = op.if_op(op.greater(op.reduce_sum(x, op.constant([0, 1])), op.constant(0)).output(0))
    node.set_then_body(bodies[0])
    node.set_else_body(bodies[1])
    node.set_input(x.output(0), inner, other)
    y = node.set_output(*(body.results[0] for body in bodies))
    graph = prepare(ov.Model([op.result(y, name="y")], [x], "ids")).graph
    assert origins(graph) == [((), True)]


@pytest.mark.parametrize("tolerance", [None, 0.5])
def test_find_wrong_finds_one_wrong_id(tolerance):
    x = models.parameter(2, 8, kind=np.int32)
    table = models.constant(1000 + np.arange(300), np.int32)
    ids = op.gather(table, x, op.constant(0), name="look_up")
    ids = op.add(ids, models.constant(np.full((2, 8), 70_000), np.int32), name="shift")
    arrays = [np.arange(16, dtype=np.int32).reshape(2, 8)]
    case = case_of([op.result(ids, name="ids")], [x], arrays)

    def before_compile(model, subgraphs):
        nodes = {node.get_friendly_name(): node for node in model.get_ordered_ops()}
        if "shift" in nodes and any(device != "CPU" for device, _ in subgraphs):
            values = np.full((2, 8), 70_000, np.int32)
            values[1, 3] += 1
            known = nodes["shift"].input_value(1).get_node().get_friendly_name()
            other = op.constant(values)
            other.set_friendly_name(known)
            nodes["shift"].input(1).replace_source_output(other.output(0))

    placed = resolve(bind(case.prepared.model), case.placement)
    with PlacedRuns(placed, arrays, "CPU") as runs:
        runs.before_compile = before_compile
        wrong = search_wrong(runs, tolerance=tolerance)
    assert (wrong.kind, list(wrong.culprits["op"])) == ("op", ["shift"])
    assert wrong.before == 1 / 16


# -- bodies ------------------------------------------------------------------------------------


def executed(precision):
    return Counter(0, "CPU", "If_1", "If", "ref_f32", precision, "EXECUTED", 5.0, 5.0)


@pytest.mark.parametrize(
    "model",
    [models.branched(models.product), models.nested(models.product), models.looped(models.product)],
    ids=lambda model: model.get_friendly_name(),
)
@pytest.mark.parametrize("hint", ["bf16", "f32"])
def test_ops_inside_compute_in_what_was_asked_for(model, hint):
    graph = prepare(model).graph
    assert lowest_precision([executed("f32")], graph, [hint]) == hint
    plain = chosen(lambda x: op.negative(x))
    assert lowest_precision([executed("f32")], plain, [hint]) == "f32"


def test_ops_inside_that_quantise():
    def quantised(x):
        ends = [models.constant(v) for v in (-3, 3)] * 2
        return models.product(op.fake_quantize(x, *ends, 255))

    graph = prepare(models.nested(quantised)).graph
    assert quantised_ops(graph)
    assert lowest_precision([executed("f32")], graph, ["f32"]) == "i8"


@pytest.mark.parametrize("make", [models.branched, models.nested, models.looped])
def test_the_picture_has_what_is_inside(make):
    graph = prepare(make(models.noisy)).graph
    (name,) = (op.name for op in graph if op.is_any_of(RANDOM))
    assert graph.ops[graph.index_of[name]].type in ("If", "Loop")
    assert not any(op.is_any_of(RANDOM) for op in prepare(make(models.product)).graph)


def test_what_is_random_inside_is_not_constant():
    turns, yes = models.constant(3, np.int64), op.constant(np.array(True))
    inner, x = models.parameter(1, 16), models.parameter(1, 16)
    for make, random in ((models.noisy, True), (models.product, False)):
        body = ov.Model([op.result(make(inner)), op.result(yes)], [inner], "body")
        loop = op.loop(turns, yes)
        loop.set_function(body)
        loop.set_special_body_ports([-1, 1])
        first, last = models.constant(np.ones((1, 16))), body.results[0].output(0)
        loop.set_merged_input(inner, first.output(0), last)
        out = op.add(x, loop.get_iter_value(last, -1))
        graph = op_graph(ov.Model([op.result(out)], [x], "m"))
        (index,) = (node.index for node in graph if node.type == "Loop")
        assert (index in graph.placeable) == random


# -- random ops --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["seeded", "integers", "nested", "loop"])
def test_what_is_random_is_not_wrong(core, name):
    model = models.random_models()[name]
    with pytest.warns(HeteroLabWarning, match="cannot be compared: it depends on .* random by"):
        found = hl.profile(model, "HETERO:ACC,CPU", core=core, **QUICK)
    verdicts = {a.output: a.verdict for a in found.agreement}
    assert verdicts.pop("y") == "undecided"
    assert set(verdicts.values()) <= {"equal"}
    assert "random by itself" in found.report()


def test_the_shape_of_something_random_is_sure(core):
    x = models.parameter(1, 16)
    sizes = op.convert(op.shape_of(models.uniform(1, 16)), "f32")
    model = ov.Model([op.result(op.add(sizes, op.reduce_max(x, 1, True)), name="y")], [x], "m")
    found = hl.profile(model, "CPU", core=core, **QUICK)
    assert [a.verdict for a in found.agreement] == ["equal"]


def test_a_random_model_is_frozen_with_a_word(tmp_path):
    hl.emulate("DICE")
    model = models.random_models()["dropout"]
    with pytest.warns(HeteroLabWarning, match="'y' cannot be compared"):
        hl.freeze(model, "HETERO:DICE,CPU", tmp_path, tolerance=None, progress=False)
    parts = hl.verify(tmp_path, progress=False).summary.set_index("part")
    assert parts.loc["outputs", "status"] == "undecided"
    assert "random by itself" in parts.loc["outputs", "detail"]


def test_a_random_branch_is_no_fault(core):
    wrong = hl.find_wrong(models.nested(models.noisy), "CPU", progress=False, core=core)
    assert wrong.kind == "rounding"
    assert wrong.culprits.empty


# -- what a model amplifies --------------------------------------------------------------------


def bf16(array):
    return (array.view(np.uint32) + 0x8000 & 0xFFFF0000).view(np.float32)


def rounding_by(change):
    """Return a reference that has bf16, which not every CPU has, and ``change``s its inputs."""

    class Rounding(Reference):
        def __init__(self, bound, precision="f32"):
            super().__init__(bound)
            self.is_low = precision == "bf16"

        def __call__(self, arrays):
            return super().__call__([change(a) if self.is_low else a for a in arrays])

    return Rounding


@pytest.mark.parametrize(("share", "verdict"), [(1.9, "rounding"), (2.1, "different")])
def test_twice_what_the_reference_rounds_is_rounding(core, monkeypatch, share, verdict):
    monkeypatch.setattr(reference, "Reference", rounding_by(bf16))
    x = models.parameter(1, 64)
    model = ov.Model([op.result(op.subtract(x, models.constant(100)), name="y")], [x], "m")
    bound = bind(model, core)
    arrays = [(100 + np.random.default_rng(0).uniform(0.3, 0.6, (1, 64))).astype(np.float32)]
    right = Reference(bound)(arrays)["y"]
    rounded = Reference(bound)([bf16(arrays[0])])["y"]
    own = np.linalg.norm(rounded - right) / np.linalg.norm(right)
    assert 0.15 < own < 0.5
    outputs = {"y": right * (1 + np.float32(share * own))}
    (found,) = compare_with_reference(bound, arrays, outputs, "bf16")
    assert (found.verdict, found.relative_error) == (verdict, pytest.approx(share * own, rel=1e-3))
    assert compare_with_reference(bound, arrays, outputs, "f32")[0].verdict == "different"
    assert compare_with_reference(bound, arrays, {"y": -right}, "bf16")[0].is_wrong


def test_an_error_as_large_as_the_result_is_never_rounding(core, monkeypatch):
    monkeypatch.setattr(reference, "Reference", rounding_by(np.negative))
    x = models.parameter(1, 16)
    bound = bind(ov.Model([op.result(op.sinh(x), name="y")], [x], "m"), core)
    arrays = [np.linspace(1, 2, 16, dtype=np.float32)[None]]
    right = Reference(bound)(arrays)["y"]
    verdicts = [
        compare_with_reference(bound, arrays, {"y": right * np.float32(f)}, "bf16")[0].verdict
        for f in (1.1, 1.9, 2.1, -1.0)
    ]
    assert verdicts == ["rounding", "rounding", "different", "different"]
