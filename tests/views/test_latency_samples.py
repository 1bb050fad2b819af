from __future__ import annotations

from dataclasses import replace

import pytest
from views.hand_made import small_profile

import hetero_lab as hl
from hetero_lab.errors import ArgumentError
from hetero_lab.statistics import Latency
from hetero_lab.views.times import samples_of


def with_samples(*samples: float, label: str = "one"):
    return replace(small_profile(), latency=Latency((tuple(samples),)), label=label)


def test_counts_against_a_table_made_by_hand():
    # 100 to 108 in 60 bins is 0.14 a bin; the next round width is 0.2. 900 is far out.
    data = samples_of([small_profile()])
    assert data.edges_us[0] == 100.0
    assert data.edges_us[1] - data.edges_us[0] == pytest.approx(0.2)
    (row,) = data.rows
    counted = {round(e, 1): n for e, n in zip(data.edges_us, row.counts, strict=False) if n}
    assert counted == {100.0: 1, 101.0: 1, 102.0: 2, 104.0: 1, 106.0: 1, 108.0: 1}
    assert row.n_beyond == 1
    assert row.n_samples == 8
    assert row.median_us == 103.0


def test_profiles_share_their_bins_and_no_sample_is_lost():
    data = samples_of([with_samples(10, 11, 12), with_samples(300, 310, 320, label="two")])
    assert [sum(row.counts) + row.n_beyond for row in data.rows] == [3, 3]
    assert data.edges_us[0] <= 10
    assert data.edges_us[-1] > 320
    assert [len(row.counts) for row in data.rows] == [len(data.edges_us) - 1] * 2


def test_equal_samples():
    (row,) = samples_of([with_samples(50.0, 50.0, 50.0)]).rows
    assert sum(row.counts) == 3


def test_one_sample():
    assert sum(samples_of([with_samples(50.0)]).rows[0].counts) == 1


def test_the_axis_has_its_unit_and_each_row_its_numbers():
    figure = hl.views.latency_samples([small_profile(), with_samples(100.0, 110.0)])
    assert figure.layout.xaxis.title.text == "latency (µs)"
    texts = [annotation.text for annotation in figure.layout.annotations]
    assert texts[0].startswith("<b>HETERO:ACC,CPU</b>")
    assert "ACC (emulated on CPU)" in texts[0]
    assert "median 103 µs" in texts[1]
    assert "1 beyond the right edge" in texts[1]
    assert "median 105 µs" in texts[3]


def test_no_profile_is_an_error():
    with pytest.raises(ArgumentError, match="at least one profile"):
        hl.views.latency_samples([])
