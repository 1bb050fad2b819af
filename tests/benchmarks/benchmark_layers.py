"""How well costs by layer predict a language model on placements that were not measured.

    python -m tests.benchmarks.benchmark_layers [--budget 90] [--compiles 2] [--costs costs.json]

SmolLM2 is calibrated over CPU with two threads and with one. Then 12 placements that were not
measured, cut once, in both directions, run in turns with each other and with each device alone,
each compiled several times; what the costs predict is compared with the median. The machine may
have become faster or slower since: the devices alone, which the costs know, tell by how much. With
``--costs`` the costs are kept, and read if they are there. Needs the extra
``llm``, and a quiet machine.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

import hetero_lab as hl

UNSEEN = 12
MODEL, DEVICES = "smollm2_135m", ["CPU", "SLOW"]


def unseen(model) -> list[hl.Placement]:
    """Return placements cut behind every fifth layer, in both directions."""
    cuts = hl.block_cuts(model, DEVICES, after=[2, 7, 12, 17, 22, 27])
    return cuts[:UNSEEN]


def main() -> None:
    """Print a line a placement and the mean errors of further and first tokens."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--budget", type=float, default=90.0)
    parser.add_argument("--compiles", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--costs", type=Path)
    given = parser.parse_args()
    hl.emulate("SLOW", properties={"INFERENCE_NUM_THREADS": 1})
    model, scenario = hl.load(MODEL), hl.Scenario(64, 8)
    started = time.perf_counter()
    if given.costs is not None and given.costs.exists():
        costs = hl.CostModel.from_json(given.costs)
    else:
        costs = hl.calibrate(
            model, DEVICES, scenario=scenario, budget_s=given.budget, validate=0, progress=False
        )
        if given.costs is not None:
            costs.to_json(given.costs)
    print(f"{costs!r}, {time.perf_counter() - started:.0f} s")
    known = [
        hl.Placement(hl.Affinity.uniform(model, device), device, direct=True) for device in DEVICES
    ]
    placements = [*known, *unseen(model)]
    further: dict[str, list[float]] = {p.label: [] for p in placements}
    first: dict[str, list[float]] = {p.label: [] for p in placements}
    rng = np.random.default_rng(0)
    for _ in range(given.compiles):
        made = hl.sweep(
            model, [placements[0], *(placements[i] for i in 1 + rng.permutation(UNSEEN + 1))],
            scenario=scenario,
            turns=given.turns, counters=False, reference=False, baselines=False, isolate=False,
            progress=False,
        )  # fmt: skip
        for row in made.rows:
            if row.profile is not None and row.profile.generation is not None:
                further[row.label].append(row.profile.generation.tpot_ms)
                first[row.label].append(row.profile.generation.ttft_ms)
    if not given.compiles:
        return
    levels = [float(np.median(further[p.label])) for p in known]
    firsts = [float(np.median(first[p.label])) for p in known]
    drift = np.mean(levels) / np.mean([costs.predict_tpot_ms(p.affinity) for p in known])
    drift_first = np.mean(firsts) / np.mean([costs.predict_ttft_ms(p.affinity) for p in known])
    print(f"the machine is slower now by {drift:.2f} (further tokens), {drift_first:.2f} (first)")
    errors: list[tuple[float, float]] = []
    for placement in placements:
        tpot_ms, ttft_ms = (float(np.median(m[placement.label])) for m in (further, first))
        predicted = drift * costs.predict_tpot_ms(placement.affinity)
        predicted_first = drift_first * costs.predict_ttft_ms(placement.affinity)
        errors.append((predicted / tpot_ms - 1.0, predicted_first / ttft_ms - 1.0))
        print(
            f"{placement.label:<32} further {predicted:7.2f} ms predicted, {tpot_ms:7.2f} measured "
            f"({errors[-1][0]:+.1%}); first {predicted_first:7.1f}, {ttft_ms:7.1f} "
            f"({errors[-1][1]:+.1%})",
            flush=True,
        )
    for name, found in zip(("further token", "first token"), np.array(errors[2:]).T, strict=True):
        print(
            f"{name}: mean error {np.abs(found).mean():.1%}, worst {np.abs(found).max():.1%}, "
            f"bias {found.mean():+.1%}"
        )


if __name__ == "__main__":
    main()
