from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op
from small_models import chain, embedding, odd_ends, two_parts

import hetero_lab as hl
from hetero_lab.errors import InputError
from hetero_lab.model.read import prepare
from hetero_lab.runtime.inputs import bind_inputs, generate_inputs


def of_type(kind: ov.Type, shape: list[int] | None = None) -> ov.Model:
    x = op.parameter(shape if shape is not None else [2, 50], kind, name="x")
    made = op.concat([x, x], 0) if shape != [] else op.abs(x)
    return ov.Model([op.result(made, name="out")], [x], "m")


# -- generated ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "dtype", "low", "high"),
    [
        ("f32", "float32", 0, 1),
        ("f16", "float16", 0, 1),
        ("u8", "uint8", 0, 255),
        ("i8", "int8", -128, 127),
        ("i64", "int64", 0, 1),
        ("u64", "uint64", 0, 1),
        ("boolean", "bool", 0, 1),
    ],
)
def test_generated_inputs_fit_their_type(kind, dtype, low, high):
    prepared = prepare(of_type(getattr(ov.Type, kind)))
    made = generate_inputs(prepared)
    assert list(made) == ["x"]
    assert made["x"].dtype == dtype
    assert made["x"].shape == (2, 50)
    values = made["x"].astype(np.float64)
    assert low <= values.min() < values.max() <= high
    if kind in ("u8", "i8"):
        assert values.max() - values.min() > 200
    bind_inputs(prepared, made)


def test_generated_inputs_depend_on_the_seed_only():
    prepared = prepare(two_parts())
    first, again, other = (generate_inputs(prepared, seed) for seed in (1, 1, 2))
    assert list(first) == ["x", "y"]
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
        assert not np.array_equal(first[name], other[name])


@pytest.mark.parametrize("kind", ["u4", "i4", "nf4", "u1"])
def test_an_element_type_that_an_array_cannot_have(kind):
    prepared = prepare(of_type(getattr(ov.Type, kind)))
    for call in (generate_inputs, lambda model: bind_inputs(model, [np.zeros((2, 50), "f2")])):
        with pytest.raises(InputError, match=f"'x' has the element type {kind}.*PrePostProcessor"):
            call(prepared)


def words() -> ov.Model:
    """x → out, s → text; nothing uses ``unused``, a text as well."""
    x, s = op.parameter([4], np.float32, name="x"), op.parameter([2], ov.Type.string, name="s")
    unused = op.parameter([], ov.Type.string, name="unused")
    results = [op.result(op.relu(x), name="out"), op.result(s, name="text")]
    return ov.Model(results, [x, s, unused], "words")


@pytest.mark.parametrize(
    "given", [["ä", "long"], np.array(["ä", "long"], object), ov.Tensor(np.array(["ä", "long"]))]
)
@pytest.mark.filterwarnings("error")
def test_text_is_an_input_and_an_output(core, given):
    x = np.array([-1, 0, 1, 2], np.float32)
    inputs = {"x": x, "s": given, "unused": np.array("")}
    for compiled in (hl.compile, hl.ParallelExecutor):
        outputs = compiled(words(), "ACC", core=core)(inputs)
        assert outputs["s"].tolist() == ["ä", "long"]
        assert [v.tolist() for v in outputs.values() if v.dtype == np.float32] == [[0, 0, 1, 2]]


def test_generated_text_is_compared(core):
    made = generate_inputs(prepare(words()))
    assert made["s"].shape == (2,)
    assert {*made["s"].tolist(), str(made["unused"])} <= {"0", "1"}
    profile = hl.profile(words(), "ACC", iterations=5, progress=False, core=core, counters=False)
    assert [a.verdict for a in profile.agreement] == ["equal", "equal"]


def test_bytes_are_text_in_utf_8():
    prepared = prepare(words())
    given = {"x": np.zeros(4, np.float32), "unused": np.array("a")}
    bound = bind_inputs(prepared, {**given, "s": np.array(["ä".encode(), b"b"])})
    assert bound[1].tolist() == ["ä", "b"]
    for wrong, says in [
        (np.array([b"\xff", b""]), "'s' is not an array: 'utf-8'"),
        ([1, 2], "element type string, the given array int64"),
        (["a"], r"shape \[2\], the given array \[1\]"),
    ]:
        with pytest.raises(InputError, match=says):
            bind_inputs(prepared, {**given, "s": wrong})


# The bits of 1.5, -2 and the smallest normal number.
BITS = {
    "bf16": ([0x3FC0, 0xC000, 0x0080], np.uint16, [1.5, -2, 2**-126]),
    "f8e4m3": ([0x3C, 0xC0, 0x08], np.uint8, [1.5, -2, 2**-6]),
    "f8e5m2": ([0x3E, 0xC0, 0x04], np.uint8, [1.5, -2, 2**-14]),
}


