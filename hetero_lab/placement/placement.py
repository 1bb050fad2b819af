"""Placement: an affinity with device properties, and how short forms are resolved to one."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from hetero_lab.arguments import checked
from hetero_lab.devices.core import BoundModel, bind, emulated_devices, properties_of_devices
from hetero_lab.devices.devices import (
    RATIO,
    VirtualDevice,
    check_device,
    device_names,
    device_of_ops,
    free_bytes,
    parse_virtual,
    supported_ops,
    unsupported_message,
    virtual_device,
)
from hetero_lab.devices.properties import check_properties, merged_properties
from hetero_lab.errors import (
    AffinityError,
    ArgumentError,
    DeviceError,
    PropertyError,
    last_line,
    names_at_hand,
    shorten,
    warn,
)
from hetero_lab.model.blocks import block_range, find_blocks
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.model.read import Source, prepare
from hetero_lab.placement.affinity import Affinity, first_able, greedy, labels_of
from hetero_lab.placement.priorities import Priorities, device_list
from hetero_lab.placement.recipes import recipe
from hetero_lab.placement.topology import islands

if TYPE_CHECKING:
    import openvino as ov


POLICY, PRIORITIES = "MODEL_DISTRIBUTION_POLICY", "MULTI_DEVICE_PRIORITIES"
PIPELINE_PARALLEL = "PIPELINE_PARALLEL"
_ALL = 1.0 - 1e-6  # shares add up to at least this


@checked
@dataclass(frozen=True)
class Placement:
    """An affinity with the properties of each device and a label.

    ``direct`` compiles on the only device without HETERO in between, as
    ``core.compile_model(model, device)`` does. That device may be a virtual one,
    ``AUTO:GPU,CPU``; its own properties are then under its kind: ``{"AUTO": {…}, "CPU": {…}}``.

    A placement of :meth:`balanced` is compiled without labels, for HETERO to divide by itself. Its
    affinity is what HETERO then does, and ``{"HETERO": {…}}`` has the devices that it names.

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
        as_text = properties_of_devices(self.device_properties)
        object.__setattr__(self, "device_properties", as_text)
        if self.direct and len(self.affinity.devices) != 1:
            raise ArgumentError("direct=True needs an affinity with one device only.")

    @property
    def virtual(self) -> VirtualDevice | None:
        """The virtual device that it is compiled for, if it is one."""
        return parse_virtual(self.affinity.devices[0]) if self.direct else None

    @property
    def priorities(self) -> tuple[str, ...]:
        """The devices over which HETERO divides it by itself; empty if its ops are labelled."""
        names = str(self.device_properties.get("HETERO", {}).get(PRIORITIES, ""))
        return tuple(names.split(",")) if names else ()

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that may run it."""
        devices = self.virtual.devices if self.virtual else self.priorities
        return devices or tuple(self.affinity.devices)

    @classmethod
    @checked
    def balanced(
        cls,
        model: Source,
        devices: Sequence[str],
        shares: str | Sequence[float] | None = None,
        *,
        device_properties: Mapping[str, Mapping[str, Any]] | None = None,
        core: ov.Core | None = None,
    ) -> Placement:
        """Divide a model between GPUs in a way that plain OpenVINO repeats from text alone.

        Each device but the last gets a QUERY_MODEL_RATIO: the part of the weights left that it
        takes, in topological order. :func:`hetero_lab.distribution` shows what it really takes,
        :meth:`recipe` what to paste elsewhere. Requests overlap (no EXCLUSIVE_ASYNC_REQUESTS).

        Parameters
        ----------
        model
            Anything that :func:`hetero_lab.load` takes.
        devices
            In the order of the model, ``["GPU.0", "GPU.1"]``; all but the last are GPUs.
        shares
            A number for each device: ``[0.4, 0.6]``. By default equal; ``"memory"`` follows the
            free memory of the devices.
        device_properties
            More properties of the devices.

        Raises
        ------
        ArgumentError
            The shares are not one above 0 for each device, or do not add up to 1.
        DeviceError
            Fewer than two devices, one twice, one that is not here, or an op that none supports.
        PropertyError
            A device before the last one cannot be asked for a part of a model.

        Examples
        --------
        Needs two GPUs, so that it is not run here::

            halves = hl.Placement.balanced(model, ["GPU.0", "GPU.1"])
            print(halves.recipe("genai"))
        """
        bound = bind(model, core)
        every = Priorities.parse(devices, bound.core).devices
        if len(every) < 2:
            raise DeviceError("To share a model takes two devices or more: ['GPU.0', 'GPU.1'].")
        if shares == "memory":
            free = [free_bytes(bound.core, device) for device in every]
            parts = [n_bytes / sum(free) for n_bytes in free]
        elif isinstance(shares, str):
            raise ArgumentError(f"shares={shares!r}: give 'memory' or a number for each device.")
        else:
            equal = [1 / len(every)] * len(every)
            parts = check_shares(equal if shares is None else shares, every)
        label = " + ".join(f"{share:.0%} {d}" for share, d in zip(parts, every, strict=True))
        ratios = dict(zip(every, share_ratios(parts), strict=False))
        return by_ratios(bound, every, ratios, label=label, device_properties=device_properties)

    def labelled(self) -> Placement:
        """Return the same affinity and properties, with labels in place of HETERO's own choice."""
        by_device = {
            device: {key: value for key, value in values.items() if key != RATIO}
            for device, values in self.device_properties.items()
            if device != "HETERO"
        }
        return replace(self, device_properties=by_device)

    @checked
    def recipe(self, runtime: str | None = None) -> str:
        """Return what to paste so that another runtime runs it.

        ``runtime`` is one of those of :func:`hetero_lab.interop.recipe`; by default all of them.
        ArgumentError for another one, and for a placement that labels ops.
        """
        if not self.priorities:
            raise ArgumentError(
                "This placement labels the ops of a model: "
                "hetero_lab.interop.recipe(model, placement, runtime)."
            )
        return recipe(*hetero_call(self.priorities, self.device_properties), runtime)

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
        return replace(self, device_properties=merged_properties(self.device_properties, changes))

    def __repr__(self) -> str:
        return f"Placement({self.label!r}, {self.affinity!r})"


