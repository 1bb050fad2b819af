from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import numpy as np
import openvino as ov
import pandas as pd
import pytest
from counting_core import torn_by_a_file
from hand_costs import flat_costs
from msgspec import structs
from openvino import opset13 as op
from planning.random_costs import GraphMaker, affinity_of, random_case
from random_models import random_affinity, random_model
from slices import sliced
from small_models import chain, convolutions, diamond, odd_ends, stateful

import hetero_lab as hl
from hetero_lab.costs.cost_model import BoundaryCost, CostModel, LostFusion
from hetero_lab.errors import AffinityError, ArgumentError, DeviceError, PlanError
from hetero_lab.lint.context import Finding
from hetero_lab.lint.findings import find_problems, most_remedies, summary_lines
from hetero_lab.lint.lint import lint
from hetero_lab.lint.quantized_blocks import quantized_blocks
from hetero_lab.lint.rules import fusion_pairs
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.model.read import prepare
from hetero_lab.placement.affinity import Affinity, Node
from hetero_lab.placement.partition import predict
from tests.debug.cases import chain_case
from tests.proof import injected_faults
from tests.proof.faults import Fault

COLUMNS = ["rule", "severity", "ops", "finding", "advice", "remedy", "cause", "n_ops"]


DEAR = (50.0, 70.0)  # not worth a move to B


@pytest.fixture(scope="module")
def abc() -> ov.Core:
    """A Core with devices A, B and C, so that remedies can really be fixed."""
    core = ov.Core()
    for name in "ABC":
        hl.emulate(name, base="CPU", core=core)
    return core


def on(graph: OpGraph, default: str = "A", **devices: str) -> Affinity:
    return Affinity.from_graph(graph, lambda name: devices.get(name, default))


def everything(graph: OpGraph, devices: str) -> dict[str, frozenset[str]]:
    return dict.fromkeys(devices, frozenset(graph.ops[i].name for i in graph.placeable))


def problems(graph: OpGraph, affinity: Affinity, costs: CostModel | None = None) -> list[Finding]:
    able = supports(costs) if costs else everything(graph, "AB")
    return find_problems(graph, affinity, able, costs)


def told(found: list[Finding]) -> list[tuple]:
    return [(f.rule, f.severity, f.ops, dict(f.remedy)) for f in found]


def line(*types: str, n_bytes: int = 100) -> OpGraph:
    """Return a chain of ops called a, b, c, …"""
    maker = GraphMaker()
    here = maker.add("Parameter", name="x")
    for name, op_type in zip("abcdefghij", types, strict=False):
        here = maker.add(op_type, [here], name=name, n_bytes=n_bytes)
    return maker.graph()


costs_of = partial(flat_costs, devices=("A", "B"), op_us=1.0)


# --- the rules, by hand -------------------------------------------------------------------


SEVEN = ["Abs"] * 7


@pytest.mark.parametrize(
    ("types", "on_b", "lacking", "expected", "texts"),
    [
        (SEVEN, "d", "", [("ping-pong", "warning", ("d",), {"d": "A"})],
         ("A → B → A for 1 op ('d') on B: 2 boundaries of 200 bytes",
          "affinity.fix(ops={'d': 'A'}): subgraphs 3 → 1, boundaries 2 → 0")),
        (SEVEN, "d", "d", [("ping-pong", "info", ("d",), {})], ("no other device here supports",)),
        ([*SEVEN[:3], "MatMul", *SEVEN[:3]], "d", "", [], ()),  # heavy
        (["Abs"] * 10, "defg", "",
         [("ping-pong", "warning", tuple("defg"), dict.fromkeys("defg", "A"))], ()),
        (["Abs"] * 10, "bcdefghi", "",  # more than there is around it
         [("tiny-subgraph", "warning", (end,), {end: "B"}) for end in "aj"], ()),
        (["Abs"] * 5, "e", "", [("tiny-subgraph", "warning", ("e",), {"e": "A"})],
         ("A subgraph of B has only 1 op ('e') and 1 boundary of 100 bytes",)),
        (["Abs"] * 5, "", "", [], ()),
    ],
)  # fmt: skip
def test_a_small_subgraph_is_ping_pong_or_tiny(types, on_b, lacking, expected, texts):
    graph = line(*types)
    able = everything(graph, "AB")
    able["A"] -= {*lacking}
    found = find_problems(graph, on(graph, **dict.fromkeys(on_b, "B")), able)
    assert told(found) == expected
    assert all(one.cost_us is None for one in found)
    for text in texts:
        assert text in f"{found[0].finding} {found[0].advice}"


