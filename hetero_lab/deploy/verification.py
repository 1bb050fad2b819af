"""Whether a deployed directory keeps its contract, part by part and release by release."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from xml.etree import ElementTree

from hetero_lab.arguments import checked
from hetero_lab.deploy.contract import Contract, LatencyPromise, Promise, frozen_digest
from hetero_lab.deploy.deployed_run import (
    REFERENCE,
    ObservedRun,
    compare_requests,
    disturbance,
    expected_outputs,
)
from hetero_lab.errors import names_at_hand, shorten
from hetero_lab.intervals import ratio_of_runs
from hetero_lab.model.read import prepare
from hetero_lab.result import Result
from hetero_lab.results.environment import Environment
from hetero_lab.runtime.compiled import parse_header
from hetero_lab.runtime.stored_placement import MODEL_FILE, StoredPlacement
from hetero_lab.tables import write_text
from hetero_lab.terminal import count_of, one_line, plain_text, text_of

if TYPE_CHECKING:
    import pandas as pd


OK, BROKEN, UNDECIDED, UNKNOWN = "ok", "broken", "undecided", "not checked"
UNPROMISED, ERROR = "not promised", "error"
ALARM = "alarm"  # of a latency: undecided, and another process could decide
WIDE = 1000  # characters of a detail: most messages of a runtime in full
_LEAST_AGAIN, _MOST_AGAIN = 3, 6  # processes that confirm an alarm: one may be slow by chance
_OPEN = (UNDECIDED, UNKNOWN)  # promised, and not known whether it is kept


class ContractPart(NamedTuple):
    """One part of a contract: its status, and why.

    It is ``ok``, ``broken``, ``undecided``, ``not checked`` or ``not promised``; ``error`` where
    the directory could not be run at all.
    """

    name: str
    status: str
    detail: str = ""
    model: str = ""  # of a machine

    @property
    def title(self) -> str:
        """The name, with the model's before it if there are several."""
        return f"{self.model} {self.name}".lstrip()


class _Gate(Result):
    """What a check in continuous integration needs from one verification or several."""

    @property
    def _members(self) -> Sequence[Verification]:
        raise NotImplementedError

    @property
    def status(self) -> str:
        """``ok``, ``broken``, ``error`` or ``undecided``, for all parts together."""
        return next((s for s in (BROKEN, ERROR, UNDECIDED) if s in self._statuses), OK)

    @property
    def ok(self) -> bool:
        """Whether all could be run and no part is broken. Parts may be undecided."""
        return not {BROKEN, ERROR} & self._statuses

    @property
    def is_decided(self) -> bool:
        """Whether no part is undecided, or promised and not checked."""
        return not {*_OPEN} & self._statuses

    @property
    def _statuses(self) -> set[str]:
        return {part.status for proven in self._members for part in proven.parts}

    @checked
    def to_junit(self, file: str | os.PathLike[str], *, strict: bool = False) -> None:
        """Write a report in JUnit's XML, whole or not at all: a suite a directory, a case a part.

        A part that is undecided, not checked or not promised is skipped; with ``strict`` the first
        two are failures.

        Raises
        ------
        OutputPathError
            The file cannot be written there.
        """
        root = ElementTree.Element("testsuites", name="hetero-lab verify")
        for proven in self._members:
            suite = ElementTree.SubElement(root, "testsuite", name=plain_text(proven.name))
            for part in proven.parts:
                owner = f"hetero_lab.verify.{Path(proven.directory).name}"
                case = ElementTree.SubElement(
                    suite, "testcase", classname=plain_text(owner), name=part.title
                )
                other = "failure" if strict and part.status in _OPEN else "skipped"
                kind = {BROKEN: "failure", ERROR: "error"}.get(part.status, other)
                if part.status != OK:
                    message = plain_text(f"{part.status}: {part.detail}")
                    ElementTree.SubElement(case, kind, message=message, type=part.status)
            tags = [case[0].tag if len(case) else "" for case in suite]
            suite.set("tests", str(len(tags)))
            suite.set("failures", str(tags.count("failure")))
            suite.set("errors", str(tags.count("error")))
            suite.set("skipped", str(tags.count("skipped")))
            ElementTree.SubElement(suite, "system-out").text = plain_text(proven.verdict)
        ElementTree.indent(root)
        write_text(file, ElementTree.tostring(root, "unicode", xml_declaration=True) + "\n")


