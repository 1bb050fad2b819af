"""Regret of advise: how far the advice is behind the best of all its candidates.

Run by hand: ``python -m tests.benchmarks.benchmark_advise [--budget 60] [--models a,b] [--devices
cpu,emulated]``. For each model, on CPU alone and on CPU with an emulated device (with ``gpu``, on
CPU and GPU): advise within the budget, then measure every candidate exhaustively, in turns with
each other, until each ratio is known to 1 %. Prints the advice, the best of all, the regret (time
of the advice over that of the best, minus one), and the share of the exhaustive measurement's time
that the advice took.

``--requests 4`` asks for throughput with so many requests and for latency, and measures both
pieces of advice with so many requests in flight, in turns with each other, where they differ.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import hetero_lab as hl

MODELS = ["digits_inception", "magika", "page_orientation", "blazeface", "ppocr_cls"]
EMULATED = "ADV"
F32 = {"INFERENCE_PRECISION_HINT": "f32"}


def regret_of(model: str, devices: list[str], budget_s: float, exhaustive_s: float) -> None:
    """Print one line: what is advised, what is best, and how far that is apart."""
    loaded = hl.load(model)
    properties = {name: F32 for name in devices if name != EMULATED} if devices[1:] else None
    began = time.perf_counter()
    advice = hl.advise(
        loaded, devices, device_properties=properties, budget_s=budget_s, progress=False
    )
    took_s = time.perf_counter() - began
    placements = {c.row.label: replace(c.placement, label=c.row.label) for c in advice.candidates}
    began = time.perf_counter()
    every = hl.sweep(
        loaded,
        list(placements.values()),
        budget_s=exhaustive_s,
        precision=0.01,
        counters=False,
        baselines=False,
        progress=False,
    )
    exhaustive_took_s = time.perf_counter() - began
    usable = {c.row.label for c in advice.candidates if c.judgement != "wrong outputs"}
    ratios = {
        row.label: row.series.ratio[0] for row in every.rows if row.label in usable and
        row.series.ratio
    }  # fmt: skip
    best = min(ratios, key=lambda label: ratios[label])
    advised = advice.chosen.row.label
    regret = ratios[advised] / ratios[best] - 1.0
    print(
        f"{model:<18} {'+'.join(devices):<8} advised {advised:<22} best {best:<22} "
        f"regret {regret:6.1%} (seen to {every.smallest_difference:.1%}), {took_s:.0f} s of "
        f"{exhaustive_took_s:.0f} s for {len(ratios)} candidates",
        flush=True,
    )


def throughput_of(model: str, budget_s: float, requests: int) -> None:
    """Print one line: what is advised for latency and throughput, and both with many requests."""
    loaded = hl.load(model)
    placements = []
    for objective in ("latency", "throughput"):
        advice = hl.advise(
            loaded, ["CPU"], objective=objective,
            requests=1 if objective == "latency" else requests,
            budget_s=budget_s, progress=False,
        )  # fmt: skip
        placed = advice.chosen.placement
        placements.append(replace(placed, label=f"{objective}: {advice.chosen.row.label}"))
    if placements[0].device_properties == placements[1].device_properties:
        print(f"{model:<18} {requests} requests in flight: the same advice for both", flush=True)
        return
    made = hl.sweep(
        loaded, placements, requests=[requests], budget_s=2 * budget_s, precision=0.01,
        counters=False, baselines=False, progress=False,
    )  # fmt: skip
    (first, second), ratio = made.rows, made.rows[1].series.ratio
    assert ratio is not None
    middle, low, high, _ = ratio
    print(
        f"{model:<18} {requests} requests in flight: {second.label} takes {middle:.3f} of the time "
        f"of {first.label} (95 %: {low:.3f} to {high:.3f})",
        flush=True,
    )


def main() -> None:
    """Read the arguments and print a line a model and set of devices."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--exhaustive", type=float, default=120.0)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--devices", default="cpu,emulated")
    parser.add_argument("--requests", type=int, default=1)
    given = parser.parse_args()
    hl.emulate(EMULATED, unsupported={"Softmax", "Concat"}, faster_by="auto")
    for model in given.models.split(","):
        if given.requests > 1:
            throughput_of(model, given.budget, given.requests)
            continue
        for devices in given.devices.split(","):
            beside = {"cpu": [], "emulated": [EMULATED], "gpu": ["GPU"]}[devices]
            regret_of(model, [*beside, "CPU"], given.budget, given.exhaustive)


if __name__ == "__main__":
    main()
