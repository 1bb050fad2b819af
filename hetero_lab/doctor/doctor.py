"""The doctor: what OpenVINO sees here and does not see, and why: a line for each cause."""

from __future__ import annotations

import contextlib
import ctypes
import getpass
import glob
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import filter as matching
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from hetero_lab.errors import names_at_hand
from hetero_lab.processes import run_child
from hetero_lab.result import Result
from hetero_lab.tables import bytes_text, frame_of
from hetero_lab.terminal import columns, count_of, one_line

if TYPE_CHECKING:
    import pandas as pd

OK, WARNING, MISSING = "ok", "warning", "missing"
ABSENT = "absent"  # as on a machine that has no such device
_PACKAGES = ("openvino", "ipywidgets", "anywidget", "jupyterlab", "plotly")
_EXTENSIONS = {"ipywidgets": "@jupyter-widgets/jupyterlab-manager", "anywidget": "anywidget"}
_FRONT_ENDS = {"COLAB_RELEASE_TAG": "Colab", "VSCODE_PID": "VS Code", "JPY_PARENT_PID": "Jupyter"}
_LITTLE = 2_000_000_000  # bytes; a compile of a small model takes some hundred MB
_BUSY = 0.75  # of the processors: beyond, other work disturbs a measurement
_FAST_UNDER_POWERSAVE = ("intel_pstate", "amd-pstate-epp")  # drivers of the clock
_REINSTALL = "pip install --force-reinstall"
_FOLDERS = (
    "/lib*",
    "/lib/*-linux-gnu*",
    "/usr/lib*",
    "/usr/lib/*-linux-gnu*",
    "/usr/local/lib*",
    f"{sys.prefix}/lib",
)
_VENDORS = "/etc/OpenCL/vendors"
_LONGEST_ASKED_S = 120.0  # from a slow disk, the plugins load for some seconds
# In a process of its own: a broken driver may crash the one that asks.
_ASK = """
import glob, json, os, re, openvino
core = openvino.Core()
def ask(device, name):
    try:
        return core.get_property(device, name), ""
    except Exception as error:
        return "", str(error).strip().split("\\n")[-1]
answer = {
    "devices": {name: ask(name, "FULL_DEVICE_NAME")[0] for name in core.available_devices},
    "reasons": {kind: ask(kind, "AVAILABLE_DEVICES")[1] for kind in ("CPU", "GPU", "NPU")},
    "libraries": list(map(os.path.basename, glob.glob(openvino.__path__[0] + "/libs/*"))),
}
if os.path.exists("/proc/self/maps"):
    found = re.findall(r"/(\\w*plugin\\S*)", open("/proc/self/maps").read())
    answer["loaded"] = sorted(set(found))
print(json.dumps(answer))
"""


class Check(NamedTuple):
    """One thing that was looked at: its area, its state, a sentence, and the way out."""

    area: str
    state: str
    what: str
    way_out: str = ""


@dataclass(frozen=True)
class Diagnosis(Result):
    """What works on this machine, what is missing, and the ways out; without names of the user."""

    checks: tuple[Check, ...]

    @property
    def verdict(self) -> str:
        """What is missing or disturbs, and which devices the machine does not show."""
        bad = [check.area for check in self.checks if check.state in (MISSING, WARNING)]
        absent = [check.area for check in self.checks if check.state == ABSENT]
        to_look_at = f"{count_of(len(bad), 'thing')} to look at: {', '.join(dict.fromkeys(bad))}."
        answer = to_look_at if bad else "Nothing is broken here."
        return f"{answer} Not here: {', '.join(absent)}." if absent else answer

    @property
    def summary(self) -> pd.DataFrame:
        """One row for each thing: ``area``, ``state``, ``what``, ``way_out``."""
        return frame_of(self.checks, [*Check._fields])

    def __repr__(self) -> str:
        cells = [(check.state, check.area, check.what) for check in self.checks]
        head, *rows = columns([("STATE", "AREA", "WHAT"), *cells]).splitlines()
        ways = [f"\n    → {check.way_out}" if check.way_out else "" for check in self.checks]
        return "\n".join([self.verdict, "", head, *map(str.__add__, rows, ways)])


def doctor() -> Diagnosis:
    """Say what OpenVINO sees here and does not see, why, and the way out.

    Returns
    -------
    Diagnosis
        A line for each device and what it needs, with neither the user's name nor the home
        directory, to paste into an issue.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> set(hl.doctor().summary["state"]) <= {"ok", "absent", "warning", "missing"}
    True
    """
    home, user = os.path.expanduser("~"), ""
    with contextlib.suppress(KeyError, OSError):  # a container's user without a name
        user = getpass.getuser()
    checks = findings(Machine(**ask_openvino()))
    return Diagnosis(tuple(Check(*(anonymous(text, home, user) for text in c)) for c in checks))


