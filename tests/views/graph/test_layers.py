from __future__ import annotations

import numpy as np
import pytest

from hetero_lab.views.graph.layers import find_layers


def random_edges(seed: int) -> tuple[int, list[tuple[int, int]]]:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40))
    pairs = rng.integers(0, n, size=(int(rng.integers(0, 2 * n)), 2))
    return n, [(int(min(pair)), int(max(pair))) for pair in pairs]


def test_a_diamond_with_a_short_cut():
    layers = find_layers(4, [(0, 1), (0, 2), (1, 3), (2, 3), (0, 3)])
    assert layers.ranks[0] == (0,)
    assert layers.ranks[2] == (3,)
    (passing,) = layers.passing[0, 3]
    assert sorted(layers.ranks[1]) == [1, 2, passing]
    assert layers.chain(0, 3) == (0, passing, 3)
    assert layers.chain(0, 1) == (0, 1)


def test_no_edges_no_vertices():
    assert find_layers(0, []).ranks == ()
    assert find_layers(3, []).ranks == ((0, 1, 2),)


def test_repeated_edges_loops_and_backward_edges_do_not_count():
    assert find_layers(2, [(0, 1), (0, 1), (1, 1), (1, 0)]).ranks == ((0,), (1,))


@pytest.mark.parametrize("seed", range(60))
def test_every_wire_goes_from_rank_to_rank(seed):
    n, edges = random_edges(seed)
    layers = find_layers(n, edges)
    placed = [vertex for rank in layers.ranks for vertex in rank]
    assert sorted(placed) == list(range(layers.n_ids))
    rank_of = {vertex: r for r, rank in enumerate(layers.ranks) for vertex in rank}
    for a, b in edges:
        if a != b:
            ranks = [rank_of[vertex] for vertex in layers.chain(a, b)]
            assert ranks == list(range(rank_of[a], rank_of[b] + 1))
