"""Work that may wait until nothing has changed for a moment."""

from __future__ import annotations

import threading
from collections.abc import Callable

DELAY_S = 0.3


class Later:
    """Calls a function in a thread of its own, once, a moment after the last request for it."""

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
