"""Memory that each device needs for a model, and limits to it.

Counted, for each device, are weights as they are stored, once for each subgraph that uses them;
states, such as a key-value cache; and tensors between subgraphs, where they are made and once for
each subgraph that receives them. Other allocations of a plugin are not counted: tensors within a
subgraph, scratch memory, converted weights. Nor are tensors of dynamic shape, unless the graph is
sized for a context length (:func:`hetero_lab.model.static_phases.graph_at_context`).
:func:`hetero_lab.llm.measure_memory` measures everything; its bytes then replace the counted
weights and states.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from hetero_lab.errors import PlanError, did_you_mean, shorten
from hetero_lab.model.blocks import block_range
from hetero_lab.model.opgraph import CONSTANT, OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import SubgraphCollector
from hetero_lab.placement.placement import Placement
from hetero_lab.placement.topology import topology
from hetero_lab.tables import bytes_text, frame_of

if TYPE_CHECKING:
    import pandas as pd

MemoryLimit: TypeAlias = Mapping[Any, int | str]  # by device, or by a tuple of those that share

_BYTES = re.compile(r"^\s*(\d+(?:\.\d*)?)\s*([kmgt]?)(i?)b?\s*$", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_NO_LIMIT = 1 << 60  # more than any device has


class Pool(NamedTuple):
    """Ascending numbers of devices that share a limit; ``boundaries`` count unless it is False."""

    devices: tuple[int, ...]
    boundaries: bool = True

    def held_bytes(self, n_bytes: np.ndarray) -> np.ndarray:
        """Return the bytes that they hold together, given those of each, ``[…, devices, 3]``."""
        return n_bytes[..., list(self.devices), : 3 if self.boundaries else 2].sum(axis=(-2, -1))


Pools: TypeAlias = "Mapping[Pool, int]"  # bytes


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of a model on a device; ``blocks`` is a range such as ``"0-3"``, or empty."""

    device: str
    blocks: str
    weight_bytes: int
    state_bytes: int
    boundary_bytes: int

    @property
    def total_bytes(self) -> int:
        """All three together."""
        return self.weight_bytes + self.state_bytes + self.boundary_bytes


def memory_frame(memory: Sequence[DeviceMemory]) -> pd.DataFrame:
    """Return one row per device: ``device``, ``blocks``, its bytes by kind and in total."""
    names = ["device", "blocks", "weight_bytes", "state_bytes", "boundary_bytes", "total_bytes"]
    rows = [[getattr(row, name) for name in names] for row in memory]
    return frame_of(rows, names)


def device_memory(
    devices: Sequence[str], n_bytes: np.ndarray, blocks: Sequence[int] | np.ndarray = ()
) -> tuple[DeviceMemory, ...]:
    """Return bytes ``[devices, 3]`` by device; ``blocks`` are the device numbers of the blocks."""
    runs = [np.flatnonzero(np.asarray(blocks) == number).tolist() for number in range(len(devices))]
    return tuple(
        DeviceMemory(device, block_range(run[0], run[-1]) if run else "", *row)
        for device, run, row in zip(devices, runs, n_bytes.tolist(), strict=True)
    )


def parse_bytes(limit: int | str, argument: str = "memory_limit") -> int:
    """Read a memory limit: a number of bytes, ``"512 MiB"`` or ``"2GB"``."""
    if isinstance(limit, str) and (match := _BYTES.match(limit)):
        number, prefix, binary = match.groups()
        power = (1024 if binary else 1000) ** _POWERS[prefix.lower()]
        return int(min(float(number) * power, _NO_LIMIT))
    if isinstance(limit, Integral) and not isinstance(limit, bool) and int(limit) >= 0:
        return min(int(limit), _NO_LIMIT)
    raise PlanError(
        f"{argument}: {shorten(str(limit))} is not a number of bytes. Write for instance "
        "2147483648 or '2GiB'."
    )


def check_planned(subject: str, device: Any, devices: Sequence[str]) -> None:
    """Raise PlanError, which begins with ``subject``, unless a device is one of ``devices``."""
    if device not in devices:
        raise PlanError(
            f"{subject} {shorten(str(device))}, which is not planned for."
            f"{did_you_mean(str(device), devices)} Devices: {', '.join(devices)}."
        )


def memory_pools(devices: Sequence[str], limits: MemoryLimit | None) -> dict[Pool, int]:
    """Read limits of devices and of pools that share a memory; PlanError for an invalid one."""
    if limits is None:
        return {}
    if not isinstance(limits, Mapping):
        raise PlanError(
            "memory_limit= maps devices to bytes, for instance {'GPU': '2GiB', "
            "('GPU', 'CPU'): '6GiB'}."
        )
    pools: dict[Pool, int] = {}
    for key, limit in limits.items():
        members = (key,) if isinstance(key, str) or not isinstance(key, Iterable) else tuple(key)
        if not members:
            raise PlanError(
                "memory_limit has a pool without devices. Name those that share the memory, for "
                f"instance {tuple(devices)!r}, or leave it out."
            )
        for device in members:
            check_planned("memory_limit names", device, devices)
        pool = Pool(tuple(sorted({devices.index(device) for device in members})))
        n_bytes = parse_bytes(limit)
        pools[pool] = min(n_bytes, pools.get(pool, n_bytes))
    return pools


