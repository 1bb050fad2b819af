from __future__ import annotations

import gc
import json

import msgspec
import numpy as np
import openvino as ov
import pytest
from counting_core import F32, core_with_acc, in_f32
from signal_stack import signal_stack_is_mapped
from small_models import chain, convolutions, diamond

import hetero_lab as hl
from hetero_lab.deploy import run_frozen
from hetero_lab.devices.core import (
    EmulatedDevice,
    bind,
    emulated_devices,
    register,
    shared_core,
)
from hetero_lab.devices.devices import precisions, supported_ops
from hetero_lab.errors import ArgumentError, DeviceError, PropertyError
from hetero_lab.model.read import prepare
from hetero_lab.runtime.inputs import generate_inputs

LOW = precisions("CPU", core=shared_core())[0]  # f32 where there is none below it


def left_on_acc(model, core) -> hl.Affinity:
    return hl.Affinity.uniform(model, "CPU", core=core).fix(ops={"left": "ACC"}, core=core)


def test_an_emulated_device_is_really_listed_compiled_and_run(own_core):
    assert own_core.available_devices == ["ACC", "CPU"]
    model = prepare(diamond())
    inputs = generate_inputs(model)
    compiled = hl.compile(model, in_f32(left_on_acc(model, own_core)), core=own_core)
    assert [s.device for s in compiled.partition.subgraphs] == ["CPU", "ACC", "CPU"]
    alone = hl.compile(model, "CPU", core=own_core)
    np.testing.assert_allclose(compiled(inputs)["out"], alone(inputs)["out"], rtol=1e-3)


def test_the_last_call_wins():
    core = core_with_acc(unsupported={"Relu"})
    model = hl.load(chain("r", "s", "t"))
    for change, expected in (
        ({"unsupported": {"Relu"}}, [False, True, True]),
        ({"supported": {"Relu", "Tanh"}}, [True, False, True]),
        ({}, [True, True, True]),
        ({"supported": set()}, [False, False, False]),
    ):
        spec = hl.emulate("ACC", **change, core=core)
        assert hl.support(model, ["ACC"], core=core)["ACC"].tolist() == expected
        assert emulated_devices(core) == {"ACC": spec}
    # Parameters, constants and results are everybody's.
    assert supported_ops(bind(model, core), "ACC") == {"x", "out"}


def test_the_last_properties_win():
    core = core_with_acc()
    model = hl.load(chain("r"))

    def precision() -> ov.Type:
        compiled = hl.compile(model, "ACC", core=core).compiled_model
        return compiled.get_property("INFERENCE_PRECISION_HINT")

    assert precision() == ov.Type.f32
    if LOW != "f32":
        hl.emulate("ACC", properties={"INFERENCE_PRECISION_HINT": LOW}, core=core)
        assert precision() != ov.Type.f32
    # What a placement says wins over the device's defaults.
    by_hand = in_f32(hl.Affinity.uniform(model, "ACC", core=core), direct=True)
    compiled = hl.compile(model, by_hand, core=core).compiled_model
    assert compiled.get_property("INFERENCE_PRECISION_HINT") == ov.Type.f32


@pytest.mark.skipif(LOW == "f32", reason="this CPU has f32 only")
def test_each_device_of_a_split_keeps_its_own_precision(own_core):
    hl.emulate("ACC", properties={"INFERENCE_PRECISION_HINT": LOW}, core=own_core)
    model = hl.load(diamond())
    affinity = left_on_acc(model, own_core)
    placement = hl.Placement(affinity, device_properties={"CPU": F32})
    compiled = hl.compile(model, placement, core=own_core).compiled_model
    by_device = compiled.get_property("DEVICE_PROPERTIES")
    precisions = {name: str(by_device[name]["INFERENCE_PRECISION_HINT"]) for name in by_device}
    assert "float32" in precisions["CPU"]
    assert "float32" not in precisions["ACC"]


def test_cores_do_not_know_of_each_other(own_core):
    assert "ACC" in emulated_devices(own_core)
    assert emulated_devices(ov.Core()) == {}
    spec = hl.emulate("ONLY_HERE", unsupported={"NoSuchOp"}, core=own_core)  # any type will do
    assert (spec.allows("Sigmoid"), spec.allows("NoSuchOp")) == (True, False)
    assert "ONLY_HERE" not in emulated_devices(shared_core())


def test_a_specification_travels_as_json():
    core = core_with_acc()
    specs = [
        hl.emulate("ONE", supported=["Relu", "Add"], core=core),
        hl.emulate(
            "TWO",
            unsupported={"Relu"},
            properties={
                "INFERENCE_PRECISION_HINT": getattr(ov.Type, LOW),
                "PERFORMANCE_HINT": ov.properties.hint.PerformanceMode.LATENCY,
                "LOG_LEVEL": ov.properties.log.Level.ERR,
                "INFERENCE_NUM_THREADS": 1,
                "ENABLE_CPU_PINNING": False,
            },
            core=core,
        ),
        hl.emulate("THREE", faster_by="threads", core=core),
    ]
    elsewhere = ov.Core()
    for spec in specs:
        arrived = msgspec.convert(json.loads(msgspec.json.encode(spec)), EmulatedDevice)
        assert arrived == spec
        register(arrived, elsewhere)
        hl.compile(chain("r"), spec.name if spec.allows("Relu") else "CPU", core=elsewhere)
    assert emulated_devices(elsewhere) == {spec.name: spec for spec in specs}


