"""What is right has no symptom: models, placements and precisions for investigate.

Any answer but ``"ok"`` counts as invented, unless the model is random, or the runtime alone refuses
it as well, which the exported script shows. These are listed by name.
"""

from __future__ import annotations

import importlib.util
import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

import hetero_lab as hl
from hetero_lab.backend.core import shared_core
from hetero_lab.backend.devices import precisions
from hetero_lab.errors import AffinityError
from hetero_lab.model.read import PreparedModel, prepare
from tests.proof import onnx_cases
from tests.proof.injected_faults import SUSPECT
from tests.proof.random_dynamic_models import random_dynamic_model
from tests.random_models import arithmetic_model, random_affinity, random_model
from tests.scripts import shown_fault
from tests.small_language_models import decoder

# Name, model, and options of investigate.
Healthy = tuple[str, PreparedModel, dict[str, Any]]
_RANDOM = {"RandomUniform", "Multinomial", "RandomPoisson", "Bernoulli"}
_MOST_BYTES = 30_000_000  # of a sample
# So many of each in a row.
_IN_A_ROW = {"onnx": 6, "graphs": 2, "dynamic": 1, "samples": 1}


def onnx_models(seed: int) -> Iterator[Healthy]:
    """Yield ONNX's own tests that OpenVINO passes, in a random order, again and again."""
    core, cases = ov.Core(), [*onnx_cases.read_cases()]
    for index in itertools.cycle(np.random.default_rng(seed).permutation(len(cases))):
        runs = onnx_cases.alone(cases[index], core)
        if runs is not None:
            yield f"onnx {cases[index].name}", runs[0], {"inputs": runs[1]}


def graphs(seed: int) -> Iterator[Healthy]:
    """Yield random graphs, also of ops that amplify rounding."""
    for number in itertools.count(seed):
        make = (random_model, arithmetic_model)[number % 2]
        yield f"{make.__name__}({number})", prepare(make(number)), {}


def dynamic_models(seed: int) -> Iterator[Healthy]:
    """Yield small models of dynamic shapes with states."""
    for number in itertools.count(seed):
        model = random_dynamic_model(number)
        if number % 2:
            model = decoder(empty_from="layer", seed=number)
        yield (
            f"{model.get_friendly_name()} {number}",
            prepare(model),
            {"scenario": hl.Scenario(4, 3)},
        )


def samples() -> Iterator[Healthy]:
    """Yield the samples that are here, again and again."""
    known = hl.samples()
    here = known[(known["bundled"] | known["cached"]) & (known["n_bytes"] < _MOST_BYTES)]
    return itertools.cycle((str(name), prepare(hl.load(str(name))), {}) for name in here["name"])


def placed(prepared: PreparedModel, rng: np.random.Generator) -> hl.Placement:
    """Place a model on CPU, on both devices, or at random, in a precision or by default."""
    how, seed = rng.integers(3), int(rng.integers(1000))
    hl.emulate(SUSPECT, unsupported={"Softmax", "Concat", "Add"} if how == 1 else ())
    if how == 0:
        affinity = hl.Affinity.uniform(prepared, "CPU")
    elif how == 1:
        affinity = hl.Affinity.automatic(prepared, f"HETERO:{SUSPECT},CPU")
    else:
        affinity = random_affinity(prepared.graph, [SUSPECT, "CPU"], seed)
    hints = {"f32", "bf16", "f16"} & {*precisions("CPU", core=shared_core())}
    hint = str(rng.choice(["", *sorted(hints)]))
    given = {"INFERENCE_PRECISION_HINT": hint} if hint else {}
    label = f"{('CPU', 'HETERO', 'random')[how]} {hint or 'default'}"
    return hl.Placement(affinity, label, dict.fromkeys(affinity.devices, given))


def run_healthy(n: int, seed: int) -> bool:
    """Investigate what is right; print what has a symptom, and how long it took."""
    sources = {"graphs": graphs(seed), "dynamic": dynamic_models(seed), "samples": samples()}
    if importlib.util.find_spec("onnx"):
        sources["onnx"] = onnx_models(seed)
    turns = itertools.cycle(s for s in sources for _ in range(_IN_A_ROW[s]))
    tally, took_s = Counter[str](), dict[str, list[float]]()
    rng = np.random.default_rng(seed)
    while tally.total() < n:
        source = next(turns)
        name, prepared, given = next(sources[source])
        placement = placed(prepared, rng)
        began = time.perf_counter()
        try:
            found = hl.investigate(prepared, placement, progress=False, **given)
        except AffinityError as error:
            print(f"left out: {name}, {placement.label}: {error}", flush=True)
            continue
        took_s.setdefault(source, []).append(time.perf_counter() - began)
        how = "ok" if found.symptom == "ok" else really(prepared, found)
        tally[how] += 1
        if how != "ok":
            print(f"{how}: {name}, {placement.label}, run {tally.total()}: {found}", flush=True)
    print(", ".join(f"{how}: {count}" for how, count in tally.items()))
    for source, each in took_s.items():
        print(f"{source:8} {len(each):4} runs, {sum(each):6.0f} s: median {np.median(each):.2f} s, "
              f"longest {max(each):.2f} s")  # fmt: skip
    return not tally["INVENTED"]


def really(prepared: PreparedModel, found: hl.types.Investigation) -> str:
    """Return whether a symptom is really there."""
    if _RANDOM & {op.type for op in prepared.graph}:
        return "random"
    if found.symptom.has_outputs:
        return "INVENTED"
    with tempfile.TemporaryDirectory() as place:
        found.export(place)
        return "refused by the runtime" if shown_fault(Path(place)).returncode == 1 else "INVENTED"
