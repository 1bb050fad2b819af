"""Results declare sentences and tables; their HTML, CSV and Parquet are derived here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, ClassVar

from hetero_lab.arguments import checked
from hetero_lab.tables import Tables, records, table_cells, template, write_csv, write_tables
from hetero_lab.terminal import plain_text

if TYPE_CHECKING:
    import pandas as pd


def split_verdict(verdict: str) -> tuple[str, list[str], list[str]]:
    """Split a verdict: the answer, its reasons, and the details, which follow an empty line."""
    above, _, details = verdict.partition("\n\n")
    answer, *reasons = above.splitlines() or [""]
    return answer, reasons, details.splitlines()


def _plain(write: Callable[..., str]) -> Callable[..., str]:
    return wraps(write)(lambda *args, **options: plain_text(write(*args, **options)))


class Displayed:
    """Anything that a notebook shows as sentences followed by tables."""

    def __init_subclass__(cls, **options: Any) -> None:  # its text may be that of a file
        super().__init_subclass__(**options)
        for name in {"__repr__", "__str__", "report"} & vars(cls).keys():
            setattr(cls, name, _plain(vars(cls)[name]))

    def _answer(self) -> str:
        """Return the sentence that stands first, in larger letters; empty if there is none."""
        return ""

    def _sentences(self) -> Sequence[str]:
        """Return the text above the tables; text of several lines keeps its columns aligned."""
        return [repr(self)]

    def _details(self) -> Sequence[str]:
        """Return the sentences below the tables, folded up."""
        return ()

    def _front_tables(self) -> Mapping[str, pd.DataFrame]:
        """Return the tables to show, each under its title."""
        return {}

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as JSON holds it: ``verdict``, ``notes``, ``tables`` (lists of rows).

        What is missing, or no finite number, is None. Units are the suffixes of the columns.
        """
        tables = getattr(self, "tables", None) or self._front_tables()
        sentences = [self._answer(), *self._sentences()]
        return {
            "verdict": str(getattr(self, "verdict", " ".join(filter(None, sentences)))),
            "notes": [str(note) for note in getattr(self, "notes", ())],
            "tables": {name or "summary": records(frame) for name, frame in tables.items()},
        }

    def _repr_html_(self) -> str:
        tables = [table_cells(frame, title) for title, frame in self._front_tables().items()]
        answer, sentences, details = self._answer(), self._sentences(), self._details()
        return str(template("result.html").module.result(answer, sentences, tables, details))


class Framed(Displayed):
    """Anything with one table."""

    def to_frame(self) -> pd.DataFrame:
        """Return the table."""
        raise NotImplementedError

    def _front_tables(self) -> Mapping[str, pd.DataFrame]:
        return {"": self.to_frame()}


class Result(Displayed):
    """An answer with named tables, which can be written to files.

    A subclass names the properties that are its tables in ``_TABLES``, the main one first, or
    builds ``tables`` itself. A ``verdict`` begins with the answer; sentences after an empty line
    are details.
    """

    _TABLES: ClassVar[tuple[str, ...]] = ("summary",)

    def _answer(self) -> str:
        return split_verdict(getattr(self, "verdict", ""))[0]

    def _sentences(self) -> Sequence[str]:
        """Return the reasons and the notes of a result that has a verdict, otherwise its repr."""
        verdict, notes = getattr(self, "verdict", None), getattr(self, "notes", ())
        return [repr(self)] if verdict is None else [*split_verdict(verdict)[1], *notes]

    def _details(self) -> Sequence[str]:
        return split_verdict(getattr(self, "verdict", ""))[2]

    @cached_property
    def tables(self) -> Tables:
        """All tables, DataFrames by name."""
        return Tables({name: getattr(self, name) for name in self._TABLES})

    def _front_tables(self) -> Mapping[str, pd.DataFrame]:
        return {"": next(iter(self.tables.values()))}

    @checked
    def to_csv(self, file: str | os.PathLike[str]) -> None:
        """Write the main table, the first of ``tables``, as CSV, whole or not at all.

        Raises
        ------
        OutputPathError
            The file cannot be written there.
        """
        write_csv(file, next(iter(self.tables.values())))

    @checked
    def export(self, directory: str | os.PathLike[str], format: str = "csv") -> None:
        """Write every table as ``NAME.csv`` or ``NAME.parquet``.

        Raises
        ------
        ArgumentError
            Another format; nothing was written.
        OutputPathError
            The directory cannot be made or written.
        """
        write_tables(directory, self.tables, format)
