from __future__ import annotations

import datetime

import numpy as np
import openvino as ov
import openvino.opset13 as opset
import pytest
from counting_core import in_f32
from random_models import random_affinity, random_model
from small_models import chain, convolutions, two_parts

import hetero_lab as hl
from hetero_lab.errors import MeasurementError
from hetero_lab.model.read import PreparedModel, prepare
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import Partition, one_subgraph, predict
from hetero_lab.runtime.counters import Counter, executed_ops_us, read_counters
from hetero_lab.runtime.inputs import generate_inputs


def measure(prepared: PreparedModel, placement, core) -> tuple[Partition, tuple[Counter, ...]]:
    compiled = hl.compile(prepared, placement, counters=True, core=core)
    request = compiled.new_request(generate_inputs(prepared))
    for _ in range(5):
        request.infer()
    rows = read_counters(request.profiling_info, compiled.partition, prepared.graph)
    assert sum(row.real_time_us for row in rows) == pytest.approx(
        sum(info.real_time.total_seconds() * 1e6 for info in request.profiling_info)
    )
    assert len(rows) == len(request.profiling_info)
    return compiled.partition, rows


def by_op(rows) -> dict[str, Counter]:
    return {row.op: row for row in rows if row.kind == "op"}


def test_rows_belong_to_subgraphs_devices_ops_and_boundaries(core):
    prepared = prepare(convolutions())
    cpu = hl.Affinity.uniform(prepared, "CPU", core=core)
    placement = in_f32(cpu.fix(ops={"softmax": "ACC"}, core=core))
    partition, rows = measure(prepared, placement, core)
    assert [s.device for s in partition.subgraphs] == ["CPU", "ACC", "CPU"]
    assert {
        op: (row.subgraph, row.device, row.precision, set(row.fused_ops))
        for op, row in by_op(rows).items()
    } == {
        "conv1": (0, "CPU", "f32", {"bias1", "relu1"}),
        "softmax": (1, "ACC", "f32", set()),
        "conv2": (2, "CPU", "f32", {"bias2", "relu2"}),
    }
    assert not any(row.node_name.startswith("subgraph") for row in rows)
    assert all(row.real_time_us == 0 for row in rows if row.kind == "fused")
    times = executed_ops_us(rows)
    assert set(times) == {"conv1", "bias1", "relu1", "softmax", "conv2", "bias2", "relu2"}
    assert times["conv1"] > 0
    assert times["bias1"] == times["relu1"] == 0
    ports = {(row.subgraph, row.node_type, row.tensor) for row in rows if row.kind == "port"}
    assert ports >= {
        (0, "Parameter", "image"), (0, "Result", "relu1"), (1, "Parameter", "relu1"),
        (1, "Result", "softmax"), (2, "Parameter", "softmax"), (2, "Result", "out"),
    }  # fmt: skip
    for row in rows:
        if row.kind == "reorder" and row.tensor:
            assert (row.subgraph, row.tensor) in {(s, tensor) for s, _, tensor in ports}


@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_a_fully_connected_layer_is_its_matmul_and_not_the_bias_it_is_named_after(core, alpha):
    """Nor does the multiplication go with the op above, which has a node of its own."""
    rng = np.random.default_rng(0)
    data = opset.parameter([8, 64], np.float32, name="data")
    above = opset.softmax(data, axis=1, name="above")
    weights = opset.constant(rng.standard_normal((64, 256), dtype=np.float32))
    scaled = opset.matmul(above, weights, False, False, name="product")
    if alpha != 1.0:
        scaled = opset.multiply(scaled, opset.constant(np.float32(alpha)), name="scaled")
    shift = opset.constant(rng.standard_normal((1, 256), dtype=np.float32))
    bias = opset.add(scaled, shift, name="bias")
    prepared = prepare(ov.Model([opset.result(bias)], [data], "layer"))
    _, rows = measure(prepared, in_f32(hl.Affinity.uniform(prepared, "CPU", core=core)), core)
    leaders = by_op(rows)
    assert leaders["product"].node_name == "bias"
    assert leaders["product"].fused_ops == (("bias",) if alpha == 1.0 else ("scaled", "bias"))
    assert leaders["above"].fused_ops == ()


