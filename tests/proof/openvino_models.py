"""The models of OpenVINO's own HETERO tests, built anew, and what those tests expect of them.

The shapes are those of ``subgraph_collector.cpp`` in the HETERO plugin's unit tests (OpenVINO
2026, Apache-2.0). ``M0`` to ``M3`` stand for the mock devices there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import openvino as ov
from openvino import opset13 as op
from small_models import variable


@dataclass(frozen=True)
class Case:
    """A model, the device of each of its nodes, and what the plugin's tests expect.

    ``others`` is the device of every node that ``devices`` does not name; ``together`` holds the
    ops of each subgraph, ``"a b | c"``; ``loaded`` is the number after :func:`hetero_lab.load`,
    where folding or following changes it. ``model`` makes it, or is a name in ``WIRED``.
    """

    name: str
    model: Callable[[], ov.Model] | str
    n_subgraphs: int
    devices: dict[str, str]
    others: str = "M0"
    per_device: dict[str, int] | None = None
    together: str = ""
    loaded: int | None = None

    def make(self) -> ov.Model:
        """Build the model."""
        return wired(self.model) if isinstance(self.model, str) else self.model()

    @property
    def subgraphs(self) -> list[frozenset[str]]:
        """The ops of each subgraph; empty if the plugin's tests do not name them."""
        return [frozenset(ops.split()) for ops in self.together.split("|") if ops]


def _ints(name: str, *values: int) -> ov.Node:
    return op.constant(np.array(values, np.int64), name=name)


def _ones(name: str, size: int = 4, value: float = 1.0) -> ov.Node:
    return op.constant(np.full(size, value, np.float32), name=name)


def _input(name: str, size: int = 4) -> ov.Node:
    return op.parameter([size], np.float32, name=name)


def _model(results: dict[str, ov.Node], parameters: list[ov.Node], name: str) -> ov.Model:
    return ov.Model([op.result(node, name=n) for n, node in results.items()], parameters, name)


def linear_chain() -> ov.Model:
    """Build input → add → sub → reshape."""
    x = op.parameter([1, 3, 2, 2], np.int64, name="input")
    one = op.constant(np.ones((1, 1, 1, 1), np.int64), name="const_val")
    sub = op.subtract(op.add(x, one, name="add"), one, name="sub")
    flat = op.reshape(sub, _ints("reshape_val", -1), True, name="reshape")
    return _model({"res": flat}, [x], "linear_chain")


def diamond() -> ov.Model:
    """Build a chain whose first add also feeds its last."""
    x = op.parameter([1, 3, 2, 2], np.int64, name="input")
    one = op.constant(np.ones((1, 1, 1, 1), np.int64), name="const_val")
    first = op.add(x, one, name="add1")
    sub = op.subtract(op.add(first, one, name="add2"), one, name="sub")
    last = op.add(first, sub, name="add3")
    flat = op.reshape(last, _ints("reshape_val", -1), True, name="reshape")
    return _model({"res": flat}, [x], "diamond")