def test_faster_by_threads_makes_a_real_difference_in_properties(own_core):
    spec = hl.emulate("ACC", faster_by="threads", core=own_core)
    assert spec.properties["INFERENCE_NUM_THREADS"] >= spec.contrast["INFERENCE_NUM_THREADS"] == 1
    # HETERO forces exclusive requests, which makes CPU ignore its number of threads.
    for properties in (spec.properties, spec.contrast):
        assert properties["EXCLUSIVE_ASYNC_REQUESTS"] is False
        assert properties["ENABLE_CPU_PINNING"] is False


def test_faster_by_auto_is_whichever_this_machine_can_do(own_core):
    spec = hl.emulate("ACC", faster_by="auto", core=own_core)
    low = {"BF16", "FP16"} & set(own_core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
    if low:
        assert spec.properties["INFERENCE_PRECISION_HINT"] in ("bf16", "f16")
        assert spec.contrast == F32
    else:
        assert spec.properties["INFERENCE_NUM_THREADS"] >= spec.contrast["INFERENCE_NUM_THREADS"]
    model = prepare(convolutions(8))
    inputs = generate_inputs(model)
    cpu = hl.Affinity.uniform(model, "CPU", core=own_core)
    exact = hl.compile(model, in_f32(cpu, direct=True), core=own_core)(inputs)["features"]
    fast = hl.compile(model, "ACC", core=own_core)(inputs)["features"]
    if low:
        assert 0 < np.abs(fast - exact).max() < 0.1


def test_a_name_that_the_proxy_uses_inside_is_taken(own_core):
    with pytest.raises(DeviceError, match="'ACC_CPU' and 'ACC'.*another name"):
        hl.emulate("ACC_CPU", core=own_core)
    hl.emulate("NEW_CPU", core=own_core)
    with pytest.raises(DeviceError, match="'NEW' and 'NEW_CPU'"):
        hl.emulate("NEW", core=own_core)
    assert own_core.available_devices == ["ACC", "CPU", "NEW_CPU"]


def test_a_wrong_call_changes_nothing(own_core):
    before = emulated_devices(own_core)
    threads = "INFERENCE_NUM_THREADS"
    for wrong in ({"NO_SUCH": 1}, {threads: "many"}, [(threads, 1)]):
        with pytest.raises(ArgumentError, match="propert"):
            hl.emulate("ACC", properties=wrong, core=own_core)
    with pytest.raises(ArgumentError, match="'speed'"):
        hl.emulate("ACC", faster_by="speed", core=own_core)
    assert emulated_devices(own_core) == before
    with pytest.raises(PropertyError, match="'NO_SUCH' is not a property of CPU"):
        hl.emulate("NEW", properties={"NO_SUCH": 1}, core=own_core)
    assert own_core.available_devices == ["ACC", "CPU"]


def test_a_plain_name_registers_and_then_fails_at_the_first_compile():
    # Why the proxy is needed; a release in which this works would make emulation simpler.
    core = ov.Core()
    core.register_plugin("openvino_intel_cpu_plugin", "PLAIN")
    with pytest.raises(RuntimeError, match="contains implementation for CPU"):
        core.compile_model(chain("r"), "PLAIN")


@pytest.mark.parametrize(
    ("name", "base", "says"),
    [
        *((name, "CPU", "upper-case letters, digits and _")
          for name in ("acc", "A.B", "A B", "1ACC", "", "A-B", "Ä", 5, None)),
        *((name, "CPU", f"'{name}' is a device or plugin of OpenVINO")
          for name in ("CPU", "GPU", "NPU", "HETERO", "AUTO", "MULTI", "BATCH")),
        *(("NEW", base, f"'{base}' cannot be the base.*'CPU'")
          for base in ("GPU", "FOO", "HETERO", "cpu", "ACC", "")),
    ],
)  # fmt: skip
def test_names_and_bases_that_cannot_be_used(own_core, name, base, says):
    with pytest.raises(DeviceError, match=says):
        hl.emulate(name, base, core=own_core)
    assert own_core.available_devices == ["ACC", "CPU"]


def test_a_frozen_placement_that_was_let_go(tmp_path):
    """Cores that come and go leave the main thread its signal stack, so that Ctrl-C arrives."""
    hl.emulate("STACK_ACC")
    hl.freeze("digits_inception", "HETERO:STACK_ACC,CPU", tmp_path / "frozen", tolerance=None)
    compiled, _ = run_frozen.load(tmp_path / "frozen")
    later = ov.Core()
    later.get_property("CPU", "FULL_DEVICE_NAME")  # loads the plugin, which sets a signal stack
    del compiled
    gc.collect()
    del later
    assert signal_stack_is_mapped()
