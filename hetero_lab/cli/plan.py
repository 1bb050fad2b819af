"""What ``%hetero_plan``, ``hetero-lab plan`` and ``hetero-lab apply`` do with their options."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hetero_lab as hl
from hetero_lab.cli import commands, options
from hetero_lab.errors import ArgumentError, DeviceError, names_at_hand, shorten
from hetero_lab.lint.causes import summary_lines
from hetero_lab.tables import number
from hetero_lab.terminal import columns, count_of

if TYPE_CHECKING:
    import pandas as pd

    from hetero_lab.experiments.profile.result import Profile
    from hetero_lab.model.read import PreparedModel, Source
    from hetero_lab.planning.cost_model import CostModel
    from hetero_lab.planning.memory import MemoryLimit
    from hetero_lab.planning.planner import Plan

_BUDGET_S = 60.0


@dataclass(frozen=True)
class Planned:
    """A plan with what it was made of; ``str()`` says it in a few lines."""

    plan: Plan
    costs: CostModel
    source: str
    findings: pd.DataFrame | None
    unchecked: str
    written: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(_lines(self)) + "\n"


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """Add what ``%hetero_plan`` and ``hetero-lab plan`` have in common."""
    add = parser.add_argument
    options.add_shared(parser, "model")
    add("-d", "--devices", metavar="GPU,CPU", help="devices, the first one first")
    add(
        "--objective",
        choices=("latency", "throughput", "balanced_memory"),
        default="latency",
        help="of one request; the time between results; or latency where memory is spread "
        "evenly over the devices (%(default)s)",
    )
    add(
        "-b",
        "--budget",
        type=float,
        default=_BUDGET_S,
        metavar="SECONDS",
        help="most time for measuring costs (%(default)s)",
    )
    add("--time-limit", type=float, default=60.0, metavar="SECONDS", help="most time for planning")
    add("--solver", metavar="NAME", help="milp, or a solver that an installed package brings")
    add(
        "--costs",
        metavar="FILE",
        help="take the costs from here, or measure them and keep them here if it is missing",
    )
    add("--affinity-out", metavar="FILE", help="write the planned affinity, .json or .csv")
    options.add_shared(
        parser, "shape", "input", "isolate", "memory-limit", "pin", "property", "html", "quiet"
    )


def add_apply_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``hetero-lab apply``."""
    add = parser.add_argument
    options.add_shared(parser, "model")
    add(
        "stored",
        metavar="STORED",
        help="an affinity (.json or .csv), or the directory of a frozen placement",
    )
    add("-n", "--iterations", type=int, default=100, metavar="N", help="timed inferences")
    options.add_shared(parser, "shape", "input", "property", "html", "table", "quiet")


def run_plan(
    given: argparse.Namespace,
    model: Source,
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
    costs: CostModel | None = None,
) -> Planned:
    """Measure or read the costs, plan, look for difficult topologies, write the files.

    Parameters
    ----------
    given
        The parsed options of :func:`add_plan_options`.
    model
        What MODEL stands for.
    defaults
        Properties of devices that ``--property`` may overrule.
    costs
        What ``--costs`` stands for; ``None`` takes it as a file, if it is given.
    """
    from hetero_lab.model.read import prepare

    limits = memory_limit(given.memory_limit)
    pins = pairs(given.pin, "--pin", "'^head_=CPU'")
    own = options.properties(given.property)
    _check_targets(given, costs)
    prepared = prepare(model, options.shapes(given.shape))
    source = f"given as {given.costs}"
    if costs is None and given.costs is not None and os.path.exists(given.costs):
        costs = hl.CostModel.from_json(given.costs)
        source = f"from {given.costs}"
    names = _devices(given.devices, costs)
    written: list[str] = []
    if costs is not None:
        _check_costs(given.costs, costs, prepared, own)
    else:
        _check_limits(names, limits, pins, prepared)
        costs = commands.until_interrupted(
            hl.calibrate,
            prepared,
            names,
            budget_s=given.budget,
            device_properties=device_properties(defaults or {}, own, names),
            inputs=given.input,
            isolate=given.isolate,
            progress=not given.quiet,
        )
        source = "measured now"
        if given.costs is not None:
            costs.to_json(given.costs)
            written.append(given.costs)
        if costs.interrupted:
            kept = f"The costs that were measured are in {given.costs}." if written else ""
            raise KeyboardInterrupt(kept)
    plan = hl.plan(
        prepared,
        costs,
        objective=given.objective,
        memory_limit=limits,
        pin=pins,
        budget_s=given.time_limit,
        solver=given.solver,
        progress=not given.quiet,
    )
    findings, unchecked = _lint(prepared, plan, costs)
    if given.affinity_out is not None:
        write_affinity(plan.affinity, given.affinity_out)
        written.append(given.affinity_out)
    if given.html is not None:
        commands.write_page(given.html, costs)
        written.append(given.html)
    return Planned(plan, costs, source, findings, unchecked, tuple(written))


