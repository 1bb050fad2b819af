"""A sweep that is watched and stopped through its control."""

from __future__ import annotations

from small_models import chain

import hetero_lab as hl
from hetero_lab.experiments.measure.records import Compiled, Finished, Turn
from hetero_lab.experiments.session import SweepControl

OPTIONS = {"isolate": False, "counters": False, "reference": False, "progress": False}


def test_it_tells_every_record(core):
    seen = []
    hl.sweep(
        chain("a", "b"), ["CPU", "ACC"], turns=2, core=core,
        control=SweepControl(lambda record: seen.append(type(record))), **OPTIONS,
    )  # fmt: skip
    assert seen[:2] == [Compiled, Compiled]
    assert seen.count(Turn) == 4
    assert seen.count(Finished) == 2


def test_stopped_it_returns_what_it_has(core):
    turns = []

    def on_record(record):
        if isinstance(record, Turn):
            turns.append(record.entry)
            if len(turns) == 3:
                control.stop()

    control = SweepControl(on_record)
    sweep = hl.sweep(
        chain("a", "b"), ["CPU", "ACC"], turns=50, core=core, control=control, **OPTIONS
    )
    assert sweep.interrupted
    assert control.is_stopped
    assert len(turns) == 3
    assert len(sweep.tables["samples"]) == 30
    assert list(sweep.summary["label"]) == ["CPU", "ACC"]


def test_stopped_before_it_begins_nothing_is_compiled(own_core):
    control = SweepControl()
    control.stop()
    sweep = hl.sweep(chain("a"), ["CPU"], turns=2, core=own_core, control=control, **OPTIONS)
    assert sweep.interrupted
    assert own_core.n_compiled == 0
    assert list(sweep.summary["status"]) == ["not measured: interrupted"]
