"""Find the ops of a placement that compute wrong numbers, and the cheapest way around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hetero_lab.backend.bound import bind
from hetero_lab.errors import ArgumentError, DeviceError
from hetero_lab.experiments.faults.answer import answer
from hetero_lab.experiments.faults.expected import BudgetOverError, Expected
from hetero_lab.experiments.faults.placed_runs import PlacedRuns
from hetero_lab.experiments.faults.ways_around import Way, WaysAround
from hetero_lab.experiments.faults.wrong import Kind, Wrong
from hetero_lab.experiments.faults.wrong_sets import WrongSetSearch
from hetero_lab.interrupts import UntilInterrupted
from hetero_lab.model.language import refuse_language_model
from hetero_lab.model.read import Source
from hetero_lab.placement.placement import PlacementLike, resolve
from hetero_lab.planning.cost_model import CostModel
from hetero_lab.progress import Progress
from hetero_lab.runtime.inputs import Inputs, given_or_generated
from hetero_lab.runtime.reference import reference_device
from hetero_lab.runtime.timing import Stopwatch

if TYPE_CHECKING:
    import openvino as ov

_MOST_ROUNDS = 4


def find_wrong(
    model: Source,
    placement: PlacementLike,
    inputs: Inputs | None = None,
    tolerance: float | None = None,
    budget_s: float | None = 120.0,
    *,
    costs: CostModel | None = None,
    isolate: bool = False,
    progress: bool = True,
    core: ov.Core | None = None,
) -> Wrong:
    """Find the ops that are to blame for wrong outputs, and a placement without the fault.

    The outputs are compared with those of a single real device in f32, the trusted one. If they
    differ, every op is run by itself on its device with the inputs that it has in the
    reference, all of them in one compile. Where that does not explain the outputs, ops are wrong
    only together, because the device fuses them: sets of ops are run in the same way until none
    can be left out of them. Rounding is told from faults by moving the inputs and outputs of the
    ops, in the reference, by the rounding error of the executed precision.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    placement
        The placement in question.
    inputs
        One set of inputs; generated if left out. Inputs that show the fault.
    tolerance
        The relative error (Euclidean norm) up to which an output is right. Left out, it is 0.001
        for f32, 0.02 for f16 and 0.15 for bf16, and more where the model amplifies rounding.
    budget_s
        Wall time of the search, overrun by about one compile at most. The result holds all that
        is known by then.
    costs
        Prices the ways around the fault, of :func:`hetero_lab.calibrate`; ops beside the faulty
        ones may then move as well. Without it, one op of each set moves: the choice with the
        fewest subgraphs, then bytes at their boundaries, then moved ops, of those that are right.
    isolate
        Let the placement's devices work in a process of their own. The search then survives a
        device that crashes or hangs, and names the ops that make it. A device counts as hung
        once it takes longer than a quarter of the budget that is left, and than four times its
        slowest answer so far.
    progress
        Show how many models were compiled, if it takes more than two seconds.

    Returns
    -------
    Wrong
        After Ctrl-C (:func:`hetero_lab.last_interrupted`): the faults found until then.

    Raises
    ------
    DeviceError
        No single real device supports the whole model, so there is no reference.
    ArgumentError
        The placement is a virtual device, such as ``AUTO:GPU,CPU``.
    PlanError
        The costs are of another model, or do not know the trusted device.
    MeasurementError
        The reference has no output that is a number.

    Notes
    -----
    Minimal sets are those of delta debugging (Zeller and Hildebrandt 2002), found by bisection
    (Junker 2004). Rounding is estimated by Monte Carlo arithmetic (Parker 1997).

    Examples
    --------
    >>> import hetero_lab as hl
    >>> acc = hl.emulate("ACC")
    >>> wrong = hl.find_wrong("digits_inception", "HETERO:ACC,CPU", progress=False)
    >>> wrong.kind in ("none", "rounding"), wrong.fix
    (True, {})
    """
    watch = Stopwatch.start(budget_s)
    if tolerance is not None and not tolerance > 0:
        raise ArgumentError(
            f"tolerance= is a relative error above 0, for instance 0.001, not {tolerance!r}."
        )
    bound = bind(model, core)
    refuse_language_model(bound.model, "find_wrong")
    placed = resolve(bound, placement)
    virtual = placed.placement.virtual
    if virtual is not None:
        raise ArgumentError(
            f"{virtual} chooses a device for the whole model as it runs. Search on each of its "
            f"devices by itself: {', '.join(placed.devices)}."
        )
    if costs is not None:
        costs.check_graph(placed.graph)
    arrays = given_or_generated(placed.bound, inputs)
    try:
        trusted = reference_device(placed.bound)
    except DeviceError as error:
        raise DeviceError(
            "No single real device here supports the whole model, so there is no reference that "
            "could tell what is wrong."
        ) from error
    if costs is not None:
        costs.check_devices([*placed.devices, trusted])
    with PlacedRuns(placed, arrays, trusted, watch=watch, isolate=isolate) as runs:
        return search_wrong(runs, watch, tolerance=tolerance, costs=costs, progress=progress)


def search_wrong(
    runs: PlacedRuns,
    watch: Stopwatch,
    *,
    tolerance: float | None = None,
    costs: CostModel | None = None,
    progress: bool = False,
) -> Wrong:
    """Search with arguments that are checked already."""
    with Progress("find_wrong", show=progress, budget_s=watch.budget_s) as bar:
        return _FaultSearch(Expected(runs, watch, tolerance, bar), costs).run()


class _FaultSearch:
    """Looks for faults and for a way around them, in turn, until the outputs are right."""

    def __init__(self, expected: Expected, costs: CostModel | None):
        self.expected, self.sets = expected, WrongSetSearch(expected)
        self.around = WaysAround(self.sets, costs)

    def run(self) -> Wrong:
        """Search, and return what was found."""
        expected, complete = self.expected, False
        # Without a reference nothing is known yet, so Ctrl-C has nothing to keep.
        with UntilInterrupted(lambda: expected.reference) as search:
            try:
                outputs = expected.run_given()
                if expected.compare(outputs):
                    unchanged = Way(expected.given, expected.before, right=True)
                    return answer(self.around, "none", unchanged)
                expected.look_inside(outputs)
                self.sets.take_whole(outputs)
                self._search()
                complete = True
            except BudgetOverError:
                pass
        if not complete:
            self.sets.keep_unshrunk()
        kind, way = self._kind(complete)
        return answer(self.around, kind, way, complete=complete, interrupted=search.interrupted)

    def _search(self) -> None:
        placement, found = self.expected.given, self.sets.found
        for _ in range(_MOST_ROUNDS):
            n_known = len(found)
            self.sets.find_in(placement)
            if len(found) == n_known or (self.expected.random and self.expected.right):
                break  # without an output to compare, no way around can be judged
            way = self.around.way_out()
            if way.right:
                break
            placement = way.placement
        n_known = len(found)
        for device, leaders in self.sets.subgraphs:
            self.sets.find_overlapping(device, leaders)
        if len(found) > n_known and self.around.way is not None:
            self.around.way_out()

    def _kind(self, complete: bool) -> tuple[Kind, Way]:
        """Return the kind of fault, as far as it is known, and the best way around it."""
        expected, found = self.expected, self.sets.found
        judged = not expected.random or (complete and not self.sets.unrun())
        way = self.around.best_way()
        if found:
            return "op" if all(len(each.ops) == 1 for each in found) else "combination", way
        if expected.right and judged:
            return "rounding", Way(expected.given, expected.before, expected.proven)
        if not complete and expected.right is not False:
            return "not known", way
        return "combination", way
