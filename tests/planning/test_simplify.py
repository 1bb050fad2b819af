"""Why there are so many subgraphs, and the least change that leaves few."""

from __future__ import annotations

import html
import itertools
import random

import numpy as np
import pytest
from counting_core import core_with_acc
from hand_costs import flat_costs
from network_zoo import ZOO, speech, yolo_dfl
from planning.random_costs import random_graph
from random_models import random_model
from small_models import (
    chain,
    diamond,
    dynamic_inside,
    passed_through,
    stateful,
    two_parts,
)

import hetero_lab as hl
from hetero_lab.errors import ArgumentError
from hetero_lab.model.opgraph import work_of
from hetero_lab.model.read import prepare
from hetero_lab.placement.affinity import Affinity, first_able
from hetero_lab.placement.partition import predict
from hetero_lab.planning.simplify import simplify_graph


def lacking(graph, *types, devices=("ACC", "CPU")):
    """Return the support of two devices, of which the first lacks some types."""
    names = {op.name for op in graph}
    return {devices[0]: {op.name for op in graph if op.type not in types}, devices[1]: names}


def kept(graph, before, after):
    """Return the share of the work that stays where it was."""
    work = {graph.ops[i].name: work_of(graph, graph.ops[i]) for i in graph.placeable}
    return sum(w for op, w in work.items() if before[op] == after[op]) / sum(work.values())


@pytest.fixture(scope="module")
def core():
    """A Core whose ACC lacks Softmax."""
    return core_with_acc(unsupported={"Softmax"})


def test_one_op_that_cuts_a_network_into_levels(core):
    model = hl.load(yolo_dfl())  # its head is behind a Softmax
    before = hl.partition(model, "HETERO:ACC,CPU", core=core)
    found = hl.simplify(model, "HETERO:ACC,CPU", core=core)
    n_cut = before.n_subgraphs - 1
    cause, way_out = found.verdict.splitlines()
    assert cause == (
        f"{n_cut + 1} subgraphs: ACC does not support Softmax (1 op), and HETERO cuts 173 "
        f"connected ops of ACC into {n_cut}, because of a cycle. If ACC supported it, there would "
        "be 1 subgraph."
    )
    assert "to CPU leaves 2 subgraphs and" in way_out
    after = hl.partition(model, found.affinity, core=core)
    assert (after.n_subgraphs, after.boundary_bytes) == (2, found.best.boundary_bytes)
    assert 10 * after.boundary_bytes < before.boundary_bytes
    # As few are left where only what comes after the Softmax moves.
    lightest = found.changes[-1]
    assert lightest.label == f"everything after {found.cause.ops[0]}"
    assert (lightest.n_subgraphs, lightest.work_moved < 0.01) == (2, True)
    # The best change is a row of the table, and so is the placement as it is.
    table = found.summary
    assert table["best"].sum() == 1
    greedy = hl.Affinity.automatic(model, "HETERO:ACC,CPU", core=core)
    (n_ops,) = table.loc[table["best"], "n_ops"]
    assert n_ops == len(found.best.moved) == len(found.affinity.diff(greedy))
    assert table.iloc[-1]["n_subgraphs"] == before.n_subgraphs
    assert table["n_subgraphs"].is_monotonic_increasing


def test_it_is_said_wherever_subgraphs_are_shown(core, tmp_path):
    model = hl.load(speech())
    verdict = " ".join(hl.simplify(model, "HETERO:ACC,CPU", core=core).verdict.splitlines())
    first = hl.lint(model, "HETERO:ACC,CPU", core=core).iloc[0]
    assert first.rule == "many-subgraphs"
    assert f"{first.finding} {first.advice}" == verdict
    greedy = hl.Affinity.automatic(model, "HETERO:ACC,CPU", core=core)
    assert hl.partition(model, greedy.fix(ops=first.remedy, core=core), core=core).n_subgraphs == 2
    profile = hl.profile(
        model, greedy, iterations=10, counters=False, reference=False, progress=False, core=core
    )
    assert f"Subgraphs:  {verdict}" in profile.report()
    assert verdict in html.unescape(profile._repr_html_())
    profile.export(tmp_path)
    assert hl.read_profile(tmp_path).few_subgraphs == verdict
    drawn = str(hl.views.placement_graph(profile).to_json()).replace("<br>", " ")
    assert "does not support Softmax" in drawn
    assert "leaves 2 subgraphs" in drawn


