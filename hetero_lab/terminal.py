"""Text for a terminal: on one line, and in columns."""

from __future__ import annotations

from collections.abc import Sequence

_WIDE = 80


def one_line(value: str, width: int = 200) -> str:
    """Return text that a terminal shows on one line of at most ``width`` characters."""
    shown = _printable(value)
    return shown if len(shown) <= width else shown[: width - 3] + "..."


def count_of(n: int, noun: str) -> str:
    """Write a number with its noun: ``1 boundary``, ``2 boundaries``."""
    if n == 1:
        return f"1 {noun}"
    return f"{n:,} {noun.removesuffix('y')}{'ies' if noun.endswith('y') else 's'}"


def first_of(items: Sequence[str], most: int, noun: str = "") -> str:
    """List the first ``most`` texts, and say how many more there are: ``a, b and 3 more types``."""
    more = f" and {len(items) - most} more {noun}".rstrip() if len(items) > most else ""
    return ", ".join(items[:most]) + more


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Lay out rows of text in columns, the first row being the heading."""
    shown = [[_printable(cell) for cell in row] for row in rows]
    # A long last cell of a row must not widen the column for all others.
    widths = [
        max((len(row[i]) for row in shown if len(row[i]) <= _WIDE), default=0)
        for i in range(len(shown[0]))
    ]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in shown
    )


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
