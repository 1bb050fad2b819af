"""Whether a deployed directory keeps its contract, part by part and release by release."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from hetero_lab.backend.core import shared_core
from hetero_lab.errors import names_at_hand, shorten
from hetero_lab.experiments.deployment.check_run import (
    REFERENCE_DEVICE,
    ObservedRun,
    expected_outputs,
)
from hetero_lab.experiments.deployment.contract import Contract
from hetero_lab.experiments.measure.environment import Environment, noise_here
from hetero_lab.fetch import file_digest
from hetero_lab.result import Result
from hetero_lab.runtime.exported import parse_header
from hetero_lab.runtime.frozen_placement import FrozenPlacement
from hetero_lab.runtime.reference import compare

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

OK, BROKEN, UNKNOWN = "ok", "broken", "not checked"


class ContractPart(NamedTuple):
    """One part of a contract: ``ok``, ``broken`` or ``not checked``, with the details."""

    name: str
    status: str
    detail: str = ""


@dataclass(frozen=True)
class Verification(Result):
    """Whether a deployed directory keeps its contract.

    Attributes
    ----------
    parts
        Model, affinity, properties, devices, compile, partition, outputs and latency; and
        accuracy, if it is promised or data was given.
    changes
        Differences from where the contract was written, whether they break it or not.
    openvino_version
        The version of the runtime that it was verified with.
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

        return pd.DataFrame(self.parts, columns=["part", "status", "detail"])

    @property
    def verdict(self) -> str:
        """A sentence that says whether the contract is kept."""
        with_version = f"its contract with OpenVINO {self.openvino_version}"
        if self.ok:
            return f"{self.directory} keeps {with_version}."
        return f"{self.directory} breaks {with_version}: {', '.join(self.broken)}."

    def __repr__(self) -> str:
        return f"Verification({self.verdict})"

    def __str__(self) -> str:
        lines = [self.verdict]
        lines += [f"  {p.name:<11} {p.status:<12} {p.detail}".rstrip() for p in self.parts]
        lines += [f"  changed: {change}" for change in self.changes]
        return "\n".join(lines) + "\n"

    def _sentences(self) -> list[str]:
        return [self.verdict, *self.changes]


@dataclass(frozen=True)
class Across(Result):
    """A deployed directory verified with one release after another.

    Attributes
    ----------
    releases
        The versions, in the order asked for.
    verifications
        One for each release.
    """

    releases: tuple[str, ...]
    verifications: tuple[Verification, ...]

    @property
    def ok(self) -> bool:
        """Whether every release keeps the contract."""
        return all(proven.ok for proven in self.verifications)

    @property
    def changed_by(self) -> str | None:
        """The first release that breaks other parts than the one before it."""
        pairs = zip(self.releases[1:], self.verifications[1:], self.verifications, strict=False)
        return next((name for name, now, before in pairs if now.broken != before.broken), None)

    @property
    def summary(self) -> pd.DataFrame:
        """One row a release and part: ``release``, ``part``, ``status``, ``detail``."""
        import pandas as pd

        frames = [proven.summary for proven in self.verifications]
        every = pd.concat(frames, keys=self.releases, names=["release", None])
        return every.reset_index("release").reset_index(drop=True)

    def __str__(self) -> str:
        lines = []
        for release, proven in zip(self.releases, self.verifications, strict=True):
            lines.append(f"{release:<10} {'ok' if proven.ok else ', '.join(proven.broken)}")
            lines += [f"    {p.name}: {p.detail}" for p in proven.parts if p.name in proven.broken]
        changed = self.changed_by
        same = "All releases do the same."
        lines.append(same if changed is None else f"OpenVINO {changed} changed it.")
        return "\n".join(lines) + "\n"

    __repr__ = __str__


Checked: TypeAlias = tuple[str, str]  # status and detail of a part


def judged(
    directory: str | os.PathLike[str],
    contract: Contract,
    frozen: FrozenPlacement,
    seen: ObservedRun,
    slower: float,
) -> Verification:
    """Compare an observed run of a directory with its contract, part by part."""
    checked: dict[str, Checked] = {
        "model": _model(directory, contract),
        "affinity": _affinity(contract, frozen),
        "properties": _properties(contract, frozen),
        "devices": _devices(contract, seen),
        "compile": _compile(seen),
        "partition": _partition(contract, seen),
        "outputs": _outputs(directory, contract, seen),
        "latency": _latency(contract, seen, slower),
    }
    return Verification(
        shorten(os.fspath(directory)),
        tuple(ContractPart(name, *found) for name, found in checked.items()),
        tuple(_changes(contract, seen)),
        seen.openvino_version or "unknown",
    )


def _model(directory: str | os.PathLike[str], contract: Contract) -> Checked:
    then = contract.files.items()
    other = [name for name, digest in then if file_digest(Path(directory) / name) != digest]
    if other:
        return BROKEN, f"{' and '.join(other)} differs from the frozen file"
    return OK, ""


