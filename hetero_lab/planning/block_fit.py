"""Fit a model into the memory of several devices, by block or by ratio, the first device first."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from hetero_lab.costs.design import repeated_layers
from hetero_lab.devices.core import BoundModel, bind
from hetero_lab.devices.devices import free_bytes
from hetero_lab.errors import PlanError
from hetero_lab.model.blocks import Blocks
from hetero_lab.model.opgraph import CONSTANT, RESULT, OpGraph
from hetero_lab.model.read import Source
from hetero_lab.model.static_phases import graph_at_context
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.distribution import first_part
from hetero_lab.placement.memory_limits import (
    DeviceMemory,
    MemoryLimit,
    Pools,
    device_memory,
    excess_bytes,
    excess_text,
    memory_frame,
    memory_pools,
    placement_memory,
    pools_text,
)
from hetero_lab.placement.placement import Placement, by_ratios
from hetero_lab.placement.priorities import Priorities
from hetero_lab.result import Framed
from hetero_lab.tables import bytes_text

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd

_BY_BLOCK, _BY_RATIO = "block", "ratio"
_ROOM = (1.0, 0.96, 0.92, 0.88)  # parts of the limits that are tried
_FINE = 1 / 512  # of a ratio
_MOST_SPLITS = 20_000  # ways to divide blocks between devices that are tried
_WEIGHTS, _STATES, _TENSORS = range(3)

# Bytes by kind and by the parts that use them; a tensor's are its maker's and its readers'.
Needs: TypeAlias = "Mapping[tuple[int, frozenset[int]], int]"


@dataclass(frozen=True)
class BlockFit(Framed):
    """A placement that keeps to memory limits, and the memory of each device.

    ``blocks`` is empty in the memory of a placement by ratio.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> fit = hl.fit_blocks("digits_inception", ["CPU"], {})
    >>> fit.to_frame()[["device", "blocks", "state_bytes"]]
      device blocks  state_bytes
    0    CPU    0-1            0
    """

    placement: Placement
    context_tokens: int
    memory: tuple[DeviceMemory, ...]

    @property
    def affinity(self) -> Affinity:
        """The device of every node."""
        return self.placement.affinity

    def __repr__(self) -> str:
        by_block = any(row.blocks for row in self.memory)
        parts = ", ".join(
            f"{row.device}: {row.blocks or 'none'} ({bytes_text(row.total_bytes)})"
            if by_block
            else f"{row.device}: {bytes_text(row.total_bytes)}"
            for row in self.memory
        )
        return f"BlockFit({self.context_tokens} tokens; {parts})"

    def to_frame(self) -> pd.DataFrame:
        """Return one row per device: ``device``, ``blocks``, its bytes by kind and in total."""
        return memory_frame(self.memory)


def fit_blocks(
    model: Source,
    devices: Sequence[str],
    memory_limit: MemoryLimit | None = None,
    *,
    cut: str = "block",
    context_tokens: int = 1024,
    batch: int = 1,
    core: ov.Core | None = None,
) -> BlockFit:
    """Place as much of a model on the first device as fits, then on the second, and so on.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes; by block, one with repeated layers (see
        :func:`hetero_lab.blocks`). Blocks keep their order: ops before the first one go with it,
        ops after the last one with that.
    devices
        In the order in which they are filled, usually the fastest first.
    memory_limit
        Bytes by device, ``{"GPU": "2GiB"}``, or by several that share a memory,
        ``{("GPU.0", "CPU"): "6GiB"}``. Counted are weights as they are stored, once for each
        device that uses them; states (the key-value cache) at ``context_tokens``; and boundary
        tensors, where they are made and where they are received. Other allocations of a plugin,
        such as weights that it converts, are not counted. By default the memory that is free on
        each device; of a card, what other processes hold is known only with NVIDIA's driver.
    cut
        ``"block"``: the ops are labelled. ``"ratio"``: HETERO divides the model by itself between
        GPUs, as in :meth:`hetero_lab.Placement.balanced`, so that ``.placement`` runs from a text.
    context_tokens, batch
        How many tokens of how many sequences the states hold.

    Raises
    ------
    PlanError
        The model has no repeated layers, a limit is not a number of bytes or names a device that
        is not planned for, or nothing fits.
    PropertyError
        By ratio, a device before the last one is no GPU.
    DeviceError
        There is no device, one is named twice, or one is not here.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> acc = hl.emulate("ACC")
    >>> hl.fit_blocks("digits_inception", ["ACC", "CPU"], {"ACC": "1MiB"})
    BlockFit(1024 tokens; ACC: 0-1 (178 KB), CPU: none (0 B))
    >>> hl.fit_blocks("digits_inception", ["ACC", "CPU"], {"ACC": "64KiB"}).memory[1].blocks
    '0-1'
    """
    bound = bind(model, core)
    every = Priorities.parse(devices, bound.core).devices
    if context_tokens < 1 or batch < 1:
        raise PlanError("context_tokens= and batch= are at least 1.")
    if cut not in (_BY_BLOCK, _BY_RATIO):
        raise PlanError(f"cut={cut!r}: a model is cut by {_BY_BLOCK!r} or by {_BY_RATIO!r}.")
    if memory_limit is None:
        memory_limit = {device: free_bytes(bound.core, device) for device in every}
    pools = memory_pools(every, memory_limit)
    sized = graph_at_context(bound, context_tokens, batch)
    if cut == _BY_RATIO:
        placement, n_bytes = _by_ratio(bound, sized, every, pools)
        return BlockFit(placement, context_tokens, device_memory(every, n_bytes))
    other = "Place it with cut='ratio' on GPUs, or plan by op: hetero_lab.plan(model, costs, …)."
    blocks = repeated_layers(bound.graph, f"to place. {other}")
    needs = _needs(sized, blocks)
    splits = itertools.islice(
        _splits(_alone(needs, blocks.n_blocks), len(every), pools), _MOST_SPLITS + 1
    )
    for number, counts in enumerate(splits):
        if number == _MOST_SPLITS:
            raise PlanError(
                f"None of the first {_MOST_SPLITS} ways to divide {blocks.n_blocks} blocks between "
                f"{len(every)} devices keeps within memory_limit. Name fewer devices, or raise a "
                "limit."
            )
        n_bytes = _by_device(needs, counts)
        if not excess_bytes(n_bytes, pools):
            device = _device_of_part(counts)
            by_name = {op.name: every[device[blocks.of_op[op.index] + 1]] for op in bound.graph}
            affinity = Affinity.from_graph(bound.graph, by_name)
            placement = Placement(affinity, "blocks that fit")
            return BlockFit(placement, context_tokens, device_memory(every, n_bytes, device[1:-1]))
    # A cut only adds bytes: copies of weights, and boundary tensors.
    on_one = int(_by_device(needs, [blocks.n_blocks]).sum())
    raise PlanError(
        f"No placement by block keeps within memory_limit ({pools_text(every, pools)}; at the "
        f"least {bytes_text(on_one)} are needed together) at a context of {context_tokens} "
        "tokens. Raise a limit, shorten the context, or add a device."
    )


def _by_ratio(
    bound: BoundModel, sized: OpGraph, devices: Sequence[str], pools: Pools
) -> tuple[Placement, np.ndarray]:
    """Find the largest ratios that keep to the limits; return what HETERO makes of them.

    They are found on the estimated cut; where the plugin's own is larger, with less room.
    """
    n_bytes = np.zeros((len(devices), 3), dtype=np.int64)
    for room in _ROOM:
        ratios, affinity = {}, Affinity.on_one(sized, devices[-1])
        for number, device in enumerate(devices[:-1]):
            limits = {p: int(n * room) for p, n in pools.items() if max(p.devices) <= number}
            names = (sized.ops[index].name for index in sized.placeable)
            ops = [sized.index_of[name] for name in names if affinity[name] == devices[-1]]
            before, low, high = affinity, 0.0, 2.0  # the whole is tried first
            while high - low > _FINE and low < 1.0:
                ratio = (low + high) / 2
                part = {sized.ops[i].name: device for i in first_part(sized, ops, ratio)}
                trial = Affinity.from_graph(sized, {**before, **part})
                if excess_bytes(placement_memory(sized, trial, devices), limits):
                    high = ratio
                else:
                    low, affinity = ratio, trial
            ratios[device] = max(low, _FINE)
        placement = by_ratios(bound, devices, ratios, label="ratios that fit")
        n_bytes = placement_memory(sized, placement.affinity, devices)
        if not excess_bytes(n_bytes, pools):
            return placement, n_bytes
    raise PlanError(
        f"No ratios keep within memory_limit ({pools_text(devices, pools)}): "
        f"{excess_text(devices, n_bytes, pools)}. Raise a limit, shorten the context, or "
        "add a device."
    )


def _splits(alone: Sequence[int], n_devices: int, pools: Pools) -> Iterator[tuple[int, ...]]:
    """Yield how many blocks each device gets, the most on the earlier ones first.

    ``alone`` are the bytes that single blocks need, added up. Ways in which these alone exceed a
    limit are left out.
    """
    limited = {device for pool in pools for device in pool.devices}
    n_blocks = len(alone) - 1

    def room(device: int, room_of: Pools) -> float:
        """Return the bytes that a device and those after it can hold at most."""
        if not limited.issuperset(range(device, n_devices)):
            return float("inf")
        return sum(n_bytes for pool, n_bytes in room_of.items() if pool.devices[-1] >= device)

    def fill(device: int, first: int, room_of: Pools) -> Iterator[tuple[int, ...]]:
        if device == n_devices:
            if first == n_blocks:
                yield ()
            return
        for last in range(n_blocks, first - 1, -1):
            n_bytes = alone[last] - alone[first]
            after = {pool: n - n_bytes * (device in pool.devices) for pool, n in room_of.items()}
            fits = min(after.values(), default=0) >= 0
            if fits and alone[-1] - alone[last] <= room(device + 1, after):
                for counts in fill(device + 1, last, after):
                    yield last - first, *counts

    return fill(0, 0, pools)


def _needs(graph: OpGraph, blocks: Blocks) -> Needs:
    """Count bytes by part: ops before the first block, each block, ops after the last one."""
    part = [block + 1 for block in blocks.of_op]
    needs: Counter[tuple[int, frozenset[int]]] = Counter()
    for op in graph:
        n_bytes = sum(tensor.n_bytes or 0 for tensor in op.outputs)
        users = {graph.ops[use.index] for use in graph.consumers[op.index]}
        readers = frozenset(part[user.index] for user in users if user.type != RESULT)
        home = frozenset({part[op.index]})
        if op.type == CONSTANT:
            needs[_WEIGHTS, readers] += n_bytes
        elif readers:
            needs[_TENSORS, home | readers] += n_bytes
        if op.type == "ReadValue":
            needs[_STATES, home] += n_bytes
    return needs


def _alone(needs: Needs, n_blocks: int) -> list[int]:
    """Return the bytes that only single blocks need, added up from 0 on."""
    parts = [frozenset({block + 1}) for block in range(n_blocks)]
    of_part = [needs.get((_WEIGHTS, p), 0) + needs.get((_STATES, p), 0) for p in parts]
    return [0, *itertools.accumulate(of_part)]


def _by_device(needs: Needs, counts: Sequence[int]) -> np.ndarray:
    """Return the bytes of weights, states and boundaries, shape ``[devices, 3]``.

    ``counts`` are the devices' numbers of blocks. HETERO copies a constant to each device that uses
    it; a tensor that stays on one device is not handed over.
    """
    device = _device_of_part(counts)
    totals = np.zeros((len(counts), 3), dtype=np.int64)
    for (kind, parts), n_bytes in needs.items():
        where = {device[part] for part in parts}
        if kind != _TENSORS or len(where) > 1:
            totals[list(where), kind] += n_bytes
    return totals


def _device_of_part(counts: Sequence[int]) -> list[int]:
    inside: list[int] = np.repeat(np.arange(len(counts)), counts).tolist()
    return [inside[0], *inside, inside[-1]]
