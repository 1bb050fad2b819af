"""Observations that a cost model is fitted to: measured placements and their counters."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hetero_lab.placement.affinity import Affinity

LEAVES, ENTERS = "leaves", "enters"


@dataclass(frozen=True, slots=True)
class ExecutedNode:
    """A node that a device executed: the ops in it, the leading one first, and its time in µs."""

    ops: tuple[str, ...]
    device: str
    us: float
    subgraph: int = 0


@dataclass(frozen=True, slots=True)
class Conversion:
    """Layout conversions of a tensor at a boundary, on the device that it leaves or enters.

    ``us`` is 0 where the tensor crossed without any.
    """

    op: str
    port: int
    device: str
    way: str
    us: float


@dataclass(frozen=True)
class Observation:
    """A placement that was measured; nodes and conversions are empty without counters.

    ``noise`` is the relative standard deviation of ``measured_us``. Of a language model, that is
    the time of a further token, and ``first_us`` that of the first one.
    """

    label: str
    affinity: Affinity
    measured_us: float
    nodes: tuple[ExecutedNode, ...] = ()
    conversions: tuple[Conversion, ...] = ()
    noise: float = 0.02
    first_us: float | None = None

    def slower(self, factor: float) -> Observation:
        """Return the observation of a machine that is slower by a factor."""
        return replace(
            self,
            measured_us=self.measured_us * factor,
            first_us=None if self.first_us is None else self.first_us * factor,
        )
