"""OpGraph: a frozen, pure picture of a model's ops and tensors.

Everything that reasons about placement (partition, lint, planners, views) works on this
picture; only taking it needs the runtime.
"""

from __future__ import annotations

import hashlib
import math
import threading
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import msgspec
import numpy as np

if TYPE_CHECKING:
    import openvino as ov

PARAMETER, CONSTANT, RESULT = "Parameter", "Constant", "Result"
NOT_OPS = frozenset({PARAMETER, CONSTANT, RESULT})  # nodes whose device is never chosen
RANDOM = frozenset({"RandomUniform", "Multinomial", "RandomPoisson"})
NOT_CONSTANT_SOURCES = RANDOM | {"ReadValue"}

CONVOLUTIONS = frozenset(
    ["Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData"]
)

_SAMPLED = 256  # values of each constant that tell whether a model was changed
_lock = threading.Lock()
_graphs: weakref.WeakKeyDictionary[ov.Model, tuple[str, OpGraph]] = weakref.WeakKeyDictionary()

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    """One output of an op.

    ``shape`` is ``None`` if a dimension is unknown, ``n_bytes`` then too, and for strings.
    """

    shape: tuple[int, ...] | None
    element_type: str
    n_bytes: Annotated[int, msgspec.Meta(ge=0, lt=1 << 50)] | None
    name: str


@dataclass(frozen=True, slots=True)
class Op:
    """One node of the model, with ``inputs`` as pairs (index of the producer, its output)."""

    index: int
    name: str
    type: str
    inputs: tuple[tuple[int, int], ...]
    outputs: tuple[Tensor, ...]
    variable: str | None = None
    # The models inside an If, Loop or TensorIterator, which are not stored.
    bodies: tuple[OpGraph, ...] = field(default=(), compare=False, repr=False)

    def is_any_of(self, types: Collection[str]) -> bool:
        inner = (op for body in self.bodies for op in body)
        return self.type in types or any(op.is_any_of(types) for op in inner)

    @property
    def element_types(self) -> frozenset[str]:
        inner = (op.element_types for body in self.bodies for op in body)
        return frozenset(tensor.element_type for tensor in self.outputs).union(*inner)

    @property
    def is_graph_input(self) -> bool:
        return self.type in (PARAMETER, CONSTANT)

    def tensor_name(self, port: int) -> str:
        """Name an output: the op's name, with the port where it has several outputs."""
        return self.name if len(self.outputs) == 1 else f"{self.name}:{port}"


@dataclass(frozen=True, slots=True)
class Consumer:
    """One use of a tensor: input ``port`` of op ``index`` reads output ``source_port``."""

    index: int
    port: int
    source_port: int


