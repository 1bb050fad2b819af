"""Turn the PyTorch weights of EfficientNet-Lite0 into an ONNX model, without PyTorch.

The weights are a pickle, and a pickle can run any code. So it is read with an unpickler that
knows four names, which only describe tensors, and refuses every other name.

The network is EfficientNet-B0 (Tan and Le, 2019) with ReLU6 for swish and without squeeze and
excitation, at 224 x 224 pixels. Its weights come from TensorFlow, hence the padding.
"""

from __future__ import annotations

import collections
import io
import pickle
from dataclasses import dataclass

import numpy as np

from hetero_lab.samples import onnx_wire

INPUT, OUTPUT, SIZE, N_CLASSES = "image", "logits", 224, 1000
STRIDED_BLOCKS = {1, 3, 5, 11}
N_BLOCKS = 16
NORM_EPSILON = 1e-3
OPSET = 9
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001


@dataclass(frozen=True)
class _Stored:
    """Where the values of one tensor lie."""

    key: str
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def onnx_model(pth: bytes) -> bytes:
    """Return the network as an ONNX model.

    Parameters
    ----------
    pth
        The content of ``efficientnet-lite0-57934424.pth``.

    Returns
    -------
    bytes
        An ONNX model: ``image`` [1, 3, 224, 224] f32 in, ``logits`` [1, 1000] out; batch
        normalisation is folded into the convolutions. The same bytes on every machine.

    Raises
    ------
    ValueError
        The file is not such a file of weights.
    """
    weights = read_weights(pth)
    graph = _Graph(weights)
    x = graph.convolution(INPUT, "stem", "_conv_stem", "_bn0", stride=2)
    for i in range(N_BLOCKS):
        source, block = f"_blocks.{i}.", f"block{i}"
        stride = 2 if i in STRIDED_BLOCKS else 1
        y = x
        if f"{source}_expand_conv.weight" in weights:
            y = graph.convolution(y, f"{block}/expand", f"{source}_expand_conv", f"{source}_bn0")
        y = graph.convolution(
            y, f"{block}/depthwise", f"{source}_depthwise_conv", f"{source}_bn1", stride=stride
        )
        y = graph.convolution(
            y, f"{block}/project", f"{source}_project_conv", f"{source}_bn2", relu=False
        )
        if stride == 1 and graph.n_channels[y] == graph.n_channels[x]:
            y = graph.add("Add", f"{block}/add", [x, y], n_channels=graph.n_channels[x])
        x = y
    x = graph.convolution(x, "head", "_conv_head", "_bn1")
    x = graph.add("GlobalAveragePool", "pool", [x])
    x = graph.add("Flatten", "flatten", [x])
    names = [graph.constant("classifier/weights", weights["_fc.weight"])]
    names.append(graph.constant("classifier/bias", weights["_fc.bias"]))
    graph.add("Gemm", "classifier", [x, *names], {"transB": 1}, output=OUTPUT)
    return graph.model()


def read_weights(pth: bytes) -> dict[str, np.ndarray]:
    """Return the tensors of a file of weights in PyTorch's format before 1.6.

    That format is five pickles in a row (a magic number, a version, facts about the machine, the
    tensors without values, the order of their storages). Then come the values of each storage:
    their number as little-endian i64 and the values themselves.

    Raises
    ------
    ValueError
        The file is in another format, cut off, or names anything but tensors.
    """
    file = io.BytesIO(pth)
    try:
        head = [_TensorUnpickler(file).load() for _ in range(3)]
        if head[:2] != [_MAGIC, _PROTOCOL] or not head[2]["little_endian"]:
            raise ValueError("not a file of weights in PyTorch's old format")
        tensors = _TensorUnpickler(file).load()
        stored: dict[str, _Stored] = {k: t for k, t in tensors.items() if isinstance(t, _Stored)}
        dtypes = {tensor.key: tensor.dtype for tensor in stored.values()}
        storages = {}
        for key in _TensorUnpickler(file).load():
            n = int(np.frombuffer(file.read(8), "<i8")[0])
            dtype = np.dtype(dtypes[key])
            storages[key] = np.frombuffer(file.read(n * dtype.itemsize), dtype, count=n)
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"the weights cannot be read: {error}") from error
    return {name: _view(storages[tensor.key], tensor) for name, tensor in stored.items()}


