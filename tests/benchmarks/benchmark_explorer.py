"""How long the sweep explorer takes in a real browser, from a click to its figure.

Run by hand: ``python -m tests.benchmarks.benchmark_explorer [--store DIR]``. JupyterLab shows a
sweep of 24 placements with 5,000 samples, measured first unless the store has it. It exits with an
error where the median of the choices or of the filters takes longer than 0.1 s, or a tab 0.3 s.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hetero_lab as hl
from tests.scripts import options
from tests.widgets.jupyter_in_browser import opened, running_browser, running_lab, write_notebook

CHOICE_MS, TAB_MS = 100.0, 300.0
IDLE_MS = 6000  # after the first drawing, others are drawn ahead
ROWS, TURNS = 24, 21
BOX = ".hetero-lab-explorer"
# From the first input event until a title in the explorer has a text, and the frame after it.
TIMED = """([box, text]) => { window.timed = (async () => {
  const frame = () => new Promise(requestAnimationFrame);
  const began = await new Promise(go => ["pointerdown", "keydown"].forEach(kind =>
    document.addEventListener(kind, () => go(performance.now()), { capture: true, once: true })));
  const shows = () => [...document.querySelectorAll(`${box} :is(.gtitle, .xtitle)`)].some(
    title => title.textContent.includes(text) && title.getBoundingClientRect().width);
  while (!shows()) await frame();
  await frame();
  return performance.now() - began;
})(); }"""


def measured(store: Path) -> None:
    """Sweep 24 placements of a model, each with more ops on the CPU, into a store."""
    hl.emulate("ACC", unsupported={"Softmax", "Concat"})
    model = hl.load("digits_inception")
    auto = hl.Affinity.automatic(model, "HETERO:ACC,CPU")
    ops = [op for op in auto if auto[op] == "ACC"]
    placements = {
        f"{k} parts on CPU": auto.fix(ops=dict.fromkeys(ops[: k * len(ops) // ROWS], "CPU"))
        for k in range(ROWS)
    }
    chosen = [hl.Placement(label=label, affinity=each) for label, each in placements.items()]
    hl.sweep(model, chosen, turns=TURNS, budget_s=900, isolate=False, baselines=False, store=store)


def timed(page: Any, name: str, *tries: tuple[Callable[[], None], str]) -> float:
    """Print and return the median time in ms until each action shows its title."""
    times = []
    for act, title in tries:
        page.evaluate(TIMED, [BOX, title])
        act()
        times.append(page.evaluate("() => window.timed"))
        page.wait_for_timeout(600)
    middle = statistics.median(times)
    print(f"{name:<22} median {middle:6.0f} ms, longest {max(times):6.0f} ms", flush=True)
    return middle


def explored(page: Any) -> tuple[float, float]:
    """Return the longest medians of choices and filters, and of tabs."""
    page.wait_for_selector(f"{BOX} .gtitle:has-text('parts on CPU')")

    def row(k: int) -> tuple[Callable[[], None], str]:
        label = f"{k} parts on CPU"
        return page.locator(f"{BOX} tr[data-label='{label}']").click, f"on {label}"

    def tab(name: str, title: str) -> tuple[Callable[[], None], str]:
        return page.locator(f"{BOX} .lm-TabBar-tab:has-text('{name}')").click, title

    def only(text: str, n: int) -> tuple[Callable[[], None], str]:
        def enter() -> None:
            field.fill(text)
            field.press("Enter")

        field = page.locator(f"{BOX} .widget-text input").first
        return enter, f"{n} of {ROWS} measured"

    page.wait_for_timeout(IDLE_MS)
    graphs = timed(page, "a choice, with graph", *map(row, (13, 14, 22, 16, 19, 21)))
    tabs = (tab("Timeline", "Timeline of"), tab("Counters", "by op type"))
    first = timed(page, "a tab, first time", *tabs)
    again = timed(page, "a tab, again", *tabs, tab("Graph", "on 21"), *tabs)
    filters = timed(page, "a filter", *(only(f"rank<={n}", n) for n in (12, 3, 20, 7)))
    return max(graphs, filters), max(first, again)


def main() -> int:
    """Print a line a kind of action; return 1 if one takes too long."""
    given = options(__doc__, store=Path)
    with tempfile.TemporaryDirectory() as scratch:
        directory, home = Path(scratch) / "notebooks", Path(scratch) / "home"
        directory.mkdir()
        home.mkdir()
        store = (given.store or Path(scratch) / "sweep").resolve()
        if not store.exists():
            measured(store)
        cells = (
            f"import hetero_lab as hl\nsweep = hl.read_sweep({str(store)!r})",
            "explorer = hl.SweepExplorer(sweep)\nexplorer",
        )
        write_notebook(directory / "explore.ipynb", cells)
        with (
            running_lab(directory, home) as lab,
            running_browser() as browser,
            opened(browser, lab, "explore.ipynb", (1440, 1700)) as notebook,
        ):
            notebook.run_all()
            choice, tab = explored(notebook.page)
    return int(choice > CHOICE_MS or tab > TAB_MS)


if __name__ == "__main__":
    sys.exit(main())
