"""The reference of a search for faults, and the comparison of other numbers with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hetero_lab.debug.placed_runs import PlacedRuns
from hetero_lab.debug.rounding import distance, offset_from, relative_error
from hetero_lab.debug.transparent import TransparentModel
from hetero_lab.errors import ArgumentError, CompileError, MeasurementError, names_at_hand
from hetero_lab.model.opgraph import RANDOM, Op
from hetero_lab.placement.placement import Placement
from hetero_lab.progress import Progress
from hetero_lab.runtime.inputs import made_up
from hetero_lab.runtime.pieces import TensorKey, incoming
from hetero_lab.runtime.reference import (
    ROUNDED,
    TOLERANCE,
    asked_precision,
    quantised_ops,
)
from hetero_lab.runtime.tensors import has_nan
from hetero_lab.runtime.timing import Stopwatch

# A set is at fault if its effect on the outputs exceeds this share of the tolerance: three sets
# that are each just below it cannot make an output wrong together.
SHARE = 0.3
_UNSEEN = 1e-7  # errors up to the rounding of f32, which is 6e-8, are ignored


def check_tolerance(tolerance: float | None) -> None:
    """Raise ArgumentError unless it is above 0, or left to the search."""
    if tolerance is not None and not tolerance > 0:
        raise ArgumentError(
            f"tolerance= is a relative error above 0, for instance 0.001, not {tolerance!r}."
        )


class BudgetOverError(Exception):
    """The search stops here, and keeps its findings."""


@dataclass(frozen=True)
class SetResult:
    """The result of running a set of ops on the reference's tensors.

    ``error`` is the largest relative error of a tensor that the set computes; ``damage`` is that
    of the model's outputs if nothing else were wrong. The set is ``wrong`` if the damage matters
    and rounding does not explain the error. ``refusal`` is the device's message if it refused.
    """

    wrong: bool
    error: float
    damage: float
    refusal: str = ""


class Expected:
    """The outputs and tensors of the trusted device, with which all others are compared.

    If only failures count, or without a trusted device, nothing is compared. Without one, the
    values of inner tensors are made up.
    """

    def __init__(
        self,
        runs: PlacedRuns,
        watch: Stopwatch,
        tolerance: float | None,
        bar: Progress,
        *,
        failures_only: bool = False,
    ):
        self.failures_only = failures_only or not runs.trusted
        self.runs, self.watch, self.tolerance, self.bar = runs, watch, tolerance, bar
        self.graph, self.placement = runs.bound.graph, runs.bound_placement.placement
        self.placeable = frozenset(self.graph.ops[i].name for i in self.graph.placeable)
        self.members: dict[str, list[str]] = {}  # leader → the ops that move with it
        for node in self.placement.affinity.nodes:
            if node.name in self.placeable:
                self.members.setdefault(node.leader, []).append(node.name)
        self.output_keys = [self.inputs_of(self.graph.ops[i])[0] for i in self.graph.results]
        self.notes: list[str] = []
        self.precisions: dict[str, str] = {}
        # Op → the precision that executes it, without ops on the trusted device in f32; suspects
        # are those that can be judged.
        self.suspects: dict[str, str] = {}
        self.executed: dict[str, str] = {}
        self.thresholds: dict[TensorKey, float] = {}
        # Ops whose results change from run to run, and the ones that start it.
        self.changing: frozenset[str] = frozenset()
        self.random: frozenset[str] = frozenset()
        self.stuck = False  # whether no other device could do better than the trusted one
        self.refused = ""  # the runtime's message if it refuses the given placement
        self.before = float("nan")  # the largest relative error of its outputs, once compared
        self.right: bool | None = None  # whether rounding explains that, once known
        self.proven = False  # whether it does for every output
        self.transparent: TransparentModel
        self.values: Mapping[TensorKey, np.ndarray] = {}  # every tensor, after look_inside()
        self.reference: list[np.ndarray] = []
        self.trusted_outputs: list[np.ndarray] = []  # from a compile that may fuse ops

    def run(self) -> list[np.ndarray]:
        """Run the placement in question; return no outputs if the runtime refuses it."""
        self.bar.note(f"{self.runs.n_compiles} compiles")
        try:
            return self.runs.run(self.placement)[0]
        except CompileError as error:
            self.refused, self.right, self.before = str(error), False, float("inf")
            return []

    def compare(self, outputs: Sequence[np.ndarray]) -> bool:
        """Compare the outputs with the reference's; return whether nothing is wrong."""
        affinity, hint_of = self.placement.affinity, self.runs.hint_of
        asked = {device: asked_precision([hint_of(device)]) for device in affinity.devices}
        in_8_bits = quantised_ops(self.graph, dynamic=False) | {
            op for op in quantised_ops(self.graph) if self.runs.quantises(affinity[op])
        }
        self.precisions = asked | {affinity[op]: "i8" for op in in_8_bits & self.placeable}
        executed = {op: "i8" if op in in_8_bits else asked[affinity[op]] for op in self.placeable}
        # The trusted device is right where it executes in f32.
        is_exact = self.precisions.get(self.runs.trusted) == "f32"
        exact = self.runs.trusted if is_exact else None
        self.suspects = self.executed = {
            op: precision for op, precision in executed.items() if affinity[op] != exact
        }
        self.thresholds = self._thresholds()
        self.changing = self._with_all_after(op.name for op in self.graph if op.is_any_of(RANDOM))
        self.check_budget()
        if self.failures_only:
            self.stuck = not self.runs.trusted
            return not self.refused
        self.reference, _ = self.runs.run(self.runs.reference)
        self.trusted_outputs = self.reference
        self._look_through({})
        self.reference = self._unfused(self.trusted_outputs)
        self._check_numbers(self.runs.bound.output_names)
        if not self.agrees(self.trusted_outputs):
            self.notes.append(
                f"{self.runs.trusted} itself computes other numbers without fused ops, or another "
                "shape than the model declares; the numbers without fused ops are the reference."
            )
            self.suspects = self.executed = executed
            self.stuck = affinity.devices == (self.runs.trusted,)
        if not self.refused:
            self.before = self.error(outputs)
        return not self.refused and self.agrees(outputs) and not self.changing

    def look_inside(self, outputs: Sequence[np.ndarray]) -> None:
        """Find what cannot be judged, and tell whether rounding explains the error."""
        if self.failures_only:
            self._look_through({}) if self.runs.trusted else self._make_up()
            return
        self._check_reference()
        if not self.refused:
            self.before = self.error(outputs)
            self.right, all_judged = self.explained(outputs, self.placement)
            self.proven = self.right and all_judged and not self.random

    def _look_through(self, fixed: Mapping[TensorKey, np.ndarray]) -> None:
        """Compute every tensor of the reference, with some of them fixed."""
        self.check_budget()
        self.transparent = self.runs.transparent(fixed)
        self.transparent.before_run = self.check_budget
        self.values = self.transparent.values

    def _make_up(self) -> None:
        """Draw a value for every tensor whose shape is known; without it, its readers stay out."""
        rng, graph = np.random.default_rng(0), self.graph
        names = [graph.ops[index].name for index in graph.parameters]
        self.values = values = {
            (name, 0): array for name, array in zip(names, self.runs.arrays, strict=True)
        }
        for op in graph:
            for port, tensor in enumerate(op.outputs):
                value = None if (op.name, port) in values else made_up(tensor, rng)
                if value is not None:
                    values[op.name, port] = value
        unknown = {
            graph.ops[index].name
            for index in graph.placeable
            if any(key not in values for key in incoming(graph, [graph.ops[index].name]))
        }
        self._leave_out(unknown, "The shapes that {} read are not known, so they were left out.")

    @property
    def equal(self) -> float:
        return TOLERANCE["f32"] if self.tolerance is None else self.tolerance

    def agrees(self, outputs: Sequence[np.ndarray]) -> bool:
        """Return whether no output needs an explanation: each is within f32's tolerance."""
        return all(
            self._as_declared(key, output) and error <= min(self.equal, self.thresholds[key])
            for key, output, _, error in self.compared(outputs)
        )

    @property
    def narrow(self) -> str:
        """The precisions that execute the suspects."""
        return ", ".join(sorted(set(self.suspects.values())))

    def _thresholds(self) -> dict[TensorKey, float]:
        """Return the largest relative error of each output that needs no explanation."""
        coarsest: dict[str, float] = {}  # of an op and all that it depends on
        for op in self.graph:
            of_inputs = (coarsest[maker] for maker, _ in self.inputs_of(op))
            coarsest[op.name] = max([TOLERANCE[self.executed.get(op.name, "f32")], *of_inputs])
            if self.tolerance is not None:
                coarsest[op.name] = self.tolerance
        kinds = {op.name: [tensor.element_type for tensor in op.outputs] for op in self.graph}
        # Others are equal or not.
        return {(o, p): coarsest[o] * (kinds[o][p] in ROUNDED) for o, p in self.output_keys}

    def error(self, outputs: Sequence[np.ndarray]) -> float:
        """Return the largest relative error of an output; NaN if none can be compared."""
        compared = self.compared(outputs)
        if not all(self._as_declared(key, output) for key, output, *_ in compared):
            return float("inf")
        return max((error for *_, error in compared), default=float("nan"))

    def compared(
        self, outputs: Sequence[np.ndarray]
    ) -> list[tuple[TensorKey, np.ndarray, np.ndarray, float]]:
        """Return each output that is not random: itself, its reference, and its error."""
        if not self.reference:
            return []  # the search ended before the reference was run
        return [
            (key, output, expected, relative_error(output, expected))
            for key, output, expected in zip(self.output_keys, outputs, self.reference, strict=True)
            if key[0] not in self.changing
        ]

    def _as_declared(self, key: TensorKey, value: np.ndarray) -> bool:
        """Tell whether a tensor has the shape that the model declares, if it declares one."""
        shape = self.graph.ops[self.graph.index_of[key[0]]].outputs[key[1]].shape
        return shape is None or value.shape == tuple(shape)

    def explained(self, outputs: Sequence[np.ndarray], placement: Placement) -> tuple[bool, bool]:
        """Tell whether rounding explains all errors, and whether every output can be judged.

        An output that depends on a number out of range cannot be judged.
        """
        compared = self.compared(outputs)
        if not all(self._as_declared(key, output) for key, output, *_ in compared):
            return False, True
        off = {key: (o, expected) for key, o, expected, e in compared if e > self.thresholds[key]}
        if not off:
            return True, True
        outputs_by_key = {key: output for key, (output, _) in off.items() if key in self.values}
        kept = self.kept_in(placement, self.executed)
        rounding = self.transparent.rounding(kept, set(outputs_by_key), outputs_by_key)
        explained = all(key in rounding and rounding[key].explains(*off[key]) for key in off)
        return explained, not any(each.lost.any() for each in rounding.values())

    def kept_in(self, placement: Placement, ops: Mapping[str, str]) -> dict[str, str]:
        """Return those of some ops that a placement leaves on their device."""
        affinity, before = placement.affinity, self.placement.affinity
        return {op: p for op, p in ops.items() if affinity[op] == before[op]}

    def _check_numbers(self, names: Sequence[str]) -> None:
        """Note outputs with NaN in the reference; raise if no output has a number."""
        nan = [name for name, o in zip(names, self.reference, strict=True) if has_nan([o])]
        if nan and not any(np.isfinite(o).any() for o in self.reference if o.dtype.kind in "fiub"):
            raise MeasurementError(
                f"On {self.runs.trusted} in f32, no output has a number that could be compared: "
                f"{names_at_hand(nan)}. Give inputs= for which the model computes some."
            )
        if nan:
            self.notes.append(
                f"The reference itself produces NaN in output {names_at_hand(nan)}; a NaN there "
                "in the placement counts as correct."
            )

    def _check_reference(self) -> None:
        values = self.values
        again = self.transparent.run({})
        self.changing |= self._with_all_after(
            key[0] for key, value in values.items() if distance(again[key], value) > 0
        )
        # The change begins at ops whose inputs stay the same.
        first = {
            op.name
            for op in self.graph
            if op.name in self.changing
            and not any(maker in self.changing for maker, _ in self.inputs_of(op))
        }
        n = sum(key[0] in self.changing for key in self.output_keys)
        of = "its outputs" if n == len(self.output_keys) else f"{n} of its outputs"
        self.random = self._leave_out(
            first,
            f"The model is random by itself ({{}}), so {of} cannot be compared; those ops were "
            "left out, and the others ran on their results in the reference.",
        )
        if first:
            self._look_through({key: value for key, value in values.items() if key[0] in first})
            values, self.reference = self.values, self._unfused(self.trusted_outputs)
        nan = {key for key, value in values.items() if has_nan([value])}
        self._leave_out(
            {op.name for op in self.graph if not nan.isdisjoint(self.inputs_of(op))},
            "{} read NaN already in the reference, so their outputs cannot be judged; they were "
            "left out.",
        )

    def _unfused(self, outputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs of the reference without fused ops, where they do not change."""
        pairs = zip(outputs, self.transparent.unfused(outputs), self.output_keys, strict=True)
        return [fused if op in self.changing else unfused for fused, unfused, (op, _) in pairs]

    def inputs_of(self, op: Op) -> list[TensorKey]:
        return [(self.graph.ops[producer].name, port) for producer, port in op.inputs]

    def _with_all_after(self, ops: Iterable[str]) -> frozenset[str]:
        """Return some ops and all ops that depend on them."""
        reached = self.graph.reach((self.graph.index_of[op] for op in ops), forward=True)
        return frozenset(self.graph.ops[index].name for index in reached)

    def _leave_out(self, ops: Collection[str], why: str) -> frozenset[str]:
        """Leave ops and all that move with them out of the search, and note why."""
        leaders = {self.graph.ops[self.graph.leader[self.graph.index_of[op]]].name for op in ops}
        out = frozenset(m for leader in leaders for m in self.members.get(leader, ()))
        if out:
            self.notes.append(why.format(names_at_hand(self.ordered(out))))
            self.suspects = {op: p for op, p in self.suspects.items() if op not in out}
        return out

    def check_budget(self) -> None:
        if self.watch.is_over:
            raise BudgetOverError
        self.bar.note(f"{self.runs.n_compiles} compiles")

    def ordered(self, ops: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(ops, key=self.graph.index_of.__getitem__))

    def judged(self, ops: frozenset[str], tensors: Mapping[TensorKey, np.ndarray]) -> SetResult:
        """Judge the tensors that a set of ops computes from the reference's tensors."""
        values = self.values
        if self.failures_only:
            return SetResult(False, float("nan"), float("nan"))
        if not all(self._as_declared(key, tensor) for key, tensor in tensors.items()):
            return SetResult(True, float("inf"), float("inf"))
        tensors = {key: tensor for key, tensor in tensors.items() if key in values}
        errors = {key: relative_error(tensor, values[key]) for key, tensor in tensors.items()}
        error = max(errors.values(), default=0.0)
        if error <= _UNSEEN:
            return SetResult(False, error, error)
        damages = self._damages({key: tensors[key] for key in errors if errors[key] > 0})
        damage = max(damages.values(), default=0.0)
        if all(d <= SHARE * self.thresholds[key] for key, d in damages.items()):
            return SetResult(False, error, damage)
        precisions = {op: self.suspects[op] for op in ops}
        rounding = self.transparent.rounding(precisions, set(tensors), tensors)
        explained = all(r.explains(tensors[key], values[key]) for key, r in rounding.items())
        return SetResult(not explained, error, damage)

    def _damages(self, tensors: Mapping[TensorKey, np.ndarray]) -> dict[TensorKey, float]:
        """Return the relative error of each output if these tensors had these values."""
        values, offsets = self.values, {}
        # A tensor that cannot be propagated, for instance one of another shape, counts as bad.
        bad = dict.fromkeys(self.output_keys, float("inf"))
        for key, value in tensors.items():
            if not self.transparent.takes_offset(key) or value.shape != values[key].shape:
                return bad
            offsets[key] = offset_from(value, values[key])
        try:
            reached = self.transparent.run(offsets, set(self.output_keys))
        except RuntimeError:
            return bad
        return {key: relative_error(value, values[key]) for key, value in reached.items()}

    def beyond_precision(self) -> str:
        """Say where numbers leave the range of the executed precision, if that affects outputs."""
        rounding = self.transparent.rounding(self.executed, set(self.values))
        lost = {key for key, each in rounding.items() if each.lost.any()}
        if lost.isdisjoint(self.output_keys):
            return ""
        first = [
            op
            for op in self.ordered({op for op, _ in lost})
            if lost.isdisjoint(self.inputs_of(self.graph.ops[self.graph.index_of[op]]))
        ]
        beyond = {op for op, _ in self.transparent.beyond_range(self.executed)}
        out = [op for op in first if op in beyond]
        rounded = [op for op in first if op not in beyond]
        used = ", ".join(sorted({self.executed[op] for op in out if op in self.executed}))
        lost_there = f"numbers that {self.narrow} cannot tell apart into infinity or NaN"
        sentences = [
            f"{names_at_hand(ops)} {verb}{'s' if len(ops) == 1 else ''} {what}."
            for ops, verb, what in (
                (out, "leave", f"the range of {used}"),
                (rounded, "turn", lost_there),
            )
            if ops
        ]
        return " ".join(["", *sentences, "Outputs that depend on them could not be judged."])
