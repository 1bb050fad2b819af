"""Wrong numbers as findings: ops that a search found to be wrong, as long as they stay together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from hetero_lab.errors import names_at_hand
from hetero_lab.lint.context import ERROR, Costs, Finding
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import Partition
from hetero_lab.placement.placement import Placement

RULE = "wrong-numbers"


class FoundSet(Protocol):
    """Ops that are wrong together on a device; ``damage`` is the error of the outputs.

    ``minimal`` if none of them can be left out; ``refusal`` is what the device says if it does not
    run them.
    """

    @property
    def device(self) -> str: ...
    @property
    def ops(self) -> tuple[str, ...]: ...
    @property
    def damage(self) -> float: ...
    @property
    def minimal(self) -> bool: ...
    @property
    def refusal(self) -> str: ...


class WrongSets(Protocol):
    """What :func:`hetero_lab.find_wrong` returns, as far as it concerns lint."""

    @property
    def sets(self) -> Sequence[FoundSet]: ...
    @property
    def given(self) -> Placement: ...
    @property
    def fix(self) -> Mapping[str, str]: ...
    @property
    def trusted(self) -> str: ...


def wrong_sets(wrong: WrongSets, partition: Partition) -> tuple[FoundSet, ...]:
    """Return the sets that are as they were found: in one subgraph on their device."""
    subgraphs = [(subgraph.device, frozenset(subgraph.ops)) for subgraph in partition.subgraphs]
    return tuple(
        found
        for found in wrong.sets
        if any(device == found.device and ops.issuperset(found.ops) for device, ops in subgraphs)
    )


def wrong_findings(
    wrong: WrongSets, sets: Sequence[FoundSet], affinity: Affinity, costs: Costs | None = None
) -> list[Finding]:
    """Return a finding for each set; its remedy is what the search moved to mend it."""
    findings = []
    for found in sets:
        remedy = {op: device for op, device in wrong.fix.items() if op in found.ops}
        together = "only together" if found.minimal else "together"
        how = together if len(found.ops) > 1 else "by itself"
        if found.refusal:
            what = f"refused {how}: {found.refusal}"
            cause = f"{found.device} refuses them"
        else:
            what = f"wrong {how}; the outputs are off by {found.damage:.2g} (relative error)."
            cause = f"{found.device} computes wrong numbers"
        saved_us = None if costs is None else 0.0
        if costs is not None and set(remedy.values()) <= set(costs.devices):
            now = costs.predictor(affinity)
            saved_us = now.predicted_us - now.moved(remedy).predicted_us
        findings.append(
            Finding(
                rule=RULE,
                severity=ERROR,
                ops=found.ops,
                finding=f"{names_at_hand(found.ops)} on {found.device}: {what}",
                advice=f"Move {names_at_hand(list(remedy))} to {wrong.trusted}.",
                remedy=remedy,
                cost_us=saved_us,
                cause=cause,
            )
        )
    return findings
