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
from openvino.op.util import Variable, VariableInfo


@dataclass(frozen=True)
class Case:
    """A model, the device of each of its nodes, and what the plugin's tests expect.

    ``others`` is the device of every node that ``devices`` does not name; ``together`` holds the
    ops of each subgraph, ``"a b | c"``; ``loaded`` is the number after :func:`hetero_lab.load`,
    where folding or following changes it.
    """

    name: str
    make: Callable[[], ov.Model]
    n_subgraphs: int
    devices: dict[str, str]
    others: str = "M0"
    per_device: dict[str, int] | None = None
    together: str = ""
    loaded: int | None = None

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


def nested_cycle() -> ov.Model:
    """Build a1 → b1 → a2 → b2 → a3, a1 also feeding a3."""
    x, c1 = _input("input"), _ones("c1", 1)
    a1 = op.add(x, c1, name="a1")
    a2 = op.add(op.subtract(a1, c1, name="b1"), c1, name="a2")
    a3 = op.add(op.subtract(a2, c1, name="b2"), a1, name="a3")
    return _model({"res": a3}, [x], "nested_cycle")


def alternating_chain() -> ov.Model:
    """Build A → B → C → D."""
    x, c1 = _input("input"), _ones("c1", 1)
    b = op.subtract(op.add(x, c1, name="A"), c1, name="B")
    d = op.subtract(op.add(b, c1, name="C"), c1, name="D")
    return _model({"res": d}, [x], "alternating_chain")


def independent_paths() -> ov.Model:
    """Build two paths without a common node."""
    x, y = _input("input1", 2), _input("input2", 2)
    results = {
        "res1": op.add(x, _ones("c1", 1), name="add1"),
        "res2": op.add(y, _ones("c2", 1), name="add2"),
    }
    return _model(results, [x, y], "independent_paths")


def unused_input() -> ov.Model:
    """Build a chain of two adds beside an input that nothing uses."""
    x = op.parameter([1, 3, 2, 2], np.float32, name="input1")
    unused = op.parameter([1, 3, 2, 2], np.float32, name="input2")
    add1 = op.add(x, _ones("const_val1", 1), name="add1")
    return _model(
        {"res": op.add(add1, _ones("const_val2", 1), name="add2")}, [x, unused], "unused_input"
    )


def diverging_paths() -> ov.Model:
    """Build one add that feeds two subtractions, each an output."""
    x, c1 = _input("input", 2), _ones("c1", 1)
    add = op.add(x, c1, name="add")
    results = {
        "res1": op.subtract(add, c1, name="sub1"),
        "res2": op.subtract(add, c1, name="sub2"),
    }
    return _model(results, [x], "diverging_paths")


def stateful() -> ov.Model:
    """Build input → ReadValue → add → {output, Assign}."""
    x = _input("input")
    info = VariableInfo()
    info.data_shape, info.data_type, info.variable_id = ov.PartialShape([4]), ov.Type.f32, "var0"
    variable = Variable(info)
    read = op.read_value(x, variable)
    read.set_friendly_name("read_value")
    add = op.add(read, _ones("c1", 1), name="add")
    assign = op.assign(add, variable)
    assign.set_friendly_name("assign")
    return ov.Model([op.result(add, name="res")], [assign], [x], "stateful")


def indirect_bridge(cycle: bool) -> ov.Model:
    """Build a constant that X and C share; C is fed through another device, or not."""
    x, shared, other = _input("input"), _ones("shared_const"), _ones("other_const", value=2.0)
    a = op.add(x, other, name="A")
    bridge = op.add(a, shared, name="X")
    b = op.abs(a, name="B")
    c = op.add(b if cycle else a, shared, name="C")
    results = {"res1": c, "res2": bridge}
    return _model(results if cycle else {**results, "res_b": b}, [x], "indirect_bridge")


def constant_as_source() -> ov.Model:
    """Build a constant that feeds the other device itself and comes back through X."""
    x, shared = _input("param"), _ones("shared_const")
    b = op.add(op.abs(x, name="A"), shared, name="B")
    side = op.abs(shared, name="X")
    return _model({"res1": op.add(b, side, name="C"), "res2": side}, [x], "constant_as_source")


def constant_without_cycle() -> ov.Model:
    """Build a constant that joins A and X, where nothing comes back."""
    x, shared = _input("param"), _ones("shared_const")
    a = op.add(x, shared, name="A")
    results = {"res": op.abs(a, name="B"), "res2": op.abs(shared, name="X")}
    return _model(results, [x], "constant_without_cycle")


