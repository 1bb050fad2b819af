"""The error of each op of a placement: by itself, and with the inputs that reach it there."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from hetero_lab.errors import HeteroLabError
from hetero_lab.experiments.faults.expected import SHARE, BudgetOverError, Expected, relative_to
from hetero_lab.experiments.faults.wrong import OpError
from hetero_lab.experiments.faults.wrong_sets import WrongSetSearch
from hetero_lab.interrupts import UntilInterrupted
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.runtime.pieces import TensorKey, outgoing
from hetero_lab.runtime.rounding import Rounding, distance


def op_errors(
    expected: Expected, sets: WrongSetSearch, *, interrupted: bool
) -> tuple[tuple[OpError, ...], bool]:
    """Run the placement once more with its tensors in sight, and bring all together.

    Returns
    -------
    tuple
        One error an op, and whether Ctrl-C has come by now.
    """
    arrived, rounding = dict[TensorKey, np.ndarray](), dict[TensorKey, Rounding]()
    with UntilInterrupted() as measuring:
        if expected.values and not (expected.refused or interrupted):
            arrived = _arrived(expected, sets)
    if measuring.interrupted:
        expected.notes.append("Ctrl-C came before the accumulated errors were measured.")
    interrupted = interrupted or measuring.interrupted
    with UntilInterrupted() as estimating:
        if expected.values and not interrupted:
            rounding = _rounding(expected)
    errors = _brought_together(expected, sets, arrived, rounding)
    return errors, interrupted or estimating.interrupted


def _brought_together(
    expected: Expected,
    sets: WrongSetSearch,
    arrived: Mapping[TensorKey, np.ndarray],
    rounding: Mapping[TensorKey, Rounding],
) -> tuple[OpError, ...]:
    graph, values = expected.graph, expected.values
    errors = {k: relative_to(distance(v, values[k]), values[k]) for k, v in arrived.items()}
    most = {k: relative_to(r.farthest, values[k]) for k, r in rounding.items() if k in values}
    unexplained = {
        key
        for key, error in errors.items()
        if error > SHARE * expected.equal
        and key in rounding
        and not rounding[key].explains(arrived[key], values[key])
    }
    makers = {op for each in sets.found for op, _ in outgoing(graph, each.ops)}
    ports: dict[str, list[TensorKey]] = {}
    for key in values:
        ports.setdefault(key[0], []).append(key)

    def error_of(op: str) -> OpError:
        node, keys = graph.ops[graph.index_of[op]], ports.get(op, [])
        isolated = sets.isolated.get(graph.ops[graph.leader[node.index]].name)
        return OpError(
            op=op,
            op_type=node.type,
            device=expected.given.affinity[op],
            # Not a number where the device refused to run it.
            isolated=None if isolated is None or np.isnan(isolated.error) else isolated.error,
            accumulated=max((errors[k] for k in keys if k in errors), default=None),
            rounding=max((most[k] for k in keys if k in most), default=None),
            jumps=not unexplained.isdisjoint(keys)
            and (op in makers or unexplained.isdisjoint(_read_in_sight(graph, op, arrived))),
        )

    return tuple(map(error_of, expected.ordered(expected.placeable)))


def _rounding(expected: Expected) -> dict[TensorKey, Rounding]:
    try:
        return expected.transparent.rounding(expected.executed, set(expected.values))
    except BudgetOverError:
        expected.notes.append("The budget ended before the rounding of each op was estimated.")
        return {}


def _arrived(expected: Expected, sets: WrongSetSearch) -> dict[TensorKey, np.ndarray]:
    """Return the tensors of the placement, but for those whose sight would undo a fault."""
    graph = expected.graph
    inside: set[TensorKey] = set()
    for found in sets.found:
        ports = {
            (op, p) for op in found.ops for p in range(len(graph.ops[graph.index_of[op]].outputs))
        }
        inside |= ports - set(outgoing(graph, found.ops))
    wanted = [
        key
        for key in expected.values
        if key[0] in expected.placeable - expected.changing and key not in inside
    ]
    # Of tensors that HETERO hands over, some runtimes want to know the shape.
    static = [
        (op, port)
        for op, port in wanted
        if graph.ops[graph.index_of[op]].outputs[port].shape is not None
    ]
    try:
        expected.check_budget()
        try:
            return expected.runs.placed(expected.given, wanted)[1]
        except HeteroLabError:
            if len(static) == len(wanted):
                raise
        expected.check_budget()
        return expected.runs.placed(expected.given, static)[1]
    except BudgetOverError:
        expected.notes.append("The budget ended before the accumulated errors were measured.")
    except HeteroLabError as error:
        expected.notes.append(f"The accumulated errors could not be measured: {error}")
    return {}


def _read_in_sight(graph: OpGraph, op: str, shown: Collection[TensorKey]) -> set[TensorKey]:
    """Return the tensors in sight that an op depends on directly, or through hidden ones."""
    read, queue = set[TensorKey](), [op]
    for name in queue:
        for producer, port in graph.ops[graph.index_of[name]].inputs:
            maker = graph.ops[producer].name
            if (maker, port) in shown:
                read.add((maker, port))
            elif maker not in queue:
                queue.append(maker)
    return read