def biased(n_uses: int = 1) -> OpGraph:
    maker = GraphMaker()
    here = maker.add("Parameter", name="x")
    here = maker.chain(here, ["before0", "before1", "before2"], "Abs")
    conv = maker.add("Convolution", [here, maker.add("Constant")], name="conv", n_bytes=64)
    bias = maker.add("Add", [conv, maker.add("Constant")], name="bias", n_bytes=64)
    relu = maker.add("Relu", [bias], name="relu", n_bytes=64)
    for _ in range(n_uses - 1):
        maker.add("Abs", [conv])
    maker.chain(relu, ["after0", "after1", "after2"], "Softmax")
    return maker.graph()


def test_a_cut_inside_a_fusion():
    graph = biased()
    after = {f"after{i}": "B" for i in range(3)}
    (found,) = problems(graph, on(graph, relu="B", **after))
    assert told([found]) == [("cut-fusion", "warning", ("bias", "relu"), {"relu": "A"})]
    assert "(Add, Relu) fuse into one node, but are on A and B: 64 bytes" in found.finding
    # Conv and bias apart: the rest of the group goes to the convolution.
    (found,) = problems(graph, on(graph, bias="B", relu="B", **after))
    assert told([found]) == [
        ("cut-fusion", "warning", ("conv", "bias"), {"bias": "A", "relu": "A"})
    ]
    # Where A cannot run relu, the wire is mended from the other side.
    able = everything(graph, "AB")
    able["A"] -= {"relu"}
    (found,) = find_problems(graph, on(graph, bias="B", relu="B", **after), able)
    assert found.remedy == {"conv": "B"}


def test_an_op_with_other_users_does_not_fuse():
    names = [op.name for op in biased().ops]
    assert [(names[a], names[b]) for a, b in fusion_pairs(biased())] == [
        ("conv", "bias"), ("bias", "relu"),
    ]  # fmt: skip
    assert fusion_pairs(biased(n_uses=2)) == {}
    maker = GraphMaker()
    x = maker.add("Parameter")
    maker.add("Add", [maker.add("MatMul", [x, x]), maker.add("Abs", [x])])  # a residual
    assert fusion_pairs(maker.graph()) == {}


def test_subgraphs_that_only_copy():
    graph = prepare(odd_ends()).graph
    found = [f for f in problems(graph, on(graph)) if f.rule == "copy-only"]
    assert {f.ops for f in found} == {("unused",), ("through",), ("constant",)}
    assert {(f.severity, bool(f.remedy)) for f in found} == {("info", False)}
    # An affinity from a file may put an input elsewhere than its user.
    graph = line(*["Abs"] * 4)
    nodes = [Node(n.name, n.type, n.name) for n in on(graph).nodes]
    parted = Affinity(nodes, {**dict.fromkeys("abcd", "A"), "x": "B", nodes[-1].name: "A"})
    (found,) = problems(graph, parted)
    assert found.rule == "copy-only"
    assert (found.ops, found.severity) == (("x",), "warning")
    assert found.remedy == {"a": "B"}
    assert "only copies 1 input ('x'): 100 bytes for ops on A" in found.finding


