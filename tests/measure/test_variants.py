"""Variants of a model in a sweep: quantised ones too, and those that cannot be made."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from small_models import convolutions

import hetero_lab as hl
from hetero_lab.errors import InputError, ModelError, QuantizationError
from hetero_lab.measure.trial_grid import bind_variants

quick = partial(hl.sweep, turns=2, budget_s=None, isolate=False, progress=False)


@pytest.fixture(scope="module")
def f32():
    return hl.load(convolutions(size=8, channels=32, layers=2))


@pytest.fixture(scope="module")
def quantize(f32):
    examples = [np.ones((1, 32, 8, 8), np.float32)]
    return partial(hl.quantize, f32, examples, subset_size=1, progress=False)


def test_a_variant_that_cannot_be_made_is_a_failed_row(f32, quantize, core, tmp_path):
    split = hl.Affinity.uniform(f32, "CPU", core=core).fix(patterns={"2$": "ACC"}, core=core)
    variants = {"none": partial(quantize, ignored="."), "f32": f32, "int8": quantize}
    measured = quick(variants, ["CPU", split], baselines=False, core=core, store=tmp_path / "s")
    for sweep in (measured, hl.read_sweep(tmp_path / "s")):
        summary = sweep.summary.set_index("label")
        assert list(summary.index) == [
            f"{placement} · {variant}"
            for variant in ("none", "f32", "int8")
            for placement in ("CPU", "affinity")
        ]
        assert list(summary["status"]) == ["failed"] * 2 + ["ok"] * 4
        assert "no op that it can quantise" in summary.loc["CPU · none", "detail"]
        assert sweep.reference == "CPU · f32"
        sizes = summary["weight_bytes"]
        assert sizes["CPU · int8"] < 0.35 * sizes["CPU · f32"]
        assert np.isnan(sizes["CPU · none"])
    assert measured.profile("affinity · int8").partition.n_subgraphs > 1
    counters = measured.profile("CPU · int8").tables["counters"]
    precisions = counters.loc[counters["node_type"] == "Convolution", "precision"]
    assert list(precisions) == ["i8"] * 2


def test_a_mistake_in_an_argument_stops_the_sweep(f32, core):
    wrong = partial(hl.quantize, f32, [], progress=False)
    with pytest.raises(InputError, match="The variant 'int8': There are no examples"):
        quick({"f32": f32, "int8": wrong}, ["CPU"], core=core)


def test_baselines_of_a_failed_variant_are_left_out_and_without_any_nothing_is_measured(f32, core):
    def recipe():
        raise RuntimeError("nncf: no such algorithm")

    def refused():
        raise QuantizationError("no op that it can quantise")

    sweep = quick({"f32": f32, "own": recipe}, ["HETERO:ACC,CPU"], core=core)
    failed = sweep.summary[sweep.summary["variant"] == "own"]
    assert list(failed["status"]) == ["failed"]
    assert "RuntimeError: 'nncf: no such algorithm'" in failed["detail"].iloc[0]
    assert "CPU · f32" in list(sweep.summary["label"])
    with pytest.raises(ModelError, match="The variant 'own' cannot be made: RuntimeError"):
        bind_variants({"own": recipe, "none": refused}, core)
    with pytest.raises(QuantizationError, match="no op that it can quantise"):
        bind_variants({"none": refused, "own": recipe}, core)
