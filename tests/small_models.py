"""Small models for tests, each with one property that the code has to respect."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13 as op, opset16
from openvino.op.util import Variable, VariableInfo

# Names of ops that break what does not quote, escape or bound them.
NASTY_NAMES = (
    'quote"d', "it's", "a/b\\c", "<script>alert(1)</script>", "new\nline", "carriage\rreturn",
    "both\r\nof them", "\r", "=1+1", "+plus", "-minus", "@at", "'apostrophe", "'=both", "\ttab",
    "ünï/中文", "rocket 🚀", "comma,semicolon;", " blanks ", "nan", "NA", "1", "1.50", "True",
    "&amp;{x}%s", "subgraph7: fake", "Result_5", "x" * 10_000,
)  # fmt: skip


def variable(name: str, *sizes: int, kind: ov.Type = ov.Type.f32) -> Variable:
    """Return a variable; -1 is an unknown size."""
    info = VariableInfo()
    info.data_shape, info.data_type = ov.PartialShape(list(sizes)), kind
    info.variable_id = name
    return Variable(info)


def logarithm(offset: float) -> ov.Model:
    """Build log(x - offset): NaN below the offset, beside the index of the largest element."""
    x = op.parameter([2, 8], np.float32, name="x")
    log = op.log(op.subtract(x, np.float32(offset)), name="log")
    index = op.topk(log, op.constant(1), 1, "max", "value").output(1)
    return ov.Model([op.result(log, name="logits"), op.result(index, name="index")], [x], "log")


def two_parts() -> ov.Model:
    """Build relu of one input and abs of another: two weakly connected components."""
    x = op.parameter([1, 4], np.float32, name="x")
    y = op.parameter([1, 4], np.float32, name="y")
    ends = {"first": op.relu(x, name="relu"), "second": op.abs(y, name="abs")}
    results = [op.result(value, name=name) for name, value in ends.items()]
    return ov.Model(results, [x, y], "two_parts")


def chain(*names: str, size: int = 4) -> ov.Model:
    """Build a chain of cheap ops with the given names."""
    makers = [op.relu, op.sigmoid, op.tanh, op.abs]
    x = op.parameter([1, size], np.float32, name="x")
    tensor = x
    for index, name in enumerate(names):
        tensor = makers[index % len(makers)](tensor)
        tensor.set_friendly_name(name)
    return ov.Model([op.result(tensor, name="out")], [x], "chain")


def diamond() -> ov.Model:
    """Build a fork of two branches that an add joins again."""
    x = op.parameter([1, 8], np.float32, name="x")
    top = op.relu(x, name="top")
    left, right = op.sigmoid(top, name="left"), op.tanh(top, name="right")
    return ov.Model([op.result(op.add(left, right, name="join"), name="out")], [x], "diamond")


def convolutions(size: int = 32, channels: int = 8, layers: int = 2) -> ov.Model:
    """Build convolution, bias and relu (one fused node), softmax, and more convolutions."""
    rng = np.random.default_rng(0)
    x = op.parameter([1, channels, size, size], np.float32, name="image")
    tensor = x
    for number in range(1, layers + 1):
        weights = rng.normal(size=(channels, channels, 3, 3)).astype(np.float32) / 9
        bias = rng.normal(size=(1, channels, 1, 1)).astype(np.float32)
        tensor = op.convolution(
            tensor,
            op.constant(weights, name=f"weights{number}"),
            *[[1, 1]] * 4,
            name=f"conv{number}",
        )
        tensor = op.add(tensor, op.constant(bias, name=f"offset{number}"), name=f"bias{number}")
        tensor = op.relu(tensor, name=f"relu{number}")
        if number == 1:
            tensor = op.softmax(tensor, 1, name="softmax")
    tensor.output(0).set_names({"features"})
    return ov.Model([op.result(tensor, name="out")], [x], "convolutions")


def stateful() -> ov.Model:
    """Build a running sum: ReadValue → sum → middle → Assign, and an op behind the sum."""
    x = op.parameter([1, 4], np.float32, name="x")
    state = variable("v", 1, 4)
    read = op.read_value(op.constant(np.zeros((1, 4), np.float32), name="zero"), state)
    read.set_friendly_name("read")
    total = op.add(read, x, name="sum")
    assign = op.assign(op.relu(total, name="middle"), state)
    assign.set_friendly_name("assign")
    out = op.result(op.negative(total, name="after"), name="out")
    return ov.Model([out], [assign], [x], "stateful")


def embedding(rows: int = 7) -> ov.Model:
    """Build token ids → Unsqueeze → Gather of a table with ``rows`` rows, none of them zero."""
    ids = op.parameter([1, 64], np.int64, name="ids")
    table = op.constant(np.arange(1, rows * 3 + 1, dtype=np.float32).reshape(rows, 3), name="table")
    indices = op.unsqueeze(op.convert(ids, "i32", name="narrow"), op.constant(0))
    indices.set_friendly_name("wrap")
    rows_of = op.gather(table, indices, op.constant(0), name="gather")
    return ov.Model([op.result(rows_of, name="out")], [ids], "embedding")


def compressed(kind: ov.Type, users: int = 1) -> ov.Model:
    """Build matmuls whose weight is a compressed constant → Convert → Multiply."""
    x = op.parameter([1, 16], np.float32, name="x")
    values = np.random.default_rng(0).integers(0, 2, 256)  # every type has 0 and 1
    weights = ov.op.Constant(kind, ov.Shape([16, 16]), values.tolist())
    weights.set_friendly_name("weights")
    wide = op.convert(weights, "f32", name="decompress")
    scale = op.constant(np.full((16, 1), 0.25, np.float32), name="scale")
    scaled = op.multiply(wide, scale, name="scaled")
    results = [
        op.result(op.matmul(x, scaled, False, False, name=f"matmul{i}"), name=f"out{i}")
        for i in range(users)
    ]
    return ov.Model(results, [x], "compressed")


def foldable() -> ov.Model:
    """Build a relu to which a computed constant is added."""
    x = op.parameter([1, 4], np.float32, name="x")
    three = op.add(op.constant(np.ones((1, 4), np.float32)), op.constant(np.float32(2)), name="sum")
    added = op.add(op.relu(x, name="relu"), three, name="added")
    return ov.Model([op.result(added, name="out")], [x], "foldable")


def identities() -> ov.Model:
    """Build Identity ops at each place: before a constant is used, inside, and at an output."""
    x = op.parameter([1, 4], np.float32, name="x")
    x.output(0).set_names({"x_in"})
    ones = opset16.identity(op.constant(np.ones((1, 4), np.float32)))
    hidden = op.add(op.relu(x, name="relu"), op.add(ones, ones, name="twos"), name="added")
    hidden.output(0).set_names({"hidden"})
    inner = op.abs(opset16.identity(hidden), name="abs")
    inner.output(0).set_names({"abs_out"})
    last, passed = opset16.identity(hidden), opset16.identity(x)
    last.output(0).set_names({"named"})
    passed.output(0).set_names({"a_copy"})
    results = [op.result(y, name=f"r{i}") for i, y in enumerate([inner, last, passed])]
    return ov.Model(results, [x], "identities")


def dynamic_inside() -> ov.Model:
    """Build a static input whose NonZero makes a tensor of unknown size."""
    x = op.parameter([1, 4], np.float32, name="x")
    found = op.non_zero(op.relu(x, name="relu"), "i32", name="nonzero")
    half = op.convert(found, "f32", name="convert")
    return ov.Model([op.result(op.abs(half, name="abs"), name="out")], [x], "dynamic_inside")


def dynamic(*sizes: int) -> ov.Model:
    """Build a relu over an input of the given sizes; -1 is unknown."""
    x = op.parameter(ov.PartialShape(list(sizes)), np.float32, name="x")
    return ov.Model([op.result(op.relu(x, name="relu"), name="out")], [x], "dynamic")


def constant_only() -> ov.Model:
    """Build a constant that is an output: neither inputs nor ops."""
    return ov.Model([op.result(op.constant(np.full((1, 4), 3, np.float32)), name="out")], [], "c")


def passed_through(n: int) -> ov.Model:
    """Build inputs that are outputs: no ops, and as many parts as inputs."""
    inputs = [op.parameter([1, 4], np.float32, name=f"x{number}") for number in range(n)]
    return ov.Model(
        [op.result(x, name=f"out_{x.friendly_name}") for x in inputs], inputs, "through"
    )


def odd_ends() -> ov.Model:
    """Build an unused input, an input that is an output, a constant output, one output twice."""
    x = op.parameter([1, 4], np.float32, name="x")
    unused = op.parameter([2], np.float32, name="unused")
    through = op.parameter([1, 3], np.float32, name="through")
    relu = op.relu(x, name="relu")
    doubled = op.add(relu, relu, name="doubled")
    constant = op.constant(np.array([3, 1, 2], np.float32), name="constant")
    ends = {"passed": through, "sum": doubled, "fixed": constant, "once": relu, "twice": relu}
    results = [op.result(value, name=name) for name, value in ends.items()]
    return ov.Model(results, [x, unused, through], "odd_ends")


def all_of(model: ov.Model) -> list[str]:
    """Return the friendly names of all nodes."""
    return [node.get_friendly_name() for node in model.get_ordered_ops()]


# Models on which OpenVINO 2026.4.1's CPU plugin crashes

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
