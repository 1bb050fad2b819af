"""A deployed machine: it runs where only openvino and numpy are, and is held to its contracts."""

from __future__ import annotations

import ast
import json
import re
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from small_models import convolutions

import hetero_lab as hl
from hetero_lab.cli.main import main
from hetero_lab.deploy import run_frozen
from hetero_lab.devices.core import bind
from hetero_lab.errors import (
    HeteroLabWarning,
    MeasurementError,
    OutputPathError,
    StoredFileError,
)
from hetero_lab.intervals import Noise
from hetero_lab.machine import run_machine
from hetero_lab.machine.demand import SHARE, Goal
from hetero_lab.machine.machine_plan import MachinePlan
from hetero_lab.machine.race import Together
from hetero_lab.machine.ways import ways_of
from hetero_lab.measure.loads import Driven
from hetero_lab.results.evidence import BEST
from hetero_lab.runtime.stored_placement import standalone
from tests.other_process import run

ONE_THREAD = {"CPU": {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}}


def plan_of(demands: dict[str, hl.Demand]) -> MachinePlan:
    """Return a plan that chose the first way of each model."""
    ways = {n: ways_of(n, demand, bind(demand.model), [])[0] for n, demand in demands.items()}
    chosen = {name: next(iter(own)) for name, own in ways.items()}
    turn = dict.fromkeys(demands, Driven(rate_per_s=100.0, latencies_us=(1e4,), n_due=1))
    goal = Goal(SHARE, demands, dict.fromkeys(demands, 100.0))
    sets = (Together("chosen", chosen, {}, turns=(turn,), judgement=BEST),)
    return MachinePlan(goal, ways, {}, sets, {}, {}, {}, Noise(0.0, 0.0))


@pytest.fixture(scope="module")
def plan() -> MachinePlan:
    hl.emulate("MACHACC", unsupported={"Softmax"})
    model = hl.load("digits_inception")
    on_one_thread = hl.Placement(hl.Affinity.uniform(model, "CPU"), "one thread", ONE_THREAD)
    return plan_of(
        {
            "whole": hl.Demand(model, requests=2, ways=[on_one_thread]),
            "split": hl.Demand(model, rate_per_s=50, deadline_ms=500, ways=["HETERO:MACHACC,CPU"]),
        }
    )


@pytest.fixture(scope="module")
def deployed(plan, tmp_path_factory) -> Path:
    with pytest.warns(HeteroLabWarning, match="Model Server .* split: MACHACC is emulated"):
        return plan.deploy(tmp_path_factory.mktemp("machine") / "deploy", tolerance=None)


@pytest.fixture
def moved(deployed, tmp_path) -> Path:
    return Path(shutil.copytree(deployed, tmp_path / "elsewhere"))


def edit(directory: Path, **changes: object) -> None:
    """Change fields of machine.json, or of the demand of ``split``."""
    file = directory / "machine.json"
    machine = json.loads(file.read_text())
    for name, value in changes.items():
        place = machine["models"]["split"] if name in machine["models"]["split"] else machine
        place[name] = value
    file.write_text(json.dumps(machine))


@pytest.mark.parametrize("processes", [None, 1])
def test_it_keeps_all_models_busy_with_openvino_and_numpy_alone(moved, bare_python, processes):
    edit(moved, processes=processes)
    done = run(bare_python, moved / "run_machine.py", 0.5)
    assert (done.returncode, done.stderr) == (0, "")
    heading, whole, split = done.stdout.splitlines()
    assert heading.split() == ["model", "way", "rate/s", "median", "ms", "p99", "ms", "missed"]
    assert whole.startswith("whole  one thread          ")
    assert float(whole.split()[3]) > 0
    assert split.startswith("split  HETERO:MACHACC,CPU  ")
    assert 0 < float(split.split()[2]) < 75  # by the clock
    assert "%" in split


USE = """\
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

sys.path.insert(0, sys.argv[1])
from run_machine import start

models = start()
inputs = dict(np.load(sys.argv[2]))
with ThreadPoolExecutor(6) as pool:
    for name, model in models.items():
        first, *others = pool.map(model.infer, [inputs] * 50)
        assert all(np.array_equal(one["digit"], first["digit"]) for one in others)
        np.save(f"{sys.argv[3]}/{name}.npy", first["digit"])
try:
    models["split"].infer({"image": np.zeros(3, np.float32)})
except ValueError as error:
    print(error)
"""


