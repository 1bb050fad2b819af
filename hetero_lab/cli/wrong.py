"""What ``hetero-lab find-wrong`` does with its options: call the library."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import hetero_lab as hl
from hetero_lab.cli import commands, options

if TYPE_CHECKING:
    from hetero_lab.experiments.search.wrong import Wrong


def add_wrong_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``hetero-lab find-wrong``."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="a sample's name or the path of a model file")
    add("-d", "--device", metavar="DEVICE", help="HETERO:GPU,CPU or one device")
    add("--input", metavar="FILE", help="inputs from an .npz file, such as show the fault")
    add("--tolerance", type=float, metavar="ERROR", help="relative error of a right output")
    add(
        "-b",
        "--budget",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="most time for the search (%(default)s)",
    )
    add(
        "--isolate",
        action="store_true",
        help="survive devices that crash: let them work in a process of their own",
    )
    add("--costs", metavar="FILE", help="price the ways around it with these costs, of plan")
    add("--export", metavar="DIR", help="write what shows the fault with openvino and numpy alone")
    add("-q", "--quiet", action="store_true", help="show nothing")
    options.add_shape_option(parser)
    options.add_property_option(parser)
    options.add_affinity_options(parser)


def run_wrong(given: argparse.Namespace, defaults: Mapping[str, Mapping[str, Any]]) -> Wrong:
    """Search as the options say, and write what was found."""
    from hetero_lab.model.read import prepare

    commands.check_targets(files=[], directories=[given.export])
    prepared = prepare(given.model, options.shapes(given.shape))
    result = commands.until_interrupted(
        hl.find_wrong,
        prepared.model,
        commands.placement_of(given, prepared, defaults=defaults),
        inputs=given.input,
        tolerance=given.tolerance,
        costs=None if given.costs is None else hl.CostModel.from_json(given.costs),
        budget_s=given.budget,
        isolate=given.isolate,
        progress=not given.quiet,
    )
    if given.export is not None:
        result.export(given.export)
    return result
