"""What happens when something breaks: a full disk, a store that goes away, a clock, a kernel.

Each fault is a real one. Workers that crash, hang or eat all memory are in ``test_sweep`` and
``test_profile``.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from counting_core import core_with_acc
from other_process import run_python
from slow_index import disk_of, mounted
from small_models import convolutions

import hetero_lab as hl
from hetero_lab.errors import OutputPathError, StoreError
from hetero_lab.processes import SERVER

ROOT = str(Path(__file__).resolve().parents[2])
F32 = {"ACC": {"INFERENCE_PRECISION_HINT": "f32"}, "CPU": {"INFERENCE_PRECISION_HINT": "f32"}}
QUICK = {"counters": False, "budget_s": None, "progress": False}
ENDLESS = 100_000  # turns


@pytest.fixture(scope="module")
def model():
    hl.emulate("ACC", unsupported={"Softmax"})
    return hl.load(convolutions(8))


@pytest.fixture(scope="module")
def placements(model):
    auto = hl.Affinity.automatic(model, "HETERO:ACC,CPU")
    return [hl.Placement(auto, "auto", F32), hl.Placement(auto.fix(types={"Add": "CPU"}), "b", F32)]


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    with disk_of(tmp_path / "disk", "64k") as disk:
        yield disk


def fill(disk: Path) -> None:
    """Leave no block free."""
    with open(disk / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 512)


def workers(caller: psutil.Process | None = None) -> list[psutil.Process]:
    """The worker processes of a process that live; what they are forked from is none."""
    caller = caller or psutil.Process()
    found = []
    for child in caller.children(recursive=True):
        try:
            # The module, not the path: the interpreter's directory may have the package's name.
            words = child.cmdline()
            modules = [word for word in words if word.startswith("hetero_lab.")]
            is_server = child.ppid() == caller.pid and words[-1:] == [SERVER]
            if modules and not is_server:
                found.append(child)
        except psutil.Error:
            continue
    return found


# -- the disk ----------------------------------------------------------------------------------


def test_a_disk_that_fills_up_during_a_sweep(model, placements, small_disk):
    store = small_disk / "store"
    with pytest.raises(OutputPathError, match="No space left.*run the same sweep again"):
        hl.sweep(model, placements, store=store, isolate=False, turns=ENDLESS, **QUICK)
    # What was written is whole, and the sweep goes on when there is room.
    kept = hl.read_sweep(store)
    turns = kept.summary.set_index("label")["n_turns"]
    assert turns["auto"] >= 2
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    least = int(turns.max()) + 1
    after = hl.sweep(model, placements, store=store, isolate=False, turns=least, **QUICK)
    assert list(after.summary["status"]) == ["ok"] * 3
    assert (after.summary.set_index("label")["n_turns"] >= turns).all()
    assert (after.summary["n_turns"] >= least).all()


def test_a_full_disk_keeps_the_old_file(model, placements, small_disk):
    affinity = placements[0].affinity
    result = hl.profile(model, placements[0], iterations=10, counters=False, progress=False)
    old = small_disk / "old"
    old.write_text("old")
    fill(small_disk)
    before = sorted(path.name for path in small_disk.iterdir())
    for write in (
        affinity.to_json,
        affinity.to_csv,
        result.to_csv,
        lambda path: hl.views.page(result, path),
    ):
        with pytest.raises(OutputPathError, match=r"'.*old' cannot be written.*No space left"):
            write(old)
        assert old.read_text() == "old"
    with pytest.raises(OutputPathError, match="No space left"):
        hl.freeze(model, placements[0], small_disk)
    with pytest.raises(OutputPathError):
        result.export(small_disk)
    assert sorted(path.name for path in small_disk.iterdir()) == before


def test_no_room_for_what_workers_need(model, placements, small_disk, monkeypatch):
    fill(small_disk)
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    with pytest.raises(OutputPathError, match="TMPDIR"):
        hl.sweep(model, placements, turns=2, **QUICK)
    with pytest.raises(OutputPathError, match="TMPDIR"):
        hl.profile(model, placements[0], isolate=True, progress=False)
    assert workers() == []


# -- the store ---------------------------------------------------------------------------------


def test_a_read_only_store_can_be_read_and_is_refused_for_writing(model, placements, tmp_path):
    store = tmp_path / "store"
    swept = hl.sweep(model, placements, store=store, isolate=False, turns=2, **QUICK)
    before = {path.name: path.read_bytes() for path in store.iterdir()}
    with mounted(tmp_path / "read_only", "--bind", str(store)) as place:
        # Not even root can write there.
        subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)
        assert hl.read_sweep(place).summary["label"].tolist() == swept.summary["label"].tolist()
        core = core_with_acc()
        with pytest.raises(OutputPathError, match=r"read_only' cannot be written.*[Rr]ead-only"):
            hl.sweep(model, placements, store=place, turns=3, isolate=False, core=core, **QUICK)
        assert core.n_compiled == 0
    assert {path.name: path.read_bytes() for path in store.iterdir()} == before


@pytest.mark.parametrize("what", ["directory", "records"])
def test_a_store_removed_during_the_run(model, placements, tmp_path, what):
    store = tmp_path / "store"

    def remove() -> None:
        records = store / "records.jsonl"
        while not records.exists() or records.stat().st_size < 4000:
            time.sleep(0.01)
        if what == "directory":
            shutil.rmtree(store)
        else:
            records.unlink()

    remover = threading.Thread(target=remove)
    remover.start()
    with pytest.raises(OutputPathError, match="was removed or replaced.*into another store"):
        hl.sweep(model, placements, store=store, isolate=False, turns=ENDLESS, **QUICK)
    remover.join()
    # The same call begins anew there.
    again = hl.sweep(model, placements, store=store, isolate=False, turns=2, **QUICK)
    assert list(again.summary["status"]) == ["ok"] * 3


def test_two_sweeps_on_one_store_in_one_process(model, placements, tmp_path):
    failed: list[BaseException] = []
    ended = threading.Event()

    def first() -> None:
        try:
            hl.sweep(model, placements, store=tmp_path, isolate=False, turns=60, **QUICK)
        except BaseException as error:
            failed.append(error)
        ended.set()

    thread = threading.Thread(target=first)
    thread.start()
    while not (tmp_path / "records.jsonl").exists():
        time.sleep(0.01)
    assert not ended.is_set()
    with pytest.raises(StoreError, match="is writing into"):
        hl.sweep(model, placements, store=tmp_path, isolate=False, turns=2, **QUICK)
    thread.join()
    assert failed == []
    assert (hl.read_sweep(tmp_path).summary["n_turns"] >= 60).all()


# -- the clock ---------------------------------------------------------------------------------

CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <sys/time.h>
/* The wall clock goes back a day, again and again; the monotonic one is left alone. */
static int (*real)(clockid_t, struct timespec *);
static long long shift(void) {
    static long long calls;
    return -86400LL * (__atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED) / 3);
}
int clock_gettime(clockid_t id, struct timespec *now) {
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(id, now);
    if (id == CLOCK_REALTIME && !code) now->tv_sec += shift();
    return code;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    now->tv_sec = wall.tv_sec;
    now->tv_usec = wall.tv_nsec / 1000;
    return 0;
}
"""

