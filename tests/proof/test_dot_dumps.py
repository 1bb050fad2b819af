"""OpenVINO's own .dot dumps against what the lab predicts, observes and draws."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from counting_core import core_with_acc, in_f32
from openvino_models import CASES
from random_models import random_affinity, random_model
from small_models import NASTY_NAMES, chain, diamond, odd_ends, stateful

import hetero_lab as hl
from hetero_lab.errors import CompileError, StoredFileError
from hetero_lab.interop.dot_dumps import read_dot
from hetero_lab.model.opgraph import CONSTANT, PARAMETER, RESULT
from hetero_lab.model.read import prepare
from hetero_lab.views.graph_data import graph_data


def long_edge() -> ov.Model:
    """Build a chain of 40 ops whose first also feeds its last: too long an edge to be drawn."""
    from openvino import opset13 as op

    x = op.parameter([1, 4], np.float32, name="x")
    first = tensor = op.relu(x, name="first")
    for index in range(40):
        tensor = op.abs(tensor, name=f"step{index}")
    return ov.Model([op.result(op.add(first, tensor, name="last"), name="out")], [x], "long_edge")


MODELS = {
    "diamond": diamond,
    "stateful": stateful,
    "odd ends": odd_ends,
    "long edge": long_edge,
    "nasty names": lambda: chain(*NASTY_NAMES),
    "slash in the name": lambda: _named(diamond(), "a/b"),
    **{f"random {seed}": (lambda seed=seed: random_model(seed)) for seed in (1, 2, 5, 8)},
    **{case.name: case.make for case in CASES if case.name in ("nested cycle", "linear chain")},
}
SLOW = {"random 2", "random 5", "random 8", "nested cycle", "linear chain", "stateful"}


def _named(model: ov.Model, name: str) -> ov.Model:
    model.set_friendly_name(name)
    return model


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in MODELS]
)
def test_the_placement_graph_is_what_openvino_dumps(core, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepared = prepare(MODELS[name]())
    graph = prepared.graph
    affinity = random_affinity(graph, ["ACC", "CPU"], 3)
    placement = in_f32(affinity)
    dumps = hl.interop.hetero_dumps(prepared, placement, core=core)
    compiled = hl.compile(prepared, placement, core=core)
    data = graph_data(graph, affinity, compiled.partition)

    # Every op and its device.
    of_kind = {op.name: op.type for op in graph.ops}
    dumped = {n.node: n for n in dumps.nodes.dropna(subset="device").itertuples()}
    free = {op.name for op in graph.ops if op.type not in (PARAMETER, CONSTANT)}
    known = {n for n in free if n in dumped}
    # Only outputs that are an input or a constant are not described there.
    assert {of_kind[n] for n in free - known} <= {RESULT}
    assert {n: dumped[n].device for n in affinity.ops} == {n: affinity[n] for n in affinity.ops}
    assert {n: dumped[n].type for n in known} == {n: of_kind[n] for n in known}

    # The same ops in one subgraph, on the same device.
    theirs: dict[int, set[str]] = {}
    for op in affinity.ops:
        theirs.setdefault(dumped[op].dump_subgraph, set()).add(op)
    ours = {frozenset(s.ops): s.device for s in compiled.partition.subgraphs if s.ops}
    assert {frozenset(ops): dumped[min(ops)].device for ops in theirs.values()} == ours
    drawn = [{graph.ops[i].name for i in box.nodes if i in graph.placeable} for box in data.boxes]
    assert {frozenset(ops) for ops in drawn if ops} == set(ours)

    # Every wire between described nodes, as often as it is there.
    wires = Counter(
        (graph.ops[source].name, op.name) for op in graph.ops for source, _ in op.inputs
    )
    described = {wire: n for wire, n in wires.items() if wire[1] in known}
    frame = dumps.edges
    drawn_wires = Counter(zip(frame["source"], frame["target"], strict=True))
    assert {wire: n for wire, n in drawn_wires.items() if wire[1] in known} == described
    crossing = {(r.source, r.target) for r in frame[frame["crosses"]].itertuples()}
    ops = set(affinity.ops)
    assert {w for w in crossing if set(w) <= ops} == {
        (graph.ops[e.source].name, graph.ops[e.target].name)
        for e in data.edges
        if e.is_boundary and {graph.ops[e.source].name, graph.ops[e.target].name} <= ops
    }
    # Nothing of the caller's was written.
    assert list(tmp_path.iterdir()) == []


def test_tables(core):
    model = hl.load(diamond())
    affinity = hl.Affinity.uniform(model, "ACC", core=core).fix(ops={"left": "CPU"}, core=core)
    dumps = hl.interop.hetero_dumps(model, affinity, core=core)
    nodes = dumps.nodes.set_index("node")
    assert nodes["device"].dropna().to_dict() == {
        "top": "ACC",
        "left": "CPU",
        "right": "ACC",
        "join": "ACC",
        "out": "ACC",
    }
    assert nodes.loc["x", "type"] == "Parameter"
    assert nodes["dump_subgraph"].isna().to_dict()["x"]
    assert dumps.edges["crosses"].sum() == 3
    subgraphs = dumps.subgraphs.set_index("device")
    assert subgraphs.loc["CPU", "nodes"] == "left"
    assert sorted(dumps.subgraphs["n_nodes"]) == [1, 2, 2]
    assert repr(dumps) == "HeteroDumps('affinity', 6 nodes, 6 edges, 3 subgraphs)"
    assert dumps.affinity_dot.startswith("digraph")
    assert "subgraph=" in dumps.subgraphs_dot
    assert "<table" in dumps._repr_html_()


def test_files_of_the_user_are_left_alone(core, tmp_path, monkeypatch):
    mine = tmp_path / "hetero_subgraphs_model.dot"
    mine.write_text("mine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OV_VISUALIZE_TREE_EDGE_LABELS", "1")
    hl.interop.hetero_dumps(diamond(), "HETERO:ACC,CPU", core=core)
    assert mine.read_text() == "mine"
    assert os.listdir(tmp_path) == [mine.name]
    assert "OPENVINO_HETERO_VISUALIZE" not in os.environ


def test_a_raw_dump_with_any_names_can_be_read(tmp_path, monkeypatch):
    # As somebody has it who set the variable himself: names are not escaped in there.
    core = core_with_acc()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENVINO_HETERO_VISUALIZE", "0")
    names = [n for n in NASTY_NAMES if n.strip()]
    model = _named(chain(*names), "raw")
    affinity = random_affinity(prepare(model).graph, ["ACC", "CPU"], 1)
    hl.compile(model, in_f32(affinity), core=core)
    nodes, edges = read_dot(Path("hetero_subgraphs_raw.dot").read_bytes().decode())
    found = dict(zip(nodes["node"], nodes["device"], strict=True))
    assert {n: found.get(n) for n in names} == {n: affinity[n] for n in names}
    assert set(itertools.pairwise(names)) <= set(zip(edges["source"], edges["target"], strict=True))


def test_what_is_no_dump_is_refused():
    with pytest.raises(StoredFileError, match="digraph"):
        read_dot("<html>")


def test_a_process_that_takes_too_long_is_ended(core):
    with pytest.raises(CompileError, match="did not end within 0.01 s"):
        hl.interop.hetero_dumps(diamond(), "HETERO:ACC,CPU", timeout_s=0.01, core=core)
