"""Sweeps over a real Dask cluster: processes of this machine, some on hosts of their own."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("distributed")

from distributed import Client
from rack import REPO, Rack, can_make_hosts

import hetero_lab as hl
from hetero_lab.devices.core import shared_core
from hetero_lab.errors import ArgumentError, HeteroLabWarning, MeasurementError, StoreError
from hetero_lab.fleet.cluster import cluster_of
from hetero_lab.fleet.fleet_run import FleetRun
from hetero_lab.measure.budget import RunOptions
from hetero_lab.measure.requests import SetUp
from hetero_lab.measure.workers import Workers
from hetero_lab.results.environment import current_environment
from hetero_lab.results.records import Failed, Finished, Header, Trial, Turn
from hetero_lab.results.store import read_store
from hetero_lab.runtime.timing import Stopwatch

F32 = {"ACC": {"INFERENCE_PRECISION_HINT": "f32"}, "CPU": {"INFERENCE_PRECISION_HINT": "f32"}}
QUICK = {"turns": 3, "budget_s": None, "progress": False, "counters": False}
LONG = {**QUICK, "turns": 80}  # some seconds, so that it can be disturbed
HERE = platform.node()


@pytest.fixture(scope="module")
def model():
    hl.emulate("ACC", unsupported={"Concat", "MaxPool"})
    return hl.load("digits_inception")


@pytest.fixture(scope="module")
def placements(model):
    """Six placements; the sweep adds CPU alone."""
    return cuts(model)


def cuts(model, count=6):
    """Cut the model in two at evenly spaced ops: the first part on CPU, the rest as it comes."""
    auto = hl.Affinity.automatic(model, "HETERO:ACC,CPU")
    ops = auto.ops
    at = [len(ops) * i // count for i in range(count)]
    return [
        hl.Placement(auto.fix(ops=dict.fromkeys(ops[:n], "CPU")), f"cut{i}", F32)
        for i, n in enumerate(at)
    ]


LABELS = [*(f"cut{i}" for i in range(6)), "CPU"]


@pytest.fixture
def rack(tmp_path):
    rack = Rack(tmp_path)
    yield rack
    rack.close()


def check_right(sweep, model, placements, labels=LABELS):
    """Each label once, measured in full, with the partition and numbers of its placement."""
    summary = sweep.summary
    assert list(summary["label"]) == labels
    assert list(summary["status"]) == ["ok"] * len(labels)
    assert list(summary["verdict"]) == ["equal"] * len(labels)
    assert (summary["n_turns"] >= 3).all()
    assert summary["ratio"].notna().all()
    assert summary["ratio"].iloc[0] == 1.0
    for placement in placements:
        predicted = hl.partition(model, placement)
        observed = sweep.profile(placement.label).partition
        assert observed.observed
        assert observed.n_subgraphs == predicted.n_subgraphs
        assert observed.boundary_bytes == predicted.boundary_bytes


def times_finished(store, labels=LABELS):
    header, records = read_store(store)
    label_of = {e.key: e.label for e in header.entries}
    done = [label_of[r.entry] for r in records if isinstance(r, Finished)]
    return {label: done.count(label) for label in labels}


def wait_for(store, n_turns):
    """Wait until a store has so many turns; return the worker that made the last one."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (Path(store) / "records.jsonl").exists():
            turns = [r for r in read_store(store)[1] if isinstance(r, Turn)]
            if len(turns) >= n_turns:
                return turns[-1].worker
        time.sleep(0.02)
    raise AssertionError("nothing was measured")


def test_arguments(model, placements):
    with pytest.raises(ArgumentError, match="client= is a Client or None, not"):
        hl.sweep(model, placements, client="tcp://127.0.0.1:8786")
    with pytest.raises(ArgumentError, match="every_host=True needs client="):
        hl.sweep(model, placements, every_host=True)


