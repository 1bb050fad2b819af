"""The result of a search for faults: wrong ops, the way around them, and the exported files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import openvino as ov

from hetero_lab.debug.reproducer import FAULT_FILES, CompileCall, Reproducer, Symptom, failure
from hetero_lab.errors import names_at_hand
from hetero_lab.lint.context import ERROR, WRONG_NUMBERS, Finding, KnownFaults
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import Placement
from hetero_lab.result import Displayed
from hetero_lab.results.environment import Environment
from hetero_lab.runtime.placed_model import read_npz, read_placed
from hetero_lab.tables import (
    SCHEMA_VERSION,
    frame_of,
    make_directory,
    read_json,
    reading,
    write_csv,
    write_json,
)

if TYPE_CHECKING:
    import pandas as pd

    from hetero_lab.costs.cost_model import CostModel
    from hetero_lab.placement.partition import Partition

F32 = {"INFERENCE_PRECISION_HINT": "f32"}
FILE_NAME, MENDED, GIVEN = "wrong.json", "affinity.json", "given.json"
_CULPRIT_COLUMNS = ["op", "op_type", "device", "isolated_error", "accumulated_error"]
_ERROR_COLUMNS = [*_CULPRIT_COLUMNS, "rounding_error", "jumps"]

Kind = Literal["none", "rounding", "op", "combination", "not known"]


@dataclass(frozen=True)
class OpError:
    """The relative errors of an op (Euclidean norm), the largest of its outputs.

    ``isolated`` is that of the op by itself, on its inputs from the reference; ``accumulated`` that
    of the op in the placement, on the inputs that reach it there. For the latter, every tensor
    becomes an output, except inside wrong combinations: an output there would undo the fusion that
    makes them wrong. ``rounding`` is an upper bound of the accumulated error from rounding alone.
    An op ``jumps`` if its accumulated error exceeds that bound and that of its inputs does not yet,
    or if it makes an output of a wrong set.
    """

    op: str
    op_type: str
    device: str
    isolated: float | None
    accumulated: float | None
    rounding: float | None
    jumps: bool = False


@dataclass(frozen=True)
class WrongSet:
    """Ops that are wrong together, or that the device refuses to run together.

    ``error`` is the largest relative error of a tensor that the set computes from the reference's
    tensors, ``damage`` the largest that the set alone causes in the model's outputs. The set is
    ``minimal`` if every op is needed: the others ran without it, and were right. Without the ops in
    ``untried``, the device refuses to run the others, so they may not matter. ``refusal`` is the
    device's message if it refuses the set or crashes on it, else empty.

    ``model`` has these ops alone, under their own names; ``inputs`` are its inputs from the
    reference in its order, and ``makers`` the ops that compute its outputs.
    """

    device: str
    ops: tuple[str, ...]
    error: float
    damage: float
    minimal: bool
    model: ov.Model
    inputs: tuple[np.ndarray, ...]
    makers: tuple[str, ...]
    untried: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def doubt(self) -> str:
        """The reason why some ops may not be needed, in parentheses; empty if all are."""
        if self.minimal:
            return ""
        if self.untried:
            names = names_at_hand(self.untried)
            return f" ({self.device} refuses them without {names}, so not all may matter)"
        return " (perhaps not all of them are needed)"


@dataclass(frozen=True)
class Wrong(Displayed, KnownFaults):
    """The wrong ops of a placement, and a placement without the fault.

    Attributes
    ----------
    kind
        ``"none"``: the outputs are right. ``"rounding"``: the executed precision explains their
        error. ``"op"``: some ops are wrong by themselves. ``"combination"``: some ops are wrong
        only together, because the plugin fuses them; if ``sets`` is empty, the outputs are wrong
        for an unknown reason. ``"not known"``: the search ended before it could tell whether
        anything is wrong.
    verdict
        The result in sentences.
    sets
        The sets of ops that are wrong.
    op_errors
        One for each op. Ops on the trusted device in f32 do not run by themselves.
    given
        The placement in question.
    placement
        The cheapest known placement without the fault; as a last resort, all ops are on the
        trusted device. ``proven`` and ``after`` say whether it helps. It is the given one if
        nothing is known to be wrong.
    proven
        Whether ``placement`` ran and its outputs, except random ones, were right.
    before, after
        The largest relative error of an output, as placed and as mended; NaN if not compared.
    precisions
        Device → the precision in which it executes.
    device_properties
        Device → the properties that it is compiled with.
    plugins
        Emulated device → the plugin's library, and the name that it is registered under.
    trusted
        The device whose f32 is the reference.
    complete
        Whether the search was complete; otherwise more ops may be wrong.
    interrupted
        Whether Ctrl-C ended it.
    notes
        Ops that could not be tested, with the reason, and other remarks.
    n_compiles
        The number of compiled models, on any device.
    """

    kind: Kind
    verdict: str
    sets: tuple[WrongSet, ...]
    op_errors: tuple[OpError, ...]
    given: Placement
    placement: Placement
    proven: bool
    before: float
    after: float
    precisions: Mapping[str, str]
    device_properties: Mapping[str, Mapping[str, object]]
    plugins: Mapping[str, tuple[str, str]]
    trusted: str
    complete: bool
    interrupted: bool
    notes: tuple[str, ...]
    n_compiles: int
    elapsed_s: float
    environment: Environment

    @property
    def affinity(self) -> Affinity:
        """The affinity of ``placement``: without the fault, if that is ``proven``."""
        return self.placement.affinity

    @property
    def fix(self) -> dict[str, str]:
        """The ops that move: op → device, for ``affinity.fix(ops=…)``."""
        before = self.given.affinity
        return {op: self.affinity[op] for op in before.ops if self.affinity[op] != before[op]}

    @cached_property
    def culprits(self) -> pd.DataFrame:
        """One row for each wrong op.

        ``set`` (from 1), ``op``, ``op_type``, ``device``, ``isolated_error``,
        ``accumulated_error``; ``set_error`` and ``output_error`` are the ``error`` and the
        ``damage`` of the whole set.
        """
        errors = {error.op: astuple(error)[:5] for error in self.op_errors}
        rows = [
            (number, *errors[op], fault.error, fault.damage)
            for number, fault in enumerate(self.sets, start=1)
            for op in fault.ops
        ]
        columns = ["set", *_CULPRIT_COLUMNS, "set_error", "output_error"]
        return frame_of(rows, columns)

    @cached_property
    def errors(self) -> pd.DataFrame:
        """One row for each op in topological order, with the fields of its :class:`OpError`.

        ``op``, ``op_type``, ``device``, ``isolated_error``, ``accumulated_error``,
        ``rounding_error``, ``jumps``.
        """
        return frame_of([astuple(error) for error in self.op_errors], _ERROR_COLUMNS)

    def export(self, directory: str | os.PathLike[str]) -> None:
        """Write files that report the fault and files that work around it.

        ``wrong.json`` is for :func:`hetero_lab.read_wrong`, ``given.json`` the affinity in
        question, ``affinity.json`` the mended one, ``devices.json`` the same as a flat mapping
        from op to device; ``errors.csv`` and ``culprits.csv`` are the tables. A directory for
        each set of wrong ops has a model of these ops alone, their inputs, and
        ``show_fault.py``, which needs only openvino and numpy. An earlier export in the
        directory is replaced.

        Raises
        ------
        OutputPathError
            The directory cannot be written.
        """
        target = make_directory(directory)
        self.affinity.to_json(target / MENDED)
        self.given.affinity.to_json(target / GIVEN)
        write_json(target / "devices.json", dict(self.affinity))
        write_csv(target / "errors.csv", self.errors)
        write_csv(target / "culprits.csv", self.culprits)
        for number, fault in enumerate(self.sets, start=1):
            self.reproducer(fault).write(target / f"fault_{number}")
        write_json(target / FILE_NAME, _to_json(self))
        _remove_faults(target, after=len(self.sets))

    def reproducer(self, found: WrongSet, symptom: Symptom | None = None) -> Reproducer:
        """Return what a script needs to show one of the ``sets``, by default of its own symptom."""
        bad, good = "are wrong", "are right"
        text = f"The relative error of the outputs (Euclidean norm) is {found.error:.2g}"
        if not isfinite(found.error):
            text = "The outputs are infinite, NaN or of another shape, unlike those to compare with"
        text += f", executed in {self.precisions.get(found.device, 'f32')}."
        if found.refusal:
            bad, good, text = "fail", "run", found.refusal
        reason = found.doubt or f": without any one of them, the others {good}"
        several = f"The model holds ops that {bad} together{reason}."
        types = {error.op: error.op_type for error in self.op_errors}
        devices = [found.device, self.trusted] if self.trusted else [found.device]
        return Reproducer(
            symptom=symptom or (failure(found.refusal) if found.refusal else Symptom.WRONG),
            told=text,
            model=found.model,
            inputs=found.inputs,
            wrong=CompileCall(found.device, self.device_properties[found.device]),
            right=CompileCall(self.trusted, F32) if self.trusted else None,
            ops=[(op, types[op]) for op in found.ops],
            outputs=found.makers,
            why=several if len(found.ops) > 1 else "The model holds the op in question.",
            environment=self.environment.of(devices),
            plugins={name: plugin for name, plugin in self.plugins.items() if name in devices},
            error=found.error,
        )

    def _findings(
        self, partition: Partition, affinity: Affinity, costs: CostModel | None = None
    ) -> list[Finding]:
        """Return a finding, with its remedy, for each set that is still in one subgraph."""
        subgraphs = [(subgraph.device, {*subgraph.ops}) for subgraph in partition.subgraphs]
        findings = []
        for fault in self.sets:
            if not any(where == fault.device and ops >= {*fault.ops} for where, ops in subgraphs):
                continue
            remedy = {op: device for op, device in self.fix.items() if op in fault.ops}
            together = "only together" if fault.minimal else "together"
            how = together if len(fault.ops) > 1 else "by itself"
            what = f"wrong {how}; the outputs are off by {fault.damage:.2g} (relative error)."
            if fault.refusal:
                what = f"refused {how}: {fault.refusal}"
            saved_us = margin_us = None if costs is None else 0.0
            if costs is not None and set(remedy.values()) <= set(costs.devices):
                now = costs.predictor(affinity)
                moved = now.moved(remedy)
                saved_us, margin_us = now.predicted_us - moved.predicted_us, now.margin_us(moved)
            cause = "refuses them" if fault.refusal else "computes wrong numbers"
            findings.append(
                Finding(
                    rule=WRONG_NUMBERS,
                    severity=ERROR,
                    ops=fault.ops,
                    finding=f"{names_at_hand(fault.ops)} on {fault.device}: {what}",
                    advice=f"Move {names_at_hand(list(remedy))} to {self.trusted}.",
                    remedy=remedy,
                    cost_us=saved_us,
                    cause=f"{fault.device} {cause}",
                    margin_us=margin_us,
                )
            )
        return findings

    def __repr__(self) -> str:
        sets = "; ".join(f"{s.device}: {names_at_hand(s.ops)}" for s in self.sets)
        return f"Wrong({self.kind!r}{': ' if sets else ''}{sets})"

    def __str__(self) -> str:
        lines = [self.verdict]
        for fault in self.sets:
            errors = f"relative error {fault.error:.2g}, of the outputs {fault.damage:.2g}"
            names = names_at_hand(fault.ops)
            lines.append(f"  {fault.device}: {names} ({fault.refusal or errors}){fault.doubt}")
        if self.fix:
            lines.append(f"fix(ops={self.fix!r})")
        return "\n".join([*lines, *self.notes])

    def _sentences(self) -> list[str]:
        return [self.verdict]

    def _front_tables(self) -> dict[str, pd.DataFrame]:
        return {"": self.culprits if self.sets else self.errors}


def read_wrong(directory: str | os.PathLike[str]) -> Wrong:
    """Read the files of :meth:`Wrong.export`; its devices are not needed.

    Raises
    ------
    StoredFileError
        The directory holds no such result, or a broken one.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> import tempfile
    >>> acc = hl.emulate("ACC")
    >>> wrong = hl.find_wrong("digits_inception", "HETERO:ACC,CPU", progress=False)
    >>> with tempfile.TemporaryDirectory() as scratch:
    ...     wrong.export(scratch)
    ...     hl.read_wrong(scratch).verdict == wrong.verdict
    True
    """
    target = Path(directory)
    data = read_json(target / FILE_NAME, kind="wrong")
    before, mended = (Affinity.from_json(target / name) for name in (GIVEN, MENDED))
    with reading(target, "result of find_wrong"):
        data["given"]["affinity"], data["mended"]["affinity"] = before, mended
        for number, fault in enumerate(data["sets"], start=1):
            place = target / f"fault_{number}"
            fault["model"] = model = read_placed(place / "model.xml")
            arrays = read_npz(place / "inputs.npz")
            fault["inputs"] = [arrays[f"in{index}"] for index in range(len(model.inputs))]
        data["kind"], data["placement"] = data["found"], data["mended"]
        # JSON has no infinity and no NaN: they are stored as text.
        result = msgspec.convert(data, Wrong, strict=False)
        # A result that cannot be shown counts as broken: better here than in a notebook.
        _ = result.errors, result.fix, str(result), result._repr_html_()
        _ = [*map(result.reproducer, result.sets)]
    return result


def _remove_faults(target: Path, after: int) -> None:
    """Remove the faults of an earlier export into the same directory, but no other files."""
    for place in target.glob("fault_*"):
        number = place.name.removeprefix("fault_")
        if number.isdecimal() and int(number) > after and (place / "fault.json").is_file():
            for name in FAULT_FILES:
                (place / name).unlink(missing_ok=True)
            if not any(place.iterdir()):
                place.rmdir()


def _to_json(wrong: Wrong) -> dict[str, Any]:
    """Return the fields of a result, except those that have files of their own."""
    data = msgspec.to_builtins(wrong, enc_hook=lambda _: None)
    data["found"], data["mended"] = data.pop("kind"), data.pop("placement")
    for part in (data["given"], data["mended"], *data["sets"]):
        for name in ("affinity", "model", "inputs"):
            part.pop(name, None)
    for part in (data, *data["sets"], *data["op_errors"]):
        floats = {name: value for name, value in part.items() if isinstance(value, float)}
        part.update({name: str(value) for name, value in floats.items() if not isfinite(value)})
    return {"kind": "wrong", "schema_version": SCHEMA_VERSION, **data}
