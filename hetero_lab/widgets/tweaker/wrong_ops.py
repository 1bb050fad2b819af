"""What the tweaker shows of a search for wrong numbers: which ops are wrong as they are placed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hetero_lab.errors import names_at_hand
from hetero_lab.experiments.search.wrong import Wrong, WrongSet
from hetero_lab.lint.context import ERROR, Finding
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import Partition

RULE = "wrong-numbers"


def wrong_sets(
    wrong: Wrong | None, graph: OpGraph, affinity: Affinity, partition: Partition
) -> tuple[WrongSet, ...]:
    """Return the sets that are as they were found: all on their device, in one subgraph."""

    def stands(found: WrongSet) -> bool:
        homes = {partition.home[graph.index_of[op]] for op in found.ops}
        return len(homes) == 1 and all(affinity[op] == found.device for op in found.ops)

    return () if wrong is None else tuple(filter(stands, wrong.sets))


def wrong_findings(
    wrong: Wrong | None, sets: Sequence[WrongSet], devices: Collection[str]
) -> list[Finding]:
    """Return a finding for each set; its remedy is what the search moved to mend it."""
    if wrong is None:
        return []
    findings = []
    for found in sets:
        remedy = {op: d for op, d in wrong.fix.items() if op in found.ops and d in devices}
        how = "only together" if len(found.ops) > 1 else "by itself"
        advice = f"Move {names_at_hand(list(remedy))} to {wrong.trusted}."
        if not remedy:
            advice = f"Move one of them to {wrong.trusted}, which is not among the devices here."
        findings.append(
            Finding(
                RULE,
                ERROR,
                found.ops,
                f"{names_at_hand(found.ops)} on {found.device}: wrong {how}, the outputs are off "
                f"by {found.damage:.2g} (relative error).",
                advice,
                remedy,
            )
        )
    return findings


def mark_text(found: WrongSet, op: str) -> str:
    """Say of one op what is wrong with it."""
    others = [other for other in found.ops if other != op]
    beside = f" together with {names_at_hand(others)}" if others else ""
    return f"wrong numbers on {found.device}{beside}"
