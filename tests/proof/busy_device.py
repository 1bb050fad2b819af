"""A deployed directory on a device that is busy: does ``verify`` name the latency?

Run by hand on a machine that is otherwise quiet: ``python -m tests.proof.busy_device [--model
page_orientation]``. The model is frozen on CPU in f32 with all threads. Then processes keep all
cores but one busy, several on each: the device is slower, while the reference, one thread, finds
the core that is left. Prints what ``verify`` says before, meanwhile and afterwards, and ends
with 1 unless latency is the part that breaks meanwhile, and only then.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator

import hetero_lab as hl

_ON_EACH = 4


def keep_busy(core: int) -> None:
    """Compute on one core until the process is ended."""
    os.sched_setaffinity(0, {core})
    while True:
        pass


@contextlib.contextmanager
def all_but_one_busy() -> Iterator[int]:
    """Keep the cores of this process busy, but one; gives how many that are."""
    cores = sorted(os.sched_getaffinity(0))[:-1]
    processes = [
        multiprocessing.Process(target=keep_busy, args=(core,)) for core in cores * _ON_EACH
    ]
    for process in processes:
        process.start()
    try:
        yield len(cores)
    finally:
        for process in processes:
            process.terminate()
            process.join()


def main() -> int:
    """Freeze, verify, verify while the device is busy, verify again."""
    parser = argparse.ArgumentParser(description="A deployed directory on a device that is busy.")
    parser.add_argument("--model", default="page_orientation")
    given = parser.parse_args()
    f32 = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": os.cpu_count() or 1}
    affinity = hl.Affinity.uniform(given.model, "CPU")
    placement = hl.Placement(affinity, "CPU", {"CPU": f32}, direct=True)
    with tempfile.TemporaryDirectory() as scratch:
        directory = hl.freeze(given.model, placement, f"{scratch}/deploy")
        before = hl.verify(directory)
        with all_but_one_busy() as n_cores:
            meanwhile = hl.verify(directory)
        after = hl.verify(directory)
    told = {"before": before, f"{n_cores} cores busy": meanwhile, "after": after}
    for when, proven in told.items():
        latency = next(part for part in proven.parts if part.name == "latency")
        broken = ", ".join(proven.broken) or "nothing"
        print(f"{given.model}, {when}: {broken} broken; latency {latency.detail}", flush=True)
    return int((before.broken, meanwhile.broken, after.broken) != ((), ("latency",), ()))


if __name__ == "__main__":
    sys.exit(main())
