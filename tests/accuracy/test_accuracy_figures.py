"""The front of latency, accuracy and size: hand-made summaries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from widgets.hand_sweeps import small_sweep

from hetero_lab.accuracy.accuracy_figures import accuracy_front, front_points, sensitivity
from hetero_lab.accuracy.recover import ModelPart
from hetero_lab.errors import ArgumentError


def summary(rows: list[tuple[float, float, float]]) -> Any:
    frame = pd.DataFrame(rows, columns=["median_us", "accuracy", "weight_bytes"])
    for end in ("low", "high"):
        frame[f"ci95_{end}_us"] = frame["median_us"]
        frame[f"accuracy_ci95_{end}"] = frame["accuracy"]
    frame["label"] = frame["configuration"] = [str(i) for i in range(len(frame))]
    return cast(Any, SimpleNamespace(summary=frame))


def on_front(rows: list[tuple[float, float, float]]) -> set[str]:
    return {p["label"] for p in front_points(summary(rows)) if p["is_on_front"]}


@given(
    st.lists(st.tuples(*(st.integers(1, 4).map(float) for _ in range(3))), min_size=1, max_size=12)
)
def test_what_is_on_the_front_is_beaten_by_nothing(rows):
    rows = [(us, share / 4, size) for us, share, size in rows]
    expected = set()
    for i, (us, share, size) in enumerate(rows):
        at_least = [r for r in rows if r[0] <= us and r[1] >= share and r[2] <= size]
        if all(r == rows[i] for r in at_least):
            expected.add(str(i))
    assert on_front(rows) == expected


def test_each_size_has_a_colour_and_its_name_in_the_legend():
    rows = [(1.0, 0.9, 178e3), (2.0, 0.8, 178e3), (3.0, 0.8, 46.8e3)]
    markers = [trace for trace in accuracy_front(summary(rows)).data if trace.mode == "markers"]
    assert [trace.name for trace in markers] == ["weights 178 KB", "weights 46.8 KB"]
    assert max(markers[1].marker.size) < min(markers[0].marker.size)
    assert [len(trace.x) for trace in markers] == [2, 1]


@pytest.mark.parametrize("sweep", [small_sweep(), summary([(1.0, np.nan, 1.0)])])
def test_nothing_with_an_accuracy(sweep):
    with pytest.raises(ArgumentError, match="Give the sweep labelled data"):
        accuracy_front(sweep)


def test_a_hover_says_the_time_on_the_fast_device_where_that_is_known():
    found = cast(Any, SimpleNamespace(relative_error=0.25, accuracy=0.5))
    parts = [
        ModelPart(0, ("a", "b"), 2.0, 0.5, only_fast=found),
        ModelPart(1, ("c",), 3.0, 0.0, only_fast=found),
        ModelPart(2, ("d",), 4.0, np.nan, only_accurate=found),
    ]
    recovered = SimpleNamespace(
        fast="GPU", accurate="CPU", tried=parts, affinity=dict.fromkeys("abcd", "GPU"),
        sensitivity=pd.DataFrame({"error_all_fast": [0.5]}),
        sweep=SimpleNamespace(environment=SimpleNamespace(emulated=())),
    )  # fmt: skip
    figure = sensitivity(cast(Any, recovered))
    hovers = [text for trace in figure.data if trace.type == "bar" for text in trace.hovertext]
    assert [text.split("<br>")[-1] for text in hovers] == [
        "2 µs on the accurate device, 0.5 µs on the fast one",
        "3 µs on the accurate device, ≈ 0 µs on the fast one",
        "4 µs on the accurate device",
    ]
    assert "relative error 0.25, accuracy 50.0%" in hovers[0]
