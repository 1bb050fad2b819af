from __future__ import annotations

import tracemalloc
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import openvino as ov
import pytest
from counting_core import F32, in_f32, on_acc
from openvino import opset13 as op
from random_models import random_affinity, random_model
from small_models import (
    chain,
    convolutions,
    diamond,
    dynamic_inside,
    odd_ends,
    stateful,
    two_parts,
)

import hetero_lab as hl
from hetero_lab import clock
from hetero_lab.devices.core import bind
from hetero_lab.errors import (
    ArgumentError,
    CompileError,
    HeteroLabWarning,
    InputError,
)
from hetero_lab.model.read import output_names, prepare
from hetero_lab.placement.partition import Wiring, predict
from hetero_lab.placement.placement import resolve
from hetero_lab.runtime.compiled import (
    check_ports,
    lonely_results,
    match_header,
    observe,
    parse_header,
    property_values,
)
from hetero_lab.runtime.executors import CompiledSession, check_placed, settle
from hetero_lab.runtime.inputs import generate_inputs
from hetero_lab.runtime.placed_model import header_text


def labelled(model: ov.Model, device_of) -> ov.Model:
    clone = hl.load(model)
    for node in clone.get_ordered_ops():
        node.get_rt_info()["affinity"] = device_of(node)
    return clone


# -- right numbers -----------------------------------------------------------------------------


def test_odd_ends_through_hetero(core):
    given = {
        "x": np.array([[-1, 0, 1, 2]], np.float32),
        "unused": np.zeros(2, np.float32),
        "through": np.array([[7, 8, 9]], np.float32),
    }
    for placement in ("CPU", "HETERO:CPU", "HETERO:ACC,CPU"):
        out = hl.compile(odd_ends(), placement, core=core)(given)
        assert [value.ravel().tolist() for value in out.values()] == [
            [7, 8, 9], [0, 0, 2, 4], [3, 1, 2], [0, 0, 1, 2], [0, 0, 1, 2],
        ]  # fmt: skip


def test_inputs_are_copied_and_every_call_returns_fresh_arrays(core):
    compiled = hl.compile(diamond(), on_acc(diamond(), core, "left"), core=core)
    inputs = np.ones((1, 8), np.float32)
    first = compiled(inputs)["out"]
    kept = first.copy()
    second = compiled(inputs * 5)["out"]
    np.testing.assert_array_equal(first, kept)
    assert not np.shares_memory(first, second)
    first[:] = 0
    np.testing.assert_array_equal(compiled(inputs)["out"], kept)
    request = compiled.new_request(inputs)
    inputs[:] = 100
    request.infer()
    np.testing.assert_array_equal(compiled.read_outputs(request)["out"], kept)
    with pytest.raises(InputError):
        compiled(np.ones((8, 1), np.float32))


def _with_threads(core, *, split: bool = True, **own) -> hl.Placement:
    affinity = on_acc(chain("a", "b"), core, *(["a"] if split else []))
    return hl.Placement(affinity, "few", {"CPU": own}, direct=not split)


def test_threads_that_a_split_ignores_are_said(core):
    model, placement = chain("a", "b"), _with_threads(core, INFERENCE_NUM_THREADS=1)
    placed, two = resolve(bind(model, core), placement), {"turns": 2, "counters": False}
    for call in (
        lambda: hl.compile(model, placement, core=core),
        lambda: hl.sweep(model, [placement], reference=False, progress=False, core=core, **two),
        lambda: check_placed(placed),
    ):
        with pytest.warns(HeteroLabWarning, match="ignores 'INFERENCE_NUM_THREADS' of CPU in a mo"):
            call()
    check_placed(placed, "parallel")  # the executor obeys them all
    hl.ParallelExecutor(model, placement, core=core).close()
    one = {"INFERENCE_NUM_THREADS": 1}
    for not_ignored in (
        {"EXCLUSIVE_ASYNC_REQUESTS": False, **one},
        {"EXCLUSIVE_ASYNC_REQUESTS": True, **one},  # given up
        {"split": False, **one},
        {"NUM_STREAMS": 1},  # as it would be without it
    ):
        hl.compile(model, _with_threads(core, **not_ignored), core=core)
    split = resolve(bind(stateful(), core), on_acc(stateful(), core, "after"))
    check_placed(split, "parallel")
    check_placed(split, requests=2)
    with pytest.raises(ArgumentError, match="states"):
        check_placed(split, "parallel", requests=2)


