from __future__ import annotations

import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from counting_core import core_with_acc
from openvino import opset1, opset2, opset10, opset13 as op
from support_wheel import softmax_rows, write_table, write_wheel

import hetero_lab as hl
from hetero_lab.backend.core import shared_core
from hetero_lab.backend.emulation import EmulatedDevice
from hetero_lab.backend.evidence import TableAgreement
from hetero_lab.backend.onnx_mapping import OnnxUse, onnx_use
from hetero_lab.backend.support_tables import SupportTables, tables_of
from hetero_lab.errors import ArgumentError, StoredFileError
from hetero_lab.model.onnx_nodes import forget_onnx_nodes
from hetero_lab.samples import onnx_wire

RESHAPE = [({"T_Reshape": "FLOAT", "shape_len": length}, True, True) for length in (3, 6)]
RELU = [({"T_Relu": "FLOAT", "X_dim": rank}, True, rank != 2) for rank in (1, 2, 3)]


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return write_wheel(
        tmp_path / "some.whl", {"Softmax": softmax_rows(), "Relu": RELU, "Reshape": RESHAPE}
    )


def softmax(*shape: int, kind: type = np.float32, axis: int = -1) -> ov.Model:
    x = op.parameter(list(shape), kind, name="x")
    node = op.softmax(op.relu(x, name="relu"), axis, name="softmax")
    return _model(node, [x])


def _model(node: ov.Node, parameters: Sequence[Any]) -> ov.Model:
    return ov.Model([op.result(node, name="out")], list(parameters), "small")


def evidence(model: ov.Model, wheel: Path, **more):
    core = core_with_acc(like=f"{wheel}:NPU", **more)
    return hl.support_evidence(model, "ACC", core=core)


def answers(found: hl.SupportEvidence) -> dict[str, tuple[str, str, str]]:
    rows = found.to_frame()[["op", "answer", "reason", "nearest"]].to_numpy().tolist()
    return {op: (answer, reason, nearest) for op, answer, reason, nearest in rows}


def test_what_ran_elsewhere_is_supported_and_what_did_not_names_the_nearest_that_did(wheel):
    assert answers(evidence(softmax(1, 2, 3), wheel))["softmax"] == (
        "supported",
        "Softmax f32 of rank 3 runs",
        "",
    )
    refused = answers(evidence(softmax(1, 1, 1, 1, 2, 3), wheel))["softmax"]
    fails = "Softmax f32 of rank 6 fails but for a fallback to another device"
    assert refused == ("unsupported", fails, "rank 5 runs")
    half = answers(evidence(softmax(2, 3, kind=np.float16), wheel))["softmax"]
    assert half[0] == "unsupported"
    assert half[2] == "f32 runs"


def test_what_was_not_tried_or_runs_in_some_variations_only_is_unknown(wheel, tmp_path):
    wide = answers(evidence(softmax(*[1] * 6, 4), wheel))
    assert wide["softmax"][0] == "unknown"
    assert "of rank 7 was not tried" in wide["softmax"][1]
    assert wide["relu"] == ("unknown", "Relu f32 of rank 7 was not tried", "rank 3 runs")
    mixed = [
        ({"T_Softmax": "FLOAT", "input_dim": 2, "attr_secret": secret}, secret == 1, True)
        for secret in (0, 1)
    ]
    other = write_wheel(tmp_path / "mixed.whl", {"Softmax": mixed, "Relu": RELU})
    found = answers(evidence(softmax(2, 3), other))
    assert found["softmax"][0] == "unknown"
    assert "1 of 2 variations: that hangs on 'attr_secret'" in found["softmax"][1]
    assert found["relu"][:2] == (
        "unsupported",
        "Relu f32 of rank 2 compiles and fails when it runs",
    )


