"""Guess what was never measured from its like: a tensor of about that size, shape and role."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hetero_lab.model.opgraph import CONSTANT, OpGraph

US_PER_BYTE = 1e-4  # 10 GB/s: what a tensor costs when nothing else is known
_OTHER_ROLE = 3.0
_NEAREST = 4  # examples that a guess is made of
_MOST_SCALED = 4.0  # a guess for a large tensor takes at most so many times a small one's


@dataclass(frozen=True, slots=True)
class Example:
    """A tensor and what something about it took.

    ``role`` is the type of the op that makes it, and of those before and after: blocks of a
    model repeat, and in each the same tensor is the one that is converted.
    """

    op_type: str
    role: tuple[tuple[str, ...], ...]
    shape: tuple[int, ...] | None
    n_bytes: int
    us: float = 0.0

    @classmethod
    def of(cls, graph: OpGraph, op: str, port: int, us: float = 0.0) -> Example:
        made = graph.ops[graph.index_of[op]]
        tensor = made.outputs[port]
        before = {graph.ops[i].type for i, _ in made.inputs} - {CONSTANT}
        after = {graph.ops[use.index].type for use in graph.consumers[made.index]}
        role = (tuple(sorted(before)), (made.type,), tuple(sorted(after)))
        return cls(made.type, role, tensor.shape, tensor.n_bytes or 0, us)


def guess(wanted: Example, examples: Sequence[Example]) -> float:
    """Guess from the nearest examples: of about that size, that shape, made by such an op."""
    if not wanted.n_bytes:
        return 0.0
    near = sorted((_distance(wanted, e), e.n_bytes, e.us) for e in examples if e.n_bytes)
    if not near:
        return US_PER_BYTE * wanted.n_bytes
    near = near[:_NEAREST]
    weights = np.exp(-np.array([distance for distance, _, _ in near]))
    scaled = [us * min(wanted.n_bytes / n_bytes, _MOST_SCALED) for _, n_bytes, us in near]
    return float(weights @ np.array(scaled) / weights.sum())


def _distance(a: Example, b: Example) -> float:
    size = abs(float(np.log(a.n_bytes / b.n_bytes)))
    other = 2.0 * (a.shape != b.shape) + 1.0 * (a.op_type != b.op_type)
    return size + other + _OTHER_ROLE * (a.role != b.role)
