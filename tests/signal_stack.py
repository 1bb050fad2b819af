"""Whether the signal stack of a thread is there. Without it, the next signal ends the process."""

from __future__ import annotations

import ctypes
import mmap
import sys


class _Stack(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]


def signal_stack_is_mapped() -> bool:
    """Tell whether the calling thread has no signal stack, or one in mapped memory."""
    if not sys.platform.startswith("linux"):
        return True
    library, stack = ctypes.CDLL(None), _Stack()
    assert library.sigaltstack(None, ctypes.byref(stack)) == 0
    if not stack.start:
        return True
    page = stack.start - stack.start % mmap.PAGESIZE
    resident = ctypes.create_string_buffer(1)
    return library.mincore(ctypes.c_void_p(page), 1, resident) == 0