def test_a_dynamic_input_is_not_taken_for_a_static_one_that_was_tried(wheel):
    static = ({"T_Softmax": "FLOAT", "input_dim": 3, "input_is_fixed_shape": True}, True, True)
    joined = ({"T_Concat": "FLOAT", "inputs_is_fixed_shape": (True, True)}, True, True)
    clipped = ({"T_Clip": "FLOAT", "input_is_fixed_shape": True}, True, True)
    write_wheel(wheel, {"Softmax": [static], "Concat": [joined], "Clip": [clipped]}, opset=14)
    x, shape = op.parameter([2, 3, 4], np.float32, name="x"), op.parameter([3], np.int64)
    any_shape = op.reshape(x, shape, False)
    for given, inputs, answer in (x, [x], "supported"), (any_shape, [x, shape], "unknown"):
        top = op.maximum(op.constant(np.float32(0)), op.softmax(given, -1, name="softmax"))
        top.set_friendly_name("top")
        model = _model(op.concat([top, given], 1, name="join"), inputs)
        found = answers(evidence(model, wheel))
        assert {name: found[name][0] for name in ("softmax", "top", "join")} == {
            "softmax": answer, "top": answer, "join": answer,
        }  # fmt: skip
    assert found["softmax"][1:] == (
        "Softmax f32 of rank 3 was not tried",
        "input_is_fixed_shape True runs",
    )


def test_older_versions_of_an_op_are_read_as_they_are_or_not_at_all():
    x = op.parameter([1, 3, 8, 8], np.float32)
    size, factor = op.constant(np.array([16, 16])), op.parameter([2], np.float32)
    ones = op.constant(np.ones(3, np.float32))
    first = opset1.interpolate(x, size, {"axes": [2, 3], "mode": "nearest"})
    fourth = opset10.interpolate(x, size, factor, "nearest", "scales")
    named = {size.get_friendly_name(), ones.get_friendly_name()}
    assert _read(first, named).facts["sizes_is_constant"] == {True}
    assert _read(fourth, named).facts["scales_is_constant"] == {False}
    assert _read(opset2.gelu(x), named).facts["attr_approximate"] == {"none"}
    norm = _read(opset1.batch_norm_inference(x, ones, ones, ones, ones, 1e-5), named)
    assert (norm.rank, norm.facts["X_dim"], norm.facts["X_is_constant"]) == (4, {4}, {False})


def test_slices_over_axes_that_are_not_constant_are_left_open():
    x, axes = op.parameter([4, 6], np.float32), op.parameter([1], np.int64)
    zero, six, one = (op.constant(np.array([n])) for n in (0, 6, 1))
    unknown = _read(op.slice(x, zero, six, one, axes)).facts
    assert not {"slice_all", "starts_equal_shape", "axes_is_single"} & unknown.keys()
    assert _read(op.slice(x, zero, six, one, one)).facts["slice_all"] == {True}


def _read(node: ov.Node, constant: Collection[str] = ()) -> OnnxUse:
    use = onnx_use(node, constant)
    assert use
    return use


def test_placements_support_and_lint_follow_the_tables(wheel):
    core = core_with_acc(like=f"{wheel}:NPU")
    model = hl.load(softmax(1, 1, 1, 1, 2, 3))
    table = hl.support(model, ["ACC", "CPU"], core=core).set_index("op")
    assert table["ACC"].to_dict() == {"relu": False, "softmax": False}
    small = hl.load(softmax(1, 2, 3))
    deep = hl.load(_deep())
    assert set(hl.Affinity.automatic(small, "HETERO:ACC,CPU", core=core).values()) == {"ACC"}
    split = hl.Affinity.automatic(deep, "HETERO:ACC,CPU", core=core)
    assert {name: split[name] for name in ("relu", "softmax", "after")} == {
        "relu": "ACC", "softmax": "CPU", "after": "ACC",
    }  # fmt: skip
    causes = set(hl.lint(deep, split, core=core)["cause"])
    assert any("ACC cannot run Softmax (Softmax f32 of rank 6" in cause for cause in causes)
    assert any("rank 5 runs" in cause for cause in causes)


