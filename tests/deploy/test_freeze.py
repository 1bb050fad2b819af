"""A frozen placement runs where only openvino and numpy are."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from plain_openvino import edit_placement
from random_models import random_affinity, random_model
from slices import sliced
from small_language_models import decoder
from small_models import constant_only

import hetero_lab as hl
from hetero_lab.cli.main import main
from hetero_lab.deploy.deployed_run import profile_frozen
from hetero_lab.deploy.freeze import write_frozen
from hetero_lab.devices.core import bind
from hetero_lab.errors import InputError, OutputPathError
from hetero_lab.model.language import language_model, tokenizer_files
from hetero_lab.model.read import prepare
from tests.other_process import run

F32 = {"FRZACC": {"INFERENCE_PRECISION_HINT": "f32"}, "CPU": {"INFERENCE_PRECISION_HINT": "f32"}}


def test_it_reproduces_the_outputs_without_the_lab(bare_python, tmp_path):
    hl.emulate("FRZACC", unsupported={"Concat"})
    model = hl.load("digits_inception")
    affinity = hl.Affinity.automatic(model, "HETERO:FRZACC,CPU")
    placement = hl.Placement(affinity, "frozen", F32)
    directory = hl.freeze(model, placement, tmp_path / "frozen", tolerance=None)
    names = {"inputs.npz", "model.bin", "model.xml", "requests.npz", "run.py"}
    assert {path.name for path in directory.iterdir()} == {*names, "contract.json"}
    given, made = directory / "inputs.npz", tmp_path / "o.npz"
    done = run(bare_python, directory / "run.py", given, made)
    assert done.stdout.startswith("digit (1, 10)")
    expected = hl.compile(model, placement)(dict(np.load(given)))
    with np.load(made) as got:
        for name, value in expected.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-5)


@pytest.mark.parametrize("seed", sliced([86, 3, 14], 1))
def test_random_placements_freeze(tmp_path, seed):
    hl.emulate("FRZACC")
    prepared = prepare(random_model(seed))
    affinity = random_affinity(prepared.graph, ["FRZACC", "CPU"], seed)
    hl.freeze(prepared, hl.Placement(affinity, "r", F32), tmp_path, tolerance=None)  # checks itself
    assert (tmp_path / "run.py").exists()


def test_auto_is_frozen_and_measured_as_it_lies_there(tmp_path):
    hl.emulate("FRZDSP", properties=F32["CPU"])
    directory = hl.freeze("digits_inception", "AUTO:FRZDSP,CPU", tmp_path, tolerance=None)
    assert hl.verify(directory, turns=3, tolerance=1e6).ok
    measured = profile_frozen(bind("digits_inception"), directory, iterations=10)
    assert measured.affinity.devices == ("AUTO:FRZDSP,CPU",)
    assert {a.verdict for a in measured.agreement} == {"equal"}


@pytest.mark.slow
def test_a_language_model_generates_without_the_lab(bare_python, tmp_path):
    hl.emulate("FRZACC")
    model = hl.load(decoder(2))
    exact = {**F32["CPU"], "KV_CACHE_PRECISION": "f32"}
    affinity = hl.Affinity.uniform(model, "FRZACC").fix(ops={"lm_head": "CPU"})
    placement = hl.Placement(affinity, "in two", {"FRZACC": exact, "CPU": exact})
    prompt = np.array([[3, 1, 4, 1, 5]])
    directory = hl.freeze(
        model, placement, tmp_path / "frozen", examples=[prompt, prompt[:, :1]], tolerance=None
    )
    program = directory / "run.py"
    done = run(bare_python, program, directory / "inputs.npz", tmp_path / "o.npz")
    assert done.returncode == 0, done.stderr
    expected = hl.profile(
        model, placement, scenario=hl.Scenario(5, 32), inputs=prompt, iterations=1, counters=False,
        reference=False, progress=False,
    ).generation  # fmt: skip
    assert expected is not None
    with np.load(tmp_path / "o.npz") as made:
        assert made["token_ids"].tolist() == expected.token_ids.tolist()
    with np.load(directory / "requests.npz") as file:
        assert file["in0.1"].tolist() == expected.token_ids[:, :8].tolist()
        assert file["out0.0"].argmax(-1).tolist() == file["in0.1"].tolist()
    assert hl.verify(directory, turns=3, tolerance=1e6).ok

    refused = run(bare_python, program, "")
    assert (refused.returncode, refused.stderr[:27]) == (2, "run.py: The prompt is empty")
    refused = run(bare_python, program, "What is in a.npz")
    assert refused.returncode == 2
    assert "no openvino_tokenizer.xml" in refused.stderr
    edit_placement(directory, lambda plan: plan["generation"].update(context_tokens=20))
    refused = run(bare_python, program)
    assert "longer than the model's context of 20 tokens" in refused.stderr


@pytest.mark.slow
def test_a_tokenizer_is_part_of_what_is_verified(tmp_path):
    exported = tmp_path / "exported"
    exported.mkdir()
    ov.save_model(decoder(1), exported / "openvino_model.xml")
    files = [
        f"openvino_{kind}.{end}" for kind in ("tokenizer", "detokenizer") for end in ("xml", "bin")
    ]
    for name in files:
        (exported / name).write_text(name)
    (exported / "openvino_tokenizer.xml.bak").write_text("old")
    model = hl.load(exported)
    assert tokenizer_files(model) == [exported / name for name in sorted(files)]
    directory = hl.freeze(model, "CPU", tmp_path / "frozen", tolerance=None)
    assert {path.name for path in directory.glob("openvino_*")} == set(files)
    (directory / "openvino_tokenizer.xml").write_text("another")
    proven = hl.verify(directory, turns=3, tolerance=1e6)
    assert proven.broken == ("model",)
    assert "openvino_tokenizer.xml differs from the frozen file" in str(proven)
    hl.freeze(hl.load(decoder(1)), "CPU", directory, tolerance=None)  # has none, and none is left
    assert not [*directory.glob("openvino_*")]


def test_notes_in_a_file_are_not_believed(tmp_path):
    written = decoder(1)
    written.set_rt_info(str(tmp_path), ["hetero_lab", "directory"])
    written.set_rt_info("x", ["hetero_lab", "context_tokens"])
    ov.save_model(written, tmp_path / "model.xml")
    (tmp_path / "openvino_tokenizer.xml").write_text("not that of the model")
    model = hl.load(tmp_path / "model.xml")
    assert tokenizer_files(model) == []
    assert language_model(model).context_tokens is None


def test_prompts_that_a_language_model_does_not_take(tmp_path):
    model = hl.load(decoder(2))
    for wrong, kind, match in (
        (np.array([1, 2]), InputError, r"shape \[batch, n\]"),
        (np.array([[1, 99]]), InputError, "from 0 to 96"),
        ("Once upon a time", InputError, "an array of token ids"),
    ):
        with pytest.raises(kind, match=match):
            hl.freeze(model, "CPU", tmp_path / "frozen", examples=[wrong], tolerance=None)
    assert not (tmp_path / "frozen").exists()


@pytest.mark.network
@pytest.mark.slow
def test_a_frozen_language_model_writes_text_without_the_lab(bare_python, tmp_path):
    pytest.importorskip("openvino_tokenizers")
    model = hl.load("smollm2_135m")
    directory = tmp_path / "frozen"
    directory.mkdir()
    write_frozen(directory, hl.compile(model, "CPU"), [[np.array([[1, 2, 3]])]])
    assert "directory" not in (directory / "model.xml").read_text()[-2000:]
    program = directory / "run.py"
    done = run(bare_python, program, "The capital of France is", "4")
    assert done.stdout.startswith(" Paris.")
    (directory / "openvino_detokenizer.xml").unlink()
    assert "no openvino_detokenizer.xml" in run(bare_python, program, "The").stderr


def test_a_model_without_inputs_is_frozen(bare_python, tmp_path):
    directory = hl.freeze(constant_only(), "CPU", tmp_path / "frozen", tolerance=None)
    assert run(bare_python, directory / "run.py").stdout == "out (1, 4) float32 [3. 3. 3. 3.]\n"
    assert hl.verify(directory).ok


def test_a_deployment_is_replaced_by_the_same_model_only(tmp_path, capsys):
    directory = hl.freeze("digits_inception", "CPU", tmp_path / "deploy", tolerance=None)
    hl.emulate("FRZACC", unsupported={"Softmax"})
    hl.freeze("digits_inception", "HETERO:FRZACC,CPU", directory, tolerance=None)
    before = hl.read_placement(directory)
    with pytest.raises(OutputPathError, match="'digits_inception' .* not 'c' with 'out'") as told:
        hl.freeze(constant_only(), "CPU", directory, tolerance=None)
    assert "Name another directory, or delete that one." in str(told.value)
    ov.save_model(constant_only(), tmp_path / "c.xml")
    assert main(["advise", str(tmp_path / "c.xml"), "--deploy", str(directory)]) == 2
    assert "holds another model: 'digits_inception'" in capsys.readouterr().err
    assert hl.read_placement(directory) == before
