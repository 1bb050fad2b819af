"""Advise: measure what could be deployed, drop what is hopeless early, and say what is best."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from hetero_lab.backend.bound import BoundModel, bind
from hetero_lab.backend.core import shared_core
from hetero_lab.clock import now
from hetero_lab.errors import (
    ArgumentError,
    DeviceError,
    HeteroLabError,
    MeasurementError,
)
from hetero_lab.experiments.accuracy.evaluate import ReadData, read_data
from hetero_lab.experiments.advise.advice import (
    Advice,
    Judged,
    by_label,
    judge,
    verdict_sentences,
)
from hetero_lab.experiments.advise.candidates import (
    Candidates,
    candidates_for,
    order_of,
    over_limit,
)
from hetero_lab.experiments.advise.finalists import CompileTimes, choose_finalists
from hetero_lab.experiments.advise.kept import (
    AdviseSettings,
    digest,
    keep_model,
    kept_path,
    searched_for,
)
from hetero_lab.experiments.advise.lost_accuracy import LostAccuracy, is_exact, labelled_data
from hetero_lab.experiments.calibrate import check_device_properties
from hetero_lab.experiments.measure.budget import RunOptions
from hetero_lab.experiments.measure.trial import by_name, expand
from hetero_lab.experiments.optimize import OPTIMIZED, Optimized, optimize_bound
from hetero_lab.experiments.pipeline import (
    PipelineAdvice,
    advise_together,
    check_pipeline,
)
from hetero_lab.experiments.progress import SearchProgress
from hetero_lab.experiments.results.evidence import ALIKE, BEST
from hetero_lab.experiments.results.sweep.result import Sweep
from hetero_lab.experiments.results.sweep.row import Row
from hetero_lab.experiments.session import Conditions, Session
from hetero_lab.interrupts import set_aside, what_was_set_aside
from hetero_lab.model.language import refuse_language_model
from hetero_lab.model.read import Source, prepare
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import Placement, carried_over, resolve
from hetero_lab.planning.constraints import check_constraints
from hetero_lab.planning.cost_model import CostModel
from hetero_lab.planning.memory import MemoryLimit
from hetero_lab.planning.objective import LATENCY, THROUGHPUT, check_objective
from hetero_lab.runtime.inputs import Inputs, digest_of
from hetero_lab.runtime.quantize import calibration_inputs, quantize
from hetero_lab.runtime.reference import reference_device
from hetero_lab.runtime.runners import HETERO, PARALLEL
from hetero_lab.runtime.scoring import Correct
from hetero_lab.runtime.timing import Stopwatch
from hetero_lab.samples.datasets import Dataset, Metric
from hetero_lab.tables import make_directory

if TYPE_CHECKING:
    import openvino as ov

# Shares of the budget after which these end.
_RACE, _RACE_ALONE, _SEARCH, _RECOVER = 0.3, 0.5, 0.65, 0.85
_SEARCH_LEAST_S = 20.0  # in less nothing is learnt that a plan could be made with
_SEARCH_COMPILES = 6  # that a search makes at the least
_RECOVER_LEAST_S = 15.0  # to learn which parts lose accuracy
_LOOK = 0.2  # of that time, at most, to see whether anything is lost
_MOST_LOOKED_AT = 100  # examples
RECOVERED = "recovered"
_RACE_PRECISION, _FINAL_PRECISION = 0.05, 0.01
_IN_FLIGHT = 4
_LEAST_TURNS = 2
_EXAMPLES = 3
_ALONE = 0.5  # of the budget of a pipeline, for each model alone
_INT8 = "int8"


class AdviseOptions(TypedDict, total=False):
    """The options of :func:`advise`, which are the same for one model and for several."""

    data: Dataset | Sequence[Any] | None
    metric: Metric | Correct | None
    max_drop: float
    objective: str
    requests: int
    budget_s: float | None
    device_properties: Mapping[str, Mapping[str, Any]] | None
    memory_limit: MemoryLimit | None
    costs: CostModel | None
    inputs: Inputs | None
    seed: int
    store: str | os.PathLike[str] | None
    isolate: bool
    progress: bool
    core: ov.Core | None


@overload
def advise(
    model: Source, devices: Sequence[str] | None = ..., **options: Unpack[AdviseOptions]
) -> Advice: ...


@overload
def advise(
    model: Mapping[str, Source],
    devices: Sequence[str] | None = ...,
    **options: Unpack[AdviseOptions],
) -> PipelineAdvice: ...


def advise(
    model: Source | Mapping[str, Source],
    devices: Sequence[str] | None = None,
    *,
    data: Dataset | Sequence[Any] | None = None,
    metric: Metric | Correct | None = None,
    max_drop: float = 0.01,
    objective: str = LATENCY,
    requests: int = 1,
    budget_s: float | None = 300.0,
    device_properties: Mapping[str, Mapping[str, Any]] | None = None,
    memory_limit: MemoryLimit | None = None,
    costs: CostModel | None = None,
    inputs: Inputs | None = None,
    seed: int = 0,
    store: str | os.PathLike[str] | None = None,
    isolate: bool = True,
    progress: bool = True,
    core: ov.Core | None = None,
) -> Advice | PipelineAdvice:
    """Say what to deploy, and why.

    First all candidates are raced: single devices and their properties, AUTO and MULTI, HETERO's
    greedy orders. Those that are slower beyond the intervals are dropped (racing, Maron and Moore
    1994), so that the budget goes into the few that may be best. On several devices a placement
    is then searched for (:func:`hetero_lab.optimize`), and where the fastest candidate loses
    accuracy that a slower device keeps, one that mixes the two
    (:func:`hetero_lab.recover_accuracy`). The best few, with int8 variants if there is data to
    calibrate with, are measured once more, in turns with each other, and the best split with the
    parallel executor. Of what is equally fast within 1 %, the simplest is advised.

    Several models, by name, are a pipeline, all of them at work at the same time: each is advised
    on alone, in half of the budget, and what is good for each is then combined and measured
    together in what is left of it, so that no two wait for one device without need. Together they
    run in this process whatever ``isolate`` is, with one request of each model at a time.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes, or several of it by name:
        ``{"det": "det.onnx", "rec": "rec.onnx"}``.
    devices
        By default all that are here, emulated ones included.
    data, metric
        Examples to judge the accuracy on, as for :func:`hetero_lab.evaluate`; a
        :class:`~hetero_lab.Dataset` has examples to calibrate int8 with, too. Accuracy is
        evaluated outside of the budget.
    max_drop
        The share of right answers that may be lost to f32.
    objective, requests
        ``"latency"`` of one request, or ``"throughput"`` with so many requests in flight (4, if
        ``requests`` is 1).
    budget_s
        Wall time of the measurements. Where it is too short, the advice says what it needs.
    device_properties, memory_limit, costs
        As for :func:`hetero_lab.optimize`; in a pipeline the limits are those of all models
        together.
    inputs, seed, isolate, progress
        As for :func:`hetero_lab.sweep`.
    store
        Directory in which measurements are kept. The same call goes on where it was stopped.

    Returns
    -------
    Advice or PipelineAdvice
        ``.verdict``, ``.summary``, ``.best``, ``.deploy(directory)``. After Ctrl-C
        (:func:`hetero_lab.last_interrupted`): what is known. Of a pipeline, ``.best`` is a
        placement by name.

    Raises
    ------
    DeviceError
        The model runs nowhere here; the message names the ops.
    ArgumentError
        ``metric`` without data, or another wrong argument, before something is compiled; or
        what is of one model only (``data``, ``metric``, ``costs``, ``inputs``) for a pipeline.
    PlanError
        No combination of a pipeline keeps to the memory limits.
    MeasurementError
        No candidate runs, or of a pipeline no combination.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> advice = hl.advise(model, ["CPU"], budget_s=10, progress=False)
    >>> advice.best.affinity.devices
    ('CPU',)
    """
    watch = Stopwatch.start(budget_s)
    core = core or shared_core()
    check_objective(objective, (LATENCY, THROUGHPUT))
    if isinstance(model, Mapping):
        given = {"data": data, "metric": metric, "costs": costs, "inputs": inputs}
        check_pipeline(model, [name for name, value in given.items() if value is not None])
    if metric is not None and data is None:
        raise ArgumentError("metric= says how answers to data= are judged: give data=, too")
    names = order_of(devices, core)
    settings = AdviseSettings(
        devices=names,
        data=data,
        examples=None if data is None else read_data(data, metric),
        max_drop=max_drop,
        objective=objective,
        requests=requests if requests > 1 or objective == LATENCY else _IN_FLIGHT,
        properties=check_device_properties(device_properties, names, core),
        memory_limit=memory_limit,
        costs=costs,
        inputs=inputs,
        seed=seed,
        isolate=isolate,
        progress=progress,
    )
    if isinstance(model, Mapping):
        models = {name: bind(source, core) for name, source in model.items()}
        return _advise_pipeline(models, settings, watch, store)
    return _advise_one(bind(model, core), settings, watch, store)


def _advise_one(
    bound: BoundModel,
    settings: AdviseSettings,
    watch: Stopwatch,
    store: str | os.PathLike[str] | None,
) -> Advice:
    refuse_language_model(bound.model, "advise")
    check_constraints(bound.graph, settings.devices, settings.memory_limit, None)
    if settings.costs is not None:
        settings.costs.check_graph(bound.graph)
    candidates = candidates_for(
        bound,
        settings.devices,
        objective=settings.objective,
        requests=settings.requests,
        device_properties=settings.properties,
        memory_limit=settings.memory_limit,
    )
    if not candidates.placements:
        reasons = "; ".join(f"{label}: {why}" for label, why in candidates.left_out.items())
        raise DeviceError(f"No candidate can be run. {reasons}")
    kept = None if store is None else make_directory(store)
    with SearchProgress(watch, show=settings.progress) as bar:
        return _Inquiry(bound, settings, candidates, kept, watch, bar).run()


def _advise_pipeline(
    models: Mapping[str, BoundModel],
    settings: AdviseSettings,
    watch: Stopwatch,
    store: str | os.PathLike[str] | None,
) -> PipelineAdvice:
    """Advise on each model alone, then on all together."""
    alone_s = None if watch.budget_s is None else _ALONE * watch.budget_s / len(models)
    alone: dict[str, Advice] = {}
    for name, bound in models.items():
        kept = None if store is None else Path(store) / name
        alone[name] = _advise_one(bound, settings, Stopwatch.start(alone_s), kept)
        if alone[name].interrupted and len(alone) < len(models):
            set_aside(alone)
            raise KeyboardInterrupt
    return advise_together(
        alone,
        objective=settings.objective,
        memory_limit=settings.memory_limit,
        watch=watch if watch.budget_s is None else Stopwatch(watch.left_s, now()),
        seed=settings.seed,
        progress=settings.progress,
        core=next(iter(models.values())).core,
    )


@dataclass
class _Inquiry:
    """The stages of an advice: race, search, final; keeps what each found."""

    bound: BoundModel
    settings: AdviseSettings
    candidates: Candidates
    store: Path | None
    watch: Stopwatch
    progress: SearchProgress
    interrupted: bool = False
    optimized: Optimized | None = None
    variants: dict[str, BoundModel] = field(default_factory=dict)  # of the model, int8 only
    began_s: float = 0.0  # when measuring began
    compile_s: float = 0.0  # on the slowest device
    notes: list[str] = field(default_factory=list)

    def run(self) -> Advice:
        """Race, search, measure the best few, and decide."""
        placements = self.candidates.placements
        self._make_variants()
        self.began_s = self.watch.elapsed_s
        race = self._race()
        rows = dict(zip(placements, race.rows, strict=True))
        known = judge(
            rows,
            dict.fromkeys(rows, self.bound),
            placements,
            stage="race",
            max_drop=self.settings.max_drop,
        )
        if self.interrupted or not by_label(known, BEST):
            return self._advice(known, race)
        self.compile_s = CompileTimes.of(known).longest_s
        found = {OPTIMIZED: self._search(), RECOVERED: self._recover(known)}
        n_models = 1 + len(self.variants)
        finalists = choose_finalists(known, found, left_s=self._left_s, n_models=n_models)
        if not finalists:
            self.notes.append("The budget ended before the best were measured once more.")
        if self.interrupted or not finalists:
            return self._advice(known, race)
        final, models, measured = self._final(finalists)
        last = judge(
            measured,
            models,
            self._carried(finalists, models),
            stage="final",
            max_drop=self.settings.max_drop,
        )
        if not by_label(last, BEST):
            return self._advice(known, race)
        again = {c.row.label for c in last}
        earlier = [
            replace(c, why=f"{c.why} in the race, not measured again")
            if c.judgement == ALIKE
            else c
            for c in known
            if c.row.label not in again
        ]
        executor = self._executor(by_label(last, BEST)[0])
        return self._advice([*last, *earlier], final, executor)

    # -- stages -------------------------------------------------------------------------------

    def _make_variants(self) -> None:
        """Quantise the model, where there are examples to calibrate with."""
        if not isinstance(self.settings.data, Dataset):
            return
        self.progress.begin("quantise")
        try:
            examples = calibration_inputs(self.bound.prepared, self.settings.data.calibration)
            arrays = [array for example in examples for array in example]
            asked = self.bound.prepared.fingerprint, digest_of(arrays)
            kept = kept_path(self.store, "int8", ".xml", *asked)
            if kept is None or not kept.is_file():
                made = prepare(quantize(self.bound.prepared, examples, progress=False))
                made = made if kept is None else keep_model(made, kept, self.notes)
            else:
                made = prepare(kept)
            self.variants[_INT8] = BoundModel(made, self.bound.core)
        except HeteroLabError as error:
            self.notes.append(f"There is no int8 variant: {error}")

    def _race(self) -> Sweep:
        """Measure all candidates roughly; the reference whatever the budget."""
        self.progress.begin("race")
        placements = list(self.candidates.placements.values())
        share_s = self._until_s(_RACE if len(self.settings.devices) > 1 else _RACE_ALONE)
        made = self._measure(
            by_name(self.bound), placements, "race", share_s, precision=_RACE_PRECISION, apart=True
        )
        if self.interrupted or any(row.profile is not None for row in made.rows):
            return made
        failed = [row for row in made.rows if row.detail and not row.was_left_out]
        if len(failed) == len(made.rows):
            raise MeasurementError(f"No candidate runs. {failed[0].label}: {failed[0].detail}")
        self.notes += [row.detail for row in made.rows if row.detail][:1]
        first = self._measure(by_name(self.bound), placements[:1], "", None, turns=_LEAST_TURNS)
        return replace(first, rows=(*first.rows, *made.rows[1:]))

    def _search(self) -> Placement | None:
        """Search for a placement over several devices, or take what an earlier call found."""
        if len(self.settings.devices) < 2:
            return None
        asked = searched_for(self.bound, self.settings)
        kept = kept_path(self.store, "optimized", ".json", *asked)
        if kept is not None and kept.is_file():
            affinity = Affinity.from_json(kept)
            placement = Placement(affinity, OPTIMIZED, self._free_properties(affinity))
            limit = self.settings.memory_limit
            if not over_limit(self.bound.graph, placement, self.settings.devices, limit):
                return placement
        budget_s = self._until_s(_SEARCH)
        least_s = max(_SEARCH_LEAST_S, _SEARCH_COMPILES * self.compile_s)
        if budget_s is not None and budget_s < least_s:
            self.notes.append(
                "The budget was too short to search for a better placement: that takes "
                f"{least_s / (_SEARCH - _RACE):.0f} s or more."
            )
            return None
        self.progress.begin("search")
        costs = self.settings.costs
        kept_costs = kept_path(self.store, "costs", ".json", *asked)
        if costs is None and kept_costs is not None and kept_costs.is_file():
            costs = CostModel.from_json(kept_costs)
        try:
            found = optimize_bound(
                self.bound,
                self.settings.devices,
                self.settings.properties if costs is None else costs.device_properties,
                self._conditions(),
                Stopwatch.start(budget_s),
                objective=self.settings.objective,
                memory_limit=self.settings.memory_limit,
                costs=costs,
            )
        except KeyboardInterrupt:
            self.interrupted = True
            learnt = what_was_set_aside()
            if kept_costs is not None and isinstance(learnt, CostModel):
                learnt.to_json(kept_costs)  # the same call goes on from them
            return None
        except HeteroLabError as error:
            self.notes.append(f"No placement was searched for: {error}")
            return None
        self.optimized = found
        self.interrupted |= found.interrupted
        if kept is not None and kept_costs is not None:
            found.costs.to_json(kept_costs)
            if not found.interrupted:
                found.affinity.to_json(kept)
        return found.placement if found.improved else None

    def _recover(self, known: Sequence[Judged]) -> Placement | None:
        """Mix two devices where the faster one loses accuracy that the other one keeps."""
        settings = self.settings
        data, examples = labelled_data(settings.data, settings.examples), settings.examples
        if len(settings.devices) < 2 or self.interrupted or data is None or examples is None:
            return None
        measured = sorted((c for c in known if c.row.latency), key=lambda c: _level(c.row))
        if measured and is_exact(measured[0].row):
            return None
        budget_s = self._until_s(_RECOVER)
        if budget_s is not None and budget_s < _RECOVER_LEAST_S:
            self.notes.append(
                "The budget was too short to recover accuracy that the fastest candidate may "
                f"lose: that takes {_RECOVER_LEAST_S / (_RECOVER - _SEARCH):.0f} s or more."
            )
            return None
        self.progress.begin("accuracy")
        watch = Stopwatch.start(budget_s)
        n = _MOST_LOOKED_AT
        if budget_s is not None and measured:
            n = min(n, int(_LOOK * budget_s * 1e6 / sum(_level(c.row) for c in measured)))
        lost = LostAccuracy(
            self.bound, data, examples, settings.max_drop, settings.properties, settings.isolate
        )
        try:
            pair = lost.fast_and_accurate([c.placement for c in measured], n)
            return None if pair is None else self._mixed(lost, *pair, watch)
        except KeyboardInterrupt:
            self.interrupted = True
        except HeteroLabError as error:
            self.notes.append(f"No accuracy was recovered: {error}")
        return None

    def _mixed(
        self, lost: LostAccuracy, fast: str, accurate: str, watch: Stopwatch
    ) -> Placement | None:
        """Recover the accuracy of a device, or take what an earlier call found."""
        asked = (fast, accurate, lost.data.name, len(lost.data.calibration), lost.examples.metric)
        depends_on = [*searched_for(self.bound, self.settings), repr((*asked, lost.max_drop))]
        kept = kept_path(self.store, RECOVERED, ".json", *depends_on)
        if kept is not None and kept.is_file():
            affinity = Affinity.from_json(kept)
        else:
            kept_costs = kept_path(self.store, f"{RECOVERED}_costs", ".json", *depends_on)
            affinity, verdict = lost.mix(fast, accurate, watch, kept_costs)
            self.notes.append(f"Accuracy recovered from {fast} with {accurate}: {verdict}")
            if kept is not None:
                affinity.to_json(kept)
        if len(affinity.devices) < 2:  # a device alone is a candidate already
            return None
        free, own = self._free_properties(affinity), lost.properties_of(fast, accurate)
        placement = Placement(affinity, RECOVERED, {d: {**free[d], **own[d]} for d in own})
        limit = self.settings.memory_limit
        excess = over_limit(self.bound.graph, placement, self.settings.devices, limit)
        if excess:
            self.notes.append(f"{RECOVERED.capitalize()} is no candidate: {excess}")
        return None if excess else placement

    def _final(
        self, finalists: Mapping[str, Placement]
    ) -> tuple[Sweep, dict[str, BoundModel], dict[str, Row]]:
        """Measure the best few, and their int8 variants; return sweep, models and rows by label."""
        self.progress.begin("final")
        variants = {"": self.bound, **self.variants}
        try:
            self._carried(
                finalists,
                {f"{name} · {v}": m for v, m in self.variants.items() for name in finalists},
            )
        except HeteroLabError as error:
            self.notes.append(f"int8 was left out: {error}")
            variants = {"": self.bound}
        made = self._measure(
            variants if len(variants) > 1 else by_name(self.bound),
            list(finalists.values()),
            f"final-{digest([*finalists, *variants])}",
            self._left_s,
            precision=_FINAL_PRECISION,
            data=self.settings.examples,
        )
        labels = [
            (f"{name} · {variant}" if variant else name, model)
            for variant, model in variants.items()
            for name in finalists
        ]
        rows = {
            label: replace(row, label=label)
            for (label, _), row in zip(labels, made.rows, strict=True)
        }
        shown = replace(made, rows=tuple(rows.values()), reference=next(iter(rows)))
        return shown, dict(labels), rows

    def _executor(self, best: Judged) -> str:
        """Tell whether the parallel executor is faster than HETERO with the best placement."""
        if best.placement.direct or best.row.profile is None or self.interrupted:
            return HETERO
        if best.row.profile.partition.n_subgraphs < 2 or (
            self._left_s is not None and self._left_s <= 0.0
        ):
            return HETERO
        self.progress.begin("parallel executor")
        try:
            made = self._measure(
                by_name(best.bound),
                [best.placement],
                "",
                self._left_s,
                executor=[HETERO, PARALLEL],
            )
        except HeteroLabError as error:
            self.notes.append(f"The parallel executor cannot run it: {error}")
            return HETERO
        ratio = made.rows[1].series.ratio
        if made.rows[1].profile is None or ratio is None:
            return HETERO
        middle, low, high, _ = ratio
        faster = high < 1.0
        self.notes.append(
            f"hetero_lab.ParallelExecutor runs the placement in {middle:.3f} of HETERO's time "
            f"(95 %: {low:.3f} to {high:.3f})"
            + (": use it. What deploy writes runs with HETERO." if faster else ".")
        )
        return PARALLEL if faster else HETERO

    def _measure(
        self,
        models: Mapping[str, BoundModel],
        placements: Sequence[Placement],
        name: str,
        budget_s: float | None,
        *,
        precision: float = RunOptions.precision,
        turns: int | None = None,
        executor: Sequence[str] = (HETERO,),
        data: ReadData | None = None,
        apart: bool = False,
    ) -> Sweep:
        """Measure placements; what is kept under a name is gone on with."""
        try:
            reference_device(self.bound)
            reference = True
        except DeviceError:
            reference = False
        grid = {"executor": list(executor), "requests": [self.settings.requests]}
        with Session(models, self._conditions()) as session:
            made = session.measure(
                expand(models, placements, grid, baselines=False),
                RunOptions(
                    precision=precision,
                    turns=turns,
                    counters=False,
                    reference=reference,
                    apart=apart,
                ),
                Stopwatch.start(budget_s),
                store=self.store / name if self.store is not None and name else None,
                control=self.progress.control(),
                data=data,
            )
        self.interrupted |= made.interrupted
        return made

    def _conditions(self) -> Conditions:
        return Conditions(self.settings.inputs, self.settings.seed, isolate=self.settings.isolate)

    def _carried(
        self, finalists: Mapping[str, Placement], models: Mapping[str, BoundModel]
    ) -> dict[str, Placement]:
        """Return what each row of the final is compiled from."""
        found = {}
        for label, model in models.items():
            name = label.removesuffix(f" · {_INT8}")
            carried = carried_over(model.graph, finalists[name])
            found[label] = replace(resolve(model, carried).placement, label=label)
        return found

    # -- the answer ---------------------------------------------------------------------------

    def _advice(self, known: Sequence[Judged], made: Sweep, executor: str = HETERO) -> Advice:
        best = next(iter(by_label(known, BEST)), None)
        if best is None and self.interrupted:
            raise KeyboardInterrupt
        fallback = next(iter(self.candidates.placements.values()))
        return Advice(
            best=fallback if best is None else best.placement,
            verdict="\n".join(
                verdict_sentences(
                    known,
                    made,
                    best,
                    fallback,
                    left_out=self.candidates.left_out,
                    notes=self.notes,
                    n_requests=self.settings.requests,
                    interrupted=self.interrupted,
                    would_change=self._would_change(),
                )
            ),
            candidates=tuple(known),
            left_out=tuple(self.candidates.left_out.items()),
            executor=executor,
            sweep=made,
            examples=tuple(self._examples()),
            optimized=self.optimized,
            interrupted=self.interrupted,
        )

    def _would_change(self) -> Iterator[str]:
        """Say which other arguments could lead to another answer."""
        if self.settings.data is None:
            yield "data=, with which int8 and lower precisions are judged by accuracy"
        if self.settings.objective == LATENCY:
            yield "objective='throughput', if several requests are in flight"
        if len(self.settings.devices) == 1:
            yield "a second device"

    def _examples(self) -> list[Any]:
        if isinstance(self.settings.data, Dataset):
            first = range(min(_EXAMPLES, len(self.settings.data.evaluation)))
            return [self.settings.data.evaluation[index][0] for index in first]
        return [] if self.settings.inputs is None else [self.settings.inputs]

    def _free_properties(self, affinity: Affinity) -> dict[str, dict[str, Any]]:
        settings = self.settings
        free = {} if settings.objective == LATENCY else {"EXCLUSIVE_ASYNC_REQUESTS": False}
        given = settings.properties if settings.costs is None else settings.costs.device_properties
        return {d: {**free, **given.get(d, {})} for d in affinity.devices}

    @property
    def _left_s(self) -> float | None:
        if self.watch.budget_s is None:
            return None
        return max(0.0, self.watch.budget_s - self.watch.elapsed_s)

    def _until_s(self, share: float) -> float | None:
        """Return the time from now to a share of what there was when measuring began."""
        if self.watch.budget_s is None:
            return None
        end_s = self.began_s + share * (self.watch.budget_s - self.began_s)
        return max(0.1, end_s - self.watch.elapsed_s)


def _level(row: Row) -> float:
    return row.latency.us if row.latency else float("inf")
