"""The output of the commands: the answer first, then the next command."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hetero_lab as hl
from hetero_lab.cli.options import OPTIONS
from hetero_lab.tables import SCHEMA_VERSION, records, text_table, time_text
from hetero_lab.terminal import columns, command_line, count_of, first_of

if TYPE_CHECKING:
    import pandas as pd

_MOST_TYPES = 12
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


@dataclass(frozen=True)
class Planned:
    """A plan, its costs and findings, and the files that were written."""

    plan: hl.types.Plan
    costs: hl.CostModel
    source: str
    findings: pd.DataFrame | None
    unchecked: str
    written: tuple[str, ...]

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the search for the plan."""
        return self.plan.interrupted


def as_json(name: str, exit_code: int, **content: Any) -> str:
    """Return what a command says as one JSON object, whose frame is the same for all commands."""
    frame = {
        "kind": f"hetero-lab {name}",
        "schema_version": SCHEMA_VERSION,
        "hetero_lab_version": hl.__version__,
        "exit_code": exit_code,
    }
    return json.dumps(frame | content, indent=1, allow_nan=False)


def content_of(given: Namespace, name: str, result: Any, said: str) -> dict[str, Any]:
    """Return a result as JSON holds it, with the commands to go on with and the files written."""
    shown: Any = result.plan if isinstance(result, Planned) else result
    if hasattr(shown, "columns"):
        content = {"tables": {name: records(shown)}}
    else:
        content = shown.to_dict() if hasattr(shown, "to_dict") else {"verdict": said}
    return {
        **content,
        "next": re.findall(r"^Next: +(.*)$", said, re.MULTILINE),
        "written": {name: path for name in _WRITTEN if (path := vars(given).get(name))},
    }


def devices_text(_: Namespace, devices: pd.DataFrame) -> str:
    """List the devices, and why others are missing."""
    names = ["device", "available", "full_name", "emulated_on", "capabilities", "problem"]
    return text_table(devices[names])


def samples_text(_: Namespace, samples: pd.DataFrame) -> str:
    """List the sample models."""
    return text_table(samples[["name", "n_bytes", "bundled", "cached", "package", "task"]])


def profile_text(given: Namespace, profile: hl.types.Profile) -> str:
    """Report a profile; after its first block, the next command."""
    first, *blocks = profile.report(tables=given.table, counters=given.show_counters).split("\n\n")
    top = "\n".join([first, *after_profile(given, profile)])
    if given.table and profile.counters:
        blocks.append(str(hl.hotspots(profile)))
    return "\n\n".join([top, *blocks]).rstrip()


def after_profile(given: Namespace, profile: hl.types.Profile) -> list[str]:
    """Return the next command, if any."""
    from hetero_lab.placement.priorities import device_list

    if profile.generation is not None:  # neither command below takes a language model
        return []
    if differs(profile) and given.device is not None:
        return [again(given, "find-wrong", "-d", given.device)]
    if "Moving " in profile.few_subgraphs and given.affinity is None:  # a change leaves fewer
        return [again(given, "simplify", *_placed(given))]
    if profile.partition.n_subgraphs <= 1:
        return []
    asked = device_list(given.device) if given.device else ()
    used = sorted(profile.affinity.devices, key="CPU".__eq__)  # others fall back to it
    return [again(given, "optimize", "-d", ",".join(dict.fromkeys([*asked, *used])))]


def _placed(given: Namespace) -> list[str]:
    """Return the options that name the placement, for another command on it."""
    names = {"-d": "device", "--affinity": "affinity", "--fix": "fix", "--property": "property"}
    return [word for flag, name in names.items() for word in _given_words(given, flag, name)]


def _given_words(given: Namespace, flag: str, name: str) -> Iterator[str]:
    """Yield an option as often as it was given, with its values."""
    value = vars(given).get(name) or []
    for text in value if isinstance(value, list) else [value]:
        yield from (flag, str(text))


def differs(profile: hl.types.Profile) -> bool:
    """Return whether an output is further from the reference than rounding explains."""
    return any(agreement.is_wrong for agreement in profile.agreement)


def needs_longer(sweep: hl.types.Sweep) -> bool:
    """Return whether the budget ended before a placement was measured."""
    measured = any(row.profile is not None for row in sweep.rows)
    return not (measured or sweep.interrupted) and any(row.was_left_out for row in sweep.rows)


