"""Advise: race the candidates, drop hopeless ones early, refine the best, and decide."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_lab.accuracy.quantize import calibration_inputs, quantize_prepared
from hetero_lab.accuracy.recover import check_recovery, evaluation_of, recover_bound
from hetero_lab.advise.advice import Advice, Judged, by_label, judge, verdict_sentences
from hetero_lab.advise.candidates import (
    candidates_for,
    choose_finalists,
    compile_times,
    fast_and_accurate,
    over_limit,
)
from hetero_lab.arguments import HETERO, PARALLEL
from hetero_lab.costs.cost_model import CostModel
from hetero_lab.costs.objective import LATENCY, THROUGHPUT, check_objective
from hetero_lab.devices.core import BoundModel, bind, shared_core
from hetero_lab.errors import (
    ArgumentError,
    DeviceError,
    HeteroLabError,
    MeasurementError,
    OutputPathError,
)
from hetero_lab.fetch import file_digest
from hetero_lab.interrupts import UntilInterrupted, bringing, partial_of
from hetero_lab.intervals import log_spread
from hetero_lab.measure.session import Conditions
from hetero_lab.measure.stopping import RunOptions
from hetero_lab.measure.trial_grid import by_name
from hetero_lab.model.language import refuse_language_model
from hetero_lab.model.read import PreparedModel, Source, prepare, save
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.memory_limits import MemoryLimit, memory_pools
from hetero_lab.placement.placement import Placement, carried_over, resolve
from hetero_lab.placement.priorities import order_of
from hetero_lab.progress import Stopwatch
from hetero_lab.results.evidence import BEST
from hetero_lab.results.sweep_result import Sweep
from hetero_lab.runtime.inputs import Inputs, digest_of
from hetero_lab.runtime.reference import Reference, reference_device
from hetero_lab.samples.datasets import Correct, Dataset, Metric, ReadData, read_optional_data
from hetero_lab.search.calibrate import check_device_properties
from hetero_lab.search.observations import Search, searching
from hetero_lab.search.optimize import IN_FLIGHT, OPTIMIZED, Optimized, optimize_bound
from hetero_lab.tables import check_directory, make_directory, move, scratch_directory

if TYPE_CHECKING:
    import openvino as ov

# Shares of the budget at which these end.
_RACE, _RACE_ALONE, _SEARCH, _RECOVER = 0.3, 0.5, 0.65, 0.85
_SEARCH_LEAST_S = 20.0  # a shorter search learns too little for a plan
_SEARCH_COMPILES = 6  # of a search, at least
_RECOVER_LEAST_S = 15.0  # to find the parts that lose accuracy
_LOOK = 0.2  # of that time, at most, to see whether accuracy is lost
_MOST_LOOKED_AT = 100  # examples
RECOVERED = "recovered"
# Enough to drop the hopeless; and the 1 % within which the simplest is advised.
_RACE_PRECISION, _FINAL_PRECISION = 0.05, 0.01
_EXAMPLES = 3  # inputs in a deployed directory, which stays small
_USED_UP = 0.1  # of the budget left: measuring stopped for lack of time
_INT8 = "int8"


def advise(
    model: Source,
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
) -> Advice:
    """Say what to deploy, and why.

    First all candidates race: single devices and their properties, AUTO and MULTI, HETERO's
    greedy orders. Those that are slower beyond the intervals are dropped (racing, Maron and Moore
    1994), so that the budget goes into the few that may be best. On several devices
    :func:`hetero_lab.optimize` then searches for a placement, and where the fastest candidate
    loses accuracy that a slower device keeps, :func:`hetero_lab.recover_accuracy` mixes the two.
    The best few, with int8 variants if there is data to calibrate with, are measured once more in
    turns with each other, and the best split with the parallel executor. Of candidates that are
    equally fast within 1 %, the simplest is advised.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes. Several models that run at the same time are
        for :func:`hetero_lab.machine`.
    devices
        By default all that are here, emulated ones included.
    data, metric
        Examples to judge the accuracy on, as for :func:`hetero_lab.evaluate`; a
        :class:`~hetero_lab.Dataset` also has examples to calibrate int8 with. The budget does not
        include evaluations.
    max_drop
        The share of right answers that may be lost to f32.
    objective, requests
        ``"latency"`` of one request, or ``"throughput"`` with so many requests in flight (4, if
        ``requests`` is 1).
    budget_s
        Wall time of the measurements. Where it is too short, the advice names the time it needs.
    device_properties, memory_limit, costs
        As for :func:`hetero_lab.optimize`.
    inputs, seed, isolate, progress
        As for :func:`hetero_lab.sweep`.
    store
        Directory of the measurements. The same call continues where it was stopped.

    Returns
    -------
    Advice
        ``.verdict``, ``.summary``, ``.best``, ``.deploy(directory)``. After Ctrl-C,
        :func:`hetero_lab.last_interrupted` returns the advice by the measurements so far.

    Raises
    ------
    DeviceError
        The model runs nowhere here; the message names the ops.
    ArgumentError
        ``metric`` without data, several models, or another wrong argument, before anything is
        compiled.
    PlanError
        A limit of ``memory_limit`` is of another device, or is no number of bytes.
    MeasurementError
        No candidate runs.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> advice = hl.advise(model, ["CPU"], budget_s=10, progress=False)
    >>> advice.best.affinity.devices
    ('CPU',)
    """
    watch = Stopwatch.start(budget_s)
    if isinstance(model, Mapping):
        raise ArgumentError(
            "advise() is for one model. Several at the same time are a machine: "
            "hetero_lab.machine({'det': hetero_lab.Demand(model), …}), or hetero-lab machine."
        )
    core = core or shared_core()
    check_objective(objective, (LATENCY, THROUGHPUT))
    examples = read_optional_data(data, metric)
    names = order_of(devices, core)
    question = _Question(
        devices=names,
        data=data,
        examples=examples,
        max_drop=max_drop,
        objective=objective,
        requests=requests if requests > 1 or objective == LATENCY else IN_FLIGHT,
        properties=check_device_properties(device_properties, names, core),
        memory_limit=memory_limit,
        costs=costs,
        conditions=Conditions(inputs, seed, isolate=isolate),
        show=progress,
    )
    return _Advising(question, bind(model, core), watch).advice(store)


@dataclass(frozen=True, kw_only=True)
class _Question:
    """The checked arguments of :func:`advise`; ``examples`` are those of ``data``."""

    devices: tuple[str, ...]
    data: Dataset | Sequence[Any] | None
    examples: ReadData | None
    max_drop: float
    objective: str
    requests: int
    properties: Mapping[str, Mapping[str, Any]]
    memory_limit: MemoryLimit | None
    costs: CostModel | None
    conditions: Conditions
    show: bool

    def of_search(self, bound: BoundModel) -> tuple[str, str, str]:
        """Return all that a search depends on; files are named by it, so it stays as it is."""
        of_costs = ""
        if self.costs is not None:
            with scratch_directory() as scratch:
                self.costs.to_json(scratch / "costs.json")
                of_costs = file_digest(scratch / "costs.json")
        properties = [(d, sorted(p.items())) for d, p in sorted(self.properties.items())]
        limits = sorted(memory_pools(self.devices, self.memory_limit).items())
        request = repr((self.devices, self.objective, properties, limits))
        return bound.fingerprint, request, of_costs

    def properties_of(self, affinity: Affinity) -> dict[str, dict[str, Any]]:
        """Return the properties of a placement that was searched for."""
        free = {} if self.objective == LATENCY else {"EXCLUSIVE_ASYNC_REQUESTS": False}
        properties = self.properties if self.costs is None else self.costs.device_properties
        return {d: {**free, **properties.get(d, {})} for d in affinity.devices}

    def over_limit(self, bound: BoundModel, placement: Placement) -> str:
        """Say how far a placement is over the limits of memory, if it is."""
        return over_limit(bound.graph, placement, self.devices, self.memory_limit)

    def first_examples(self) -> tuple[Inputs, ...]:
        """Return inputs to deploy with."""
        if isinstance(self.data, Dataset):
            first = range(min(_EXAMPLES, len(self.data.evaluation)))
            return tuple(self.data.evaluation[index][0] for index in first)
        return () if self.conditions.inputs is None else (self.conditions.inputs,)


class _Advising:
    """The stages of the advice on one model: an int8 variant, race, search, recovery, final.

    ``candidates`` are those that were judged, as of the last stage that had each.
    """

    def __init__(self, question: _Question, bound: BoundModel, watch: Stopwatch):
        self.question, self.bound, self.watch = question, bound, watch
        self.candidates: list[Judged] = []
        self.ratios: dict[str, list[float]] = {}  # of each candidate, stage by stage
        self.optimized: Optimized | None = None
        self.executor = HETERO
        self.notes: list[str] = []

    def advice(self, store: str | os.PathLike[str] | None) -> Advice:
        """Race, search, measure the best few, and decide; Ctrl-C ends these stages earlier."""
        question, bound = self.question, self.bound
        refuse_language_model(bound.model, "advise")
        memory_pools(question.devices, question.memory_limit)  # refuses limits of other devices
        if question.costs is not None:
            question.costs.check_graph(bound.graph)
        self.placements, self.left_out = candidates_for(
            bound,
            question.devices,
            requests=0 if question.objective == LATENCY else question.requests,
            device_properties=question.properties,
            memory_limit=question.memory_limit,
        )
        if not self.placements:
            reasons = "; ".join(f"{label}: {why}" for label, why in self.left_out.items())
            raise DeviceError(f"No candidate can be run. {reasons}")
        self.files = KeptFiles(store, () if store is None else question.of_search(bound))
        with (
            searching(bound, question.conditions, self.watch, show=question.show) as self.search,
            UntilInterrupted(lambda: by_label(self.candidates, BEST)) as until,
        ):
            self._run_stages()
        return self._advice(until.interrupted)

    def _run_stages(self) -> None:
        variants = self._variants()
        self.began_s = self.watch.elapsed_s
        self._race()
        if not by_label(self.candidates, BEST):
            return
        results = {OPTIMIZED: self._optimized_placement(), RECOVERED: self._recovered_placement()}
        finalists = choose_finalists(
            self.candidates, results, left_s=self.watch.left_s, n_models=1 + len(variants)
        )
        if not finalists:
            self.notes.append("The budget ended before the best were measured once more.")
        elif self._final(finalists, variants):
            self.executor = self._fastest_executor(by_label(self.candidates, BEST)[0])

    def _variants(self) -> dict[str, BoundModel]:
        """Quantise the model, where there are examples to calibrate with."""
        data = self.question.data
        if not isinstance(data, Dataset):
            return {}
        self.search.begin("quantise")
        with self._noting("There is no int8 variant"):
            examples = calibration_inputs(self.bound, data.calibration)
            arrays = [array for example in examples for array in example]
            name = f"{_INT8}-{digest([self.bound.fingerprint, digest_of(arrays)])}.xml"
            variant = self.files.variant(
                name, lambda: quantize_prepared(self.bound, examples, progress=False), self.notes
            )
            return {_INT8: bind(variant, self.bound.core)}
        return {}

    def _race(self) -> None:
        """Measure all candidates roughly, the reference whatever the budget."""
        self.search.begin("race")
        sweep = self._measure(
            list(self.placements.values()),
            "race",
            self._until_s(_RACE if len(self.question.devices) > 1 else _RACE_ALONE),
            RunOptions(precision=_RACE_PRECISION, apart=True),
            least=1,
        )
        failed = [row for row in sweep.rows if row.detail and not row.was_left_out]
        if len(failed) == len(sweep.rows):
            raise MeasurementError(f"No candidate runs. {failed[0].label}: {failed[0].detail}")
        self._judge(sweep, dict.fromkeys(self.placements, self.bound), self.placements, "race")

    def _optimized_placement(self) -> Placement | None:
        """Search for a placement over several devices, or take the result of an earlier call."""
        question = self.question
        if len(question.devices) < 2:
            return None
        if (affinity := self.files.affinity(OPTIMIZED)) is not None:
            placement = Placement(affinity, OPTIMIZED, question.properties_of(affinity))
            if not question.over_limit(self.bound, placement):
                return placement
        slowest_s = max(compile_times(self.candidates).values())
        least_s = max(_SEARCH_LEAST_S, _SEARCH_COMPILES * slowest_s)
        budget_s = self._time_for("search for a better placement", least_s, _RACE, _SEARCH)
        if budget_s is None:
            return None
        with self._noting("No placement was searched for"), self.files.costs("costs") as costs:
            costs = costs if question.costs is None else question.costs
            self.optimized = optimize_bound(
                self.search.within(budget_s),
                question.devices,
                question.properties if costs is None else costs.device_properties,
                objective=question.objective,
                memory_limit=question.memory_limit,
                costs=costs,
            )
            with bringing(self.optimized.costs):
                if self.optimized.interrupted:
                    raise KeyboardInterrupt
        if self.optimized is None:
            return None
        self.files.keep(self.optimized.affinity, OPTIMIZED)
        return self.optimized.placement if self.optimized.improved else None

    def _recovered_placement(self) -> Placement | None:
        """Mix two devices where the faster one loses accuracy that the other one keeps."""
        data, examples = self.question.data, self.question.examples
        if len(self.question.devices) < 2 or not isinstance(data, Dataset):
            return None
        if examples is None or examples.correct is None:  # without labels
            return None
        data = replace(data, metric=Metric(examples.metric, examples.correct))
        measured = sorted((c for c in self.candidates if c.row.latency), key=lambda c: c.us)
        agreement = measured[0].row.profile.agreement if measured[0].row.profile else ()
        if agreement and all(a.verdict == "equal" for a in agreement):
            return None  # the outputs of the fastest are those in f32
        what = "recover accuracy that the fastest candidate may lose"
        budget_s = self._time_for(what, _RECOVER_LEAST_S, _SEARCH, _RECOVER)
        if budget_s is None:
            return None
        self.search.begin("accuracy")
        search = self.search.within(budget_s)
        each_us = sum(c.us for c in measured)
        n = int(min(_MOST_LOOKED_AT, max(1.0, _LOOK * budget_s * 1e6 / each_us)))
        sample = examples._replace(examples=data.calibration[:n])
        with self._noting("No accuracy was recovered"):
            exact = Reference(self.bound)
            pair = fast_and_accurate(
                [c.placement for c in measured],
                lambda p: evaluation_of(p, sample, exact).paired.drop <= self.question.max_drop,
            )
            return pair and self._mixture(*pair, data, search.within(max(1.0, search.watch.left_s)))
        return None

    def _mixture(self, fast: str, accurate: str, data: Dataset, search: Search) -> Placement | None:
        """Recover the accuracy of a device, or take the result of an earlier call."""
        question = self.question
        properties = {d: dict(question.properties.get(d, {})) for d in (fast, accurate)}
        properties[accurate].setdefault("INFERENCE_PRECISION_HINT", "f32")
        n_examples, drop = len(data.calibration), question.max_drop
        request = repr((fast, accurate, data.name, n_examples, data.metric.name, drop))
        affinity = self.files.affinity(RECOVERED, request)
        if affinity is None:
            check_recovery(fast, accurate, data, drop, self.bound.core)
            with self.files.costs(f"{RECOVERED}_costs", request, whole=True) as costs:
                pair = (fast, accurate)
                result = recover_bound(search, *pair, data, properties, max_drop=drop, costs=costs)
            affinity = result.affinity
            self.notes.append(f"Accuracy recovered from {fast} with {accurate}: {result.verdict}")
            self.files.keep(affinity, RECOVERED, request)
        if len(affinity.devices) < 2:  # a device alone is a candidate already
            return None
        free = question.properties_of(affinity)
        merged = {device: {**free[device], **own} for device, own in properties.items()}
        placement = Placement(affinity, RECOVERED, merged)
        if excess := question.over_limit(self.bound, placement):
            self.notes.append(f"{RECOVERED.capitalize()} is not a candidate: {excess}")
            return None
        return placement

    def _final(
        self, finalists: Mapping[str, Placement], variants: Mapping[str, BoundModel]
    ) -> bool:
        """Measure the best few and their int8 variants; return whether any of them is usable."""
        self.search.begin("final")
        models = {"": self.bound}
        placements = self._final_placements(finalists, models)
        with self._noting("int8 was left out"):
            placements |= self._final_placements(finalists, variants)
            models |= variants
        sweep = self._measure(
            list(finalists.values()),
            f"final-{digest([*finalists, *models])}",
            self.watch.left_s,
            RunOptions(precision=_FINAL_PRECISION),
            models=models if len(models) > 1 else None,
            data=self.question.examples,
        )
        bounds = [model for model in models.values() for _ in finalists]
        return self._judge(sweep, dict(zip(placements, bounds, strict=True)), placements, "final")

    def _judge(
        self,
        sweep: Sweep,
        models: Mapping[str, BoundModel],
        placements: Mapping[str, Placement],
        stage: str,
    ) -> bool:
        """Judge the rows of a stage, by label; keep the result if any of them is usable.

        ``KeyboardInterrupt``, if Ctrl-C ended the stage.
        """
        pairs = zip(placements, sweep.rows, strict=True)
        rows = {label: replace(row, label=label) for label, row in pairs}
        last = judge(rows, models, placements, stage=stage, max_drop=self.question.max_drop)
        for label, row in rows.items():
            if row.series.ratio is not None:
                self.ratios.setdefault(label, []).append(row.series.ratio.middle)
        usable = bool(by_label(last, BEST))
        if usable or not self.candidates:
            level = sweep.rows[0].reference_latency
            earlier = (c for c in self.candidates if c.row.label not in rows)
            self.candidates = [*last, *(c.after_the_race(level) for c in earlier)]
            self.sweep = replace(sweep, rows=tuple(rows.values()), reference=next(iter(rows)))
        if sweep.interrupted:
            raise KeyboardInterrupt
        return usable

    def _fastest_executor(self, best: Judged) -> str:
        """Tell whether the parallel executor is faster than HETERO with the best placement."""
        profile = best.row.profile
        is_split = profile is not None and profile.partition.n_subgraphs > 1
        if best.placement.direct or not is_split or self.watch.is_over:
            return HETERO
        self.search.begin("parallel executor")
        try:
            sweep = self._measure(
                [best.placement],
                "",
                self.watch.left_s,
                RunOptions(),
                executors=[HETERO, PARALLEL],
                models=None if best.bound is self.bound else by_name(best.bound),
            )
        except HeteroLabError as error:
            self.notes.append(f"The parallel executor cannot run it: {error}")
            return HETERO
        if sweep.interrupted:
            raise KeyboardInterrupt
        ratio = sweep.rows[1].series.ratio
        if sweep.rows[1].profile is None or ratio is None:
            return HETERO
        faster = ratio.high < 1.0
        self.notes.append(
            f"hetero_lab.ParallelExecutor runs the placement in {ratio.middle:.3f} of HETERO's "
            f"time (95 %: {ratio.low:.3f} to {ratio.high:.3f})"
            + (": use it. What deploy writes runs with HETERO." if faster else ".")
        )
        return PARALLEL if faster else HETERO

    def _measure(
        self,
        placements: Sequence[Placement],
        name: str,
        budget_s: float,
        options: RunOptions,
        *,
        executors: Sequence[str] = (HETERO,),
        **rest: Any,
    ) -> Sweep:
        """Measure placements; the same call continues from the turns kept under a name."""
        has_reference = False
        with contextlib.suppress(DeviceError):
            reference_device(self.bound)
            has_reference = True
        return self.search.measure(
            placements,
            replace(options, counters=False, reference=has_reference),
            budget_s,
            grid={"executor": list(executors), "requests": [self.question.requests]},
            store=self.files.directory(name),
            **rest,
        )

    def _final_placements(
        self, finalists: Mapping[str, Placement], models: Mapping[str, BoundModel]
    ) -> dict[str, Placement]:
        """Return the placement that each row of the final is compiled from, by label."""
        placements = {}
        for variant, model in models.items():
            for name, placement in finalists.items():
                label = f"{name} · {variant}" if variant else name
                variant_placement = resolve(model, carried_over(model.graph, placement)).placement
                placements[label] = replace(variant_placement, label=label)
        return placements

    def _advice(self, interrupted: bool) -> Advice:
        best = by_label(self.candidates, BEST)
        advice = Advice(
            best=best[0].placement if best else next(iter(self.placements.values())),
            verdict="",
            candidates=tuple(self.candidates),
            left_out=tuple(self.left_out.items()),
            executor=self.executor,
            sweep=self.sweep,
            examples=self.question.first_examples(),
            optimized=self.optimized,
            interrupted=interrupted,
            spread=log_spread(self.ratios.get(best[0].row.label, ())) if best else 0.0,
        )
        sentences = verdict_sentences(
            advice,
            notes=self.notes,
            n_requests=self.question.requests,
            would_change=self._would_change(interrupted),
        )
        return replace(advice, verdict="\n".join(sentences))

    def _would_change(self, interrupted: bool) -> Iterator[str]:
        """Say which other arguments could lead to another answer."""
        short = any(c.row.was_left_out for c in self.candidates)
        short |= any(note.startswith("The budget") for note in self.notes)
        short |= self.watch.left_s < _USED_UP * (self.watch.budget_s or 0.0)
        if interrupted or short:
            yield "more time, with a larger budget_s="
        if self.question.data is None:
            if self.question.conditions.inputs is None:
                yield "inputs= of your own, as these were generated"
            yield "data=, with which int8 and lower precisions are judged by accuracy"
        if self.question.objective == LATENCY:
            yield "objective='throughput', if several requests are in flight"
        if len(self.question.devices) == 1:
            yield "a second device"

    @contextlib.contextmanager
    def _noting(self, fact: str) -> Iterator[None]:
        """Note why a stage has no result: the others go on."""
        try:
            yield
        except HeteroLabError as error:
            self.notes.append(f"{fact}: {error}")

    def _time_for(self, what: str, least_s: float, since: float, until: float) -> float | None:
        """Return the time up to a share of the budget, or note how much a stage would need."""
        if (time_s := self._until_s(until)) >= least_s:
            return time_s
        least = f"{least_s / (until - since):.0f} s or more"
        self.notes.append(f"The budget was too short to {what}: that takes {least}.")
        return None

    def _until_s(self, share: float) -> float:
        """Return the time from now to a share of the budget left when measuring began."""
        end_s = self.began_s + share * (self.search.budget_s - self.began_s)
        return max(0.1, end_s - self.watch.elapsed_s)


class KeptFiles:
    """What a call of advise keeps in its store for the next one; without a store, nothing.

    Each file is named by all that its content depends on. ``depends_on`` is what every search
    depends on: another call may ask for something else.
    """

    def __init__(self, store: str | os.PathLike[str] | None, depends_on: Sequence[str]):
        self.store = None if store is None else make_directory(store)
        if self.store is not None:
            check_directory(self.store)
        self._depends_on = depends_on

    def directory(self, name: str) -> Path | None:
        """Return where a sweep is kept; none without a name."""
        return self.store / name if self.store is not None and name else None

    def _file(self, name: str, *depends_on: str) -> Path | None:
        return self.directory(f"{name}-{digest([*self._depends_on, *depends_on])}.json")

    def affinity(self, name: str, *depends_on: str) -> Affinity | None:
        """Return the result of an earlier search, if there is one."""
        file = self._file(name, *depends_on)
        return Affinity.from_json(file) if file is not None and file.is_file() else None

    def keep(self, affinity: Affinity, name: str, *depends_on: str) -> None:
        """Keep the result of a search."""
        if (file := self._file(name, *depends_on)) is not None:
            affinity.to_json(file)

    @contextlib.contextmanager
    def costs(self, name: str, *depends_on: str, whole: bool = False) -> Iterator[CostModel | None]:
        """Yield the costs that an earlier call kept; keep those that its early end brings.

        ``whole`` leaves out the costs of a calibration that Ctrl-C ended.
        """
        path = self._file(name, *depends_on)
        try:
            yield CostModel.from_json(path) if path is not None and path.is_file() else None
        except BaseException as stop:
            learnt = partial_of(stop)
            if path and isinstance(learnt, CostModel) and not (whole and learnt.interrupted):
                learnt.to_json(path)
            raise

    def variant(
        self, name: str, make: Callable[[], PreparedModel], notes: list[str]
    ) -> PreparedModel:
        """Return a variant of the model as it was kept, or make one and keep it whole.

        If it cannot be written, ``notes`` says so, and it is returned as it was made.
        """
        file = self.directory(name)
        if file is not None and file.is_file():
            return prepare(file)
        prepared = make()
        if file is None:
            return prepared
        try:
            with scratch_directory(file.parent, ".hetero_lab-") as draft:
                save(prepared.model, draft / file.name)
                for suffix in (".bin", ".xml"):  # the weights first: a structure implies them
                    move((draft / file.name).with_suffix(suffix), file.with_suffix(suffix))
        except (OSError, RuntimeError, OutputPathError) as error:
            notes.append(f"The int8 variant could not be kept in store=: {error}")
            return prepared
        return prepare(file)


def digest(parts: Sequence[str]) -> str:
    """Return a short name for texts such as the labels of finalists."""
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=4).hexdigest()
