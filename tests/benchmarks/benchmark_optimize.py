"""How much faster the optimised placement is than HETERO's greedy one and each single device.

Run by hand: ``python -m tests.benchmarks.benchmark_optimize [--models NAME …] [--budget 120]``.
Real models on CPU in f32 and an emulated bf16 device that supports (a) convolutions and matmuls
only, (b) all but softmax, normalisation and concat, (c) all but activations. With ``--device GPU``
it is that device, in f32: as it is, and as it would be if it lacked what (b) and (c) lack. The
times are those of the last, interleaved measurement of ``optimize``. ``--out`` keeps it, with the
costs and the placement. ``--costs`` is where ``benchmark_prediction --out`` kept some, ``--cpu``
more properties of the CPU in JSON, ``--budget`` one for all kinds or one for each, ``--scratch``
where networks are or go; ``--in-process`` makes compiles faster.
``--recorded`` prints what was recorded on a real GPU, measuring nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import hetero_lab as hl
from tests.real_gpu.networks import NETWORKS, model_file, short_name
from tests.scripts import BF16, F32, append_json, options

MODELS = ("efficientnet_lite0", "ppocr_det", "minilm_int8", "googlenet_graph", "magika")
SUPPORT: dict[str, dict[str, set[str]]] = {
    "all": {},
    "a": {"supported": {"Convolution", "GroupConvolution", "ConvolutionBackpropData", "MatMul"}},
    "b": {
        "unsupported": {
            "Softmax", "MVN", "BatchNormInference", "NormalizeL2", "LRN", "Concat", "LogSoftmax",
        }
    },
    "c": {
        "unsupported": {
            "Relu", "Clamp", "PRelu", "Elu", "Sigmoid", "HSigmoid", "HardSigmoid", "HSwish",
            "Swish", "Tanh", "Gelu", "Erf", "SoftPlus", "Mish",
        }
    },
}  # fmt: skip
MUCH = 0.05  # faster than every baseline, to be counted


def device_of(kind: str, given: argparse.Namespace) -> str:
    """Return the accelerator that has this support, emulated unless it is a real one as it is."""
    support: Any = SUPPORT[kind]
    if given.device is None:
        return hl.emulate("ACC", properties=BF16, **support).name
    return (
        hl.emulate("ACC", given.device, properties=F32, **support).name if support else given.device
    )


def costs_of(learnt: Path, kind: str, device: str, scratch: Path) -> hl.CostModel | None:
    """Return costs that were learnt on a device which lacks nothing, as they are on one that does.

    There are none if a unit holds ops that it lacks beside others: as parts, they cost something
    else.
    """
    data = json.loads(learnt.read_text())
    data = json.loads(json.dumps(data).replace(json.dumps(data["devices"][0]), json.dumps(device)))
    gone = SUPPORT[kind].get("unsupported", set())
    type_of = {name: op_type for name, op_type, *_ in data["graph"]["ops"]}
    for ops, times_us, *_ in data["units"]:
        lacks = [type_of[op] in gone for op in ops]
        if all(lacks):
            times_us[0] = None
        elif any(lacks):
            return None
    written = scratch / f"{learnt.stem}.{kind}.json"
    written.write_text(json.dumps(data))
    return hl.CostModel.from_json(written)


def one_case(
    name: str, kind: str, budget_s: float, given: argparse.Namespace, scratch: Path
) -> dict[str, Any]:
    """Optimise one model for one kind of accelerator, print a line and return it as data."""
    started = time.perf_counter()
    device = device_of(kind, given)
    properties = {"CPU": F32 | given.cpu} | ({} if given.device is None else {device: F32})
    model = hl.load(model_file(name, scratch))
    learnt = None if given.costs is None else given.costs / f"{short_name(name)}.costs.json"
    costs = costs_of(learnt, kind, device, scratch) if learnt and learnt.exists() else None
    store = None if given.out is None else given.out / f"{short_name(name)}.{kind}"
    best = hl.optimize(
        model, [device, "CPU"], budget_s=budget_s, device_properties=properties,
        costs=costs, store=store, isolate=not given.in_process, progress=False,
    )  # fmt: skip
    if store is not None:
        best.costs.to_json(store / "costs.json")
        best.affinity.to_json(store / "optimized.json")
    summary = best.summary.set_index("label")
    ratios = summary["ratio"].astype(float)  # to greedy
    others = ratios.drop("optimized")
    times = ", ".join(
        f"{label} {row['median_us'] / 1e3:.2f} ms ({row['n_subgraphs']})"
        for label, row in summary.iterrows()
    )
    print(
        f"{short_name(name):<20} {kind}: {times}; greedy / optimized {1 / ratios['optimized']:.2f} "
        f"[{1 / summary.loc['optimized', 'ratio_ci95_high']:.2f}, "
        f"{1 / summary.loc['optimized', 'ratio_ci95_low']:.2f}]; {best.verdict} "
        f"({len(best.trials)} trials, {time.perf_counter() - started:.0f} s)",
        flush=True,
    )
    return {
        "model": short_name(name),
        "kind": kind,
        **{f"{label}_us": float(row["median_us"]) for label, row in summary.iterrows()},
        "n_subgraphs": int(summary.loc["optimized", "n_subgraphs"]),
        "gain": float(1 / ratios["optimized"]),
        "to_best": float(ratios["optimized"] / others.min()),
        "improved": bool(best.improved),
        "verdict": best.verdict,
        "notes": list(best.notes),
    }


def main() -> None:
    """Print a line a case, the geometric mean of the gains, and how many beat every baseline."""
    given = options(
        __doc__, models=list, device=str, kinds=list, cpu={}, costs=Path, in_process=False,
        budget=[120.0], out=Path, scratch=Path, recorded=False,
    )  # fmt: skip
    if given.recorded:
        print_recorded()
        return
    models = given.models or (MODELS if given.device is None else NETWORKS)
    kinds = given.kinds or ("abc" if given.device is None else ("all", "b", "c"))
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        scratch = given.scratch or Path(directory)
        for name in models:
            for kind, budget_s in zip(kinds, given.budget * len(kinds), strict=False):
                try:
                    rows.append(one_case(name, kind, budget_s, given, scratch))
                except Exception as error:  # the other cases are worth measuring
                    traceback.print_exc()
                    print(f"{short_name(name):<20} {kind}: {error}", flush=True)
                    continue
                append_json(given.out and given.out / "results.jsonl", rows[-1])
    if rows:
        print(in_all(rows))


def print_recorded() -> None:
    """Print a table of each recorded set of cases, and what is asked of all of them."""
    directory = hl.interop.recordings()
    for file in sorted(directory.rglob("results.jsonl")):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        print(file.parent.relative_to(directory.parent))
        for row in rows:
            print(
                f"  {row['model']:<20} {row['kind']:<3}: greedy / optimized "
                f"{row['gain']:.2f}, {row['to_best']:.3f} of the best baseline's time"
            )
        print(f"  {in_all(rows)}")


def in_all(rows: list[dict[str, Any]]) -> str:
    """Say of all cases what is asked of them."""
    mean = math.exp(sum(math.log(row["gain"]) for row in rows) / len(rows))
    known = [row for row in rows if not without(row)]
    worst = max((row["to_best"] for row in known), default=1.0)
    said = "".join(
        f"; no time to measure {', '.join(without(row))} of {row['model']} {row['kind']}"
        for row in rows
        if without(row)
    )
    return (
        f"{len(rows)} cases: {mean:.2f} times as fast as greedy (geometric mean); faster than "
        f"every baseline in {sum(row['improved'] for row in known)}, by {MUCH:.0%} in "
        f"{sum(row['to_best'] <= 1 - MUCH for row in known)}; at worst "
        f"{worst - 1:+.1%} against the best of them{said}"
    )


def without(row: dict[str, Any]) -> list[str]:
    """Return the baselines of a case that there was no time to measure."""
    times = {key[:-3]: us for key, us in row.items() if key.endswith("_us")}
    return [label for label, us in times.items() if math.isnan(us)]


if __name__ == "__main__":
    main()
