"""Outputs under full load: are they those of a model alone, whatever runs beside it?

    python -m tests.proof.loaded_outputs [--requests 1000]

Drives the networks of the zoo four at a time, two requests each, on the CPU, an emulated device and
a split, in a process each and all in one, where requests share their inputs. Each output is
compared. Prints a line a set, and the wrong outputs of all.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
from typing import Any

import numpy as np

import hetero_lab as hl
from hetero_lab.clock import unix_now
from hetero_lab.devices.core import BoundModel, bind
from hetero_lab.machine.drives import drive
from hetero_lab.measure.loads import Load
from hetero_lab.placement.placement import PlacementLike, resolve
from hetero_lab.runtime.executors import Runner, open_runner
from hetero_lab.runtime.inputs import input_arrays
from tests import network_zoo

NETWORKS = (
    "yolo_dfl", "yolo_anchors", "yolo_decoupled", "unet", "ssd", "faces", "encoder", "gated",
    "ocr_svtr", "ocr_crnn", "speech", "lstm",
)  # fmt: skip
WAYS = itertools.cycle(["CPU", "HETERO:PART,CPU", "ACC"])
SPREAD = 1e-3  # of the largest value: what other threads may change in an output


def compared(bound: BoundModel, way: PlacementLike, wrong: list[bool]) -> Runner:
    """Return a runner whose further requests tell of each inference whether it is ``wrong``."""
    runner = open_runner(resolve(bound, way), input_arrays(bound, None))
    runner.infer()
    expected, another = runner.outputs(), runner.another

    def comparing() -> Runner:
        other = another()
        infer = other.infer

        def infer_and_compare() -> None:
            infer()
            wrong.append(differs(other.outputs(), expected))

        other.infer = infer_and_compare
        return other

    runner.another = comparing
    return runner


def differs(outputs: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    for name, value in outputs.items():
        other = expected[name]
        if value.dtype.kind != "f":
            same = np.array_equal(value, other)
        else:
            most = SPREAD * float(np.max(np.abs(other[np.isfinite(other)]), initial=0.0))
            same = np.allclose(value, other, rtol=0.0, atol=most, equal_nan=True)
        if not same:
            return True
    return False


def drive_all(ways: dict[str, str], least: int, compiled: Any, answers: Any) -> None:
    """Drive networks in this process, once those of all processes are compiled."""
    hl.emulate("ACC")
    hl.emulate("PART", unsupported=["Softmax", "Concat"])
    wrong = list[bool]()
    runners = [
        compared(bind(hl.load(getattr(network_zoo, name)())), way, wrong)
        for name, way in ways.items()
    ]
    counts = dict.fromkeys(ways, 0)
    compiled.wait()
    while min(counts.values()) < least:
        loads = [Load(key=name, requests=2) for name in ways]
        for name, driven in zip(ways, drive(runners, loads, unix_now(), 5.0), strict=True):
            counts[name] += len(driven.latencies_us)
    answers.put((counts, sum(wrong)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    least = parser.parse_args().requests
    fresh = multiprocessing.get_context("spawn")
    wrong = total = 0
    for first, is_one in itertools.product(range(0, len(NETWORKS), 4), (False, True)):
        ways = {name: next(WAYS) for name in NETWORKS[first : first + 4]}
        groups = [ways] if is_one else [{name: way} for name, way in ways.items()]
        compiled, answers = fresh.Barrier(len(groups)), fresh.Queue()
        for group in groups:
            fresh.Process(target=drive_all, args=(group, least, compiled, answers)).start()
        counts = dict[str, int]()
        for _ in groups:
            own, n_wrong = answers.get()
            counts |= own
            wrong += n_wrong
        total += sum(counts.values())
        print("one process" if is_one else "a process each", counts, flush=True)
    print(f"{wrong} wrong of {total}")


if __name__ == "__main__":
    main()
