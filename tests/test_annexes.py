"""The core stands alone, and each annex can be taken away: copies of the package without them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from other_process import run_python
from package_source import PACKAGE
from test_imports import ANNEXES

from hetero_lab.lookup import ANNEXES as KINDS, annex, annex_for

CORE = """
import warnings; warnings.simplefilter("ignore")
import sys; from pathlib import Path
import hetero_lab as hl
assert Path(hl.__file__).is_relative_to(sys.argv[1]), hl.__file__

quiet = {"progress": False}
model = hl.load("digits_inception")
hl.emulate("ACC", unsupported={"Concat"})
affinity = hl.Affinity.automatic(model, "HETERO:ACC,CPU")
profile = hl.profile(model, affinity, iterations=3, **quiet)
hl.lint(model, affinity)
found = hl.simplify(model, affinity)
placements = {"greedy": affinity, "few": found.affinity}
sweep = hl.sweep(model, placements, turns=2, store="store", **quiet)
print(sorted(sweep.summary["label"]), set(sweep.summary["status"]))
costs = hl.calibrate(model, ["ACC", "CPU"], budget_s=4, **quiet)
hl.plan(model, costs, **quiet)
best = hl.optimize(model, ["ACC", "CPU"], budget_s=4, **quiet)
hl.views.page([profile, sweep, best], "page.html")
for figure in (
    hl.views.placement_graph(profile), hl.views.timeline(profile),
    hl.views.time_by_subgraph(profile), hl.views.time_by_op_type(profile),
    hl.views.latency_ranking(sweep), hl.views.placement_latency(sweep),
    hl.views.latency_samples(sweep), hl.views.predicted_measured(costs),
):
    assert figure.to_dict()["data"]
hl.AffinityTweaker(model, "HETERO:ACC,CPU")
hl.SweepExplorer(sweep)
sweep.to_csv("sweep.csv")
sweep.export("sweep")
profile.export("profile")
affinity.to_csv("affinity.csv")
assert hl.Affinity.from_csv("affinity.csv") == affinity
from hetero_lab.tables import read_csv
assert list(read_csv("sweep.csv")["label"]) == list(sweep.summary["label"])
assert set(hl.read_sweep("store").summary["label"]) == set(sweep.summary["label"])
hl.read_profile("profile")
hl.save(model, affinity, "placed.xml")
hl.read_placement("placed.xml")

from IPython.testing.globalipapp import start_ipython
shell = start_ipython()
shell.run_line_magic("load_ext", "hetero_lab")
shell.push({"model": model})
shell.run_cell("%hetero_profile model -d HETERO:ACC,CPU -q").raise_error()
print("all")
"""

NAMES = """
import hetero_lab as hl
spaces = {"hl": hl}
for space in ("interop", "llm", "types", "views"):
    try:
        spaces[space] = getattr(hl, space)
    except hl.HeteroLabError as error:
        print("missing", space, error)
for space, module in spaces.items():
    for name in set(module.__all__) - {"interop", "llm"}:
        try:
            getattr(module, name)
        except hl.HeteroLabError as error:
            print("missing", f"{space}.{name}", error)
"""


MISSING = """
import hetero_lab as hl
from hetero_lab.lookup import ANNEXES, annex

def told(call, *given, **options):
    try:
        call(*given, **options)
    except hl.HeteroLabError as error:
        print(type(error).__name__, error)

for kind in ANNEXES:
    told(annex, kind)
asked = {"progress": False, "isolate": False}
told(hl.sweep, "digits_inception", ["CPU"], grid={"executor": ["parallel"]}, **asked)
told(hl.sweep, "digits_inception", ["CPU"], data=hl.dataset("digits"), **asked)
told(hl.profile, "digits_inception", "CPU", executor="parallel", **asked)
"""


def copy_without(directory: Path, *annexes: str) -> Path:
    """Copy the package and its data without some annexes; return where it is."""
    shutil.copytree(
        PACKAGE, directory / "hetero_lab",
        ignore=lambda folder, _: annexes if Path(folder) == PACKAGE else ["__pycache__"],
    )  # fmt: skip
    shutil.copytree(PACKAGE.parent / "datasets", directory / "datasets")
    return directory


def run_copy(directory: Path, code: str) -> str:
    path = os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")])
    environment = {"PYTHONPATH": path, "HETERO_LAB_GUARD": "0"}
    return run_python(code, directory, cwd=directory, **environment).stdout


@pytest.mark.slow
def test_the_core_stands_alone(tmp_path):
    first, *_, last = run_copy(copy_without(tmp_path, *ANNEXES), CORE).splitlines()
    assert (first, last) == ("['CPU', 'few', 'greedy'] {'ok'}", "all")


def homes() -> dict[str, str]:
    """Return the annex of each public name that one defines."""
    import hetero_lab as hl
    from hetero_lab import lookup

    spaces = {"hl": hl, "interop": hl.interop, "llm": hl.llm, "types": hl.types, "views": hl.views}
    return {
        f"{space}.{name}": annex
        for space, module in spaces.items()
        for name, where in lookup.homes(module.__name__)
        if (annex := where.split(".")[1] if where.count(".") > 1 else "") in ANNEXES
    }


@pytest.mark.slow
@pytest.mark.parametrize("annex", ANNEXES)
def test_without_an_annex_its_own_names_are_missing(tmp_path, annex):
    out = run_copy(copy_without(tmp_path, annex), NAMES)
    missing = {line.split()[1]: line for line in out.splitlines() if line.startswith("missing ")}
    # Those that may import it go with it; so do those that may import these.
    lost = {annex}
    while more := {other for other, uses in ANNEXES.items() if uses & lost} - lost:
        lost |= more
    own = {name for name, home in homes().items() if home == annex}
    own = {annex} if annex in ("interop", "llm") else own
    assert own <= set(missing)
    allowed = {name for name, home in homes().items() if home in lost} | (lost & {"interop", "llm"})
    assert set(missing) <= allowed
    for name in own:
        assert f"hetero_lab.{annex}" in missing[name]


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_table_names_is_there(kind):
    assert annex(kind).__name__ == KINDS[kind].rpartition(".")[2]


def test_a_package_that_an_annex_needs_is_not_an_annex(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    for name in [name for name in sys.modules if name.startswith("hetero_lab.fleet")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match="distributed"):
        annex("client")


def test_without_an_annex_the_core_says_which_one_is_missing(tmp_path):
    lines = run_copy(copy_without(tmp_path, *ANNEXES), MISSING).splitlines()
    rooms = [room.split(".")[1] for room in KINDS.values()]
    assert [line.partition(", which")[0] for line in lines] == [
        f"AnnexError This installation lacks hetero_lab.{room}"
        for room in (*rooms, "parallel", "accuracy", "parallel")
    ]
    assert all("pip install --force-reinstall hetero-lab" in line for line in lines)


def test_a_class_of_another_package_with_a_known_name_has_nothing_in_an_annex():
    strange = type("Advice", (), {"__module__": "elsewhere"})
    assert annex_for("page", strange()) is None
    known = type("Mine", (type("Advice", (), {"__module__": "hetero_lab.advise.advice"}),), {})
    assert annex_for("page", known()) is annex("page of Advice")
    assert annex_for("board", known()) is None
