"""Run a command as on a CPU without bf16: ``python -m tests.without_bf16 COMMAND [ARGUMENT …]``.

Its processes find a CPU that lacks AMX, AVX512-BF16 and AVX512-FP16, whatever the machine has:
``OPTIMIZATION_CAPABILITIES`` has no BF16, and models run in f32 by default. oneDNN's own
``ONEDNN_MAX_CPU_ISA`` does not do that: OpenVINO goes on to offer bf16, and emulates it slowly.
Needs Linux on x86-64, a C compiler, and a kernel that lets CPUID fault.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

_SOURCE = Path(__file__).with_suffix(".c")


def build(directory: Path) -> Path:
    """Compile the library that is preloaded.

    Raises
    ------
    OSError, subprocess.CalledProcessError
        There is no C compiler, or it fails.
    """
    library = directory / "without_bf16.so"
    compiler = os.environ.get("CC", "cc")
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", library, _SOURCE, "-ldl"], check=True
    )
    return library


def main() -> int:
    """Run the command and return its exit code."""
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    with tempfile.TemporaryDirectory() as directory:
        preloaded = f"{build(Path(directory))} {os.environ.get('LD_PRELOAD', '')}".strip()
        done = subprocess.run(sys.argv[1:], env={**os.environ, "LD_PRELOAD": preloaded})
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


if __name__ == "__main__":
    sys.exit(main())
