"""What sweeps with small budgets measure: budgets × models × numbers of placements.

Run by hand: ``python -m tests.benchmarks.benchmark_budgets [--budgets 1 2 6]``. Each call is made
in a fresh process, so that starting workers counts. Models are chains of softmax, as long as it
takes for the latency asked for. Prints a line a call: how long it took, by how much it was late,
how long workers took to start, the longest compile with the first inference, how many placements
were measured, with how many turns. A call is empty-handed if it measured less than the reference
and one more placement without saying how much it needs; it is late if that is by more than its
longest compile, and a fifth of a second to end workers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as op

import hetero_lab as hl
from tests.scripts import options

BUDGETS_S = [1.0, 2.0, 6.0, 15.0, 60.0]
LATENCIES_MS = [0.1, 1.0, 10.0, 100.0]
PLACEMENTS = [2, 7, 20]
N_OPS = 24
END_S = 0.2
COLUMNS = 256

CALL = """
import json, sys, tempfile
import hetero_lab as hl
from hetero_lab.clock import now
from hetero_lab.experiments.measure.records import Call
from hetero_lab.experiments.measure.store import read_store
path, n, budget_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
hl.emulate("ACC")
model = hl.load(path)
cpu = hl.Affinity.uniform(model, "CPU")
cuts = range(1, n + 1)
placements = [hl.Placement(cpu.fix(ops=dict.fromkeys(cpu.ops[:k], "ACC")), f"cut{k}") for k in cuts]
measure = hl.sweep  # which imports what it needs
began = now()
with tempfile.TemporaryDirectory() as store:
    sweep = measure(
        model, placements, budget_s=budget_s, baselines=False, store=store, progress=False
    )
    took_s = now() - began
    records = read_store(store)[1]
(call,) = [record for record in records if isinstance(record, Call)]
summary = sweep.summary
profiles = [row.profile for row in sweep.rows if row.profile is not None]
print(json.dumps({
    "took_s": took_s,
    "compile_s": call.longest_compile_s,
    "startup_s": call.startup_s,
    "measured": len(profiles),
    "turns": sorted(int(n) for n in summary["n_turns"] if n),
    "needs": any("needs about" in detail for detail in summary["detail"]),
}))
"""


def chain(rows: int) -> ov.Model:
    """Return a chain of softmax over so many rows."""
    x = op.parameter([rows, COLUMNS], np.float32, name="x")
    y: ov.Node | ov.Output = x
    for number in range(N_OPS):
        y = op.softmax(y, 1, name=f"s{number}").output(0)
    return ov.Model([y], [x], f"chain{rows}")


def model_of(latency_ms: float, directory: Path) -> tuple[Path, float]:
    """Write a chain of about that latency; return where, and what it really takes in ms."""
    rows = 64
    for _ in range(4):
        profile = hl.profile(chain(rows), "CPU", iterations=10, counters=False, reference=False,
                             progress=False)  # fmt: skip
        took_ms = profile.latency.median_us / 1e3
        if 0.7 < took_ms / latency_ms < 1.4:
            break
        rows = max(1, round(rows * latency_ms / took_ms))
    path = directory / f"chain{latency_ms}.xml"
    ov.save_model(chain(rows), path, compress_to_fp16=False)
    return path, took_ms


def main() -> None:
    """Run and print."""
    given = options(__doc__, budgets=BUDGETS_S, latencies=LATENCIES_MS, placements=PLACEMENTS)
    empty = late = calls = 0
    columns = (
        "model ms  placements  budget s    took s    late s  start-up s  compile s  measured  turns"
    )
    print(columns)
    with tempfile.TemporaryDirectory() as scratch:
        for latency_ms in given.latencies:
            path, took_ms = model_of(latency_ms, Path(scratch))
            for n in given.placements:
                for budget_s in given.budgets:
                    done = subprocess.run(
                        [sys.executable, "-W", "ignore", "-c", CALL, path, str(n), str(budget_s)],
                        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                        capture_output=True, text=True, check=True,
                    )  # fmt: skip
                    call = json.loads(done.stdout.splitlines()[-1])
                    late_s = max(0.0, call["took_s"] - budget_s)
                    is_empty = call["measured"] < 2 and not call["needs"]
                    is_late = late_s > call["compile_s"] + END_S
                    turns = call["turns"]
                    shown = f"{turns[0]} to {turns[-1]}" if turns else "-"
                    said = "said what it needs" if call["needs"] else ""
                    print(
                        f"{took_ms:8.2f}  {n:10}  {budget_s:8g}  {call['took_s']:8.2f}  "
                        f"{late_s:8.2f}  {call['startup_s']:10.2f}  "
                        f"{call['compile_s']:9.2f}  {call['measured']:8}  {shown:9} "
                        f"{'EMPTY' if is_empty else ''}{'LATE' if is_late else ''} {said}",
                        flush=True,
                    )
                    calls, empty, late = calls + 1, empty + is_empty, late + is_late
    print(f"{calls} calls: {empty} empty-handed, {late} later than one compile")


if __name__ == "__main__":
    main()
