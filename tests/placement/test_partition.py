from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import openvino as ov
import pytest
from hypothesis import HealthCheck, assume, given, settings
from openvino import opset13 as op
from other_process import run_python
from proof.graphs import DEVICES as THREE, Case, build, cases
from random_models import random_affinity, random_model
from slices import sliced
from small_models import (
    chain,
    compressed,
    convolutions,
    diamond,
    odd_ends,
    passed_through,
    two_parts,
)

import hetero_lab as hl
from hetero_lab.interop.dot_dumps import read_dot
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.model.read import PreparedModel, prepare
from hetero_lab.placement import topology
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import (
    Displacement,
    Partition,
    SubgraphCollector,
    check_partition,
    devices_of,
    displacements,
    observed_partition,
    predict,
    torn_path,
)
from tests.proof.properties import core

DEVICES = ["ACC", "CPU"]


def placed(model: ov.Model, **devices: str) -> tuple[OpGraph, Partition]:
    """Predict with CPU everywhere but where told."""
    graph = prepare(model).graph
    names = {name.replace("_", "/"): device for name, device in devices.items()}
    affinity = Affinity.from_graph(graph, lambda name: names.get(name, "CPU"))
    return graph, predict(graph, affinity)


def shape_of(partition: Partition) -> list[tuple[str, tuple[str, ...]]]:
    return [(s.device, s.ops) for s in partition.subgraphs]


def test_connected_ops_of_one_device_are_one_subgraph():
    _, partition = placed(two_parts())
    assert sorted(shape_of(partition)) == [("CPU", ("abs",)), ("CPU", ("relu",))]
    _, partition = placed(diamond())
    assert shape_of(partition) == [("CPU", ("top", "left", "right", "join"))]
    assert partition.boundaries == ()
    assert (partition.n_subgraphs, partition.boundary_bytes, partition.n_crossings) == (1, 0, 0)


def test_a_chain_is_cut_where_the_device_changes():
    _, partition = placed(chain("a", "b", "c", "d"), b="ACC", c="ACC")
    assert shape_of(partition) == [("CPU", ("a",)), ("ACC", ("b", "c")), ("CPU", ("d",))]
    assert [(b.tensor, b.source, b.targets, b.n_bytes) for b in partition.boundaries] == [
        ("a", 0, (1,), 16), ("c", 1, (2,), 16),
    ]  # fmt: skip
    assert partition.boundary_bytes == 32
    assert partition.subgraph_of == {"a": 0, "b": 1, "c": 1, "d": 2}


def test_a_subgraph_that_would_depend_on_itself_is_split():
    # top and join are neighbours of left on CPU, but right on ACC lies between them.
    _, partition = placed(diamond(), right="ACC")
    assert [s.device for s in partition.subgraphs] == ["CPU", "ACC", "CPU"]
    assert "top" in partition.subgraphs[0].ops
    assert "join" in partition.subgraphs[2].ops


def test_a_tensor_that_goes_to_two_subgraphs_is_one_boundary():
    x = op.parameter([1, 8], np.float32, name="x")
    top = op.relu(x, name="top")
    outs = [op.abs(top, name="a"), op.tanh(top, name="b")]
    _, partition = placed(ov.Model(outs, [x], "fork"), a="ACC", b="ACC")
    (boundary,) = partition.boundaries
    assert (boundary.tensor, boundary.n_bytes, len(boundary.targets)) == ("top", 32, 2)
    # Two users without a tensor in common are two subgraphs, though on one device.
    assert partition.n_subgraphs == 3
    assert partition.n_crossings == 2
    assert partition.boundary_bytes == 32


def test_several_outputs_of_an_op_are_told_apart():
    x = op.parameter([1, 6], np.float32, name="x")
    parts = op.split(x, op.constant(1), 3, name="split")
    added = op.add(parts.output(0), parts.output(2), name="added")
    outs = [added, op.abs(parts.output(1), name="abs")]
    _, partition = placed(ov.Model(outs, [x], "m"), added="ACC")
    assert [(b.tensor, b.op, b.port, b.n_bytes) for b in partition.boundaries] == [
        ("split:0", "split", 0, 8), ("split:2", "split", 2, 8),
    ]  # fmt: skip


