"""Quantised blocks: the ops that run in int8, the quantisers that enable it, and cuts between them.

A device runs a convolution or matmul in int8 if the quantiser of its input is in the same
subgraph. Across a boundary, a FakeQuantize hands over f32: the values are those of int8, but the
other side does not know that and uses its f32 or bf16 kernel. An int8 tensor may cross if the
other side has a FakeQuantize too: without one, OpenVINO's CPU plugin treats a model as not
quantised. The tests check all of this on the runtime.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from hetero_lab.lint.context import Draft, Gone, LintContext, together
from hetero_lab.lint.rules import HEAVY, fusion_pairs
from hetero_lab.model.opgraph import CONSTANT, OpGraph, grouped
from hetero_lab.terminal import count_of

FAKE_QUANTIZE = "FakeQuantize"

_SMALL = re.compile(r"^([iu][1-8]|nf4|f8\w*|f4\w*)$")
# These pass int8 values on, by themselves or through OpenVINO's low-precision passes.
_CARRIERS = frozenset(
    [
        "AvgPool", "BatchToSpace", "Broadcast", "Concat", "DepthToSpace", "Gather", "MaxPool",
        "Pad", "ReduceMax", "ReduceMin", "Relu", "Reshape", "ShuffleChannels", "Slice",
        "SpaceToBatch", "Split", "Squeeze", "StridedSlice", "Transpose", "Unsqueeze",
        "VariadicSplit",
    ]
)  # fmt: skip
_SHIFTS = frozenset(["Subtract", "Multiply"])


def quantized_blocks(graph: OpGraph) -> dict[int, tuple[int, ...]]:
    """Return the convolutions and matmuls that a device can run in int8, with the ops above each.

    Those are the FakeQuantize ops that the inputs come from, or where the inputs are stored as int8
    the ops that dequantise them, and the ops on the way, in topological order. All must share a
    subgraph with the convolution or matmul.
    """
    blocks: dict[int, tuple[int, ...]] = {}
    for op in graph:
        if op.type not in HEAVY or op.index in graph.constant_side:
            continue
        above = set[int]()
        fed = [
            has_small_weights(graph, producer)
            if producer in graph.constant_side
            else _trace(graph, producer, above)
            for producer, _ in op.inputs[:2]
        ]
        if above and all(fed):
            blocks[op.index] = tuple(sorted(above))
    return blocks


def has_small_weights(graph: OpGraph, index: int) -> bool:
    """Return whether a node of the constant side is made from values of at most 8 bits."""
    return any(
        graph.ops[i].type == FAKE_QUANTIZE or (graph.ops[i].type == CONSTANT and is_small(graph, i))
        for i in graph.reach([index], forward=False)
    )


def is_small(graph: OpGraph, index: int, port: int = 0) -> bool:
    """Return whether a tensor has elements of at most 8 bits, booleans aside."""
    return _SMALL.match(graph.ops[index].outputs[port].element_type) is not None


def _trace(graph: OpGraph, index: int, above: set[int]) -> bool:
    """Collect what makes a tensor, up to its quantisers; ``False`` if it is not quantised."""
    queue, reached = [index], {index}
    while queue:
        op = graph.ops[queue.pop()]
        chain = (op.index,) if op.type == FAKE_QUANTIZE else _dequantizing(graph, op.index)
        if chain:
            above.update(chain)
            continue
        data = [p for p, _ in op.inputs if p not in graph.constant_side]
        if op.type not in _CARRIERS or not data:
            return False
        above.add(op.index)
        queue += [producer for producer in data if producer not in reached]
        reached.update(data)
    return True


def _dequantizing(graph: OpGraph, index: int) -> tuple[int, ...]:
    """Return the ops of a dequantisation of small integers that ends here; empty if none does."""
    chain: list[int] = []
    while True:
        op = graph.ops[index]
        chain.append(index)
        if op.type == "Convert":
            producer, port = op.inputs[0]
            return tuple(chain) if is_small(graph, producer, port) else ()
        data = [p for p, _ in op.inputs if p not in graph.constant_side]
        if op.type not in _SHIFTS or len(data) != 1:
            return ()
        index = data[0]


def _origins(graph: OpGraph, above: Sequence[int]) -> list[int]:
    """Return the FakeQuantize ops that made int8 tensors, and the Convert after each."""
    ops = graph.ops
    stored = (ops[i].inputs[0][0] for i in above if ops[i].type == "Convert")
    pairs = ((ops[i].inputs[0][0], i) for i in stored if ops[i].type == "Convert")
    return sorted({i for pair in pairs if ops[pair[0]].type == FAKE_QUANTIZE for i in pair})


def cut_quantization(context: LintContext) -> Iterator[Draft]:
    """Find boundaries between a quantiser and the ops that it would let run in int8."""
    home = context.partition.home
    blocks = quantized_blocks(context.graph)
    quantizing = {home[op.index] for op in context.graph if op.type == FAKE_QUANTIZE}
    consumers: dict[tuple[tuple[int, ...], int], list[int]] = {}
    with_origins = {op: (*_origins(context.graph, above), *above) for op, above in blocks.items()}
    users = grouped((i, op) for op, nodes in with_origins.items() for i in nodes)
    for op, above in blocks.items():
        # Without a FakeQuantize the runtime treats a subgraph as not quantised.
        needed = above if home[op] in quantizing else with_origins[op]
        away = tuple(index for index in needed if home[index] != home[op])
        if away:
            consumers.setdefault((away, home[op]), []).append(op)
    if not consumers:
        return
    groups = {index: group for group in fusion_pairs(context.graph).values() for index in group}
    pairs = [(i, op) for op, above in blocks.items() for i in above if home[i] == home[op]]
    whole_now = np.array(pairs, dtype=int).reshape(-1, 2)
    for (away, subgraph), ops in consumers.items():
        device = context.partition.subgraphs[subgraph].device
        others = tuple(dict.fromkeys(context.device_of[index] for index in away))
        where = f"on {' and '.join(others)}" if device not in others else "in another subgraph"
        n_bytes = sum(
            context.graph.ops[index].outputs[0].n_bytes or 0
            for index in away
            if any(home[use.index] != home[index] for use in context.graph.consumers[index])
        )
        sharing = sorted({op for index in away for op in users[index]})
        whole, every = (
            sorted({index for op in some for index in groups.get(op, (op,))})
            for some in (ops, sharing)
        )
        yield Draft(
            nodes=tuple(sorted((*away, *ops))),
            finding=(
                f"{count_of(len(ops), 'op')} of {device} ({context.names(ops)}) would run in int8, "
                f"but the quantisers of the input ({context.names(away)}) are {where}: {n_bytes:,} "
                "bytes cross, and the int8 kernel is lost."
            ),
            options=(
                *context.moves(away, [device]),
                *context.moves(whole, others),
                *context.moves((*away, *every), [device]),
            ),
            gone=_is_mended((*away, *ops), whole_now),
            weight=context.weight((home[i] for i in (*away, *ops)), n_bytes),
        )


def _is_mended(nodes: Sequence[int], whole_now: np.ndarray) -> Gone:
    """Return a test whether ops are together and no block that is whole now is cut."""
    is_joined, (above, ops) = together(nodes), whole_now.T
    return lambda ids: is_joined(ids) and not (ids[above] != ids[ops]).any()
