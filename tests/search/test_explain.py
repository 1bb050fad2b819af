"""explain on the real runtime: placements by name, profiles and sweeps."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from counting_core import F32
from hand_costs import flat_costs

import hetero_lab as hl
from hetero_lab.errors import ArgumentError
from hetero_lab.model.read import prepare
from hetero_lab.search.explain import explain


@pytest.fixture(scope="module")
def sweep(digits):
    hl.emulate("EXPLACC", unsupported={"Softmax", "Concat"})
    return hl.sweep(
        digits, ["CPU", "HETERO:EXPLACC,CPU"], turns=4, isolate=False, baselines=False,
        progress=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def costs(digits):
    return flat_costs(
        prepare(digits).graph, op_us=(1.0, 2.0), devices=("EXPLACC", "CPU"),
        lacks={"Softmax", "Concat"}, boundary_us=3.0, subgraph_us=1.0,
        device_properties={"CPU": F32},
    )  # fmt: skip


def test_priority_orders_of_one_model(digits, sweep):
    found = explain(digits, "CPU", "HETERO:EXPLACC,CPU")
    auto = hl.Affinity.automatic(digits, "HETERO:EXPLACC,CPU")
    assert set(found.ops["op"]) == {op for op in auto.ops if auto[op] == "EXPLACC"}
    assert found.emulated == {"EXPLACC": "CPU"}
    assert found.before.partition.n_subgraphs == 1
    compiled = sweep.profile("HETERO:EXPLACC,CPU").partition
    assert found.after.partition.n_subgraphs == compiled.n_subgraphs > 1
    assert found.after.partition.boundary_bytes == compiled.boundary_bytes


def test_a_sweep_gives_the_paired_difference(digits, sweep, costs):
    found = explain(digits, "CPU", "HETERO:EXPLACC,CPU", costs, profiles=sweep)
    a, b = sweep.rows[:2]
    logs = [np.log(b.series.ours[at] / a.series.ours[at]) for at in a.series.ours]
    median = a.profile.latency.median_us
    assert found.timed.low_us < found.timed.difference_us < found.timed.high_us
    # The trimmed mean lies among the ratios of the turns.
    assert median * np.expm1(min(logs)) <= found.timed.difference_us
    assert found.timed.difference_us <= median * np.expm1(max(logs))
    assert found.measured["part"].tolist() == ["ops", "rest", "latency"]
    own = [
        sum(c.real_time_us for c in row.profile.counters if c.kind in ("op", "other"))
        for row in (a, b)
    ]
    assert found.timed.ops_before_us == pytest.approx(own[0])
    assert found.timed.ops_after_us == pytest.approx(own[1])
    n_moved = len(found.moved)
    assert found.kinds.set_index("kind").loc["ops", "difference_us"] == pytest.approx(-n_moved)
    # Two rows are the same as the sweep; of profiles the turns are not paired.
    assert explain(digits, "CPU", "HETERO:EXPLACC,CPU", profiles=(a, b)).timed == found.timed
    alone = explain(digits, "CPU", "HETERO:EXPLACC,CPU", profiles=(a.profile, b.profile)).timed
    assert alone.before_us == found.timed.before_us
    assert alone.low_us < alone.difference_us < alone.high_us


def test_other_properties_are_noted(digits, costs):
    auto = hl.Affinity.automatic(digits, "HETERO:EXPLACC,CPU")
    free = hl.Placement(auto, "free", {"CPU": {"INFERENCE_PRECISION_HINT": "dynamic"}})
    f32 = hl.Placement(auto, "f32", {"CPU": F32})
    found = explain(digits, free, f32, costs)
    assert any("different device properties" in note for note in found.notes)
    assert sum("other properties of CPU than before" in note for note in found.notes) == 1
    assert not any("than after sets" in note for note in found.notes)
    assert explain(digits, f32, f32, costs).notes == ()


def test_wrong_arguments_say_so(digits, sweep):
    a, b = sweep.rows[:2]
    order = "HETERO:EXPLACC,CPU"
    half = hl.Affinity.automatic(digits, order).fix(patterns={"^mixed1": "CPU"})
    with pytest.raises(ArgumentError, match="profile of before .* is of another placement"):
        explain(digits, "CPU", order, profiles=(b, a))
    with pytest.raises(ArgumentError, match=r"\(profile_before, profile_after\)"):
        explain(digits, "CPU", order, profiles=(a,))
    with pytest.raises(ArgumentError, match="no measured row with the affinity of after"):
        explain(digits, "CPU", half, profiles=sweep)
    failed = dataclasses.replace(b, profile=None, status="failed")
    with pytest.raises(ArgumentError, match="row of after was not measured: failed"):
        explain(digits, "CPU", order, profiles=(a, failed))
    with pytest.raises(ArgumentError, match="4 requests in flight"):
        explain(digits, "CPU", order, profiles=(a, dataclasses.replace(b, requests=4)))
    other = dataclasses.replace(a.profile, model_fingerprint="0")
    with pytest.raises(ArgumentError, match="another model"):
        explain(digits, "CPU", order, profiles=(other, b))
