"""Tables of what a device was seen to support elsewhere, and what they say of a use of an operator.

PyPI's ``winml-cli`` (MIT) has such tables of OpenVINO's execution provider in ONNX Runtime: for
each ONNX operator, hundreds of uses with other types, ranks, attributes and constness, each with
whether it was compiled for the device and ran there. They stay in their wheel, which pip fetches
into the cache when first asked for.
"""

from __future__ import annotations

import functools
import io
import json
import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from hetero_lab.backend.bound import BoundModel
from hetero_lab.backend.onnx_mapping import ELEMENT_TYPES, OnnxUse
from hetero_lab.backend.onnx_uses import onnx_uses
from hetero_lab.errors import ArgumentError, StoredFileError, names_at_hand, shorten
from hetero_lab.fetch import Wheel, fetch_wheel
from hetero_lab.model.onnx_nodes import onnx_note

Answer: TypeAlias = Literal["supported", "unsupported", "unknown"]

SUPPORTED: Answer = "supported"
UNSUPPORTED: Answer = "unsupported"
UNKNOWN: Answer = "unknown"
OF_FILE, OF_OP = "node of the file", "op"
WINML = Wheel("winml-cli", "0.4.0", "winml_cli-0.4.0-py3-none-any.whl", 15_695_044, ())
_WINML_SHA256 = "24e8849d84c954c308d9c727ac9c48955de3218f16b3f2466c881010f68cde3f"
_MEMBER = re.compile(
    r"(?:.*/)?OpenVINOExecutionProvider_(?P<device>[A-Z]+)/"
    r"(?P<operator>\w+)_OpenVINOExecutionProvider_[A-Z]+_ai\.onnx_opset(?P<opset>\d+)\.parquet"
)
_RESULT = "compile_run_success"
_ANY = "-999.9"  # what the tables have where the value of a real number does not matter
_SHORT_TYPES = {name: short for short, name in ELEMENT_TYPES.items()}


@dataclass(frozen=True)
class Verdict:
    """What tables say of one op.

    ``operator`` is ONNX's, empty if none is known for the op; ``reason`` says what was tried, and
    ``nearest`` the closest use with another outcome; both may be empty. ``source`` says what was
    looked up: the node of the ONNX file that the op comes from, or OpenVINO's op put in terms of
    ONNX; it is empty where nothing was.
    """

    answer: Answer
    operator: str = ""
    reason: str = ""
    nearest: str = ""
    source: str = ""

    def __str__(self) -> str:
        return f"{self.reason}; {self.nearest}" if self.nearest else self.reason


@dataclass(frozen=True, eq=False)
class _Table:
    """The tried uses of an operator: a code for each value, and (compiled, ran) of each row."""

    codes: Mapping[str, np.ndarray]
    values: Mapping[str, tuple[Any, ...]]
    result: np.ndarray

    @functools.cached_property
    def worked(self) -> np.ndarray:
        """For each row, whether it compiled and ran."""
        return np.asarray(self.result.all(axis=1))

    def fits(self, column: str, allowed: Iterable[Any]) -> np.ndarray:
        """Return for each row whether its value is an allowed one, or any."""
        wanted = set(allowed)
        good = [v in wanted or v == _ANY for v in self.values[column]]
        return np.array(good, dtype=bool)[self.codes[column]]

    def value(self, column: str, row: int) -> Any:
        return self.values[column][self.codes[column][row]]


