"""Tables of a profile: where the executed precision changes, and rates of generations."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov
import pandas as pd
import pytest
from counting_core import F32, core_with_acc, on_acc
from html_outline import Outline
from openvino import opset13 as op
from small_models import convolutions
from views.hand_made import counter, small_profile

import hetero_lab as hl
from hetero_lab.devices.core import shared_core
from hetero_lab.devices.devices import precisions
from hetero_lab.errors import MeasurementError
from hetero_lab.intervals import Estimate, Latency
from hetero_lab.model.language import Scenario
from hetero_lab.results.profile_data import Generation
from hetero_lab.results.profile_report import counter_lines
from hetero_lab.results.profile_tables import TRANSITION_COLUMNS, generation_columns, tally
from hetero_lab.tables import read_csv

QUICK = {"iterations": 10, "warmup": 0, "progress": False, "reference": False}
FIRST = ["conv1", "bias1", "relu1"]
LOW = precisions("CPU", core=shared_core())[0]
needs_low = pytest.mark.skipif(LOW == "f32", reason="this CPU has f32 only")


@pytest.fixture(scope="module")
def low_core():
    return core_with_acc(properties={"INFERENCE_PRECISION_HINT": LOW})


def measure(model, core, *ops, in_cpu=F32, **more) -> hl.types.Profile:
    placement = hl.Placement(on_acc(model, core, *ops), "mine", {"CPU": in_cpu})
    return hl.profile(model, placement, core=core, **{**QUICK, **more})


@needs_low
def test_transitions_at_boundaries_are_those_between_the_devices(low_core, tmp_path):
    found = measure(convolutions(8), low_core, *FIRST)
    frame = found.precision_transitions
    assert list(frame.columns) == TRANSITION_COLUMNS
    crossing = frame[frame["where"] == "boundary"]
    (boundary,) = found.partition.boundaries
    assert crossing["producer"].tolist() == [boundary.op]
    row = crossing.iloc[0]
    assert (row["from_device"], row["to_device"]) == ("ACC", "CPU")
    assert (row["from_precision"], row["to_precision"]) == (LOW, "f32")
    assert row["handed_over_as"] == "f32"
    assert row["n_bytes"] == boundary.n_bytes
    assert (row["from_subgraph"], row["to_subgraph"]) == (0, 1)
    by_op = found.tables["placement"].set_index("op")["precision"]
    assert set(by_op[FIRST]) == {LOW}
    for _, row in frame.iterrows():
        assert by_op[row["producer"]] == row["from_precision"]
        assert by_op[row["consumer"]] == row["to_precision"]
    words = found.tables["subgraphs"]["precisions"].tolist()
    assert words[0] == f"3 {LOW}"
    assert LOW not in words[1]
    assert f"3 {LOW}" in found.report()

    found.export(tmp_path / "p")
    again = hl.read_profile(tmp_path / "p").precision_transitions
    assert again.equals(frame)
    stored = read_csv(tmp_path / "p" / "transitions.csv")
    assert stored["producer"].tolist() == frame["producer"].tolist()


@needs_low
def test_two_low_devices_hand_over_in_the_models_type(low_core):
    low = {"INFERENCE_PRECISION_HINT": LOW}
    found = measure(convolutions(8), low_core, *FIRST, in_cpu=low)
    frame = found.precision_transitions
    precision = found.tables["placement"].set_index("op")["precision"]
    (boundary,) = found.partition.boundaries
    row = frame[frame["where"] == "boundary"].iloc[0]
    assert row["producer"] == boundary.op
    assert row["from_precision"] == LOW
    assert row["to_precision"] == precision[row["consumer"]]
    assert row["handed_over_as"] == "f32"


def test_all_in_f32_there_are_none(core):
    model = convolutions()  # large enough that its ops take a microsecond
    found = measure(model, core, "softmax")
    assert len(found.partition.boundaries) > 0
    assert found.precision_transitions.empty
    assert list(found.precision_transitions.columns) == TRANSITION_COLUMNS


def test_without_counters_there_is_no_such_table():
    found = small_profile(counters=())
    assert "transitions" not in found.tables
    assert set(found.tables["subgraphs"]["precisions"]) == {""}
    with pytest.raises(MeasurementError, match="counters=True"):
        found.precision_transitions  # noqa: B018


def test_booleans_and_integers_are_no_precision(low_core):
    x = op.parameter([1, 256], ov.Type.i32, name="x")
    same = op.equal(x, op.constant(np.int32(1)), name="same")
    floats = op.convert(same, "f32", name="floats")
    weights = op.constant(np.ones((256, 64), np.float32))
    model = ov.Model([op.matmul(floats, weights, False, False, name="m")], [x], "hot")
    found = measure(model, low_core, "same", "floats", "m")
    assert {c.precision for c in found.counters if c.op == "floats"} <= {"boolean", ""}
    assert found.precision_transitions.empty


def test_a_tally_begins_with_the_most_frequent():
    assert tally(["f32", "bf16", "", "bf16"]) == "2 bf16, 1 f32"
    assert tally([]) == ""


def test_an_interval_that_begins_at_0_has_no_highest_rate():
    further = Latency(((100.0,), (300.0,)))
    generation = Generation(Scenario(4, 3, batch=2), Latency(((500.0,),)), further, ())
    columns = generation_columns(generation, Estimate(200.0, 0.0, 400.0))
    assert columns["tpot_ci95_low_ms"] == 0.0
    assert columns["tokens_per_s"] == 10_000.0
    assert columns["tokens_per_s_ci95_low"] == 5_000.0
    assert columns["tokens_per_s_ci95_high"] == math.inf


def test_the_lines_of_counters_add_up_real_and_cpu_time_by_themselves():
    counters = [
        counter(0, "ACC", "op", "first", 2000.0, node_type="Relu", cpu_time_us=1000.0),
        counter(1, "CPU", "op", "second", 500.0, node_type="Abs", cpu_time_us=250.0),
    ]
    first, second, real, cpu = counter_lines(counters, hetero=True)
    assert first.startswith("subgraph0: first ")
    assert first.endswith("realTime (ms): 2.000      cpuTime (ms): 1.000     ")
    assert "layerType: Abs" in second
    assert "cpuTime (ms): 0.250" in second
    assert real == "Total time:     2.500 milliseconds"
    assert cpu == "Total CPU time: 1.250 milliseconds"
    assert next(counter_lines(counters, hetero=False)).startswith("first ")


@pytest.mark.parametrize(("batch", "said"), [(1, "4 tokens"), (2, "4 tokens of 2 sequences")])
def test_a_report_says_how_many_sequences_were_generated(batch, said):
    steps = Latency(((100.0,), (100.0,)))
    scenario = Scenario(4, 3, batch=batch)
    profile = small_profile(generation=Generation(scenario, steps, steps, ((1, 2, 3),) * batch))
    line = next(line for line in profile.report().splitlines() if "First token" in line)
    assert line.endswith(f"after a prompt of {said}")
    assert "2 generations of 3 tokens" in profile.report()


def columns(frame: pd.DataFrame, *names: str) -> list[tuple[Any, ...]]:
    """Return the rows of some columns."""
    return list(frame[list(names)].itertuples(index=False, name=None))


def test_the_tables_by_hand():
    """ACC: matmul with relu; CPU: softmax; ACC: add. Both tensors that cross have 32 bytes."""
    tables = small_profile().tables
    summary = tables["summary"].iloc[0]
    # The middle of eight inferences; ten, five and three of them in ops, two and one in reorders.
    assert summary[["median_us", "ops_us", "reorders_us", "rest_us"]].tolist() == [103, 18, 3, 82]
    assert summary[["n_ops", "n_subgraphs", "n_boundaries", "boundary_bytes"]].tolist() == [
        4, 3, 2, 64,
    ]  # fmt: skip
    assert not summary["counters_exceed_latency"]
    subgraphs = tables["subgraphs"]
    assert columns(subgraphs, "device", "emulated", "n_ops", "n_executed", "ops") == [
        ("ACC", True, 2, 2, "matmul\nrelu"), ("CPU", False, 1, 1, "softmax"),
        ("ACC", True, 1, 2, "add"),
    ]  # fmt: skip
    assert columns(subgraphs, "ops_us", "reorders_us", "precisions") == [
        (10.0, 2.0, "2 bf16"), (5.0, 0.0, "1 f32"), (3.0, 1.0, "1 bf16"),
    ]  # fmt: skip
    assert columns(subgraphs, "n_inputs", "input_bytes", "n_outputs", "output_bytes") == [
        (0, 0, 1, 32), (1, 32, 1, 32), (2, 64, 0, 0),
    ]  # fmt: skip
    boundaries = tables["boundaries"]
    ends = ["source", "source_device", "targets", "target_devices"]
    assert columns(boundaries, "tensor", *ends) == [
        ("relu", 0, "ACC", "1 2", "CPU ACC"), ("softmax", 1, "CPU", "2", "ACC"),
    ]  # fmt: skip
    assert columns(boundaries, "shape", "element_type", "n_bytes", "reorder_us") == [
        ("1x8", "f32", 32, 2.0), ("1x8", "f32", 32, 1.0),
    ]  # fmt: skip
    placement = tables["placement"]
    assert columns(placement, "op", "op_type", "device", "emulated", "subgraph") == [
        ("matmul", "MatMul", "ACC", True, 0), ("relu", "Relu", "ACC", True, 0),
        ("softmax", "Softmax", "CPU", False, 1), ("add", "Add", "ACC", True, 2),
    ]  # fmt: skip
    assert columns(placement, "output_bytes", "fused_with", "precision", "time_us") == [
        (32, "", "bf16", 10.0), (32, "matmul", "bf16", 0.0), (32, "", "f32", 5.0),
        (32, "", "bf16", 3.0),
    ]  # fmt: skip
    counters = tables["counters"]
    assert columns(counters, "subgraph", "device", "emulated", "kind", "op", "fused_ops") == [
        (0, "ACC", True, "op", "matmul", "relu"), (0, "ACC", True, "reorder", "", ""),
        (1, "CPU", False, "op", "softmax", ""), (2, "ACC", True, "op", "add", ""),
        (2, "ACC", True, "reorder", "", ""),
    ]  # fmt: skip
    fast = replace(small_profile(), latency=Latency(((20.0, 20.0),)))
    assert fast.tables["summary"].iloc[0]["counters_exceed_latency"]


def test_the_page_of_a_profile_has_its_subgraphs():
    page = Outline(small_profile()._repr_html_())
    assert page.tags.count("table") == 1
    assert {"Subgraphs"} <= {text.strip() for texts in page.text.values() for text in texts}
    assert [cell for cell in page.cells if cell in ("ACC", "CPU")] == ["ACC", "CPU", "ACC"]
