"""What the commands do: call the library with the given options, and write the files.

Each takes the parsed options and returns the library's result, for the command line and for the
magics, where the model, the affinity and the costs may be variables of the notebook. Most commands
are one call of a public function and need none; the table of all is in commands.py.
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
from hetero_lab.cli.texts import MEASURED
from hetero_lab.errors import (
    ArgumentError,
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


def call(args: Namespace, name: str, **more: Any) -> Any:
    """Call a public function with the given options; ``more`` overrides them."""
    function = attrgetter(name)(hl)
    names = inspect.signature(function).parameters
    arguments = options.arguments(args, function, args.options)
    parts = {
        name: make(args) for name, make in _MAKERS.items() if name in names and name not in more
    }
    return until_interrupted(function, **{**arguments, **parts, **more})


def sweep(args: Namespace) -> Any:
    """Measure many placements in turn."""
    model = prepared(args)
    first = hl.Priorities.parse(args.devices)
    orders = hl.priority_orders(first.devices) if args.orders == "all" else [first]
    affinities = {str(order): hl.Affinity.automatic(model, order.devices) for order in orders}
    for text in args.fix:
        automatic = affinities[str(first)]
        affinities[f"{first} with {text}"] = automatic.fix(patterns=values.fixes([text]))
    placements = [hl.Placement(a, label, args.contrast) for label, a in affinities.items()]
    return call(args, "sweep", placements=placements, budget_s=None if args.turns else args.budget)


def sweep_fixes(args: Namespace, cell: str) -> Any:
    """Measure a placement against the same with the fixes of a cell's lines."""
    start, args.fix = placement_of(args), [*args.fix, *values.cell_fixes(cell)]
    fixed = replace(placement_of(args), label="with the fixes")
    grid = {"executor": [args.executor or "hetero"], "requests": [int(args.requests or 1)]}
    budget_s = 30.0 if args.budget is None else args.budget
    more = {"grid": grid, "budget_s": budget_s, "isolate": True}
    return call(args, "sweep", placements=[start, fixed], **more)


def optimize(args: Namespace) -> Any:
    """Find the fastest placement and prove it."""
    result = call(args, "optimize")
    if isinstance(result, hl.CostModel):  # interrupted before anything was proven
        path = _cache_file("costs", args)
        if path is not None:
            result.to_json(path)
        more = f" What was learnt is kept: the same with --costs {path} goes on." if path else ""
        raise KeyboardInterrupt(f"Nothing was proven by then.{more}")
    args.affinity_out = args.affinity_out or _cache_file("optimize", args)
    return result


def simplify(args: Namespace) -> Any:
    """Say why there are so many subgraphs, and which change leaves few."""
    result = call(args, "simplify")
    if result.best is not None:
        args.affinity_out = args.affinity_out or _cache_file("simplify", args)
    return result


def _cache_file(command: str, args: Namespace) -> str | None:
    """Return where the next command finds an affinity: in the cache, if that can be written."""
    name = re.sub(r"[^\w.-]", "_", Path(str(args.model)).stem)[:60]
    with contextlib.suppress(OutputPathError):
        path = make_directory(cache_dir() / "found") / f"{command}-{name}.json"
        check_writable(path)
        return str(path)
    return None


def plan(args: Namespace) -> hl.types.Plan:
    """Measure or read the costs, and plan by them."""
    args.known_costs, args.source = _costs(args)
    return call(args, "plan", costs=args.known_costs, budget_s=args.time_limit)


def advise(args: Namespace) -> Any:
    """Say what to deploy, with options in place of arguments."""
    if args.deploy is not None:  # before minutes of measuring
        annex("deploy")(args.deploy, prepared(args))
    advice = call(args, "advise")
    return replace(advice, verdict=options.spelled(advice.verdict))


