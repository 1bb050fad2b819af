from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_lab.statistics import Latency, median_interval

SAMPLES = st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=30)


@given(st.lists(SAMPLES, min_size=1, max_size=8))
@settings(deadline=None)
def test_medians_and_intervals_of_any_turns(turns):
    latency = Latency(tuple(map(tuple, turns)))
    every = sorted(sample for turn in turns for sample in turn)
    assert latency.samples_us.tolist() == [sample for turn in turns for sample in turn]
    assert len(latency) == len(every)
    assert latency.median_us == pytest.approx(np.median(every))
    assert latency.p90_us == pytest.approx(np.percentile(every, 90))
    assert latency.p99_us == pytest.approx(np.percentile(every, 99))
    low, high = latency.ci95_us
    assert every[0] <= low <= latency.median_us <= high <= every[-1]
    assert low <= high
    assert latency.mad_us >= 0


def test_known_values():
    latency = Latency(((1.0, 2.0, 3.0), (4.0, 100.0)))
    assert latency.median_us == 3.0
    assert latency.mad_us == 1.0
    assert latency.samples_us.tolist() == [1, 2, 3, 4, 100]
    assert repr(latency).startswith("Latency(median 3.0 µs, 95 % [")
    assert repr(latency).endswith("5 samples in 2 turns)")


def test_one_sample_is_its_own_interval():
    assert median_interval([[7.0]]) == (7.0, 7.0)
    assert median_interval([[], [7.0]]) == (7.0, 7.0)


def test_equal_samples_have_an_interval_of_no_width():
    assert median_interval([[5.0] * 10] * 10) == (5.0, 5.0)


def test_the_interval_is_the_same_every_time():
    turns = np.random.default_rng(0).lognormal(size=(12, 10)).tolist()
    assert median_interval(turns) == median_interval(turns)


def covered(draw, n: int = 150) -> float:
    """Return how often the interval of a sample holds the true median 1."""
    hits = 0
    for seed in range(n):
        low, high = median_interval(draw(np.random.default_rng(seed)))
        hits += low <= 1.0 <= high
    return hits / n


def test_the_interval_holds_the_median_about_as_often_as_it_says():
    assert covered(lambda rng: rng.lognormal(0, 0.2, (12, 10))) > 0.88


@pytest.mark.parametrize("last", [10, 15])
def test_turns_and_not_samples_are_resampled(last):
    # Each turn is faster or slower as a whole; to take its samples for independent would give
    # an interval much too narrow. A longer last turn must not change that.
    def draw(rng):
        factor = rng.lognormal(0, 0.3, 12)
        sizes = [10] * 11 + [last]
        return [f * rng.lognormal(0, 0.02, n) for f, n in zip(factor, sizes, strict=True)]

    assert covered(draw) > 0.8


def test_the_interval_narrows_with_more_turns():
    rng = np.random.default_rng(0)
    few, many = (median_interval(rng.lognormal(0, 0.2, (n, 10))) for n in (6, 600))
    assert many[1] - many[0] < (few[1] - few[0]) / 4


def test_a_long_measurement_needs_no_memory_to_speak_of():
    import resource

    turns = np.random.default_rng(0).lognormal(0, 0.1, (40_000, 10))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    low, high = median_interval(turns)
    assert low <= 1.0 <= high
    # All resamples at once would be 400 000 × 2000 numbers, 6 GB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000
