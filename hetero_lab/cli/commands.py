"""What the commands do: call the library with the given options, and write the files.

Each takes the parsed options and returns the library's result, for the command line and for the
magics, where the model, the affinity and the costs may be variables of the notebook. Most commands
are one call of a public function and need none; the table of all is in main.py.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hetero_lab as hl
from hetero_lab.arguments import check_whole
from hetero_lab.cli import options, values
from hetero_lab.cli.texts import MEASURED, Planned
from hetero_lab.errors import (
    ArgumentError,
    DeviceError,
    HeteroLabWarning,
    ModelError,
    OutputPathError,
    PropertyError,
    names_at_hand,
    shorten,
    warn,
)
from hetero_lab.fetch import cache_dir
from hetero_lab.lookup import annex
from hetero_lab.tables import check_directory, check_writable, make_directory, write_csv, write_text
from hetero_lab.terminal import text_of

if TYPE_CHECKING:
    from hetero_lab.model.read import PreparedModel


_SENTENCE = re.compile('(?<=class="note">)[^<]*')  # of a page


def call(given: Namespace, name: str, **more: Any) -> Any:
    """Call a public function with the given options; ``more`` overrides them."""
    function = attrgetter(name)(hl)
    known = inspect.signature(function).parameters
    said = options.arguments(given, function, given.options)
    made = {name: make(given) for name, make in _MADE.items() if name in known and name not in more}
    return until_interrupted(function, **{**said, **made, **more})


def sweep(given: Namespace) -> Any:
    """Measure many placements in turn."""
    model = prepared(given)
    first = hl.Priorities.parse(given.devices)
    orders = hl.priority_orders(first.devices) if given.orders == "all" else [first]
    affinities = {str(order): hl.Affinity.automatic(model, order.devices) for order in orders}
    for text in given.fix:
        automatic = affinities[str(first)]
        affinities[f"{first} with {text}"] = automatic.fix(patterns=values.fixes([text]))
    placements = [hl.Placement(a, label, given.contrast) for label, a in affinities.items()]
    return call(
        given, "sweep", placements=placements, budget_s=None if given.turns else given.budget
    )


def sweep_fixes(given: Namespace, cell: str) -> Any:
    """Measure a placement against the same with the fixes of a cell's lines."""
    start, given.fix = placement_of(given), [*given.fix, *values.cell_fixes(cell)]
    fixed = replace(placement_of(given), label="with the fixes")
    grid = {"executor": [given.executor or "hetero"], "requests": [int(given.requests or 1)]}
    budget_s = 30.0 if given.budget is None else given.budget
    more = {"grid": grid, "budget_s": budget_s, "isolate": True}
    return call(given, "sweep", placements=[start, fixed], **more)


def optimize(given: Namespace) -> Any:
    """Find the fastest placement and prove it."""
    result = call(given, "optimize")
    if isinstance(result, hl.CostModel):  # interrupted before anything was proven
        kept = _kept("costs", given)
        if kept is not None:
            result.to_json(kept)
        more = f" What was learnt is kept: the same with --costs {kept} goes on." if kept else ""
        raise KeyboardInterrupt(f"Nothing was proven by then.{more}")
    given.affinity_out = given.affinity_out or _kept("optimize", given)
    return result


def simplify(given: Namespace) -> Any:
    """Say why there are so many subgraphs, and which change leaves few."""
    result = call(given, "simplify")
    if result.best is not None:
        given.affinity_out = given.affinity_out or _kept("simplify", given)
    return result


def _kept(command: str, given: Namespace) -> str | None:
    """Return where the next command finds an affinity: in the cache, if that can be written."""
    name = re.sub(r"[^\w.-]", "_", Path(str(given.model)).stem)[:60]
    with contextlib.suppress(OutputPathError):
        path = make_directory(cache_dir() / "found") / f"{command}-{name}.json"
        check_writable(path)
        return str(path)
    return None


def plan(given: Namespace) -> Planned:
    """Measure or read the costs, plan, look for awkward topologies."""
    costs, source = _costs(given)
    found = call(given, "plan", costs=costs, budget_s=given.time_limit)
    try:
        findings, unchecked = hl.lint(prepared(given), found.affinity, costs), ""
    except DeviceError as error:  # planned for devices of another machine
        findings, unchecked = None, str(error)
    files = (given.costs if source == MEASURED else None, given.affinity_out, given.html)
    return Planned(found, costs, source, findings, unchecked, tuple(f for f in files if f))