def test_a_property_is_reported_by_the_model_or_each_device(core):
    model = chain("a", "b")
    parts = hl.compile(model, in_f32(on_acc(model, core, "a")), core=core).compiled_model
    hints = property_values(parts, "INFERENCE_PRECISION_HINT")
    assert hints == {"ACC": ov.Type.f32, "CPU": ov.Type.f32}
    whole = hl.compile(model, "CPU", core=core).compiled_model
    assert property_values(whole, "NUM_STREAMS") == {"": whole.get_property("NUM_STREAMS")}
    assert property_values(whole, "NO_SUCH_PROPERTY") == {}


def test_a_split_within_one_device_ignores_threads_too(core):
    cpu = hl.Affinity.uniform(two_parts(), "CPU", core=core)
    placement = hl.Placement(cpu, "parts", {"CPU": {"NUM_STREAMS": 2}})
    with pytest.warns(HeteroLabWarning, match="HETERO ignores 'NUM_STREAMS' of CPU"):
        compiled = hl.compile(two_parts(), placement, core=core)
    assert compiled.partition.n_subgraphs == 2
    got = compiled.compiled_model.get_property("DEVICE_PROPERTIES")
    assert int(got["CPU"]["NUM_STREAMS"]) == 1


def test_a_request_keeps_the_state_of_a_stateful_model(core):
    x = np.ones((1, 4), np.float32)
    for elsewhere in ([], ["after"], ["sum"]):
        model = stateful()
        compiled = hl.compile(model, in_f32(on_acc(model, core, *elsewhere)), core=core)
        assert compiled.as_predicted
        totals = [float(compiled(x)["out"][0, 0]) for _ in range(3)]
        assert totals == [-1, -2, -3]
        compiled.reset_state()
        assert float(compiled(x)["out"][0, 0]) == -1


# -- what was compiled -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seed", "n_ops", "affinity_seed"),
    [
        # A tensor that one op alone reads closes no cycle.
        (27, 5, 1), (0, 12, 1),
        # A node is ranked anew once a cycle comes back to it.
        (31, 24, 2), (56, 24, 0),
    ],
)  # fmt: skip
def test_rare_rules_of_the_partitioner_are_predicted(core, seed, n_ops, affinity_seed):
    prepared = prepare(random_model(seed, n_ops))
    affinity = random_affinity(prepared.graph, ["ACC", "CPU"], affinity_seed)
    assert hl.compile(prepared, affinity, core=core).as_predicted


def test_the_observed_partition_is_the_predicted_one_in_execution_order(core):
    model = convolutions(8)
    affinity = on_acc(model, core, "softmax")
    compiled = hl.compile(model, affinity, core=core)
    assert compiled.as_predicted
    assert compiled.partition.observed
    assert [(s.index, s.device, s.ops[0]) for s in compiled.partition.subgraphs] == [
        (0, "CPU", "conv1"), (1, "ACC", "softmax"), (2, "CPU", "conv2"),
    ]  # fmt: skip
    predicted = predict(prepare(model).graph, affinity)
    assert compiled.partition.boundaries == predicted.boundaries
    assert compiled.compile_ms > 0
    assert isinstance(compiled.compiled_model, ov.CompiledModel)
    assert repr(compiled).startswith("CompiledPlacement('affinity', Partition(3 subgraphs")


def test_a_single_device_is_compiled_without_hetero(core):
    alone, hetero = (hl.compile(two_parts(), p, core=core) for p in ("CPU", "HETERO:CPU"))
    assert (alone.partition.n_subgraphs, hetero.partition.n_subgraphs) == (1, 2)
    assert alone.compiled_model.get_property("EXECUTION_DEVICES") == ["CPU"]


