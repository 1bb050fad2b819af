"""One model on two GPUs: ``python -m tests.real_gpu.two_gpus``.

For each of ten networks, with ``--part divided``: HETERO's policy and equal shares as predicted and
as compiled (OPENVINO_HETERO_PERF); outputs in f32 against the CPU; memory on each GPU as counted
and as the plugin reports it. With ``--part stages``: milliseconds per request with four in flight
on one GPU, with MULTI, which holds the model twice, divided by weights, and divided by time after
``--calibrate`` seconds of calibration, in turns. The last two of its networks are much like others.

Prints a line of JSON for each and a summary, which also go to ``--out``, by default
``$OUT/two_gpus.jsonl``. After ``--budget`` seconds no network begins. ``--small`` is for the rig,
where requests in flight hang. The exit code is 1 if a prediction or an output is wrong.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
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
from hetero_lab.devices.core import BoundModel, bind, shared_core
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
IN_FLIGHT, WINDOW_S = 4, 0.5
MIXED = ("zfnet", "overfeat", "caffenet", "fast_yolo", "cnn_f")
LIKE_OTHERS, ROUNDS = ("skips", "cnn_f"), 3


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


def run(bound: BoundModel, placement: hl.Placement, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Compile a placement, compare its outputs, and return what there is to say."""
    before = {device: allocated(device) for device in placement.devices}
    compiled, parts = compiled_parts(partial(compile_placed, resolve(bound, placement)))
    after = {device: allocated(device) for device in placement.devices}
    return {
        "parts": parts,
        "compile_ms": round(compiled.compile_ms),
        "error": error_of(compiled(generate_inputs(bound, 0)), wanted),
        "mb": {
            device: {kind: (n - before[device].get(kind, 0)) / 1e6 for kind, n in kinds.items()}
            for device, kinds in after.items()
        },
    }


def one_network(make: Callable[[], ov.Model], gpus: list[str]) -> dict[str, Any]:
    """Look at one network."""
    began = time.perf_counter()
    bound, f32 = bind(hl.load(make())), dict.fromkeys(gpus, F32)
    exact = alone(bound, "CPU", EXACT)
    wanted = compile_placed(resolve(bound, exact))(generate_inputs(bound, 0))
    policy = hl.distribution(bound, gpus, "PIPELINE_PARALLEL", device_properties=f32)
    asked = policy.placement
    _, parts = compiled_parts(partial(compile_placed, resolve(bound, asked)))
    halves = hl.Placement.balanced(bound, gpus, device_properties=f32)
    said = {s.device: s.total_bytes / 1e6 for s in hl.distribution(bound, halves).shares}
    ran = {"one": alone(bound, gpus[0]), "divided": halves}
    row: dict[str, Any] = {
        "network": bound.graph.name,
        "weights_mb": bound.graph.weight_bytes / 1e6,
        "policy": policy.sentence,
        "ratios": policy.ratios,
        **{label: run(bound, placement, wanted) for label, placement in ran.items()},
        "said_mb": said,
        "policy_as_compiled": parts == predicted_parts(bound, asked),
    }
    divided = row["divided"]
    row["divided_as_compiled"] = divided["parts"] == predicted_parts(bound, halves)
    row["memory_off"] = {d: sum(divided["mb"][d].values()) / mb - 1.0 for d, mb in said.items()}
    return {**row, "took_s": round(time.perf_counter() - began, 1)}


