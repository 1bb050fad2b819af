"""The widget in this process: what Python and the browser's messages do to it."""

from __future__ import annotations

import random
import re
import time
from dataclasses import replace

import pytest
from hand_costs import flat_costs
from planning.random_costs import random_costs
from small_models import chain, stateful

import hetero_lab as hl
from hetero_lab.costs.objective import Unit
from hetero_lab.errors import AffinityError, ArgumentError, DeviceError, PlanError, PropertyError
from hetero_lab.intervals import Estimate
from hetero_lab.measure.worker_process import WORKER
from hetero_lab.model.read import prepare
from hetero_lab.processes import FORK_SERVER
from hetero_lab.tables import read_csv
from hetero_lab.widgets.tweaker.tweaker_measurement import Attempt, attempt_label
from hetero_lab.widgets.tweaker.tweaker_view import ABOVE, FILES, PANEL, estimate_text
from tests.debug.cases import chain_case
from tests.proof import injected_faults
from tests.proof.faults import Fault

SOFT = "head_digit/softmax"


@pytest.fixture
def model():
    hl.emulate("ACC", unsupported={"Concat", "MaxPool", "Softmax"})
    return hl.load("digits_inception")


@pytest.fixture
def tweaker(model):
    return hl.AffinityTweaker(model, ["ACC", "CPU"], budget_s=3)


def message(tweaker):
    return "".join(shown.value for shown in tweaker.view.controls.messages.values())


def place(tweaker, name):
    return tweaker.view.picture.place_of[name]


def wait_until(is_so):
    until = time.monotonic() + 200
    while not is_so() and time.monotonic() < until:
        time.sleep(0.05)
    assert is_so()


def test_it_opens_with_the_automatic_placement(tweaker, model):
    automatic = hl.Affinity.automatic(model, "HETERO:ACC,CPU")
    assert tweaker.affinity == automatic
    assert tweaker.what_if.n_subgraphs == hl.partition(model, automatic).n_subgraphs
    first, *others = hl.lint(model, automatic)["rule"]
    assert first == "many-subgraphs"  # takes too long for each change: the button says it
    assert list(tweaker.findings["rule"]) == others
    assert len(tweaker.history) == 0
    assert repr(tweaker).startswith("AffinityTweaker(digits_inception on ACC, CPU: 19 subg")
    looks = [(look["device"], look["label"]) for look in tweaker.view.board.palette]
    assert looks == [("ACC", "ACC (emulated on CPU)"), ("CPU", "CPU")]


def click(board, number, *places):
    """Click as the browser does: a message and a change, which may come later than others."""
    clicked = {"click": number, "places": list(places)}
    board._handle_custom_msg({"do": "select", **clicked}, [])
    return lambda: setattr(board, "clicked", clicked)


def test_a_click_comes_as_a_message_and_as_a_change_and_counts_once(tweaker):
    board, conv, relu = tweaker.view.board, "stem/conv", "stem/relu"
    change = click(board, "first", place(tweaker, conv))
    tweaker.selection = [relu]  # or a button: both are later than the click
    change()
    assert tweaker.selection == (relu,)
    board.clicked = {"click": "second", "places": [place(tweaker, conv)]}  # a host without messages
    assert tweaker.selection == (conv,)
    assert board.taken == "second"
    click(board, "third")
    assert tweaker.selection == ()


def test_a_click_in_the_browser_selects_and_a_button_moves(tweaker):
    board, controls = tweaker.view.board, tweaker.view.controls
    name = "mixed1/branch1x1/conv"
    click(board, "first", place(tweaker, name), -1, 10**9)
    assert (board.selected, board.taken) == ([place(tweaker, name)], "first")
    assert tweaker.selection == (name,)
    assert not controls.devices["CPU"].disabled
    before = tweaker.view.summary.numbers
    controls.devices["CPU"].click()
    assert tweaker.affinity[name] == "CPU"
    assert board.placed["devices"][place(tweaker, name)] == 1
    assert tweaker.view.summary.numbers != before
    controls.undo.click()
    assert tweaker.affinity[name] == "ACC"
    assert (controls.undo.disabled, controls.redo.disabled) == (True, False)
    for do, device in (("redo", "CPU"), ("undo", "ACC")):  # keys
        board._handle_custom_msg({"do": do}, [])
        assert tweaker.affinity[name] == device