def test_a_stateful_path_torn_by_a_file(tmp_path, core):
    model = hl.load(stateful())
    whole = hl.Affinity.uniform(model, "CPU", core=core)
    torn = torn_by_a_file(whole, tmp_path / "torn.csv")
    rows = lint(model, torn, core=core)
    row = rows.iloc[0]
    assert (row.rule, row.severity) == ("torn-state", "error")
    assert row.ops == ["read", "sum", "middle", "assign"]
    assert row.remedy == {"middle": "CPU"}
    assert "torn over CPU and ACC" in row.finding
    again = lint(model, torn.fix(ops=row.remedy, core=core), core=core)
    assert "torn-state" not in set(again["rule"])
    assert "torn-state" not in set(lint(model, whole, core=core)["rule"])


def test_a_stateful_path_torn_by_a_cycle():
    maker = GraphMaker()
    x = maker.add("Parameter")
    shared = maker.add("Abs", [x], name="shared")
    read = maker.add("ReadValue", [maker.add("Constant")], name="read", variable="v")
    early = maker.add("Add", [read, shared], name="early")
    aside = maker.add("Abs", [shared], name="aside")
    late = maker.add("Add", [early, aside], name="late")
    maker.add("Assign", [late], name="assign", variable="v")
    maker.add("Abs", [late], name="after")
    graph = maker.graph()
    affinity = on(graph, aside="B")
    assert len({predict(graph, affinity).subgraph_of[n] for n in ("early", "late")}) == 2
    found = problems(graph, affinity)[0]
    assert told([found]) == [
        ("torn-state", "error", ("read", "early", "late", "assign"), {"aside": "A"})
    ]
    assert "cut into 2 subgraphs of A by a cycle" in found.finding
    assert "torn-state" not in {f.rule for f in problems(graph, on(graph))}


NOT_APART = "not apart: all neighbours are on the same device"


@pytest.mark.parametrize(
    ("late_reads", "cause"), [(("aside", "early"), "a cycle: "), (("aside",), NOT_APART)]
)
def test_what_a_cycle_parts_is_told_from_a_choice_and_from_what_is_not_apart(late_reads, cause):
    maker = GraphMaker()
    x = maker.add("Parameter")
    ops = {name: maker.add("Abs", [x], name=name) for name in ("early", "aside")}
    maker.add("Add", [ops[name] for name in late_reads], name="late")
    graph = maker.graph()
    causes = {f.ops: f.cause for f in problems(graph, on(graph, aside="B"))}
    assert causes[("early",)].startswith(cause)  # all that it is connected to is on its device
    assert "choice" in causes[("aside",)]
    assert "choice" in causes[("late",)]


def test_what_is_slow_alone_is_not_apart():
    costs = flat_costs(line("Abs", "Abs"), op_us=(10.0, 1.0), devices=("A", "B"))
    slow = problems(costs.graph, on(costs.graph), costs)
    assert {(f.rule, f.cause) for f in slow} == {("slow-device", NOT_APART)}


def test_a_remedy_takes_the_whole_stateful_path_along():
    maker = GraphMaker()
    here = maker.add("Parameter")
    here = maker.chain(here, ["before0", "before1", "before2"], "Abs")
    read = maker.add("ReadValue", [maker.add("Constant")], name="read", variable="v")
    here = maker.add("Add", [read, here], name="sum")
    maker.add("Assign", [here], name="assign", variable="v")
    maker.chain(here, ["after0", "after1", "after2"], "Abs")
    graph = maker.graph()
    path = ("read", "sum", "assign")
    (found,) = problems(graph, on(graph, "B", read="A"))
    assert told([found]) == [("ping-pong", "warning", path, dict.fromkeys(path, "B"))]
    able = everything(graph, "AB")
    able["B"] -= {"assign"}
    (found,) = find_problems(graph, on(graph, "B", read="A"), able)
    assert told([found]) == [("ping-pong", "info", path, {})]


