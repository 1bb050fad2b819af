"""The waterfall of a difference, against the numbers of a difference made by hand."""

from __future__ import annotations

import dataclasses

from costs.test_difference import MEASURED, chain_difference

import hetero_lab as hl
from hetero_lab.views.prediction_figures import moved_types, steps


def test_steps_lead_from_a_to_b():
    found = steps(chain_difference(measurement=MEASURED))
    rows = [(s.label, s.device, s.start_us, s.difference_us) for s in found]
    assert rows == [
        ("ops A → B", "B", 0.0, -15.0),
        ("lost fusion", "", -15.0, 0.7),
        ("subgraphs on A", "A", -14.3, 1.0),
        ("subgraphs on B", "B", -13.3, 2.0),
        ("boundaries A → B", "B", -11.3, 3.0),
        ("boundaries B → A", "A", -8.3, 3.0),
        ("predicted difference", "", 0.0, -5.3),
        ("measured difference", "", 0.0, -6.0),
    ]
    assert found[-1].interval_us == (-7.5, -4.5)
    assert found[0].details == ("'b' on B instead of A: −15.0 µs",)


def test_without_costs_or_profiles_there_are_no_steps():
    assert steps(chain_difference(priced=False)) == []
    only = steps(chain_difference(priced=False, measurement=MEASURED))
    assert [step.kind for step in only] == ["measured"]
    wide = dataclasses.replace(MEASURED, high_us=float("inf"))
    assert steps(chain_difference(priced=False, measurement=wide))[0].interval_us is None


def test_moved_ops_by_type():
    assert moved_types(chain_difference()) == {("Relu", "B"): ["b"]}


def test_bars_have_the_colour_of_the_device_that_does_the_work():
    figure = hl.views.difference(chain_difference(emulated={"B": "CPU"}))
    legend = {t.name: t.marker.color for t in figure.data if t.showlegend is None}
    bars = [t for t in figure.data if t.type == "bar" and t.showlegend is False]
    assert set(legend) == {"A", "B (emulated on CPU)"}
    ops, moved = bars[0], bars[-1]
    assert ops.marker.color == moved.marker.color == legend["B (emulated on CPU)"]
    assert ops.marker.pattern.shape == "/"
    assert (list(ops.base), list(ops.x)) == ([0.0], [-15.0])
    assert list(moved.x) == [1]
    assert "µs" in figure.layout.xaxis.title.text


def test_nothing_to_draw_is_still_a_figure():
    made = chain_difference(priced=False)
    figure = hl.views.difference(dataclasses.replace(made, after=made.before))
    assert list(figure.layout.yaxis.ticktext) == ["no op moves"]


def test_gallery_and_page(tmp_path):
    found = chain_difference(measurement=MEASURED)
    assert list(hl.views.gallery(found)) == ["difference"]
    hl.views.page(found, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "From one to other" in text
    assert "After is predicted 5.30 µs faster" in text
