"""The parallel executor computes what one device computes, several requests at once."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from random_models import random_affinity, random_model
from small_models import stateful

import hetero_lab as hl
from hetero_lab.errors import ArgumentError, InputError
from hetero_lab.model.read import prepare
from hetero_lab.runtime.inputs import generate_inputs
from hetero_lab.runtime.parallel import ClosedError

F32 = {"PARACC": {"INFERENCE_PRECISION_HINT": "f32"}, "CPU": {"INFERENCE_PRECISION_HINT": "f32"}}


@pytest.fixture(scope="module", autouse=True)
def second_device():
    hl.emulate("PARACC")


def expected(prepared, inputs):
    affinity = hl.Affinity.uniform(prepared, "CPU")
    return hl.compile(prepared, hl.Placement(affinity, "CPU", F32, direct=True))(inputs)


def close(got, wanted):
    assert list(got) == list(wanted)
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    "seed", [s if s < 6 else pytest.param(s, marks=pytest.mark.slow) for s in range(100)]
)
@pytest.mark.parametrize("separate", [False, True])
def test_random_models_and_requests_in_flight(seed, separate):
    prepared = prepare(random_model(seed))
    affinity = random_affinity(prepared.graph, ["PARACC", "CPU"], seed)
    inputs = [generate_inputs(prepared, s) for s in range(3)]
    wanted = [expected(prepared, i) for i in inputs]
    with hl.ParallelExecutor(
        prepared, affinity, device_properties=F32, n_requests=2, separate_branches=separate
    ) as executor:
        futures = [executor.submit(i) for i in inputs * 2]
        for future, value in zip(futures, wanted * 2, strict=True):
            close(future.result(timeout=60), value)


def test_every_run_of_a_subgraph_is_on_the_timeline():
    model = hl.load("digits_inception")
    affinity = hl.Affinity.uniform(model, "CPU").fix(patterns={"^mixed2": "PARACC"})
    with hl.ParallelExecutor(model, affinity) as executor:
        inputs = generate_inputs(prepare(model))
        for _ in range(5):
            executor(inputs)
        spans = executor.timeline
    assert len(spans) == 5 * executor.partition.n_subgraphs
    assert all(span.end_s > span.start_s for span in spans)
    devices = [s.device for s in executor.partition.subgraphs]
    assert all(span.device == devices[span.subgraph] for span in spans)


def test_threads_end_and_a_closed_executor_says_so():
    model = hl.load("digits_inception")
    before = {t.name for t in threading.enumerate()}
    executor = hl.ParallelExecutor(model, hl.Affinity.uniform(model, "CPU"))
    inputs = generate_inputs(prepare(model))
    futures = [executor.submit(inputs) for _ in range(20)]
    executor.close()
    assert all(future.done() and future.exception() is None for future in futures)
    assert not [t for t in threading.enumerate() if t.name.startswith("hetero_lab ")] or before
    with pytest.raises(ClosedError, match="was closed"):
        executor(inputs)


def test_a_wrong_input_fails_alone():
    model = hl.load("digits_inception")
    with hl.ParallelExecutor(model, hl.Affinity.uniform(model, "CPU")) as executor:
        with pytest.raises(InputError, match="shape"):
            executor.submit([np.zeros((1, 1, 9, 9), np.float32)])
        assert set(executor([np.zeros((1, 1, 8, 8), np.float32)])) == {"digit", "parity"}


def test_bad_arguments():
    model = hl.load("digits_inception")
    with pytest.raises(ArgumentError, match="at least 1"):
        hl.ParallelExecutor(model, "CPU", n_requests=0)
    with pytest.raises(ArgumentError, match="n_requests=1"):
        hl.ParallelExecutor(stateful(), "CPU", n_requests=2)
