"""Which candidates are measured once more: those that may be best, and leave time for measuring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hetero_lab.experiments.advise.advice import Judged, by_label
from hetero_lab.experiments.results.evidence import ALIKE, BEST
from hetero_lab.experiments.results.sweep.row import BUDGET_ENDED
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import Placement

_MOST = 4  # beside the reference and what was searched for
_OF_THE_REST = 0.25  # the share of the time that is left that a further compile may take


@dataclass(frozen=True)
class CompileTimes:
    """How long devices take to compile the model and infer once, in seconds."""

    by_device: Mapping[str, float]

    @classmethod
    def of(cls, known: Sequence[Judged]) -> CompileTimes:
        """Read them from what was measured; of several on a device the longest."""
        found: dict[str, float] = {}
        for candidate in known:
            profile, devices = candidate.row.profile, candidate.placement.devices
            if profile is not None and len(devices) == 1:
                took_s = (profile.compile_ms + profile.first_inference_ms) / 1e3
                found[devices[0]] = max(took_s, found.get(devices[0], 0.0))
        return cls(found)

    @property
    def longest_s(self) -> float:
        """That of the slowest device."""
        return max(self.by_device.values(), default=0.0)

    def expected_s(self, placement: Placement) -> float:
        """Return the sum over its devices; one that is not known counts as the slowest one."""
        return sum(self.by_device.get(device, self.longest_s) for device in placement.devices)


def choose_finalists(
    known: Sequence[Judged],
    found: Mapping[str, Placement | None],
    *,
    left_s: float | None,
    n_models: int = 1,
) -> dict[str, Placement]:
    """Return placements to measure again by label, the reference first; empty without time for it.

    Parameters
    ----------
    known
        What was raced, the reference first; one is the best of them. What the race did not get to
        may be the best as well: it comes last.
    found
        What was searched for, which was measured to be faster than the candidates of its kind.
    left_s
        The time for compiles and turns. The reference, the best and what was found have to fit;
        any other one is taken unless its compile would need too much of what is then left.
    n_models
        Variants of the model that each is measured with.
    """
    compiles = CompileTimes.of(known)
    placements = {c.row.label: c.placement for c in known}
    best = by_label(known, BEST)[0].row.label
    chosen = dict.fromkeys([known[0].row.label, best])
    left = [c for c in known if c.judgement == ALIKE or c.row.status == BUDGET_ENDED]
    left.sort(key=lambda c: c.row.latency.us if c.row.latency else float("inf"))
    taken = [_what_runs(placements[label]) for label in chosen]
    extra = {
        label: replace(p, label=label)
        for label, p in found.items()
        if p is not None and _what_runs(p) not in taken
    }
    needed_s = n_models * sum(
        compiles.expected_s(p) for p in [*(placements[label] for label in chosen), *extra.values()]
    )
    if left_s is not None and needed_s >= left_s:
        return {}
    for candidate in left[: _MOST - (best != known[0].row.label)]:
        own_s = n_models * compiles.expected_s(candidate.placement)
        if left_s is None or own_s <= _OF_THE_REST * (left_s - needed_s):
            chosen[candidate.row.label] = None
            needed_s += own_s
    return {label: p for label, p in placements.items() if label in chosen} | extra


def _what_runs(placement: Placement) -> tuple[Affinity, dict[str, Any]]:
    return placement.affinity, {d: p for d, p in placement.device_properties.items() if p}
