"""What is printed for other runtimes runs there, with the outputs that it has in the lab."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

import hetero_lab as hl
from hetero_lab.model.language import tokenizer_files
from hetero_lab.samples.catalogue import sample_path
from tests.scripts import EXACT, F32

pytestmark = pytest.mark.network
ROOT = str(Path(__file__).parents[3])
# The last ones that were seen to work. The torchvision that optimum-intel asks for is not used.
ONNXRUNTIME = ["--no-deps onnxruntime-openvino==1.24.1"]
OPTIMUM = ["torch==2.13.0 transformers==5.5.4", "--no-deps optimum-intel==2.2.0 optimum==2.3.0"]


@pytest.fixture
def run_beside(request, tmp_path):
    """Return a function that runs Python with packages of its own and those here."""
    with tempfile.TemporaryDirectory() as directory:  # large: not kept as tmp_path is
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        (site,) = Path(directory).glob("lib/python*/site-packages")
        here = sysconfig.get_path("purelib")
        (site / "here.pth").write_text(f"import site; site.addsitedir({here!r})\n")

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [f"{directory}/bin/python", *arguments], cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": ROOT}, capture_output=True, text=True,
            )  # fmt: skip

        for packages in request.param:
            done = run("-m", "pip", "install", "-q", *packages.split())
            if "No matching distribution" in done.stderr:
                pytest.skip(f"the index lacks a package: {done.stderr.strip()[-300:]}")
            assert done.returncode == 0, done.stderr
        yield run


def test_genai_generates_the_tokens_of_the_lab():
    genai: Any = importlib.import_module("openvino_genai")
    llm = hl.load("smollm2_135m")
    ids = hl.llm.tokenize(llm, "The capital of France is")
    prompt = genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
    asked = genai.GenerationConfig(max_new_tokens=8, do_sample=False, ignore_eos=True)
    directory = repr(str(tokenizer_files(llm)[0].parent))
    affinity = hl.Affinity.uniform(llm, "CPU")
    own = hl.profile(
        llm, hl.Placement(affinity, "", {"CPU": EXACT}), scenario=hl.Scenario(ids.shape[1], 8),
        inputs=ids, iterations=1, counters=False, reference=False, progress=False,
    )  # fmt: skip
    for is_direct in (True, False):
        placement = hl.Placement(affinity, "", {"CPU": EXACT}, direct=is_direct)
        text = hl.interop.recipe(llm, placement, "genai").replace('"exported"', directory)
        assert is_direct == ("HETERO:CPU" not in text)
        names: dict[str, Any] = {}
        exec(text, names)
        assert names["pipe"].generate(prompt, asked).tokens == own.generation.token_ids.tolist()
        with pytest.raises(RuntimeError, match="nonsense"):  # the properties reach the device
            exec(text.replace("'f32'", "'nonsense'"), names)


RUN = """
import numpy as np
with np.load("inputs.npz") as given:
    outputs = session.run(None, dict(given))
np.savez("outputs.npz", **{o.name: value for o, value in zip(session.get_outputs(), outputs)})
"""


@pytest.mark.parametrize("run_beside", [ONNXRUNTIME], indirect=True, ids=["1.24"])
def test_onnxruntime_gives_the_outputs_of_the_lab(run_beside, tmp_path):
    model = hl.load("magika")
    inputs = {"bytes": np.random.default_rng(0).integers(0, 256, (1, 2048), np.int32)}
    np.savez(tmp_path / "inputs.npz", allow_pickle=False, **inputs)
    for is_direct in (True, False):
        affinity = hl.Affinity.uniform(model, "CPU")
        placement = hl.Placement(affinity, "", {"CPU": F32}, direct=is_direct)
        text = hl.interop.recipe(model, placement, "onnxruntime")
        done = run_beside("-c", text.replace("model.onnx", str(sample_path("magika"))) + RUN)
        assert done.returncode == 0, done.stdout + done.stderr
        with np.load(tmp_path / "outputs.npz") as got:
            for name, value in hl.compile(model, placement)(inputs).items():
                np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("run_beside", [OPTIMUM], indirect=True, ids=["2.2"])
def test_optimum_gives_the_outputs_of_the_lab(run_beside):
    done = run_beside("-m", "tests.experiments.interop.optimum_runs")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["devices"] == [["ACC", "CPU"]] * 2
    assert found["error"] < 1e-6
    said, own = found["tokens"]
    assert said == own
    assert len(set(own[0])) > 1
