"""What holds for every model and placement: checks of one case, and what they saw."""

from __future__ import annotations

import functools
import json
import random
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from counting_core import F32, CountingCore, core_with_acc, in_f32
from hypothesis import note
from planning.random_costs import random_costs

import hetero_lab as hl
from hetero_lab.errors import AffinityError, HeteroLabWarning
from hetero_lab.model.opgraph import CONSTANT, PARAMETER, RESULT, graph_from_json, graph_to_json
from hetero_lab.model.read import PreparedModel, prepare
from hetero_lab.placement.partition import Partition
from hetero_lab.planning.planner import plan_graph
from tests.proof.graphs import DEVICES, Case, build, inputs_of


@dataclass
class Tally:
    """What a run of cases saw; a wrong output is an error at once and needs no count."""

    graphs: int = 0
    compiled: int = 0
    split: int = 0
    refused: int = 0
    as_predicted: int = 0
    flagged: int = 0
    surprises: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        share = 100.0 * self.as_predicted / max(1, self.compiled)
        return (
            f"{self.graphs} graphs, {self.compiled} compiled placements ({self.split} of several "
            f"subgraphs), {self.refused} refused beforehand\n"
            f"wrong outputs: 0\n"
            f"partition predicted equal to observed: {self.as_predicted} of {self.compiled} "
            f"({share:.2f} %), every other one flagged ({self.flagged})"
        )


@functools.cache
def core() -> CountingCore:
    """A Core with two emulated devices beside CPU."""
    made = core_with_acc()
    hl.emulate("ACC2", properties=F32, core=made)
    return made


def check(case: Case, tally: Tally | None = None) -> None:
    """Check all that has to hold for one case; AssertionError says what does not."""
    tally = tally or Tally()
    tally.graphs += 1
    prepared = prepare(build(case))
    affinity = drawn_affinity(case, prepared)
    check_totality(prepared, affinity)
    check_round_trips(prepared, affinity)
    cpu = hl.Affinity.uniform(prepared, "CPU", core=core())
    inputs = inputs_of(case, prepared.model)
    expected = hl.compile(prepared, in_f32(cpu, direct=True), core=core())(inputs)
    placement = hl.Placement(affinity, "drawn", {d: case.properties[d] for d in affinity.devices})
    check_placement(prepared, placement, inputs, expected, tally)
    hl.emulate("ACC", unsupported=case.lacks, properties=F32, core=core())
    try:
        automatic = hl.Affinity.automatic(prepared, "HETERO:ACC,CPU", core=core())
        check_totality(prepared, automatic)
        check_greedy(prepared, automatic, case.lacks)
        check_placement(prepared, in_f32(automatic), inputs, expected, tally)
    finally:
        hl.emulate("ACC", properties=F32, core=core())
    check_planners(prepared, case.seed)


def drawn_affinity(case: Case, prepared: PreparedModel) -> hl.Affinity:
    """Read the homes of a case as an affinity; sticky ops stay where their producer is."""
    graph = prepared.graph
    chosen: dict[str, str] = {}
    for number, op in enumerate(graph):
        near = [chosen[graph.ops[p].name] for p, _ in op.inputs if graph.ops[p].name in chosen]
        if case.sticky and near and number % 3:
            chosen[op.name] = near[0]
        else:
            chosen[op.name] = case.homes[number % len(case.homes)]
    return hl.Affinity.from_graph(graph, chosen)


def check_totality(prepared: PreparedModel, affinity: hl.Affinity) -> None:
    """Every node has a device, and followers have that of their leader."""
    graph = prepared.graph
    assert set(affinity) == {op.name for op in graph.ops}
    assert set(affinity.values()) <= set(DEVICES)
    for path in graph.stateful_paths:
        assert len({affinity[graph.ops[i].name] for i in path}) <= 1
    for op in graph.ops:
        if op.type == RESULT:
            assert affinity[op.name] == affinity[graph.ops[op.inputs[0][0]].name]


def check_greedy(prepared: PreparedModel, affinity: hl.Affinity, lacks: frozenset[str]) -> None:
    """The first device takes what it can, whole stateful paths at a time."""
    graph = prepared.graph
    members: dict[int, list[str]] = {}
    for op in graph.ops:
        if op.type not in (PARAMETER, CONSTANT, RESULT):
            members.setdefault(graph.leader[op.index], []).append(op.type)
    for op in graph.ops:
        types = members.get(graph.leader[op.index])
        if types is not None and op.type not in (PARAMETER, CONSTANT, RESULT):
            assert affinity[op.name] == ("CPU" if lacks & set(types) else "ACC"), op.name


