"""What HETERO does by itself with GPUs that are elsewhere, by memory that is given."""

from __future__ import annotations

from dataclasses import replace

import pytest

import hetero_lab as hl
from hetero_lab.errors import ArgumentError, DeviceError, PlanError, PropertyError
from hetero_lab.model.read import prepare
from hetero_lab.placement import distribution
from hetero_lab.placement.distribution import DeviceShare

PIPELINE = "PIPELINE_PARALLEL"
TWO = ("GPU.7", "GPU.8")  # nowhere here


def asked(*sizes: int | str, devices: tuple[str, ...] = TWO, policy: str | None = PIPELINE):
    memory = dict(zip(devices, sizes, strict=False))
    return hl.distribution("digits_inception", list(devices), policy=policy, memory=memory)


def test_a_model_that_fits_leaves_the_second_gpu_empty():
    found = asked("24GiB", "24GiB")
    assert (found.ratios, found.empty) == ({"GPU.7": 1.0}, ("GPU.8",))
    assert found.sentence.startswith("GPU.8 stays empty under PIPELINE_PARALLEL: GPU.7")
    findings = hl.lint("digits_inception", hl.Affinity.uniform("digits_inception", "CPU"))
    assert "empty-device" not in set(findings["rule"])


def test_a_model_that_does_not_fit_is_divided_by_memory():
    weights = asked("24GiB", "24GiB").shares[0].left_bytes
    found = asked(weights // 2, weights)
    assert found.ratios["GPU.7"] == pytest.approx(0.5 / 1.2, rel=1e-4)
    table = found.to_frame().set_index("device")
    assert list(table.index) == list(TWO)
    assert 0.3 < table.loc["GPU.7", "weight_bytes"] / weights < 0.45
    assert table.loc["GPU.7", "left_bytes"] == weights
    assert table.loc["GPU.8", "left_bytes"] >= table.loc["GPU.8", "weight_bytes"]
    assert found.estimated
    assert "about GPU.7 39%" in found.sentence
    # The CPU takes what no GPU holds.
    found = asked(weights // 4, weights // 4, devices=(*TWO, "CPU"))
    assert [share.ratio is None for share in found.shares] == [False, False, True]
    assert all(share.n_ops for share in found.shares)
    assert not found.empty


def test_a_device_holds_weights_states_and_boundary_tensors():
    share = DeviceShare("A", None, 1000, 0.5, "all", 3, weight_bytes=400, state_bytes=50,
                        boundary_bytes=7)  # fmt: skip
    assert share.total_bytes == 457
    empty = replace(share, device="B", ratio=None, n_ops=0)
    found = replace(asked("24GiB", "24GiB"), shares=(share, empty))
    assert found.ratios == {"A": 0.5}
    assert found.empty == ("B",)
    row = found.to_frame().iloc[0]
    assert (row["weight_bytes"], row["state_bytes"], row["boundary_bytes"]) == (400, 50, 7)


def test_without_a_policy_the_first_device_takes_all():
    found = asked("1MiB", "1MiB", policy=None)
    assert (found.ratios, found.empty) == ({}, ("GPU.8",))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"placement": "HETERO:CPU"}, PropertyError, "no effect on CPU"),
        ({"placement": ["GPU.8", "GPU.8"]}, DeviceError, "twice"),
        ({"placement": ["GPU.7", "GPU.8"], "memory": {"GPU.8": 5}}, DeviceError, "'GPU.7' is not"),
        ({"placement": ["CPU"], "memory": {"GPU.8": 5}}, PlanError, "memory names 'GPU.8'"),
        ({"placement": ["GPU.8"], "memory": {"GPU.8": "much"}}, PlanError, "memory: 'much'"),
        ({"placement": ["CPU"], "policy": "TENSOR_PARALLEL"}, PropertyError, "TENSOR_PARALLEL"),
    ],
)
def test_bad_input_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        hl.distribution("digits_inception", **{"policy": PIPELINE, **given})


def test_fit_takes_the_memory_that_is_free_and_says_how_to_divide():
    fit = hl.fit_blocks("digits_inception", ["CPU"])
    assert fit.memory[0].blocks == "0-1"
    assert fit.placement.affinity == fit.affinity
    with pytest.raises(PlanError, match="cut='rows'"):
        hl.fit_blocks("digits_inception", ["CPU"], cut="rows")
    acc = hl.emulate("ACC").name
    with pytest.raises(PropertyError, match="has no QUERY_MODEL_RATIO"):
        hl.fit_blocks("digits_inception", [acc, "CPU"], cut="ratio")


def test_a_placement_that_hetero_divides_is_explained():
    model = hl.load("digits_inception")
    acc = hl.emulate("ACC").name
    own = {"HETERO": {"MULTI_DEVICE_PRIORITIES": f"{acc},CPU"}}
    divided = hl.Placement(hl.Affinity.uniform(model, acc), "", own)
    found = hl.distribution(model, divided)
    assert found.placement is divided
    assert (found.policy, found.ratios, found.empty) == (None, {}, ("CPU",))
    weights, n_ops = prepare(model).graph.weight_bytes, len(divided.affinity.ops)
    assert [(s.device, s.n_ops, s.total_bytes, s.left_bytes) for s in found.shares] == [
        (acc, n_ops, weights, weights), ("CPU", 0, 0, 0),
    ]  # fmt: skip
    with pytest.raises(ArgumentError, match="has its own policy"):
        hl.distribution(model, divided, PIPELINE)
    with pytest.raises(ArgumentError, match="are labelled"):
        hl.distribution(model, hl.Affinity.uniform(model, "CPU"))


def test_a_placement_with_a_policy_keeps_the_properties_of_its_devices(monkeypatch):
    """Only GPUs obey one: the memory of ACC and HETERO's answer are by hand."""
    model = hl.load("digits_inception")
    devices = [hl.emulate("ACC").name, "CPU"]
    on_first, cut_with = hl.Affinity.uniform(model, devices[0]), []

    def own_affinity(bound, devices, properties):
        cut_with.append(properties)
        return on_first

    monkeypatch.setattr(distribution, "takes_ratio", lambda core, device: True)
    monkeypatch.setattr(distribution, "_totals", lambda bound, devices: {"ACC": 1 << 30})
    monkeypatch.setattr(distribution, "own_affinity", own_affinity)
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    given = hl.distribution(model, devices, PIPELINE, device_properties={devices[0]: exact})
    again = hl.distribution(model, given.placement)
    assert again == given
    assert again.placement.device_properties[devices[0]] == exact
    ratio = {"QUERY_MODEL_RATIO": 1.0}  # stands for the policy, which is not asked as well
    assert cut_with == [{devices[0]: exact | ratio}] * 4
