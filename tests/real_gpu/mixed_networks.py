"""Well-known networks whose parts differ: convolutions beside what is not, with random weights.

HETERO is for networks whose parts suit different devices. These have, as their papers describe
them, convolutions on maps that become small and then large fully connected layers (ZFNet,
OverFeat), or a recurrent layer beside convolutions or fully connected layers (CRNN, LRCN, Deep
Speech, a language model of LSTMs). Detectors that sort what they found are not among them: where
scores are random, the rounding of another device changes the order of the results. Normalisation
that inference folds into convolutions is left out. They are built of OpenVINO's ops, so that
neither torch nor an exporter decides what they look like.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as op

# Networks of torchvision or of this file; which, was decided before one of this file was measured.
MIXED = (
    "torchvision:alexnet", "mixed:zfnet", "mixed:overfeat", "torchvision:vgg11",
    "mixed:crnn", "mixed:lrcn", "mixed:deepspeech", "mixed:lstm_language",
)  # fmt: skip
# Instead of the four with LSTMs where a device computes these wrong, as NVIDIA's OpenCL does:
# more with large fully connected layers; decided when that was seen, before they were measured.
WITHOUT_LSTM = ("mixed:caffenet", "mixed:fast_yolo", "torchvision:vgg16", "mixed:cnn_f")


class Layers:
    """Makes layers with weights of the size that keeps activations of one magnitude."""

    def __init__(self, leak: float = 0.0) -> None:
        self._rng = np.random.default_rng(0)
        self._made = 0
        self._leak = leak  # of the activation, for what is below 0

    def _name(self, kind: str) -> str:
        self._made += 1
        return f"{kind}{self._made}"

    def weights(self, shape: Sequence[int], fan_in: int) -> Any:
        values = self._rng.standard_normal(size=shape, dtype=np.float32)
        return op.constant(values * np.float32((2.0 / fan_in) ** 0.5))

    def relu(self, x: Any) -> Any:
        if self._leak:
            slope = op.constant(np.array([self._leak], np.float32))
            return op.prelu(x, slope, name=self._name("leaky"))
        return op.relu(x, name=self._name("relu"))

    def conv(
        self, x: Any, channels: int, size: int, stride: int = 1, pad: int = 0, groups: int = 1
    ) -> Any:
        """Return a convolution with bias and ReLU."""
        into = int(x.shape[1]) // groups
        shape = (channels, into, size, size)
        weights = self.weights(shape, into * size * size)
        window: Any = [stride, stride], [pad, pad], [pad, pad], [1, 1]
        if groups == 1:
            y = op.convolution(x, weights, *window, name=self._name("conv"))
        else:
            parts = op.constant(np.array([groups, channels // groups, *shape[1:]], np.int64))
            grouped = op.reshape(weights, parts, False)
            y = op.group_convolution(x, grouped, *window, name=self._name("conv"))
        bias = self.weights((1, channels, 1, 1), 200)
        return self.relu(op.add(y, bias, name=self._name("bias")))

    def pool(self, x: Any, size: Any, stride: Any, pad: Any = 0) -> Any:
        """Return a maximum over windows; numbers are for both axes."""
        both = [[n, n] if isinstance(n, int) else n for n in (stride, pad, pad, size)]
        strides, begin, end, kernel = both
        return op.max_pool(
            x, strides, [1, 1], begin, end, kernel, "ceil", None, name=self._name("pool")
        ).output(0)

    def norm(self, x: Any) -> Any:
        """Return AlexNet's normalisation across channels."""
        axes = op.constant(np.array([1], np.int64))
        return op.lrn(x, axes, 1e-4, 0.75, 1.0, 5, name=self._name("norm"))

    def dense(self, x: Any, units: int) -> Any:
        """Return a fully connected layer with bias, over the last axis."""
        into = int(x.shape[-1])
        y = op.matmul(x, self.weights((units, into), into), False, True, name=self._name("fc"))
        return op.add(y, self.weights((1, units), 200), name=self._name("bias"))

    def flat(self, x: Any, *shape: int) -> Any:
        return op.reshape(x, op.constant(np.array(shape, np.int64)), True, name=self._name("flat"))

    def lstm(self, x: Any, hidden: int, both_ways: bool = False) -> Any:
        """Return an LSTM over [1, steps, features], one way or both ways."""
        steps, into = int(x.shape[1]), int(x.shape[2])
        ways = 2 if both_ways else 1
        start = op.constant(np.zeros((1, ways, hidden), np.float32))
        y = op.lstm_sequence(
            x, start, start, op.constant(np.array([steps], np.int64)),
            self.weights((ways, 4 * hidden, into), 2 * into),
            self.weights((ways, 4 * hidden, hidden), 2 * hidden),
            op.constant(np.zeros((ways, 4 * hidden), np.float32)),
            hidden, "bidirectional" if both_ways else "forward", name=self._name("lstm"),
        ).output(0)  # fmt: skip
        order = op.constant(np.array([0, 2, 1, 3], np.int64))
        return self.flat(op.transpose(y, order), 1, steps, ways * hidden)

    def classes(self, x: Any, n: int) -> Any:
        return op.softmax(self.dense(x, n), -1, name=self._name("softmax"))


def image(height: int, width: int, channels: int = 3, batch: int = 1) -> Any:
    return op.parameter([batch, channels, height, width], np.float32, name="x")


def _head(net: Layers, y: Any, *units: int) -> Any:
    y = net.flat(y, int(y.shape[0]), -1)
    for n in units:
        y = net.relu(net.dense(y, n))
    return y