def advise(given: Namespace) -> Any:
    """Say what to deploy, with options in place of arguments."""
    if given.deploy is not None:  # before minutes of measuring
        annex("deploy")(given.deploy, prepared(given))
    found = call(given, "advise")
    return replace(found, verdict=options.spelled(found.verdict))


def machine(given: Namespace) -> Any:
    """Plan several models on one machine, as a file says; options win over the file."""
    asked = values.read_machine(given.config)
    if given.deploy is not None:  # before minutes of measuring
        for name, demand in asked["demands"].items():
            annex("deploy")(os.path.join(given.deploy, name), demand.model)
    said = options.arguments(given, hl.machine, given.options)
    return until_interrupted(hl.machine, **{**asked, **said})


def export(given: Namespace) -> str:
    """Return what another runtime needs, and save the model with its placement if asked to."""
    text = call(given, "interop.recipe")
    if given.placed is not None:
        hl.save(prepared(given), placement_of(given), given.placed)
        file = Path(given.placed).as_posix()
        text = re.sub(r"\b(model|placed)\.xml", lambda _: file, text)
    comments, brace, content = text.partition("\n{")
    if brace:  # a file of JSON has no comments
        warn(re.sub("^(#|//) ", "", comments, flags=re.MULTILINE))
    return f"{{{content}" if brace else text


def apply(given: Namespace) -> Any:
    """Run a stored affinity or a frozen placement, compare its outputs, time it."""
    from hetero_lab.devices.core import bind
    from hetero_lab.model.read import prepare

    if not os.path.exists(given.stored):
        raise ArgumentError(
            f"{shorten(given.stored)} does not exist. Name an affinity, as hetero-lab plan "
            "--affinity-out writes it, or the directory of a frozen placement."
        )
    iterations = 100 if given.iterations is None else given.iterations
    check_whole("iterations", iterations, least=1)
    if os.path.isdir(given.stored):
        if given.property:
            raise ArgumentError(
                "A frozen placement has its own properties. Leave --property out, or freeze anew."
            )
        if not given.shape:
            with contextlib.suppress(ModelError):  # of another model, which the profile says
                given.prepared = prepare(given.model, _shapes_in(given.stored))
        measure = annex("profile of a frozen placement")
        bound = bind(prepared(given))
        return measure(bound, given.stored, inputs=given.input, iterations=iterations)
    stored = values.read_placement(given.stored, prepared(given))
    stored.affinity.check_model(prepared(given).graph)
    placement = stored.with_properties(_properties_of(given, stored.devices))
    placement = replace(placement, label=text_of(Path(given.stored).name))
    return call(given, "profile", placement=placement, iterations=iterations, counters=False)


# -- from options to arguments -------------------------------------------------------------------


def prepared(given: Namespace) -> PreparedModel:
    """Return the model with its shapes, read once."""
    from hetero_lab.model.read import prepare

    if given.prepared is None:
        given.prepared = prepare(given.model, values.shapes(given.shape))
    return given.prepared


def _shapes_in(frozen: str) -> dict[str, list[int]] | None:
    """Return the shapes of a frozen model, if it is there."""
    from hetero_lab.model.read import input_name
    from hetero_lab.runtime.stored_placement import MODEL_FILE

    check_directory(frozen)
    path = Path(frozen) / MODEL_FILE
    inputs = hl.load(path).inputs if path.is_file() else []
    return {input_name(port): list(port.shape) for port in inputs} or None


def _scenario(given: Namespace) -> hl.Scenario | None:
    prompt, new = (vars(given).get(name) for name in ("prompt_tokens", "new_tokens"))
    if prompt is None and new is None:
        return None
    if prompt is None or new is None:
        raise ArgumentError("A language model needs both --prompt-tokens and --new-tokens.")
    return hl.Scenario(prompt, new)


def _devices(given: Namespace) -> tuple[str, ...]:
    """Return the devices of ``-d``, or all that are here."""
    from hetero_lab.devices.core import shared_core
    from hetero_lab.devices.devices import device_names

    if given.devices is None:
        return tuple(device_names(shared_core()))
    return hl.Priorities.parse(given.devices).devices


