"""Watch a sweep from another thread, and stop it there at once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from hetero_lab.experiments.measure.records import AnyRecord
from hetero_lab.experiments.measure.workers.process import AnyBench
from hetero_lab.experiments.measure.workers.requests import Answer, Request


class StoppedError(Exception):
    """The sweep was stopped through its control."""


class SweepControl:
    """Tells how far a sweep is, and stops it from another thread.

    Parameters
    ----------
    on_record
        Called in the sweep's thread with each record as it is appended, one of the types of
        :mod:`hetero_lab.experiments.measure.records`.
    """

    def __init__(self, on_record: Callable[[AnyRecord], object] | None = None):
        self._on_record = on_record
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._benches: list[AnyBench] = []

    @property
    def is_stopped(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """End the sweep: its workers are killed, and it returns what it has."""
        self._stopped.set()
        with self._lock:
            benches, self._benches = self._benches, []
        for bench in benches:
            kill = getattr(bench, "kill", None)  # a bench of this process cannot be killed
            if kill is not None:
                # The sweep's own thread may be ending it just now.
                with contextlib.suppress(OSError, ValueError):
                    kill()

    def watched(self, append: Callable[[AnyRecord], object]) -> Callable[[AnyRecord], object]:
        """Return ``append``, told about and refused once the sweep is stopped."""

        def tell(record: AnyRecord) -> None:
            self._check()
            append(record)
            if self._on_record is not None:
                self._on_record(record)

        return tell

    def stoppable(self, start: Callable[[], AnyBench]) -> Callable[[], AnyBench]:
        """Return ``start`` such that the bench it starts can be stopped."""

        def start_stoppable() -> AnyBench:
            self._check()
            bench = start()
            with self._lock:
                self._benches.append(bench)
            if self.is_stopped:  # while it started
                self.stop()
            return _Stoppable(bench, self)

        return start_stoppable

    def _check(self) -> None:
        if self.is_stopped:
            raise StoppedError("The sweep was stopped.")


class _Stoppable:
    """A bench whose errors are those of being stopped once it is stopped."""

    def __init__(self, bench: AnyBench, control: SweepControl):
        self._bench = bench
        self._control = control
        self.start_s = bench.start_s

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._bench.warnings

    def ask(self, request: Request[Answer], *, timeout_s: float) -> Answer:
        self._control._check()
        try:
            return self._bench.ask(request, timeout_s=timeout_s)
        except Exception:
            self._control._check()
            raise

    def close(self) -> None:
        self._bench.close()
