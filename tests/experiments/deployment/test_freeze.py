"""A frozen placement runs where only openvino and numpy are."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from random_models import random_affinity, random_model

import hetero_lab as hl
from hetero_lab.errors import OutputPathError
from hetero_lab.experiments.profile.frozen import profile_frozen
from hetero_lab.model.read import prepare

F32 = {"FRZACC": {"INFERENCE_PRECISION_HINT": "f32"}, "CPU": {"INFERENCE_PRECISION_HINT": "f32"}}


def test_it_reproduces_the_outputs_without_the_lab(tmp_path):
    hl.emulate("FRZACC", unsupported={"Concat"})
    model = hl.load("digits_inception")
    affinity = hl.Affinity.automatic(model, "HETERO:FRZACC,CPU")
    placement = hl.Placement(affinity, "frozen", F32)
    directory = hl.freeze(model, placement, tmp_path / "frozen")
    names = {"inputs.npz", "model.bin", "model.xml", "placement.json", "requests.npz", "run.py"}
    assert {path.name for path in directory.iterdir()} == {*names, "contract.json"}
    code = (
        "import runpy, sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('hetero_lab', 'pandas', 'scipy'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    arguments = [str(directory / "run.py"), str(directory / "inputs.npz"), str(tmp_path / "o.npz")]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, cwd=tmp_path)
    inputs = dict(np.load(directory / "inputs.npz"))
    expected = hl.compile(model, placement)(inputs)
    with np.load(tmp_path / "o.npz") as got:
        for name, value in expected.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-5)


@pytest.mark.parametrize("seed", [3, 14, 86])
def test_random_placements_freeze(tmp_path, seed):
    hl.emulate("FRZACC")
    prepared = prepare(random_model(seed))
    affinity = random_affinity(prepared.graph, ["FRZACC", "CPU"], seed)
    hl.freeze(prepared, hl.Placement(affinity, "r", F32), tmp_path)  # checks itself
    assert (tmp_path / "run.py").exists()


def test_auto_is_frozen_and_measured_as_it_lies_there(tmp_path):
    hl.emulate("FRZDSP", properties=F32["CPU"])
    directory = hl.freeze("digits_inception", "AUTO:FRZDSP,CPU", tmp_path)
    assert hl.verify(directory, turns=3, slower=1e6).ok
    measured = profile_frozen("digits_inception", directory, iterations=10)
    assert measured.affinity.devices == ("AUTO:FRZDSP,CPU",)
    assert {a.verdict for a in measured.agreement} == {"equal"}


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputPathError, match="cannot be made"):
        hl.freeze("digits_inception", "CPU", tmp_path / "file" / "below")
