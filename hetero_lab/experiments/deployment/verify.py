"""Prove again what a deployed directory promises, here or with other releases of OpenVINO."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import numpy as np

from hetero_lab.backend.bound import bind
from hetero_lab.errors import ArgumentError, last_line, warn
from hetero_lab.experiments.accuracy.evaluate import ReadData, read_data
from hetero_lab.experiments.deployment.check_run import BUDGET_S, TURNS, observe
from hetero_lab.experiments.deployment.contract import Contract, read_contract
from hetero_lab.experiments.deployment.releases import Across, check_releases, environment_of
from hetero_lab.experiments.deployment.verification import (
    BROKEN,
    OK,
    UNKNOWN,
    ContractPart,
    Verification,
    judged,
)
from hetero_lab.progress import Progress
from hetero_lab.runtime import run_frozen
from hetero_lab.runtime.frozen_placement import FrozenPlacement, read_frozen
from hetero_lab.runtime.scoring import Correct, count_right
from hetero_lab.samples.datasets import Dataset, Metric

SLOWER, MAX_DROP = 0.1, 0.01


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
    """Prove again, on the OpenVINO, drivers and machine here, what a deployed directory promises.

    The directory is compiled and run in a process of its own. Its latency is compared as the
    ratio to the reference, the same model on one core in f32, so that another machine's speed
    and a load that slows both alike do not count.

    Parameters
    ----------
    directory
        What :func:`hetero_lab.freeze` or ``advice.deploy`` wrote.
    releases
        Versions of OpenVINO that pip knows, for instance ``["2026.2", "2026.3"]``, in order: the
        directory is verified with each of them instead of the one here. They are installed into
        virtual environments, which are kept in the cache directory.
    slower
        By which share the latency, relative to the reference, may be worse than promised; it has
        to be so beyond the intervals of both measurements.
    turns, budget_s
        How long to measure, with each release.
    data, metric
        Labelled examples to count the right answers of, as for :func:`hetero_lab.evaluate`;
        without them a promised accuracy is not checked.
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
        A number that is not above 0, data without labels, data together with releases, or
        text that is not a version.
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
    _check_measuring(slower, turns, budget_s)
    if isinstance(max_drop, bool) or not 0 <= max_drop <= 1:
        raise ArgumentError(f"max_drop= is a share from 0 to 1, not {max_drop!r}.")
    if releases is not None:
        if data is not None:
            raise ArgumentError("data= goes with the OpenVINO that is here, not with releases=.")
        return _across(directory, releases, slower, turns, budget_s, progress)
    labelled = None
    if data is not None:
        labelled = read_data(data, metric)
        if labelled.correct is None:
            raise ArgumentError("data= needs labels, and metric= to judge answers by them.")
    contract, frozen = read_contract(directory), read_frozen(directory)
    with Progress("verification", show=progress) as bar:
        bar.note("run the directory")
        seen = observe(directory, turns=turns, budget_s=budget_s)
        made = judged(directory, contract, frozen, seen, slower)
        if labelled is None and contract.accuracy is None:
            return made
        bar.note("count the right answers")
        accuracy = _accuracy(directory, contract, frozen, labelled, max_drop)
    return replace(made, parts=(*made.parts, accuracy))


def _check_measuring(slower: float, turns: int, budget_s: float) -> None:
    """Raise ArgumentError for numbers that make no measurement."""
    for name, value in (("slower", slower), ("turns", turns), ("budget_s", budget_s)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ArgumentError(f"{name}= is a number above 0, not {value!r}.")


def _across(
    directory: str | os.PathLike[str],
    releases: Sequence[str],
    slower: float,
    turns: int,
    budget_s: float,
    progress: bool,
) -> Across:
    releases = check_releases(releases)
    contract, frozen = read_contract(directory), read_frozen(directory)
    found = []
    with Progress("releases", show=progress, total=len(releases), unit="releases") as bar:
        for release in releases:
            bar.note(f"install {release}")
            python = environment_of(release)
            bar.note(f"run {release}")
            seen = observe(directory, python=python, turns=turns, budget_s=budget_s)
            found.append(judged(directory, contract, frozen, seen, slower))
            bar.advance()
    return Across(tuple(releases), tuple(found))


def verify_across(
    directory: str | os.PathLike[str], releases: Sequence[str], **options: Any
) -> Across:
    """Call :func:`verify` with ``releases=``: the name that this had before."""
    warn("verify_across(directory, releases) is verify(directory, releases=releases) now.")
    return verify(directory, releases=releases, **options)


def _accuracy(
    directory: str | os.PathLike[str],
    contract: Contract,
    frozen: FrozenPlacement,
    data: ReadData | None,
    max_drop: float,
) -> ContractPart:
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
