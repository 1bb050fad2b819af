from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from msgspec import structs
from openvino import opset13 as op
from small_models import chain

import hetero_lab as hl
from hetero_lab.errors import ArgumentError
from hetero_lab.model.opgraph import work_of
from hetero_lab.model.read import prepare
from hetero_lab.planning.cost_model import BoundaryCost, Unit

HERE = {"host": "here", "openvino_version": "2026.4", "measured_at": "today"}


def relus(*sizes: int) -> ov.Model:
    """Return a chain of a Relu of each size, with Tiles between them."""
    x = op.parameter([sizes[0]], np.float32, name="x")
    node: ov.Node = x
    for number, size in enumerate(sizes):
        if number:
            node = op.tile(node, [size // sizes[number - 1]], name=f"tile{number}")
        node = op.relu(node, name=f"relu{number}")
    return ov.Model([op.result(node, name="out")], [x], f"relus{len(sizes)}")


def costs_of(model: ov.Model, us_per_byte: float = 0.01, **more) -> hl.CostModel:
    """Return costs in which a Relu's time is proportional to its bytes; ACC is twice as fast."""
    graph = prepare(model).graph
    units = []
    for index in graph.placeable:
        node = graph.ops[index]
        us = us_per_byte * work_of(graph, node)
        units.append(Unit((node.name,), (us / 2, us)))
    boundaries = {("ACC", "CPU"): BoundaryCost(3.0), ("CPU", "ACC"): BoundaryCost(5.0)}
    return hl.CostModel(
        graph, ("ACC", "CPU"), tuple(units), boundaries, {"ACC": 1.0, "CPU": 2.0}, 7.0, **more
    )


def test_what_grows_with_the_bytes_is_guessed_for_other_sizes():
    known = costs_of(relus(64, 128, 256, 512, 1024))
    target = hl.load(relus(2048, 8192))
    guessed = hl.guess_costs(target, [known])
    assert guessed.guessed_from == ("relus5",)
    for device in ("ACC", "CPU"):
        affinity = hl.Affinity.from_graph(guessed.graph, lambda _, d=device: d)
        assert guessed.predict_us(affinity) == pytest.approx(
            costs_of(target).predict_us(affinity), rel=1e-3
        )
    assert guessed.boundaries[("CPU", "ACC")].fixed_us == 5.0


def test_a_type_that_was_always_refused_is_taken_to_be_refused_again():
    known = costs_of(relus(64, 128))
    units = tuple(
        structs.replace(unit, time_us=(None, unit.time_us[1])) if "tile" in unit.ops[0] else unit
        for unit in known.units
    )
    known = replace(known, units=units)
    guessed = hl.guess_costs(relus(64, 256, 512), [known])
    ops = {op.name for op in guessed.graph if op.type == "Relu"}
    assert guessed.supports("ACC") == ops
    assert guessed.supports("CPU") == ops | {"tile1", "tile2"}


def test_a_guess_says_so_and_stays_one_when_it_is_stored(tmp_path: Path):
    known = costs_of(chain("r", "s", "t"), environment={"host": "far-away"})
    target = hl.load(relus(8, 16))
    guessed = hl.guess_costs(target, [known])
    assert "a guess" in repr(guessed)
    assert guessed.origin.startswith("Guessed from the costs of")
    assert "far-away" in guessed.origin
    guessed.to_json(tmp_path / "costs.json")
    assert hl.CostModel.from_json(tmp_path / "costs.json") == guessed
    made = hl.plan(target, guessed, progress=False)
    assert "by guessed costs" in repr(made)
    measured = replace(guessed, guessed_from=())
    assert "guessed" not in repr(hl.plan(target, measured, progress=False))
    parallel = hl.plan(target, guessed, executor="parallel", progress=False)
    assert "with guessed costs" in repr(parallel)


def test_costs_of_other_devices_or_none_are_refused():
    known = costs_of(relus(8, 16))
    with pytest.raises(ArgumentError, match="at least one"):
        hl.guess_costs(relus(8), [])
    other = replace(known, devices=("CPU", "ACC"), units=known.units)
    with pytest.raises(ArgumentError, match="ACC, CPU and of CPU, ACC"):
        hl.guess_costs(relus(8), [known, other])


def test_costs_that_were_not_measured_alike_are_refused():
    known = costs_of(relus(8, 16), environment=HERE, device_properties={"ACC": {"HINT": "f32"}})
    for change, message in (
        ({"environment": {**HERE, "host": "there"}}, "on the host 'here' and 'there'"),
        ({"environment": {**HERE, "openvino_version": "2025.1"}}, "OpenVINO '2026.4' and '2025.1'"),
        ({"device_properties": {"ACC": {"HINT": "f16"}}}, "properties .*f32.* and .*f16"),
        ({"emulated": {"ACC": "GPU"}}, "emulated on .* and .*GPU"),
        ({"guessed_from": ("far",)}, "a guess themselves.*'far'"),
    ):
        with pytest.raises(ArgumentError, match=message):
            hl.guess_costs(relus(8), [known, replace(known, **change)])
    later = replace(known, environment={**HERE, "measured_at": "tomorrow"})
    guessed = hl.guess_costs(relus(8), [known, later])
    assert guessed.environment == {"host": "here", "openvino_version": "2026.4"}


def test_work_is_multiply_adds_of_products_and_bytes_of_others():
    x = op.parameter([1, 6, 8, 8], np.float32, name="x")
    conv = op.convolution(
        x, np.ones((4, 6, 3, 3), np.float32), [1, 1], [1, 1], [1, 1], [1, 1], name="conv"
    )
    flat = op.reshape(conv, np.array([4, 64]), False, name="flat")
    product = op.matmul(flat, np.ones((64, 10), np.float32), False, False, name="product")
    graph = prepare(ov.Model([op.result(product, name="out")], [x], "work")).graph
    work = {name: work_of(graph, graph.ops[i]) for name, i in graph.index_of.items()}
    assert work["conv"] == 4 * 8 * 8 * 6 * 3 * 3
    assert work["product"] == pytest.approx(4 * 64 * 10)
    assert work["flat"] == 2 * 4 * 256 + 16
