"""How often a sweep tells equal placements apart, and whether it sees a difference of 3 %.

Run by hand: ``python -m tests.benchmarks.benchmark_evidence [--busy]``. Prints how many A/A sweeps
put two equal placements into different groups, and how many sweeps of 34 against 33 equal matmuls,
which is 3 % more work, told them apart within a budget of 30 s, 60 s with ``--busy``. That keeps
one core busy with another process meanwhile. It wants the machine for itself; ``--aa`` and
``--ab`` say how many sweeps of each, so that it can be done in pieces.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import time

import numpy as np
import openvino as ov
from openvino import opset13 as op

import hetero_lab as hl
from hetero_lab.backend.core import shared_core
from hetero_lab.experiments.measure.environment import current_environment, noise_sentence
from tests.scripts import F32, matmuls, options

SIZE = 256
AA_BUDGET_S = 10.0


def chain(count: int) -> ov.Model:
    """Build a chain of equal matmuls."""
    x = op.parameter([SIZE, SIZE], np.float32, name="x")
    return ov.Model([matmuls(x, count, SIZE, "matmul")], [x], f"matmuls{count}")


def aa_sweep(budget_s: float) -> bool:
    """Sweep the same placement twice; return whether they were declared different."""
    model = hl.load("digits_inception")
    placement = hl.Placement(hl.Affinity.uniform(model, "CPU"), "A", {"CPU": F32})
    sweep = hl.sweep(
        model, [placement, placement], dedupe=False, budget_s=budget_s, counters=False,
        progress=False,
    )  # fmt: skip
    return told(sweep, "A", "A #2")


def ab_sweep(budget_s: float) -> bool:
    """Sweep 34 against 33 matmuls; return whether 34 were found to take longer."""
    models = {"34": chain(34), "33": chain(33)}
    sweep = hl.sweep(models, ["CPU"], budget_s=budget_s, counters=False, progress=False)
    more, less = sweep.summary["label"][:2]
    return told(sweep, more, less) and sweep.ranking["label"][0] == less


def told(sweep: hl.types.Sweep, first: str, second: str) -> bool:
    """Print a row of evidence; return whether two placements were told apart."""
    ranking = sweep.ranking.set_index("label")
    found = ranking.loc[first, "group"] != ranking.loc[second, "group"]
    rows = [
        f"{label} {row.median_us:.0f} µs, ratio {row.ratio:.4f} "
        f"[{row.ratio_ci95_low:.4f}, {row.ratio_ci95_high:.4f}]"
        for label, row in ranking.loc[[first, second]].iterrows()
    ]
    turns = sweep.summary["n_turns"].max()
    print(f"{'apart' if found else 'equal'}, {turns:.0f} turns: {'; '.join(rows)}", flush=True)
    return bool(found)


def _burn() -> int:
    """Keep a core busy; return the process. It is no child: a sweep counts those as its own."""
    script = '"$0" -c "while True: pass" > /dev/null & echo $!'
    done = subprocess.run(["sh", "-c", script, sys.executable], stdout=subprocess.PIPE, check=True)
    return int(done.stdout)


def main() -> None:
    """Run both and print the counts."""
    given = options(__doc__, aa=40, ab=10, busy=False)
    if given.busy:
        atexit.register(os.kill, _burn(), signal.SIGKILL)
    budget_s = 60.0 if given.busy else 30.0
    started = time.perf_counter()
    wrong = sum(aa_sweep(AA_BUDGET_S) for _ in range(given.aa))
    seen = sum(ab_sweep(budget_s) for _ in range(given.ab))
    noise = noise_sentence(current_environment(["CPU"], shared_core()))
    print(f"{noise} One core kept busy: {'yes' if given.busy else 'no'}.")
    print(f"A/A: declared different in {wrong} of {given.aa}")
    print(f"34 against 33 matmuls, {budget_s:.0f} s: told apart in {seen} of {given.ab}")
    print(f"took {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
