"""What ``%hetero_sweep``, ``%%hetero_profile`` and ``hetero-lab sweep`` have in common."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import hetero_lab as hl
from hetero_lab.cli import commands, options
from hetero_lab.errors import ArgumentError, shorten

if TYPE_CHECKING:
    from hetero_lab.experiments.sweep.result import Sweep
    from hetero_lab.model.read import Source
    from hetero_lab.placement.placement import PlacementLike


def add_sweep_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a sweep."""
    add = parser.add_argument
    options.add_shared(parser, "model", "devices")
    add(
        "--orders",
        choices=("given", "all"),
        default="given",
        help="measure the order as given, or every order of the devices",
    )
    add(
        "--fix",
        action="append",
        default=[],
        metavar="PATTERN=DEVICE",
        help="one more placement: the order as given, but ops whose name has the regular "
        "expression on that device; may be repeated, each is measured",
    )
    add(
        "--grid",
        action="append",
        default=[],
        metavar="DEVICE.KEY=V1,V2",
        help="cross the placements with values of a property; * means every device",
    )
    add(
        "--executor",
        default="hetero",
        metavar="hetero,parallel",
        help="what runs the subgraphs: OpenVINO, all devices at the same time, or both in turn",
    )
    add("--requests", default="1", metavar="1,4", help="requests in flight")
    add(
        "-b",
        "--budget",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="stop measuring after that long (%(default)s)",
    )
    add(
        "--precision",
        type=float,
        default=0.02,
        metavar="SHARE",
        help="stop sooner if all ratios are known that well (%(default)s)",
    )
    add("--turns", type=int, metavar="N", help="measure that many turns, whatever they show")
    add("--sustained", type=float, metavar="SECONDS", help="hold each placement that long too")
    add("--store", metavar="DIR", help="keep every turn here; the same command goes on from it")
    add("--cache-dir", metavar="DIR", help="keep compiled models here")
    add(
        "--model-cache",
        action="store_true",
        help="measure each compiled and loaded from OpenVINO's model cache",
    )
    add("--csv", metavar="FILE", help="write the summary, one row a placement")
    add("--export", metavar="DIR", help="write all tables as CSV")
    options.add_shared(
        parser,
        "shape",
        "input",
        "isolate",
        "no-counters",
        "no-reference",
        "html",
        "table",
        "quiet",
    )
    parser.set_defaults(isolate=True)


def run_sweep(
    given: argparse.Namespace,
    model: Source,
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
) -> Sweep:
    """Sweep as the options say; write ``--csv`` and ``--export``.

    Parameters
    ----------
    given
        The parsed options of :func:`add_sweep_options`.
    model
        What MODEL stands for.
    defaults
        Properties of devices, for instance those that set an emulated device's base apart.
    """
    from hetero_lab.placement.priorities import Priorities

    commands.check_targets(files=[given.csv, given.html], directories=[given.export, given.store])
    loaded = hl.load(model, shapes=options.shapes(given.shape) or None)
    first = Priorities.parse(given.devices)
    orders = hl.priority_orders(first.devices) if given.orders == "all" else [first]
    automatic = hl.Affinity.automatic(loaded, first.devices)
    placements: list[PlacementLike] = [
        hl.Placement(hl.Affinity.automatic(loaded, order.devices), str(order), defaults or {})
        for order in orders
    ]
    for text in given.fix:
        fixed = automatic.fix(patterns=options.fixes([text]))
        placements.append(hl.Placement(fixed, f"{first} with {text}", defaults or {}))
    sweep = commands.until_interrupted(
        hl.sweep,
        loaded,
        placements,
        grid=_grid(given.grid),
        executor=[name.strip() for name in given.executor.split(",")],
        requests=_requests(given.requests),
        model_cache=[False, True] if given.model_cache else [False],
        precision=given.precision,
        budget_s=None if given.turns else given.budget,
        turns=given.turns,
        sustained_s=given.sustained,
        inputs=given.input,
        counters=not given.no_counters,
        reference=not given.no_reference,
        store=given.store,
        cache_dir=given.cache_dir,
        isolate=given.isolate,
        progress=not given.quiet,
    )
    if given.csv is not None:
        sweep.to_csv(given.csv)
    if given.export is not None:
        sweep.export(given.export)
    commands.write_page(given.html, sweep)
    return sweep


def run_fixes(
    given: argparse.Namespace,
    model: Source,
    lines: Sequence[str],
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
) -> Sweep:
    """Measure an automatic placement against the same with the fixes of a cell's lines.

    A line is ``pattern = DEVICE``; empty lines and those that begin with ``#`` say nothing.
    """
    from hetero_lab.backend.properties import merged_properties
    from hetero_lab.placement.priorities import Priorities

    fixes = [
        _fix_line(line) for line in lines if line.strip() and not line.lstrip().startswith("#")
    ]
    if not fixes:
        raise ArgumentError("The cell has no fix. Write one a line: ^block3/ = CPU.")
    commands.check_targets(files=[given.csv, given.html], directories=[given.export])
    loaded = hl.load(model, shapes=options.shapes(given.shape) or None)
    if given.device is None:
        raise ArgumentError("Name the devices: -d HETERO:GPU,CPU.")
    priorities = Priorities.parse(given.device)
    own = merged_properties(defaults or {}, options.properties(given.property))
    automatic = hl.Affinity.automatic(loaded, priorities.devices)
    fixed = automatic.fix(patterns=options.fixes(fixes))
    sweep = commands.until_interrupted(
        hl.sweep,
        loaded,
        [hl.Placement(automatic, str(priorities), own), hl.Placement(fixed, "with the fixes", own)],
        executor=given.executor,
        requests=[given.requests],
        budget_s=given.budget or 30.0,
        inputs=given.input,
        counters=not given.no_counters,
        reference=not given.no_reference,
        progress=not given.quiet,
    )
    if given.csv is not None:
        sweep.to_csv(given.csv)
    if given.export is not None:
        sweep.export(given.export)
    commands.write_page(given.html, sweep)
    return sweep


def _fix_line(line: str) -> str:
    pattern, equals, device = line.rpartition("=")
    if not equals or not pattern.strip() or not device.strip():
        raise ArgumentError(f"{shorten(line.strip())} is no fix. Write: pattern = DEVICE.")
    return f"{pattern.strip()}={device.strip()}"


def _grid(texts: Sequence[str]) -> dict[str, list[options.Value]]:
    grid: dict[str, list[options.Value]] = {}
    for text in texts:
        dimension, equals, values = text.partition("=")
        if not equals or not values:
            raise ArgumentError(
                f"--grid {shorten(text)} is not of the form DEVICE.KEY=VALUE1,VALUE2."
            )
        grid[dimension] = [options.read_value(value) for value in values.split(",")]
    return grid


def _requests(text: str) -> list[int]:
    numbers = text.split(",")
    if not all(number.strip().isdecimal() for number in numbers):
        raise ArgumentError(f"--requests {shorten(text)} is not of the form 1,4.")
    return [int(number) for number in numbers]
