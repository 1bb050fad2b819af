"""The release that brought a symptom, found with a script that tells whether it shows."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import sys
from itertools import pairwise
from math import ceil, log2

import pytest

import hetero_lab as hl
from hetero_lab.cli.main import main
from hetero_lab.debug import bisection
from hetero_lab.debug.bisection import (
    CRASH,
    ERROR,
    HANG,
    NO,
    SKIPPED,
    YES,
    Bisection,
    ReleaseAnswer,
    bisect,
    next_release,
)
from hetero_lab.devices import releases as environments
from hetero_lab.errors import ArgumentError, MeasurementError, OutputPathError

RELEASES = ("2024.6.0", "2025.0.0", "2025.1.0", "2025.2.0", "2025.3.0", "2025.4.0", "2025.4.1")


def searched(truth: list[str]) -> Bisection:
    """Search with known answers; each release is asked for once."""
    releases, answers = tuple(map(str, range(len(truth)))), {}
    while (release := next_release(releases, answers)) is not None:
        assert release not in answers
        answers[release] = ReleaseAnswer(release, truth[int(release)])
    return Bisection(releases, tuple(answers[r] for r in releases if r in answers))


@pytest.mark.parametrize("n", range(2, 28))
def test_one_change_is_found_in_few_runs(n):
    for at in range(1, n):
        found = searched([NO] * at + [YES] * (n - at))
        assert found.changed_by == str(at)
        assert len(found.answers) <= 2 + ceil(log2(n))


def test_changes_are_true_whatever_is_skipped():
    rng = random.Random(7)
    for _ in range(2000):
        truth = rng.choices([NO, YES, CRASH, SKIPPED], k=rng.randint(2, 12))
        found, told = searched(truth), [i for i, answer in enumerate(truth) if answer != SKIPPED]
        neighbours = [(low, high) for low, high in pairwise(told) if truth[low] != truth[high]]
        changes = [(int(old.release), int(new.release)) for _, old, new in found.changes]
        assert {*changes} <= {*neighbours}
        assert bool(changes) == bool(told and truth[told[0]] != truth[told[-1]])
        for suspects, old, new in found.changes:
            between = range(int(old.release) + 1, int(new.release) + 1)
            assert suspects == tuple(map(str, between))


# -- scripts that run, with this interpreter in the place of the environments --------------------


@pytest.fixture
def releases(tmp_path, monkeypatch):
    """Say to each script in RELEASE which release it runs with; 2025.1.0 cannot be installed."""

    @contextlib.contextmanager
    def interpreter(release):
        if release == "2025.1.0":
            raise MeasurementError(f"OpenVINO {release} cannot be installed: no wheel.")
        program = tmp_path / release
        program.write_text(f'#!/bin/sh\nRELEASE={release} exec "{sys.executable}" "$@"\n')
        program.chmod(0o755)
        yield os.fspath(program)

    monkeypatch.setenv("HETERO_LAB_CACHE", os.fspath(tmp_path / "cache"))
    monkeypatch.setattr(environments, "known_releases", lambda: RELEASES)
    monkeypatch.setattr(bisection, "interpreter", interpreter)


@pytest.fixture
def script(tmp_path, releases):
    """Return a function that writes a script: what it does with each release."""

    def write(**ends: str):
        path = tmp_path / "symptom.py"
        cases = {name.replace("_", ".")[1:]: end for name, end in ends.items()}
        path.write_text(
            "import os, sys, time\n"
            f"with open({os.fspath(tmp_path / 'log')!r}, 'a') as log:\n"
            "    print(os.environ['RELEASE'], file=log)\n"
            f"cases = {cases!r}\n"
            "exec(next(e for r, e in reversed(cases.items()) if os.environ['RELEASE'] >= r))\n"
        )
        return path

    return write


def log(tmp_path) -> list[str]:
    return (tmp_path / "log").read_text().split()


def test_a_crash_is_an_answer_and_a_missing_release_is_skipped(script, tmp_path):
    path = script(v2024="pass", v2025_2="os.abort()", v2025_4="print('off by 3'); sys.exit(1)")
    found = bisect(path, progress=False)
    assert found.changed_by == "2025.4.0"
    assert found.verdict.splitlines() == [
        "Changed by one of 2025.1.0, 2025.2.0: no symptom with 2025.0.0; a crash with 2025.2.0 "
        "(exit code -6).",
        "Changed by 2025.4.0: a crash with 2025.3.0 (exit code -6); the symptom with 2025.4.0.",
        "2025.1.0 was skipped: OpenVINO 2025.1.0 cannot be installed: no wheel.",
    ]
    assert found.summary.to_dict("list")["detail"][-1] == "off by 3"
    assert len(log(tmp_path)) == len({*log(tmp_path)})
    assert list((tmp_path / "cache" / "releases").iterdir()) == []  # nothing to resume


@pytest.mark.parametrize(
    ("end", "answer", "detail"),
    [
        ("import gone", ERROR, "ModuleNotFoundError: No module named 'gone'"),
        ("sys.exit(125)", SKIPPED, "exit code 125"),
        ("os._exit(7)", ERROR, "exit code 7"),
    ],
)
def test_ways_to_end(script, end, answer, detail):
    path = script(v2024="pass", v2025_4_1=end)
    found = bisect(path, ["2025.4", "2025.4.1"], progress=False)
    assert found.answers[-1] == ("2025.4.1", answer, detail)
    assert found.changed_by == (None if answer == SKIPPED else "2025.4.1")


def test_a_script_that_does_not_end(script):
    found = bisect(script(v2024="time.sleep(60)"), RELEASES[-2:], timeout_s=1, progress=False)
    assert {answer[1:] for answer in found.answers} == {(HANG, "no end after 1 s")}


@pytest.mark.parametrize(
    ("end", "says"),
    [("sys.exit(1)", "Start with an older release."), ("pass", "no symptom with 2025.4.1.")],
)
def test_ends_that_are_equal(script, end, says, tmp_path):
    found = bisect(script(v2024=end), progress=False)
    assert found.changed_by is None
    assert found.verdict.startswith("Both ends agree: ")
    assert says in found.verdict
    assert log(tmp_path) == ["2024.6.0", "2025.4.1"]


def test_ctrl_c_keeps_the_answers_and_the_same_call_resumes(script, tmp_path):
    stop = f"""
