"""The reference of a search for faults, and the comparison of other numbers with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hetero_lab.debug.placed_runs import PlacedRuns, Tensors, TransparentModel
from hetero_lab.debug.rounding import (
    Rounding,
    RoundingEstimates,
    distance,
    offset_from,
    relative_error,
)
from hetero_lab.errors import ArgumentError, CompileError, MeasurementError, names_at_hand
from hetero_lab.model.opgraph import RANDOM
from hetero_lab.placement.placement import Placement
from hetero_lab.progress import Progress
from hetero_lab.runtime.inputs import arbitrary_array
from hetero_lab.runtime.pieces import TensorKey, incoming
from hetero_lab.runtime.reference import ROUNDED, TOLERANCE, hinted_precision, quantised_ops
from hetero_lab.runtime.tensors import has_nan

# A set is at fault if its effect on the outputs exceeds this share of the tolerance: three sets
# that are each just below it cannot make an output wrong together.
SHARE = 0.3
_UNSEEN = 1e-7  # errors up to the rounding of f32, which is 6e-8, are ignored


def check_tolerance(tolerance: float | None) -> None:
    if tolerance is not None and not tolerance > 0:
        raise ArgumentError(
            f"tolerance= is a relative error above 0, for instance 0.001, not {tolerance!r}."
        )


@dataclass(frozen=True)
class SetResult:
    """The result of running a set of ops on the reference's tensors.

    ``error`` and ``damage`` are as in a WrongSet. The set is ``wrong`` if the damage matters and
    rounding does not explain the error. ``refusal`` is the device's message if it refused.
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
        tolerance: float | None,
        bar: Progress,
        *,
        failures_only: bool = False,
    ):
        self.failures_only = failures_only or not runs.trusted
        self.runs, self.tolerance, self.bar = runs, tolerance, bar
        self.graph, self.placement = runs.bound.graph, runs.bound_placement.placement
        self.placeable = frozenset(self.graph.ops[i].name for i in self.graph.placeable)
        self.members: dict[str, list[str]] = {}  # leader → the ops that move with it
        for node in self.placement.affinity.nodes:
            if node.name in self.placeable:
                self.members.setdefault(node.leader, []).append(node.name)
        makers = (self.graph.ops[i].inputs[0] for i in self.graph.results)
        self.output_keys = [(self.graph.ops[index].name, port) for index, port in makers]
        self.notes: list[str] = []
        self.precisions: dict[str, str] = {}  # of devices, the lowest that an op is executed in
        # Op → the precision that executes it, without ops on the trusted device in f32; suspects
        # are those that can be judged.
        self.op_precisions: dict[str, str] = {}
        self.suspects: dict[str, str] = {}
        # Ops whose results change from run to run, and the ones that start it.
        self.changing = self._with_all_after(op.name for op in self.graph if op.is_any_of(RANDOM))
        self.random: frozenset[str] = frozenset()
        self.stuck = not runs.trusted  # whether no other device could do better
        self.agrees = False  # whether nothing is wrong, once known
        self.outputs: list[np.ndarray] = []  # of the placement in question
        self.refusal = ""  # the runtime's message if it refuses that
        self.before = np.nan  # the largest relative error of its outputs, once compared
        self.right: bool | None = None  # whether rounding explains that, once known
        self.proven = False  # whether it does for every output
        self.transparent: TransparentModel
        self.estimates: RoundingEstimates
        self.values: Tensors = {}  # every tensor, after look_inside()
        self.reference: list[np.ndarray] = []
        self.trusted_outputs: list[np.ndarray] = []  # from a compile that may fuse ops

    @cached_property
    def thresholds(self) -> dict[TensorKey, float]:
        """The largest relative error of each output that needs no explanation."""
        coarsest: dict[str, float] = {}  # of an op and all that it depends on
        for op in self.graph:
            of_inputs = (coarsest[self.graph.ops[index].name] for index, _ in op.inputs)
            coarsest[op.name] = max([TOLERANCE[self.op_precisions.get(op.name, "f32")], *of_inputs])
        types = {(o, p): self.graph.op(o).outputs[p].element_type for o, p in self.output_keys}
        return {  # others are equal or not
            key: (self.tolerance or coarsest[key[0]]) if kind in ROUNDED else 0.0
            for key, kind in types.items()
        }

    @property
    def equal(self) -> float:
        """The relative error up to which an output is right in f32."""
        return self.tolerance or TOLERANCE["f32"]

    @property
    def narrow(self) -> str:
        return ", ".join(sorted(set(self.suspects.values())))

    def _op_precisions(self) -> dict[str, str]:
        """Return the precision of each op, known from the first run on."""
        affinity, runs = self.placement.affinity, self.runs
        hints = {device: hinted_precision([runs.hint_of(device)]) for device in affinity.devices}
        dynamic = (op for op in quantised_ops(self.graph) if runs.quantises(affinity[op]))
        in_8_bits = quantised_ops(self.graph, dynamic=False).union(dynamic)
        return {op: "i8" if op in in_8_bits else hints[affinity[op]] for op in self.placeable}

    def run(self) -> None:
        """Run the placement and the reference, and tell whether nothing is wrong."""
        runs, trusted = self.runs, self.runs.trusted
        self.bar.note(f"{runs.n_compiles} compiles")
        try:
            self.outputs, _ = runs.run(self.placement)
        except CompileError as error:
            self.refusal, self.right, self.before = str(error), False, np.inf
        op_precisions, affinity = self._op_precisions(), self.placement.affinity
        coarsest_last = sorted(op_precisions.items(), key=lambda item: TOLERANCE[item[1]])
        self.precisions = {affinity[op]: precision for op, precision in coarsest_last}
        # The trusted device is right where it executes in f32.
        exact = trusted if self.precisions.get(trusted) == "f32" else None
        self.op_precisions = {o: p for o, p in op_precisions.items() if affinity[o] != exact}
        self.suspects = self.op_precisions
        self.check_budget()
        if self.failures_only:
            self.agrees = not self.refusal
            return
        self.reference, _ = runs.run(runs.reference)
        self.trusted_outputs = self.reference
        self._look_through({})
        self._check_numbers()
        if not self._agrees(self.trusted_outputs):
            self.notes.append(
                f"{trusted} itself computes other numbers without fused ops, or another "
                "shape than the model declares; the numbers without fused ops are the reference."
            )
            self.suspects = self.op_precisions = op_precisions
            self.stuck = affinity.devices == (trusted,)
        if not self.refusal:
            self.before = self.error(self.outputs)
            self.agrees = self._agrees(self.outputs) and not self.changing

    def look_inside(self) -> None:
        """Find what cannot be judged, and tell whether rounding explains the error."""
        if not self.runs.trusted:
            self._make_up()
        elif self.failures_only:
            self._look_through({})
        else:
            self._leave_out_changing()
            nan = {key for key, value in self.values.items() if has_nan([value])}
            self._leave_out(
                {op for op in self.placeable if not nan.isdisjoint(self.reads(op))},
                "{} read NaN already in the reference, so their outputs cannot be judged; they "
                "were left out.",
            )
            if not self.refusal:
                self.before = self.error(self.outputs)
                self.right, all_judged = self.explained(self.outputs, self.placement)
                self.proven = self.right and all_judged and not self.random

    def _look_through(self, fixed: Tensors) -> None:
        """Compute every tensor of the reference, with some of them fixed."""
        self.check_budget()
        self.transparent = self.runs.transparent(fixed)
        self.transparent.before_run = self.check_budget
        self.estimates = RoundingEstimates(self.runs.bound, self.transparent)
        self.values = self.transparent.values
        if not self.failures_only:
            unfused = self.transparent.unfused(self.trusted_outputs)
            pairs = zip(self.output_keys, self.trusted_outputs, unfused, strict=True)
            self.reference = [o if key[0] in self.changing else u for key, o, u in pairs]

    def _make_up(self) -> None:
        """Draw a value for every tensor whose shape is known; without it, its readers stay out."""
        rng, graph = np.random.default_rng(0), self.graph
        arrays = {
            (op.name, port): arbitrary_array(tensor, rng)
            for op in graph
            for port, tensor in enumerate(op.outputs)
        }
        names = [graph.ops[index].name for index in graph.parameters]
        arrays |= {(name, 0): array for name, array in zip(names, self.runs.arrays, strict=True)}
        self.values = {key: value for key, value in arrays.items() if value is not None}
        unknown = {op for op in self.placeable if not self.values.keys() >= {*self.reads(op)}}
        self._leave_out(unknown, "The shapes that {} read are not known, so they were left out.")

    # Comparisons.

    def error(self, outputs: Sequence[np.ndarray]) -> float:
        """Return the largest relative error of an output; NaN if none can be compared."""
        return max((error for _, error in self.errors(outputs)), default=np.nan)

    def errors(self, outputs: Sequence[np.ndarray]) -> list[tuple[TensorKey, float]]:
        """Return the relative error of each output that is not random, without a reference none."""
        triples = zip(self.output_keys, outputs, self.reference, strict=True)
        return [
            (key, relative_error(output, expected) if self._as_declared({key: output}) else np.inf)
            for key, output, expected in (triples if self.reference else ())
            if key[0] not in self.changing
        ]

    def _agrees(self, outputs: Sequence[np.ndarray]) -> bool:
        """Return whether no output needs an explanation: each is within f32's tolerance."""
        limits = self.thresholds
        return all(error <= min(self.equal, limits[key]) for key, error in self.errors(outputs))

    def _as_declared(self, tensors: Tensors) -> bool:
        shapes = {(op, port): self.graph.op(op).outputs[port].shape for op, port in tensors}
        return all(tensors[key].shape == tuple(s) for key, s in shapes.items() if s is not None)

    def explained(self, outputs: Sequence[np.ndarray], placement: Placement) -> tuple[bool, bool]:
        """Tell whether rounding explains all errors, and whether every output can be judged.

        An output that depends on a number out of range cannot be judged.
        """
        off = {key for key, error in self.errors(outputs) if error > self.thresholds[key]}
        if not off:
            return True, True
        tensors = {k: o for k, o in zip(self.output_keys, outputs, strict=True) if k in off}
        if off - self.values.keys() or not self._as_declared(tensors):
            return False, True
        rounding = self.estimates.of(self.on_same_device(placement, self.op_precisions), tensors)
        judged = not any(each.lost.any() for each in rounding.values())
        return self._explains(rounding, tensors), judged

    def _explains(self, rounding: Mapping[TensorKey, Rounding], tensors: Tensors) -> bool:
        return all(rounding[k].explains(tensor, self.values[k]) for k, tensor in tensors.items())

    def rounding_of_all(self) -> dict[TensorKey, Rounding]:
        return self.estimates.of(self.op_precisions, dict.fromkeys(self.values))

    def on_same_device(self, placement: Placement, ops: Mapping[str, str]) -> dict[str, str]:
        """Return those of some ops that a placement leaves on their device."""
        affinity, before = placement.affinity, self.placement.affinity
        return {op: p for op, p in ops.items() if affinity[op] == before[op]}

    def judge(self, ops: frozenset[str], tensors: Tensors) -> SetResult:
        """Judge the tensors that a set of ops computes from the reference's tensors."""
        values = self.values
        if self.failures_only:
            return SetResult(False, np.nan, np.nan)
        if not self._as_declared(tensors):
            return SetResult(True, np.inf, np.inf)
        tensors = {key: tensor for key, tensor in tensors.items() if key in values}
        errors = {key: relative_error(tensor, values[key]) for key, tensor in tensors.items()}
        error = max(errors.values(), default=0.0)
        if error <= _UNSEEN:
            return SetResult(False, error, error)
        damages = self._damages({key: tensors[key] for key in errors if errors[key] > 0})
        damage = max(damages.values(), default=0.0)
        if all(d <= SHARE * self.thresholds[key] for key, d in damages.items()):
            return SetResult(False, error, damage)
        rounding = self.estimates.of({op: self.suspects[op] for op in ops}, tensors)
        return SetResult(not self._explains(rounding, tensors), error, damage)

    def _damages(self, tensors: Tensors) -> dict[TensorKey, float]:
        """Return the relative error of each output if these tensors had these values."""
        values = self.values
        # A tensor that cannot be propagated, for instance one of another shape, counts as bad.
        bad = dict.fromkeys(self.output_keys, np.inf)
        if not all(
            self.transparent.takes_offset(key) and value.shape == values[key].shape
            for key, value in tensors.items()
        ):
            return bad
        offsets = {key: offset_from(value, values[key]) for key, value in tensors.items()}
        try:
            reached = self.transparent.run(offsets, set(self.output_keys))
        except RuntimeError:
            return bad
        return {key: relative_error(value, values[key]) for key, value in reached.items()}

    # What cannot be judged.

    def _check_numbers(self) -> None:
        """Note outputs with NaN in the reference; raise if no output has a number."""
        names = self.runs.bound.output_names
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

    def _leave_out_changing(self) -> None:
        """Leave out ops that compute other numbers in each run, and fix them for all others."""
        again = self.transparent.run({})
        self.changing |= self._with_all_after(
            key[0] for key, value in self.values.items() if distance(again[key], value) > 0
        )
        # The change begins at ops whose inputs stay the same.
        first = {
            op for op in self.changing if self.changing.isdisjoint(op for op, _ in self.reads(op))
        }
        n = sum(key[0] in self.changing for key in self.output_keys)
        of = "its outputs" if n == len(self.output_keys) else f"{n} of its outputs"
        self.random = self._leave_out(
            first,
            f"The model is random by itself ({{}}), so {of} cannot be compared; those ops were "
            "left out, and the others ran on their results in the reference.",
        )
        if first:
            self._look_through({k: value for k, value in self.values.items() if k[0] in first})

    def reads(self, op: str) -> tuple[TensorKey, ...]:
        """Return the tensors that an op reads, except constants."""
        return incoming(self.graph, [op])

    def _with_all_after(self, ops: Iterable[str]) -> frozenset[str]:
        reached = self.graph.reach((self.graph.index_of[op] for op in ops), forward=True)
        return frozenset(self.graph.ops[index].name for index in reached)

    def _leave_out(self, ops: Collection[str], why: str) -> frozenset[str]:
        """Leave ops and all that move with them out of the search, and note why."""
        leaders = {self.graph.ops[self.graph.leader[self.graph.index_of[op]]].name for op in ops}
        out = frozenset(m for leader in leaders for m in self.members.get(leader, ()))
        if out:
            self.notes.append(why.format(names_at_hand(self.in_order(out))))
            self.suspects = {op: p for op, p in self.suspects.items() if op not in out}
        return out

    def check_budget(self) -> None:
        """Raise BudgetOverError once the time is over; show the number of compiles."""
        self.runs.check_budget()
        self.bar.note(f"{self.runs.n_compiles} compiles")

    def in_order(self, ops: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(ops, key=self.graph.index_of.__getitem__))

    def beyond_precision(self) -> str:
        """Say where numbers leave the range of the executed precision, if that affects outputs."""
        lost = {key for key, each in self.rounding_of_all().items() if each.lost.any()}
        if lost.isdisjoint(self.output_keys):
            return ""
        first = [
            op for op in self.in_order({op for op, _ in lost}) if lost.isdisjoint(self.reads(op))
        ]
        beyond = {op for op, _ in self.estimates.beyond_range(self.op_precisions)}
        out = [op for op in first if op in beyond]
        rounded = [op for op in first if op not in beyond]
        formats = ", ".join(sorted({p for op, p in self.op_precisions.items() if op in out}))
        lost_there = f"numbers that {self.narrow} cannot tell apart into infinity or NaN"
        sentences = [
            f"{names_at_hand(ops)} {verb}{'s' if len(ops) == 1 else ''} {what}."
            for ops, verb, what in (
                (out, "leave", f"the range of {formats}"),
                (rounded, "turn", lost_there),
            )
            if ops
        ]
        return " ".join(["", *sentences, "Outputs that depend on them could not be judged."])