@pytest.mark.slow
def test_two_workers_of_this_machine(rack, model, placements, tmp_path):
    rack.start_worker(nanny=True)
    rack.start_worker()
    with Client(rack.address) as client:
        client.wait_for_workers(2)
        sweep = hl.sweep(model, placements, client=client, store=tmp_path / "s", **QUICK)
        check_right(sweep, model, placements)
        assert set(sweep.summary["host"]) == {HERE}
        assert sorted(sweep.ranking["rank"]) == [1, 2, 3, 4, 5, 6, 7]
        before = read_store(tmp_path / "s")[1]
        again = hl.sweep(model, placements, client=client, store=tmp_path / "s", **QUICK)
        assert again.summary.equals(sweep.summary)
        assert read_store(tmp_path / "s")[1] == before
        with pytest.raises(StoreError, match="a fleet, now it is one machine"):
            hl.sweep(model, placements, store=tmp_path / "s", **QUICK)
        with pytest.raises(ArgumentError, match="leave isolate=False out"):
            hl.sweep(model, placements, client=client, isolate=False, **QUICK)
    # What was measured is read without any cluster.
    assert hl.read_sweep(tmp_path / "s").summary.equals(sweep.summary)


@pytest.mark.slow
@pytest.mark.skipif(not can_make_hosts(), reason="needs root, ip, and network namespaces")
def test_two_hosts_with_addresses_of_their_own(rack, model, placements, tmp_path):
    for host in ("board1", "board2"):
        rack.start_worker("--resources", "CPU=1", host=host)
    with Client(rack.address) as client:
        client.wait_for_workers(2)
        sweep = hl.sweep(model, placements, client=client, store=tmp_path / "s", **QUICK)
        workers = {r.worker for r in read_store(tmp_path / "s")[1] if isinstance(r, Turn)}
        assert len({w.rpartition(":")[0] for w in workers}) == 2
        assert all("10.213." in worker for worker in workers)
        assert set(sweep.hosts) == {"board1", "board2"}
        summary = sweep.summary
        # Each row on one of the two, the reference beside it on both.
        assert sorted(summary["label"]) == sorted([*LABELS, "cut0"])
        assert set(summary.loc[summary["label"] == "cut0", "host"]) == {"board1", "board2"}
        assert list(summary["status"]) == ["ok"] * 8
        assert list(summary.loc[summary["reference"], "ratio"]) == [1.0, 1.0]
        for host, mine in sweep.ranking.groupby("host"):
            assert list(mine["rank"]) == list(range(1, len(mine) + 1))
            assert "cut0" in set(mine["label"]), host
        everywhere = hl.sweep(
            model, placements[:2], client=client, every_host=True, store=tmp_path / "e", **QUICK
        )
        rows = set(zip(everywhere.summary["label"], everywhere.summary["host"], strict=True))
        boards = ("board1", "board2")
        assert rows == {(label, b) for label in ("cut0", "cut1", "CPU") for b in boards}
        assert list(everywhere.summary["status"]) == ["ok"] * 6
        assert everywhere.profile("cut1", "board2").environment.host == "board2"
        assert "hosts" in hl.views.gallery(everywhere)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hetero_lab.errors.HeteroLabWarning")
def test_a_killed_worker_has_its_rows_done_again(rack, model, placements, tmp_path):
    workers = {}
    for name in ("one", "two"):
        workers[name] = rack.start_worker("--name", name)
    with Client(rack.address) as client:
        client.wait_for_workers(2)
        address_of = {w["name"]: a for a, w in client.scheduler_info()["workers"].items()}
        killed = []

        def kill():
            victim = wait_for(tmp_path / "s", 5)
            name = next(name for name, address in address_of.items() if address == victim)
            workers[name].send_signal(signal.SIGKILL)
            killed.append(victim)

        thread = threading.Thread(target=kill)
        thread.start()
        sweep = hl.sweep(model, placements, client=client, store=tmp_path / "s", **LONG)
        thread.join()
    check_right(sweep, model, placements)
    assert set(times_finished(tmp_path / "s").values()) == {1}
    finished = [r for r in read_store(tmp_path / "s")[1] if isinstance(r, Finished)]
    assert killed
    assert killed[0] not in {r.worker for r in finished}