PRELUDE = """
import sys, time
sys.path[:0] = [{root!r}, {root!r} + "/tests"]
from slow_index import disk_of, mounted
from small_models import convolutions
import hetero_lab as hl
hl.emulate("ACC", unsupported={{"Softmax"}})
model = hl.load(convolutions(8))
auto = hl.Affinity.automatic(model, "HETERO:ACC,CPU")
f32 = {f32!r}
"""
SWEEP = (
    PRELUDE
    + """
walls = [time.time() for _ in range(9)]
assert min(walls) < walls[0] - 86000, walls
swept = hl.sweep(model, [hl.Placement(auto, "auto", f32)], store={store!r}, turns={turns},
                 counters=False, budget_s={budget}, progress=False)
assert list(swept.summary["status"]) == ["ok", "ok"], swept.summary
assert (swept.summary["median_us"] > 0).all()
assert (swept.summary["n_turns"] >= {turns}).all()
profile = hl.profile(model, auto, budget_s=0.5, counters=False, progress=False)
assert min(profile.latency.samples_us) > 0
"""
)


@pytest.mark.slow
def test_a_clock_that_jumps_back(tmp_path):
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("the clock is turned back by a preloaded library: Linux and a C compiler")
    source, library = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(CLOCK)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    store = tmp_path / "store"
    for turns in (2, 4):  # the second call goes on where the first ended
        script = SWEEP.format(root=ROOT, f32=F32, store=str(store), turns=turns, budget=3600)
        run_python(script, LD_PRELOAD=str(library))
    assert (hl.read_sweep(store).summary["n_turns"] >= 4).all()


