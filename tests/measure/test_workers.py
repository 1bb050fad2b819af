"""Worker processes forked from a server, real ones, and what happens where that is not safe."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import pytest

from hetero_lab.devices.core import bind
from hetero_lab.measure import session, worker_process
from hetero_lab.measure.bench import Bench
from hetero_lab.measure.session import StoppedError, SweepControl
from hetero_lab.measure.worker_process import (
    WORKER,
    SetUp,
    WorkerError,
    WorkerProcess,
    Workers,
    compiles_at_once,
)
from hetero_lab.model.read import prepare, save
from hetero_lab.processes import FORK_SERVER, ForkedProcess, ForkServer, launch

RELEASE = partial(Bench.release, key="none")
WAIT_S = 200  # for what will come, on a busy machine too

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")


@pytest.fixture(scope="module")
def set_up(tmp_path_factory):
    from small_models import chain

    path = tmp_path_factory.mktemp("model") / "model.xml"
    save(prepare(chain("a", "b")).model, path)
    return SetUp(models={"m": str(path)})


def server_of(worker: WorkerProcess) -> psutil.Process:
    parent = psutil.Process(worker.pid).parent()
    assert parent is not None
    return parent


def test_workers_are_forked_from_one_server(set_up):
    with contextlib.ExitStack() as stack:
        closing = (contextlib.closing(WorkerProcess(set_up)) for _ in range(2))
        workers = [stack.enter_context(worker) for worker in closing]
        server = server_of(workers[0])
        assert server == server_of(workers[1])
        assert server.ppid() == os.getpid()
        assert server.num_threads() == 1
        # Neither holds an end of the other's pipes, else it would not see its caller end.
        first, second = (
            {os.readlink(f"/proc/{w.pid}/fd/{n}") for n in os.listdir(f"/proc/{w.pid}/fd")}
            for w in workers
        )
        pipes = {name for name in first & second if name.startswith(("pipe", "socket"))}
        assert pipes == set()
    assert server.children() == []
    FORK_SERVER.forget_set_up()
    with contextlib.closing(WorkerProcess(set_up)) as worker:
        assert server_of(worker) == server


@pytest.mark.slow
def test_a_set_up_that_crashes_or_fails_is_told_by_a_worker_of_its_own(set_up, tmp_path):
    (tmp_path / "model.xml").write_text("no model")
    broken = SetUp(models={"m": str(tmp_path / "model.xml")})
    for _ in range(2):
        with pytest.raises(WorkerError, match="cannot read"):
            WorkerProcess(broken)
    with contextlib.closing(WorkerProcess(set_up)) as worker:
        server_of(worker).kill()
        with contextlib.closing(WorkerProcess(set_up)) as again:
            assert isinstance(again._process, ForkedProcess)
            assert server_of(again).ppid() == os.getpid()


@pytest.mark.slow
def test_a_set_up_that_hangs_is_not_tried_again(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    server, name = ForkServer(), "hanging_module"
    assert server.is_ready(name, WAIT_S)
    with open(tmp_path / "errors", "wb") as errors:
        assert server.fork(name, errors, 2, b"anything") is None
        for _ in range(2):
            worker = server.fork(name, errors, WAIT_S, b"anything")
            assert worker is not None
            worker.kill()
    server.close()


def test_a_signal_that_ends_a_forked_worker_is_told(set_up):
    worker = WorkerProcess(set_up)
    os.kill(worker.pid, signal.SIGSEGV)
    with pytest.raises(WorkerError, match=r"crashed \(signal 11\)"):
        worker.ask(RELEASE, timeout_s=WAIT_S)


def test_a_worker_has_the_environment_of_now(set_up, monkeypatch):
    with contextlib.closing(WorkerProcess(set_up)) as before:
        monkeypatch.setenv("ASKED_FOR_LATER", "1")
        with contextlib.closing(WorkerProcess(set_up)) as after:
            assert "ASKED_FOR_LATER" not in psutil.Process(before.pid).environ()
            assert psutil.Process(after.pid).environ()["ASKED_FOR_LATER"] == "1"
            assert before.ask(RELEASE, timeout_s=WAIT_S) is None  # it goes on


def test_where_a_thread_runs_nothing_is_forked(set_up, monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = ForkServer()
    with open(tmp_path / "errors", "wb") as errors:
        assert server.fork(WORKER, errors, WAIT_S) is None
    server.close()
    monkeypatch.setattr("hetero_lab.processes.FORK_SERVER", server)
    with contextlib.closing(WorkerProcess(set_up)) as worker:
        assert not isinstance(worker._process, ForkedProcess)
        assert psutil.Process(worker.pid).ppid() == os.getpid()
        assert worker.ask(RELEASE, timeout_s=WAIT_S) is None


@pytest.mark.slow
def test_a_server_that_was_killed_is_started_again(set_up):
    with contextlib.closing(WorkerProcess(set_up)) as worker:
        server = server_of(worker)
        server.kill()
        server.wait()
        assert worker.ask(RELEASE, timeout_s=WAIT_S) is None
        with contextlib.closing(WorkerProcess(set_up)) as other:
            assert isinstance(other._process, ForkedProcess)
    with contextlib.suppress(psutil.NoSuchProcess):  # nobody may be there to reap it
        assert psutil.Process(worker.pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_the_server_ends_with_its_caller(tmp_path):
    script = """
        import sys, time
        from hetero_lab.measure.worker_process import WORKER
        from hetero_lab.processes import launch
        worker = launch(WORKER, open(sys.argv[1], "wb"), 60)
        print(worker.pid, flush=True)
        time.sleep(3600)
    """
    caller = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "errors")],
        stdout=subprocess.PIPE,
    )
    assert caller.stdout is not None
    worker = psutil.Process(int(caller.stdout.readline()))
    server = worker.parent()
    assert server is not None
    assert server.ppid() == caller.pid
    caller.kill()
    caller.wait()
    caller.stdout.close()
    _, alive = psutil.wait_procs([worker, server], timeout=WAIT_S)
    assert alive == []


def test_a_command_is_started_as_it_is(tmp_path):
    with open(tmp_path / "errors", "wb") as errors:
        started = launch("", errors, WAIT_S, command=[sys.executable, "-c", "raise SystemExit(3)"])
        assert started.wait(WAIT_S) == 3
        assert not isinstance(started, ForkedProcess)
        for stream in (started.stdin, started.stdout):
            assert stream is not None
            stream.close()


def test_an_answer_that_comes_after_the_end_is_still_read():
    """The output of a process that has ended may be held open by a child of it."""
    late = ["sh", "-c", "(sleep 0.5; echo '{}'; sleep 2) & exit 3"]
    worker = WorkerProcess(SetUp(models={}), Workers(command=late))
    with contextlib.closing(worker), pytest.raises(WorkerError, match=r"crashed \(exit code 3\)"):
        worker.ask(RELEASE, timeout_s=WAIT_S)


def test_a_worker_that_stops_answering_is_told_from_one_that_is_slow(monkeypatch):
    monkeypatch.setattr(worker_process, "_END_S", 0.2)
    mute = ["sh", "-c", "echo '{}'; exec >&-; sleep 30"]
    worker = WorkerProcess(SetUp(models={}), Workers(command=mute))
    with pytest.raises(WorkerError, match=r"crashed \(no more answers\)") as caught:
        worker.ask(RELEASE, timeout_s=WAIT_S)
    assert caught.value.died
    slow = WorkerProcess(SetUp(models={}), Workers(command=["sh", "-c", "echo '{}'; sleep 30"]))
    with pytest.raises(WorkerError, match=r"timed out after 0.1 s: Release"):
        slow.ask(RELEASE, timeout_s=0.1)
    assert not psutil.pid_exists(slow.pid)


def test_a_stopped_sweep_has_no_worker_left(set_up):
    control = SweepControl()
    start = control.stoppable(lambda: WorkerProcess(set_up))
    with contextlib.closing(start()) as worker:
        assert worker.ask(RELEASE, timeout_s=WAIT_S) is None
        control.stop()
        assert control.is_stopped
        with pytest.raises(WorkerError):
            worker.ask(RELEASE, timeout_s=WAIT_S)
    with pytest.raises(StoppedError):
        start()
    late = SweepControl()  # stopped while a worker starts
    begun = late.stoppable(lambda: (late.stop(), WorkerProcess(set_up))[1])()
    with contextlib.closing(begun), pytest.raises(WorkerError):
        begun.ask(RELEASE, timeout_s=WAIT_S)


@pytest.mark.parametrize(("n_cores", "at_once"), [(1, 1), (3, 1), (4, 2)])
def test_each_compile_has_two_cores(monkeypatch, n_cores, at_once):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(n_cores)), raising=False)
    assert compiles_at_once() == at_once


def test_benches_that_start_at_once_share_one_set_up(monkeypatch):
    write, written = session.write_set_up, []

    def slowly(directory, bound, arrays):
        written.append(directory)
        time.sleep(0.2)
        return write(directory, bound, arrays)

    monkeypatch.setattr(session, "write_set_up", slowly)
    bound = bind("digits_inception")
    with (
        session.Session({"m": bound}, session.Conditions()) as opened,
        ThreadPoolExecutor(3) as pool,
    ):
        for bench in list(pool.map(lambda _: opened.start(), range(3))):
            bench.close()
    assert len(written) == 1
