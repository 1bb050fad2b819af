"""Properties of random models, placements, properties and inputs; ``long_run`` draws many more."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from hetero_lab.devices.core import shared_core
from hetero_lab.model.read import prepare
from hetero_lab.results.environment import current_environment
from hetero_lab.results.records import Counters, Failed, Finished, Header, Turn
from hetero_lab.results.store import Store, read_store
from hetero_lab.runtime.counters import Counter
from tests.proof.graphs import Case, build, cases, inputs_of
from tests.proof.properties import Tally, check

_seen = Tally()


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@_settings(8)
@given(cases(12))
def test_what_holds_for_every_model_and_placement(case: Case):
    check(case, _seen)


@pytest.mark.slow
@_settings(30)
@given(cases())
def test_what_holds_for_larger_ones(case: Case):
    check(case, _seen)


def test_the_prediction_was_right_nearly_always():
    if not _seen.compiled:
        test_what_holds_for_every_model_and_placement()
    assert _seen.compiled >= 12
    assert _seen.split > 0.4 * _seen.compiled
    assert _seen.as_predicted >= 0.99 * _seen.compiled, _seen.surprises


@_settings(8)
@given(cases(12))
def test_a_case_is_the_same_every_time(case: Case):
    first, second = prepare(build(case)), prepare(build(case))
    assert first.fingerprint == second.fingerprint
    assert first.graph.results == second.graph.results
    a, b = inputs_of(case, first.model), inputs_of(case, second.model)
    assert {name: value.tobytes() for name, value in a.items()} == {
        name: value.tobytes() for name, value in b.items()
    }


_keys = st.text(max_size=20)
_words = _keys.filter(str.isprintable)  # the lab stores no others as status or host
_floats = st.floats(allow_nan=False, allow_infinity=False)
_counters = st.builds(
    Counter, subgraph=st.integers(0, 9), real_time_us=_floats, cpu_time_us=_floats, op=_keys,
    fused_ops=st.lists(_keys).map(tuple), device=_words, precision=_words, status=_words,
)  # fmt: skip
_records = st.lists(
    st.builds(Failed, entry=_keys, status=_words, detail=st.text(), host=_words)
    | st.builds(Finished, entry=_keys)
    | st.builds(Counters, entry=_keys, rows=st.lists(_counters, max_size=3).map(tuple))
    | st.builds(
        Turn, entry=_keys, group=st.integers(0, 9), round=st.integers(0, 9),
        samples_us=st.lists(_floats).map(tuple),
    )
)  # fmt: skip


@_settings(30)
@given(_records, st.integers(0, 400))
def test_a_store_keeps_every_record_and_loses_only_a_torn_one(records: list, torn: int):
    header = Header(
        models={}, entries=[], reference="k", emulated=[], seed=0, inputs_digest="",
        environments=[current_environment([], shared_core())],
    )  # fmt: skip
    after = Finished(entry="after")
    with tempfile.TemporaryDirectory() as name:
        with contextlib.closing(Store(name, header)) as store:
            for record in records:
                store.append(record)
        assert read_store(name)[1] == records
        path = Path(name) / "records.jsonl"
        whole = path.read_bytes()
        kept = whole[: max(0, len(whole) - torn)]
        path.write_bytes(kept)
        n = kept.count(b"\n")
        assert read_store(name)[1] == records[:n]
        with contextlib.closing(Store(name, header)) as store:
            store.append(after)
        assert read_store(name)[1] == [*records[:n], after]
        assert json.loads((Path(name) / "sweep.json").read_text())["kind"] == "sweep"
