from __future__ import annotations

from dataclasses import replace

import pytest
from views.hand_made import counter, small_profile

import hetero_lab as hl
from hetero_lab.errors import MeasurementError
from hetero_lab.placement.partition import Partition, Subgraph
from hetero_lab.views.times import subgraph_times


def test_times_against_a_table_made_by_hand():
    rows = [
        (r.subgraph, r.device, r.n_ops, r.ops_us, r.reorders_us)
        for r in subgraph_times(small_profile())
    ]
    assert rows == [(0, "ACC", 2, 10.0, 2.0), (1, "CPU", 1, 5.0, 0.0), (2, "ACC", 1, 3.0, 1.0)]


def test_they_agree_with_the_table_of_the_profile():
    profile = small_profile()
    table = profile.tables["subgraphs"]
    times = subgraph_times(profile)
    assert [t.ops_us for t in times] == list(table["ops_us"])
    assert [t.reorders_us for t in times] == list(table["reorders_us"])


def test_bars_have_the_colour_of_their_device_and_reorders_are_faded():
    figure = hl.views.time_by_subgraph(small_profile())
    shown = {t.name: (t.marker.color, t.marker.pattern.shape, list(t.x)) for t in figure.data}
    assert shown == {
        "ACC (emulated on CPU): ops": ("#E69F00", "/", [10.0, 3.0]),
        "ACC (emulated on CPU): reorders": ("rgba(230, 159, 0, 0.4)", "/", [2.0, 1.0]),
        "CPU: ops": ("#0072B2", "", [5.0]),
    }
    assert list(figure.layout.yaxis.ticktext) == ["0 · ACC", "1 · CPU", "2 · ACC"]


def test_many_subgraphs_stand_side_by_side():
    names = [f"op{i}" for i in range(50)]
    profile = replace(
        small_profile(),
        partition=Partition(tuple(Subgraph(i, "CPU", (n,)) for i, n in enumerate(names)), ()),
        counters=tuple(counter(i, "CPU", "op", n, 1.0 + i) for i, n in enumerate(names)),
    )
    (bars,) = hl.views.time_by_subgraph(profile).data
    assert bars.orientation == "v"
    assert list(bars.x) == list(range(50))


def test_without_counters_there_is_nothing_to_draw():
    with pytest.raises(MeasurementError, match="counters=True"):
        hl.views.time_by_subgraph(small_profile(counters=()))
