"""How much memory a device has, how much of it is free, and how much this process takes."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from hetero_lab.devices.devices import has_own_memory, property_of
from hetero_lab.processes import run_child

if TYPE_CHECKING:
    import openvino as ov

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def total_bytes(core: ov.Core, device: str) -> int | None:
    """Return the memory of a GPU; ``None`` for other devices."""
    return property_of(core, device, "GPU_DEVICE_TOTAL_MEM_SIZE")


def free_bytes(core: ov.Core, device: str) -> int:
    """Return the memory that is free: of the machine, or of a graphics card of its own.

    A plugin knows only what this process has allocated on a card. NVIDIA's driver also tells what
    other processes hold.
    """
    machine = psutil.virtual_memory().available
    total = total_bytes(core, device)
    if total is None or not has_own_memory(device, core):
        return min(machine, total or machine)
    own = property_of(core, device, "GPU_MEMORY_STATISTICS") or {}
    left = max(0, total - sum(n for kind, n in own.items() if kind != "usm_host"))
    return min(left, _free_by_driver(property_of(core, device, "DEVICE_PCI_INFO")) or left)


def _free_by_driver(pci: Any) -> int | None:
    """Return the free memory of NVIDIA's card at a place of the bus; ``None`` for other cards."""
    place = re.findall(r"(?:bus|device): *(\w+)", str(pci))  # "bus: 0 device: 0x6 function: 0"
    command = ["nvidia-smi", "--query-gpu=pci.bus_id,memory.free", "--format=csv,noheader,nounits"]
    if len(place) < 2 or shutil.which(command[0]) is None:
        return None
    for line in run_child(command, timeout_s=10).stdout.splitlines():
        found = re.fullmatch(r"\w+:(\w+):(\w+)\.\w+, (\d+)", line)  # 00000000:00:06.0, 143156
        if found and [int(n, 16) for n in found.groups()[:2]] == [int(n, 16) for n in place]:
            return int(found[3]) << 20
    return None


def reset_peak() -> bool:
    """Reset the peak; return ``False`` if the system cannot, so that it counts from the start."""
    try:
        _CLEAR.write_bytes(b"5")
    except OSError:
        return False
    return True


def peak_bytes() -> int:
    """Return the peak resident memory of this process in bytes."""
    told = status_bytes("VmHWM:")
    if told is not None:
        return told
    info = psutil.Process().memory_info()
    if sys.platform == "win32":
        return int(info.peak_wset)
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def status_bytes(key: str) -> int | None:
    """Return a size that Linux reports for this process; ``None`` elsewhere."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = _STATUS.read_text("ascii", "replace").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key)), None)
