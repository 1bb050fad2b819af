"""Devices, lint rules, solvers and views of other packages, found by their entry points."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import openvino as ov
import pytest
from other_process import run_python
from planning.random_costs import random_case

import hetero_lab as hl
from hetero_lab import extensions
from hetero_lab.backend.core import add_devices
from hetero_lab.errors import HeteroLabWarning, PlanError
from hetero_lab.extensions import DEVICES, LINT_RULES, SOLVERS, VIEWS, found
from hetero_lab.planning.planner import plan_graph
from hetero_lab.views.result_views import drawn

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "tests" / "example_extension"
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path, monkeypatch) -> Iterator[Install]:
    """Return a function that puts a package on the path with the metadata that pip leaves."""

    def add(package: str, entry_points: dict[str, dict[str, str]], source: Path | str = "") -> None:
        place = tmp_path / package
        info = place / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [
            line
            for group, entries in entry_points.items()
            for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
        ]
        (info / "entry_points.txt").write_text("\n".join(lines))
        if isinstance(source, Path):
            shutil.copy(source, place)
        else:
            (place / f"{package}.py").write_text(source)
        monkeypatch.syspath_prepend(place)

    extensions.found.cache_clear()
    yield add
    extensions.found.cache_clear()


@pytest.fixture
def example(install) -> None:
    """Have the example package installed."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    module = EXAMPLE / "hetero_lab_example.py"
    install("hetero_lab_example", project["entry-points"], module)


def test_a_device_is_registered_on_a_core(example):
    core = ov.Core()
    add_devices(core)
    assert "ACCELERATOR" in list(hl.devices(core=core)["device"])


def test_the_shared_core_has_devices_of_other_packages(install, tmp_path):
    source = (
        "import hetero_lab as hl\n"
        "def add(core):\n    hl.emulate('ADDED')\n"
        "def clash(core):\n    hl.emulate('CPU', core=core)\n"
    )
    install(
        "devices_of", {DEVICES: {"ADDED": "devices_of:add", "CLASH": "devices_of:clash"}}, source
    )
    code = "import hetero_lab as hl; print(list(hl.devices()['device'])); hl.devices()"
    path = os.pathsep.join([str(tmp_path / "devices_of"), str(ROOT)])
    done = run_python(code, PYTHONPATH=path)
    assert "'ADDED'" in done.stdout
    assert done.stderr.count("is left out") == 1
    assert "'CLASH' of hetero_lab.devices is left out: it failed (DeviceError" in done.stderr


def test_a_rule_finds_what_it_looks_for(example, digits, own_core):
    placement = hl.Affinity.automatic(digits, "HETERO:ACC,CPU", core=own_core).fix(
        types={"Concat": "CPU"}
    )
    partition = hl.partition(digits, placement, core=own_core)
    found = hl.lint(digits, placement, core=own_core)
    own = found[found["rule"] == "wide-boundary"]
    assert len(own) > 0
    for ops, finding in zip(own["ops"], own["finding"], strict=True):
        (subgraph,) = [s for s in partition.subgraphs if set(ops) <= set(s.ops)]
        n_bytes = sum(
            b.n_bytes for b in partition.boundaries if subgraph.index in (b.source, *b.targets)
        )
        assert finding == f"Subgraph {subgraph.index} exchanges {n_bytes} bytes."


def test_a_solver_of_ones_own_chooses(example):
    costs = random_case(3)
    plan = plan_graph(costs.graph, costs, solver="fastest", budget_s=5)
    exact = plan_graph(costs.graph, costs, budget_s=5)
    assert plan.method == "fastest, repaired"
    assert plan.predicted_us == pytest.approx(costs.predict_us(plan.affinity))
    assert plan.predicted_us >= exact.predicted_us >= plan.lower_bound_us


def test_a_solver_is_held_to_its_claims(install):
    source = (
        "from hetero_lab.planning.solver import Choice\n"
        "def short(pairwise, objective, **limits):\n    return Choice((), 0, 0)\n"
        "def bold(pairwise, objective, **limits):\n"
        "    devices = pairwise.allowed.argmax(axis=1)\n"
        "    return Choice(tuple(devices), 0, 10**15)\n"
    )
    install("liars", {SOLVERS: {"short": "liars:short", "bold": "liars:bold"}}, source)
    costs = random_case(3)
    with pytest.raises(PlanError, match="'short' gave 0 devices for \\d+ units"):
        plan_graph(costs.graph, costs, solver="short")
    with pytest.raises(PlanError, match="'bold' gave 10{15} ns as a lower bound"):
        plan_graph(costs.graph, costs, solver="bold")
    with pytest.raises(PlanError, match="no solver 'bald'. Did you mean 'bold'"):
        plan_graph(costs.graph, costs, solver="bald")


