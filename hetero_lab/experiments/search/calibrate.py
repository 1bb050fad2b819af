"""Calibrate: learn the costs of a model on some devices from a few measured placements."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hetero_lab.backend.core import shared_core
from hetero_lab.backend.devices import supported_ops
from hetero_lab.backend.properties import check_properties
from hetero_lab.errors import (
    ArgumentError,
    DeviceError,
    HeteroLabWarning,
    MeasurementError,
    PlanError,
    names_at_hand,
)
from hetero_lab.experiments.environment import current_environment
from hetero_lab.experiments.search.isolated_units import isolated_nodes
from hetero_lab.experiments.search.observer import Observer
from hetero_lab.model.opgraph import CONSTANT
from hetero_lab.model.read import PreparedModel, Source, prepare
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.priorities import Priorities
from hetero_lab.planning.cost_model import CostModel, ValidationRow
from hetero_lab.planning.counter_costs import fusion_groups
from hetero_lab.planning.design import middling_affinity, placed, segmented_affinities
from hetero_lab.planning.fitting import fit
from hetero_lab.planning.observations import Observation
from hetero_lab.planning.units import split_into_units
from hetero_lab.runtime.inputs import Inputs
from hetero_lab.runtime.timing import Stopwatch

if TYPE_CHECKING:
    import openvino as ov

_MOST_FITTED = 72
_MOST_VALIDATED = 16
_VALIDATED = 0.25  # of the placements that are measured besides the base
_FEW = 6  # fewer placements than this besides the base: coarser units
_SAFETY = 1.2  # placements of many subgraphs take longer than those of the base
_SLOW_COMPILE_S = 0.2  # of a subgraph; with slower compiles placements have fewer subgraphs
_MOST_SWITCHES = 80


def calibrate(
    model: Source,
    devices: Sequence[str] | str,
    *,
    budget_s: float | None = 60.0,
    device_properties: Mapping[str, Mapping[str, Any]] | None = None,
    inputs: Inputs | None = None,
    seed: int = 0,
    validate: int | None = None,
    isolate: bool = False,
    progress: bool = True,
    core: ov.Core | None = None,
) -> CostModel:
    """Learn what every part of a placement of a model costs on some devices.

    Measured are each device alone and each device first in a greedy order, then placements that
    are designed to spread the work of the devices, the number of subgraphs and the places of
    the cuts (:func:`~hetero_lab.planning.design.segmented_affinities`); all interleaved with a
    reference. Their counters and latencies are fitted (:mod:`hetero_lab.planning.fitting`), and
    a quarter of the designed ones, kept out of the fit, validates the result.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    devices
        In order of priority: names, or ``"HETERO:ACC,CPU"``.
    budget_s
        Wall time of the whole call, compiles included; overrun at most by one compile. With
        too little for a few placements the units are coarser, and a warning says so. ``None``
        measures all that is designed.
    device_properties
        Properties of each device, as in a Placement.
    inputs, seed
        As for :func:`hetero_lab.profile`.
    validate
        How many placements to keep out of the fit; a quarter, if it is left out.
    isolate
        Compile and run in worker processes; recommended for new drivers.
    progress
        Show what runs now.

    Returns
    -------
    CostModel
        ``predict_us``, ``validation``, ``mape``, ``r2``; ``to_json`` stores it.

    Raises
    ------
    DeviceError, PropertyError
        A device that is not here, or a property that it does not have.
    PlanError
        Fewer than two devices, or no device supports some op.
    MeasurementError
        The budget ended before each device was measured, or no placement ran.

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
    learnt = learn(
        model,
        devices,
        watch=Stopwatch.start(budget_s),
        share=1.0,
        validate=validate,
        device_properties=device_properties,
        options={"inputs": inputs, "seed": seed, "isolate": isolate, "progress": progress},
        core=core or shared_core(),
    )
    return learnt.costs


