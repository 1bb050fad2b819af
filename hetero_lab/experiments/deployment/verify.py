"""Verify: does a deployed directory still do what its contract says, with what is here now?"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_lab.backend.bound import bind
from hetero_lab.backend.core import shared_core
from hetero_lab.errors import ArgumentError, last_line, names_at_hand, shorten
from hetero_lab.experiments.accuracy.evaluate import ReadData, read_data
from hetero_lab.experiments.deployment.check_run import (
    BUDGET_S,
    REFERENCE_DEVICE,
    TURNS,
    ObservedRun,
    expected_outputs,
    observe,
)
from hetero_lab.experiments.deployment.contract import (
    Contract,
    file_digest,
    read_contract,
)
from hetero_lab.experiments.environment import noise_here
from hetero_lab.progress import Progress
from hetero_lab.runtime import run_frozen
from hetero_lab.runtime.exported import parse_header
from hetero_lab.runtime.frozen_placement import FrozenPlacement, read_frozen
from hetero_lab.runtime.reference import compare
from hetero_lab.runtime.scoring import Correct, count_right
from hetero_lab.samples.datasets import Dataset, Metric
from hetero_lab.tables import html_table

if TYPE_CHECKING:
    import pandas as pd

OK, BROKEN, UNKNOWN = "ok", "broken", "not checked"
SLOWER, MAX_DROP = 0.1, 0.01


@dataclass(frozen=True)
class ContractPart:
    """One part of a contract: ``ok``, ``broken`` or ``not checked``, and what is to be known."""

    name: str
    status: str
    detail: str = ""


@dataclass(frozen=True)
class Verification:
    """Whether a deployed directory keeps its contract.

    Attributes
    ----------
    parts
        Model, affinity, properties, devices, compile, partition, outputs and latency; and accuracy,
        where it is promised or data was given.
    changes
        What is different from where the contract was written, broken or not.
    openvino_version
        Of the runtime that it was verified with.
    """

    directory: str
    parts: tuple[ContractPart, ...]
    changes: tuple[str, ...]
    openvino_version: str

    @property
    def ok(self) -> bool:
        """Whether no part is broken."""
        return not self.broken

    @property
    def broken(self) -> tuple[str, ...]:
        """The names of the parts that are broken."""
        return tuple(part.name for part in self.parts if part.status == BROKEN)

    @property
    def summary(self) -> pd.DataFrame:
        """One row a part: ``part``, ``status``, ``detail``."""
        import pandas as pd

        return pd.DataFrame(
            [[p.name, p.status, p.detail] for p in self.parts], columns=["part", "status", "detail"]
        )

    @property
    def verdict(self) -> str:
        """In a sentence, whether the contract is kept."""
        if self.ok:
            return f"{self.directory} keeps its contract with OpenVINO {self.openvino_version}."
        return (
            f"{self.directory} breaks its contract with OpenVINO {self.openvino_version}: "
            f"{', '.join(self.broken)}."
        )

    def __repr__(self) -> str:
        return f"Verification({self.verdict})"

    def __str__(self) -> str:
        lines = [self.verdict]
        lines += [f"  {p.name:<11} {p.status:<12} {p.detail}".rstrip() for p in self.parts]
        lines += [f"  changed: {change}" for change in self.changes]
        return "\n".join(lines) + "\n"

    def _repr_html_(self) -> str:
        return html_table(self.summary, caption=" ".join([self.verdict, *self.changes]))


def verify(
    directory: str | os.PathLike[str],
    *,
    slower: float = SLOWER,
    turns: int = TURNS,
    budget_s: float = BUDGET_S,
    data: Dataset | Sequence[Any] | None = None,
    metric: Metric | Correct | None = None,
    max_drop: float = MAX_DROP,
    progress: bool = True,
) -> Verification:
    """Prove again, on the OpenVINO, drivers and machine here, what a deployed directory promises.

    The directory is compiled and run in a process of its own. Its latency is compared as the
    ratio to the reference, the same model on one core in f32, so that another machine's speed
    and a load that slows both alike do not count.

    Parameters
    ----------
    directory
        What :func:`hetero_lab.freeze` or ``advice.deploy`` wrote.
    slower
        By which share the latency, relative to the reference, may be worse than promised; it has
        to be so beyond the intervals of both measurements.
    turns, budget_s
        How long to measure.
    data, metric
        Labelled examples to count the right answers of, as for :func:`hetero_lab.evaluate`;
        without them a promised accuracy is not checked.
    max_drop
        By how much the share of right answers may be lower than promised.
    progress
        Show what runs now, if it takes more than two seconds.

    Returns
    -------
    Verification
        ``.ok``, ``.broken``, ``.changes``, ``.summary``.

    Raises
    ------
    ArgumentError
        A number that is not above 0, or data without labels.
    StoredFileError
        There is no contract, it is of a newer version, or it was edited.
    MeasurementError
        The directory's program does not run at all.

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
    check_measuring(slower, turns, budget_s)
    if isinstance(max_drop, bool) or not 0 <= max_drop <= 1:
        raise ArgumentError(f"max_drop= is a share from 0 to 1, not {max_drop!r}.")
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


