"""Small models, labels and reads of compiled models, with openvino alone."""

import xml.etree.ElementTree as ET

import numpy as np
import openvino as ov
from openvino import opset15 as op

F32 = {"INFERENCE_PRECISION_HINT": "f32"}


def random(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def constant(values):
    return op.constant(np.asarray(values))


def f32_input(*shape):
    return op.parameter(list(shape), np.float32, name="x")


def label(model, default, exceptions=None):
    """Copy a model and set an affinity on every node; `exceptions` maps names to devices."""
    model = model.clone()
    for node in model.get_ordered_ops():
        device = (exceptions or {}).get(node.get_friendly_name(), default)
        node.get_rt_info()["affinity"] = device
    return model


def unclaimed(core, model):
    """List the nodes that the GPU does not claim to run."""
    claimed = core.query_model(model, "GPU")
    names = [node.get_friendly_name() for node in model.get_ordered_ops()]
    return [name for name in names if name not in claimed]


def compile_and_run(core, model, device, x=None):
    compiled = core.compile_model(model, device, F32)
    return compiled, compiled([random(*compiled.input(0).shape) if x is None else x])[0]


def subgraph_devices(compiled):
    """Devices of the subgraphs in execution order, from the header of the exported model."""
    header = ET.fromstring(compiled.export_model().getvalue().split(b"\n", 1)[0])
    return [node.get("device") for node in header.iter("compiled_submodel")]


def assert_close(got, expected):
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def conv_model():
    x = f32_input(1, 3, 8, 8)
    conv = op.convolution(x, random(4, 3, 3, 3), [1, 1], [1, 1], [1, 1], [1, 1], name="conv")
    return ov.Model([op.relu(conv, name="relu")], [x])


def matmul_model():
    x = f32_input(5, 16)
    return ov.Model([op.matmul(x, random(16, 7), False, False, name="matmul")], [x])


def branchy_model(size: int = 8):
    """Make conv → relu → (left, right) → concat → tail."""
    x = f32_input(1, 3, size, size)
    conv = op.convolution(x, random(4, 3, 3, 3), [1, 1], [1, 1], [1, 1], [1, 1], name="conv")
    relu = op.relu(conv, name="relu")
    left = op.convolution(relu, random(4, 4, 1, 1), [1, 1], [0, 0], [0, 0], [1, 1], name="left")
    concat = op.concat([left, op.sigmoid(relu, name="right")], 1, name="concat")
    return ov.Model([op.multiply(concat, np.float32(2), name="tail")], [x])


def inverse_model():
    """Make scale → inverse → tail; the GPU plugin has no Inverse."""
    x = f32_input(4, 4)
    inverse = op.inverse(op.multiply(x, np.float32(0.5), name="scale"), False, name="inverse")
    return ov.Model([op.multiply(inverse, np.float32(2), name="tail")], [x])


def norm_to_int_model():
    """Make a layer norm whose result becomes an integer: a combination that GPU refuses."""
    x = f32_input(2, 3, 4, 5)
    norm = op.mvn(x, constant([2, 3]), True, 1e-5, "inside_sqrt", name="norm")
    scaled = op.multiply(norm, np.float32(10), name="scale")
    return ov.Model([op.convert(scaled, "i32", name="to_int")], [x])


def depthwise_windows_model():
    """Make a depthwise 1-D convolution, then windows by a transpose of rank 7."""
    x = f32_input(1, 4, 8)
    kernels = random(4, 1, 1, 3)
    y = op.group_convolution(x, kernels, [1], [1], [1], [1], name="depthwise")
    y = op.relu(y, name="relu")
    y = op.reshape(y, constant([1, 1, 1, 2, 2, 2, 4]), False, name="to_rank7")
    y = op.transpose(y, constant([0, 1, 2, 5, 3, 4, 6]), name="windows")
    return ov.Model([op.reshape(y, constant([1, 16, 2]), False, name="back")], [x])


def square_int_model():
    x = op.parameter([2, 3], np.int32, name="x")
    return ov.Model([op.power(x, np.int32(2), name="square")], [x])


def shuffle_3d_model():
    x = f32_input(1, 4, 2, 2, 2)
    return ov.Model([op.shuffle_channels(x, 1, 2, name="shuffle")], [x])


def select_rank6_model():
    x = f32_input(1, 2, 1, 2, 1, 2)
    positive = op.greater(x, np.float32(0), name="positive")
    return ov.Model([op.select(positive, x, op.negative(x), name="select")], [x])


def if_two_outputs_model():
    condition = op.parameter([], np.bool_, name="condition")
    x = f32_input(2, 3)
    bodies = []
    for first, second in ((op.relu, op.abs), (op.tanh, op.sin)):
        inner = f32_input(2, 3)
        results = [op.result(first(inner)), op.result(second(inner))]
        bodies.append(ov.Model(results, [inner]))
    branch = op.if_op(condition)
    branch.set_then_body(bodies[0])
    branch.set_else_body(bodies[1])
    branch.set_input(x.output(0), *(body.get_parameters()[0] for body in bodies))
    outputs = [branch.set_output(*(body.results[i] for body in bodies)) for i in (0, 1)]
    branch.set_friendly_name("branch")
    return ov.Model(outputs, [condition, x])
