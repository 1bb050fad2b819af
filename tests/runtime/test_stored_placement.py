"""A model's file carries its placement to programs that know OpenVINO alone."""

from __future__ import annotations

import inspect
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from counting_core import F32
from plain_openvino import edit_placement
from random_models import random_affinity, random_model
from slices import sliced
from small_models import all_of, chain

import hetero_lab as hl
from hetero_lab.devices.core import shared_core
from hetero_lab.errors import (
    AffinityError,
    DeviceError,
    ModelError,
    OutputPathError,
    StoredFileError,
)
from hetero_lab.model.read import output_names, prepare
from hetero_lab.runtime import place_ops
from hetero_lab.runtime.compiled import parse_header
from hetero_lab.runtime.placed_model import header_text

INPUT = np.random.default_rng(0).random((1, 1, 8, 8), np.float32)
# A process without the lab, where the second device is registered by hand.
PLAIN = """
import sys
sys.modules["hetero_lab"] = None
import numpy as np, openvino as ov
sys.path.insert(0, sys.argv[1])
from place_ops import place_ops
core = ov.Core()
proxy = {"ALIAS": "SAVACC", "PRIORITY": "0", "INTERNAL_NAME": "SAVACC_CPU"}
core.register_plugin("openvino_intel_cpu_plugin", "SAVACC_CPU",
                     {f"PROXY_CONFIGURATION_{k}": v for k, v in proxy.items()})
model = core.read_model(sys.argv[1] + "/placed.xml")
compiled = core.compile_model(model, *place_ops(model, core))
print(compiled.get_property("EXECUTION_DEVICES"))
np.save(sys.argv[1] + "/out.npy", compiled([np.load(sys.argv[1] + "/in.npy")])[0])
"""


@pytest.fixture
def split():
    hl.emulate("SAVACC", unsupported={"Softmax", "Concat"})
    model = hl.load("digits_inception")
    affinity = hl.Affinity.automatic(model, "HETERO:SAVACC,CPU")
    return model, hl.Placement(affinity, "split", {"SAVACC": F32, "CPU": F32})


@pytest.fixture
def placed(split, tmp_path):
    model, placement = split
    return hl.save(model, placement, tmp_path / "placed.xml")


def compile_placed(model: ov.Model, file) -> ov.CompiledModel:
    place_ops = runpy.run_path(str(file.parent / "place_ops.py"))["place_ops"]
    return shared_core().compile_model(model, *place_ops(model, shared_core()))


def devices_in(compiled: ov.CompiledModel) -> list[str]:
    header = parse_header(header_text(compiled))
    assert header is not None
    return [subgraph.device for subgraph in header.subgraphs]


def test_it_runs_as_placed_with_openvino_alone(split, placed):
    np.save(placed.parent / "in.npy", INPUT)
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, str(placed.parent)], capture_output=True, text=True
    )
    assert done.stdout.strip() == "['SAVACC', 'CPU']", done.stderr
    expected = hl.compile(*split)([INPUT])["digit"]
    np.testing.assert_allclose(np.load(placed.parent / "out.npy"), expected, rtol=1e-5, atol=1e-7)


def test_the_page_shows_the_loader():
    page = (Path(__file__).parents[2] / "docs/howto/elsewhere.md").read_text("utf-8")
    assert inspect.getsource(place_ops.place_ops) in page


def test_it_comes_back_as_it_was(split, placed):
    model, placement = split
    assert hl.read_placement(placed) == placement
    assert hl.compile(hl.load(placed), hl.read_placement(placed)).as_predicted
    hl.emulate("SAVDSP")
    auto = {"AUTO": {"PERFORMANCE_HINT": "LATENCY"}, "SAVDSP": F32}
    for device, own in (("CPU", {"CPU": F32}), ("AUTO:SAVDSP,CPU", auto)):
        whole = hl.Affinity.on_one(prepare(model).graph, device)
        direct = hl.Placement(whole, device, own, direct=True)
        assert hl.read_placement(hl.save(model, direct, placed)) == direct
    hl.save(model, "CPU", placed)
    assert compile_placed(ov.Core().read_model(placed), placed)([INPUT])[0].shape == (1, 10)


@pytest.mark.parametrize("seed", sliced(range(40), 4))
def test_random_placements_travel(tmp_path, seed):
    hl.emulate("SAVACC")
    prepared = prepare(random_model(seed))
    affinity = random_affinity(prepared.graph, ["SAVACC", "CPU"], seed)
    placement = hl.Placement(affinity, "r", {"SAVACC": F32, "CPU": F32})
    file = hl.save(prepared, placement, tmp_path / "m.xml")
    compiled = hl.compile(prepared, placement)
    alone = compile_placed(ov.Core().read_model(file), file)
    assert devices_in(alone) == [s.device for s in compiled.partition.subgraphs]
    again = hl.read_placement(file).affinity
    assert again == affinity or any("hetero_lab_copy" in name for name in again)


