"""What HETERO does by itself with GPUs, by memory or ratios that are given, and how it is told."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op
from planning.random_costs import GraphMaker

import hetero_lab as hl
from hetero_lab.errors import AffinityError, ArgumentError, DeviceError, PlanError, PropertyError
from hetero_lab.model.opgraph import op_graph
from hetero_lab.model.read import prepare
from hetero_lab.placement import distribution
from hetero_lab.placement.distribution import (
    DeviceShare,
    first_part,
    policy_ratio,
    unplaced_bytes,
)
from hetero_lab.placement.placement import check_own_properties, check_shares, share_ratios
from hetero_lab.placement.recipes import RUNTIMES
from hetero_lab.placement.topology import islands

PIPELINE = "PIPELINE_PARALLEL"
TWO = ("GPU.7", "GPU.8")  # nowhere here


def asked(*sizes: int | str, devices: tuple[str, ...] = TWO, policy: str | None = PIPELINE):
    memory = dict(zip(devices, sizes, strict=False))
    return hl.distribution("digits_inception", list(devices), policy=policy, memory=memory)


def test_a_model_that_fits_leaves_the_second_gpu_empty():
    found = asked("24GiB", "24GiB")
    assert (found.ratios, found.empty) == ({"GPU.7": 1.0}, ("GPU.8",))
    assert found.sentence.startswith("GPU.8 stays empty under PIPELINE_PARALLEL: GPU.7")
    findings = hl.lint("digits_inception", hl.Affinity.uniform("digits_inception", "CPU"))
    assert "empty-device" not in set(findings["rule"])


def test_a_model_that_does_not_fit_is_divided_by_memory():
    weights = asked("24GiB", "24GiB").shares[0].left_bytes
    found = asked(weights // 2, weights)
    assert found.ratios["GPU.7"] == pytest.approx(0.5 / 1.2, rel=1e-4)
    table = found.to_frame().set_index("device")
    assert list(table.index) == list(TWO)
    assert 0.3 < table.loc["GPU.7", "weight_bytes"] / weights < 0.45
    assert table.loc["GPU.7", "left_bytes"] == weights
    assert table.loc["GPU.8", "left_bytes"] >= table.loc["GPU.8", "weight_bytes"]
    assert found.estimated
    assert "about GPU.7 39%" in found.sentence
    # The CPU takes what no GPU holds.
    found = asked(weights // 4, weights // 4, devices=(*TWO, "CPU"))
    assert [share.ratio is None for share in found.shares] == [False, False, True]
    assert all(share.n_ops for share in found.shares)
    assert not found.empty


def test_a_device_holds_weights_states_and_boundary_tensors():
    share = DeviceShare("A", None, 1000, 0.5, "all", 3, weight_bytes=400, state_bytes=50,
                        boundary_bytes=7)  # fmt: skip
    assert share.total_bytes == 457
    empty = replace(share, device="B", ratio=None, n_ops=0)
    found = replace(asked("24GiB", "24GiB"), shares=(share, empty))
    assert found.ratios == {"A": 0.5}
    assert found.empty == ("B",)
    row = found.to_frame().iloc[0]
    assert (row["weight_bytes"], row["state_bytes"], row["boundary_bytes"]) == (400, 50, 7)


def test_without_a_policy_the_first_device_takes_all():
    found = asked("1MiB", "1MiB", policy=None)
    assert (found.ratios, found.empty) == ({}, ("GPU.8",))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"placement": "HETERO:CPU"}, PropertyError, "no effect on CPU"),
        ({"placement": ["GPU.7", "GPU.8"], "memory": {"GPU.8": 5}}, DeviceError, "'GPU.7' is not"),
        ({"placement": ["CPU"], "memory": {"GPU.8": 5}}, PlanError, "memory names 'GPU.8'"),
    ],
)
def test_bad_input_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        hl.distribution("digits_inception", **{"policy": PIPELINE, **given})


def test_fit_takes_the_memory_that_is_free_and_says_how_to_divide():
    fit = hl.fit_blocks("digits_inception", ["CPU"])
    assert fit.memory[0].blocks == "0-1"
    assert fit.placement.affinity == fit.affinity
    with pytest.raises(PlanError, match="cut='rows'"):
        hl.fit_blocks("digits_inception", ["CPU"], cut="rows")
    devices = [hl.emulate("ACC").name, "CPU"]
    with pytest.raises(PropertyError, match="has no QUERY_MODEL_RATIO"):
        hl.fit_blocks("digits_inception", devices, cut="ratio")
    # Only what is handed over is a boundary.
    for limit, boundaries in ({}, [0, 0]), ({"ACC": 3000}, [128, 128]):
        held = hl.fit_blocks(layers(3), devices, limit).memory
        assert [each.boundary_bytes for each in held] == boundaries


def test_a_placement_that_hetero_divides_is_explained():
    model = hl.load("digits_inception")
    acc = hl.emulate("ACC").name
    own = {"HETERO": {"MULTI_DEVICE_PRIORITIES": f"{acc},CPU"}}
    divided = hl.Placement(hl.Affinity.uniform(model, acc), "", own)
    found = hl.distribution(model, divided)
    assert found.placement is divided
    assert (found.policy, found.ratios, found.empty) == (None, {}, ("CPU",))
    weights, n_ops = prepare(model).graph.weight_bytes, len(divided.affinity.ops)
    assert [(s.device, s.n_ops, s.total_bytes, s.left_bytes) for s in found.shares] == [
        (acc, n_ops, weights, weights), ("CPU", 0, 0, 0),
    ]  # fmt: skip
    with pytest.raises(ArgumentError, match="has its own policy"):
        hl.distribution(model, divided, PIPELINE)
    with pytest.raises(ArgumentError, match="are labelled"):
        hl.distribution(model, hl.Affinity.uniform(model, "CPU"))


def test_a_placement_with_a_policy_keeps_the_properties_of_its_devices(monkeypatch):
    """Only GPUs obey one: the memory of ACC and HETERO's answer are by hand."""
    model = hl.load("digits_inception")
    devices = [hl.emulate("ACC").name, "CPU"]
    on_first, cut_with = hl.Affinity.uniform(model, devices[0]), []

    def own_affinity(bound, devices, properties):
        cut_with.append(properties)
        return on_first

    monkeypatch.setattr(distribution, "takes_ratio", lambda core, device: True)
    monkeypatch.setattr(distribution, "_totals", lambda bound, devices: {"ACC": 1 << 30})
    monkeypatch.setattr(distribution, "own_affinity", own_affinity)
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    given = hl.distribution(model, devices, PIPELINE, device_properties={devices[0]: exact})
    again = hl.distribution(model, given.placement)
    assert again == given
    assert again.placement.device_properties[devices[0]] == exact
    ratio = {"QUERY_MODEL_RATIO": 1.0}  # stands for the policy, which is not asked as well
    assert cut_with == [{devices[0]: exact | ratio}] * 4


