"""Many random models and placements on the real runtime: ``python -m tests.proof.long_run``.

It stops at the first wrong output with the smallest case that shows it, and says at its end how
often the predicted partition was the compiled one. The same seed draws the same cases;
``--part`` runs one part of them, from 0.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: E402

from tests.proof.graphs import Case, cases  # noqa: E402
from tests.proof.properties import Tally, check  # noqa: E402
from tests.scripts import options  # noqa: E402

PART = 250


def run_part(number: int, graphs: int, first_seed: int, most_ops: int, tally: Tally) -> None:
    """Draw and check one part; it has a seed of its own and can be run by itself."""

    @seed(first_seed * 1_000_003 + number)
    @settings(
        max_examples=graphs,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(cases(most_ops))
    def part(case: Case) -> None:
        check(case, tally)

    part()


def main() -> int:
    """Run all parts, or one of them."""
    given_ = options(__doc__, graphs=2000, seed=1, part=int, most_ops=24)
    tally = Tally()
    repeat = f"python -m tests.proof.long_run --graphs {given_.graphs} --seed {given_.seed}"
    repeat += f" --most-ops {given_.most_ops}" if given_.most_ops != 24 else ""
    print(f"seed {given_.seed}; to repeat: {repeat}", flush=True)
    numbers = range(-(-given_.graphs // PART))
    for number in numbers if given_.part is None else [given_.part]:
        began = time.perf_counter()
        size = min(PART, given_.graphs - number * PART)
        try:
            run_part(number, size, given_.seed, given_.most_ops, tally)
        except BaseException:
            print(f"\nto repeat this part alone: {repeat} --part {number}", flush=True)
            raise
        print(f"part {number}: {size} graphs in {time.perf_counter() - began:.0f} s", flush=True)
    print(tally)
    for surprise in tally.surprises[:20]:
        print(f"flagged: {surprise}")
    return 0 if tally.as_predicted >= 0.99 * tally.compiled else 1


if __name__ == "__main__":
    sys.exit(main())
