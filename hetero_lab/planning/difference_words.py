"""A Difference in plain sentences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hetero_lab.errors import shorten
from hetero_lab.tables import number

if TYPE_CHECKING:
    from hetero_lab.planning.difference import Difference, Part

_MOST_TYPES = 4
_MOST_PARTS = 3


def sentences(difference: Difference) -> list[str]:
    """Say what differs, what is predicted and what was measured, one sentence per line."""
    a, b = difference.before, difference.after
    lines = [f"a is {shorten(a.label, 80)}, b is {shorten(b.label, 80)}."]
    if a.label == b.label:
        lines = [f"Both are called {shorten(a.label, 80)}: a is the first, b the second."]
    lines.append(_moved(difference))
    lines += _structure(difference)
    if difference.predicted_parts is not None:
        lines += _predicted(difference)
    if difference.measurement is not None:
        lines += _measured(difference)
    return [*lines, *difference.notes]


def change(difference_us: float) -> str:
    """Write a difference with its sign: ``+12.0 µs``."""
    if not difference_us:
        return "±0 µs"
    sign = "−" if difference_us < 0 else "+"
    return f"{sign}{number(abs(difference_us))} µs"


def part_name(part: Part) -> str:
    """Say what a part of a prediction is about, on one line."""
    if part.kind == "ops":
        return f"{shorten(part.name, 60)} on {part.device_after} instead of {part.device_before}"
    if part.kind == "boundaries":
        where = f"{part.device_before} to {part.device_after}"
        return f"{shorten(part.name, 60)} crossing from {where}"
    if part.kind == "subgraphs":
        return f"subgraphs on {part.device_after}"
    if part.kind == "spread memory":
        return "memory spread over subgraphs"
    first, _, second = part.name.partition("\n")
    return f"fusion of {shorten(first, 40)} and {shorten(second, 40)}"


def _moved(difference: Difference) -> str:
    if not difference.moved:
        return "No op moves: both put every op on the same device."
    ways: dict[tuple[str, str], Counter[str]] = {}
    for op in difference.moved:
        ways.setdefault((op.before, op.after), Counter())[op.op_type] += 1
    moves = [
        f"{sum(types.values())} from {before} to {after} ({_types(types)})"
        for (before, after), types in ways.items()
    ]
    n, of = len(difference.moved), len(difference.before.affinity.ops)
    return f"{n} of {of} ops {'moves' if n == 1 else 'move'}: {'; '.join(moves)}."


def _types(types: Counter[str]) -> str:
    shown = [f"{n} {op_type}" for op_type, n in types.most_common(_MOST_TYPES)]
    rest = len(types) - len(shown)
    return ", ".join(shown) + (f" and {rest} more types" if rest else "")


def _structure(difference: Difference) -> Iterator[str]:
    before, after = difference.before.partition, difference.after.partition
    old = (before.n_subgraphs, len(before.boundaries), before.boundary_bytes)
    new = (after.n_subgraphs, len(after.boundaries), after.boundary_bytes)
    if old == new:
        yield f"Both have {_shape(*new)}."
    else:
        yield f"b has {_shape(*new)}; a has {_shape(*old)}."


def _shape(n_subgraphs: int, n_boundaries: int, n_bytes: int) -> str:
    subgraphs = f"{n_subgraphs} subgraph{'s' * (n_subgraphs != 1)}"
    if not n_boundaries:
        return f"{subgraphs} and no boundary"
    word = "boundary" if n_boundaries == 1 else "boundaries"
    return f"{subgraphs} and {n_boundaries} {word} with {n_bytes:,} bytes"


def _predicted(difference: Difference) -> Iterator[str]:
    total = difference.predicted_us
    levels = (
        f"{number(difference.before.predicted_us)} → {number(difference.after.predicted_us)} µs"
    )
    if not difference.priced:
        yield f"Both are predicted to take {number(difference.after.predicted_us)} µs."
        return
    by_kind: dict[str, int] = {}
    for part in difference.priced:
        by_kind[part.kind] = by_kind.get(part.kind, 0) + part.difference_ns
    kinds = ", ".join(f"{kind} {change(ns / 1000.0)}" for kind, ns in by_kind.items())
    if total:
        word = "faster" if total < 0 else "slower"
        yield f"b is predicted {number(abs(total))} µs {word} ({levels}): {kinds}."
    else:
        yield f"b is predicted as fast as a ({levels}): {kinds}."
    largest = [
        f"{part_name(part)} {change(part.difference_ns / 1000.0)}"
        for part in difference.priced[:_MOST_PARTS]
    ]
    rest = len(difference.priced) - len(largest)
    more = f"; {rest} smaller parts" if rest > 1 else "; one smaller part" if rest else ""
    yield f"Largest parts: {'; '.join(largest)}{more}."


def _measured(difference: Difference) -> Iterator[str]:
    timed = difference.timed
    level = f"{number(timed.before_us)} → {number(timed.after_us)} µs"
    if not math.isfinite(timed.high_us):
        yield (
            f"b was measured {change(timed.difference_us)} ({level}), with too few turns for an "
            "interval."
        )
        return
    interval = f"95 % interval {change(timed.low_us)} to {change(timed.high_us)}"
    if timed.low_us <= 0.0 <= timed.high_us:
        yield (
            f"No difference was seen in the measurement: b takes {change(timed.difference_us)} "
            f"({interval}; {level})."
        )
    else:
        word = "faster" if timed.difference_us < 0 else "slower"
        yield (
            f"b was measured {number(abs(timed.difference_us))} µs {word} ({interval}; {level})."
        )
    if difference.predicted_parts is not None:
        inside = timed.low_us <= difference.predicted_us <= timed.high_us
        yield f"The prediction lies {'within' if inside else 'outside'} that interval."
