"""Which rows of a sweep are wanted: words and comparisons, as one types them in a search box."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hetero_lab.errors import ArgumentError, did_you_mean, names_at_hand, shorten

if TYPE_CHECKING:
    import pandas as pd

_TERM = re.compile(r"^([A-Za-z_][^<>=!]*?)\s*(<=|>=|!=|<|>|=)\s*(.+)$")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True)
class Term:
    """A word that must be in the label, or a comparison of a column with a value."""

    column: str
    compare: str
    value: str


def parse(text: str) -> tuple[Term, ...]:
    """Read a filter: words and comparisons with blanks between, ``ACC n_subgraphs<4 ratio<1``."""
    terms = []
    for token in text.split():
        found = _TERM.match(token)
        terms.append(Term(*found.groups()) if found else Term("label", "has", token))
    return tuple(terms)


def matching(frame: pd.DataFrame, text: str) -> pd.DataFrame:
    """Return the rows that match every term; a row without a value matches no comparison.

    Raises
    ------
    ArgumentError
        There is no such column, or a number is compared with what is none.
    """
    import pandas as pd

    kept = pd.Series(True, index=frame.index)
    for term in parse(text):
        if term.compare == "has":
            wanted = term.value.casefold()
            has = [wanted in str(label).casefold() for label in frame["label"]]
            kept &= pd.Series(has, index=frame.index)
            continue
        if term.column not in frame.columns:
            known = [str(column) for column in frame.columns]
            raise ArgumentError(
                f"There is no column {shorten(term.column)}.{did_you_mean(term.column, known)} "
                f"Columns: {names_at_hand(known, 30)}."
            )
        column = frame[term.column]
        compare = _COMPARE[term.compare]
        if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
            try:
                value = float(term.value)
            except ValueError:
                raise ArgumentError(
                    f"{term.column} holds numbers, and {shorten(term.value)} is none."
                ) from None
            kept &= column.notna() & compare(column, value)
        elif term.compare in ("=", "!="):
            same = pd.Series(
                [str(v).casefold() == term.value.casefold() for v in column], index=frame.index
            )
            kept &= same if term.compare == "=" else ~same
        else:
            raise ArgumentError(f"{term.column} holds text: compare it with = or !=.")
    return frame.loc[kept]
