from __future__ import annotations

import json
import re

import numpy as np
import openvino as ov
import pytest
from counting_core import core_with_acc
from hypothesis import given, settings, strategies as st
from openvino import opset13 as op
from random_models import random_affinity, random_model
from small_models import (
    NASTY_NAMES,
    chain,
    convolutions,
    odd_ends,
    stateful,
    two_parts,
)

import hetero_lab as hl
from hetero_lab.errors import (
    AffinityError,
    ArgumentError,
    DeviceError,
    HeteroLabWarning,
    StoredFileError,
)
from hetero_lab.lint.quantized_blocks import quantized_blocks
from hetero_lab.model.blocks import find_blocks
from hetero_lab.model.read import prepare
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.priorities import Priorities


@pytest.fixture(scope="module")
def three_devices():
    core = core_with_acc(unsupported={"Softmax"})
    hl.emulate("NPX", supported={"Convolution", "Add"}, core=core)
    return core


def on(affinity: Affinity) -> dict[str, str]:
    return {name: affinity[name] for name in affinity.ops}


# -- priorities --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["HETERO:ACC,CPU", "ACC,CPU", "HETERO: ACC , CPU", ["ACC", "CPU"], ("ACC", "CPU")]
)
def test_priorities_are_read(core, text):
    parsed = Priorities.parse(text, core)
    assert parsed == Priorities(("ACC", "CPU"))
    assert str(parsed) == "HETERO:ACC,CPU"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' names no device.*HETERO:GPU,CPU"),
        ([], "names no device.*HETERO:GPU,CPU"),
        ("HETERO:ACC,,CPU", "has an empty place.*HETERO:GPU,CPU"),
        ("HETERO:CPU,ACC,CPU", "names 'CPU' twice.*HETERO:GPU,CPU"),
        ("HETERO:cpu", "Did you mean 'CPU'.*Devices: ACC, CPU"),
        ("HETERO:HETERO", "'HETERO' is not a device here.*Devices: ACC, CPU"),
    ],
)
def test_wrong_priorities(core, text, says):
    with pytest.raises(DeviceError, match=says):
        Affinity.automatic(two_parts(), text, core=core)


def test_bare_hetero_takes_the_cores_priorities(own_core):
    own_core.set_property("HETERO", {"MULTI_DEVICE_PRIORITIES": "CPU,ACC"})
    assert Priorities.parse("HETERO", own_core) == Priorities(("CPU", "ACC"))
    compiled = hl.compile(two_parts(), "HETERO", core=own_core)
    assert compiled.placement.label == "HETERO:CPU,ACC"
    assert {s.device for s in compiled.partition.subgraphs} == {"CPU"}


# -- automatic ---------------------------------------------------------------------------------


def test_the_earlier_device_wins_op_by_op(three_devices):
    affinity = Affinity.automatic(convolutions(), "HETERO:NPX,ACC,CPU", core=three_devices)
    assert on(affinity) == {
        "conv1": "NPX", "bias1": "NPX", "relu1": "ACC", "softmax": "CPU",
        "conv2": "NPX", "bias2": "NPX", "relu2": "ACC",
    }  # fmt: skip
    assert affinity.devices == ("NPX", "ACC", "CPU")
    assert affinity.counts() == {"NPX": 4, "ACC": 2, "CPU": 1}


@pytest.mark.parametrize(
    ("priorities", "says"),
    [
        ("HETERO:ACC", "ACC does not support 5 of the ops placed on it: 'bias1 (Add)'"),
        ("HETERO:ACC,BCC", "None of ACC, BCC supports 5 of the ops: 'bias1 (Add)'"),
    ],
)
def test_no_device_supports_some_op(priorities, says):
    core = core_with_acc(supported={"Convolution"})
    hl.emulate("BCC", supported={"Convolution"}, core=core)
    ways_out = rf".*affinity\.fix\(ops={{.*{priorities},….*hetero_lab\.support\("
    with pytest.raises(DeviceError, match=f"^{re.escape(says)}{ways_out}"):
        Affinity.automatic(convolutions(), priorities, core=core)


def test_a_stateful_path_goes_where_all_of_it_is_supported():
    core = core_with_acc(unsupported={"ReLU", "Relu"})
    affinity = Affinity.automatic(stateful(), "HETERO:ACC,CPU", core=core)
    # "middle", a relu, lies on the path, so all of it is on CPU; "after" is free.
    assert on(affinity) == {
        "read": "CPU", "sum": "CPU", "middle": "CPU", "assign": "CPU", "after": "ACC",
    }  # fmt: skip


