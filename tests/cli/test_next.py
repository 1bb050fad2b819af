"""Every command that the lab prints as the next one works when it is pasted."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hetero_lab.processes import environment_of_a_child
from hetero_lab.terminal import command_line

pytestmark = pytest.mark.slow
PROGRAM = str(Path(sys.executable).with_name("hetero-lab"))
MODEL = "digits_inception"
SPLIT = ["-d", "ACC,CPU", "--emulate", "ACC:unsupported=Softmax"]
TURNS = ["-b", "4"]
# Beside other tests, a latency may be another one than was promised.
MORE = {"optimize": TURNS, "profile": TURNS, "verify": ["--tolerance", "1e6"]}


def ran(directory, line):
    """Let a shell run a command line, whose PATH lacks the lab, and return what it prints."""
    places = os.environ["PATH"].split(os.pathsep)
    others = [place for place in places if not shutil.which("hetero-lab", path=place)]
    done = subprocess.run(
        line, shell=True, cwd=directory, capture_output=True, text=True, check=False,
        env={**environment_of_a_child(), "PATH": os.pathsep.join(others)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def followed(directory, line):
    """Let a shell run a next command, with more options where its default takes minutes."""
    return ran(directory, " ".join([line, *MORE.get(line.split()[1], [])]))


def following(said):
    """Return each command that is printed as the next one, to the end of its line."""
    return re.findall(r"^Next: +(.*)$", said, re.MULTILINE)


FROM = ["-d", "HETERO:ACC,CPU", "--emulate"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("first", "then"),
    [
        (["profile", *TURNS, *FROM, "ACC:unsupported=Softmax"], ["optimize", "freeze", "run.py"]),
        (["profile", *TURNS, *FROM, "ACC:unsupported=Concat"], ["simplify"]),
        (["lint", *FROM, "ACC:unsupported=Concat"], ["simplify"]),
        (["sweep", "--turns", "2", *SPLIT], ["optimize"]),
        (["sweep", "--turns", "2", "-d", "CPU"], []),
        (["simplify", *FROM, "ACC:unsupported=Concat"], ["profile", "optimize"]),
        (["advise", "-b", "15", *SPLIT], ["advise", "verify"]),
        (["plan", "-b", "5", "--affinity-out", "plan.json", *SPLIT], ["apply"]),
    ],
    ids=lambda words: " ".join(words[:1]),
)
def test_the_next_command_works(first, then, tmp_path):
    command, *options = first
    said = ran(tmp_path, command_line(PROGRAM, command, MODEL, *options))
    for expected in then:
        line, *others = following(said)
        assert expected in line.partition(" ")[2]
        for other in others:
            followed(tmp_path, other)
        said = followed(tmp_path, line)
    if not then:
        assert following(said) == []
