"""Work in threads, so that the notebook stays responsive: one at a time, or debounced."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from hetero_lab.errors import HeteroLabError, MeasurementError

DELAY_S = 0.3


class Later:
    """Debounce: call a function in a thread of its own, once, a moment after the last request."""

    def __init__(self, work: Callable[[], object], delay_s: float = DELAY_S):
        self._work = work
        self._delay_s = delay_s
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    def ask(self) -> None:
        """Ask for the work, from any thread; an earlier request that still waits is dropped."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(self._delay_s, self._work)
            self._timer.daemon = True
            self._timer.start()


class Background:
    """Runs work in a thread and keeps what went wrong.

    Parameters
    ----------
    failed
        Called in that thread with the text of any error, since a thread has no caller to raise it
        to.
    """

    def __init__(self, failed: Callable[[str], object]):
        self._failed = failed
        self._work: Future[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether work is being done."""
        return self._work is not None and not self._work.done()

    def start(self, work: Callable[[], object]) -> None:
        """Begin.

        Raises
        ------
        MeasurementError
            The previous work has not ended.
        """
        if self.is_busy:
            raise MeasurementError("Something is still running. Wait for it, or press Cancel.")
        done: Future[None] = Future()

        def run() -> None:
            try:
                work()
            except Exception as error:
                known = isinstance(error, HeteroLabError)
                self._failed(str(error) if known else f"{type(error).__name__}: {error}")
                done.set_exception(error)
            else:
                done.set_result(None)

        self._work = done
        # A kernel that shuts down does not wait for it; its worker processes end by themselves.
        threading.Thread(target=run, name="hetero_lab tweaker", daemon=True).start()

    def wait(self) -> None:
        """Wait for the end, and raise what went wrong."""
        if self._work is not None:
            self._work.result()
