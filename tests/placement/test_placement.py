from __future__ import annotations

import dataclasses
import re

import openvino as ov
import pytest
from counting_core import F32, core_with_acc
from small_models import chain, convolutions, two_parts

import hetero_lab as hl
from hetero_lab.devices.core import bind
from hetero_lab.errors import ArgumentError, DeviceError, PropertyError
from hetero_lab.model.read import prepare
from hetero_lab.placement.placement import BoundPlacement, resolve
from hetero_lab.placement.priorities import Priorities


def test_every_form_of_a_placement_is_understood(core):
    model = prepare(two_parts())
    automatic = hl.Affinity.automatic(model, "HETERO:ACC,CPU", core=core)
    for form in ("HETERO:ACC,CPU", Priorities(("ACC", "CPU")), automatic, hl.Placement(automatic)):
        resolved = resolve(bind(model, core), form)
        assert resolved.affinity == automatic
        assert not resolved.direct
    assert resolve(bind(model, core), "HETERO:ACC,CPU").label == "HETERO:ACC,CPU"
    single = resolve(bind(model, core), "CPU")
    assert (single.label, single.direct) == ("CPU", True)
    assert set(single.affinity.values()) == {"CPU"}
    through = resolve(bind(model, core), "HETERO:CPU")
    assert (through.direct, through.affinity.devices) == (False, ("CPU",))
    mine = hl.Placement(automatic, "mine")
    assert resolve(bind(model, core), mine).placement is mine
    assert repr(mine) == "Placement('mine', Affinity(2 ops; ACC: 2))"


@pytest.mark.parametrize(
    ("placement", "kind", "says"),
    [
        ("ACC,CPU", DeviceError, "Several devices need HETERO: 'HETERO:ACC,CPU'"),
        ("CPU,CPU", DeviceError, "names 'CPU' twice"),
        ("AUTO:XPU", DeviceError, "'XPU' is not a device here"),
        (None, ArgumentError, "not NoneType"),
        (["ACC", "CPU"], ArgumentError, "not list"),
    ],
)
def test_what_is_no_placement(core, placement, kind, says):
    with pytest.raises(kind, match=says):
        resolve(bind(two_parts(), core), placement)


def test_an_op_on_a_device_that_does_not_support_it():
    core = core_with_acc(unsupported={"Softmax", "Relu"})
    model = prepare(convolutions())
    says = (
        "ACC does not support 3 of the ops placed on it: 'relu1 (Relu)', 'softmax (Softmax)', "
        "'relu2 (Relu)'. Give them to another device: with affinity.fix(ops="
    )
    for placement in ("ACC", hl.Affinity.uniform(model, "ACC", core=core)):
        with pytest.raises(DeviceError, match=re.escape(says)):
            resolve(bind(model, core), placement)


@pytest.mark.parametrize(
    ("properties", "kind", "says"),
    [
        ({"cpu": F32}, DeviceError, "Did you mean 'CPU'"),
        ({"ACC": {"NO_SUCH": 1}}, PropertyError, "'NO_SUCH' is not a property of ACC"),
        ({"CPU": {"PERF_COUNT": "x"}}, PropertyError, "is not a value for PERF_COUNT of CPU"),
        ({"CPU": "f32"}, ArgumentError, "not {'CPU': 'f32'} (dict). For instance {'CPU': {"),
        (F32, ArgumentError, "For instance {'CPU': {'INFERENCE_PRECISION_HINT': 'f32'}}"),
        (None, ArgumentError, "device_properties= is a mapping"),
    ],
)
def test_wrong_properties(core, properties, kind, says):
    model = prepare(two_parts())
    affinity = hl.Affinity.uniform(model, "CPU", core=core)
    with pytest.raises(kind, match=re.escape(says)):
        resolve(bind(model, core), hl.Placement(affinity, device_properties=properties))


def test_a_placements_properties_win_over_the_emulations(own_core):
    hl.emulate(
        "ACC", properties={"INFERENCE_PRECISION_HINT": "dynamic", "NUM_STREAMS": 1}, core=own_core
    )
    model = prepare(chain("r", "s"))
    affinity = hl.Affinity.uniform(model, "ACC", core=own_core).fix(ops={"s": "CPU"}, core=own_core)
    placement = hl.Placement(affinity, device_properties={"ACC": F32})
    assert BoundPlacement(bind(model, own_core), placement).properties == {
        "ACC": {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1}, "CPU": {},
    }  # fmt: skip


def test_a_placement_is_frozen_and_holds_text(core):
    affinity = hl.Affinity.uniform(two_parts(), "CPU", core=core)
    mine = {"CPU": {"INFERENCE_PRECISION_HINT": ov.Type.f32, "NUM_STREAMS": 1}}
    placement = hl.Placement(affinity, "x", mine)
    assert placement.device_properties == {
        "CPU": {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1}
    }
    mine["CPU"]["NUM_STREAMS"] = 5
    assert placement.device_properties["CPU"]["NUM_STREAMS"] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        placement.label = "y"