def run_apply(
    given: argparse.Namespace,
    model: Source,
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
) -> Profile:
    """Run a stored affinity or a frozen placement, compare its outputs, time it.

    Raises
    ------
    ArgumentError
        Neither a file of an affinity nor a directory, or options that a frozen placement,
        which brings its properties along, cannot take.
    """
    from hetero_lab.backend.bound import BoundModel
    from hetero_lab.backend.core import shared_core
    from hetero_lab.experiments.profile.frozen import profile_frozen
    from hetero_lab.model.read import prepare

    commands.check_targets(files=[given.html], directories=[])
    own = options.properties(given.property)
    if given.iterations < 1:
        raise ArgumentError(f"--iterations is a whole number above 0, not {given.iterations}.")
    if not os.path.exists(given.stored):
        raise ArgumentError(
            f"{shorten(given.stored)} does not exist. Name an affinity, as hetero-lab plan "
            "--affinity-out writes it, or the directory of a frozen placement."
        )
    prepared = prepare(model, options.shapes(given.shape))
    if os.path.isdir(given.stored):
        if own:
            raise ArgumentError(
                "A frozen placement has its own properties. Leave --property out, or freeze anew."
            )
        frozen = profile_frozen(
            BoundModel(prepared, shared_core()),
            given.stored,
            inputs=given.input,
            iterations=given.iterations,
        )
        commands.write_page(given.html, frozen)
        return frozen
    affinity = commands.read_affinity(given.stored)
    affinity.check_model(prepared.graph)
    result = commands.until_interrupted(
        hl.profile,
        prepared,
        hl.Placement(
            affinity,
            label=Path(given.stored).name,
            device_properties=device_properties(defaults or {}, own, affinity.devices),
        ),
        iterations=given.iterations,
        inputs=given.input,
        counters=False,
        progress=not given.quiet,
    )
    commands.write_page(given.html, result)
    return result


def differs(profile: Profile) -> bool:
    """Return whether an output is further from the reference than rounding explains."""
    return any(a.verdict in ("different", "not a number") for a in profile.agreement)


def pairs(
    texts: Sequence[str], option: str, example: str, name_first: bool = False
) -> dict[str, str]:
    """Read ``["GPU=2GiB"]`` as ``{"GPU": "2GiB"}``; the last ``=`` counts, or the first."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=") if name_first else text.rpartition("=")
        if not (equals and name.strip() and value.strip()):
            raise ArgumentError(
                f"{option} {shorten(text)} is not of the form NAME=VALUE, for instance {example}."
            )
        if name in found:
            raise ArgumentError(f"{option} gives {shorten(name)} twice.")
        found[name] = value.strip()
    return found


def memory_limit(texts: Sequence[str]) -> MemoryLimit | None:
    """Read ``["GPU.0=2GiB", "GPU.0,CPU=6GiB"]``: limits of devices, and of those that share."""
    found = pairs(texts, "--memory-limit", "GPU.0=2GiB or GPU.0,CPU=6GiB")
    split = {tuple(name.strip() for name in key.split(",")): n for key, n in found.items()}
    return split or None


def write_affinity(affinity: hl.Affinity, path: str) -> None:
    """Write an affinity as .json or .csv."""
    if path.lower().endswith(".csv"):
        affinity.to_csv(path)
    else:
        affinity.to_json(path)


def check_affinity_target(path: str | None) -> None:
    """Raise ArgumentError for a name of an affinity's file that tells no format."""
    if path is not None and not path.lower().endswith((".json", ".csv")):
        raise ArgumentError(f"--affinity-out {shorten(path)} has to end in .json or .csv.")


def _check_targets(given: argparse.Namespace, costs: CostModel | None) -> None:
    """Say before anything is measured what could not be written after it."""
    check_affinity_target(given.affinity_out)
    missing = costs is None and given.costs is not None and not os.path.exists(given.costs)
    commands.check_targets(
        files=[given.affinity_out, given.html, given.costs if missing else None], directories=[]
    )


def _devices(text: str | None, costs: CostModel | None) -> tuple[str, ...]:
    from hetero_lab.backend.core import shared_core
    from hetero_lab.backend.devices import device_names
    from hetero_lab.placement.priorities import Priorities

    if text is None:
        if costs is not None:
            return costs.devices
        here = device_names(shared_core())
        raise ArgumentError(f"Name two devices or more: -d GPU,CPU. Devices: {', '.join(here)}.")
    if costs is None:
        return Priorities.parse(text).devices
    # A plan from stored costs needs no device, so these are not looked for.
    names = tuple(name.strip() for name in text.removeprefix("HETERO:").split(","))
    if names != costs.devices:
        raise ArgumentError(
            f"-d {shorten(text)} is not what the costs hold for: {','.join(costs.devices)}, in "
            "this order. Leave -d out, or measure anew with another --costs."
        )
    return names


