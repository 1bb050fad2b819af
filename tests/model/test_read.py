from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from counting_core import F32, in_f32
from hypothesis import given, strategies as st
from odd_models import any_rank, either, over
from openvino import opset13 as op
from other_process import run_python
from random_models import random_model
from small_models import (
    NASTY_NAMES,
    all_of,
    chain,
    compressed,
    convolutions,
    dynamic,
    embedding,
    foldable,
    identities,
    odd_ends,
    stateful,
    two_parts,
)

import hetero_lab as hl
from hetero_lab.cli import values
from hetero_lab.errors import HeteroLabWarning, ModelError
from hetero_lab.model.opgraph import op_graph
from hetero_lab.model.read import input_name, names_of_file, output_names, prepare
from hetero_lab.runtime.inputs import generate_inputs
from hetero_lab.samples import onnx_wire


def types_of(model: ov.Model) -> list[str]:
    return [node.get_type_name() for node in model.get_ordered_ops()]


def infer(model: ov.Model, core: ov.Core, inputs: list[np.ndarray]) -> list[np.ndarray]:
    return [np.array(out) for out in core.compile_model(model, "CPU", F32)(inputs).values()]


def without_rank(path: Path, *more: tuple[int, bytes]) -> Path:
    """Write an ONNX file whose convolution cannot be converted: the rank of its input is open."""
    weights = onnx_wire.tensor("w", np.ones((2, 3, 1, 1), np.float32))
    graph = onnx_wire.encode(
        (1, onnx_wire.node("Conv", "conv", ["x", "w"], ["y"])), (2, "graph"), (5, weights),
        (11, onnx_wire.encode((1, "x"), (2, onnx_wire.encode((1, onnx_wire.encode((1, 1))))))),
        *more, (12, onnx_wire.value_info("y", [1, 2, 4, 4])),
    )  # fmt: skip
    path.write_bytes(onnx_wire.model(graph, 13))
    return path


def onnx_graph(*nodes: bytes, more: Sequence[tuple[int, bytes]] = ()) -> bytes:
    """Return a graph of ONNX from x to y, both f32 of [1, 4]."""
    ends = (11, onnx_wire.value_info("x", [1, 4])), (12, onnx_wire.value_info("y", [1, 4]))
    return onnx_wire.encode(*[(1, node) for node in nodes], (2, "graph"), *more, *ends)


# -- sources ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shapes", [{"x": [1, 3, 4, 4]}, [1, 3, 4, 4]])
def test_shapes_are_known_while_a_model_is_converted(tmp_path: Path, shapes, core):
    path = without_rank(tmp_path / "m.onnx")
    loaded = hl.load(path, shapes=shapes)
    assert list(loaded.output(0).shape) == [1, 2, 4, 4]
    (found,) = infer(loaded, core, [np.ones((1, 3, 4, 4), np.float32)])
    assert (found == 3).all()


def test_a_model_that_cannot_be_converted_says_what_may_help(tmp_path: Path):
    path = without_rank(tmp_path / "m.onnx", (11, onnx_wire.value_info("rate", [])))
    with pytest.raises(ModelError, match="rank has to be known.* shapes of all inputs:") as told:
        hl.load(path)
    python, shell = re.findall(
        r"shapes=(\{.*\})\), or on the command line (.*)\.", str(told.value)
    )[0]
    assert eval(python) == {"x": [128], "rate": []}  # our own text
    assert values.shapes(shlex.split(shell)[1::2]) == eval(python)
    with pytest.raises(ModelError, match=r"no input 'X'\. Did you mean 'x'"):
        hl.load(path, shapes={"X": [1, 3, 4, 4]})
    with pytest.raises(ModelError, match="cannot read.*troubleshooting"):
        hl.load(path, shapes={"x": [1, 5, 4, 4]})  # the weights have 3 channels


