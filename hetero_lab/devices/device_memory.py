"""How much memory a device has, and how much of it is free."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Any

import psutil

from hetero_lab.devices.devices import has_own_memory, property_of
from hetero_lab.processes import run_child

if TYPE_CHECKING:
    import openvino as ov


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
