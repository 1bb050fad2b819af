"""What all tests share: cores of their own, Ctrl-C that arrives, children that tell nobody.

No test sees what another one registered on a core. Nothing is imported up
here: the GPU rig has to be set up before the runtime is loaded.
"""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    import openvino as ov
    from counting_core import CountingCore


def pytest_configure() -> None:
    """Let Ctrl-C arrive here and in children: a background job may ignore it.

    No `import openvino` forks to tell Google of it, here and in children: such a fork of a child
    that is killed can live on with its pipes.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["CI"] = "true"
    # Thousands of small models would each start a process; tests/devices/test_guard.py guards.
    os.environ["HETERO_LAB_GUARD"] = "0"
    # It looks for CI, too, and would repeat itself; and no outcome hangs on the machine's speed.
    default = hypothesis.settings.get_profile("default")
    too_slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile(
        "any machine", default, deadline=None, suppress_health_check=too_slow
    )
    hypothesis.settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def signals_still_arrive() -> Iterator[None]:
    """No test leaves the main thread a signal stack that is gone: Ctrl-C would end the process."""
    from signal_stack import signal_stack_is_mapped

    yield
    assert signal_stack_is_mapped(), "a Core was destroyed: see hetero_lab.devices.core.keep"


@pytest.fixture(scope="session")
def core() -> ov.Core:
    """A Core with an emulated device ACC in f32 that supports everything."""
    from counting_core import core_with_acc

    return core_with_acc()


@pytest.fixture(scope="session")
def digits() -> ov.Model:
    """The smallest sample, loaded."""
    import hetero_lab as hl

    return hl.load("digits_inception")


@pytest.fixture
def own_core() -> CountingCore:
    """A Core of one test, with ACC in f32, that counts its compiles."""
    from counting_core import core_with_acc

    return core_with_acc()


@pytest.fixture
def ctrl_c_in_the_fourth_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes at the end of the fourth turn of a profile."""
    from hetero_lab.runtime import executors

    turns, run_turn = [], executors.run_turn

    def interrupted_turn(*arguments: Any, **options: Any) -> Any:
        turns.append(run_turn(*arguments, **options))
        if len(turns) == 4:
            signal.raise_signal(signal.SIGINT)
        return turns[-1]

    monkeypatch.setattr(executors, "run_turn", interrupted_turn)


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that sees openvino, its tokenizers and numpy alone."""
    import numpy as np
    from other_process import run

    home = tmp_path_factory.mktemp("bare")
    venv.create(home, symlinks=os.name != "nt")
    here = {"base": str(home), "platbase": str(home)}
    for source in Path(np.__file__).parents[1].iterdir():
        if source.name in ("numpy", "numpy.libs", "openvino", "openvino_tokenizers"):
            (Path(sysconfig.get_path("purelib", vars=here)) / source.name).symlink_to(source)
    python = Path(sysconfig.get_path("scripts", vars=here)) / Path(sys.executable).name
    assert "No module named 'msgspec'" in run(str(python), "-c", "import msgspec").stderr
    return str(python)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser without a window.

    It ends with its module: Playwright runs one browser at a time in a thread, and some tests start
    their own.
    """
    from widgets.jupyter_in_browser import running_browser

    with running_browser() as started:
        yield started
