"""Expand models, placements and the dimensions of a grid to trials.

Each combination of model, placement, properties, executor, requests and model cache is a trial.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from hetero_lab.arguments import HETERO
from hetero_lab.devices.core import BoundModel, bind, storable
from hetero_lab.devices.devices import VIRTUAL, check_device, supported_ops, virtual_device
from hetero_lab.devices.properties import merged_properties
from hetero_lab.errors import (
    ArgumentError,
    HeteroLabError,
    ModelError,
    PropertyError,
    names_at_hand,
    shorten,
)
from hetero_lab.model.language import Scenario
from hetero_lab.model.read import Source
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import (
    BoundPlacement,
    Placement,
    PlacementLike,
    carried_over,
    resolve,
)
from hetero_lab.placement.priorities import Priorities, device_list
from hetero_lab.planning.simplify import simplified_placements, simplify_bound
from hetero_lab.results.records import FROM_CACHE, Trial
from hetero_lab.runtime.executors import check_executor, check_placed

if TYPE_CHECKING:
    import openvino as ov


Variant: TypeAlias = Source | Callable[[], Source]
Placements: TypeAlias = Iterable[PlacementLike] | Mapping[str, PlacementLike]

_DIMENSIONS: dict[str, tuple[Any, ...]] = {
    "executor": (HETERO,),
    "requests": (1,),
    "model_cache": (False,),
}


def expand(
    models: Mapping[str, BoundModel],
    placements: Placements,
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    scenario: Scenario | None = None,
    dedupe: bool = True,
    baselines: bool = True,
    remedies: bool = False,
    problems: Mapping[str, str] | None = None,
) -> list[Trial]:
    """Return the trials of at least one variant in order, the single-device baselines last.

    ``problems`` says why some variants could not be made: their trials have rows, but are not
    measured. Raises ArgumentError if there is nothing to measure, a dimension or executor is
    unknown, or an executor cannot run a placement.
    """
    labelled = _by_label(placements)
    if remedies:
        labelled = list(_with_simplified(next(iter(models.values())), labelled))
    own, properties = _dimensions(grid or {})
    settings = list(_settings(properties, next(iter(models.values())).core))
    for executor, requests in itertools.product(own["executor"], own["requests"]):
        check_executor(executor, requests, scenario)
    trials: list[Trial] = []
    many = len(models) > 1
    for name, bound in models.items():
        problem = (problems or {}).get(name, "")
        for given, asked in labelled:
            placed = resolve(bound, carried_over(bound.graph, asked) if many else asked)
            if given:
                placed = BoundPlacement(bound, replace(placed.placement, label=given))
            for suffix, changes in settings:
                changed = _with_properties(placed, changes)
                for executor, requests, cached in itertools.product(*own.values()):
                    check_placed(changed, executor, requests, scenario)
                    parts = [
                        placed.label or "placement",
                        name if many else "",
                        suffix,
                        executor if executor != HETERO else "",
                        f"{requests} requests" if requests > 1 else "",
                        FROM_CACHE if cached else "",
                    ]
                    label = " · ".join(filter(None, parts))
                    trials.append(
                        trial_of(
                            changed,
                            label,
                            name,
                            executor=executor,
                            requests=requests,
                            scenario=scenario,
                            model_cache=cached,
                            problem=problem,
                        )
                    )
        if baselines and not problem:
            asked = [asked for _, asked in labelled]
            trials += _baselines(name, bound, asked, scenario, many=many)
    trials = list(_distinct_labels(trials))
    if not dedupe:
        trials = [
            msgspec.structs.replace(t, key=f"{t.key}-{number}") for number, t in enumerate(trials)
        ]
    return trials


def bind_variants(
    model: Source | Mapping[str, Variant], core: ov.Core
) -> tuple[dict[str, BoundModel], dict[str, str]]:
    """Return the bound model of each variant, and why some could not be made.

    A variant that could not be made has the model of another one, so that its rows have labels. If
    none could be made, the error of the first is raised. Raises ArgumentError if there is no
    variant, or an argument of one is wrong.
    """
    if not isinstance(model, Mapping):
        return by_name(bind(model, core)), {}
    if not model:
        raise ArgumentError("There is no model to sweep: the mapping of variants is empty.")
    made: dict[str, BoundModel] = {}
    failures: dict[str, Exception] = {}
    for name, variant in model.items():
        if not callable(variant):
            made[str(name)] = bind(variant, core)
            continue
        try:
            made[str(name)] = bind(variant(), core)
        except ArgumentError as error:
            raise type(error)(f"The variant {shorten(str(name))}: {error}") from error
        except Exception as error:  # the user's function may raise anything, for instance from NNCF
            failures[str(name)] = error
    if not made:
        name, error = next(iter(failures.items()))
        if isinstance(error, HeteroLabError):
            raise error
        raise ModelError(f"The variant {shorten(name)} cannot be made: {_said(error)}") from error
    stand_in = next(iter(made.values()))
    bound = {str(name): made.get(str(name), stand_in) for name in model}
    return bound, {name: _said(error) for name, error in failures.items()}


def by_name(bound: BoundModel) -> dict[str, BoundModel]:
    """Return the mapping of variants for a single model."""
    return {bound.graph.name or "model": bound}


def _said(error: Exception) -> str:
    if isinstance(error, HeteroLabError):
        return str(error)
    return f"{type(error).__name__}: {shorten(str(error), 500)}"


def _by_label(placements: Any) -> list[tuple[str, Any]]:
    """Return each placement with its given label, if any."""
    if isinstance(placements, str | Affinity | Placement | Priorities):
        placements = [placements]
    if isinstance(placements, Mapping):
        found = list(placements.items())
        _check_labelled(placements)
    else:
        try:
            found = [("", asked) for asked in placements]
        except TypeError as error:
            raise ArgumentError(
                "placements= is a list of placements or maps labels to them, for instance "
                "[*hetero_lab.priority_orders(['GPU', 'CPU']), my_affinity] or "
                "{'mine': my_affinity}."
            ) from error
    if not found:
        raise ArgumentError(
            "There is no placement to sweep. Pass for instance "
            "hetero_lab.priority_orders(['GPU', 'CPU'])."
        )
    return found


def _check_labelled(placements: Mapping[Any, Any]) -> None:
    for label, asked in placements.items():
        if not isinstance(label, str) or not label:
            raise ArgumentError(
                "placements= maps labels to placements, for instance {'mine': my_affinity}; "
                f"{shorten(repr(label))} is not a label."
            )
        if not isinstance(asked, str | Affinity | Placement | Priorities):
            raise ArgumentError(
                f"The placement {shorten(label)} has to be a hetero_lab.Placement, an Affinity, "
                f"'HETERO:GPU,CPU' or 'CPU', not {type(asked).__name__}."
            )


def _with_simplified(
    bound: BoundModel, labelled: Sequence[tuple[str, Any]]
) -> Iterator[tuple[str, Any]]:
    """Yield each placement, followed by the one with fewer subgraphs, if there is one."""
    for given, asked in labelled:
        yield given, asked
        placement = resolve(bound, carried_over(bound.graph, asked)).placement
        found = simplify_bound(bound, placement)
        own = placement.device_properties
        if not placement.priorities:  # HETERO divides those by itself
            for label, affinity in simplified_placements(found, given or placement.label).items():
                used = {device: own[device] for device in affinity.devices if device in own}
                yield label, Placement(affinity, label, used)


def _dimensions(
    grid: Mapping[str, Sequence[Any]],
) -> tuple[dict[str, tuple[Any, ...]], dict[str, Sequence[Any]]]:
    """Split a grid into our own dimensions, with their defaults, and those that are properties."""
    if not isinstance(grid, Mapping):
        raise ArgumentError("grid= maps dimensions like 'CPU.INFERENCE_PRECISION_HINT' to values.")
    own, properties = dict(_DIMENSIONS), dict[str, Sequence[Any]]()
    for dimension, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ArgumentError(f"The dimension {dimension} needs a list of values.")
        if dimension in own:
            own[dimension] = tuple(values)
        else:
            properties[dimension] = values
    if not all(isinstance(cached, bool) for cached in own["model_cache"]):
        raise ArgumentError(
            "The dimension model_cache has the values True and False: [False, True] measures each "
            f"placement compiled and loaded from a cache, not {grid['model_cache']!r}."
        )
    return own, properties


def _settings(
    grid: Mapping[str, Sequence[Any]], core: ov.Core
) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    """Yield the cross product of the properties as (label, properties by device)."""
    axes: list[list[tuple[str, str, str, Any]]] = []  # of label, device, property and value
    for dimension, values in grid.items():
        device, dot, key = str(dimension).partition(".")
        # A device name may contain a dot: GPU.0.NUM_STREAMS.
        number, second, rest = key.partition(".")
        if second and number.isdigit():
            device, key = f"{device}.{number}", rest
        if not dot or not key:
            raise ArgumentError(
                f"{shorten(str(dimension))} is not a dimension of a grid. Dimensions are "
                f"{names_at_hand(_DIMENSIONS)}, 'DEVICE.PROPERTY' and '*.PROPERTY' (all "
                "devices), for instance 'CPU.INFERENCE_PRECISION_HINT'."
            )
        if device not in ("*", *VIRTUAL):
            check_device(device, core)
        axes.append([(f"{dimension}={value}", device, key, value) for value in values])
    for combination in itertools.product(*axes):
        properties: dict[str, dict[str, Any]] = {}
        for _, device, key, value in combination:
            properties.setdefault(device, {})[key] = value
        yield ", ".join(label for label, *_ in combination), properties


def _with_properties(
    placed: BoundPlacement, changes: Mapping[str, Mapping[str, Any]]
) -> BoundPlacement:
    if not changes:
        return placed
    placement = placed.placement
    kind = placement.virtual.kind if placement.virtual else ""
    used = (*placement.devices, *([kind] if kind else []))
    levels: list[dict[str, Mapping[str, Any]]] = []
    for device, properties in changes.items():
        if device != "*" and device not in used:
            raise PropertyError(
                f"The placement {shorten(placement.label)} does not use {device} "
                f"(devices: {names_at_hand(used)}), so the grid cannot set "
                f"{names_at_hand(properties)} there."
            )
        levels.append(dict.fromkeys(placement.devices if device == "*" else [device], properties))
    return resolve(placed.bound, placement.with_properties(merged_properties(*levels)))


def trial_of(
    placed: BoundPlacement,
    label: str,
    variant: str,
    *,
    executor: str = HETERO,
    requests: int = 1,
    scenario: Scenario | None = None,
    baseline: bool = False,
    model_cache: bool = False,
    problem: str = "",
) -> Trial:
    """Return the trial of a placement; its key is a hash of all that its time depends on."""
    affinity = tuple(placed.affinity[op.name] for op in placed.graph)
    properties = sorted(placed.properties.items())
    # Stored sweeps are resumed by this key, so its content and order must not change.
    identity: list[Any] = [
        variant,
        affinity,
        {d: {k: str(v) for k, v in sorted(p.items())} for d, p in properties},
        placed.direct,
        requests,
    ]
    if executor != HETERO:
        identity.append(executor)
    if scenario is not None:
        identity.append(asdict(scenario))
    if model_cache:
        identity.append(FROM_CACHE)
    return Trial(
        key=hashlib.blake2b(json.dumps(identity).encode(), digest_size=8).hexdigest(),
        label=label,
        variant=variant,
        affinity=affinity,
        devices=tuple(placed.placement.devices),
        device_properties={d: storable(p) for d, p in properties},
        direct=placed.direct,
        requests=requests,
        baseline=baseline,
        problem=problem,
        executor=executor,
        scenario=scenario,
        model_cache=model_cache,
    )


def _baselines(
    name: str,
    bound: BoundModel,
    placements: Sequence[Any],
    scenario: Scenario | None,
    *,
    many: bool,
) -> Iterator[Trial]:
    """Yield a baseline trial for each used device that can run the whole model alone."""
    used: dict[str, dict[str, Any]] = {}
    for asked in placements:
        own: Mapping[str, Mapping[str, Any]] = {}
        if isinstance(asked, Affinity):
            devices = list(asked.devices)
        elif isinstance(asked, Placement):
            own = asked.labelled().device_properties
            devices = [d for d in (*asked.devices, *own) if d not in VIRTUAL]
        else:
            virtual = virtual_device(str(asked).strip(), bound.core)
            devices = virtual.devices if virtual else device_list(str(asked), bound.core)
        for device in devices:
            used.setdefault(device, {}).update(own.get(device, {}))
    for device, properties in used.items():
        affinity = Affinity.on_one(bound.graph, device)
        if not set(affinity.ops) <= supported_ops(bound, device):
            continue
        label = f"{device} · {name}" if many else device
        placed = resolve(bound, Placement(affinity, label, {device: properties}, direct=True))
        yield trial_of(placed, label, name, scenario=scenario, baseline=True)


def _distinct_labels(trials: Sequence[Trial]) -> Iterator[Trial]:
    """Number labels that occur more than once; drop baselines that were asked for anyway."""
    taken: set[str] = set()
    asked = {(t.key, t.label) for t in trials if not t.baseline}
    for trial in trials:
        if trial.baseline and (trial.key, trial.label) in asked:
            continue
        label, count = trial.label, 1
        while label in taken:
            count += 1
            label = f"{trial.label} #{count}"
        taken.add(label)
        yield msgspec.structs.replace(trial, label=label)
