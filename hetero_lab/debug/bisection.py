"""Find the release of OpenVINO that brought a symptom, by running a script with some of them."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hetero_lab.arguments import check_positive
from hetero_lab.devices.releases import interpreter, releases_between
from hetero_lab.errors import ArgumentError, MeasurementError, shorten
from hetero_lab.fetch import cache_dir, file_digest
from hetero_lab.interrupts import UntilInterrupted
from hetero_lab.processes import run_child
from hetero_lab.progress import Progress
from hetero_lab.result import Result
from hetero_lab.tables import frame_of, load_json, make_directory, reading, text_table, write_json

if TYPE_CHECKING:
    import pandas as pd

NO, YES, CRASH, HANG = "no symptom", "the symptom", "a crash", "a hang"
ERROR, SKIPPED = "an error", "skipped"
_LEAST_OF_CRASHES = 128  # of exit codes: a shell adds the signal to it
_ANSWERS = {0: NO, 1: YES, 125: SKIPPED}


class ReleaseAnswer(NamedTuple):
    """What a script showed with a release, and its last line or the reason as the ``detail``."""

    release: str
    answer: str
    detail: str = ""

    def __str__(self) -> str:
        if self.answer in (NO, YES):
            return f"{self.answer} with {self.release}"
        return f"{self.answer} with {self.release} ({self.detail})"


@dataclass(frozen=True)
class Bisection(Result):
    """The answers of a script with some releases of OpenVINO, and where they change.

    Attributes
    ----------
    releases
        All releases in question, the oldest first.
    answers
        A ``ReleaseAnswer`` for each of them that was tried, in the same order.
    interrupted
        Whether Ctrl-C ended it.
    """

    releases: tuple[str, ...]
    answers: tuple[ReleaseAnswer, ...]
    interrupted: bool = False

    @property
    def _not_skipped(self) -> list[ReleaseAnswer]:
        return [each for each in self.answers if each.answer != SKIPPED]

    @property
    def changes(self) -> list[tuple[tuple[str, ...], ReleaseAnswer, ReleaseAnswer]]:
        """The releases of which one changed the answer, the answer before, and the one after."""
        place = self.releases.index
        return [
            (self.releases[place(old.release) + 1 : place(new.release) + 1], old, new)
            for old, new in pairwise(self._not_skipped)
            if old.answer != new.answer
        ]

    @property
    def changed_by(self) -> str | None:
        """The release since which the answer is that of the newest; ``None`` if not known."""
        suspects = self.changes[-1][0] if self.changes else ()
        return suspects[0] if len(suspects) == 1 else None

    @property
    def verdict(self) -> str:
        """The changes in sentences, and what could not be tried."""
        lines = [
            f"Changed by {'one of ' if len(suspects) > 1 else ''}{', '.join(suspects)}: "
            f"{old}; {new}."
            for suspects, old, new in self.changes
        ]
        answers = self._not_skipped
        if len(answers) < 2:
            lines = [f"{len(answers)} of {len(self.releases)} releases gave an answer."]
        elif not lines:
            lines = [f"Both ends agree: {answers[0]}; {answers[-1]}."]
            if answers[0].answer != NO:
                lines[0] += " Start with an older release."
        skipped = [each for each in self.answers if each.answer == SKIPPED]
        return "\n".join([*lines, *(f"{a.release} was skipped: {a.detail}." for a in skipped)])

    @property
    def summary(self) -> pd.DataFrame:
        """One row for each release that was tried: ``release``, ``answer``, ``detail``."""
        return frame_of(self.answers, [*ReleaseAnswer._fields])

    def __repr__(self) -> str:
        return f"{self.verdict}\n\n{text_table(self.summary)}"


def bisect(
    script: str | os.PathLike[str],
    between: Sequence[str] | None = None,
    *,
    timeout_s: float = 300.0,
    progress: bool = True,
) -> Bisection:
    """Find the release of OpenVINO that brought a symptom, with a script that tells if it shows.

    The script runs with the oldest and the newest release, then with the one in the middle of two
    whose answers differ. Each has an environment with openvino and numpy, made by pip and kept in
    the cache. After Ctrl-C or an error, the same call goes on where it was.

    Parameters
    ----------
    script
        A program that ends with 1 if the symptom shows, 0 if not, 125 to skip the release. A
        crash, a hang and an exception are answers, too. Or a directory with one such program.
    between
        An older and a newer release, ``["2025.4", "2026.4.1"]``; by default the oldest and the
        newest that pip has for this Python.
    timeout_s
        A run that takes longer is a hang.
    progress
        Show the current release, if the call takes more than two seconds.

    Returns
    -------
    Bisection
        ``.changed_by``, ``.verdict``, ``.summary``. A release that cannot be installed or imported
        is skipped.

    Raises
    ------
    ArgumentError
        There is no such script, or ``between`` does not name two releases, the older one first.
    MeasurementError
        pip cannot list the releases.
    OutputPathError
        The disk is full, even without the environments that were made before.
    """
    check_positive("timeout_s", timeout_s)
    path, digest = _read_script(script)
    releases = releases_between(between)
    store = make_directory(cache_dir() / "releases") / f"{digest}.json"  # until the search is over
    stored = load_json(store, f"{store} cannot be read") if store.exists() else {}
    with reading(store, "list of answers"):
        records = msgspec.convert(stored, dict[str, tuple[str, str]])
    kinds = (NO, YES, CRASH, HANG, ERROR)
    answers = {name: ReleaseAnswer(name, *a) for name, a in records.items() if a[0] in kinds}
    with Progress("bisection", show=progress) as bar, UntilInterrupted(lambda: answers) as until:
        while (release := next_release(releases, answers)) is not None:
            bar.note(f"OpenVINO {release}")
            answers[release] = _answer(path, release, timeout_s)
            write_json(store, {name: answer[1:] for name, answer in answers.items()})
        store.unlink(missing_ok=True)
    trials = tuple(answers[release] for release in releases if release in answers)
    return Bisection(releases, trials, until.interrupted)


def next_release(releases: Sequence[str], answers: Mapping[str, ReleaseAnswer]) -> str | None:
    """Return the release to try next; ``None`` if the changes between the ends are found.

    The ends come first. The release next to one that was skipped takes its place.
    """
    answered = [i for i, r in enumerate(releases) if r in answers and answers[r].answer != SKIPPED]
    untried = [i for i, release in enumerate(releases) if release not in answers]
    if untried and (not answered or untried[0] < answered[0]):
        return releases[untried[0]]
    if untried and untried[-1] > answered[-1]:
        return releases[untried[-1]]
    for low, high in pairwise(answered):
        inside = [i for i in untried if low < i < high]
        if inside and answers[releases[low]].answer != answers[releases[high]].answer:
            return releases[min(inside, key=lambda i: abs(2 * i - low - high))]
    return None


def _answer(script: Path, release: str, timeout_s: float) -> ReleaseAnswer:
    try:
        with interpreter(release) as python:
            child = run_child([python, "-EP", os.fspath(script)], timeout_s=timeout_s)
    except MeasurementError as error:
        return ReleaseAnswer(release, SKIPPED, str(error).rstrip("."))
    except subprocess.TimeoutExpired:
        return ReleaseAnswer(release, HANG, f"no end after {timeout_s:g} s")
    crashed = child.returncode < 0 or child.returncode >= _LEAST_OF_CRASHES
    answer = _ANSWERS.get(child.returncode, CRASH if crashed else ERROR)
    # Python ends with 1 after an exception, too.
    if answer == YES and "Traceback (most recent call last)" in child.stderr:
        answer = ERROR
    text = {CRASH: "", ERROR: child.stderr}.get(answer, child.stdout).strip()
    detail = text.rpartition("\n")[2] or f"exit code {child.returncode}"
    return ReleaseAnswer(release, answer, detail)


def _read_script(script: str | os.PathLike[str]) -> tuple[Path, str]:
    """Return the script, alone or in a directory, and a digest of all files that were named."""
    path = Path(os.path.abspath(script))
    files = sorted(filter(Path.is_file, path.iterdir())) if path.is_dir() else [path]
    scripts = [file for file in files if file.suffix == ".py"] if path.is_dir() else files
    if len(scripts) != 1 or not scripts[0].is_file():
        raise ArgumentError(
            f"{shorten(os.fspath(script))} is neither a script nor a directory with just one."
        )
    content = [scripts[0].name, *map(file_digest, files)]
    return scripts[0], hashlib.sha256("\n".join(content).encode(errors="replace")).hexdigest()
