"""Accuracy that is got back: sensitivity, candidates, and what is returned."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from exact_digits import QUICK_RECOVERY

import hetero_lab as hl
from hetero_lab.accuracy.recover import (
    ALL_ACCURATE,
    ALL_FAST,
    ModelPart,
    choose,
    expected_error,
    promising_sets,
    verdict,
)
from hetero_lab.devices.core import shared_core
from hetero_lab.devices.devices import precisions
from hetero_lab.errors import ArgumentError, DeviceError

BF16 = {"INFERENCE_PRECISION_HINT": "bf16"}


@pytest.fixture(scope="module")
def digits():
    data = hl.dataset("digits")
    return hl.load("digits_inception"), replace(
        data, calibration=data.calibration[:40], evaluation=data.evaluation[:100]
    )


@pytest.mark.slow
@pytest.mark.by_hand
def test_the_fastest_placement_that_keeps_the_accuracy_is_found_and_drawn(digits):
    hint = BF16 if "bf16" in precisions("CPU", core=shared_core()) else {}
    hl.emulate("RECACC", properties=hint)
    with pytest.MonkeyPatch.context() as patch:  # few placements, however long they take
        for changed in QUICK_RECOVERY:
            patch.setattr(*changed)
        found = hl.recover_accuracy(
            *(digits[0], "RECACC", "CPU", digits[1]), budget_s=3600, isolate=False, progress=False
        )
    summary = found.summary
    assert list(summary["label"][:2]) == [ALL_ACCURATE, ALL_FAST]
    assert list(summary.loc[summary["chosen"], "label"]) == [found.chosen]
    assert (summary["n_examples"] == 100).all()
    accurate = summary.iloc[0]
    assert accurate["ratio"] == 1.0
    assert accurate["accuracy_drop"] == 0.0  # it is f32 itself
    row = summary.loc[summary["chosen"]].iloc[0]
    assert row["accuracy_drop_ci95_low"] <= found.max_drop
    kept = found.chosen == ALL_ACCURATE
    assert ("keep the whole model on the accurate device" in found.verdict) == kept
    assert found.verdict.startswith(f"{found.chosen!r} is ") == (not kept)
    assert found.verdict in repr(found)
    ops = [op for tried in found.tried for op in tried.ops]
    assert sorted(ops) == sorted(found.affinity.ops)
    table = found.sensitivity
    assert list(table["part"]) == list(range(1, len(table) + 1))
    assert table["n_ops"].sum() == len(ops)
    accurate = next(c for c in found.finalists if c.label == ALL_ACCURATE)
    assert accurate.placement.device_properties["CPU"]["INFERENCE_PRECISION_HINT"] == "f32"
    assert accurate.calibration.relative_error < 1e-5
    assert found.front["median_us"].is_monotonic_increasing
    assert found.front["accuracy"].is_monotonic_increasing
    assert found.front["median_us"].iloc[0] == summary["median_us"].min()
    check_drawn(found)
    compiled = hl.compile(digits[0], found.affinity)
    assert list(compiled(digits[1].evaluation[0][0])) == ["digit", "parity"]


def check_drawn(found: hl.types.Recovered) -> None:
    bars = hl.views.sensitivity(found)
    drawn = [x for trace in bars.data if trace.type == "bar" for x in trace.x]
    table = found.sensitivity[["error_only_fast", "error_only_accurate"]]
    assert len(drawn) == table.notna().to_numpy().sum() > 0
    front = hl.views.accuracy_front(found)
    assert list(front.data[0].x) == list(found.front["median_us"])
    n_points = sum(len(t.x) for t in front.data if t.mode == "markers")
    assert n_points == len(found.summary)
    assert set(hl.views.gallery(found)) >= {"sensitivity", "accuracy_front"}


def tried(index: int, only_fast: float, only_accurate: float) -> ModelPart:
    fast, accurate = (SimpleNamespace(relative_error=e) for e in (only_fast, only_accurate))
    return ModelPart(index, (f"op{index}",), 10.0, 5.0, fast, accurate)  # type: ignore[arg-type]


def test_sets_begin_with_what_matters_most():
    every = [tried(0, 0.01, 0.2), tried(1, 0.3, 0.02), tried(2, 0.04, 0.2)]
    sets = promising_sets(every)
    assert frozenset({1}) in sets.values()
    assert frozenset({0, 1}) in sets.values()
    assert all(len(chosen) < 3 for chosen in sets.values())
    assert len(set(sets.values())) == len(sets)
    # The part that is left loses 0.04 by itself and 0.01 the other; one of them mends to 0.02.
    left = expected_error(every, frozenset({1}), 0.3)
    assert left == pytest.approx(np.hypot(0.01, 0.04))
    assert expected_error(every, frozenset({0, 1, 2}), 0.3) == 0.02


def test_devices_and_data_that_cannot_tell_are_refused(digits, own_core):
    model, data = digits
    hl.emulate("PART", unsupported={"Convolution"}, core=own_core)
    options = {"progress": False, "core": own_core}
    with pytest.raises(DeviceError, match="does not support"):
        hl.recover_accuracy(model, "CPU", "PART", data, **options)
    overlapping = replace(data, evaluation=data.calibration[:5])
    with pytest.raises(ArgumentError, match="both parts"):
        hl.recover_accuracy(model, "PART", "CPU", overlapping, **options)


def test_without_time_both_devices_are_compared_and_the_rest_is_named(digits, own_core):
    model, data = digits
    few = replace(data, calibration=data.calibration[:4], evaluation=data.evaluation[:4])
    hl.emulate("ACC", core=own_core)
    found = hl.recover_accuracy(
        *(model, "ACC", "CPU", few), budget_s=1e-3, isolate=False, progress=False, core=own_core
    )
    assert found.chosen in (ALL_FAST, ALL_ACCURATE)
    assert [c.label for c in found.finalists] == [ALL_ACCURATE, ALL_FAST]
    assert any("sensitivity" in note for note in found.notes)
    assert len(found.front) >= 1


def judged(label: str, drop: float, low: float) -> Any:
    answers = SimpleNamespace(paired=SimpleNamespace(drop=drop, low=low))
    return SimpleNamespace(label=label, calibration=answers, held_out=answers)


def test_only_what_was_measured_to_be_faster_is_chosen():
    accurate = judged(ALL_ACCURATE, 0.0, 0.0)
    finalists = [accurate, judged("a", 0.0, 0.0), judged("b", 0.02, 0.02), judged("c", 0.0, 0.02)]

    def chosen(**ratios: float) -> tuple[str, list[str]]:
        candidate, refused = choose(finalists, {ALL_ACCURATE: 1.0, **ratios}, 0.01)
        return candidate.label, refused

    assert chosen(a=0.8, b=0.5) == ("a", [])
    assert chosen(a=0.8, c=0.7) == ("a", ["c"])
    assert chosen(a=1.1) == (ALL_ACCURATE, [])
    assert chosen() == (ALL_ACCURATE, [])  # nothing but the accurate device was measured


def test_a_ratio_that_may_be_nothing_has_no_upper_bound_of_its_speed():
    held = SimpleNamespace(
        paired=SimpleNamespace(drop=0.0, low=0.0, high=0.0, n=4), accuracy=1.0, metric="accuracy"
    )
    chosen: Any = SimpleNamespace(label="a", held_out=held)
    row = {"label": "a", "configuration": "a (f32)", "ratio": 0.5, "ratio_ci95_low": 0.0}
    row |= {"ratio_ci95_high": 0.8}
    beside = {"label": ALL_ACCURATE, "configuration": "all accurate (f32)"}
    sweep: Any = SimpleNamespace(summary=pd.DataFrame([row, beside]))
    said = verdict(chosen, [], sweep, 0.01)
    assert "2.00 × as fast as all accurate (f32) (95 % interval 1.25 or more)" in said
    chosen.label = ALL_ACCURATE
    said = verdict(chosen, ["b"], sweep, 0.01)
    assert "keep the whole model on the accurate device. Held-out examples refused 'b'." in said
    chosen.label, row["ratio_ci95_low"] = "a", 0.25
    sweep.summary = pd.DataFrame([row, beside])
    assert "(95 % interval 1.25 to 4.00)" in verdict(chosen, [], sweep, 0.01)
