"""Small networks with the structure of well-known ones, which the samples lack."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import openvino as ov
from openvino import opset13 as op


class Layers:
    """Makes named layers with random weights."""

    def __init__(self, seed: int = 0):
        self.rng = np.random.default_rng(seed)
        self.count = 0

    def weights(self, *shape: int):
        scale = 1.0 / np.sqrt(np.prod(shape[1:]) or 1)
        return op.constant((self.rng.normal(size=shape) * scale).astype(np.float32))

    def name(self, node, kind: str):
        node = node if isinstance(node, ov.Node) else node.get_node()
        node.set_friendly_name(f"{kind}_{self.count}")
        self.count += 1
        return node.output(0)

    def conv(self, x, n: int, kernel: int = 3, stride: int = 1, act: str = "relu"):
        channels, pad = x.get_partial_shape()[1].get_length(), kernel // 2
        made = op.convolution(
            x, self.weights(n, channels, kernel, kernel), [stride] * 2, [pad] * 2, [pad] * 2, [1, 1]
        )
        made = self.name(op.add(self.name(made, "conv"), self.weights(1, n, 1, 1)), "bias")
        if act == "silu":
            return self.name(op.multiply(made, self.name(op.sigmoid(made), "sigmoid")), "silu")
        if act == "leaky":
            return self.name(op.prelu(made, op.constant(np.full(n, 0.1, np.float32))), "leaky")
        return made if not act else self.name(op.relu(made), "relu")

    def pool(self, x, kernel: int = 2, stride: int = 2, pad: int = 0):
        args = ([stride] * 2, [1, 1], [pad] * 2, [pad] * 2, [kernel] * 2)
        return self.name(op.max_pool(x, *args), "pool")

    def up(self, x):
        shape = x.get_partial_shape()
        size = op.constant([2 * shape[d].get_length() for d in (2, 3)], dtype=np.int64)
        axes = op.constant([2, 3], dtype=np.int64)
        return self.name(op.interpolate(x, size, "nearest", "sizes", axes=axes), "up")

    def concat(self, xs: Iterable, axis: int = 1):
        return self.name(op.concat(list(xs), axis), "concat")

    def add(self, x, y):
        return self.name(op.add(x, y), "add")

    def flat(self, x, *shape: int):
        return self.name(op.reshape(x, op.constant(list(shape), dtype=np.int64), False), "reshape")

    def turned(self, x, *order: int):
        return self.name(op.transpose(x, op.constant(list(order), dtype=np.int64)), "transpose")

    def linear(self, x, n: int, act: str = ""):
        wide = x.get_partial_shape()[-1].get_length()
        made = self.name(op.matmul(x, self.weights(wide, n), False, False), "matmul")
        made = self.name(op.add(made, self.weights(n)), "bias")
        args = ["tanh"] if act == "gelu" else []
        return self.name(getattr(op, act)(made, *args), act) if act else made

    def norm(self, x):
        axes = op.constant([-1], dtype=np.int64)
        return self.name(op.mvn(x, axes, True, 1e-6, "INSIDE_SQRT"), "norm")

    def softmax(self, x, axis: int = -1):
        return self.name(op.softmax(x, axis), "softmax")

    def attention(self, x, heads: int, wide: int):
        n, size = x.get_partial_shape()[1].get_length(), wide // heads

        def split(y):
            return self.turned(self.flat(y, 1, n, heads, size), 0, 2, 1, 3)

        q, k, v = (split(self.linear(x, wide)) for _ in range(3))
        scores = self.name(op.matmul(q, k, False, True), "matmul")
        mixed = self.name(op.matmul(self.softmax(scores), v, False, False), "matmul")
        return self.linear(self.flat(self.turned(mixed, 0, 2, 1, 3), 1, n, wide), wide)


def _image(size: int = 64):
    return op.parameter([1, 3, size, size], np.float32, name="image")


def _model(name: str, inputs, outputs) -> ov.Model:
    return ov.Model([op.result(y) for y in outputs], list(inputs), name)


def _c2f(net: Layers, x, n: int):
    x = net.conv(x, n, 1, act="silu")
    parts = [net.name(op.split(x, op.constant(1), 2), "split")]
    a, b = parts[0].get_node().outputs()
    c = net.add(b, net.conv(net.conv(b, n // 2, act="silu"), n // 2, act="silu"))
    return net.conv(net.concat([a, b, c]), n, 1, act="silu")


def _neck(net: Layers, image, block):
    x = net.conv(net.conv(image, 8, stride=2, act="silu"), 16, stride=2, act="silu")
    p3 = block(net, net.conv(block(net, x, 16), 16, stride=2, act="silu"), 16)
    p4 = block(net, net.conv(p3, 32, stride=2, act="silu"), 32)
    pooled = [net.conv(p4, 16, 1, act="silu")]
    for _ in range(3):
        pooled.append(net.pool(pooled[-1], 5, 1, 2))
    p4 = net.conv(net.concat(pooled), 32, 1, act="silu")
    low = block(net, net.concat([net.up(p4), p3]), 16)
    high = block(net, net.concat([net.conv(low, 16, stride=2, act="silu"), p4]), 32)
    return low, high


def yolo_dfl() -> ov.Model:
    """YOLOv8: distribution focal loss, a Softmax over 16 bins, behind two heads."""
    net, image = Layers(8), _image()
    flat = []
    for x in _neck(net, image, _c2f):
        boxes = net.conv(net.conv(x, 32, act="silu"), 64, 1, act="")
        classes = net.conv(net.conv(x, 16, act="silu"), 4, 1, act="")
        n = x.get_partial_shape()[2].get_length() ** 2
        flat.append(net.flat(net.concat([boxes, classes]), 1, 68, n))
    both = net.concat(flat, 2)
    split = op.variadic_split(both, op.constant(1), op.constant([64, 4], dtype=np.int64))
    boxes, classes = net.name(split, "heads").get_node().outputs()
    n = both.get_partial_shape()[2].get_length()
    bins = net.softmax(net.turned(net.flat(boxes, 1, 4, 16, n), 0, 2, 1, 3), 1)
    sides = net.flat(net.conv(bins, 1, 1, act=""), 1, 4, n)
    near, far = net.name(op.split(sides, op.constant(1), 2), "sides").get_node().outputs()
    anchors = net.weights(1, 2, n)
    low = net.name(op.subtract(anchors, near), "low")
    high = net.name(op.add(anchors, far), "high")
    corners = net.concat([net.add(low, high), net.name(op.subtract(high, low), "size")])
    scores = net.name(op.sigmoid(classes), "scores")
    return _model("yolo_dfl", [image], [net.concat([corners, scores])])


def yolo_anchors() -> ov.Model:
    """YOLOv5: sigmoid, grid and anchors per level."""
    net, image = Layers(5), _image()
    levels = []
    for x in _neck(net, image, _c2f):
        size = x.get_partial_shape()[2].get_length()
        y = net.flat(net.conv(x, 18, 1, act=""), 1, 3, 6, size, size)
        y = net.name(op.sigmoid(net.turned(y, 0, 1, 3, 4, 2)), "sigmoid")
        split = op.variadic_split(y, op.constant(4), op.constant([2, 2, 2], dtype=np.int64))
        xy, wh, rest = net.name(split, "split").get_node().outputs()
        xy = net.name(
            op.multiply(net.add(xy, net.weights(1, 1, size, size, 2)), np.float32(8)), "xy"
        )
        wh = net.name(op.power(wh, np.float32(2)), "wh")
        levels.append(net.flat(net.concat([xy, wh, rest], 4), 1, -1, 6))
    return _model("yolo_anchors", [image], [net.concat(levels, 1)])


def yolo_decoupled() -> ov.Model:
    """YOLOX: classes, boxes and objectness apart, exponentials at the end."""
    net, image = Layers(10), _image()
    levels = []
    for x in _neck(net, image, _c2f):
        n = x.get_partial_shape()[2].get_length() ** 2
        x = net.conv(x, 16, 1, act="silu")
        a, b = net.conv(x, 16, act="silu"), net.conv(x, 16, act="silu")
        classes = net.name(op.sigmoid(net.conv(a, 4, 1, act="")), "sigmoid")
        objects = net.name(op.sigmoid(net.conv(b, 1, 1, act="")), "sigmoid")
        levels.append(net.flat(net.concat([net.conv(b, 4, 1, act=""), objects, classes]), 1, 9, n))
    out = net.turned(net.concat(levels, 2), 0, 2, 1)
    split = op.variadic_split(out, op.constant(2), op.constant([2, 2, 5], dtype=np.int64))
    xy, wh, rest = net.name(split, "split").get_node().outputs()
    boxes = [net.add(xy, net.weights(1, out.get_partial_shape()[1].get_length(), 2))]
    boxes += [net.name(op.exp(wh), "exp"), rest]
    return _model("yolo_decoupled", [image], [net.concat(boxes, 2)])


def _recurrent(net: Layers, x, size: int, kind: str = "lstm"):
    """A bidirectional layer, whose cells are a TensorIterator's or a sequence's."""
    n, wide = (x.get_partial_shape()[d].get_length() for d in (1, 2))
    gates = {"lstm": 4, "gru": 3}[kind] * size
    state = op.constant(np.zeros((1, 2, size), np.float32))
    length = op.constant([n], dtype=np.int64)
    w, r = net.weights(2, gates, wide), net.weights(2, gates, size)
    if kind == "lstm":
        made = op.lstm_sequence(
            x, state, state, length, w, r, net.weights(2, gates), size, "bidirectional"
        )
    else:
        made = op.gru_sequence(x, state, length, w, r, net.weights(2, gates), size, "bidirectional")
    out = net.name(made, kind)
    return net.flat(net.turned(out, 0, 2, 1, 3), 1, n, 2 * size)


def ocr_crnn() -> ov.Model:
    """CRNN: convolutions, two bidirectional LSTMs, a classifier over time steps."""
    net = Layers(1)
    image = op.parameter([1, 1, 32, 64], np.float32, name="line")
    x = image
    for n in (8, 16, 32):
        x = net.pool(net.conv(net.conv(x, n), n))
    x = net.flat(net.turned(x, 0, 3, 1, 2), 1, 8, 128)
    for _ in range(2):
        x = net.linear(_recurrent(net, x, 16), 32)
    return _model("ocr_crnn", [image], [net.softmax(net.linear(x, 40))])


def ocr_svtr() -> ov.Model:
    """SVTR: a convolutional stem, attention blocks in between, CTC at the end."""
    net = Layers(2)
    image = op.parameter([1, 3, 32, 64], np.float32, name="line")
    x = net.conv(net.conv(net.conv(image, 16, stride=2), 32, stride=2), 32, stride=2)
    skip = x
    y = net.turned(net.flat(net.conv(x, 32, 1), 1, 32, 32), 0, 2, 1)
    for _ in range(2):
        y = net.add(y, net.attention(net.norm(y), 2, 32))
        y = net.add(y, net.linear(net.linear(net.norm(y), 64, "swish"), 32))
    y = net.conv(net.flat(net.turned(net.norm(y), 0, 2, 1), 1, 32, 4, 8), 32, 1)
    z = net.conv(net.concat([skip, y]), 32)
    z = net.turned(net.flat(z, 1, 32, 32), 0, 2, 1)
    return _model("ocr_svtr", [image], [net.softmax(net.linear(z, 40))])


def encoder(n_layers: int = 4) -> ov.Model:
    """BERT: attention and feed-forward layers with residuals."""
    net = Layers(3)
    x = given = op.parameter([1, 16, 32], np.float32, name="embedded")
    x = net.norm(x)
    for _ in range(n_layers):
        x = net.norm(net.add(x, net.attention(x, 2, 32)))
        x = net.norm(net.add(x, net.linear(net.linear(x, 64, "gelu"), 32)))
    return _model("encoder", [given], [net.linear(x, 2), net.linear(x, 8, "tanh")])


def gated() -> ov.Model:
    """A decoder's layers: RMS norms, gated feed-forward, a causal mask from a second input."""
    net = Layers(4)
    x = given = op.parameter([1, 16, 32], np.float32, name="embedded")
    mask = op.parameter([1, 1, 16, 16], np.float32, name="mask")
    for _ in range(4):
        y = net.norm(x)
        q, k, v = (
            net.turned(net.flat(net.linear(y, 32), 1, 16, 2, 16), 0, 2, 1, 3) for _ in range(3)
        )
        scores = net.add(net.name(op.matmul(q, k, False, True), "matmul"), mask)
        mixed = net.name(op.matmul(net.softmax(scores), v, False, False), "matmul")
        x = net.add(x, net.linear(net.flat(net.turned(mixed, 0, 2, 1, 3), 1, 16, 32), 32))
        y = net.norm(x)
        gate = net.name(op.swish(net.linear(y, 64)), "swish")
        x = net.add(x, net.linear(net.name(op.multiply(gate, net.linear(y, 64)), "gated"), 32))
    return _model("gated", [given, mask], [net.linear(net.norm(x), 64)])


