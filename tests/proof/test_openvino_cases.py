"""OpenVINO's own HETERO cases: number of subgraphs, which ops share one, and the values.

Each case runs twice: as the plugin's tests have it (a device on every node, nothing folded), and
as a user of the lab has it (loaded, so folded; constants, inputs and outputs follow).
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import nullcontext

import numpy as np
import openvino as ov
import pytest
from counting_core import F32, core_with_acc, in_f32
from openvino_models import CASES, Case, linear_chain, stateful, subtract_reshape

import hetero_lab as hl
from hetero_lab.errors import (
    AffinityError,
    DeviceError,
    HeteroLabWarning,
    ModelError,
    PropertyError,
)
from hetero_lab.model.opgraph import op_graph
from hetero_lab.model.read import PreparedModel
from hetero_lab.placement.affinity import Node
from hetero_lab.runtime.inputs import generate_inputs

DEVICES = {"M0": "ACC", "M1": "CPU", "M2": "ACC2", "M3": "ACC3"}
MOCK = {device: mock for mock, device in DEVICES.items()}
by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "_"))


@pytest.fixture(scope="module")
def devices():
    """A Core with three emulated devices beside CPU."""
    core = core_with_acc()
    for name in ("ACC2", "ACC3"):
        hl.emulate(name, properties=F32, core=core)
    return core


def split(model: ov.Model, core: ov.Core, on_cpu: str = "sub") -> tuple[ov.Model, hl.Affinity]:
    """Load a model and place one op on CPU, the others on ACC."""
    loaded = hl.load(model)
    return loaded, hl.Affinity.uniform(loaded, "ACC", core=core).fix(ops={on_cpu: "CPU"})


def _outputs(prepared: PreparedModel, compiled, core, inputs) -> None:
    """Compare with one device in f32, value by value."""
    cpu = hl.Affinity.uniform(prepared, "CPU", core=core)
    expected = hl.compile(prepared, in_f32(cpu, direct=True), core=core)(inputs)
    got = compiled(inputs)
    assert list(got) == list(expected)
    for name, value in expected.items():
        assert got[name].dtype == value.dtype
        np.testing.assert_allclose(got[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


@by_name
def test_as_the_plugins_tests_have_it(case: Case, devices):
    model = case.make()
    prepared = PreparedModel(model, op_graph(model), f"{case.name}, not folded")
    names = [op.name for op in prepared.graph.ops]
    assert set(case.devices) <= set(names)
    affinity = hl.Affinity(
        [Node(op.name, op.type, op.name) for op in prepared.graph.ops],
        {name: DEVICES[case.devices.get(name, case.others)] for name in names},
    )
    predicted = hl.partition(prepared, affinity, core=devices)
    compiled = hl.compile(prepared, in_f32(affinity), core=devices)
    observed = compiled.partition
    assert predicted.n_subgraphs == observed.n_subgraphs == case.n_subgraphs
    assert observed.observed
    assert compiled.as_predicted is True
    if case.per_device is not None:
        assert Counter(MOCK[s.device] for s in observed.subgraphs) == case.per_device
    if case.subgraphs:
        # Ops that depend on constants alone belong to no subgraph here.
        computed = {prepared.graph.ops[i].name for i in prepared.graph.constant_side}
        expected = Counter(ops - computed for ops in case.subgraphs)
        assert Counter(frozenset(s.ops) for s in observed.subgraphs) == expected
    _outputs(prepared, compiled, devices, generate_inputs(prepared, 3))


@by_name
def test_as_a_user_of_the_lab_has_it(case: Case, devices):
    model = hl.load(case.make())
    free = hl.Affinity.uniform(model, DEVICES[case.others], core=devices)
    wanted = {op: DEVICES[mock] for op, mock in case.devices.items() if op in free.ops}
    affinity = free.fix(ops=wanted, core=devices)
    compiled = hl.compile(model, in_f32(affinity), core=devices)
    predicted = hl.partition(model, affinity, core=devices)
    assert predicted.n_subgraphs == compiled.partition.n_subgraphs
    assert compiled.partition.n_subgraphs == (case.loaded or case.n_subgraphs)
    assert compiled.as_predicted is True
    _outputs(compiled.prepared, compiled, devices, generate_inputs(compiled.prepared, 3))


def test_registered_devices_compile_and_unregistered_or_no_devices_do_not(devices):
    model = linear_chain()
    assert hl.compile(model, "HETERO:ACC,CPU", core=devices).partition.n_subgraphs == 1
    for target, says in {
        "HETERO:MOCK2,MOCK3": "'MOCK2' is not a device here",
        "HETERO:ACC,MOCK3": "'MOCK3' is not a device here",
        "HETERO:": "names no device",
        "HETERO": "names no device",
        "HETERO:ACC,": "has an empty place",
        "": "is not a device",
    }.items():
        with pytest.raises(DeviceError, match=says):
            hl.compile(model, target, core=devices)


def test_priorities_set_on_the_core_are_those_of_a_bare_hetero():
    core = core_with_acc(unsupported=["Subtract"])
    core.set_property("HETERO", {"MULTI_DEVICE_PRIORITIES": "ACC,CPU"})
    compiled = hl.compile(linear_chain(), "HETERO", core=core)
    assert [s.device for s in compiled.partition.subgraphs] == ["ACC", "CPU", "ACC"]


def test_query_gives_each_op_to_the_first_device_that_can():
    core = core_with_acc(unsupported=["Subtract"])
    model = hl.load(subtract_reshape())
    table = hl.support(model, ["ACC", "CPU"], core=core).set_index("op")
    assert table["ACC"].to_dict() == {"add": True, "sub": False, "reshape": True}
    assert table["CPU"].all()
    automatic = hl.Affinity.automatic(model, "HETERO:ACC,CPU", core=core)
    assert {op: automatic[op] for op in automatic.ops} == {
        "add": "ACC",
        "sub": "CPU",
        "reshape": "ACC",
    }
    with pytest.raises(DeviceError, match=r"'sub \(Subtract\)'"):
        hl.Affinity.automatic(model, "HETERO:ACC", core=core)


def test_three_devices_in_order():
    core = core_with_acc(supported=["Add"])
    hl.emulate("ACC2", supported=["Add", "Subtract"], properties=F32, core=core)
    model = hl.load(subtract_reshape())
    compiled = hl.compile(model, "HETERO:ACC,ACC2,CPU", core=core)
    assert [s.device for s in compiled.partition.subgraphs] == ["ACC", "ACC2", "CPU"]


def test_dynamic_shapes_are_refused_before_they_fail_late(devices):
    # Only the batch: it becomes 1, and a warning says so.
    with pytest.warns(hl.HeteroLabWarning, match="batch of 'input' is dynamic and was set to 1"):
        model = hl.load(subtract_reshape(dynamic=True))
    affinity = hl.Affinity.uniform(model, "ACC", core=devices).fix(ops={"sub": "CPU"})
    compiled = hl.compile(model, in_f32(affinity), core=devices)
    assert compiled.partition.n_subgraphs == 3
    given = hl.load(subtract_reshape(dynamic=True), shapes={"input": [2, 3, 2, 2]})
    values = {"input": np.arange(24, dtype=np.int64).reshape(2, 3, 2, 2)}
    out = hl.compile(given, "HETERO:ACC,CPU", core=devices)(values)
    np.testing.assert_array_equal(next(iter(out.values())), np.arange(24))
    x = ov.opset13.parameter(ov.PartialShape([1, -1]), np.float32, name="x")
    wide = ov.Model([ov.opset13.relu(x, name="relu")], [x], "wide")
    with pytest.raises(ModelError, match="load\\(source, shapes="):
        hl.compile(wide, "HETERO:ACC,CPU", core=devices)


def test_shape_of_compiles_split_and_gives_the_shape(devices):
    model, affinity = split(subtract_reshape(by_shape=True), devices)
    compiled = hl.compile(model, in_f32(affinity), core=devices)
    values = np.arange(12, dtype=np.int64).reshape(1, 3, 2, 2)
    (out,) = compiled({"input": values}).values()
    np.testing.assert_array_equal(out, values)


@pytest.mark.parametrize("exclusive", [True, False])
def test_device_properties_with_and_without_exclusive_requests(devices, exclusive: bool):
    model, affinity = split(subtract_reshape(), devices)
    shared = {} if exclusive else {"EXCLUSIVE_ASYNC_REQUESTS": False}
    placement = hl.Placement(
        affinity,
        device_properties={
            "ACC": {"NUM_STREAMS": 2, "INFERENCE_NUM_THREADS": 2, **F32, **shared},
            "CPU": {"NUM_STREAMS": 1, **F32, **shared},
        },
    )
    ignored = "HETERO ignores 'INFERENCE_NUM_THREADS', 'NUM_STREAMS' of ACC"
    with pytest.warns(HeteroLabWarning, match=ignored) if exclusive else nullcontext():
        compiled = hl.compile(model, placement, core=devices)
    got = compiled.compiled_model.get_property("DEVICE_PROPERTIES")
    # Exclusive requests, which HETERO asks for when it splits, take the streams away.
    assert int(got["ACC"]["NUM_STREAMS"]) == (1 if exclusive else 2)
    assert int(got["CPU"]["NUM_STREAMS"]) == 1
    with pytest.raises(RuntimeError):
        compiled.compiled_model.get_property("NUM_STREAMS")
    with pytest.raises(PropertyError, match="NUM_STREAMZ"):
        hl.compile(
            model,
            hl.Placement(affinity, device_properties={"ACC": {"NUM_STREAMZ": 4}}),
            core=devices,
        )


def test_counters_are_per_compile_and_not_per_device(devices):
    model, affinity = split(subtract_reshape(), devices)
    compiled = hl.compile(model, in_f32(affinity), counters=True, core=devices)
    request = compiled.new_request(generate_inputs(compiled.prepared))
    request.infer()
    prefixes = {info.node_name.partition(":")[0] for info in request.profiling_info}
    assert prefixes == {"subgraph0", "subgraph1", "subgraph2"}


def test_a_blob_is_written_and_used_and_gives_the_same_outputs(devices, tmp_path):
    model, affinity = split(linear_chain(), devices)
    cached = {"CACHE_DIR": str(tmp_path)}
    first = hl.compile(model, in_f32(affinity), compile_properties=cached, core=devices)
    (blob,) = tmp_path.glob("*.blob")
    made = blob.stat().st_mtime_ns
    second = hl.compile(model, in_f32(affinity), compile_properties=cached, core=devices)
    assert first.compiled_model.get_property("LOADED_FROM_CACHE") is False
    assert second.compiled_model.get_property("LOADED_FROM_CACHE") is True
    assert blob.stat().st_mtime_ns == made
    assert second.partition == first.partition
    inputs = generate_inputs(first.prepared, 1)
    for name, value in first(inputs).items():
        np.testing.assert_array_equal(second(inputs)[name], value)
    # Another affinity is another blob.
    model, other = split(model, devices, "add")
    hl.compile(model, in_f32(other), compile_properties=cached, core=devices)
    assert len(list(tmp_path.glob("*.blob"))) == 2


def test_export_and_import(devices):
    model, affinity = split(linear_chain(), devices)
    compiled = hl.compile(model, in_f32(affinity), core=devices)
    blob = compiled.compiled_model.export_model()
    imported = devices.import_model(blob, "HETERO:ACC,CPU", {})
    inputs = generate_inputs(compiled.prepared, 1)
    (expected,) = compiled(inputs).values()
    (got,) = imported(list(inputs.values())).values()
    np.testing.assert_array_equal(got, expected)


def test_memory_states_are_kept_and_reset(devices):
    model = hl.load(stateful())
    on_acc = hl.Affinity.uniform(model, "ACC", core=devices)
    direct = hl.compile(model, in_f32(on_acc, direct=True), core=devices)
    hetero = hl.compile(model, in_f32(on_acc), core=devices)
    start = {"input": np.array([1, 2, 3, 4], np.float32)}
    for target in (direct, hetero):
        request = target.new_request(start)
        seen = []
        for _ in range(3):
            request.infer()
            seen.append(np.array(request.get_output_tensor(0).data))
        # The variable begins with the input and grows by one in each inference.
        np.testing.assert_array_equal(seen, [start["input"] + k for k in (1, 2, 3)])
        (state,) = request.query_state()
        np.testing.assert_array_equal(state.state.data, start["input"] + 3)
        state.state = ov.Tensor(np.zeros(4, np.float32))
        request.infer()
        np.testing.assert_array_equal(request.get_output_tensor(0).data, np.ones(4))
        request.reset_state()
        request.infer()
        np.testing.assert_array_equal(request.get_output_tensor(0).data, start["input"] + 1)


def test_a_state_is_never_torn(devices):
    model = hl.load(stateful())
    uniform = hl.Affinity.uniform(model, "ACC", core=devices)
    moved = uniform.fix(ops={"add": "CPU"}, core=devices)
    assert {moved[name] for name in ("read_value", "add", "assign")} == {"CPU"}
    with pytest.raises(AffinityError, match="one stateful path"):
        uniform.fix(ops={"add": "CPU", "read_value": "ACC"}, core=devices)


def test_several_threads_infer_at_once_without_meeting(devices):
    model, affinity = split(linear_chain(), devices)
    compiled = hl.compile(model, in_f32(affinity), core=devices)
    wrong: list[tuple[int, int]] = []
    started = threading.Barrier(8)

    def run(number: int) -> None:
        started.wait()
        for turn in range(50):
            value = np.full((1, 3, 2, 2), number * 1000 + turn, np.int64)
            (out,) = compiled({"input": value}).values()
            if not np.array_equal(out, value.reshape(-1)):
                wrong.append((number, turn))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
