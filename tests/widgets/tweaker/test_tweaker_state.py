"""The tweaker's state, without a browser and without a device."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from itertools import product

import pytest
from planning.random_costs import GraphMaker, random_costs, random_graph
from small_models import stateful

from hetero_lab.errors import AffinityError, DeviceError
from hetero_lab.intervals import ASSUMED_NOISE, Estimate
from hetero_lab.lint.lint import lint, to_frame
from hetero_lab.measure.session import StoppedError
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.model.read import prepare
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import predict
from hetero_lab.results.records import Compiled, Turn
from hetero_lab.widgets.tweaker.tweaker_measurement import Attempt, Decider, history_frame, new_rows
from hetero_lab.widgets.tweaker.tweaker_state import TweakerState
from hetero_lab.widgets.tweaker.tweaker_view import attempt_rows

TYPES = ("Parameter", "Convolution", "Relu", "MaxPool", "Softmax", "Result")
NAMES = ("x", "conv", "relu", "pool", "soft", "out")


@pytest.fixture
def chain() -> OpGraph:
    maker, source = GraphMaker("chain"), []
    for name, op_type in zip(NAMES, TYPES, strict=True):
        source = [maker.add(op_type, source, name=name, n_bytes=16)]
    return maker.graph()


@pytest.fixture
def tweaking(chain) -> TweakerState:
    """ACC runs all but the last op, BCC only the last two, CPU everything but the pool."""
    able = {
        "ACC": frozenset({"conv", "relu", "pool"}),
        "BCC": frozenset({"pool", "soft"}),
        "CPU": frozenset({"conv", "relu", "soft"}),
    }
    start = {"conv": "ACC", "relu": "ACC", "pool": "ACC", "soft": "CPU"}
    return TweakerState(chain, Affinity.from_graph(chain, start), able)


def devices(tweaking):
    return [tweaking.affinity[name] for name in NAMES[1:5]]


def test_it_starts_with_the_automatic_one(tweaking):
    assert tweaking.affinity == tweaking.automatic
    what_if = tweaking.what_if
    assert (what_if.n_subgraphs, what_if.n_boundaries, what_if.boundary_bytes) == (2, 1, 16)
    assert what_if.predicted_us is None
    assert (tweaking.selection, tweaking.can_undo, tweaking.can_redo) == ((), False, False)
    with pytest.raises(AffinityError, match="Nothing is selected"):
        tweaking.assign("CPU")


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        (lambda t: t.select(["soft", "conv"]), ("conv", "soft")),
        (lambda t: t.select_pattern("^[cr]"), ("conv", "relu")),
        (lambda t: t.select_pattern("o+"), ("conv", "pool", "soft")),
        (lambda t: t.select_type("MaxPool"), ("pool",)),
        (lambda t: t.select_subgraph(0), ("conv", "relu", "pool")),
        (lambda t: t.select_subgraph(1), ("soft",)),
        (lambda t: t.select_after("relu"), ("pool", "soft")),
        (lambda t: t.select_after(["pool", "conv"]), ("relu", "pool", "soft")),
        (lambda t: t.select([]), ()),
        (lambda t: t.select_type("Relu") or t.select_after("pool", add=True), ("relu", "soft")),
    ],
)
def test_selecting(tweaking, select, expected):
    select(tweaking)
    assert tweaking.selection == expected


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        (lambda t: t.select(["con"]), AffinityError, "Did you mean 'conv'"),
        (lambda t: t.select(["x"]), AffinityError, "'x'"),
        (lambda t: t.select_pattern("nothing"), AffinityError, "matches no op"),
        (lambda t: t.select_pattern("("), AffinityError, "not a regular expression"),
        (lambda t: t.select_pattern(""), AffinityError, "part of a name"),
        (lambda t: t.select_type("Relus"), AffinityError, "Did you mean 'Relu'"),
        (lambda t: t.select_subgraph(2), AffinityError, "from 0 to 1"),
        (lambda t: t.select_subgraph(-1), AffinityError, "no subgraph -1"),
        (lambda t: t.select_after("soft"), AffinityError, "Nothing comes after"),
        (lambda t: t.select_after("nobody"), AffinityError, "nobody"),
        (lambda t: t.assign("BCC"), DeviceError, "BCC does not support 2 of the 2"),
        (lambda t: t.assign("GPU"), DeviceError, "made for ACC, BCC, CPU"),
        (lambda t: t.cut(5, "ACC", "CPU"), AffinityError, "between 0 and 4"),
        (lambda t: t.cut(1, "ACC", "GPU"), DeviceError, "GPU"),
        (lambda t: t.apply({"soft": "ACC"}, "no"), DeviceError, "does not support 'soft'"),
        (lambda t: t.undo(), AffinityError, "nothing to undo"),
        (lambda t: t.redo(), AffinityError, "nothing to redo"),
        (lambda t: t.replace({"conv": "CPU"}, "no"), AffinityError, "not dict"),
    ],
)
def test_what_is_refused_changes_nothing(tweaking, wrong, error, says):
    tweaking.select(["conv", "relu"])
    before = tweaking.affinity
    with pytest.raises(error, match=says):
        wrong(tweaking)
    assert tweaking.affinity is before
    assert tweaking.selection == ("conv", "relu")
    assert not tweaking.can_undo


def test_affinities_that_do_not_fit_are_refused(tweaking, chain):
    for device, says in (("GPU", "GPU"), ("CPU", "CPU does not support 'pool'")):
        with pytest.raises(DeviceError, match=says):
            tweaking.replace(Affinity.on_one(chain, device), "file")
    assert tweaking.affinity == tweaking.automatic


def test_devices_that_can_run_the_selection(tweaking):
    tweaking.select(["relu", "pool", "soft"])
    assert tweaking.why_not("CPU") == "CPU does not support 1 of the 3 selected ops: 'pool'."
    with pytest.raises(DeviceError, match="does not support 1 of the 3"):
        tweaking.assign("CPU")
    tweaking.assign("CPU", partly=True)
    assert devices(tweaking) == ["ACC", "CPU", "ACC", "CPU"]
    tweaking.select(["conv"])
    with pytest.raises(DeviceError, match="BCC does not support this op: 'conv'"):
        tweaking.assign("BCC", partly=True)


def test_the_cut_that_is_most_like_the_affinity(tweaking):
    assert tweaking.nearest_cut(("ACC", "CPU")) == ((2, "ACC", "CPU"), 0)  # CPU cannot run the pool
    tweaking.select(["conv"])
    tweaking.assign("CPU")
    now, brute = tweaking.affinity, {}
    for cut in product(range(5), tweaking.devices, tweaking.devices):
        tweaking.cut(*cut)
        brute[cut] = sum(now[op] != tweaking.affinity[op] for op in tweaking.ops)
        tweaking.replace(now, "back")
    cut, n_moved = tweaking.nearest_cut(("ACC", "CPU"))
    assert brute[cut] == min(brute.values()) == n_moved


def measured(ratio, until_decided, n=64):
    """Feed the turns of two placements until it ends; return how many there were and the text."""
    told, rng = [], random.Random(1)
    decider = Decider(
        n_placements=2, budget_s=60.0, noise=ASSUMED_NOISE, until_decided=until_decided,
        tell=lambda _, text: told.append(text),
    )  # fmt: skip
    known = {"partition": {}, "as_predicted": True, "agreement": (), "peak_rss_bytes": 0}
    for entry in ("automatic", "mine"):
        decider.take(Compiled(entry=entry, compile_ms=1.0, first_inference_ms=1.0, **known))
    for number in range(n):
        for entry, us in (("automatic", 1000.0), ("mine", 1000.0 * ratio)):
            samples = tuple(us * rng.uniform(0.99, 1.01) for _ in range(10))
            try:
                decider.take(Turn(entry=entry, group=0, round=number, samples_us=samples))
            except StoppedError:
                return number + 1, told
    return n, told


def test_a_measurement_ends_when_the_evidence_decides():
    n, told = measured(0.7, until_decided=True)
    assert n == 8
    assert told[1:3] == ["compiled 2 of 2", "0 turns of each, of at least 8"]
    decided = r"8 turns of each: 0.7\d\d × automatic \(0.6.* to 0.7.*\), faster"
    assert re.fullmatch(decided, told[-1])
    assert measured(0.7, until_decided=False)[0] == 64


def test_assign_undo_redo(tweaking):
    tweaking.select(["relu"])
    tweaking.assign("CPU")
    assert devices(tweaking) == ["ACC", "CPU", "ACC", "CPU"]
    assert (tweaking.what_if.n_subgraphs, tweaking.what_if.boundary_bytes) == (4, 48)
    tweaking.assign("CPU")  # changes nothing, so there is nothing more to undo
    tweaking.undo()
    assert tweaking.affinity == tweaking.automatic
    assert not tweaking.can_undo
    tweaking.redo()
    assert devices(tweaking) == ["ACC", "CPU", "ACC", "CPU"]
    tweaking.undo()
    tweaking.select(["conv"])
    tweaking.assign("CPU")
    assert not tweaking.can_redo
    # Results and parameters follow.
    assert tweaking.affinity["x"] == "CPU"


def test_the_cut_and_what_stays(tweaking):
    tweaking.cut(2, "CPU", "BCC")
    assert devices(tweaking) == ["CPU", "CPU", "BCC", "BCC"]
    tweaking.cut(4, "CPU", "BCC")
    assert devices(tweaking) == ["CPU", "CPU", "BCC", "CPU"]  # CPU has no MaxPool: it stays
    tweaking.cut(0, "CPU", "BCC")
    assert devices(tweaking) == ["CPU", "CPU", "BCC", "BCC"]  # so do those that BCC has not
    assert tweaking.step.cut == (0, "CPU", "BCC")
    tweaking.undo()  # a drag is one step
    assert tweaking.affinity == tweaking.automatic


def test_a_stateful_path_moves_as_one_and_is_judged_as_by_the_library(core):
    prepared = prepare(stateful())
    graph = prepared.graph
    able = dict.fromkeys(("ACC", "CPU"), frozenset(graph.ops[i].name for i in graph.placeable))
    costs = random_costs(random.Random(1), graph, ["ACC", "CPU"], forbidden=0.0)
    tweaking = TweakerState(graph, Affinity.on_one(graph, "CPU"), able, costs)
    tweaking.select(["sum"])
    tweaking.assign("ACC")
    path = ("read", "sum", "middle", "assign")
    assert {tweaking.affinity[name] for name in path} == {"ACC"}
    assert tweaking.affinity["after"] == "CPU"
    for position in range(len(tweaking.ops) + 1):
        tweaking.cut(position, "ACC", "CPU")
        assert len({tweaking.affinity[name] for name in path}) == 1
    tweaking.replace(tweaking.automatic, "back")
    tweaking.select(["after"])
    tweaking.assign("ACC")
    assert tweaking.what_if.predicted_us == costs.predict_us(tweaking.affinity)
    expected = lint(prepared, tweaking.affinity, costs, core=core)
    assert to_frame(tweaking.findings, priced=True).equals(expected)


def test_costs_that_do_not_hold_are_told(chain):
    names = frozenset(NAMES[1:5])
    costs = random_costs(random.Random(4), chain, ["ACC", "CPU"], forbidden=0.5)
    refused = next(n for n in names if n not in costs.supports("ACC"))
    able = {"ACC": names, "CPU": names}
    devices = {n: "ACC" if n not in costs.supports("CPU") else "CPU" for n in names}
    tweaking = TweakerState(chain, Affinity.from_graph(chain, devices), able, costs)
    assert tweaking.what_if.predicted_us is not None
    tweaking.select([refused])
    tweaking.assign("ACC")
    assert tweaking.what_if.predicted_us is None
    assert "ACC does not support" in tweaking.what_if.problem
    assert isinstance(tweaking.findings, list)


@pytest.mark.parametrize("seed", range(30))
def test_the_numbers_with_costs_are_those_of_predict(seed):
    rng = random.Random(seed)
    graph = random_graph(rng, rng.randint(4, 14), state=seed % 3 == 0)
    devices = ["A", "B", "C"][: 2 + seed % 2]
    costs = random_costs(rng, graph, devices, forbidden=0.0)
    able = dict.fromkeys(devices, frozenset(graph.ops[i].name for i in graph.placeable))
    automatic = Affinity.from_graph(graph, lambda _: rng.choice(devices))
    what_if = TweakerState(graph, automatic, able, costs).what_if
    assert what_if.partition == predict(graph, automatic)
    assert what_if.predicted_us == costs.predict_us(automatic)


def tried(label: str, median_us: float, ratio: float, affinity: Affinity) -> Attempt:
    return Attempt(
        label, affinity, median_us=median_us, ci95_low_us=0.9 * median_us,
        ci95_high_us=1.1 * median_us, ratio=ratio, raw_median_us=median_us + 1.0,
    )  # fmt: skip


def test_rows_of_the_history_can_be_compared_however_the_machine_drifts(chain):
    affinity = Affinity.on_one(chain, "CPU")
    history: list[Attempt] = []
    # The machine takes twice as long in the second run, and half as long in the third.
    for label, level_us, ratio in (("1.", 100.0, 1.1), ("2.", 200.0, 0.9), ("3.", 50.0, 1.2)):
        mine = tried(label, ratio * level_us, ratio, affinity)
        history += new_rows(history, [tried("automatic", level_us, 1.0, affinity), mine])
    history += new_rows(history, [tried("automatic", 70.0, 1.0, affinity)])
    frame = history_frame(history)
    assert list(frame["label"]) == ["automatic", "1.", "2.", "3.", "automatic"]
    assert list(frame["median_us"]) == pytest.approx([100.0, 110.0, 90.0, 120.0, 100.0])
    assert list(frame["ratio"] * 100.0) == pytest.approx(list(frame["median_us"]))
    assert list(frame["ci95_high_us"]) == pytest.approx(list(1.1 * frame["median_us"]))
    assert list(frame["raw_median_us"]) == pytest.approx([101.0, 111.0, 181.0, 61.0, 71.0])
    # A first run that failed leaves no scale.
    failed = Attempt("automatic", affinity, "crashed (signal 11)", "")
    own = tried("1.", 80.0, 1.0, affinity)
    assert new_rows([], [failed, own]) == [failed, own]
    assert new_rows([failed], [tried("automatic", 70.0, 1.0, affinity), own])[1] == own


def test_predictions_beside_measurements_are_for_the_speed_of_now():
    graph = random_graph(random.Random(0), 8)
    first, other = (Affinity.on_one(graph, device) for device in ("A", "B"))
    predicted = Estimate(100.0, 90.0, 120.0), Estimate(80.0, 0.0, math.inf)
    measured = tried("automatic", 150.0, 1.0, first), tried("1. moved", 130.0, 0.9, other)
    history = [replace(m, predicted=p) for m, p in zip(measured, predicted, strict=True)]
    told = [row["predicted"] for row in attempt_rows(history, first)]
    assert told == ["150 µs  [135, 180]", "120 µs"]
    assert [row["predicted"] for row in attempt_rows(history[1:], first)] == ["80 µs"]
