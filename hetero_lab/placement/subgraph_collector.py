"""Where HETERO cuts a model: the rule of ``partition`` on arrays, close to linear time.

The rule (OpenVINO's ``SubgraphCollector``, see NOTICE): neighbours on one device merge; each
subgraph that depends on itself through another one is cut at the inputs that close the cycle
(``peeling``); what is still cyclic is cut node by node (``knots``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero_lab.placement.convexity import Peeler
from hetero_lab.placement.cycle_breaking import Knots
from hetero_lab.placement.topology import Topology, connected, strong_labels


@dataclass(frozen=True, eq=False)
class Split:
    """Which wires are cut, and the subgraph number of every node."""

    cut: np.ndarray
    ids: np.ndarray


def split(top: Topology, devices: np.ndarray) -> Split:
    """Cut a model where HETERO cuts it.

    Parameters
    ----------
    top
        The wires.
    devices
        Number of the device of each node, shape ``[n_nodes]``. A constant is where its leader
        is; a result's own device is not looked at.
    """
    cut = (devices[top.source] != devices[top.target]) & ~top.to_result
    ids = connected(top, cut)
    knots = _knots(top, cut, ids)
    if knots is None:
        return Split(cut, ids)
    flags = bytearray(cut.tobytes())
    Peeler(top, flags, ids.tolist()).peel(np.flatnonzero(knots[ids] >= 0).tolist())
    cut = np.frombuffer(flags, dtype=bool)
    ids = connected(top, cut)
    knots = _knots(top, cut, ids)
    if knots is not None:
        flags = bytearray(flags)
        Knots(top, flags, ids, knots).untie()
        cut = np.frombuffer(flags, dtype=bool)
        ids = connected(top, cut)
    return Split(cut, ids)


def _knots(top: Topology, cut: np.ndarray, ids: np.ndarray) -> np.ndarray | None:
    """Number the strongly connected components of several subgraphs; -1 for who is in none."""
    n = int(ids.max()) + 1 if len(ids) else 0
    labels = strong_labels(ids[top.source[cut]], ids[top.target[cut]], n)
    tied = np.bincount(labels, minlength=n)[labels] > 1
    return np.where(tied, labels, -1) if tied.any() else None
