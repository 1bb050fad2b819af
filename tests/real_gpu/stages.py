"""Which networks gain from being cut once, between two stages: ``python -m tests.real_gpu.stages``.

Each network runs whole on ``--device`` (GPU) and on the CPU, and cut in two at some points of its
way from input to output, the first part on the device and the second on the CPU, or the other way
round; in f32, in turns in one process, outputs compared with the CPU. Cuts are made where one
tensor alone goes on, at about the given shares of the work. Prints a JSON line for each
network, then a table. ``--emulate`` makes the device of CPU threads, so that the script itself can
be tried anywhere. ``--cpu`` measures also with these properties of the CPU, in JSON; after
``--budget`` seconds no network begins. The exit code is 1 if an output is wrong.

With ``--whole`` nothing is cut: it tells which networks run whole on the device, and right; others
have no place in a search. It also makes the files of the networks in ``--scratch`` and fills the
driver's cache of kernels. The exit code is 1 as well if one cannot run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import hetero_lab as hl
from hetero_lab.costs.design import lone_cuts
from hetero_lab.devices.core import bind
from hetero_lab.model.opgraph import OpGraph, work_of
from hetero_lab.runtime.inputs import input_arrays
from tests.real_gpu.mixed_networks import MIXED
from tests.real_gpu.networks import model_file, short_name
from tests.scripts import F32, append_json, error_of, in_turns, medians, options

DEVICE_FIRST, CPU_FIRST = (0.15, 0.3, 0.5, 0.65, 0.8, 0.9), (0.15, 0.4, 0.7)
TURNS, DISCARDED, TIMED = 9, 3, 10
TOLERANCE = 1e-3  # of the largest value


def cuts_at(graph: OpGraph, shares: tuple[float, ...]) -> list[tuple[float, frozenset[str]]]:
    """Return the ops before the cut that is nearest to each share, with the share that it has."""
    work = {graph.ops[i].name: work_of(graph, graph.ops[i]) for i in graph.placeable}
    total = sum(work.values())
    known = [(sum(work[op] for op in before) / total, before) for before in lone_cuts(graph)]
    nearest = [min(known, key=lambda cut: abs(cut[0] - share)) for share in shares if known]
    return list(dict.fromkeys(nearest))


def placements(graph: OpGraph, model: Any, device: str, cpu: dict[str, Any], label: str) -> Any:
    """Yield the whole model on each device, then cuts."""
    properties = {device: F32, "CPU": F32 | cpu}
    whole = {name: hl.Affinity.uniform(model, name) for name in (device, "CPU")}
    for name, affinity in whole.items():
        if name == "CPU" or not label:
            yield hl.Placement(affinity, name + label, {name: properties[name]}, direct=True)
    for first, second, shares in (
        (device, "CPU", DEVICE_FIRST if not label else DEVICE_FIRST[3:5]),
        ("CPU", device, CPU_FIRST if not label else ()),
    ):
        for share, before in cuts_at(graph, shares):
            affinity = whole[second].fix(ops=dict.fromkeys(before, first))
            yield hl.Placement(affinity, f"{share:.2f} {first}, {second}{label}", properties)


def one_network(name: str, given: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Measure one network."""
    started = time.perf_counter()
    bound = bind(hl.load(model_file(name, scratch)))
    every = list(placements(bound.graph, bound.model, given.device, {}, ""))
    if given.whole:
        every = every[:2]
    elif given.cpu:
        every += placements(bound.graph, bound.model, given.device, given.cpu, ", other CPU")
    inputs = input_arrays(bound, None)
    calls, failed = {}, {}
    for placement in every:
        try:
            calls[placement.label] = hl.compile(bound.model, placement)
        except Exception as error:
            failed[placement.label] = str(error)[:300]
    compile_s = time.perf_counter() - started
    wanted = calls["CPU"](inputs)
    errors = {label: error_of(call(inputs), wanted) for label, call in calls.items()}
    runs = {label: partial(call, inputs) for label, call in calls.items()}
    samples = in_turns(runs, TURNS, TIMED, DISCARDED)
    us = medians(samples)
    alone = min(us[label] for label in us if label.startswith(("CPU", given.device)))
    cut = {label: took for label, took in us.items() if label[0].isdigit()}
    return {
        "network": short_name(name),
        "us": us,
        "quartiles_us": {
            n: [*np.round(np.quantile(s, [0.25, 0.75]), 1)] for n, s in samples.items()
        },
        "best_cut": min(cut, key=cut.__getitem__) if cut else None,
        "best_cut_to_alone": min(cut.values(), default=float("nan")) / alone,
        "errors": errors,
        "failed": failed,
        "compile_s": compile_s,
        "took_s": time.perf_counter() - started,
    }


def main() -> int:
    """Measure, print, and compare the outputs."""
    given = options(
        __doc__, models=MIXED, device="GPU", cpu={}, emulate=False, whole=False,
        budget=float("inf"), scratch=Path, out=Path,
    )  # fmt: skip
    if given.emulate:
        hl.emulate(given.device)
    started, found, n_lost = time.perf_counter(), [], 0
    with tempfile.TemporaryDirectory() as directory:
        scratch = given.scratch or Path(directory)
        for name in given.models:
            if time.perf_counter() - started > given.budget:
                break
            try:
                found.append(one_network(name, given, scratch))
            except Exception:  # the others are worth measuring
                traceback.print_exc()
                n_lost += 1
                continue
            print(json.dumps(found[-1]), flush=True)
            append_json(given.out, found[-1])
    for one in found:
        us = one["us"]
        print(
            f"{one['network']:20} {given.device} {us.get(given.device, float('nan')):8.0f} µs, CPU "
            f"{us['CPU']:8.0f}, best cut {one['best_cut']}: {one['best_cut_to_alone']:.3f}"
        )
    if given.whole and (n_lost or any(one["failed"] for one in found)):
        return 1
    return int(any(not error <= TOLERANCE for one in found for error in one["errors"].values()))


if __name__ == "__main__":
    sys.exit(main())
