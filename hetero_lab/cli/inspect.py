"""Commands that ask about a model or a placement, or freeze, verify and classify with it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import hetero_lab as hl
from hetero_lab.cli import commands, options
from hetero_lab.errors import ArgumentError, shorten
from hetero_lab.lint.causes import summary_lines
from hetero_lab.tables import number, write_csv
from hetero_lab.terminal import columns, count_of, one_line

if TYPE_CHECKING:
    import pandas as pd

    from hetero_lab.experiments.accuracy.classify import Classification
    from hetero_lab.experiments.deployment.releases import Across
    from hetero_lab.experiments.deployment.verify import Verification
    from hetero_lab.placement.placement import PlacementLike
    from hetero_lab.planning.cost_model import CostModel


_MOST_TYPES = 12


def add_support_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``hetero-lab support``."""
    add = parser.add_argument
    options.add_shared(parser, "model")
    add("-d", "--devices", metavar="GPU,CPU", help="devices (all that are here)")
    add("--table", action="store_true", help="show every op")
    add("--csv", metavar="FILE", help="write one row an op")
    options.add_shared(parser, "shape", "html")


def add_lint_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``hetero-lab lint``."""
    add = parser.add_argument
    options.add_shared(parser, "model", "device")
    add("--costs", metavar="FILE", help="price the findings with these costs, of hetero-lab plan")
    add("--table", action="store_true", help="show every finding with its remedy")
    add("--csv", metavar="FILE", help="write one row a finding")
    options.add_shared(parser, "shape", "property", "affinity", "fix", "html")


def add_explain_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``hetero-lab explain``."""
    add = parser.add_argument
    options.add_shared(parser, "model")
    placements = "HETERO:GPU,CPU, one device, or a file with an affinity"
    add("before", metavar="BEFORE", help=placements)
    add("after", metavar="AFTER", help=placements)
    add("--costs", metavar="FILE", help="divide the predicted difference into parts")
    options.add_shared(parser, "shape", "html")


def add_freeze_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``hetero-lab freeze``."""
    add = parser.add_argument
    options.add_shared(parser, "model", "device")
    add("directory", metavar="DIR", help="where to write; made if it is missing")
    options.add_shared(parser, "shape", "property", "affinity", "fix")


def support_text(given: argparse.Namespace) -> str:
    """Say which op types each device cannot run; write ``--csv``."""
    from hetero_lab.backend.core import shared_core
    from hetero_lab.backend.devices import device_names

    commands.check_targets(files=[given.csv, given.html], directories=[])
    core = shared_core()
    chosen = (given.devices or "").removeprefix("HETERO:")
    names = chosen.split(",") if chosen else device_names(core)
    model = hl.load(given.model, shapes=options.shapes(given.shape) or None)
    table = hl.support(model, names)
    if given.csv is not None:
        write_csv(given.csv, table)
    lines = []
    for device in names:
        refused = table.loc[~table[device], "op_type"].value_counts()
        n_refused = int(refused.sum())
        types = ", ".join(f"{n} {t}" for t, n in refused.head(_MOST_TYPES).items())
        more = f" and {len(refused) - _MOST_TYPES} more types" * (len(refused) > _MOST_TYPES)
        sentences = f"all {count_of(len(table), 'op')}" if not n_refused else ""
        lines.append(
            f"{device} can run {sentences}."
            if sentences
            else f"{device} can run {len(table) - n_refused} of {count_of(len(table), 'op')}; "
            f"not: {types}{more}."
        )
    commands.write_page(given.html, table, lines)
    if given.table:
        marks = {True: "yes", False: "no"}
        rows = [["OP", "TYPE", *names]]
        for row in table.to_dict("records"):
            rows.append([one_line(row["op"], 60), row["op_type"], *(marks[row[d]] for d in names)])
        lines += ["", columns(rows)]
    return "\n".join(lines)


def lint_text(given: argparse.Namespace, defaults: Mapping[str, Mapping[str, Any]]) -> str:
    """Say what is awkward about a placement, by cause; write ``--csv``."""
    from hetero_lab.model.read import prepare

    commands.check_targets(files=[given.csv, given.html], directories=[])
    prepared = prepare(given.model, options.shapes(given.shape))
    costs = _costs(given.costs)
    placement = commands.placement_of(given, prepared, defaults=defaults)
    findings = hl.lint(prepared, placement, costs)
    if given.csv is not None:
        write_csv(given.csv, findings.assign(ops=["\n".join(ops) for ops in findings["ops"]]))
    lines = summary_lines(findings, most=10)
    commands.write_page(given.html, findings, lines)
    if given.table and len(findings):
        lines += ["", _finding_rows(findings)]
    return "\n".join(lines)


def explain_text(given: argparse.Namespace) -> str:
    """Say what differs between two placements; write ``--html``."""
    from hetero_lab.model.read import prepare

    commands.check_targets(files=[given.html], directories=[])
    prepared = prepare(given.model, options.shapes(given.shape))
    difference = hl.explain(
        prepared, _placement(given.before), _placement(given.after), _costs(given.costs)
    )
    commands.write_page(given.html, difference)
    return str(difference)


def freeze_text(given: argparse.Namespace, defaults: Mapping[str, Mapping[str, Any]]) -> str:
    """Write a frozen placement; say how to run it."""
    from hetero_lab.model.read import prepare

    commands.check_targets(files=[], directories=[given.directory])
    prepared = prepare(given.model, options.shapes(given.shape))
    placement = commands.placement_of(given, prepared, defaults=defaults)
    target = hl.freeze(prepared, placement, given.directory)
    return (
        f"{target} holds the model, its placement, an example input and run.py.\n"
        f"Next: {commands.command_line('python', str(target / 'run.py'))}, with openvino and "
        "numpy alone"
    )


def _finding_rows(findings: pd.DataFrame) -> str:
    priced = "cost_us" in findings
    rows = [["SEVERITY", "RULE", *(["SAVES µs"] if priced else []), "FINDING AND REMEDY"]]
    for row in findings.to_dict("records"):
        saved = [number(row["cost_us"])] if priced else []
        rows.append([row["severity"], row["rule"], *saved, f"{row['finding']} {row['advice']}"])
    return columns(rows)


def _placement(text: str) -> PlacementLike:
    return commands.read_affinity(text) if text.lower().endswith((".json", ".csv")) else text


def _costs(path: str | None) -> CostModel | None:
    return None if path is None else hl.CostModel.from_json(path)


def add_verify_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``hetero-lab verify``."""
    add = parser.add_argument
    add("directory", metavar="DIRECTORY", help="what hetero_lab.freeze or advice.deploy wrote")
    add(
        "--across",
        metavar="openvino==2026.2,2026.3",
        help="verify with each of these releases, in environments that pip makes and keeps, and "
        "name the one that changed it",
    )
    add(
        "--slower",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="how much worse the latency may be, relative to the reference (%(default)s)",
    )
    add("--data", metavar="NAME", help="a labelled data set to check the accuracy on: digits")
    options.add_shared(parser, "html", "quiet")


