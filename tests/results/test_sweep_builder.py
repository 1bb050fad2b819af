"""What is said of a sweep that was read: by the records of stored ones, changed by hand."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hetero_lab as hl
from hetero_lab.errors import ArgumentError, StoredFileError
from hetero_lab.results.store import stored_line

BEFORE = Path(__file__).parent / "stored_before"
Record = dict[str, Any]


@pytest.fixture
def changed(tmp_path):
    """Return a function that reads a stored sweep with other records or another header."""

    def read(
        name: str,
        record: Callable[[Record], Record | None] = lambda record: record,
        header: Callable[[Record], object] = lambda header: None,
        more: tuple[Record, ...] = (),
    ) -> hl.types.Sweep:
        store = tmp_path / name
        shutil.copytree(BEFORE / name, store, dirs_exist_ok=True)
        path = store / "records.jsonl"
        before = [json.loads(line)["record"] for line in path.read_text().splitlines()]
        after = [new for old in before if (new := record(old)) is not None]
        path.write_text("".join(map(stored_line, [*after, *more])))
        about = json.loads((store / "sweep.json").read_text())
        header(about)
        (store / "sweep.json").write_text(json.dumps(about))
        return hl.read_sweep(store)

    return read


def of_type(kind: str, **fields: Any) -> Callable[[Record], Record]:
    """Return what sets fields of the records of a kind."""
    return lambda record: {**record, **fields} if record["type"] == kind else record


def without(kind: str, entry: str = "") -> Callable[[Record], Record | None]:
    """Return what leaves out the records of a kind, of one entry if it is given."""

    def kept(record: Record) -> Record | None:
        out = record["type"] == kind and entry in ("", record.get("entry"))
        return None if out else record

    return kept


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ([None], None),
        ([0.3], None),
        ([0.5], "0.5"),
        ([1.25], "1.2"),
        ([0.0, None, 2.0], "1.0"),  # the median of what was seen
    ],
)
def test_other_processes_are_named_only_if_they_were_seen(changed, seen, said):
    cpus = itertools.cycle(seen)

    def state(record: Record) -> Record:
        return {**record, "foreign_cpus": next(cpus)} if record["type"] == "state" else record

    sweep = changed("one_machine", state)
    notes = [note for note in sweep.notes if note.startswith("Other processes")]
    assert notes == (
        [] if said is None else [f"Other processes kept {said} CPUs busy during the run."]
    )
    # It makes every latency less certain, too.
    relative = {row.series.noise.relative for row in sweep.rows}
    assert relative == ({0.005} if said is None else {0.01})


@pytest.mark.parametrize(("scatter", "is_said"), [(0.05, False), (0.2, True)])
def test_samples_that_scatter_are_named(changed, scatter, is_said):
    samples = [100.0 * (1.0 + scatter * (-1) ** n) for n in range(10)]
    sweep = changed("crashed", of_type("turn", samples_us=samples))
    said = "The samples of 'auto (f32)', 'CPU (f32)' scatter by more than 10% (median absolute"
    assert any(note.startswith(said) for note in sweep.notes) == is_said


def test_what_is_left_is_said_once(changed):
    """By the rows that were left out; by a note where all rows have what they need."""
    left = {"n_left": 1, "needs_s": 8.2}
    said = (
        "Turns of 1 placement are missing, which need about 9 s: give it that budget_s=, or make "
        "the same call with a store= again."
    )
    whole = changed("one_machine", of_type("call", **left))
    assert said in whole.notes
    cpu = next(row.key for row in whole.rows if row.label == "CPU")
    missing = changed("one_machine", lambda r: without("turn", cpu)(of_type("call", **left)(r)))
    (row,) = [row for row in missing.rows if row.profile is None]
    assert (row.status, row.detail, row.needs_s) == ("not measured: time budget used up", said, 8.2)
    assert said not in missing.notes


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"startup_s": 0.1, "timed": 10, "n_left": 0}, []),
        ({"startup_s": 1.0, "timed": 10, "n_left": 0}, ["Of 4.0 s, 1.0 s went into starting"]),
        ({"startup_s": 0.8, "timed": 10, "n_left": 0}, []),
        ({"startup_s": 0.1, "timed": 10, "n_left": 2}, ["Of 4.0 s, 0.1 s went into starting"]),
        (
            {"startup_s": 0.1, "timed": 5, "discarded": 1, "n_left": 0},
            [
                "Of 4.0 s, 0.1 s went into starting",
                "For budget_s=60 turns were cut to 1 discarded and 5 timed inferences (else 2 and",
            ],
        ),
        ({"startup_s": 1.0, "timed": 5, "n_left": 2, "budget_s": None}, []),
    ],
)
def test_how_the_budget_was_spent_is_said_where_it_was_short(changed, call, said):
    fields = {"elapsed_s": 4.0, "budget_s": 60.0, **call}
    notes = changed("crashed", of_type("call", **fields)).notes
    found = [note for note in notes if note.startswith(("Of ", "For "))]
    assert len(found) == len(said)
    for note, begin in zip(found, said, strict=True):
        assert note.startswith(begin)


def test_wrong_outputs_are_said_with_who_finds_the_ops(changed):
    clean = changed("crashed")
    assert not any("more than rounding" in note for note in clean.notes)

    def wrong(record):
        if record["type"] != "compiled":
            return record
        return {**record, "agreement": [{**a, "verdict": "different"} for a in record["agreement"]]}

    notes = changed("crashed", wrong).notes
    (said,) = [note for note in notes if "more than rounding" in note]
    assert said.startswith("The outputs of 'auto (f32)', 'CPU (f32)' differ from the f32 reference")
    assert said.endswith("hetero_lab.find_wrong(model, placement) finds the ops to blame.")


@pytest.mark.parametrize("change", [lambda row: row.pop(), lambda row: row.append("CPU")])
def test_a_device_too_few_or_too_many_is_no_sweep(changed, change):
    with pytest.raises(StoredFileError, match="is not a whole sweep"):
        changed("crashed", header=lambda header: change(header["entries"][0]["affinity"]))


def test_a_reference_without_a_row_and_a_clock_that_nobody_told(changed):
    sweep = changed("crashed", of_type("state", frequency_mhz=None))
    assert sweep.clock_mhz is None
    assert changed("crashed", of_type("state", frequency_mhz=2600.0)).clock_mhz == 2600.0
    other = changed("crashed", header=lambda header: header.update(reference="none"))
    assert other.reference == ""
    assert other.summary["ratio"].isna().all()
    assert not other.summary["reference"].any()


def test_generated_inputs_are_noted(changed):
    said = [
        any("inputs were generated" in note for note in changed("crashed", header=how).notes)
        for how in (lambda h: h.update(generated=False), lambda h: h.update(generated=True))
    ]
    assert said == [False, True]


def test_a_later_record_overrides_a_failure(changed):
    """A store goes on: what had failed in an earlier call may be measured in the next one."""
    failed = changed("crashed").summary.set_index("label")["status"]["mixed"]
    assert failed == "crashed (signal 11)"
    key = next(row.key for row in hl.read_sweep(BEFORE / "crashed").rows if row.label == "mixed")
    turns = [
        {"type": "turn", "entry": key, "group": 1, "round": n, "samples_us": [50.0] * 10}
        for n in range(2)
    ]
    again = changed("crashed", more=(*turns, {"type": "finished", "entry": key}))
    assert again.summary.set_index("label")["status"]["mixed"] == "ok"
    assert again.profile("mixed").latency.median_us == 50.0


def test_equal_placements_share_a_measurement(changed):
    def twice(header):
        header["entries"].insert(1, {**header["entries"][0], "label": "again"})

    sweep = changed("one_machine", header=twice)
    same_as = sweep.summary.set_index("label")["same_as"].to_dict()
    assert same_as["again"] == "auto"
    assert {same_as[label] for label in same_as if label != "again"} == {""}
    assert sweep.summary.set_index("label")["median_us"]["again"] == pytest.approx(
        sweep.summary.set_index("label")["median_us"]["auto"]
    )
    assert "again" not in list(sweep.ranking["label"])
    assert "auto\nagain" in list(sweep.ranking["labels"])


def test_what_nobody_asked_for_has_no_row(changed):
    def unasked(header):
        header["entries"][-1]["asked"] = False

    assert list(changed("one_machine", header=unasked).summary["label"]) == [
        "auto", "auto · parallel", "mixed", "mixed · parallel",
    ]  # fmt: skip


def test_a_row_has_the_name_of_its_host_only_beside_other_hosts(changed):
    fleet = changed("fleet")
    assert (fleet.rows[0].host, fleet.hosts) == ("workstation", ("workstation",))
    assert fleet.name_of(fleet.rows[0]) == "auto"


def test_several_runs_of_one_reference_are_ranked_together(tmp_path):
    """On the scale of the first run; on another version of OpenVINO they are apart."""
    for name, version in (("first", "a"), ("second", "a"), ("third", "b")):
        shutil.copytree(BEFORE / "one_machine", tmp_path / name)
        header = json.loads((tmp_path / name / "sweep.json").read_text())
        header["environments"][-1]["openvino_version"] = version
        (tmp_path / name / "sweep.json").write_text(json.dumps(header))
    runs = [tmp_path / name for name in ("first", "second", "third")]
    sweep = hl.read_sweep(runs)
    assert sweep.reference == "first/auto"
    assert [row.run for row in sweep.rows] == ["first"] * 10 + ["third"] * 5
    groups = [
        {at[0] for row in sweep.rows[n : n + 5] for at in row.series.ours} for n in (0, 5, 10)
    ]
    assert groups == [{0}, {1}, {2}]
    assert {note.partition(":")[0] for note in sweep.notes} == {"first", "second", "third"}
    one = hl.read_sweep(runs[:1])
    assert one.reference == "auto"
    assert {row.run for row in one.rows} == {""}
    with pytest.raises(ArgumentError, match="at least one directory"):
        hl.read_sweep([])
