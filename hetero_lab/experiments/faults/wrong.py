"""Wrong: which ops of a placement compute wrong numbers, the way around them, and its files."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from hetero_lab.backend.core import shared_core
from hetero_lab.errors import HeteroLabError, StoredFileError, names_at_hand, shorten
from hetero_lab.experiments.measure.environment import Environment
from hetero_lab.model.read import save
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import Placement
from hetero_lab.result import Displayed
from hetero_lab.runtime import show_fault
from hetero_lab.tables import (
    SCHEMA_VERSION,
    make_directory,
    read_json,
    scratch_directory,
    write_csv,
    write_json,
    write_text,
)

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd


Kind = Literal["none", "rounding", "op", "combination", "not known"]


@dataclass(frozen=True)
class OpError:
    """The relative error of an op (Euclidean norm): the largest of its outputs.

    Attributes
    ----------
    isolated
        Of the op by itself, with the inputs that it has in the reference.
    accumulated
        In the placement, with the inputs that reach it there. Every tensor is made an output for
        that, except inside wrong combinations, where an output would undo the fusion that makes
        them wrong.
    rounding
        An upper bound of the error that rounding in the executed precision adds up to there.
    jumps
        Whether the accumulated error exceeds that bound here and did not yet in the inputs of
        the op, or the op makes an output of a wrong set.
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

    Attributes
    ----------
    error
        The largest relative error of a tensor that the set makes of the reference's inputs.
    damage
        The relative error that this does to the model's outputs, the largest of them.
    minimal
        Whether it was shown that no op of it can be left out: the others were run, and were right.
    model
        These ops by themselves, each with its own name.
    inputs
        Their inputs in the reference, in the order of the model's inputs.
    makers
        The op that makes each output of the model.
    untried
        The ops without which the device refuses to run the others, so that it is not known
        whether they are needed.
    refusal
        The device's message where it refuses the set or crashes on it; empty where it computes
        wrong numbers.
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


def doubt(minimal: bool, untried: Sequence[str]) -> str:
    """Say why a set may hold more than is needed; nothing if it is minimal."""
    if minimal:
        return ""
    if untried:
        return f" (the device refuses them without {names_at_hand(untried)}, so not all may matter)"
    return " (perhaps not all of them are needed)"


