from __future__ import annotations

import pytest
from small_models import chain, convolutions, diamond

import hetero_lab as hl
from hetero_lab.errors import AffinityError
from hetero_lab.lint.quantized_blocks import quantized_blocks
from hetero_lab.model.read import prepare


@pytest.fixture(scope="module")
def f32():
    return hl.load("digits_inception")


@pytest.fixture(scope="module")
def int8(f32):
    examples = hl.dataset("digits").calibration
    return hl.quantize(f32, examples, subset_size=4, progress=False)


def test_ops_keep_their_device_and_quantisers_go_with_their_users(f32, int8, core):
    original = hl.Affinity.uniform(f32, "CPU", core=core).fix(
        patterns={"^mixed2/": "ACC", "^head": "ACC"}, core=core
    )
    carried = original.carried_to(int8)
    graph = prepare(int8).graph
    carried.check_model(graph)
    known = set(original.ops) & set(carried.ops)
    assert len(known) > 60
    assert all(carried[name] == original[name] for name in known)
    # A quantiser with users on both devices can be with one of them only.
    for block in quantized_blocks(graph):
        for index in block.quantizers:
            users = {carried[graph.ops[use.index].name] for use in graph.consumers[index]}
            assert carried[graph.ops[index].name] in users


def test_the_same_model_gets_the_same_affinity(f32, core):
    affinity = hl.Affinity.automatic(f32, "HETERO:ACC,CPU", core=core).fix(
        types={"Concat": "CPU"}, core=core
    )
    assert affinity.carried_to(f32) == affinity


def test_the_way_back_leaves_the_new_ops_out(f32, int8, core):
    affinity = hl.Affinity.uniform(int8, "CPU", core=core).fix(
        patterns={"mixed3": "ACC"}, core=core
    )
    back = affinity.carried_to(f32)
    assert set(back) == set(prepare(f32).graph.index_of)
    assert back["mixed3/concat"] == "ACC"
    assert back["mixed1/concat"] == "CPU"


def test_another_model_is_refused(f32, core):
    affinity = hl.Affinity.uniform(f32, "CPU", core=core)
    for other in (chain("a", "b"), diamond(), convolutions()):
        with pytest.raises(AffinityError, match=r"belongs to another model: it knows 0 of \d ops"):
            affinity.carried_to(other)
