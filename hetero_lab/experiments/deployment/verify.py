"""Prove again that a deployed directory keeps its contract, here or with other releases.

HETERO's own code changes between releases, so the same affinities can give another partition, or
fail to compile.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import numpy as np
from filelock import FileLock

from hetero_lab.backend.bound import bind
from hetero_lab.backend.core import run_child
from hetero_lab.errors import ArgumentError, MeasurementError, last_line, shorten, warn
from hetero_lab.experiments.accuracy.evaluate import ReadData, read_optional_data
from hetero_lab.experiments.deployment.check_run import BUDGET_S, TURNS, observe
from hetero_lab.experiments.deployment.contract import Contract, read_contract
from hetero_lab.experiments.deployment.verification import (
    BROKEN,
    OK,
    UNKNOWN,
    Across,
    ContractPart,
    Verification,
    judged,
)
from hetero_lab.experiments.measure.workers.launch import positive
from hetero_lab.fetch import cache_dir
from hetero_lab.progress import Progress
from hetero_lab.runtime import run_frozen
from hetero_lab.runtime.frozen_placement import FrozenPlacement, read_frozen
from hetero_lab.runtime.reference import Correct, count_right
from hetero_lab.samples.datasets import Dataset, Metric
from hetero_lab.tables import make_directory

SLOWER, MAX_DROP = 0.1, 0.01
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*([a-z]+[0-9]+)?(\.dev[0-9]+)?")
_READY = "ready"  # a file in an environment that is whole
_INSTALL_S = 1800.0


@overload
def verify(
    directory: str | os.PathLike[str],
    *,
    releases: None = None,
    slower: float = SLOWER,
    turns: int = TURNS,
    budget_s: float = BUDGET_S,
    data: Dataset | Sequence[Any] | None = None,
    metric: Metric | Correct | None = None,
    max_drop: float = MAX_DROP,
    progress: bool = True,
) -> Verification: ...


@overload
def verify(
    directory: str | os.PathLike[str],
    *,
    releases: Sequence[str],
    slower: float = SLOWER,
    turns: int = TURNS,
    budget_s: float = BUDGET_S,
    progress: bool = True,
) -> Across: ...


def verify(
    directory: str | os.PathLike[str],
    *,
    releases: Sequence[str] | None = None,
    slower: float = SLOWER,
    turns: int = TURNS,
    budget_s: float = BUDGET_S,
    data: Dataset | Sequence[Any] | None = None,
    metric: Metric | Correct | None = None,
    max_drop: float = MAX_DROP,
    progress: bool = True,
) -> Verification | Across:
    """Prove that a deployed directory keeps its contract with the OpenVINO and the machine here.

    The directory is compiled and run in a process of its own. Its latency is compared as the
    ratio to the reference, the same model on one core in f32, so that the speed of another
    machine and a load that slows both alike do not count.

    Parameters
    ----------
    directory
        A directory that :func:`hetero_lab.freeze` or ``advice.deploy`` wrote.
    releases
        Versions of OpenVINO that pip knows, for instance ``["2026.2", "2026.3"]``, in order: the
        directory is verified with each of them instead of the one here. They are installed into
        virtual environments, which are kept in the cache directory.
    slower
        The share by which the latency, relative to the reference, may be worse than promised; it
        counts only beyond the intervals of both measurements.
    turns, budget_s
        How long to measure, with each release.
    data, metric
        Labelled examples, as for :func:`hetero_lab.evaluate`; without them a promised accuracy is
        not checked.
    max_drop
        By how much the share of right answers may be lower than promised.
    progress
        Show the current step, if it takes more than two seconds.

    Returns
    -------
    Verification
        ``.ok``, ``.broken``, ``.changes``, ``.summary``; with ``releases=`` an Across, with
        ``.ok``, ``.changed_by``, ``.summary``.

    Raises
    ------
    ArgumentError
        A number that is not above 0, data without labels, data together with releases, or text
        that is not a version.
    StoredFileError
        There is no contract, it is of a newer version, or it was edited.
    MeasurementError
        The directory's program does not run at all, or a release cannot be installed.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as scratch:
    ...     directory = hl.freeze("digits_inception", "CPU", f"{scratch}/deploy")
    ...     proven = hl.verify(directory, slower=10)
    >>> proven.ok
    True
    """
    for name, value in (("slower", slower), ("turns", turns), ("budget_s", budget_s)):
        positive(name, value)
    if not 0 <= max_drop <= 1:
        raise ArgumentError(f"max_drop= is a share from 0 to 1, not {max_drop!r}.")
    if releases is not None and data is not None:
        raise ArgumentError("data= goes with the OpenVINO that is here, not with releases=.")
    wrong = [release for release in releases or () if not _VERSION.fullmatch(release)]
    if wrong or (releases is not None and not releases):
        raise ArgumentError(
            f"releases= is a list of versions of OpenVINO, for instance ['2026.2', '2026.3'], "
            f"not {shorten(repr(wrong or releases))}."
        )
    labelled = read_optional_data(data, metric)
    if labelled is not None and labelled.correct is None:
        raise ArgumentError("data= needs labels, and metric= to judge answers by them.")
    contract, frozen = read_contract(directory), read_frozen(directory)

    def proven(python: str | os.PathLike[str] = sys.executable) -> Verification:
        seen = observe(directory, python=python, turns=turns, budget_s=budget_s)
        return judged(directory, contract, frozen, seen, slower)

    if releases is not None:
        found = []
        with Progress("releases", show=progress, total=len(releases), unit="releases") as bar:
            for version in releases:
                bar.note(f"install {version}")
                python = environment_of(version)
                bar.note(f"run {version}")
                found.append(proven(python))
                bar.advance()
        return Across(tuple(releases), tuple(found))
    with Progress("verification", show=progress) as bar:
        bar.note("run the directory")
        made = proven()
        if labelled is None and contract.accuracy is None:
            return made
        bar.note("count the right answers")
        accuracy = _accuracy(directory, contract, frozen, labelled, max_drop)
    return replace(made, parts=(*made.parts, accuracy))


def verify_across(
    directory: str | os.PathLike[str], releases: Sequence[str], **options: Any
) -> Across:
    """Call :func:`verify` with ``releases=``, under its old name."""
    warn("verify_across(directory, releases) is verify(directory, releases=releases) now.")
    return verify(directory, releases=releases, **options)


def _accuracy(
    directory: str | os.PathLike[str],
    contract: Contract,
    frozen: FrozenPlacement,
    data: ReadData | None,
    max_drop: float,
) -> ContractPart:
    """Count the right answers of a deployed directory, and compare them with the promise."""
    then = contract.accuracy
    promised = f"{then.accuracy:.1%} of {then.n_examples} examples" if then else "nothing"
    if data is None or data.correct is None:
        return ContractPart("accuracy", UNKNOWN, f"promised is {promised}; data= checks it")
    try:
        compiled, _ = run_frozen.load(directory)
    except RuntimeError as error:
        return ContractPart("accuracy", BROKEN, f"it does not compile: {last_line(error)}")

    def run(arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
        results = compiled(arrays)
        return {name: np.array(results[index]) for index, name in enumerate(frozen.outputs)}

    bound = bind(Path(directory) / "model.xml")
    right = count_right(run, bound, data.examples, data.correct)
    here = right / len(data.examples)
    broken = then is not None and here < then.accuracy - max_drop
    detail = f"{here:.1%} of {len(data.examples)} examples, promised is {promised}"
    return ContractPart("accuracy", BROKEN if broken else OK, detail)


def environment_of(release: str) -> Path:
    """Return the interpreter of an environment with a release, making it if it is missing.

    MeasurementError, if pip cannot install it.
    """
    home = make_directory(cache_dir() / "releases") / f"openvino-{release}"
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    with FileLock(f"{home}.lock"):
        if not (home / _READY).is_file():
            _run([sys.executable, "-m", "venv", "--clear", os.fspath(home)], release)
            install = [os.fspath(python), "-m", "pip", "install", "--disable-pip-version-check"]
            _run([*install, f"openvino=={release}", "numpy"], release)
            (home / _READY).touch()
    return python


def _run(command: Sequence[str], release: str) -> None:
    # Constraints on the packages of this environment must not apply to those of a release.
    environment = {name: text for name, text in os.environ.items() if name != "PIP_CONSTRAINT"}
    try:
        done = run_child(command, timeout_s=_INSTALL_S, environment=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MeasurementError(f"OpenVINO {release} cannot be installed: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line]
        raise MeasurementError(
            f"OpenVINO {release} cannot be installed: {shorten(' '.join(lines), 300)}. "
            "pip index versions openvino lists the versions."
        )
