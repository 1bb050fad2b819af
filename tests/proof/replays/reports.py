"""Public reports, each rebuilt from its text as a model of our own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from tests.proof.replays.networks import (
    convolution,
    dense,
    encoder,
    integers,
    pooled,
    residual_network,
    weights,
)

_OPENVINO = "https://github.com/openvinotoolkit/openvino"
Built = tuple[ov.Model, list[np.ndarray]]


@dataclass(frozen=True)
class Report:
    """A public report, and a model with inputs that has its symptom.

    ``release`` is one that shows it, ``between`` are the releases among which the change is
    searched; ``device`` is ``GPU`` for the GPU plugin on the OpenCL rig.
    """

    url: str
    title: str
    says: str
    symptom: str
    build: Callable[[], Built]
    release: str = "2026.4.1"
    between: tuple[str, str] = ("2024.0", "2026.4.1")
    device: str = "CPU"

    @property
    def name(self) -> str:
        return self.build.__name__


def _images(*shape: int) -> tuple[ov.Node, np.ndarray]:
    images = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    return ops.parameter(shape, np.float32, "images"), images


def smallest_of_two_heads() -> Built:
    """Join the rows of two heads of different length, and take the least."""
    x, images = _images(1, 3, 64, 64)
    features = pooled(residual_network(x))
    rows = [ops.reshape(dense(features, n * 26), integers(n, 26), False) for n in (3, 2)]
    least = ops.reduce_min(ops.concat(rows, 0), integers(0), False)
    return ov.Model([ops.sigmoid(least)], [x], "heads"), [images]


def largest_of_scores() -> Built:
    """Append the scores of two heads for each of 36 rows, and take the largest of a row."""
    x, rows = _images(36, 64)
    hidden = x
    for _ in range(8):
        hidden = ops.add(hidden, dense(ops.relu(dense(hidden, 96)), 64))
    scores = ops.concat([dense(hidden, 54), dense(hidden, 1)], 1)
    largest = ops.reduce_max(scores, integers(1), False)
    return ov.Model([ops.tanh(largest)], [x], "scores"), [rows]


def largest_byte() -> Built:
    """Take the largest of bytes, and the place of the largest of some of them, beside a network."""
    x, images = _images(1, 3, 64, 64)
    counts, floor = (ops.parameter([n], np.uint8, f"bytes_{n}") for n in (22, 1))
    place = ops.topk(counts, ops.constant(np.int64(1)), 0, "max", "none").output(1)
    place = ops.reshape(ops.convert(place, "f64"), integers(1, 1, 1, 1), False)
    largest = ops.reduce_max(ops.concat([counts, floor], 0), integers(0), False)
    made = [ops.softmax(pooled(residual_network(x)), 1), place, ops.convert(largest, "f32")]
    given = [images, np.arange(22, dtype=np.uint8) * 7 % 23, np.array([21], np.uint8)]
    return ov.Model(made, [x, counts, floor], "bytes"), given


def scalar_prelu() -> Built:
    """Pass the sum of all features, a scalar, through a leaky activation."""
    x, images = _images(1, 3, 64, 64)
    features = residual_network(x)
    total = ops.relu(ops.reduce_mean(features, integers(0, 1, 2, 3), False))
    leaky = ops.prelu(total, ops.constant(np.array([0.1], np.float32)))
    return ov.Model([ops.multiply(features, leaky)], [x], "total"), [images]


def keypoints_out_of_bounds() -> Built:
    """Read the features at keypoints, one of which lies far outside."""
    x, images = _images(1, 3, 64, 64)
    places = ops.parameter([5, 2], np.int32, "keypoints")
    features = ops.transpose(residual_network(x), integers(0, 2, 3, 1))
    read = ops.gather_nd(ops.squeeze(features, integers(0)), places, 0)
    given = np.array([[0, 0], [1, 1], [2, 2], [90_000_000, 3], [3, 3]], np.int32)
    return ov.Model([ops.softmax(dense(read, 4), 1)], [x, places], "keypoints"), [images, given]


def no_detections() -> Built:
    """Compare detections with classes, where nothing was detected."""
    x, images = _images(1, 3, 64, 64)
    boxes = ops.parameter([0, 32], np.float32, "boxes")
    classes = ops.reshape(dense(pooled(residual_network(x)), 5 * 32), integers(5, 32), False)
    likeness = ops.matmul(ops.relu(boxes), classes, False, True)
    given = np.zeros((0, 32), np.float32)
    return ov.Model([ops.softmax(likeness, 1), classes], [x, boxes], "none"), [images, given]


def branches_of_two_ranks() -> Built:
    """Choose between two branches, one of which drops an axis."""
    x, tokens = _images(1, 12, 32)
    flag = ops.parameter([], np.bool_, "flag")
    inner, other = (ops.parameter([1, 12, 32], np.float32) for _ in range(2))
    kept = ov.Model([ops.relu(inner)], [inner])
    dropped = ov.Model([ops.squeeze(other, integers(0))], [other])
    choice = ops.if_op(flag)
    choice.set_then_body(kept)
    choice.set_else_body(dropped)
    choice.set_input(encoder(x).output(0), inner, other)
    made = choice.set_output(kept.results[0], dropped.results[0])
    return ov.Model([ops.tanh(made)], [x, flag], "branches"), [tokens, np.array(True)]


def transposed_after_reduction() -> Built:
    """Sum up a profile of a map along an axis that a Transpose has moved."""
    x, images = _images(1, 3, 64, 64)
    heat = convolution(residual_network(x), 1)
    profile = ops.transpose(ops.reduce_mean(heat, integers(2), False), integers(0, 2, 1))
    sums = ops.cum_sum(profile, ops.constant(np.int64(1)))
    shares = ops.softmax(ops.reshape(sums, integers(8), False), 0)
    return ov.Model([shares], [x], "profile"), [images]


def sign_of_integers() -> Built:
    """Keep the tokens at which the sign of an index says so."""
    x, tokens = _images(1, 12, 32)
    index = ops.parameter([1, 12, 1], np.int32, "index")
    kept = ops.convert(ops.sign(index), "f32")
    given = np.arange(-4, 8, dtype=np.int32).reshape(1, 12, 1)
    made = ops.multiply(encoder(x), kept)
    return ov.Model([ops.softmax(made, 2)], [x, index], "kept"), [tokens, given]


def empty_cache() -> Built:
    """Multiply the keys of an empty window of a cache by the weights of a layer."""
    x, tokens = _images(1, 12, 32)
    window = ops.parameter([0, 32], np.float32, "window")
    keys = ops.matmul(window, weights(32, 32), False, False)
    given = np.zeros((0, 32), np.float32)
    return ov.Model([encoder(x), keys], [x, window], "window"), [tokens, given]


def query_of_filled_memories() -> Built:
    """Compare the rows of one query with those memories that are filled: an inner batch."""
    x, tokens = _images(1, 12, 32)
    n_filled = ops.parameter([1], np.int64, "n_filled")
    slots = ops.concat([ops.multiply(weights(1, 32, 16), weights(1, 1, 16))] * 8, 0)
    filled = ops.slice(slots, integers(0), n_filled, integers(1), integers(0))
    likeness = ops.matmul(encoder(x), ops.tanh(filled), False, False)
    summed = ops.reduce_sum(ops.softmax(likeness, 2), integers(0), False)
    return ov.Model([summed], [x, n_filled], "memories"), [tokens, np.array([5])]


REPORTS = (
    Report(
        f"{_OPENVINO}/issues/33236",
        "Compilation crash in ReplaceConcatReduceByMinOrMax pass",
        "ReduceMin of a Concat of [3, 26] and [2, 26] becomes a Minimum, whose shapes do not fit.",
        "refused",
        smallest_of_two_heads,
        "2025.4.1",
    ),
    Report(
        f"{_OPENVINO}/issues/33389",
        "Shape Inference Error: Concat followed by ReduceMax (axis=1) leaks input shape",
        "ReduceMax of a Concat of [36, 54] and [36, 1] gives a tensor of shape [36, 54].",
        "wrong",
        largest_of_scores,
        "2025.4.1",
    ),
    Report(
        f"{_OPENVINO}/issues/33262",
        "ReduceMax returns wrong shape when branch involves Concat/ArgMax",
        "ReduceMax of a Concat of [22] and [1] is a vector, seen beside a TopK of the former.",
        "wrong",
        largest_byte,
        "2025.4.1",
    ),
    Report(
        f"{_OPENVINO}/issues/33421",
        'ReshapePRelu optimization crashes with "out-of-range dimension"',
        "A PRelu whose input is a scalar is not compiled.",
        "refused",
        scalar_prelu,
        "2025.4.1",
    ),
    Report(
        f"{_OPENVINO}/pull/38297",
        "[cpu] Fix out-of-bounds access in GatherND and ScatterUpdate",
        "An index of GatherND that is out of bounds is not checked.",
        "crash",
        keypoints_out_of_bounds,
    ),
    Report(
        f"{_OPENVINO}/issues/37966",
        'CPU: MatMul with a zero-length dimension fails with "object is not initialized"',
        "A MatMul with an empty input and transpose_b is not compiled.",
        "refused",
        no_detections,
    ),
    Report(
        "https://github.com/microsoft/onnxruntime/issues/23757",
        "CPU plug-in doesn't support If operation with dynamic rank",
        "An If whose branches give tensors of different rank is not compiled.",
        "refused",
        branches_of_two_ranks,
    ),
    Report(
        f"{_OPENVINO}/issues/37959",
        "CPU: a Transpose that follows a keepdims=0 reduction is eliminated",
        "The next op reads the tensor in the shape before the Transpose.",
        "wrong",
        transposed_after_reduction,
    ),
    Report(
        f"{_OPENVINO}/pull/36003",
        "[GPU] Add Sign activation support for integer types",
        "Sign of integers is not compiled on GPU: the activation is not supported.",
        "refused",
        sign_of_integers,
        "2026.1",
        ("2026.0", "2026.4.1"),
        "GPU",
    ),
    Report(
        "https://github.com/ggml-org/llama.cpp/issues/21196",
        "GPU plugin crashes (divide-by-zero in JIT) on subgraphs containing 0-element tensors",
        "A tensor without elements makes the GPU plugin divide by zero.",
        "crash",
        empty_cache,
        "2026.4.1",
        ("2026.0", "2026.4.1"),
        "GPU",
    ),
    Report(
        f"{_OPENVINO}/pull/37499",
        "[GPU] Fix batch broadcasting of Gemm inputs",
        "A MatMul of [1, M, K] and [B, K, N] computes only the first slice, if B is dynamic.",
        "wrong",
        query_of_filled_memories,
        "2026.3.1",
        ("2026.0", "2026.4.1"),
        "GPU",
    ),
)
