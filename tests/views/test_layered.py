from __future__ import annotations

import itertools

import numpy as np
import pytest

from hetero_lab.views.layered import Wire, assign_coordinates, find_layers


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


def test_graphs_without_edges_that_count():
    assert find_layers(0, []).ranks == ()
    assert find_layers(3, []).ranks == ((0, 1, 2),)
    # Repeated edges, loops and backward edges do not count.
    assert find_layers(2, [(0, 1), (0, 1), (1, 1), (1, 0)]).ranks == ((0,), (1,))


@pytest.mark.parametrize("seed", range(20))
def test_every_wire_goes_from_rank_to_rank_and_nothing_overlaps(seed):
    n, edges = random_edges(seed)
    breadth = [float(b) for b in np.random.default_rng(seed).integers(5, 60, size=n)]
    wires = [Wire(a, b) for a, b in set(edges) if a != b]
    layers, middle = assign_coordinates(breadth, wires, gap=6.0, lane=4.0)
    assert sorted(itertools.chain(*layers.ranks)) == list(range(layers.n_ids))
    rank_of = {vertex: r for r, rank in enumerate(layers.ranks) for vertex in rank}
    for wire in wires:
        ranks = [rank_of[vertex] for vertex in layers.chain(wire.source, wire.target)]
        assert ranks == list(range(rank_of[wire.source], rank_of[wire.target] + 1))
    size = [*breadth, *[4.0] * (layers.n_ids - n)]
    for a, b in itertools.chain(*map(itertools.pairwise, layers.ranks)):
        assert middle[b] - middle[a] - (size[a] + size[b]) / 2 >= 0.2 * 6.0 - 1e-6


def test_a_chain_is_straight_where_its_wires_touch():
    wires = [Wire(0, 1, 5.0, -3.0), Wire(1, 2, -3.0, 0.0)]
    _, middle = assign_coordinates([30.0, 10.0, 20.0], wires, 6.0, 4.0)
    assert middle[0] + 5.0 == pytest.approx(middle[1] - 3.0)
    assert middle[1] - 3.0 == pytest.approx(middle[2])


def test_two_branches_of_different_sizes_are_both_straight():
    # 0 → (1 → 3 → 5), (2 → 4 → 6) → 7, with one big vertex in each branch.
    edges = [(0, 1), (1, 3), (3, 5), (0, 2), (2, 4), (4, 6), (5, 7), (6, 7)]
    breadth = [10.0, 10.0, 10.0, 50.0, 10.0, 10.0, 40.0, 10.0]
    _, m = assign_coordinates(breadth, [Wire(*edge) for edge in edges], 6.0, 4.0)
    assert m[1] == pytest.approx(m[3]) == pytest.approx(m[5])
    assert m[2] == pytest.approx(m[4]) == pytest.approx(m[6])
    assert min(m[1], m[2]) <= m[0] <= max(m[1], m[2])


def test_the_order_follows_where_wires_leave():
    # Vertex 0 has two exits; 1 hangs on the lower one, 2 on the upper one.
    wires = [Wire(0, 1, source_offset=20.0), Wire(0, 2, source_offset=-20.0)]
    _, middle = assign_coordinates([60.0, 10.0, 10.0], wires, 6.0, 4.0)
    assert middle[2] < middle[1]
    assert middle[1] - middle[0] == pytest.approx(20.0)
