"""Plan sets of models on a real GPU beside its CPU, and measure what the plans are worth.

    python -m tests.real_gpu.machines OUT plans --sets 0-9 --size 4
    python -m tests.real_gpu.machines OUT plans --sets 0-5 --size 3 --every
    python -m tests.real_gpu.machines OUT deadlines

Each prints a line a set, and adds it as JSON to OUT. ``--every`` measures every assignment of three
ways too, and the best five again beside the plan.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import hetero_lab as hl
from hetero_lab.devices.core import shared_core
from hetero_lab.machine.demand import holds
from hetero_lab.machine.machine import Inquiry
from hetero_lab.machine.race import Together, ratio_of
from hetero_lab.progress import Stopwatch
from hetero_lab.results.environment import noise_here
from tests import network_zoo

NETWORKS = ("yolo_dfl", "yolo_anchors", "unet", "ssd", "encoder", "ocr_svtr", "faces", "speech")
TUNED_ON = ("yolo_decoupled", "ocr_crnn", "gated", "lstm")
MOST_RATE = 2000.0  # that a process produces beside busy cores
AGAIN = 6  # turns of what is compared


def models(args) -> dict[str, hl.types.PreparedModel]:
    names = TUNED_ON if args.tuned_on else NETWORKS[: args.n]
    return {name: hl.load(getattr(network_zoo, name)()) for name in names}


def demand_of(model, device: str, n_threads: int, only: str = "", **asked) -> hl.Demand:
    """Return a demand with three ways, or with the ``only`` one."""
    few = hl.Placement(hl.Affinity.uniform(model, "CPU"), f"CPU · {n_threads} threads",
                       {"CPU": {"INFERENCE_NUM_THREADS": n_threads, "ENABLE_CPU_PINNING": False}},
                       direct=True)  # fmt: skip
    ways = {device: device, "CPU": "CPU", few.label: few}
    return hl.Demand(model, ways=[ways[only]] if only else [*ways.values()], **asked)


def sets_of(names, size: int, seed: int = 2026) -> list[tuple[str, ...]]:
    every = list(itertools.combinations(names, size))
    random.Random(seed + size).shuffle(every)
    return every


def again(inquiry: Inquiry, sets: list[Together], n: int = AGAIN) -> list[Together]:
    """Measure sets in turns, anew."""
    turns: list[list] = [[] for _ in sets]
    order = list(range(len(sets)))
    for number in range(n):
        random.Random(number).shuffle(order)
        for index in order:
            turns[index].append(inquiry.turn(sets[index]))
    return [
        Together(one.label, one.chosen, one.predicted, turns=tuple(own))
        for one, own in zip(sets, turns, strict=True)
    ]


def least(inquiry: Inquiry, one: Together) -> float:
    return 1.0 / float(np.median([inquiry.goal.cost(turn) for turn in one.seen]))


def errors(inquiry: Inquiry, sets) -> list[float]:
    """Return the relative error of the foretold slowdown of each model in each measured set."""
    found = []
    for one in sets:
        for name, label in one.chosen.items():
            if one.predicted and one.seen:
                seen = np.median([turn[name].rate_per_s for turn in one.seen])
                foretold = one.predicted[name] * inquiry.alone[name][label]
                found.append(abs(foretold / seen - 1.0))
    return found


def told_of(inquiry: Inquiry, one: Together) -> dict:
    seen = {
        name: float(np.median([turn[name].rate_per_s for turn in one.seen]))
        for name in (one.chosen if one.seen else ())
    }
    foretold = {n: share * inquiry.alone[n][one.chosen[n]] for n, share in one.predicted.items()}
    return {
        "chosen": dict(one.chosen), "judgement": one.judgement, "seen": seen, "foretold": foretold,
        "n": [len(one.looks), len(one.turns)],
        "costs": [inquiry.goal.cost(turn) for turn in one.turns],
    }  # fmt: skip


def plan_of(names, loaded, args, **asked) -> dict:
    began = time.time()
    demands = {n: demand_of(loaded[n], args.device, args.threads, requests=2) for n in names}
    with Inquiry(
        demands, [args.device, "CPU"], objective=args.objective,
        watch=Stopwatch.start(args.budget), store=args.store,
    ) as inquiry:  # fmt: skip
        plan = inquiry.plan()
        took_s = time.time() - began
        noise = replace(noise_here([args.device, "CPU"], shared_core()), absolute_us=0.0)
        if plan.chosen is plan.reference:
            ratio, low, high = 1.0, 1.0, 1.0
            plan_share = base_share = plan.summary["share"].min()
        else:
            own, chosen = again(inquiry, [plan.reference, plan.chosen])
            found = ratio_of(own, chosen, inquiry.goal.cost, noise)
            ratio, low, high = found.middle, found.low, found.high
            base_share, plan_share = least(inquiry, own), least(inquiry, chosen)
        row = {
            "models": names, "chosen": dict(plan.chosen.chosen), "own": dict(plan.reference.chosen),
            "ratio": ratio, "low": low, "high": high, "share": plan_share, "own_share": base_share,
            "n_sets": len(plan.sets), "took_s": took_s, "n_pairs": len(plan.pairs) // 2,
            "errors": errors(inquiry, plan.sets),
            "alone": inquiry.alone,
            "sets": [told_of(inquiry, one) for one in plan.sets],
        }  # fmt: skip
        if args.every:
            row |= every_assignment(inquiry, plan.chosen)
    return row


def every_assignment(inquiry: Inquiry, chosen: Together) -> dict:
    options = [list(ways) for ways in inquiry.ways.values()]
    sets = [
        Together("", dict(zip(inquiry.ways, labels, strict=True)), {})
        for labels in itertools.product(*options)
    ]
    once = [(inquiry.goal.cost(inquiry.turn(one)), i) for i, one in enumerate(sets)]
    best = [sets[i] for _, i in sorted(once)[:5]]
    rivals = [chosen, *(one for one in best if one.chosen != chosen.chosen)]
    measured = again(inquiry, rivals)
    shares = [least(inquiry, one) for one in measured]
    print(inquiry.watch.elapsed_s, [round(s, 3) for s in shares])
    return {"n_every": len(sets), "plan_share": shares[0], "best_share": max(shares)}


def plans(args) -> None:
    loaded = models(args)
    if args.all_pairs:
        demands = {
            n: demand_of(m, args.device, args.threads, requests=2) for n, m in loaded.items()
        }
        began = time.time()
        with Inquiry(
            demands, [args.device, "CPU"], watch=Stopwatch.start(None),
            store=args.store,
        ) as inquiry:  # fmt: skip
            inquiry.measure_alone()
            inquiry.measure_pairs()
        print(f"all pairs: {time.time() - began:.0f} s", flush=True)
    first, last = (int(text) for text in args.sets.split("-"))
    for names in sets_of(loaded, args.size)[first : last + 1]:
        row = plan_of(names, loaded, args)
        with args.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        beside = f" best of all {row['best_share']:.3f}" if args.every else ""
        told = (
            f"{row['ratio']:.2f} [{row['low']:.2f}, {row['high']:.2f}] {row['own_share']:.3f} -> "
            f"{row['share']:.3f}{beside} err {np.median(row['errors'] or [0]):.3f} "
            f"{row['took_s']:.0f} s {row['n_sets']} sets {row['chosen']}"
        )
        print(told, flush=True)


def deadlines(args) -> None:
    """Foretell whether each deadline of growing loads holds, and measure it."""
    loaded = models(args)
    rng = random.Random(args.seed)
    loads_right = n_loads = deadlines_right = n_deadlines = 0
    for names in sets_of(loaded, 3)[:5]:
        closed = {n: demand_of(loaded[n], args.device, args.threads, requests=2) for n in names}
        with Inquiry(
            closed, [args.device, "CPU"], watch=Stopwatch.start(args.budget),
            store=args.store,
        ) as inquiry:  # fmt: skip
            plan = inquiry.plan()
            alone = inquiry.alone
        for factor in (0.15, 0.3, 0.45, 0.6, 0.8, 1.0):
            demands: dict[str, hl.Demand] = {}
            for name in names:
                label = plan.chosen.chosen[name]
                rate = min(MOST_RATE, factor * alone[name][label])
                slack = 3.0 * 10.0 ** rng.random()  # 3 to 30
                deadline = slack * plan.alone[name][label].median_us / 1e3
                demands[name] = demand_of(
                    loaded[name], args.device, args.threads, only=label, requests=2,
                    rate_per_s=rate, deadline_ms=deadline,
                )  # fmt: skip
            try:
                outcome = foretold_and_seen(demands, plan.chosen.chosen, args)
            except hl.HeteroLabError as error:
                print(factor, "not measured:", error, flush=True)
                continue
            is_foretold = [one["foretold"] <= 1.0 for one in outcome.values()]
            is_kept = [holds(one["missed"]) for one in outcome.values()]
            deadlines_right += sum(a == b for a, b in zip(is_foretold, is_kept, strict=True))
            loads_right += all(is_foretold) == all(is_kept)
            n_deadlines, n_loads = n_deadlines + len(outcome), n_loads + 1
            row = {
                "models": names, "chosen": dict(plan.chosen.chosen), "factor": factor,
                "outcome": outcome,
            }  # fmt: skip
            with args.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(
                factor,
                {n: (round(o["foretold"], 2), round(o["missed"], 3)) for n, o in outcome.items()},
                f"{loads_right} of {n_loads} loads, {deadlines_right} of {n_deadlines} deadlines",
                flush=True,
            )


def collect(args) -> None:
    """Measure each way alone, in pairs and in all sets of three and four, to look at contention."""
    loaded = models(args)
    demands = {n: demand_of(m, args.device, args.threads, requests=2) for n, m in loaded.items()}
    with Inquiry(
        demands, [args.device, "CPU"], watch=Stopwatch.start(args.budget),
        store=args.store,
    ) as inquiry:  # fmt: skip
        inquiry.measure_alone()
        told = {"alone": inquiry.alone}
        with args.out.open("a") as file:
            file.write(json.dumps(told) + "\n")
            inquiry.measure_pairs()
            sets = [
                dict(zip(names, labels, strict=True))
                for size in (2, 3, 4)
                for names in itertools.combinations(loaded, size)
                for labels in itertools.product(*(inquiry.ways[name] for name in names))
            ]
            random.Random(1).shuffle(sets)
            for chosen in sets:
                if inquiry.watch.is_over:
                    break
                turn = inquiry.turn(Together("", chosen, {}))
                rates = {name: driven.rate_per_s for name, driven in turn.items()}
                file.write(json.dumps({"chosen": chosen, "rates": rates}) + "\n")
                file.flush()


def foretold_and_seen(
    demands: Mapping[str, hl.Demand], chosen: Mapping[str, str], args
) -> dict[str, dict[str, Any]]:
    """Return, by model, its foretold and measured part of its deadline, and the share it missed."""
    with Inquiry(
        demands, [args.device, "CPU"], watch=Stopwatch.start(60.0), objective="deadlines",
        store=args.store,
    ) as inquiry:  # fmt: skip
        inquiry.measure_alone()
        foretold = inquiry.foretold_p99_us(chosen)
        shares = inquiry._predict(chosen)
        turns = tuple(inquiry.turn(Together("", chosen, {})) for _ in range(3))
        together = Together("", chosen, {}, turns=turns).pooled
        told = {}
        for name, demand in demands.items():
            seen, alone = together[name], inquiry.alone_by_way[name][chosen[name]]
            deadline_us = 1e3 * demand.deadline_ms
            told[name] = {
                "foretold": foretold[name] / deadline_us,
                "seen": inquiry.goal.p99_us(name, seen) / deadline_us,
                "missed": inquiry.goal.missed(name, seen),
                "n_due": seen.n_due, "rate_per_s": demand.rate_per_s, "deadline_us": deadline_us,
                "share": shares[name], "alone_per_s": alone.per_s, "alone_p99_us": alone.p99_us,
                "alone_median_us": alone.median_us,
                "quantiles_us": [*np.percentile(seen.latencies_us or [np.nan], range(0, 101, 5))],
            }  # fmt: skip
        return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("what", choices=["plans", "deadlines", "collect"])
    parser.add_argument("--store", type=Path, help="directory of rates, to be kept")
    parser.add_argument("--sets", default="0-9")
    parser.add_argument("--size", type=int, default=4)
    parser.add_argument("--budget", type=float, default=35.0)
    parser.add_argument("--device", default="GPU")
    parser.add_argument("--threads", type=int, default=6)
    parser.add_argument("--objective", default="share")
    parser.add_argument("--tuned-on", action="store_true", help="the networks it was made with")
    parser.add_argument("--all-pairs", action="store_true", help="measure them first")
    parser.add_argument("--n", type=int, default=8, help="networks")
    parser.add_argument("--seed", type=int, default=7, help="of the deadlines")
    parser.add_argument("--every", action="store_true")
    args = parser.parse_args()
    if args.device not in hl.devices()["device"].to_list():
        hl.emulate(args.device)  # to try this program without a GPU
    args.out.parent.mkdir(parents=True, exist_ok=True)
    {"plans": plans, "deadlines": deadlines, "collect": collect}[args.what](args)


if __name__ == "__main__":
    main()
