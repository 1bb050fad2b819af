"""The subgraphs and boundaries that HETERO makes of a model and an affinity.

The rule is that of OpenVINO's HETERO plugin (``SubgraphCollector``, 2026.4; Apache-2.0, see
NOTICE), written anew: neighbours of equal affinity merge; while some subgraph depends on itself
through another one, it is split at the inputs that close the cycle; what is still cyclic is
split node by node inside the strongly connected components. Constants are copied, never cut,
but one constant that two parts of a device share joins them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from hetero_lab.model.opgraph import CONSTANT, PARAMETER, RESULT, Consumer, OpGraph
from hetero_lab.placement.affinity import Affinity

if TYPE_CHECKING:
    import pandas as pd

_GRAPH_INPUT = -1  # the port under which a Parameter or Constant starts a subgraph by itself
_Boundary = tuple[int, int]  # (op, input port) that starts a subgraph


@dataclass(frozen=True, slots=True)
class Subgraph:
    """Ops that HETERO compiles as one submodel, in execution order ``index``.

    ``ops`` are names in topological order, without constants, parameters and results.
    """

    index: int
    device: str
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Boundary:
    """A tensor that crosses from subgraph ``source`` into the subgraphs ``targets``.

    ``tensor`` is ``op`` with ``:port`` where the op has several outputs. ``n_bytes`` is ``None``
    where the shape is not known.
    """

    tensor: str
    op: str
    port: int
    source: int
    targets: tuple[int, ...]
    n_bytes: int | None


@dataclass(frozen=True, slots=True)
class Wiring:
    """What enters and leaves a submodel, in its own order of inputs and outputs.

    An entry is ``("model", index)`` of the whole model's inputs or outputs, or
    ``("tensor", op, port)`` of a boundary.
    """

    inputs: tuple[tuple[str | int, ...], ...]
    outputs: tuple[tuple[str | int, ...], ...]


@dataclass(frozen=True)
class Partition:
    """The subgraphs in execution order and the boundaries between them.

    ``observed`` tells whether this is what the runtime compiled or only predicted. ``home`` is
    the subgraph of every node of the graph in its order, -1 for constants that are copied to
    their users; it is empty where that is not known.
    """

    subgraphs: tuple[Subgraph, ...]
    boundaries: tuple[Boundary, ...]
    wiring: tuple[Wiring, ...] = ()
    observed: bool = False
    home: tuple[int, ...] = ()

    @property
    def n_subgraphs(self) -> int:
        """Number of subgraphs."""
        return len(self.subgraphs)

    @property
    def boundary_bytes(self) -> int:
        """Bytes of all boundary tensors whose size is known, each tensor once."""
        return sum(boundary.n_bytes or 0 for boundary in self.boundaries)

    @property
    def n_crossings(self) -> int:
        """Number of edges between subgraphs: each boundary once per receiving subgraph."""
        return sum(len(boundary.targets) for boundary in self.boundaries)

    @property
    def subgraph_of(self) -> dict[str, int]:
        """Op name → index of its subgraph."""
        return {op: subgraph.index for subgraph in self.subgraphs for op in subgraph.ops}

    def __repr__(self) -> str:
        how = "observed" if self.observed else "predicted"
        return (
            f"Partition({self.n_subgraphs} subgraphs, {len(self.boundaries)} boundaries, "
            f"{self.boundary_bytes} bytes, {how})"
        )

    def to_frame(self) -> pd.DataFrame:
        """Return one row a subgraph: ``subgraph``, ``device``, ``n_ops``, ``ops``."""
        import pandas as pd

        rows = [(s.index, s.device, len(s.ops), "\n".join(s.ops)) for s in self.subgraphs]
        return pd.DataFrame(rows, columns=["subgraph", "device", "n_ops", "ops"])

    def _repr_html_(self) -> str:
        from hetero_lab.tables import html_table

        return html_table(self.to_frame(), caption=repr(self))


def predict(graph: OpGraph, affinity: Affinity) -> Partition:
    """Predict the partition without compiling.

    Parameters
    ----------
    graph
        The model's graph.
    affinity
        The device of every node of it.

    Raises
    ------
    AffinityError
        The affinity is of another model.
    """
    affinity.check_model(graph)
    devices = [affinity[op.name] for op in graph.ops]
    # A Result is where its producer is, whatever its own affinity says.
    for op in graph.ops:
        if op.type == RESULT:
            devices[op.index] = devices[op.inputs[0][0]]
    boundaries = _first_boundaries(graph, devices)
    ids = _subgraph_ids(graph, boundaries)
    if _cyclic_subgraphs(graph, boundaries, ids).any():
        ids = _split_cycles(graph, boundaries, ids)
        ids = _split_components(graph, boundaries, ids)
    return _collect(graph, devices, boundaries, ids)


def one_subgraph(predicted: Partition, device: str) -> Partition:
    """Return what a compile on one device makes of a model, without HETERO in between."""
    ops = [op for subgraph in predicted.subgraphs for op in subgraph.ops]
    return Partition((Subgraph(0, device, tuple(ops)),), ())


def _first_boundaries(graph: OpGraph, devices: Sequence[str]) -> set[_Boundary]:
    boundaries: set[_Boundary] = set()
    for op in graph.ops:
        if op.is_graph_input:
            boundaries.add((op.index, _GRAPH_INPUT))
        elif op.type != RESULT:
            for port, (producer, _) in enumerate(op.inputs):
                if devices[producer] != devices[op.index]:
                    boundaries.add((op.index, port))
    return boundaries


def _subgraph_ids(graph: OpGraph, boundaries: set[_Boundary]) -> np.ndarray:
    """Join nodes over every input that is no boundary; return a dense id for each node."""
    parent = list(range(len(graph.ops)))

    def find(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for op in graph.ops:
        for port, (producer, _) in enumerate(op.inputs):
            if (op.index, port) not in boundaries:
                first, second = find(op.index), find(producer)
                if first != second:
                    parent[max(first, second)] = min(first, second)
    roots = np.fromiter((find(i) for i in range(len(parent))), dtype=np.int64, count=len(parent))
    return np.unique(roots, return_inverse=True)[1]


def _edges(
    graph: OpGraph, boundaries: set[_Boundary], ids: np.ndarray
) -> Iterator[tuple[int, int]]:
    for index, port in boundaries:
        if port != _GRAPH_INPUT:
            producer = int(ids[graph.ops[index].inputs[port][0]])
            owner = int(ids[index])
            if producer != owner:
                yield producer, owner


def _cyclic_subgraphs(graph: OpGraph, boundaries: set[_Boundary], ids: np.ndarray) -> np.ndarray:
    """Return for each subgraph whether it lies in a strongly connected component of several."""
    n = int(ids.max()) + 1 if len(ids) else 0
    edges = np.array(list(_edges(graph, boundaries, ids)), dtype=np.int64).reshape(-1, 2)
    links = coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(n, n))
    count, labels = connected_components(links.tocsr(), directed=True, connection="strong")
    return np.bincount(labels, minlength=count)[labels] > 1


def _split_cycles(graph: OpGraph, boundaries: set[_Boundary], ids: np.ndarray) -> np.ndarray:
    """Turn inputs that close a cycle into boundaries, until none is found."""
    while True:
        before = len(boundaries)
        boundaries |= _closing_inputs(graph, boundaries, ids)
        if len(boundaries) == before:
            return ids
        ids = _subgraph_ids(graph, boundaries)


def _closing_inputs(graph: OpGraph, boundaries: set[_Boundary], ids: np.ndarray) -> set[_Boundary]:
    """Find the inputs at which a subgraph that depends on itself has to be split.

    Sets of boundaries are Python integers used as bit sets. Only boundaries that touch a
    subgraph which may depend on itself get a bit: others cannot change the answer.
    """
    ops = graph.ops
    suspicious = _cyclic_subgraphs(graph, boundaries, ids)
    for index, port in boundaries:
        if port != _GRAPH_INPUT and ids[ops[index].inputs[port][0]] == ids[index]:
            suspicious[ids[index]] = True
    bit_of: dict[_Boundary, int] = {}
    owned: dict[int, int] = {}  # subgraph → its boundaries
    produced: dict[int, int] = {}  # subgraph → boundaries that it feeds
    reentry: dict[int, int] = {}  # subgraph → its boundaries fed by another subgraph
    graph_inputs = 0
    from_graph_inputs = 0
    numbered: list[_Boundary] = []
    for index, port in sorted(boundaries):
        owner = int(ids[index])
        producer_op = index if port == _GRAPH_INPUT else ops[index].inputs[port][0]
        producer = int(ids[producer_op])
        if not (suspicious[owner] or suspicious[producer]):
            continue
        bit = 1 << len(numbered)
        bit_of[index, port] = bit
        numbered.append((index, port))
        owned[owner] = owned.get(owner, 0) | bit
        if port == _GRAPH_INPUT:
            graph_inputs |= bit
        else:
            produced[producer] = produced.get(producer, 0) | bit
            if producer != owner:
                reentry[owner] = reentry.get(owner, 0) | bit
            if ops[producer_op].is_graph_input:
                from_graph_inputs |= bit
    reached = [0] * len(ops)
    for op in ops:
        bits = bit_of.get((op.index, _GRAPH_INPUT), 0)
        for port, (producer, _) in enumerate(op.inputs):
            bits |= bit_of.get((op.index, port), 0) | reached[producer]
        reached[op.index] = bits
    own = [reached[i] & owned.get(int(ids[i]), 0) for i in range(len(ops))]
    cyclic = [reached[i] & produced.get(int(ids[i]), 0) for i in range(len(ops))]
    single = _single_use(graph)
    found: set[_Boundary] = set()
    for op in ops:
        if not cyclic[op.index] or not op.inputs:
            continue
        closing = 0
        for bit in _bits(cyclic[op.index]):
            index, port = numbered[bit]
            closing |= own[ops[index].inputs[port][0]]
        for bit in _bits(own[op.index] & reentry.get(int(ids[op.index]), 0)):
            closing |= own[numbered[bit][0]]
        for port, (producer, source_port) in enumerate(op.inputs):
            if cyclic[op.index] & cyclic[producer] or not closing & own[producer]:
                continue
            leaf = (
                (producer, source_port) in single
                and not ops[producer].is_graph_input
                and not cyclic[producer]
                and not own[producer] & ~(graph_inputs | from_graph_inputs)
            )
            if not leaf:
                found.add((op.index, port))
    return found


def _split_components(graph: OpGraph, boundaries: set[_Boundary], ids: np.ndarray) -> np.ndarray:
    """Cut single nodes out of what is still cyclic, one a round, until nothing is."""
    users = [sum(graph.ops[u.index].type != RESULT for u in use) for use in graph.consumers]

    def is_leaf(index: int) -> bool:
        op = graph.ops[index]
        return (
            not op.is_graph_input
            and users[index] == 1
            and all(graph.ops[producer].is_graph_input for producer, _ in op.inputs)
        )

    while True:
        cyclic = _cyclic_subgraphs(graph, boundaries, ids)
        if not cyclic.any():
            return ids
        best: tuple[tuple[int, ...], list[_Boundary]] | None = None
        for op in graph.ops:
            if not cyclic[ids[op.index]]:
                continue
            inside: list[_Boundary] = []
            reenters = shared = trivial = False
            for port, (producer, _) in enumerate(op.inputs):
                if (op.index, port) in boundaries:
                    other = ids[producer]
                    reenters |= bool(other != ids[op.index] and cyclic[other])
                elif ids[producer] == ids[op.index]:
                    inside.append((op.index, port))
                    shared |= users[producer] > 1
                    trivial |= is_leaf(producer)
            if inside:
                linear = len(inside) == 1 and users[op.index] <= 1
                rank = (not reenters, not shared, trivial, linear, len(inside), op.index)
                if best is None or rank < best[0]:
                    best = (rank, inside)
        if best is None:  # only a cyclic model could lead here
            return ids
        boundaries.update(best[1])
        ids = _subgraph_ids(graph, boundaries)


def _collect(
    graph: OpGraph, devices: Sequence[str], boundaries: set[_Boundary], ids: np.ndarray
) -> Partition:
    """Order the subgraphs as they run and list what crosses between them."""
    crossing: dict[tuple[int, int], list[int]] = {}  # tensor → receiving subgraphs
    for op in graph.ops:
        for port, (producer, source_port) in enumerate(op.inputs):
            if (op.index, port) in boundaries and graph.ops[producer].type != CONSTANT:
                receivers = crossing.setdefault((producer, source_port), [])
                for use in _other_users(graph, ids, producer, source_port):
                    if int(ids[use.index]) not in receivers:
                        receivers.append(int(ids[use.index]))
    crossing = {tensor: receivers for tensor, receivers in crossing.items() if receivers}
    inputs: dict[int, list[tuple[str | int, ...]]] = {}
    outputs: dict[int, list[tuple[str | int, ...]]] = {}
    for number, index in enumerate(graph.parameters):
        inputs.setdefault(int(ids[index]), []).append(("model", number))
    for number, index in enumerate(graph.results):
        outputs.setdefault(int(ids[index]), []).append(("model", number))
    for (producer, port), receivers in crossing.items():
        entry = ("tensor", graph.ops[producer].name, port)
        outputs.setdefault(int(ids[producer]), []).append(entry)
        for receiver in receivers:
            inputs.setdefault(receiver, []).append(entry)
    members: dict[int, list[int]] = {}
    sinks: set[int] = set()
    for op in graph.ops:
        members.setdefault(int(ids[op.index]), []).append(op.index)
        if op.type == "Assign":
            sinks.add(int(ids[op.index]))
    # Only what has inputs, outputs or sinks of its own becomes a submodel.
    real = [s for s in members if s in inputs or s in outputs or s in sinks]
    order = _execution_order(real, _feeds(crossing, ids), members)
    position = {subgraph: index for index, subgraph in enumerate(order)}
    placeable = set(graph.placeable)
    subgraphs = tuple(
        Subgraph(
            index=position[s],
            device=_device(graph, devices, members[s]),
            ops=tuple(graph.ops[i].name for i in members[s] if i in placeable),
        )
        for s in order
    )
    crossings = tuple(
        Boundary(
            tensor=_tensor_name(graph, producer, port),
            op=graph.ops[producer].name,
            port=port,
            source=position[int(ids[producer])],
            targets=tuple(sorted(position[r] for r in receivers)),
            n_bytes=graph.ops[producer].outputs[port].n_bytes,
        )
        for (producer, port), receivers in crossing.items()
    )
    wiring = tuple(Wiring(tuple(inputs.get(s, ())), tuple(outputs.get(s, ()))) for s in order)
    home = tuple(position.get(int(subgraph), -1) for subgraph in ids)
    return Partition(subgraphs, crossings, wiring, home=home)


def _other_users(
    graph: OpGraph, ids: np.ndarray, producer: int, source_port: int
) -> Iterator[Consumer]:
    for use in graph.consumers[producer]:
        if use.source_port == source_port and ids[use.index] != ids[producer]:
            yield use


def _feeds(crossing: dict[tuple[int, int], list[int]], ids: np.ndarray) -> dict[int, set[int]]:
    feeds: dict[int, set[int]] = {}
    for (producer, _), receivers in crossing.items():
        feeds.setdefault(int(ids[producer]), set()).update(receivers)
    return feeds


def _execution_order(
    subgraphs: list[int], feeds: dict[int, set[int]], members: dict[int, list[int]]
) -> list[int]:
    """Order in waves, as the runtime does: first what needs nothing, then what needs only that."""
    waiting = dict.fromkeys(subgraphs, 0)
    for receivers in feeds.values():
        for receiver in receivers:
            waiting[receiver] += 1
    order: list[int] = []
    wave = sorted((s for s in subgraphs if not waiting[s]), key=lambda s: members[s][0])
    while wave:
        order += wave
        following: list[int] = []
        for subgraph in wave:
            for receiver in feeds.get(subgraph, ()):
                waiting[receiver] -= 1
                if not waiting[receiver]:
                    following.append(receiver)
        wave = sorted(following, key=lambda s: members[s][0])
    return order


def _device(graph: OpGraph, devices: Sequence[str], members: Sequence[int]) -> str:
    """Return a submodel's device; constants do not count, parameters only where nothing else is."""
    for kinds in ((CONSTANT, PARAMETER), (CONSTANT,), ()):
        for index in members:
            if graph.ops[index].type not in kinds:
                return devices[index]
    raise AssertionError("a subgraph has at least one node")


