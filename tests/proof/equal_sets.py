"""A/A: races of a set of models beside itself. How often is one called better or worse?

    python -m tests.proof.equal_sets [--races 40] [--busy]

``--busy`` keeps one core busy meanwhile. Prints the races that told the two apart.
"""

from __future__ import annotations

import argparse
import multiprocessing
from dataclasses import replace

import hetero_lab as hl
from hetero_lab.devices.core import shared_core
from hetero_lab.machine.machine import Inquiry
from hetero_lab.machine.race import Race, Together
from hetero_lab.progress import Stopwatch
from hetero_lab.results.environment import noise_here
from hetero_lab.results.evidence import FASTER, SLOWER

RACE_S = 14.0


def _spin() -> None:
    while True:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--races", type=int, default=40)
    parser.add_argument("--busy", action="store_true")
    args = parser.parse_args()
    hl.emulate("ACC")
    demands = {
        "digits": hl.Demand("digits_inception", ways=["ACC"]),
        "again": hl.Demand("digits_inception", ways=["CPU"]),
    }
    other = multiprocessing.get_context("spawn").Process(target=_spin, daemon=True)
    if args.busy:
        other.start()
    alarms = 0
    with Inquiry(demands, ["ACC", "CPU"], watch=Stopwatch.start(None)) as inquiry:
        inquiry.measure_alone()
        chosen = {name: next(iter(ways)) for name, ways in inquiry.ways.items()}
        noise = replace(noise_here(["CPU"], shared_core()), absolute_us=0.0)
        for number in range(args.races):
            race = Race(inquiry.goal.cost, noise, inquiry.turn)
            race.sets = [Together("one", chosen, {}), Together("other", chosen, {})]
            race.run(Stopwatch.start(RACE_S))
            one, two = race.results()
            apart = two.judgement in (FASTER, SLOWER) or "best" not in one.judgement
            alarms += apart
            n = len(two.turns)
            print(f"{number}: {one.judgement}, {two.judgement} by {n} turns", flush=True)
    print(f"told apart: {alarms} of {args.races}")
    if args.busy:
        other.terminate()


if __name__ == "__main__":
    main()
