from __future__ import annotations

import pandas as pd
import pytest
from random_models import random_model
from views.hand_made import random_data, small_graph, small_profile

import hetero_lab as hl
from hetero_lab.errors import ArgumentError, MeasurementError
from hetero_lab.placement.partition import predict
from hetero_lab.views import graph_data as graph_words
from hetero_lab.views.graph_data import GraphNode, data_of_profile, graph_data
from hetero_lab.views.graph_drawing import draw, node_radius, width_level


def traces(figure, name):
    return [trace for trace in figure.data if trace.name == name]


def test_each_device_has_a_trace_in_its_colour():
    figure = hl.views.placement_graph(small_profile())
    (acc,), (cpu,) = traces(figure, "ACC (emulated on CPU)"), traces(figure, "CPU")
    assert (acc.marker.color, len(acc.x)) == ("#E69F00", 3)
    assert (cpu.marker.color, len(cpu.x)) == ("#0072B2", 1)
    assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0, 0, 0, 0)"
    assert "sendChartToCloud" in figure.layout.modebar.remove  # nothing uploads


def test_area_is_time_and_what_has_no_time_of_its_own_is_small():
    (acc,) = traces(hl.views.placement_graph(small_profile()), "ACC (emulated on CPU)")
    matmul, relu, add = acc.marker.size  # 10 µs, inside matmul, 3 µs
    assert (add / matmul) ** 2 == pytest.approx(0.3)
    assert relu < add
    # Without times all nodes are alike.
    (acc,) = traces(hl.views.placement_graph(small_profile(counters=())), "ACC (emulated on CPU)")
    assert len(set(acc.marker.size)) == 1
    node = GraphNode(0, "op", "a", "Relu", "CPU", 0, (), time_us=25.0)
    assert node_radius(node, 100.0) == pytest.approx(8.0)
    assert node_radius(node, None) == 6.0
    assert node_radius(node, 1e9) == 3.6


def test_width_steps_follow_the_square_root_of_bytes():
    assert [width_level(n, 100) for n in (None, 0, 4, 16, 36, 64, 100)] == [0, 0, 1, 2, 3, 4, 4]
    assert width_level(None, 0) == 0


def test_hover_tells_what_is_known_of_an_op_and_of_a_boundary():
    data = data_of_profile(small_profile())
    matmul, relu = data.nodes[1], data.nodes[2]
    assert graph_words.op_hover(matmul, data).split("<br>") == [
        "<b>matmul</b>",
        "MatMul on ACC (emulated on CPU), subgraph 0",
        "1×8 f32, 32 B",
        "10 µs, 55.6% of all ops",
        "runs in bf16",
        "inside it run relu",
    ]
    assert "runs inside matmul, which has its time" in graph_words.op_hover(relu, data)
    edge = next(edge for edge in data.edges if (edge.source, edge.target) == (4, 5))
    assert graph_words.boundary_hover(edge, data).split("<br>") == [
        "<b>boundary</b> softmax",
        "32 B",
        "from subgraph 1 on CPU",
        "to subgraph 2 on ACC (emulated on CPU)",
        "read by add",
        "reorders at it take 1 µs",
    ]


def test_labels_and_titles(monkeypatch):
    data = data_of_profile(small_profile())
    assert graph_words.node_labels(data) == {
        0: "x", 2: "MatMul\n10 µs", 3: "Relu", 4: "Softmax\n5 µs", 5: "Add\n3 µs",
        6: "probabilities",
    }  # fmt: skip
    assert graph_words.exit_labels(data) == {3: "32 B", 4: "32 B"}
    assert graph_words.box_titles(data)[0] == ("subgraph 0 · ACC · 10 µs", "0 · ACC · 10 µs")
    # A big graph names slow ops only.
    monkeypatch.setattr(graph_words, "BIG", 3)
    assert graph_words.node_labels(data) == {2: "MatMul\n10 µs", 4: "Softmax\n5 µs", 5: "Add\n3 µs"}


