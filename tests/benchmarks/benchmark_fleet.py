"""What a sweep over a Dask cluster costs beside the same sweep without one.

Run by hand: ``python -m tests.benchmarks.benchmark_fleet [--model magika]``. Prints the ratio of
a sweep of 20 placements on one worker of this machine to the same sweep in this process, in turn
in the same run. The cluster has started before, and its worker has measured something.
"""

from __future__ import annotations

import statistics
import time

from distributed import Client, LocalCluster

import hetero_lab as hl
from tests.benchmarks.benchmark_sweep import TURNS, placements
from tests.scripts import options


def seconds(model, chosen, client=None) -> float:
    """Sweep; return how long it took."""
    started = time.perf_counter()
    sweep = hl.sweep(model, chosen, turns=TURNS, budget_s=None, progress=False, client=client)
    took = time.perf_counter() - started
    assert set(sweep.summary["status"]) == {"ok"}
    return took


def main() -> None:
    """Run and print."""
    given = options(__doc__, model="magika", count=20, repeats=3)
    hl.emulate("ACC")
    model = hl.load(given.model)
    chosen = placements(model, given.count)
    ratios = []
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        seconds(model, chosen[:1], client)
        for _ in range(given.repeats):
            local, fleet = seconds(model, chosen), seconds(model, chosen, client)
            ratios.append(fleet / local)
            print(f"local {local:.1f} s, fleet {fleet:.1f} s, ratio {ratios[-1]:.3f}")
    print(f"{given.model}: median ratio {statistics.median(ratios):.3f} (at most 1.10)")


if __name__ == "__main__":
    main()
