"""Read what a machine shows of its devices, drivers, load and packages; nothing here judges."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import metadata, util
from pathlib import Path
from typing import Any

_PACKAGES = ("openvino", "ipywidgets", "anywidget", "jupyterlab", "plotly")
_EXTENSIONS = {"ipywidgets": "@jupyter-widgets/jupyterlab-manager", "anywidget": "anywidget"}
_MODULES = ("i915", "xe", "nvidia", "amdgpu", "intel_vpu")
_FOLDERS = ("lib", "lib64", "usr/lib", "usr/lib64", "usr/local/lib")
_LONGEST_ASKED_S = 120.0
# In a process of its own: a broken driver may crash the one that asks.
_ASK = """
import json, re, openvino
core, names, reasons = openvino.Core(), {}, {}
for name in core.available_devices:
    try:
        names[name] = core.get_property(name, "FULL_DEVICE_NAME")
    except Exception:
        names[name] = ""
for kind in ("CPU", "GPU", "NPU"):
    try:
        core.get_property(kind, "AVAILABLE_DEVICES")
    except Exception as error:
        reasons[kind] = str(error).strip().split("\\n")[-1]
try:
    loaded = sorted(set(re.findall(r"/\\S*plugin\\S*", open("/proc/self/maps").read())))
except OSError:
    loaded = []
print(json.dumps({"devices": names, "reasons": reasons, "loaded": loaded}))
"""


@dataclass(frozen=True)
class DeviceFile:
    """A file of a device, its group, and whether this process may read and write it."""

    path: str
    group: str
    may_open: bool


@dataclass(frozen=True)
class Registered:
    """An OpenCL driver in the list of the loader, its library, and what is wrong with it."""

    file: str
    library: str
    problem: str = ""


@dataclass(frozen=True)
class Package:
    """A Python package: its version, the least one that is needed, and why it does not work."""

    version: str = ""
    needed: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Machine:
    """What was read; ``None`` is what the system does not tell."""

    packages: Mapping[str, Package]
    devices: Mapping[str, str]  # those that OpenVINO sees, with their full names
    reasons: Mapping[str, str]  # what the plugins of the other devices say
    loaded: tuple[str, ...]  # the plugin libraries that answered
    crash: str  # why OpenVINO did not answer
    libraries: tuple[str, ...] | None  # files beside the runtime
    gpu_files: tuple[DeviceFile, ...]
    npu_files: tuple[DeviceFile, ...]
    modules: tuple[str, ...]
    opencl_loader: str
    opencl_drivers: tuple[Registered, ...]
    icd_vendors: str
    level_zero: tuple[str, ...]
    npu_compiler: bool
    npu_firmware: bool
    is_container: bool
    memory_bytes: int | None
    free_bytes: int | None
    load: float | None
    n_cpus: int
    governor: str
    clock_driver: str
    front_end: str
    unreadable: tuple[str, ...]


def ask_openvino() -> dict[str, Any]:
    """Return what OpenVINO sees; ``crash`` says why it gave no answer."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK], capture_output=True, text=True, errors="replace",
            timeout=_LONGEST_ASKED_S, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        if not done.returncode:
            return json.loads(done.stdout.splitlines()[-1])
        said = [f"signal {-done.returncode}"] if done.returncode < 0 else done.stderr.splitlines()
        return {"crash": (said or [f"exit code {done.returncode}"])[-1].rstrip(".")}
    except subprocess.TimeoutExpired:
        return {"crash": f"no answer in {_LONGEST_ASKED_S:.0f} s"}
    except (OSError, ValueError, IndexError) as error:
        return {"crash": str(error)}


def package(name: str) -> Package:
    """Return the version of a package, what this one needs, and why it cannot be used."""
    needed, found = "", ""
    with contextlib.suppress(metadata.PackageNotFoundError):
        wanted = (re.match(rf"{name}>=([\d.]+)", r) for r in metadata.requires("hetero-lab") or ())
        needed = next((match[1] for match in wanted if match), "")
    try:
        found = metadata.version(name)
        if name != "openvino":  # which is asked in a process of its own
            importlib.import_module(name)
        if (extension := _EXTENSIONS.get(name)) and not _has_extension(extension):
            return Package(found, needed, "JupyterLab does not find its extension")
    except metadata.PackageNotFoundError:
        return Package(needed=needed)
    except Exception as error:  # whatever a broken package raises
        return Package(found, needed, f"{type(error).__name__}: {error}")
    return Package(found, needed)


