"""Which turns a ledger counts, and where a trial's ops are, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_models import convolutions

import hetero_lab as hl
from hetero_lab.devices.core import bind
from hetero_lab.intervals import Latency
from hetero_lab.model.language import Scenario
from hetero_lab.results.profile_data import Generation
from hetero_lab.results.records import Finished, Host, Ledger, Trial, Turn, by_key

BEFORE = Path(__file__).parent / "stored_before"


def turn(entry: str, group: int, number: int, us: float, host: str = "") -> Turn:
    return Turn(entry=entry, group=group, round=number, samples_us=(us,) * 3, host=host)


RECORDS = [
    turn("r", 0, 0, 100.0), turn("a", 0, 0, 50.0),
    turn("r", 0, 1, 110.0),
    turn("a", 0, 2, 52.0),
    turn("r", 1, 0, 120.0), turn("a", 1, 0, 60.0),
    turn("a", 5, 0, 99.0, host="far"),
]  # fmt: skip


def test_turns_of_a_host_are_paired_by_group_and_round():
    ledger = Ledger(RECORDS)
    assert ledger.next_group == 6
    assert ledger.levels_us("a") == {(0, 0): 50.0, (0, 2): 52.0, (1, 0): 60.0}
    assert ledger.paired("a", "r") == ([50.0, 60.0], [100.0, 120.0])
    assert ledger.levels_us("a", "far") == {(5, 0): 99.0}
    assert ledger.paired("a", "r", "far") == ([], [])
    assert Ledger().next_group == 0


def test_what_is_done_has_its_turns_beside_the_reference():
    ledger = Ledger(RECORDS)
    assert not ledger.is_done("a", "", "r", None)
    for host in ("", "far"):
        ledger.note(Finished(entry="a", host=host))
    assert ledger.has(Finished, "a")
    assert not ledger.has(Finished, "r")
    assert ledger.is_done("a", "", "r", None)
    assert ledger.is_done("a", "", "r", 2)
    assert not ledger.is_done("a", "", "r", 3)  # three turns, of which two have a pair
    # Where the reference did not run, its own turns have to do.
    assert ledger.is_done("a", "far", "r", 1)
    assert not ledger.is_done("a", "far", "r", 2)


def test_a_host_is_known_as_of_its_last_record():
    first, last = (hl.read_sweep(BEFORE / name).environment for name in ("one_machine", "crashed"))
    ledger = Ledger([Host(host="h", environment=first), Host(host="h", environment=last)])
    assert ledger.hosts == {"h": last}


@pytest.fixture
def trial_of(core):
    bound = bind(convolutions(), core)
    ops = [op.name for op in bound.graph]
    devices = ["ACC" if name == "softmax" else "CPU" for name in ops]

    def make(devices: list[str]) -> Trial:
        return Trial(
            key="k", label="mine", variant="", affinity=tuple(devices), devices=("ACC", "CPU"),
            device_properties={}, requests=2,
        )  # fmt: skip

    return bound, ops, devices, make


def test_a_trial_is_placed_in_the_order_of_its_ops(trial_of):
    bound, ops, devices, make = trial_of
    here = make(devices).placed(bound)
    assert {op for op in ops if here.affinity[op] == "ACC"} == {"softmax"}
    there = make(devices[::-1]).placed(bound, ops[::-1])  # a worker may have another order
    assert there.affinity == here.affinity
    assert there.label == "mine"


@pytest.mark.parametrize("n", [-1, 1])
def test_a_trial_of_another_model_is_not_placed(trial_of, n):
    bound, _, devices, make = trial_of
    with pytest.raises(ValueError, match="argument 2"):
        make(devices[:n] if n < 0 else [*devices, "CPU"]).placed(bound)


def test_of_trials_that_share_a_key_the_first_is_measured(trial_of):
    *_, make = trial_of
    first, other = make(["CPU"]), make(["ACC"])
    assert by_key([first, other]) == {"k": first}
    assert first.requests == 2
    assert first.runs_on == {"CPU"}
    assert make(["AUTO:ACC,CPU", "CPU"]).runs_on == {"ACC", "CPU"}


def test_the_rates_of_a_generation():
    made = Generation(
        Scenario(prompt_tokens=8, new_tokens=4, batch=2),
        ttft=Latency(((20_000.0,), (30_000.0,), (40_000.0,))),
        tpot=Latency(((4_000.0, 5_000.0, 6_000.0),) * 3),
        tokens=((1, 2, 3, 4), (5, 6, 7, 8)),
    )
    assert (made.ttft_ms, made.tpot_ms) == (30.0, 5.0)
    assert made.tokens_per_s == 2 * 200.0
    assert made.ttft_ci95_ms == tuple(us / 1e3 for us in made.ttft.ci95_us)
    low, high = made.tpot_ci95_ms
    assert (low, high) == tuple(us / 1e3 for us in made.tpot.ci95_us)
    assert made.tokens_per_s_ci95 == (2e3 / high, 2e3 / low)
    assert made.token_ids.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
