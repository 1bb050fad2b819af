"""Does investigate see each fault for what it is? ``python -m tests.proof.investigated``.

``--faults 40`` puts faults of all :data:`KINDS` into a device, in turn; ``--kinds crash hang``
takes these alone. An answer counts if it names the symptom, the ops, the settings and the release,
and nothing else, and if the script that it exports shows the symptom. Each is asked for again in
half of the time that it took, and must not blame what is innocent. ``--healthy 500`` investigates
what is right, as in :mod:`tests.proof.healthy_runs`.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import openvino as ov
from openvino import opset13 as op

import hetero_lab as hl
from hetero_lab.debug import bisection
from hetero_lab.devices import releases
from hetero_lab.errors import HeteroLabError
from hetero_lab.measure import worker_process
from hetero_lab.placement.partition import partition_of
from tests.debug import broken_device
from tests.debug.broken_device import Broken
from tests.proof.faults import Fault, can_be_wrong
from tests.proof.healthy_runs import run_healthy
from tests.proof.injected_faults import SUSPECT, placed_graph, shows
from tests.scripts import EXACT, F32, matmuls, options
from tests.small_language_models import decoder

ROOT = Path(__file__).parents[2]
BUDGET_S = 300.0
RELEASES = ("2024.6.0", "2025.0.0", "2025.1.0", "2025.2.0", "2025.3.0", "2025.4.0", "2025.4.1")
STEP = 5  # of a language model, at which NaN begins
SYMPTOMS = {"refuse": "refused", "slow": "slower"}
SETTINGS = {
    "INFERENCE_PRECISION_HINT": "bf16",
    "ENABLE_HYPER_THREADING": False,
    "CPU_DENORMALS_OPTIMIZATION": True,
    "NUM_STREAMS": 2,
    "PERFORMANCE_HINT": "THROUGHPUT",
    "EXECUTION_MODE_HINT": "ACCURACY",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 64,
}


@dataclass(frozen=True)
class Known:
    """A call of investigate, and the fault of its device."""

    model: Any
    placement: hl.Placement
    options: Mapping[str, Any]
    fault: Broken

    def investigated(self, budget_s: float, **more: Any) -> hl.types.Investigation:
        """Return the answer; the device is broken from here on."""
        os.environ.update(self.fault.environment(RELEASES[-1]))
        given = {**self.options, **more, "budget_s": budget_s, "progress": False}
        return hl.investigate(self.model, self.placement, **given)


# -- the kinds -----------------------------------------------------------------------------------


def in_graph(how: str, sizes: Sequence[int], rng: np.random.Generator) -> Known:
    """Draw a graph with a fault that shows, of an op or of two neighbours."""
    size = rng.choice(sizes)
    while True:
        case = placed_graph(int(rng.integers(1_000_000)))
        graph, found = case.prepared.graph, list[tuple[str, ...]]()
        for subgraph in partition_of(case.placed).subgraphs:
            for name in subgraph.ops if subgraph.device == SUSPECT else ():
                reads = {graph.ops[i].name for i, _ in graph.ops[graph.index_of[name]].inputs}
                makers = reads & {*subgraph.ops}
                found += [(m, name) for m in sorted(makers)] if size == 2 else [(name,)]
        ops = found[rng.integers(len(found))] if found else ("",)
        nodes = {node.get_friendly_name(): node for node in case.prepared.model.get_ordered_ops()}
        able = ops[0] and (how != "wrong" or can_be_wrong(nodes[ops[-1]]))
        if able and (how != "wrong" or shows(case, Fault(frozenset(ops), ops[-1]))):
            given = {"inputs": case.arrays}
            return Known(case.prepared, case.placement, given, Broken(how=how, ops=ops))


def with_settings(most: int, releases: Sequence[str], rng: np.random.Generator) -> Known:
    """Draw a graph with settings, of which one or more make a fault since a release."""
    known = in_graph(str(rng.choice(["wrong", "refuse", "crash"])), [1], rng)
    names = [str(name) for name in rng.permutation([*SETTINGS])[:4]]
    needed = {n: str(SETTINGS[n]) for n in names[: int(rng.integers(1, most + 1))]}
    own = {**F32, **{name: SETTINGS[name] for name in names}}
    given = {d: own if d == SUSPECT else F32 for d in known.placement.affinity.devices}
    placement = hl.Placement(known.placement.affinity, "set", given)
    since = str(rng.choice(releases))
    fault = msgspec.structs.replace(known.fault, settings=needed, since=since)
    between = [RELEASES[0], RELEASES[-1]] if since else None
    return Known(known.model, placement, {**known.options, "between": between}, fault)


def late_nan(rng: np.random.Generator) -> Known:
    """Draw an op of a language model that makes NaN from a step on."""
    hl.emulate(SUSPECT)
    model = hl.load(decoder(empty_from="layer", seed=int(rng.integers(1000))))
    affinity = hl.Affinity.uniform(model, SUSPECT)
    placement = hl.Placement(affinity, "placed", {SUSPECT: EXACT}, direct=True)
    name = rng.choice(["attention", "key/shared", "value/shared"])
    prompt = int(rng.integers(2, 6))
    elements = 32 * (prompt + STEP - 1)  # 4 heads of 8
    fault = Broken(how="NaN", ops=(f"layers.{rng.integers(3)}/{name}",), elements=elements)
    return Known(model, placement, {"scenario": hl.Scenario(prompt, STEP + 2)}, fault)


def slower(rng: np.random.Generator) -> Known:
    """Draw an op that makes a chain of matmuls a third longer, always or with a setting."""
    hl.emulate(SUSPECT)
    x = op.parameter([256, 256], np.float32, name="x")
    model = hl.load(ov.Model([matmuls(x, 12, 256, "matmul")], [x], "matmuls"))
    name = str(rng.choice(["", "EXECUTION_MODE_HINT", "CPU_DENORMALS_OPTIMIZATION"]))
    own = {name: SETTINGS[name]} if name else {}
    fast, slow = (
        hl.Placement(hl.Affinity.uniform(model, device), device, {device: given}, direct=True)
        for device, given in (("CPU", F32), (SUSPECT, {**F32, **own}))
    )
    ops, settings = (f"matmul{rng.integers(12)}",), {n: str(value) for n, value in own.items()}
    return Known(model, slow, {"baseline": fast}, Broken(how="slow", ops=ops, settings=settings))


KINDS: dict[str, Callable[[np.random.Generator], Known]] = {
    "wrong op": partial(in_graph, "wrong", [1]),
    "wrong pair": partial(in_graph, "wrong", [2]),
    "crash": partial(in_graph, "crash", [1, 2]),
    "hang": partial(in_graph, "hang", [1, 2]),
    "refusal": partial(in_graph, "refuse", [1, 2]),
    "late NaN": late_nan,
    "slower": slower,
    "since a release": partial(with_settings, 1, RELEASES[1:]),
    "wrong setting": partial(with_settings, 2, [""]),
}


# -- the judge -----------------------------------------------------------------------------------


def blamed(fault: Broken, found: hl.types.Investigation) -> Iterator[str]:
    """Yield what an answer blames that is innocent; an incomplete one may name too many ops."""
    if found.symptom not in ("ok", SYMPTOMS.get(fault.how, fault.how)):
        yield f"INVENTS {found.symptom.value}"
    too_many = not found.complete and {*fault.ops} <= {*found.ops}
    if (innocent := {*found.ops} - {*fault.ops}) and not too_many:
        yield f"BLAMES {sorted(innocent)}"
    if innocent := {each.key for each in found.settings or ()} - {*fault.settings}:
        yield f"BLAMES the settings {sorted(innocent)}"


def missed(fault: Broken, found: hl.types.Investigation, directory: Path) -> Iterator[str]:
    """Yield what is missing in an answer, or not shown by the script that it exports."""
    if found.symptom != SYMPTOMS.get(fault.how, fault.how):
        yield f"the symptom is {found.symptom.value}"
        return
    if found.ops != fault.ops and fault.how != "slow":
        yield f"the ops are {found.ops}"
    if {each.key for each in found.settings or ()} != {*fault.settings}:
        yield f"the settings are {found.settings}"
    if fault.how == "NaN" and found.evidence.step != STEP:
        yield f"begins at inference {found.evidence.step}"
    if found.bisection and found.bisection.changed_by != fault.since:
        yield found.bisection.verdict
    if fault.how == "hang":  # its script waits for minutes
        return
    found.export(directory)
    with interpreter(RELEASES[-1]) as python:
        command = [python, directory / "show_fault.py"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 1 or not done.stdout.endswith("The fault is there.\n"):
            yield f"the script does not show it: {done.stdout[-200:]} {done.stderr[-200:]}"


@contextlib.contextmanager
def interpreter(release: str) -> Iterator[str]:
    """Give the interpreter of a release, in which the device is as broken as here."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "python"
        given = {"BROKEN_PYTHON": path, "PYTHONPATH": ROOT, "RELEASE": release}
        variables = " ".join(f"{name}={shlex.quote(str(value))}" for name, value in given.items())
        called = f"{sys.executable} -m {broken_device.__name__}"
        path.write_text(f'#!/bin/sh\n[ "$1" = -EP ] && shift\n{variables} exec {called} "$@"\n')
        path.chmod(0o755)
        yield str(path)