def two_constants() -> ov.Model:
    """Build two shared constants, of which one lies on the cycle."""
    x, c1, c2 = _input("param"), _ones("C1"), _ones("C2", value=2.0)
    a = op.add(x, c1, name="A")
    side = op.add(a, c2, name="X")
    c = op.add(op.abs(a, name="B"), c1, name="C")
    return _model({"res_c": c, "res_x": side, "res_z": op.abs(c2, name="Z")}, [x], "two_constants")


def mixed_bridges() -> ov.Model:
    """Build an input and a constant that both bridge into the same cycle."""
    x, y, constant = _input("param1"), _input("param2"), _ones("C_const")
    a = op.add(x, y, name="A")
    side = op.add(a, constant, name="X")
    b = op.abs(a, name="B")
    results = {
        "res_c": op.add(b, y, name="C"),
        "res_f": op.add(b, constant, name="F"),
        "res_x": side,
        "res_b": b,
    }
    return _model(results, [x, y], "mixed_bridges")


def constant_fan_out() -> ov.Model:
    """Build A → B → C that all add one constant."""
    x, shared = _input("param"), _ones("shared_const")
    b = op.add(op.add(x, shared, name="Node_A"), shared, name="Node_B")
    return _model({"res": op.add(b, shared, name="Node_C")}, [x], "constant_fan_out")


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
    Case("nested cycle", nested_cycle, 5, {"b1": "M1", "b2": "M1"}, per_device={"M0": 3, "M1": 2},
         together="a1 | b1 | a2 | b2 | a3"),
    Case("unused input", unused_input, 3, {"const_val2": "M1", "add2": "M1", "res": "M1"}),
    Case("all same", linear_chain, 1, {}, per_device={"M0": 1}),
    # Loaded, the input follows the add that uses it.
    Case("all different", linear_chain, 4, loaded=3,
         devices={"add": "M1", "sub": "M2", "reshape_val": "M3", "reshape": "M3", "res": "M3"},
         per_device={"M0": 1, "M1": 1, "M2": 1, "M3": 1}),
    Case("result inherits", linear_chain, 1, {"res": "M1"}, per_device={"M0": 1}),
    Case("alternating", alternating_chain, 4, {"B": "M1", "D": "M1", "res": "M1"},
         per_device={"M0": 2, "M1": 2}),
    Case("independent paths", independent_paths, 2, {}, per_device={"M0": 2}),
    Case("diverging paths", diverging_paths, 1, {}, per_device={"M0": 1}),
    Case("stateful on one device", stateful, 1, {}, per_device={"M0": 1}),
    Case("indirect bridge, cycle", lambda: indirect_bridge(cycle=True), 3, {"B": "M1"},
         per_device={"M0": 2, "M1": 1}, together="A X | B | C"),
    Case("constant fans out over devices", constant_fan_out, 3, {"Node_B": "M1"},
         per_device={"M0": 2, "M1": 1}, together="Node_A | Node_B | Node_C"),
    # Loaded, X is folded: its value is copied to its users.
    Case("constant as source of the cycle", constant_as_source, 4, {"B": "M1"}, loaded=3,
         per_device={"M0": 3, "M1": 1}, together="A | X | B | C"),
    # Loaded, X is folded to a constant of its own that A does not use.
    Case("constant without a cycle", constant_without_cycle, 2, {"B": "M1", "res": "M1"}, loaded=3,
         per_device={"M0": 1, "M1": 1}, together="A X | B"),
    Case("indirect bridge, no cycle", lambda: indirect_bridge(cycle=False), 2,
         {"B": "M1", "res_b": "M1"}, per_device={"M0": 1, "M1": 1}, together="A X C | B"),
    # Loaded, Z is folded to a constant of its own.
    Case("several constants, partial cycle", two_constants, 3, {"B": "M1"}, loaded=4,
         per_device={"M0": 2, "M1": 1}, together="A X Z | B | C"),
    Case("input and constant bridge", mixed_bridges, 4, {"B": "M1", "res_b": "M1"},
         per_device={"M0": 3, "M1": 1}, together="A X | B | C | F"),
    # Loaded, all of it is folded to the answer; the input is alone.
    Case("constants follow their users", shape_of, 4, loaded=2,
         devices={"transpose": "M1", "reshape": "M1", "gather": "M1"},
         per_device={"M0": 2, "M1": 2},
         together="convert mul | transpose | shapeOf | reshape gather"),
)  # fmt: skip
