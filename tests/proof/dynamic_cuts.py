"""Random cuts of random models of dynamic shapes: does HETERO do what is predicted?

    python -m tests.proof.dynamic_cuts [--models 173]

A random run of ops of each model moves to another device: refused or not, and if not, with the
logits of one device. Models that one device does not run either are left out. Prints what differs
and the counts; exits with 1 if a cut is refused that runs, or logits differ.
"""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
import openvino as ov

import hetero_lab as hl
from hetero_lab.devices.core import BoundModel, bind
from hetero_lab.errors import AffinityError
from hetero_lab.model.language import language_model
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import partition_of
from hetero_lab.placement.placement import BoundPlacement, Placement
from hetero_lab.runtime.compiled import check_cuts, check_states, labelled_clone
from tests.proof.random_dynamic_models import random_dynamic_model
from tests.scripts import EXACT, options

MODELS = 173


def random_run(bound: BoundModel, seed: int) -> list[str]:
    """Return the names of a random run of ops in topological order."""
    rng = np.random.default_rng(seed)
    ops = [bound.graph.ops[i].name for i in bound.graph.placeable]
    first, length = int(rng.integers(len(ops))), int(rng.choice([1, 2, 5, 40]))
    return ops[first : first + length]


def moved(bound: BoundModel, names: list[str]) -> BoundPlacement:
    """Move ops to another device than the rest."""
    affinity = Affinity.on_one(bound.graph, "CPU")
    affinity = affinity.fix(ops=dict.fromkeys(names, "ACC"), core=bound.core)
    return BoundPlacement(bound, Placement(affinity, "moved", {"ACC": EXACT, "CPU": EXACT}))


def refusal(placed: BoundPlacement) -> str:
    """Return why a cut is refused, empty if it is not."""
    partition = partition_of(placed)
    try:
        check_states(placed.graph, partition)
        check_cuts(placed.bound, partition)
    except AffinityError as error:
        return str(error)
    return ""


def logits_of(bound: BoundModel, model: ov.Model, target: str, properties) -> np.ndarray | str:
    """Return the logits after three tokens and one more, or why the runtime fails."""
    known = language_model(bound.model)
    try:
        request = bound.core.compile_model(model, target, properties).create_infer_request()
        for ids, past in (([[1, 2, 3]], 0), ([[4]], 3)):
            request.infer(dict(enumerate(known.feed(np.array(ids), past))))
    except RuntimeError as error:
        return str(error).strip().splitlines()[-1]
    return np.array(request.get_output_tensor(0).data)


def outcome(bound: BoundModel, names: list[str]) -> str:
    """Return how it went to move ops of a model to another device."""
    alone = logits_of(bound, bound.model, "CPU", EXACT)
    if isinstance(alone, str):
        return "not run by one device either"
    placed = moved(bound, names)
    told = refusal(placed)
    clone, _ = labelled_clone(placed, partition_of(placed))
    done = logits_of(bound, clone, *placed.compile_call)
    if isinstance(done, str):
        return "refused, and would not run" if told else f"let through, and does not run: {done}"
    if told:
        return f"refused, and would run: {told}"
    same = np.allclose(done, alone, rtol=1e-4, atol=1e-5)
    return "runs as predicted" if same else "other logits than one device"


def check(seed: int) -> str:
    """Return how a cut of a random model went; print what was not as predicted."""
    bound = bind(hl.load(random_dynamic_model(seed)))
    how, _, why = outcome(bound, random_run(bound, seed)).partition(": ")
    if why or how.startswith("other"):
        print(f"seed {seed}: {how} {why[-150:]}", flush=True)
    return how


def main() -> int:
    """Print what differs and the counts; return the exit code."""
    given = options(__doc__, models=MODELS)
    hl.emulate("ACC")
    counts = Counter(check(seed) for seed in range(given.models))
    for how, count in counts.most_common():
        print(f"{count:4} {how}")
    return int(counts["refused, and would run"] + counts["other logits than one device"] > 0)


if __name__ == "__main__":
    sys.exit(main())
