"""Whether the memory that a plan counts is what a process takes, on CPU devices.

    python -m tests.benchmarks.benchmark_memory [--context 1024] [--part 16]

A language model is placed over an emulated device and the CPU with three limits for the first.
Each placement runs in a process of its own, which reads its context in parts of a few tokens, so
that the cache fills and nothing else grows. Measured is the private memory that the process has
more than before the compile; both devices are in one process, so their memory is compared as a
sum. What a model of a few ops takes is not part of it. Needs the extra ``llm``; Linux only.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as op

import hetero_lab as hl
from hetero_lab.backend.bound import bind
from hetero_lab.model.language import language_model
from hetero_lab.placement.placement import resolve
from hetero_lab.runtime.compiled import compile_placed
from hetero_lab.runtime.generation import CompiledSession

DEVICES = ("ACC", "CPU")
F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
SHARES = (0.25, 0.5, 0.75)


def private_mb() -> float:
    """Return the private memory that is in use; a mapped model file is not part of it."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what is free goes back
    status = Path("/proc/self/status").read_text("utf-8")
    kib = next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon"))
    return int(kib) * 1024 / 1e6


def start_runtime() -> None:
    """Run a small model, so that what the plugin needs for any is there."""
    x = op.parameter([4, 4], np.float32)
    model = ov.Model([op.relu(op.matmul(x, np.ones((4, 4), np.float32), False, False))], [x])
    ov.compile_model(model, "CPU")([np.ones((4, 4), np.float32)])


def child(name: str, share: float, context_tokens: int, part: int) -> None:
    """Place a model with a limit for the first device, run it, and print what it took."""
    hl.emulate(DEVICES[0])
    bound = bind(hl.load(name))
    whole = hl.fit_blocks(bound.prepared, DEVICES, {}, context_tokens=context_tokens).memory[0]
    limit = {DEVICES[0]: int(share * whole.total_bytes)}
    fit = hl.fit_blocks(bound.prepared, DEVICES, limit, context_tokens=context_tokens)
    placement = hl.Placement(fit.affinity, name, dict.fromkeys(fit.affinity.devices, F32))
    model = language_model(bound.model)
    start_runtime()
    before = private_mb()
    session = CompiledSession(compile_placed(resolve(bound, placement)))
    ids = np.ones((1, part), np.int64)
    took = []
    for past in range(0, context_tokens, part):
        session.step(model.feed(ids, past))
        if past in (0, context_tokens - part):
            took.append(private_mb() - before)
    held = fit.memory
    print(json.dumps({
        "limit_mb": limit[DEVICES[0]] / 1e6,
        "placement": f"{held[0].blocks} on {DEVICES[0]}",
        "first_mb": held[0].total_bytes / 1e6,
        "weights_mb": sum(h.weight_bytes for h in held) / 1e6,
        "states_mb": sum(h.state_bytes for h in held) / 1e6,
        "measured_weights_mb": took[0],
        "measured_states_mb": took[-1] - took[0],
    }))  # fmt: skip


def main() -> None:
    """Print counted beside measured for three limits."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2_135m")
    parser.add_argument("--context", type=int, default=1024, metavar="TOKENS")
    parser.add_argument("--part", type=int, default=16, metavar="TOKENS", help="read at once")
    parser.add_argument("--share", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.share is not None:
        child(given.model, given.share, given.context, given.part)
        return
    for share in SHARES:
        options = [f"--model={given.model}", f"--context={given.context}"]
        options += [f"--part={given.part}", f"--share={share}"]
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.benchmark_memory", *options],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        row = json.loads(done.stdout.splitlines()[-1])
        counted = row["weights_mb"] + row["states_mb"]
        measured = row["measured_weights_mb"] + row["measured_states_mb"]
        print(
            f"limit {row['limit_mb']:6.1f} MB, {row['placement']:<14} counted there "
            f"{row['first_mb']:6.1f} MB | both: weights {row['weights_mb']:6.1f}, measured "
            f"{row['measured_weights_mb']:6.1f}; cache {row['states_mb']:5.1f}, measured "
            f"{row['measured_states_mb']:5.1f}; in all {counted:6.1f}, measured {measured:6.1f} "
            f"({measured / counted:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
