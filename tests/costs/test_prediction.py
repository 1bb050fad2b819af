"""Predictions, their parts, and cost models on disk."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from costs.test_difference import chain_costs
from hand_costs import costs_by_op
from planning.brute_force import latency_ns
from planning.random_costs import GraphMaker, affinity_of, any_choice, random_case

import hetero_lab as hl
from hetero_lab.costs.cost_model import (
    BoundaryCost,
    CostModel,
    LostFusion,
    MeasuredBytes,
    Reorder,
    Unit,
    ValidationRow,
)
from hetero_lab.costs.design import fused_pairs, split_into_units
from hetero_lab.costs.prediction import Uncertainty
from hetero_lab.errors import AffinityError, PlanError, StoredFileError
from hetero_lab.model.opgraph import OpGraph, Tensor
from hetero_lab.planning.planner import plan_graph


@pytest.mark.parametrize("seed", range(20))
def test_a_prediction_is_the_sum_of_its_parts(seed):
    costs = random_case(seed, n_ops=25)
    choice = any_choice(costs, random.Random(seed))
    affinity = affinity_of(costs, choice)
    parts = costs.explain(affinity)
    assert round(parts.predicted_us * 1000) == latency_ns(costs, affinity)
    assert sum(share.us for share in parts.shares) == pytest.approx(parts.predicted_us)
    alone = sum(share.us for share in [*parts.of("constant"), *parts.of("spread memory")])
    assert alone + sum(parts.device_us.values()) == pytest.approx(parts.predicted_us)
    frame = parts.to_frame()
    assert frame["predicted_us"].sum() == pytest.approx(parts.predicted_us)
    assert len(parts.of("subgraphs")) == len(parts.partition.subgraphs)


@pytest.mark.parametrize("seed", range(10))
def test_moving_ops_predicts_as_from_scratch(seed):
    costs = random_case(seed, n_ops=25)
    rng = random.Random(seed)
    predictor = costs.predictor(affinity_of(costs, any_choice(costs, random.Random(seed))))
    for _ in range(5):
        unit = rng.choice(costs.units)
        number = rng.choice([n for n, time in enumerate(unit.time_us) if time is not None])
        device = costs.devices[number]
        before = predictor.affinity
        predictor = predictor.moved(dict.fromkeys(unit.ops, device))
        wanted = {op.name: before[op.name] for op in costs.graph} | dict.fromkeys(unit.ops, device)
        assert all(predictor.affinity[op] == device for op in unit.ops)
        assert all(predictor.affinity[op] == wanted[op] for op in before.ops)
        assert predictor.predicted_us == costs.predict_us(predictor.affinity)


def test_what_cannot_be_predicted_says_why():
    costs = random_case(0)
    unit = next(u for u in costs.units if None in u.time_us)
    device = costs.devices[unit.time_us.index(None)]
    predictor = costs.predictor(affinity_of(costs, any_choice(costs, random.Random(0))))
    with pytest.raises(PlanError, match=f"{device} does not support .*{unit.ops[0]}"):
        predictor.moved({unit.ops[0]: device})
    with pytest.raises(PlanError, match="does not know 'GPU'"):
        predictor.moved({unit.ops[0]: "GPU"})
    with pytest.raises(AffinityError, match="No op is called 'nothing'"):
        predictor.moved({"nothing": device})
    with pytest.raises(PlanError, match="belongs to another model"):
        plan_graph(random_case(2).graph, costs)


def test_a_cost_model_reads_back_as_it_was(tmp_path):
    for seed in range(10):
        costs = replace(
            random_case(seed),
            validation_rows=(ValidationRow("a", 10.0, 11.0), ValidationRow("b", 30.0, 29.0)),
            environment={"host": "here"},
            device_properties={"A": {"INFERENCE_PRECISION_HINT": "f32"}},
            fingerprint="abc",
        )
        costs.to_json(tmp_path / "costs.json")
        again = hl.CostModel.from_json(tmp_path / "costs.json")
        assert again == costs
        affinity = affinity_of(costs, any_choice(costs, random.Random(seed)))
        assert again.predict_us(affinity) == costs.predict_us(affinity)
        assert again.validation.equals(costs.validation)


def test_validation_is_measured_by_hand():
    def validated(*rows: tuple[str, float, float, int]) -> CostModel:
        made = tuple(ValidationRow(*row) for row in rows)
        return replace(random_case(0), validation_rows=made)

    costs = validated(("a", 110.0, 100.0, 3), ("b", 190.0, 200.0, 1), ("c", 300.0, 300.0, 2))
    assert costs.validation["n_subgraphs"].dtype == np.int64
    assert costs.validation["n_subgraphs"].tolist() == [3, 1, 2]
    assert costs.mape == pytest.approx((0.1 + 0.05) / 3)
    assert costs.r2 == pytest.approx(1 - (100 + 100) / 20000)
    assert costs.validation["error"].tolist() == pytest.approx([0.1, -0.05, 0.0])
    assert [validated().validation[name].dtype for name in ("predicted_us", "error")] == [float] * 2
    with pytest.raises(PlanError, match="not validated"):
        _ = validated().mape
    with pytest.raises(PlanError, match="took the same time"):
        _ = validated(("a", 11.0, 10.0, 1), ("b", 11.0, 10.0, 1)).r2
    with pytest.raises(PlanError, match="measured to take no time"):
        validated(("a", 1.0, 0.0, 1))


def test_broken_files_are_named(tmp_path):
    path = tmp_path / "costs.json"
    random_case(0).to_json(path)
    text = path.read_text()
    data = json.loads(text)
    broken = [text[: len(text) // 2], "", "[]", '{"kind": "affinity"}']
    keys = ("graph", "devices", "units", "boundaries", "subgraph_us", "constant_us", "spread_us")
    broken += [json.dumps({k: v for k, v in data.items() if k != key}) for key in keys]
    broken += [json.dumps({**data, key: [[1, 2], None]}) for key in keys]
    broken += [json.dumps({**data, "constant_us": wrong}) for wrong in (-1.0, "nan", True)]
    broken.append(json.dumps({**data, "units": [[*row, 1] for row in data["units"]]}))
    for content in broken:
        path.write_text(content)
        with pytest.raises(StoredFileError, match="costs.json"):
            CostModel.from_json(path)
    with pytest.raises(StoredFileError):
        CostModel.from_json(tmp_path / "nowhere.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"spread_us": "much"}, "spread_us: Expected `float`, got `str`"),
        ({"units": [[["a"], ["slow", 1.0], []]]}, r"units: .*got `str` - at `\$\[0\]\[1\]\[0\]`"),
        ({"boundaries": [["A", "B", 1.0]]}, "boundaries: .*of length 4, got 3"),
        ({"prefill": [1]}, r"TypeError\("),
    ],
)
def test_a_broken_file_says_where_and_what_to_do(tmp_path, change, said):
    path = tmp_path / "costs.json"
    random_case(0).to_json(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(
        StoredFileError, match=f"(?s)costs.json.* model: {said}.*hetero_lab.calibrate"
    ):
        CostModel.from_json(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"objective": "speed"}, "is not an objective. Objectives: 'latency', 'throughput'"),
        ({"budget_s": float("nan")}, "budget_s is a number of seconds above 0, not nan"),
        ({"memory_limit": {("A", "B"): "much"}}, "'much' is not a number of bytes"),
        ({"memory_limit": {("A", "D"): 5}}, "memory_limit names 'D', which is not planned for"),
        ({"memory_limit": {5: 5}}, "memory_limit names '5'"),
        ({"memory_limit": ["A"]}, "maps devices to bytes"),
        ({"memory_limit": "1MiB"}, r"\('GPU', 'CPU'\): '6GiB'"),
        ({"pin": {"(": "A"}}, "regular expression"),
    ],
)
def test_wrong_arguments_of_a_plan(arguments, message):
    costs = random_case(4)
    with pytest.raises(PlanError, match=message):
        plan_graph(costs.graph, costs, **arguments)


def test_contradicting_pins_and_one_device_are_no_choice():
    costs = random_case(4, n_devices=2)
    op = costs.units[0].ops[0]
    with pytest.raises(PlanError, match=f"pins contradict each other.*{op}"):
        plan_graph(costs.graph, costs, pin={f"^{op}$": "A", op: "B"})
    units = tuple(Unit(u.ops, (1.0,)) for u in costs.units)
    alone = CostModel(costs.graph, ("A",), units, {}, {"A": 1.0})
    with pytest.raises(PlanError, match="knows 'A' only"):
        plan_graph(alone.graph, alone)


ABC = [Unit((name,), (1.0, 1.0)) for name in "abc"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"devices": ()}, "needs devices, each once"),
        ({"devices": ("A", "A")}, "needs devices, each once: 'A'"),
        ({"subgraph_us": {"A": 1.0}}, "The cost of a subgraph: None is not a cost"),
        ({"contention": 0.5}, "The contention above 1: -0.5"),
        ({"boundaries": {("A", "B"): BoundaryCost(1.0)}}, "The boundary from B to A: nan"),
        ({"measured_memory": {"C": ()}}, "does not know 'C'"),
        ({"measured_memory": {"A": (MeasuredBytes((), 1, 1),)}}, "memory measured on A names unit"),
        ({"measured_memory": {"A": (MeasuredBytes((3,), 1, 1),)}}, "A names units"),
        ({"measured_memory": {"A": (MeasuredBytes((2,), -1, 1),)}}, "measured on A: -1 is not a"),
        ({"seen_us": ((1.0, 1.0),)}, "was seen has 3 parts"),
        ({"seen_us": ((1.0, 1.0, math.nan),)}, "was seen has 3 parts, each a finite number"),
        ({"lost_fusion": (LostFusion("a", "x", (0, 0), (0, 0)),)}, "'x' is not an op of the model"),
        ({"lost_fusion": (LostFusion("a", "b", (0,), (0, 0)),)}, "one cost for each of the 2 dev"),
        ({"reorders": (Reorder("no", 0, (0, 0), (0, 0)),)}, "'no' is not an op"),
        ({"reorders": (Reorder("a", 1, (0, 0), (0, 0)),)}, "'a':1: the op has no such output"),
        ({"reorders": (Reorder("a", -1, (0, 0), (0, 0)),)}, "the op has no such output"),
        ({"units": (Unit((), (1.0, 1.0)), *ABC)}, "Unit 0 .* needs ops and one time for each of A"),
        ({"units": (Unit(("a",), (1.0,)), *ABC[1:])}, "Unit 0 .'a'. needs ops and one time"),
        ({"units": (Unit(("a", "b"), (1, 1), (0.5, 0.6)), ABC[2])}, "they must add up to 1"),
        ({"units": (Unit(("a", "b"), (1, 1), (1.0,)), ABC[2])}, "needs one share for each op"),
        ({"units": (Unit(("a", "b"), (1, 1), (1.5, -0.5)), ABC[2])}, "-0.5 is not a cost"),
        ({"units": (*ABC, ABC[1])}, "'b' is in two units; see Unit 3"),
        ({"units": (Unit(("x",), (1, 1)), *ABC)}, "'x' is not an op that can be placed"),
        ({"units": ABC[:2]}, "1 ops are in no unit: 'c'"),
        ({"constant_us": 1e13}, "add up to 1e.13 µs, too much to be counted in whole ns"),
        *(
            ({name: bad}, f"{bad!r} is not a cost. Costs are finite and at least 0")
            for name in ("constant_us", "spread_us", "executor_us")
            for bad in (-1.0, math.nan, math.inf)
        ),
    ],
)
def test_a_cost_model_that_contradicts_itself_is_refused(change, said):
    with pytest.raises(PlanError, match=said):
        replace(chain_costs(), **change)


def test_the_limits_of_what_a_cost_model_holds_are_allowed():
    costs = replace(
        chain_costs(), contention=1.0, seen_us=((1.0, 0.0, 0.0),),
        reorders=(Reorder("c", 0, (0.0, 0.0), (0.0, 0.0)),),
        measured_memory={"A": (MeasuredBytes((0,), 30, 5), MeasuredBytes((1,), 100, 0))},
        units=(Unit(("a", "b"), (1.0, 1.0), (1.0, 0.0)), Unit(("c",), (1.0, None))),
        constant_us=8e12,
    )  # fmt: skip
    assert costs.op_us["a"] == (1.0, 1.0)
    assert costs.fused_into == {"b": "a"}
    assert costs.objective.constant_ns == 8e15


def test_measured_memory_counts_once_for_what_is_on_the_device():
    memory = {"A": (MeasuredBytes((0, 1), 30, 5), MeasuredBytes((2,), 100, 7))}
    costs = replace(chain_costs(), measured_memory=memory)
    for choice, held in (((0, 0, 0), (130, 12)), ((0, 1, 0), (130, 12)), ((1, 1, 0), (100, 7))):
        devices = costs.objective.device_numbers(affinity_of(costs, choice))
        found = costs.objective.memory_bytes(costs.objective.evaluate(devices))
        assert tuple(found[0, :2]) == held


def test_the_costs_of_a_language_model_know_its_first_token(tmp_path):
    costs = replace(chain_costs(), constant_us=3.0, prefill=chain_costs())
    affinity = affinity_of(costs, (0, 0, 0))
    assert costs.predict_ttft_ms(affinity) == chain_costs().predict_us(affinity) / 1e3 == 0.044
    assert costs.predict_tpot_ms(affinity) == 0.040
    with pytest.raises(PlanError, match="know a first token.*scenario="):
        chain_costs().predict_ttft_ms(affinity)
    costs.to_json(tmp_path / "costs.json")
    assert CostModel.from_json(tmp_path / "costs.json").predict_ttft_ms(affinity) == 0.044


def test_a_table_of_the_units_and_hand_overs_that_cost_more():
    costs = chain_costs()
    frame = costs.to_frame()
    assert list(frame.columns) == ["unit", "ops", "n_ops", "A_us", "B_us"]
    assert frame["A_us"].tolist() == [10.0, 20.0, 6.0]
    assert frame["B_us"].isna().tolist() == [False, False, True]
    assert frame["n_ops"].tolist() == [1, 1, 1]
    dearer = costs.with_boundaries_scaled(3.0)
    assert dearer.boundaries[("A", "B")] == BoundaryCost(6.0, 0.03)
    assert dearer.boundaries[("B", "A")] == BoundaryCost(3.0, 0.06)


def test_memory_is_spread_over_more_subgraphs_for_less_and_less():
    costs = replace(random_case(0), spread_us=100.0)
    assert (costs.objective.spread_ns(np.array([0, 1, 2, 6, 101])) / 1000).tolist() == [
        0.0, 0.0, 16.666, 50.0, 95.238,
    ]  # fmt: skip


def eltwise_chain() -> dict[bool, CostModel]:
    """Return costs of conv → add → max → conv with a layout that is kept or not."""
    maker = GraphMaker()
    at = maker.add("Parameter")
    kinds = {"conv": "Convolution", "add": "Add", "max": "Maximum", "end": "Convolution"}
    for name, kind in kinds.items():
        at = maker.add(kind, [at], name=name)
    graph = maker.graph()
    leave = (50.0, 70.0)
    return {
        keeps: costs_by_op(
            graph,
            op_us=1.0,
            boundary_us=2.0,
            reorders=(
                Reorder("conv", 0, leave, (0.0, 0.0)),
                Reorder("add", 0, leave, (0.0, 0.0), ("conv",) if keeps else ()),
                Reorder("max", 0, leave, (0.0, 0.0), ("add",) if keeps else ()),
            ),
        )
        for keeps in (True, False)
    }


@pytest.mark.parametrize(
    ("choice", "kept", "alone"),
    [
        ("AAAA", 4, 4),
        ("ABBB", 4 + 2 + 50, 4 + 2 + 50),
        ("AABB", 4 + 2 + 50, 4 + 2 + 50),
        ("ABAA", 4 + 4 + 50, 4 + 4 + 50 + 70),  # what entered B was converted already
        ("ABAB", 4 + 6 + 50, 4 + 6 + 50 + 70 + 50),
        ("BBAA", 4 + 2 + 70, 4 + 2 + 70),
    ],
)
def test_a_layout_is_converted_where_it_leaves_the_op_that_chose_it(choice, kept, alone):
    places = ["AB".index(device) for device in choice]
    for keeps, costs in eltwise_chain().items():
        assert costs.predict_us(affinity_of(costs, places)) == (kept if keeps else alone)
    wrong = Reorder("end", 0, (1.0, 1.0), (0.0, 0.0), ("conv",))
    with pytest.raises(PlanError, match="'end' does not have the layout of 'conv'"):
        replace(costs, reorders=(wrong,))


def test_a_unit_is_the_part_of_a_fusion_group_with_equal_support():
    maker = GraphMaker()
    x = maker.add("Parameter")
    conv = maker.add("Convolution", [x], name="conv")
    add = maker.add("Add", [conv], name="add")
    relu = maker.add("Relu", [add], name="relu")
    maker.add("Softmax", [relu], name="softmax")
    graph = maker.graph()
    every = {"conv", "add", "relu", "softmax"}
    groups = {"A": [("conv", "add")], "B": [("conv", "add", "relu")]}
    units = split_into_units(graph, {"A": {"conv", "add"}, "B": every}, groups)
    assert units == (("conv", "add"), ("relu",), ("softmax",))
    assert fused_pairs(graph, groups) == (
        ("conv", "add", ("A", "B")),
        ("add", "relu", ("B",)),
    )
    # Where both support all, but fuse differently, what both fuse stays together.
    units = split_into_units(graph, {"A": every, "B": every}, groups)
    assert units == (("conv", "add"), ("relu",), ("softmax",))
    coarse = split_into_units(graph, {"A": every, "B": every}, groups, coarse=True)
    assert coarse == (("conv", "add", "relu"), ("softmax",))
    with pytest.raises(PlanError, match="softmax"):
        split_into_units(graph, {"A": {"conv", "add", "relu"}}, groups)
    with pytest.raises(PlanError, match="'add' are in two fusion groups of A"):
        split_into_units(graph, {"A": every}, {"A": [("conv", "add"), ("add", "relu")]})


def test_a_stateful_path_is_one_unit():
    maker = GraphMaker()
    read = maker.add("ReadValue", [maker.add("Constant")], name="read", variable="v")
    total = maker.add("Add", [read, maker.add("Parameter")], name="total")
    maker.add("Assign", [total], name="assign", variable="v")
    maker.add("Relu", [total], name="after")
    graph = maker.graph()
    every = frozenset(["read", "total", "assign", "after"])
    groups = {"ACC": [("total", "after")]}
    units = split_into_units(graph, {"ACC": every}, groups, coarse=True)
    assert units == (("read", "total", "assign"), ("after",))
    torn = {"ACC": every - {"read"}, "CPU": every - {"assign"}}
    with pytest.raises(PlanError, match="one stateful path .* none of ACC, CPU supports all"):
        split_into_units(graph, torn, {})


# -- intervals: from validation, and from what was fitted ---------------------------------------


def validated(costs: CostModel, *errors: float) -> CostModel:
    rows = [ValidationRow(f"v{n}", 100.0 * (1 + e), 100.0) for n, e in enumerate(errors)]
    return replace(costs, validation_rows=tuple(rows))


def test_nine_of_ten_further_placements_lie_in_their_interval():
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(400):
        distances, here = rng.uniform(0.0, 1.0, 12), rng.uniform(0.0, 1.0)
        errors = rng.normal(0.0, 0.05, 12) * (1.0 + distances)
        scale = math.sqrt(float(np.mean((errors / (1.0 + distances)) ** 2)))
        known = Uncertainty(np.zeros((0, 3)), scale, 12)
        true = rng.normal(0.0, 0.05) * (1.0 + here)
        inside.append(abs(true) <= math.log(known.factor(here)))
    assert 0.86 <= np.mean(inside) <= 0.94


def test_what_is_unlike_the_fitted_placements_is_less_certain():
    known = Uncertainty(np.array([[100.0, 0.0, 0.0], [50.0, 50.0, 10.0]]), 0.05, 8)
    near, far = np.array([50.0, 50.0, 10.0]), np.array([10.0, 50.0, 200.0])
    assert known.distance(near) == 0.0
    assert known.distance(far) == pytest.approx((40 + 190) / 260)
    sure, unsure = known.interval(110.0, near), known.interval(260.0, far)
    assert sure.low_us * sure.high_us == pytest.approx(110.0**2)
    assert unsure.high_us / unsure.us > sure.high_us / sure.us > 1.05
    # Only the parts that differ can be wrong about a difference.
    assert known.margin_us(near, near) == 0.0
    assert known.margin_us(near, near + np.array([0.0, 0.0, 10.0])) < known.margin_us(near, far)
    # The one that is less certain decides.
    for pair in ((near, far), (far, near)):
        share = known.factor(known.distance(far)) - 1.0
        assert known.margin_us(*pair) == pytest.approx(share * np.abs(near - far).sum())


def test_costs_predict_with_an_interval_and_keep_it_in_their_file(tmp_path):
    costs = chain_costs()
    affinity = hl.Affinity.on_one(costs.graph, costs.devices[0])
    nothing = costs.predict(affinity)
    assert (nothing.low_us, nothing.high_us) == (0.0, math.inf)
    parts = costs.predictor(affinity).evaluation.parts_us
    assert sum(parts) == pytest.approx(costs.predict_us(affinity) - costs.constant_us)
    known = replace(validated(costs, 0.05, -0.04, 0.03), seen_us=(tuple(parts),))
    found = known.predict(affinity)
    assert found.us == costs.predict_us(affinity)
    assert 0.8 * found.us < found.low_us < found.us < found.high_us < 1.3 * found.us
    path = tmp_path / "costs.json"
    known.to_json(path)
    assert CostModel.from_json(path).predict(affinity) == found
    # A file of an older version holds neither distances nor what was fitted.
    data = json.loads(path.read_text())
    del data["seen_us"]
    data["validation"] = [row[:4] for row in data["validation"]]
    path.write_text(json.dumps(data))
    assert CostModel.from_json(path).predict(affinity).high_us == pytest.approx(found.high_us)


def test_a_plan_says_which_baselines_the_prediction_cannot_tell_apart():
    sure, unsure = (validated(chain_costs(), *[e, -e] * 4) for e in (1e-4, 0.5))
    plans = [plan_graph(costs.graph, costs) for costs in (sure, unsure)]
    assert plans[0].affinity == plans[1].affinity
    assert plans[0].undecided == ()
    worse = {label for label, regret in plans[1].regret.items() if regret > 0.0}
    assert worse
    assert set(plans[1].undecided) <= worse
    assert plans[1].undecided
    assert "by these costs, which cannot tell it apart from" in repr(plans[1])
    low, high = plans[1].interval_us
    assert low < plans[1].predicted_us < high
    frame = plans[1].to_frame()
    assert list(frame.columns) == ["label", "predicted_us", "regret_us", "margin_us"]


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((100, 8), ""),
        ((100, None), ""),  # a size that is not known may be that one
        ((100, 9), r"belongs to another model.*1 ops differ \('parts'\)"),
        ((None, 9), r"1 ops differ \('parts'\)"),
    ],
)
def test_costs_are_those_of_a_model_with_the_same_sizes(sizes, said):
    def graph(first: int | None, second: int | None) -> OpGraph:
        maker = GraphMaker()
        parts = maker.add("Split", [maker.add("Parameter")], name="parts", outputs=2)
        tensors = [Tensor((n,), "f32", n, "") for n in (first, second)]
        maker.ops[parts] = replace(maker.ops[parts], outputs=tuple(tensors))
        return maker.graph()

    costs = costs_by_op(graph(100, 8))
    if said:
        with pytest.raises(PlanError, match=said):
            costs.check_graph(graph(*sizes))
    else:
        costs.check_graph(graph(*sizes))