@pytest.mark.parametrize("seed", [4, 13, 31, 38])
def test_what_holds_of_every_set_of_counters(core, seed):
    prepared = prepare(random_model(seed))
    affinity = random_affinity(prepared.graph, ["ACC", "CPU"], seed)
    partition, rows = measure(prepared, in_f32(affinity), core)
    where = partition.subgraph_of
    grouped = [op for row in rows for op in row.fused_ops]
    leaders = by_op(rows)
    assert len(grouped) == len(set(grouped))
    assert not set(grouped) & set(leaders)
    for row in rows:
        assert row.device == partition.subgraphs[row.subgraph].device
        for op in (row.op, *row.fused_ops):
            assert not op or where[op] == row.subgraph
    # A reorder bears the names of what is on both its sides; so must its boundary.
    graph, boundaries = prepared.graph, {b.tensor: b for b in partition.boundaries}
    for row in rows:
        if row.kind != "reorder" or row.tensor not in boundaries:
            continue
        boundary = boundaries[row.tensor]
        if row.subgraph == boundary.source:
            beside = [op for op in where if row.node_name.startswith(f"{op}_")]
            leader = leaders.get(max(beside, key=len, default=""))
            assert leader is None or boundary.op in (leader.op, *leader.fused_ops)
        else:
            assert row.subgraph in boundary.targets
            user = max((op for op in where if row.node_name.endswith(f"_{op}")), key=len)
            group = (user, *(leaders[user].fused_ops if user in leaders else ()))
            reads = {
                graph.ops[p].name for op in group for p, _ in graph.ops[graph.index_of[op]].inputs
            }
            assert boundary.op in reads


def test_without_counters_everything_is_zero_and_that_raises(core):
    prepared = prepare(convolutions(8))
    for placement in ("CPU", "HETERO:ACC,CPU"):
        compiled = hl.compile(prepared, placement, core=core)
        request = compiled.new_request(generate_inputs(prepared))
        request.infer()
        info = request.profiling_info
        assert info
        assert {str(row.status) for row in info} == {"Status.NOT_RUN"}
        with pytest.raises(MeasurementError, match="every node is NOT_RUN.*PERF_COUNT"):
            read_counters(info, compiled.partition, prepared.graph)


def test_names_with_a_prefix_like_the_runtimes_are_names(core):
    names = ("subgraph7: fake", "subgraph0: x", "Parameter_1", "Result_5", "a:b", "b")
    prepared = prepare(chain(*names, size=200_000))
    cpu = hl.Affinity.uniform(prepared, "CPU", core=core)
    for placement in (
        in_f32(cpu, direct=True),
        in_f32(cpu.fix(ops={"subgraph0: x": "ACC", "a:b": "ACC"}, core=core)),
    ):
        partition, rows = measure(prepared, placement, core)
        assert set(executed_ops_us(rows)) == set(names)
        for row in rows:
            if row.kind == "op":
                assert partition.subgraph_of[row.op] == row.subgraph


# -- rows as other situations and other devices give them --------------------------------------


def info(name: str, kind: str, exec_type: str, us: int, status: str = "") -> ov.ProfilingInfo:
    made = ov.ProfilingInfo()
    made.node_name, made.node_type, made.exec_type = name, kind, exec_type
    made.real_time = made.cpu_time = datetime.timedelta(microseconds=us)
    made.status = getattr(ov.ProfilingInfo.Status, status or ("EXECUTED" if us else "NOT_RUN"))
    return made


def rows_of(prepared: PreparedModel, *given: ov.ProfilingInfo, **devices: str):
    affinity = Affinity.from_graph(prepared.graph, lambda name: devices.get(name, "CPU"))
    partition = predict(prepared.graph, affinity)
    if not devices:
        partition = one_subgraph(partition, "CPU")
    return read_counters(given, partition, prepared.graph)


