"""Hypothesis strategies: models that HETERO can be asked to split, and how they are placed.

Everything is drawn piece by piece, so that a failing example shrinks to a small one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
from hypothesis import strategies as st
from openvino import opset13 as op
from small_models import NASTY_NAMES, variable

SHAPE = (1, 4, 6, 6)
DEVICES = ("ACC", "ACC2", "CPU")
_UNARY = {"relu": op.relu, "abs": op.abs, "tanh": op.tanh, "sigmoid": op.sigmoid}
_BINARY = {"add": op.add, "subtract": op.subtract, "maximum": op.maximum, "minimum": op.minimum}
_KINDS = (*_UNARY, *_BINARY, "shared", "computed", "conv", "split", "softmax", "shuffle", "state")
_NAMES = [name for name in NASTY_NAMES if len(name) < 100]


@dataclass(frozen=True)
class Step:
    """An op to be made: which kind, of which earlier tensors (counted from the latest)."""

    kind: str
    first: int
    second: int
    name: str
    output: bool


@dataclass(frozen=True)
class Case:
    """A model and a placement of it, as numbers that any graph can be read with.

    ``homes`` is the device of each op in turn (again from the start where there are more ops),
    ``lacks`` the op types that ACC does not support in automatic mode.
    """

    n_inputs: int
    unused_input: bool
    passes_through: bool
    constant_output: bool
    steps: tuple[Step, ...]
    homes: tuple[str, ...]
    sticky: bool
    lacks: frozenset[str]
    properties: dict[str, dict[str, Any]]
    seed: int
    scale: float


def cases(most_ops: int = 24) -> st.SearchStrategy[Case]:
    """Return a strategy for cases of up to ``most_ops`` ops."""
    step = st.builds(
        Step,
        kind=st.sampled_from(_KINDS),
        first=st.one_of(st.integers(0, 2), st.integers(0, 40)),
        second=st.one_of(st.integers(0, 3), st.integers(0, 40)),
        name=st.one_of(st.just(""), st.just(""), st.sampled_from(_NAMES), st.text(max_size=12)),
        output=st.sampled_from([False, False, False, False, True]),
    )
    own = st.fixed_dictionaries(
        {"INFERENCE_PRECISION_HINT": st.just("f32")},
        optional={
            "INFERENCE_NUM_THREADS": st.sampled_from([1, 2]),
            "NUM_STREAMS": st.sampled_from([1, 2]),
            "ENABLE_CPU_PINNING": st.booleans(),
            "EXCLUSIVE_ASYNC_REQUESTS": st.booleans(),
            "PERFORMANCE_HINT": st.sampled_from(["LATENCY", "THROUGHPUT"]),
        },
    )
    return st.builds(
        Case,
        n_inputs=st.integers(1, 3),
        unused_input=st.sampled_from([False] * 7 + [True]),
        passes_through=st.sampled_from([False] * 7 + [True]),
        constant_output=st.sampled_from([False] * 7 + [True]),
        steps=st.lists(step, min_size=2, max_size=most_ops).map(tuple),
        homes=st.lists(st.sampled_from(DEVICES), min_size=1, max_size=most_ops).map(tuple),
        sticky=st.booleans(),
        lacks=st.frozensets(st.sampled_from(["Relu", "Add", "Convolution", "Softmax", "Concat"])),
        properties=st.fixed_dictionaries(dict.fromkeys(DEVICES, own)),
        seed=st.integers(0, 2**32 - 1),
        scale=st.sampled_from([0.0, 1e-3, 1.0, 30.0]),
    )


def build(case: Case) -> ov.Model:
    """Make the model of a case."""
    rng = np.random.default_rng(0)
    shared = [op.constant(rng.normal(size=SHAPE).astype(np.float32)) for _ in range(2)]
    # Not folded away: a compressed weight stays as it is until it runs.
    packed = op.constant(rng.normal(size=SHAPE).astype(np.float16))
    computed = op.convert(packed, "f32")
    weights = op.constant((rng.normal(size=(4, 4, 3, 3)) / 6).astype(np.float32))
    inputs = [op.parameter(list(SHAPE), np.float32, name=f"in{i}") for i in range(case.n_inputs)]
    tensors = [parameter.output(0) for parameter in inputs]
    results, sinks = [], []
    for number, step in enumerate(case.steps):
        first = tensors[-1 - step.first % len(tensors)]
        second = tensors[-1 - step.second % len(tensors)]
        made, sink = _make(step, number, first, second, shared, computed, weights)
        sinks += sink
        if step.name:
            made[-1].get_node().set_friendly_name(step.name)
        tensors += made
        if step.output:
            results.append(op.result(made[-1]))
    for tensor in tensors[case.n_inputs :]:
        if not tensor.get_target_inputs():
            results.append(op.result(tensor))
    if case.unused_input:
        inputs.append(op.parameter([2], np.float32, name="unused"))
    if case.passes_through:
        results.append(op.result(inputs[0]))
    if case.constant_output:
        results.append(op.result(shared[0]))
    order = np.random.default_rng(case.seed).permutation(len(results))
    model = ov.Model([results[i] for i in order], sinks, inputs, "drawn")
    given = {step.name for step in case.steps} | {p.get_friendly_name() for p in inputs}
    for number, node in enumerate(model.get_ordered_ops()):
        if node.get_friendly_name() not in given:
            # The runtime's own numbers go on from model to model.
            node.set_friendly_name(f"{node.get_type_name()}.{number}")
    return model


def _make(step, number, first, second, shared, computed, weights):
    kind = step.kind
    if kind in _UNARY:
        return [_UNARY[kind](first).output(0)], []
    if kind in _BINARY:
        return [_BINARY[kind](first, second).output(0)], []
    if kind == "shared":
        return [op.add(first, shared[step.second % 2]).output(0)], []
    if kind == "computed":
        return [op.multiply(first, computed).output(0)], []
    if kind == "conv":
        return [op.convolution(first, weights, [1, 1], [1, 1], [1, 1], [1, 1]).output(0)], []
    if kind == "softmax":
        return [op.softmax(first, 1).output(0)], []
    if kind == "shuffle":
        turned = op.transpose(first, op.constant(np.array([0, 1, 3, 2])))
        return [op.reshape(turned, op.constant(np.array(SHAPE)), False).output(0)], []
    if kind == "split":
        halves = op.split(first, op.constant(1), 2)
        return [op.concat([halves.output(1), op.abs(halves.output(0))], 1).output(0)], []
    kept = variable(f"v{number}", *SHAPE)
    read = op.read_value(op.constant(np.zeros(SHAPE, np.float32)), kept)
    total = op.add(read, first)
    return [total.output(0)], [op.assign(total, kept)]


def inputs_of(case: Case, model: ov.Model) -> dict[str, np.ndarray]:
    """Make the inputs of a case, also all zeros, tiny and large ones."""
    rng = np.random.default_rng(case.seed)
    return {
        port.get_node().get_friendly_name(): (
            rng.normal(size=tuple(port.get_shape())) * case.scale
        ).astype(np.float32)
        for port in model.inputs
    }
