"""What moves the latency of everything that a process runs by one factor.

Run by hand: ``python -m tests.benchmarks.benchmark_levels [--models NAME …] [--seconds 300]``.
Placements of a model over CPU and an emulated device run in fresh processes with openvino and numpy
alone. In each round every condition has a process of its own, in random order: alone, beside others
that are compiled in the same process and run in turns (``living``), after others that were
compiled and let go (``after``), on one thread, unpinned, with huge pages, with a fixed layout of
memory. Prints for each condition the median of its ratio to the process that was alone in the same
round, how far that ratio varies from round to round (standard deviation of its logarithm), and the
same of the process alone against the median of all rounds, which is what the machine and the luck
of a process do. A run in the same process once more (``again``) says how much of that is the
process's.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from unittest import mock

import numpy as np

import hetero_lab as hl
from hetero_lab.costs.design import scattered_affinities
from hetero_lab.devices.core import bind
from tests.plain_openvino import PlainProcess, frozen
from tests.scripts import F32, options

LIVING = (4, 8, 14)
WARM_UP, TURNS = 60, 6
THREADS = {**F32, "INFERENCE_NUM_THREADS": 1}
UNPINNED = {**F32, "ENABLE_CPU_PINNING": False}
ENVIRONMENTS = {
    "huge pages": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    "one arena": {"MALLOC_ARENA_MAX": "1"},
}


def places_of(name: str, directory: Path) -> dict[str, list[Path]]:
    """Write a placement with several subgraphs and others beside it, with each properties."""
    model = hl.load(name)
    bound = bind(model)
    everywhere = {device: set(hl.Affinity.uniform(model, device)) for device in ("LEVEL", "CPU")}
    affinities = [
        affinity
        for affinity in scattered_affinities(bound.graph, everywhere, 2 * max(LIVING), seed=0)
        if len(affinity.devices) > 1
    ][: max(LIVING)]
    found: dict[str, list[Path]] = {}
    for what, properties in (("", F32), ("one thread", THREADS), ("unpinned", UNPINNED)):
        own = affinities if not what else affinities[:1]
        each = {"LEVEL": properties, "CPU": properties}
        found[what] = [
            frozen(bound, hl.Placement(affinity, "", each), directory / f"{what}{number}")
            for number, affinity in enumerate(own)
        ]
    return found


def level(plain: PlainProcess, first: Path, others: Sequence[Path] = ()) -> float:
    """Return the median latency of a placement in turns with others, in µs."""
    for place in (first, *others):
        plain.turn(place, 0, WARM_UP)
    turns = []
    for _ in range(TURNS):
        turns.append(np.median(plain.turn(first)))
        for place in others:
            plain.turn(place)
    return float(np.median(turns))


@contextlib.contextmanager
def process(place: Path, environment: Mapping[str, str] = {}) -> Iterator[PlainProcess]:
    """Yield a fresh process in which the first placement is compiled."""
    with mock.patch.dict(os.environ, environment), PlainProcess(place) as plain:
        yield plain


def measured(condition: str, places: Mapping[str, list[Path]]) -> float:
    """Return the level of the first placement under a condition, in a process of its own."""
    kind, _, number = condition.partition(" ")
    own = places.get(condition, places[""])
    with process(own[0], ENVIRONMENTS.get(condition, {})) as plain:
        others = own[1 : int(number)] if kind in ("living", "after") else []
        if kind == "after":
            for place in others:
                plain.load(place)
                plain.forget(place)
        plain.load(own[0])
        if kind == "living":
            for place in others:
                plain.load(place)
            return level(plain, own[0], others)
        if kind == "again":
            level(plain, own[0])
        return level(plain, own[0])


def main() -> None:
    """Print a table a model."""
    given = options(__doc__, models=["digits_inception", "page_orientation"], seconds=300.0)
    hl.emulate("LEVEL", properties=F32)
    conditions = [
        "alone", "alone twice", "again", *(f"living {n}" for n in LIVING), "after 14",
        "one thread", "unpinned", *ENVIRONMENTS,
    ]  # fmt: skip
    shuffle = random.Random(0)
    for name in given.models:
        with tempfile.TemporaryDirectory() as directory:
            places = places_of(name, Path(directory))
            rows = []
            until = time.perf_counter() + given.seconds
            while len(rows) < 3 or time.perf_counter() < until:
                order = shuffle.sample(conditions, len(conditions))
                found = {condition: measured(condition, places) for condition in order}
                rows.append([found[condition] for condition in conditions])
        levels = np.log(np.array(rows))
        print(f"{name}, {len(rows)} rounds: alone {np.exp(np.median(levels[:, 0])):.0f} µs")
        print(f"  alone        varies by {levels[:, 0].std(ddof=1):.1%} from process to process")
        for column, condition in enumerate(conditions[1:], start=1):
            apart = levels[:, column] - levels[:, 0]
            print(
                f"  {condition:<12} {np.exp(np.median(apart)):.3f} of alone, varies by "
                f"{apart.std(ddof=1):.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