@dataclass(frozen=True)
class Learnt:
    """A cost model, the placements that it was fitted to, and what measures more of them."""

    costs: CostModel
    support: Mapping[str, frozenset[str]]
    fitted: tuple[Observation, ...]
    validated: tuple[Observation, ...]
    observer: Observer
    coarse: bool

    def refit(self, more: Iterable[Observation]) -> Learnt:
        """Fit again with more observations."""
        known = {seen.affinity for seen in self.fitted}
        fitted = (*self.fitted, *(seen for seen in more if seen.affinity not in known))
        found = fit(self.costs.graph, self.support, fitted, coarse=self.coarse)
        return dataclasses.replace(
            self, fitted=fitted, costs=_described(found, self.costs, self.validated)
        )


def learn(
    model: Source,
    devices: Sequence[str] | str,
    *,
    watch: Stopwatch,
    share: float,
    validate: int | None = None,
    device_properties: Mapping[str, Mapping[str, Any]] | None,
    options: Mapping[str, Any],
    core: ov.Core,
) -> Learnt:
    """Calibrate within a share of a budget and keep what more can be learnt from."""
    names = Priorities.parse(devices, core).devices
    if not (validate is None or (type(validate) is int and validate >= 0)):
        raise ArgumentError(f"validate= is a whole number of at least 0, not {validate!r}.")
    if len(names) < 2:
        raise PlanError(
            f"A cost model is about two devices or more, not {names_at_hand(names)} only. Add one, "
            "for instance an emulated one: hetero_lab.emulate('ACC')."
        )
    properties = _checked(device_properties or {}, names, core)
    prepared = prepare(model)
    support = _support(prepared, names, core)
    base = _base(prepared, names, support, core)
    reference = middling_affinity(prepared.graph, support, _single_ops(prepared))
    observer = Observer(prepared, properties, reference, watch, options, core)
    limit = None if watch.budget_s is None else share * watch.budget_s
    observed = observer.observe(base, budget_s=limit, counters=True)
    if not observer.level_us and not watch.is_over:  # the reference failed
        observer.reference = next(iter(base.values()))
        observed = observer.observe(base, budget_s=limit, counters=True)
    _check_base(observed, base, names, support, watch)
    observed = _with_isolated(observed, observer, names, support)
    left = math.inf if limit is None else limit - watch.elapsed_s
    n_affordable = left / (_SAFETY * observer.each_s)
    n = max(0, int(min(_MOST_FITTED + (validate or _MOST_VALIDATED), n_affordable)))
    coarse = n < _FEW
    if coarse:
        _say_coarse(watch, n)
    n_validated = 0 if coarse else _n_validated(n, validate)
    designed, kept = _design(prepared, support, observed, observer, n, n_validated, coarse)
    left = None if limit is None else limit - watch.elapsed_s
    after: list[Observation] = []
    if designed and (left is None or left > 0.0):
        # Each device alone is measured again, beside the others: a machine has its moods.
        after = observer.observe({**base, **designed}, budget_s=left, counters=True)
    validated = [seen for seen in after if seen.label in kept]
    everything = (
        *(_measured_again(seen, after) for seen in observed),
        *(seen for seen in after if seen.label in designed and seen.label not in kept),
    )
    found = fit(prepared.graph, support, everything, coarse=coarse)
    about = dataclasses.replace(
        found,
        device_properties=properties,
        environment=_environment(names, core),
        fingerprint=prepared.fingerprint,
    )
    costs = _described(found, about, validated)
    return Learnt(costs, support, everything, tuple(validated), observer, coarse)


def _described(found: CostModel, about: CostModel, validated: Iterable[Observation]) -> CostModel:
    """Return a fit with its validation, and with what ``about`` says it holds for."""
    return dataclasses.replace(
        found,
        device_properties=about.device_properties,
        environment=about.environment,
        fingerprint=about.fingerprint,
        validation_rows=tuple(
            ValidationRow(
                seen.label,
                found.predict_us(seen.affinity),
                seen.measured_us,
                found.predictor(seen.affinity).n_subgraphs,
            )
            for seen in validated
        ),
    )


def _checked(
    given: Mapping[str, Mapping[str, Any]], names: Sequence[str], core: ov.Core
) -> dict[str, dict[str, Any]]:
    if not isinstance(given, Mapping):
        raise ArgumentError(
            "device_properties= maps devices to properties, for instance "
            "{'CPU': {'INFERENCE_PRECISION_HINT': 'f32'}}."
        )
    for device, properties in given.items():
        if device not in names:
            raise DeviceError(
                f"device_properties= names {device}, which is not one of {', '.join(names)}."
            )
        check_properties(device, properties, core=core)
    return {device: dict(properties) for device, properties in given.items()}