def _properties_of(given: Namespace, devices: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the properties of each device."""
    from hetero_lab.devices.properties import merged_properties

    own = values.properties(given.property)
    _check_owners(own, devices)
    together = merged_properties(given.contrast, own)
    return {device: together[device] for device in devices if together.get(device)}


def placement_of(given: Namespace) -> hl.Placement:
    """Return the placement of ``-d``, ``--affinity``, ``--fix`` and ``--property``."""
    from hetero_lab.devices.properties import merged_properties
    from hetero_lab.placement.priorities import device_list

    own = values.properties(given.property)
    fixes = values.fixes(given.fix)
    start = _start(given)
    placed = start.affinity.fix(patterns=fixes) if fixes else start.affinity
    named = device_list(given.device) if given.device else ()
    _check_owners(own, [*dict.fromkeys([*placed.devices, *named])])
    return replace(
        start,
        affinity=placed,
        label=f"{start.label} with {', '.join(given.fix)}" if given.fix else start.label,
        device_properties=merged_properties(given.contrast, start.device_properties, own),
        direct=start.direct and placed == start.affinity,
    )


def _side(name: str, given: Namespace) -> Any:
    """Return the placement of an option: a text, or the affinity in a file."""
    text = vars(given).get(name) or ""
    is_file = text.lower().endswith((".json", ".csv"))
    return values.read_affinity(text, prepared(given)) if is_file else text or None


_MADE: dict[str, Callable[[Namespace], Any]] = {
    "model": prepared,
    "placement": placement_of,
    "scenario": _scenario,
    "devices": _devices,
    "device_properties": lambda given: _properties_of(given, _devices(given)) or None,
    "sample": lambda given: given.model,
    **{name: partial(_side, name) for name in ("before", "after", "baseline")},
}


def _start(given: Namespace) -> hl.Placement:
    """Return the placement before fixes."""
    from hetero_lab.devices.core import bind
    from hetero_lab.placement.placement import resolve

    if given.affinity is None:
        if given.device is None:
            raise ArgumentError(
                "Name the device, -d HETERO:GPU,CPU or -d CPU, or a placement, --affinity FILE. "
                f"Devices: {_devices_here()}."
            )
        return resolve(bind(prepared(given)), given.device).placement
    start = given.affinity
    if isinstance(start, str | os.PathLike):
        start = values.read_placement(start, prepared(given))
    start.affinity.check_model(prepared(given).graph)
    if given.device is not None:
        named = hl.Priorities.parse(given.device).devices
        others = [device for device in start.affinity.devices if device not in named]
        if others:
            raise ArgumentError(
                f"The affinity uses {names_at_hand(others)}, which -d {given.device} does not "
                "name. Leave -d out: an affinity says the device of every op."
            )
    return start


def _check_owners(own: Iterable[str], devices: Sequence[str]) -> None:
    """Raise for a property that nothing would use."""
    for owner in own:
        if owner not in devices:
            raise PropertyError(
                f"--property {owner}.… would change nothing: the devices are {', '.join(devices)}."
            )


def _devices_here() -> str:
    return ", ".join(_devices(Namespace(devices=None)))


def _costs(given: Namespace) -> tuple[hl.CostModel, str]:
    """Return the costs to plan with, and their origin."""
    if given.costs is not None and not isinstance(given.costs, str):
        return _checked(given, given.costs), "given as a variable"
    if given.costs is not None and os.path.exists(given.costs):
        return _checked(given, hl.CostModel.from_json(given.costs)), f"from {given.costs}"
    if given.devices is None:
        raise ArgumentError(f"Name two devices or more: -d GPU,CPU. Devices: {_devices_here()}.")
    if given.costs is not None:
        check_writable(given.costs)
    _check_pins(given)
    costs = call(given, "calibrate")
    if given.costs is not None:
        costs.to_json(given.costs)
    if costs.interrupted:
        told = f"The costs measured by then are in {given.costs}."
        raise KeyboardInterrupt(told if given.costs is not None else "")
    return costs, MEASURED


def _checked(given: Namespace, costs: hl.CostModel) -> hl.CostModel:
    """Return stored costs if they hold for the model, the devices and their properties."""
    from hetero_lab.placement.priorities import device_list

    text = given.devices
    # A plan from stored costs needs no device, so the devices may be absent.
    if text is not None and device_list(text) != costs.devices:
        raise ArgumentError(
            f"-d {shorten(text)} differs from the devices that the costs hold for: "
            f"{','.join(costs.devices)}, in this order. Leave -d out, or measure anew with "
            "another --costs."
        )
    costs.check_graph(prepared(given).graph)
    for device, properties in values.properties(given.property).items():
        held = costs.device_properties.get(device, {})
        for key, value in properties.items():
            if str(held.get(key)) != str(value):
                raise ArgumentError(
                    f"These costs were not measured with {device}.{key}={value}. Leave --property "
                    "out, or measure anew with another --costs."
                )
    return costs


def _check_pins(given: Namespace) -> None:
    """Refuse wrong limits and pins before a minute of measuring."""
    from hetero_lab.devices.core import bind
    from hetero_lab.devices.devices import supported_ops
    from hetero_lab.planning.problem import check_constraints

    bound, pins, devices = bind(prepared(given)), values.pins(given.pin), _devices(given)
    support = {device: supported_ops(bound, device) for device in devices}
    check_constraints(bound.graph, devices, values.memory_limit(given.memory_limit), pins, support)


# -- around each command ------------------------------------------------------------------------


def emulate(texts: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """Register the emulated devices; return the properties that set each base apart."""
    every = [values.emulation(text) for text in texts]  # all are read before one is registered
    devices = [hl.emulate(**arguments) for arguments in every]
    return {device.base: device.contrast for device in devices if device.contrast}


def until_interrupted(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a public function; after Ctrl-C return its unfinished result, if there is one."""
    try:
        return call(*args, **options)
    except KeyboardInterrupt:
        kept = hl.last_interrupted()
        if kept is None:
            raise
        return kept


def check_targets(given: Namespace) -> None:
    """Raise before anything is run, if a file or directory of the options cannot be written."""
    asked = {name: value for name, value in vars(given).items() if value is not None}
    if not asked.get("affinity_out", ".json").lower().endswith((".json", ".csv")):
        text = shorten(given.affinity_out)
        raise ArgumentError(f"--affinity-out {text} has to end in .json or .csv.")
    for name in {"csv", "html", "junit", "affinity_out"} & asked.keys():
        check_writable(asked[name])
    for name in {"export", "store", "deploy", "directory"} & asked.keys():
        # A missing directory will be made, so its lowest existing parent matters.
        path = Path(asked[name]).absolute()
        there = next(p for p in [path, *path.parents] if p.exists())
        check_writable(there / "profile.json")


def write(given: Namespace, result: Any, said: str = "") -> None:
    """Write the files that the options name; the page of a table begins with the printed text."""
    is_table, planned = hasattr(result, "columns"), isinstance(result, Planned)
    asked = {name: value for name, value in vars(given).items() if value is not None}
    with contextlib.ExitStack() as every:  # so that one that fails costs itself only
        if "csv" in asked and is_table:
            listed = {"ops": ["\n".join(ops) for ops in result["ops"]]} if "ops" in result else {}
            every.callback(write_csv, given.csv, result.assign(**listed))
        elif "csv" in asked:
            every.callback(result.to_csv, given.csv)
        if "junit" in asked:
            every.callback(result.to_junit, given.junit, strict=given.strict)
        if "export" in asked:
            every.callback(result.export, given.export)
        if "deploy" in asked:
            more = options.arguments(given, result.deploy, given.options)
            every.callback(result.deploy, given.deploy, **more)
            if result.interrupted:
                every.callback(warn, "Deploys what was best by then; Ctrl-C again stops.")
        if "affinity_out" in asked:
            affinity = (result.plan if planned else result).affinity
            is_csv = given.affinity_out.lower().endswith(".csv")
            every.callback(affinity.to_csv if is_csv else affinity.to_json, given.affinity_out)
        if "html" in asked:
            notes = said.partition("\n\n")[0].splitlines() if is_table else ()
            shown = [result.plan, result.costs] if planned else result
            every.callback(_write_page, shown, given.html, notes)


def _write_page(shown: Any, file: str, notes: Sequence[str]) -> None:
    """Write a page, whose sentences name options in place of arguments."""
    from hetero_lab.views.result_views import page_text

    text = page_text(shown, notes=notes)
    write_text(file, _SENTENCE.sub(lambda found: options.spelled(found[0]), text))


@contextlib.contextmanager
def warnings_to(show: Callable[[str], object]) -> Iterator[None]:
    """Hand the text of each of our warnings to ``show``, without file and line."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", HeteroLabWarning)
        before = warnings.showwarning

        def handle(message: Any, category: Any, *rest: Any, **more: Any) -> None:
            ours = issubclass(category, HeteroLabWarning)
            show(f"Note: {message}") if ours else before(message, category, *rest, **more)

        warnings.showwarning = handle
        yield