def test_python_moves_the_widget(tweaker, model):
    tweaker.affinity = hl.Affinity.uniform(model, "CPU")
    board = tweaker.view.board
    assert set(board.placed["devices"]) == {1}
    assert set(board.placed["subgraphs"]) == {0}
    tweaker.selection = [SOFT]
    assert board.selected == [place(tweaker, SOFT)]
    controls, note = tweaker.view.controls, tweaker.view.controls.cut_note
    assert (controls.cut.value, note.value) == (0, "")  # the slider follows what was no cut
    tweaker.cut(30)
    assert (controls.cut.value, controls.cut_devices) == (30, ("ACC", "CPU"))
    tweaker.cut(30, "CPU", "ACC")
    assert (controls.cut.value, controls.cut_devices) == (30, ("CPU", "ACC"))
    tweaker.undo()
    assert controls.cut_devices == ("CPU", "ACC")
    tweaker.cut(30, "ACC", "CPU")
    tweaker.selection = ["stem/conv"]
    tweaker.assign("CPU")
    assert note.value == "1 op not as in this cut"
    assert tweaker.view.controls.by_subgraph.options[1][1] == 0


def test_dropdowns_and_slider(tweaker):
    controls = tweaker.view.controls
    controls.by_type.value = "MaxPool"
    assert {name.rpartition("/")[2] for name in tweaker.selection} == {"maxpool"}
    assert controls.by_type.value == ""  # so that the same type can be chosen again
    assert controls.devices["ACC"].disabled
    controls.cut.value = 40
    ops = tweaker.affinity.ops
    assert tweaker.affinity[ops[0]] == "ACC"
    assert tweaker.affinity[ops[-1]] == "CPU"
    controls.before.value = "CPU"
    assert set(tweaker.affinity.devices) == {"CPU"}


def test_a_button_moves_the_ops_that_can(tweaker):
    controls = tweaker.view.controls
    tweaker.select(pattern="^head_digit")
    tweaker.assign("CPU")
    acc = controls.devices["ACC"]
    assert f"ACC does not support 1 of the 3 selected ops: &#x27;{SOFT}" in controls.selection.value
    assert "→ ACC moves the other 2." in controls.selection.value
    with pytest.raises(DeviceError, match="1 of the 3 selected ops"):
        tweaker.assign("ACC")
    acc.click()
    assert [tweaker.affinity[op] for op in tweaker.selection] == ["ACC", "ACC", "CPU"]


def test_errors_are_messages_beside_their_buttons_and_nothing_changes(tweaker):
    controls, before = tweaker.view.controls, tweaker.affinity
    tweaker.selection = [SOFT]

    def says(text, at=ABOVE):
        shown = {place: message.value for place, message in controls.messages.items()}
        assert text in shown.pop(at)
        assert set(shown.values()) == {""}

    controls.pattern.value = "<i>nothing"
    says("matches no op")
    says("&lt;i&gt;nothing")
    controls.devices["ACC"].click()
    says("ACC does not support this op: &#x27;head_digit/softmax&#x27;.")
    assert controls.suggest.disabled
    assert "hetero_lab.calibrate" in controls.suggest.tooltip
    controls.suggest.click()
    says("hetero_lab.calibrate")
    controls.path.value = "no/such/file.json"
    controls.load.click()
    says("no/such/file.json", FILES)
    controls.path.value = " "
    controls.export.click()
    says("Write a path", FILES)
    tweaker.view.look()
    tweaker.view.panel._handle_custom_msg({"do": "fix", "index": 99}, [])
    says("No finding has the number 99", PANEL)
    tweaker.view.summary._handle_custom_msg({"do": "return", "index": 7}, [])
    says("No measurement has the number 7")
    assert tweaker.affinity is before
    assert tweaker.selection == (SOFT,)
    controls.clear.click()
    says("")
    assert message(tweaker) == ""