def machine(args: Namespace) -> Any:
    """Plan several models on one machine, as a file says; options win over the file."""
    arguments = values.read_machine(args.config)
    if args.deploy is not None:  # before minutes of measuring
        for name, demand in arguments["demands"].items():
            annex("deploy")(os.path.join(args.deploy, name), demand.model)
    overrides = options.arguments(args, hl.machine, args.options)
    return until_interrupted(hl.machine, **{**arguments, **overrides})


def export(args: Namespace) -> str:
    """Return what another runtime needs, and save the model with its placement if asked to."""
    text = call(args, "interop.recipe")
    if args.placed is not None:
        hl.save(prepared(args), placement_of(args), args.placed)
        file = Path(args.placed).as_posix()
        text = re.sub(r"\b(model|placed)\.xml", lambda _: file, text)
    comments, brace, content = text.partition("\n{")
    if brace:  # a file of JSON has no comments
        warn(re.sub("^(#|//) ", "", comments, flags=re.MULTILINE))
    return f"{{{content}" if brace else text


def apply(args: Namespace) -> Any:
    """Run a stored affinity or a frozen placement, compare its outputs, time it."""
    from hetero_lab.devices.core import bind
    from hetero_lab.model.read import prepare

    if not os.path.exists(args.stored):
        raise ArgumentError(
            f"{shorten(args.stored)} does not exist. Name an affinity, as hetero-lab plan "
            "--affinity-out writes it, or the directory of a frozen placement."
        )
    iterations = 100 if args.iterations is None else args.iterations
    check_whole("iterations", iterations, least=1)
    if os.path.isdir(args.stored):
        if args.property:
            raise ArgumentError(
                "A frozen placement has its own properties. Leave --property out, or freeze anew."
            )
        if not args.shape:
            with contextlib.suppress(ModelError):  # of another model, which the profile says
                args.prepared = prepare(args.model, _shapes_in(args.stored))
        measure = annex("profile of a frozen placement")
        bound = bind(prepared(args))
        return measure(bound, args.stored, inputs=args.input, iterations=iterations)
    stored = values.read_placement(args.stored, prepared(args))
    stored.affinity.check_model(prepared(args).graph)
    placement = stored.with_properties(_properties_of(args, stored.devices))
    placement = replace(placement, label=text_of(Path(args.stored).name))
    return call(args, "profile", placement=placement, iterations=iterations, counters=False)


# -- from options to arguments -------------------------------------------------------------------


def prepared(args: Namespace) -> PreparedModel:
    """Return the model with its shapes, read once."""
    from hetero_lab.model.read import prepare

    if args.prepared is None:
        args.prepared = prepare(args.model, values.shapes(args.shape))
    return args.prepared


def _shapes_in(frozen: str) -> dict[str, list[int]] | None:
    """Return the shapes of a frozen model, if it is there."""
    from hetero_lab.model.read import input_name
    from hetero_lab.runtime.stored_placement import MODEL_FILE

    check_directory(frozen)
    path = Path(frozen) / MODEL_FILE
    inputs = hl.load(path).inputs if path.is_file() else []
    return {input_name(port): list(port.shape) for port in inputs} or None


def _scenario(args: Namespace) -> hl.Scenario | None:
    prompt, new = (vars(args).get(name) for name in ("prompt_tokens", "new_tokens"))
    if prompt is None and new is None:
        return None
    if prompt is None or new is None:
        raise ArgumentError("A language model needs both --prompt-tokens and --new-tokens.")
    return hl.Scenario(prompt, new)


def _devices(args: Namespace) -> tuple[str, ...]:
    """Return the devices of ``-d``, or all that are here."""
    from hetero_lab.devices.core import shared_core
    from hetero_lab.devices.devices import device_names

    if args.devices is None:
        return tuple(device_names(shared_core()))
    return hl.Priorities.parse(args.devices).devices


def _properties_of(args: Namespace, devices: Sequence[str]) -> dict[str, dict[str, Any]]:
    from hetero_lab.devices.properties import merged_properties

    properties = values.properties(args.property)
    _check_owners(properties, devices)
    together = merged_properties(args.contrast, properties)
    return {device: together[device] for device in devices if together.get(device)}


