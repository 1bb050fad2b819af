"""The parallel executor computes what one device computes, several requests at once."""

from __future__ import annotations

import _thread
import contextlib
import gc
import itertools
import os
import signal
import sys
import threading
from concurrent.futures import wait
from typing import Any

import numpy as np
import openvino as ov
import psutil
import pytest
from openvino import opset13 as op
from other_process import run_python
from random_models import random_affinity, random_model
from slices import sliced
from small_models import stateful

import hetero_lab as hl
from hetero_lab import clock
from hetero_lab.errors import (
    ArgumentError,
    ClosedError,
    HeteroLabError,
    InferenceError,
    InputError,
)
from hetero_lab.model.read import prepare
from hetero_lab.parallel import scheduler
from hetero_lab.placement import overlap
from hetero_lab.runtime import pieces
from hetero_lab.runtime.inputs import bind_inputs, generate_inputs
from hetero_lab.runtime.pieces import leave_cores

WAIT_S = 240  # for what will come, on a busy machine too
F32 = {"PARACC": {"INFERENCE_PRECISION_HINT": "f32"}, "CPU": {"INFERENCE_PRECISION_HINT": "f32"}}


@pytest.fixture(scope="module", autouse=True)
def second_device():
    hl.emulate("PARACC")


@pytest.fixture(scope="module")
def digits():
    """A classifier, with one block of it on the second device, and its inputs."""
    model = hl.load("digits_inception")
    affinity = hl.Affinity.uniform(model, "CPU").fix(patterns={"^mixed2": "PARACC"})
    return model, affinity, generate_inputs(prepare(model))


def twice() -> ov.Model:
    """Return a model that doubles numbers of at least 0."""
    x = op.parameter([2, 3], np.float32, name="x")
    return ov.Model([op.result(op.add(op.relu(x, name="a"), x, name="y"))], [x], "twice")


def reshaped() -> tuple[list, object]:
    """Return the parameters of a model whose reshape, to a given shape, may fail, and its end."""
    x, shape = op.parameter([4], np.float32, name="x"), op.parameter([2], np.int64, name="s")
    return [x, shape], op.reshape(op.relu(x, name="a"), shape, False, name="r")


def long() -> tuple[ov.Model, hl.Affinity, list[np.ndarray]]:
    """Return a model that takes a while, on two devices, and its inputs."""
    x = op.parameter([800, 800], np.float32, name="x")
    y, weights = x, op.constant(np.full((800, 800), 1e-3, np.float32))
    for number in range(8):
        y = op.matmul(y, weights, False, False, name=f"m{number}")
    model = ov.Model([op.result(y, name="y")], [x], "long")
    affinity = hl.Affinity.uniform(model, "CPU").fix(patterns={"^m4$": "PARACC"})
    return model, affinity, [np.ones((800, 800), np.float32)]


def expected(prepared, inputs):
    affinity = hl.Affinity.uniform(prepared, "CPU")
    return hl.compile(prepared, hl.Placement(affinity, "CPU", F32, direct=True))(inputs)


def close(got, wanted):
    assert list(got) == list(wanted)
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def executor_threads() -> list[threading.Thread]:
    """Return the threads of executors that do not end by themselves."""
    found = [t for t in threading.enumerate() if t.name.startswith("hetero_lab executor")]
    for thread in found:
        thread.join(timeout=WAIT_S)
    return [thread for thread in found if thread.is_alive()]


@pytest.mark.parametrize("seed", sliced(range(100), quick=3, in_ci=30))
@pytest.mark.parametrize("fine", [False, True])
def test_random_models_and_requests_in_flight(seed, fine, monkeypatch):
    if fine:
        monkeypatch.setattr(overlap, "WORK_OF_A_SUBGRAPH", 0.0)
    prepared = prepare(random_model(seed))
    affinity = random_affinity(prepared.graph, ["PARACC", "CPU"], seed)
    inputs = [generate_inputs(prepared, s) for s in range(3)]
    wanted = [expected(prepared, i) for i in inputs]
    requests = 4 if seed % 2 == fine else 1
    options = {"device_properties": F32, "requests": requests}
    with hl.ParallelExecutor(prepared, affinity, **options) as executor:
        futures = [executor.submit(i) for i in inputs * 2]
        for future, value in zip(futures, wanted * 2, strict=True):
            close(future.result(timeout=WAIT_S), value)


