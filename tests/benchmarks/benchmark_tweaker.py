"""How long the affinity tweaker takes from a click to updated figures, in the kernel and on a page.

Run by hand: ``python -m tests.benchmarks.benchmark_tweaker [--ops 1000] [--page]``. It exits with
an error where a change takes longer than 150 ms in the kernel, measured as the median of several.
Counted is everything up to the messages to the browser: selection, move, partition, prediction,
widget states. The findings follow a moment later and are timed on their own line. With ``--page``,
clicks in a real JupyterLab and browser are timed as well, until the page shows their effect.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import hetero_lab as hl
from hetero_lab.lint.findings import find_problems
from hetero_lab.model.read import prepare
from tests.planning.random_costs import random_costs
from tests.random_models import random_model
from tests.scripts import options
from tests.widgets.jupyter_in_browser import opened, running_browser, running_lab, write_notebook

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


def open_tweaker(n_ops: int, seed: int) -> hl.AffinityTweaker:
    """Open the tweaker with a random model."""
    hl.emulate("ACC", unsupported={"Softmax", "Concat"})
    prepared = prepare(random_model(seed, n_ops))
    costs = random_costs(random.Random(0), prepared.graph, ["ACC", "CPU"], 400, forbidden=0.0)
    return hl.AffinityTweaker(prepared, ["ACC", "CPU"], costs)


CLICK = """async ([click, shown]) => {
    const until = performance.now() + 10000;
    const seen = async what => {
        while (!document.querySelector(what)) {
            if (performance.now() > until) throw new Error(`${what} does not appear`);
            await new Promise(requestAnimationFrame);
        }
        return document.querySelector(what);
    };
    (await seen(click)).click();
    await seen(shown);
}"""


def time_clicks(n_ops: int, seed: int) -> None:
    """Time clicks on the page of a real JupyterLab until it shows their effect."""
    cell = (
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "from tests.benchmarks.benchmark_tweaker import open_tweaker\n"
        f"tweaker = open_tweaker({n_ops}, {seed})\ntweaker"
    )
    with contextlib.ExitStack() as stack:
        scratch, home = (Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2))
        write_notebook(scratch / "tweaker.ipynb", [cell])
        lab, browser = stack.enter_context(running_lab(scratch, home)), running_browser()
        notebook = opened(stack.enter_context(browser), lab, "tweaker.ipynb")
        page = stack.enter_context(notebook).page
        page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
        page.wait_for_selector(".hl-board tr[data-op]")
        page.locator("button:text-is('→ CPU')").evaluate("button => button.id = 'to-cpu'")
        places = page.eval_on_selector_all(
            ".hl-graph [data-device='ACC']", "nodes => nodes.map(n => n.dataset.op)"
        )

        def click(press: str, *shown: str) -> None:
            page.evaluate(CLICK, [press, "".join(shown)])

        def select(k: int) -> None:
            own = f"[data-op='{places[k]}']"
            click(f"tr{own}", f".hl-graph {own}", "[aria-selected='true']")

        def select_and_move(k: int) -> None:
            select(k)
            click("#to-cpu:enabled", f".hl-graph [data-op='{places[k]}'][data-device='CPU']")

        def colour(_k: int) -> None:
            click(".hl-bar button[title*=' their time ']", ".hl-by-time")
            click(".hl-bar button[title$=' by device']", ".hl-pane:not(.hl-by-time)")

        def sort(k: int) -> None:
            head = f".hl-board th:nth-child({k + 1})"
            click(f"{head} button", head, "[aria-sort='ascending']")

        timed("page: select a row", select)
        timed("page: select one op and move it", select_and_move)
        timed("page: colour by time and back", colour)
        timed("page: sort a column", sort, 5)


def main() -> None:
    """Time each kind of change on a model of about 1,000 ops."""
    given = options(__doc__, ops=1000, seed=3, page=False)
    started = time.perf_counter()
    tweaker = open_tweaker(given.ops, given.seed)
    graph, costs = tweaker.state.graph, tweaker.state.costs
    n = len(tweaker.affinity.ops)
    print(f"{n} ops; opened in {time.perf_counter() - started:.2f} s")
    names, board = tweaker.affinity.ops, tweaker.view.board
    chosen = random.Random(1)
    tweaker.affinity = hl.Affinity.on_one(graph, "CPU")

    def click(number: int) -> None:
        clicked = {"places": [chosen.randrange(n)], "click": str(number)}
        board.clicked = clicked
        board._handle_custom_msg({"do": "select", **clicked}, [])

    def click_and_move(number: int) -> None:
        name = chosen.choice(sorted(tweaker.state.able["ACC"]))
        tweaker.selection = [name]
        other = "CPU" if tweaker.affinity[name] == "ACC" else "ACC"
        tweaker.view.controls.devices[other].click()
        assert tweaker.affinity[name] == other

    def scatter(number: int) -> None:
        moved = tweaker.state.able["ACC"] & set(chosen.sample(names, n // 2))
        tweaker.affinity = hl.Affinity.from_graph(
            graph, lambda name: "ACC" if name in moved else "CPU"
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
    timed("hotspots, a moment later", lambda _: hl.hotspots(costs, placement=tweaker.affinity), 5)
    if given.page:
        time_clicks(given.ops, given.seed)
    if max(medians) > LIMIT_MS:
        sys.exit(f"A change takes {max(medians):.0f} ms; the limit is {LIMIT_MS:.0f} ms.")


if __name__ == "__main__":
    main()
