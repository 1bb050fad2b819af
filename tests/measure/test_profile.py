from __future__ import annotations

import re
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from counting_core import core_with_acc, in_f32, on_acc
from openvino import opset13 as op
from small_models import (
    NASTY_NAMES,
    chain,
    convolutions,
    diamond,
    logarithm,
    passed_through,
    stateful,
)

import hetero_lab as hl
from hetero_lab.devices.core import shared_core
from hetero_lab.devices.devices import precisions
from hetero_lab.errors import (
    HeteroLabWarning,
    InferenceError,
    MeasurementError,
)
from hetero_lab.measure import profile as profiling
from hetero_lab.measure.bench import Bench
from hetero_lab.model.read import prepare
from hetero_lab.results.profile_tables import SUMMARY_COLUMNS, summary_row

QUICK = {"iterations": 20, "warmup": 0, "progress": False}
TABLES = [
    "summary", "latency", "subgraphs", "counters", "boundaries", "placement", "agreement",
    "transitions",
]  # fmt: skip


FAULTY = Path(__file__).parent / "faulty_worker.py"


def profile(model, placement, core, **more) -> hl.types.Profile:
    return hl.profile(model, placement, core=core, **{**QUICK, **more})


@pytest.fixture(scope="module")
def measured(core) -> hl.types.Profile:
    model = convolutions()
    return profile(model, in_f32(on_acc(model, core, "softmax"), "mine"), core, iterations=25)


# -- what a profile says -----------------------------------------------------------------------


def test_the_whole_picture(measured):
    assert measured.label == "mine"
    assert measured.as_predicted
    assert measured.partition.observed
    assert [s.device for s in measured.partition.subgraphs] == ["CPU", "ACC", "CPU"]
    assert [len(turn) for turn in measured.latency.turns] == [10, 15]
    assert measured.compile_ms > 0
    assert measured.first_inference_ms > 0
    assert measured.peak_rss_bytes > 10_000_000
    assert not measured.interrupted
    assert [a.verdict for a in measured.agreement] == ["equal"]
    answer = repr(measured).splitlines()
    assert answer[0].startswith("convolutions takes ")
    assert answer[0].endswith("s with mine (f32); outputs equal to the reference.")
    assert len(answer) <= 15
    assert dict(measured.environment.emulated) == {"ACC": "CPU"}
    assert measured.environment.openvino_version == ov.get_version()


def test_tables(measured):
    tables = measured.tables
    assert list(tables) == TABLES
    summary = tables["summary"].iloc[0]
    assert len(tables["summary"]) == 1
    assert {*summary_row(measured)} == {*SUMMARY_COLUMNS}  # no value is left out
    assert summary["label"] == "mine"
    assert summary["status"] == "ok"
    assert summary["verdict"] == "equal"
    assert summary["emulated"] == "ACC"
    assert (summary["n_ops"], summary["n_subgraphs"], summary["n_boundaries"]) == (7, 3, 2)
    assert summary["boundary_bytes"] == 2 * 8 * 32 * 32 * 4
    assert summary["median_us"] == measured.latency.median_us
    assert summary["n_samples"] == 25
    assert tables["latency"]["latency_us"].tolist() == measured.latency.samples_us.tolist()
    assert tables["latency"]["turn"].tolist() == [0] * 10 + [1] * 15
    subgraphs = tables["subgraphs"]
    assert subgraphs["device"].tolist() == ["CPU", "ACC", "CPU"]
    assert subgraphs["ops"].tolist() == ["conv1\nbias1\nrelu1", "softmax", "conv2\nbias2\nrelu2"]
    counted = sum(row.real_time_us for row in measured.counters if row.kind in ("op", "other"))
    assert subgraphs["ops_us"].sum() == pytest.approx(counted)
    assert tables["boundaries"]["tensor"].tolist() == ["relu1", "softmax"]
    assert tables["boundaries"]["n_bytes"].tolist() == [32768, 32768]
    placement = tables["placement"].set_index("op")
    assert placement.loc["softmax", "device"] == "ACC"
    assert placement.loc["bias1", "fused_with"] == "conv1"
    assert placement.loc["bias1", "time_us"] == 0
    assert placement.loc["conv1", "time_us"] > 0
    assert placement.loc["conv1", "precision"] == "f32"
    assert len(tables["counters"]) == len(measured.counters)
    for name, frame in tables.items():
        for column in frame.columns:
            is_time = re.search(r"(time|latency|median|compile|inference)(?!.*_(us|ms)$)", column)
            assert not is_time or column in ("first_inference_ms", "counters_exceed_latency"), (
                f"{name}.{column} has no unit"
            )


