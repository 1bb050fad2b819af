"""The sweep from the command line and from magics."""

from __future__ import annotations

import pytest

import hetero_lab as hl
from hetero_lab.tables import read_csv

FEW = "--turns 2 --no-counters --no-isolate"


@pytest.fixture(scope="module", autouse=True)
def variables(shell):
    hl.emulate("SWEEPACC", unsupported={"Concat", "MaxPool"})
    shell.user_ns["model"] = hl.load("digits_inception")


def test_command_line_writes_store_and_csv(tmp_path, said):
    out = said(
        "sweep", "digits_inception", "-d", "CLIACC,CPU", "--orders", "all", "--fix", "^mixed=CPU",
        "--emulate", "CLIACC:unsupported=Concat,MaxPool", *FEW.split(),
        "--store", str(tmp_path / "store"), "--csv", str(tmp_path / "sweep.csv"),
    )  # fmt: skip
    assert "ratios to 'HETERO:CLIACC,CPU (" in out
    csv = read_csv(tmp_path / "sweep.csv")
    assert list(csv["label"]) == [
        "HETERO:CLIACC,CPU", "HETERO:CPU,CLIACC", "HETERO:CLIACC,CPU with ^mixed=CPU", "CPU",
    ]  # fmt: skip
    assert len(hl.read_sweep(tmp_path / "store").summary) == 4


@pytest.mark.parametrize("budget", [["-b", "0.2"], ["-b0.2"], ["--budget=0.2"]])
def test_a_budget_that_measures_nothing_is_a_verdict_of_its_own(said, budget):
    out = said("sweep", "digits_inception", *budget, "-d", "CPU", "--no-counters", code=3)
    assert out.startswith("Nothing was measured within the 0.2 s of --budget.")
    *_, last = out.splitlines()
    command, longer = last.rsplit(maxsplit=1)
    assert command == "Next:       hetero-lab sweep digits_inception -d CPU --no-counters -b"
    assert float(longer) >= 0.4


def test_sweep_magic_stores_the_sweep(shell, capsys):
    shell.run_cell(f"%hetero_sweep model -d SWEEPACC,CPU {FEW} -q -v found").raise_error()
    assert isinstance(shell.user_ns["found"], hl.types.Sweep)
    assert list(shell.user_ns["found"].summary["label"]) == ["HETERO:SWEEPACC,CPU", "CPU"]


def test_cell_magic_measures_fixes_against_none(shell, capsys, monkeypatch):
    monkeypatch.setattr("hetero_lab.measure.stopping._MOST_TURNS", 8)
    result = shell.run_cell(
        "%%hetero_profile model -d HETERO:SWEEPACC,CPU -b 3600 --no-counters -o -q\n"
        "# the blocks\n^mixed = CPU\n"
    )
    result.raise_error()
    assert list(result.result.summary["label"]) == ["HETERO:SWEEPACC,CPU", "with the fixes", "CPU"]
    fixed = result.result.profile("with the fixes")
    assert all(fixed.affinity[op] == "CPU" for op in fixed.affinity.ops if op.startswith("mixed"))


@pytest.mark.parametrize(
    ("cell", "message"), [("", "no fix"), ("mixed CPU", "PATTERN=DEVICE"), ("^zz = CPU", "no op")]
)
def test_cells_without_a_sound_fix_say_so(shell, capsys, cell, message):
    shell.run_cell(f"%%hetero_profile model -d HETERO:SWEEPACC,CPU\n{cell}\n")
    captured = capsys.readouterr()
    assert message in captured.err + captured.out
