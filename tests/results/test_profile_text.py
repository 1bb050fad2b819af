"""The text of a profile, against sentences worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from views.hand_made import counter, small_profile

from hetero_lab.intervals import Latency
from hetero_lab.placement.partition import Partition, Subgraph
from hetero_lab.results.profile_data import Throughput
from hetero_lab.runtime.reference import Agreement

EQUAL, ROUNDING = ("a", "equal", 1e-6, "f32"), ("b", "rounding", 0.01, "f16")
MUCH = ("f", "rounding", 0.77, "bf16")
UNDECIDED, WRONG = ("c", "undecided", 0.0, "f32"), ("d", "different", 0.5, "f32")
NAN = ("e", "not a number", 2.0, "f16")


def outputs(*rows: tuple[str, str, float, str]) -> tuple[Agreement, ...]:
    return tuple(
        Agreement(name, 0.0, 0.0, error, 1.0, 1.0, precision, 0.1, verdict)  # type: ignore[arg-type]
        for name, verdict, error, precision in rows
    )


def line_of(profile: Any, start: str) -> str:
    found = [line for line in profile.report().splitlines() if line.startswith(start)]
    return " ".join(found[0].split()[1:]) if found else ""


@pytest.mark.parametrize(
    ("rows", "verdict", "worst"),
    [
        ((), "its outputs were not compared", ""),
        ((EQUAL,), "outputs equal to the reference", "a: equal (relative error 1e-06, in f32)"),
        ((ROUNDING, EQUAL), "outputs within rounding", "b: rounding (relative error 0.01, in f16)"),
        ((MUCH, EQUAL), "rounding changes its outputs by up to 77%",
         "f: rounding (relative error 0.77, in bf16)"),
        ((EQUAL, UNDECIDED), "1 of 2 outputs undecided", "c: undecided"),
        ((WRONG, ROUNDING), "1 of 2 outputs wrong", "d: different (relative error 0.5, in f32)"),
        ((NAN, WRONG, EQUAL), "2 of 3 outputs wrong", "e: not a number (relative error 2, in f16)"),
    ],
)  # fmt: skip
def test_outputs_are_judged_by_the_worst(rows, verdict, worst):
    profile = small_profile(agreement=outputs(*rows))
    assert profile.report().splitlines()[0].endswith(f"on HETERO:ACC,CPU; {verdict}.")
    n = f"{len(rows)} output{'s' if len(rows) > 1 else ''} compared with the f32 reference"
    assert line_of(profile, "Outputs:") == (f"{n}; worst {worst}" if worst else "")
    generated = small_profile(agreement=outputs(*rows), generated=True)
    assert ("generated" in line_of(generated, "Outputs:")) == bool(worst)


@pytest.mark.parametrize(
    ("op_us", "reorder_us", "cause"),
    [
        (90.0, 5.0, "90 µs of 103 µs are ops."),
        (80.0, 12.0, "80 µs of 103 µs are ops; 12 µs are reorders."),
        (60.0, 40.0, "40 µs of 103 µs are reorders."),
        (30.0, 33.0, "40 µs of 103 µs are the runtime's, neither ops nor reorders."),
        (90.0, 20.0, ""),  # more than the latency: the counters do not tell
    ],
)
def test_the_part_that_takes_most_is_the_cause(op_us, reorder_us, cause):
    counters = tuple(
        counter(0, "CPU", kind, "matmul" if kind == "op" else "", us)
        for kind, us in (("op", op_us), ("reorder", reorder_us))
    )
    alone = Partition((Subgraph("CPU", ("matmul",)),), ())
    profile = small_profile(counters=counters, partition=alone)
    assert line_of(profile, "Cause:") == cause
    assert line_of(profile, "Placement:") == "3 ops on ACC (emulated on CPU), 1 op on CPU"
    assert line_of(profile, "Partition:") == "1 subgraph, 0 boundaries, 0 B (predicted)"


@pytest.mark.parametrize(
    ("exclusive", "said"), [(True, ", exclusive"), (False, ", not exclusive"), (None, "")]
)
def test_requests_in_flight_interrupted_on_another_partition(exclusive, said):
    row = Throughput("hetero", 4, exclusive, Latency(((50.0, 50.0),)), Latency(((90.0, 90.0),)))
    profile = small_profile(throughput=(row,), interrupted=True, as_predicted=False)
    assert line_of(profile, "In flight:") == (
        f"flight: 4 requests, hetero{said}: a result every 50 µs, 20,000 a second; "
        "latency of one 90 µs"
    )
    assert "The measurement was interrupted" in profile.report()
    assert "These subgraphs are predicted; the runtime compiled other ones." in profile.report()
    assert "interrupted" not in small_profile().report()
    assert "are predicted" not in small_profile().report()


def test_the_table_of_requests_in_flight_has_the_rate():
    row = Throughput("hetero", 4, None, Latency(((50.0, 50.0),)), Latency(((90.0, 90.0),)))
    (found,) = small_profile(throughput=(row,)).tables["throughput"].to_dict("records")
    assert (found["time_per_result_us"], found["per_second"]) == (50.0, 20_000.0)
    assert (found["ci95_low_us"], found["ci95_high_us"], found["latency_us"]) == (50.0, 50.0, 90.0)