# --- with costs ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_ops", "times", "on_b", "expected", "cost_us", "texts"),
    [
        pytest.param(  # 2 hand-overs of 5 µs and 2 subgraphs of 2 µs less, 3 µs slower on A
            7, {"a": DEAR, "g": DEAR, "d": (4.0, 1.0)}, "d",
            ("ping-pong", "warning", ("d",), {"d": "A"}), 11.0,
            ("ops take 1.0 µs, being apart costs 12.0 µs", "Predicted to save 11.0 µs of the"),
            id="a ping-pong is priced",
        ),
        pytest.param(
            7, {"a": DEAR, "g": DEAR, "d": (40.0, 1.0)}, "d",
            ("ping-pong", "info", ("d",), {"d": "A"}), 14.0 - 39.0,
            ("Leave it: the prediction is 25.0 µs higher",),
            id="a remedy that does not pay",
        ),
        pytest.param(  # it pays 14 µs for its borders and saves 90
            4, {"a": (1.0, 90.0), "b": (100.0, 10.0), "d": (1.0, 90.0)}, "",
            ("slow-device", "warning", ("b",), {"b": "B"}), 76.0,
            ("1 op ('b'): 100.0 µs on A, 10.0 µs on B",),
            id="an op on the slow device",
        ),
        pytest.param(
            4, {"b": (10.0, 1.0), "a": (1.0, None)}, "",
            ("slow-device", "info", ("b",), {"b": "B"}), 9.0 - 14.0, (),
            id="a slow op that is not worth a move",
        ),
        pytest.param(
            4, {"b": (40.0, 1.0)}, "",
            ("slow-device", "warning", ("b",), dict.fromkeys("abcd", "B")), 39.0, (),
            id="a slow op moves with its neighbours",
        ),
        pytest.param(  # to A: 3 µs slower, a hand-over of 5 and a subgraph of 2 less
            6, dict.fromkeys("abc", (10.0, 19.0)) | dict.fromkeys("def", (10.0, 9.0)), "def",
            ("dear-boundary", "warning", tuple("def"), dict.fromkeys("def", "A")), 4.0, (),
            id="a boundary that costs more than it saves",
        ),
        pytest.param(
            6, dict.fromkeys("abc", (10.0, 16.0)) | dict.fromkeys("def", (10.0, 6.0)), "def",
            None, 0.0, (), id="a boundary that pays is no finding",
        ),
    ],
)  # fmt: skip
def test_a_finding_is_priced(n_ops, times, on_b, expected, cost_us, texts):
    graph = line(*["Abs"] * n_ops)
    affinity = on(graph, **dict.fromkeys(on_b, "B"))
    found = problems(graph, affinity, costs_of(graph, times))
    assert told(found) == [expected] * (expected is not None)
    for one in found:
        assert one.cost_us == pytest.approx(cost_us)
        for text in texts:
            assert text in f"{one.finding} {one.advice}"


def test_with_costs_small_is_what_its_ops_take():
    graph = line(*["Abs"] * 5)
    dear = costs_of(graph, dict.fromkeys("abcde", (50.0, 50.0)))
    assert "tiny-subgraph" not in {f.rule for f in problems(graph, on(graph, e="B"), dear)}
    rules = [f.rule for f in problems(graph, on(graph, d="B", e="B"), costs_of(graph, {}))]
    assert rules == ["tiny-subgraph", "tiny-subgraph"]


def test_with_costs_fusion_is_what_they_say():
    graph, slow = line(*["Abs"] * 6), dict.fromkeys("abcdef", (50.0, 50.0))

    def cut_fusions(fused):
        costs = costs_of(graph, slow, lost_fusion=(fused,))
        found = problems(graph, on(graph, d="B", e="B", f="B"), costs)
        return [f for f in found if f.rule == "cut-fusion"]

    fused = LostFusion("c", "d", (3.0, 0.0), (0.0, 4.0))
    (cut,) = cut_fusions(fused)
    assert told([cut]) == [("cut-fusion", "warning", ("c", "d"), {"d": "A"})]
    assert "the lost fusion costs 7.0 µs" in cut.finding
    assert cut.cost_us == pytest.approx(7.0)
    # A term that costs nothing on these devices is no finding.
    assert not cut_fusions(structs.replace(fused, first_us=(0.0, 9.0), second_us=(9.0, 0.0)))


