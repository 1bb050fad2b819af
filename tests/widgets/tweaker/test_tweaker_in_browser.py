"""The affinity tweaker in a real JupyterLab and a real browser, with real clicks."""

from __future__ import annotations

import itertools
import json
import re
import time
from pathlib import Path

import openvino as ov
import pytest
from widgets.jupyter_in_browser import DARK, LIGHT, STEP_S, ran

from tests.debug.cases import chain_case
from tests.proof import injected_faults
from tests.proof.faults import Fault

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

RECORDED = Path(__file__).parents[3] / "datasets" / "recordings" / "digits_inception_emulated"
CELLS = (
    "import hetero_lab as hl\n"
    "acc = hl.emulate('ACC', unsupported={'Concat', 'MaxPool', 'Softmax'})\n"
    "model = hl.load('digits_inception')",
    f"costs = hl.CostModel.from_json({str(RECORDED / 'costs.json')!r})",
    "tweaker = hl.AffinityTweaker(model, ['ACC', 'CPU'], costs, budget_s=3600)\ntweaker",
)
FAULTY = Path(__file__).parents[2] / "measure" / "faulty_worker.py"


class Tweaker:
    """The widget on a page, as a person sees it."""

    def __init__(self, notebook):
        self.notebook = notebook
        self.page = notebook.page
        self.page.wait_for_selector(".hl-board [data-op]")

    def node(self, name):
        place = self.row(name).get_attribute("data-op")
        return self.page.locator(f".hl-graph [data-op='{place}']")

    def row(self, name):
        return self.page.locator(".hl-board tbody tr").filter(
            has=self.page.locator(f"td[title='{name}']")
        )

    def device(self, name):
        return self.node(name).get_attribute("data-device")

    def button(self, text):
        # By its text: an icon puts a character of its own into the accessible name.
        return self.page.locator(f"button:text-is('{text}')")

    def press(self, text):
        self.button(text).click()

    def number(self, key):
        return self.page.locator(f".hl-panel tr[data-hl='{key}'] .hl-now").inner_text()

    def zoom(self):
        return self.page.locator(".hl-graph [data-hl='stage']").get_attribute("transform")

    def selected(self):
        rows = self.page.locator(".hl-board tbody tr[aria-selected='true'] td:first-child")
        return rows.all_inner_texts()

    def python_selection(self):
        return set(json.loads(self.python("import json; print(json.dumps(tweaker.selection))")))

    def say(self, text):
        self.page.wait_for_selector(f".hl-message:has-text('{text}')")

    def reads(self, part, text):
        """Wait until a part of the widget contains a text: the kernel writes it after a click."""
        self.until(self.page.locator(part).inner_text, lambda now: text in now)

    def select(self, name):
        """Click on an op of the graph alone, which its row shows."""
        self.node(name).click()
        self.until(self.selected, lambda names: names == [name])

    def move(self, name, device):
        self.select(name)
        self.press(f"→ {device}")
        self.until(lambda: self.device(name), lambda now: now == device)

    def with_file(self, path, button):
        self.page.locator(".widget-text input").last.fill(path)
        self.press(button)

    def until(self, what, is_right):
        """Wait until a number of the widget is right; return it."""
        until = time.monotonic() + STEP_S
        while not is_right(value := what()):
            assert time.monotonic() < until, f"it stays {value!r}"
            self.page.wait_for_timeout(100)
        return value

    def python(self, code):
        """Run code in the notebook's kernel; return what it prints."""
        return self.page.evaluate(
            """async code => {
                const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
                const future = kernel.requestExecute({ code });
                let said = "";
                future.onIOPub = message => {
                    if (message.header.msg_type === "stream") said += message.content.text;
                    if (message.header.msg_type === "error")
                        said += message.content.traceback.join("\\n");
                };
                await future.done;
                return said.trim();
            }""",
            code,
        )


@pytest.fixture(scope="module")
def notebook(lab, browser):
    with ran(browser, lab, CELLS) as page:
        yield page


