"""Sensitivity: which parts of a model lose accuracy on a fast device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hetero_lab.errors import HeteroLabError
from hetero_lab.experiments.accuracy.evaluate import Evaluation
from hetero_lab.planning.cost_model import CostModel


@dataclass(frozen=True)
class Chunk:
    """Planning units that follow each other in topological order and are tried together.

    ``accurate_us`` and ``fast_us`` are what the cost model says of its ops on each device; NaN
    where the fast device does not support one of them.
    """

    index: int
    ops: tuple[str, ...]
    accurate_us: float
    fast_us: float


@dataclass(frozen=True)
class Tried:
    """A chunk alone on one device and all others on the other, on the calibration examples.

    ``None`` where there was no time for it, or the runtime refused it.
    """

    chunk: Chunk
    only_fast: Evaluation | None
    only_accurate: Evaluation | None

    @property
    def lost(self) -> float:
        """The relative error of the outputs that this chunk alone brings in on the fast device."""
        return float("nan") if self.only_fast is None else self.only_fast.relative_error


def chunks_of(costs: CostModel, fast: str, accurate: str, most: int) -> tuple[Chunk, ...]:
    """Cut the planning units, in topological order, into chunks of about equal weight.

    The weight of a unit is half its share of the time on the accurate device and half its share
    of the number of ops: a long tail of cheap ops is not one chunk, nor is a big op many.
    """
    graph, number = costs.graph, {device: n for n, device in enumerate(costs.devices)}
    units = sorted(costs.units, key=lambda unit: graph.index_of[unit.ops[0]])
    times = np.array([unit.time_us[number[accurate]] or 0.0 for unit in units])
    counts = np.array([float(len(unit.ops)) for unit in units])
    weight = 0.5 * times / (times.sum() or 1.0) + 0.5 * counts / counts.sum()
    # The middle of a unit tells its chunk, so that a heavy one is not put behind its own end.
    middle = np.cumsum(weight) - weight / 2
    part = np.minimum((middle * most).astype(int), most - 1)
    chunks = []
    for value in dict.fromkeys(part.tolist()):
        own = [units[i] for i in np.flatnonzero(part == value)]
        fast_us = [unit.time_us[number[fast]] for unit in own]
        chunks.append(
            Chunk(
                index=len(chunks),
                ops=tuple(op for unit in own for op in unit.ops),
                accurate_us=float(sum(unit.time_us[number[accurate]] or 0.0 for unit in own)),
                fast_us=sum(float("nan") if us is None else us for us in fast_us),
            )
        )
    return tuple(chunks)


def measure_sensitivity(
    chunks: Sequence[Chunk],
    try_on_accurate: Callable[[str, frozenset[int]], Evaluation],
    has_time: Callable[[], bool],
) -> tuple[Tried, ...]:
    """Try each chunk alone on the fast device, then alone on the accurate one.

    Parameters
    ----------
    chunks
        In topological order.
    try_on_accurate
        Evaluates, under a name, the placement with these chunks on the accurate device and the
        others on the fast one.
    has_time
        Asked before each compile.
    """
    everything = frozenset(range(len(chunks)))
    # In low precision what an op loses hangs on its neighbours (what is handed on in bf16, what
    # is fused), so that neither way alone tells; the second one is also worth having.
    wanted = [("only_accurate", chunk, frozenset({chunk.index})) for chunk in chunks]
    wanted += [("only_fast", chunk, everything - {chunk.index}) for chunk in chunks]
    names = {"only_accurate": "part {} accurate", "only_fast": "all but part {} accurate"}
    found: dict[tuple[str, int], Evaluation] = {}
    for way, chunk, on_accurate in wanted:
        if not has_time():
            break
        try:
            found[way, chunk.index] = try_on_accurate(
                names[way].format(chunk.index + 1), on_accurate
            )
        except HeteroLabError:  # a cut that the runtime refuses says nothing about the chunk
            continue
    return tuple(
        Tried(c, found.get(("only_fast", c.index)), found.get(("only_accurate", c.index)))
        for c in chunks
    )


def promising_sets(tried: Sequence[Tried]) -> dict[str, frozenset[int]]:
    """Return sets of chunks that are worth trying on the accurate device, by name.

    Chunks that follow each other (the first ones and the last ones need a single cut), and the
    chunks that matter most, for themselves and for the time that they cost, more and more of
    them.
    """
    n = len(tried)
    loss = {t.chunk.index: 0.0 if np.isnan(t.lost) else t.lost for t in tried}
    gain = {
        t.chunk.index: 0.0 if t.only_accurate is None else -t.only_accurate.relative_error
        for t in tried
    }
    price = {t.chunk.index: _price_us(t.chunk) for t in tried}
    orders = {
        "lose most": sorted(loss, key=lambda index: -loss[index]),
        "lose most a µs": sorted(loss, key=lambda index: -loss[index] / price[index]),
        "mend most": sorted(gain, key=lambda index: -gain[index]),
    }
    sets: dict[frozenset[int], str] = {}
    for size in range(1, n):
        for start in range(n - size + 1):
            last = start + size
            name = f"part {last}" if size == 1 else f"parts {start + 1} to {last}"
            sets.setdefault(frozenset(range(start, last)), f"{name} accurate")
        for name, order in orders.items():
            sets.setdefault(frozenset(order[:size]), f"{size} parts that {name}")
    return {name: chosen for chosen, name in sets.items()}


def expected_error(tried: Sequence[Tried], on_accurate: frozenset[int], all_fast: float) -> float:
    """Return a guess at the relative error of a set, from what its chunks did alone.

    At most that of its best chunk alone on the accurate device; at least what the chunks that
    are left bring in by themselves, their squares added up as if they were independent.
    """
    alone = [
        t.only_accurate.relative_error
        for t in tried
        if t.chunk.index in on_accurate and t.only_accurate is not None
    ]
    left = [t.lost for t in tried if t.chunk.index not in on_accurate and not np.isnan(t.lost)]
    floor = float(np.sqrt(np.sum(np.square(left)))) if left else 0.0
    return max(floor, min([all_fast, *(error for error in alone if not np.isnan(error))]))


def _price_us(chunk: Chunk) -> float:
    gap = chunk.accurate_us - chunk.fast_us
    return gap if gap > 0.1 else 0.1  # as good as free, or not known


def sensitivity_rows(tried: Sequence[Tried], reference: Mapping[str, float]) -> list[dict]:
    """Return one row a chunk; ``reference`` holds error and accuracy of all on the fast device."""
    rows = []
    for t in tried:
        fast, accurate = t.only_fast, t.only_accurate
        rows.append(
            {
                "part": t.chunk.index + 1,
                "first_op": t.chunk.ops[0],
                "last_op": t.chunk.ops[-1],
                "n_ops": len(t.chunk.ops),
                "accurate_us": t.chunk.accurate_us,
                "fast_us": t.chunk.fast_us,
                "error_only_fast": None if fast is None else fast.relative_error,
                "accuracy_only_fast": None if fast is None else fast.accuracy,
                "agreement_only_fast": None if fast is None else fast.top1_agreement,
                "error_only_accurate": None if accurate is None else accurate.relative_error,
                "accuracy_only_accurate": None if accurate is None else accurate.accuracy,
                "error_all_fast": reference["error"],
                "accuracy_all_fast": reference["accuracy"],
            }
        )
    return rows
