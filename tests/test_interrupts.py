"""Ctrl-C always ends a public call in KeyboardInterrupt, and what it had done is kept."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from package_source import public_functions
from scipy.optimize import Bounds, LinearConstraint, milp

import hetero_lab as hl
from hetero_lab.interrupts import UntilInterrupted, bringing, deferred, guarded, interruptible
from hetero_lab.tables import scratch_directory


@pytest.fixture(autouse=True)
def handler_is_left_as_it_was():
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


@guarded
def partial(result: object) -> object:
    try:
        press_ctrl_c()
    except KeyboardInterrupt:
        return result
    return "whole"


class Dropped:
    """Python prints and drops what a destructor raises."""

    def __del__(self) -> None:
        press_ctrl_c()


@guarded
def calling_more() -> str:
    swallowed = "whole"
    try:
        press_ctrl_c()
    except KeyboardInterrupt:  # as Python drops it in a destructor
        swallowed = quiet()
    return swallowed


@guarded
def quiet() -> str:
    return "whole"


def test_what_a_call_saw_is_not_forgotten_in_calls_inside_it():
    with pytest.raises(KeyboardInterrupt):
        calling_more()
    assert quiet() == "whole"  # nor does it reach the next one


def test_what_was_done_is_kept_for_this_call_alone_and_the_interrupt_goes_on():
    with pytest.raises(KeyboardInterrupt, match="partial was interrupted.*returns the list"):
        partial([1, 2])
    assert hl.last_interrupted() == [1, 2]
    with pytest.raises(KeyboardInterrupt):
        guarded(press_ctrl_c)()
    assert hl.last_interrupted() is None


def test_an_interrupt_that_python_drops_is_not_lost():
    @guarded
    def swallowing() -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Dropped()
        return "whole"

    with pytest.raises(KeyboardInterrupt, match="returns the str"):
        swallowing()
    assert hl.last_interrupted() == "whole"


def test_an_interrupt_that_python_drops_still_ends_a_long_call():
    @guarded
    def long() -> str:
        with UntilInterrupted() as turns:
            Dropped()
            time.sleep(999)
        return "interrupted" if turns.interrupted else "whole"

    with pytest.raises(KeyboardInterrupt, match="long was interrupted"):
        long()
    assert hl.last_interrupted() == "interrupted"


def test_no_half_of_a_package_is_left(tmp_path, monkeypatch):
    (tmp_path / "slow_package").mkdir()
    (tmp_path / "slow_package" / "__init__.py").write_text(
        "import signal\nsignal.raise_signal(signal.SIGINT)\n"
        "from slow_package import part\nlast = 1\n"
    )
    (tmp_path / "slow_package" / "part.py").write_text("import slow_package as whole\n")
    monkeypatch.syspath_prepend(tmp_path)

    @guarded
    def importing() -> None:
        import slow_package  # type: ignore[import-not-found]

        seen.append(slow_package.last)
        time.sleep(999)  # it comes again at once

    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        importing()
    assert seen == [1]
    assert sys.modules.pop("slow_package").part.whole.last == 1
    sys.modules.pop("slow_package.part")


def test_a_call_within_a_call_ends_the_outer_one():
    @guarded
    def outer() -> str:
        try:
            partial("inner")
        except KeyboardInterrupt:
            return "outer"
        return "whole"

    with pytest.raises(KeyboardInterrupt, match="outer was interrupted"):
        outer()
    assert hl.last_interrupted() == "outer"


@pytest.mark.parametrize(
    ("outer", "kept"), [(["advice"], ["advice"]), ([], "costs")], ids=["more", "nothing yet"]
)
def test_what_a_call_continues_from_travels_on_the_interrupt(outer, kept):
    @guarded
    def search() -> None:
        with bringing(outer), bringing("costs"):
            press_ctrl_c()

    with pytest.raises(KeyboardInterrupt) as stop:
        search()
    assert stop.value.partial == kept
    assert hl.last_interrupted() == kept


def test_a_conclusion_is_not_disturbed_and_the_call_ends_nevertheless():
    @guarded
    def concluding() -> tuple[str, bool]:
        with deferred(goes_on=True) as came:
            press_ctrl_c()
        return "whole", came()

    with pytest.raises(KeyboardInterrupt, match="concluding was interrupted"):
        concluding()
    assert hl.last_interrupted() == ("whole", True)


@pytest.mark.parametrize("wrapped", [guarded(divmod), functools.partial(interruptible, divmod)])
def test_no_interrupt_no_change(wrapped):
    assert wrapped(7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        wrapped(7, 0)


def test_a_handler_of_somebody_else_decides():
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append("theirs"))
    try:
        assert partial("result") == "whole"
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == ["theirs"]


def test_another_thread_hears_no_signals():
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(quiet).result() == "whole"


def test_public_functions_are_guarded_and_keep_their_faces():
    assert hl.sweep.__wrapped__.__module__ == "hetero_lab.measure.sweep"
    assert hl.sweep.__doc__.startswith("Measure many placements")
    functions = public_functions(hl, hl.interop, hl.llm)
    assert len(functions) > 30
    assert [name for name, of in functions.items() if not hasattr(of, "__wrapped__")] == []


def test_a_library_that_hears_nothing_is_left_behind():
    """HiGHS ends at its time limit only, whatever signals come."""
    random = np.random.default_rng(0)
    rows, columns = 150, 600
    weights = random.integers(1, 60, (rows, columns))
    limits = LinearConstraint(weights, -np.inf, weights.sum(1) // 3)
    began, ended = threading.Event(), threading.Event()

    def solve() -> None:
        began.set()
        milp(
            -random.random(columns),
            constraints=limits,
            integrality=np.ones(columns),
            bounds=Bounds(0, 1),
            options={"time_limit": 20},
        )
        ended.set()

    def interrupt() -> None:
        began.wait()
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    presses = threading.Thread(target=interrupt)
    presses.start()
    with pytest.raises(KeyboardInterrupt):
        interruptible(solve)
    assert not ended.is_set()
    presses.join()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM that can be handled")
def test_sigterm_is_ctrl_c_and_what_a_killed_process_leaves_is_collected(tmp_path):
    program = (
        "import sys, time\n"
        "from hetero_lab.interrupts import guarded\n"
        "from hetero_lab.tables import scratch_directory\n"
        "@guarded\n"
        "def wait():\n"
        "    with scratch_directory(sys.argv[1], '.hetero_lab-') as place:\n"
        "        (place / 'content').write_text('x')\n"
        "        print(flush=True)\n"
        "        time.sleep(60)\n"
        "wait()\n"
    )

    def left_by(number):
        command = [sys.executable, "-c", program, str(tmp_path)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, text=True, stdout=pipe, stderr=pipe) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "\n"
            process.send_signal(number)
            return "KeyboardInterrupt" in process.communicate()[1], [*tmp_path.iterdir()]

    assert left_by(signal.SIGTERM) == (True, [])
    _, (left,) = left_by(signal.SIGKILL)
    with scratch_directory(tmp_path, ".hetero_lab-") as alive:
        assert not left.exists()
        with scratch_directory(tmp_path, ".hetero_lab-"):
            assert alive.exists()


def test_no_scratch_directory_is_taken_for_a_leftover(tmp_path):
    def work(_):
        for _ in range(100):
            with scratch_directory(tmp_path) as place:
                (place / "content").write_text("x")
                assert (place / "content").read_text() == "x"

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert not [*tmp_path.iterdir()]