def anonymous(text: str, home: str, user: str) -> str:
    """Write the home directory as ``~`` and take the user's name out."""
    if len(home) > 1:
        text = re.sub(rf"{re.escape(home)}(?!\w)", "~", text)
    if user in ("", "root", "render", "video"):
        return text
    return re.sub(rf"(?<![\w.$-]){re.escape(user)}(?![\w-])", "USER", text)


# -- what there is -----------------------------------------------------------------------------


def ask_openvino() -> dict[str, Any]:
    """Return what OpenVINO sees; ``crash`` says why it gave no answer."""
    try:
        child = run_child([sys.executable, "-c", _ASK], timeout_s=_LONGEST_ASKED_S)
        if child.returncode == 0:
            return json.loads(child.stdout.splitlines()[-1])
        end = f"signal {-child.returncode}" if child.returncode < 0 else "an error"
        return {"crash": [end, *child.stderr.splitlines()][-1].rstrip(".")}
    except subprocess.TimeoutExpired:
        return {"crash": f"no answer in {_LONGEST_ASKED_S:.0f} s"}
    except (OSError, ValueError, IndexError) as error:
        return {"crash": str(error)}


@dataclass
class Machine:
    """A machine, or a tree of directories that looks like one. Reading it raises no OSError."""

    root: Path = Path("/")
    devices: Mapping[str, str] = field(default_factory=dict)  # that OpenVINO sees, and their names
    reasons: Mapping[str, str] = field(default_factory=dict)  # why the other kinds are not seen
    loaded: Sequence[str] = ()  # the plugins that answered
    libraries: Sequence[str] = ()  # beside the runtime
    crash: str = ""  # why OpenVINO did not answer
    access: Callable[[Any, int], bool] = os.access
    unreadable: dict[str, None] = field(default_factory=dict)

    def _there(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def may_open(self, path: str, how: int = os.R_OK) -> bool:
        return self.access(self._there(path), how)

    def text(self, path: str) -> str:
        """Return the text of a file; empty if it is not there or may not be read."""
        with contextlib.suppress(OSError):
            if self.may_open(path):
                return self._there(path).read_text("utf-8", "replace")
            self.unreadable |= dict.fromkeys(self.paths(path))
        return ""

    def paths(self, *patterns: str) -> list[str]:
        """Return the paths that are there, in order."""
        files: list[str] = []
        for pattern in patterns:
            folder = os.path.dirname(pattern)
            if os.path.exists(self._there(folder)) and not self.may_open(folder):
                self.unreadable[folder] = None
            names = glob.glob(pattern.lstrip("/"), root_dir=self.root)
            files += [f"/{name}" for name in sorted(names)]
        return files

    def library(self, name: str) -> str:
        """Return where a library is, given its name or its path; empty if nowhere."""
        places = [name] if name.startswith("/") else [f"{folder}/{name}" for folder in _FOLDERS]
        if files := self.paths(*places):
            return files[0]
        if self.root == Path("/"):  # and where else the loader of this system looks
            with contextlib.suppress(OSError):
                ctypes.CDLL(name)
                return name
        return ""

    def opencl_drivers(self) -> dict[str, str]:
        """Return what is wrong with each driver that the OpenCL loader, or its variable, names."""
        setting = os.environ.get("OCL_ICD_VENDORS", "")
        folder = os.path.join(_VENDORS, setting)
        files = self.paths(folder if setting.endswith(".icd") else f"{folder}/*.icd")
        if not setting:  # the loader of conda
            files += self.paths(f"{sys.prefix}{_VENDORS}/*.icd")
        return {file: self._problem_of_driver(file) for file in files}

    def _problem_of_driver(self, file: str) -> str:
        if not self.may_open(file):
            return f"cannot be read: {file}"
        name = self.text(file).partition("\n")[0].strip()
        library = self.library(name) if name else ""
        if not library:
            return f"names a library that is missing: {name or 'none'}"
        is_closed = library.startswith("/") and not self.may_open(library)
        return f"cannot be read: {library}" if is_closed else ""

    def is_container(self) -> bool:
        groups = self.text("/proc/1/cgroup")
        is_marked = self.paths("/.dockerenv", "/run/.containerenv")
        return bool(is_marked or re.search("docker|kubepods|containerd|lxc", groups))

    def group(self, path: str) -> str:
        """Return the group of a file: its name, or its number where it has none."""
        if sys.platform != "win32":
            with contextlib.suppress(KeyError):
                return self._there(path).group()
        return str(self._there(path).stat().st_gid)


# -- what that means ----------------------------------------------------------------------------


def findings(machine: Machine) -> list[Check]:
    """Return what works, what disturbs and what is missing on a machine."""
    causes = (_packages, _devices, _opencl, _npu_compiler, _conditions)
    checks = [check for cause in causes for check in cause(machine)]
    return sorted(checks, key=lambda check: check.area == "widgets")


def _packages(m: Machine) -> Iterator[Check]:
    requirements = ""
    with contextlib.suppress(metadata.PackageNotFoundError):  # this one is run from its source
        requirements = "\n".join(metadata.requires("hetero-lab") or ())
    least = dict(re.findall(r"^([\w-]+)>=([\d.]+)", requirements, re.M))
    for name in _PACKAGES:
        area = "OpenVINO" if name == "openvino" else "widgets"
        title, version, minimum = name.replace("openvino", area), "", least.get(name, "0")
        with contextlib.suppress(metadata.PackageNotFoundError):
            version = metadata.version(name)
        if not version:
            what = f"{title} is not installed for this Python."
            yield Check(area, MISSING, what, f"pip install '{name}>={minimum}'")
        elif problem := m.crash if name == "openvino" else _problem_of(name):
            what = f"{title} {version} does not work: {one_line(problem)}."
            yield Check(area, MISSING, what, f"{_REINSTALL} {name}")
        elif _numbers(version) < _numbers(minimum):
            what = f"{title} {version} is older than {minimum}."
            yield Check(area, WARNING, what, f"pip install -U {name}")
        else:
            yield Check(area, OK, f"{title} {version} is installed.")


def _problem_of(name: str) -> str:
    try:
        importlib.import_module(name)
        if name in _EXTENSIONS:
            places = importlib.import_module("jupyter_core.paths").jupyter_path("labextensions")
            if not any(os.path.exists(f"{place}/{_EXTENSIONS[name]}") for place in places):
                return "JupyterLab does not find its extension"
    except Exception as error:  # whatever a broken package raises
        return f"{type(error).__name__}: {error}"
    return ""


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def _devices(m: Machine) -> Iterator[Check]:
    kinds = {
        "CPU": (iter(()), f"{_REINSTALL} openvino"),
        "GPU": (_no_gpu(m), "clinfo -l shows what the driver sees; update the driver."),
        "NPU": (_no_npu(m), "Update driver and firmware together, and see dmesg."),
    }
    for kind, (causes, last_way_out) in kinds.items():
        plugin = f"*{kind.lower()}*plugin*"
        names = [f"{d} ({n})" if n else d for d, n in m.devices.items() if d.startswith(kind)]
        if names:
            libraries = matching(m.loaded, plugin)
            answers = f"; {', '.join(libraries)} answers" if libraries else ""
            yield Check(kind, OK, f"OpenVINO sees {', '.join(names)}{answers}.")
        elif m.libraries and not matching(m.libraries, plugin):
            what = f"The {kind} plugin's library is not beside the runtime."
            yield Check(kind, MISSING, what, f"{_REINSTALL} openvino")
        elif cause := next(causes, None):  # it hides those behind it
            yield cause
        elif not m.crash:
            reason = one_line(m.reasons.get(kind) or "the plugin finds no device").rstrip(".")
            what = f"Nothing that the {kind} needs is missing, but OpenVINO sees none: {reason}."
            yield Check(kind, MISSING, what, last_way_out)


def _no_gpu(m: Machine) -> Iterator[Check]:
    files = ("/dev/dri/renderD*", "/dev/nvidia[0-9]*", "/dev/dxg")
    yield from _no_file(m, "GPU", ("i915", "xe"), *files)
    if not m.library("libOpenCL.so.1"):
        what = "The OpenCL loader libOpenCL.so.1 is missing."
        yield Check("GPU", MISSING, what, "sudo apt install ocl-icd-libopencl1")
    drivers, vendors = m.opencl_drivers(), os.environ.get("OCL_ICD_VENDORS")
    if not drivers:
        place = f"OCL_ICD_VENDORS={vendors} names none" if vendors else f"no file in {_VENDORS}"
        install = "For Intel: sudo apt install intel-opencl-icd"
        what = f"The OpenCL loader has no driver: {place}."
        yield Check("GPU", MISSING, what, "unset OCL_ICD_VENDORS" if vendors else install)
    elif all(drivers.values()):
        file, problem = next(iter(drivers.items()))
        way_out = (
            "Install the driver again, for Intel: sudo apt install --reinstall intel-opencl-icd"
        )
        yield Check("GPU", MISSING, f"The OpenCL driver {file} {problem}.", way_out)


def _no_npu(m: Machine) -> Iterator[Check]:
    yield from _no_file(m, "NPU", ("intel_vpu",), "/dev/accel/accel*")
    firmware = m.paths("/lib/firmware/intel/vpu/*.bin*") or m.is_container()  # or the host has it
    parts = {
        "The Level Zero loader is missing": m.library("libze_loader.so.1"),
        "The Level Zero driver libze_intel_npu is missing": m.library("libze_intel_npu.so.1"),
        "The firmware of the NPU is missing in /lib/firmware/intel/vpu": firmware,
    }
    way_out = "Install one release of github.com/intel/linux-npu-driver."
    for what in (what for what, is_there in parts.items() if not is_there):
        yield Check("NPU", MISSING, f"{what}.", way_out)


def _no_file(m: Machine, kind: str, modules: tuple[str, ...], *patterns: str) -> Iterator[Check]:
    """Say what keeps this user from the files of a device; the first pattern is the usual one."""
    files, usual = m.paths(*patterns), patterns[0]
    if not m.paths("/sys/module"):
        what = f"OpenVINO sees no {kind}; the doctor knows the reasons on Linux alone."
        yield Check(kind, ABSENT, what, "If this machine has one, install its driver again.")
    elif not files and m.is_container():
        what = f"This container has no device file of the {kind}, {usual}."
        way_out = f"If the host has one: docker run --device {os.path.dirname(usual)}"
        yield Check(kind, ABSENT, what, way_out)
    elif not files:
        loaded = [name for name in modules if m.paths(f"/sys/module/{name}")]
        kernel = f"{' or '.join(loaded or modules)} is {'' if loaded else 'not '}loaded"
        what = f"The kernel shows no {kind}: no {usual}, and {kernel}."
        yield Check(kind, ABSENT, what, "If this machine has one, a newer kernel may know it.")
    elif not any(m.may_open(file, os.R_OK | os.W_OK) for file in files):
        group = m.group(files[0])
        what = f"You may not open {files[0]} of the group {group}."
        join = (
            f'Run sudo usermod -aG {group} "$USER" and log in again; in a container: --group-add.'
        )
        yield Check(kind, MISSING, what, join)


def _opencl(m: Machine) -> Iterator[Check]:
    drivers = m.opencl_drivers().items()
    names = [os.path.basename(file) for file, problem in drivers if not problem]
    if len(names) > 1:
        what = f"{len(names)} OpenCL drivers are registered: {', '.join(names)}."
        yield Check("OpenCL", WARNING, what, f"Choose one: export OCL_ICD_VENDORS={names[0]}")


def _npu_compiler(m: Machine) -> Iterator[Check]:
    has_compiler = matching(m.libraries, "*npu*compiler*") or m.library("libnpu_driver_compiler.so")
    has_plugin = m.paths("/sys/module") and matching(m.libraries, "*npu*plugin*")  # on Linux
    if has_plugin and not has_compiler and "NPU" not in m.devices:
        what = "The NPU plugin finds no compiler; the Linux wheel lacks it (openvino#36374)."
        way_out = (
            "pip install ai-edge-litert-sdk-intel brings it (untried here); then NPU_PLATFORM "
        )
        yield Check("NPU compiler", ABSENT, what, f"{way_out}compiles without the device.")


def _conditions(m: Machine) -> Iterator[Check]:
    memory, limit = psutil.virtual_memory(), m.text("/sys/fs/cgroup/memory.max").strip()
    most = int(limit) if limit.isdigit() else memory.total
    free = min(memory.available, most)
    what = f"{bytes_text(free)} of {bytes_text(min(memory.total, most))} memory are free."
    way_out = "Close other programs, or raise the container's limit."
    yield _ok_unless(free < _LITTLE, "memory", what, way_out)
    load, n_cpus = psutil.getloadavg()[0], os.cpu_count() or 1
    what = f"The load is {load:.3g} on {n_cpus} processors."
    way_out = "Close what runs beside measurements."
    yield _ok_unless(load > _BUSY * n_cpus, "load", what, way_out)
    clock = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_"
    governor, driver = (m.text(clock + name).strip() for name in ("governor", "driver"))
    if governor:
        is_slow = governor == "powersave" and driver not in _FAST_UNDER_POWERSAVE
        way_out = "sudo cpupower frequency-set -g performance"
        yield _ok_unless(is_slow, "clock", f"The clock governor is {governor}.", way_out)
    front_ends = (name for variable, name in _FRONT_ENDS.items() if variable in os.environ)
    yield Check("front end", OK, f"This is {next(front_ends, 'a terminal or a program')}.")
    if m.unreadable:
        what = f"The doctor may not read {names_at_hand(m.unreadable, 3)}."
        yield Check("doctor", WARNING, what, "Run it as a user who may.")


def _ok_unless(disturbs: bool, area: str, what: str, way_out: str) -> Check:
    return Check(area, WARNING, what, way_out) if disturbs else Check(area, OK, what)
