"""find_wrong on the real runtime, with faults that are put in at compile."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import openvino as ov
import pytest
from hand_costs import flat_costs
from odd_models import quantised
from openvino import opset13 as op
from slices import sliced
from small_language_models import decoder

import hetero_lab as hl
from hetero_lab.cli.main import main
from hetero_lab.debug import minimal_sets, placed_runs
from hetero_lab.debug.find_wrong import search_wrong
from hetero_lab.debug.placed_runs import TransparentModel
from hetero_lab.errors import ArgumentError, MeasurementError, ModelError, PlanError
from hetero_lab.placement.partition import predict
from hetero_lab.progress import Stopwatch
from tests import small_models
from tests.debug.cases import (
    BROKEN,
    F32,
    NORMAL,
    case_of,
    chain_case,
    constant,
    failing,
    fault,
    needs,
    over_when,
    parameter,
    slow,
)
from tests.proof import injected_faults as injected
from tests.proof.faults import spoil
from tests.proof.injected_faults import found_sets, search

OPS = ["matmul", "tanh", "shift", "sigmoid", "negative"]


# Which ops are wrong.


def test_a_right_placement_is_right():
    wrong = search(chain_case())
    assert (wrong.kind, wrong.fix, wrong.sets) == ("none", {}, ())
    assert wrong.affinity == wrong.given.affinity
    assert wrong.n_compiles == 3  # it, the reference, and that without fused ops


def test_an_op_that_is_wrong_by_itself_and_its_figure():
    wrong = search(chain_case(fault("tanh")))
    assert wrong.kind == "op"
    assert list(wrong.culprits["op"]) == ["tanh"]
    assert wrong.fix == {"tanh": "CPU"}
    assert wrong.proven
    assert wrong.after < 1e-5
    errors = wrong.errors.set_index("op")
    assert errors.loc["tanh", "isolated_error"] > 0.1
    assert errors.drop(index="tanh")["isolated_error"].max() < 1e-6
    # What comes before is right, what comes after is off with right inputs only.
    assert errors.loc["matmul", "accumulated_error"] < 1e-6
    assert errors.loc["negative", "accumulated_error"] == pytest.approx(wrong.before, rel=1e-3)
    # Drawn in order, with the culprit shaded.
    figure, at = hl.views.errors_along_model(wrong), OPS.index("tanh") + 1
    lines = {trace["name"]: trace for trace in figure.data}
    assert list(lines["isolated"]["x"]) == [1, 2, 3, 4, 5]
    assert lines["isolated"]["y"][at - 1] == pytest.approx(errors["isolated_error"]["tanh"])
    assert lines["accumulated"]["y"][-1] == pytest.approx(wrong.before, rel=1e-3)
    jumps = lines["jumps"]
    assert (list(jumps["x"]), list(jumps["text"])) == ([at], ["tanh"])
    assert jumps["y"][0] == pytest.approx(errors["accumulated_error"]["tanh"])
    (shade,) = figure.layout.shapes
    assert (shade["x0"], shade["x1"]) == (at - 0.5, at + 0.5)


@pytest.mark.parametrize(
    "sets",
    [
        [("matmul", "tanh"), ("tanh", "shift")],
        slow([("matmul", "tanh", "shift"), ("tanh", "sigmoid")]),
    ],
)
def test_combinations_that_share_ops_are_all_found_and_gone_around(sets):
    case = chain_case(*(fault(*ops) for ops in sets))
    wrong = search(case)
    assert found_sets(wrong) == {frozenset(ops) for ops in sets}
    assert all(found.minimal for found in wrong.sets)
    assert wrong.proven
    assert all(set(ops) & set(wrong.fix) for ops in sets)
    outputs, _ = case.runs().run(wrong.placement)
    expected, _ = case.runs(()).run(case.placement)
    np.testing.assert_allclose(outputs[0], expected[0], rtol=1e-5)


def test_ops_that_are_wrong_only_together_where_the_error_of_the_whole_model_jumps():
    case = chain_case(fault("shift", "sigmoid"))
    mixed = case.placement.affinity.fix(ops={"matmul": "CPU", "negative": "CPU"})
    placement = hl.Placement(mixed, "mixed", {injected.SUSPECT: F32, "CPU": F32})
    wrong = search(replace(case, placement=placement))
    assert wrong.kind == "combination"
    assert found_sets(wrong) == {frozenset({"shift", "sigmoid"})}
    assert len(wrong.fix.keys() & {"shift", "sigmoid"}) == 1
    assert wrong.proven
    errors = wrong.errors.set_index("op")
    assert list(errors.index) == OPS
    assert list(errors.index[errors["jumps"]]) == ["sigmoid"]
    assert errors["isolated_error"].isna().tolist() == [True, False, False, False, True]
    assert errors["isolated_error"].max() < 1e-6
    assert errors["accumulated_error"]["matmul"] < 1e-6
    assert errors["accumulated_error"]["sigmoid"] > 0.01
    assert errors["accumulated_error"]["negative"] == pytest.approx(wrong.before, rel=1e-3)


@pytest.mark.parametrize("first_seed", sliced([1000, 1050], quick=1))
def test_a_slice_of_the_injected_faults(first_seed):
    assert injected.run_faults(2, first_seed)


@pytest.mark.parametrize("together", sliced([True, False], quick=0, in_ci=1))
def test_a_thousand_ops_need_forty_compiles_at_most(together):
    assert injected.run_big(together)


# Bad input.


def test_devices_that_share_the_work_are_refused():
    with pytest.raises(ArgumentError, match="each of its devices by itself: CPU"):
        hl.find_wrong("digits_inception", "MULTI:CPU")


def test_without_a_number_or_an_output_nothing_can_be_wrong():
    x = parameter((1, 4))
    model = ov.Model([op.result(op.log(x, name="log"), name="nan")], [x], "m")
    hl.emulate(injected.SUSPECT)
    with pytest.raises(MeasurementError, match=r"'nan'\. Give inputs="):
        hl.find_wrong(model, injected.SUSPECT, inputs=[np.full((1, 4), -1, np.float32)])
    state, zeros = small_models.variable("state", 4), np.zeros(4, np.float32)
    kept = op.add(op.read_value(op.constant(zeros), state), op.relu(x := parameter((4,))))
    model = ov.Model([], [op.assign(kept, state)], [x], "sink_only")
    with pytest.raises(ArgumentError, match=r"no outputs.* add a Result"):
        hl.find_wrong(model, "CPU", progress=False)


# What a model is.


@pytest.mark.parametrize("target", ["after", "sum"])
def test_a_fault_beside_and_inside_a_stateful_path(target):
    hl.emulate(injected.SUSPECT)
    prepared = injected.prepare(small_models.stateful())
    affinity = hl.Affinity.uniform(prepared.model, injected.SUSPECT)
    placement = hl.Placement(affinity, "placed", {injected.SUSPECT: F32}, direct=True)
    arrays = [np.float32([[1, -2, 3, -4]])]
    wrong = search(injected.Case(prepared, placement, "f32", arrays, (fault(target),)))
    path = {"read", "sum", "middle", "assign"}
    # Ops of a stateful path cannot be apart, so they are one suspect.
    assert set(wrong.culprits["op"]) == ({"after"} if target == "after" else path)
    assert wrong.proven
    assert wrong.fix == dict.fromkeys(wrong.culprits["op"], "CPU")


def test_a_quantised_model_is_right_in_int8_and_its_fault_is_found():
    def found(*faults):
        x = parameter((1, 1, 8, 8))
        tanh = quantised(x)
        tanh.set_friendly_name("tanh")
        image = np.random.default_rng(1).random((1, 1, 8, 8), np.float32)
        return search(case_of([op.negative(tanh)], [x], [image], *faults))

    right, wrong = found(), found(fault("tanh"))
    assert right.kind in ("none", "rounding")
    assert right.sets == ()
    assert list(wrong.culprits["op"]) == ["tanh"]
    assert wrong.precisions == {injected.SUSPECT: "i8"}
    assert wrong.proven


def test_what_is_not_a_number_in_the_reference_is_said_and_the_rest_searched():
    x = parameter((1, 4))
    nan = op.sqrt(op.log(op.relu(x, name="relu"), name="log"), name="sqrt")
    node = op.sigmoid(op.tanh(x, name="tanh"), name="sigmoid")
    results = [op.result(op.abs(nan, name="abs"), name="nan"), op.result(node, name="good")]
    wrong = search(case_of(results, [x], [np.float32([[-2, 0.5, 1, 2]])], fault("tanh")))
    assert list(wrong.culprits["op"]) == ["tanh"]
    assert wrong.proven
    assert any("in output 'nan'" in note for note in wrong.notes)
    assert any(note.startswith("'abs' read NaN already") for note in wrong.notes)
    assert np.isnan(wrong.errors.set_index("op")["isolated_error"]["abs"])


@pytest.mark.parametrize(("faults", "culprits"), [((), []), ((fault("abs"),), ["abs"])])
def test_a_number_beside_what_is_not_one_is_enough_of_a_reference(faults, culprits):
    """The only floating-point output is NaN, but there are indices beside it."""
    x = parameter((1, 4))
    largest = op.topk(op.abs(x, name="abs"), op.constant(np.int64(2)), 1, "max", "value")
    log = op.result(op.log(x, name="log"), name="nan")
    results = [log, op.result(largest.output(1), name="indices")]
    wrong = search(case_of(results, [x], [np.float32([[-1, -2, -0.5, -3]])], *faults))
    assert list(wrong.culprits["op"]) == culprits
    assert (wrong.kind == "none") == (not faults)


def noise():
    """Return an op that makes other numbers in each run."""
    size = op.constant(np.array([2, 8]))
    made = op.random_uniform(size, constant(0), constant(1), "f32")
    made.set_friendly_name("noise")
    return made


def test_a_model_that_is_random_by_itself_is_still_searched():
    """The fault is found although no output can be compared."""

    def found(*faults):
        x = parameter()
        node = op.add(op.tanh(x, name="tanh"), noise(), name="sum")
        return search(case_of([node], [x], NORMAL, *faults))

    right, wrong = found(), found(fault("tanh"))
    assert (right.kind, right.sets) == ("rounding", ())
    assert list(wrong.culprits["op"]) == ["tanh"]
    assert wrong.fix == {"tanh": "CPU"}
    assert not wrong.proven
    assert "not proven" in wrong.verdict
    assert any("random by itself ('noise')" in note for note in wrong.notes)


@pytest.mark.parametrize("faulty", ["tanh", slow("sum")])
def test_an_output_beside_a_random_one_is_compared_and_mended(faulty):
    x = parameter()
    tanh = op.tanh(x, name="tanh")
    good = op.abs(op.sigmoid(tanh, name="sigmoid"), name="abs")
    results = [op.result(op.add(tanh, noise(), name="sum"), name="rand"), op.result(good)]
    wrong = search(case_of(results, [x], NORMAL, fault(faulty)))
    assert found_sets(wrong) == {frozenset({faulty})}
    assert any("so 1 of its outputs cannot be compared" in note for note in wrong.notes)
    if faulty == "sum":  # only the random output shows it
        assert wrong.verdict.startswith("The outputs that can be compared are right.")
        assert not wrong.proven
        assert "not proven" in wrong.verdict
    else:
        assert 0.05 < wrong.before < 1
        assert wrong.proven
        assert wrong.after < 1e-6


def gathered(node, chosen):
    """Return the elements that are chosen: how many depends on the data."""
    where = op.transpose(op.non_zero(chosen, "i32"), op.constant(np.array([1, 0])), name="where")
    return op.gather_nd(op.exp(node, name="exp"), where, 0, name="gather")


@pytest.mark.parametrize(("precision", "faults"), [("f16", []), slow("f32", [fault("tanh")])])
def test_beside_a_shape_that_depends_on_data(precision, faults):
    x = parameter((4, 16))
    node = op.log(op.tanh(gathered(x, op.greater(x, constant(0))), name="tanh"), name="log")
    arrays = [np.random.default_rng(0).normal(size=(4, 16)).astype(np.float32)]
    results = [op.negative(node, name="negative")]
    wrong = search(case_of(results, [x], arrays, *faults, precision=precision))
    assert found_sets(wrong) == {each.ops for each in faults}
    assert wrong.proven
    if faults:
        assert wrong.sets[0].damage == pytest.approx(wrong.before, rel=0.01)
        assert wrong.errors.set_index("op")["jumps"]["tanh"]
    else:
        assert wrong.kind in ("none", "rounding")


@pytest.mark.slow
def test_a_shape_that_rounding_changes_is_no_fault():
    """Numbers at the threshold itself: what rounding makes of them decides on the shape."""
    arrays = [np.full((4, 16), 0.1, np.float32)]
    arrays[0][0] = 0.5
    x = parameter((4, 16))
    above = op.greater(op.log(x, name="log"), constant(np.log(np.float32(0.1))), name="above")
    node = op.abs(gathered(x, above), name="abs")
    assert search(case_of([node], [x], arrays, precision="f16")).sets == ()


def test_an_output_is_as_exact_as_what_it_depends_on():
    """A fault of 3 % in f32 is found beside another output in bf16, whose tolerance is 15 %."""
    needs("bf16")
    x = parameter()
    one = op.add(op.tanh(x, name="tanh"), constant(np.full((1, 8), -0.75)), name="shift")
    other = op.abs(op.sigmoid(x, name="sigmoid"), name="abs")
    hl.emulate("NARROW")
    case = case_of([one, other], [x], NORMAL, fault("shift"))
    affinity = case.placement.affinity.fix(ops=dict.fromkeys(["sigmoid", "abs"], "NARROW"))
    own = {injected.SUSPECT: F32, "NARROW": {"INFERENCE_PRECISION_HINT": "bf16"}}
    placement = hl.Placement(affinity, "two", own)
    wrong = search(replace(case, placement=placement, precision="bf16"))
    assert 0.01 < wrong.before < 0.3 * 0.15
    assert found_sets(wrong) == {frozenset({"shift"})}


# The way around.


def negatives(node, prefix, n):
    for index in range(n):
        node = op.negative(node, name=f"{prefix}{index}")
    return node


@pytest.mark.parametrize(
    ("target", "fix", "n_subgraphs"),
    [
        ("op22", {"op22", "op23"}, 2),  # rather than a subgraph of op23 alone
        slow("op1", {"op0", "op1"}, 2),
        slow("op12", {"op12"}, 3),  # half of the model is not moved for that
    ],
)
def test_without_costs_neighbours_move_along_where_that_leaves_fewer_subgraphs(
    target, fix, n_subgraphs
):
    x = parameter()
    case = case_of([negatives(x, "op", 24)], [x], NORMAL, fault(target))
    wrong = search(case)
    assert found_sets(wrong) == {frozenset({target})}
    assert set(wrong.fix) == fix
    assert predict(case.prepared.graph, wrong.affinity).n_subgraphs == n_subgraphs
    assert wrong.proven


@pytest.mark.slow
def test_without_costs_the_cut_is_where_the_fewest_bytes_are_handed_over():
    """The wrong op makes a wide tensor of a narrow one, and the next op narrows it again."""
    rng = np.random.default_rng(0)
    x = parameter((2, 4))
    wide, narrow = constant(rng.normal(size=(4, 64))), constant(rng.normal(size=(64, 4)))
    node = op.matmul(negatives(x, "before", 20), wide, False, False, name="wide")
    node = op.matmul(node, narrow, False, False, name="narrow")
    arrays = [rng.normal(size=(2, 4)).astype(np.float32)]
    case = case_of([negatives(node, "after", 10)], [x], arrays, fault("wide"))
    wrong = search(case)
    assert set(wrong.fix) == {"wide", "narrow"}
    assert predict(case.prepared.graph, wrong.affinity).boundary_bytes == 2 * 2 * 4 * 4
    assert wrong.proven


def costs_of(case, boundary_us, dear=(), other="CPU"):
    """Return a cost model by which every op takes 10 µs on the suspect."""
    return flat_costs(
        case.prepared.graph, {op: (10.0, us) for op, us in dict(dear).items()}, op_us=(10.0, 30.0),
        devices=(injected.SUSPECT, other), boundary_us=boundary_us, subgraph_us=1.0,
    )  # fmt: skip


@pytest.mark.parametrize(("dear", "moved"), [("shift", "sigmoid"), ("sigmoid", "shift")])
def test_with_costs_the_cheaper_op_of_a_combination_moves(dear, moved):
    case = chain_case(fault("shift", "sigmoid"))
    costs = costs_of(case, 5.0, {dear: 500.0})
    wrong = search(case, costs)
    assert wrong.fix == {moved: "CPU"}
    assert wrong.proven
    assert costs.predict_us(wrong.affinity) == 4 * 10 + 30 + 2 * 5 + 3 * 1


@pytest.mark.parametrize(("dear", "moved"), [({}, OPS), ({"matmul": 500.0}, OPS[1:])])
def test_with_costs_more_may_move_than_is_wrong(dear, moved):
    """Hand-overs are so dear that all that comes after goes to CPU as well."""
    # 10 + 100 + 4 × 30 and two subgraphs, or 5 × 30 and one of them: the latter.
    case = chain_case(fault("tanh"))
    wrong = search(case, costs_of(case, 100.0, dear))
    assert wrong.fix == dict.fromkeys(moved, "CPU")
    assert wrong.proven


def test_costs_of_another_model_or_without_the_trusted_device_are_refused():
    case = chain_case()
    costs = costs_of(case, 5.0, other="GPU")
    with pytest.raises(PlanError, match="not in it"):
        hl.find_wrong("digits_inception", injected.SUSPECT, costs=costs)
    with pytest.raises(PlanError, match="does not know 'CPU'"):
        hl.find_wrong(case.prepared.model, injected.SUSPECT, costs=costs)


# What a device does.


@pytest.mark.slow  # each crash starts a worker again, and a worker that hangs is waited for
@pytest.mark.parametrize(("how", "said"), [("crash", "SIGSEGV"), ("hang", "timed out after")])
def test_a_device_that_fails_on_a_cut_is_named_and_the_search_goes_on(monkeypatch, how, said):
    """The worker fails where sigmoid is fed from outside, as it is when cut out."""
    case = failing(chain_case(fault("tanh")), monkeypatch, how, "Parameter", "sigmoid")
    # A quarter of the budget, several times over, would be long for a test.
    monkeypatch.setattr(placed_runs, "_SHARE_OF_BUDGET", 0.0125)
    watch = Stopwatch.start(800.0)
    wrong = search_wrong(case.runs(watch=watch))
    assert list(wrong.culprits["op"]) == ["tanh"]
    assert wrong.proven
    assert wrong.complete
    (note,) = wrong.notes
    assert note.startswith("ACC refuses to run 'sigmoid' apart from the rest")
    assert said in note


@pytest.mark.slow
def test_a_placement_that_crashes_is_torn_apart_where_it_does(monkeypatch):
    wrong = search(failing(chain_case(), monkeypatch, "crash", "shift", "sigmoid"))
    assert found_sets(wrong) == {frozenset({"shift", "sigmoid"})}
    assert "The placement does not run" in wrong.verdict
    assert "SIGSEGV" in wrong.verdict
    assert len(wrong.fix) == 1
    assert wrong.proven
    assert wrong.after < 1e-5


def test_refused_ops_are_found_and_moved(monkeypatch):
    case = failing(chain_case(), monkeypatch, "refuse", "shift", "sigmoid")
    runs = functools.partial(minimal_sets.PlacedRuns, worker_command=BROKEN)
    monkeypatch.setattr(minimal_sets, "PlacedRuns", runs)
    found = hl.find_refused(case.prepared.model, case.placement, progress=False)
    assert [(each.device, each.ops) for each in found.refusals] == [("ACC", ("shift", "sigmoid"))]
    assert "no kernel for this" in str(found)
    assert found.fix == {"shift": "CPU", "sigmoid": "CPU"}
    assert dict(found.affinity) == dict(case.placement.affinity.fix(ops=found.fix))
    monkeypatch.setattr(minimal_sets, "_MOST_REFUSALS", 0)
    found = hl.find_refused(case.prepared.model, case.placement, progress=False)
    assert found.interrupted
    assert str(found) == "The search ended early: more may be refused."


def test_the_static_phases_of_a_language_model_are_searched_and_the_error_names_them():
    model = decoder()
    with pytest.raises(ModelError, match=r"hetero_lab\.llm\.static_phases\(model, scenario\)"):
        hl.find_refused(model, "CPU", progress=False)
    phases = hl.llm.static_phases(model, hl.Scenario(4, 4))
    assert not hl.find_refused(phases.decode, "CPU", progress=False)


# -- the search ends early, or the device refuses parts of it -----------------------------------


TANH, LAST = fault("tanh"), fault("sigmoid", "negative")


def ends(how, n):
    """Return a budget that ends when it was asked for n times, or Ctrl-C at that time."""
    left = iter(range(n))

    def is_over():
        if next(left, None) is not None:
            return False
        if how == "interrupted":
            raise KeyboardInterrupt
        return True

    return over_when(is_over)


def by_budget(case, step=1, how="budget ended"):
    """Return what is known after each of the checks of the budget, or every few of them."""
    known = []
    for n in range(step - 1, 100, step):
        known.append(search_wrong(case.runs(watch=ends(how, n))))
        if known[-1].complete:
            return known
    raise AssertionError("the search does not end")


@pytest.mark.parametrize(
    ("how", "step"), [("budget ended", 6), ("interrupted", 6), slow("budget ended", 1)]
)
def test_what_was_found_is_kept_when_it_ends_early_and_no_more_is_claimed(how, step):
    known = by_budget(chain_case(TANH, LAST), step, how)
    n_minimal = [sum(found.minimal for found in wrong.sets) for wrong in known]
    assert n_minimal == sorted(n_minimal)
    assert set(n_minimal) == {0, 1, 2}
    for wrong in known:
        minimal = {found.ops for found in wrong.sets if found.minimal}
        assert minimal <= {("tanh",), ("sigmoid", "negative")}
        # What is only known to hold a culprit is said to be no more than that.
        assert (len(minimal) < len(wrong.sets)) == ("perhaps" in wrong.verdict)
        assert "no op is wrong" not in wrong.verdict.lower()
        assert wrong.complete != (how in wrong.verdict)
        assert wrong.complete or wrong.interrupted == (how == "interrupted")
        if not wrong.sets:
            assert wrong.kind in ("not known", "combination")
            # Wrong outputs are a fault, whoever is to blame; outputs that nobody compared are none.
            assert (wrong.kind == "combination") == ("more than rounding in" in wrong.verdict)
            assert "No op was run by itself" in wrong.verdict


def test_ctrl_c_while_the_errors_are_measured_keeps_what_is_wrong():
    runs = chain_case(TANH).runs()
    run = runs.run

    def interrupted_at_last(placement, shown=()):
        if shown:  # the last run, with all tensors in sight
            raise KeyboardInterrupt
        return run(placement)

    runs.run = interrupted_at_last
    wrong = search_wrong(runs)
    assert wrong.interrupted
    assert wrong.fix == {"tanh": "CPU"}
    assert wrong.proven
    assert wrong.errors["accumulated_error"].isna().all()
    assert any(note.startswith("Ctrl-C came before") for note in wrong.notes)


def test_a_right_placement_is_not_said_to_be_tested_op_by_op():
    needs("bf16")
    case = injected.placed_graph(3, n_ops=10, precision="bf16")
    *cut, whole = by_budget(case)
    assert whole.kind == "rounding"
    assert "no op is wrong" in whole.verdict
    for wrong in cut:
        assert "no op is wrong" not in wrong.verdict
        # Rounding is claimed only where the outputs were found to be in its reach.
        assert (wrong.kind == "rounding") == wrong.proven == ("by rounding" in wrong.verdict)


def test_a_placement_that_does_not_run_is_not_blamed_on_rounding():
    case = chain_case()
    bad = {injected.SUSPECT: {"INFERENCE_PRECISION_HINT": "nonsense"}}
    case = replace(case, placement=replace(case.placement, device_properties=bad))
    for n in range(3):
        wrong = search_wrong(case.runs(watch=ends("budget ended", n)))
        assert wrong.verdict.startswith("The placement does not run (")
        assert "rounding" not in wrong.verdict
        assert set(wrong.fix) == set(OPS)
        # Everything on CPU is the reference, once that was run.
        assert wrong.proven == (n > 0)
        assert ("not proven" in wrong.verdict) == (n == 0)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_no_model_is_compiled_once_the_budget_is_over(n):
    runs = chain_case(TANH, LAST).runs()
    runs.watch = over_when(lambda: runs.n_compiles >= n)
    wrong = search_wrong(runs)
    assert wrong.n_compiles == n
    assert not wrong.complete


def test_an_estimate_of_rounding_ends_with_the_budget(monkeypatch):
    """It takes many inferences, so the budget is asked for between them."""
    inferences, run = [], TransparentModel.run

    def counted(*given):
        inferences.append(run(*given))
        return inferences[-1]

    monkeypatch.setattr(TransparentModel, "run", counted)
    watch = over_when(lambda: len(inferences) >= 3)
    wrong = search_wrong(chain_case(TANH).runs(watch=watch))
    assert len(inferences) == 3
    assert not wrong.complete
    assert "rounding" not in wrong.verdict


def test_the_exit_code_is_3_where_nothing_was_shown(capsys):
    arguments = ["find-wrong", "digits_inception", "-d", "ACC", "--emulate", "ACC"]
    assert main([*arguments, "--budget", "1e-6"]) == 3
    assert "not compared" in capsys.readouterr().out


def in_whole_runs(*faults):
    """Put faults in that are gone as soon as ops are cut out."""
    put_in = spoil(injected.SUSPECT, faults)

    def before_compile(model, subgraphs):
        if not model.get_friendly_name().endswith("_pieces"):
            put_in(model, subgraphs)

    return before_compile


def test_where_no_cut_shows_the_fault_all_goes_to_the_trusted_device():
    case = chain_case()
    # As a whole, it would be one piece.
    affinity = case.placement.affinity.fix(ops={"matmul": "CPU"})
    placement = hl.Placement(affinity, "placed", dict.fromkeys(affinity.devices, F32))
    runs = replace(case, placement=placement).runs()
    runs.before_compile = in_whole_runs(TANH)
    wrong = search_wrong(runs)
    assert (wrong.kind, wrong.sets) == ("combination", ())
    assert wrong.fix == dict.fromkeys(OPS[1:], "CPU")
    assert wrong.proven
    assert wrong.after < 1e-6 < wrong.before
    assert "With all ops on CPU, the outputs are right" in wrong.verdict


def test_a_way_out_that_was_run_and_is_wrong_is_said_to_be():
    case = chain_case()
    hidden = in_whole_runs(fault("negative"))

    def before_compile(model, subgraphs):
        spoil(injected.SUSPECT, [TANH])(model, subgraphs)
        hidden(model, subgraphs)

    runs = case.runs()
    runs.before_compile = before_compile
    wrong = search_wrong(runs)
    assert [found.ops for found in wrong.sets] == [("tanh",)]
    assert "With 1 op moved to CPU, the outputs are still off by 2." in wrong.verdict
    assert wrong.fix == dict.fromkeys(OPS, "CPU")
    assert wrong.proven


def test_a_set_is_minimal_only_if_all_left_out_trials_ran(monkeypatch, tmp_path):
    """The device refuses sigmoid by itself, which is what is wrong."""
    case = chain_case(fault("sigmoid"))
    wrong = injected.search(failing(case, monkeypatch, "refuse", "Parameter", "sigmoid"))
    (found,) = wrong.sets
    assert found.ops == ("shift", "sigmoid")
    assert not found.minimal
    assert found.untried == ("shift",)
    doubt = "ACC refuses them without 'shift', so not all may matter"
    assert doubt in wrong.verdict
    assert wrong.proven
    wrong.export(tmp_path)
    report = (tmp_path / "fault_1" / "README.md").read_text()
    assert f"The model holds ops that are wrong together ({doubt})." in report
    unmeasured = wrong.errors.set_index("op")["isolated_error"].isna()
    assert list(unmeasured.index[unmeasured]) == ["sigmoid"]
