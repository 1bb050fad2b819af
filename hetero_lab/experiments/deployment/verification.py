"""Whether a deployed directory keeps its contract, part by part."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_lab.backend.core import shared_core
from hetero_lab.errors import names_at_hand, shorten
from hetero_lab.experiments.deployment.check_run import (
    REFERENCE_DEVICE,
    ObservedRun,
    expected_outputs,
)
from hetero_lab.experiments.deployment.contract import Contract, file_digest
from hetero_lab.experiments.measure.environment import noise_here
from hetero_lab.result import Result
from hetero_lab.runtime.exported import parse_header
from hetero_lab.runtime.frozen_placement import FrozenPlacement
from hetero_lab.runtime.reference import compare

if TYPE_CHECKING:
    import pandas as pd

OK, BROKEN, UNKNOWN = "ok", "broken", "not checked"


@dataclass(frozen=True)
class ContractPart:
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
        Model, affinity, properties, devices, compile, partition, outputs and latency; and accuracy,
        where it is promised or data was given.
    changes
        Differences from where the contract was written, whether they break it or not.
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

    def _sentences(self) -> list[str]:
        return [self.verdict, *self.changes]


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
    moved = list(_differences(contract.affinity, frozen.affinity, "nowhere"))
    detail = f"{len(moved)} nodes moved: {names_at_hand(moved, 4)}" if moved else ""
    return ContractPart("affinity", BROKEN if moved else OK, detail)


def _properties(contract: Contract, frozen: FrozenPlacement) -> ContractPart:
    then, now = (
        dict(_flat({"target": each.target, **each.properties, **each.emulated}))
        for each in (contract, frozen)
    )
    other = "; ".join(_differences(then, now, "not set"))
    return ContractPart("properties", BROKEN if other else OK, other)


def _differences(then: Mapping[str, str], now: Mapping[str, str], missing: str) -> Iterator[str]:
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
    then, now = (parse_header(text) for text in (contract.header, seen.header))
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
