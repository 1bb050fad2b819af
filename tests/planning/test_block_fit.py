from __future__ import annotations

import itertools

import pytest
from small_language_models import decoder
from small_models import stateful

import hetero_lab as hl
from hetero_lab.errors import PlanError
from hetero_lab.model.read import prepare
from hetero_lab.model.static_phases import graph_at_context
from hetero_lab.planning import block_fit
from hetero_lab.tables import bytes_text


@pytest.fixture(scope="module")
def small():
    hl.emulate("ACC")
    return prepare(decoder(4))


def held(fit):
    return {m.device: (m.weight_bytes, m.state_bytes, m.boundary_bytes) for m in fit.memory}


def test_all_on_the_first_device_where_it_fits(small):
    fit = hl.fit_blocks(small, ["ACC", "CPU"], {"ACC": "1GiB"}, context_tokens=100)
    assert fit.affinity == hl.Affinity.uniform(small, "ACC")
    # 4 layers, 2 states each, of 2 heads of 8 f32 numbers for each of 100 tokens
    assert held(fit) == {"ACC": (small.graph.weight_bytes, 4 * 2 * 2 * 8 * 100 * 4, 0),
                         "CPU": (0, 0, 0)}  # fmt: skip
    more = hl.fit_blocks(small, ["ACC", "CPU"], {}, context_tokens=50, batch=3)
    assert more.memory[0].state_bytes == 4 * 2 * 2 * 8 * 50 * 4 * 3


def test_as_many_blocks_as_fit_and_not_one_more(small):
    """Against the bytes of every cut, added up from their definition op by op."""
    sized = graph_at_context(small, 64)
    totals = []
    for n_first in range(5):
        cut = {block: "ACC" if block < n_first else "CPU" for block in range(4)}
        affinity = hl.Affinity.by_block(small, cut)
        total = 0
        for op in sized:
            n_bytes = sum(tensor.n_bytes or 0 for tensor in op.outputs)
            on = {affinity[sized.ops[use.index].name] for use in sized.consumers[op.index]
                  if sized.ops[use.index].type != "Result"}  # fmt: skip
            if op.type == "Constant":
                total += n_bytes * ("ACC" in on)
            elif on - {affinity[op.name]} and "ACC" in on | {affinity[op.name]}:
                total += n_bytes
            if op.type == "ReadValue" and affinity[op.name] == "ACC":
                total += n_bytes
        totals.append(total)
    for n_first, total in enumerate(totals):
        fitting = max(n for n, t in enumerate(totals) if t <= total)
        fit = hl.fit_blocks(small, ["ACC", "CPU"], {"ACC": total}, context_tokens=64)
        assert fit.memory[0].total_bytes == totals[fitting] <= total
        assert fitting >= n_first
        by_block = {block: "ACC" if block < fitting else "CPU" for block in range(4)}
        assert fit.affinity == hl.Affinity.by_block(small, by_block)


def test_devices_that_share_a_memory(small):
    sizes = [hl.fit_blocks(small, ["ACC"], {}, context_tokens=n).memory[0] for n in (10, 1000)]
    assert sizes[0].total_bytes < sizes[1].total_bytes
    limit = {("ACC", "CPU"): 2 * sizes[0].total_bytes, "ACC": sizes[0].total_bytes // 2}
    fit = hl.fit_blocks(small, ["ACC", "CPU"], limit, context_tokens=10)
    assert fit.memory[0].total_bytes <= sizes[0].total_bytes // 2
    assert sum(m.total_bytes for m in fit.memory) <= 2 * sizes[0].total_bytes
    with pytest.raises(PlanError, match=r"ACC and CPU .* at the least .* needed.* 1000 tokens"):
        hl.fit_blocks(small, ["ACC", "CPU"], limit, context_tokens=1000)


def test_three_devices_are_filled_in_their_order(small):
    hl.emulate("ACC2")
    all_of_it = hl.fit_blocks(small, ["ACC"], {}).memory[0].total_bytes
    limit = {"ACC": 6 * all_of_it // 10, "ACC2": all_of_it // 2}
    fit = hl.fit_blocks(small, ["ACC", "ACC2", "CPU"], limit)
    assert all(m.total_bytes <= limit.get(m.device, m.total_bytes) for m in fit.memory)
    ranges = [m.blocks for m in fit.memory if m.blocks]
    numbers = [n for r in ranges for n in range(int(r.split("-")[0]), int(r.split("-")[-1]) + 1)]
    assert numbers == list(range(4))
    assert list(fit.to_frame()["device"]) == ["ACC", "ACC2", "CPU"]


def test_splits_that_exceed_a_limit_by_themselves_cost_no_try(monkeypatch):
    model, devices = prepare(decoder(8)), ["ACC", "ACC2", "ACC3", "CPU"]
    for device in devices[:3]:
        hl.emulate(device)
    total = hl.fit_blocks(model, ["CPU"], {}, context_tokens=16).memory[0].total_bytes
    limit = dict.fromkeys(devices, int(0.36 * total))
    monkeypatch.setattr(block_fit, "_MOST_SPLITS", 40)  # without limits it is the 69th
    fit = hl.fit_blocks(model, devices, limit, context_tokens=16)
    assert all(m.total_bytes <= limit[m.device] for m in fit.memory)
    assert fit.memory[-1].blocks.endswith("7")
    monkeypatch.setattr(block_fit, "_MOST_SPLITS", 1)
    with pytest.raises(PlanError, match="None of the first 1 ways to divide 8 blocks"):
        hl.fit_blocks(model, devices, limit, context_tokens=16)


def test_the_least_that_is_needed_is_that_of_all_devices(small):
    total = hl.fit_blocks(small, ["CPU"], {}).memory[0].total_bytes
    with pytest.raises(PlanError, match=f"at the least {bytes_text(total)} are needed together"):
        hl.fit_blocks(small, ["ACC", "CPU"], {"ACC": total // 3, "CPU": total // 3})


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ({"GPU": "1GiB"}, "'GPU', which is not planned for"),
        ({"ACC": "much"}, "not a number of bytes"),
        ({("ACC", "CPU"): 10}, "No placement by block keeps within"),
    ],
)
def test_limits_that_cannot_be_kept(small, limit, says):
    with pytest.raises(PlanError, match=says):
        hl.fit_blocks(small, ["ACC", "CPU"], limit)


def test_a_model_without_layers():
    with pytest.raises(PlanError, match="no repeated layers"):
        hl.fit_blocks(stateful(), ["CPU"], {})


def test_a_static_tensor_keeps_its_shape():
    prepared = prepare("digits_inception")
    assert graph_at_context(prepared, 77) == prepared.graph


def test_shapes_at_a_context_length(small):
    sized = graph_at_context(small, 64, batch=2)
    shapes = {op.outputs[0].shape for op in sized if op.type == "ReadValue"}
    assert shapes == {(2, 2, 64, 8)}
    for op, whole in itertools.zip_longest(sized, small.graph):
        assert all(t.n_bytes is not None for t in op.outputs)
        assert op.inputs == whole.inputs
