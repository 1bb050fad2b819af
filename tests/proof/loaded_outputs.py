"""Outputs under full load: are they those of a model alone, whatever runs beside it?

    python -m tests.proof.loaded_outputs [--requests 1000]

Drives the networks of the zoo four at a time, two requests each, on the CPU, an emulated device and
a split, in a process each and all in one, where requests share their inputs. Each output is
compared. Prints a line a set, and the wrong outputs of all.
"""

from __future__ import annotations

import argparse
import itertools

import hetero_lab as hl
from hetero_lab.machine.machine import Inquiry
from hetero_lab.progress import Stopwatch
from tests import network_zoo

NETWORKS = (
    "yolo_dfl", "yolo_anchors", "yolo_decoupled", "unet", "ssd", "faces", "encoder", "gated",
    "ocr_svtr", "ocr_crnn", "speech", "lstm",
)  # fmt: skip
WAYS = itertools.cycle(["CPU", "HETERO:PART,CPU", "ACC"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    least = parser.parse_args().requests
    hl.emulate("ACC")
    hl.emulate("PART", unsupported=["Softmax", "Concat"])
    wrong = total = 0
    for first, processes in itertools.product(range(0, len(NETWORKS), 4), (None, 1)):
        demands = {
            name: hl.Demand(hl.load(getattr(network_zoo, name)()), requests=2, ways=[next(WAYS)])
            for name in NETWORKS[first : first + 4]
        }
        with Inquiry(
            demands, ["ACC", "PART", "CPU"], watch=Stopwatch.start(None), processes=processes
        ) as inquiry:
            ways = {name: next(iter(own.values())) for name, own in inquiry.ways.items()}
            loads = {name: demands[name].closed(way.key) for name, way in ways.items()}
            counts = dict.fromkeys(ways, 0)
            while min(counts.values()) < least:
                for name, driven in inquiry.drives.drive(ways, loads, 5.0, check=True).items():
                    counts[name] += len(driven.latencies_us)
                    wrong += driven.n_wrong
        total += sum(counts.values())
        print("one process" if processes else "a process each", counts, flush=True)
    print(f"{wrong} wrong of {total}")


if __name__ == "__main__":
    main()