PlacementLike: TypeAlias = Placement | Affinity | Priorities | str


@dataclass(frozen=True)
class BoundPlacement:
    """A placement of a bound model; who makes one without :func:`resolve` vouches for it."""

    bound: BoundModel
    placement: Placement

    @property
    def graph(self) -> OpGraph:
        return self.bound.graph

    @property
    def core(self) -> ov.Core:
        return self.bound.core

    @property
    def affinity(self) -> Affinity:
        return self.placement.affinity

    @property
    def label(self) -> str:
        return self.placement.label

    @property
    def direct(self) -> bool:
        return self.placement.direct

    @property
    def devices(self) -> tuple[str, ...]:
        return self.placement.devices

    @cached_property
    def properties(self) -> dict[str, dict[str, Any]]:
        """Each used device's properties: an emulated one's defaults, then the placement's."""
        defaults = {d: spec.properties for d, spec in emulated_devices(self.core).items()}
        merged = merged_properties(defaults, self.placement.device_properties)
        virtual = self.placement.virtual
        kind = virtual.kind if virtual else "HETERO" if self.placement.priorities else None
        names = (*self.devices, kind) if kind else self.devices
        return {device: merged.get(device, {}) for device in names}

    @property
    def compile_call(self) -> tuple[str, dict[str, Any]]:
        """The device and the properties that it is compiled with."""
        if self.placement.virtual:
            return self.placement.virtual.compile_call(self.properties, self.core)
        if self.direct:
            (device,) = self.properties
            return device, self.properties[device]
        return hetero_call(self.devices, self.properties)


def hetero_call(
    devices: Sequence[str], by_device: Mapping[str, Mapping[str, Any]]
) -> tuple[str, dict[str, Any]]:
    """Return the device string and the properties with which HETERO runs on some devices."""
    of_devices = {device: dict(by_device[device]) for device in devices if device in by_device}
    of_hetero = {k: value for k, value in by_device.get("HETERO", {}).items() if k != PRIORITIES}
    return "HETERO:" + ",".join(devices), {**of_hetero, "DEVICE_PROPERTIES": of_devices}


def resolve(bound: BoundModel, placement: PlacementLike) -> BoundPlacement:
    """Bind a Placement, an Affinity, ``"HETERO:ACC,CPU"`` or ``"CPU"``, and check it.

    ``"AUTO:GPU,CPU"``, ``"MULTI:GPU,CPU"`` and ``"BATCH:GPU(8)"`` are devices as well. Raises
    AffinityError for an affinity of another model, DeviceError for a device that is not here or
    does not support an op placed on it, and PropertyError for a wrong device property.
    """
    if isinstance(placement, str | Priorities):
        resolved = _from_text(bound, str(placement))
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


def with_label(affinity: Affinity, label: str) -> Placement:
    """Return an affinity with a label; wholly of one device it is that device and has its name."""
    if len(affinity.devices) == 1:
        return Placement(affinity, affinity.devices[0], direct=True)
    return Placement(affinity, label)


def carried_over(graph: OpGraph, placement: PlacementLike) -> PlacementLike:
    """Return a placement as it is, or carried to this variant if it was made for another."""
    affinity = placement.affinity if isinstance(placement, Placement) else placement
    if not isinstance(affinity, Affinity) or set(affinity) == set(graph.index_of):
        return placement
    carried = affinity.onto(graph)
    if isinstance(placement, Placement):  # HETERO would divide the variant otherwise
        return replace(placement.labelled(), affinity=carried)
    return carried


