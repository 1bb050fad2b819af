"""The memory of this process: its peak on every operating system, the rest as Linux reports it."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def reset_peak() -> bool:
    """Reset the peak; return ``False`` if the system cannot, so that it counts from the start."""
    try:
        _CLEAR.write_text("5")
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
    lines = _STATUS.read_text().splitlines() if _STATUS.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key)), None)
