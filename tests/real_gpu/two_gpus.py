"""A model over two GPUs and the CPU: outputs, memory of each device and latency.

    python -m tests.real_gpu.two_gpus [--devices GPU.0 GPU.1 CPU] [--emulate] [--model NAME]

A line of JSON for each placement as it is measured, then a table: single devices, HETERO's greedy
order, halves, and what is planned with an objective that shares the weights or with limits for a
device and for a pool. Memory is what the plan counts, beside what the runtime reports more than
before the compile (GPU plugin only). With ``--emulate`` the GPUs are two emulated devices.
``--model`` is a sample or a file instead of layers of equal weights; ``--budget`` is for the costs.
The exit code is 1 if a placement did not run, or a plan does not keep to its limit. Wrong outputs
are reported: what a plugin computes is not the plan's doing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from openvino import Model, opset13 as op

import hetero_lab as hl
from hetero_lab.backend.bound import BoundModel, bind
from hetero_lab.backend.core import shared_core
from hetero_lab.errors import HeteroLabError
from hetero_lab.experiments.advise.candidates import held_bytes
from hetero_lab.placement.placement import resolve
from hetero_lab.runtime.compiled import CompiledPlacement, compile_placed
from hetero_lab.runtime.inputs import generate_inputs
from tests.scripts import F32, alone, error_of, in_turns, medians, options

TURNS, IN_A_TURN = 8, 5


def layers(count: int, width: int) -> Model:
    """Build residual layers of equal weights, ``4 * width**2`` bytes each."""
    random = np.random.default_rng(0)
    x = op.parameter([16, width], np.float32, name="x")
    tensor = x
    for number in range(count):
        weights = (random.standard_normal((width, width)) / width).astype(np.float32)
        product = op.matmul(tensor, weights, False, False, name=f"layer{number}/matmul")
        active = op.relu(product, name=f"layer{number}/relu")
        tensor = op.add(active, tensor, name=f"layer{number}/add")
    return Model([op.result(tensor, name="y")], [x], f"layers_{count}x{width}")


def first_half(bound: BoundModel, first: str, second: str) -> hl.Affinity:
    """Place the ops with the first half of the weights on one device, the others on another."""
    graph = bound.graph
    whole, before, device_of = graph.weight_bytes, 0, {}
    for index in graph.placeable:
        sources = [graph.ops[producer] for producer, _ in graph.ops[index].inputs]
        before += sum(s.outputs[0].n_bytes or 0 for s in sources if s.type == "Constant")
        device_of[graph.ops[index].name] = first if 2 * before <= whole else second
    return hl.Affinity.uniform(bound, first).fix(device_of)


def placements(
    bound: BoundModel, devices: tuple[str, str, str], budget_s: float
) -> Iterator[tuple[str, hl.Affinity, Mapping[Any, int]]]:
    """Yield labels, placements, and the limits that each was planned with."""
    first, second, last = devices
    for device in devices:
        yield device, hl.Affinity.uniform(bound, device), {}
    yield "greedy", hl.Affinity.automatic(bound, devices), {}
    yield f"halves {first}, {second}", first_half(bound, first, second), {}
    yield f"halves {first}, {last}", first_half(bound, first, last), {}
    properties = dict.fromkeys(devices, F32)
    costs = hl.calibrate(
        bound, devices, budget_s=budget_s, device_properties=properties, progress=False
    )
    whole = bound.graph.weight_bytes
    asked: dict[str, dict[str, Any]] = {
        "planned": {},
        "planned, shared by all": {"objective": "balanced_memory"},
        "planned, shared by two": {
            "objective": "balanced_memory", "memory_limit": {last: whole // 50},
        },
        # The others are limited, too, so that they cannot take all.
        f"planned, {first} 40 %": {
            "memory_limit": {first: whole * 2 // 5, second: whole * 7 // 10, last: whole // 50},
        },
        "planned, both 40 %": {
            "memory_limit": {first: whole * 2 // 5, second: whole * 2 // 5, last: whole * 3 // 10},
        },
        "planned, pool of both 65 %": {
            "memory_limit": {(first, second): whole * 13 // 20, last: whole * 3 // 5},
        },
    }  # fmt: skip
    for label, limited in asked.items():
        plan = hl.plan(bound, costs, budget_s=4, progress=False, **limited)
        yield label, plan.affinity, limited.get("memory_limit", {})


def reported_bytes(device: str) -> int | None:
    """Return what a GPU plugin says that it has allocated; None for any other device."""
    try:
        statistics = shared_core().get_property(device, "GPU_MEMORY_STATISTICS")
    except RuntimeError:
        return None
    return sum(int(n_bytes) for n_bytes in statistics.values())


def measured(
    bound: BoundModel,
    devices: tuple[str, ...],
    label: str,
    affinity: hl.Affinity,
    limits: Mapping[Any, int],
    expected: Mapping[str, np.ndarray],
) -> tuple[dict[str, Any], CompiledPlacement | None]:
    """Compile a placement and run it once; return its row."""
    single = len(affinity.devices) == 1
    own = dict.fromkeys(affinity.devices, F32)
    placement = hl.Placement(affinity, label, own, direct=single)
    counted = held_bytes(bound.graph, placement, devices).sum(axis=1)
    row: dict[str, Any] = {"placement": label, "error": None, "latency_us": None}
    keeps = all(
        sum(counted[devices.index(d)] for d in ([key] if isinstance(key, str) else key)) <= limit
        for key, limit in limits.items()
    )
    row["keeps_limits"] = bool(keeps) if limits else None
    before = {device: reported_bytes(device) for device in devices}
    try:
        compiled = compile_placed(resolve(bound, placement))
        outputs = compiled(generate_inputs(bound, 0))
    except HeteroLabError as error:
        return {**row, "status": str(error)}, None
    after = {device: reported_bytes(device) for device in devices}
    for device, n_bytes in zip(devices, counted.tolist(), strict=True):
        was, now = before[device], after[device]
        row[f"{device} counted_mb"] = round(n_bytes / 1e6, 2)
        row[f"{device} reported_mb"] = (
            None if was is None or now is None else round((now - was) / 1e6, 2)
        )
    row["error"] = error_of(outputs, expected)
    row["subgraphs"] = hl.partition(bound, placement).n_subgraphs
    row["compile_ms"] = round(compiled.compile_ms, 1)
    return {**row, "status": "ok"}, compiled


def main() -> int:
    """Measure every placement, then time all that run, in turns."""
    given = options(
        __doc__, devices=["GPU.0", "GPU.1", "CPU"], emulate=False, model=str, layers=16,
        width=1024, budget=15.0,
    )  # fmt: skip
    if given.emulate:
        given.devices = [hl.emulate(name).name for name in ("SIM0", "SIM1")] + ["CPU"]
    if len(given.devices) != 3:
        raise SystemExit("Name two GPUs and a third device, for instance GPU.0 GPU.1 CPU.")
    first, second, last = given.devices
    devices = first, second, last
    began = time.perf_counter()
    bound = bind(hl.load(given.model or layers(given.layers, given.width)))
    inputs = generate_inputs(bound, 0)
    expected = compile_placed(resolve(bound, alone(bound, "CPU")))(inputs)
    print(json.dumps({"model": bound.graph.name, "weights_mb": bound.graph.weight_bytes / 1e6}))
    rows, running = [], {}
    for label, affinity, limits in placements(bound, devices, given.budget):
        row, compiled = measured(bound, devices, label, affinity, limits, expected)
        rows.append(row)
        if compiled is not None:
            running[label] = compiled.new_request(inputs).infer
        print(json.dumps(row), flush=True)
    latencies = medians(in_turns(running, TURNS, IN_A_TURN, discarded=0))
    for row in rows:
        if row["placement"] in latencies:
            row["latency_us"] = round(latencies[row["placement"]], 1)
            print(json.dumps({key: row[key] for key in ("placement", "latency_us")}))
    print(pd.DataFrame(rows).to_string(index=False))
    print(f"{time.perf_counter() - began:.0f} s")
    failed = [row for row in rows if row["status"] != "ok" or row["keeps_limits"] is False]
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
