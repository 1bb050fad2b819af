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
    dimensions, properties = _dimensions(grid or {})
    settings = list(_settings(properties, next(iter(models.values())).core))
    for executor, requests in itertools.product(dimensions["executor"], dimensions["requests"]):
        check_executor(executor, requests, scenario)
    trials: list[Trial] = []
    many = len(models) > 1
    for name, bound in models.items():
        problem = (problems or {}).get(name, "")
        for label, placement in labelled:
            base = resolve(bound, carried_over(bound.graph, placement) if many else placement)
            if label:
                base = BoundPlacement(bound, replace(base.placement, label=label))
            for suffix, changes in settings:
                changed = _with_properties(base, changes)
                for executor, requests, cached in itertools.product(*dimensions.values()):
                    check_placed(changed, executor, requests, scenario)
                    parts = [
                        base.label or "placement",
                        name if many else "",
                        suffix,
                        executor if executor != HETERO else "",
                        f"{requests} requests" if requests > 1 else "",
                        FROM_CACHE if cached else "",
                    ]
                    row_label = " · ".join(filter(None, parts))
                    trials.append(
                        trial_of(
                            changed,
                            row_label,
                            name,
                            executor=executor,
                            requests=requests,
                            scenario=scenario,
                            model_cache=cached,
                            problem=problem,
                        )
                    )
        if baselines and not problem:
            trials += _baselines(name, bound, [p for _, p in labelled], scenario, many=many)
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
    bound_models: dict[str, BoundModel] = {}
    failures: dict[str, Exception] = {}
    for name, variant in model.items():
        if not callable(variant):
            bound_models[str(name)] = bind(variant, core)
            continue
        try:
            bound_models[str(name)] = bind(variant(), core)
        except ArgumentError as error:
            raise type(error)(f"The variant {shorten(str(name))}: {error}") from error
        except Exception as error:  # the user's function may raise anything, for instance from NNCF
            failures[str(name)] = error
    if not bound_models:
        name, error = next(iter(failures.items()))
        if isinstance(error, HeteroLabError):
            raise error
        raise ModelError(
            f"The variant {shorten(name)} cannot be made: {_message(error)}"
        ) from error
    stand_in = next(iter(bound_models.values()))
    bound = {str(name): bound_models.get(str(name), stand_in) for name in model}
    return bound, {name: _message(error) for name, error in failures.items()}


def by_name(bound: BoundModel) -> dict[str, BoundModel]:
    """Return the mapping of variants for a single model."""
    return {bound.graph.name or "model": bound}


def _message(error: Exception) -> str:
    if isinstance(error, HeteroLabError):
        return str(error)
    return f"{type(error).__name__}: {shorten(str(error), 500)}"


def _by_label(placements: Any) -> list[tuple[str, Any]]:
    """Return each placement with its given label, if any."""
    if isinstance(placements, str | Affinity | Placement | Priorities):
        placements = [placements]
    if isinstance(placements, Mapping):
        pairs = list(placements.items())
        _check_labelled(placements)
    else:
        try:
            pairs = [("", placement) for placement in placements]
        except TypeError as error:
            raise ArgumentError(
                "placements= is a list of placements or maps labels to them, for instance "
                "[*hetero_lab.priority_orders(['GPU', 'CPU']), my_affinity] or "
                "{'mine': my_affinity}."
            ) from error
    if not pairs:
        raise ArgumentError(
            "There is no placement to sweep. Pass for instance "
            "hetero_lab.priority_orders(['GPU', 'CPU'])."
        )
    return pairs


def _check_labelled(placements: Mapping[Any, Any]) -> None:
    for label, placement in placements.items():
        if not isinstance(label, str) or not label:
            raise ArgumentError(
                "placements= maps labels to placements, for instance {'mine': my_affinity}; "
                f"{shorten(repr(label))} is not a label."
            )
        if not isinstance(placement, str | Affinity | Placement | Priorities):
            raise ArgumentError(
                f"The placement {shorten(label)} has to be a hetero_lab.Placement, an Affinity, "
                f"'HETERO:GPU,CPU' or 'CPU', not {type(placement).__name__}."
            )