def test_being_apart_costs_boundaries_a_subgraph_and_lost_fusion():
    graph = line(*["Abs"] * 6)
    costs = costs_of(graph, lost_fusion=(LostFusion("c", "d", (3.0, 0.0), (0.0, 4.0)),))
    texts = [f.finding for f in problems(graph, on(graph, d="B", e="B"), costs)]
    assert sum("ops take 2.0 µs, being apart costs 19.0 µs" in text for text in texts) == 1


# --- cut quantisation on hand-made graphs; tests/runtime has it on the runtime -------------


def quantised_chain(n: int = 3) -> OpGraph:
    """Return n times quantiser → MaxPool → convolution, with weights in i8, between two Tanhs."""
    maker = GraphMaker()
    here = maker.add("Tanh", [maker.add("Parameter", name="x")], name="first")
    for number in range(n):
        here = maker.add("FakeQuantize", [here], name=f"quantise{number}")
        here = maker.add("MaxPool", [here], name=f"pool{number}")
        small = maker.add("Constant", element_type="i8", n_bytes=25)
        weights = maker.add("Convert", [small])
        here = maker.add("Convolution", [here, weights], name=f"conv{number}")
    maker.add("Tanh", [here], name="last")
    return maker.graph()


def cuts(graph: OpGraph, away: set[str], costs: CostModel | None = None):
    found = problems(graph, on(graph, **dict.fromkeys(away, "B")), costs)
    return [finding for finding in found if finding.rule == "cut-quantization"]


def test_a_block_is_the_op_with_its_quantiser_and_what_is_between_if_weights_are_small():
    graph = quantised_chain(1)
    ((op, above),) = quantized_blocks(graph).items()
    assert [graph.ops[i].name for i in (*above, op)] == ["quantise0", "pool0", "conv0"]
    maker = GraphMaker()
    quantised = maker.add("FakeQuantize", [maker.add("Parameter")], name="quantise")
    maker.add("Convolution", [quantised, maker.add("Constant")], name="conv")
    assert quantized_blocks(maker.graph()) == {}
    assert cuts(maker.graph(), {"quantise"}) == []


def test_without_its_quantiser_a_stored_int8_tensor_is_cut_off():
    maker = GraphMaker()
    here = maker.add("Tanh", [maker.add("Parameter", name="x")], name="first")
    here = maker.add("FakeQuantize", [here], name="quantise")
    here = maker.add("Convert", [here], name="store", element_type="i8")
    here = maker.add("Convert", [here], name="restore")
    here = maker.add("Multiply", [here, maker.add("Constant")], name="scale")
    weights = maker.add("Convert", [maker.add("Constant", element_type="i8", n_bytes=25)])
    maker.add("Convolution", [here, weights], name="conv")
    graph = maker.graph()
    (cut,) = cuts(graph, {"first", "quantise", "store"})
    assert cut.ops == ("quantise", "store", "conv")
    assert cuts(graph, {"first"}) == []


@pytest.mark.parametrize(
    ("away", "remedies"),
    [
        ({"first"}, []),
        ({"first", "quantise0"}, [{"quantise0": "A"}]),
        ({"first", "quantise0", "pool0"}, [{"quantise0": "A", "pool0": "A"}]),
        ({"first", "quantise0", "pool0", "conv0"}, []),
        ({"pool1"}, [{"pool1": "A"}]),
        ({"last"}, []),
    ],
)
def test_where_a_cut_loses_int8(away, remedies):
    found = cuts(quantised_chain(), away)
    assert [dict(finding.remedy) for finding in found] == remedies
    for finding in found:
        assert finding.severity == "warning"
        assert finding.cost_us is None
        assert "would run in int8" in finding.finding


def test_with_costs_it_is_what_the_prediction_saves():
    graph = quantised_chain()
    costs = costs_of(graph, {"conv0": (9.0, 1.0)})
    (found,) = cuts(graph, {"quantise1", "pool1"}, costs)
    # Two of three subgraphs and both hand-overs go.
    assert dict(found.remedy) == {"quantise1": "A", "pool1": "A"}
    assert found.cost_us == pytest.approx(2 * 5.0 + 2 * 2.0)


