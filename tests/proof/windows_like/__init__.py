"""The quick tests as nearly on Windows as Linux allows it: a plugin of pytest.

    python -m pytest -p tests.proof.windows_like tests/cli tests/results

``sitecustomize.py`` has what is refused, here and in the processes that tests start: fork and what
starts it, links, modules and directories that Windows lacks, names of files that it does not know,
replacing or removing a file that is open or mapped, reading or writing text in an encoding that
was not chosen, printing what cp1252 lacks. Processes are spawned.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from _pytest import capture

from tests.proof.windows_like import sitecustomize as windows

_HERE = Path(__file__).parent
if str(_HERE) not in os.environ.get("PYTHONPATH", ""):  # else this is a worker of another pytest
    # What is not locked here, as on Windows, is a leftover to other processes.
    os.environ |= {"TMPDIR": tempfile.mkdtemp(prefix="windows-"), "PYTHONUTF8": "0"}
    os.environ["PYTHONIOENCODING"] = windows.ENCODING
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(_HERE), os.environ.get("PYTHONPATH")])
    )
    atexit.register(shutil.rmtree, os.environ["TMPDIR"], ignore_errors=True)
tempfile.tempdir = None
_OF_LINUX = {
    "test_a_table_on_standard_output": "/dev/stdout",
    "test_directories": "expects /proc on Linux",
    "test_places_where_no_file_can_be": "expects /proc on Linux",
    # Without locks of directories, what a killed process leaves stays.
    "test_sigterm_is_ctrl_c_and_what_a_killed_process_leaves_is_collected": "SIGTERM, locks",
    "test_what_cannot_be_written_is_an_error_and_costs_itself_only": "/dev/full",
    "test_workers_are_forked_from_one_server": "fork",
}
_refused: list[tuple[str, str]] = []


def pytest_configure(config: pytest.Config) -> None:
    """Spawn processes, and hold the captured output to the encoding."""
    multiprocessing.set_start_method("spawn", force=True)
    for kind in (capture.CaptureIO, capture.EncodedFile):
        _hold_to_the_encoding(kind)


def _hold_to_the_encoding(kind: type[Any]) -> None:
    write = kind.write

    def checked(self: Any, text: str) -> int:
        windows.encodable(self, text)
        return write(self, text)

    kind.write = checked


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is about Linux alone."""
    for item in items:
        if reason := _OF_LINUX.get(item.name.partition("[")[0]):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    """Note what was refused in each test."""
    yield
    _refused.extend((item.nodeid, what) for what in dict.fromkeys(windows.refused))
    windows.refused.clear()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List what was refused: each is told well by the library, or done without."""
    shown: dict[str, list[str]] = {}
    for test, what in _refused:
        shown.setdefault(what if "in use" not in what else "a file in use", []).append(test)
    for what, tests in shown.items():
        terminalreporter.write_line(f"refused: {what} ({len(tests)} tests, first {tests[0]})")
