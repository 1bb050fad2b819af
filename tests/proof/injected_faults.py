"""Does find_wrong name what is wrong, and nothing else? ``python -m tests.proof.injected_faults``.

Random graphs on an emulated device, placed on it as a whole or over it and CPU, in f32 and in
bf16; one or two faults in each, of one op or of two that are wrong only together. Then one of a
thousand ops. Graphs without a fault are in :mod:`tests.proof.healthy_runs`.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import numpy as np  # noqa: E402
from faults import Fault, can_be_wrong, residual_model, spoil, unshare  # noqa: E402
from random_models import random_affinity, random_model  # noqa: E402

import hetero_lab as hl  # noqa: E402
from hetero_lab.costs.cost_model import CostModel  # noqa: E402
from hetero_lab.debug.find_wrong import search_wrong  # noqa: E402
from hetero_lab.debug.placed_runs import PlacedRuns  # noqa: E402
from hetero_lab.debug.wrong import Wrong  # noqa: E402
from hetero_lab.devices.core import bind, shared_core  # noqa: E402
from hetero_lab.devices.devices import precisions  # noqa: E402
from hetero_lab.model.read import PreparedModel, prepare  # noqa: E402
from hetero_lab.placement.affinity import Affinity  # noqa: E402
from hetero_lab.placement.partition import partition_of  # noqa: E402
from hetero_lab.placement.placement import BoundPlacement, Placement  # noqa: E402
from hetero_lab.progress import Stopwatch  # noqa: E402
from hetero_lab.runtime.inputs import bind_inputs, generate_inputs  # noqa: E402
from hetero_lab.runtime.reference import Reference, compare_with_reference  # noqa: E402
from tests.scripts import options  # noqa: E402

SUSPECT = "ACC"
MOST_COMPILES = 40


@dataclass(frozen=True)
class Case:
    """A placement of a random graph with its faults."""

    prepared: PreparedModel
    placement: Placement
    precision: str
    arrays: list[np.ndarray]
    faults: tuple[Fault, ...]
    worker_command: tuple[str, ...] | None = None  # of a device that works in a process

    @property
    def placed(self) -> BoundPlacement:
        """The placement bound to its model."""
        return BoundPlacement(bind(self.prepared), self.placement)

    def runs(
        self,
        faults: tuple[Fault, ...] | None = None,
        watch: Stopwatch | None = None,
        isolate: bool = False,
    ) -> PlacedRuns:
        command = self.worker_command
        runs = PlacedRuns(
            self.placed, self.arrays, "CPU", watch=watch,
            isolate=isolate or command is not None, worker_command=command,
        )  # fmt: skip
        runs.before_compile = spoil(SUSPECT, self.faults if faults is None else faults)
        return runs


def placed_graph(seed: int, n_ops: int | None = None, precision: str | None = None) -> Case:
    """Draw a graph and its placement on the suspect device, without a fault."""
    rng = np.random.default_rng(seed)
    hl.emulate(SUSPECT)
    usable = [
        p
        for p in ("f32", "bf16", "f16")
        if p == "f32" or p in precisions("CPU", core=shared_core())
    ]
    precision = precision or str(rng.choice(usable))
    prepared = prepare(unshare(random_model(seed, n_ops), rng))
    if rng.random() < 0.5:
        affinity = Affinity.uniform(prepared, SUSPECT)
    else:
        affinity = random_affinity(prepared.graph, [SUSPECT, SUSPECT, "CPU"], seed)
    properties = {SUSPECT: precision, "CPU": "f32"}
    placement = Placement(
        affinity,
        "placed",
        {d: {"INFERENCE_PRECISION_HINT": properties[d]} for d in affinity.devices},
        direct=len(affinity.devices) == 1 and rng.random() < 0.5,
    )
    arrays = bind_inputs(prepared, generate_inputs(prepared, seed))
    arrays = [a * 2 - 1 for a in arrays]
    return Case(prepared, placement, precision, arrays, ())


def with_faults(case: Case, seed: int) -> Case | None:
    """Put faults in that show at the outputs, each by itself; None if none was found."""
    rng = np.random.default_rng(seed)
    nodes = {n.get_friendly_name(): n for n in case.prepared.model.get_ordered_ops()}
    homes = [
        [op for op in subgraph.ops if can_be_wrong(nodes[op])]
        for subgraph in partition_of(case.placed).subgraphs
        if subgraph.device == SUSPECT
    ]
    homes = [home for home in homes if home]
    chosen: list[Fault] = []
    wanted = int(rng.integers(1, 3))
    for _ in range(12):
        if not homes or len(chosen) == wanted:
            break
        home = homes[rng.integers(len(homes))]
        taken = {op for fault in chosen for op in fault.ops}
        free = [op for op in home if op not in taken]
        together = rng.random() < 0.5
        if len(free) < 1 + together:
            continue
        if together and rng.random() < 0.5:  # neighbours, as fused ops are
            at = int(rng.integers(len(free) - 1))
            ops = free[at : at + 2]
        else:
            ops = list(rng.choice(free, 1 + together, replace=False))
        fault = Fault(frozenset(map(str, ops)), str(ops[-1]))
        if shows(case, fault):
            chosen.append(fault)
    if not chosen:
        return None
    return replace(case, faults=tuple(chosen))


def shows(case: Case, fault: Fault) -> bool:
    """Whether a fault by itself makes some output different, beyond doubt."""
    outputs, _ = case.runs((fault,)).run(case.placement)
    bound = case.placed.bound
    named = dict(zip(Reference(bound)(case.arrays), outputs, strict=True))
    agreement = compare_with_reference(bound, case.arrays, named, case.precision)
    return any(a.verdict == "different" and a.relative_error > 2 * a.tolerance for a in agreement)


def search(case: Case, costs: CostModel | None = None) -> Wrong:
    with case.runs() as runs:
        return search_wrong(runs, costs=costs)


def found_sets(wrong: Wrong) -> set[frozenset[str]]:
    return {frozenset(found.ops) for found in wrong.sets}


def complaint(case: Case, wrong: Wrong) -> str:
    """Say what is wrong with an answer, or nothing."""
    injected = {fault.ops for fault in case.faults}
    found = found_sets(wrong)
    if injected != found:
        missed, extra = injected - found, found - injected
        return f"missed {[sorted(s) for s in missed]}, extra {[sorted(s) for s in extra]}"
    kind = "op" if all(len(ops) == 1 for ops in injected) else "combination"
    if wrong.kind != kind:
        return f"kind {wrong.kind} instead of {kind}"
    return "" if wrong.proven else "the way out was not proven"


def run_faults(graphs: int, first_seed: int) -> bool:
    tally: Counter[str] = Counter()
    compiles: list[int] = []
    seed = first_seed
    while tally["graphs"] < graphs:
        case = with_faults(placed_graph(seed), seed)
        seed += 1
        if case is None:
            continue
        wrong = search(case)
        said = complaint(case, wrong)
        injected, found = {f.ops for f in case.faults}, found_sets(wrong)
        tally["graphs"] += 1
        tally["found"] += len(injected & found)
        tally["missed"] += len(injected - found)
        tally["extra"] += len(found - injected)
        tally["right"] += not said
        tally[f"with faults of {'+'.join(str(len(f.ops)) for f in case.faults)} ops"] += 1
        tally[case.precision] += 1
        compiles.append(wrong.n_compiles)
        if said:
            print(f"seed {seed - 1}, {case.precision}: {said}", flush=True)
    print(", ".join(f"{name}: {n}" for name, n in tally.items()))
    print(f"compiles: median {np.median(compiles):g}, most {max(compiles)}")
    return tally["right"] == graphs


def big_case(together: bool, n_ops: int = 1000) -> Case:
    """Return a model of many ops with one culprit, of one op or two."""
    hl.emulate(SUSPECT)
    prepared = prepare(residual_model(n_ops))
    affinity = Affinity.uniform(prepared, SUSPECT)
    f32 = {SUSPECT: {"INFERENCE_PRECISION_HINT": "f32"}}
    arrays = bind_inputs(prepared, generate_inputs(prepared))
    case = Case(prepared, Placement(affinity, "placed", f32, direct=True), "f32", arrays, ())
    nodes = {n.get_friendly_name(): n for n in prepared.model.get_ordered_ops()}
    ops = [op for op in affinity.ops if can_be_wrong(nodes[op])]
    # Far from the outputs, activations have squeezed a fault away.
    for at in range(len(ops) - 40, len(ops)):
        chosen = ops[at : at + 1 + together]
        fault = Fault(frozenset(chosen), chosen[-1])
        if shows(case, fault):
            return replace(case, faults=(fault,))
    raise AssertionError("no fault shows at the outputs")


def run_big(together: bool) -> bool:
    case = big_case(together)
    began = time.perf_counter()
    wrong = search(case)
    said = complaint(case, wrong)
    n = len(case.prepared.graph.placeable)
    what = "two ops together" if together else "one op"
    print(
        f"{n} ops, {what} wrong: {said or 'found'}, {wrong.n_compiles} compiles, "
        f"{time.perf_counter() - began:.0f} s"
    )
    return not said and wrong.n_compiles <= MOST_COMPILES


def main() -> int:
    """Run all three, or as many graphs as asked for."""
    given = options(__doc__, graphs=200, seed=0)
    good = [
        run_faults(given.graphs, given.seed),
        run_big(together=False),
        run_big(together=True),
    ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