def test_a_path_and_a_model_and_a_sample_are_read(tmp_path: Path, core):
    model = convolutions(8)
    xml = tmp_path / "model.xml"
    ov.save_model(model, xml, compress_to_fp16=False)
    for source in (str(xml), xml, model):
        loaded = hl.load(source)
        assert [name for name in all_of(loaded) if name.startswith("conv")] == ["conv1", "conv2"]
    assert prepare(xml).fingerprint == prepare(model).fingerprint
    digits = hl.load("digits_inception")
    assert all(port.get_partial_shape().is_static for port in digits.inputs)
    assert len(prepare("digits_inception").graph.placeable) > 10


def test_the_callers_model_is_never_changed(core):
    for model in (identities(), foldable(), dynamic(-1, 4), random_model(3), stateful()):
        before = op_graph(model)
        names = [sorted(port.get_names()) for port in (*model.inputs, *model.outputs)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HeteroLabWarning)
            loaded = hl.load(model)
        assert loaded is not model
        assert op_graph(model) == before
        assert not model.has_rt_info(["hetero_lab", "prepared"])
        assert [sorted(port.get_names()) for port in (*model.inputs, *model.outputs)] == names
    given = dynamic(-1, 4)
    hl.load(given, shapes={"x": [2, 4]})
    assert given.inputs[0].get_partial_shape().is_dynamic
    model = hl.load(two_parts())
    hl.compile(model, "HETERO:ACC,CPU", core=core)
    # An affinity left behind would be obeyed by whatever the caller compiles next.
    assert not any("affinity" in node.get_rt_info() for node in model.get_ordered_ops())


def test_a_missing_file_and_a_misspelt_sample(tmp_path):
    (tmp_path / "mine.onnx").touch()
    for source, says in (
        (tmp_path / "missing.xml", r"missing\.xml' does not exist"),
        ("digits_inceptoin", "Did you mean 'digits_inception'"),
        (tmp_path / "mine", r"Did you mean 'mine\.onnx'"),
        (tmp_path, r"not a model file: it has no openvino_model\.xml"),
        ("x" * 5000, "'x+…x+' does not exist"),
    ):
        with pytest.raises(ModelError, match=says):
            hl.load(source)


@pytest.mark.parametrize("suffix", [".xml", ".onnx", ".tflite", ".pb", ".txt", ""])
@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff garbage \x01" * 50, b"<?xml version='1.0'?><net"]
)
def test_a_corrupt_file(tmp_path, suffix, content):
    path = tmp_path / f"corrupt{suffix}"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        hl.load(path)
    assert f"corrupt{suffix}'" in str(caught.value)
    assert "Is the file complete" in str(caught.value)
    assert caught.value.__cause__ is not None


def test_an_xml_with_a_strange_op_without_its_weights_or_cut_short(tmp_path):
    xml = tmp_path / "model.xml"
    ov.save_model(convolutions(8), xml, compress_to_fp16=False)
    whole = xml.read_bytes()
    strange = whole.replace(b'type="Convolution"', b'type="NoSuchOp"')
    for content, says in (
        (strange, "doesn't contain the operation with type: NoSuchOp"),
        (whole[: len(whole) // 2], "model.xml"),
        (whole, "model.xml"),  # without its weights
    ):
        xml.write_bytes(content)
        if content == whole:
            xml.with_suffix(".bin").unlink()
        with pytest.raises(ModelError, match=says):
            hl.load(xml)


# -- shapes ----------------------------------------------------------------------------------


def test_only_the_batch_is_dynamic_and_becomes_one_said_aloud():
    with pytest.warns(HeteroLabWarning, match="batch of 'x' is dynamic and was set to 1") as seen:
        model = hl.load(dynamic(-1, 4))
    assert list(model.inputs[0].get_shape()) == [1, 4]
    assert len(seen) == 1
    # The warning points at the caller, not into the library.
    assert seen[0].filename == __file__
    with pytest.warns(HeteroLabWarning, match="was set to 3. To"):  # the least that it takes
        assert list(hl.load(dynamic((3, 9), 4)).inputs[0].get_shape()) == [3, 4]


def shown(model: ov.Model, says: str) -> dict[str, list[int]]:
    """Return the shapes that an error shows for a model, which takes them."""
    with pytest.raises(ModelError, match=says) as caught:
        hl.load(model)
    shapes = eval(str(caught.value).partition("shapes=")[2].partition(")")[0])  # our own text
    loaded = hl.load(model, shapes=shapes)
    assert {input_name(port): list(port.shape) for port in loaded.inputs} == shapes
    return shapes


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ((-1, 4, -1), r"'x \[.*load\(source, shapes={\"x\": \["),
        ((1, -1), r"--shape x=1,1\."),
        ((1, (300, 500)), r"--shape x=1,300\."),
        (((2, 9), (1, 4)), r"--shape x=2,4\."),
    ],
)
def test_any_other_dynamic_dimension_is_an_error_that_shows_the_call(sizes, says):
    shown(dynamic(*sizes), says)


