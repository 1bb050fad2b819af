"""One JupyterLab and one browser for all tests of widgets that ask for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from widgets.jupyter_in_browser import Lab, running_browser, running_lab


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A running JupyterLab; notebooks go to its ``directory``."""
    directory = tmp_path_factory.mktemp("notebooks")
    with running_lab(directory, tmp_path_factory.mktemp("jupyter")) as started:
        yield started


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A browser without a window."""
    with running_browser() as started:
        yield started
