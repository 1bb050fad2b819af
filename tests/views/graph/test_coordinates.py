from __future__ import annotations

import itertools

import numpy as np
import pytest
from views.graph.test_layers import random_edges

from hetero_lab.views.graph import coordinates as spreading
from hetero_lab.views.graph.coordinates import Wire, assign_coordinates, isotonic
from hetero_lab.views.graph.layers import find_layers


def spread_randomly(seed: int):
    n, edges = random_edges(seed)
    rng = np.random.default_rng(seed)
    breadth = [float(b) for b in rng.integers(5, 60, size=n)]
    wires = [Wire(a, b) for a, b in set(edges) if a != b]
    return assign_coordinates(find_layers(n, edges), breadth, wires, gap=6.0, lane=4.0), breadth


@pytest.mark.parametrize("most_straightened", [0, 10_000])
@pytest.mark.parametrize("seed", range(25))
def test_nothing_overlaps_and_all_stays(seed, most_straightened, monkeypatch):
    monkeypatch.setattr(spreading, "MOST_IDS_TO_STRAIGHTEN", most_straightened)
    found, breadth = spread_randomly(seed)
    size = [*breadth, *[4.0] * (found.layers.n_ids - len(breadth))]
    for rank in found.layers.ranks:
        for a, b in itertools.pairwise(rank):
            free = found.middle[b] - found.middle[a] - (size[a] + size[b]) / 2
            assert free >= 0.2 * 6.0 - 1e-6
    placed = [vertex for rank in found.layers.ranks for vertex in rank]
    assert sorted(placed) == list(range(found.layers.n_ids))


def test_a_chain_is_straight_where_its_wires_touch():
    wires = [Wire(0, 1, 5.0, -3.0), Wire(1, 2, -3.0, 0.0)]
    layers = find_layers(3, [(0, 1), (1, 2)])
    middle = assign_coordinates(layers, [30.0, 10.0, 20.0], wires, 6.0, 4.0).middle
    assert middle[0] + 5.0 == pytest.approx(middle[1] - 3.0)
    assert middle[1] - 3.0 == pytest.approx(middle[2])


def test_two_branches_of_different_sizes_are_both_straight():
    # 0 → (1 → 3 → 5), (2 → 4 → 6) → 7, with one big vertex in each branch.
    edges = [(0, 1), (1, 3), (3, 5), (0, 2), (2, 4), (4, 6), (5, 7), (6, 7)]
    breadth = [10.0, 10.0, 10.0, 50.0, 10.0, 10.0, 40.0, 10.0]
    found = assign_coordinates(find_layers(8, edges), breadth, [Wire(*e) for e in edges], 6.0, 4.0)
    m = found.middle
    assert m[1] == pytest.approx(m[3]) == pytest.approx(m[5])
    assert m[2] == pytest.approx(m[4]) == pytest.approx(m[6])
    assert min(m[1], m[2]) <= m[0] <= max(m[1], m[2])


def test_the_order_follows_where_wires_leave():
    # Vertex 0 has two exits; 1 hangs on the lower one, 2 on the upper one.
    wires = [Wire(0, 1, source_offset=20.0), Wire(0, 2, source_offset=-20.0)]
    found = assign_coordinates(
        find_layers(3, [(0, 1), (0, 2)]), [60.0, 10.0, 10.0], wires, 6.0, 4.0
    )
    middle = found.middle
    assert middle[2] < middle[1]
    assert middle[1] - middle[0] == pytest.approx(20.0)


@pytest.mark.parametrize("seed", range(20))
def test_isotonic_regression_against_the_minimax_formula(seed):
    rng = np.random.default_rng(seed)
    values, weights = rng.normal(size=7), rng.uniform(0.1, 2, size=7)

    def mean(a: int, b: int) -> float:
        return float(np.average(values[a : b + 1], weights=weights[a : b + 1]))

    expected = [max(min(mean(a, b) for b in range(i, 7)) for a in range(i + 1)) for i in range(7)]
    assert isotonic(values, weights) == pytest.approx(expected)