def _deep() -> ov.Model:
    """Relu of rank 3, Softmax of rank 6, Relu of rank 3 again."""
    x = op.parameter([2, 3, 4], np.float32, name="x")
    wide = op.reshape(op.relu(x, name="relu"), np.array([1, 1, 1, 2, 3, 4]), False, name="wide")
    soft = op.softmax(wide, 5, name="softmax")
    low = op.reshape(soft, np.array([2, 3, 4]), False, name="low")
    return _model(op.relu(low, name="after"), [x])


def test_unknown_ops_are_unsupported_unless_asked(wheel):
    model = hl.load(softmax(*[1] * 6, 4))
    for unknown, expected in (("unsupported", False), ("supported", True)):
        core = core_with_acc(like=f"{wheel}:NPU", unknown=unknown)
        assert hl.support(model, "ACC", core=core)["ACC"].tolist() == [expected] * 2
        found = hl.support_evidence(model, "ACC", core=core)
        assert found.refused == (frozenset() if expected else {"relu", "softmax"})


def test_the_newest_opset_counts_and_the_specification_travels(wheel):
    write_wheel(wheel, {"Relu": [({"T_Relu": "FLOAT", "X_dim": 2}, True, True)]}, opset=14)
    assert answers(evidence(softmax(2, 3), wheel))["relu"][0] == "supported"
    spec = hl.emulate("TRAVELS", like=f"{wheel}:NPU", unknown="supported")
    assert EmulatedDevice.from_json(spec.to_json()) == spec


def test_what_fails_on_cpu_in_the_tables_too_is_not_held_against_the_device(wheel):
    model = softmax(1, 1, 1, 1, 2, 3)
    write_wheel(wheel, {"Softmax": softmax_rows()}, device="CPU")
    there = answers(evidence(model, wheel))["softmax"]
    assert there[0] == "unknown"
    assert there[1].endswith("but so it does on CPU there: perhaps not the device's limit")
    core = core_with_acc(like=f"{wheel}:CPU")
    assert answers(hl.support_evidence(model, "ACC", core=core))["softmax"][0] == "unsupported"


def test_tables_that_are_none_are_refused(wheel, tmp_path):
    with pytest.raises(ArgumentError, match="no tables of 'TPU'.*Devices: 'NPU'"):
        tables_of(f"{wheel}:TPU")
    with pytest.raises(ArgumentError, match="winml-cli:NPU"):
        hl.emulate("FAR", like="somewhere")
    bad = tmp_path / "bad.whl"
    bad.write_text("no wheel")
    with pytest.raises(StoredFileError, match=r"bad\.whl'? cannot be read"):
        tables_of(f"{bad}:NPU")
    with pytest.raises(ArgumentError, match="unknown= is"):
        hl.emulate("FAR", like=f"{wheel}:NPU", unknown="perhaps")  # pyright: ignore
    assert "FAR" not in shared_core().available_devices


def test_a_damaged_table_is_refused(wheel, tmp_path):
    use = OnnxUse("Relu", {"T_Relu": frozenset(["FLOAT"])}, "f32", 2)
    kind = '{"t": "str", "v": "FLOAT"}'
    empty = write_table(tmp_path / "empty.whl", "Relu", {"T_Relu": [], "compile_run_success": []})
    assert tables_of(f"{empty}:NPU").judge(use).answer == "unknown"
    for number, results in enumerate(([[True]] * 4, [None] * 4, [[True, None]] * 4, [[0, 1]] * 4)):
        columns = {"T_Relu": [kind] * 4, "compile_run_success": results}
        broken = write_table(tmp_path / f"{number}.whl", "Relu", columns)
        with pytest.raises(StoredFileError, match="is no table of support"):
            tables_of(f"{broken}:NPU").judge(use)
    packed = tmp_path / "packed.whl"
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as to:
        member = next(name for name in source.namelist() if "Relu" in name)
        to.writestr(member, source.read(member))
        start = to.infolist()[0].header_offset + 30 + len(member)
    content = bytearray(packed.read_bytes())
    content[start + 5 : start + 60] = b"\xff" * 55
    packed.write_bytes(content)
    with pytest.raises(StoredFileError, match="is no table of support"):
        tables_of(f"{packed}:NPU").judge(use)


