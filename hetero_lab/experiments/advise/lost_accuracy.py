"""Accuracy that the fastest candidate loses: which device keeps it, and a mix of the two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hetero_lab.backend.bound import BoundModel
from hetero_lab.experiments.accuracy.evaluate import ReadData, evaluate_placed
from hetero_lab.experiments.recover import recover_bound
from hetero_lab.experiments.results.sweep.row import Row
from hetero_lab.interrupts import what_was_set_aside
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import Placement, resolve
from hetero_lab.planning.cost_model import CostModel
from hetero_lab.runtime.timing import Stopwatch
from hetero_lab.samples.datasets import Dataset, Metric

_LEAST_S = 1.0


def labelled_data(data: object, examples: ReadData | None) -> Dataset | None:
    """Return a data set to judge and to recover accuracy with; ``None`` without labels."""
    if not isinstance(data, Dataset) or examples is None or examples.correct is None:
        return None
    return replace(data, metric=Metric(examples.metric, examples.correct))


def is_exact(row: Row) -> bool:
    """Tell whether the outputs are those in f32, so that no accuracy can be lost."""
    agreement = row.profile.agreement if row.profile else ()
    return bool(agreement) and all(a.verdict == "equal" for a in agreement)


def fast_and_accurate(
    fastest_first: Iterable[Placement], keeps_accuracy: Callable[[Placement], bool]
) -> tuple[str, str] | None:
    """Return the device that loses accuracy and the fastest one that keeps it.

    ``None`` where there is nothing to recover: the fastest placement keeps it, or only the same
    device with other properties does. What AUTO and MULTI choose cannot be mixed.
    """
    lossy: Placement | None = None
    for placement in fastest_first:
        if placement.virtual or (lossy is not None and not placement.direct):
            continue
        if keeps_accuracy(placement):
            others = [d for d in (lossy.devices if lossy else ()) if d not in placement.devices]
            return (others[0], placement.devices[0]) if others else None
        lossy = lossy or placement
    return None


@dataclass(frozen=True)
class LostAccuracy:
    """A model with labelled data, and the share of right answers that it may lose."""

    bound: BoundModel
    data: Dataset
    examples: ReadData
    max_drop: float
    properties: Mapping[str, Mapping[str, Any]]
    isolate: bool

    def fast_and_accurate(
        self, fastest_first: Sequence[Placement], n_examples: int
    ) -> tuple[str, str] | None:
        """Do what :func:`fast_and_accurate` does, judging by a few examples to calibrate with."""
        looked_at = self.examples._replace(examples=self.data.calibration[: max(1, n_examples)])

        def keeps_accuracy(placement: Placement) -> bool:
            placed = resolve(self.bound, placement)
            found = evaluate_placed(placed, looked_at, reference=self.bound, progress=False)
            if found.interrupted:
                raise KeyboardInterrupt
            return found.paired.drop <= self.max_drop

        return fast_and_accurate(fastest_first, keeps_accuracy)

    def properties_of(self, fast: str, accurate: str) -> dict[str, dict[str, Any]]:
        """Return the properties of two devices that are mixed; the accurate one computes in f32."""
        properties = {device: dict(self.properties.get(device, {})) for device in (fast, accurate)}
        properties[accurate].setdefault("INFERENCE_PRECISION_HINT", "f32")
        return properties

    def mix(
        self, fast: str, accurate: str, watch: Stopwatch, kept_costs: Path | None
    ) -> tuple[Affinity, str]:
        """Recover the accuracy of a device; return where each op goes, and what is said of it.

        Costs that an interrupted call has learnt are kept in a file and taken from there.
        """
        costs = None
        if kept_costs is not None and kept_costs.is_file():
            costs = CostModel.from_json(kept_costs)
        try:
            found = recover_bound(
                self.bound,
                fast,
                accurate,
                self.data,
                self.properties_of(fast, accurate),
                Stopwatch.start(None if watch.budget_s is None else max(_LEAST_S, watch.left_s)),
                max_drop=self.max_drop,
                costs=costs,
                isolate=self.isolate,
                progress=False,
            )
        except KeyboardInterrupt:
            learnt = what_was_set_aside()
            if kept_costs and isinstance(learnt, CostModel) and not learnt.interrupted:
                learnt.to_json(kept_costs)
            raise
        return found.affinity, found.verdict
