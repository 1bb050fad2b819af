"""Whether a plan keeps memory limits as measured, on CPU devices.

    python -m tests.benchmarks.benchmark_memory [--prompt 64] [--new 32] [--costs costs.json]

The memory of a language model is measured once (:func:`hetero_lab.llm.measure_memory`), and a plan
made for three limits of an emulated device and the CPU. Each plan then runs in two processes of
its own: subgraph by subgraph, which tells the devices apart, and by HETERO, where the private
memory of the process is that of both. Exits with 1 where a device takes more than its limit.
Costs are calibrated first unless they are kept in a file; how good they are does not matter here.
What the runtime takes for a model of a few ops is not part of the memory, nor is a mapped file.
Needs the extra ``llm``; Linux only.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hetero_lab as hl
from hetero_lab.devices.core import bind
from hetero_lab.llm.private_memory import bytes_by_part, bytes_of_process
from hetero_lab.placement.placement import resolve
from tests.scripts import F32, in_own_process, kept_costs, options

MODEL, DEVICES = "smollm2_135m", ["ACC", "CPU"]
EXACT = {**F32, "KV_CACHE_PRECISION": "f32"}
BUDGET_S = 40.0
SHARES = (0.25, 0.5, 0.75)  # of what the whole model takes, for the first device
SPARE = 0.2  # so much more of it than the rest, for the second one


def costs_of(model: hl.LoadedModel, scenario: hl.Scenario, file: Path | None) -> hl.CostModel:
    """Return costs with measured memory, from a file if they are there."""

    def make() -> hl.CostModel:
        costs = hl.calibrate(
            model, DEVICES, scenario=scenario, budget_s=BUDGET_S, validate=0,
            device_properties=dict.fromkeys(DEVICES, EXACT), progress=False,
        )  # fmt: skip
        return hl.llm.measure_memory(model, costs)

    return kept_costs(file, make)


def run(affinity: hl.Affinity, scenario: hl.Scenario, by: str) -> dict[str, Any]:
    """Return the bytes that a placement takes in this process, of each device or in all."""
    bound = bind(hl.load(MODEL))
    if by == "device":
        return bytes_by_part(bound, affinity, "CPU", EXACT, scenario)
    placement = hl.Placement(affinity, "planned", dict.fromkeys(affinity.devices, EXACT))
    return {"process": sum(bytes_of_process(resolve(bound, placement), scenario))}


def main() -> None:
    """Print limits beside what was counted and measured."""
    # --run is for the process that measures: a placement, and by what.
    given = options(__doc__, prompt=64, new=32, costs=Path, run=list)
    scenario = hl.Scenario(given.prompt, given.new)
    hl.emulate(DEVICES[0])
    if given.run:
        print(json.dumps(run(hl.Affinity.from_json(given.run[0]), scenario, given.run[1])))
        return
    model = hl.load(MODEL)
    costs = costs_of(model, scenario, given.costs)
    whole = sum(hl.plan(model, costs, pin={"": "CPU"}, progress=False).memory_bytes.values())
    print(f"The whole model takes {whole / 1e6:.1f} MB on one device.")
    kept = True
    with TemporaryDirectory() as directory:
        for share in SHARES:
            limits = {
                DEVICES[0]: int(share * whole),
                DEVICES[1]: int((1 - share + SPARE) * whole),
            }
            plan = hl.plan(model, costs, memory_limit=limits, progress=False)
            file = Path(directory) / "plan.json"
            plan.affinity.to_json(file)
            found: dict[str, Any] = {}
            for by in ("device", "process"):
                command = [f"--prompt={given.prompt}", f"--new={given.new}", "--run", file, by]
                found |= in_own_process("tests.benchmarks.benchmark_memory", *command)
            for device, limit in limits.items():
                counted, measured = plan.memory_bytes[device], sum(found.get(device, [0]))
                kept &= measured <= limit
                print(
                    f"{device}: limit {limit / 1e6:6.1f} MB, planned {counted / 1e6:6.1f}, "
                    f"measured {measured / 1e6:6.1f}", end="; ",
                )  # fmt: skip
            counted = sum(plan.memory_bytes.values())
            kept &= found["process"] <= sum(limits.values())
            print(
                f"both: limits {sum(limits.values()) / 1e6:.1f}, planned {counted / 1e6:.1f}, "
                f"measured with HETERO {found['process'] / 1e6:.1f}", flush=True,
            )  # fmt: skip
    sys.exit(not kept)


if __name__ == "__main__":
    main()