@pytest.mark.parametrize("change", ["saved again", "compressed", "reshaped", "int8"])
def test_it_survives(split, placed, change):
    model = ov.Core().read_model(placed)
    file, inputs, tolerance = placed.with_name("again.xml"), INPUT, 1e-5
    if change in ("saved again", "compressed"):
        ov.save_model(model, file, compress_to_fp16=change == "compressed")
        model, tolerance = ov.Core().read_model(file), 2e-2
        again, before = hl.read_placement(file).affinity, split[1].affinity
        assert {op: again[op] for op in before.ops} == {op: before[op] for op in before.ops}
    elif change == "reshaped":
        model.reshape([3, 1, 8, 8])
        inputs = np.repeat(INPUT, 3, 0)
    else:
        nncf = pytest.importorskip("nncf")
        model, tolerance = nncf.compress_weights(model), 5e-2
    compiled = compile_placed(model, placed)
    assert devices_in(compiled) == [s.device for s in hl.partition(*split).subgraphs]
    expected = np.repeat(hl.compile(*split)([INPUT])["digit"], len(inputs), 0)
    np.testing.assert_allclose(compiled([inputs])[0], expected, rtol=tolerance, atol=tolerance)


def test_a_changed_model_says_what_differs(placed):
    text = placed.read_text("utf-8").replace('name="head_digit/softmax"', 'name="sneaky"')
    placed.write_text(text, "utf-8")
    with pytest.raises(
        AffinityError, match=r"Missing ops: 'head_digit/softmax'. New ops: 'sneaky'"
    ):
        hl.read_placement(placed)
    with pytest.raises(ValueError, match=r"lacks \['head_digit/softmax'\]; new: \['sneaky'\]"):
        compile_placed(ov.Core().read_model(placed), placed)


def test_a_device_that_is_not_here(split, placed):
    edit_placement(placed, lambda note: note["affinity"].update({"head_digit/softmax": "NOWHERE"}))
    read = hl.read_placement(placed)
    assert "NOWHERE" in read.devices  # it can be looked at
    with pytest.raises(DeviceError, match="'NOWHERE' is not a device here"):
        hl.compile(hl.load(placed), read)
    with pytest.raises(RuntimeError, match='"NOWHERE" name is not registered'):
        compile_placed(ov.Core().read_model(placed), placed)


def test_files_without_a_placement_or_with_that_of_another_model(split, placed, tmp_path):
    ov.save_model(split[0], tmp_path / "bare.xml")
    with pytest.raises(StoredFileError, match=r"carries no placement. hetero_lab.save\("):
        hl.read_placement(tmp_path / "bare.xml")
    (tmp_path / "text.xml").write_text("hello")
    with pytest.raises(ModelError, match="cannot read"):
        hl.read_placement(tmp_path / "text.xml")
    note = {}
    edit_placement(hl.save(random_model(3), "CPU", tmp_path / "other.xml"), note.update)
    edit_placement(placed, lambda own: own.update(note))
    with pytest.raises(AffinityError, match="Missing ops: .* New ops: "):
        hl.read_placement(placed)
    edit_placement(placed, lambda own: own.pop("target"))
    with pytest.raises(StoredFileError, match="not a whole placement.*target"):
        hl.read_placement(placed)


def test_what_cannot_be_saved_leaves_the_files_alone(split, placed):
    model, placement = split
    (placed.parent / "dir.bin").mkdir()
    before = {path: path.is_file() and path.read_bytes() for path in placed.parent.iterdir()}
    with pytest.raises(OutputPathError, match="is a directory"):
        hl.save(model, placement, placed.with_name("dir.xml"))
    with pytest.raises(AffinityError, match="another model"):
        hl.save(random_model(3), placement, placed)
    with pytest.raises(DeviceError, match="'NOPE' is not a device here"):
        hl.save(model, "HETERO:NOPE,CPU", placed)
    assert before == {p: p.is_file() and p.read_bytes() for p in placed.parent.iterdir()}


def test_over_a_model_in_use_all_is_written_or_nothing(placed):
    """Windows does not replace weights that a model is mapped from."""
    before = {path: path.read_bytes() for path in placed.parent.iterdir()}
    in_use = hl.load(placed)
    try:
        hl.save(in_use, "CPU", placed)
    except OutputPathError as error:
        assert "let go of a model that was read from it" in str(error)
        assert before == {path: path.read_bytes() for path in placed.parent.iterdir()}
    else:
        assert hl.read_placement(placed).affinity.devices == ("CPU",)


def test_a_constant_that_is_an_output_keeps_its_device(tmp_path):
    hl.emulate("KEEPS", unsupported={"Relu"})
    x = ov.opset13.parameter([4], np.float32, name="x")
    fixed = ov.opset13.constant(np.ones(3, np.float32), name="fixed")
    results = [
        ov.opset13.result(fixed, name="three"),
        ov.opset13.result(ov.opset13.relu(x, name="relu"), name="y"),
    ]
    model = hl.load(ov.Model(results, [x], "fixed"))
    affinity = hl.Affinity.automatic(model, "HETERO:KEEPS,CPU")
    assert (affinity["fixed"], affinity["relu"]) == ("KEEPS", "CPU")
    file = hl.save(model, affinity, tmp_path / "placed.xml")
    assert hl.read_placement(file).affinity == affinity


def test_names_that_a_file_cannot_hold_are_others(tmp_path):
    model = chain("a\0b", "\0")
    model.outputs[0].get_tensor().set_names({"", "named"})
    loaded = hl.load(model)
    assert "a\N{SYMBOL FOR NULL}b" in all_of(loaded)
    file = hl.save(loaded, "CPU", tmp_path / "placed.xml")
    assert hl.read_placement(file).affinity == hl.Affinity.uniform(loaded, "CPU")
    assert output_names(loaded) == output_names(hl.load(file)) == ["named"]
