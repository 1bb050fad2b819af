"""``hetero-lab machine``: a file in TOML says what is asked of each model."""

from __future__ import annotations

import shlex
import signal

import pandas as pd
import pytest
from html_outline import Outline
from test_json import check

import hetero_lab as hl
from hetero_lab.cli.commands import INTERRUPTED
from hetero_lab.cli.main import main
from hetero_lab.cli.values import read_machine
from hetero_lab.machine.race import Race
from hetero_lab.measure import bench

CONFIG = """
devices = ["CLIMACH", "CPU"]
[models.detect]
model = "digits_inception"
rate_per_s = 20
deadline_ms = 400
[models.segment]
model = "digits_inception"
requests = 2
"""
HERE = ["machine", "machine.toml", "--emulate", "CLIMACH", "-b", "6"]


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Return a function that writes the file where the commands run."""
    monkeypatch.chdir(tmp_path)

    def write(text: str = CONFIG) -> str:
        (tmp_path / "machine.toml").write_text(text, "utf-8")
        return "machine.toml"

    return write


@pytest.mark.slow
def test_a_machine_is_planned(written, said, tmp_path):
    written()
    words = [*HERE, "--csv", "plan.csv", "--export", "tables", "--html", "page.html"]
    words += ["--deploy", "deploy"]
    answer, *_, next_, empty, head, detect, segment = said(*words).splitlines()
    assert "segment" in answer
    assert next_ == "Next:       hetero-lab verify deploy"
    assert "segment" in said("verify", "deploy", "--tolerance", "9")
    assert (empty, head.split()[:2]) == ("", ["MODEL", "WAY"])
    assert (detect.split()[0], segment.split()[0]) == ("detect", "segment")
    assert list(pd.read_csv("plan.csv")["model"]) == ["detect", "segment"]
    assert (tmp_path / "tables" / "measured_sets.csv").is_file()
    page = (tmp_path / "page.html").read_text("utf-8")
    assert answer in page
    assert not [link for link in Outline(page).loads if not link.startswith(("data:", "#"))]


def test_ctrl_c_keeps_what_was_measured_and_is_json(written, capsys, monkeypatch):
    written(CONFIG.replace('"CLIMACH", ', ""))
    run = Race.run

    def interrupted(*given):
        run(*given)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Race, "run", interrupted)
    words = ["machine", "machine.toml", "-b", "2", "--json", "-q"]
    assert main(words) == INTERRUPTED
    answer = check(capsys.readouterr().out, "machine", INTERRUPTED)
    assert answer["interrupted"]
    assert answer["next"] == [f"{shlex.join(['hetero-lab', *words])} --deploy deploy"]
    assert [row["model"] for row in answer["tables"]["summary"]] == ["detect", "segment"]
    assert "Ctrl-C ended it early" in answer["verdict"]


def test_a_file_says_devices_limits_shapes_and_ways_from_where_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    model = hl.load("digits_inception")
    hl.Affinity.uniform(model, "CPU").to_json(tmp_path / "split.json")
    hl.freeze(model, "CPU", tmp_path / "frozen", tolerance=None)
    (tmp_path / "machine.toml").write_text(
        'budget_s = 9\nprocesses = 1\nmemory_limit = {"CPU,GPU" = "1GiB"}\n'
        '[models.one]\nmodel = "frozen/model.xml"\nways = ["CPU", "split.json", "frozen"]\n'
        '[models.two]\nmodel = "digits_inception"\nshape = [3, 1, 8, 8]\n'
    )
    asked = read_machine(tmp_path / "machine.toml")
    assert asked["memory_limit"] == {("CPU", "GPU"): "1GiB"}
    assert (asked["budget_s"], asked["processes"], asked["devices"]) == (9, 1, None)
    first, *files = asked["demands"]["one"].ways
    assert first == "CPU"
    assert [way.label for way in files] == ["split.json", "frozen"]
    assert {way.affinity.devices for way in files} == {("CPU",)}
    assert list(asked["demands"]["two"].model.input("image").shape) == [3, 1, 8, 8]


MODEL = '[models.detect]\nmodel = "digits_inception"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("models = ", "'machine.toml' is not TOML: "),
        ("device = ['CPU']", "a machine has no key 'device'. Did you mean 'devices'?"),
        ("", "names no model. Write [models.detect]"),
        ("[models]\ndetect = 'm.onnx'", "'machine.toml', 'detect': This is no table with a model"),
        (f"{MODEL}rate_s = 3", "A model has no key 'rate_s'. Did you mean 'rate_per_s'?"),
        ("[models.detect]\nmodel = 'no/such.onnx'", "such.onnx' does not exist"),
        ("[models.detect]\nmodel = 5", "'detect': A model is a sample's name"),
        (f"{MODEL}shape = 'wide'", "maps inputs to shapes"),
        (f"{MODEL}ways = [3]", "ways is a list of texts; 3 is none"),
        (f"{MODEL}ways = ['no/such.json']", "no/such.json"),
        (f"{MODEL}rate_per_s = 'fast'", "rate_per_s is a number above 0, not 'fast'"),
        (f"{MODEL}requests = 1.5", "'detect': requests is a whole number"),
        (f"{MODEL}deadline_ms = 5", "deadline_ms needs rate_per_s: "),
        (f"objective = 5\n{MODEL}", "--objective is text"),
        (f"budget_s = 'long'\n{MODEL}", "more than 0 seconds"),
    ],
)  # fmt: skip
def test_what_a_file_says_wrong_is_one_line(written, refused, monkeypatch, text, says):
    monkeypatch.setattr(bench, "open_runner", pytest.fail)
    error = refused("machine", written(text))
    assert says in error
    assert error.startswith("hetero-lab: Error: ")
    assert error.count("\n") == 1


def test_a_file_that_cannot_be_read_is_told(refused, tmp_path):
    assert "none.toml' cannot be read: " in refused("machine", str(tmp_path / "none.toml"))
    (tmp_path / "m.toml").write_bytes(b"\xff\xfe")
    assert "m.toml' is not TOML: " in refused("machine", str(tmp_path / "m.toml"))
