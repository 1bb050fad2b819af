"""Nodes without a name have the same one at every reading, so what is stored fits the next."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, strategies as st
from openvino import opset13 as op
from other_process import run_python
from small_models import all_of, chain

import hetero_lab as hl
from hetero_lab.model.naming import name_the_nameless, names_of_file
from hetero_lab.model.read import prepare
from hetero_lab.samples import onnx_wire


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    """An ONNX file: a Gemm, which becomes several nodes without a name, and numbered names."""
    nodes = [
        onnx_wire.node("Gemm", "Gemm_1", ["x", "w", "b"], ["g"], {"alpha": 0.5, "beta": 2.0}),
        onnx_wire.node("Relu", "Relu_12", ["g"], ["Constant_3"]),
        onnx_wire.node("Softmax", "", ["Constant_3"], ["y"]),
    ]
    graph = onnx_wire.encode(
        *[(1, node) for node in nodes],
        (2, "graph"),
        (5, onnx_wire.tensor("w", np.ones((4, 4), np.float32))),
        (5, onnx_wire.tensor("b", np.ones(4, np.float32))),
        (11, onnx_wire.value_info("x", [1, 4])),
        (12, onnx_wire.value_info("y", [1, 4])),
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_wire.model(graph, 13))
    return path


def test_the_runtime_numbers_nodes_anew_at_every_reading(onnx_file):
    # Why this module exists. A release in which they stay the same would make it needless.
    first, second = (all_of(ov.Core().read_model(onnx_file)) for _ in range(2))
    assert first != second


def test_a_file_has_the_same_names_at_every_reading(onnx_file, core):
    first, second = prepare(onnx_file), prepare(onnx_file)
    assert [op_.name for op_ in first.graph] == [op_.name for op_ in second.graph]
    assert first.fingerprint == second.fingerprint
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
    assert {"x", "Relu_12", "y", "Gemm_1"} <= set(names)
    assert [name for name in names if name.startswith("Multiply")] == ["Multiply.0", "Multiply.1"]


def test_names_of_a_saved_model_are_its_own_and_made_up_ones_in_memory_are_kept(tmp_path):
    model = chain("Relu_5", "Sigmoid_1", "Constant_9")
    ov.save_model(model, tmp_path / "m.xml", compress_to_fp16=False)
    assert all_of(hl.load(tmp_path / "m.xml")) == ["x", "Relu_5", "Sigmoid_1", "Constant_9", "out"]
    x = op.parameter([1, 4], np.float32)
    model = ov.Model([op.result(op.relu(x))], [x], "nameless")
    assert all_of(hl.load(model)) == all_of(model)


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


def test_numbers_go_by_type_and_leave_out_what_is_taken():
    model = chain("Relu.0", "Sigmoid_77", "Tanh_78", "Abs_79")
    nodes = model.get_ordered_ops()
    name_the_nameless(nodes, {"Abs_79"})
    assert all_of(model) == ["x", "Relu.0", "Sigmoid.0", "Tanh.0", "Abs_79", "out"]
    again = chain("Relu.0", "Relu_1")
    again.get_ordered_ops()[2].set_friendly_name("Relu_2")
    name_the_nameless(again.get_ordered_ops(), set())
    assert len(set(all_of(again))) == 4


class _Named:
    def __init__(self, name: str) -> None:
        self.name = name

    def get_friendly_name(self) -> str:
        return self.name


@given(
    st.lists(st.from_regex(r"[a-z]\w{0,3}_[0-9]{1,2}", fullmatch=True).filter(str.isascii)),
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
        assert names_of_file([_Named(name) for name in names], Path(file.name)) == (
            held if data else set(names)
        )