def _with_simplified(
    bound: BoundModel, labelled: Sequence[tuple[str, Any]]
) -> Iterator[tuple[str, Any]]:
    """Yield each placement, followed by the one with fewer subgraphs, if there is one."""
    for label, source in labelled:
        yield label, source
        placement = resolve(bound, carried_over(bound.graph, source)).placement
        simplification = simplify_bound(bound, placement)
        if not placement.priorities:  # HETERO divides those by itself
            properties = placement.device_properties
            simpler = simplified_placements(simplification, label or placement.label)
            for name, affinity in simpler.items():
                subset = {d: properties[d] for d in affinity.devices if d in properties}
                yield name, Placement(affinity, name, subset)


def _dimensions(
    grid: Mapping[str, Sequence[Any]],
) -> tuple[dict[str, tuple[Any, ...]], dict[str, Sequence[Any]]]:
    """Split a grid into our own dimensions, with their defaults, and those that are properties."""
    if not isinstance(grid, Mapping):
        raise ArgumentError("grid= maps dimensions like 'CPU.INFERENCE_PRECISION_HINT' to values.")
    dimensions, properties = dict(_DIMENSIONS), dict[str, Sequence[Any]]()
    for dimension, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ArgumentError(f"The dimension {dimension} needs a list of values.")
        if dimension in dimensions:
            dimensions[dimension] = tuple(values)
        else:
            properties[dimension] = values
    if not all(isinstance(cached, bool) for cached in dimensions["model_cache"]):
        raise ArgumentError(
            "The dimension model_cache has the values True and False: [False, True] measures each "
            f"placement compiled and loaded from a cache, not {grid['model_cache']!r}."
        )
    return dimensions, properties


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
    base: BoundPlacement, changes: Mapping[str, Mapping[str, Any]]
) -> BoundPlacement:
    if not changes:
        return base
    placement = base.placement
    kind = placement.virtual.kind if placement.virtual else ""
    devices = (*placement.devices, *([kind] if kind else []))
    levels: list[dict[str, Mapping[str, Any]]] = []
    for device, properties in changes.items():
        if device != "*" and device not in devices:
            raise PropertyError(
                f"The placement {shorten(placement.label)} does not use {device} "
                f"(devices: {names_at_hand(devices)}), so the grid cannot set "
                f"{names_at_hand(properties)} there."
            )
        levels.append(dict.fromkeys(placement.devices if device == "*" else [device], properties))
    return resolve(base.bound, placement.with_properties(merged_properties(*levels)))


def trial_of(
    bound_placement: BoundPlacement,
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
    affinity = tuple(bound_placement.affinity[op.name] for op in bound_placement.graph)
    properties = sorted(bound_placement.properties.items())
    # Stored sweeps are resumed by this key, so its content and order must not change.
    identity: list[Any] = [
        variant,
        affinity,
        {d: {k: str(v) for k, v in sorted(p.items())} for d, p in properties},
        bound_placement.direct,
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
        devices=tuple(bound_placement.placement.devices),
        device_properties={d: storable(p) for d, p in properties},
        direct=bound_placement.direct,
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
    properties_of: dict[str, dict[str, Any]] = {}
    for placement in placements:
        device_properties: Mapping[str, Mapping[str, Any]] = {}
        if isinstance(placement, Affinity):
            devices = list(placement.devices)
        elif isinstance(placement, Placement):
            device_properties = placement.labelled().device_properties
            devices = [d for d in (*placement.devices, *device_properties) if d not in VIRTUAL]
        else:
            virtual = virtual_device(str(placement).strip(), bound.core)
            devices = virtual.devices if virtual else device_list(str(placement), bound.core)
        for device in devices:
            properties_of.setdefault(device, {}).update(device_properties.get(device, {}))
    for device, properties in properties_of.items():
        affinity = Affinity.on_one(bound.graph, device)
        if not set(affinity.ops) <= supported_ops(bound, device):
            continue
        label = f"{device} · {name}" if many else device
        direct = Placement(affinity, label, {device: properties}, direct=True)
        yield trial_of(resolve(bound, direct), label, name, scenario=scenario, baseline=True)


def _distinct_labels(trials: Sequence[Trial]) -> Iterator[Trial]:
    """Number labels that occur more than once; drop baselines that were asked for anyway."""
    labels: set[str] = set()
    others = {(t.key, t.label) for t in trials if not t.baseline}
    for trial in trials:
        if trial.baseline and (trial.key, trial.label) in others:
            continue
        label, count = trial.label, 1
        while label in labels:
            count += 1
            label = f"{trial.label} #{count}"
        labels.add(label)
        yield msgspec.structs.replace(trial, label=label)