# -- the notebook ------------------------------------------------------------------------------

CELL = (
    PRELUDE
    + """
swept = hl.sweep(model, [hl.Placement(auto, "auto", f32), hl.Placement(auto.fix(
    types={{"Add": "CPU"}}), "b", f32)], store={store!r}, turns={turns}, counters=False,
    budget_s=None, progress=False)
print("interrupted:", swept.interrupted, "rows:", len(swept.summary))
"""
)


def _run(client, code: str, wait_s: float = 120) -> tuple[str, str]:
    """Run a cell to its end; return what it printed and how it ended."""
    printed: list[str] = []
    reply = client.execute_interactive(
        code,
        timeout=wait_s,
        output_hook=lambda m: printed.append(str(m["content"].get("text", ""))),
        stop_on_error=False,
    )
    return "".join(printed), reply["content"]["status"]


def _grown(store: Path, least: int) -> None:
    records, until = store / "records.jsonl", time.perf_counter() + 60
    while not records.exists() or records.stat().st_size < least:
        assert time.perf_counter() < until, "the sweep wrote nothing"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_kernel_interrupted_and_restarted(tmp_path):
    from jupyter_client.manager import KernelManager

    store = tmp_path / "store"
    endless = CELL.format(root=ROOT, f32=F32, store=str(store), turns=ENDLESS)
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    try:
        client = manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=60)
        # The stop button: what was measured is there, and the kernel goes on.
        stopper = threading.Thread(target=lambda: (_grown(store, 6000), manager.interrupt_kernel()))
        stopper.start()
        printed, status = _run(client, endless)
        stopper.join()
        assert status == "error", printed
        assert "interrupted:" not in printed  # the rest of the cell was not run
        printed, _ = _run(client, "swept = hl.last_interrupted(); print(swept.interrupted)")
        assert printed.strip() == "True"
        printed, _ = _run(client, "print(sorted(swept.summary['n_turns'])[0] >= 1)")
        assert printed.strip() == "True"
        kernel = psutil.Process(manager.provisioner.pid)
        assert workers(kernel) == []

        # Restarted in the middle: its workers end, the store is free, the same call goes on.
        size = (store / "records.jsonl").stat().st_size
        client.execute(endless)
        _grown(store, size + 6000)
        orphans = kernel.children(recursive=True)
        manager.restart_kernel(now=True)
        _, alive = psutil.wait_procs(orphans, timeout=20)
        assert alive == []
        client.wait_for_ready(timeout=60)
        turns = int(hl.read_sweep(store).summary["n_turns"].max()) + 1
        printed, status = _run(
            client, CELL.format(root=ROOT, f32=F32, store=str(store), turns=turns)
        )
        assert status == "ok", printed
        assert "interrupted: False rows: 3" in printed
        client.stop_channels()
    finally:
        manager.shutdown_kernel(now=True)
    summary = hl.read_sweep(store).summary
    assert list(summary["status"]) == ["ok"] * 3
    assert (summary["n_turns"] >= turns).all()
    assert summary["label"].is_unique
