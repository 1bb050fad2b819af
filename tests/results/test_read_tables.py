"""Tables of an export, read back; edited by hand, a sentence names the place."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from views.hand_made import small_profile

import hetero_lab as hl
from hetero_lab.errors import HeteroLabWarning, StoredFileError
from hetero_lab.tables import html_table

BEFORE = Path(__file__).parent / "stored_before"


@pytest.fixture(scope="module")
def stored() -> hl.types.Sweep:
    return hl.read_sweep(BEFORE / "one_machine")


def test_a_sweep_comes_back_from_its_tables(stored, tmp_path):
    stored.export(tmp_path / "tables")
    again = hl.read_sweep(tmp_path / "tables")
    assert (again.reference, again.notes) == (stored.reference, stored.notes)
    for name, table in stored.tables.items():
        assert again.tables[name].shape == table.shape
    assert repr(again).splitlines()[:2] == repr(stored).splitlines()[:2]
    again.export(tmp_path / "once_more")
    for file in (tmp_path / "tables").iterdir():
        assert (tmp_path / "once_more" / file.name).read_bytes() == file.read_bytes()


def test_one_file_of_a_sweep_has_its_rows_without_findings(stored, tmp_path):
    stored.to_csv(tmp_path / "sweep.csv")
    again = hl.read_sweep(tmp_path / "sweep.csv")
    assert list(again.summary["label"]) == list(stored.summary["label"])
    assert list(again.ranking["label"]) == list(stored.ranking["label"])
    assert "Fastest" not in repr(again)
    assert "hl.sweep(…, store=) keeps what that takes" in repr(again)
    assert "keeps what that takes" in again._repr_html_()
    for needs_turns in (
        lambda: hl.views.latency_ranking(again),
        lambda: again.profile("CPU"),
        lambda: hl.compare(again, stored),
    ):
        with pytest.raises(StoredFileError, match=r"No table holds the rows .* store="):
            needs_turns()
    assert not hasattr(again, "anything_else")


def test_a_profile_comes_back_from_its_tables(tmp_path):
    whole = small_profile()
    whole.to_csv(csv := tmp_path / "profile.csv")
    pd.read_csv(csv).drop(columns="configuration").to_csv(csv, index=False)  # older
    whole.export(tmp_path / "tables")
    (tmp_path / "tables" / "profile.json").unlink()
    for path in ("profile.csv", "tables"):
        again = hl.read_profile(tmp_path / path)
        assert (again.label, again.compile_ms) == (whole.label, whole.compile_ms)
        assert list(again.tables["summary"]["configuration"]) == [whole.configuration]
        assert "profile.json" in repr(again)
        assert html_table(again.tables["summary"]) in again._repr_html_()
        with pytest.raises(StoredFileError, match="No table holds the latency"):
            hl.views.placement_graph(again)
        with pytest.raises(StoredFileError, match="No table holds"):
            again.export(tmp_path / "out")
        assert not (tmp_path / "out").exists()
    assert len(again.tables["counters"]) == len(whole.counters)


@pytest.mark.parametrize(
    ("name", "column", "value", "said"),
    [
        ("summary", "status", "great", "'great' is no status of a measurement"),
        ("summary", "median_us", "1", "1.0 is outside of its interval, ci95_low_us to ci95_high"),
        ("summary", "median_us", "fast", "'fast' is no number that was measured"),
        ("summary", "compile_ms", "-3", "'-3.0' is no number that was measured"),
        ("summary", "label", "auto", "an earlier row has the same label, host"),
        ("ranking", "median_us", "", ""),
        ("samples", "latency_us", "soon", "'soon' is no number that was measured"),
    ],
)
def test_an_edited_cell_is_named(stored, tmp_path, name, column, value, said):
    stored.export(tmp_path)
    path = tmp_path / f"{name}.csv"
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    row = next(i for i in (1, 0) if table[column][i] not in ("", value))
    table.loc[row, column] = value
    table.to_csv(path, index=False)
    if not said:  # a hole says nothing wrong
        assert hl.read_sweep(tmp_path).tables[name][column].isna()[row]
        return
    place = rf"{name}\.csv', row {row + 2}, column '\w+': {re.escape(said)}"
    with pytest.raises(StoredFileError, match=place):
        hl.read_sweep(tmp_path)


def test_tables_that_contradict_each_other_or_make_no_sweep_are_named(stored, tmp_path):
    stored.export(tmp_path)
    stored.ranking.assign(median_us=1.0001 * stored.ranking["median_us"]).to_csv(
        tmp_path / "ranking.csv", index=False
    )
    with pytest.raises(StoredFileError, match=r"ranking.csv', row 2, .* not what summary.csv says"):
        hl.read_sweep(tmp_path)
    (tmp_path / "ranking.csv").unlink()
    (tmp_path / "notes.csv").write_text("remark\nbusy\n")
    with pytest.raises(StoredFileError, match=r"' is not a whole sweep: .*finding"):
        hl.read_sweep(tmp_path)


def test_tables_of_something_else_are_named(stored, tmp_path):
    (tmp_path / "sweep.csv").write_text("name,time\nresnet,3\n")
    with pytest.raises(StoredFileError, match=r"sweep.csv' is no summary of a sweep: .* 'label'"):
        hl.read_sweep(tmp_path / "sweep.csv")
    with pytest.raises(StoredFileError, match=r"sweep.csv' is no summary of a profile"):
        hl.read_profile(tmp_path)
    small_profile().to_csv(tmp_path / "profile.csv")
    with pytest.raises(StoredFileError, match="has no column 'ratio'"):
        hl.read_sweep(tmp_path / "profile.csv")
    stored.to_csv(tmp_path / "other.csv")
    with pytest.raises(StoredFileError, match="holds a sweep: hetero_lab.read_sweep reads it"):
        hl.read_profile(tmp_path / "other.csv")


def test_a_row_that_was_not_measured_comes_back(tmp_path):
    crashed = hl.read_sweep(BEFORE / "crashed")
    crashed.to_csv(tmp_path / "sweep.csv")
    again = repr(hl.read_sweep(tmp_path / "sweep.csv"))
    assert again.splitlines()[0].endswith("; ACC alone cannot run every op")
    assert "auto (f32)  3 " in again  # subgraphs, a whole number
    assert "mixed: crashed (signal 11)" in again


def test_a_column_that_an_older_release_did_not_write_is_empty(stored, tmp_path):
    stored.export(tmp_path)
    csv = tmp_path / "summary.csv"
    pd.read_csv(csv).drop(columns=["peak_rss_bytes", "agreement"], errors="ignore").to_csv(
        csv, index=False
    )
    again = hl.read_sweep(tmp_path)
    assert again.summary["peak_rss_bytes"].isna().all()
    assert list(again.summary["label"]) == list(stored.summary["label"])
    assert repr(again).splitlines()[0] == repr(stored).splitlines()[0]


def test_an_edited_table_beside_the_measurement_is_not_passed_over(tmp_path):
    small_profile().export(tmp_path / "profile")
    path = tmp_path / "profile" / "latency.csv"
    table = pd.read_csv(path)
    table.to_csv(path, index=False, lineterminator="\r\n")  # saved by another program
    hl.read_profile(tmp_path / "profile")
    table["latency_us"] *= [1, 2] + [1] * (len(table) - 2)
    table.to_csv(path, index=False)
    with pytest.warns(
        HeteroLabWarning, match=r"latency.csv' was changed .* row 3, .* profile.json"
    ):
        hl.read_profile(tmp_path / "profile")

    shutil.copytree(BEFORE / "one_machine", tmp_path / "store")
    hl.read_sweep(tmp_path / "store").export(tmp_path / "store")
    summary = tmp_path / "store" / "summary.csv"
    summary.write_text("".join(summary.read_text().splitlines(keepends=True)[:-1]))
    with pytest.warns(
        HeteroLabWarning, match=r"summary.csv' was changed .* rows, not .* sweep.json"
    ):
        hl.read_sweep(tmp_path / "store")


def test_an_empty_table_has_its_header(stored, tmp_path):
    """Nothing of a sweep was measured when Ctrl-C came."""
    shutil.copytree(BEFORE / "one_machine", tmp_path / "store")
    (tmp_path / "store" / "records.jsonl").write_text("")
    empty = hl.read_sweep(tmp_path / "store")
    for name, table in stored.tables.items():
        if name != "summary":  # which has other columns if labelled data was evaluated
            assert set(table.columns) - {"accuracy", "variant"} <= set(empty.tables[name].columns)
    empty.export(tmp_path / "tables")
    assert repr(hl.read_sweep(tmp_path / "tables").ranking) == repr(empty.ranking)
