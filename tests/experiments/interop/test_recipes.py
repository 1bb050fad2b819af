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
from hetero_lab.errors import ArgumentError

F32 = {"INFERENCE_PRECISION_HINT": "f32"}
# Of the schema that OpenVINO Model Server checks its config.json against.
SERVED = {
    "type": "object",
    "required": ["model_config_list"],
    "properties": {
        "model_config_list": {
            "items": {
                "required": ["config"],
                "properties": {
                    "config": {
                        "required": ["name", "base_path"],
                        "properties": {
                            "name": {"type": "string"},
                            "base_path": {"type": "string"},
                            "target_device": {"type": "string"},
                            "plugin_config": {"type": "object"},
                        },
                        "additionalProperties": False,
                    }
                },
                "additionalProperties": False,
            }
        }
    },
    "additionalProperties": False,
}
# The device of the test is there in every Core of the process.
EMULATED = """
import openvino as ov, hetero_lab as hl
plain = ov.Core
class Emulating(plain):
    def __init__(self):
        super().__init__()
        hl.emulate("ACC", unsupported={"Softmax", "Concat"}, core=self)
ov.Core = Emulating
"""
CONFIGURED = """
from openvino.tools.benchmark import benchmark
from openvino.tools.benchmark.main import main
benchmark.Core = Emulating
main()
"""


@pytest.fixture
def placed():
    hl.emulate("ACC", unsupported={"Softmax", "Concat"})
    model = hl.load("digits_inception")
    own = hl.Affinity.automatic(model, "HETERO:ACC,CPU")
    return model, hl.Placement(own, "own", {"ACC": F32, "CPU": F32})


@pytest.mark.slow
@pytest.mark.parametrize("labels", [True, False])
def test_benchmark_app_runs_what_is_printed(placed, tmp_path, labels):
    model, placement = placed
    if not labels:  # its list of ops is unknown to plain OpenVINO
        hl.emulate("ACC")
        placement = hl.Placement(hl.Affinity.uniform(model, "ACC"), "whole", {"ACC": F32})
    else:
        moved = placement.affinity.fix(patterns={"^mixed2/": "CPU"})
        placement = hl.Placement(moved, "labels", {"ACC": F32, "CPU": F32})
    text = hl.interop.recipe(model, placement, "benchmark_app")
    hl.save(model, placement, tmp_path / "placed.xml")
    program, command = text.rsplit("\n# ", 2)[:2] if labels else (CONFIGURED, text.split("\n# ")[1])
    if not labels:
        (tmp_path / "load.json").write_text(text.removeprefix("# load.json\n").split("\n\n")[0])
    (tmp_path / "bench.py").write_text(EMULATED + program)
    words = command.split()
    options = words[words.index("-m") :]
    more = ["-niter", "20", "-report_type", "detailed_counters", "-report_folder", "."]
    done = subprocess.run(
        [sys.executable, "bench.py", *options, *more], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert f"Execution Devices:{['ACC', 'CPU'][: 2 if labels else 1]}" in done.stdout
    counters = hl.interop.read_benchmark_app(tmp_path, model, placement=placement).counters
    expected = hl.profile(model, placement, iterations=10, progress=False).tables["counters"]
    for name in ("subgraph", "precision"):
        assert counters[name].value_counts().to_dict() == expected[name].value_counts().to_dict()


def test_what_takes_no_labels_says_so(placed):
    model, placement = placed
    moved = hl.Placement(placement.affinity.fix(patterns={"^mixed2/": "CPU"}), "moved")
    n_moved = len(moved.affinity.diff(placement.affinity))
    for runtime in ("genai", "ovms", "onnxruntime"):
        text = hl.interop.recipe(model, moved, runtime)
        assert f"takes no labels: {n_moved} of 92 ops run elsewhere" in text.splitlines()[0]
        assert "HETERO:ACC,CPU" in text
        assert "labels" not in hl.interop.recipe(model, placement, runtime)
    for runtime in ("optimum", "onnxruntime", "genai"):
        ast.parse(hl.interop.recipe(model, placement, runtime))
    text = hl.interop.recipe(model, placement, "onnxruntime")
    found = re.search(r"json.dumps\((.*)\),", text)
    assert found
    properties = {"ACC": F32, "CPU": F32}
    assert ast.literal_eval(found[1]) == {"HETERO": {"DEVICE_PROPERTIES": properties}}
    with pytest.raises(ArgumentError, match="no recipe for 'genia'. Did you mean 'genai'"):
        hl.interop.recipe(model, moved, "genia")


def test_the_config_of_the_model_server_fits_its_schema(placed):
    for placement in (placed[1], "CPU"):
        text = hl.interop.recipe(placed[0], placement, "ovms")
        config = json.loads(text.partition("\n")[2])
        jsonschema.validate(config, SERVED)
    assert config["model_config_list"][0]["config"]["target_device"] == "CPU"


def test_the_command_prints_it_and_saves_the_model(placed, tmp_path, capsys):
    from hetero_lab.cli.main import main

    model = "digits_inception"
    line = ["export", model, "-d", "HETERO:ACC,CPU", "--for"]
    file = str(tmp_path / "placed.xml")
    assert main([*line, "optimum", "--placed", file]) == 0
    assert capsys.readouterr().out == hl.interop.recipe(model, "HETERO:ACC,CPU", "optimum")
    assert main(["apply", model, file, "-n", "5"]) == 0
    assert main(["lint", model, "--affinity", file]) == 0
    assert main([*line, "nothing"]) == 2
    assert "There is no recipe for 'nothing'" in capsys.readouterr().err