def _from_text(bound: BoundModel, text: str) -> Placement:
    text = text.strip()
    if text == "HETERO" or text.startswith("HETERO:"):
        priorities = Priorities.parse(text, bound.core)
        if labelled := sorted({*labels_of(bound.model).values()}):
            warn(
                f"The labels of the model's ops ({names_at_hand(labelled)}) are not used: "
                "'HETERO:…' places by support alone. hetero_lab.Affinity.of(model) takes them."
            )
        return Placement(greedy(bound, priorities.devices), str(priorities))
    virtual = virtual_device(text, bound.core)
    if virtual is not None:
        return Placement(Affinity.on_one(bound.graph, str(virtual)), text, direct=True)
    if "," in text:
        Priorities.parse(text, bound.core)
        raise DeviceError(f"Several devices need HETERO: 'HETERO:{text}'.")
    return Placement(Affinity.on_one(bound.graph, text), text, direct=True)


def _unsupported_ops(affinity: Affinity, device: str, able: Collection[str]) -> list[str]:
    return [name for name in affinity.ops if affinity[name] == device and name not in able]


def _check(bound: BoundModel, placement: Placement) -> None:
    affinity, graph, core = placement.affinity, bound.graph, bound.core
    affinity.check_model(graph)
    virtual = placement.virtual
    for device in placement.devices:  # OpenVINO silently leaves out missing ones of a virtual one
        check_device(device, core)
    if virtual is not None:
        virtual.check(bound)
    for device in () if virtual else affinity.devices:
        if refused := _unsupported_ops(affinity, device, supported_ops(bound, device)):
            typed = [(name, graph.op(name).type) for name in refused]
            raise DeviceError(unsupported_message([device], typed))
    for device, properties in placement.device_properties.items():
        if device == "HETERO":
            check_own_properties(properties)
            continue
        if virtual is None or device != virtual.kind:
            check_device(device, core)
        check_properties(device, properties, core=core)
        if RATIO in properties and not placement.priorities:
            raise PropertyError(
                f"{RATIO} of {device} has no effect, because the ops of this placement are "
                "labelled. Placement.balanced(model, devices, shares) makes one that obeys it."
            )
    if placement.priorities:
        _check_divided(bound, placement)


def share_ratios(shares: Sequence[float]) -> list[float]:
    """Return the ratios that give each device its share of a model; the last one needs none."""
    return [share / sum(shares[number:]) for number, share in enumerate(shares[:-1])]


def check_shares(shares: Sequence[Any], devices: Sequence[str]) -> list[float]:
    """Return the shares as numbers; ArgumentError unless each device has one and they make 1."""
    example = f"for instance {[round(1 / len(devices), 2)] * len(devices)}"
    numbers = [float(share) for share in shares if isinstance(share, (int, float))]
    if not len(numbers) == len(shares) == len(devices):
        raise ArgumentError(
            f"shares= has a number for each of the {len(devices)} devices, {example}."
        )
    if not all(share > 0.0 for share in numbers) or not _ALL <= sum(numbers) <= 2.0 - _ALL:
        raise ArgumentError(
            f"The shares {numbers} add up to {sum(numbers):.3g}. They have to be above 0 and add "
            f"up to 1, {example}. To leave a device empty, do not name it."
        )
    return numbers


def check_own_properties(properties: Mapping[str, Any]) -> None:
    """Raise PropertyError unless these are properties of HETERO, for it to divide a model."""
    if PRIORITIES not in properties or set(properties) - {PRIORITIES, POLICY}:
        raise PropertyError(
            f"Properties of HETERO are {PRIORITIES} (the devices between which it divides a model "
            f"by itself) and, with it, {POLICY}, not {names_at_hand(properties)}. "
            "hetero_lab.distribution(model, 'HETERO:GPU.0,GPU.1', policy=…).placement has both."
        )
    check_policy(properties.get(POLICY))


def check_policy(policy: str | None) -> None:
    """Raise PropertyError unless HETERO runs this policy."""
    if policy not in (None, PIPELINE_PARALLEL):
        raise PropertyError(
            f"HETERO has no policy {shorten(str(policy))}, only {PIPELINE_PARALLEL!r}."
        )


def by_ratios(
    bound: BoundModel,
    devices: Sequence[str],
    ratios: Mapping[str, float],
    *,
    label: str,
    device_properties: Mapping[str, Mapping[str, Any]] | None = None,
) -> Placement:
    """Return the placement that HETERO makes by itself, given ratios."""
    properties = merged_properties(
        {device: {"EXCLUSIVE_ASYNC_REQUESTS": False} for device in devices},
        properties_of_devices(device_properties or {}),
        {device: {RATIO: round(ratio, 6)} for device, ratio in ratios.items()},
        {"HETERO": {PRIORITIES: ",".join(devices)}},
    )
    for device in devices:
        check_properties(device, properties[device], core=bound.core)
    return Placement(own_affinity(bound, devices, properties), label, properties)


