"""What HETERO does by itself with a model and several GPUs, and why, without a compile.

The GPU plugin claims a first part of the model, in topological order, as large as its
QUERY_MODEL_RATIO says; the policy PIPELINE_PARALLEL only sets that ratio. Both rules follow
OpenVINO 2026.4 (``query_model_update``, ``get_supported_nodes``; Apache-2.0, see NOTICE). The cut
leaves out the plugin's own transformations, so it is an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from hetero_lab.devices.core import BoundModel, bind, properties_of_devices
from hetero_lab.devices.devices import RATIO, check_device, device_names, takes_ratio, total_bytes
from hetero_lab.devices.properties import merged_properties
from hetero_lab.errors import ArgumentError, PropertyError
from hetero_lab.model.opgraph import CONSTANT, NOT_OPS, Op, OpGraph
from hetero_lab.model.read import Source
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.memory_limits import check_planned, parse_bytes, placement_memory
from hetero_lab.placement.partition import predict
from hetero_lab.placement.placement import (
    PIPELINE_PARALLEL,
    POLICY,
    PRIORITIES,
    Placement,
    check_policy,
    own_affinity,
)
from hetero_lab.placement.priorities import device_list
from hetero_lab.result import Framed
from hetero_lab.tables import bytes_text, frame_of

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd

_ROOM = 1.2  # memory that HETERO expects a model to need, by the bytes of its weights
_NEAR = 0.05  # a cut is within this share of the size that was asked for
# The ratio that a device is asked to take, and the reason; without a ratio, all that it runs.
Quota: TypeAlias = tuple[float | None, str]
_TAKES_ALL: Quota = None, "all that it supports of what is left"
_LEFT = "left"


@dataclass(frozen=True)
class DeviceShare:
    """The part of a model that a device gets.

    It is asked for ``ratio`` of the weights that no earlier device has (``left_bytes``, as HETERO
    counts them) by ``rule``, or for all; and then holds weights, states and boundary tensors.
    """

    device: str
    memory_bytes: int | None
    left_bytes: int
    ratio: float | None
    rule: str
    n_ops: int
    weight_bytes: int
    state_bytes: int
    boundary_bytes: int

    @property
    def total_bytes(self) -> int:
        """All bytes that it holds."""
        return self.weight_bytes + self.state_bytes + self.boundary_bytes


@dataclass(frozen=True)
class Distribution(Framed):
    """How HETERO divides a model between devices by itself.

    ``placement`` can be measured where its devices are; ``estimated`` tells that they are not here,
    so that no plugin could be asked for the cut.
    """

    policy: str | None
    shares: tuple[DeviceShare, ...]
    placement: Placement
    estimated: bool = False

    @property
    def empty(self) -> tuple[str, ...]:
        """The devices that get nothing."""
        return tuple(share.device for share in self.shares if not share.n_ops)

    @property
    def ratios(self) -> dict[str, float]:
        """QUERY_MODEL_RATIO by device, of those that have one."""
        return {s.device: s.ratio for s in self.shares if s.ratio is not None}

    @property
    def sentence(self) -> str:
        """What happens, and why."""
        cause = f" under {self.policy}" if self.policy else ""
        if self.empty:
            full = [share for share in self.shares if share.n_ops][-1]
            return (
                f"{' and '.join(self.empty)} {'stay' if len(self.empty) > 1 else 'stays'} empty"
                f"{cause}: {full.device} takes {full.rule}. "
                "hetero_lab.Placement.balanced(model, devices) shares the model."
            )
        whole = max(1, sum(share.weight_bytes for share in self.shares))
        parts = ", ".join(f"{s.device} {s.weight_bytes / whole:.0%}" for s in self.shares)
        about = "about " if self.estimated else ""
        return f"The weights are divided{cause}: {about}{parts}."

    def __repr__(self) -> str:
        return f"Distribution({self.sentence})"

    def to_frame(self) -> pd.DataFrame:
        """Return one row per device, with the fields of :class:`DeviceShare`."""
        names = list(DeviceShare.__dataclass_fields__)
        return frame_of([[getattr(share, name) for name in names] for share in self.shares], names)


def distribution(
    model: Source,
    placement: str | Sequence[str] | Placement,
    policy: str | None = None,
    *,
    memory: Mapping[str, int | str] | None = None,
    device_properties: Mapping[str, Mapping[str, Any]] | None = None,
    core: ov.Core | None = None,
) -> Distribution:
    """Say what HETERO will do by itself with a model and several devices, and why.

    Nothing is compiled. HETERO's policy compares the weights with the total memory of each GPU in
    turn, so a model that fits into the first one goes there whole.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    placement
        Devices in order, ``"HETERO:GPU.0,GPU.1"``, or a :meth:`hetero_lab.Placement.balanced`.
    policy
        ``"PIPELINE_PARALLEL"``, or none: each device takes all that it supports.
    memory
        Total bytes of GPUs that are not here, or to ask what would be: ``{"GPU.0": "24GiB"}``.
    device_properties
        Properties of the devices; a precision can change where the plugin cuts.

    Returns
    -------
    Distribution
        ``.sentence``, ``.to_frame()``, ``.ratios``, ``.empty``, and ``.placement`` to measure it.

    Raises
    ------
    DeviceError
        A device is named twice, or is neither here nor in ``memory``; or no device supports an op.
    PropertyError
        There is no such policy, or no device before the last one obeys it.
    PlanError
        ``memory`` is not a number of bytes, or names another device.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> memory, policy = {"GPU.0": "24GiB", "GPU.1": "24GiB"}, "PIPELINE_PARALLEL"
    >>> hl.distribution("digits_inception", list(memory), policy, memory=memory).empty
    ('GPU.1',)
    """
    bound = bind(model, core)
    check_policy(policy)
    if isinstance(placement, Affinity):
        placement = Placement(placement)
    if isinstance(placement, Placement):
        return _of_placement(bound, placement, policy)
    devices = device_list(placement, bound.core)
    totals: dict[str, int] = {}
    for device, n_bytes in (memory or {}).items():
        check_planned("memory names", device, devices)
        totals[device] = parse_bytes(n_bytes, "memory")
    elsewhere = totals.keys() - set(device_names(bound.core))
    for device in devices:
        if device not in elsewhere:
            check_device(device, bound.core)
    totals = _totals(bound, devices) | totals
    if policy and not any(
        d in elsewhere or takes_ratio(bound.core, d) for d in devices[:-1] if d in totals
    ):
        raise PropertyError(
            f"{PIPELINE_PARALLEL} has no effect on {' and '.join(devices)}: HETERO divides a model "
            f"by {RATIO}, which only GPUs have. hetero_lab.fit_blocks(model, devices, limits) "
            "divides it between any devices."
        )
    by_device = properties_of_devices(device_properties or {})
    quotas, affinity = _quotas(bound, devices, totals if policy else {}, by_device, bool(elsewhere))
    # Only ratios make true what would be with another memory.
    of_hetero = {PRIORITIES: ",".join(devices)}
    if policy and not memory:
        of_hetero[POLICY] = policy
    ratios = _ratios(quotas) if memory else {}
    properties = merged_properties(by_device, ratios, {"HETERO": of_hetero})
    division = Placement(affinity, policy or f"HETERO:{','.join(devices)}", properties)
    shares = _shares(bound.graph, totals, quotas, affinity)
    return Distribution(policy, shares, division, bool(elsewhere))


def _ratios(quotas: Mapping[str, Quota]) -> dict[str, dict[str, float]]:
    return {d: {RATIO: ratio} for d, (ratio, _) in quotas.items() if ratio is not None}


def _of_placement(bound: BoundModel, placement: Placement, policy: str | None) -> Distribution:
    """Explain a placement that has ratios or a policy already."""
    devices, of_hetero = placement.priorities, placement.device_properties.get("HETERO", {})
    if not devices or policy:
        raise ArgumentError(
            "A placement has its own policy: leave policy= out."
            if devices
            else "The ops of this placement are labelled, so HETERO distributes none of them."
        )
    if policy := of_hetero.get(POLICY):
        others = {d: p for d, p in placement.device_properties.items() if d != "HETERO"}
        return distribution(bound, devices, policy, device_properties=others, core=bound.core)
    ratios = {device: placement.device_properties.get(device, {}).get(RATIO) for device in devices}
    quotas = {d: (r, "its share") if r else _TAKES_ALL for d, r in ratios.items()}
    shares = _shares(bound.graph, _totals(bound, devices), quotas, placement.affinity)
    return Distribution(None, shares, placement)


def _totals(bound: BoundModel, devices: Sequence[str]) -> dict[str, int]:
    totals = {device: total_bytes(bound.core, device) for device in devices if "GPU" in device}
    return {device: n_bytes for device, n_bytes in totals.items() if n_bytes}


def _quotas(
    bound: BoundModel,
    devices: Sequence[str],
    memory: Mapping[str, int],
    properties: Mapping[str, Mapping[str, Any]],
    estimated: bool,
) -> tuple[dict[str, Quota], Affinity]:
    """Return what each device is asked for, and where the ops then are, one device at a time."""
    graph = bound.graph
    quotas: dict[str, Quota] = {}
    free = {**memory, **{device: -1 for device in devices if device == "CPU"}}
    affinity = Affinity.on_one(graph, devices[-1])
    for device in devices:
        ops = _ops_left(graph, affinity, quotas)
        if device in memory and device != devices[-1]:
            first = _first_of(graph, affinity, quotas) if quotas else range(len(graph))
            quotas[device] = policy_ratio(device, unplaced_bytes(graph, first), free)
        else:
            quotas[device] = _TAKES_ALL
        free.pop(device, None)
        if estimated:
            part = first_part(graph, ops, quotas[device][0])
            moved = {graph.ops[index].name: device for index in part}
            affinity = Affinity.from_graph(graph, {**affinity, **moved})
        else:
            affinity = own_affinity(bound, devices, merged_properties(properties, _ratios(quotas)))
    return quotas, affinity


def _ops_left(graph: OpGraph, affinity: Affinity, before: Collection[str]) -> list[int]:
    return [index for index in graph.placeable if affinity[graph.ops[index].name] not in before]


def _first_of(graph: OpGraph, affinity: Affinity, before: Collection[str]) -> list[int]:
    """Return the first connected part of what is left: by it, HETERO sets the ratio."""
    apart = Affinity.from_graph(graph, lambda op: "" if affinity[op] in before else _LEFT)
    subgraphs = predict(graph, apart).subgraphs
    return min(
        ([graph.index_of[op] for op in s.ops] for s in subgraphs if s.device == _LEFT and s.ops),
        default=[],
    )


def _shares(
    graph: OpGraph, memory: Mapping[str, int], quotas: Mapping[str, Quota], affinity: Affinity
) -> tuple[DeviceShare, ...]:
    devices, counts = list(quotas), affinity.counts()
    rows = placement_memory(graph, affinity, devices).tolist()
    rest = [_ops_left(graph, affinity, devices[:number]) for number in range(len(devices))]
    return tuple(
        DeviceShare(
            d, memory.get(d), unplaced_bytes(graph, ops), *quotas[d], counts.get(d, 0), *row
        )
        for d, ops, row in zip(devices, rest, rows, strict=True)
    )


def policy_ratio(device: str, weight_bytes: int, memory: Mapping[str, int]) -> Quota:
    """Return the ratio that PIPELINE_PARALLEL gives to a device that is not the last one.

    ``weight_bytes`` are those of the constants that no device has yet; ``memory`` is the total
    memory of the devices that have nothing yet, CPU among them if it is listed.
    """
    size, needed = memory[device], _ROOM * weight_bytes
    gpus = sum(n_bytes for other, n_bytes in memory.items() if not other.startswith("CPU"))
    has, needs = bytes_text(size), bytes_text(weight_bytes)
    if size >= needed:
        return 1.0, f"all, because its {has} are at least 1.2 times the {needs} of weights"
    if gpus >= needed or "CPU" in memory:
        if size > weight_bytes:
            return 1.0, f"all, because its {has} are more than the {needs} of weights"
        return size / needed, f"{has} / (1.2 × {needs})"
    return size / gpus, f"{has} / the {bytes_text(gpus)} of all GPUs left"


def unplaced_bytes(graph: OpGraph, ops: Collection[int]) -> int:
    """Return the bytes of the constants that some ops use, as HETERO counts them.

    An element of fewer than 8 bits counts as a byte.
    """
    tensors = [op.outputs[0] for op in _constants_of(graph, ops)]
    return sum(max(t.n_bytes, math.prod(t.shape or ())) for t in tensors if t.n_bytes is not None)


def first_part(graph: OpGraph, ops: Collection[int], ratio: float | None) -> set[int]:
    """Return the first of some ops, as many as a ratio of their size asks for.

    Sizes are bytes of constants, and cuts are between them. (The plugin would count MatMuls, but
    its transformations leave none.) Of the cuts near the ratio, the one that hands on least is
    taken.
    """
    order = sorted(ops)
    if ratio is None or ratio >= 1.0:
        return set(order)
    sizes = _constant_bytes(graph, order)
    goal, before, at = ratio * sum(sizes), 0, 0
    cuts: list[tuple[bool, int, int]] = []  # whether it is too small, elements handed on, ops
    for number, size in enumerate([*sizes, 0]):
        if (size or number == len(order)) and number:
            if before > (1.0 + _NEAR) * goal:
                break
            if before >= (1.0 - _NEAR) * goal:
                cuts.append((False, _handed_on(graph, order[:number]), number))
            at = number
        before += size
    return set(order[: min(cuts)[2] if cuts else at])


def _constants_of(graph: OpGraph, ops: Iterable[int]) -> list[Op]:
    """Return the constants that some ops use, directly or through ops computed from them."""
    above = {p for i in ops for p, _ in graph.ops[i].inputs if p in graph.constant_side}
    sources = (graph.ops[index] for index in graph.reach(above, forward=False))
    return [op for op in sources if op.type == CONSTANT]


def _constant_bytes(graph: OpGraph, order: Sequence[int]) -> list[int]:
    """Return the bytes of the constants that each op is the first one to use."""
    earlier: set[int] = set()
    sizes = []
    for index in order:
        new = [op for op in _constants_of(graph, [index]) if op.index not in earlier]
        earlier.update(op.index for op in new)
        sizes.append(sum(op.outputs[0].n_bytes or 0 for op in new))
    return sizes


def _handed_on(graph: OpGraph, first: Sequence[int]) -> int:
    inside = set(first)
    return sum(
        math.prod(graph.ops[index].outputs[0].shape or ())
        for index in first
        if any(
            use.index not in inside and graph.ops[use.index].type not in NOT_OPS
            for use in graph.consumers[index]
        )
    )