def test_the_integer_program_can_be_asked_for():
    costs = random_case(3)
    plan = plan_graph(costs.graph, costs, solver="milp", budget_s=5)
    assert plan.method == "milp, repaired"
    exact = plan_graph(costs.graph, costs, budget_s=5)
    assert plan.lower_bound_us <= exact.predicted_us <= plan.predicted_us


def test_a_view_is_drawn_by_name_and_in_galleries(example, digits, own_core, tmp_path):
    profile = hl.profile(digits, "HETERO:ACC,CPU", iterations=5, core=own_core, progress=False)
    sizes = [len(subgraph.ops) for subgraph in profile.partition.subgraphs]
    assert list(hl.views.subgraph_sizes(profile).data[0].y) == sizes
    assert "subgraph_sizes" in dir(hl.views)
    names = [name for name, _ in drawn(profile)]
    assert names[-1] == "subgraph_sizes"
    assert names.count("subgraph_sizes") == 1
    hl.views.page(profile, tmp_path / "page.html")
    assert "Ops by subgraph" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_broken_extension_is_left_out_and_named(install, digits, own_core):
    source = "def rule(context):\n    raise KeyError('no key')\nnumber = 3\n"
    rules = {"gone": "broken:gone", "fails": "broken:rule", "number": "broken:number"}
    install("broken", {LINT_RULES: rules, VIEWS: {"nothing": "no_such_module:view"}}, source)
    with pytest.warns(HeteroLabWarning) as warned:
        hl.lint(digits, "HETERO:ACC,CPU", core=own_core)
    texts = sorted(str(warning.message) for warning in warned)
    assert len(texts) == 3
    assert all(
        "'broken'" in text and text.startswith(f"'{name}'")
        for text, name in zip(texts, sorted(rules), strict=True)
    )
    assert "KeyError: 'no key'" in texts[0]
    with (
        pytest.warns(HeteroLabWarning, match="No module named 'no_such_module'"),
        pytest.raises(AttributeError, match="no attribute 'nothing'"),
    ):
        _ = hl.views.nothing


def test_a_name_that_is_taken_is_refused(install):
    source = "def view(profile): ...\ndef second(profile): ...\n"
    entries = {VIEWS: {"timeline": "first:view", "theme": "first:view", "mine": "first:view"}}
    install("first", entries, source)
    install("second", {VIEWS: {"mine": "first:second"}}, "")
    with pytest.warns(HeteroLabWarning) as warned:
        view = hl.views.mine
    assert view.__name__ == "view"
    texts = [str(warning.message) for warning in warned]
    assert len(texts) == 3
    assert sum("that hetero_lab itself uses" in text for text in texts) == 2
    assert sum("of the package 'first'" in text for text in texts) == 1
    assert hl.views.timeline.__module__ == "hetero_lab.views.times"


def test_nothing_is_loaded_before_it_is_needed(install):
    install("heavy", {VIEWS: {"heavy": "heavy:view"}}, "raise SystemError('was loaded')\n")
    assert "heavy" in found(VIEWS)
    assert "heavy" in dir(hl.views)
    assert "heavy" not in sys.modules


USE = """
import json, sys
import hetero_lab as hl
model = hl.load("digits_inception")
before = "hetero_lab_example" in sys.modules
devices = list(hl.devices()["device"])
placement = hl.Affinity.automatic(model, "HETERO:ACCELERATOR,CPU")
rules = list(hl.lint(model, placement.fix(types={"Concat": "CPU"}))["rule"])
profile = hl.profile(model, placement, iterations=5, progress=False)
costs = hl.calibrate(model, ["ACCELERATOR", "CPU"], budget_s=5, progress=False)
plan = hl.plan(model, costs, solver="fastest", budget_s=5, progress=False)
print(json.dumps({"before": before, "devices": devices, "rules": rules, "method": plan.method,
                  "views": list(hl.views.gallery(profile))}))
"""


@pytest.mark.network
def test_the_example_package_is_installed_and_used(tmp_path):
    shutil.copytree(EXAMPLE, tmp_path / "source")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
    subprocess.run([*pip, tmp_path / "site", tmp_path / "source"], check=True)
    path = os.pathsep.join([str(tmp_path / "site"), str(ROOT)])
    done = run_python(USE, cwd=tmp_path, PYTHONPATH=path)
    assert "is left out" not in done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["before"] is False
    assert "ACCELERATOR" in seen["devices"]
    assert "wide-boundary" in seen["rules"]
    assert seen["method"] == "fastest, repaired"
    assert "subgraph_sizes" in seen["views"]