def _support(
    prepared: PreparedModel, names: Sequence[str], core: ov.Core
) -> dict[str, frozenset[str]]:
    graph = prepared.graph
    placeable = [graph.ops[index].name for index in graph.placeable]
    able = {d: supported_ops(prepared, d, core=core) for d in names}
    # What is computed from constants goes with the op that uses it.
    with_it: dict[str, set[str]] = {op: set() for op in placeable}
    for index in graph.constant_side:
        leader = graph.ops[graph.leader[index]].name
        if leader in with_it and graph.ops[index].type != CONSTANT:
            with_it[leader].add(graph.ops[index].name)
    # A stateful path is supported where all of it is.
    paths = [{graph.ops[i].name for i in path} for path in graph.stateful_paths]
    found = {}
    for device in names:
        torn = {op for path in paths if not path <= able[device] for op in path}
        whole = (op for op in placeable if {op, *with_it[op]} <= able[device])
        found[device] = frozenset(whole) - torn
    nobody = [op for op in placeable if not any(op in found[d] for d in names)]
    if nobody:
        raise PlanError(
            f"None of {', '.join(names)} supports {names_at_hand(nobody)}. Add a device that "
            "does, for instance CPU."
        )
    return found


def _base(
    prepared: PreparedModel,
    names: Sequence[str],
    support: Mapping[str, frozenset[str]],
    core: ov.Core,
) -> dict[str, Affinity]:
    """Return each device alone where it can, and each device first in a greedy order."""
    graph = prepared.graph
    n_ops = len(graph.placeable)
    base = {
        device: Affinity.uniform(prepared, device, core=core)
        for device in names
        if len(support[device]) == n_ops
    }
    for device in names:
        order = [device, *(d for d in names if d != device)]
        base[f"{device} first"] = placed(
            graph,
            {
                graph.ops[i].name: next(d for d in order if graph.ops[i].name in support[d])
                for i in graph.placeable
            },
        )
    distinct: dict[Affinity, str] = {}
    for label, affinity in base.items():
        distinct.setdefault(affinity, label)
    return {label: affinity for affinity, label in distinct.items()}


def _check_base(
    observed: Sequence[Observation],
    base: Mapping[str, Affinity],
    names: Sequence[str],
    support: Mapping[str, frozenset[str]],
    watch: Stopwatch,
) -> None:
    seen = {device for o in observed for device in o.affinity.devices}
    missing = [device for device in names if device not in seen and support[device]]
    if not missing:
        return
    why = "failed"
    if watch.is_over or watch.budget_s is not None:
        why = f"did not all finish within budget_s={watch.budget_s:g}"
    raise MeasurementError(
        f"{names_at_hand(missing)} was not measured: the first placements "
        f"({names_at_hand(base)}) {why}. Give more time, or try hetero_lab.profile on one of them."
    )


def _with_isolated(
    observed: list[Observation],
    observer: Observer,
    names: Sequence[str],
    support: Mapping[str, frozenset[str]],
) -> list[Observation]:
    """Add the times of isolated units for devices that have no counters."""
    counted = {node.device for o in observed for node in o.nodes}
    silent = [device for device in names if support[device] and device not in counted]
    if not silent:
        return observed
    nodes = [node for o in observed for node in o.nodes]
    extra = {
        device: isolated_nodes(observer.prepared, device, support, nodes, observer)
        for device in silent
    }
    added = tuple(node for found in extra.values() for node in found)
    return [dataclasses.replace(observed[0], nodes=observed[0].nodes + added), *observed[1:]]


def _say_coarse(watch: Stopwatch, n: int) -> None:
    budget = "" if watch.budget_s is None else f" of {watch.budget_s:g} s"
    warnings.warn(
        f"The budget{budget} allows {n} more placements only: ops that any device fuses are one "
        "unit, and what a hand-over costs is mostly assumed. A larger budget_s makes the cost "
        "model finer and validates it.",
        HeteroLabWarning,
        stacklevel=4,
    )


