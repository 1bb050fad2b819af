"""State of a SweepExplorer, without a browser: rows, filter, axes, groups, placements."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hetero_lab.costs.difference import Difference
from hetero_lab.errors import ArgumentError, shorten, unknown
from hetero_lab.results.sweep_result import Sweep
from hetero_lab.results.sweep_row import Row
from hetero_lab.search.explain import Comparison, compare, explain_rows
from hetero_lab.tables import heading_of
from hetero_lab.views.sweep_figures import MOSTLY, NO_GROUP, with_shares

if TYPE_CHECKING:
    import pandas as pd

RUN, AFTER, BEFORE = "run", "after", "before"

_TERM = re.compile(r"^([A-Za-z_][^<>=!]*?)\s*(<=|>=|!=|<|>|=)\s*(.+)$")
_UNITS = {"": 1e6, "m": 1e3, "u": 1.0, "µ": 1.0}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}


def matching(frame: pd.DataFrame, text: str) -> pd.DataFrame:
    """Return the rows that match every term of a filter such as ``ACC subgraphs<4 latency<2ms``.

    A word has to be in the label or in the name of a device that is used. A column has its own name
    or that of its heading; times are in µs unless they have a unit. A row without a value matches
    no comparison. Raises ArgumentError if there is no such column, or if a number is compared with
    something else.
    """
    import pandas as pd

    kept = pd.Series(True, index=frame.index)
    by_heading = {heading_of(str(name)).replace(" ", "_"): str(name) for name in frame.columns}
    for token in text.split():
        term = _TERM.match(token)
        name, compare, value = term.groups() if term else ("label", "has", token)
        name = name if name in frame.columns else by_heading.get(name.casefold(), name)
        if name not in frame.columns:
            names = dict.fromkeys([*frame.columns, *by_heading])
            raise ArgumentError(unknown("There is no column", name, names, "Columns", 30))
        column = frame[name]
        if compare == "has":
            column = frame["label"] + "\n" + frame["configuration"] + "\n" + frame["devices"]
        texts = pd.Series([str(v).casefold() for v in column], index=frame.index, dtype=object)
        if compare == "has":
            kept &= texts.str.contains(value.casefold(), regex=False)
        elif pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
            try:
                kept &= column.notna() & _COMPARE[compare](column, _number(name, value))
            except ValueError:
                raise ArgumentError(
                    f"{name} holds numbers; {shorten(value)} is not a number."
                ) from None
        elif compare in ("=", "!="):
            kept &= _COMPARE[compare](texts, value.casefold())
        else:
            raise ArgumentError(f"{name} holds text: compare it with = or !=.")
    return frame.loc[kept]


def _number(name: str, text: str) -> float:
    unit = re.search(r"(?<=[\d.])([muµ]?)s$", text) if name.endswith("_us") else None
    return float(text[: unit.start()]) * _UNITS[unit[1]] if unit else float(text)


_GROUPINGS = (
    RUN, MOSTLY, "variant", "executor", "requests", "devices", "n_subgraphs", "host", "baseline",
)  # fmt: skip
_FIRST_AXES = ("n_subgraphs", "median_us")


class ExplorerState:
    """The rows of one sweep, or of two, and the choices about them.

    A wrong choice raises and changes nothing. ``rows`` has the rows of both sweeps by label, those
    of ``before`` with a prefix; ``frame`` their summaries with rank, group and finding in their own
    run and the shares of the devices. The choices are the axes ``x`` and ``y``, ``group``,
    ``filter``, and the placements ``a`` and ``b``.
    """

    def __init__(self, sweep: Sweep, before: Sweep | None = None):
        for given in (sweep, before):
            if not isinstance(given, Sweep | None) or sweep is None:
                raise ArgumentError(
                    "Give the result of hetero_lab.sweep or hetero_lab.read_sweep, not "
                    f"{type(given).__name__}."
                )
        self.sweep = sweep
        self.comparison: Comparison | None = compare(before, sweep) if before else None
        self.runs = {AFTER: sweep} | ({BEFORE: before} if before else {})
        self.rows: dict[str, Row] = {
            (label := labelled(name, run.name_of(row))): replace(row, label=label)
            for name, run in self.runs.items()
            for row in run.rows
        }
        self.frame = _frame(self.runs)
        self.measured = [label for label, row in self.rows.items() if row.profile is not None]
        rows = self.frame.loc[self.frame["label"].isin(self.measured)]
        rows = self._measured_frame = rows.sort_values([RUN, "rank"], kind="stable")
        # The columns that hold numbers of some measured row.
        self.axes = [str(n) for n in rows.select_dtypes("number").dropna(axis="columns", how="all")]
        # The columns that rows can be grouped by: those in which they differ.
        differ = [n for n in _GROUPINGS if n in rows and rows[n].nunique(dropna=False) > 1]
        mostly = [MOSTLY] if MOSTLY in rows and MOSTLY not in differ else []
        self.groupings = [NO_GROUP, *mostly, *differ]
        self.x, self.y = (n if n in self.axes else next(iter(self.axes), "") for n in _FIRST_AXES)
        self.group = next((n for n in (RUN, MOSTLY) if n in self.groupings), NO_GROUP)
        self.filter, self.a, self.b = "", next(iter(rows["label"]), ""), ""

    @property
    def emulated(self) -> dict[str, str]:
        return {name: base for run in self.runs.values() for name, base in run.environment.emulated}

    @property
    def message(self) -> str:
        """The first thing that a reader must know; empty if there is nothing."""
        if not self.rows:
            return "This sweep has no rows."
        if not self.measured:
            return f"None of the {len(self.rows)} placements was measured; below is why."
        return ""

    def troubled(self, *, measured: bool) -> pd.DataFrame:
        """Return rows that failed or, if ``measured``, those that only were not evaluated.

        The columns are ``label``, ``status`` and ``detail``.
        """
        here = self.frame["label"].isin(self.measured) == measured
        wrong = here & (self.frame["status"] != "ok")
        return self.frame.loc[wrong, ["label", "status", "detail"]]

    @property
    def shown(self) -> pd.DataFrame:
        """The measured rows that pass the filter, by run and rank."""
        return matching(self._measured_frame, self.filter)

    def choose(self, **changes: str) -> None:
        """Change choices, all or none; ArgumentError for a wrong one or no match.

        An empty ``b`` ends the comparison.
        """
        known: dict[str, tuple[str, Sequence[str]]] = {
            "x": ("axis", self.axes),
            "y": ("axis", self.axes),
            "group": ("grouping", self.groupings),
            "a": ("row", list(self.rows)),
            "b": ("row", list(self.rows)),
        }
        for name, value in changes.items():
            if name == "filter":
                if self.measured and not len(matching(self._measured_frame, value)):
                    still = f"{len(self.shown)} of {len(self.measured)} are still shown"
                    raise ArgumentError(f"No measured row matches {shorten(value)}; {still}.")
            elif (name != "b" or value) and value not in known[name][1]:
                kind, names = known[name]
                raise ArgumentError(unknown(f"There is no {kind}", value, names, "Known", 30))
            if name in ("a", "b") and value and self.rows[value].profile is None:
                status = self.rows[value].status
                raise ArgumentError(f"{shorten(value)} was not measured: {status}.")
        vars(self).update(changes)

    def difference(self, a: str, b: str) -> Difference | None:
        """Return the difference from a row to another, if any; ArgumentError if models differ."""
        return explain_rows(self.rows[a], self.rows[b]) if b and a != b else None


def labelled(run: str, label: str) -> str:
    return label if run == AFTER else f"{run}: {label}"


def _frame(runs: Mapping[str, Sweep]) -> pd.DataFrame:
    """Return the summary of all rows, with their run and what is known of them in its ranking."""
    import pandas as pd

    frames = []
    for name, run in runs.items():
        frame, ranked = with_shares(run), run.ranked
        known = zip(ranked.rows, ranked.ranks, ranked.groups, ranked.findings, strict=True)
        places = {(row.label, row.host): place for row, *place in known}
        of_rows = [places.get((row.same_as or row.label, row.host)) for row in run.rows]
        for number, column in enumerate(("rank", "group", "finding")):
            frame[column] = [place[number] if place else None for place in of_rows]
        frame[RUN] = name
        if name == BEFORE:
            for column in ("label", "configuration"):
                frame[column] = [labelled(name, each) for each in frame[column]]
            frame["same_as"] = [label and labelled(name, label) for label in frame["same_as"]]
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)