def test_the_shapes_that_an_error_shows_fit_together():
    x, state = (
        op.parameter(ov.PartialShape(list(sizes)), np.float32, name=name)
        for name, sizes in (("x", (-1, -1)), ("state", (2, -1, 4)))
    )
    first = op.gather(state, op.constant(0), op.constant(0))  # as many rows as x
    model = ov.Model([op.result(op.concat([x, first], 1), name="out")], [x, state], "recurrent")
    assert shown(model, "--shape x=1,128 --shape state=2,1,4")["state"] == [2, 1, 4]


def taken(model: ov.Model, shapes) -> list[int]:
    """Return the shape of a loaded model's first input."""
    return list(hl.load(model, shapes=shapes).inputs[0].shape)


def test_given_shapes_win_and_need_no_warning():
    assert taken(dynamic(-1, 4), {"x": [3, 4]}) == [3, 4]
    assert taken(dynamic(2, 4), {"x": (5, 4)}) == [5, 4]
    # An input of unknown rank takes any shape, that of a scalar too.
    with pytest.raises(ModelError, match="'x "):
        hl.load(any_rank())
    assert taken(any_rank(), {"x": [2, 3]}) == [2, 3]
    for shapes in ([], (), {"x": []}):
        assert taken(any_rank(), shapes) == []
    with pytest.raises(ModelError, match=r"takes \[\?,4\], the given shape is \[\]"):
        hl.load(dynamic(-1, 4), shapes=[])


BOUNDED = r"Input 'x' takes \[1\.\.8,300\.\.500\], the given shape"


@pytest.mark.parametrize(
    ("model", "shapes", "says"),
    [
        (dynamic(-1, 4), {"X": [1, 4]}, "Did you mean 'x'"),
        (dynamic(-1, 4), {"x": [-1, 4]}, "'x'.*whole numbers of at least 0"),
        (dynamic(-1, 4), {"x": None}, "'x'.*whole numbers of at least 0"),
        (dynamic(-1, 4), {5: [1, 4]}, "no input '5'.*'x"),
        *(
            (dynamic((1, 8), (300, 500)), {"x": shape}, BOUNDED)
            for shape in ([1, 299], [1, 501], [0, 300], [9, 300], [1], [1, 300, 1])
        ),
        (two_parts(), [1, 4], "only for a model with one input"),
        (convolutions(8), {"image": [1, 5, 8, 8]}, "cannot take the.*'image'.*channel.*'image"),
    ],
)
def test_shapes_that_do_not_fit(model, shapes, says):
    with pytest.raises(ModelError, match=says):
        hl.load(model, shapes=shapes)


def test_a_size_of_0_is_a_shape(core):
    for model, shape in [(dynamic(-1, 4), [0, 4]), (dynamic((0, 3), 4), [0, 4])]:
        loaded = hl.load(model, shapes={"x": shape})
        (out,) = hl.compile(loaded, "CPU", core=core)([np.ones((0, 4), np.float32)]).values()
        assert out.shape == (0, 4)


