"""The doctor: what OpenVINO sees here and does not see, and why."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hetero_lab.doctor.causes import ABSENT, MISSING, WARNING, Check, findings
from hetero_lab.doctor.read_machine import read_machine
from hetero_lab.result import Result
from hetero_lab.tables import frame_of
from hetero_lab.terminal import columns, count_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Diagnosis(Result):
    """What works on this machine, what is missing, and the ways out; without names of the user."""

    checks: tuple[Check, ...]

    @property
    def verdict(self) -> str:
        """What is missing or disturbs, and which devices the machine does not show."""
        bad = [check.area for check in self.checks if check.state in (MISSING, WARNING)]
        absent = [check.area for check in self.checks if check.state == ABSENT]
        said = "Nothing is broken here."
        if bad:
            said = f"{count_of(len(bad), 'thing')} to look at: {', '.join(dict.fromkeys(bad))}."
        return f"{said} Not here: {', '.join(absent)}." if absent else said

    @property
    def summary(self) -> pd.DataFrame:
        """One row for each thing: ``area``, ``state``, ``what``, ``way_out``."""
        return frame_of(self.checks, [*Check._fields])

    def to_frame(self) -> pd.DataFrame:
        """Return ``summary``."""
        return self.summary

    def __repr__(self) -> str:
        table = columns([("STATE", "AREA", "WHAT"), *((c[1], c[0], c[2]) for c in self.checks)])
        lines = [self.verdict, "", *table.splitlines()]
        for line, check in zip(lines[3:], self.checks, strict=True):
            if check.way_out:
                lines[lines.index(line)] = f"{line}\n    → {check.way_out}"
        return "\n".join(lines)


def doctor() -> Diagnosis:
    """Say what OpenVINO sees here and does not see, why, and the way out.

    Returns
    -------
    Diagnosis
        A line for each device and what it needs, with neither the user's name nor the home
        directory, to paste into an issue.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> set(hl.doctor().summary["state"]) <= {"ok", "absent", "warning", "missing"}
    True
    """
    return diagnosis(findings(read_machine()))


def diagnosis(checks: list[Check]) -> Diagnosis:
    """Return the checks without names of the user."""
    home, user = os.path.expanduser("~"), ""
    with contextlib.suppress(KeyError, OSError):  # a container's user without a name
        user = getpass.getuser()
    return Diagnosis(tuple(Check(*(anonymous(text, home, user) for text in c)) for c in checks))


def anonymous(text: str, home: str, user: str) -> str:
    """Write the home directory as ``~`` and take the user's name out."""
    if len(home) > 1:
        text = re.sub(rf"{re.escape(home)}(?=/|\W|$)", "~", text)
    if user in ("", "root", "render", "video"):
        return text
    return re.sub(rf"(?<![\w.$-]){re.escape(user)}(?![\w-])", "USER", text)