@pytest.fixture
def tweaker(notebook):
    shown = Tweaker(notebook)
    # A click may still be on its way, and would come after what is set here.
    shown.until(shown.python_selection, lambda names: names == set(shown.selected()))
    shown.python(
        "tweaker.affinity = tweaker.tried[0].affinity if tweaker.tried else hl.Affinity."
        "automatic(model, 'HETERO:ACC,CPU'); tweaker.selection = []"
    )
    shown.until(shown.selected, lambda names: names == [])
    return shown


def test_click_change_measure_undo_export(tweaker, lab):
    before, zoom, conv = tweaker.number("predicted"), tweaker.zoom(), "mixed1/branch1x1/conv"
    assert tweaker.device(conv) == "ACC"
    tweaker.move(conv, "CPU")
    after = tweaker.until(lambda: tweaker.number("predicted"), lambda text: text != before)
    assert "CPU" in tweaker.row(conv).inner_text()
    assert tweaker.zoom() == zoom
    device, us = tweaker.python(
        f"print(tweaker.affinity[{conv!r}], tweaker.what_if.predicted_us)"
    ).split()
    assert device == "CPU"
    assert after.startswith(f"{float(us) / 1e3:.2f} ms")

    tweaker.press("Measure")
    tweaker.page.wait_for_selector(".widget-hslider")  # the page is not blocked
    rows = tweaker.page.locator(".hl-panel tr[data-hl='tried']")
    tweaker.until(rows.count, lambda n: n == 2)
    assert [rows.nth(i).get_attribute("data-status") for i in range(2)] == ["ok", "ok"]
    assert "automatic" in rows.nth(0).inner_text()
    ratio = r"(\d+\.\d{3})\s+\[(\d+\.\d{3}), (\d+\.\d{3}|inf)\]"
    shown = re.search(ratio, rows.nth(1).inner_text())
    tweaker.say("{} × automatic ({} to {})".format(*shown.groups()))  # the same numbers
    assert rows.nth(1).get_attribute("aria-current") == "true"
    tweaker.notebook.picture("tweaker_measured")

    tweaker.press("Undo")
    tweaker.until(lambda: tweaker.number("predicted"), lambda text: text == before)
    assert tweaker.device(conv) == "ACC"
    # Back to the measured one by a click in the history.
    rows.nth(1).get_by_role("button", name="Return").click()
    tweaker.until(lambda: tweaker.number("predicted"), lambda text: text == after)

    tweaker.with_file("mine", "Export")
    tweaker.say("Written: mine.json")
    nodes = json.loads((lab.directory / "mine.json").read_text())["nodes"]
    assert {row[0]: row[2] for row in nodes}[conv] == "CPU"
    tweaker.notebook.theme(DARK)
    tweaker.notebook.picture("tweaker_dark")
    tweaker.notebook.theme(LIGHT)


def test_every_way_of_selecting(tweaker):
    page = tweaker.page
    # The table, with the keyboard, and the graph shows it.
    first = page.locator(".hl-board tbody tr").first
    first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert tweaker.until(tweaker.selected, bool) == ["stem/conv"]
    assert tweaker.node("stem/conv").get_attribute("aria-selected") == "true"
    # The graph, with the keyboard.
    page.locator(".hl-graph").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+Enter")
    assert tweaker.until(tweaker.selected, lambda n: len(n) == 2) == ["enlarge", "stem/conv"]
    # A name.
    page.get_by_placeholder("part of a name").fill("^mixed1/.*conv$")
    page.keyboard.press("Enter")
    tweaker.until(tweaker.selected, lambda names: len(names) == 6)
    # An op type and a subgraph.
    selects = page.locator(".widget-dropdown select")
    selects.nth(0).select_option("MaxPool")
    names = tweaker.until(tweaker.selected, lambda n: n and all("maxpool" in o for o in n))
    tweaker.reads(".hl-selection", f"{len(names)} of 92 ops selected")
    tweaker.until(tweaker.button("→ ACC (emulated on CPU)").is_disabled, bool)
    assert tweaker.button("→ CPU").is_enabled()
    n_ops = tweaker.python("print(len(tweaker.what_if.partition.subgraphs[2].ops))")
    selects.nth(1).select_option(label=f"2 · ACC · {n_ops} ops")
    tweaker.until(tweaker.selected, lambda names: len(names) == int(n_ops))
    # Everything after an op.
    tweaker.select("head_digit/matmul")
    tweaker.press("Everything after")
    tweaker.until(tweaker.selected, lambda n: n == ["head_digit/bias", "head_digit/softmax"])


