from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hand_costs import flat_costs
from views.hand_made import counter, small_graph, small_profile

import hetero_lab as hl
from hetero_lab.costs.cost_model import LostFusion, ValidationRow
from hetero_lab.costs.objective import Unit
from hetero_lab.errors import MeasurementError, PlanError
from hetero_lab.model.read import prepare

ROWS = (ValidationRow("a", 100.0, 103.0), ValidationRow("b", 50.0, 47.0))


def inception_costs():
    """Return validated costs of the sample, with a unit for what is fused and a price of that."""
    graph = prepare("digits_inception").graph
    costs = flat_costs(graph, lacks={"Softmax"}, validation_rows=ROWS)
    pairs = [
        (op.name, graph.ops[use.index].name)
        for op in graph for use in graph.consumers[op.index]
        if op.type == "Convolution" and use.index in graph.placeable
    ]  # fmt: skip
    return replace(costs, lost_fusion=tuple(LostFusion(*p, (0, 0), (4, 2)) for p in pairs))


def test_a_gain_is_the_difference_of_two_predictions(monkeypatch):
    monkeypatch.setattr("hetero_lab.search.hotspots._MOVING_S", 600.0)  # also on a busy machine
    costs = inception_costs()
    found = hl.hotspots(costs)
    assert [row.us for row in found.rows] == sorted((r.us for r in found.rows), reverse=True)
    gains = [row.gain.us for row in found.priced]
    assert len(gains) > 80
    assert gains == sorted(gains, reverse=True)
    before = costs.predict_us(found.affinity)
    for row in found.rows:
        if row.gain is None:
            assert row.device == "CPU"  # the first device cannot run it
            continue
        moved = found.affinity.fix(ops=dict.fromkeys(row.ops, row.move_to))
        assert row.gain.us == before - costs.predict_us(moved)
        margin = costs.predictor(found.affinity).margin_us(costs.predictor(moved))
        assert row.gain.low_us == pytest.approx(row.gain.us - margin)
    monkeypatch.setattr("hetero_lab.search.hotspots._MOVING_S", 1e-9)
    assert any("for lack of time" in note for note in hl.hotspots(costs).notes)
    frame = found.summary
    assert frame["share"].sum() == pytest.approx(1.0)
    assert frame["cumulative_share"].iloc[-1] == pytest.approx(1.0)
    assert {"ACC_predicted_us", "CPU_predicted_us", "move_to"} <= {*frame.columns}


def test_an_op_has_one_predicted_time_on_its_device():
    costs = flat_costs(small_graph(), op_us=(125.49977, 1.0))  # 125 µs, or 125.500: 126 µs
    for row in hl.hotspots(costs).rows:
        assert row.us == row.predicted_us[row.device]


def test_where_no_move_gains_none_is_named():
    slower = dict.fromkeys(("matmul", "relu", "add"), (1.0, 50.0))
    found = hl.hotspots(flat_costs(small_graph(), slower, lacks={"Softmax"}))
    assert max(row.gain.us for row in found.rows if row.gain) < 0.0
    assert found.verdict.endswith("Moving one group alone gains nothing.")


def test_costs_without_validation_know_no_interval():
    found = hl.hotspots(flat_costs(small_graph()))
    assert {row.gain.high_us for row in found.rows if row.gain} == {math.inf}
    assert "not validated" in found.notes[-1]


def test_fused_ops_are_part_of_their_group_and_times_add_up():
    profile = small_profile()
    found = hl.hotspots(profile)
    assert [(row.name, row.ops, row.us) for row in found.rows] == [
        ("matmul", ("matmul", "relu"), 10.0),
        ("softmax", ("softmax",), 5.0),
        ("add", ("add",), 3.0),
    ]
    assert found.total_us == profile.tables["summary"]["ops_us"].iloc[0]
    assert found.verdict == "3 of 4 ops, in 2 groups, take 80 % of the time of all ops."
    assert "gain_us" not in found.summary
    assert "<th>" in found._repr_html_()
    priced = hl.hotspots(profile, flat_costs(profile.graph, validation_rows=ROWS))
    assert priced.rows[0].predicted_us == {"ACC": 2.0, "CPU": 6.0}
    assert priced.rows[0].gain is not None
    assert "[90 %]" in str(priced)


def timed(**times_us):
    """Return a profile of four ops with these times."""
    on = {"softmax": (1, "CPU"), "add": (2, "ACC")}
    rows = [
        counter(*on.get(op, (0, "ACC")), "op", op, us, precision="f32")
        for op, us in times_us.items()
    ]
    return small_profile(counters=tuple(rows))


@pytest.mark.parametrize(
    ("times_us", "n_groups"),
    [
        ((8.0, 1.5, 0.5, 0.0), 1),  # just 80 %
        ((7.5, 1.5, 1.0, 0.0), 2),
        ((4.0, 3.9, 1.1, 1.0), 3),
        ((7.0, 1.0, 1.0, 1.0), 2),
    ],
)
def test_how_few_groups_take_most_of_the_time(times_us, n_groups):
    names = ("matmul", "relu", "softmax", "add")
    found = hl.hotspots(timed(**dict(zip(names, times_us, strict=True))))
    groups = "1 group" if n_groups == 1 else f"{n_groups} groups"
    assert found.verdict == f"{n_groups} of 4 ops, in {groups}, take 80 % of the time of all ops."


