"""The sweep from the command line and from magics."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import hetero_lab as hl
from hetero_lab.cli import main as cli
from hetero_lab.experiments.sweep import rounds
from hetero_lab.tables import read_csv

FEW = "--turns 2 --no-counters"


@pytest.fixture(scope="module")
def shell():
    InteractiveShell.clear_instance()
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    shell.run_line_magic("load_ext", "hetero_lab")
    shell.run_cell(
        'import hetero_lab as hl\nhl.emulate("SWEEPACC", unsupported={"Concat", "MaxPool"})\n'
        'model = hl.load("digits_inception")'
    ).raise_error()
    yield shell
    InteractiveShell.clear_instance()


def test_command_line_writes_store_and_csv(tmp_path, capsys):
    arguments = [
        "sweep", "digits_inception", "-d", "CLIACC,CPU", "--orders", "all", "--fix", "^mixed=CPU",
        "--emulate", "CLIACC:unsupported=Concat,MaxPool", *FEW.split(),
        "--store", str(tmp_path / "store"), "--csv", str(tmp_path / "sweep.csv"),
    ]  # fmt: skip
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert "ratios to 'HETERO:CLIACC,CPU'" in out
    csv = read_csv(tmp_path / "sweep.csv")
    assert list(csv["label"]) == [
        "HETERO:CLIACC,CPU", "HETERO:CPU,CLIACC", "HETERO:CLIACC,CPU with ^mixed=CPU", "CPU",
    ]  # fmt: skip
    assert len(hl.read_sweep(tmp_path / "store").summary) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-d", "NOPE,CPU"], "'NOPE' is not a device"),
        (["-d", "CPU", "--fix", "x"], "PATTERN=DEVICE"),
        (["-d", "CPU", "--grid", "speed"], "DEVICE.KEY=VALUE1,VALUE2"),
        (["-d", "CPU", "--requests", "many"], "of the form 1,4"),
        (["-d", "CPU", "--turns", "1"], "at least 2"),
        (["-d", "CPU", "--csv", "/nowhere/at/all.csv"], "does not exist"),
    ],
)
def test_bad_options_are_one_line_and_code_2(arguments, message, capsys):
    assert cli.main(["sweep", "digits_inception", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


def test_sweep_magic_stores_the_sweep(shell, capsys):
    shell.run_cell(f"%hetero_sweep model -d SWEEPACC,CPU {FEW} -q -v found").raise_error()
    assert isinstance(shell.user_ns["found"], hl.types.Sweep)
    assert list(shell.user_ns["found"].summary["label"]) == ["HETERO:SWEEPACC,CPU", "CPU"]


def test_cell_magic_measures_fixes_against_none(shell, capsys, monkeypatch):
    monkeypatch.setattr(rounds, "MOST_TURNS", 8)
    result = shell.run_cell(
        "%%hetero_profile model -d HETERO:SWEEPACC,CPU -b 3600 --no-counters -o -q\n"
        "# the blocks\n^mixed = CPU\n"
    )
    result.raise_error()
    assert list(result.result.summary["label"]) == ["HETERO:SWEEPACC,CPU", "with the fixes", "CPU"]
    fixed = result.result.profile("with the fixes")
    assert all(fixed.affinity[op] == "CPU" for op in fixed.affinity.ops if op.startswith("mixed"))


@pytest.mark.parametrize(
    ("cell", "message"), [("", "no fix"), ("mixed CPU", "pattern = DEVICE"), ("^zz = CPU", "no op")]
)
def test_cells_without_a_sound_fix_say_so(shell, capsys, cell, message):
    shell.run_cell(f"%%hetero_profile model -d HETERO:SWEEPACC,CPU\n{cell}\n")
    captured = capsys.readouterr()
    assert message in captured.err + captured.out
