"""How long the affinity tweaker takes in the kernel from a click to updated figures.

Run by hand: ``python -m tests.benchmarks.benchmark_tweaker [--ops 1000]``. It exits with an error
where a change takes longer than 150 ms, measured as the median of several. Counted is everything
up to the messages to the browser: selection, move, partition, prediction, widget states. The
findings follow a moment later and are timed on their own line.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable

import hetero_lab as hl
from hetero_lab.lint.remedies import find_problems
from hetero_lab.model.read import prepare
from tests.planning.random_costs import random_costs
from tests.random_models import random_model
from tests.scripts import options

LIMIT_MS = 150.0


def timed(label: str, action: Callable[[int], object], n: int = 15) -> float:
    """Print the median and the longest time of an action in ms; return the median."""
    times = []
    for number in range(n):
        started = time.perf_counter()
        action(number)
        times.append((time.perf_counter() - started) * 1e3)
    print(f"{label:<46} median {statistics.median(times):7.1f} ms, longest {max(times):7.1f} ms")
    return statistics.median(times)


def main() -> None:
    """Time each kind of change on a model of about 1,000 ops."""
    given = options(__doc__, ops=1000, seed=3)
    hl.emulate("ACC", unsupported={"Softmax", "Concat"})
    prepared = prepare(random_model(given.seed, given.ops))
    costs = random_costs(random.Random(0), prepared.graph, ["ACC", "CPU"], 400, forbidden=0.0)
    started = time.perf_counter()
    tweaker = hl.AffinityTweaker(prepared, ["ACC", "CPU"], costs)
    n = len(tweaker.affinity.ops)
    print(f"{n} ops; opened in {time.perf_counter() - started:.2f} s")
    names, board = tweaker.affinity.ops, tweaker.view.board
    chosen = random.Random(1)
    tweaker.affinity = hl.Affinity.uniform(prepared, "CPU")

    def click(number: int) -> None:
        board.selected = [chosen.randrange(n)]

    def click_and_move(number: int) -> None:
        name = chosen.choice(sorted(tweaker.state.able["ACC"]))
        tweaker.selection = [name]
        other = "CPU" if tweaker.affinity[name] == "ACC" else "ACC"
        tweaker.view.controls.devices[other].click()
        assert tweaker.affinity[name] == other

    def scatter(number: int) -> None:
        moved = tweaker.state.able["ACC"] & set(chosen.sample(names, n // 2))
        tweaker.affinity = hl.Affinity.from_graph(
            prepared.graph, lambda name: "ACC" if name in moved else "CPU"
        )

    def findings(number: int) -> None:
        state = tweaker.state
        find_problems(state.graph, tweaker.affinity, state.able, costs)

    medians = [
        timed("select by a click", click),
        timed("select one op and move it", click_and_move),
        timed("drag the cut by one percent", lambda k: tweaker.cut((k + 1) * n // 100)),
        timed("undo", lambda k: tweaker.undo() if k % 2 == 0 else tweaker.redo()),
        timed("half of the ops moved at random (the worst)", scatter),
    ]
    timed("findings, a moment later", findings, 5)
    if max(medians) > LIMIT_MS:
        sys.exit(f"A change takes {max(medians):.0f} ms; the limit is {LIMIT_MS:.0f} ms.")


if __name__ == "__main__":
    main()