@pytest.mark.parametrize("mode", ["Box", "Lasso"])
def test_around_some_nodes(tweaker, mode):
    page, names = tweaker.page, ["stem/conv", "stem/bias", "stem/relu"]
    tweaker.press(mode)
    boxes = [tweaker.node(name).locator("path").first.bounding_box() for name in names]
    left, right = boxes[0]["x"] - 6, boxes[-1]["x"] + boxes[-1]["width"] + 6
    low, high = boxes[0]["y"] - 6, boxes[0]["y"] + boxes[0]["height"] + 6
    corners = [(left, low), (right, low), (right, high), (left, high)]
    page.mouse.move(*corners[0])
    page.mouse.down()
    for x, y in [corners[2]] if mode == "Box" else [*corners[1:], corners[0]]:
        page.mouse.move(x, y, steps=6)
    page.mouse.up()
    assert tweaker.until(tweaker.selected, bool) == names
    tweaker.press("Pan")


def test_zoom_stays_while_the_cut_moves(tweaker):
    page = tweaker.page
    page.get_by_role("button", name="Zoom in (also Ctrl and the wheel)").click()
    zoom, before = tweaker.zoom(), tweaker.number("subgraphs")
    handle = page.locator(".widget-hslider .noUi-handle")
    handle.focus()
    for _ in range(5):
        page.keyboard.press("PageDown")
    tweaker.until(lambda: tweaker.number("subgraphs"), lambda text: text != before)
    assert tweaker.zoom() == zoom
    tweaker.press("Undo")  # all of the drag at once
    tweaker.until(lambda: tweaker.number("subgraphs"), lambda text: text == before)
    page.get_by_role("button", name="Show everything").click()


@pytest.mark.parametrize("width", [1000, 1440])
def test_clicks_and_a_measurement_move_nothing(tweaker, width):
    page = tweaker.page
    where = lambda: (page.locator(".hl-graph").bounding_box(), tweaker.zoom())  # noqa: E731
    with tweaker.notebook.narrow(width):
        before, bar = where(), page.locator(".widget-hprogress").first
        assert not bar.is_visible()
        tweaker.select("stem/conv")
        assert where() == before
        tweaker.node("mixed1/branch_pool/maxpool").click(modifiers=["Shift"])
        tweaker.until(tweaker.selected, lambda names: len(names) == 2)
        tweaker.reads(".hl-selection", "moves the other 1")
        assert where() == before
        tweaker.press("→ CPU")
        tweaker.until(lambda: tweaker.device("stem/conv"), lambda now: now == "CPU")
        tweaker.press("Measure")
        tweaker.until(bar.is_visible, bool)
        assert where() == before
        tweaker.until(bar.is_visible, lambda shown: not shown)
        row = page.locator(".hl-panel tr[data-hl='tried']").first
        assert row.bounding_box()["y"] < where()[0]["y"]  # beside the button that measures
        assert where() == before


def test_anybody_can_use_it(tweaker):
    tweaker.python("tweaker.select(pattern='.')")  # a text that is scrolled
    tweaker.until(tweaker.selected, lambda names: len(names) > 50)
    assert tweaker.notebook.barriers(".jp-OutputArea-output:has(.hl-board)") == []


# The size and the box of each label that is shown.
LABELS = """texts => texts.filter(t => t.style.display !== 'none').map(t => {
    const box = t.getBoundingClientRect();
    const stage = t.ownerSVGElement.querySelector("[data-hl='stage']");
    const zoom = stage.transform.baseVal.consolidate().matrix.a;
    return [parseFloat(getComputedStyle(t).fontSize) * zoom,
            box.left, box.top, box.right, box.bottom];
})"""


