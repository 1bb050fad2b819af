"""How well a cost model predicts placements that it has not seen, as who deploys them has them.

Run by hand: ``python -m tests.benchmarks.benchmark_prediction [--models NAME …] [--budget 150]``.
Each model is calibrated over CPU and another device: one emulated in bf16, or one that has all
cores beside CPU with one (``--threads``), or a real one (``--device GPU``), in f32. Then 24
placements that were not measured, of few and of many subgraphs, run in one fresh process with
openvino alone, each compiled several times in random order, and what the costs predict is compared
with the median. Beside each, in turns, runs one placement that stays compiled, the first of them:
what the machine is slower by then than on the whole is taken out, as the lab's own tables do. Some
are compiled at once and measured in turns, for seconds if they are quick: on some machines all
that a process runs is faster or slower by up to a fifth for a second at a time.
How much slower the machine has become since the costs were learnt, eight placements tell that they
were fitted to: they are measured once more among the unseen ones, and the median of what they now
take longer is no error of the prediction. ``--ahead 14`` has so many other processes compile them
first, so that a driver that keeps compiled kernels has them. ``--out`` keeps the costs, what they
were fitted to (so that another way of fitting can be tried without the device), the plans that
follow from them and each measured time (``--cpu`` takes more
properties of the CPU in JSON); what an earlier run left there is replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import openvino as ov
import pandas as pd

import hetero_lab as hl
from hetero_lab.costs import fitting
from hetero_lab.costs.counter_costs import Observation
from hetero_lab.costs.design import scattered_affinities
from hetero_lab.devices.core import BoundModel, bind
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import Placement
from tests.plain_openvino import PlainProcess, frozen
from tests.real_gpu.networks import model_file, short_name
from tests.scripts import BF16, F32, options

SAMPLES = (
    "efficientnet_lite0", "ppocr_det", "minilm_int8", "googlenet_graph", "magika",
    "page_orientation",
)  # fmt: skip
UNSEEN, SEEN, WARM_UP = 24, 8, 40
AT_ONCE, LEAST_TURNS, MOST_TURNS, TURNS_S = 4, 5, 12, 3.0  # of a few placements


@contextlib.contextmanager
def fitted_to() -> Iterator[list[Observation]]:
    """Yield a list that has, after a calibration, what its costs were fitted to last."""
    found: list[Observation] = []

    def fit(graph: Any, support: Any, observations: Sequence[Observation], **options: Any) -> Any:
        found[:] = observations
        return fitting.fit(graph, support, observations, **options)

    with mock.patch("hetero_lab.search.calibrate.fit", fit):
        yield found


def unseen(costs: hl.CostModel, seen: Sequence[Observation], seed: int) -> list[Affinity]:
    """Return placements of few and of many subgraphs that costs were not fitted to."""
    known = {one.affinity for one in seen}
    support = {device: costs.supports(device) for device in costs.devices}
    found = scattered_affinities(costs.graph, support, 2 * UNSEEN, seed=seed + 1000)
    new = (one for one in found if len(one.devices) > 1 and one not in known)
    return list(itertools.islice(new, UNSEEN))


def spread_over_subgraphs(costs: hl.CostModel, seen: Sequence[Observation]) -> list[Observation]:
    """Return some placements that costs were fitted to, from the fewest subgraphs to the most."""
    by_size = sorted(seen, key=lambda one: costs.predictor(one.affinity).n_subgraphs)
    return [by_size[int(at)] for at in np.linspace(0, len(by_size) - 1, min(SEEN, len(by_size)))]


def measured_alone(
    bound: BoundModel,
    affinities: list[Affinity],
    costs: hl.CostModel,
    scratch: Path,
    given: argparse.Namespace,
) -> pd.DataFrame:
    """Measure each placement several times in one plain process; a row a compile.

    ``raw_us`` is what the clock showed, ``measured_us`` without the drift of the machine.
    """
    places = [
        frozen(bound, Placement(affinity, "", costs.device_properties), scratch / f"unseen{number}")
        for number, affinity in enumerate(affinities)
    ]
    if given.ahead:
        with ThreadPoolExecutor(given.ahead) as pool:
            list(pool.map(compile_ahead, [places[n :: given.ahead] for n in range(given.ahead)]))
    rows = []
    shuffle = random.Random(given.seed)
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(PlainProcess(places[0]))
        beside = scratch / "beside"
        shutil.copytree(places[0], beside)
        plain.load(beside)
        plain.turn(beside, 0, WARM_UP)
        kept = None  # each row as it comes, for a run that is ended in the middle
        if given.out is not None:
            kept = stack.enter_context(open(given.out / f"{scratch.name}.jsonl", "w"))
        for compiled in range(given.compiles):
            order = shuffle.sample(places, len(places))
            for first in range(0, len(order), AT_ONCE):
                for turn in in_turns(plain, order[first : first + AT_ONCE], beside, shuffle):
                    rows.append((turn[0].name, compiled, *turn[1:]))
                    if kept is not None:
                        print(json.dumps(rows[-1]), file=kept, flush=True)
    table = pd.DataFrame(rows, columns=["placement", "compile", "raw_us", "beside_us"])
    drift = table["beside_us"] / table["beside_us"].median()
    table.insert(2, "measured_us", table["raw_us"] / drift)
    return table.groupby(["placement", "compile"], as_index=False).median()


def in_turns(
    plain: PlainProcess, some: Sequence[Path], beside: Path, shuffle: random.Random
) -> Iterator[tuple[Path, float, float]]:
    """Compile some placements; yield for each turn which it was, and what it and ``beside`` took.

    In µs.
    """
    for place in some:
        plain.load(place)
    for place in some:
        plain.turn(place, 0, WARM_UP)
    began = time.perf_counter()
    for number in range(MOST_TURNS):
        if number >= LEAST_TURNS and time.perf_counter() - began > TURNS_S:
            break
        for place in shuffle.sample(some, len(some)):
            beside_us, raw_us = (float(np.median(plain.turn(each))) for each in (beside, place))
            yield place, raw_us, beside_us
    for place in some:
        plain.forget(place)


def compile_ahead(places: list[Path]) -> None:
    """Compile placements one after another in a process that measures nothing."""
    if places:
        with PlainProcess(places[0]) as plain:
            for place in places:
                plain.load(place)
                plain.forget(place)


def one_model(name: str, devices: list[str], given: argparse.Namespace) -> tuple[np.ndarray, ...]:
    """Calibrate a model; print and return what it predicts of unseen placements, and what is."""
    started = time.perf_counter()
    own = {} if devices[0] == "ACC" else {devices[0]: F32}
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory) / short_name(name)
        scratch.mkdir()
        bound = bind(hl.load(model_file(name, scratch)))
        with fitted_to() as observations:
            costs = hl.calibrate(
                bound.model, devices, budget_s=given.budget,
                device_properties={**own, "CPU": F32 | given.cpu},
                seed=given.seed, isolate=given.isolate, progress=False,
            )  # fmt: skip
        took = time.perf_counter() - started
        if given.out is not None:
            given.out.mkdir(parents=True, exist_ok=True)
            costs.to_json(given.out / f"{short_name(name)}.costs.json")
            seen = [dataclasses.asdict(one) for one in observations]
            file = given.out / f"{short_name(name)}.observations.json"
            file.write_text(json.dumps(seen, default=dict))
            keep_plans(bound.model, costs, given.out / f"{short_name(name)}.plans.json")
        affinities = unseen(costs, observations, given.seed)
        n_unseen = len(affinities)
        before = spread_over_subgraphs(costs, observations)
        affinities += [one.affinity for one in before]
        runs = measured_alone(bound, affinities, costs, scratch, given)
    guesses = [costs.predictor(affinity) for affinity in affinities[:n_unseen]]
    medians = runs.groupby("placement")["measured_us"].median()
    everything = medians[[f"unseen{n}" for n in range(len(affinities))]]
    now = everything.to_numpy()[n_unseen:] / np.array([one.measured_us for one in before])
    slower = float(np.median(now))
    rows = everything[:n_unseen]
    predicted, actual = np.array([g.predicted_us for g in guesses]), rows.to_numpy()
    runs = runs[runs["placement"].isin(rows.index)].reset_index(drop=True)
    subgraphs = [guess.n_subgraphs for guess in guesses]
    error, steady = predicted / actual - 1.0, slower * predicted / actual - 1.0
    intervals = [guess.estimate for guess in guesses]
    inside = [e.low_us <= us / slower <= e.high_us for e, us in zip(intervals, actual, strict=True)]
    regret = float(actual[predicted.argmin()] / actual.min() - 1.0)
    again = runs["measured_us"] / runs["placement"].map(rows) - 1.0
    raw = runs["raw_us"] / runs.groupby("placement")["raw_us"].transform("median") - 1.0
    said = f"{costs.mape:.1%}" if costs.validation_rows else "nothing"
    print(
        f"{short_name(name):<20} {n_unseen} unseen placements, {min(subgraphs)} to "
        f"{max(subgraphs)} subgraphs, {actual.min() / 1e3:.2f} to {actual.max() / 1e3:.2f} ms: "
        f"mean error {np.abs(error).mean():.1%}, median {np.median(np.abs(error)):.1%}, "
        f"worst {np.abs(error).max():.1%}, bias {error.mean():+.1%}, "
        f"R² {r2(predicted, actual):.3f}; what had been measured before took {slower:.2f} times as "
        f"long ({now.min():.2f} to {now.max():.2f}), without which: mean error "
        f"{np.abs(steady).mean():.1%}, median {np.median(np.abs(steady)):.1%}, bias "
        f"{steady.mean():+.1%}; {np.mean(inside):.0%} in their 90 % interval (median half width "
        f"{np.median([e.high_us / e.us - 1.0 for e in intervals]):.0%}), the one predicted best "
        f"{regret:.1%} behind the best; a compile differs from its "
        f"placement's median by {again.abs().mean():.1%}, {raw.abs().mean():.1%} with the drift of "
        f"the machine; its own validation said {said} "
        f"(calibrated in {took:.0f} s, measured in {time.perf_counter() - started - took:.0f})",
        flush=True,
    )
    if given.out is not None:
        by_place = dict(zip(rows.index, zip(predicted, subgraphs, strict=True), strict=True))
        told = pd.DataFrame(
            list(runs["placement"].map(by_place)), columns=["predicted_us", "n_subgraphs"]
        )
        table = pd.concat([runs, told], axis=1).round(2)
        table.to_csv(given.out / f"{short_name(name)}.predicted.csv", index=False)
    return predicted, actual


def keep_plans(model: ov.Model, costs: hl.CostModel, path: Path) -> None:
    """Write what is planned on costs: for another machine, to plan the same on them."""
    plans = {}
    for objective in ("latency", "throughput"):
        plan = hl.plan(model, costs, objective=objective, budget_s=5.0, progress=False)
        plans[objective] = {
            "affinity": dict(plan.affinity),
            "predicted_us": plan.predicted_us,
            "lower_bound_us": plan.lower_bound_us,
            "n_subgraphs": plan.n_subgraphs,
        }
    path.write_text(json.dumps(plans))


def r2(predicted: np.ndarray, actual: np.ndarray) -> float:
    """Return the share of the variance that is predicted."""
    return 1.0 - float(((actual - predicted) ** 2).sum() / ((actual - actual.mean()) ** 2).sum())


def main() -> None:
    """Print a line a model and the mean."""
    given = options(
        __doc__, models=SAMPLES, device=str, threads=False, cpu={}, isolate=False, budget=150.0,
        compiles=3, ahead=0, seed=0, out=Path,
    )  # fmt: skip
    if given.threads:
        spec = hl.emulate("ACC", faster_by="threads")
        given.cpu = dict(spec.contrast) | given.cpu
    elif given.device is None:
        hl.emulate("ACC", properties=BF16)
    devices = [given.device or "ACC", "CPU"]
    found = [one_model(name, devices, given) for name in given.models]
    errors = [float(np.abs(predicted / actual - 1.0).mean()) for predicted, actual in found]
    biases = [float((predicted / actual - 1.0).mean()) for predicted, actual in found]
    # In units of each model's mean latency, so that no model counts for its size.
    relative = [(p / a.mean(), a / a.mean()) for p, a in found]
    everything, relative_all = (
        r2(*(np.concatenate(every) for every in zip(*pairs, strict=True)))
        for pairs in (found, relative)
    )
    print(
        f"mean error {np.mean(errors):.1%}, largest of a model {max(errors):.1%}; bias "
        f"{np.mean(biases):+.1%}, largest of a model {max(biases, key=abs):+.1%}; R² of all "
        f"placements {everything:.3f}, relative to each model's mean {relative_all:.3f}, least "
        f"of a model {min(r2(*pair) for pair in found):.3f}"
    )


if __name__ == "__main__":
    main()
