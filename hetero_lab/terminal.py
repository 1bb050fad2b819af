"""Text for a terminal or a log: plain, on one line, and in columns."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

_WIDE = 80  # characters of an ordinary terminal: a longer cell does not widen its column
_BARE = re.compile(r"[\w.:/\\=+-]+")  # words that no shell of Windows takes apart
_NARROW = 60  # columns of a terminal in which a table would be broken up
# What the log of a CI takes for a command: ::error:: at the start of a text, ##[error], ##vso[.
_COMMAND = re.compile(r"(?<!\S):(?=:)|#(?=#\w*\[)")


def plain_text(text: str) -> str:
    """Return text that neither a terminal nor the log of a CI obeys; its lines stay lines.

    Everything that is printed and may have come from a file goes through here: control characters,
    also those that turn the direction of writing, become blanks, and commands lose their form.
    """
    text = text if text.isprintable() else "".join(map(_printable, text))
    return _COMMAND.sub(r"\g<0> ", text)


def _printable(character: str) -> str:
    return character if character.isprintable() or character == "\n" else " "


def text_of(path: str | os.PathLike[str]) -> str:
    """Return a path as text that a table holds, also if its bytes are no UTF-8."""
    return os.fspath(path).encode(errors="backslashreplace").decode()


def one_line(value: str, width: int = 200) -> str:
    """Return text on one line of at most ``width`` characters, cut where names differ least.

    That is the middle, or what stands before a last bracket.
    """
    line = plain_text(value).replace("\n", " ")
    if len(line) <= width:
        return line
    bracket = len(line) - line.rfind(" (") if line.endswith(")") else width
    tail = bracket if bracket < 0.7 * width else width // 2
    return f"{line[: width - 1 - tail]}…{line[len(line) - tail :]}"


def command_line(program: str, *more: str) -> str:
    """Return a command that can be pasted into a shell; the program is one of this environment."""
    return pasted([_command_word(program), *more])


def pasted(words: Sequence[str], windows: bool = os.name == "nt") -> str:
    """Return words that can be pasted into a shell: on Windows, into cmd and PowerShell."""
    if not windows:
        return shlex.join(words)
    # Single quotes mean nothing to cmd, and PowerShell divides a bare word at its commas.
    quoted = ('"' + word.replace('"', '\\"') + '"' for word in words)
    return " ".join(w if _BARE.fullmatch(w) else q for w, q in zip(words, quoted, strict=True))


def _command_word(program: str) -> str:
    """Return a program as a shell finds it: as it was called, if the PATH lacks it.

    Without a command line, as in Jupyter, it is the name.
    """
    script = Path(sys.argv[0])
    if script.stem != "hetero-lab" and script.parts[-2:] != ("hetero_lab", "__main__.py"):
        return program
    beside, here = Path(sys.executable).with_name(program), Path.cwd()
    path = str(beside.relative_to(here) if beside.is_relative_to(here) else beside)
    word = sys.argv[0] if script.stem == program else path
    first = shutil.which(program)
    of_path = first and Path(first).parent.samefile(Path(word).parent)
    return program if of_path else word


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
    cells = [[plain_text(cell).replace("\n", " ") for cell in row] for row in rows]
    # A long last cell of a row must not widen the column for all others.
    widths = [
        max((len(row[i]) for row in cells if len(row[i]) <= _WIDE), default=0)
        for i in range(len(cells[0]))
    ]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    terminal = shutil.get_terminal_size().columns
    if terminal < _NARROW and max(map(len, lines)) > terminal:  # a line a cell
        lines = [
            "".join(f"{n.lower()}: {c}\n" for n, c in zip(cells[0], row, strict=True) if c)
            for row in cells[1:]
        ]
    return "\n".join(lines)
