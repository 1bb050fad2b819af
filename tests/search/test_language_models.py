"""Searches for the placement of a small language model, measured for real."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace

import pytest
from counting_core import F32
from msgspec import structs
from small_language_models import decoder

import hetero_lab as hl
from hetero_lab.costs.cost_model import BoundaryCost, CostModel, Unit
from hetero_lab.costs.design import block_units
from hetero_lab.errors import MeasurementError
from hetero_lab.model.read import prepare
from hetero_lab.model.static_phases import graph_at_context

pytestmark = pytest.mark.slow

EXACT = {**F32, "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
PROPERTIES = {"ACC": EXACT, "CPU": EXACT}
SCENARIO = hl.Scenario(prompt_tokens=5, new_tokens=8)


@pytest.fixture(scope="module")
def model():
    return hl.load(decoder(4, empty_from="layer"))


def n_runs(affinity: hl.Affinity, costs: CostModel) -> int:
    """Return how often the device changes along the layers, and one."""
    devices = [{affinity[op] for op in unit.ops} for unit in costs.units]
    assert all(len(found) == 1 for found in devices)
    return len([*itertools.groupby(devices)])


def test_costs_of_a_language_model(model, core, tmp_path):
    costs = hl.calibrate(
        model, ["ACC", "CPU"], scenario=SCENARIO, budget_s=None, device_properties=PROPERTIES,
        core=core, progress=False,
    )  # fmt: skip
    assert costs.scenario == SCENARIO
    assert len(costs.units) == 4 + 2
    assert costs.prefill is not None
    assert costs.validation_rows
    assert {row.n_subgraphs for row in costs.validation_rows} == {2}
    assert len(costs.prefill.validation_rows) == len(costs.validation_rows)
    alone = hl.Affinity.by_block(model, {"0-3": "CPU"}, core=core)
    assert costs.predict_tpot_ms(alone) == costs.predict_us(alone) / 1e3 > 0
    assert costs.predict_ttft_ms(alone) > 0
    costs.to_json(tmp_path / "costs.json")
    read = CostModel.from_json(tmp_path / "costs.json")
    assert read.predict_ttft_ms(alone) == costs.predict_ttft_ms(alone)
    best = hl.plan(model, read, progress=False)
    assert best.predicted_us <= read.predict_us(alone)
    assert hl.plan(model, read.prefill, progress=False).lower_bound_us > 0
    needed = sum(hl.plan(model, read, pin={"": "CPU"}, progress=False).memory_bytes.values())
    limits = {"ACC": int(0.8 * needed), "CPU": int(0.8 * needed)}
    planned = hl.plan(model, read, memory_limit=limits, progress=False)
    assert planned.predicted_us >= best.predicted_us
    # A boundary in one direction may be measured to cost nothing, and then more of them may pay.
    dear = {pair: structs.replace(cost, fixed_us=1e4) for pair, cost in read.boundaries.items()}
    dear_costs = replace(read, boundaries=dear)
    assert n_runs(hl.plan(model, dear_costs, progress=False).affinity, costs) == 1
    planned = hl.plan(model, dear_costs, memory_limit=limits, progress=False)
    assert n_runs(planned.affinity, costs) == 2
    assert all(planned.memory_bytes[device] <= limit for device, limit in limits.items())


def test_what_is_optimised_has_the_right_tokens(model, core):
    best = hl.optimize(
        model, ["ACC", "CPU"], scenario=SCENARIO, budget_s=12.0, device_properties=PROPERTIES,
        isolate=False, core=core, progress=False,
    )  # fmt: skip
    assert {"optimized", "greedy", "CPU"} <= {*best.summary["label"]}
    assert n_runs(best.placement.affinity, best.costs) <= 2
    (row,) = (row for row in best.sweep.rows if row.label == "optimized")
    assert row.profile.generation.scenario == SCENARIO
    assert {a.output: a.verdict for a in row.profile.agreement} == {
        "logits": "equal",
        "token_ids": "equal",
    }


def equal_costs(model) -> CostModel:
    """Return costs by which all placements are alike."""
    graph = graph_at_context(prepare(model), SCENARIO.context_tokens)
    costs = CostModel(
        graph=graph,
        devices=("ACC", "CPU"),
        units=tuple(Unit(ops, (1.0, 1.0)) for ops in block_units(graph)),
        boundaries=dict.fromkeys(itertools.product(["ACC", "CPU"], repeat=2), BoundaryCost(1.0)),
        subgraph_us={"ACC": 1.0, "CPU": 1.0},
        device_properties=PROPERTIES,
        scenario=SCENARIO,
    )
    return replace(costs, prefill=costs)


ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="no other system tells")


@ON_LINUX
def test_memory_is_measured_in_a_process_of_its_own(model, core, tmp_path):
    costs = equal_costs(model)
    measured = hl.llm.measure_memory(model, costs, core=core, progress=False)
    assert measured.measured_memory["ACC"] == measured.measured_memory["CPU"]
    assert measured.prefill.measured_memory == measured.measured_memory
    parts = measured.measured_memory["CPU"]
    assert sorted(part.units for part in parts) == [
        (0,), (0, 1, 2, 3, 4, 5), (1,), (2,), (3,), (4,), (5,)
    ]  # fmt: skip
    # A plugin has code and room to work in for each op besides its weights.
    assert sum(part.weight_bytes for part in parts) > costs.graph.weight_bytes
    longer = replace(costs, scenario=hl.Scenario(600, 2))
    more = hl.llm.measure_memory(model, replace(longer, prefill=longer), core=core, progress=False)
    at_600, at_5 = (
        sum(part.state_bytes for part in found.measured_memory["CPU"]) for found in (more, measured)
    )
    logits_bytes = 600 * 97 * 4
    assert at_600 > at_5 + logits_bytes
    measured.to_json(tmp_path / "costs.json")
    read = CostModel.from_json(tmp_path / "costs.json")
    assert read.measured_memory == measured.measured_memory
    assert read.prefill is not None
    assert read.prefill.measured_memory == measured.measured_memory


@ON_LINUX
def test_memory_of_a_model_that_cannot_be_cut_there_is_not_measured(core):
    shared = hl.load(decoder(4))  # its layers share the op that shapes their empty states
    with pytest.raises(MeasurementError, match="not measured: .*not a valid model by itself"):
        hl.llm.measure_memory(shared, equal_costs(shared), core=core, progress=False)
