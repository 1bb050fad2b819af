from __future__ import annotations

import openvino as ov
import pytest

from hetero_lab.model.read import prepare
from tests.proof.single_ops import draw
from tests.proof.support_agreement import counted, of_generated


def test_models_of_one_operator_can_be_read_and_are_drawn_alike():

    for seed in range(20):
        single = draw(seed)
        assert single.onnx() == draw(seed).onnx()
        model = prepare(ov.Core().read_model(single.onnx())).model
        assert len(model.outputs) == single.n_outputs


@pytest.mark.network
@pytest.mark.parametrize("from_file", [False, True])
def test_tables_of_cpu_mostly_agree_with_the_cpu_plugin(from_file):
    found, _ = of_generated(60, seed=0, from_file=from_file)
    got = counted(found)
    assert got.n_answered > 30
    assert got.n_agreed / got.n_answered > 0.8
    assert got.false_yes == 0
