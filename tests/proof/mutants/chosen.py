"""A plugin of pytest: run the chosen tests, in their order, and tell which one failed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

CHOSEN, FAILED = "MUTANTS_CHOSEN", "MUTANTS_FAILED"


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Keep the chosen tests, in their order."""
    order = {name: at for at, name in enumerate(json.loads(Path(os.environ[CHOSEN]).read_text()))}
    items[:] = sorted(
        (item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid]
    )


def pytest_runtest_logreport(report: Any) -> None:
    """Tell the first test that failed."""
    if report.failed and not Path(os.environ[FAILED]).exists():
        Path(os.environ[FAILED]).write_text(report.nodeid)