# -- totality ----------------------------------------------------------------------------------


def test_one_missing_affinity_fails_in_the_runtime(core):
    # Why affinities are total by construction.
    model = hl.load(two_parts())
    for node in model.get_ordered_ops():
        if node.get_friendly_name() != "second":
            node.get_rt_info()["affinity"] = "CPU"
    with pytest.raises(RuntimeError, match="second"):
        core.compile_model(model, "HETERO:CPU")


# -- fix ---------------------------------------------------------------------------------------


@pytest.fixture
def cpu(core) -> Affinity:
    return Affinity.uniform(convolutions(), "CPU", core=core)


def moved(after: Affinity, before: Affinity) -> list[str]:
    return after.diff(before)["op"].tolist()


def test_fix_by_name_type_and_pattern(core, cpu):
    assert moved(cpu.fix(ops={"conv1": "ACC"}, core=core), cpu) == ["conv1"]
    assert moved(cpu.fix(types={"Relu": "ACC"}, core=core), cpu) == ["relu1", "relu2"]
    assert moved(cpu.fix(patterns={"2$": "ACC"}, core=core), cpu) == ["conv2", "bias2", "relu2"]
    assert moved(cpu.fix(patterns={"on": "ACC"}, core=core), cpu) == ["conv1", "conv2"]
    assert cpu.fix(core=core) == cpu
    # The original stays as it was.
    assert set(cpu.values()) == {"CPU"}
    with pytest.raises(TypeError):
        cpu["conv1"] = "ACC"
    # Names win over patterns, the later pattern over an earlier one, patterns over types.
    patterns, types = {"2$": "ACC", "conv": "CPU"}, {"Relu": "ACC"}
    fixed = cpu.fix(ops={"relu2": "CPU"}, patterns=patterns, types=types, core=core)
    assert moved(fixed, cpu) == ["relu1", "bias2"]


def test_a_whole_subgraph_is_fixed(core, cpu):
    mixed = cpu.fix(ops={"softmax": "ACC"}, core=core)
    first, second, _ = hl.partition(convolutions(), mixed, core=core).subgraphs
    assert mixed.fix(subgraphs={second: "CPU"}, core=core) == cpu
    # A type wins over a subgraph.
    both = cpu.fix(subgraphs={first: "ACC"}, types={"Add": "CPU"}, core=core)
    assert moved(both, cpu) == ["conv1", "relu1"]
    # A subgraph of another model.
    other = hl.partition(chain("r", "s"), "HETERO:CPU", core=core).subgraphs[0]
    with pytest.raises(AffinityError, match="No op is called 'r'"):
        cpu.fix(subgraphs={other: "ACC"}, core=core)


def test_constants_parameters_and_results_go_with_their_ops_and_fixing_them_changes_nothing(
    core, cpu
):
    fixed = cpu.fix(ops={"conv1": "ACC", "relu2": "ACC"}, core=core)
    graph = prepare(convolutions()).graph
    for producer, _ in graph.ops[graph.index_of["conv1"]].inputs:
        assert fixed[graph.ops[producer].name] == "ACC"
    assert fixed["out"] == "ACC"
    followers = [name for name in cpu if name not in cpu.ops]
    assert len(followers) >= 4
    for name in followers:
        assert cpu.fix(ops={name: "ACC"}, core=core) == cpu
    assert cpu.fix(types={"Constant": "ACC", "Parameter": "ACC", "Result": "ACC"}, core=core) == cpu


def test_an_op_of_a_stateful_path_moves_the_path(core):
    before = Affinity.uniform(stateful(), "CPU", core=core)
    path = ["read", "sum", "middle", "assign"]
    for name in path:
        assert moved(before.fix(ops={name: "ACC"}, core=core), before) == path
    assert moved(before.fix(ops={"after": "ACC"}, core=core), before) == ["after"]
    with pytest.raises(AffinityError, match=r"'read' and 'sum' belong to one stateful path"):
        before.fix(ops={"read": "ACC", "sum": "CPU"}, core=core)
    # Of two levels, the stronger one moves the path; that is no contradiction.
    both = before.fix(ops={"sum": "ACC"}, types={"ReadValue": "CPU"}, core=core)
    assert both["read"] == "ACC"


