"""Faults for tests of find_wrong: ops of a device that compute something else, at compile.

Everything else is the real runtime. A fault of two ops is there only where both are compiled in
one subgraph, as if the device fused them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as op

# What an op is replaced by; the inputs stay. Convolutions and additions of constants get other
# weights instead.
_INSTEAD: dict[str, Callable[..., Any]] = {
    "Relu": op.negative,
    "Abs": op.tanh,
    "Tanh": op.sigmoid,
    "Sigmoid": op.tanh,
    "Negative": op.abs,
    "Add": op.subtract,
    "Subtract": op.add,
    "Maximum": op.minimum,
}
DEVIATION = 1.7


@dataclass(frozen=True)
class Fault:
    """An op that is wrong where all of ``ops`` are in one subgraph; ``target`` is one of them."""

    ops: frozenset[str]
    target: str


def can_be_wrong(node: Any) -> bool:
    """Whether there is something to put in the place of a node."""
    return node.get_type_name() in _INSTEAD or _constant_input(node) is not None


def spoil(
    device: str, faults: Iterable[Fault]
) -> Callable[[ov.Model, Sequence[tuple[str, frozenset[str]]]], None]:
    """Return what puts faults of a device into a model that is about to be compiled."""

    def before_compile(model: ov.Model, subgraphs: Sequence[tuple[str, frozenset[str]]]) -> None:
        nodes = {node.get_friendly_name(): node for node in model.get_ordered_ops()}
        for fault in faults:
            if any(home == device and fault.ops <= ops for home, ops in subgraphs):
                spoil_op(nodes[fault.target])

    return before_compile


def spoil_op(node: Any) -> None:
    """Let a node of a model compute something else."""
    port = _constant_input(node)
    if port is not None:
        constant = node.input_value(port).get_node()
        values = np.array(constant.get_data(), dtype=np.float32)
        values[0] *= DEVIATION
        values[0] += 0.5
        other = op.constant(values)
        # So the names stay those that affinities are given by.
        other.set_friendly_name(constant.get_friendly_name())
        node.input(port).replace_source_output(other.output(0))
        return
    put_instead(node, lambda: _INSTEAD[node.get_type_name()](*node.input_values()))


def put_instead(node: Any, make: Callable[[], Any]) -> None:
    """Put what ``make`` returns, which may read the node, in the place of a node."""
    name, uses = node.get_friendly_name(), node.output(0).get_target_inputs()
    instead = make()
    node.set_friendly_name(f"{name}/before")
    instead.set_friendly_name(name)
    for use in uses:
        use.replace_source_output(instead.output(0))


def _constant_input(node: Any) -> int | None:
    """Return the port of weights that are a node's own."""
    if node.get_type_name() not in ("Convolution", "Add", "MatMul"):
        return None
    for port in range(node.get_input_size()):
        source = node.input_value(port)
        if source.get_node().get_type_name() == "Constant" and len(source.get_target_inputs()) == 1:
            return port
    return None


def unshare(model: ov.Model, rng: np.random.Generator) -> ov.Model:
    """Give half of the uses of shared constants a constant of their own, in place."""
    for node in model.get_ordered_ops():
        for port in range(node.get_input_size()):
            constant = node.input_value(port).get_node()
            if constant.get_type_name() == "Constant" and rng.random() < 0.5:
                own = op.constant(np.array(constant.get_data()))
                own.set_friendly_name(f"{node.get_friendly_name()}/own{port}")
                node.input(port).replace_source_output(own.output(0))
    return model


def residual_model(n_ops: int, seed: int = 0) -> ov.Model:
    """Build a chain of residual blocks of six ops each: a matmul, bias, activation, and a sum."""
    rng = np.random.default_rng(seed)
    x = op.parameter([4, 16], np.float32, name="x")
    node = x
    for block in range(-(-n_ops // 6)):
        weights = (rng.normal(size=(16, 16)) / 4).astype(np.float32)
        inner = op.matmul(node, op.constant(weights), False, False, name=f"b{block}/matmul")
        bias = op.constant(rng.normal(size=(1, 16)).astype(np.float32))
        inner = op.add(inner, bias, name=f"b{block}/bias")
        inner = [op.relu, op.sigmoid, op.tanh][block % 3](inner, name=f"b{block}/activation")
        inner = op.abs(inner, name=f"b{block}/abs")
        node = op.add(node, inner, name=f"b{block}/sum")
        # So that values stay where they are, however many blocks there are.
        node = op.tanh(node, name=f"b{block}/tanh")
    return ov.Model([node], [x], "residual")
