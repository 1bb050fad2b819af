"""OpenVINO's performance counters, joined to subgraphs, ops and boundaries.

Counters of a CPU device are running means since the compile. They include layout reorders at a
boundary, but not the hand-over between subgraphs. Fused ops have no time of their own: it belongs
to their group.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from hetero_lab.errors import MeasurementError
from hetero_lab.model.opgraph import OpGraph, grouped
from hetero_lab.placement.partition import Partition

_MICROSECOND = timedelta(microseconds=1)
_SUBGRAPH = re.compile(r"^subgraph(\d+): (.*)$", re.DOTALL)
_PRECISION = re.compile(r"_(f64|f32|f16|bf16|[iu]\d+|boolean|FP32|FP16|BF16|[IU]8)$")
_PART = re.compile(r"\.out\d+$")
_MADE_UP = re.compile(r"^(Parameter|Result)_(\d+)$")


@dataclass(frozen=True, slots=True)
class Counter:
    """One row of OpenVINO's profiling info, joined to the model.

    ``kind`` is ``op``, ``fused`` (its time is in the group's leader), ``reorder`` (a layout or
    precision conversion), ``port`` (an input or output) or ``other``. ``op`` is the op of the
    model, ``fused_ops`` are the ops that run inside this node, and ``tensor`` is the boundary or
    model input or output that a reorder converts.
    """

    subgraph: int
    device: str
    node_name: str
    node_type: str
    exec_type: str
    precision: str
    status: str
    real_time_us: float
    cpu_time_us: float
    kind: str = "other"
    op: str = ""
    fused_ops: tuple[str, ...] = ()
    tensor: str = ""


def read_counters(
    profiling_info: Iterable[object], partition: Partition, graph: OpGraph
) -> tuple[Counter, ...]:
    """Join profiling info to the compiled partition; MeasurementError if no node was executed."""
    hetero = partition.n_subgraphs > 1 or bool(partition.wiring)
    rows = [raw_counter(info, hetero=hetero) for info in profiling_info]
    if not any(row.status == "EXECUTED" for row in rows):
        raise MeasurementError(
            "The runtime returned no counters: every node is NOT_RUN. The model must be compiled "
            "with PERF_COUNT, its devices must support it, and some node must take at least 1 µs."
        )
    where = partition.subgraph_of
    joined: list[Counter] = []
    for subgraph in partition.subgraphs:
        here = (row for row in rows if row.subgraph == subgraph.index)
        inside = [replace(row, device=subgraph.device) for row in here]
        ports = _ports(inside, partition, subgraph.index, graph)
        nodes = [_with_kind(row, where, ports) for row in inside]
        joined += _adopt(_lead_by_kernels(nodes, subgraph.ops, graph), subgraph.ops, graph)
    return _group(joined, partition, graph)


def executed_ops_us(counters: Sequence[Counter]) -> dict[str, float]:
    """Return op → time of the node that ran it, in µs; 0 for ops inside another's node."""
    ran = [counter for counter in counters if counter.kind == "op"]
    times = dict.fromkeys((op for c in ran for op in (c.op, *c.fused_ops)), 0.0)
    for counter in ran:
        times[counter.op] += counter.real_time_us
    return times


def executed_precisions(counters: Sequence[Counter]) -> dict[str, str]:
    """Return op → precision of the node that ran it; ops without a counter are left out."""
    precisions: dict[str, str] = {}
    for counter in counters:
        if counter.kind == "op" and counter.precision:
            for op in (counter.op, *counter.fused_ops):
                precisions.setdefault(op, counter.precision)
    return precisions


def leaders(counters: Iterable[Counter]) -> dict[str, str]:
    """Return op → the op that names the node that ran it."""
    return {op: c.op for c in counters if c.kind == "op" for op in (c.op, *c.fused_ops)}


def total_us(counters: Iterable[Counter], *kinds: str) -> float:
    return float(sum(c.real_time_us for c in counters if c.kind in kinds))


def reorders_us(counters: Iterable[Counter], partition: Partition) -> dict[str, float]:
    """Return the tensor of each boundary → time of its reorders on both sides, in µs."""
    took: defaultdict[tuple[str, int], float] = defaultdict(float)
    for counter in counters:
        if counter.kind == "reorder":
            took[counter.tensor, counter.subgraph] += counter.real_time_us
    return {
        b.tensor: sum(took[b.tensor, subgraph] for subgraph in {b.source, *b.targets})
        for b in partition.boundaries
    }


