"""How partition, prediction and planning grow with the model, and what one change of an op costs.

Run by hand: ``python tests/benchmarks/benchmark_planning.py [--ops 1000 10000 100000] [--plan]``.
The models are synthetic: transformer layers with an attention mask that every layer reads. Each
size runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from hetero_lab.model.opgraph import Op, OpGraph, Tensor
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import SubgraphCollector, predict
from hetero_lab.planning.cost_model import BoundaryCost, CostModel, LostFusion, Unit
from hetero_lab.planning.min_cut import min_cut
from hetero_lab.planning.pairwise import Pairwise
from hetero_lab.planning.planner import plan_graph as plan
from hetero_lab.planning.units import fused_pairs, split_into_units

TOKENS, WIDTH, HEADS = 64, 384, 6
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


class Maker:
    """Build a transformer op by op."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.groups: list[list[str]] = []
        self.layer = 0

    def add(self, op_type: str, inputs: list[int], shape: tuple[int, ...], name: str = "") -> int:
        """Add an op with one output."""
        index = len(self.ops)
        tensor = Tensor(shape, "f32", 4 * math.prod(shape), "")
        outputs = () if op_type == "Result" else (tensor,)
        label = f"layer{self.layer}/{name or op_type.lower()}{index}"
        self.ops.append(Op(index, label, op_type, tuple((i, 0) for i in inputs), outputs))
        return index

    def constant(self, *shape: int) -> int:
        """Add a constant."""
        return self.add("Constant", [], shape)

    def fuse(self, *indices: int) -> None:
        """Note that a device runs these ops as one node."""
        self.groups.append([self.ops[i].name for i in indices])

    def linear(self, x: int, wide: int, out: int, activation: str = "") -> int:
        """Add matmul, bias and perhaps an activation, which fuse."""
        product = self.add("MatMul", [x, self.constant(wide, out)], (1, TOKENS, out))
        y = self.add("Add", [product, self.constant(1, 1, out)], (1, TOKENS, out))
        group = [product, y]
        if activation:
            y = self.add(activation, [y], (1, TOKENS, out))
            group.append(y)
        self.fuse(*group)
        return y

    def heads(self, x: int) -> int:
        """Add the split into heads."""
        shape = (1, TOKENS, HEADS, WIDTH // HEADS)
        y = self.add("Reshape", [x, self.constant(4)], shape)
        return self.add("Transpose", [y, self.constant(4)], shape)

    def norm(self, x: int) -> int:
        """Add a layer normalisation."""
        y = self.add("MVN", [x, self.constant(1)], (1, TOKENS, WIDTH))
        z = self.add("Multiply", [y, self.constant(WIDTH)], (1, TOKENS, WIDTH))
        last = self.add("Add", [z, self.constant(WIDTH)], (1, TOKENS, WIDTH))
        self.fuse(y, z, last)
        return last

    def block(self, x: int, mask: int) -> int:
        """Add a layer of 28 ops."""
        q, k, v = (self.heads(self.linear(x, WIDTH, WIDTH)) for _ in range(3))
        square = (1, HEADS, TOKENS, TOKENS)
        scores = self.add("MatMul", [q, k], square)
        scaled = self.add("Multiply", [scores, self.constant(1)], square)
        masked = self.add("Add", [scaled, mask], square)
        weights = self.add("Softmax", [masked], square)
        mixed = self.add("MatMul", [weights, v], (1, HEADS, TOKENS, WIDTH // HEADS))
        back = self.heads(mixed)
        x = self.norm(self.add("Add", [x, self.linear(back, WIDTH, WIDTH)], (1, TOKENS, WIDTH)))
        inner = self.linear(self.linear(x, WIDTH, 4 * WIDTH, "Gelu"), 4 * WIDTH, WIDTH)
        x = self.norm(self.add("Add", [x, inner], (1, TOKENS, WIDTH)))
        self.layer += 1
        return x


def transformer(n_ops: int) -> tuple[OpGraph, list[list[str]]]:
    """Return a graph with about ``n_ops`` placeable ops, and its fusion groups."""
    maker = Maker()
    tokens = maker.add("Parameter", [], (1, TOKENS, WIDTH), "tokens")
    given = maker.add("Parameter", [], (1, 1, 1, TOKENS), "mask")
    mask = maker.add("Multiply", [given, maker.constant(1)], (1, 1, 1, TOKENS))
    x = maker.add("Add", [tokens, maker.constant(1, TOKENS, WIDTH)], (1, TOKENS, WIDTH))
    per_layer = 0
    while not per_layer or 2 + (maker.layer + 0.5) * per_layer < n_ops:
        before = sum(op.type != "Constant" for op in maker.ops)
        x = maker.block(x, mask)
        per_layer = sum(op.type != "Constant" for op in maker.ops) - before
    result = maker.add("Result", [x], (1, TOKENS, WIDTH))
    graph = OpGraph(f"transformer{n_ops}", tuple(maker.ops), (tokens, given), (result,))
    return graph, maker.groups


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
    graph, groups = transformer(n_ops)
    _ = graph.leader
    built = time.perf_counter() - started
    rows: list[dict[str, object]] = []
    for kind, on_cpu in KINDS.items():
        started = time.perf_counter()
        costs = costs_of(graph, groups, on_cpu)
        pairwise = Pairwise.build(costs.objective, [unit.ops for unit in costs.units])
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--plan", action="store_true", help="also plan, up to 10,000 ops")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one_size(options.one, options.plan and options.one <= 10_000)))
        return
    totals: dict[str, list[tuple[int, float]]] = {}
    for n_ops in options.ops:
        command = [sys.executable, __file__, "--one", str(n_ops)] + ["--plan"] * options.plan
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        for row in json.loads(done.stdout.splitlines()[-1]):
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
