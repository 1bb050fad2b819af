"""How much an op has to do, as far as its type and shapes show."""

from __future__ import annotations

import math

from hetero_lab.model.opgraph import Op, OpGraph

_PRODUCTS = frozenset(
    ["Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData"]
)


def work_of(graph: OpGraph, op: Op) -> float:
    """Return how much an op has to do: multiply-adds of a product, else bytes, at least 1."""
    read = [graph.ops[producer].outputs[port] for producer, port in op.inputs]
    shapes = [tensor.shape for tensor in (*read[:2], *op.outputs[:1])]
    if len(shapes) == 3 and None not in shapes:
        sizes = [float(math.prod(shape or ())) for shape in shapes]
        if op.type == "MatMul":
            # The product of [M, K] and [K, N] has (MK · KN · MN) ** ½ multiply-adds.
            return max(1.0, math.sqrt(math.prod(sizes)))
        weights = shapes[1] or (1,)
        if op.type in _PRODUCTS and len(weights) > 1:
            # Each output, or of a transposed one each input, meets a kernel of every channel.
            grouped = op.type.startswith("Group")
            kernel = sizes[1] / math.prod(weights[: 2 if grouped else 1])
            met = sizes[0] if op.type.endswith("BackpropData") else sizes[2]
            return max(1.0, met * kernel)
    bytes_moved = [tensor.n_bytes or 0 for tensor in (*read, *op.outputs)]
    return max(1.0, float(sum(bytes_moved)))
