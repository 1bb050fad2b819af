"""How HETERO itself divides a model over GPUs: by one ratio for each device.

The GPU plugin claims a first part of the model, in topological order, as large as its
QUERY_MODEL_RATIO says; the policy PIPELINE_PARALLEL only sets that ratio. Both rules follow
OpenVINO 2026.4 (``query_model_update``, ``get_supported_nodes``; Apache-2.0, see NOTICE). The cut
leaves out the plugin's own transformations, so it is an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from hetero_lab.errors import ArgumentError, PropertyError, names_at_hand, shorten
from hetero_lab.model.opgraph import CONSTANT, NOT_OPS, OpGraph
from hetero_lab.tables import bytes_text

POLICY, PRIORITIES = "MODEL_DISTRIBUTION_POLICY", "MULTI_DEVICE_PRIORITIES"
PIPELINE_PARALLEL = "PIPELINE_PARALLEL"
_ROOM = 1.2  # memory that HETERO expects a model to need, by the bytes of its weights
_NEAR = 0.05  # a cut is within this share of the size that was asked for
_ALL = 1.0 - 1e-6  # shares add up to at least this


class Asked(NamedTuple):
    """The ratio that a device is asked to take, and the reason; without one, all that it runs."""

    ratio: float | None
    rule: str


def policy_ratio(device: str, weight_bytes: int, memory: Mapping[str, int]) -> Asked:
    """Return the ratio that PIPELINE_PARALLEL gives to a device that is not the last one.

    ``weight_bytes`` are those of the constants that no device has yet; ``memory`` is the total
    memory of the devices that have nothing yet, CPU among them if it is listed.
    """
    own, needed = memory[device], _ROOM * weight_bytes
    gpus = sum(n_bytes for other, n_bytes in memory.items() if not other.startswith("CPU"))
    has, needs = bytes_text(own), bytes_text(weight_bytes)
    if own >= needed:
        return Asked(1.0, f"all, because its {has} are at least 1.2 times the {needs} of weights")
    if gpus >= needed or "CPU" in memory:
        if own > weight_bytes:
            return Asked(1.0, f"all, because its {has} are more than the {needs} of weights")
        return Asked(own / needed, f"{has} / (1.2 × {needs})")
    return Asked(own / gpus, f"{has} / the {bytes_text(gpus)} of all GPUs left")


def share_ratios(shares: Sequence[float]) -> list[float]:
    """Return the ratios that give each device its share of a model; the last one needs none."""
    return [share / sum(shares[number:]) for number, share in enumerate(shares[:-1])]


def check_shares(shares: Sequence[Any], devices: Sequence[str]) -> list[float]:
    """Return the shares as numbers; ArgumentError unless each device has one and they make 1."""
    example = f"for instance {[round(1 / len(devices), 2)] * len(devices)}"
    numbers = [float(share) for share in shares if isinstance(share, (int, float))]
    if not len(numbers) == len(shares) == len(devices):
        message = f"shares= has a number for each of the {len(devices)} devices, {example}."
        raise ArgumentError(message)
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
        message = f"HETERO has no policy {shorten(str(policy))}, only {PIPELINE_PARALLEL!r}."
        raise PropertyError(message)


def unplaced_bytes(graph: OpGraph, ops: Collection[int]) -> int:
    """Return the bytes of the constants that some ops use, as HETERO counts them.

    An element of fewer than 8 bits counts as a byte.
    """
    above = {p for i in ops for p, _ in graph.ops[i].inputs if p in graph.constant_side}
    sources = [graph.ops[index] for index in graph.reach(above, forward=False)]
    tensors = [op.outputs[0] for op in sources if op.type == CONSTANT]
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
    wanted, before, at = ratio * sum(sizes), 0, 0
    cuts: list[tuple[bool, int, int]] = []  # whether it is too small, elements handed on, ops
    for number, size in enumerate([*sizes, 0]):
        if (size or number == len(order)) and number:
            if before > (1.0 + _NEAR) * wanted:
                break
            if before >= (1.0 - _NEAR) * wanted:
                cuts.append((False, _handed_on(graph, order[:number]), number))
            at = number
        before += size
    return set(order[: min(cuts)[2] if cuts else at])


def _constant_bytes(graph: OpGraph, order: Sequence[int]) -> list[int]:
    """Return the bytes of the constants that each op is the first one to use."""
    seen: set[int] = set()
    sizes = []
    for index in order:
        above = [p for p, _ in graph.ops[index].inputs if p in graph.constant_side]
        new = graph.reach(above, forward=False) - seen
        seen |= new
        found = [graph.ops[i] for i in new]
        sizes.append(sum(op.outputs[0].n_bytes or 0 for op in found if op.type == CONSTANT))
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
