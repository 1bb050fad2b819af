"""A small decoder as language models are exported: dynamic, with its key-value cache in states."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
from openvino import opset13 as op

from hetero_lab.model.read import input_name
from hetero_lab.model.static_phases import StaticPhases
from hetero_lab.runtime.compiled import CompiledPlacement
from hetero_lab.runtime.tensors import to_tensor
from tests.small_models import variable

VOCABULARY = 97
_HEADS, _KV_HEADS, _HEAD = 4, 2, 8
_WIDTH = _HEADS * _HEAD


def decoder(n_blocks: int = 3, seed: int = 0, *, empty_from: str = "inputs") -> ov.Model:
    """Build a decoder with random weights: RMS norms, rotary positions, grouped-query attention.

    Inputs ``input_ids``, ``attention_mask``, ``position_ids``, ``beam_idx``, all dynamic; output
    ``logits``; two states a block. Ops of block 2 have names that begin with ``layers.2/``. Blocks
    share the op that shapes their empty states; with ``empty_from="layer"`` each has its own, so
    that the model can be cut between any two, with ``"constant"`` they are constants.
    """
    rng = np.random.default_rng(seed)

    def weights(*shape: int) -> ov.Node:
        return op.constant((rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32))

    def whole(*values: int) -> ov.Node:
        return op.constant(np.array(values, np.int64))

    def linear(x: ov.Node, n_out: int, n_in: int, name: str) -> ov.Node:
        return op.matmul(x, weights(n_out, n_in), False, True, name=name)

    def norm(x: ov.Node, name: str) -> ov.Node:
        square = op.power(x, op.constant(np.float32(2)), name=f"{name}/square")
        mean = op.reduce_mean(square, whole(-1), True, name=f"{name}/mean")
        root = op.sqrt(op.add(mean, op.constant(np.float32(1e-5))), name=f"{name}/root")
        gain = op.constant(rng.uniform(0.5, 1.5, _WIDTH).astype(np.float32))
        return op.multiply(op.divide(x, root), gain, name=name)

    ids = named_input("input_ids", [-1, -1], np.int64)
    attention = named_input("attention_mask", [-1, -1], np.int64)
    positions = named_input("position_ids", [-1, -1], np.int64)
    beam = named_input("beam_idx", [-1], np.int32)

    shape = op.shape_of(ids, name="shape_of_ids")
    batch = op.gather(shape, whole(0), whole(0), name="batch")
    length = op.gather(shape, op.constant(np.int64(1)), whole(0), name="length")
    no_past = op.concat([batch, whole(_KV_HEADS, 0, _HEAD)], 0, name="shape_of_no_past")

    # Rotary positions, [batch, 1, length, head]
    frequencies = op.constant((100.0 ** -np.arange(0, 1, 2 / _HEAD)).astype(np.float32))
    angles = op.multiply(
        op.unsqueeze(op.convert(positions, "f32"), whole(-1)), frequencies, name="angles"
    )
    angles = op.unsqueeze(op.concat([angles, angles], -1), whole(1))
    cos, sin = op.cos(angles, name="cos"), op.sin(angles, name="sin")

    # A key is seen if it is not padding and does not come later: [batch, 1, length, total]
    total = op.gather(op.shape_of(attention), op.constant(np.int64(1)), whole(0), name="total")
    zero, one = op.constant(np.int64(0)), op.constant(np.int64(1))
    keys = op.range(zero, total, one, "i64", name="keys")
    queries = op.add(op.range(zero, length, one, "i64"), op.subtract(total, length), name="queries")
    causal = op.less_equal(keys, op.unsqueeze(queries, whole(1)), name="causal")
    real = op.not_equal(op.unsqueeze(attention, whole(1, 2)), zero, name="not_padding")
    bias = op.select(
        op.logical_and(causal, real),
        op.constant(np.float32(0)),
        op.constant(np.float32(-1e9)),
        name="mask",
    )

    def rotated(x: ov.Node, name: str) -> ov.Node:
        low, high = op.split(x, op.constant(3), 2).outputs()
        turned = op.concat([op.negative(high), low], -1)
        return op.add(op.multiply(x, cos), op.multiply(turned, sin), name=name)

    def heads(x: ov.Node, n: int, name: str) -> ov.Node:
        split = op.reshape(x, whole(0, 0, n, _HEAD), True, name=f"{name}/split")
        return op.transpose(split, whole(0, 2, 1, 3), name=name)

    def cached(x: ov.Node, kind: str, block: int) -> tuple[ov.Node, ov.Node]:
        state = f"past_key_values.{block}.{kind}present.{block}.{kind}"
        kept, prefix = variable(state, -1, _KV_HEADS, -1, _HEAD), f"layers.{block}/{kind}"
        shape = no_past
        if empty_from == "layer":
            n = op.gather(op.shape_of(x, name=f"{prefix}/shape"), whole(0), whole(0))
            sizes = [n, whole(_KV_HEADS, 0, _HEAD)]
            shape = op.concat(sizes, 0, name=f"{prefix}/shape_of_no_past")
        empty = op.broadcast(op.constant(np.float32(0)), shape, name=f"{prefix}/empty")
        if empty_from == "constant":
            empty = op.constant(np.zeros((1, _KV_HEADS, 0, _HEAD), np.float32))
        past = op.gather(op.read_value(empty, kept, name=f"{prefix}/past"), beam, whole(0))
        every = op.concat([past, x], 2, name=f"{prefix}/every")
        assign = op.assign(every, kept, name=f"{prefix}/keep")
        # Each group of query heads shares a head: [batch, kv, 1, total, head] is repeated.
        wide = op.broadcast(
            op.unsqueeze(every, whole(2)),
            whole(1, 1, _HEADS // _KV_HEADS, 1, 1),
            broadcast_spec="BIDIRECTIONAL",
        )
        return op.reshape(wide, whole(0, _HEADS, -1, _HEAD), True, name=f"{prefix}/shared"), assign

    table = weights(VOCABULARY, _WIDTH)
    x = op.gather(table, ids, op.constant(0), name="embedding")
    sinks = []
    for block in range(n_blocks):
        name = f"layers.{block}"
        y = norm(x, f"{name}/input_norm")
        query = heads(linear(y, _WIDTH, _WIDTH, f"{name}/q"), _HEADS, f"{name}/q_heads")
        width = _KV_HEADS * _HEAD
        key = heads(linear(y, width, _WIDTH, f"{name}/k"), _KV_HEADS, f"{name}/k_heads")
        value = heads(linear(y, width, _WIDTH, f"{name}/v"), _KV_HEADS, f"{name}/v_heads")
        keys_of, keep_keys = cached(rotated(key, f"{name}/k_rotated"), "key", block)
        values_of, keep_values = cached(value, "value", block)
        sinks += [keep_keys, keep_values]
        seen = op.scaled_dot_product_attention(
            rotated(query, f"{name}/q_rotated"), keys_of, values_of, bias, name=f"{name}/attention"
        )
        joined = op.reshape(
            op.transpose(seen, whole(0, 2, 1, 3)), whole(0, 0, _WIDTH), True, name=f"{name}/joined"
        )
        x = op.add(x, linear(joined, _WIDTH, _WIDTH, f"{name}/o"), name=f"{name}/attended")
        y = norm(x, f"{name}/mlp_norm")
        gate = op.swish(linear(y, 2 * _WIDTH, _WIDTH, f"{name}/gate"), name=f"{name}/act")
        up = op.multiply(gate, linear(y, 2 * _WIDTH, _WIDTH, f"{name}/up"), name=f"{name}/gated")
        x = op.add(x, linear(up, _WIDTH, 2 * _WIDTH, f"{name}/down"), name=f"{name}/out")
    logits = linear(norm(x, "norm"), VOCABULARY, _WIDTH, "lm_head")
    logits.output(0).set_names({"logits"})
    result = op.result(logits, name="logits_out")
    return ov.Model([result], sinks, [ids, attention, positions, beam], "small_decoder")


def named_input(name: str, shape: list[int], kind: type) -> ov.Node:
    """Return a parameter whose tensor has its name, too; -1 is an unknown size."""
    parameter = op.parameter(ov.PartialShape(shape), kind, name=name)
    parameter.output(0).set_names({name})
    return parameter


class StaticSession:
    """A session on the two static models of a language model, each placed by itself.

    The cache is kept here: what a step adds is written to where the next one reads it.
    """

    def __init__(self, phases: StaticPhases, prefill: CompiledPlacement, decode: CompiledPlacement):
        self._phases = phases
        self._ids = phases.language.inputs.index("input_ids")
        self._types = {
            input_name(port): port.get_element_type() for port in decode.prepared.model.inputs
        }
        self._requests = tuple(c.compiled_model.create_infer_request() for c in (prefill, decode))
        self._cache: list[np.ndarray] = []
        for number in range(len(phases.axes)):
            port = decode.prepared.model.input(f"past.{number}")
            tensor = to_tensor(
                np.zeros(port.shape, port.get_element_type().to_dtype()), port.get_element_type()
            )
            self._requests[1].set_tensor(f"past.{number}", tensor)
            self._cache.append(tensor.data)
        self._past = 0

    def reset(self) -> None:
        self._past = 0
        for cached in self._cache:
            cached[...] = 0

    def step(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        ids, past = arrays[self._ids], self._past
        n, is_further = ids.shape[1], int(past > 0)
        request = self._requests[is_further]
        for name, array in self._phases.feed(ids, past).items():
            request.set_tensor(name, to_tensor(array, self._types[name]))
        request.infer(share_outputs=True)
        for number, (cached, axis) in enumerate(zip(self._cache, self._phases.axes, strict=True)):
            if past + n <= cached.shape[axis]:
                new = np.moveaxis(request.get_output_tensor(1 + number).data, axis, 0)
                np.moveaxis(cached, axis, 0)[past : past + n] = new[:n]
        self._past += n
        return request.get_output_tensor(0).data[:, :n]
