"""The commands: call the library with the arguments that the options give, write the files.

Each takes the parsed options and returns the library's result, for the command line and for the
magics, where the model, the affinity and the costs may be variables of the notebook.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hetero_lab as hl
from hetero_lab.cli import derive, values
from hetero_lab.cli.texts import Planned, support_lines
from hetero_lab.errors import (
    ArgumentError,
    DeviceError,
    HeteroLabWarning,
    PropertyError,
    names_at_hand,
    shorten,
)
from hetero_lab.lint.causes import summary_lines
from hetero_lab.tables import check_writable, write_csv

if TYPE_CHECKING:
    import pandas as pd

    from hetero_lab.experiments.accuracy.classify import Classification
    from hetero_lab.experiments.deployment.releases import Across
    from hetero_lab.experiments.deployment.verify import Verification
    from hetero_lab.experiments.faults.wrong import Wrong
    from hetero_lab.experiments.profile.result import Profile
    from hetero_lab.experiments.search.advice import Advice
    from hetero_lab.experiments.search.optimize import Optimized
    from hetero_lab.experiments.search.pipeline import PipelineAdvice
    from hetero_lab.experiments.sweep.result import Sweep
    from hetero_lab.model.read import PreparedModel
    from hetero_lab.placement.affinity import Affinity
    from hetero_lab.placement.placement import Placement
    from hetero_lab.planning.cost_model import CostModel
    from hetero_lab.planning.difference import Difference

    Properties = Mapping[str, Mapping[str, Any]]

_AFFINITY_FILES = (".json", ".csv")


# -- commands ----------------------------------------------------------------------------------


def profile(given: Namespace) -> Profile:
    """Measure one placement."""
    tokens = (given.prompt_tokens, given.new_tokens)
    if tokens.count(None) == 1:
        raise ArgumentError("A language model needs both --prompt-tokens and --new-tokens.")
    scenario = None if None in tokens else hl.Scenario(*tokens)
    model = prepared(given)
    result = _call(hl.profile, given, model, placement_of(given, model), scenario=scenario)
    return _written(given, result)


def sweep(given: Namespace) -> Sweep:
    """Measure many placements in turn."""
    from hetero_lab.placement.priorities import Priorities

    model = hl.load(given.model, shapes=values.shapes(given.shape) or None)
    first = Priorities.parse(given.devices)
    orders = hl.priority_orders(first.devices) if given.orders == "all" else [first]
    automatic = {str(order): hl.Affinity.automatic(model, order.devices) for order in orders}
    fixed = {
        f"{first} with {text}": automatic[str(first)].fix(patterns=values.fixes([text]))
        for text in given.fix
    }
    placements = [
        hl.Placement(affinity, label, given.contrast)
        for label, affinity in {**automatic, **fixed}.items()
    ]
    budget_s = None if given.turns else given.budget
    return _written(given, _call(hl.sweep, given, model, placements, budget_s=budget_s))


def sweep_fixes(given: Namespace, cell: str) -> Sweep:
    """Measure an automatic placement against the same with the fixes of a cell's lines."""
    from hetero_lab.backend.properties import merged_properties
    from hetero_lab.placement.priorities import Priorities

    fixes = values.fixes(values.cell_fixes(cell))
    model = hl.load(given.model, shapes=values.shapes(given.shape) or None)
    if given.device is None:
        raise ArgumentError("Name the devices: -d HETERO:GPU,CPU.")
    priorities = Priorities.parse(given.device)
    own = merged_properties(given.contrast, values.properties(given.property))
    automatic = hl.Affinity.automatic(model, priorities.devices)
    placements = [
        hl.Placement(automatic, str(priorities), own),
        hl.Placement(automatic.fix(patterns=fixes), "with the fixes", own),
    ]
    more = {"requests": [given.requests], "budget_s": given.budget or 30.0, "isolate": True}
    return _written(given, _call(hl.sweep, given, model, placements, **more))


def optimize(given: Namespace) -> Optimized:
    """Find the fastest placement and prove it."""
    from hetero_lab.placement.priorities import Priorities

    model = prepared(given)
    names = Priorities.parse(given.devices).devices
    own = device_properties(given, names) or None
    result = _call(hl.optimize, given, model, names, device_properties=own)
    if isinstance(result, hl.CostModel):  # interrupted before anything was proven
        raise KeyboardInterrupt("Nothing was proven by then.")
    return _written(given, result, affinity=result.affinity)


def plan(given: Namespace) -> Planned:
    """Measure or read the costs, plan, look for difficult topologies."""
    model = prepared(given)
    costs, source = _costs_of(given, model)
    found = _call(hl.plan, given, model, costs, budget_s=given.time_limit)
    try:
        findings, unchecked = hl.lint(model, found.affinity, costs), ""
    except DeviceError as error:  # planned for devices of another machine
        findings, unchecked = None, str(error)
    _written(given, costs, affinity=found.affinity)
    measured = given.costs if source == "measured now" else None
    files = (measured, given.affinity_out, given.html)
    return Planned(found, costs, source, findings, unchecked, tuple(f for f in files if f))


