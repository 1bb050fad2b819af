"""Models on which OpenVINO 2026.4.1's CPU plugin crashes."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13 as op

_RNG = np.random.default_rng(0)


def attention(layers: int = 3) -> ov.Model:
    """Layers of one-head attention: SIGSEGV in the query."""
    x = given = op.parameter([1, 16, 32], np.float32, name="x")
    for number in range(layers):
        weights = [_RNG.standard_normal((32, 32)).astype(np.float32) / 10 for _ in "qkv"]
        q, k, v = (op.matmul(x, op.constant(w), False, False) for w in weights)
        seen = op.softmax(op.matmul(q, k, False, True), -1)
        x = op.add(x, op.matmul(seen, v, False, False), name=f"add{number}")
    return ov.Model([op.result(x)], [given], "attention")


def empty_indices() -> ov.Model:
    """A Gather without indices: SIGFPE in the compile."""
    x = op.parameter([4, 3], np.float32, name="x")
    taken = op.gather(x, op.constant(np.zeros(0, np.int64)), op.constant(np.int64(0)))
    return ov.Model([op.result(op.relu(taken))], [x], "gather")


def empty_rows() -> ov.Model:
    """A Gather of columns where there are no rows: SIGFPE in the compile."""
    x = op.parameter([0, 3], np.float32, name="x")
    taken = op.gather(x, op.constant(np.array([0, 1])), op.constant(np.int64(1)))
    return ov.Model([op.result(taken)], [x], "rows")


def empty_batch() -> ov.Model:
    """An LSTMSequence of batch 0: SIGFPE in the compile."""
    x = op.parameter([0, 3, 4], np.float32, name="x")
    states = [op.parameter([0, 1, 8], np.float32, name=name) for name in "hc"]
    weights = [_RNG.standard_normal((1, 32, n)).astype(np.float32) for n in (4, 8)]
    lengths, bias = op.constant(np.zeros(0, np.int32)), op.constant(np.zeros((1, 32), np.float32))
    given = [*states, lengths, *map(op.constant, weights), bias]
    lstm = op.lstm_sequence(x, *given, 8, "FORWARD")
    return ov.Model([op.result(lstm.output(0))], [x, *states], "lstm")
