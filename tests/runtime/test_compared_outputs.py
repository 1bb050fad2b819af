"""One comparison of outputs: states, exact types, bodies and random ops, whoever asks."""

from __future__ import annotations

import numpy as np
import odd_models as models
import openvino as ov
import pytest
from openvino import opset13 as op

import hetero_lab as hl
from hetero_lab.debug.find_wrong import search_wrong
from hetero_lab.debug.placed_runs import PlacedRuns
from hetero_lab.devices.core import bind
from hetero_lab.errors import HeteroLabWarning
from hetero_lab.model.opgraph import RANDOM, op_graph
from hetero_lab.model.read import prepare
from hetero_lab.placement.placement import resolve
from hetero_lab.runtime import reference
from hetero_lab.runtime.counters import Counter
from hetero_lab.runtime.reference import (
    Reference,
    compare,
    compare_with_reference,
    lowest_precision,
    origins,
    quantised_ops,
)
from tests.debug.cases import case_of

QUICK = {"iterations": 10, "warmup": 0, "counters": False, "progress": False}


def one(output, expected, precision="f32", graph=None):
    (found,) = compare({"y": np.asarray(output)}, {"y": np.asarray(expected)}, precision, graph)
    return found


# States


@pytest.mark.parametrize("make", models.STATEFUL)
@pytest.mark.parametrize("executor", ["hetero", "parallel"])
def test_a_profile_compares_from_the_initial_states(core, make, executor):
    found = hl.profile(make(), "HETERO:ACC,CPU", executor=executor, core=core, **QUICK)
    assert {a.verdict for a in found.agreement} == {"equal"}


@pytest.mark.parametrize("make", models.STATEFUL)
def test_examples_do_not_depend_on_what_ran_before(core, make):
    first = np.ones(make().inputs[0].shape, np.float32)
    examples = [[first], [3 * first], [first]]
    model = hl.load(make())
    name = model.outputs[0].get_node().get_friendly_name()
    seen = []

    def correct(outputs, label):
        seen.append(outputs[name].copy())
        return True

    pairs = [(inputs, 0) for inputs in examples]
    exact = {"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}
    f32 = hl.Placement(hl.Affinity.uniform(model, "CPU"), "f32", exact)
    found = hl.evaluate(model, f32, pairs, metric=correct, core=core, progress=False)
    assert [answer.relative_error for answer in found.answers] == [0, 0, 0]
    np.testing.assert_array_equal(seen[0], seen[-2])  # of the placement: the first and the last
    again = hl.evaluate(model, f32, pairs[::-1], metric=correct, core=core, progress=False)
    assert [answer.relative_error for answer in again.answers] == [0, 0, 0]


def test_a_frozen_state_begins_afresh(tmp_path):
    hl.emulate("AFRESH")
    target = hl.freeze(
        models.running_sum(), "HETERO:AFRESH,CPU", tmp_path, tolerance=None, progress=False
    )
    with np.load(target / "requests.npz") as stored:
        for number in range(3):
            np.testing.assert_array_equal(stored[f"out{number}.0"], stored[f"in{number}.0"] + 40)
    assert (
        dict(hl.verify(target, progress=False).summary[["part", "status"]].values)["outputs"]
        == "ok"
    )


def test_a_reset_is_only_for_the_comparison(core):
    run = hl.compile(models.running_sum(), "CPU", core=core)
    given = [np.ones(1, np.float32)]
    assert [float(run(given)["y"][0]) for _ in range(2)] == [41, 42]
    run.reset_state()
    assert float(run(given)["y"][0]) == 41


# Exact types


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
    ],
)
@pytest.mark.parametrize("precision", ["f32", "f16", "bf16", "i8"])
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
    assert (found.relative_error, found.cosine) == (1, 0)


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


# Bodies


def executed(precision):
    return Counter(0, "CPU", "If_1", "If", "ref_f32", precision, "EXECUTED", 5.0, 5.0)


@pytest.mark.parametrize(
    "model",
    [models.branched(models.product), models.nested(models.product), models.looped(models.product)],
    ids=lambda model: model.get_friendly_name(),
)
@pytest.mark.parametrize("hint", ["bf16", "f16", "f32"])
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


# Random ops


@pytest.mark.parametrize("name", models.random_models())
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


# What a model amplifies


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


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.05, "rounding"), (1.9, "rounding"), (2.1, "different")]
)
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
    assert found.verdict == verdict
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