def test_branches_on_two_devices_run_at_the_same_time():
    x = op.parameter([400, 400], np.float32, name="x")
    ends = [op.relu(x, name=f"{branch}_in") for branch in ("left", "right")]
    weights = op.constant(np.full((400, 400), 1e-3, np.float32))
    for number in range(6):
        ends = [
            op.matmul(end, weights, False, False, name=f"{branch}{number}")
            for branch, end in zip(("left", "right"), ends, strict=True)
        ]
    model = ov.Model([op.result(op.add(*ends, name="sum"))], [x], "two_branches")
    affinity = hl.Affinity.uniform(model, "CPU").fix(patterns={"^left": "PARACC"})
    with hl.ParallelExecutor(model, affinity, device_properties=F32) as executor:
        home = executor.partition.subgraph_of
        # The sum waits for both, so it must not hold back the branch of its own device.
        assert len({home["left0"], home["right0"], home["sum"]}) == 3
        for _ in range(20):
            executor([np.ones((400, 400), np.float32)])
        runs = [{s.subgraph: s for s in executor.timeline if s.request == n} for n in range(20)]
    left, right = home["left0"], home["right0"]
    assert any(
        run[left].start_s < run[right].end_s and run[right].start_s < run[left].end_s
        for run in runs
    )


def test_no_subgraph_gives_a_model_input_back():
    x = op.parameter([4, 8], np.float32, name="x")
    ends = [op.relu(op.matmul(x, np.eye(8, dtype=np.float32), False, False)) for _ in range(2)]
    model = ov.Model([op.result(op.add(*ends, name="sum"))], [x], "handed_on")
    prepared = prepare(model)
    relu = next(op for op in prepared.graph if op.type == "Relu")
    matmul = prepared.graph.ops[relu.inputs[0][0]]
    there = dict.fromkeys((matmul.name, relu.name), "PARACC")
    affinity = hl.Affinity.uniform(prepared, "CPU").fix(ops=there)
    inputs = generate_inputs(prepared)
    with hl.ParallelExecutor(prepared, affinity, device_properties=F32) as executor:
        given = [wiring.outputs for wiring in executor.partition.wiring]
        assert ("tensor", "x", 0) in itertools.chain(*given)  # as HETERO does
        for compiled in executor.compiled_models:
            assert len(compiled.outputs) == 1
        close(executor(inputs), expected(prepared, inputs))


def test_arrays_may_change_while_requests_are_in_flight_and_a_wrong_one_fails_alone():
    read_only = np.full((2, 3), 4, np.float32)
    read_only.flags.writeable = False
    strided = np.full((3, 4), 5, np.float32).T[::2]
    changing = np.empty((2, 3), np.float32)
    with hl.ParallelExecutor(twice(), "CPU", requests=6) as executor:
        found = []
        for number in range(4):
            changing[...] = number
            found += executor([changing]).values()
        found += executor([read_only]).values()
        found += executor([strided]).values()
        waiting = []
        for number in range(6, 12):
            changing[...] = number
            waiting.append(executor.submit([changing]))
        changing[...] = -1
        for future in waiting:
            found += future.result(timeout=WAIT_S).values()
        found[0] += 1
        with pytest.raises(InputError, match="shape"):
            executor.submit([np.zeros((3, 2), np.float32)])
        found += executor([np.full((2, 3), 12, np.float32)]).values()
    for number, value in enumerate(found):
        np.testing.assert_array_equal(value, np.full((2, 3), 2.0 * number + (number == 0)))


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_caller_waits_itself_unless_something_waits_for_this_alone(goes_on, monkeypatch):
    monkeypatch.setattr(overlap, "WORK_OF_A_SUBGRAPH", 0.0)
    x = op.parameter([4], np.float32, name="x")
    a, b = op.relu(x, name="a"), op.abs(x, name="b")
    end = op.relu(op.exp(a, name="c"), name="d") if goes_on else a
    model = ov.Model([op.result(op.add(end, b, name="sum"))], [x], "two")
    affinity = hl.Affinity.uniform(model, "CPU").fix(patterns={"^[ad]$": "PARACC"})
    waited = []
    plain = scheduler.Slot.wait

    def wait_here(slot, index):
        waited.append(threading.current_thread() is threading.main_thread())
        plain(slot, index)

    # The caller runs the absolute value itself, whatever was measured: it is the most urgent. Only
    # the exponential can start before that is there.
    most_urgent = [0.0, 0.0, 1.0, 0.0, 0.0] if goes_on else [0.0, 1.0, 0.0]
    monkeypatch.setattr(scheduler.Dataflow, "upward_ranks", lambda *_: most_urgent)
    monkeypatch.setattr(scheduler, "_RANKED_AFTER", 1)
    monkeypatch.setattr(scheduler.Slot, "wait", wait_here)
    with hl.ParallelExecutor(model, affinity, device_properties=F32) as executor:
        subgraphs = executor.partition.subgraphs
        assert [s.ops for s in subgraphs if most_urgent[s.index]] == [("b",)]
        executor([np.ones(4, np.float32)])
        waited.clear()
        for _ in range(20):
            executor([np.ones(4, np.float32)])
    assert waited == [not goes_on] * 20