# -- folding ---------------------------------------------------------------------------------


def test_constants_are_folded(core):
    model = hl.load(foldable())
    assert types_of(model).count("Add") == 1
    (out,) = infer(model, core, [np.array([[-1, 0, 1, 2]], np.float32)])
    assert out.tolist() == [[3, 3, 4, 5]]


COMPRESSED = ["i8", "u8", "f16", "bf16", "i4", "u4", "u2", "u1", "nf4", "f8e4m3", "f8e5m2"]


@pytest.mark.parametrize("kind", COMPRESSED)
def test_compressed_weights_stay_compressed_and_give_the_same_numbers(core, kind):
    model = compressed(getattr(ov.Type, kind))
    graph = prepare(model).graph
    weights = graph.ops[graph.index_of["weights"]]
    assert (weights.type, weights.outputs[0].element_type) == ("Constant", kind)
    assert graph.ops[graph.index_of["decompress"]].type == "Convert"
    if kind in ("i8", "u8", "f16"):
        x = [np.random.default_rng(0).random((1, 16), np.float32)]
        np.testing.assert_array_equal(infer(hl.load(model), core, x)[0], infer(model, core, x)[0])


def test_shared_compressed_weights_can_be_split_over_two_devices(core):
    model = prepare(compressed(ov.Type.i8, users=2))
    inputs = generate_inputs(model)
    cpu = hl.Affinity.uniform(model, "CPU", core=core)
    split = cpu.fix(ops={"matmul0": "ACC"}, core=core)
    expected = hl.compile(model, in_f32(cpu, direct=True), core=core)(inputs)
    compiled = hl.compile(model, in_f32(split), core=core)
    assert compiled.as_predicted
    assert "scaled" not in {boundary.op for boundary in compiled.partition.boundaries}
    for name, value in compiled(inputs).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5)


def test_each_reader_of_decompressed_weights_has_its_own_decompression():
    model = hl.load(compressed(ov.Type.i8, users=3))
    readers = [node for node in model.get_ops() if node.get_type_name() == "MatMul"]
    weights = {node.input_value(1).get_node().get_friendly_name() for node in readers}
    assert weights == {"scaled", "scaled_2", "scaled_3"}
    assert len(hl.load(model).get_ops()) == len(model.get_ops())


@pytest.mark.parametrize("kind", ["FakeQuantize", "FakeConvert"])
def test_f32_weights_that_are_quantised_on_the_way_stay_so(kind):
    weights = op.constant(np.random.default_rng(0).random((16, 16), np.float32))
    low, high = op.constant(np.float32(0)), op.constant(np.float32(1))
    if kind == "FakeQuantize":
        quantised = op.fake_quantize(weights, low, high, low, high, 256)
    else:
        quantised = op.fake_convert(weights, high, low, "f8e4m3")
    model = over(lambda x: op.matmul(x, quantised, False, False), 1, 16)
    assert kind in types_of(hl.load(model))


def test_an_int8_model_saved_and_read_again_is_as_small(tmp_path):
    path = tmp_path / "int8.xml"
    ov.save_model(hl.load(compressed(ov.Type.i8)), path, compress_to_fp16=False)
    assert path.with_suffix(".bin").stat().st_size < 600
    graph = prepare(path).graph
    assert graph.ops[graph.index_of["weights"]].outputs[0].element_type == "i8"


# -- Identity --------------------------------------------------------------------------------


