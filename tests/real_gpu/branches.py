"""Two branches on two devices at the same time: ``python -m tests.real_gpu.branches``.

For branches of convolutions, one on ``--device`` (GPU) and one on the CPU, in f32: both devices
alone, HETERO, the branches' own times and what starting both with ``start_async`` takes, and the
parallel executor, in turns in one process. All outputs are compared with the CPU in f32.
``--emulate`` makes the device of CPU threads (one thread each), so that the script itself can be
tried anywhere; ``--rig`` starts OpenVINO's GPU plugin on a CPU.
There are two sets of shapes: branches of about 1 ms and of several ms on the machine they were
chosen for. ``--series`` adds branches of 1, 2, 4 and 8 ms, with as many convolutions on each device
as take that long there: how much of the bound is reached depends on it.
``--sets`` and ``--shapes`` say which sets and how many shapes of each. ``--calibrate`` seconds for
each of five models measure something else: what a plan for the parallel executor predicts, with the
measured contention of the devices and without it, and what it takes beside each device alone.
Prints a JSON line for each shape, then a table, and keeps the lines in ``--out``. The exit code
is 1 if an output is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.gpu_rig import rig

if "--rig" in sys.argv:  # before openvino is imported
    rig.start_here()

import numpy as np
import openvino as ov
from openvino import opset13 as op

import hetero_lab as hl
from hetero_lab.devices.core import shared_core
from hetero_lab.planning.schedules import simulate
from hetero_lab.runtime.pieces import leave_cores
from tests.scripts import F32, alone, error_of, in_turns, medians, options

# (convolutions on the device, on the CPU, channels, height and width)
SHAPES = {
    "short": ((4, 4, 64, 56), (8, 8, 64, 56), (8, 4, 64, 56), (6, 6, 128, 28), (4, 4, 32, 112)),
    # About four times the work or more. Both devices have as many convolutions at 32 channels,
    # where one takes either about as long in the short set; elsewhere the faster one has more.
    "long": (
        (4, 4, 32, 224),
        (8, 8, 32, 224),
        (8, 4, 128, 56),
        (12, 6, 256, 28),
        (21, 18, 128, 28),
    ),
}
SERIES_OF, SERIES_MS = (128, 28), (1, 2, 4, 8)  # how long each branch is to take
PROBED = (4, 12)  # convolutions, to find how long one takes
ROUNDS, CALLS, DISCARDED = 12, 10, 3
TOLERANCE = 1e-3  # of the largest value
CONCURRENT = {"ENABLE_CPU_PINNING": False, "EXCLUSIVE_ASYNC_REQUESTS": False}


# Whose plans are predicted: such branches, and heads on a trunk: convolutions of the trunk, heads,
# convolutions of each, channels, height and width.
PREDICTED = (
    *(SHAPES["short"][0], SHAPES["short"][2], SHAPES["long"][2]),
    *((2, 3, 4, 64, 56), (4, 2, 6, 128, 28)),
)


def convolved(rng: Any, end: Any, count: int, name: str) -> Any:
    """Append convolutions that keep the shape."""
    channels, same = int(end.shape[1]), [1, 1]
    for number in range(count):
        weights = rng.normal(size=(channels, channels, 3, 3)) / (3 * channels**0.5)
        constant = op.constant(weights.astype(np.float32))
        end = op.convolution(end, constant, same, same, same, same, name=f"{name}/{number}")
    return end


def branches_model(n_device: int, n_cpu: int, channels: int, size: int) -> Any:
    """Return two branches of convolutions that read one input, and their sum."""
    rng = np.random.default_rng(0)
    x = op.parameter([1, channels, size, size], np.float32, name="x")
    counts = {"device": n_device, "cpu": n_cpu}
    ends = [convolved(rng, x, count, branch) for branch, count in counts.items() if count]
    name = f"branches_{n_device}_{n_cpu}_{channels}x{size}x{size}"
    build: Any = ov.Model
    whole = op.add(*ends, name="sum") if len(ends) == 2 else ends[0]
    return build([op.result(whole)], [x], name)


def heads_model(n_trunk: int, n_heads: int, n_each: int, channels: int, size: int) -> Any:
    """Return a trunk of convolutions on which several heads of convolutions stand."""
    rng = np.random.default_rng(0)
    x = op.parameter([1, channels, size, size], np.float32, name="x")
    trunk = convolved(rng, x, n_trunk, "trunk")
    results = [op.result(convolved(rng, trunk, n_each, f"head{n}")) for n in range(n_heads)]
    build: Any = ov.Model
    return build(results, [x], f"heads_{n_trunk}_{n_heads}x{n_each}_{channels}x{size}x{size}")


def raw_requests(executor: Any, inputs: list[Any], device: str) -> tuple[Any, Any]:
    """Return plain requests of the branches, on the device and on the CPU, ready to be run."""
    found = {}
    for subgraph, compiled in zip(
        executor.partition.subgraphs, executor.compiled_models, strict=True
    ):
        for branch in (device, "CPU"):
            prefix = "cpu/" if branch == "CPU" else "device/"
            if subgraph.device == branch and any(op.startswith(prefix) for op in subgraph.ops):
                found[branch] = compiled.create_infer_request()
                found[branch].set_input_tensor(0, ov.Tensor(inputs[0]))
    return found[device], found["CPU"]


def latencies(device: str, shape: tuple[int, ...], properties: dict[str, Any]) -> dict[str, Any]:
    """Measure one request at a time."""
    started = time.perf_counter()
    model = branches_model(*shape)
    cpu = hl.Affinity.uniform(model, "CPU")
    split = hl.Placement(cpu.fix(patterns={"^device/": device}), "split", properties)
    inputs = [np.random.default_rng(1).normal(size=model.input(0).shape).astype(np.float32)]
    calls: dict[str, Callable[[list[Any]], dict[str, Any]]] = {
        **{d: hl.compile(model, alone(model, d, properties[d])) for d in ("CPU", device)},
        "HETERO": hl.compile(model, split),
    }
    fewer = leave_cores(properties, shared_core())
    if fewer != properties:
        calls["HETERO, fewer threads"] = hl.compile(model, replace(split, device_properties=fewer))
    with hl.ParallelExecutor(model, split) as executor:
        calls["parallel"] = executor
        compile_s = time.perf_counter() - started
        on_device, on_cpu = raw_requests(executor, inputs, device)

        def both() -> None:
            on_device.start_async()
            on_cpu.start_async()
            on_device.wait()
            on_cpu.wait()

        levels = in_turns(
            {
                **{name: lambda call=call: call(inputs) for name, call in calls.items()},
                "device branch": lambda: on_device.infer(share_outputs=True),
                "CPU branch": lambda: on_cpu.infer(share_outputs=True),
                "start_async": both,
            },
            ROUNDS,
            CALLS,
            DISCARDED,
        )
        n_subgraphs = executor.partition.n_subgraphs
    us = medians(levels)
    wanted = calls["CPU"](inputs)
    errors = {
        name: error_of(call(inputs), wanted)
        for name, call in calls.items()
        if name not in ("CPU", "parallel")
    }
    with hl.ParallelExecutor(model, split) as executor:
        errors["parallel"] = error_of(executor(inputs), wanted)
    bound_us = max(us["device branch"], us["CPU branch"])
    hetero_us = min(took for name, took in us.items() if name.startswith("HETERO"))
    return {
        "what": "latency",
        "device": device,
        "branches": f"{shape[0]}+{shape[1]} of {shape[2]}x{shape[3]}x{shape[3]}",
        "n_subgraphs": n_subgraphs,
        "us": us,
        "bound_us": bound_us,
        "hetero_to_parallel": hetero_us / us["parallel"],
        "share_of_bound": bound_us / us["parallel"],
        "share_of_start_async": us["start_async"] / us["parallel"],
        "errors": errors,
        "compile_s": compile_s,
    }


def prediction(
    device: str, shape: tuple[int, ...], properties: dict[str, Any], budget_s: float
) -> dict[str, Any]:
    """Compare plans for the parallel executor, with and without contention, with what they take."""
    model = hl.load(branches_model(*shape) if len(shape) == 4 else heads_model(*shape))
    costs = hl.calibrate(
        model, [device, "CPU"], budget_s=budget_s, device_properties=properties, progress=False
    )
    known = {
        "plan": costs,
        "without": replace(costs, contention=1.0, executor_us=0.0, validation_rows=()),
    }
    plans = {n: hl.plan(model, c, executor="parallel", budget_s=4.0) for n, c in known.items()}
    inputs = [np.random.default_rng(1).normal(size=model.input(0).shape).astype(np.float32)]
    calls: dict[str, Any] = {
        d: hl.compile(model, alone(model, d, properties[d])) for d in (device, "CPU")
    }
    with contextlib.ExitStack() as open_ones:
        for name, plan in plans.items():
            executor = hl.ParallelExecutor(model, hl.Placement(plan.affinity, name, properties))
            calls[name] = open_ones.enter_context(executor)
        runs = {name: partial(call, inputs) for name, call in calls.items()}
        us = medians(in_turns(runs, ROUNDS, CALLS, DISCARDED))
        errors = {name: error_of(run(), runs["CPU"]()) for name, run in runs.items()}
    there_us = {name: plan.predicted_us for name, plan in plans.items()}
    split_us = simulate(costs, plans["without"].affinity).makespan_us
    return {
        "what": "prediction",
        "model": model.get_friendly_name(),
        "calibrated": [
            repr(costs),
            f"contention {costs.contention}, executor {costs.executor_us} µs",
            *costs.notes,
        ],
        "plans": {name: repr(plan) for name, plan in plans.items()},
        "us": us,
        "predicted_to_measured": {
            **{name: took / us[name] for name, took in there_us.items()},
            "same split, with contention": split_us / us["without"],
        },
        "plan_to_better_device": us["plan"] / min(us["CPU"], us[device]),
        "errors": errors,
    }


def balanced(device: str, properties: dict[str, Any]) -> list[tuple[int, int, int, int]]:
    """Return shapes whose branches take equally long, from what a few convolutions take."""
    core, fewer = shared_core(), leave_cores(properties, shared_core())
    took: dict[str, list[float]] = {}
    for count in PROBED:
        for name in (device, "CPU"):
            model = branches_model(count, 0, *SERIES_OF)
            request = core.compile_model(model, name, fewer[name]).create_infer_request()
            request.set_input_tensor(0, ov.Tensor(np.ones(model.input(0).shape, np.float32)))
            run = {name: lambda one=request: one.infer(share_outputs=True)}
            took.setdefault(name, []).append(medians(in_turns(run, 3, CALLS, DISCARDED))[name])
    counts = {}
    for name, (few_us, many_us) in took.items():
        each_us = (many_us - few_us) / (PROBED[1] - PROBED[0])
        fixed_us = few_us - PROBED[0] * each_us
        counts[name] = [max(1, round((ms * 1e3 - fixed_us) / each_us)) for ms in SERIES_MS]
    return [(*both, *SERIES_OF) for both in zip(counts[device], counts["CPU"], strict=True)]


def lines(device: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield what is measured, as it comes."""
    threads = {"INFERENCE_NUM_THREADS": 1} if given.emulate else {}
    on_cpu = {**F32, **CONCURRENT, **threads} if given.emulate else F32
    properties = {device: on_cpu if given.emulate else F32, "CPU": on_cpu}
    if given.calibrate:
        for shape in PREDICTED:
            try:
                yield prediction(device, shape, properties, given.calibrate)
            except Exception as error:  # the others are worth measuring
                yield {"what": "prediction", "shape": shape, "failed": str(error)[:500]}
        return
    shapes = [(name, shape) for name in given.sets for shape in SHAPES[name][: given.shapes]]
    for name, shape in shapes:
        yield latencies(device, shape, properties) | {"set": name}
    if given.series:
        for ms, shape in zip(SERIES_MS, balanced(device, properties), strict=True):
            yield latencies(device, shape, properties) | {"set": f"{ms} ms"}


