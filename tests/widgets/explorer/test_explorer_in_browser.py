"""The sweep explorer in a real JupyterLab and a real browser, with real clicks."""

from __future__ import annotations

from pathlib import Path

import pytest
from views.hand_made import NASTY
from widgets.jupyter_in_browser import DARK, LIGHT, ran

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

MEASURE = (
    "import hetero_lab as hl\n"
    "acc = hl.emulate('ACC', unsupported={'Concat', 'MaxPool', 'Softmax'})\n"
    "model = hl.load('digits_inception')",
    "sweep = hl.sweep(model, ['HETERO:ACC,CPU', 'CPU'], turns=3, isolate=False,\n"
    "    baselines=False, progress=False, store='stored')",
)
EXPLORE = (
    "import hetero_lab as hl\nexplorer = hl.SweepExplorer(hl.read_sweep('stored'))",
    "explorer",
)


def by_hand(call: str) -> tuple[str, ...]:
    """Return cells that explore a sweep which the tests make by hand."""
    tests = str(Path(__file__).parents[2])
    return (
        f"import sys\nsys.path.insert(0, {tests!r})\nfrom widgets.hand_sweeps import *\n"
        "import hetero_lab as hl",
        f"explorer = hl.SweepExplorer({call})\nexplorer",
    )


class Explorer:
    """The widget on a page, as a person sees it."""

    def __init__(self, notebook):
        self.notebook = notebook
        self.page = notebook.page
        self.page.wait_for_selector(".hetero-lab-explorer")

    def control(self, label: str):
        return self.page.locator(
            f".hetero-lab-explorer .widget-inline-hbox:has(> label:text-is('{label}'))"
        ).locator("select, input")

    def enter(self, label: str, text: str) -> None:
        self.control(label).fill(text)
        self.control(label).press("Enter")

    def figure(self, title: str):
        """Wait for the figure whose title has this text."""
        found = self.page.locator(f".js-plotly-plot:has(.gtitle:has-text('{title}'))")
        found.first.wait_for(state="visible")
        return found.first

    def click_point(self, figure, trace: int, point: int) -> None:
        """Click on the middle of a mark, with the mouse."""
        marks = figure.locator(".scatterlayer .trace").nth(trace).locator(".points path.point")
        box = marks.nth(point).bounding_box()
        self.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        self.page.wait_for_timeout(150)
        self.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    def row(self, label: str):
        return self.page.locator(f".hlx-rows tr[data-label='{label}']")

    def show(self, label: str) -> None:
        """Click on a row, whose graph is then shown."""
        self.row(label).click()
        self.figure(f"on {label}")

    def tab(self, name: str) -> None:
        self.page.locator(f".hetero-lab-explorer .lm-TabBar-tab:has-text('{name}')").click()

    def says(self, text: str) -> None:
        self.page.wait_for_selector(f".hlx-message:has-text('{text}')")


def test_a_stored_sweep_is_explored_with_clicks(lab, browser):
    with ran(browser, lab, MEASURE):
        pass
    with ran(browser, lab, EXPLORE) as notebook:
        explorer = Explorer(notebook)
        assert notebook.barriers(".hetero-lab-explorer") == []
        points = explorer.figure("of 2 measured placements")
        # A click on a point, or on a row, shows its placement in the same figure.
        figures = explorer.page.locator(".js-plotly-plot").count()
        explorer.click_point(points, 1, 0)
        explorer.figure("on CPU ")
        explorer.show("HETERO:ACC,CPU")
        notebook.picture("explorer_light")
        # The same by keyboard, through the buttons of the rows.
        explorer.row("CPU").locator("input").first.focus()
        explorer.page.keyboard.press("Space")
        explorer.figure("on CPU ")
        explorer.show("HETERO:ACC,CPU")
        assert explorer.page.locator(".js-plotly-plot").count() == figures == 2
        # A heading sorts, and the other way at a second click.
        for labels in (["CPU", "HETERO:ACC,CPU"], ["HETERO:ACC,CPU", "CPU"]):
            explorer.page.get_by_role("button", name="subgraphs").click()
            found = explorer.page.locator(".hlx-rows tbody tr").all()
            assert [row.get_attribute("data-label") for row in found] == labels
        explorer.tab("Timeline")
        explorer.figure("Timeline of HETERO:ACC,CPU")
        explorer.tab("Counters")
        explorer.figure("Time by op type")
        assert explorer.page.locator("table.hetero-lab:has-text('Convolution')").count()
        explorer.tab("Compare A and B")
        explorer.says("Choose two different placements")
        explorer.row("CPU").click(modifiers=["Shift"])
        explorer.page.wait_for_selector("table.hetero-lab caption:has-text('Ops that move')")
        notebook.theme(DARK)
        notebook.picture("explorer_dark")
        notebook.theme(LIGHT)
        # Filters and axes.
        explorer.enter("filter", "acc subgraphs>1")
        explorer.figure("1 of 2 measured placements")
        explorer.enter("filter", "no such placement")
        explorer.says("1 of 2 are still shown")
        explorer.figure("1 of 2 measured placements")
        explorer.control("across").select_option(label="boundary (bytes)")
        explorer.page.wait_for_selector(".xtitle:has-text('boundary (bytes)')")


def test_names_with_markup_are_text(lab, browser):
    with ran(browser, lab, by_hand(f"small_sweep(nasty={NASTY[1]!r})")) as notebook:
        explorer = Explorer(notebook)
        explorer.figure("</script><img src=x")
        explorer.tab("Counters")
        explorer.page.wait_for_selector("table.hetero-lab td:has-text('onerror=alert(1)')")
        explorer.row("CPU").locator("input").nth(1).click()
        explorer.tab("Compare A and B")
        explorer.page.wait_for_selector("table.hetero-lab caption:has-text('Ops that move')")
        assert explorer.page.locator(".hetero-lab-explorer img").count() == 0


def test_a_graph_of_thousands_of_ops_is_opened_by_clicks(lab, browser):
    with ran(browser, lab, by_hand("big_sweep(2000)")) as notebook:
        explorer = Explorer(notebook)
        graph = explorer.figure("transformer on big")
        explorer.page.wait_for_selector(".gtitle-subtitle:has-text('ops are folded into')")
        before = graph.locator(".points path.point").count()
        graph.scroll_into_view_if_needed()
        explorer.click_point(graph, trace_of(graph, "layers.3"), 3)
        explorer.page.wait_for_function(
            "n => document.querySelectorAll('.hlx-graph .points path.point').length > n", arg=before
        )
        explorer.enter("around op", "model/layers.7/attention/scores/Softmax")
        explorer.page.wait_for_selector(".gtitle-subtitle:has-text('2 hops')")
        explorer.enter("around op", "model/layers.7/no such op")
        explorer.says("is not in the graph")


def trace_of(graph, text: str) -> int:
    """Return which trace of a figure has this text beside one of its marks."""
    traces = graph.locator(".scatterlayer .trace")
    said = [traces.nth(i).text_content() or "" for i in range(traces.count())]
    return next(i for i, words in enumerate(said) if text in words)