def raw_counter(info: Any, *, hetero: bool) -> Counter:
    """Read one row of profiling info without its model: no device, op or tensor.

    ``info`` has the attributes of ``openvino.ProfilingInfo``. If HETERO ran the model, names begin
    with ``subgraphN: ``.
    """
    name = str(info.node_name)
    match = _SUBGRAPH.match(name) if hetero else None
    exec_type = str(info.exec_type)
    precision = _PRECISION.search(exec_type)
    return Counter(
        subgraph=int(match[1]) if match else 0,
        device="",
        node_name=match[2] if match else name,
        node_type=str(info.node_type),
        exec_type=exec_type,
        precision=precision[1].lower().replace("fp", "f") if precision else "",
        status=str(info.status).rpartition(".")[2],
        # Not total_seconds(), which in pandas cuts off nanoseconds.
        real_time_us=info.real_time / _MICROSECOND,
        cpu_time_us=info.cpu_time / _MICROSECOND,
    )


def _adopt(rows: list[Counter], ops: Sequence[str], graph: OpGraph) -> list[Counter]:
    """Find the ops of nodes that the runtime renamed, as when it folds a normalisation.

    Nodes are listed as they run, and ops in topological order. So if as many nodes of a type have
    unknown names as ops of that type have no node, they belong together in order.
    """
    ops_with_node = {row.op for row in rows if row.kind == "op"}
    nodes = grouped(
        (_kernel(row.node_type), index)
        for index, row in enumerate(rows)
        if row.kind == "other" and row.status == "EXECUTED"
    )
    hidden: dict[str, list[str]] = {kernel: [] for kernel in nodes}
    for name in ops:
        kernel = _kernel(graph.op(name).type)
        if kernel in hidden and name not in ops_with_node:
            hidden[kernel].append(name)
    joined = list(rows)
    for kernel, indices in nodes.items():
        if len(indices) == len(hidden[kernel]):
            for index, name in zip(indices, hidden[kernel], strict=True):
                joined[index] = replace(rows[index], kind="op", op=name)
    return joined


def _lead_by_kernels(rows: list[Counter], ops: Sequence[str], graph: OpGraph) -> list[Counter]:
    """Assign nodes that are named after a fused op to the op whose kernel they run.

    A fully connected layer has its bias's name, though Gemm's alpha may be between the two.
    """
    hidden = set(ops) - {row.op for row in rows}
    joined = list(rows)
    for index, row in enumerate(rows):
        if row.kind != "op":
            continue
        kernel = _kernel(row.node_type)
        if _kernel(graph.op(row.op).type) != kernel:
            runs = _nearest_above(row.op, kernel, hidden, graph)
            if len(runs) == 1:
                hidden -= runs
                joined[index] = replace(row, op=runs.pop())
    return joined


def _nearest_above(name: str, kernel: str, hidden: set[str], graph: OpGraph) -> set[str]:
    """Return the ops with this kernel among those above an op that have no node of their own."""
    nearest, visited, queue = set[str](), {name}, [name]
    while queue:
        for producer, _ in graph.op(queue.pop()).inputs:
            op = graph.ops[producer]
            if op.name in hidden and op.name not in visited:
                visited.add(op.name)
                (nearest.add if _kernel(op.type) == kernel else queue.append)(op.name)
    return nearest


def _kernel(op_type: str) -> str:
    return _SAME_KERNEL.get(op_type, op_type)


_SAME_KERNEL = {
    "GroupConvolution": "Convolution",
    "GroupConvolutionBackpropData": "ConvolutionBackpropData",
    "Deconvolution": "ConvolutionBackpropData",
    "FullyConnected": "MatMul",
    "FullyConnectedCompressed": "MatMul",
}


def _ports(
    rows: Sequence[Counter], partition: Partition, subgraph: int, graph: OpGraph
) -> dict[str, str]:
    """Map the names of a submodel's Parameters and Results to the tensors that they stand for.

    The runtime's own names for boundaries have numbers that increase in the order of the wiring.
    """
    tensor_of = {graph.ops[i].name: graph.ops[i].name for i in (*graph.parameters, *graph.results)}
    if not partition.wiring:
        return tensor_of
    numbered = {
        (match[1], int(match[2]), row.node_name)
        for row in rows
        if row.node_name not in tensor_of and (match := _MADE_UP.match(row.node_name))
    }
    wiring = partition.wiring[subgraph]
    for kind, entries in (("Parameter", wiring.inputs), ("Result", wiring.outputs)):
        names = [name for of_kind, _, name in sorted(numbered) if of_kind == kind]
        tensors = [entry for entry in entries if entry[0] == "tensor"]
        if len(names) == len(tensors):
            for name, (_, op, port) in zip(names, tensors, strict=True):
                outputs = graph.op(str(op)).outputs
                tensor_of[name] = str(op) if len(outputs) == 1 else f"{op}:{port}"
    return tensor_of


