"""How often a sweep tells equal placements apart, and whether it sees a difference of 3 %.

Run by hand: ``python tests/benchmarks/benchmark_evidence.py [--sweeps 40] [--busy]``. Prints
how many A/A sweeps put the two equal placements into different groups, and how many sweeps of
34 against 33 equal matmuls told them apart within a budget of 30 s. ``--busy`` keeps one core
busy with another process meanwhile.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time

import numpy as np
import openvino as ov
from openvino import opset13 as op

import hetero_lab as hl

SIZE = 256
F32 = {"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}


def matmuls(count: int) -> ov.Model:
    """Build a chain of equal matmuls."""
    rng = np.random.default_rng(0)
    x = op.parameter([SIZE, SIZE], np.float32, name="x")
    node = x
    for index in range(count):
        weight = op.constant((rng.normal(size=(SIZE, SIZE)) / 16).astype(np.float32))
        node = op.matmul(node, weight, False, False, name=f"matmul{index}")
    return ov.Model([node], [x], f"matmuls{count}")


def differs(sweep: hl.Sweep, first: str, second: str) -> bool:
    """Whether the ranking puts two rows into different groups."""
    groups = dict(zip(sweep.ranking["label"], sweep.ranking["group"], strict=True))
    return groups[first] != groups[second]


def aa_sweep(budget_s: float) -> bool:
    """Sweep the same placement twice; return whether they were declared different."""
    model = hl.load("digits_inception")
    placement = hl.Placement(hl.Affinity.uniform(model, "CPU"), "A", F32)
    sweep = hl.sweep(
        model, [placement, placement], dedupe=False, budget_s=budget_s, counters=False,
        progress=False,
    )  # fmt: skip
    print(
        sweep.ranking[["label", "group", "ratio", "ratio_ci95_low", "ratio_ci95_high"]].to_string(
            index=False
        )
    )
    return differs(sweep, "A", "A #2")


def ab_sweep(budget_s: float) -> bool:
    """Sweep 34 against 33 matmuls; return whether they were told apart."""
    models = {"34": matmuls(34), "33": matmuls(33)}
    placements = [hl.Placement(hl.Affinity.uniform(hl.load(models["34"]), "CPU"), "m", F32)]
    del placements
    sweep = hl.sweep(models, ["CPU"], budget_s=budget_s, counters=False, progress=False)
    print(
        sweep.ranking[["label", "group", "ratio", "ratio_ci95_low", "ratio_ci95_high"]].to_string(
            index=False
        )
    )
    return differs(sweep, *sweep.summary["label"][:2])


def _burn() -> None:
    while True:
        pass


def main() -> None:
    """Run both and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=40)
    parser.add_argument("--ab-sweeps", type=int, default=5)
    parser.add_argument("--budget", type=float, default=10.0)
    parser.add_argument("--busy", action="store_true")
    options = parser.parse_args()
    busy = multiprocessing.Process(target=_burn, daemon=True)
    if options.busy:
        busy.start()
    started = time.perf_counter()
    wrong = sum(aa_sweep(options.budget) for _ in range(options.sweeps))
    print(f"A/A: declared different in {wrong} of {options.sweeps}")
    seen = sum(ab_sweep(30.0) for _ in range(options.ab_sweeps))
    print(f"34 against 33 matmuls: told apart in {seen} of {options.ab_sweeps}")
    print(f"took {time.perf_counter() - started:.0f} s, busy={options.busy}")
    if options.busy:
        busy.terminate()


if __name__ == "__main__":
    main()