# --- what holds of every finding ----------------------------------------------------------


def feasible(costs: CostModel, seed: int) -> Affinity:
    rng = random.Random(seed)
    able = [[d for d, t in enumerate(unit.time_us) if t is not None] for unit in costs.units]
    return affinity_of(costs, [rng.choice(places) for places in able])


def supports(costs: CostModel) -> dict[str, frozenset[str]]:
    return {device: costs.supports(device) for device in costs.devices}


@pytest.mark.parametrize("priced", [False, True])
@pytest.mark.parametrize("block", sliced(range(6), quick=2, in_ci=4))
def test_a_remedy_removes_its_finding(abc, block, priced):
    n_tried = 0
    for seed in range(block * 12, block * 12 + 12):
        costs = random_case(seed)
        graph, able, affinity = costs.graph, supports(costs), feasible(costs, seed)
        found = find_problems(graph, affinity, able, costs if priced else None)
        assert len({(f.rule, f.ops) for f in found}) == len(found)
        if priced:  # the worst first
            assert found == sorted(found, key=lambda one: one.cost_us, reverse=True)
        for one in found:
            assert (one.cost_us is not None) == priced
            for name, device in one.remedy.items():
                assert name in able[device]
                assert affinity[name] != device
            if not one.remedy:
                assert one.severity != "warning"
                continue
            n_tried += 1
            after = affinity.fix(ops=one.remedy, core=abc)
            if priced:
                assert one.cost_us == costs.predict_us(affinity) - costs.predict_us(after)
                assert (one.severity == "info") == (one.cost_us <= 0.0)
            again = find_problems(graph, after, able, costs if priced else None)
            assert (one.rule, one.ops) not in {(f.rule, f.ops) for f in again}
    assert n_tried > 5


def long_chain(n_bytes: list[int], on_b: str) -> tuple[OpGraph, Affinity]:
    """Return a chain abs0, abs1, … with the bytes of each, whose names that end so are on B."""
    maker = GraphMaker()
    here = maker.add("Parameter")
    for index, size in enumerate(n_bytes):
        here = maker.add("Abs", [here], name=f"abs{index}", n_bytes=size)
    graph = maker.graph()
    return graph, Affinity.from_graph(graph, lambda name: "B" if name.endswith(on_b) else "A")


def test_what_is_limited_on_a_large_model_says_so():
    graph, affinity = long_chain([*range(1, 2206)], "7")
    found = problems(graph, affinity)
    worked_out = [f for f in found if f.remedy]
    assert most_remedies(len(graph)) == 8 == len(worked_out)
    assert len(found) == 220
    # Those first on which most hangs.
    assert {f.ops[0] for f in worked_out} == {f"abs{index}" for index in range(2127, 2200, 10)}
    left = [f for f in found if not f.remedy]
    assert all(f.severity == "warning" and "Not worked out" in f.advice for f in left)
    most = {0: 200, 10: 200, 75: 200, 100: 150, 150: 100, 1800: 8, 10**6: 8}
    assert {n: most_remedies(n) for n in most} == most


def test_on_a_large_model_with_costs_the_dearest_are_worked_out():
    sizes = [10_000 if 1050 < index < 1060 else 1 for index in range(1800)]
    graph, affinity = long_chain(sizes, "57")
    pairs = [("A", "B"), ("B", "A")]
    costs = replace(costs_of(graph), boundaries=dict.fromkeys(pairs, BoundaryCost(5.0, 0.01)))
    found = problems(graph, affinity, costs)
    assert len(found) >= 18
    assert "abs1057" in {f.ops[0] for f in found if f.remedy}


# --- the public function ------------------------------------------------------------------


