"""Does recover_accuracy keep f32's accuracy, and how much faster than f32 does it stay?

Run by hand: ``python -m tests.benchmarks.benchmark_accuracy [--budget 120] [--threads N]``. An
emulated device computes in bf16, CPU in f32, both with N threads; the model is the file-type
classifier, which loses points in bf16.
It fails where, on held-out files, the interval of the drop does not reach down to half a point,
or where the placement is not 1.5 times as fast as all of it in f32, measured in the same run.
"""

from __future__ import annotations

import sys

import hetero_lab as hl
from hetero_lab.backend.core import shared_core
from hetero_lab.backend.devices import precisions
from tests.scripts import BF16, options


def main() -> int:
    """Recover, print the tables, return 1 if a mark was missed."""
    given = options(__doc__, budget=120.0, threads=int)
    if "bf16" not in precisions("CPU", core=shared_core()):
        print("This CPU has no bf16: nothing to recover.")
        return 0
    hl.emulate("ACC", properties=BF16)
    own = {}
    if given.threads:  # with exclusive requests a split does not obey the number of threads
        own = {"INFERENCE_NUM_THREADS": given.threads, "EXCLUSIVE_ASYNC_REQUESTS": False}
    found = hl.recover_accuracy(
        hl.load("magika"), "ACC", "CPU", hl.dataset("magika"), max_drop=0.005,
        budget_s=given.budget, device_properties={"ACC": own, "CPU": own}, progress=False,
    )  # fmt: skip
    print(found.sensitivity.to_string())
    print(found.trials.to_string())
    print(found.summary.T.to_string())
    print(found.verdict)
    row = found.summary.loc[found.summary["chosen"]].iloc[0]
    return int(
        row["n_examples"] < 400 or row["accuracy_drop_ci95_low"] > 0.005 or row["ratio"] > 1 / 1.5
    )


if __name__ == "__main__":
    sys.exit(main())
