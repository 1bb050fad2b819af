"""What is printed for other runtimes is what they take; benchmark_app runs it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

import hetero_lab as hl
from hetero_lab.cli.main import main
from hetero_lab.devices.core import shared_core
from tests.scripts import F32

# Every Core of the process has the device of the test.
EMULATED = """
import openvino as ov, hetero_lab as hl
class Emulating(ov.Core):
    def __init__(self):
        super().__init__()
        hl.emulate("ACC", core=self)
ov.Core = Emulating
"""


@pytest.fixture
def model():
    hl.emulate("ACC")
    return hl.load("digits_inception")


@pytest.fixture
def printed(tmp_path):
    """Return a function that runs the printed program, and returns its output."""

    def run(model, placement, *more):
        hl.save(model, placement, tmp_path / "placed.xml")
        program, command = hl.interop.recipe(model, placement, "benchmark_app").split("\n# ")
        (tmp_path / "bench.py").write_text(EMULATED + program)
        line = [sys.executable, *command.split()[1:], *more]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        assert f"Execution Devices:{list(placement.devices)}" in done.stdout

    return run


@pytest.mark.slow
def test_benchmark_app_runs_what_is_printed(model, tmp_path, printed):
    affinity = hl.Affinity.uniform(model, "ACC").fix(patterns={"^mixed2/": "CPU"})
    placement = hl.Placement(affinity, "p", dict.fromkeys(affinity.devices, F32))
    report = ["-report_type", "detailed_counters", "-report_folder", "."]
    printed(model, placement, "-niter", "20", *report)
    counters = hl.interop.read_benchmark_app(tmp_path, model, placement=placement).counters
    expected = hl.profile(model, placement, iterations=10, progress=False).tables["counters"]
    for name in ("subgraph", "precision"):
        assert counters[name].value_counts().to_dict() == expected[name].value_counts().to_dict()


@pytest.mark.slow
def test_benchmark_app_runs_what_takes_pictures(model, printed):
    picture = op.parameter([1, 3, 8, 8], np.float32, name="picture")
    taken = hl.load(ov.Model([op.exp(op.relu(picture, name="r"), name="e")], [picture], "taken"))
    affinity = hl.Affinity.uniform(taken, "ACC").fix(ops={"e": "CPU"})
    printed(taken, hl.Placement(affinity, "p"), "-niter", "2")


@pytest.mark.parametrize("runtime", ["text", "benchmark_app", "ovms"])
def test_openvino_reads_properties_that_are_text(model, runtime):
    acc = hl.Placement(hl.Affinity.automatic(model, "HETERO:ACC,CPU"), "", {"ACC": F32})
    text = hl.interop.recipe(model, acc, runtime)
    found = re.search(r"(DEVICE_PROPERTIES\w*)\W+?({.*})", text)
    assert found
    assert shared_core().compile_model(model.clone(), "HETERO:ACC,CPU", dict([found.groups()]))
    wrong = {found[1]: found[2].replace("f32", "nonsense")}
    with pytest.raises(RuntimeError, match="nonsense"):
        shared_core().compile_model(model.clone(), "HETERO:ACC,CPU", wrong)


def test_parts_that_are_not_connected_need_labels(model):
    one, two = (op.parameter([4], np.float32, name=name) for name in "ab")
    apart = ov.Model([op.relu(one), op.abs(two)], [one, two], "apart")
    texts = {r: hl.interop.recipe(apart, "HETERO:ACC,CPU", r) for r in ("cpp", "python")}
    assert texts["cpp"].startswith("// It takes no labels: HETERO swaps inputs or outputs")
    assert "place_ops(model, core)" in texts["python"]


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
    served = json.loads(re.sub("^//.*", "", texts["ovms"], flags=re.M))
    config = served["model_config_list"][0]["config"]
    assert served == {"model_config_list": [{"config": config}]}
    assert list(config) == ["name", "base_path", "target_device", "plugin_config"]
    # Model Server takes no mapping inside.
    assert {type(value) for value in config["plugin_config"].values()} == {str}


def test_the_command_prints_it_and_saves_the_model(tmp_path, capsys):
    model, file = "digits_inception", (tmp_path / "mine.xml").as_posix()
    for runtime in ("ovms", "benchmark_app"):  # the output is the file, the rest is said aside
        assert main(["export", model, "-d", "CPU", "--for", runtime, "--placed", file]) == 0
        out, err = capsys.readouterr()
        assert json.loads(out) == json.loads(
            hl.interop.recipe(model, "CPU", runtime)[1:].partition("\n")[2]
        )
    assert f"load.json of benchmark_app -m {file} -d CPU -load_config load.json" in err
    assert main(["export", model, "-d", "CPU", "--for", "python", "--placed", file]) == 0
    assert capsys.readouterr().out == hl.interop.recipe(model, "CPU", "python") + "\n"
    assert main(["apply", model, file, "-n", "5"]) == 0
    assert main(["lint", model, "--affinity", file]) == 0
    assert main(["export", model, "-d", "CPU", "--for", "nothing"]) == 2