def check_round_trips(prepared: PreparedModel, affinity: hl.Affinity) -> None:
    """What is written is read back the same: JSON and CSV, whatever the names."""
    with tempfile.TemporaryDirectory() as name:
        affinity.to_json(Path(name) / "a.json")
        assert hl.Affinity.from_json(Path(name) / "a.json") == affinity
        affinity.to_csv(Path(name) / "a.csv")
        assert hl.Affinity.from_csv(Path(name) / "a.csv") == affinity
    graph = prepared.graph
    assert graph_from_json(json.loads(json.dumps(graph_to_json(graph)))) == graph
    predicted = hl.partition(prepared, affinity, core=core())
    assert msgspec.convert(msgspec.to_builtins(predicted), Partition) == predicted


def check_partition(prepared: PreparedModel, affinity: hl.Affinity, found: Partition) -> None:
    """Each op is in one subgraph of its device; tensors run forward only."""
    ops = [op for subgraph in found.subgraphs for op in subgraph.ops]
    assert sorted(ops) == sorted(prepared.graph.ops[i].name for i in prepared.graph.placeable)
    for subgraph in found.subgraphs:
        assert {affinity[op] for op in subgraph.ops} <= {subgraph.device}
    home = found.subgraph_of
    for boundary in found.boundaries:
        assert all(boundary.source < target for target in boundary.targets)
    crossing = {(b.op, b.port) for b in found.boundaries}
    for op in prepared.graph.ops:
        for producer, port in op.inputs:
            source = prepared.graph.ops[producer].name
            if source in home and op.name in home and home[source] != home[op.name]:
                assert (source, port) in crossing


def check_placement(prepared, placement, inputs, expected, tally: Tally) -> None:
    """A placement is refused, or is compiled as predicted and has the outputs of one device."""
    try:
        predicted = hl.partition(prepared, placement, core=core())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            compiled = hl.compile(prepared, placement, core=core())
    except AffinityError as error:
        # Said before anything runs, with the way out.
        assert "stateful path" in str(error)
        tally.refused += 1
        return
    check_partition(prepared, placement.affinity, predicted)
    tally.compiled += 1
    tally.split += compiled.partition.n_subgraphs > 1
    said = [str(w.message) for w in caught if issubclass(w.category, HeteroLabWarning)]
    warned = [text for text in said if text.startswith("HETERO ignores")]
    flags = [text for text in said if text not in warned]
    own = placement.device_properties if predicted.n_subgraphs > 1 else {}
    assert sorted(text.split(" of ")[1].split()[0] for text in warned) == sorted(
        device
        for device, given in own.items()
        if "EXCLUSIVE_ASYNC_REQUESTS" not in given
        and ("INFERENCE_NUM_THREADS" in given or given.get("NUM_STREAMS") == 2)
    )
    if compiled.as_predicted is True:
        tally.as_predicted += 1
        assert flags == []
        assert compiled.partition.n_subgraphs == predicted.n_subgraphs
        assert compiled.partition.boundary_bytes == predicted.boundary_bytes
    else:
        assert compiled.as_predicted is False
        assert any("another partition than predicted" in text for text in flags)
        tally.flagged += 1
        tally.surprises.append(f"{predicted!r} but {compiled.partition!r}")
        note(tally.surprises[-1])
    outputs = compiled(inputs)
    assert list(outputs) == list(expected)
    for name, value in expected.items():
        assert outputs[name].shape == value.shape
        assert outputs[name].dtype == value.dtype
        limit = 1e-5 + 1e-4 * float(np.abs(value).max(initial=0.0))
        difference = float(np.abs(outputs[name] - value).max(initial=0.0))
        assert difference <= limit, f"output {name!r} differs by {difference}, limit {limit}"


def check_planners(prepared: PreparedModel, seed: int) -> None:
    """A plan is never worse than what anybody could name, nor better than its bound."""
    graph = prepared.graph
    if not graph.placeable:
        return
    costs = random_costs(random.Random(seed), graph, ["ACC", "CPU"], most_units=8)
    made = plan_graph(graph, costs, budget_s=5.0)
    assert made.lower_bound_us <= made.predicted_us + 1e-6
    assert made.gap >= -1e-6
    assert abs(costs.predict_us(made.affinity) - made.predicted_us) < 1e-3
    check_totality(prepared, made.affinity)
    for regret in made.regret.values():
        assert regret is None or regret >= -1e-3
    for device in costs.devices:
        if all(u.time_us[costs.devices.index(device)] is not None for u in costs.units):
            alone = hl.Affinity.from_graph(graph, lambda _name, device=device: device)
            assert made.predicted_us <= costs.predict_us(alone) + 1e-3
    with tempfile.TemporaryDirectory() as name:
        costs.to_json(Path(name) / "c.json")
        again = hl.CostModel.from_json(Path(name) / "c.json")
    assert abs(again.predict_us(made.affinity) - made.predicted_us) < 1e-3
