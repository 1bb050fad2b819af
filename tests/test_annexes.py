"""The core runs an annex through one table, and without the annex says what is missing."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from other_process import run_python
from package_source import PACKAGE
from test_imports import ANNEXES as ROOMS

from hetero_lab.annexes import ANNEXES, annex

CORE = """
import tempfile
import hetero_lab as hl
assert hl.__file__.startswith({here!r}), hl.__file__
model = hl.load("digits_inception")
hl.emulate("ACC", unsupported={{"Softmax"}})
placement = "HETERO:ACC,CPU"
measured = hl.sweep(model, ["CPU", placement], turns=2, progress=False)
print(list(measured.summary["status"]), measured.profile("CPU").agreement[0].verdict)
alone = hl.profile(model, placement, iterations=20, progress=False, isolate=False)
with tempfile.TemporaryDirectory() as scratch:
    alone.export(scratch)
    print(hl.read_profile(scratch).partition.n_subgraphs)
    file = hl.save(model, placement, scratch + "/m.xml")
    print(hl.read_placement(file).devices)
costs = hl.calibrate(model, ["ACC", "CPU"], budget_s=4, progress=False)
print(sorted(hl.plan(model, costs).affinity.devices) <= ["ACC", "CPU"])
"""

MISSING = """
import hetero_lab as hl
from hetero_lab.annexes import ANNEXES, annex

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


@pytest.fixture(scope="module")
def core_alone(tmp_path_factory) -> Path:
    """A copy of the package without its annexes."""
    place = tmp_path_factory.mktemp("core")
    shutil.copytree(PACKAGE, place / "hetero_lab", ignore=lambda *_: {*ROOMS, "__pycache__"})
    (place / "datasets").symlink_to(PACKAGE.parent / "datasets")
    return place


def run_there(code: str, place: Path) -> list[str]:
    return run_python(code, cwd=place, PYTHONPATH=str(place)).stdout.splitlines()


@pytest.mark.parametrize("kind", ANNEXES)
def test_what_the_table_names_is_there(kind):
    assert annex(kind).__name__ == ANNEXES[kind].partition(":")[2]


def test_a_package_that_an_annex_needs_is_not_an_annex(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    for name in [name for name in sys.modules if name.startswith("hetero_lab.fleet")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match="distributed"):
        annex("client")


@pytest.mark.slow
def test_the_core_measures_without_annexes(core_alone):
    assert run_there(CORE.format(here=str(core_alone)), core_alone) == [
        "['ok', 'ok'] equal", "2", "('ACC', 'CPU')", "True",
    ]  # fmt: skip


def test_without_an_annex_the_core_says_which_one_is_missing(core_alone):
    lines = run_there(MISSING, core_alone)
    rooms = [room.split(".")[1] for room in ANNEXES.values()]
    assert [line.partition(", which")[0] for line in lines] == [
        f"AnnexError This installation lacks hetero_lab.{room}"
        for room in (*rooms, "parallel", "accuracy", "parallel")
    ]
    assert all("pip install --force-reinstall hetero-lab" in line for line in lines)
