"""The graph of a dynamic model at a context length: every tensor with its shape and bytes."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from hetero_lab.model.opgraph import Op, OpGraph, Tensor
from hetero_lab.model.read import PreparedModel


def graph_at_context(prepared: PreparedModel, context_tokens: int, batch: int = 1) -> OpGraph:
    """Return a model's graph with the shapes that it has for so many tokens at once.

    A first dimension that is dynamic is the batch, all other dynamic ones are the length of the
    context: the largest that tensors become. The shape of a static tensor stays.
    """
    graph = prepared.graph
    nodes = {node.get_friendly_name(): node for node in prepared.model.get_ordered_ops()}

    def sized(tensor: Tensor, op: Op, port: int) -> Tensor:
        output = nodes[op.name].output(port)
        partial, bits = output.get_partial_shape(), output.get_element_type().bitwidth
        if tensor.shape is not None or partial.rank.is_dynamic or not bits:
            return tensor
        shape = tuple(
            dimension.get_length() if dimension.is_static else context_tokens if at else batch
            for at, dimension in enumerate(partial)
        )
        return replace(tensor, shape=shape, n_bytes=-(-prod(shape) * bits // 8))

    ops = tuple(
        replace(op, outputs=tuple(sized(t, op, port) for port, t in enumerate(op.outputs)))
        for op in graph
    )
    return replace(graph, ops=ops)
