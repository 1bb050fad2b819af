"""A report from its model to the release that changed it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import hetero_lab as hl
from hetero_lab.debug.bisection import YES
from hetero_lab.devices.releases import interpreter
from tests.proof.replays.environments import ROOT, with_lab
from tests.proof.replays.reports import Report

HEAD = ("report", "release", "symptom", "seconds", "ops before", "ops after", "changed by")


def replayed(
    report: Report, scratch: Path, kept: Path, *, offline: bool = False
) -> tuple[list[str], bool]:
    """Replay a report; return its row of the table, and whether it was found and is shown.

    The exported directory is kept in ``kept``. Offline, the script runs in this environment, and
    no release is searched.
    """
    directory = kept / report.name
    with with_lab(report.release, scratch) as python:
        command = [python, "-m", "tests.proof.replays.one", report.name, str(directory)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return [report.url, report.release, lines[-1], *[""] * 4], False
    figures = json.loads(done.stdout.splitlines()[-1])
    row = [
        report.url,
        report.release,
        figures["symptom"],
        f"{figures['elapsed_s']:.0f}",
        str(figures["n_ops"]),
        " + ".join(figures["ops"]) or "none",
    ]
    found = figures["symptom"] == report.symptom and bool(figures["ops"])
    if not found or not _shows(directory, "" if offline else report.release):
        return [*row, "the script does not show it" if found else ""], False
    if offline:
        return [*row, ""], True
    answers = hl.bisect(directory, report.between, progress=False)
    return [*row, _change(answers)], True


def _shows(directory: Path, release: str) -> bool:
    """Run the exported script, in the environment of a release with openvino and numpy alone."""
    with interpreter(release) as python:
        command = [python, "-EP", str(directory / "show_fault.py")]
        return subprocess.run(command, capture_output=True).returncode == 1


def _change(answers: hl.types.Bisection) -> str:
    """Say which release brought or mended it; those between are said if it was not found."""
    first, last = answers.answers[0], answers.answers[-1]
    if not answers.changes:
        return f"none: {first.release} shows it, too"
    if answers.changed_by is None:
        return answers.verdict.splitlines()[-1]
    return f"{'brought' if last.answer == YES else 'mended'} by {answers.changed_by}"
