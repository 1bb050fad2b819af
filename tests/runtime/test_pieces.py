"""Submodels of a partition: which are valid, and ports named and numbered as HETERO does."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from counting_core import CountingCore, on_acc
from openvino import opset13 as op
from small_language_models import decoder
from small_models import stateful

import hetero_lab as hl
from hetero_lab.devices.core import BoundModel, bind
from hetero_lab.errors import AffinityError, ArgumentError
from hetero_lab.placement.partition import Partition
from hetero_lab.runtime.compiled import compile_placed
from hetero_lab.runtime.pieces import at_step, cut, new_states, readable
from tests.proof.dynamic_cuts import moved, outcome, random_run


def crossed() -> ov.Model:
    """Build two ops that hand their tensors on, to one that reads the later one first."""
    x = op.parameter([1 << 17], np.float32, name="Parameter_7")
    first = op.relu(x, name="first")
    second = op.sigmoid(first, name="second")
    third = op.subtract(second, first, name="third")
    return ov.Model([op.result(op.multiply(third, second, name="fourth"))], [x], "crossed")


def test_ports_at_boundaries_are_numbered_in_the_order_of_the_wiring(core):
    """Above the model's own, so that no number of a user's name comes in between."""
    bound = bind(crossed(), core)
    affinity = on_acc(bound.model, core, "third", "first")
    parts = cut(bound, hl.partition(bound, affinity, core=core))
    assert len(parts) == 4
    n_seen = 0
    for part in parts:
        for kind, nodes, entries in (
            ("Parameter", part.model.get_parameters(), part.inputs),
            ("Result", part.model.get_results(), part.outputs),
        ):
            names = [
                node.get_friendly_name()
                for node, entry in zip(nodes, entries, strict=True)
                if entry[0] == "tensor"
            ]
            numbers = [int(name.removeprefix(f"{kind}_")) for name in names]
            assert numbers == sorted(set(numbers))
            assert all(number >= 1_000_000 for number in numbers)
            n_seen += len(numbers)
    assert n_seen == 3 + 5
    own = {node.get_friendly_name() for part in parts for node in part.model.get_parameters()}
    assert "Parameter_7" in own


def test_a_partition_that_lacks_ops_is_refused(core):
    with pytest.raises(ArgumentError, match="does not map every op to a subgraph"):
        cut(bind(crossed(), core), Partition((), ()))


def test_counters_of_both_executors_tell_the_same_ports(core):
    model = crossed()
    affinity = on_acc(model, core, "third", "first")
    found = []
    for executor in ("hetero", "parallel"):
        profile = hl.profile(
            model, affinity, core=core, iterations=10, warmup=0, progress=False,
            reference=False, executor=executor,
        )  # fmt: skip
        ports = [c for c in profile.counters if c.kind == "port"]
        found.append(sorted((c.subgraph, c.node_type, c.tensor) for c in ports))
    assert found[0] == found[1]
    assert {tensor for _, _, tensor in found[0]} >= {"first", "second", "third"}


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_a_floating_point_tensor_of_any_type_is_read_as_f32(kind):
    x = op.parameter([3], ov.Type.f32)
    narrow = op.convert(x, kind)
    model = ov.Model([op.result(readable(narrow.output(0)))], [x])
    values = np.array([0.5, -2.0, 3.0], np.float32)
    (read,) = ov.compile_model(model, "CPU")([values]).values()
    assert read.dtype == np.float32
    assert read.tolist() == values.tolist()


def test_a_step_of_a_stateful_model_is_a_model_without_states():
    running_sum = stateful()
    assert new_states(running_sum) == {"read": ("middle", 0)}
    x, held = np.full((1, 4), 2.0, np.float32), np.array([[1, 2, 3, 4]], np.float16)
    for states, made in ({}, [-2, -2, -2, -2]), ({"read": held}, [-3, -4, -5, -6]):
        step, arrays = at_step(running_sum, [x], states)
        assert step.get_sinks() == []
        for _ in range(2):  # nothing is kept in between
            (out,) = ov.compile_model(step, "CPU")(arrays).values()
            assert out.tolist() == [made]
    assert len(running_sum.get_sinks()) == 1


# -- dynamic shapes: what is foretold is what the runtime does ------------------------------------


@pytest.fixture(scope="module")
def bound(core) -> BoundModel:
    return bind(hl.load(decoder(2)), core)


def as_foretold(bound: BoundModel, seed: int) -> bool:
    """Move some ops at random; return whether that runs, after a look at what was foretold."""
    how = outcome(bound, random_run(bound, seed))
    assert how in ("runs as predicted", "refused, and would not run"), seed
    return how == "runs as predicted"


def test_the_parallel_executor_refuses_an_invalid_submodel_before_a_compile(own_core):
    bound = bind(hl.load(decoder(2)), own_core)
    placed = moved(bound, ["shape_of_no_past"])
    with pytest.raises(AffinityError, match="not a valid model by itself"):
        hl.ParallelExecutor.of(placed)
    assert own_core.n_compiled == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_few_random_cuts_do_as_foretold(bound, seed):
    as_foretold(bound, seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_random_cuts_do_as_foretold(bound):
    ran = [as_foretold(bound, seed) for seed in range(3, 23)]
    assert 5 < sum(ran) < len(ran) - 5  # of both kinds


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("shape_of_ids", "not a valid model by itself.*Variable shape: .*Keep the ops that"),
        ("layers.0/key/past", "stateful path 'layers.0/.* would be torn into 2 subgraphs"),
    ],
)
def test_what_the_runtime_cannot_run_is_refused_before(own_core: CountingCore, name, why):
    placed = moved(bind(hl.load(decoder(1)), own_core), [name])
    with pytest.raises(AffinityError, match=why):
        compile_placed(placed)
    assert own_core.n_compiled == 0
    assert outcome(placed.bound, [name]) == "refused, and would not run"
