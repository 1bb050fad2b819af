"""One JupyterLab for all tests of widgets that ask for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from widgets.jupyter_in_browser import Lab, running_lab


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A running JupyterLab; notebooks go to its ``directory``."""
    directory = tmp_path_factory.mktemp("notebooks")
    with running_lab(directory, tmp_path_factory.mktemp("jupyter")) as started:
        yield started
