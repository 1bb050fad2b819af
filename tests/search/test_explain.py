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
from hetero_lab.search.explain import explain, explain_rows


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


def test_what_a_measurement_does_not_cover_is_noted(digits, sweep, costs):
    order, (a, b) = "HETERO:EXPLACC,CPU", sweep.rows[:2]

    def notes(before, after, priced=None) -> list[str]:
        found = explain(digits, "CPU", order, priced, profiles=(before, after))
        return [note for note in found.notes if "properties" not in note]

    assert notes(a, b) == notes(a, b, costs) == []
    apart = "The two were not measured in the same turns"
    assert [note.startswith(apart) for note in notes(a.profile, b.profile, costs)] == [True]
    beside = dataclasses.replace(b, profile=dataclasses.replace(b.profile, executor="parallel"))
    others = "before ran on the executor hetero, after on the executor parallel."
    assert notes(a, beside) == [others]
    in_a_row = "The prediction is of subgraphs that run one after the other."
    assert notes(a, beside, costs) == [others, in_a_row]
    # Without counters of every device, nothing is said of the ops.
    some = [c for c in b.profile.counters if c.device == "CPU"]
    few = dataclasses.replace(b, profile=dataclasses.replace(b.profile, counters=tuple(some)))
    found = explain(digits, "CPU", order, profiles=(a, few))
    assert found.measured["part"].tolist() == ["latency"]


def test_two_rows_are_compared_as_they_were_stored(sweep):
    a, b = sweep.rows[:2]
    found = explain_rows(a, b)
    assert found.before.label.startswith(a.label)
    assert found.after.label.startswith(b.label)
    assert found.after.partition == b.profile.partition
    assert found.timed.before_us == a.profile.latency.median_us
    assert found.measured["part"].tolist() == ["ops", "rest", "latency"]
    several = explain_rows(a, dataclasses.replace(b, requests=4))
    assert several.measurement is None
    assert several.notes == ("A row with several requests in flight has no latency to compare.",)
    other = dataclasses.replace(b.profile, model_fingerprint="0")
    with pytest.raises(ArgumentError, match="different models or weights"):
        explain_rows(a, dataclasses.replace(b, profile=other))