def test_constants_are_copied_and_never_cut():
    shared = op.constant(np.ones((1, 4), np.float32), name="shared")
    x = op.parameter([1, 4], np.float32, name="x")
    first = op.add(x, shared, name="first")
    second = op.multiply(first, shared, name="second")
    _, partition = placed(ov.Model([second], [x], "m"), second="ACC")
    assert [b.tensor for b in partition.boundaries] == ["first"]
    _, partition = placed(compressed(ov.Type.i8, users=2), matmul0="ACC")
    assert [b.tensor for b in partition.boundaries] == ["x"]


def test_results_are_where_their_producers_are():
    graph, partition = placed(odd_ends(), doubled="ACC")
    assert [s.device for s in partition.subgraphs].count("ACC") == 1
    home = partition.home
    for number, index in enumerate(graph.results):
        producer = graph.ops[index].inputs[0][0]
        assert home[index] == home[producer]
        assert ("model", number) in partition.wiring[home[producer]].outputs


@pytest.mark.parametrize("seed", sliced(range(4), quick=1, in_ci=2))
def test_memoised_cuts_change_nothing(seed):
    """A walk through placements, an op at a time, with the cuts of all before and without."""
    graph = prepare(random_model(seed, 120)).graph
    affinity = random_affinity(graph, DEVICES, seed)
    rng = np.random.default_rng(seed)
    for _ in range(12):
        anew = predict(replace(graph), affinity)
        for _ in range(2):
            assert predict(graph, affinity) == anew
        devices = dict(affinity)
        name = str(rng.choice(affinity.ops))
        devices[name] = DEVICES[devices[name] == "ACC"]
        affinity = Affinity.from_graph(graph, devices.__getitem__)
    collector = SubgraphCollector.of(graph)
    assert len(collector.convexity_memo) > 0
    assert len(collector.cycle_memo) > 0


def test_a_prediction_does_not_depend_on_the_hash_seed():
    code = (
        "import msgspec; from random_models import *; from hetero_lab.model.read import prepare\n"
        "from hetero_lab.placement.partition import *\n"
        "for s in range(8):\n"
        "    g = prepare(random_model(s)).graph\n"
        "    p = predict(g, random_affinity(g, ['ACC', 'CPU'], s))\n"
        "    print(msgspec.json.encode(p))\n"
    )
    tests = Path(__file__).parents[1]
    paths = os.pathsep.join([str(tests), str(tests.parent), os.environ.get("PYTHONPATH", "")])
    first, second = (
        run_python(code, PYTHONHASHSEED=seed, PYTHONPATH=paths).stdout for seed in ("0", "12345")
    )
    assert first == second


def test_hl_partition_of_a_single_device_is_one_subgraph_and_compiles_nothing(own_core):
    # Compiled directly, HETERO is not in between to part what is not connected.
    assert hl.partition(two_parts(), "CPU", core=own_core).n_subgraphs == 1
    assert hl.partition(two_parts(), "HETERO:CPU", core=own_core).n_subgraphs == 2
    hl.partition(convolutions(), "HETERO:ACC,CPU", core=own_core)
    assert own_core.n_compiled == 0


def test_text_and_html():
    _, partition = placed(chain("<script>x</script>", "b"), b="ACC")
    assert repr(partition) == "Partition(2 subgraphs, 1 boundary, 16 bytes, predicted)"
    unknown = msgspec.structs.replace(partition.boundaries[0], n_bytes=None)
    partition = replace(partition, boundaries=(*partition.boundaries, unknown, unknown))
    assert repr(partition).endswith("3 boundaries, ≥ 16 bytes, 2 of unknown size, predicted)")
    assert partition.boundary_bytes == 16
    assert partition.to_frame().columns.tolist() == ["subgraph", "device", "n_ops", "ops"]
    assert "<script" not in partition._repr_html_()
    assert "&lt;script&gt;" in partition._repr_html_()


# -- ops that are not on their preferred device ------------------------------------------------

NAMES = ("a", "b", "c", "d", "e")


def displaced(able, **devices):
    graph = prepare(chain(*NAMES)).graph
    affinity = Affinity.from_graph(graph, lambda name: devices.get(name, "GPU"))
    return displacements(graph, predict(graph, affinity), able)