def _has_extension(name: str) -> bool:
    paths = importlib.import_module("jupyter_core.paths").jupyter_path("labextensions")
    return any(os.path.exists(os.path.join(path, name)) for path in paths)


def _openvino_libraries() -> Path | None:
    with contextlib.suppress(ImportError, ValueError):
        spec = util.find_spec("openvino")
        if spec is not None and spec.origin:
            return Path(spec.origin).parent / "libs"
    return None


def _front_end(environ: Mapping[str, str]) -> str:
    if "COLAB_RELEASE_TAG" in environ:
        return "Google Colab"
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if type(shell).__name__ != "ZMQInteractiveShell":
        return "a terminal or a program"
    return "a notebook in VS Code" if "VSCODE_PID" in environ else "a Jupyter notebook"


class _Tree:
    """The files below a root; what may not be read is noted."""

    def __init__(self, root: Path, may_open: Callable[[Any, int], bool]) -> None:
        self.root, self.may_open, self.is_here = root, may_open, root == Path("/")
        self.unreadable: list[str] = []
        self.folders = [*_FOLDERS]
        for folder in ("lib", "usr/lib"):
            self.folders += self.paths(folder, "*-linux-gnu*")
        for file in self.paths("etc/ld.so.conf.d", "*.conf"):
            lines = map(str.strip, self.text(file).splitlines())
            self.folders += [line.strip("/") for line in lines if line.startswith("/")]
        if self.is_here:
            more = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
            self.folders += [f.strip("/") for f in (*more, f"{sys.prefix}/lib") if f]

    def there(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def text(self, path: str) -> str:
        try:
            if os.path.exists(self.there(path)) and not self.may_open(self.there(path), os.R_OK):
                raise PermissionError
            return self.there(path).read_text(errors="replace")
        except PermissionError:
            self.unreadable.append(f"/{path.lstrip('/')}")
        except OSError:
            pass
        return ""

    def paths(self, folder: str, *patterns: str) -> list[str]:
        try:
            names = sorted(os.listdir(self.there(folder)))
        except PermissionError:
            self.unreadable.append(f"/{folder}")
            return []
        except OSError:
            return []
        return [f"{folder}/{n}" for n in names if any(fnmatch(n, p) for p in patterns)]

    def library(self, pattern: str) -> str:
        """Return where a library is, by its path or by a pattern of its name; empty if nowhere."""
        if pattern.startswith("/"):
            return pattern if os.path.exists(self.there(pattern)) else ""
        found = next((p for f in self.folders for p in self.paths(f, pattern)), "")
        if found:
            return f"/{found}"
        if self.is_here and "*" not in pattern:
            with contextlib.suppress(OSError):
                ctypes.CDLL(pattern)
                return pattern
        return ""

    def device_files(self, *places: tuple[str, str]) -> tuple[DeviceFile, ...]:
        rows = [line.split(":") for line in self.text("etc/group").splitlines()]
        groups = {row[2]: row[0] for row in rows if len(row) > 2}
        found: list[DeviceFile] = []
        for path in (path for place in places for path in self.paths(*place)):
            with contextlib.suppress(OSError):
                gid = str(os.stat(self.there(path)).st_gid)
                may = self.may_open(self.there(path), os.R_OK | os.W_OK)
                found.append(DeviceFile(f"/{path}", groups.get(gid, gid), may))
        return tuple(found)

    def opencl_drivers(self, vendors: str) -> tuple[Registered, ...]:
        """Return the drivers that the OpenCL loader reads, or those that OCL_ICD_VENDORS names."""
        folder = "etc/OpenCL/vendors"
        if vendors.endswith(".icd"):
            files = [vendors.lstrip("/") if "/" in vendors else f"{folder}/{vendors}"]
        elif vendors:
            files = self.paths(vendors.strip("/"), "*.icd")
        else:
            files = self.paths(folder, "*.icd")
            if self.is_here and sys.prefix != "/usr":
                files += self.paths(f"{sys.prefix}/{folder}".lstrip("/"), "*.icd")
        found: list[Registered] = []
        for file in files:
            noted = len(self.unreadable)
            lines = self.text(file).split("\n")
            if len(self.unreadable) > noted:
                found.append(Registered(f"/{self.unreadable.pop().lstrip('/')}", "", "unreadable"))
                continue
            library = self.library(lines[0].strip()) if lines[0].strip() else ""
            bad = library.startswith("/") and not self.may_open(self.there(library), os.R_OK)
            problem = "missing" if not library else "unreadable" if bad else ""
            found.append(Registered(f"/{file}", library or lines[0].strip(), problem))
        return tuple(found)

    def memory(self) -> tuple[int | None, int | None]:
        """Return the bytes of memory and those that are free, within the limit of a container."""
        known = dict(re.findall(r"^(\w+): +(\d+) kB", self.text("proc/meminfo"), re.M))
        whole, free = (
            int(known[n]) * 1024 if n in known else None for n in ("MemTotal", "MemAvailable")
        )
        for file in ("memory.max", "memory/memory.limit_in_bytes"):
            limit = self.text(f"sys/fs/cgroup/{file}").strip()
            if limit.isdigit() and whole and free is not None:
                whole, free = min(whole, int(limit)), min(free, int(limit))
        return whole, free


def read_machine(
    root: str | os.PathLike[str] = "/",
    *,
    ask: Callable[[], Mapping[str, Any]] = ask_openvino,
    may_open: Callable[[Any, int], bool] = os.access,
    package: Callable[[str], Package] = package,
    libraries: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Machine:
    """Read a machine, or a tree of directories that looks like one. It never raises OSError."""
    tree = _Tree(Path(root), may_open)
    packages = {name: package(name) for name in _PACKAGES}
    answer = ask() if packages["openvino"].version else {}
    beside, files = libraries or _openvino_libraries(), None
    with contextlib.suppress(OSError):
        files = tuple(sorted(os.listdir(beside))) if beside is not None else None
    whole, free = tree.memory()
    load = tree.text("proc/loadavg").split()
    clock, vendors = "sys/devices/system/cpu/cpu0/cpufreq", environ.get("OCL_ICD_VENDORS", "")
    here = {line.split(" ")[0] for line in tree.text("proc/modules").splitlines()}
    pid_1 = tree.text("proc/1/cgroup") if not tree.is_here or os.path.exists("/proc/1") else ""
    modules = [m for m in _MODULES if m in here or os.path.exists(tree.there(f"sys/module/{m}"))]
    compilers = [f for f in files or () if fnmatch(f, "*npu*compiler*")]
    return Machine(
        packages=packages,
        devices=dict(answer.get("devices", {})),
        reasons=dict(answer.get("reasons", {})),
        loaded=tuple(answer.get("loaded", ())),
        crash=str(answer.get("crash", "")),
        libraries=files,
        gpu_files=tree.device_files(("dev/dri", "renderD*"), ("dev", "nvidia[0-9]*"),
                                    ("dev", "dxg")),
        npu_files=tree.device_files(("dev/accel", "accel*")),
        modules=tuple(modules),
        opencl_loader=tree.library("libOpenCL.so.1"),
        opencl_drivers=tree.opencl_drivers(vendors),
        icd_vendors=vendors,
        level_zero=tuple(
            name for name in ("libze_loader", "libze_intel_gpu", "libze_intel_npu")
            if tree.library(f"{name}.so*")
        ),
        npu_compiler=bool(compilers or tree.library("libnpu_driver_compiler.so*")),
        npu_firmware=bool(tree.paths("lib/firmware/intel/vpu", "*.bin*")),
        is_container=any(os.path.exists(tree.there(f)) for f in (".dockerenv", "run/.containerenv"))
        or bool(re.search("docker|kubepods|containerd|lxc", pid_1)),
        memory_bytes=whole,
        free_bytes=free,
        load=float(load[0]) if load and re.fullmatch(r"[\d.]+", load[0]) else None,
        n_cpus=os.cpu_count() or 1,
        governor=tree.text(f"{clock}/scaling_governor").strip(),
        clock_driver=tree.text(f"{clock}/scaling_driver").strip(),
        front_end=_front_end(environ),
        unreadable=tuple(dict.fromkeys(tree.unreadable)),
    )  # fmt: skip
