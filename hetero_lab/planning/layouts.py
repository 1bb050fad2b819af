"""Layouts: which ops keep the memory layout that another op chose.

A convolution chooses a blocked layout and elementwise ops after it keep it, so that a tensor of
any of them has to be converted where it leaves the device. What entered a subgraph is plain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hetero_lab.model.opgraph import CONSTANT, OpGraph

_ELEMENTWISE = frozenset({
    "Abs", "Add", "Ceiling", "Clamp", "Convert", "Divide", "Elu", "Exp", "FakeQuantize", "Floor",
    "Gelu", "HSigmoid", "HSwish", "HardSigmoid", "Log", "Maximum", "Minimum", "Mish", "Mod",
    "Multiply", "Negative", "PRelu", "Power", "Relu", "Round", "Selu", "Sigmoid", "SoftPlus",
    "Sqrt", "SquaredDifference", "Subtract", "Swish", "Tanh",
})  # fmt: skip


@dataclass(frozen=True)
class Layouts:
    """``root`` leads from an op that keeps a layout to the one that chose it.

    ``above`` are the ops that it reads and that have this layout too.
    """

    root: Mapping[str, str]
    above: Mapping[str, tuple[str, ...]]

    def path(self, op: str) -> set[str]:
        """Return the ops that have the layout of ``op`` and lead to it, itself included."""
        found, queue = {op}, [op]
        while queue:
            for name in self.above.get(queue.pop(), ()):
                if name not in found:
                    found.add(name)
                    queue.append(name)
        return found


def kept_layouts(graph: OpGraph) -> Layouts:
    """Follow elementwise ops up to the op that chose their layout.

    An op keeps the layout of the tensors of its own shape that it reads if they all have one.
    """
    root: dict[str, str] = {}
    above: dict[str, tuple[str, ...]] = {}
    placeable = set(graph.placeable)
    for op in graph:
        if op.type not in _ELEMENTWISE or op.index not in placeable or len(op.outputs) != 1:
            continue
        read = dict.fromkeys(
            graph.ops[producer]
            for producer, _ in op.inputs
            if producer not in graph.constant_side and graph.ops[producer].type != CONSTANT
        )
        same = [
            other
            for other in read
            if [tensor.shape for tensor in other.outputs] == [op.outputs[0].shape]
        ]
        roots = {root.get(other.name, other.name) for other in same}
        if len(roots) == 1 and all(other.index in placeable for other in same):
            root[op.name] = roots.pop()
            above[op.name] = tuple(other.name for other in same)
    return Layouts(root, above)
