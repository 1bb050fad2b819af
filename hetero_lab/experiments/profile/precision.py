"""In which precision each op was really executed, and where it changes from op to op.

The counters tell: a kernel's name ends with the precision of what it reads. What is inside
another op's node runs as that does.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hetero_lab.runtime.counters import Counter

if TYPE_CHECKING:
    from hetero_lab.experiments.profile.profile import Profile

# What a device may choose among; i32 or boolean is what the model says.
_CHOSEN = frozenset(["f64", "f32", "f16", "bf16", "i8", "u8"])
TRANSITION_COLUMNS = [
    "producer", "consumer", "from_device", "from_precision", "to_device", "to_precision", "where",
    "handed_over_as", "n_bytes", "from_subgraph", "to_subgraph",
]  # fmt: skip


def executed_precisions(counters: Sequence[Counter]) -> dict[str, str]:
    """Return op → precision of the node that ran it; ops of which no counter tells are left out."""
    found = {}
    for counter in counters:
        if counter.kind == "op" and counter.precision:
            for op in (counter.op, *counter.fused_ops):
                found.setdefault(op, counter.precision)
    return found


def tally(precisions: Iterable[str]) -> str:
    """Say how many ops ran in which precision, the most frequent first: ``"9 bf16, 2 f32"``."""
    counted = Tally(precisions)
    return ", ".join(f"{n} {name}" for name, n in counted.most_common() if name)


def transitions(profile: Profile) -> list[dict[str, Any]]:
    """Return one row a pair of ops between which the precision changes, in the model's order.

    With the keys of ``TRANSITION_COLUMNS``. ``where`` is ``boundary`` (between subgraphs) or
    ``inside`` one. What crosses a boundary does so in the model's own type: two bf16 devices hand
    over f32, so that such a pair is in the table too. ``n_bytes`` are those of the tensors in the
    model's type; a tensor that several ops read is in the row of each.
    """
    graph, home = profile.graph, profile.partition.subgraph_of
    precision = executed_precisions(profile.counters)
    node = {op: c.op for c in profile.counters if c.kind == "op" for op in (c.op, *c.fused_ops)}
    rows = []
    for consumer in profile.affinity.ops:
        ports: dict[int, set[int]] = {}
        for index, port in graph.ops[graph.index_of[consumer]].inputs:
            ports.setdefault(index, set()).add(port)
        for index, used in ports.items():
            producer = graph.ops[index].name
            tensors = [graph.ops[index].outputs[port] for port in sorted(used)]
            tensors = [t for t in tensors if t.element_type in _CHOSEN]
            ends = precision.get(producer), precision.get(consumer)
            if not tensors or not set(ends) <= _CHOSEN:
                continue
            crosses = home.get(producer) != home.get(consumer)
            if not crosses and node[producer] == node[consumer]:
                continue
            handed_over = tensors[0].element_type if crosses else ""
            if ends[0] == ends[1] and handed_over in ("", ends[0]):
                continue
            sizes = [t.n_bytes for t in tensors]
            rows.append(
                {
                    "producer": producer,
                    "consumer": consumer,
                    "from_device": profile.affinity[producer],
                    "from_precision": ends[0],
                    "to_device": profile.affinity[consumer],
                    "to_precision": ends[1],
                    "where": "boundary" if crosses else "inside",
                    "handed_over_as": handed_over,
                    "n_bytes": None if None in sizes else sum(size or 0 for size in sizes),
                    "from_subgraph": home.get(producer),
                    "to_subgraph": home.get(consumer),
                }
            )
    return rows