def test_the_report_has_the_form_of_the_samples(measured):
    lines = measured.report().splitlines()
    assert lines[2] == "Placement:  6 ops on CPU, 1 op on ACC (emulated on CPU)"
    assert lines[3] == "Partition:  3 subgraphs, 2 boundaries, 65.5 KB (observed)"
    assert lines[4].startswith("Subgraphs:  3 subgraphs: 1 op that CPU can run is elsewhere")
    assert lines[6].startswith("Boundaries: relu1 CPU → ACC 32.8 KB; softmax ACC → CPU 32.8 KB")
    start = lines.index("Performance counts for 0-th infer request")
    rows = lines[start + 1 : -2]
    assert len(rows) == len(measured.counters)
    form = re.compile(
        r"^subgraph\d+: .{1,30} +(EXECUTED|NOT_RUN) +layerType: \S+ +execType: \S+ +"
        r"realTime \(ms\): [\d.]+ +cpuTime \(ms\): [\d.]+ *$"
    )
    for row in rows:
        assert form.match(row), row


def test_a_single_device_needs_no_hetero(core):
    result = profile(convolutions(), "CPU", core)
    assert result.partition.n_subgraphs == 1
    assert result.tables["boundaries"].empty
    assert "subgraph0:" not in result.report()
    assert result.label == "CPU"


def test_counters_and_reference_are_compiles_of_their_own_and_can_be_left_out(own_core):
    model = convolutions(9)  # of no other test, whose reference would be known
    profile(model, "HETERO:ACC,CPU", own_core)
    # One compile to time, one to count, one for the reference.
    assert [config.get("PERF_COUNT", False) for config in own_core.configs] == [False, True, False]
    result = profile(model, "HETERO:ACC,CPU", own_core, counters=False, reference=False)
    assert own_core.n_compiled == 3 + 1
    assert result.counters == ()
    assert result.agreement == ()
    summary = result.tables["summary"].iloc[0]
    assert summary["verdict"] == "not compared"
    # A hole is a hole, not a zero.
    for column in ("ops_us", "reorders_us", "rest_us", "max_relative_error"):
        assert summary[column] is None or np.isnan(summary[column])
    assert result.tables["placement"]["time_us"].isna().all()
    assert result.tables["subgraphs"]["ops_us"].isna().all()
    assert result.tables["counters"].empty
    assert len(result.tables["counters"].columns) > 5
    assert "Performance counts" not in result.report()


def test_a_model_that_runs_nothing_has_no_counters_and_a_warning(core):
    with pytest.warns(HeteroLabWarning, match="returned no counters"):
        result = profile(passed_through(1), "CPU", core)
    assert result.counters == ()
    assert result.tables["summary"]["ops_us"].isna().all()


def test_shared_weights_are_read_right_both_ways_round(core):
    # The CPU plugin computes wrongly with one decompressed weight that two matmuls use, one of
    # them transposed. Prepared, each has its own, and is right on one device as well.
    x = op.parameter([1, 16], np.float32, name="x")
    values = np.random.default_rng(0).random((16, 16)).astype(np.float16)
    wide = op.convert(op.constant(values, name="w"), "f32", name="wide")
    plain = op.matmul(x, wide, False, False, name="plain")
    turned = op.matmul(op.relu(x, name="relu"), wide, False, True, name="turned")
    outputs = [op.result(plain, name="p"), op.result(turned, name="t")]
    model = ov.Model(outputs, [x], "both_ways_round")
    result = profile(model, in_f32(on_acc(model, core, "plain")), core, counters=False)
    assert [a.verdict for a in result.agreement] == ["equal", "equal"]
    compiled = hl.compile(model, in_f32(hl.Affinity.uniform(model, "CPU", core=core)), core=core)
    given = np.random.default_rng(1).random((1, 16), np.float32)
    found = compiled([given])
    np.testing.assert_allclose(found["p"], given @ values.astype(np.float32), rtol=1e-5)
    np.testing.assert_allclose(found["t"], given @ values.T.astype(np.float32), rtol=1e-5)


