"""The magics: parse, call, return. ``%load_ext hetero_lab`` registers them."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class
from IPython.display import display

import hetero_lab as hl
from hetero_lab.cli import calls, texts, values
from hetero_lab.cli.commands import COMMANDS
from hetero_lab.cli.options import OptionParser
from hetero_lab.errors import ArgumentError, HeteroLabError, did_you_mean, shorten
from hetero_lab.terminal import plain_text

_VARIABLES = """
MODEL is a variable, the path of a model file or a sample's name; --affinity and --costs are
variables or files. An interrupted run keeps its result."""
_CELL = """
As a cell, each line of the body is a fix, pattern = DEVICE; the placement with the fixes is
measured against the one without:
  %%hetero_profile model -d HETERO:GPU,CPU
  ^head_ = CPU"""
_EXAMPLES = """
%hetero_profile digits_inception -d CPU
%hetero_profile model -d HETERO:GPU,CPU --fix '^head_=CPU' -o
%hetero_profile model --affinity fixed -v profile --csv profile.csv
%hetero_sweep model -d GPU,CPU --orders all
%hetero_sweep model -d GPU,CPU --fix '^head_=CPU' --fix '^block1/=CPU' --store sweep -v sweep
%hetero_sweep model -d CPU --grid CPU.INFERENCE_PRECISION_HINT=f32,bf16 --requests 1,4
%hetero_plan model -d GPU,CPU --costs costs.json -v plan
%hetero_plan model --costs costs --memory-limit GPU=512MiB --pin '^head_=CPU' -o
"""


def magic_parser(name: str) -> OptionParser:
    """Return the parser of a magic: the command's options, and what becomes of the result."""
    command = COMMANDS[name]
    more = f"{_VARIABLES}{_CELL if name == 'profile' else ''}"
    magic = replace(command, options=f"{command.options} output variable", more=more)
    return magic.parser(f"%hetero_{name}", _EXAMPLES)


@magics_class
class HeteroMagics(Magics):
    """``%hetero_profile``, ``%%hetero_profile``, ``%hetero_sweep`` and ``%hetero_plan``."""

    @line_cell_magic
    def hetero_profile(self, line: str, cell: str | None = None) -> Any:
        return self._run("profile", line, cell)

    @line_magic
    def hetero_sweep(self, line: str) -> Any:
        return self._run("sweep", line)

    @line_magic
    def hetero_plan(self, line: str) -> Any:
        return self._run("plan", line)

    hetero_profile.__doc__ = magic_parser("profile").format_help()
    hetero_sweep.__doc__ = magic_parser("sweep").format_help()
    hetero_plan.__doc__ = magic_parser("plan").format_help()

    def _run(self, name: str, line: str, cell: str | None = None) -> Any:
        """Run a command on variables of the notebook; store, show and return its result."""
        with _one_paragraph():
            try:
                args = magic_parser(name).parse_args(values.split_line(line))
            except SystemExit:  # after -h
                return None
            if args.variable is not None and not args.variable.isidentifier():
                raise ArgumentError(f"-v {shorten(args.variable)} is not the name of a variable.")
            args.model = self._model(args.model)
            if "affinity" in args:
                args.affinity = self._affinity(args.affinity)
            if "costs" in args:
                value = self._namespace.get(args.costs or "")
                args.costs = value if isinstance(value, hl.CostModel) else args.costs
            command = COMMANDS[name]
            if cell is not None:
                command = replace(command, run=lambda args: calls.sweep_fixes(args, cell))
            result = command.result(args)
            calls.write(args, result)
            return self._result(args, result)

    def _result(self, args: Namespace, result: Any) -> Any:
        if args.variable:
            self._namespace[args.variable] = result
        if not args.quiet:
            if isinstance(result, hl.types.Plan):
                print(plain_text("\n".join(texts.plan_lines(args, result))))
            display(result)
        if getattr(result, "interrupted", False):
            raise KeyboardInterrupt("The measurement was interrupted; its result is kept.")
        return result if args.output else None

    @property
    def _namespace(self) -> dict[str, Any]:
        assert self.shell is not None
        return self.shell.user_ns

    def _model(self, name: str) -> Any:
        """Return the variable if it can be a model, else the name, perhaps of a sample or file."""
        from hetero_lab.samples.catalogue import sample_names

        value = self._namespace.get(name)
        # An ov.Model is recognised by its methods: openvino is not imported here.
        if isinstance(value, str | os.PathLike) or hasattr(value, "get_ordered_ops"):
            return value
        # Some other variable must not hide a sample or a file of the same name.
        if name in sample_names() or os.path.exists(name):
            return name
        if value is None and name.isidentifier():
            raise ArgumentError(
                f"{shorten(name)} is not a variable, a sample or a file."
                f"{did_you_mean(name, [*self._namespace, *sample_names()])} "
                "hetero_lab.samples() lists the samples."
            )
        return name if value is None else value

    def _affinity(self, name: str | None) -> Any:
        """Return the placement or the path that a variable holds, else the name."""
        value = self._namespace.get(name or "", name)
        if value is None or isinstance(value, str | os.PathLike):
            return value
        if isinstance(value, hl.Affinity):
            value = hl.Placement(value)
        if not isinstance(value, hl.Placement):
            raise ArgumentError(
                f"The variable {name} is not an Affinity or a Placement but {type(value).__name__}."
            )
        return value if value.label else replace(value, label=str(name))


@contextmanager
def _one_paragraph() -> Iterator[None]:
    """Show our errors and warnings as text, without a traceback."""
    with calls.warnings_to(lambda text: print(text, file=sys.stderr)):
        try:
            yield
        except HeteroLabError as error:
            raise UsageError(str(error)) from error