@pytest.mark.parametrize("closed", [True, False])
def test_threads_end_with_an_executor_that_is_closed_or_forgotten(closed):
    prepared = prepare(random_model(0))
    affinity = random_affinity(prepared.graph, ["PARACC", "CPU"], 0)
    executor = hl.ParallelExecutor(prepared, affinity, requests=2)
    inputs = generate_inputs(prepared)
    futures = [executor.submit(inputs) for _ in range(20)]
    assert any(t.name.startswith("hetero_lab executor") for t in threading.enumerate())
    if closed:
        executor.close()
        assert all(future.done() for future in futures)
        with pytest.raises(ClosedError, match="was closed"):
            executor(inputs)
    else:
        del executor
        gc.collect()
    assert all(future.result(timeout=WAIT_S) for future in futures)
    assert not executor_threads()


def test_an_op_that_throws_ends_its_request_alone():
    parameters, shaped = reshaped()
    total = op.reduce_sum(shaped, op.constant(np.array([0, 1], np.int64)), False, name="t")
    outer = op.exp(parameters[0], name="b")
    model = ov.Model([op.result(op.add(outer, total, name="y"))], parameters, "thrower")
    affinity = hl.Affinity.uniform(model, "CPU").fix(patterns={"^b$": "PARACC"})
    ones = np.ones(4, np.float32)
    with hl.ParallelExecutor(model, affinity, requests=3) as executor:
        assert executor.partition.n_subgraphs == 2
        shapes = [[2, 2], [3, 3], [4, 1], [3, 5], [1, 4]] * 2
        futures = [executor.submit([ones, np.array(s)]) for s in shapes]
        for future, wanted in zip(futures, shapes, strict=True):
            if np.prod(wanted) == 4:
                (value,) = future.result(timeout=WAIT_S).values()
                np.testing.assert_allclose(value, np.e + 4, rtol=1e-2)
            else:
                error = future.exception(timeout=WAIT_S)
                assert isinstance(error, InferenceError)
                assert "Reshape node with name 'r'" in str(error.__cause__)
        with pytest.raises(InferenceError, match=r"subgraph \d on CPU"):
            executor([ones, np.array([3, 3])])
        assert len(executor([ones, np.array([2, 2])])) == 1


def test_closing_cancels_what_has_not_begun():
    model, affinity, inputs = long()
    executor = hl.ParallelExecutor(model, affinity)
    futures = [executor.submit(inputs) for _ in range(100)]  # seconds of work, whatever the load
    futures[0].result(timeout=WAIT_S)
    executor.close(cancel=True)
    assert not wait(futures, timeout=WAIT_S).not_done
    assert any(future.cancelled() for future in futures)
    assert all(len(f.result()) == 1 for f in futures if not f.cancelled())
    assert not executor_threads()


def test_ctrl_c_during_a_call_leaves_the_executor_usable():
    model, affinity, inputs = long()
    executor = hl.ParallelExecutor(model, affinity, device_properties=F32)
    for _ in range(3):
        timer = threading.Timer(0.2, _thread.interrupt_main)
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            while True:
                executor(inputs)
        assert len(executor.submit(inputs).result(timeout=WAIT_S)) == 1
    executor.close()