@dataclass(frozen=True)
class OpGraph:
    """The ops of a model in topological order, as the runtime orders them.

    ``parameters`` and ``results`` are op indices in the model's own input and output order.
    """

    name: str
    ops: tuple[Op, ...]
    parameters: tuple[int, ...]
    results: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ops)

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops)

    def __repr__(self) -> str:
        return f"OpGraph({self.name!r}, {len(self.placeable)} ops, {len(self.ops)} nodes)"

    @cached_property
    def index_of(self) -> dict[str, int]:
        """Friendly name → op index."""
        return {op.name: op.index for op in self.ops}

    def op(self, name: str) -> Op:
        """Return the op of a friendly name."""
        return self.ops[self.index_of[name]]

    @cached_property
    def consumers(self) -> tuple[tuple[Consumer, ...], ...]:
        """The uses of each op's outputs, in topological order of the users."""
        uses: list[list[Consumer]] = [[] for _ in self.ops]
        for op in self.ops:
            for port, (producer, source_port) in enumerate(op.inputs):
                uses[producer].append(Consumer(op.index, port, source_port))
        return tuple(tuple(use) for use in uses)

    @cached_property
    def constant_side(self) -> frozenset[int]:
        """Constants, and ops that are computed from constants alone (decompressed weights)."""
        side: set[int] = set()
        for op in self.ops:
            computed = bool(op.inputs) and all(producer in side for producer, _ in op.inputs)
            if op.type == CONSTANT or (
                computed and op.type != RESULT and not op.is_any_of(NOT_CONSTANT_SOURCES)
            ):
                side.add(op.index)
        return frozenset(side)

    @cached_property
    def placeable(self) -> tuple[int, ...]:
        """Ops whose device can be chosen: all but parameters, results and the constant side."""
        return tuple(
            op.index
            for op in self.ops
            if op.type not in (PARAMETER, RESULT) and op.index not in self.constant_side
        )

    @cached_property
    def leader(self) -> tuple[int, ...]:
        """For each op, the op that decides its device.

        A placeable op decides for itself, except that all ops of a stateful path follow the first
        one. A result follows its producer, the constant side its first placeable user. A
        parameter follows its first placeable user as well, but never one whose stateful path
        comes after another user's: HETERO hands a parameter on through its subgraph, which would
        close a cycle. A node without such a user leads itself.
        """
        lead = list(range(len(self.ops)))
        placeable = set(self.placeable)
        for path in self.stateful_paths:
            for index in path:
                lead[index] = path[0]
        for op in reversed(self.ops):
            if op.type == RESULT or op.index in placeable:
                continue
            users = [use.index for use in self.consumers[op.index]]
            real = [user for user in users if self.ops[user].type != RESULT]
            # Users come later in the order, so their leader is already known.
            leaders = list(dict.fromkeys(lead[user] for user in real if lead[user] in placeable))
            if leaders:
                lead[op.index] = self._earliest(leaders) if op.type == PARAMETER else leaders[0]
        for index in self.results:
            lead[index] = lead[self.ops[index].inputs[0][0]]
        return tuple(lead)

    def _earliest(self, leaders: Sequence[int]) -> int:
        """Return the first leader whose ops do not come after those of another leader."""
        paths = {path[0]: path for path in self.stateful_paths}
        members = {leader: paths.get(leader, (leader,)) for leader in leaders}
        if len(leaders) == 1 or all(len(ops) == 1 for ops in members.values()):
            return leaders[0]  # they are in topological order
        after = {leader: self.reach(ops, forward=True) for leader, ops in members.items()}
        for leader in leaders:
            others = (ops for other, ops in after.items() if other != leader)
            if all(ops.isdisjoint(members[leader]) for ops in others):
                return leader
        return leaders[0]

    @cached_property
    def weight_bytes(self) -> int:
        """The bytes of all constants, as they are stored."""
        return sum(op.outputs[0].n_bytes or 0 for op in self.ops if op.type == CONSTANT)

    @cached_property
    def stateful_paths(self) -> tuple[tuple[int, ...], ...]:
        """Ops that must share one subgraph: each ReadValue, its Assign and all between them."""
        stateful = ((op.variable, op.index) for op in self.ops if op.variable is not None)
        paths: list[set[int]] = []
        for members in grouped(stateful).values():
            after = self.reach(members, forward=True)
            before = self.reach(members, forward=False)
            # Everything on a way between two ends of the state must run in the same inference of
            # one submodel, as HETERO has no boundary through which a state could be handed over.
            path = ((after & before) | set(members)) - self.constant_side
            # Paths that share an op share a subgraph, and so become one path.
            for other in [p for p in paths if p & path]:
                path |= other
                paths.remove(other)
            paths.append(path)
        return tuple(tuple(sorted(path)) for path in paths)

    @cached_property
    def _derivations(self) -> dict[Callable[[OpGraph], Any], Any]:
        return {}

    def derived(self, make: Callable[[OpGraph], T]) -> T:
        """Return ``make(self)``, a costly result that follows from the graph, made once."""
        if make not in self._derivations:
            self._derivations[make] = make(self)
        return self._derivations[make]

    def neighbours(self, index: int) -> list[int]:
        """Return the nodes that a node reads from, then those that read from it."""
        producers = [producer for producer, _ in self.ops[index].inputs]
        return producers + [use.index for use in self.consumers[index]]

    def reach(self, start: Iterable[int], *, forward: bool) -> set[int]:
        """Return some ops and all ops that come after them, or else before them."""
        queue = list(start)
        reached = set(queue)
        while queue:
            index = queue.pop()
            if forward:
                following = [use.index for use in self.consumers[index]]
            else:
                following = [producer for producer, _ in self.ops[index].inputs]
            for other in following:
                if other not in reached:
                    reached.add(other)
                    queue.append(other)
        return reached


