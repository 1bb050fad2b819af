"""The output of the commands: the answer first, then the next command."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hetero_lab as hl
from hetero_lab.cli.options import OPTIONS
from hetero_lab.errors import DeviceError
from hetero_lab.tables import SCHEMA_VERSION, records, text_table, time_text
from hetero_lab.terminal import columns, command_line, count_of, first_of

if TYPE_CHECKING:
    import pandas as pd

_MOST_TYPES = 12  # op types with their counts, on a line or two of a terminal
_LEAD = "Next:       "
# Options that the next command gets again, if it has them.
_REPEATED = [
    "--shape", "--input", "--property", "--objective", "--memory-limit", "--pin", "--emulate",
]  # fmt: skip
_BUDGET = ("-b", "--budget")
MEASURED = "measured now"
_OF_MACHINE = (
    "model", "way", "alone_per_s", "rate_per_s", "share", "median_us", "p99_us", "missed",
    "own_best_share", "own_best_missed", "auto_share", "auto_missed",
)  # fmt: skip
_WRITTEN = ("affinity_out", "csv", "deploy", "directory", "export", "html", "junit", "store")


def as_json(name: str, exit_code: int, **content: Any) -> str:
    """Return what a command says as one JSON object, whose frame is the same for all commands."""
    frame = {
        "kind": f"hetero-lab {name}",
        "schema_version": SCHEMA_VERSION,
        "hetero_lab_version": hl.__version__,
        "exit_code": exit_code,
    }
    return json.dumps(frame | content, indent=1, allow_nan=False)


def content_of(args: Namespace, name: str, result: Any, text: str) -> dict[str, Any]:
    """Return a result as JSON holds it, with the commands to go on with and the files written."""
    if hasattr(result, "columns"):
        content = {"tables": {name: records(result)}}
    else:
        content = result.to_dict() if hasattr(result, "to_dict") else {"verdict": text}
    return {
        **content,
        "next": re.findall(r"^Next: +(.*)$", text, re.MULTILINE),
        "written": {name: path for name in _WRITTEN if (path := vars(args).get(name))},
    }


def devices_text(_: Namespace, devices: pd.DataFrame) -> str:
    """List the devices, and why others are missing."""
    names = ["device", "available", "full_name", "emulated_on", "capabilities", "problem"]
    return text_table(devices[names])


def samples_text(_: Namespace, samples: pd.DataFrame) -> str:
    """List the sample models."""
    return text_table(samples[["name", "n_bytes", "bundled", "cached", "package", "task"]])


def profile_text(args: Namespace, profile: hl.types.Profile) -> str:
    """Report a profile; after its first block, the next command."""
    first, *blocks = profile.report(tables=args.table, counters=args.show_counters).split("\n\n")
    top = "\n".join([first, *after_profile(args, profile)])
    if args.table and profile.counters:
        blocks.append(str(hl.hotspots(profile)))
    return "\n\n".join([top, *blocks]).rstrip()


def after_profile(args: Namespace, profile: hl.types.Profile) -> list[str]:
    """Return the next command, if any."""
    from hetero_lab.placement.priorities import device_list

    if profile.generation is not None:  # neither command below takes a language model
        return []
    if differs(profile) and args.device is not None:
        return [again(args, "find-wrong", "-d", args.device)]
    if "Moving " in profile.few_subgraphs and args.affinity is None:  # a change leaves fewer
        return [again(args, "simplify", *_placed(args))]
    if profile.partition.n_subgraphs <= 1:
        return []
    priorities = device_list(args.device) if args.device else ()
    devices = sorted(profile.affinity.devices, key="CPU".__eq__)  # others fall back to it
    return [again(args, "optimize", "-d", ",".join(dict.fromkeys([*priorities, *devices])))]


def _placed(args: Namespace) -> list[str]:
    """Return the options that name the placement, for another command on it."""
    names = {"-d": "device", "--affinity": "affinity", "--fix": "fix", "--property": "property"}
    return [word for flag, name in names.items() for word in _option_words(args, flag, name)]


def _option_words(args: Namespace, flag: str, name: str) -> Iterator[str]:
    """Yield an option as often as it was given, with its values."""
    value = vars(args).get(name) or []
    for text in value if isinstance(value, list) else [value]:
        yield from (flag, str(text))


def differs(profile: hl.types.Profile) -> bool:
    """Return whether an output is further from the reference than rounding explains."""
    return any(agreement.is_wrong for agreement in profile.agreement)


def needs_longer(sweep: hl.types.Sweep) -> bool:
    """Return whether the budget ended before a placement was measured."""
    measured = any(row.profile is not None for row in sweep.rows)
    return not (measured or sweep.interrupted) and any(row.was_left_out for row in sweep.rows)


def sweep_text(args: Namespace, sweep: hl.types.Sweep) -> str:
    """Report the ranking, or every row."""
    text = sweep.report().rstrip("\n") if args.table else str(sweep)
    if needs_longer(sweep):
        begun = args.budget or 0.0
        longer = math.ceil(max(2.0 * begun, *(1.5 * row.needs_s for row in sweep.rows)))
        words = itertools.pairwise(["", *args.words])
        options = [w for old, w in words if old not in _BUDGET and not w.startswith(_BUDGET)]
        return (
            f"Nothing was measured within the {begun:g} s of --budget.\n{text}\n"
            f"{_next('hetero-lab', 'sweep', *options, '-b', str(longer))}"
        )
    if "," not in args.devices:
        return text
    return f"{text}\n{again(args, 'optimize', '-d', args.devices)}"


def optimize_text(args: Namespace, best: hl.types.Optimized) -> str:
    """Report the proven best placement, and how to freeze it."""
    lines = [str(best)]
    if args.table:
        lines += ["", best.sweep.report(), best.history.to_string(index=False)]
    next_args = Namespace(**{**vars(args), **_needed(args, best.placement.devices)})
    return "\n".join([*lines, _with_affinity(next_args, "freeze", unused("deploy"))])


def _needed(args: Namespace, devices: Sequence[str]) -> dict[str, list[str]]:
    """Return what was emulated and set of these devices, and of HETERO between them."""
    owners = [*devices, *["HETERO"] * (len(devices) > 1)]
    return {
        name: [
            text
            for text in vars(args).get(name) or []
            if any(text == owner or text.startswith((f"{owner}:", f"{owner}.")) for owner in owners)
        ]
        for name in ("emulate", "property")
    }


def _with_affinity(args: Namespace, command: str, *more: str) -> str:
    """Return the next command with the affinity that was found, or how to keep that."""
    if args.affinity_out is None:  # nor can the cache be written
        return "Keep it with --affinity-out FILE."
    return again(args, command, *more, "--affinity", args.affinity_out)


def advise_text(args: Namespace, advice: Any) -> str:
    """Report the advice, and how to deploy or to verify it."""
    text = str(advice).rstrip("\n")
    return f"{text}\n{_deploy_or_verify(args, 'advise')}"


def _deploy_or_verify(args: Namespace, command: str) -> str:
    if args.deploy is not None:
        return _next("hetero-lab", "verify", args.deploy)
    return _next("hetero-lab", command, *args.words, "--deploy", unused("deploy"))


def machine_text(args: Namespace, plan: hl.types.MachinePlan) -> str:
    """Report the plan of a machine and its models, and how to deploy or to verify it."""
    lines = [str(plan).rstrip("\n")]
    if plan.chosen.seen:
        lines.append(_deploy_or_verify(args, "machine"))
    names = [name for name in _OF_MACHINE if plan.summary.get(name) is not None]
    return "\n".join([*lines, "", text_table(plan.summary[names].dropna(axis=1, how="all"))])


def freeze_text(args: Namespace, target: Path) -> str:
    """Say how to run a frozen placement, and how to prove it again."""
    note = "" if args.input else " Its inputs were generated; give your own with --input."
    return (
        f"{target} holds the model, its placement, an example input and run.py, which needs "
        f"openvino and numpy alone.{note}\n"
        f"{_next('python', str(target / 'run.py'))}\n{_next('hetero-lab', 'verify', str(target))}"
    )


def support_text(args: Namespace, table: pd.DataFrame) -> str:
    """Report the op types that each device cannot run, or list every op."""
    lines, ops = [], count_of(len(table), "op")
    names = list(table.columns.drop(["op", "op_type"]))

    def types(mask: pd.Series) -> str:
        counts = table.loc[mask, "op_type"].value_counts()
        return first_of([f"{n} {t}" for t, n in counts.items()], _MOST_TYPES, "types")

    for device in names:
        able = table[device]
        some = f"{able.sum()} of {ops}; not: {types(~able)}"
        lines.append(f"{device} can run {f'all {ops}' if able.all() else some}.")
    if table[names].all(axis=None):
        lines.append(f"Op types: {types(table[names[0]])}.")
    if args.table:
        lines += ["", text_table(table)]
    return "\n".join(lines)


def simplify_text(args: Namespace, result: Any) -> str:
    """Report the cause and the best change, or every change."""
    lines = [str(result)]
    if args.table:
        lines += ["", text_table(result.summary)]
    if result.best is not None:
        lines.append(_with_affinity(args, "profile"))
    return "\n".join(lines)


def lint_text(args: Namespace, findings: pd.DataFrame) -> str:
    """Report the findings by cause, or list every finding."""
    from hetero_lab.lint.context import SUBGRAPHS
    from hetero_lab.lint.findings import summary_lines  # not above: help loads no runtime

    lines = summary_lines(findings, 10)
    if args.table and len(findings):
        names = [n for n in ("severity", "rule", "cost_us", "finding") if n in findings]
        frame = findings.assign(finding=findings["finding"] + " " + findings["advice"])
        lines += ["", text_table(frame.loc[:, names])]
    if len(findings) and findings["rule"].iloc[0] == SUBGRAPHS and findings["remedy"].iloc[0]:
        lines.append(again(args, "simplify", *_placed(args)))
    return "\n".join(lines)


def plan_text(args: Namespace, plan: hl.types.Plan) -> str:
    """Report the plan and how to measure it."""
    file = args.affinity_out
    next_ = [] if file is None else [again(args, "apply", file, lead="Next:  ")]
    return "\n".join([*plan_lines(args, plan), *next_])


def plan_lines(args: Namespace, plan: hl.types.Plan) -> Iterator[str]:
    """Report the plan, its costs, the baselines, the findings and the files."""
    costs, is_measured = args.known_costs, args.source == MEASURED
    counts = ", ".join(f"{count_of(n, 'op')} on {d}" for d, n in plan.affinity.counts().items())
    yield f"Plan:  {counts}; {count_of(plan.n_subgraphs, 'subgraph')}"
    proof = "proven best" if plan.gap == 0 else f"at most {plan.relative_gap:.1%} from the best"
    low, high = plan.interval_us
    if high < math.inf:
        yield f"       predicted (90 %): {time_text(low)} to {time_text(high)}"
    yield f"       {proof} for {plan.objective} by these costs ({plan.method})"
    yield f"Costs: {args.source}"
    yield f"       {costs.origin[0].lower()}{costs.origin[1:].removesuffix('.')}"
    if costs.validation_rows:
        n = count_of(len(costs.validation_rows), "placement")
        yield f"       off by {costs.mape:.1%} on average on {n} not fitted to"
    else:
        yield "       not validated: give more time with --budget"
    yield _baselines(plan, costs)
    alone = {baseline.label for baseline in plan.baselines}
    yield from (f"{d} alone cannot run every op." for d in costs.devices if d not in alone)
    yield from _findings(args, plan)
    spots = hl.hotspots(costs, placement=plan.affinity)
    if is_measured:  # which warned of the notes of the costs
        spots = replace(spots, notes=tuple(n for n in spots.notes if n not in costs.notes))
    yield str(spots)
    files = (args.costs if is_measured else None, args.affinity_out, args.html)
    yield from (f"Written: {path}" for path in files if path)


def _baselines(plan: hl.types.Plan, costs: hl.CostModel) -> str:
    from hetero_lab.planning.planner import GREEDY

    rows = [["PLACEMENT", "PREDICTED TIME", "AGAINST THE PLAN"]]
    us, hetero = plan.predicted_us, f"HETERO:{','.join(costs.devices)}"
    for row in plan.to_frame().to_dict("records"):
        ratio = f"{row['predicted_us'] / us - 1.0:+.1%}" if us and row["label"] != "plan" else ""
        if ratio and 0.0 < row["margin_us"] < math.inf:
            same = ", too close to be told apart" if row["label"] in plan.undecided else ""
            ratio += f" ± {row['margin_us'] / us:.1%}{same}"
        name = hetero if row["label"] == GREEDY else row["label"]
        rows.append([name, time_text(row["predicted_us"]), ratio])
    return columns(rows)


def _findings(args: Namespace, plan: hl.types.Plan) -> Iterator[str]:
    from hetero_lab.lint.findings import summary_lines

    try:
        findings = hl.lint(args.prepared, plan.affinity, args.known_costs)
    except DeviceError as error:  # planned for devices of another machine
        yield f"Lint:  not checked. {error}"
        return
    first, *rest = summary_lines(findings, 2) if len(findings) else ["nothing found"]
    yield f"Lint:  {first}"
    yield from (f"       {line}" for line in rest)


def unused(name: str) -> str:
    """Return the name for a directory, with a number if there is one already."""
    names = itertools.chain([name], (f"{name}-{n}" for n in itertools.count(2)))
    return next(free for free in names if not os.path.lexists(free))


def _next(*words: str, lead: str = _LEAD) -> str:
    return f"{lead}{command_line(*words)}"


def again(args: Namespace, command: str, *more: str, lead: str = _LEAD) -> str:
    """Return another command on the model of this one, with those options that it has as well."""
    flags = {OPTIONS[name].flags.split()[-1] for name in args.options_of[command].split()}
    repeated: list[str] = []
    for flag in _REPEATED:
        if flag in flags and flag not in more:
            repeated += _option_words(args, flag, flag[2:].replace("-", "_"))
    return _next("hetero-lab", command, args.model, *more, *repeated, lead=lead)