def test_a_sweep_races_it(core):
    measured = hl.sweep(
        speech(), "HETERO:ACC,CPU", remedies=True, turns=2, counters=False, baselines=False,
        isolate=False, progress=False, core=core,
    )  # fmt: skip
    rows = measured.summary.set_index("label")
    assert rows.loc["HETERO:ACC,CPU simplified", "n_subgraphs"] == 2
    assert set(rows["status"]) == {"ok"}


@pytest.mark.parametrize(
    "name", ["encoder", "faces", "ocr_svtr", "speech", "unet", "yolo_decoupled"]
)
def test_never_worse_than_a_fix_by_hand(name):
    graph = prepare(ZOO[name]()).graph
    for type_ in ("Softmax", "Concat", "Add"):
        support = lacking(graph, type_)
        before = first_able(graph, support)
        culprits = [op.index for op in graph if before[op.name] == "CPU" and op.type == type_]
        if not culprits:
            continue
        found = simplify_graph(graph, before, support)
        ours = predict(graph, found.affinity).n_subgraphs
        assert kept(graph, before, found.affinity) >= 0.5
        after, above = (graph.reach(culprits, forward=forward) for forward in (True, False))
        for nodes in (after, above, after & above):
            moved = {graph.ops[i].name: "CPU" for i in nodes if i in set(graph.placeable)}
            fixed = before.fix(ops=moved)
            if kept(graph, before, fixed) >= 0.5:
                assert ours <= predict(graph, fixed).n_subgraphs


def test_a_cut_into_three_is_found_where_there_is_one():
    n_cases = 0
    for seed in range(4, 13):
        graph = prepare(random_model(seed, 14)).graph
        types = sorted({graph.ops[i].type for i in graph.placeable})
        support = lacking(graph, types[seed % len(types)])
        before = first_able(graph, support)
        if predict(graph, before).n_subgraphs <= 3 or len(before.devices) < 2:
            continue
        order = [graph.ops[i].name for i in graph.placeable]
        stretches = [
            before.fix(ops=dict.fromkeys(order[first:last], "CPU"))
            for first, last in itertools.combinations(range(len(order) + 1), 2)
        ]
        fewest = min(
            predict(graph, fixed).n_subgraphs
            for fixed in [before, *stretches]
            if kept(graph, before, fixed) >= 0.5
        )
        ours = predict(graph, simplify_graph(graph, before, support).affinity).n_subgraphs
        assert ours <= max(3, fewest), seed
        n_cases += fewest <= 3
    assert n_cases > 2


def test_every_cause_is_true():
    n_named = 0
    for seed in range(12):
        graph = prepare(random_model(seed, 5 + seed % 30)).graph
        rng = np.random.default_rng(seed)
        types = sorted({graph.ops[i].type for i in graph.placeable})
        some = rng.choice(types, size=int(rng.integers(1, len(types) + 1)), replace=False)
        support = lacking(graph, *some)
        if seed % 3 == 0:
            able = {op.name for op in graph if op.type != types[0]}
            support = {"ACC": support["ACC"], "NPX": able, "CPU": support["CPU"]}
        cause = simplify_graph(graph, first_able(graph, support), support).cause
        if cause.ops:
            support[cause.device] = support[cause.device] | set(cause.ops)
            after = predict(graph, first_able(graph, support))
            assert after.n_subgraphs == cause.n_without, cause.text
            n_named += 1
    assert n_named > 6


def test_a_choice_is_a_cause_too():
    graph = prepare(diamond()).graph
    affinity = Affinity.from_graph(graph, {**Affinity.on_one(graph, "A"), "right": "B"})
    found = simplify_graph(graph, affinity, {d: {op.name for op in graph} for d in "AB"})
    assert found.cause.text == (
        "3 subgraphs: 1 op that A can run is elsewhere ('right'), and HETERO cuts 3 "
        "connected ops of A into 2, because of a cycle. On A, there would be 1 subgraph."
    )
    assert found.best.moved in {("right",), ("join",)}


