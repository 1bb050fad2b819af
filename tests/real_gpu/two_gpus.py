"""One model on two GPUs, divided by HETERO itself: ``python -m tests.real_gpu.two_gpus``.

For each of ten networks: HETERO's policy and equal shares as predicted and as compiled
(OPENVINO_HETERO_PERF); outputs in f32 against the CPU; memory on each GPU as counted and as the
plugin reports it; and milliseconds per request with 1, 2 and 4 in flight on one GPU, divided, and
with MULTI, which holds the model twice. Prints a line of JSON for each and a summary, which also go
to ``--out``, by default ``$OUT/two_gpus.jsonl``. After ``--budget`` seconds no network begins.
``--small`` is for the rig, where requests in flight hang. The exit code is 1 if a prediction or an
output is wrong.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as op

import hetero_lab as hl
from hetero_lab.backend.bound import BoundModel, bind
from hetero_lab.backend.core import shared_core
from hetero_lab.placement.placement import resolve
from hetero_lab.runtime.compiled import compile_placed
from hetero_lab.runtime.inputs import generate_inputs
from tests.real_gpu.mixed_networks import build
from tests.scripts import (
    EXACT,
    F32,
    alone,
    append_json,
    compiled_parts,
    error_of,
    matmuls,
    options,
    predicted_parts,
)

NEAR, MEMORY = 1e-5, 0.1
IN_FLIGHT, WINDOW_S = (1, 2, 4), 0.6
MIXED = ("zfnet", "overfeat", "caffenet", "fast_yolo", "cnn_f")


model_of: Any = ov.Model


def weights(rng: Any, *shape: int) -> Any:
    fan_in = math.prod(shape[1:] if len(shape) > 2 else shape[:1])
    return rng.standard_normal(shape, dtype=np.float32) / np.float32(fan_in**0.5)


def chain(count: int, size: int) -> ov.Model:
    x = op.parameter([16, size], np.float32, name="x")
    return model_of([op.result(matmuls(x, count, size, "matmul"), name="y")], [x], "matmuls")


def convolutions(count: int, channels: int, *, skips: bool) -> ov.Model:
    """Build a chain of convolutions; with skips, the second half reads the first half, too."""
    rng = np.random.default_rng(1)
    x = op.parameter([1, channels, 14, 14], np.float32, name="x")
    made: list[Any] = [x]
    for number in range(count):
        kernel = weights(rng, channels, channels, 3, 3)
        y = op.convolution(made[-1], kernel, [1, 1], [1, 1], [1, 1], [1, 1], name=f"conv{number}")
        if skips and number >= count // 2:
            y = op.add(y, made[count - number], name=f"skip{number}")
        made.append(op.relu(y, name=f"relu{number}"))
    return model_of([op.result(made[-1], name="y")], [x], f"convolutions{'_skips' * skips}")


def transformer(count: int, width: int, words: int) -> ov.Model:
    """Build an encoder; ``words`` is the size of its vocabulary, 0 for none."""
    rng = np.random.default_rng(2)
    x = op.parameter([1, 64] if words else [1, 64, width], np.int32 if words else np.float32)
    y: Any = x
    if words:
        y = op.gather(weights(rng, words, width), x, np.int32(0))
    for number in range(count):
        shapes = [(width, width)] * 4 + [(width, 4 * width), (4 * width, width)]
        q, k, v, out, up, down = (weights(rng, *shape) for shape in shapes)
        query, key, value = (op.matmul(y, w, False, False) for w in (q, k, v))
        scores = op.multiply(op.matmul(query, key, False, True), np.float32(width**-0.5))
        mixed = op.matmul(op.matmul(op.softmax(scores, -1), value, False, False), out, False, False)
        y = op.mvn(op.add(y, mixed), op.constant([2]), True, 1e-5, "inside_sqrt")
        inner = op.relu(op.matmul(y, up, False, False))
        y = op.add(y, op.matmul(inner, down, False, False), name=f"layer{number}")
    return model_of([op.result(y, name="y")], [x], f"transformer{'_words' * bool(words)}")


def networks(small: bool) -> dict[str, Callable[[], ov.Model]]:
    """Return the networks; those for the rig have few and small layers."""
    count, part = (6, 32) if small else (16, 1)
    return {
        "matmuls": partial(chain, count, 2048 // part),
        "convolutions": partial(convolutions, count, 512 // part, skips=False),
        "skips": partial(convolutions, count, 512 // part, skips=True),
        "transformer": partial(transformer, count // 2, 1024 // part, 0),
        "words": partial(transformer, count // 2, 1024 // part, 12_000 // part),
        **({} if small else {name: partial(build, name) for name in MIXED}),
    }


def ms_a_request(requests: Sequence[ov.InferRequest]) -> float:
    """Return milliseconds per inference, with these requests in flight."""
    for request in requests:
        request.infer()
    for request in requests:
        request.start_async()
    began, done = time.perf_counter(), 1
    while done < 8 or time.perf_counter() - began < WINDOW_S:
        for request in requests:
            request.wait()
            request.start_async()
        done += 1
    for request in requests:
        request.wait()
    return round((time.perf_counter() - began) / (done * len(requests)) * 1e3, 4)


def allocated(device: str) -> dict[str, int]:
    """Return the bytes that a GPU's plugin says it has allocated, by kind."""
    return dict(shared_core().get_property(device, "GPU_MEMORY_STATISTICS"))