# -- the rule ----------------------------------------------------------------------------------

MODEL: Any = ov.Model


def layers(count: int = 10, size: int = 16) -> ov.Model:
    x = op.parameter([2, size], np.float32, name="x")
    node = x
    for index in range(count):
        weight = op.constant(np.eye(size, dtype=np.float32))
        node = op.relu(op.matmul(node, weight, False, False, name=f"m{index}"), name=f"r{index}")
    return MODEL([node], [x], "layers")


@pytest.mark.parametrize(
    ("memory", "ratio"),
    [
        ({"GPU.0": 1200, "GPU.1": 9}, 1.0),
        ({"GPU.0": 1100, "GPU.1": 9}, 1100 / 1109),  # a part by memory
        ({"GPU.0": 1100, "GPU.1": 100}, 1.0),  # more than the weights, less than 1.2 times
        ({"GPU.0": 1100, "CPU": -1}, 1.0),
        ({"GPU.0": 600, "GPU.1": 600}, 0.5),
        ({"GPU.0": 600, "CPU": -1}, 0.5),
        ({"GPU.0": 300, "GPU.1": 100}, 0.75),
        ({"GPU.0": 300, "GPU.1": 100, "CPU": -1}, 0.25),
    ],
)
def test_the_policy_compares_weights_with_total_memory(memory, ratio):
    assert policy_ratio("GPU.0", 1000, memory)[0] == pytest.approx(ratio)


def test_shares_become_ratios_of_what_is_left_and_add_up():
    assert share_ratios([0.2, 0.3, 0.5]) == pytest.approx([0.2, 0.375])
    assert check_shares([0.4, 0.6], ["GPU.0", "GPU.1"]) == [0.4, 0.6]
    for shares in ([0.4, 0.7], [1.0, 0.0], [1.2, -0.2], [0.5], ["a", "b"], []):
        with pytest.raises(ArgumentError, match=r"for each of the 2|add up to"):
            check_shares(shares, ["GPU.0", "GPU.1"])


def test_a_ratio_takes_the_first_layers_and_leaves_the_bytes_of_the_others():
    graph = op_graph(layers())
    for ratio, count in [(0.1, 1), (0.5, 5), (0.34, 3), (0.08, 0), (1.0, 10)]:
        taken = {graph.ops[index].name for index in first_part(graph, graph.placeable, ratio)}
        assert taken == {f"{kind}{index}" for kind in "mr" for index in range(count)}
    assert unplaced_bytes(graph, range(len(graph))) == 10 * 16 * 16 * 4
    left = [index for index in graph.placeable if graph.ops[index].name[1:] >= "7"]
    assert unplaced_bytes(graph, left) == 3 * 16 * 16 * 4


def test_unconnected_parts_are_counted():
    one, two = (op.parameter([4], np.float32, name=name) for name in "ab")
    apart = MODEL([op.relu(one), op.abs(two)], [one, two], "apart")
    assert islands(op_graph(apart)) == 2
    assert islands(op_graph(layers())) == 1


