"""Which cuts of a model with dynamic shapes run: what is foretold is what the runtime does."""

from __future__ import annotations

import pytest
from counting_core import CountingCore
from small_language_models import decoder

import hetero_lab as hl
from hetero_lab.devices.core import BoundModel, bind
from hetero_lab.errors import AffinityError
from hetero_lab.runtime.compiled import compile_placed
from tests.proof.dynamic_cuts import moved, outcome, random_run


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
    ran = [as_foretold(bound, seed) for seed in range(3, 43)]
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
