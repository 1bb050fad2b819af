"""The critical path and idle devices of timelines that were made by hand, and of random ones."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from small_models import diamond, odd_ends

import hetero_lab as hl
from hetero_lab.model.read import prepare
from hetero_lab.placement.overlap import sources
from hetero_lab.placement.partition import predict
from hetero_lab.planning.timeline import (
    Span,
    critical_path,
    idle_times,
    typical_request,
)

# 0 feeds 1 and 2, and both feed 3.
WAITS = (frozenset(), frozenset({0}), frozenset({0}), frozenset({1, 2}))
WAITED = [(0, 0, "A", 0, 4), (1, 0, "B", 0, 1), (1, 1, "A", 4, 6), (1, 2, "B", 1, 2),
          (1, 3, "B", 6, 7)]  # fmt: skip


@pytest.mark.parametrize(
    ("runs", "request_", "expected"),
    [
        # The slower branch is critical.
        ([(0, 0, "A", 0, 2), (0, 1, "A", 2, 9), (0, 2, "B", 2, 5), (0, 3, "B", 9, 10)], 0,
         [0, 1, 3]),
        # A busy device is waited for like data: 2 had its data at 2, but A ran 1 until 6.
        ([(0, 0, "B", 0, 2), (0, 1, "A", 2, 6), (0, 2, "A", 6, 8), (0, 3, "B", 8, 9)], 0,
         [0, 1, 2, 3]),
        # Without that, the path leads from 2 straight to its data.
        ([(0, 0, "B", 0, 2), (0, 1, "C", 2, 6), (0, 2, "A", 2, 8), (0, 3, "B", 8, 9)], 0,
         [0, 2, 3]),
        # The chain begins where another request was waited for.
        (WAITED, 1, [1, 3]),
        (WAITED, 0, [0]),
    ],
)  # fmt: skip
def test_the_critical_path_follows_data_and_devices(runs, request_, expected):
    path = critical_path([Span(*run) for run in runs], request_, WAITS)
    assert [span.subgraph for span in path] == expected


def test_spans_of_no_length_end_the_walk_too():
    path = critical_path([Span(0, i, "A", 1.0, 1.0) for i in range(4)], 0, WAITS)
    assert len(set(path)) == len(path)


@pytest.mark.parametrize("seed", range(20))
def test_in_a_dense_schedule_the_critical_path_has_no_gap(seed):
    """Schedule at random, every subgraph at once when data and device are there: the path's
    times add up to the whole request."""
    rng = random.Random(seed)
    n, devices = 12, "ABC"
    waits = tuple(frozenset(s for s in range(i) if rng.random() < 0.3) for i in range(n))
    free: dict[str, int] = dict.fromkeys(devices, 0)
    ended: dict[int, int] = {}
    spans = []
    for index in range(n):
        device = rng.choice(devices)
        start = max([free[device], *(ended[s] for s in waits[index])])
        ended[index] = free[device] = start + rng.randint(1, 9)
        spans.append(Span(0, index, device, start, ended[index]))
    path = critical_path(spans, 0, waits)
    assert path[0].start_s == 0
    assert sum(span.end_s - span.start_s for span in path) == max(ended.values())
    for before, after in pairwise(path):
        assert before.end_s == after.start_s
        assert before.device == after.device or before.subgraph in waits[after.subgraph]


def test_idle_is_counted_while_a_request_is_in_flight():
    # In flight: 0 to 3, and 10 to 14 (two requests that overlap).
    spans = [
        Span(0, 0, "A", 0, 1),
        Span(0, 1, "B", 1, 3),
        Span(1, 0, "A", 10, 12),
        Span(2, 0, "A", 12, 13),
        Span(1, 1, "B", 13, 14),
    ]
    rows = [tuple(row.values()) for row in idle_times(spans, ["A", "B", "C"])]
    assert rows[0] == ("A", pytest.approx(4e6), pytest.approx(3e6), pytest.approx(3 / 7))
    assert rows[1] == ("B", pytest.approx(3e6), pytest.approx(4e6), pytest.approx(4 / 7))
    assert rows[2] == ("C", 0, pytest.approx(7e6), 1)
    assert idle_times([], ["A"])[0]["share"] == 0


def test_the_typical_request_is_that_of_median_duration():
    spans = [Span(r, 0, "A", 10 * r, 10 * r + took) for r, took in enumerate([5, 1, 2, 9])]
    assert typical_request(spans) == 2


def test_what_a_subgraph_waits_for_is_data_that_is_made():
    hl.emulate("TLACC")
    prepared = prepare(diamond())
    affinity = hl.Affinity.uniform(prepared, "CPU").fix(ops={"left": "TLACC"})
    partition = predict(prepared.graph, affinity)
    where = partition.subgraph_of
    waits = sources(partition, prepared.graph)
    assert where["top"] in waits[where["left"]]
    assert where["left"] in waits[where["join"]]
    assert waits[where["top"]] == frozenset()
    # An input that is handed on was there from the start.
    prepared = prepare(odd_ends())
    partition = predict(prepared.graph, hl.Affinity.uniform(prepared, "CPU"))
    assert all(index not in waits for index, waits in enumerate(sources(partition, prepared.graph)))
