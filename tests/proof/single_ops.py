"""Random ONNX models of one operator: types, ranks, attributes and constness are drawn."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from hetero_lab.samples import onnx_wire

OPSET = 18
TYPES: dict[str, tuple[int, Any]] = {
    "FLOAT": (1, np.float32), "UINT8": (2, np.uint8), "INT8": (3, np.int8),
    "UINT16": (4, np.uint16), "INT16": (5, np.int16), "INT32": (6, np.int32),
    "INT64": (7, np.int64), "BOOL": (9, np.bool_), "FLOAT16": (10, np.float16),
    "DOUBLE": (11, np.float64), "UINT32": (12, np.uint32), "UINT64": (13, np.uint64),
}  # fmt: skip
FLOATS = ("FLOAT", "FLOAT16", "DOUBLE")
NUMBERS = tuple(name for name in TYPES if name != "BOOL")
WIDE = ("FLOAT", "FLOAT16", "DOUBLE", "INT32", "INT64", "UINT32", "UINT64")


@dataclass(frozen=True)
class Given:
    """An input: its type, its shape, and its values where it is a constant of the model."""

    type: str
    shape: tuple[int, ...]
    values: np.ndarray | None = None


@dataclass(frozen=True)
class SingleOp:
    """A model of one node."""

    operator: str
    inputs: tuple[Given | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    n_outputs: int = 1
    output_type: str = ""
    output_rank: int | None = None

    def onnx(self) -> bytes:
        """Write it as an ONNX file."""
        names, infos, constants = [], [], []
        for number, given in enumerate(self.inputs):
            if given is None:
                names.append("")
                continue
            names.append(f"in{number}")
            if given.values is None:
                infos.append(_value_info(names[-1], given.type, given.shape))
            else:
                constants.append(_tensor(names[-1], given))
        outputs = [f"out{number}" for number in range(self.n_outputs)]
        node = onnx_wire.node(self.operator, "op", names, outputs, self.attributes)
        kind = self.output_type or next(g.type for g in self.inputs if g is not None)
        graph = onnx_wire.encode(
            (1, node),
            (2, "single"),
            *[(5, constant) for constant in constants],
            *[(11, info) for info in infos],
            *[(12, _value_info(name, kind, None)) for name in outputs],
        )
        return onnx_wire.model(graph, OPSET)


Draw: TypeAlias = Callable[[random.Random], SingleOp]


def draw(seed: int) -> SingleOp:
    """Draw a model."""
    rng = random.Random(seed)
    return rng.choice(_FAMILIES)(rng)


def _tensor(name: str, given: Given) -> bytes:
    assert given.values is not None
    code, dtype = TYPES[given.type]
    data = np.ascontiguousarray(given.values.astype(dtype))
    return onnx_wire.encode(
        *[(1, size) for size in given.shape], (2, code), (8, name), (9, data.tobytes())
    )


def _value_info(name: str, kind: str, shape: Sequence[int] | None) -> bytes:
    sizes = () if shape is None else [(1, onnx_wire.encode((1, n))) for n in shape]
    typed: list[tuple[int, int | bytes]] = [(1, TYPES[kind][0])]
    if shape is not None:
        typed.append((2, onnx_wire.encode(*sizes)))
    return onnx_wire.encode((1, name), (2, onnx_wire.encode((1, onnx_wire.encode(*typed)))))


def _shape(rng: random.Random, least: int = 0, most: int = 6) -> tuple[int, ...]:
    return tuple(rng.randint(1, 4) for _ in range(rng.randint(least, most)))


def _given(rng: random.Random, kind: str, shape: tuple[int, ...], constant: float = 0.0) -> Given:
    if rng.random() >= constant:
        return Given(kind, shape)
    drawn = np.random.default_rng(rng.getrandbits(32)).integers(1, 3, shape)
    return Given(kind, shape, drawn.astype(TYPES[kind][1]))


def _ints(*values: int) -> Given:
    return Given("INT64", (len(values),), np.array(values, np.int64))


def _unary(rng: random.Random) -> SingleOp:
    operators = {
        **dict.fromkeys(
            ("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Elu",
             "Exp", "Floor", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "LeakyRelu", "Log",
             "Round", "Selu", "Sigmoid", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan",
             "Tanh"), FLOATS,
        ),
        **dict.fromkeys(("Abs", "Erf", "Sign", "NonZero"), NUMBERS),
        **dict.fromkeys(("Neg", "Relu"), (*FLOATS, "INT8", "INT16", "INT32", "INT64")),
        "Not": ("BOOL",),
    }  # fmt: skip
    operator, types = rng.choice(list(operators.items()))
    output = {"IsInf": "BOOL", "IsNaN": "BOOL", "NonZero": "INT64"}.get(operator, "")
    given = _given(rng, rng.choice(types), _shape(rng))
    return SingleOp(operator, (given,), output_type=output)


def _binary(rng: random.Random) -> SingleOp:
    operators = {
        **dict.fromkeys(("Add", "Sub", "Mul", "Div"), (NUMBERS, "")),
        **dict.fromkeys(("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"),
                        (NUMBERS, "BOOL")),
        **dict.fromkeys(("And", "Or"), (("BOOL",), "BOOL")),
        "Mod": (("INT32", "INT64", "INT8", "UINT8"), ""),
        "Pow": (("FLOAT", "FLOAT16", "DOUBLE", "INT32", "INT64"), ""),
        "PRelu": (WIDE, ""),
    }  # fmt: skip
    operator, (types, output) = rng.choice(list(operators.items()))
    kind, shape = rng.choice(types), _shape(rng)
    other = shape[rng.randint(0, len(shape)) :] if rng.random() < 0.5 else shape
    if other and rng.random() < 0.3:
        other = (1, *other[1:])
    inputs = [_given(rng, kind, shape), _given(rng, kind, other, 0.5)]
    if operator not in ("PRelu", "Pow") and rng.random() < 0.3:
        inputs.reverse()
    return SingleOp(operator, tuple(inputs), output_type=output)


def _reduce(rng: random.Random) -> SingleOp:
    operator = rng.choice(
        ("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd")
    )
    shape = _shape(rng, 1)
    axes = sorted(rng.sample(range(len(shape)), rng.randint(1, len(shape))))
    data = _given(rng, rng.choice(WIDE), shape)
    return SingleOp(operator, (data, _ints(*axes)), {"keepdims": rng.randint(0, 1)})


def _softmax(rng: random.Random) -> SingleOp:
    shape = _shape(rng, 1)
    axis = rng.randrange(-len(shape), len(shape))
    data = _given(rng, rng.choice(FLOATS), shape)
    return SingleOp(rng.choice(("Softmax", "LogSoftmax")), (data,), {"axis": axis})


def _convolution(rng: random.Random) -> SingleOp:
    operator = rng.choice(("Conv", "Conv", "ConvTranspose"))
    n, kind = rng.randint(1, 3), rng.choice(FLOATS)
    group = rng.choice((1, 1, 2))
    kernel = [rng.randint(1, 3) for _ in range(n)]
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": [rng.randint(1, 2) for _ in range(n)],
        "dilations": [rng.randint(1, 2) for _ in range(n)],
        "group": group,
    }
    if rng.random() < 0.5:
        attributes["pads"] = [rng.choice((0, 1)) for _ in range(2 * n)]
    else:
        attributes["auto_pad"] = rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
    channels = (4, 4 // group) if operator == "Conv" else (4, 2)
    data = _given(rng, kind, (1, 4, *[8] * n))
    return SingleOp(operator, (data, _given(rng, kind, (*channels, *kernel), 0.7)), attributes)


def _pool(rng: random.Random) -> SingleOp:
    operator, n = rng.choice(("MaxPool", "AveragePool")), rng.randint(1, 3)
    attributes: dict[str, Any] = {
        "kernel_shape": [rng.randint(1, 3) for _ in range(n)],
        "strides": [rng.randint(1, 2) for _ in range(n)],
        "ceil_mode": rng.randint(0, 1),
    }
    if rng.random() < 0.3:
        attributes["auto_pad"] = "SAME_UPPER"
    elif rng.random() < 0.5:
        attributes["pads"] = [0] * 2 * n
    kinds = FLOATS if operator == "AveragePool" else (*FLOATS, "INT8", "UINT8")
    return SingleOp(operator, (_given(rng, rng.choice(kinds), (1, 3, *[8] * n)),), attributes)


def _matmul(rng: random.Random) -> SingleOp:
    kind, outer = rng.choice(WIDE), _shape(rng, 0, 4)
    second = (4, 5) if rng.random() < 0.5 else (*outer, 4, 5)
    inputs = _given(rng, kind, (*outer, 3, 4)), _given(rng, kind, second, 0.5)
    return SingleOp("MatMul", inputs)


def _moving(rng: random.Random) -> SingleOp:
    """An operator that only moves values."""
    kind, shape = rng.choice(list(TYPES)), _shape(rng, 1)
    data, rank = _given(rng, kind, shape), len(shape)
    axis = rng.randrange(rank)
    kind_of = rng.choice(("Concat", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice",
                          "Expand", "Gather", "Split", "Pad"))  # fmt: skip
    if kind_of == "Concat":
        inputs = tuple(_given(rng, kind, shape) for _ in range(rng.randint(2, 5)))
        return SingleOp("Concat", inputs, {"axis": axis})
    if kind_of == "Reshape":
        target = [-1] if rng.random() < 0.5 else [*shape[::-1]]
        return SingleOp("Reshape", (data, _ints(*target)))
    if kind_of == "Transpose":
        return SingleOp("Transpose", (data,), {"perm": rng.sample(range(rank), rank)})
    if kind_of == "Squeeze":
        single = (*shape[:axis], 1, *shape[axis + 1 :])
        return SingleOp("Squeeze", (_given(rng, kind, single), _ints(axis)))
    if kind_of == "Unsqueeze":
        return SingleOp("Unsqueeze", (data, _ints(axis)))
    if kind_of == "Slice":
        where = (_ints(0), _ints(1), _ints(axis), _ints(1))
        return SingleOp("Slice", (data, *where))
    if kind_of == "Expand":
        return SingleOp("Expand", (data, _ints(2, *shape)))
    if kind_of == "Gather":
        indices = Given("INT64", (1,), np.zeros(1, np.int64))
        return SingleOp("Gather", (data, indices), {"axis": axis})
    if kind_of == "Split":
        even = (*shape[:axis], 4, *shape[axis + 1 :])
        return SingleOp("Split", (_given(rng, kind, even),),
                        {"axis": axis, "num_outputs": 2}, n_outputs=2)  # fmt: skip
    pads = [rng.choice((0, 1)) for _ in range(2 * rank)]
    mode = rng.choice(("constant", "edge"))
    return SingleOp("Pad", (data, _ints(*pads)), {"mode": mode})


def _cast(rng: random.Random) -> SingleOp:
    to = rng.choice(list(TYPES))
    data = _given(rng, rng.choice(list(TYPES)), _shape(rng))
    return SingleOp("Cast", (data,), {"to": TYPES[to][0]}, output_type=to)


def _clip(rng: random.Random) -> SingleOp:
    kind = rng.choice(NUMBERS)
    bounds = [Given(kind, (), np.array(v, TYPES[kind][1])) for v in (1, 2)]
    return SingleOp("Clip", (_given(rng, kind, _shape(rng)), *bounds))


def _where(rng: random.Random) -> SingleOp:
    kind, shape = rng.choice(list(TYPES)), _shape(rng)
    first, second = _given(rng, kind, shape), _given(rng, kind, shape, 0.5)
    inputs = (_given(rng, "BOOL", shape), first, second)
    return SingleOp("Where", inputs, output_type=kind)


def _top_k(rng: random.Random) -> SingleOp:
    shape = _shape(rng, 1)
    return SingleOp(
        "TopK",
        (_given(rng, rng.choice(NUMBERS), shape), _ints(1)),
        {"axis": rng.choice((-1, 0)), "largest": rng.randint(0, 1)},
        n_outputs=2,
    )


def _resize(rng: random.Random) -> SingleOp:
    n, kind = rng.randint(1, 3), rng.choice(FLOATS)
    factor = rng.choice((1.0, 2.0, 0.5))
    scales = np.array([1.0, 1.0, *[factor] * n], np.float32)
    attributes = {
        "mode": rng.choice(("nearest", "linear")),
        "coordinate_transformation_mode": rng.choice(("half_pixel", "asymmetric")),
        "nearest_mode": "floor",
    }
    data = _given(rng, kind, (1, 2, *[4] * n))
    return SingleOp("Resize", (data, None, Given("FLOAT", scales.shape, scales)), attributes)


def _normalise(rng: random.Random) -> SingleOp:
    kind, shape = rng.choice(FLOATS), (1, 4, *_shape(rng, 0, 3))
    ones = Given(kind, (4,), np.ones(4, TYPES[kind][1]))
    if rng.random() < 0.5:
        return SingleOp("BatchNormalization", (_given(rng, kind, shape), ones, ones, ones, ones))
    last = Given(kind, (shape[-1],), np.ones(shape[-1], TYPES[kind][1]))
    return SingleOp("LayerNormalization", (_given(rng, kind, shape), last, last), {"axis": -1})


_FAMILIES: tuple[Draw, ...] = (
    *(_unary,) * 3, *(_binary,) * 4, *(_moving,) * 4, *(_convolution,) * 2, _pool, _reduce,
    _softmax, _matmul, _cast, _clip, _where, _top_k, _resize, _normalise,
)  # fmt: skip