def test_a_difference_that_is_no_rounding_is_said_aloud(core):
    result = profile(convolutions(), "ACC", core, counters=False)
    (agreement,) = result.agreement
    wrong = replace(agreement, verdict="different", relative_error=0.5)
    with pytest.warns(HeteroLabWarning) as warned:
        profiling._warn_of_wrong_outputs(replace(result, agreement=(wrong,)))
    problem = str(warned[0].message)
    assert f"Output {agreement.output!r} differs" in problem
    assert "by 0.5 (relative), more than f32 explains" in problem
    assert "hetero_lab.find_wrong(model, placement) finds the ops to blame." in problem


def test_precision_of_the_device_tells_rounding_from_wrongness():
    low = precisions("CPU", core=shared_core())[0]
    core = core_with_acc(properties={"INFERENCE_PRECISION_HINT": low})
    result = profile(convolutions(), "ACC", core)
    assert result.agreement[0].verdict in ("equal", "rounding")
    executed = {row.precision for row in result.counters if row.kind == "op"}
    assert result.agreement[0].precision in executed | {"f32"}


def test_a_state_begins_afresh_where_outputs_are_compared(core):
    model = stateful()
    automatic = in_f32(hl.Affinity.automatic(model, "HETERO:ACC,CPU", core=core))
    result = profile(model, automatic, core, counters=False)
    assert {a.verdict for a in result.agreement} == {"equal"}


# -- how it is asked for -----------------------------------------------------------------------


def test_a_model_and_inputs_from_files(core, tmp_path):
    model = diamond()
    ov.save_model(model, tmp_path / "m.xml", compress_to_fp16=False)
    np.savez(tmp_path / "in.npz", x=np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8))
    result = profile(tmp_path / "m.xml", "CPU", core, inputs=tmp_path / "in.npz", counters=False)
    assert result.agreement[0].verdict in ("equal", "rounding")
    assert result.model_fingerprint == prepare(model).fingerprint


def test_a_budget_instead_of_a_number_and_a_hundred_iterations_unless_told(core):
    options = {"warmup": 0, "counters": False, "reference": False, "progress": False, "core": core}
    result = hl.profile(diamond(), "CPU", iterations=None, budget_s=1e-6, **options)
    assert [len(turn) for turn in result.latency.turns] == [10]
    assert len(hl.profile(diamond(), "CPU", **options).latency) == 100


@pytest.mark.usefixtures("ctrl_c_in_the_fourth_turn")
def test_an_interrupt_keeps_what_is_there(core):
    said = r"Interrupted after \d+ inferences; they are kept"
    with pytest.warns(HeteroLabWarning, match=said), pytest.raises(KeyboardInterrupt):
        profile(diamond(), "CPU", core, iterations=10**9, counters=False)
    result = hl.last_interrupted()
    assert result.interrupted
    assert len(result.latency) >= 10
    assert result.tables["summary"]["status"].tolist() == ["interrupted"]
    assert "was interrupted" in result.report()
    assert result.agreement[0].verdict in ("equal", "rounding")


# -- in a process of its own -------------------------------------------------------------------


def test_an_isolated_profile_is_like_one_made_here():
    hl.emulate("ISOACC", unsupported={"Softmax"})
    model = hl.load(convolutions())
    options = {"iterations": 20, "progress": False}
    here = hl.profile(model, "HETERO:ISOACC,CPU", **options)
    there = hl.profile(model, "HETERO:ISOACC,CPU", isolate=True, **options)
    assert there.label == here.label
    assert there.affinity == here.affinity
    assert there.model_fingerprint == here.model_fingerprint
    assert there.partition.n_subgraphs == here.partition.n_subgraphs
    assert there.partition.boundary_bytes == here.partition.boundary_bytes
    assert len(there.latency) == 20
    assert [a.output for a in there.agreement] == [a.output for a in here.agreement]
    assert there.environment.emulated == here.environment.emulated
    assert set(there.tables["placement"]["op"]) == set(here.tables["placement"]["op"])


def test_a_hang_is_an_error_that_says_so(monkeypatch):
    monkeypatch.setenv("FAULT", "hang")
    monkeypatch.setenv("FAULT_KEY", "every")
    limits = hl.Workers(command=[sys.executable, str(FAULTY)], timeout_s=1.0)
    with pytest.raises(MeasurementError, match="timed out after 1 s"):
        hl.profile(
            "digits_inception", "CPU", isolate=True, workers=limits, budget_s=30, progress=False
        )


