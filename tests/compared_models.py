"""Models whose outputs are easily judged wrongly: states, integers, bodies, random ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as op
from small_models import variable


def parameter(*shape: int, kind: Any = np.float32, name: str = "x") -> Any:
    return op.parameter(list(shape), kind, name=name)


def constant(value: Any, kind: Any = np.float32) -> Any:
    return op.constant(np.array(value, kind))


# With states


def running_sum() -> ov.Model:
    x, state = parameter(1), variable("sum", 1)
    total = op.add(x, op.read_value(constant([40]), state))
    return ov.Model([op.result(total, name="y")], [op.assign(total, state)], [x], "running_sum")


def two_states() -> ov.Model:
    x, slow, fast = parameter(1, 4), variable("slow", 1, 4), variable("fast", 1, 4)
    decayed = op.add(op.multiply(op.read_value(constant([[1, 2, 3, 4]]), slow), constant(0.5)), x)
    total = op.add(op.read_value(constant(np.zeros((1, 4))), fast), op.tanh(decayed))
    results = [op.result(total, name="total"), op.result(op.relu(decayed), name="decayed")]
    return ov.Model(results, [op.assign(decayed, slow), op.assign(total, fast)], [x], "two_states")


def growing() -> ov.Model:
    """Keep all that was ever given: the state and the second output grow."""
    x, state = parameter(1, 4), variable("kept", -1, 4)
    kept = op.concat([op.read_value(op.constant(np.zeros((0, 4), np.float32)), state), x], 0)
    summed = op.reduce_sum(kept, constant([0], np.int64), True)
    results = [op.result(summed, name="summed"), op.result(kept, name="kept")]
    return ov.Model(results, [op.assign(kept, state)], [x], "growing")


def recurrent() -> ov.Model:
    rng, x = np.random.default_rng(0), parameter(1, 4)
    states = variable("hidden", 1, 8), variable("cell", 1, 8)
    read = [op.read_value(constant(np.zeros((1, 8))), state) for state in states]
    weights = (constant(rng.normal(size=(32, n))) for n in (4, 8))
    cell = op.lstm_cell(x, *read, *weights, constant(np.zeros(32)), 8)
    written = [op.add(cell.output(i), constant(0)) for i in (0, 1)]
    assigns = [op.assign(value, state) for value, state in zip(written, states, strict=True)]
    out = op.result(op.softmax(cell.output(0), 1), name="y")
    return ov.Model([out], assigns, [x], "recurrent")


STATEFUL = (running_sum, two_states, growing, recurrent)


# With bodies and random ops


def branched(then: Callable[[Any], Any], *, size: int = 16) -> ov.Model:
    """Put ``then`` into the branch of an If that is taken."""
    x = parameter(1, size)
    return ov.Model([op.result(_if(x, then, size), name="y")], [x], "branched")


def _if(x: Any, then: Callable[[Any], Any], size: int) -> Any:
    total = op.reduce_sum(x, constant([0, 1], np.int64), False)
    inner, other = parameter(1, size, name="inner"), parameter(1, size, name="other")
    bodies = [ov.Model([op.result(then(inner))], [inner], "then")]
    bodies.append(ov.Model([op.result(op.relu(other))], [other], "else"))
    node = op.if_op(op.greater(total, constant(-1e9)).output(0))
    node.set_then_body(bodies[0])
    node.set_else_body(bodies[1])
    node.set_input(x.output(0), inner, other)
    return node.set_output(*(body.results[0] for body in bodies))


def nested(then: Callable[[Any], Any]) -> ov.Model:
    return branched(lambda x: _if(x, then, 16))


def looped(step: Callable[[Any], Any]) -> ov.Model:
    """Do ``step`` three times in a Loop."""
    x, inner, turn = parameter(1, 16), parameter(1, 16, name="inner"), parameter(kind=np.int64)
    yes = op.constant(np.array(True))
    body = ov.Model([op.result(step(inner)), op.result(yes)], [turn, inner], "body")
    loop = op.loop(constant(3, np.int64), yes)
    loop.set_function(body)
    loop.set_special_body_ports([0, 1])
    loop.set_merged_input(inner, x.output(0), body.results[0].output(0))
    out = op.result(loop.get_iter_value(body.results[0].output(0), -1), name="y")
    return ov.Model([out], [x], "looped")


def product(x: Any) -> Any:
    weights = np.random.default_rng(1).normal(size=(16, 16)).astype(np.float32)
    return op.matmul(op.matmul(x, op.constant(weights), False, False), weights, False, False)


def uniform(*shape: int, seed: int = 0) -> Any:
    sizes = constant(list(shape), np.int64)
    return op.random_uniform(sizes, constant(0), constant(1), "f32", seed, seed)


def noisy(x: Any) -> Any:
    return op.add(x, uniform(1, 16))


def _of(make: Callable[[Any], Any], name: str) -> ov.Model:
    x = parameter(1, 16)
    results = [op.result(make(x), name="y"), op.result(op.negative(x), name="sure")]
    return ov.Model(results, [x], name)


def dropout(x: Any) -> Any:
    kept = op.convert(op.greater(uniform(1, 16), constant(0.5)), "f32")
    return op.multiply(op.add(op.abs(x), constant(1)), kept)


def random_models() -> dict[str, ov.Model]:
    """Return models whose output ``y`` is random, and ``sure``, if there is one, is not."""
    return {
        "uniform": _of(noisy, "uniform"),
        "seeded": _of(lambda x: op.add(x, uniform(1, 16, seed=7)), "seeded"),
        "dropout": _of(dropout, "dropout"),
        "integers": _of(lambda x: op.convert(op.multiply(noisy(x), constant(1e6)), "i32"), "ints"),
        "branch": branched(noisy),
        "nested": nested(noisy),
        "loop": looped(noisy),
    }  # fmt: skip
