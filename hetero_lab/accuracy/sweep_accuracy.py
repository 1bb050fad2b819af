"""The accuracy of a sweep's rows: evaluated after measuring, stored as records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hetero_lab.accuracy.evaluate import check_labels, judge
from hetero_lab.devices.core import BoundModel
from hetero_lab.errors import HeteroLabError
from hetero_lab.progress import Progress
from hetero_lab.results.evaluation import completed, recorded_answers
from hetero_lab.results.records import Accuracy, AnyRecord, Trial, Turn
from hetero_lab.runtime.compiled import compile_placed
from hetero_lab.runtime.reference import Reference
from hetero_lab.samples.datasets import ReadData


class SweepData:
    """The examples of a sweep, checked before anything is measured.

    The reference is the first variant on one real device in f32, so that the drop of a quantised
    variant is relative to the model it was made from. Raises ArgumentError or InputError if there
    are no examples, the first one does not fit the model, or a label does not fit its outputs.
    """

    def __init__(self, data: ReadData, models: Mapping[str, BoundModel]):
        self.data = data
        self.models = models
        self.reference = Reference(next(iter(models.values())))
        first = data._replace(examples=data.examples[:1])
        list(judge(self.reference.compiled, self.reference, first))
        if data.correct is not None:
            check_labels(self.reference, data.examples, data.correct)

    def evaluate(
        self,
        trials: Sequence[Trial],
        records: Sequence[AnyRecord],
        append: Callable[[AnyRecord], object],
        progress: bool,
    ) -> None:
        """Append an ``Accuracy`` record for each measured trial without one for this data."""
        measured = {r.entry for r in records if isinstance(r, Turn)}
        known = {r.entry for r in completed(records) if self._is_mine(r)}
        wanted: dict[Any, list[Trial]] = {}
        for trial in {t.key: t for t in trials}.values():
            if trial.key in measured - known and not trial.problem:
                # Requests in flight and the executor do not change the outputs.
                properties = repr(sorted(trial.device_properties.items()))
                same = (trial.variant, trial.affinity, trial.direct, properties)
                wanted.setdefault(same, []).append(trial)
        with Progress("accuracy", show=progress, total=len(wanted), unit="placements") as bar:
            for several in wanted.values():
                self._evaluate(several, append)
                bar.advance()

    def _evaluate(self, several: Sequence[Trial], append: Callable[[AnyRecord], object]) -> None:
        first = several[0]
        try:
            run = compile_placed(first.placed(self.models[first.variant]))
            found: dict[str, Any] = recorded_answers(tuple(judge(run, self.reference, self.data)))
        except HeteroLabError as error:  # another variant may have other outputs
            found = {"problem": str(error)}
        for trial in several:
            append(Accuracy(entry=trial.key, **self._mark(), **found))

    def _mark(self) -> dict[str, Any]:
        data = self.data
        return {"metric": data.metric, "output": data.output, "n": len(data.examples)}

    def _is_mine(self, record: Accuracy) -> bool:
        return all(getattr(record, name) == value for name, value in self._mark().items())