import pathlib, signal
first = pathlib.Path({os.fspath(tmp_path / "first")!r})
if not first.exists():
    first.touch()
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(60)
sys.exit(1)
"""
    path = script(v2024="pass", v2025_2=stop, v2025_4="sys.exit(1)")
    with pytest.raises(KeyboardInterrupt):
        hl.bisect(path, progress=False)
    kept = hl.last_interrupted()
    assert kept.interrupted
    assert [each.release for each in kept.answers] == ["2024.6.0", "2025.4.1"]
    assert kept.changed_by is None
    assert "Changed by one of 2025.0.0, 2025.1.0" in kept.verdict
    assert hl.bisect(path, progress=False).changes[0][0] == ("2025.1.0", "2025.2.0")
    assert log(tmp_path) == ["2024.6.0", "2025.4.1", "2025.2.0", "2025.2.0", "2025.0.0"]


def test_a_full_disk_keeps_the_answers(script, tmp_path, monkeypatch):
    path = script(v2024="pass", v2025_3="sys.exit(1)")
    usual, n = bisection.interpreter, itertools.count()

    @contextlib.contextmanager
    def full(release):
        if next(n) == 2:
            raise OutputPathError("There is no space left.")
        with usual(release) as python:
            yield python

    monkeypatch.setattr(bisection, "interpreter", full)
    with pytest.raises(OutputPathError, match="no space left"):
        bisect(path, progress=False)
    assert bisect(path, progress=False).changed_by == "2025.3.0"
    assert len(log(tmp_path)) == len({*log(tmp_path)})


def test_what_cannot_be_searched(script, tmp_path):
    path = script(v2024="pass")
    for between, says in [
        (["2025.4.1", "2025.4"], "an older and a newer"),
        (["2025.4", "2025.4.0"], "an older and a newer"),
        (["2025.4"], "an older and a newer"),
        (["2025.4", "2031.1"], r"no OpenVINO '2031\.1'\. .*2025\.4\.1"),
        (["2025.4", "newest"], "no OpenVINO 'newest'"),
    ]:
        with pytest.raises(ArgumentError, match=says):
            bisect(path, between, progress=False)
    (tmp_path / "two").mkdir()
    for name in ("a.py", "b.py"):
        (tmp_path / "two" / name).touch()
    with pytest.raises(ArgumentError, match="'.*two' is neither"):
        bisect(tmp_path / "two")
    assert not (tmp_path / "log").exists()


def test_the_command(script, tmp_path, capsys):
    path, table = script(v2024="pass", v2025_4_1="sys.exit(1)"), tmp_path / "answers.csv"
    ends, page = ["--between", "2025.3", "2025.4.1"], tmp_path / "answers.html"
    ends += ["--html", os.fspath(page)]
    assert main(["bisect", os.fspath(path), *ends, "--csv", os.fspath(table)]) == 0
    assert "Changed by 2025.4.1: no symptom with 2025.4.0;" in capsys.readouterr().out
    assert table.read_text().splitlines()[0] == '"release","answer","detail"'
    assert "Changed by 2025.4.1: no symptom" in page.read_text("utf-8")
    assert main(["bisect", os.fspath(path), "--between", "2025.3", "2025.4"]) == 3
    assert main(["bisect", os.fspath(path), "--between", "2025.4", "2025.3"]) == 2
    assert "--between names an older" in capsys.readouterr().err


@pytest.mark.network
@pytest.mark.timeout(1200)
def test_real_releases(tmp_path):
    (tmp_path / "symptom.py").write_text(
        "import sys, openvino, numpy\n"
        "print(openvino.__version__)\n"
        "sys.exit(openvino.__version__ >= '2025.4.1')\n"
    )
    found = bisect(tmp_path, ["2025.4", "2026.0"], progress=False)
    assert found.changed_by == "2025.4.1"
    assert [each.detail[:8] for each in found.answers] == ["2025.4.0", "2025.4.1", "2026.0.0"]