def test_identities_are_bypassed_and_names_stay(core):
    before = identities()
    after = hl.load(before)
    # The one between an input and an output stays: it keeps their names apart.
    assert types_of(after).count("Identity") == 1
    assert ("twos", "Add") not in zip(all_of(after), types_of(after), strict=True)
    assert output_names(after) == ["abs_out", "named", "a_copy"] == output_names(before)
    assert [input_name(port) for port in after.inputs] == ["x_in"]
    x = np.array([[-5, 0, 1, 2]], np.float32)
    outputs = hl.compile(before, "HETERO:ACC,CPU", core=core)({"x_in": x})
    for ours in (infer(after, core, [x]), outputs.values()):
        for value, expected in zip(ours, infer(before, core, [x]), strict=True):
            np.testing.assert_array_equal(value, expected)


# -- names -----------------------------------------------------------------------------------


def test_names_that_are_unique_and_the_order_of_inputs_and_outputs_are_kept():
    named = (convolutions(), chain(*NASTY_NAMES), odd_ends(), two_parts())
    for model in (*named, identities(), *map(random_model, range(5))):
        loaded = hl.load(model)
        assert set(all_of(loaded)) == set(all_of(model)) or model not in named
        assert list(map(input_name, loaded.inputs)) == list(map(input_name, model.inputs))
        assert output_names(loaded) == output_names(model)
        shapes = [[str(p.get_partial_shape()) for p in each.outputs] for each in (loaded, model)]
        assert shapes[0] == shapes[1]


def test_duplicate_names_are_made_unique_and_the_first_keeps_its_own():
    model = chain("same", "same", "other", "same")
    numbered = chain("same", "same", "same_2", "same")
    assert " ".join(all_of(hl.load(model))) == "x same same_2 other same_3 out"
    assert " ".join(all_of(hl.load(numbered))) == "x same same_3 same_2 same_4 out"
    # The runtime would merge them in silence: three supported ops, one key.
    assert len(ov.Core().query_model(model, "CPU")) < 6


def test_output_names_are_unique_and_the_first_tensor_name():
    x = op.parameter([1, 4], np.float32, name="x")
    relu = op.relu(x, name="relu")
    relu.output(0).set_names({"zebra", "aardvark"})
    plain = op.result(op.abs(x, name="abs"), name="its own")
    model = ov.Model([op.result(relu, name="a"), op.result(relu, name="b"), plain], [x], "m")
    assert output_names(hl.load(model)) == ["aardvark", "aardvark_2", "its own"]


# -- the mark of a prepared model ------------------------------------------------------------


def test_what_is_prepared_passes_through_and_is_copied_by_load():
    once = hl.load(chain("r", "s"))
    twice = hl.load(once)
    assert twice is not once
    assert prepare(once).model is prepare(prepare(once)).model is once
    assert len({prepare(model).fingerprint for model in (once, twice, chain("r", "s"))}) == 1


def test_a_change_of_a_prepared_model_is_seen():
    model = hl.load(compressed(ov.Type.f32))
    before = prepare(model).fingerprint
    old = next(n for n in model.get_ordered_ops() if n.get_type_name() == "Constant")
    new = op.constant(old.get_data() + 1, name=old.get_friendly_name())
    old.output(0).replace(new.output(0))
    assert prepare(model).fingerprint != before
    renamed = hl.load(chain("r", "s"))
    before = prepare(renamed).fingerprint
    renamed.get_ordered_ops()[1].set_friendly_name("q")
    assert prepare(renamed).fingerprint != before


def test_fingerprints_tell_models_apart():
    every = [
        prepare(model).fingerprint
        for model in (
            chain("r", "s"), chain("r", "t"), chain("r", "s", size=5),
            *(over(lambda x, axis=axis: op.softmax(x, axis), 1, 4, 4) for axis in (1, 2)),
            compressed(ov.Type.i8), compressed(ov.Type.i4), embedding(7), embedding(8),
            *map(adding, (1.0, 2.0)), *map(random_model, range(20)),
        )
    ]  # fmt: skip
    assert len(set(every)) == len(every)


def adding(number: float) -> ov.Model:
    """Build an If, of which one branch adds a number, and a relu behind it."""
    return over(
        lambda x: op.relu(either(x, lambda y: op.add(y, np.float32(number)), 4), name="relu"), 1, 4
    )


