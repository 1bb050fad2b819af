"""Rows of several hosts in one sweep: never mixed, never ranked against each other."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

import hetero_lab as hl
from hetero_lab.errors import ArgumentError
from hetero_lab.results.records import AnyRecord, Finished, Host, Turn
from hetero_lab.results.store import read_store
from hetero_lab.results.sweep_builder import sweep_from


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """What one real sweep of this machine stored: three rows of two turns."""
    hl.emulate("ACC", unsupported={"Concat", "MaxPool"})
    model = hl.load("digits_inception")
    store = tmp_path_factory.mktemp("store")
    hl.sweep(
        model, ["HETERO:ACC,CPU", "HETERO:CPU,ACC"], store=store, turns=5, budget_s=None,
        progress=False, isolate=False, counters=False,
    )  # fmt: skip
    return read_store(store)


def on_hosts(stored, every_host, *, b_has=None):
    """Say that host a measured it, and host b the same (or some of it), three times as fast."""
    header, records = stored
    environment = header.environments[-1]
    header = replace(header, fleet=True, every_host=every_host)
    made: list[AnyRecord] = []
    for host in ("a", "b"):
        own = dataclasses.replace(environment, host=host, openvino_version=f"version of {host}")
        made.append(Host(host=host, environment=own))
        for record in records:
            if host == "b" and b_has is not None and getattr(record, "entry", "") not in b_has:
                continue
            there = faster(record) if host == "b" else record
            made.append(replace(there, host=host, worker=f"tcp://{host}:1"))
    return header, made


def faster(record: AnyRecord) -> AnyRecord:
    """Return a record of a host that is three times as fast."""
    if not isinstance(record, Turn):
        return record
    samples = tuple(s / 3 for s in record.samples_us)
    return replace(record, group=record.group + 10, samples_us=samples)


def test_every_host_has_each_row_and_a_ranking_of_its_own(stored):
    # What each would say if it were alone.
    alone = {
        "a": sweep_from(*stored),
        "b": sweep_from(stored[0], [faster(r) for r in stored[1]]),
    }
    sweep = sweep_from(*on_hosts(stored, every_host=True))
    labels = [row.label for row in alone["a"].rows]
    assert sweep.hosts == ("a", "b")
    assert list(sweep.summary["label"]) == [label for label in labels for _ in "ab"]
    assert list(sweep.summary["host"]) == ["a", "b"] * len(labels)
    assert set(sweep.summary.loc[sweep.summary["host"] == "b", "openvino_version"]) == {
        "version of b"
    }
    for host in "ab":
        mine = sweep.ranking.loc[sweep.ranking["host"] == host].reset_index(drop=True)
        for column in ("label", "rank", "group", "ratio", "ratio_ci95_high"):
            assert list(mine[column]) == list(alone[host].ranking[column])
        # The ratio is to the reference of the same host, which is as much faster.
        assert list(mine["ratio"]) == pytest.approx(list(alone["a"].ranking["ratio"]))
    first = labels[0]
    a, b = (sweep.profile(first, host) for host in "ab")
    assert a.latency.median_us == pytest.approx(3 * b.latency.median_us)
    assert sweep.profile(first) == a
    assert set(sweep.tables["samples"]["host"]) == {"a", "b"}
    assert sweep.smallest_difference == max(s.smallest_difference for s in alone.values())
    assert "HOST" in str(sweep)


def test_otherwise_a_row_is_of_the_host_that_finished_it(stored):
    header, _ = stored
    reference, other = header.reference, header.entries[1].key
    sweep = sweep_from(*on_hosts(stored, every_host=False, b_has={reference, other}))
    rows = [(row.key, row.host) for row in sweep.rows]
    assert (reference, "a") in rows
    assert (reference, "b") in rows
    # Both finished it; the last one counts, and only once.
    assert [host for key, host in rows if key == other] == ["b"]
    assert len(rows) == 1 + len({e.key for e in header.entries})


def test_what_a_dead_worker_left_is_not_mixed_in(stored):
    header, records = on_hosts(stored, every_host=False)
    other = header.entries[1].key
    records = [
        r for r in records if not (isinstance(r, Finished) and r.entry == other and r.host == "a")
    ]
    # a comes first, with as many turns.
    sweep = sweep_from(header, records)
    (row,) = [row for row in sweep.rows if row.key == other]
    assert (row.host, len(row.series.ours)) == ("b", 5)
    assert min(row.series.ours)[0] >= 10


def test_hosts_side_by_side(stored):
    sweep = sweep_from(*on_hosts(stored, every_host=True))
    figure = hl.views.hosts(sweep)
    latency = [t for t in figure.data if t.xaxis == "x"]
    ratio = [t for t in figure.data if t.xaxis == "x2"]
    assert [t.name for t in latency] == ["a", "b"]
    assert list(latency[0].x) == pytest.approx([3 * x for x in latency[1].x])
    assert list(ratio[0].x) == pytest.approx(list(ratio[1].x))
    assert len({t.marker.symbol for t in latency}) == 2
    # Both orders begin on an emulated device or end there; CPU alone does not.
    assert [name.endswith(" *") for name in figure.layout.yaxis.ticktext] == [
        name != "" for name in sweep.summary.query("host == 'a'")["emulated"]
    ]
    # One row a placement, in which the hosts lie beside each other.
    assert [round(y) for y in latency[0].y] == [round(y) for y in latency[1].y]
    assert "hosts" in hl.views.gallery(sweep)
    assert "hosts" not in hl.views.gallery(sweep_from(*stored))
    assert any(" @ b" in name for name in hl.views.latency_ranking(sweep).layout.yaxis.ticktext)
    nothing = sweep_from(replace(stored[0], fleet=True), [])
    with pytest.raises(ArgumentError, match="Nothing was measured"):
        hl.views.hosts(nothing)


def test_names_of_hosts_are_shown_as_they_are(stored):
    header, records = on_hosts(stored, every_host=True)
    evil = "<script>$x$"
    renamed: list[AnyRecord] = []
    for record in records:
        if isinstance(record, Host) and record.host == "b":
            environment = dataclasses.replace(record.environment, host=evil)
            record = replace(record, environment=environment)
        renamed.append(replace(record, host=evil) if record.host == "b" else record)
    sweep = sweep_from(header, renamed)
    assert sweep.hosts == ("a", evil)
    assert evil not in sweep._repr_html_()
    assert "&lt;script&gt;" in hl.views.hosts(sweep).to_json()
    assert evil not in hl.views.hosts(sweep).to_json()