@pytest.mark.parametrize("kind", BITS)
def test_types_that_numpy_does_not_have_are_taken_as_their_bits(core, kind):
    bits, dtype, values = BITS[kind]
    x = op.parameter([3], getattr(ov.Type, kind), name="x")
    wide = op.convert(x, "f32", name="wide")
    prepared = prepare(ov.Model([op.result(wide), op.result(x)], [x], "bits"))
    array = np.array(bits, dtype)
    runs = [make(prepared, "ACC", core=core) for make in (hl.compile, hl.ParallelExecutor)]
    for value in (value for run in runs for value in run([array]).values()):
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, np.array(values, np.float32))
    made = generate_inputs(prepared)["x"]
    assert made.dtype == dtype
    drawn = runs[0]({"x": made})
    assert all(((v >= 0) & (v <= 1)).all() for v in drawn.values())
    of_file = array.view(f"V{array.itemsize}")  # as .npz keeps an array of ml_dtypes
    np.testing.assert_array_equal(bind_inputs(prepared, [of_file])[0], array)
    with pytest.raises(InputError, match=rf"element type {kind}.*float32.*ml_dtypes\.\w+, or its"):
        bind_inputs(prepared, [array.astype(np.float32)])


@pytest.mark.parametrize("kind", ["f32", "f16", *BITS])
def test_floats_are_rounded_to_the_type_of_the_input(kind):
    """The values of a seed are the same numbers in each type, as near as that has them."""
    wide = generate_inputs(prepare(of_type(ov.Type.f64)), seed=3)["x"]
    own = generate_inputs(prepare(of_type(getattr(ov.Type, kind))), seed=3)["x"]
    x = op.parameter([2, 50], getattr(ov.Type, kind), name="x")
    read = ov.Model([op.result(op.convert(x, "f32"))], [x], "read")
    (values,) = hl.compile(read, "CPU")([own]).values()
    digits = {"f32": 23, "f16": 10, "bf16": 7, "f8e4m3": 3, "f8e5m2": 2}[kind]
    np.testing.assert_allclose(values, wide, rtol=2.0 ** -(digits + 1), atol=2.0**-9)
    assert len(np.unique(values)) > 10


