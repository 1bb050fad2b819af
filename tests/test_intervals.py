from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from hetero_lab.intervals import (
    ASSUMED_NOISE,
    Latency,
    Noise,
    Series,
    assumed_noise,
    compile_noise,
    largest_noise,
    median_interval,
    paired_ratio,
    rank_groups,
    ratio_of_runs,
    unpaired_ratio,
)

SAMPLES = st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=30)


@given(st.lists(SAMPLES, min_size=1, max_size=8))
@settings(max_examples=25)
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
    assert repr(latency).startswith("Latency(median 3.0 µs, 95 % [")
    assert repr(latency).endswith("5 samples in 2 turns)")


def test_intervals_of_one_sample_of_equal_ones_and_of_the_same_ones_again():
    assert median_interval([[7.0]]) == median_interval([[], [7.0]]) == (7.0, 7.0)
    assert median_interval([[5.0] * 10] * 10) == (5.0, 5.0)
    turns = np.random.default_rng(0).lognormal(size=(12, 10)).tolist()
    assert median_interval(turns) == median_interval(turns)


def covered(draw, n: int = 75) -> float:
    """Return how often the interval of a sample holds the true median 1."""
    hits = 0
    for seed in range(n):
        low, high = median_interval(draw(np.random.default_rng(seed)))
        hits += low <= 1.0 <= high
    return hits / n


@pytest.mark.parametrize("last", [4, 7])
def test_turns_and_not_samples_are_resampled(last):
    # Each turn is faster or slower as a whole; to take its samples for independent would give
    # an interval much too narrow. A longer last turn must not change that.
    def draw(rng):
        factor = rng.lognormal(0, 0.3, 12)
        sizes = [4] * 11 + [last]
        return [f * rng.lognormal(0, 0.02, n) for f, n in zip(factor, sizes, strict=True)]

    assert covered(draw, n=40) > 0.8


def test_the_interval_holds_the_median_as_often_as_it_says_and_narrows_with_more_turns():
    assert covered(lambda rng: rng.lognormal(0, 0.2, (12, 10))) > 0.88
    rng = np.random.default_rng(0)
    few, many = (median_interval(rng.lognormal(0, 0.2, (n, 10))) for n in (6, 600))
    assert many[1] - many[0] < (few[1] - few[0]) / 4


def test_a_long_measurement_needs_no_memory_to_speak_of():
    turns = np.random.default_rng(0).lognormal(0, 0.1, (10_000, 10))
    tracemalloc.start()
    low, high = median_interval(turns)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert low <= 1.0 <= high
    # All resamples at once would be 100 000 × 2000 numbers, 1.6 GB.
    assert most_bytes < 200e6


def made(levels: dict[str, float], noise: float, rounds: int = 30) -> list[Series]:
    """Levels in ms."""
    rng = np.random.default_rng(1)
    table = {k: v * 1e3 * rng.lognormal(0, noise, rounds) for k, v in levels.items()}
    every = {k: {(0, i): float(x) for i, x in enumerate(v)} for k, v in table.items()}
    reference = next(iter(every.values()))
    return [Series(ours, reference, ASSUMED_NOISE) for ours in every.values()]


def test_what_differs_clearly_is_in_groups_of_its_own():
    groups, p, smallest = rank_groups(made({"a": 1.0, "b": 1.001, "c": 1.2, "d": 1.5}, 0.01))
    assert groups == [1, 1, 2, 3]
    assert [one < 0.05 for one in p] == [False, False, True, True]
    assert 0.005 < smallest < 0.05
    assert rank_groups([]) == ([], [], float("inf"))
    assert rank_groups(made({"a": 1.0}, 0.01))[0] == [1]


def test_groups_part_where_the_evidence_is_strongest():
    # The third differs from the first but not from the second, which is much nearer to it.
    groups, *_ = rank_groups(made({"a": 1.0, "b": 1.018, "c": 1.022}, 0.004))
    assert groups == [1, 2, 2]


def test_equal_placements_differ_from_compile_to_compile():
    # However many turns: half a percent is what two compiles of one placement differ by.
    ratio, low, high, p = paired_ratio([10050.0] * 400, [10000.0] * 400, ASSUMED_NOISE)
    assert ratio == pytest.approx(1.005)
    assert low < 1.0 < high
    assert p > 0.2
    # Of a quick one by more: some µs are always there.
    assert paired_ratio([10200.0] * 400, [10000.0] * 400, ASSUMED_NOISE)[3] < 0.05
    assert paired_ratio([102.0] * 400, [100.0] * 400, ASSUMED_NOISE)[3] > 0.2
    # What was measured takes the place of what is assumed.
    turns = [10100.0] * 400, [10000.0] * 400
    assert paired_ratio(*turns, Noise(0.001, 0.0, 12))[3] < 0.05
    assert paired_ratio(*turns, Noise(0.05, 0.0, 12))[3] > 0.2
    # A device beside the CPU is assumed to differ more from process to process.
    apart = [1120.0] * 400, [1000.0] * 400
    assert paired_ratio(*apart, assumed_noise("CPU")).p < 0.001
    assert paired_ratio(*apart, assumed_noise("GPU.1")).p > 0.05


