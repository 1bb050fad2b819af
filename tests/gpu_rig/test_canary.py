"""Does the GPU plugin compute the right numbers here? Judged without hetero_lab.

A GPU that is not listed is a failure, never a skip: the plugin says nothing when it finds none.
"""

import subprocess
import sys

import numpy as np
import openvino as ov
import pytest
from raw_openvino import (
    assert_close,
    branchy_model,
    compile_and_run,
    conv_model,
    inverse_model,
    label,
    matmul_model,
    subgraph_devices,
    unclaimed,
)

ACC_IS_A_SECOND_CPU = {
    "PROXY_CONFIGURATION_ALIAS": "ACC",
    "PROXY_CONFIGURATION_PRIORITY": "0",
    "PROXY_CONFIGURATION_INTERNAL_NAME": "ACC_CPU",
}


@pytest.fixture(scope="module")
def core():
    core = ov.Core()
    core.register_plugin("openvino_intel_cpu_plugin", "ACC_CPU", ACC_IS_A_SECOND_CPU)
    return core


def base_names(devices):
    return {name.split(".")[0] for name in devices}


def test_gpu_is_listed():
    assert "GPU" in base_names(ov.Core().available_devices)


def test_gpu_is_listed_in_a_child_process():
    code = "import openvino; print(*openvino.Core().available_devices)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "GPU" in base_names(done.stdout.split())


@pytest.mark.parametrize("make", [conv_model, matmul_model, branchy_model])
def test_gpu_equals_cpu(core, make):
    _, expected = compile_and_run(core, make(), "CPU")
    compiled, got = compile_and_run(core, make(), "GPU")
    assert base_names(compiled.get_property("EXECUTION_DEVICES")) == {"GPU"}
    assert_close(got, expected)


def test_hetero_splits_as_labelled_and_equals_cpu(core):
    _, expected = compile_and_run(core, branchy_model(), "CPU")
    labelled = label(branchy_model(), "GPU", {"right": "CPU"})
    compiled, got = compile_and_run(core, labelled, "HETERO:GPU,CPU")
    assert subgraph_devices(compiled) == ["GPU", "CPU", "GPU"]
    assert_close(got, expected)


def test_three_devices_at_once(core):
    _, expected = compile_and_run(core, branchy_model(), "CPU")
    labelled = label(branchy_model(), "GPU", {"right": "ACC", "concat": "CPU", "tail": "CPU"})
    compiled, got = compile_and_run(core, labelled, "HETERO:GPU,ACC,CPU")
    assert subgraph_devices(compiled) == ["GPU", "ACC", "CPU"]
    assert_close(got, expected)


def test_an_op_that_gpu_does_not_claim_falls_back(core):
    x = np.eye(4, dtype=np.float32) * 3 + 0.1
    assert unclaimed(core, inverse_model()) == ["inverse"]
    _, expected = compile_and_run(core, inverse_model(), "CPU", x)
    labelled = label(inverse_model(), "GPU", {"inverse": "CPU"})
    compiled, got = compile_and_run(core, labelled, "HETERO:GPU,CPU", x)
    assert subgraph_devices(compiled) == ["GPU", "CPU", "GPU"]
    assert_close(got, expected)
