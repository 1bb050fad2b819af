"""The answer of a search for faults: the errors of each op, the verdict, and the result."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from hetero_lab.backend.emulation import emulated_devices, plugin_of
from hetero_lab.errors import HeteroLabError, names_at_hand
from hetero_lab.experiments.faults.expected import (
    SHARE,
    BudgetOverError,
    Expected,
    relative_error,
    relative_to,
)
from hetero_lab.experiments.faults.ways_around import Way, WaysAround
from hetero_lab.experiments.faults.wrong import Kind, OpError, Wrong, WrongSet
from hetero_lab.experiments.faults.wrong_sets import WrongSetSearch
from hetero_lab.experiments.measure.environment import current_environment
from hetero_lab.interrupts import UntilInterrupted
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.runtime.pieces import TensorKey, outgoing
from hetero_lab.runtime.rounding import Rounding


def answer(
    around: WaysAround, kind: Kind, way: Way, *, complete: bool = True, interrupted: bool = False
) -> Wrong:
    """Measure the errors of each op, and return the result with all that was found."""
    expected, runs = around.expected, around.runs
    errors: tuple[OpError, ...] = ()
    if kind != "none":
        errors, interrupted = _op_errors(around.sets, interrupted=interrupted)
    devices = dict.fromkeys([*expected.given.affinity.devices, runs.trusted])
    return Wrong(
        kind=kind,
        verdict=_verdict(around, kind, way, complete=complete, interrupted=interrupted),
        sets=tuple(around.found),
        op_errors=errors,
        given=expected.given,
        placement=way.placement,
        proven=way.right,
        before=expected.before,
        after=way.after,
        precisions=dict(expected.precisions),
        device_properties=runs.given.properties,
        plugins={
            device: plugin_of(spec)
            for device, spec in emulated_devices(runs.core).items()
            if device in devices
        },
        trusted=runs.trusted,
        complete=complete,
        interrupted=interrupted,
        notes=tuple(dict.fromkeys(expected.notes)),
        n_compiles=runs.n_compiles,
        elapsed_s=expected.watch.elapsed_s,
        environment=current_environment(devices, runs.core),
    )


def _op_errors(sets: WrongSetSearch, *, interrupted: bool) -> tuple[tuple[OpError, ...], bool]:
    """Run the placement once more with its tensors visible.

    Returns
    -------
    tuple
        The errors of each op, and whether Ctrl-C has come by now.
    """
    expected = sets.expected
    arrived, rounding = dict[TensorKey, np.ndarray](), dict[TensorKey, Rounding]()
    measured = bool(expected.refused)
    with UntilInterrupted() as until:
        if expected.values and not interrupted:
            arrived = {} if measured else _arrived(sets)
            measured = True
            rounding = _rounding(expected)
    if until.interrupted and not measured:
        expected.notes.append("Ctrl-C came before the accumulated errors were measured.")
    return _joined(sets, arrived, rounding), interrupted or until.interrupted


def _joined(
    sets: WrongSetSearch,
    arrived: Mapping[TensorKey, np.ndarray],
    rounding: Mapping[TensorKey, Rounding],
) -> tuple[OpError, ...]:
    expected, graph, values = sets.expected, sets.graph, sets.expected.values
    errors = {key: relative_error(value, values[key]) for key, value in arrived.items()}
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
            # NaN if the device refused to run it.
            isolated=None if isolated is None or np.isnan(isolated.error) else isolated.error,
            accumulated=max((errors[k] for k in keys if k in errors), default=None),
            rounding=max((most[k] for k in keys if k in most), default=None),
            jumps=not unexplained.isdisjoint(keys)
            and (op in makers or unexplained.isdisjoint(_visible_inputs(graph, op, arrived))),
        )

    return tuple(map(error_of, expected.ordered(expected.placeable)))


def _rounding(expected: Expected) -> dict[TensorKey, Rounding]:
    try:
        return expected.transparent.rounding(expected.executed, set(expected.values))
    except BudgetOverError:
        expected.notes.append("The budget ended before the rounding of each op was estimated.")
        return {}


def _arrived(sets: WrongSetSearch) -> dict[TensorKey, np.ndarray]:
    """Return the tensors of the placement, except those whose output would undo a fault."""
    expected, graph = sets.expected, sets.graph
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
    # Some runtimes need the static shape of tensors that HETERO hands over.
    static = [
        (op, port)
        for op, port in wanted
        if graph.ops[graph.index_of[op]].outputs[port].shape is not None
    ]
    note = ""
    for shown in (wanted, static) if len(static) < len(wanted) else (wanted,):
        try:
            expected.check_budget()
            return expected.runs.placed(expected.given, shown)[1]
        except BudgetOverError:
            note = "The budget ended before the accumulated errors were measured."
            break
        except HeteroLabError as error:
            note = f"The accumulated errors could not be measured: {error}"
    expected.notes.append(note)
    return {}


def _visible_inputs(graph: OpGraph, op: str, shown: Collection[TensorKey]) -> set[TensorKey]:
    """Return the visible tensors that an op depends on directly, or through hidden ones."""
    read, queue = set[TensorKey](), [op]
    for name in queue:
        for producer, port in graph.ops[graph.index_of[name]].inputs:
            maker = graph.ops[producer].name
            if (maker, port) in shown:
                read.add((maker, port))
            elif maker not in queue:
                queue.append(maker)
    return read


def _verdict(around: WaysAround, kind: Kind, way: Way, *, complete: bool, interrupted: bool) -> str:
    """Say which ops are wrong, which were tried, and whether the way around is proven."""
    expected, sets = around.expected, around.sets
    if kind == "none":
        return f"Nothing is wrong: no output is off by more than {expected.before:.2g} (relative)."
    seen = _seen(sets)
    if kind == "rounding" and complete and sets.could_all_run():
        fact = "Each op is right" if expected.random else seen
        lost = ""
        if not (way.right or expected.random):
            expected.transparent.before_run = None  # no budget: this sentence is needed
            lost = expected.beyond_precision()
        return f"{fact}: no op is wrong, by itself or together with others.{lost}"
    tested = _blame(sets.found) if sets.found else _tested(sets, complete)
    sentences = [f"{seen}.", tested]
    if way.placement is not expected.given:
        sentences += _mended(way, around)
    if not complete:
        cut = "It was interrupted" if interrupted else "The budget ended"
        sentences.append(f"{cut} before the search came to its end.")
    return " ".join(sentences)


def _seen(sets: WrongSetSearch) -> str:
    """Say how the outputs differ from those of the reference."""
    expected = sets.expected
    if expected.refused:
        return "The placement does not run"
    if np.isnan(expected.before) and expected.random:
        return "The outputs cannot be compared"
    if np.isnan(expected.before):
        return "The outputs were not compared with those of the reference"
    off = f"The outputs are off by {expected.before:.2g} (relative error)"
    if expected.random and expected.before <= expected.equal:
        off = "The outputs that can be compared are right"
    if np.isinf(expected.before):
        off = "Outputs are infinite or NaN where the reference is finite, or the reverse"
    if sets.found or expected.random or expected.right is None:
        return off
    if not expected.right:
        return f"{off}, more than rounding in {expected.narrow} explains"
    return f"{off}, by rounding in {expected.narrow}"


def _blame(found: list[WrongSet]) -> str:
    sentences = []
    for verb, refused in (("Wrong", False), ("Refused", True)):
        sets = [each for each in found if bool(each.refusal) is refused]
        singles = [each.ops[0] for each in sets if len(each.ops) == 1]
        blame = []
        if singles:
            selves = "itself" if len(singles) == 1 else "themselves"
            blame = [f"{names_at_hand(singles)} by {selves}"]
        for each in sets:
            if len(each.ops) > 1:
                doubt = f" ({each.doubt})" if each.doubt else ""
                blame.append(f"{names_at_hand(each.ops)} together{doubt}")
        if blame:
            sentences.append(f"{verb}: {'; '.join(blame)}.")
    return " ".join(sentences)


def _tested(sets: WrongSetSearch, complete: bool) -> str:
    """Say how many ops were run by themselves, if none of them is wrong."""
    if complete and sets.could_all_run():
        return "No op and no subgraph is wrong with the reference's inputs."
    n = len(sets.expected.suspects)
    n_right = n - len(sets.unrun())
    if not n_right:
        return "No op was run by itself."
    rest = "The device refuses other cuts." if complete else "Not all of them were run together."
    return f"{n_right} of {n} ops were run by themselves, and are right. {rest}"


def _mended(way: Way, around: WaysAround) -> list[str]:
    """Say which ops move in the way around, and whether its outputs are right."""
    expected = around.expected
    trusted = expected.runs.trusted
    moved = around.n_moved(way.placement.affinity)
    outputs = f"With {_ops(moved)} moved to {trusted}, the outputs"
    if not moved:  # only its precision has changed
        outputs = f"With {trusted} in f32, the outputs"
    if not way.right and np.isnan(way.after):
        why = "they cannot be compared" if expected.random else "it was not run"
        return [f"{outputs} may be right; this was not proven, as {why}."]
    sentences = []
    whole = around.ways.get(around.moves_all()) if around.found else None
    if whole is not None and way.placement is not whole.placement and not whole.right:
        still = f"the outputs are still off by {whole.after:.2g}"
        if np.isnan(whole.after):
            still = "the placement does not run"
        n = around.n_moved(whole.placement.affinity)
        sentences = [f"With {_ops(n)} moved to {trusted}, {still}."]
    if len(way.placement.affinity.devices) == 1:
        outputs = f"With all ops on {trusted}, the outputs"
    if way.right:
        return [*sentences, f"{outputs} are right ({way.after:.2g})."]
    off = f"{outputs} are still off by {way.after:.2g}; no placement was found to be right."
    return [*sentences, off]


def _ops(n: int) -> str:
    return f"{n} op{'s' * (n > 1)}"