def pools_text(devices: Sequence[str], pools: Pools) -> str:
    """Write limits for a message: ``GPU 2.0 GB; GPU and CPU 6.0 GB``."""
    return "; ".join(f"{names_of(devices, p)} {bytes_text(n)}" for p, n in pools.items())


def names_of(devices: Sequence[str], pool: Pool) -> str:
    names = " and ".join(devices[number] for number in pool.devices)
    return names if pool.boundaries else f"weights on {names}"


def excess_bytes(n_bytes: np.ndarray, pools: Pools) -> dict[Pool, int]:
    """Return by how much bytes ``[devices, 3]`` exceed each limit; within it, it is left out."""
    over = ((pool, int(pool.held_bytes(n_bytes)) - limit) for pool, limit in pools.items())
    return {pool: excess for pool, excess in over if excess > 0}


def excess_text(devices: Sequence[str], n_bytes: np.ndarray, pools: Pools) -> str:
    """Say which devices would exceed a limit first; empty if none would."""
    for pool in excess_bytes(n_bytes, pools):
        return (
            f"{names_of(devices, pool)} would hold {bytes_text(int(pool.held_bytes(n_bytes)))}, "
            f"more than the limit of {bytes_text(pools[pool])}"
        )
    return ""


def placement_memory(graph: OpGraph, affinity: Affinity, devices: Sequence[str]) -> np.ndarray:
    """Count the bytes of weights, states and boundary tensors of a placement, ``[devices, 3]``."""
    number = {device: at for at, device in enumerate(devices)}
    choice = np.array([number[affinity[op.name]] for op in graph], dtype=np.int64)
    _, ids = SubgraphCollector.of(graph).split(choice)
    return MemoryTable.of(graph).held_bytes(choice, ids, len(devices))


def held_bytes(graph: OpGraph, placement: Placement, devices: Sequence[str]) -> np.ndarray:
    """Return the bytes of weights, states and boundary tensors of ``devices``, shape ``[n, 3]``.

    A device that is not split from others holds all weights and states.
    """
    if not placement.direct:
        return placement_memory(graph, placement.affinity, devices)
    table = MemoryTable.of(graph)
    states = int(table.n_bytes[table.first_tensor[table.states]].sum())
    whole = [graph.weight_bytes, states, 0]
    return np.array([whole if device in placement.devices else [0, 0, 0] for device in devices])


class MemoryTable:
    def __init__(self, graph: OpGraph):
        self.graph = graph
        counts = [0, *(len(op.outputs) for op in graph)]
        sizes = [t.n_bytes or 0 for op in graph for t in op.outputs]
        states = [op.index for op in graph if op.type == "ReadValue"]
        # For each node the number of its first tensor; at the end the number of all.
        self.first_tensor: np.ndarray = np.cumsum(counts, dtype=np.int64)
        self.n_bytes: np.ndarray = np.array(sizes, np.int64)
        self.states: np.ndarray = np.array(states, np.int64)

    @classmethod
    def of(cls, graph: OpGraph) -> MemoryTable:
        return graph.derived(cls)

    def held_bytes(self, devices: np.ndarray, ids: np.ndarray, n_devices: int) -> np.ndarray:
        """Return the bytes of weights, states and boundary tensors, shape ``[devices, 3]``.

        ``devices`` and ``ids`` are the device and the subgraph of each node.
        """
        top = topology(self.graph)
        n_ids = int(ids.max()) + 1
        device_of_id = np.zeros(n_ids, dtype=np.int64)
        device_of_id[ids] = devices
        constant, user = self.constant_uses
        keys = np.unique(constant * n_ids + ids[user])
        weights = self.n_bytes[self.first_tensor[keys // n_ids]]
        wires = top.crossing(ids)
        received = top.tensor[wires]
        sent, at = np.unique(received, return_index=True)
        where = (
            (0, device_of_id[keys % n_ids], weights),
            (1, devices[self.states], self.n_bytes[self.first_tensor[self.states]]),
            (2, device_of_id[ids[top.target[wires]]], self.n_bytes[received]),
            (2, devices[top.source[wires[at]]], self.n_bytes[sent]),
        )
        totals = np.zeros((n_devices, 3), dtype=np.int64)
        for column, device, sizes in where:
            np.add.at(totals[:, column], device, sizes)
        return totals

    @cached_property
    def constant_uses(self) -> tuple[np.ndarray, np.ndarray]:
        """Constants and the placeable ops that use them, directly or through their own ops."""
        placeable, pairs = set(self.graph.placeable), set()
        above: dict[int, set[int]] = {}
        for op in self.graph:
            if op.type == CONSTANT:
                above[op.index] = {op.index}
            elif op.index in self.graph.constant_side:
                above[op.index] = set().union(*(above[p] for p, _ in op.inputs))
            elif op.index in placeable:
                for producer, _ in op.inputs:
                    pairs.update((c, op.index) for c in above.get(producer, ()))
        table = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
        return table[:, 0], table[:, 1]
