"""Does investigate see each fault for what it is? ``python -m tests.proof.investigated``.

Random graphs with faults of one op or two, as in :mod:`tests.proof.injected_faults`, pairs of ops
at which a device crashes, hangs or refuses, and graphs without a fault, which must have no symptom.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import replace

import numpy as np

from hetero_lab.experiments.faults.investigate import Investigation, search_cause
from hetero_lab.experiments.measure.placed_runs import PlacedRuns
from hetero_lab.runtime.timing import Stopwatch
from tests.experiments.faults.cases import CRASHING, chain_case
from tests.proof.faults import spoil
from tests.proof.injected_faults import SUSPECT, Case, placed_graph, with_faults
from tests.scripts import options

_CHAIN = ["matmul", "tanh", "shift", "sigmoid", "negative"]
_FAILING = {"crash": "crash", "hang": "hang", "refuse": "refused"}


def investigated(case: Case, budget_s: float = 300.0) -> Investigation:
    watch = Stopwatch.start(budget_s)
    runs = PlacedRuns(
        case.placed, case.arrays, "CPU", watch=watch, isolate=True,
        worker_command=case.worker_command,
    )  # fmt: skip
    runs.before_compile = spoil(SUSPECT, case.faults)
    with runs:
        return search_cause(runs, watch)


def run_faults(n: int, first_seed: int) -> bool:
    """Investigate graphs with faults; an innocent op in the answer is one too many."""
    tally: Counter[str] = Counter()
    seed = first_seed
    while tally["graphs"] < n:
        case = with_faults(placed_graph(seed), seed)
        seed += 1
        if case is None:
            continue
        found = investigated(case)
        good = frozenset(found.ops) in {fault.ops for fault in case.faults}
        tally["graphs"] += 1
        tally["found"] += good
        tally[f"symptom {found.symptom.value}"] += 1
        if not good:
            print(f"seed {seed - 1}: {[sorted(f.ops) for f in case.faults]}, not {found}")
    print(dict(tally))
    return tally["found"] == n


def run_failing(n: int, seed: int) -> bool:
    """Investigate devices that fail where two neighbours of a chain are compiled together."""
    rng, tally = np.random.default_rng(seed), Counter[str]()
    for number in range(n):
        how, at = list(_FAILING)[number % 3], int(rng.integers(len(_CHAIN) - 1))
        pair = (_CHAIN[at], _CHAIN[at + 1])
        os.environ.update(FAULT=how, FAULT_MAKER=pair[0], FAULT_READER=pair[1])
        found = investigated(replace(chain_case(), worker_command=CRASHING), 120.0)
        good = (found.symptom.value, found.ops) == (_FAILING[how], pair)
        tally[how] += good
        if not good:
            print(f"{how} at {pair}: {found}")
    print(dict(tally))
    return tally.total() == n


def run_healthy(n: int, first_seed: int) -> bool:
    """Investigate graphs without a fault; return whether none has a symptom."""
    tally: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + n):
        found = investigated(placed_graph(seed))
        tally[found.symptom.value] += 1
        if found.symptom != "ok":
            print(f"seed {seed}: {found}")
    print("without a fault:", dict(tally))
    return tally["ok"] == n


def main() -> int:
    """Run all three."""
    given = options(__doc__, faults=25, failing=15, healthy=500, seed=0)
    good = [
        run_faults(given.faults, given.seed),
        run_failing(given.failing, given.seed),
        run_healthy(given.healthy, given.seed),
    ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
