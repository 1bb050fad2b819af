"""What the rig says when something is missing. Nothing is started a second time."""

import sys
from importlib import metadata

import pytest
import rig


def test_start_is_repeatable(tmp_path):
    rig.start(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_openvino_must_not_be_imported_yet(monkeypatch, tmp_path):
    monkeypatch.delenv("HETERO_LAB_GPU_RIG", raising=False)
    monkeypatch.setitem(sys.modules, "openvino", object())
    with pytest.raises(rig.RigError, match="already imported"):
        rig.start(tmp_path)


def test_a_missing_compiler_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(rig.RigError, match=r"No C compiler.*'cc'"):
        rig.compile_layer(tmp_path)


def test_a_missing_package_is_named(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(rig.metadata, "files", missing)
    with pytest.raises(rig.RigError, match=r"pip install intel-opencl-rt==2026\.2\.0"):
        rig.find_library("libintelocl.so", "intel-opencl-rt")


def test_an_incomplete_package_is_named(monkeypatch):
    monkeypatch.setattr(rig.metadata, "files", lambda name: [])
    with pytest.raises(rig.RigError, match=r"'tbb' is installed without libtbb\.so\.12"):
        rig.find_library("libtbb.so.12", "tbb")


def test_real_devices_do_not_count_the_rig():
    if rig.is_running():
        assert not [name for name in rig.real_devices() if name.startswith("GPU")]