def placement_of(args: Namespace) -> hl.Placement:
    """Return the placement of ``-d``, ``--affinity``, ``--fix`` and ``--property``."""
    from hetero_lab.devices.properties import merged_properties
    from hetero_lab.placement.priorities import device_list

    properties = values.properties(args.property)
    fixes = values.fixes(args.fix)
    start = _start(args)
    affinity = start.affinity.fix(patterns=fixes) if fixes else start.affinity
    devices = device_list(args.device) if args.device else ()
    _check_owners(properties, [*dict.fromkeys([*affinity.devices, *devices])])
    return replace(
        start,
        affinity=affinity,
        label=f"{start.label} with {', '.join(args.fix)}" if args.fix else start.label,
        device_properties=merged_properties(args.contrast, start.device_properties, properties),
        direct=start.direct and affinity == start.affinity,
    )


def _side(name: str, args: Namespace) -> Any:
    """Return the placement of an option: a text, or the affinity in a file."""
    text = vars(args).get(name) or ""
    is_file = text.lower().endswith((".json", ".csv"))
    return values.read_affinity(text, prepared(args)) if is_file else text or None


_MAKERS: dict[str, Callable[[Namespace], Any]] = {
    "model": prepared,
    "placement": placement_of,
    "scenario": _scenario,
    "devices": _devices,
    "device_properties": lambda args: _properties_of(args, _devices(args)) or None,
    "sample": lambda args: args.model,
    **{name: partial(_side, name) for name in ("before", "after", "baseline")},
}


def _start(args: Namespace) -> hl.Placement:
    """Return the placement before fixes."""
    from hetero_lab.devices.core import bind
    from hetero_lab.placement.placement import resolve

    if args.affinity is None:
        if args.device is None:
            raise ArgumentError(
                "Name the device, -d HETERO:GPU,CPU or -d CPU, or a placement, --affinity FILE. "
                f"Devices: {_devices_here()}."
            )
        return resolve(bind(prepared(args)), args.device).placement
    start = args.affinity
    if isinstance(start, str | os.PathLike):
        start = values.read_placement(start, prepared(args))
    start.affinity.check_model(prepared(args).graph)
    if args.device is not None:
        devices = hl.Priorities.parse(args.device).devices
        others = [device for device in start.affinity.devices if device not in devices]
        if others:
            raise ArgumentError(
                f"The affinity uses {names_at_hand(others)}, which -d {args.device} does not "
                "name. Leave -d out: an affinity says the device of every op."
            )
    return start


def _check_owners(owners: Iterable[str], devices: Sequence[str]) -> None:
    """Raise for a property that nothing would use."""
    for owner in owners:
        if owner not in devices:
            raise PropertyError(
                f"--property {owner}.… would change nothing: the devices are {', '.join(devices)}."
            )


def _devices_here() -> str:
    return ", ".join(_devices(Namespace(devices=None)))


def _costs(args: Namespace) -> tuple[hl.CostModel, str]:
    """Return the costs to plan with, and their origin."""
    if args.costs is not None and not isinstance(args.costs, str):
        return _checked(args, args.costs), "given as a variable"
    if args.costs is not None and os.path.exists(args.costs):
        return _checked(args, hl.CostModel.from_json(args.costs)), f"from {args.costs}"
    if args.devices is None:
        raise ArgumentError(f"Name two devices or more: -d GPU,CPU. Devices: {_devices_here()}.")
    if args.costs is not None:
        check_writable(args.costs)
    _check_pins(args)
    costs = call(args, "calibrate")
    if args.costs is not None:
        costs.to_json(args.costs)
    if costs.interrupted:
        message = f"The costs measured by then are in {args.costs}."
        raise KeyboardInterrupt(message if args.costs is not None else "")
    return costs, MEASURED


