"""Networks of the usual kinds, in which the ops of a report are embedded."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13 as ops


def weights(*shape: int) -> ov.Node:
    """Return normal weights, always the same, that keep the size of what they are applied to."""
    values = np.random.default_rng(shape).standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
    return ops.constant(values.astype(np.float32))


def integers(*values: int) -> ov.Node:
    return ops.constant(np.array(values, np.int64))


def convolution(x: ov.Node, channels: int, size: int = 3, stride: int = 1) -> ov.Node:
    """A convolution with bias that keeps the height and width, or divides them by the stride."""
    kernel = weights(channels, x.output(0).shape[1], size, size)
    pads = [size // 2] * 2
    made = ops.convolution(x, kernel, [stride] * 2, pads, pads, [1, 1])
    return ops.add(made, weights(1, channels, 1, 1))


def residual_network(x: ov.Node, blocks: int = 8, channels: int = 16) -> ov.Node:
    """A stem and residual blocks, which halve the height and width after every third one."""
    x = ops.relu(convolution(x, channels, stride=2))
    for number in range(blocks):
        inner = ops.relu(convolution(x, channels))
        x = ops.relu(ops.add(x, convolution(inner, channels)))
        if number % 3 == 2:
            x = ops.avg_pool(x, [2, 2], [0, 0], [0, 0], [2, 2], False)
    return x


def pooled(x: ov.Node) -> ov.Node:
    """Return the mean of each channel, as a matrix."""
    return ops.reduce_mean(x, integers(2, 3), False)


def dense(x: ov.Node, size: int) -> ov.Node:
    width = x.output(0).shape[-1]
    return ops.add(ops.matmul(x, weights(size, width), False, True), weights(1, size))


def encoder(x: ov.Node, layers: int = 4, heads: int = 2) -> ov.Node:
    """A transformer encoder on ``[batch, tokens, width]``."""
    batch, tokens, width = x.output(0).shape
    for _ in range(layers):
        split = integers(batch, tokens, heads, width // heads)
        query, key, value = (
            ops.transpose(
                ops.reshape(ops.matmul(x, weights(width, width), False, True), split, False),
                integers(0, 2, 1, 3),
            )
            for _ in range(3)
        )
        scale = ops.constant(np.float32(np.sqrt(width / heads)))
        scores = ops.softmax(ops.divide(ops.matmul(query, key, False, True), scale), 3)
        read = ops.transpose(ops.matmul(scores, value, False, False), integers(0, 2, 1, 3))
        read = ops.reshape(read, integers(batch, tokens, width), False)
        x = _normalised(ops.add(x, ops.matmul(read, weights(width, width), False, True)))
        inner = ops.gelu(ops.matmul(x, weights(2 * width, width), False, True), "erf")
        x = _normalised(ops.add(x, ops.matmul(inner, weights(width, 2 * width), False, True)))
    return x


def _normalised(x: ov.Node) -> ov.Node:
    return ops.mvn(x, integers(2), True, 1e-5, "inside_sqrt")
