"""Ctrl-C in a call: ``KeyboardInterrupt``, always, and what was done by then is kept.

There is one rule for all public functions. Inside, a long one that is interrupted returns what
it has, marked ``interrupted``, or lets ``KeyboardInterrupt`` pass if it has nothing. Where it is
called, :func:`guarded` keeps that result for :func:`last_interrupted` and raises
``KeyboardInterrupt`` nevertheless, so that neither a script nor the rest of a notebook cell goes
on with half a result as if it were whole.
"""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

_last: Any = None
_seen = False  # whether Ctrl-C came since the outermost guarded call began


def last_interrupted() -> Any:
    """Return what the last call that Ctrl-C ended had done by then.

    Returns
    -------
    object
        What the function returns otherwise, with ``interrupted`` set; ``None`` if it had nothing
        yet, or if no call was interrupted.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> hl.last_interrupted() is None
    True
    """
    return _last


def guarded(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return a function that ends in ``KeyboardInterrupt`` if Ctrl-C came while it ran.

    Python drops a ``KeyboardInterrupt`` that is raised in a destructor or a callback of a
    library, so what counts is that the signal came. Signals come to the main thread only, and a
    handler that somebody else has set is left alone.
    """

    @functools.wraps(function)
    def call(*args: _P.args, **options: _P.kwargs) -> _T:
        global _last, _seen
        handler = signal.getsignal(signal.SIGINT)
        in_main = threading.current_thread() is threading.main_thread()
        listening = in_main and handler in (signal.default_int_handler, _on_signal)
        if listening:
            _seen = False
            signal.signal(signal.SIGINT, _on_signal)
        try:
            result = function(*args, **options)
        except KeyboardInterrupt:
            _last = None
            raise
        finally:
            if listening:
                signal.signal(signal.SIGINT, handler)
        if not (listening and _seen):
            return result
        _last = result
        raise KeyboardInterrupt(
            f"{function.__name__} was interrupted. hetero_lab.last_interrupted() returns the "
            f"{type(result).__name__} of what was done by then."
        )

    return call


def _on_signal(number: int, frame: FrameType | None) -> None:
    global _seen
    _seen = True
    signal.default_int_handler(number, frame)