def test_tables_of_devices_that_a_placement_does_not_use_are_not_looked_up(wheel):
    core = core_with_acc(like=f"{wheel}:NPU")
    wheel.write_bytes(b"")
    model = hl.load(softmax(1, 2, 3))
    assert len(hl.lint(model, "CPU", core=core)) == 0
    with pytest.raises(StoredFileError):
        hl.lint(model, "HETERO:ACC,CPU", core=core)


def test_how_far_tables_can_be_believed_is_said_with_each_answer(wheel):
    found = evidence(softmax(1, 2, 3), wheel)
    assert "95 % interval" in found.reliability
    assert found.reliability in repr(found)
    text = TableAgreement(90, 4, 5, 1, 7, "2026.4").sentence()
    assert "95.0% of 100 ops (95 % interval 88.8% to 97.8%; wrong yes 4, wrong no 1)" in text
    assert "counted on CPU" in text
    assert "Every no" not in text
    refuted = TableAgreement(90, 0, 0, 3, 7, "2026.4").sentence()
    assert "Every no that could be tried was wrong (3 of 3), so for another device" in refuted


def test_an_op_of_an_onnx_file_is_looked_up_as_its_node(tmp_path):
    norm = onnx_wire.node("LayerNormalization", "norm", ["x", "s"], ["n"], {"axis": -1})
    last = onnx_wire.node("HardSwish", "last", ["n"], ["y"])
    graph = onnx_wire.encode(
        (1, norm), (1, last), (2, "small"), (5, onnx_wire.tensor("s", np.ones(4, np.float32))),
        (11, onnx_wire.value_info("x", [2, 4])), (12, onnx_wire.value_info("y", [2, 4])),
    )  # fmt: skip
    (tmp_path / "norm.onnx").write_bytes(onnx_wire.model(graph, 18))
    normed = [
        ({"T_LayerNormalization": "FLOAT", "X_dim": rank, "B_is_none": none}, True, none)
        for rank in (2, 3)
        for none in (True, False)
    ]
    multiplied = [({"T_Mul": "FLOAT", "A_dim": 2}, False, False)]
    wheel = write_wheel(tmp_path / "some.whl", {"LayerNormalization": normed, "Mul": multiplied})
    model = hl.load(tmp_path / "norm.onnx")
    verdicts = {kind: verdict for _, kind, verdict in evidence(model, wheel).verdicts}
    assert [(v.answer, v.operator, v.source) for v in verdicts.values()] == [
        ("supported", "LayerNormalization", "node of the file"),
        ("supported", "LayerNormalization", "node of the file"),
        ("unknown", "HardSwish", "op"),
    ]
    assert list(verdicts) == ["MVN", "Multiply", "HSwish"]
    assert "as nodes of the ONNX file, 1 as OpenVINO's ops." in repr(evidence(model, wheel))
    forget_onnx_nodes(model)
    mapped = {kind: (v.answer, v.source) for _, kind, v in evidence(model, wheel).verdicts}
    assert mapped == {
        "MVN": ("unknown", "op"), "Multiply": ("unsupported", "op"), "HSwish": ("unknown", "op"),
    }  # fmt: skip
    assert "nodes of the ONNX file" not in repr(evidence(model, wheel))


@pytest.mark.network
def test_the_real_tables_answer_for_real_samples():
    tables = tables_of("winml-cli:NPU")
    assert {"Softmax", "Conv", "MatMulAddPattern"} <= tables.operators
    assert isinstance(tables, SupportTables)
    hl.emulate("NPU_PAPER", like="winml-cli:NPU")
    found = hl.support_evidence("blazeface", "NPU_PAPER").to_frame()
    refused = found.loc[~found["claimed"]]
    assert set(refused["op_type"]) == {"Pad"}
    assert set(refused["nearest"]) == {"pads_is_symmetric True runs"}
    deep = answers(hl.support_evidence(softmax(1, 1, 1, 1, 2, 3), "NPU_PAPER"))["softmax"]
    assert deep[0] == "unsupported"
    assert deep[2] == "rank 5 runs"
