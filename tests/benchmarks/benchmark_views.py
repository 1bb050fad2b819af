"""How long the placement graph of a big model takes to be drawn.

Run by hand: ``python -m tests.benchmarks.benchmark_views``. A model of 5,000 ops has to be drawn
in less than 3 s, as one subgraph and as thousands, with scopes in its names and without.
"""

from __future__ import annotations

import time

from hetero_lab.placement.partition import predict
from hetero_lab.views.graph_data import graph_data
from hetero_lab.views.graph_drawing import draw
from hetero_lab.views.graph_folding import Shown
from tests.big_graphs import by_type, transformer_graph

LIMIT_S = 3.0
PLACEMENTS = {
    "one device": set(),
    "softmax on CPU": {"Softmax"},
    "four types on CPU": {"Softmax", "MVN", "Add", "Gelu"},
}


def main() -> int:
    """Print a line a graph; return 1 if one of 5,000 ops takes too long."""
    slowest = 0.0
    print(f"{'ops':>6} {'names':8} {'placement':18} {'subgraphs':>9} {'seconds':>8} {'MB':>6}")
    for n_ops in (1000, 5000):
        for scoped in (True, False):
            graph = transformer_graph(n_ops, scoped=scoped)
            for name, types in PLACEMENTS.items():
                affinity = by_type(graph, types)
                partition = predict(graph, affinity)
                started = time.perf_counter()
                figure = draw(Shown().of(graph_data(graph, affinity, partition)))
                size = len(figure.to_json()) / 1e6
                took = time.perf_counter() - started
                slowest = max(slowest, took)
                print(
                    f"{len(graph.placeable):6} {'scopes' if scoped else 'flat':8} {name:18} "
                    f"{partition.n_subgraphs:9} {took:8.2f} {size:6.2f}",
                    flush=True,
                )
    print(f"slowest: {slowest:.2f} s, allowed: {LIMIT_S:.0f} s")
    return int(slowest > LIMIT_S)


if __name__ == "__main__":
    raise SystemExit(main())
