"""Odd models: each of some property that ordinary models lack, and tiny.

Any test can loop over ``ODD_MODELS``: name → what builds the model. Whatever the device, one gives
the same outputs; only in ``RANDOM_MODELS`` all but ``sure`` differ from inference to inference.
``SHAPES`` are for those that cannot be loaded without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as op, opset15
from small_models import (
    NASTY_NAMES,
    chain,
    compressed,
    constant_only,
    dynamic,
    dynamic_inside,
    embedding,
    foldable,
    identities,
    logarithm,
    odd_ends,
    passed_through,
    stateful,
    two_parts,
    variable,
)

Build = Callable[[], ov.Model]


def parameter(*shape: Any, kind: Any = np.float32, name: str = "x") -> Any:
    return op.parameter(list(shape), kind, name=name)


def constant(value: Any, kind: Any = np.float32) -> Any:
    return op.constant(np.array(value, kind))


def over(make: Callable[[Any], Any], *shape: Any, kind: Any = np.float32) -> ov.Model:
    """Build what ``make`` makes of one input: a node, an output, or a list of them."""
    x = parameter(*shape, kind=kind)
    made = make(x)
    made = made if isinstance(made, list) else [made]
    results = [op.result(y, name=f"y{number}") for number, y in enumerate(made)]
    return ov.Model(results, [x], "over")


def made(build: Callable[..., ov.Model], /, *given: Any, **named: Any) -> Build:
    """Return a builder with its arguments."""
    return lambda: build(*given, **named)


def of_types(prefix: str, build: Callable[[ov.Type], ov.Model], kinds: str) -> dict[str, Build]:
    """Return a builder for each type."""
    return {f"{prefix} {kind}": made(build, getattr(ov.Type, kind)) for kind in kinds.split()}


# States


def running_sum() -> ov.Model:
    x, state = parameter(1), variable("sum", 1)
    total = op.add(x, op.read_value(constant([40]), state))
    return ov.Model([op.result(total, name="y")], [op.assign(total, state)], [x], "running_sum")


def two_states() -> ov.Model:
    x, slow, fast = parameter(1, 4), variable("slow", 1, 4), variable("fast", 1, 4)
    decayed = op.add(op.multiply(op.read_value(constant([[1, 2, 3, 4]]), slow), constant(0.5)), x)
    total = op.add(op.read_value(constant(np.zeros((1, 4))), fast), op.tanh(decayed))
    results = [op.result(total, name="total"), op.result(op.relu(decayed), name="decayed")]
    return ov.Model(results, [op.assign(decayed, slow), op.assign(total, fast)], [x], "two_states")


def growing() -> ov.Model:
    """Keep all that was ever given: the state and the second output grow."""
    x, state = parameter(1, 4), variable("kept", -1, 4)
    kept = op.concat([op.read_value(op.constant(np.zeros((0, 4), np.float32)), state), x], 0)
    summed = op.reduce_sum(kept, constant([0], np.int64), True)
    results = [op.result(summed, name="summed"), op.result(kept, name="kept")]
    return ov.Model(results, [op.assign(kept, state)], [x], "growing")


def recurrent() -> ov.Model:
    rng, x = np.random.default_rng(0), parameter(1, 4)
    states = variable("hidden", 1, 8), variable("cell", 1, 8)
    read = [op.read_value(constant(np.zeros((1, 8))), state) for state in states]
    weights = (constant(rng.normal(size=(32, n))) for n in (4, 8))
    cell = op.lstm_cell(x, *read, *weights, constant(np.zeros(32)), 8)
    written = [op.add(cell.output(i), constant(0)) for i in (0, 1)]
    assigns = [op.assign(value, state) for value, state in zip(written, states, strict=True)]
    out = op.result(op.softmax(cell.output(0), 1), name="y")
    return ov.Model([out], assigns, [x], "recurrent")


def state_of(kind: ov.Type, *shape: int, step: Callable[[Any], Any], given: bool = True) -> Build:
    """Build a state that ``step`` changes, and that is an output; an input beside, if ``given``."""

    def build() -> ov.Model:
        state, x = variable("state", *shape, kind=kind), parameter(1, 4)
        first = op.constant(np.ones(shape), dtype=kind)
        after = step(op.read_value(first, state))
        results = [op.result(after, name="after")]
        if given:
            results.append(op.result(op.relu(op.tanh(x)), name="beside"))
        return ov.Model(results, [op.assign(after, state)], [x] if given else [], "state_of")

    return build


def remembering(
    step: Callable[[Any, Any], tuple[list[Any], Any]], first: Callable[[Any], Any] | None = None
) -> ov.Model:
    """Build what ``step`` makes of input and state: outputs, and what is written to the state.

    It is zero at first, or what ``first`` makes of the input.
    """
    x, state = parameter(1, 4), variable("state", 1, 4)
    outputs, kept = step(x, op.read_value(first(x) if first else constant(np.zeros((1, 4))), state))
    results = [op.result(y, name=f"y{number}") for number, y in enumerate(outputs)]
    return ov.Model(results, [op.assign(kept, state)], [x], "remembering")


def written_first(x: Any, state: Any) -> tuple[list[Any], Any]:
    total = op.add(state, x)
    return [total], total


def state_in_body() -> ov.Model:
    """Build an If whose branch keeps a state."""

    def then(x: Any) -> Any:
        return op.add(x, op.read_value(constant(np.ones((1, 16))), variable("state", 1, 16)))

    return branched(then)


# Bodies and random ops


def branched(then: Callable[[Any], Any], *, size: int = 16) -> ov.Model:
    """Put ``then`` into the branch of an If that is taken."""
    x = parameter(1, size)
    return ov.Model([op.result(either(x, then, size), name="y")], [x], "branched")


def either(x: Any, then: Callable[[Any], Any], size: int) -> Any:
    """Add an If: ``then``, but Relu where the sum is below -1e9."""
    total = op.reduce_sum(x, constant([0, 1], np.int64), False)
    inner, other = parameter(1, size, name="inner"), parameter(1, size, name="other")
    bodies = [ov.Model([op.result(then(inner))], [inner], "then")]
    bodies.append(ov.Model([op.result(op.relu(other))], [other], "else"))
    node = op.if_op(op.greater(total, constant(-1e9)).output(0))
    node.set_then_body(bodies[0])
    node.set_else_body(bodies[1])
    node.set_input(x.output(0), inner, other)
    return node.set_output(*(body.results[0] for body in bodies))


def nested(then: Callable[[Any], Any]) -> ov.Model:
    return branched(lambda x: either(x, then, 16))


def looped(step: Callable[[Any], Any], turns: Any = None) -> ov.Model:
    """Do ``step`` in a Loop: three times, or as often as an input says."""
    x, inner, turn = parameter(1, 16), parameter(1, 16, name="inner"), parameter(kind=np.int64)
    yes = op.constant(np.array(True))
    body = ov.Model([op.result(step(inner)), op.result(yes)], [turn, inner], "body")
    loop = op.loop(constant(3, np.int64) if turns is None else turns, yes)
    loop.set_function(body)
    loop.set_special_body_ports([0, 1])
    loop.set_merged_input(inner, x.output(0), body.results[0].output(0))
    out = op.result(loop.get_iter_value(body.results[0].output(0), -1), name="y")
    return ov.Model([out], [x] if turns is None else [x, turns], "looped")


def product(x: Any) -> Any:
    weights = np.random.default_rng(1).normal(size=(16, 16)).astype(np.float32)
    return op.matmul(op.matmul(x, op.constant(weights), False, False), weights, False, False)


def uniform(*shape: int, seed: int = 0) -> Any:
    sizes = constant(list(shape), np.int64)
    return op.random_uniform(sizes, constant(0), constant(1), "f32", seed, seed)


def noisy(x: Any) -> Any:
    return op.add(x, uniform(1, 16))


def _of(make: Callable[[Any], Any], name: str) -> ov.Model:
    x = parameter(1, 16)
    results = [op.result(make(x), name="y"), op.result(op.negative(x), name="sure")]
    return ov.Model(results, [x], name)


def dropout(x: Any) -> Any:
    kept = op.convert(op.greater(uniform(1, 16), constant(0.5)), "f32")
    return op.multiply(op.add(op.abs(x), constant(1)), kept)


def random_models() -> dict[str, ov.Model]:
    """Return models whose output ``y`` is random, and ``sure``, if there is one, is not."""
    return {
        "uniform": _of(noisy, "uniform"),
        "seeded": _of(lambda x: op.add(x, uniform(1, 16, seed=7)), "seeded"),
        "dropout": _of(dropout, "dropout"),
        "integers": _of(lambda x: op.convert(op.multiply(noisy(x), constant(1e6)), "i32"), "ints"),
        "branch": branched(noisy),
        "nested": nested(noisy),
        "loop": looped(noisy),
    }  # fmt: skip


def random_of(name: str) -> ov.Model:
    return random_models()[name]


def scanned(step: Callable[[Any], Any] = op.tanh) -> ov.Model:
    """Build a TensorIterator over the rows of the input."""
    x, row, kept = parameter(5, 1, 4), parameter(1, 1, 4, name="row"), parameter(1, 1, 4, name="k")
    total = op.add(step(row), kept)
    body = ov.Model([op.result(total), op.result(op.relu(total))], [row, kept], "body")
    scan = op.tensor_iterator()
    scan.set_function(body)
    scan.set_sliced_input(row, x.output(0), 0, 1, 1, -1, 0)
    first = constant(np.zeros((1, 1, 4))).output(0)
    scan.set_merged_input(kept, first, body.results[0].output(0))
    last = scan.get_iter_value(body.results[0].output(0), -1)
    every = scan.get_concatenated_slices(body.results[1].output(0), 0, 1, 1, -1, 0)
    return ov.Model([op.result(last, name="last"), op.result(every, name="all")], [x], "scanned")


def convolved(x: Any) -> Any:
    picture = op.reshape(x, constant([1, 1, 4, 4], np.int64), False)
    weights = op.constant(np.linspace(-1, 1, 9, dtype=np.float32).reshape(1, 1, 3, 3))
    done = op.convolution(picture, weights, *[[1, 1]] * 4)
    return op.reshape(op.relu(done), constant([1, 16], np.int64), False)


# Types


def in_type(kind: ov.Type) -> ov.Model:
    """Build an input, an output and a constant of a type; what is between them is in f32."""
    given = op.parameter([1, 4], kind, name="x")
    wide = op.tanh(op.relu(op.convert(given, "f32")))
    fixed = ov.op.Constant(kind, ov.Shape([4]), [0, 1, 1, 0])
    results = [
        op.result(op.convert(wide, kind.to_string()), name="y"),
        op.result(op.add(wide, op.convert(fixed, "f32")), name="wide"),
    ]
    return ov.Model(results, [given], f"in_{kind.to_string()}")


def out_type(kind: ov.Type) -> ov.Model:
    """Build an output of a type; the input is f32."""
    return over(lambda x: [op.convert(op.relu(x), kind.to_string()), op.tanh(x)], 1, 4)


def constant_of(kind: ov.Type) -> ov.Model:
    """Build a constant of a type that is an output, beside an op."""
    fixed = ov.op.Constant(kind, ov.Shape([4]), [0, 1, 1, 0])
    return over(lambda x: [fixed, op.relu(op.tanh(x))], 1, 4)


def integers() -> ov.Model:
    """Build an input and an output of each integer type, and of bool."""
    kinds = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
    given = [op.parameter([1, 4], getattr(ov.Type, kind), name=f"x_{kind}") for kind in kinds]
    yes = op.parameter([1, 4], ov.Type.boolean, name="x_bool")
    results = [
        op.result(op.add(x, op.constant(np.ones(1), dtype=x.get_element_type())), name=f"y_{kind}")
        for kind, x in zip(kinds, given, strict=True)
    ]
    results.append(op.result(op.logical_not(yes), name="y_bool"))
    return ov.Model(results, [*given, yes], "integers")


def of_strings(make: Callable[[Any], Any]) -> ov.Model:
    """Build what ``make`` makes of text, beside an op."""
    words, x = op.parameter([2], ov.Type.string, name="words"), parameter(1, 4)
    results = [op.result(y, name=f"y{i}") for i, y in enumerate([*make(words), op.relu(x)])]
    return ov.Model(results, [words, x], "of_strings")


def _text(*words: str) -> Any:
    return op.constant(ov.Tensor(np.array(words)))  # an array of text ends the process in 2026.4.1


def packed(x: Any) -> Any:
    begins, ends = constant([0, 3], np.int32), constant([3, 6], np.int32)
    symbols = op.constant(np.frombuffer(b"catdog", np.uint8))
    return [opset15.string_tensor_pack(begins, ends, symbols), op.relu(op.tanh(x))]


# Structure


def nothing_given() -> ov.Model:
    """Build ops without any input."""
    return ov.Model([op.result(op.add(uniform(1, 4), constant(1)), name="y")], [], "nothing_given")


def ids_of_nothing() -> ov.Model:
    """Build ops of constants, all of which can be folded; the only input is unused."""
    x = parameter(1, 4)
    out = op.result(op.tanh(op.relu(constant([[1, -2]]))), name="y")
    return ov.Model([out], [x], "unused")


def branch(x: Any) -> Any:
    for number in range(8):
        x = (op.relu, op.tanh, op.sigmoid, op.abs)[number % 4](x)
    return x


def many_names() -> ov.Model:
    """Build an output with several names, and ones without any."""
    model = over(lambda x: [op.relu(x), op.tanh(x)], 1, 4)
    model.outputs[0].get_tensor().set_names({"first", "second", "a b", ""})
    model.inputs[0].get_tensor().set_names({"in", "also in"})
    return model


def unnamed() -> ov.Model:
    """Build nodes that nobody named."""
    x = op.parameter([1, 4], np.float32)
    return ov.Model([op.tanh(op.relu(x)), op.abs(x)], [x])


def same_names() -> ov.Model:
    """Build nodes that all have one friendly name, and a model with that name."""
    model = over(lambda x: [op.relu(op.tanh(x)), op.abs(x)], 1, 4)
    for node in model.get_ordered_ops():
        node.set_friendly_name("same")
    model.set_friendly_name("same")
    return model


def no_name() -> ov.Model:
    """Build an op, an input, a result and a model whose name is empty."""
    model = over(lambda x: op.tanh(op.relu(x)), 1, 4)
    for node in model.get_ordered_ops()[:2] + model.get_results():
        node.set_friendly_name("")
    model.set_friendly_name("")
    return model


def hostile_names() -> ov.Model:
    """Build a model with a hostile name, of a chain of such names, which its ports have, too."""
    model = chain(*NASTY_NAMES, "\0null", "\x1b[31m", "\u202eleft", "../../up", "")
    model.set_friendly_name("\x1b[31m/../<b>\n")
    model.outputs[0].get_tensor().set_names({"\x07\n::error::"})
    model.inputs[0].get_tensor().set_names({"in/../put\n"})
    return model


def unused_ports(x: Any) -> list[Any]:
    parts = op.split(x, op.constant(1), 4)
    top = op.topk(x, op.constant(2), 1, "max", "value")
    return [op.relu(parts.output(2)), op.tanh(top.output(0))]


def shapes_computed(x: Any) -> Any:
    columns = op.gather(op.shape_of(x), constant([1], np.int64), constant(0, np.int64))
    sizes = op.concat([columns, constant([-1], np.int64)], 0)
    return op.tanh(op.reshape(op.relu(x), sizes, False))


class Twice(ov.Op):
    """An op of an extension: only this process knows it."""

    def __init__(self, inputs: Any = None):
        super().__init__(self, inputs)

    def validate_and_infer_types(self) -> None:
        """Set the type of the output: that of the input."""
        self.set_output_type(0, self.get_input_element_type(0), self.get_input_partial_shape(0))

    def clone_with_new_inputs(self, new_inputs: Any) -> Twice:
        """Return the same op on other inputs."""
        return Twice(new_inputs)

    def evaluate(self, outputs: Any, inputs: Any) -> bool:
        """Double the input."""
        np.asarray(outputs[0].data)[...] = 2 * inputs[0].data
        return True

    def has_evaluate(self) -> bool:
        """Whether it can be computed: yes."""
        return True


# Sizes and numbers that depend on numbers


def any_rank() -> ov.Model:
    """Build an input of any rank."""
    x = op.parameter(ov.PartialShape.dynamic(), np.float32, name="x")
    return ov.Model([op.result(op.tanh(op.relu(x)), name="y")], [x], "any_rank")


def boxes() -> ov.Model:
    """Build a non-maximum suppression: how many boxes are left depends on the numbers."""
    given, scores = parameter(1, 6, 4, name="boxes"), parameter(1, 1, 6, name="scores")
    most, overlap, least = constant(3, np.int64), constant(0.5), constant(0.1)
    kept = op.non_max_suppression(given, scores, most, overlap, least)
    chosen = op.relu(op.convert(kept.output(0), "f32"))
    results = [op.result(chosen, name="chosen"), op.result(kept.output(2), name="count")]
    return ov.Model(results, [given, scores], "boxes")


def distinct(x: Any) -> list[Any]:
    found = op.unique(op.round(op.multiply(x, constant(4)), "half_to_even"))
    return [op.relu(found.output(0)), found.output(3)]


def positions(x: Any) -> list[Any]:
    top = op.topk(op.relu(x), constant(2, np.int64), 1, "max", "index", "i64")
    least = op.topk(op.tanh(x), constant(1, np.int64), 1, "min", "value", "i32")
    return [top.output(1), op.squeeze(least.output(1), constant([1], np.int64))]


def quantised(x: Any) -> Any:
    def levels(x: Any, low: float, high: float) -> Any:
        ends = [constant(low), constant(high)]
        return op.fake_quantize(x, *ends, *ends, 256)

    weights = op.constant(np.linspace(-1, 1, 36, dtype=np.float32).reshape(4, 1, 3, 3))
    done = op.convolution(levels(x, 0, 1), levels(weights, -1, 1), *[[1, 1]] * 4)
    return op.tanh(op.relu(done))


def weights_of(kind: ov.Type, users: int = 1) -> ov.Model:
    """Build matmuls with a weight of four bits, scaled along the outputs.

    Scaled along the inputs, as in ``small_models.compressed``, the CPU plugin of 2026.4.1 computes
    other numbers after each compile.
    """
    values = np.random.default_rng(0).integers(0, 2, 32 * 16)
    weights = op.convert(ov.op.Constant(kind, ov.Shape([32, 16]), values.tolist()), "f32")
    scaled = op.multiply(weights, op.constant(np.full((32, 1), 0.25, np.float32)))
    return over(lambda x: [op.matmul(x, scaled, False, True) for _ in range(users)], 1, 16)


def drawn(kind: str, seed: int) -> ov.Model:
    """Build a Multinomial of the input."""
    count = constant([6], np.int64)
    return over(
        lambda x: [op.multinomial(op.softmax(x, 1), count, kind, True, False, seed), op.relu(x)],
        1,
        4,
    )


ODD_MODELS: dict[str, Build] = {
    # states
    "state of a chain": stateful,
    "state of one float": running_sum,
    "two states": two_states,
    "growing state": growing,
    "states of an LSTM": recurrent,
    "state of i64": state_of(ov.Type.i64, 1, step=lambda v: op.add(v, constant([1], np.int64))),
    "state of i32, 2-D": state_of(
        ov.Type.i32, 2, 3, step=lambda v: op.multiply(v, constant([2], np.int32))
    ),
    "state of u8": state_of(ov.Type.u8, 4, step=lambda v: op.add(v, constant([1], np.uint8))),
    "state of bool": state_of(ov.Type.boolean, 1, 4, step=op.logical_not),
    "state of f16": state_of(ov.Type.f16, 1, 4, step=lambda v: op.add(v, constant(1, np.float16))),
    "scalar state": state_of(ov.Type.f32, step=lambda v: op.add(v, constant(1))),
    "state, no inputs": state_of(
        ov.Type.f32, 1, 4, step=lambda v: op.add(op.relu(v), constant(1)), given=False
    ),
    "unread state": made(remembering, lambda x, state: ([op.relu(op.tanh(x))], op.add(state, x))),
    "sink only": made(remembering, lambda x, state: ([], op.add(state, op.relu(x)))),
    "state begun by the input": made(remembering, written_first, op.tanh),
    "state of the last input": made(
        remembering, lambda x, state: ([op.add(state, op.relu(x))], x)
    ),
    "state in a body": state_in_body,
    # bodies
    "If of MatMuls": made(branched, product),
    "If of a convolution": made(branched, convolved),
    "If in an If": made(nested, product),
    "Loop of MatMuls": made(looped, product),
    "Loop of given turns": lambda: looped(op.tanh, parameter(kind=np.int64, name="n")),
    "TensorIterator": scanned,
    # sizes
    "no rows": made(over, op.relu, 0, 4),
    "no rows, twice": made(over, lambda x: op.tanh(op.relu(x)), 2, 0),
    "an empty constant": made(
        over, lambda x: op.tanh(op.concat([constant(np.zeros((0, 4))), x], 0)), 2, 4
    ),
    "an empty output": made(
        over,
        lambda x: op.tanh(op.slice(op.relu(x), *(constant([v], np.int64) for v in (0, 0, 1, 0)))),
        2, 4,
    ),
    "a sum of nothing": made(over, lambda x: op.tanh(op.reduce_sum(x, constant([0, 1], np.int64))),
        0, 4),
    "a scalar": made(over, lambda x: op.tanh(op.relu(x))),
    "a scalar integer": made(over, lambda x: op.add(x, constant(1, np.int64)), kind=np.int64),
    "ten axes": made(over, lambda x: op.tanh(op.relu(x)), *[1] * 10),
    # text
    "unused text": made(of_strings, lambda words: []),
    "text passed on": made(of_strings, lambda words: [words]),
    "text unpacked": made(of_strings, lambda words: opset15.string_tensor_unpack(words).outputs()),
    "a constant of text": made(over, lambda x: [_text("cat", "dog"), op.relu(x)], 1, 4),
    "text packed": made(over, packed, 1, 4),
    # types
    **of_types("in", in_type, "f64 f16 bf16 f8e4m3 f8e5m2 u4 i4 u1 nf4"),
    **of_types("out", out_type, "bf16 f8e4m3 f8e5m2 u4 i4 u1 nf4"),
    **of_types("a constant of", constant_of, "bf16 f8e8m0 f4e2m1 u1 u2 u3 u6 nf4"),
    "every integer and bool": integers,
    "weights of u4": made(weights_of, ov.Type.u4),
    "weights of i4, shared": made(weights_of, ov.Type.i4, 2),
    "weights of nf4": made(weights_of, ov.Type.nf4),
    "weights of i8": made(compressed, ov.Type.i8),
    "weights of f8e4m3": made(compressed, ov.Type.f8e4m3),
    "quantised": made(over, quantised, 1, 1, 8, 8),
    # structure
    "no inputs": nothing_given,
    "only an unused input": ids_of_nothing,
    "no ops": made(passed_through, 1),
    "no ops, three parts": made(passed_through, 3),
    "a constant alone": constant_only,
    "two parts": two_parts,
    "odd ends": odd_ends,
    "one output twice": made(
        over, lambda x: [*[op.relu(x, name="relu").output(0)] * 2, x, x], 1, 4
    ),
    "outputs of several names": many_names,
    "unnamed": unnamed,
    "one name for all": same_names,
    "empty names": no_name,
    "hostile names": hostile_names,
    "twin branches": made(over, lambda x: op.add(branch(x), branch(x)), 1, 4),
    "a deep chain": made(chain, *(f"op{number}" for number in range(300))),
    "unused ports": made(over, unused_ports, 1, 4),
    "Identity ops": identities,
    "all folded": foldable,
    "sizes out of ShapeOf": made(over, shapes_computed, 2, 4),
    "ids of a table": embedding,
    "an extension": made(
        over, lambda x: op.tanh(Twice([op.relu(x).output(0)]).output(0)), 1, 4
    ),
    # random
    "uniform": made(random_of, "uniform"),
    "uniform with a seed": made(random_of, "seeded"),
    "dropout": made(random_of, "dropout"),
    "random integers": made(random_of, "integers"),
    "random in an If": made(random_of, "branch"),
    "random in a Loop": made(random_of, "loop"),
    "Multinomial": made(drawn, "i32", 0),
    "Multinomial with a seed": made(drawn, "i64", 5),
    # sizes and values that depend on values
    "batch unknown": made(dynamic, -1, 4),
    "columns of 1 to 8": made(over, lambda x: op.tanh(op.relu(x)), 2, ov.Dimension(1, 8)),
    "any rank": any_rank,
    "NonZero": dynamic_inside,
    "Unique": made(over, distinct, 8),
    "suppressed boxes": boxes,
    "positions": made(over, positions, 2, 8),
    "some NaN": made(logarithm, 0.5),
    "all NaN": made(logarithm, 2.0),
    "to infinity": made(over, lambda x: op.exp(op.add(op.relu(x), constant(100))), 1, 4),
    "some to infinity": made(over, lambda x: op.exp(op.multiply(op.relu(x), constant(150))), 1, 64),
    "0 / 0": made(over, lambda x: op.divide(op.subtract(x, x), op.subtract(x, x)), 1, 4),
    "near the largest f32": made(over, lambda x: op.tanh(op.multiply(x, constant(3e38))), 1, 4),
    "near the least f32": made(over, lambda x: op.relu(op.multiply(x, constant(1e-42))), 1, 4),
    "a huge constant": made(over, lambda x: [op.constant(np.ones((4 << 20,), np.float32)),
        op.tanh(op.relu(x))], 1, 4),
}  # fmt: skip

RANDOM_MODELS = frozenset({
    "no inputs", "uniform", "uniform with a seed", "dropout", "random integers", "random in an If",
    "random in a Loop", "Multinomial", "Multinomial with a seed",
})  # fmt: skip
SHAPES = {"columns of 1 to 8": {"x": [2, 4]}, "any rank": {"x": [2, 4]}}
