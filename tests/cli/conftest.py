"""A real IPython shell with the magics."""

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config


@pytest.fixture(scope="module")
def shell():
    InteractiveShell.clear_instance()
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    shell.run_line_magic("load_ext", "hetero_lab")
    yield shell
    InteractiveShell.clear_instance()
