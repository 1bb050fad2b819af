"""Models on which OpenVINO crashes: every public function answers with a sentence.

    python -m tests.proof.crashing

Each line is a function and what it answered. A function that ends in another way than with an
error of hetero_lab or a result is counted; if a process ended, nothing would be printed after it.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import hetero_lab as hl
from tests.small_models import attention, empty_batch, empty_indices, empty_rows

SPLIT = "HETERO:ACC,CPU"


def calls(model: Any, directory: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name of each function and a call of it."""
    quiet: dict[str, Any] = {"progress": False}
    shapes = {p.get_any_name(): tuple(p.shape) for p in model.inputs}
    data = [{name: np.zeros(shape, np.float32) for name, shape in shapes.items()}] * 3

    def right(outputs: Any, example: Any) -> bool:
        return True

    yield "load", lambda: hl.load(model)
    yield "support", lambda: hl.support(model, ["CPU"])
    yield "automatic", lambda: hl.Affinity.automatic(model, SPLIT)
    yield "partition", lambda: hl.partition(model, SPLIT)
    yield "lint", lambda: hl.lint(model, SPLIT)
    yield "simplify", lambda: hl.simplify(model, SPLIT)
    for place in ("CPU", SPLIT):
        yield f"compile {place}", lambda place=place: hl.compile(model, place)
        yield f"profile {place}", lambda place=place: hl.profile(model, place, **quiet)
        yield (
            f"evaluate {place}",
            lambda place=place: hl.evaluate(model, place, data, metric=right, **quiet),
        )
        yield f"find_wrong {place}", lambda place=place: hl.find_wrong(model, place, **quiet)
    yield "sweep", lambda: hl.sweep(model, ["CPU", SPLIT], budget_s=8.0, **quiet)
    yield "calibrate", lambda: hl.calibrate(model, ["ACC", "CPU"], budget_s=8.0, **quiet)
    yield "optimize", lambda: hl.optimize(model, ["ACC", "CPU"], budget_s=8.0, **quiet)
    yield "advise", lambda: hl.advise(model, ["ACC", "CPU"], budget_s=10.0, **quiet)
    yield "ParallelExecutor", lambda: hl.ParallelExecutor(model, SPLIT)
    yield "freeze", lambda: hl.freeze(model, SPLIT, directory / "frozen")
    yield "save", lambda: hl.save(model, SPLIT, directory / "saved.xml")
    yield "tweaker", lambda: hl.AffinityTweaker(model, SPLIT)


def main() -> int:
    """Return 1 if a function did not answer with a sentence."""
    warnings.simplefilter("ignore")
    os.environ["HETERO_LAB_GUARD"] = "1"
    bad = 0
    with tempfile.TemporaryDirectory() as cache:
        os.environ["HETERO_LAB_CACHE"] = cache
        hl.emulate("ACC", unsupported={"Add"})
        for make in (attention, empty_indices, empty_rows, empty_batch):
            model = hl.load(make())
            for name, call in calls(model, Path(cache) / make.__name__):
                try:
                    answer = str(repr(call())).splitlines()[0]
                except hl.HeteroLabError as error:
                    answer = f"{type(error).__name__}: {error}"
                except Exception as error:
                    answer = f"BAD {type(error).__name__}: {error}"
                bad += answer.startswith("BAD")
                print(f"{make.__name__:14} {name:24} {answer[:150]}", flush=True)
    print(bad, "bad")
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
