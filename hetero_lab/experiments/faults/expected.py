"""The reference of a search for faults, and how other numbers are judged by it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hetero_lab.errors import CompileError, MeasurementError, names_at_hand
from hetero_lab.experiments.faults.placed_runs import PlacedRuns
from hetero_lab.placement.placement import Placement
from hetero_lab.progress import Progress
from hetero_lab.runtime.pieces import TensorKey
from hetero_lab.runtime.reference import (
    TOLERANCE,
    asked_precision,
    quantised_ops,
    reference_outputs,
)
from hetero_lab.runtime.rounding import Rounding, distance, size
from hetero_lab.runtime.timing import Stopwatch
from hetero_lab.runtime.transparent import TransparentModel

# The share of the tolerance from which on a set's effect on the outputs counts as its fault.
SHARE = 0.3
_UNSEEN = 1e-7  # below f32's own rounding nothing has to be looked at
_RANDOM_TYPES = frozenset({"RandomUniform", "Multinomial", "RandomPoisson"})


class BudgetOverError(Exception):
    """The search stops here, and keeps its findings."""


@dataclass(frozen=True)
class SetResult:
    """The result of running a set of ops with the reference's inputs.

    ``error`` is the largest relative error of a tensor that it makes, ``damage`` that of the
    model's outputs if nothing else were wrong. ``wrong`` if both are more than rounding.
    ``refusal`` is the device's message if it did not run the set.
    """

    wrong: bool
    error: float
    damage: float
    refusal: str = ""


class Expected:
    """The outputs and tensors of the trusted device, with which all others are compared.

    Attributes
    ----------
    suspects
        Op → the precision that it is executed in; ops that cannot be judged leave it.
    executed
        The same with those that left.
    members
        Leader → the ops that move with it, as those of a stateful path do.
    changing, random
        Ops that make other numbers in each run, and those where that begins.
    refused
        The runtime's message against the given placement.
    before
        How far its outputs are off; NaN until they are compared.
    right, proven
        Whether rounding explains them, once that is known, and nothing else could.
    values
        Every tensor of the reference, once it is looked into.
    """

    def __init__(self, runs: PlacedRuns, watch: Stopwatch, tolerance: float | None, bar: Progress):
        self.runs, self.watch, self.tolerance, self.bar = runs, watch, tolerance, bar
        self.graph, self.given = runs.bound.graph, runs.given.placement
        self.placeable = frozenset(self.graph.ops[i].name for i in self.graph.placeable)
        self.members: dict[str, list[str]] = {}
        for node in self.given.affinity.nodes:
            if node.name in self.placeable:
                self.members.setdefault(node.leader, []).append(node.name)
        self.output_keys: list[TensorKey] = [
            (self.graph.ops[producer].name, port)
            for producer, port in (self.graph.ops[i].inputs[0] for i in self.graph.results)
        ]
        self.notes: list[str] = []
        self.precisions: dict[str, str] = {}
        self.suspects: dict[str, str] = {}
        self.executed: dict[str, str] = {}
        self.thresholds: dict[TensorKey, float] = {}
        self.changing: frozenset[str] = frozenset()
        self.random: frozenset[str] = frozenset()
        self.refused = ""
        self.before = float("nan")
        self.right: bool | None = None
        self.proven = False
        self.values: Mapping[TensorKey, np.ndarray] = {}
        self.reference: list[np.ndarray] = []
        self.trusted_outputs: list[np.ndarray] = []  # as the device makes them when it fuses ops
        self._transparent: TransparentModel | None = None

    def run_given(self) -> list[np.ndarray]:
        """Run the given placement; return no outputs where the runtime refuses it."""
        self.bar.note(f"{self.runs.n_compiles} compiles")
        try:
            return self.runs.placed(self.given)[0]
        except CompileError as error:
            self.refused, self.right, self.before = str(error), False, float("inf")
            self.notes.append(
                f"The placement does not run: {error}. What is refused counts as wrong."
            )
            return []

    def compare(self, outputs: Sequence[np.ndarray]) -> bool:
        """Compare the outputs with the reference's; return whether nothing is wrong."""
        asked = {d: asked_precision([self._hint(d)]) for d in self.given.affinity.devices}
        in_8_bits = quantised_ops(self.graph)
        used = {
            op: "i8" if op in in_8_bits else asked[self.given.affinity[op]] for op in self.placeable
        }
        self.precisions = dict(asked)
        for op in in_8_bits & self.placeable:
            self.precisions[self.given.affinity[op]] = "i8"
        self.suspects = {
            op: precision
            for op, precision in used.items()
            if self.given.affinity[op] != self.runs.trusted
            or self.precisions[self.runs.trusted] != "f32"
        }
        self.executed = dict(self.suspects)
        self.thresholds = self._thresholds()
        self.changing = self._with_all_after(
            op.name for op in self.graph if op.type in _RANDOM_TYPES
        )
        self.check_budget()
        named = reference_outputs(self.runs.bound, self.runs.arrays)
        self.reference = self.trusted_outputs = list(named.values())
        self._check_numbers(list(named))
        if not self.refused:
            self.before = self.error(outputs)
        return self.before <= self.equal and not self.changing

    def look_inside(self, outputs: Sequence[np.ndarray]) -> None:
        """Get every tensor of the reference, and find out whether rounding explains the error."""
        self.check_budget()
        self._look_through({})
        self._check_reference()
        if not self.refused:
            self.before = self.error(outputs)
        self.right = not self.refused and not self.is_wrong(outputs, self.given)
        self.proven = self.right and not self.random and self.is_right(outputs, self.given)

    @property
    def transparent(self) -> TransparentModel:
        """The reference with every tensor in sight."""
        assert self._transparent is not None
        return self._transparent

    def _look_through(self, fixed: Mapping[TensorKey, np.ndarray]) -> None:
        """Get every tensor of the reference; some of them are given."""
        self._transparent = self.runs.transparent(fixed)
        self.transparent.before_run = self.check_budget
        self.values = self.transparent.values

    def _hint(self, device: str) -> object:
        own = self.runs.given.properties[device]
        return own.get("INFERENCE_PRECISION_HINT", self.runs.hints.get(device))

    @property
    def equal(self) -> float:
        return TOLERANCE["f32"] if self.tolerance is None else self.tolerance

    @property
    def narrow(self) -> str:
        """The precisions that the suspects are executed in."""
        return ", ".join(sorted(set(self.suspects.values())))

    def _thresholds(self) -> dict[TensorKey, float]:
        """Return the relative error from which on an output is not taken for rounding at sight."""
        if self.tolerance is not None:
            return dict.fromkeys(self.output_keys, self.tolerance)
        coarsest: dict[str, float] = {}  # of all that an op depends on
        for op in self.graph:
            own = TOLERANCE[self.executed.get(op.name, "f32")]
            read = (coarsest[self.graph.ops[producer].name] for producer, _ in op.inputs)
            coarsest[op.name] = max([own, *read])
        return {key: coarsest[key[0]] for key in self.output_keys}

    def error(self, outputs: Sequence[np.ndarray]) -> float:
        """Return the largest relative error of an output; NaN if none can be compared."""
        return max((error for *_, error in self.compared(outputs)), default=float("nan"))

    def compared(
        self, outputs: Sequence[np.ndarray]
    ) -> list[tuple[TensorKey, np.ndarray, np.ndarray, float]]:
        """Return each output that is not random: itself, its reference, and its error."""
        if not self.reference:
            return []  # the search ended before it was made
        return [
            (key, output, expected, relative_to(distance(output, expected), expected))
            for key, output, expected in zip(self.output_keys, outputs, self.reference, strict=True)
            if key[0] not in self.changing
        ]

    def is_wrong(self, outputs: Sequence[np.ndarray], placement: Placement) -> bool:
        """Whether some output is off by more than rounding explains."""
        return any(
            known is None or not known.explains(output, expected)
            for output, expected, known in self._off(outputs, placement)
        )

    def is_right(self, outputs: Sequence[np.ndarray], placement: Placement) -> bool:
        """Whether rounding explains all, and no output is lost with a number out of range."""
        return not any(
            known is None or known.lost.any() or not known.explains(output, expected)
            for output, expected, known in self._off(outputs, placement)
        )

    def _off(
        self, outputs: Sequence[np.ndarray], placement: Placement
    ) -> list[tuple[np.ndarray, np.ndarray, Rounding | None]]:
        """Return the outputs that need an explanation, with the effect of rounding on them."""
        off = [
            (key, output, expected)
            for key, output, expected, error in self.compared(outputs)
            if error > self.thresholds[key]
        ]
        if not off:
            return []
        seen = {key: output for key, output, _ in off if key in self.transparent.values}
        kept = self.kept_in(placement, self.executed)
        rounding = self.transparent.rounding(kept, set(seen), seen)
        return [(output, expected, rounding.get(key)) for key, output, expected in off]

    def kept_in(self, placement: Placement, ops: Mapping[str, str]) -> dict[str, str]:
        """Return those of some ops that a placement leaves where they were."""
        affinity, before = placement.affinity, self.given.affinity
        return {op: p for op, p in ops.items() if affinity[op] == before[op]}

    def _check_numbers(self, names: Sequence[str]) -> None:
        """Say which outputs are not numbers in the reference; raise where none has a number."""
        nan = [name for name, o in zip(names, self.reference, strict=True) if _has_nan(o)]
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
        values = self.transparent.values
        again = self.transparent.run({})
        self.changing |= self._with_all_after(
            key[0] for key, value in values.items() if distance(again[key], value) > 0
        )
        # Where it begins: these change although all that they read stays the same.
        first = {
            op.name
            for op in self.graph
            if op.name in self.changing
            and not any(self.graph.ops[producer].name in self.changing for producer, _ in op.inputs)
        }
        n = sum(key[0] in self.changing for key in self.output_keys)
        of = "its outputs" if n == len(self.output_keys) else f"{n} of its outputs"
        self.random = self._leave_out(
            first,
            f"The model is random by itself ({{}}), so {of} cannot be compared; those ops were "
            "left out, and all others were run with the numbers that they made in the reference.",
        )
        if first:
            self.check_budget()
            self._look_through({key: value for key, value in values.items() if key[0] in first})
            values = self.transparent.values
        nan = {key for key, value in values.items() if _has_nan(value)}
        self._leave_out(
            {
                op.name
                for op in self.graph
                if any((self.graph.ops[producer].name, port) in nan for producer, port in op.inputs)
            },
            "{} read what is not a number in the reference already, so what they make of it tells "
            "nothing; they were left out.",
        )
        unfused = [None if key[0] in self.changing else values.get(key) for key in self.output_keys]
        apart = [
            name
            for name, fused, plain in zip(range(len(unfused)), self.reference, unfused, strict=True)
            if plain is not None and relative_to(distance(fused, plain), plain) > self.equal
        ]
        if apart:
            self.notes.append(
                f"{self.runs.trusted} itself computes other numbers for output "
                f"{', '.join(map(str, apart))} when nothing is fused; those are the reference here."
            )
            self.reference = [
                fused if plain is None else plain.astype(fused.dtype)
                for fused, plain in zip(self.reference, unfused, strict=True)
            ]

    def _with_all_after(self, ops: Iterable[str]) -> frozenset[str]:
        """Return some ops and all that depend on them."""
        after = set(ops)
        for op in self.graph:
            if any(self.graph.ops[producer].name in after for producer, _ in op.inputs):
                after.add(op.name)
        return frozenset(after)

    def _leave_out(self, ops: Collection[str], why: str) -> frozenset[str]:
        """Take ops out of the search, with those that cannot be apart from them, and say so."""
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

    def judged(self, ops: frozenset[str], made: Mapping[TensorKey, np.ndarray]) -> SetResult:
        values = self.transparent.values
        far = {key: distance(value, values[key]) for key, value in made.items() if key in values}
        error = max((relative_to(d, values[key]) for key, d in far.items()), default=0.0)
        if error <= _UNSEEN:
            return SetResult(False, error, error)
        damages = self._damages({key: made[key] for key, d in far.items() if d > 0})
        damage = max(damages.values(), default=0.0)
        if all(d <= SHARE * self.thresholds[key] for key, d in damages.items()):
            return SetResult(False, error, damage)
        seen = {key: made[key] for key in far}
        rounding = self.transparent.rounding({op: self.suspects[op] for op in ops}, set(seen), seen)
        unexplained = (not r.explains(made[key], values[key]) for key, r in rounding.items())
        return SetResult(any(unexplained), error, damage)

    def _damages(self, made: Mapping[TensorKey, np.ndarray]) -> dict[TensorKey, float]:
        """Return the relative error of each output if these tensors were as they are here."""
        values, offsets = self.transparent.values, {}
        # A tensor that cannot be carried on, as one of another shape, counts as bad.
        bad = dict.fromkeys(self.output_keys, float("inf"))
        for key, value in made.items():
            if not self.transparent.takes_offset(key) or value.shape != values[key].shape:
                return bad
            offsets[key] = _offset(value, values[key])
        try:
            reached = self.transparent.run(offsets, set(self.output_keys))
        except RuntimeError:
            return bad
        return {
            key: relative_to(distance(value, values[key]), values[key])
            for key, value in reached.items()
        }

    def beyond_precision(self) -> str:
        """Say where numbers leave the range of the executed precision, if that affects outputs."""
        rounding = self.transparent.rounding(self.executed, set(self.transparent.values))
        if not any(key in rounding and rounding[key].lost.any() for key in self.output_keys):
            return ""
        lost = {key for key, known in rounding.items() if known.lost.any()}
        first = []
        for op in self.ordered({op for op, _ in lost}):
            node = self.graph.ops[self.graph.index_of[op]]
            if not any((self.graph.ops[i].name, port) in lost for i, port in node.inputs):
                first.append(op)
        beyond = {op for op, _ in self.transparent.beyond_range(self.executed)}
        out = [op for op in first if op in beyond]
        rounded = [op for op in first if op not in beyond]
        sentences = ""
        if out:
            leave = "leaves" if len(out) == 1 else "leave"
            used = ", ".join(sorted({self.executed[op] for op in out if op in self.executed}))
            sentences += f" {names_at_hand(out)} {leave} the range of {used}."
        if rounded:
            make = "makes" if len(rounded) == 1 else "make"
            sentences += (
                f" {names_at_hand(rounded)} {make} infinite or no number of what {self.narrow} "
                "cannot tell apart."
            )
        return f"{sentences} What depends on it could not be judged."


def relative_to(far: float, reference: np.ndarray) -> float:
    """Return a distance as a share of the norm of the reference, where it has one."""
    norm = size(reference)
    return far / norm if norm else far


def _has_nan(value: np.ndarray) -> bool:
    return value.dtype.kind == "f" and bool(np.isnan(value).any())


def _offset(value: np.ndarray, reference: np.ndarray) -> np.ndarray:
    if reference.dtype.kind == "b":
        return value ^ reference
    same = value == reference
    with np.errstate(invalid="ignore", over="ignore"):
        # Equal infinities have no difference to be carried on.
        return np.where(same, 0, value - reference).astype(reference.dtype)
