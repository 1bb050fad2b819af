"""Whether networks run whole on a device, and right: ``python -m tests.real_gpu.whole``.

Each network is compiled for ``--device`` (GPU) and for the CPU, in f32, and the outputs are
compared. What cannot be compiled or comes out wrong has no place in a search. It also makes the
files of the networks in ``--scratch`` and fills the driver's cache of kernels. Prints a line each.
The exit code is 1 if one fails.
"""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path

import hetero_lab as hl
from hetero_lab.backend.bound import bind
from hetero_lab.runtime.inputs import given_or_generated
from tests.real_gpu.mixed_networks import MIXED
from tests.real_gpu.networks import model_file, short_name
from tests.scripts import alone, error_of, in_turns, medians, options

CALLS = 5
TOLERANCE = 1e-3  # of the largest value


def one_network(name: str, device: str, scratch: Path) -> float:
    """Compile, compare and print; return the largest difference as a share of the largest value."""
    started = time.perf_counter()
    bound = bind(hl.load(model_file(name, scratch)))
    inputs = given_or_generated(bound, None)
    calls = {at: hl.compile(bound.model, alone(bound.model, at)) for at in ("CPU", device)}
    us = medians(
        {at: in_turns({at: partial(call, inputs)}, 1, CALLS, 0)[at] for at, call in calls.items()}
    )
    error = error_of(calls[device](inputs), calls["CPU"](inputs))
    took = time.perf_counter() - started
    times = ", ".join(f"{at} {each:.0f} µs" for at, each in us.items())
    print(f"{short_name(name):20} {times}, error {error:.1e}, in {took:.0f} s", flush=True)
    return error


def main() -> int:
    """Try each network."""
    given = options(__doc__, models=MIXED, device="GPU", emulate=False, scratch=Path)
    if given.emulate:
        hl.emulate(given.device)
    failed = 0
    with tempfile.TemporaryDirectory() as directory:
        for name in given.models:
            try:
                error = one_network(name, given.device, given.scratch or Path(directory))
                failed += not error <= TOLERANCE
            except Exception:  # the others are worth trying
                traceback.print_exc()
                print(f"{short_name(name):20} cannot run", flush=True)
                failed += 1
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
