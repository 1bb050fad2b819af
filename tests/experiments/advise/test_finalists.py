"""Finalists: what is measured again, by what the race found and what a compile takes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from widgets.hand_sweeps import failed_row, measured_row, small_sweep

import hetero_lab as hl
from hetero_lab.backend.bound import bind
from hetero_lab.backend.core import shared_core
from hetero_lab.experiments.advise.advice import Judged
from hetero_lab.experiments.advise.candidates import (
    candidates_for,
    choose_finalists,
    compile_times,
)
from hetero_lab.experiments.results.sweep.row import BUDGET_ENDED


@pytest.fixture(scope="module")
def bound():
    hl.emulate("FINFAST")
    return bind("digits_inception", shared_core())


@pytest.fixture
def raced(bound):
    """Return a function: rows by label as (factor, seconds to compile, judgement) → known."""
    placements, _ = candidates_for(
        bound, ("FINFAST", "CPU"), requests=0, device_properties={}, memory_limit={}
    )
    profile = small_sweep().rows[0].profile
    assert profile is not None

    def known(**rows):
        made = []
        for name, (factor, compile_s, judgement) in rows.items():
            label = {"AUTO": "AUTO:FINFAST,CPU", "ONE": "CPU · 1 thread"}.get(name, name)
            if factor is None:
                row = failed_row(label, BUDGET_ENDED, "")
            else:
                timed = replace(profile, compile_ms=1e3 * compile_s, first_inference_ms=0.0)
                row = measured_row(label, timed, factor)
            made.append(Judged(row, placements[label], bound, "race", judgement))
        return made

    return known


def labels(known, left_s, found=None, **options):
    return list(choose_finalists(known, found or {}, left_s=left_s, **options))


def test_compile_times_are_the_longest_of_each_device_alone(raced):
    known = raced(
        CPU=(1.0, 0.5, "best"),
        ONE=(1.0, 0.75, "as fast"),
        FINFAST=(2.0, 4.0, "slower"),
        AUTO=(2.0, 0.1, "slower"),  # says that it is compiled before it is
    )
    assert compile_times(known) == {"CPU": 0.75, "FINFAST": 4.0, "": 4.0}


def test_a_device_that_was_never_compiled_for_counts_as_the_slowest(raced):
    known = raced(CPU=(1.0, 0.5, "best"), AUTO=(None, 0.0, "not measured"))
    # FINFAST and CPU take a quarter of the 4 s that are left beside CPU, but not of 3.9 s.
    assert labels(known, 4.5) == ["CPU", "AUTO:FINFAST,CPU"]
    assert labels(known, 4.4) == ["CPU"]


def test_what_the_race_did_not_get_to_is_measured_where_there_is_time(raced):
    known = raced(
        CPU=(1.0, 0.5, "best"),
        ONE=(1.25, 0.5, "slower"),
        FINFAST=(1.0, 4.0, "as fast"),
        AUTO=(None, 0.0, "not measured"),
    )
    assert labels(known, math.inf) == ["CPU", "FINFAST", "AUTO:FINFAST,CPU"]
    assert labels(known, 60.0) == ["CPU", "FINFAST", "AUTO:FINFAST,CPU"]
    # 4 s of the 19.5 s left are less than a quarter; then 4.5 s of 15.5 s are more.
    assert labels(known, 20.0) == ["CPU", "FINFAST"]
    assert labels(known, 20.0, n_models=2) == ["CPU"]
    assert labels(known, 10.0) == ["CPU"]


def test_the_best_has_to_fit_or_there_is_no_final(raced):
    known = raced(CPU=(1.0, 0.5, "slower"), ONE=(1.0, 0.5, "slower"), FINFAST=(0.5, 4.0, "best"))
    assert labels(known, 5.0) == ["CPU", "FINFAST"]
    assert labels(known, 4.0) == []


def test_at_most_four_are_measured_beside_the_reference(raced, bound):
    known = raced(CPU=(1.0, 0.5, "slower"), FINFAST=(0.5, 0.5, "best"))
    first = known[0]
    known += [
        replace(
            first,
            row=measured_row(f"as good {i}", first.row.profile, 0.6 + i / 100),
            placement=replace(first.placement, label=f"as good {i}"),
            judgement="as fast",
        )
        for i in reversed(range(5))
    ]
    assert set(labels(known, math.inf)) == {"CPU", "FINFAST", "as good 0", "as good 1", "as good 2"}


def test_what_was_found_is_measured_unless_it_is_there_already(raced, bound):
    known = raced(CPU=(1.0, 0.5, "best"), FINFAST=(1.5, 0.5, "slower"))
    split = hl.Affinity.uniform("digits_inception", "CPU").fix(types={"Softmax": "FINFAST"})
    found = {"optimized": hl.Placement(split, "x"), "recovered": known[0].placement}
    assert labels(known, 10.0, found) == ["CPU", "optimized"]
    assert labels(known, 10.0, {"optimized": None}) == ["CPU"]