def two_devices() -> tuple[ov.Model, hl.Affinity]:
    """Return two branches on two devices, and their sum."""
    x = op.parameter([4], np.float32, name="x")
    model = ov.Model([op.result(op.add(op.relu(x, name="a"), op.abs(x, name="b")))], [x], "two")
    return model, hl.Affinity.uniform(model, "CPU").fix(ops={"b": "PARACC"})


@pytest.mark.parametrize("call", ["call", "submit"])
def test_ctrl_c_on_any_line_of_a_call_loses_nothing(call):
    x = [np.ones(4, np.float32)]
    with hl.ParallelExecutor(*two_devices(), device_properties=F32, requests=2) as executor:
        executor(x)
        interrupted = 0
        for line in itertools.count(1):
            left = line

            def at_line(frame, event, _argument):
                nonlocal left
                left -= event == "line"
                if event == "line" and left == 0:
                    signal.raise_signal(signal.SIGINT)
                return at_line

            def in_scheduler(frame, _event, _argument):
                return at_line if frame.f_code.co_filename == scheduler.__file__ else None

            before = sys.gettrace()
            sys.settrace(in_scheduler)
            try:
                executor(x) if call == "call" else executor.submit(x).result(timeout=WAIT_S)
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                sys.settrace(before)
            (value,) = executor.submit(x).result(timeout=WAIT_S).values()
            np.testing.assert_array_equal(value, 2 * np.ones(4))
            if left > 0:
                break
        assert interrupted > 20


def test_what_a_done_callback_raises_ends_no_thread(caplog):
    x = [np.ones(4, np.float32)]

    def leave(_future) -> None:
        raise SystemExit

    with hl.ParallelExecutor(*two_devices(), device_properties=F32, requests=2) as executor:
        futures = [executor.submit_bound(x, leave) for _ in range(8)]
        assert all(len(future.result(timeout=WAIT_S)) == 1 for future in futures)
        assert len(executor(x)) == 1
    assert "done callback" in caplog.text


def test_a_failed_request_starts_nothing_more(monkeypatch):
    parameters, shaped = reshaped()
    ends = [
        op.reduce_sum(make(shaped, name=name), op.constant(np.array([0, 1], np.int64)), False)
        for name, make in (("b", op.exp), ("c", op.abs), ("d", op.tanh))
    ]
    model = ov.Model([op.result(end) for end in ends], parameters, "thrower")
    affinity = hl.Affinity.uniform(model, "CPU").fix(ops={"b": "PARACC", "c": "PARACC"})
    begun = []
    for name in ("start", "run"):
        really = getattr(scheduler.Slot, name)

        def noted(slot, index, really=really):
            begun.append(index)
            really(slot, index)

        monkeypatch.setattr(scheduler.Slot, name, noted)
    ones = np.ones(4, np.float32)
    with hl.ParallelExecutor(model, affinity) as executor:
        home = executor.partition.subgraph_of
        assert home["b"] != home["r"]
        with pytest.raises(InferenceError):
            executor([ones, np.array([3, 3])])
        assert set(begun) == {home["r"]}
        assert len(executor([ones, np.array([2, 2])])) == 3


def test_requests_are_cancelled_with_no_lock_held():
    x = [np.ones(4, np.float32)]
    executor = hl.ParallelExecutor(*two_devices(), device_properties=F32)
    told: list[Any] = []
    held, submitted = threading.Event(), threading.Event()
    first = executor.submit_bound(x, lambda _future: held.wait(WAIT_S))

    def cancelled(_future) -> None:
        submitted.wait(WAIT_S)  # some may be over before the last one is in line
        if held.is_set():
            return
        try:
            executor(x)
        except HeteroLabError as error:
            told.append(error)
        held.set()
        told.append(len(first.result(timeout=WAIT_S)))
        executor.close()

    futures = [executor.submit_bound(x, cancelled) for _ in range(50)]
    submitted.set()
    executor.close(cancel=True)
    assert not wait(futures, timeout=WAIT_S).not_done
    assert told
    assert told[-1] == 1
    assert not executor_threads()