class SupportTables:
    """The tables of one device in a wheel of the form of ``winml-cli``."""

    def __init__(self, archive: Path, device: str):
        """Look which operators there are; tables are read when asked for.

        Raises
        ------
        StoredFileError
            It is no such wheel.
        ArgumentError
            It has no tables of this device.
        """
        self._archive = archive
        try:
            with zipfile.ZipFile(archive) as contents:
                found = [m for m in map(_MEMBER.fullmatch, contents.namelist()) if m]
        except (OSError, zipfile.BadZipFile) as error:
            raise StoredFileError(f"{shorten(str(archive))} cannot be read: {error}") from error
        devices = sorted({match["device"] for match in found})
        if device not in devices:
            raise ArgumentError(
                f"{archive.name} has no tables of {shorten(device)}. "
                f"Devices: {names_at_hand(devices)}."
            )
        self.devices = tuple(devices)
        newest: dict[str, tuple[int, str]] = {}
        for match in found:
            if match["device"] == device:
                entry = int(match["opset"]), match[0]
                newest[match["operator"]] = max(entry, newest.get(match["operator"], (0, "")))
        self._members = {operator: member for operator, (_, member) in newest.items()}
        self._read: dict[str, _Table] = {}

    @property
    def operators(self) -> frozenset[str]:
        """The operators and patterns that there are tables of."""
        return frozenset(self._members)

    def judge(self, use: OnnxUse | None) -> Verdict:
        """Say what the tables know of a use of an operator.

        It is supported if all rows that agree with what is known of it compiled and ran,
        unsupported if none did. If only some did, or there are no such rows, it is unknown.
        """
        if use is None:
            return Verdict(UNKNOWN, reason="no ONNX operator is known for this type and version")
        if use.operator not in self._members:
            return Verdict(UNKNOWN, use.operator, f"there is no table of {use.operator}")
        table = self._table(use.operator)
        known = [column for column in use.facts if column in table.codes]
        fits = {column: table.fits(column, use.facts[column]) for column in known}
        rows = np.ones(len(table.result), dtype=bool)
        for column in known:
            rows &= fits[column]
        worked = table.worked
        what = _in_words(use)
        if not rows.any():
            near = self._nearest(table, fits, np.ones_like(rows), use)
            return Verdict(UNKNOWN, use.operator, f"{what} was not tried", near)
        if worked[rows].all():
            return Verdict(SUPPORTED, use.operator, f"{what} runs")
        near = self._nearest(table, fits, worked, use)
        if worked[rows].any():
            on = [c for c in table.codes if c not in known and _separates(table, c, rows, worked)]
            hang = f": that hangs on {names_at_hand(on)}" if on else ""
            count = f"{int(worked[rows].sum())} of {int(rows.sum())}"
            return Verdict(UNKNOWN, use.operator, f"{what} runs in {count} variations{hang}", near)
        return Verdict(UNSUPPORTED, use.operator, f"{what} {_failure(table.result[rows])}", near)

    def _nearest(
        self, table: _Table, fits: Mapping[str, np.ndarray], among: np.ndarray, use: OnnxUse
    ) -> str:
        """Say what the row that differs least from a use came to; empty if none is near."""
        if not among.any() or not fits:
            return ""
        differs = sum((~fit).astype(float) for fit in fits.values())
        for column in fits:
            if column.endswith("_dim"):  # of two other ranks the closer one, and the lower
                known = [v for v in use.facts[column] if isinstance(v, int)]
                if known:
                    ranks = np.array(
                        [v if isinstance(v, int) else -99 for v in table.values[column]]
                    )[table.codes[column]]
                    differs = differs + 0.01 * np.abs(ranks - known[0]) + 0.001 * (ranks > known[0])
        candidates = np.flatnonzero(among)
        row = int(candidates[np.argmin(np.asarray(differs)[candidates])])
        different = [column for column in fits if not fits[column][row]]
        if not different or len(different) > 3:
            return ""
        shown = ", ".join(_variation(column, table.value(column, row)) for column in different)
        outcome = "runs" if table.worked[row] else _failure(table.result[[row]])
        return f"{shown} {outcome}"

    def _table(self, operator: str) -> _Table:
        if operator not in self._read:
            self._read[operator] = self._load(self._members[operator])
        return self._read[operator]

    def _load(self, member: str) -> _Table:
        import pyarrow
        import pyarrow.parquet

        try:
            with zipfile.ZipFile(self._archive) as contents:
                data = contents.read(member)
            read = pyarrow.parquet.read_table(io.BytesIO(data))
            codes, values = {}, {}
            for name in read.column_names:
                if name == _RESULT:
                    continue
                column = read.column(name).combine_chunks().dictionary_encode()
                codes[name] = column.indices.to_numpy()
                values[name] = tuple(
                    _plain(json.loads(text)) for text in column.dictionary.to_pylist()
                )
            rows = read.column(_RESULT).to_pylist()
            if not all(
                isinstance(row, list) and list(map(type, row)) == [bool, bool] for row in rows
            ):
                raise ValueError(f"a row of {_RESULT} is not [compiled, ran]")
            result = np.array(rows, dtype=bool).reshape(-1, 2)
        except (
            OSError,
            EOFError,
            KeyError,
            RuntimeError,
            TypeError,
            ValueError,
            zlib.error,
            zipfile.BadZipFile,
            pyarrow.ArrowException,
        ) as error:
            raise StoredFileError(
                f"{member} of {shorten(str(self._archive))} is no table of support: {error}"
            ) from error
        return _Table(codes, values, result)


