"""What a sweep costs beside its bare compile and infer calls, and whether its memory is flat.

Run by hand: ``python -m tests.benchmarks.benchmark_sweep [--model magika]``. Prints the ratio of
a sweep of 20 placements to a plain loop of the same compiles and inferences in the same run
(start of workers apart), the same for a sweep in this process, whose compiles are as warm as those
of the loop, and the peak memory of the process tree after 10 and 50 placements. With
``--fleet`` it is the ratio of the sweep on one worker of a Dask cluster on this machine to the same
sweep in this process, in turns. The cluster has started before, and its worker has measured
something.
"""

from __future__ import annotations

import statistics
import threading
import time

import numpy as np
import openvino as ov
import psutil

import hetero_lab as hl
from hetero_lab.devices.core import bind, shared_core
from hetero_lab.measure import worker_process
from hetero_lab.measure.stopping import WARM_UP_S
from hetero_lab.measure.worker_process import GROUP_SIZE
from hetero_lab.model.read import prepare
from hetero_lab.placement.placement import BoundPlacement
from hetero_lab.runtime.executors import warm_up
from hetero_lab.runtime.inputs import bind_inputs, generate_inputs
from tests.scripts import options

TURNS = 8
TURN = 12


def placements(model: ov.Model, count: int) -> list[hl.Placement]:
    """Cut the model in two at evenly spaced ops: the first part on ACC, the rest on CPU."""
    cpu = hl.Affinity.uniform(model, "CPU")
    ops = cpu.ops
    at = np.linspace(1, len(ops) - 1, count).astype(int)
    return [
        hl.Placement(cpu.fix(ops=dict.fromkeys(ops[:n], "ACC")), f"cut{i}")
        for i, n in enumerate(at)
    ]


def plain_loop(model: ov.Model, chosen: list[hl.Placement]) -> float:
    """Compile and infer as often as the sweep does; return seconds."""
    prepared = prepare(model)
    core = shared_core()
    arrays = bind_inputs(prepared, generate_inputs(prepared))
    reference, rest = chosen[0], chosen[1:]
    started = time.perf_counter()
    for begin in range(0, len(rest), GROUP_SIZE - 1):
        group = [reference, *rest[begin : begin + GROUP_SIZE - 1]]
        requests = []
        for placement in group:
            requests.append(_compile(prepared, core, placement, {}, arrays))
            requests[-1].infer()
            warm_up(requests[-1].infer, at_most_s=WARM_UP_S)
        for _ in range(TURNS):
            for request in requests:
                for _ in range(TURN):
                    request.infer()
        for placement in group if begin == 0 else group[1:]:
            request = _compile(prepared, core, placement, {"PERF_COUNT": True}, arrays)
            for _ in range(3 * TURN):
                request.infer()
    return time.perf_counter() - started


def _compile(prepared, core, placement, config, arrays):
    clone = prepared.model.clone()
    for node in clone.get_ordered_ops():
        node.get_rt_info()["affinity"] = placement.affinity[node.get_friendly_name()]
    by_device = BoundPlacement(bind(prepared, core), placement).properties
    properties = {**config, "DEVICE_PROPERTIES": by_device}
    target = "HETERO:" + ",".join(placement.affinity.devices)
    request = core.compile_model(clone, target, properties).create_infer_request()
    for index, array in enumerate(arrays):
        request.set_input_tensor(index, ov.Tensor(array))
    return request


class WorkerStarts:
    """How long some worker was starting; several start at once."""

    def __init__(self):
        self.intervals: list[tuple[float, float]] = []
        self._start = worker_process.WorkerProcess.__init__

    def __enter__(self):
        def timed(worker, *args, **kwargs):
            started = time.perf_counter()
            self._start(worker, *args, **kwargs)
            self.intervals.append((started, time.perf_counter()))

        worker_process.WorkerProcess.__init__ = timed
        return self

    def __exit__(self, *_):
        worker_process.WorkerProcess.__init__ = self._start

    @property
    def seconds(self) -> float:
        """Length of the union of the intervals."""
        total = last = 0.0
        for started, ended in sorted(self.intervals):
            total += max(0.0, ended - max(started, last))
            last = max(last, ended)
        return total


def peak_of_tree(run) -> int:
    """Return the highest resident memory of this process and its children meanwhile."""
    peak, ended = 0, threading.Event()

    def watch():
        nonlocal peak
        me = psutil.Process()
        while not ended.wait(0.05):
            total = 0
            for process in [me, *me.children(recursive=True)]:
                try:
                    total += process.memory_info().rss
                except psutil.Error:
                    continue
            peak = max(peak, total)

    thread = threading.Thread(target=watch)
    thread.start()
    run()
    ended.set()
    thread.join()
    return peak


def seconds(model, chosen, **options) -> float:
    """Sweep; return how long it took."""
    started = time.perf_counter()
    sweep = hl.sweep(model, chosen, turns=TURNS, budget_s=None, progress=False, **options)
    took = time.perf_counter() - started
    assert set(sweep.summary["status"]) == {"ok"}
    return took


def fleet(name: str, model, chosen: list[hl.Placement], repeats: int) -> None:
    """Compare sweeps here and over a cluster."""
    from distributed import Client, LocalCluster

    ratios = []
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        seconds(model, chosen[:1], client=client)
        for _ in range(repeats):
            local, there = seconds(model, chosen), seconds(model, chosen, client=client)
            ratios.append(there / local)
            print(f"local {local:.1f} s, fleet {there:.1f} s, ratio {ratios[-1]:.3f}")
    print(f"{name}: median ratio {statistics.median(ratios):.3f} (at most 1.10)")


def main() -> None:
    """Run and print."""
    given = options(__doc__, model="magika", repeats=3, fleet=False)
    hl.emulate("ACC")
    model = hl.load(given.model)
    chosen = placements(model, 20)
    if given.fleet:
        fleet(given.model, model, chosen, given.repeats)
        return
    # The sweep measures each device alone too; in the plain loop they go through HETERO.
    baselines = [hl.Placement(hl.Affinity.uniform(model, d), d) for d in ("ACC", "CPU")]
    ratios, here = [], []
    for _ in range(given.repeats):
        bare = plain_loop(model, [*chosen, *baselines])
        with WorkerStarts() as starts:
            took = seconds(model, chosen, reference=False)
        ratios.append((took - starts.seconds) / bare)
        here.append(seconds(model, chosen, reference=False, isolate=False) / bare)
        print(
            f"plain loop {bare:.1f} s, sweep {took:.1f} s, of it workers' start "
            f"{starts.seconds:.1f} s, ratio {ratios[-1]:.3f}, in this process {here[-1]:.3f}"
        )
    print(
        f"{given.model}: median ratio {statistics.median(ratios):.3f} (at most 1.10), in this "
        f"process {statistics.median(here):.3f}"
    )
    peaks = {}
    for count in (10, 50):
        many = placements(model, count)
        peaks[count] = peak_of_tree(
            lambda many=many: hl.sweep(model, many, turns=2, budget_s=None, progress=False)
        )
        print(f"peak of the process tree, {count} placements: {peaks[count] / 2**20:.0f} MiB")
    print(f"memory, 50 to 10 placements: {peaks[50] / peaks[10]:.3f} (at most 1.2)")


if __name__ == "__main__":
    main()
