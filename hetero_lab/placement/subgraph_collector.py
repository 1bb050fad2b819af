"""SubgraphCollector: where HETERO cuts a model, computed on arrays in close to linear time.

The rule (OpenVINO's class of the same name, see NOTICE): neighbours on one device merge; each
subgraph that depends on itself through another one is cut at the inputs that close the cycle
(``convexity``); remaining cycles are cut node by node (``cycle_breaking``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hetero_lab.model.opgraph import OpGraph
from hetero_lab.placement import convexity, cycle_breaking
from hetero_lab.placement.topology import Topology, connected, strong_components, topology


@dataclass(frozen=True, eq=False)
class Split:
    """Which edges are cut, and the subgraph number of every node."""

    cut: np.ndarray
    ids: np.ndarray


class SubgraphCollector:
    """Splits one graph for any placement, and remembers the cuts that placements share."""

    def __init__(self, graph: OpGraph):
        self.topology: Topology = topology(graph)
        self.convexity_memo: convexity.Memo = convexity.Memo()
        self.cycle_memo: cycle_breaking.Memo = cycle_breaking.Memo()

    @classmethod
    def of(cls, graph: OpGraph) -> SubgraphCollector:
        """Return the collector that is kept with a graph."""
        return graph.derived(cls)

    @cached_property
    def _uncut_ranks(self) -> list[cycle_breaking.Rank]:
        return cycle_breaking.uncut_ranks(self.topology)

    def split(self, devices: np.ndarray) -> Split:
        """Cut the graph where HETERO cuts it.

        Parameters
        ----------
        devices
            Number of the device of each node, shape ``[n_nodes]``. A constant is where its
            leader is; the device of a result is ignored.
        """
        top = self.topology
        # First cut: between devices. A result never parts from its producer.
        cut = (devices[top.source] != devices[top.target]) & ~top.to_result
        ids = connected(top, cut)
        components = self._cyclic_components(cut, ids)
        if components is None:  # no subgraph depends on itself: the usual case
            return Split(cut, ids)
        # Only nodes of cyclic subgraphs can need a further cut. Numbers of subgraphs change with
        # each stage, so components are found anew after the repair.
        flags = bytearray(cut.tobytes())
        repair = convexity.ConvexityRepair(top, flags, ids.tolist(), self.convexity_memo)
        repair.repair(np.flatnonzero(components[ids] >= 0).tolist())
        cut = np.frombuffer(flags, dtype=bool)
        ids = connected(top, cut)
        components = self._cyclic_components(cut, ids)
        if components is not None:
            flags = bytearray(flags)
            cycle_breaking.CycleBreaking(
                top, flags, ids, components, self._uncut_ranks, self.cycle_memo
            ).break_cycles()
            cut = np.frombuffer(flags, dtype=bool)
            ids = connected(top, cut)
        return Split(cut, ids)

    def _cyclic_components(self, cut: np.ndarray, ids: np.ndarray) -> np.ndarray | None:
        """Number the strongly connected components of several subgraphs; -1 for the others."""
        top = self.topology
        n = int(ids.max()) + 1 if len(ids) else 0
        labels = strong_components(ids[top.source[cut]], ids[top.target[cut]], n)
        cyclic = np.bincount(labels, minlength=n)[labels] > 1
        return np.where(cyclic, labels, -1) if cyclic.any() else None
