"""The rule about cut quantisation on hand-made graphs; tests/runtime has it on the runtime."""

from __future__ import annotations

import pytest
from lint.test_lint import costs_of, on, problems
from planning.random_costs import GraphMaker

from hetero_lab.lint.quantized_blocks import quantized_blocks
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.planning.cost_model import CostModel


def quantised_chain(n: int = 3) -> OpGraph:
    """Return n times quantiser → MaxPool → convolution, with weights in i8, between two Tanhs."""
    maker = GraphMaker()
    here = maker.add("Tanh", [maker.add("Parameter", name="x")], name="first")
    for number in range(n):
        here = maker.add("FakeQuantize", [here], name=f"quantise{number}")
        here = maker.add("MaxPool", [here], name=f"pool{number}")
        small = maker.add("Constant", element_type="i8", n_bytes=25)
        weights = maker.add("Convert", [small])
        here = maker.add("Convolution", [here, weights], name=f"conv{number}")
    maker.add("Tanh", [here], name="last")
    return maker.graph()


def cuts(graph: OpGraph, away: set[str], costs: CostModel | None = None):
    found = problems(graph, on(graph, **dict.fromkeys(away, "B")), costs)
    return [finding for finding in found if finding.rule == "cut-quantization"]


def test_a_block_is_the_op_with_its_quantiser_and_what_is_between():
    graph = quantised_chain(1)
    (block,) = quantized_blocks(graph)
    assert [graph.ops[i].name for i in (*block.quantizers, *block.between, block.op)] == [
        "quantise0", "pool0", "conv0",
    ]  # fmt: skip
    assert block.origins == ()


@pytest.mark.parametrize(
    ("away", "remedies"),
    [
        ({"first"}, []),
        ({"first", "quantise0"}, [{"quantise0": "A"}]),
        ({"first", "quantise0", "pool0"}, [{"quantise0": "A", "pool0": "A"}]),
        ({"first", "quantise0", "pool0", "conv0"}, []),
        ({"pool1"}, [{"pool1": "A"}]),
        ({"last"}, []),
    ],
)
def test_where_a_cut_loses_int8(away, remedies):
    found = cuts(quantised_chain(), away)
    assert [dict(finding.remedy) for finding in found] == remedies
    for finding in found:
        assert finding.severity == "warning"
        assert finding.cost_us is None
        assert "would run in int8" in finding.finding


def test_without_small_weights_nothing_is_lost():
    maker = GraphMaker()
    quantised = maker.add("FakeQuantize", [maker.add("Parameter")], name="quantise")
    maker.add("Convolution", [quantised, maker.add("Constant")], name="conv")
    graph = maker.graph()
    assert quantized_blocks(graph) == ()
    assert cuts(graph, {"quantise"}) == []


def test_with_costs_it_is_what_the_prediction_saves():
    graph = quantised_chain()
    costs = costs_of(graph, {"conv0": (9.0, 1.0)})
    (found,) = cuts(graph, {"quantise1", "pool1"}, costs)
    # Two of three subgraphs and both hand-overs go.
    assert dict(found.remedy) == {"quantise1": "A", "pool1": "A"}
    assert found.cost_us == pytest.approx(2 * 5.0 + 2 * 2.0)
