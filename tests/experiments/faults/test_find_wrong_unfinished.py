"""The result of find_wrong if the search ends early or the device refuses parts of it."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

import hetero_lab as hl
from hetero_lab.cli.main import main
from hetero_lab.experiments.faults.find_wrong import search_wrong
from hetero_lab.runtime.timing import Stopwatch
from tests.experiments.faults.cases import F32, chain_case, failing, fault, needs, slow
from tests.proof import injected_faults as injected
from tests.proof.faults import spoil

OPS = ["matmul", "tanh", "shift", "sigmoid", "negative"]
TANH, FIRST, LAST = fault("tanh"), fault("matmul", "tanh"), fault("sigmoid", "negative")


def over_when(is_over):
    """Return a budget that is over when a condition holds."""

    class Budget(Stopwatch):
        @property
        def is_over(self):
            return is_over()

    return Budget(1.0, 0.0)


def checks(n):
    """Return a budget that is over when it was asked for n times."""
    left = iter(range(n))
    return over_when(lambda: next(left, None) is None)


def by_budget(case, step=1, most=100):
    """Return what is known after each of the checks of the budget, or every few of them."""
    known = []
    for n in range(0, most, step):
        known.append(search_wrong(case.runs(), checks(n)))
        if known[-1].complete:
            return known
    raise AssertionError("the search does not end")


@pytest.mark.parametrize("step", [6, slow(1)])
def test_what_was_found_is_kept_when_the_budget_ends_and_no_more_is_claimed(step):
    known = by_budget(chain_case(TANH, LAST), step)
    n_minimal = [sum(found.minimal for found in wrong.sets) for wrong in known]
    assert n_minimal == sorted(n_minimal)
    assert set(n_minimal) == {0, 1, 2}
    for wrong in known:
        minimal = {found.ops for found in wrong.sets if found.minimal}
        assert minimal <= {("tanh",), ("sigmoid", "negative")}
        # What is only known to hold a culprit is said to be no more than that.
        assert (len(minimal) < len(wrong.sets)) == ("perhaps" in wrong.verdict)
        assert "no op is wrong" not in wrong.verdict.lower()
        assert wrong.complete != ("budget ended" in wrong.verdict)
        if not wrong.sets:
            assert wrong.kind in ("not known", "combination")
            # Wrong outputs are a fault, whoever is to blame; outputs that nobody compared are none.
            assert (wrong.kind == "combination") == ("more than rounding in" in wrong.verdict)
            assert "No op was run by itself" in wrong.verdict


def test_ctrl_c_keeps_what_was_found():
    def pressed(runs, n):
        if runs.n_compiles == n:
            raise KeyboardInterrupt
        return False

    case, n_found = chain_case(FIRST, LAST), []
    for n in range(2, 30):
        runs = case.runs()
        wrong = search_wrong(runs, over_when(functools.partial(pressed, runs, n)))
        n_found.append(sum(found.minimal for found in wrong.sets))
        if not wrong.interrupted:
            break
    assert n_found == sorted(n_found)
    assert set(n_found) == {0, 1, 2}


def test_ctrl_c_while_the_errors_are_measured_keeps_what_is_wrong():
    runs = chain_case(TANH).runs()
    placed = runs.placed

    def interrupted_at_last(placement, shown=()):
        if shown:  # the last run, with all tensors in sight
            raise KeyboardInterrupt
        return placed(placement)

    runs.placed = interrupted_at_last
    wrong = search_wrong(runs, Stopwatch.start(None))
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
        wrong = search_wrong(case.runs(), checks(n))
        assert wrong.verdict.startswith("The placement does not run.")
        assert "rounding" not in wrong.verdict
        assert set(wrong.fix) == set(OPS)
        # Everything on CPU is the reference, once that was run.
        assert wrong.proven == (n > 0)
        assert ("not proven" in wrong.verdict) == (n == 0)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_no_model_is_compiled_once_the_budget_is_over(n):
    runs = chain_case(TANH, LAST).runs()
    wrong = search_wrong(runs, over_when(lambda: runs.n_compiles >= n))
    assert wrong.n_compiles == n
    assert not wrong.complete


def test_an_estimate_of_rounding_ends_with_the_budget():
    """It takes many inferences, so the budget is asked for between them."""
    runs = chain_case(TANH).runs()
    inferences: list[int] = []
    make = runs.transparent

    def counting(fixed):
        transparent = make(fixed)
        run = transparent.run

        def counted(offsets, wanted=None):
            made = run(offsets, wanted)
            inferences.append(len(made))
            return made

        transparent.run = counted
        return transparent

    runs.transparent = counting
    wrong = search_wrong(runs, over_when(lambda: len(inferences) >= 3))
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
    wrong = search_wrong(runs, Stopwatch.start(None))
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
    wrong = search_wrong(runs, Stopwatch.start(None))
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
