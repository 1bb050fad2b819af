"""The magics: parse, call, return. ``%load_ext hetero_lab`` registers them."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class
from IPython.display import display

from hetero_lab.cli import commands, options, plan as plan_commands, sweep as sweep_commands
from hetero_lab.errors import ArgumentError, HeteroLabError, did_you_mean, shorten

_EXAMPLES = """
examples:
  %hetero_profile digits_inception -d CPU
  %hetero_profile model -d HETERO:GPU,CPU --fix '^head_=CPU' -o
  %hetero_profile model --affinity fixed -v profile --csv profile.csv

As a cell, each line of the body is a fix, pattern = DEVICE; the placement with the fixes is
measured against the one without:
  %%hetero_profile model -d HETERO:GPU,CPU
  ^head_ = CPU
"""
_SWEEP_EXAMPLES = """
examples:
  %hetero_sweep model -d GPU,CPU --orders all
  %hetero_sweep model -d GPU,CPU --fix '^head_=CPU' --fix '^block1/=CPU' --store sweep -v sweep
  %hetero_sweep model -d CPU --grid CPU.INFERENCE_PRECISION_HINT=f32,bf16 --requests 1,4
"""
_PLAN_EXAMPLES = """
examples:
  %hetero_plan model -d GPU,CPU --costs costs.json -v plan
  %hetero_plan model --costs costs --memory-limit GPU=512MiB --pin '^head_=CPU' -o
"""


def profile_parser() -> options.OptionParser:
    """Return the parser of ``%hetero_profile``."""
    parser = options.OptionParser(
        prog="%hetero_profile",
        description=(
            "Compile a placement, measure its latency and its ops, compare its outputs.\n"
            "MODEL is a variable, the path of a model file or a sample's name; --affinity is a\n"
            "variable or a file. An interrupted run keeps what it has."
        ),
        epilog=_EXAMPLES,
    )
    options.add_profile_options(parser)
    return _with_result(parser, "Profile")


def sweep_parser() -> options.OptionParser:
    """Return the parser of ``%hetero_sweep``."""
    parser = options.OptionParser(
        prog="%hetero_sweep",
        description=(
            "Measure many placements in turn and rank them with their uncertainty. MODEL is a\n"
            "variable, the path of a model file or a sample's name."
        ),
        epilog=_SWEEP_EXAMPLES,
    )
    sweep_commands.add_sweep_options(parser)
    return _with_result(parser, "Sweep")


def plan_parser() -> options.OptionParser:
    """Return the parser of ``%hetero_plan``."""
    parser = options.OptionParser(
        prog="%hetero_plan",
        description=(
            "Measure what each op and boundary costs, and plan the best placement. MODEL is a\n"
            "variable, the path of a model file or a sample's name; --costs is a variable with a\n"
            "cost model, or a file."
        ),
        epilog=_PLAN_EXAMPLES,
    )
    plan_commands.add_plan_options(parser)
    return _with_result(parser, "Plan")


def _with_result(parser: options.OptionParser, what: str) -> options.OptionParser:
    options.add_shared(parser, "emulate")
    parser.add_argument("-o", "--output", action="store_true", help=f"return the {what}")
    parser.add_argument("-v", "--variable", metavar="VAR", help=f"store the {what} in a variable")
    return parser


@magics_class
class HeteroMagics(Magics):
    """``%hetero_profile``, ``%%hetero_profile``, ``%hetero_sweep`` and ``%hetero_plan``."""

    @line_cell_magic
    def hetero_profile(self, line: str, cell: str | None = None) -> Any:
        with _one_paragraph():
            given = self._parse(profile_parser(), line)
            if given is None:
                return None
            model = self._model(given.model)
            contrast = commands.emulate(given.emulate)
            if cell is not None:
                sweep = sweep_commands.run_fixes(given, model, cell.splitlines(), contrast)
                return self._result(given, sweep)
            result = commands.run_profile(given, model, self._affinity(given.affinity), contrast)
            return self._result(given, result)

    hetero_profile.__doc__ = profile_parser().format_help()

    @line_magic
    def hetero_sweep(self, line: str) -> Any:
        with _one_paragraph():
            given = self._parse(sweep_parser(), line)
            if given is None:
                return None
            contrast = commands.emulate(given.emulate)
            sweep = sweep_commands.run_sweep(given, self._model(given.model), contrast)
            return self._result(given, sweep)

    hetero_sweep.__doc__ = sweep_parser().format_help()

    @line_magic
    def hetero_plan(self, line: str) -> Any:
        with _one_paragraph():
            given = self._parse(plan_parser(), line)
            if given is None:
                return None
            costs = self._costs(given.costs)
            contrast = commands.emulate(given.emulate)
            planned = plan_commands.run_plan(given, self._model(given.model), contrast, costs)
            return self._result(given, planned.plan, str(planned))

    hetero_plan.__doc__ = plan_parser().format_help()

    def _result(self, given: Namespace, result: Any, text: str = "") -> Any:
        if given.variable:
            self._namespace[given.variable] = result
        if not given.quiet:
            if text:
                print(text)
            display(result)
        if getattr(result, "interrupted", False):
            raise KeyboardInterrupt("The measurement was interrupted; its result is kept.")
        return result if given.output else None

    @property
    def _namespace(self) -> dict[str, Any]:
        assert self.shell is not None
        return self.shell.user_ns

    def _parse(self, parser: options.OptionParser, line: str) -> Namespace | None:
        """Return the options; ``None`` after ``-h``."""
        try:
            given = options.parse(parser, options.split_line(line))
        except SystemExit:
            return None
        variable = given.variable
        if variable is not None and not variable.isidentifier():
            raise ArgumentError(f"-v {shorten(variable)} is not the name of a variable.")
        return given

    def _model(self, name: str) -> Any:
        """Return the variable of that name if it can be a model, else the name itself.

        Some other variable must not hide a sample or a file of the same name.
        """
        from hetero_lab.samples.catalogue import sample_names

        value = self._namespace.get(name)
        if _is_model(value):
            return value
        if name in sample_names() or os.path.exists(name):
            return name
        if value is None and name.isidentifier():
            raise ArgumentError(
                f"{shorten(name)} is no variable, no sample and no file."
                f"{did_you_mean(name, [*self._namespace, *sample_names()])} "
                "hetero_lab.samples() lists the samples."
            )
        return name if value is None else value

    def _affinity(self, name: str | None) -> Any:
        """Return the variable of that name if it is an affinity, else None: it is a file."""
        from hetero_lab.placement.affinity import Affinity
        from hetero_lab.placement.placement import Placement

        value = None if name is None else self._namespace.get(name)
        if value is None or isinstance(value, Affinity | Placement):
            return value
        if isinstance(value, str | os.PathLike):
            return commands.read_affinity(value)
        raise ArgumentError(
            f"The variable {name} is no Affinity or Placement, but {type(value).__name__}."
        )

    def _costs(self, name: str | None) -> Any:
        """Return the variable of that name if it is a cost model, else None: it is a file."""
        value = None if name is None else self._namespace.get(name)
        return value if hasattr(value, "predict_us") else None


def _is_model(value: object) -> bool:
    # An ov.Model is known by what it can do: openvino is not imported here.
    return isinstance(value, str | os.PathLike) or hasattr(value, "get_ordered_ops")


@contextmanager
def _one_paragraph() -> Iterator[None]:
    """Show our errors and warnings as text, without a traceback."""
    with commands.warnings_to(lambda text: print(text, file=sys.stderr)):
        try:
            yield
        except HeteroLabError as error:
            raise UsageError(str(error)) from error
