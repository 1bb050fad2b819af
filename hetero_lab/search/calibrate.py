"""Calibrate: learn the costs of a model on some devices from a few measured placements."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from hetero_lab.arguments import check_whole
from hetero_lab.costs.cost_model import CostModel, ValidationRow
from hetero_lab.costs.counter_costs import Observation, fusion_groups
from hetero_lab.costs.design import (
    alternating_affinities,
    block_affinities,
    block_units,
    check_supported,
    inseparable_ops,
    middling_affinity,
    on_first_able,
    scattered_affinities,
    segmented_affinities,
    split_into_units,
)
from hetero_lab.costs.fitting import adjust, first_tokens, fit, with_prefill
from hetero_lab.devices.core import bases_of, bind, properties_of_devices, shared_core
from hetero_lab.devices.devices import has_own_memory
from hetero_lab.devices.properties import check_properties
from hetero_lab.errors import (
    BudgetWarning,
    DeviceError,
    HeteroLabError,
    MeasurementError,
    PlanError,
    names_at_hand,
    warn,
)
from hetero_lab.interrupts import UntilInterrupted, deferred
from hetero_lab.lint.lint import able_ops
from hetero_lab.measure.session import Conditions
from hetero_lab.model.language import Scenario, check_scenario
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.model.read import Source
from hetero_lab.model.static_phases import graph_at_context
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.priorities import Priorities
from hetero_lab.planning.schedules import measured_contention, plan_schedule
from hetero_lab.progress import Stopwatch
from hetero_lab.results.configuration import configuration
from hetero_lab.results.environment import current_environment
from hetero_lab.runtime.inputs import Inputs
from hetero_lab.search.observations import Observer, Search, isolated_nodes, searching
from hetero_lab.terminal import count_of

if TYPE_CHECKING:
    import openvino as ov

MOST_FITTED, MOST_VALIDATED = 72, 16  # placements, however long the budget
_VALIDATED = 0.25  # of the placements that are measured besides the base
_VALIDATED_AT_ONCE = 4  # then more is fitted to
_FEW = 6  # with fewer placements than this besides the base, units are coarser
_AT_ONCE = 0.8  # of the affordable placements; afterwards their time is known better
_SLOW_COMPILE_S = 0.2  # of a subgraph; with slower compiles placements have fewer subgraphs
_MOST_SWITCHES = 80  # of a placement, fewer where compiles are slow
_SPARE = 2.5  # placements whose time is left for devices side by side
_PLANNED, _PLAN_S = 0.2, 5.0  # share of that for a plan, and its limit


def calibrate(
    model: Source,
    devices: Sequence[str] | str,
    *,
    budget_s: float | None = 60.0,
    device_properties: Mapping[str, Mapping[str, Any]] | None = None,
    inputs: Inputs | None = None,
    seed: int = 0,
    scenario: Scenario | None = None,
    validate: int | None = None,
    isolate: bool = False,
    progress: bool = True,
    core: ov.Core | None = None,
) -> CostModel:
    """Learn the cost of every part of a placement of a model on some devices.

    A reference that uses all devices comes first; its time tells how many placements the budget
    allows. Then come each device alone and each device first in a greedy order, then placements
    that are designed to spread the work of the devices, the number of subgraphs and the places
    of the cuts (:func:`~hetero_lab.costs.design.segmented_affinities`), and some that divide
    the model by op types and by neighbourhoods, as support and people do. All are measured in
    turns with the reference. The costs are fitted to counters and latencies
    (:mod:`hetero_lab.costs.fitting`); a quarter of the designed placements, kept out of the
    fit, validates the result. At the end the parallel executor is measured, with one device and
    with its plan: that tells what it takes itself, and how much devices slow each other down.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    devices
        In order of priority: names, or ``"HETERO:ACC,CPU"``.
    budget_s
        Wall time of the whole call, compiles included; overrun at most by one compile. The
        reference is measured in any case. A warning and notes of the cost model name the limits
        of a short budget. With ``None``, measure all designed placements.
    device_properties
        Properties of each device, as in a Placement.
    inputs, seed
        As for :func:`hetero_lab.profile`.
    scenario
        The generation of a language model, which is cut between its repeated layers, once. The
        costs are those of a further token, ``costs.prefill`` those of the first one.
    validate
        How many placements to keep out of the fit; a quarter by default.
    isolate
        Compile and run in worker processes; recommended for new drivers.
    progress
        Show the current step.

    Returns
    -------
    CostModel
        ``predict_us``, ``validation``, ``mape``, ``r2``, ``notes``; ``to_json`` stores it. After
        Ctrl-C, :func:`hetero_lab.last_interrupted` returns the costs of the measured placements.

    Raises
    ------
    DeviceError, PropertyError
        A device that is not here, or a property that it does not have.
    PlanError
        Fewer than two devices, no device supports some op, or a language model has no repeated
        layers.
    ArgumentError
        A language model without a scenario, or one that is longer than its context.
    MeasurementError
        No placement ran, or all that used some device failed.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
    >>> costs = hl.calibrate(model, ["ACC", "CPU"], budget_s=15, progress=False)
    >>> costs
    CostModel('digits_inception' on ACC, CPU: ... units...)
    >>> costs.predict_us(hl.Affinity.uniform(model, "CPU")) > 0
    True
    """
    watch = Stopwatch.start(budget_s)
    core = core or shared_core()
    names = check_devices(devices, core)
    if validate is not None:
        check_whole("validate", validate, least=0)
    properties = check_device_properties(device_properties, names, core)
    bound = bind(model, core)
    check_scenario(bound.model, scenario)
    conditions = Conditions(inputs, seed, scenario, isolate=isolate)
    with searching(bound, conditions, watch, show=progress) as search:
        costs = calibrate_bound(
            search, names, properties, search.budget_s, validate, contention=scenario is None
        )
    if not costs.interrupted:
        for note in costs.notes:
            warn(note, BudgetWarning)
    return costs


def calibrate_bound(
    search: Search,
    devices: Sequence[str],
    properties: Mapping[str, Mapping[str, Any]],
    until_s: float,
    validate: int | None = None,
    *,
    contention: bool = False,
) -> CostModel:
    """Calibrate until the watch shows ``until_s``; Ctrl-C ends it earlier and marks the costs.

    With ``contention``, the last part of the time is for how much devices slow each other down.
    """
    calibration = Calibration(search, devices, properties)
    with UntilInterrupted(lambda: calibration.observations) as until:
        calibration.run_base(until_s)
        spare_s = _SPARE * calibration.observer.each_s if contention else 0.0
        calibration.run(until_s - spare_s, validate)
    costs = calibration.conclude(interrupted=until.interrupted)
    if contention and not costs.interrupted:
        # The parallel executor may refuse a plan whose shapes are not known.
        with UntilInterrupted() as until, contextlib.suppress(HeteroLabError):
            costs = calibration.with_contention(costs, until_s)
        costs = dataclasses.replace(costs, interrupted=until.interrupted)
    return costs


def check_devices(devices: Sequence[str] | str, core: ov.Core) -> tuple[str, ...]:
    """Return the names of two devices or more."""
    names = Priorities.parse(devices, core).devices
    if len(names) < 2:
        raise PlanError(
            f"A cost model is about two devices or more, not {names_at_hand(names)} only. Add one, "
            "for instance an emulated one: hetero_lab.emulate('ACC')."
        )
    return names


def check_device_properties(
    device_properties: Mapping[str, Mapping[str, Any]] | None, names: Sequence[str], core: ov.Core
) -> dict[str, dict[str, Any]]:
    """Return the properties of each device, checked."""
    device_properties = device_properties or {}
    for device, properties in device_properties.items():
        if device not in names:
            raise DeviceError(
                f"device_properties= names {device}, which is not one of {', '.join(names)}."
            )
        check_properties(device, properties, core=core)
    return properties_of_devices(device_properties)


def _parts(affinities: Mapping[str, Affinity], n: int) -> list[dict[str, Affinity]]:
    """Return them in their order in ``n`` parts of about the same size."""
    every = list(affinities.items())
    ends = [round(number * len(every) / n) for number in range(n + 1)]
    return [dict(every[begin:end]) for begin, end in itertools.pairwise(ends)]


def _most_validated(n_affordable: int) -> int:
    return min(MOST_VALIDATED, round(_VALIDATED * n_affordable))


class Calibration:
    """The placements of a model that were measured so far, and the costs that follow from them.

    Costs are fitted to ``observations`` and validated with ``validating``. With ``prior`` costs no
    placement is designed, and they are adjusted. A language model is cut between its ``layers``.
    After Ctrl-C, :meth:`run` and :meth:`run_base` keep the observations and raise
    ``KeyboardInterrupt``.
    """

    def __init__(
        self,
        search: Search,
        devices: Sequence[str],
        properties: Mapping[str, Mapping[str, Any]],
        *,
        prior: CostModel | None = None,
    ):
        graph = search.bound.graph
        self.support = {device: able_ops(search.bound, device) for device in devices}
        check_supported(graph, self.support)
        self.layers = None if search.session.conditions.scenario is None else block_units(graph)
        if self.layers is None:
            self.base = _base(graph, self.support)
            reference = middling_affinity(graph, self.support, inseparable_ops(graph))
        else:
            self.support = _support_of_whole_units(self.layers, self.support)
            self.base = _alone(graph, self.support)
            once = block_affinities(graph, self.support, self.layers, 1)
            reference = next(iter([*once, *self.base.values()]))
        if prior is not None:
            prior.check_support(self.support)
        self.search, self.prior = search, prior
        self.observer = Observer(search, properties, reference)
        self.observations: list[Observation] = []
        self.validating: list[Observation] = []
        self._validates = True  # unless no placement is to validate

    def run(self, until_s: float, validate: int | None = None) -> None:
        """Measure the base, then designed placements, until ``until_s`` on the watch."""
        self._validates = validate != 0
        self.run_base(until_s)
        if self.prior is not None:
            return
        self._add_isolated()
        to_fit, to_validate = self._design(self.observer.affordable(until_s), validate)
        # The layers of a language model are alike: single devices tell what each op takes.
        counters = self.layers is None
        # Placements that validate come in between, so that some are measured in any budget.
        n_pauses = max(1, len(to_validate) // _VALIDATED_AT_ONCE)
        parts = _parts(to_fit, n_pauses + 1), _parts(to_validate, n_pauses)
        for part, between in itertools.zip_longest(*parts, fillvalue={}):
            self._observe(part, until_s, self.observations, counters=counters)
            self._observe(between, until_s, self.validating, counters=False)

    def run_base(self, until_s: float) -> None:
        """Measure the reference, then each device by itself as long as there is time."""
        counters = self.prior is None
        if not self.observations:
            self.search.begin("calibrate")
            self.observer.observe_reference(self.base, self.observations, counters=counters)
        previous = self.fitted_affinities
        queue = {label: a for label, a in self.base.items() if a not in previous}
        self._observe(queue, until_s, self.observations, counters=counters)
        if not queue:
            self._check_devices()

    def _observe(
        self,
        queue: dict[str, Affinity],
        until_s: float,
        into: list[Observation],
        *,
        counters: bool,
    ) -> None:
        """Measure placements and take them out of the queue, as long as there is time."""
        while queue and (n_affordable := self.observer.affordable(until_s)):
            batch = list(queue)[: max(1, math.ceil(_AT_ONCE * n_affordable))]
            affinities = {label: queue.pop(label) for label in batch}
            self.observer.observe(affinities, until_s, into, counters=counters)

    @property
    def fitted_affinities(self) -> set[Affinity]:
        """Placements that the fit has seen."""
        return {o.affinity for o in self.observations}

    def conclude(self, *, interrupted: bool) -> CostModel:
        """Return the last fit, which Ctrl-C does not disturb, marked if it came."""
        with deferred(goes_on=True) as came:
            costs = self.fit(interrupted=interrupted)
        return dataclasses.replace(costs, interrupted=interrupted or came())

    def fit(self, *, interrupted: bool = False) -> CostModel:
        """Return the costs that follow from all that was observed."""
        drift = self.observer.drift
        observations = [o.slower(drift) for o in self.observations]
        if self.prior is not None:
            return with_prefill(adjust(self.prior, observations), observations)
        bound, scenario = self.search.bound, self.search.session.conditions.scenario
        graph = bound.graph
        if scenario is not None:  # so that memory is counted at the length of the context
            graph = graph_at_context(bound, scenario.context_tokens, scenario.batch)
        costs = fit(
            graph,
            self.support,
            observations,
            layers=self.layers,
            coarse=self._is_coarse,
            own_memory=any(has_own_memory(device, bound.core) for device in self.support),
        )
        if scenario is not None:
            costs = with_prefill(dataclasses.replace(costs, scenario=scenario), observations)
        validating = [o.slower(drift) for o in self.validating]
        costs, prefill = _with_fitted_parts(costs, observations), costs.prefill
        if prefill is not None:
            prefill = _with_fitted_parts(prefill, observations)
            rows = _validation(prefill, first_tokens(validating))
            prefill = dataclasses.replace(prefill, validation_rows=rows)
        return dataclasses.replace(
            costs,
            prefill=prefill,
            device_properties=self.observer.device_properties,
            environment=self._environment(),
            emulated=bases_of(self.support, bound.core),
            fingerprint=bound.fingerprint,
            notes=tuple(self._notes(interrupted=interrupted)),
            contention=float(len(self.support)),
            validation_rows=_validation(costs, validating),
        )

    def _environment(self) -> dict[str, str]:
        environment = current_environment(self.support, self.search.bound.core)
        names = dict(environment.devices)
        names |= {
            device: f"{names[device]} (emulated on {base})" for device, base in environment.emulated
        }
        precisions, properties = self.observer.precisions, self.observer.device_properties
        return {
            "openvino_version": environment.openvino_version,
            "host": environment.host,
            "system": environment.system,
            "measured_at": environment.measured_at,
            **{
                device: configuration(name, {device: precisions.get(device, "")}, properties)
                for device, name in names.items()
            },
        }

    def with_contention(self, costs: CostModel, until_s: float) -> CostModel:
        """Add what the parallel executor takes, for one device and for its plan."""
        left_s = until_s - self.search.watch.elapsed_s
        if left_s <= 0.0:
            return costs
        self.search.begin("side by side")
        free = dataclasses.replace(costs, contention=1.0)
        plan = plan_schedule(costs.graph, free, budget_s=min(_PLAN_S, _PLANNED * left_s))
        if plan.interrupted:
            raise KeyboardInterrupt
        alone = [a for a in self.base.values() if len(a.devices) == 1]
        base = min(alone, key=costs.predict_us, default=self.observer.reference)
        ratios = self.observer.parallel_ratios(base, plan.affinity, until_s)
        if ratios is None:
            return costs
        base_us, plan_us = (costs.predict_us(base) * ratio for ratio in ratios)
        executor_us = max(0.0, base_us - costs.predict_us(base)) if alone else 0.0
        costs = dataclasses.replace(costs, executor_us=executor_us)
        if len(plan.affinity.devices) < 2:
            return costs
        contention = measured_contention(costs, plan.affinity, plan_us)
        return dataclasses.replace(costs, contention=contention)

    @property
    def _devices_reached(self) -> set[str]:
        """Devices that some observed placement uses."""
        return {device for o in self.observations for device in o.affinity.devices}

    @property
    def _is_coarse(self) -> bool:
        base = {*self.base.values(), self.observer.reference}
        return sum(o.affinity not in base for o in self.observations) < _FEW

    def _notes(self, *, interrupted: bool) -> Iterator[str]:
        """Say which limits the time set."""
        budget_s = self.search.watch.budget_s
        limit = "The time" if budget_s is None else f"The budget of {budget_s:g} s"
        if interrupted:
            limit = "The time until Ctrl-C"
        for device, able in self.support.items():
            if able and device not in self._devices_reached:
                yield (
                    f"{limit} did not reach {device}: its ops are assumed to take as long "
                    "as on the other devices."
                )
        if not self._is_coarse:
            return
        basis = f"{limit} allowed {count_of(len(self.observations), 'placement')} to learn from"
        validation = "nothing validates the predictions"
        if self.validating:
            n_kept = count_of(len(self.validating), "other")
            validation = f"the predictions are validated on {n_kept} only"
        if self.layers is None:
            yield (
                f"{basis}: ops that any device fuses are one unit, the cost of a boundary is "
                f"mostly assumed, and {validation}. A larger budget makes the cost model finer."
            )
        elif self._validates and not self.validating:
            yield f"{basis}: {validation}. A larger budget does."

    def _check_devices(self) -> None:
        """Raise MeasurementError if all placements that use some device failed."""
        failed = self.observer.failed  # with other placements of a search
        for label, affinity in {"reference": self.observer.reference, **self.base}.items():
            missing = [d for d in affinity.devices if d not in self._devices_reached]
            if label in failed and missing:
                raise MeasurementError(
                    f"{names_at_hand(missing)} could not be measured: a placement on "
                    f"{' and '.join(affinity.devices)} failed "
                    f"({failed[label]}). Try hetero_lab.profile on it."
                )

    def _add_isolated(self) -> None:
        """Add the times of isolated units for devices that have no counters."""
        nodes = [node for o in self.observations for node in o.nodes]
        without = self._devices_reached.difference(node.device for node in nodes)
        extra = [
            node
            for device in self.support
            if device in without
            for node in isolated_nodes(self.observer, device, self.support, nodes)
        ]
        first = self.observations[0]
        self.observations[0] = dataclasses.replace(first, nodes=(*first.nodes, *extra))

    def _design(
        self, n_affordable: int, validate: int | None
    ) -> tuple[dict[str, Affinity], dict[str, Affinity]]:
        """Return placements to fit to and placements to validate with, by label."""
        graph, support, previous = self.search.bound.graph, self.support, self.fitted_affinities
        if self.layers is not None:
            affinities = block_affinities(graph, support, self.layers, n_affordable + 1)
            new = [affinity for affinity in affinities if affinity not in previous]
            n_kept = _most_validated(len(new)) if validate is None else min(validate, len(new))
            # Every other one, from the last on: the first ones tell the fit most.
            step = 2 if 2 * n_kept <= len(new) else 1
            to_validate = new[len(new) - step * n_kept :: step]
            to_fit = [affinity for affinity in new if affinity not in to_validate]
            return _with_labels("designed", to_fit), _with_labels("kept", to_validate)
        n_validated = _most_validated(n_affordable) if validate is None else validate
        n_validated = max(0, min(n_validated, n_affordable - _FEW))
        n = min(MOST_FITTED, n_affordable - n_validated)
        is_coarse, quarter = n < _FEW, 0 if n < _FEW else n // 4
        groups = fusion_groups(self.observations, list(support))
        units = split_into_units(graph, support, groups, coarse=is_coarse)
        most, seed = self._most_switches(), self.search.session.conditions.seed
        scattered = scattered_affinities(graph, support, n_validated + quarter, seed=seed + 3)
        scattered = [affinity for affinity in scattered if affinity not in previous]
        to_validate, rest = scattered[:n_validated], scattered[n_validated:]
        alternating, whole = [], []
        if not is_coarse:
            alternating = alternating_affinities(graph, support, most_switches=most)[:quarter]
            whole = segmented_affinities(
                graph, support, units, quarter, most_switches=most, seed=seed + 1
            )
        # The others cut through fusion groups, as planners may.
        torn = segmented_affinities(
            graph,
            support,
            units if is_coarse else inseparable_ops(graph),
            n - len(alternating) - len(whole) - len(rest),
            most_switches=most,
            seed=seed + 2,
        )
        new = dict.fromkeys(_interleave(_interleave(alternating, whole), _interleave(rest, torn)))
        others = {*previous, *to_validate}
        to_fit = [affinity for affinity in new if affinity not in others]
        return _with_labels("designed", to_fit), _with_labels("kept", to_validate)

    def _most_switches(self) -> int:
        """Return how many subgraphs a placement may have where compiles are slow."""
        slowest_s = self.observer.slowest_subgraph_s
        if slowest_s <= _SLOW_COMPILE_S:
            return _MOST_SWITCHES
        return max(2, int(_MOST_SWITCHES * _SLOW_COMPILE_S / slowest_s))


def _base(graph: OpGraph, support: Mapping[str, frozenset[str]]) -> dict[str, Affinity]:
    """Return each device alone where it can, and each device first in a greedy order."""
    base = _alone(graph, support)
    for device in support:
        order = dict.fromkeys(graph.leader, (device, *support))
        affinity = on_first_able(graph, support, order)
        if affinity not in base.values():
            others = [other for other in support if other != device]
            base[f"HETERO:{','.join([device, *others])}"] = affinity
    return base


def _with_fitted_parts(costs: CostModel, observations: Iterable[Observation]) -> CostModel:
    """Return the costs with the parts of the placements that they were fitted to."""
    parts = [costs.predictor(o.affinity).evaluation.parts_us for o in observations]
    return dataclasses.replace(costs, seen_us=tuple(tuple(map(float, row)) for row in parts))


def _validation(costs: CostModel, observations: Iterable[Observation]) -> tuple[ValidationRow, ...]:
    predictions = [(o, costs.predictor(o.affinity)) for o in observations]
    return tuple(
        ValidationRow(
            o.label,
            prediction.predicted_us,
            o.measured_us,
            prediction.n_subgraphs,
            costs.uncertainty.distance(prediction.evaluation.parts_us),
        )
        for o, prediction in predictions
    )


def _support_of_whole_units(
    units: Sequence[tuple[str, ...]], support: Mapping[str, frozenset[str]]
) -> dict[str, frozenset[str]]:
    """Return the ops of units that a device supports wholly; PlanError if none supports a unit."""
    whole = {
        device: frozenset(op for ops in units if able.issuperset(ops) for op in ops)
        for device, able in support.items()
    }
    for number, ops in enumerate(units):
        if not any(able.issuperset(ops) for able in whole.values()):
            gone = {d: sorted(set(ops) - able) for d, able in support.items()}
            text = "; ".join(f"{d}: {names_at_hand(missing, 3)}" for d, missing in gone.items())
            raise PlanError(
                f"No device supports all of part {number} of the language model, which is cut "
                f"between its layers only. Not supported are {text}."
            )
    return whole


def _alone(graph: OpGraph, support: Mapping[str, frozenset[str]]) -> dict[str, Affinity]:
    n_ops = len(graph.placeable)
    return {d: Affinity.on_one(graph, d) for d, ops in support.items() if len(ops) == n_ops}


def _with_labels(kind: str, affinities: Iterable[Affinity]) -> dict[str, Affinity]:
    return {f"{kind} {number}": affinity for number, affinity in enumerate(affinities, start=1)}


def _interleave(first: Sequence[Affinity], second: Sequence[Affinity]) -> list[Affinity]:
    """Interleave two lists evenly, so that a budget that ends early has some of both."""
    both = ([(i / len(every), a) for i, a in enumerate(every)] for every in (first, second))
    return [affinity for _, affinity in heapq.merge(*both, key=itemgetter(0))]
