"""Random graphs and cost models for tests of the planners, made without the runtime."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import structs
from scipy.cluster.hierarchy import DisjointSet

from hetero_lab.costs.cost_model import BoundaryCost, CostModel, LostFusion, Reorder, Unit
from hetero_lab.costs.design import block_units
from hetero_lab.costs.objective import CostRow
from hetero_lab.model.language import Scenario
from hetero_lab.model.opgraph import Op, OpGraph, Tensor
from hetero_lab.placement.affinity import Affinity


class GraphMaker:
    """Build an OpGraph op by op."""

    def __init__(self, name: str = "made"):
        self.name = name
        self.ops: list[Op] = []
        self.parameters: list[int] = []
        self.results: list[int] = []

    def add(
        self,
        op_type: str,
        inputs: Sequence[int | tuple[int, int]] = (),
        *,
        name: str | None = None,
        outputs: int = 1,
        n_bytes: int | None = 100,
        variable: str | None = None,
        element_type: str = "f32",
        shape: tuple[int, ...] | None = None,
    ) -> int:
        """Add an op and return its index; without ``shape``, its tensors are vectors."""
        index = len(self.ops)
        wires = tuple(wire if isinstance(wire, tuple) else (wire, 0) for wire in inputs)
        if shape is None and n_bytes is not None:
            shape = (n_bytes,)
        made = () if op_type == "Result" else (Tensor(shape, element_type, n_bytes, ""),) * outputs
        label = name or f"{op_type.lower()}{index}"
        self.ops.append(Op(index, label, op_type, wires, made, variable))
        if op_type == "Parameter":
            self.parameters.append(index)
        if op_type == "Result":
            self.results.append(index)
        return index

    def chain(self, at: int, names: Iterable[str], op_type: str = "Relu", **options: Any) -> int:
        """Add ops that read each other, the first one ``at``; return the index of the last."""
        for name in names:
            at = self.add(op_type, [at], name=name, **options)
        return at

    def graph(self) -> OpGraph:
        """Return the graph; ops that nothing uses get a result."""
        used = {producer for op in self.ops for producer, _ in op.inputs}
        for op in list(self.ops):
            is_sink = op.type in ("Parameter", "Constant", "Result", "Assign")
            if op.index not in used and not is_sink:
                self.add("Result", [op.index])
        return OpGraph(self.name, tuple(self.ops), tuple(self.parameters), tuple(self.results))


def fork(n_bytes: int, right: str = "Relu", right_bytes: int | None = 0) -> OpGraph:
    """Return head → (left, right) → tail; ``right`` is the type of that op."""
    maker = GraphMaker()
    head = maker.add("Relu", [maker.add("Parameter")], name="head", n_bytes=n_bytes)
    ends = [maker.add("Relu", [head], name="left", n_bytes=n_bytes)]
    right_bytes = n_bytes if right_bytes == 0 else right_bytes
    ends.append(maker.add(right, [head], name="right", n_bytes=right_bytes))
    maker.add("Add", ends, name="tail", n_bytes=n_bytes)
    return maker.graph()


def random_graph(rng: random.Random, n_ops: int, *, state: bool = False) -> OpGraph:
    """Return a random DAG with shared tensors and constants, several inputs and outputs.

    With ``state``, a variable is read at its beginning and assigned near its end.
    """
    maker = GraphMaker()
    live = [maker.add("Parameter") for _ in range(rng.randint(1, 3))]
    constants = [
        maker.add("Constant", n_bytes=rng.randint(1, 5000)) for _ in range(rng.randint(0, 3))
    ]
    if constants and rng.random() < 0.3:
        constants.append(maker.add("Convert", [constants[0]]))
    if state:
        live.append(maker.add("ReadValue", [live[0]], variable="memory"))
    far = rng.choice([0.1, 0.4, 0.8])
    for _ in range(n_ops):
        if rng.random() < 0.3:
            constants.append(maker.add("Constant", n_bytes=rng.randint(1, 5000)))
        near = live[-min(len(live), 3) :]
        producers = [rng.choice(live if rng.random() < far else near)]
        while rng.random() < 0.4 and len(producers) < 3:
            producers.append(rng.choice(live if rng.random() < far else near))
        wires = [(p, rng.randrange(len(maker.ops[p].outputs))) for p in producers]
        if constants and rng.random() < 0.3:
            wires.append((rng.choice(constants), 0))
        outputs = 2 if rng.random() < 0.1 else 1
        live.append(
            maker.add(
                rng.choice(["Relu", "Add", "Convolution", "MatMul"]),
                wires,
                outputs=outputs,
                n_bytes=rng.randint(1, 4000),
            )
        )
    if state:
        maker.add("Assign", [rng.choice(live[-3:])], variable="memory")
    return maker.graph()


def random_units(rng: random.Random, graph: OpGraph, most: int) -> list[tuple[str, ...]]:
    """Divide the placeable ops into at most ``most`` units of neighbours."""
    placeable = set(graph.placeable)
    units = DisjointSet(graph.placeable)
    wires = [
        (producer, op.index)
        for op in graph
        for producer, _ in op.inputs
        if producer in placeable and op.index in placeable
    ]
    rng.shuffle(wires)
    for path in graph.stateful_paths:
        for index in path:
            units.merge(path[0], index)
    for first, second in wires:
        if units.n_subsets > most or rng.random() >= 0.8:
            units.merge(first, second)
    parts = sorted(units.subsets(), key=min)
    parts = [set().union(parts[0], *parts[most:]), *parts[1:most]]
    members = sorted(map(sorted, parts))
    return [tuple(graph.ops[index].name for index in part) for part in members]


def random_costs(
    rng: random.Random,
    graph: OpGraph,
    devices: Sequence[str],
    most_units: int = 12,
    forbidden: float = 0.15,
) -> CostModel:
    """Return costs in whole nanoseconds; some units are not supported everywhere."""

    def us(most: int) -> float:
        return rng.randint(0, most) / 1000.0

    def column(most: int) -> tuple[float, ...]:
        return tuple(us(most) for _ in devices)

    units = []
    for ops in random_units(rng, graph, most_units):
        times = [None if rng.random() < forbidden else us(60_000) for _ in devices]
        if all(time is None for time in times):
            times[rng.randrange(len(devices))] = us(60_000)
        units.append(Unit(ops, tuple(times)))
    scale = rng.choice([0, 2_000, 20_000])
    per_byte = rng.choice([0.0, 0.001, 0.004])
    inner = rng.choice([0, 3_000])
    placeable = set(graph.placeable)
    pairs = [
        (graph.ops[producer].name, op.name)
        for op in graph
        for producer, _ in op.inputs
        if producer in placeable and op.index in placeable and rng.random() < 0.4
    ]
    makers = [op for op in graph if op.outputs and rng.random() < 0.2]
    keepers = random_layouts(rng, graph)
    return CostModel(
        graph=graph,
        devices=tuple(devices),
        units=tuple(units),
        boundaries={
            (source, target): BoundaryCost(us(scale if source != target else inner), per_byte)
            for source in devices
            for target in devices
        },
        subgraph_us={device: us(rng.choice([0, 5_000, 30_000])) for device in devices},
        constant_us=us(50_000),
        lost_fusion=tuple(LostFusion(a, b, column(10_000), column(10_000)) for a, b in pairs),
        reorders=tuple(
            Reorder(op.name, rng.randrange(len(op.outputs)), column(4_000), column(4_000))
            for op in makers
            if op.name not in keepers
        )
        + tuple(
            Reorder(name, 0, column(9_000), column(4_000), kept) for name, kept in keepers.items()
        ),
        spread_us=us(rng.choice([0, 40_000])),
    )


def random_layouts(rng: random.Random, graph: OpGraph) -> dict[str, tuple[str, ...]]:
    """Return some ops that keep the layout of ops above them, and those."""
    placeable = set(graph.placeable)
    keeps: dict[str, tuple[str, ...]] = {}
    for op in graph:
        above = [
            graph.ops[producer].name
            for producer, _ in op.inputs
            if producer in placeable and len(graph.ops[producer].outputs) == 1
        ]
        if op.index in placeable and len(op.outputs) == 1 and above and rng.random() < 0.3:
            keeps[op.name] = tuple(dict.fromkeys(rng.sample(above, rng.randint(1, len(above)))))
    return keeps


def random_case(
    seed: int,
    most_units: int = 12,
    n_devices: int | None = None,
    n_ops: int | None = None,
    *,
    state: bool = False,
) -> CostModel:
    """Return a random cost model on a random graph."""
    rng = random.Random(seed)
    devices = ["A", "B", "C"][: n_devices or rng.choice([2, 3])]
    graph = random_graph(rng, n_ops or rng.randint(2, 18), state=state)
    return random_costs(rng, graph, devices, most_units)


def affinity_of(costs: CostModel, choice: Sequence[int]) -> Affinity:
    """Return the affinity that puts each unit on the device with the chosen number."""
    device_of = {op.name: costs.devices[choice[0]] for op in costs.graph}
    for unit, number in zip(costs.units, choice, strict=True):
        device_of.update(dict.fromkeys(unit.ops, costs.devices[number]))
    return Affinity.from_graph(costs.graph, device_of)


def scaled(costs: CostModel, factor: float) -> CostModel:
    """Return a cost model in which everything but the constant costs ``factor`` times as much."""

    def times(part: Any) -> Any:
        if isinstance(part, float):
            return part * factor
        if isinstance(part, tuple):
            return tuple(map(times, part))
        if isinstance(part, dict):
            return {key: times(value) for key, value in part.items()}
        if isinstance(part, CostRow):
            return type(part)(*map(times, structs.astuple(part)))
        return part

    names = ("units", "boundaries", "subgraph_us", "lost_fusion", "reorders", "spread_us")
    return dataclasses.replace(costs, **{name: times(getattr(costs, name)) for name in names})


def layered_costs(
    graph: OpGraph, devices: Sequence[str], seed: int, scenario: Scenario | None = None
) -> CostModel:
    """Return costs of a language model by layer, with a scenario those of both phases.

    A device that is good at one phase may be bad at the other.
    """
    rng = np.random.default_rng(seed)
    pairs = list(itertools.product(devices, repeat=2))

    def phase(slowest_us: float) -> CostModel:
        return CostModel(
            graph=graph,
            devices=tuple(devices),
            units=tuple(
                Unit(ops, tuple(rng.uniform(0.1, slowest_us, len(devices)).round(3).tolist()))
                for ops in block_units(graph)
            ),
            boundaries={p: BoundaryCost(float(rng.uniform(0, 9)), 0.0005) for p in pairs},
            subgraph_us={d: float(rng.uniform(0, 9)) for d in devices},
            constant_us=10.0,
            spread_us=4.0,
        )

    step, first = phase(100.0), phase(400.0)
    return step if scenario is None else replace(step, scenario=scenario, prefill=first)


def by_layers(costs: CostModel, devices: Sequence[str]) -> Affinity:
    """Place each block; the ops before and after go with the first and the last one."""
    return affinity_of(costs, [costs.devices.index(d) for d in (devices[0], *devices, devices[-1])])


def runs(devices: Sequence[str], n_blocks: int) -> list[tuple[str, ...]]:
    """Return all ways to give each of some devices one run of blocks, or none."""
    every = itertools.product(devices, repeat=n_blocks)
    return [way for way in every if len([*itertools.groupby(way)]) == len(set(way))]


def any_choice(costs: CostModel, rng: random.Random) -> tuple[int, ...]:
    """Return a random choice that the devices support."""
    return tuple(
        rng.choice([n for n, time in enumerate(unit.time_us) if time is not None])
        for unit in costs.units
    )