# -- any name ----------------------------------------------------------------------------------


def test_any_name_is_in_every_table_and_harmless_where_it_is_shown(core):
    names = [*NASTY_NAMES[-4:], *NASTY_NAMES[3:8]]
    model = chain(*names, size=100_000)
    model.outputs[0].set_names({"<b>out</b>\n"})
    placement = in_f32(on_acc(model, core, *names[::2]), '=label<script>"\r\n')
    result = profile(model, placement, core, iterations=10)
    tables = result.tables
    assert tables["placement"]["op"].tolist() == names
    # Each op is a subgraph of its own; a name with a newline is the only one in its cell.
    assert tables["subgraphs"]["ops"].tolist() == names
    assert tables["boundaries"]["tensor"].tolist() == names[:-1]
    counted = tables["counters"]
    assert counted[counted["kind"] == "op"]["op"].tolist() == names
    assert tables["summary"]["label"].tolist() == ['=label<script>"\r\n']
    assert tables["agreement"]["output"].tolist() == ["<b>out</b>\n"]
    lines, answer = result.report().rstrip().split("\n"), repr(result).split("\n")
    assert all(line.isprintable() for line in [*lines, *answer])
    assert max(map(len, lines)) < 600
    start = lines.index("Performance counts for 0-th infer request")
    assert len(lines) - start - 3 == len(result.counters)
    assert len(answer) <= 15
    assert len(result.partition._repr_html_()) < 40_000


@pytest.mark.parametrize("executor", ["hetero", "parallel"])
def test_what_the_runtime_cannot_run_is_said_of_the_placement(executor):
    x = ov.opset13.parameter([1, 8], np.float32, name="x")
    bits = ov.opset13.convert(ov.opset13.relu(x, name="r"), "u1")
    model = ov.Model([ov.opset13.result(bits, name="out")], [x], "bits")
    with pytest.raises(InferenceError, match=r"The runtime failed while it ran .*Output tensor"):
        hl.profile(model, "CPU", executor=executor, iterations=10, progress=False)


def test_outputs_without_a_number_are_undecided(core, tmp_path):
    """Without counters: ops this short may have none, which is a warning of its own."""
    with pytest.warns(HeteroLabWarning, match=r"compare in 'logits'.*inputs=\.$"):
        nan = profile(logarithm(2.0), "CPU", core, counters=False)
    assert repr(nan).splitlines()[0].endswith("1 of 2 outputs undecided.")
    assert "worst logits: undecided. The inputs were generated; give your own" in repr(nan)
    nan.export(tmp_path)
    assert hl.read_profile(tmp_path).tables["summary"]["verdict"][0] == "undecided"
    own = [np.linspace(0, 1, 16, dtype=np.float32).reshape(2, 8)]
    with warnings.catch_warnings(action="error"):
        given = profile(logarithm(0.5), "CPU", core, inputs=own, counters=False)
    assert "outputs equal" in repr(given)
    assert "generated" not in repr(given)
    assert "up to 50.0% of 'logits'" in repr(given)


def test_a_sweep_and_an_advice_say_that_nothing_is_compared(core):
    sweep = hl.sweep(logarithm(2.0), ["CPU"], turns=2, isolate=False, progress=False, core=core)
    assert sum("Nothing to compare in 'logits'" in note for note in sweep.notes) == 1
    assert sum("inputs were generated" in note for note in sweep.notes) == 1
    advice = hl.advise(
        logarithm(2.0), ["CPU"], budget_s=4, isolate=False, progress=False, core=core
    )
    answer, _, more = advice.verdict.partition("\n\n")
    assert "Nothing to compare in 'logits'" in answer
    assert "inputs= of your own" in more


def test_a_latency_is_of_one_request_at_a_time(core, monkeypatch):
    """Also where several are in flight: then each round has a turn of both kinds."""
    alone, ask = [], Bench.ask

    def noted(bench, request, **limits):
        if request.func is Bench.run_turn:
            alone.append(request.keywords["alone"])
        return ask(bench, request, **limits)

    monkeypatch.setattr(Bench, "ask", noted)
    options = {"iterations": 20, "warmup": 0, "counters": False, "reference": False}
    hl.profile(chain(), "CPU", requests=2, core=core, progress=False, **options)
    assert alone[:2] == [True, True]
    assert len(alone) > 2
    assert alone[2:] == [True, False] * (len(alone[2:]) // 2)
