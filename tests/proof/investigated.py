"""Does investigate see each fault for what it is? ``python -m tests.proof.investigated``.

``--faults 40`` injects faults of every kind of :data:`KINDS` into a device in turn; an answer is
right if it names the symptom, the ops, the settings and the release, and nothing else, and if the
script that it exports shows the symptom. ``--kinds crash hang`` takes these alone. ``--interrupts``
presses Ctrl-C during searches. ``--healthy 500`` investigates what is right, as in
:mod:`tests.proof.healthy_runs`; with the ``onnx`` package, ONNX's own tests as well.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import openvino as ov
from openvino import opset13 as op

import hetero_lab as hl
from hetero_lab.errors import HeteroLabError
from hetero_lab.experiments.faults import bisection
from hetero_lab.experiments.measure.workers import launch
from hetero_lab.placement.partition import partition_of
from tests.experiments.faults import broken_device
from tests.experiments.faults.broken_device import Broken
from tests.proof.faults import can_be_wrong, spoil_op
from tests.proof.healthy_runs import run_healthy
from tests.proof.injected_faults import SUSPECT, Case, placed_graph
from tests.scripts import EXACT, F32, options
from tests.small_language_models import decoder

ROOT = Path(__file__).parents[2]
BUDGET_S = 300.0
RELEASES = ("2024.6.0", "2025.0.0", "2025.1.0", "2025.2.0", "2025.3.0", "2025.4.0", "2025.4.1")
_BEYOND_DOUBT = 0.2  # the relative error of an output
_SYMPTOM = {"refuse": "refused", "slow": "slower"}
_HARMLESS = {
    "ENABLE_HYPER_THREADING": False,
    "CPU_DENORMALS_OPTIMIZATION": True,
    "NUM_STREAMS": 2,
    "PERFORMANCE_HINT": "THROUGHPUT",
    "EXECUTION_MODE_HINT": "ACCURACY",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 64,
}


@dataclass(frozen=True)
class Known:
    """A call of investigate, the fault in its device, and the settings that make it.

    Without a ``fault``, the settings do it by themselves, and no op is to blame.
    """

    model: Any
    placement: hl.Placement
    fault: Broken | None
    symptom: str
    settings: Collection[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    step: int | None = None

    def investigated(self, budget_s: float = BUDGET_S) -> hl.types.Investigation:
        """Return the answer; the device is broken from here on."""
        os.environ.update((self.fault or Broken(how="", ops=("",))).environment(RELEASES[-1]))
        options = {"budget_s": budget_s, "progress": False, **self.options}
        return hl.investigate(self.model, self.placement, **options)


# -- the kinds -----------------------------------------------------------------------------------


def graphs(rng: np.random.Generator) -> Iterator[tuple[Case, list[list[str]]]]:
    """Draw placed graphs without end, and the ops of each subgraph of the suspect device."""
    while True:
        case = placed_graph(int(rng.integers(1_000_000)))
        yield case, [s.ops for s in partition_of(case.placed).subgraphs if s.device == SUSPECT]


def neighbours(case: Case, ops: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs of ops of a subgraph of which the second reads the first."""
    graph = case.prepared.graph
    reads = ((graph.ops[index].name, graph.ops[graph.index_of[o]]) for o in ops
             for index, _ in graph.ops[graph.index_of[o]].inputs)  # fmt: skip
    return [(maker, reader.name) for maker, reader in reads if maker in ops]


def change(case: Case, name: str = "", **properties: Any) -> float:
    """Return the relative change of the outputs on CPU by a wrong op, or by properties."""
    outputs = []
    for given in (F32, {**F32, **properties}):
        model = case.prepared.model.clone()
        if name and outputs:
            spoil_op(next(n for n in model.get_ordered_ops() if n.get_friendly_name() == name))
        outputs.append(ov.Core().compile_model(model, "CPU", given)(case.arrays).to_tuple())
    pairs = zip(*outputs, strict=True)
    return max(float(np.linalg.norm(a - b) / (np.linalg.norm(a) or 1)) for a, b in pairs)


