from __future__ import annotations

import pytest

import hetero_lab as hl
from hetero_lab.model.blocks import find_blocks
from hetero_lab.model.read import prepare


@pytest.fixture(scope="module")
def digits():
    hl.emulate("ACC")
    return prepare("digits_inception")


def test_each_block_goes_where_it_is_sent(digits):
    found = find_blocks(digits.graph)
    affinity = hl.Affinity.by_block(digits, {0: "ACC", "1": "CPU"})
    for op in digits.graph:
        # What is before goes with the first block, what is after with the last.
        assert affinity[op.name] == ("ACC" if found.of_op[op.index] <= 0 else "CPU")


def test_before_and_after_may_go_elsewhere(digits):
    found = find_blocks(digits.graph)
    affinity = hl.Affinity.by_block(digits, {"0 - 1": "ACC", "before": "CPU", "after": "CPU"})
    for op in digits.graph:
        assert affinity[op.name] == ("ACC" if 0 <= found.of_op[op.index] <= 1 else "CPU")
    assert hl.partition(digits, affinity).n_subgraphs == 3


def test_a_cut_after_each_block_in_both_directions(digits):
    cuts = hl.block_cuts(digits, ["ACC", "CPU"])
    assert [cut.label for cut in cuts] == ["0 ACC, 1 CPU", "0 CPU, 1 ACC"]
    assert cuts[0].affinity == hl.Affinity.by_block(digits, {0: "ACC", 1: "CPU"})
    assert hl.partition(digits, cuts[0].affinity).n_subgraphs == 2
    assert hl.block_cuts(digits, ["ACC", "CPU"], after=[]) == []