def test_the_board_knows_shapes_and_attributes(tweaker):
    node = tweaker.view.board.picture["nodes"][place(tweaker, "stem/conv")]
    assert re.fullmatch(r"f32 \[1, .* from enlarge", node["inputs"][0])
    assert dict(node["attributes"])["strides"]
    (out,) = node["outputs"]
    assert re.fullmatch(r"f32 \[1, .*B", out)


def test_rows_of_the_history_say_what_changed(tweaker):
    tweaker.cut(0, "ACC", "CPU")
    cpu = tweaker.affinity
    first = Attempt(attempt_label([], cpu, tweaker.state.step.label), cpu)
    again = Attempt(attempt_label([first], cpu, "back to 1. all to CPU"), cpu)
    tweaker.selection = ["stem/conv"]
    tweaker.assign("ACC")
    third = attempt_label([first, again], tweaker.affinity, tweaker.state.step.label)
    assert [first.label, again.label, third] == [
        "1. all to CPU", "1. all to CPU, again", "2. stem/conv to ACC",
    ]  # fmt: skip
    tweaker.cut(0, "CPU", "ACC")
    assert re.fullmatch(r"all but \d+ to ACC", tweaker.state.step.label)


def test_findings_follow_a_moment_later_and_can_be_selected_and_applied(tweaker):
    panel, was_looking = tweaker.view.panel, []
    tweaker.view.look()
    panel.observe(lambda change: was_looking.append(change["old"]), "is_looking")
    tweaker.select(op_type="Relu")
    tweaker.assign("CPU")  # apart from their convolutions
    wait_until(lambda: was_looking == [False, True])
    assert panel.n_findings == len(tweaker.findings)
    assert panel.findings[0]["finding"]
    row = next(i for i, remedy in enumerate(tweaker.findings["remedy"]) if remedy)
    finding = tweaker.findings.iloc[row]
    tweaker.select_finding(row)
    assert set(tweaker.selection) <= set(finding["ops"])
    tweaker.apply(row)
    assert all(tweaker.affinity[op] == d for op, d in finding["remedy"].items())
    with pytest.raises(ArgumentError, match="has the number 99"):
        tweaker.apply(99)


def test_files(tmp_path):
    hl.emulate("ACC")
    tweaker = hl.AffinityTweaker(chain("a", "b"), ["ACC", "CPU"])
    tweaker.select(ops=["a"])
    tweaker.assign("CPU")
    mine, controls = tweaker.affinity, tweaker.view.controls
    for kind, name in (("affinity, JSON", "a.json"), ("affinity, CSV", "a.csv")):
        controls.export_kind.value = kind
        controls.path.value = str(tmp_path / "a")
        controls.export.click()
        assert f"Written: {tmp_path / name}" in message(tweaker)
        tweaker.undo()
        tweaker.load(tmp_path / name)
        assert tweaker.affinity == mine
    frozen = tweaker.freeze(tmp_path / "frozen", tolerance=None)
    assert (frozen / "run.py").exists()