def check_measuring(slower: float, turns: int, budget_s: float) -> None:
    """Raise ArgumentError for numbers that no measurement can do with."""
    for name, value in (("slower", slower), ("turns", turns), ("budget_s", budget_s)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ArgumentError(f"{name}= is a number above 0, not {value!r}.")


def judged(
    directory: str | os.PathLike[str],
    contract: Contract,
    frozen: FrozenPlacement,
    seen: ObservedRun,
    slower: float,
) -> Verification:
    """Compare what was seen of a directory with its contract, part by part."""
    parts = [
        _model(directory, contract),
        _affinity(contract, frozen),
        _properties(contract, frozen),
        _devices(contract, seen),
        _compile(seen),
        _partition(contract, seen),
        _outputs(directory, contract, seen),
        _latency(contract, seen, slower),
    ]
    return Verification(
        shorten(os.fspath(directory)),
        tuple(parts),
        tuple(_changes(contract, seen)),
        seen.openvino_version or "unknown",
    )


def _model(directory: str | os.PathLike[str], contract: Contract) -> ContractPart:
    then = contract.files.items()
    other = [name for name, digest in then if file_digest(Path(directory) / name) != digest]
    if other:
        return ContractPart("model", BROKEN, f"{' and '.join(other)} is not what was frozen")
    return ContractPart("model", OK)


def _affinity(contract: Contract, frozen: FrozenPlacement) -> ContractPart:
    now, then = frozen.affinity, contract.affinity
    moved = [
        f"{op}: {then.get(op, 'nowhere')} → {now.get(op, 'nowhere')}"
        for op in dict.fromkeys([*then, *now])
        if then.get(op) != now.get(op)
    ]
    if moved:
        return ContractPart(
            "affinity", BROKEN, f"{len(moved)} nodes moved: {names_at_hand(moved, 4)}"
        )
    return ContractPart("affinity", OK)


def _properties(contract: Contract, frozen: FrozenPlacement) -> ContractPart:
    then = dict(_flat({"target": contract.target, **contract.properties, **contract.emulated}))
    now = dict(_flat({"target": frozen.target, **frozen.properties, **frozen.emulated}))
    other = [
        f"{key}: {then.get(key, 'not set')} → {now.get(key, 'not set')}"
        for key in dict.fromkeys([*then, *now])
        if then.get(key) != now.get(key)
    ]
    return (
        ContractPart("properties", BROKEN, "; ".join(other))
        if other
        else ContractPart("properties", OK)
    )


def _flat(properties: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in properties.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


def _devices(contract: Contract, seen: ObservedRun) -> ContractPart:
    if not seen.devices:
        return ContractPart("devices", UNKNOWN if seen.step != "devices" else BROKEN, seen.error)
    missing = [name for name in contract.devices if not _is_here(name, seen.devices)]
    if missing:
        here = ", ".join(seen.devices)
        return ContractPart(
            "devices", BROKEN, f"{names_at_hand(missing)} missing; here are: {here}"
        )
    return ContractPart("devices", OK, ", ".join(contract.devices))


def _is_here(name: str, devices: Mapping[str, str]) -> bool:
    return any(known in (name, f"{name}.0") or f"{known}.0" == name for known in devices)


def _compile(seen: ObservedRun) -> ContractPart:
    if seen.error and seen.step in ("devices", "compile"):
        return ContractPart("compile", BROKEN, seen.error)
    return ContractPart("compile", OK)


def _partition(contract: Contract, seen: ObservedRun) -> ContractPart:
    if not seen.execution_devices:
        return ContractPart("partition", UNKNOWN, "it was not compiled")
    then, now = (parse_header(text.encode()) for text in (contract.header, seen.header))
    if then is None or now is None:
        # Compiled without HETERO, or by a release that does not tell.
        if sorted(contract.execution_devices) != sorted(seen.execution_devices):
            names = (", ".join(d) for d in (seen.execution_devices, contract.execution_devices))
            return ContractPart("partition", BROKEN, "runs on {}, promised was {}".format(*names))
        if then is not None:
            return ContractPart(
                "partition", UNKNOWN, "this OpenVINO does not report what it compiled"
            )
        return ContractPart("partition", OK, f"whole, on {', '.join(seen.execution_devices)}")
    text = f"{len(now.devices)} subgraphs ({names_at_hand(now.devices, 8)})"
    if now == then:
        return ContractPart("partition", OK, text)
    if now.devices == then.devices:
        return ContractPart("partition", BROKEN, f"{text}, wired in another way than promised")
    promised = f"{len(then.devices)} ({names_at_hand(then.devices, 8)})"
    return ContractPart("partition", BROKEN, f"{text}, promised were {promised}")


def _outputs(
    directory: str | os.PathLike[str], contract: Contract, seen: ObservedRun
) -> ContractPart:
    if not seen.outputs:
        broken = bool(seen.error) and seen.step == "outputs"
        return ContractPart(
            "outputs", BROKEN if broken else UNKNOWN, seen.error or "it was not run"
        )
    expected = expected_outputs(directory)
    if [len(arrays) for arrays in expected] != [len(arrays) for arrays in seen.outputs]:
        return ContractPart("outputs", BROKEN, "not as many outputs as promised")
    worst, verdicts = 0.0, set()
    for now, then in zip(seen.outputs, expected, strict=True):
        names = [str(index) for index in range(len(then))]
        for agreement in compare(
            dict(zip(names, now, strict=True)),
            dict(zip(names, then, strict=True)),
            contract.precision,
        ):
            verdicts.add(agreement.verdict)
            worst = max(worst, agreement.relative_error)
    detail = f"relative error {worst:.1e} in {len(expected)} requests"
    wrong = verdicts & {"different", "not a number"}
    return ContractPart("outputs", BROKEN if wrong else OK, detail)


def _latency(contract: Contract, seen: ObservedRun, slower: float) -> ContractPart:
    noise = noise_here([*contract.devices, REFERENCE_DEVICE], shared_core())
    then, now = contract.latency, seen.latency(noise)
    if then is None or now is None:
        broken = bool(seen.error) and seen.step == "latency"
        return ContractPart(
            "latency", BROKEN if broken else UNKNOWN, seen.error or "it was not measured"
        )
    here, promised = (
        f"{p.ratio:.3f} ({p.ratio_ci95_low:.3f} to {p.ratio_ci95_high:.3f})" for p in (now, then)
    )
    detail = f"{here} of the reference, promised were {promised}"
    worse = now.ratio > (1 + slower) * then.ratio and now.ratio_ci95_low > then.ratio_ci95_high
    return ContractPart("latency", BROKEN if worse else OK, detail)


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


def _changes(contract: Contract, seen: ObservedRun) -> Iterator[str]:
    then = contract.environment
    pairs = [
        ("OpenVINO", then.openvino_version, seen.openvino_version),
        ("host", then.host, seen.host),
        ("system", then.system, seen.system),
        ("CPUs", then.n_cpus, seen.n_cpus),
    ]
    pairs += [(d, full, seen.devices.get(d, full)) for d, full in contract.devices.items()]
    for name, before, after in pairs:
        if after and before != after:
            yield f"{name}: {before} → {after}"
