"""``hetero-lab optimize``, ``advise`` and ``find-wrong``: call the library, write the files."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import hetero_lab as hl
from hetero_lab.cli import commands, options
from hetero_lab.cli.plan import (
    check_affinity_target,
    device_properties,
    memory_limit,
    pairs,
    write_affinity,
)
from hetero_lab.errors import ArgumentError, names_at_hand, shorten

if TYPE_CHECKING:
    from hetero_lab.experiments.faults.wrong import Wrong
    from hetero_lab.experiments.search.advice import Advice
    from hetero_lab.experiments.search.optimize import Optimized
    from hetero_lab.experiments.search.pipeline import PipelineAdvice


def add_optimize_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``hetero-lab optimize``."""
    add = parser.add_argument
    options.add_shared(parser, "model", "devices")
    add(
        "-b",
        "--budget",
        type=options.seconds,
        default=120.0,
        metavar="SECONDS",
        help="most time for the whole search (%(default)s)",
    )
    add("--affinity-out", metavar="FILE", help="write the best affinity, .json or .csv")
    add("--csv", metavar="FILE", help="write the summary, one row a placement")
    add("--table", action="store_true", help="show every row, and what was tried on the way")
    options.add_shared(
        parser,
        "shape",
        "input",
        "objective",
        "memory-limit",
        "pin",
        "costs",
        "property",
        "isolate",
        "html",
        "quiet",
    )
    parser.set_defaults(isolate=True)


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
        memory_limit=memory_limit(given.memory_limit),
        pin=pairs(given.pin, "--pin", "'^head_=CPU'") or None,
        costs=costs,
        inputs=given.input,
        isolate=given.isolate,
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


def add_advise_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``hetero-lab advise``."""
    add = parser.add_argument
    add(
        "model",
        metavar="MODEL",
        nargs="+",
        help="a sample's name or the path of a model file; several that run at the same time are "
        "given as det=det.onnx rec=rec.onnx",
    )
    add("-d", "--devices", metavar="GPU,CPU", help="devices (all that are here)")
    add("--data", metavar="NAME", help="a labelled data set to judge accuracy on: digits")
    add(
        "--max-drop",
        type=float,
        default=0.01,
        metavar="SHARE",
        help="right answers that may be lost to f32 (%(default)s)",
    )
    add("--requests", type=int, default=1, metavar="N", help="requests in flight (%(default)s)")
    add(
        "-b",
        "--budget",
        type=options.seconds,
        default=300.0,
        metavar="SECONDS",
        help="most time for the measurements (%(default)s)",
    )
    add("--store", metavar="DIR", help="keep measurements there; the same command goes on")
    add("--deploy", metavar="DIR", help="write what is advised, with its contract")
    add("--csv", metavar="FILE", help="write the summary, one row a candidate")
    options.add_shared(
        parser,
        "shape",
        "input",
        "objective",
        "memory-limit",
        "costs",
        "property",
        "isolate",
        "html",
        "quiet",
    )
    parser.set_defaults(isolate=True)


def run_advise(
    given: argparse.Namespace, defaults: Mapping[str, Mapping[str, Any]]
) -> Advice | PipelineAdvice:
    """Advise as the options say; write ``--deploy``, ``--csv`` and ``--html``."""
    from hetero_lab.backend.core import shared_core
    from hetero_lab.experiments.search.candidates import order_of
    from hetero_lab.tables import write_csv

    commands.check_targets(files=[given.csv, given.html], directories=[given.deploy, given.store])
    own = options.properties(given.property)
    names = order_of(given.devices, shared_core())
    result = commands.until_interrupted(
        hl.advise,
        _models(given),
        names,
        data=None if given.data is None else hl.dataset(given.data),
        max_drop=given.max_drop,
        objective=given.objective,
        requests=given.requests,
        budget_s=given.budget,
        device_properties=device_properties(defaults, own, names) or None,
        memory_limit=memory_limit(given.memory_limit),
        costs=None if given.costs is None else hl.CostModel.from_json(given.costs),
        inputs=given.input,
        store=given.store,
        isolate=given.isolate,
        progress=not given.quiet,
    )
    if given.csv is not None:
        write_csv(given.csv, result.summary)
    commands.write_page(given.html, result)
    if given.deploy is not None:
        result.deploy(given.deploy)
    return result


def deployed(result: Advice | PipelineAdvice, directory: str) -> list[str]:
    """Return the directories that ``deploy`` wrote: one, or one a model of a pipeline."""
    advices = getattr(result, "advices", None)
    return [directory] if advices is None else [os.path.join(directory, name) for name in advices]


def _models(given: argparse.Namespace) -> Any:
    """Return the model, or those of a pipeline by name."""
    from hetero_lab.model.read import prepare

    if len(given.model) == 1 and ("=" not in given.model[0] or os.path.exists(given.model[0])):
        return prepare(given.model[0], options.shapes(given.shape))
    sources = pairs(given.model, "MODEL", "det=det.onnx", name_first=True)
    shapes: dict[str, list[str]] = {name: [] for name in sources}
    for text in given.shape:
        name, dot, rest = text.partition(".")
        if not dot or name not in sources:
            example = f"--shape {next(iter(sources))}.x=1,3,224,224"
            raise ArgumentError(
                f"--shape {shorten(text)} names no model of the pipeline. Models: "
                f"{names_at_hand(sources)}; for instance {example}."
            )
        shapes[name].append(rest)
    return {name: prepare(path, options.shapes(shapes[name])) for name, path in sources.items()}


def add_wrong_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``hetero-lab find-wrong``."""
    add = parser.add_argument
    options.add_shared(parser, "model", "device")
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
    add("--costs", metavar="FILE", help="price the ways around it with these costs, of plan")
    add("--export", metavar="DIR", help="write what shows the fault with openvino and numpy alone")
    options.add_shared(parser, "shape", "isolate", "property", "affinity", "fix", "html", "quiet")


def run_wrong(given: argparse.Namespace, defaults: Mapping[str, Mapping[str, Any]]) -> Wrong:
    """Search as the options say, and write what was found."""
    from hetero_lab.model.read import prepare

    commands.check_targets(files=[given.html], directories=[given.export])
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
    commands.write_page(given.html, result)
    return result
