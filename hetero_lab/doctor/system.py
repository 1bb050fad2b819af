"""What a machine shows of its files, libraries and drivers, and what OpenVINO answers."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hetero_lab.processes import run_child

_FOLDERS = ("/lib*", "/lib/*-linux-gnu*", "/usr/lib*", "/usr/lib/*-linux-gnu*", "/usr/local/lib*",
            f"{sys.prefix}/lib")  # fmt: skip
VENDORS = "/etc/OpenCL/vendors"
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


def ask_openvino() -> dict[str, Any]:
    """Return what OpenVINO sees; ``crash`` says why it gave no answer."""
    try:
        done = run_child([sys.executable, "-c", _ASK], timeout_s=_LONGEST_ASKED_S)
        if done.returncode == 0:
            return json.loads(done.stdout.splitlines()[-1])
        end = f"signal {-done.returncode}" if done.returncode < 0 else "an error"
        return {"crash": [end, *done.stderr.splitlines()][-1].rstrip(".")}
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
        """Whether this process may open a file or a directory."""
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
        found: list[str] = []
        for pattern in patterns:
            folder = os.path.dirname(pattern)
            if os.path.exists(self._there(folder)) and not self.may_open(folder):
                self.unreadable[folder] = None
            names = glob.glob(pattern.lstrip("/"), root_dir=self.root)
            found += [f"/{name}" for name in sorted(names)]
        return found

    def library(self, name: str) -> str:
        """Return where a library is, given its name or its path; empty if nowhere."""
        places = [name] if name.startswith("/") else [f"{folder}/{name}" for folder in _FOLDERS]
        if found := self.paths(*places):
            return found[0]
        if self.root == Path("/"):  # and where else the loader of this system looks
            with contextlib.suppress(OSError):
                ctypes.CDLL(name)
                return name
        return ""

    def opencl_drivers(self) -> dict[str, str]:
        """Return what is wrong with each driver that the OpenCL loader, or its variable, names."""
        chosen = os.environ.get("OCL_ICD_VENDORS", "")
        folder = os.path.join(VENDORS, chosen)
        files = self.paths(folder if chosen.endswith(".icd") else f"{folder}/*.icd")
        if not chosen:  # the loader of conda
            files += self.paths(f"{sys.prefix}{VENDORS}/*.icd")
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
        """Whether this is the inside of a container."""
        groups = self.text("/proc/1/cgroup")
        is_marked = self.paths("/.dockerenv", "/run/.containerenv")
        return bool(is_marked or re.search("docker|kubepods|containerd|lxc", groups))

    def group(self, path: str) -> str:
        """Return the group of a file: its name, or its number where it has none."""
        if sys.platform != "win32":
            with contextlib.suppress(KeyError):
                return self._there(path).group()
        return str(self._there(path).stat().st_gid)