def test_the_outputs_of_each_model_are_those_of_the_lab(plan, moved, bare_python, tmp_path):
    image = np.random.default_rng(7).random((1, 1, 8, 8), np.float32)
    np.savez(tmp_path / "given.npz", image=image)
    done = run(bare_python, "-c", USE, moved, tmp_path / "given.npz", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Input 'image' has the shape [1,1,8,8], the given array [3].")
    for name, placement in plan.best.items():
        expected = hl.compile(hl.load("digits_inception"), placement)({"image": image})
        found = np.load(tmp_path / f"{name}.npy")
        np.testing.assert_allclose(found, expected["digit"], rtol=1e-5)


def test_a_model_that_fails_costs_its_own_row(moved, bare_python):
    (moved / "split" / "model.bin").unlink()
    done = run(bare_python, moved / "run_machine.py", 0.2)
    assert done.returncode == 1
    assert "Empty weights data" in done.stderr
    _, whole, split = done.stdout.splitlines()
    assert float(whole.split()[3]) > 0
    assert split.split()[2:] == ["failed", "exit", "code", "2"]


def test_each_model_is_verified_and_named(moved, capsys, tmp_path):
    proven = hl.verify(moved)
    assert (proven.ok, proven.broken) == (True, ())
    assert set(proven.summary["model"]) == {"", "whole", "split"}
    assert proven.verdict.endswith("(no latency promised).")
    weights = moved / "split" / "model.bin"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
    (moved / "run_machine.py").write_text("print('mine')")
    broken = hl.verify(moved)
    assert set(broken.broken) >= {"program", "split model"}
    assert "split model" in broken.verdict
    assert not any(name.startswith("whole") for name in broken.broken)
    assert main(["verify", str(moved), "--junit", str(tmp_path / "junit.xml")]) == 1
    assert "split model" in capsys.readouterr().out
    cases = ElementTree.parse(tmp_path / "junit.xml").getroot()[0].findall("testcase")
    assert {case.get("name") for case in cases} >= {"program", "whole model", "split outputs"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"requests": 0}, "requests of split is a whole number above 0"),
        ({"rate_per_s": "fast"}, "rate_per_s of split is null, or above 0 and at most 100000"),
        ({"rate_per_s": 1e300}, "rate_per_s of split is null, or above 0 and at most 100000"),
        ({"rate_per_s": None}, "deadline_ms of split needs rate_per_s"),
        ({"deadline_ms": float("nan")}, "deadline_ms of split is null or a number above 0"),
        ({"schema_version": 2}, 'it does not say {"kind": "machine", "schema_version": 1}'),
        ({"processes": 3}, "processes is 1, or null for a process each"),
        ({"models": {"../whole": {}}}, "'../whole' cannot name a model"),
        ({"models": []}, "models maps names to demands"),
    ],
)
def test_a_bad_demand_is_told_in_a_line(moved, change, told):
    edit(moved, **change)
    with pytest.raises(StoredFileError, match=re.escape(f"machine.json: {told}.")):
        hl.verify(moved)


def test_what_is_no_machine_is_told_by_the_program_too(moved):
    assert run(sys.executable, moved / "run_machine.py", "soon").returncode == 2
    (moved / "machine.json").write_text('{"kind": ')
    done = run(sys.executable, moved / "run_machine.py")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("run_machine.py: machine.json: Expecting value")
    with pytest.raises(StoredFileError, match=r"machine\.json: Expecting value"):
        hl.verify(moved)


def test_files_that_are_not_of_the_machine_are_refused(moved):
    (moved / "numpy.py").write_text("raise SystemExit('owned')")
    assert run(sys.executable, moved / "run_machine.py", 0.1).returncode == 0
    with pytest.raises(StoredFileError, match=r"holds 'numpy\.py', which its machine\.json"):
        hl.verify(moved)


def _names_of(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = ast.walk(node) if isinstance(node, ast.Assign | ast.AnnAssign) else ()
    return [
        one.id for one in targets if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    ]


@pytest.mark.parametrize("module", [run_frozen, run_machine])
def test_no_module_of_a_program_hides_a_name_of_another(module):
    defined = [name for node in ast.parse(standalone(module)).body for name in _names_of(node)]
    assert [name for name, count in Counter(defined).items() if count > 1] == []
    assert len(defined) > 50


def test_where_one_directory_is_refused_nothing_is_written(plan, tmp_path):
    hl.freeze(convolutions(layers=1), "CPU", tmp_path / "split", tolerance=None)
    with pytest.raises(OutputPathError, match="holds another model"):
        plan.deploy(tmp_path, tolerance=None)
    assert [path.name for path in tmp_path.iterdir()] == ["split"]
    unmeasured = replace(plan, sets=(replace(plan.sets[0], looks=(), turns=()),))
    with pytest.raises(MeasurementError, match="Nothing was measured together to deploy"):
        unmeasured.deploy(tmp_path, tolerance=None)


def test_model_server_gets_devices_and_properties_but_no_labels(tmp_path):
    hl.emulate("MACHACC", unsupported={"Softmax"})
    model = hl.load("digits_inception")
    greedy = hl.Affinity.automatic(model, "HETERO:MACHACC,CPU")
    precise = {"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}
    by_hand = greedy.fix(types={"AvgPool": "CPU", "MaxPool": "CPU"})
    placement = hl.Placement(by_hand, "by hand", precise)
    plan = plan_of({"hand": hl.Demand(model, requests=3, ways=[placement])})
    with pytest.warns(HeteroLabWarning) as told:
        plan.deploy(tmp_path, tolerance=None)
    labels, emulated = (str(one.message).partition("hand: ")[2] for one in told)
    assert re.fullmatch(r"It takes no labels: \d+ of \d+ ops run elsewhere\.", labels)
    assert emulated == "MACHACC is emulated, and not there."
    (served,) = json.loads((tmp_path / "model_server.json").read_text())["model_config_list"]
    config = served["config"]
    assert (config["name"], config["nireq"]) == ("hand", 3)
    assert config["target_device"] == "HETERO:MACHACC,CPU"
    assert "INFERENCE_PRECISION_HINT:f32" in config["plugin_config"]["DEVICE_PROPERTIES"]
    note = (tmp_path / "model_server.txt").read_text()
    assert "hand: It takes no labels" in note
    assert '-v "$PWD/hand:/models/hand/1:ro"' in note