def run(
    bound: BoundModel, placement: hl.Placement, wanted: Mapping[str, Any], small: bool
) -> dict[str, Any]:
    """Compile a placement, compare its outputs, time it, and return what there is to say."""
    before = {device: allocated(device) for device in placement.devices}
    compiled, parts = compiled_parts(partial(compile_placed, resolve(bound, placement)))
    after = {device: allocated(device) for device in placement.devices}
    inputs = generate_inputs(bound, 0)
    requests = [compiled.new_request(inputs) for _ in range(max(IN_FLIGHT))]
    return {
        "parts": parts,
        "compile_ms": round(compiled.compile_ms),
        "error": error_of(compiled(inputs), wanted),
        "mb": {
            device: {kind: (n - before[device].get(kind, 0)) / 1e6 for kind, n in kinds.items()}
            for device, kinds in after.items()
        },
        "ms": {} if small else {n: ms_a_request(requests[:n]) for n in IN_FLIGHT},
    }


def one_network(make: Callable[[], ov.Model], gpus: list[str], small: bool) -> dict[str, Any]:
    """Measure one network."""
    began = time.perf_counter()
    bound, f32 = bind(hl.load(make())), dict.fromkeys(gpus, F32)
    exact = alone(bound, "CPU", EXACT)
    wanted = compile_placed(resolve(bound, exact))(generate_inputs(bound, 0))
    policy = hl.distribution(bound, gpus, "PIPELINE_PARALLEL", device_properties=f32)
    asked = policy.placement
    _, parts = compiled_parts(partial(compile_placed, resolve(bound, asked)))
    halves = hl.Placement.balanced(bound, gpus, device_properties=f32)
    said = {s.device: s.total_bytes / 1e6 for s in hl.distribution(bound, halves).shares}
    multi = resolve(bound, f"MULTI:{','.join(gpus)}").placement.with_properties(f32)
    ran = {"one": alone(bound, gpus[0]), "divided": halves, "multi": multi}
    row: dict[str, Any] = {
        "network": bound.graph.name,
        "weights_mb": bound.graph.weight_bytes / 1e6,
        "policy": policy.sentence,
        "ratios": policy.ratios,
        **{label: run(bound, placement, wanted, small) for label, placement in ran.items()},
        "said_mb": said,
        "policy_as_compiled": parts == predicted_parts(bound, asked),
    }
    divided = row["divided"]
    row["divided_as_compiled"] = divided["parts"] == predicted_parts(bound, halves)
    row["memory_off"] = {d: sum(divided["mb"][d].values()) / mb - 1.0 for d, mb in said.items()}
    for other in ("one", "multi"):
        took = divided["ms"]
        row[f"times_{other}"] = {n: row[other]["ms"][n] / took[n] for n in took}
    return {**row, "took_s": round(time.perf_counter() - began, 1)}


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Count what is right, and average what was timed."""
    ran = [row for row in rows if "failed" not in row]
    found: dict[str, Any] = {
        "networks": len(rows),
        "as_predicted": sum(r["policy_as_compiled"] and r["divided_as_compiled"] for r in ran),
        "outputs_right": sum(row["divided"]["error"] <= NEAR for row in ran),
        "memory_right": sum(max(map(abs, row["memory_off"].values())) <= MEMORY for row in ran),
    }
    for key in ("times_one", "times_multi"):
        for n in ran[0][key] if ran else ():
            found[f"{key}_{n}"] = math.exp(np.mean([math.log(row[key][n]) for row in ran]))
    return found


def main() -> int:
    """Measure all networks, print lines and a summary."""
    given = options(
        __doc__, gpus=["GPU.0", "GPU.1"], small=False, budget=380.0, networks=list, out=Path
    )
    os.environ["OPENVINO_HETERO_PERF"] = "1"  # read once, when HETERO is used first
    out = given.out or (Path(os.environ["OUT"], "two_gpus.jsonl") if "OUT" in os.environ else None)
    started, rows = time.perf_counter(), []
    for name, make in networks(given.small).items():
        if name not in (given.networks or [name]) or time.perf_counter() - started > given.budget:
            continue
        try:
            rows.append(one_network(make, given.gpus, given.small))
        except Exception as error:  # the others are worth measuring
            traceback.print_exc()
            rows.append({"network": name, "failed": str(error)[:500]})
        print(json.dumps(rows[-1]), flush=True)
        append_json(out, rows[-1])
    found = summary(rows)
    print(json.dumps(found), flush=True)
    append_json(out, found)
    return int(min(found["as_predicted"], found["outputs_right"]) < len(rows))


if __name__ == "__main__":
    sys.exit(main())
