"""Sweeps over real Dask clusters: worker processes of this machine, on addresses of their own."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

pytest.importorskip("distributed")

from distributed import Client, Nanny, Scheduler, SpecCluster

import hetero_lab as hl
from hetero_lab.devices.core import shared_core
from hetero_lab.errors import ArgumentError, HeteroLabWarning, MeasurementError, StoreError
from hetero_lab.fleet import cluster as fleet_cluster
from hetero_lab.fleet.cluster import cluster_of, divide
from hetero_lab.measure.session import SweepControl
from hetero_lab.measure.stopping import RunOptions
from hetero_lab.measure.worker_process import SetUp, Workers
from hetero_lab.progress import Stopwatch
from hetero_lab.results.environment import current_environment
from hetero_lab.results.records import Failed, Header, Ledger, Trial, Turn, by_key
from hetero_lab.results.store import read_store

REPO = Path(__file__).parents[2]
HERE = platform.node()
F32 = {"ACC": {"INFERENCE_PRECISION_HINT": "f32"}, "CPU": {"INFERENCE_PRECISION_HINT": "f32"}}
QUICK = {
    "turns": 2, "budget_s": None, "progress": False, "counters": False,
    "workers": hl.Workers(group=3),
}  # fmt: skip
LABELS = ["cut0", "cut1", "cut2", "CPU"]  # two groups on one host: two rows and one, beside cut0


@pytest.fixture(scope="module")
def model():
    hl.emulate("ACC", unsupported={"Concat", "MaxPool"})
    return hl.load("digits_inception")


@pytest.fixture(scope="module")
def placements(model):
    return cuts(model)


def cuts(model, count=3):
    """Cut the model in two at evenly spaced ops: the first part on CPU, the rest as it comes."""
    auto = hl.Affinity.automatic(model, "HETERO:ACC,CPU")
    ops = auto.ops
    at = [len(ops) * i // count for i in range(count)]
    return [
        hl.Placement(auto.fix(ops=dict.fromkeys(ops[:n], "CPU")), f"cut{i}", F32)
        for i, n in enumerate(at)
    ]


@contextlib.contextmanager
def client_on(*workers: dict):
    """Start a cluster with these workers, each in a process of its own."""
    common = {"host": "127.0.0.1", "dashboard": False}
    with (
        SpecCluster(
            scheduler={"cls": Scheduler, "options": common},
            workers={
                i: {"cls": Nanny, "options": {"nthreads": 1, **common, **options}}
                for i, options in enumerate(workers)
            },
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def check_right(sweep, labels=LABELS):
    """Each label once, measured in full, beside the reference on this host."""
    summary = sweep.summary
    assert list(summary["label"]) == labels
    assert list(summary["status"]) == ["ok"] * len(labels)
    assert set(summary["host"]) == {HERE}
    assert list(summary["verdict"]) == ["equal"] * len(labels)
    assert (summary["n_turns"] >= 2).all()
    assert summary["ratio"].notna().all()
    assert summary["ratio"].iloc[0] == 1.0


def turns_of(store):
    return [record for record in read_store(store)[1] if isinstance(record, Turn)]


def wait_for(condition):
    deadline = time.monotonic() + 240
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


# -- who measures what --------------------------------------------------------------------------


def trial(name, *devices):
    return Trial(
        key=name, label=name, variant="m", affinity=(), devices=devices, device_properties={}
    )


@pytest.fixture(scope="module")
def hosts():
    here = current_environment(["CPU"], shared_core())
    has = {"a": ["CPU"], "b": ["CPU", "GPU"], "c": ["GPU"]}
    return {
        at: replace(here, host=at, devices=tuple((d, d) for d in devices))
        for at, devices in has.items()
    }


def divided(trials, hosts, reference, size=8):
    return [
        ([t.key for t in group], list(addresses))
        for group, addresses in divide(trials, hosts, reference, size)
    ]


def test_groups_go_to_hosts_with_their_devices_and_the_reference(hosts):
    cpu = trial("ref", "CPU")
    some = [trial("c1", "CPU"), trial("g1", "GPU", "CPU"), trial("c2", "CPU"), trial("g2", "GPU")]
    assert divided(some, hosts, cpu) == [
        (["ref", "c1"], ["a", "b"]),
        (["ref", "c2"], ["a", "b"]),
        (["ref", "g1", "g2"], ["b"]),  # c has the GPU of g2, but not the CPU of the reference
    ]
    assert divided([some[3]], {"c": hosts["c"]}, cpu) == [(["g2"], ["c"])]
    assert divided([cpu], hosts, cpu) == [(["ref"], ["a", "b"])]


@pytest.mark.parametrize(
    ("n", "n_hosts", "size", "sizes"),
    [(20, 1, 8, [7, 7, 6]), (7, 2, 8, [4, 3]), (1, 2, 8, [1]), (3, 1, 2, [1, 1, 1])],
)
def test_groups_are_full_or_one_for_each_host(hosts, n, n_hosts, size, sizes):
    same = {str(i): hosts["a"] for i in range(n_hosts)}
    groups = divide([trial(f"t{i}", "CPU") for i in range(n)], same, trial("ref", "CPU"), size)
    assert [len(group) - 1 for group, _ in groups] == sizes
    assert all(addresses == tuple(same) for _, addresses in groups)


def test_arguments(model, placements):
    with pytest.raises(ArgumentError, match="client= is a blocking dask.distributed.Client"):
        hl.sweep(model, placements, client="tcp://127.0.0.1:8786")
    with pytest.raises(ArgumentError, match="every_host=True needs client="):
        hl.sweep(model, placements, every_host=True)


# -- on clusters --------------------------------------------------------------------------------


def measuring(client):
    """Return the process of the worker that measures now, and its address."""
    for address, pid in client.run(os.getpid).items():
        # The first child is what processes that measure are forked from.
        if len(psutil.Process(pid).children(recursive=True)) > 1:
            return address, pid
    return None


@pytest.mark.slow
def test_a_killed_worker_costs_nothing_and_a_store_resumes(model, placements, tmp_path):
    store, killed = tmp_path / "s", []

    def kill(client):
        address, pid = wait_for(lambda: measuring(client))
        os.kill(pid, signal.SIGKILL)
        killed.append(address)

    with client_on({}, {}) as client:
        thread = threading.Thread(target=kill, args=[client])
        thread.start()
        sweep = hl.sweep(model, placements, client=client, store=store, **QUICK)
        thread.join()
        check_right(sweep)
        assert killed
        for placement in placements:
            observed = sweep.profile(placement.label).partition
            assert observed.observed
            assert observed.n_subgraphs == hl.partition(model, placement).n_subgraphs
        # Each group is of one worker, whole, with the reference in it.
        reference = read_store(store)[0].reference
        groups = {}
        for turn in turns_of(store):
            groups.setdefault(turn.group, []).append(turn)
        for turns in groups.values():
            assert len({turn.worker for turn in turns}) == 1
            entries = {turn.entry for turn in turns}
            assert reference in entries
            assert len(turns) == 2 * len(entries)
        before = read_store(store)[1]
        again = hl.sweep(model, placements, client=client, store=store, **QUICK)
        assert again.summary.equals(sweep.summary)
        assert read_store(store)[1] == before
        with pytest.raises(StoreError, match="a fleet, now it is one machine"):
            hl.sweep(model, placements, store=store, **QUICK)
        with pytest.raises(ArgumentError, match="leave isolate=False out"):
            hl.sweep(model, placements, client=client, isolate=False, **QUICK)
    # What was measured is read without any cluster.
    assert hl.read_sweep(store).summary.equals(sweep.summary)


WITHOUT_ACC = """
from hetero_lab.fleet import cluster
def describe(devices, emulated, own=cluster.describe):
    return own([device for device in devices if device != "ACC"], emulated)