_OPS = {"add": op.add, "sub": op.subtract, "abs": op.abs}
# Inputs ``x : 4``, constants ``c of 1 : 4`` (a value and how many), ops ``a = add x c``, and
# outputs ``a -> res``.
WIRED = {
    "nested_cycle": "input : 4; c1 of 1 : 1; a1 = add input c1; b1 = sub a1 c1; a2 = add b1 c1; "
    "b2 = sub a2 c1; a3 = add b2 a1; a3 -> res",
    "alternating_chain": "input : 4; c1 of 1 : 1; A = add input c1; B = sub A c1; C = add B c1; "
    "D = sub C c1; D -> res",
    "independent_paths": "input1 : 2; input2 : 2; c1 of 1 : 1; c2 of 1 : 1; add1 = add input1 c1; "
    "add2 = add input2 c2; add1 -> res1; add2 -> res2",
    "unused_input": "input1 : 1 3 2 2; input2 : 1 3 2 2; const_val1 of 1 : 1; const_val2 of 1 : 1; "
    "add1 = add input1 const_val1; add2 = add add1 const_val2; add2 -> res",
    "diverging_paths": "input : 2; c1 of 1 : 1; add = add input c1; sub1 = sub add c1; "
    "sub2 = sub add c1; sub1 -> res1; sub2 -> res2",
    # X and C share a constant; C is fed through another device, or not.
    "indirect_bridge": "input : 4; shared_const of 1 : 4; other_const of 2 : 4; "
    "A = add input other_const; X = add A shared_const; B = abs A; C = add B shared_const; "
    "C -> res1; X -> res2",
    "indirect_bridge_without_cycle": "input : 4; shared_const of 1 : 4; other_const of 2 : 4; "
    "A = add input other_const; X = add A shared_const; B = abs A; C = add A shared_const; "
    "C -> res1; X -> res2; B -> res_b",
    # A constant feeds the other device itself and comes back through X.
    "constant_as_source": "param : 4; shared_const of 1 : 4; A = abs param; "
    "B = add A shared_const; X = abs shared_const; C = add B X; C -> res1; X -> res2",
    # It joins A and X, and nothing comes back.
    "constant_without_cycle": "param : 4; shared_const of 1 : 4; A = add param shared_const; "
    "B = abs A; X = abs shared_const; B -> res; X -> res2",
    # Of two shared constants one lies on the cycle.
    "two_constants": "param : 4; C1 of 1 : 4; C2 of 2 : 4; A = add param C1; X = add A C2; "
    "B = abs A; C = add B C1; Z = abs C2; C -> res_c; X -> res_x; Z -> res_z",
    # An input and a constant both bridge into the same cycle.
    "mixed_bridges": "param1 : 4; param2 : 4; C_const of 1 : 4; A = add param1 param2; "
    "X = add A C_const; B = abs A; C = add B param2; F = add B C_const; "
    "C -> res_c; F -> res_f; X -> res_x; B -> res_b",
    "constant_fan_out": "param : 4; shared_const of 1 : 4; Node_A = add param shared_const; "
    "Node_B = add Node_A shared_const; Node_C = add Node_B shared_const; Node_C -> res",
}


def wired(name: str) -> ov.Model:
    """Build the model of a line of ``WIRED``."""
    nodes: dict[str, ov.Node] = {}
    parameters, results = [], []
    for part in WIRED[name].split("; "):
        node, sign, *others = part.split()
        if sign == ":":
            parameters.append(op.parameter([*map(int, others)], np.float32, name=node))
            nodes[node] = parameters[-1]
        elif sign == "of":
            nodes[node] = _ones(node, int(others[2]), float(others[0]))
        elif sign == "=":
            nodes[node] = _OPS[others[0]](*(nodes[source] for source in others[1:]), name=node)
        else:
            results.append(op.result(nodes[node], name=others[0]))
    return ov.Model(results, parameters, name)


def stateful() -> ov.Model:
    """Build input → ReadValue → add → {output, Assign}."""
    x = _input("input")
    state = variable("var0", 4)
    read = op.read_value(x, state)
    read.set_friendly_name("read_value")
    add = op.add(read, _ones("c1", 1), name="add")
    assign = op.assign(add, state)
    assign.set_friendly_name("assign")
    return ov.Model([op.result(add, name="res")], [assign], [x], "stateful")


def shape_of() -> ov.Model:
    """Build ops around ShapeOf with constants that stand on another device than their users."""
    x = op.parameter([1, 3, 16, 16], np.uint8, name="input")
    scaled = op.multiply(op.convert(x, "f32", name="convert"), _ones("constant1", 1, 2.0))
    scaled.set_friendly_name("mul")
    turned = op.transpose(scaled, _ints("constant2", 0, 1, 3, 2), name="transpose")
    flat = op.reshape(
        op.shape_of(turned, name="shapeOf"), _ints("reshape_val", -1), True, name="reshape"
    )
    zero, one = op.constant(np.int64(0), name="zero"), op.constant(np.int64(1), name="one")
    return _model({"result": op.gather(flat, one, zero, name="gather")}, [x], "shape_of")