@pytest.mark.parametrize(
    ("fixes", "kind", "says"),
    [
        ({"ops": {5: "ACC"}}, AffinityError, "No op is called '5'"),
        ({"ops": {"Relu": "ACC"}}, AffinityError, "For an op type, types={'Relu': 'ACC'}"),
        ({"types": {"MatMul": "ACC"}}, AffinityError, "Types: 'Add', 'Constant', 'Convolution'"),
        ({"patterns": {3: "ACC"}}, AffinityError, "'3' is not a regular expression"),
        ({"types": []}, ArgumentError, "For instance {'MatMul': 'CPU'}"),
        ({"ops": {"conv1": None}}, DeviceError, "'None' is not a device here"),
        ({"types": {"Relu": "HETERO:ACC,CPU"}}, DeviceError, "is not a device here"),
    ],
)
def test_fixes_that_cannot_be_meant(core, cpu, fixes, kind, says):
    with pytest.raises(kind, match=re.escape(says)) as caught:
        cpu.fix(**fixes, core=core)
    assert isinstance(caught.value, ValueError)


# -- value semantics ---------------------------------------------------------------------------


def test_affinities_compare_by_value(core, cpu):
    again = Affinity.uniform(convolutions(), "CPU", core=core)
    other = cpu.fix(ops={"conv1": "ACC"}, core=core)
    assert cpu == again == other.fix(ops={"conv1": "CPU"}, core=core)
    assert cpu != other
    assert len({cpu, again, other}) == 2
    assert len(cpu) == len(list(cpu))
    assert cpu != dict(cpu)


def test_diff_lists_what_moved_both_ways_and_repr_counts(core, cpu):
    after = cpu.fix(ops={"conv1": "ACC", "relu2": "ACC"}, core=core)
    assert after.diff(cpu).to_dict("list") == {
        "op": ["conv1", "relu2"], "before": ["CPU", "CPU"], "after": ["ACC", "ACC"],
    }  # fmt: skip
    assert cpu.diff(after)["before"].tolist() == ["ACC", "ACC"]
    assert cpu.diff(cpu).empty
    assert cpu.diff(cpu).columns.tolist() == ["op", "before", "after"]
    assert repr(cpu) == "Affinity(7 ops; CPU: 7)"
    assert repr(cpu.fix(types={"Relu": "ACC"}, core=core)) == "Affinity(7 ops; CPU: 5, ACC: 2)"
    page = after._repr_html_()  # a row a device
    assert page.count("<tr>") == 3
    assert "1 Convolution, 1 Relu" in page
    assert "<script" not in Affinity.uniform(chain("<script>"), "CPU", core=core)._repr_html_()


# -- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["json", "csv"])
@pytest.mark.parametrize(
    "model",
    [stateful(), odd_ends(), chain(*NASTY_NAMES)],
    ids=lambda model: model.get_friendly_name(),
)
def test_files_there_and_back(core, tmp_path, model, kind):
    affinity = random_affinity(prepare(model).graph, ["ACC", "CPU"], 3)
    path = tmp_path / f"affinity.{kind}"
    getattr(affinity, f"to_{kind}")(path)
    back = getattr(Affinity, f"from_{kind}")(path)
    assert back == affinity
    assert back.nodes == affinity.nodes
    assert back.ops == affinity.ops
    # It can still be fixed, and what follows still does.
    first = affinity.ops[0]
    assert back.fix(ops={first: "ACC"}, core=core) == affinity.fix(ops={first: "ACC"}, core=core)


def test_an_edited_csv_moves_an_op_and_its_followers_but_parts_no_path(core, tmp_path, cpu):
    path = tmp_path / "a.csv"
    cpu.to_csv(path)
    text = path.read_text().replace('"conv1","Convolution","CPU"', '"conv1","Convolution","ACC"')
    path.write_text(text)
    assert Affinity.from_csv(path) == cpu.fix(ops={"conv1": "ACC"}, core=core)
    Affinity.uniform(stateful(), "CPU", core=core).to_csv(path)
    path.write_text(path.read_text().replace('"sum","Add","CPU"', '"sum","Add","ACC"'))
    with pytest.raises(StoredFileError, match=r"'sum' is on ACC, but goes with 'read' on CPU"):
        Affinity.from_csv(path)


def test_either_form_is_read_with_a_model(tmp_path):
    model, path = chain("one", "two"), tmp_path / "a.json"
    affinity = Affinity.from_mapping(model, {"one": "CPU", "two": "ACC"})
    for flat in (True, False):
        affinity.to_json(path, flat=flat)
        assert Affinity.from_json(path, model) == affinity
    with pytest.raises(AffinityError, match="another model"):
        Affinity.from_json(path, chain("three"))
    affinity.to_json(path, flat=True)
    with pytest.raises(StoredFileError, match=r"needs its model: from_json\(file, model\)"):
        Affinity.from_json(path)