def apply(given: Namespace) -> Profile:
    """Run a stored affinity or a frozen placement, compare its outputs, time it."""
    from hetero_lab.backend.bound import BoundModel
    from hetero_lab.backend.core import shared_core
    from hetero_lab.experiments.profile.frozen import profile_frozen

    if not os.path.exists(given.stored):
        raise ArgumentError(
            f"{shorten(given.stored)} does not exist. Name an affinity, as hetero-lab plan "
            "--affinity-out writes it, or the directory of a frozen placement."
        )
    model = prepared(given)
    iterations = given.iterations or 100
    if os.path.isdir(given.stored):
        if given.property:
            raise ArgumentError(
                "A frozen placement has its own properties. Leave --property out, or freeze anew."
            )
        bound = BoundModel(model, shared_core())
        result = profile_frozen(bound, given.stored, inputs=given.input, iterations=iterations)
        return _written(given, result)
    affinity = read_affinity(given.stored)
    affinity.check_model(model.graph)
    own = device_properties(given, affinity.devices)
    placement = hl.Placement(affinity, Path(given.stored).name, own)
    more = {"iterations": iterations, "counters": False}
    return _written(given, _call(hl.profile, given, model, placement, **more))


def advise(given: Namespace) -> Advice | PipelineAdvice:
    """Say what to deploy."""
    from hetero_lab.backend.core import shared_core
    from hetero_lab.experiments.search.candidates import order_of

    names = order_of(given.devices, shared_core())
    own = device_properties(given, names) or None
    result = _call(hl.advise, given, _models(given), names, device_properties=own)
    if given.deploy is not None:
        result.deploy(given.deploy)
    return _written(given, result)


def find_wrong(given: Namespace) -> Wrong:
    """Find the ops that compute wrong numbers."""
    model = prepared(given)
    return _written(given, _call(hl.find_wrong, given, model.model, placement_of(given, model)))


def verify(given: Namespace) -> Verification | Across:
    """Prove a deployed directory again, here or with other releases of OpenVINO."""
    if given.across is None:
        return _written(given, _call(hl.verify, given))
    if given.data is not None:
        raise ArgumentError("--data goes with the OpenVINO that is here, not with --across.")
    return _written(given, _call(hl.verify_across, given))


def classify(given: Namespace) -> Classification:
    """Run a picture through an image classifier."""
    model = prepared(given)
    placement = placement_of(given, model)
    result = _call(hl.classify, given, model, placement=placement, sample=given.model)
    return _written(given, result)


def freeze(given: Namespace) -> Path:
    """Write a placement that runs with openvino and numpy alone."""
    model = prepared(given)
    return _call(hl.freeze, given, model, placement_of(given, model))


def explain(given: Namespace) -> Difference:
    """Compare two placements."""
    return _written(given, _call(hl.explain, given, prepared(given)))


def lint(given: Namespace) -> pd.DataFrame:
    """Find what is awkward about a placement."""
    model = prepared(given)
    findings = _call(hl.lint, given, model, placement_of(given, model))
    rows = findings.assign(ops=["\n".join(ops) for ops in findings["ops"]])
    return _written(given, findings, rows=rows, notes=summary_lines(findings, most=10))


def support(given: Namespace) -> pd.DataFrame:
    """Ask each device for the ops that it can run."""
    from hetero_lab.backend.core import shared_core
    from hetero_lab.backend.devices import device_names

    chosen = (given.devices or "").removeprefix("HETERO:")
    names = chosen.split(",") if chosen else device_names(shared_core())
    table = hl.support(prepared(given), names)
    return _written(given, table, rows=table, notes=support_lines(table))


# -- what they have in common ------------------------------------------------------------------


