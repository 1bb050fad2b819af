"""Record what the site shows: ``python -m docs.record`` in the root.

It measures the bundled model on the CPU and a device emulated on it, for the gallery, and runs the
notebooks of the course. The site is built from these recordings and runs nothing itself. All of it
takes about ten minutes; ``gallery`` or the number of a notebook records that part alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import nbformat

import hetero_lab as hl
from docs.course import NOTEBOOKS, store_outputs

RECORDINGS = Path(__file__).parents[1] / "datasets" / "recordings"
GALLERY = RECORDINGS / "digits_inception_emulated"
MODEL, DEVICE = "digits_inception", "HETERO:ACC,CPU"
UNSUPPORTED = frozenset({"Concat", "MaxPool", "Softmax"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Record everything, or the parts that are named."""
    parser = argparse.ArgumentParser(prog="python -m docs.record", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="gallery, 01, 02, …")
    wanted = parser.parse_args(arguments).parts
    if not wanted or "gallery" in wanted:
        record_gallery()
    for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
        if not wanted or notebook.name.startswith(tuple(wanted)):
            record_notebook(notebook)
    return 0


def record_gallery() -> None:
    """Measure one profile, one sweep and one cost model of the bundled model."""
    acc = hl.emulate("ACC", unsupported=UNSUPPORTED, faster_by="auto")
    properties = {"CPU": acc.contrast}
    model = hl.load(MODEL)
    automatic = hl.Affinity.automatic(model, DEVICE)
    fixed = automatic.fix(patterns={"^mixed[12]/": "CPU"})
    placements = [
        hl.Placement(automatic, f"{DEVICE} automatic", properties),
        hl.Placement(automatic.fix(patterns={"^mixed1/": "CPU"}), "first block on CPU", properties),
        hl.Placement(fixed, "first two blocks on CPU", properties),
        hl.Placement(automatic.fix(patterns={"^head_": "CPU"}), "heads on CPU", properties),
    ]
    shutil.rmtree(GALLERY, ignore_errors=True)
    GALLERY.mkdir(parents=True)
    hl.profile(model, placements[0], iterations=100).export(GALLERY / "profile")
    hl.sweep(model, placements, budget_s=40, data=hl.dataset("digits"), store=GALLERY / "sweep")
    costs = hl.calibrate(model, ["ACC", "CPU"], budget_s=60, device_properties=properties)
    costs.to_json(GALLERY / "costs.json")
    automatic.to_json(GALLERY / "automatic.json")
    fixed.to_json(GALLERY / "fixed.json")


def record_notebook(notebook: Path) -> None:
    """Run a notebook, in a directory of its own, and store what its cells show."""
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copy(notebook, scratch)
        subprocess.run(
            [
                sys.executable, "-m", "nbconvert", notebook.name, "--to=notebook", "--execute",
                "--ExecutePreprocessor.timeout=900", "--inplace", "--log-level=WARN",
            ],
            check=True,
            cwd=scratch,
            env=os.environ | {"PLOTLY_RENDERER": "plotly_mimetype"},
        )  # fmt: skip
        store_outputs(nbformat.read(Path(scratch) / notebook.name, as_version=4), notebook.stem)


if __name__ == "__main__":
    sys.exit(main())
