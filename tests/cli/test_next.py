"""Every command that the lab prints as the next one works when it is pasted."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest

from hetero_lab.processes import environment_of_a_child

pytestmark = pytest.mark.slow
MODEL = "digits_inception"
SPLIT = ["-d", "ACC,CPU", "--emulate", "ACC:unsupported=Softmax"]
TURNS = ["-b", "4"]


def ran(directory, *words):
    """Run a command as a shell would, and return what it prints."""
    program, *arguments = words
    start = [sys.executable, *(["-m", "hetero_lab"] if program == "hetero-lab" else [])]
    done = subprocess.run(
        [*start, *arguments], cwd=directory, capture_output=True, text=True, check=False,
        env=environment_of_a_child(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def following(said):
    """Return the words of each command that is printed as the next one."""
    found = re.findall(r"^Next: +(.*?)(?:, with .*)?$", said, re.MULTILINE)
    return [shlex.split(line) for line in found]


FROM = ["-d", "HETERO:ACC,CPU", "--emulate"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("first", "then"),
    [
        (["profile", *TURNS, *FROM, "ACC:unsupported=Softmax"], ["optimize", "freeze", "run.py"]),
        (["profile", *TURNS, *FROM, "ACC:unsupported=Concat"], ["simplify", "profile"]),
        (["lint", *FROM, "ACC:unsupported=Concat"], ["simplify", "profile"]),
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
    said = ran(tmp_path, "hetero-lab", command, MODEL, *options)
    for expected in then:
        (words,) = following(said)
        assert expected in words[1]
        # A search of the default length takes two minutes; the last one says which it takes.
        short = TURNS if expected in ("optimize", "profile") else []
        said = ran(tmp_path, *words, *short)
    if not then:
        assert following(said) == []
