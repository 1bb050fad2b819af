"""Prove again that a deployed directory keeps its contract, here or with other releases.

HETERO's own code changes between releases, so the same affinities can give another partition, or
fail to compile.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, Unpack, overload

import numpy as np

from hetero_lab.accuracy.evaluate import count_right
from hetero_lab.arguments import check_positive
from hetero_lab.clock import now
from hetero_lab.deploy import machine_file
from hetero_lab.deploy.contract import (
    FILE_NAME,
    Contract,
    LatencyPromise,
    check_files,
    read_contract,
)
from hetero_lab.deploy.deployed_run import QUIET_S, TURNS, ObservedRun, observe
from hetero_lab.deploy.verification import (
    ALARM,
    BROKEN,
    ERROR,
    OK,
    UNDECIDED,
    UNKNOWN,
    WIDE,
    Across,
    ContractPart,
    Verification,
    latency_status,
    of_machine,
    other_hardware,
    verification_of,
)
from hetero_lab.devices.core import bind
from hetero_lab.devices.releases import interpreter
from hetero_lab.errors import (
    ArgumentError,
    HeteroLabError,
    MeasurementError,
    OutputPathError,
    last_line,
    shorten,
)
from hetero_lab.fetch import file_digest
from hetero_lab.progress import Progress
from hetero_lab.results.environment import wait_until_quiet
from hetero_lab.runtime.placed_model import load
from hetero_lab.runtime.stored_placement import MODEL_FILE, StoredPlacement, read_stored
from hetero_lab.runtime.tensors import infer
from hetero_lab.samples.datasets import Correct, Dataset, Metric, ReadData, read_optional_data
from hetero_lab.tables import check_directory, reading
from hetero_lab.terminal import one_line, text_of

PAUSE_S = 2.0  # before an alarm is measured again: what disturbed it may be over
_BUDGET_S, _QUIET_SHARE = 30.0, 0.1  # of the budget, the longest wait for a quiet machine
_MAX_DROP = 0.01  # one point of accuracy, as for hetero_lab.advise
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*([a-z]+[0-9]+)?(\.dev[0-9]+)?")


AnyPath: TypeAlias = str | os.PathLike[str]


class VerifyOptions(TypedDict, total=False):
    """The options of :func:`verify`, which are the same for one directory and for several."""

    tolerance: float | None
    turns: int
    budget_s: float
    data: Dataset | Sequence[Any] | None
    metric: Metric | Correct | None
    max_drop: float
    progress: bool


@overload
def verify(
    directory: AnyPath, *, releases: None = None, **options: Unpack[VerifyOptions]
) -> Verification: ...


@overload
def verify(
    directory: AnyPath | Sequence[AnyPath],
    *,
    releases: Sequence[str] | None = None,
    **options: Unpack[VerifyOptions],
) -> Across: ...


def verify(
    directory: AnyPath | Sequence[AnyPath],
    *,
    releases: Sequence[str] | None = None,
    tolerance: float | None = None,
    turns: int = TURNS,
    budget_s: float = _BUDGET_S,
    data: Dataset | Sequence[Any] | None = None,
    metric: Metric | Correct | None = None,
    max_drop: float = _MAX_DROP,
    progress: bool = True,
) -> Verification | Across:
    """Prove that a deployed directory keeps its contract with the OpenVINO and the machine here.

    The directory is compiled and run in a process of its own. Its latency is compared as the
    ratio to the reference that the contract names, so that the speed of the machine does not
    count. If it looks worse than promised, it is measured again in new processes after a pause;
    it is broken only if it stays worse. It is undecided beside other processes that keep the CPUs
    busy, where measurements differ too much, and where it looks worse on other hardware.

    Parameters
    ----------
    directory
        A directory that :func:`hetero_lab.freeze`, ``advice.deploy`` or ``plan.deploy`` of
        :func:`hetero_lab.machine` wrote, or several. Of a machine each model is verified.
    releases
        Versions of OpenVINO that pip knows, for instance ``["2026.2", "2026.3"]``, in order: the
        directory is verified with each of them instead of the one here. They are installed into
        virtual environments, which are kept in the cache directory.
    tolerance
        The share by which the latency, relative to the reference, may be worse than promised; by
        default that of the contract.
    turns
        Turns in each process; fewer where three seconds do not allow as many.
    budget_s
        After so long no further process is started to measure the latency again.
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
        ``.ok`` (all ran and nothing is broken), ``.broken``, ``.undecided``, ``.changes``,
        ``.summary``, ``.to_junit(file)``; for several directories or with ``releases=`` an Across
        of these, with ``.changed_by``.

    Raises
    ------
    ArgumentError
        A number that is not above 0, data without labels, data together with releases, or text
        that is not a version.
    StoredFileError
        There is no contract, it is of a newer version or edited, or it does not know a file.
    MeasurementError
        The directory's program does not run at all. Of several directories or releases, where one
        may not be installed, the others are still verified, and one like these has an ``error``.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as scratch:
    ...     directory = hl.freeze("digits_inception", "CPU", f"{scratch}/deploy", tolerance=None)
    ...     proven = hl.verify(directory)
    >>> proven.ok
    True
    """
    check_positive("turns", turns)
    check_positive("budget_s", budget_s)
    if tolerance is not None:
        check_positive("tolerance", tolerance)
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
    several = not isinstance(directory, str | os.PathLike)
    directories = list(directory) if several else [directory]
    if not directories:
        raise ArgumentError("Name at least one deployed directory.")
    versions, is_across = list(releases or [""]), several or releases is not None
    verifications: list[Verification] = []
    total = len(directories) * len(versions)
    with Progress("verification", show=progress, total=total, unit="runs") as bar:
        verify_model = partial(
            _verify_model,
            tolerance=tolerance,
            turns=turns,
            budget_s=budget_s,
            data=labelled,
            max_drop=max_drop,
            bar=bar,
        )
        for path in directories:
            for release in versions:
                try:
                    result = _verify(path, release, verify_model)
                except Exception as error:  # of several, each costs itself only
                    of_release = isinstance(error, MeasurementError | OutputPathError)
                    if not is_across or (len(directories) == 1 and not of_release):
                        raise
                    why = str(error) if isinstance(error, HeteroLabError) else repr(error)
                    failed = (ContractPart("run", ERROR, one_line(why, WIDE)),)
                    result = Verification(text_of(path), failed, (), release or "here", release)
                verifications.append(result)
                bar.advance()
    return Across(tuple(verifications)) if is_across else verifications[0]


def _verify(
    directory: AnyPath, release: str, verify_model: Callable[[AnyPath, str], Verification]
) -> Verification:
    """Verify the deployment of a model, or of a machine: its models one after another."""
    place = Path(directory)
    if not (place / machine_file.FILE).is_file() or (place / FILE_NAME).is_file():
        return verify_model(directory, release)
    check_directory(directory)
    with reading(directory, "machine"):
        machine = machine_file.read_machine(directory)
    names = {*machine["models"], *machine_file.MACHINE_FILES}
    check_files(directory, names, machine_file.FILE)
    same = file_digest(place / machine_file.PROGRAM) == machine.get("program")
    program = (OK, "") if same else (BROKEN, f"{machine_file.PROGRAM} is not the deployed one")
    models = {name: verify_model(place / name, release) for name in machine["models"]}
    return of_machine(directory, program, models)


def _verify_model(
    directory: AnyPath,
    release: str,
    *,
    tolerance: float | None,
    turns: int,
    budget_s: float,
    data: ReadData | None,
    max_drop: float,
    bar: Progress,
) -> Verification:
    """Run a directory once, and again while its latency is an alarm; count its right answers."""
    contract = read_contract(directory)
    names = {*contract.files, FILE_NAME}
    check_files(directory, names, "contract", ", or freeze the placement again")
    frozen, then = read_stored(directory), contract.latency
    runs: list[ObservedRun] = []
    reference = None
    bar.note(f"install {release}" if release else "")
    with interpreter(release) as python:
        until_s = now() + budget_s
        bar.note(f"run {release or shorten(os.fspath(directory))}")
        if isinstance(then, LatencyPromise):
            reference = then.reference_device, then.reference_properties
            wait_until_quiet(min(QUIET_S, _QUIET_SHARE * budget_s))
        status, why = ALARM, ""
        while status == ALARM and (not runs or now() < until_s):
            runs.append(observe(directory, reference=reference, python=python, turns=turns))
            hardware = other_hardware(contract, runs[0])
            status, why = latency_status(then, runs, tolerance, hardware)
            if status == ALARM and len(runs) == 1:
                bar.note("measure the latency again")
                time.sleep(PAUSE_S)
    latency = UNDECIDED if status == ALARM else status, why
    verification = verification_of(directory, contract, frozen, runs, latency, release)
    if not release and (data is not None or contract.accuracy is not None):
        bar.note("count the right answers")
        accuracy = _accuracy(directory, contract, frozen, data, max_drop)
        verification = replace(verification, parts=(*verification.parts, accuracy))
    return verification


def _accuracy(
    directory: str | os.PathLike[str],
    contract: Contract,
    frozen: StoredPlacement,
    data: ReadData | None,
    max_drop: float,
) -> ContractPart:
    """Count the right answers of a deployed directory, and compare them with the promise."""
    then = contract.accuracy
    promised = f"{then.accuracy:.1%} of {then.n_examples} examples" if then else "nothing"
    if data is None or data.correct is None:
        return ContractPart("accuracy", UNKNOWN, f"promised is {promised}; data= checks it")
    try:
        compiled, _ = load(directory)
    except RuntimeError as error:
        return ContractPart("accuracy", BROKEN, f"it does not compile: {last_line(error)}")

    bound, request = bind(Path(directory) / MODEL_FILE), compiled.create_infer_request()

    def run(arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
        if bound.graph.stateful_paths:
            request.reset_state()
        return dict(zip(frozen.outputs, infer(request, arrays), strict=True))

    right = count_right(run, bound, data.examples, data.correct)
    here = right / len(data.examples)
    broken = then is not None and here < then.accuracy - max_drop
    detail = f"{here:.1%} of {len(data.examples)} examples, promised is {promised}"
    return ContractPart("accuracy", BROKEN if broken else OK, detail)
