"""The parallel executor beside HETERO with the same placement, and beside what is possible.

Run by hand: ``python -m tests.benchmarks.benchmark_parallel``. Two devices (CPU, and an emulated
one) of one thread each, without pinning and exclusive requests, in f32; turns of several calls,
alternating between the two. Printed are the overhead on a chain, a real model with branches against
the bound of its subgraph times, and the throughput of four requests in flight against a single
device of one thread. ``python -m tests.real_gpu.branches --emulate --device ACC`` has independent
branches, which run at least 1.6 times as fast as by HETERO.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13 as op

import hetero_lab as hl
from tests.scripts import F32, in_turns, matmuls, medians

ONE_THREAD = {
    **F32,
    "INFERENCE_NUM_THREADS": 1,
    "ENABLE_CPU_PINNING": False,
    "EXCLUSIVE_ASYNC_REQUESTS": False,
}
PROPERTIES = {"ACC": ONE_THREAD, "CPU": ONE_THREAD}
ROUNDS, CALLS = 15, 8


def beside(compiled, executor, inputs) -> tuple[float, float]:
    """Return the ms of HETERO and of the parallel executor, in turns."""
    runs = {"hetero": lambda: compiled(inputs), "parallel": lambda: executor(inputs)}
    hetero_us, parallel_us = medians(in_turns(runs, ROUNDS, CALLS)).values()
    return hetero_us / 1e3, parallel_us / 1e3


def both(model, affinity):
    """Compile for both executors; return them and inputs."""
    placement = hl.Placement(affinity, "both", PROPERTIES)
    inputs = [np.random.default_rng(0).normal(size=p.shape).astype(np.float32)
              for p in model.inputs]  # fmt: skip
    return hl.compile(model, placement), hl.ParallelExecutor(model, placement), inputs


def chain(n_subgraphs: int) -> None:
    """A chain that changes the device at every matmul: nothing to win."""
    x = op.parameter([128, 128], np.float32, name="x")
    model = hl.load(ov.Model([matmuls(x, n_subgraphs, 128, "m")], [x], "chain"))
    affinity = hl.Affinity.uniform(model, "CPU").fix(patterns={"^m[0-9]*[13579]$": "ACC"})
    compiled, executor, inputs = both(model, affinity)
    with executor:
        n = executor.partition.n_subgraphs
        hetero, parallel = beside(compiled, executor, inputs)
    limit = 1.05 * hetero + 0.02 * n
    print(
        f"chain of {n}: HETERO {hetero:.3f} ms, parallel {parallel:.3f} ms, "
        f"{(parallel - hetero) / n * 1e3:+.1f} µs a subgraph (at most {limit:.3f} ms)"
    )


def alone_ms(executor) -> list[float]:
    """Return what each subgraph takes when nothing runs beside it."""
    requests = executor._scheduler._free[-1].requests
    runs = {str(number): request.infer for number, request in enumerate(requests)}
    return [us / 1e3 for us in medians(in_turns(runs, ROUNDS, 1, discarded=0)).values()]


def branchy(name: str) -> None:
    """A real model with branches: how much of what is possible is reached."""
    model = hl.load(name)
    hl.emulate("ACC", properties=ONE_THREAD)
    costs = hl.calibrate(model, ["ACC", "CPU"], budget_s=60, device_properties=PROPERTIES,
                         progress=False)  # fmt: skip
    plan = hl.plan(model, costs, executor="parallel")
    found = {"plan": plan.affinity, **{b.label: b.affinity for b in plan.baselines}}
    for label in ("plan", "latency plan"):
        if len(found[label].devices) > 1:
            beside_the_bound(name, model, label, found[label])
    print(f"{name}: planned {plan.predicted_us / 1e3:.2f} ms by {plan.method}")


def beside_the_bound(name: str, model, label: str, affinity) -> None:
    """Compare a placement with its bound: a subgraph waits only for another or its device."""
    compiled, executor, inputs = both(model, affinity)
    with executor:
        executor(inputs)
        alone = alone_ms(executor)
        hetero, parallel = beside(compiled, executor, inputs)
        partition = executor.partition
    before = [set() for _ in alone]
    for boundary in partition.boundaries:
        for target in boundary.targets:
            before[target].add(boundary.source)
    ends: list[float] = []
    for index, took in enumerate(alone):
        ends.append(took + max((ends[i] for i in before[index] if i < index), default=0.0))
    busy = {
        device: sum(t for t, s in zip(alone, partition.subgraphs, strict=True)
                    if s.device == device)
        for device in ("ACC", "CPU")
    }  # fmt: skip
    bound = max(*ends, *busy.values())
    print(
        f"{name}, {label}: {partition.n_subgraphs} subgraphs, HETERO {hetero:.2f} ms, parallel "
        f"{parallel:.2f} ms, {hetero / parallel:.2f} times as fast; alone {sum(alone):.2f} ms, "
        f"bound {bound:.2f} ms: {bound / parallel:.0%} of it reached (at least 80%)"
    )


def throughput(name: str) -> None:
    """Four requests in flight on two devices of one thread each, beside one of them."""
    model = hl.load(name)
    single = hl.profile(model, hl.Placement(hl.Affinity.uniform(model, "CPU"), "CPU", PROPERTIES),
                        iterations=30, progress=False)  # fmt: skip
    took = single.tables["counters"].groupby("op")["real_time_us"].sum()
    ops = list(single.affinity.ops)
    spent = np.cumsum([took.get(o, 0.0) for o in ops])
    half = int(np.searchsorted(spent, spent[-1] / 2)) + 1
    affinity = single.affinity.fix(ops=dict.fromkeys(ops[:half], "ACC"))
    sweep = hl.sweep(
        model,
        [hl.Placement(hl.Affinity.uniform(model, "CPU"), "CPU", {"CPU": ONE_THREAD}),
         hl.Placement(affinity, "halves", PROPERTIES)],
        grid={"executor": ["hetero", "parallel"], "requests": [4]}, counters=False, baselines=False,
        budget_s=30, progress=False,
    )  # fmt: skip
    table = sweep.summary.set_index("label")
    cpu = min(row["median_us"] for label, row in table.iterrows() if label.startswith("CPU"))
    for label, row in table.iterrows():
        print(
            f"{name}, four in flight: {label} {row['median_us'] / 1e3:.2f} ms a result, "
            f"{cpu / row['median_us']:.2f} times as many as CPU of one thread (at least 1.5)"
        )


def main() -> None:
    """Print all of it."""
    hl.emulate("ACC", properties=ONE_THREAD)
    for n in (2, 8, 32):
        chain(n)
    branchy("googlenet_graph")
    throughput("page_orientation")


if __name__ == "__main__":
    main()
