"""Advice: what is raced, what is measured again and why, and what the answer can do."""

from __future__ import annotations

import contextlib
import html
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from costs.test_difference import chain_costs
from exact_digits import QUICK_RECOVERY, exact_digits
from widgets.hand_sweeps import failed_row, measured_row, small_sweep

import hetero_lab as hl
from hetero_lab.accuracy import recover
from hetero_lab.advise import advise as advising, candidates as choosing
from hetero_lab.advise.advice import Advice, Judged, judge, verdict_sentences
from hetero_lab.advise.candidates import (
    candidates_for,
    choose_finalists,
    compile_times,
    fast_and_accurate,
)
from hetero_lab.cli.main import main
from hetero_lab.devices.core import bind, shared_core
from hetero_lab.devices.devices import precisions
from hetero_lab.errors import DeviceError, MeasurementError
from hetero_lab.intervals import Noise
from hetero_lab.measure import stopping
from hetero_lab.measure.session import Conditions
from hetero_lab.model.read import save
from hetero_lab.placement.priorities import order_of
from hetero_lab.planning.planner import plan_graph
from hetero_lab.progress import Stopwatch
from hetero_lab.results.sweep_row import BUDGET_ENDED
from hetero_lab.runtime.reference import Agreement
from hetero_lab.samples.datasets import read_data
from hetero_lab.search import optimize as optimizing
from hetero_lab.search.observations import searching
from hetero_lab.search.optimize import Optimized


def offered(devices, **changes):
    """Return the placements that are raced for the digits, and why others are not, by label."""
    options = {"requests": 0, "device_properties": {}, "memory_limit": {}}
    bound = bind("digits_inception", shared_core())
    return candidates_for(bound, devices, **{**options, **changes})


def candidates(devices, **changes) -> dict[str, hl.Placement]:
    return offered(devices, **changes)[0]


def interrupt(*_args, **_options):
    raise KeyboardInterrupt


QUICK: dict[str, Any] = {"isolate": False, "progress": False}


