"""Cores of the tests' own, so that no test sees what another one registered.

Nothing is imported up here: the GPU rig has to be set up before the runtime is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import openvino as ov
    from counting_core import CountingCore


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
