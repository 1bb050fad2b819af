"""What differs between two placements, against numbers worked out by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hand_costs import costs_by_op
from html_outline import Outline
from planning.random_costs import GraphMaker, affinity_of, any_choice, random_case

from hetero_lab.costs.cost_model import BoundaryCost, CostModel, LostFusion
from hetero_lab.costs.difference import Difference, Measurement, Side, compare_placements, part_name
from hetero_lab.errors import AffinityError, MeasurementError, PlanError
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import predict


def chain_costs(middle: str = "b") -> CostModel:
    """Build x → a → b → c, in which b is faster on device B."""
    maker = GraphMaker("chain")
    at = maker.add("Parameter", name="x")
    for name, op_type in (("a", "MatMul"), (middle, "Relu"), ("c", "Add")):
        at = maker.add(op_type, [at], name=name)
    return replace(
        costs_by_op(maker.graph(), {"a": (10.0, 4.0), middle: (20.0, 5.0), "c": (6.0, None)}),
        boundaries={("A", "B"): BoundaryCost(2.0, 0.01), ("B", "A"): BoundaryCost(1.0, 0.02)},
        subgraph_us={"A": 1.0, "B": 2.0},
        constant_us=7.0,
        lost_fusion=(LostFusion("a", middle, (0.5, 0.25), (0.1, 0.2)),),
    )


def difference_of(
    costs: CostModel, before: Affinity, after: Affinity, priced: bool = True, **more
) -> Difference:
    graph = costs.graph
    return compare_placements(
        graph,
        Side("one", before, predict(graph, before)),
        Side("other", after, predict(graph, after)),
        costs if priced else None,
        **more,
    )


def chain_difference(middle: str = "b", **more) -> Difference:
    costs = replace(chain_costs(middle), spread_us=more.pop("spread_us", 0.0))
    before, after = (affinity_of(costs, (0, device, 0)) for device in (0, 1))
    return difference_of(costs, before, after, **more)


def test_the_three_rows_of_the_summary():
    summary = chain_difference().summary
    assert list(summary["placement"]) == ["before", "after", "difference"]
    assert list(summary["label"]) == ["one", "other", "after − before"]
    assert list(summary["n_subgraphs"]) == [1, 3, 2]
    assert list(summary["n_boundaries"]) == [0, 2, 2]
    assert list(summary["boundary_bytes"]) == [0, 200, 200]
    assert list(summary["n_ops_moved"]) == [0, 0, 1]
    # 7 + 36 + 1; 7 + 21 + (1 + 2 + 1) + (3 + 3) + (0.5 + 0.2)
    assert list(summary["predicted_us"]) == pytest.approx([44.0, 38.7, -5.3])
    assert "measured_us" not in summary


def test_kinds_and_parts_by_hand():
    found = chain_difference()
    kinds = found.kinds.set_index("kind")
    assert kinds["difference_us"].to_dict() == pytest.approx(
        {"constant": 0, "spread memory": 0, "ops": -15, "lost fusion": 0.7, "subgraphs": 3,
         "boundaries": 6, "total": -5.3}
    )  # fmt: skip
    assert kinds.loc["ops", ["before_us", "after_us"]].tolist() == [36.0, 21.0]
    rows = {(p.kind, p.name, p.before, p.after): p.difference_us for p in found.parts.itertuples()}
    assert rows == {
        ("ops", "b", "A", "B"): -15.0,
        ("boundaries", "a", "A", "B"): 3.0,
        ("boundaries", "b", "B", "A"): 3.0,
        ("subgraphs", "", "B", "B"): 2.0,
        ("subgraphs", "", "A", "A"): 1.0,
        ("lost fusion", "a\nb", "", ""): 0.7,
    }
    assert found.parts["difference_us"].tolist() == [-15.0, 3.0, 3.0, 2.0, 1.0, 0.7]
    assert found.parts.loc[0, "name"] == "b"  # rows are numbered as they are shown
    assert [part_name(part) for part in found.parts.itertuples()] == [
        "'b' on B instead of A", "'a' crossing from A to B", "'b' crossing from B to A",
        "subgraphs on B", "subgraphs on A", "fusion of 'a' and 'b'",
    ]  # fmt: skip
    names = [part_name(part) for part in chain_difference(spread_us=4.0).parts.itertuples()]
    assert "memory spread over subgraphs" in names
    assert found.predicted_us == -5.3


def test_what_moves_appears_and_vanishes():
    found = chain_difference()
    assert found.ops.to_dict("records") == [
        {"op": "b", "op_type": "Relu", "before": "A", "after": "B", "before_us": 20.0,
         "after_us": 5.0, "difference_us": -15.0}
    ]  # fmt: skip
    assert found.devices.to_numpy().tolist() == [["A", 3, 2, 0, 1], ["B", 0, 1, 1, 0]]
    assert found.subgraphs.to_numpy().tolist() == [
        ["gone", "A", 3, "a\nb\nc"], ["new", "A", 1, "a"], ["new", "B", 1, "b"],
        ["new", "A", 1, "c"],
    ]  # fmt: skip
    assert found.boundaries.to_numpy().tolist() == [
        ["a", "A", "B", 100, "new", 0, 1, 3.0], ["b", "B", "A", 100, "new", 0, 1, 3.0],
    ]  # fmt: skip
    back = difference_of(chain_costs(), found.after.affinity, found.before.affinity)
    assert set(back.boundaries["change"]) == {"gone"}
    assert back.predicted_us == 5.3


def test_sentences():
    assert repr(chain_difference()).splitlines() == [
        "Before is 'one', after is 'other'.",
        "1 of 3 ops moves: 1 from A to B (1 Relu).",
        "After has 3 subgraphs and 2 boundaries with 200 bytes; before has 1 subgraph and no "
        "boundary.",
        "After is predicted 5.30 µs faster (44.0 → 38.7 µs): ops −15.0 µs, boundaries +6.00 µs, "
        "subgraphs +3.00 µs, lost fusion +0.7000 µs.",
        "Largest parts: 'b' on B instead of A −15.0 µs; 'a' crossing from A to B +3.00 µs; "
        "'b' crossing from B to A +3.00 µs; 3 smaller parts.",
    ]


def test_sentences_tell_equal_names_apart_and_say_how_far_they_may_be_off():
    found = chain_difference()
    after = replace(found.after, label=found.before.label)
    alike = replace(found, after=after)
    assert repr(alike).startswith("Both are called 'one': before is the first, after the second.")
    sure, unsure = (replace(found, margin_us=us) for us in (2.0, 8.0))
    assert "After is predicted 5.30 ± 2.00 µs faster (44.0 → 38.7 µs)" in repr(sure)
    assert "After is predicted 5.30 ± 8.00 µs faster, too little to tell them apart" in repr(unsure)


def test_equal_placements_differ_in_nothing():
    costs = chain_costs()
    same = affinity_of(costs, (0, 0, 0))
    found = difference_of(costs, same, same)
    assert found.predicted_us == 0
    assert [len(t) for t in (found.ops, found.boundaries, found.subgraphs, found.parts)] == [0] * 4
    assert "No op moves" in repr(found)
    assert "Both are predicted to take 44.0 µs." in repr(found)


MEASURED = Measurement(45.0, (44.0, 46.0), 39.0, (38.0, 40.0), -6.0, -7.5, -4.5, 36.0, 20.0)


def test_measured_beside_predicted():
    found = chain_difference(measurement=MEASURED)
    ends = ["measured_ci95_low_us", "measured_ci95_high_us"]
    assert list(found.measured) == ["part", "predicted_us", "measured_us", *ends]
    table = found.measured.set_index("part")
    # Of the prediction, −15 + 0.7 are times of ops and 3 + 6 what is between them.
    assert table["predicted_us"].to_dict() == pytest.approx(
        {"ops": -14.3, "rest": 9.0, "latency": -5.3}
    )
    assert table["measured_us"].to_dict() == {"ops": -16.0, "rest": 10.0, "latency": -6.0}
    assert table.loc["latency", ends].tolist() == [-7.5, -4.5]
    assert found.summary["measured_us"].tolist() == [45.0, 39.0, -6.0]
    said = repr(found)
    assert "After was measured 6.00 µs faster (95 % interval −7.50 µs to −4.50 µs" in said
    assert "The prediction lies within that interval." in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"low_us": -13.0, "high_us": 1.0}, "After looks 6.00 µs faster, within chance ("),
        ({"low_us": -45.0, "high_us": float("inf")}, "too few turns"),
        ({"low_us": -7.0, "high_us": -5.5}, "outside that interval"),
        ({"difference_us": 6.0, "low_us": 5.0, "high_us": 7.0}, "6.00 µs slower"),
    ],
)
def test_sentences_about_measurements(changes, said):
    measured = replace(MEASURED, **changes)
    assert said in repr(chain_difference(measurement=measured))


def test_what_was_not_given_is_said():
    measured = replace(MEASURED, ops_before_us=None, ops_after_us=None)
    found = chain_difference(priced=False, measurement=measured)
    assert found.measured["part"].tolist() == ["latency"]
    assert "predicted_us" not in found.measured
    found = chain_difference(priced=False)
    for name in ("parts", "kinds", "predicted_us"):
        with pytest.raises(PlanError, match="calibrate"):
            getattr(found, name)
    with pytest.raises(MeasurementError, match="profiles="):
        _ = found.measured
    assert list(found.ops.columns) == ["op", "op_type", "before", "after"]
    assert "predicted" not in repr(found)


def test_other_models_and_devices_are_refused():
    costs, other = chain_costs(), chain_costs("z")
    mine, theirs = affinity_of(costs, (0, 0, 0)), affinity_of(other, (0, 0, 0))
    with pytest.raises(AffinityError, match="another model"):
        compare_placements(
            costs.graph,
            Side("", mine, predict(costs.graph, mine)),
            Side("", theirs, predict(other.graph, theirs)),
        )
    with pytest.raises(PlanError, match="another model"):
        compare_placements(costs.graph, *[Side("", mine, predict(costs.graph, mine))] * 2, other)
    away = Affinity.from_graph(costs.graph, lambda _: "GPU")
    with pytest.raises(PlanError, match="does not know 'GPU'"):
        difference_of(costs, mine, away)


@pytest.mark.parametrize("seed", range(12))
def test_parts_add_up_to_the_predicted_difference(seed):
    costs = random_case(seed, n_ops=20)
    rng = random.Random(seed)
    before, after = (affinity_of(costs, any_choice(costs, rng)) for _ in range(2))
    found = difference_of(costs, before, after)
    wanted = round(1000 * costs.predict_us(after)) - round(1000 * costs.predict_us(before))
    assert (1000 * found.parts["difference_us"]).round().sum() == wanted
    assert found.predicted_us == wanted / 1000.0
    kinds = found.kinds.set_index("kind")
    assert kinds["difference_us"].drop("total").sum() == pytest.approx(wanted / 1000.0)
    assert kinds.loc["total", "before_us"] == costs.predict_us(before)
    assert kinds.loc["total", "after_us"] == costs.predict_us(after)
    for kind, us in kinds["difference_us"].drop(["total", "constant"]).items():
        mine = found.parts.loc[found.parts["kind"] == kind, "difference_us"]
        assert mine.sum() == pytest.approx(us, abs=1e-9)
    # What it says of the structure is that of the partitions.
    old, new = predict(costs.graph, before), predict(costs.graph, after)
    crossings = found.boundaries["n_after"].sum() - found.boundaries["n_before"].sum()
    assert crossings == new.n_crossings - old.n_crossings
    changes = found.subgraphs["change"].value_counts()
    assert changes.get("new", 0) - changes.get("gone", 0) == new.n_subgraphs - old.n_subgraphs


def test_the_page_has_the_sentences_and_the_tables():
    found = chain_difference()
    page = Outline(found._repr_html_())
    for column in (found.summary["label"], found.parts["kind"], found.ops["op"]):
        assert set(column) <= set(page.cells)
    said = " ".join(text for texts in page.text.values() for text in texts)
    assert "Where the difference comes from" in said
    assert "Ops that move" in said
    assert all(line in said for line in repr(found).splitlines())
    costs = chain_costs("b")
    same = affinity_of(costs, (0, 0, 0))
    equal = Outline(difference_of(costs, same, same)._repr_html_())
    assert equal.tags.count("table") == 1
    assert page.tags.count("table") == 3