def is_seen(case: Case, name: str) -> bool:
    """Whether a wrong op changes an output beyond doubt."""
    nodes = case.prepared.model.get_ordered_ops()
    able = any(node.get_friendly_name() == name and can_be_wrong(node) for node in nodes)
    return able and change(case, name) > _BEYOND_DOUBT


def in_graph(how: str, n_ops: int | None) -> Callable[[np.random.Generator], Known]:
    """Return what draws a graph with a fault of an op or of two neighbours; None is either."""

    def draw(rng: np.random.Generator) -> Known:
        n = n_ops or int(rng.integers(1, 3))
        for case, subgraphs in graphs(rng):
            found = [(o,) for ops in subgraphs for o in ops]
            if n == 2:
                found = [pair for ops in subgraphs for pair in neighbours(case, ops)]
            ops = found[rng.integers(len(found))] if found else ()
            if ops and (how != "wrong" or is_seen(case, ops[-1])):
                fault = Broken(how=how, ops=ops)
                given = {"inputs": case.arrays}
                symptom = _SYMPTOM.get(how, how)
                return Known(case.prepared.model, case.placement, fault, symptom, (), given)
        raise AssertionError

    return draw


def with_settings(rng: np.random.Generator, *, since: str = "") -> Known:
    """Draw a graph on the suspect with settings of which one or two make a fault."""
    known = in_graph(str(rng.choice(["wrong", "refuse", "crash"])), 1)(rng)
    assert known.fault is not None
    names = [str(name) for name in rng.permutation([*_HARMLESS])[:4]]
    needed = names[: 1 if since else int(rng.integers(1, 3))]
    given = {SUSPECT: {**F32, **{name: _HARMLESS[name] for name in names}}, "CPU": F32}
    homes = known.placement.affinity.devices
    placement = hl.Placement(
        known.placement.affinity, "set", {d: given[d] for d in homes}, direct=known.placement.direct
    )
    settings = {name: str(_HARMLESS[name]) for name in needed}
    fault = Broken(how=known.fault.how, ops=known.fault.ops, settings=settings, since=since)
    return Known(known.model, placement, fault, known.symptom, needed, known.options)


def wrong_setting(rng: np.random.Generator) -> Known:
    """Draw settings of a stub, or a precision beyond the tolerance."""
    if rng.random() < 0.7:
        return with_settings(rng)
    drawn = (case for case, _ in graphs(rng))
    case = next(each for each in drawn if change(each, INFERENCE_PRECISION_HINT="bf16") > 1e-4)
    affinity = hl.Affinity.uniform(case.prepared, SUSPECT)
    given = {SUSPECT: {"INFERENCE_PRECISION_HINT": "bf16", "NUM_STREAMS": 2}}
    placement = hl.Placement(affinity, "bf16", given, direct=True)
    named = {"inputs": case.arrays, "tolerance": 1e-5}
    settings = ["INFERENCE_PRECISION_HINT"]
    return Known(case.prepared.model, placement, None, "wrong", settings, named)


def since_release(rng: np.random.Generator) -> Known:
    """Draw a setting that makes a fault since a release."""
    return with_settings(rng, since=str(rng.choice(RELEASES[1:])))


def late_nan(rng: np.random.Generator) -> Known:
    """Draw an op of a language model that makes NaN from the fifth inference on."""
    hl.emulate(SUSPECT)
    block, prompt = int(rng.integers(3)), int(rng.integers(2, 6))
    ops = ["mask", "sin", "cos", *(f"layers.{block}/{n}" for n in ("attention", "key/shared"))]
    model = hl.load(decoder(empty_from="layer", seed=int(rng.integers(1000))))
    placement = hl.Placement(
        hl.Affinity.uniform(model, SUSPECT), "placed", {SUSPECT: EXACT}, direct=True
    )
    fault = Broken(how="NaN", ops=(ops[rng.integers(len(ops))],), length=prompt + 4)
    return Known(model, placement, fault, "NaN", (), {"scenario": hl.Scenario(prompt, 7)}, step=5)


