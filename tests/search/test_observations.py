"""What a search reads from counters, and times where a device has none."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from counting_core import F32
from planning.random_costs import GraphMaker
from small_models import chain
from views.hand_made import small_profile
from widgets.hand_sweeps import failed_row, measured_row, small_sweep

import hetero_lab as hl
from hetero_lab.costs.counter_costs import (
    ENTERS,
    LEAVES,
    Conversion,
    ExecutedNode,
    Observation,
)
from hetero_lab.devices.core import bind
from hetero_lab.errors import MeasurementError
from hetero_lab.measure.session import Conditions, SweepControl
from hetero_lab.measure.stopping import RunOptions
from hetero_lab.measure.trial_grid import by_name
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import predict
from hetero_lab.progress import Progress
from hetero_lab.results.records import Compiled, Counters, Failed, Finished, Turn
from hetero_lab.results.sweep_result import Sweep
from hetero_lab.results.sweep_row import Row
from hetero_lab.runtime.counters import Counter
from hetero_lab.search.observations import (
    Observer,
    Search as BoundSearch,
    isolated_nodes,
    nodes_and_conversions,
)


@pytest.mark.parametrize("extra", [0.0, 0.5])
def test_each_conversion_counts_at_its_boundary_or_with_the_op_beside_it(extra):
    """Whole microseconds were rounded down: half of one is added to each."""
    maker = GraphMaker()
    x = maker.add("Parameter", name="x")
    b = maker.chain(x, ["a", "b"])
    maker.add("Result", [maker.chain(b, ["c", "c_d"])], name="out")
    graph = maker.graph()
    devices = {"c": "B", "c_d": "B"}
    partition = predict(graph, Affinity.from_graph(graph, lambda name: devices.get(name, "A")))
    (boundary,) = partition.boundaries

    def counter(subgraph: int, us: float, kind: str, **more: Any) -> Counter:
        name = more.pop("name", "reorder")
        us += 0.0 if extra else 0.25
        device = "AB"[subgraph]
        return Counter(subgraph, device, name, "", "", "", "EXECUTED", us, us, kind=kind, **more)

    reorder = "reorder"
    rows = [
        counter(0, 10.0, "op", op="a", fused_ops=("b",)),
        counter(1, 20.0, "op", op="c"),
        counter(1, 30.0, "op", op="c_d"),
        counter(0, 1.0, reorder, tensor="x"),  # read by a
        counter(0, 2.0, reorder, tensor=boundary.tensor),
        counter(1, 3.0, reorder, tensor=boundary.tensor),
        counter(1, 4.0, reorder, tensor="out"),  # made by c_d
        counter(1, 5.0, reorder, name="c_d_abcd"),
        counter(1, 6.0, reorder, name="copy_of_c"),
        counter(0, 7.0, reorder, op="b"),
        counter(0, 9.0, "other"),
    ]
    each = extra or 0.25
    nodes, conversions = nodes_and_conversions(rows, partition, graph)
    assert nodes == (
        ExecutedNode(("a", "b"), "A", 10.0 + 1.0 + 7.0 + 3 * each, 0),
        ExecutedNode(("c",), "B", 20.0 + 6.0 + 2 * each, 1),
        ExecutedNode(("c_d",), "B", 30.0 + 4.0 + 5.0 + 3 * each, 1),
    )
    assert conversions == (
        Conversion("b", 0, "A", LEAVES, 2.0 + each),
        Conversion("b", 0, "B", ENTERS, 3.0 + each),
    )
    assert nodes_and_conversions([], partition, graph) == ((), ())


def test_without_counters_each_op_of_a_device_is_timed_once(core):
    names = "abcdefghijklmn"
    bound = bind(chain(*names), core)
    conditions = Conditions(None, 0)
    in_f32 = dict.fromkeys(["ACC", "CPU"], F32)
    observer: Any = SimpleNamespace(
        search=SimpleNamespace(bound=bound, session=SimpleNamespace(conditions=conditions)),
        placement=lambda affinity, label: hl.Placement(affinity, label, in_f32),
    )
    support = {"ACC": frozenset(names) - {"c"}, "CPU": frozenset(names)}
    known = [ExecutedNode((name,), "CPU", 3.0 if name == "b" else 1.0) for name in names]
    nodes = isolated_nodes(observer, "ACC", support, known)
    assert sorted(node.ops for node in nodes) == [(name,) for name in names if name != "c"]
    assert {node.device for node in nodes} == {"ACC"}
    us = {node.ops[0]: node.us for node in nodes}
    assert min(us.values()) > 0.0
    # Twelve parts: the first two ops are one of them.
    assert us["b"] == pytest.approx(3.0 * us["a"])


class Search:
    """Sweeps by hand, each of which takes 3 s; the arguments of each are in ``asked``."""

    def __init__(self, *sweeps: Sweep) -> None:
        self.sweeps, self.asked = list(sweeps), list[Any]()
        self.watch = SimpleNamespace(elapsed_s=1000.0)
        self.session = SimpleNamespace(conditions=Conditions(None, 0))

    def measure(self, placements: Any, options: RunOptions, budget_s: float, **more: Any) -> Sweep:
        self.asked.append(([p.label for p in placements], options, budget_s, more))
        self.watch.elapsed_s += 3.0
        return self.sweeps.pop(0)


def sweep_of(*rows: Row, **more: Any) -> Sweep:
    return replace(small_sweep(), rows=rows, **more)


PROFILE = small_profile()


def observer_of(*sweeps: Sweep) -> tuple[Observer, Any, list[Observation]]:
    """Return an observer whose reference took 101 µs at first, and its search and observations."""
    search: Any = Search(sweep_of(measured_row("reference", PROFILE)), *sweeps)
    observer, seen = Observer(search, {}, PROFILE.affinity), list[Observation]()
    observer.observe_reference({}, seen, counters=True)
    return observer, search, seen


def test_the_reference_is_measured_first_and_tells_how_long_a_placement_takes():
    observer, search, (first,) = observer_of()
    assert (first.label, first.measured_us, first.noise) == ("reference", 101.0, 0.02)
    assert first.nodes
    ((labels, options, budget_s, _),) = search.asked
    assert (labels, budget_s) == (["reference"], float("inf"))
    assert (options.turns, options.counters, options.reference) == (2, True, False)
    turn_s = 12 * 101.0 / 1e6  # later placements have twelve turns instead of two
    assert observer.each_s == pytest.approx(3.0 + 10 * turn_s)
    n = PROFILE.partition.n_subgraphs
    assert observer.slowest_subgraph_s == PROFILE.compile_ms / 1e3 / n
    assert observer.affordable(1003.0 + 7.5 * 1.2 * observer.each_s) == 7
    assert observer.affordable(1000.0) == 0


def test_each_placement_is_told_by_its_ratio_to_the_reference():
    rows = [measured_row("reference", PROFILE, 2.0), measured_row("slow", PROFILE, 3.0)]
    observer, search, seen = observer_of(sweep_of(*rows, failed_row("broken")))
    affinities = dict.fromkeys(["slow", "broken"], PROFILE.affinity)
    observer.observe(affinities, search.watch.elapsed_s, seen, counters=False)
    assert len(search.asked) == len(seen) == 1  # no time
    observer.observe(affinities, search.watch.elapsed_s + 20.0, seen, counters=False)
    labels, options, budget_s, _ = search.asked[-1]
    assert (labels, budget_s) == (["reference", "slow", "broken"], 20.0)
    assert (options.turns, options.counters) == (12, False)
    assert [one.label for one in seen] == ["reference", "slow"]
    assert seen[1].measured_us == pytest.approx(3.0 * 101.0)
    assert observer.drift == pytest.approx((102.0 + 200.0) / 2 / 101.0)
    assert observer.each_s == pytest.approx(3.0 / 2)
    assert observer.failed == {"broken": "no kernel"}


def test_an_interrupted_sweep_is_learnt_from():
    rows = [measured_row("reference", PROFILE), measured_row("slow", PROFILE, 3.0)]
    observer, _, seen = observer_of(sweep_of(*rows, interrupted=True))
    with pytest.raises(KeyboardInterrupt):
        observer.observe({"slow": PROFILE.affinity}, 1e9, seen, counters=False)
    assert [one.label for one in seen] == ["reference", "slow"]


def test_where_the_reference_does_not_run_another_takes_its_place():
    search: Any = Search(
        sweep_of(failed_row("reference")), sweep_of(measured_row("reference", PROFILE))
    )
    other = Affinity.on_one(PROFILE.graph, "CPU")
    observer, seen = Observer(search, {}, PROFILE.affinity), list[Observation]()
    observer.observe_reference({"CPU": other}, seen, counters=False)
    assert observer.reference == other
    assert observer.failed == {"reference": "no kernel"}
    assert len(seen) == 1
    search.sweeps = [sweep_of(failed_row("reference"))] * 2
    with pytest.raises(MeasurementError, match="No placement ran: compile failed. no kernel"):
        observer.observe_reference({"CPU": other}, seen, counters=False)


def test_the_executor_is_compared_with_hetero():
    rows = [measured_row("base", PROFILE, factor) for factor in (1.0, 1.25, 0.75)]
    observer, search, _ = observer_of(sweep_of(*rows), sweep_of(rows[0], failed_row("p"), rows[2]))
    both = PROFILE.affinity, Affinity.on_one(PROFILE.graph, "CPU")
    assert observer.parallel_ratios(*both, until_s=0.0) is None
    assert observer.parallel_ratios(*both, until_s=1e9) == pytest.approx([1.25, 0.75])
    labels, _, _, more = search.asked[-1]
    assert labels == ["base", "plan"]
    assert more == {"grid": {"executor": ("hetero", "parallel")}, "leave_out": ("plan",)}
    assert observer.parallel_ratios(*both, until_s=1e9) is None


@pytest.mark.parametrize("least", [0, 1, 2])
def test_where_time_allows_nothing_the_first_few_are_measured_nevertheless(core, tmp_path, least):
    bound, asked = bind(chain("a", "b"), core), []

    def measure(given: Any, options: RunOptions, watch: Any, *, store: Any, **more: Any) -> Sweep:
        labels = [trial.label for trial in given]
        asked.append((labels, options.turns, watch.budget_s, store))
        if watch.budget_s is not None:
            return sweep_of(*map(failed_row, labels))
        return sweep_of(*(measured_row(label, PROFILE) for label in labels))

    conditions = Conditions(None, 0)
    session: Any = SimpleNamespace(models=by_name(bound), conditions=conditions, measure=measure)
    search = BoundSearch(bound, session, Progress("", show=False), SimpleNamespace(budget_s=9.0))
    every = {"CPU": "CPU", "ACC": "ACC", "again": "CPU"}
    placements = [
        hl.Placement(Affinity.on_one(bound.graph, device), label) for label, device in every.items()
    ]
    made = search.measure(placements, RunOptions(turns=7), 5.0, least=least, store=tmp_path)
    assert asked[0] == (list(every), 7, 5.0, tmp_path)
    # The store belongs to all devices: a part of them does not write it.
    stores = {1: None, 2: tmp_path}
    assert asked[1:] == [(list(every)[:least], 2, None, stores.get(least))] * bool(least)
    assert [row.label for row in made.rows] == list(every)
    assert [row.profile is not None for row in made.rows] == [at < least for at in range(3)]
    asked.clear()
    left = search.measure(
        placements, RunOptions(turns=7), float("inf"), least=least, leave_out=("again",)
    )
    assert asked == [(["CPU", "ACC"], 7, None, None)]
    assert all(row.profile for row in left.rows)


def test_the_line_of_progress_follows_the_records(core):
    bound, shown = bind(chain("a", "b"), core), list[str]()
    records = [
        Compiled(
            entry="e", compile_ms=1.0, first_inference_ms=1.0, partition={}, as_predicted=None,
            agreement=(), peak_rss_bytes=0,
        ),
        Turn(entry="e", group=0, round=0, samples_us=(1.0,)),
        Counters(entry="e", rows=()),
        Finished(entry="e"),
        Failed(entry="e", status="failed", detail=""),
        Finished(entry="f"),
        Finished(entry="e"),  # once more: it is still one placement
    ]  # fmt: skip

    def measure(given: Any, options: Any, watch: Any, *, control: SweepControl, **more: Any):
        tell = control.watched(lambda record: None)
        for record in records:
            tell(record)
        return small_sweep()

    conditions = Conditions(None, 0)
    session: Any = SimpleNamespace(models=by_name(bound), conditions=conditions, measure=measure)
    bar: Any = SimpleNamespace(step=shown.append, note=shown.append)
    search = BoundSearch(bound, session, bar, SimpleNamespace(budget_s=None))
    search.begin("calibrate")
    search.measure([hl.Placement(Affinity.on_one(bound.graph, "CPU"))], RunOptions(), 1.0)
    assert shown == [
        "calibrate",
        "calibrate: compile",
        "calibrate: measure",
        "calibrate: read counters",
        "1 placement measured",
        "2 placements measured",
        "2 placements measured",
    ]