def test_an_if_goes_whole(core):
    model = prepare(adding(3.0))
    on_acc = hl.Affinity.automatic(model, "HETERO:ACC,CPU", core=core)
    affinity = on_acc.fix(ops={"relu": "CPU"}, core=core)
    compiled = hl.compile(model, in_f32(affinity), core=core)
    assert compiled.as_predicted
    for value, out in ((1, 4), (-1e9, 0)):
        (found,) = compiled([np.full((1, 4), value, np.float32)]).values()
        assert found.tolist() == [[out] * 4]


# -- other formats -----------------------------------------------------------------------------


@pytest.mark.parametrize("shapes", [None, {"x": [1, 4]}])
@pytest.mark.parametrize("op_type", ["com.microsoft.FusedGelu", "my.domain.Foo", "Relux"])
def test_an_op_of_onnx_that_openvino_does_not_know(tmp_path, op_type, shapes):
    domain, _, kind = op_type.rpartition(".")
    node = onnx_wire.node(kind, "n", ["x"], ["y"]) + onnx_wire.encode((7, domain))
    opsets = onnx_wire.encode((8, onnx_wire.encode((1, domain), (2, 1))))
    (tmp_path / "m.onnx").write_bytes(onnx_wire.model(onnx_graph(node), 17) + opsets)
    says = f"{op_type}.*without these ops.*HETERO_LAB_EXTENSIONS"
    with pytest.raises(ModelError, match=says) as caught:
        hl.load(tmp_path / "m.onnx", shapes=shapes)
    assert "need shapes" not in str(caught.value)


def saved_model(directory: Path, kind: str = "Relu") -> Path:
    """Write a model of TensorFlow: x → y, f32 of [1, 4]."""
    encode = onnx_wire.encode
    sizes = encode(*[(2, encode((1, size))) for size in (1, 4)])

    def node(name: str, kind: str, *inputs: str, **attributes: bytes) -> bytes:
        given = [(5, encode((1, key), (2, value))) for key, value in attributes.items()]
        return encode((1, name), (2, kind), *[(3, source) for source in inputs], *given)

    x = node("x", "Placeholder", dtype=encode((6, 1)), shape=encode((7, sizes)))
    graph = encode((1, x), (1, node("y", kind, "x", T=encode((6, 1)))))
    ends = [
        (field, encode((1, name), (2, encode((1, f"{at}:0"), (2, 1), (3, sizes)))))
        for field, name, at in [(1, "inputs", "x"), (2, "outputs", "y")]
    ]
    signature = encode(*ends, (3, "tensorflow/serving/predict"))
    graphs = encode(
        (1, encode((4, "serve"))), (2, graph),
        (5, encode((1, "serving_default"), (2, signature))),
    )  # fmt: skip
    directory.mkdir()
    (directory / "saved_model.pb").write_bytes(encode((1, 1), (2, graphs)))
    return directory


def test_the_directory_of_a_tensorflow_model(tmp_path, core):
    directory = saved_model(tmp_path / "mobile")
    for source in (directory, str(directory), directory / "saved_model.pb", f"{directory}/"):
        model = hl.load(source)
        (out,) = infer(model, core, [np.array([[-1, 0, 1, 2]], np.float32)])
        assert out.tolist() == [[0, 0, 1, 2]]
    assert prepare(str(directory)).graph.name == "mobile"
    assert prepare(directory).fingerprint == prepare(directory / "saved_model.pb").fingerprint
    with pytest.raises(ModelError, match=r"operations: FooBar.*without these ops"):
        hl.load(saved_model(tmp_path / "odd", "FooBar"))
    (tmp_path / "mobile" / "saved_model.pb").write_bytes(b"")
    with pytest.raises(ModelError, match="Is the file complete"):
        hl.load(directory)


