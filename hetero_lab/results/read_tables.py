"""Tables of an export, read back and checked; results that consist of such tables alone."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hetero_lab.errors import StoredFileError, shorten, warn
from hetero_lab.results.profile_tables import INTERVAL
from hetero_lab.tables import TEXT_COLUMNS, Tables, csv_text, estimate_of, parse_csv, read_csv

if TYPE_CHECKING:
    import pandas as pd

_NUMBERS = re.compile(r".*(_us|_ms|_s|bytes|share)|(n_|ratio|raw_).*|rank|group")
_STATUS = re.compile(
    r"ok|interrupted|(accuracy )?failed|not measured: .*|crashed \(.*|timed out .*|out of memory|"
    r"no worker for it|the scheduler is gone|lost \d+ times"
)
_NEEDED = {"label", "status", *INTERVAL, "ratio", "same_as", "reference"}
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


def read_tables(
    path: str | os.PathLike[str], whole: str, kind: str, columns: Collection[str]
) -> Tables | None:
    """Read the tables of a ``kind`` of result, if they are without the file ``whole``, else None.

    Raises StoredFileError, with file, row (the header is row 1) and column, if one cannot be what
    was written; the ``columns`` are those of the summary. One that an older release did not write
    is empty.
    """
    place = Path(path)
    files = [place] if place.suffix == ".csv" else sorted(place.glob("*.csv"))
    if not files or (place / whole).exists():
        return None
    files.sort(key=lambda file: file.stem != "summary")  # the others are held against it
    tables = Tables({"summary" if file == place else file.stem: read_csv(file) for file in files})
    for frame in tables.values():  # those of older releases lack it
        if "median_us" in frame and "label" in frame and "configuration" not in frame:
            frame["configuration"] = frame["label"]
    pairs = zip(tables, map(shorten, map(str, files)), strict=True)
    summary = tables.get("summary")
    for column in columns if summary is None else [c for c in columns if c not in summary]:
        if summary is None or column in _NEEDED:
            raise StoredFileError(
                f"{shorten(str(files[0]))} is no summary of a {kind}: it has no column {column!r}."
            )
        summary[column] = "" if column in TEXT_COLUMNS else math.nan
    for name, file in pairs:
        for row, column, why in _faults(tables[name], tables["summary"]):
            raise StoredFileError(f"{file}, row {row + 2}, column {column!r}: {why}.")
    return tables


def _faults(frame: pd.DataFrame, summary: pd.DataFrame) -> Iterator[tuple[int, str, str]]:
    """Yield row, column and reason of what no export writes."""
    import pandas as pd

    names = [str(name) for name in frame if _NUMBERS.fullmatch(str(name))]
    numbers = {name: pd.to_numeric(frame[name], errors="coerce") for name in names}
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
    if "median_us" not in frame and "latency_us" not in frame:
        return
    keys = [key for key in ("label", "host", "turn", "index") if key in frame]
    for row in frame.index[frame.duplicated(keys)]:
        yield row, keys[-1], f"an earlier row has the same {', '.join(keys)}"
    for row, status in enumerate(frame.get("status", ())):
        if not _STATUS.fullmatch(status):
            yield row, "status", f"{shorten(status)} is no status of a measurement"
    if "median_us" in frame:
        medians = summary.set_index(keys)["median_us"].to_dict()
        for row, (place, us) in enumerate(frame.set_index(keys)["median_us"].items()):
            if us == us and us != medians.get(place):
                yield row, "median_us", f"{us} is not what summary.csv says of this placement"


def warn_of_edits(directory: str | os.PathLike[str], tables: Tables, whole: str) -> None:
    """Warn of CSV beside the file ``whole``, which was read, that do not say the same."""
    for name, frame in tables.items():
        file = Path(directory) / f"{name}.csv"
        if not file.exists() or not len(frame.columns):
            continue
        actual, expected = (t.map(str) for t in (read_csv(file), parse_csv(csv_text(frame))))
        edits = [
            f"row {row + 2}, column {column!r}: {shorten(actual[column][row])}, not "
            f"{shorten(expected[column][row])}"
            for column in expected.columns.intersection(actual.columns)
            for row in expected.index[: len(actual)]
            if actual[column][row] != expected[column][row]
        ]
        if len(actual) != len(expected):
            edits = [f"it has {len(actual)} rows, not {len(expected)}"]
        if edits:
            warn(
                f"{shorten(str(file))} was changed and not read: {edits[0]}. What was read is "
                f"{whole}; without that file, the tables are read."
            )
