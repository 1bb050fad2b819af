"""How well costs by layer predict a language model on placements that were not measured.

    python -m tests.benchmarks.benchmark_layers [--budget 90] [--compiles 2] [--keep DIRECTORY]

SmolLM2 is calibrated over CPU with two threads and with one. Then 12 placements that were not
measured, cut once, in both directions, run in turns with each other and with each device alone,
each compiled several times; what the costs predict is compared with the median. The machine may
have become faster or slower since: the devices alone, which the costs know, tell by how much.
With ``--keep`` costs and measurements are kept, and later calls go on from there. Needs the extra
``llm``, and a quiet machine.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import hetero_lab as hl
from tests.scripts import kept_costs, options

MODEL, DEVICES = "smollm2_135m", ["CPU", "SLOW"]
SCENARIO = hl.Scenario(64, 8)
# A split on CPU devices obeys the number of threads only with the other two.
ONE_THREAD = {
    "INFERENCE_NUM_THREADS": 1,
    "EXCLUSIVE_ASYNC_REQUESTS": False,
    "ENABLE_CPU_PINNING": False,
}
UNSEEN_AFTER = [2, 7, 12, 17, 22, 27]


def measured(model, placements: list[hl.Placement], turns: int, seed: int) -> dict[str, list]:
    """Compile each placement once; return the times of a further and of the first token in ms."""
    first, *others = placements
    order = np.random.default_rng(seed).permutation(len(others))
    made = hl.sweep(
        model, [first, *(others[i] for i in order)], scenario=SCENARIO, turns=turns, budget_s=None,
        counters=False, reference=False, baselines=False, isolate=False, progress=False,
    )  # fmt: skip
    found = ((row.label, row.profile and row.profile.generation) for row in made.rows)
    return {label: [made.tpot_ms, made.ttft_ms] for label, made in found if made}


def main() -> None:
    """Print a line a placement, and the mean errors of further and first tokens."""
    given = options(__doc__, budget=90.0, compiles=2, turns=3, keep=Path)
    hl.emulate("SLOW", properties=ONE_THREAD)
    model = hl.load(MODEL)
    costs = kept_costs(
        given.keep and given.keep / "costs.json",
        lambda: hl.calibrate(
            model, DEVICES, scenario=SCENARIO, budget_s=given.budget, progress=False
        ),
    )
    print(costs)
    assert costs.prefill is not None
    known = [hl.Placement(hl.Affinity.uniform(model, device), device) for device in DEVICES]
    unseen = hl.block_cuts(model, DEVICES, after=UNSEEN_AFTER)
    file = given.keep and given.keep / "measured.json"
    runs: list[dict[str, list]] = json.loads(file.read_text()) if file and file.exists() else []
    for _ in range(2 * given.compiles):  # half of them at a time, so that little is lost
        half = unseen[len(runs) % 2 :: 2]
        runs.append(measured(model, [*known, *half], given.turns, len(runs)))
        if file:
            file.write_text(json.dumps(runs))
    if len(runs) < 2:
        return
    for number, (what, phase) in enumerate(
        (("further token", costs), ("first token", costs.prefill))
    ):
        alone_ms = sum(phase.predict_us(p.affinity) for p in known) / 1e3
        speeds = [sum(run[p.label][number] for p in known) / alone_ms for run in runs]
        errors = []
        for placement in unseen:
            took = [
                run[placement.label][number] / speed
                for run, speed in zip(runs, speeds, strict=True)
                if placement.label in run
            ]
            took_ms = float(np.median(took))
            predicted_ms = phase.predict_us(placement.affinity) / 1e3
            errors.append(predicted_ms / took_ms - 1.0)
            print(f"{what} {placement.label:<24}{predicted_ms:8.2f} ms predicted, {took_ms:8.2f} "
                  f"measured ({errors[-1]:+.1%})")  # fmt: skip
        found = np.array(errors)
        slower = ", ".join(f"{speed:.2f}" for speed in speeds)
        print(
            f"{what}: {len(found)} unseen placements, {len(runs) / 2:g} compiles of each: mean "
            f"error {np.abs(found).mean():.1%}, worst {np.abs(found).max():.1%}, bias "
            f"{found.mean():+.1%}; the machine was slower by {slower}"
        )


if __name__ == "__main__":
    main()