def test_the_header_is_read_without_the_weights(core):
    weights = np.ones((1024, 2048), np.float32)  # 8 MiB
    x = op.parameter([1, 1024], np.float32, name="x")
    wide = op.matmul(x, op.constant(weights), False, False, name="wide")
    model = hl.load(ov.Model([op.relu(wide, name="relu")], [x], "heavy"))
    compiled = hl.compile(model, on_acc(model, core, "relu"), core=core).compiled_model
    tracemalloc.start()
    try:
        text = header_text(compiled)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert text.endswith("</hetero>")
    assert [s.device for s in parse_header(text).subgraphs] == ["CPU", "ACC"]
    assert peak_bytes < weights.nbytes / 8


def test_a_header_of_another_partition_does_not_match(core):
    model = diamond()
    affinity = on_acc(model, core, "right")
    predicted = predict(prepare(model).graph, affinity)
    text = header_text(hl.compile(model, affinity, core=core).compiled_model)
    header = parse_header(text)
    assert match_header(header, predicted) == [0, 1, 2]
    assert parse_header(header_text(core.compile_model(chain("r"), "CPU"))) is None
    for right, wrong in (
        ('device="ACC"', 'device="CPU"'),
        ("</compiled_submodels>", '<compiled_submodel device="CPU"/></compiled_submodels>'),
        ('<pair submodel_idx="0"', '<pair submodel_idx="1"'),
        ('<pair submodel_idx="2"', '<pair submodel_idx="1"'),
        ('<record in_submodel_idx="1" in_node_idx="0" out_submodel_idx="0" out_node_idx="0"/>', ""),
        ('out_submodel_idx="0" out_node_idx="0"', 'out_submodel_idx="0" out_node_idx="1"'),
        ('in_submodel_idx="1" in_node_idx="0" out_submodel_idx="0"', 'in_submodel_idx="1" '
         'in_node_idx="0" out_submodel_idx="2"'),
    ):  # fmt: skip
        assert text.count(right) == 1
        assert match_header(parse_header(text.replace(right, wrong)), predicted) is None
    assert match_header(header, predict(prepare(model).graph, on_acc(model, core))) is None
    affinity = on_acc(two_parts(), core, "abs")
    predicted = predict(prepare(two_parts()).graph, affinity)
    header = parse_header(header_text(hl.compile(two_parts(), affinity, core=core).compiled_model))
    assert match_header(header, predicted) is not None
    swapped = [
        Wiring(w.inputs, tuple(("model", 1 - e[1]) if e[0] == "model" else e for e in w.outputs))
        for w in header.wiring
    ]
    assert match_header(replace(header, wiring=tuple(swapped)), predicted) is None


def test_what_the_runtime_made_wins_over_the_prediction_and_is_said_aloud(core):
    model = diamond()
    compiled = hl.compile(model, on_acc(model, core, "right"), core=core).compiled_model
    other = predict(prepare(model).graph, on_acc(model, core))
    with pytest.warns(HeteroLabWarning, match="3 subgraphs where 1 were expected"):
        observed, as_predicted = observe(compiled, other)
    assert as_predicted is False
    assert observed.observed
    assert [s.device for s in observed.subgraphs] == ["CPU", "ACC", "CPU"]
    assert observed.n_crossings == 3
    assert observed.boundary_bytes == 0


def test_other_inputs_or_outputs_than_the_models_are_refused(core):
    prepared = prepare(two_parts())
    first, second = (op.parameter([1, 4], np.float32, name=name) for name in "xy")
    outputs_alone = ov.Model([op.relu(first), op.convert(second, "i32")], [first, second], "m")
    wide = op.parameter([2, 4], np.float32)
    inputs_alone = ov.Model([op.relu(first), op.abs(wide)], [first, wide], "m")
    for other in (diamond(), chain("r"), odd_ends(), outputs_alone, inputs_alone):
        with pytest.raises(CompileError, match="not in the model's order"):
            check_ports(bind(prepared, core), core.compile_model(other, "CPU"))
    check_ports(bind(prepared, core), core.compile_model(two_parts(), "CPU"))


# -- traps of the runtime ----------------------------------------------------------------------


