"""What a user's type checker sees of the public names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hetero_lab as hl

ROOT = Path(__file__).parents[1]
# Their base classes come from ipywidgets and anywidget, which have no types.
UNTYPED = {"AffinityTweaker", "SweepExplorer"}


@pytest.mark.slow
def test_every_public_name_has_a_known_type(tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pyright", "--pythonpath", sys.executable),
            *("--verifytypes", "hetero_lab", "--ignoreexternal", "--outputjson"),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),  # an installed package, to pyright
            # Which looks for others where the first Python of the path has them.
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        },
    )
    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    public = {
        f"{module.__name__}.{name}"
        for module in (hl, hl.interop, hl.llm, hl.types, hl.views)
        for name in module.__all__
        if name not in UNTYPED
    }
    listed = {symbol["name"]: symbol for symbol in symbols}
    unclear = {
        name: [note["message"] for note in listed[name]["diagnostics"]]
        for name in public & set(listed)
        if listed[name]["isTypeAmbiguous"] or not listed[name]["isTypeKnown"]
    }
    assert unclear == {}
    assert len(public & set(listed)) > 40