@pytest.mark.parametrize(
    ("names", "given", "expected"),
    [
        pytest.param(
            ("slow", "quick", "inside"),
            [("slow", "Relu", "jit_avx512_f32", 5), ("quick", "Sigmoid", "jit_avx512_f32", 0),
             ("inside", "Tanh", "undef", 0)],
            [("op", "slow", (), 5), ("op", "quick", ("inside",), 0), ("fused", "inside", (), 0)],
            id="less than a microsecond is not fused",
        ),
        pytest.param(
            ("c1", "relu", "third"),
            [("convolution:c1", "Reorder", "convolution_gpu_ref__f32", 7),
             ("relu", "Relu", "undef", 0, "OPTIMIZED_OUT"),
             ("third", "Tanh", "activation_ref__f16", 3)],
            [("op", "c1", ("relu",), 7), ("fused", "relu", (), 0), ("op", "third", (), 3)],
            id="a GPU names the node after its kernel",
        ),
        pytest.param(
            ("a",), [("a", "Relu", "jit_f32", 1), ("Multiply_8", "Eltwise", "j", 4)],
            [("op", "a", (), 1), ("other", "", (), 4)], id="an unexpected node is kept",
        ),
    ],
)  # fmt: skip
def test_rows_of_other_situations_and_devices(names, given, expected):
    rows = rows_of(prepare(chain(*names)), *(info(*row) for row in given))
    assert [(row.kind, row.op, row.fused_ops, row.real_time_us) for row in rows] == expected


def test_a_reorder_belongs_to_the_longest_name_that_fits():
    model = two_parts()
    for node in model.get_parameters():
        node.set_friendly_name({"x": "in", "y": "in_1"}[node.get_friendly_name()])
    rows = rows_of(
        prepare(model),
        info("relu", "Relu", "jit_f32", 2),
        info("abs", "Abs", "jit_f32", 2),
        info("in_1_abcd_acdb_abs", "Reorder", "jit_f32", 1),
        info("in_abcd_acdb_relu", "Reorder", "jit_f32", 1),
    )
    assert [row.tensor for row in rows if row.kind == "reorder"] == ["in_1", "in"]


def test_boundaries_are_told_apart_by_the_runtimes_numbers():
    prepared = prepare(chain("a", "b", "c"))
    rows = rows_of(
        prepared,
        info("subgraph0: a", "Relu", "jit_f32", 2),
        info("subgraph0: Result_91", "Result", "unknown_f32", 0),
        info("subgraph1: Parameter_92", "Parameter", "unknown_f32", 0),
        info("subgraph1: Parameter_92_abcd_acdb_b", "Reorder", "jit_f32", 4),
        info("subgraph1: b", "Sigmoid", "jit_f32", 2),
        info("subgraph1: b_acdb_abcd_Result_93", "Reorder", "jit_f32", 3),
        info("subgraph1: Result_93", "Result", "unknown_f32", 0),
        info("subgraph2: Parameter_94", "Parameter", "unknown_f32", 0),
        info("subgraph2: c", "Tanh", "jit_f32", 2),
        b="ACC",
    )
    reorders = {row.node_name: (row.tensor, row.device) for row in rows if row.kind == "reorder"}
    assert reorders == {
        "Parameter_92_abcd_acdb_b": ("a", "ACC"), "b_acdb_abcd_Result_93": ("b", "ACC"),
    }  # fmt: skip


def test_the_precision_is_read_off_the_kernel():
    prepared = prepare(chain("a"))
    for exec_type, precision in (
        ("brgconv_avx512_bf16", "bf16"), ("jit_avx512_I8", "i8"), ("ref_any_f32", "f32"),
        ("brgemm_avx512_amx_u8", "u8"), ("kernel__f16", "f16"), ("unknown", ""),
        ("convolution_gpu_ref__f32", "f32"), ("undef", ""),
    ):  # fmt: skip
        (row,) = rows_of(prepared, info("a", "Relu", exec_type, 1))
        assert row.precision == precision
