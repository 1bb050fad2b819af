"""Which cuts of a model with dynamic shapes run: what is foretold is what the runtime does."""

from __future__ import annotations

import numpy as np
import pytest
from counting_core import CountingCore
from small_language_models import decoder

import hetero_lab as hl
from hetero_lab.backend.bound import BoundModel, bind
from hetero_lab.errors import AffinityError
from hetero_lab.model.language import language_model
from hetero_lab.placement.partition import partition_of
from hetero_lab.placement.placement import BoundPlacement
from hetero_lab.runtime.compiled import compile_placed, labelled_clone
from tests.proof.dynamic_cuts import EXACT, moved, random_run, refusal


@pytest.fixture(scope="module")
def bound(core) -> BoundModel:
    return bind(hl.load(decoder(2)), core)


def first_logits(request, bound: BoundModel) -> np.ndarray:
    known = language_model(bound.model)
    request.reset_state()
    for ids, past in (([[1, 2, 3]], 0), ([[4]], 3)):
        request.infer(dict(enumerate(known.feed(np.array(ids), past))))
    return np.array(request.get_output_tensor(0).data)


def what_runtime_does(placed: BoundPlacement) -> np.ndarray | None:
    clone, _ = labelled_clone(placed, partition_of(placed))
    target, properties = placed.compile_call
    try:
        request = placed.core.compile_model(clone, target, properties).create_infer_request()
        return first_logits(request, placed.bound)
    except RuntimeError:
        return None


def check(bound: BoundModel, seed: int) -> bool:
    """Move some ops at random; return whether that runs, after a look at what was foretold."""
    placed = moved(bound, random_run(bound, seed))
    told, done = refusal(placed), what_runtime_does(placed)
    assert (done is None) == bool(told), (seed, told)
    if done is not None:
        alone = bound.core.compile_model(bound.model, "CPU", EXACT).create_infer_request()
        np.testing.assert_allclose(done, first_logits(alone, bound), rtol=1e-4, atol=1e-5)
    return done is not None


def test_the_parallel_executor_refuses_an_invalid_submodel_before_a_compile(own_core):
    bound = bind(hl.load(decoder(2)), own_core)
    placed = moved(bound, ["shape_of_no_past"])
    with pytest.raises(AffinityError, match="not a valid model by itself"):
        hl.ParallelExecutor.of(placed)
    assert own_core.n_compiled == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_few_random_cuts_do_as_foretold(bound, seed):
    check(bound, seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_random_cuts_do_as_foretold(bound):
    ran = [check(bound, seed) for seed in range(3, 43)]
    assert 5 < sum(ran) < len(ran) - 5  # of both kinds


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "shape_of_ids",
            "not a valid model by itself.*Variable shape: .*Keep the ops that",
        ),
        ("layers.0/key/past", "stateful path 'layers.0/.* would be torn into 2 subgraphs"),
    ],
)
def test_what_the_runtime_cannot_run_is_refused_before(own_core: CountingCore, name, why):
    placed = moved(bind(hl.load(decoder(1)), own_core), [name])
    with pytest.raises(AffinityError, match=why):
        compile_placed(placed)
    assert own_core.n_compiled == 0
    assert what_runtime_does(placed) is None
