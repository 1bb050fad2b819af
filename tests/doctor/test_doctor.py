"""Machines made of directories: the doctor names the one cause of each, and invents nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from other_process import run_python

import hetero_lab as hl
from hetero_lab.cli.main import main
from hetero_lab.doctor import doctor as judging
from hetero_lab.doctor.doctor import (
    Check,
    Diagnosis,
    Machine,
    anonymous,
    ask_openvino,
    findings,
)

PLUGINS = {kind: f"libopenvino_intel_{kind.lower()}_plugin.so" for kind in ("CPU", "GPU", "NPU")}
SEEN = {
    "devices": {"CPU": "Xeon", "GPU": "Arc", "NPU": "AI Boost"},
    "loaded": [PLUGINS["CPU"], "libother_gpu_v2_plugin.so"],
}
LIB = "usr/lib/x86_64-linux-gnu"
ONLY_CPU = {"devices": {"CPU": "Xeon"}, "reasons": {"GPU": "no device"}}
version = metadata.version


class Tree:
    """A healthy machine with GPU and NPU, to break."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.add("dev/dri/renderD128", mode=0o666)
        self.add("dev/accel/accel0", mode=0o666)
        self.add(f"{LIB}/libOpenCL.so.1")
        self.add("etc/OpenCL/vendors/intel.icd", "/usr/lib/intel/libigdrcl.so\n")
        self.add("usr/lib/intel/libigdrcl.so")
        for name in ("libze_loader", "libze_intel_gpu", "libze_intel_npu"):
            self.add(f"{LIB}/{name}.so.1")
        self.add(f"{LIB}/libnpu_driver_compiler.so")
        self.add("lib/firmware/intel/vpu/vpu_37xx_v1.bin.zst")
        self.add("sys/module/intel_vpu/refcnt")
        self.add("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n")
        self.add("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "intel_pstate\n")

    def add(self, path: str, text: str = "", mode: int = 0o644) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def remove(self, *paths: str) -> None:
        for path in paths:
            (self.root / path).unlink()

    def read(self, answer: Any = ONLY_CPU) -> Machine:
        return Machine(self.root, **{"libraries": [*PLUGINS.values()], **answer}, access=as_another)

    def bad(self, *answer: Any) -> list[Check]:
        return [check for check in findings(self.read(*answer)) if check.state != "ok"]

    def cause(self, area: str, *answer: Any) -> Check:
        """Return the one line about an area; each has its way out."""
        (found,) = [check for check in self.bad(*answer) if check.area == area]
        assert found.way_out
        return found


def as_another(path: Any, how: int) -> bool:
    """Tell what a user may who neither owns a file nor is in its group, also if root tests."""
    return stat.S_IMODE(os.stat(path).st_mode) & how == how


@pytest.fixture
def tree(tmp_path, monkeypatch):
    memory = SimpleNamespace(total=16_000_000_000, available=12_000_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(psutil, "getloadavg", lambda: (0.1, 0.1, 0.1))
    return Tree(tmp_path)


def test_of_a_healthy_machine_nothing_is_invented(tree):
    checks = findings(tree.read(SEEN))
    assert {check.state for check in checks} == {"ok"}
    assert not any(check.way_out for check in checks)
    assert Diagnosis(tuple(checks)).verdict == "Nothing is broken here."
    gpu = next(check for check in checks if check.area == "GPU")
    assert gpu.what == "OpenVINO sees GPU (Arc); libother_gpu_v2_plugin.so answers."


def test_where_there_is_no_linux_nothing_of_linux_is_advised(tmp_path):
    plugins = [f"openvino_intel_{kind}_plugin.dll" for kind in ("cpu", "gpu", "npu")]
    checks = findings(Machine(tmp_path, libraries=plugins, **ONLY_CPU, access=as_another))
    absent = [check for check in checks if check.state == "absent"]
    assert [check.what.partition(";")[0] for check in absent] == [
        "OpenVINO sees no GPU", "OpenVINO sees no NPU",
    ]  # fmt: skip
    assert not re.search(
        "sudo|/dev|kernel|wheel lacks", " ".join(c.what + c.way_out for c in checks)
    )


@pytest.mark.parametrize(
    ("area", "file", "says"),
    [
        ("GPU", f"{LIB}/libOpenCL.so.1", "loader libOpenCL.so.1 is missing"),
        ("GPU", "etc/OpenCL/vendors/intel.icd", "no file in /etc/OpenCL/vendors"),
        ("GPU", "usr/lib/intel/libigdrcl.so",
         "intel.icd names a library that is missing: /usr/lib/intel/libigdrcl.so"),
        ("NPU", f"{LIB}/libze_loader.so.1", "Level Zero loader"),
        ("NPU", f"{LIB}/libze_intel_npu.so.1", "libze_intel_npu"),
        ("NPU", "lib/firmware/intel/vpu/vpu_37xx_v1.bin.zst", "firmware"),
    ],
)  # fmt: skip
def test_a_file_that_is_missing(tree, area, file, says):
    tree.remove(file)
    assert says in tree.cause(area).what


@pytest.mark.parametrize("file", ["etc/OpenCL/vendors/intel.icd", "usr/lib/intel/libigdrcl.so"])
def test_a_file_of_the_driver_is_unreadable(tree, file):
    (tree.root / file).chmod(0o600)
    assert f"cannot be read: /{file}" in tree.cause("GPU").what
    assert len(tree.bad()) == 2  # and the NPU


def test_two_opencl_platforms(tree, monkeypatch):
    tree.add("etc/OpenCL/vendors/pocl.icd", "libpocl.so.2\n")
    tree.add("usr/lib/libpocl.so.2")
    found = tree.cause("OpenCL", SEEN)
    assert "2 OpenCL drivers are registered: intel.icd, pocl.icd" in found.what
    assert "OCL_ICD_VENDORS=intel.icd" in found.way_out
    assert tree.bad(SEEN) == [found]
    monkeypatch.setenv("OCL_ICD_VENDORS", "intel.icd")
    assert tree.bad(SEEN) == []
    monkeypatch.setenv("OCL_ICD_VENDORS", "/none")
    assert "OCL_ICD_VENDORS=/none" in tree.cause("GPU").what


def test_the_wrong_group(tree, monkeypatch):
    def nameless(_: Path) -> str:
        raise KeyError("gid")

    for area, file in (("GPU", "dev/dri/renderD128"), ("NPU", "dev/accel/accel0")):
        (tree.root / file).chmod(0o660)
        found = tree.cause(area)
        group = (tree.root / file).group()
        assert found.what == f"You may not open /{file} of the group {group}."
        assert f"usermod -aG {group}" in found.way_out
    monkeypatch.setattr(Path, "group", nameless)
    assert f"of the group {os.getgid()}." in tree.cause("GPU").what


@pytest.mark.parametrize("kind", PLUGINS)
def test_no_plugin_library(tree, kind):
    others = [library for of, library in PLUGINS.items() if of != kind]
    found = tree.cause(kind, {"devices": {}, "libraries": others})
    assert "plugin's library is not beside the runtime" in found.what


def test_old_openvino_and_none(tree, monkeypatch):
    versions = {"openvino": "2025.4.1"}
    monkeypatch.setattr(metadata, "version", lambda name: versions.get(name, version(name)))
    (found,) = tree.bad(SEEN)
    assert found.what == "OpenVINO 2025.4.1 is older than 2026.3."
    versions["openvino"] = ""
    (found,) = tree.bad({"crash": "No module named 'openvino'"})
    assert found == Check(
        "OpenVINO", "missing", "OpenVINO is not installed for this Python.",
        "pip install 'openvino>=2026.3'",
    )  # fmt: skip


def test_openvino_that_crashes_ends_no_doctor(tree, monkeypatch):
    monkeypatch.setattr(judging, "_ASK", f"import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})")
    (found,) = tree.bad(ask_openvino())
    assert found.what == f"OpenVINO {version('openvino')} does not work: signal 11."
    monkeypatch.setattr(judging, "_ASK", "raise ImportError('no libtbb.so')")
    assert "no libtbb.so" in tree.cause("OpenVINO", ask_openvino()).what


def test_a_broken_widget_package(tree, monkeypatch):
    monkeypatch.setitem(judging._EXTENSIONS, "anywidget", "no_such_extension")
    (found,) = tree.bad(SEEN)
    assert "does not work: JupyterLab does not find its extension." in found.what
    monkeypatch.setitem(sys.modules, "anywidget", None)
    (found,) = tree.bad(SEEN)
    assert found.area == "widgets"
    assert found.what.startswith("anywidget ")
    assert "does not work: ModuleNotFoundError" in found.what


def test_a_container_without_devices(tree):
    tree.remove("dev/dri/renderD128", "dev/accel/accel0")
    what = tree.cause("GPU").what
    assert what == ("The kernel shows no GPU: no /dev/dri/renderD*, and i915 or xe is not loaded.")
    assert "intel_vpu is loaded" in tree.cause("NPU").what
    tree.add(".dockerenv")
    assert "This container has no device file of the GPU" in tree.cause("GPU").what
    assert "docker run --device /dev/dri" in tree.cause("GPU").way_out


def test_what_disturbs_measurements(tree, monkeypatch):
    tree.add("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "acpi-cpufreq\n")
    tree.add("sys/fs/cgroup/memory.max", "500000000\n")  # the limit of a container
    monkeypatch.setattr(psutil, "getloadavg", lambda: (999.0, 1.0, 1.0))
    found = {check.area: check.what for check in tree.bad(SEEN)}
    assert [*found] == ["memory", "load", "clock"]
    assert found["memory"] == "500 MB of 500 MB memory are free."
    assert found["load"].startswith("The load is 999 on ")


def test_no_compiler_for_the_npu(tree):
    tree.remove(f"{LIB}/libnpu_driver_compiler.so")
    assert "untried here" in tree.cause("NPU compiler").way_out
    assert "OpenVINO sees none: no device." in tree.cause("GPU").what  # where nothing is missing
    assert tree.bad(SEEN) == []


def test_without_any_permission_there_is_no_traceback(tree):
    checks = findings(Machine(tree.root, access=lambda *_: False))
    (found,) = [check for check in checks if check.area == "doctor"]
    assert "may not read" in found.what


def test_an_empty_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda _: "")
    areas = {check.area: check.state for check in findings(Machine(tmp_path, crash="gone"))}
    assert areas["GPU"] == areas["NPU"] == "absent"
    assert areas["OpenVINO"] == areas["widgets"] == "missing"


def test_names_of_the_user_are_gone():
    text = "/home/eve/x and /media/eve/y, evening, $eve"
    assert anonymous(text, "/home/eve", "eve") == "~/x and /media/USER/y, evening, $eve"
    assert anonymous("/root and root", "/", "root") == "/root and root"


def test_this_machine(capsys):
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "hetero-lab doctor"
    found = hl.doctor()
    assert list(found.summary) == ["area", "state", "what", "way_out"]
    seen = {check.area for check in found.checks if check.state == "ok"}
    assert {"OpenVINO", "CPU", "widgets"} <= seen
    (cpu,) = [check.what for check in found.checks if check.area == "CPU"]
    assert sys.platform != "linux" or cpu.endswith("cpu_plugin.so answers.")
    assert "<table" in found._repr_html_()
    for check in found.checks:
        assert check.what.endswith(".")
        assert (check.state == "ok") == (not check.way_out)


def test_the_command_without_openvino():
    code = (
        # JupyterLab takes seconds to import.
        "import sys; sys.modules.update(openvino=None, jupyterlab=sys)\n"
        "from importlib import metadata; real = metadata.version\n"
        "def version(name):\n"
        "    if name == 'openvino': raise metadata.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "metadata.version = version\n"
        "from hetero_lab.cli.main import main; sys.exit(main(['doctor']))"
    )
    assert "OpenVINO is not installed for this Python." in run_python(code).stdout