cluster.describe = describe
"""


@pytest.mark.slow
def test_hosts_that_lack_a_device(model, placements, tmp_path):
    names = [f"{HERE} (127.0.0.1)", f"{HERE} (127.0.0.2)"]
    with client_on({}, {"host": "127.0.0.2", "preload": [WITHOUT_ACC]}) as client:
        some = [hl.Placement(hl.Affinity.uniform(model, "CPU"), "all", F32), *placements[1:]]
        sweep = hl.sweep(model, some, client=client, **QUICK)
        summary = sweep.summary.set_index("label")
        assert set(summary["status"]) == {"ok"}
        assert set(summary.loc[["cut1", "cut2"], "host"]) == {names[0]}
        every = hl.sweep(model, some, client=client, every_host=True, **QUICK).summary
        rows = {(row.label, row.host): row for row in every.itertuples()}
        labels = ("all", "cut1", "cut2", "CPU")
        assert set(rows) == {(label, name) for label in labels for name in names}
        for (label, name), row in rows.items():
            if label in ("all", "CPU") or name == names[0]:
                assert (row.status, row.ratio > 0) == ("ok", True)
            else:
                assert row.status == "no worker for it"
                assert row.detail == f"{names[1]} (127.0.0.2) has no ACC"
        records = sweep_of_a_gpu(client, tmp_path)
    (failed,) = [r for r in records if isinstance(r, Failed)]
    assert (failed.entry, failed.status, failed.host) == ("k", "no worker for it", "")
    assert failed.detail == "; ".join(f"{n} ({n[-10:-1]}) has no GPU" for n in names)


def sweep_of_a_gpu(client, directory):
    """Run what a caller with a GPU asks for; here is none, so it cannot be made by sweep()."""
    records = []
    gpu = trial("k", "GPU")
    header = Header(
        models={}, entries=[gpu], reference="k", emulated=[], seed=0, inputs_digest="",
        environments=[current_environment(["CPU"], shared_core())], fleet=True,
    )  # fmt: skip
    cluster_of(client, isolate=True)(
        trials=by_key([gpu]), header=header, ledger=Ledger((), records.append),
        options=RunOptions(turns=3, counters=False), watch=Stopwatch.start(3.0), progress=False,
        workers=Workers(), control=SweepControl(),
        set_up=lambda: SetUp(models={}, directory=str(directory)),
    )  # fmt: skip
    return records


CLIENT = textwrap.dedent("""
    import sys
    import hetero_lab as hl
    from distributed import Client
    from fleet.test_fleet import QUICK, cuts
    hl.emulate("ACC", unsupported={"Concat", "MaxPool"})
    model = hl.load("digits_inception")
    with Client(sys.argv[1]) as client:
        try:
            hl.sweep(model, cuts(model), client=client, store=sys.argv[2], **QUICK)
        except KeyboardInterrupt:
            print(hl.last_interrupted().interrupted)
