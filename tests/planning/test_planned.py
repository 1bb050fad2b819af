"""hl.plan: one function for both executors."""

from __future__ import annotations

import pytest
from hand_costs import flat_costs

import hetero_lab as hl
from hetero_lab.errors import ArgumentError
from hetero_lab.model.read import prepare


@pytest.fixture(scope="module")
def model():
    """Two equal matmuls that both read the input, added up."""
    from openvino import Model, opset13 as op

    x = op.parameter([8, 8], name="x")
    one = op.matmul(x, op.constant([[1.0] * 8] * 8, dtype="f4"), False, False, name="one")
    two = op.matmul(x, op.constant([[2.0] * 8] * 8, dtype="f4"), False, False, name="two")
    return hl.load(Model([op.add(one, two, name="sum")], [x], "branches"))


@pytest.fixture(scope="module")
def costs(model):
    times = {"one": 100.0, "two": 100.0, "sum": 10.0}
    return flat_costs(prepare(model).graph, times, subgraph_us=1.0, emulated={"ACC": "CPU"})


def test_one_after_the_other_nothing_is_won_by_a_split(model, costs):
    made = hl.plan(model, costs)
    assert made.n_subgraphs == 1
    assert made.predicted_us == 211.0


def test_side_by_side_the_branches_are_split(model, costs):
    made = hl.plan(model, costs, executor="parallel")
    assert made.affinity["one"] != made.affinity["two"]
    # The later of the two branches, the hand-over, the sum.
    assert 100.0 < made.predicted_us < 130.0
    assert made.regret["greedy"] == pytest.approx(211.0 - made.predicted_us)
    assert made.emulated == {"ACC": "CPU"}


def test_arguments_of_the_other_executor_are_refused(model, costs):
    with pytest.raises(ArgumentError, match="'hetero' or 'parallel', not 'serial'"):
        hl.plan(model, costs, executor="serial")  # type: ignore[call-overload]
    for extra in ({"pin": {"one": "CPU"}}, {"memory_limit": {"ACC": 1}}):
        with pytest.raises(
            ArgumentError, match="leave objective=, memory_limit=, pin= and solver= out"
        ):
            hl.plan(model, costs, executor="parallel", **extra)
