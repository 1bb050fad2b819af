"""Parsers derived from public functions: each option gives one of their arguments.

An option has the type and the default of the function's signature, and one without a text of its
own is explained by the function's docstring.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from hetero_lab.cli import values
from hetero_lab.errors import ArgumentError, did_you_mean


@dataclass(frozen=True)
class Option:
    """An option of commands and magics, and the argument of public functions that it gives."""

    flags: str
    metavar: str | None = None
    help: str = ""
    argument: str = ""
    """Name of the argument, where it differs from the option's."""
    read: Callable[[Any], Any] | None = None
    """Makes the argument of what was parsed; an error then needs no usage."""
    parse: Mapping[str, Any] = field(default_factory=dict)
    """More settings of argparse."""

    @property
    def dest(self) -> str:
        """Name of the parsed value."""
        return self.parse.get("dest") or self.flags.split()[-1].lstrip("-").replace("-", "_")

    @property
    def gives(self) -> str:
        """Name of the argument."""
        return self.argument or self.dest

    def add_to(
        self, parser: argparse.ArgumentParser, functions: Sequence[Callable[..., Any]]
    ) -> None:
        """Add the option to a parser; the functions say its type, default and meaning."""
        owners = [f for f in functions if self.gives in inspect.signature(f).parameters]
        settings: dict[str, Any] = {"help": self.help, "metavar": self.metavar}
        action = self.parse.get("action")
        if action == "append":
            settings["default"] = []
        elif owners and action != "store_true":
            settings |= _from_signature(owners[0], self.gives)
            settings["help"] = self.help or explanation(owners[0], self.gives)
        if action is not None:
            settings.pop("type", None)
        if action == "store_true":
            del settings["metavar"]
        if settings.get("default") not in (None, []):
            settings["help"] += " (%(default)s)"
        parser.add_argument(*self.flags.split(), **{**settings, **self.parse})


def switch(
    flags: str,
    help: str,
    argument: str = "",
    read: Callable[[bool], Any] | None = None,
    **parse: Any,
) -> Option:
    """Return an option without a value."""
    return Option(flags, None, help, argument, read, {"action": "store_true", **parse})


def many(
    flags: str,
    metavar: str,
    help: str,
    argument: str = "",
    read: Callable[[list[str]], Any] | None = None,
) -> Option:
    """Return an option that may be repeated."""
    return Option(flags, metavar, f"{help}; may be repeated", argument, read, {"action": "append"})


def arguments(
    given: argparse.Namespace, function: Callable[..., Any], options: Sequence[Option]
) -> dict[str, Any]:
    """Return the arguments of a function that the options give; defaults are left to it.

    The argument ``grid.requests`` is a dimension of ``grid``.
    """
    known = inspect.signature(function).parameters
    found: dict[str, Any] = {}
    for option in options:
        value = getattr(given, option.dest)
        argument, _, dimension = option.gives.partition(".")
        if argument in known and value is not None and value != []:
            value = value if option.read is None else option.read(value)
            if dimension:
                value = {dimension: value}
            together = {**found.get(argument, {}), **value} if isinstance(value, dict) else value
            found[argument] = together
    return found


def explanation(function: Callable[..., Any], argument: str) -> str:
    """Return the first sentence that a numpydoc docstring says about an argument."""
    text = inspect.getdoc(function) or ""
    # Arguments that are explained together have one line: "counters, reference".
    found = re.search(rf"^(?:\w+, )*{argument}(?:, \w+)*\n((?: {{4}}.*\n|\n)+)", text, re.MULTILINE)
    if found is None:
        return ""
    sentence = re.split(r"\. |\.$|; ", " ".join(found[1].split()))[0].replace("`", "")
    return f"{sentence[0].lower()}{sentence[1:]}".replace("%", "%%")


def _from_signature(function: Callable[..., Any], argument: str) -> dict[str, Any]:
    """Return the type and the default of an argument as settings of argparse."""
    parameter = inspect.signature(function).parameters[argument]
    kind = str(parameter.annotation).partition(" ")[0]
    types = {"int": values.whole, "float": values.seconds if argument.endswith("_s") else float}
    default = parameter.default
    found = {"default": default} if isinstance(default, str | int | float) else {}
    return {**found, "type": types[kind]} if kind in types else found


class OptionParser(argparse.ArgumentParser):
    """An argument parser that raises ArgumentError where argparse would end the process.

    Parameters
    ----------
    fill
        Adds the arguments when the parser is first used: the signatures of one command are
        imported, not those of all.
    """

    def __init__(
        self, *args: Any, fill: Callable[[OptionParser], None] | None = None, **kwargs: Any
    ) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        self._fill = fill
        self._names: list[str] = []  # of all options
        self.commands: Mapping[str, OptionParser] = {}
        super().__init__(*args, **kwargs)

    def add_argument(self, *names: Any, **options: Any) -> Any:
        """Add an argument, and remember what it is called."""
        action = super().add_argument(*names, **options)
        self._names += action.option_strings
        return action

    def add_subparsers(self, **options: Any) -> Any:
        """Add commands, whose options are their own."""
        action = super().add_subparsers(**options)
        self.commands = action.choices
        return action

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        raise ArgumentError(f"{message}. {self.prog} -h shows the options.")

    def format_usage(self) -> str:
        """Return the usage of all options."""
        self._filled()
        return super().format_usage()

    def format_help(self) -> str:
        """Return the usage and what each option means."""
        self._filled()
        return super().format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what is unknown here, where it is known whose options it is compared with."""
        self._filled()
        try:
            given, unknown = super().parse_known_args(args, namespace)
        except ArgumentError:
            # An option that is missing may be there, but misspelt.
            options = [text.partition("=")[0] for text in args or () if text.startswith("--")]
            unknown = [name for name in options if name not in self._names]
            if unknown and not self.commands:
                self._refuse(unknown)
            raise
        if unknown:
            self._refuse(unknown)
        return given, unknown

    def _filled(self) -> None:
        fill, self._fill = self._fill, None
        if fill is not None:
            fill(self)

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        meant = did_you_mean(unknown[0], self._names)
        raise ArgumentError(
            f"unrecognized arguments: {' '.join(unknown)}.{meant} {self.prog} -h shows the options."
        )