@contextlib.contextmanager
def few_turns():
    """What is measured depends on no budget: three turns each, no search, two in the final."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stopping, "LEAST_TURNS", 3)
        patch.setattr(stopping, "_MOST_TURNS", 3)
        patch.setattr(advising, "_SEARCH_LEAST_S", math.inf)
        patch.setattr(choosing, "_MOST", 1)
        yield


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    hl.emulate("ADVACC", unsupported={"Softmax"})
    options = {"store": tmp_path_factory.mktemp("store"), **QUICK}
    return partial(few_turns()(hl.advise), "digits_inception", ["ADVACC", "CPU"], **options)


@pytest.fixture(scope="module")
def advices(asked):
    """The advice of a budget that allows the reference alone, then of one that allows all."""
    return asked(budget_s=0.01), asked(budget_s=3600)


def test_every_candidate_is_judged_and_the_simplest_of_the_fastest_advised(advices, tmp_path):
    _, advice = advices
    assert list(advice.summary["judgement"]).count("best") == 1
    labels = set(advice.summary["label"])
    assert {"CPU", "HETERO:ADVACC,CPU"} <= labels
    chosen = advice.summary.set_index("label").loc[advice.chosen.row.label]
    assert chosen["execution_devices"] == ",".join(advice.best.devices)
    assert "does not support 'head_digit/softmax'" in dict(advice.left_out)["ADVACC"]
    assert advice.verdict.startswith(f"Deploy {advice.best.label}")
    assert (advice.chosen.stage, set(advice.summary["stage"])) == ("final", {"race", "final"})
    last = [c for c in advice.candidates if c.stage == "final"]
    # The simplest stays until another is shown to be faster, which need not be the one advised.
    if advice.chosen != last[0] and last[0].judgement != "slower":
        assert f"{last[0].row.configuration} is simpler, and " in advice.verdict
    hl.views.page(advice, tmp_path / "advice.html")
    text = html.unescape((tmp_path / "advice.html").read_text())
    answer, *_ = advice.verdict.splitlines()
    assert text.count(answer) == 1
    assert text.index(answer) < text.index("Measured on") < text.index("<table")
    assert "What could change the answer" in text.partition("<details>")[2]
    assert html.unescape(advice._repr_html_()).startswith(f'<p style="font-size:1.3em">{answer}')
    advice.export(tmp_path / "tables")
    assert [file.name for file in (tmp_path / "tables").iterdir()] == ["summary.csv"]
    measured = advice.summary.dropna(subset=["ratio", "median_us"])
    level = measured["median_us"] / measured["ratio"]  # of race and final, one scale
    assert level.min() == pytest.approx(level.max())


@pytest.mark.slow
def test_with_data_int8_is_a_candidate_and_accuracy_is_deployed(tmp_path):
    data = hl.dataset("digits")
    few = replace(data, evaluation=data.evaluation[:40], calibration=data.calibration[:20])
    made = few_turns()(hl.advise)("digits_inception", ["CPU"], data=few, budget_s=3600, **QUICK)
    final = made.summary[made.summary["stage"] == "final"].set_index("label")
    assert {"CPU", "CPU · int8"} <= set(final.index)
    assert (final["n_examples"] == 40).all()
    assert "Accuracy" in made.verdict
    directory = made.deploy(tmp_path / "deploy", tolerance=None)
    proven = hl.verify(directory, turns=3, tolerance=1e6)
    assert proven.ok
    assert proven.parts[-1].status == "not checked"
    assert proven.parts[-1].detail.endswith("of 40 examples; data= checks it")
    checked = hl.verify(directory, turns=3, tolerance=1e6, data=few).parts[-1]
    assert (checked.name, checked.status) == ("accuracy", "ok")
    assert '"n_examples": 40' in (directory / "contract.json").read_text()


def turns_kept(store: Path) -> dict[tuple[str, str], dict[tuple[int, int], float]]:
    """Return sweep and label → the turns of each row of all sweeps in a store."""
    return {
        (directory.name, row.label): dict(row.series.ours)
        for directory in store.iterdir()
        if directory.is_dir()
        for row in hl.read_sweep(directory).rows
    }


def test_the_same_call_measures_nothing_that_its_store_has(asked, advices):
    _, advice = advices
    store = asked.keywords["store"]
    before = turns_kept(store)
    assert {directory.partition("-")[0] for directory, _ in before} == {"race", "final"}
    assert all(before.values())
    again = asked(budget_s=3600)
    assert turns_kept(store) == before
    assert {c.row.label for c in advice.candidates} == {c.row.label for c in again.candidates}


def test_too_small_a_budget_says_what_it_needs_and_the_next_call_goes_on(advices):
    hasty, advice = advices
    assert hasty.best.affinity.devices == ("CPU",)
    assert "needs about" in hasty.verdict
    assert all(candidate.row.profile is not None for candidate in advice.candidates)


@pytest.fixture
def always_searching(monkeypatch):
    monkeypatch.setattr(advising, "_SEARCH_LEAST_S", 0.0)
    monkeypatch.setattr(advising, "_SEARCH_COMPILES", 0)


@pytest.mark.usefixtures("always_searching")
def test_interrupted_it_says_what_it_knows(monkeypatch, tmp_path):
    hl.emulate("ADVDSP")
    monkeypatch.setattr(advising, "optimize_bound", interrupt)
    made = hl.advise("digits_inception", ["ADVDSP", "CPU"], budget_s=2, store=tmp_path, **QUICK)
    assert made.interrupted
    assert "Ctrl-C ended it" in made.verdict
    assert {c.stage for c in made.candidates} == {"race"}
    assert hl.read_sweep(tmp_path / "race").rows


@pytest.mark.slow
@pytest.mark.usefixtures("always_searching")
def test_costs_of_an_interrupted_search_are_kept_and_gone_on_with(monkeypatch, tmp_path):
    hl.emulate("ADVACC", unsupported={"Softmax"})
    options: dict[str, Any] = {"budget_s": 20, "store": tmp_path, **QUICK}
    with monkeypatch.context() as at_the_end_of_the_search:
        at_the_end_of_the_search.setattr(optimizing._Optimization, "prove", interrupt)
        made = advising.advise("digits_inception", ["ADVACC", "CPU"], **options)
    assert made.interrupted
    (costs,) = tmp_path.glob("costs-*.json")
    learnt = hl.CostModel.from_json(costs)
    assert not list(tmp_path.glob("optimized-*.json"))
    given = []
    search = advising.optimize_bound

    def watched(*args, **options):
        given.append(options["costs"])
        return search(*args, **options)

    monkeypatch.setattr(advising, "optimize_bound", watched)
    again = advising.advise("digits_inception", ["ADVACC", "CPU"], **options)
    assert [costs.devices for costs in given] == [learnt.devices]
    assert not again.interrupted
    assert len(list(tmp_path.glob("optimized-*.json"))) == 1


@pytest.fixture
def inquiry(tmp_path):
    """Return a function that makes an inquiry, as it is before its search."""
    with contextlib.ExitStack() as stack:

        def made(devices=("CPU",), *, budget_s=None, **changes) -> advising._Advising:
            options: dict[str, Any] = {
                "data": None, "examples": None, "max_drop": 0.01, "objective": "latency",
                "requests": 1, "properties": {}, "memory_limit": {}, "costs": None,
                "conditions": Conditions(isolate=False), "show": False,
            }  # fmt: skip
            bound, watch = bind("digits_inception", shared_core()), Stopwatch.start(budget_s)
            question = advising._Question(devices=devices, **{**options, **changes})
            asked = advising._Advising(question, bound, watch)
            asked.files = advising.KeptFiles(tmp_path, question.of_search(bound))
            asked.search = stack.enter_context(
                searching(bound, question.conditions, watch, show=False)
            )
            asked.placements, asked.began_s = candidates(devices), 0.0
            return asked

        yield made


def test_what_was_searched_with_given_costs_has_their_properties_when_it_is_taken_up_again(
    inquiry,
):
    hint = {"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}
    affinity = hl.Affinity.uniform("digits_inception", "CPU")
    costs = replace(chain_costs(), device_properties=hint)
    assert inquiry(costs=costs).question.properties_of(affinity) == hint
    both = {"CPU": {"EXCLUSIVE_ASYNC_REQUESTS": False, **hint["CPU"]}}
    asked = inquiry(costs=costs, objective="throughput")
    assert asked.question.properties_of(affinity) == both


def test_what_was_searched_for_something_else_is_not_taken_from_the_store(
    monkeypatch, inquiry, tmp_path
):
    hl.emulate("ADVKEPT")
    found = hl.Affinity.uniform("digits_inception", "ADVKEPT")
    interrupted = [True]

    def search(*_args, **_options):
        costs = chain_costs()
        planned = plan_graph(costs.graph, costs)
        best = hl.Placement(found, "optimized")
        return Optimized(
            best, "latency", "", "faster", costs, planned, small_sweep(), (), (), interrupted[0]
        )

    def never(*_args, **_options):
        raise MeasurementError("searched again")

    monkeypatch.setattr(advising, "optimize_bound", search)
    asked = inquiry(("ADVKEPT", "CPU"))
    with pytest.raises(KeyboardInterrupt):
        asked._optimized_placement()
    assert asked.optimized is not None
    assert not list(tmp_path.glob("optimized*"))
    interrupted[0] = False
    assert asked._optimized_placement() is not None
    monkeypatch.setattr(advising, "optimize_bound", never)
    kept = asked._optimized_placement()
    assert kept is not None
    assert kept.affinity == found
    for changes in (
        {"devices": ("CPU", "ADVKEPT")},
        {"objective": "throughput"},
        {"memory_limit": {"ADVKEPT": "1KiB"}},
        {"properties": {"CPU": {"NUM_STREAMS": 2}}},
        {"costs": chain_costs()},
    ):
        other = inquiry(**{"devices": ("ADVKEPT", "CPU"), **changes})
        assert other._optimized_placement() is None
        assert other.notes == ["No placement was searched for: searched again"]


@pytest.mark.slow
def test_int8_is_kept_whole_or_not_at_all_for_the_data_that_it_was_calibrated_with(
    monkeypatch, inquiry, tmp_path
):
    digits = hl.dataset("digits")
    first, second = (
        replace(digits, calibration=digits.calibration[begin : begin + 5]) for begin in (0, 5)
    )

    def broken(model, path):
        save(model, path)
        path.unlink()
        raise RuntimeError("no xml")

    with monkeypatch.context() as at_a_full_disk:
        at_a_full_disk.setattr(advising, "save", broken)
        asked = inquiry(data=first)
        assert set(asked._variants()) == {"int8"}
    assert asked.notes == ["The int8 variant could not be kept in store=: no xml"]
    assert not list(tmp_path.iterdir())
    for data, n_kept in ((first, 1), (second, 2), (first, 2)):
        assert set(inquiry(data=data)._variants()) == {"int8"}
        assert len(list(tmp_path.glob("int8-*.xml"))) == n_kept
        assert len(list(tmp_path.iterdir())) == 2 * n_kept


@pytest.mark.parametrize(
    ("keeping", "pair", "n_looked_at"),
    [
        ({"ADVFAST"}, None, 1),  # the fastest loses nothing
        ({"CPU"}, ("ADVFAST", "CPU"), 2),
        ({"ADVFAST (f32)", "CPU"}, None, 2),  # the same device in f32 is a candidate already
        (set(), None, 3),
    ],
)
def test_which_devices_accuracy_is_recovered_from_and_with(keeping, pair, n_looked_at):
    hl.emulate("ADVFAST")
    fastest_first = ["ADVFAST", *{"ADVFAST (f32)"} & keeping, "CPU", "CPU · 1 thread"]
    looked_at = []

    def keeps(placement):
        looked_at.append(placement.label)
        return placement.label in keeping

    placements = [
        hl.Placement(hl.Affinity.uniform("digits_inception", label.split()[0]), label, direct=True)
        for label in fastest_first
    ]
    assert fast_and_accurate(placements, keeps) == pair
    assert len(looked_at) == n_looked_at


@pytest.fixture
def recovering(monkeypatch, inquiry):
    """Return a function that makes an inquiry where bf16 loses all answers that f32 has right."""
    hl.emulate("ADVBF16", properties={"INFERENCE_PRECISION_HINT": "bf16"})
    hint = {"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}
    data = exact_digits(20)
    for changed in QUICK_RECOVERY:
        monkeypatch.setattr(*changed)
    row = small_sweep().rows[0]
    assert row.profile is not None
    profile = replace(row.profile, agreement=())
    placements = candidates(("ADVBF16", "CPU"), device_properties=hint)

    def made(**changes):
        asked = inquiry(
            ("ADVBF16", "CPU"), budget_s=12.0, data=data, examples=read_data(data),
            properties=hint, **changes
        )  # fmt: skip
        asked.candidates = [
            Judged(measured_row(label, profile, factor), placements[label], asked.bound, "race", "")
            for label, factor in (("CPU", 2.0), ("ADVBF16", 1.0))
        ]
        return asked

    return made


@pytest.mark.slow
@pytest.mark.skipif("bf16" not in precisions("CPU", core=shared_core()), reason="needs bf16")
def test_recovered_accuracy_is_a_candidate(recovering, tmp_path):
    asked = recovering()
    found = asked._recovered_placement()
    (note,) = asked.notes
    assert note.startswith("Accuracy recovered from ADVBF16 with CPU: ")
    # Whether a mix is measured to be faster depends on the machine.
    assert (found is None) == ("keep the whole model" in note)
    if found is not None:
        assert set(found.affinity.devices) == {"ADVBF16", "CPU"}
        assert found.device_properties["CPU"] == asked.question.properties["CPU"]
    (kept,) = tmp_path.glob("recovered-*.json")
    again = recovering()
    assert again._recovered_placement() == found  # from the store
    assert again.notes == []
    kept.unlink()
    hopeless = recovering(max_drop=1.0)
    assert hopeless._recovered_placement() is None  # nothing is lost that is not allowed to be
    assert hopeless.notes == []
    fastest = again.candidates[1]
    equal = replace(
        fastest.row.profile,
        agreement=(Agreement("digit", 0.0, 0.0, 0.0, 1.0, 1.0, "f32", 1e-3, "equal"),),
    )
    again.candidates = [replace(fastest, row=measured_row("ADVBF16", equal))]
    assert again._recovered_placement() is None  # what is f32 already loses nothing
    assert again.notes == []
    assert not list(tmp_path.glob("recovered-*.json"))


@pytest.mark.slow
@pytest.mark.skipif("bf16" not in precisions("CPU", core=shared_core()), reason="needs bf16")
def test_an_interrupted_recovery_goes_on_from_the_costs_that_it_has_learnt(
    recovering, monkeypatch, tmp_path
):
    def calibrated_again(*_args):
        raise MeasurementError("calibrated again")

    with monkeypatch.context() as before_the_proof:
        before_the_proof.setattr(recover._Recovery, "prove", interrupt)
        with pytest.raises(KeyboardInterrupt):
            recovering()._recovered_placement()
    (kept,) = tmp_path.glob("recovered*")
    assert not hl.CostModel.from_json(kept).interrupted
    monkeypatch.setattr(recover, "calibrate_bound", calibrated_again)
    again = recovering()
    again._recovered_placement()
    assert again.notes[0].startswith("Accuracy recovered from ADVBF16 with CPU: ")


@pytest.mark.parametrize(("factor", "judgement"), [(2.5, "undecided"), (3.5, "slower")])
def test_a_single_turn_shows_what_is_hopeless(factor, judgement):
    hl.emulate("ADVFAST")
    placements = candidates(("ADVFAST", "CPU"))
    profile = small_sweep().rows[0].profile
    assert profile is not None
    profile = replace(profile, agreement=())
    row = measured_row("ADVFAST", profile, factor)
    series = replace(row.series, ours={(0, 0): factor * 100.0})
    rows = {"CPU": measured_row("CPU", profile), "ADVFAST": replace(row, series=series)}
    assert rows["ADVFAST"].series.ratio.high == np.inf
    models = dict.fromkeys(rows, bind("digits_inception", shared_core()))
    known = judge(rows, models, placements, stage="race", max_drop=0.01)
    assert [c.judgement for c in known] == ["best", judgement]


def test_accuracy_is_not_recovered_without_labels_or_in_too_short_a_time(inquiry):
    hl.emulate("ADVFAST")
    assert inquiry(("ADVFAST", "CPU"))._recovered_placement() is None
    data = hl.dataset("digits")
    short = inquiry(("ADVFAST", "CPU"), budget_s=10.0, data=data, examples=read_data(data))
    row, placement = small_sweep().rows[0], short.placements["CPU"]
    short.candidates = [Judged(row, placement, short.bound, "race", "best")]
    assert short._recovered_placement() is None
    assert short.notes[0].startswith("The budget was too short to recover accuracy")


def test_what_is_raced_for_latency_and_for_throughput():
    hl.emulate("ADVDSP")
    assert order_of(["CPU", "ADVDSP"], shared_core()) == ("ADVDSP", "CPU")
    for_latency = candidates(("ADVDSP", "CPU"))
    labels = list(for_latency)
    assert labels[0] == "CPU"  # the reference
    # What is compiled soonest is raced first.
    assert all(label.startswith("CPU") for label in labels[: labels.index("ADVDSP")])
    assert "AUTO:ADVDSP,CPU" in for_latency
    assert not any("MULTI" in label for label in for_latency)
    # With ADVDSP able to run everything, no order is split.
    assert not any(label.startswith("HETERO") for label in for_latency)
    many = candidates(("ADVDSP", "CPU"), requests=4)
    assert {"MULTI:ADVDSP,CPU", "CPU · throughput hint", "CPU · 4 streams"} <= set(many)
    # Without numbers MULTI gives a few requests to the first device only.
    assert many["MULTI:ADVDSP(3),CPU(1)"].device_properties == {
        "CPU": {"PERFORMANCE_HINT": "LATENCY"}
    }
    assert many["AUTO:ADVDSP,CPU"].device_properties["AUTO"] == {
        "PERFORMANCE_HINT": "CUMULATIVE_THROUGHPUT"
    }
    hl.emulate("ADVACC", unsupported={"Softmax"})
    many = candidates(("ADVACC", "CPU"), requests=4)
    free, exclusive = (many[f"HETERO:ADVACC,CPU{end}"] for end in ("", " · exclusive requests"))
    assert free.affinity == exclusive.affinity
    assert free.device_properties["ADVACC"] == {"EXCLUSIVE_ASYNC_REQUESTS": False}
    assert not exclusive.device_properties
    assert not any("exclusive" in label for label in candidates(("ADVACC", "CPU")))


def test_fewer_subgraphs_are_a_candidate_and_what_exceeds_a_limit_is_none():
    hl.emulate("ADVACC", unsupported={"Interpolate", "ReduceMean", "Sigmoid", "Softmax"})
    found = candidates(("ADVACC", "CPU"))
    split, fewer = found["HETERO:ADVACC,CPU"], found["HETERO:ADVACC,CPU simplified"]
    parts = [hl.partition("digits_inception", p).n_subgraphs for p in (split, fewer)]
    assert parts == [8, 3]
    found, left_out = offered(("ADVACC", "CPU"), memory_limit={"ADVACC": "1KiB"})
    assert "ADVACC would hold" in left_out["HETERO:ADVACC,CPU"]
    assert "HETERO:CPU,ADVACC" not in found
    hl.emulate("ADVTWO")
    pool = {("ADVTWO", "CPU"): "200KB"}  # the model is 178 KB
    found, left_out = offered(("ADVTWO", "CPU"), memory_limit=pool)
    assert {"CPU", "ADVTWO"} <= set(found)
    assert "ADVTWO and CPU would hold" in left_out["AUTO:ADVTWO,CPU"]


def test_a_model_that_runs_nowhere():
    hl.emulate("ADVNONE", supported=set())
    with pytest.raises(DeviceError, match="runs nowhere here: none of ADVNONE supports"):
        hl.advise("digits_inception", ["ADVNONE"], progress=False)


@pytest.mark.slow  # a promise takes four processes
def test_the_command(tmp_path, capsys):
    arguments = ["advise", "digits_inception", "-d", "CPU", "-b", "1", "--no-isolate", "-q"]
    arguments += ["--csv", str(tmp_path / "a.csv"), "--deploy", str(tmp_path / "deploy")]
    arguments += ["--html", str(tmp_path / "a.html")]
    assert main(arguments) == 0
    assert capsys.readouterr().out == ""
    assert "; --data, with which int8" in (tmp_path / "a.html").read_text()
    header = (tmp_path / "a.csv").read_text().partition("\n")[0]
    assert header.startswith('"label","stage","judgement","why","configuration","status"')
    assert (tmp_path / "deploy" / "contract.json").is_file()


# What is measured again, by what the race found and what a compile takes.


@pytest.fixture(scope="module")
def bound():
    hl.emulate("FINFAST")
    return bind("digits_inception", shared_core())


@pytest.fixture
def raced(bound):
    """Return a function: rows by label as (factor, seconds to compile, judgement) → known."""
    placements = candidates(("FINFAST", "CPU"))
    profile = small_sweep().rows[0].profile
    assert profile is not None

    def known(**rows):
        made = []
        for name, (factor, compile_s, judgement) in rows.items():
            label = {"AUTO": "AUTO:FINFAST,CPU", "ONE": "CPU · 1 thread"}.get(name, name)
            if factor is None:
                row = failed_row(label, BUDGET_ENDED, "")
            else:
                timed = replace(profile, compile_ms=1e3 * compile_s, first_inference_ms=0.0)
                row = measured_row(label, timed, factor)
            made.append(Judged(row, placements[label], bound, "race", judgement))
        return made

    return known


def sentences(known: list[Judged], best: int = 0) -> list[str]:
    sweep = replace(small_sweep(), rows=(known[0].row,), reference="CPU")
    made = Advice(known[best].placement, "", tuple(known), (), "hetero", sweep)
    return verdict_sentences(made, notes=[], n_requests=1, would_change=[])


def test_a_verdict_does_not_contradict_itself(raced):
    known = raced(CPU=(1.0, 0.1, "best"), FINFAST=(0.995, 0.1, "faster"), ONE=(1.5, 0.1, "slower"))
    said = sentences(known)
    assert "none of the 2 other candidates measured is worth the change" in said[0]
    assert "Faster, but by 1 % at most: 'FINFAST'." in said
    assert "Slower, beyond the uncertainty: 'CPU · 1 thread'." in said
    assert not any("As fast" in text or "budget" in text for text in said)
    assert known[2].after_the_race(None).why == " in the race"
    known[2] = replace(known[2], judgement="undecided", why="2% slower")
    assert "none of the 2 other candidates measured is shown to be faster" in sentences(known)[0]
    known[1] = replace(known[1], judgement="undecided", why="but it may be chance")
    named = "Undecided: 'FINFAST', 'CPU · 1 thread'"
    again = [candidate.after_the_race(None).why for candidate in known[1:]]
    assert again == [f"{c.why} in the race, not measured again" for c in known[1:]]
    said = sentences([known[0], known[2], known[1]])
    assert f"{named} (FINFAST, the fastest of them: but it may be chance)." in said


def test_a_simpler_one_that_is_passed_over_is_explained(raced):
    cpu, fast, one = raced(
        CPU=(1.0, 0.1, "undecided"), FINFAST=(0.97, 0.1, "best"), ONE=(0.7, 0.1, "undecided")
    )
    said = "CPU is simpler, and CPU · 1 thread is shown to be faster."
    assert said in sentences([cpu, fast, one], best=1)
    final = [replace(candidate, stage="final") for candidate in (cpu, fast)]
    assert said not in sentences([*final, one], best=1)  # turns of two stages are no pairs
    assert not any("is simpler" in text for text in sentences([fast, cpu, one]))
    noisy = replace(cpu.row.series, noise=Noise(3.0, 0.0, 12))
    cpu = replace(cpu, row=replace(cpu.row, series=noisy))
    said = sentences([cpu, fast, one], best=1)
    assert "The machine was too noisy to rank the candidates: measure again." in said


@pytest.mark.parametrize(
    ("one", "answer"),
    [
        ((1.5, 0.1, "slower"), "and the other candidate measured is not worth the change."),
        ((None, 0.1, "not measured"), "the only candidate that was measured."),
    ],
)
def test_a_verdict_says_against_how_many_others(raced, one, answer):
    said = sentences(raced(CPU=(1.0, 0.1, "best"), ONE=one))
    assert said[0].endswith(f", {answer}")
    seen = any("too noisy" in text or "could not be seen" in text for text in said)
    assert seen == (one[0] is not None)  # one alone has nothing to be told apart from


def test_compile_times_are_the_longest_of_each_device_alone(raced):
    known = raced(
        CPU=(1.0, 0.5, "best"),
        ONE=(1.0, 0.75, "as fast"),
        FINFAST=(2.0, 4.0, "slower"),
        AUTO=(2.0, 0.1, "slower"),  # says that it is compiled before it is
    )
    assert compile_times(known) == {"CPU": 0.75, "FINFAST": 4.0, "": 4.0}


# FINFAST and CPU take a quarter of the 4 s that are left beside CPU, but not of 3.9 s.
UNKNOWN = {"CPU": (1.0, 0.5, "best"), "AUTO": (None, 0.0, "not measured")}
# 4 s of the 19.5 s left are less than a quarter; then 4.5 s of 15.5 s are more.
UNFINISHED = {
    "CPU": (1.0, 0.5, "best"), "ONE": (1.25, 0.5, "slower"), "FINFAST": (1.0, 4.0, "as fast"),
    "AUTO": (None, 0.0, "not measured"),
}  # fmt: skip
FAST = {"CPU": (1.0, 0.5, "slower"), "ONE": (1.0, 0.5, "slower"), "FINFAST": (0.5, 4.0, "best")}


@pytest.mark.parametrize(
    ("rows", "left_s", "n_models", "expected"),
    [
        pytest.param(UNKNOWN, 4.5, 1, ["CPU", "AUTO:FINFAST,CPU"], id="never compiled for: slow"),
        (UNKNOWN, 4.4, 1, ["CPU"]),
        pytest.param(UNFINISHED, 60.0, 1, ["CPU", "FINFAST", "AUTO:FINFAST,CPU"], id="not raced"),
        (UNFINISHED, 20.0, 1, ["CPU", "FINFAST"]),
        (UNFINISHED, 20.0, 2, ["CPU"]),
        (FAST, 5.0, 1, ["CPU", "FINFAST"]),
        pytest.param(FAST, 4.0, 1, [], id="the best has to fit, or there is no final"),
    ],
)
def test_what_is_measured_again_fits_the_time_that_is_left(raced, rows, left_s, n_models, expected):
    chosen = choose_finalists(raced(**rows), {}, left_s=left_s, n_models=n_models)
    assert list(chosen) == expected


def test_at_most_four_are_measured_beside_the_reference(raced):
    known = raced(CPU=(1.0, 0.5, "slower"), FINFAST=(0.5, 0.5, "best"))
    first = known[0]
    known += [
        replace(
            first,
            row=measured_row(f"as good {i}", first.row.profile, 0.6 + i / 100),
            placement=replace(first.placement, label=f"as good {i}"),
            judgement="as fast",
        )
        for i in reversed(range(5))
    ]
    chosen = choose_finalists(known, {}, left_s=math.inf)
    assert set(chosen) == {"CPU", "FINFAST", "as good 0", "as good 1", "as good 2"}


def test_what_was_found_is_measured_unless_it_is_there_already(raced):
    known = raced(CPU=(1.0, 0.5, "best"), FINFAST=(1.5, 0.5, "slower"))
    split = hl.Affinity.uniform("digits_inception", "CPU").fix(types={"Softmax": "FINFAST"})
    found = {"optimized": hl.Placement(split, "x"), "recovered": known[0].placement}
    assert list(choose_finalists(known, found, left_s=10.0)) == ["CPU", "optimized"]
    assert list(choose_finalists(known, {"optimized": None}, left_s=10.0)) == ["CPU"]