def test_a_placement_is_drawn_before_anything_is_measured():
    hl.emulate("ACC", unsupported={"Softmax"})
    model = hl.load("digits_inception")
    automatic = hl.Affinity.automatic(model, "HETERO:ACC,CPU")
    figure = hl.views.placement_graph(automatic, model)
    assert "predicted" in figure.layout.title.text
    (acc,) = traces(figure, "ACC (emulated on CPU)")
    again = hl.views.placement_graph("HETERO:ACC,CPU", model)
    assert again.to_json() == figure.to_json()
    # Of a model alone, all devices of the machine.
    (drawn,) = traces(hl.views.placement_graph(model), "ACC (emulated on CPU)")
    assert len(drawn.x) == len(acc.x)
    with pytest.raises(ArgumentError, match=r"no graph of a Partition, .* hetero_lab\.profile\("):
        hl.views.placement_graph(small_profile().partition)


def test_ops_are_coloured_by_their_times():
    figure = hl.views.placement_graph(small_profile(), color="time")
    times = [t.marker.color for t in figure.data if t.marker.coloraxis]
    assert times == [(10.0, 0.0, 3.0), (5.0,)]
    assert figure.layout.coloraxis.cmax == 10.0
    # The frames keep the devices' colours, and the legend explains those.
    (frame,) = [t for t in traces(figure, "CPU") if t.showlegend]
    assert frame.line.color == "rgba(0, 114, 178, 0.8)"
    for untimed in ((small_profile(counters=()),), ("CPU", random_model(3))):
        with pytest.raises(MeasurementError, match="no times to colour by"):
            hl.views.placement_graph(*untimed, color="time")


@pytest.mark.parametrize("seed", range(3))
def test_random_models_are_drawn_the_same_way_each_time(seed):
    data = random_data(seed)
    first, again = (draw(data, 1000) for _ in range(2))
    assert first.to_json() == again.to_json()
    drawn = sum(len(t.x) for t in first.data if t.name in ("A", "B"))
    assert drawn == data.n_ops


def test_a_big_graph_keeps_to_its_width():
    figure = draw(random_data(5, 250), 1000)
    low, high = figure.layout.xaxis.range
    assert high - low < 1300
    assert figure.layout.width == int(high - low) + 24  # a unit is a pixel: labels keep apart
    assert "<br>" in traces(figure, "A")[0].hovertext[0]


def rings(figure):
    """Return the ops in the rings of causes and consequences, by the name in the legend."""
    spots = {
        (x, y): index
        for trace in figure.data if trace.customdata is not None
        for x, y, index in zip(trace.x, trace.y, trace.customdata, strict=True)
    }  # fmt: skip
    graph = small_graph()
    return {
        trace.name.partition(":")[0]: [
            graph.ops[spots[spot]].name for spot in zip(trace.x, trace.y, strict=True)
        ]
        for trace in figure.data
        if trace.name and trace.name.startswith(("cause", "consequence"))
    }


def test_causes_and_consequences_are_ringed():
    graph = small_graph()
    types = [(op.name, op.type) for op in graph if op.name in ("matmul", "relu", "softmax", "add")]
    table = pd.DataFrame(types, columns=["op", "op_type"])
    table = table.assign(ACC=table["op_type"] != "Softmax", CPU=True)
    measured = small_profile()
    assert rings(hl.views.placement_graph(measured)) == {}
    assert rings(hl.views.placement_graph(measured, support=table)) == {"cause": ["softmax"]}
    along = hl.Affinity.from_graph(
        graph, {op.name: "ACC" if op.name in ("x", "matmul", "relu") else "CPU" for op in graph}
    )
    drawn = draw(graph_data(graph, along, predict(graph, along), support=table))
    assert rings(drawn) == {"cause": ["softmax"], "consequence": ["add"]}
    said = [text for trace in drawn.data for text in trace.hovertext or ()]
    assert any("ACC could run it; it is placed with" in text and "softmax" in text for text in said)
    with pytest.raises(ArgumentError, match=r"not \[1\] \(list\)"):
        hl.views.placement_graph(measured, support=[1])