def tables_of(like: str) -> SupportTables:
    """Return the tables that ``like=`` names: ``"winml-cli:NPU"`` or ``"file.whl:NPU"``.

    Raises
    ------
    ArgumentError
        It is not of this form, or there are no tables of this device.
    SampleError
        The wheel could not be fetched; the message says how to do it by hand.
    StoredFileError
        The file is no wheel with tables.
    """
    source, _, device = like.rpartition(":") if isinstance(like, str) else ("", "", "")
    if source != WINML.package and not source.endswith(".whl"):
        raise ArgumentError(
            f"like= names tables and a device of theirs, for instance '{WINML.package}:NPU' or "
            f"'winml_cli-0.4.0-py3-none-any.whl:GPU', not {shorten(repr(like))}."
        )
    archive = fetch_wheel(WINML, _WINML_SHA256) if source == WINML.package else Path(source)
    return _open(os.path.abspath(archive), device)


@functools.lru_cache(maxsize=8)
def _open(archive: str, device: str) -> SupportTables:
    return SupportTables(Path(archive), device)


def _unless_everywhere(verdict: Verdict, use: OnnxUse, common: SupportTables) -> Verdict:
    """Return unknown for what failed on CPU too, by the tables of it.

    OpenVINO's CPU plugin by itself runs what these tables say fails on CPU (all of some dozens,
    ``python -m tests.proof.support_agreement``): the limit is one of ONNX Runtime's provider,
    and says nothing of the device.
    """
    if common.judge(use).answer != UNSUPPORTED:
        return verdict
    reason = f"{verdict.reason}, but so it does on CPU there: perhaps not the device's limit"
    return Verdict(UNKNOWN, verdict.operator, reason, verdict.nearest)


_COMMON = "CPU"
_CACHE_SIZE = 64
_verdicts: dict[tuple[str, str, str], dict[str, Verdict]] = {}  # fingerprint, file's nodes, like


def verdicts(bound: BoundModel, like: str) -> dict[str, Verdict]:
    """Return what tables say of each op of a model whose device can be chosen.

    Raises
    ------
    ArgumentError, SampleError, StoredFileError
        As :func:`tables_of`.
    """
    key = (bound.fingerprint, onnx_note(bound.model), like)
    if key not in _verdicts:
        tables = tables_of(like)
        source, _, device = like.rpartition(":")
        beside = device != _COMMON and _COMMON in tables.devices
        common = tables_of(f"{source}:{_COMMON}") if beside else None
        found = {}
        for name, uses in onnx_uses(bound).items():
            use = uses.best(tables.operators)
            verdict = tables.judge(use)
            if verdict.answer == UNSUPPORTED and use is not None and common is not None:
                verdict = _unless_everywhere(verdict, use, common)
            of_file = use is not None and use is uses.of_file
            found[name] = replace(verdict, source=OF_FILE if of_file else OF_OP)
        if len(_verdicts) >= _CACHE_SIZE:
            _verdicts.pop(next(iter(_verdicts)))
        _verdicts[key] = found
    return _verdicts[key]


def _plain(data: Mapping[str, Any]) -> Any:
    """Decode a value of the tables: ``{"t": "int", "v": 6}``."""
    kind = data["t"]
    if kind == "none":
        return None
    if kind in ("tuple", "list"):
        return tuple(_plain(part) for part in data["v"])
    value = data["v"]
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)


def _separates(table: _Table, column: str, rows: np.ndarray, worked: np.ndarray) -> bool:
    codes = table.codes[column]
    return not set(codes[rows & worked]) & set(codes[rows & ~worked])


def _failure(results: np.ndarray) -> str:
    compiled, ran = np.asarray(results.any(axis=0))
    if compiled and not ran:
        return "compiles and fails when it runs"
    return "fails but for a fallback to another device" if ran and not compiled else "fails"


def _in_words(use: OnnxUse) -> str:
    rank = "" if use.rank is None else f" of rank {use.rank}"
    return f"{use.operator} {use.element_type}{rank}"


def _variation(column: str, value: Any) -> str:
    if value in _SHORT_TYPES:
        return _SHORT_TYPES[value]
    if column.endswith("_dim"):
        name = column.removesuffix("_dim")
        of = "" if name in ("X", "input", "data", "A") else f"{name} "
        return f"{of}rank {value}"
    if column.endswith("_is_constant"):
        return f"{column.removesuffix('_is_constant')} {'' if value else 'not '}constant"
    return f"{column.removeprefix('attr_')} {value}"
