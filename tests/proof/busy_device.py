"""A deployed directory on a device that is busy: does ``verify`` name the latency?

Run by hand on a machine that is otherwise quiet: ``python -m tests.proof.busy_device [--model
page_orientation] [--share 0.3]``. The model is frozen on CPU in f32 with all threads. Then all
cores but one are kept busy: for a share of each millisecond, which makes the device slower by about
as much, and then wholly, by four processes each. The reference, one thread, finds the core that is
left. Prints what ``verify`` says before, meanwhile and afterwards, and ends with 1 unless latency
is the part that breaks meanwhile, and only then.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator

import hetero_lab as hl
from tests.scripts import F32, alone, options


def keep_busy(core: int, share: float) -> None:
    """Compute on one core for a share of each millisecond until the process is ended."""
    os.sched_setaffinity(0, {core})
    while True:
        until = time.perf_counter() + 1e-3 * share
        while share == 1.0 or time.perf_counter() < until:
            pass
        time.sleep(1e-3 * (1.0 - share))


@contextlib.contextmanager
def all_but_one_busy(on_each: int, share: float) -> Iterator[None]:
    """Keep the cores of this process busy, but one, with processes on each."""
    cores = sorted(os.sched_getaffinity(0))[:-1]
    processes = [
        multiprocessing.Process(target=keep_busy, args=(core, share)) for core in cores * on_each
    ]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


def main() -> int:
    """Freeze, verify, verify while the device is busy, verify again."""
    given = options(__doc__, model="page_orientation", share=0.3)
    all_threads = {**F32, "INFERENCE_NUM_THREADS": os.cpu_count() or 1}
    placement = alone(given.model, "CPU", all_threads)
    with tempfile.TemporaryDirectory() as scratch:
        directory = hl.freeze(given.model, placement, f"{scratch}/deploy")
        told = {"before": hl.verify(directory)}
        for on_each, share in ((1, given.share), (4, 1.0)):
            when = f"{on_each} on each core but one for {share:.0%} of the time"
            with all_but_one_busy(on_each, share):
                told[when] = hl.verify(directory)
        told["after"] = hl.verify(directory)
    for when, proven in told.items():
        latency = next(part for part in proven.parts if part.name == "latency")
        broken = ", ".join(proven.broken) or "nothing"
        print(f"{given.model}, {when}: {broken} broken; latency {latency.detail}", flush=True)
    broken = [proven.broken for proven in told.values()]
    return int(broken != [(), ("latency",), ("latency",), ()])


if __name__ == "__main__":
    sys.exit(main())
