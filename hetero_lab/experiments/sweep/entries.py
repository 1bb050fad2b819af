"""What a sweep measures, expanded to entries.

That is models × placements × properties × executors × requests.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from hetero_lab.backend.bound import BoundModel
from hetero_lab.backend.devices import check_device, device_names, supported_ops
from hetero_lab.backend.properties import merged_properties
from hetero_lab.backend.virtual import KINDS, virtual_device
from hetero_lab.errors import (
    AffinityError,
    ArgumentError,
    DeviceError,
    PropertyError,
    names_at_hand,
    shorten,
)
from hetero_lab.experiments.sweep.options import Dimensions
from hetero_lab.experiments.sweep.records import StoredEntry
from hetero_lab.experiments.workers.requests import Job
from hetero_lab.model.blocks import block_range, find_blocks
from hetero_lab.model.language import Scenario
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.model.read import Source, prepare
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import (
    BoundPlacement,
    Placement,
    PlacementLike,
    carried_over,
    resolve,
)
from hetero_lab.placement.priorities import Priorities
from hetero_lab.runtime.runners import EXECUTORS, HETERO, Execution

if TYPE_CHECKING:
    import openvino as ov


FROM_CACHE = "model cache"
Placements: TypeAlias = "Iterable[PlacementLike] | Mapping[str, PlacementLike]"


@dataclass(frozen=True)
class Entry:
    """One row of a sweep. ``key`` identifies what is measured; rows that share it share it all."""

    key: str
    label: str
    variant: str
    placement: Placement
    requests: int = 1
    baseline: bool = False
    problem: str = ""
    properties: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    executor: str = HETERO
    scenario: Scenario | None = None
    model_cache: bool = False

    def stored(self, graph: OpGraph) -> StoredEntry:
        """Return the entry as the header of a store has it."""
        affinity = self.placement.affinity
        return StoredEntry(
            key=self.key,
            label=self.label,
            variant=self.variant,
            affinity=[affinity[op.name] for op in graph],
            devices=list(self.placement.devices),
            device_properties=self._plain_properties(),
            direct=self.placement.direct,
            requests=self.requests,
            baseline=self.baseline,
            problem=self.problem,
            asked=True,
            executor=self.executor,
            scenario=self.scenario,
            model_cache=self.model_cache,
        )

    def job(self, *, compare: bool, cache_dir: str = "") -> Job:
        """Return what a bench is asked to compile."""
        return Job(
            key=self.key,
            label=self.label,
            variant=self.variant,
            affinity=dict(self.placement.affinity),
            device_properties=self._plain_properties(),
            direct=self.placement.direct,
            executor=self.executor,
            requests=self.requests,
            cache_dir=cache_dir,
            from_cache=self.model_cache,
            compare=compare,
            scenario=self.scenario,
        )

    def _plain_properties(self) -> dict[str, dict[str, Any]]:
        return {d: {k: _plain(v) for k, v in p.items()} for d, p in self.properties.items()}


def priority_orders(devices: Sequence[str], *, core: ov.Core | None = None) -> list[Priorities]:
    """Return every order of the devices: ``HETERO:A,B``, ``HETERO:B,A``, …

    Raises
    ------
    DeviceError
        No device, one twice, or one that is not here.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> acc = hl.emulate("ACC")
    >>> [str(order) for order in hl.priority_orders(["ACC", "CPU"])]
    ['HETERO:ACC,CPU', 'HETERO:CPU,ACC']
    """
    every = Priorities.parse(devices, core).devices
    return [Priorities(order) for order in itertools.permutations(every)]


def block_cuts(
    model: Source,
    devices: Sequence[str],
    after: Iterable[int] | None = None,
    *,
    core: ov.Core | None = None,
) -> list[Placement]:
    """Return the placements that cut a model between two of its blocks, for a sweep.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes; it has repeated layers (see
        :func:`hetero_lab.blocks`).
    devices
        Two devices or more. Each pair takes a model in either order.
    after
        The blocks after which to cut; by default all but the last.

    Returns
    -------
    list of Placement
        For each cut and each order of two devices one, labelled ``"0-14 GPU, 15-29 CPU"``.

    Raises
    ------
    AffinityError
        The model has no repeated layers, or no block follows one of ``after``.
    DeviceError
        Fewer than two devices, one twice, or one that is not here.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> acc = hl.emulate("ACC")
    >>> [cut.label for cut in hl.block_cuts("digits_inception", ["ACC", "CPU"])]
    ['0 ACC, 1 CPU', '0 CPU, 1 ACC']
    """
    graph = prepare(model).graph
    every = Priorities.parse(devices, core).devices
    if len(every) < 2:
        raise DeviceError("A cut has a device on either side: give two devices or more.")
    found = find_blocks(graph)
    n_blocks = found.n_blocks
    if not n_blocks:
        raise AffinityError(f"{shorten(graph.name)} has no repeated layers to cut between.")
    cuts = list(range(n_blocks - 1)) if after is None else list(dict.fromkeys(after))
    for cut in cuts:
        if not 0 <= cut < n_blocks - 1:
            raise AffinityError(
                f"There is no cut after block {cut}: the model has {n_blocks} blocks, and the last "
                f"cut is after block {n_blocks - 2}."
            )
    placements = []
    for cut, (first, second) in itertools.product(cuts, itertools.permutations(every, 2)):
        above, below = block_range(0, cut), block_range(cut + 1, n_blocks - 1)
        sides = (first if block <= cut else second for block in found.of_op)
        by_name = dict(zip((op.name for op in graph.ops), sides, strict=True))
        affinity = Affinity.from_graph(graph, by_name)
        placements.append(Placement(affinity, f"{above} {first}, {below} {second}"))
    return placements


def expand(
    models: Mapping[str, BoundModel], placements: Placements, dimensions: Dimensions
) -> list[Entry]:
    """Return the entries in order, the single-device baselines last.

    Raises
    ------
    ArgumentError
        Nothing to measure, an unknown dimension or executor, a label twice with different
        meaning, or something that an executor cannot run.
    """
    labelled = _by_label(placements)
    settings = _settings(dimensions.grid, next(iter(models.values())).core)
    _check_requests(dimensions.requests)
    _check_model_cache(dimensions.model_cache)
    ways = [
        Execution(name, n, scenario=dimensions.scenario)
        for name in _executors(dimensions.executor)
        for n in dimensions.requests
    ]
    entries: list[Entry] = []
    many = len(models) > 1
    for name, bound in models.items():
        for given, asked in labelled:
            placed = resolve(bound, carried_over(bound.graph, asked) if many else asked)
            if given:
                placed = BoundPlacement(bound, replace(placed.placement, label=given))
            for suffix, changes in settings:
                changed = _with_properties(placed, changes)
                for way, cached in itertools.product(ways, dimensions.model_cache):
                    way.check(changed)
                    extra = [name] if many else []
                    extra += [suffix] if suffix else []
                    extra += [way.executor] if way.executor != HETERO else []
                    extra += [f"{way.requests} requests"] if way.requests > 1 else []
                    extra += [FROM_CACHE] if cached else []
                    label = " · ".join([placed.label or "placement", *extra])
                    entries.append(_entry(label, name, changed, way, model_cache=cached))
        if dimensions.baselines:
            alone = Execution(scenario=dimensions.scenario)
            entries += _baselines(name, bound, [asked for _, asked in labelled], alone, many=many)
    entries = _distinct_labels(entries)
    if not dimensions.dedupe:
        entries = [replace(e, key=f"{e.key}-{number}") for number, e in enumerate(entries)]
    return entries


def _by_label(placements: Any) -> list[tuple[str, Any]]:
    """Return each placement with the label that it was given here, if any."""
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


def _settings(
    grid: Mapping[str, Sequence[Any]], core: ov.Core
) -> list[tuple[str, dict[str, dict[str, Any]]]]:
    """Return the cross product of the dimensions as (label, properties by device)."""
    if not isinstance(grid, Mapping):
        raise ArgumentError("grid= maps dimensions like 'CPU.INFERENCE_PRECISION_HINT' to values.")
    axes: list[list[tuple[str, str, str, Any]]] = []
    for dimension, values in grid.items():
        device, dot, key = str(dimension).partition(".")
        # GPU.0.NUM_STREAMS: the device's own name may have a dot.
        number, second, rest = key.partition(".")
        if second and number.isdigit():
            device, key = f"{device}.{number}", rest
        if not dot or not key:
            raise ArgumentError(
                f"{shorten(str(dimension))} is no dimension of a grid. Dimensions are "
                "'DEVICE.PROPERTY' or '*.PROPERTY' (all devices), for instance "
                "'CPU.INFERENCE_PRECISION_HINT'. Placements, models and requests have arguments "
                "of their own."
            )
        if device not in ("*", *KINDS):
            check_device(device, core)
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ArgumentError(f"The dimension {dimension} needs a list of values.")
        axes.append([(f"{dimension}={value}", device, key, value) for value in values])
    combined: list[tuple[str, dict[str, dict[str, Any]]]] = []
    for combination in itertools.product(*axes):
        properties: dict[str, dict[str, Any]] = {}
        for _, device, key, value in combination:
            properties.setdefault(device, {})[key] = value
        combined.append((", ".join(label for label, *_ in combination), properties))
    return combined


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


def _entry(
    label: str,
    variant: str,
    placed: BoundPlacement,
    way: Execution,
    *,
    baseline: bool = False,
    model_cache: bool = False,
) -> Entry:
    properties = placed.properties
    identity = [
        variant,
        [placed.affinity[op.name] for op in placed.graph],
        {d: {k: str(v) for k, v in sorted(p.items())} for d, p in sorted(properties.items())},
        placed.direct,
        way.requests,
    ]
    if way.executor != HETERO:
        identity.append(way.executor)
    if way.scenario is not None:
        identity.append(asdict(way.scenario))
    if model_cache:
        identity.append(FROM_CACHE)
    key = hashlib.blake2b(json.dumps(identity).encode(), digest_size=8).hexdigest()
    return Entry(
        key,
        label,
        variant,
        placed.placement,
        way.requests,
        baseline,
        properties=properties,
        executor=way.executor,
        scenario=way.scenario,
        model_cache=model_cache,
    )


def _baselines(
    name: str, bound: BoundModel, placements: Sequence[Any], alone: Execution, *, many: bool
) -> list[Entry]:
    """Return each used device alone, where it can run the whole model."""
    used: dict[str, dict[str, Any]] = {}
    here = device_names(bound.core)
    for asked in placements:
        for text in [str(asked)] if isinstance(asked, Priorities | str) else []:
            virtual = virtual_device(text, bound.core)
            named = virtual.devices if virtual else text.removeprefix("HETERO:").split(",")
            for device in named:
                if device in here:
                    used.setdefault(device, {})
        if isinstance(asked, Affinity):
            for device in asked.devices:
                used.setdefault(device, {})
        if isinstance(asked, Placement):
            for device in (*asked.devices, *asked.device_properties):
                if device in KINDS:
                    continue
                used.setdefault(device, {}).update(asked.device_properties.get(device, {}))
    entries = []
    for device, properties in used.items():
        affinity = Affinity.on_one(bound.graph, device)
        if not set(affinity.ops) <= supported_ops(bound, device):
            continue
        label = f"{device} · {name}" if many else device
        placed = resolve(bound, Placement(affinity, label, {device: properties}, direct=True))
        entries.append(_entry(label, name, placed, alone, baseline=True))
    return entries


def _distinct_labels(entries: Sequence[Entry]) -> list[Entry]:
    """Number labels that stand for different things; drop baselines that were asked for anyway."""
    taken: dict[str, int] = {}
    asked = {(e.key, e.label) for e in entries if not e.baseline}
    distinct: list[Entry] = []
    for entry in entries:
        if entry.baseline and (entry.key, entry.label) in asked:
            continue
        count = taken.get(entry.label, 0) + 1
        taken[entry.label] = count
        label = entry.label if count == 1 else f"{entry.label} #{count}"
        while count > 1 and label in taken:
            count += 1
            label = f"{entry.label} #{count}"
        taken.setdefault(label, 1)
        distinct.append(replace(entry, label=label))
    return distinct


def _executors(executor: str | Sequence[str]) -> list[str]:
    names = [executor] if isinstance(executor, str) else executor
    if not isinstance(names, Sequence) or not names:
        raise ArgumentError(
            f"executor= is {' or '.join(map(repr, EXECUTORS))}, or a list of them, "
            f"not {shorten(repr(executor))}."
        )
    return list(dict.fromkeys(names))


def _check_requests(requests: Sequence[int]) -> None:
    right = isinstance(requests, Sequence) and len(requests) > 0
    if not right or not all(
        isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in requests
    ):
        raise ArgumentError(
            f"requests= is a list of whole numbers of at least 1, for instance [1, 4], "
            f"not {requests!r}."
        )


def _check_model_cache(model_cache: Sequence[bool]) -> None:
    right = isinstance(model_cache, Sequence) and len(model_cache) > 0
    if not right or not all(isinstance(cached, bool) for cached in model_cache):
        raise ArgumentError(
            "model_cache= is a list of True and False: [False, True] measures each placement "
            f"compiled and loaded from a cache, not {model_cache!r}."
        )


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else str(value)
