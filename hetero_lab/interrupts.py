"""Ctrl-C in a call: always ``KeyboardInterrupt``, and the results so far are kept.

There is one rule for all public functions. Inside, a long one that is interrupted returns what
it has, marked ``interrupted``, or lets ``KeyboardInterrupt`` pass if it has nothing of its own
kind; what it can continue from travels on that (:func:`bringing`). Where it is called,
:func:`guarded` keeps either for :func:`last_interrupted` and raises ``KeyboardInterrupt``
nevertheless, so that neither a script nor the rest of a notebook cell goes on with half a result
as if it were whole.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import signal
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from types import FrameType
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

_last: Any = None
_POLL_S = 0.1  # as a wait without a limit does not end for Ctrl-C on Windows
_CALLBACK_S = 0.01  # long enough for a destructor or a callback to end
_seen = False  # whether Ctrl-C came since the outermost guarded call began
_later: list[threading.Timer] = []  # that let Ctrl-C come again


def last_interrupted() -> Any:
    """Return what the last call that Ctrl-C ended had done by then.

    Returns
    -------
    object
        What the function returns otherwise, with ``interrupted`` set; or the ``CostModel`` that it
        had measured, with which it continues when that is given as ``costs=``. ``None`` if it had
        nothing yet, or if no call was interrupted.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> kept = hl.last_interrupted()  # None, if no call was interrupted
    """
    return _last


@contextlib.contextmanager
def sigterm_as_ctrl_c() -> Generator[None, None, None]:
    """Let SIGTERM, which would end this process as it is, do in a block what Ctrl-C does."""
    ends = _is_main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if ends:
        signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        if ends:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupt(_number: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)  # a shell's background jobs have none
    (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)


def guarded(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return a function that ends in ``KeyboardInterrupt`` if Ctrl-C came while it ran.

    Python drops a ``KeyboardInterrupt`` that is raised in a destructor or in a callback of a
    library. It is raised again a moment later, and the call ends in one even if it is over by then.
    Nor does it end an import, which would leave half a package for the next call. Signals come to
    the main thread only, and a handler set by other code is left alone.
    """

    @functools.wraps(function)
    def call(*args: _P.args, **options: _P.kwargs) -> _T:
        __tracebackhide__ = True
        global _last, _seen
        handler = _own_handler()
        if handler:
            if handler is not _on_signal:  # else a call inside another would forget what that saw
                _seen = False
            signal.signal(signal.SIGINT, _on_signal)
        try:
            again = _dropped_ones_again() if handler else contextlib.nullcontext()
            with sigterm_as_ctrl_c(), again:
                result = function(*args, **options)
        except KeyboardInterrupt as stop:
            _last = partial_of(stop)
            raise
        finally:
            if handler:
                signal.signal(signal.SIGINT, handler)
        if not (handler and _seen):
            return result
        _last = result
        raise KeyboardInterrupt(
            f"{function.__name__} was interrupted. hetero_lab.last_interrupted() returns the "
            f"{type(result).__name__} of what was done by then."
        )

    return call


def _own_handler() -> Any:
    """Return who hears Ctrl-C; ``None`` if other code does, and outside of the main thread."""
    handler, is_main = signal.getsignal(signal.SIGINT), _is_main_thread()
    return handler if is_main and handler in (signal.default_int_handler, _on_signal) else None


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def deferred(*, goes_on: bool = False) -> Generator[Callable[[], bool], None, None]:
    """Let Ctrl-C wait until a block is over; yields a function that tells whether it came.

    For steps that are short, or end by themselves when it came. What follows ``goes_on`` with what
    it has; :func:`guarded` ends the call in ``KeyboardInterrupt`` nevertheless.
    """
    global _seen
    handler = _own_handler()
    if not handler:
        yield lambda: False
        return
    came: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _number, frame: came.append(frame))
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGINT, handler)
    if came and goes_on:
        _seen = True
    elif came:
        signal.raise_signal(signal.SIGINT)


class UntilInterrupted(contextlib.AbstractContextManager["UntilInterrupted"]):
    """A block that Ctrl-C ends without ending the call, which ``interrupted`` tells.

    Where nothing is ``worth_keeping`` yet, ``KeyboardInterrupt`` passes.
    """

    def __init__(self, worth_keeping: Callable[[], object] = lambda: True):
        self._worth_keeping = worth_keeping
        self.interrupted = False

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        came = kind is not None and issubclass(kind, KeyboardInterrupt)
        self.interrupted = came and bool(self._worth_keeping())
        return self.interrupted


@contextlib.contextmanager
def bringing(result: object) -> Generator[None, None, None]:
    """Let an interrupt or error of a block bring what the call can continue from, if anything."""
    try:
        yield
    except BaseException as stop:
        vars(stop)["partial"] = result or partial_of(stop)
        raise


def partial_of(stop: BaseException) -> Any:
    """Return what an interrupt or error brings along, if anything."""
    return vars(stop).get("partial")


@contextlib.contextmanager
def _dropped_ones_again() -> Generator[None, None, None]:
    """Raise a ``KeyboardInterrupt`` again, once the callback that Python dropped it in is over."""
    before = sys.unraisablehook

    def hook(dropped: sys.UnraisableHookArgs) -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            _interrupt_later()
        else:
            before(dropped)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
        while _later:
            _later.pop().cancel()


def _interrupt_later() -> None:
    _later.append(threading.Timer(_CALLBACK_S, _interrupt_main))
    _later[-1].daemon = True
    _later[-1].start()


def _interrupt_main() -> None:
    if sys.platform == "win32":
        _thread.interrupt_main()
    else:  # which ends a system call that the main thread waits in, too
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _on_signal(number: int, frame: FrameType | None) -> None:
    global _seen
    _seen = True
    if _is_importing(frame):
        _interrupt_later()
    else:
        signal.default_int_handler(number, frame)


def _is_importing(frame: FrameType | None) -> bool:
    """Tell whether a frame belongs to an import that began in the innermost guarded call."""
    while frame is not None and not (
        frame.f_globals is globals() and frame.f_code.co_name == "call"
    ):
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def interruptible(function: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T:
    """Call a library that notices Ctrl-C only when it returns, so that Ctrl-C ends the call.

    The library has to release the interpreter's lock. After Ctrl-C it continues in its own
    thread, so it also needs a time limit of its own.
    """
    if not _is_main_thread():
        return function(*args, **options)
    outcome: Future[_T] = Future()

    def work() -> None:
        try:
            outcome.set_result(function(*args, **options))
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=work, name=f"hetero_lab {function.__name__}", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_POLL_S)
    return outcome.result()
