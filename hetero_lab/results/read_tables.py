"""Tables of an export, read back and checked; results that consist of such tables alone."""

from __future__ import annotations

import dataclasses
import io
import math
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hetero_lab.errors import StoredFileError, shorten, warn
from hetero_lab.tables import Tables, csv_text, estimate_of, read_bytes, read_csv, unread

if TYPE_CHECKING:
    import pandas as pd

_NUMBERS = re.compile(r".*(_us|_ms|_s|bytes|share)|(n_|ratio|raw_).*|rank|group")
_STATUS = re.compile(
    r"ok|interrupted|(accuracy )?failed|not measured: .*|crashed \(.*|timed out .*|out of memory"
)
_KEYS = {
    "summary": ["label", "host"], "ranking": ["label", "host"], "latency": ["turn", "index"],
    "samples": ["label", "host", "turn", "index"], "placements": ["label", "host", "op"],
    "placement": ["op"],
}  # fmt: skip
_ROUNDING = 1e-9  # relative, of floating point


class FromTables:
    """A result without the measurements behind its tables, which says so where it needs them."""

    _KEPT_BY: ClassVar[str]

    def __init__(self, tables: Tables, path: str | os.PathLike[str], **fields: Any):
        limit = f"Read from the tables in {shorten(os.fspath(path))} alone: {self._KEPT_BY}"
        vars(self).update(fields, tables=tables, limit=limit)

    def __getattr__(self, name: str) -> Any:  # of what __init__ was not given
        if name in {field.name for field in dataclasses.fields(type(self))}:  # pyright: ignore
            what = name.replace("_", " ")
            raise StoredFileError(f"No table holds the {what} that this needs. {self.limit}")
        raise AttributeError(name)


def has_only_tables(path: str | os.PathLike[str], whole: str) -> bool:
    """Tell whether a path is a CSV file, or a directory that has some and no file ``whole``."""
    place = Path(path)
    return place.suffix == ".csv" or (not (place / whole).exists() and any(place.glob("*.csv")))


def read_tables(path: str | os.PathLike[str], kind: str, columns: Collection[str]) -> Tables:
    """Read the tables of a ``kind`` of result, of which the summary has the ``columns``.

    Raises StoredFileError, with file, row and column, if one cannot be what was written; the
    header is row 1.
    """
    place = Path(path)
    files = sorted(place.glob("*.csv")) if place.is_dir() else [place]
    files.sort(key=lambda file: file.stem != "summary")  # the others are held against it
    tables, names = Tables(), {}
    for file in files:
        name = file.stem if place.is_dir() else "summary"
        names[name], tables[name] = shorten(str(file)), read_csv(file)
    if "summary" not in tables:
        raise StoredFileError(f"{shorten(str(place))} has no summary.csv, as a {kind} has.")
    for column in columns:
        if column not in tables["summary"]:
            raise StoredFileError(
                f"{names['summary']} is no summary of a {kind}: it has no column {column!r}."
            )
    for name, frame in tables.items():
        for row, column, why in _faults(frame, _KEYS.get(name, []), tables["summary"]):
            raise StoredFileError(f"{names[name]}, row {row + 2}, column {column!r}: {why}.")
    return tables


def _faults(
    frame: pd.DataFrame, keys: Collection[str], summary: pd.DataFrame
) -> Iterator[tuple[int, str, str]]:
    """Yield row, column and reason of what no export writes."""
    import pandas as pd

    numbers: dict[str, pd.Series] = {
        str(name): pd.to_numeric(frame[name], errors="coerce")
        for name in frame
        if _NUMBERS.fullmatch(str(name))
    }
    for name, column in numbers.items():
        for row in frame.index[frame[name].notna() & ~(column >= 0)]:
            yield row, name, f"{shorten(str(frame[name][row]))} is no number that was measured"
    for low in [name for name in numbers if "low" in name]:
        value, high = estimate_of(low, numbers), low.replace("low", "high")
        if value and high in numbers:
            below = numbers[value] < numbers[low] * (1 - _ROUNDING)
            above = numbers[value] > numbers[high] * (1 + _ROUNDING)
            for row in frame.index[below | above]:
                yield row, value, f"{frame[value][row]} is outside of its interval, {low} to {high}"
    keys = [key for key in keys if key in frame]
    for row in frame.index[frame.duplicated(keys)] if keys else ():
        yield row, keys[-1], f"an earlier row has the same {' and '.join(keys)}"
    if "median_us" not in frame:
        return
    for row, status in enumerate(frame.get("status", ())):
        if not _STATUS.fullmatch(status):
            yield row, "status", f"{shorten(status)} is no status of a measurement"
    place = [key for key in _KEYS["summary"] if key in frame]
    medians = summary.set_index(place)["median_us"].to_dict()
    for row, (where, us) in enumerate(frame.set_index(place)["median_us"].items()):
        if us == us and us != medians.get(where):
            yield row, "median_us", f"{us} is not what summary.csv says of this placement"


def warn_of_edits(directory: str | os.PathLike[str], tables: Tables, whole: str) -> None:
    """Warn of CSV beside the file ``whole``, which was read, that do not say the same."""
    for name, frame in tables.items():
        file = Path(directory) / f"{name}.csv"
        if file.exists() and len(frame.columns):
            try:
                edit = _first_edit(read_bytes(file).decode("utf-8-sig", "replace"), frame)
            except (OSError, ValueError) as error:
                edit = unread(error)
            if edit:
                warn(
                    f"{shorten(str(file))} was changed and not read: {edit}. What was read is "
                    f"{whole}; without that file, the tables are read."
                )


def _first_edit(text: str, frame: pd.DataFrame) -> str:
    """Say where a CSV differs from a table; empty if it only was saved by another program."""
    import pandas as pd

    given, own = (
        pd.read_csv(io.StringIO(each, newline=""), dtype=str, keep_default_na=False)
        for each in (text, csv_text(frame))
    )
    if len(given) != len(own):
        return f"it has {len(given)} rows, not {len(own)}"
    for column in own.columns.intersection(given.columns):
        for row in own.index[own[column] != given[column]]:
            is_, was = given[column][row], own[column][row]
            if not _same(is_, was):
                return f"row {row + 2}, column {column!r} says {shorten(is_)}, not {shorten(was)}"
    return ""


def _same(one: str, other: str) -> bool:
    try:
        return math.isclose(float(one), float(other), rel_tol=1e-6)
    except ValueError:
        return one.casefold() == other.casefold()
