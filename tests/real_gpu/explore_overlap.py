"""Which threads of the CPU let it work beside a GPU: ``python -m tests.real_gpu.explore_overlap``.

Prints JSON lines: latencies of two branches by the number of the CPU's threads and pinning,
started in several ways; what the executor's time consists of; and results with four requests in
flight, whole requests over both devices. Takes ``--seconds`` at most (90).
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import statistics
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import openvino as ov
from openvino import opset13 as op

import hetero_lab as hl
from hetero_lab.backend.core import shared_core
from tests.real_gpu.branches import branches_model, in_turns

F32 = {"INFERENCE_PRECISION_HINT": "f32"}


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def branch_model(count: int, channels: int, size: int) -> ov.Model:
    rng = np.random.default_rng(0)
    end = x = op.parameter([1, channels, size, size], np.float32, name="x")
    for _ in range(count):
        w = (rng.normal(size=(channels, channels, 3, 3)) / (3 * channels**0.5)).astype(np.float32)
        end = op.convolution(end, op.constant(w), *[[1, 1]] * 4)
    return ov.Model([op.result(end)], [x], "branch")


def request_of(core, model, device, properties, data):
    request = core.compile_model(model, device, properties).create_infer_request()
    request.set_input_tensor(0, ov.Tensor(data.copy()))
    return request


def settings(n: int) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for threads in (None, n - 1, n - 2, n - 4, n // 2):
        for pinned in (True, False):
            own = {**F32, "ENABLE_CPU_PINNING": pinned, "EXCLUSIVE_ASYNC_REQUESTS": False}
            if threads:
                own["INFERENCE_NUM_THREADS"] = threads
            found.append((f"{threads or 'all'}{', pinned' if pinned else ''}", own))
    return found


def latencies(core, device, shape, deadline) -> None:
    n_device, n_cpu, channels, size = shape
    data = np.random.default_rng(1).normal(size=(1, channels, size, size)).astype(np.float32)
    on_device = request_of(core, branch_model(n_device, channels, size), device, F32, data)
    cpu_model = branch_model(n_cpu, channels, size)
    model = branches_model(*shape)
    split = hl.Affinity.uniform(model, "CPU").fix(patterns={"^device/": device})
    for name, own in settings(os.cpu_count() or 2):
        if time.time() > deadline:
            return
        try:
            on_cpu = request_of(core, cpu_model, "CPU", own, data)

            def both(first=on_device, second=on_cpu):
                first.start_async()
                second.start_async()
                first.wait()
                second.wait()

            def caller(first, second):
                def start_one():
                    first.start_async()
                    second.infer(share_outputs=True)
                    first.wait()

                return start_one

            placement = hl.Placement(split, "split", {device: F32, "CPU": own})
            hetero = hl.compile(model, placement)
            with hl.ParallelExecutor(model, placement) as executor:
                us = in_turns(
                    {
                        "device": lambda: on_device.infer(share_outputs=True),
                        "CPU": lambda on_cpu=on_cpu: on_cpu.infer(share_outputs=True),
                        "both": both,
                        "CPU in caller": caller(on_device, on_cpu),
                        "device in caller": caller(on_cpu, on_device),
                        "parallel": lambda executor=executor: executor([data]),
                        "HETERO": lambda hetero=hetero: hetero([data]),
                    },
                    5,
                )
                runs: dict[int, list[Any]] = {}
                for span in executor.timeline[-150:]:
                    runs.setdefault(span.request, []).append(span)
                spans: dict[str, list[float]] = {}
                for run in list(runs.values())[1:]:
                    begin = min(s.start_s for s in run)
                    for s in run:
                        where = executor.partition.subgraphs[s.subgraph]
                        key = f"{where.device} {where.ops[0]}"
                        spans.setdefault(key + " start", []).append((s.start_s - begin) * 1e6)
                        spans.setdefault(key + " took", []).append((s.end_s - s.start_s) * 1e6)
            say(
                what="latency", shape=shape, threads=name, us=us,
                spans_us={k: statistics.median(v) for k, v in spans.items()},
            )  # fmt: skip
        except Exception:
            say(what="latency", shape=shape, threads=name, error=traceback.format_exc()[-600:])


def copies(shape) -> None:
    data = np.zeros((1, shape[2], shape[3], shape[3]), np.float32)
    tensor = ov.Tensor(data.copy())
    kept = np.empty_like(data)

    def fresh():
        made = ov.Tensor(ov.Type.f32, ov.Shape(data.shape))
        made.data[...] = data

    def into():
        tensor.data[...] = data

    def out():
        kept[...] = tensor.data

    us = in_turns(
        {"fresh tensor": fresh, "into tensor": into, "fresh array": lambda: np.array(tensor.data),
         "into array": out},
        5,
    )  # fmt: skip
    say(what="copies", n_bytes=data.nbytes, us=us)


def rate(pools, results: int = 120) -> float:
    """Keep every request of all pools in flight; return µs between results."""
    done: queue.SimpleQueue = queue.SimpleQueue()
    requests = [request for pool in pools for request in pool]
    for number, request in enumerate(requests):
        request.set_callback(done.put, number)
    for request in requests:
        request.start_async()
    marks = []
    for _ in range(results):
        number = done.get(timeout=20)
        marks.append(time.perf_counter())
        requests[number].wait()
        requests[number].start_async()
    for request in requests:
        request.wait()
    return (marks[-1] - marks[19]) / (results - 20) * 1e6


def throughputs(core, device, shape, deadline) -> None:
    model = branches_model(*shape)
    size = (1, shape[2], shape[3], shape[3])
    data = np.random.default_rng(1).normal(size=size).astype(np.float32)

    def pool(compiled, n):
        made = []
        for _ in range(n):
            request = compiled.create_infer_request()
            request.set_input_tensor(0, ov.Tensor(data.copy()))
            made.append(request)
        return made

    gpus = {}
    for label, own in (
        ("latency", F32),
        ("2 streams", {**F32, "NUM_STREAMS": 2}),
        ("throughput", {**F32, "PERFORMANCE_HINT": "THROUGHPUT"}),
    ):
        try:
            gpus[label] = core.compile_model(model, device, own)
            alone = {n: rate([pool(gpus[label], n)]) for n in (1, 2, 4)}
            say(what="throughput", shape=shape, gpu=label, alone_us=alone)
        except Exception:
            say(what="throughput", shape=shape, gpu=label, error=traceback.format_exc()[-600:])
    for name, own in settings(os.cpu_count() or 2):
        if time.time() > deadline:
            return
        if "pinned" in name:
            continue
        try:
            cpu = core.compile_model(model, "CPU", own)
            found = {"CPU alone 1": rate([pool(cpu, 1)]), "CPU alone 4": rate([pool(cpu, 4)])}
            for label, gpu in gpus.items():
                for n_gpu, n_cpu in ((3, 1), (2, 2)):
                    key = f"{n_gpu} on GPU ({label}), {n_cpu} on CPU"
                    tries = [rate([pool(gpu, n_gpu), pool(cpu, n_cpu)]) for _ in range(2)]
                    found[key] = min(tries)
            for label, gpu in gpus.items():
                found[f"4 on GPU ({label})"] = rate([pool(gpu, 4)])
            say(what="throughput", shape=shape, threads=name, us=found)
        except Exception:
            say(what="throughput", shape=shape, threads=name, error=traceback.format_exc()[-600:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="GPU")
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--emulate", action="store_true")
    given = parser.parse_args()
    if given.emulate:
        hl.emulate(given.device)
    start = time.time()
    core = shared_core()
    say(what="host", cpus=os.cpu_count(), affinity=len(os.sched_getaffinity(0)))
    copies((4, 4, 64, 56))
    latencies(core, given.device, (4, 4, 64, 56), start + 0.4 * given.seconds)
    throughputs(core, given.device, (4, 4, 64, 56), start + 0.65 * given.seconds)
    latencies(core, given.device, (8, 8, 64, 56), start + 0.85 * given.seconds)
    throughputs(core, given.device, (8, 8, 64, 56), start + given.seconds)


if __name__ == "__main__":
    main()