def table(found: list[dict[str, Any]], device: str) -> str:
    """Return a short table of the results."""
    columns = ("CPU", device, "HETERO", "start_async", "parallel")
    text = [f"{'branches, µs':22}" + "".join(f"{c:>12}" for c in columns) + "  x HETERO  of bound"]
    for one in found:
        if one["what"] == "latency":
            text.append(
                f"{one['branches']:22}"
                + "".join(f"{one['us'][c]:12.0f}" for c in columns)
                + f"{one['hetero_to_parallel']:10.2f}{one['share_of_bound']:10.0%}"
            )
    for one in found:
        if "predicted_to_measured" in one:
            ratios = ", ".join(f"{n} {x:.2f}" for n, x in one["predicted_to_measured"].items())
            text.append(f"{one['model']}: predicted to measured: {ratios}")
    return "\n".join(text)


def main() -> int:
    """Measure, print, and compare the outputs."""
    given = options(
        __doc__, device="GPU", emulate=False, rig=False, sets=list(SHAPES),
        shapes=len(SHAPES["long"]), series=False, calibrate=0.0, out=Path,
    )  # fmt: skip
    if given.emulate:
        hl.emulate(given.device)
    found = []
    for one in lines(given.device, given):
        found.append(one)
        print(json.dumps(one), flush=True)
        if given.out:
            given.out.write_text("".join(json.dumps(line) + "\n" for line in found))
    print(table(found, given.device))
    wrong = [e for one in found for e in one.get("errors", {}).values() if not e <= TOLERANCE]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