def _check_limits(
    names: tuple[str, ...],
    limits: MemoryLimit | None,
    pins: Mapping[str, str],
    prepared: PreparedModel,
) -> None:
    """Find wrong limits and pins before a minute of measuring."""
    from hetero_lab.backend.bound import bind
    from hetero_lab.backend.devices import supported_ops
    from hetero_lab.planning.memory import memory_pools

    memory_pools(names, limits)
    everywhere = hl.Affinity.from_graph(prepared.graph, lambda _: "")
    for pattern, device in pins.items():
        if device not in names:
            raise ArgumentError(
                f"--pin names {shorten(device)}, which is not planned for. Devices: "
                f"{', '.join(names)}."
            )
        able = supported_ops(bind(prepared), device)
        pinned = everywhere.fix(patterns={pattern: device}).diff(everywhere)["op"]
        refused = [op for op in pinned if op not in able]
        if refused:
            raise ArgumentError(
                f"--pin {shorten(pattern)} keeps {names_at_hand(refused, 4)} on {device}, which "
                "does not support them. Make the pattern narrower."
            )


def _check_costs(
    name: str | None,
    costs: CostModel,
    prepared: PreparedModel,
    own: Mapping[str, Mapping[str, Any]],
) -> None:
    costs.check_graph(prepared.graph)
    held = {device: dict(p) for device, p in costs.device_properties.items()}
    for device, properties in own.items():
        for key, value in properties.items():
            if str(held.get(device, {}).get(key)) != str(value):
                raise ArgumentError(
                    f"The costs {shorten(str(name))} were not measured with "
                    f"{device}.{key}={value}. Leave --property out, or measure anew with "
                    "another --costs."
                )


def device_properties(
    defaults: Mapping[str, Mapping[str, Any]],
    own: Mapping[str, Mapping[str, Any]],
    devices: Sequence[str],
) -> dict[str, dict[str, Any]]:
    """Return the properties of each device; what ``--property`` says of another is an error."""
    from hetero_lab.backend.properties import merged_properties

    unused = [device for device in own if device not in devices]
    if unused:
        raise ArgumentError(
            f"--property {unused[0]}.… would change nothing: the devices are {', '.join(devices)}."
        )
    together = merged_properties(defaults, own)
    return {device: together[device] for device in devices if together.get(device)}


def _lint(prepared: PreparedModel, plan: Plan, costs: CostModel) -> tuple[pd.DataFrame | None, str]:
    try:
        return hl.lint(prepared, plan.affinity, costs), ""
    except DeviceError as error:  # planned for devices of another machine
        return None, str(error)


def _lines(planned: Planned) -> Iterator[str]:
    from hetero_lab.planning.planner import GREEDY

    plan, costs = planned.plan, planned.costs
    placed = plan.affinity.counts().items()
    counts = ", ".join(f"{count_of(n, 'op')} on {device}" for device, n in placed)
    yield f"Plan:  {counts}; {count_of(plan.n_subgraphs, 'subgraph')}"
    proof = "proven best" if plan.gap == 0 else f"at most {plan.relative_gap:.1%} from the best"
    yield f"       {proof} for {plan.objective} by these costs ({plan.method})"
    yield f"Costs: {planned.source}"
    yield f"       {costs.origin[0].lower()}{costs.origin[1:].removesuffix('.')}"
    if costs.guessed_from:
        yield "       not measured on this model"
    elif costs.validation_rows:
        n = len(costs.validation_rows)
        yield f"       off by {costs.mape:.1%} on average on {n} placements not fitted to"
    else:
        yield "       not validated: give more time with --budget"
    predicted = "GUESSED µs" if costs.guessed_from else "PREDICTED µs"
    rows = [["PLACEMENT", predicted, "AGAINST THE PLAN"]]
    rows.append(["plan", number(plan.predicted_us), ""])
    rows.append(["lower bound", number(plan.lower_bound_us), ""])
    for baseline in plan.baselines:
        ratio = baseline.predicted_us / plan.predicted_us - 1.0 if plan.predicted_us else 0.0
        # In HETERO's own choice each op goes to the first device that can run it.
        label = f"{GREEDY} (automatic)" if baseline.label == GREEDY else baseline.label
        rows.append([label, number(baseline.predicted_us), f"{ratio:+.1%}"])
    yield columns(rows)
    alone = {baseline.label for baseline in plan.baselines}
    for device in costs.devices:
        if device not in alone:
            yield f"{device} alone cannot run every op."
    yield from _findings(planned)
    yield from (f"Written: {path}" for path in planned.written)


def _findings(planned: Planned) -> Iterator[str]:
    if planned.findings is None:
        yield f"Lint:  not checked. {planned.unchecked}"
        return
    findings = planned.findings
    if not len(findings):
        yield "Lint:  nothing found"
        return
    first, *rest = summary_lines(findings, most=2)
    yield f"Lint:  {first}"
    yield from (f"       {line}" for line in rest)
