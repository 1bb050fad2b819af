"""Run a command as on a CPU without bf16: ``python -m tests.without_bf16 COMMAND [ARGUMENT …]``.

Its processes find a CPU that lacks AMX, AVX512-BF16 and AVX512-FP16, whatever the machine has:
``OPTIMIZATION_CAPABILITIES`` has no BF16, and models run in f32 by default. oneDNN's own
``ONEDNN_MAX_CPU_ISA`` does not do that: OpenVINO goes on to offer bf16, and emulates it slowly.
Needs Linux on x86-64 and a C compiler; where the CPU does not let CPUID fault, objdump, too.
"""

from __future__ import annotations

import mmap
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import openvino as ov

_SOURCE = Path(__file__).with_suffix(".c")
_ASKING = ("libopenvino.so", "libopenvino_intel_cpu_plugin.so")  # what asks for bf16 and AMX
_CPUID = b"\x0f\xa2"
_BEFORE = (61, 64)  # bytes before a place, where its disassembly begins
_WINDOW, _NOPS = 96, b"\x90"  # the rest is NOPs, which end any instruction that was cut off


def environment(directory: Path) -> dict[str, str]:
    """Return the environment of such processes; ``directory`` holds what they need.

    Without a C compiler or objdump it raises OSError; CalledProcessError where one of them fails.
    """
    library = str(directory / "without_bf16.so")
    compiler = os.environ.get("CC", "cc")
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", library, _SOURCE, "-ldl"], check=True
    )
    env = {**os.environ, "LD_PRELOAD": f"{library} {os.environ.get('LD_PRELOAD', '')}".strip()}
    if subprocess.run(["true"], env=env, stderr=subprocess.DEVNULL).returncode == 0:
        return env
    sites = directory / "cpuid_sites"
    sites.write_text("".join(f"{name} {at:x}\n" for name, at in _sites()))
    return env | {"LD_AUDIT": library, "WITHOUT_BF16_SITES": str(sites)}


def _sites() -> Iterator[tuple[str, int]]:
    """Yield each library of OpenVINO that asks what the CPU can do, and where it does."""
    for path in sorted((Path(str(ov.__file__)).parent / "libs").iterdir()):
        if path.name.startswith(_ASKING):
            yield from ((path.name, at) for at in _cpuids(path))


def _cpuids(library: Path) -> list[int]:
    """Return the address of each CPUID in a library.

    Its two bytes also occur within longer instructions. Disassembly that begins a little before
    them soon falls into step with the instructions, wherever it begins. All places are disassembled
    at once, apart from the library, whose symbols take long to read.
    """
    at: list[int] = []
    windows = b""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        headers = _run("objdump", "-p", str(library))
        loaded = re.findall(r"LOAD off +(\w+) vaddr (\w+).*\n +filesz (\w+) .* flags ..x", headers)
        for begin, address, size in ([int(number, 16) for number in each] for each in loaded):
            for found in re.finditer(_CPUID, data[begin : begin + size]):
                at.append(address + found.start())
                place = begin + found.start()
                for before in _BEFORE:
                    windows += _NOPS * (_WINDOW - before) + data[place - before : place + 2]
    with tempfile.NamedTemporaryFile() as file:
        file.write(windows)
        file.flush()
        raw = ("objdump", "-D", "-b", "binary", "-m", "i386:x86-64", "--no-show-raw-insn")
        listed = re.findall(r"^ *(\w+):\s+cpuid", _run(*raw, file.name), re.M)
    ends = {int(place, 16) for place in listed}
    size, n = _WINDOW + 2, len(_BEFORE)
    return [
        address
        for number, address in enumerate(at)
        if all(size * (n * number + i) + _WINDOW in ends for i in range(n))
    ]


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> int:
    """Run the command and return its exit code."""
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(sys.argv[1:], env=environment(Path(directory)))
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


if __name__ == "__main__":
    sys.exit(main())