def test_the_table(core):
    model = hl.load(convolutions())
    affinity = hl.Affinity.uniform(model, "CPU", core=core).fix(ops={"relu1": "ACC"}, core=core)
    table = lint(model, affinity, core=core)
    empty = lint(hl.load(chain("a", "b")), "CPU", core=core)
    assert list(table.columns) == list(empty.columns) == COLUMNS
    assert (len(empty), empty["n_ops"].dtype) == (0, np.int64)
    # What is compiled directly is not cut up: nothing is copied in a subgraph of its own.
    assert lint(odd_ends(), "CPU", core=core).empty
    assert not lint(odd_ends(), "HETERO:CPU", core=core).empty
    rows = {row.rule: row for row in table.itertuples()}
    assert next(iter(rows)) == "many-subgraphs"
    assert set(rows) == {"many-subgraphs", "ping-pong", "cut-fusion"}
    assert rows["cut-fusion"].ops == ["bias1", "relu1"]
    assert rows["ping-pong"].ops == ["relu1"]
    for row in rows.values():
        assert row.remedy == {"relu1": "CPU"}
        assert row.n_ops == len(row.ops)
        assert lint(model, affinity.fix(ops=row.remedy, core=core), core=core).empty


def test_remedies_use_only_what_the_device_supports():
    core = ov.Core()
    hl.emulate("ACC", unsupported={"Abs"}, core=core)
    model = hl.load(chain(*"abcdefg"))  # d is the only Abs
    table = lint(model, "HETERO:ACC,CPU", core=core)
    whole, row = table.itertuples()
    assert (whole.rule, whole.ops) == ("many-subgraphs", ["d"])
    assert whole.cause == "ACC does not support Abs (1 op)"
    assert set(whole.remedy.values()) == {"CPU"}
    assert (row.rule, row.ops, row.severity, row.remedy) == ("ping-pong", ["d"], "info", {})
    hl.emulate("ACC", core=core)
    parted = hl.Affinity.uniform(model, "ACC", core=core).fix(ops={"d": "CPU"}, core=core)
    assert lint(model, parted, core=core)["remedy"].tolist() == [{"d": "ACC"}] * 2


def test_a_device_of_the_costs_may_be_new_to_the_placement(abc):
    model = hl.load(chain("a", "b", "c", "d"))
    costs = costs_of(prepare(model).graph, dict.fromkeys("abcd", (100.0, 10.0)))
    table = lint(model, "A", costs, core=abc)
    assert list(table.columns) == [*COLUMNS, "cost_us", "margin_us"]
    assert set(table["rule"]) == {"slow-device"}
    assert table["cost_us"].tolist() == pytest.approx([360.0] * 4)
    assert table["remedy"].tolist() == [dict.fromkeys("abcd", "B")] * 4
    assert lint(model, "B", costs, core=abc).columns.tolist() == [*COLUMNS, "cost_us", "margin_us"]


def test_what_fewer_subgraphs_save_is_the_difference_of_the_predictions(abc):
    model = hl.load(chain(*"abcde"))
    costs = costs_of(prepare(model).graph, dict.fromkeys("abcde", (10.0, 12.0)))
    torn = hl.Affinity.uniform(model, "A", core=abc).fix(ops={"b": "B", "d": "B"}, core=abc)
    row = lint(model, torn, costs, core=abc).set_index("rule").loc["many-subgraphs"]
    whole = torn.fix(ops=row["remedy"], core=abc)
    saved_us = costs.predict_us(torn) - costs.predict_us(whole)
    assert 0 < row["cost_us"] == pytest.approx(saved_us)


def test_a_device_that_only_the_costs_know_needs_not_be_here(core):
    model = hl.load(chain("a", "b", "c"))
    costs = costs_of(prepare(model).graph, {"b": (None, 1.0)}, devices=("GPU", "CPU"))
    assert "GPU" not in core.available_devices
    table = lint(model, "HETERO:GPU,CPU", costs, core=core).set_index("rule")
    assert table.loc["many-subgraphs", "remedy"] == {"c": "CPU"}
    alone = hl.Affinity.uniform(model, "CPU", core=core)
    wrong = Affinity.from_graph(prepare(model).graph, lambda name: "GPU")
    with pytest.raises(DeviceError, match="GPU does not support 1 of the ops .* instance b"):
        lint(model, wrong, costs, core=core)
    assert "many-subgraphs" not in set(lint(model, alone, costs, core=core)["rule"])


