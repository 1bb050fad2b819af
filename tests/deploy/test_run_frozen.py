"""The program of a deployment checks its files by itself: it knows nothing of the lab."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

import hetero_lab as hl
from hetero_lab.deploy import run_frozen
from hetero_lab.devices.core import PLUGIN_OF, EmulatedDevice, plugin_of
from hetero_lab.devices.emulation import _RESERVED
from hetero_lab.errors import PropertyError, StoredFileError
from hetero_lab.runtime.place_ops import check_plugins, check_properties
from hetero_lab.runtime.placed_model import file_of, read_npz
from tests.plain_openvino import edit_placement

needs_links = pytest.mark.skipif(os.name != "posix", reason="links and pipes are POSIX's")
CPU = "openvino_intel_cpu_plugin"


def test_the_plugins_are_those_that_emulate_registers():
    for base in PLUGIN_OF:
        check_plugins({"ACC": plugin_of(EmulatedDevice("ACC", base))})
    for name in (*_RESERVED, "acc", "A C", "", "ACC\n", "../ACC", "1"):
        with pytest.raises(ValueError, match="of its own"):
            check_plugins({name: (CPU, f"{name}_CPU")})
    for plugin in (
        ("/tmp/e.so", "ACC_CPU"), ("e", "ACC_CPU"), (f"./{CPU}", "ACC_CPU"),
        (f"{CPU}.so", "ACC_CPU"), (CPU, "CPU"), (CPU, "ACC"), (CPU, "ACC_GPU"),
        (CPU, "ACC_CPU\n"), ("openvino_hetero_plugin", "ACC_CPU"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="of its own"):
            check_plugins({"ACC": plugin})


def test_a_property_is_allowed_unless_it_takes_a_path():
    access = ov.Core().get_property("CPU", "SUPPORTED_PROPERTIES")
    refused = set()
    for key in (key for key, mode in access.items() if mode != "RO"):
        try:
            check_properties({key: 1})
        except ValueError:
            refused.add(key)
    assert refused <= {"WEIGHTS_PATH", "LOG_LEVEL", "ENABLE_WEIGHTLESS"}
    check_properties({"DEVICE_PROPERTIES": {"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}})
    for properties in (
        {"CACHE_DIR": "x"}, {"cache_dir": "x"}, {"WEIGHTS_PATH": "x"}, {"CONFIG_FILE": "x"},
        {"DEVICE_PROPERTIES": {"CPU": {"CACHE_DIR": "x"}}},
        {"DEVICE_PROPERTIES": {"A": {"DEVICE_PROPERTIES": {"CPU": {"CACHE_DIR": "x"}}}}},
        {"DEVICE_PROPERTIES": "{CPU:{CACHE_DIR:x}}"}, {"NUM_STREAMS": "/x"},
        {"NUM_STREAMS": "1\n"}, {"NUM_STREAMS": {"CACHE_DIR": "x"}}, {"NUM_STREAMS": ["x"]},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="must not set"):
            check_properties(properties)


def test_what_the_code_page_lacks_is_printed_escaped(tmp_path):
    x = op.parameter([1], np.float32, name="x")
    model = ov.Model([op.result(op.relu(x), name="→ é")], [x], "m")
    hl.freeze(model, "CPU", tmp_path, tolerance=None)
    command = [sys.executable, str(tmp_path / "run.py")]
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252"}
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert done.stdout.startswith("\\u2192 é (1,)".encode("cp1252"))


@needs_links
def test_only_regular_files_of_the_directory_are_opened(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "victim").write_text("x")
    (home / "file").write_text("x")
    (home / "inside").symlink_to("file")
    assert file_of(home / "file") == home / "file"
    assert file_of(home / "inside").read_text() == "x"
    (home / "outside").symlink_to(tmp_path / "victim")
    (home / "device").symlink_to("/dev/zero")
    os.mkfifo(home / "pipe")
    for name in ("outside", "device", "pipe", "."):
        with pytest.raises(ValueError, match="no regular file"):
            file_of(home / name)
    with pytest.raises(FileNotFoundError):
        file_of(home / "none")
    with pytest.raises(ValueError, match="larger than 0 MiB"):
        file_of(home / "file", 0)


def test_arrays_that_unpack_to_far_more_than_their_file_are_refused(tmp_path):
    file = tmp_path / "a.npz"
    np.savez_compressed(file, a=np.zeros(1 << 20), b=np.ones(2))
    assert list(read_npz(file, "b")) == ["b"]
    for shape in ((1 << 29,), (1 << 40,)):  # claims of 2 GiB and 4 TiB in a file of a few bytes
        with zipfile.ZipFile(file, "w") as archive, archive.open("a.npy", "w") as member:
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(member, header)
        with pytest.raises(ValueError, match=r"EOF|allocate|array data"):
            read_npz(file)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes((1 << 28) + 1))
    with pytest.raises(ValueError, match="unpacks to 256 MiB"):
        read_npz(file)
    with open(file, "wb") as objects:
        np.savez(objects, **{"a": np.array([{}], object)})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="allow_pickle"):
        read_npz(file)


@pytest.fixture(scope="module")
def deployed(tmp_path_factory) -> Path:
    return hl.freeze("digits_inception", "CPU", tmp_path_factory.mktemp("deployed"), tolerance=None)


def run(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(directory / "run.py")]
    return subprocess.run(command, capture_output=True, text=True, cwd=directory, check=False)


def test_the_program_imports_nothing_that_lies_beside_it(deployed):
    names = ("numpy", "json", "openvino", "zipfile", "contextlib")
    for name in names:
        (deployed / f"{name}.py").write_text("raise SystemExit('owned')")
    try:
        done = run(deployed)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("digit (1, 10) float32")
        with pytest.raises(StoredFileError, match="which its contract does not know"):
            hl.verify(deployed)
    finally:
        for name in names:
            (deployed / f"{name}.py").unlink()


def test_what_a_file_must_not_name_is_told_in_a_line(deployed):
    edit_placement(deployed, lambda plan: plan["properties"].update(CACHE_DIR="\x1b[31mcache"))
    try:
        done = run(deployed)
        assert done.returncode == 2
        assert done.stderr.startswith("run.py: a file must not set the property 'CACHE_DIR'")
        assert done.stderr.count("\n") == 1
        for read in (hl.read_placement, hl.verify):
            with pytest.raises(StoredFileError, match="must not set the property 'CACHE_DIR'"):
                read(deployed)
        assert not (deployed / "cache").exists()
    finally:
        edit_placement(deployed, lambda plan: plan["properties"].pop("CACHE_DIR"))


def test_a_placement_that_could_name_a_path_is_not_stored(tmp_path):
    placement = hl.Placement(
        hl.Affinity.uniform("digits_inception", "CPU"), "loud", {"CPU": {"LOG_LEVEL": "LOG_NONE"}}
    )
    with pytest.raises(PropertyError, match="'loud' cannot be stored, since a file must not set"):
        hl.save("digits_inception", placement, tmp_path / "m.xml")
    assert list(tmp_path.iterdir()) == []


# -- inputs and outputs ------------------------------------------------------------------------

EXACT = {"bf16": [1, -2, 0, 0.5], "f8e4m3": [1, -2, 0, 0.5], "f8e5m2": [1, -2, 0, 0.5],
         "f4e2m1": [1, -2, 0, 0.5], "f16": [1, -2, 0, 0.5], "i4": [1, -2, 0, 0],
         "i8": [1, -2, 0, 0], "i64": [1, -2, 0, 0]}  # fmt: skip


@pytest.fixture(scope="module")
def typed(tmp_path_factory) -> Path:
    """One output of each type, and inputs in f32, bf16 and text."""
    x, b = op.parameter([4], np.float32, name="x"), op.parameter([2], ov.Type.bf16, name="b")
    s = op.parameter([1], ov.Type.string, name="s")
    results = [op.result(op.convert(x, kind), name=kind) for kind in EXACT]
    results += [op.result(op.convert(b, "f32"), name="wide"), op.result(s, name="text")]
    model = ov.Model(results, [x, b, s], "typed")
    return hl.freeze(model, "CPU", tmp_path_factory.mktemp("typed"), tolerance=None)


INPUTS = {
    "x": np.array([1, -2, 0, 0.5], np.float32),
    "b": np.array([0x3FC0, 0xC000], np.uint16),
    "s": np.array(["ä"]),
}


def test_outputs_of_every_type_have_their_values(typed):
    outputs = list(run_frozen.run(typed, INPUTS).values())
    for kind, output in zip(EXACT, outputs, strict=False):
        assert output.tolist() == EXACT[kind], kind
    assert outputs[-2].tolist() == [1.5, -2]
    assert outputs[-1].tolist() == ["ä"]
    assert hl.verify(typed, progress=False).ok


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"x": None}, r"The inputs are \['x', 'b', 's'\], and the given arrays \['b', 's'\]"),
        ({"y": np.ones(4)}, "'y'"),
        ({"x": np.ones(4)}, "element type float32, the given array float64"),
        ({"x": np.ones((1, 4), np.float32)}, r"shape \[4\], the given array \[1, 4\]"),
        ({"x": np.float32(1)}, r"the given array \[\]"),
        ({"x": np.array(["1", "2", "3", "4"])}, "element type float32, the given array <U1"),
        ({"x": np.array([1, 2, 3, np.nan], np.float32)}, r"NaN in \['x'\]"),
        ({"b": np.ones(2, np.float32)}, "element type bf16.*its bits"),
        ({"s": np.array([1.0])}, "element type string, the given array float64"),
    ],
)
def test_inputs_that_do_not_fit_are_told_in_a_sentence(typed, changed, says):
    given = {name: a for name, a in {**INPUTS, **changed}.items() if a is not None}
    with pytest.raises(ValueError, match=says) as caught:
        run_frozen.run(typed, given)
    assert "\n" not in str(caught.value)


def test_the_program_ends_with_2_where_inputs_do_not_fit(typed, tmp_path):
    np.savez(tmp_path / "i.npz", **{**INPUTS, "x": np.ones(4)})
    command = [sys.executable, typed / "run.py", tmp_path / "i.npz", tmp_path / "o.npz"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("run.py: Input 'x' has the element type float32")
    assert not (tmp_path / "o.npz").exists()


def test_nan_is_taken_where_the_example_has_it(tmp_path):
    x = op.parameter([2], np.float32, name="x")
    model = ov.Model([op.result(op.is_nan(x), name="out")], [x], "nan")
    given = {"x": np.array([np.nan, 1], np.float32)}
    directory = hl.freeze(model, "CPU", tmp_path, examples=[given], tolerance=None)
    (output,) = run_frozen.run(directory, given).values()
    assert output.tolist() == [True, False]
