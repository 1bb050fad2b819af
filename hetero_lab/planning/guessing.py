"""First guesses: costs of a model that was never measured, from those of other models.

For each op type and device, time is taken to grow as a power of the work: ``log t = a + b log w``,
fitted over the ops of the measured models, with ``b`` between 0.7 and 1.1, because counters of
small ops are unreliable. Work is the number of multiply-adds of a convolution or matrix product,
and the bytes that any other op reads and writes. Each line is scaled so that the total time of its
ops equals the measured one, because totals matter and not their logarithms. Costs beside the ops
are the medians of the models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from hetero_lab.errors import ArgumentError, PlanError, names_at_hand, shorten
from hetero_lab.model.opgraph import Op, OpGraph, work_of
from hetero_lab.model.read import Source, prepare
from hetero_lab.planning.cost_model import CostModel
from hetero_lab.planning.objective import BoundaryCost, Unit
from hetero_lab.planning.units import inseparable_ops

_FEW = 4  # a type with fewer ops uses the line of all types
_FLATTEST, _STEEPEST = 0.7, 1.1
_LEAST_US = 0.01  # ops that run inside another one take no time of their own


def guess_costs(model: Source, known: Sequence[CostModel]) -> CostModel:
    """Guess the costs of a model that was not measured from those of others.

    Good for an order of magnitude, and for a first placement to measure. In tests, latencies were
    off by a factor of 1.2 to 4.1, and the ranking of the placements of one model was not
    predicted (``python -m tests.benchmarks.benchmark_guesses`` prints it).

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    known
        Results of :func:`hetero_lab.calibrate` for other models, all measured on one machine,
        with one version of OpenVINO, on the same devices in the same order with the same
        properties.

    Returns
    -------
    CostModel
        Its ``origin`` names the source of the guess. Each op is a unit by itself. Support is
        guessed, too: a device does not support an op type that it supported in none of the
        models.

    Raises
    ------
    ArgumentError
        There are no cost models, one is a guess itself, or they were not measured alike.
    PlanError
        The model has no op that could be placed.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
    >>> costs = hl.calibrate("digits_inception", ["ACC", "CPU"], budget_s=15, progress=False)
    >>> hl.guess_costs("digits_inception", [costs]).guessed_from
    ('digits_inception',)
    """
    return guess_from_graph(prepare(model).graph, known)


def guess_from_graph(graph: OpGraph, known: Sequence[CostModel]) -> CostModel:
    """Like :func:`guess_costs`, given the graph alone."""
    known = [known] if isinstance(known, CostModel) else list(known)
    if not known:
        raise ArgumentError("known= takes cost models of other models, at least one.")
    for costs in known:
        if costs.devices != known[0].devices:
            raise ArgumentError(
                f"The cost models are of {', '.join(known[0].devices)} and of "
                f"{', '.join(costs.devices)}. Give those of the same devices, in one order."
            )
        _check_measured_alike(costs, known[0])
    devices = known[0].devices
    lines = {device: _lines(known, at) for at, device in enumerate(devices)}
    refused = {device: _refused_types(known, device) for device in devices}

    def guessed(members: tuple[str, ...], device: str) -> float | None:
        ops = [graph.ops[graph.index_of[name]] for name in members]
        if any(op.type in refused[device] for op in ops):
            return None
        return math.fsum(lines[device](graph, op) for op in ops)

    units = [
        Unit(members, tuple(guessed(members, device) for device in devices))
        for members in inseparable_ops(graph)
    ]
    if not units:
        raise PlanError("The model has no op that could be placed.")
    pairs = set.intersection(*(set(costs.boundaries) for costs in known))
    return CostModel(
        graph=graph,
        devices=devices,
        units=tuple(units),
        boundaries={
            pair: BoundaryCost(
                median(costs.boundaries[pair].fixed_us for costs in known),
                median(costs.boundaries[pair].us_per_byte for costs in known),
            )
            for pair in sorted(pairs)
        },
        subgraph_us={d: median(costs.subgraph_us[d] for costs in known) for d in devices},
        constant_us=median(costs.constant_us for costs in known),
        spread_us=median(costs.spread_us for costs in known),
        device_properties=known[0].device_properties,
        environment={
            key: value
            for key, value in known[0].environment.items()
            if all(costs.environment.get(key) == value for costs in known)
        },
        emulated=known[0].emulated,
        guessed_from=tuple(costs.graph.name for costs in known),
    )


def _check_measured_alike(costs: CostModel, first: CostModel) -> None:
    if costs.guessed_from:
        raise ArgumentError(
            f"The costs of {shorten(costs.graph.name)} are a guess themselves. Give those that "
            f"they were guessed from, of {names_at_hand(costs.guessed_from)}."
        )
    for what, condition in (
        ("on the host", lambda costs: costs.environment.get("host")),
        ("with OpenVINO", lambda costs: costs.environment.get("openvino_version")),
        ("with the properties", _properties),
        ("with devices emulated on", lambda costs: dict(costs.emulated)),
    ):
        if condition(first) != condition(costs):
            raise ArgumentError(
                f"The cost models were measured {what} {shorten(str(condition(first)))} and "
                f"{shorten(str(condition(costs)))}. Give those that were measured alike."
            )


def _properties(costs: CostModel) -> dict[str, dict[str, str]]:
    return {
        device: {key: str(value) for key, value in properties.items()}
        for device, properties in costs.device_properties.items()
        if properties
    }


def _refused_types(known: Sequence[CostModel], device: str) -> set[str]:
    """Return the op types that a device refused somewhere and supported nowhere."""
    seen: dict[bool, set[str]] = {True: set(), False: set()}
    for costs in known:
        able = costs.supports(device)
        for index in costs.graph.placeable:
            op = costs.graph.ops[index]
            seen[op.name in able].add(op.type)
    return seen[False] - seen[True]


def _lines(known: Sequence[CostModel], at: int) -> Callable[[OpGraph, Op], float]:
    """Fit the lines of a device; return the function that guesses an op's time in µs."""
    work: dict[str, list[tuple[float, float]]] = {}
    for costs in known:
        graph = costs.graph
        for name, times in costs.op_us.items():
            op, us = graph.ops[graph.index_of[name]], times[at]
            if us is not None:
                work.setdefault(op.type, []).append((work_of(graph, op), us))
    every = [pair for pairs in work.values() for pair in pairs]
    overall = _fit(every) if every else (0.0, 1.0)
    lines = {kind: _fit(pairs) for kind, pairs in work.items() if len(pairs) >= _FEW}

    def guess(graph: OpGraph, op: Op) -> float:
        scale_us, power = lines.get(op.type, overall)
        return scale_us * work_of(graph, op) ** power

    return guess


def _fit(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return (scale, power) of ``us = scale * work ** power``, fitted to pairs (work, µs)."""
    work = np.array([max(w, 1.0) for w, _ in pairs])
    times = np.array([t for _, t in pairs])
    logs, heights = np.log(work), np.log(np.maximum(times, _LEAST_US))
    spread = float(((logs - logs.mean()) ** 2).sum())
    power = float(((logs - logs.mean()) * heights).sum()) / spread if spread > 1e-9 else 1.0
    power = min(max(power, _FLATTEST), _STEEPEST)
    return float(times.sum() / (work**power).sum()), power
