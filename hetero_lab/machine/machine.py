"""Plan a machine: several models at the same time, so that none of them starves."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_lab.arguments import check_whole
from hetero_lab.devices.core import bind, shared_core
from hetero_lab.errors import ArgumentError, MeasurementError, PlanError, unknown
from hetero_lab.interrupts import UntilInterrupted
from hetero_lab.machine.contention import Alone, KeptRates, search, tails_us, together
from hetero_lab.machine.demand import (
    DEADLINES,
    OBJECTIVES,
    SHARE,
    Demand,
    Goal,
    Turn,
    check_demands,
)
from hetero_lab.machine.drives import Drives
from hetero_lab.machine.machine_plan import ALL_AUTO, OWN_BEST, MachinePlan
from hetero_lab.machine.race import FINALISTS, LOOKS, Race, Together, best_of
from hetero_lab.machine.ways import Way, ways_of
from hetero_lab.measure.loads import Driven, Load
from hetero_lab.measure.session import Conditions, Session
from hetero_lab.measure.worker_process import WorkerError, Workers
from hetero_lab.model.language import refuse_language_model
from hetero_lab.placement.memory_limits import (
    MemoryLimit,
    excess_bytes,
    excess_text,
    held_bytes,
    memory_pools,
)
from hetero_lab.placement.priorities import order_of
from hetero_lab.progress import Progress, Stopwatch
from hetero_lab.results.environment import current_environment, noise_here
from hetero_lab.tables import make_directory, time_text

if TYPE_CHECKING:
    import openvino as ov

# The least seconds of a window, for some hundred inferences of a small model: of a way alone, of a
# pair, of a set, and of a way by the clock of its demand.
_ALONE_S, _PAIR_S, _TURN_S, _CHECK_S = 0.4, 0.3, 0.4, 0.3
_PAIR_TIMES = 2  # one and the same pair differs by 9 % from time to time
_MOST_TURN_S = 10.0  # so that a set has its eight turns in some minutes, however slow a model
_INFERENCES, _ARRIVALS = 20, 10  # of the slowest model in a window, at least; half for a pair
_DEADLINES = 4.0  # of the longest deadline in a window, for a queue to grow
_LEAST_LATENCIES = 3  # of a way alone, for its percentiles
_PAIRS_UNTIL = 0.55  # share of the budget after which no pair begins; sets need about as much
_MOST_WAYS = 5  # of a model, beside AUTO: two models then have 25 pairs
_HOPELESS = 0.03  # of the rate of the best way alone: so slow a way helps no set
_MOST_SETS = 10  # that are looked at; each further one leaves less time for the final
_LOOKED = 0.4  # of the time that is left, for looks at all sets; the final has more turns
_BETWEEN_S = 0.15  # of a turn, beside its window: until all have begun and are warm
_LOAD = 0.3  # of the time after the pairs, at most, for growing rates
_LOADS = (1.25, 1.5, 2.0, 3.0, 4.0)  # times the rates; beyond, how much room is left is no question


def machine(
    demands: Mapping[str, Demand],
    devices: Sequence[str] | None = None,
    *,
    objective: str = SHARE,
    budget_s: float | None = 300.0,
    processes: int | None = None,
    memory_limit: MemoryLimit | None = None,
    seed: int = 0,
    store: str | os.PathLike[str] | None = None,
    workers: Workers | None = None,
    progress: bool = True,
    core: ov.Core | None = None,
) -> MachinePlan:
    """Find a way for each of several models that run at the same time, so that none starves.

    Each way of each model is driven alone, then beside each way of each other model. What a model
    adds to the requests of another is taken to add up over a set (:mod:`.contention`), which
    predicts all sets. The most promising are measured in turns beside *each on its own best
    device* and *all on AUTO*, and judged as everywhere in the lab.

    Parameters
    ----------
    demands
        What each model is asked for, by name.
    devices
        By default all that are here, emulated ones included.
    objective
        ``"share"``: the slowest model gets as much as possible of what it gets alone (of an open
        demand: of what is asked). ``"throughput"``: the mean of these shares. ``"deadlines"``: no
        99th percentile is far beyond its deadline.
    budget_s
        Wall time of the measurements.
    processes
        ``1`` for all models in one process; by default each has its own.
    memory_limit
        Bytes that devices may hold of all models together, as for :func:`hetero_lab.optimize`.
    seed
        Of the generated inputs.
    store
        Directory of what was measured of ways alone and in pairs, for later plans.
    workers
        Limits of the processes.
    progress
        Show what is measured, if it takes more than two seconds.

    Returns
    -------
    MachinePlan
        ``.verdict``, ``.summary``, ``.best`` (a placement by name), ``.slowdown``,
        ``.deploy(directory)``. After Ctrl-C, :func:`hetero_lab.last_interrupted` returns the plan
        by the measurements so far.

    Raises
    ------
    ArgumentError
        A name, demand or objective is wrong; a deadline is shorter than the model takes alone; or
        a process cannot produce the rate.
    DeviceError
        A model runs nowhere here, or a device is not here.
    PlanError
        No set keeps to the memory limits.
    MeasurementError
        A model fails on each of its ways, or no set runs.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> demands = {"one": hl.Demand(model), "other": hl.Demand(model)}
    >>> plan = hl.machine(demands, ["CPU"], budget_s=8, progress=False)
    >>> sorted(plan.best)
    ['one', 'other']
    """
    with Inquiry(
        demands,
        devices,
        objective=objective,
        watch=Stopwatch.start(budget_s),
        processes=processes,
        memory_limit=memory_limit,
        seed=seed,
        store=store,
        workers=workers,
        progress=progress,
        core=core,
    ) as inquiry:
        return inquiry.plan()


class Inquiry(contextlib.AbstractContextManager["Inquiry"]):
    """The stages of a plan: alone, pairs, sets, load; with the arguments of :func:`machine`.

    At the end of the block its processes end.
    """

    def __init__(
        self,
        demands: Mapping[str, Demand],
        devices: Sequence[str] | None = None,
        *,
        objective: str = SHARE,
        watch: Stopwatch,
        processes: int | None = None,
        memory_limit: MemoryLimit | None = None,
        seed: int = 0,
        store: str | os.PathLike[str] | None = None,
        workers: Workers | None = None,
        progress: bool = False,
        core: ov.Core | None = None,
    ):
        core = core or shared_core()
        if objective not in OBJECTIVES:
            raise ArgumentError(
                unknown("There is no objective", objective, OBJECTIVES, "Objectives")
            )
        check_demands(demands, objective)
        if processes is not None and check_whole("processes", processes, least=1) != 1:
            raise ArgumentError("processes= is 1, or None for a process each.")
        self.demands, self.objective = demands, objective
        self.watch, self.processes, self.core = watch, processes, core
        self.devices = order_of(devices, core)
        self.limits = memory_pools(self.devices, memory_limit)
        directory = None if store is None else make_directory(store)
        bound = {name: bind(demand.model, core) for name, demand in demands.items()}
        for model in bound.values():
            refuse_language_model(model.model, "machine")
        self.ways, self.left_out = dict[str, dict[str, Way]](), dict[str, str]()
        for name, demand in demands.items():
            self.ways[name], without = ways_of(name, demand, bound[name], self.devices)
            self.left_out |= {f"{name}: {label}": why for label, why in without.items()}
        here = current_environment(self.devices, core)
        same = (here.openvino_version, here.host, here.n_cpus, here.devices, here.emulated)
        self.rates = KeptRates(directory, repr((*same, processes, seed)))
        self.by_clock = dict[tuple[str, str], Driven]()
        self.loads = dict[float, Turn]()
        self.n_turns = 0
        self._stack = contextlib.ExitStack()
        conditions = Conditions(seed=seed, workers=workers or Workers())
        session = Session({model.fingerprint: model for model in bound.values()}, conditions)
        process_of = {name: "" if processes else name for name in demands}
        drives = Drives(process_of, self._stack.enter_context(session).start, conditions.workers)
        self.drives = self._stack.enter_context(drives)
        bar = Progress("alone", show=progress, budget_s=watch.budget_s)
        self.bar = self._stack.enter_context(bar)

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def plan(self) -> MachinePlan:
        """Measure stage by stage; Ctrl-C ends that once all were driven alone."""
        self._check_memory()
        self.measure_alone()
        devices = {d for ways in self.ways.values() for w in ways.values() for d in w.trial.devices}
        noise = replace(noise_here(devices, self.core), absolute_us=0.0)  # costs are no times
        race = Race(self.goal.cost, noise, self.turn)
        with UntilInterrupted() as until:
            self.measure_pairs()
            race.sets = self._sets()
            self.bar.step("sets")
            race.run(self._without_load)
            self._measure_load(best_of(race.results()))
        race.sets = race.sets or self._sets()
        return MachinePlan(
            goal=self.goal,
            ways=self.ways,
            alone=self.alone_by_way,
            sets=tuple(race.results()),
            pairs=self._known_pairs(),
            loads=self.loads,
            left_out=self.left_out,
            noise=noise,
            interrupted=until.interrupted,
            processes=self.processes,
        )

    # -- alone --------------------------------------------------------------------------------

    def measure_alone(self) -> None:
        jobs = [(name, way) for name, ways in self.ways.items() for way in ways.values()]
        self.bar.step("compile")
        for (name, label), why in self.drives.compile(jobs).items():
            self._give_up(name, label, why)
        self.bar.step("alone")
        for name in self.ways:
            self._for_each_way(name, self._measure_way)
            self._prune(name)
            self._check_deadline(name)
            self._for_each_way(name, self._measure_by_clock)
            self._check_rate(name)

    def _for_each_way(self, name: str, measure: Callable[[str, Way], None]) -> None:
        for way in list(self.ways[name].values()):
            try:
                measure(name, way)
            except WorkerError as error:
                self._give_up(name, way.label, str(error))

    def _measure_way(self, name: str, way: Way) -> None:
        """Measure its rate, and the latency of one request at a time."""
        loads = {way.key: self.demands[name].closed(way.key), way.one_key: Load(key=way.key)}
        for key, load in loads.items():
            if not self.rates.n(key):
                self.rates.keep([key], [self._alone(name, way, load)])

    def _alone(self, name: str, way: Way, load: Load) -> Driven:
        """Drive a way alone, for longer if its inferences are long."""
        for seconds in (_ALONE_S, _MOST_TURN_S):
            driven = self.drives.drive({name: way}, {name: load}, seconds)[name]
            if len(driven.latencies_us) >= _LEAST_LATENCIES:
                break
        return driven

    def _give_up(self, name: str, label: str, why: str) -> None:
        del self.ways[name][label]
        self.left_out[f"{name}: {label}"] = why
        if not self.ways[name]:
            raise MeasurementError(f"{name} fails on each of its ways. {label}: {why}")

    def _measure_by_clock(self, name: str, way: Way) -> None:
        """Measure it alone at the rate that is asked for: requests that come one by one wake it."""
        if (rate := self.demands[name].rate_per_s) is not None:
            seconds = float(np.clip(_ARRIVALS / rate, _CHECK_S, _MOST_TURN_S))
            load = self.demands[name].load(way.key)
            driven = self.drives.drive({name: way}, {name: load}, seconds)
            self.by_clock[name, way.label] = driven[name]

    def _quickest(self, name: str) -> tuple[Way, float]:
        """Return the way of the least latency alone, and that in µs."""
        us = {label: self._latency_us(way) for label, way in self.ways[name].items()}
        label = min(us, key=lambda each: us[each])
        return self.ways[name][label], us[label]

    def _check_deadline(self, name: str) -> None:
        deadline_ms, (way, us) = self.demands[name].deadline_ms, self._quickest(name)
        if deadline_ms is not None and us > 1e3 * deadline_ms:
            raise ArgumentError(
                f"deadline_ms={deadline_ms:g} of {name} is shorter than the model takes "
                f"alone: {time_text(us)} on {way.label}."
            )

    def _check_rate(self, name: str) -> None:
        demand = self.demands[name]
        if demand.rate_per_s is None:
            return
        driven = self.by_clock[name, self._quickest(name)[0].label]
        if driven.is_behind(demand.rate_per_s):
            raise ArgumentError(
                f"rate_per_s={demand.rate_per_s:g} of {name} is more than a process here can "
                f"produce: it is {time_text(driven.behind_us)} late, with "
                f"{time_text(1e6 / demand.rate_per_s)} between two requests."
            )

    def _latency_us(self, way: Way, percentile: float = 50.0) -> float:
        """Return a percentile of the latencies of one request at a time."""
        latencies_us = self.rates.latencies_us(way.one_key)
        return float(np.percentile(latencies_us, percentile)) if latencies_us else np.inf

    def _prune(self, name: str) -> None:
        """Keep the fastest ways of a model; one of hopeless rate helps no set."""
        alone, ranked = self.alone[name], self._by_rate(name)
        least = _HOPELESS * max(alone.values())
        good = [label for label in ranked if alone[label] >= least][:_MOST_WAYS]
        for label in {*ranked}.difference(good):
            del self.ways[name][label]

    def _by_rate(self, name: str) -> list[str]:
        """Return the labels of a model's ways other than AUTO, those of the best rate first."""
        fixed = [label for label in self.ways[name] if not _is_auto(label)]
        return sorted(fixed, key=lambda label: -self.alone[name][label])

    @property
    def alone(self) -> dict[str, dict[str, float]]:
        """Results per second of each model on each of its ways, driven alone."""
        by_model: dict[str, dict[str, float]] = {}
        for name, ways in self.ways.items():
            rates = {label: self.rates.per_s(way.key) for label, way in ways.items()}
            by_model[name] = {label: rate[0] for label, rate in rates.items() if rate}
        return by_model

    # -- pairs --------------------------------------------------------------------------------

    def _pairs(self) -> Iterator[dict[str, Way]]:
        """Yield the pairs that are not known well, those of the best ways first."""
        ranked = {name: [*enumerate(self._by_rate(name))] for name in self.ways}
        pairs = [
            (i + j, {one: self.ways[one][first], other: self.ways[other][second]})
            for one, other in itertools.combinations(ranked, 2)
            for (i, first), (j, second) in itertools.product(ranked[one], ranked[other])
        ]
        pairs.sort(key=lambda each: each[0])
        for number in range(_PAIR_TIMES):
            for _, ways in pairs:
                if self.rates.n(*(way.key for way in ways.values())) <= number:
                    yield ways

    def measure_pairs(self) -> None:
        """Drive two ways as fast as they can, for some inferences of the slower one."""
        self.bar.step("pairs")
        until_s = _PAIRS_UNTIL * (self.watch.budget_s or np.inf)
        for ways in self._pairs():
            if self.watch.elapsed_s > until_s:
                return
            loads = {name: self.demands[name].closed(way.key) for name, way in ways.items()}
            slowest_s = max(1.0 / self.alone[name][way.label] for name, way in ways.items())
            seconds = float(np.clip(_INFERENCES / 2 * slowest_s, _PAIR_S, _MOST_TURN_S))
            try:
                driven = self.drives.drive(ways, loads, seconds)
            except WorkerError as error:
                pair = " beside ".join(f"{name}: {way.label}" for name, way in ways.items())
                self.left_out[pair] = str(error)
                continue
            self.rates.keep([way.key for way in ways.values()], [*driven.values()])

    def _known_pairs(self) -> dict[tuple[str, str, str, str], tuple[float, float]]:
        return {
            (one, first, other, second): (rates[0], rates[1])
            for one, other in itertools.permutations(self.ways, 2)
            for first, second in itertools.product(self.ways[one], self.ways[other])
            if (rates := self.rates.per_s(self.ways[one][first].key, self.ways[other][second].key))
        }

    # -- sets ---------------------------------------------------------------------------------

    def _predict(self, assignment: Mapping[str, str]) -> dict[str, float]:
        """Return the share of its rate alone, on its way, that each model could reach."""
        shares = together(self._alone_of(assignment), self.rates.per_s)
        return dict(zip(assignment, shares.tolist(), strict=True))

    def _alone_of(self, assignment: Mapping[str, str]) -> list[Alone]:
        return [self.alone_by_way[name][label] for name, label in assignment.items()]

    def _sets(self) -> list[Together]:
        """Return the sets to measure: each on its own best, all on AUTO, then by what is foretold.

        PlanError, if none keeps to the memory limits.
        """
        options = {
            name: [label for label in ways if not _is_auto(label)] or list(ways)
            for name, ways in self.ways.items()
        }
        best, auto = dict[str, str](), dict[str, str]()
        for name, labels in options.items():
            single = [label for label in labels if label in self.devices] or labels
            best[name] = max(single, key=lambda label: self.alone[name][label])
            auto[name] = next(filter(_is_auto, self.ways[name]), "")
        candidates = [(OWN_BEST, best)] + ([(ALL_AUTO, auto)] if all(auto.values()) else [])
        candidates += [(_set_label(one), one) for one in search(options, self._score, _MOST_SETS)]
        sets, over = list[Together](), dict[str, str]()
        for label, assignment in candidates:
            if excess := self._over_limit(assignment):
                over[label] = excess
            elif all(assignment != one.chosen for one in sets):
                predicted = {} if assignment == auto else self._predict(assignment)
                sets.append(Together(label, assignment, predicted))
        if not sets:
            label, why = next(iter(over.items()))
            raise PlanError(f"No set keeps to memory_limit=. {label}: {why}.")
        self.left_out |= over
        n_turns = _LOOKED * self.watch.left_s / (self._window_s + _BETWEEN_S)
        return sets[: int(np.clip(n_turns / LOOKS, FINALISTS + 2, _MOST_SETS))]

    @cached_property
    def _window_s(self) -> float:
        """The seconds of a turn: some of the slowest model, clock and deadline."""
        demands = self.demands.values()
        slowest_s = 1.0 / min(self.goal.alone_per_s.values())
        period_s = max((1.0 / d.rate_per_s for d in demands if d.rate_per_s), default=0.0)
        longest_s = max((d.deadline_ms or 0.0 for d in demands), default=0.0) / 1e3
        needed_s = max(_INFERENCES * slowest_s, _ARRIVALS * period_s, _DEADLINES * longest_s)
        return float(np.clip(needed_s, _TURN_S, _MOST_TURN_S))

    def _score(self, assignment: Mapping[str, str]) -> float:
        """Return how good a set is foretold to be; those that memory does not hold come last."""
        if self._over_limit(assignment):
            return -np.inf
        p99_us = self.foretold_p99_us(assignment) if self.objective == DEADLINES else {}
        return -self.goal.foretold(self._could(assignment), p99_us)

    def _could(self, assignment: Mapping[str, str]) -> dict[str, float]:
        """Return the rate that each model of a set could reach."""
        shares, alone = self._predict(assignment), self._alone_of(assignment)
        return {n: shares[n] * one.per_s for n, one in zip(assignment, alone, strict=True)}

    def foretold_p99_us(self, assignment: Mapping[str, str]) -> dict[str, float]:
        """Foretell the 99th percentile of the latency of each model of a set."""
        could, alone = self._could(assignment), self._alone_of(assignment)
        tails = tails_us(alone, self.rates.per_s).tolist()
        return {
            name: one.foretold_p99_us(could[name], tail_us)
            for name, one, tail_us in zip(assignment, alone, tails, strict=True)
        }

    @cached_property
    def alone_by_way(self) -> dict[str, dict[str, Alone]]:
        """How each model is on each of its ways, once all were driven alone."""
        by_model: dict[str, dict[str, Alone]] = {}
        for name, rates in self.alone.items():
            by_model[name] = {}
            for label, per_s in rates.items():
                way, driven = self.ways[name][label], self.by_clock.get((name, label))
                by_model[name][label] = Alone(
                    way.key,
                    per_s,
                    self._latency_us(way),
                    self._latency_us(way, 99.0)
                    if driven is None
                    else self.goal.p99_us(name, driven),
                    self.demands[name].rate_per_s,
                    way.hardware(),
                    way.has_few_threads,
                )
        return by_model

    @cached_property
    def goal(self) -> Goal:
        """The goal, once each model was driven alone."""
        best = {name: max(rates.values()) for name, rates in self.alone.items()}
        return Goal(self.objective, self.demands, best)

    def _over_limit(self, assignment: Mapping[str, str]) -> str:
        """Say which devices would hold more of all models than they may; empty if none would."""
        if not self.limits:
            return ""
        return excess_text(self.devices, self._total_bytes(assignment), self.limits)

    def _total_bytes(self, assignment: Mapping[str, str]) -> np.ndarray:
        return np.sum([self._bytes_of[name, label] for name, label in assignment.items()], axis=0)

    @cached_property
    def _bytes_of(self) -> dict[tuple[str, str], np.ndarray]:
        return {
            (name, label): held_bytes(way.placed.graph, way.placed.placement, self.devices)
            for name, ways in self.ways.items()
            for label, way in ways.items()
        }

    def _check_memory(self) -> None:
        """Raise PlanError before anything is measured, if no set keeps to the memory limits."""

        def excess(assignment: Mapping[str, str]) -> float:
            return sum(excess_bytes(self._total_bytes(assignment), self.limits).values())

        if self.limits:
            options = {name: list(ways) for name, ways in self.ways.items()}
            least = search(options, lambda assignment: -excess(assignment), 1)[0]
            if why := self._over_limit(least):
                raise PlanError(f"No set keeps to memory_limit=. {_set_label(least)}: {why}.")

    def turn(self, one: Together, scale: float = 1.0) -> Turn:
        """Drive a set as its demands say, their rates times ``scale``."""
        ways = {name: self.ways[name][label] for name, label in one.chosen.items()}
        self.n_turns += 1  # in each, the clocks are in other phases to one another
        loads = {
            name: self.demands[name].load(way.key, number * self.n_turns, scale)
            for number, (name, way) in enumerate(ways.items())
        }
        return self.drives.drive(ways, loads, self._window_s)

    # -- load ---------------------------------------------------------------------------------

    @property
    def _without_load(self) -> Stopwatch:
        """The budget less what growing rates will take."""
        if self.watch.budget_s is None or not self.goal.deadlines_us:
            return self.watch
        load_s = min(len(_LOADS) * (self._window_s + _BETWEEN_S), _LOAD * self.watch.left_s)
        return replace(self.watch, budget_s=self.watch.budget_s - load_s)

    def _measure_load(self, one: Together) -> None:
        """Drive a set at growing rates, until a deadline is missed twice in a row."""
        if not self.goal.deadlines_us or not one.seen:
            return
        if self.goal.late(one.pooled):
            self.loads[1.0] = one.pooled
            return
        self.bar.step("load")
        try:
            for times in _LOADS:
                for _ in range(2):
                    if self.watch.is_over and self.loads:
                        return
                    turn = self.turn(one, times)
                    if not self.goal.late(turn):
                        break
                if behind := self._behind(turn, times):
                    self.left_out[f"{times:g} times the rates"] = (
                        f"{behind} is asked for more than a process here can produce"
                    )
                    return
                self.loads[times] = turn
                if self.goal.late(turn):
                    return
        except WorkerError as error:
            self.left_out["growing rates"] = str(error)

    def _behind(self, turn: Turn, times: float) -> str:
        """Name a model whose process did not produce its rate; empty if all did."""
        rates = {name: times * (self.demands[name].rate_per_s or 0.0) for name in turn}
        return next((n for n, driven in turn.items() if driven.is_behind(rates[n])), "")


def _is_auto(label: str) -> bool:
    return label.startswith("AUTO")


def _set_label(assignment: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {label}" for name, label in assignment.items())