def test_bad_input(core, abc):
    model, other = hl.load(chain("a", "b")), hl.load(diamond())
    affinity = hl.Affinity.uniform(other, "CPU", core=core)
    costs = costs_of(prepare(other).graph, {})
    for arguments, here, kind, says in [
        ((model, affinity), core, AffinityError, "belongs to another model"),
        ((model, "A", costs), abc, PlanError, "belongs to another model"),
        ((other, "C", costs), abc, PlanError, "does not know 'C'"),
        ((model, "NOPE"), core, DeviceError, "not a device here"),
        ((model, dict(affinity)), core, ArgumentError, "A placement is"),
    ]:
        with pytest.raises(kind, match=says):
            lint(*arguments, core=here)


@pytest.mark.parametrize("first", sliced(range(0, 25, 5), quick=1, in_ci=2))
def test_on_models_of_the_runtime(core, first):
    # What lint advises is accepted wherever a placement is.
    n_tried = 0
    for seed in range(first, first + 5):
        model = hl.load(random_model(seed, n_ops=8))
        affinity = random_affinity(prepare(model).graph, ["ACC", "CPU"], seed)
        for row in lint(model, affinity, core=core).itertuples():
            if row.remedy:
                n_tried += 1
                after = affinity.fix(ops=row.remedy, core=core)
                hl.partition(model, after, core=core)
                again = lint(model, after, core=core)
                assert (row.rule, row.ops) not in zip(again["rule"], again["ops"], strict=True)
    assert n_tried > 5


def test_shared_weights_are_no_finding(core):
    x = op.parameter([1, 4], np.float32, name="x")
    shared = op.constant(np.ones((1, 4), np.float32), name="shared")
    here = x
    for index in range(6):
        here = op.add(here, shared, name=f"add{index}")
    model = hl.load(ov.Model([op.result(here, name="o")], [x], "m"))
    half = {f"add{index}": "ACC" for index in range(3)}
    affinity = hl.Affinity.uniform(model, "CPU", core=core).fix(ops=half, core=core)
    assert lint(model, affinity, core=core).empty


def test_wrong_numbers_are_findings_while_their_ops_are_together():
    case = chain_case(Fault(frozenset({"shift", "sigmoid"}), "sigmoid"))
    wrong, model = injected_faults.search(case), case.prepared.model
    (finding,) = lint(model, case.placement, wrong=wrong).to_dict("records")
    assert (finding["rule"], finding["severity"]) == ("wrong-numbers", "error")
    assert finding["ops"] == ["shift", "sigmoid"]
    assert finding["remedy"] == wrong.fix
    mended = lint(model, wrong.affinity, wrong=wrong)
    assert "wrong-numbers" not in list(mended["rule"])
    costs = flat_costs(case.prepared.graph, op_us=(10.0, 30.0), subgraph_us=1.0)
    priced = lint(model, case.placement, costs, wrong=wrong).iloc[0]
    assert priced["rule"] == "wrong-numbers"
    assert priced["cost_us"] == -(20.0 + 2 * 5.0 + 2 * 1.0)  # the right numbers cost time
    with pytest.raises(AffinityError, match="another model"):
        lint(chain("a", "b"), "CPU", wrong=wrong)
    with pytest.raises(ArgumentError, match=r"find_wrong\("):
        hl.lint(model, "CPU", wrong="GPU")


@pytest.mark.parametrize("first", [False, True])
def test_no_other_remedy_is_worth_it_beside_one_for_all_subgraphs(first):
    whole = ("many-subgraphs", "warning", "9 subgraphs.", "Move 'a' to CPU.", {"a": "CPU"}, "")
    alone = ("tiny-subgraph", "info", "2 ops.", "Leave it.", {}, "a cause")
    columns = ["rule", "severity", "finding", "advice", "remedy", "cause"]
    lines = summary_lines(pd.DataFrame([whole] * first + [alone], columns=columns), 3)
    assert lines[-1].endswith(f"No {'other ' * first}remedy is worth it.")