@dataclass(frozen=True)
class Verification(_Gate):
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
    release
        The release that was asked for, empty for the one that is here.
    where
        The machine and the date.
    """

    directory: str
    parts: tuple[ContractPart, ...]
    changes: tuple[str, ...]
    openvino_version: str
    release: str = ""
    where: str = ""

    @property
    def _members(self) -> Sequence[Verification]:
        return (self,)

    @property
    def name(self) -> str:
        """The directory, with the release if one was asked for."""
        return f"{self.directory} with OpenVINO {self.release}" if self.release else self.directory

    @property
    def broken(self) -> tuple[str, ...]:
        """The names of the parts that are broken."""
        return tuple(part.title for part in self.parts if part.status == BROKEN)

    @property
    def undecided(self) -> tuple[str, ...]:
        """The names of the parts that the measurement could not decide."""
        return tuple(part.title for part in self.parts if part.status == UNDECIDED)

    @property
    def summary(self) -> pd.DataFrame:
        """One row a part: ``part``, ``status``, ``detail``; of a machine also ``model``."""
        return _table(self.parts, [])

    @property
    def verdict(self) -> str:
        """A sentence that says whether the contract is kept."""
        with_version = f"its contract with OpenVINO {self.openvino_version.partition('-')[0]}"
        directory = shorten(self.directory)
        if self.broken:
            return f"{directory} breaks {with_version}: {', '.join(self.broken)}."
        open_ = [part for part in self.parts if part.status in (ERROR, UNDECIDED)]
        reasons = "; ".join(f"{p.title}, because {p.detail}" for p in open_)
        if reasons:
            why = "Undecided" if self.ok else "It cannot be checked"
            return f"{why} whether {directory} keeps {with_version}: {reasons}."
        free = [p.detail for p in self.parts if (p.name, p.status) == ("latency", UNPROMISED)]
        remarks = [f" (no latency promised{f': {why}' if why else ''})" for why in free]
        why = "".join(dict.fromkeys(remarks))
        return f"{directory} keeps {with_version}{why}."

    def __repr__(self) -> str:
        return f"Verification({self.verdict})"

    def __str__(self) -> str:
        lines = [self.verdict]
        width = max([11, *(len(p.title) for p in self.parts)])
        lines += [f"  {p.title:<{width}} {p.status:<12} {p.detail}".rstrip() for p in self.parts]
        lines += [f"  changed: {change}" for change in self.changes]
        return "\n".join(lines) + "\n"

    def _answer(self) -> str:
        return f"{self.verdict.partition(', because ')[0].removesuffix('.')}."

    def _sentences(self) -> Sequence[str]:
        return [*filter(None, [self.where]), *(f"Changed: {change}." for change in self.changes)]


@dataclass(frozen=True)
class Across(_Gate):
    """Deployed directories, each verified with one release after another or with the one here.

    Attributes
    ----------
    verifications
        One for each directory and release.
    """

    verifications: tuple[Verification, ...]

    @property
    def _members(self) -> Sequence[Verification]:
        return self.verifications

    @property
    def releases(self) -> tuple[str, ...]:
        """The releases, in the order asked for."""
        return tuple(dict.fromkeys(p.release for p in self.verifications if p.release))

    @property
    def changed_by(self) -> str | None:
        """The first release that breaks other parts of a directory than the one before it."""
        run = [verification for verification in self.verifications if verification.status != ERROR]
        pairs = zip(run[1:], run, strict=False)
        return next(
            (
                now.release
                for now, before in pairs
                if now.directory == before.directory and now.broken != before.broken
            ),
            None,
        )

    @property
    def summary(self) -> pd.DataFrame:
        """One row a part: ``directory``, ``release``, ``part``, ``status``, ``detail``.

        With a machine also ``model``.
        """
        rows = [(p.directory, p.release, *part) for p in self.verifications for part in p.parts]
        return _table(rows, ["directory", "release"])

    def __str__(self) -> str:
        if len(self.verifications) == 1:
            return str(self.verifications[0])
        lines = []
        width = max(len(verification.name) for verification in self.verifications)
        for verification in self.verifications:
            names = ", ".join(verification.broken or verification.undecided)
            line = f"{verification.name:<{width}}  {verification.status}"
            lines.append(f"{line}: {names}" if names else line)
            parts = (p for p in verification.parts if p.status in (BROKEN, ERROR, *_OPEN))
            lines += [f"    {part.title}: {part.detail}" for part in parts]
        if len(self.releases) > 1:
            by = self.changed_by
            same = "" if ERROR in self._statuses else "All releases do the same."
            lines.append(f"OpenVINO {by} changed it." if by else same)
        return "\n".join(lines) + "\n"

    __repr__ = __str__

    def _answer(self) -> str:
        if len(self.verifications) == 1:
            return self.verifications[0]._answer()
        counts = Counter(verification.status for verification in self.verifications)
        tally = ", ".join(f"{count} {status}" for status, count in counts.items())
        return f"{len(self.verifications)} verifications: {tally}."

    def _sentences(self) -> Sequence[str]:
        if len(self.verifications) == 1:
            return self.verifications[0]._sentences()
        return str(self).splitlines()


def _table(rows: Sequence[tuple[str, ...]], before: list[str]) -> pd.DataFrame:
    """Return a table of parts, with the column ``model`` if one of them has one."""
    import pandas as pd

    parts = ["part", "status", "detail"]
    table = pd.DataFrame(rows, columns=[*before, *parts, "model"])
    model = ["model"] if table["model"].any() else []
    return table[[*before, *model, *parts]]


Checked: TypeAlias = tuple[str, str]  # status and detail of a part


def of_machine(
    directory: str | os.PathLike[str], program: Checked, models: Mapping[str, Verification]
) -> Verification:
    """Return the verification of a machine: that of its program, and of each of its models."""
    parts = [ContractPart("program", *program)]
    parts += [part._replace(model=name) for name, one in models.items() for part in one.parts]
    changes = dict.fromkeys(change for one in models.values() for change in one.changes)
    first = next(iter(models.values()))
    return replace(first, directory=text_of(directory), parts=tuple(parts), changes=tuple(changes))


def verification_of(
    directory: str | os.PathLike[str],
    contract: Contract,
    frozen: StoredPlacement,
    runs: Sequence[ObservedRun],
    latency: Checked,
    release: str = "",
) -> Verification:
    """Compare the runs of a directory with its contract, part by part; one that failed counts."""
    run = next((run for run in runs if run.error), runs[0])
    digests = contract.files.items()
    other = [name for name, then in digests if frozen_digest(Path(directory) / name) != then]
    files = " and ".join(other)
    moved = list(_differences(contract.affinity, frozen.affinity, "nowhere"))
    nodes = names_at_hand(moved, 4)
    then, now = (
        dict(_flat({"target": each.target, **each.properties, **each.emulated}))
        for each in (contract, frozen)
    )
    parts: dict[str, Checked] = {
        "model": _unless(files and f"{files} differs from the frozen file"),
        "affinity": _unless(nodes and f"{len(moved)} nodes moved: {nodes}"),
        "properties": _unless("; ".join(_differences(then, now, "not set"))),
        "devices": _devices(contract, run),
        "compile": _unless(run.error if run.step in ("devices", "compile") else ""),
        "partition": _partition(contract, run),
        "outputs": _outputs(directory, contract, run),
        "latency": latency,
    }
    return Verification(
        text_of(directory),
        tuple(ContractPart(name, is_, one_line(why, WIDE)) for name, (is_, why) in parts.items()),
        tuple(one_line(change, WIDE) for change in _changes(contract, run).values()),
        run.openvino_version or "unknown",
        release,
        f"Verified on {run.host} · {run.n_cpus} CPUs · {datetime.now(UTC):%d %B %Y, %H:%M} UTC",
    )


def _unless(fault: str) -> Checked:
    return (BROKEN, fault) if fault else (OK, "")


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


def _devices(contract: Contract, run: ObservedRun) -> Checked:
    if not run.devices:
        return _not_run("devices", run, run.error)
    missing = [name for name in contract.devices if not _is_here(name, run.devices)]
    if missing:
        return BROKEN, f"{names_at_hand(missing)} missing; here are: {', '.join(run.devices)}"
    return OK, ", ".join(contract.devices)


def _is_here(name: str, devices: Mapping[str, str]) -> bool:
    return any(device in (name, f"{name}.0") or f"{device}.0" == name for device in devices)


def _not_run(step: str, run: ObservedRun, otherwise: str) -> Checked:
    """Return the result of a step that was not reached, or that failed."""
    failed = bool(run.error) and run.step == step
    return (BROKEN if failed else UNKNOWN), run.error or otherwise


def _partition(contract: Contract, run: ObservedRun) -> Checked:
    if not run.execution_devices:
        return UNKNOWN, "it was not compiled"
    then, now = (parse_header(text) for text in (contract.header, run.header))
    if then is None or now is None:
        # It was compiled without HETERO, or this release does not report the partition.
        promised, here = (", ".join(of.execution_devices) for of in (contract, run))
        if sorted(contract.execution_devices) != sorted(run.execution_devices):
            return BROKEN, f"runs on {here}, promised was {promised}"
        if then is not None:
            return UNKNOWN, "this OpenVINO does not report the partition"
        return OK, f"whole, on {here}"
    devices = [[subgraph.device for subgraph in of.subgraphs] for of in (now, then)]
    texts = [f"({names_at_hand(names, 8)})" for names in devices]
    here = f"{count_of(len(devices[0]), 'subgraph')} {texts[0]}"
    if now == then:
        return OK, here
    if devices[0] == devices[1]:
        return BROKEN, f"{here}, not wired as promised"
    return BROKEN, f"{here}, promised were {len(devices[1])} {texts[1]}"


def _outputs(directory: str | os.PathLike[str], contract: Contract, run: ObservedRun) -> Checked:
    if not run.outputs:
        return _not_run("outputs", run, "it was not run")
    expected = expected_outputs(directory)
    if [len(arrays) for arrays in expected] != [len(arrays) for arrays in run.outputs]:
        return BROKEN, "not as many outputs as promised"

    names = [str(index) for index in range(max(map(len, expected)))]
    arguments = run.outputs, expected, names, contract.precision
    agreements = compare_requests(*arguments)
    if any(agreement.is_wrong for agreement in agreements):  # perhaps by itself
        agreements = compare_requests(*arguments, prepare(Path(directory) / MODEL_FILE).graph)
    clear = [agreement for agreement in agreements if agreement.verdict != "undecided"]
    detail = count_of(len(expected), "request")
    if clear:
        worst = max(agreement.relative_error for agreement in clear)
        detail = f"relative error {worst:.1e} to those frozen, in {detail}"
    if contract.generated:
        detail += " with generated inputs; freeze with inputs of your own"
    if wrong := [agreement for agreement in agreements if agreement.is_wrong]:
        return BROKEN, f"{detail}{wrong[0].detail and f'; {wrong[0].detail}'}"
    if len(clear) < len(agreements):
        part = f"{len(agreements) - len(clear)} of {count_of(len(agreements), 'promised output')}"
        odd = next((f"; {a.detail}" for a in agreements if a.detail), "")
        return UNDECIDED, f"{part} are random, empty, or nothing but NaN; {detail}{odd}"
    return OK, detail


def latency_status(
    then: Promise, runs: Sequence[ObservedRun], tolerance: float | None, hardware: str
) -> Checked:
    """Tell whether a promise is kept, by the runs so far.

    ``hardware`` names what is not that of the promise. A first run that looks worse is an
    ``ALARM``; the runs after it decide.
    """
    first, *again = runs
    failed = next((run for run in runs if run.error), first)
    ratios = [run.ratio for run in runs if run.ratio is not None]
    if not isinstance(then, LatencyPromise):
        return UNPROMISED, then or ""
    if failed.error and failed.step == REFERENCE:
        return UNDECIDED, f"the reference {then.reference} fails: {failed.error}"
    if len(ratios) < len(runs):
        status = BROKEN if failed.error and failed.step == "latency" else UNKNOWN
        return status, failed.error or "it was not measured"
    limit = 1.0 + (then.tolerance if tolerance is None else tolerance)
    if why := disturbance(runs):
        return UNDECIDED, f"{why}; promised is {then}"
    spread = then.spread or math.log(then.ratio_ci95_high / then.ratio_ci95_low) / 3.92
    ratio = ratio_of_runs(ratios[1:] or ratios, then.ratios or (then.ratio,), spread, then.drift)
    text = (
        f"{ratio.middle:.2f} times the promise ({ratio.low:.2f} to {ratio.high:.2f}), which is "
        f"{then}"
    )
    if ratio.high <= limit:
        return OK, text
    if hardware:
        return UNDECIDED, f"{text}, but this is other hardware: {hardware}"
    worse = ratio.low > limit and min(ratios) > limit * then.ratio
    if worse and len(again) >= _LEAST_AGAIN:
        if then.ratios:
            return BROKEN, text
        text += "; one process promised that: deploy again to promise a latency between processes"
        return UNDECIDED, text
    text += f"; {limit:.2f} times is allowed"
    return (UNDECIDED if len(again) >= _MOST_AGAIN else ALARM), text


def other_hardware(contract: Contract, run: ObservedRun) -> str:
    """Say which devices or CPUs are not those of the contract; empty if all are the same."""
    changes = _changes(contract, run)
    return "; ".join(changes[name] for name in ("CPUs", *contract.devices) if name in changes)


def _changes(contract: Contract, run: ObservedRun) -> dict[str, str]:
    """Return what changed of the environment by its name, as far as both know it."""

    def facts(of: Environment | ObservedRun) -> dict[str, Any]:
        return {
            "OpenVINO": of.openvino_version,
            "host": of.host,
            "system": of.system,
            "CPUs": of.n_cpus,
            **dict(of.devices),
        }

    then, now = {**facts(contract.environment), **contract.devices}, facts(run)
    return {
        name: f"{name}: {before} → {now[name]}"
        for name, before in then.items()
        if now.get(name) and now[name] != before
    }