def test_parts_that_nothing_connects(core):
    graph = prepare(two_parts()).graph
    support = {"A": {op.name for op in graph}}
    found = simplify_graph(graph, Affinity.on_one(graph, "A"), support)
    assert found.verdict == "2 subgraphs: the model consists of 2 parts that no tensor connects."
    # Parts without ops are parts.
    assert found.verdict[:-1] in str(hl.simplify(passed_through(2), "HETERO:ACC,CPU", core=core))


def test_where_nothing_helps_it_says_so_and_shows_the_front():
    graph = prepare(chain(*"abcdefgh")).graph  # Relu, Sigmoid, Tanh, Abs twice
    support = lacking(graph, "Sigmoid", "Abs")
    before = first_able(graph, support)
    found = simplify_graph(graph, before, support, keep=1.0)
    assert found.best is None
    assert found.affinity == before
    assert "No change that keeps 100% of the work where it is makes them fewer." in found.verdict
    assert found.summary["n_subgraphs"].min() < predict(graph, before).n_subgraphs
    everything = simplify_graph(graph, before, support, keep=0.0)
    assert predict(graph, everything.affinity).n_subgraphs == 1


def test_a_state_moves_whole_or_not_at_all():
    graph = prepare(stateful()).graph
    path = [graph.ops[i].name for i in graph.stateful_paths[0]]
    for lacks in ("Add", "ReadValue", "Assign"):
        support = lacking(graph, lacks)
        found = simplify_graph(graph, first_able(graph, support), support, keep=0.0)
        for affinity in (found.affinity, *(r.affinity for r in found.remedies)):
            assert len({affinity[op] for op in path}) == 1
            assert all(op in support[affinity[op]] for op in path)


def test_what_is_compiled_whole(core):
    found = hl.simplify(hl.load(dynamic_inside()), "HETERO:ACC,CPU", core=core)
    assert found.cause.text.startswith("1 subgraph")
    model = hl.load(chain(*"abc"))
    assert hl.simplify(model, "CPU", core=core).verdict == (
        "1 subgraph: CPU runs the whole model, without HETERO."
    )


@pytest.mark.parametrize("keep", [1.5, -0.1, float("nan"), "half", True])
def test_bad_keep(keep, core):
    with pytest.raises(ArgumentError, match="keep"):
        hl.simplify(hl.load(chain(*"abc")), "HETERO:ACC,CPU", keep, core=core)


def test_no_change_cuts_through_a_state():
    n_states = 0
    for seed in range(4):
        graph = random_graph(random.Random(seed), 24, state=True)
        types = sorted({graph.ops[i].type for i in graph.placeable} - {"ReadValue", "Assign"})
        support = lacking(graph, types[seed % len(types)])
        found = simplify_graph(graph, first_able(graph, support), support, keep=0.0)
        for change in found.remedies[:-1]:
            subgraph_of = predict(graph, change.affinity).subgraph_of
            for path in graph.stateful_paths:
                homes = {subgraph_of[graph.ops[i].name] for i in path}
                assert len(homes) == 1
                n_states += 1
    assert n_states > 5


def test_with_costs_the_work_that_moves_is_a_share_of_the_time():
    """Relu a … h on ACC, but Sigmoid on CPU: what costs nothing is no work, less than nothing."""
    graph = prepare(chain(*"abcdefgh")).graph  # Relu, Sigmoid, Tanh, Abs twice
    support = lacking(graph, "Sigmoid", "Abs")
    before = first_able(graph, support)
    times = dict(zip("abcdefgh", [8.0, 4.0, 0.0, 2.0, 0.0, 1.0, 4.0, 1.0], strict=True))
    costs = flat_costs(graph, times, lacks={"Sigmoid", "Abs"})
    found = simplify_graph(graph, before, support, costs=costs)
    assert found.best is not None
    for change in found.remedies:
        moved_us = sum(times[op] for op in change.moved)
        assert change.work_moved == pytest.approx(moved_us / sum(times.values()))
    assert "% of the predicted time) to " in found.verdict
    assert "% of the work) to " in simplify_graph(graph, before, support).verdict
    assert found.predicted_us == tuple(costs.predict_us(r.affinity) for r in found.remedies)
