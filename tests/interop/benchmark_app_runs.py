"""Run OpenVINO's benchmark_app several times in one process, which costs one start.

Arguments: a directory, which then holds a folder a run. The devices ACC and CPU are there; the
runs named ``split`` are of a model whose ops are placed on both, which no option of benchmark_app
can do.
"""

from __future__ import annotations

import sys
from pathlib import Path

import openvino as ov
from openvino.tools.benchmark import benchmark
from openvino.tools.benchmark.main import main

import hetero_lab as hl
from hetero_lab.devices.core import bind
from hetero_lab.placement.partition import predict
from hetero_lab.placement.placement import resolve
from hetero_lab.runtime.compiled import labelled_clone

MODEL = str(Path(__file__).parents[2] / "datasets" / "digits_inception.xml")
TYPES = {"none": "no_counters", "average": "average_counters", "detailed": "detailed_counters"}


class SplitCore(ov.Core):
    """A Core with an emulated ACC; the models that it reads are placed on ACC and CPU."""

    def __init__(self) -> None:
        super().__init__()
        hl.emulate("ACC", unsupported={"Softmax", "Sigmoid", "Concat"}, core=self)

    def read_model(self, model, *more):
        placed = resolve(bind(model, self), "HETERO:ACC,CPU")
        return labelled_clone(placed, predict(placed.graph, placed.affinity))[0]


def run(directory: Path, name: str) -> None:
    """Run ``WHERE_WHAT_HOW``: cpu, hetero or split, the counters, csv or json."""
    where, what, how = name.split("_")
    benchmark.Core = SplitCore if where == "split" else ov.Core
    device = {"cpu": "CPU", "hetero": "HETERO:CPU", "split": "HETERO:ACC,CPU"}[where]
    folder = directory / name
    folder.mkdir()
    options = ["-m", MODEL, "-d", device, "-niter", "10", "-nireq", "2", "-report_type"]
    sys.argv = ["benchmark_app", *options, TYPES[what], "-report_folder", str(folder)]
    if how == "json":
        sys.argv.append("-json_stats")
    main()


if __name__ == "__main__":
    _, target, *names = sys.argv
    for each in names:
        run(Path(target), each)