def test_the_flat_form_keeps_what_no_op_decides(tmp_path):
    model, path = odd_ends(), tmp_path / "a.json"
    ops = dict.fromkeys(Affinity.uniform(model, "CPU").ops, "CPU")
    free = {"unused": "ACC", "through": "ACC"}
    affinity = Affinity.from_mapping(model, {**ops, **free})
    assert {name: affinity[name] for name in free} == free
    affinity.to_json(path, flat=True)
    assert json.loads(path.read_text()).items() >= {**ops, **free}.items()
    assert Affinity.from_json(path, model) == affinity
    x = op.parameter([1], np.float32, name="x")
    bare = ov.Model([op.result(x, name="out")], [x], "no ops")
    affinity = Affinity.from_mapping(bare, {"x": "ACC"})
    affinity.to_json(path, flat=True)
    assert Affinity.from_json(path, bare) == affinity
    assert set(affinity.values()) == {"ACC"}


def test_half_a_character_is_no_device(tmp_path):
    path = tmp_path / "affinity.json"
    path.write_text('{"a": "CPU", "b": "CPU\\ud800"}')
    with pytest.raises(StoredFileError, match=r"affinity\.json"):
        Affinity.from_json(path, chain("a", "b"))


def nodes_json(nodes) -> str:
    return json.dumps({"kind": "affinity", "schema_version": 1, "nodes": nodes})


@pytest.mark.parametrize(
    ("kind", "content", "says"),
    [
        ("json", "garbage", "cannot be read as a stored affinity"),
        ("json", nodes_json([]), "lists no node"),
        ("json", nodes_json({"a": "CPU"}), "lists no node"),
        ("json", nodes_json([["a", "Relu", "CPU"]]), "is not a node"),
        ("json", nodes_json([["a", "Relu", 5, "a"]]), "is not a node"),
        ("json", nodes_json([["a", "Relu", "", "a"]]), "is not a node"),
        ("json", nodes_json(["abcd"]), "is not a node"),
        ("json", nodes_json([["a", "Relu", "CPU", "b"]]), "'b' is missing"),
        ("json", nodes_json([["a", "Relu", "CPU", "a"]] * 2), "'a' is there twice"),
        ("csv", "node,type,device\na,Relu,CPU\n", "has no column 'leader'"),
        ("csv", "node,type,device,leader\n", "lists no node"),
        ("csv", "node,type,device,leader\na,Relu,,a\n", "is not a node"),
        ("csv", "", "is not a CSV table"),
    ],
)
def test_a_broken_file(tmp_path, kind, content, says):
    path = tmp_path / f"broken.{kind}"
    path.write_text(content)
    with pytest.raises(StoredFileError, match=says) as caught:
        getattr(Affinity, f"from_{kind}")(path)
    assert f"broken.{kind}" in str(caught.value)


def test_an_input_that_is_an_output_goes_with_a_device_that_is_named(core):
    x, y = (op.parameter([4], np.float32, name=name) for name in "xy")
    model = ov.Model([op.result(x), op.result(op.exp(y, name="exp"))], [x, y], "passed_on")
    affinity = hl.Affinity.from_mapping(model, {"exp": "ACC"})
    given = [np.full(4, value, np.float32) for value in (1, 0)]
    outputs = hl.compile(model, affinity, core=core)(given)
    assert [list(value) for value in outputs.values()] == [[1.0] * 4] * 2


# -- for a variant of the model -----------------------------------------------------------------


@pytest.fixture(scope="module")
def f32():
    """Three convolutions of which two read the same tensor."""
    x = op.parameter([1, 8, 8, 8], np.float32, name="x")
    ones = op.constant(np.ones((8, 8, 1, 1), np.float32))
    window = [1, 1], [0, 0], [0, 0], [1, 1]  # strides, padding and dilation
    top = op.relu(op.convolution(x, ones, *window, name="top"), name="relu")
    left, right = (op.convolution(top, ones, *window, name=name) for name in ("left", "right"))
    return hl.load(ov.Model([op.add(left, right, name="join")], [x], "fork"))


@pytest.fixture(scope="module")
def int8(f32):
    examples = [np.ones((1, 8, 8, 8), np.float32)]
    return hl.quantize(f32, examples, subset_size=1, progress=False)


