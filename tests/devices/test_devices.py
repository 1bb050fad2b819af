from __future__ import annotations

import re
import time

import numpy as np
import pytest
from counting_core import core_with_acc
from small_models import chain, convolutions, embedding

import hetero_lab as hl
from hetero_lab import progress
from hetero_lab.devices import devices
from hetero_lab.devices.core import bind
from hetero_lab.devices.devices import (
    _hint,
    check_device,
    device_names,
    has_own_memory,
    is_foreign_gpu,
    peak_bytes,
    precisions,
    reset_peak,
    supported_ops,
    why_unavailable,
)
from hetero_lab.errors import DeviceError, HeteroLabWarning


@pytest.mark.parametrize(
    ("device", "full_name", "is_foreign"),
    [
        ("GPU", "NVIDIA H100 80GB HBM3 (dGPU)", True),
        ("GPU.1", "NVIDIA H200 (dGPU)", True),
        ("GPU.0", "Intel(R) Arc(TM) A770 Graphics (dGPU)", False),
        ("CPU", "AMD EPYC 9654 96-Core Processor", False),
    ],
)
def test_a_gpu_of_another_vendor_is_known_by_its_name(device, full_name, is_foreign):
    assert is_foreign_gpu(device, full_name) is is_foreign


def test_devices_has_a_row_for_each_device_and_each_plugin_without_one(core):
    frame = hl.devices(core=core).set_index("device")
    cpu = frame.loc["CPU"]
    assert (cpu["available"], cpu["type"], cpu["emulated_on"], cpu["problem"]) == (
        True, "integrated", "", "",
    )  # fmt: skip
    assert cpu["full_name"]
    assert "FP32" in cpu["capabilities"]
    assert frame.loc["ACC", ["available", "emulated_on"]].tolist() == [True, "CPU"]
    for plugin in ("GPU", "NPU"):
        row = next(row for name, row in frame.iterrows() if str(name).partition(".")[0] == plugin)
        if not row["available"]:
            assert row["problem"]
            assert "\n" not in row["problem"]
            assert why_unavailable(plugin, core=core) == row["problem"]


def test_a_device_that_does_not_call_itself_discrete_has_no_memory_of_its_own(core):
    """Nor has one that is emulated on the CPU, or one that is not asked because it is not here."""
    assert not any(has_own_memory(device, core) for device in ("CPU", "ACC", "NPU"))
    assert device_names(core)[:2] == ["ACC", "CPU"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("FOO", "'FOO' is not a device here"),
        ("acc", "Did you mean 'ACC'"),
        ("", "'' is not a device here"),
        ("HETERO", "'HETERO' is not a device here"),
        ("ACC.0", "'ACC.0' is not a device here"),
        ("HETERO:ACC,CPU", "This takes a list of devices"),
        ("CPU.BF16", "Did you mean 'CPU'"),
        (" CPU", "Did you mean 'CPU'"),
        ("CPU(4)", "Did you mean 'CPU'"),
        ("acc;cpu", "Did you mean 'ACC,CPU'"),
        ("HETERO_ACC_CPU", "Did you mean 'HETERO:ACC,CPU'"),
        ("HETRO:CPU", "Did you mean 'HETERO:CPU'"),
        ("auto:CPU", "Did you mean 'AUTO:CPU'"),
        ("auto", "Did you mean 'AUTO'"),
        ("GPU_0", "is not a device here. Run `hetero-lab doctor` to see why"),
        ("npu0", "is not a device here. Run `hetero-lab doctor` to see why"),
        (None, "'None' is not a device here"),
        (7, "'7' is not a device here"),
    ],
)
def test_an_unknown_device_is_named_with_those_at_hand(core, name, says):
    ways_out = r".*Devices: ACC, CPU.*hetero_lab\.emulate\(\)"
    with pytest.raises(DeviceError, match=re.escape(says) + ways_out):
        check_device(name, core)


def test_a_number_is_written_behind_a_dot():
    here = ["CPU", "GPU.0", "GPU.1"]
    for name in ("GPU1", "GPU_1", "gpu:1", "GPU 1"):
        assert _hint(name, here) == " Did you mean 'GPU.1'?"


def test_a_query_that_takes_long_says_so(own_core, monkeypatch, capsys):
    for name, value in [("_MANY", 2), ("_SUPPORT_CACHE_SIZE", 1)]:
        monkeypatch.setattr(devices, name, value)
    for name in ("_APPEARS_S", "_EVERY_S", "_STUCK_S", "_EVERY_IN_A_LOG_S"):
        monkeypatch.setattr(progress, name, 1e-3)
    said = ""

    def until_it_is_said(*_):
        nonlocal said
        while "ask CPU about the ops" not in said:
            time.sleep(0.01)
            said += capsys.readouterr().err

    monkeypatch.setattr(devices, "first_query", until_it_is_said)
    supported_ops(bind(chain("one", "two"), own_core), "CPU")
    assert said
    capsys.readouterr()
    monkeypatch.setattr(devices, "first_query", lambda *_: None)
    supported_ops(bind(chain(), own_core), "CPU")
    assert capsys.readouterr().err == ""


def test_support_lists_ops_in_topological_order_without_constants_and_ends():
    core = core_with_acc(unsupported={"Softmax", "Relu"})
    frame = hl.support(convolutions(), ["ACC", "CPU"], core=core)
    assert frame.columns.tolist() == ["op", "op_type", "ACC", "CPU"]
    assert " ".join(frame["op"]) == "conv1 bias1 relu1 softmax conv2 bias2 relu2"
    assert frame["ACC"].tolist() == [True, True, False, False, True, True, False]
    assert frame["ACC"].dtype == bool
    assert frame["CPU"].all()
    # One device as text; each model is asked anew.
    assert hl.support(embedding(), "CPU", core=core)["op"].tolist() == ["narrow", "wrap", "gather"]


def test_precisions_hold_f32(core):
    assert "f32" in precisions("CPU", core=core)
    assert precisions("ACC", core=core) == precisions("CPU", core=core)
    with pytest.raises(DeviceError):
        precisions("XPU", core=core)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("Reluu", "Did you mean 'Relu'"),
        ("relu", "Did you mean 'Relu'"),
        ("Resize", "OpenVINO knows no such"),  # ONNX's name
    ],
)
def test_an_op_type_that_looks_misspelt_or_that_no_opset_knows_is_told(asked, told):
    hl.emulate("ACC_SPELLS", unsupported={asked})
    with pytest.warns(HeteroLabWarning, match=f"'{asked}', which no op .* {told}"):
        found = hl.support(convolutions(), ["ACC_SPELLS"])
    assert found["ACC_SPELLS"].all()


def test_an_op_type_that_the_model_lacks_is_not_told(recwarn):
    hl.emulate("ACC_SPELLS", unsupported={"PRelu", "Softmax"})
    hl.support(convolutions(), ["ACC_SPELLS"])
    assert not [w for w in recwarn if issubclass(w.category, HeteroLabWarning)]


def test_the_peak_of_memory_holds_what_was_used_in_between():
    anew = reset_peak()
    assert isinstance(anew, bool)
    before = peak_bytes()
    assert before > 1_000_000
    used = np.ones(50_000_000, np.uint8)
    assert used.sum() == 50_000_000
    del used
    # Where the peak counts since the start of the process, it may have been higher already.
    assert peak_bytes() - before > (40_000_000 if anew else -1)
