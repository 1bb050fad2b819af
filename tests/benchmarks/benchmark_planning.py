"""How partition, prediction and planning grow with the model, and what one change of an op costs.

Run by hand: ``python -m tests.benchmarks.benchmark_planning [--ops 1000 10000 100000] [--plan]``.
The models are synthetic: transformer layers with an attention mask that every layer reads. Each
size runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import gc
import hashlib
import json
import math
import resource
import time
from collections.abc import Callable, Iterator

import numpy as np

from hetero_lab.model.opgraph import Op, OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import SubgraphCollector, predict
from hetero_lab.planning.cost_model import BoundaryCost, CostModel, LostFusion, Unit
from hetero_lab.planning.min_cut import min_cut
from hetero_lab.planning.pairwise import Pairwise
from hetero_lab.planning.planner import plan_graph as plan
from hetero_lab.planning.units import fused_pairs, split_into_units
from tests.big_graphs import transformer_graph
from tests.scripts import in_own_process, options

WIDTH = 768
FUSED = {("MatMul", "Add"), ("MatMul", "Gelu"), ("MVN", "Multiply")}
DEVICES = ("ACC", "CPU")
# Which types the accelerator of each kind leaves to the CPU.
KINDS: dict[str, Callable[[Op], bool]] = {
    "matmuls only": lambda op: op.type != "MatMul",
    "no activations": lambda op: op.type in ("Softmax", "Gelu"),
    "no softmax, no normalisation": lambda op: op.type in ("Softmax", "MVN"),
    "one op in twenty": lambda op: _number(op.name) % 20 == 0,
    "half of the ops": lambda op: _number(op.name) % 2 == 0,
}


def _number(name: str) -> int:
    return int(hashlib.md5(name.encode()).hexdigest(), 16)


def fused_groups(graph: OpGraph) -> Iterator[list[str]]:
    """Yield the ops that a device runs as one node: what follows a matmul or a normalisation."""
    for op in graph:
        first = graph.ops[op.inputs[0][0]] if op.inputs else op
        if (first.type, op.type) in FUSED:
            yield [first.name, op.name]


def costs_of(graph: OpGraph, groups: list[list[str]], on_cpu: Callable[[Op], bool]) -> CostModel:
    """Return costs such as were seen of an emulated bf16 device beside an f32 CPU."""
    placeable = [graph.ops[index] for index in graph.placeable]
    support = {
        "ACC": {op.name for op in placeable if not on_cpu(op)},
        "CPU": {op.name for op in placeable},
    }
    fused = dict.fromkeys(DEVICES, groups)

    def time_us(op: Op, device: str) -> float:
        moved = op.outputs[0].n_bytes or 0
        if op.type == "MatMul":
            return moved / 4 * WIDTH * 2 / (6e5 if device == "ACC" else 2e5)
        return moved / 2e4

    units = [
        Unit(
            ops,
            tuple(
                sum(time_us(graph.ops[graph.index_of[op]], device) for op in ops)
                if set(ops) <= support[device]
                else None
                for device in DEVICES
            ),
        )
        for ops in split_into_units(graph, support, fused)
    ]
    return CostModel(
        graph=graph,
        devices=DEVICES,
        units=tuple(units),
        boundaries={(a, b): BoundaryCost(2.0, 2e-5) for a in DEVICES for b in DEVICES},
        subgraph_us={"ACC": 4.0, "CPU": 3.0},
        constant_us=20.0,
        lost_fusion=tuple(
            LostFusion(first, second, (1.0, 1.0), (2.0, 2.0))
            for first, second, _ in fused_pairs(graph, fused)
        ),
    )


def timed(function: Callable[[], object], repeat: int = 1) -> float:
    """Return the least time of several runs in s."""
    best = math.inf
    for _ in range(repeat):
        started = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - started)
    return best


def one_size(n_ops: int, with_plan: bool) -> list[dict[str, object]]:
    """Measure one size; every kind of accelerator with its greedy placement."""
    started = time.perf_counter()
    graph = transformer_graph(n_ops, masked=True)
    groups = [*fused_groups(graph)]
    _ = graph.leader
    built = time.perf_counter() - started
    rows: list[dict[str, object]] = []
    for kind, on_cpu in KINDS.items():
        started = time.perf_counter()
        costs = costs_of(graph, groups, on_cpu)
        pairwise = Pairwise.build(costs.objective)
        laid_out = time.perf_counter() - started
        greedy = Affinity.from_graph(
            graph,
            lambda name: DEVICES[on_cpu(graph.ops[graph.index_of[name]])],  # noqa: B023
        )
        row: dict[str, object] = {
            "ops": len(graph.placeable),
            "kind": kind,
            "subgraphs": costs.predictor(greedy).n_subgraphs,
            "graph_s": built,
            "costs_s": laid_out,
            "partition_s": timed(lambda: partition_anew(graph, greedy), 2),  # noqa: B023
            "predict_s": timed(lambda: costs.predict_us(greedy), 2),  # noqa: B023
            "min_cut_s": timed(lambda: min_cut(pairwise), 2),  # noqa: B023
            **one_change(costs, greedy),
        }
        if with_plan:
            started = time.perf_counter()
            found = plan(graph, costs, budget_s=30)
            row["plan_s"] = time.perf_counter() - started
            row["plan"] = f"{found!r}, greedy {found.regret['greedy']:+.0f} µs"
        row["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rows.append(row)
    return rows


def partition_anew(graph: OpGraph, affinity: Affinity) -> None:
    """Predict without cuts memoised from other placements."""
    collector = SubgraphCollector.of(graph)
    collector.convexity_memo = type(collector.convexity_memo)()
    collector.cycle_memo = type(collector.cycle_memo)()
    predict(graph, affinity)


def one_change(costs: CostModel, affinity: Affinity) -> dict[str, float]:
    """Measure the re-prediction of a change of one op, over many ops, in ms."""
    rng = np.random.default_rng(0)
    both = sorted(costs.supports("ACC"))
    start = costs.predictor(affinity)
    moves = min(60, 400_000 // len(costs.graph.placeable))
    times = []
    gc.disable()  # a collection of all objects takes as long as some moves, and hits any of them
    for name in rng.choice(both, moves):
        to = "CPU" if affinity[str(name)] == "ACC" else "ACC"
        began = time.perf_counter()
        _ = start.moved({str(name): to}).predicted_us
        times.append(time.perf_counter() - began)
    gc.enable()
    return {
        "change_ms": float(np.median(times)) * 1e3,
        "change_p90_ms": float(np.percentile(times, 90)) * 1e3,
    }


def main() -> None:
    """Print the table and the exponents."""
    # --one is for the process of one size; plans are made of up to 10,000 ops.
    given = options(__doc__, ops=[1000, 10_000, 100_000], plan=False, one=int)
    if given.one:
        print(json.dumps(one_size(given.one, given.plan and given.one <= 10_000)))
        return
    totals: dict[str, list[tuple[int, float]]] = {}
    for n_ops in given.ops:
        asked = ["--one", n_ops, *["--plan"] * given.plan]
        for row in in_own_process("tests.benchmarks.benchmark_planning", *asked):
            total = row["partition_s"] + row["predict_s"] + row["min_cut_s"]
            totals.setdefault(row["kind"], []).append((row["ops"], total))
            print(
                f"{row['ops']:>7} ops, {row['kind']:<28} {row['subgraphs']:>6} subgraphs: "
                f"partition {row['partition_s']:.3f} s, prediction {row['predict_s']:.3f} s, "
                f"min_cut {row['min_cut_s']:.3f} s, together {total:.3f} s "
                f"(graph {row['graph_s']:.2f} s, costs {row['costs_s']:.2f} s, peak "
                f"{row['peak_mib']:.0f} MiB); one op changed {row['change_ms']:.2f} ms, "
                f"p90 {row['change_p90_ms']:.2f} ms"
            )
            if "plan" in row:
                print(f"        plan {row['plan_s']:.1f} s: {row['plan']}")
    for kind, points in totals.items():
        if len(points) > 1:
            (first, a), (last, b) = points[0], points[-1]
            exponent = math.log(b / a) / math.log(last / first)
            print(f"{kind}: time grows with the number of ops to the power of {exponent:.2f}")


if __name__ == "__main__":
    main()
