"""Placement: an affinity with device properties, and how short forms are resolved to one."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from hetero_lab.arguments import checked
from hetero_lab.backend.bound import BoundModel
from hetero_lab.backend.devices import (
    check_device,
    device_names,
    supported_ops,
    unsupported_message,
)
from hetero_lab.backend.emulation import emulated_devices, plain
from hetero_lab.backend.properties import check_properties, merged_properties
from hetero_lab.backend.virtual import VirtualDevice, parse_virtual, virtual_device
from hetero_lab.errors import AffinityError, ArgumentError, DeviceError, shorten
from hetero_lab.model.blocks import block_range, find_blocks
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.model.read import Source, prepare
from hetero_lab.placement.affinity import Affinity, first_able, greedy
from hetero_lab.placement.priorities import Priorities

if TYPE_CHECKING:
    import openvino as ov


@checked
@dataclass(frozen=True)
class Placement:
    """An affinity with the properties of each device and a label.

    ``direct`` compiles on the only device without HETERO in between, as
    ``core.compile_model(model, device)`` does. That device may be a virtual one,
    ``AUTO:GPU,CPU``; its own properties are then under its kind: ``{"AUTO": {…}, "CPU": {…}}``.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> cpu = hl.Affinity.uniform(model, "CPU")
    >>> hl.Placement(cpu, "in f32", {"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}).label
    'in f32'
    """

    affinity: Affinity
    label: str = ""
    device_properties: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    direct: bool = False

    def __post_init__(self) -> None:
        # As text, so that properties can be stored and sent to a worker.
        as_text = {device: plain(given) for device, given in self.device_properties.items()}
        object.__setattr__(self, "device_properties", as_text)
        if self.direct and len(self.affinity.devices) != 1:
            raise ArgumentError("direct=True needs an affinity with one device only.")

    @property
    def virtual(self) -> VirtualDevice | None:
        """The virtual device that it is compiled for, if it is one."""
        return parse_virtual(self.affinity.devices[0]) if self.direct else None

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that may run it."""
        return self.virtual.devices if self.virtual else tuple(self.affinity.devices)

    @checked
    def with_properties(self, changes: Mapping[str, Mapping[str, Any]]) -> Placement:
        """Return the same placement with more properties of its devices.

        Each one wins over the same one here; all others stay.

        Examples
        --------
        >>> import hetero_lab as hl
        >>> cpu = hl.Affinity.uniform(hl.load("digits_inception"), "CPU")
        >>> exact = hl.Placement(cpu, "exact", {"CPU": {"INFERENCE_PRECISION_HINT": "f32"}})
        >>> exact.with_properties({"CPU": {"NUM_STREAMS": "1"}}).device_properties
        {'CPU': {'INFERENCE_PRECISION_HINT': 'f32', 'NUM_STREAMS': '1'}}
        """
        together = merged_properties(self.device_properties, changes)
        return replace(self, device_properties=together)

    def __repr__(self) -> str:
        return f"Placement({self.label!r}, {self.affinity!r})"


PlacementLike: TypeAlias = "Placement | Affinity | Priorities | str"


@dataclass(frozen=True)
class BoundPlacement:
    """A placement of a bound model; who makes one without :func:`resolve` vouches for it."""

    bound: BoundModel
    placement: Placement

    @property
    def graph(self) -> OpGraph:
        """The model's graph."""
        return self.bound.graph

    @property
    def core(self) -> ov.Core:
        """The Core that compiles it."""
        return self.bound.core

    @property
    def affinity(self) -> Affinity:
        """The device of every node."""
        return self.placement.affinity

    @property
    def label(self) -> str:
        """Its name in tables."""
        return self.placement.label

    @property
    def direct(self) -> bool:
        """Whether it is compiled without HETERO."""
        return self.placement.direct

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that may run it."""
        return self.placement.devices

    @cached_property
    def properties(self) -> dict[str, dict[str, Any]]:
        """Each used device's properties: an emulated one's defaults, then the placement's."""
        defaults = {d: spec.properties for d, spec in emulated_devices(self.core).items()}
        merged = merged_properties(defaults, self.placement.device_properties)
        virtual = self.placement.virtual
        used = (*self.devices, virtual.kind) if virtual else self.devices
        return {device: merged.get(device, {}) for device in used}

    @property
    def compile_call(self) -> tuple[str, dict[str, Any]]:
        """The device and the properties that it is compiled with."""
        if self.placement.virtual:
            return self.placement.virtual.compile_call(self.properties, self.core)
        if self.direct:
            (device,) = self.properties
            return device, self.properties[device]
        return "HETERO:" + ",".join(self.properties), {"DEVICE_PROPERTIES": self.properties}


def resolve(bound: BoundModel, placement: PlacementLike) -> BoundPlacement:
    """Bind a Placement, an Affinity, ``"HETERO:ACC,CPU"`` or ``"CPU"``, and check it.

    ``"AUTO:GPU,CPU"``, ``"MULTI:GPU,CPU"`` and ``"BATCH:GPU(8)"`` are devices as well. Raises
    AffinityError for an affinity of another model, DeviceError for a device that is not here or
    does not support an op placed on it, and PropertyError for a wrong device property.
    """
    if isinstance(placement, Priorities):
        placement = str(placement)
    if isinstance(placement, str):
        resolved = _from_text(bound, placement)
    elif isinstance(placement, Affinity):
        resolved = Placement(placement, label="affinity")
    elif isinstance(placement, Placement):
        resolved = placement
    else:
        raise ArgumentError(
            "A placement is a hetero_lab.Placement, an Affinity, 'HETERO:GPU,CPU' or 'CPU', "
            f"not {type(placement).__name__}. A name for the tables: "
            "hetero_lab.Placement(affinity, 'name')."
        )
    _check(bound, resolved)
    return BoundPlacement(bound, resolved)


def carried_over(graph: OpGraph, placement: PlacementLike) -> PlacementLike:
    """Return a placement as it is, or carried to this variant if it was made for another."""
    affinity = placement.affinity if isinstance(placement, Placement) else placement
    if not isinstance(affinity, Affinity) or set(affinity) == set(graph.index_of):
        return placement
    carried = affinity.onto(graph)
    return replace(placement, affinity=carried) if isinstance(placement, Placement) else carried


def _from_text(bound: BoundModel, text: str) -> Placement:
    if text == "HETERO" or text.startswith("HETERO:"):
        priorities = Priorities.parse(text, bound.core)
        return Placement(greedy(bound, priorities.devices), str(priorities))
    virtual = virtual_device(text, bound.core)
    if virtual is not None:
        return Placement(Affinity.on_one(bound.graph, str(virtual)), text, direct=True)
    if "," in text:
        Priorities.parse(text, bound.core)
        raise DeviceError(f"Several devices need HETERO: 'HETERO:{text}'.")
    return Placement(Affinity.on_one(bound.graph, text), text, direct=True)


def _check(bound: BoundModel, placement: Placement) -> None:
    affinity, graph, core = placement.affinity, bound.graph, bound.core
    affinity.check_model(graph)
    virtual = placement.virtual
    for device in placement.devices:  # OpenVINO silently leaves out missing ones of a virtual one
        check_device(device, core)
    if virtual is not None:
        virtual.check(bound)
    for device in () if virtual else affinity.devices:
        able = supported_ops(bound, device)
        refused = [
            (name, graph.ops[graph.index_of[name]].type)
            for name in affinity.ops
            if affinity[name] == device and name not in able
        ]
        if refused:
            raise DeviceError(unsupported_message([device], refused))
    for device, properties in placement.device_properties.items():
        if virtual is None or device != virtual.kind:
            check_device(device, core)
        check_properties(device, properties, core=core)


class Knowledge(Protocol):
    """The part of a cost model that says which ops its devices support."""

    @property
    def devices(self) -> tuple[str, ...]: ...
    def supports(self, device: str) -> frozenset[str]: ...


def absent_devices(bound: BoundModel, devices: Sequence[str], known: Knowledge) -> list[str]:
    """Return the devices that a cost model knows but this machine lacks."""
    here = device_names(bound.core)
    listed = {*here, *(device.partition(".")[0] for device in here)}
    return [device for device in devices if device in known.devices and device not in listed]


def first_known(graph: OpGraph, devices: Sequence[str], known: Knowledge) -> Affinity:
    """Put each op on the first of the devices that supports it by a cost model."""
    constant = {graph.ops[index].name for index in graph.constant_side}
    return first_able(graph, {device: known.supports(device) | constant for device in devices})


def affinity_elsewhere(
    bound: BoundModel, placement: PlacementLike, known: Knowledge
) -> Affinity | None:
    """Return a placement's affinity, checked, if it needs a device that only a cost model knows."""
    if isinstance(placement, str | Priorities):
        names = str(placement).removeprefix("HETERO:").split(",")
        if set(names) <= set(known.devices) and absent_devices(bound, names, known):
            return first_known(bound.graph, names, known)
        return None
    affinity = placement.affinity if isinstance(placement, Placement) else placement
    if not isinstance(affinity, Affinity) or not absent_devices(bound, affinity.devices, known):
        return None
    affinity.check_model(bound.graph)
    for device in affinity.devices:
        if device in known.devices:
            able = known.supports(device)
            refused = [n for n in affinity.ops if affinity[n] == device and n not in able]
            if refused:
                raise DeviceError(
                    f"By its costs, {device} does not support {len(refused)} of the ops placed on "
                    f"it, for instance {refused[0]}."
                )
    return affinity


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