def asked(known: Known, budget_s: float, *, whole: bool) -> tuple[float, list[str]]:
    """Return how long an answer took, and what is wrong with it; less than ``whole`` may lack."""
    began = time.perf_counter()
    try:
        found = known.investigated(budget_s, **({} if whole else {"between": None}))
    except HeteroLabError as error:
        return time.perf_counter() - began, [f"{error!r}"] if whole else []
    took_s, wrong = time.perf_counter() - began, [*blamed(known.fault, found)]
    if whole:
        with tempfile.TemporaryDirectory() as place:
            wrong += missed(known.fault, found, Path(place))
    return took_s, [*wrong, str(found)] if wrong else []


def run_faults(n: int, kinds: Sequence[str], first_seed: int) -> bool:
    """Investigate faults of each kind in turn; print what is wrong, and a tally."""
    faults, found, over_s = Counter[str](), Counter[str](), 0.0
    longest_s = dict.fromkeys(kinds, 0.0)
    for number in range(n):
        kind, seed = kinds[number % len(kinds)], first_seed + number // len(kinds)
        known = KINDS[kind](np.random.default_rng([seed, [*KINDS].index(kind)]))
        budget_s = BUDGET_S / 3 if kind == "hang" else BUDGET_S
        took_s, wrong = asked(known, budget_s, whole=True)
        half_s, too = asked(known, took_s / 2, whole=False)
        over_s = max(over_s, took_s - budget_s, half_s - took_s / 2)
        longest_s[kind] = max(longest_s[kind], took_s)
        faults[kind] += 1
        found[kind] += not wrong and not too
        print(f"{kind}, seed {seed}: {took_s:.1f} s, {known.fault}", flush=True)
        for text in [*wrong, *(f"in {half_s:.1f} s: {each}" for each in too)]:
            print(f"    {text}", flush=True)
    for kind, count in faults.items():
        print(f"{kind:16}{found[kind]:3} of {count} found, longest {longest_s[kind]:.1f} s")
    print(f"{found.total()} of {n} found; longest time over the budget: {over_s:.1f} s")
    return found == faults


def main() -> int:
    """Run what is asked for."""
    given = options(__doc__, faults=40, kinds=[*KINDS], healthy=0, seed=0)
    good = not given.healthy or run_healthy(given.healthy, given.seed)
    with (
        mock.patch.object(worker_process, "WORKER", broken_device.__name__),
        mock.patch.object(releases, "known_releases", return_value=RELEASES),
        mock.patch.object(bisection, "interpreter", interpreter),
    ):
        good = (not given.faults or run_faults(given.faults, given.kinds, given.seed)) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