def test_ops_keep_their_device_and_quantisers_go_with_their_users(f32, int8, core):
    cpu = hl.Affinity.uniform(f32, "CPU", core=core)
    original = cpu.fix(ops={"left": "ACC"}, core=core)
    carried = original.carried_to(int8)
    graph = prepare(int8).graph
    carried.check_model(graph)
    assert all(carried[name] == original[name] for name in original.ops)
    # A quantiser with users on both devices can be with one of them only.
    blocks = quantized_blocks(graph)
    assert len(blocks) == 3
    for above in blocks.values():
        for index in above:
            users = {carried[graph.ops[use.index].name] for use in graph.consumers[index]}
            assert carried[graph.ops[index].name] in users


def test_the_way_back_leaves_the_new_ops_out(f32, int8, core):
    cpu = hl.Affinity.uniform(int8, "CPU", core=core)
    back = cpu.fix(ops={"left": "ACC"}, core=core).carried_to(f32)
    assert set(back) == set(prepare(f32).graph.index_of)
    assert (back["right"], back["left"]) == ("CPU", "ACC")
    assert back.carried_to(f32) == back
    with pytest.raises(AffinityError, match="belongs to another model: it knows 0 of 2 ops"):
        back.carried_to(chain("a", "b"))


# -- by block ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "on_acc", "n_subgraphs"),
    [
        # What is before goes with the first block, what is after with the last.
        ({0: "ACC", "1": "CPU"}, (-1, 0), 2),
        ({"0 - 1": "ACC", "before": "CPU", "after": "CPU"}, (0, 1), 3),
    ],
)
def test_each_block_goes_where_it_is_sent(digits, core, devices, on_acc, n_subgraphs):
    graph = prepare(digits).graph
    block_of = find_blocks(graph).of_op
    affinity = hl.Affinity.by_block(digits, devices, core=core)
    for node in graph:
        assert affinity[node.name] == ("ACC" if block_of[node.index] in on_acc else "CPU")
    assert hl.partition(digits, affinity, core=core).n_subgraphs == n_subgraphs


def test_a_cut_after_each_block_in_both_directions(digits, core):
    cuts = hl.block_cuts(digits, ["ACC", "CPU"], core=core)
    assert [cut.label for cut in cuts] == ["0 ACC, 1 CPU", "0 CPU, 1 ACC"]
    assert cuts[0].affinity == hl.Affinity.by_block(digits, {0: "ACC", 1: "CPU"}, core=core)
    assert hl.block_cuts(digits, ["ACC", "CPU"], after=[], core=core) == []


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(0, 100))
def test_followers_follow(seed, choice):
    graph = prepare(random_model(seed)).graph
    affinity = random_affinity(graph, ["ACC", "CPU"], choice)
    assert set(affinity) == set(graph.index_of)
    for node in graph:
        users = [use.index for use in graph.consumers[node.index]]
        if node.type == "Result":
            assert affinity[node.name] == affinity[graph.ops[node.inputs[0][0]].name]
        elif node.type in ("Parameter", "Constant"):
            # It is where one of its users is, so it starts no subgraph of its own.
            at = {affinity[graph.ops[user].name] for user in users}
            assert not at or affinity[node.name] in at


def labelled(**devices):
    model = chain("a", "b", "c")
    for node in model.get_ops():
        if node.get_friendly_name() in devices:
            node.get_rt_info()["affinity"] = devices[node.get_friendly_name()]
    return model


def test_labels_of_a_model_are_a_placement(core):
    model = labelled(a="ACC", b="CPU", c="ACC")
    affinity = Affinity.of(model)
    assert on(affinity) == {"a": "ACC", "b": "CPU", "c": "ACC"}
    assert Affinity.of(hl.load(model)) == affinity
    compiled = hl.compile(model, affinity, core=core)
    assert (compiled.partition.n_subgraphs, compiled.as_predicted) == (3, True)


def test_labels_that_are_no_placement_or_not_used_are_named(core):
    for devices in ({}, {"a": "ACC", "c": "CPU"}):
        with pytest.raises(AffinityError, match="leaves out .*'b'"):
            Affinity.of(labelled(**devices))
    model = labelled(b="CPU")
    with pytest.warns(HeteroLabWarning, match=r"labels .*'CPU'.* not used.*Affinity\.of"):
        hl.compile(model, "HETERO:ACC,CPU", core=core)
    hl.compile(model, "CPU", core=core)  # OpenVINO uses none there either
    hl.compile(chain("a", "b", "c"), "HETERO:ACC,CPU", core=core)
