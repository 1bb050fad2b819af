"""Small random models of dynamic shapes with states, as language models have them."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13 as op

from tests.small_language_models import named_input
from tests.small_models import variable

VOCABULARY, _WIDTH = 13, 8


def random_dynamic_model(seed: int) -> ov.Model:
    """Build a model of ``input_ids``, ``beam_idx`` and ``logits`` that computes shapes at random.

    Tensors are ``[batch, length, 8]``, or ``[batch, 1, 8]``; shapes are taken from tensors and
    from each other's parts, for reshapes, broadcasts, masks and empty states.
    """
    rng = np.random.default_rng(seed)
    ids = named_input("input_ids", [-1, -1], np.int64)
    beam = named_input("beam_idx", [-1], np.int32)
    tensors = [op.gather(_weights(rng, VOCABULARY, _WIDTH), ids, op.constant(0), name="embedding")]
    sizes = [op.gather(op.shape_of(ids), _whole(0), _whole(0), name="batch")]
    sinks: list[ov.Node] = []
    for number in range(int(rng.integers(4, 9))):
        x = tensors[int(rng.integers(len(tensors)))]
        batch = sizes[int(rng.integers(len(sizes)))]
        kind, name = rng.integers(6), f"part{number}"
        if kind == 0:
            y = op.relu(op.matmul(x, _weights(rng, _WIDTH, _WIDTH), False, True), name=name)
        elif kind == 1:
            y = op.add(x, tensors[int(rng.integers(len(tensors)))], name=name)
        elif kind == 2:  # there and back through another shape
            wide = op.reshape(x, op.concat([batch, _whole(-1, 2, 4)], 0), False)
            y = op.reshape(op.tanh(wide), _whole(0, 0, _WIDTH), True, name=name)
        elif kind == 3:
            ones = op.broadcast(op.constant(np.float32(0.5)), op.shape_of(x))
            y = op.multiply(x, ones, name=name)
        elif kind == 4:
            length = op.gather(op.shape_of(x), op.constant(np.int64(1)), _whole(0))
            places = op.range(op.constant(np.int64(0)), length, op.constant(np.int64(1)), "f32")
            y = op.add(x, op.unsqueeze(places, _whole(0, 2)), name=name)
        else:
            own = op.gather(op.shape_of(x), _whole(0), _whole(0), name=f"{name}/batch")
            sizes.append(own)
            first = own if rng.integers(2) else batch
            shape = op.concat([first, _whole(0, _WIDTH)], 0, name=f"{name}/shape")
            state = variable(name, -1, -1, _WIDTH)
            empty = op.broadcast(op.constant(np.float32(0)), shape, name=f"{name}/empty")
            past = op.read_value(empty, state, name=f"{name}/past")
            past = op.gather(past, beam, _whole(0))
            every = op.concat([past, x], 1, name=f"{name}/every")
            sinks.append(op.assign(every, state, name=f"{name}/keep"))
            y = op.add(x, op.reduce_mean(every, _whole(1), True), name=name)
        tensors.append(y)
    if not sinks:
        return random_dynamic_model(seed + 1_000_000)
    every = tensors[-1]
    for other in tensors[1:-1]:  # the plugin compiles no state that leads nowhere
        every = op.add(every, other)
    logits = op.matmul(every, _weights(rng, VOCABULARY, _WIDTH), False, True, name="lm_head")
    logits.output(0).set_names({"logits"})
    return ov.Model([op.result(logits)], sinks, [ids, beam], f"random_dynamic_{seed}")


def _weights(rng: np.random.Generator, *shape: int) -> ov.Node:
    return op.constant((rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32))


def _whole(*values: int) -> ov.Node:
    return op.constant(np.array(values, np.int64))