def test_a_subgraph_of_results_only_gets_an_op_that_changes_nothing(core):
    model = random_model(86)
    prepared = prepare(model)
    affinity = random_affinity(prepared.graph, ["ACC", "CPU"], 86)
    assert lonely_results(predict(prepared.graph, affinity))
    # This is how it goes without the op.
    with pytest.raises(RuntimeError, match="at"):
        core.compile_model(
            labelled(model, lambda node: affinity[node.get_friendly_name()]), "HETERO:ACC,CPU"
        )
    inputs = generate_inputs(prepared)
    compiled = hl.compile(prepared, in_f32(affinity), core=core)
    assert compiled.as_predicted
    single = in_f32(hl.Affinity.uniform(prepared, "CPU", core=core), direct=True)
    expected = hl.compile(prepared, single, core=core)(inputs)
    outputs = compiled(inputs)
    assert list(outputs) == list(expected)
    for name, value in outputs.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6)
    # The op is nobody's: it is in no table, and the model does not have it.
    assert sorted(compiled.partition.subgraph_of) == sorted(affinity.ops)
    assert len(prepared.graph) == len(prepared.model.get_ops())
    # Outputs keep their names.
    for number, port in enumerate(model.outputs):
        port.set_names({f"named{number}", f"alias{number}"})
    named = hl.compile(model, affinity, core=core).output_names
    assert list(named) == output_names(model)
    assert len(set(named)) == len(model.outputs)


def test_a_parameter_away_from_its_user_would_be_a_subgraph_that_only_copies(core):
    theirs = labelled(
        chain("r"), lambda node: "ACC" if node.get_type_name() == "Parameter" else "CPU"
    )
    header = parse_header(header_text(core.compile_model(theirs, "HETERO:ACC,CPU")))
    assert [s.device for s in header.subgraphs] == ["ACC", "CPU"]
    ours = hl.compile(chain("r"), on_acc(chain("r"), core, "x"), core=core)
    assert [s.device for s in ours.partition.subgraphs] == ["CPU"]


def test_a_torn_stateful_path_would_fail_and_is_moved_as_one(core):
    theirs = labelled(
        stateful(), lambda node: "ACC" if node.get_friendly_name() == "middle" else "CPU"
    )
    with pytest.raises(RuntimeError, match="hetero"):
        core.compile_model(theirs, "HETERO:ACC,CPU")
    compiled = hl.compile(stateful(), on_acc(stateful(), core, "middle"), core=core)
    assert compiled.as_predicted
    assert {"read", "sum", "middle", "assign"} <= set(compiled.partition.subgraphs[0].ops)


def test_duplicate_names_compile_as_different_ops(own_core):
    model = chain("same", "same", "same")
    affinity = on_acc(model, own_core, "same_2")
    compiled = hl.compile(model, affinity, core=own_core)
    assert [s.ops for s in compiled.partition.subgraphs] == [("same",), ("same_2",), ("same_3",)]


@pytest.mark.parametrize("elsewhere", [[], ["relu"], ["convert"], ["abs"]])
def test_unknown_sizes_inside_a_subgraph_and_between_two_are_fine(core, elsewhere):
    model = dynamic_inside()
    compiled = hl.compile(model, in_f32(on_acc(model, core, *elsewhere)), core=core)
    one = compiled(np.array([[0, 5, 0, 0]], np.float32))["out"]
    three = compiled(np.array([[1, 5, 0, 2]], np.float32))["out"]
    assert one.tolist() == [[0], [1]]
    assert three.tolist() == [[0, 0, 0], [0, 1, 3]]


def test_an_affinity_left_by_the_caller_is_overwritten(core):
    model = chain("r", "s")
    for node in model.get_ordered_ops():
        node.get_rt_info()["affinity"] = "NO_SUCH_DEVICE"
    with pytest.warns(hl.HeteroLabWarning, match="NO_SUCH_DEVICE"):
        compiled = hl.compile(model, "HETERO:ACC,CPU", core=core)
    assert [s.device for s in compiled.partition.subgraphs] == ["ACC"]
    hl.compile(model, "CPU", core=core)
    assert {n.get_rt_info()["affinity"].astype(str) for n in model.get_ordered_ops()} == {
        "NO_SUCH_DEVICE"
    }