def is_filled(boxes):
    pane, graph = boxes
    return all(graph[side] > 0.85 * pane[side] for side in ("width", "height"))


@pytest.mark.parametrize("width", [1000, 1440])
def test_the_graph_fills_its_pane_with_labels_that_can_be_read(tweaker, width):
    locator = tweaker.page.locator
    with tweaker.notebook.narrow(width):
        tweaker.press("Fit")
        boxes = [locator(f".hl-graph{part}") for part in ("", " g >> nth=0")]
        tweaker.until(lambda: [box.bounding_box() for box in boxes], is_filled)
        seen = tweaker.page.eval_on_selector_all(".hl-graph .hl-node text", LABELS)
    assert min(size for size, *_ in seen) >= 10
    for (_, left, top, right, bottom), (_, x0, y0, x1, y1) in itertools.combinations(seen, 2):
        # The boxes of letters have some room above and below them.
        assert x1 <= left or x0 >= right or y1 <= top + 4 or y0 >= bottom - 4


def test_it_is_fitted_again_unless_it_was_moved_by_hand(tweaker):
    tweaker.press("Fit")
    wide = tweaker.zoom()
    with tweaker.notebook.narrow():
        tweaker.until(tweaker.zoom, lambda now: now != wide)
    tweaker.until(tweaker.zoom, lambda now: now == wide)
    tweaker.page.get_by_role("button", name="Zoom in (also Ctrl and the wheel)").click()
    by_hand = tweaker.zoom()
    with tweaker.notebook.narrow():
        assert tweaker.zoom() == by_hand
    tweaker.press("Fit")


def test_one_op_is_explained_and_can_be_zoomed_to(tweaker):
    page = tweaker.page
    top = page.locator(".hl-board").bounding_box()["y"]
    tweaker.select("stem/conv")
    told = page.locator(".hl-details").inner_text()
    for expected in ("stem/conv", "Convolution", "f32 [1, ", "strides", "pads_begin", "µs on CPU"):
        assert expected in told, told
    title = tweaker.node("stem/conv").locator("title").text_content()
    assert "→ f32 [1, " in title
    assert "µs on ACC" in title
    tweaker.press("Fit selection")
    node = tweaker.node("stem/conv").locator("path").first.bounding_box()
    pane = page.locator(".hl-graph").bounding_box()
    assert node["x"] + node["width"] / 2 == pytest.approx(pane["x"] + pane["width"] / 2, abs=3)
    assert node["y"] + node["height"] / 2 == pytest.approx(pane["y"] + pane["height"] / 2, abs=3)
    assert node["width"] > 20
    tweaker.press("Fit")
    tweaker.python("tweaker.select(pattern='.')")  # a longer text of the selection moves nothing
    tweaker.until(tweaker.selected, lambda names: len(names) > 50)
    assert page.locator(".hl-board").bounding_box()["y"] == top
    tweaker.reads(".hl-details", "Click an op")


def test_ctrl_z_and_messages_beside_their_buttons(tweaker):
    page = tweaker.page
    device = lambda: tweaker.device("stem/conv")  # noqa: E731
    tweaker.move("stem/conv", "CPU")
    page.keyboard.press("Control+z")  # the button has the focus
    tweaker.until(device, lambda now: now == "ACC")
    page.keyboard.press("Control+Shift+z")
    tweaker.until(device, lambda now: now == "CPU")
    page.locator(".hl-graph").focus()
    page.keyboard.press("Control+z")
    tweaker.until(device, lambda now: now == "ACC")
    tweaker.with_file("no/such.json", "Load")
    message = page.locator(".hl-message").bounding_box()
    load = tweaker.button("Load").bounding_box()
    assert 0 <= message["y"] - load["y"] < 60
    page.get_by_placeholder("part of a name").fill("<b>no such op</b>")
    page.keyboard.press("Enter")
    tweaker.say("matches no op")
    assert page.locator(".hl-message").count() == 1
    assert page.locator(".hl-message b").count() == 0
    assert tweaker.selected() == ["stem/conv"]
    beside = tweaker.button("Measure").bounding_box()
    assert 0 <= page.locator(".hl-message").bounding_box()["y"] - beside["y"] < 60
    assert abs(beside["y"] - tweaker.button("→ CPU").bounding_box()["y"]) < 5


