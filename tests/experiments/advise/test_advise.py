"""Advice: what is raced, what is dropped and why, and what can be done with the answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counting_core import core_with_acc
from planning.test_difference import chain_costs
from small_models import two_parts
from widgets.hand_sweeps import measured_row, small_sweep

import hetero_lab as hl
from hetero_lab.backend.bound import bind
from hetero_lab.backend.core import shared_core
from hetero_lab.backend.devices import precisions
from hetero_lab.cli.main import main
from hetero_lab.errors import ArgumentError, DeviceError, MeasurementError
from hetero_lab.experiments import calibrate, optimize as optimizing, recover
from hetero_lab.experiments.accuracy.evaluate import read_data
from hetero_lab.experiments.advise import advise as advising, kept as keeping
from hetero_lab.experiments.advise.advice import Judged, judge
from hetero_lab.experiments.advise.candidates import candidates_for, order_of
from hetero_lab.experiments.advise.lost_accuracy import fast_and_accurate
from hetero_lab.experiments.optimize import Optimized
from hetero_lab.experiments.progress import SearchProgress
from hetero_lab.model.read import save
from hetero_lab.planning.planner import plan_graph
from hetero_lab.runtime.reference import Agreement
from hetero_lab.runtime.timing import Stopwatch
from hetero_lab.samples.datasets import Examples, Metric

JUDGEMENTS = {"best", "as fast", "slower", "wrong outputs", "less accurate", "not measured"}


def candidates(model, devices, core, **changes):
    options = {
        "objective": "latency", "requests": 1, "device_properties": {}, "memory_limit": {},
    }  # fmt: skip
    return candidates_for(bind(model, core), devices, **{**options, **changes})


QUICK: dict[str, Any] = {"isolate": False, "progress": False}


@pytest.fixture(scope="module")
def advice(tmp_path_factory):
    hl.emulate("ADVACC", unsupported={"Softmax"})
    store = tmp_path_factory.mktemp("store")
    options: dict[str, Any] = {"budget_s": 6, "store": store, **QUICK}
    made = hl.advise("digits_inception", ["ADVACC", "CPU"], **options)
    return made, store, options


def test_every_candidate_is_judged(advice):
    made, _, _ = advice
    assert set(made.summary["judgement"]) <= JUDGEMENTS
    assert list(made.summary["judgement"]).count("best") == 1
    labels = set(made.summary["label"])
    assert {"CPU", "HETERO:ADVACC,CPU"} <= labels
    chosen = made.summary.set_index("label").loc[made.chosen.row.label]
    assert chosen["execution_devices"] == ",".join(made.best.devices)
    assert "does not support 'head_digit/softmax'" in dict(made.left_out)["ADVACC"]
    assert made.verdict.startswith(f"Deploy {made.best.label}")
    assert "What could change the answer" in made.verdict


def test_the_advice_is_the_simplest_of_the_fastest(advice):
    made, _, _ = advice
    usable = [c for c in made.candidates if c.judgement in ("best", "as fast", "slower")]
    final = [c for c in usable if c.stage == "final"]
    least = min(c.row.latency.us for c in final)
    assert made.chosen == next(c for c in final if c.row.latency.us <= 1.01 * least)


def test_a_split_is_tried_with_exclusive_requests_too_where_many_are_in_flight():
    core = core_with_acc(unsupported={"Softmax"})
    model = hl.load("digits_inception")
    devices = ["ACC", "CPU"]
    many = candidates(model, devices, core, objective="throughput", requests=4).placements
    free, exclusive = (many[f"HETERO:ACC,CPU{end}"] for end in ("", " · exclusive requests"))
    assert free.affinity == exclusive.affinity
    assert free.device_properties["ACC"] == {"EXCLUSIVE_ASYNC_REQUESTS": False}
    assert not exclusive.device_properties
    assert not any("exclusive" in label for label in candidates(model, devices, core).placements)


@pytest.mark.slow
def test_with_data_int8_is_a_candidate_and_accuracy_is_deployed(tmp_path):
    data = hl.dataset("digits")
    few = replace(data, evaluation=data.evaluation[:40], calibration=data.calibration[:20])
    made = hl.advise("digits_inception", ["CPU"], data=few, budget_s=40, **QUICK)
    final = made.summary[made.summary["stage"] == "final"].set_index("label")
    assert {"CPU", "CPU · int8"} <= set(final.index)
    assert (final["n_examples"] == 40).all()
    assert "Accuracy" in made.verdict
    directory = made.deploy(tmp_path / "deploy")
    proven = hl.verify(directory, turns=3, slower=1e6)
    assert proven.ok
    assert proven.parts[-1].status == "not checked"
    assert proven.parts[-1].detail.endswith("of 40 examples; data= checks it")
    checked = hl.verify(directory, turns=3, slower=1e6, data=few).parts[-1]
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


def test_the_same_call_goes_on_from_its_store(advice):
    made, store, options = advice
    before = turns_kept(store)
    again = hl.advise("digits_inception", ["ADVACC", "CPU"], **options)
    after = turns_kept(store)
    assert {directory.partition("-")[0] for directory, _ in before} >= {"race", "final"}
    # On a busy machine the race may end before its last candidates have a turn.
    measured = {directory.partition("-")[0] for (directory, _), turns in before.items() if turns}
    assert measured == {"race", "final"}
    for row, turns in before.items():  # what was measured is kept, and gone on with
        assert turns.items() <= after[row].items()
    assert {c.row.label for c in made.candidates} == {c.row.label for c in again.candidates}


def test_the_page_holds_the_verdict(advice, tmp_path):
    made, _, _ = advice
    hl.views.page(made, tmp_path / "advice.html")
    text = (tmp_path / "advice.html").read_text()
    assert f"What to deploy: {made.best.label}" in text
    assert "What could change the answer" in text


def test_too_small_a_budget_says_what_it_needs_and_answers():
    made = hl.advise("digits_inception", ["CPU"], budget_s=0.01, **QUICK)
    assert made.best.affinity.devices == ("CPU",)
    assert "needs about" in made.verdict
    assert made.chosen.row.profile is not None


def test_interrupted_it_says_what_it_knows(monkeypatch, tmp_path):
    def stop(*_args, **_options):
        raise KeyboardInterrupt

    hl.emulate("ADVDSP")
    monkeypatch.setattr(advising, "optimize_bound", stop)
    monkeypatch.setattr(advising, "_SEARCH_LEAST_S", 0.0)
    monkeypatch.setattr(advising, "_SEARCH_COMPILES", 0)
    made = advising.advise(
        "digits_inception", ["ADVDSP", "CPU"], budget_s=4, store=tmp_path, **QUICK
    )
    assert made.interrupted
    assert "Ctrl-C ended it" in made.verdict
    assert {c.stage for c in made.candidates} == {"race"}
    assert hl.read_sweep(tmp_path / "race").rows


@pytest.mark.slow
def test_costs_of_an_interrupted_search_are_kept_and_gone_on_with(monkeypatch, tmp_path):
    def stop(*_args):
        raise KeyboardInterrupt

    hl.emulate("ADVACC", unsupported={"Softmax"})
    monkeypatch.setattr(advising, "_SEARCH_LEAST_S", 0.0)
    monkeypatch.setattr(advising, "_SEARCH_COMPILES", 0)
    options: dict[str, Any] = {"budget_s": 20, "store": tmp_path, **QUICK}
    with monkeypatch.context() as at_the_end_of_the_search:
        at_the_end_of_the_search.setattr(optimizing, "_prove", stop)
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


def inquiry(store, devices=("CPU",), **changes) -> advising._Inquiry:
    bound = bind("digits_inception", shared_core())
    watch = Stopwatch.start(None)
    options: dict[str, Any] = {
        "data": None, "examples": None, "max_drop": 0.01, "objective": "latency", "requests": 1,
        "properties": {}, "memory_limit": {}, "costs": None, "inputs": None, "seed": 0,
        "isolate": False, "progress": False,
    }  # fmt: skip
    return advising._Inquiry(
        bound=bound,
        settings=keeping.AdviseSettings(devices=devices, **{**options, **changes}),
        candidates=candidates("digits_inception", devices, shared_core()),
        store=store,
        watch=watch,
        progress=SearchProgress(watch, show=False),
    )


def test_what_was_searched_with_given_costs_has_their_properties_when_it_is_taken_up_again(
    tmp_path,
):
    hint = {"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}
    affinity = hl.Affinity.uniform("digits_inception", "CPU")
    costs = replace(chain_costs(), device_properties=hint)
    assert inquiry(tmp_path, costs=costs)._free_properties(affinity) == hint
    both = {"CPU": {"EXCLUSIVE_ASYNC_REQUESTS": False, **hint["CPU"]}}
    asked = inquiry(tmp_path, costs=costs, objective="throughput")
    assert asked._free_properties(affinity) == both


def test_what_was_searched_for_something_else_is_not_taken_from_the_store(monkeypatch, tmp_path):
    hl.emulate("ADVKEPT")
    found = hl.Affinity.uniform("digits_inception", "ADVKEPT")
    asked = inquiry(tmp_path, ("ADVKEPT", "CPU"))
    interrupted = [True]

    def search(model, *_args, **_options):
        costs = chain_costs()
        planned = plan_graph(costs.graph, costs)
        best = hl.Placement(found, "optimized")
        return Optimized(
            best, "latency", "", True, costs, planned, small_sweep(), (), (), interrupted[0]
        )

    def never(*_args, **_options):
        raise MeasurementError("searched again")

    monkeypatch.setattr(advising, "optimize_bound", search)
    assert asked._search() is not None
    assert not list(tmp_path.glob("optimized*"))
    interrupted[0] = False
    assert asked._search() is not None
    monkeypatch.setattr(advising, "optimize_bound", never)
    kept = asked._search()
    assert kept is not None
    assert kept.affinity == found
    for changes in (
        {"devices": ("CPU", "ADVKEPT")},
        {"objective": "throughput"},
        {"memory_limit": {"ADVKEPT": "1KiB"}},
        {"properties": {"CPU": {"NUM_STREAMS": 2}}},
        {"costs": chain_costs()},
    ):
        other = replace(asked, notes=[], settings=replace(asked.settings, **changes))
        assert other._search() is None
        assert other.notes == ["No placement was searched for: searched again"]


@pytest.mark.slow
def test_int8_is_kept_whole_or_not_at_all_for_the_data_that_it_was_calibrated_with(
    monkeypatch, tmp_path
):
    digits = hl.dataset("digits")
    first, second = (
        replace(digits, calibration=digits.calibration[begin : begin + 5]) for begin in (0, 5)
    )

    def broken(model, path):
        save(model, path)
        path.unlink()
        raise RuntimeError("no xml")

    monkeypatch.setattr(keeping, "save", broken)
    asked = inquiry(tmp_path, data=first)
    asked._make_variants()
    assert set(asked.variants) == {"int8"}
    assert asked.notes == ["The int8 variant could not be kept in store=: no xml"]
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(keeping, "save", save)
    for data, n_kept in ((first, 1), (second, 2), (first, 2)):
        asked = inquiry(tmp_path, data=data)
        asked._make_variants()
        assert set(asked.variants) == {"int8"}
        assert len(list(tmp_path.glob("int8-*.xml"))) == n_kept
        assert len(list(tmp_path.iterdir())) == 2 * n_kept


def _placement(device: str, label: str) -> hl.Placement:
    affinity = hl.Affinity.uniform("digits_inception", device)
    return hl.Placement(affinity, label, direct=True)


@pytest.mark.parametrize(
    ("keeping", "pair", "n_looked_at"),
    [
        ({"ADVFAST"}, None, 1),  # the fastest loses nothing
        ({"CPU"}, ("ADVFAST", "CPU"), 2),
        ({"ADVFAST · f32", "CPU"}, None, 2),  # the same device in f32 is a candidate already
        (set(), None, 3),
    ],
)
def test_which_devices_accuracy_is_recovered_from_and_with(keeping, pair, n_looked_at):
    hl.emulate("ADVFAST")
    fastest_first = [
        _placement("ADVFAST", "ADVFAST"),
        _placement("CPU", "CPU"),
        _placement("CPU", "CPU · 1 thread"),
    ]
    if "ADVFAST · f32" in keeping:
        fastest_first.insert(1, _placement("ADVFAST", "ADVFAST · f32"))
    looked_at = []

    def keeps(placement):
        looked_at.append(placement.label)
        return placement.label in keeping

    assert fast_and_accurate(fastest_first, keeps) == pair
    assert len(looked_at) == n_looked_at


@pytest.fixture
def recovering(monkeypatch, tmp_path):
    """Return what is asked and known where bf16 loses all answers that f32 has right."""
    hl.emulate("ADVBF16", properties={"INFERENCE_PRECISION_HINT": "bf16"})
    hint = {"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}
    digits = hl.dataset("digits")
    exact = hl.compile("digits_inception", hl.Placement(
        hl.Affinity.uniform("digits_inception", "CPU"), "f32", hint, direct=True
    ))  # fmt: skip

    def labelled(examples):
        made = {
            key: (x, exact(x)["digit"]) for key, (x, _) in zip(examples.keys, examples, strict=True)
        }
        return Examples(examples.keys, made.__getitem__)

    def near(outputs, right):
        return bool(np.abs(outputs["digit"] - right).max() < 1e-6)

    data = replace(
        digits,
        calibration=labelled(digits.calibration[:20]),
        evaluation=labelled(digits.evaluation[:20]),
        metric=Metric("near", near),
    )
    monkeypatch.setattr(calibrate, "MOST_FITTED", 6)
    monkeypatch.setattr(calibrate, "MOST_VALIDATED", 0)
    monkeypatch.setattr(recover, "MOST_CHUNKS", 4)
    asked = inquiry(
        tmp_path, ("ADVBF16", "CPU"), data=data, examples=read_data(data), properties=hint
    )
    monkeypatch.setattr(advising, "_RECOVER_LEAST_S", 0.0)
    asked = replace(asked, watch=Stopwatch.start(12.0))
    row = small_sweep().rows[0]
    assert row.profile is not None
    profile = replace(row.profile, agreement=())
    placements = candidates(
        "digits_inception", ("ADVBF16", "CPU"), shared_core(), device_properties=hint
    ).placements
    known = [
        Judged(measured_row(label, profile, factor), placements[label], asked.bound, "race", "")
        for label, factor in (("CPU", 2.0), ("ADVBF16", 1.0))
    ]
    return asked, known


@pytest.mark.slow
@pytest.mark.skipif("bf16" not in precisions("CPU", core=shared_core()), reason="needs bf16")
def test_recovered_accuracy_is_a_candidate(recovering, tmp_path):
    asked, known = recovering
    hint = asked.settings.properties
    found = asked._recover(known)
    (note,) = asked.notes
    assert note.startswith("Accuracy recovered from ADVBF16 with CPU: ")
    # Whether a mix is measured to be faster depends on the machine.
    assert (found is None) == ("keep the whole model" in note)
    if found is not None:
        assert set(found.affinity.devices) == {"ADVBF16", "CPU"}
        assert found.device_properties["CPU"] == hint["CPU"]
    (kept,) = tmp_path.glob("recovered-*.json")
    again = replace(asked, notes=[])
    assert again._recover(known) == found  # from the store
    assert again.notes == []
    kept.unlink()
    hopeless = replace(asked, notes=[], settings=replace(asked.settings, max_drop=1.0))
    assert hopeless._recover(known) is None  # nothing is lost that is not allowed to be
    assert hopeless.notes == []
    fastest = known[1]
    assert fastest.row.profile is not None
    equal = replace(
        fastest.row.profile,
        agreement=(Agreement("digit", 0.0, 0.0, 0.0, 1.0, 1.0, "f32", 1e-3, "equal"),),
    )
    exact_row = measured_row("ADVBF16", equal)
    exactly = [replace(fastest, row=exact_row)]
    assert again._recover(exactly) is None  # what is f32 already loses nothing
    assert again.notes == []
    assert not list(tmp_path.glob("recovered-*.json"))


@pytest.mark.slow
@pytest.mark.skipif("bf16" not in precisions("CPU", core=shared_core()), reason="needs bf16")
def test_an_interrupted_recovery_goes_on_from_the_costs_that_it_has_learnt(
    recovering, monkeypatch, tmp_path
):
    asked, known = recovering
    proven = recover._prove

    def interrupt(*_args, **_options):
        raise KeyboardInterrupt

    def calibrated_again(*_args):
        raise MeasurementError("calibrated again")

    monkeypatch.setattr(recover, "_prove", interrupt)
    assert asked._recover(known) is None
    assert asked.interrupted
    (kept,) = tmp_path.glob("recovered*")
    assert not hl.CostModel.from_json(kept).interrupted
    monkeypatch.setattr(recover.Calibration, "begin", calibrated_again)
    monkeypatch.setattr(recover, "_prove", proven)
    again = replace(asked, interrupted=False, notes=[], watch=Stopwatch.start(12.0))
    again._recover(known)
    assert again.notes[0].startswith("Accuracy recovered from ADVBF16 with CPU: ")


@pytest.mark.parametrize(("factor", "judgement"), [(2.5, "as fast"), (3.5, "slower")])
def test_a_single_turn_shows_what_is_hopeless(factor, judgement):
    hl.emulate("ADVFAST")
    asked = inquiry(None, ("ADVFAST", "CPU"))
    placements = asked.candidates.placements
    profile = small_sweep().rows[0].profile
    assert profile is not None
    profile = replace(profile, agreement=())
    row = measured_row("ADVFAST", profile, factor)
    series = replace(row.series, ours={(0, 0): factor * 100.0})
    rows = {"CPU": measured_row("CPU", profile), "ADVFAST": replace(row, series=series)}
    latency = rows["ADVFAST"].latency
    assert latency is not None
    assert latency.high_us == np.inf
    known = judge(rows, dict.fromkeys(rows, asked.bound), placements, stage="race", max_drop=0.01)
    assert [c.judgement for c in known] == ["best", judgement]


def test_accuracy_is_not_recovered_without_labels_or_in_too_short_a_time():
    hl.emulate("ADVFAST")
    asked = inquiry(None, ("ADVFAST", "CPU"))
    assert asked._recover([]) is None
    data = hl.dataset("digits")
    asked = inquiry(None, ("ADVFAST", "CPU"), data=data, examples=read_data(data))
    short = replace(asked, watch=Stopwatch.start(10.0))
    assert short._recover([]) is None
    assert short.notes[0].startswith("The budget was too short to recover accuracy")


def test_what_is_raced_for_latency_and_for_throughput():
    hl.emulate("ADVDSP")
    core = shared_core()
    for_latency = candidates("digits_inception", ("ADVDSP", "CPU"), core).placements
    labels = list(for_latency)
    assert labels[0] == "CPU"  # the reference
    # What is compiled soonest is raced first.
    assert all(label.startswith("CPU") for label in labels[: labels.index("ADVDSP")])
    assert "AUTO:ADVDSP,CPU" in for_latency
    assert not any("MULTI" in label for label in for_latency)
    # With ADVDSP able to run everything, no order is split.
    assert not any(label.startswith("HETERO") for label in for_latency)
    many = candidates(
        "digits_inception", ("ADVDSP", "CPU"), core, objective="throughput", requests=4
    ).placements
    assert {"MULTI:ADVDSP,CPU", "CPU · throughput hint", "CPU · 4 streams"} <= set(many)
    # Without numbers MULTI gives a few requests to the first device only.
    assert many["MULTI:ADVDSP(3),CPU(1)"].device_properties == {
        "CPU": {"PERFORMANCE_HINT": "LATENCY"}
    }
    assert many["AUTO:ADVDSP,CPU"].device_properties["AUTO"] == {
        "PERFORMANCE_HINT": "CUMULATIVE_THROUGHPUT"
    }


def test_lints_remedies_are_a_candidate():
    hl.emulate("ADVACC", unsupported={"Interpolate", "ReduceMean", "Sigmoid", "Softmax"})
    found = candidates("digits_inception", ("ADVACC", "CPU"), shared_core()).placements
    split, remedied = found["HETERO:ADVACC,CPU"], found["HETERO:ADVACC,CPU remedied"]
    parts = [hl.partition("digits_inception", p).n_subgraphs for p in (split, remedied)]
    assert parts == [8, 5]
    findings = hl.lint("digits_inception", remedied)
    assert not [
        r
        for r, s in zip(findings["remedy"], findings["severity"], strict=True)
        if r and s != "info"
    ]


def test_a_memory_limit_leaves_devices_out():
    hl.emulate("ADVACC", unsupported={"Softmax"})
    core = shared_core()
    found = candidates("digits_inception", ("ADVACC", "CPU"), core, memory_limit={"ADVACC": "1KiB"})
    assert "ADVACC would hold" in found.left_out["HETERO:ADVACC,CPU"]
    assert "HETERO:CPU,ADVACC" not in found.placements
    hl.emulate("ADVTWO")
    pool = {("ADVTWO", "CPU"): "200KB"}  # the model is 178 KB
    found = candidates("digits_inception", ("ADVTWO", "CPU"), core, memory_limit=pool)
    assert {"CPU", "ADVTWO"} <= set(found.placements)
    assert "ADVTWO and CPU would hold" in found.left_out["AUTO:ADVTWO,CPU"]


def test_order_of_devices():
    hl.emulate("ADVACC", unsupported={"Softmax"})
    core = shared_core()
    assert order_of(["CPU", "ADVACC"], core) == ("ADVACC", "CPU")
    with pytest.raises(DeviceError, match="'XPU' is not a device here"):
        order_of(["XPU"], core)


def test_a_model_that_runs_nowhere():
    hl.emulate("ADVNONE", supported=set())
    with pytest.raises(DeviceError, match="runs nowhere here: none of ADVNONE supports"):
        hl.advise(two_parts(), ["ADVNONE"], progress=False)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"objective": "power"}, "'power' is not an objective"),
        ({"metric": max}, "give data="),
        ({"data": []}, "data= has no examples"),
        ({"budget_s": 0}, "more than 0 seconds"),
        ({"memory_limit": {"CPU": "lots"}}, "'lots' is not a number of bytes"),
    ],
)
def test_what_cannot_be_asked(changes, says):
    with pytest.raises(ArgumentError, match=says):
        hl.advise("digits_inception", ["CPU"], progress=False, **changes)


def test_the_command(tmp_path, capsys):
    arguments = ["advise", "digits_inception", "-d", "CPU", "-b", "4", "--no-isolate", "-q"]
    arguments += ["--csv", str(tmp_path / "a.csv"), "--deploy", str(tmp_path / "deploy")]
    assert main(arguments) == 0
    assert capsys.readouterr().out == ""
    header = (tmp_path / "a.csv").read_text().partition("\n")[0]
    assert header.startswith('"label","stage","judgement","why","status"')
    assert (tmp_path / "deploy" / "contract.json").is_file()
