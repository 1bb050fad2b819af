"""Sweeps on the real runtime, in real workers that really fail."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pandas as pd
import psutil
import pytest
from msgspec import structs
from openvino import opset13 as op
from slices import sliced
from small_models import chain

import hetero_lab as hl
from hetero_lab.devices.core import bind, shared_core
from hetero_lab.errors import (
    ArgumentError,
    HeteroLabWarning,
    StoredFileError,
    StoreError,
)
from hetero_lab.measure.bench import Bench, read_arrays, write_arrays, write_set_up
from hetero_lab.measure.session import SweepControl
from hetero_lab.measure.sweep_run import BenchPool
from hetero_lab.measure.trial_grid import by_name, expand
from hetero_lab.measure.worker_process import WorkerProcess
from hetero_lab.results.records import Compiled, Finished, Turn
from hetero_lab.results.store import read_store
from hetero_lab.results.sweep_builder import sweep_from
from hetero_lab.runtime.inputs import generate_inputs
from hetero_lab.tables import number

ROOT = Path(__file__).parents[2]
FAULTY = Path(__file__).parent / "faulty_worker.py"
F32 = {"ACC": {"INFERENCE_PRECISION_HINT": "f32"}, "CPU": {"INFERENCE_PRECISION_HINT": "f32"}}
QUICK = {"turns": 2, "budget_s": None, "progress": False}
HERE = {"counters": False, "isolate": False, **QUICK}
STEADY = ["label", "status", "n_subgraphs", "boundary_bytes", "devices", "emulated", "n_ops",
          "n_boundaries", "partition", "as_predicted", "verdict", "max_relative_error", "variant",
          "requests", "same_as", "baseline", "reference"]  # fmt: skip


@pytest.fixture(scope="module")
def model():
    hl.emulate("ACC", unsupported={"Concat", "MaxPool"})
    return hl.load("digits_inception")


@pytest.fixture(scope="module")
def placements(model):
    auto = hl.Affinity.automatic(model, "HETERO:ACC,CPU")
    fixed = auto.fix(patterns={"^mixed": "CPU"})
    return [hl.Placement(auto, "auto", F32), hl.Placement(fixed, "fixed", F32)]


@pytest.fixture(scope="module")
def swept(model, placements, tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    return hl.sweep(model, placements, store=store, sustained_s=0.2, **QUICK), store


def key_of(sweep, label):
    return next(row.key for row in sweep.rows if row.label == label)


def test_every_label_has_a_row_and_the_baseline_is_there(swept, model, placements):
    sweep, _ = swept
    assert list(sweep.summary["label"]) == ["auto", "fixed", "CPU"]
    assert list(sweep.summary["status"]) == ["ok"] * 3
    assert list(sweep.summary["baseline"]) == [False, False, True]
    assert list(sweep.summary["verdict"]) == ["equal"] * 3
    assert (sweep.summary["sustained_us"] > 0).all()
    assert sweep.summary["ratio"].iloc[0] == 1.0
    # The ratio is that of the paired turns.
    logs = list(sweep.rows[2].series.log_ratios.values())
    assert min(logs) <= math.log(sweep.summary["ratio"].iloc[2]) <= max(logs)
    for placement in placements:
        predicted = hl.partition(model, placement)
        observed = sweep.profile(placement.label).partition
        assert observed.observed
        assert observed.n_subgraphs == predicted.n_subgraphs
        assert observed.boundary_bytes == predicted.boundary_bytes


def test_spaces_in_priorities_cost_no_baseline():
    hl.emulate("ACC", unsupported={"Concat", "MaxPool"})
    hl.emulate("WHOLE")
    models = by_name(bind(hl.load("digits_inception"), shared_core()))
    for text in ("HETERO:ACC,WHOLE,CPU", " HETERO: ACC, WHOLE ,CPU", " AUTO:WHOLE,CPU"):
        labels = [trial.label for trial in expand(models, [text]) if trial.baseline]
        assert labels == ["WHOLE", "CPU"], text


def test_a_stored_sweep_reads_back_as_the_same_and_is_not_measured_again(swept, model, placements):
    sweep, store = swept
    again = hl.read_sweep(store)
    for name, table in sweep.tables.items():
        pd.testing.assert_frame_equal(again.tables[name], table)
    assert again.profile("fixed") == sweep.profile("fixed")
    before = (store / "records.jsonl").read_bytes()
    hl.sweep(model, placements, store=store, **QUICK)
    assert (store / "records.jsonl").read_bytes() == before


def test_orders_that_lead_to_one_affinity_are_measured_once(model):
    hl.emulate("TWIN")
    # All ops are on the first device, so two orders differ; three orders of one device do not.
    orders = ["HETERO:CPU,TWIN", "HETERO:TWIN,CPU", "HETERO:CPU", "HETERO:CPU,ACC"]
    sweep = hl.sweep(model, orders, **HERE)
    rows = sweep.summary.set_index("label")
    same_as = rows.loc[orders, "same_as"].tolist()
    assert same_as == ["", "", "HETERO:CPU,TWIN", "HETERO:CPU,TWIN"]
    assert sweep.ranking["labels"].str.contains("HETERO:CPU\n|HETERO:CPU$").any()
    assert rows["median_us"]["HETERO:CPU"] == rows["median_us"]["HETERO:CPU,TWIN"]


def test_placements_by_label_and_without_dedupe_each_by_itself(model, placements):
    named = {"automatic": "HETERO:ACC,CPU", "fixed": hl.Affinity.uniform(model, "CPU")}
    sweep = hl.sweep(model, named, baselines=False, **HERE)
    assert [(row.label, row.status) for row in sweep.rows] == [("automatic", "ok"), ("fixed", "ok")]
    twice = [placements[1], placements[1]]
    sweep = hl.sweep(model, twice, dedupe=False, **HERE)
    assert list(sweep.summary["label"][:2]) == ["fixed", "fixed #2"]
    assert sweep.rows[0].profile.latency != sweep.rows[1].profile.latency


@pytest.mark.slow
def test_grid_models_and_requests_are_crossed(model):
    sweep = hl.sweep(
        {"a": model, "b": model},
        ["HETERO:CPU"],
        grid={"CPU.INFERENCE_PRECISION_HINT": ["f32"], "*.NUM_STREAMS": [1, 2], "requests": [1, 2]},
        counters=False,
        **QUICK,
    )
    asked = sweep.summary[~sweep.summary["baseline"]]
    assert len(asked) == 2 * 2 * 2
    assert set(asked["requests"]) == {1, 2}
    assert set(asked["variant"]) == {"a", "b"}
    assert (asked["status"] == "ok").all()


def test_in_this_process_it_gives_the_same_rows(swept, model, placements):
    sweep = hl.sweep(model, placements, isolate=False, **QUICK)
    pd.testing.assert_frame_equal(sweep.summary[STEADY], swept[0].summary[STEADY])
    assert len({id(row.profile.graph) for row in sweep.rows}) == 1  # it is passed as it is


def faulty(model, placements, workers=None, **options):
    workers = replace(workers or hl.Workers(), command=[sys.executable, str(FAULTY)])
    return hl.sweep(
        model, placements, baselines=False, counters=False, workers=workers, **{**QUICK, **options}
    )


# The fault and the placement that it hits; the limits of workers; the statuses, and the turns.
# Where a worker hangs, the limit is long enough for a turn of the others on any machine.
FAULTS = {
    "once": ("signal once", "fixed", {}, ["ok", "ok"], [2, 2]),
    "once, the reference of both": ("signal once", "auto", {"group": 2}, ["ok"] * 3, [4, 2, 2]),
    "memory": ("memory", "fixed", {"memory_limit": 3 << 30}, ["ok", "out of memory"], [2, 0]),
    "silence": ("silence", "fixed", {}, ["ok", "crashed (no more answers)"], [2, 0]),
    "endless compile of the reference": (
        "endless", "auto", {"compile_timeout_s": 15.0}, ["timed out after 15 s", "ok"], [0, 2],
    ),
    "gone": ("gone", "fixed", {}, ["ok", "failed"], [5, 3]),  # the turns before are kept
    "reference in a later group": (
        "signal later", "auto", {"group": 2}, ["crashed (signal 11)", "ok", "ok"], [2, 2, 2],
    ),
    "signal, with a child": (
        "orphan", "fixed", {"timeout_s": 3600.0}, ["ok", "crashed (signal 11)"], [2, 0],
    ),
    "hang, with a child": (
        "family", "fixed", {"timeout_s": 15.0}, ["ok", "timed out after 15 s"], [2, 0],
    ),
}  # fmt: skip
_QUICK_FAULTS = ("gone",)


def children(mark: Path) -> list[int]:
    """Return the processes that a faulty worker started."""
    return [int(line) for line in mark.read_text().split() if line.isdigit()]


@pytest.fixture
def mark(tmp_path, monkeypatch):
    """The file in which a faulty worker says what it did."""
    path = tmp_path / "mark"
    monkeypatch.setenv("FAULT_MARK", str(path))
    yield path
    for child in children(path) if path.exists() else ():
        if psutil.pid_exists(child):
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in _QUICK_FAULTS else pytest.mark.slow) for n in FAULTS]
)
def test_a_fault_costs_one_row(model, placements, swept, monkeypatch, tmp_path, mark, name):
    fault, label, limits, statuses, turns = FAULTS[name]
    monkeypatch.setenv("FAULT", fault)
    monkeypatch.setenv("FAULT_KEY", key_of(swept[0], label))
    monkeypatch.setenv("FAULT_AFTER", "3" if fault == "gone" else "2")
    third = hl.Placement(hl.Affinity.uniform(model, "CPU"), "third", F32)
    asked = [*placements, third][: len(statuses)]
    store = tmp_path / "store"
    sweep = faulty(
        model, asked, hl.Workers(**limits), turns=5 if fault == "gone" else 2, store=store
    )
    assert list(sweep.summary["status"]) == statuses
    assert list(sweep.summary["n_turns"]) == turns
    assert list(hl.read_sweep(store).summary["n_turns"]) == turns
    for row in sweep.rows:
        if row.status != "ok":
            assert f"{row.label}: {row.status}" in str(sweep)
            assert row.status in sweep._repr_html_()
        if not row.series.ours:
            with pytest.raises(ArgumentError, match="was not measured"):
                sweep.profile(row.label)
    if set(statuses) == {"ok"}:
        assert all(row.series.ratio for row in sweep.rows)
    said = {"gone": "CL_INVALID_COMMAND_QUEUE", "endless": "Compile"}.get(fault, "")
    assert said in "".join(sweep.summary["detail"])
    assert mark.exists() == (fault in ("signal once", "signal later", "orphan", "family"))
    if fault == "orphan":  # its children held the output all the time, and held up nobody
        assert children(mark)
        assert all(psutil.pid_exists(child) for child in children(mark))
    if fault == "family":  # what a hung worker started ends with it
        (child,) = children(mark)
        until = time.monotonic() + 200
        while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < until
            time.sleep(0.05)


def test_workers_tell_nobody_that_they_import_the_runtime(model, monkeypatch, tmp_path):
    said = tmp_path / "said"
    spy = tmp_path / "sitecustomize.py"
    spy.write_text(
        "import sys\n"
        "from openvino_telemetry.utils.sender import TelemetrySender\n"
        "def send(self, backend, message):\n"
        f"    open({str(said)!r}, 'a').write(sys.argv[0] + '\\n')\n"
        "TelemetrySender.send = send\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # where nobody has declined
    subprocess.run([sys.executable, "-c", "import openvino"], check=True)
    assert said.read_text().strip() == "-c"  # else this test would see nothing
    assert list(hl.sweep(model, ["CPU"], counters=False, **QUICK).summary["status"]) == ["ok"]
    hl.interop.hetero_dumps(model, "HETERO:ACC,CPU")
    assert said.read_text().strip() == "-c"


@pytest.mark.parametrize(
    ("command", "says"),
    [(["/nowhere/python"], "cannot be started"), (["/bin/echo", "hello"], "'hello', which is no")],
)
def test_what_is_no_worker_says_so_in_the_row(model, command, says):
    sweep = hl.sweep(model, ["CPU"], counters=False, workers=hl.Workers(command=command), **QUICK)
    assert list(sweep.summary["status"]) == ["failed"]
    assert says in sweep.summary["detail"].iloc[0]


def test_the_last_idle_bench_is_given_to_one_thread_only():
    class Contested(list):
        """Somebody else always takes the last one just before."""

        def pop(self, *_):
            self.clear()
            return super().pop()

    fresh = Bench({})
    pool = BenchPool({}, lambda: fresh, hl.Workers())
    pool._idle = Contested([object()])
    assert pool._bench("a") is fresh


def test_benches_of_a_directory_share_the_reference(model, tmp_path):
    """The first one computes it; what is kept is what later ones compare with."""
    bound = bind(model)
    arrays = list(generate_inputs(bound).values())
    set_up = write_set_up(tmp_path, {"m": bound}, {"m": arrays})
    (trial, *_) = expand({"m": bound}, ["CPU"], baselines=False)
    trial = structs.replace(trial, device_properties={"CPU": F32["CPU"]})

    def verdicts() -> set[str]:
        compiled = Bench.of(set_up).compile(trial, compare=True)
        return {agreement.verdict for agreement in compiled.agreement}

    kept = tmp_path / "reference0.npz"
    assert not kept.exists()
    assert verdicts() == {"equal"}
    write_arrays(kept, [array + 1.0 for array in read_arrays(kept)])
    assert verdicts() == {"different"}
    kept.write_text("half written")
    assert verdicts() == {"equal"}
    kept.unlink()
    Bench.of(set_up).expect(trial)
    assert kept.exists()


@pytest.fixture
def before_asking(monkeypatch):
    """Return what has a function called before each request of a worker."""
    ask = WorkerProcess.ask

    def patch(before: Callable[[WorkerProcess, object], object]) -> None:
        def ask_after(self, request, *, timeout_s):
            before(self, request)
            return ask(self, request, timeout_s=timeout_s)

        monkeypatch.setattr(WorkerProcess, "ask", ask_after)

    return patch


def test_a_measured_process_has_compiled_nothing_else(
    model, placements, monkeypatch, before_asking
):
    for slow in ("sweep_schedule._SLOW_COMPILE_S", "sweep_run._SLOW_START_S"):
        monkeypatch.setattr(f"hetero_lab.measure.{slow}", math.inf)  # a busy machine is slow
    asked: dict[object, list[int]] = {Bench.compile: [], Bench.expect: []}

    def note(worker, request):
        if request.func in asked:
            asked[request.func].append(worker.pid)

    before_asking(note)
    sweep = hl.sweep(model, placements, workers=hl.Workers(group=2), counters=False, **QUICK)
    assert set(sweep.summary["status"]) == {"ok"}
    compiled, expected = asked.values()
    assert len(expected) == 1
    assert len(compiled) == len(sweep.rows) > 2
    assert len({*compiled, *expected}) == len(compiled) + 1


@pytest.fixture
def two_at_once(monkeypatch):
    """Every compile counts as slow, and two run at once on however many cores."""
    monkeypatch.setattr("hetero_lab.measure.sweep_schedule._SLOW_COMPILE_S", 0.0)
    monkeypatch.setattr("hetero_lab.measure.session.compiles_at_once", lambda: 2)


def split_to_compile(request) -> str:
    """Return which of the splits a worker is asked to compile, if any."""
    compiles = request.func is Bench.compile
    label = request.keywords["trial"].label if compiles else ""
    return label if label.startswith("split") else ""


@pytest.mark.slow  # test_sweep_run.py: with benches that take no time
def test_slow_compiles_of_a_group_run_at_once(model, tmp_path, before_asking, two_at_once):
    # Each waits for the other one: a compile that comes alone breaks the barrier.
    both, asked = threading.Barrier(2, timeout=200), []

    def wait_for_the_other(worker, request):
        asked.append(request.func)
        if split_to_compile(request):
            both.wait()

    before_asking(wait_for_the_other)
    sweep = hl.sweep(model, ["CPU", *_splits(model)], baselines=False, store=tmp_path, **QUICK)
    assert list(sweep.summary["status"]) == ["ok"] * 3
    assert asked.count(Bench.compile_counted) == 2  # of three: the third has nobody beside it
    assert set(sweep.tables["counters"]["label"]) == {"CPU", "split 0", "split 1"}


def _splits(model) -> list[hl.Placement]:
    ops = hl.Affinity.uniform(model, "CPU").ops
    auto = hl.Affinity.automatic(model, "HETERO:ACC,CPU")
    fixed = [auto.fix(ops=dict.fromkeys(ops[:n], "CPU")) for n in (3, 9)]
    return [hl.Placement(affinity, f"split {n}", F32) for n, affinity in enumerate(fixed)]


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_compiles_at_once(model, tmp_path, before_asking, two_at_once):
    stopped = []

    def stop(worker, request):
        if split_to_compile(request):
            os.kill(worker.pid, signal.SIGSTOP)  # it will never answer
            stopped.append(worker.pid)
            if len(stopped) == 2:
                threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()

    before_asking(stop)
    placements = ["CPU", *_splits(model)]
    with pytest.warns(hl.HeteroLabWarning, match="Interrupted"), pytest.raises(KeyboardInterrupt):
        hl.sweep(model, placements, baselines=False, store=tmp_path, **QUICK)
    assert len(stopped) == 2
    before_asking(lambda *_: None)
    again = hl.sweep(model, placements, baselines=False, store=tmp_path, **QUICK)
    assert list(again.summary["status"]) == ["ok"] * 3  # nothing was called a failure


def test_what_is_asked_for_later_is_measured_too(model, tmp_path):
    options = {"store": tmp_path, "isolate": False, **QUICK}
    hl.sweep(model, ["CPU"], counters=False, **options)
    sweep = hl.sweep(model, ["CPU"], sustained_s=0.2, **{**options, "turns": 4})
    assert sweep.summary["sustained_us"].iloc[0] > 0
    assert sweep.summary["n_turns"].iloc[0] >= 4
    assert len(sweep.tables["counters"]) > 0


def test_turns_of_two_runs_are_not_paired(swept, model, tmp_path):
    runs = [tmp_path / name / "run" for name in ("before", "after")]
    for run in runs:
        shutil.copytree(swept[1], run)
        header = json.loads((run / "sweep.json").read_text())
        header["entries"].append({**header["entries"][0], "label": "again"})
        (run / "sweep.json").write_text(json.dumps(header))
    both = hl.read_sweep(runs)
    assert both.summary["label"].is_unique
    first = {row.label: row for row in both.rows}
    one, other = (first[f"{run}/CPU"].series for run in runs)
    assert not set(one.ours) & set(other.ours)
    assert set(one.ours) <= set(one.reference)
    assert first[f"{runs[0]}/again"].same_as == f"{runs[0]}/auto"
    assert both.ranking["labels"].str.contains("again").sum() == 2
    assert both.smallest_difference > 0.0
    with pytest.raises(ArgumentError, match="is a Sweep"):
        hl.compare(both, "b")
    assert not any("different references" in note for note in both.notes)
    apart = tmp_path / "apart"
    hl.sweep(model, ["CPU"], store=apart, **HERE)
    notes = hl.read_sweep([runs[0], apart]).notes
    assert any("different references" in note and "'auto'" in note for note in notes)


def test_without_the_turns_of_the_reference_there_are_no_ratios(swept):
    header, records = read_store(swept[1])
    turns = [r for r in records if isinstance(r, Turn) and r.entry == header.reference]
    assert turns
    sweep = sweep_from(header, [r for r in records if r not in turns])
    for table in (sweep.summary, sweep.ranking):
        assert table["ratio"].dtype == float
        assert table["ratio"].isna().all()
    assert "fixed" in str(sweep)
    assert "fixed" in sweep._repr_html_()


@pytest.mark.slow
def test_the_peak_of_memory_leaves_the_reference_out(model):
    weights = np.ones((2048, 2048), np.float32)
    x = op.parameter([1, 2048], np.float32, name="x")
    y: Any = x
    for layer in range(6):
        y = op.matmul(y, op.constant(weights + layer), False, False, name=f"m{layer}")
    big = ov.Model([y], [x], "big")
    peaks = [
        hl.sweep(big, ["CPU"], counters=False, reference=reference, **QUICK)
        .summary["peak_rss_bytes"]
        .iloc[0]
        for reference in (True, False)
    ]
    assert abs(peaks[0] - peaks[1]) < 2 * weights.nbytes


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
import hetero_lab as hl
hl.emulate("ACC", unsupported={{"Concat", "MaxPool"}})
model = hl.load("digits_inception")
auto = hl.Affinity.automatic(model, "HETERO:ACC,CPU")
f32 = {f32!r}
placements = [
    hl.Placement(auto, "auto", f32),
    hl.Placement(auto.fix(patterns={{"^mixed": "CPU"}}), "fixed", f32),
]
hl.sweep(model, placements, store={store!r}, turns={turns}, budget_s=None, progress=False)
"""


