"""Every odd model is answered right, or with a sentence; the rest is in tests.proof.zoo."""

from __future__ import annotations

import re

import openvino as ov
import pytest
from counting_core import core_with_acc
from odd_models import ODD_MODELS, RANDOM_MODELS, SHAPES, Twice

import hetero_lab as hl
from hetero_lab.model.read import input_name, prepare

# Of batches, blocks, and outputs that cannot be compared.
pytestmark = pytest.mark.filterwarnings("ignore::hetero_lab.errors.HeteroLabWarning")
SPLIT = "HETERO:ACC,CPU"
QUICK = {"iterations": 2, "warmup": 0, "progress": False}
# What OpenVINO 2026.4.1, or the lab, may refuse to run: a part of the sentence.
_NO_ARRAY = "give|Give|Add a conversion"
REFUSED = {
    "state of i64": "CPU plugin does not support i64",
    "state of the last input": "would be torn",
    "state in a body": "doesn't have sibling output",
    "text packed": "StaticMemory object cannot be created for string data",
    "in u4": _NO_ARRAY,
    "in i4": _NO_ARRAY,
    "in nf4": _NO_ARRAY,
    "Unique": "shapes are not known before running",
    "weights of i8": r"crashes \(SIGFPE\)",  # in bf16, on a CPU with AVX-512 for it but no AMX
    **dict.fromkeys(("unused text", "text passed on", "text unpacked"), "element type string"),
}


@pytest.fixture(scope="module")
def odd_core():
    core = core_with_acc(unsupported={"Relu"})
    core.add_extension(Twice)
    return core


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_asked_for(name):
    with pytest.raises(hl.HeteroLabError, match="shapes="):
        hl.load(ODD_MODELS[name]())


@pytest.mark.parametrize("name", ODD_MODELS)
def test_an_odd_model_is_placed(odd_core, name):
    built = ODD_MODELS[name]()
    model = hl.load(built, SHAPES.get(name))
    assert [input_name(port) for port in model.inputs] == [input_name(p) for p in built.inputs]
    assert len(model.outputs) == len(built.outputs)
    affinity = hl.Affinity.automatic(model, SPLIT, core=odd_core)
    assert {affinity[node.name] for node in affinity.nodes if node.type == "Relu"} <= {"CPU"}
    found = hl.partition(model, affinity, core=odd_core)
    graph = prepare(model).graph
    placeable = sorted(graph.ops[index].name for index in graph.placeable)
    assert sorted(op for subgraph in found.subgraphs for op in subgraph.ops) == placeable
    remedies = hl.lint(model, affinity, core=odd_core)
    assert {op for ops in remedies["ops"] for op in ops} <= set(affinity)
    assert sorted(hl.blocks(model)["op"]) == placeable


@pytest.mark.parametrize("name", ["in bf16", "in f8e4m3", "out f8e5m2", "out u4", "out nf4"])
def test_nothing_is_wrong_where_few_bits_are_rounded(odd_core, name):
    model = hl.load(ODD_MODELS[name]())
    found = hl.find_wrong(model, SPLIT, core=odd_core, progress=False)
    assert found.kind not in ("op", "combination"), found


# OpenVINO 2026.4.1's CPU plugin may write beyond tensors of u1, and end the process.
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ODD_MODELS if "u1" not in name])
def test_an_odd_model_is_profiled(odd_core, name, monkeypatch):
    if "SIG" in REFUSED.get(name, ""):
        monkeypatch.delenv("HETERO_LAB_GUARD")
    model = hl.load(ODD_MODELS[name](), SHAPES.get(name))
    bf16 = odd_core.get_property("CPU", "INFERENCE_PRECISION_HINT") == ov.Type.bf16  # by default
    for placement in ("CPU", SPLIT):
        try:
            found = hl.profile(model, placement, core=odd_core, **QUICK)
        except hl.HeteroLabError as error:
            assert re.search(REFUSED.get(name, "none"), str(error)), error
            continue
        assert hl.views.placement_graph(found).layout.title.text
        for agreement in found.agreement:
            if name in RANDOM_MODELS and agreement.output != "sure":
                assert agreement.verdict in ("undecided", "equal")
            elif bf16 and agreement.verdict == "rounding":
                assert agreement.relative_error < 2**-6
            elif agreement.verdict != "undecided":  # nothing but NaN, or no value at all
                assert (agreement.verdict, agreement.relative_error < 1e-3) == ("equal", True)
