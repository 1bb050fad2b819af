"""A crash of the real runtime costs a sentence; the guard asks once, and takes nothing on trust."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import openvino as ov
import pytest
from odd_models import Twice
from random_models import random_model
from slices import sliced
from small_models import attention, chain, empty_batch, empty_indices, empty_rows

import hetero_lab as hl
from hetero_lab.devices import guard
from hetero_lab.devices.core import bind
from hetero_lab.devices.devices import device_of_ops
from hetero_lab.errors import CompileError, CrashError, DeviceError
from hetero_lab.processes import FORK_SERVER


@pytest.fixture(autouse=True)
def guarded(monkeypatch, tmp_path):
    """A guard that knows nothing, as in a first session."""
    monkeypatch.setenv("HETERO_LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HETERO_LAB_GUARD", "1")
    forget()
    yield
    forget()


def query(device):
    """Return a question as the guard puts it to a process."""
    return {"step": "query", "device": device, "properties": {}, "doing": "asking"}


def forget():
    guard._verdicts.clear()
    guard._crashed.clear()


@pytest.fixture
def no_process(monkeypatch):
    """Return a function after which no process may be started."""

    def refuse(*_, **__):
        raise AssertionError("a process was started")

    return lambda: monkeypatch.setattr(guard, "launch", refuse)


@pytest.fixture
def ends(monkeypatch, tmp_path):
    """Return a function that says how the next processes end."""
    monkeypatch.setattr(guard, "_CHILD", "tests.devices.ending_child")
    monkeypatch.setenv("ENDS_COUNTER", str(tmp_path / "counter"))
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    return lambda words: monkeypatch.setenv("ENDS", words)


def test_a_crash_in_the_query_is_an_error_that_leads_on(own_core, no_process):
    model = hl.load(attention())
    with pytest.raises(CrashError, match=r"\(SIGSEGV\) while asking CPU.*investigate") as error:
        hl.support(model, ["CPU"], core=own_core)
    assert error.value.device == "CPU"
    with pytest.raises(CrashError, match="asking ACC"):
        hl.support(model, ["ACC"], core=own_core)
    no_process()
    forget()  # a later session reads it
    for ask in (
        lambda: hl.Affinity.automatic(model, ["ACC", "CPU"], core=own_core),
        lambda: hl.partition(model, "HETERO:ACC,CPU", core=own_core),
        lambda: hl.profile(model, "CPU", core=own_core),
        lambda: hl.find_wrong(model, "CPU", core=own_core, progress=False),
    ):
        with pytest.raises(DeviceError, match="SIGSEGV"):
            ask()


@pytest.mark.parametrize("make", [empty_indices, empty_rows, empty_batch])
def test_a_crash_in_the_compile_is_an_error_that_leads_on(make, own_core, no_process):
    model = hl.load(make())
    assert hl.support(model, ["CPU"], core=own_core)["CPU"].all()
    for compile in (hl.compile, hl.ParallelExecutor):
        with pytest.raises(CompileError, match=r"\(SIGFPE\) while compiling.*investigate"):
            compile(model, "CPU", core=own_core)
    assert own_core.n_compiled == 0
    no_process()
    forget()
    with pytest.raises(CompileError, match="SIGFPE"):
        hl.compile(model, "CPU", core=own_core)


def test_after_a_crash_each_placement_is_tried_by_itself(own_core):
    model = hl.load(chain("a", "b", "c"))
    hl.compile(model, "CPU", core=own_core)
    before = len(guard._verdicts)
    hl.compile(model, "CPU", core=own_core, counters=True)
    assert len(guard._verdicts) == before
    guard._crashed.add(bind(model, own_core).fingerprint)
    hl.compile(model, "CPU", core=own_core)
    assert len(guard._verdicts) == before + 1


def test_a_crash_in_a_worker_is_remembered(own_core, monkeypatch):
    model = hl.load(empty_indices())
    monkeypatch.setenv("HETERO_LAB_GUARD", "0")  # as on a GPU, whose compiles are not tried first
    sweep = hl.sweep(model, ["CPU"], budget_s=None, turns=2, core=own_core, progress=False)
    assert set(sweep.summary["status"]) == {"crashed (signal 8)"}
    assert bind(model, own_core).fingerprint in guard._crashed


def test_the_answer_is_the_devices_own(own_core, digits):
    hl.emulate("FEW", unsupported={"Relu"}, core=own_core)
    for model in (digits, random_model(0)):
        bound = bind(model, own_core)
        for device in ("CPU", "ACC", "HETERO:FEW,CPU"):
            found, own = device_of_ops(bound, device), own_core.query_model(bound.model, device)
            # HETERO also names Results that it has made up.
            found = {op.name: found[op.name] for op in bound.graph if op.name in found}
            assert found == {op.name: own[op.name] for op in bound.graph if op.name in own}
            assert guard._ask(bound, query(device), "", bound.model)[1] is not None


def test_nothing_is_asked_twice(digits, no_process):
    for _ in range(2):
        core = ov.Core()
        hl.support(digits, ["CPU"], core=core)
        hl.compile(digits, "CPU", core=core)
        no_process()
        forget()


def test_an_op_of_an_extension_is_asked_here(own_core, no_process):
    x = ov.opset13.parameter([4], np.float32, name="x")
    model = ov.Model([ov.opset13.result(Twice([x.output(0)]).output(0))], [x], "twice")
    own_core.add_extension(Twice)
    model = hl.load(model)
    outputs = hl.compile(model, "CPU", core=own_core)([np.ones(4, np.float32)])
    assert [value.tolist() for value in outputs.values()] == [[2.0] * 4]
    no_process()
    forget()
    hl.compile(model, "CPU", core=own_core)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("SIGKILL SIGKILL", r"\(SIGKILL, then SIGKILL\), perhaps for lack of memory"),
        ("SIGSEGV SIGKILL", "SIGSEGV, then SIGKILL"),
        ("SIGTERM SIGSEGV", "SIGTERM, then SIGSEGV"),
        ("memory memory", "ran out of memory"),
        ("exit exit", "exit code"),
    ],
)
def test_a_killed_process_is_no_crash_of_the_model(words, told, ends, own_core):
    ends(words)
    model = chain("a", "b")
    with pytest.raises(DeviceError, match=f"{told}.*says nothing about the model") as error:
        hl.support(model, ["CPU"], core=own_core)
    assert not isinstance(error.value, CrashError)
    assert not guard._verdicts
    ends(f"{words} answer")
    assert hl.support(model, ["CPU"], core=own_core)["CPU"].all()  # it is asked again


@pytest.mark.parametrize("words", ["SIGKILL answer", "SIGSEGV answer", "memory answer"])
def test_what_ends_once_is_tried_again(words, ends, own_core):
    ends(words)
    assert hl.support(chain("a", "b"), ["CPU"], core=own_core)["CPU"].all()


def test_a_tampered_verdict_is_not_believed(own_core, tmp_path):
    bound = bind(hl.load(chain("a", "b")), own_core)
    assert guard.first_query(bound, "CPU", {})
    (path,) = (tmp_path / "cache" / "guard").iterdir()
    good = path.read_text()
    for bad in (
        "", "[", "null", '{"crash": "SIGSEGV\\n::error::"}', '{"crash": 1}', '{"other": 1}',
        '{"crash": "\\u001b[31m"}', '{"\\ud800": ""}', "[" * 5000,
    ):  # fmt: skip
        path.write_text(bad)
        forget()
        assert guard.first_query(bound, "CPU", {}), bad
        assert path.read_text() == good


def test_it_can_be_turned_off_for_all_or_for_one_model(digits, no_process, monkeypatch, tmp_path):
    no_process()
    free = hl.load(digits, guard=False)
    assert hl.support(free, ["CPU"], core=ov.Core())["CPU"].all()
    hl.compile(free, "CPU", core=ov.Core())
    with pytest.raises(DeviceError, match="a process was started"):
        hl.compile(hl.load(free), "CPU", core=ov.Core())
    monkeypatch.setenv("HETERO_LAB_GUARD", "0")
    assert hl.support(digits, ["CPU"], core=ov.Core())["CPU"].all()


@pytest.mark.slow
def test_without_a_fork_server_a_process_is_started(monkeypatch, own_core):
    monkeypatch.setattr(FORK_SERVER, "_is_refused", True)
    with pytest.raises(CrashError, match="SIGSEGV"):
        hl.support(attention(), ["CPU"], core=own_core)
    assert hl.support(chain("a", "b"), ["CPU"], core=own_core)["CPU"].all()


@pytest.mark.slow
def test_investigate_finds_the_ops_and_the_script_shows_them(own_core, tmp_path):
    model = hl.load(attention())
    with pytest.warns(hl.HeteroLabWarning, match="alone is investigated"):
        found = hl.investigate(model, "HETERO:ACC,CPU", core=own_core, progress=False)
    assert (found.symptom.value, found.settings) == ("crash", ())
    assert 0 < len(found.ops) < 12
    found.export(tmp_path / "fault")
    script = tmp_path / "fault" / "show_fault.py"
    done = subprocess.run([sys.executable, script], capture_output=True, check=False)
    assert done.returncode == 1
    assert b"crashed (exit code -11)" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("make", sliced([attention, empty_batch], quick=0, in_ci=1))
def test_every_command_ends_with_a_sentence(make, tmp_path, monkeypatch):
    monkeypatch.setenv("HETERO_LAB_GUARD", "1")
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    ov.save_model(make(), tmp_path / "m.xml")
    acc = ["-d", "ACC,CPU", "--emulate", "ACC:unsupported=Softmax"]
    for words in (
        ["profile", "m.xml", "-d", "CPU"], ["find-wrong", "m.xml", "-d", "CPU"],
        ["sweep", "m.xml", *acc], ["optimize", "m.xml", *acc, "--budget", "10"],
        ["advise", "m.xml", "--budget", "15"],
    ):  # fmt: skip
        command = [sys.executable, "-m", "hetero_lab", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 2, (words, done.stdout, done.stderr)
        assert "hetero-lab investigate" in done.stdout + done.stderr, (words, done.stdout)
        assert "Traceback" not in done.stderr
