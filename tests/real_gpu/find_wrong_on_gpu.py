"""Find what a real device gets wrong: ``python -m tests.real_gpu.find_wrong_on_gpu``.

``--model`` is a model file, a sample's name, or ``torchvision:NAME``: that network with random
weights (seed 0), exported to ONNX here, for which torch, torchvision and onnx have to be installed.
It prints what was found, writes it to a directory, and runs the scripts that show each fault in a
process without hetero_lab. The exit code is 0 if the mended placement was proven to be right and
every script shows its fault, or if nothing was wrong.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import hetero_lab as hl
from tests.real_gpu.networks import model_file
from tests.scripts import alone, options, shown_fault


def shows_its_fault(directory: Path) -> bool:
    """Run an exported script by itself; it ends with 1 where the fault is there."""
    done = shown_fault(directory)
    print(f"--- {directory.name}/show_fault.py: exit code {done.returncode}")
    print(done.stdout + done.stderr)
    return done.returncode == 1 and "The fault is there." in done.stdout


def main() -> int:
    """Search on one device, print, export, and prove it with the scripts."""
    given = options(
        __doc__, model="digits_inception", device="GPU", precision="f32", budget=400.0,
        out="found_wrong",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        model = hl.load(model_file(given.model, Path(scratch)))
        placement = alone(model, given.device, {"INFERENCE_PRECISION_HINT": given.precision})
        began = time.perf_counter()
        wrong = hl.find_wrong(model, placement, budget_s=given.budget, progress=False)
    print(f"{time.perf_counter() - began:.1f} s, {wrong.n_compiles} compiles")
    print(wrong)
    print(wrong.culprits.to_string())
    print(f"kind {wrong.kind}, complete {wrong.complete}, proven {wrong.proven}")
    print(f"error of the outputs: before {wrong.before:.3g}, after {wrong.after:.3g}")
    wrong.export(given.out)
    if not wrong.sets:
        return 0 if wrong.kind in ("none", "rounding") else 1
    places = [Path(given.out).resolve() / f"fault_{n}" for n in range(1, len(wrong.sets) + 1)]
    shown = [shows_its_fault(place) for place in places]
    return 0 if wrong.proven and all(shown) else 1


if __name__ == "__main__":
    sys.exit(main())
