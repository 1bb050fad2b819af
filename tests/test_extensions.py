"""Devices of other packages, found by their entry points."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import openvino as ov
import pytest
from other_process import run_python

import hetero_lab as hl
from hetero_lab.devices.core import DEVICES, add_devices
from hetero_lab.errors import HeteroLabWarning

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "tests" / "example_extension"
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path, monkeypatch) -> Install:
    """Return a function that puts a package on the path with the metadata that pip leaves."""

    def add(package: str, devices: dict[str, str], source: Path | str = "") -> None:
        place = tmp_path / package
        info = place / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"[{DEVICES}]", *(f"{name} = {value}" for name, value in devices.items())]
        (info / "entry_points.txt").write_text("\n".join(lines))
        if isinstance(source, Path):
            shutil.copy(source, place)
        else:
            (place / f"{package}.py").write_text(source)
        monkeypatch.syspath_prepend(place)

    return add


def test_the_shared_core_has_devices_of_other_packages(install, tmp_path):
    source = (
        "import hetero_lab as hl\n"
        "def add(core):\n    hl.emulate('ADDED')\n"
        "def clash(core):\n    hl.emulate('CPU', core=core)\n"
    )
    install("devices_of", {"ADDED": "devices_of:add", "CLASH": "devices_of:clash"}, source)
    code = "import hetero_lab as hl; print(list(hl.devices()['device'])); hl.devices()"
    path = os.pathsep.join([str(tmp_path / "devices_of"), str(ROOT)])
    done = run_python(code, PYTHONPATH=path)
    assert "'ADDED'" in done.stdout
    assert done.stderr.count("is left out") == 1
    assert "'CLASH' of hetero_lab.devices is left out: it failed (DeviceError" in done.stderr


def test_a_device_is_registered_and_what_is_broken_or_named_twice_is_left_out(install):
    source = "import hetero_lab as hl\ndef add(core):\n    hl.emulate('TWICE', core=core)\n"
    install(
        "first", {"TWICE": "first:add", "GONE": "first:gone", "NOWHERE": "no_module:add"}, source
    )
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    devices = project["entry-points"][DEVICES]
    install("hetero_lab_example", devices, EXAMPLE / "hetero_lab_example.py")
    install("second", {"TWICE": "second:add"}, "def add(core): raise SystemError('was loaded')")
    core = ov.Core()
    with pytest.warns(HeteroLabWarning) as warned:
        add_devices(core)
    texts = sorted(str(warning.message) for warning in warned)
    assert len(texts) == 3
    assert texts[0].startswith(
        "'GONE' of hetero_lab.devices is left out: it failed (AttributeError"
    )
    assert "No module named 'no_module'" in texts[1]
    assert "has the name of another one, of the package 'first'" in texts[2]
    assert "package 'second'" in texts[2]
    assert {"TWICE", "ACCELERATOR"} <= set(hl.devices(core=core)["device"])


USE = """
import sys, hetero_lab as hl
assert "hetero_lab_example" not in sys.modules
assert "ACCELERATOR" in list(hl.devices()["device"])
hl.profile("digits_inception", "HETERO:ACCELERATOR,CPU", iterations=5, progress=False)
"""


@pytest.mark.network
def test_the_example_package_is_installed_and_used(tmp_path):
    shutil.copytree(EXAMPLE, tmp_path / "source")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
    subprocess.run([*pip, tmp_path / "site", tmp_path / "source"], check=True)
    path = os.pathsep.join([str(tmp_path / "site"), str(ROOT)])
    done = run_python(USE, cwd=tmp_path, PYTHONPATH=path)
    assert "is left out" not in done.stderr
