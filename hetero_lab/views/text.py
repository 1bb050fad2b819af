"""Text in figures: names from a model are shown as they are, never as markup."""

from __future__ import annotations

import html

# Under what sets profiles side by side: their intervals say nothing about the time between them.
NOT_IN_TURN = "not measured in turn: compare placements with hetero_lab.sweep()"


def plain(text: str, most: int = 80) -> str:
    """Return a name as text that plotly shows literally: one line, at most ``most`` characters.

    Plotly renders a subset of HTML and, with MathJax around, what is between dollar signs.
    """
    return escape(squeeze(text, most))


def escape(text: str) -> str:
    """Escape markup for plotly, which knows no entity for quotes."""
    return html.escape(text, quote=False).replace("$", "&#36;")


def squeeze(text: str, most: int) -> str:
    """Put a text on one line, without characters that do not print; cut it in the middle."""
    # The ends of a name tell more than its middle, and very long ones are not worth a full pass.
    if len(text) > 4 * most:
        text = text[: 2 * most] + text[-2 * most :]
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(line) <= most:
        return line
    head = (most - 1) // 2
    return f"{line[:head]}…{line[len(line) - (most - 1 - head) :]}"


def time_text(time_us: float) -> str:
    """Write a time in microseconds with three significant digits.

    Counters are whole microseconds: 0 is a time that is too short for them.
    """
    if time_us == 0:
        return "≈ 0 µs"
    if time_us >= 99.5:
        return f"{time_us:,.0f} µs"
    return f"{time_us:.3g} µs"