def _with_kind(row: Counter, where: dict[str, int], ports: dict[str, str]) -> Counter:
    name = row.node_name
    if name in ports:
        # On GPU, the row of an output is the kernel that reorders or copies it.
        moved = row.status == "EXECUTED" and row.real_time_us > 0
        return replace(row, kind="reorder" if moved else "port", tensor=ports[name])
    op = _op_of(row, where)
    if op is not None:
        if name.startswith("reorder_") and "reorder" in row.exec_type:
            # GPU put a reorder in front of the op and reports only that: the op's time is unknown.
            return replace(row, kind="reorder", op=op)
        return replace(row, kind="op" if _ran_itself(row) else "fused", op=op)
    if row.node_type in ("Reorder", "Convert") or "reorder" in row.exec_type.lower():
        # Longest name first, since "x_1" begins with "x_" too.
        for port, tensor in sorted(ports.items(), key=lambda item: -len(item[0])):
            if name.startswith((f"{port}_", f"reorder_{port}")) or name.endswith(f"_{port}"):
                return replace(row, kind="reorder", tensor=tensor)
        return replace(row, kind="reorder")
    if row.node_type in ("Parameter", "Result", "Input", "Output"):
        return replace(row, kind="port")
    return row


def _ran_itself(row: Counter) -> bool:
    """Return whether a node ran as a kernel of its own, even in less than a microsecond.

    CPU rounds its mean down to whole microseconds and reports NOT_RUN for 0, but only a node that
    is part of another lacks a kernel type.
    """
    if row.status != "NOT_RUN":
        return row.status == "EXECUTED"
    return row.exec_type not in ("", "undef")


def _op_of(row: Counter, where: dict[str, int]) -> str | None:
    """Find the op that a node runs, in the same subgraph.

    GPU names helpers ``type:op`` and parts of an op ``op.out0``; names of ops may look like that.
    """
    behind = row.node_name.partition(":")[2]
    for name in (row.node_name, behind, *(_PART.sub("", n) for n in (row.node_name, behind))):
        if name and where.get(name) == row.subgraph:
            return name
    return None


def _group(rows: Sequence[Counter], partition: Partition, graph: OpGraph) -> tuple[Counter, ...]:
    """Give each executed node the ops that have no time of their own.

    An op that was not executed belongs to the nearest executed op above it in its subgraph
    (an activation fuses into its convolution), else to the nearest one below.
    """
    leaders = {row.op for row in rows if row.kind == "op"}
    # These have a node whose time is not reported, and so have the ops fused into it.
    hidden = {row.op for row in rows if row.kind == "reorder"} - leaders - {""}
    leader_of = {op: op for s in partition.subgraphs for op in s.ops if op in leaders}

    def alone(names: Iterable[str]) -> Iterator[tuple[str, int]]:
        for name in names:
            if name not in leader_of and name not in hidden:
                yield name, graph.index_of[name]

    for subgraph in partition.subgraphs:
        inside = set(subgraph.ops)
        for name, index in alone(subgraph.ops):
            above = {graph.ops[p].name for p, _ in graph.ops[index].inputs}
            if above & hidden:
                hidden.add(name)
            elif near := [leader_of[op] for op in above & inside if op in leader_of]:
                leader_of[name] = max(near, key=graph.index_of.__getitem__)
        for name, index in alone(reversed(subgraph.ops)):
            below = {graph.ops[use.index].name for use in graph.consumers[index]}
            if near := [leader_of[op] for op in below & inside if op in leader_of]:
                leader_of[name] = min(near, key=graph.index_of.__getitem__)
    fused = grouped((leader, name) for name, leader in leader_of.items() if name != leader)
    joined: list[Counter] = []
    for row in rows:
        if row.kind == "op" and row.op in leaders:
            leaders.remove(row.op)
            if row.precision in ("i8", "u8") and _reads_booleans(graph, row.op):
                row = replace(row, precision="boolean")  # a byte to the runtime, not int8
            row = replace(row, fused_ops=tuple(fused.get(row.op, ())))
        joined.append(row)
    return tuple(joined)


def _reads_booleans(graph: OpGraph, name: str) -> bool:
    inputs = graph.op(name).inputs
    return {graph.ops[producer].outputs[port].element_type for producer, port in inputs} == {
        "boolean"
    }
