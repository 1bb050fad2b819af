"""Wrong arguments of all public functions, as a table: each says what is wrong, nothing happens.

The rows stand in ``bad_calls``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from bad_calls import F32, ROWS, Row
from counting_core import core_with_acc
from hand_costs import flat_costs
from small_models import convolutions, diamond

import hetero_lab as hl

_started: list[str] = []  # processes, as Python's own audit events tell


def _listen(event: str, args: tuple) -> None:
    if event in ("subprocess.Popen", "os.posix_spawn", "os.fork"):
        _started.append(event)


sys.addaudithook(_listen)


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> SimpleNamespace:
    """Good things of each kind, of one small model; ACC cannot run Sigmoid."""
    core = core_with_acc(unsupported=["Sigmoid"])
    model = hl.load(diamond())
    affinity = hl.Affinity.automatic(model, "HETERO:ACC,CPU", core=core)
    placement = hl.Placement(affinity, "affinity", {"ACC": F32, "CPU": F32})
    quick = {"iterations": 10, "progress": False, "core": core}
    graph = hl.compile(model, placement, core=core).prepared.graph
    environment = {"host": "here", "openvino_version": "2026.4"}
    costs = flat_costs(graph, lacks={"Sigmoid"}, environment=environment)
    return SimpleNamespace(
        core=core,
        model=model,
        affinity=affinity,
        compiled=hl.compile(model, placement, core=core),
        costs=costs,
        profile=hl.profile(model, placement, counters=False, **quick),
        counted=hl.profile(convolutions(), "CPU", **quick),
        sweep=hl.sweep(
            model,
            [placement],
            turns=2,
            counters=False,
            isolate=False,
            progress=False,
            core=core,
        ),
    )


def test_the_table_is_long_and_names_each_call_once():
    names = [row.name for row in ROWS]
    assert len(names) >= 120
    assert len(set(names)) == len(names)
    functions = {name.partition(":")[0] for name in names}
    public = {
        name
        for module in (hl, hl.interop, hl.llm)
        for name in module.__all__
        if callable(getattr(module, name)) and not isinstance(getattr(module, name), type)
    }
    # These take nothing but a Core, or nothing at all.
    nothing = {"devices", "last_interrupted", "samples"}
    assert public - functions <= {*nothing, "verify_across"}  # an old name of verify


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