def unet() -> ov.Model:
    """U-Net: three levels with skips."""
    net, image = Layers(6), _image(32)
    x, skips = image, []
    for n in (8, 16, 32):
        x = net.conv(net.conv(x, n), n)
        skips.append(x)
        x = net.pool(x)
    x = net.conv(x, 32)
    for n in (32, 16, 8):
        x = net.conv(net.conv(net.concat([net.up(x), skips.pop()]), n), n)
    return _model("unet", [image], [net.softmax(net.conv(x, 4, 1, act=""), 1)])


def ssd() -> ov.Model:
    """SSD: boxes and classes of four levels, each class map through a Softmax."""
    net, image = Layers(7), _image()
    x, boxes, classes = net.conv(net.conv(image, 8, stride=2), 16, stride=2), [], []
    for n in (16, 32, 32, 32):
        x = net.conv(net.conv(x, n, 1), n, stride=2)
        boxes.append(net.flat(net.turned(net.conv(x, 16, act=""), 0, 2, 3, 1), 1, -1, 4))
        classes.append(net.flat(net.turned(net.conv(x, 20, act=""), 0, 2, 3, 1), 1, -1, 5))
    scores = net.softmax(net.concat(classes, 1))
    decoded = net.name(op.multiply(net.concat(boxes, 1), net.weights(1, 1, 4)), "decode")
    return _model("ssd", [image], [decoded, scores])