def _tensor_name(graph: OpGraph, producer: int, port: int) -> str:
    op = graph.ops[producer]
    return op.name if len(op.outputs) == 1 else f"{op.name}:{port}"


def _single_use(graph: OpGraph) -> set[tuple[int, int]]:
    counts: dict[tuple[int, int], int] = {}
    for index, uses in enumerate(graph.consumers):
        for use in uses:
            counts[index, use.source_port] = counts.get((index, use.source_port), 0) + 1
    return {tensor for tensor, count in counts.items() if count == 1}


def _bits(value: int) -> Iterator[int]:
    while value:
        low = value & -value
        yield low.bit_length() - 1
        value ^= low


def partition_to_json(partition: Partition) -> dict[str, Any]:
    """Return a partition as plain data."""
    return {
        "subgraphs": [[s.device, list(s.ops)] for s in partition.subgraphs],
        "boundaries": [
            [b.tensor, b.op, b.port, b.source, list(b.targets), b.n_bytes]
            for b in partition.boundaries
        ],
        "wiring": [
            [[list(e) for e in w.inputs], [list(e) for e in w.outputs]] for w in partition.wiring
        ],
        "observed": partition.observed,
    }


def partition_from_json(data: Mapping[str, Any]) -> Partition:
    """Build the partition that :func:`partition_to_json` described."""
    return Partition(
        tuple(
            Subgraph(index, str(device), tuple(map(str, ops)))
            for index, (device, ops) in enumerate(data["subgraphs"])
        ),
        tuple(
            Boundary(tensor, op, int(port), int(source), tuple(map(int, targets)), n_bytes)
            for tensor, op, port, source, targets, n_bytes in data["boundaries"]
        ),
        tuple(
            Wiring(tuple(tuple(e) for e in inputs), tuple(tuple(e) for e in outputs))
            for inputs, outputs in data["wiring"]
        ),
        bool(data["observed"]),
    )
