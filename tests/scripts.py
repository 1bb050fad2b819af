"""What the scripts of ``tests/benchmarks`` and ``tests/real_gpu`` share.

Options of the command line, turns of several runs, recordings and models to be measured. Nothing
here imports openvino at once: the GPU rig has to be started before.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import hetero_lab as hl

F32 = {"INFERENCE_PRECISION_HINT": "f32"}
BF16 = {"INFERENCE_PRECISION_HINT": "bf16"}
# By default the CPU plugin keeps the cache in 8 bits and quantises what is multiplied with
# weights of few bits: neither is f32.
EXACT = {**F32, "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}

Run = Callable[[], object]
T = TypeVar("T")


def options(doc: str | None, **defaults: Any) -> argparse.Namespace:
    """Parse the command line: an option for each keyword, of the kind of its default.

    False is a flag, a list takes one value or more, a mapping is JSON, and a type is that of a
    value which is None by default (``list`` of several texts). ``doc`` is shown as help.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in defaults.items():
        option = "--" + name.replace("_", "-")
        if default is False:
            parser.add_argument(option, action="store_true")
        elif default is list:
            parser.add_argument(option, nargs="+")
        elif isinstance(default, type):
            parser.add_argument(option, type=default)
        elif isinstance(default, (list, tuple)):
            parser.add_argument(option, nargs="+", type=type(default[0]), default=default)
        elif isinstance(default, Mapping):
            parser.add_argument(option, type=json.loads, default=default)
        else:
            parser.add_argument(option, type=type(default), default=default)
    return parser.parse_args()


def shown_fault(directory: Path) -> subprocess.CompletedProcess[str]:
    """Run the exported script of a fault, which knows nothing of the lab, by itself."""
    command = [sys.executable, str(directory / "show_fault.py")]
    return subprocess.run(command, capture_output=True, text=True, cwd="/")


def in_own_process(module: str, *arguments: object) -> Any:
    """Run a script in a process of its own; return what its last line says in JSON."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def in_turns(
    runs: Mapping[str, Run], rounds: int, timed: int, discarded: int = 2
) -> dict[str, list[float]]:
    """Return for each run the median time in µs of each of its turns; the runs alternate."""
    levels: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            taken = []
            for number in range(discarded + timed):
                began = time.perf_counter_ns()
                run()
                if number >= discarded:
                    taken.append((time.perf_counter_ns() - began) / 1e3)
            levels[name].append(statistics.median(taken))
    return levels


def medians(levels: Mapping[str, list[float]]) -> dict[str, float]:
    """Return the median over the turns of each run."""
    return {name: statistics.median(every) for name, every in levels.items()}


def compiled_parts(compile: Callable[[], T]) -> tuple[T, list[tuple[str, int]]]:
    """Return what a call returns, and device and nodes of each submodel that HETERO compiles in it.

    HETERO writes them to the standard output, if OPENVINO_HETERO_PERF was 1 before its first use.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        try:
            result = compile()
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        file.seek(0)
        return result, parts_told(file.read().decode())


def parts_told(text: str) -> list[tuple[str, int]]:
    """Return device and nodes of each submodel, of what HETERO wrote about a compile."""
    told = re.findall(r"submodel\[\d+\] device=(\S+) ops=(\d+)", text)
    return [(device, int(count)) for device, count in told]


def predicted_parts(bound: Any, placement: hl.Placement) -> list[tuple[str, int]]:
    """Return device and nodes of each submodel that a placement should be compiled as."""
    from hetero_lab.runtime.pieces import cut

    found = hl.partition(bound, placement, core=bound.core)
    return [(part.device, len(part.model.get_ops())) for part in cut(bound, found)]


def error_of(got: Mapping[str, Any], wanted: Mapping[str, Any]) -> float:
    """Return the largest difference of outputs, as a share of the largest value of each."""
    return max(
        float(np.abs(got[name] - value).max() / max(1e-12, float(np.abs(value).max())))
        for name, value in wanted.items()
    )


def kept_costs(file: Path | None, make: Callable[[], hl.CostModel]) -> hl.CostModel:
    """Return the costs that a file holds; without it, make them, and keep them there."""
    if file is not None and file.exists():
        return hl.CostModel.from_json(file)
    costs = make()
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        costs.to_json(file)
    return costs


def append_json(file: Path | None, row: Mapping[str, Any]) -> None:
    """Append a line of JSON, if there is a file."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "a", encoding="utf-8") as lines:
            lines.write(json.dumps(row) + "\n")


def alone(model: Any, device: str, properties: Mapping[str, Any] = F32) -> hl.Placement:
    """Place a model on one device, without HETERO."""
    affinity = hl.Affinity.uniform(model, device)
    return hl.Placement(affinity, device, {device: properties}, direct=True)


def matmuls(node: Any, count: int, size: int, name: str) -> Any:
    """Append equal matmuls to a node."""
    from openvino import opset13 as op

    rng = np.random.default_rng(0)
    for index in range(count):
        weight = op.constant((rng.normal(size=(size, size)) / size**0.5).astype(np.float32))
        node = op.matmul(node, weight, False, False, name=f"{name}{index}")
    return node
