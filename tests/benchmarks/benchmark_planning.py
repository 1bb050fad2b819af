"""How partition, prediction and planning grow with the model, and what one change of an op costs.

Run by hand: ``python -m tests.benchmarks.benchmark_planning [--ops 1000 10000 100000] [--plan]``.
The models are synthetic: transformer layers with an attention mask that every layer reads. Each
size runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import gc
import json
import math
import resource
import time
from collections.abc import Callable

import numpy as np

from hetero_lab.costs.cost_model import CostModel
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import SubgraphCollector, predict
from hetero_lab.planning.pairwise_minimum import min_cut
from hetero_lab.planning.planner import plan_graph as plan
from hetero_lab.planning.problem import Pairwise
from tests.big_graphs import by_type, transformer_graph
from tests.hand_costs import flat_costs
from tests.scripts import in_own_process, options

DEVICES = ("ACC", "CPU")
# Which types the accelerator of each kind leaves to the CPU.
KINDS = {
    "matmuls only": {"Reshape", "Transpose", "Add", "Multiply", "MVN", "Softmax", "Gelu", "Gather"},
    "no activations": {"Softmax", "Gelu"},
    "no softmax, no normalisation": {"Softmax", "MVN"},
}


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
    _ = graph.leader
    built = time.perf_counter() - started
    rows: list[dict[str, object]] = []
    for kind, on_cpu in KINDS.items():
        started = time.perf_counter()
        costs = flat_costs(graph, devices=DEVICES, lacks=on_cpu, constant_us=20.0)
        pairwise = Pairwise.build(costs.objective)
        laid_out = time.perf_counter() - started
        greedy = by_type(graph, on_cpu)
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