@pytest.mark.parametrize(
    "name", ["m.pt", "m.pth", "m.h5", "m.keras", "inference.json", "m.safetensors", "m.onnx"]
)
def test_formats_that_openvino_converts_only(tmp_path, name):
    (tmp_path / name).write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ModelError, match=r"Git LFS.*PaddlePaddle 3.*openvino.convert_model"):
        hl.load(tmp_path / name)


def test_weights_behind_the_links_of_a_hub(tmp_path):
    weights = onnx_wire.encode((1, 4), (2, 1), (8, "w"), (14, 1), *[
        (13, onnx_wire.encode((1, key), (2, value)))
        for key, value in [("location", "m.onnx_data"), ("offset", "0"), ("length", "16")]
    ])  # fmt: skip
    graph = onnx_graph(onnx_wire.node("Add", "n", ["x", "w"], ["y"]), more=[(5, weights)])
    home = tmp_path / "snapshot"
    home.mkdir()
    (home / "m.onnx").write_bytes(onnx_wire.model(graph, 17))
    with pytest.raises(ModelError, match="m.onnx_data.*with its data beside it"):
        hl.load(home / "m.onnx")
    (tmp_path / "blob").write_bytes(np.ones(4, np.float32).tobytes())
    (home / "m.onnx_data").symlink_to(tmp_path / "blob")
    with pytest.raises(ModelError, match="outside the base.*no links of a hub's cache"):
        hl.load(home / "m.onnx")


# -- nodes without a name have the same one at every reading ------------------------------------


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    """An ONNX file: a Gemm, which becomes several nodes without a name, and numbered names."""
    nodes = [
        onnx_wire.node("Gemm", "Gemm_1", ["x", "w", "b"], ["g"], {"alpha": 0.5, "beta": 2.0}),
        onnx_wire.node("Relu", "Relu_12", ["g"], ["Constant_3"]),
        onnx_wire.node("Tanh", "Multiply.0", ["Constant_3"], ["t"]),
        onnx_wire.node("Softmax", "", ["t"], ["y"]),
    ]
    values = {"w": np.ones((4, 4), np.float32), "b": np.ones(4, np.float32)}
    weights = [(5, onnx_wire.tensor(name, value)) for name, value in values.items()]
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_wire.model(onnx_graph(*nodes, more=weights), 13))
    return path


def test_an_affinity_fits_the_next_reading_of_a_file_although_nodes_are_numbered_anew(
    onnx_file, core
):
    # Why nodes are named. A release in which the numbers stay the same would make it needless.
    first, second = (all_of(ov.Core().read_model(onnx_file)) for _ in range(2))
    assert first != second
    affinity = hl.Affinity.automatic(onnx_file, "HETERO:ACC,CPU", core=core)
    assert hl.compile(onnx_file, affinity, core=core).as_predicted


def test_a_file_has_the_same_names_in_another_process(onnx_file):
    code = (
        "import openvino.opset13 as op, sys\n"
        "for i in range(int(sys.argv[2])): op.constant(1.0).get_friendly_name()\n"
        "from hetero_lab.model.read import prepare\n"
        "p = prepare(sys.argv[1]); print([o.name for o in p.graph], p.fingerprint)"
    )
    # Twelve nodes before, and the runtime's own numbers meet those of the file.
    found = {
        run_python(code, onnx_file, before, PYTHONHASHSEED=str(before)).stdout
        for before in (0, 1, 12, 100)
    }
    here = prepare(onnx_file)
    assert found == {f"{[node.name for node in here.graph]} {here.fingerprint}\n"}


def test_names_that_the_file_gives_are_kept(onnx_file):
    names = all_of(hl.load(onnx_file))
    assert {"x", "Relu_12", "y", "Gemm_1", "Multiply.0"} <= set(names)
    numbered = sorted(name for name in names if name.startswith("Multiply"))
    assert numbered == ["Multiply.0", "Multiply.1", "Multiply.2"]  # what is taken is left out