def stages(
    make: Callable[[], ov.Model], gpus: list[str], calibrate_s: float, small: bool
) -> dict[str, Any]:
    """Measure one network with four requests in flight, divided by weights and by time."""
    began, bound = time.perf_counter(), bind(hl.load(make()))
    free = {gpu: {**F32, "EXCLUSIVE_ASYNC_REQUESTS": False} for gpu in gpus}
    costs = hl.calibrate(bound, gpus, budget_s=calibrate_s, device_properties=free, progress=False)
    plan = hl.plan(bound, costs, objective="throughput", budget_s=5.0, progress=False)
    multi = resolve(bound, f"MULTI:{','.join(gpus)}").placement
    ran = {
        "one": alone(bound, gpus[0]),
        "multi": multi.with_properties(dict.fromkeys(gpus, F32)),
        "weights": hl.Placement.balanced(bound, gpus, device_properties=free),
        "time": hl.Placement(plan.affinity, "time", free),
    }
    inputs = generate_inputs(bound, 0)
    compiled = {label: compile_placed(resolve(bound, p)) for label, p in ran.items()}
    wanted = compiled["one"](inputs)
    row: dict[str, Any] = {
        "network": bound.graph.name,
        "calibrated": [repr(costs), *costs.notes],
        "planned": repr(plan),
        "device_us": {n: costs.explain(ran[n].affinity).device_us for n in ("weights", "time")},
        "errors": {label: error_of(c(inputs), wanted) for label, c in compiled.items()},
    }
    requests = {n: [c.new_request(inputs) for _ in range(IN_FLIGHT)] for n, c in compiled.items()}
    turns: dict[str, list[float]] = {label: [] for label in ran}
    for label in [] if small else [*ran] * ROUNDS:
        turns[label].append(ms_a_request(requests[label]))
    if not small:
        ms = {label: statistics.median(every) for label, every in turns.items()}
        pairs = itertools.permutations(ms, 2)
        row |= {
            "ms": ms,
            "times": {f"{one} of {other}": ms[other] / ms[one] for one, other in pairs},
        }
    return {**row, "turns_ms": turns, "took_s": round(time.perf_counter() - began, 1)}


def summary_of_stages(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Average the ratios: over the first eight networks, and over all."""
    ran = [row for row in rows if "times" in row]
    right = sum(max(row["errors"].values()) <= NEAR for row in rows if "errors" in row)
    found: dict[str, Any] = {"networks": len(rows), "outputs_right": right}
    for name, some in (("first eight", ran[:8]), ("all", ran)):
        times = [row["times"] for row in some]
        found[name] = {
            pair: statistics.geometric_mean(each[pair] for each in times)
            for pair in (times[0] if times else ())
        }
    return found


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Count what is right."""
    ran = [row for row in rows if "failed" not in row]
    return {
        "networks": len(rows),
        "as_predicted": sum(r["policy_as_compiled"] and r["divided_as_compiled"] for r in ran),
        "outputs_right": sum(row["divided"]["error"] <= NEAR for row in ran),
        "memory_right": sum(max(map(abs, row["memory_off"].values())) <= MEMORY for row in ran),
    }


def main() -> int:
    """Measure all networks, print lines and a summary."""
    given = options(
        __doc__, part="divided", gpus=["GPU.0", "GPU.1"], small=False, calibrate=10.0,
        budget=380.0, networks=list, out=Path,
    )  # fmt: skip
    if given.part == "divided":
        os.environ["OPENVINO_HETERO_PERF"] = "1"  # read once, when HETERO is used first
    out = given.out or (Path(os.environ["OUT"], "two_gpus.jsonl") if "OUT" in os.environ else None)
    started, rows, every = time.perf_counter(), [], networks(given.small)
    measure: Callable[..., dict[str, Any]] = one_network
    if given.part == "stages":
        measure = partial(stages, calibrate_s=given.calibrate, small=given.small)
        every = dict(sorted(every.items(), key=lambda item: item[0] in LIKE_OTHERS))
    for name, make in every.items():
        if name not in (given.networks or [name]) or time.perf_counter() - started > given.budget:
            continue
        try:
            rows.append(measure(make, given.gpus))
        except Exception as error:  # the others are worth measuring
            traceback.print_exc()
            rows.append({"network": name, "failed": str(error)[:500]})
        print(json.dumps(rows[-1]), flush=True)
        append_json(out, rows[-1])
    found = (summary_of_stages if given.part == "stages" else summary)(rows)
    print(json.dumps(found), flush=True)
    append_json(out, found)
    return int(min(found.get("as_predicted", len(rows)), found["outputs_right"]) < len(rows))


if __name__ == "__main__":
    sys.exit(main())