def _checked(args: Namespace, costs: hl.CostModel) -> hl.CostModel:
    """Return stored costs if they hold for the model, the devices and their properties."""
    from hetero_lab.placement.priorities import device_list

    text = args.devices
    # A plan from stored costs needs no device, so the devices may be absent.
    if text is not None and device_list(text) != costs.devices:
        raise ArgumentError(
            f"-d {shorten(text)} differs from the devices that the costs hold for: "
            f"{','.join(costs.devices)}, in this order. Leave -d out, or measure anew with "
            "another --costs."
        )
    costs.check_graph(prepared(args).graph)
    for device, properties in values.properties(args.property).items():
        of_costs = costs.device_properties.get(device, {})
        for key, value in properties.items():
            if str(of_costs.get(key)) != str(value):
                raise ArgumentError(
                    f"These costs were not measured with {device}.{key}={value}. Leave --property "
                    "out, or measure anew with another --costs."
                )
    return costs


def _check_pins(args: Namespace) -> None:
    """Refuse wrong limits and pins before a minute of measuring."""
    from hetero_lab.devices.core import bind
    from hetero_lab.devices.devices import supported_ops
    from hetero_lab.planning.problem import check_constraints

    bound, pins, devices = bind(prepared(args)), values.pins(args.pin), _devices(args)
    support = {device: supported_ops(bound, device) for device in devices}
    check_constraints(bound.graph, devices, values.memory_limit(args.memory_limit), pins, support)


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
        result = hl.last_interrupted()
        if result is None:
            raise
        return result


def check_targets(args: Namespace) -> None:
    """Raise before anything is run, if a file or directory of the options cannot be written."""
    settings = {name: value for name, value in vars(args).items() if value is not None}
    if not settings.get("affinity_out", ".json").lower().endswith((".json", ".csv")):
        text = shorten(args.affinity_out)
        raise ArgumentError(f"--affinity-out {text} has to end in .json or .csv.")
    for name in {"csv", "html", "junit", "affinity_out"} & settings.keys():
        check_writable(settings[name])
    for name in {"export", "store", "deploy", "directory"} & settings.keys():
        # A missing directory will be made, so its lowest existing parent matters.
        path = Path(settings[name]).absolute()
        there = next(p for p in [path, *path.parents] if p.exists())
        check_writable(there / "profile.json")


def write(args: Namespace, result: Any, text: str = "") -> None:
    """Write the files that the options name; the page of a table begins with the printed text."""
    is_table = hasattr(result, "columns")
    settings = {name: value for name, value in vars(args).items() if value is not None}
    with contextlib.ExitStack() as every:  # so that one that fails costs itself only
        if "csv" in settings and is_table:
            columns = {"ops": ["\n".join(ops) for ops in result["ops"]]} if "ops" in result else {}
            every.callback(write_csv, args.csv, result.assign(**columns))
        elif "csv" in settings:
            every.callback(result.to_csv, args.csv)
        if "junit" in settings:
            every.callback(result.to_junit, args.junit, strict=args.strict)
        if "export" in settings:
            every.callback(result.export, args.export)
        if "deploy" in settings:
            more = options.arguments(args, result.deploy, args.options)
            every.callback(result.deploy, args.deploy, **more)
            if result.interrupted:
                every.callback(warn, "Deploys what was best by then; Ctrl-C again stops.")
        if "affinity_out" in settings:
            affinity = result.affinity
            is_csv = args.affinity_out.lower().endswith(".csv")
            every.callback(affinity.to_csv if is_csv else affinity.to_json, args.affinity_out)
        if "html" in settings:
            notes = text.partition("\n\n")[0].splitlines() if is_table else ()
            results = [result, args.known_costs] if "known_costs" in args else result
            every.callback(_write_page, results, args.html, notes)


def _write_page(results: Any, file: str, notes: Sequence[str]) -> None:
    """Write a page, whose sentences name options in place of arguments."""
    from hetero_lab.views.result_views import page_text

    text = page_text(results, notes=notes)
    write_text(file, _SENTENCE.sub(lambda match: options.spelled(match[0]), text))


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
