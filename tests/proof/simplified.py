"""Try hl.simplify on networks that the samples lack, against fixes by hand and brute force.

python -m tests.proof.simplified                # partitions: 12 networks, five masks each
python -m tests.proof.simplified --random 300   # causes: random graphs and masks
python -m tests.proof.simplified --race         # latency: simplified against greedy
python -m tests.proof.simplified --large 2000   # the time that a large network takes

``--only yolo_dfl unet`` takes some of the networks.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator

import numpy as np

import hetero_lab as hl
from hetero_lab.devices.core import bind
from hetero_lab.model.blocks import find_blocks
from hetero_lab.model.opgraph import OpGraph, work_of
from hetero_lab.placement.affinity import Affinity, first_able
from hetero_lab.placement.partition import predict
from hetero_lab.placement.subgraph_causes import Division
from hetero_lab.planning.simplify import Simplified, simplify_graph
from tests.network_zoo import ZOO, encoder
from tests.random_models import random_model

KEEP = 0.5


def masks(graph: OpGraph, n: int, seed: int = 0) -> Iterator[frozenset[str]]:
    """Yield sets of op types that a device may lack: single ones first, then several."""
    types = sorted({graph.ops[index].type for index in graph.placeable})
    usual = [t for t in ("Softmax", "Concat", "Interpolate", "MVN", "Sigmoid") if t in types]
    rng = np.random.default_rng(seed)
    made = [frozenset([t]) for t in usual[:3]]
    while len(made) < n:
        size = int(rng.integers(1, min(4, len(types))))
        made.append(frozenset(rng.choice(types, size=size, replace=False).tolist()))
    yield from made[:n]


def support_of(graph: OpGraph, lacking: frozenset[str]) -> dict[str, set[str]]:
    everything = {op.name for op in graph}
    return {"ACC": {op.name for op in graph if op.type not in lacking}, "CPU": everything}


class Tried:
    """Fixes by hand of a placement, as people try them."""

    def __init__(self, graph: OpGraph, affinity: Affinity, support: dict[str, set[str]]):
        self.graph, self.division = graph, Division(graph, affinity, support)
        work = np.zeros(len(graph))
        for index in graph.placeable:
            work[index] = work_of(graph, graph.ops[index])
        self.work = work / work.sum()
        self.to = self.division.devices.index("CPU")
        self.culprits = [i for i in graph.placeable if affinity[graph.ops[i].name] == "CPU"]

    def n_subgraphs(self, nodes) -> int | None:
        choice = self.division.moved(list(nodes), self.to)
        if self.work[choice != self.division.start].sum() > 1.0 - KEEP:
            return None
        return self.division.n_subgraphs(choice)

    def by_hand(self) -> Iterator[int | None]:
        graph = self.graph
        for some in (self.culprits, self.culprits[:1], self.culprits[-1:]):
            after, before = (graph.reach(some, forward=forward) for forward in (True, False))
            yield from map(self.n_subgraphs, (after, before, after & before))
        blocks = find_blocks(graph)
        for block in range(blocks.n_blocks):
            yield self.n_subgraphs(i for i, b in enumerate(blocks.of_op) if b == block)

    def stretches(self) -> Iterator[int | None]:
        order = list(self.graph.placeable)
        for first in range(len(order)):
            for last in range(first + 1, len(order) + 1):
                choice = self.division.moved(order[first:last], self.to)
                if self.division.components(choice)[0] <= 3:  # a part is at least one subgraph
                    yield self.n_subgraphs(order[first:last])


def check_partitions(names: list[str], n_masks: int, brute: bool) -> int:
    bad = 0
    for name in names:
        graph = bind(hl.load(ZOO[name]())).graph
        for lacking in masks(graph, n_masks):
            support = support_of(graph, lacking)
            affinity = first_able(graph, support)
            began = time.perf_counter()
            found = simplify_graph(graph, affinity, support, keep=KEEP)
            took_s = time.perf_counter() - began
            ours = predict(graph, found.affinity).n_subgraphs
            tried = Tried(graph, affinity, support)
            hand = min((n for n in tried.by_hand() if n is not None), default=10**6)
            best = min((n for n in tried.stretches() if n), default=10**6) if brute else 0
            wrong = ours > hand or (brute and best <= 3 < ours)
            bad += wrong
            before = predict(graph, affinity).n_subgraphs
            print(
                f"{name:15} {len(graph.placeable):4} ops {before:4} -> {ours:3}, by hand "
                f"{hand if hand < 10**6 else '-':>3}, "
                f"stretches {best if best < 10**6 else '-':>3}, {took_s:5.2f} s  "
                f"{','.join(sorted(lacking))}{'  WRONG' if wrong else ''}",
                flush=True,
            )
            bad += not cause_is_true(graph, affinity, support, found)
    return bad


def cause_is_true(
    graph: OpGraph, affinity: Affinity, support: dict[str, set[str]], found: Simplified
) -> bool:
    """Mark the culprits as supported: the partition must have as many subgraphs as was said."""
    cause = found.cause
    if not cause.ops:
        return True
    with_them = {
        d: ops | set(cause.ops) if d == cause.device else ops for d, ops in support.items()
    }
    after = predict(graph, first_able(graph, with_them)).n_subgraphs
    if after != cause.n_without:
        print(f"FALSE: {cause.text} In truth {after}.")
    return after == cause.n_without


def check_causes(n: int, seed: int) -> int:
    bad = 0
    for number in range(n):
        graph = bind(hl.load(random_model(seed + number, 4 + number % 40))).graph
        rng = np.random.default_rng(seed + number)
        types = sorted({graph.ops[i].type for i in graph.placeable})
        size = int(rng.integers(1, len(types) + 1))
        support = support_of(graph, frozenset(rng.choice(types, size=size, replace=False).tolist()))
        if number % 3 == 0:  # a third device between
            some = {op.name for op in graph if op.type not in rng.choice(types, size=1)}
            support = {"ACC": support["ACC"], "NPX": some, "CPU": support["CPU"]}
        affinity = first_able(graph, support)
        bad += not cause_is_true(graph, affinity, support, simplify_graph(graph, affinity, support))
    return bad


def check_time(n_ops: int, n_masks: int) -> None:
    """Print how long an encoder of about so many ops takes."""
    per_layer = len(bind(hl.load(encoder(4))).graph.placeable) / 4
    graph = bind(hl.load(encoder(round(n_ops / per_layer)))).graph
    for lacking in masks(graph, n_masks):
        support = support_of(graph, lacking)
        affinity = first_able(graph, support)
        began = time.perf_counter()
        found = simplify_graph(graph, affinity, support, keep=KEEP)
        took_s = time.perf_counter() - began
        print(f"{len(graph.placeable)} ops, {took_s:.2f} s  {found.remark}", flush=True)


def race(names: list[str], n_masks: int, budget_s: float) -> None:
    """Measure greedy and simplified in turns, on an emulated device in f32."""
    f32 = {"INFERENCE_PRECISION_HINT": "f32"}
    counts: dict[str, int] = {}
    for name in names:
        model = hl.load(ZOO[name]())
        for lacking in masks(bind(model).graph, n_masks):
            hl.emulate("ACC", unsupported=lacking, properties=f32)
            greedy = hl.Affinity.automatic(model, "HETERO:ACC,CPU")
            found = hl.simplify(model, greedy)
            if found.best is None:
                print(f"{name:15} no change  {','.join(sorted(lacking))}", flush=True)
                continue
            own = {"ACC": f32, "CPU": f32}
            placements = {
                "greedy": hl.Placement(greedy, "greedy", own),
                "simplified": hl.Placement(found.affinity, "simplified", own),
            }
            sweep = hl.sweep(
                model, placements, budget_s=budget_s, baselines=False, counters=False,
                reference=False, progress=False,
            )  # fmt: skip
            row = sweep.summary.set_index("label").loc["simplified"]
            low, high = row["ratio_ci95_low"], row["ratio_ci95_high"]
            said = "faster" if high < 1 else "slower" if low > 1 else "same"
            counts[said] = counts.get(said, 0) + 1
            before = int(sweep.summary.set_index("label").loc["greedy"]["n_subgraphs"])
            print(
                f"{name:15} {before:4} -> {int(row['n_subgraphs']):3}  {row['ratio']:.3f} "
                f"[{low:.3f}, {high:.3f}] {said:7} {','.join(sorted(lacking))}",
                flush=True,
            )
    print(counts)


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--masks", type=int, default=5)
    parser.add_argument("--no-brute", action="store_true")
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--race", action="store_true")
    parser.add_argument("--budget", type=float, default=8.0)
    parser.add_argument("--large", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=list(ZOO), choices=list(ZOO))
    given = parser.parse_args()
    if given.race:
        race(given.only, given.masks, given.budget)
    elif given.large:
        check_time(given.large, given.masks)
    elif given.random:
        print(check_causes(given.random, given.seed), "causes false")
    else:
        print(check_partitions(given.only, given.masks, not given.no_brute), "wrong")


if __name__ == "__main__":
    main()