def grouped(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """Return the values of each key in the order of the pairs, keys by their first pair."""
    groups: dict[K, list[T]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def related(graph: OpGraph, bits: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return, for each node, the bits of itself and of all nodes before it, and of all after it."""
    above, below = list(bits), list(bits)
    wires = [(producer, op.index) for op in graph for producer, _ in op.inputs]
    for producer, user in wires:
        above[user] |= above[producer]
    for producer, user in reversed(wires):
        below[producer] |= below[user]
    return above, below


def work_of(graph: OpGraph, op: Op) -> float:
    """Estimate the work of an op: multiply-adds of a product, otherwise bytes; at least 1."""
    inputs = [graph.ops[producer].outputs[port] for producer, port in op.inputs]
    shapes = [tensor.shape for tensor in (*inputs[:2], *op.outputs[:1])]
    if len(shapes) == 3 and None not in shapes:
        sizes = [float(math.prod(shape or ())) for shape in shapes]
        if op.type == "MatMul":
            # The product of [M, K] and [K, N] has (MK · KN · MN) ** ½ multiply-adds.
            return max(1.0, math.sqrt(math.prod(sizes)))
        weights = shapes[1] or (1,)
        if op.type in CONVOLUTIONS and len(weights) > 1:
            # Each output (of a transposed convolution: each input) meets every channel's kernel.
            n_outer = 2 if op.type.startswith("Group") else 1
            kernel = sizes[1] / math.prod(weights[:n_outer])
            size = sizes[0] if op.type.endswith("BackpropData") else sizes[2]
            return max(1.0, size * kernel)
    bytes_moved = [tensor.n_bytes or 0 for tensor in (*inputs, *op.outputs)]
    return max(1.0, float(sum(bytes_moved)))


def op_graph(model: ov.Model) -> OpGraph:
    """Take the frozen picture of a model with unique friendly names."""
    structure = fingerprint_of(model, sampled=True)
    with _lock:
        entry = _graphs.get(model)
    if entry is not None and entry[0] == structure:
        return entry[1]
    graph = _picture(model, lambda node: node.get_friendly_name())
    with _lock:
        _graphs[model] = (structure, graph)
    return graph


def _picture(model: ov.Model, name_of: Callable[[Any], str]) -> OpGraph:
    nodes = model.get_ordered_ops()
    index_of = {name_of(node): index for index, node in enumerate(nodes)}
    ops = tuple(
        Op(
            index,
            name_of(node),
            node.get_type_name(),
            tuple((index_of[name_of(s.get_node())], s.get_index()) for s in node.input_values()),
            tuple(map(_tensor, node.outputs())),
            _variable(node),
            # Friendly names are unique in a prepared model, but not inside its bodies.
            tuple(_picture(body, lambda inner: inner.get_name()) for body in bodies_of(node)),
        )
        for index, node in enumerate(nodes)
    )
    return OpGraph(
        name=model.get_friendly_name(),
        ops=ops,
        parameters=tuple(index_of[name_of(node)] for node in model.get_parameters()),
        results=tuple(index_of[name_of(node)] for node in model.get_results()),
    )


def _tensor(output: Any) -> Tensor:
    partial, element_type = output.get_partial_shape(), output.get_element_type()
    kind = element_type.get_type_name()
    shape = None if partial.is_dynamic else tuple(int(d) for d in partial.to_shape())
    n_bytes = None
    if shape is not None and kind not in ("string", "dynamic", "undefined"):
        n_bytes = -(-int(np.prod(shape, dtype=np.int64)) * element_type.bitwidth // 8)
    return Tensor(shape, kind, n_bytes, min(filter(None, output.get_names()), default=""))


def _variable(node: Any) -> str | None:
    if node.get_type_name() in ("ReadValue", "Assign", "ReadValueWithSubgraph"):
        return str(node.get_attributes().get("variable_id", node.get_friendly_name()))
    return None


def fingerprint_of(model: ov.Model, sampled: bool = False) -> str:
    """Hash structure, names and weights, without the names of parameters and results.

    A ``sampled`` hash tells whether a model was changed since it was marked. It is computed at
    every use of a model, so it covers these names too, but only a sample of each constant.
    """
    digest = hashlib.blake2b(digest_size=16)
    nodes = model.get_ordered_ops()
    index_of = {node.get_friendly_name(): index for index, node in enumerate(nodes)}
    for node in nodes:
        kind = node.get_type_name()
        name = node.get_friendly_name() if sampled or kind not in (PARAMETER, RESULT) else ""
        wires = [
            (index_of[s.get_node().get_friendly_name()], s.get_index()) for s in node.input_values()
        ]
        outputs = [(str(o.get_partial_shape()), str(o.get_element_type())) for o in node.outputs()]
        attributes = sorted((k, str(v)) for k, v in node.get_attributes().items())
        line = repr((kind, name, wires, outputs, attributes))
        digest.update(line.encode("utf-8", "surrogatepass"))
        if kind == CONSTANT and "string" not in str(node.get_element_type()):  # it has numbers
            values = np.ascontiguousarray(node.get_data()).reshape(-1)
            step = max(1, values.size // _SAMPLED) if sampled else 1
            digest.update(np.ascontiguousarray(values[::step]).view(np.uint8).data)
        for body in bodies_of(node):
            digest.update(fingerprint_of(body, sampled).encode())
    return digest.hexdigest()


def bodies_of(node: Any) -> list[ov.Model]:
    """Return the models inside an If, Loop or TensorIterator."""
    if node.get_type_name() == "If":
        return [node.get_function(0), node.get_function(1)]
    if hasattr(node, "get_function"):
        return [node.get_function()]
    return []


def graph_to_json(graph: OpGraph) -> dict[str, Any]:
    return {
        "name": graph.name,
        "ops": [
            [op.name, op.type, *msgspec.to_builtins((op.inputs, op.outputs)), op.variable]
            for op in graph
        ],
        "parameters": list(graph.parameters),
        "results": list(graph.results),
    }


_Wires: TypeAlias = tuple[tuple[int, int], ...]
_Rows: TypeAlias = list[tuple[str, str, _Wires, tuple[Tensor, ...], str | None]]


def graph_from_json(data: Mapping[str, Any]) -> OpGraph:
    """Build the graph that :func:`graph_to_json` described.

    KeyError, TypeError or ValueError for anything else, and for a graph that no model could have.
    """
    ops: list[Op] = []
    for index, row in enumerate(msgspec.convert(data["ops"], _Rows)):
        for producer, port in row[2]:
            if not (0 <= producer < index and 0 <= port < len(ops[producer].outputs)):
                raise ValueError(f"op {index} reads output {port} of op {producer}")
        if row[1] == RESULT and len(row[2]) != 1:
            raise ValueError(f"result {index} has {len(row[2])} inputs")
        ops.append(Op(index, *row))
    ends = (msgspec.convert(data[key], tuple[int, ...]) for key in ("parameters", "results"))
    graph = OpGraph(str(data["name"]), tuple(ops), *ends)
    if len(graph.index_of) != len(graph):
        raise ValueError("two ops have one name")
    for indices, kind in ((graph.parameters, PARAMETER), (graph.results, RESULT)):
        if sorted(indices) != [op.index for op in graph if op.type == kind]:
            raise ValueError(f"the {kind.lower()}s are not those of the ops")
    return graph