CLIENT = textwrap.dedent("""
    import sys
    import hetero_lab as hl
    from distributed import Client
    from fleet.test_fleet import LONG, cuts
    hl.emulate("ACC", unsupported={"Concat", "MaxPool"})
    model = hl.load("digits_inception")
    with Client(sys.argv[1]) as client:
        try:
            hl.sweep(model, cuts(model), client=client, store=sys.argv[2], **LONG)
        except KeyboardInterrupt:
            print(hl.last_interrupted().interrupted)
""")


def start_client(rack, store):
    paths = [REPO, REPO / "tests", Path(__file__).parent, os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-c", CLIENT, rack.address, str(store)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_until_idle(worker):
    """Wait until a worker has no more processes that measure."""
    deadline = time.monotonic() + 30
    # What processes that measure are forked from stays for the next sweep.
    while any(child.children() for child in psutil.Process(worker.pid).children()):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_client_that_ended_goes_on_from_the_store(rack, model, placements, tmp_path, how):
    worker = rack.start_worker()
    process = start_client(rack, tmp_path / "s")
    wait_for(tmp_path / "s", 5)
    process.send_signal(how)
    said, _ = process.communicate(timeout=60)
    if how == signal.SIGINT:
        assert said == "True\n"
    assert set(times_finished(tmp_path / "s").values()) == {0}
    # Nobody waits for what the worker measures any more, so it stops.
    wait_until_idle(worker)
    before = [r for r in read_store(tmp_path / "s")[1] if isinstance(r, Turn)]
    assert len(before) >= 5
    with Client(rack.address) as client:
        sweep = hl.sweep(model, placements, client=client, store=tmp_path / "s", **QUICK)
    check_right(sweep, model, placements)
    assert set(times_finished(tmp_path / "s").values()) == {1}
    after = [r for r in read_store(tmp_path / "s")[1] if isinstance(r, Turn)]
    assert after[: len(before)] == before


@pytest.mark.slow
def test_workers_that_cannot_or_differ(rack, model, placements, tmp_path):
    without = "import sys; sys.modules['hetero_lab'] = None"
    rack.start_worker(before=without)
    with Client(rack.address) as client:
        client.wait_for_workers(1)
        with (
            pytest.warns(HeteroLabWarning, match="left out: hetero_lab is not installed there"),
            pytest.raises(MeasurementError, match="No worker of the scheduler at tcp.* can meas"),
        ):
            hl.sweep(model, placements, client=client, **QUICK)
        rack.start_worker(before="import hetero_lab; hetero_lab.__version__ = '0.0.1'")
        client.wait_for_workers(2)
        with pytest.warns(HeteroLabWarning) as caught:
            sweep = hl.sweep(model, placements[:2], client=client, **QUICK)
        texts = [str(w.message) for w in caught]
        assert any("has hetero_lab 0.0.1, here it is" in text for text in texts)
        assert any("is left out" in text for text in texts)
        check_right(sweep, model, placements[:2], ["cut0", "cut1", "CPU"])
        assert set(sweep.summary["hetero_lab_version"]) == {"0.0.1"}


@pytest.mark.slow
def test_workers_of_one_host_have_the_same_versions(rack, model, placements):
    rack.start_worker()
    with Client(rack.address) as client:
        client.wait_for_workers(1)
        rack.start_worker(before="import hetero_lab; hetero_lab.__version__ = '0.0.1'")
        client.wait_for_workers(2)
        with pytest.warns(HeteroLabWarning) as caught:
            sweep = hl.sweep(model, placements[:2], client=client, **QUICK)
    texts = [str(w.message) for w in caught]
    assert any(f"the other workers of {HERE} have another hetero_lab." in t for t in texts)
    check_right(sweep, model, placements[:2], ["cut0", "cut1", "CPU"])
    assert len(set(sweep.summary["hetero_lab_version"])) == 1


FULL_DISK = """
import errno, pathlib
def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")
pathlib.Path.write_bytes = full
"""
OTHER_CPU = """
from hetero_lab.results import environment
environment.full_name = lambda core, device: "another CPU"
"""


@pytest.mark.slow
def test_a_worker_without_room_for_the_model(rack, model, placements):
    rack.start_worker(before=FULL_DISK)
    with Client(rack.address) as client:
        client.wait_for_workers(1)
        options = {**QUICK, "budget_s": 4.0}
        with pytest.warns(HeteroLabWarning, match="left out: The directory .* No space left"):
            sweep = hl.sweep(model, placements[:2], client=client, **options)
    assert "no worker for it" in set(sweep.summary["status"])


@pytest.mark.slow
def test_another_machine_of_the_same_name_does_not_go_on(rack, model, placements, tmp_path):
    first = rack.start_worker()
    with Client(rack.address) as client:
        client.wait_for_workers(1)
        hl.sweep(model, placements[:1], client=client, store=tmp_path / "s", **QUICK)
        first.kill()
        while client.scheduler_info()["workers"]:
            time.sleep(0.1)
        before = read_store(tmp_path / "s")[1]
        rack.start_worker(before=OTHER_CPU)
        client.wait_for_workers(1)
        with pytest.raises(StoreError, match=f"{HERE} was measured with the CPU .*two machines"):
            hl.sweep(model, placements, client=client, store=tmp_path / "s", **QUICK)
    assert read_store(tmp_path / "s")[1] == before


@pytest.mark.slow
def test_no_workers_and_no_worker_with_the_device(rack, model, placements, tmp_path):
    with Client(rack.address) as client:
        with pytest.raises(MeasurementError, match="has no workers. Start one on each machine"):
            hl.sweep(model, placements, client=client, **QUICK)
        rack.start_worker()
        client.wait_for_workers(1)
        model_file = tmp_path / "m" / "model.xml"
        model_file.parent.mkdir()
        model_file.write_text("")  # nobody gets as far as reading it
        records = sweep_of_a_gpu(client, model_file)
    (failed,) = [r for r in records if isinstance(r, Failed)]
    assert (failed.entry, failed.status) == ("k", "no worker for it")
    assert f"{HERE} (tcp://127.0.0.1:" in failed.detail
    assert failed.detail.endswith("has no GPU")


def sweep_of_a_gpu(client, model_file):
    """Run what a caller with a GPU asks for; here is none, so it cannot be made by sweep()."""
    records = []
    trial = Trial(
        key="k", label="GPU", variant="m", affinity=(), devices=("GPU",), device_properties={},
        direct=True,
    )  # fmt: skip
    header = Header(
        models={}, entries=[trial], reference="k", emulated=[], seed=0, inputs_digest="",
        environments=[current_environment(["CPU"], shared_core())], fleet=True,
    )  # fmt: skip
    run = FleetRun(
        cluster=cluster_of(client, isolate=True), trials=[trial], reference="k", header=header,
        records=records, append=records.append, options=RunOptions(turns=3, counters=False),
        watch=Stopwatch.start(3.0), progress=False, workers=Workers(),
        set_up=lambda: SetUp(models={"m": str(model_file)}, directory=str(model_file.parent)),
    )  # fmt: skip
    assert run.pending() == ["k"]
    try:
        run.measure()
    finally:
        run.close()
    return records


@pytest.mark.slow
def test_the_scheduler_goes_and_comes_back(rack, model, placements, tmp_path):
    rack.start_worker()
    store = tmp_path / "s"

    def kill():
        wait_for(store, 5)
        rack.scheduler.kill()

    thread = threading.Thread(target=kill)
    with Client(rack.address) as client:
        client.wait_for_workers(1)
        thread.start()
        with pytest.warns(HeteroLabWarning, match="is gone. The turns that were measured are kept"):
            sweep = hl.sweep(model, placements, client=client, store=store, **LONG)
        thread.join()
        assert list(sweep.summary["label"]) == LABELS
        # Rows that have some turns are measured; what had none yet says why.
        assert set(sweep.summary["status"]) <= {"ok", "the scheduler is gone"}
        with pytest.raises((ArgumentError, MeasurementError)):
            hl.sweep(model, placements, client=client, store=store, **QUICK)
    turns = [r for r in read_store(store)[1] if isinstance(r, Turn)]
    assert 5 <= len(turns) < LONG["turns"] * len(LABELS)
    rack.start_scheduler(0)
    rack.start_worker()
    with Client(rack.address) as client:
        sweep = hl.sweep(model, placements, client=client, store=store, **QUICK)
    check_right(sweep, model, placements)
    assert set(times_finished(store).values()) == {1}