def zfnet() -> tuple[Any, list[Any]]:
    """Zeiler and Fergus 2013."""
    net, x = Layers(), image(224, 224)
    y = net.norm(net.pool(net.conv(x, 96, 7, 2, 1), 3, 2))
    y = net.norm(net.pool(net.conv(y, 256, 5, 2, 2), 3, 2))
    for channels in (384, 384, 256):
        y = net.conv(y, channels, 3, 1, 1)
    y = net.pool(y, 3, 2)
    return x, [net.classes(_head(net, y, 4096, 4096), 1000)]


def overfeat() -> tuple[Any, list[Any]]:
    """Sermanet et al. 2013, the fast model."""
    net, x = Layers(), image(231, 231)
    y = net.pool(net.conv(x, 96, 11, 4), 2, 2)
    y = net.pool(net.conv(y, 256, 5), 2, 2)
    for channels in (512, 1024, 1024):
        y = net.conv(y, channels, 3, 1, 1)
    y = net.pool(y, 2, 2)
    return x, [net.classes(_head(net, y, 3072, 4096), 1000)]


def _caffenet(net: Layers, x: Any) -> Any:
    y = net.norm(net.pool(net.conv(x, 96, 11, 4), 3, 2))
    y = net.norm(net.pool(net.conv(y, 256, 5, 1, 2, 2), 3, 2))
    y = net.conv(net.conv(y, 384, 3, 1, 1), 384, 3, 1, 1, 2)
    return net.pool(net.conv(y, 256, 3, 1, 1, 2), 3, 2)


def caffenet() -> tuple[Any, list[Any]]:
    """Jia et al. 2014."""
    net, x = Layers(), image(227, 227)
    return x, [net.classes(_head(net, _caffenet(net, x), 4096, 4096), 1000)]


def cnn_f() -> tuple[Any, list[Any]]:
    """Chatfield et al. 2014, the fast model."""
    net, x = Layers(), image(224, 224)
    y = net.pool(net.norm(net.conv(x, 64, 11, 4)), 3, 2)
    y = net.pool(net.norm(net.conv(y, 256, 5, 1, 2)), 3, 2)
    for _ in range(3):
        y = net.conv(y, 256, 3, 1, 1)
    return x, [net.classes(_head(net, net.pool(y, 3, 2), 4096, 4096), 1000)]


def fast_yolo() -> tuple[Any, list[Any]]:
    """Redmon et al. 2016, the fast model: an image of 448 x 448."""
    net, x = Layers(leak=0.1), image(448, 448)
    y = x
    for channels in (16, 32, 64, 128, 256, 512):
        y = net.pool(net.conv(y, channels, 3, 1, 1), 2, 2)
    y = net.conv(net.conv(y, 1024, 3, 1, 1), 256, 3, 1, 1)
    return x, [net.dense(_head(net, y), 1470)]


def crnn() -> tuple[Any, list[Any]]:
    """Shi et al. 2015: a line of text of 32 x 100."""
    net, x = Layers(), image(32, 100, 1)
    y = net.pool(net.conv(x, 64, 3, 1, 1), 2, 2)
    y = net.pool(net.conv(y, 128, 3, 1, 1), 2, 2)
    y = net.conv(net.conv(y, 256, 3, 1, 1), 256, 3, 1, 1)
    y = net.pool(y, 2, [2, 1], [0, 1])
    y = net.conv(net.conv(y, 512, 3, 1, 1), 512, 3, 1, 1)
    y = net.conv(net.pool(y, 2, [2, 1], [0, 1]), 512, 2)
    y = op.transpose(net.flat(y, 1, 512, -1), op.constant(np.array([0, 2, 1], np.int64)))
    y = net.dense(net.lstm(y, 256, True), 256)
    return x, [net.classes(net.lstm(y, 256, True), 37)]


def lrcn() -> tuple[Any, list[Any]]:
    """Donahue et al. 2015, for activities: CaffeNet on 16 frames, then an LSTM."""
    net, x = Layers(), image(227, 227, batch=16)
    y = net.lstm(net.flat(_head(net, _caffenet(net, x), 4096), 1, 16, 4096), 256)
    return x, [net.classes(y, 101)]


def deepspeech() -> tuple[Any, list[Any]]:
    """Hannun et al. 2014 as Mozilla built it: 16 steps of 19 frames, an LSTM of 2048."""
    net = Layers()
    x = op.parameter([16, 494], np.float32, name="x")
    y = x

    def clipped(y: Any) -> Any:
        return op.clamp(net.dense(y, 2048), 0.0, 20.0, name=net._name("clip"))

    for _ in range(3):
        y = clipped(y)
    y = net.lstm(net.flat(y, 1, 16, 2048), 2048)
    return x, [net.classes(clipped(net.flat(y, 16, 2048)), 29)]


def lstm_language() -> tuple[Any, list[Any]]:
    """Zaremba et al. 2014, the large model: 35 words of 10,000."""
    net = Layers()
    x = op.parameter([1, 35], np.int32, name="x")
    table = net.weights((10_000, 1500), 2)
    y = op.gather(table, x, op.constant(np.int64(0)), name="embedding")
    for _ in range(2):
        y = net.lstm(y, 1500)
    return x, [net.classes(y, 10_000)]


_NETWORKS = (zfnet, overfeat, caffenet, cnn_f, fast_yolo, crnn, lrcn, deepspeech, lstm_language)
BUILT: dict[str, Callable[[], tuple[Any, list[Any]]]] = {
    network.__name__: network for network in _NETWORKS
}


def build(name: str) -> ov.Model:
    """Return one of these networks."""
    x, ends = BUILT[name]()
    make: Any = ov.Model
    return make([op.result(end) for end in ends], [x], name)