@dataclass(frozen=True)
class Wrong(Displayed):
    """What is wrong with the numbers of a placement, and the way around it.

    Attributes
    ----------
    kind
        ``"none"``: the outputs are right. ``"rounding"``: they are off by what the executed
        precision does to this model. ``"op"``: some ops are wrong by themselves.
        ``"combination"``: some ops are wrong only together, because the plugin fuses them; with
        empty ``sets``, the outputs are wrong and no op is known to be to blame. ``"not known"``:
        the search ended before it could tell whether anything is wrong.
    verdict
        In sentences.
    sets
        The ops that are wrong, each set by itself.
    op_errors
        One for each op. Those on the trusted device in f32 were not run by themselves.
    given
        The placement in question.
    placement
        The cheapest placement without the fault that was found, in the end all ops on the trusted
        device; ``proven`` and ``after`` say whether it helps. The given one where nothing
        is known to be wrong.
    proven
        Whether ``placement`` was run and its outputs were right: all that are not random.
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
        Whether the search came to its end; otherwise ``sets`` holds those that it had found when
        the budget ended.
    interrupted
        Whether Ctrl-C ended it.
    notes
        Ops that could not be tested, and why, and other remarks.
    n_compiles
        How many models were compiled, on any device.
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
        """That of ``placement``: without the fault, if that is ``proven``."""
        return self.placement.affinity

    @property
    def fix(self) -> dict[str, str]:
        """The ops that move: op → device, for ``affinity.fix(ops=…)``."""
        before = self.given.affinity
        return {op: self.affinity[op] for op in before.ops if self.affinity[op] != before[op]}

    @cached_property
    def culprits(self) -> pd.DataFrame:
        """One row an op that is wrong.

        ``set`` (from 1), ``op``, ``op_type``, ``device``, ``isolated_error``,
        ``accumulated_error``; ``set_error`` is that of the whole set with the reference's inputs,
        ``output_error`` the error that this causes in the model's outputs.
        """
        import pandas as pd

        known = {error.op: error for error in self.op_errors}
        rows = [
            (
                index,
                op,
                known[op].op_type,
                found.device,
                known[op].isolated,
                known[op].accumulated,
                found.error,
                found.damage,
            )
            for index, found in enumerate(self.sets, start=1)
            for op in found.ops
        ]
        columns = ["set", "op", "op_type", "device", "isolated_error", "accumulated_error"]
        return pd.DataFrame(rows, columns=[*columns, "set_error", "output_error"])

    @cached_property
    def errors(self) -> pd.DataFrame:
        """One row an op in topological order, with its isolated and accumulated error.

        Ops on the trusted device in f32 were not run by themselves. ``rounding_error`` is what
        rounding could add up to there, at most; ``jumps`` is true where the accumulated error
        gets beyond that, and where a wrong set adds to it.
        """
        import pandas as pd

        columns = ["op", "op_type", "device", "isolated_error", "accumulated_error"]
        rows = [
            (e.op, e.op_type, e.device, e.isolated, e.accumulated, e.rounding, e.jumps)
            for e in self.op_errors
        ]
        return pd.DataFrame(rows, columns=[*columns, "rounding_error", "jumps"])

    def export(self, directory: str | os.PathLike[str]) -> None:
        """Write the files to report the fault with, and to go around it.

        ``wrong.json`` is for :func:`hetero_lab.read_wrong`, ``given.json`` the affinity in
        question, ``affinity.json`` the mended one, ``devices.json`` the same as a flat mapping
        from op to device, ``errors.csv`` and ``culprits.csv`` the tables. A directory for each
        set of wrong ops has them as a model of their own, with the inputs that reach them and
        ``show_fault.py``, which needs openvino and numpy only. An earlier export in the directory
        is replaced.

        Raises
        ------
        OutputPathError
            The directory cannot be written.
        """
        write_wrong(self, directory)

    def __repr__(self) -> str:
        sets = "; ".join(f"{s.device}: {names_at_hand(s.ops)}" for s in self.sets)
        return f"Wrong({self.kind!r}{': ' if sets else ''}{sets})"

    def __str__(self) -> str:
        lines = [self.verdict]
        for found in self.sets:
            how = f"relative error {found.error:.2g}, of the outputs {found.damage:.2g}"
            least = doubt(found.minimal, found.untried)
            lines.append(
                f"  {found.device}: {names_at_hand(found.ops)} ({found.refusal or how}){least}"
            )
        if self.fix:
            lines.append(f"fix(ops={self.fix!r})")
        return "\n".join([*lines, *self.notes])

    def _sentences(self) -> list[str]:
        return [self.verdict]

    def _shown(self) -> dict[str, pd.DataFrame]:
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
    given, mended = (Affinity.from_json(target / name) for name in (GIVEN, MENDED))
    try:
        for part in (data, *data["sets"], *data["op_errors"]):
            part.update({k: float(v) for k, v in part.items() if k in _NUMBERS and v in _ENDLESS})
        stored = msgspec.convert(data, _StoredWrong)
        known = msgspec.structs.asdict(stored)
        result = Wrong(
            **{
                **known,
                "given": _placement(given, stored.given),
                "placement": _placement(mended, stored.placement),
                "sets": tuple(
                    _read_set(target / f"fault_{number}", found)
                    for number, found in enumerate(stored.sets, start=1)
                ),
            }
        )
        # A result that cannot be shown counts as broken: better here than in a notebook.
        _ = result.errors, result.fix, str(result), result._repr_html_()
        return result
    except Exception as error:
        if isinstance(error, HeteroLabError):
            raise
        raise StoredFileError(
            f"{shorten(os.fspath(target))} does not hold a whole result of find_wrong: "
            f"{type(error).__name__}: {error}"
        ) from error


def _read_set(place: Path, stored: _StoredSet) -> WrongSet:
    model = shared_core().read_model(place / "model.xml")
    with np.load(place / "inputs.npz") as arrays:
        inputs = tuple(arrays[f"in{index}"] for index in range(len(model.inputs)))
    return WrongSet(model=model, inputs=inputs, **msgspec.structs.asdict(stored))


def _placement(affinity: Affinity, stored: _StoredPlacement) -> Placement:
    return Placement(affinity=affinity, **msgspec.structs.asdict(stored))


class _StoredSet(msgspec.Struct, frozen=True, kw_only=True):
    device: str
    ops: tuple[str, ...]
    error: float
    damage: float
    minimal: bool
    makers: tuple[str, ...]
    # Earlier versions stored neither of these.
    untried: tuple[str, ...] = ()
    refusal: str = ""


class _StoredPlacement(msgspec.Struct, frozen=True, kw_only=True):
    label: str
    device_properties: dict[str, dict[str, Any]]
    direct: bool


class _StoredWrong(
    msgspec.Struct, frozen=True, kw_only=True, rename={"kind": "found", "placement": "mended"}
):
    """``wrong.json``: the fields of a Wrong, except those that have files of their own."""

    kind: Kind
    verdict: str
    proven: bool
    complete: bool
    interrupted: bool
    n_compiles: int
    elapsed_s: float
    trusted: str
    before: float
    after: float
    given: _StoredPlacement
    placement: _StoredPlacement
    device_properties: dict[str, dict[str, Any]]
    precisions: dict[str, str]
    plugins: dict[str, tuple[str, str]]
    notes: tuple[str, ...]
    sets: tuple[_StoredSet, ...]
    op_errors: tuple[OpError, ...]
    environment: Environment


# JSON knows neither infinity nor NaN: they are text in these fields.
_NUMBERS = frozenset({"before", "after", "error", "damage", "isolated", "accumulated", "rounding"})
_ENDLESS = ("inf", "-inf", "nan")
FILE_NAME, MENDED, GIVEN = "wrong.json", "affinity.json", "given.json"
_FAULT_FILES = (
    "model.xml", "model.bin", "inputs.npz", "README.md", "show_fault.py", "fault.json",
)  # fmt: skip


def write_wrong(wrong: Wrong, directory: str | os.PathLike[str]) -> None:
    """Write the affinities, the tables, a directory for each set of wrong ops, and wrong.json."""
    target = make_directory(directory)
    wrong.affinity.to_json(target / MENDED)
    wrong.given.affinity.to_json(target / GIVEN)
    write_json(target / "devices.json", dict(wrong.affinity))
    write_csv(target / "errors.csv", wrong.errors)
    write_csv(target / "culprits.csv", wrong.culprits)
    for number_, found in enumerate(wrong.sets, start=1):
        place = make_directory(target / f"fault_{number_}")
        with scratch_directory(place, ".hetero_lab-") as draft:
            _write_fault(draft, wrong, found)
            for file in sorted(draft.iterdir()):
                os.replace(file, place / file.name)
    write_json(target / FILE_NAME, _to_json(wrong))
    _remove_faults(target, after=len(wrong.sets))


def _remove_faults(target: Path, after: int) -> None:
    """Remove the faults of an earlier export into the same directory, but no other files."""
    for place in target.glob("fault_*"):
        number = place.name.removeprefix("fault_")
        if number.isdecimal() and int(number) > after and (place / "fault.json").is_file():
            for name in _FAULT_FILES:
                (place / name).unlink(missing_ok=True)
            if not any(place.iterdir()):
                place.rmdir()


def _to_json(wrong: Wrong) -> dict[str, Any]:
    stored = msgspec.convert(wrong, _StoredWrong, from_attributes=True)
    data = msgspec.to_builtins(stored)
    for part in (data, *data["sets"], *data["op_errors"]):
        part.update({k: str(v) for k, v in part.items() if str(v) in _ENDLESS and k in _NUMBERS})
    return {"kind": "wrong", "schema_version": SCHEMA_VERSION, **data}


def _write_fault(draft: Path, wrong: Wrong, found: WrongSet) -> None:
    save(found.model, draft / "model.xml")
    arrays: dict[str, Any] = {f"in{index}": array for index, array in enumerate(found.inputs)}
    np.savez(draft / "inputs.npz", **arrays)
    sides = {
        "right": {"device": wrong.trusted, "properties": {"INFERENCE_PRECISION_HINT": "f32"}},
        "wrong": {
            "device": found.device,
            "properties": dict(wrong.device_properties[found.device]),
        },
    }
    types = {error.op: error.op_type for error in wrong.op_errors}
    write_json(
        draft / "fault.json",
        {
            **sides,
            "ops": [f"{op} ({types[op]})" for op in found.ops],
            "outputs": list(found.makers),
            # JSON knows no infinity; one is as bad as any error.
            "relative_error": min(found.error, 1.0) if math.isfinite(found.error) else 1.0,
            "refusal": found.refusal,
            "openvino_version": wrong.environment.openvino_version,
            "emulated": {
                device: list(plugin)
                for device, plugin in wrong.plugins.items()
                if device in (found.device, wrong.trusted)
            },
        },
    )
    write_text(draft / "README.md", _report(wrong, found, types))
    shutil.copyfile(show_fault.__file__, draft / "show_fault.py")


def _report(wrong: Wrong, found: WrongSet, types: dict[str, str]) -> str:
    devices = dict(wrong.environment.devices)
    what = "refused, or the device crashes" if found.refusal else "wrong numbers"
    lines = [
        f"# {_sorts(found.ops, types)} on {found.device}: {what}",
        "",
        f"`python show_fault.py` runs `model.xml` on {found.device} and on {wrong.trusted} with "
        f"the same inputs and compares the outputs; it needs openvino and numpy. {_needed(found)}",
        "",
        f"- {found.device} says: {found.refusal}"
        if found.refusal
        else f"- relative error of the outputs (Euclidean norm): {found.error:.2g}",
        f"- OpenVINO {wrong.environment.openvino_version}, {wrong.environment.system}, Python "
        f"{wrong.environment.python_version}",
        *(f"- {device}: {devices[device]}" for device in (found.device, wrong.trusted)),
        f"- properties of {found.device}: `{dict(wrong.device_properties[found.device])}`; "
        f"executed in {wrong.precisions[found.device]}",
        "",
        "| op | type |",
        "| --- | --- |",
        *(f"| `{op}` | {types[op]} |" for op in found.ops),
        "",
    ]
    return "\n".join(lines)


def _needed(found: WrongSet) -> str:
    """Say whether all the ops are needed, as far as that is known."""
    if found.untried:
        names = ", ".join(f"`{op}`" for op in found.untried)
        return (
            "It is not known whether all of its ops are needed: without "
            f"{names}, {found.device} refuses to run the others."
        )
    if not found.minimal:
        return "It is not known whether all of its ops are needed: the search ended before."
    if len(found.ops) == 1:
        return "The model holds the op in question."
    bad, good = ("refused", "accepted") if found.refusal else ("wrong", "right")
    return (
        f"The model holds the ops that are {bad} only together: without any one of them, the "
        f"others are {good}."
    )


def _sorts(ops: Sequence[str], types: dict[str, str]) -> str:
    return " + ".join(types[op] for op in ops[:6]) + (" + …" if len(ops) > 6 else "")
