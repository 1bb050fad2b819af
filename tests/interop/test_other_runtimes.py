"""What is printed for other runtimes runs there, with the outputs that it has in the lab."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hetero_lab as hl
from hetero_lab.model.language import tokenizer_files
from hetero_lab.samples.catalogue import sample_path
from tests.other_process import run_python
from tests.scripts import EXACT, F32

pytestmark = pytest.mark.network
ROOT = str(Path(__file__).parents[2])
# The last ones that were seen to work. The torchvision that optimum-intel asks for is not used.
ONNXRUNTIME = "onnxruntime==1.32.0 onnxruntime-ep-openvino==1.8.1"
ONNXRUNTIME_HETERO = "--no-deps onnxruntime-openvino==1.24.1"
OPTIMUM = ["torch==2.13.0 transformers==5.5.4", "--no-deps optimum-intel==2.2.0 optimum==2.3.0"]


@pytest.fixture
def run_with(request, tmp_path):
    """Return a function that runs Python with packages that are not here."""
    with tempfile.TemporaryDirectory() as site:  # large: not kept as tmp_path is

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            env = {**os.environ, "PYTHONPATH": os.pathsep.join([site, ROOT])}
            line = [sys.executable, *arguments]
            return subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True)

        for packages in request.param:
            done = run("-m", "pip", "install", "-q", "--target", site, *packages.split())
            if "No matching distribution" in done.stderr:
                pytest.skip(f"the index lacks a package: {done.stderr.strip()[-300:]}")
            assert done.returncode == 0, done.stderr
        yield run


GENERATE = """
import numpy as np, openvino as ov
ids = np.load("ids.npy")
prompt = openvino_genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
asked = openvino_genai.GenerationConfig(max_new_tokens=8, do_sample=False, ignore_eos=True)
print(pipe.generate(prompt, asked).tokens)
"""


def test_genai_generates_the_tokens_of_the_lab(tmp_path):
    llm = hl.load("smollm2_135m")
    ids = hl.llm.tokenize(llm, "The capital of France is")
    np.save(tmp_path / "ids.npy", ids)
    placement = hl.Placement(hl.Affinity.uniform(llm, "CPU"), "", {"CPU": EXACT})
    own = hl.profile(
        llm, placement, scenario=hl.Scenario(ids.shape[1], 8), inputs=ids, iterations=1,
        counters=False, reference=False, progress=False,
    )  # fmt: skip
    for each in (placement, replace(placement, direct=True)):
        text = hl.interop.recipe(llm, each, "genai")
        text = text.replace("exported", str(tokenizer_files(llm)[0].parent)) + GENERATE
        said = run_python(text, cwd=tmp_path).stdout.splitlines()[-1]
        assert json.loads(said) == own.generation.token_ids.tolist()
        with pytest.raises(AssertionError, match="nonsense"):  # the properties reach the device
            run_python(text.replace("'f32'", "'nonsense'"), cwd=tmp_path)


RUN = """
import numpy as np
with np.load("inputs.npz") as given:
    outputs = session.run(None, dict(given))
np.savez("outputs.npz", **{o.name: value for o, value in zip(session.get_outputs(), outputs)})
"""


@pytest.mark.parametrize(
    ("run_with", "direct"),
    [([ONNXRUNTIME], True), ([ONNXRUNTIME_HETERO], False)],
    indirect=["run_with"],
    ids=["plugin", "HETERO"],
)
def test_onnxruntime_gives_the_outputs_of_the_lab(run_with, direct, tmp_path):
    model = hl.load("magika")
    inputs = {"bytes": np.random.default_rng(0).integers(0, 256, (1, 2048), np.int32)}
    np.savez(tmp_path / "inputs.npz", allow_pickle=False, **inputs)
    affinity = hl.Affinity.uniform(model, "CPU")
    placement = hl.Placement(affinity, "", {"CPU": F32}, direct=direct)
    text = hl.interop.recipe(model, placement, "onnxruntime")
    done = run_with("-c", text.replace("model.onnx", str(sample_path("magika"))) + RUN)
    if direct and b"GenuineIntel" not in Path("/proc/cpuinfo").read_bytes():
        # The plugin looks for no OpenVINO device on a CPU of another maker.
        assert "it has no CPU here, only []" in done.stderr
        return
    assert done.returncode == 0, done.stdout + done.stderr
    with np.load(tmp_path / "outputs.npz") as got:
        for name, value in hl.compile(model, placement)(inputs).items():
            np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("run_with", [OPTIMUM], indirect=True, ids=["2.2"])
def test_optimum_gives_the_outputs_of_the_lab(run_with):
    done = run_with("-m", "tests.interop.optimum_runs")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["devices"] == [["ACC", "CPU"]] * 2
    assert found["error"] < 1e-6
    said, own = found["tokens"]
    assert said == own
    assert len(set(own[0])) > 1
