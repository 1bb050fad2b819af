"""Every command prints one JSON object with ``--json``, of its schema, and nothing else."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import time
from pkgutil import resolve_name

import jsonschema
import numpy as np
import openvino as ov
import pandas as pd
import pytest
from openvino import opset13 as op

from docs.json_schemas import RUNS, SCHEMAS, prepare, run
from hetero_lab.cli.commands import COMMANDS, INTERRUPTED
from hetero_lab.cli.main import main
from hetero_lab.processes import environment_of_a_child
from hetero_lab.tables import json_value, records

_QUICK = ["devices", "doctor", "samples", "support", "lint", "simplify", "profile", "sweep",
          "explain", "freeze", "export", "apply", "classify"]  # fmt: skip
_FETCHES = {"bisect"}  # pip makes environments for it


def check(said: str, command: str, code: int) -> dict:
    answer = json.loads(said)
    schema = json.loads((SCHEMAS / f"{command}.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(schema).validate(answer)
    assert answer["exit_code"] == code
    return answer


def check_commands(names, directory, monkeypatch):
    monkeypatch.chdir(directory)
    prepare()
    answers = {}
    for name in names:
        code, said = run(name)
        answers[name] = check(said, name, code)
        assert "error" not in answers[name], answers[name]
    return answers


def test_every_command_has_a_schema():
    assert {path.stem for path in SCHEMAS.glob("*.json")} == set(COMMANDS) == set(RUNS)


def test_answers_are_of_their_schemas(tmp_path, monkeypatch):
    answers = check_commands(_QUICK, tmp_path, monkeypatch)
    (summary,) = answers["profile"]["tables"]["summary"]
    assert summary["median_us"] > 0.0
    assert answers["profile"]["next"][0].startswith("hetero-lab ")
    assert answers["freeze"]["written"] == {"directory": "deploy"}
    assert {row["label"] for row in answers["sweep"]["tables"]["summary"]} >= {"CPU"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_answers_of_long_commands_are_of_their_schemas(tmp_path, monkeypatch):
    # What `noise` measures beside other tests must not count for what is measured later.
    monkeypatch.setenv("HETERO_LAB_CACHE", str(tmp_path / "cache"))
    rest = [name for name in RUNS if name not in {*_QUICK, *_FETCHES} or name == "freeze"]
    answers = check_commands(rest, tmp_path, monkeypatch)
    assert answers["advise"]["verdict"]


@pytest.mark.network
@pytest.mark.timeout(900)
def test_answers_of_commands_that_fetch_are_of_their_schemas(tmp_path, monkeypatch):
    answers = check_commands(sorted(_FETCHES), tmp_path, monkeypatch)
    assert answers["bisect"]["exit_code"] == 3  # no release brought it: not known


@pytest.mark.parametrize(
    ("words", "kind", "says"),
    [
        (["profile", "nope", "-d", "CPU"], "ModelError", "no sample has that name"),
        (["sweep", "digits_inception", "--depth", "3"], "ArgumentError", "--depth"),
    ],
)
def test_a_refusal_is_json_too(capsys, words, kind, says):
    code = main([*words, "--json"])
    out, err = capsys.readouterr()
    error = check(out, words[0], code)["error"]
    assert error["type"] == kind
    assert says in error["message"]
    assert says in err


def test_a_note_on_the_side_is_among_the_notes(tmp_path, capsys):
    x = op.parameter([-1, 4], np.float32, name="x")
    ov.save_model(ov.Model([op.relu(x)], [x]), tmp_path / "free.xml")
    code = main(["support", str(tmp_path / "free.xml"), "--json"])
    (note,) = check(capsys.readouterr().out, "support", code)["notes"]
    assert "batch of 'x' is dynamic" in note


def started(directory, *words, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "hetero_lab", *words, "--json"], cwd=directory, text=True,
        env=environment_of_a_child(**environment), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip


def test_what_is_known_of_an_interrupted_sweep_is_printed_and_marked(tmp_path):
    words = [*RUNS["sweep"].split()[:-1], "500", "--store", "store"]
    process, records = started(tmp_path, "sweep", *words), tmp_path / "store" / "records.jsonl"
    while not (records.exists() and '"turn"' in records.read_text("utf-8")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate()
    assert process.returncode == INTERRUPTED
    assert check(said, "sweep", INTERRUPTED)["interrupted"]


@pytest.mark.parametrize(
    "words", ["hetero_lab.cli.texts.text_table", "hetero_lab.cli.texts.records"]
)
def test_ctrl_c_while_a_result_is_put_into_words_is_told_at_the_end(capsys, monkeypatch, words):
    put = resolve_name(words)

    def interrupted(*given):
        signal.raise_signal(signal.SIGINT)
        return put(*given)

    monkeypatch.setattr(words, interrupted)
    assert main(["devices", "--json"]) == INTERRUPTED
    content = check(capsys.readouterr().out, "devices", INTERRUPTED)
    assert content["interrupted"]
    assert content["tables"]["devices"]


@pytest.mark.skipif(sys.platform == "win32", reason="no pipe can be waited for")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_is_printed_is_whole_although_ctrl_c_comes(tmp_path, unbuffered):
    words = ["sweep", *RUNS["sweep"].split(), "--no-isolate"]
    process = started(tmp_path, *words, PYTHONUNBUFFERED=unbuffered)
    select.select([process.stdout], [], [])  # more than fits into the pipe
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    said, _ = process.communicate()
    assert len(said) > 2**16
    check(said, "sweep", process.returncode)


def test_a_reader_that_has_gone_costs_no_file(tmp_path):
    process = started(tmp_path, "support", "digits_inception", "--csv", "support.csv")
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    assert process.wait() == 141
    assert (tmp_path / "support.csv").exists()


def test_numbers_that_json_lacks_are_null():
    frame = pd.DataFrame({"a": [1.5, float("nan")], "b": [np.int64(3), None], "op": [("x",), ()]})
    assert records(frame) == [{"a": 1.5, "b": 3, "op": ["x"]}, {"a": None, "b": None, "op": []}]
    given = {"r": float("inf"), 1: np.float32(0.5), "t": pd.NaT}
    assert json_value(given) == {"r": None, "1": 0.5, "t": None}