def own_affinity(
    bound: BoundModel, devices: Sequence[str], properties: Mapping[str, Mapping[str, Any]]
) -> Affinity:
    """Ask HETERO where it would place each op by itself; nothing is compiled."""
    graph = bound.graph
    try:
        claimed = device_of_ops(bound, *hetero_call(devices, properties))
    except DeviceError as error:
        raise DeviceError(
            f"HETERO cannot divide this model over {', '.join(devices)} by itself: "
            f"{last_line(error.__cause__ or error)}. hetero_lab.fit_blocks and Affinity.by_block "
            "label its ops instead."
        ) from error.__cause__
    ops = (graph.ops[index] for index in graph.placeable)
    if refused := [(op.name, op.type) for op in ops if op.name not in claimed]:
        raise DeviceError(unsupported_message(devices, refused))
    return Affinity.from_graph(graph, lambda op: claimed.get(op, devices[-1]))


def _check_divided(bound: BoundModel, placement: Placement) -> None:
    if (parts := islands(bound.graph)) > 1:
        raise AffinityError(
            f"{shorten(bound.graph.name)} has {parts} parts that are not connected, and HETERO by "
            "itself swaps inputs or outputs of such a model. Use placement.labelled()."
        )
    now = own_affinity(bound, placement.priorities, BoundPlacement(bound, placement).properties)
    if moved := [op for op in now.ops if now[op] != placement.affinity[op]]:
        raise AffinityError(
            f"HETERO divides this model by itself and would place {len(moved)} ops otherwise than "
            f"the affinity says, for instance {shorten(moved[0])}. placement.labelled() keeps to "
            "the affinity; Placement.balanced takes other properties as device_properties=."
        )


class Knowledge(Protocol):
    """The part of a cost model that says which ops its devices support."""

    @property
    def devices(self) -> tuple[str, ...]: ...
    def supports(self, device: str) -> frozenset[str]: ...


def absent_devices(bound: BoundModel, devices: Sequence[str], costs: Knowledge) -> list[str]:
    """Return the devices that a cost model knows but this machine lacks."""
    here = device_names(bound.core)
    listed = {*here, *(device.partition(".")[0] for device in here)}
    return [device for device in devices if device in costs.devices and device not in listed]


def greedy_by_costs(graph: OpGraph, devices: Sequence[str], costs: Knowledge) -> Affinity:
    """Put each op on the first of the devices that supports it by a cost model."""
    constant = {graph.ops[index].name for index in graph.constant_side}
    return first_able(graph, {device: costs.supports(device) | constant for device in devices})


def affinity_elsewhere(
    bound: BoundModel, placement: PlacementLike, costs: Knowledge
) -> Affinity | None:
    """Return a placement's affinity, checked, if it needs a device that only a cost model knows."""
    if isinstance(placement, str | Priorities):
        names = device_list(str(placement), bound.core)
        if set(names) <= set(costs.devices) and absent_devices(bound, names, costs):
            return greedy_by_costs(bound.graph, names, costs)
        return None
    affinity = placement.affinity if isinstance(placement, Placement) else placement
    if not isinstance(affinity, Affinity) or not absent_devices(bound, affinity.devices, costs):
        return None
    affinity.check_model(bound.graph)
    for device in affinity.devices:
        if device not in costs.devices:
            continue
        if refused := _unsupported_ops(affinity, device, costs.supports(device)):
            raise DeviceError(
                f"By its costs, {device} does not support {len(refused)} of the ops placed on it, "
                f"for instance {refused[0]}."
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
    blocks = find_blocks(graph)
    n_blocks = blocks.n_blocks
    if not n_blocks:
        raise AffinityError(f"{shorten(graph.name)} has no repeated layers to cut between.")
    cuts = list(range(n_blocks - 1)) if after is None else list(dict.fromkeys(after))
    for block in cuts:
        if not 0 <= block < n_blocks - 1:
            raise AffinityError(
                f"There is no cut after block {block}: the model has {n_blocks} blocks, and "
                f"the last cut is after block {n_blocks - 2}."
            )
    placements = []
    for block, (first, second) in itertools.product(cuts, itertools.permutations(every, 2)):
        above, below = block_range(0, block), block_range(block + 1, n_blocks - 1)
        sides = {op.name: first if blocks.of_op[op.index] <= block else second for op in graph}
        affinity = Affinity.from_graph(graph, sides)
        placements.append(Placement(affinity, f"{above} {first}, {below} {second}"))
    return placements