def test_a_kernel_that_is_slower_than_clicks_moves_what_was_clicked_last(tweaker):
    first, second, third = "stem/conv", "stem/relu", "mixed1/branch1x1/conv"
    tweaker.select(first)
    tweaker.until(tweaker.button("→ CPU").is_enabled, bool)
    tweaker.python(
        "import time\nslow = lambda _: time.sleep(0.5)\n"
        "tweaker.view.board.observe(slow, 'selected')"
    )
    tweaker.node(second).click()
    tweaker.node(third).click()
    tweaker.press("→ CPU")
    for name in (first, second):
        tweaker.node(name).click(modifiers=["Shift"])
    tweaker.until(lambda: tweaker.device(third), lambda now: now == "CPU")
    assert tweaker.device(second) == tweaker.device(first) == "ACC"
    names = {first, second, third}
    tweaker.until(tweaker.python_selection, lambda known: known == names)
    assert set(tweaker.selected()) == names
    tweaker.python("tweaker.view.board.unobserve(slow, 'selected')")


def test_keys_stay_inside(tweaker):
    page, cells = tweaker.page, tweaker.page.locator(".jp-Notebook .jp-Cell")
    n_cells = cells.count()
    for reach in (tweaker.node("stem/conv").click, tweaker.row("stem/conv").click,
                  tweaker.button("Measure").focus):  # fmt: skip
        reach()
        for key in ("x", "d", "d", "a", "b", "m", "c", "v", "Control+Enter", "Shift+x"):
            page.keyboard.press(key)
    page.wait_for_timeout(300)
    assert cells.count() == n_cells
    assert page.locator(".jp-MarkdownCell").count() == 0


def test_columns_sort_and_shift_takes_a_range(tweaker):
    head = lambda text: tweaker.page.locator(f".hl-board th:has-text('{text}') button").last  # noqa: E731
    rows = tweaker.page.locator(".hl-board tbody tr")
    before = rows.first.inner_text()
    head("CPU").click()
    head("CPU").click()  # the longest first
    cells = [text.split("\t")[-1] for text in rows.all_inner_texts()]
    times = [float(text) for text in cells if "fused" not in text]
    assert times == sorted(times, reverse=True)
    assert cells[: len(times)] == [text for text in cells if "fused" not in text]
    assert cells[-1].startswith("fused into ")
    rows.nth(2).click()
    rows.nth(5).click(modifiers=["Shift"])
    names = rows.locator("td:first-child").all_inner_texts()[2:6]
    assert tweaker.until(tweaker.selected, lambda n: len(n) == 4) == names
    head("CPU").click()  # the model's own order
    assert rows.first.inner_text() == before


def test_colours_by_time(tweaker):
    shape = lambda name: tweaker.node(name).locator("path").first.get_attribute("fill")  # noqa: E731
    by_device = shape("stem/conv")
    tweaker.press("Time")
    assert shape("stem/conv").startswith("rgb(")
    assert shape("stem/relu") == "transparent"  # fused
    tweaker.press("Device")
    assert shape("stem/conv") == by_device


def test_findings_of_one_kind_are_one_line(tweaker):
    tweaker.python("tweaker.select(pattern='/bias$'); tweaker.assign('CPU')")  # tears every fusion
    lines = tweaker.page.locator(".hl-panel [aria-label='Findings'] tbody tr:visible")
    title = tweaker.page.locator(".hl-panel [data-hl='findings']")
    n, n_kinds = map(int, tweaker.until(
        lambda: re.findall(r"\d+", title.inner_text()), lambda found: len(found) == 2))  # fmt: skip
    assert n > 25
    assert lines.count() == n_kinds < 12
    tweaker.page.locator(".hl-panel button[aria-expanded='false']").first.click()
    assert lines.count() > n_kinds
    scroll = "e => e.scrollWidth - e.clientWidth"
    assert tweaker.page.locator(".hl-panel .hl-list").first.evaluate(scroll) == 0


