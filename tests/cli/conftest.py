"""A real IPython shell with the magics, and the command line in this process."""

from collections.abc import Callable

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from hetero_lab.cli import main as cli


@pytest.fixture
def said(capsys) -> Callable[..., str]:
    """Return a function that runs a command line and returns its output."""

    def run(*words: str, code: int = 0) -> str:
        assert cli.main(words) == code
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(capsys) -> Callable[..., str]:
    """Return a function that runs a wrong command line and returns the error."""

    def run(*words: str) -> str:
        assert cli.main(words) == 2
        out, err = capsys.readouterr()
        assert out == ""
        return err

    return run


@pytest.fixture(scope="module")
def shell():
    InteractiveShell.clear_instance()
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    shell.run_line_magic("load_ext", "hetero_lab")
    yield shell
    InteractiveShell.clear_instance()