def run_script(store, turns=2):
    text = SCRIPT.format(root=str(ROOT), f32=F32, store=str(store), turns=turns)
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(text)], stderr=subprocess.PIPE)


@pytest.mark.parametrize("seed", sliced(range(10, 16), quick=0, in_ci=1))
def test_killed_and_resumed_every_row_is_there_once(swept, model, placements, tmp_path, seed):
    """Sweep or worker are killed at random moments, until one run ends by itself."""
    rng = random.Random(seed)
    for _ in range(5):
        process = run_script(tmp_path)
        time.sleep(rng.uniform(0.3, 4.0))
        children = psutil.Process(process.pid).children() if process.poll() is None else []
        target = rng.choice([process.pid, *[c.pid for c in children]])
        if psutil.pid_exists(target):
            os.kill(target, signal.SIGKILL)
        if target != process.pid:
            time.sleep(0.5)
            process.kill()
        process.wait()
    sweep = hl.sweep(model, placements, store=tmp_path, **QUICK)
    pd.testing.assert_frame_equal(sweep.summary[STEADY], swept[0].summary[STEADY])
    assert (sweep.summary["n_turns"] >= 2).all()
    pd.testing.assert_frame_equal(hl.read_sweep(tmp_path).summary, sweep.summary)


def test_a_torn_last_line_is_dropped_and_a_broken_one_is_named(swept, tmp_path):
    _, store = swept
    lines = (store / "records.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "sweep.json").write_bytes((store / "sweep.json").read_bytes())
    (tmp_path / "records.jsonl").write_bytes(b"".join(lines) + lines[0][:20])
    assert len(hl.read_sweep(tmp_path).ranking) == 3
    edited = next(i for i, line in enumerate(lines) if b'"turn"' in line)
    changed = lines[edited].replace(b'"round": 0', b'"round": 7')
    assert changed != lines[edited]
    (tmp_path / "records.jsonl").write_bytes(
        b"".join([*lines[:edited], changed, *lines[edited + 1 :]])
    )
    with pytest.warns(HeteroLabWarning, match=f"line {edited + 1}"):
        assert len(hl.read_sweep(tmp_path).summary) == 3


def test_another_model_version_or_reference_is_refused(swept, model, placements, tmp_path):
    _, store = swept
    for name in ("sweep.json", "records.jsonl"):
        (tmp_path / name).write_bytes((store / name).read_bytes())
    with pytest.raises(StoreError, match="another model"):
        hl.sweep({"other": model}, placements, store=tmp_path, **QUICK)
    with pytest.raises(StoreError, match="other reference"):
        hl.sweep(model, placements[::-1], store=tmp_path, **QUICK)
    header = json.loads((tmp_path / "sweep.json").read_text())
    header["environments"][-1]["openvino_version"] = "2019.1"
    (tmp_path / "sweep.json").write_text(json.dumps(header))
    with pytest.raises(StoreError, match=r"another OpenVINO version: 2019\.1"):
        hl.sweep(model, placements, store=tmp_path, **QUICK)
    header["schema_version"] = 99
    (tmp_path / "sweep.json").write_text(json.dumps(header))
    with pytest.raises(StoreError, match="schema version 99.*Take another store="):
        hl.sweep(model, placements, store=tmp_path, **QUICK)
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(StoredFileError, match="cannot be read"):
        hl.read_sweep(tmp_path)
    (tmp_path / "sweep.json").unlink()
    with pytest.raises(StoreError, match=r"no sweep\.json"):
        hl.sweep(model, placements, store=tmp_path, **QUICK)
    with pytest.raises(StoredFileError):
        hl.read_sweep(tmp_path / "nowhere")


def test_a_second_process_is_refused_until_the_first_was_killed(model, placements, tmp_path):
    process = run_script(tmp_path, turns=10_000)
    records = tmp_path / "records.jsonl"
    while not (records.exists() and '"turn"' in records.read_text()):  # it has no main guard
        assert process.poll() is None
        time.sleep(0.1)
    with pytest.raises(StoreError, match="Another process"):
        hl.sweep(model, placements, store=tmp_path, **QUICK)
    children = psutil.Process(process.pid).children()
    process.kill()
    process.wait()
    # Its workers end, and the lock died with its owner.
    gone, alive = psutil.wait_procs(children, timeout=120)
    assert gone
    assert not alive
    again = hl.sweep(model, placements, store=tmp_path, **HERE)
    assert list(again.summary["status"]) == ["ok"] * 3
    pd.testing.assert_frame_equal(hl.read_sweep(tmp_path).summary, again.summary)


def test_comparison_of_a_sweep_with_itself_shows_no_difference(swept):
    sweep, _ = swept
    comparison = hl.compare(sweep, sweep)
    assert list(comparison.table["ratio"]) == pytest.approx([1.0, 1.0, 1.0])
    assert set(comparison.table["finding"]) <= {"as fast", "undecided"}
    with pytest.raises(ArgumentError, match="is a Sweep"):
        hl.compare(sweep, "b")


@pytest.mark.slow
def test_blobs_are_kept_and_used(model, placements, tmp_path):
    hl.sweep(model, placements, cache_dir=tmp_path, counters=False, **QUICK)
    blobs = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert blobs
    sweep = hl.sweep(model, placements, cache_dir=tmp_path, counters=False, **QUICK)
    assert list(sweep.summary["verdict"]) == ["equal"] * 3


@pytest.mark.parametrize("isolate", [False, True])
def test_what_is_loaded_from_the_cache_is_told(tmp_path, isolate):
    options = {"grid": {"model_cache": [False, True]}, "baselines": False, "counters": False}
    cache_dir = tmp_path if isolate else None  # a directory that is kept, or a temporary one
    made = hl.sweep(
        chain("a", "b"), ["CPU", "HETERO:CPU"], cache_dir=cache_dir, isolate=isolate, **options,
        **QUICK,
    )  # fmt: skip
    rows = made.summary.set_index("label")
    assert list(rows["from_cache"]) == [label.endswith(" · model cache") for label in rows.index]
    assert set(rows["verdict"]) == {"equal"}
    for label in rows.index[1::2]:
        plain = label.removesuffix(" · model cache")
        loaded, compiled = (number(rows["compile_ms"][name]) for name in (label, plain))
        said = f"{plain!r} is loaded in {loaded} ms; compiling takes {compiled} ms."
        assert any(note.endswith(said) for note in made.notes)
    places = list(tmp_path.iterdir())
    assert len(places) == (2 if isolate else 0)  # one for each that is cached
    assert all(place.stat().st_mode & 0o777 == 0o700 and any(place.iterdir()) for place in places)


# -- watched and stopped through its control ----------------------------------------------------


WATCHED = {"isolate": False, "counters": False, "reference": False, "progress": False}


def test_it_tells_every_record(core):
    seen = []
    hl.sweep(
        chain("a", "b"), ["CPU", "ACC"], turns=2, core=core,
        control=SweepControl(lambda record: seen.append(type(record))), **WATCHED,
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
        chain("a", "b"), ["CPU", "ACC"], turns=50, core=core, control=control, **WATCHED
    )
    assert sweep.interrupted
    assert len(turns) == 3
    assert len(sweep.tables["samples"]) == 30
    assert list(sweep.summary["label"]) == ["CPU", "ACC"]


def test_stopped_before_it_begins_nothing_is_compiled(own_core):
    control = SweepControl()
    control.stop()
    sweep = hl.sweep(chain("a"), ["CPU"], turns=2, core=own_core, control=control, **WATCHED)
    assert sweep.interrupted
    assert own_core.n_compiled == 0
    assert list(sweep.summary["status"]) == ["not measured: interrupted"]