def test_a_hotspot_moves_to_the_device_that_gains(tweaker):
    rows = tweaker.page.locator(".hl-panel tr[data-hl='hotspot']")
    row = rows.filter(has=tweaker.page.locator("button:text-matches('^Move to')")).first
    row.wait_for()

    def chosen():  # the table may still follow the last change
        shown = row.locator("td").nth(1).inner_text().split(" ")[0]
        row.get_by_role("button", name="Select").click()
        return shown, tweaker.until(tweaker.selected, bool)

    name, _ = tweaker.until(chosen, lambda found: found[0] in found[1])
    was, before = tweaker.device(name), tweaker.number("predicted")
    row.get_by_role("button", name="Move to").click()
    tweaker.until(lambda: tweaker.number("predicted"), lambda text: text != before)
    now = tweaker.device(name)
    assert now == tweaker.python(f"print(tweaker.affinity[{name!r}])") != was
    same = rows.filter(has_text=name).first  # the table follows
    tweaker.until(lambda: same.locator("td").nth(2).inner_text(), lambda text: text == now)


def test_setting_it_from_python_moves_the_widget(tweaker):
    n = tweaker.python(
        "tweaker.affinity = hl.Affinity.uniform(model, 'CPU')\n"
        "tweaker.selection = ['stem/conv']\nprint(tweaker.what_if.n_subgraphs)"
    )
    assert n == "1"
    tweaker.until(lambda: tweaker.number("subgraphs"), lambda text: text == "1")
    assert tweaker.device("stem/conv") == "CPU"
    assert tweaker.until(tweaker.selected, bool) == ["stem/conv"]
    crossing = tweaker.page.locator(".hl-graph [data-hl='boundaries']")
    assert crossing.get_attribute("data-count") == "0"


def test_cancel_and_suggest(tweaker):
    rows = tweaker.page.locator(".hl-panel tr[data-hl='tried']").count()
    tweaker.press("Measure")
    tweaker.until(lambda: tweaker.button("Cancel").is_enabled(), bool)
    tweaker.press("Cancel")
    tweaker.say("Cancelled")
    tweaker.until(lambda: tweaker.button("Measure").is_enabled(), bool)
    assert tweaker.page.locator(".hl-panel tr[data-hl='tried']").count() == rows
    tweaker.press("Suggest")
    tweaker.say("The planner predicts")
    # By these costs the CPU alone takes a quarter, and a plan is no worse, however short of time.
    suggested = "tweaker.affinity", "hl.Affinity.uniform(model, 'CPU')", "tweaker.state.automatic"
    plan, alone, automatic = (
        float(tweaker.python(f"print(costs.predict_us({affinity}))")) for affinity in suggested
    )
    assert plan <= alone < 0.5 * automatic


def test_a_crash_is_shown(tweaker):
    tweaker.python(
        "import os, sys\n"
        "os.environ.update(FAULT='signal', FAULT_KEY='every')\n"
        f"tweaker._worker_command = [sys.executable, {str(FAULTY)!r}]"
    )
    tweaker.press("Measure")
    tweaker.say("crashed (signal 11)")
    failed = tweaker.page.locator(".hl-panel tr[data-hl='tried'][data-status^='crashed']")
    assert failed.count() >= 1
    tweaker.python("tweaker._worker_command = None")
    tweaker.until(lambda: tweaker.button("Measure").is_enabled(), bool)


