from __future__ import annotations

import itertools

import pytest
from big_graphs import by_type
from views.hand_made import predicted_data, random_data, small_profile

import hetero_lab as hl
from hetero_lab.model.read import prepare
from hetero_lab.views.graph_data import GraphData, data_of_profile
from hetero_lab.views.graph_layout import (
    DENSE,
    ROOMY,
    Strip,
    break_into_rows,
    choose_cuts,
    extent_of,
    lay_out,
)

RADIUS = 6.0


def strip_of(data: GraphData, labelled: bool = True) -> Strip:
    radii = {n.index: RADIUS for n in data.nodes}
    labels = {n.index: n.type for n in data.nodes} if labelled else {}
    exits = {e.source: "1.5 KB" for e in data.edges if e.is_boundary} if labelled else {}
    titles = {box.index: f"{box.index} · {box.device}" for box in data.boxes}
    return lay_out(data, radii, labels, exits, titles, ROOMY if labelled else DENSE)


def overlap(a, b) -> bool:
    return a.left < b.right and b.left < a.right and a.top < b.bottom and b.top < a.bottom


@pytest.mark.parametrize("seed", range(12))
def test_boxes_hold_their_nodes_wires_run_around_other_boxes_and_labels_are_apart(seed):
    data = random_data(seed, devices="ABC")
    strip = strip_of(data, labelled=seed % 3 != 0)
    assert {frame.index for frame in strip.frames} == {box.index for box in data.boxes}
    for one, other in itertools.combinations(strip.frames, 2):
        assert not overlap(one, other)
    inside = {op: box.index for box in data.boxes for op in box.nodes}
    assert set(strip.spots) == {node.index for node in data.nodes}
    for op, (x, y) in strip.spots.items():
        around = [f.index for f in strip.frames if f.left < x < f.right and f.top < y < f.bottom]
        assert around == ([inside[op]] if op in inside else [])
    assert set(strip.routes) == {(e.source, e.target) for e in data.edges}
    for (source, target), points in strip.routes.items():
        assert strip.spots[source][0] < strip.spots[target][0]
        assert points[0] == strip.spots[source]
        assert points[-1] == strip.spots[target]
        own = {inside.get(source), inside.get(target)}
        for (x0, y0), (x1, y1) in itertools.pairwise(points):
            assert x1 >= x0 - 1e-6
            for share in (0.0, 0.25, 0.5, 0.75, 1.0):
                x, y = x0 + share * (x1 - x0), y0 + share * (y1 - y0)
                for f in strip.frames:
                    if f.index not in own:
                        assert not (f.left < x < f.right and f.top < y < f.bottom)
    for a, b in itertools.combinations(strip.solids[: len(data.nodes)], 2):
        apart = a[1] <= b[0] + 1e-6 or b[1] <= a[0] + 1e-6
        assert apart or a[3] <= b[2] + 1e-6 or b[3] <= a[2] + 1e-6


def test_long_lines_do_not_climb_like_stairs():
    graph = prepare(hl.load("digits_inception")).graph
    frames = strip_of(predicted_data(graph, by_type(graph, {"MaxPool", "Add"}))).frames
    assert max(f.bottom for f in frames) - min(f.top for f in frames) < 350


def test_labels_make_room():
    bare, labelled = extent_of("op", 5.0, ""), extent_of("op", 5.0, "Convolution\n12 µs")
    assert sum(labelled[:2]) > 50 > sum(bare[:2])
    assert labelled[3] - bare[3] == pytest.approx(23.0)
    assert labelled[2] == bare[2]
    # An input's name stands before it, an output's behind it.
    assert extent_of("input", 4.0, "image")[0] == extent_of("output", 4.0, "image")[1]


@pytest.mark.parametrize("width", [200.0, 400.0, 100_000.0])
@pytest.mark.parametrize("seed", range(5))
def test_rows_hold_everything_once(seed, width):
    strip = strip_of(random_data(seed, devices="ABC"))
    page = break_into_rows(strip, width)
    assert set(page.spots) == set(strip.spots)
    assert page.width <= 1.15 * width + 8.0
    for x, y in page.spots.values():
        assert 0 <= x <= page.width
        assert 0 <= y <= page.height
    # Each wire has a piece in every row between its ends, and none is lost.
    for pair, pieces in page.routes.items():
        assert pieces
        assert pieces[0][0] == page.spots[pair[0]]
        assert pieces[-1][-1] == page.spots[pair[1]]
    assert all(frame.bottom <= page.height + 1e-6 for frame in page.frames)
    if width > 10_000:
        assert page.n_rows == 1
        assert not any(f.opens_left or f.opens_right for f in page.frames)


def test_frames_that_go_on_are_open_on_that_side_and_rows_end_between_subgraphs():
    strip = strip_of(data_of_profile(small_profile()))
    page = break_into_rows(strip, 120.0)
    assert page.n_rows > 1
    for index in {piece.index for piece in page.frames}:
        mine = [piece for piece in page.frames if piece.index == index]
        assert [piece.opens_left for piece in mine] == [False] + [True] * (len(mine) - 1)
        assert [piece.opens_right for piece in mine] == [True] * (len(mine) - 1) + [False]
    last = max(solid[1] for solid in strip.solids)
    cuts = choose_cuts(strip, 0.0, last, 0.75 * last)
    assert len(cuts) == 1
    assert not any(f.left < cuts[0] < f.right for f in strip.frames)
    assert not any(s[0] < cuts[0] < s[1] for s in strip.solids)
