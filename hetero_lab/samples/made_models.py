"""Models that are made of fetched files: GoogLeNet with weights, EfficientNet-Lite0, GGUF.

The two ONNX models are checked by their SHA-256, so they are the same bytes on every machine.
"""

from __future__ import annotations

import collections
import importlib.util
import io
import json
import math
import pickle
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import TypeAlias

import numpy as np

from hetero_lab.errors import SampleError, shorten
from hetero_lab.samples import onnx_wire

SEED = 2014  # GoogLeNet's year; another one makes another file than the manifest's SHA-256
GAIN = 1.2  # times He's deviation: activations keep their size through all layers
BIAS_LIMIT = 0.05  # biases lie between minus this and this: small beside activations
_GOOGLENET_INPUT = "data_0"
# Field numbers in the protobuf format of ONNX: of a model, then of a graph.
_MODEL_IR_VERSION, _MODEL_GRAPH = 1, 7
_NODE, _GRAPH_NAME, _INITIALIZER, _INPUT, _OUTPUT = 1, 2, 5, 11, 12  # of a graph

INPUT, OUTPUT, SIZE, N_CLASSES = "image", "logits", 224, 1000
STRIDED_BLOCKS = {1, 3, 5, 11}
N_BLOCKS = 16  # of EfficientNet-B0
NORM_EPSILON = 1e-3  # as in TensorFlow's EfficientNet, which the weights come from
OPSET = 9  # of ONNX: has all ops that the network needs
Shape: TypeAlias = tuple[int, ...]

GGUF_MODEL = "openvino_model.xml"
_CONTEXT = b"llama.context_length"
_UINT32 = 4  # the type of a value in GGUF
_HEAD_BYTES = 1 << 20  # of a GGUF file: its metadata begins here, before the weights


# -- GoogLeNet ----------------------------------------------------------------------------------


def googlenet(light_model: bytes) -> bytes:
    """Return the GoogLeNet graph of the ``onnx`` package with weights and readable node names.

    The file ``light_inception_v1.onnx`` stores each large weight as a ``ConstantOfShape`` of 0.02.
    Such a network merely sums up its input. Here every weight is drawn at random as a whole number
    and scaled once (He et al., 2015: "Delving deep into rectifiers"), so that activations keep
    their size through all 22 layers; the mean of each filter is subtracted, so that the answer
    depends on the picture and not on its brightness. The model has one input, ``data_0``.
    """
    parts = list(onnx_wire.fields(light_model))
    graph = next(v for n, v in parts if n == _MODEL_GRAPH and isinstance(v, bytes))
    nodes = onnx_wire.messages(graph, _NODE)
    shape_of = {_output(n): _inputs(n)[0] for n in nodes if _op_type(n) == "ConstantOfShape"}
    others = [n for n in nodes if _op_type(n) != "ConstantOfShape"]

    bits = np.random.PCG64(SEED)
    tensors = onnx_wire.messages(graph, _INITIALIZER)
    initializers = {onnx_wire.strings(t, 8)[0]: t for t in tensors}
    values = {name: onnx_wire.messages(initializers.pop(s), 9)[0] for name, s in shape_of.items()}
    shapes = {name: np.frombuffer(raw, "<i8").tolist() for name, raw in values.items()}
    for name in [name for name in initializers if name.endswith("_b_0")]:
        fields = onnx_wire.fields(initializers.pop(name))
        shapes[name] = [v for n, v in fields if n == 1 and isinstance(v, int)]
    tensors = [*initializers.values()]  # only the shapes of the two Reshapes are left
    tensors += [onnx_wire.tensor(n, _draw(bits, n, shape)) for n, shape in sorted(shapes.items())]

    inputs = onnx_wire.messages(graph, _INPUT)
    new_graph = onnx_wire.encode(
        *[(_NODE, n) for n in _with_names(others)],
        *[(_GRAPH_NAME, name) for name in onnx_wire.strings(graph, _GRAPH_NAME)],
        *[(_INITIALIZER, t) for t in tensors],
        *[(_INPUT, v) for v in inputs if onnx_wire.strings(v, 1) == [_GOOGLENET_INPUT]],
        *[(_OUTPUT, v) for v in onnx_wire.messages(graph, _OUTPUT)],
    )
    # From version 4 of the format on, a weight need not be listed as an input too.
    changed = {_MODEL_GRAPH: new_graph, _MODEL_IR_VERSION: 4}
    return onnx_wire.encode(*[(n, changed.get(n, v)) for n, v in parts])


