"""What all tests share: cores of their own, and Ctrl-C that arrives.

No test sees what another one registered on a core. Nothing is imported up
here: the GPU rig has to be set up before the runtime is loaded.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import openvino as ov
    from counting_core import CountingCore


def pytest_configure() -> None:
    """Let Ctrl-C arrive here and in children: a background job may ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def core() -> ov.Core:
    """A Core with an emulated device ACC in f32 that supports everything."""
    from counting_core import core_with_acc

    return core_with_acc()


@pytest.fixture
def own_core() -> CountingCore:
    """A Core of one test, with ACC in f32, that counts its compiles."""
    from counting_core import core_with_acc

    return core_with_acc()