def sweep_text(given: Namespace, sweep: hl.types.Sweep) -> str:
    """Report the ranking, or every row."""
    text = sweep.report().rstrip("\n") if given.table else str(sweep)
    if needs_longer(sweep):
        begun = given.budget or 0.0
        longer = math.ceil(max(2.0 * begun, *(1.5 * row.needs_s for row in sweep.rows)))
        words = itertools.pairwise(["", *given.words])
        kept = [w for old, w in words if old not in _BUDGET and not w.startswith(_BUDGET)]
        return (
            f"Nothing was measured within the {begun:g} s of --budget.\n{text}\n"
            f"{_next('hetero-lab', 'sweep', *kept, '-b', str(longer))}"
        )
    if "," not in given.devices:
        return text
    return f"{text}\n{again(given, 'optimize', '-d', given.devices)}"


def optimize_text(given: Namespace, best: hl.types.Optimized) -> str:
    """Report the proven best placement, and how to freeze it."""
    lines = [str(best)]
    if given.table:
        lines += ["", best.sweep.report(), best.history.to_string(index=False)]
    needed = Namespace(**{**vars(given), **_needed(given, best.placement.devices)})
    return "\n".join([*lines, _with_affinity(needed, "freeze", unused("deploy"))])


def _needed(given: Namespace, devices: Sequence[str]) -> dict[str, list[str]]:
    """Return what was emulated and set of these devices, and of HETERO between them."""
    owners = [*devices, *["HETERO"] * (len(devices) > 1)]
    return {
        name: [
            text
            for text in vars(given).get(name) or []
            if any(text == owner or text.startswith((f"{owner}:", f"{owner}.")) for owner in owners)
        ]
        for name in ("emulate", "property")
    }


def _with_affinity(given: Namespace, command: str, *more: str) -> str:
    """Return the next command with the affinity that was found, or how to keep that."""
    if given.affinity_out is None:  # nor can the cache be written
        return "Keep it with --affinity-out FILE."
    return again(given, command, *more, "--affinity", given.affinity_out)


def advise_text(given: Namespace, advice: Any) -> str:
    """Report the advice, and how to deploy or to verify it."""
    said = str(advice).rstrip("\n")
    return f"{said}\n{_deploy_or_verify(given, 'advise')}"


def _deploy_or_verify(given: Namespace, command: str) -> str:
    if given.deploy is not None:
        return _next("hetero-lab", "verify", given.deploy)
    return _next("hetero-lab", command, *given.words, "--deploy", unused("deploy"))


def machine_text(given: Namespace, plan: hl.types.MachinePlan) -> str:
    """Report the plan of a machine and its models, and how to deploy or to verify it."""
    lines = [str(plan).rstrip("\n")]
    if plan.chosen.seen:
        lines.append(_deploy_or_verify(given, "machine"))
    shown = [name for name in _OF_MACHINE if plan.summary.get(name) is not None]
    return "\n".join([*lines, "", text_table(plan.summary[shown].dropna(axis=1, how="all"))])


def freeze_text(given: Namespace, target: Path) -> str:
    """Say how to run a frozen placement, and how to prove it again."""
    made = "" if given.input else " Its inputs were generated; give your own with --input."
    return (
        f"{target} holds the model, its placement, an example input and run.py, which needs "
        f"openvino and numpy alone.{made}\n"
        f"{_next('python', str(target / 'run.py'))}\n{_next('hetero-lab', 'verify', str(target))}"
    )


def support_text(given: Namespace, table: pd.DataFrame) -> str:
    """Report the op types that each device cannot run, or list every op."""
    lines, ops = [], count_of(len(table), "op")
    names = list(table.columns.drop(["op", "op_type"]))

    def types(chosen: pd.Series) -> str:
        counts = table.loc[chosen, "op_type"].value_counts()
        return first_of([f"{n} {t}" for t, n in counts.items()], _MOST_TYPES, "types")

    for device in names:
        able = table[device]
        some = f"{able.sum()} of {ops}; not: {types(~able)}"
        lines.append(f"{device} can run {f'all {ops}' if able.all() else some}.")
    if table[names].all(axis=None):
        lines.append(f"Op types: {types(table[names[0]])}.")
    if given.table:
        lines += ["", text_table(table)]
    return "\n".join(lines)


def simplify_text(given: Namespace, found: Any) -> str:
    """Report the cause and the best change, or every change."""
    lines = [str(found)]
    if given.table:
        lines += ["", text_table(found.summary)]
    if found.best is not None:
        lines.append(_with_affinity(given, "profile"))
    return "\n".join(lines)