""")


@pytest.mark.slow
def test_ctrl_c_keeps_the_groups_that_ended(model, placements, tmp_path):
    store = tmp_path / "s"
    paths = [REPO, REPO / "tests", os.environ.get("PYTHONPATH", "")]
    with client_on({}) as client:
        process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, client.scheduler.address, str(store)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
            stdout=subprocess.PIPE,
            text=True,
        )
        wait_for(lambda: (store / "records.jsonl").exists() and turns_of(store))
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=240)[0] == "True\n"
        before = turns_of(store)
        ended = {turn.entry for turn in before}
        assert len(ended) >= 3  # the first group, the larger one
        # Nobody waits for the other group any more, so the worker stops.
        wait_for(lambda: not measuring(client))
        sweep = hl.sweep(model, placements, client=client, store=store, **QUICK)
    check_right(sweep)
    assert turns_of(store)[: len(before)] == before
    assert ended.isdisjoint(
        {turn.entry for turn in turns_of(store)[len(before) :]} - {read_store(store)[0].reference}
    )


def other(code):
    return {"preload": [f"import hetero_lab\n{code}"]}


OLD = other("hetero_lab.__version__ = '0.0.1'")
WITHOUT = {"preload": ["import sys; sys.modules['hetero_lab'] = None"]}
OTHER_CPU = other(
    "from hetero_lab.results import environment\n"
    "environment.full_name = lambda core, device: 'another CPU'"
)


@pytest.mark.slow
def test_hosts_that_cannot_or_differ(model, placements, tmp_path):
    store, one = tmp_path / "s", placements[:1]
    at = [{"host": f"127.0.0.{number}"} for number in (1, 2, 3)]
    with (
        client_on(at[0] | OLD, at[1] | WITHOUT, at[2], at[2] | OLD) as client,
        pytest.warns(HeteroLabWarning) as caught,
    ):
        sweep = hl.sweep(model, one, client=client, store=store, **QUICK)
    texts = [str(warning.message) for warning in caught]
    assert any(f"{HERE} has hetero_lab 0.0.1, here it is" in text for text in texts)
    assert any("127.0.0.2 is left out: hetero_lab cannot run there (" in t for t in texts)
    assert any("127.0.0.3 is left out: its workers have different" in text for text in texts)
    check_right(sweep, ["cut0", "CPU"])
    assert set(sweep.summary["hetero_lab_version"]) == {"0.0.1"}
    before = read_store(store)[1]
    with (
        client_on(OTHER_CPU) as client,
        pytest.raises(StoreError, match=f"{HERE} was measured with the (ACC|CPU) .*two machines"),
    ):
        hl.sweep(model, placements[:2], client=client, store=store, **QUICK)
    assert read_store(store)[1] == before
    with (
        client_on(WITHOUT) as client,
        pytest.warns(HeteroLabWarning, match="is left out"),
        pytest.raises(MeasurementError, match="has no host that can measure. 127.0.0.1: het"),
    ):
        hl.sweep(model, one, client=client, **QUICK)


@pytest.mark.slow
def test_groups_of_which_nothing_can_be_measured(model, placements, tmp_path, monkeypatch):
    monkeypatch.setattr(fleet_cluster, "_PATIENCE_S", 2.0)
    with (
        client_on() as client,
        pytest.raises(MeasurementError, match="has no workers. Start one on each machine"),
    ):
        hl.sweep(model, placements, client=client, **QUICK)
    with client_on({}) as client:
        monkeypatch.setattr(fleet_cluster, "_PATIENCE_S", 60.0)  # also on a busy machine
        little = QUICK | {"workers": hl.Workers(memory_limit="1MiB")}
        with pytest.warns(HeteroLabWarning, match="Every placement of a group failed: 'cut0', "):
            sweep = hl.sweep(model, placements[:2], client=client, **little)
        assert set(sweep.summary["status"]) == {"out of memory"}
        monkeypatch.setattr(fleet_cluster, "_PATIENCE_S", 2.0)
        thread = threading.Thread(
            target=lambda: wait_for(lambda: measuring(client)) and client.cluster.scale(0)
        )
        thread.start()
        sweep = hl.sweep(model, placements, client=client, **QUICK)
        thread.join()
    assert set(sweep.summary["status"]) == {"no worker for it"}
    assert set(sweep.summary["detail"]) == {"no worker is left"}


CLUSTER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    cluster = LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None)
    print(cluster.scheduler_address, flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_the_scheduler_goes(model, placements, tmp_path):
    file = tmp_path / "cluster_of_its_own.py"
    file.write_text(CLUSTER)
    process = subprocess.Popen(
        [sys.executable, file],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPO), *sys.path])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def kill():
        wait_for(lambda: turns_of(tmp_path / "s") if (tmp_path / "s/sweep.json").exists() else [])
        process.kill()

    thread = threading.Thread(target=kill)
    with Client(process.stdout.readline().strip(), timeout=5) as client:
        thread.start()
        with pytest.warns(HeteroLabWarning, match="is gone. The turns that were measured are kept"):
            sweep = hl.sweep(model, placements, client=client, store=tmp_path / "s", **QUICK)
        thread.join()
    process.communicate()
    assert list(sweep.summary["status"]) == ["ok"] * 3 + ["the scheduler is gone"]