class _TensorUnpickler(pickle.Unpickler):
    """An unpickler that can make descriptions of tensors and plain values, nothing else."""

    def find_class(self, module: str, name: str) -> object:
        known = {
            ("collections", "OrderedDict"): collections.OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
            ("torch", "FloatStorage"): "<f4",
            ("torch", "LongStorage"): "<i8",
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a file of weights")
        return known[module, name]

    def persistent_load(self, pid: tuple[str, str, str, str, int, object]) -> tuple[str, str]:
        _, dtype, key, *_ = pid
        return key, dtype


def _rebuild(
    storage: tuple[str, str],
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    *_: object,
) -> _Stored:
    return _Stored(storage[0], storage[1], offset, shape, strides)


def _view(values: np.ndarray, tensor: _Stored) -> np.ndarray:
    """Return the tensor in C order; strides that leave the storage raise an error."""
    index = np.full(tensor.shape, tensor.offset)
    for steps, stride in zip(np.indices(tensor.shape, sparse=True), tensor.strides, strict=True):
        index += steps * stride
    try:
        return values[index]
    except IndexError as error:
        raise ValueError("a tensor lies outside of its storage") from error


class _Graph:
    """The parts of the ONNX graph so far. Node, output tensor and layer share one name."""

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self.weights = weights
        self.nodes: list[bytes] = []
        self.initializers: list[bytes] = []
        self.n_channels: dict[str, int] = {}
        self.size = SIZE

    def constant(self, name: str, values: np.ndarray) -> str:
        self.initializers.append(onnx_wire.tensor(name, values.astype(np.float32)))
        return name

    def add(
        self,
        op_type: str,
        name: str,
        inputs: list[str],
        attributes: dict[str, int | float | list[int]] | None = None,
        output: str | None = None,
        n_channels: int = 0,
    ) -> str:
        output = output or name
        self.nodes.append(onnx_wire.node(op_type, name, inputs, [output], attributes))
        self.n_channels[output] = n_channels
        return output

    def convolution(
        self, x: str, name: str, conv: str, norm: str, stride: int = 1, relu: bool = True
    ) -> str:
        """Add a convolution with the batch normalisation after it folded in, and ReLU6."""
        weights, bias = self._folded(conv, norm)
        n_out, n_in_group, kernel, _ = weights.shape
        # TensorFlow's "same" padding puts the odd pixel at the end.
        out_size = -(-self.size // stride)
        pad = max((out_size - 1) * stride + kernel - self.size, 0)
        pads = [pad // 2] * 2 + [pad - pad // 2] * 2
        self.size = out_size
        names = [self.constant(f"{name}/weights", weights), self.constant(f"{name}/bias", bias)]
        attributes: dict[str, int | float | list[int]] = {
            "group": n_out if n_in_group == 1 else 1,
            "kernel_shape": [kernel] * 2,
            "pads": pads,
            "strides": [stride] * 2,
        }
        x = self.add("Conv", name, [x, *names], attributes, n_channels=n_out)
        if not relu:
            return x
        limits: dict[str, int | float | list[int]] = {"min": 0.0, "max": 6.0}
        return self.add("Clip", f"{name}/relu6", [x], limits, n_channels=n_out)

    def _folded(self, conv: str, norm: str) -> tuple[np.ndarray, np.ndarray]:
        # In f64, so that folding itself adds no rounding error.
        gain, bias, mean, variance = (
            self.weights[f"{norm}.{part}"].astype(np.float64)
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        gain = gain / np.sqrt(variance + NORM_EPSILON)
        return self.weights[f"{conv}.weight"] * gain.reshape(-1, 1, 1, 1), bias - mean * gain

    def model(self) -> bytes:
        graph = onnx_wire.encode(
            *[(1, node) for node in self.nodes],
            (2, "efficientnet_lite0"),
            *[(5, tensor) for tensor in self.initializers],
            (11, onnx_wire.value_info(INPUT, [1, 3, SIZE, SIZE])),
            (12, onnx_wire.value_info(OUTPUT, [1, N_CLASSES])),
        )
        return onnx_wire.model(graph, OPSET)
