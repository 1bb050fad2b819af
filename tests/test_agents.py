"""What coding agents read is made of the commands, and its commands run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import pytest

from docs.agents import AGENTS, llms, skill
from hetero_lab.processes import environment_of_a_child


def test_the_pages_are_made_of_the_commands_of_now():
    assert (AGENTS / "SKILL.md").read_text("utf-8") == skill(), "python -m docs.agents"
    assert (AGENTS / "llms.txt").read_text("utf-8") == llms(), "python -m docs.agents"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_command_of_the_skill_runs(tmp_path):
    lines = re.findall(r"^hetero-lab .*$", skill(), re.MULTILINE)
    assert len(lines) >= 8
    for line in lines:
        words = shlex.split(line.replace("MODEL", "digits_inception"), comments=True)
        done = subprocess.run(
            [sys.executable, "-m", "hetero_lab", *words[1:]], cwd=tmp_path, text=True,
            capture_output=True, check=False, env=environment_of_a_child(),
        )  # fmt: skip
        answer = json.loads(done.stdout)
        assert answer["exit_code"] == done.returncode, done.stderr
        if words[1] == "verify":  # beside other tests, a latency may be another one
            parts = {row["part"]: row["status"] for row in answer["tables"]["summary"]}
            del parts["latency"]
            assert {*parts.values()} == {"ok"}
        else:
            assert done.returncode == 0, done.stderr