def test_names_of_a_saved_model_are_its_own_and_made_up_ones_in_memory_are_kept(tmp_path):
    model = chain("Relu_5", "Sigmoid_1", "Constant_9")
    ov.save_model(model, tmp_path / "m.xml", compress_to_fp16=False)
    assert all_of(hl.load(tmp_path / "m.xml")) == ["x", "Relu_5", "Sigmoid_1", "Constant_9", "out"]
    nameless = over(op.relu, 1, 4)
    assert all_of(hl.load(nameless)) == all_of(nameless)


def test_nodes_that_other_shapes_bring_are_named_too():
    # To take another batch through a reshape with fixed numbers, the runtime computes them.
    x = op.parameter(ov.PartialShape([-1, 4, 4]), np.float32, name="x")
    flat = op.reshape(x, op.constant([1, 16], name="shape"), False)
    flat.set_friendly_name("flat")
    weights = op.constant(np.ones((16, 3), np.float32), name="weights")
    product = op.matmul(flat, weights, False, False, name="matmul")
    model = ov.Model([op.result(product, name="out")], [x], "m")
    first, second = (all_of(hl.load(model, shapes={"x": [2, 4, 4]})) for _ in range(2))
    assert first == second
    assert len(first) > len(all_of(chain("matmul", "flat", "weights")))


@given(
    st.lists(st.from_regex(r"(a|A9|b_1|ba)_[0-9]{1,2}", fullmatch=True)),
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([1, 4]), st.booleans())),
    st.lists(st.binary(max_size=4), min_size=1),
)
def test_names_are_found_by_their_lengths_wherever_they_stand(names, strings, between):
    # The bytes around a string may be letters and digits; only its length tells where it ends.
    data, held = b"", set()
    for index, size, right in strings if names else []:
        name = names[index % len(names)].encode()
        length = len(name) if right else len(name) + 1
        data += between[index % len(between)] + length.to_bytes(size, "little") + name
        data += b"_"
    for name in names:
        text = name.encode()
        if any(len(text).to_bytes(size, "little") + text in data for size in (1, 4)):
            held.add(name)
    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        file.write(data)
        file.flush()
        found = names_of_file(chain(*names).get_ordered_ops(), Path(file.name))
    assert found == {"x", "out", *(held if data else names)}


def test_a_model_without_outputs_is_refused():
    x = op.parameter([1], np.float32)
    for model in (ov.Model([], [], "empty"), ov.Model([], [x], "empty")):
        with pytest.raises(ModelError, match="'empty' has no outputs"):
            hl.load(model)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_file_name_need_not_be_utf8(tmp_path):
    path = os.fsencode(tmp_path) + b"/mod\xe8le.onnx"
    relu = onnx_wire.node("Relu", "relu", ["x"], ["y"])
    with open(path, "wb") as file:
        file.write(onnx_wire.model(onnx_graph(relu), 13))
    assert hl.load(os.fsdecode(path)).friendly_name == "mod\\udce8le"


@pytest.mark.parametrize("name", ["one_input", "one_op", "one_tensor", "one_model"])
@pytest.mark.parametrize("middle", [b"\xe8", b"\xed\xa0\x80", b"&#xD800;"])
def test_names_that_are_no_text_are_refused(name, middle, tmp_path):
    x = op.parameter([1, 4], np.float32, name="one_input")
    relu = op.relu(x, name="one_op")
    relu.output(0).set_names({"one_tensor"})
    ov.save_model(ov.Model([relu], [x], "one_model"), tmp_path / "m.xml")
    text = (tmp_path / "m.xml").read_bytes()
    (tmp_path / "m.xml").write_bytes(text.replace(name.encode(), b"one" + middle + b"end"))
    for source in (tmp_path / "m.xml", ov.Core().read_model(tmp_path / "m.xml")):
        with pytest.raises(ModelError, match="no text in UTF-8"):
            hl.load(source)
