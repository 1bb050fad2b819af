"""Random models for tests: several inputs and outputs, branches, shared constants, islands."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13 as op

from hetero_lab.model.opgraph import OpGraph
from hetero_lab.placement.affinity import Affinity

CHANNELS, SIZE = 4, 6


def random_model(seed: int, n_ops: int | None = None) -> ov.Model:
    """Build a random DAG of cheap ops on tensors of one shape; some graphs fall apart."""
    rng = np.random.default_rng(seed)
    n_ops = n_ops or int(rng.integers(3, 26))
    n_parts = int(rng.choice([1, 1, 2, 3]))
    constants = [
        op.constant(
            rng.normal(size=(1, CHANNELS, SIZE, SIZE)).astype(np.float32), name=f"shared{i}"
        )
        for i in range(2)
    ]
    weights = op.constant(
        (rng.normal(size=(CHANNELS, CHANNELS, 3, 3)) / 6).astype(np.float32), name="weights"
    )
    parameters, results = [], []
    for part in range(n_parts):
        own = [
            op.parameter([1, CHANNELS, SIZE, SIZE], np.float32, name=f"p{part}_in{i}")
            for i in range(int(rng.integers(1, 3)))
        ]
        parameters += own
        tensors = [p.output(0) for p in own]
        made = []
        for index in range(max(1, n_ops // n_parts)):
            node = _random_op(rng, tensors, constants, weights, f"p{part}/op{index}")
            made.append(node)
            tensors += node.outputs()
        used = {t.get_node().get_friendly_name() for n in made for t in n.input_values()}
        for node in made:
            if node.get_friendly_name() not in used or rng.random() < 0.1:
                results += [
                    op.result(o, name=f"{node.get_friendly_name()}/out{o.get_index()}")
                    for o in node.outputs()
                ]
    order = rng.permutation(len(results))
    return ov.Model([results[i] for i in order], parameters, f"random{seed}")


def _random_op(rng, tensors, constants, weights, name):
    # Recent tensors are more likely, so that graphs are deep as well as wide.
    def pick():
        back = min(len(tensors) - 1, int(rng.geometric(0.35)) - 1)
        return tensors[-1 - back] if rng.random() < 0.8 else tensors[rng.integers(len(tensors))]

    kind = rng.choice(
        ["unary", "binary", "shared", "conv", "split", "softmax"],
        p=[0.3, 0.3, 0.15, 0.1, 0.08, 0.07],
    )
    if kind == "unary":
        make = [op.relu, op.abs, op.tanh, op.sigmoid, op.negative][rng.integers(5)]
        return make(pick(), name=name)
    if kind == "binary":
        make = [op.add, op.subtract, op.maximum][rng.integers(3)]
        return make(pick(), pick(), name=name)
    if kind == "shared":
        return op.add(pick(), constants[rng.integers(len(constants))], name=name)
    if kind == "conv":
        return op.convolution(pick(), weights, [1, 1], [1, 1], [1, 1], [1, 1], name=name)
    if kind == "split":
        # Halves are joined again, so every tensor keeps one shape.
        halves = op.split(pick(), op.constant(1), 2, name=f"{name}/split")
        return op.concat([halves.output(1), halves.output(0)], 1, name=name)
    return op.softmax(pick(), 1, name=name)


def arithmetic_model(seed: int) -> ov.Model:
    """Build a random DAG of ops that amplify rounding or leave the range of narrow precisions."""
    rng = np.random.default_rng(seed)
    shape = (4, 64)

    def constant(value):
        return op.constant(np.float32(value))

    def axis():
        return op.constant(np.array([1]))

    def matmul(x, name):
        weights = (rng.normal(size=(64, 64)) / 8).astype(np.float32)
        return op.matmul(x, op.constant(weights), False, False, name=name)

    def spread(x, name):  # back to the one shape
        return op.add(x, constant(np.zeros(shape)), name=name)

    make = {
        "exp": lambda x, n: op.exp(x, name=n),
        "log": lambda x, n: op.log(op.abs(x, name=f"{n}/abs"), name=n),
        "sqrt": lambda x, n: op.sqrt(op.abs(x, name=f"{n}/abs"), name=n),
        "square": lambda x, n: op.multiply(x, x, name=n),
        "scale": lambda x, n: op.multiply(x, constant(10 ** rng.uniform(-2, 2)), name=n),
        "sin": lambda x, n: op.sin(x, name=n),
        "tanh": lambda x, n: op.tanh(x, name=n),
        "sigmoid": lambda x, n: op.sigmoid(x, name=n),
        "relu": lambda x, n: op.relu(x, name=n),
        "softmax": lambda x, n: op.softmax(x, 1, name=n),
        "matmul": matmul,
        "cumsum": lambda x, n: op.cum_sum(x, op.constant(np.int64(1)), name=n),
        "sum": lambda x, n: spread(op.reduce_sum(x, axis(), True, name=n), f"{n}/spread"),
        "mean": lambda x, n: spread(op.reduce_mean(x, axis(), True, name=n), f"{n}/spread"),
        "norm": lambda x, n: spread(op.reduce_l2(x, axis(), True, name=n), f"{n}/spread"),
    }
    x = op.parameter(list(shape), np.float32, name="x")
    made = [x]
    for index in range(int(rng.integers(2, 14))):
        name = f"op{index}"
        one, other = made[-1], made[rng.integers(len(made))]
        kind = str(rng.choice([*make, "divide", "subtract", "add"]))
        if kind in make:
            made.append(make[kind](one, f"{name}_{kind}"))
        else:
            binary = {"divide": op.divide, "subtract": op.subtract, "add": op.add}[kind]
            made.append(binary(one, other, name=f"{name}_{kind}"))
    return ov.Model([made[-1]], [x], f"arithmetic{seed}")


def random_affinity(graph: OpGraph, devices: list[str], seed: int) -> Affinity:
    """Put every op on a random device; neighbours agree more often than not in half the cases."""
    rng = np.random.default_rng(seed)
    sticky = rng.choice([0.0, 0.7])
    chosen: dict[str, str] = {}
    for o in graph:
        near = [chosen[graph.ops[p].name] for p, _ in o.inputs]
        if near and rng.random() < sticky:
            chosen[o.name] = near[0]
        else:
            chosen[o.name] = devices[rng.integers(len(devices))]
    return Affinity.from_graph(graph, chosen)
