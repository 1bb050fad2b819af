"""What is right has no symptom: models, placements and precisions for investigate.

Any answer but ``"ok"`` counts as invented, unless hetero_lab.profile does not run the model either.
Those are listed by name.
"""

from __future__ import annotations

import importlib.util
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import openvino as ov

import hetero_lab as hl
from hetero_lab.devices.core import bind, shared_core
from hetero_lab.devices.devices import precisions
from hetero_lab.errors import AffinityError, HeteroLabError
from hetero_lab.model.read import PreparedModel, prepare
from tests.proof import onnx_cases
from tests.proof.dynamic_cuts import random_run
from tests.proof.injected_faults import SUSPECT
from tests.proof.random_dynamic_models import random_dynamic_model
from tests.random_models import arithmetic_model, random_affinity, random_model
from tests.small_language_models import decoder

# Name, model, and options of investigate.
Healthy = tuple[str, PreparedModel, dict[str, Any]]
MOST_BYTES = 30_000_000  # of a sample
IN_A_ROW = {"onnx": 6, "graph": 2, "dynamic": 2, "sample": 1}


def onnx_models(seed: int) -> Iterator[Healthy]:
    """Yield ONNX's own tests that OpenVINO passes, in a random order."""
    core, cases = ov.Core(), [*onnx_cases.read_cases()]
    for index in np.random.default_rng(seed).permutation(len(cases)):
        runs = onnx_cases.alone(cases[index], core)
        if runs is not None:
            yield cases[index].name, runs[0], {"inputs": runs[1]}


def graphs(seed: int) -> Iterator[Healthy]:
    """Yield random graphs, also of ops that amplify rounding."""
    for number in itertools.count(seed):
        make = (random_model, arithmetic_model)[number % 2]
        prepared, rng = prepare(make(number)), np.random.default_rng(number)
        arrays = [rng.normal(size=port.shape).astype(np.float32) for port in prepared.model.inputs]
        yield f"{make.__name__}({number})", prepared, {"inputs": arrays}


def dynamic_models(seed: int) -> Iterator[Healthy]:
    """Yield small models of dynamic shapes with states."""
    for number in itertools.count(seed):
        model = random_dynamic_model(number)
        if number % 2:
            model = decoder(empty_from="layer", seed=number)
        yield (
            f"{model.get_friendly_name()}, {number}",
            prepare(model),
            {"scenario": hl.Scenario(4, 3)},
        )


def samples() -> Iterator[Healthy]:
    """Yield the samples that are here, again and again."""
    known = hl.samples()
    here = known[(known["bundled"] | known["cached"]) & (known["n_bytes"] < MOST_BYTES)]
    return itertools.cycle((name, prepare(hl.load(name)), {}) for name in here["name"])


def placed(prepared: PreparedModel, is_static: bool, rng: np.random.Generator) -> hl.Placement:
    """Place a model on CPU, on both devices, or at random, in a precision or by default."""
    how, seed = rng.integers(3), int(rng.integers(1000))
    hl.emulate(SUSPECT, unsupported={"Softmax", "Concat", "Add"} if how == 1 else ())
    affinity = hl.Affinity.uniform(prepared, "CPU")
    if how == 1:
        affinity = hl.Affinity.automatic(prepared, f"HETERO:{SUSPECT},CPU")
    elif how == 2 and is_static:
        affinity = random_affinity(prepared.graph, [SUSPECT, "CPU"], seed)
    elif how == 2:
        affinity = affinity.fix(ops=dict.fromkeys(random_run(bind(prepared), seed), SUSPECT))
    hints = {"f32", "bf16", "f16"} & {*precisions("CPU", core=shared_core())}
    hint = str(rng.choice(["", *sorted(hints)]))
    given = {"INFERENCE_PRECISION_HINT": hint} if hint else {}
    label = f"{('CPU', 'HETERO', 'random')[how]} {hint or 'default'}"
    return hl.Placement(affinity, label, dict.fromkeys(affinity.devices, given))


def run_healthy(n: int, seed: int) -> bool:
    """Investigate what is right; print what has a symptom, and how long it took."""
    sources = {"graph": graphs(seed), "dynamic": dynamic_models(seed), "sample": samples()}
    if importlib.util.find_spec("onnx"):
        sources["onnx"] = onnx_models(seed)
    turns = itertools.cycle(kind for kind in sources for _ in range(IN_A_ROW[kind]))
    tally, took_s, rng = Counter[str](), list[float](), np.random.default_rng(seed)
    while len(took_s) < n:
        name, prepared, given = next(sources[next(turns)])
        placement = placed(prepared, "scenario" not in given, rng)
        began = time.perf_counter()
        try:
            found = hl.investigate(prepared, placement, progress=False, **given)
        except AffinityError:
            tally["cannot be cut so"] += 1
            continue
        took_s.append(time.perf_counter() - began)
        how = "ok" if found.symptom == "ok" else really(prepared, placement, given)
        tally[how] += 1
        if how != "ok":
            print(f"{how}: {name}, {placement.label}: {found}", flush=True)
    print(", ".join(f"{how}: {count}" for how, count in tally.items()))
    print(f"median {np.median(took_s):.2f} s, longest {max(took_s):.2f} s, all {sum(took_s):.0f} s")
    return not tally["INVENTED"]


def really(prepared: PreparedModel, placement: hl.Placement, given: dict[str, Any]) -> str:
    """Return why a run has a symptom."""
    try:
        hl.profile(prepared, placement, iterations=10, isolate=True, progress=False, **given)
    except HeteroLabError:
        return "does not run"
    return "INVENTED"