def test_a_table_says_whether_its_times_are_measured_or_predicted():
    measured = hl.hotspots(timed(matmul=8.0, relu=1.5, softmax=0.5, add=0.0)).summary
    assert list(measured["time_us"]) == [8.0, 1.5, 0.5, 0.0]
    assert list(measured["share"]) == pytest.approx([0.8, 0.15, 0.05, 0.0])
    assert list(measured["cumulative_share"]) == pytest.approx([0.8, 0.95, 1.0, 1.0])
    assert not any("predicted" in column for column in measured)
    costs = flat_costs(small_graph(), {"matmul": 8.0, "relu": 4.0}, lacks={"Softmax"})
    predicted = hl.hotspots(costs)
    assert "time_us" not in predicted.summary
    assert list(predicted.summary["predicted_us"]) == [8.0, 4.0, 3.0, 1.0]
    assert list(predicted.summary["device"]) == ["ACC", "ACC", "CPU", "ACC"]
    assert list(predicted.summary["ACC_predicted_us"])[:2] == [8.0, 4.0]
    assert predicted.summary["ACC_predicted_us"].isna().tolist() == [False, False, True, False]
    assert "of the predicted time of all ops" in predicted.verdict


def test_times_elsewhere_are_those_of_the_same_ops_by_themselves():
    """Where a device fuses more into the op, or runs a part of it elsewhere, they are not."""
    profile = small_profile()
    rows = {row.name: row for row in hl.hotspots(profile).rows}
    assert rows["matmul"].times_us == {"ACC": 10.0}
    assert rows["softmax"].times_us == {"CPU": 5.0}
    with_relu = flat_costs(profile.graph, {"softmax": (1.0, 2.0)}, validation_rows=ROWS)
    priced = {row.name: row for row in hl.hotspots(profile, with_relu).rows}
    assert priced["softmax"].predicted_us == {"ACC": 1.0, "CPU": 2.0}
    assert (priced["softmax"].device, priced["softmax"].move_to) == ("CPU", "ACC")


def test_the_text_shows_the_slowest_and_counts_the_rest():
    said = repr(hl.hotspots(inception_costs())).splitlines()
    assert said[-1].startswith("… ")
    assert int(said[-1].split()[1]) == len(hl.hotspots(inception_costs()).rows) - 10
    assert "more" not in repr(hl.hotspots(small_profile()))


def test_real_counters_add_up(tmp_path):
    hl.emulate("ACC", unsupported={"Softmax"})
    placements, quick = ["CPU", "HETERO:ACC,CPU"], {"isolate": False, "progress": False}
    sweep = hl.sweep("digits_inception", placements, turns=2, **quick)
    fastest = sweep.ranked.rows[0].profile
    found = hl.hotspots(sweep)
    assert found.total_us == pytest.approx(fastest.tables["summary"]["ops_us"].iloc[0])
    named = [op for row in found.rows for op in row.ops]
    assert sorted(named) == sorted(fastest.affinity.ops)
    assert any({"ACC", "CPU"} == {*row.times_us} for row in found.rows)
    found.to_csv(tmp_path / "hotspots.csv")
    assert (tmp_path / "hotspots.csv").read_text().startswith('"op","op_types"')


def test_blocks_are_rows():
    graph = prepare("digits_inception").graph
    units = tuple(Unit((graph.ops[i].name,), (1.0, 1.0)) for i in graph.placeable)
    costs = replace(flat_costs(graph, validation_rows=ROWS), units=units)
    found = hl.hotspots(costs, by="block")
    listed = hl.blocks("digits_inception")
    sizes = listed["block"].value_counts()
    own = {row.name: len(row.ops) for row in found.rows if row.name.startswith("block ")}
    assert own == {f"block {number}": sizes[number] for number in (0, 1)}
    assert found.total_us == len(graph.placeable)


def test_wrong_arguments():
    with pytest.raises(MeasurementError, match="counters=True"):
        hl.hotspots(small_profile(counters=()))
    with pytest.raises(PlanError, match="another model"):
        hl.hotspots(small_profile(), inception_costs())


def test_where_the_latency_goes_is_said_only_if_the_counters_tell():
    said = str(small_profile())
    assert "Cause:      85 µs of 103 µs are spent at 2 boundaries: reorders there 3 µs, " in said
    busy = small_profile(counters=(*small_profile().counters, *small_profile().counters[:1] * 20))
    assert "Caution:    The times of ops add up to" in str(busy)
    assert "Cause:" not in str(busy)
    assert "take them as shares" in hl.hotspots(busy).notes[0]
    figure = hl.views.placement_graph(busy)
    assert "more than the latency" in figure.layout.title.subtitle.text.replace("<br>", " ")