def lint_text(given: Namespace, findings: pd.DataFrame) -> str:
    """Report the findings by cause, or list every finding."""
    from hetero_lab.lint.context import SUBGRAPHS
    from hetero_lab.lint.findings import summary_lines  # not above: help loads no runtime

    lines = summary_lines(findings, 10)
    if given.table and len(findings):
        names = [n for n in ("severity", "rule", "cost_us", "finding") if n in findings]
        said = findings.assign(finding=findings["finding"] + " " + findings["advice"])
        lines += ["", text_table(said.loc[:, names])]
    if len(findings) and findings["rule"].iloc[0] == SUBGRAPHS and findings["remedy"].iloc[0]:
        lines.append(again(given, "simplify", *_placed(given)))
    return "\n".join(lines)


def plan_text(given: Namespace, planned: Planned) -> str:
    """Report the plan and how to measure it."""
    file = given.affinity_out
    next_ = [] if file is None else [again(given, "apply", file, lead="Next:  ")]
    return "\n".join([*plan_lines(planned), *next_])


def plan_lines(planned: Planned) -> Iterator[str]:
    """Report the plan, its costs, the baselines, the findings and the files."""
    plan, costs = planned.plan, planned.costs
    counts = ", ".join(f"{count_of(n, 'op')} on {d}" for d, n in plan.affinity.counts().items())
    yield f"Plan:  {counts}; {count_of(plan.n_subgraphs, 'subgraph')}"
    proof = "proven best" if plan.gap == 0 else f"at most {plan.relative_gap:.1%} from the best"
    low, high = plan.interval_us
    if high < math.inf:
        yield f"       predicted (90 %): {time_text(low)} to {time_text(high)}"
    yield f"       {proof} for {plan.objective} by these costs ({plan.method})"
    yield f"Costs: {planned.source}"
    yield f"       {costs.origin[0].lower()}{costs.origin[1:].removesuffix('.')}"
    if costs.validation_rows:
        n = count_of(len(costs.validation_rows), "placement")
        yield f"       off by {costs.mape:.1%} on average on {n} not fitted to"
    else:
        yield "       not validated: give more time with --budget"
    yield _baselines(planned)
    alone = {baseline.label for baseline in plan.baselines}
    yield from (f"{d} alone cannot run every op." for d in costs.devices if d not in alone)
    yield from _findings(planned)
    spots = hl.hotspots(costs, placement=plan.affinity)
    if planned.source == MEASURED:  # which warned of the notes of the costs
        spots = replace(spots, notes=tuple(n for n in spots.notes if n not in costs.notes))
    yield str(spots)
    yield from (f"Written: {path}" for path in planned.written)


def _baselines(planned: Planned) -> str:
    from hetero_lab.planning.planner import GREEDY

    rows = [["PLACEMENT", "PREDICTED TIME", "AGAINST THE PLAN"]]
    us, own = planned.plan.predicted_us, f"HETERO:{','.join(planned.costs.devices)}"
    for row in planned.plan.to_frame().to_dict("records"):
        ratio = f"{row['predicted_us'] / us - 1.0:+.1%}" if us and row["label"] != "plan" else ""
        if ratio and 0.0 < row["margin_us"] < math.inf:
            same = ", too close to be told apart" * (row["label"] in planned.plan.undecided)
            ratio += f" ± {row['margin_us'] / us:.1%}{same}"
        name = own if row["label"] == GREEDY else row["label"]
        rows.append([name, time_text(row["predicted_us"]), ratio])
    return columns(rows)


def _findings(planned: Planned) -> Iterator[str]:
    from hetero_lab.lint.findings import summary_lines

    if planned.findings is None:
        yield f"Lint:  not checked. {planned.unchecked}"
    elif not len(planned.findings):
        yield "Lint:  nothing found"
    else:
        first, *rest = summary_lines(planned.findings, 2)
        yield f"Lint:  {first}"
        yield from (f"       {line}" for line in rest)


def unused(name: str) -> str:
    """Return the name for a directory, with a number if there is one already."""
    names = itertools.chain([name], (f"{name}-{n}" for n in itertools.count(2)))
    return next(free for free in names if not os.path.lexists(free))


def _next(*words: str, lead: str = _LEAD) -> str:
    return f"{lead}{command_line(*words)}"


def again(given: Namespace, command: str, *more: str, lead: str = _LEAD) -> str:
    """Return another command on the model of this one, with those options that it has as well."""
    flags = {OPTIONS[name].flags.split()[-1] for name in given.options_of[command].split()}
    repeated: list[str] = []
    for flag in _REPEATED:
        if flag in flags and flag not in more:
            repeated += _given_words(given, flag, flag[2:].replace("-", "_"))
    return _next("hetero-lab", command, given.model, *more, *repeated, lead=lead)