def test_runs_apart_tell_less_than_turns_beside_each_other():
    rng = np.random.default_rng(0)
    ours, reference = (1e3 * rng.lognormal(x, 0.01, 60) for x in (0.1, 0.0))
    paired = paired_ratio(ours, reference, ASSUMED_NOISE)
    apart = unpaired_ratio(ours, reference, ASSUMED_NOISE)
    for ratio in (paired, apart):
        assert ratio.middle == pytest.approx(np.exp(0.1), rel=0.01)
        assert ratio.low < np.exp(0.1) < ratio.high
    # All times of a run can be a tenth above or below those of another one.
    assert paired.p < 1e-3 < 0.05 < apart.p
    assert unpaired_ratio(1.5 * ours, reference, ASSUMED_NOISE).p < 1e-3
    assert unpaired_ratio([1.0], [2.0, 2.0], ASSUMED_NOISE)[3] == 1.0


@pytest.mark.parametrize("turns", [3, 12])
def test_small_p_values_of_few_turns_are_as_rare_as_they_say(turns):
    rng = np.random.default_rng(0)
    draws = np.exp(rng.normal(0, 0.03, (1000, 2, turns)))
    p = [paired_ratio(1e4 * a, 1e4 * b, Noise(0.005, 0.0, 12)).p for a, b in draws]
    assert sum(one < 0.001 for one in p) <= 3
    assert 20 < sum(one < 0.05 for one in p) < 60


def test_the_same_turns_twice_do_not_make_a_difference_visible():
    both = made({"a": 1.0, "b": 1.2}, 0.01)
    assert rank_groups([both[0], both[0], both[1]])[2] == rank_groups(both)[2] > 0.0


def compiles(level_us, relative, absolute_us, rng, n=6, rounds=24, turn_noise=0.01):
    """Turn levels of equal placements whose compiles differ by what is given for two of them."""
    own = 1 + relative / np.sqrt(2) * rng.normal(size=(n, 1))
    own = level_us * own + absolute_us / np.sqrt(2) * rng.normal(size=(n, 1))
    mood = rng.lognormal(0, 0.3, (1, rounds))  # common to all of a round
    return own * mood * rng.lognormal(0, turn_noise, (n, rounds))


@pytest.mark.parametrize(("relative", "absolute_us"), [(0.02, 0.0), (0.004, 6.0), (0.0, 6.0)])
def test_the_noise_of_compiles_is_found_below_that_of_turns_and_of_the_machine(
    relative, absolute_us
):
    rng = np.random.default_rng(0)
    groups = [
        compiles(level, relative, absolute_us, rng) for level in (200.0, 4000.0) for _ in range(12)
    ]
    noise = compile_noise(groups)
    for level in (200.0, 4000.0):
        true = np.hypot(relative, absolute_us / level)
        assert noise.spread(level) == pytest.approx(true, rel=0.3, abs=0.002)
    assert noise.n_compiles == 24 * 6
    assert noise.is_measured
    # That of one model is all relative.
    rng = np.random.default_rng(1)
    noise = compile_noise([compiles(1000.0, 0.03, 0.0, rng) for _ in range(6)])
    assert noise.relative == pytest.approx(0.03, rel=0.35)
    assert noise.absolute_us == 0.0


def test_the_largest_noise_is_assumed_if_any_is():
    measured = Noise(0.02, 0.5, 12, "2026-01-01")
    assert largest_noise([measured]) == measured
    assert largest_noise([]) == ASSUMED_NOISE
    assert largest_noise([measured, ASSUMED_NOISE]) == Noise(0.02, 1.9)
    assert not largest_noise([measured, ASSUMED_NOISE]).is_measured
    assert measured.when_busy == Noise(0.04, 1.0, 12, "2026-01-01")
    assert str(measured) == "2.00% and 0.5 µs (measured on 12 compiles)"
    assert str(ASSUMED_NOISE) == "0.50% and 1.9 µs (assumed)"


def test_a_ratio_of_what_does_not_vary():
    exact = Noise(0.0, 0.0, 12)
    for factor, p in ((1.0, 1.0), (2.0, 0.0)):
        found = paired_ratio([factor * 10.0] * 4, [10.0] * 4, exact)
        assert found == pytest.approx((factor, factor, factor, p))


def test_a_change_between_processes_by_hand():
    """Student's t on the logarithms, of three processes now and two before."""
    ours, before = [1.0, 1.1, 1.2], [1.0, 1.05]
    logs = [np.log(ours), np.log(before)]
    squares = sum(float(((part - part.mean()) ** 2).sum()) for part in logs)
    error = np.sqrt(squares / 3) * np.sqrt(1 / 3 + 1 / 2)
    change = ratio_of_runs(ours, before, spread=0.0, drift=0.0)
    middle = float(logs[0].mean() - logs[1].mean())
    assert change.middle == pytest.approx(np.exp(middle))
    half = 3.182446 * error  # 97.5 % of t with three degrees of freedom
    assert (change.low, change.high) == pytest.approx(tuple(np.exp([middle - half, middle + half])))
    # Without anything before, the ratio itself, with two degrees.
    alone = ratio_of_runs(ours, [], spread=0.0, drift=0.0)
    half = 4.302653 * float(np.std(logs[0], ddof=1)) / np.sqrt(3)
    middle = float(logs[0].mean())
    assert (alone.low, alone.high) == pytest.approx(tuple(np.exp([middle - half, middle + half])))
    # The spread is the least, and what moves all processes of a time is not averaged out.
    assert ratio_of_runs(ours, [], spread=0.5, drift=0.0).high > 2.0 * alone.high
    moved = ratio_of_runs([1.0] * 50, [1.0] * 50, spread=1e-9, drift=0.1)
    half = 1.959964 * 0.1 * np.sqrt(2)
    assert moved.high == pytest.approx(np.exp(half), rel=1e-3)
    one = ratio_of_runs([1.0] * 50, [], spread=1e-9, drift=0.1)
    assert one.high == pytest.approx(np.exp(half / np.sqrt(2)), rel=1e-3)
