from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings, strategies as st
from small_models import chain

import hetero_lab as hl
from hetero_lab.devices.core import scratch_core
from hetero_lab.devices.properties import check_properties
from hetero_lab.errors import PropertyError
from hetero_lab.model.read import prepare

HINT = "INFERENCE_PRECISION_HINT"
RIGHT = [
    ("INFERENCE_PRECISION_HINT", "f32"),
    ("INFERENCE_PRECISION_HINT", ov.Type.f32),
    ("INFERENCE_NUM_THREADS", 2),
    ("NUM_STREAMS", 1),
    ("NUM_STREAMS", "AUTO"),
    ("PERF_COUNT", True),
    ("PERF_COUNT", "YES"),
    ("PERFORMANCE_HINT", "LATENCY"),
    ("PERFORMANCE_HINT", ov.properties.hint.PerformanceMode.THROUGHPUT),
    ("ENABLE_CPU_PINNING", False),
    # Obeyed, though not in SUPPORTED_PROPERTIES.
    ("EXCLUSIVE_ASYNC_REQUESTS", False),
]
WRONG = [
    ("INFERENCE_PRECISION_HINT", "f33", "'f33' is not a value for INFERENCE_PRECISION_HINT"),
    ("INFERENCE_NUM_THREADS", "many", "is not a value for INFERENCE_NUM_THREADS"),
    ("INFERENCE_NUM_THREADS", 2.5, "expected a whole number, not float"),
    ("INFERENCE_NUM_THREADS", True, "expected a whole number, not bool"),
    ("INFERENCE_NUM_THREADS", None, "must be a number"),
    ("INFERENCE_NUM_THREADS", [1], "must be a number"),
    # The runtime would take these for 0, without a word.
    ("INFERENCE_NUM_THREADS", np.int64(2), "of Python"),
    ("NUM_STREAMS", np.int64(2), "of Python"),
    ("PERF_COUNT", 1, "expected True or False, not int"),
    ("PERF_COUNT", "perhaps", "expected True or False"),
    ("EXCLUSIVE_ASYNC_REQUESTS", 0, "expected True or False, not int"),
    # These are taken when they are set and refused when they are used.
    ("PERFORMANCE_HINT", "FAST", "is not a value for PERFORMANCE_HINT"),
    ("PERFORMANCE_HINT", "", "is not a value for PERFORMANCE_HINT"),
    ("EXECUTION_MODE_HINT", "slow", "is not a value for EXECUTION_MODE_HINT"),
    ("DEVICE_ID", "7", "is not a value for DEVICE_ID"),
    ("PERFORMANCE_HINT_NUM_REQUESTS", -1, "is not a value for PERFORMANCE_HINT_NUM_REQUESTS"),
]
UNKNOWN = [
    ("INFERENCE_PRECISION", "Did you mean 'INFERENCE_PRECISION_HINT'"),
    ("perf_count", "Did you mean 'PERF_COUNT'"),
    ("NO_SUCH", "is not a property of"),
    ("", "is not a property of"),
    ("FULL_DEVICE_NAME", "is read-only"),
    ("DEVICE_PROPERTIES", "is not a property of"),
    (3, "'3' is not a property of"),
]


@pytest.mark.parametrize("device", ["CPU", "ACC"])
@pytest.mark.parametrize(("key", "value"), RIGHT)
def test_what_is_right_is_returned(core, device, key, value):
    assert check_properties(device, {key: value}, core=core) == {key: value}


@pytest.mark.parametrize("device", ["CPU", "ACC"])
@pytest.mark.parametrize(("key", "value", "says"), WRONG)
def test_a_wrong_value_is_named(core, device, key, value, says):
    with pytest.raises(PropertyError, match=re.escape(says)) as caught:
        check_properties(device, {key: value}, core=core)
    assert f"{key} of {device}" in str(caught.value)


@pytest.mark.parametrize("device", ["CPU", "ACC"])
@pytest.mark.parametrize(
    ("asked", "capability"),
    [
        *((asked, "FP16") for asked in ("f16", "FP16", ov.Type.f16)),
        *((asked, "BF16") for asked in ("bf16", "BF16", ov.Type.bf16)),
    ],
)
def test_a_precision_that_the_device_lacks_is_refused(core, device, asked, capability):
    has = core.get_property(device, "OPTIMIZATION_CAPABILITIES")
    asked_for = {HINT: asked}
    if capability in has:
        assert check_properties(device, asked_for, core=core) == asked_for
        return
    with pytest.raises(PropertyError, match=f"^{device} does not compute in b?f16, so {HINT}") as e:
        check_properties(device, asked_for, core=core)
    here = ", ".join(["'bf16'"] * ("BF16" in has) + ["'f16'"] * ("FP16" in has) + ["'f32'"])
    assert str(e.value).endswith(f"Precisions of {device}: {here}.")


@pytest.mark.parametrize("asked", ["f32", "FP32", "dynamic", "undefined", ov.Type.dynamic])
def test_f32_and_what_leaves_the_choice_to_the_device_are_right_everywhere(core, asked):
    assert check_properties("ACC", {HINT: asked}, core=core) == {HINT: asked}


@pytest.mark.parametrize(("key", "says"), UNKNOWN)
def test_an_unknown_key_is_named_with_those_that_there_are(core, key, says):
    here = ".*Properties that can be set:.*'INFERENCE_NUM_THREADS'"
    with pytest.raises(PropertyError, match=says + here):
        check_properties("ACC", {key: 1}, core=core)