def subtract_reshape(dynamic: bool = False, by_shape: bool = False) -> ov.Model:
    """Build the model of the functional tests: add → sub → reshape, perhaps by ShapeOf."""
    shape = ov.PartialShape([-1, 3, 2, 2] if dynamic else [1, 3, 2, 2])
    x = op.parameter(shape, np.int64, name="input")
    one = op.constant(np.ones((1, 1, 1, 1), np.int64), name="const_val")
    add = op.add(x, one, name="add")
    sub = op.subtract(add, one, name="sub")
    target = op.shape_of(sub, name="shape_of") if by_shape else _ints("reshape_val", -1)
    return _model({"res": op.reshape(sub, target, True, name="reshape")}, [x], "subtract_reshape")


CASES = (
    Case("linear chain", linear_chain, 3, {"sub": "M1"}, per_device={"M0": 2, "M1": 1},
         together="add | sub | reshape"),
    Case("diamond", diamond, 3, {"sub": "M1"}, per_device={"M0": 2, "M1": 1},
         together="add1 add2 | sub | add3 reshape"),
    Case("nested cycle", "nested_cycle", 5, {"b1": "M1", "b2": "M1"}, per_device={"M0": 3, "M1": 2},
         together="a1 | b1 | a2 | b2 | a3"),
    Case("unused input", "unused_input", 3, {"const_val2": "M1", "add2": "M1", "res": "M1"}),
    Case("all same", linear_chain, 1, {}, per_device={"M0": 1}),
    # Loaded, the input follows the add that uses it.
    Case("all different", linear_chain, 4, loaded=3,
         devices={"add": "M1", "sub": "M2", "reshape_val": "M3", "reshape": "M3", "res": "M3"},
         per_device={"M0": 1, "M1": 1, "M2": 1, "M3": 1}),
    Case("result inherits", linear_chain, 1, {"res": "M1"}, per_device={"M0": 1}),
    Case("alternating", "alternating_chain", 4, {"B": "M1", "D": "M1", "res": "M1"},
         per_device={"M0": 2, "M1": 2}),
    Case("independent paths", "independent_paths", 2, {}, per_device={"M0": 2}),
    Case("diverging paths", "diverging_paths", 1, {}, per_device={"M0": 1}),
    Case("stateful on one device", stateful, 1, {}, per_device={"M0": 1}),
    Case("indirect bridge, cycle", "indirect_bridge", 3, {"B": "M1"},
         per_device={"M0": 2, "M1": 1}, together="A X | B | C"),
    Case("constant fans out over devices", "constant_fan_out", 3, {"Node_B": "M1"},
         per_device={"M0": 2, "M1": 1}, together="Node_A | Node_B | Node_C"),
    # Loaded, X is folded: its value is copied to its users.
    Case("constant as source of the cycle", "constant_as_source", 4, {"B": "M1"}, loaded=3,
         per_device={"M0": 3, "M1": 1}, together="A | X | B | C"),
    # Loaded, X is folded to a constant of its own that A does not use.
    Case("constant without a cycle", "constant_without_cycle", 2, {"B": "M1", "res": "M1"},
         loaded=3, per_device={"M0": 1, "M1": 1}, together="A X | B"),
    Case("indirect bridge, no cycle", "indirect_bridge_without_cycle", 2,
         {"B": "M1", "res_b": "M1"}, per_device={"M0": 1, "M1": 1}, together="A X C | B"),
    # Loaded, Z is folded to a constant of its own.
    Case("several constants, partial cycle", "two_constants", 3, {"B": "M1"}, loaded=4,
         per_device={"M0": 2, "M1": 1}, together="A X Z | B | C"),
    Case("input and constant bridge", "mixed_bridges", 4, {"B": "M1", "res_b": "M1"},
         per_device={"M0": 3, "M1": 1}, together="A X | B | C | F"),
    # Loaded, all of it is folded to the answer; the input is alone.
    Case("constants follow their users", shape_of, 4, loaded=2,
         devices={"transpose": "M1", "reshape": "M1", "gather": "M1"},
         per_device={"M0": 2, "M1": 2},
         together="convert mul | transpose | shapeOf | reshape gather"),
)  # fmt: skip