def test_a_done_callback_may_wait_for_another_request():
    x = [np.ones(4, np.float32)]
    with hl.ParallelExecutor(*two_devices(), device_properties=F32, requests=2) as executor:
        for _ in range(10):
            second: list[Any] = []
            submitted, got = threading.Event(), []

            def wait_for_second(_future, second=second, submitted=submitted, got=got) -> None:
                submitted.wait(WAIT_S)
                got.append(len(second[0].result(timeout=WAIT_S)))

            first = executor.submit_bound(x, wait_for_second)
            second.append(executor.submit(x))
            submitted.set()
            first.result(timeout=WAIT_S)
            executor.reset_state()  # waits for the callback
            assert got == [1]


def test_the_longest_path_goes_first_however_many_requests_there_were(monkeypatch):
    ticks = itertools.count(step=1000)
    monkeypatch.setattr(clock, "now_ns", lambda: next(ticks))  # every subgraph takes as long
    monkeypatch.setattr(overlap, "WORK_OF_A_SUBGRAPH", 0.0)
    x = op.parameter([1, 8], np.float32, name="x")
    short = op.abs(x, name="short")
    path = x
    for number in range(6):
        path = op.tanh(path, name=f"path{number}")
    model = ov.Model([op.result(path), op.result(short)], [x], "paths")
    affinity = hl.Affinity.uniform(model, "CPU").fix(patterns={"path[135]": "PARACC"})
    inputs = [np.ones((1, 8), np.float32)]
    with hl.ParallelExecutor(model, affinity) as executor:
        home = executor.partition.subgraph_of
        for _ in range(500):
            executor(inputs)
        spans = [s for s in executor.timeline if s.request == 499]
    order = [span.subgraph for span in sorted(spans, key=lambda span: span.start_s)]
    assert order[0] == home["path0"]


def test_an_executor_can_be_closed_by_a_done_callback(digits):
    model, _, inputs = digits
    executor = hl.ParallelExecutor(model, "CPU")
    tried: list[str] = []

    def close_it(_future) -> None:
        for call in (lambda: executor(inputs), executor.profiling_info, executor.close):
            try:
                tried.append(f"returned {call()}")
            except HeteroLabError as error:
                tried.append(str(error))

    futures = [executor.submit_bound(bind_inputs(prepare(model), inputs), close_it)]
    with contextlib.suppress(ClosedError):
        futures += [executor.submit(inputs) for _ in range(20)]
    assert all(set(future.result(timeout=WAIT_S)) == {"digit", "parity"} for future in futures)
    executor.close()
    assert ["done callback" in said for said in tried] == [True, True, False]
    assert tried[2] == "returned None"
    assert not executor_threads()
    with pytest.raises(ClosedError):
        executor.submit(inputs)


def test_counters_wait_for_what_runs_and_end_with_the_executor(digits):
    model, affinity, inputs = digits
    executor = hl.ParallelExecutor(
        model, affinity, compile_properties={"PERF_COUNT": True}, requests=2
    )
    futures = [executor.submit(inputs) for _ in range(30)]
    rows: list[Any] = executor.profiling_info()
    assert all(future.done() for future in futures)
    subgraphs = {row.node_name.partition(":")[0] for row in rows if str(row.status) != "NOT_RUN"}
    assert subgraphs == {f"subgraph{s.index}" for s in executor.partition.subgraphs}
    executor.close()
    with pytest.raises(ClosedError, match="was closed"):
        executor.profiling_info()


def test_a_program_can_end_while_an_executor_runs():
    code = (
        "import numpy as np, hetero_lab as hl\n"
        "model = hl.load('digits_inception')\n"
        "executor = hl.ParallelExecutor(model, 'CPU', requests=2)\n"
        "image = [np.zeros((1, 1, 8, 8), np.float32)]\n"
        "futures = [executor.submit(image) for _ in range(2000)]"
    )
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("", "")


