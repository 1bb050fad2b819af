"""NPUW's plans are read, edited and written as it obeys them; what it gets wrong is refused."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from xml.sax.saxutils import quoteattr

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op
from random_models import random_model
from slices import sliced
from small_models import NASTY_NAMES, chain, diamond, stateful

import hetero_lab as hl
from hetero_lab.devices.core import shared_core
from hetero_lab.errors import AffinityError, ArgumentError, HeteroLabWarning, StoredFileError
from hetero_lab.model.opgraph import NOT_OPS, OpGraph
from hetero_lab.model.read import prepare
from hetero_lab.runtime.inputs import generate_inputs

PIPELINES = ("REG", "NONE", "INIT", "JUST", "REP")
FETCHED = ("magika", "page_orientation", "ppocr_cls", "blazeface")


def write_plan(file: Path, *groups: list[str], avoid: str = "") -> Path:
    """Write a plan by hand; only the first group avoids something."""
    parts = "".join(
        f'<group id="{number}" gflops="0" avoid={quoteattr("" if number else avoid)}>'
        + "".join(f"<layer name={quoteattr(name)}/>" for name in names)
        + "</group>"
        for number, names in enumerate(groups)
    )
    file.write_text(
        f"<ensemble gflops='1'><partitioning>{parts}</partitioning></ensemble>", "utf-8"
    )
    return file


def random_groups(graph: OpGraph, seed: int) -> list[list[str]]:
    """Cut a random order in which the ops can run at random places."""
    rng = np.random.default_rng(seed)
    left, order = {o.index for o in graph if o.type not in NOT_OPS}, []
    while left:
        ready = [i for i in sorted(left) if left.isdisjoint(p for p, _ in graph.ops[i].inputs)]
        order.append(int(rng.choice(ready)))
        left.remove(order[-1])
    cuts = np.sort(rng.integers(0, len(order), size=rng.integers(1, 7)))
    parts = np.split(np.array(order), cuts)
    return [[graph.ops[i].name for i in part] for part in parts if len(part)]


@pytest.mark.parametrize("seed", sliced(range(100), quick=3, in_ci=8))
def test_a_plan_by_hand_is_obeyed_and_right_or_refused(seed, tmp_path):
    model = hl.load(random_model(seed))
    groups = random_groups(prepare(model).graph, seed)
    plan = hl.interop.read_npuw_plan(write_plan(tmp_path / "plan.xml", *groups), model)
    assert [set(group.ops) for group in plan.groups] == [set(group) for group in groups]
    if "error" in set(plan.lint()["severity"]):
        with pytest.raises(AffinityError, match="get wrong numbers"):
            plan.check()
    else:
        agreement = plan.check()
        assert list(agreement["output"]) == list(hl.compile(model, "CPU").output_names)
        assert set(agreement["verdict"]) <= {"equal", "undecided"}


@pytest.mark.parametrize(
    "case",
    [
        *sliced(product(["digits_inception"], PIPELINES), quick=2),
        *(pytest.param(each, marks=pytest.mark.network) for each in product(FETCHED, PIPELINES)),
    ],
    ids=str,
)
def test_the_groups_of_the_dump_are_those_of_the_counters(case):
    name, pipeline = case
    bound = prepare(hl.load(name))
    plan = hl.interop.npuw(bound.model, pipeline)
    compiled = shared_core().compile_model(
        bound.model,
        "NPU",
        {"NPU_USE_NPUW": "YES", "NPUW_DEVICES": "CPU", "NPUW_F16IC": "NO",
         "NPUW_ONLINE_PIPELINE": pipeline, "PERF_COUNT": True},
    )  # fmt: skip
    request = compiled.create_infer_request()
    request.infer(list(generate_inputs(bound).values()))
    seen = [info.node_name.partition(": ")[::2] for info in request.get_profiling_info()]
    numbers = [(int(where.removeprefix("subgraph")), node) for where, node in seen]
    assert {number for number, _ in numbers} == {group.index for group in plan.groups}
    known = [(number, node) for number, node in numbers if node in plan.partition.subgraph_of]
    assert len(known) > len(plan.partition.subgraph_of) / 4
    assert all(plan.partition.subgraph_of[node] == number for number, node in known)
    assert "error" not in set(plan.lint()["severity"])
    assert set(plan.check()["verdict"]) <= {"equal", "rounding"}


@pytest.fixture(scope="module")
def plan() -> hl.types.NpuwPlan:
    return hl.interop.npuw("digits_inception", avoid={"Softmax": "NPU"})


def test_it_is_shown_as_partitions_are(plan):
    assert plan.partition.to_frame()["subgraph"].tolist() == plan.to_frame()["group"].tolist()
    shown = plan.partition.subgraph_of["head_digit/softmax"]
    assert plan.to_frame()["device"].tolist().count("CPU") == 1
    assert plan.groups[shown].device == "CPU"
    title = hl.views.placement_graph(plan).layout.title.text
    assert f"{len(plan.groups)} groups" in title
    found = plan.difference("CPU")
    assert found.before.structure == (1, 0, 0)
    assert found.after.partition is plan.partition
    assert len(found.moved) == len(plan.affinity.ops) - 1


def test_an_edit_in_the_tweaker_is_written_and_obeyed(plan, tmp_path):
    tweaker = hl.AffinityTweaker(plan)
    controls = tweaker.view.controls
    assert all(c.disabled for c in (controls.measure, controls.suggest, controls.simplify))
    tweaker.select(["head_parity/matmul"])
    tweaker.assign("CPU")
    tweaker.to_json(tmp_path / "edited.json")
    edited = plan.regrouped(hl.Affinity.from_json(tmp_path / "edited.json"))
    alone = edited.groups[edited.partition.subgraph_of["head_parity/matmul"]]
    assert (alone.ops, alone.device) == (("head_parity/matmul",), "CPU")
    properties = edited.write(tmp_path / "plan.xml")
    assert properties["NPUW_PLAN"] == str(tmp_path / "plan.xml")
    again = hl.interop.read_npuw_plan(tmp_path / "plan.xml", "digits_inception")
    assert again.groups == edited.groups
    assert set(again.check()["verdict"]) == {"equal"}
    assert repr(again) == repr(edited).replace("NPUW REG edited", "plan.xml")


def test_groups_without_an_edit_stay_or_are_divided(plan):
    same = plan.regrouped(plan.grouping)
    assert all(
        len({plan.partition.subgraph_of[op] for op in group.ops}) == 1 for group in same.groups
    )
    assert [group.device for group in same.groups].count("CPU") == 1
    whole = plan.regrouped(hl.Affinity.on_one(plan.bound.graph, "G1"))
    assert len(whole.groups) == 1
    with pytest.raises(AffinityError, match="This plan has no 'GPU'"):
        plan.regrouped(hl.Affinity.on_one(plan.bound.graph, "GPU"))
    with pytest.raises(AffinityError, match="another model"):
        plan.regrouped(hl.Affinity.uniform(chain("a"), "CPU"))


@pytest.mark.parametrize(
    ("groups", "fault"),
    [([["a"], ["c"]], "'b' in no group"),
     ([["a", "b"], ["b", "c"]], "'b' in several groups"),
     ([["a", "b"], ["c", "d"]], "'d' not in the model"),
     ([["a", "b"], [], ["c"]], "group 1 is empty"),
     ([["b"], ["a"], ["c"]], "group 0 reads 'a' from a later one, 1"),
     ([["a", "c"], ["b"]], "group 0 reads 'b' from a later one, 1"),
     ([["top"], ["left", "right", "join"]], "not in the model; 'a', 'b', 'c' in no group")],
)  # fmt: skip
def test_a_plan_that_does_not_fit_is_refused(groups, fault, tmp_path):
    file = write_plan(tmp_path / "plan.xml", *groups)
    with pytest.raises(AffinityError, match=f"plan.xml is no plan for 'chain': .*{fault}"):
        hl.interop.read_npuw_plan(file, chain("a", "b", "c"))


def test_what_npuw_ignores_is_refused(tmp_path):
    model, file = chain("a", "b"), tmp_path / "plan.xml"
    with pytest.raises(StoredFileError, match="no plan of NPUW"):
        hl.interop.read_npuw_plan(file, model)
    for text in ("{}", "<ensemble/>", "<?xml version='1.0' encoding='none'?><a/>"):
        file.write_text(text)
        with pytest.raises(StoredFileError, match="no plan of NPUW"):
            hl.interop.read_npuw_plan(file, model)
    write_plan(file, ["a"], ["b"], avoid="NPU,CPU")
    with pytest.raises(AffinityError, match="group 0 avoids every device"):
        hl.interop.read_npuw_plan(file, model)
    devices = ["NPU", "CPU", "GPU"]
    assert hl.interop.read_npuw_plan(file, model, devices=devices).groups[0].device == "GPU"
    with pytest.raises(AffinityError, match="No op has the type 'Gelu'"):
        hl.interop.npuw(model, avoid={"Gelu": "NPU"})
    with pytest.raises(ArgumentError, match="NPUW never uses 'GPU'"):
        hl.interop.npuw(model, avoid={"Relu": "GPU"})
    with pytest.warns(HeteroLabWarning, match="INIT ignores avoid="):
        hl.interop.npuw(model, "INIT", avoid={"Relu": "NPU"})


def test_a_torn_state_is_refused(tmp_path):
    file = write_plan(tmp_path / "plan.xml", ["read", "sum", "after"], ["middle", "assign"])
    with pytest.raises(AffinityError, match="the state of .* is in several groups"):
        hl.interop.read_npuw_plan(file, stateful())


def with_outputs(convert: bool) -> ov.Model:
    """Build an op that is an output as well as read by another one, or that is converted."""
    x = op.parameter([1, 4], np.float32, name="x")
    first = op.relu(x, name="relu")
    results = [] if convert else [op.result(first, name="first")]
    last = op.convert(first, "i32", name="last") if convert else op.tanh(first, name="last")
    return ov.Model([*results, op.result(last, name="second")], [x], "outputs")


@pytest.mark.parametrize("convert", [True, False])
def test_what_npuw_gets_wrong_is_refused_before_anything_is_compiled(convert, tmp_path):
    model, file = with_outputs(convert), write_plan(tmp_path / "plan.xml", ["relu"], ["last"])
    plan = hl.interop.read_npuw_plan(file, model)
    rule, wrong = ("convert-apart", "last") if convert else ("output-read", "relu")
    assert plan.lint()[["rule", "severity"]].to_numpy()[0].tolist() == [rule, "error"]
    assert plan.lint()["ops"].tolist()[0] == [wrong]
    with pytest.raises(AffinityError, match=r"Put them together\."):
        plan.check()
    properties = plan.write(file) | {"NPUW_DEVICES": "CPU"}
    if convert:
        with pytest.raises(RuntimeError, match="undeclared parameters"):
            shared_core().compile_model(model, "NPU", properties)
    else:
        x = np.array([[1, 2, 3, 4]], np.float32)
        found = shared_core().compile_model(model, "NPU", properties)([x])
        assert not np.allclose(found[1], np.tanh(x), atol=0.1)
    together = write_plan(file, ["relu", "last"])
    assert set(hl.interop.read_npuw_plan(together, model).check()["verdict"]) == {"equal"}


def test_outputs_of_an_op_may_go_to_several_groups(tmp_path):
    x = op.parameter([1, 6], np.float32, name="x")
    parts = op.split(op.tanh(x, name="tanh"), op.constant(1), 3, name="parts")
    ends = [op.relu(parts.output(0), name="a"), op.abs(parts.output(1), name="b")]
    outputs = [*ends, parts.output(2)]
    model = ov.Model([op.result(end, name=f"r{n}") for n, end in enumerate(outputs)], [x], "parts")
    file = write_plan(tmp_path / "plan.xml", ["tanh", "parts"], ["a"], ["b"])
    assert set(hl.interop.read_npuw_plan(file, model).check()["verdict"]) == {"equal"}


def test_f16_between_groups_is_told_and_switched_off(tmp_path):
    groups = [["top", "left"], ["right", "join"]]
    plan = hl.interop.read_npuw_plan(write_plan(tmp_path / "plan.xml", *groups), diamond())
    assert plan.lint()["rule"].tolist() == ["f16-boundary"]
    assert plan.lint()["ops"].tolist() == [["top", "left"]]
    assert plan.write(tmp_path / "plan.xml")["NPUW_F16IC"] == "NO"
    assert plan.check()["relative_error"].max() < 1e-6


def test_any_name_survives(tmp_path):
    model = hl.load(chain(*NASTY_NAMES))
    names = list(hl.Affinity.uniform(model, "CPU").ops)
    plan = hl.interop.npuw(model, "INIT")
    assert [group.ops for group in plan.groups] == [(name,) for name in names]
    cut = write_plan(tmp_path / "plan.xml", names[:9], names[9:])
    assert set(hl.interop.read_npuw_plan(cut, model).check()["verdict"]) == {"equal"}
