"""Drives: models in processes of their own, or in one, that are kept busy at the same time."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_lab.clock import unix_now
from hetero_lab.machine.load_loop import WARM_S, Lane, keep_busy, window_at
from hetero_lab.measure.bench import AnyBench, Bench, limit_s
from hetero_lab.measure.loads import Driven, Load
from hetero_lab.measure.worker_process import Request, WorkerError, Workers, compiles_at_once
from hetero_lab.runtime.compiled import inference_errors
from hetero_lab.runtime.executors import Runner

if TYPE_CHECKING:
    from hetero_lab.machine.ways import Way

_START_S = 0.03  # until all processes have read the request
_POLL_S = 0.1  # as a wait without a limit does not end for Ctrl-C on Windows
_LATE_S = 30.0  # more than a drive takes; then it hangs
_SPREAD = 1e-3  # of the largest value: what other threads may change in an output


class Drives(contextlib.AbstractContextManager["Drives"]):
    """The processes of the models of a machine, each with all ways of its model compiled.

    ``process_of`` names the process of each model; a process that is gone is started again when it
    is needed.
    """

    def __init__(
        self, process_of: Mapping[str, str], start: Callable[[], AnyBench], workers: Workers
    ):
        self._process_of, self._start, self._workers = process_of, start, workers
        self._benches: dict[str, AnyBench] = {}
        self._ready = defaultdict[str, set[str]](set)  # keys that are compiled, by process
        self._is_closed = False
        self._pool = ThreadPoolExecutor(max(2, len(process_of)))

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._is_closed = True
        for bench in list(self._benches.values()):  # a thread may be letting go of one
            bench.close()

    def compile(self, ways: Sequence[tuple[str, Way]]) -> dict[tuple[str, str], str]:
        """Compile ways of models in parallel; return why some failed, by model and label."""
        failed: dict[tuple[str, str], str] = {}
        by_process = defaultdict[str, list[tuple[str, "Way"]]](list)
        for name, way in ways:
            by_process[self._process_of[name]].append((name, way))

        def compile_all(of_process: list[tuple[str, Way]]) -> None:
            for name, way in of_process:
                try:
                    self._compile_once(name, way)
                except WorkerError as error:
                    failed[name, way.label] = str(error)

        pool = ThreadPoolExecutor(compiles_at_once())
        try:
            list(pool.map(compile_all, by_process.values()))
        finally:  # after Ctrl-C, without waiting
            pool.shutdown(wait=False, cancel_futures=True)
        return failed

    def drive(
        self,
        ways: Mapping[str, Way],
        loads: Mapping[str, Load],
        seconds: float,
        *,
        check: bool = False,
    ) -> dict[str, Driven]:
        """Drive models at the same time, each on a way; WorkerError, if one of them fails."""
        together = defaultdict[str, list[str]](list)
        for name, way in ways.items():
            self._compile_once(name, way)
            together[self._process_of[name]].append(name)
        starts_at = unix_now() + _START_S

        def ask(process: str, names: list[str]) -> dict[str, Driven]:
            own_loads = tuple(loads[name] for name in names)
            request = partial(
                Bench.drive, loads=own_loads, starts_at=starts_at, seconds=seconds, check=check
            )
            patience_s = max(load.patience_s for load in own_loads)
            answers = self._ask(process, request, WARM_S + seconds + patience_s + _LATE_S)
            return dict(zip(names, answers, strict=True))

        asking = [self._pool.submit(ask, *each) for each in together.items()]
        while wait(asking, _POLL_S).not_done:  # none is still busy when one has failed
            pass
        driven = {name: one for future in asking for name, one in future.result().items()}
        return {name: driven[name] for name in ways}

    def _compile_once(self, name: str, way: Way) -> None:
        process = self._process_of[name]
        if way.key not in self._ready[process]:
            request = partial(Bench.compile, trial=way.trial)
            self._ask(process, request, limit_s(self._workers, request))
            self._ready[process].add(way.key)

    def _ask(self, process: str, request: Request[Any], timeout_s: float) -> Any:
        if self._is_closed:
            raise WorkerError("failed", "the plan has ended", died=False)
        if process not in self._benches:
            self._benches[process] = self._start()
        try:
            return self._benches[process].ask(request, timeout_s=timeout_s)
        except WorkerError as error:
            if error.died:
                self._ready.pop(process, None)
                self._benches.pop(process).close()
            raise


# -- in the processes ---------------------------------------------------------------------------


def drive(
    runners: Sequence[Runner],
    loads: Sequence[Load],
    starts_at: float,
    seconds: float,
    *,
    check: bool,
) -> tuple[Driven, ...]:
    """Do as :meth:`.bench.Bench.drive`, one runner a load."""
    lanes = [
        [_lane(runner, check=check) for _ in range(load.requests)]
        for runner, load in zip(runners, loads, strict=True)
    ]
    windows = keep_busy(lanes, loads, window_at(starts_at), seconds)
    results: list[Driven] = []
    for runner, window in zip(runners, windows, strict=True):
        with inference_errors(runner.placed.label):
            results.append(window.driven())
    return tuple(results)


def _lane(runner: Runner, *, check: bool) -> Lane:
    """Return another request of a runner; with ``check`` it compares outputs with the runner's."""
    other = runner.another()
    if not check:
        return Lane(other.infer)
    expected = runner.outputs()
    return Lane(other.infer, lambda: _differs(other.outputs(), expected))


def _differs(outputs: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    for name, value in outputs.items():
        other = expected[name]
        if value.dtype.kind != "f":
            same = np.array_equal(value, other)
        else:
            most = _SPREAD * float(np.max(np.abs(other[np.isfinite(other)]), initial=0.0))
            same = np.allclose(value, other, rtol=0.0, atol=most, equal_nan=True)
        if not same:
            return True
    return False