def faces() -> ov.Model:
    """A face detector: residual blocks with leaky activations, two levels, three outputs each."""
    net, image = Layers(9), _image()
    x = net.conv(image, 8, stride=2, act="leaky")
    outputs = []
    for n in (8, 16, 32):
        y = net.conv(net.conv(x, x.get_partial_shape()[1].get_length(), act=""), n, 1, act="")
        side = x if n == 8 else net.conv(x, n, 1, act="")
        x = net.pool(net.name(op.relu(net.add(side, y)), "relu"))
        if n > 8:
            scores = net.softmax(net.flat(net.turned(net.conv(x, 4, act=""), 0, 2, 3, 1), 1, -1, 2))
            outputs += [scores, net.conv(x, 8, act=""), net.conv(x, 20, act="")]
    return _model("faces", [image], outputs)


def speech() -> ov.Model:
    """A keyword spotter: convolutions over time, a bidirectional GRU, attention pooling."""
    net = Layers(11)
    sound = op.parameter([1, 1, 32, 40], np.float32, name="spectrum")
    x = net.conv(net.conv(sound, 8, stride=2), 16, stride=2)
    x = _recurrent(net, net.flat(net.turned(x, 0, 2, 1, 3), 1, 8, 160), 16, "gru")
    weights = net.softmax(net.linear(net.linear(x, 16, "tanh"), 1), 1)
    pooled = net.name(op.reduce_sum(op.multiply(x, weights), op.constant([1]), False), "pooled")
    return _model("speech", [sound], [net.softmax(net.linear(net.linear(pooled, 16, "relu"), 10))])


def lstm() -> ov.Model:
    """A text classifier: two recurrent layers with a residual."""
    net = Layers(12)
    words = op.parameter([1, 12, 32], np.float32, name="words")
    x = net.linear(words, 32, "tanh")
    for _ in range(2):
        x = net.norm(net.add(x, _recurrent(net, x, 16)))
    last = net.name(op.reduce_max(x, op.constant([1]), False), "last")
    return _model("lstm", [words], [net.softmax(net.linear(net.linear(last, 16, "relu"), 4))])


ZOO: dict[str, Callable[[], ov.Model]] = {
    made.__name__: made
    for made in (
        yolo_dfl, yolo_anchors, yolo_decoupled, ocr_crnn, ocr_svtr, encoder, gated, unet, ssd,
        faces, speech, lstm,
    )
}  # fmt: skip
