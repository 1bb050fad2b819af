"""The shared Core, and how child processes that load the runtime are run."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

import openvino as ov

from hetero_lab.extensions import add_devices


def environment_of_a_child(**more: str) -> dict[str, str]:
    """Return this process's environment and ``more``, for a process that imports openvino.

    ``CI`` turns OpenVINO's telemetry off. With telemetry, ``import openvino`` forks a child that
    reports the import to Google Analytics. It can hang in a lock that was held when it was forked,
    and if its parent dies first, it keeps the parent's pipes open, so that readers wait forever.
    """
    return {**os.environ, "CI": "true", **more}


def run_child(
    command: Sequence[str],
    *,
    timeout_s: float,
    cwd: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, without a keyboard, and return its output as text.

    After the time limit or Ctrl-C, the programs that it has started are killed, too.
    """
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=environment_of_a_child() if environment is None else environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as child:
        try:
            said = child.communicate(timeout=timeout_s)
        except BaseException:
            if os.name == "posix":
                os.killpg(child.pid, signal.SIGKILL)
            child.kill()
            raise
    return subprocess.CompletedProcess(command, child.returncode, *said)


_kept: dict[int, ov.Core] = {}
_shared: list[ov.Core] = []


def shared_core() -> ov.Core:
    """Return this process's Core; devices of other packages are registered when it is made."""
    if not _shared:
        _shared.append(ov.Core())  # first, because an extension may ask for the shared Core
        add_devices(_shared[0])
    return _shared[0]


@functools.cache
def scratch_core() -> ov.Core:
    """Return a Core to read properties from, apart from the settings of all other Cores."""
    return ov.Core()


def keep(core: ov.Core) -> ov.Core:
    """Keep a core alive until the process ends, and return it.

    Each CPU plugin of OpenVINO 2026.4 gives a signal stack to the thread that loads it, and unmaps
    it when it is unloaded. If cores are destroyed in another order than they were made, or in
    another thread, a thread is left with an unmapped signal stack, and the next signal (Ctrl-C)
    ends the process.
    """
    _kept[id(core)] = core
    return core


def runtime_version() -> str:
    """Return the version of the OpenVINO runtime."""
    return str(ov.get_version())
