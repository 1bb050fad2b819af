"""The benches of a sweep: one for each placement that is alive, replaced when it crashes.

Models that share a process share its threads: on a busy machine, the model compiled first is then
up to a third faster than an equal one compiled second.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from hetero_lab.measure import requests
from hetero_lab.measure.bench import AnyBench
from hetero_lab.measure.requests import Request
from hetero_lab.measure.worker_process import WorkerError
from hetero_lab.measure.workers import Workers, limit_s
from hetero_lab.results.records import Trial

_SLOW_START_S = 0.5  # a bench that takes longer to start is reused


class BenchPool:
    """Benches by the key of the trial that each has compiled; ``start`` starts one."""

    def __init__(
        self, trials: Mapping[str, Trial], start: Callable[[], AnyBench], workers: Workers
    ):
        self._trials, self._start, self._workers = trials, start, workers
        self._benches: dict[str, AnyBench] = {}
        self._idle: list[AnyBench] = []
        self._compiled: set[str] = set()  # keys that are compiled on their bench

    def begin(self, keys: Sequence[str], *, reuse: bool) -> dict[str, float]:
        """Release all placements but these, and start benches; return the seconds that each took.

        One that cannot start is left out, and raises when it is asked.
        """
        took_s: dict[str, float] = {}

        def start(key: str) -> None:
            with contextlib.suppress(WorkerError):
                took_s[key] = self._bench(key).start_s

        leaving = [key for key in self._benches if key not in keys]
        with ThreadPoolExecutor(max(len(leaving), os.cpu_count() or 1)) as pool:
            list(pool.map(partial(self._release, reuse=reuse), leaving))
            list(pool.map(start, keys))
        return took_s

    def ask(self, asked: Mapping[str, Request[Any]]) -> dict[str, Any]:
        """Carry out requests in parallel; return the answers, or the errors that came instead."""
        if len(asked) == 1:
            return {key: self._answer(key, request) for key, request in asked.items()}
        pool = ThreadPoolExecutor(len(asked))
        try:
            return dict(zip(asked, pool.map(self._answer, asked, asked.values()), strict=True))
        except BaseException:  # Ctrl-C: do not wait for the compiles
            self.close()
            raise
        finally:
            pool.shutdown()

    def _answer(self, key: str, request: Request[Any]) -> Any:
        answer, all_asked = None, [request]
        if key not in self._compiled and not isinstance(request, requests.Compile):
            all_asked.insert(0, requests.Compile(trial=self._trials[key]))  # its bench is a new one
        try:
            for asked in all_asked:
                answer = self._bench(key).ask(asked, timeout_s=limit_s(self._workers, asked))
                self._compiled.add(key)
        except WorkerError as failure:
            if failure.died:
                self._close(key)
            return failure
        return answer

    def expect(self, request: requests.Expect, at_most_s: float) -> None:
        """Let a bench of its own compute reference outputs, if it can."""
        timeout_s = min(self._workers.compile_timeout_s, max(0.0, at_most_s))
        with contextlib.suppress(WorkerError), contextlib.closing(self._start()) as bench:
            bench.ask(request, timeout_s=timeout_s)

    def _bench(self, key: str) -> AnyBench:
        if key not in self._benches:
            try:
                self._benches[key] = self._idle.pop()  # threads may compete for the last one
            except IndexError:
                self._benches[key] = self._start()
        return self._benches[key]

    def _release(self, key: str, *, reuse: bool) -> None:
        """Let go of a compiled placement; keep its bench if a new one would take long.

        Otherwise the next placement gets a new bench, as it would run faster in a process that
        has compiled before. Where starting or compiling is slow, that would take too much time.
        """
        bench = self._benches[key]
        if reuse or bench.start_s >= _SLOW_START_S:
            with contextlib.suppress(WorkerError):
                bench.ask(requests.Release(key=key), timeout_s=self._workers.timeout_s)
                self._idle.append(self._benches.pop(key))
        self._close(key)

    def _close(self, key: str) -> None:
        self._compiled.discard(key)
        bench = self._benches.pop(key, None)
        if bench is not None:
            bench.close()

    def close(self) -> None:
        """End all benches."""
        benches, self._benches, self._idle = [*self._benches.values(), *self._idle], {}, []
        self._compiled.clear()
        if benches:
            with ThreadPoolExecutor(len(benches)) as pool:
                list(pool.map(lambda bench: bench.close(), benches))
