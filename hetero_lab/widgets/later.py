"""Work that may wait until nothing has changed for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

DELAY_S = 0.3


class Later:
    """Calls a function on the event loop it was made on, once, after the last request for it.

    Without a running loop (a plain script) nothing is called: what is shown to nobody need not
    be worked out.
    """

    def __init__(self, work: Callable[[], object], delay_s: float = DELAY_S):
        self._work = work
        self._delay_s = delay_s
        self._handle: asyncio.TimerHandle | None = None
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None

    @property
    def can_wait(self) -> bool:
        """Whether there is a loop that will come back to it."""
        return self._loop is not None and not self._loop.is_closed()

    def ask(self) -> None:
        """Ask for the work, from any thread; an earlier request that still waits is dropped."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._schedule, self._loop)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = loop.call_later(self._delay_s, self._work)