def test_wrong_ops_are_marked_until_they_are_torn_apart(lab, browser):
    case = chain_case(Fault(frozenset({"shift", "sigmoid"}), "sigmoid"))
    injected_faults.search(case).export(lab.directory / "found")
    ov.save_model(case.prepared.model, lab.directory / "chain.xml", compress_to_fp16=False)
    cells = (
        "import hetero_lab as hl\nacc = hl.emulate('ACC')\n"
        "wrong = hl.read_wrong('found')\n"
        "tweaker = hl.AffinityTweaker('chain.xml', ['ACC', 'CPU'], wrong=wrong)\ntweaker"
    )
    with ran(browser, lab, [cells], size=(1500, 1100)) as notebook:
        tweaker = Tweaker(notebook)
        warnings = notebook.page.locator(".hl-graph .hl-node .hl-warning:visible")
        marked = notebook.page.locator(".hl-board tbody tr.hl-wrong td:first-child")
        tweaker.until(warnings.count, lambda n: n == 2)
        assert marked.all_inner_texts() == ["shift", "sigmoid"]
        label = tweaker.node("sigmoid").get_attribute("aria-label")
        assert "wrong numbers on ACC together with 'shift'" in label
        assert notebook.page.locator(".hl-key.hl-wrong").is_visible()
        notebook.page.wait_for_selector(".hl-panel td:has-text('error: wrong-numbers')")
        notebook.picture("tweaker_wrong")
        tweaker.page.locator(".hl-panel button:text-is('Apply')").first.click()
        tweaker.until(warnings.count, lambda n: n == 0)
        assert marked.count() == 0
        assert not notebook.page.locator(".hl-key.hl-wrong").is_visible()


def test_two_views_of_a_board_follow_each_other_with_and_without_a_kernel(lab, browser):
    cells = (
        "import time\nimport hetero_lab as hl\nfrom IPython.display import display\n"
        "tweaker = hl.AffinityTweaker(hl.load('digits_inception'), ['CPU'])\n"
        "board = tweaker.board\nboard.observe(lambda _: time.sleep(0.5), 'selected')\n"
        "display(board, board)"
    )
    with ran(browser, lab, [cells], size=(1500, 1600)) as notebook:
        tweaker = Tweaker(notebook)
        views = [notebook.page.locator(".hl-board").nth(n) for n in (0, 1)]

        def click(view, name):
            views[view].locator(f"tbody tr:has(td[title='{name}'])").click()

        def selected():
            marked = "tbody tr[aria-selected='true'] td:first-child"
            return [view.locator(marked).all_inner_texts() for view in views]

        for view, name in ((0, "stem/conv"), (1, "stem/relu"), (0, "stem/bias")):
            click(view, name)
        tweaker.until(tweaker.python_selection, lambda names: names == {"stem/bias"})
        tweaker.until(selected, lambda names: names == [["stem/bias"]] * 2)
        end = "window.jupyterapp.shell.currentWidget.sessionContext.shutdown()"
        notebook.page.evaluate(end)
        click(1, "stem/conv")
        click(0, "stem/relu")
        tweaker.until(selected, lambda names: names == [["stem/relu"]] * 2)
        assert notebook.errors == []


def test_names_with_markup_are_text(lab, browser):
    tests = str(Path(__file__).parents[2])
    cells = (
        f"import sys\nsys.path.insert(0, {tests!r})\nimport hetero_lab as hl\n"
        "from small_models import NASTY_NAMES, chain\n"
        "tweaker = hl.AffinityTweaker(chain(*NASTY_NAMES), ['CPU'])\ntweaker"
    )
    with ran(browser, lab, [cells], size=(1500, 1100)) as notebook:
        tweaker = Tweaker(notebook)
        shown = notebook.page.locator(".hl-board tbody td:first-child").all_inner_texts()
        assert "<script>alert(1)</script>" in shown
        assert "&amp;{x}%s" in shown
        notebook.page.locator(".hl-board tbody tr").nth(3).click()
        tweaker.until(tweaker.selected, lambda n: n == ["<script>alert(1)</script>"])
        notebook.page.wait_for_selector(".hl-selection:has-text('<script>alert(1)')")
        assert notebook.page.locator(".hl-board script, .hl-panel script").count() == 0