@pytest.mark.parametrize("kind", BITS)
def test_arrays_of_ml_dtypes_are_taken(kind):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits, dtype, values = BITS[kind]
    of_kind = {"bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}[kind]
    x = op.parameter([3], getattr(ov.Type, kind), name="x")
    prepared = prepare(ov.Model([op.convert(x, "f32")], [x], "bits"))
    (bound,) = bind_inputs(prepared, [np.array(values, getattr(ml_dtypes, of_kind))])
    np.testing.assert_array_equal(bound, np.array(bits, dtype))


@pytest.mark.parametrize(
    ("kind", "given", "dtype"),
    [
        ("u2", [0, 1, 2, 3, 3], np.uint8),
        ("u4", [0, 1, 9, 14, 15], np.uint8),
        ("i4", [0, 1, -8, -1, 7], np.int8),
        ("bf16", [0, 1, -8, 0.5, 256], np.float32),
        ("f8e5m2", [0, 1, -8, 0.5, 256], np.float32),
        ("f4e2m1", [0, 1, -4, 0.5, 6], np.float32),
    ],
)
def test_outputs_have_their_values_whatever_the_type(core, kind, given, dtype):
    x = op.parameter([5], np.float32, name="x")
    small = op.convert(op.add(x, np.float32(0), name="a"), kind, name="small")
    model = ov.Model([small], [x], "small")
    for make in (hl.compile, hl.ParallelExecutor):
        (value,) = make(model, "CPU", core=core)([np.array(given, np.float32)]).values()
        assert value.dtype == dtype
        np.testing.assert_array_equal(value, np.array(given, dtype))


# -- ids stay within what they index -----------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 7])
def test_token_ids_stay_within_the_gathered_axis(core, rows):
    prepared = prepare(embedding(rows))
    ids = generate_inputs(prepared)["ids"]
    assert ids.min() >= 0
    assert ids.max() < rows
    assert ids.max() > 1 or rows == 1
    out = hl.compile(prepared, "CPU", core=core)([ids])["out"]
    assert (out != 0).all()


def indexed(make) -> ov.Model:
    ids = op.parameter([4], np.int32, name="ids")
    return ov.Model([op.result(make(ids), name="out")], [ids], "indexed")


TABLE = np.ones((5, 30, 3), np.float32)
BOUNDED = {
    "axis 1": (30, lambda ids: op.gather(op.constant(TABLE), ids, op.constant(1))),
    "axis -1": (3, lambda ids: op.gather(op.constant(TABLE), ids, op.constant(-1))),
    "reshaped": (5, lambda ids: op.gather(
        op.constant(TABLE), op.reshape(ids, op.constant([2, 2]), False), op.constant(0))),
    "concatenated": (5, lambda ids: op.gather(
        op.constant(TABLE), op.concat([ids, op.constant(np.zeros(1, np.int32))], 0),
        op.constant(0))),
    "smallest of two": (3, lambda ids: op.concat([
        op.gather(op.constant(np.ones(9, np.float32)), ids, op.constant(0)),
        op.gather(op.constant(np.ones(3, np.float32)), ids, op.constant(0))], 0)),
    "one hot": (6, lambda ids: op.one_hot(
        ids, op.constant(6), op.constant(np.float32(1)), op.constant(np.float32(0)), -1)),
    "gather elements": (8, lambda ids: op.gather_elements(
        op.constant(np.ones(8, np.float32)), ids, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", BOUNDED)
def test_ids_are_found_through_what_hands_them_on(name):
    bound, make = BOUNDED[name]
    prepared = prepare(indexed(make))
    values = np.concatenate([generate_inputs(prepared, seed)["ids"] for seed in range(40)])
    assert values.min() >= 0
    assert values.max() == bound - 1


# -- given -------------------------------------------------------------------------------------


@pytest.fixture
def two():
    return prepare(two_parts())


X, Y = np.arange(4, dtype=np.float32).reshape(1, 4), -np.ones((1, 4), np.float32)


def test_every_form_of_inputs(two, tmp_path: Path):
    np.savez(tmp_path / "in.npz", x=X, y=Y)
    forms = [
        [X, Y], (X, Y), {"y": Y, "x": X}, {0: X, 1: Y}, {np.int64(1): Y, "x": X},
        [ov.Tensor(X), ov.Tensor(Y)], tmp_path / "in.npz", str(tmp_path / "in.npz"),
        lambda: [X, Y], lambda: {"x": X, "y": Y}, lambda: tmp_path / "in.npz",
        np.load(tmp_path / "in.npz"), [np.asfortranarray(X), Y],
    ]  # fmt: skip
    for form in forms:
        bound = bind_inputs(two, form)
        np.testing.assert_array_equal(bound[0], X)
        np.testing.assert_array_equal(bound[1], Y)
        assert all(array.flags.c_contiguous for array in bound)


def test_a_single_array_or_a_name_of_the_tensor_or_of_the_parameter():
    model = chain("r")
    model.inputs[0].set_names({"tensor", "alias"})
    prepared = prepare(model)
    for given in ({"tensor": X}, {"alias": X}, {"x": X}, X):
        np.testing.assert_array_equal(bind_inputs(prepared, given)[0], X)
    assert list(generate_inputs(prepared)) == ["alias"]


def test_a_scalar_input_keeps_its_shape(core):
    prepared = prepare(of_type(ov.Type.f32, []))
    assert bind_inputs(prepared, {"x": np.float32(5)})[0].shape == ()
    assert hl.compile(prepared, "CPU", core=core)({"x": np.float32(5)})["out"] == 5


def test_an_input_that_no_op_uses_has_to_be_given_too():
    prepared = prepare(odd_ends())
    assert list(generate_inputs(prepared)) == ["x", "unused", "through"]
    with pytest.raises(InputError, match="'unused', 'through' are missing"):
        bind_inputs(prepared, {"x": X})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([X], "has 2 inputs ('x', 'y'), 1 were given"),
        (X, "1 were given"),
        ({"x": X}, "The inputs 'y' are missing"),
        ({"x": X, "Y": Y}, "Did you mean 'y'"),
        ({0: X, 2: Y}, "no input '2'"),
        ({"x": X, True: Y}, "no input 'True'"),
        ([X, Y[0]], "Input 'y' has the shape [1, 4], the given array [4]"),
        ([X, Y.astype(int)], "array.astype('float32')"),
        ([X, Y.astype(">f4")], "element type float32"),
        ([X, [[1, 2, 3, 4]]], "Input 'y' has the element type float32"),
        ([X, [[1, 2], [3]]], "Input 'y' is not an array"),
        ([X, "text"], "Input 'y'"),
        ([X, None], "Input 'y'"),
        (None, "not NoneType"),
        ({X.tobytes(): X}, "no input"),
        (lambda: 5, "not int"),
        ("missing.npz", "missing.npz' cannot be read as .npz"),
    ],
)
def test_inputs_that_do_not_fit(two, given, says):
    with pytest.raises(InputError) as caught:
        bind_inputs(two, given)
    assert says in str(caught.value)


def test_files_that_are_no_npz(two, tmp_path):
    np.save(tmp_path / "one.npy", X)
    for content in ((tmp_path / "one.npy").read_bytes(), b"", b"garbage", b"PK\x03\x04broken"):
        (tmp_path / "broken.npz").write_bytes(content)
        with pytest.raises(InputError, match=r"broken.npz' cannot be read as .npz"):
            bind_inputs(two, tmp_path / "broken.npz")


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_nothing_in_an_npz_is_run(two, tmp_path):
    mark = tmp_path / "run"
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists()  # so the bomb works
    mark.unlink()
    np.savez(tmp_path / "bomb.npz", x=X, y=np.array([Bomb(mark)], dtype=object))
    with pytest.raises(InputError, match=r"bomb.npz' cannot be read"):
        bind_inputs(two, tmp_path / "bomb.npz")
    assert not mark.exists()