def _draw(bits: np.random.PCG64, name: str, shape: list[int]) -> np.ndarray:
    n = math.prod(shape)
    raw = np.asarray(bits.random_raw(-(-n // 4))).astype("<u8").view("<u2")[:n]
    whole = raw.astype(np.int64) - 2**15
    if name.endswith("_b_0"):
        return (whole * (BIAS_LIMIT / 2**15)).astype(np.float32).reshape(shape)
    # The classifier's matrix comes as [1, 1, out, in], a filter as [out, in, height, width].
    n_filters = shape[-2] if shape[0] == 1 else shape[0]
    whole = whole.reshape(n_filters, -1)
    fan_in = whole.shape[1]
    whole = whole * fan_in - whole.sum(axis=1, keepdims=True)
    deviation = 2**16 / math.sqrt(12) * fan_in
    scale = GAIN * math.sqrt(2 / fan_in) / deviation
    return (whole * scale).astype(np.float32).reshape(shape)


def _with_names(nodes: list[bytes]) -> list[bytes]:
    """Name each node after its weights, else after the layer or module that it follows."""
    projected = {  # the pooling in front of a module's `pool_proj` belongs to that module
        _inputs(node)[0]: _inputs(node)[1].split("/")[0]
        for node in nodes
        if _op_type(node) == "Conv" and _inputs(node)[1].endswith("/pool_proj_w_0")
    }
    layers = {_GOOGLENET_INPUT: _GOOGLENET_INPUT}  # tensor → the layer or module that it comes from
    renamed = []
    for node in nodes:
        (first, *rest), output, op_type = _inputs(node), _output(node), _op_type(node)
        suffix = f"/{op_type.lower()}"
        if op_type == "Conv":
            layer, suffix = rest[0].removesuffix("_w_0"), ""
        elif op_type == "Gemm":
            layer, suffix = layers[rest[0]], ""
        elif op_type == "Concat":
            layer = layers[first].split("/")[0]
        elif output in projected:
            layer, suffix = projected[output], "/pool"
        else:
            layer = layers.get(first, first.removesuffix("_w_0"))
        layers[output] = layer
        parts = [(n, v) for n, v in onnx_wire.fields(node) if n != 3]
        renamed.append(onnx_wire.encode((3, layer + suffix), *parts))
    return renamed


def _inputs(node: bytes) -> list[str]:
    return onnx_wire.strings(node, 1)


def _output(node: bytes) -> str:
    return onnx_wire.strings(node, 2)[0]


def _op_type(node: bytes) -> str:
    return onnx_wire.strings(node, 4)[0]


# -- EfficientNet-Lite0 -------------------------------------------------------------------------


def efficientnet_lite0(pth: bytes) -> bytes:
    """Return EfficientNet-Lite0 as an ONNX model, made of its PyTorch weights without PyTorch.

    The network is EfficientNet-B0 (Tan and Le, 2019) with ReLU6 for swish and without squeeze and
    excitation: ``image`` [1, 3, 224, 224] f32 in, ``logits`` [1, 1000] out. Its weights come from
    TensorFlow, hence the padding. Batch normalisation is folded into the convolutions.
    """
    weights = read_weights(pth)
    graph = _Graph(weights)
    x, n_channels = graph.convolution(INPUT, "stem", "_conv_stem", "_bn0", stride=2), 0
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
        n_before, n_channels = n_channels, len(weights[f"{source}_project_conv.weight"])
        if stride == 1 and n_before == n_channels:
            y = graph.add("Add", f"{block}/add", [x, y])
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
    their number as little-endian i64 and the values themselves. The file was compared with its
    SHA-256; one that names anything but tensors raises UnpicklingError.
    """
    file = io.BytesIO(pth)
    for _ in range(3):
        _TensorUnpickler(file).load()
    reader = _TensorUnpickler(file)
    tensors = reader.load()
    storages = {}
    for key in _TensorUnpickler(file).load():
        n = int(np.frombuffer(file.read(8), "<i8")[0])
        dtype = np.dtype(reader.dtypes[key])
        storages[key] = np.frombuffer(file.read(n * dtype.itemsize), dtype)
    return {name: _view(storages[key], *where) for name, (key, *where) in tensors.items()}


class _TensorUnpickler(pickle.Unpickler):
    """An unpickler that can make descriptions of tensors and plain values, nothing else.

    A pickle can run any code: so all but four names, which only describe tensors, are refused.
    """

    def __init__(self, file: io.BytesIO):
        super().__init__(file)
        self.dtypes: dict[str, str] = {}  # of each storage

    def find_class(self, module: str, name: str) -> object:
        classes = {
            ("collections", "OrderedDict"): collections.OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _description,
            ("torch", "FloatStorage"): "<f4",
            ("torch", "LongStorage"): "<i8",
        }
        if (module, name) not in classes:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a file of weights")
        return classes[module, name]

    def persistent_load(self, pid: tuple[str, str, str, str, int, object]) -> str:
        _, dtype, key, *_ = pid
        self.dtypes[key] = dtype
        return key


def _description(key: str, offset: int, shape: Shape, strides: Shape, *_: object) -> tuple:
    return key, offset, shape, strides


def _view(storage: np.ndarray, offset: int, shape: Shape, strides: Shape) -> np.ndarray:
    """Return a tensor in C order; strides count values."""
    steps = [storage.itemsize * stride for stride in strides]
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps).copy()


_Attributes = dict[str, int | float | list[int]]


class _Graph:
    """The parts of the ONNX graph so far. Node, output tensor and layer share one name."""

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self.weights = weights
        self.nodes: list[bytes] = []
        self.initializers: list[bytes] = []
        self.size = SIZE

    def constant(self, name: str, values: np.ndarray) -> str:
        self.initializers.append(onnx_wire.tensor(name, values.astype(np.float32)))
        return name

    def add(
        self,
        op_type: str,
        name: str,
        inputs: list[str],
        attributes: _Attributes | None = None,
        output: str | None = None,
    ) -> str:
        output = output or name
        self.nodes.append(onnx_wire.node(op_type, name, inputs, [output], attributes))
        return output

    def convolution(
        self, x: str, name: str, conv: str, norm: str, stride: int = 1, relu: bool = True
    ) -> str:
        """Add a convolution with the batch normalisation after it folded in, and ReLU6."""
        weights, bias = self._fold(conv, norm)
        n_out, n_in_group, kernel, _ = weights.shape
        # TensorFlow's "same" padding puts the odd pixel at the end.
        out_size = -(-self.size // stride)
        pad = max((out_size - 1) * stride + kernel - self.size, 0)
        pads = [pad // 2] * 2 + [pad - pad // 2] * 2
        self.size = out_size
        names = [self.constant(f"{name}/weights", weights), self.constant(f"{name}/bias", bias)]
        attributes: _Attributes = {
            "group": n_out if n_in_group == 1 else 1,
            "kernel_shape": [kernel] * 2,
            "pads": pads,
            "strides": [stride] * 2,
        }
        x = self.add("Conv", name, [x, *names], attributes)
        if not relu:
            return x
        limits: _Attributes = {"min": 0.0, "max": 6.0}
        return self.add("Clip", f"{name}/relu6", [x], limits)

    def _fold(self, conv: str, norm: str) -> tuple[np.ndarray, np.ndarray]:
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


# -- GGUF ---------------------------------------------------------------------------------------


def check_genai(name: str) -> None:
    """Raise SampleError for a sample that cannot be made here, before it is fetched."""
    if importlib.util.find_spec("openvino_genai") is None:
        raise SampleError(
            f"The sample {shorten(name)} is made with openvino-genai, which is not installed: "
            "pip install 'hetero-lab[llm]'."
        )


def convert_gguf(source: Path, directory: Path) -> None:
    """Write the model of a GGUF file, its tokenizer and its configuration into a directory.

    OpenVINO GenAI (extra ``llm``) converts in a process of its own: it compiles the model just to
    write it, and op names are numbered per process, so only a fresh process gives the same names
    every time.
    """
    copy = directory / "model.gguf"  # GenAI writes beside the file that it reads
    shutil.copyfile(source, copy)
    command = [sys.executable or "python", "-m", "hetero_lab.samples.made_models", str(copy)]
    run = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    copy.unlink()
    if run.returncode or not (directory / GGUF_MODEL).is_file():
        lines = run.stdout.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        raise SampleError(
            f"OpenVINO GenAI could not convert {source.name}: {shorten(lines[-1], 300)}. "
            "Do openvino, openvino-genai and openvino-tokenizers have the same version?"
        )
    n_tokens = context_length(source)
    if n_tokens is not None:
        config = {"max_position_embeddings": n_tokens}
        (directory / "config.json").write_text(json.dumps(config), "utf-8")


def context_length(source: Path) -> int | None:
    """Return the number of positions that a model was trained for, as its GGUF file states it."""
    with source.open("rb") as file:
        _, key, after = file.read(_HEAD_BYTES).partition(_CONTEXT)
    if not key or len(after) < 8:
        return None
    kind, value = struct.unpack("<II", after[:8])
    return value if kind == _UINT32 else None


if __name__ == "__main__":
    import openvino_genai  # pyright: ignore[reportMissingImports]

    openvino_genai.LLMPipeline(sys.argv[1], "CPU", enable_save_ov_model=True)