@pytest.mark.parametrize(
    ("path", "says"),
    [("/", "/ is a directory"), ("..", ".. is a directory"), ("a\0b", "embedded null")],
)
def test_paths_that_cannot_be_written_are_messages(tweaker, tmp_path, monkeypatch, path, says):
    monkeypatch.chdir(tmp_path)
    controls = tweaker.view.controls
    for kind in ("affinity, JSON", "affinity, CSV", "history, CSV"):
        controls.export_kind.value, controls.path.value = kind, path
        controls.say("")
        controls.export.click()
        assert says in message(tweaker)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "options", "error", "says"),
    [
        ((["ACC", "NOPE"],), {}, ArgumentError, "'NOPE' is not a device here"),
        ((["ACC"],), {}, ArgumentError, "does not support"),
        ((["ACC", "CPU"], 3), {}, ArgumentError, r"not 3 \(int\)"),
        ((["CPU"],), {"device_properties": {"CPU": {"NOPE": 1}}}, PropertyError, "NOPE"),
        ((["CPU"],), {"budget_s": None}, ArgumentError, "how many seconds Measure may take"),
        ((["CPU"],), {"budget_s": 0}, ArgumentError, "more than 0 seconds"),
        ((["CPU"],), {"wrong": "GPU"}, ArgumentError, r"\.find_wrong\(model, placement\) returns"),
    ],
)
def test_what_cannot_be_opened(model, arguments, options, error, says):
    with pytest.raises(error, match=says):
        hl.AffinityTweaker(model, *arguments, **options)


def test_what_is_of_another_model_is_refused(model, tweaker, tmp_path):
    other = prepare(stateful()).graph
    costs = random_costs(random.Random(0), other, ["ACC", "CPU"])
    with pytest.raises(PlanError, match="another model"):
        hl.AffinityTweaker(model, ["ACC", "CPU"], costs)
    with pytest.raises(AffinityError, match="another model"):
        hl.AffinityTweaker(model, ["ACC", "CPU"], wrong=injected_faults.search(chain_case()))
    before = tweaker.affinity
    hl.Affinity.from_graph(other, lambda _: "CPU").to_json(tmp_path / "other.json")
    with pytest.raises(AffinityError, match="another model"):
        tweaker.load(tmp_path / "other.json")
    assert tweaker.affinity is before


@pytest.mark.slow
def test_measure_suggest_and_return(model, tmp_path):
    prepared = prepare(model)
    costs = random_costs(random.Random(0), prepared.graph, ["ACC", "CPU"], forbidden=0.0)
    tweaker = hl.AffinityTweaker(model, ["ACC", "CPU"], costs, budget_s=3600)
    automatic = tweaker.affinity
    tweaker.select(pattern="^mixed1")
    tweaker.assign("CPU")
    mine = tweaker.affinity
    tweaker.measure()
    history = tweaker.history
    assert list(history["label"]) == ["automatic", "1. 20 ops to CPU"]
    assert list(history["status"]) == ["ok", "ok"]
    assert (history["ci95_low_us"] <= history["median_us"]).all()
    assert (history["median_us"] <= history["ci95_high_us"]).all()
    assert list(history["n_subgraphs"]) == [19, 17]
    assert history["predicted_us"][1] == pytest.approx(costs.predict_us(mine))
    assert [row["is_here"] for row in tweaker.view.summary.tried] == [False, True]
    tweaker.view.summary._handle_custom_msg({"do": "return", "index": 0}, [])
    assert tweaker.affinity == automatic
    with pytest.raises(DeviceError, match="ACC does not support"):
        tweaker.suggest()  # these costs know nothing of what ACC lacks
    assert "ACC does not support" in message(tweaker)
    assert tweaker.affinity == automatic
    tweaker.history_to_csv(tmp_path / "history.csv")
    assert list(read_csv(tmp_path / "history.csv")["label"]) == list(history["label"])


