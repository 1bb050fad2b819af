"""What is printed for other runtimes is what they take; benchmark_app runs it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys

import jsonschema
import pytest

import hetero_lab as hl
from hetero_lab.cli.main import main

F32 = {"INFERENCE_PRECISION_HINT": "f32"}
# The part for a model of the schema that OpenVINO Model Server checks its config.json against.
_STRING = {"type": "string"}
SERVED = {
    "required": ["name", "base_path"],
    "properties": {"name": _STRING, "base_path": _STRING, "target_device": _STRING,
                   "plugin_config": {"type": "object"}},
    "additionalProperties": False,
}  # fmt: skip
# Every Core of the process has the device of the test.
EMULATED = """
import openvino as ov, hetero_lab as hl
class Emulating(ov.Core):
    def __init__(self):
        super().__init__()
        hl.emulate("ACC", core=self)
ov.Core = Emulating
"""
CONFIGURED = """
from openvino.tools.benchmark import benchmark
from openvino.tools.benchmark.main import main
benchmark.Core = Emulating
main()
"""


@pytest.fixture
def model():
    hl.emulate("ACC")
    return hl.load("digits_inception")


@pytest.mark.slow
@pytest.mark.parametrize("labels", [True, False])
def test_benchmark_app_runs_what_is_printed(model, tmp_path, labels):
    affinity = hl.Affinity.uniform(model, "ACC")
    if labels:
        affinity = affinity.fix(patterns={"^mixed2/": "CPU"})
    placement = hl.Placement(affinity, "p", dict.fromkeys(affinity.devices, F32))
    text = hl.interop.recipe(model, placement, "benchmark_app")
    hl.save(model, placement, tmp_path / "placed.xml")
    parts = [part.strip() for part in text.split("\n# ")]
    program, command = parts[:2] if labels else (CONFIGURED, parts[1])
    if not labels:
        (tmp_path / "load.json").write_text(parts[0].removeprefix("# load.json"))
    (tmp_path / "bench.py").write_text(EMULATED + program)
    words = command.split()
    more = ["-niter", "20", "-report_type", "detailed_counters", "-report_folder", "."]
    line = [sys.executable, "bench.py", *words[words.index("-m") :], *more]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert f"Execution Devices:{list(affinity.devices)}" in done.stdout
    counters = hl.interop.read_benchmark_app(tmp_path, model, placement=placement).counters
    expected = hl.profile(model, placement, iterations=10, progress=False).tables["counters"]
    for name in ("subgraph", "precision"):
        assert counters[name].value_counts().to_dict() == expected[name].value_counts().to_dict()


def test_what_takes_no_labels_says_so(model):
    own = hl.Affinity.uniform(model, "ACC").fix(patterns={"^mixed2/": "CPU"})
    placement, n_moved = hl.Placement(own, "p", {"CPU": F32}), own.counts()["CPU"]
    texts = {
        runtime: hl.interop.recipe(model, placement, runtime)
        for runtime in ("genai", "ovms", "onnxruntime", "optimum")
    }
    for runtime in ("genai", "ovms", "onnxruntime"):
        first = texts[runtime].splitlines()[0]
        assert f"takes no labels: {n_moved} of 92 ops run elsewhere" in first
        assert "HETERO:ACC,CPU" in texts[runtime]
        assert "no labels" not in hl.interop.recipe(model, "HETERO:ACC,CPU", runtime)
    for runtime in ("genai", "onnxruntime", "optimum"):
        ast.parse(texts[runtime])
    given = re.search(r"json.dumps\((.*)\),", texts["onnxruntime"])
    assert given
    assert ast.literal_eval(given[1]) == {"HETERO": {"DEVICE_PROPERTIES": {"CPU": F32}}}
    config = json.loads(texts["ovms"].partition("\n// config.json\n")[2])
    jsonschema.validate(config["model_config_list"][0]["config"], SERVED)


def test_the_command_prints_it_and_saves_the_model(tmp_path, capsys):
    model, file = "digits_inception", str(tmp_path / "placed.xml")
    assert main(["export", model, "-d", "CPU", "--for", "ovms", "--placed", file]) == 0
    assert capsys.readouterr().out == hl.interop.recipe(model, "CPU", "ovms")
    assert main(["apply", model, file, "-n", "5"]) == 0
    assert main(["lint", model, "--affinity", file]) == 0
    assert main(["export", model, "-d", "CPU", "--for", "nothing"]) == 2
