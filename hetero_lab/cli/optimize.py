"""What ``hetero-lab optimize`` does with its options: call the library, write the files."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import hetero_lab as hl
from hetero_lab.cli import commands, options
from hetero_lab.cli.plan import (
    check_affinity_target,
    device_properties,
    pairs,
    write_affinity,
)

if TYPE_CHECKING:
    from hetero_lab.experiments.search.optimized import Optimized


def add_optimize_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``hetero-lab optimize``."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="a sample's name or the path of a model file")
    add("-d", "--devices", required=True, metavar="GPU,CPU", help="devices, the first one first")
    add(
        "--objective",
        choices=("latency", "throughput"),
        default="latency",
        help="of one request, or the time between results (%(default)s)",
    )
    add(
        "-b",
        "--budget",
        type=options.seconds,
        default=120.0,
        metavar="SECONDS",
        help="most time for the whole search (%(default)s)",
    )
    options.add_constraint_options(parser)
    add("--costs", metavar="FILE", help="go on from these costs, of hetero-lab plan")
    add("--affinity-out", metavar="FILE", help="write the best affinity, .json or .csv")
    options.add_property_option(parser)
    options.add_shape_option(parser)
    add("--input", metavar="FILE", help="inputs from an .npz file")
    add("--no-isolate", action="store_true", help="measure in this process")
    add("--csv", metavar="FILE", help="write the summary, one row a placement")
    options.add_html_option(parser)
    add("--table", action="store_true", help="show every row, and what was tried on the way")
    add("-q", "--quiet", action="store_true", help="show nothing")


def run_optimize(given: argparse.Namespace, defaults: Mapping[str, Mapping[str, Any]]) -> Optimized:
    """Search as the options say; write ``--affinity-out``, ``--csv`` and ``--html``."""
    from hetero_lab.model.read import prepare
    from hetero_lab.placement.priorities import Priorities

    check_affinity_target(given.affinity_out)
    commands.check_targets(files=[given.csv, given.html, given.affinity_out], directories=[])
    own = options.properties(given.property)
    prepared = prepare(given.model, options.shapes(given.shape))
    names = Priorities.parse(given.devices).devices
    costs = None if given.costs is None else hl.CostModel.from_json(given.costs)
    result = commands.until_interrupted(
        hl.optimize,
        prepared,
        names,
        objective=given.objective,
        budget_s=given.budget,
        device_properties=device_properties(defaults, own, names) or None,
        memory_limit=pairs(given.memory_limit, "--memory-limit", "GPU=2GiB") or None,
        pin=pairs(given.pin, "--pin", "'^head_=CPU'") or None,
        costs=costs,
        inputs=given.input,
        isolate=not given.no_isolate,
        progress=not given.quiet,
    )
    if not isinstance(result, hl.Optimized):  # costs, which are no answer yet
        raise KeyboardInterrupt("Nothing was proven by then.")
    if given.affinity_out is not None:
        write_affinity(result.affinity, given.affinity_out)
    if given.csv is not None:
        result.sweep.to_csv(given.csv)
    commands.write_page(given.html, result)
    return result
