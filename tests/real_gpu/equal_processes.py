"""How far equal processes lie apart: ``python -m tests.real_gpu.equal_processes``.

Some processes with openvino alone compile the same placements in the same order: each device by
itself, and some of few and of many subgraphs over ``--device`` (GPU) and CPU in f32. Then they run
them in turns, in random order, for ``--seconds``. What the median of one process differs from that
of another, and what a process differs from itself ten seconds later, no prediction can know.
``--emulate`` makes the device of CPU threads, so that the script itself can be tried anywhere.
Prints a table for each model; ``--out FILE`` gets a JSON line for each turn.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import hetero_lab as hl
from hetero_lab.costs.design import scattered_affinities
from hetero_lab.devices.core import BoundModel, bind
from hetero_lab.devices.devices import supported_ops
from hetero_lab.placement.partition import predict
from hetero_lab.placement.placement import Placement
from tests.plain_openvino import PlainProcess, frozen
from tests.real_gpu.networks import model_file, short_name
from tests.scripts import BF16, F32, append_json, options

SPLIT, WARM_UP, SPAN_S = 3, 40, 10.0


def placements(bound: BoundModel, devices: list[str]) -> dict[str, Placement]:
    """Return each device by itself and splits, from the fewest subgraphs to the most, by label."""
    graph = bound.graph
    names = {graph.ops[index].name for index in graph.placeable}
    support = {device: frozenset(names & supported_ops(bound, device)) for device in devices}
    found = {d: hl.Affinity.on_one(graph, d) for d in devices if support[d] == names}
    splits = scattered_affinities(graph, support, 4 * SPLIT, seed=0)
    sizes = {affinity: len(predict(graph, affinity).subgraphs) for affinity in splits}
    ordered = sorted(sizes, key=lambda affinity: sizes[affinity])
    for at in np.linspace(0, len(ordered) - 1, SPLIT):
        affinity = ordered[int(at)]
        found[f"{sizes[affinity]} subgraphs"] = affinity
    own = {} if devices[0] == "ACC" else {devices[0]: F32}
    return {label: Placement(each, label, own | {"CPU": F32}) for label, each in found.items()}


def turns(bound: BoundModel, given: argparse.Namespace, scratch: Path) -> Iterator[dict[str, Any]]:
    """Yield the time, the process, the placement and its median in µs of each turn."""
    chosen = placements(bound, [given.device, "CPU"])
    places = {
        label: frozen(bound, placed, scratch / f"placement{number}")
        for number, (label, placed) in enumerate(chosen.items())
    }

    def load(plain: PlainProcess) -> None:
        for place in places.values():
            plain.load(place)
            plain.turn(place, 0, WARM_UP)

    shuffle = random.Random(0)
    with contextlib.ExitStack() as stack:
        first = next(iter(places.values()))
        plains = [stack.enter_context(PlainProcess(first)) for _ in range(given.processes)]
        load(plains[0])  # the others find its kernels in the driver's cache
        with ThreadPoolExecutor(len(plains)) as pool:
            list(pool.map(load, plains[1:]))
        began = time.perf_counter()
        pairs = [(p, label) for p in range(len(plains)) for label in places]
        while time.perf_counter() - began < given.seconds:
            for process, label in shuffle.sample(pairs, len(pairs)):
                us = float(np.median(plains[process].turn(places[label])))
                at = time.perf_counter() - began
                yield {"at_s": round(at, 3), "process": process, "label": label, "us": round(us, 1)}


def differences(table: pd.DataFrame) -> pd.DataFrame:
    """Return how far processes, and the times in a process, lie apart; a row a placement."""
    rows = []
    for label, own in table.groupby("label", sort=False):
        medians = own.groupby("process")["us"].median()
        # What all of them have in common in a span of time is left in: that is the machine's.
        spans = own.groupby(["process", own["at_s"] // SPAN_S])["us"].median()
        steps = spans / spans.groupby("process").transform("median") - 1.0
        rows.append(
            {
                "placement": label,
                "median µs": round(float(medians.median())),
                "fastest process": round(float(medians.min())),
                "slowest process": round(float(medians.max())),
                "slowest / fastest": round(float(medians.max() / medians.min()), 2),
                "mean difference": f"{(medians / medians.median() - 1.0).abs().mean():.1%}",
                f"spans of {SPAN_S:g} s in a process": f"{steps.abs().mean():.1%}",
            }
        )
    return pd.DataFrame(rows).set_index("placement").sort_values("median µs")


def main() -> None:
    """Print a table a model."""
    given = options(
        __doc__, models=["digits_inception", "page_orientation"], device="GPU", emulate=False,
        processes=6, seconds=60.0, out=Path,
    )  # fmt: skip
    if given.emulate:
        hl.emulate("ACC", properties=BF16)
        given.device = "ACC"
    for name in given.models:
        with tempfile.TemporaryDirectory() as directory:
            scratch = Path(directory)
            bound = bind(hl.load(model_file(name, scratch)))
            rows = []
            for turn in turns(bound, given, scratch):
                rows.append(turn)
                append_json(given.out, {"model": short_name(name), **turn})
        print(f"{short_name(name)}, {given.processes} processes:")
        print(differences(pd.DataFrame(rows)).to_string(), flush=True)


if __name__ == "__main__":
    main()