def test_a_check_leaves_no_trace(core):
    keys = ["NUM_STREAMS", "PERFORMANCE_HINT", "INFERENCE_NUM_THREADS", "DEVICE_ID"]

    def settings_of(which: ov.Core) -> list[str]:
        return [str(which.get_property("CPU", key)) for key in keys]

    before = settings_of(core), settings_of(scratch_core())
    for key, value in (("NUM_STREAMS", 2), ("PERFORMANCE_HINT", "THROUGHPUT")):
        check_properties("CPU", {key: value}, core=core)
    for key, value, _ in WRONG:
        with pytest.raises(PropertyError):
            check_properties("CPU", {key: value}, core=core)
    assert (settings_of(core), settings_of(scratch_core())) == before


def test_the_runtime_drops_unknown_keys_and_absent_devices_without_a_word(core):
    # Why this module exists. A release that refuses them would make it smaller.
    for config in (
        {"DEVICE_PROPERTIES": {"CPU": {"NO_SUCH": 1}}},
        {"DEVICE_PROPERTIES": {"XPU": {"INFERENCE_PRECISION_HINT": "f32"}}},
        {"NO_SUCH": 1},
    ):
        model = prepare(chain("r")).model.clone()
        for node in model.get_ordered_ops():
            node.get_rt_info()["affinity"] = "CPU"
        core.compile_model(model, "HETERO:CPU", config)


# CPU_DENORMALS_OPTIMIZATION is left out: it changes the arithmetic of the whole thread, for good.
KEYS = st.sampled_from([
    "INFERENCE_PRECISION_HINT", "INFERENCE_NUM_THREADS", "NUM_STREAMS", "PERF_COUNT",
    "PERFORMANCE_HINT", "EXECUTION_MODE_HINT", "ENABLE_CPU_PINNING", "SCHEDULING_CORE_TYPE",
    "PERFORMANCE_HINT_NUM_REQUESTS", "KV_CACHE_PRECISION", "DYNAMIC_QUANTIZATION_GROUP_SIZE",
    "EXCLUSIVE_ASYNC_REQUESTS", "NO_SUCH",
])  # fmt: skip
VALUES = st.one_of(
    st.booleans(),
    st.integers(-2, 4),
    st.floats(allow_subnormal=False),
    st.text(max_size=5),
    st.sampled_from(["f32", "bf16", "u8", "LATENCY", "ACCURACY", "YES", "4", ov.Type.bf16, None]),
)


@settings(max_examples=80)
@given(key=KEYS, value=VALUES)
def test_what_passes_the_check_compiles(core, key, value):
    model = prepare(chain("r"))
    uniform = hl.Affinity.uniform(model, "CPU", core=core)
    placement = hl.Placement(uniform, device_properties={"CPU": {key: value}})
    try:
        check_properties("CPU", {key: value}, core=core)
    except PropertyError as error:
        assert key in str(error)
        with pytest.raises(PropertyError):
            hl.compile(model, placement, core=core)
    else:
        hl.compile(model, placement, core=core)


ASK = """
import json
import hetero_lab as hl
from hetero_lab.devices.core import shared_core
from hetero_lab.devices.devices import precisions
from hetero_lab.errors import PropertyError

spec = hl.emulate("ACC", faster_by="auto")
try:
    hl.emulate("LOW", properties={"INFERENCE_PRECISION_HINT": "bf16"})
    refusal = ""
except PropertyError as error:
    refusal = str(error)
compiled = hl.compile("digits_inception", "CPU").compiled_model
print(json.dumps({
    "precisions": precisions("CPU", core=shared_core()),
    "by": sorted(spec.properties),
    "refusal": refusal,
    "default": compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name(),
}))
"""


def test_a_cpu_without_bf16():
    """What the lab makes of one, wherever the tests run."""
    if not sys.platform.startswith("linux") or not (shutil.which("cc") and shutil.which("objdump")):
        pytest.skip("hiding bf16 needs Linux, a C compiler and objdump")
    done = subprocess.run(
        [sys.executable, "-m", "tests.without_bf16", sys.executable, "-c", ASK],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["precisions"] == ["f32"]
    assert found["default"] == "f32"
    assert "INFERENCE_NUM_THREADS" in found["by"]
    assert "CPU does not compute in bf16" in found["refusal"]


@pytest.mark.parametrize(
    "streams", [2, "2", ov.properties.streams.Num(2)], ids=lambda n: type(n).__name__
)
def test_the_gpu_plugin_is_given_a_number_of_streams_as_text(streams):
    affinity = hl.Affinity.uniform(chain("Relu"), "CPU")
    asked = {device: {"NUM_STREAMS": streams} for device in ("CPU", "GPU", "GPU.1")}
    given = hl.Placement(affinity, "two", asked).device_properties
    assert given["GPU"] == given["GPU.1"] == {"NUM_STREAMS": "2"}
    assert given["CPU"] == {"NUM_STREAMS": "2" if streams == "2" else 2}


@pytest.mark.parametrize("value", [2.5, True])
def test_what_is_no_number_of_streams_is_no_text_for_the_gpu_plugin(value):
    affinity = hl.Affinity.uniform(chain("Relu"), "CPU")
    given = hl.Placement(affinity, "odd", {"GPU": {"NUM_STREAMS": value}}).device_properties
    assert given == {"GPU": {"NUM_STREAMS": value}}  # and is refused where a GPU is