def test_recipes_say_the_same_everywhere():
    properties = {
        "GPU.0": {"QUERY_MODEL_RATIO": 0.4, "EXCLUSIVE_ASYNC_REQUESTS": False},
        "GPU.1": {"EXCLUSIVE_ASYNC_REQUESTS": False},
        "HETERO": {"MULTI_DEVICE_PRIORITIES": "GPU.0,GPU.1"},
    }
    halves = hl.Placement(hl.Affinity.uniform("digits_inception", "CPU"), "", properties)
    called: Any = ast.parse(halves.recipe("python")).body[0]
    target, given = (ast.literal_eval(argument) for argument in called.value.args[1:])
    assert target == "HETERO:GPU.0,GPU.1"
    assert given == {"DEVICE_PROPERTIES": {d: properties[d] for d in ("GPU.0", "GPU.1")}}
    for_gpu_0 = '"DEVICE_PROPERTIES_GPU.0": "{QUERY_MODEL_RATIO:0.4,EXCLUSIVE_ASYNC_REQUESTS:NO}"'
    assert for_gpu_0 in halves.recipe("benchmark_app")
    every = halves.recipe()
    assert all(halves.recipe(runtime) in every for runtime in RUNTIMES)
    with pytest.raises(ArgumentError, match=r"Did you mean 'genai'"):
        halves.recipe("gen_ai")


def test_devices_without_the_property_are_refused():
    model = hl.load("digits_inception")
    acc = hl.emulate("ACC").name
    with pytest.raises(PropertyError, match=r"ACC has no QUERY_MODEL_RATIO"):
        hl.Placement.balanced(model, [acc, "CPU"])
    for devices, message in (
        (["GPU", "GPU.0"], "twice"),
        (["CPU"], "two devices"),
        (["CPU", "GPU.7"], "not a device here"),
    ):
        with pytest.raises(DeviceError, match=message):
            hl.Placement.balanced(model, devices)
    cpu = hl.Affinity.uniform(model, "CPU")
    with pytest.raises(PropertyError, match="Properties of HETERO"):
        hl.compile(model, hl.Placement(cpu, "", {"HETERO": {"NUM_STREAMS": 2}}))
    with pytest.raises(ArgumentError, match="labels the ops"):
        hl.Placement(cpu).recipe()


def test_what_hetero_divides_by_itself_is_compiled_without_labels():
    model = hl.load("digits_inception")
    acc = hl.emulate("ACC", unsupported={"Softmax"}).name
    own = {"HETERO": {"MULTI_DEVICE_PRIORITIES": f"{acc},CPU"}}
    cpu = hl.Affinity.uniform(model, "CPU")
    with pytest.raises(AffinityError, match="would place"):
        hl.compile(model, hl.Placement(cpu, "", own))
    # HETERO asks the plugin, which knows nothing of what an emulated device lacks.
    alone = hl.Affinity.uniform(model, acc)
    with pytest.raises(DeviceError, match="does not support"):
        hl.compile(model, hl.Placement(alone, "", own))
    hl.emulate("ACC")
    divided = hl.Placement(alone, "", own)
    for runtime in RUNTIMES:
        assert hl.interop.recipe(model, divided, runtime) == divided.recipe(runtime)
    compiled = hl.compile(model, divided)
    assert compiled.as_predicted
    assert [s.device for s in compiled.partition.subgraphs] == [acc]


def test_the_policy_is_checked_and_goes_with_the_devices():
    own = {"MULTI_DEVICE_PRIORITIES": "GPU.0,GPU.1"}
    check_own_properties(own)
    check_own_properties({**own, "MODEL_DISTRIBUTION_POLICY": "PIPELINE_PARALLEL"})
    for wrong, says in (
        ({"MODEL_DISTRIBUTION_POLICY": "PIPELINE_PARALLEL"}, "Properties of HETERO are"),
        ({**own, "NUM_STREAMS": 2}, "Properties of HETERO are"),
        ({**own, "MODEL_DISTRIBUTION_POLICY": "TENSOR_PARALLEL"}, "only 'PIPELINE_PARALLEL'"),
    ):
        with pytest.raises(PropertyError, match=says):
            check_own_properties(wrong)


def test_of_the_cuts_near_a_ratio_the_one_that_hands_on_least_is_taken():
    """Weights of 100, 4 and 100 bytes: both cuts beside the middle are near half of them."""

    def part(*elements: int) -> set[str]:
        maker = GraphMaker()
        at = maker.add("Parameter")
        for name, n_bytes, shape in zip("abc", (100, 4, 100), elements, strict=True):
            weights = maker.add("Constant", n_bytes=n_bytes)
            at = maker.add("Add", [at, weights], name=name, shape=(shape,))
        graph = maker.graph()
        return {graph.ops[index].name for index in first_part(graph, graph.placeable, 0.5)}

    assert part(8, 2, 1) == {"a", "b"}
    assert part(2, 8, 1) == {"a"}
    assert part(8, 8, 1) == {"a"}  # the earlier of two that hand on as much