def slower(rng: np.random.Generator) -> Known:
    """Draw an op that takes a third of the latency more, always, with a setting, or one thread."""
    hl.emulate(SUSPECT)
    x = node = op.parameter([256, 256], np.float32, name="x")
    for number in range(12):
        weights = op.constant(rng.normal(size=(256, 256)).astype(np.float32) / 16)
        node = op.tanh(op.matmul(node, weights, False, False), name=f"tanh{number}")
    model = hl.load(ov.Model([node], [x], "matmuls"))
    name, value = [("", ""), ("NUM_STREAMS", 2), ("INFERENCE_NUM_THREADS", 1)][rng.integers(3)]
    given = {SUSPECT: {**F32, **({name: value} if name else {})}}
    placement = hl.Placement(hl.Affinity.uniform(model, SUSPECT), "placed", given, direct=True)
    settings = {name: str(value)} if name else {}
    fault = Broken(how="slow", ops=(f"tanh{rng.integers(12)}",), work=4, settings=settings)
    baseline = hl.Placement(hl.Affinity.uniform(model, "CPU"), "CPU", {"CPU": F32}, direct=True)
    named = {"baseline": baseline}
    return Known(model, placement, None if value == 1 else fault, "slower", [*settings], named)


KINDS: dict[str, Callable[[np.random.Generator], Known]] = {
    "wrong op": in_graph("wrong", 1),
    "wrong pair": in_graph("wrong", 2),
    "crash": in_graph("crash", None),
    "hang": in_graph("hang", None),
    "refusal": in_graph("refuse", None),
    "late NaN": late_nan,
    "slower": slower,
    "since a release": since_release,
    "wrong setting": wrong_setting,
}


# -- the judge -----------------------------------------------------------------------------------