def test_tensors_of_unknown_shape_are_handed_over():
    x = op.parameter([6], np.float32, name="x")
    where = op.non_zero(op.relu(x, name="positive"), "i64", name="where")
    column = op.convert(where, "f32", name="column")
    doubled = op.multiply(column, np.float32(2), name="doubled")
    model = ov.Model([op.result(op.add(doubled, column, name="y"))], [x], "unknown")
    affinity = hl.Affinity.uniform(model, "CPU").fix(
        ops={"positive": "PARACC", "column": "PARACC", "y": "PARACC"}
    )
    rows = [[1, 0, 2, 0, 0, 3], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1], [0, 5, 0, 0, 0, 0]]
    with hl.ParallelExecutor(model, affinity, requests=2) as executor:
        assert executor.partition.n_subgraphs == 5
        futures = [executor.submit([np.array(row, np.float32)]) for row in rows * 3]
        for future, row in zip(futures, rows * 3, strict=True):
            (value,) = future.result(timeout=WAIT_S).values()
            np.testing.assert_array_equal(value, 3.0 * np.array([np.flatnonzero(row)]))


@pytest.mark.slow
@pytest.mark.parametrize("requests", [1, 4])
def test_a_thousand_inferences_leave_nothing_behind(digits, requests):
    model, affinity, inputs = digits
    process = psutil.Process()
    with hl.ParallelExecutor(model, affinity, requests=requests) as executor:
        for _ in range(200):
            executor(inputs)
        threads, memory = process.num_threads(), process.memory_info().rss
        for _ in range(1000 // requests):
            for future in [executor.submit(inputs) for _ in range(requests)]:
                future.result(timeout=WAIT_S)
        assert process.num_threads() <= threads + requests
        assert process.memory_info().rss < memory + (20 << 20)


def test_the_cpu_leaves_cores_to_what_drives_another_device(monkeypatch):
    core = ov.Core()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(16)))
    alone: dict[str, dict[str, Any]] = {"CPU": {}}
    assert leave_cores(alone, core) == alone
    # AUTO has no threads of its own either, which is what tells a GPU from the CPU.
    beside = {"CPU": {"INFERENCE_PRECISION_HINT": "f32"}, "AUTO": {}}
    given = {**beside, "CPU": {"INFERENCE_NUM_THREADS": 16}}
    assert leave_cores(given, core) == given
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(4)))
    assert leave_cores(beside, core) == beside
    has = int(core.compile_model(two_devices()[0], "CPU").get_property("INFERENCE_NUM_THREADS"))
    monkeypatch.setattr(pieces, "_FEW_CORES", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(has + 1)))
    assert leave_cores(beside, core)["CPU"] == {
        "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": has - 1,
    }  # fmt: skip
    # With more requests in flight, more threads drive the other device.
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(has + 2)))
    assert leave_cores(beside, core) == beside
    assert leave_cores(beside, core, n_left=3)["CPU"]["INFERENCE_NUM_THREADS"] == has - 1


@pytest.mark.parametrize(("requests", "says"), [(0, "at least 1"), (2, "requests=1")])
def test_bad_arguments(requests, says):
    with pytest.raises(ArgumentError, match=says):
        hl.ParallelExecutor(stateful(), "CPU", requests=requests)


def test_properties_given_to_the_executor_leave_the_others_of_a_placement():
    cpu = hl.Affinity.uniform("digits_inception", "CPU")
    hint, threads = {"INFERENCE_PRECISION_HINT": "f32"}, {"INFERENCE_NUM_THREADS": 1}
    placement = hl.Placement(cpu, "cpu", {"CPU": hint}, direct=True)
    with hl.ParallelExecutor(
        "digits_inception", placement, device_properties={"CPU": threads}
    ) as executor:
        assert executor.placement.device_properties == {"CPU": {**hint, **threads}}
        assert executor.placement.direct


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are bound on Linux")
@pytest.mark.parametrize("n_threads", [1, 2])
def test_threads_that_start_no_others_have_a_core_each(n_threads):
    properties = {
        device: {**own, "INFERENCE_NUM_THREADS": n_threads} for device, own in F32.items()
    }
    with hl.ParallelExecutor(*two_devices(), device_properties=properties) as executor:
        executor([np.ones(4, np.float32)])
        bound_to = [
            os.sched_getaffinity(thread.native_id)
            for thread in threading.enumerate()
            if thread.name.startswith("hetero_lab executor") and thread.native_id
        ]
    cores = os.sched_getaffinity(0)
    alone = [found for found in bound_to if len(found) == 1 and found != cores]
    enough = len(cores) >= 2 and n_threads == 1
    assert len(alone) == len(set.union(set(), *alone)) == (2 if enough else 0)
