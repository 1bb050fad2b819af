"""Which node of an ONNX file each op of a model comes from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest

import hetero_lab as hl
from hetero_lab.model.onnx_nodes import forget_onnx_nodes, nodes_of_ops, onnx_graph, onnx_note
from hetero_lab.samples import onnx_wire


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Gemm, whose shares are three ops, between an Identity and a LayerNormalization of three."""
    nodes = [
        onnx_wire.node("Identity", "same", ["x"], ["y"]),
        onnx_wire.node("Gemm", "fc", ["y", "w", "b"], ["z"], {"alpha": 0.5, "beta": 2.0}),
        onnx_wire.node("Identity", "again", ["z"], ["z2"]),
        onnx_wire.node("LayerNormalization", "norm", ["z2", "b", "b"], ["n"], {"axis": -1}),
        onnx_wire.node("Concat", "join", ["n", "z2"], ["out"], {"axis": 1}),
    ]
    ones = onnx_wire.tensor("b", np.arange(1, 5, dtype=np.float32))
    graph = onnx_wire.encode(
        *[(1, node) for node in nodes], (2, "small"),
        (5, onnx_wire.tensor("w", np.eye(4, dtype=np.float32))), (5, ones),
        (11, onnx_wire.value_info("x", [2, 4])), (12, onnx_wire.value_info("out", [2, 8])),
    )  # fmt: skip
    path = tmp_path / "small.onnx"
    path.write_bytes(onnx_wire.model(graph, 18))
    return path


def came_from(model: ov.Model) -> dict[str, str]:
    graph = onnx_graph(model)
    assert graph
    return {op: node.name for op, node in nodes_of_ops(model, graph).items()}


def test_each_op_comes_from_the_node_that_computes_it(file):
    model = hl.load(file)
    found = came_from(model)
    ops = [op for op in model.get_ordered_ops() if op.get_friendly_name() in found]
    assert len(ops) == len(hl.support(model, "CPU"))
    by_node: dict[str, list[str]] = {}
    for op in ops:
        by_node.setdefault(found[op.get_friendly_name()], []).append(op.get_type_name())
    assert by_node.keys() == {"fc", "norm", "join"}
    assert "MatMul" in by_node["fc"]
    assert len(by_node["fc"]) > 1
    assert "MVN" in by_node["norm"]
    assert by_node["join"] == ["Concat"]


def test_operators_attributes_and_constants_are_those_of_the_file(file):
    graph = onnx_graph(hl.load(file))
    assert graph
    fc, norm, join = graph.nodes
    assert (fc.operator, fc.inputs, fc.outputs) == ("Gemm", ("x", "w", "b"), ("z",))
    assert fc.attributes == {"alpha": 0.5, "beta": 2.0}
    assert (norm.inputs[0], norm.attributes) == ("z", {"axis": -1})
    assert join.inputs == ("n", "z")
    assert graph.initialisers == {"w": (1, (4, 4)), "b": (1, (4,))}
    assert graph.constants() == {"w", "b"}


def test_the_note_goes_along_with_copies_and_files(file, tmp_path):
    model = hl.load(file)
    before = came_from(model)
    assert came_from(hl.load(model)) == before
    ov.save_model(model, tmp_path / "saved.xml", compress_to_fp16=False)
    assert came_from(ov.Core().read_model(tmp_path / "saved.xml")) == before


def test_a_model_that_was_changed_is_not_the_files_any_more(file):
    model = hl.load(file)
    join = next(op for op in model.get_ops() if op.get_type_name() == "Concat")
    relu = ov.opset13.relu(join.input_value(0), name="new")
    join.input(0).replace_source_output(relu.output(0))
    assert onnx_note(model)
    assert not onnx_note(hl.load(model))
    forget_onnx_nodes(model)
    assert onnx_graph(model) is None


def test_other_files_and_models_have_no_note(tmp_path):
    assert onnx_graph(hl.load("digits_inception")) is None
    x = ov.opset13.parameter([2], np.float32, name="x")
    ov.save_model(
        ov.Model([ov.opset13.result(ov.opset13.relu(x))], [x], "small"), tmp_path / "m.xml"
    )
    assert onnx_graph(hl.load(tmp_path / "m.xml")) is None


def test_ops_that_the_reader_joined_from_several_nodes_are_left_out(file):
    model = hl.load(file)
    graph = onnx_graph(model)
    assert graph
    fc = next(op for op in model.get_ordered_ops() if "z" in op.output(0).get_names())
    fc.output(0).get_tensor().set_names({"other"})  # as if a pass had replaced the op
    found = nodes_of_ops(model, graph)
    assert "fc" not in {node.name for node in found.values()}
    assert "norm" not in {node.name for node in found.values()}