def _affinity(contract: Contract, frozen: FrozenPlacement) -> Checked:
    moved = list(_differences(contract.affinity, frozen.affinity, "nowhere"))
    if moved:
        return BROKEN, f"{len(moved)} nodes moved: {names_at_hand(moved, 4)}"
    return OK, ""


def _properties(contract: Contract, frozen: FrozenPlacement) -> Checked:
    then, now = (
        dict(_flat({"target": each.target, **each.properties, **each.emulated}))
        for each in (contract, frozen)
    )
    other = "; ".join(_differences(then, now, "not set"))
    return (BROKEN if other else OK), other


def _differences(then: Mapping[str, Any], now: Mapping[str, Any], missing: str) -> Iterator[str]:
    for key in dict.fromkeys([*then, *now]):
        before, after = then.get(key, missing), now.get(key, missing)
        if before != after:
            yield f"{key}: {before} → {after}"


def _flat(properties: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in properties.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


def _devices(contract: Contract, seen: ObservedRun) -> Checked:
    if not seen.devices:
        return _not_run("devices", seen, seen.error)
    missing = [name for name in contract.devices if not _is_here(name, seen.devices)]
    if missing:
        return BROKEN, f"{names_at_hand(missing)} missing; here are: {', '.join(seen.devices)}"
    return OK, ", ".join(contract.devices)


def _is_here(name: str, devices: Mapping[str, str]) -> bool:
    return any(known in (name, f"{name}.0") or f"{known}.0" == name for known in devices)


def _not_run(step: str, seen: ObservedRun, otherwise: str) -> Checked:
    """Return the result of a step that was not reached, or that failed."""
    failed = bool(seen.error) and seen.step == step
    return (BROKEN if failed else UNKNOWN), seen.error or otherwise


def _compile(seen: ObservedRun) -> Checked:
    if seen.error and seen.step in ("devices", "compile"):
        return BROKEN, seen.error
    return OK, ""


def _partition(contract: Contract, seen: ObservedRun) -> Checked:
    if not seen.execution_devices:
        return UNKNOWN, "it was not compiled"
    then, now = (parse_header(text) for text in (contract.header, seen.header))
    if then is None or now is None:
        # It was compiled without HETERO, or this release does not report the partition.
        promised, here = (", ".join(of.execution_devices) for of in (contract, seen))
        if sorted(contract.execution_devices) != sorted(seen.execution_devices):
            return BROKEN, f"runs on {here}, promised was {promised}"
        if then is not None:
            return UNKNOWN, "this OpenVINO does not report the partition"
        return OK, f"whole, on {here}"
    devices = [[subgraph.device for subgraph in of.subgraphs] for of in (now, then)]
    here, promised = (
        f"{len(names)}{noun} ({names_at_hand(names, 8)})"
        for names, noun in zip(devices, (" subgraphs", ""), strict=True)
    )
    if now == then:
        return OK, here
    if devices[0] == devices[1]:
        return BROKEN, f"{here}, not wired as promised"
    return BROKEN, f"{here}, promised were {promised}"


def _outputs(directory: str | os.PathLike[str], contract: Contract, seen: ObservedRun) -> Checked:
    if not seen.outputs:
        return _not_run("outputs", seen, "it was not run")
    expected = expected_outputs(directory)
    if [len(arrays) for arrays in expected] != [len(arrays) for arrays in seen.outputs]:
        return BROKEN, "not as many outputs as promised"
    agreements = [
        agreement
        for now, then in zip(seen.outputs, expected, strict=True)
        for agreement in compare(_named(now), _named(then), contract.precision)
    ]
    worst = max(agreement.relative_error for agreement in agreements)
    wrong = any(agreement.is_wrong for agreement in agreements)
    detail = f"relative error {worst:.1e} in {len(expected)} requests"
    return (BROKEN if wrong else OK), detail


def _named(arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    return {str(index): array for index, array in enumerate(arrays)}


def _latency(contract: Contract, seen: ObservedRun, slower: float) -> Checked:
    noise = noise_here([*contract.devices, REFERENCE_DEVICE], shared_core())
    then, now = contract.latency, seen.latency(noise)
    if then is None or now is None:
        return _not_run("latency", seen, "it was not measured")
    worse = now.ratio > (1 + slower) * then.ratio and now.ratio_ci95_low > then.ratio_ci95_high
    return (BROKEN if worse else OK), f"{now} of the reference, promised were {then}"


def _changes(contract: Contract, seen: ObservedRun) -> Iterator[str]:
    def facts(of: Environment | ObservedRun) -> dict[str, Any]:
        return {
            "OpenVINO": of.openvino_version,
            "host": of.host,
            "system": of.system,
            "CPUs": of.n_cpus,
            **dict(of.devices),
        }

    then = {**facts(contract.environment), **contract.devices}
    now = {name: after for name, after in facts(seen).items() if after and name in then}
    return _differences(then, {**then, **now}, "")
