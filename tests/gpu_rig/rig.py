"""Run OpenVINO's own GPU plugin on a machine without a GPU.

Intel's CPU runtime for OpenCL does the work; ``fake_gpu_layer.c`` makes it answer like an Intel
GPU. Numbers are right, timings mean nothing. Everything here has to happen before openvino is
imported, so tests that use it run in a process of their own.
"""

import atexit
import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

# The order matters: each library finds the ones before it already loaded.
PRELOADED = {
    "libtbb.so.12": "tbb",  # newer than the one that openvino brings
    "libintlc.so.5": "intel-cmplr-lib-rt",
    "libirng.so": "intel-cmplr-lib-rt",
    "libimf.so": "intel-cmplr-lib-rt",
    "libsvml.so": "intel-cmplr-lib-rt",
    "libOpenCL.so.1": "intel-opencl-rt",
}
RUNTIME = ("libintelocl.so", "intel-opencl-rt")
PINNED = {"intel-opencl-rt": "2026.2.0", "intel-cmplr-lib-rt": "2026.2.0"}
_STARTED = "HETERO_LAB_GPU_RIG"
_SET_BY_THE_RIG = ("OCL_ICD_VENDORS", "OPENCL_LAYERS", "LD_PRELOAD", _STARTED)
_SOURCE = Path(__file__).with_name("fake_gpu_layer.c")


class RigError(RuntimeError):
    """The rig cannot be started here; the message says what is missing."""


def is_running() -> bool:
    """Say whether `GPU` is the rig, here and in the processes that this one starts."""
    return _STARTED in os.environ


def real_devices() -> list[str]:
    """List the GPUs and NPUs that OpenVINO finds without the rig, asked in another process."""
    code = "import json, openvino; print(json.dumps(openvino.Core().available_devices))"
    bare = {k: v for k, v in os.environ.items() if not (is_running() and k in _SET_BY_THE_RIG)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=bare)
    if done.returncode:
        raise RigError(f"openvino does not start without the rig either:\n{done.stderr}")
    names = json.loads(done.stdout.splitlines()[-1])
    return [name for name in names if name.split(".")[0] in ("GPU", "NPU")]


def start(build_dir: str | os.PathLike) -> None:
    """Make the GPU plugin find a device, in this process and in those that it starts.

    Does nothing where a real GPU is listed, or where the rig already runs. The compiled layer and
    the ``.icd`` file go to ``build_dir``, which has to stay until the last process ends. Raises a
    RigError if openvino is already imported, or the C compiler or a package is missing.
    """
    if is_running():
        return
    if "openvino" in sys.modules:
        raise RigError("openvino is already imported. Start the rig in a process of its own.")
    if any(name.startswith("GPU") for name in real_devices()):
        return
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise RigError("The rig needs Linux on x86-64: Intel's CPU runtime for OpenCL.")

    build_dir = Path(build_dir).resolve()
    runtime = find_library(*RUNTIME)
    libraries = [find_library(name, package) for name, package in PRELOADED.items()]
    layer = compile_layer(build_dir)
    (build_dir / "cpu.icd").write_text(f"{runtime}\n")
    for path in [layer, *libraries]:
        if set(str(path)) & set(" :"):  # both separate paths in LD_PRELOAD and OPENCL_LAYERS
            raise RigError(f"The rig cannot work in a path with a space or colon: {path}")

    os.environ["OCL_ICD_VENDORS"] = str(build_dir)
    os.environ["OPENCL_LAYERS"] = str(layer)
    # For the processes that this one starts; this one itself needs the libraries opened by hand.
    os.environ["LD_PRELOAD"] = " ".join([*map(str, libraries), os.environ.get("LD_PRELOAD", "")])
    os.environ[_STARTED] = str(build_dir)
    for path in libraries:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def start_here() -> None:
    """Start the rig with files of its own, which go when this process ends."""
    build_dir = tempfile.mkdtemp(prefix="gpu_rig_")
    atexit.register(shutil.rmtree, build_dir, ignore_errors=True)
    start(build_dir)


def find_library(name: str, package: str) -> Path:
    """Find a library that a package brought; the error says what to install."""
    wanted = f"{package}=={PINNED[package]}" if package in PINNED else package
    hint = f"Install it: python -m pip install {wanted}"
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        raise RigError(f"The package {package!r} is missing. {hint}") from None
    for file in files:
        path = Path(file.locate()).resolve()
        if file.name == name and path.is_file():
            return path
    raise RigError(f"The package {package!r} is installed without {name}. {hint}")


def compile_layer(build_dir: Path) -> Path:
    """Compile ``fake_gpu_layer.c`` into a directory."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise RigError("No C compiler: 'cc', 'gcc' and 'clang' are not in PATH. Install gcc.")
    layer = build_dir / "libfake_gpu_layer.so"
    command = [compiler, "-std=gnu11", "-shared", "-fPIC", "-O1", "-o", str(layer), str(_SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RigError(f"{compiler} cannot compile {_SOURCE.name}:\n{done.stderr}")
    return layer
