"""Add weights to the GoogLeNet graph of the ``onnx`` package, which ships without any.

The file stores each large weight as a ``ConstantOfShape`` of 0.02. Such a network merely sums
up its input. Here every weight is drawn at random (He et al., 2015: "Delving deep
into rectifiers"), so that activations keep their size through all 22 layers; the mean of each
filter is subtracted, so that the answer depends on the picture and not on its brightness.
"""

from __future__ import annotations

import math

import numpy as np

from hetero_lab.samples import onnx_wire

SEED = 2014
INPUT = "data_0"
GAIN = 1.2
BIAS_LIMIT = 0.05
_MODEL_IR_VERSION, _MODEL_GRAPH = 1, 7
_NODE, _GRAPH_NAME, _INITIALIZER, _INPUT, _OUTPUT = 1, 2, 5, 11, 12


def with_weights(light_model: bytes) -> bytes:
    """Return the model with drawn weights and readable node names.

    Parameters
    ----------
    light_model
        The content of ``light_inception_v1.onnx``.

    Returns
    -------
    bytes
        An ONNX model with one input, ``data_0``. The same bytes on every machine: drawn
        as whole numbers, then scaled once.
    """
    parts = list(onnx_wire.fields(light_model))
    graph = next(v for n, v in parts if n == _MODEL_GRAPH and isinstance(v, bytes))
    nodes = onnx_wire.messages(graph, _NODE)
    made = {_output(n): _inputs(n)[0] for n in nodes if _op_type(n) == "ConstantOfShape"}
    kept = [n for n in nodes if _op_type(n) != "ConstantOfShape"]

    bits = np.random.PCG64(SEED)
    initializers = {_tensor_name(t): t for t in onnx_wire.messages(graph, _INITIALIZER)}
    shapes = {name: _int64_values(initializers.pop(source)) for name, source in made.items()}
    for name in [name for name in initializers if name.endswith("_b_0")]:
        shapes[name] = _dimensions(initializers.pop(name))
    tensors = list(initializers.values())  # only the shapes of the two Reshapes are left
    tensors += [onnx_wire.tensor(n, _draw(bits, n, shape)) for n, shape in sorted(shapes.items())]

    inputs = [v for v in onnx_wire.messages(graph, _INPUT) if onnx_wire.strings(v, 1) == [INPUT]]
    new_graph = onnx_wire.encode(
        *[(_NODE, n) for n in _with_names(kept)],
        *[(_GRAPH_NAME, name) for name in onnx_wire.strings(graph, _GRAPH_NAME)],
        *[(_INITIALIZER, t) for t in tensors],
        *[(_INPUT, v) for v in inputs],
        *[(_OUTPUT, v) for v in onnx_wire.messages(graph, _OUTPUT)],
    )
    # From version 4 of the format on, a weight need not be listed as an input too.
    changed = {_MODEL_GRAPH: new_graph, _MODEL_IR_VERSION: 4}
    return onnx_wire.encode(*[(n, changed.get(n, v)) for n, v in parts])


def _draw(bits: np.random.PCG64, name: str, shape: list[int]) -> np.ndarray:
    """Draw one tensor of weights or biases."""
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
    layers: dict[str, str] = {INPUT: INPUT}  # tensor → the layer or module that it comes from
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


def _tensor_name(tensor: bytes) -> str:
    return onnx_wire.strings(tensor, 8)[0]


def _dimensions(tensor: bytes) -> list[int]:
    return [v for n, v in onnx_wire.fields(tensor) if n == 1 and isinstance(v, int)]


def _int64_values(tensor: bytes) -> list[int]:
    raw = onnx_wire.messages(tensor, 9)
    return np.frombuffer(raw[0], "<i8").tolist()