# -- properties of the compile -----------------------------------------------------------------


def test_properties_of_the_compile_reach_every_device(core, tmp_path):
    placement = hl.Placement(on_acc(diamond(), core, "left"))
    for counters, given in ((True, {}), (False, {"PERF_COUNT": True}), (False, {})):
        compiled = hl.compile(
            diamond(), placement, counters=counters, core=core,
            compile_properties={"CACHE_DIR": str(tmp_path), **given},
        )  # fmt: skip
        by_device = compiled.compiled_model.get_property("DEVICE_PROPERTIES")
        said = {str(by_device[device]["PERF_COUNT"]) for device in ("ACC", "CPU")}
        assert said <= ({"YES", "True"} if counters or given else {"NO", "False"})
    assert list(tmp_path.iterdir())


def test_the_words_of_the_runtime_are_kept(core, tmp_path):
    (tmp_path / "file").write_text("x")
    below = {"CACHE_DIR": str(tmp_path / "file" / "below")}
    placement = hl.Placement(on_acc(diamond(), core, "left"), "mine")
    with pytest.raises(CompileError) as caught:
        hl.compile(diamond(), placement, compile_properties=below, core=core)
    assert "refused the placement 'mine' on 'CPU', 'ACC'" in str(caught.value)
    assert caught.value.__cause__ is not None
    assert str(caught.value).endswith(".")


def test_a_graph_with_more_subgraphs_than_digits(core):
    names = [f"op{i}" for i in range(30)]
    model = chain(*names)
    affinity = on_acc(model, core, *names[::2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = hl.compile(model, hl.Placement(affinity, "x", {"CPU": F32}), core=core)
    assert [s.ops for s in compiled.partition.subgraphs] == [(name,) for name in names]


@pytest.mark.parametrize("name", ["a\x01b", "\x1b[31m", "\x0b", "\ufffe", "&#1;", "<&>", "]]>"])
def test_the_partition_is_read_whatever_the_model_is_called(name):
    x = op.parameter([1, 4], np.float32, name="x")
    hl.emulate("NAMEACC", unsupported={"Tanh"})
    model = ov.Model([op.result(op.tanh(op.relu(x)))], [x], name)
    compiled = hl.compile(model, "HETERO:NAMEACC,CPU")
    assert compiled.partition.observed
    assert [part.device for part in compiled.partition.subgraphs] == ["NAMEACC", "CPU"]


@pytest.mark.parametrize(
    ("said", "n_inferred"),
    [
        ([["GPU"]], 0),
        ([["(CPU)"], ["(CPU)"], ["GPU"]], 2),
        ([["(CPU)", "GPU"], ["GPU"]], 1),
        ([None], 0),
        ([["(CPU)"]] * 50, 20),  # it never switches: 20 s
    ],
)
def test_auto_is_inferred_until_it_has_switched(said, n_inferred, monkeypatch):
    """Another device is in brackets until its own is ready."""
    inferred, answers = [], iter(said)
    monkeypatch.setattr(clock, "now_ns", lambda: len(inferred) * 10**9)
    auto = SimpleNamespace(get_property=lambda name: next({"EXECUTION_DEVICES": answers}[name]))
    settle(auto, lambda: inferred.append(1))
    assert len(inferred) == n_inferred


def test_a_timed_inference_copies_no_output_but_text(core):
    """What an earlier inference returned then holds the outputs of the last one."""
    words = op.parameter([2], ov.Type.string, name="words")
    text = ov.Model([op.result(words)], [words], "text")
    numbers = np.float32([[1, 2, 3, 4]]), np.float32([[5, 6, 7, 8]])
    for model, (given, other), first_is in (
        (chain("a"), numbers, numbers[1]),
        (text, (np.array(["a", "b"]), np.array(["c", "d"])), ["a", "b"]),
    ):
        session = CompiledSession(hl.compile(model, "CPU", core=core))
        session.give([given])
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # as OpenVINO says that text is copied all the same
            ((_, first),) = session.infer().items()
        session.give([other])
        session.infer()
        ((_, last),) = session.outputs().items()
        assert np.array_equal(first, first_is)
        assert np.array_equal(last, other)
