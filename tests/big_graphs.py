"""Graphs of thousands of ops, built like transformers: blocks of blocks, with residual wires."""

from __future__ import annotations

from hetero_lab.model.opgraph import Op, OpGraph, Tensor
from hetero_lab.placement.affinity import Affinity

OPS_OF_A_LAYER = 25


def transformer_graph(n_ops: int, *, scoped: bool = True, masked: bool = False) -> OpGraph:
    """Build a chain of layers of 25 ops each, about ``n_ops`` ops; names have scopes or none.

    With ``masked`` every layer also reads an attention mask, a second input.
    """
    ops = [Op(0, "tokens", "Parameter", (), (_tensor("tokens"),))]

    def add(name: str, op_type: str, *sources: int) -> int:
        index = len(ops)
        label = name if scoped else f"{op_type.lower()}_{index}"
        ops.append(Op(index, label, op_type, tuple((s, 0) for s in sources), (_tensor(""),)))
        return index

    at = add("model/embed/Gather", "Gather", 0)
    parameters = [0]
    if masked:
        parameters.append(add("mask", "Parameter"))
    for layer in range(max(1, (n_ops - 1) // OPS_OF_A_LAYER)):
        scope = f"model/layers.{layer}"
        norm = add(f"{scope}/input_norm/MVN", "MVN", at)
        norm = add(f"{scope}/input_norm/Multiply", "Multiply", norm)
        heads = []
        for part in ("q_proj", "k_proj", "v_proj"):
            made = add(f"{scope}/attention/{part}/MatMul", "MatMul", norm)
            made = add(f"{scope}/attention/{part}/Add", "Add", made)
            made = add(f"{scope}/attention/{part}/Reshape", "Reshape", made)
            heads.append(add(f"{scope}/attention/{part}/Transpose", "Transpose", made))
        scores = add(f"{scope}/attention/scores/MatMul", "MatMul", heads[0], heads[1])
        if masked:
            scores = add(f"{scope}/attention/scores/Add", "Add", scores, parameters[1])
        scores = add(f"{scope}/attention/scores/Softmax", "Softmax", scores)
        mixed = add(f"{scope}/attention/MatMul", "MatMul", scores, heads[2])
        mixed = add(f"{scope}/attention/out/MatMul", "MatMul", mixed)
        mixed = add(f"{scope}/attention/out/Add", "Add", mixed)
        at = add(f"{scope}/Add", "Add", at, mixed)
        norm = add(f"{scope}/output_norm/MVN", "MVN", at)
        wide = add(f"{scope}/mlp/up/MatMul", "MatMul", norm)
        wide = add(f"{scope}/mlp/Gelu", "Gelu", wide)
        wide = add(f"{scope}/mlp/down/MatMul", "MatMul", wide)
        at = add(f"{scope}/Add_1", "Add", at, wide)
    result = add("logits", "Result", at)
    return OpGraph("transformer", tuple(ops), tuple(parameters), (result,))


def by_type(graph: OpGraph, on_cpu: set[str]) -> Affinity:
    """Put the types of ``on_cpu`` on CPU, the rest on ACC."""
    return Affinity.from_graph(
        graph, {op.name: "CPU" if op.type in on_cpu else "ACC" for op in graph}
    )


def _tensor(name: str) -> Tensor:
    return Tensor((1, 128, 768), "f32", 4 * 128 * 768, name)