def test_what_is_refused_is_a_cause_and_what_goes_along_a_consequence():
    able = {"GPU": set(NAMES) - {"b"}, "CPU": set(NAMES)}
    assert displaced(able, b="CPU") == {"b": Displacement("GPU")}
    both = displaced(able, b="CPU", c="CPU")
    assert both == {"b": Displacement("GPU"), "c": Displacement("GPU", ("b",))}
    assert str(both["b"]) == "GPU cannot run it"
    assert str(both["c"]) == "GPU could run it; it is placed with 'b'"
    # What the user chose is neither.
    assert displaced(able, b="CPU", d="CPU") == {"b": Displacement("GPU")}
    assert displaced({"GPU": set(NAMES), "CPU": set(NAMES)}, d="CPU") == {}
    assert displaced({"CPU": set(NAMES)}, b="CPU") == {}  # of GPU nothing is known


def test_of_three_devices_the_first_that_could_is_named():
    able = {"NPU": {"c"}, "GPU": {"c", "d"}, "CPU": set(NAMES)}
    here = displaced(able, c="CPU", d="CPU", e="CPU")
    assert here == {
        "a": Displacement("NPU"),
        "b": Displacement("NPU"),
        "d": Displacement("GPU", ("e",)),  # c is not next to a cause
        "e": Displacement("NPU"),
    }
    assert displaced(able, a="GPU", b="GPU", c="GPU", d="GPU")["e"] == Displacement("NPU")


# -- the rule of the plugin --------------------------------------------------------------------

N_QUICK, CHUNK = 4, 45


