"""Wrong arguments of all public functions, as a table: each says what is wrong, nothing happens.

The rows stand in ``bad_calls``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from bad_calls import ROWS, Row
from package_source import public_functions

import hetero_lab as hl

_started: list[str] = []  # processes, as Python's own audit events tell


def _listen(event: str, args: tuple) -> None:
    if event in ("subprocess.Popen", "os.posix_spawn", "os.fork"):
        _started.append(event)


sys.addaudithook(_listen)


def test_the_table_is_long_and_names_each_call_once():
    names = [row.name for row in ROWS]
    assert len(names) >= 120
    assert len(set(names)) == len(names)
    functions = {name.partition(":")[0] for name in names}
    # These take nothing but a Core, or nothing at all.
    nothing = {"devices", "doctor", "last_interrupted", "recordings", "samples"}
    missing = public_functions(hl, hl.interop, hl.llm).keys() - functions
    assert missing <= nothing


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_wrong_argument_is_named_and_nothing_has_happened(
    row: Row, good: SimpleNamespace, tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    made: dict[str, str] = {}

    def files(name: str, text: str) -> Path:
        made[name] = text
        (tmp_path / name).write_text(text)
        return tmp_path / name

    k = SimpleNamespace(**vars(good), tmp=tmp_path, files=files)
    compiled = good.core.n_compiled
    _started.clear()
    with pytest.raises(row.kind) as caught:
        row.call(k)
    message = str(caught.value)
    missing = [part for part in row.says if part not in message]
    assert missing == [], message
    assert isinstance(caught.value, ValueError)
    assert len(message) < 2000
    assert good.core.n_compiled == compiled
    assert _started == []
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == made