@pytest.mark.slow
def test_cancel_ends_the_workers_at_once(model):
    import psutil

    assert FORK_SERVER.is_ready(WORKER, 60.0)  # it stays
    others = set(psutil.Process().children(recursive=True))  # a browser of other tests, perhaps
    tweaker = hl.AffinityTweaker(model, ["ACC", "CPU"], budget_s=3600)
    tweaker.measure(wait=False)
    with pytest.raises(hl.HeteroLabError, match="still running"):
        tweaker.measure()

    def started():
        return set(psutil.Process().children(recursive=True)) - others

    wait_until(started)
    tweaker.cancel()
    tweaker.background.wait()
    wait_until(lambda: not started())  # a server ends behind its last worker
    assert "Cancelled" in message(tweaker)
    assert len(tweaker.history) == 0
    assert not tweaker.view.controls.measure.disabled


def test_wrong_ops_are_marked_until_they_are_torn_apart():
    case = chain_case(Fault(frozenset({"shift", "sigmoid"}), "sigmoid"))
    wrong = injected_faults.search(case)
    tweaker = hl.AffinityTweaker(case.prepared.model, ["ACC", "CPU"], wrong=wrong)
    board = tweaker.view.board
    marks = [
        [place(tweaker, "shift"), "wrong numbers on ACC together with 'sigmoid'"],
        [place(tweaker, "sigmoid"), "wrong numbers on ACC together with 'shift'"],
    ]
    assert board.placed["wrong"] == marks
    finding = tweaker.findings.iloc[0]
    assert (finding["rule"], finding["severity"]) == ("wrong-numbers", "error")
    assert finding["remedy"] == wrong.fix
    assert "wrong only together" in finding["finding"]
    tweaker.apply(0)
    assert tweaker.affinity == wrong.affinity
    assert board.placed["wrong"] == []
    assert "wrong-numbers" not in list(tweaker.findings["rule"])
    tweaker.undo()
    assert board.placed["wrong"] == marks
    # What else moves changes nothing.
    tweaker.select(ops=["tanh"])
    tweaker.assign("CPU")
    assert board.placed["wrong"] == marks


def test_causes_and_consequences_are_marked(tweaker):
    before = "head_digit/bias"
    tweaker.select(ops=[before])
    tweaker.assign("CPU")
    displaced = tweaker.view.board.placed["displaced"]
    assert [place(tweaker, SOFT), "cause", "ACC cannot run it"] in displaced
    ((index, text),) = [(at, text) for at, kind, text in displaced if kind == "consequence"]
    assert index == place(tweaker, before)
    assert SOFT in text


def test_a_remedy_needs_a_device_of_the_tweaker():
    case = chain_case(Fault(frozenset({"tanh"}), "tanh"))
    wrong = injected_faults.search(case)
    tweaker = hl.AffinityTweaker(case.prepared.model, ["ACC"], wrong=wrong)
    assert tweaker.findings.iloc[0]["remedy"] == {"tanh": "CPU"}
    with pytest.raises(DeviceError, match="does not know 'CPU'"):
        tweaker.apply(0)


def test_without_costs_the_panel_says_what_they_would_tell():
    hl.emulate("ACC")
    prepared = prepare(chain("a", "b"))
    note = hl.AffinityTweaker(prepared, ["ACC", "CPU"]).view.summary.note
    assert note.startswith("With costs= of hetero_lab.calibrate()")
    unit = Unit(("a", "b"), (3.0, 5.0), (1.0, 0.0))
    costs = replace(flat_costs(prepared.graph), units=(unit,))
    view = hl.AffinityTweaker(prepared, ["ACC", "CPU"], costs).view
    assert view.summary.note == ""
    # A fused op names the op that has its time.
    picture = view.board.picture
    shown = {node["name"]: (node["us"], node["fused"]) for node in picture["nodes"]}
    assert (shown["a"], shown["b"]) == (([3.0, 5.0], ""), ([0.0, 0.0], "a"))


def test_the_three_numbers_of_an_estimate_have_one_unit():
    assert estimate_text(Estimate(-587.0, -1180.0, 9.77)) == "-0.59 ms  [-1.18, 0.01]"
    assert estimate_text(Estimate(-587.0, -913.0, 9.77)) == "-587 µs  [-913, 9.77]"
