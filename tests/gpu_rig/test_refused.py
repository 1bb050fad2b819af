"""Models whose every op GPU claims, and which it refuses to compile all the same.

The plugin's own checks refuse them, so no hardware is at fault; but another generation of GPUs may
take other kernels, so these run on the rig only.
"""

import openvino as ov
import pytest
import rig
from raw_openvino import (
    F32,
    assert_close,
    compile_and_run,
    depthwise_windows_model,
    if_two_outputs_model,
    label,
    norm_to_int_model,
    one_op_models,
    select_rank6_model,
    shuffle_3d_model,
    square_int_model,
    subgraph_devices,
    unclaimed,
)

pytestmark = pytest.mark.skipif(not rig.is_running(), reason="a real GPU may accept these")

ONE_OP = [
    (square_int_model, "power:square", "not supported for integer type"),
    (shuffle_3d_model, "shufflechannels:shuffle", "No layout format available"),
    (select_rank6_model, "select:select", "No layout format available"),
    (if_two_outputs_model, "if:branch.out1", "hasn't been found in primitive_ids map"),
]
TOGETHER = [
    (norm_to_int_model, "mvn:norm", "Failed to select implementation"),
    (depthwise_windows_model, "convolution:depthwise", "Weights/ifm mismatch"),
]


@pytest.fixture(scope="module")
def core():
    return ov.Core()


@pytest.mark.parametrize(("make", "culprit", "reason"), ONE_OP + TOGETHER)
@pytest.mark.parametrize("device", ["GPU", "HETERO:GPU,CPU"])
def test_every_op_is_claimed_and_the_compile_throws(core, make, culprit, reason, device):
    assert unclaimed(core, make()) == []
    core.compile_model(make(), "CPU", F32)
    with pytest.raises(RuntimeError) as error:
        core.compile_model(label(make(), "GPU") if "HETERO" in device else make(), device, F32)
    assert culprit in str(error.value)
    assert reason in str(error.value)


@pytest.mark.parametrize("make", [make for make, _, _ in TOGETHER])
def test_each_op_alone_compiles(core, make):
    alone = dict(one_op_models(make()))
    assert len(alone) > 1
    for model in alone.values():
        assert unclaimed(core, model) == []
        core.compile_model(model, "GPU", F32)


def test_one_op_elsewhere_is_enough_for_the_norm(core):
    _, expected = compile_and_run(core, norm_to_int_model(), "CPU")
    labelled = label(norm_to_int_model(), "GPU", {"to_int": "CPU"})
    compiled, got = compile_and_run(core, labelled, "HETERO:GPU,CPU")
    assert subgraph_devices(compiled) == ["GPU", "CPU"]
    assert abs(expected).max() > 5
    assert (abs(got - expected) <= 1).all()  # 1: a value at the edge of two integers


@pytest.mark.parametrize(
    ("moved", "devices"),
    [({"x", "depthwise", "relu"}, ["CPU", "GPU"]), ({"relu"}, ["GPU", "CPU", "GPU"])],
)
def test_a_cut_between_the_two_is_enough_for_the_windows(core, moved, devices):
    _, expected = compile_and_run(core, depthwise_windows_model(), "CPU")
    labelled = label(depthwise_windows_model(), "GPU", dict.fromkeys(moved, "CPU"))
    compiled, got = compile_and_run(core, labelled, "HETERO:GPU,CPU")
    assert subgraph_devices(compiled) == devices
    assert_close(got, expected)