def complaints(known: Known, found: hl.types.Investigation, directory: Path) -> Iterator[str]:
    """Yield what is wrong with an answer, or missing in it."""
    ops = known.fault.ops if known.fault else ()
    if found.symptom != known.symptom:
        yield f"the symptom is {found.symptom.value}, not {known.symptom}"
        return
    if known.fault and (innocent := {*found.ops} - {*ops}):
        yield f"BLAMES {sorted(innocent)}, not {ops}"
    elif known.fault and found.ops != ops and found.symptom != "slower":
        yield f"misses ops: names {found.ops} of {ops}"
    named = None if found.settings is None else {each.key for each in found.settings}
    if named is not None and named - {*known.settings}:
        yield f"BLAMES the settings {sorted(named)}, not {[*known.settings]}"
    elif named != {*known.settings} and (known.settings or known.symptom != "hang"):
        yield f"misses settings: names {named} of {[*known.settings]}"
    if found.evidence.step != known.step:
        yield f"begins at inference {found.evidence.step}, not {known.step}"
    if not found.complete and known.symptom != "hang":
        yield "not complete"
    if found.symptom == "hang":  # its script waits for minutes
        return
    found.export(directory)
    if known.fault and known.fault.since:
        answer = bisected(known.fault, directory)
        if answer.changed_by != known.fault.since:
            yield f"changed by {answer.changed_by}, not {known.fault.since}: {answer.verdict}"
        return
    done = subprocess.run(
        [program(known.fault, RELEASES[-1], directory), directory / "show_fault.py"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 1 or not done.stdout.endswith("The fault is there.\n"):
        yield f"the script does not show it: {done.stdout[-200:]} {done.stderr[-300:]}"


def program(fault: Broken | None, release: str, directory: Path) -> str:
    """Return an interpreter with a release whose device is broken."""
    path = directory / f"python-{release}"
    variables = {"BROKEN_PYTHON": str(path), "PYTHONPATH": str(ROOT)}
    variables |= (fault or Broken(how="", ops=("",))).environment(release)
    given = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    path.write_text(
        f'#!/bin/sh\n[ "$1" = -EP ] && shift\nexec env {given} {sys.executable} '
        f'-m {broken_device.__name__} "$@"\n'
    )
    path.chmod(0o755)
    return str(path)


def bisected(fault: Broken, directory: Path) -> hl.types.Bisection:
    """Search the release with the exported script."""

    @contextlib.contextmanager
    def interpreter(release: str) -> Iterator[str]:
        yield program(fault, release, directory.parent)

    with (
        mock.patch.object(bisection, "known_releases", return_value=RELEASES),
        mock.patch.object(bisection, "interpreter", interpreter),
    ):
        return hl.bisect(directory, progress=False)


# -- the runs ------------------------------------------------------------------------------------


def run_faults(n: int, kinds: Sequence[str], first_seed: int) -> bool:
    """Investigate faults of each kind in turn; print the misses and a tally."""
    asked, right = Counter[str](), Counter[str]()
    took_s = dict.fromkeys(kinds, 0.0)
    over_s, blamed = -np.inf, 0
    for number in range(n):
        kind, seed = kinds[number % len(kinds)], first_seed + number // len(kinds)
        known = KINDS[kind](np.random.default_rng([seed, [*KINDS].index(kind)]))
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as place:
            try:
                found = known.investigated()
                elapsed_s = time.perf_counter() - began
                (Path(place) / "report").mkdir()
                wrong = [*complaints(known, found, Path(place) / "report")]
            except HeteroLabError as error:
                elapsed_s, found, wrong = time.perf_counter() - began, None, [repr(error)]
        over_s = max(over_s, elapsed_s - BUDGET_S)
        asked[kind] += 1
        right[kind] += not wrong
        blamed += any("BLAMES" in each for each in wrong)
        took_s[kind] = max(took_s[kind], elapsed_s)
        print(f"{kind} {seed}: {elapsed_s:.1f} s {'; '.join(wrong) or 'found'}", flush=True)
        if wrong:
            print(f"    python -m tests.proof.investigated --faults 1 --kinds '{kind}' "
                  f"--seed {seed}\n    {known.fault}\n    {found}".replace("\n", "\n    "))  # fmt: skip
    print(f"\n{'kind':16}{'faults':>8}{'found':>8}{'longest s':>11}")
    for kind in asked:
        print(f"{kind:16}{asked[kind]:8}{right[kind]:8}{took_s[kind]:11.1f}")
    print(f"{right.total()} of {n} found, innocent ones blamed in {blamed}; "
          f"longest time over the budget: {max(0.0, over_s):.1f} s")  # fmt: skip
    return right.total() == n


def run_interrupted(times: int, seed: int) -> bool:
    """Press Ctrl-C during the search of a wrong pair; the symptom must be kept, nothing invented."""
    rng, good = np.random.default_rng(seed), 0
    known = KINDS["wrong pair"](rng)
    began = time.perf_counter()
    whole = known.investigated()
    whole_s = time.perf_counter() - began
    for _ in range(times):
        press = threading.Timer(rng.uniform(0.0, whole_s), os.kill, (os.getpid(), signal.SIGINT))
        press.start()
        sent = time.perf_counter() + press.interval
        try:
            known.investigated()
            print(f"Ctrl-C after {press.interval:.1f} s: the call was over before")
            press.cancel()
            good += 1
            continue
        except KeyboardInterrupt:
            ended_s, kept = time.perf_counter() - sent, hl.last_interrupted()
        said = "nothing was known" if kept is None else f"{kept!r}, {kept.verdict}"
        fine = kept is None or (
            kept.interrupted and kept.symptom == whole.symptom and {*kept.ops} <= {*whole.ops}
        )
        good += fine
        print(
            f"Ctrl-C after {press.interval:.1f} s: {'' if fine else 'NOT '}kept: {said}; ended after {ended_s:.2f} s"
        )
    return good == times


def main() -> int:
    """Run what is asked for."""
    given = options(__doc__, faults=40, kinds=[*KINDS], interrupts=3, healthy=0, seed=0)
    good = []
    with mock.patch.object(launch, "_WORKER", broken_device.__name__):
        if given.faults:
            good.append(run_faults(given.faults, given.kinds, given.seed))
        if given.interrupts:
            good.append(run_interrupted(given.interrupts, given.seed))
    if given.healthy:
        good.append(run_healthy(given.healthy, given.seed))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