def _n_validated(n: int, wanted: int | None) -> int:
    """Return how many of ``n`` placements are kept out of the fit."""
    if wanted is None:
        return min(_MOST_VALIDATED, round(_VALIDATED * n))
    return max(0, min(wanted, n - _FEW))


def _design(
    prepared: PreparedModel,
    support: Mapping[str, frozenset[str]],
    observed: Sequence[Observation],
    observer: Observer,
    n: int,
    n_validated: int,
    coarse: bool,
) -> tuple[dict[str, Affinity], set[str]]:
    """Return placements to measure by label, and the labels of those that validate."""
    if not n:
        return {}, set()
    graph = prepared.graph
    groups = fusion_groups(observed, list(support))
    units = split_into_units(graph, support, groups, coarse=coarse)
    single = _single_ops(prepared)
    most = _most_switches(observer)
    n_fitted = min(_MOST_FITTED, n - n_validated)
    # Every third keeps units whole; the others cut through fusion groups, as planners may.
    whole = segmented_affinities(
        graph, support, units, n_fitted // 3, most_switches=most, seed=observer.options["seed"] + 1
    )
    torn = segmented_affinities(
        graph,
        support,
        units if coarse else single,
        n_fitted - len(whole) + n_validated,
        most_switches=most,
        seed=observer.options["seed"] + 2,
    )
    known = {seen.affinity for seen in observed}
    designed = [a for a in dict.fromkeys(_mixed(whole, torn)) if a not in known]
    labelled = {f"designed {i + 1}": affinity for i, affinity in enumerate(designed)}
    # Spread over the whole design, so that both parts see few and many subgraphs.
    every = len(labelled) / n_validated if n_validated else math.inf
    chosen = {int((k + 0.5) * every) for k in range(n_validated)}
    return labelled, {label for i, label in enumerate(labelled) if i in chosen}


def _measured_again(before: Observation, after: Sequence[Observation]) -> Observation:
    """Return an observation with the latency that it had beside the designed placements."""
    for seen in after:
        if seen.affinity == before.affinity:
            return dataclasses.replace(before, measured_us=seen.measured_us, noise=seen.noise)
    return before


def _single_ops(prepared: PreparedModel) -> list[tuple[str, ...]]:
    """Return every op by itself, but stateful paths whole."""
    graph = prepared.graph
    members: dict[int, list[str]] = {}
    for index in graph.placeable:
        members.setdefault(graph.leader[index], []).append(graph.ops[index].name)
    return [tuple(ops) for ops in members.values()]


def _most_switches(observer: Observer) -> int:
    """Return how many subgraphs a placement may have where compiles are slow."""
    per_subgraph = [
        row.profile.compile_ms / 1e3 / max(1, row.profile.partition.n_subgraphs)
        for made in observer.sweeps
        for row in made.rows
        if row.profile is not None and row.profile.partition.n_subgraphs > 1
    ]
    slowest = max(per_subgraph, default=0.0)
    if slowest <= _SLOW_COMPILE_S:
        return _MOST_SWITCHES
    return max(2, int(_MOST_SWITCHES * _SLOW_COMPILE_S / slowest))


def _mixed(first: Sequence[Affinity], second: Sequence[Affinity]) -> list[Affinity]:
    """Interleave two lists evenly, so that a budget that ends early has some of both."""
    order = [(i / max(1, len(first)), 0, a) for i, a in enumerate(first)]
    order += [(i / max(1, len(second)), 1, a) for i, a in enumerate(second)]
    return [affinity for _, _, affinity in sorted(order, key=lambda item: item[:2])]


def _environment(names: Sequence[str], core: ov.Core) -> dict[str, str]:
    found = current_environment(names, core)
    emulated = dict(found.emulated)
    said = {
        "openvino_version": found.openvino_version,
        "host": found.host,
        "system": found.system,
        "measured_at": found.measured_at,
    }
    for device, full_name in found.devices:
        mark = f" (emulated on {emulated[device]})" if device in emulated else ""
        said[device] = f"{full_name}{mark}"
    return said