def run_verify(given: argparse.Namespace) -> Verification | Across:
    """Verify as the options say."""
    commands.check_targets(files=[given.html], directories=[])
    if given.across is None:
        data = None if given.data is None else hl.dataset(given.data)
        result = hl.verify(
            given.directory, slower=given.slower, data=data, progress=not given.quiet
        )
    elif given.data is not None:
        raise ArgumentError("--data goes with the OpenVINO that is here, not with --across.")
    else:
        releases = [part.strip() for part in given.across.removeprefix("openvino==").split(",")]
        result = hl.verify_across(
            given.directory, releases, slower=given.slower, progress=not given.quiet
        )
    commands.write_page(given.html, result)
    return result


def add_classify_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``hetero-lab classify``."""
    add = parser.add_argument
    options.add_shared(parser, "model", "device")
    add("image", metavar="IMAGE", help="a PNG, JPEG, BMP, GIF, WebP, TIFF or PPM file")
    add("-k", "--top", type=int, default=5, metavar="N", help="best classes shown (%(default)s)")
    add("-pc", "--counters", action="store_true", help="show the counters of each subgraph")
    add(
        "--mean",
        metavar="M[,M,M]",
        help="the input is (pixel - mean) / scale, pixels being 0 to 255; one number or three in "
        "the model's order of channels (a sample's own, else 0)",
    )
    add("--scale", metavar="S[,S,S]", help="see --mean (a sample's own, else 1)")
    add("--bgr", action="store_true", default=None, help="the model's first channel is blue")
    add("--csv", metavar="FILE", help="write the classes as CSV")
    options.add_shared(parser, "shape", "property", "affinity", "fix", "html", "quiet")


def run_classify(
    given: argparse.Namespace, defaults: Mapping[str, Mapping[str, Any]] | None = None
) -> Classification:
    """Classify as the options say, after which the classes are written to ``--csv``."""
    from hetero_lab.model.read import prepare

    commands.check_targets(files=[given.csv, given.html], directories=[])
    prepared = prepare(given.model, options.shapes(given.shape))
    result = hl.classify(
        prepared,
        given.image,
        commands.placement_of(given, prepared, defaults=defaults),
        top=given.top,
        sample=given.model,
        mean=_numbers(given.mean, "--mean"),
        scale=_numbers(given.scale, "--scale"),
        bgr=given.bgr,
        counters=given.counters,
    )
    if given.csv is not None:
        result.to_csv(given.csv)
    commands.write_page(given.html, result)
    return result


def _numbers(text: str | None, option: str) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ArgumentError(
            f"{option} {shorten(text)} is not a number or three: {option} 123.7,116.3,103.5."
        ) from error