def emulate(texts: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """Register what ``--emulate`` says; return the properties that set each base apart."""
    contrast: dict[str, Mapping[str, Any]] = {}
    for arguments in [values.emulation(text) for text in texts]:
        device = hl.emulate(**arguments)
        if device.contrast:
            contrast[device.base] = device.contrast
    return contrast


def until_interrupted(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return what a public function returns; after Ctrl-C what it had done by then.

    Raises
    ------
    KeyboardInterrupt
        It had done nothing yet.
    """
    try:
        return call(*args, **options)
    except KeyboardInterrupt:
        kept = hl.last_interrupted()
        if kept is None:
            raise
        return kept


def prepared(given: Namespace) -> PreparedModel:
    """Return the model with its shapes, read once."""
    from hetero_lab.model.read import prepare

    if given.prepared is None:
        given.prepared = prepare(given.model, values.shapes(given.shape))
    return given.prepared


def placement_of(given: Namespace, model: PreparedModel) -> Placement:
    """Return the placement that ``-d``, ``--affinity``, ``--fix`` and ``--property`` say."""
    from hetero_lab.backend.properties import merged_properties

    own = values.properties(given.property)
    fixes = values.fixes(given.fix)
    start = _start(given, model)
    placed = start.affinity.fix(patterns=fixes) if fixes else start.affinity
    _check_owners(own, given.device, placed)
    return dataclasses.replace(
        start,
        affinity=placed,
        label=f"{start.label} with {', '.join(given.fix)}" if given.fix else start.label,
        device_properties=merged_properties(given.contrast, start.device_properties, own),
        direct=start.direct and placed == start.affinity,
    )


def device_properties(given: Namespace, devices: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the properties of each device; a ``--property`` of another is an error."""
    from hetero_lab.backend.properties import merged_properties

    own = values.properties(given.property)
    unused = [device for device in own if device not in devices]
    if unused:
        raise ArgumentError(
            f"--property {unused[0]}.… would change nothing: the devices are {', '.join(devices)}."
        )
    together = merged_properties(given.contrast, own)
    return {device: together[device] for device in devices if together.get(device)}


def read_affinity(path: str | os.PathLike[str]) -> Affinity:
    """Read an affinity from .json or .csv."""
    readers = {".json": hl.Affinity.from_json, ".csv": hl.Affinity.from_csv}
    read = readers.get(Path(path).suffix.lower())
    if read is None:
        raise ArgumentError(
            f"{shorten(os.fspath(path))} is not an affinity: name a .json or .csv file, as "
            "affinity.to_json(file) and affinity.to_csv(file) write it."
        )
    return read(path)


def check_targets(given: Namespace) -> None:
    """Raise before anything is run, if a file or directory of the options cannot be written.

    Raises
    ------
    OutputPathError
        A target cannot be written.
    ArgumentError
        The name of an affinity's file tells no format.
    """
    affinity = getattr(given, "affinity_out", None)
    if affinity is not None and not affinity.lower().endswith(_AFFINITY_FILES):
        raise ArgumentError(f"--affinity-out {shorten(affinity)} has to end in .json or .csv.")
    for name in ("csv", "html", "affinity_out"):
        if getattr(given, name, None) is not None:
            check_writable(getattr(given, name))
    for name in ("export", "store", "deploy", "directory"):
        if getattr(given, name, None) is not None:
            # A missing directory will be made, so the lowest one that exists matters.
            path = Path(getattr(given, name)).absolute()
            there = next(p for p in [path, *path.parents] if p.exists())
            check_writable(there / "profile.json")


@contextlib.contextmanager
def warnings_to(show: Callable[[str], object]) -> Iterator[None]:
    """Hand the text of each of our warnings to ``show``, without file and line."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", HeteroLabWarning)
        before = warnings.showwarning

        def handle(message: Any, category: Any, *rest: Any, **more: Any) -> None:
            if issubclass(category, HeteroLabWarning):
                show(f"Note: {message}")
            else:
                before(message, category, *rest, **more)

        warnings.showwarning = handle
        yield


def _call(function: Callable[..., Any], given: Namespace, *args: Any, **more: Any) -> Any:
    """Call a public function with what the options say; ``more`` wins over them."""
    said = derive.arguments(given, function, given.options)
    return until_interrupted(function, *args, **{**said, **more})


def _written(
    given: Namespace,
    result: Any,
    *,
    rows: pd.DataFrame | None = None,
    affinity: Affinity | None = None,
    notes: Sequence[str] = (),
) -> Any:
    """Write the files that the options name; return the result."""
    asked = vars(given)
    if asked.get("csv") is not None:
        if rows is not None:
            write_csv(given.csv, rows)
        elif hasattr(result, "to_csv"):
            result.to_csv(given.csv)
        else:
            write_csv(given.csv, result.summary)
    if asked.get("export") is not None:
        result.export(given.export)
    if affinity is not None and asked.get("affinity_out") is not None:
        is_csv = given.affinity_out.lower().endswith(".csv")
        (affinity.to_csv if is_csv else affinity.to_json)(given.affinity_out)
    if asked.get("html") is not None:
        hl.views.page(result, given.html, notes=notes)
    return result


def _models(given: Namespace) -> Any:
    """Return the model, or those of a pipeline by name."""
    from hetero_lab.model.read import prepare

    first = given.model[0]
    if len(given.model) == 1 and ("=" not in first or os.path.exists(first)):
        return prepare(first, values.shapes(given.shape))
    sources = values.pairs(given.model, "MODEL", "det=det.onnx", name_first=True)
    shapes = values.shapes_by_model(given.shape, sources)
    return {name: prepare(path, values.shapes(shapes[name])) for name, path in sources.items()}


def _start(given: Namespace, model: PreparedModel) -> Placement:
    """Return the placement before fixes."""
    from hetero_lab.backend.bound import bind
    from hetero_lab.placement.placement import resolve
    from hetero_lab.placement.priorities import Priorities

    if given.affinity is None:
        if given.device is None:
            raise ArgumentError(
                f"Name the device: -d HETERO:GPU,CPU or -d CPU. Devices: {_devices_here()}."
            )
        return resolve(bind(model), given.device).placement
    start = given.affinity
    if isinstance(start, str):
        start = hl.Placement(read_affinity(start), label=start)
    start.affinity.check_model(model.graph)
    if given.device is not None:
        named = Priorities.parse(given.device).devices
        others = [device for device in start.affinity.devices if device not in named]
        if others:
            raise ArgumentError(
                f"The affinity uses {names_at_hand(others)}, which -d {given.device} does not "
                "name. Leave -d out: an affinity says the device of every op."
            )
    return start


def _check_owners(own: Mapping[str, object], device: str | None, affinity: Affinity) -> None:
    """Raise PropertyError for a property that nothing would use."""
    from hetero_lab.backend.core import shared_core
    from hetero_lab.backend.devices import check_device

    named = (device or "").removeprefix("HETERO:").split(",")
    for owner in own:
        check_device(owner, shared_core())
        if owner not in affinity.devices and owner not in named:
            raise PropertyError(
                f"--property {owner}.… would change nothing: the placement uses "
                f"{', '.join(affinity.devices)}."
            )


def _devices_here() -> str:
    from hetero_lab.backend.core import shared_core
    from hetero_lab.backend.devices import device_names

    return ", ".join(device_names(shared_core()))


def _costs_of(given: Namespace, model: PreparedModel) -> tuple[CostModel, str]:
    """Return the costs to plan with, and where they are from."""
    from hetero_lab.placement.priorities import Priorities

    if given.costs is not None and not isinstance(given.costs, str):
        return _checked(given, given.costs, model), "given as a variable"
    if given.costs is not None and os.path.exists(given.costs):
        return _checked(given, hl.CostModel.from_json(given.costs), model), f"from {given.costs}"
    if given.devices is None:
        raise ArgumentError(f"Name two devices or more: -d GPU,CPU. Devices: {_devices_here()}.")
    if given.costs is not None:
        check_writable(given.costs)
    names = Priorities.parse(given.devices).devices
    _check_limits(given, names, model)
    own = device_properties(given, names)
    costs = _call(hl.calibrate, given, model, names, device_properties=own)
    if given.costs is not None:
        costs.to_json(given.costs)
    if costs.interrupted:
        kept = given.costs is not None
        raise KeyboardInterrupt(f"The costs measured by then are in {given.costs}." * kept)
    return costs, "measured now"


def _checked(given: Namespace, costs: CostModel, model: PreparedModel) -> CostModel:
    """Return stored costs if they hold for the model, the devices and their properties."""
    text = given.devices
    # A plan from stored costs needs no device, so these are not looked for.
    if text is not None and values.names(text.removeprefix("HETERO:")) != [*costs.devices]:
        raise ArgumentError(
            f"-d {shorten(text)} differs from the devices that the costs hold for: "
            f"{','.join(costs.devices)}, in this order. Leave -d out, or measure anew with "
            "another --costs."
        )
    costs.check_graph(model.graph)
    for device, properties in values.properties(given.property).items():
        held = costs.device_properties.get(device, {})
        for key, value in properties.items():
            if str(held.get(key)) != str(value):
                raise ArgumentError(
                    f"These costs were not measured with {device}.{key}={value}. Leave --property "
                    "out, or measure anew with another --costs."
                )
    return costs


def _check_limits(given: Namespace, names: tuple[str, ...], model: PreparedModel) -> None:
    """Find wrong limits and pins before a minute of measuring."""
    from hetero_lab.backend.bound import bind
    from hetero_lab.backend.devices import supported_ops
    from hetero_lab.planning.memory import memory_pools

    memory_pools(names, values.memory_limit(given.memory_limit) or None)
    everywhere = hl.Affinity.from_graph(model.graph, lambda _: "")
    for pattern, device in values.pins(given.pin).items():
        if device not in names:
            raise ArgumentError(
                f"--pin names {shorten(device)}, which is not planned for. Devices: "
                f"{', '.join(names)}."
            )
        able = supported_ops(bind(model), device)
        pinned = everywhere.fix(patterns={pattern: device}).diff(everywhere)["op"]
        refused = [op for op in pinned if op not in able]
        if refused:
            raise ArgumentError(
                f"--pin {shorten(pattern)} keeps {names_at_hand(refused, 4)} on {device}, which "
                "does not support them. Make the pattern narrower."
            )