@pytest.fixture(scope="module")
def dumped(tmp_path_factory):
    """Return a function that gives the subgraphs of a placement as the plugin dumps them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("dumps"))
        patch.setenv("OPENVINO_HETERO_VISUALIZE", "0")

        def dumped(prepared: PreparedModel, affinity: Affinity) -> set[frozenset[str]]:
            hl.compile(prepared, hl.Placement(affinity, "dumped"), core=core())
            (file,) = Path().glob("hetero_subgraphs_*.dot")
            nodes, _ = read_dot(file.read_bytes().decode())
            for file in Path().iterdir():
                file.unlink()
            # What is computed from constants goes along with each of its users.
            ops = [prepared.graph.ops[index].name for index in prepared.graph.placeable]
            of_ops = nodes[nodes["node"].isin(ops)]
            return {frozenset(own["node"]) for _, own in of_ops.groupby("dump_subgraph")}

        yield dumped


def agree(prepared: PreparedModel, affinity: Affinity, dumped) -> Partition:
    """Assert that a prediction is what the plugin makes of it, and is whole."""
    graph = prepared.graph
    predicted = predict(graph, affinity)
    theirs = dumped(prepared, affinity)
    assert {frozenset(s.ops) for s in predicted.subgraphs if s.ops} == theirs
    for subgraph in predicted.subgraphs:
        assert {affinity[name] for name in subgraph.ops} <= {subgraph.device}
    # Whatever crosses goes forward.
    assert [s.index for s in predicted.subgraphs] == list(range(predicted.n_subgraphs))
    for boundary in predicted.boundaries:
        assert all(boundary.source < target for target in boundary.targets)
        assert list(boundary.targets) == sorted(set(boundary.targets))
        producer = graph.ops[graph.index_of[boundary.op]]
        assert boundary.n_bytes == producer.outputs[boundary.port].n_bytes
    assert predicted.n_crossings == sum(len(b.targets) for b in predicted.boundaries)
    # The wiring names every input and output of the model once.
    for kind, count in (("inputs", len(graph.parameters)), ("outputs", len(graph.results))):
        ports = [e[1] for w in predicted.wiring for e in getattr(w, kind) if e[0] == "model"]
        assert sorted(ports) == list(range(count))
    assert not predicted.observed
    return predicted


def is_parted(graph: OpGraph, affinity: Affinity, predicted: Partition) -> bool:
    """Whether neighbours on one device are apart, to break a cycle."""
    ops, where = graph.ops, predicted.subgraph_of
    pairs = ((ops[p].name, ops[i].name) for i in graph.placeable for p, _ in ops[i].inputs)
    return any(a in where and affinity[a] == affinity[b] and where[a] != where[b] for a, b in pairs)


def agreement(seed: int, most_ops: int, dumped) -> bool:
    """Let the plugin split a random graph on 2 or 3 devices; return whether it is parted."""
    size = np.random.default_rng(seed).integers(3, most_ops)
    prepared = prepare(random_model(seed, int(size)))
    affinity = random_affinity(prepared.graph, list(THREE[seed % 2 :]), seed)
    return is_parted(prepared.graph, affinity, agree(prepared, affinity, dumped))


@pytest.mark.slow
@pytest.mark.by_hand  # run on each supported release of OpenVINO
@pytest.mark.timeout(900)
def test_small_random_graphs_are_split_as_the_plugin_splits_them(dumped):
    for seed in range(10_000, 10_400):
        agreement(seed, 12, dumped)


@pytest.mark.parametrize(
    "seeds",
    sliced([range(N_QUICK), *(range(n, n + CHUNK) for n in range(N_QUICK, 1000, CHUNK))], 1, 2),
    ids=str,
)
def test_random_graphs_are_split_as_the_plugin_splits_them(dumped, seeds: range):
    """Graphs of 3 to 60 ops, whose constants are shared."""
    n_parted = sum(agreement(seed, 60, dumped) for seed in seeds)
    assert n_parted > 0.1 * len(seeds)  # or the comparison would show little


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(most_ops=16))
def test_graphs_with_states_and_computed_constants_are_split_as_the_plugin_splits_them(
    dumped, case: Case
):
    prepared = prepare(build(case))
    homes = iter(case.homes * len(prepared.graph))
    affinity = Affinity.from_graph(prepared.graph, lambda _name: next(homes))
    assume(not torn_path(prepared.graph, predict(prepared.graph, affinity)))
    agree(prepared, affinity, dumped)


def test_a_constant_that_two_parts_share_joins_them(dumped):
    shared = op.constant(np.ones((1, 4), np.float32), name="shared")
    inputs = [op.parameter([1, 4], np.float32, name=name) for name in ("x", "y")]
    sums = [op.add(x, shared, name=f"add_{x.get_friendly_name()}") for x in inputs]
    prepared = prepare(ov.Model([op.result(node) for node in sums], inputs, "shared"))
    affinity = Affinity.from_graph(prepared.graph, lambda _name: "CPU")
    assert agree(prepared, affinity, dumped).n_subgraphs == 1


def test_json_there_and_back():
    graph, partition = placed(odd_ends(), doubled="ACC")
    stored = msgspec.json.decode(msgspec.json.encode(partition))
    assert msgspec.convert(stored, Partition) == partition
    for row in stored["subgraphs"]:
        del row[2:]  # as older files have it
    assert msgspec.convert(stored, Partition) == partition
    stored["subgraphs"][0][1].append("elsewhere")
    with pytest.raises(ValueError, match="names 'elsewhere' it lacks"):
        check_partition(msgspec.convert(stored, Partition), graph)


def test_an_output_that_is_an_input_is_where_that_input_is():
    graph = prepare(passed_through(3)).graph
    inputs = [graph.ops[index].name for index in graph.parameters]
    for name in inputs:
        affinity = Affinity.from_graph(graph, lambda op, own=name: "ACC" if op == own else "CPU")
        devices = devices_of(graph, affinity)
        here = [devices[index] for index in graph.results]
        assert here == [devices[graph.ops[index].inputs[0][0]] for index in graph.results]
        assert here.count("ACC") == 1


def test_a_partition_in_the_order_in_which_it_ran_lists_its_targets_in_that_order():
    _, predicted = placed(diamond(), left="ACC", right="B")
    (shared,) = (b for b in predicted.boundaries if len(b.targets) == 2)
    last = len(predicted.subgraphs) - 1
    order = [0, *range(last - 1, 0, -1), last]
    observed = observed_partition(predicted, order)
    assert [(s.index, s.ops) for s in observed.subgraphs] == [
        (new, predicted.subgraphs[old].ops) for new, old in enumerate(order)
    ]
    (seen,) = (b for b in observed.boundaries if b.tensor == shared.tensor)
    assert seen.targets == shared.targets == (1, 2)


def test_cuts_are_dropped_when_they_become_too_many(monkeypatch):
    monkeypatch.setattr(topology, "_CAPACITY", 10)
    kept: topology.CutCache = topology.CutCache()
    for key, size in (("a", 4), ("b", 6)):
        kept.add(key, key, size)
    assert dict(kept) == {"a": "a", "b": "b"}
    kept.add("c", "c", 1)
    assert dict(kept) == {"c": "c"}
    kept.add("d", "d", 9)
    assert dict(kept) == {"c": "c", "d": "d"}
